"""How much two laws differ at least, seen from samples: a lower bound on epsilon.

Laws P and Q are (epsilon, delta)-indistinguishable if ``P(E) <= e^epsilon Q(E) + delta`` for every
event E, and the same with P and Q exchanged. Hence every event gives

    epsilon >= log((P(E) - delta) / Q(E)),

and with a lower confidence bound in place of P(E) and an upper one in place of Q(E) the inequality
holds but for the level of the two.
"""

from collections.abc import Callable
from math import inf, log

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

Floats = NDArray[np.float64]
Score = Callable[[Floats], Floats]

# Narrower than this part of the whole spread, a law counts as a point.
_POINT = 1e-9


def epsilon_lower_bound(one: Floats, two: Floats, *, delta: float, level: float) -> float:
    """Return a lower bound on epsilon that holds with probability at least ``1 - level``.

    Parameters
    ----------
    one, two : ndarray of shape (n, k)
        Independent samples of the two laws.
    delta : float
        The delta at which epsilon is claimed.
    level : float
        Probability of a bound that is too large, at most.

    Returns
    -------
    float
        The larger bound of two events, each of the form "the score is beyond a threshold"; at
        least 0. A third of the samples chooses the score and the thresholds, the others are
        counted, so the choice costs no confidence. Four bounds at ``level / 4`` (Clopper and
        Pearson, 1934) hold together by the union bound.
    """
    n = min(len(one), len(two)) // 3
    spread = np.concatenate([one[:n], two[:n]]).std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    score = _log_ratio(one[:n] / scale, two[:n] / scale)
    chosen = score(one[:n] / scale), score(two[:n] / scale)
    counted = score(one[n:] / scale), score(two[n:] / scale)
    first = _bound_beyond(_threshold(*chosen, delta, level), *counted, delta, level)
    # The other event is the other tail, with the laws exchanged.
    chosen, counted = (-chosen[1], -chosen[0]), (-counted[1], -counted[0])
    second = _bound_beyond(_threshold(*chosen, delta, level), *counted, delta, level)
    return max(0.0, first, second)


def clopper_pearson(hits: int, n: int, level: float) -> tuple[float, float]:
    """Return bounds of a probability; each is wrong with probability at most `level`."""
    low = float(betaincinv(hits, n - hits + 1, level)) if hits else 0.0
    high = float(betaincinv(hits + 1, n - hits, 1 - level)) if hits < n else 1.0
    return low, high


def _log_ratio(one: Floats, two: Floats) -> Score:
    """Return the log of the ratio of two normal densities with the moments of the samples.

    It is the best score for normal laws, whether they differ in mean or in spread, and a valid one
    for all others.
    """
    first, second = _log_density(one), _log_density(two)
    return lambda points: first(points) - second(points)


def _log_density(sample: Floats) -> Score:
    centre = sample.mean(axis=0)
    covariance = np.atleast_2d(np.cov(sample.T)) + _POINT * np.eye(sample.shape[1])
    precision, log_volume = np.linalg.inv(covariance), np.linalg.slogdet(covariance)[1]

    def score(points: Floats) -> Floats:
        away = points - centre
        density: Floats = -0.5 * (((away @ precision) * away).sum(axis=1) + log_volume)
        return density

    return score


def _threshold(one: Floats, two: Floats, delta: float, level: float) -> float:
    """Return the threshold beyond which the bound is largest; of many, one in the middle."""
    scores = np.unique(np.concatenate([one, two]))
    between = np.concatenate([scores[:1] - 1.0, (scores[:-1] + scores[1:]) / 2])
    bounds = np.array([_bound_beyond(each, one, two, delta, level) for each in between])
    best = np.flatnonzero(bounds == bounds.max())
    return float(between[best[len(best) // 2]])


def _bound_beyond(threshold: float, one: Floats, two: Floats, delta: float, level: float) -> float:
    """Return the bound from the event that the score is beyond the threshold."""
    low, _ = clopper_pearson(int((one > threshold).sum()), len(one), level / 4)
    _, high = clopper_pearson(int((two > threshold).sum()), len(two), level / 4)
    return log((low - delta) / high) if low > delta else -inf
