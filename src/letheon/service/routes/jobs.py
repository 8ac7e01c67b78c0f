"""Jobs: work that takes long."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query

from letheon.ledger.db.jobs import (
    CURSOR,
    JOB_ID,
    Job,
    JobRecord,
    Jobs,
    JobsFullError,
    Kind,
    State,
)
from letheon.service.auth import Principal, allows_any
from letheon.service.errors import Problem
from letheon.service.jobs import audit_verdict
from letheon.service.numbers import Numbers
from letheon.service.schemas import Limit, ModelFilter, Page, TenantFilter

router = APIRouter(tags=["jobs"])

Reader = Annotated[Principal, Depends(allows_any("batches:read", "audits:read"))]
JobId = Annotated[str, Path(pattern=JOB_ID)]
After = Annotated[str | None, Query(pattern=CURSOR)]
_SCOPES: dict[Kind, str] = {
    "apply": "batches:read",
    "retrain": "batches:read",
    "what-if": "batches:read",
    "audit": "audits:read",
}


@router.get("/api/v1/jobs", summary="List jobs")
def list_jobs(
    who: Reader,
    tenant: TenantFilter = None,
    model: ModelFilter = None,
    kind: Annotated[Kind | None, Query()] = None,
    state: Annotated[State | None, Query()] = None,
    after: After = None,
    limit: Limit = 50,
) -> Page[Job]:
    """Return jobs, newest first: audits for who may read audits, others for who reads batches."""
    kinds = [one for one in _SCOPES if kind in (None, one) and who.may(_SCOPES[one])]
    options: dict[str, Any] = {"model": model, "kinds": kinds, "state": state}
    page = read_jobs(who, tenant=tenant, after=after, limit=limit, **options)
    return Page(items=[_brief(job) for job in page.items], next=page.next, total=page.total)


@router.get("/api/v1/jobs/{job_id}", summary="Show a job")
def show_job(who: Reader, job_id: JobId) -> Job:
    """Return a job with its progress, and its result once it is done."""
    return _brief(read_job(who, job_id))


def read_jobs(who: Principal, *, tenant: str | None, **options: Any) -> Page[JobRecord]:
    """Return a part of the jobs that the caller sees, with whole results."""
    desk = who.desk
    page = Jobs(desk.ledger).page(tenant=who.tenant_filter(tenant), **options)
    numbers = Numbers(desk, who)
    items = [_renumber(job, numbers) for job in page.items]
    return Page(items=items, next=page.next, total=page.total)


def read_job(who: Principal, job_id: str, *, kind: Kind | None = None) -> JobRecord:
    """Return a job that the caller sees, with its whole result.

    Raises
    ------
    Problem
        404, whether it is another tenant's, of a kind that the caller may not see, or not there.
    """
    desk = who.desk
    job = Jobs(desk.ledger).find(job_id, tenant=who.tenant)
    if job is None or not who.may(_SCOPES[job.kind]) or kind not in (None, job.kind):
        raise Problem(404, "unknown-job", "no such job", "GET /api/v1/jobs lists those you see.")
    return _renumber(job, Numbers(desk, who))


def add_job(
    who: Principal,
    kind: Kind,
    *,
    tenant: str | None,
    model: str | None,
    asked: Mapping[str, Any],
) -> JobRecord:
    """Ask for work; a worker does it."""
    jobs = Jobs(who.ledger)
    try:
        return jobs.add(kind, tenant=tenant, model=model, asked=asked, by=who.token_id)
    except JobsFullError as error:
        raise Problem(
            429,
            "too-many-jobs",
            "too many jobs wait already",
            f"{error}. Wait until a worker has done some; GET /readyz tells whether one runs.",
            headers={"Retry-After": "30"},
        ) from error


def _brief(job: JobRecord) -> JobRecord:
    """Return a job as it is listed: of an audit's result only the verdict."""
    if job.result is None or job.kind != "audit":
        return job
    verdict = audit_verdict(job.result["levels"])
    shown = {"verdict": verdict, "passed": verdict == "passed"}
    return replace(job, result=shown | {name: job.result[name] for name in ("drill", "seconds")})


def _renumber(job: JobRecord, numbers: Numbers) -> JobRecord:
    """Return a job whose texts and results have the numbers of certificates that are shown."""
    if numbers.tenant is None:
        return job
    lines = tuple(replace(one, words=numbers.in_text(one.words)) for one in job.progress)
    findings = tuple(map(numbers.in_json, job.findings))
    return replace(job, progress=lines, findings=findings, result=numbers.in_json(job.result))
