"""Where the states after each stage are kept: in memory, or in a directory of the model's own.

The directory is a sub-directory of `checkpoint_dir` whose name is drawn at `fit`, so that what is
in it belongs to one model: after a commit whatever the model does not refer to is destroyed, also
what a killed process left behind. Nothing is ever reused by a later `fit`; a missing or altered
file is noticed by its hash and trained again.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from letheon import state
from letheon.exceptions import CheckpointError, StateError
from letheon.sharded._stages import Blob

_HOME = re.compile("[0-9a-f]{32}")


def is_home(path: Path) -> bool:
    """Return whether a path has the name of a directory that one model keeps its states in."""
    return _HOME.fullmatch(path.name) is not None


def sweep_checkpoints(checkpoint_dir: str | os.PathLike[str], *, keep: Iterable[Any] = ()) -> int:
    """Destroy the saved states of models that are gone: of a search, a killed fit, a lost object.

    Parameters
    ----------
    checkpoint_dir : path
        The directory that was given to the models.
    keep : iterable of fitted SISA models
        Models whose states stay.

    Returns
    -------
    int
        How many sub-directories were destroyed. Anything that letheon did not write stays.

    Raises
    ------
    CheckpointError
        Something could not be destroyed; all the rest is.
    """
    wanted = {Path(model.checkpoint_home_).name for model in keep if model.checkpoint_home_}
    orphans = [
        path
        for path in sorted(Path(checkpoint_dir).iterdir())
        if is_home(path) and path.is_dir() and path.name not in wanted
    ]
    resisting = [
        file for path in orphans for file in state.DirectoryStore(path).keep_only(frozenset())
    ]
    if resisting:
        raise CheckpointError(f"could not be destroyed: {', '.join(resisting)}")
    return len(orphans)


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
        self.home = home
        self._store = None if home is None else state.DirectoryStore(home)
        self._unusable = 0

    def keep(self, blob: Blob | None) -> SavedState | None:
        """Keep a new state; None stands for a stage before any row was seen."""
        if blob is None:
            return None
        if self._store is None:
            return SavedState(blob.digest, hashlib.sha256(blob.data).hexdigest(), blob.data)
        return SavedState(blob.digest, self._store.put(blob.data).sha256, None)

    def read(self, saved: SavedState) -> bytes | None:
        """Return the bytes of a state, or None when they are lost or altered."""
        if saved.data is not None:
            return saved.data
        try:
            if self._store is None:
                raise StateError("the model has no checkpoint_dir any more")
            return self._store.get(state.Checkpoint(saved.sha256))
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

    def names(self) -> frozenset[str]:
        """Return the names of all states that are kept in the directory."""
        return frozenset() if self._store is None else self._store.names()

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Check that states can be kept; if the block fails, destroy those kept inside it.

        Raises `CheckpointError` at once, before any training, where they could not be written.
        """
        before = self.names()
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
