"""Effectiveness: is the unlearned model as good as a retrained one (survey, section 3.2)."""

from numpy.typing import ArrayLike

from letheon.measures._inputs import finite
from letheon.measures._measure import Measure, known
from letheon.measures._paired import Metric, compared

__all__ = ["effectiveness", "effectiveness_from_values"]


def effectiveness(
    metric: Metric,
    y_true: ArrayLike,
    y_unlearned: ArrayLike,
    y_naive: ArrayLike,
    *,
    confidence: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Measure:
    """Return the gap in test performance to the naively retrained model (survey, equation 3.2).

    ``eff(h_U) = |M_U - M_*|`` with ``M = metric(y_true, y_pred)`` on a test set.

    Parameters
    ----------
    metric : callable
        ``metric(y_true, y_pred) -> float`` in scikit-learn's order of arguments.
    y_true, y_unlearned, y_naive : array-like
        Truth and the predictions (or scores) of both models on the same rows.
    confidence : float, default=0.95
        Coverage at which the interval aims.
    n_resamples : int, default=1000
        Bootstrap resamples, each with two calls of `metric`.
    seed : int, default=0
        Seed of the resamples: the same input gives the same interval.

    Returns
    -------
    Measure
        Lower is better; 0 is the ideal. The interval is a bootstrap over test rows, paired because
        both models predict the same rows, of the signed gap, then folded at 0: it speaks of
        other test rows, not of other training runs. None if the models agree on every
        row (resampling learns nothing from that; see `output_consistency`, whose interval does) or
        if the metric is undefined on more than a tenth of the resamples. Its coverage is the
        stated one from 30 rows on (100 for numbers) of which 10 get different predictions; below,
        `is_rough` is True and the note says why.

    Examples
    --------
    >>> import numpy as np
    >>> accuracy = lambda y, p: np.mean(y == p)
    >>> y, unlearned, naive = [0, 1] * 50, [0, 1] * 35 + [1] * 30, [0, 1] * 50
    >>> print(effectiveness(accuracy, y, unlearned, naive))
    effectiveness: 0.15 [0.08, 0.22] at 0.95 (measured, n=100, lower is better)
    """
    value, interval, n, doubt = compared(
        metric,
        lambda unlearned, naive: unlearned - naive,
        (y_true, y_unlearned, y_naive),
        confidence=confidence,
        n_resamples=n_resamples,
        seed=seed,
    )
    return known("effectiveness", value, interval, n, confidence=confidence, doubt=doubt)


def effectiveness_from_values(
    metric_unlearned: float, metric_naive: float, *, n: int = 0
) -> Measure:
    """Return ``|M_U - M_*|`` of two known performances (survey, equation 3.2), no interval.

    Parameters
    ----------
    metric_unlearned, metric_naive : float
        Test performance of both models.
    n : int, default=0
        Test rows behind them, if known.
    """
    unlearned = finite("metric_unlearned", metric_unlearned)
    gap = abs(unlearned - finite("metric_naive", metric_naive))
    return known("effectiveness", gap, None, n)
