"""Unbalanced classes: which score is used, and models that do not beat a constant prediction."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score

from letheon import DaREForestClassifier, NaiveUnlearner
from letheon.datasets import Requests
from letheon.exceptions import NoCandidateError
from letheon.forest import tune_random_depth
from letheon.scoring import UNBALANCED, balanced_accuracy, is_unbalanced
from letheon.select import Candidate, Comparison, Tolerances, choose
from tests.marks import soak


class NearlyConstant(ClassifierMixin, BaseEstimator):
    """Answers with the most frequent class but for a few rows, taken at random."""

    def __init__(self, share: float = 0.04) -> None:
        self.share = share

    def fit(self, X: Any, y: Any) -> "NearlyConstant":
        self.classes_, counts = np.unique(y, return_counts=True)
        self.usual_ = self.classes_[np.argmax(counts)]
        self.other_ = self.classes_[np.argmin(counts)]
        return self

    def predict(self, X: Any) -> Any:
        rare = np.abs(np.sin(1e4 * X[:, 0])) < self.share
        return np.where(rare, self.other_, self.usual_)


def visits(n: int = 600, positive: float = 0.2, seed: int = 0) -> tuple[Any, Any]:
    """Return rows like those of No Show: four in five are "no", and the signal is weak."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < positive).astype(int)
    return rng.normal(size=(n, 2)) + 1.5 * y[:, None], y


def compare(data: Any, *models: Any, **options: Any) -> Comparison:
    return choose(
        data,
        candidates=[NaiveUnlearner(model) for model in models],
        requests=Requests(n=2),
        tolerances=Tolerances(effectiveness=0.3, certifiability=None),
        cv=2,
        **({"ordinary": LogisticRegression()} | options),
    )


@pytest.mark.parametrize(
    "metric", [None, soak(accuracy_score), soak(partial(f1_score, zero_division=0))]
)
def test_a_nearly_constant_model_is_not_chosen(metric: Any) -> None:
    comparison = compare(visits(), NearlyConstant(), metric=metric)
    assert comparison.best is None
    assert "is not significantly better than a constant prediction, " in comparison.reason
    with pytest.raises(NoCandidateError, match="constant prediction"):
        comparison.best_estimator()


def test_a_model_that_learned_something_is_chosen() -> None:
    comparison = compare(visits(), NearlyConstant(), LogisticRegression())
    assert comparison.best is not None
    assert comparison.best.name == "NaiveUnlearner of LogisticRegression"


def test_the_metric_and_its_reason_are_reported() -> None:
    comparison = compare(visits(), LogisticRegression())
    assert comparison.scored_by.startswith("balanced accuracy, because class 0 makes up 7")
    assert "Metric: balanced accuracy, because" in comparison.reason
    assert comparison.to_dict()["scored by"] == comparison.scored_by
    assert comparison.tried[0].evaluation.metric == "balanced accuracy"


def test_balanced_classes_are_scored_by_accuracy() -> None:
    comparison = compare(visits(positive=0.5), LogisticRegression())
    assert comparison.scored_by.startswith("accuracy, because no class makes up two thirds")
    assert comparison.tried[0].evaluation.metric == "accuracy"


def test_a_metric_that_is_given_is_used() -> None:
    comparison = compare(visits(), LogisticRegression(), metric=accuracy_score)
    assert comparison.scored_by == "accuracy, as given"
    assert comparison.tried[0].evaluation.metric == "accuracy"


def test_a_constant_regression_is_refused() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    comparison = compare((X, X @ [1.0, 2.0] + 0.1), DummyRegressor(), ordinary=DummyRegressor())
    assert comparison.best is None
    assert "is not significantly better than a constant prediction" in comparison.reason
    assert comparison.scored_by == "r2, the default for regression"


def test_tuning_does_not_settle_for_a_constant() -> None:
    """By accuracy a forest of random levels is as good as "no": cross-validation stops there."""
    X, y = visits(400, seed=1)
    comparison = choose(
        (X, y),
        candidates=[
            Candidate(
                DaREForestClassifier(n_estimators=3, max_depth=6, random_state=0),
                efficiency={"random_depth": [0, 6]},
            )
        ],
        ordinary=DummyClassifier(),
        tolerances=Tolerances(effectiveness=0.02),
        requests=Requests(n=2),
        cv=3,
        metric=accuracy_score,
    )
    (tuning,) = comparison.tunings["DaREForestClassifier"]
    assert tuning.goal > max(np.mean(y), 1 - np.mean(y)) - 0.02


def test_a_forest_is_tuned_by_balanced_accuracy_where_classes_are_unbalanced() -> None:
    X, y = visits(400)
    model = DaREForestClassifier(n_estimators=3, max_depth=4, random_state=0)
    search = tune_random_depth(model, X, y, cv=3, max_random_depth=1)
    assert search.scoring == "balanced_accuracy"
    assert search.constant == pytest.approx(0.5)
    assert tune_random_depth(model, X, y, cv=3, max_random_depth=0, scoring="f1").scoring == "f1"


@pytest.mark.parametrize("scoring", [None, "accuracy"])
def test_a_forest_that_does_not_beat_a_constant_is_not_tuned(scoring: str | None) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 2)), (np.arange(300) % 5 == 0).astype(int)
    model = DaREForestClassifier(n_estimators=1, max_depth=1, random_state=0)
    with pytest.raises(NoCandidateError, match="does not beat a constant prediction"):
        tune_random_depth(model, X, y, cv=3, max_random_depth=1, scoring=scoring)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_balanced_accuracy_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    y, p = np.array(pairs).T
    recalls = [np.mean(p[y == each] == each) for each in np.unique(y)]
    assert balanced_accuracy(y, p) == pytest.approx(np.mean(recalls))
    if np.isin(p, y).all() and len(np.unique(y)) > 1:
        assert balanced_accuracy(y, p) == pytest.approx(balanced_accuracy_score(y, p))


@given(st.integers(1, 50), st.integers(1, 50))
def test_two_thirds_are_unbalanced(a: int, b: int) -> None:
    share = max(a, b) / (a + b)
    assert is_unbalanced(["x"] * a + ["y"] * b) == (share >= UNBALANCED)
