"""Save and load models as files of `letheon.state`, without pickle."""

import logging
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
from letheon.predictor import Predictor
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
_logger = logging.getLogger(__name__)
_PREDICTOR = "predictor"


@dataclass(frozen=True)
class FileInfo:
    """Description of a file, from `inspect`.

    Parameters
    ----------
    format : str
        Format of the file, ``"letheon-v1"``.
    class_name : str
        Qualified name of the model's class.
    versions : dict
        Versions of Python, NumPy, SciPy, scikit-learn and the format with which the file was
        written.
    size : int
        Bytes on disk.
    classes : tuple of str
        All classes and functions in the file, sorted.
    trained_with : dict
        Versions at training time of libraries that affect results, and the device of a network.
        Empty if the file does not contain them.
    needs_trust : str
        Why `load` needs `trusted`, and what to trust; empty if `load` does not need it.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import letheon
    >>> from sklearn.naive_bayes import GaussianNB
    >>> model = letheon.NaiveUnlearner(GaussianNB(), random_state=0).fit([[0.0], [1.0]], [0, 1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     letheon.save(model, Path(folder, "model.letheon"))
    ...     info = letheon.persist.inspect(Path(folder, "model.letheon"))
    >>> info.needs_trust
    ''
    """

    format: str
    class_name: str
    versions: dict[str, str]
    size: int
    classes: tuple[str, ...]
    trained_with: dict[str, str]
    needs_trust: str = ""

    def __str__(self) -> str:
        """Return class, format, size, versions and needed trust as several lines of text."""
        versions = {"written with": self.versions, "trained with": self.trained_with}
        return "\n".join(
            [
                f"{self.class_name}, format {self.format}, {self.size:,} bytes",
                *(
                    f"{label}: " + ", ".join(f"{name} {value}" for name, value in table.items())
                    for label, table in versions.items()
                    if table
                ),
                f"classes and functions: {len(self.classes)}",
                f"needs trust: {self.needs_trust or 'no'}",
            ]
        )


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Save a fitted model to one file that `load` reads, without pickle or executable content.

    The file is written completely or not at all, and only its owner can read it. The same model
    gives the same bytes. A model that stores its rows saves them too: the file is personal data.
    You can also save a model that uses your own classes, or settings that `load` rejects by
    default; to load it, pass the classes as `trusted`.

    Parameters
    ----------
    model : estimator of letheon, predictor, or any object with `forget` and `digest`
        The model.
    path : str or path-like
        The file; an existing file is replaced.

    Raises
    ------
    CannotForgetError
        If the object is not a forgetting estimator.
    NotFittedError
        If the model is not fitted.
    UnsupportedStateError
        If a value in the model has no canonical bytes.
    OSError
        If the file cannot be written; an existing file is not changed.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import letheon
    >>> from sklearn.naive_bayes import GaussianNB
    >>> model = letheon.NaiveUnlearner(GaussianNB(), random_state=0).fit([[0.0], [1.0]], [0, 1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     letheon.save(model, Path(folder, "model.letheon"))
    ...     copy = letheon.load(Path(folder, "model.letheon"))
    >>> copy.digest() == model.digest()
    True
    """
    if isinstance(model, Predictor):
        write_file(path, model, kind=_PREDICTOR)
        return
    if isinstance(model, type) or not _can_forget(model):
        raise CannotForgetError(
            f"save takes a letheon estimator, not {type(model).__qualname__}; wrap it: "
            "NaiveUnlearner(estimator).fit(X, y, ids=ids)"
        )
    if not _is_fitted(model):
        raise NotFittedError(
            f"this {type(model).__qualname__} is not fitted, so there is nothing to save; call fit "
            "first"
        )
    with lock_model(model):
        write_file(path, model, kind=KIND)
    _logger.info("saved a %s", type(model).__qualname__)


def _can_forget(model: Any) -> bool:
    return all(callable(getattr(model, name, None)) for name in ("forget", "digest"))


def _is_fitted(model: Any) -> bool:
    """Return whether the model is fitted; True if it does not have `__sklearn_is_fitted__`."""
    is_fitted = getattr(model, "__sklearn_is_fitted__", None)
    return is_fitted is None or bool(is_fitted())


def load(
    path: str | os.PathLike[str] | BinaryIO, *, trusted: Any = (), max_memory: int | None = None
) -> Any:
    """Load a model or predictor that `save` wrote, or a predictor that a ledger wrote.

    Parameters
    ----------
    path : str, path-like or open file
        The file, by name or open for reading bytes.
    trusted : iterable of class, function or str, optional
        Your own classes and functions, or their qualified names, that the file may use in addition
        to those of letheon and scikit-learn. Trust only code that you would import yourself. A
        class of letheon or scikit-learn in this list may have any settings, even settings that
        read files or run code.
    max_memory : int, optional
        Limit on the memory for loading, in bytes. By default 64 MiB plus 4 times the size of the
        file, or plus 16 times the size for a letheon forest. Ordinary files need far less, except
        those with many small Python objects, such as a vocabulary of a million words.

    Returns
    -------
    object
        The model.

    Raises
    ------
    TypeError
        If `trusted` is a single name, class or function instead of a list.
    CorruptFileError
        If the file is truncated, altered, or not a letheon file.
    MemoryLimitError
        If loading would take more memory than `max_memory`; nothing was allocated.
    NewerFormatError
        If a later version of letheon wrote the file.
    UntrustedClassError
        If the file names a class that is not allowed, or a known class has a setting that could
        read files or run code; nothing was constructed.

    Warns
    -----
    EnvironmentWarning
        If library versions differ: a retrained part may differ from the rest in the last bits.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import letheon
    >>> from sklearn.naive_bayes import GaussianNB
    >>> model = letheon.NaiveUnlearner(GaussianNB(), random_state=0).fit([[0.0], [1.0]], [0, 1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     letheon.save(model, Path(folder, "model.letheon"))
    ...     copy = letheon.load(Path(folder, "model.letheon"))
    >>> copy.predict([[0.9]]).tolist()
    [1]
    """
    _require_collection(trusted)
    contents = read_contents(path, max_memory=max_memory)
    if contents.kind not in (KIND, _PREDICTOR):
        raise CorruptFileError(
            f"{contents.name} is a file of kind {contents.kind!r}; expected a model or a predictor"
        )
    model = contents.build(trusted)
    try:
        can_forget = _can_forget(model) or isinstance(model, Predictor)
    except Exception as error:  # properties may fail on values of the file
        raise CorruptFileError(f"{contents.name} is not a valid model file: {error!r}") from error
    if not can_forget:
        raise CorruptFileError(
            f"{contents.name} contains a {type(model).__qualname__}, which is not a model: it has "
            "no methods forget and digest"
        )
    _warn_version_mismatch(contents)
    _logger.info("loaded a %s", type(model).__qualname__)
    return model


def _require_collection(trusted: Any) -> None:
    # A string is iterable: its letters would be used as names.
    if isinstance(trusted, str) or callable(trusted):
        shown = getattr(trusted, "__qualname__", repr(trusted))
        raise TypeError(f"trusted={shown} is a single value; pass a list: trusted=[{shown}]")
    if not isinstance(trusted, Iterable):
        raise TypeError(f"trusted={trusted!r} is not a list of classes, functions or names")


def _warn_version_mismatch(contents: Contents) -> None:
    current, versions = environment(), contents.versions
    differ = [
        f"{name} {versions.get(name, 'absent')} (now {current.get(name, 'absent')})"
        for name in sorted(versions.keys() | current.keys())
        if versions.get(name) != current.get(name)
    ]
    if differ and versions:
        warnings.warn(
            f"{contents.name} was written with {', '.join(differ)}; newly trained parts may differ "
            "in the last bits",
            EnvironmentWarning,
            stacklevel=3,
        )


def inspect(path: str | os.PathLike[str], *, max_memory: int | None = None) -> FileInfo:
    """Verify and describe a file, without importing or constructing anything from it.

    Parameters
    ----------
    path : str or path-like
        The file.
    max_memory : int, optional
        Limit on the memory for reading, in bytes, as for `load`.

    Returns
    -------
    FileInfo

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import letheon
    >>> from sklearn.naive_bayes import GaussianNB
    >>> model = letheon.NaiveUnlearner(GaussianNB(), random_state=0).fit([[0.0], [1.0]], [0, 1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     letheon.save(model, Path(folder, "model.letheon"))
    ...     info = letheon.persist.inspect(Path(folder, "model.letheon"))
    >>> info.class_name
    'letheon.naive.NaiveUnlearner'
    """
    contents = read_contents(path, max_memory=max_memory)
    names = names_of(contents.tree)
    return FileInfo(
        format=contents.format,
        class_name=getattr(contents.tree, "name", type(contents.tree).__name__),
        versions=contents.versions,
        size=contents.size,
        classes=names,
        trained_with=_read_environment(contents.tree),
        needs_trust=_describe_missing_trust(contents.tree),
    )


def _describe_missing_trust(tree: Any) -> str:
    try:
        require_trust(tree)
    except UntrustedClassError as error:
        return str(error)
    return ""


def _read_environment(tree: Any) -> dict[str, str]:
    """Return the strings in the attribute `environment_` of the stored model, by name."""
    attributes = dict(tree.state.items) if isinstance(tree, Instance) else {}
    record = attributes.get("environment_")
    if not isinstance(record, Record):
        return {}
    return {name: text for name, text in record.items if isinstance(text, str)}
