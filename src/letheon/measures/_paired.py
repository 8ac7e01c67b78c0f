"""A metric of two models on the same rows, compared."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from letheon.measures._inputs import confidence_level, finite, predictions, same_length
from letheon.measures._intervals import Interval, Rows, bootstrap, fold

__all__ = ["Metric", "compared"]

Metric = Callable[[Any, Any], Any]


def compared(
    metric: Metric,
    signed: Callable[[float, float], float],
    y: tuple[ArrayLike, ArrayLike, ArrayLike],
    *,
    confidence: float,
    n_resamples: int,
    seed: int,
) -> tuple[float, Interval | None, int]:
    """Return ``|signed(M_U, M_*)|``, its interval by paired bootstrap, and the number of rows.

    `y` holds the truth, the unlearned model's and the naively retrained model's predictions.
    """
    confidence_level(confidence)
    names = ("y_true", "y_unlearned", "y_naive")
    arrays = [predictions(name, values) for name, values in zip(names, y, strict=True)]
    n = same_length(list(zip(names, arrays, strict=True)))
    truth, unlearned, naive = arrays

    def difference(rows: Rows) -> float:
        return signed(_score(metric, truth, unlearned, rows), _score(metric, truth, naive, rows))

    value = difference(np.arange(n))
    interval = bootstrap(
        difference, n, value, confidence=confidence, n_resamples=n_resamples, seed=seed
    )
    return abs(value), fold(interval), n


def _score(metric: Metric, truth: NDArray[Any], predicted: NDArray[Any], rows: Rows) -> float:
    """Return the metric on some rows; it must be one finite number."""
    return finite("the metric", metric(truth[rows], predicted[rows]))
