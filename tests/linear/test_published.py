"""What is published predicts as the model does and holds nothing that is secret."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_iris

from letheon import NaiveUnlearner, SISAClassifier
from letheon.exceptions import CannotForgetError, ChangedParametersError
from letheon.linear import InfluenceClassifier, InfluenceRegressor, PublishedModel

IRIS, SPECIES = load_iris(return_X_y=True)


@pytest.mark.parametrize("settings", [{}, {"multi_class": "softmax"}])
@pytest.mark.parametrize(
    "rule", [{}, {"rows": "clip", "row_norm": 3.0}, {"rows": "normalize", "row_norm": 1.0}]
)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_published_model_answers_alike(
    settings: dict[str, Any], rule: dict[str, Any], n_classes: int
) -> None:
    chosen = n_classes > SPECIES
    model = InfluenceClassifier(sigma=0.1, **settings, **rule).fit(IRIS[chosen], SPECIES[chosen])
    public = PublishedModel.from_dict(json.loads(json.dumps(model.publish().to_dict())))
    assert np.array_equal(public.predict(IRIS), model.predict(IRIS))
    assert np.array_equal(public.predict_proba(IRIS), model.predict_proba(IRIS))
    assert np.array_equal(public.decision_function(IRIS), model.decision_function(IRIS))
    bare = replace(model.guarantee_, spent=None, budget=None, residual_state=())
    assert public.guarantee == bare
    assert public.classes_ is not None
    assert public.classes_.tolist() == model.classes_.tolist()


def test_a_published_regression_answers_alike() -> None:
    X, y = load_diabetes(return_X_y=True)
    model = InfluenceRegressor(sigma=0.1).fit(X, y)
    public = model.publish()
    assert np.array_equal(public.predict(X), model.predict(X))
    assert public.classes_ is None
    with pytest.raises(AttributeError, match="predict_proba"):
        public.predict_proba(X)


def test_a_later_request_does_not_change_what_was_published() -> None:
    model = InfluenceClassifier(sigma=0.1).fit(IRIS, SPECIES)
    public = model.publish()
    before = public.coef_.copy()
    model.forget([0, 60])
    assert np.array_equal(public.coef_, before)
    assert not np.array_equal(model.coef_, before)


def test_what_is_published_tells_nothing_of_requests() -> None:
    settings: dict[str, Any] = {"sigma": 0.1, "rows": "clip", "row_norm": 9.0}
    model = InfluenceClassifier(**settings).fit(IRIS, SPECIES)
    leaving = np.arange(0, 50, 3)
    model.forget(leaving)
    rest = np.delete(IRIS, leaving, axis=0), np.delete(SPECIES, leaving)
    fresh = InfluenceClassifier(**settings).fit(*rest)
    first, second = model.publish().to_dict(), fresh.publish().to_dict()
    assert first.pop("weights") != second.pop("weights")
    assert first == second


def test_nothing_secret_is_published() -> None:
    model = InfluenceClassifier(sigma=0.1).fit(IRIS, SPECIES)
    text = json.dumps(model.publish().to_dict())
    for value in model.weights_.open().ravel():
        assert repr(float(value)) not in text
    assert "rows_" not in text


def test_other_formats_are_refused() -> None:
    with pytest.raises(ValueError, match="letheon-linear-v1"):
        PublishedModel.from_dict({"format": "something"})


@pytest.mark.parametrize(
    "changes", [{"epsilon": 0.01}, {"sigma": 2.0}, {"noise_seed": None}, {"delta": 1e-9}]
)
def test_the_claim_is_that_of_the_fit(changes: dict[str, Any]) -> None:
    model = InfluenceClassifier(sigma=0.1, noise_seed=3).fit(IRIS, SPECIES)
    model.set_params(**changes)
    with pytest.raises(ChangedParametersError, match="changed after fit"):
        _ = model.guarantee_
    with pytest.raises(ChangedParametersError, match="changed after fit"):
        model.publish()


@pytest.mark.parametrize("wrapper", [NaiveUnlearner, SISAClassifier])
def test_exact_methods_refuse_secret_noise_inside(wrapper: Any) -> None:
    with pytest.raises(CannotForgetError, match="secret noise"):
        wrapper(InfluenceClassifier()).fit(IRIS, SPECIES)
    wrapped = wrapper(InfluenceClassifier(noise_seed=0), random_state=0).fit(IRIS, SPECIES)
    again = wrapper(InfluenceClassifier(noise_seed=0), random_state=0).fit(IRIS, SPECIES)
    assert wrapped.digest() == again.digest()


def test_texts_are_refused_without_quoting_them() -> None:
    with pytest.raises(ValueError, match="linear model needs numbers") as caught:
        InfluenceClassifier().fit([["a secret sentence"], ["another"]], [0, 1])
    assert "secret" not in str(caught.value)
