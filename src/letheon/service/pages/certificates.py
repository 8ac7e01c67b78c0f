"""Pages for certificates, the residue map, audits and the check of a receipt.

The receipt page is public: it shows whether a certificate covers a receipt, and nothing about
models, tenants or other people.
"""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from letheon.service.auth import Principal, public
from letheon.service.errors import ApiProblem
from letheon.service.forms import check_form, text_of
from letheon.service.pages import _shared
from letheon.service.routes import certificates as routes
from letheon.service.routes import jobs
from letheon.service.routes.evidence import count_check, verify_receipt
from letheon.service.routes.evidence import show_residue as read_residue
from letheon.service.routes.models import list_models
from letheon.verifier import VerificationError

router = APIRouter(include_in_schema=False)

_PAGE = 20
# Columns that fit on a page.
_PURGES = 6
_NO_RECEIPT = (
    "This is not a receipt. Paste the receipt code (lethe-…) or the complete receipt as JSON."
)
Reader = Annotated[_shared.Visitor, Depends(_shared.page_allows("certificates:read"))]


@router.get("/certificates")
def show_certificates(
    visitor: Reader,
    tenant: _shared.Tenant = None,
    model: _shared.ModelFilter = None,
    after: _shared.AfterText = None,
) -> Response:
    """Show certificates, newest first.

    Visitors who see the certificates of all tenants and models also see how they are chained.
    """
    query = {"tenant": tenant, "model": model or None}
    is_chain = visitor.tenant is None and not any(query.values())
    listing: Any
    links = {}
    if is_chain:
        listing = routes.show_chain(visitor, after=after, limit=_PAGE)
        links = {"json": _shared.address("/api/v1/chain", after=after)}
    else:
        listing = routes.list_certificates(visitor, **query, after=after, limit=_PAGE)
    return visitor.list_page("certificates.html", listing, query, is_chain=is_chain, **links)


@router.get("/certificates/{number}")
def show_certificate(
    visitor: Reader,
    number: Annotated[int, Path(ge=1, le=2**53)],
    verify: bool = False,
) -> Response:
    """Show a certificate; with `verify`, also show the result of each check.

    For a certificate that cannot be read, only the checks are shown.
    """
    try:
        certificate = routes.show_certificate(visitor, number)
    except VerificationError:
        certificate = None
    envelope = None
    if certificate is not None and certificate.envelope is not None:
        envelope = json.loads(certificate.envelope)
    return visitor.page(
        "certificate.html",
        json=f"/api/v1/certificates/{number}",
        number=number,
        certificate=certificate,
        verification=routes.verify_certificate(visitor, number)
        if verify or certificate is None
        else None,
        statement=None if certificate is None else _format_json(certificate.statement),
        envelope=None if envelope is None else _format_json(envelope),
    )


def _format_json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)


@router.get("/residue")
def show_residue(
    visitor: Reader,
    tenant: _shared.Tenant = None,
    model: _shared.ModelFilter = None,
    after: _shared.After = None,
) -> Response:
    """Show the result of each purge in each store, newest purge first."""
    query = {"tenant": tenant, "model": model or None}
    residue = read_residue(visitor, **query, after=after, limit=_PURGES)
    cells = {
        (cell.store, purge.certificate): cell for purge in residue.purges for cell in purge.cells
    }
    return visitor.list_page("residue.html", residue, query, cells=cells)


@router.get("/receipt", dependencies=[Depends(public())])
def show_receipt_form(request: Request) -> Response:
    """Show the form for a receipt code."""
    return _receipt_page(request)


@router.post("/receipt", dependencies=[Depends(public())])
def check_receipt(request: Request, form: _shared.SentForm) -> Response:
    """Show whether a certificate covers a receipt.

    The code is sent in the body of a POST call, so that it does not appear in access logs.
    """
    count_check(request)
    text = text_of(form, "code")
    if not text:
        return _receipt_page(request, error="Paste your receipt code.", status=422)
    if _is_other_json(text):
        return _receipt_page(request, error=_NO_RECEIPT, status=422)
    try:
        return _receipt_page(request, verdict=verify_receipt(request, text))
    except ApiProblem as problem:
        if problem.status_code != 422:
            raise
        return _receipt_page(request, error=problem.detail or problem.title, status=422)


def _is_other_json(text: str) -> bool:
    """Return whether a text is JSON, but not a receipt."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return not (isinstance(content, dict) and "certificate" in content)


def _receipt_page(
    request: Request, *, verdict: Any = None, error: str = "", status: int = 200
) -> Response:
    return _shared.page(request, "receipt.html", None, status=status, verdict=verdict, error=error)


# The other levels need input of an auditor.
_LEVELS = {level: _shared.LEVEL_WORDS[level] for level in ("V0", "V1", "V2", "V3", "V4", "V5")}
_AUDITS = 25


@router.get("/audits")
def show_audits(
    visitor: Annotated[_shared.Visitor, Depends(_shared.page_allows("audits:read"))],
    tenant: _shared.Tenant = None,
    model: Annotated[str | None, Query(max_length=200)] = None,
    after: _shared.AfterJob = None,
) -> Response:
    """Show the audits, newest first, and the form to start an audit."""
    listing = jobs.list_audits(visitor, tenant, after, _AUDITS)
    return visitor.list_page(
        "audits.html",
        listing,
        {"tenant": tenant},
        models=_list_model_options(visitor, tenant),
        chosen=model or "",
        levels=_LEVELS,
        drills=_shared.DRILLS,
    )


@router.post("/audits")
def start_audit(
    visitor: Annotated[_shared.Visitor, Depends(_shared.page_allows("audits:run"))],
    form: _shared.SentForm,
) -> Response:
    """Queue an audit for the worker."""
    tenant, _, model = str(form.get("model", "")).rpartition("/")
    levels = form.getlist("levels")
    audit_input = check_form(
        jobs.AuditIn,
        {
            "model": model,
            "tenant": tenant,
            "levels": None if set(levels) == set(_LEVELS) else levels,
            "drill": form.get("drill"),
        },
    )
    audit = jobs.start_audit(visitor, audit_input)
    return visitor.redirect_with(f"/audits/{audit.id}", "audit-started")


@router.get("/audits/{audit_id}")
def show_audit(
    visitor: Annotated[_shared.Visitor, Depends(_shared.page_allows("audits:read"))],
    audit_id: _shared.JobId,
) -> Response:
    """Show the progress of an audit, or its verdict if it is finished."""
    audit = jobs.show_audit(visitor, audit_id)
    return visitor.page(
        "audit.html",
        json=f"/api/v1/audits/{audit.id}",
        audit=audit,
        levels=_shared.LEVEL_WORDS,
    )


def _list_model_options(visitor: Principal, tenant: str | None) -> list[tuple[str, str]]:
    """Return options of a select field: "All models", and then each model.

    The tenant of a model is shown unless the visitor's token is bound to a tenant.
    """
    is_bound = visitor.tenant is not None
    return [
        ("", "All models"),
        *(
            (
                f"{model.tenant}/{model.name}",
                model.name if is_bound else f"{model.name} ({model.tenant})",
            )
            for model in list_models(visitor, tenant, limit=200).items
        ),
    ]
