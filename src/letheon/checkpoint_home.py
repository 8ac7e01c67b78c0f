"""Where a model keeps its states on disk: in a directory of its own.

The home of a model is a sub-directory of `checkpoint_dir` whose name is drawn at `fit`, so that
what is in it belongs to one model: after a commit whatever the model does not refer to is
destroyed, also what a killed process left behind. Nothing is ever reused by a later `fit`.
"""

import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from letheon import state
from letheon.exceptions import ChangedParametersError, CheckpointError, CorruptFileError

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
    keep : iterable of fitted models that have a `checkpoint_dir`
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
    undestroyed = [
        file for path in orphans for file in state.DirectoryStore(path).keep_only(frozenset())
    ]
    if undestroyed:
        raise CheckpointError(f"could not be destroyed: {', '.join(undestroyed)}")
    return len(orphans)


class DestructionReport(NamedTuple):
    """What a destruction of states could not do."""

    missing: tuple[str, ...] = ()
    """Names of states that had to go and were not there: moved or copied elsewhere, maybe."""
    undestroyed: tuple[str, ...] = ()
    """Files that could not be destroyed."""


class CheckpointDirectory:
    """The home of one model, or none: then nothing is ever there.

    Attributes
    ----------
    home : str or None
        The directory.
    store : DirectoryStore or None
        Reads and writes in it.
    """

    def __init__(self, home: str | None) -> None:
        self.home = home
        self.store = None if home is None else state.DirectoryStore(home)

    def names(self) -> frozenset[str]:
        """Return the names of all states that are kept in the directory."""
        return frozenset() if self.store is None else self.store.names()

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Check that states can be kept; if the block fails, destroy those kept inside it.

        Raises `CheckpointError` at once, before any training, where they could not be written.
        """
        before = self.names()
        try:
            if self.store is not None:
                self.store.verify_writable()
            yield
        except BaseException:
            self.destroy_all_but(before)
            raise

    def destroy_all_but(self, names: frozenset[str]) -> tuple[str, ...]:
        """Destroy every state that is not named; return the names of files that resisted."""
        return () if self.store is None else self.store.keep_only(names)

    def purge(self, before: frozenset[str], after: frozenset[str]) -> DestructionReport:
        """Destroy all but the states named `after`; those `before` are expected to be there."""
        missing = sorted(before - after - self.names())
        return DestructionReport(tuple(missing), self.destroy_all_but(after))


class HomeMixin:
    """Mixin for models with a parameter `checkpoint_dir`; stands before `ForgetMixin`.

    A family adds `home_attributes` to `_not_digested`, calls `_require_home_in_place` before a
    request, installs what `_place` returns together with its model, and ends with `_account`.

    Attributes
    ----------
    checkpoint_home_ : str or None
        The directory of this model's states.
    checkpoint_given_ : str or None
        `checkpoint_dir` as it was when that directory was chosen.
    undestroyed_ : tuple of str
        Files that saw forgotten rows and resisted.
    unaccounted_ : tuple of str
        Names of states that saw forgotten rows and were not found.
    """

    home_attributes: ClassVar[frozenset[str]] = frozenset(
        {"checkpoint_home_", "checkpoint_given_", "undestroyed_", "unaccounted_"}
    )

    checkpoint_dir: Any
    checkpoint_home_: str | None
    checkpoint_given_: Any
    undestroyed_: tuple[str, ...]
    unaccounted_: tuple[str, ...]

    def _new_home(self) -> str | None:
        """Directory for the states of a new fit, if they are kept on disk."""
        if self.checkpoint_dir is None:
            return None
        return str(Path(self.checkpoint_dir).absolute() / secrets.token_hex(16))

    def _current_home(self) -> str | None:
        """Directory of this model's states: that of the fit, or where the caller has moved it."""
        held = self.checkpoint_home_
        if held is None or self.checkpoint_dir is None:
            return self._new_home()
        if not is_home(Path(held)):  # a file may say anything
            raise CorruptFileError(f"checkpoint_home_={held!r} is no directory of a letheon model")
        if os.fspath(self.checkpoint_dir) == self.checkpoint_given_:
            return held
        return str(Path(self.checkpoint_dir).absolute() / Path(held).name)

    def _require_home_in_place(self) -> None:
        """Raise if `checkpoint_dir` was changed and the states were left where they lay."""
        held = self.checkpoint_home_
        if held is not None and held != self._current_home() and Path(held).exists():
            raise ChangedParametersError(
                f"checkpoint_dir was changed after fit, but states still lie in {held}; they may "
                "hold people to be forgotten. Move that directory too, or set checkpoint_dir back."
            )

    def _describe_home(self, home: str | None) -> dict[str, Any]:
        """Return the attributes that say where the states lie from now on."""
        given = None if home is None else os.fspath(self.checkpoint_dir)
        return {"checkpoint_home_": home, "checkpoint_given_": given}

    def _record_destruction(self, purge: DestructionReport, *, afresh: bool) -> list[str]:
        """Record what could not be destroyed and return warnings; a new fit starts `afresh`."""
        before = () if afresh else self.unaccounted_
        self.unaccounted_ = (*before, *purge.missing)
        self.undestroyed_ = purge.undestroyed
        return [
            *_warn_missing(purge.missing, self.checkpoint_home_),
            *_warn_undestroyed(purge.undestroyed),
        ]

    def _list_residue(self) -> tuple[str, ...]:
        """What forgotten rows may have touched and is still on a disk: for the guarantee."""
        held = vars(self)
        return (
            *(f"{file} could not be destroyed" for file in held.get("undestroyed_", ())),
            *(f"state {name} was not found" for name in held.get("unaccounted_", ())),
        )

    def _destroy_files(self) -> list[str]:
        """Destroy the states on disk; the object is about to be replaced."""
        return [message for home in self._old_homes() for message in destroy_home(home)]

    def _old_homes(self) -> list[str]:
        """Directories where states of this model may lie: that of the fit, and a moved one."""
        held = vars(self).get("checkpoint_home_")
        if held is None:
            return []
        if self.checkpoint_dir is None:
            return [held]
        moved = str(Path(self.checkpoint_dir).absolute() / Path(held).name)
        return list(dict.fromkeys([held, moved]))


def destroy_home(home: str | None) -> list[str]:
    """Destroy all states in a model's directory, if it has one; return warnings."""
    if home is None or not is_home(Path(home)):
        return []
    return _warn_undestroyed(CheckpointDirectory(home).destroy_all_but(frozenset()))


def _warn_missing(missing: tuple[str, ...], home: str | None) -> list[str]:
    if not missing:
        return []
    what = f"{len(missing)} saved state(s) that saw forgotten rows were not found in {home}"
    return [f"{what}, so not destroyed; if you moved or copied them, destroy them there"]


def _warn_undestroyed(files: tuple[str, ...]) -> list[str]:
    if not files:
        return []
    what = f"{len(files)} checkpoint file(s) could not be destroyed, among them {files[0]}"
    return [f"{what}; remove them: they saw rows that the model has forgotten"]
