"""The states after each stage of a shard: in memory, or in the model's own directory.

A missing or altered file is noticed by its hash and trained again.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

from letheon import state
from letheon.exceptions import StateError
from letheon.homes import Shelf
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


class StateShelf(Shelf):
    """Keeps, reads and destroys the states of one model."""

    def __init__(self, home: str | None) -> None:
        super().__init__(home)
        self._unusable = 0

    def keep(self, blob: Blob | None) -> SavedState | None:
        """Keep a new state; None stands for a stage before any row was seen."""
        if blob is None:
            return None
        if self.store is None:
            return SavedState(blob.digest, hashlib.sha256(blob.data).hexdigest(), blob.data)
        return SavedState(blob.digest, self.store.put(blob.data).sha256, None)

    def read(self, saved: SavedState) -> bytes | None:
        """Return the bytes of a state, or None when they are lost or altered."""
        if saved.data is not None:
            return saved.data
        try:
            if self.store is None:
                raise StateError("the model has no checkpoint_dir any more")
            return self.store.get(state.Checkpoint(saved.sha256))
        except StateError:
            self._unusable += 1
            return None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to tell the caller about states that could not be used."""
        if not self._unusable:
            return ()
        what = f"{self._unusable} saved state(s) in {self.home} are missing or altered"
        return (f"{what}; what they held was trained again",)
