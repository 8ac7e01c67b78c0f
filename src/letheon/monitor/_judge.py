"""How a model is judged: one output per row, one number per set of rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_regressor
from sklearn.metrics import accuracy_score

from letheon.data import Rows, present_table

__all__ = ["Judge", "judge_for"]

Outputs = NDArray[Any]


@dataclass(frozen=True)
class Judge:
    """One output per row of a model, and the performance M that follows from outputs.

    Outputs are kept per row, so that M of the last retrained model can be taken again when a
    person leaves the test set.

    Attributes
    ----------
    name : str
        What M is, in words.
    metric : callable or None
        ``metric(y_true, y_pred)``; None for the two metrics of the house.
    uses_probability : bool
        Whether outputs are probabilities of the true label instead of predictions.
    """

    name: str
    metric: Callable[[Any, Any], Any] | None
    uses_probability: bool

    def outputs(self, model: Any, rows: Rows) -> Outputs:
        """Return what the model says about every row."""
        X = rows.X if isinstance(rows.X, np.ndarray) else present_table(rows.X)
        if not self.uses_probability:
            return np.asarray(model.predict(X))
        assert rows.y is not None
        classes, shares = np.asarray(model.classes_), np.asarray(model.predict_proba(X))
        column = np.searchsorted(classes, rows.y).clip(max=len(classes) - 1)
        # A class that nobody is left of has no column: its probability is 0.
        is_known = classes[column] == rows.y
        return np.where(is_known, shares[np.arange(len(rows)), column], 0.0)

    def value(self, y: NDArray[Any], outputs: Outputs, spread: float) -> float:
        """Return M of these rows; `spread` is the variance of the test targets."""
        if self.metric is not None:
            return float(self.metric(y, outputs))
        if self.uses_probability:
            return float(np.mean(outputs))
        return 1 - float(np.mean((y - outputs) ** 2)) / spread

    def wrongness(self, y: NDArray[Any], outputs: Outputs, spread: float) -> NDArray[np.float64]:
        """Return for every row how wrong the model is about it, from 0 to 1."""
        if self.uses_probability:
            return np.asarray(1 - outputs, np.float64)
        if outputs.dtype.kind == "f" and y.dtype.kind in "fiu":
            squares = (np.asarray(y, np.float64) - outputs) ** 2
            return np.asarray(squares / (squares + spread), np.float64)
        return np.asarray(outputs != y, np.float64)

    def movement(self, before: Outputs, after: Outputs, spread: float) -> float:
        """Return how far outputs moved: a mean change, or the share of labels that changed."""
        if self.uses_probability:
            return float(np.mean(abs(after - before)))
        if before.dtype.kind == "f" and after.dtype.kind == "f":
            return float(np.sqrt(np.mean((after - before) ** 2) / spread))
        return float(np.mean(before != after))


def judge_for(model: Any, metric: Callable[[Any, Any], Any] | None) -> Judge:
    """Return how this model is judged.

    Without a metric a classifier is judged by the mean probability of the true label (by its
    accuracy if it offers no probabilities), a regression by R² with the test set's variance. The
    accuracy of a few forgotten rows jumps by whole rows; the probability moves with the model.
    """
    if metric is not None:
        return Judge(getattr(metric, "__name__", "metric"), metric, uses_probability=False)
    if hasattr(model, "predict_proba"):
        return Judge("mean probability of the true label", None, uses_probability=True)
    if is_regressor(model):
        return Judge("R²", None, uses_probability=False)
    return Judge("accuracy", accuracy_score, uses_probability=False)


def spread_of(y: NDArray[Any]) -> float:
    """Return the variance of numbers, 1 where there is none."""
    if y.dtype.kind not in "fiu":
        return 1.0
    variance = float(np.var(y))
    return variance if variance > 0 else 1.0
