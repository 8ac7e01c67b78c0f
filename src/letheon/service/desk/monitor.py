"""The measures of a model over time, with what is tolerated."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from letheon.ledger.models.history import VersionRecord, version_records
from letheon.ledger.models.watch import Watch, watch_of
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._guarantees import BudgetOut, ForecastOut, MeasuresOut
from letheon.service._numbers import Numbers
from letheon.service._schemas import Out
from letheon.service.desk.models import Decision, find_model, model_seen
from letheon.service.desk.versions import version_out

__all__ = ["HistoryOut", "LimitOut", "PointOut", "ToleranceOut", "history"]

# Of an efficiency more is better; of all else, less.
_AT_LEAST = ("efficiency",)


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


class PointOut(Out):
    """One version in the history of a model."""

    version: int = Field(ge=0)
    kind: Literal["registration", "erase", "retrain"]
    at: datetime
    certificate: int | None
    live_rows: int = Field(ge=0)
    rows_erased: int = Field(ge=0)
    seconds: float = Field(ge=0)
    guarantee: Literal["exact", "certified", "empirical"] | None
    spent: float | None
    budget: float | None
    decision: Decision | None
    measures: MeasuresOut | None = Field(description="Null for the registration.")


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


def history(
    context: Context,
    who: Principal,
    model: str,
    *,
    tenant: str | None = None,
    after: str | None = None,
    limit: int = 200,
) -> HistoryOut:
    """Return the newest versions of a model with their measures, oldest first.

    Figures are those of the certificates, which have few digits: finer ones would tell something
    of the rows that left.
    """
    info = model_seen(context, who, model, tenant=tenant)
    found = version_records(
        context.ledger,
        info.name,
        tenant=info.tenant,
        before=None if after is None else int(after),
        limit=limit + 1,
    )
    shown, numbers = found[:limit], Numbers(context, who)
    now = find_model(context, who, info.name, tenant=info.tenant)
    watch = watch_of(context.ledger, info.name, tenant=info.tenant)
    return HistoryOut(
        model=info.name,
        tenant=info.tenant,
        is_watched=watch is not None,
        metric=None if watch is None else watch.metric,
        assumption="" if watch is None else watch.assumption,
        tolerances=_tolerances(watch),
        limits=_limits(watch),
        budget=now.budget,
        next_retrain=now.next_retrain,
        items=[_point(record, numbers) for record in reversed(shown)],
        next=str(shown[-1].info.number) if len(found) > limit else None,
        total=info.head.number + 1,
    )


def _point(record: VersionRecord, numbers: Numbers) -> PointOut:
    version = version_out(record, numbers)
    return PointOut(
        version=version.number,
        kind=version.kind,
        at=version.published_at,
        certificate=version.certificate,
        live_rows=version.live_rows,
        rows_erased=version.rows_erased,
        seconds=version.seconds,
        guarantee=None if version.guarantee is None else version.guarantee.kind,
        spent=None if version.budget is None else version.budget.spent,
        budget=None if version.budget is None else version.budget.budget,
        decision=version.monitor,
        measures=version.measures,
    )


def _tolerances(watch: Watch | None) -> list[ToleranceOut]:
    return [
        ToleranceOut(measure=name, value=value, side="at least" if name in _AT_LEAST else "at most")
        for name, value in ({} if watch is None else watch.tolerances).items()
    ]


def _limits(watch: Watch | None) -> list[LimitOut]:
    return [
        LimitOut(measure=name, **limit)
        for name, limit in ({} if watch is None else watch.limits).items()
    ]
