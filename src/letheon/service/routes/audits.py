"""Audits: replayed on a bundle of the ledger, level by level."""

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse
from pydantic import Field

from letheon.audit import AuditReport, LevelResult
from letheon.ledger.db.jobs import JobRecord, Task
from letheon.service.auth import Principal, allows
from letheon.service.errors import Problem
from letheon.service.jobs import Drill, audit_verdict
from letheon.service.routes.jobs import After, JobId, add_job, read_job, read_jobs
from letheon.service.routes.models import read_model
from letheon.service.schemas import In, Limit, Name, Page, TenantFilter

router = APIRouter(tags=["audits"])

Reader = Annotated[Principal, Depends(allows("audits:read"))]
Level = Literal["V0", "V1", "V2", "V3", "V4", "V5"]
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


@dataclass(frozen=True)
class AuditLevel:
    """The verdict of one level, about a model or about the whole ledger.

    Attributes
    ----------
    level : str
        V0 to V5.
    name : str
        What the level shows.
    model : str
        As certificates name it; empty for the whole ledger.
    verdict : {"pass", "fail", "skipped"}
        What was found.
    reason : str
        Why.
    promised : bool
        Whether the audit is incomplete if this level was skipped.
    """

    level: str
    name: str
    model: str
    verdict: Literal["pass", "fail", "skipped"]
    reason: str
    promised: bool = True


@dataclass(frozen=True)
class Audit(Task):
    """An audit; its levels fill up while it runs.

    Attributes
    ----------
    levels_asked : list of str or None
        Null for all.
    drill : {"none", "model", "certificate", "log"}
        What was changed in the copy on purpose.
    changed : str or None
        Which byte a drill changed, in words.
    seconds : float or None
        What it took.
    verdict : {"passed", "failed", "incomplete"} or None
        Null until it is over. Incomplete: a promised level was skipped, which is no pass. Of
        a drill, failed is right.
    scope : str or None
        What the verdict covers, in words.
    passed : bool or None
        Whether the verdict is passed.
    levels : list of AuditLevel
        What was found so far.
    """

    levels_asked: list[str] | None
    drill: Drill
    changed: str | None
    seconds: float | None
    verdict: Literal["passed", "failed", "incomplete"] | None
    scope: str | None
    passed: bool | None
    levels: list[AuditLevel]


@router.post("/api/v1/audits", summary="Start an audit", status_code=202)
def start_audit(who: Annotated[Principal, Depends(allows("audits:run"))], wanted: AuditIn) -> Audit:
    """Ask for an audit of what the ledger would hand to an auditor.

    It is exported into a private folder, and a process that has neither keys nor database looks at
    it with the public key. The ledger is not touched.
    """
    tenant = who.tenant_filter(wanted.tenant)
    if wanted.model is not None:
        tenant = read_model(who, wanted.model, wanted.tenant).tenant
    levels = sorted(set(wanted.levels)) if wanted.levels else None
    asked = {"levels": levels, "drill": wanted.drill}
    return _to_audit(add_job(who, "audit", tenant=tenant, model=wanted.model, asked=asked))


@router.get("/api/v1/audits", summary="List audits")
def list_audits(
    who: Reader,
    tenant: TenantFilter = None,
    after: After = None,
    limit: Limit = 50,
) -> Page[Audit]:
    """Return audits, newest first."""
    page = read_jobs(who, tenant=tenant, kinds=["audit"], after=after, limit=limit)
    return Page(items=list(map(_to_audit, page.items)), next=page.next, total=page.total)


@router.get("/api/v1/audits/{audit_id}", summary="Show an audit")
def show_audit(who: Reader, audit_id: JobId) -> Audit:
    """Return an audit with what was found so far."""
    return _to_audit(read_job(who, audit_id, kind="audit"))


@router.get(
    "/api/v1/audits/{audit_id}/report",
    summary="Show the report of an audit",
    response_class=HTMLResponse,
)
def show_report(who: Reader, audit_id: JobId) -> HTMLResponse:
    """Return the report as one page that needs nothing else; 409 until the audit is done."""
    result = read_job(who, audit_id, kind="audit").result
    if result is None:
        raise Problem(
            409, "not-done", "the audit has no report yet", "Ask again when its state is done."
        )
    names = ("level", "model", "verdict", "reason", "details", "promised")
    levels = [
        LevelResult(**{name: one[name] for name in names if name in one})
        for one in result["levels"]
    ]
    report = AuditReport(
        tuple(levels),
        result["ledger"],
        result["key"],
        tuple(result["subjects"]),
        result["audited_at"],
        result.get("scope", ""),
    )
    return HTMLResponse(report.to_page(), headers={"Content-Security-Policy": _POLICY})


def _to_audit(job: JobRecord) -> Audit:
    result: dict[str, Any] = job.result or {}
    verdict: Any = audit_verdict(result["levels"]) if result else None
    names = [one.name for one in fields(AuditLevel)]
    levels = [
        AuditLevel(**{name: one[name] for name in names if name in one})
        for one in result.get("levels", job.findings)
    ]
    return Audit(
        **{one.name: getattr(job, one.name) for one in fields(Task)},
        levels_asked=job.asked["levels"],
        drill=job.asked["drill"],
        changed=result.get("changed"),
        seconds=result.get("seconds"),
        verdict=verdict,
        scope=result.get("scope"),
        passed=None if verdict is None else verdict == "passed",
        levels=levels,
    )
