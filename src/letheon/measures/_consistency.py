"""Consistency: how close to the naively retrained model (survey, section 3.3)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from letheon.measures._classes import align_classes, probabilities
from letheon.measures._inputs import confidence_level, predictions, same_length
from letheon.measures._intervals import (
    FEWEST_ROWS,
    clopper_pearson,
    doubt_about,
    mean_of_rows,
)
from letheon.measures._measure import Measure, known

__all__ = ["divergence", "kl_consistency", "output_consistency", "parameter_consistency"]

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
    return known("parameter consistency", distance, (distance, distance), n)


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
    unlearned, naive = _labels(pred_unlearned, pred_naive)
    agree = int(np.sum(unlearned == naive))
    n = len(unlearned)
    low, high = clopper_pearson(agree, n, confidence)
    value = 100 * agree / n
    # at the ends the interval is closed at the value itself, not a rounding error beside it
    interval = min(100 * low, value), max(100 * high, value)
    return known("output consistency", value, interval, n, confidence=confidence)


def _labels(
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
    rows = divergence(p, q)
    value, interval = float(rows.mean()), None
    if np.isfinite(value):
        interval = mean_of_rows(rows, confidence=confidence, n_resamples=n_resamples, seed=seed)
    note = f"probabilities floored at {floor:g}" if floor > 0 else ""
    doubt = "" if interval is None else doubt_about(rows, FEWEST_ROWS, "rows")
    return known(
        "KL consistency", value, interval, len(rows), confidence=confidence, note=note, doubt=doubt
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
