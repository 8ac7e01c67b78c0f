"""Random changes of the plain values of a booster: numbers, lengths, dtypes, texts and parts."""

import random
from copy import deepcopy
from typing import Any

import numpy as np

_NUMBERS = (-(2**31), -129, -2, -1, 0, 1, 2, 3, 7, 15, 16, 31, 255, 2**16, 2**24, 2**31 - 1)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 1e-45, 1e300, float("inf"), float("-inf"), float("nan"))
_TEXTS = ("", " ", "\n", "=", "[", "0", "-1", "9999999999", "nan", "none", "Tree=0", "a b")
_DTYPES = ("i1", "u1", "i2", "i4", "u4", "i8", "f4", "f8", "U3", "O")


def mutate(plain: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a copy with one to three random changes."""
    changed = deepcopy(plain)
    for _ in range(rng.randint(1, 3)):
        _change(changed, rng)
    return changed


def _change(holder: Any, rng: random.Random) -> None:
    keys = sorted(holder) if isinstance(holder, dict) else range(len(holder))
    if not keys:
        return
    key = rng.choice(keys)
    value = holder[key]
    if isinstance(value, dict | list) and value and rng.random() < 0.8:
        _change(value, rng)
    elif rng.random() < 0.03 and isinstance(holder, dict):
        del holder[key]
    else:
        holder[key] = _replace(value, rng)


def _replace(value: Any, rng: random.Random) -> Any:
    if isinstance(value, np.ndarray):
        return _change_array(value, rng)
    if type(value) is int:
        return rng.choice((value + 1, value - 1, rng.choice(_NUMBERS), str(value), float(value)))
    if isinstance(value, str):
        place = rng.randint(0, len(value))
        return value[:place] + rng.choice(_TEXTS) + value[place + rng.randint(0, 2) :]
    if isinstance(value, list):
        return rng.choice((value * 2, value[:-1], [], None))
    return rng.choice((None, 0, "x", [], [[]], {}))


def _change_array(array: Any, rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.05:
        return np.concatenate((array, array[: rng.randint(0, 3)]))
    if kind < 0.1:
        return array[: rng.randint(0, len(array))]
    if kind < 0.14:
        with np.errstate(all="ignore"):
            return array.astype(rng.choice(_DTYPES))
    if kind < 0.17:
        return array.reshape(1, -1)
    if len(array) == 0:
        return np.zeros(2, array.dtype)
    copy = array.copy()
    place = rng.randrange(len(array))
    if kind < 0.4:
        other = rng.randrange(len(array))
        copy[[place, other]] = copy[[other, place]]
    elif array.dtype.kind == "f":
        with np.errstate(all="ignore"):
            copy[place] = rng.choice(_FLOATS)
    elif kind < 0.7:
        copy[place] = copy[place] + rng.choice((np.array(1), np.array(-1))).astype(array.dtype)
    else:
        limits = np.iinfo(array.dtype)
        copy[place] = min(max(rng.choice(_NUMBERS), int(limits.min)), int(limits.max))
    return copy
