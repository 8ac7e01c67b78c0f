"""Audits: start one, watch it, see what passed and what failed."""

from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from letheon.service.auth import Principal
from letheon.service.errors import Problem
from letheon.service.pages._shared import (
    DRILLS,
    LEVEL_WORDS,
    AfterJob,
    JobId,
    SentForm,
    Tenant,
    address,
    done,
    page,
    page_allows,
    page_links,
)
from letheon.service.routes import audits
from letheon.service.routes.models import list_models

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

# The other levels need something that an auditor brings.
_LEVELS = {level: LEVEL_WORDS[level] for level in ("V0", "V1", "V2", "V3", "V4", "V5")}
_PAGE = 25


@router.get("/audits")
def show_audits(
    request: Request,
    who: Annotated[Principal, Depends(page_allows("audits:read"))],
    tenant: Tenant = None,
    model: Annotated[str | None, Query(max_length=200)] = None,
    after: AfterJob = None,
) -> Response:
    """Show the audits so far, newest first, and the form to start one."""
    found = audits.list_audits(who, tenant, after, _PAGE)
    return page(
        request,
        "audits.html",
        who,
        json=address("/api/v1/audits", tenant=tenant, after=after),
        page=found,
        **page_links("/audits", after, found.next, {"tenant": tenant}),
        models=_models(who, tenant),
        chosen=model or "",
        levels=_LEVELS,
        drills=DRILLS,
    )


@router.post("/audits")
def start_audit(
    request: Request,
    who: Annotated[Principal, Depends(page_allows("audits:run"))],
    form: SentForm,
) -> Response:
    """Ask the worker for an audit."""
    tenant, _, model = str(form.get("model", "")).rpartition("/")
    levels = [str(level) for level in form.getlist("levels")]
    drill = str(form.get("drill", "none"))
    if not set(levels) <= set(_LEVELS):
        raise Problem(422, "levels", "There is no such level", "Use the boxes of the page.")
    if drill not in DRILLS:
        raise Problem(422, "drill", "There is no such drill", "Choose one from the list.")
    is_all = set(levels) == set(_LEVELS)
    wanted = audits.AuditIn.model_construct(
        model=model or None,
        tenant=tenant or None,
        levels=cast("Any", None if is_all else levels),
        drill=cast("Any", drill),
    )
    audit = audits.start_audit(who, wanted)
    return done(request, f"/audits/{audit.id}", "audit-started")


@router.get("/audits/{audit_id}")
def show_audit(
    request: Request,
    who: Annotated[Principal, Depends(page_allows("audits:read"))],
    audit_id: JobId,
) -> Response:
    """Show what an audit has found so far, or its verdict."""
    audit = audits.show_audit(who, audit_id)
    verdicts = [one.verdict for one in audit.levels]
    return page(
        request,
        "audit.html",
        who,
        json=f"/api/v1/audits/{audit.id}",
        audit=audit,
        is_drill=(audit.drill or "none") != "none",
        failed=verdicts.count("fail"),
        skipped=verdicts.count("skipped"),
        levels=LEVEL_WORDS,
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
