"""Frames with categories, sparse rows, fractional weights and weights of classes."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given
from numpy.typing import NDArray

from letheon import DaREForestClassifier, DaREForestRegressor, load, save
from letheon.exceptions import CorruptFileError
from letheon.forest._model import ForestModel
from letheon.forest._weights import ClassBalance
from tests.forest.people import examples, lucks, pick

TOWNS = ["Oslo", "Rome", "Lima", "Ulm", "Bern"]


def some_rows(rng: np.random.Generator, n: int, *, frame: str = "pandas") -> Any:
    """Return a frame with numbers, categories, flags and rare categories; some are missing."""
    towns = [TOWNS[i] if i < 5 else None for i in rng.geometric(0.4, n) - 1]
    rare = [f"street {i}" if i else None for i in rng.integers(0, n + 2, n)]
    columns = {
        "age": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n).round(1)),
        "town": towns,
        "flag": rng.random(n) < 0.5,
        "street": rare,
    }
    if frame == "polars":
        return pl.DataFrame(columns).with_columns(pl.col("town").cast(pl.Categorical))
    return pd.DataFrame(columns).astype({"town": "category"})


def labels_of(rng: np.random.Generator, X: Any) -> NDArray[Any]:
    is_north = np.array([town in ("Oslo", "Bern") for town in X["town"].to_list()])
    return np.where(rng.random(len(is_north)) < 0.2, 2, is_north.astype(int))


def take(X: Any, rows: Any) -> Any:
    return X[rows] if isinstance(X, pl.DataFrame) else X.iloc[rows]


def any_model(rng: np.random.Generator, seed: int) -> Any:
    common: dict[str, Any] = {
        "n_estimators": 3,
        "max_depth": pick(rng, None, 4),
        "random_depth": pick(rng, 0, 0, 2),
        "n_thresholds": pick(rng, None, 2, 25),
        "rebuild": pick(rng, "lazy", "eager"),
        "weight_bits": pick(rng, 4, 8),
        "random_state": seed,
    }
    if rng.random() < 0.3:
        return DaREForestRegressor(**common)
    weights = pick(rng, None, "balanced", {0: 1, 1: 2.5, 2: 0.25})
    return DaREForestClassifier(class_weight=weights, **common)


@examples(40)
@given(luck=lucks)
def test_forget_and_learn_equal_a_fresh_fit(luck: int) -> None:
    rng = np.random.default_rng(luck)
    X = some_rows(rng, 60, frame=pick(rng, "pandas", "polars"))
    y, weight = labels_of(rng, X), rng.integers(1, 40, 60) / 16
    ids = rng.integers(0, 30, 60)
    held = np.arange(60) < 45
    model = any_model(rng, luck)
    model.fit(take(X, held.nonzero()[0]), y[held], ids=ids[held], sample_weight=weight[held])
    for _ in range(4):
        people = np.unique(ids[held])
        gone = rng.choice(people, min(len(people) - 1, int(rng.integers(1, 8))), replace=False)
        model.forget(gone)
        held &= ~np.isin(ids, gone)
        new = ~held & (rng.random(60) < 0.2)
        if new.any():
            rows = new.nonzero()[0]
            model.learn(take(X, rows), y[new], ids=ids[new], sample_weight=weight[new])
            held |= new
    order = rng.permutation(held.nonzero()[0])
    fresh = type(model)(**model.get_params())
    fresh.fit(take(X, order), y[order], ids=ids[order], sample_weight=weight[order])
    np.testing.assert_array_equal(model.predict(X), fresh.predict(X))
    assert model.digest() == fresh.digest()
    assert model.forest_.categories.names == fresh.forest_.categories.names


def make(**params: Any) -> Any:
    rng = np.random.default_rng(3)
    X = some_rows(rng, 90)
    model = DaREForestClassifier(n_estimators=4, max_depth=5, random_state=1, **params)
    return model.fit(X, labels_of(rng, X)), X


def test_a_category_without_rows_is_in_no_file(tmp_path: Path) -> None:
    model, X = make()
    gone = np.flatnonzero(X["town"] == "Bern")
    save(model, tmp_path / "before.letheon")
    assert b"Bern" in (tmp_path / "before.letheon").read_bytes()
    model.forget(gone)
    save(model, tmp_path / "after.letheon")
    assert b"Bern" not in (tmp_path / "after.letheon").read_bytes()
    texts = [tree for t in range(4) if (tree := model.tree_(t).to_text())]
    assert not any("Bern" in text for text in texts)
    assert any("town == Oslo" in text for text in texts)


def test_unseen_categories_follow_the_other_branch() -> None:
    model, X = make()
    unseen = X[:1].astype({"town": object}).assign(town="Atlantis")
    tree = model.tree_(0)
    node = 0
    while tree.kind[node]:
        value = unseen.iloc[0, int(tree.feature[node])]
        name = tree.name_of(int(tree.feature[node]))
        if name in ("town", "street") and value == value and value is not None:
            is_left = tree.rule(node) == f"{name} == {value}"
        else:
            is_left = (
                tree.missing_left[node]
                if value is None or value != value
                else value <= tree.threshold[node]
            )
        node = int((tree.left if is_left else tree.right)[node])
    assert model.apply(unseen)[0, 0] == node


def test_files_keep_categories_and_weights(tmp_path: Path) -> None:
    model, X = make(class_weight="balanced", weight_bits=3)
    save(model, tmp_path / "model.letheon")
    twin = load(tmp_path / "model.letheon")
    assert twin.digest() == model.digest()
    np.testing.assert_array_equal(twin.predict_proba(X), model.predict_proba(X))
    assert twin.tree_(1).to_text() == model.tree_(1).to_text()
    for each in (model, twin):
        each.forget([4, 5, 6])
    assert twin.digest() == model.digest()


@pytest.mark.parametrize("part", ["texts", "columns", "names"])
def test_damaged_categories_are_refused(part: str) -> None:
    model, _ = make()
    state = model.forest_._to_state()
    changed = {"texts": [["x"], ["y"]], "columns": [0, 1], "names": ["a", "b"]}[part]
    state["categories"] = state["categories"] | {part: changed}
    with pytest.raises((ValueError, CorruptFileError), match="categor"):
        ForestModel._from_state(state)


def test_the_kinds_of_columns_are_checked() -> None:
    model, X = make()
    before = model.digest()
    numbers = X.assign(town=1.5)
    for change in (model.predict, lambda rows: model.learn(rows, np.zeros(90), ids=range(90))):
        with pytest.raises(ValueError, match="column 'town' has dtype"):
            change(numbers)
        with pytest.raises(ValueError, match="feature names"):
            change(X[["town", "age", "flag", "street"]])
        with pytest.raises(ValueError, match="'age' are not numeric"):
            change(X.assign(age="old"))
    assert model.digest() == before


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_array, sp.coo_matrix])
def test_sparse_rows_give_the_model_of_dense_rows(kind: Any) -> None:
    rng = np.random.default_rng(0)
    X = np.where(rng.random((80, 6)) < 0.7, 0, rng.integers(-3, 300, (80, 6)))
    X = X.astype(float)
    X[::9, 2] = np.nan
    y, weight = rng.integers(0, 3, 80), rng.integers(0, 3, 80)
    dense = DaREForestClassifier(n_estimators=3, random_state=0)
    sparse = DaREForestClassifier(n_estimators=3, random_state=0)
    for model, rows in ((dense, X), (sparse, kind(X))):
        first, rest = np.arange(60), np.arange(60, 80)
        pieces = [
            rows[i] if isinstance(rows, np.ndarray) else rows.tocsr()[i] for i in (first, rest)
        ]
        model.fit(pieces[0], y[:60], sample_weight=weight[:60])
        model.forget(model.ids_[3:9])
        model.learn(pieces[1], y[60:], ids=range(100, 120))
    assert sparse.digest() == dense.digest()
    np.testing.assert_array_equal(sparse.predict_proba(kind(X)), dense.predict_proba(X))
    np.testing.assert_array_equal(sparse.apply(kind(X)), dense.apply(X))


def test_sparse_rows_are_predicted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("letheon.forest._model._BLOCK_CELLS", 20)
    X = np.random.default_rng(0).normal(size=(50, 4))
    model = DaREForestRegressor(n_estimators=2, random_state=0).fit(sp.csr_array(X), X[:, 0])
    np.testing.assert_array_equal(model.predict(sp.csc_array(X)), model.predict(X))


def test_infinity_in_sparse_rows_is_refused() -> None:
    X = np.eye(5)
    X[3, 2] = 1e300
    with pytest.raises(ValueError, match="row 3, column 2"):
        DaREForestRegressor().fit(sp.csr_array(X), np.arange(5.0))


def test_whole_weights_grow_the_same_trees_with_bits() -> None:
    rng = np.random.default_rng(0)
    X, y, weight = rng.normal(size=(90, 3)), rng.integers(0, 3, 90), rng.integers(1, 4, 90)
    plain, fine = (
        DaREForestClassifier(n_estimators=3, min_samples_leaf=4, weight_bits=bits, random_state=0)
        for bits in (0, 5)
    )
    plain.fit(X, y, sample_weight=weight)
    fine.fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(fine.predict_proba(X), plain.predict_proba(X))
    assert fine.tree_(0).to_text() == plain.tree_(0).to_text()


@pytest.mark.parametrize("wrong", [[-0.5], [0.001], ["1"]])
def test_wrong_fractions_are_refused(wrong: Any) -> None:
    X = np.arange(4.0)[:, None]
    with pytest.raises(ValueError, match="sample_weight contains"):
        DaREForestClassifier(weight_bits=4).fit(X, [0, 1, 0, 1], sample_weight=[*wrong * 4])


def test_a_fraction_that_is_too_small_asks_for_more_bits() -> None:
    X, y = np.arange(4.0)[:, None], [0, 1, 0, 1]
    message = r"0 or more than 0\.03125, .*use more than weight_bits=4"
    with pytest.raises(ValueError, match=message):
        DaREForestClassifier(weight_bits=4).fit(X, y, sample_weight=[1, 1, 1, 0.03])
    DaREForestClassifier(weight_bits=4).fit(X, y, sample_weight=[1, 1, 1, 0.032])


def test_a_class_weight_is_a_weight_of_rows() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 3)), rng.integers(0, 3, 90)
    model = DaREForestClassifier(n_estimators=3, class_weight={0: 3, 1: 1, 2: 0.5}, random_state=0)
    same = DaREForestClassifier(n_estimators=3, weight_bits=8, random_state=0)
    model.fit(X, y)
    same.fit(X, y, sample_weight=np.array([3, 1, 0.5])[y])
    np.testing.assert_array_equal(model.predict_proba(X), same.predict_proba(X))


@pytest.mark.parametrize("wrong", ["heavy", {0: 0}, {0: -1}, {0: 1e9}, {0: "1"}, 3])
def test_wrong_class_weights_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="class_weight"):
        DaREForestClassifier(class_weight=wrong).fit([[0.0], [1.0]], [0, 1])


def test_balanced_weights_are_near_the_inverse_of_frequency() -> None:
    labels = np.arange(3)
    logs = []
    for seed in range(400):
        counts = np.array([900, 80, 20])
        factors = ClassBalance.from_counts("balanced", seed, labels, counts).factors
        logs.append(
            [math.log2(f / 256 / (1000 / 3 / n)) for f, n in zip(factors, counts, strict=True)]
        )
    assert np.abs(np.array(logs)).max() < 0.26
    assert np.abs(np.mean(logs, axis=0)).max() < 0.03


def test_the_receipt_says_that_balanced_weights_have_changed() -> None:
    X = np.random.default_rng(0).normal(size=(120, 3))
    y = np.arange(120) % 2
    model = DaREForestClassifier(n_estimators=3, class_weight="balanced", random_state=0).fit(X, y)
    n_changed = 0
    for person in range(1, 101, 2):
        cost = model.forget_cost([person])
        receipt = model.forget([person])
        is_changed = receipt.rebuilt.get("trees") == 3
        assert is_changed == (cost.share == 1.0 and cost.subtrees == 3)
        assert receipt.work == 1.0 or not is_changed
        n_changed += is_changed
    assert 4 <= n_changed <= 25
    fresh = DaREForestClassifier(n_estimators=3, class_weight="balanced", random_state=0)
    left = model.ids_
    assert fresh.fit(X[left], y[left], ids=left).digest() == model.digest()


def test_a_failed_change_restores_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = np.arange(60) % 3
    model = DaREForestClassifier(n_estimators=2, class_weight="balanced", random_state=0).fit(X, y)
    before = model.digest()
    bad = np.full((30, 2), 1e300)
    with pytest.raises(ValueError, match="infinity"):
        model.learn(bad, np.zeros(30, int), ids=range(100, 130))
    assert model.digest() == before
    assert model.forest_.balance is not None
    assert model.forest_.balance.counts.tolist() == [20, 20, 20]
