"""Efficiency: how much faster than naive retraining (survey, section 3.1)."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from letheon.measures._inputs import confidence_level, times
from letheon.measures._intervals import doubt_about, ratio_of_means
from letheon.measures._measure import Measure, known

__all__ = ["efficiency"]

# With fewer the coverage of skewed times is below 93.5 %; retrains differ far less than removals.
_FEWEST_REMOVALS = 60
_FEWEST_RETRAINS = 5
# Largest deviation of the logarithms of a few retrain times.
_MOST_SPREAD = 0.25


def efficiency(
    naive_seconds: ArrayLike, unlearn_seconds: ArrayLike, *, confidence: float = 0.95
) -> Measure:
    """Return the speed-up over naive retraining (survey, equation 3.1).

    ``speed-up(h_U) = (time to obtain h_*) / (time to obtain h_U)``. With repeated timings it is the
    ratio of the means: total naive time over total unlearning time at equal numbers of
    requests, which is what somebody pays. (A mean of ratios would be ruled by the luckiest
    request.)

    Parameters
    ----------
    naive_seconds : float or list of float
        Time of naive retraining, once or repeated.
    unlearn_seconds : float or list of float
        Time of the removal mechanism, once or repeated, over several requests as a rule. The two
        lists need not be of one length.
    confidence : float, default=0.95
        Coverage at which the interval aims.

    Returns
    -------
    Measure
        Higher is better; `n` is the number of unlearning times. The interval is a bootstrap-t of
        the logarithm of the ratio, because times are skewed. It is claimed to hold from 60
        unlearning times and 5 naive ones on; with fewer, `is_rough` is True and the note says why:
        a slow kind of request that comes once in 20 is likely not among five. The same where
        fewer than 60 naive times differ by much (a deviation of their logarithms above 0.25), and
        where neighbouring times are alike, since times are taken to be independent. None if one of
        the two was timed once, or if no two times differ.

    Examples
    --------
    >>> print(efficiency([10.1, 9.8, 10.3], [0.50, 0.52, 0.47]))
    efficiency: 20.27x, roughly [18.24, 22.76] (measured, n=3, higher is better)
    """
    naive = times("naive_seconds", naive_seconds)
    unlearn = times("unlearn_seconds", unlearn_seconds)
    interval = ratio_of_means(naive, unlearn, confidence_level(confidence))
    ratio = float(naive.mean()) / float(unlearn.mean())
    if interval is not None:
        interval = min(interval[0], ratio), max(interval[1], ratio)
    doubt = doubt_about(unlearn, _FEWEST_REMOVALS, "timings of removals")
    doubt = doubt or doubt_about(naive, _FEWEST_RETRAINS, "timings of retrains")
    doubt = doubt or _doubt_of_spread(naive) or _doubt_of_order(unlearn)
    return known("efficiency", ratio, interval, unlearn.size, confidence=confidence, doubt=doubt)


def _doubt_of_spread(times: NDArray[np.float64]) -> str:
    """Return a doubt where a few retrains differ: they do not show how skewed their times are."""
    if times.size >= _FEWEST_REMOVALS or float(np.std(np.log(times), ddof=1)) <= _MOST_SPREAD:
        return ""
    return (
        f"only {times.size} timings of retrains, which differ by much, and {_FEWEST_REMOVALS} are "
        "needed: the interval may be too narrow"
    )


def _doubt_of_order(times: NDArray[np.float64]) -> str:
    """Return a doubt where neighbours are more alike than in 49 of 50 independent samples."""
    gaps = np.log(times) - np.log(times).mean()
    spread = float(gaps @ gaps)
    if spread == 0 or float(gaps[1:] @ gaps[:-1]) <= 2 / math.sqrt(times.size) * spread:
        return ""
    return "timings that follow each other are alike: the interval may be too narrow"
