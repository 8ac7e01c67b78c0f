"""Fractional weights and weights of classes of the boosted models."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray
from sklearn.base import clone

from letheon import BoostingClassifier, BoostingRegressor, DaREForestClassifier, load, save
from letheon.boosting._model import BoostingModel
from tests.forest.people import examples, lucks, pick

SMALL: dict[str, Any] = {"n_estimators": 6, "max_leaves": 8, "n_chains": 2, "random_state": 0}


def make_rows(rng: np.random.Generator, n: int = 90) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows with missing values, of three classes; the third is rare."""
    X = rng.normal(size=(n, 3)).round(1)
    y = (X[:, 0] > 0).astype(int)
    y[rng.random(n) < 0.08] = 2
    X[rng.random(X.shape) < 0.1] = np.nan
    return X, y


def any_model(rng: np.random.Generator, seed: int) -> Any:
    common = SMALL | {
        "min_samples_leaf": pick(rng, 1, 3),
        "skeleton_people": pick(rng, 6, 200),
        "l2_regularization": pick(rng, 0, 1.0),
        "rebuild": pick(rng, "lazy", "eager"),
        "weight_bits": pick(rng, 4, 8, 16),
        "random_state": seed,
    }
    kind = pick(rng, "squared_error", "poisson", None, None, None)
    if kind is not None:
        return BoostingRegressor(loss=kind, **common)
    weights = pick(rng, None, "balanced", "balanced", {0: 1, 1: 2.5, 2: 0.25})
    common["weight_bits"] = pick(rng, 4, 8)
    return BoostingClassifier(class_weight=weights, **common)


@examples(400)
@given(luck=lucks)
def test_forget_and_learn_equal_a_fresh_fit(luck: int) -> None:
    rng = np.random.default_rng(luck)
    X, y = make_rows(rng, 60)
    weight = rng.integers(1, 40, 60) / 16
    ids = rng.integers(0, 30, 60)
    held = np.arange(60) < 45
    model = any_model(rng, luck)
    model.fit(X[held], y[held], ids=ids[held], sample_weight=weight[held])
    for _ in range(4):
        people = np.unique(ids[held])
        if rng.random() < 0.3:  # a class may vanish
            gone = np.unique(ids[held & (y == rng.integers(0, 3))])[: len(people) - 1]
        else:
            gone = rng.choice(people, min(len(people) - 1, int(rng.integers(1, 8))), replace=False)
        model.forget(gone)
        held &= ~np.isin(ids, gone)
        new = ~held & (rng.random(60) < 0.2)
        if new.any():
            model.learn(X[new], y[new], ids=ids[new], sample_weight=weight[new])
            held |= new
    order = rng.permutation(held.nonzero()[0])
    fresh = type(model)(**model.get_params())
    fresh.fit(X[order], y[order], ids=ids[order], sample_weight=weight[order])
    np.testing.assert_array_equal(model._compute_scores(X).values, fresh._compute_scores(X).values)
    assert model.digest() == fresh.digest()


def test_whole_weights_grow_the_same_trees_with_bits() -> None:
    rng = np.random.default_rng(0)
    X, y = make_rows(rng)
    weight = rng.integers(1, 4, len(y))
    plain, fine = (
        BoostingClassifier(**SMALL, min_samples_leaf=4, weight_bits=bits).fit(
            X, y, sample_weight=weight
        )
        for bits in (0, 5)
    )
    np.testing.assert_array_equal(fine.predict_proba(X), plain.predict_proba(X))
    numbers = [BoostingRegressor(**SMALL, weight_bits=bits).fit(X, y) for bits in (0, 16)]
    np.testing.assert_array_equal(numbers[0].predict(X), numbers[1].predict(X))


@pytest.mark.parametrize("wrong", [[-0.5], [0.001], ["1"]])
def test_wrong_fractions_are_refused(wrong: Any) -> None:
    X = np.arange(4.0)[:, None]
    with pytest.raises(ValueError, match="sample_weight contains"):
        BoostingClassifier(weight_bits=4).fit(X, [0, 1, 0, 1], sample_weight=[*wrong * 4])


def test_the_largest_weights() -> None:
    X, y = make_rows(np.random.default_rng(0), 8)
    weight = np.full(8, 2.0**12 - 1)
    model = BoostingRegressor(**SMALL, weight_bits=16, min_samples_leaf=1)
    model.fit(X, y, ids=range(8), sample_weight=weight)
    assert np.isfinite(model.predict(X)).all()
    with pytest.raises(ValueError, match="sum of sample_weight"):
        model.fit(X, y, sample_weight=weight + 2)
    model.forget([3])
    keep = np.arange(8) != 3
    fresh = BoostingRegressor(**SMALL, weight_bits=16, min_samples_leaf=1)
    fresh.fit(X[keep], y[keep], ids=np.flatnonzero(keep), sample_weight=weight[keep])
    assert model.digest() == fresh.digest()


def test_a_class_weight_is_a_weight_of_rows() -> None:
    X, y = make_rows(np.random.default_rng(0))
    model = BoostingClassifier(**SMALL, class_weight={0: 3, 1: 1, 2: 0.5}).fit(X, y)
    same = BoostingClassifier(**SMALL, weight_bits=8)
    same.fit(X, y, sample_weight=np.array([3, 1, 0.5])[y])
    np.testing.assert_array_equal(model.predict_proba(X), same.predict_proba(X))


@pytest.mark.parametrize("wrong", ["heavy", {0: 0}, {0: -1}, {0: 1e9}, {0: "1"}, 3])
def test_wrong_class_weights_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="class_weight"):
        BoostingClassifier(class_weight=wrong).fit([[0.0], [1.0]], [0, 1])


@pytest.mark.parametrize("kind", [BoostingClassifier, DaREForestClassifier])
def test_each_class_needs_a_weight_but_each_weight_no_class(kind: Any) -> None:
    """A class may leave, so a fresh fit of the rows that remain accepts the same weights."""
    X, y = np.arange(40.0)[:, None], np.array(["no", "yes"] * 19 + ["rare", "gone"])
    weights = {"no": 1, "yes": 2, "rare": 10}
    with pytest.raises(ValueError, match=r"no weight for 1 of the classes in y: \['gone'\]"):
        kind(class_weight=weights).fit(X, y)
    model = kind(class_weight=weights, n_estimators=2, random_state=0)
    model.fit(X[:39], y[:39], ids=range(39)).forget([38])
    fresh = clone(model).fit(X[:38], y[:38], ids=range(38))
    assert model.digest() == fresh.digest()
    with pytest.raises(ValueError, match="use 1 for classes"):
        model.learn(X[38:], y[38:], ids=[38, 39])
    assert model.digest() == fresh.digest()
    model.learn(X[38:39], y[38:39], ids=[38])
    assert model.digest() == clone(model).fit(X[:39], y[:39], ids=range(39)).digest()


def test_balanced_weights_are_rounded_with_the_seed() -> None:
    y = np.repeat([0, 1, 2], [60, 30, 6])
    exact = len(y) / (3 * np.bincount(y))
    factors = []
    for seed in range(40):
        model = BoostingClassifier(n_estimators=1, class_weight="balanced", random_state=seed)
        balance = model.fit(np.arange(96.0)[:, None], y).boosting_.balance
        assert balance is not None
        factors.append(balance.factors / 256)
    logs = np.log2(factors / exact)
    assert (abs(logs) < 0.26).all()
    assert (abs(logs.mean(axis=0)) < 0.08).all()
    assert all(len(set(column)) > 1 for column in np.array(factors).T.tolist())


def test_balanced_weights_find_rare_classes() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 2))
    y = (X[:, 0] + rng.normal(size=2000) > 2.5).astype(int)
    recalls = [
        BoostingClassifier(**SMALL, class_weight=weight).fit(X, y).predict(X)[y == 1].mean()
        for weight in (None, "balanced")
    ]
    assert recalls[1] > recalls[0] + 0.3


def test_the_receipt_says_that_balanced_weights_have_changed() -> None:
    X = np.random.default_rng(0).normal(size=(120, 3))
    y = np.arange(120) % 2
    settings = SMALL | {"skeleton_people": 4, "rebuild": "eager"}  # no deferred work is counted
    model = BoostingClassifier(**settings, class_weight="balanced").fit(X, y)
    n_changed = 0
    for person in range(1, 101, 2):
        before = model.boosting_.balance
        cost = model.forget_cost([person])
        receipt = model.forget([person])
        after = model.boosting_.balance
        assert before is not None
        assert after is not None
        is_changed = bool((before.factors != after.factors).any())
        assert receipt.rebuilt == {
            "chains": cost.chains,
            "trees": cost.trees,
            "rounds": cost.rounds,
        }
        assert receipt.work == 1.0 or not is_changed
        n_changed += is_changed
    assert 4 <= n_changed <= 25
    left = model.ids_
    fresh = BoostingClassifier(**settings, class_weight="balanced")
    assert fresh.fit(X[left], y[left], ids=left).digest() == model.digest()


def test_a_failed_change_restores_the_weights() -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = np.arange(60) % 3
    model = BoostingClassifier(**SMALL, class_weight="balanced").fit(X, y)
    before = model.digest()
    bad = np.full((30, 2), 1e300)
    with pytest.raises(ValueError, match="infinity"):
        model.learn(bad, np.zeros(30, int), ids=range(100, 130))
    assert model.digest() == before
    assert model.boosting_.balance is not None
    assert model.boosting_.balance.counts.tolist() == [20, 20, 20]


def test_files_keep_weights(tmp_path: Path) -> None:
    X, y = make_rows(np.random.default_rng(0))
    model = BoostingClassifier(**SMALL, class_weight="balanced", weight_bits=3)
    model.fit(X, y, ids=range(90), sample_weight=np.arange(90) % 7 / 4 + 0.25)
    save(model, tmp_path / "model.letheon")
    twin = load(tmp_path / "model.letheon")
    assert twin.digest() == model.digest()
    assert twin.forget([7]).n_rows == model.forget([7]).n_rows
    assert twin.digest() == model.digest()


@pytest.mark.parametrize("code", [2, 2**32 - 1])
@pytest.mark.parametrize("kind", [BoostingClassifier, DaREForestClassifier])
def test_forged_codes_of_classes_need_no_memory(kind: Any, code: int) -> None:
    X, y = make_rows(np.random.default_rng(0))
    model = kind(n_estimators=2, class_weight="balanced", random_state=0).fit(X, y > 0)
    stored = model.boosting_ if kind is BoostingClassifier else model.forest_
    parts = stored._to_state()
    parts["target"][5] = code
    tracemalloc.start()
    with pytest.raises(ValueError, match="target contains a code"):
        type(stored)._from_state(parts)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_weights_that_contradict_their_class_are_refused() -> None:
    X, y = make_rows(np.random.default_rng(0))
    model = BoostingClassifier(**SMALL, class_weight={0: 3, 1: 1, 2: 1}).fit(X, y)
    state = model.boosting_._to_state()
    for weights in (state["weights"] + 1, None):
        with pytest.raises(ValueError, match="multiple of the weight of its class"):
            BoostingModel._from_state(state | {"weights": weights})
