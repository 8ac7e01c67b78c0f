"""Reading the model that is served: always a published one, never one half-way."""

import threading
from types import TracebackType
from typing import Any, Self

from sqlalchemy import select

from letheon.exceptions import CorruptFileError, KeyFileError, LedgerError, LedgerMissingError
from letheon.ledger.core import Core
from letheon.ledger.models.pins import Pins
from letheon.ledger.models.versions import ModelRow, VersionRow, read_model, version_of
from letheon.ledger.tables import heads

__all__ = ["Reader"]

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
