"""Proven time: a lower bound of the time that has passed, for steps that cannot be undone.

If the clock is ahead for a moment, this must not end a hold or delete the tags of erased people.
Therefore these steps wait until both the clock and the *proven time* have reached the due time.
Proven time starts from a correct clock, when the ledger is created or when an operator confirms the
clock. It advances with the measured uptime of the machines that work on the ledger. While no
machine runs, it does not advance, so it may be behind the real time but is never ahead of it.
"""

import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert, select, update

from letheon.ledger.core import Core
from letheon.ledger.db import events as _events
from letheon.ledger.requests.deadlines import due_on, extend_due_date
from letheon.ledger.schemas import to_datetime
from letheon.ledger.tables import log, meta, requests

_KEY = "proven_time"
# Number of stored boots: one for each machine at work, and some more.
_MOST_BOOTS = 32
# Least progress that is written to the database.
_NOTE_SECONDS = 60
_GIVEN = "given"
_PROCESS = secrets.token_hex(8)


def read_uptime() -> tuple[str, int]:
    """Return the boot id of this machine and the seconds since boot, including sleep.

    On systems without a boot id, return an id of this process and its monotonic clock.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return boot, int(time.clock_gettime(time.CLOCK_BOOTTIME))
    except (OSError, AttributeError):
        return _PROCESS, int(time.monotonic())


@dataclass(frozen=True)
class ProvenTime:
    """Time that has certainly passed, and the start time of each machine boot."""

    at: int
    boots: dict[str, int]

    def advance_to(self, boot: str, seconds: int) -> "ProvenTime":
        """Return the proven time, given that a machine has been up for `seconds` since `boot`."""
        start_proven_time = self.boots.get(boot)
        at = self.at if start_proven_time is None else max(self.at, start_proven_time + seconds)
        others = {name: begun for name, begun in self.boots.items() if name != boot}
        newest = dict(list(others.items())[1 - _MOST_BOOTS :])
        return ProvenTime(at, newest | {boot: at - seconds})


def proven_time(core: Core, connection: Connection) -> int:
    """Return the smaller of the clock and the proven time, in seconds since 1970.

    The connection must be in a write transaction, because the proven time is updated.
    """
    now, known = core.clock(), _read_proven_time(connection, lock=True)
    if known is None:
        # An older letheon created this ledger; one process at a time starts to count.
        connection.execute(select(log.c.size).with_for_update())
        known = _read_proven_time(connection, lock=True)
    proven = _initial_time(connection, now) if known is None else known
    later = proven.advance_to(*_read_core_uptime(core))
    is_new = known is None or later.boots.keys() != known.boots.keys()
    if is_new or later.at >= proven.at + _NOTE_SECONDS:
        _write_proven_time(connection, later)
    return min(now, later.at)


def proven_now(core: Core) -> int:
    """Return the result of `proven_time`, computed in a separate transaction."""
    return core.database.run_transaction(lambda connection: proven_time(core, connection))


def seconds_ahead(core: Core, connection: Connection) -> int:
    """Return by how many seconds the clock is ahead of the proven time; at least 0."""
    now = core.clock()
    known = _read_proven_time(connection) or _initial_time(connection, now)
    return max(0, now - known.advance_to(*_read_core_uptime(core)).at)


def accept_clock(core: Core, connection: Connection) -> bool:
    """Record that the clock is right, although it is behind the log or ahead of the proven time.

    Open requests that were received in the future, by the corrected clock, get deadlines from now.

    Returns
    -------
    bool
        False if nothing had to be corrected; then nothing is recorded.
    """
    _read_proven_time(
        connection, lock=True
    )  # locked before rows of requests, in the order of the workers
    now, ahead = core.clock(), seconds_ahead(core, connection)
    was_behind = _events.accept_clock(connection, now)
    if not was_behind and ahead <= _events.TOLERATED_SECONDS:
        return False
    if was_behind:
        _correct_deadlines(core, connection, now)
    else:
        _events.record_event(connection, "clock-confirmed", {"seconds": ahead}, now)
    boot, seconds = _read_core_uptime(core)
    _write_proven_time(connection, ProvenTime(now, {boot: now - seconds}))
    return True


def start_proven_time(core: Core, connection: Connection) -> None:
    """Start the proven time of a new ledger from the clock."""
    _write_proven_time(
        connection, ProvenTime(core.clock(), {}).advance_to(*_read_core_uptime(core))
    )


def _read_core_uptime(core: Core) -> tuple[str, int]:
    """Return the boot id and the uptime; a clock passed by the caller counts as the uptime."""
    return (_GIVEN, core.clock()) if core.uptime is None else core.uptime()


def _initial_time(connection: Connection, now: int) -> ProvenTime:
    """Return the initial proven time: the time of the newest event, or the clock if earlier.

    A clock passed by the caller counts as an uptime since 1970.
    """
    return ProvenTime(now + min(0, _events.seconds_behind(connection, now)), {_GIVEN: 0})


def _read_proven_time(connection: Connection, *, lock: bool = False) -> ProvenTime | None:
    query = select(meta.c.value).where(meta.c.key == _KEY)
    text = connection.scalar(query.with_for_update() if lock else query)
    return None if text is None else ProvenTime(**json.loads(text))


def _write_proven_time(connection: Connection, proven: ProvenTime) -> None:
    values = {"value": json.dumps(vars(proven))}
    if connection.execute(update(meta).where(meta.c.key == _KEY).values(values)).rowcount == 0:
        connection.execute(insert(meta).values(key=_KEY, **values))


def _correct_deadlines(core: Core, connection: Connection, now: int) -> None:
    is_later = (requests.c.received_at > now) & requests.c.closed_at.is_(None)
    columns = select(requests.c.id, requests.c.regime, requests.c.extended_to)
    today, calendar = to_datetime(now), core.settings.calendar
    for row in connection.execute(columns.where(is_later).order_by(requests.c.id)).all():
        days: dict[str, Any] = {"due_on": due_on(row.regime, today, calendar).isoformat()}
        if row.extended_to is not None:
            day = extend_due_date(row.regime, today, calendar, noticed=today)
            days["extended_to"] = day.isoformat()
        connection.execute(update(requests).where(requests.c.id == row.id).values(days))
        body = {"request": row.id, "due": days.get("extended_to", days["due_on"])}
        _events.record_event(connection, "due-corrected", body, now)
