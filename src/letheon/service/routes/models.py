"""Registered models: what they are, what they guarantee, what they cost."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple, cast

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field

from letheon.exceptions import UnknownModelError
from letheon.ledger import ModelInfo
from letheon.ledger.models.history import (
    claims_of_head,
    requests_by_model,
    spending,
    version_records,
)
from letheon.ledger.models.storage import database_bytes, storage_of
from letheon.service.auth import Principal, allows, context
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


class StorageOut(Out):
    """Bytes on the disk."""

    blobs: int = Field(ge=0, description="Sealed models, rows, ids and salts.")
    proofs: int = Field(ge=0, description="Transition proofs.")
    database: int | None = Field(
        description=(
            "Its part of the database, by its part of all requests; null for a token that is "
            "bound to a tenant."
        )
    )


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
    storage: StorageOut | None = None


@router.get("/api/v1/models", summary="List models")
def list_models(
    request: Request,
    who: Reader,
    tenant: TenantFilter = None,
    after: Annotated[str | None, Query(pattern="^[0-9]{1,9}$")] = None,
    limit: Limit = 50,
) -> Page[ModelOut]:
    """Return models in the order of their registration; a requester sees names only."""
    models = context(request).ledger.models(tenant=who.tenant_filter(tenant))
    start = 0 if after is None else int(after)
    shown = models[start : start + limit]
    end, counts = start + len(shown), _count(request, who)
    return Page(
        items=[_describe(request, who, info, counts) for info in shown],
        next=str(end) if end < len(models) else None,
        total=len(models),
    )


@router.get("/api/v1/models/{model}", summary="Show a model")
def show_model(request: Request, who: Reader, model: Name, tenant: Tenant = None) -> ModelOut:
    """Return one model; a requester sees names only."""
    info = read_model(request, who, model, tenant)
    return _describe(request, who, info, _count(request, who))


def read_model(request: Request, who: Principal, name: str, tenant: str | None) -> ModelInfo:
    """Return a model that the caller sees.

    Raises
    ------
    Problem
        404, whether another tenant has such a model or there is none.
    """
    ledger = context(request).ledger
    try:
        row = ledger._row(name, who.tenant_for(tenant))
    except (Problem, UnknownModelError) as error:
        raise Problem(
            404, "unknown-model", "no such model", "GET /api/v1/models lists those that you see."
        ) from error
    return ledger._info(row.id)


class _Counts(NamedTuple):
    """Requests by tenant, model and state; bytes of the database, for who sees all of it."""

    requests: dict[tuple[str, str], dict[str, int]]
    n_bytes: int | None


def _sees_names_only(who: Principal) -> bool:
    """Whether counts of a model would tell a filer what became of the request."""
    is_filer = who.role == "requester" or who.may("requests:file")
    return is_filer and not who.sees_all_requests


def _count(request: Request, who: Principal) -> _Counts:
    ledger = context(request).ledger
    if _sees_names_only(who):
        return _Counts({}, None)
    counts = requests_by_model(ledger, tenant=who.tenant)
    return _Counts(counts, database_bytes(ledger) if who.tenant is None else None)


def _describe(request: Request, who: Principal, info: ModelInfo, counts: _Counts) -> ModelOut:
    names: dict[str, Any] = {"name": info.name, "tenant": info.tenant, "dataset": info.dataset}
    if _sees_names_only(who):
        return ModelOut(**names)
    desk = context(request)
    head = version_records(desk.ledger, info.name, tenant=info.tenant, limit=1)[0]
    next_claims = claims_of_head(desk.ledger, info.name, tenant=info.tenant)
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
        certificate=Numbers(desk, who).shown(info.head.sequence),
        published_at=info.head.published_at,
        guarantee=guarantee_out(claims),
        budget=None if budget.budget is None else budget,
        deletions_since_retrain=budget.deletions_since_retrain,
        next_retrain=_next_retrain(request, info, budget, decision),
        pending_requests=sum(by_state.get(state, 0) for state in _PENDING),
        monitor=decision,
        storage=_storage(request, info, counts),
    )


def _storage(request: Request, info: ModelInfo, counts: _Counts) -> StorageOut:
    own = storage_of(context(request).ledger, info.name, tenant=info.tenant)
    share = None
    if counts.n_bytes is not None:
        mine = sum(counts.requests.get((info.tenant, info.name), {}).values())
        total = sum(sum(states.values()) for states in counts.requests.values())
        share = counts.n_bytes * mine // max(total, 1)
    return StorageOut(blobs=own.blobs, proofs=own.proofs, database=share)


def _next_retrain(
    request: Request, info: ModelInfo, budget: BudgetOut, decision: Decision | None
) -> ForecastOut:
    """Say when the next retrain is due, and why."""
    desk = context(request)
    now = desk.clock()
    if decision == "retrain-due":
        today = datetime.fromtimestamp(now, UTC).date()
        return ForecastOut(on=today, words="The monitor says that a retrain is due now.")
    if budget.budget is None:
        words = "The method has no budget that removals spend, so none makes a retrain necessary."
        return ForecastOut(on=None, words=words)
    if not budget.adds_up:
        words = "Each request is proved by itself: nothing adds up, so nothing runs out."
        return ForecastOut(on=None, words=words)
    spent = spending(desk.ledger, info.name, tenant=info.tenant)
    return forecast(spent, budget.budget, now)
