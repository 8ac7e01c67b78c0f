"""Where the states after each stage are kept: in memory, or in a directory of the model's own.

The directory is ``checkpoint_dir / key`` with a key drawn at `fit`, so that everything in it
belongs to one model: after a commit whatever the model does not refer to is destroyed, also what
a killed process left behind. Nothing is ever reused by a later `fit`; a missing or altered file is
noticed by its hash and trained again.
"""

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from letheon import state
from letheon.exceptions import CheckpointWarning, StateError
from letheon.sharded._stages import Blob


@dataclass(frozen=True)
class SavedState:
    """State after a stage: in memory (`data`), or in the model's directory (`data` is None)."""

    digest: str
    sha256: str
    data: bytes | None

    def _digest_state(self) -> dict[str, Any]:
        """Only what was learned counts, not where it is kept."""
        return {"digest": self.digest}


class StateShelf:
    """Keeps, reads and destroys the states of one model."""

    def __init__(self, home: str | None) -> None:
        self._store = None if home is None else state.DirectoryStore(home)

    def keep(self, blob: Blob | None) -> SavedState | None:
        """Keep a new state; None stands for a stage before any row was seen."""
        if blob is None:
            return None
        if self._store is None:
            return SavedState(blob.digest, hashlib.sha256(blob.data).hexdigest(), blob.data)
        return SavedState(blob.digest, self._store.put(blob.data).sha256, None)

    def read(self, saved: SavedState) -> bytes | None:
        """Return the bytes of a state, or None with a warning when they are lost or altered."""
        if saved.data is not None:
            return saved.data
        try:
            if self._store is None:
                raise StateError("the model has no checkpoint_dir any more")
            return self._store.get(state.Checkpoint(saved.sha256))
        except StateError as error:
            warnings.warn(
                f"a saved state cannot be used and is trained again: {error}",
                CheckpointWarning,
                stacklevel=2,
            )
            return None

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Check that states can be kept; if the block fails, destroy those kept inside it.

        Raises `CheckpointError` at once, before any training, where they could not be written.
        """
        before = frozenset() if self._store is None else self._store.names()
        try:
            if self._store is not None:
                self._store.verify_writable()
            yield
        except BaseException:
            self.destroy_all_but(before)
            raise

    def destroy_all_but(self, names: frozenset[str]) -> tuple[str, ...]:
        """Destroy every state that is not named; return the names of files that resisted."""
        return () if self._store is None else self._store.keep_only(names)
