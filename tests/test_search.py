"""`ForgetSearchCV`: the choice of hyper-parameters is that of a search on the remaining rows."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import config_context, get_config
from sklearn import linear_model as sklearn_models
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

import letheon
from letheon import DaREForestClassifier, ForgetPipeline, ForgetSearchCV, InfluenceClassifier
from letheon.data import as_ids
from letheon.exceptions import CannotForgetError, ChangedParametersError, InvalidParameterError
from letheon.preprocessing import ForgetColumnTransformer, OneHotEncoder
from letheon.sums import Ridge, RidgeClassifier, sample_border
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


def test_a_border_of_the_sample_that_moves_causes_a_search() -> None:
    """People outside the sample leave, until the rounded number of people is another one."""
    model, n = fitted(), len(NAMES)
    borders = [sample_border(model.n_people, n - gone) for gone in range(n)]
    n_gone = next(gone for gone in range(n) if borders[gone] != borders[0])
    is_inside = model._draw(as_ids(NAMES), n - n_gone)  # also with the new border
    outside = np.array(NAMES)[~is_inside][:n_gone].tolist()
    assert model.forget(outside).rebuilt["searches"] == 1
    is_left = ~np.isin(IDS, outside)
    assert model.digest() == fitted(is_left).digest()
    model.learn(X[~is_left], Y[~is_left], ids=IDS[~is_left])
    order = np.argsort(~is_left, kind="stable")
    assert model.digest() == make_search().fit(X.iloc[order], Y[order], ids=IDS[order]).digest()


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


class FoldRecorder(Ridge):
    """A model that keeps the rows of its fits and scores: a row is the number of its person."""

    calls: ClassVar[list[tuple[str, set[float]]]] = []

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, ids: Any = None) -> Any:
        FoldRecorder.calls.append(("fit", set(X[:, 0].tolist())))
        return super().fit(X, y, sample_weight=sample_weight, ids=ids)

    def score(self, X: Any, y: Any, *, sample_weight: Any = None) -> float:
        FoldRecorder.calls.append(("score", set(X[:, 0].tolist())))
        return 0.0


def test_folds_separate_people_and_the_first_of_equals_is_chosen() -> None:
    FoldRecorder.calls.clear()
    people = np.random.default_rng(0).permutation(np.arange(200) % 40)
    grid = {"alpha": [3.0, 1.0, 2.0]}
    search = ForgetSearchCV(FoldRecorder(), grid, n_people=20, cv=4, random_state=0)
    search.fit(people[:, None].astype(float), RNG.normal(size=200), ids=people)
    *trials, (last, everyone) = FoldRecorder.calls
    sampled = set(np.arange(40)[search.is_sampled(range(40))].tolist())
    assert len(trials) == 2 * 3 * 4
    assert (last, len(everyone)) == ("fit", 40)
    for (_, train), (_, test) in zip(trials[::2], trials[1::2], strict=True):
        assert not train & test
        assert train | test == sampled
    tests = [test for _, test in trials[1:8:2]]
    assert sum(map(len, tests)) == len(sampled)
    assert search.best_params_ == {"alpha": 3.0}


def test_a_search_with_secret_noise_is_repeatable() -> None:
    searches = [
        ForgetSearchCV(
            InfluenceClassifier(sigma=1.0), {"l2": [0.01, 0.1]}, n_people=30, random_state=0
        ).fit(X[["a"]], Y, ids=IDS)
        for _ in range(2)
    ]
    first, second = searches
    assert np.array_equal(first.search_.scores, second.search_.scores)
    assert not np.array_equal(first.best_estimator_.coef_, second.best_estimator_.coef_)


class ConfigRecorder(Ridge):
    """A model that keeps a setting of scikit-learn during its fits."""

    seen: ClassVar[list[bool]] = []

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, ids: Any = None) -> Any:
        ConfigRecorder.seen.append(get_config()["assume_finite"])
        return super().fit(X, y, sample_weight=sample_weight, ids=ids)


def test_later_fits_have_the_configuration_of_the_first() -> None:
    x, y = np.linspace(-1, 1, 40)[:, None], np.repeat([0.0, 8.0], 20)
    grid = {"alpha": [1e6, 1e-6]}
    search = ForgetSearchCV(ConfigRecorder(random_state=0), grid, n_people=40, cv=2, random_state=0)
    with config_context(assume_finite=True):
        search.fit(x, y, ids=np.arange(40))
    ConfigRecorder.seen.clear()
    assert search.forget(range(20, 40)).rebuilt == {"searches": 1, "models": 1}
    assert ConfigRecorder.seen == [True] * 5


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
    assert model.account_ is model.best_estimator_.account_
    assert model.settle() is model.best_estimator_
    assert model.publish().coef_.shape == (1, 1)


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
        ({"cv": 2**31}, InvalidParameterError, "cv"),
        ({"n_people": 10**30}, InvalidParameterError, "n_people"),
    ],
)
def test_wrong_parameters(options: dict[str, Any], error: type[Exception], message: str) -> None:
    search = make_search().set_params(**options)
    with pytest.raises(error, match=message):
        search.fit(X, Y, ids=IDS)


def test_numbers_of_numpy_are_numbers() -> None:
    """A product of NumPy integers overflowed."""
    options = {"n_people": np.int32(12), "cv": np.int64(2)}
    assert fitted(**options).search_.n_sampled == fitted().search_.n_sampled


def score_some(fitted: Any, _X: Any, _y: Any) -> float:
    """Return NaN for one candidate."""
    return float("nan") if fitted.alpha == 1.0 else 0.5


def test_a_candidate_without_a_score_is_not_chosen() -> None:
    """NaN was taken for the largest score."""
    model, grid = RidgeClassifier(random_state=0), {"alpha": [2.0, 1.0]}
    search = ForgetSearchCV(model, grid, cv=2, scoring=score_some, random_state=0)
    rows = np.random.default_rng(0).normal(size=(20, 2))
    assert search.fit(rows, rows[:, 0] > 0).best_params_ == {"alpha": 2.0}


def test_a_sample_that_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="cannot be split into 2 folds"):
        make_search(n_people=5).fit(X[:3], Y[:3], ids=["one"] * 3)


def test_changes_of_the_grid_after_fit_are_refused() -> None:
    model = fitted()
    model.param_grid = {"forest__max_depth": [3]}
    with pytest.raises(ChangedParametersError):
        model.forget(NAMES[:1])


def test_verbose_shows_a_progress_bar_and_changes_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    scikit = GridSearchCV(sklearn_models.Ridge(), {"alpha": [0.1, 1.0]}, cv=2, verbose=3)
    search = letheon.convert(scikit, random_state=0)
    rows = RNG.normal(size=(12, 2))
    loud = search.fit(rows, rows[:, 0]).digest()
    assert "2 candidates, 2 folds" in capsys.readouterr().err
    assert search.set_params(verbose=0).forget([3]).n_rows == 1
    assert search.fit(rows, rows[:, 0]).digest() == loud
    assert capsys.readouterr() == ("", "")
