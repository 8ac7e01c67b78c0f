"""Save and load models: files around `letheon.state`; no pickle."""

import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO

from sklearn.exceptions import NotFittedError

from letheon.base import lock_model
from letheon.exceptions import (
    CannotForgetError,
    CorruptFileError,
    EnvironmentWarning,
    UntrustedClassError,
)
from letheon.state import (
    Contents,
    Instance,
    Record,
    environment,
    names_of,
    read_contents,
    require_trust,
    write_file,
)

__all__ = ["FileInfo", "inspect", "load", "save"]

KIND = "model"


@dataclass(frozen=True)
class FileInfo:
    """What a file says about itself.

    Parameters
    ----------
    format : str
        Format of the file, ``"letheon-v1"``.
    class_name : str
        Qualified name of the model's class.
    versions : dict
        Versions of Python, NumPy, SciPy, scikit-learn and the format it was written with.
    size : int
        Bytes on disk.
    classes : tuple of str
        Every class and function that the file names, sorted.
    trained_with : dict
        What the model was trained with, as far as it affects results: versions, and for a net the
        device. Empty where the file does not say.
    needs_trust : str
        What `load` refuses in it without `trusted`, and what to trust; empty if nothing.
    """

    format: str
    class_name: str
    versions: dict[str, str]
    size: int
    classes: tuple[str, ...]
    trained_with: dict[str, str]
    needs_trust: str = ""


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Save a fitted model to one file that `load` reads: no pickle, nothing executable.

    The file appears whole or not at all, and only its owner can read it. The same model gives the
    same bytes. A model that keeps its rows saves them too: the file is personal data. A model with
    classes of yours, or with settings that `load` does not take from files, is saved as any other;
    to load it they must be trusted.

    Parameters
    ----------
    model : estimator of letheon, or any object with `forget` and `digest`
        The model.
    path : str or path-like
        The file; an existing one is replaced.

    Raises
    ------
    CannotForgetError
        If the object is no forgetting estimator.
    NotFittedError
        If the model was not fitted: it holds nothing but settings.
    UnsupportedStateError
        If something in the model has no canonical bytes.
    OSError
        If the file cannot be written; an old one is still there then.
    """
    if isinstance(model, type) or not _can_forget(model):
        raise CannotForgetError(
            f"save takes a letheon estimator, not {type(model).__qualname__}; wrap it: "
            "NaiveUnlearner(estimator).fit(X, y, ids=ids)"
        )
    if not _is_fitted(model):
        raise NotFittedError(
            f"this {type(model).__qualname__} is not fitted, so there is nothing to save but its "
            "settings; call fit first"
        )
    with lock_model(model):
        write_file(path, model, kind=KIND)


def _can_forget(model: Any) -> bool:
    return all(callable(getattr(model, name, None)) for name in ("forget", "digest"))


def _is_fitted(model: Any) -> bool:
    """Whether the model says so; one that does not know is taken as it is."""
    asked = getattr(model, "__sklearn_is_fitted__", None)
    return asked is None or bool(asked())


def load(
    path: str | os.PathLike[str] | BinaryIO, *, trusted: Any = (), max_memory: int | None = None
) -> Any:
    """Load a model that `save` wrote.

    Parameters
    ----------
    path : str, path-like or open file
        The file, by name or open for reading bytes.
    trusted : iterable of class, function or str, optional
        Classes and functions of yours, or their qualified names, that the file may use besides
        letheon's and scikit-learn's. Trust only what you would import yourself. A class of letheon
        or scikit-learn in it may have any settings, also those that read files or run code.
    max_memory : int, optional
        Bytes that loading may take. By default 64 MiB and 4 times the size of the file, and
        64 MiB and 16 times the size for a forest of letheon. Honest files stay far below, except
        those with many small Python objects, such as a vocabulary of a million words.

    Returns
    -------
    object
        The model.

    Raises
    ------
    TypeError
        If `trusted` is a single name or class instead of several.
    CorruptFileError
        If the file is truncated, altered, or no letheon file.
    MemoryLimitError
        If loading would take more memory than `max_memory`; it was not allocated.
    NewerFormatError
        If a later letheon wrote it.
    UntrustedClassError
        If it names a class that nobody allowed, or a known class has a setting that could read
        files or run code; nothing was built then.

    Warns
    -----
    EnvironmentWarning
        If library versions differ: a retrained part may not match the rest bit by bit.
    """
    _require_several(trusted)
    contents = read_contents(path, max_memory=max_memory)
    if contents.kind != KIND:
        raise CorruptFileError(f"{contents.name} holds a {contents.kind}, not a model")
    model = contents.build(trusted)
    try:
        can_forget = _can_forget(model)
    except Exception as error:  # attributes that are computed from what the file says
        raise CorruptFileError(f"{contents.name} makes no sense: {error!r}") from error
    if not can_forget:
        raise CorruptFileError(
            f"{contents.name} holds a {type(model).__qualname__}, which cannot forget"
        )
    _warn_about(contents)
    return model


def _require_several(trusted: Any) -> None:
    # A string is iterable too: its letters would be taken for names.
    if isinstance(trusted, str) or callable(trusted):
        shown = getattr(trusted, "__qualname__", repr(trusted))
        raise TypeError(f"trusted={shown} is a single value; give a list: trusted=[{shown}]")
    if not isinstance(trusted, Iterable):
        raise TypeError(f"trusted={trusted!r}; expected a list of classes, functions or names")


def _warn_about(contents: Contents) -> None:
    here, versions = environment(), contents.versions
    differ = [
        f"{name} {versions.get(name, 'absent')} (here {here.get(name, 'absent')})"
        for name in sorted(versions.keys() | here.keys())
        if versions.get(name) != here.get(name)
    ]
    if differ:
        warnings.warn(
            f"{contents.name} was written with {', '.join(differ)}; parts trained from now on "
            "may differ from it in the last bits",
            EnvironmentWarning,
            stacklevel=3,
        )


def inspect(path: str | os.PathLike[str], *, max_memory: int | None = None) -> FileInfo:
    """Say what is in a file, verified, without importing or constructing anything from it.

    Parameters
    ----------
    path : str or path-like
        The file.
    max_memory : int, optional
        Bytes that reading may take, as for `load`.

    Returns
    -------
    FileInfo
    """
    contents = read_contents(path, max_memory=max_memory)
    names = names_of(contents.tree)
    return FileInfo(
        format=contents.format,
        class_name=getattr(contents.tree, "name", type(contents.tree).__name__),
        versions=contents.versions,
        size=contents.size,
        classes=names,
        trained_with=_trained_with(contents.tree),
        needs_trust=_needed_trust(contents.tree),
    )


def _needed_trust(tree: Any) -> str:
    try:
        require_trust(tree)
    except UntrustedClassError as error:
        return str(error)
    return ""


def _trained_with(tree: Any) -> dict[str, str]:
    """Return the model's `environment_` as the tree has it; whatever else is there is left out."""
    attributes = dict(tree.state.items) if isinstance(tree, Instance) else {}
    found = attributes.get("environment_")
    if not isinstance(found, Record):
        return {}
    return {name: text for name, text in found.items if isinstance(text, str)}
