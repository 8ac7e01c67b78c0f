"""Confidence intervals: each one for the case in which it can be trusted."""

import math
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, stdtrit

__all__ = ["bootstrap", "clopper_pearson", "fieller", "fold"]

Interval = tuple[float, float]
Rows = NDArray[np.int64]

# A resample may be one on which a metric is undefined (a single class, say). With fewer than
# this share of usable resamples the quantiles would describe a different population.
_USABLE = 0.9


def bootstrap(
    statistic: Callable[[Rows], float],
    n: int,
    value: float,
    *,
    confidence: float,
    n_resamples: int,
    seed: int,
) -> Interval | None:
    """Return the percentile bootstrap interval of `statistic`, a function of row numbers.

    Rows are drawn with replacement, the same rows for both models, so that what the models have in
    common cancels. The interval is widened to hold `value` where resampling is biased. It
    is None when it would pretend to knowledge: fewer than two rows, no variation at all between
    resamples (models that agree on every row), or a metric undefined on many resamples.
    """
    if n_resamples < 1:
        raise ValueError(f"n_resamples must be at least 1, not {n_resamples}")
    if n < 2:
        return None
    rng = np.random.default_rng(seed)
    draws = np.array([_tried(statistic, rng.integers(n, size=n)) for _ in range(n_resamples)])
    draws = draws[np.isfinite(draws)]
    if draws.size < _USABLE * n_resamples or np.ptp(draws) == 0:
        return None
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return min(float(low), value), max(float(high), value)


def _tried(statistic: Callable[[Rows], float], rows: Rows) -> float:
    """Return the statistic, or NaN where the metric is not defined on these rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return float(statistic(rows))
        except ValueError:
            return math.nan


def fold(interval: Interval | None) -> Interval | None:
    """Return the interval of the absolute value, given that of the signed one.

    If the signed interval covers with some probability, the folded one covers with at
    least that. Resampling the absolute value itself would never reach down to 0.
    """
    if interval is None:
        return None
    low, high = interval
    if low <= 0 <= high:
        return 0.0, max(-low, high)
    return min(abs(low), abs(high)), max(abs(low), abs(high))


def clopper_pearson(successes: int, n: int, confidence: float) -> Interval:
    """Return the exact binomial interval: it covers with at least `confidence`, for any `n`."""
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, n - successes + 1, tail))
    high = 1.0 if successes == n else float(betaincinv(successes + 1, n - successes, 1 - tail))
    return low, high


def fieller(
    top: NDArray[np.float64], bottom: NDArray[np.float64], confidence: float
) -> Interval | None:
    """Return Fieller's interval of a ratio of two means of independent positive samples.

    The ratios ``r`` with ``(top - r bottom)**2 <= t**2 (v_top + r**2 v_bottom)``, where `v` are
    the squared standard errors and ``t`` is Student's quantile with Welch's degrees of freedom. It
    is exact for normal times up to that approximation, even for three or five repeats, where
    a bootstrap is far too narrow. None with a single time or no spread; ``(0, inf)`` when the lower
    mean cannot be told from 0.
    """
    if min(top.size, bottom.size) < 2:
        return None
    mean_top, mean_bottom = float(top.mean()), float(bottom.mean())
    v_top = float(top.var(ddof=1)) / top.size
    v_bottom = float(bottom.var(ddof=1)) / bottom.size
    if v_top + v_bottom == 0:
        return None
    ratio = mean_top / mean_bottom
    t = _student(v_top, top.size - 1, ratio**2 * v_bottom, bottom.size - 1, confidence)
    # a r**2 - 2 b r + c <= 0
    a = mean_bottom**2 - t**2 * v_bottom
    b = mean_top * mean_bottom
    c = mean_top**2 - t**2 * v_top
    if a <= 0:
        return 0.0, math.inf
    root = math.sqrt(max(b**2 - a * c, 0.0))
    return min(max((b - root) / a, 0.0), ratio), max((b + root) / a, ratio)


def _student(v1: float, df1: int, v2: float, df2: int, confidence: float) -> float:
    """Return Student's two-sided quantile with Welch-Satterthwaite degrees of freedom."""
    # shares instead of variances: a variance of 1e-170 would underflow when squared
    share = v1 / (v1 + v2)
    df = 1 / (share**2 / df1 + (1 - share) ** 2 / df2)
    return float(stdtrit(df, (1 + confidence) / 2))
