"""Checks of what the measures are given."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["confidence_level", "finite", "predictions", "same_length", "times"]


def finite(name: str, value: float) -> float:
    """Return `value` as a finite float."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, not {value!r}")
    return number


def confidence_level(confidence: float) -> float:
    """Return `confidence` if it lies strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, not {confidence!r}")
    return float(confidence)


def times(name: str, seconds: ArrayLike) -> NDArray[np.float64]:
    """Return one or several timings as a vector of positive finite seconds."""
    values = np.atleast_1d(np.asarray(seconds, dtype=np.float64))
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"{name} must be one number or a list of them, not shape {values.shape}")
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"{name} must be positive finite seconds, not {values.tolist()[:5]}")
    return values


def predictions(name: str, y: ArrayLike) -> NDArray[Any]:
    """Return labels, values or scores, one entry or one line for each row, without NaN."""
    values = np.asarray(y)
    if values.ndim not in (1, 2):
        raise ValueError(f"{name} must have one or two dimensions, not shape {values.shape}")
    if values.shape[0] == 0:
        raise ValueError(f"{name} is empty")
    if _has_nan(values):
        raise ValueError(f"{name} contains NaN or None")
    return values


def _has_nan(values: NDArray[Any]) -> bool:
    """Return whether any entry is missing; NaN is the only value unequal to itself."""
    if values.dtype.kind in "fc":
        return bool(np.isnan(values).any())
    if values.dtype.kind != "O":
        return False
    return any(v is None or (isinstance(v, float) and math.isnan(v)) for v in values.flat)


def same_length(named: Sequence[tuple[str, NDArray[Any]]]) -> int:
    """Return the common number of rows."""
    lengths = {name: len(values) for name, values in named}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"one entry per row is needed in each, but the lengths are {lengths}")
    return next(iter(lengths.values()))
