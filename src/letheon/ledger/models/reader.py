"""Reading the model that is served: always a published one, never one half-way."""

import secrets
import threading
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, delete, exists, func, insert, select, update

from letheon.exceptions import CorruptFileError, KeyFileError, LedgerError, LedgerMissingError
from letheon.ledger.core import Core
from letheon.ledger.models.versions import ModelRow, VersionRow, read_model, version_of
from letheon.ledger.tables import heads, pins, purge_steps, versions

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


_TRIES = 5


class Reader:
    """The head of a model, kept up to date.

    Each use looks at the head (one SELECT) and loads the model again when it has moved. The version
    in use is pinned: a purge waits until the reader has moved on, or has given no sign for
    ``policy.pin_seconds``. Threads may share a reader.

    Parameters
    ----------
    core : Core
        The ledger.
    model : ModelRow
        The model.
    owner : str
        Name of this process.
    """

    def __init__(self, core: Core, model: ModelRow, owner: str) -> None:
        self._core = core
        self._model = model
        self._pins = Pins(core, owner)
        self._lock = threading.Lock()
        self._version: VersionRow | None = None
        self._pin = ""
        self._pinned_until = 0
        self._loaded: Any = None
        self._is_closed = False

    @property
    def model(self) -> Any:
        """The model as it is served now."""
        with self._lock:
            if self._is_closed:
                raise LedgerError(
                    "this reader is closed; ledger.models.reader(model) makes another"
                )
            for _ in range(_TRIES):
                try:
                    self._follow()
                except (LedgerMissingError, CorruptFileError, KeyFileError):
                    # The head moved on and the old file was purged between two looks.
                    self._version = None
                    continue
                return self._loaded
            self._follow()
            return self._loaded

    @property
    def address(self) -> str:
        """SHA-256 of the file of the model in use, as certificates quote it; "" before any use."""
        return "" if self._version is None else self._version.model_blob

    def predict(self, X: Any) -> Any:
        """Predict with the model as it is served now."""
        return self.model.predict(X)

    def predict_proba(self, X: Any) -> Any:
        """Predict probabilities with the model as it is served now."""
        return self.model.predict_proba(X)

    def close(self) -> None:
        """Let the version in use go; the reader cannot be used any more."""
        with self._lock:
            self._is_closed = True
            if self._pin:
                self._pins.release(self._pin)
            self._version, self._pin, self._loaded = None, "", None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _follow(self) -> None:
        with self._core.database.reading() as conn:
            wanted = heads.c.model_id == self._model.id
            head_id = int(conn.execute(select(heads.c.version_id).where(wanted)).scalar_one())
            is_same = self._version is not None and self._version.id == head_id
            version = None if is_same else version_of(conn, head_id)
        if version is None:
            self._stay()
            return
        pin = self._pins.pin(version.id, self._core.settings.policy.pin_seconds)
        loaded = read_model(self._core, self._model, version)
        old, self._pin, self._version, self._loaded = self._pin, pin, version, loaded
        self._note_pinned()
        if old:
            self._pins.release(old)

    def _stay(self) -> None:
        """Renew the pin when half of its time is over."""
        if (
            self._core.clock() * 2
            >= self._pinned_until * 2 - self._core.settings.policy.pin_seconds
        ):
            self._pins.renew(self._pin, self._core.settings.policy.pin_seconds)
            self._note_pinned()

    def _note_pinned(self) -> None:
        self._pinned_until = self._core.clock() + self._core.settings.policy.pin_seconds
