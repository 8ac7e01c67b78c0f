"""One measure out of several runs: the mean over seeds, the geometric mean over settings."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from letheon.measures._inputs import confidence_level
from letheon.measures._intervals import Interval, student
from letheon.measures._measure import KNOWN, RANGES, Basis, Better, Measure

__all__ = ["geometric_mean", "over_seeds"]


def over_seeds(
    name: str,
    values: ArrayLike,
    *,
    better: Better | None = None,
    unit: str | None = None,
    within: Interval | None = None,
    basis: Basis = "measured",
    confidence: float = 0.95,
    note: str = "",
    shared_error: float = 0.0,
    n_shared: int = 0,
) -> Measure:
    """Return the mean over independent runs with Student's interval.

    ``mean +- t sqrt(s² / n + e²)``, ``s² = sum_i (v_i - mean)² / (n - 1)``, `e` the error that all
    runs share, ``t`` Student's quantile with ``n - 1`` degrees of freedom, or Welch's with both.

    Parameters
    ----------
    name : str
        What was measured. For the measures of this package direction, unit and range are known.
    values : array-like of shape (n,)
        One value for each seed.
    better, unit, within : optional
        Direction, unit, and the range that the mean cannot leave; needed (`better`) or possible
        for other names. The interval is cut to the range, which cannot cost coverage.
    basis, confidence, note
        As in `Measure`.
    shared_error : float, default=0
        Standard error that all runs have in common, such as that of the test rows by which all
        were judged. Without it the interval speaks of other seeds on the same rows only.
    n_shared : int, default=0
        Observations behind it.

    Returns
    -------
    Measure
        The interval is exact for normal values and honest with three seeds; for a mean of
        skewed values it is narrower than it should be until there are more seeds. Without a
        shared error: None for one run, an infinite value, or runs that are all equal, since they
        do not show their error.

    Examples
    --------
    >>> print(over_seeds("effectiveness", [0.01, 0.02, 0.03]))
    effectiveness: 0.02 [0, 0.04484] at 0.95 (measured, n=3, lower is better)
    """
    confidence_level(confidence)
    numbers = _runs(values)
    mean = _mean(numbers)
    least, most = _range(name, within)
    # 100.00000000000001 % is rounding, 101 % is not
    slack = 1e-9 * max(abs(end) for end in (least, most, 1.0) if math.isfinite(end))
    if not ((numbers >= least - slack) & (numbers <= most + slack)).all():
        raise ValueError(f"{name} must lie in [{least:g}, {most:g}], not {numbers.tolist()[:5]}")
    mean = min(max(mean, least), most)
    interval = student(numbers, confidence, shared_error, n_shared)
    if interval is not None:
        interval = max(min(interval[0], mean), least), min(max(interval[1], mean), most)
    return _named(name, mean, interval, numbers.size, better, unit, basis, confidence, note)


def geometric_mean(
    name: str,
    values: ArrayLike,
    *,
    better: Better | None = None,
    unit: str | None = None,
    basis: Basis = "measured",
    confidence: float = 0.95,
    note: str = "",
) -> Measure:
    """Return the geometric mean of positive values, as the survey's tables do with speed-ups.

    ``(prod_i v_i)^(1/n)``; the interval is Student's for the mean of the logarithms, taken back by
    the exponential. A speed-up of 100 and one of 1/100 average to 1, not to 50.

    Parameters
    ----------
    name : str
        What was measured.
    values : array-like of shape (n,)
        Positive finite values, one for each run.
    better, unit : optional
        Direction and unit; known for the measures of this package.
    basis, confidence, note
        As in `Measure`; the least and the largest value are put in front of the note.

    Returns
    -------
    Measure
        The interval is exact for log-normal values; None for one run or runs that are all equal.

    Examples
    --------
    >>> measure = geometric_mean("efficiency", [2.0, 8.0, 32.0])
    >>> round(measure.value, 6), measure.note
    (8.0, 'min 2, max 32')
    """
    confidence_level(confidence)
    numbers = _runs(values)
    if not (np.isfinite(numbers).all() and (numbers > 0).all()):
        raise ValueError(f"{name} must be positive and finite, not {numbers.tolist()[:5]}")
    logs = np.log(numbers)
    least, most = float(numbers.min()), float(numbers.max())
    value = min(max(math.exp(float(logs.mean())), least), most)
    interval = student(logs, confidence)
    if interval is not None:
        low, high = (float(end) for end in np.exp(np.clip(interval, -745, 709)))
        interval = min(low, value), max(high, value)
    extremes = f"min {least:.4g}, max {most:.4g}"
    note = f"{extremes}; {note}" if note else extremes
    return _named(name, value, interval, numbers.size, better, unit, basis, confidence, note)


def _runs(values: ArrayLike) -> NDArray[np.float64]:
    """Return one number for each run, none of them NaN."""
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or numbers.size == 0:
        raise ValueError(f"values must be a list of numbers, one for each run, not {values!r}")
    if np.isnan(numbers).any():
        raise ValueError(f"values contain NaN: {numbers.tolist()[:5]}")
    return numbers


def _mean(numbers: NDArray[np.float64]) -> float:
    """Return the mean; an infinite run makes it infinite."""
    with np.errstate(invalid="ignore"):
        mean = float(numbers.mean())
    if math.isnan(mean):
        raise ValueError("values hold both infinities, they have no mean")
    # rounding can push the mean of equal values past them
    return min(max(mean, float(numbers.min())), float(numbers.max()))


def _range(name: str, within: Interval | None) -> Interval:
    """Return the range of the quantity."""
    return RANGES.get(name, (-math.inf, math.inf)) if within is None else within


def _named(
    name: str,
    value: float,
    interval: Interval | None,
    n: int,
    better: Better | None,
    unit: str | None,
    basis: Basis,
    confidence: float,
    note: str,
) -> Measure:
    """Return the measure; direction and unit are looked up where they are not given."""
    way, its_unit = KNOWN.get(name, (better, ""))
    direction = way if better is None else better
    if direction is None:
        raise ValueError(f"{name!r}: say better='lower' or 'higher'")
    low, high = (None, None) if interval is None else interval
    return Measure(
        name=name,
        value=value,
        low=low,
        high=high,
        n=n,
        better=direction,
        basis=basis,
        confidence=confidence,
        unit=its_unit if unit is None else unit,
        note=note,
    )
