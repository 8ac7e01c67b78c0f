"""A transformer that is declared data-independent is tried out, not believed."""

from typing import Any, Self

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.feature_selection import VarianceThreshold
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)
from sklearn.random_projection import GaussianRandomProjection, SparseRandomProjection
from sklearn.utils import all_estimators

from letheon import DataIndependent, ForgetPipeline, NaiveUnlearner
from letheon.exceptions import CannotForgetError

X = np.random.default_rng(0).normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)
LETTERS = np.array([["a"], ["b"], ["c"]] * 20, object)
TEXTS = [f"word{i % 7} and word{i % 5}" for i in range(60)]


def log_of(table: Any) -> Any:
    return np.log1p(np.abs(table))


def double_in_place(table: Any) -> Any:
    table *= 2
    return table


def centred(table: Any) -> Any:
    """Stateless, and yet every row depends on the others."""
    return table - np.mean(table, axis=0)


class Largest(TransformerMixin, BaseEstimator):
    """Not of scikit-learn: remembers the largest value."""

    def __init__(self, hidden: bool = False) -> None:
        self.hidden = hidden

    def fit(self, X: Any, y: Any = None) -> Self:
        self.scale_ = np.abs(X).max(axis=0)
        return self

    def transform(self, X: Any) -> Any:
        return X / np.where(self.scale_ > 0, self.scale_, 1)


class Counts(Largest):
    """Remembers no value, but how many rows there were."""

    def fit(self, X: Any, y: Any = None) -> Self:
        self.scale_ = np.array([float(len(X))])
        return self


class Fixed(Largest):
    def fit(self, X: Any, y: Any = None) -> Self:
        self.scale_ = np.ones(X.shape[1])
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


class SharedMean(Largest):
    """Keeps what it learned in its class, where no state shows it."""

    mean: Any = 0

    def fit(self, X: Any, y: Any = None) -> Self:
        type(self).mean = np.mean(X, axis=0)
        return self

    def transform(self, X: Any) -> Any:
        return X - type(self).mean


class LateMean(Largest):
    """Learns when it transforms for the first time."""

    def fit(self, X: Any, y: Any = None) -> Self:
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def transform(self, X: Any) -> Any:
        if not hasattr(self, "mean_"):
            self.mean_ = np.mean(X, axis=0)
        return X - self.mean_


def centred_when_long(table: Any) -> Any:
    """Mixes rows only where there are more of them than a trial has."""
    return centred(table) if len(table) > 64 else table


class Boast(Largest):
    """Says by its tags that it needs no fit, and learns."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


LEARNERS: list[tuple[Any, Any]] = [
    (StandardScaler(), X),
    (StandardScaler(with_mean=False, with_std=False), X),
    (MinMaxScaler(), X),
    (PCA(2), X),
    (KBinsDiscretizer(3, quantile_method="averaged_inverted_cdf"), X),
    (Nystroem(n_components=5), X),
    (VarianceThreshold(), X),
    (TargetEncoder(), LETTERS),
    (OneHotEncoder(), LETTERS),
    (OneHotEncoder(categories=[["a", "b", "c"]], min_frequency=5), LETTERS),
    (OrdinalEncoder(), LETTERS),
    (SimpleImputer(), X),
    (SplineTransformer(), X),
    (TfidfVectorizer(), TEXTS),
    (CountVectorizer(), TEXTS),
    (SparseRandomProjection(), X),
    (make_pipeline(Normalizer(), StandardScaler()), X),
    (FeatureUnion([("a", Normalizer()), ("b", MinMaxScaler())]), X),
    (ColumnTransformer([("a", StandardScaler(), [0])], remainder="passthrough"), X),
    (FrozenEstimator(StandardScaler().fit(X)), X),
    (NaiveUnlearner(StandardScaler(), random_state=0), X),
    (Largest(), X),
    (Largest(), (X > 0).astype(float)),
    (Largest(), np.ones((60, 2))),
    (Largest(), pd.DataFrame(X)),
    (Counts(), X),
    (FunctionTransformer(centred), X),
    (make_pipeline(FunctionTransformer(centred), Normalizer()), X),
]
INDEPENDENT: list[tuple[Any, Any]] = [
    (FunctionTransformer(log_of), X),
    (FunctionTransformer(double_in_place), X.copy()),
    (Normalizer(copy=False), X.copy()),
    (FunctionTransformer(), pd.DataFrame(X, columns=["a", "b", "c"])),
    (Normalizer(), X),
    (Normalizer(), sp.csr_matrix(X)),
    (Binarizer(), X),
    (PolynomialFeatures(2), X),
    (PolynomialFeatures(2), pl.DataFrame(X, schema=["a", "b", "c"])),
    (HashingVectorizer(n_features=16), TEXTS),
    (CountVectorizer(vocabulary=["word1", "word2"]), TEXTS),
    (OneHotEncoder(categories=[["a", "b", "c"]]), LETTERS),
    (OrdinalEncoder(categories=[["a", "b", "c"]]), LETTERS),
    (SimpleImputer(strategy="constant", fill_value=0.0), np.where(X > 1, np.nan, X)),
    (SplineTransformer(knots=np.linspace(-5, 5, 9)[:, None] * np.ones((1, 3))), X),
    (GaussianRandomProjection(2), X),
    (RBFSampler(n_components=4), X),
    (RBFSampler(n_components=4, random_state=np.random.RandomState(0)), X),
    (make_pipeline(Normalizer(), PolynomialFeatures()), X),
    (FeatureUnion([("a", Normalizer()), ("b", Binarizer())]), X),
    (
        ColumnTransformer(
            [("a", Normalizer(), make_column_selector(dtype_include=float)), ("b", "drop", ["d"])]
        ),
        pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "d": LETTERS.ravel()}),
    ),
    (Fixed(), X),
]


def name(value: Any) -> Any:
    return type(value).__name__ if isinstance(value, BaseEstimator) else ""


@pytest.mark.parametrize(("transformer", "rows"), LEARNERS, ids=name)
def test_what_learns_from_rows_is_refused(transformer: Any, rows: Any) -> None:
    step = DataIndependent(transformer)
    with pytest.raises(CannotForgetError, match=r"not data-independent.*Use NaiveUnlearner\("):
        step.fit(rows, Y)
    assert not hasattr(step, "transformer_")


@pytest.mark.parametrize(("transformer", "rows"), INDEPENDENT, ids=name)
def test_what_learns_nothing_is_taken(transformer: Any, rows: Any) -> None:
    fitted = DataIndependent(transformer).fit(rows, Y)
    assert fitted.transform(rows[:3]).shape[0] == 3


def test_a_pipeline_refuses_before_anything_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    fits, fit = [], MinMaxScaler.fit

    def counted(self: Any, X: Any, y: Any = None) -> Any:
        fits.append(1)
        return fit(self, X)

    monkeypatch.setattr(MinMaxScaler, "fit", counted)
    steps = [
        ("first", NaiveUnlearner(MinMaxScaler())),
        ("scale", DataIndependent(StandardScaler())),
        ("last", NaiveUnlearner(LogisticRegression())),
    ]
    model = ForgetPipeline(steps)
    with pytest.raises(CannotForgetError, match="StandardScaler depends on the rows"):
        model.fit(X, Y)
    assert not model.__sklearn_is_fitted__()
    assert fits == []


def test_a_tag_alone_is_not_believed() -> None:
    last = ("last", NaiveUnlearner(LogisticRegression(), random_state=0))
    with pytest.raises(CannotForgetError, match="fits on different rows differ"):
        ForgetPipeline([("own", Boast()), last]).fit(X, Y)
    model = ForgetPipeline([("own", Fixed()), last]).fit(X, Y)
    assert model.forget([0]).guarantee.kind == "exact"


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_no_transformer_of_scikit_learn_smuggles_rows_in() -> None:
    """With default settings each is refused, or forgetting through it equals a fresh fit."""
    accepted = []
    for kind, cls in all_estimators(type_filter="transformer"):
        try:
            step = DataIndependent(cls())
            step.fit(np.abs(X), Y)
        except Exception:  # noqa: BLE001 - needs settings, other rows, or is refused
            continue
        accepted.append(kind)
        remaining = DataIndependent(cls(**_same_seed(step))).fit(np.abs(X[30:]), Y[30:])
        expected = step.transform(np.abs(X[30:]))
        assert np.array_equal(_dense(remaining.transform(np.abs(X[30:]))), _dense(expected)), kind
    assert {"Normalizer", "Binarizer", "PolynomialFeatures", "FunctionTransformer"} <= set(accepted)
    assert "StandardScaler" not in accepted


def _same_seed(step: Any) -> dict[str, Any]:
    params = step.transformer_.get_params()
    return {"random_state": params["random_state"]} if "random_state" in params else {}


def _dense(table: Any) -> Any:
    return table.toarray() if sp.issparse(table) else np.asarray(table)


@settings(max_examples=40, deadline=None)
@given(
    rows=arrays(float, (12, 2), elements=st.floats(-3, 3).map(lambda value: round(value, 1))),
    statistic=st.sampled_from(["max", "min", "mean", "sum", "std"]),
)
def test_every_statistic_of_rows_is_noticed(rows: Any, statistic: str) -> None:
    class Own(Largest):
        def fit(self, X: Any, y: Any = None) -> Self:
            self.scale_ = getattr(np, statistic)(X, axis=0)
            return self

    Own.__qualname__ = "Own"
    globals()["Own"] = Own  # the encoder finds a class by its name
    if statistic == "std" and not rows.std(axis=0).any():
        return  # 0 for all of these rows, and for whatever is drawn of them
    with pytest.raises(CannotForgetError, match="differ"):
        DataIndependent(Own()).fit(rows)


@pytest.mark.parametrize(
    ("transformer", "reason"),
    [
        (SharedMean(), "its output for a row changes with"),
        (LateMean(), "its state changes when it"),
        (FunctionTransformer(centred_when_long), "depends on other rows"),
    ],
)
def test_what_hides_rows_from_a_small_trial_is_refused(transformer: Any, reason: str) -> None:
    rows = np.random.default_rng(1).normal(size=(100, 3))
    model = NaiveUnlearner(LogisticRegression(), random_state=0)
    pipeline = ForgetPipeline([("step", DataIndependent(transformer)), ("model", model)])
    with pytest.raises(CannotForgetError, match=reason):
        pipeline.fit(rows, (rows[:, 0] > 0).astype(int))
