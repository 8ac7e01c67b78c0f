"""Lists of requests: filtered, in order, page by page, and counted.

A page is read along an index in the order of the list, from where the page before ended. So what
is filed meanwhile moves nothing: whoever reads page after page sees every request that was there
all the time once.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    Select,
    and_,
    func,
    not_,
    or_,
    select,
    tuple_,
    union_all,
)

from letheon.ledger.core import Core
from letheon.ledger.db.cursor import cursor, place_of, require_limit
from letheon.ledger.requests.records import Request, found_in_order
from letheon.ledger.requests.states import FINAL, STATES
from letheon.ledger.tables import certificates, models, requests, versions

__all__ = [
    "Order",
    "RequestCounts",
    "RequestFilter",
    "RequestPage",
    "count_by_day",
    "count_requests",
    "find_requests",
    "iter_requests",
]

Order = Literal["due", "newest"]

_CHUNK = 500
# Digits from which on a search finds few requests, so that batches are looked at too.
_SHORT = 4
_PREFIX = re.compile(r"[0-9a-f]{1,64}")
_NUMBER = re.compile(r"#([0-9]{1,15})")
_KEYS: dict[str, tuple[Any, ...]] = {
    "due": (requests.c.last_day, requests.c.received_at, requests.c.id),
    "newest": (requests.c.received_at, requests.c.id),
}
# SQLite would take an index of one column, look every row up, and sort them.
_HINTS = {
    "due": "INDEXED BY requests_by_due",
    "newest": "INDEXED BY requests_newest",
    "open": "INDEXED BY requests_open",
}


# Not a plain "false": that would swallow the terms which a partial index depends on.
_NOBODY = requests.c.id == ""


@dataclass(frozen=True)
class RequestPage:
    """Some requests of a list.

    Attributes
    ----------
    items : tuple of Request
        The requests, in the order of the list.
    next : str or None
        The cursor of the page after; None if this is the last one.
    total : int
        How many requests the whole list has.
    """

    items: tuple[Request, ...]
    next: str | None
    total: int


@dataclass(frozen=True)
class RequestCounts:
    """How many requests there are.

    Attributes
    ----------
    by_state : dict
        For every state, also those in which none is.
    overdue : int
        Open requests whose last day has passed.
    """

    by_state: dict[str, int]
    overdue: int

    @property
    def total(self) -> int:
        """All requests."""
        return sum(self.by_state.values())

    @property
    def n_open(self) -> int:
        """Requests whose people still wait for an answer."""
        return sum(count for state, count in self.by_state.items() if state not in FINAL)


@dataclass(frozen=True, kw_only=True)
class RequestFilter:
    """Which requests are wanted; see `Desk.find_requests`."""

    tenant: str | None = None
    model: str | None = None
    states: Sequence[str] = ()
    regime: str | None = None
    overdue: bool = False
    due_before: date | None = None
    search: str | None = None
    filed_by: str | None = None
    coarse: bool = False

    def __post_init__(self) -> None:
        """Refuse states that there are not."""
        if isinstance(self.states, str):
            raise ValueError("states is one text; give a list of states")
        unknown = [state for state in self.states if state not in STATES]
        if unknown:
            raise ValueError(f"{len(unknown)} of the states are none; expected some of {STATES}")


def find_requests(
    core: Core,
    wanted: RequestFilter,
    *,
    order: Order = "due",
    after: str | None = None,
    limit: int = 50,
) -> RequestPage:
    """Return one page of a list of requests."""
    require_limit(limit)
    name = _name(order)
    start = None if after is None else place_of(core, name, after)
    with core.database.reading() as connection:
        condition = _condition(core, connection, wanted)
        keys = _keys(connection, condition, wanted, order, start, limit + 1)
        items = found_in_order(connection, [key[-1] for key in keys[:limit]])
        total = len(keys)
        if after is not None or total > limit:
            count = _along(select(func.count()), wanted, "due").where(condition)
            total = connection.scalar(count) or 0
    more = cursor(core, name, keys[limit - 1]) if len(keys) > limit else None
    return RequestPage(tuple(items), more, total)


def iter_requests(
    core: Core, wanted: RequestFilter, *, order: Order = "due", chunk: int = _CHUNK
) -> Iterator[Request]:
    """Yield the whole list; no transaction is open while the caller works."""
    start: tuple[Any, ...] | None = None
    _name(order)
    while True:
        with core.database.reading() as connection:
            condition = _condition(core, connection, wanted)
            keys = _keys(connection, condition, wanted, order, start, chunk)
            items = found_in_order(connection, [key[-1] for key in keys])
        yield from items
        if len(keys) < chunk:
            return
        start = keys[-1]


def count_requests(core: Core, wanted: RequestFilter) -> RequestCounts:
    """Count requests by their state, and those that are late."""
    today = _today(core)
    with core.database.reading() as connection:
        condition = _condition(core, connection, wanted)
        counts = _by_state(connection, wanted, condition)
        if wanted.coarse:
            closed = _hinted(select(func.count()), "due").where(condition & _is_shown_closed(today))
            n_closed = connection.scalar(closed) or 0
            counts = {"received": sum(counts.values()) - n_closed, "closed": n_closed}
        late = condition & _is_late(today)
        overdue = connection.scalar(_hinted(select(func.count()), "open").where(late))
    return RequestCounts({state: counts.get(state, 0) for state in STATES}, overdue or 0)


def _by_state(
    connection: Connection, wanted: RequestFilter, condition: ColumnElement[bool]
) -> dict[str, int]:
    query = select(requests.c.model_id, requests.c.state, func.count())
    if wanted.filed_by is None:
        mine = None if wanted == RequestFilter() else set(_models(connection, wanted))
    else:
        query, mine = _hinted(query, "due").where(condition), None
    counts: dict[str, int] = {}
    # All of them: along the index of these two columns that is quicker than by parts of it.
    for model, state, count in connection.execute(query.group_by("model_id", "state")):
        if mine is None or model in mine:
            counts[state] = counts.get(state, 0) + count
    return counts


def count_by_day(core: Core, wanted: RequestFilter) -> dict[date, int]:
    """Count open requests by their last day, the earliest first."""
    with core.database.reading() as connection:
        is_open = not_(_is_shown_closed(_today(core))) if wanted.coarse else _is_open()
        condition = _condition(core, connection, wanted) & is_open
        index = "due" if wanted.coarse else "open"
        query = _hinted(select(requests.c.last_day, func.count()), index).where(condition)
        rows = connection.execute(query.group_by(requests.c.last_day).order_by(requests.c.last_day))
        return {date.fromisoformat(row[0]): row[1] for row in rows}


def _name(order: str) -> str:
    if order not in _KEYS:
        raise ValueError(f"order={order!r}; expected one of {tuple(_KEYS)}")
    return f"requests/{order}"


def _keys(
    connection: Connection,
    condition: ColumnElement[bool],
    wanted: RequestFilter,
    order: Order,
    start: tuple[Any, ...] | None,
    count: int,
) -> list[tuple[Any, ...]]:
    """Return the keys of the next requests, in the order of the list."""
    columns = _KEYS[order]
    query = _along(select(*columns), wanted, order).where(condition)
    if start is not None:
        here = tuple_(*columns)
        query = query.where(here > start if order == "due" else here < start)
    direction = columns if order == "due" else [column.desc() for column in columns]
    return [tuple(row) for row in connection.execute(query.order_by(*direction).limit(count))]


def _along(query: Select[Any], wanted: RequestFilter, order: Order) -> Select[Any]:
    """Read along the index of the order, unless a search leads to few requests."""
    is_short = len(wanted.search or "") < _SHORT and "#" not in (wanted.search or "")
    if not is_short:
        return query.select_from(requests)
    return _hinted(query, "open" if wanted.overdue and order == "due" else order)


def _hinted(query: Select[Any], index: str) -> Select[Any]:
    return query.select_from(requests).with_hint(requests, _HINTS[index], "sqlite")


def _condition(core: Core, connection: Connection, wanted: RequestFilter) -> ColumnElement[bool]:
    parts: list[ColumnElement[bool]] = []
    for column, value in (
        (requests.c.tenant, wanted.tenant),
        (requests.c.regime, wanted.regime),
        (requests.c.filed_by, wanted.filed_by),
    ):
        if value is not None:
            parts.append(column == value)
    if wanted.model is not None:
        parts.append(requests.c.model_id.in_(_models(connection, wanted)))
    if wanted.states and wanted.coarse:
        parts.append(_in_coarse_states(wanted.states, _today(core)))
    elif wanted.states:
        parts.append(requests.c.state.in_(list(dict.fromkeys(wanted.states))))
    if wanted.overdue:
        parts.append(_is_late(_today(core)))
    if wanted.due_before is not None:
        parts.append(requests.c.last_day < wanted.due_before.isoformat())
    if wanted.search:
        parts.append(_named(connection, wanted.search, own_only=wanted.coarse))
    return and_(True, *parts)


def _models(connection: Connection, wanted: RequestFilter) -> list[int]:
    query = select(models.c.id)
    if wanted.model is not None:
        query = query.where(models.c.name == wanted.model)
    if wanted.tenant is not None:
        query = query.where(models.c.tenant == wanted.tenant)
    return list(connection.scalars(query))


def _in_coarse_states(states: Sequence[str], today: date) -> ColumnElement[bool]:
    closed = _is_shown_closed(today)
    chosen = {"received": not_(closed), "closed": closed}
    return or_(_NOBODY, *(chosen[state] for state in chosen if state in states))


def _is_shown_closed(today: date) -> ColumnElement[bool]:
    """Whether a filer who may not know who is held sees a request as closed.

    Its last day has passed: before it, how soon a request ends would tell.
    """
    return requests.c.state.in_(FINAL) & (requests.c.last_day < today.isoformat())


def _named(connection: Connection, search: str, *, own_only: bool) -> ColumnElement[bool]:
    """Return whether a request is meant by the start of an id, or by ``#`` and a certificate."""
    number = None if own_only else _NUMBER.fullmatch(search)
    if number is not None:
        query = select(versions.c.batch_id).join(
            certificates, certificates.c.version_id == versions.c.id
        )
        batch = connection.scalar(query.where(certificates.c.sequence == int(number[1])))
        if batch is None:
            return _NOBODY
        return requests.c.id.in_(_covered(batch))
    prefix = search.lower()
    if not _PREFIX.fullmatch(prefix):
        return _NOBODY
    end = f"{prefix}g"  # after every digit that may follow
    own = (requests.c.id >= prefix) & (requests.c.id < end)
    if own_only or len(prefix) < _SHORT:
        return own
    return or_(own, (requests.c.batch_id >= prefix) & (requests.c.batch_id < end))


def _covered(batch: str) -> CompoundSelect[Any]:
    """Select the requests of a batch, and their duplicates."""
    mine, behind = requests.alias("mine"), requests.alias("behind")
    waits = select(behind.c.id).join(mine, mine.c.id == behind.c.duplicate_of)
    wanted = mine.c.batch_id == batch
    return union_all(select(mine.c.id).where(wanted), waits.where(wanted))


def _is_open() -> ColumnElement[bool]:
    # The first half is what an index is about; the second stands in the others.
    return requests.c.closed_at.is_(None) & requests.c.state.not_in(FINAL)


def _is_late(today: date) -> ColumnElement[bool]:
    return (requests.c.last_day < today.isoformat()) & _is_open()


def _today(core: Core) -> date:
    return core.settings.calendar.day_of(datetime.fromtimestamp(core.clock(), UTC))
