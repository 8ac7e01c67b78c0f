"""KeyedSample: exactness, bits of single rows, and the people in the sample."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from numpy.testing import assert_array_equal
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.preprocessing import KBinsDiscretizer, PowerTransformer, SplineTransformer

import letheon
from letheon.exceptions import EmptyModelError
from letheon.preprocessing import KeyedSample
from tests.preprocessing.plans import prepare_removal
from tests.preprocessing.tables import frame, requests, run_requests

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 6))
Y = (X[:, 0] + RNG.normal(size=400) > 0).astype(int)

TRANSFORMERS = [
    PCA(2),
    SplineTransformer(n_knots=3),
    PowerTransformer(),
    KBinsDiscretizer(3, quantile_method="averaged_inverted_cdf"),
    SelectKBest(k=2),
]


@pytest.mark.parametrize("inner", TRANSFORMERS, ids=repr)
@settings(max_examples=10)
@given(requests())
def test_after_requests_it_is_a_fresh_fit(inner: Any, drawn: Any) -> None:
    seed, steps = drawn
    ids = np.random.default_rng(seed).integers(0, 60, 120).tolist()
    run_requests(KeyedSample(inner, n_people=15), X[:120], Y[:120], ids, steps)


@pytest.mark.parametrize("inner", TRANSFORMERS, ids=repr)
def test_the_output_for_a_row_does_not_depend_on_others(inner: Any) -> None:
    model = KeyedSample(inner, n_people=100, random_state=0).fit(X, Y)
    together = to_array(model.transform(X))
    parts = [to_array(model.transform(X[k : k + 7])) for k in range(0, 400, 7)]
    assert_array_equal(np.concatenate(parts), together)
    assert model.published_.n_together == 336


class CentredByBatch(TransformerMixin, BaseEstimator):
    """A transformer that mixes rows."""

    def fit(self, X: Any, y: Any = None) -> "CentredByBatch":
        self.n_ = X.shape[1]
        return self

    def transform(self, X: Any) -> Any:
        return X - X[:10].mean(axis=0)


def test_rows_are_transformed_alone_if_their_place_matters() -> None:
    model = KeyedSample(CentredByBatch(), n_people=100, random_state=0).fit(X)
    assert model.published_.n_together == 1
    assert_array_equal(model.transform(X[:3]), np.zeros((3, 6)))


def to_array(table: Any) -> Any:
    return table.toarray() if hasattr(table, "toarray") else table


def test_only_sampled_people_matter() -> None:
    model = KeyedSample(PCA(2), n_people=50, random_state=1).fit(X)
    sampled = model.is_sampled(range(400))
    assert 30 < sampled.sum() < 90
    assert model.n_sampled_ == sampled.sum()
    outside, inside = np.flatnonzero(~sampled), np.flatnonzero(sampled)
    assert prepare_removal(model, [int(outside[0])]).published is model.published_
    plan = prepare_removal(model, [int(inside[0])])
    assert plan.columns == (0, 1)
    assert plan.work == 1.0
    before = model.transformer_
    assert model.forget(outside[:5].tolist()).work == 0.0
    assert model.transformer_ is before
    assert model.forget(inside[:1].tolist()).work == 1.0
    stay = np.setdiff1d(np.arange(400), [*outside[:5], inside[0]])
    expected = PCA(2, random_state=None).fit(X[np.intersect1d(stay, inside)])
    np.testing.assert_allclose(abs(model.transformer_.components_), abs(expected.components_))


def test_a_border_that_moves_causes_a_fit() -> None:
    """The number of people is rounded; when it changes, so does the sample of those who stay."""
    ids = np.arange(len(X))
    model = KeyedSample(PCA(2), n_people=100, random_state=0).fit(X, ids=ids)
    outside = ids[~model.is_sampled(ids)]
    border = model.sums_.border
    assert model.forget(outside).work == 1.0
    assert model.sums_.border != border
    stay = np.setdiff1d(ids, outside)
    fresh = KeyedSample(PCA(2), n_people=100, random_state=0).fit(X[stay], ids=stay)
    assert model.digest() == fresh.digest()


def test_frames_and_texts() -> None:
    people = frame(0, 60)[["age", "grade"]].fillna(0.0)
    model = KeyedSample(PCA(1), n_people=20, random_state=0).fit(people)
    model.set_output(transform="pandas")
    assert isinstance(model.transform(people), pd.DataFrame)
    texts = np.array(["a b", "b c", "c d", "d e"] * 20, object)
    vectors = KeyedSample(TfidfVectorizer(token_pattern="."), n_people=20, random_state=0)
    assert vectors.fit_transform(texts).shape[0] == 80
    vectors.forget([0, 1, 2])
    fresh = KeyedSample(TfidfVectorizer(token_pattern="."), n_people=20, random_state=0)
    assert fresh.fit(texts[3:], ids=range(3, 80)).digest() == vectors.digest()


def fit_tiny_sample(seed: int) -> Any:
    return KeyedSample(PCA(1), n_people=1, random_state=seed).fit(X)


def test_a_sample_without_people_and_other_errors() -> None:
    with pytest.raises(ValueError, match="no person is in the sample"):
        list(map(fit_tiny_sample, range(50)))
    with pytest.raises(TypeError, match="expected a transformer"):
        KeyedSample(3).fit(X)
    with pytest.raises(ValueError, match="contains NaN"):
        KeyedSample(PCA(1)).fit(np.where(X > 2, np.nan, X))
    model = KeyedSample(PCA(2), random_state=0).fit(X[:3])
    before = model.digest()
    with pytest.raises(EmptyModelError, match="fit on the remaining rows would fail"):
        model.forget([0, 1])
    assert model.digest() == before


def test_splines_of_a_constant_column_are_read_back() -> None:
    constant = np.column_stack([X[:, 0], np.full(len(X), 7.0)])
    model = KeyedSample(SplineTransformer(n_knots=3), n_people=100, random_state=0).fit(constant)
    again = letheon.state.decode(letheon.state.encode(model))
    assert again.digest() == model.digest()
    assert_array_equal(again.transform(constant), model.transform(constant))


def test_it_is_exported() -> None:
    assert letheon.KeyedSample is KeyedSample
