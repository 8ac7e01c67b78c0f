"""A small logistic regression that forgets badly, in several ways, and retrains in no time."""

from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin

Floats = NDArray[np.float64]
DRIFTS = ("stale", "half", "nothing", "finetune")


class Receipt(NamedTuple):
    """What the monitor reads of a receipt."""

    n_rows: int
    seconds: float


class DriftingClassifier(ClassifierMixin, BaseEstimator):
    """Logistic regression whose removals drift away from a retrain.

    drift : {"stale", "half", "nothing", "finetune"}
        *stale*: one Newton step per removal from the gradient of the leaving rows alone, with
        the Hessian of the fit, so that errors add up. *half*: half of such a step. *nothing*: the
        rows are dropped, the model stays. *finetune*: one gradient step on the remaining rows.
    """

    n_trainings: ClassVar[int] = 0

    def __init__(self, drift: str = "stale", l2: float = 0.01) -> None:
        self.drift = drift
        self.l2 = l2

    def fit(self, X: Any, y: Any, ids: Any = None) -> Self:
        """Fit by Newton's method, and count it."""
        DriftingClassifier.n_trainings += 1
        self.X_ = np.column_stack([np.asarray(X, float), np.ones(len(X))])
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.t_ = 2.0 * codes - 1
        self.ids_held_ = np.arange(len(X)) if ids is None else np.asarray(ids)
        self.w_ = np.zeros(self.X_.shape[1])
        for _ in range(30):
            gradient, hessian = self._slopes()
            self.w_ = self.w_ - np.linalg.solve(hessian, gradient)
            if abs(gradient).max() < 1e-9:
                break
        self.inverse_ = np.linalg.inv(self._slopes()[1])
        return self

    def _slopes(self) -> tuple[Floats, Floats]:
        """Gradient and Hessian of the mean loss on the rows held."""
        n = len(self.X_)
        p = 1 / (1 + np.exp(np.clip(self.t_ * (self.X_ @ self.w_), -30, 30)))
        gradient = -(self.X_.T @ (self.t_ * p)) / n + self.l2 * self.w_
        weights = p * (1 - p)
        return gradient, (self.X_.T * weights) @ self.X_ / n + self.l2 * np.eye(len(self.w_))

    def forget(self, ids: Any) -> Receipt:
        """Drop the rows, and change the parameters a little."""
        leaving = np.isin(self.ids_held_, ids)
        pull = self.pulls(leaving).sum(axis=0)
        self.X_, self.t_ = self.X_[~leaving], self.t_[~leaving]
        self.ids_held_ = self.ids_held_[~leaving]
        if self.drift == "finetune":
            self.w_ = self.w_ - self._slopes()[0]
        elif self.drift != "nothing":
            share = {"stale": 1.0, "half": 0.5}[self.drift]
            self.w_ = self.w_ + share * self.inverse_ @ pull / len(self.X_)
        return Receipt(int(leaving.sum()), 1e-6)

    def pulls(self, which: NDArray[np.bool_]) -> Floats:
        """Gradient of the loss of each of these rows."""
        X, t = self.X_[which], self.t_[which]
        p = 1 / (1 + np.exp(np.clip(t * (X @ self.w_), -30, 30)))
        return -X * (t * p)[:, None] + self.l2 * self.w_

    def upheaval(self, ids: Any) -> float:
        """How far a removal would move the parameters, to first order."""
        pull = self.pulls(np.isin(self.ids_held_, ids)).sum(axis=0)
        return float(np.linalg.norm(self.inverse_ @ pull))

    @property
    def n_rows_(self) -> int:
        """Rows held."""
        return len(self.X_)

    def predict_proba(self, X: Any) -> Floats:
        """Return class probabilities."""
        score = np.asarray(X, float) @ self.w_[:-1] + self.w_[-1]
        p = 1 / (1 + np.exp(-np.clip(score, -30, 30)))
        return np.column_stack([1 - p, p])

    def predict(self, X: Any) -> NDArray[Any]:
        """Return labels."""
        labels: NDArray[Any] = self.classes_[(self.predict_proba(X)[:, 1] > 0.5).astype(int)]
        return labels
