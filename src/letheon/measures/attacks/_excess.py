"""By how much a measure is worse than its floor, judged within what both of them share.

An attack and its floor have the same halves, people, patterns or reference models. What these do
to a score they do to both, so it cancels in the difference of one pair, one model or one tester.
The intervals of the two numbers do not know that; that two of them are disjoint is asked far
too much, and a model that kept everything would pass.
"""

import math

import numpy as np
from numpy.typing import NDArray

from letheon.measures._intervals import student
from letheon.measures._measure import Measure

__all__ = ["BEYOND", "ROUNDS", "beyond_floor", "beyond_floor_by_swaps", "beyond_floor_by_unit"]

BEYOND = "beyond the floor"
# Differences of rounding are no differences.
_ROUNDING = 1e-12
# Rounds of random swaps: with 199 a rank among 200 is exact at 5 %.
ROUNDS = 199


def beyond_floor(
    value: float,
    interval: tuple[float, float] | None,
    n: int,
    *,
    confidence: float = 0.95,
    unit: str = "",
    note: str = "",
) -> Measure:
    """Return the measure of an excess; positive is bad, whatever is better of the main measure."""
    low, high = (None, None) if interval is None else interval
    return Measure(
        name=BEYOND,
        value=value,
        low=low,
        high=high,
        n=n,
        better="lower",
        basis="measured",
        confidence=confidence,
        unit=unit,
        note=note,
    )


def beyond_floor_by_unit(
    gaps: NDArray[np.float64], *, confidence: float = 0.95, note: str = ""
) -> Measure:
    """Return the mean of the differences to the floor, one for each unit, with its interval.

    Parameters
    ----------
    gaps : ndarray of shape (n,)
        Measure minus floor of each pair, model or tester. Where nothing was kept, their law is
        symmetric about 0: both sides are models of the same law.
    confidence : float, default=0.95
        Coverage of the interval, Student's over units; "beyond" is then wrong in at most
        ``(1 - confidence) / 2``.
    note : str, default=""
        Note of the measure.

    Returns
    -------
    Measure
        Without an interval for one unit, and where all units agree on a difference but
        are so few that they would do so by luck (a sign test: ``2**-n``).
    """
    n, value = len(gaps), float(gaps.mean())
    if np.ptp(gaps) > _ROUNDING:
        return beyond_floor(value, student(gaps, confidence), n, confidence=confidence, note=note)
    value = 0.0 if abs(value) <= _ROUNDING else value
    is_sure = value == 0 or math.ldexp(1.0, -n) <= (1 - confidence) / 2
    interval = (value, value) if is_sure else None
    return beyond_floor(value, interval, n, confidence=confidence, note=note)


def beyond_floor_by_swaps(
    value: float,
    swapped: NDArray[np.float64],
    n: int,
    *,
    confidence: float = 0.95,
    unit: str = "",
    note: str = "",
) -> Measure:
    """Return a difference to the floor with a permutation interval.

    If unlearned models have the law of retrained ones, each of them may change places with a
    retrained one. The interval is the value, give or take the quantile of the size of what such
    swaps give. It lies above 0 in at most about ``(1 - confidence) / 2`` of such cases, however
    few the models are: the law of the difference is then symmetric.

    Parameters
    ----------
    value : float
        Measure minus floor; positive is bad.
    swapped : ndarray of shape (ROUNDS,)
        The same after random swaps.
    n : int
        Observations behind the value.
    confidence, unit, note
        As in `Measure`.
    """
    rank = min(math.ceil((len(swapped) + 1) * confidence), len(swapped))
    half = max(float(np.sort(np.abs(swapped))[rank - 1]), _ROUNDING * (value != 0))
    interval = value - half, value + half
    return beyond_floor(value, interval, n, confidence=confidence, unit=unit, note=note)
