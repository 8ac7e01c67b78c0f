"""A metric of two models on the same rows, compared."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from letheon.measures._inputs import confidence_level, finite, predictions, same_length
from letheon.measures._intervals import FEWEST_ROWS, Interval, Rows, bootstrap, doubt_about, fold

__all__ = ["Metric", "compared"]

Metric = Callable[[Any, Any], Any]

# With fewer rows, or rows on which the models differ, the bootstrap's coverage drops below 93.5 %;
# for numbers that are no labels, with fewer than `FEWEST_ROWS`.
_FEWEST_ROWS = 30
_FEWEST_DIFFERING = 10


def compared(
    metric: Metric,
    signed: Callable[[float, float], float],
    y: tuple[ArrayLike, ArrayLike, ArrayLike],
    *,
    confidence: float,
    n_resamples: int,
    seed: int,
) -> tuple[float, Interval | None, int, str]:
    """Return ``|signed(M_U, M_*)|``, its interval by paired bootstrap, the rows, and a doubt.

    `y` holds the truth, the unlearned model's and the naively retrained model's predictions.
    """
    confidence_level(confidence)
    names = ("y_true", "y_unlearned", "y_naive")
    arrays = [predictions(name, values) for name, values in zip(names, y, strict=True)]
    n = same_length(list(zip(names, arrays, strict=True)))
    truth, unlearned, naive = arrays

    def difference(rows: Rows) -> float:
        y = truth[rows]
        scores = (finite("the metric", metric(y, p[rows])) for p in (unlearned, naive))
        return signed(*scores)

    value = difference(np.arange(n))
    interval = bootstrap(
        difference, n, value, confidence=confidence, n_resamples=n_resamples, seed=seed
    )
    doubt = "" if interval is None else _doubt(unlearned, naive)
    return abs(value), fold(interval), n, doubt


def _doubt(unlearned: NDArray[Any], naive: NDArray[Any]) -> str:
    """Say when there is too little to resample; simulated in the tests of coverage."""
    n = len(unlearned)
    if n < _FEWEST_ROWS:
        return f"only {n} rows: the interval may be too narrow"
    differing = int(np.sum(np.any(_flat(unlearned) != _flat(naive), axis=1)))
    if 0 < differing < _FEWEST_DIFFERING:
        return f"the models differ on {differing} rows only: the interval may be too narrow"
    if unlearned.dtype.kind == "f" and (unlearned % 1).any():
        return doubt_about((_flat(unlearned) - _flat(naive)).ravel() ** 2, FEWEST_ROWS, "rows")
    return ""


def _flat(values: NDArray[Any]) -> NDArray[Any]:
    return values.reshape(len(values), -1)
