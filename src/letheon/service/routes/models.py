"""API routes for registered models: guarantees, versions, comparisons and history."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Depends, Path, Query

from letheon.exceptions import UnknownModelError
from letheon.ledger import Model, Page, Storage, Version
from letheon.ledger.schemas import to_datetime
from letheon.service import guarantees
from letheon.service.auth import Principal, allows
from letheon.service.errors import ApiProblem
from letheon.service.schemas import (
    Hidden,
    Limit,
    Name,
    Out,
    Tenant,
    TenantFilter,
    cut_page,
    object_schema,
)
from letheon.verifier import MAX_INT

router = APIRouter(tags=["models"])

Reader = Annotated[Principal, Depends(allows("models:read"))]
# Not models:read: a requester has that scope and may see only names.
VersionReader = Annotated[Principal, Depends(allows("monitor:read"))]
Number = Annotated[int, Query(ge=0, le=MAX_INT)]
After = Annotated[str | None, Query(pattern="^[0-9]{1,15}$")]
Decision = Literal["keep", "retrain-due", "retrained"]
Releases = Literal["labels-only", "latest-only", "every-version"]
_PENDING = ("received", "verified", "queued", "applying", "on_hold", "retry_wait", "stuck")
_MOST_LISTED = 1000


class ModelOut(Out):
    """A registered model; for a requester all fields except names are null.

    Attributes
    ----------
    method : str or None
        Name of the unlearning method.
    slots : int or None
        Number of slots in the signed commitment to the rows; a slot stays empty after a removal.
    version : int or None
        Number of the published version.
    certificate : int or None
        Number of the certificate of the published version; null if it has none.
    budget : BudgetOut or None
        Privacy budget; null if the method has none.
    pending_requests : int or None
        Number of requests that have not been applied yet.
    monitor : {"keep", "retrain-due", "retrained"} or None
        Last decision of the monitor.
    columns : list of objects or None
        Each `column` of the table, and the `steps` of the preprocessing that it goes through.
    """

    name: str
    tenant: str
    dataset: str
    method: str | None = None
    releases: Releases | None = None
    registered_at: datetime | None = None
    live_rows: int | None = None
    slots: int | None = None
    version: int | None = None
    certificate: int | None = None
    published_at: datetime | None = None
    guarantee: guarantees.GuaranteeOut | None = None
    budget: guarantees.BudgetOut | None = None
    deletions_since_retrain: int | None = None
    next_retrain: guarantees.ForecastOut | None = None
    pending_requests: int | None = None
    monitor: Decision | None = None
    storage: Storage | None = None
    columns: list[dict[str, str]] | None = None


@router.get("/api/v1/models", summary="List models")
def list_models(
    caller: Reader,
    tenant: TenantFilter = None,
    after: Annotated[str | None, Query(pattern="^[0-9]{1,9}$")] = None,
    limit: Limit = 50,
) -> Page[ModelOut]:
    """List models in the order of their registration; a requester sees only names."""
    models = caller.ledger.models.list(tenant=caller.tenant_filter(tenant))
    start = 0 if after is None else int(after)
    end = min(start + limit, len(models))
    more = str(end) if end < len(models) else None
    return Page(tuple(_describe_models(caller, models[start:end])), more, len(models))


@router.get("/api/v1/models/{model}", summary="Show a model")
def show_model(caller: Reader, model: Name, tenant: Tenant = None) -> ModelOut:
    """Show a model; a requester sees only its name."""
    return _describe_models(caller, [read_model(caller, model, tenant)])[0]


def read_model(caller: Principal, name: str, tenant: str | None) -> Model:
    """Return a model that the caller may see.

    Raises
    ------
    ApiProblem
        404: there is no such model, or it belongs to another tenant.
    """
    try:
        return caller.ledger.models.get(name, tenant=caller.tenant_for(tenant))
    except (ApiProblem, UnknownModelError) as error:
        words = "GET /api/v1/models lists your models."
        raise ApiProblem(404, "unknown-model", "no such model", words) from error


def _describe_models(caller: Principal, models: Sequence[Model]) -> list[ModelOut]:
    """Return models with the fields that the caller may see.

    A token that can only file requests sees names, because counts would reveal the states of
    requests.
    """
    is_filer = caller.role == "requester" or caller.may("requests:file")
    if is_filer and not caller.sees_all_requests:
        return [
            ModelOut(name=model.name, tenant=model.tenant, dataset=model.dataset)
            for model in models
        ]
    counts = caller.ledger.requests.count_by_model(tenant=caller.tenant)
    n_bytes = caller.ledger.database_bytes() if caller.tenant is None else None
    return [_describe_model(caller, model, counts, n_bytes) for model in models]


def _describe_model(
    caller: Principal,
    info: Model,
    counts: dict[tuple[str, str], dict[str, int]],
    n_bytes: int | None,
) -> ModelOut:
    """Return a model with all its fields.

    `counts` has the number of requests by state, for each pair of tenant and model. `n_bytes` is
    the size of the database; None hides the share of the model.
    """
    models = caller.ledger.models
    head = models.history(info.name, tenant=info.tenant, limit=1)[0]
    next_claims = models.claims(info.name, tenant=info.tenant)
    claims = next_claims if head.facts is None else head.facts["guarantee"]
    # A retrain spends nothing, and its certificate does not contain the budget.
    budget = guarantees.budget_out((claims if head.kind == "erase" else next_claims)["accounting"])
    decision = None if head.facts is None else cast("Decision", head.facts["monitor"]["decision"])
    by_state = counts.get((info.tenant, info.name), {})
    total = sum(sum(states.values()) for states in counts.values())
    share = None if n_bytes is None else n_bytes * sum(by_state.values()) // max(total, 1)
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
        certificate=caller.numbers.tenant_number(info.head.sequence),
        published_at=info.head.published_at,
        guarantee=guarantees.guarantee_out(claims),
        budget=None if budget.budget is None else budget,
        deletions_since_retrain=budget.deletions_since_retrain,
        next_retrain=_next_retrain(caller, info, budget, decision),
        pending_requests=sum(by_state.get(state, 0) for state in _PENDING),
        monitor=decision,
        storage=replace(models.storage(info.name, tenant=info.tenant), database=share),
        columns=[column._asdict() for column in models.list_columns(info.name, tenant=info.tenant)],
    )


def _next_retrain(
    caller: Principal, info: Model, budget: guarantees.BudgetOut, decision: Decision | None
) -> guarantees.ForecastOut:
    """Return the forecast of the next retrain: the day, if it is known, and an explanation."""
    now = caller.ledger.clock()
    if decision == "retrain-due":
        words = "The monitor requires a retrain now."
        return guarantees.ForecastOut(on=to_datetime(now).date(), words=words)
    if budget.budget is None:
        words = "The method has no budget, so removals never make a retrain necessary."
        return guarantees.ForecastOut(on=None, words=words)
    if not budget.adds_up:
        words = (
            "Each removal has its own proof and adds nothing to a total, so the budget does not "
            "run out."
        )
        return guarantees.ForecastOut(on=None, words=words)
    spent = caller.ledger.models.spending(info.name, tenant=info.tenant)
    return guarantees.forecast_budget(spent, budget.budget, now)


@dataclass(frozen=True, kw_only=True)
class VersionOut(Version):
    """A version of a model.

    Attributes
    ----------
    number : int
        Number of the version; 0 is the registration.
    certificate : int or None
        Number of the certificate of the version; null if it has none.
    rows_erased : int
        Number of rows that were removed in this version.
    seconds : float
        Duration of the removal or retrain.
    address : str
        SHA-256 of the model file, which contains a nonce.
    method : str or None
        Method that the certificate states; null for the registration.
    measures : dict of str to MeasureOut or None
        The four measures; null for the registration.
    """

    sequence: Hidden[int | None]
    live: Hidden[int]
    n_erased: Hidden[int]
    facts: Hidden[dict[str, Any] | None]
    state: Literal["registered", "published", "certified", "purged"]
    certificate: int | None
    live_rows: int
    rows_erased: int
    method: str | None
    parameters: dict[str, str | bool]
    guarantee: guarantees.GuaranteeOut | None
    budget: guarantees.BudgetOut | None
    measures: dict[guarantees.MeasureName, guarantees.MeasureOut] | None
    monitor: Decision | None


class ChangeOut(Out):
    """One value of two versions; `a` belongs to the older version."""

    what: str
    a: str | None
    b: str | None
    changed: bool


@dataclass(frozen=True)
class ComparisonOut:
    """A comparison of two versions of a model, the older version first.

    Attributes
    ----------
    rows_erased : int
        Number of rows removed between the versions.
    certificates : list of int
        Numbers of the certificates that were issued between the versions.
    same_parameters : bool or None
        Whether the method had the same settings in both versions; null if a version has no
        certificate.
    """

    model: str
    tenant: str
    a: VersionOut
    b: VersionOut
    changes: list[ChangeOut]
    rows_erased: int
    certificates: list[int]
    same_parameters: bool | None


class ToleranceOut(Out):
    """A tolerance of the monitor: the limit for one measure."""

    measure: str
    value: float
    side: Literal["at most", "at least"]


LimitOut = Annotated[
    dict[str, Any],
    object_schema("measure", "score", factor="number", floor="number", miss="number"),
]


@dataclass(frozen=True, kw_only=True)
class HistoryOut(Page[VersionOut]):
    """The history of a model, oldest version first.

    Attributes
    ----------
    is_watched : bool
        Whether a monitor is registered with the model.
    metric : str or None
        Performance metric of the monitor.
    assumption : str
        Assumption of the monitor about future requests; empty if there is none.
    limits : list of dict
        How the monitor estimates `measure` without a retrain: as ``factor x max(score, floor)``.
        `miss` is the share of request streams in which an exceeded tolerance may go undetected.
    next : str or None
        Value for the parameter `after` of the next call, which returns older versions.
    """

    items: tuple[VersionOut, ...]
    model: str
    tenant: str
    is_watched: bool
    metric: str | None
    assumption: str
    tolerances: list[ToleranceOut]
    limits: list[LimitOut]
    budget: guarantees.BudgetOut | None
    next_retrain: guarantees.ForecastOut | None


@router.get("/api/v1/models/{model}/versions", summary="List versions")
def list_versions(
    caller: VersionReader,
    model: Name,
    tenant: Tenant = None,
    after: After = None,
    limit: Limit = 50,
) -> Page[VersionOut]:
    """List the versions of a model, newest first, with the content of their certificates."""
    info = read_model(caller, model, tenant)
    before = None if after is None else int(after)
    versions = _read_versions(caller, info, before=before, limit=limit + 1)
    return cut_page(
        versions, limit, key=lambda version: str(version.number), total=info.head.number + 1
    )


@router.get("/api/v1/models/{model}/versions/{number}", summary="Show a version")
def show_version(
    caller: VersionReader,
    model: Name,
    number: Annotated[int, Path(ge=0, le=MAX_INT)],
    tenant: Tenant = None,
) -> VersionOut:
    """Show a version of a model, with the content of its certificate."""
    versions = _read_versions(caller, read_model(caller, model, tenant), numbers=[number])
    if not versions:
        words = f"GET /api/v1/models/{model}/versions lists the versions."
        raise ApiProblem(404, "unknown-version", "no such version", words)
    return versions[0]


@router.get("/api/v1/models/{model}/compare", summary="Compare two versions")
def compare_versions(
    caller: VersionReader, model: Name, a: Number, b: Number, tenant: Tenant = None
) -> ComparisonOut:
    """Compare the values of two versions, and list the certificates between them."""
    older, newer = (show_version(caller, model, item, tenant) for item in sorted((a, b)))
    whose = caller.tenant_for(tenant)
    between = caller.ledger.models.sequences(model, older.number, newer.number, tenant=whose)
    is_certified = older.method is not None and newer.method is not None
    return ComparisonOut(
        model,
        whose,
        older,
        newer,
        _list_changes(older, newer),
        rows_erased=older.live_rows - newer.live_rows,
        certificates=[caller.numbers.tenant_number(item) or 0 for item in between[-_MOST_LISTED:]],
        same_parameters=_method_settings(older) == _method_settings(newer)
        if is_certified
        else None,
    )


@router.get("/api/v1/models/{model}/history", summary="Show measures over time")
def show_history(
    caller: VersionReader,
    model: Name,
    tenant: Tenant = None,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 200,
) -> HistoryOut:
    """Show the four measures of each version, and the tolerances of the monitor.

    The values are those of the certificates. They are rounded, because exact values would reveal
    information about the removed rows.
    """
    versions = list_versions(caller, model, tenant, after, limit)
    now = show_model(caller, model, tenant)
    watch = caller.ledger.models.watch(model, tenant=now.tenant)
    # Higher efficiency is better; of the other measures, lower values are better.
    sides: dict[str, Any] = {"efficiency": "at least"}
    tolerances = {} if watch is None else watch.tolerances
    limits = {} if watch is None else watch.limits
    return HistoryOut(
        items=versions.items[::-1],
        next=versions.next,
        total=versions.total,
        model=model,
        tenant=now.tenant,
        is_watched=watch is not None,
        metric=None if watch is None else watch.metric,
        assumption="" if watch is None else watch.assumption,
        tolerances=[
            ToleranceOut(measure=name, value=value, side=sides.get(name, "at most"))
            for name, value in tolerances.items()
        ],
        limits=[{"measure": name, **limit} for name, limit in limits.items()],
        budget=now.budget,
        next_retrain=now.next_retrain,
    )


def _read_versions(caller: Principal, info: Model, **which: Any) -> list[VersionOut]:
    records = caller.ledger.models.history(info.name, tenant=info.tenant, **which)
    return [_describe_version(caller, record) for record in records]


def _describe_version(caller: Principal, record: Version) -> VersionOut:
    state = "purged" if record.purged_at is not None else "certified"
    if record.purged_at is None and record.certificate_id is None:
        state = "registered" if record.kind == "registration" else "published"
    certified: dict[str, Any] = {"parameters": {}}
    certified |= dict.fromkeys(("method", "guarantee", "budget", "measures", "monitor"))
    if (facts := record.facts) is not None:  # the registration has none
        certified = {
            "method": facts["method"]["name"],
            "parameters": facts["method"]["parameters"],
            "guarantee": guarantees.guarantee_out(facts["guarantee"]),
            "budget": guarantees.budget_out(facts["guarantee"]["accounting"]),
            "measures": guarantees.measures_out(facts["measurements"]),
            "monitor": facts["monitor"]["decision"],
        }
    values = {
        "state": state,
        "certificate": caller.numbers.tenant_number(record.sequence),
        "live_rows": record.live,
        "rows_erased": record.n_erased,
    }
    return VersionOut(**vars(record) | values | certified)


def _method_settings(version: VersionOut) -> dict[str, str | bool]:
    """Return the settings of the method of a version.

    A retrain stores them with the prefix ``estimator__``, which is removed.
    """
    if version.method != "retrain":
        return version.parameters
    prefix = "estimator__"
    return {
        name.removeprefix(prefix): value
        for name, value in version.parameters.items()
        if name.startswith(prefix)
    }


def _list_changes(a: VersionOut, b: VersionOut) -> list[ChangeOut]:
    older_values, newer_values = _list_values(a), _list_values(b)
    pairs = {
        name: (older_values.get(name), newer_values.get(name))
        for name in older_values | newer_values
    }
    return [ChangeOut(what=name, a=a, b=b, changed=a != b) for name, (a, b) in pairs.items()]


def _list_values(version: VersionOut) -> dict[str, str | None]:
    """Return the values of a version that a comparison shows, by label and in order."""
    lines = {
        "address": version.address,
        "kind": version.kind,
        "live rows": str(version.live_rows),
        "rows erased": str(version.rows_erased),
        "seconds": f"{version.seconds:.3g}",
        "method": version.method,
    }
    if version.guarantee is not None and version.budget is not None:
        lines |= {
            "guarantee": version.guarantee.kind,
            "epsilon": _format_figure(version.guarantee.epsilon),
            "delta": _format_figure(version.guarantee.delta),
            "spent": _format_figure(version.budget.spent),
            "budget": _format_figure(version.budget.budget),
            "deletions since retrain": str(version.budget.deletions_since_retrain),
        }
    lines["monitor"] = version.monitor
    for name, measure in (version.measures or {}).items():
        lines[name] = (
            None if measure.value is None else f"{_format_figure(measure.value)} ({measure.basis})"
        )
    settings = sorted(_method_settings(version).items())
    return lines | {f"parameter {name}": str(value) for name, value in settings}


def _format_figure(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"
