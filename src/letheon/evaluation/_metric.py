"""How good a model is: a function of true and predicted values."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn import metrics
from sklearn.metrics import mean_absolute_error, r2_score

from letheon.evaluation._names import name_of
from letheon.scoring import balanced_accuracy

__all__ = ["Judgement", "Metric", "MetricFailedError", "accuracy", "require_function"]

Metric = Callable[[Any, Any], Any]
# How scikit-learn ends the names of functions of which less is better.
_LOWER_IS_BETTER = ("_loss", "_error", "_deviance")


class MetricFailedError(ValueError):
    """A metric raised an error: neither rows nor models are to blame."""


def accuracy(y_true: Any, y_pred: Any) -> float:
    """Return the share of right labels; as scikit-learn's, without the cost of its checks."""
    return float(np.mean(np.asarray(y_true) == np.asarray(y_pred)))


class Judgement(NamedTuple):
    """A metric, the one for rows of who left, and the name of the first.

    R2 has no value for a single row, so by default the forgotten rows of a regression are judged
    by the mean absolute error. They may lack a class, so balanced accuracy is not for them either.
    """

    metric: Metric
    on_forgotten: Metric
    name: str

    @classmethod
    def of(cls, metric: Any, is_regression: bool) -> "Judgement":
        """Return the judgement by a metric, or by the usual one."""
        if metric is balanced_accuracy:
            return cls(balanced_accuracy, accuracy, "balanced accuracy")
        if metric is not None:
            _require_score(metric)
            return cls(metric, metric, _short(name_of(metric)))
        if is_regression:
            return cls(r2_score, mean_absolute_error, "r2")
        return cls(accuracy, accuracy, "accuracy")


def _short(name: str) -> str:
    return name.replace("_score", "").replace("_", " ")


def require_function(metric: Any) -> None:
    """Refuse what is no function of true and predicted values."""
    is_scorer = hasattr(metric, "_score_func")  # of scikit-learn: it asks the model itself
    if not callable(metric) or isinstance(metric, type) or is_scorer:
        hint = f"{metric}_score" if hasattr(metrics, f"{metric}_score") else "f1_score"
        raise TypeError(
            f"metric must be a function of (y_true, y_pred), such as sklearn.metrics.{hint}; "
            f"got {metric!r}"
        )


def _require_score(metric: Any) -> None:
    """Refuse what is no function, and functions of which less is better."""
    require_function(metric)
    function = metric
    while isinstance(function, partial):
        function = function.func
    name = name_of(function)
    if name.endswith(_LOWER_IS_BETTER):
        raise ValueError(
            f"of {name} less is better, and metric must be higher for the better model; give its "
            "negative: a function that returns the value times -1"
        )
