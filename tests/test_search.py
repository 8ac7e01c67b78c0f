"""`ForgetSearchCV`: the choice of hyper-parameters is that of a search on the remaining rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

import letheon
from letheon import DaREForestClassifier, ForgetPipeline, ForgetSearchCV, InfluenceClassifier
from letheon.exceptions import CannotForgetError, ChangedParametersError, InvalidParameterError
from letheon.preprocessing import ForgetColumnTransformer, OneHotEncoder
from letheon.sums import Ridge
from tests.sharded.people import examples

RNG = np.random.default_rng(5)
N = 90
X = pd.DataFrame({"a": RNG.normal(size=N), "b": RNG.choice(list("xyz"), N)})
Y = (X["a"] + (X["b"] == "x") + RNG.normal(0, 0.7, N) > 0.3).to_numpy().astype(int)
IDS = np.array([f"p{owner:02d}" for owner in RNG.integers(40, size=N)])
NAMES = sorted(set(IDS))


def make_search(**options: Any) -> ForgetSearchCV:
    columns = ForgetColumnTransformer(
        [("b", OneHotEncoder(sparse_output=False, handle_unknown="ignore"), ["b"])],
        remainder="passthrough",
    )
    forest = DaREForestClassifier(n_estimators=2)
    pipeline = ForgetPipeline([("columns", columns), ("forest", forest)])
    options = {"n_people": 12, "cv": 2, "random_state": 1} | options
    return ForgetSearchCV(pipeline, {"forest__max_depth": [1, 2, 4]}, **options)


def fitted(chosen: Any = slice(None), **options: Any) -> ForgetSearchCV:
    return make_search(**options).fit(X[chosen], Y[chosen], ids=IDS[chosen])


@given(requests=st.lists(st.sets(st.sampled_from(NAMES), max_size=3), min_size=1, max_size=3))
@examples(25)
def test_any_sequence_ends_in_a_fresh_search(requests: list[set[str]]) -> None:
    model, forgotten = fitted(), set[str]()
    for request in requests:
        model.forget(request - forgotten)
        forgotten |= request
    keep = ~np.isin(IDS, list(forgotten))
    fresh = fitted(keep)
    assert model.digest() == fresh.digest()
    assert model.best_params_ == fresh.best_params_
    if keep.all():
        return
    model.learn(X[~keep], Y[~keep], ids=IDS[~keep])
    order = np.concatenate([np.flatnonzero(keep), np.flatnonzero(~keep)])
    again = make_search().fit(X.iloc[order], Y[order], ids=IDS[order])
    assert model.digest() == again.digest()


def test_only_people_in_the_sample_cause_a_search() -> None:
    model = fitted()
    is_sampled = dict(zip(NAMES, model.is_sampled(NAMES).tolist(), strict=True))
    assert 0 < sum(is_sampled.values()) < len(NAMES)
    inside = next(name for name in NAMES if is_sampled[name])
    outside = next(name for name in NAMES if not is_sampled[name])
    assert "searches" not in model.forget([outside]).rebuilt
    receipt = model.forget([inside])
    assert receipt.rebuilt["searches"] == 1
    assert {"seconds", "work", "rebuilt"}.isdisjoint(receipt.for_requester())


def test_another_choice_trains_the_model_again() -> None:
    """Rows of one person decide the choice; without them the first candidate wins the tie."""
    x = np.linspace(-1, 1, 40)[:, None]
    y = np.zeros(40)
    ids = np.arange(40)
    y[20:] = 8.0  # a jump that a strong penalty misses
    search = ForgetSearchCV(
        Ridge(random_state=0), {"alpha": [1e6, 1e-6]}, n_people=40, cv=2, random_state=0
    ).fit(x, y, ids=ids)
    assert search.best_params_ == {"alpha": 1e-6}
    receipt = search.forget(list(range(20, 40)))
    assert receipt.rebuilt == {"searches": 1, "models": 1}
    assert search.best_params_ == {"alpha": 1e6}
    fresh = ForgetSearchCV(
        Ridge(random_state=0), {"alpha": [1e6, 1e-6]}, n_people=40, cv=2, random_state=0
    ).fit(x[:20], y[:20], ids=ids[:20])
    assert search.digest() == fresh.digest()


def test_the_guarantee_says_that_tuning_is_inside() -> None:
    claim = fitted().guarantee_
    assert (claim.kind, claim.tuning) == ("exact", "inside")
    assert "grid-independent-of-rows" in claim.assumptions


def test_a_certified_estimator_stays_certified() -> None:
    model = ForgetSearchCV(
        InfluenceClassifier(sigma=1.0), {"l2": [0.01, 0.1]}, n_people=30, random_state=0
    ).fit(X[["a"]], Y, ids=IDS)
    assert model.guarantee_.kind == model.facts.certificate == "certified"
    assert model.best_estimator_.noise_seed is None


def test_saved_and_loaded_then_forgotten(tmp_path: Path) -> None:
    model = fitted()
    letheon.save(model, tmp_path / "search.letheon")
    loaded = letheon.load(tmp_path / "search.letheon")
    for search in (model, loaded):
        search.forget(NAMES[:2])
    assert loaded.digest() == model.digest()
    assert (loaded.predict(X) == model.predict(X)).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"estimator": LogisticRegression()}, CannotForgetError, "cannot forget"),
        ({"param_grid": {"depth": [1]}}, ValueError, r"\['depth'\], which are not parameters"),
        ({"n_people": 0}, InvalidParameterError, "n_people"),
        ({"cv": 1}, InvalidParameterError, "cv"),
    ],
)
def test_wrong_parameters(options: dict[str, Any], error: type[Exception], message: str) -> None:
    search = make_search().set_params(**options)
    with pytest.raises(error, match=message):
        search.fit(X, Y, ids=IDS)


def test_a_sample_that_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="cannot be split into 2 folds"):
        make_search(n_people=5).fit(X[:3], Y[:3], ids=["one"] * 3)


def test_changes_of_the_grid_after_fit_are_refused() -> None:
    model = fitted()
    model.param_grid = {"forest__max_depth": [3]}
    with pytest.raises(ChangedParametersError):
        model.forget(NAMES[:1])
