"""Scores for unbalanced classes, and the probability of a label."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Classes are unbalanced if the largest class has at least this share of the rows: a model that
# always predicts it has this accuracy.
UNBALANCED = 2 / 3


def largest_class(y: Any) -> tuple[Any, float]:
    """Return the most frequent class and its share of the rows."""
    classes, counts = np.unique(np.asarray(y), return_counts=True)
    most = int(np.argmax(counts))
    return classes[most], float(counts[most] / counts.sum())


def is_unbalanced(y: Any) -> bool:
    """Return whether one class makes up two thirds of the rows or more."""
    return largest_class(y)[1] >= UNBALANCED


def balanced_accuracy(y_true: Any, y_pred: Any) -> float:
    """Return the recall of each class, averaged over the classes.

    The value is the same as in scikit-learn, but there is no warning if a predicted class is not in
    `y_true`.
    """
    truth, right = np.asarray(y_true), np.asarray(y_true) == np.asarray(y_pred)
    _, inverse = np.unique(truth, return_inverse=True)
    return float(np.mean(np.bincount(inverse, right) / np.bincount(inverse)))


def label_probability(model: Any, X: Any, y: NDArray[Any]) -> NDArray[np.float64]:
    """Return the predicted probability of each row's label; 0 if the model lacks this class."""
    classes, shares = np.asarray(model.classes_), np.asarray(model.predict_proba(X))
    column = np.searchsorted(classes, y).clip(max=len(classes) - 1)
    return np.where(classes[column] == y, shares[np.arange(len(y)), column], 0.0)
