"""API routes for jobs, audits, batches, and the next batch of a model with its cost."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import date, datetime
from statistics import median
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import HTMLResponse
from pydantic import Field

from letheon.audit import AuditReport, LevelResult
from letheon.exceptions import LedgerMissingError
from letheon.ledger import Batch, BatchPlan, Ledger, Model, Page
from letheon.ledger.certificates.claims import adds_up, figure, make_published_account
from letheon.ledger.db import jobs
from letheon.service import schemas
from letheon.service.auth import CertificateNumbers, Principal, allows
from letheon.service.errors import ApiProblem, cursor_problems
from letheon.service.guarantees import GuaranteeOut, budget_out, guarantee_out
from letheon.service.jobs import SHOWN, Drill, audit_verdict
from letheon.service.routes.models import read_model
from letheon.service.what_if import round_figure

router = APIRouter(tags=["jobs"])

Reader = Annotated[Principal, Depends(allows("batches:read", "audits:read"))]
JobId = Annotated[str, Path(pattern=jobs.JOB_ID)]
After = Annotated[str | None, Query(pattern=jobs.JOB_ID)]
_SCOPES: dict[jobs.Kind, str] = {
    "apply": "batches:read",
    "retrain": "batches:read",
    "what-if": "batches:read",
    "audit": "audits:read",
}


@router.get("/api/v1/jobs", summary="List jobs")
def list_jobs(
    caller: Reader,
    tenant: schemas.TenantFilter = None,
    model: schemas.ModelFilter = None,
    kind: Annotated[jobs.Kind | None, Query()] = None,
    state: Annotated[jobs.State | None, Query()] = None,
    after: After = None,
    limit: schemas.Limit = 50,
) -> Page[jobs.Job]:
    """List jobs, newest first; audits need the scope audits:read, other jobs batches:read."""
    kinds = [scope for scope in _SCOPES if kind in (None, scope) and caller.may(_SCOPES[scope])]
    options: dict[str, Any] = {"model": model, "kinds": kinds, "state": state}
    page = read_jobs(caller, tenant=tenant, after=after, limit=limit, **options)
    return schemas.map_page(page, _shorten_result)


@router.get("/api/v1/jobs/{job_id}", summary="Show a job")
def show_job(caller: Reader, job_id: JobId) -> jobs.Job:
    """Show a job with its progress, and with its result when it is done."""
    return _shorten_result(read_job(caller, job_id))


def read_jobs(caller: Principal, *, tenant: str | None, **options: Any) -> Page[jobs.JobRecord]:
    """Return a page of the jobs that the caller may see, with full results."""
    whose = caller.tenant_filter(tenant)
    with cursor_problems():
        page = jobs.Jobs(caller.ledger).list_page(tenant=whose, **options)
    return schemas.map_page(page, lambda job: _renumber_job(job, caller.numbers))


def read_job(caller: Principal, job_id: str, *, kind: jobs.Kind | None = None) -> jobs.JobRecord:
    """Return a job that the caller may see, with its full result.

    Raises
    ------
    ApiProblem
        404: there is no such job, it belongs to another tenant or is of another kind, or the token
        does not have the scope for its kind.
    """
    job = jobs.Jobs(caller.ledger).find(job_id, tenant=caller.tenant)
    if job is None or not caller.may(_SCOPES[job.kind]) or kind not in (None, job.kind):
        raise ApiProblem(404, "unknown-job", "no such job", "GET /api/v1/jobs lists your jobs.")
    return _renumber_job(job, caller.numbers)


def _add_job(caller: Principal, kind: jobs.Kind, **options: Any) -> jobs.JobRecord:
    """Create a job for the worker; raise an `ApiProblem` (429) if too many are waiting."""
    try:
        return jobs.Jobs(caller.ledger).add(kind, **options, by=caller.id)
    except jobs.JobsFullError as error:
        title, headers = "too many waiting jobs", {"Retry-After": "30"}
        words = f"{error}. Try again later; GET /readyz shows whether a worker is running."
        raise ApiProblem(429, "too-many-jobs", title, words, headers=headers) from error


def _shorten_result(job: jobs.JobRecord) -> jobs.JobRecord:
    """Return a job as an item of a list; shorten the result of an audit to its verdict."""
    if job.result is None or job.kind != "audit":
        return job
    verdict = audit_verdict(job.result["levels"])
    shown = {"verdict": verdict, "passed": verdict == "passed"}
    return replace(job, result=shown | {name: job.result[name] for name in ("drill", "seconds")})


def _renumber_job(job: jobs.JobRecord, numbers: CertificateNumbers) -> jobs.JobRecord:
    """Replace the ledger's certificate numbers in a job by those that the tenant sees."""
    if numbers.tenant is None:
        return job
    lines = tuple(replace(item, words=numbers.renumber(item.words)) for item in job.progress)
    findings = tuple(map(numbers.renumber, job.findings))
    return replace(job, progress=lines, findings=findings, result=numbers.renumber(job.result))


audits = APIRouter(tags=["audits"])

AuditReader = Annotated[Principal, Depends(allows("audits:read"))]
Level = Literal["V0", "V1", "V2", "V3", "V4", "V5"]
# The report is one file with its own style; it may not run scripts or load anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"


class AuditIn(schemas.In):
    """The audit to start.

    Attributes
    ----------
    model : Name or None
        Model to audit; null for all models.
    tenant : Name or None
        Tenant whose models are audited; null for all tenants.
    levels : list of Level or None
        Levels to check; null for all levels.
    drill : Drill
        In which file of the copy to change one byte before the audit; the audit must then fail.
    """

    model: schemas.Name | None = None
    tenant: schemas.Name | None = None
    levels: list[Level] | None = Field(default=None, max_length=6)
    drill: Drill = "none"


AuditLevel = Annotated[
    dict[str, Any],
    schemas.object_schema("level", "name", "model", "verdict", "reason", promised="boolean"),
]


@dataclass(frozen=True)
class Audit(jobs.JobBase):
    """An audit; new results are added to `levels` while it runs.

    Attributes
    ----------
    levels_asked : list of str or None
        Requested levels; null for all levels.
    drill : {"none", "model", "certificate", "log"}
        In which file of the copy the drill changed one byte.
    changed : str or None
        Description of the changed byte; null without a drill.
    seconds : float or None
        Duration of the audit; null until it is finished.
    verdict : {"passed", "failed", "incomplete"} or None
        Verdict of the audit; null until it is finished. It is incomplete if a promised level was
        skipped. A drill should fail.
    scope : str or None
        Description of what the verdict covers.
    passed : bool or None
        Whether the verdict is passed; null until the audit is finished.
    levels : list of dict
        Results so far. Each has the `level` (V0 to V5) and its `name`. `model` is the name of the
        model in certificates, or empty for the whole ledger. `verdict` is pass, fail or skipped;
        `reason` explains it. `promised` says whether skipping this level makes the audit
        incomplete.
    """

    levels_asked: list[str] | None
    drill: Drill
    changed: str | None
    seconds: float | None
    verdict: Literal["passed", "failed", "incomplete"] | None
    scope: str | None
    passed: bool | None
    levels: list[AuditLevel]


@audits.post("/api/v1/audits", summary="Start an audit", status_code=202)
def start_audit(
    caller: Annotated[Principal, Depends(allows("audits:run"))], wanted: AuditIn
) -> Audit:
    """Start an audit of the ledger.

    An auditor bundle is exported to a private folder. A process without access to keys and database
    then checks it with the public key. The ledger is not changed.
    """
    tenant = caller.tenant_filter(wanted.tenant)
    if wanted.model is not None:
        tenant = read_model(caller, wanted.model, wanted.tenant).tenant
    levels = sorted(set(wanted.levels)) if wanted.levels else None
    details = {"levels": levels, "drill": wanted.drill}
    return _to_audit(_add_job(caller, "audit", tenant=tenant, model=wanted.model, asked=details))


@audits.get("/api/v1/audits", summary="List audits")
def list_audits(
    caller: AuditReader,
    tenant: schemas.TenantFilter = None,
    after: After = None,
    limit: schemas.Limit = 50,
) -> Page[Audit]:
    """List audits, newest first."""
    page = read_jobs(caller, tenant=tenant, kinds=["audit"], after=after, limit=limit)
    return schemas.map_page(page, _to_audit)


@audits.get("/api/v1/audits/{audit_id}", summary="Show an audit")
def show_audit(caller: AuditReader, audit_id: JobId) -> Audit:
    """Show an audit with its results so far."""
    return _to_audit(read_job(caller, audit_id, kind="audit"))


@audits.get(
    "/api/v1/audits/{audit_id}/report",
    summary="Show the report of an audit",
    response_class=HTMLResponse,
)
def show_report(caller: AuditReader, audit_id: JobId) -> HTMLResponse:
    """Return the report of an audit as one HTML page; status 409 until the audit is done."""
    result = read_job(caller, audit_id, kind="audit").result
    if result is None:
        words = "Try again when the state of the audit is done."
        raise ApiProblem(409, "not-done", "the audit has no report yet", words)
    names = [field_info.name for field_info in fields(LevelResult)]
    levels = [
        LevelResult(**{name: level[name] for name in names if name in level})
        for level in result["levels"]
    ]
    known = {name: result[name] for name in ("ledger", "key", "audited_at")}
    subjects, scope = tuple(result["subjects"]), result.get("scope", "")
    report = AuditReport(tuple(levels), subjects=subjects, scope=scope, **known)
    return HTMLResponse(report.to_page(), headers={"Content-Security-Policy": _POLICY})


def _to_audit(job: jobs.JobRecord) -> Audit:
    result: dict[str, Any] = job.result or {}
    verdict: Any = audit_verdict(result["levels"]) if result else None
    levels = [
        {"promised": True} | {name: item[name] for name in SHOWN if name in item}
        for item in result.get("levels", job.findings)
    ]
    return Audit(
        **{field_info.name: getattr(job, field_info.name) for field_info in fields(jobs.JobBase)},
        levels_asked=job.asked["levels"],
        drill=job.asked["drill"],
        changed=result.get("changed"),
        seconds=result.get("seconds"),
        verdict=verdict,
        scope=result.get("scope"),
        passed=None if verdict is None else verdict == "passed",
        levels=levels,
    )


batches = APIRouter(tags=["batches"])

BatchReader = Annotated[Principal, Depends(allows("batches:read"))]
Operator = Annotated[Principal, Depends(allows("batches:run"))]
ModelName = Annotated[schemas.Name, Path(description="Name of the model.")]
Basis = Literal["measured", "extrapolated", "unknown"]
Work = Literal["what-if", "apply", "retrain"]
_RECENT_VERSIONS = 50
_MOST_PEOPLE = 100_000
_WORDS = {
    "nothing-queued": "No requests are queued.",
    "waiting": "Waiting for more requests (batched until {waits_for}).",
    "operator": "Started by an operator.",
    "monitor": "The monitor requires a retrain.",
    "budget-runs-out": "The budget does not cover these rows, so the batch is a retrain.",
    "due-soon": "The earliest due date is near.",
    "outside-sample": "These people are in no keyed sample of the model.",
    "waited-long": "The oldest request has reached the longest waiting time.",
    "enough-rows": "Enough rows are waiting.",
}


class ClaimOut(GuaranteeOut):
    """A guarantee with the spent budget, rounded as in certificates.

    Attributes
    ----------
    spent : float or None
        How much of the budget is spent; null if the method has no budget.
    """

    spent: float | None
    budget: float | None


class CostOut(schemas.Out):
    """The expected durations of a batch and of a retrain, estimated from earlier runs.

    Attributes
    ----------
    seconds : float or None
        Median duration of recent batches; null if there are none.
    batches : int
        Number of recent batches that were measured.
    retrain_seconds : float or None
        Expected duration of a retrain on the remaining rows; null if it is unknown.
    speedup : float or None
        Duration of a retrain divided by the duration of a batch; null if one of them is unknown.
    """

    seconds: float | None
    basis: Basis
    batches: int
    retrain_seconds: float | None
    retrain_basis: Basis
    speedup: float | None


class PlanOut(schemas.Out):
    """The next batch of a model.

    Attributes
    ----------
    seal : bool
        Whether the batch can start now.
    when_next : datetime or None
        When the batch will start at the latest.
    after : ClaimOut
        Guarantee after this batch; `spent` is extrapolated.
    job : str or None
        Id of an unfinished job of this model; null if there is none.
    """

    model: str
    tenant: str
    method: str
    live_rows: int
    requests: int
    people: int
    rows: int
    earliest_due_on: date | None
    seal: bool
    kind: Literal["erase", "retrain"]
    reason: str
    reason_words: str
    when_next: datetime | None
    cost: CostOut
    now: ClaimOut
    after: ClaimOut
    retrain_due: bool
    retrain_words: str
    job: str | None


@batches.get("/api/v1/batches", summary="List batches")
def list_batches(
    caller: BatchReader,
    tenant: schemas.TenantFilter = None,
    model: schemas.ModelFilter = None,
    after: schemas.Cursor = None,
    limit: schemas.Limit = 50,
) -> Page[Batch]:
    """List batches, newest first."""
    whose = caller.tenant_filter(tenant)
    with cursor_problems("Use `next` of the previous page unchanged."):
        page = caller.ledger.batches.list(tenant=whose, model=model, after=after, limit=limit)
    return schemas.map_page(page, lambda item: _renumber_batch(caller, item))


@batches.get("/api/v1/batches/{batch_id}", summary="Show a batch")
def show_batch(
    caller: BatchReader, batch_id: Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
) -> Batch:
    """Show a batch with its state and its certificate number."""
    try:
        return _renumber_batch(caller, caller.ledger.batches.get(batch_id, tenant=caller.tenant))
    except LedgerMissingError as error:
        words = "GET /api/v1/batches lists your batches."
        raise ApiProblem(404, "unknown-batch", "no such batch", words) from error


def _renumber_batch(caller: Principal, batch: Batch) -> Batch:
    return replace(batch, certificate=caller.numbers.tenant_number(batch.certificate))


@batches.get("/api/v1/models/{model}/plan", summary="Show the next batch of a model")
def show_plan(caller: BatchReader, model: ModelName, tenant: schemas.Tenant = None) -> PlanOut:
    """Show when and why the next batch starts, its cost, and the guarantee after it."""
    info, ledger = read_model(caller, model, tenant), caller.ledger
    plan = ledger.plan(info.name, tenant=info.tenant)[0]
    decision = plan.decision
    now = ledger.models.claims(info.name, tenant=info.tenant)
    is_retrain = decision.kind == "retrain"
    after = _claim_retrained(now) if is_retrain else _claim_erased(ledger, info, now, plan.n_rows)
    unfinished = jobs.Jobs(ledger).find_open(
        ("apply", "retrain", "what-if"), tenant=info.tenant, model=info.name
    )
    return PlanOut(
        model=info.name,
        tenant=info.tenant,
        method=info.method,
        live_rows=info.n_rows,
        requests=plan.n_requests,
        people=plan.n_people,
        rows=plan.n_rows,
        earliest_due_on=plan.earliest_due_on,
        **vars(decision),
        reason_words=_WORDS[decision.reason].format(waits_for=plan.waits_for),
        cost=_estimate_cost(ledger, info),
        now=_to_claim(now),
        after=_to_claim(after),
        retrain_due=is_retrain,
        retrain_words=_retrain_words(plan, now),
        job=None if unfinished is None else unfinished.id,
    )


@batches.post(
    "/api/v1/models/{model}/what-if", summary="Compare methods for a batch", status_code=202
)
def ask_what_if(
    caller: Operator,
    model: ModelName,
    tenant: schemas.Tenant = None,
    people: Annotated[
        int | None,
        Query(
            ge=1,
            le=_MOST_PEOPLE,
            description="Number of people in the batch; default: the number of queued people.",
        ),
    ] = None,
) -> jobs.Job:
    """Start a job that compares methods by the cost of a batch and the guarantee after it.

    Every suitable method is trained on the rows of the model and forgets randomly chosen people.
    The model is not changed.
    """
    info = read_model(caller, model, tenant)
    queued = caller.ledger.plan(info.name, tenant=info.tenant)[0]
    n_people = min(people or max(queued.n_people, 1), _MOST_PEOPLE)
    return start_job(caller, "what-if", model, tenant, people=n_people)


@batches.post("/api/v1/models/{model}/apply", summary="Apply queued requests", status_code=202)
def ask_apply(caller: Operator, model: ModelName, tenant: schemas.Tenant = None) -> jobs.Job:
    """Start a job that applies the queued requests of a model without waiting for more."""
    return start_job(caller, "apply", model, tenant)


@batches.post("/api/v1/models/{model}/retrain", summary="Retrain a model", status_code=202)
def ask_retrain(caller: Operator, model: ModelName, tenant: schemas.Tenant = None) -> jobs.Job:
    """Start a job that applies the queued requests of a model and retrains it."""
    return start_job(caller, "retrain", model, tenant)


def start_job(
    caller: Principal, kind: Work, model: str, tenant: str | None, **details: int
) -> jobs.Job:
    """Create a job of this kind for a model that the caller may see; return the job."""
    info = read_model(caller, model, tenant)
    return _add_job(caller, kind, tenant=info.tenant, model=info.name, asked=details)


def _estimate_cost(ledger: Ledger, info: Model) -> CostOut:
    records = ledger.models.history(info.name, tenant=info.tenant, limit=_RECENT_VERSIONS)
    taken = [record.seconds for record in records if record.kind == "erase"]
    seconds = median(taken) if taken else None
    retrain, basis = _retrain_seconds(ledger, info)
    return CostOut(
        seconds=round_figure(seconds),
        basis="measured" if taken else "unknown",
        batches=len(taken),
        retrain_seconds=round_figure(retrain),
        retrain_basis=basis,
        speedup=round_figure(retrain / seconds if retrain and seconds else None),
    )


def _retrain_seconds(ledger: Ledger, info: Model) -> tuple[float | None, Basis]:
    """Estimate the seconds of a retrain, and say whether they are measured or extrapolated.

    The duration of the last training is scaled to the number of remaining rows.
    """
    run = ledger.models.run_facts(info.name, tenant=info.tenant)
    if not run["retrain_seconds"]:
        return None, "unknown"
    then = int(run["retrain_rows"])
    seconds = float(run["retrain_seconds"]) * info.n_rows / max(then, 1)
    return seconds, "measured" if then == info.n_rows else "extrapolated"


def _claim_erased(
    ledger: Ledger, info: Model, now: Mapping[str, Any], n_rows: int
) -> dict[str, Any]:
    """Return the claim after a batch, with the spent budget extrapolated at the rate so far.

    The result is ``spent + spent / rows_since_retrain * n_rows``, but at most the budget, because a
    batch that would exceed the budget is a retrain.
    """
    account = now["accounting"]
    removed = int(account["deletionsSinceRetrain"])
    grows = adds_up(account["rule"]) and "budget" in account and removed > 0
    if not grows or n_rows == 0:
        return dict(now)
    spent = ledger.models.spending(info.name, tenant=info.tenant)[-1][1]
    later = min(spent + spent / removed * n_rows, float(account["budget"]))
    grown = {"deletionsSinceRetrain": removed + n_rows, "spent": figure(later, "up")}
    return {**now, "accounting": make_published_account({**account, **grown})}


def _claim_retrained(now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claim after a retrain, when nothing of the budget is spent."""
    account = {name: value for name, value in now["accounting"].items() if name != "spent"}
    fresh = {"deletionsSinceRetrain": 0} | ({"spent": "0"} if "budget" in account else {})
    bare = {name: value for name, value in now.items() if name not in ("epsilon", "delta")}
    return {**bare, "kind": "exact", "assumptions": [], "accounting": account | fresh}


def _to_claim(section: Mapping[str, Any]) -> ClaimOut:
    account = budget_out(section["accounting"])
    return ClaimOut(**dict(guarantee_out(section)), spent=account.spent, budget=account.budget)


def _retrain_words(plan: BatchPlan, now: Mapping[str, Any]) -> str:
    if plan.decision.reason == "monitor":
        return "A retrain is due: a tolerance of the monitor is exceeded."
    if plan.decision.kind == "retrain":
        return "This batch is a retrain: at the current rate it would exceed the budget."
    if "budget" not in now["accounting"]:
        return "No retrain is needed: the method has no budget."
    return "No retrain is needed: at the current rate the budget covers this batch."
