"""What people do with a request after it came in: each is one transaction, with its event."""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, or_, select, update

from letheon.data import IdIndex, Ids
from letheon.exceptions import RequestStateError, UnknownRequestError
from letheon.ledger.core import Core
from letheon.ledger.db import events
from letheon.ledger.db.actor import actor
from letheon.ledger.requests.calendar import Calendar
from letheon.ledger.requests.deadlines import due_on, extended, may_pause, paused_seconds
from letheon.ledger.requests.encrypted_ids import (
    is_covered,
    person_tags,
    read_body,
    uncovered_people,
)
from letheon.ledger.requests.grounds import (
    HOLD_GROUNDS,
    NO_DATA_HELD,
    REJECT_GROUNDS,
    require_ground,
)
from letheon.ledger.requests.owners import (
    NEEDS_APPROVAL,
    Claimant,
    claim,
    hold_model,
    known_tags,
    lead_on,
    needing_approval,
    pass_on,
)
from letheon.ledger.requests.records import Request, found
from letheon.ledger.requests.states import FINAL, FINISHED, has_erased, move
from letheon.ledger.tables import batches, blocked, requests

__all__ = [
    "approve",
    "await_identity",
    "cancel",
    "close",
    "extend",
    "hold",
    "reject",
    "release",
    "retry",
    "settle_queue",
    "tell",
    "verify",
]

_ID = re.compile(r"[0-9a-f]{32}")
_NO_BODY: dict[str, Any] = {"sealed": None, "intake_key": None}
_PUBLISHED_BATCH = ("published", "certified", "purged")

_Work = Callable[[Connection, Row[Any], int], None]
_Lock = Callable[[Connection, str], None]


def verify(
    core: Core,
    request_id: str,
    *,
    tenant: str | None = None,
    needs_approval: bool = False,
    held: IdIndex | None = None,
) -> Request:
    """Record that whoever asks is who they say: block their rows and queue the request.

    A pause of the clock ends. The request becomes a duplicate if others erase all its people. It
    stays verified if it needs an approval, for its size or as `needs_approval` says; its rows are
    blocked meanwhile. `held` are the people in the model: of a request that was recorded with
    unknown people only the known ones are blocked, and without any it is rejected.
    """

    def work(connection: Connection, row: Row[Any], now: int) -> None:
        if row.state != "received":  # a duplicate may become verified, but not by this
            raise RequestStateError(f"request {row.id} is {row.state}; its identity was verified")
        clock = _clock_started(core, row, now)
        move(connection, row.id, "verified", at=now, verified_by=actor(), **clock)
        # Who exchanges the key waits for this row, and keeps the old key until then.
        body = connection.execute(
            select(requests.c.intake_key, requests.c.sealed).where(requests.c.id == row.id)
        ).one()
        ids = read_body(core, body.intake_key, row.id, body.sealed)
        tags = _known_people(
            connection, row.model_id, person_tags(core, row.tenant, ids), ids, held
        )
        if not tags:
            _reject(connection, row.id, NO_DATA_HELD, now)
            return
        if needs_approval:
            events.record(connection, NEEDS_APPROVAL, {"request": row.id}, now)
        is_marked = bool(needing_approval(connection, [row.id]))
        is_large = is_marked or core.settings.policy.needs_approval(row.n_rows)
        claimant = Claimant(row.id, row.tenant, row.model_id, tags, is_large)
        waits = claim(connection, [claimant])
        if row.id in waits:
            _wait_behind(connection, row.id, waits[row.id], now)
        elif not is_large:
            move(connection, row.id, "queued", at=now)

    return _changed(core, request_id, tenant, work, first=_share_model)


def approve(core: Core, request_id: str, *, tenant: str | None = None) -> Request:
    """Queue a verified request of many rows, as somebody else than who filed or verified it.

    Raises
    ------
    RequestStateError
        It waits for no approval, or whoever acts has filed or verified it.
    """

    def work(connection: Connection, row: Row[Any], now: int) -> None:
        if row.state != "verified":
            raise RequestStateError(f"request {row.id} is {row.state}; it waits for no approval")
        if actor() is not None and actor() in (row.filed_by, row.verified_by):
            raise RequestStateError(
                f"request {row.id} was filed or verified by the one who would approve it; "
                "somebody else has to"
            )
        events.record(connection, "approved", {"request": row.id}, now)
        move(connection, row.id, "queued", at=now)

    return _changed(core, request_id, tenant, work)


def await_identity(core: Core, request_id: str, *, tenant: str | None = None) -> Request:
    """Record that proof of identity was asked for: under GDPR the clock stands until `verify`."""

    def work(connection: Connection, row: Row[Any], now: int) -> None:
        if row.state != "received":
            raise RequestStateError(f"request {row.id} is {row.state}; nobody asks who it is now")
        if not may_pause(row.regime):
            raise RequestStateError(f"nothing stops the clock of a {row.regime} request")
        if row.paused_at is None:
            _set(connection, row.id, paused_at=now)
            events.record(connection, "identity-asked", {"request": row.id}, now)

    return _changed(core, request_id, tenant, work)


def cancel(core: Core, request_id: str, *, tenant: str | None = None) -> Request:
    """Withdraw a request that is not being applied yet; its people pass on to who else asked."""

    def work(connection: Connection, row: Row[Any], now: int) -> None:
        _require_not_applied(row)
        move(connection, row.id, "cancelled", at=now, closed_at=now, **_NO_BODY)
        pass_on(connection, row.id, row.model_id, at=now, policy=core.settings.policy)

    return _changed(core, request_id, tenant, work, first=_lock_model)


def reject(core: Core, request_id: str, ground: str, *, tenant: str | None = None) -> Request:
    """Refuse a request on a ground of law, a registered code."""
    require_ground(ground, REJECT_GROUNDS)

    def work(connection: Connection, row: Row[Any], now: int) -> None:
        _require_not_applied(row)
        _reject(connection, row.id, ground, now)
        pass_on(connection, row.id, row.model_id, at=now, policy=core.settings.policy)

    return _changed(core, request_id, tenant, work, first=_lock_model)


def hold(
    core: Core,
    request_id: str,
    ground: str,
    until: date | datetime | str,
    *,
    tenant: str | None = None,
) -> Request:
    """Keep a request back on a ground of law, until a day (at the seat) or moment at most.

    Raises
    ------
    RequestStateError
        It is past that, or another request is erasing somebody whom it names.
    """
    require_ground(ground, HOLD_GROUNDS)
    moment = _end_of_hold(until, core.settings.calendar)

    def work(connection: Connection, row: Row[Any], now: int) -> None:
        if moment <= now:
            raise ValueError(f"until={until} has passed; a hold ends in the future")
        _require_nobody_leaves(connection, row.id)
        columns = {"hold_ground": ground, "hold_until": moment, "reason": ground}
        fields: dict[str, str | int] = {"ground": ground, "until": moment}
        move(connection, row.id, "on_hold", at=now, fields=fields, **columns)

    return _changed(core, request_id, tenant, work, first=_lock_model)


def release(core: Core, request_id: str, *, tenant: str | None = None) -> Request:
    """End a hold."""

    def work(connection: Connection, row: Row[Any], now: int) -> None:
        if row.state != "on_hold":
            raise RequestStateError(f"request {row.id} is {row.state}, not on hold")
        columns = {"hold_ground": None, "hold_until": None, "reason": None}
        move(connection, row.id, "queued", at=now, **columns)

    return _changed(core, request_id, tenant, work)


def retry(core: Core, request_id: str, *, tenant: str | None = None) -> Request:
    """Send a request that is stuck, or waits after a failure, back to where it failed.

    A purge is about all people of its batch, so what is stuck there is retried together.
    """

    def work(connection: Connection, row: Row[Any], now: int) -> None:
        if row.state not in ("stuck", "retry_wait"):
            raise RequestStateError(f"request {row.id} is {row.state}; there is nothing to retry")
        batch = _state_of_batch(connection, row.batch_id)
        columns: dict[str, Any] = {"tries": 0, "not_before": 0, "reason": None}
        if batch not in _PUBLISHED_BATCH:
            move(connection, row.id, "queued", at=now, **columns)
            return
        mates = (requests.c.batch_id == row.batch_id) & (requests.c.state == "stuck")
        movers = list(connection.scalars(select(requests.c.id).where(mates)))
        move(connection, movers, "purging", at=now, **columns)
        if batch == "purged":  # another one's retry has finished it
            move(connection, movers, "purged", at=now)

    return _changed(core, request_id, tenant, work, first=_lock_batch)


def extend(core: Core, request_id: str, *, tenant: str | None = None) -> Request:
    """Record an extension, of which the person was told: two months (GDPR), 45 days (CCPA)."""

    def work(connection: Connection, row: Row[Any], now: int) -> None:
        if row.state in (*FINAL, *FINISHED) or row.extended_to is not None:
            raise RequestStateError(
                f"request {row.id} is {row.state} and can be extended once, while it is open"
            )
        day = extended(
            row.regime,
            _moment(min(row.received_at, now)),
            core.settings.calendar,
            noticed=_moment(now),
            paused_seconds=paused_seconds(row.paused_seconds, row.paused_at, now),
        ).isoformat()
        _set(connection, row.id, extended_to=day)
        events.record(connection, "extended", {"request": row.id, "due": day}, now)

    return _changed(core, request_id, tenant, work)


def close(
    core: Core, request_id: str, *, recipients: int = 0, tenant: str | None = None
) -> Request:
    """Record that the person was answered and how many more recipients were told (Article 19)."""
    _require_count(recipients, 0)

    def work(connection: Connection, row: Row[Any], now: int) -> None:
        if row.state == "duplicate" and not is_covered(connection, row.id):
            raise RequestStateError(
                f"request {row.id} waits for request {row.duplicate_of}, which is not purged yet"
            )
        columns = {"recipients": (row.recipients or 0) + recipients, "closed_at": now, **_NO_BODY}
        move(connection, row.id, "closed", at=now, fields={"recipients": recipients}, **columns)

    return _changed(core, request_id, tenant, work)


def tell(core: Core, request_id: str, recipients: int, *, tenant: str | None = None) -> Request:
    """Record that so many recipients of the data were told (Article 19), while a request is open.

    The attestation of the purge counts those who were told before it.
    """
    _require_count(recipients, 1)

    def work(connection: Connection, row: Row[Any], now: int) -> None:
        if row.state in ("received", *FINAL):
            raise RequestStateError(f"request {row.id} is {row.state}; nobody is told of it now")
        _set(connection, row.id, recipients=(row.recipients or 0) + recipients)
        body = {"request": row.id, "recipients": recipients}
        events.record(connection, "recipients-told", body, now)

    return _changed(core, request_id, tenant, work)


def settle_queue(core: Core, model_id: int) -> list[str]:
    """Take requests off the queue whose people were all erased with others'; return their ids.

    Requests may name some of the same people. When the last of them left with another request,
    there is nothing to apply: what is still queued becomes a duplicate of what erased them.
    """

    def work(connection: Connection) -> list[str]:
        mine = uncovered_people(has_erased).where(blocked.c.request_id == requests.c.id)
        idle = (requests.c.model_id == model_id) & (requests.c.state == "queued")
        query = select(requests.c.id).where(idle, ~mine.exists()).order_by(requests.c.id)
        found_ids = list(connection.scalars(query))
        for request_id in found_ids:
            eraser = _eraser(connection, request_id)
            now = core.clock()
            _wait_behind(connection, request_id, eraser, now)
            lead_on(connection, request_id, model_id, at=now)
        return found_ids

    return core.database.run(work)


def _eraser(connection: Connection, request_id: str) -> str:
    """Return a request that erased somebody whom this one names."""
    mine, other = blocked.alias(), blocked.alias()
    same = (other.c.model_id == mine.c.model_id) & (other.c.tag == mine.c.tag)
    query = select(requests.c.id).join(other, other.c.request_id == requests.c.id).join(mine, same)
    query = query.where(mine.c.request_id == request_id, has_erased(requests))
    return str(connection.scalars(query.order_by(requests.c.id).limit(1)).one())


def _changed(
    core: Core, request_id: str, tenant: str | None, work: _Work, *, first: _Lock | None = None
) -> Request:
    """Do the work on the locked row of a request, in one transaction.

    `first` locks its model or batch before. Whoever seals, submits or finishes a purge comes to
    these before the requests; in another order two would wait for each other.
    """

    def change(connection: Connection) -> Request:
        if first is not None:
            first(connection, str(request_id))
        row = _locked(connection, request_id, tenant)
        work(connection, row, core.clock())
        return found(connection, request_id)

    return core.database.run(change)


def _locked(connection: Connection, request_id: str, tenant: str | None) -> Row[Any]:
    row = None
    if isinstance(request_id, str) and _ID.fullmatch(request_id):
        query = select(requests).where(requests.c.id == request_id).with_for_update()
        row = connection.execute(query).first()
    if row is None or tenant not in (None, row.tenant):
        raise UnknownRequestError("no request of that id; `letheon request list` shows all")
    return row


def _share_model(connection: Connection, request_id: str, *, alone: bool = False) -> None:
    mine = select(requests.c.model_id).where(requests.c.id == request_id)
    model_id = connection.scalar(mine)
    if model_id is not None:
        hold_model(connection, model_id, alone=alone)


def _lock_model(connection: Connection, request_id: str) -> None:
    _share_model(connection, request_id, alone=True)


def _lock_batch(connection: Connection, request_id: str) -> None:
    mine = select(requests.c.batch_id).where(requests.c.id == request_id)
    query = select(batches.c.id).where(batches.c.id == mine.scalar_subquery())
    connection.execute(query.with_for_update())


def _wait_behind(connection: Connection, request_id: str, owner: str, now: int) -> None:
    body = _NO_BODY if is_covered(connection, request_id) else {}
    fields: dict[str, str | int] = {"of": owner}
    move(connection, request_id, "duplicate", at=now, fields=fields, duplicate_of=owner, **body)


def _clock_started(core: Core, row: Row[Any], now: int) -> dict[str, Any]:
    """Return the columns of a clock that runs again, if it stood still."""
    if row.paused_at is None:
        return {}
    stood = paused_seconds(row.paused_seconds, row.paused_at, now)
    received, calendar = _moment(min(row.received_at, now)), core.settings.calendar
    day = due_on(row.regime, received, calendar, paused_seconds=stood)
    return {"paused_at": None, "paused_seconds": stood, "due_on": day.isoformat()}


def _state_of_batch(connection: Connection, batch_id: str | None) -> str | None:
    query = select(batches.c.state).where(batches.c.id == batch_id)
    return None if batch_id is None else connection.scalar(query)


def _reject(connection: Connection, request_id: str, ground: str, now: int) -> None:
    columns = {"reason": ground, "closed_at": now, **_NO_BODY}
    move(connection, request_id, "rejected", at=now, fields={"ground": ground}, **columns)


def _known_people(
    connection: Connection, model_id: int, tags: list[str], ids: Ids, held: IdIndex | None
) -> list[str]:
    """Return the tags of the people whom the model holds, or whom an earlier request named."""
    if held is None:
        return tags
    is_held = held.find(ids).found
    known = known_tags(connection, [(model_id, tag) for tag in tags])
    return [
        tag for tag, here in zip(tags, is_held, strict=True) if here or (model_id, tag) in known
    ]


def _require_not_applied(row: Row[Any]) -> None:
    if row.state == "stuck" and row.batch_id is not None:
        raise RequestStateError(f"request {row.id} was applied; it can only be retried")


def _require_nobody_leaves(connection: Connection, request_id: str) -> None:
    """Refuse a hold that comes too late: somebody whom it names is erased by another request."""
    mine, other = blocked.alias(), blocked.alias()
    same = (other.c.model_id == mine.c.model_id) & (other.c.tag == mine.c.tag)
    query = select(requests.c.id).join(other, other.c.request_id == requests.c.id).join(mine, same)
    leaving = or_(requests.c.state == "applying", has_erased(requests))
    query = query.where(mine.c.request_id == request_id, requests.c.id != request_id, leaving)
    found_id = connection.scalar(query.order_by(requests.c.id).limit(1))
    if found_id is not None:
        raise RequestStateError(
            f"request {request_id} cannot be held: request {found_id} names some of the same "
            "people and is erasing them, or has"
        )


def _require_count(recipients: Any, least: int) -> None:
    if type(recipients) is not int or recipients < least:
        raise ValueError(f"recipients={recipients!r} must be a whole number from {least} on")


def _set(connection: Connection, request_id: str, **columns: Any) -> None:
    connection.execute(update(requests).where(requests.c.id == request_id).values(columns))


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _end_of_hold(until: Any, calendar: Calendar) -> int:
    """Return the moment, or when the day begins at the seat."""
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise ValueError("until has no time zone; give one, or a date")
        return int(until.timestamp())
    day = _day(until) if isinstance(until, str) else until
    if not isinstance(day, date):
        raise TypeError(
            f"until is a {type(until).__name__}; give a date, a datetime or a text YYYY-MM-DD"
        )
    return int(calendar.end_of(day - timedelta(days=1)).timestamp())


def _day(text: str) -> date:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError:
        raise ValueError(f"until={text!r} is no day; write it as 2027-01-31") from None
