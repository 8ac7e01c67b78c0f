"""Settings that may differ between a model and its re-derivation, and what they may be.

A fresh fit takes its settings from the model itself. Those that change what is learned show in
every byte that is learned. Those that do not (threads, talk) could carry anything, so each may
have a few plain values only.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import get_config

from letheon.base import ForgetMixin, neutral_parameters
from letheon.inner import parts_of

__all__ = ["TAKEN_OVER", "config_of", "wrong_settings"]

_MOST_JOBS = 1024
_MOST_TALK = 100
_MOST_MEMORY = 2**20
_MOST_BYTES = 2**48
_MOST_ROWS = 2**32
_WORDS = frozenset({"default", "pandas", "polars", "diagram", "text", "spmatrix", "sparray"})


def _is_whole(value: Any, most: int) -> bool:
    return type(value) is int and -most <= value <= most


def _is_size(value: Any) -> bool:
    whole = type(value) is int or (type(value) is float and value.is_integer())
    return whole and 0 <= value <= _MOST_BYTES


# Neutral settings and the values that each may have, whatever the fresh fit was run with.
_DEVICE = re.compile("auto|cpu|mps|cuda(:[0-9]{1,2})?")
TAKEN_OVER: dict[str, Callable[[Any], bool]] = {
    "n_jobs": lambda value: value is None or _is_whole(value, _MOST_JOBS),
    "verbose": lambda value: type(value) is bool or _is_whole(value, _MOST_TALK),
    "rebuild": lambda value: value in ("lazy", "eager"),
}


# Neutral settings that a fresh fit takes from the model; no certificate has them.
_COPIED: dict[str, Callable[[Any], bool]] = {
    "checkpoint_dir": lambda value: value is None,
    "device": lambda value: (
        value is None or (type(value) is str and bool(_DEVICE.fullmatch(value)))
    ),
    "max_memory": lambda value: value is None or _is_size(value),
    "batch_size": lambda value: value is None or _is_whole(value, _MOST_ROWS),
}


def wrong_settings(model: Any) -> list[str]:
    """Return the settings of a model, nested ones included, that no re-derivation can vouch for.

    A setting that changes nothing is in no certificate, so one that is not known here is refused.
    """
    return [
        f"{part.path}{name}"
        for part in parts_of(model)
        for name, value in part.params.items()
        if not _is_vouched_for(part.estimator, name, value)
    ]


def _is_vouched_for(estimator: Any, name: str, value: Any) -> bool:
    if name == "random_state":
        return _is_seed(value, _bits_of_seed(estimator))
    if name in TAKEN_OVER:
        return TAKEN_OVER[name](value)
    is_neutral = name in neutral_parameters(estimator)
    return not is_neutral or (name in _COPIED and _COPIED[name](value))


def _bits_of_seed(estimator: Any) -> int:
    return 128 if isinstance(estimator, ForgetMixin) else 32


def _is_seed(value: Any, bits: int) -> bool:
    """Whether a seed has no more room than a seed: the state of a generator has."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return value is None or (whole and 0 <= int(value) < 2**bits)


def config_of(model: Any) -> dict[str, Any] | None:
    """Return scikit-learn's settings of the model's fit, or None if they are not plausible ones.

    A model that does not keep them is fitted with those of this process.
    """
    here = get_config()
    config = vars(model).get("config_", here)
    if type(config) is not dict or config.keys() != here.keys():
        return None
    return config if all(_is_plain(value) for value in config.values()) else None


def _is_plain(value: Any) -> bool:
    if value is None or type(value) is bool:
        return True
    return _is_whole(value, _MOST_MEMORY) or (type(value) is str and value in _WORDS)
