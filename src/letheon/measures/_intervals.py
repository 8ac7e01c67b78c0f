"""Confidence intervals: each one for the case in which it can be trusted."""

import math
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtr, stdtrit

__all__ = [
    "bootstrap",
    "bootstrap_mean",
    "clopper_pearson",
    "effective_number",
    "fieller",
    "fold",
    "mean_of_rows",
    "student",
]

Interval = tuple[float, float]
Rows = NDArray[np.int64]

# A resample may be one on which a metric is undefined (a single class, say). With fewer than
# this share of usable resamples the quantiles would describe a different population.
_USABLE = 0.9

# Numbers drawn in one step of a bootstrap: bounds its memory.
_BLOCK = 2**20


def bootstrap(
    statistic: Callable[[Rows], float],
    n: int,
    value: float,
    *,
    confidence: float,
    n_resamples: int,
    seed: int,
) -> Interval | None:
    """Return the expanded percentile bootstrap interval of `statistic`, a function of row numbers.

    Rows are drawn with replacement, the same rows for both models, so that what the models have in
    common cancels. Plain percentiles are too narrow for few rows, as if a normal quantile stood in
    place of Student's and n in place of n - 1. The tails are cut by both (Hesterberg 2015). The
    interval is widened to hold `value` where resampling is biased. It
    is None when it would pretend to knowledge: fewer than two rows, no variation at all between
    resamples (models that agree on every row), or a metric undefined on many resamples.
    """
    if n_resamples < 1:
        raise ValueError(f"n_resamples must be at least 1, not {n_resamples}")
    if n < 2:
        return None
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draws = np.array([_tried(statistic, rng.integers(n, size=n)) for _ in range(n_resamples)])
    draws = draws[np.isfinite(draws)]
    if draws.size < _USABLE * n_resamples or np.ptp(draws) == 0:
        return None
    tail = _expanded_tail(n, confidence)
    low, high = np.quantile(draws, [tail, 1 - tail], method="weibull")
    return min(float(low), value), max(float(high), value)


def _tried(statistic: Callable[[Rows], float], rows: Rows) -> float:
    """Return the statistic, or NaN where the metric is not defined on these rows."""
    try:
        return float(statistic(rows))
    except ValueError:
        return math.nan


def _expanded_tail(n: int, confidence: float) -> float:
    """Return the share of resamples to cut off at each end, for `n` rows."""
    t = stdtrit(n - 1, (1 + confidence) / 2)
    return float(ndtr(-t * math.sqrt(n / (n - 1))))


def bootstrap_mean(
    values: NDArray[np.float64], *, confidence: float, n_resamples: int, seed: int
) -> Interval | None:
    """Return the bootstrap-t interval of the mean of independent rows.

    ``mean - t_high s / sqrt(n)`` to ``mean - t_low s / sqrt(n)`` with the quantiles of
    ``(mean_b - mean) / (s_b / sqrt(n))`` over resamples. Divergences and squares are skewed:
    percentiles and Student's quantiles then miss the truth on one side, these do not. None
    for fewer than two rows, an infinite value, or no spread.
    """
    if n_resamples < 1:
        raise ValueError(f"n_resamples must be at least 1, not {n_resamples}")
    n, scale = values.size, float(abs(values).max(initial=0.0))
    if n < 2 or not np.isfinite(scale) or np.ptp(values) == 0:
        return None
    # scaled first, so that squares neither overflow nor vanish
    rows = values / scale
    ratios = _studentised(rows, n_resamples, seed)
    if ratios.size < _USABLE * n_resamples:
        return None
    mean, error = float(rows.mean()), float(rows.std(ddof=1)) / math.sqrt(n)
    tail = (1 - confidence) / 2
    ends = np.quantile(ratios, [tail, 1 - tail], method="weibull")
    t_low, t_high = float(ends[0]), float(ends[1])
    low, high = scale * (mean - t_high * error), scale * (mean - t_low * error)
    value = float(values.mean())
    return min(low, value), max(high, value)


def mean_of_rows(
    values: NDArray[np.float64], *, confidence: float, n_resamples: int, seed: int
) -> Interval | None:
    """Return `bootstrap_mean` of rows that cannot be negative, cut at 0."""
    ends = bootstrap_mean(values, confidence=confidence, n_resamples=n_resamples, seed=seed)
    return None if ends is None else (max(ends[0], 0.0), ends[1])


def _studentised(rows: NDArray[np.float64], n_resamples: int, seed: int) -> NDArray[np.float64]:
    """Return Student's ratio of each resample that has any spread."""
    n, mean = rows.size, float(rows.mean())
    rng, parts = np.random.default_rng(seed), []
    size = max(_BLOCK // n, 1)
    for start in range(0, n_resamples, size):
        drawn = rows[rng.integers(n, size=(min(size, n_resamples - start), n))]
        errors = drawn.std(axis=1, ddof=1) / math.sqrt(n)
        gaps = drawn.mean(axis=1) - mean
        parts.append(gaps[errors > 0] / errors[errors > 0])
    return np.concatenate(parts)


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


def clopper_pearson(successes: float, n: float, confidence: float) -> Interval:
    """Return the exact binomial interval: it covers with at least `confidence`, for any `n`.

    Neither number need be whole: where observations depend on each other, both are divided by
    the same factor (Korn and Graubard 1998; see `effective_number`).
    """
    tail, failures = (1 - confidence) / 2, n - successes
    low = 0.0 if successes <= 0 else float(betaincinv(successes, failures + 1, tail))
    high = 1.0 if failures <= 0 else float(betaincinv(successes + 1, failures, 1 - tail))
    return low, high


def effective_number(share: float, variance: float, n_groups: int, confidence: float) -> float:
    """Return how many independent observations tell as much about a share as grouped ones do.

    ``share (1 - share) / variance``, at least 1, where `variance` is that of the share, estimated
    from groups. Few groups know it badly: it is made smaller by the square of normal over
    Student's quantile with ``n_groups - 1`` degrees of freedom (Korn and Graubard 1998).
    """
    level = (1 + confidence) / 2
    shrink = (stdtrit(1e9, level) / stdtrit(n_groups - 1, level)) ** 2
    return float(max(share * (1 - share) / variance * shrink, 1.0))


def student(
    values: NDArray[np.float64], confidence: float, shared_error: float = 0.0, n_shared: int = 0
) -> Interval | None:
    """Return Student's interval of a mean; None for one value, no spread, or an infinite value.

    `shared_error` is a standard error that all values have in common, estimated from `n_shared`
    observations: that of one set of test rows, by which all runs were judged. Its variance is
    added, and Welch's degrees of freedom are taken.
    """
    n = values.size
    if not np.isfinite(values).all():
        return None
    own = float(values.var(ddof=1)) / n if n > 1 and np.ptp(values) > 0 else 0.0
    shared = shared_error**2 if n_shared > 1 else 0.0
    if own + shared == 0:
        return None
    # a part without spread counts for nothing, whatever its degrees of freedom
    t = _student(own, max(n - 1, 1), shared, max(n_shared - 1, 1), confidence)
    mean, half = float(values.mean()), t * math.sqrt(own + shared)
    return mean - half, mean + half


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
