"""Class probabilities of two models whose classes may differ."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["align_classes", "probabilities"]

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
