"""How much time has passed for certain, for steps that cannot be undone.

A clock that is ahead once must not end a hold, or make the ledger forget whom it erased. So such
steps wait until both the clock and the *proven time* have reached the moment. Proven time starts
from a clock that was right, at the creation of the ledger or when an operator confirmed it, and
goes on with the uptime of the machines that work on the ledger: time that was measured, not set.
While no machine runs it stands still, so it may be behind, and is never ahead.
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
# Boots that are remembered: one for each machine that is at work, and some more.
_MOST_BOOTS = 32
# Progress that is worth a write.
_NOTE_SECONDS = 60
_GIVEN = "given"
_PROCESS = secrets.token_hex(8)


def read_uptime() -> tuple[str, int]:
    """Return the name of this boot of the machine, and how many seconds ago it was.

    Time that the machine slept counts. Where Linux does not tell, it is about this process.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return boot, int(time.clock_gettime(time.CLOCK_BOOTTIME))
    except (OSError, AttributeError):
        return _PROCESS, int(time.monotonic())


@dataclass(frozen=True)
class ProvenTime:
    """A time that was reached for certain, and what each boot's uptime has to be added to."""

    at: int
    boots: dict[str, int]

    def advance_to(self, boot: str, seconds: int) -> "ProvenTime":
        """Return the proven time when a machine has been up for so many seconds."""
        start_proven_time = self.boots.get(boot)
        at = self.at if start_proven_time is None else max(self.at, start_proven_time + seconds)
        others = {name: begun for name, begun in self.boots.items() if name != boot}
        newest = dict(list(others.items())[1 - _MOST_BOOTS :])
        return ProvenTime(at, newest | {boot: at - seconds})


def proven_time(core: Core, connection: Connection) -> int:
    """Return the smaller of the clock and the proven time, in a writing transaction."""
    now, known = core.clock(), _read_proven_time(connection, lock=True)
    if known is None:
        # Of a ledger that an earlier letheon made; one process at a time begins to count.
        connection.execute(select(log.c.size).with_for_update())
        known = _read_proven_time(connection, lock=True)
    found = _initial_time(connection, now) if known is None else known
    later = found.advance_to(*_read_core_uptime(core))
    is_new = known is None or later.boots.keys() != known.boots.keys()
    if is_new or later.at >= found.at + _NOTE_SECONDS:
        _write_proven_time(connection, later)
    return min(now, later.at)


def proven_now(core: Core) -> int:
    """Return `proven_time`, in a transaction of its own."""
    return core.database.run_transaction(lambda connection: proven_time(core, connection))


def seconds_ahead(core: Core, connection: Connection) -> int:
    """Return how far the clock is ahead of the proven time; at least 0."""
    now = core.clock()
    known = _read_proven_time(connection) or _initial_time(connection, now)
    return max(0, now - known.advance_to(*_read_core_uptime(core)).at)


def accept_clock(core: Core, connection: Connection) -> bool:
    """Record that the clock is right, though it is behind the log or ahead of the proven time.

    Deadlines of open requests that seem to come from the future count from now.

    Returns
    -------
    bool
        False if there was nothing to correct; nothing is recorded then.
    """
    _read_proven_time(connection, lock=True)  # before rows of requests, as workers do
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
    """Start counting from the clock, in a new ledger."""
    _write_proven_time(
        connection, ProvenTime(core.clock(), {}).advance_to(*_read_core_uptime(core))
    )


def _read_core_uptime(core: Core) -> tuple[str, int]:
    """Return the uptime; a clock that a caller gave stands for itself."""
    return (_GIVEN, core.clock()) if core.uptime is None else core.uptime()


def _initial_time(connection: Connection, now: int) -> ProvenTime:
    """Return where counting starts without a record: at the newest event, if that is earlier.

    A clock that a caller gave is its own uptime, from 1970 on.
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
