"""Consistency of regression models: what stands for equal labels and class probabilities."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from letheon.measures._inputs import confidence_level, finite, same_length
from letheon.measures._intervals import (
    FEWEST_ROWS,
    clopper_pearson,
    doubt_about,
    mean_of_rows,
)
from letheon.measures._measure import Measure, known

__all__ = ["agreement_within", "gaussian_divergence", "kl_gaussian", "prediction_gap"]


def prediction_gap(
    pred_unlearned: ArrayLike,
    pred_naive: ArrayLike,
    *,
    relative: bool = False,
    confidence: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Measure:
    """Return the root mean square of the difference of two models' predictions.

    ``sqrt(1/n sum_i (y_U_i - y_*_i)²)``: for regression, what the survey's output consistency
    (equation 3.4) is for classifiers. It compares predictions, not errors, so no truth is needed.

    Parameters
    ----------
    pred_unlearned, pred_naive : array-like of shape (n,)
        Predictions of both models for the same rows.
    relative : bool, default=False
        Divide by the standard deviation (n - 1) of the retrained model's predictions, which must
        not be all equal. That spread is then the unit: its own error is not in the interval.
    confidence, n_resamples, seed
        As for `effectiveness`.

    Returns
    -------
    Measure
        Lower is better; 0 exactly when the predictions are equal. The interval is the root of a
        bootstrap-t of the mean square over rows; None for one row or equal squares. It is claimed
        to hold from 100 rows on, see `Measure.is_rough`.

    Examples
    --------
    >>> prediction_gap([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 2.0]).value
    1.0
    """
    confidence_level(confidence)
    unlearned, naive = _pair(pred_unlearned, pred_naive)
    gaps, unit = unlearned - naive, 1.0
    if relative:
        unit = float(naive.std(ddof=1)) if naive.size > 1 else 0.0
        if unit == 0:
            raise ValueError("the predictions of the retrained model are all equal: no spread")
    # scaled first, so that squares neither overflow nor vanish
    scale = float(abs(gaps).max()) or 1.0
    squares = (gaps / scale) ** 2
    ends = mean_of_rows(squares, confidence=confidence, n_resamples=n_resamples, seed=seed)
    value, factor = math.sqrt(float(squares.mean())), scale / unit
    interval = None if ends is None else (factor * math.sqrt(ends[0]), factor * math.sqrt(ends[1]))
    note = "in standard deviations of the retrained model's predictions" if relative else ""
    return known(
        "prediction gap",
        factor * value,
        interval,
        gaps.size,
        confidence=confidence,
        note=note,
        doubt=doubt_about(squares, FEWEST_ROWS, "rows"),
    )


def agreement_within(
    pred_unlearned: ArrayLike, pred_naive: ArrayLike, tolerance: float, *, confidence: float = 0.95
) -> Measure:
    """Return the percentage of rows on which two regression models agree up to a tolerance.

    ``100 / n * #{i : |y_U_i - y_*_i| <= tolerance}``, the survey's output consistency (equation
    3.4) with "equal" read as "no further apart than the tolerance".

    Parameters
    ----------
    pred_unlearned, pred_naive : array-like of shape (n,)
        Predictions of both models for the same rows.
    tolerance : float
        Largest difference that counts as agreement, in the unit of the predictions; at least 0.
    confidence : float, default=0.95
        Coverage that the interval guarantees.

    Returns
    -------
    Measure
        Higher is better. The interval is Clopper and Pearson's.

    Examples
    --------
    >>> agreement_within([1.0, 2.0, 3.0, 4.0], [1.5, 2.0, 3.0, 2.0], 0.5).value
    75.0
    """
    confidence_level(confidence)
    if not finite("tolerance", tolerance) >= 0:
        raise ValueError(f"tolerance must be at least 0, not {tolerance!r}")
    unlearned, naive = _pair(pred_unlearned, pred_naive)
    n, agree = unlearned.size, int(np.sum(abs(unlearned - naive) <= tolerance))
    low, high = clopper_pearson(agree, n, confidence)
    value = 100 * agree / n
    # closed at the value itself, not a rounding error beside it
    interval = min(100 * low, value), max(100 * high, value)
    note = f"tolerance {tolerance:.4g}"
    return known("agreement within", value, interval, n, confidence=confidence, note=note)


def kl_gaussian(
    mean_unlearned: ArrayLike,
    mean_naive: ArrayLike,
    sd_unlearned: ArrayLike,
    sd_naive: ArrayLike,
    *,
    confidence: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Measure:
    """Return the mean divergence of two Gaussian predictive laws (survey, equation 3.5).

    ``KL(N(m_U, s_U²) || N(m_*, s_*²)) = log(s_*/s_U) + (s_U² + (m_U - m_*)²) / (2 s_*²) - 1/2``, in
    nats, averaged over rows: for regression, what `kl_consistency` is for class probabilities.

    Parameters
    ----------
    mean_unlearned, mean_naive : array-like of shape (n,)
        Predicted means of both models.
    sd_unlearned, sd_naive : float or array-like of shape (n,)
        Predicted standard deviations, one for all rows or one each; known numbers, at least 0.
    confidence, n_resamples, seed
        As for `effectiveness`.

    Returns
    -------
    Measure
        Lower is better; 0 exactly for equal laws. Infinite where just one of the two is certain
        (deviation 0), or both are, of different values. The interval is a bootstrap-t over
        rows, None when the value is infinite or the same for each row.

    Examples
    --------
    >>> kl_gaussian([1.0], [0.0], 1.0, 1.0).value
    0.5
    """
    confidence_level(confidence)
    m_p, m_q = _pair(mean_unlearned, mean_naive)
    s_p, s_q = (
        _deviations(name, sd, m_p.size)
        for name, sd in (("sd_unlearned", sd_unlearned), ("sd_naive", sd_naive))
    )
    rows = gaussian_divergence(m_p, m_q, s_p, s_q)
    value, interval = float(rows.mean()), None
    if math.isfinite(value):
        interval = mean_of_rows(rows, confidence=confidence, n_resamples=n_resamples, seed=seed)
    doubt = "" if interval is None else doubt_about(rows, FEWEST_ROWS, "rows")
    return known("KL consistency", value, interval, rows.size, confidence=confidence, doubt=doubt)


def gaussian_divergence(
    m_p: NDArray[np.float64],
    m_q: NDArray[np.float64],
    s_p: NDArray[np.float64],
    s_q: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return KL(N(m_p, s_p²) || N(m_q, s_q²)) of each row."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = s_p / s_q
        # u - log(1 + u) does not cancel where the deviations are nearly equal
        excess = (ratio - 1) * (ratio + 1)
        shape = excess - np.log1p(excess)
        rows = 0.5 * (np.maximum(shape, 0.0) + ((m_p - m_q) / s_q) ** 2)
    certain = (s_p == 0) & (s_q == 0)
    rows = np.where((s_p == 0) | (s_q == 0), np.inf, rows)
    return np.asarray(np.where(certain & (m_p == m_q), 0.0, rows))


def _pair(
    pred_unlearned: ArrayLike, pred_naive: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return finite numbers of both models, one for each row."""
    named = [
        (name, np.asarray(values, dtype=np.float64))
        for name, values in (("pred_unlearned", pred_unlearned), ("pred_naive", pred_naive))
    ]
    for name, numbers in named:
        if numbers.ndim != 1 or numbers.size == 0:
            raise ValueError(f"{name} must be one number per row, not shape {numbers.shape}")
        if not np.isfinite(numbers).all():
            raise ValueError(f"{name} contains NaN or infinite numbers")
    same_length(named)
    return named[0][1], named[1][1]


def _deviations(name: str, sd: ArrayLike, n: int) -> NDArray[np.float64]:
    """Return one standard deviation for each row."""
    values = np.asarray(sd, dtype=np.float64)
    if values.shape not in ((), (n,)):
        raise ValueError(f"{name} must be one number or {n} of them, not shape {values.shape}")
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise ValueError(f"{name} must be finite and not negative")
    return np.broadcast_to(values, (n,))
