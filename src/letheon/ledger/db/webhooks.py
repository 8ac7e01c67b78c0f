"""Webhooks, and the queue of their messages, which are created from the ledger's log.

Each webhook has a cursor: the first log position that was not read yet. Positions are assigned in
order under a lock on the log, so an event that is committed late gets a later position and is not
skipped. (Row numbers on PostgreSQL do not have this property.) Messages and the new cursor are
written in one transaction. A webhook gets one message per kind of event and request or batch. The
log has no event for an overdue request, so overdue requests are found by their dates.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from sqlalchemy import Connection, Row, Select, delete, exists, func, insert, select, true
from sqlalchemy import update as change

from letheon.exceptions import KeyFileError
from letheon.ledger.certificates.certificates import list_sequences
from letheon.ledger.db.elapsed import proven_now
from letheon.ledger.db.events import BulkInsert, Event, integrate_events, read_log_head
from letheon.ledger.db.tokens import ServiceTable, record_action
from letheon.ledger.keys.keyring import KeyFiles
from letheon.ledger.requests.listing import find_requests, is_late
from letheon.ledger.schemas import record_from, to_datetime
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

EventName = Literal["received", "certified", "overdue", "retrained"]
EVENTS: tuple[EventName, ...] = get_args(EventName)

_KEY = "service"
_KEY_BYTES = 32
_KEPT_SECONDS = 30 * 86_400
# Limit per webhook and round, so that a round locks the database only briefly.
_MOST = 500
_FOLLOWS = ("duplicate", "waits-for")
_KINDS = ("received", "certified", *_FOLLOWS, "certificate")
_ALIVE = webhooks.c.disabled_at.is_(None)
_UNPLACED = select(events.c.id).where(events.c.log_index.is_(None)).limit(1)
_WAITING = deliveries.c.delivered_at.is_(None) & deliveries.c.given_up_at.is_(None)
_insert_messages = BulkInsert(
    deliveries,
    ("id", "webhook_id", "kind", "about", "body", "created_at", "tries", "not_before"),
    unless_there=True,
    returning=("id",),
)


def read_service_key(folder: Path) -> bytes:
    """Read the secret of the service from the keys of a ledger; create it if it is missing.

    Raises
    ------
    KeyFileError
        The file is damaged, or readable by other users.
    """
    files = KeyFiles(folder / "keys")
    if not files.has(_KEY):
        with files.hold_lock(), contextlib.suppress(KeyFileError):  # another process may be first
            files.write(_KEY, os.urandom(_KEY_BYTES))
    return files.read(_KEY)


@dataclass(frozen=True)
class Webhook:
    """Webhook, without its secret.

    Attributes
    ----------
    id : str
        Random id, 16 hexadecimal digits.
    url : str
        URL that messages are sent to.
    events : tuple of str
        Kinds of events that the webhook receives.
    tenant : str or None
        Tenant whose events the webhook receives; null for all tenants.
    created_at : datetime
        When the webhook was created.
        created_by : str or None
        Id of the token with which it was created; null if there is none.
    disabled_at : datetime or None
        When the receiver answered with status 410 (Gone), which disables the webhook; null if it is
        enabled.
    waiting : int
        Number of messages that wait for delivery.
    given_up : int
        Number of messages that could not be delivered.
    """

    id: str
    url: str
    events: tuple[EventName, ...]
    tenant: str | None
    created_at: datetime
    created_by: str | None
    disabled_at: datetime | None
    waiting: int
    given_up: int


@dataclass(frozen=True)
class Delivery:
    """Message of a webhook, and the state of its delivery.

    Attributes
    ----------
    id : str
        Id of the message, the same for every attempt.
    kind : {"received", "certified", "overdue", "retrained"}
        Kind of event.
    about : str
        Id of the request or batch.
    state : {"waiting", "delivered", "given-up"}
        State of the delivery.
    created_at : datetime
        When the message was created.
        delivered_at : datetime or None
        When the message was delivered; null if it was not.
    given_up_at : datetime or None
        When delivery was given up, after the last attempt; null if it was not.
    tries : int
        Number of attempts so far.
    next_try_at : datetime or None
        Time of the next attempt; null unless the message waits for delivery.
    last_status : int or None
        HTTP status of the last response; null if there was none.
    """

    id: str
    kind: EventName
    about: str
    state: Literal["waiting", "delivered", "given-up"]
    created_at: datetime
    tries: int
    next_try_at: datetime | None
    delivered_at: datetime | None
    given_up_at: datetime | None
    last_status: int | None


class Message(NamedTuple):
    """Message that was claimed for sending: id, webhook, address, body and attempts so far."""

    id: str
    webhook_id: str
    url: str
    body: str
    tries: int


class Webhooks(ServiceTable):
    """The webhooks of a service.

    Parameters
    ----------
    ledger : Ledger
        Ledger whose events are reported.
    clock : callable, optional
        Returns seconds since 1970. Default: the clock of the ledger.
    """

    def add(
        self, url: str, events: Iterable[str], *, tenant: str | None = None, by: str | None = None
    ) -> Webhook:
        """Create and return a webhook that receives events from now on."""
        wanted, now = set(events), self._clock()
        values = {
            "id": secrets.token_hex(8),
            "tenant": tenant,
            "url": url,
            "events": json.dumps([name for name in EVENTS if name in wanted]),
            "created_at": now,
            "created_by": by,
        }

        def insert_webhook(conn: Connection) -> Webhook:
            # All committed events have a position below this one.
            conn.execute(insert(webhooks).values(values | {"cursor": integrate_events(conn).size}))
            record_action(conn, now, by, "webhook.made", str(values["id"]))
            return _to_webhook(conn.execute(_hooks_query(webhooks.c.id == values["id"])).one())

        return self._database.run_transaction(insert_webhook)

    def find(self, webhook_id: str) -> Webhook | None:
        """Return the webhook with this id; None if there is none."""
        row = self._database.read_first(_hooks_query(webhooks.c.id == webhook_id))
        return None if row is None else _to_webhook(row)

    def list_webhooks(
        self, *, tenant: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[Webhook]:
        """Return webhooks with an id above `after`, sorted by id, optionally only of a tenant."""
        wanted = true() if tenant is None else webhooks.c.tenant == tenant
        if after is not None:
            wanted &= webhooks.c.id > after
        return [_to_webhook(row) for row in self._database.read(_hooks_query(wanted).limit(limit))]

    def list_addresses(self, tenant: str) -> set[str]:
        """Return the webhook addresses that receive events of a tenant."""
        mine = webhooks.c.tenant.is_(None) | (webhooks.c.tenant == tenant)
        query = select(webhooks.c.url).where(mine, webhooks.c.disabled_at.is_(None))
        return {row.url for row in self._database.read(query)}

    def remove(self, webhook_id: str, *, by: str | None = None) -> None:
        """Delete a webhook and its messages."""

        def delete_webhook(conn: Connection) -> None:
            # `write_new_messages` locks this row too, so that no message is added meanwhile.
            row = select(webhooks.c.id).where(webhooks.c.id == webhook_id).with_for_update()
            conn.execute(row)
            conn.execute(delete(deliveries).where(deliveries.c.webhook_id == webhook_id))
            conn.execute(delete(webhooks).where(webhooks.c.id == webhook_id))
            record_action(conn, self._clock(), by, "webhook.removed", webhook_id)

        self._database.run_transaction(delete_webhook)

    def count_waiting(self) -> int:
        """Return the number of messages that wait for delivery."""
        return self._count_rows(_WAITING)

    def list_deliveries(
        self, webhook_id: str, *, after: str | None = None, limit: int = 50
    ) -> list[Delivery]:
        """Return messages of a webhook, newest first, that follow the message with the id `after`.

        Raises
        ------
        ValueError
            `after` is not the id of a message of this webhook.
        """
        mine = select(deliveries).where(deliveries.c.webhook_id == webhook_id)
        return [_to_delivery(row) for row in self._read_newest(mine, deliveries, after, limit)]

    def claim_due(self, seconds: int, *, most: int, most_each: int) -> list[Message]:
        """Claim messages that are due, so that no other process sends them for `seconds`.

        At most `most` messages are claimed, and at most `most_each` of one webhook, because its
        receiver may be slow or unreachable.
        """
        now = self._clock()
        place = func.row_number().over(
            partition_by=deliveries.c.webhook_id,
            order_by=(deliveries.c.not_before, deliveries.c.id),
        )
        due = (
            select(deliveries.c.id, webhooks.c.url, place.label("place"))
            .join(webhooks, webhooks.c.id == deliveries.c.webhook_id)
            .where(_WAITING, deliveries.c.not_before <= now, _ALIVE)
            .subquery()
        )
        query = select(deliveries, due.c.url).join(due, due.c.id == deliveries.c.id)
        query = query.where(due.c.place <= most_each).order_by(due.c.place).limit(most)
        rows = self._database.read(query)
        waiting = [Message(row.id, row.webhook_id, row.url, row.body, row.tries) for row in rows]

        def claim(conn: Connection, message: Message) -> bool:
            values = {"tries": message.tries + 1, "not_before": now + seconds}
            mine = (deliveries.c.id == message.id) & (deliveries.c.tries == message.tries)
            update = change(deliveries).where(mine, _WAITING).values(values)
            return conn.execute(update).rowcount == 1

        if not waiting:  # avoids a write transaction
            return []
        return self._database.run_transaction(
            lambda conn: [message for message in waiting if claim(conn, message)]
        )

    def record_attempt(
        self,
        message: Message,
        status: int | None,
        *,
        outcome: Literal["delivered", "gone", "given-up", "later"],
        pause: int = 0,
    ) -> None:
        """Record the outcome of an attempt: delivered, receiver gone, given up, or try again."""
        now = self._clock()
        times = {"delivered": "delivered_at", "gone": "given_up_at", "given-up": "given_up_at"}
        column = times.get(outcome, "not_before")
        values = {"last_status": status, column: now + pause}

        def save_outcome(conn: Connection) -> None:
            if outcome == "gone":
                hook = webhooks.c.id == message.webhook_id
                conn.execute(change(webhooks).where(hook).values(disabled_at=now))
            mine = (deliveries.c.id == message.id) & (deliveries.c.tries == message.tries + 1)
            conn.execute(change(deliveries).where(mine).values(values))

        self._database.run_transaction(save_outcome)

    def forget_old(self) -> int:
        """Delete messages that ended more than a month ago; return the number of deleted messages.

        Messages about overdue requests are kept, so that a request is not reported twice.
        """
        ended = func.coalesce(deliveries.c.delivered_at, deliveries.c.given_up_at)
        old = ended < proven_now(self._core) - _KEPT_SECONDS
        unused = delete(deliveries).where(old & (deliveries.c.kind != "overdue"))
        return self._database.run_transaction(lambda conn: conn.execute(unused).rowcount)

    def write_new_messages(self, *, overdue: bool = True) -> int:
        """Write messages for new events and overdue requests; return the number of messages.

        If the process is killed, the cursor is unchanged, and the next process starts there.

        Parameters
        ----------
        overdue : bool, default=True
            Whether to search for overdue requests as well.
        """
        with self._database.reading() as conn:
            if not _has_work(conn, overdue=overdue):
                return 0
        now = self._clock()
        today = self._core.settings.calendar.day_of(to_datetime(now))

        def write_all(conn: Connection) -> int:
            # In a fixed order, so that two processes wait for each other without a deadlock.
            query = select(webhooks).where(_ALIVE).order_by(webhooks.c.id).with_for_update()
            hooks = conn.execute(query).all()
            is_placed = conn.scalar(_UNPLACED) is None
            size = (read_log_head(conn) if is_placed else integrate_events(conn)).size
            n_new = sum(_feed_log(conn, hook, size, now) for hook in hooks)
            if overdue:
                n_new += sum(_feed_overdue(conn, hook, today, now) for hook in hooks)
            return n_new

        return self._database.run_transaction(write_all)


def _hooks_query(wanted: Any) -> Select[Any]:
    """Return the query for webhooks with their numbers of waiting and given-up messages."""
    mine = deliveries.c.webhook_id == webhooks.c.id
    waiting = select(func.count()).where(mine, _WAITING).scalar_subquery()
    lost = select(func.count()).where(mine, deliveries.c.given_up_at.is_not(None)).scalar_subquery()
    columns = (webhooks, waiting.label("waiting"), lost.label("given_up"))
    return select(*columns).where(wanted).order_by(webhooks.c.id)


def _to_webhook(row: Row[Any]) -> Webhook:
    return record_from(Webhook, row._mapping, events=tuple(json.loads(row.events)))


def _to_delivery(row: Row[Any]) -> Delivery:
    is_open = row.delivered_at is None and row.given_up_at is None
    return record_from(
        Delivery,
        row._mapping,
        state="waiting" if is_open else "given-up" if row.delivered_at is None else "delivered",
        next_try_at=to_datetime(row.not_before) if is_open else None,
    )


def write_body(message_id: str, kind: str, at: int, data: dict[str, Any]) -> str:
    """Return the JSON body of a message: id, type, created_at and data, without personal data."""
    when = to_datetime(at).strftime("%Y-%m-%dT%H:%M:%SZ")
    fields = {"id": message_id, "type": kind, "created_at": when, "data": data}
    return json.dumps(fields, separators=(",", ":"))


def _has_work(conn: Connection, *, overdue: bool) -> bool:
    """Return whether an enabled webhook may have unreported events.

    If `overdue`, every enabled webhook may have overdue requests to report.
    """
    oldest = conn.scalar(select(func.min(webhooks.c.cursor)).where(_ALIVE))
    if oldest is None:
        return False
    return overdue or oldest < read_log_head(conn).size or conn.scalar(_UNPLACED) is not None


def _feed_log(conn: Connection, hook: Row[Any], size: int, now: int) -> int:
    if hook.cursor >= size:
        return 0
    place = events.c.log_index
    query = select(events).where(place >= hook.cursor, place < size, events.c.kind.in_(_KINDS))
    rows = conn.execute(query.order_by(place).limit(_MOST)).all()
    following = rows[-1].log_index + 1 if len(rows) == _MOST else size
    conn.execute(change(webhooks).where(webhooks.c.id == hook.id).values(cursor=following))
    return _write_messages(
        conn, hook, [*_about_requests(conn, rows), *_about_versions(conn, rows)], now
    )


def _write_messages(conn: Connection, hook: Row[Any], new_events: Sequence[Event], now: int) -> int:
    """Write messages for the events that the webhook subscribes to and may see.

    Existing messages are kept. Return the number of new messages.
    """
    kinds = json.loads(hook.events)
    wanted = [event for event in new_events if event.kind in kinds]
    places: dict[int, int] | None = None
    if hook.tenant is not None:  # certificates are numbered per tenant
        wanted = [event for event in wanted if event.body["tenant"] == hook.tenant]
        if any(event.body["certificate"] is not None for event in wanted):
            own = list_sequences(conn, hook.tenant)
            places = {sequence: number for number, sequence in enumerate(own, start=1)}
    rows = []
    for kind, data, at, about in wanted:
        number = {} if places is None else {"certificate": places.get(data["certificate"])}
        key = f"msg_{secrets.token_hex(16)}"
        content = {"kind": kind, "about": about, "body": write_body(key, kind, at, data | number)}
        times = {"created_at": now, "tries": 0, "not_before": now}
        rows.append({"id": key, "webhook_id": hook.id} | content | times)
    return len(_insert_messages(conn, rows)) if rows else 0


def _about_requests(conn: Connection, rows: Sequence[Row[Any]]) -> Iterator[Event]:
    """Yield the events of received requests, and of requests that got a certificate.

    A duplicate gets its event together with the request that it duplicates.
    """
    times = {row.about: int(row.at) for row in rows if row.kind == "received"}
    yield from _request_events(conn, "received", times)
    times = {row.about: int(row.at) for row in rows if row.kind in ("certified", *_FOLLOWS)}
    behind = select(requests.c.id, requests.c.duplicate_of).where(
        requests.c.duplicate_of.in_([row.about for row in rows if row.kind == "certified"])
    )
    times |= {row.id: times[row.duplicate_of] for row in conn.execute(behind)}
    for event in _request_events(conn, "certified", times):
        if (
            event.body["certificate"] is not None
        ):  # the request it waits for may not have a certificate yet
            yield event


def _request_events(conn: Connection, kind: str, times: dict[str, int]) -> list[Event]:
    """Return events of this kind for the requests in `times`, in the same order."""
    names = ("model", "tenant", "state", "due_on", "certificate")
    known, new_events = find_requests(conn, list(times)), []
    for request in (known[key] for key in times if key in known):
        facts = {"request": request.id} | {name: getattr(request, name) for name in names}
        facts["due_on"] = request.due_on.isoformat()
        new_events.append(Event(kind, facts, times[request.id], request.id))
    return new_events


def _about_versions(conn: Connection, rows: Sequence[Row[Any]]) -> Iterator[Event]:
    """Yield events of retrained versions that have a certificate."""
    times = {row.about: int(row.at) for row in rows if row.kind == "certificate"}
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
        yield Event("retrained", data, times[row.batch_id], row.batch_id)


def _feed_overdue(conn: Connection, hook: Row[Any], today: date, now: int) -> int:
    """Write a message for each overdue request that is still open; return their number."""
    if "overdue" not in json.loads(hook.events):
        return 0
    was_reported = exists().where(
        deliveries.c.webhook_id == hook.id,
        deliveries.c.kind == "overdue",
        deliveries.c.about == requests.c.id,
    )
    query = select(requests.c.id).where(is_late(today), ~was_reported)
    if hook.tenant is not None:
        query = query.where(requests.c.tenant == hook.tenant)
    order = (requests.c.last_day, requests.c.received_at, requests.c.id)  # the order of an index
    ids = list(conn.scalars(query.order_by(*order).limit(_MOST)))
    return _write_messages(
        conn, hook, _request_events(conn, "overdue", dict.fromkeys(ids, now)), now
    )
