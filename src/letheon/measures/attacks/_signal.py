"""What an attacker reads off a model for one labelled row: one number, larger if it fits better."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp
from sklearn.base import is_regressor

from letheon.data import Rows

__all__ = ["LIMIT", "Observed", "margins", "observe"]

# Margins beyond this are cut: a probability of exactly 0 or 1 has an infinite one.
LIMIT = 100.0


class Observed(NamedTuple):
    """Signal of each row, and whether the model's prediction of it is right."""

    signal: NDArray[np.float64]
    correct: NDArray[np.bool_]


def margins(
    log_scores: ArrayLike, y: ArrayLike, classes: ArrayLike, *, limit: float = LIMIT
) -> NDArray[np.float64]:
    """Return the logit of the true class's probability, in the stable form.

    ``phi = log p_y - log(1 - p_y) = z_y - log sum_{c != y} exp(z_c)``: the difference of two
    probabilities near 1 is never taken. This is the signal of LiRA and the margin of KLOM.

    Parameters
    ----------
    log_scores : array-like of shape (n, n_classes)
        Logarithms of probabilities, or logits; a constant added to a row changes nothing.
    y : array-like of shape (n,)
        True labels. A label that the model does not know gets ``-limit``.
    classes : array-like of shape (n_classes,)
        Label of each column.
    limit : float, default=100
        Margins are cut to ``[-limit, limit]``.

    Examples
    --------
    >>> margins(np.log([[0.5, 0.25, 0.25]]), ["a"], ["a", "b", "c"]).tolist()
    [0.0]
    """
    z = np.asarray(log_scores, dtype=np.float64)
    truth = np.asarray(y)[:, None] == np.asarray(classes)[None, :]
    with np.errstate(invalid="ignore"):
        right = logsumexp(np.where(truth, z, -np.inf), axis=1)
        wrong = logsumexp(np.where(truth, -np.inf, z), axis=1)
        phi = right - wrong
    # a model that knows one class only, and the other label
    phi = np.where(np.isneginf(right), -limit, phi)
    return np.clip(phi, -limit, limit)


def _log_scores(model: Any, X: Any) -> NDArray[np.float64]:
    """Return log-probabilities, or decision values read through a logistic link."""
    if hasattr(model, "predict_proba"):
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.asarray(model.predict_proba(X), dtype=np.float64)))
    if hasattr(model, "decision_function"):
        values = np.asarray(model.decision_function(X), dtype=np.float64)
        return np.column_stack([np.zeros(len(values)), values]) if values.ndim == 1 else values
    raise TypeError(
        f"{type(model).__name__} has neither predict_proba nor decision_function; an attack needs "
        "to see how sure the model is, not only its labels"
    )


def observe(model: Any, rows: Rows) -> Observed:
    """Return what a fitted model says about these rows.

    Classifiers: `margins` of ``predict_proba``, or of ``decision_function`` by a logistic
    link. Regressors: minus the squared error, and nothing is ever "correct".
    """
    X, y = rows.part(0, len(rows))
    if y is None:
        raise ValueError("an attack needs labels: y is None")
    if is_regressor(model):
        errors = np.asarray(model.predict(X), dtype=np.float64) - y
        squares = (errors**2).reshape(len(errors), -1).sum(axis=1)
        return Observed(-squares, np.zeros(len(squares), bool))
    z = _log_scores(model, X)
    classes = np.asarray(model.classes_)
    return Observed(margins(z, y, classes), classes[z.argmax(axis=1)] == y)
