"""What lies outside an estimator, or in other people's rows, never changes what it learns."""

import random
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.feature_selection import SelectKBest, mutual_info_classif
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from threadpoolctl import threadpool_info, threadpool_limits

from letheon import (
    DataIndependent,
    ForgetPipeline,
    NaiveUnlearner,
    SISAClassifier,
    SISARegressor,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = (X[:, 0] + RNG.normal(size=60) > 0).astype(int)
TIES = RNG.integers(0, 3, size=(60, 4)).astype(float)


class ClassifierList(ClassifierMixin, BaseEstimator):
    """Classifiers in a plain list, of which `get_params` tells nothing."""

    def __init__(self, members: Any = ()) -> None:
        self.members = members

    def fit(self, X: Any, y: Any) -> "ClassifierList":
        self.classes_ = np.unique(y)
        self.fitted_ = [clone(member).fit(X, y) for member in self.members]
        return self


class Reckless(ClassifierMixin, BaseEstimator):
    """Draws from the global generators."""

    def fit(self, X: Any, y: Any) -> "Reckless":
        self.classes_ = np.unique(y)
        self.noise_ = np.random.rand(), random.random()
        return self


LEARNERS = {
    # Threads that add up probabilities in order of arrival.
    "calibrated forest": (
        CalibratedClassifierCV(RandomForestClassifier(20, n_jobs=2, max_depth=3)),
        X,
    ),
    # Breaks ties by noise from the global generator.
    "mutual information": (
        make_pipeline(SelectKBest(mutual_info_classif, k=2), LogisticRegression()),
        TIES,
    ),
    "list of learners": (
        ClassifierList([SGDClassifier(max_iter=5, tol=None) for _ in range(2)]),
        X,
    ),
    "global generators": (Reckless(), X),
}


def naive(inner: Any) -> NaiveUnlearner:
    return NaiveUnlearner(inner, random_state=0)


SCALED: list[tuple[str, Any]] = [
    ("scale", naive(StandardScaler())),
    ("model", naive(LogisticRegression())),
]


def caller_state() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state()
    return kind, tuple(keys), *rest, random.getstate()


def without_first(rows: Any) -> Any:
    return rows.iloc[1:] if hasattr(rows, "iloc") else rows[1:]


def assert_forgets_the_first_row(inner: Any, X: Any, y: Any) -> None:
    model = naive(inner).fit(X, y)
    model.forget([0])
    fresh = naive(inner).fit(without_first(X), without_first(y), ids=range(1, len(y)))
    assert model.digest() == fresh.digest()


@pytest.mark.parametrize("name", LEARNERS)
def test_every_fit_is_the_same_and_touches_nothing_of_the_caller(name: str) -> None:
    inner, rows = LEARNERS[name]
    digests = set()
    for seed in range(4):
        np.random.seed(seed)
        random.seed(seed)
        before = caller_state()
        digests.add(naive(inner).fit(rows, Y).digest())
        assert caller_state() == before, "the caller's generators were touched"
    assert len(digests) == 1


@pytest.mark.parametrize("name", LEARNERS)
def test_forgetting_is_a_fresh_fit_whatever_the_caller_drew(name: str) -> None:
    inner, rows = LEARNERS[name]
    np.random.seed(1)
    before = caller_state()
    assert_forgets_the_first_row(inner, rows, Y)
    assert caller_state() == before


def test_members_of_a_list_get_seeds_of_their_own() -> None:
    first, two = naive(LEARNERS["list of learners"][0]).fit(X, Y).estimator_.fitted_
    assert first.random_state != two.random_state
    assert not np.array_equal(first.coef_, two.coef_)


@pytest.mark.parametrize(
    ("odd", "inner"),
    [
        *((odd, make_pipeline(OneHotEncoder(), LogisticRegression())) for odd in (None, 2.5, True)),
        *((odd, DecisionTreeClassifier()) for odd in (np.nan, 2.5, True)),
    ],
)
def test_the_odd_object_leaves_no_trace(odd: Any, inner: Any) -> None:
    rows = np.array([[odd], [1], [2], [1], [3]], object)
    assert_forgets_the_first_row(inner, rows, [0, 1, 0, 1, 1])


def test_the_odd_row_of_a_list_leaves_no_trace() -> None:
    assert_forgets_the_first_row(DecisionTreeClassifier(), [[1.5], [2], [3]], [0, 1, 0])
    assert_forgets_the_first_row(DecisionTreeClassifier(), [[True], [2], [3]], [0, 1, 0])
    assert_forgets_the_first_row(Ridge(), [[1], [2], [3]], [1.5, 2, 3])
    assert_forgets_the_first_row(Ridge(), [[1], [2], [3]], np.array([1.5, 2, 3], object))
    wide = [np.array([1.5]), np.array([2], np.float32), np.array([3], np.float32)]
    assert_forgets_the_first_row(HistGradientBoostingRegressor(), wide, [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    "y", [[1.5, 1, 2], [True, 1, 2], ["a", 1, 2], np.array([1.5, 1, 2], object)], ids=repr
)
@pytest.mark.parametrize("model", [NaiveUnlearner, SISAClassifier])
def test_mixed_labels_are_refused(model: Any, y: Any) -> None:
    model = model(DecisionTreeClassifier())
    with pytest.raises(ValueError, match=r"labels of several types: .*; expected one type"):
        model.fit([[1.0], [2.0], [3.0]], y)


@pytest.mark.parametrize("rows", [[[None], [1], [2]], [["a"], [1], [2]]])
def test_mixed_lists_of_rows_are_refused(rows: Any) -> None:
    with pytest.raises(ValueError, match="list of mixed types"):
        naive(SimpleImputer()).fit(rows)


def test_settings_of_scikit_learn_are_those_of_the_fit() -> None:
    inner = make_pipeline(StandardScaler(), LogisticRegression())
    frame = pd.DataFrame(X, columns=list("abcd"))
    with sklearn.config_context(transform_output="pandas"):
        model = naive(inner).fit(frame, Y)
        fresh = naive(inner).fit(frame[1:], Y[1:], ids=range(1, 60))
    model.forget([0])
    assert model.digest() == fresh.digest()
    assert model.estimator_[-1].feature_names_in_.tolist() == list("abcd")
    assert vars(model)["config_"]["transform_output"] == "pandas"
    outside = naive(inner).fit(frame[1:], Y[1:], ids=range(1, 60))
    assert outside.digest() != fresh.digest(), "the setting no longer matters: choose another"


def test_settings_of_a_pipeline_are_those_of_the_fit() -> None:
    frame = pd.DataFrame(X, columns=list("abcd"))

    def fit(rows: Any, labels: Any, ids: Any) -> ForgetPipeline:
        with sklearn.config_context(transform_output="pandas"):
            return ForgetPipeline(SCALED).fit(rows, labels, ids=ids)

    model = fit(frame, Y, range(60))
    model.forget([0])
    assert model.digest() == fit(frame[1:], Y[1:], range(1, 60)).digest()
    assert model.steps_[-1][1].feature_names_in_.tolist() == list("abcd")


class TransformThreadCounter(TransformerMixin, BaseEstimator):
    """Notes how many threads BLAS and OpenMP may use while it transforms."""

    seen: ClassVar[list[int]] = []

    def fit(self, X: Any, y: Any = None) -> "TransformThreadCounter":
        return self

    def transform(self, X: Any) -> Any:
        TransformThreadCounter.seen.append(
            max(library["num_threads"] for library in threadpool_info())
        )
        return X


def test_steps_transform_with_one_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    # The last bits of a product depend on the number of threads, and the next step learns them.
    monkeypatch.setattr(TransformThreadCounter, "seen", [])
    steps: list[tuple[str, Any]] = [("count", DataIndependent(TransformThreadCounter())), *SCALED]
    with threadpool_limits(2):
        ForgetPipeline(steps).fit(X, Y).forget([0])
        assert max(library["num_threads"] for library in threadpool_info()) == 2
    assert len(TransformThreadCounter.seen) >= 2
    assert set(TransformThreadCounter.seen) == {1}


def test_steps_that_work_in_place_spoil_no_held_row() -> None:
    steps: list[tuple[str, Any]] = [("norm", Normalizer(copy=False)), *SCALED]
    model = ForgetPipeline(steps).fit(X, Y)
    model.forget([0])
    assert model.fitted_.rows is not None
    assert np.array_equal(model.fitted_.rows.X, X[1:])
    assert model.digest() == ForgetPipeline(steps).fit(X[1:], Y[1:], ids=range(1, 60)).digest()


@pytest.mark.parametrize("is_fitted", [False, True])
@pytest.mark.parametrize(
    "model",
    [
        naive(LogisticRegression()),
        SISAClassifier(LogisticRegression(), n_shards=2),
        SISARegressor(Ridge(), n_shards=2),
        DataIndependent(Normalizer()),
        ForgetPipeline([("norm", Normalizer()), ("model", naive(LogisticRegression()))]),
    ],
    ids=lambda model: type(model).__name__,
)
def test_pages_of_notebooks_show_models_without_a_word(model: Any, is_fitted: bool) -> None:
    # scikit-learn parses the docstrings for it, and its parser warns about what it cannot read.
    shown = clone(model).fit(X, Y) if is_fitted else clone(model)
    page = shown._repr_html_()
    assert type(model).__name__ in page
    assert all(name in page for name in model.get_params(deep=False))
