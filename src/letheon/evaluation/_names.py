"""Settings and functions in words that fit into a report: no paths, no addresses in memory."""

import math
import os
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone

__all__ = ["name_of", "settings_of"]

# Seeds are told elsewhere, threads are not used, and a path tells of the machine.
_LEFT_OUT = frozenset({"random_state", "noise_seed", "n_jobs", "checkpoint_dir"})
_PLAIN = (bool, int, str, type(None))


def name_of(function: Any) -> str:
    """Return the name of a function, with what a partial one was given; else that of its class."""
    if isinstance(function, partial):
        given = [str(_words(value)) for value in function.args]
        given += [f"{name}={_words(value)}" for name, value in function.keywords.items()]
        return f"{name_of(function.func)}({', '.join(given)})"
    return str(getattr(function, "__name__", type(function).__name__))


def settings_of(estimator: Any) -> dict[str, Any]:
    """Return the parameters that differ from their defaults, in words where they are objects."""
    given = estimator.get_params(deep=False)
    try:
        usual = clone(type(estimator)()).get_params(deep=False)
    except TypeError:  # an estimator inside has no default
        usual = {}
    return {
        name: _words(value)
        for name, value in given.items()
        if name not in _LEFT_OUT
        and not isinstance(value, os.PathLike)
        and not _equal(value, usual.get(name))
    }


def _words(value: Any) -> Any:
    """Return a plain value as it is, anything else as a text."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, float | np.number | np.bool):
        # JSON knows no infinite numbers.
        number = value.item() if isinstance(value, np.generic) else value
        return number if math.isfinite(number) else str(number)
    return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(str(_words(part)) for part in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_words(part)}' for key, part in value.items())}}}"
    if hasattr(value, "get_params") and not isinstance(value, type):
        given = ", ".join(f"{name}={part!r}" for name, part in settings_of(value).items())
        return f"{type(value).__name__}({given})"
    return name_of(value) if callable(value) else _without_address(value)


def _without_address(value: Any) -> str:
    """Return what an object says of itself, unless that is where it lies."""
    is_quiet = isinstance(value, os.PathLike | np.ndarray) or " at 0x" in repr(value)
    return type(value).__name__ if is_quiet else repr(value)


def _equal(value: Any, usual: Any) -> bool:
    same = value is usual or (type(value) is type(usual) and value == usual)
    return bool(np.all(same))
