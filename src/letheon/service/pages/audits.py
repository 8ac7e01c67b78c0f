"""Audits: start one, watch it, see what passed and what failed."""

from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from letheon.service._audit_job import Drill
from letheon.service._auth import Principal
from letheon.service._context import Context, context
from letheon.service._problems import Problem
from letheon.service.desk import audits, models
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
)

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
    desk = context(request)
    found = audits.page_of_audits(desk, who, tenant=tenant, after=after, limit=_PAGE)
    return page(
        request,
        "audits.html",
        who,
        json=address("/api/v1/audits", tenant=tenant, after=after),
        page=found,
        first=address("/audits", tenant=tenant) if after else None,
        next=address("/audits", tenant=tenant, after=found.next) if found.next else None,
        models=_models(desk, who, tenant),
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
    tenant, model = _subject(str(form.get("model", "")))
    audit = audits.start_audit(
        context(request),
        who,
        model=model,
        tenant=tenant,
        levels=_levels([str(level) for level in form.getlist("levels")]),
        drill=_drill(str(form.get("drill", "none"))),
    )
    return done(request, f"/audits/{audit.id}", "audit-started")


@router.get("/audits/{audit_id}")
def show_audit(
    request: Request,
    who: Annotated[Principal, Depends(page_allows("audits:read"))],
    audit_id: JobId,
) -> Response:
    """Show what an audit has found so far, or its verdict."""
    audit = audits.find_audit(context(request), who, audit_id)
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


def _levels(asked: list[str]) -> list[str] | None:
    """Return the levels that were ticked; None for all of them."""
    if not set(asked) <= set(_LEVELS):
        raise Problem(422, "levels", "There is no such level", "Use the boxes of the page.")
    return None if not asked or set(asked) == set(_LEVELS) else asked


def _drill(asked: str) -> Drill:
    if asked not in DRILLS:
        raise Problem(422, "drill", "There is no such drill", "Choose one from the list.")
    return cast("Drill", asked)


def _models(desk: Context, who: Principal, tenant: str | None) -> list[tuple[str, str]]:
    """Return what may be audited: everything, or one model; names of tenants where it matters."""
    found = models.list_models(desk, who, tenant=tenant, limit=200).items
    names = [(f"{one.tenant}/{one.name}", _label(one, who)) for one in found]
    return [("", "All models"), *names]


def _label(model: Any, who: Principal) -> str:
    return model.name if who.tenant is not None else f"{model.name} ({model.tenant})"


def _subject(value: str) -> tuple[str | None, str | None]:
    tenant, _, model = value.partition("/")
    return (tenant, model) if model else (None, None)
