"""How wrappers treat the estimator inside: seeds everywhere, honest errors, its own tags."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.ensemble import BaggingClassifier, HistGradientBoostingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, SGDClassifier
from sklearn.model_selection import KFold
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import get_tags

from letheon import NaiveUnlearner
from letheon.exceptions import CannotForgetError, EmptyModelError
from letheon.inner import (
    SeedSlots,
    inherit_tags,
    remember_features,
    require_acceptable,
    retraining,
    seeded_clone,
)
from letheon.seeds import Purpose, library_seed

NESTED = make_pipeline(
    QuantileTransformer(),
    BaggingClassifier(make_pipeline(DecisionTreeClassifier()), random_state=5),
)


def seeds_in(estimator: Any) -> dict[str, Any]:
    params = estimator.get_params(deep=True).items()
    return {name: value for name, value in params if name.rpartition("__")[2] == "random_state"}


def test_every_nested_seed_is_set_by_its_own_name() -> None:
    seeds = seeds_in(seeded_clone(NESTED, 7, Purpose.STAGE, 2, 3))
    assert len(seeds) == 3
    assert len(set(seeds.values())) == 3
    for name, seed in seeds.items():
        assert seed == library_seed(7, Purpose.STAGE, 2, 3, name)


@pytest.mark.parametrize(
    "other", [(8, Purpose.STAGE, 2), (7, Purpose.RETRAIN, 2), (7, Purpose.STAGE, 3)]
)
def test_seeds_depend_on_seed_purpose_and_part(other: Any) -> None:
    first = seeds_in(seeded_clone(NESTED, 7, Purpose.STAGE, 2))
    assert not set(first.values()) & set(seeds_in(seeded_clone(NESTED, *other)).values())


def test_a_generator_given_by_the_caller_is_neither_used_nor_changed() -> None:
    rng = np.random.RandomState(0)
    before = rng.get_state(legacy=False)["state"]["key"].copy()
    model = SGDClassifier(random_state=rng)
    assert isinstance(seeded_clone(model, 1, Purpose.RETRAIN).random_state, int)
    assert model.random_state is rng
    assert np.array_equal(rng.get_state(legacy=False)["state"]["key"], before)


def test_splitters_are_replaced_by_seeded_copies() -> None:
    splitter = KFold(3, shuffle=True)
    model = LogisticRegressionCV(cv=splitter)
    SeedSlots(model).fill(1, Purpose.RETRAIN)
    assert model.cv is not splitter
    assert splitter.random_state is None
    assert model.cv.random_state == library_seed(1, Purpose.RETRAIN, "cv")


def test_clone_is_unfitted_and_the_original_untouched() -> None:
    fitted = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    assert not hasattr(seeded_clone(fitted, 0, Purpose.RETRAIN), "coef_")
    assert hasattr(fitted, "coef_")
    assert fitted.random_state is None


@pytest.mark.parametrize("wrap", [lambda inner: inner, make_pipeline, BaggingClassifier])
def test_frozen_parts_are_refused(wrap: Any) -> None:
    fitted = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(CannotForgetError, match="FrozenEstimator, which keeps what it learned"):
        seeded_clone(wrap(FrozenEstimator(fitted)), 0, Purpose.RETRAIN)


def test_a_refusal_to_fit_becomes_empty_model_error() -> None:
    with (
        pytest.raises(
            EmptyModelError, match="remaining rows would fail, so nothing was changed: one class"
        ) as info,
        retraining(),
    ):
        raise ValueError("one class")
    assert isinstance(info.value.__cause__, ValueError)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyboardInterrupt, TypeError])
def test_accidents_stay_what_they_are(error: type[BaseException]) -> None:
    with pytest.raises(error, match=r"^accident$"), retraining():
        raise error("accident")


def test_empty_model_error_is_not_wrapped_again() -> None:
    with pytest.raises(EmptyModelError, match=r"^as it is$"), retraining():
        raise EmptyModelError("as it is")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", [np.array, sp.csr_array])
def test_non_finite_rows_are_refused_where_the_estimator_would(bad: float, kind: Any) -> None:
    X = kind([[1.0, bad]])
    with pytest.raises(ValueError, match=r"LogisticRegression does not accept missing|infinity"):
        require_acceptable(LogisticRegression(), X)


def test_missing_values_pass_where_the_estimator_takes_them() -> None:
    require_acceptable(HistGradientBoostingClassifier(), np.array([[np.nan]]))
    require_acceptable(LogisticRegression(), np.array([["a text"]], object))
    with pytest.raises(ValueError, match="NaN"):
        require_acceptable(LogisticRegression(), np.array([[np.nan]]))


@pytest.mark.parametrize(
    "inner", [MultinomialNB(), HistGradientBoostingClassifier(), SGDClassifier()]
)
def test_tags_say_what_the_inner_estimator_takes(inner: Any) -> None:
    tags = inherit_tags(get_tags(BaseEstimator()), inner)
    own = get_tags(inner)
    assert tags.input_tags == own.input_tags
    assert tags.target_tags == own.target_tags
    assert tags.classifier_tags == own.classifier_tags


@pytest.mark.parametrize(
    ("X", "n_features"),
    [
        (np.zeros((2, 3)), 3),
        (sp.csr_array((2, 4)), 4),
        ([[1, 2]], 2),
        (np.array(["a", "b"]), None),
        (["a", "b"], None),
        (pd.Series(["a"]), None),
    ],
)
def test_features_are_counted_but_not_in_texts(X: Any, n_features: int | None) -> None:
    model = NaiveUnlearner(LogisticRegression())
    remember_features(model, X)
    assert getattr(model, "n_features_in_", None) == n_features


def test_feature_names_are_those_of_the_frame() -> None:
    model = NaiveUnlearner(LogisticRegression())
    remember_features(model, pd.DataFrame({"a": [1], "b": [2]}))
    assert vars(model)["feature_names_in_"].tolist() == ["a", "b"]
    remember_features(model, np.zeros((1, 2)))
    assert not hasattr(model, "feature_names_in_")
