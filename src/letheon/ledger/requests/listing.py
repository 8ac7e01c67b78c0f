"""Lists of requests: filtered, in order, page by page, and counted.

A page is read along an index in the order of the list, from where the page before ended. So what
is filed meanwhile moves nothing: whoever reads page after page sees every request that was there
all the time once.
"""

import functools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
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
from letheon.ledger.db.bulk import chunked
from letheon.ledger.db.log import log_entry
from letheon.ledger.requests.calendar import Calendar
from letheon.ledger.requests.deadlines import confirm_by
from letheon.ledger.requests.states import FINAL, STATES
from letheon.ledger.schemas import LogEntry, Request, RequestCounts, moment
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
_NOBODY = requests.c.id == ""


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


def list_name(order: str) -> str:
    """Return the name of a list in its cursors, or raise `ValueError` for an unknown order."""
    if order not in _KEYS:
        raise ValueError(f"order={order!r}; expected one of {tuple(_KEYS)}")
    return f"requests/{order}"


def keys_after(
    core: Core,
    connection: Connection,
    wanted: RequestFilter,
    order: Order,
    start: tuple[Any, ...] | None,
    count: int,
) -> list[tuple[Any, ...]]:
    """Return the keys of the next requests, in the order of the list; the id comes last."""
    columns = _KEYS[order]
    query = _along(select(*columns), wanted, order).where(_condition(core, connection, wanted))
    if start is not None:
        here = tuple_(*columns)
        query = query.where(here > start if order == "due" else here < start)
    direction = columns if order == "due" else [column.desc() for column in columns]
    return [tuple(row) for row in connection.execute(query.order_by(*direction).limit(count))]


def count(core: Core, connection: Connection, wanted: RequestFilter) -> int:
    """Count the requests of a list."""
    query = _along(select(func.count()), wanted, "due")
    return connection.scalar(query.where(_condition(core, connection, wanted))) or 0


def count_by_state(core: Core, connection: Connection, wanted: RequestFilter) -> RequestCounts:
    """Count requests by their state, and those that are late."""
    today = _today(core)
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


def count_by_day(core: Core, connection: Connection, wanted: RequestFilter) -> dict[date, int]:
    """Count open requests by their last day, the earliest first."""
    is_open = not_(_is_shown_closed(_today(core))) if wanted.coarse else _is_open()
    condition = _condition(core, connection, wanted) & is_open
    index = "due" if wanted.coarse else "open"
    query = _hinted(select(requests.c.last_day, func.count()), index).where(condition)
    rows = connection.execute(query.group_by(requests.c.last_day).order_by(requests.c.last_day))
    return {date.fromisoformat(row[0]): row[1] for row in rows}


def count_by_model(
    connection: Connection, tenant: str | None
) -> dict[tuple[str, str], dict[str, int]]:
    """Count requests by (tenant, model) and state; of one tenant if given."""
    query = (
        select(models.c.tenant, models.c.name, requests.c.state, func.count().label("n"))
        .join(models, models.c.id == requests.c.model_id)
        .group_by(requests.c.model_id, requests.c.state, models.c.tenant, models.c.name)
    )
    if tenant is not None:
        query = query.where(models.c.tenant == tenant)
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for row in connection.execute(query):
        counts.setdefault((row.tenant, row.name), {})[row.state] = row.n
    return counts


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


def find_request(connection: Connection, request_id: str, *, tenant: str | None = None) -> Request:
    """Return one request.

    Raises
    ------
    UnknownRequestError
        There is none; or it is another tenant's, which the text does not tell.
    """
    row = None
    if isinstance(request_id, str) and request_id.isalnum():
        query = _request_query().where(requests.c.id == request_id)
        row = connection.execute(_of_tenant(query, tenant)).first()
    if row is None:
        raise UnknownRequestError("no request of that id; `letheon request list` shows all")
    return _request(row)


def find_requests(connection: Connection, request_ids: Collection[str]) -> dict[str, Request]:
    """Return requests by their ids."""
    known: dict[str, Request] = {}
    for some in chunked(request_ids):
        rows = connection.execute(_request_query().where(requests.c.id.in_(some)))
        known.update((row.id, _request(row)) for row in rows)
    return known


def ids_by_key_tag(
    connection: Connection, tenant: str, key_tags: Collection[str]
) -> dict[str, str]:
    """Return the ids of a tenant's requests by the tags of their idempotency keys."""
    known: dict[str, str] = {}
    for some in chunked(key_tags):
        query = select(requests.c.key_tag, requests.c.id).where(requests.c.tenant == tenant)
        rows = connection.execute(query.where(requests.c.key_tag.in_(some)))
        known.update((row.key_tag, row.id) for row in rows)
    return known


def version_numbers(connection: Connection, some: Sequence[Request]) -> dict[str, int]:
    """Return the number of the version that forgot, by the id of the request."""
    numbers: dict[str, int] = {}
    for part in chunked(some):
        batch_ids = {one.batch for one in part if one.batch is not None}
        sequences = {one.certificate for one in part if one.certificate is not None}
        # A duplicate has the certificate of the request that it waits for, and no batch.
        those = or_(versions.c.batch_id.in_(batch_ids), versions.c.sequence.in_(sequences))
        columns = select(versions.c.number, versions.c.batch_id, versions.c.sequence)
        rows = connection.execute(columns.where(those)).all()
        by_batch = {row.batch_id: row.number for row in rows}
        by_sequence = {row.sequence: row.number for row in rows}
        for one in part:
            number = by_sequence.get(one.certificate, by_batch.get(one.batch))
            if number is not None:
                numbers[one.id] = number
    return numbers


def requests_in_order(connection: Connection, request_ids: Sequence[str]) -> list[Request]:
    """Return requests in the order in which their ids are given."""
    known = find_requests(connection, request_ids)
    return [known[one] for one in request_ids if one in known]


def list_requests(
    connection: Connection,
    *,
    model: str | None = None,
    state: str | None = None,
    tenant: str | None = None,
) -> list[Request]:
    """Return requests, earliest due first, of one model, state or tenant if given."""
    query = _of_tenant(_request_query(), tenant)
    if model is not None:
        query = query.where(models.c.name == model)
    if state is not None:
        query = query.where(requests.c.state == state)
    return [_request(row) for row in connection.execute(query)]


def unconfirmed(connection: Connection, now: datetime, calendar: Calendar) -> list[Request]:
    """Return requests whose receipt must be confirmed today, or had to be, and nothing was done.

    That is CCPA's rule (10 business days). What was verified was answered.
    """
    waiting = list_requests(connection, state="received")
    days = {one.id: confirm_by(one.regime, one.received_at, calendar) for one in waiting}
    today = calendar.day_of(now)
    return [one for one in waiting if (day := days[one.id]) is not None and day <= today]


def timeline(
    connection: Connection, request_id: str, *, tenant: str | None = None
) -> list[LogEntry]:
    """Return what happened to a request and to its batch, in order."""
    request = find_request(connection, request_id, tenant=tenant)
    names = [request.id] if request.batch is None else [request.id, request.batch]
    query = select(events).where(events.c.about.in_(names)).order_by(events.c.id)
    return [log_entry(row) for row in connection.execute(query)]


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


def _of_tenant(query: Select[Any], tenant: str | None) -> Select[Any]:
    return query if tenant is None else query.where(requests.c.tenant == tenant)


def _request(row: Row[Any]) -> Request:
    return Request(
        id=row.id,
        model=row.model,
        tenant=row.tenant,
        state=row.state,
        regime=row.regime,
        ground=row.ground,
        received_at=datetime.fromtimestamp(row.received_at, UTC),
        due_on=date.fromisoformat(row.extended_to or row.due_on),
        n_ids=row.n_ids,
        n_rows=row.n_rows,
        batch=row.batch_id,
        certificate=row.certificate,
        tries=row.tries,
        reason=row.reason,
        duplicate_of=row.duplicate_of,
        filed_by=row.filed_by,
        verified_by=row.verified_by,
        is_extended=row.extended_to is not None,
        hold_until=moment(row.hold_until),
        recipients=row.recipients or 0,
        closed_at=moment(row.closed_at),
    )
