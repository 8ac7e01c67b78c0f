"""Consistency: how close a model is to the naively retrained one (survey, section 3.3)."""

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
    safe_norm,
)

# float32 softmax outputs of many classes have errors of about 1e-6.
_SUM_TOLERANCE = 1e-4


def _check_probabilities(name: str, proba: ArrayLike) -> Floats:
    """Return class probabilities as a table whose rows add up to exactly 1, or raise."""
    p = as_numbers(name, proba, "of shape (rows, classes)", ndim=2, least=0.0)
    sums = p.sum(axis=1, keepdims=True)
    if (abs(sums - 1) > _SUM_TOLERANCE).any():
        raise ValueError(
            f"each row of {name} must add up to 1; the first sums are {sums.ravel()[:5].tolist()}"
        )
    return np.asarray(p / sums, dtype=np.float64)


def align_classes(
    proba_a: ArrayLike, classes_a: ArrayLike, proba_b: ArrayLike, classes_b: ArrayLike
) -> tuple[Floats, Floats, NDArray[Any]]:
    """Return both probability tables over the union of the classes.

    When the last row of a class is forgotten, `classes_` shrinks and the columns of two models no
    longer correspond. A class that a model does not have gets probability 0.

    Parameters
    ----------
    proba_a, proba_b : array-like of shape (n, n_classes_a) and (n, n_classes_b)
        Outputs of `predict_proba`.
    classes_a, classes_b : array-like
        `classes_` of both models, numbers or strings, without duplicates.

    Returns
    -------
    (a, b, classes)
        Tables of shape ``(n, len(classes))`` and the sorted union of the classes.

    Raises
    ------
    ValueError
        The numbers of rows differ, or labels are repeated or of mixed types.

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
        raise ValueError(f"proba_a has {len(a)} rows, but proba_b has {len(b)}")
    return a, b, union


def _check_labels(name: str, classes: ArrayLike) -> NDArray[Any]:
    """Return the class labels as an array, or raise if there are duplicates or mixed types."""
    values = np.asarray(classes).tolist()
    # NumPy would convert [1, "1"] to two equal strings.
    if isinstance(values, list) and len({isinstance(value, str) for value in values}) > 1:
        raise ValueError(f"{name} mixes strings with other labels: {values[:5]}")
    labels = np.asarray(values)
    if labels.ndim != 1 or len(np.unique(labels)) != len(labels):
        raise ValueError(f"{name} must be a list of distinct labels, not {labels.tolist()[:5]}")
    return labels


def _align_columns(
    name: str, proba: ArrayLike, classes: NDArray[Any], union: NDArray[Any]
) -> Floats:
    """Return `proba` with one column per class in `union`; 0 for classes that it lacks."""
    p = _check_probabilities(name, proba)
    if p.shape[1] != len(classes):
        raise ValueError(f"{name} has {p.shape[1]} columns, but there are {len(classes)} classes")
    wide = np.zeros((p.shape[0], len(union)))
    wide[:, np.searchsorted(union, classes)] = p
    return wide


Parameters = ArrayLike | Sequence[ArrayLike]


def _check_parameters(name: str, theta: Parameters) -> list[Floats]:
    """Return the parameters as a list of arrays, or raise unless all are finite real numbers."""
    parts = theta if isinstance(theta, list | tuple) else [theta]
    arrays = [np.asarray(part) for part in parts]
    if any(array.dtype.kind not in "biuf" for array in arrays):
        raise TypeError(f"{name} must contain real numbers only")
    blocks = [array.astype(np.float64) for array in arrays]
    if not all(np.isfinite(block).all() for block in blocks):
        raise ValueError(f"{name} contains NaN or infinite numbers")
    return blocks


def parameter_consistency(theta_unlearned: Parameters, theta_naive: Parameters) -> Measure:
    """Return the distance between the parameters of two models (survey, equation 3.3).

    This is ``|| theta_U - theta_* ||_2``, with all parameters in one vector.

    Parameters
    ----------
    theta_unlearned, theta_naive : array-like or list of array-like
        Parameters of both models: one array, or one array per layer in the same order.

    Returns
    -------
    Measure
        Lower is better; `n` is the number of parameters. There is no sampling error: ``low =
        value = high``. The value holds for these two models only.

    Raises
    ------
    ValueError
        The shapes differ, or a value is not a finite number.

    Examples
    --------
    >>> parameter_consistency([[3.0, 0.0], [1.0]], [[0.0, 4.0], [1.0]]).value
    5.0
    """
    unlearned = _check_parameters("theta_unlearned", theta_unlearned)
    naive = _check_parameters("theta_naive", theta_naive)
    if len(unlearned) != len(naive):
        raise ValueError(
            f"theta_unlearned has {len(unlearned)} parameter arrays, but theta_naive has "
            f"{len(naive)}"
        )
    for i, (a, b) in enumerate(zip(unlearned, naive, strict=True)):
        if a.shape != b.shape:
            raise ValueError(
                f"parameter array {i} must have the same shape in both models, not {a.shape} and "
                f"{b.shape}"
            )
    if sum(block.size for block in unlearned) == 0:
        raise ValueError("theta_unlearned and theta_naive are empty")
    gaps = np.concatenate([(a - b).ravel() for a, b in zip(unlearned, naive, strict=True)])
    distance = safe_norm(gaps)
    return make_measure("parameter consistency", distance, (distance, distance), gaps.size)


def output_consistency(
    pred_unlearned: ArrayLike, pred_naive: ArrayLike, *, confidence: float = 0.95
) -> Measure:
    """Return the percentage of test rows with equal predictions (survey, equation 3.4).

    This is ``100 / n * #{i : y_*_i = y_U_i}``. For classifiers only.

    Parameters
    ----------
    pred_unlearned, pred_naive : array-like of shape (n,)
        Labels predicted by both models for the same rows.
    confidence : float, default=0.95
        Minimum coverage of the interval.

    Returns
    -------
    Measure
        Higher is better. The interval is the exact one of Clopper and Pearson: after full
        agreement on 100 rows its lower end is 96.4 %.

    Raises
    ------
    ValueError
        There is not one label per row in both.

    Notes
    -----
    Low agreement alone is not bad: two models that are equally accurate may make errors on
    different rows (survey, section 3.3).

    Examples
    --------
    >>> print(output_consistency([0, 1, 1, 0], [0, 1, 1, 1]))
    output consistency: 75% [19.41, 99.37] at 0.95 (measured, n=4, higher is better)
    """
    unlearned = check_predictions("pred_unlearned", pred_unlearned)
    naive = check_predictions("pred_naive", pred_naive)
    require_same_length(pred_unlearned=unlearned, pred_naive=naive)
    if unlearned.ndim != 1 or naive.ndim != 1:
        raise ValueError(
            "pred_unlearned and pred_naive must have one label per row, not shapes "
            f"{unlearned.shape} and {naive.shape}"
        )
    hint = "use `prediction_gap` for regression"
    require_labels(hint, pred_unlearned=unlearned, pred_naive=naive)
    return _agreement_measure("output consistency", unlearned == naive, confidence)


def _agreement_measure(
    name: str, agrees: NDArray[np.bool_], confidence: float, note: str = ""
) -> Measure:
    """Return the percentage of rows that agree, with the interval of Clopper and Pearson."""
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
    """Return the mean Kullback-Leibler divergence of class probabilities (survey, equation 3.5).

    This is ``1/n sum_i KL(P_U(x_i) || P_*(x_i))`` with ``KL(p || q) = sum_c p_c log(p_c / q_c)``,
    in nats: the divergence *of* the unlearned model *from* the retrained one, as in the survey.

    Parameters
    ----------
    proba_unlearned, proba_naive : array-like of shape (n, n_classes)
        `predict_proba` of both models on the same rows.
    classes_unlearned, classes_naive : array-like, optional
        `classes_` of both models. Required if the models have different classes.
    floor : float, default=0
        Smallest probability of the retrained model. With 0 the divergence is exact: it is
        infinite if a class has ``p_c > 0`` and ``q_c = 0``, for example because the unlearned
        model still predicts a class that was removed. With a positive floor (1e-5 is common),
        smaller ``q_c`` are raised to the floor and the row is scaled to add up to 1; report the
        floor with the result. Terms with ``p_c = 0`` are 0.
    confidence, n_resamples, seed
        As for `effectiveness`.

    Returns
    -------
    Measure
        Lower is better; 0 if and only if the probabilities are equal. The interval is a
        bootstrap-t over rows, because divergences are skewed. There is no interval if the value
        is infinite or the same for each row. It reaches its nominal coverage with 100 or more
        rows, see `Measure.is_rough`.

    Raises
    ------
    ValueError
        Shapes or classes differ, rows do not add up to 1, or the floor is too large.

    Examples
    --------
    >>> round(kl_consistency([[0.5, 0.5]], [[0.25, 0.75]]).value, 4)
    0.1438
    >>> kl_consistency([[0.5, 0.5]], [[1.0, 0.0]]).value
    inf
    """
    if (classes_unlearned is None) != (classes_naive is None):
        raise ValueError("pass both classes_unlearned and classes_naive, or neither")
    if classes_unlearned is not None and classes_naive is not None:
        p, q, _ = align_classes(proba_unlearned, classes_unlearned, proba_naive, classes_naive)
    else:
        p = _check_probabilities("proba_unlearned", proba_unlearned)
        q = _check_probabilities("proba_naive", proba_naive)
    if p.shape != q.shape:
        raise ValueError(
            f"proba_unlearned has shape {p.shape}, but proba_naive has {q.shape}; for models with "
            "different classes pass classes_unlearned and classes_naive"
        )
    if not 0 <= floor < 1 / p.shape[1]:
        raise ValueError(f"floor must be at least 0 and below 1/{p.shape[1]}, not {floor!r}")
    if floor > 0:
        q = np.maximum(q, floor)
        q /= q.sum(axis=1, keepdims=True)
    note = f"probabilities floored at {floor:g}" if floor > 0 else ""
    return _mean_divergence(kl_divergence(p, q), note, resampling)


def _mean_divergence(rows: Floats, note: str, resampling: Resampling) -> Measure:
    """Return the mean divergence over `rows` as the measure "KL consistency".

    There is no interval if the mean is infinite or all rows are equal.
    """
    interval = ratio_of_means(rows, **resampling)
    doubt = "" if interval is None else describe_doubt(rows, FEWEST_ROWS, "rows")
    options: MeasureOptions = {"confidence": resampling.get("confidence", 0.95), "note": note}
    value = float(rows.mean())
    return make_measure("KL consistency", value, interval, rows.size, doubt=doubt, **options)


def kl_divergence(p: Floats, q: Floats) -> Floats:
    """Return the divergence KL(p || q) of each row, in nats; may be infinite."""
    with np.errstate(divide="ignore"):
        log_q = np.log(q)
    log_p = np.log(p, out=np.zeros_like(p), where=p > 0)
    # q - p adds up to 0 over a row and makes each term p log(p/q) - p + q non-negative. This avoids
    # cancellation for nearly equal probabilities.
    terms = np.multiply(p, log_p - log_q, out=np.zeros_like(p), where=p > 0) + (q - p)
    return np.asarray(np.maximum(terms, 0.0).sum(axis=1))


def prediction_gap(
    pred_unlearned: ArrayLike,
    pred_naive: ArrayLike,
    *,
    relative: bool = False,
    **resampling: Unpack[Resampling],
) -> Measure:
    """Return the root mean square difference between the predictions of two models.

    This is ``sqrt(1/n sum_i (y_U_i - y_*_i)²)``, the analogue for regression of the survey's output
    consistency (equation 3.4). It compares predictions, not errors, so it needs no true values.

    Parameters
    ----------
    pred_unlearned, pred_naive : array-like of shape (n,)
        Predictions of both models for the same rows.
    relative : bool, default=False
        Divide by the standard deviation (n - 1) of the retrained model's predictions, which must
        not be all equal. The interval ignores the sampling error of this standard deviation.
    confidence, n_resamples, seed
        As for `effectiveness`.

    Returns
    -------
    Measure
        Lower is better; 0 if and only if the predictions are equal. The interval is the root of a
        bootstrap-t interval for the mean square over rows. There is no interval for a single row,
        or if all squares are equal. It reaches its nominal coverage with 100 or more rows, see
        `Measure.is_rough`.

    Raises
    ------
    ValueError
        The shapes differ, or `relative` is set and all values of `pred_naive` are equal.

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
            raise ValueError("relative=True needs different values in pred_naive; all are equal")
    # Scaled first to avoid overflow and underflow of squares.
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
    """Return the percentage of rows on which two regression models agree within a tolerance.

    This is ``100 / n * #{i : |y_U_i - y_*_i| <= tolerance}``, the survey's output consistency
    (equation 3.4) with a tolerance.

    Parameters
    ----------
    pred_unlearned, pred_naive : array-like of shape (n,)
        Predictions of both models for the same rows.
    tolerance : float
        Largest difference that counts as agreement, in the unit of the predictions; at least 0.
    confidence : float, default=0.95
        Minimum coverage of the interval.

    Returns
    -------
    Measure
        Higher is better. The interval is the exact one of Clopper and Pearson.

    Raises
    ------
    ValueError
        The tolerance is negative, or the predictions are not one finite number per row.

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
    """Return the mean KL divergence of Gaussian predictions (survey, equation 3.5).

    ``KL(N(m_U, s_U²) || N(m_*, s_*²)) = log(s_*/s_U) + (s_U² + (m_U - m_*)²) / (2 s_*²) - 1/2``, in
    nats, averaged over rows: the analogue for regression of `kl_consistency`.

    Parameters
    ----------
    mean_unlearned, mean_naive : array-like of shape (n,)
        Predicted means of both models.
    sd_unlearned, sd_naive : float or array-like of shape (n,)
        Predicted standard deviations, one for all rows or one per row; at least 0.
    confidence, n_resamples, seed
        As for `effectiveness`.

    Returns
    -------
    Measure
        Lower is better; 0 if and only if the distributions are equal. Infinite if exactly one
        standard deviation is 0, or if both are 0 and the means differ. The interval is a
        bootstrap-t over rows. There is no interval if the value is infinite or the same for each
        row.

    Raises
    ------
    ValueError
        A value is not finite, or the numbers of means and deviations differ.

    Examples
    --------
    >>> kl_gaussian([1.0], [0.0], 1.0, 1.0).value
    0.5
    """
    means = _number_pair(mean_unlearned, mean_naive)
    n, deviations = len(means[0]), []
    for name, sd in (("sd_unlearned", sd_unlearned), ("sd_naive", sd_naive)):
        if np.shape(sd) not in ((), (n,)):
            raise ValueError(f"{name} must be a number or {n} numbers, not shape {np.shape(sd)}")
        every = np.broadcast_to(np.asarray(sd, np.float64), (n,))
        deviations.append(as_numbers(name, every, "", least=0.0))
    return _mean_divergence(gaussian_kl_divergence(*means, *deviations), "", resampling)


def gaussian_kl_divergence(m_p: Floats, m_q: Floats, s_p: Floats, s_q: Floats) -> Floats:
    """Return the divergence KL(N(m_p, s_p²) || N(m_q, s_q²)) of each row, in nats."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = s_p / s_q
        # u - log(1 + u) avoids cancellation for nearly equal deviations.
        excess = (ratio - 1) * (ratio + 1)
        shape = excess - np.log1p(excess)
        rows = 0.5 * (np.maximum(shape, 0.0) + ((m_p - m_q) / s_q) ** 2)
    certain = (s_p == 0) & (s_q == 0)
    rows = np.where((s_p == 0) | (s_q == 0), np.inf, rows)
    return np.asarray(np.where(certain & (m_p == m_q), 0.0, rows))


def _number_pair(pred_unlearned: ArrayLike, pred_naive: ArrayLike) -> tuple[Floats, Floats]:
    """Return the predictions of both models, or raise unless there is a finite number per row."""
    unlearned = as_numbers("pred_unlearned", pred_unlearned, "one number per row")
    naive = as_numbers("pred_naive", pred_naive, "one number per row")
    require_same_length(pred_unlearned=unlearned, pred_naive=naive)
    return unlearned, naive
