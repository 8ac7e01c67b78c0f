"""Registered models: what they are, what they guarantee, what they cost."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple, cast

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from letheon.exceptions import UnknownModelError
from letheon.ledger import Ledger, Model, Storage
from letheon.service.auth import Principal, allows
from letheon.service.errors import Problem
from letheon.service.guarantees import (
    BudgetOut,
    ForecastOut,
    GuaranteeOut,
    budget_out,
    forecast,
    guarantee_out,
)
from letheon.service.numbers import Numbers
from letheon.service.schemas import Limit, Name, Out, Page, Tenant, TenantFilter

router = APIRouter(tags=["models"])

Reader = Annotated[Principal, Depends(allows("models:read"))]
Decision = Literal["keep", "retrain-due", "retrained"]
Releases = Literal["labels-only", "latest-only", "every-version"]
_PENDING = ("received", "verified", "queued", "applying", "on_hold", "retry_wait", "stuck")


class ModelOut(Out):
    """A model. A requester sees names only: the rest is null."""

    name: str
    tenant: str
    dataset: str
    method: str | None = Field(default=None, description="How it forgets.")
    releases: Releases | None = None
    registered_at: datetime | None = None
    live_rows: int | None = Field(default=None, ge=0)
    slots: int | None = Field(default=None, ge=0, description="Slots of the commitment to rows.")
    version: int | None = Field(default=None, ge=0, description="The one that is served.")
    certificate: int | None = Field(default=None, description="Number of its certificate.")
    published_at: datetime | None = None
    guarantee: GuaranteeOut | None = None
    budget: BudgetOut | None = Field(
        default=None, description="Where removals are counted against a budget."
    )
    deletions_since_retrain: int | None = Field(default=None, ge=0)
    next_retrain: ForecastOut | None = None
    pending_requests: int | None = Field(default=None, ge=0, description="Not yet applied.")
    monitor: Decision | None = Field(default=None, description="What was decided last.")
    storage: Storage | None = None


@router.get("/api/v1/models", summary="List models")
def list_models(
    who: Reader,
    tenant: TenantFilter = None,
    after: Annotated[str | None, Query(pattern="^[0-9]{1,9}$")] = None,
    limit: Limit = 50,
) -> Page[ModelOut]:
    """Return models in the order of their registration; a requester sees names only."""
    models = who.ledger.models.list(tenant=who.tenant_filter(tenant))
    start = 0 if after is None else int(after)
    shown = models[start : start + limit]
    end, counts = start + len(shown), _count(who)
    return Page(
        items=[_describe(who, info, counts) for info in shown],
        next=str(end) if end < len(models) else None,
        total=len(models),
    )


@router.get("/api/v1/models/{model}", summary="Show a model")
def show_model(who: Reader, model: Name, tenant: Tenant = None) -> ModelOut:
    """Return one model; a requester sees names only."""
    info = read_model(who, model, tenant)
    return _describe(who, info, _count(who))


def read_model(who: Principal, name: str, tenant: str | None) -> Model:
    """Return a model that the caller sees.

    Raises
    ------
    Problem
        404, whether another tenant has such a model or there is none.
    """
    try:
        return who.ledger.models.get(name, tenant=who.tenant_for(tenant))
    except (Problem, UnknownModelError) as error:
        raise Problem(
            404, "unknown-model", "no such model", "GET /api/v1/models lists those that you see."
        ) from error


class _Counts(NamedTuple):
    """Requests by tenant, model and state; bytes of the database, for who sees all of it."""

    requests: dict[tuple[str, str], dict[str, int]]
    n_bytes: int | None


def _sees_names_only(who: Principal) -> bool:
    """Whether counts of a model would tell a filer what became of the request."""
    is_filer = who.role == "requester" or who.may("requests:file")
    return is_filer and not who.sees_all_requests


def _count(who: Principal) -> _Counts:
    ledger = who.ledger
    if _sees_names_only(who):
        return _Counts({}, None)
    counts = ledger.requests.count_by_model(tenant=who.tenant)
    return _Counts(counts, ledger.database_bytes() if who.tenant is None else None)


def _describe(who: Principal, info: Model, counts: _Counts) -> ModelOut:
    names: dict[str, Any] = {"name": info.name, "tenant": info.tenant, "dataset": info.dataset}
    if _sees_names_only(who):
        return ModelOut(**names)
    head = who.ledger.models.history(info.name, tenant=info.tenant, limit=1)[0]
    next_claims = who.ledger.models.claims(info.name, tenant=info.tenant)
    claims = next_claims if head.facts is None else head.facts["guarantee"]
    # A retrain spends nothing, and its certificate does not say what there is to spend.
    budget = budget_out((claims if head.kind == "erase" else next_claims)["accounting"])
    decision = None if head.facts is None else cast("Decision", head.facts["monitor"]["decision"])
    by_state = counts.requests.get((info.tenant, info.name), {})
    return ModelOut(
        **names,
        method=info.method,
        releases=cast(Releases, info.releases),
        registered_at=info.registered_at,
        live_rows=info.n_rows,
        slots=info.slots,
        version=info.head.number,
        certificate=Numbers(who.desk, who).shown(info.head.sequence),
        published_at=info.head.published_at,
        guarantee=guarantee_out(claims),
        budget=None if budget.budget is None else budget,
        deletions_since_retrain=budget.deletions_since_retrain,
        next_retrain=_next_retrain(who, info, budget, decision),
        pending_requests=sum(by_state.get(state, 0) for state in _PENDING),
        monitor=decision,
        storage=_storage(who.ledger, info, counts),
    )


def _storage(ledger: Ledger, info: Model, counts: _Counts) -> Storage:
    own = ledger.models.storage(info.name, tenant=info.tenant)
    share = None
    if counts.n_bytes is not None:
        mine = sum(counts.requests.get((info.tenant, info.name), {}).values())
        total = sum(sum(states.values()) for states in counts.requests.values())
        share = counts.n_bytes * mine // max(total, 1)
    return replace(own, database=share)


def _next_retrain(
    who: Principal, info: Model, budget: BudgetOut, decision: Decision | None
) -> ForecastOut:
    """Say when the next retrain is due, and why."""
    now = who.desk.clock()
    if decision == "retrain-due":
        today = datetime.fromtimestamp(now, UTC).date()
        return ForecastOut(on=today, words="The monitor says that a retrain is due now.")
    if budget.budget is None:
        words = "The method has no budget that removals spend, so none makes a retrain necessary."
        return ForecastOut(on=None, words=words)
    if not budget.adds_up:
        words = "Each request is proved by itself: nothing adds up, so nothing runs out."
        return ForecastOut(on=None, words=words)
    spent = who.ledger.models.spending(info.name, tenant=info.tenant)
    return forecast(spent, budget.budget, now)
