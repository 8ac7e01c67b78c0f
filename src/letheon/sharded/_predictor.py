"""Answers of an ensemble of shards, and its predictor."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.data import present_table
from letheon.guarantee import Guarantee
from letheon.predictor import EstimatorPredictor, Predictor
from letheon.sharded._shards import ConstantModel, Ensemble

Floats = NDArray[np.float64]


def combine_shares(
    models: Sequence[Any], aggregation: str, classes: NDArray[Any], X: Any
) -> Floats:
    """Return the mean probabilities of the classes over the shards, shape (n_rows, n_classes).

    A class that a shard has not seen has probability 0 there. With ``aggregation="vote"``, or
    without `predict_proba`, a model gives probability 1 to the label it predicts.
    """
    total = np.zeros((X.shape[0], len(classes)))
    for model in models:
        if isinstance(model, ConstantModel):
            total[:, np.searchsorted(classes, model.label)] += 1.0
        elif aggregation != "vote" and hasattr(model, "predict_proba"):
            total[:, np.searchsorted(classes, model.classes_)] += model.predict_proba(X)
        else:
            votes = np.searchsorted(classes, model.predict(X))
            total[np.arange(len(votes)), votes] += 1.0
    return total / len(models)


def combine_values(models: Sequence[Any], aggregation: str, X: Any) -> Floats:
    """Return the mean or median of the predictions of a regression."""
    combine = np.median if aggregation == "median" else np.mean
    return np.asarray(combine([np.asarray(model.predict(X), float) for model in models], axis=0))


def combine_decisions(
    models: Sequence[Any], aggregation: str, classes: NDArray[Any], X: Any
) -> Floats:
    """Return decision values, of shape (n_rows,) for two classes, else (n_rows, n_classes).

    They have the order of the aggregated probabilities: their difference for two classes. Models
    without probabilities have mean decision values, if some shard has rows of all classes.
    """
    complete = [each for each in models if len(getattr(each, "classes_", ())) == len(classes)]
    if complete and not hasattr(complete[0], "predict_proba"):
        return np.asarray(np.mean([model.decision_function(X) for model in complete], axis=0))
    shares = combine_shares(models, aggregation, classes, X)
    return shares[:, 1] - shares[:, 0] if len(classes) == 2 else shares


class EnsemblePredictor(Predictor):
    """The predictors of all shards, and how their answers are aggregated.

    Parameters
    ----------
    models : tuple of Predictor or ConstantModel
        Predictors of the shards that have rows.
    aggregation : {"mean", "vote", "median"}
        How their answers are aggregated.
    classes : ndarray or None
        Labels; None for regression.
    guarantee : Guarantee
        Guarantee of the model.
    columns : tuple of (int, names)
        Number of columns, and their names or None.
    """

    def __init__(
        self,
        models: tuple[Any, ...],
        aggregation: str,
        classes: NDArray[Any] | None,
        guarantee: Guarantee,
        columns: tuple[int, tuple[str, ...] | None],
    ) -> None:
        self.models = models
        self.aggregation = aggregation
        self.classes = classes
        self.guarantee = guarantee
        self.columns = columns

    @classmethod
    def of(
        cls, ensemble: Ensemble, aggregation: str, guarantee: Guarantee, columns: Any
    ) -> "EnsemblePredictor":
        """Return the predictor of an ensemble; raise `TypeError` if a shard has none."""
        models = tuple(
            model if isinstance(model, ConstantModel) else EstimatorPredictor.of(model, guarantee)
            for model in ensemble.models
        )
        return cls(models, aggregation, ensemble.classes, guarantee, columns)

    def _predict(self, method: str, X: Any) -> Any:
        table = present_table(X)
        if self.classes is None:
            return combine_values(self.models, self.aggregation, table)
        if method == "decision_function":
            return combine_decisions(self.models, self.aggregation, self.classes, table)
        shares = combine_shares(self.models, self.aggregation, self.classes, table)
        return shares if method == "predict_proba" else self.classes[shares.argmax(axis=1)]

    def _has(self, method: str) -> bool:
        has_decision = any(hasattr(model, "decision_function") for model in self.models)
        return self.classes is not None and (method == "predict_proba" or has_decision)

    def _labels(self) -> NDArray[Any] | None:
        return self.classes

    def _columns(self) -> tuple[int, tuple[str, ...] | None]:
        return self.columns
