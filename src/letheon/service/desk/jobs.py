"""Jobs as the desk shows them."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from pydantic import Field

from letheon.service._audit_job import verdict_of
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._jobs import Job, Jobs, JobsFullError, Kind, Line, State
from letheon.service._numbers import Numbers
from letheon.service._problems import Problem
from letheon.service._schemas import Out, Page

__all__ = [
    "JobOut",
    "JobProblemOut",
    "LineOut",
    "add_job",
    "find_job",
    "job_for",
    "job_out",
    "job_seen",
    "lines_out",
    "moment",
    "page_of_jobs",
    "problem_out",
]

_SCOPES: dict[Kind, str] = {
    "apply": "batches:read",
    "retrain": "batches:read",
    "what-if": "batches:read",
    "audit": "audits:read",
}


class LineOut(Out):
    """A line of progress."""

    at: datetime
    words: str


class JobProblemOut(Out):
    """Why a job could not be done."""

    code: str
    words: str


class JobOut(Out):
    """Work that takes long; ask again until `is_over`."""

    id: str
    kind: Kind
    tenant: str | None = Field(description="Whose things it is about; null for everybody's.")
    model: str | None
    state: State
    is_over: bool = Field(description="Whether it is done or has failed.")
    created_at: datetime
    created_by: str | None = Field(description="Id of the token that asked.")
    started_at: datetime | None
    finished_at: datetime | None
    progress: list[LineOut]
    result: dict[str, Any] | None = Field(description="What came out, once it is done.")
    problem: JobProblemOut | None


def add_job(
    context: Context,
    who: Principal,
    kind: Kind,
    *,
    tenant: str | None,
    model: str | None,
    asked: dict[str, Any],
) -> Job:
    """Ask for work; a worker does it."""
    try:
        return Jobs(context.ledger).add(
            kind, tenant=tenant, model=model, asked=asked, by=who.token_id
        )
    except JobsFullError as error:
        raise Problem(
            429,
            "too-many-jobs",
            "too many jobs wait already",
            f"{error}. Wait until a worker has done some; GET /readyz tells whether one runs.",
            headers={"Retry-After": "30"},
        ) from error


def find_job(context: Context, who: Principal, job_id: str) -> JobOut:
    """Return a job."""
    return job_out(job_seen(context, who, job_id))


def job_seen(context: Context, who: Principal, job_id: str) -> Job:
    """Return a job that the principal may see.

    Raises
    ------
    Problem
        404, whether it is another tenant's, of a kind that is not theirs to see, or not there.
    """
    found = Jobs(context.ledger).find(job_id, tenant=who.tenant)
    if found is None or not who.may(_SCOPES[found.kind]):
        raise Problem(404, "unknown-job", "no such job", "GET /api/v1/jobs lists those you see.")
    return job_for(found, Numbers(context, who))


def job_for(job: Job, numbers: Numbers) -> Job:
    """Return a job whose texts and results have the numbers of certificates that are shown."""
    if numbers.tenant is None:
        return job
    lines = tuple(
        replace(one, words=numbers.in_text(one.words), found=numbers.in_json(one.found))
        for one in job.progress
    )
    return replace(job, progress=lines, result=numbers.in_json(job.result))


def page_of_jobs(
    context: Context,
    who: Principal,
    *,
    tenant: str | None = None,
    model: str | None = None,
    kind: Kind | None = None,
    state: State | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[JobOut]:
    """Return jobs that the principal may see, newest first."""
    kinds = [one for one in _SCOPES if kind in (None, one) and who.may(_SCOPES[one])]
    found = Jobs(context.ledger).page(
        tenant=who.tenant_filter(tenant),
        model=model,
        kinds=kinds,
        state=state,
        after=after,
        limit=limit,
    )
    numbers = Numbers(context, who)
    items = [job_out(job_for(one, numbers)) for one in found.items]
    return Page(items=items, next=found.next, total=found.total)


def job_out(job: Job) -> JobOut:
    """Return a job as it is shown; of an audit's result only the verdict."""
    result = job.result if job.state == "done" else None
    if result is not None and job.kind == "audit":
        shown = ("passed", "drill", "seconds")
        result = {"verdict": verdict_of(result["levels"])} | {name: result[name] for name in shown}
        result["passed"] = result["verdict"] == "passed"
    return JobOut(
        id=job.id,
        kind=job.kind,
        tenant=job.tenant,
        model=job.model,
        state=job.state,
        is_over=job.is_over,
        created_at=cast("datetime", moment(job.created_at)),
        created_by=job.created_by,
        started_at=moment(job.started_at),
        finished_at=moment(job.finished_at),
        progress=lines_out(job.progress),
        result=result,
        problem=problem_out(job),
    )


def moment(seconds: int | None) -> datetime | None:
    """Return a time of the database."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def lines_out(lines: tuple[Line, ...]) -> list[LineOut]:
    """Return lines of progress."""
    return [LineOut(at=datetime.fromtimestamp(one.at, UTC), words=one.words) for one in lines]


def problem_out(job: Job) -> JobProblemOut | None:
    """Return why a job failed, if it did."""
    if job.state != "failed" or job.result is None:
        return None
    return JobProblemOut(code=job.result["code"], words=job.result["words"])
