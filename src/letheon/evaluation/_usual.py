"""Usual models without unlearning support, and the best of several."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import narwhals.stable.v2 as nw
import numpy as np
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from letheon.evaluation._contender import named
from letheon.evaluation._metric import MetricFailedError

__all__ = ["Best", "best_of", "prepared", "usual_models"]

# A column of names has a value for everybody: the rare ones share a column.
_MOST_CATEGORIES = 100
_WORDS = (nw.String, nw.Categorical, nw.Enum, nw.Object)


def usual_models(X: Any, *, is_regression: bool, seed: int) -> dict[str, Any]:
    """Return the usual models for a table, by family: "linear", "forest" and "boosted".

    A logistic regression (ridge for numbers) on scaled columns, a random forest, and boosted trees,
    which take no sparse rows. Columns of texts are encoded, see `prepared`.
    """
    if is_regression:
        linear: Any = RidgeCV()
        forest: Any = RandomForestRegressor(random_state=seed)
        boosted: Any = HistGradientBoostingRegressor(random_state=seed)
    else:
        linear = LogisticRegression(max_iter=1000)
        forest = RandomForestClassifier(random_state=seed)
        boosted = HistGradientBoostingClassifier(random_state=seed)
    models = {
        "linear": prepared(X, linear, scaled=True),
        "forest": prepared(X, forest, scaled=False),
    }
    return (
        models if sparse.issparse(X) else models | {"boosted": prepared(X, boosted, scaled=False)}
    )


def prepared(X: Any, model: Any, *, scaled: bool) -> Any:
    """Return a model that can be trained on a table of this kind.

    Columns of texts and of categories, by their dtype, become one column of 0 and 1 for each of
    their values (of the most frequent 100); others are scaled or left as they are.
    """
    shape = np.shape(X)
    if len(shape) != 2:
        raise ValueError(
            f"no ordinary model is known for rows of shape {shape[1:]}; give one with ordinary="
        )
    words = _columns_of_words(X)
    scaler = StandardScaler(with_mean=not sparse.issparse(X))
    if not words:
        return make_pipeline(scaler, model) if scaled else model
    encoder = OneHotEncoder(
        handle_unknown="infrequent_if_exist", max_categories=_MOST_CATEGORIES, sparse_output=False
    )
    columns = ColumnTransformer(
        [("words", encoder, words)], remainder=scaler if scaled else "passthrough"
    )
    return make_pipeline(columns, model)


def _columns_of_words(X: Any) -> list[int]:
    """Return the positions of columns that do not hold numbers."""
    if isinstance(X, np.ndarray):
        if X.dtype.kind not in "OUT":
            return []
        return [n for n in range(X.shape[1]) if any(isinstance(value, str) for value in X[:, n])]
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame):
        return []
    return [n for n, kind in enumerate(frame.schema.values()) if kind in _WORDS]


class Best(NamedTuple):
    """The best of several models, its score, and what every model had, in words."""

    model: Any
    score: float
    told: str


def best_of(models: Sequence[Any], score: Callable[[Any], float], *, are_given: bool) -> Best:
    """Return the model with the largest score; one that fails is out.

    Raises
    ------
    ValueError
        All of them fail. The first cause is named and chained.
    """
    if not models:
        raise ValueError("ordinary is empty; give at least one model")
    scores = [_score_or_error(score, model) for model in models]
    values = [-math.inf if isinstance(each, Exception) else each for each in scores]
    best = int(np.argmax(values))
    if values[best] == -math.inf:
        _refuse(models, scores, are_given)
    told = ", ".join(
        f"{named(model)} {_score_words(each)}" for model, each in zip(models, scores, strict=True)
    )
    return Best(models[best], values[best], told)


def _score_or_error(score: Callable[[Any], float], model: Any) -> float | Exception:
    try:
        return float(score(model))
    except Exception as error:  # noqa: BLE001  (whatever it is, that model is out)
        return error


def _score_words(score: float | Exception) -> str:
    # Of an error the kind alone: its text may quote somebody's row.
    return f"failed: {type(score).__name__}" if isinstance(score, Exception) else f"{score:.4g}"


def _refuse(models: Sequence[Any], scores: Sequence[float | Exception], are_given: bool) -> None:
    model, cause = next(
        (m, s) for m, s in zip(models, scores, strict=True) if isinstance(s, Exception)
    )
    if isinstance(cause, MetricFailedError):
        raise cause
    which = "candidate for the ordinary model" if are_given else "usual ordinary model"
    raise ValueError(
        f"no {which} can be trained on these rows ({named(model)}: {_first_line(cause)}); give one "
        "that can with ordinary=, such as the estimator inside the unlearner"
    ) from cause


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
