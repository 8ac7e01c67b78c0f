"""Audits: replayed on a bundle of the ledger, level by level."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import Field

from letheon.service.jobs import Drill
from letheon.service.auth import Principal, allows
from letheon.service.auth import context
from letheon.ledger.db.jobs import CURSOR, JOB_ID
from letheon.service.schemas import In, Page
from letheon.service.desk import audits as desk
from letheon.service.desk.audits import AuditOut, Level
from letheon.service.schemas import Name

router = APIRouter(tags=["audits"])

Reader = Annotated[Principal, Depends(allows("audits:read"))]
AuditId = Annotated[str, Path(pattern=JOB_ID)]
# The report is one file with its own style; nothing in it may run or load anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"


class AuditIn(In):
    """An audit that is wanted."""

    model: Name | None = Field(default=None, description="One model only; null for all.")
    tenant: Name | None = Field(default=None, description="Whose models.")
    levels: list[Level] | None = Field(
        default=None, max_length=6, description="Which levels; null for all."
    )
    drill: Drill = Field(
        default="none", description="Change one byte of the copy first: the audit must fail then."
    )


@router.post("/api/v1/audits", summary="Start an audit", status_code=202)
def start_audit(
    request: Request, who: Annotated[Principal, Depends(allows("audits:run"))], wanted: AuditIn
) -> AuditOut:
    """Ask for an audit of what the ledger would hand to an auditor.

    It is exported into a private folder, and a process that has neither keys nor database looks at
    it with the public key. The ledger is not touched.
    """
    return desk.start_audit(
        context(request),
        who,
        model=wanted.model,
        tenant=wanted.tenant,
        levels=wanted.levels,
        drill=wanted.drill,
    )


@router.get("/api/v1/audits", summary="List audits")
def list_audits(
    request: Request,
    who: Reader,
    tenant: Annotated[Name | None, Query(description="Of one tenant only.")] = None,
    after: Annotated[str | None, Query(pattern=CURSOR)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Page[AuditOut]:
    """Return audits, newest first."""
    return desk.page_of_audits(context(request), who, tenant=tenant, after=after, limit=limit)


@router.get("/api/v1/audits/{audit_id}", summary="Show an audit")
def show_audit(request: Request, who: Reader, audit_id: AuditId) -> AuditOut:
    """Return an audit with what was found so far."""
    return desk.find_audit(context(request), who, audit_id)


@router.get(
    "/api/v1/audits/{audit_id}/report",
    summary="Show the report of an audit",
    response_class=HTMLResponse,
)
def show_report(request: Request, who: Reader, audit_id: AuditId) -> HTMLResponse:
    """Return the report as one page that needs nothing else; 409 until the audit is done."""
    page = desk.report(context(request), who, audit_id)
    return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})
