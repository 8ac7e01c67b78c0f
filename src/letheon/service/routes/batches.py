"""Batches: those that were made, and the next one of a model: when, why, at what cost."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime
from statistics import median
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query
from pydantic import Field

from letheon.exceptions import LedgerMissingError
from letheon.ledger import Batch, BatchPlan, Ledger, Model
from letheon.ledger.certificates.claims import adds_up, figure, published_account
from letheon.ledger.db.jobs import Job, Jobs
from letheon.service.auth import Principal, allows
from letheon.service.errors import Problem, cursor_problem
from letheon.service.guarantees import GuaranteeOut, budget_out, guarantee_out
from letheon.service.numbers import Numbers
from letheon.service.routes.jobs import add_job
from letheon.service.routes.models import read_model
from letheon.service.schemas import Limit, ModelFilter, Name, Out, Page, TenantFilter

router = APIRouter(tags=["batches"])

Reader = Annotated[Principal, Depends(allows("batches:read"))]
Operator = Annotated[Principal, Depends(allows("batches:run"))]
ModelName = Annotated[Name, Path(description="Name of the model.")]
Tenant = Annotated[Name | None, Query(description="Whose model it is.")]
Basis = Literal["measured", "extrapolated", "unknown"]
Work = Literal["what-if", "apply", "retrain"]
_RECENT_VERSIONS = 50
_MOST_PEOPLE = 100_000
_WORDS = {
    "nothing-queued": "Nothing is queued.",
    "waiting": "It waits for company: few rows at a time tell more about a person.",
    "operator": "An operator asks for it.",
    "monitor": "The monitor says that a retrain is due.",
    "budget-runs-out": "The budget does not cover these rows, so the batch is a retrain.",
    "due-soon": "The earliest due day is near.",
    "waited-long": "The oldest request has waited long enough.",
    "enough-rows": "There are enough rows.",
}


class ClaimOut(GuaranteeOut):
    """A guarantee with its account, as coarsely as certificates say it."""

    spent: float | None = Field(description="Of the budget; null where nothing is counted.")
    budget: float | None


class CostOut(Out):
    """What a batch takes, by what earlier ones took."""

    seconds: float | None = Field(description="Median of the last batches; null without one.")
    basis: Basis
    batches: int = Field(ge=0, description="Batches behind it.")
    retrain_seconds: float | None = Field(description="Of a retrain on the rows that are held.")
    retrain_basis: Basis
    speedup: float | None = Field(description="Retrain against batch.")


class PlanOut(Out):
    """What the next batch of a model would be."""

    model: str
    tenant: str
    method: str
    live_rows: int = Field(ge=0)
    requests: int = Field(ge=0)
    people: int = Field(ge=0)
    rows: int = Field(ge=0)
    earliest_due_on: date | None
    seal: bool = Field(description="Whether it is sealed now.")
    kind: Literal["erase", "retrain"]
    reason: str
    reason_words: str
    when_next: datetime | None = Field(description="When time alone will seal it.")
    cost: CostOut
    now: ClaimOut
    after: ClaimOut = Field(description="After this batch; what is spent is extrapolated.")
    retrain_due: bool
    retrain_words: str
    job: str | None = Field(description="A job of this model that is not over.")


@router.get("/api/v1/batches", summary="List batches")
def list_batches(
    who: Reader,
    tenant: TenantFilter = None,
    model: ModelFilter = None,
    after: Annotated[str | None, Query(max_length=400)] = None,
    limit: Limit = 50,
) -> Page[Batch]:
    """Return batches, newest first."""
    desk, whose = who.desk, who.tenant_filter(tenant)
    try:
        page = desk.ledger.batches.list(tenant=whose, model=model, after=after, limit=limit)
    except ValueError:
        raise cursor_problem("Give back `next` as it was given.") from None
    numbers = Numbers(desk, who)
    items = [replace(one, certificate=numbers.shown(one.certificate)) for one in page.items]
    return Page(items=items, next=page.next, total=page.total)


@router.get("/api/v1/batches/{batch_id}", summary="Show a batch")
def show_batch(who: Reader, batch_id: Annotated[str, Path(pattern="^[0-9a-f]{64}$")]) -> Batch:
    """Return one batch."""
    desk = who.desk
    try:
        batch = desk.ledger.batches.get(batch_id, tenant=who.tenant)
    except LedgerMissingError as error:
        raise Problem(
            404, "unknown-batch", "no such batch", "GET /api/v1/batches lists those that you see."
        ) from error
    return replace(batch, certificate=Numbers(desk, who).shown(batch.certificate))


@router.get("/api/v1/models/{model}/plan", summary="Show the next batch of a model")
def show_plan(who: Reader, model: ModelName, tenant: Tenant = None) -> PlanOut:
    """Return what the next batch would be, when and why, its cost, and the guarantee after it."""
    info, ledger = read_model(who, model, tenant), who.ledger
    plan = ledger.plan(info.name, tenant=info.tenant)[0]
    decision = plan.decision
    now = ledger.models.claims(info.name, tenant=info.tenant)
    is_retrain = decision.kind == "retrain"
    after = _claim_retrained(now) if is_retrain else _claim_erased(ledger, info, now, plan.n_rows)
    unfinished = Jobs(ledger).unfinished(
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
        seal=decision.seal,
        kind=decision.kind,
        reason=decision.reason,
        reason_words=_WORDS[decision.reason],
        when_next=decision.when_next,
        cost=_cost(ledger, info),
        now=_to_claim(now),
        after=_to_claim(after),
        retrain_due=is_retrain,
        retrain_words=_retrain_words(plan, now),
        job=None if unfinished is None else unfinished.id,
    )


@router.post(
    "/api/v1/models/{model}/what-if", summary="Compare methods for a batch", status_code=202
)
def ask_what_if(
    who: Operator,
    model: ModelName,
    tenant: Tenant = None,
    people: Annotated[
        int | None,
        Query(
            ge=1, le=_MOST_PEOPLE, description="Size of the batch; as many as are queued, if null."
        ),
    ] = None,
) -> Job:
    """Ask what a batch would cost under each method, and what would be guaranteed.

    Every method is trained on the rows of the model and made to forget people drawn at random.
    Nothing is changed.
    """
    info = read_model(who, model, tenant)
    queued = who.ledger.plan(info.name, tenant=info.tenant)[0]
    n_people = min(people or max(queued.n_people, 1), _MOST_PEOPLE)
    return start_job(who, "what-if", model, tenant, people=n_people)


@router.post("/api/v1/models/{model}/apply", summary="Apply what is queued", status_code=202)
def ask_apply(who: Operator, model: ModelName, tenant: Tenant = None) -> Job:
    """Ask that what is queued for a model be applied now, however little it is."""
    return start_job(who, "apply", model, tenant)


@router.post("/api/v1/models/{model}/retrain", summary="Train a model afresh", status_code=202)
def ask_retrain(who: Operator, model: ModelName, tenant: Tenant = None) -> Job:
    """Ask that a model be trained afresh, with everything queued for it."""
    return start_job(who, "retrain", model, tenant)


def start_job(who: Principal, kind: Work, model: str, tenant: str | None, **asked: int) -> Job:
    """Ask for work on a model that the caller sees."""
    info = read_model(who, model, tenant)
    return add_job(who, kind, tenant=info.tenant, model=info.name, asked=asked)


def _cost(ledger: Ledger, info: Model) -> CostOut:
    records = ledger.models.history(info.name, tenant=info.tenant, limit=_RECENT_VERSIONS)
    taken = [one.seconds for one in records if one.kind == "erase"]
    seconds = median(taken) if taken else None
    retrain, basis = _retrain_seconds(ledger, info)
    return CostOut(
        seconds=_digits(seconds),
        basis="measured" if taken else "unknown",
        batches=len(taken),
        retrain_seconds=_digits(retrain),
        retrain_basis=basis,
        speedup=_digits(retrain / seconds) if retrain and seconds else None,
    )


def _retrain_seconds(ledger: Ledger, info: Model) -> tuple[float | None, Basis]:
    """Return what the last training took, scaled by the rows that are left."""
    run = ledger.models.run_facts(info.name, tenant=info.tenant)
    if not run["retrain_seconds"]:
        return None, "unknown"
    then = int(run["retrain_rows"])
    seconds = float(run["retrain_seconds"]) * info.n_rows / max(then, 1)
    return seconds, "measured" if then == info.n_rows else "extrapolated"


def _claim_erased(
    ledger: Ledger, info: Model, now: Mapping[str, Any], n_rows: int
) -> dict[str, Any]:
    """Return the claim after a batch: what is spent grows at the rate of the rows so far.

    ``spent_after = spent + spent / rows_since_retrain * rows``, and no more than the budget: a
    batch that it does not cover is a retrain.
    """
    account = now["accounting"]
    removed = int(account["deletionsSinceRetrain"])
    grows = adds_up(account["rule"]) and "budget" in account and removed > 0
    if not grows or n_rows == 0:
        return dict(now)
    spent = ledger.models.spending(info.name, tenant=info.tenant)[-1][1]
    later = min(spent + spent / removed * n_rows, float(account["budget"]))
    grown = {"deletionsSinceRetrain": removed + n_rows, "spent": figure(later, "up")}
    return {**now, "accounting": published_account({**account, **grown})}


def _claim_retrained(now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claim of a model that was just trained: nothing is spent."""
    account = {name: value for name, value in now["accounting"].items() if name != "spent"}
    fresh = {"deletionsSinceRetrain": 0} | ({"spent": "0"} if "budget" in account else {})
    bare = {name: value for name, value in now.items() if name not in ("epsilon", "delta")}
    return {**bare, "kind": "exact", "assumptions": [], "accounting": account | fresh}


def _to_claim(section: Mapping[str, Any]) -> ClaimOut:
    account = budget_out(section["accounting"])
    return ClaimOut(**dict(guarantee_out(section)), spent=account.spent, budget=account.budget)


def _retrain_words(plan: BatchPlan, now: Mapping[str, Any]) -> str:
    if plan.decision.reason == "monitor":
        return "A retrain is due: the monitor's tolerances are passed."
    if plan.decision.kind == "retrain":
        return "This batch is a retrain: at the rate so far the budget would not cover it."
    if "budget" not in now["accounting"]:
        return "No retrain is needed: the method has no budget."
    return "No retrain is needed: the budget covers this batch at the rate so far."


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")
