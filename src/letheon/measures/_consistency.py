"""Consistency: how close to the naively retrained model (survey, section 3.3)."""

import math
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from letheon.measures._intervals import (
    FEWEST_ROWS,
    Floats,
    Resampling,
    clopper_pearson,
    describe_doubt,
    ratio_of_means,
)
from letheon.measures._measure import (
    Measure,
    MeasureOptions,
    as_numbers,
    check_predictions,
    make_measure,
    require_finite,
    require_labels,
    require_one_kind,
    require_same_length,
    scaled_norm,
)

# float32 softmax outputs of many classes are off by about 1e-6
_SUM_TOLERANCE = 1e-4


def _check_probabilities(name: str, proba: ArrayLike) -> Floats:
    """Return rows of class probabilities that add up to 1."""
    p = as_numbers(name, proba, "of shape (rows, classes)", ndim=2, least=0.0)
    sums = p.sum(axis=1, keepdims=True)
    if (abs(sums - 1) > _SUM_TOLERANCE).any():
        raise ValueError(f"the rows of {name} must add up to 1, not {sums.ravel()[:5].tolist()}")
    return np.asarray(p / sums, dtype=np.float64)


def align_classes(
    proba_a: ArrayLike, classes_a: ArrayLike, proba_b: ArrayLike, classes_b: ArrayLike
) -> tuple[Floats, Floats, NDArray[Any]]:
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
    first, second = _check_labels("classes_a", classes_a), _check_labels("classes_b", classes_b)
    require_one_kind("classes", first, second)
    union = np.union1d(first, second)
    a = _align_columns("proba_a", proba_a, first, union)
    b = _align_columns("proba_b", proba_b, second, union)
    if len(a) != len(b):
        raise ValueError(f"proba_a has {len(a)} rows and proba_b has {len(b)}")
    return a, b, union


def _check_labels(name: str, classes: ArrayLike) -> NDArray[Any]:
    """Return the class labels, each once; object arrays of one kind become that kind."""
    values = np.asarray(classes).tolist()
    # NumPy would turn [1, "1"] into two equal strings
    if isinstance(values, list) and len({isinstance(value, str) for value in values}) > 1:
        raise ValueError(f"{name} mixes strings and other labels: {values[:5]}")
    labels = np.asarray(values)
    if labels.ndim != 1 or len(np.unique(labels)) != len(labels):
        raise ValueError(f"{name} must be a list of different labels, not {labels.tolist()[:5]}")
    return labels


def _align_columns(
    name: str, proba: ArrayLike, classes: NDArray[Any], union: NDArray[Any]
) -> Floats:
    """Return the columns of `proba` at their places among the union of the classes."""
    p = _check_probabilities(name, proba)
    if p.shape[1] != len(classes):
        raise ValueError(f"{name} has {p.shape[1]} columns for {len(classes)} classes")
    wide = np.zeros((p.shape[0], len(union)))
    wide[:, np.searchsorted(union, classes)] = p
    return wide


Parameters = ArrayLike | Sequence[ArrayLike]


def _check_parameters(name: str, theta: Parameters) -> list[Floats]:
    """Return the parameters as a list of finite arrays."""
    parts = theta if isinstance(theta, list | tuple) else [theta]
    arrays = [np.asarray(part) for part in parts]
    if any(array.dtype.kind not in "biuf" for array in arrays):
        raise TypeError(f"{name} must hold real numbers only")
    blocks = [array.astype(np.float64) for array in arrays]
    if not all(np.isfinite(block).all() for block in blocks):
        raise ValueError(f"{name} contains NaN or infinite numbers")
    return blocks


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
    unlearned = _check_parameters("theta_unlearned", theta_unlearned)
    naive = _check_parameters("theta_naive", theta_naive)
    if len(unlearned) != len(naive):
        raise ValueError(
            f"the unlearned model has {len(unlearned)} parameter arrays and the naive one "
            f"{len(naive)}"
        )
    for i, (a, b) in enumerate(zip(unlearned, naive, strict=True)):
        if a.shape != b.shape:
            raise ValueError(f"parameter array {i} has shapes {a.shape} and {b.shape}")
    if sum(block.size for block in unlearned) == 0:
        raise ValueError("there are no parameters")
    gaps = np.concatenate([(a - b).ravel() for a, b in zip(unlearned, naive, strict=True)])
    distance = scaled_norm(gaps)
    return make_measure("parameter consistency", distance, (distance, distance), gaps.size)


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
    unlearned = check_predictions("pred_unlearned", pred_unlearned)
    naive = check_predictions("pred_naive", pred_naive)
    require_same_length(pred_unlearned=unlearned, pred_naive=naive)
    if unlearned.ndim != 1 or naive.ndim != 1:
        raise ValueError(f"one label per row is needed, not {unlearned.shape} and {naive.shape}")
    hint = "for regression compare a metric with `effectiveness`"
    require_labels(hint, pred_unlearned=unlearned, pred_naive=naive)
    return _agreement_measure("output consistency", unlearned == naive, confidence)


def _agreement_measure(
    name: str, agrees: NDArray[np.bool_], confidence: float, note: str = ""
) -> Measure:
    """Return a share of rows in per cent, with Clopper and Pearson's interval."""
    n, count = agrees.size, int(np.sum(agrees))
    low, high = clopper_pearson(count, n, confidence)
    interval = 100 * low, 100 * high
    return make_measure(name, 100 * count / n, interval, n, confidence=confidence, note=note)


def kl_consistency(
    proba_unlearned: ArrayLike,
    proba_naive: ArrayLike,
    *,
    classes_unlearned: ArrayLike | None = None,
    classes_naive: ArrayLike | None = None,
    floor: float = 0.0,
    **resampling: Unpack[Resampling],
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
    if (classes_unlearned is None) != (classes_naive is None):
        raise ValueError("give classes_unlearned and classes_naive, or neither")
    if classes_unlearned is not None and classes_naive is not None:
        p, q, _ = align_classes(proba_unlearned, classes_unlearned, proba_naive, classes_naive)
    else:
        p = _check_probabilities("proba_unlearned", proba_unlearned)
        q = _check_probabilities("proba_naive", proba_naive)
    if p.shape != q.shape:
        raise ValueError(
            f"the probabilities have shapes {p.shape} and {q.shape}, which must be the same; "
            "models with different classes need classes_unlearned and classes_naive"
        )
    if not 0 <= floor < 1 / p.shape[1]:
        raise ValueError(f"floor must be at least 0 and below 1/{p.shape[1]}, not {floor!r}")
    if floor > 0:
        q = np.maximum(q, floor)
        q /= q.sum(axis=1, keepdims=True)
    note = f"probabilities floored at {floor:g}" if floor > 0 else ""
    return _mean_divergence(kl_divergence(p, q), note, resampling)


def _mean_divergence(rows: Floats, note: str, resampling: Resampling) -> Measure:
    """Return the mean over rows; no interval where it is infinite or the same for each row."""
    interval = ratio_of_means(rows, **resampling)
    doubt = "" if interval is None else describe_doubt(rows, FEWEST_ROWS, "rows")
    options: MeasureOptions = {"confidence": resampling.get("confidence", 0.95), "note": note}
    value = float(rows.mean())
    return make_measure("KL consistency", value, interval, rows.size, doubt=doubt, **options)


def kl_divergence(p: Floats, q: Floats) -> Floats:
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
    **resampling: Unpack[Resampling],
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
    unlearned, naive = _number_pair(pred_unlearned, pred_naive)
    gaps, unit = unlearned - naive, 1.0
    if relative:
        unit = float(naive.std(ddof=1)) if naive.size > 1 else 0.0
        if unit == 0:
            raise ValueError("the predictions of the retrained model are all equal: no spread")
    # scaled first, so that squares neither overflow nor vanish
    scale = float(abs(gaps).max()) or 1.0
    squares = (gaps / scale) ** 2
    ends = ratio_of_means(squares, **resampling)
    value, factor = math.sqrt(float(squares.mean())), scale / unit
    interval = None if ends is None else (factor * math.sqrt(ends[0]), factor * math.sqrt(ends[1]))
    note = "in standard deviations of the retrained model's predictions" if relative else ""
    doubt = describe_doubt(squares, FEWEST_ROWS, "rows")
    options: MeasureOptions = {"confidence": resampling.get("confidence", 0.95), "note": note}
    return make_measure(
        "prediction gap", factor * value, interval, gaps.size, doubt=doubt, **options
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
    if not require_finite("tolerance", tolerance) >= 0:
        raise ValueError(f"tolerance must be at least 0, not {tolerance!r}")
    unlearned, naive = _number_pair(pred_unlearned, pred_naive)
    agrees = abs(unlearned - naive) <= tolerance
    return _agreement_measure("agreement within", agrees, confidence, f"tolerance {tolerance:.4g}")


def kl_gaussian(
    mean_unlearned: ArrayLike,
    mean_naive: ArrayLike,
    sd_unlearned: ArrayLike,
    sd_naive: ArrayLike,
    **resampling: Unpack[Resampling],
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
    means = _number_pair(mean_unlearned, mean_naive)
    n, deviations = len(means[0]), []
    for name, sd in (("sd_unlearned", sd_unlearned), ("sd_naive", sd_naive)):
        if np.shape(sd) not in ((), (n,)):
            raise ValueError(f"{name} must be one number or {n} of them, not shape {np.shape(sd)}")
        every = np.broadcast_to(np.asarray(sd, np.float64), (n,))
        deviations.append(as_numbers(name, every, "", least=0.0))
    return _mean_divergence(gaussian_kl_divergence(*means, *deviations), "", resampling)


def gaussian_kl_divergence(m_p: Floats, m_q: Floats, s_p: Floats, s_q: Floats) -> Floats:
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


def _number_pair(pred_unlearned: ArrayLike, pred_naive: ArrayLike) -> tuple[Floats, Floats]:
    """Return finite numbers of both models, one for each row."""
    unlearned = as_numbers("pred_unlearned", pred_unlearned, "one number per row")
    naive = as_numbers("pred_naive", pred_naive, "one number per row")
    require_same_length(pred_unlearned=unlearned, pred_naive=naive)
    return unlearned, naive
