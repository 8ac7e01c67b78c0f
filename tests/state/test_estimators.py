"""Every estimator of the installed scikit-learn comes back as it was, or is refused by name."""

import inspect
import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone, is_regressor
from sklearn.datasets import make_classification
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
)
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from sklearn.neighbors import KNeighborsClassifier, LocalOutlierFactor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import all_estimators
from threadpoolctl import threadpool_limits

from letheon import state
from letheon.exceptions import UnsupportedStateError
from tests.counting import count_calls

REFUSED = {
    "Birch",
    "GridSearchCV",
    "HalvingGridSearchCV",
    "HalvingRandomSearchCV",
    "RandomizedSearchCV",
}
X, Y = make_classification(48, 6, n_informative=4, n_redundant=0, random_state=0)
TEXTS = ["red blue", "blue green grey", "red grey", "green green"] * 12
METHODS = ("predict", "transform", "predict_proba", "decision_function", "score_samples")
# Tried in this order until one fits: rows, counts, a kernel, many targets, one column, texts, ...
TABLES: list[tuple[Any, Any]] = [
    (X, Y),
    (np.abs(X), Y),
    (np.abs(X), Y + 1.0),
    (X @ X.T, Y),
    (X, np.c_[Y, 1 - Y]),
    (X, X[:, :2]),
    (X[:, 0], Y),
    (TEXTS, Y),
    ([{"a": 1, "b": "x"}, {"b": "y"}] * 24, Y),
    (Y, None),
    ([("a", "b"), ("b",)] * 24, None),
]
ARGUMENTS: dict[str, Any] = {
    "estimator": Ridge(),
    "estimators": [("a", Ridge()), ("b", SGDRegressor(random_state=0))],
    "steps": [("a", StandardScaler()), ("b", LogisticRegression())],
    "transformers": [("a", StandardScaler(), [0, 1])],
    "transformer_list": [("a", StandardScaler())],
    "dictionary": np.eye(6),
    "param_grid": {"alpha": [1.0, 2.0]},
    "param_distributions": {"alpha": [1.0, 2.0]},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "ClassifierChain": {"estimator": LogisticRegression()},
    "RegressorChain": {"estimator": Ridge()},
    "SelfTrainingClassifier": {"estimator": LogisticRegression()},
    "GaussianRandomProjection": {"n_components": 2},
    "SparseRandomProjection": {"n_components": 2},
    "HistGradientBoostingClassifier": {"max_iter": 2},
    "HistGradientBoostingRegressor": {"max_iter": 2},
    "LogisticRegressionCV": {"Cs": [0.1, 1.0]},
    "SequentialFeatureSelector": {"n_features_to_select": 1, "cv": 2},
    "RFECV": {"step": 3, "cv": 2},
    "TunedThresholdClassifierCV": {"thresholds": 5},
    "TSNE": {"max_iter": 250, "perplexity": 5, "method": "exact"},
}
FOR_CLASSIFIERS = {
    "estimator": LogisticRegression(),
    "estimators": [("a", LogisticRegression()), ("b", DecisionTreeClassifier(random_state=0))],
}
# More settings of the estimators whose state has parts of its own.
VARIANTS: list[Any] = [
    *(SGDClassifier(loss=loss, random_state=0) for loss in ("log_loss", "modified_huber", "huber")),
    *(SGDRegressor(loss=loss, random_state=0) for loss in ("epsilon_insensitive", "squared_error")),
    MLPClassifier((5,), solver="sgd", max_iter=5, early_stopping=True, random_state=0),
    GradientBoostingClassifier(n_estimators=3, init="zero", random_state=0),
    GradientBoostingClassifier(n_estimators=3, init=LogisticRegression(), random_state=0),
    *(
        GradientBoostingRegressor(n_estimators=3, loss=loss, random_state=0)
        for loss in ("huber", "quantile", "absolute_error")
    ),
    HistGradientBoostingClassifier(max_iter=3, early_stopping=True, random_state=0),
    HistGradientBoostingClassifier(max_iter=3, categorical_features=[5], random_state=0),
    HistGradientBoostingRegressor(max_iter=3, loss="poisson", random_state=0),
    IsolationForest(n_estimators=5, max_features=2, random_state=0),
    GaussianProcessRegressor(RBF() + WhiteKernel(), optimizer=None, random_state=0),
    KNeighborsClassifier(algorithm="ball_tree", metric="manhattan"),
    LocalOutlierFactor(novelty=True),
    SVC(kernel="poly", degree=2),
    make_pipeline(FunctionTransformer(np.exp), StandardScaler(), SGDClassifier(random_state=0)),
]


def made(name: str, cls: Any) -> Any:
    """Return an instance of an estimator with the arguments it needs."""
    if cls is FrozenEstimator:
        return FrozenEstimator(LogisticRegression().fit(X, Y))
    for_regressors = "Regressor" in name
    arguments = ARGUMENTS if for_regressors else {**ARGUMENTS, **FOR_CLASSIFIERS}
    signature = inspect.signature(cls).parameters.values()
    needed = [p.name for p in signature if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    settings = {key: arguments[key] for key in needed if key in arguments}
    model = cls(**{**settings, **SETTINGS.get(name, {})})
    quick = {"random_state": 0, "max_iter": 10, "n_estimators": 3, "n_init": 1, "cv": 3}
    free = model.get_params(deep=False).keys() - SETTINGS.get(name, {}).keys()
    return model.set_params(**{key: value for key, value in quick.items() if key in free})


def fitted(model: Any) -> tuple[Any, Any]:
    """Return the fitted model and the rows it was fitted to."""
    problems = []
    for rows, labels in TABLES:
        numbers = is_regressor(model) and labels is Y
        target = np.abs(X[:, 0]) + 0.5 if numbers else labels
        try:
            again = clone(model)
            return (again.fit(rows) if target is None else again.fit(rows, target)), rows
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            problems.append(repr(error))
    raise AssertionError(problems)


@cache
def estimators() -> dict[str, Any]:
    """Return all estimators by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dict(all_estimators())


def outputs(model: Any, rows: Any) -> dict[str, Any]:
    """Return what a fitted model says about rows."""
    # A copy: products of a matrix with itself round differently.
    rows = rows.copy() if isinstance(rows, np.ndarray) else list(rows)
    answers = {}
    for method in METHODS:
        if hasattr(model, method):
            try:
                answer = getattr(model, method)(rows)
            except (ValueError, TypeError, AttributeError):
                continue
            answers[method] = answer.toarray() if hasattr(answer, "toarray") else np.asarray(answer)
    return answers


def check_round_trip(model: Any) -> None:
    """Check that a model comes back, answers the same, and is the same as a second fit."""
    first, rows = fitted(model)
    digest = state.digest(first)
    again = state.decode(state.encode(first))
    assert state.digest(again) == digest
    assert state.encode(again) == state.encode(first)
    before, after = outputs(first, rows), outputs(again, rows)
    assert before.keys() == after.keys()
    for method in before:
        np.testing.assert_array_equal(before[method], after[method], err_msg=method)
    assert state.digest(first) == state.digest(again) == digest
    assert state.digest(fitted(model)[0]) == digest


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(estimators()))
def test_estimator_comes_back_or_is_refused(name: str) -> None:
    model = made(name, estimators()[name])
    if name in REFUSED:
        with pytest.raises(UnsupportedStateError, match=name):
            state.ensure_supported(model)
    else:
        state.ensure_supported(model)
        with threadpool_limits(1):
            check_round_trip(model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", VARIANTS, ids=lambda model: type(model).__name__)
def test_variant_comes_back(model: Any) -> None:
    with threadpool_limits(1):
        check_round_trip(model)


@pytest.mark.parametrize(
    ("model", "writing", "reading"),
    [(SGDClassifier(), 700, 3_000), (MLPClassifier((50,)), 11_000, 36_000)],
    ids=["sgd", "mlp"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_small_model_is_quick(model: Any, writing: int, reading: int) -> None:
    """Less than three times the calls that it took when this was written."""
    first, _ = fitted(model)
    blob = state.encode(first)
    state.decode(blob)
    assert count_calls(lambda: state.encode(first)) < writing
    assert count_calls(lambda: state.decode(blob)) < reading
