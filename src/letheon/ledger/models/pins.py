"""Pins: a reader says which version it uses, and a purge waits until nobody does.

A pin runs out by itself, so that a reader that died holds nothing up.
"""

import secrets

from sqlalchemy import Connection, delete, exists, func, insert, select, update

from letheon.exceptions import LedgerMissingError
from letheon.ledger.core import Core
from letheon.ledger.tables import pins, purge_steps, versions

__all__ = ["DRAINED", "LONGEST_SECONDS", "Pins", "count_pins"]

# Name of the step of a purge after which the version before cannot be pinned any more.
DRAINED = "pins"
# No pin is longer, unless the policy says so; clocks may differ by as much as events tolerate.
LONGEST_SECONDS = 600
_TOLERATED_SECONDS = 300


class Pins:
    """The pins of one process.

    Parameters
    ----------
    core : Core
        The ledger.
    owner : str
        Name of the process.
    """

    def __init__(self, core: Core, owner: str) -> None:
        self._core = core
        self._owner = owner

    def pin(self, version_id: int, seconds: int) -> str:
        """Hold a version for some seconds and return the name of the pin.

        Raises
        ------
        LedgerMissingError
            The version is being purged, or was; load the head instead.
        """
        return self._core.database.run(lambda conn: self._pin(conn, version_id, seconds))

    def renew(self, pin_id: str, seconds: int) -> None:
        """Hold the same version for some seconds from now, even if the pin had run out.

        Raises
        ------
        LedgerMissingError
            The pin had run out and its version was purged since; load the head instead.
        """

        def work(conn: Connection) -> None:
            mine = update(pins).where(pins.c.id == pin_id).values(until=self._until(seconds))
            if conn.execute(mine).rowcount == 0:
                raise LedgerMissingError("this pin ran out; load the head of the model again")

        self._core.database.run(work)

    def release(self, pin_id: str) -> None:
        """Let a version go; a pin that ran out is no error."""
        self._core.database.run(lambda conn: _remove(conn, pin_id))

    def _until(self, seconds: int) -> int:
        longest = _longest(self._core)
        if seconds > longest:
            raise ValueError(f"seconds={seconds} is more than {longest}; renew the pin instead")
        return self._core.clock() + seconds

    def _pin(self, conn: Connection, version_id: int, seconds: int) -> str:
        if _is_leaving(conn, version_id):
            raise LedgerMissingError(
                "this version of the model is being purged; load the head of the model again"
            )
        pin_id = secrets.token_hex(16)
        until = self._until(seconds)
        values = {"id": pin_id, "version_id": version_id, "owner": self._owner, "until": until}
        conn.execute(insert(pins).values(values))
        return pin_id


def _longest(core: Core) -> int:
    return max(core.settings.policy.pin_seconds, LONGEST_SECONDS)


def _remove(conn: Connection, pin_id: str) -> None:
    conn.execute(delete(pins).where(pins.c.id == pin_id))


def _is_leaving(conn: Connection, version_id: int) -> bool:
    """Whether a purge has begun to destroy a version; holds the version till the commit."""
    held = select(versions.c.purged_at).where(versions.c.id == version_id).with_for_update()
    if conn.execute(held).one().purged_at is not None:
        return True
    drained = (
        (versions.c.parent_id == version_id)
        & (purge_steps.c.batch_id == versions.c.batch_id)
        & (purge_steps.c.step == DRAINED)
    )
    return bool(conn.scalar(select(exists().where(drained))))


def count_pins(core: Core, conn: Connection, version_id: int) -> int:
    """Return how many pins hold a version; those that ran out are removed.

    So is one that would end later than any pin made now: the clock of its reader was ahead, and
    must not hold a version up for as long. The version's row stays locked until the commit, so that
    nobody pins it in between.
    """
    now = core.clock()
    latest = now + _longest(core) + _TOLERATED_SECONDS
    conn.execute(select(versions.c.id).where(versions.c.id == version_id).with_for_update())
    over = (pins.c.until <= now) | (pins.c.until > latest)
    conn.execute(delete(pins).where(pins.c.version_id == version_id, over))
    counted = select(func.count()).where(pins.c.version_id == version_id)
    return int(conn.scalar(counted) or 0)
