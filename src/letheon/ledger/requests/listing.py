"""Lists of requests: filters, order, pages and counts.

A page is read along an index, from the end of the previous page, so new requests do not shift the
pages. A request that exists while all pages are read is returned exactly once.
"""

import builtins
import functools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    func,
    not_,
    or_,
    select,
    tuple_,
    union_all,
)

from letheon.exceptions import UnknownRequestError
from letheon.ledger.core import Core
from letheon.ledger.db.cursor import decode_cursor, encode_cursor, require_limit
from letheon.ledger.db.events import select_in
from letheon.ledger.requests.states import FINAL, STATES
from letheon.ledger.schemas import LogEntry, Page, Request, RequestCounts, record_from, to_datetime
from letheon.ledger.tables import certificates, events, models, requests, versions

Order = Literal["due", "newest"]

# With this many digits a search matches few requests, so ids of batches are searched too.
_SHORT = 4
_PREFIX = re.compile(r"[0-9a-f]{1,64}")
_NUMBER = re.compile(r"#([0-9]{1,15})")
_KEYS: dict[str, tuple[Any, ...]] = {
    "due": (requests.c.last_day, requests.c.received_at, requests.c.id),
    "newest": (requests.c.received_at, requests.c.id),
}
# Without a hint, SQLite uses an index of one column, reads every row and sorts.
_HINTS = {
    "due": "INDEXED BY requests_by_due",
    "newest": "INDEXED BY requests_newest",
    "open": "INDEXED BY requests_open",
}


# Encrypted bodies and receipts may be large, and tags are internal.
_HIDDEN = ("sealed", "receipt", "key_tag", "body_tag", "nonce")
_SHOWN = tuple(column for column in requests.c if column.name not in _HIDDEN)

# Not a literal "false": that would remove the terms that a partial index needs.
_NO_REQUEST = requests.c.id == ""


@dataclass(frozen=True, kw_only=True)
class RequestFilter:
    """A filter for lists of requests; a request must match all attributes that are set.

    Attributes
    ----------
    tenant, model, regime, filed_by : str, optional
        Requests of this tenant, model or law, or requests filed with this token.
    states : sequence of str, default=()
        Requests in one of these states; all by default.
    overdue : bool, default=False
        Open requests whose due date has passed.
    due_before : date, optional
        Requests whose due date is before this day.
    search : str, optional
        The beginning of a request id, the beginning of a batch id (at least four digits), or
        ``#12`` for certificate 12.
    coarse : bool, default=False
        Whether to filter by what a requester may see. A requester must not learn which people are
        in a model. So a request has the state ``closed`` if it is final and its due date has
        passed, otherwise ``received``, and only request ids are searched.
    """

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
        """Raise `ValueError` if a state is unknown."""
        if isinstance(self.states, str):
            raise ValueError("states is a string; pass a list of states")
        _require_states("states", self.states)


def _require_states(name: str, states: Iterable[str]) -> None:
    unknown = [state for state in states if state not in STATES]
    if unknown:
        values = ", ".join(map(repr, unknown[:3]))
        raise ValueError(f"unknown {name}: {values}; expected one of: {', '.join(STATES)}")


class RequestLists:
    """Read access to stored requests: single requests, lists, pages and counts.

    Parameters
    ----------
    core : Core
        The ledger.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def get(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Return a request, or raise `UnknownRequestError`."""
        with self._core.database.reading() as conn:
            return find_request(conn, request_id, tenant=tenant)

    def find_by_key(self, keys: Collection[str], *, tenant: str) -> dict[str, Request]:
        """Return the requests of a tenant that were filed with these idempotency keys, by key."""
        tag = self._core.keys.compute_tag
        by_tag = {tag("key", tenant.encode(), key.encode()): key for key in keys}
        query = select(requests.c.key_tag, requests.c.id).where(requests.c.tenant == tenant)
        with self._core.database.reading() as conn:
            rows = select_in(conn, query, requests.c.key_tag, by_tag)
            known = find_requests(conn, [row.id for row in rows])
        return {by_tag[row.key_tag]: known[row.id] for row in rows}

    def version_numbers(self, selected: Sequence[Request]) -> dict[str, int]:
        """Return the number of the version that applied each request, by request id."""
        query = select(versions.c.number, versions.c.batch_id, versions.c.sequence)
        batch_ids = {request.batch for request in selected} - {None}
        sequences = {request.certificate for request in selected} - {None}
        with self._core.database.reading() as conn:
            rows = select_in(conn, query, versions.c.batch_id, batch_ids)
            rows += select_in(conn, query, versions.c.sequence, sequences)
        # A duplicate has the certificate of its owner, and no batch.
        numbers = {key: row.number for row in rows for key in (row.batch_id, row.sequence)}
        keys = {request.id: request.certificate or request.batch for request in selected}
        return {name: numbers[key] for name, key in keys.items() if key and key in numbers}

    def list(
        self, *, model: str | None = None, state: str | None = None, tenant: str | None = None
    ) -> tuple[Request, ...]:
        """Return all requests, or those of a model, state or tenant, earliest due date first.

        An unknown state raises `ValueError`.
        """
        if state is not None:
            _require_states("state", [state])
        with self._core.database.reading() as conn:
            return tuple(list_requests(conn, model=model, state=state, tenant=tenant))

    def find(
        self, *, order: Order = "due", after: str | None = None, limit: int = 50, **filters: Any
    ) -> Page[Request]:
        """Return a page of requests.

        A request that exists while all pages are read is returned once; if its due date is extended
        in the meantime, it may be returned again. `order` is "due" (earliest due date first) or
        "newest" (latest receipt first), `after` is the `next` of the previous page, `limit` is at
        most 500, and `filters` are attributes of `RequestFilter`. An invalid value, or an `after`
        from another list, raises `ValueError`.
        """
        require_limit(limit)
        name, request_filter = _list_name(order), RequestFilter(**filters)
        start = None if after is None else decode_cursor(self._core, name, after)
        with self._core.database.reading() as conn:
            keys, items = self._read_next(conn, request_filter, order, start, limit + 1)
            total = len(keys)
            if after is not None or total > limit:
                query = _select_along_index(select(func.count()), request_filter, "due")
                total = (
                    conn.scalar(query.where(_build_condition(self._core, conn, request_filter)))
                    or 0
                )
        more = encode_cursor(self._core, name, keys[limit - 1]) if len(keys) > limit else None
        return Page(tuple(items[:limit]), more, total)

    def iterate(
        self, *, order: Order = "due", chunk: int = 500, **filters: Any
    ) -> Iterator[Request]:
        """Yield all requests that `find` would return, and read `chunk` of them at a time.

        No transaction is open while the caller handles a request.
        """
        _list_name(order)
        start, request_filter = None, RequestFilter(**filters)
        while True:
            with self._core.database.reading() as conn:
                keys, items = self._read_next(conn, request_filter, order, start, chunk)
            yield from items
            if len(keys) < chunk:
                return
            start = keys[-1]

    def _read_next(
        self,
        conn: Connection,
        filters: RequestFilter,
        order: Order,
        start: tuple[Any, ...] | None,
        count: int,
    ) -> tuple["builtins.list[tuple[Any, ...]]", "builtins.list[Request]"]:
        """Return the sort keys of the next `count` requests after `start`, and the requests."""
        columns = _KEYS[order]
        query = _select_along_index(select(*columns), filters, order).where(
            _build_condition(self._core, conn, filters)
        )
        if start is not None:
            position = tuple_(*columns)
            query = query.where(position > start if order == "due" else position < start)
        direction = columns if order == "due" else [column.desc() for column in columns]
        keys = [tuple(row) for row in conn.execute(query.order_by(*direction).limit(count))]
        known = find_requests(conn, [key[-1] for key in keys])
        return keys, [known[key[-1]] for key in keys if key[-1] in known]

    def count(self, **filters: Any) -> RequestCounts:
        """Count requests by state, and overdue requests; `filters` are those of `find`."""
        today, request_filter = _current_day(self._core), RequestFilter(**filters)
        with self._core.database.reading() as conn:
            condition = _build_condition(self._core, conn, request_filter)
            counts = _count_by_state(conn, request_filter, condition)
            if request_filter.coarse:
                closed = _add_hint(select(func.count()), "due")
                n_closed = conn.scalar(closed.where(condition & _is_shown_closed(today))) or 0
                counts = {"received": sum(counts.values()) - n_closed, "closed": n_closed}
            late = _add_hint(select(func.count()), "open").where(condition & is_late(today))
            overdue = conn.scalar(late) or 0
        return RequestCounts({state: counts.get(state, 0) for state in STATES}, overdue)

    def count_due(self, **filters: Any) -> dict[date, int]:
        """Count open requests by due date, earliest first; `filters` are those of `find`."""
        request_filter = RequestFilter(**filters)
        is_open = (
            not_(_is_shown_closed(_current_day(self._core)))
            if request_filter.coarse
            else _is_open()
        )
        day = requests.c.last_day
        query = _add_hint(select(day, func.count()), "due" if request_filter.coarse else "open")
        with self._core.database.reading() as conn:
            query = query.where(_build_condition(self._core, conn, request_filter) & is_open)
            rows = conn.execute(query.group_by(day).order_by(day)).all()
        return {date.fromisoformat(row[0]): row[1] for row in rows}

    def count_by_model(self, *, tenant: str | None = None) -> dict[tuple[str, str], dict[str, int]]:
        """Count requests by (tenant, model) and state."""
        query = (
            select(models.c.tenant, models.c.name, requests.c.state, func.count().label("n"))
            .join(models, models.c.id == requests.c.model_id)
            .group_by(requests.c.model_id, requests.c.state, models.c.tenant, models.c.name)
        )
        if tenant is not None:
            query = query.where(models.c.tenant == tenant)
        counts: dict[tuple[str, str], dict[str, int]] = {}
        for row in self._core.database.read(query):
            counts.setdefault((row.tenant, row.name), {})[row.state] = row.n
        return counts

    def timeline(self, request_id: str, *, tenant: str | None = None) -> tuple[LogEntry, ...]:
        """Return the log entries of a request and of its batch, oldest first."""
        with self._core.database.reading() as conn:
            request = find_request(conn, request_id, tenant=tenant)
            names = [name for name in (request.id, request.batch) if name is not None]
            query = select(events).where(events.c.about.in_(names)).order_by(events.c.id)
            return tuple(map(LogEntry.from_row, conn.execute(query)))


def find_request(connection: Connection, request_id: str, *, tenant: str | None = None) -> Request:
    """Return one request.

    Raises
    ------
    UnknownRequestError
        The request does not exist, or belongs to another tenant; the text does not reveal which.
    """
    is_id = isinstance(request_id, str) and request_id.isalnum()
    known = find_requests(connection, [request_id]) if is_id else {}
    if request_id not in known or tenant not in (None, known[request_id].tenant):
        raise UnknownRequestError("unknown request id; `letheon request list` shows all requests")
    return known[request_id]


def find_requests(connection: Connection, request_ids: Collection[str]) -> dict[str, Request]:
    """Return a dictionary from id to request; unknown ids are left out."""
    rows = select_in(connection, _request_query(), requests.c.id, request_ids)
    return {row.id: _to_request(row) for row in rows}


def list_requests(
    connection: Connection,
    *,
    model: str | None = None,
    state: str | None = None,
    tenant: str | None = None,
) -> list[Request]:
    """Return all requests, or those of a model, state or tenant, earliest due date first."""
    filters = ((models.c.name, model), (requests.c.state, state), (requests.c.tenant, tenant))
    query = _request_query()
    query = query.where(*(column == value for column, value in filters if value is not None))
    return [_to_request(row) for row in connection.execute(query)]


def _list_name(order: str) -> str:
    """Return the name that cursors use for the list with this order.

    Raise `ValueError` for an unknown order.
    """
    if order not in _KEYS:
        raise ValueError(f"order={order!r} is unknown; expected one of: {', '.join(_KEYS)}")
    return f"requests/{order}"


def _count_by_state(
    connection: Connection, filters: RequestFilter, condition: ColumnElement[bool]
) -> dict[str, int]:
    query = select(requests.c.model_id, requests.c.state, func.count())
    if filters.filed_by is None:
        mine = None if filters == RequestFilter() else set(_find_model_ids(connection, filters))
    else:
        query, mine = _add_hint(query, "due").where(condition), None
    counts: dict[str, int] = {}
    # Reading the whole index of these two columns is faster than reading parts of it.
    for model, state, count in connection.execute(query.group_by("model_id", "state")):
        if mine is None or model in mine:
            counts[state] = counts.get(state, 0) + count
    return counts


def _select_along_index(query: Select[Any], filters: RequestFilter, order: Order) -> Select[Any]:
    """Make a query use the index of its order, unless a search matches few requests."""
    is_short = len(filters.search or "") < _SHORT and "#" not in (filters.search or "")
    if not is_short:
        return query.select_from(requests)
    return _add_hint(query, "open" if filters.overdue and order == "due" else order)


def _add_hint(query: Select[Any], index: str) -> Select[Any]:
    return query.select_from(requests).with_hint(requests, _HINTS[index], "sqlite")


def _build_condition(
    core: Core, connection: Connection, filters: RequestFilter
) -> ColumnElement[bool]:
    names = ("tenant", "regime", "filed_by")
    values = {name: getattr(filters, name) for name in names}
    parts = [requests.c[name] == value for name, value in values.items() if value is not None]
    if filters.model is not None:
        parts.append(requests.c.model_id.in_(_find_model_ids(connection, filters)))
    if filters.states and filters.coarse:
        closed = _is_shown_closed(_current_day(core))
        shown = {"received": not_(closed), "closed": closed}
        parts.append(
            or_(_NO_REQUEST, *(shown[state] for state in shown if state in filters.states))
        )
    elif filters.states:
        parts.append(requests.c.state.in_(list(dict.fromkeys(filters.states))))
    if filters.overdue:
        parts.append(is_late(_current_day(core)))
    if filters.due_before is not None:
        parts.append(requests.c.last_day < filters.due_before.isoformat())
    if filters.search:
        parts.append(_matches_search(connection, filters.search, own_only=filters.coarse))
    return and_(True, *parts)


def _find_model_ids(connection: Connection, filters: RequestFilter) -> list[int]:
    query = select(models.c.id)
    if filters.model is not None:
        query = query.where(models.c.name == filters.model)
    if filters.tenant is not None:
        query = query.where(models.c.tenant == filters.tenant)
    return list(connection.scalars(query))


def _is_shown_closed(today: date) -> ColumnElement[bool]:
    """Return the SQL condition that a requester sees a request as closed.

    A request is not shown as closed before its due date, because an early end would reveal whether
    the people are in the model.
    """
    return requests.c.state.in_(FINAL) & (requests.c.last_day < today.isoformat())


def _matches_search(connection: Connection, search: str, *, own_only: bool) -> ColumnElement[bool]:
    """Return the SQL condition that a request matches a search text; see `RequestFilter`.

    With `own_only`, only request ids are searched.
    """
    number = None if own_only else _NUMBER.fullmatch(search)
    if number is not None:
        signed = certificates.c.version_id == versions.c.id
        batch = select(versions.c.batch_id).join(certificates, signed)
        batch = batch.where(certificates.c.sequence == int(number[1]))
        # The requests of the batch, and their duplicates.
        mine, behind = requests.alias("mine"), requests.alias("behind")
        waits = select(behind.c.id).join(mine, mine.c.id == behind.c.duplicate_of)
        is_in = mine.c.batch_id == (connection.scalar(batch) or "")
        return requests.c.id.in_(union_all(select(mine.c.id).where(is_in), waits.where(is_in)))
    prefix = search.lower()
    if not _PREFIX.fullmatch(prefix):
        return _NO_REQUEST
    end = f"{prefix}g"  # sorts after every hexadecimal digit
    own = (requests.c.id >= prefix) & (requests.c.id < end)
    if own_only or len(prefix) < _SHORT:
        return own
    return or_(own, (requests.c.batch_id >= prefix) & (requests.c.batch_id < end))


def _is_open() -> ColumnElement[bool]:
    # The first term is that of one index, the second is part of the others.
    return requests.c.closed_at.is_(None) & requests.c.state.not_in(FINAL)


def is_late(today: date) -> ColumnElement[bool]:
    """Return the SQL condition that a request is open and overdue."""
    return (requests.c.last_day < today.isoformat()) & _is_open()


def _current_day(core: Core) -> date:
    return core.settings.calendar.day_of(to_datetime(core.clock()))


@functools.cache  # building it takes as long as running it
def _request_query() -> Select[Any]:
    origin = requests.alias("origin")
    signed = (
        select(certificates.c.sequence)
        .join(versions, versions.c.id == certificates.c.version_id)
        .where(versions.c.batch_id == func.coalesce(requests.c.batch_id, origin.c.batch_id))
        .scalar_subquery()
    )
    return (
        select(*_SHOWN, models.c.name.label("model"), signed.label("certificate"))
        .join(models, models.c.id == requests.c.model_id)
        .outerjoin(origin, origin.c.id == requests.c.duplicate_of)
        .order_by(requests.c.last_day, requests.c.received_at, requests.c.id)
    )


def _to_request(row: Row[Any]) -> Request:
    columns = row._mapping
    return record_from(
        Request,
        columns,
        due_on=date.fromisoformat(columns["last_day"]),
        batch=columns["batch_id"],
        is_extended=columns["extended_to"] is not None,
        hold_until=to_datetime(columns["hold_until"]),
        recipients=columns["recipients"] or 0,
    )
