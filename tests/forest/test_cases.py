"""Five cases in which DaRE as published is not exact, each with its null control.

The distribution over seeds of "fit, forget, look" is compared with that of "fit on the rest, look"
under other seeds. Every tree of a forest has its own key, so one forest of thousands of stumps is
thousands of runs. The same statistic must refuse a small model of the published method.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2_contingency, chisquare, ks_2samp

from letheon.forest import DaREForestClassifier
from tests.forest.oracle import root_split
from tests.forest.published import PublishedNode, stale_range, unreplaced_attribute

N_RUNS = 3_000
PASSES, FAILS = 1e-3, 1e-6


def homogeneity(sample: Sequence[Hashable], other_sample: Sequence[Hashable]) -> float:
    """Return the p-value of a chi-square test that both samples have one distribution."""
    first, second = Counter(sample), Counter(other_sample)
    common = [key for key in first | second if first[key] + second[key] >= 10]
    table = np.array([[count[key] for key in common] for count in (first, second)])
    rest = np.array([[len(sample)], [len(other_sample)]]) - table.sum(axis=1, keepdims=True)
    if rest.sum():
        table = np.hstack([table, rest])
    return float(chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0


def same_law(sample: Sequence[float], other_sample: Sequence[float]) -> float:
    return float(ks_2samp(sample, other_sample).pvalue)


class StumpCase:
    """A table, who leaves, and how a stump is grown on it."""

    def __init__(self, X: Any, y: Any, gone: list[int], **params: Any) -> None:
        self.X, self.y, self.gone = np.array(X, dtype=float), np.array(y), gone
        self.params = {"n_estimators": N_RUNS, "max_depth": 1, "max_features": None} | params

    @property
    def ids(self) -> NDArray[np.int64]:
        return np.arange(len(self.y))

    def fit(self, seed: int) -> DaREForestClassifier:
        model = DaREForestClassifier(**self.params, random_state=seed)
        return model.fit(self.X, self.y, ids=self.ids)

    def forgotten(self, seed: int) -> DaREForestClassifier:
        model = self.fit(seed)
        for person in self.gone:
            model.forget([person])
        return model

    def retrained(self, seed: int) -> DaREForestClassifier:
        stay = ~np.isin(self.ids, self.gone)
        model = DaREForestClassifier(**self.params, random_state=seed)
        return model.fit(self.X[stay], self.y[stay], ids=self.ids[stay])

    def published(self, seed: int, *, retrain: bool, runs: int = N_RUNS) -> list[tuple[int, float]]:
        """Return the root splits of `runs` nodes that follow the published rule."""
        rng, stay = np.random.default_rng(seed), ~np.isin(self.ids, self.gone)
        k = self.params["n_thresholds"]
        splits = []
        for _ in range(runs):
            if retrain:
                node = PublishedNode(self.X[stay], self.y[stay], k, rng)
            else:
                node = PublishedNode(self.X, self.y, k, rng)
                for row in sorted(self.gone, reverse=True):
                    node.forget(row)
            splits.append(node.best())
        return splits


def splits(model: Any) -> list[tuple[int, float]]:
    """Return attribute and threshold of every root."""
    return [root_split(model, t) for t in range(N_RUNS)]


def attributes(model: Any) -> list[int]:
    return [a for a, _ in splits(model)]


def thresholds(model: Any) -> list[float]:
    return [threshold for _, threshold in splits(model)]


_wide = np.random.default_rng(0)
WIDE = np.round(_wide.normal(size=(40, 3)), 3)

MIDDLE = StumpCase([[1], [2], [3], [4], [5], [6]], [0, 1, 1, 0, 1, 0], [2], n_thresholds=1)
CONSTANT = StumpCase(
    # Attribute 0 varies through row 0 alone; 1 is the best split, then 2, then 3.
    [
        [1, 0, 0, 0],
        *([0, 0, 0, i % 2] for i in range(5)),
        *([0, 1, i > 0, i % 2] for i in range(5)),
    ],
    [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1],
    [0],
    n_thresholds=1,
    max_features=2,
)
GREATEST = StumpCase(
    np.append(np.linspace(0, 0.76, 19), 1.0)[:, None], np.arange(20) % 2, [19], random_depth=1
)
TEN = StumpCase(
    WIDE,
    (WIDE[:, 0] + WIDE[:, 1] + _wide.normal(size=40) > 0).astype(int),
    _wide.permutation(40)[:10].tolist(),
    n_thresholds=3,
)
NEW = StumpCase([[1], [2], [3], [4], [5]], [0, 1, 1, 0, 1], [2], n_thresholds=1)

CASES: dict[str, tuple[StumpCase, Callable[[Any], list[Any]], Callable[..., float]]] = {
    "a middle value leaves": (MIDDLE, thresholds, homogeneity),
    "an attribute becomes constant": (CONSTANT, attributes, homogeneity),
    "the greatest value of a random node leaves": (GREATEST, thresholds, same_law),
    "ten of forty leave": (TEN, splits, homogeneity),
    "neighbours change": (NEW, thresholds, homogeneity),
}


@pytest.mark.parametrize("name", CASES)
def test_forgetting_has_the_law_of_retraining(name: str) -> None:
    case, look, p_value = CASES[name]
    assert p_value(look(case.forgotten(11)), look(case.retrained(12))) > PASSES


@pytest.mark.parametrize("name", CASES)
def test_null_control_retraining_has_the_law_of_retraining(name: str) -> None:
    case, look, p_value = CASES[name]
    assert p_value(look(case.retrained(13)), look(case.retrained(14))) > PASSES


@pytest.mark.parametrize("name", CASES)
def test_forgetting_is_retraining_bit_by_bit(name: str) -> None:
    case, look, _ = CASES[name]
    forgotten, retrained = case.forgotten(15), case.retrained(15)
    assert forgotten.digest() == retrained.digest()
    assert look(forgotten) == look(retrained)


@pytest.mark.parametrize("name", CASES)
def test_the_request_changes_what_one_sees(name: str) -> None:
    """A test of the test: a model that forgot nothing fails."""
    case, look, p_value = CASES[name]
    assert p_value(look(case.fit(16)), look(case.retrained(17))) < FAILS


def test_no_tree_splits_at_the_value_that_left() -> None:
    assert sorted(set(thresholds(MIDDLE.forgotten(18)))) == [1, 2, 4, 5]


def test_every_threshold_that_is_left_has_the_same_chance() -> None:
    counts = Counter(thresholds(MIDDLE.forgotten(19)))
    assert chisquare(list(counts.values())).pvalue > PASSES


@pytest.mark.parametrize(("case", "runs"), [(MIDDLE, N_RUNS), (TEN, 700), (NEW, N_RUNS)])
def test_the_published_rule_fails(case: StumpCase, runs: int) -> None:
    """Thresholds that a deletion makes are drawn too rarely."""
    kept = case.published(20, retrain=False, runs=runs)
    redrawn, control = (case.published(seed, retrain=True, runs=runs) for seed in (21, 22))
    assert homogeneity(kept, redrawn) < FAILS
    assert homogeneity(redrawn, control) > PASSES


def test_a_threshold_that_a_deletion_makes_gets_a_third_of_its_chance_as_published() -> None:
    share = np.mean([low == 2 for _, low in NEW.published(23, retrain=False)])
    fair = np.mean([low == 2 for _, low in NEW.published(24, retrain=True)])
    ours = np.mean([low == 2 for low in thresholds(NEW.forgotten(25))])
    assert share == pytest.approx(1 / 9, abs=0.02)
    assert fair == pytest.approx(1 / 3, abs=0.03)
    assert ours == pytest.approx(1 / 3, abs=0.03)


def test_a_random_node_with_a_stale_range_fails() -> None:
    rng, x = np.random.default_rng(26), GREATEST.X[:, 0]
    kept = [stale_range(x, rng) for _ in range(N_RUNS)]
    redrawn = [stale_range(x[:-1], rng) for _ in range(N_RUNS)]
    assert same_law(kept, redrawn) < FAILS
    assert same_law(redrawn, thresholds(GREATEST.forgotten(27))) > PASSES


def test_an_attribute_that_is_not_replaced_fails() -> None:
    rng, merits = np.random.default_rng(28), [0.0, 3.0, 2.0, 1.0]
    unreplaced = [unreplaced_attribute(merits, 0, 2, rng) for _ in range(N_RUNS)]
    replaced = [1 + unreplaced_attribute(merits[1:], -1, 2, rng) for _ in range(N_RUNS)]
    assert homogeneity(unreplaced, replaced) < FAILS
    assert homogeneity(replaced, attributes(CONSTANT.forgotten(29))) > PASSES
