"""Consistency: how close to the naively retrained model (survey, section 3.3)."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from letheon.measures._intervals import FEWEST_ROWS, clopper_pearson, doubt_about, mean_of_rows
from letheon.measures._measure import (
    Measure,
    confidence_level,
    finite,
    make_measure,
    predictions,
    same_length,
)

# float32 softmax outputs of many classes are off by about 1e-6
_SUM_TOLERANCE = 1e-4


def probabilities(name: str, proba: ArrayLike) -> NDArray[np.float64]:
    """Return rows of class probabilities that add up to 1."""
    p = np.asarray(proba, dtype=np.float64)
    if p.ndim != 2 or p.size == 0:
        raise ValueError(f"{name} must be of shape (rows, classes), not {p.shape}")
    if not np.isfinite(p).all() or (p < 0).any():
        raise ValueError(f"{name} holds NaN, infinite or negative numbers, not probabilities")
    sums = p.sum(axis=1, keepdims=True)
    if (abs(sums - 1) > _SUM_TOLERANCE).any():
        raise ValueError(f"the rows of {name} must add up to 1, not {sums.ravel()[:5].tolist()}")
    return np.asarray(p / sums, dtype=np.float64)


def align_classes(
    proba_a: ArrayLike, classes_a: ArrayLike, proba_b: ArrayLike, classes_b: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[Any]]:
    """Return both probability tables over the union of the classes.

    When the last row of a class is forgotten, `classes_` shrinks, and columns of two models no
    longer mean the same. A class that a model does not know has probability 0 in it.

    Parameters
    ----------
    proba_a, proba_b : array-like of shape (n, n_classes_a) and (n, n_classes_b)
        Outputs of `predict_proba`.
    classes_a, classes_b : array-like
        The models' `classes_`, numbers or strings, each without repeats.

    Returns
    -------
    (a, b, classes)
        Tables of shape ``(n, len(classes))`` and the sorted union of the classes.

    Examples
    --------
    >>> a, b, classes = align_classes([[0.2, 0.8]], ["x", "z"], [[0.5, 0.5]], ["y", "z"])
    >>> classes.tolist(), a.tolist(), b.tolist()
    (['x', 'y', 'z'], [[0.2, 0.0, 0.8]], [[0.0, 0.5, 0.5]])
    """
    first, second = _labels("classes_a", classes_a), _labels("classes_b", classes_b)
    if (first.dtype.kind in "US") != (second.dtype.kind in "US"):
        raise ValueError("the classes of one model are strings and those of the other are not")
    union = np.union1d(first, second)
    a = _spread("proba_a", proba_a, first, union)
    b = _spread("proba_b", proba_b, second, union)
    if len(a) != len(b):
        raise ValueError(f"proba_a has {len(a)} rows and proba_b has {len(b)}")
    return a, b, union


def _labels(name: str, classes: ArrayLike) -> NDArray[Any]:
    """Return the class labels, each once; object arrays of one kind become that kind."""
    values = np.asarray(classes).tolist()
    # NumPy would turn [1, "1"] into two equal strings
    if isinstance(values, list) and len({isinstance(value, str) for value in values}) > 1:
        raise ValueError(f"{name} mixes strings and other labels: {values[:5]}")
    labels = np.asarray(values)
    if labels.ndim != 1 or len(np.unique(labels)) != len(labels):
        raise ValueError(f"{name} must be a list of different labels, not {labels.tolist()[:5]}")
    return labels


def _spread(
    name: str, proba: ArrayLike, classes: NDArray[Any], union: NDArray[Any]
) -> NDArray[np.float64]:
    """Return the columns of `proba` at their places among the union of the classes."""
    p = probabilities(name, proba)
    if p.shape[1] != len(classes):
        raise ValueError(f"{name} has {p.shape[1]} columns for {len(classes)} classes")
    wide = np.zeros((p.shape[0], len(union)))
    wide[:, np.searchsorted(union, classes)] = p
    return wide


Parameters = ArrayLike | Sequence[ArrayLike]


def _blocks(name: str, theta: Parameters) -> list[NDArray[np.float64]]:
    """Return the parameters as a list of finite arrays."""
    parts = theta if isinstance(theta, list | tuple) else [theta]
    arrays = [np.asarray(part) for part in parts]
    if any(array.dtype.kind not in "biuf" for array in arrays):
        raise TypeError(f"{name} must hold real numbers only")
    blocks = [array.astype(np.float64) for array in arrays]
    if not all(np.isfinite(block).all() for block in blocks):
        raise ValueError(f"{name} contains NaN or infinite numbers")
    return blocks


def _parameter_count(unlearned: list[NDArray[np.float64]], naive: list[NDArray[np.float64]]) -> int:
    """Return the number of parameters, the same in both models."""
    if len(unlearned) != len(naive):
        raise ValueError(
            f"the unlearned model has {len(unlearned)} parameter arrays and the naive one "
            f"{len(naive)}"
        )
    for i, (a, b) in enumerate(zip(unlearned, naive, strict=True)):
        if a.shape != b.shape:
            raise ValueError(f"parameter array {i} has shapes {a.shape} and {b.shape}")
    n = sum(block.size for block in unlearned)
    if n == 0:
        raise ValueError("there are no parameters")
    return n


def parameter_consistency(theta_unlearned: Parameters, theta_naive: Parameters) -> Measure:
    """Return the distance of the parameters (survey, equation 3.3).

    ``|| theta_U - theta_* ||_2``, over all parameters taken as one vector.

    Parameters
    ----------
    theta_unlearned, theta_naive : array-like or list of array-like
        Parameters of both models: one array, or one for each layer in the same order.

    Returns
    -------
    Measure
        Lower is better; `n` is the number of parameters. Both vectors are known, so there is
        no sampling error: ``low = value = high``. It speaks of these two models only.

    Examples
    --------
    >>> parameter_consistency([[3.0, 0.0], [1.0]], [[0.0, 4.0], [1.0]]).value
    5.0
    """
    unlearned = _blocks("theta_unlearned", theta_unlearned)
    naive = _blocks("theta_naive", theta_naive)
    n = _parameter_count(unlearned, naive)
    gaps = np.concatenate([(a - b).ravel() for a, b in zip(unlearned, naive, strict=True)])
    # scaled first, so that squares neither overflow nor vanish
    scale = float(abs(gaps).max())
    distance = scale * float(np.linalg.norm(gaps / scale)) if scale > 0 else 0.0
    return make_measure("parameter consistency", distance, (distance, distance), n)


def output_consistency(
    pred_unlearned: ArrayLike, pred_naive: ArrayLike, *, confidence: float = 0.95
) -> Measure:
    """Return the percentage of equal predictions (survey, equation 3.4).

    ``100 / n * #{i : y_*_i = y_U_i}`` on a test set. For classifiers only.

    Parameters
    ----------
    pred_unlearned, pred_naive : array-like of shape (n,)
        Labels that both models predict for the same rows.
    confidence : float, default=0.95
        Coverage that the interval guarantees.

    Returns
    -------
    Measure
        Higher is better. The interval is Clopper and Pearson's: exact for any `n`, so that full
        agreement on 100 rows still says "at least 96.4 %".

    Notes
    -----
    Low agreement is not by itself bad: the models may err on different rows (survey, 3.3).

    Examples
    --------
    >>> print(output_consistency([0, 1, 1, 0], [0, 1, 1, 1]))
    output consistency: 75% [19.41, 99.37] at 0.95 (measured, n=4, higher is better)
    """
    confidence_level(confidence)
    unlearned, naive = _label_pair(pred_unlearned, pred_naive)
    return _agreement("output consistency", unlearned == naive, confidence)


def _agreement(name: str, agrees: NDArray[np.bool_], confidence: float, note: str = "") -> Measure:
    """Return a share of rows in per cent, with Clopper and Pearson's interval."""
    n, count = agrees.size, int(np.sum(agrees))
    low, high = clopper_pearson(count, n, confidence)
    interval = 100 * low, 100 * high
    return make_measure(name, 100 * count / n, interval, n, confidence=confidence, note=note)


def _label_pair(
    pred_unlearned: ArrayLike, pred_naive: ArrayLike
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Return the labels of both models, comparable and of one length."""
    named = [
        ("pred_unlearned", predictions("pred_unlearned", pred_unlearned)),
        ("pred_naive", predictions("pred_naive", pred_naive)),
    ]
    same_length(named)
    for name, values in named:
        if values.ndim != 1:
            raise ValueError(f"{name} must be one label per row, not shape {values.shape}")
        if values.dtype.kind == "f" and (values != np.round(values)).any():
            raise ValueError(
                f"{name} holds fractions: equality of predictions is a measure for classifiers; "
                "for regression compare a metric with `effectiveness`"
            )
    unlearned, naive = named[0][1], named[1][1]
    if (unlearned.dtype.kind in "US") != (naive.dtype.kind in "US") and "O" not in (
        unlearned.dtype.kind + naive.dtype.kind
    ):
        raise ValueError("the labels of one model are strings and those of the other are not")
    return unlearned, naive


def kl_consistency(
    proba_unlearned: ArrayLike,
    proba_naive: ArrayLike,
    *,
    classes_unlearned: ArrayLike | None = None,
    classes_naive: ArrayLike | None = None,
    floor: float = 0.0,
    confidence: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Measure:
    """Return the mean Kullback-Leibler divergence of the class probabilities (equation 3.5).

    ``1/n sum_i KL(P_U(x_i) || P_*(x_i))``, ``KL(p || q) = sum_c p_c log(p_c / q_c)``, in nats: the
    divergence *of* the unlearned model *from* the naively retrained one, as the survey has it.

    Parameters
    ----------
    proba_unlearned, proba_naive : array-like of shape (n, n_classes)
        `predict_proba` of both models on the same rows.
    classes_unlearned, classes_naive : array-like, optional
        Their `classes_`, given both or neither; needed when one model has lost a class.
    floor : float, default=0
        Smallest probability that the retrained model is taken to give. With 0 the measure is the
        exact one: a class with ``p_c > 0`` and ``q_c = 0`` makes it infinite, as it
        should be, for instance when the unlearned model still knows a class that is gone. With a
        positive floor (1e-5 is usual) smaller ``q_c`` are raised to it and the row is
        scaled back to 1; state it beside the result. Terms with ``p_c = 0`` are 0.
    confidence, n_resamples, seed
        As for `effectiveness`.

    Returns
    -------
    Measure
        Lower is better; 0 exactly when the probabilities are equal. The interval is a bootstrap-t
        over rows, because divergences are skewed; None when the value is infinite or the same for
        each row. It is claimed to hold from 100 rows on, see `Measure.is_rough`.

    Examples
    --------
    >>> round(kl_consistency([[0.5, 0.5]], [[0.25, 0.75]]).value, 4)
    0.1438
    >>> kl_consistency([[0.5, 0.5]], [[1.0, 0.0]]).value
    inf
    """
    confidence_level(confidence)
    p, q = _tables(proba_unlearned, proba_naive, classes_unlearned, classes_naive)
    if not 0 <= floor < 1 / p.shape[1]:
        raise ValueError(f"floor must be at least 0 and below 1/{p.shape[1]}, not {floor!r}")
    if floor > 0:
        q = np.maximum(q, floor)
        q /= q.sum(axis=1, keepdims=True)
    note = f"probabilities floored at {floor:g}" if floor > 0 else ""
    return _mean_divergence(divergence(p, q), confidence, n_resamples, seed, note)


def _mean_divergence(
    rows: NDArray[np.float64], confidence: float, n_resamples: int, seed: int, note: str = ""
) -> Measure:
    """Return the mean over rows; no interval where it is infinite or the same for each row."""
    value, interval = float(rows.mean()), None
    if math.isfinite(value):
        interval = mean_of_rows(rows, confidence=confidence, n_resamples=n_resamples, seed=seed)
    doubt = "" if interval is None else doubt_about(rows, FEWEST_ROWS, "rows")
    return make_measure(
        "KL consistency", value, interval, rows.size, confidence=confidence, note=note, doubt=doubt
    )


def _tables(
    p: ArrayLike, q: ArrayLike, classes_p: ArrayLike | None, classes_q: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both probability tables over the same classes."""
    if (classes_p is None) != (classes_q is None):
        raise ValueError("give classes_unlearned and classes_naive, or neither")
    if classes_p is not None and classes_q is not None:
        a, b, _ = align_classes(p, classes_p, q, classes_q)
    else:
        a, b = probabilities("proba_unlearned", p), probabilities("proba_naive", q)
    if a.shape != b.shape:
        raise ValueError(
            f"the probabilities have shapes {a.shape} and {b.shape}, which must be the same; "
            "models with different classes need classes_unlearned and classes_naive"
        )
    return a, b


def divergence(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return KL(p || q) of each row."""
    with np.errstate(divide="ignore"):
        log_q = np.log(q)
    log_p = np.log(p, out=np.zeros_like(p), where=p > 0)
    # q - p adds up to 0 over a row but makes each term p log(p/q) - p + q non-negative, so that
    # nearly equal probabilities do not cancel into noise
    terms = np.multiply(p, log_p - log_q, out=np.zeros_like(p), where=p > 0) + (q - p)
    return np.asarray(np.maximum(terms, 0.0).sum(axis=1))


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
    unlearned, naive = _number_pair(pred_unlearned, pred_naive)
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
    return make_measure(
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
    unlearned, naive = _number_pair(pred_unlearned, pred_naive)
    agrees = abs(unlearned - naive) <= tolerance
    return _agreement("agreement within", agrees, confidence, f"tolerance {tolerance:.4g}")


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
    m_p, m_q = _number_pair(mean_unlearned, mean_naive)
    s_p, s_q = (
        _deviations(name, sd, m_p.size)
        for name, sd in (("sd_unlearned", sd_unlearned), ("sd_naive", sd_naive))
    )
    rows = gaussian_divergence(m_p, m_q, s_p, s_q)
    return _mean_divergence(rows, confidence, n_resamples, seed)


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


def _number_pair(
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
