"""A lower bound on epsilon from samples of two distributions.

P and Q are (epsilon, delta)-indistinguishable if ``P(E) <= e^epsilon Q(E) + delta`` for every
event E, and the same with P and Q exchanged. Hence every event gives

    epsilon >= log((P(E) - delta) / Q(E)).

If P(E) is replaced by a lower confidence bound and Q(E) by an upper one, the inequality is wrong
with a probability of at most the sum of the two error probabilities.
"""

from collections.abc import Callable
from math import inf, log

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

Floats = NDArray[np.float64]
Score = Callable[[Floats], Floats]

# A distribution that is narrower than this part of the whole spread counts as a point.
_POINT = 1e-9
# Histograms: columns and bins at most, and samples per bin.
_MOST_COLUMNS, _MOST_BINS, _PER_BIN = 8, 64, 16


def epsilon_lower_bound(
    left: Floats, right: Floats, *, delta: float, level: float, has_folds: bool = False
) -> float:
    """Return a lower bound on epsilon that holds with probability at least ``1 - level``.

    Parameters
    ----------
    left, right : ndarray of shape (n, k)
        Independent samples of the two distributions.
    delta : float
        The delta at which epsilon is claimed.
    level : float
        Largest probability of a bound that is too large.
    has_folds : bool, default=False
        Also try histograms of each column: they find holes and folds, and need more samples.

    Returns
    -------
    float
        The larger bound of two events, each of the form "the score exceeds a threshold"; at least
        0. A third of the samples (half with `has_folds`) is used to choose the score and the
        thresholds. Only the other samples are counted, so the choice does not affect the
        confidence. Four bounds at ``level / 4`` (Clopper and Pearson, 1934) hold together by the
        union bound.
    """
    n = min(len(left), len(right)) // (2 if has_folds else 3)
    spread = np.concatenate([left[:n], right[:n]]).std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    left, right = left / scale, right / scale
    scores, half = [_log_ratio(left[:n], right[:n])], n
    if has_folds:
        # A histogram overfits its own samples, so other samples are used to choose the score.
        half = n // 2
        columns = range(min(left.shape[1], _MOST_COLUMNS))
        scores = [_log_ratio(left[:half], right[:half])]
        scores += [_histogram_ratio(left[:half], right[:half], column) for column in columns]
    start = half if has_folds else 0
    bounds = []
    for is_exchanged in (False, True):
        # The other tail, with the distributions exchanged.
        pairs = [
            (-score(right), -score(left)) if is_exchanged else (score(left), score(right))
            for score in scores
        ]
        chosen = [(first[start:n], second[start:n]) for first, second in pairs]
        limits = [_choose_threshold(*each, delta, level) for each in chosen]
        shown = [
            _bound_beyond(t, *each, delta, level) for t, each in zip(limits, chosen, strict=True)
        ]
        best = int(np.argmax(shown))
        first, second = pairs[best]
        bounds.append(_bound_beyond(limits[best], first[n:], second[n:], delta, level))
    return max(0.0, *bounds)


def clopper_pearson(hits: int, n: int, level: float) -> tuple[float, float]:
    """Return a lower and an upper bound on a probability, from `hits` in `n` trials.

    Each bound is wrong with a probability of at most `level`.
    """
    low = float(betaincinv(hits, n - hits + 1, level)) if hits else 0.0
    high = float(betaincinv(hits + 1, n - hits, 1 - level)) if hits < n else 1.0
    return low, high


def _log_ratio(left: Floats, right: Floats) -> Score:
    """Return a score: the log ratio of two normal densities fitted to the samples.

    This score is the best one for normal distributions, whether they differ in mean or in spread,
    and it is valid for all others.
    """
    first, second = _log_density(left), _log_density(right)
    return lambda points: first(points) - second(points)


def _histogram_ratio(left: Floats, right: Floats, column: int) -> Score:
    """Return a score: the log ratio of two histograms of one column.

    The bins are chosen so that all have the same number of samples.
    """
    both = np.concatenate([left[:, column], right[:, column]])
    n_bins = int(min(_MOST_BINS, max(2, len(both) // _PER_BIN)))
    inner = np.unique(np.quantile(both, np.arange(1, n_bins) / n_bins))
    shares = []
    for sample in (left, right):
        counts = np.bincount(np.searchsorted(inner, sample[:, column]), minlength=len(inner) + 1)
        shares.append(np.log(counts + 0.5))
    ratio: Floats = shares[0] - shares[1]
    return lambda points: ratio[np.searchsorted(inner, points[:, column])]


def _log_density(sample: Floats) -> Score:
    centre = sample.mean(axis=0)
    covariance = np.atleast_2d(np.cov(sample.T)) + _POINT * np.eye(sample.shape[1])
    precision, log_volume = np.linalg.inv(covariance), np.linalg.slogdet(covariance)[1]

    def score(points: Floats) -> Floats:
        away = points - centre
        density: Floats = -0.5 * (((away @ precision) * away).sum(axis=1) + log_volume)
        return density

    return score


def _choose_threshold(left: Floats, right: Floats, delta: float, level: float) -> float:
    """Return the threshold that gives the largest bound; the middle one in case of ties."""
    scores = np.unique(np.concatenate([left, right]))
    between = np.concatenate([scores[:1] - 1.0, (scores[:-1] + scores[1:]) / 2])
    bounds = np.array([_bound_beyond(each, left, right, delta, level) for each in between])
    best = np.flatnonzero(bounds == bounds.max())
    return float(between[best[len(best) // 2]])


def _bound_beyond(
    threshold: float, left: Floats, right: Floats, delta: float, level: float
) -> float:
    """Return the lower bound on epsilon from the event that the score exceeds the threshold."""
    low, _ = clopper_pearson(int((left > threshold).sum()), len(left), level / 4)
    _, high = clopper_pearson(int((right > threshold).sum()), len(right), level / 4)
    return log((low - delta) / high) if low > delta else -inf
