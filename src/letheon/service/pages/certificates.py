"""Certificates as a chain, one with its claims and checks; the map of residue; a receipt's check.

The page of receipts is for people without an account: it says whether a certificate covers a
receipt, and nothing about models, tenants or others.
"""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from letheon.service.auth import Principal, public
from letheon.service.errors import Problem
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
# Columns that can be read without scrolling far.
_PURGES = 6
_NO_RECEIPT = "This is no receipt. Paste the code (lethe-…), or the whole of an opened receipt."
Reader = Annotated[_shared.Visitor, Depends(_shared.page_allows("certificates:read"))]


@router.get("/certificates")
def show_certificates(
    who: Reader,
    tenant: _shared.Tenant = None,
    model: _shared.ModelFilter = None,
    after: _shared.AfterText = None,
) -> Response:
    """Show certificates, newest first; who sees all of them sees the links between them, too."""
    query = {"tenant": tenant, "model": model or None}
    is_chain = who.tenant is None and not any(query.values())
    found: Any
    links = {}
    if is_chain:
        found = routes.show_chain(who, after=after, limit=_PAGE)
        links = {"json": _shared.address("/api/v1/chain", after=after)}
    else:
        found = routes.list_certificates(who, **query, after=after, limit=_PAGE)
    return who.list_page("certificates.html", found, query, is_chain=is_chain, **links)


@router.get("/certificates/{number}")
def show_certificate(
    who: Reader,
    number: Annotated[int, Path(ge=1, le=2**53)],
    verify: bool = False,
) -> Response:
    """Show one certificate; with `verify` also whether it holds, check by check.

    Of one that cannot be read, only the checks are shown.
    """
    try:
        found = routes.show_certificate(who, number)
    except VerificationError:
        found = None
    envelope = None if found is None or found.envelope is None else json.loads(found.envelope)
    return who.page(
        "certificate.html",
        json=f"/api/v1/certificates/{number}",
        number=number,
        found=found,
        checked=routes.verify_certificate(who, number) if verify or found is None else None,
        statement=None if found is None else _pretty(found.statement),
        envelope=None if envelope is None else _pretty(envelope),
    )


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)


@router.get("/residue")
def show_residue(
    who: Reader,
    tenant: _shared.Tenant = None,
    model: _shared.ModelFilter = None,
    after: _shared.After = None,
) -> Response:
    """Show what each purge found in each store, newest purge first."""
    query = {"tenant": tenant, "model": model or None}
    found = read_residue(who, **query, after=after, limit=_PURGES)
    cells = {(cell.store, one.certificate): cell for one in found.purges for cell in one.cells}
    return who.list_page("residue.html", found, query, cells=cells)


@router.get("/receipt", dependencies=[Depends(public())])
def show_receipt_form(request: Request) -> Response:
    """Show the form."""
    return _receipt_page(request)


@router.post("/receipt", dependencies=[Depends(public())])
def check_receipt(request: Request, form: _shared.SentForm) -> Response:
    """Say whether a certificate covers the receipt; it is posted, so that no log has it."""
    count_check(request)
    text = text_of(form, "code")
    if not text:
        return _receipt_page(request, error="Paste the code that you were given.", status=422)
    if _is_other_json(text):
        return _receipt_page(request, error=_NO_RECEIPT, status=422)
    try:
        return _receipt_page(request, verdict=verify_receipt(request, text))
    except Problem as problem:
        if problem.status_code != 422:
            raise
        return _receipt_page(request, error=problem.detail or problem.title, status=422)


def _is_other_json(text: str) -> bool:
    """Whether a text is JSON of something else than a receipt; what is no JSON is for the check."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return not (isinstance(content, dict) and "certificate" in content)


def _receipt_page(
    request: Request, *, verdict: Any = None, error: str = "", status: int = 200
) -> Response:
    return _shared.page(request, "receipt.html", None, status=status, verdict=verdict, error=error)


# The other levels need something that an auditor brings.
_LEVELS = {level: _shared.LEVEL_WORDS[level] for level in ("V0", "V1", "V2", "V3", "V4", "V5")}
_AUDITS = 25


@router.get("/audits")
def show_audits(
    who: Annotated[_shared.Visitor, Depends(_shared.page_allows("audits:read"))],
    tenant: _shared.Tenant = None,
    model: Annotated[str | None, Query(max_length=200)] = None,
    after: _shared.AfterJob = None,
) -> Response:
    """Show the audits so far, newest first, and the form to start one."""
    found = jobs.list_audits(who, tenant, after, _AUDITS)
    return who.list_page(
        "audits.html",
        found,
        {"tenant": tenant},
        models=_models(who, tenant),
        chosen=model or "",
        levels=_LEVELS,
        drills=_shared.DRILLS,
    )


@router.post("/audits")
def start_audit(
    who: Annotated[_shared.Visitor, Depends(_shared.page_allows("audits:run"))],
    form: _shared.SentForm,
) -> Response:
    """Ask the worker for an audit."""
    tenant, _, model = str(form.get("model", "")).rpartition("/")
    levels = form.getlist("levels")
    wanted = check_form(
        jobs.AuditIn,
        {
            "model": model,
            "tenant": tenant,
            "levels": None if set(levels) == set(_LEVELS) else levels,
            "drill": form.get("drill"),
        },
    )
    audit = jobs.start_audit(who, wanted)
    return who.done(f"/audits/{audit.id}", "audit-started")


@router.get("/audits/{audit_id}")
def show_audit(
    who: Annotated[_shared.Visitor, Depends(_shared.page_allows("audits:read"))],
    audit_id: _shared.JobId,
) -> Response:
    """Show what an audit has found so far, or its verdict."""
    audit = jobs.show_audit(who, audit_id)
    return who.page(
        "audit.html",
        json=f"/api/v1/audits/{audit.id}",
        audit=audit,
        levels=_shared.LEVEL_WORDS,
    )


def _models(who: Principal, tenant: str | None) -> list[tuple[str, str]]:
    """Return what may be audited: everything, or one model; names of tenants where it matters."""
    is_bound = who.tenant is not None
    return [
        ("", "All models"),
        *(
            (f"{one.tenant}/{one.name}", one.name if is_bound else f"{one.name} ({one.tenant})")
            for one in list_models(who, tenant, limit=200).items
        ),
    ]
