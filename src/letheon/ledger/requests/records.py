"""Requests as their users see them: no id of a person, no key, no body."""

import functools
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from letheon.exceptions import UnknownRequestError
from letheon.ledger.requests.calendar import Calendar
from letheon.ledger.requests.deadlines import confirm_by
from letheon.ledger.requests.states import FINAL
from letheon.ledger.tables import certificates, events, models, requests, versions

__all__ = [
    "Entry",
    "Request",
    "found",
    "found_all",
    "found_in_order",
    "listed",
    "timeline",
    "unconfirmed",
]


# Sealed bodies and receipts may be large, and tags are nobody's business.
_UNSEEN = ("sealed", "receipt", "key_tag", "body_tag", "nonce")
_SHOWN = tuple(column for column in requests.c if column.name not in _UNSEEN)


@dataclass(frozen=True)
class Request:
    """One wish that people be erased from one model.

    Attributes
    ----------
    id : str
        Random, 32 hexadecimal digits.
    model, tenant : str
        From what, and whose it is.
    state : str
        ``received``, ``verified``, ``queued``, ``applying``, ``applied``, ``certified``,
        ``purging``, ``purged``, ``closed``; or ``rejected``, ``cancelled``, ``duplicate``,
        ``on_hold``, ``retry_wait``, ``stuck``.
    regime, ground : str
        Which law, and which of its grounds.
    received_at : datetime
        When the clock began to run.
    due_on : date
        Last day; the extended one after an extension.
    n_ids, n_rows : int
        How many people it names, and how much of the model is theirs.
    batch : str or None
        The batch that applied it.
    certificate : int or None
        Sequence number of the certificate.
    tries : int
        Failed attempts so far.
    reason : str or None
        Why it is in a side state, as a code.
    duplicate_of : str or None
        The request that erases these people.
    filed_by, verified_by : str or None
        Opaque ids of who filed it and who vouched for the identity; None where nobody was named.
    is_extended : bool
        Whether its last day was put off.
    hold_until : datetime or None
        When a hold ends.
    recipients : int
        How many recipients of the data were told of the erasure.
    closed_at : datetime or None
        When it was answered, rejected or cancelled.
    is_new : bool
        Whether the call that returned it has recorded it; False for a repeat, and in lists.
    """

    id: str
    model: str
    tenant: str
    state: str
    regime: str
    ground: str
    received_at: datetime
    due_on: date
    n_ids: int
    n_rows: int
    batch: str | None
    certificate: int | None
    tries: int
    reason: str | None
    duplicate_of: str | None = None
    filed_by: str | None = None
    verified_by: str | None = None
    is_extended: bool = False
    hold_until: datetime | None = None
    recipients: int = 0
    closed_at: datetime | None = None
    is_new: bool = field(default=False, compare=False, repr=False)

    @property
    def is_open(self) -> bool:
        """Whether the person still waits for an answer."""
        return self.state not in FINAL

    def days_left(self, now: datetime, calendar: Calendar) -> int:
        """Return the days until the last one, at the seat; negative when it has passed."""
        return (self.due_on - calendar.day_of(now)).days


@dataclass(frozen=True)
class Entry:
    """One line of a timeline.

    Attributes
    ----------
    at : datetime
        When.
    kind : str
        What happened.
    details : dict
        Codes, counts and opaque ids.
    log_index : int or None
        Place in the log; None until the next checkpoint.
    """

    at: datetime
    kind: str
    details: dict[str, Any]
    log_index: int | None


def found(connection: Connection, request_id: str, *, tenant: str | None = None) -> Request:
    """Return one request.

    Raises
    ------
    UnknownRequestError
        There is none; or it is another tenant's, which the text does not tell.
    """
    row = None
    if isinstance(request_id, str) and request_id.isalnum():
        query = _query().where(requests.c.id == request_id)
        row = connection.execute(_of_tenant(query, tenant)).first()
    if row is None:
        raise UnknownRequestError("no request of that id; `letheon request list` shows all")
    return _request(row)


def found_all(connection: Connection, request_ids: Collection[str]) -> dict[str, Request]:
    """Return requests by their ids."""
    if not request_ids:
        return {}
    rows = connection.execute(_query().where(requests.c.id.in_(request_ids)))
    return {row.id: _request(row) for row in rows}


def found_in_order(connection: Connection, request_ids: Sequence[str]) -> list[Request]:
    """Return requests in the order in which their ids are given."""
    known = found_all(connection, request_ids)
    return [known[one] for one in request_ids if one in known]


def listed(
    connection: Connection,
    *,
    model: str | None = None,
    state: str | None = None,
    tenant: str | None = None,
) -> list[Request]:
    """Return requests, earliest due first, of one model, state or tenant if given."""
    query = _of_tenant(_query(), tenant)
    if model is not None:
        query = query.where(models.c.name == model)
    if state is not None:
        query = query.where(requests.c.state == state)
    return [_request(row) for row in connection.execute(query)]


def unconfirmed(connection: Connection, now: datetime, calendar: Calendar) -> list[Request]:
    """Return requests whose receipt must be confirmed today, or had to be, and nothing was done.

    That is CCPA's rule (10 business days). What was verified was answered.
    """
    waiting = listed(connection, state="received")
    days = {one.id: confirm_by(one.regime, one.received_at, calendar) for one in waiting}
    today = calendar.day_of(now)
    return [one for one in waiting if (day := days[one.id]) is not None and day <= today]


def timeline(connection: Connection, request_id: str, *, tenant: str | None = None) -> list[Entry]:
    """Return what happened to a request and to its batch, in order."""
    request = found(connection, request_id, tenant=tenant)
    names = [request.id] if request.batch is None else [request.id, request.batch]
    query = select(events).where(events.c.about.in_(names)).order_by(events.c.id)
    return [_entry(row) for row in connection.execute(query)]


@functools.cache  # building it takes as long as running it
def _query() -> Select[Any]:
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
        hold_until=_when(row.hold_until),
        recipients=row.recipients or 0,
        closed_at=_when(row.closed_at),
    )


def _when(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _entry(row: Row[Any]) -> Entry:
    body = json.loads(row.body)
    details = {name: value for name, value in body.items() if name not in ("at", "kind")}
    return Entry(datetime.fromtimestamp(row.at, UTC), row.kind, details, row.log_index)
