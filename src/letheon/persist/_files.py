"""`save`, `load` and `inspect`."""

import os
import warnings
from dataclasses import dataclass
from typing import Any

from letheon.base import exclusive
from letheon.exceptions import CannotForgetError, CorruptFileError, EnvironmentWarning
from letheon.state import build, environment, names_of, read_contents, write_file

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
    """

    format: str
    class_name: str
    versions: dict[str, str]
    size: int
    classes: tuple[str, ...]


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Save a fitted model to one file that `load` reads: no pickle, nothing executable.

    The file appears whole or not at all, and only its owner can read it. The same model gives the
    same bytes. A model that keeps its rows saves them too: the file is personal data.

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
    UnsupportedStateError
        If something in the model has no canonical bytes.
    OSError
        If the file cannot be written; an old one is still there then.
    """
    ours = type(model).__module__.startswith("letheon.")
    if isinstance(model, type) or not (ours or _can_forget(model)):
        raise CannotForgetError(
            f"save takes a letheon estimator, not {type(model).__qualname__}; wrap it: "
            "NaiveUnlearner(estimator).fit(X, y, ids=ids)"
        )
    with exclusive(model):
        write_file(path, model, kind=KIND)


def _can_forget(model: Any) -> bool:
    return all(callable(getattr(model, name, None)) for name in ("forget", "digest"))


def load(path: str | os.PathLike[str], *, trusted: Any = ()) -> Any:
    """Load a model that `save` wrote.

    Parameters
    ----------
    path : str or path-like
        The file.
    trusted : iterable of class, function or str, optional
        Classes and functions of yours, or their qualified names, that the file may use besides
        letheon's and scikit-learn's. Trust only what you would import yourself.

    Returns
    -------
    object
        The model.

    Raises
    ------
    CorruptFileError
        If the file is truncated, altered, or no letheon file.
    NewerFormatError
        If a later letheon wrote it.
    UntrustedClassError
        If it names a class that nobody allowed; nothing was imported then.

    Warns
    -----
    EnvironmentWarning
        If library versions differ: a retrained part may not match the rest bit by bit.
    """
    contents = read_contents(path)
    if contents.kind != KIND:
        raise CorruptFileError(f"{os.fspath(path)} holds a {contents.kind}, not a model")
    model = build(contents, trusted)
    if not _can_forget(model):
        raise CorruptFileError(
            f"{os.fspath(path)} holds a {type(model).__qualname__}, which cannot forget"
        )
    _warn_about(contents.versions, path)
    return model


def _warn_about(versions: dict[str, str], path: str | os.PathLike[str]) -> None:
    here = environment()
    differ = [
        f"{name} {versions.get(name, 'absent')} (here {here.get(name, 'absent')})"
        for name in sorted(versions.keys() | here.keys())
        if versions.get(name) != here.get(name)
    ]
    if differ:
        warnings.warn(
            f"{os.fspath(path)} was written with {', '.join(differ)}; parts trained from now on "
            "may differ from it in the last bits",
            EnvironmentWarning,
            stacklevel=3,
        )


def inspect(path: str | os.PathLike[str]) -> FileInfo:
    """Say what is in a file, verified, without importing or constructing anything from it.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    FileInfo
    """
    contents = read_contents(path)
    names = names_of(contents.tree)
    return FileInfo(
        format=contents.format,
        class_name=getattr(contents.tree, "name", type(contents.tree).__name__),
        versions=contents.versions,
        size=contents.size,
        classes=names,
    )
