"""Aggregation: from the answers of the shards to one answer.

Shards without rows do not answer. All answering shards count the same, whatever their size: a
weight by size would change with every removal anywhere.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.sharded._stages import ConstantModel

Floats = NDArray[np.float64]


def mean_probabilities(models: Sequence[Any], classes: NDArray[Any], X: Any) -> Floats:
    """Mean of the shards' class probabilities; a class a shard never saw has probability 0.

    A shard model without `predict_proba` gives all its weight to the label it predicts.
    """
    return _mean(models, classes, X, _probabilities)


def vote_shares(models: Sequence[Any], classes: NDArray[Any], X: Any) -> Floats:
    """Share of shards that vote for each class (a tie is won by the lowest class)."""
    return _mean(models, classes, X, _votes)


def mean_prediction(models: Sequence[Any], X: Any) -> Floats:
    """Mean of the shards' predictions."""
    mean: Floats = np.mean([np.asarray(model.predict(X), float) for model in models], axis=0)
    return mean


def median_prediction(models: Sequence[Any], X: Any) -> Floats:
    """Median of the shards' predictions."""
    median: Floats = np.median([np.asarray(model.predict(X), float) for model in models], axis=0)
    return median


def _mean(models: Sequence[Any], classes: NDArray[Any], X: Any, answer: Any) -> Floats:
    total = np.zeros((X.shape[0], len(classes)))
    for model in models:
        if isinstance(model, ConstantModel):
            total[:, np.searchsorted(classes, model.label)] += 1.0
        else:
            answer(model, classes, X, total)
    return total / len(models)


def _probabilities(model: Any, classes: NDArray[Any], X: Any, total: Floats) -> None:
    if hasattr(model, "predict_proba"):
        total[:, np.searchsorted(classes, model.classes_)] += model.predict_proba(X)
    else:
        _votes(model, classes, X, total)


def _votes(model: Any, classes: NDArray[Any], X: Any, total: Floats) -> None:
    votes = np.searchsorted(classes, model.predict(X))
    total[np.arange(len(votes)), votes] += 1.0
