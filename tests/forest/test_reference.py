"""The reference itself: its pieces against textbook formulas, its trees against their own rule."""

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from letheon import seeds as product_seeds
from tests.forest import reference
from tests.forest.reference import Node, ReferenceSettings, grow_forest

counts = st.lists(st.integers(0, 10**6), min_size=1, max_size=5)
both_sides = st.tuples(counts, counts).filter(lambda pair: all(map(sum, pair)))
whole_tree = ReferenceSettings("gini", 1, math.inf, 99, None, 0, 2, 1)


@given(st.integers(1, 2**31 - 1))
def test_the_logarithm_is_cut_off_after_24_places(x: int) -> None:
    exact = math.log2(x) * 2**24
    # Rounding down at each of 24 squarings costs a few units of the last place.
    assert exact - 4 <= reference.lg24(x) <= exact + 1e-6


@pytest.mark.parametrize("e", range(31))
def test_the_logarithm_of_a_power_of_two_is_exact(e: int) -> None:
    assert reference.lg24(2**e) == e * 2**24


@given(both_sides)
def test_entropy_is_the_information_that_is_left(sides: tuple[list[int], list[int]]) -> None:
    left, right = sides
    score = reference.entropy(left, right, sum(left), sum(right)) / 2**24
    bits = sum(c * math.log2(c / sum(side)) for side in sides for c in side if c)
    assert score == pytest.approx(bits, abs=1e-6 * (sum(left) + sum(right)))


@given(both_sides)
def test_gini_is_the_weighted_impurity_turned_round(sides: tuple[list[int], list[int]]) -> None:
    left, right = sides
    score = reference.gini(left, right, sum(left), sum(right))
    purity = sum(Fraction(sum(c * c for c in side), sum(side)) for side in sides)
    assert score == pytest.approx(float(purity), rel=1e-15)


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**32 - 1), unique=True))
def test_no_two_values_share_a_priority(key: int, bits: list[int]) -> None:
    assert len({reference.mix32(key, b) for b in bits}) == len(bits)


def test_every_order_of_neighbouring_values_is_equally_likely() -> None:
    rng = np.random.default_rng(0)
    bits = [reference.bits_of(value) for value in (0.0, 1.0, 2.0, 3.0)]
    orders = Counter(
        tuple(np.argsort([reference.mix32(key, b) for b in bits]))
        for key in rng.integers(0, 2**64, 20_000, dtype=np.uint64).tolist()
    )
    assert len(orders) == 24
    assert chisquare(list(orders.values())).pvalue > 0.001


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_mix64_is_the_packages(key: int, bits: int) -> None:
    assert reference.mix64(key, bits) == product_seeds.mix64(key, np.array([bits], np.uint64))[0]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_fixed_point_keeps_31_bits_of_the_greatest(values: list[float]) -> None:
    y = np.array(values)
    scale = reference.scale_of(y, None)
    for value, q in zip(values, reference.fixed_point(y, scale).tolist(), strict=True):
        assert abs(Fraction(q) / Fraction(2) ** (31 - scale) - Fraction(value)) <= Fraction(2) ** (
            scale - 32
        )


def test_fixed_point_rounds_half_to_even() -> None:
    y = np.array([0.5, 2.5, 3.5, -2.5, 2**30 + 0.5]) / 2**31
    assert reference.fixed_point(y, 0).tolist() == [0, 2, 4, -2, 2**30]


def table(n: int = 60, seed: int = 0, missing: float = 0.0) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    X = np.round(rng.normal(size=(n, 4)), 1)
    X[rng.random(X.shape) < missing] = np.nan
    y = (np.nan_to_num(X[:, 0]) + rng.normal(size=n) > 0).astype(int)
    return X, y, np.ones(n, dtype=np.int64), list(range(n))


def impurity(root: Node) -> float:
    leaves = [node for node in root.preorder() if node.split is None]
    return sum(leaf.n - sum(c * c for c in leaf.counts) / leaf.n for leaf in leaves) / root.n


def test_a_stump_over_all_values_is_as_good_as_scikit_learns() -> None:
    X, y, weight, ids = table()
    stump = grow_forest(X, y, weight, ids, whole_tree._replace(max_depth=1), 0).trees[0]
    theirs = DecisionTreeClassifier(max_depth=1).fit(X, y)
    leaves = theirs.apply(X)
    best = sum(np.mean(leaves == leaf) * theirs.tree_.impurity[leaf] for leaf in np.unique(leaves))
    assert impurity(stump) == pytest.approx(best)


def test_a_regression_stump_is_as_good_as_scikit_learns() -> None:
    X, _, weight, ids = table()
    y = X[:, 1] ** 2 + X[:, 0]
    settings = whole_tree._replace(criterion="squared_error", max_depth=1)
    ours = grow_forest(X, y, weight, ids, settings, 0).predict_raw(X)[:, 0]
    theirs = DecisionTreeRegressor(max_depth=1).fit(X, y).predict(X)
    assert np.mean((ours - y) ** 2) == pytest.approx(np.mean((theirs - y) ** 2), rel=1e-6)


def test_a_whole_tree_knows_every_row_by_heart() -> None:
    X, y, weight, ids = table(40, missing=0.1)
    X[:, 3] = np.arange(40)
    forest = grow_forest(X, y, weight, ids, whole_tree, 1)
    np.testing.assert_array_equal(forest.predict_raw(X).argmax(axis=1), y)


@given(st.integers(0, 2**32), st.sampled_from((0.0, 0.3)), st.integers(0, 3))
def test_the_order_of_rows_does_not_matter(seed: int, missing: float, random_depth: int) -> None:
    X, y, weight, ids = table(20, seed % 1000, missing)
    order = np.random.default_rng(seed).permutation(20)
    settings = whole_tree._replace(random_depth=random_depth, n_thresholds=3, subsample=0.7)
    straight = grow_forest(X, y, weight, ids, settings, seed)
    mixed = grow_forest(X[order], y[order], weight, [ids[i] for i in order], settings, seed)
    assert straight.trees == mixed.trees


@given(st.integers(0, 1000), st.sampled_from(("gini", "entropy", "squared_error")))
def test_a_weight_is_a_number_of_copies(seed: int, criterion: str) -> None:
    X, y, _, ids = table(20, seed, 0.2)
    weight = np.random.default_rng(seed).integers(0, 4, 20)
    again = np.repeat(np.arange(20), weight)
    settings = whole_tree._replace(criterion=criterion, max_features=2, min_samples_leaf=2)
    weighted = grow_forest(X, y, weight, ids, settings, seed)
    copied = grow_forest(X[again], y[again], np.ones_like(again), again.tolist(), settings, seed)
    assert weighted.trees == copied.trees


@given(st.integers(0, 1000), st.integers(0, 3), st.integers(1, 4))
def test_every_node_is_the_sum_of_its_children(seed: int, random_depth: int, least: int) -> None:
    X, y, weight, ids = table(30, seed, 0.2)
    settings = whole_tree._replace(random_depth=random_depth, min_samples_leaf=least)
    for node in grow_forest(X, y, weight, ids, settings, seed).trees[0].preorder():
        if node.split is not None:
            assert node.left is not None
            assert node.right is not None
            assert min(node.left.n, node.right.n) >= least
            assert node.n == node.left.n + node.right.n
            pairs = zip(node.left.counts, node.right.counts, strict=True)
            assert node.counts == tuple(map(sum, pairs))


def test_a_random_threshold_is_uniform_below_the_greatest_value() -> None:
    X = np.array([[0.0], [3.0], [10.0]])
    settings = whole_tree._replace(n_trees=2000, max_depth=1, random_depth=1)
    forest = grow_forest(X, np.array([0, 1, 0]), np.ones(3, int), [1, 2, 3], settings, 0)
    thresholds = np.array([tree.split.threshold for tree in forest.trees if tree.split])
    assert len(thresholds) == 2000
    assert thresholds.min() >= 0
    assert thresholds.max() < 10
    shares, _ = np.histogram(thresholds, bins=5, range=(0, 10))
    np.testing.assert_allclose(shares / 2000, 0.2, atol=0.03)


def test_a_subsample_takes_its_share_of_people() -> None:
    share = np.mean([reference.in_tree(3, t, i, 0.1) for t in range(10) for i in range(1000)])
    assert share == pytest.approx(0.1, abs=0.01)
