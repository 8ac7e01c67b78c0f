"""From the ledger's log to the messages that wait for webhooks.

Each webhook has a cursor: the place in the log from which on nothing was looked at. Places are
given in one order by whoever holds the row of the log, so an event that is committed late gets
a later place, and none is passed by; numbers of rows are in no such order on PostgreSQL. Messages
and the new cursor are written in one transaction, and one webhook gets one message of a kind about
one thing. What is overdue stands in no event: it is looked for by day.
"""

import json
import secrets
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, exists, func, select, update

from letheon.ledger import Ledger, Request
from letheon.ledger.certificates.listing import sequences_of_tenant
from letheon.ledger.db.bulk import RowsIn
from letheon.ledger.db.events import head, integrate
from letheon.ledger.requests.records import found_all
from letheon.ledger.requests.states import FINAL
from letheon.ledger.tables import (
    batches,
    certificates,
    deliveries,
    events,
    models,
    requests,
    versions,
    webhooks,
)
from letheon.service._webhooks import Webhook, webhook_of

__all__ = ["Message", "feed", "message_body"]

# Of one webhook in one round: a round holds the database for a moment only.
_MOST = 500
_FOLLOWS = ("duplicate", "waits-for")
_KINDS = ("received", "certified", *_FOLLOWS, "certificate")
_ALIVE = webhooks.c.disabled_at.is_(None)
_UNPLACED = select(events.c.id).where(events.c.log_index.is_(None)).limit(1)
_insert = RowsIn(
    deliveries,
    ("id", "webhook_id", "kind", "about", "body", "created_at", "tries", "not_before"),
    unless_there=True,
    returning=("id",),
)


class Message(NamedTuple):
    """What is told: a kind, what it is about, when it happened, the facts, and whose they are."""

    kind: str
    about: str
    at: int
    data: dict[str, Any]

    @property
    def tenant(self) -> str:
        """Whose model it is about."""
        return str(self.data["tenant"])


def message_body(message_id: str, message: Message) -> str:
    """Return the JSON that is sent: id, type, created_at and data; nothing of a person."""
    when = datetime.fromtimestamp(message.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    fields = {"id": message_id, "type": message.kind, "created_at": when, "data": message.data}
    return json.dumps(fields, separators=(",", ":"))


def feed(ledger: Ledger, now: int, *, overdue: bool = True) -> int:
    """Write the messages that became due since the last time; return how many.

    Whoever is killed in between leaves the cursor where it was, and the next one starts there.

    Parameters
    ----------
    ledger : Ledger
        Whose log it is.
    now : int
        Seconds since 1970.
    overdue : bool, default=True
        Whether to look for what is past its last day, too.
    """
    core = ledger._core
    with core.database.reading() as conn:
        if not _has_work(conn, overdue=overdue):
            return 0
    today = core.settings.calendar.day_of(datetime.fromtimestamp(now, UTC)).isoformat()

    def work(conn: Connection) -> int:
        # In one order, so that two who feed at once wait for each other and do not cross.
        query = select(webhooks).where(_ALIVE).order_by(webhooks.c.id).with_for_update()
        found = [(webhook_of(row), int(row.cursor)) for row in conn.execute(query)]
        size = _placed(conn)
        n_new = sum(_feed_log(conn, hook, cursor, size, now) for hook, cursor in found)
        if overdue:
            n_new += sum(_feed_overdue(conn, hook, today, now) for hook, _ in found)
        return n_new

    return core.database.run(work)


def _has_work(conn: Connection, *, overdue: bool) -> bool:
    """Whether there is a webhook, and something that it was not told."""
    oldest = conn.scalar(select(func.min(webhooks.c.cursor)).where(_ALIVE))
    if oldest is None:
        return False
    return overdue or oldest < head(conn).size or conn.scalar(_UNPLACED) is not None


def _placed(conn: Connection) -> int:
    """Give every event a place, if one has none; return the size of the log."""
    return (head(conn) if conn.scalar(_UNPLACED) is None else integrate(conn)).size


def _feed_log(conn: Connection, hook: Webhook, cursor: int, size: int, now: int) -> int:
    if cursor >= size:
        return 0
    query = (
        select(events)
        .where(events.c.log_index >= cursor, events.c.log_index < size, events.c.kind.in_(_KINDS))
        .order_by(events.c.log_index)
        .limit(_MOST)
    )
    found = conn.execute(query).all()
    following = found[-1].log_index + 1 if len(found) == _MOST else size
    conn.execute(update(webhooks).where(webhooks.c.id == hook.id).values(cursor=following))
    return _write(conn, hook, [*_about_requests(conn, found), *_about_versions(conn, found)], now)


def _write(conn: Connection, hook: Webhook, messages: Sequence[Message], now: int) -> int:
    """Write those that the webhook asked for and may see; one that is there stays as it is."""
    rows, wanted = [], [one for one in messages if one.kind in hook.events]
    for message in _numbered(conn, hook, wanted):
        if hook.tenant in (None, message.tenant):
            key = f"msg_{secrets.token_hex(16)}"
            body = message_body(key, message)
            about = {"kind": message.kind, "about": message.about, "body": body}
            times = {"created_at": now, "tries": 0, "not_before": now}
            rows.append({"id": key, "webhook_id": hook.id} | about | times)
    return len(_insert(conn, rows)) if rows else 0


def _numbered(conn: Connection, hook: Webhook, messages: Sequence[Message]) -> Sequence[Message]:
    """Return messages in which the certificates of a tenant's webhook are counted for itself."""
    if hook.tenant is None or all(one.data.get("certificate") is None for one in messages):
        return messages
    own = sequences_of_tenant(conn, hook.tenant)
    places = {sequence: number for number, sequence in enumerate(own, start=1)}
    return [
        one._replace(data=one.data | {"certificate": places.get(one.data["certificate"])})
        for one in messages
    ]


def _about_requests(conn: Connection, found: Sequence[Row[Any]]) -> Iterator[Message]:
    """Yield what is told of requests: received, and certified with all who waited behind them."""
    times = {row.about: int(row.at) for row in found if row.kind == "received"}
    for request in _read(conn, times):
        yield Message("received", request.id, times[request.id], _facts(request))
    times = {row.about: int(row.at) for row in found if row.kind in ("certified", *_FOLLOWS)}
    behind = select(requests.c.id, requests.c.duplicate_of).where(
        requests.c.duplicate_of.in_([row.about for row in found if row.kind == "certified"])
    )
    times |= {row.id: times[row.duplicate_of] for row in conn.execute(behind)}
    for request in _read(conn, times):
        if request.certificate is not None:  # what it waits behind may not be certified yet
            yield Message("certified", request.id, times[request.id], _facts(request))


def _read(conn: Connection, times: dict[str, int]) -> list[Request]:
    """Return requests in the order in which they are named."""
    found = found_all(conn, list(times))
    return [found[key] for key in times if key in found]


def _facts(request: Request) -> dict[str, Any]:
    facts = {"request": request.id, "model": request.model, "tenant": request.tenant}
    rest = {"state": request.state, "due_on": request.due_on.isoformat()}
    return facts | rest | {"certificate": request.certificate}


def _about_versions(conn: Connection, found: Sequence[Row[Any]]) -> Iterator[Message]:
    """Yield what is told of retrains: the version is certified by then."""
    times = {row.about: int(row.at) for row in found if row.kind == "certificate"}
    query = (
        select(versions.c.batch_id, versions.c.number, certificates.c.sequence)
        .add_columns(models.c.name, models.c.tenant)
        .join(batches, batches.c.id == versions.c.batch_id)
        .join(models, models.c.id == versions.c.model_id)
        .join(certificates, certificates.c.version_id == versions.c.id)
        .where(versions.c.batch_id.in_(list(times)), batches.c.kind == "retrain")
        .order_by(certificates.c.sequence)
    )
    for row in conn.execute(query):
        facts = {"version": row.number, "model": row.name, "tenant": row.tenant}
        data = facts | {"certificate": row.sequence}
        yield Message("retrained", row.batch_id, times[row.batch_id], data)


def _feed_overdue(conn: Connection, hook: Webhook, today: str, now: int) -> int:
    """Write what is past its last day and still open, once."""
    if "overdue" not in hook.events:
        return 0
    told = exists().where(
        deliveries.c.webhook_id == hook.id,
        deliveries.c.kind == "overdue",
        deliveries.c.about == requests.c.id,
    )
    # What is closed is in no index of open requests; most of an old ledger is.
    is_open = requests.c.closed_at.is_(None) & requests.c.state.not_in(FINAL)
    query = select(requests.c.id).where(requests.c.last_day < today, is_open, ~told)
    if hook.tenant is not None:
        query = query.where(requests.c.tenant == hook.tenant)
    order = (requests.c.last_day, requests.c.received_at, requests.c.id)  # as an index has them
    ids = list(conn.scalars(query.order_by(*order).limit(_MOST)))
    found = _read(conn, dict.fromkeys(ids, now))
    return _write(conn, hook, [Message("overdue", one.id, now, _facts(one)) for one in found], now)
