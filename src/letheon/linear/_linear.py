"""A linear model as others may see it: parameters, labels, and how rows are read."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from letheon.linear._design import Design
from letheon.linear._losses import Floats, Logistic, Loss, Softmax


@dataclass(frozen=True, eq=False)
class Linear:
    """Published parameters W, shape (d, K). Immutable: a request replaces the whole.

    `classes` are the labels, sorted; None for regression. `joint`: scores are those of a softmax.
    """

    weights: Floats
    design: Design
    classes: NDArray[Any] | None = None
    joint: bool = False

    @cached_property
    def coef(self) -> Floats:
        """Coefficients, one line per score."""
        return np.ascontiguousarray((self.weights[:-1] if self._has_intercept else self.weights).T)

    @cached_property
    def intercept(self) -> Floats:
        """Intercepts, one per score."""
        return self.weights[-1].copy() if self._has_intercept else np.zeros(self.weights.shape[1])

    @property
    def _has_intercept(self) -> bool:
        return self.design.fit_intercept

    def moved_to(self, weights: Floats) -> "Linear":
        """Return the model with other parameters."""
        return Linear(weights, self.design, self.classes, self.joint)

    def scores(self, X: Any) -> Floats:
        """Return X W, shape (n, K)."""
        return self.design.scores(X, self.weights)

    def shares(self, X: Any) -> Floats:
        """Return class probabilities, shape (n, number of classes)."""
        scores = self.scores(X)
        if self.joint:
            shares: Floats = softmax(scores, axis=1)
            return shares
        if scores.shape[1] == 1:
            return np.column_stack([expit(-scores[:, 0]), expit(scores[:, 0])])
        shares = expit(scores)
        total = shares.sum(axis=1, keepdims=True)
        # No class is likely at all: they are equally so.
        equal = np.full_like(shares, 1 / shares.shape[1])
        mixed: Floats = np.divide(shares, total, out=equal, where=total > 0)
        return mixed

    def labels(self, X: Any) -> NDArray[Any]:
        """Return the likeliest label of every row."""
        assert self.classes is not None
        scores = self.scores(X)
        codes = scores.argmax(axis=1) if scores.shape[1] > 1 else (scores[:, 0] > 0).astype(int)
        labels: NDArray[Any] = self.classes[codes]
        return labels

    def _to_state(self) -> dict[str, Any]:
        return {
            "weights": self.weights,
            "design": self.design,
            "classes": self.classes,
            "joint": self.joint,
        }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> "Linear":
        return cls(state["weights"], state["design"], state["classes"], state["joint"])


def classification_loss(n_classes: int, *, joint: bool) -> Loss:
    """Return the loss of a classifier: one score for two classes, else one per class."""
    if n_classes == 2:
        return Logistic(1)
    return Softmax(n_classes) if joint else Logistic(n_classes)
