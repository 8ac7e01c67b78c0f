"""Confidence intervals, each used only where its coverage was checked."""

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtr, stdtrit


class Resampling(TypedDict, total=False):
    """Settings of a bootstrap: nominal coverage, number of resamples, and seed."""

    confidence: float
    n_resamples: int
    seed: int


Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Interval = tuple[float, float]

# A metric may be undefined on a resample, for example with a single class. With a smaller share
# of usable resamples the quantiles would describe a different population.
_USABLE = 0.9
# Relative differences up to this size are rounding errors.
_ROUNDING = 1e-12

# Numbers drawn in one step of a bootstrap. Limits the memory.
_BLOCK = 2**20
# With fewer rows the simulated coverage for means of skewed values is below 93.5 %.
FEWEST_ROWS = 100
# Sample skewness divided by the root of the sample size; 1 if a single value dominates the mean.
_MOST_SKEWED = 0.6


def _check_settings(confidence: float, n_resamples: int = 1) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, not {confidence!r}")
    if n_resamples < 1:
        raise ValueError(f"n_resamples must be at least 1, not {n_resamples}")


def bootstrap(
    statistic: Callable[[Ints], float],
    n: int,
    value: float,
    *,
    confidence: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Interval | None:
    """Return the expanded percentile bootstrap interval of `statistic`, or None.

    `statistic` is a function of the positions of rows, and `value` is its value for all `n` rows.
    Rows are drawn with replacement, the same rows for both models, so that the variation that the
    models share cancels. Plain percentiles are too narrow for few rows: they correspond to a normal
    quantile instead of Student's, and to n instead of n - 1. The expanded percentiles correct both
    (Hesterberg 2015). The interval is widened to contain `value` if resampling is biased. There is
    no interval (None) with fewer than two rows, if all resamples give the same value (because the
    models agree on every row), or if the metric is undefined on more than a tenth of them.

    Parameters
    ----------
    statistic : callable
        Function of an array of row positions, which returns a number. It may raise `ValueError` for
        rows on which it is undefined.
    n : int
        Number of rows.
    value : float
        The statistic of all rows.
    confidence : float, default=0.95
        Nominal coverage of the interval.
    n_resamples : int, default=1000
        Number of resamples, each with one call of `statistic`.
    seed : int, default=0
        Seed of the resamples. The same input gives the same interval.

    Returns
    -------
    (float, float) or None

    Examples
    --------
    >>> import numpy as np
    >>> correct = np.array([0, 0, 1, 1, 1] * 10)
    >>> low, high = bootstrap(lambda rows: correct[rows].mean(), len(correct), correct.mean())
    >>> low < 0.6 < high
    True
    """
    _check_settings(confidence, n_resamples)
    if n < 2:
        return None
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = []
        for _ in range(n_resamples):
            rows = rng.integers(n, size=n)
            # The metric may be undefined on these rows.
            with suppress(ValueError):
                values.append(float(statistic(rows)))
    draws = np.array(values)
    draws = draws[np.isfinite(draws)]
    if draws.size < _USABLE * n_resamples or np.ptp(draws) == 0:
        return None
    t = stdtrit(n - 1, (1 + confidence) / 2)
    tail = float(ndtr(-t * math.sqrt(n / (n - 1))))
    low, high = np.quantile(draws, [tail, 1 - tail], method="weibull")
    return min(float(low), value), max(float(high), value)


def ratio_of_means(
    *samples: Floats, confidence: float = 0.95, n_resamples: int = 1000, seed: int = 0
) -> Interval | None:
    """Return the interval of the ratio of two means of independent non-negative samples, or None.

    For a single sample, return the interval of its mean. It is a bootstrap-t of the logarithm,
    because times, work and divergences are skewed. Student's quantile with Welch's degrees of
    freedom is used where it is wider: a few values do not reveal their skewness. There is no
    interval (None) if a sample has a single value or an infinite value, if the values do not vary,
    or if more than a tenth of the resamples contain only zeros.
    """
    _check_settings(confidence, n_resamples)
    scales = [float(sample.max(initial=0.0)) for sample in samples]
    if min(sample.size for sample in samples) < 2 or not all(0 < s < math.inf for s in scales):
        return None
    rng, signs = np.random.default_rng(seed), (1.0, -1.0)
    value, draws, spreads, variances = 0.0, np.zeros(n_resamples), np.zeros(n_resamples), []
    # Values are scaled first to avoid overflow and underflow of squares.
    for sign, sample, scale in zip(signs, samples, scales, strict=False):
        rows = sample / scale
        mean, variance = _log_mean(rows[None])
        value += sign * float(mean[0])
        variances.append(float(variance[0]))
        size = max(_BLOCK // rows.size, 1)
        for start in range(0, n_resamples, size):
            block = slice(start, min(start + size, n_resamples))
            drawn = rng.integers(rows.size, size=(block.stop - start, rows.size))
            means, of_means = _log_mean(rows[drawn])
            draws[block] += sign * (means - mean)
            spreads[block] += of_means
    error, has_mean = math.sqrt(sum(variances)), np.isfinite(draws)
    if error <= _ROUNDING or np.mean(has_mean) < _USABLE:
        return None
    degrees = [sample.size - 1 for sample in samples]
    t, tail = _t_quantile(variances, degrees, confidence), (1 - confidence) / 2
    # Many resamples of two or three values have no spread; Student's quantile replaces them.
    varies = has_mean & (spreads > 0)
    ratios = np.append(draws[varies] / np.sqrt(spreads[varies]), [-t, t])
    t_low, t_high = np.quantile(ratios, [tail, 1 - tail], method="weibull")
    ends = value - error * max(float(t_high), t), value - error * min(float(t_low), -t)
    factor = scales[0] / (scales[1] if len(scales) > 1 else 1.0)
    low, high = (factor * math.exp(min(max(end, -745.0), 709.0)) for end in ends)
    return low, high


def _log_mean(rows: Floats) -> tuple[Floats, Floats]:
    """Return the logarithm of the mean of each row, and the variance of that logarithm."""
    means = rows.mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(means), rows.var(axis=1, ddof=1) / means**2 / rows.shape[1]


def describe_doubt(values: Floats, fewest: int, unit: str) -> str:
    """Return why the interval of the mean may be too narrow, or an empty string.

    It may be too narrow with fewer than `fewest` values, or if the values are so skewed that a few
    of them dominate the mean. `unit` is the plural noun for the values in the text. The limits come
    from simulations, see the tests of coverage.
    """
    n, gaps = values.size, values - values.mean()
    if n < fewest:
        return f"only {n} {unit}, {fewest} are needed: the interval may be too narrow"
    scale = float(abs(gaps).max(initial=0.0)) or 1.0
    spread = float(np.mean((gaps / scale) ** 2))
    limit = _MOST_SKEWED * math.sqrt(n) * spread**1.5
    if spread > 0 and float(np.mean((gaps / scale) ** 3)) > limit:
        return f"a few {unit} dominate the mean: the interval may be too narrow"
    return ""


def fold_at_zero(interval: Interval | None) -> Interval | None:
    """Return the interval of an absolute value, from the interval of the signed value.

    The coverage does not decrease. A bootstrap of the absolute value itself would never reach 0.
    """
    if interval is None:
        return None
    least, most = sorted(map(abs, interval))
    return (0.0 if interval[0] <= 0 <= interval[1] else least), most


def clopper_pearson(successes: float, n: float, confidence: float) -> Interval:
    """Return the exact interval of a binomial rate: its coverage is at least `confidence`.

    `successes` and `n` need not be integers: for dependent observations, both are divided by the
    design effect (Korn and Graubard 1998; see `effective_sample_size`).
    """
    _check_settings(confidence)
    tail, failures = (1 - confidence) / 2, n - successes
    low = 0.0 if successes <= 0 else float(betaincinv(successes, failures + 1, tail))
    high = 1.0 if failures <= 0 else float(betaincinv(successes + 1, failures, 1 - tail))
    return low, high


def effective_sample_size(share: float, variance: float, n_groups: int, confidence: float) -> float:
    """Return how many independent observations would give a share this variance; at least 1.

    This is ``share (1 - share) / variance``, where `variance` was estimated from groups of
    dependent observations. For few groups the number is reduced by the squared ratio of the normal
    to Student's quantile with ``n_groups - 1`` degrees of freedom (Korn and Graubard 1998).
    """
    level = (1 + confidence) / 2
    shrink = (stdtrit(1e9, level) / stdtrit(n_groups - 1, level)) ** 2
    return float(max(share * (1 - share) / variance * shrink, 1.0))


def student_interval(
    values: Floats, confidence: float, shared_error: float = 0.0, n_shared: int = 0
) -> Interval | None:
    """Return Student's interval of the mean of `values`, or None.

    `shared_error` is a standard error that all values have in common, for example because all runs
    used the same test rows, estimated from `n_shared` observations. Its variance is added, with
    Welch's degrees of freedom. There is no interval (None) if a value is infinite, or if the values
    do not vary and there is no shared error.
    """
    _check_settings(confidence)
    n = values.size
    if not np.isfinite(values).all():
        return None
    own = float(values.var(ddof=1)) / n if n > 1 and np.ptp(values) > 0 else 0.0
    shared = shared_error**2 if n_shared > 1 else 0.0
    if own + shared == 0:
        return None
    # A component without variance has no weight, whatever its degrees of freedom.
    t = _t_quantile((own, shared), (max(n - 1, 1), max(n_shared - 1, 1)), confidence)
    mean, half = float(values.mean()), t * math.sqrt(own + shared)
    return mean - half, mean + half


def _t_quantile(variances: Sequence[float], degrees: Sequence[int], confidence: float) -> float:
    """Return Student's two-sided quantile with Welch-Satterthwaite degrees of freedom."""
    # Relative variances are used because a variance of 1e-170 would underflow when squared.
    total = sum(variances)
    df = 1 / sum((v / total) ** 2 / d for v, d in zip(variances, degrees, strict=True))
    return float(stdtrit(df, (1 + confidence) / 2))
