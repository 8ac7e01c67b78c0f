"""Versions of a model: their measures over time, and two of them side by side."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query
from pydantic import Field

from letheon.ledger import Version
from letheon.service.auth import Principal, allows
from letheon.service.errors import Problem
from letheon.service.guarantees import (
    BudgetOut,
    ForecastOut,
    GuaranteeOut,
    MeasuresOut,
    budget_out,
    guarantee_out,
    measures_out,
)
from letheon.service.numbers import Numbers
from letheon.service.routes.models import Decision, read_model, show_model
from letheon.service.schemas import Limit, Name, Out, Page, Tenant
from letheon.verifier import MAX_INT

router = APIRouter(tags=["models"])

# Not models:read, by which a requester sees names only.
Reader = Annotated[Principal, Depends(allows("monitor:read"))]
Number = Annotated[int, Query(ge=0, le=MAX_INT)]
After = Annotated[str | None, Query(pattern="^[0-9]{1,15}$")]
_MOST_LISTED = 1000
_MEASURES = ("efficiency", "effectiveness", "consistency", "certifiability")


class VersionFigures(Out):
    """What a version and a point of its history have in common."""

    kind: Literal["registration", "erase", "retrain"]
    certificate: int | None = Field(description="Number of its certificate.")
    live_rows: int = Field(ge=0)
    rows_erased: int = Field(ge=0, description="Rows that left with it.")
    seconds: float = Field(ge=0, description="What the removal or retrain took.")
    measures: MeasuresOut | None = Field(description="Null for the registration.")


class VersionOut(VersionFigures):
    """One published state of a model."""

    number: int = Field(ge=0, description="0 is the registration.")
    state: Literal["registered", "published", "certified", "purged"]
    batch: str | None
    certificate_id: str | None
    address: str = Field(description="SHA-256 of the model's bytes, nonce included.")
    published_at: datetime
    certified_at: datetime | None
    purged_at: datetime | None
    method: str | None = Field(description="As certified; null for the registration.")
    parameters: dict[str, str | bool]
    guarantee: GuaranteeOut | None
    budget: BudgetOut | None
    monitor: Decision | None


class ChangeOut(Out):
    """One figure or fact of two versions."""

    what: str
    a: str | None
    b: str | None
    changed: bool


class ComparisonOut(Out):
    """Two versions of a model, the older one first."""

    model: str
    tenant: str
    a: VersionOut
    b: VersionOut
    changes: list[ChangeOut]
    rows_erased: int = Field(ge=0, description="Rows that left between them.")
    certificates: list[int] = Field(description="Numbers of the certificates between them.")
    same_parameters: bool | None = Field(
        description="Whether the method had the same settings; null where one is not certified."
    )


class ToleranceOut(Out):
    """A line that a figure should not pass."""

    measure: str
    value: float
    side: Literal["at most", "at least"]


class LimitOut(Out):
    """How a property is estimated without a retrain: ``factor x max(score, floor)``."""

    measure: str
    score: str
    factor: float
    floor: float
    miss: float = Field(
        ge=0, le=1, description="Share of streams in which the tolerance may be passed unseen."
    )


class PointOut(VersionFigures):
    """One version in the history of a model."""

    version: int = Field(ge=0)
    at: datetime
    guarantee: Literal["exact", "certified", "empirical"] | None
    spent: float | None
    budget: float | None
    decision: Decision | None


class HistoryOut(Out):
    """What is known of a model over time, oldest first."""

    model: str
    tenant: str
    is_watched: bool = Field(description="Whether a monitor is registered with the model.")
    metric: str | None = Field(description="The performance that the monitor looks at.")
    assumption: str = Field(
        description="What its decisions take for granted about requests to come; empty if nothing."
    )
    tolerances: list[ToleranceOut]
    limits: list[LimitOut]
    budget: BudgetOut | None
    next_retrain: ForecastOut | None
    items: list[PointOut]
    next: str | None = Field(description="Give it as `after` for older versions.")
    total: int = Field(ge=0)


@router.get("/api/v1/models/{model}/versions", summary="List versions")
def list_versions(
    who: Reader,
    model: Name,
    tenant: Tenant = None,
    after: After = None,
    limit: Limit = 50,
) -> Page[VersionOut]:
    """Return versions of a model, newest first, with what was certified about each."""
    info = read_model(who, model, tenant)
    versions = _read(who, info.name, info.tenant, after=after, limit=limit + 1)
    total = info.head.number + 1
    return Page.cut(versions, limit, key=lambda one: str(one.number), total=total)


@router.get("/api/v1/models/{model}/versions/{number}", summary="Show a version")
def show_version(
    who: Reader,
    model: Name,
    number: Annotated[int, Path(ge=0, le=MAX_INT)],
    tenant: Tenant = None,
) -> VersionOut:
    """Return one version."""
    info = read_model(who, model, tenant)
    versions = _read(who, info.name, info.tenant, numbers=[number])
    if not versions:
        raise Problem(
            404,
            "unknown-version",
            "no such version",
            "GET /api/v1/models/{model}/versions lists those that there are.",
        )
    return versions[0]


@router.get("/api/v1/models/{model}/compare", summary="Compare two versions")
def compare_versions(
    who: Reader, model: Name, a: Number, b: Number, tenant: Tenant = None
) -> ComparisonOut:
    """Return two versions side by side, what changed, and what was certified in between."""
    older, newer = (show_version(who, model, one, tenant) for one in sorted((a, b)))
    desk, whose = who.desk, who.tenant_for(tenant)
    between = desk.ledger.models.sequences(model, older.number, newer.number, tenant=whose)
    is_certified = older.method is not None and newer.method is not None
    numbers = Numbers(desk, who)
    return ComparisonOut(
        model=model,
        tenant=whose,
        a=older,
        b=newer,
        changes=_changes(older, newer),
        rows_erased=older.live_rows - newer.live_rows,
        certificates=[numbers.shown(one) or 0 for one in between[-_MOST_LISTED:]],
        same_parameters=_settings(older) == _settings(newer) if is_certified else None,
    )


@router.get("/api/v1/models/{model}/history", summary="Show measures over time")
def show_history(
    who: Reader,
    model: Name,
    tenant: Tenant = None,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 200,
) -> HistoryOut:
    """Return the four measures of each version with what they rest on, and what is tolerated.

    Figures are those of the certificates, which have few digits: finer ones would tell something
    of the rows that left.
    """
    versions = list_versions(who, model, tenant, after, limit)
    now = show_model(who, model, tenant)
    watch = who.ledger.models.watch(model, tenant=now.tenant)
    tolerances = {} if watch is None else watch.tolerances
    limits = {} if watch is None else watch.limits
    # Of an efficiency more is better; of all else, less.
    sides: dict[str, Any] = {"efficiency": "at least"}
    return HistoryOut(
        model=model,
        tenant=now.tenant,
        is_watched=watch is not None,
        metric=None if watch is None else watch.metric,
        assumption="" if watch is None else watch.assumption,
        tolerances=[
            ToleranceOut(measure=name, value=value, side=sides.get(name, "at most"))
            for name, value in tolerances.items()
        ],
        limits=[LimitOut(measure=name, **limit) for name, limit in limits.items()],
        budget=now.budget,
        next_retrain=now.next_retrain,
        items=[_to_point(version) for version in reversed(versions.items)],
        next=versions.next,
        total=versions.total or 0,
    )


def _to_point(version: VersionOut) -> PointOut:
    return PointOut.of(
        version,
        version=version.number,
        at=version.published_at,
        guarantee=None if version.guarantee is None else version.guarantee.kind,
        spent=None if version.budget is None else version.budget.spent,
        budget=None if version.budget is None else version.budget.budget,
        decision=version.monitor,
    )


def _read(
    who: Principal,
    model: str,
    tenant: str,
    *,
    after: str | None = None,
    **given: Any,
) -> list[VersionOut]:
    desk, before = who.desk, None if after is None else int(after)
    records = desk.ledger.models.history(model, tenant=tenant, before=before, **given)
    numbers = Numbers(desk, who)
    return [_describe(record, numbers) for record in records]


def _describe(record: Version, numbers: Numbers) -> VersionOut:
    state = "purged" if record.purged_at is not None else "certified"
    if record.purged_at is None and record.certificate_id is None:
        state = "registered" if record.kind == "registration" else "published"
    return VersionOut.of(
        record,
        state=state,
        certificate=numbers.shown(record.sequence),
        live_rows=record.live,
        rows_erased=record.n_erased,
        **_certified(record.facts),
    )


def _certified(facts: dict[str, Any] | None) -> dict[str, Any]:
    """Return what a certificate says about a version; nothing for the registration."""
    if facts is None:
        empty = ("method", "guarantee", "budget", "measures", "monitor")
        return dict.fromkeys(empty) | {"parameters": {}}
    return {
        "method": facts["method"]["name"],
        "parameters": facts["method"]["parameters"],
        "guarantee": guarantee_out(facts["guarantee"]),
        "budget": budget_out(facts["guarantee"]["accounting"]),
        "measures": measures_out(facts["measurements"]),
        "monitor": facts["monitor"]["decision"],
    }


def _settings(version: VersionOut) -> dict[str, str | bool]:
    """Return the settings of the method; a retrain names them as those of its estimator."""
    if version.method != "retrain":
        return version.parameters
    prefix = "estimator__"
    return {
        name.removeprefix(prefix): value
        for name, value in version.parameters.items()
        if name.startswith(prefix)
    }


def _changes(a: VersionOut, b: VersionOut) -> list[ChangeOut]:
    one, other = _lines(a), _lines(b)
    return [
        ChangeOut(
            what=name, a=one.get(name), b=other.get(name), changed=one.get(name) != other.get(name)
        )
        for name in one | other
    ]


def _lines(version: VersionOut) -> dict[str, str | None]:
    """Return what is compared, in the order in which it is shown."""
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
            "epsilon": _figure(version.guarantee.epsilon),
            "delta": _figure(version.guarantee.delta),
            "spent": _figure(version.budget.spent),
            "budget": _figure(version.budget.budget),
            "deletions since retrain": str(version.budget.deletions_since_retrain),
        }
    lines["monitor"] = version.monitor
    for name in _MEASURES if version.measures is not None else ():
        one = getattr(version.measures, name)
        lines[name] = None if one.value is None else f"{_figure(one.value)} ({one.basis})"
    settings = sorted(_settings(version).items())
    return lines | {f"parameter {name}": str(value) for name, value in settings}


def _figure(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"
