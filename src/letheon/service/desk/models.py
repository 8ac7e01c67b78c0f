"""Registered models: what they are, what they guarantee, what they cost."""

from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import Field

from letheon.exceptions import UnknownModelError
from letheon.ledger import ModelInfo
from letheon.ledger.models.history import (
    VersionRecord,
    claims_of_head,
    requests_by_model,
    spending,
    version_records,
)
from letheon.ledger.models.storage import database_bytes, storage_of
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._guarantees import (
    BudgetOut,
    ForecastOut,
    GuaranteeOut,
    budget_out,
    forecast,
    guarantee_out,
)
from letheon.service._numbers import Numbers
from letheon.service._problems import Problem
from letheon.service._schemas import Out, Page

__all__ = [
    "ModelOut",
    "Name",
    "StorageOut",
    "find_model",
    "list_models",
    "model_seen",
    "next_retrain",
    "tenant_seen",
]

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._:-]{0,62}$")]
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


def tenant_seen(who: Principal, asked: str | None) -> str:
    """Return the tenant of a model that is asked for; another's is as if it were not there."""
    try:
        return who.tenant_for(asked)
    except Problem as problem:
        raise _unknown() from problem


def model_seen(
    context: Context, who: Principal, name: str, *, tenant: str | None = None
) -> ModelInfo:
    """Return a model that the principal sees.

    Raises
    ------
    Problem
        404, whether another tenant has such a model or nobody.
    """
    ledger = context.ledger
    try:
        row = ledger._row(name, tenant_seen(who, tenant))
    except UnknownModelError as error:
        raise _unknown() from error
    return ledger._info(row.id)


def _unknown() -> Problem:
    return Problem(
        404, "unknown-model", "no such model", "GET /api/v1/models lists those that you see."
    )


def list_models(
    context: Context,
    who: Principal,
    *,
    tenant: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[ModelOut]:
    """Return models in the order of their registration."""
    found = context.ledger.models(tenant=who.tenant_filter(tenant))
    start = 0 if after is None else int(after)
    shown = found[start : start + limit]
    end = start + len(shown)
    counts = _counted(context, who)
    return Page(
        items=[_out(context, who, info, counts) for info in shown],
        next=str(end) if end < len(found) else None,
        total=len(found),
    )


def find_model(
    context: Context, who: Principal, name: str, *, tenant: str | None = None
) -> ModelOut:
    """Return one model."""
    info = model_seen(context, who, name, tenant=tenant)
    return _out(context, who, info, _counted(context, who))


class _Counts(NamedTuple):
    """Requests by tenant, model and state; bytes of the database, for who sees all of it."""

    requests: dict[tuple[str, str], dict[str, int]]
    n_bytes: int | None


def _sees_names_only(who: Principal) -> bool:
    """Whether counts of a model would tell a filer what became of the request."""
    is_filer = who.role == "requester" or who.may("requests:file")
    return is_filer and not who.sees_all_requests


def _counted(context: Context, who: Principal) -> _Counts:
    if _sees_names_only(who):
        return _Counts({}, None)
    counts = requests_by_model(context.ledger, tenant=who.tenant)
    return _Counts(counts, database_bytes(context.ledger) if who.tenant is None else None)


def _out(context: Context, who: Principal, info: ModelInfo, counts: _Counts) -> ModelOut:
    if _sees_names_only(who):
        return ModelOut(name=info.name, tenant=info.tenant, dataset=info.dataset)
    ledger = context.ledger
    head = version_records(ledger, info.name, tenant=info.tenant, limit=1)[0]
    said = _claims(context, info, head)
    # A retrain spends nothing, and its certificate does not say what there is to spend.
    own = said if head.kind == "erase" else claims_of_head(ledger, info.name, tenant=info.tenant)
    budget = budget_out(own["accounting"])
    by_state = counts.requests.get((info.tenant, info.name), {})
    return ModelOut(
        name=info.name,
        tenant=info.tenant,
        dataset=info.dataset,
        method=info.method,
        releases=cast(Releases, info.releases),
        registered_at=info.registered_at,
        live_rows=info.n_rows,
        slots=info.slots,
        version=info.head.number,
        certificate=Numbers(context, who).shown(info.head.sequence),
        published_at=info.head.published_at,
        guarantee=guarantee_out(said),
        budget=None if budget.budget is None else budget,
        deletions_since_retrain=budget.deletions_since_retrain,
        next_retrain=next_retrain(context, info, budget, _decision(head.facts)),
        pending_requests=sum(by_state.get(state, 0) for state in _PENDING),
        monitor=_decision(head.facts),
        storage=_storage(context, info, counts),
    )


def _claims(context: Context, info: ModelInfo, head: VersionRecord) -> dict[str, Any]:
    if head.facts is None:
        return claims_of_head(context.ledger, info.name, tenant=info.tenant)
    found: dict[str, Any] = head.facts["guarantee"]
    return found


def _decision(facts: dict[str, Any] | None) -> Decision | None:
    if facts is None:
        return None
    found: Decision = facts["monitor"]["decision"]
    return found


def next_retrain(
    context: Context, info: ModelInfo, budget: BudgetOut, decision: Decision | None
) -> ForecastOut:
    """Say when the next retrain is due, and why."""
    today = context.clock()
    if decision == "retrain-due":
        on = forecast([(today, 1.0)], 1.0, today).on
        return ForecastOut(on=on, words="The monitor says that a retrain is due now.")
    if budget.budget is None:
        words = "The method has no budget that removals spend, so none makes a retrain necessary."
        return ForecastOut(on=None, words=words)
    if not budget.adds_up:
        words = "Each request is proved by itself: nothing adds up, so nothing runs out."
        return ForecastOut(on=None, words=words)
    spent = spending(context.ledger, info.name, tenant=info.tenant)
    return forecast(spent, budget.budget, today)


def _storage(context: Context, info: ModelInfo, counts: _Counts) -> StorageOut:
    own = storage_of(context.ledger, info.name, tenant=info.tenant)
    share = None
    if counts.n_bytes is not None:
        mine = sum(counts.requests.get((info.tenant, info.name), {}).values())
        everybodys = sum(sum(states.values()) for states in counts.requests.values())
        share = counts.n_bytes * mine // max(everybodys, 1)
    return StorageOut(blobs=own.blobs, proofs=own.proofs, database=share)
