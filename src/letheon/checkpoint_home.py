"""The checkpoint home: the directory of the saved states of one model.

The home is a sub-directory of `checkpoint_dir` with a random name that `fit` draws, so its files
belong to one model. After a commit, all files that the model does not refer to are destroyed,
including files that interrupted processes left. A later `fit` never reuses files.
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
    """Return whether a path has the name of a checkpoint home."""
    return _HOME.fullmatch(path.name) is not None


def sweep_checkpoints(checkpoint_dir: str | os.PathLike[str], *, keep: Iterable[Any] = ()) -> int:
    """Destroy the saved states of models that no longer exist.

    Such states remain after a parameter search, or when a process is killed during `fit`.

    Parameters
    ----------
    checkpoint_dir : path
        The `checkpoint_dir` of the models.
    keep : iterable of fitted models that have a `checkpoint_dir`
        Models whose states are kept.

    Returns
    -------
    int
        Number of destroyed sub-directories. Other files are not changed.

    Raises
    ------
    CheckpointError
        Some files could not be destroyed; all others were destroyed.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from letheon import SISAClassifier
    >>> from letheon.sharded import sweep_checkpoints
    >>> model = SISAClassifier(
    ...     GaussianNB(), n_shards=1, n_slices=2, stage_data="new", epochs=1, random_state=0
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = model.set_params(checkpoint_dir=folder)
    ...     model = model.fit([[0], [1], [2], [3]], [0, 0, 1, 1])
    ...     sweep_checkpoints(folder, keep=[model]), sweep_checkpoints(folder)
    (0, 1)
    """
    kept = {Path(model.checkpoint_home_).name for model in keep if model.checkpoint_home_}
    orphans = [
        path
        for path in sorted(Path(checkpoint_dir).iterdir())
        if is_home(path) and path.is_dir() and path.name not in kept
    ]
    undestroyed = [
        file for path in orphans for file in state.DirectoryStore(path).keep_only(frozenset())
    ]
    if undestroyed:
        raise CheckpointError(
            f"these files could not be destroyed: {', '.join(undestroyed)}; delete them yourself"
        )
    return len(orphans)


class DestructionReport(NamedTuple):
    """States that could not be destroyed, or were missing."""

    missing: tuple[str, ...] = ()
    """Names of states to destroy that do not exist: perhaps moved or copied elsewhere."""
    undestroyed: tuple[str, ...] = ()
    """Files that could not be destroyed."""


class CheckpointDirectory:
    """The checkpoint home of one model. If the model has no home, it contains no states.

    Attributes
    ----------
    home : str or None
        The directory; None if the model has no home.
    store : DirectoryStore or None
        The store that reads and writes the files in the directory.
    """

    def __init__(self, home: str | None) -> None:
        self.home = home
        self.store = None if home is None else state.DirectoryStore(home)

    def names(self) -> frozenset[str]:
        """Return the names of all states in the directory."""
        return frozenset() if self.store is None else self.store.names()

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Run the ``with`` block; if it raises, destroy the states that it wrote.

        Raises `CheckpointError` before the block if states cannot be written.
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
        """Destroy all states except `names`; return files that could not be destroyed."""
        return () if self.store is None else self.store.keep_only(names)

    def purge(self, before: frozenset[str], after: frozenset[str]) -> DestructionReport:
        """Destroy all states except `after`.

        The report names the states in `before` that were to be destroyed but do not exist.
        """
        missing = sorted(before - after - self.names())
        return DestructionReport(tuple(missing), self.destroy_all_but(after))


class HomeMixin:
    """Mixin for models with a parameter `checkpoint_dir`; list it before `ForgetMixin`.

    An estimator adds `home_attributes` to `_not_digested` and calls `_require_home_in_place` before
    a request. It installs the attributes that `_describe_home` returns together with the new model,
    and calls `_record_destruction` last.

    Attributes
    ----------
    checkpoint_home_ : str or None
        Directory of the saved states of this model.
    checkpoint_given_ : str or None
        Value of `checkpoint_dir` when that directory was created.
    undestroyed_ : tuple of str
        Files that may contain forgotten rows and could not be destroyed.
    unaccounted_ : tuple of str
        Names of states that may contain forgotten rows and were missing when they should be
        destroyed.
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
        """Return a path for the states of a new fit, or None if `checkpoint_dir` is None."""
        if self.checkpoint_dir is None:
            return None
        return str(Path(self.checkpoint_dir).absolute() / secrets.token_hex(16))

    def _current_home(self) -> str | None:
        """Return the directory of the states.

        If `checkpoint_dir` was changed after `fit`, it is the same sub-directory of the new one.
        """
        home = self.checkpoint_home_
        if home is None or self.checkpoint_dir is None:
            return self._new_home()
        if not is_home(Path(home)):  # the attribute may come from a file
            raise CorruptFileError(
                f"checkpoint_home_={home!r} is not a checkpoint home: expected "
                f"a directory name of 32 hexadecimal digits"
            )
        if os.fspath(self.checkpoint_dir) == self.checkpoint_given_:
            return home
        return str(Path(self.checkpoint_dir).absolute() / Path(home).name)

    def _require_home_in_place(self) -> None:
        """Raise an error if `checkpoint_dir` was changed but the states were not moved to it."""
        home = self.checkpoint_home_
        if home is not None and home != self._current_home() and Path(home).exists():
            raise ChangedParametersError(
                "checkpoint_dir was changed after fit, but the saved states of the model are "
                f"still in {home} and may contain rows to forget. Move that directory into the new "
                "checkpoint_dir, or restore the old value of checkpoint_dir."
            )

    def _describe_home(self, home: str | None) -> dict[str, Any]:
        """Return the attributes that record the home of the states."""
        directory = None if home is None else os.fspath(self.checkpoint_dir)
        return {"checkpoint_home_": home, "checkpoint_given_": directory}

    def _record_destruction(self, purge: DestructionReport, *, is_new_fit: bool) -> list[str]:
        """Record states that could not be destroyed, and return warnings."""
        before = () if is_new_fit else self.unaccounted_
        self.unaccounted_ = (*before, *purge.missing)
        self.undestroyed_ = purge.undestroyed
        return [
            *_warn_missing(purge.missing, self.checkpoint_home_),
            *_warn_undestroyed(purge.undestroyed),
        ]

    def _list_residue(self) -> tuple[str, ...]:
        """Return one text for each state that may still contain forgotten rows on disk."""
        attributes = vars(self)
        return (
            *(f"{file} could not be destroyed" for file in attributes.get("undestroyed_", ())),
            *(f"state {name} was not found" for name in attributes.get("unaccounted_", ())),
        )

    def _destroy_files(self) -> list[str]:
        """Destroy all states on disk; return a warning for each file that remains."""
        return [message for home in self._old_homes() for message in destroy_home(home)]

    def _old_homes(self) -> list[str]:
        """Return the directories that may contain states.

        These are the directory of the last `fit`, and its new path if `checkpoint_dir` was changed.
        """
        home = vars(self).get("checkpoint_home_")
        if home is None:
            return []
        if self.checkpoint_dir is None:
            return [home]
        moved = str(Path(self.checkpoint_dir).absolute() / Path(home).name)
        return list(dict.fromkeys([home, moved]))


def destroy_home(home: str | None) -> list[str]:
    """Destroy all states in a checkpoint home; return a warning for each file that remains."""
    if home is None or not is_home(Path(home)):
        return []
    return _warn_undestroyed(CheckpointDirectory(home).destroy_all_but(frozenset()))


def _warn_missing(missing: tuple[str, ...], home: str | None) -> list[str]:
    if not missing:
        return []
    problem = f"{len(missing)} saved state(s) with forgotten rows were not found in {home}"
    return [f"{problem}, so not destroyed; if you moved or copied them, destroy them there"]


def _warn_undestroyed(files: tuple[str, ...]) -> list[str]:
    if not files:
        return []
    problem = f"{len(files)} checkpoint file(s) could not be destroyed, such as {files[0]}"
    return [f"{problem}; remove them: they contain rows that the model has forgotten"]
