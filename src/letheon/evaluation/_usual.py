"""Usual models of a table, and their cross-validation."""

import warnings
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    StratifiedGroupKFold,
    StratifiedKFold,
    cross_val_score,
)
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from letheon.evaluation._problem import LearningProblem


def name_model(estimator: Any) -> str:
    """Return the class name of an estimator, or of the last step of a pipeline.

    Parameters
    ----------
    estimator : estimator
        Fitted or not.

    Examples
    --------
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> name_model(make_pipeline(StandardScaler(), Ridge()))
    'Ridge'
    """
    last = estimator[-1] if hasattr(estimator, "steps") else estimator
    return type(last).__name__


# A column of names has a different value in each row. Rare values share one column.
_MOST_CATEGORIES = 100


_WORDS = (nw.String, nw.Categorical, nw.Enum, nw.Object)


def usual_models(X: Any, *, is_regression: bool, seed: int, family: str = "any") -> list[Any]:
    """Return the usual models for a table: all of them, or those of one `family`.

    These are logistic regression (ridge regression for numbers) on scaled columns, a random forest,
    and boosted trees if the rows are dense. For the family of neural networks the model is a
    multi-layer perceptron. Columns of strings are one-hot encoded.

    Parameters
    ----------
    X : table
        The rows.
    is_regression : bool
        Whether the targets are numbers.
    seed : int
        Seed of the models.
    family : str, default="any"
        Family of the models.

    Examples
    --------
    >>> models = usual_models([[0.0], [1.0]], is_regression=True, seed=0)
    >>> [name_model(model) for model in models]
    ['RidgeCV', 'RandomForestRegressor', 'HistGradientBoostingRegressor']
    """
    seeded = {"random_state": seed}
    models: dict[str, Any] = {
        "linear": RidgeCV() if is_regression else LogisticRegression(max_iter=1000),
        "forest": (RandomForestRegressor if is_regression else RandomForestClassifier)(**seeded),
    }
    if not sparse.issparse(X):
        trees = HistGradientBoostingRegressor if is_regression else HistGradientBoostingClassifier
        models["boosted"] = trees(**seeded)
    if family == "net":
        models["net"] = (MLPRegressor if is_regression else MLPClassifier)(**seeded)
    return [
        _prepare_model(X, model, scaled=name in ("linear", "net"))
        for name, model in models.items()
        if family in ("any", name)
    ]


def _prepare_model(X: Any, model: Any, *, scaled: bool) -> Any:
    """Return a pipeline of encoding, optional scaling and the model for this table.

    Text and categorical columns are one-hot encoded, with at most 100 categories each (rare values
    share one category). Other columns are scaled if `scaled` is true.
    """
    shape = np.shape(X)
    if len(shape) != 2:
        raise ValueError(
            f"there is no default ordinary model for rows of shape {shape[1:]}; pass an estimator "
            "for such rows as ordinary="
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
    """Return the positions of the columns with texts, categories or objects."""
    if isinstance(X, np.ndarray):
        if X.dtype.kind not in "OUT":
            return []
        return [n for n in range(X.shape[1]) if any(isinstance(value, str) for value in X[:, n])]
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame):
        return []
    return [n for n, kind in enumerate(frame.schema.values()) if kind in _WORDS]


# Keys: whether people have several rows, and whether folds are stratified.
_SPLITTERS: dict[tuple[bool, bool], Any] = {
    (False, False): KFold,
    (False, True): StratifiedKFold,
    (True, False): GroupKFold,
    (True, True): StratifiedGroupKFold,
}


class CrossValidation:
    """Cross-validation with the same folds for every model; all rows of a person are in one fold.

    Rows are shuffled if there is a seed. Folds are stratified if every class has enough rows.
    Without a seed they are always stratified, because rows may be sorted by class.

    Parameters
    ----------
    problem : LearningProblem
        Training rows and metric.
    cv : int
        Number of folds.
    seed : int or None
        Seed for shuffling the rows; None to keep their order.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> data = np.arange(80.0).reshape(40, 2), np.repeat([0, 1], 20)
    >>> problem = LearningProblem.from_args(NearestCentroid(), data, 0.25, None, 0)
    >>> CrossValidation(problem, cv=3, seed=0).score(NearestCentroid()) > 0.8
    True
    """

    def __init__(self, problem: LearningProblem, *, cv: int, seed: int | None) -> None:
        self._rows = rows = problem.train
        self._problem = problem
        people, groups = np.unique(rows.ids, return_inverse=True)
        is_grouped = len(people) < len(groups)
        is_stratified = not problem.is_regression and (
            seed is None or bool(np.unique(rows.y, return_counts=True)[1].min() >= cv)
        )
        shuffled = {} if seed is None else {"shuffle": True, "random_state": seed}
        folds = _SPLITTERS[is_grouped, is_stratified](cv, **shuffled)
        blank = np.zeros(len(groups))
        with warnings.catch_warnings():
            # Classes may have fewer rows than there are folds.
            warnings.simplefilter("ignore", UserWarning)
            self._folds = list(folds.split(blank, rows.y, groups if is_grouped else None))

    def score(self, estimator: Any, *, with_ids: bool = False) -> float:
        """Return the mean of the metric over the folds."""
        with warnings.catch_warnings():
            # For example, warnings about convergence.
            warnings.simplefilter("ignore", UserWarning)
            scores = cross_val_score(
                clone(estimator),
                self._rows.X,
                self._rows.y,
                cv=self._folds,
                scoring=lambda model, X, y: self._problem.score_predictions(y, model.predict(X)),
                params={"ids": self._rows.ids} if with_ids else None,
                error_score="raise",
            )
        return float(np.mean(scores))
