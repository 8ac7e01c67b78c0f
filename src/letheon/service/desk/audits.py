"""Audits asked for at the desk: started, followed, reported."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Literal, cast

from pydantic import Field

from letheon.audit import AuditReport, LevelResult
from letheon.audit._html import report_page
from letheon.service._audit_job import Drill, verdict_of
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._jobs import Job, Jobs, State
from letheon.service._numbers import Numbers
from letheon.service._problems import Problem
from letheon.service._schemas import Out, Page
from letheon.service.desk.jobs import (
    JobProblemOut,
    LineOut,
    add_job,
    job_for,
    job_seen,
    lines_out,
    moment,
    problem_out,
)
from letheon.service.desk.models import model_seen

__all__ = [
    "AuditOut",
    "Level",
    "LevelOut",
    "find_audit",
    "page_of_audits",
    "report",
    "start_audit",
]

Level = Literal["V0", "V1", "V2", "V3", "V4", "V5"]
Verdict = Literal["passed", "failed", "incomplete"]


class LevelOut(Out):
    """The verdict of one level, about a model or about the whole ledger."""

    level: str
    name: str = Field(description="What the level shows.")
    model: str = Field(description="As certificates name it; empty for the whole ledger.")
    verdict: Literal["pass", "fail", "skipped"]
    reason: str
    promised: bool = Field(
        default=True, description="Whether the audit is incomplete if this level was skipped."
    )


class AuditOut(Out):
    """An audit; its levels fill up while it runs."""

    id: str
    state: State
    is_over: bool
    tenant: str | None
    model: str | None = Field(description="The model asked for; null for all.")
    levels_asked: list[str] | None = Field(description="Null for all.")
    drill: Drill = Field(description="What was changed in the copy on purpose.")
    changed: str | None = Field(description="Which byte a drill changed, in words.")
    created_at: datetime
    created_by: str | None
    started_at: datetime | None
    finished_at: datetime | None
    seconds: float | None
    verdict: Verdict | None = Field(
        description="Null until it is over. Incomplete: a promised level was skipped, which is no "
        "pass. Of a drill, failed is right."
    )
    scope: str | None = Field(description="What the verdict covers, in words.")
    passed: bool | None = Field(description="Whether the verdict is passed.")
    levels: list[LevelOut]
    progress: list[LineOut]
    problem: JobProblemOut | None


def start_audit(
    context: Context,
    who: Principal,
    *,
    model: str | None = None,
    tenant: str | None = None,
    levels: Iterable[str] | None = None,
    drill: Drill = "none",
) -> AuditOut:
    """Ask for an audit; a worker exports a bundle and looks at it in a process of its own."""
    whose = who.tenant_filter(tenant)
    if model is not None:
        whose = model_seen(context, who, model, tenant=tenant).tenant
    asked = {"levels": sorted(set(levels)) if levels else None, "drill": drill}
    return _out(add_job(context, who, "audit", tenant=whose, model=model, asked=asked))


def page_of_audits(
    context: Context,
    who: Principal,
    *,
    tenant: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[AuditOut]:
    """Return audits, newest first."""
    found = Jobs(context.ledger).page(
        tenant=who.tenant_filter(tenant), kinds=["audit"], after=after, limit=limit
    )
    numbers = Numbers(context, who)
    items = [_out(job_for(one, numbers)) for one in found.items]
    return Page(items=items, next=found.next, total=found.total)


def find_audit(context: Context, who: Principal, audit_id: str) -> AuditOut:
    """Return an audit as it stands."""
    return _out(_seen(context, who, audit_id))


def report(context: Context, who: Principal, audit_id: str) -> str:
    """Return the report of an audit that is done, as one page of HTML.

    Raises
    ------
    Problem
        404 if there is no such audit; 409 if it is not done.
    """
    job = _seen(context, who, audit_id)
    if job.state != "done" or job.result is None:
        raise Problem(
            409, "not-done", "the audit has no report yet", "Ask again when its state is done."
        )
    return report_page(_report(job.result))


def _seen(context: Context, who: Principal, audit_id: str) -> Job:
    job = job_seen(context, who, audit_id)
    if job.kind != "audit":
        raise Problem(404, "unknown-job", "no such job", "GET /api/v1/jobs lists those you see.")
    return job


def _report(result: dict[str, Any]) -> AuditReport:
    levels = [
        LevelResult(
            one["level"],
            one["model"],
            one["verdict"],
            one["reason"],
            one.get("details", {}),
            one.get("promised", True),
        )
        for one in result["levels"]
    ]
    return AuditReport(
        tuple(levels),
        result["ledger"],
        result["key"],
        tuple(result["subjects"]),
        result["audited_at"],
        result.get("scope", ""),
    )


def _out(job: Job) -> AuditOut:
    result = job.result if job.state == "done" and job.result is not None else {}
    told = [one.found for one in job.progress if one.found is not None]
    verdict = cast("Verdict", verdict_of(result["levels"])) if result else None
    return AuditOut(
        id=job.id,
        state=job.state,
        is_over=job.is_over,
        tenant=job.tenant,
        model=job.model,
        levels_asked=job.asked["levels"],
        drill=job.asked["drill"],
        changed=result.get("changed"),
        created_at=cast("datetime", moment(job.created_at)),
        created_by=job.created_by,
        started_at=moment(job.started_at),
        finished_at=moment(job.finished_at),
        seconds=result.get("seconds"),
        verdict=verdict,
        scope=result.get("scope"),
        passed=None if verdict is None else verdict == "passed",
        levels=_levels(result.get("levels", told)),
        progress=lines_out(job.progress),
        problem=problem_out(job),
    )


def _levels(found: Sequence[Any]) -> list[LevelOut]:
    shown = ("level", "name", "model", "verdict", "reason", "promised")
    return [LevelOut(**{name: one[name] for name in shown if name in one}) for one in found]
