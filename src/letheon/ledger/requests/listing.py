"""Lists of requests: filtered, in order, page by page, and counted.

A page is read along an index in the order of the list, from where the page before ended. So what
is filed meanwhile moves nothing: whoever reads page after page sees every request that was there
all the time once.
"""

import builtins
import functools
import re
from collections.abc import Collection, Iterator, Sequence
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


# Encrypted bodies and receipts may be large, and tags are internal.
_UNSEEN = ("sealed", "receipt", "key_tag", "body_tag", "nonce")
_SHOWN = tuple(column for column in requests.c if column.name not in _UNSEEN)

# Not a plain "false": that would swallow the terms which a partial index depends on.
_NO_REQUEST = requests.c.id == ""


@dataclass(frozen=True, kw_only=True)
class RequestFilter:
    """Which requests are wanted.

    Attributes
    ----------
    tenant, model, regime, filed_by : str, optional
        Those of this tenant, model, law, or filed by this token.
    states : sequence of str, default=()
        Those in one of these states; all by default.
    overdue : bool, default=False
        Open ones whose last day has passed at the seat.
    due_before : date, optional
        Those whose last day is before this one.
    search : str, optional
        The beginning of a request's id, that of a batch's id from four digits on, or ``#12`` for
        certificate 12.
    coarse : bool, default=False
        Whether states and search are those of a filer who may not know who is held: a request is
        ``closed`` if it is final and its last day has passed, else ``received``, and only ids of
        requests are searched.
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
        """Refuse states that there are not."""
        if isinstance(self.states, str):
            raise ValueError("states is one text; give a list of states")
        unknown = [state for state in self.states if state not in STATES]
        if unknown:
            raise ValueError(f"{len(unknown)} of the states are none; expected some of {STATES}")


class RequestLists:
    """Requests that are stored: one of them, some, all page by page, and how many there are.

    Parameters
    ----------
    core : Core
        The ledger.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def get(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Return a request as it is now, or raise `UnknownRequestError`."""
        with self._core.database.reading() as conn:
            return find_request(conn, request_id, tenant=tenant)

    def find_by_key(self, keys: Collection[str], *, tenant: str) -> dict[str, Request]:
        """Return the requests of a tenant that were filed with these idempotency keys."""
        tag = self._core.keys.compute_tag
        by_tag = {tag("key", tenant.encode(), key.encode()): key for key in keys}
        query = select(requests.c.key_tag, requests.c.id).where(requests.c.tenant == tenant)
        with self._core.database.reading() as conn:
            rows = select_in(conn, query, requests.c.key_tag, by_tag)
            known = find_requests(conn, [row.id for row in rows])
        return {by_tag[row.key_tag]: known[row.id] for row in rows}

    def version_numbers(self, some: Sequence[Request]) -> dict[str, int]:
        """Return the number of the version that forgot, by the id of the request."""
        query = select(versions.c.number, versions.c.batch_id, versions.c.sequence)
        batch_ids = {one.batch for one in some} - {None}
        sequences = {one.certificate for one in some} - {None}
        with self._core.database.reading() as conn:
            rows = select_in(conn, query, versions.c.batch_id, batch_ids)
            rows += select_in(conn, query, versions.c.sequence, sequences)
        # A duplicate has the certificate of the request that it waits for, and no batch.
        numbers = {key: row.number for row in rows for key in (row.batch_id, row.sequence)}
        keys = {one.id: one.certificate or one.batch for one in some}
        return {one: numbers[key] for one, key in keys.items() if key and key in numbers}

    def list(
        self, *, model: str | None = None, state: str | None = None, tenant: str | None = None
    ) -> tuple[Request, ...]:
        """Return all requests, earliest due first; `find` returns them page by page."""
        with self._core.database.reading() as conn:
            return tuple(list_requests(conn, model=model, state=state, tenant=tenant))

    def find(
        self, *, order: Order = "due", after: str | None = None, limit: int = 50, **wanted: Any
    ) -> Page[Request]:
        """Return one page of requests; quick however many there are.

        Requests that are there while all pages are read come once each, whatever is filed
        meanwhile. One whose last day is put off meanwhile may come again. `order` is the earliest
        last day ("due") or the latest receipt ("newest") first, `after` the `next` of the page
        before, `limit` at most 500, `wanted` the attributes of `RequestFilter`. A value that is
        not valid, or a cursor of another list, raises `ValueError`.
        """
        require_limit(limit)
        name, chosen = _list_name(order), RequestFilter(**wanted)
        start = None if after is None else decode_cursor(self._core, name, after)
        with self._core.database.reading() as conn:
            keys, items = self._read_next(conn, chosen, order, start, limit + 1)
            total = len(keys)
            if after is not None or total > limit:
                query = _select_along_index(select(func.count()), chosen, "due")
                total = conn.scalar(query.where(_build_condition(self._core, conn, chosen))) or 0
        more = encode_cursor(self._core, name, keys[limit - 1]) if len(keys) > limit else None
        return Page(tuple(items[:limit]), more, total)

    def iterate(
        self, *, order: Order = "due", chunk: int = 500, **wanted: Any
    ) -> Iterator[Request]:
        """Yield all requests that `find` would return, read `chunk` at a time.

        No transaction is open while the caller works.
        """
        _list_name(order)
        start, chosen = None, RequestFilter(**wanted)
        while True:
            with self._core.database.reading() as conn:
                keys, items = self._read_next(conn, chosen, order, start, chunk)
            yield from items
            if len(keys) < chunk:
                return
            start = keys[-1]

    def _read_next(
        self,
        conn: Connection,
        wanted: RequestFilter,
        order: Order,
        start: tuple[Any, ...] | None,
        count: int,
    ) -> tuple["builtins.list[tuple[Any, ...]]", "builtins.list[Request]"]:
        """Return the keys of the next requests, in the order of the list, and the requests."""
        columns = _KEYS[order]
        query = _select_along_index(select(*columns), wanted, order).where(
            _build_condition(self._core, conn, wanted)
        )
        if start is not None:
            here = tuple_(*columns)
            query = query.where(here > start if order == "due" else here < start)
        direction = columns if order == "due" else [column.desc() for column in columns]
        keys = [tuple(row) for row in conn.execute(query.order_by(*direction).limit(count))]
        known = find_requests(conn, [key[-1] for key in keys])
        return keys, [known[key[-1]] for key in keys if key[-1] in known]

    def count(self, **wanted: Any) -> RequestCounts:
        """Count requests by their state, and those that are late: of a `tenant`, `model`, filer."""
        today, chosen = _current_day(self._core), RequestFilter(**wanted)
        with self._core.database.reading() as conn:
            condition = _build_condition(self._core, conn, chosen)
            counts = _count_by_state(conn, chosen, condition)
            if chosen.coarse:
                closed = _add_hint(select(func.count()), "due")
                n_closed = conn.scalar(closed.where(condition & _is_shown_closed(today))) or 0
                counts = {"received": sum(counts.values()) - n_closed, "closed": n_closed}
            late = _add_hint(select(func.count()), "open").where(condition & is_late(today))
            overdue = conn.scalar(late) or 0
        return RequestCounts({state: counts.get(state, 0) for state in STATES}, overdue)

    def count_due(self, **wanted: Any) -> dict[date, int]:
        """Count the open requests by their last day, the earliest first."""
        chosen = RequestFilter(**wanted)
        is_open = not_(_is_shown_closed(_current_day(self._core))) if chosen.coarse else _is_open()
        day = requests.c.last_day
        query = _add_hint(select(day, func.count()), "due" if chosen.coarse else "open")
        with self._core.database.reading() as conn:
            query = query.where(_build_condition(self._core, conn, chosen) & is_open)
            rows = conn.execute(query.group_by(day).order_by(day)).all()
        return {date.fromisoformat(row[0]): row[1] for row in rows}

    def count_by_model(self, *, tenant: str | None = None) -> dict[tuple[str, str], dict[str, int]]:
        """Count requests by (tenant, model) and state, in one reading; of one tenant if given."""
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
        """Return what happened to a request and to its batch, oldest first."""
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
        There is none; or it is another tenant's, which the text does not tell.
    """
    is_id = isinstance(request_id, str) and request_id.isalnum()
    known = find_requests(connection, [request_id]) if is_id else {}
    if request_id not in known or tenant not in (None, known[request_id].tenant):
        raise UnknownRequestError("no request of that id; `letheon request list` shows all")
    return known[request_id]


def find_requests(connection: Connection, request_ids: Collection[str]) -> dict[str, Request]:
    """Return requests by their ids."""
    rows = select_in(connection, _request_query(), requests.c.id, request_ids)
    return {row.id: _to_request(row) for row in rows}


def list_requests(
    connection: Connection,
    *,
    model: str | None = None,
    state: str | None = None,
    tenant: str | None = None,
) -> list[Request]:
    """Return requests, earliest due first, of one model, state or tenant if given."""
    wanted = ((models.c.name, model), (requests.c.state, state), (requests.c.tenant, tenant))
    query = _request_query()
    query = query.where(*(column == value for column, value in wanted if value is not None))
    return [_to_request(row) for row in connection.execute(query)]


def _list_name(order: str) -> str:
    """Return the name of a list in its cursors, or raise `ValueError` for an unknown order."""
    if order not in _KEYS:
        raise ValueError(f"order={order!r}; expected one of {tuple(_KEYS)}")
    return f"requests/{order}"


def _count_by_state(
    connection: Connection, wanted: RequestFilter, condition: ColumnElement[bool]
) -> dict[str, int]:
    query = select(requests.c.model_id, requests.c.state, func.count())
    if wanted.filed_by is None:
        mine = None if wanted == RequestFilter() else set(_find_model_ids(connection, wanted))
    else:
        query, mine = _add_hint(query, "due").where(condition), None
    counts: dict[str, int] = {}
    # All of them: along the index of these two columns that is quicker than by parts of it.
    for model, state, count in connection.execute(query.group_by("model_id", "state")):
        if mine is None or model in mine:
            counts[state] = counts.get(state, 0) + count
    return counts


def _select_along_index(query: Select[Any], wanted: RequestFilter, order: Order) -> Select[Any]:
    """Read along the index of the order, unless a search leads to few requests."""
    is_short = len(wanted.search or "") < _SHORT and "#" not in (wanted.search or "")
    if not is_short:
        return query.select_from(requests)
    return _add_hint(query, "open" if wanted.overdue and order == "due" else order)


def _add_hint(query: Select[Any], index: str) -> Select[Any]:
    return query.select_from(requests).with_hint(requests, _HINTS[index], "sqlite")


def _build_condition(
    core: Core, connection: Connection, wanted: RequestFilter
) -> ColumnElement[bool]:
    names = ("tenant", "regime", "filed_by")
    values = {name: getattr(wanted, name) for name in names}
    parts = [requests.c[name] == value for name, value in values.items() if value is not None]
    if wanted.model is not None:
        parts.append(requests.c.model_id.in_(_find_model_ids(connection, wanted)))
    if wanted.states and wanted.coarse:
        closed = _is_shown_closed(_current_day(core))
        shown = {"received": not_(closed), "closed": closed}
        parts.append(or_(_NO_REQUEST, *(shown[state] for state in shown if state in wanted.states)))
    elif wanted.states:
        parts.append(requests.c.state.in_(list(dict.fromkeys(wanted.states))))
    if wanted.overdue:
        parts.append(is_late(_current_day(core)))
    if wanted.due_before is not None:
        parts.append(requests.c.last_day < wanted.due_before.isoformat())
    if wanted.search:
        parts.append(_matches_search(connection, wanted.search, own_only=wanted.coarse))
    return and_(True, *parts)


def _find_model_ids(connection: Connection, wanted: RequestFilter) -> list[int]:
    query = select(models.c.id)
    if wanted.model is not None:
        query = query.where(models.c.name == wanted.model)
    if wanted.tenant is not None:
        query = query.where(models.c.tenant == wanted.tenant)
    return list(connection.scalars(query))


def _is_shown_closed(today: date) -> ColumnElement[bool]:
    """Whether a filer who may not know who is held sees a request as closed.

    Its last day has passed: before it, how soon a request ends would tell.
    """
    return requests.c.state.in_(FINAL) & (requests.c.last_day < today.isoformat())


def _matches_search(connection: Connection, search: str, *, own_only: bool) -> ColumnElement[bool]:
    """Return whether a request is meant by the start of an id, or by ``#`` and a certificate."""
    number = None if own_only else _NUMBER.fullmatch(search)
    if number is not None:
        signed = certificates.c.version_id == versions.c.id
        batch = select(versions.c.batch_id).join(certificates, signed)
        batch = batch.where(certificates.c.sequence == int(number[1]))
        # Those of the batch, and their duplicates.
        mine, behind = requests.alias("mine"), requests.alias("behind")
        waits = select(behind.c.id).join(mine, mine.c.id == behind.c.duplicate_of)
        is_in = mine.c.batch_id == (connection.scalar(batch) or "")
        return requests.c.id.in_(union_all(select(mine.c.id).where(is_in), waits.where(is_in)))
    prefix = search.lower()
    if not _PREFIX.fullmatch(prefix):
        return _NO_REQUEST
    end = f"{prefix}g"  # after every digit that may follow
    own = (requests.c.id >= prefix) & (requests.c.id < end)
    if own_only or len(prefix) < _SHORT:
        return own
    return or_(own, (requests.c.batch_id >= prefix) & (requests.c.batch_id < end))


def _is_open() -> ColumnElement[bool]:
    # The first half is what an index is about; the second stands in the others.
    return requests.c.closed_at.is_(None) & requests.c.state.not_in(FINAL)


def is_late(today: date) -> ColumnElement[bool]:
    """Whether the last day of an open request has passed."""
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
