"""The next batch of a model: when, why, what it costs, and what is guaranteed after it."""

from collections.abc import Mapping
from datetime import date, datetime
from statistics import median
from typing import Any, Literal

from pydantic import Field
from sqlalchemy import func, select

from letheon.ledger import BatchPlan, ModelInfo
from letheon.ledger.certificates.claims import adds_up, published_account
from letheon.ledger.certificates.decimals import figure
from letheon.ledger.models.history import claims_of_head, spending, version_records
from letheon.ledger.models.versions import head_of
from letheon.ledger.tables import requests
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._guarantees import GuaranteeOut, budget_out, guarantee_out
from letheon.service._jobs import Jobs
from letheon.service._schemas import Out
from letheon.service.desk.jobs import JobOut, add_job, job_out
from letheon.service.desk.models import model_seen

__all__ = ["ClaimOut", "CostOut", "PlanOut", "plan", "start"]

Basis = Literal["measured", "extrapolated", "unknown"]
Work = Literal["what-if", "apply", "retrain"]
_RECENT_VERSIONS = 50
_MOST_PEOPLE = 100_000
_CHUNK = 500
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


def plan(context: Context, who: Principal, model: str, *, tenant: str | None = None) -> PlanOut:
    """Say what the next batch of a model would be, cost and guarantee."""
    info = model_seen(context, who, model, tenant=tenant)
    found = context.ledger.plan(info.name, tenant=info.tenant)[0]
    now = claims_of_head(context.ledger, info.name, tenant=info.tenant)
    is_retrain = found.decision.kind == "retrain"
    after = _after_retrain(now) if is_retrain else _after(context, info, now, found.n_rows)
    unfinished = Jobs(context.ledger).unfinished(
        ("apply", "retrain", "what-if"), tenant=info.tenant, model=info.name
    )
    return PlanOut(
        model=info.name,
        tenant=info.tenant,
        method=info.method,
        live_rows=info.n_rows,
        requests=found.n_requests,
        people=_people(context, found),
        rows=found.n_rows,
        earliest_due_on=found.earliest_due_on,
        seal=found.decision.seal,
        kind=found.decision.kind,
        reason=found.decision.reason,
        reason_words=_WORDS[found.decision.reason],
        when_next=found.decision.when_next,
        cost=_cost(context, info),
        now=_claim_out(now),
        after=_claim_out(after),
        retrain_due=is_retrain,
        retrain_words=_retrain_words(found, now),
        job=None if unfinished is None else unfinished.id,
    )


def start(
    context: Context,
    who: Principal,
    kind: Work,
    model: str,
    *,
    tenant: str | None = None,
    people: int | None = None,
) -> JobOut:
    """Ask for a what-if, for the batch to be applied now, or for a retrain."""
    info = model_seen(context, who, model, tenant=tenant)
    asked: dict[str, Any] = {}
    if kind == "what-if":
        queued = context.ledger.plan(info.name, tenant=info.tenant)[0]
        asked = {"people": min(people or max(_people(context, queued), 1), _MOST_PEOPLE)}
    return job_out(add_job(context, who, kind, tenant=info.tenant, model=info.name, asked=asked))


def _people(context: Context, found: BatchPlan) -> int:
    """Return how many people the requests of a batch name."""
    total = 0
    with context.ledger._core.database.reading() as conn:
        for begin in range(0, len(found.request_ids), _CHUNK):
            wanted = requests.c.id.in_(found.request_ids[begin : begin + _CHUNK])
            total += conn.scalar(select(func.sum(requests.c.n_ids)).where(wanted)) or 0
    return int(total)


def _cost(context: Context, info: ModelInfo) -> CostOut:
    ledger = context.ledger
    records = version_records(ledger, info.name, tenant=info.tenant, limit=_RECENT_VERSIONS)
    taken = [one.seconds for one in records if one.kind == "erase"]
    seconds = median(taken) if taken else None
    retrain, basis = _retrain_seconds(context, info)
    return CostOut(
        seconds=_digits(seconds),
        basis="measured" if taken else "unknown",
        batches=len(taken),
        retrain_seconds=_digits(retrain),
        retrain_basis=basis,
        speedup=_digits(retrain / seconds) if retrain and seconds else None,
    )


def _retrain_seconds(context: Context, info: ModelInfo) -> tuple[float | None, Basis]:
    """Return what the last training took, scaled by the rows that are left."""
    core = context.ledger._core
    with core.database.reading() as conn:
        run = head_of(conn, context.ledger._row(info.name, info.tenant).id).run
    if not run["retrain_seconds"]:
        return None, "unknown"
    then = int(run["retrain_rows"])
    seconds = float(run["retrain_seconds"]) * info.n_rows / max(then, 1)
    return seconds, "measured" if then == info.n_rows else "extrapolated"


def _after(
    context: Context, info: ModelInfo, now: Mapping[str, Any], n_rows: int
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
    budget = float(account["budget"])
    spent = spending(context.ledger, info.name, tenant=info.tenant)[-1][1]
    later = min(spent + spent / removed * n_rows, budget)
    expected = {
        **account,
        "deletionsSinceRetrain": removed + n_rows,
        "spent": figure(later, "up"),
    }
    return {**now, "accounting": published_account(expected)}


def _after_retrain(now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claim of a model that was just trained: nothing is spent."""
    account = {name: now["accounting"][name] for name in now["accounting"] if name != "spent"}
    fresh = {"deletionsSinceRetrain": 0} | ({"spent": "0"} if "budget" in account else {})
    bare = {name: value for name, value in now.items() if name not in ("epsilon", "delta")}
    return {**bare, "kind": "exact", "assumptions": [], "accounting": account | fresh}


def _claim_out(section: Mapping[str, Any]) -> ClaimOut:
    account = budget_out(section["accounting"])
    claimed = guarantee_out(section)
    return ClaimOut(**dict(claimed), spent=account.spent, budget=account.budget)


def _retrain_words(found: BatchPlan, now: Mapping[str, Any]) -> str:
    if found.decision.reason == "monitor":
        return "A retrain is due: the monitor's tolerances are passed."
    if found.decision.kind == "retrain":
        return "This batch is a retrain: at the rate so far the budget would not cover it."
    if "budget" not in now["accounting"]:
        return "No retrain is needed: the method has no budget."
    return "No retrain is needed: the budget covers this batch at the rate so far."


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")
