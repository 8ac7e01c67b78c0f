"""The negative controls look like forgetting models, but do not forget."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.tree import DecisionTreeClassifier

from letheon.exceptions import CannotForgetError, UnknownIdError
from letheon.measures.attacks import FineTuneOnly, KeepsEverything

SGD = SGDClassifier(loss="log_loss", max_iter=20, tol=None)
CONTROLS: list[Any] = [
    KeepsEverything(DecisionTreeClassifier(), random_state=3),
    FineTuneOnly(SGD, random_state=3),
]


def table() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    return rng.normal(size=(60, 4)) + y[:, None], y, np.repeat(np.arange(20), 3)


def fitted(control: Any) -> Any:
    X, y, ids = table()
    return clone(control).fit(X, y, ids=ids)


@pytest.mark.parametrize("control", CONTROLS, ids=lambda c: type(c).__name__)
def test_says_that_it_forgot(control: Any) -> None:
    model = fitted(control)
    receipt = model.forget([4, 7])
    assert (receipt.n_ids, receipt.n_rows, model.n_rows_) == (2, 6, 54)
    assert not np.isin([4, 7], model.ids_).any()


@pytest.mark.parametrize("control", CONTROLS, ids=lambda c: type(c).__name__)
def test_claims_nothing(control: Any) -> None:
    model = fitted(control)
    assert model.guarantee_.kind == "empirical"
    assert model.residual_state_ == ("estimator_",)
    assert not model.facts.exact
    assert "negative control. this method does not forget" in model.facts.definition.lower()


@pytest.mark.parametrize("control", CONTROLS, ids=lambda c: type(c).__name__)
def test_is_not_the_model_that_never_saw_the_rows(control: Any) -> None:
    X, y, ids = table()
    model, keep = fitted(control), ids != 4
    model.forget([4])
    fresh = clone(control).fit(X[keep], y[keep], ids=ids[keep])
    assert model.digest() != fresh.digest()
    assert fresh.digest() == clone(control).fit(X[keep], y[keep], ids=ids[keep]).digest()


@pytest.mark.parametrize("control", CONTROLS, ids=lambda c: type(c).__name__)
def test_refuses_unknown_people_and_offers_no_learn(control: Any) -> None:
    model = fitted(control)
    before = model.digest()
    with pytest.raises(UnknownIdError, match="99"):
        model.forget([4, 99])
    assert model.digest() == before
    assert not hasattr(model, "learn")


def test_keeps_everything_predicts_as_before() -> None:
    X, _, _ = table()
    model = fitted(CONTROLS[0])
    before = model.predict_proba(X)
    receipt = model.forget([1, 2])
    assert np.array_equal(model.predict_proba(X), before)
    assert receipt.work == 0


def test_fine_tuning_is_more_passes_over_the_rows_that_remain() -> None:
    X, y, ids = table()
    model = fitted(FineTuneOnly(SGD, n_passes=4, random_state=3))
    by_hand, keep = deepcopy(model.estimator_), ids != 5
    receipt = model.forget([5])
    for _ in range(4):
        by_hand.partial_fit(X[keep], y[keep])
    assert np.array_equal(model.estimator_.coef_, by_hand.coef_)
    assert receipt.work == 4 / 20


def test_fine_tuning_counts_its_work_at_every_request() -> None:
    model = fitted(FineTuneOnly(SGD, n_passes=2, random_state=3))
    assert [model.forget([person]).work for person in (5, 6)] == [2 / 20, 2 / 20]


def test_fine_tuning_needs_partial_fit_and_a_pass() -> None:
    with pytest.raises(CannotForgetError, match="partial_fit"):
        fitted(FineTuneOnly(LogisticRegression()))
    with pytest.raises(ValueError, match="n_passes must be at least 1"):
        fitted(FineTuneOnly(SGD, n_passes=0))
