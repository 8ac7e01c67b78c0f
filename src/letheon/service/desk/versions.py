"""Versions of a model, and two of them side by side."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from letheon.ledger import ModelInfo
from letheon.ledger.models.history import VersionRecord, sequences_between, version_records
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._guarantees import (
    BudgetOut,
    GuaranteeOut,
    MeasuresOut,
    budget_out,
    guarantee_out,
    measures_out,
)
from letheon.service._numbers import Numbers
from letheon.service._problems import Problem
from letheon.service._schemas import Out, Page
from letheon.service.desk.models import Decision, model_seen

__all__ = [
    "ChangeOut",
    "ComparisonOut",
    "VersionOut",
    "compare",
    "find_version",
    "page_of_versions",
    "version_out",
]

State = Literal["registered", "published", "certified", "purged"]
_MOST_LISTED = 1000
_MEASURES = ("efficiency", "effectiveness", "consistency", "certifiability")


class VersionOut(Out):
    """One published state of a model."""

    number: int = Field(ge=0, description="0 is the registration.")
    kind: Literal["registration", "erase", "retrain"]
    state: State
    batch: str | None
    certificate: int | None = Field(description="Number of its certificate.")
    certificate_id: str | None
    address: str = Field(description="SHA-256 of the model's bytes, nonce included.")
    live_rows: int = Field(ge=0)
    rows_erased: int = Field(ge=0, description="Rows that left with it.")
    seconds: float = Field(ge=0, description="What the removal or retrain took.")
    published_at: datetime
    certified_at: datetime | None
    purged_at: datetime | None
    method: str | None = Field(description="As certified; null for the registration.")
    parameters: dict[str, str | bool]
    guarantee: GuaranteeOut | None
    budget: BudgetOut | None
    measures: MeasuresOut | None
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


def page_of_versions(
    context: Context,
    who: Principal,
    model: str,
    *,
    tenant: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[VersionOut]:
    """Return versions of a model, newest first."""
    info = model_seen(context, who, model, tenant=tenant)
    found = version_records(
        context.ledger,
        info.name,
        tenant=info.tenant,
        before=None if after is None else int(after),
        limit=limit + 1,
    )
    numbers = Numbers(context, who)
    items = [version_out(one, numbers) for one in found[:limit]]
    more = len(found) > limit
    return Page(
        items=items, next=str(items[-1].number) if more else None, total=info.head.number + 1
    )


def find_version(
    context: Context, who: Principal, model: str, number: int, *, tenant: str | None = None
) -> VersionOut:
    """Return one version."""
    info = model_seen(context, who, model, tenant=tenant)
    return _found(context, info, number, Numbers(context, who))


def _found(context: Context, info: ModelInfo, number: int, numbers: Numbers) -> VersionOut:
    found = version_records(context.ledger, info.name, tenant=info.tenant, numbers=[number])
    if not found:
        raise Problem(
            404,
            "unknown-version",
            "no such version",
            "GET /api/v1/models/{model}/versions lists those that there are.",
        )
    return version_out(found[0], numbers)


def compare(
    context: Context, who: Principal, model: str, a: int, b: int, *, tenant: str | None = None
) -> ComparisonOut:
    """Return two versions side by side, whichever is given first."""
    info = model_seen(context, who, model, tenant=tenant)
    numbers = Numbers(context, who)
    older, newer = (_found(context, info, number, numbers) for number in sorted((a, b)))
    between = sequences_between(
        context.ledger, info.name, older.number, newer.number, tenant=info.tenant
    )
    both = older.method is not None and newer.method is not None
    return ComparisonOut(
        model=info.name,
        tenant=info.tenant,
        a=older,
        b=newer,
        changes=_changes(older, newer),
        rows_erased=older.live_rows - newer.live_rows,
        certificates=[numbers.shown(one) or 0 for one in between[-_MOST_LISTED:]],
        same_parameters=_own_parameters(older) == _own_parameters(newer) if both else None,
    )


def _own_parameters(version: VersionOut) -> dict[str, str | bool]:
    """Return the settings of the method; a retrain names them as those of its estimator."""
    if version.method != "retrain":
        return version.parameters
    prefix = "estimator__"
    return {
        name.removeprefix(prefix): value
        for name, value in version.parameters.items()
        if name.startswith(prefix)
    }


def version_out(record: VersionRecord, numbers: Numbers) -> VersionOut:
    """Return what is shown of a version."""
    info, facts = record.info, record.facts
    return VersionOut(
        number=info.number,
        kind=record.kind,
        state=_state(record),
        batch=record.batch,
        certificate=numbers.shown(info.sequence),
        certificate_id=record.certificate,
        address=info.address,
        live_rows=info.live,
        rows_erased=record.n_erased,
        seconds=record.seconds,
        published_at=info.published_at,
        certified_at=info.certified_at,
        purged_at=info.purged_at,
        method=None if facts is None else facts["method"]["name"],
        parameters={} if facts is None else facts["method"]["parameters"],
        guarantee=None if facts is None else guarantee_out(facts["guarantee"]),
        budget=None if facts is None else budget_out(facts["guarantee"]["accounting"]),
        measures=None if facts is None else measures_out(facts["measurements"]),
        monitor=None if facts is None else facts["monitor"]["decision"],
    )


def _state(record: VersionRecord) -> State:
    if record.info.purged_at is not None:
        return "purged"
    if record.kind == "registration":
        return "registered"
    return "published" if record.certificate is None else "certified"


def _changes(a: VersionOut, b: VersionOut) -> list[ChangeOut]:
    one, other = dict(_lines(a)), dict(_lines(b))
    names = list(dict.fromkeys([*one, *other]))
    return [
        ChangeOut(
            what=name, a=one.get(name), b=other.get(name), changed=one.get(name) != other.get(name)
        )
        for name in names
    ]


def _lines(version: VersionOut) -> list[tuple[str, str | None]]:
    """Return what is compared, in the order in which it is shown."""
    return [
        ("address", version.address),
        ("kind", version.kind),
        ("live rows", str(version.live_rows)),
        ("rows erased", str(version.rows_erased)),
        ("seconds", f"{version.seconds:.3g}"),
        ("method", version.method),
        *_claim_lines(version.guarantee, version.budget),
        ("monitor", version.monitor),
        *_measure_lines(version.measures),
        *((f"parameter {name}", str(value)) for name, value in _settings(version)),
    ]


def _claim_lines(
    guarantee: GuaranteeOut | None, budget: BudgetOut | None
) -> list[tuple[str, str | None]]:
    if guarantee is None or budget is None:
        return []
    return [
        ("guarantee", guarantee.kind),
        ("epsilon", _shown(guarantee.epsilon)),
        ("delta", _shown(guarantee.delta)),
        ("spent", _shown(budget.spent)),
        ("budget", _shown(budget.budget)),
        ("deletions since retrain", str(budget.deletions_since_retrain)),
    ]


def _measure_lines(measures: MeasuresOut | None) -> list[tuple[str, str | None]]:
    found = [] if measures is None else [(n, getattr(measures, n)) for n in _MEASURES]
    return [
        (name, None if one.value is None else f"{_shown(one.value)} ({one.basis})")
        for name, one in found
    ]


def _settings(version: VersionOut) -> list[tuple[str, Any]]:
    return sorted(_own_parameters(version).items())


def _shown(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"
