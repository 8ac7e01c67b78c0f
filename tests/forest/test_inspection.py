"""One tree as people see it: it must be the tree that answers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from letheon import DaREForestClassifier, DaREForestRegressor
from letheon.forest import ForestTree

pd = pytest.importorskip("pandas")


def rows(seed: int, n: int = 80) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).round(1)
    X[rng.random(X.shape) < 0.1] = np.nan
    return X, rng.integers(0, 3, n)


def leaf_of(tree: ForestTree, x: NDArray[Any]) -> int:
    node = 0
    while tree.kind[node]:
        value = np.float32(x[tree.feature[node]])
        left = tree.missing_left[node] if np.isnan(value) else value <= tree.threshold[node]
        node = int(tree.left[node] if left else tree.right[node])
    return node


@given(st.integers(0, 999), st.booleans(), st.integers(0, 3))
def test_the_arrays_are_the_tree_that_answers(seed: int, classify: bool, random_depth: int) -> None:
    X, y = rows(seed)
    kind = DaREForestClassifier if classify else DaREForestRegressor
    model: Any = kind(n_estimators=2, max_depth=4, random_depth=random_depth, random_state=seed)
    model.fit(X, y).forget([0, 1, 2])
    trees = [model.tree_(t) for t in range(2)]
    leaves = np.array([[leaf_of(tree, x) for tree in trees] for x in X])
    np.testing.assert_array_equal(model.apply(X), leaves)
    predictions = [_said(tree, leaves[:, t]) for t, tree in enumerate(trees)]
    answers = model.predict_proba(X) if classify else model.predict(X)
    np.testing.assert_allclose(answers, np.mean(predictions, axis=0))


def _said(tree: ForestTree, leaves: NDArray[Any]) -> NDArray[Any]:
    weights = 1 if tree.classes is None else tree.n[leaves, None]
    predictions: NDArray[Any] = tree.value[leaves] / weights
    return predictions


@given(st.integers(0, 999))
def test_rows_of_a_node_are_those_of_its_children(seed: int) -> None:
    X, y = rows(seed)
    weights = np.arange(len(X)) % 3
    model = DaREForestClassifier(n_estimators=1, random_state=seed).fit(X, y, sample_weight=weights)
    tree = model.tree_(0)
    inner = np.flatnonzero(tree.kind)
    assert tree.n[0] == weights.sum()
    np.testing.assert_array_equal(
        tree.n[inner], tree.n[tree.left[inner]] + tree.n[tree.right[inner]]
    )
    np.testing.assert_array_equal(tree.value.sum(axis=1), tree.n)
    np.testing.assert_array_equal(tree.left[inner], inner + 1)  # preorder
    assert tree.n_nodes == 2 * tree.n_leaves - 1
    assert tree.depth == tree.depths().max() <= 10


def tiny() -> ForestTree:
    X = pd.DataFrame({"age": [20, 30, 40, 50, 60], "income": [1.0, 1.0, 1.0, 5.0, 1.0]})
    y = ["no", "no", "yes", "no", "yes"]
    model = DaREForestClassifier(n_estimators=1, n_thresholds=None, max_features=None)
    return model.fit(X, y).tree_(0)


def test_the_text_of_a_tree() -> None:
    assert tiny().to_text() == (
        "age <= 30? (5 rows, missing: no)\n"
        "|   yes: no (100%) (2 rows)\n"
        "|   no: income <= 1? (3 rows, missing: yes)\n"
        "|   |   yes: yes (100%) (2 rows)\n"
        "|   |   no: no (100%) (1 row)\n"
    )
    assert tiny().to_text(max_depth=1) == (
        "age <= 30? (5 rows, missing: no)\n"
        "|   yes: no (100%) (2 rows)\n"
        "|   no: yes (67%) (3 rows) ...\n"
    )
    assert tiny().to_text(max_depth=0) == "no (60%) (5 rows) ...\n"


def test_names_rules_and_summaries() -> None:
    tree = tiny()
    assert tree.rule(0) == "age <= 30"
    assert tree.rule(1) == ""
    assert tree.name_of(1) == "income"
    assert tree.summary(1) == "no (100%)"
    model = DaREForestRegressor(n_estimators=1, random_state=0).fit([[0.0], [1.0]], [2.0, 4.0])
    tree = model.tree_(0)
    assert tree.rule(0) == "x[0] <= 0"
    assert tree.summary(0) == "mean 3"
    assert tree.classes is None


def test_random_nodes_say_so() -> None:
    X, y = rows(0)
    model = DaREForestClassifier(n_estimators=1, max_depth=2, random_depth=1, random_state=0)
    tree = model.fit(X, y).tree_(0)
    assert tree.kind[0] == 2
    assert tree.to_text().splitlines()[0].endswith("random)")
    assert set(tree.kind[1:].tolist()) <= {0, 1}


def test_classes_are_sorted_whatever_their_codes() -> None:
    X, _ = rows(0, 40)
    model = DaREForestClassifier(n_estimators=1, random_state=0).fit(X, ["m", "z"] * 20)
    model.learn(X[:4], ["a", "b", "a", "b"], ids=[90, 91, 90, 91])
    model.forget([91])
    tree = model.tree_(0)
    assert tree.classes is not None
    assert tree.classes.tolist() == ["a", "m", "z"]
    assert tree.value[0].tolist() == [2, 20, 20]


def test_a_tree_without_rows_is_a_leaf() -> None:
    X, y = rows(0, 5)
    model = DaREForestClassifier(n_estimators=60, subsample=0.05, random_state=0).fit(X, y)
    empty = next(tree for tree in map(model.tree_, range(60)) if tree.n[0] == 0)
    assert (empty.n_nodes, empty.depth) == (1, 0)
    assert empty.to_text() == "no rows (0 rows)\n"


@pytest.mark.parametrize("number", [-1, 2])
def test_trees_that_do_not_exist(number: int) -> None:
    X, y = rows(0)
    with pytest.raises(
        IndexError, match=f"number={number} is out of range; expected a tree number from 0 to 1"
    ):
        DaREForestClassifier(n_estimators=2).fit(X, y).tree_(number)


def test_a_tree_cannot_be_changed() -> None:
    tree = tiny()
    with pytest.raises(AttributeError):
        tree.kind = tree.kind  # type: ignore[misc]


def test_sides_and_numbers_of_rows_in_words() -> None:
    tree = tiny()
    assert [tree.rows_of(node) for node in (0, 4)] == ["5 rows", "1 row"]
    assert [tree.missing_side(node) for node in (0, 2)] == ["no", "yes"]
    many = DaREForestClassifier(n_estimators=1, max_depth=0).fit(np.zeros((1200, 1)), [0] * 1200)
    assert many.tree_(0).rows_of(0) == "1,200 rows"
