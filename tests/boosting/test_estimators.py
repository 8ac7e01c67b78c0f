"""The boosted models as estimators: contract, requests, presets, losses and input."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics import log_loss, r2_score
from sklearn.utils import estimator_checks

import letheon
from letheon import BoostingClassifier, BoostingRegressor
from letheon.checks import parametrize_with_checks

SMALL: dict[str, Any] = {"n_estimators": 6, "max_leaves": 8, "n_chains": 2, "min_samples_leaf": 2}
MODELS = [
    BoostingClassifier(**SMALL),
    BoostingClassifier(**SMALL, rebuild="eager", skeleton_people=20),
    BoostingRegressor(**SMALL),
    BoostingRegressor(**SMALL, skeleton_people=30, colsample=0.5),
]


# With one chain, copies of a row under new ids decide the same splits.
@estimator_checks.parametrize_with_checks(
    [BoostingClassifier(**SMALL | {"n_chains": 1}), BoostingRegressor(**SMALL | {"n_chains": 1})]
)
def test_scikit_learn_contract(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@parametrize_with_checks(MODELS)
def test_forgetting_contract(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def rows(n: int = 200) -> tuple[NDArray[Any], NDArray[Any], list[str]]:
    """Rows of people who own up to several each, with missing values and three classes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4)).round(1)
    X[:, 3] = rng.integers(0, 5, n)
    y = np.array(["ash", "elm", "oak"])[(X[:, 0] > 0).astype(int) + (X[:, 3] == 2)]
    X[rng.random(X.shape) < 0.1] = np.nan
    return X, y, [f"p{i}" for i in rng.integers(0, n // 2, n)]


def make_model(**parameters: Any) -> BoostingClassifier:
    return BoostingClassifier(**{**SMALL, "random_state": 3, **parameters})


@pytest.mark.parametrize("gone", [["p3"], ["p1", "p8", "p30"], [f"p{i}" for i in range(60)]])
@pytest.mark.parametrize("people", [10, 80, 1000])
def test_forget_equals_a_fresh_fit(gone: list[str], people: int) -> None:
    X, y, ids = rows()
    wanted = sorted(set(gone) & set(ids))
    model = make_model(skeleton_people=people, categorical_features=[3]).fit(X, y, ids=ids)
    model.forget(wanted)
    keep = ~np.isin(ids, wanted)
    fresh = make_model(skeleton_people=people, categorical_features=[3])
    fresh.fit(X[keep], y[keep], ids=np.array(ids)[keep])
    assert model.digest() == fresh.digest()
    np.testing.assert_array_equal(model.predict_proba(X), fresh.predict_proba(X))


def test_a_class_can_leave_and_come_back() -> None:
    X, y, _ = rows()
    model = make_model().fit(X, y, ids=np.arange(len(y)))
    before = model.digest()
    gone = np.flatnonzero(y == "elm")
    model.forget(gone)
    assert model.classes_.tolist() == ["ash", "oak"]
    assert model.predict_proba(X).shape == (len(X), 2)
    model.learn(X[gone], y[gone], ids=gone)
    assert model.digest() == before


def test_the_cost_is_that_of_the_request() -> None:
    X, y, ids = rows()
    model = make_model(skeleton_people=20).fit(X, y, ids=ids)
    cost = model.forget_cost(["p3"])
    receipt = model.forget(["p3"])
    assert receipt.rebuilt == {"chains": cost.chains, "trees": cost.trees, "rounds": cost.rounds}
    # Growth and values take about half of a fit each.
    assert cost.share == receipt.work == (cost.chains / 2 + cost.rounds / 6) / 2


def test_only_people_of_the_skeleton_grow_a_chain_again() -> None:
    """A border at skeleton_people / n would move with every removal."""
    X = np.random.default_rng(0).normal(size=(500, 2))
    model = make_model(skeleton_people=50, n_chains=2).fit(X, X[:, 0] > 0, ids=range(500))
    chains = np.array([model.forget_cost([person]).chains for person in range(500)])
    assert set(chains.tolist()) == {0, 1}
    assert 30 < chains.sum() < 80


def test_a_tie_is_the_first_class() -> None:
    X = np.repeat([[0.0], [1.0], [2.0]], 40, axis=0)
    y = np.tile([0, 1], 60)  # no column tells anything
    model = BoostingClassifier(n_estimators=1, random_state=0).fit(X, y)
    assert (model.decision_function(X) == 0).all()
    assert (model.predict(X) == 0).all()


def test_a_target_beyond_its_bound_is_refused() -> None:
    model = BoostingRegressor(**SMALL, y_max=5.0)
    with pytest.raises(ValueError, match=r"larger than y_max=5\.0"):
        model.fit([[0.0], [1.0]], [1.0, -5.5])
    model.fit([[0.0], [1.0]], [1.0, -5.0], ids=[0, 1])
    with pytest.raises(ValueError, match=r"larger than y_max=5\.0"):
        model.learn([[2.0]], [5.5], ids=[2])


def test_save_and_load_after_a_lazy_request(tmp_path: Any) -> None:
    X, y, ids = rows()
    model = make_model().fit(X, y, ids=ids)
    model.forget(["p3"])
    letheon.save(model, tmp_path / "model.letheon")
    loaded = letheon.load(tmp_path / "model.letheon")
    assert loaded.digest() == model.digest()
    assert loaded.forget(["p8"]).n_rows == model.forget(["p8"]).n_rows
    assert loaded.digest() == model.digest()


def test_the_number_of_threads_does_not_matter() -> None:
    X, y, ids = rows()
    digests = {make_model(n_jobs=jobs).fit(X, y, ids=ids).digest() for jobs in (1, 2, 3)}
    assert len(digests) == 1


def test_parts_of_a_large_table_are_summed_by_several_threads() -> None:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 50, (70_000, 2)).astype(np.float32)
    y = X[:, 0] + rng.integers(0, 9, len(X)) > 30
    for weights in (None, {True: 2, False: 1}):
        model = make_model(n_estimators=2, skeleton_people=100, class_weight=weights)
        digests = {model.set_params(n_jobs=jobs).fit(X, y).digest() for jobs in (1, 2)}
        assert len(digests) == 1


@pytest.mark.parametrize("kind", [BoostingClassifier, BoostingRegressor])
def test_values_are_computed_again_from_every_round(kind: Any) -> None:
    """Scores before every 16th round are kept, and a value of any round can be the first."""
    n_rounds, n = 40, 1500
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 3))
    y = (X[:, 0] + rng.normal(size=n) > 0).astype(int)
    parameters: dict[str, Any] = {"n_estimators": n_rounds, "skeleton_people": 60, "n_chains": 1}
    parameters |= {"max_leaves": 8, "step_bits": 6, "random_state": 0, "min_samples_leaf": 1}
    model = kind(**parameters).fit(X, y, ids=range(n))
    learned = kind(**parameters).fit(X, y, ids=range(n))
    quiet = [row for row in range(n - 100, n) if learned.forget_cost([row]).share == 0]
    learned.forget(quiet[:3])
    for row in quiet[:3]:  # no value changes: they walk through all rounds
        learned.learn(X[[row]], y[[row]], ids=[row])
    held = list(range(n))
    first_rounds = set()
    for person in range(n - 100):
        cost = model.forget_cost([person])
        first = n_rounds - cost.rounds
        if cost.chains or first in first_rounds or first < 15 or cost.rounds == 0:
            continue
        first_rounds.add(first)
        held.remove(person)
        for each in (model, learned):
            each.forget([person])
        fresh = kind(**parameters).fit(X[held], y[held], ids=held)
        assert model.digest() == fresh.digest()
        assert learned.digest() == fresh.digest()
    assert {16, 32} & first_rounds
    assert len(first_rounds) > 8


@pytest.mark.parametrize("seed", range(12))
def test_a_person_with_many_rows_moves_the_mean(seed: int) -> None:
    y = np.concatenate([np.repeat([0.0, 10.0], 50), np.full(40, 10.0)])
    X = np.arange(140.0)[:, None] % 7
    ids = np.minimum(np.arange(140), 100)
    model = BoostingRegressor(**SMALL, random_state=seed).fit(X, y, ids=ids)
    model.forget([100])
    fresh = BoostingRegressor(**SMALL, random_state=seed).fit(X[:100], y[:100], ids=ids[:100])
    assert model.digest() == fresh.digest()


def test_a_share_of_one_means_all_columns() -> None:
    X, y, ids = rows()
    digests = {make_model(colsample=share).fit(X, y, ids=ids).digest() for share in (1, 1.0)}
    assert len(digests) == 1


def test_weights_are_copies() -> None:
    X, y, ids = rows()
    weights = np.random.default_rng(1).integers(0, 4, len(y))
    weighted = make_model().fit(X, y, ids=ids, sample_weight=weights)
    copies = make_model().fit(
        X.repeat(weights, axis=0), y.repeat(weights), ids=np.repeat(ids, weights)
    )
    np.testing.assert_array_equal(weighted.predict_proba(X), copies.predict_proba(X))


def test_it_predicts_well() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    model = BoostingClassifier(random_state=0, min_samples_leaf=3).fit(X[::2], y[::2])
    assert model.score(X[1::2], y[1::2]) > 0.93
    X, y = load_iris(return_X_y=True)
    model = BoostingClassifier(random_state=0, min_samples_leaf=2, n_chains=1).fit(X[::2], y[::2])
    assert model.score(X[1::2], y[1::2]) > 0.9
    X, y = load_diabetes(return_X_y=True)
    forest = HistGradientBoostingRegressor(max_iter=30).fit(X[::2], y[::2])
    own = BoostingRegressor(n_estimators=30, learning_rate=0.1, random_state=0).fit(X[::2], y[::2])
    assert r2_score(y[1::2], own.predict(X[1::2])) > forest.score(X[1::2], y[1::2]) - 0.1


def test_poisson_loss_predicts_means() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 3))
    mean = np.exp(1 + X[:, 0])
    y = rng.poisson(mean).astype(float)
    model = BoostingRegressor(loss="poisson", n_estimators=40, random_state=0).fit(X, y)
    assert abs(model.predict(X).mean() / y.mean() - 1) < 0.05
    assert np.corrcoef(np.log(model.predict(X)), X[:, 0])[0, 1] > 0.9
    with pytest.raises(ValueError, match="negative"):
        model.fit(X, -y)


def test_the_last_stage_is_the_prediction() -> None:
    X, y, ids = rows()
    model = make_model().fit(X, y, ids=ids)
    stages = list(model.staged_predict_proba(X))
    assert len(stages) == model.n_estimators
    np.testing.assert_array_equal(stages[-1], model.predict_proba(X))
    assert log_loss(y, stages[-1]) < log_loss(y, stages[0])
    np.testing.assert_array_equal(list(model.staged_predict(X))[-1], model.predict(X))


def test_importances_name_the_columns_that_matter() -> None:
    X, y, ids = rows(600)
    values = make_model().fit(X, y, ids=ids).feature_importances_
    assert values.sum() == pytest.approx(1)
    assert set(values.argsort()[-2:]) == {0, 3}


@pytest.mark.parametrize("loss", ["absolute_error", "quantile"])
def test_losses_whose_leaves_are_no_sums_are_refused(loss: str) -> None:
    with pytest.raises(ValueError, match="not a function of sums over rows"):
        BoostingRegressor(loss=loss).fit([[0.0], [1.0]], [0.0, 1.0])


def test_other_losses_are_refused() -> None:
    with pytest.raises(ValueError, match="'gamma'; expected 'squared_error' or 'poisson'"):
        BoostingRegressor(loss="gamma").fit([[0.0], [1.0]], [0.0, 1.0])


def test_presets() -> None:
    assert BoostingClassifier.preset("fast", n_jobs=2).get_params()["n_jobs"] == 2
    assert BoostingRegressor.preset("accurate").max_bins > BoostingRegressor.preset("fast").max_bins
    with pytest.raises(ValueError, match="unknown preset"):
        BoostingClassifier.preset("quick")


@pytest.mark.parametrize(("n_columns", "expected"), [(5, 5), (40, 32), (128, 32), (200, 50)])
def test_trees_of_the_fast_preset_use_a_quarter_of_many_columns(
    n_columns: int, expected: int
) -> None:
    X = np.random.default_rng(0).normal(size=(30, n_columns))
    y = X[:, 0] > 0
    model = BoostingClassifier.preset("fast", random_state=0).fit(X, y)
    assert model.boosting_.settings.tree_columns == expected
    share = expected / n_columns
    same = BoostingClassifier.preset("fast", random_state=0, colsample=share).fit(X, y)
    assert same.digest() == model.digest()


def test_categorical_columns_by_name_number_or_mask() -> None:
    pandas = pytest.importorskip("pandas")
    X, y, ids = rows()
    frame = pandas.DataFrame(X, columns=["a", "b", "c", "d"])
    digests = {
        make_model(categorical_features=given).fit(frame, y, ids=ids).digest()
        for given in (["d"], [3], [False, False, False, True])
    }
    assert len(digests) == 1
    with pytest.raises(ValueError, match=r"categorical_features=\['z'\]"):
        make_model(categorical_features=["z"]).fit(frame, y)
