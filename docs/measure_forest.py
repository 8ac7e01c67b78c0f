"""Measure what forest.md says about the published rule, about candidates and about random nodes.

Run ``python docs/measure_forest.py`` (about four minutes). It prints tables in Markdown. Every
sample has a fixed seed. Real data is read as in the benchmarks; without it that line is left out.
"""

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ks_2samp
from sklearn.metrics import roc_auc_score

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script, not a module

from benchmarks._data import Split, load_split, make_synthetic_split
from benchmarks._forest_models import time_call
from letheon import DaREForestClassifier
from tests.forest import test_cases as cases
from tests.forest.published import stale_range, unreplaced_attribute

Sample = Sequence[Hashable]
Floats = NDArray[Any]


def main() -> None:
    """Print everything."""
    show(("case", "ours", "p", "null control", "p", "published rule", "p"), exactness())
    rules = ("data", "k", "values present", "label boundaries")
    show(rules, (line for split in splits() for line in candidates(split)))
    who = ("data", "random levels", "everybody: ours", "published", "worst: ours", "published")
    show(who, (line for split in splits() for line in moves(split)))
    costs = ("data", "n_thresholds", "AUC", "fit s", "forget + settle ms", "MB", "rows regrown")
    show(costs, (line for split in splits() for line in thresholds(split)))


def show(titles: Sequence[str], lines: Iterator[tuple[Any, ...]]) -> None:
    """Print a table, line by line."""
    print(f"\n| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    for line in lines:
        print(f"| {' | '.join(map(str, line))} |", flush=True)


def splits() -> Iterator[Split]:
    """Return the tables to measure on."""
    for split in (make_synthetic_split(), load_split("adult"), load_split("higgs")):
        if split is not None:
            yield split


def exactness() -> Iterator[tuple[Any, ...]]:
    """Compare laws after forgetting with laws after a retrain, in the five cases of the tests."""
    for name, (case, look, p_value) in cases.CASES.items():
        distance = ks_distance if p_value is cases.same_law else variation
        forgotten, retrained = look(case.forgotten(11)), look(case.retrained(12))
        control = look(case.retrained(13))
        kept, redrawn = published(name)
        yield (
            name,
            *(f"{distance(forgotten, retrained):.3f}", f"{p_value(forgotten, retrained):.2g}"),
            *(f"{distance(control, retrained):.3f}", f"{p_value(control, retrained):.2g}"),
            *(f"{distance(kept, redrawn):.3f}", f"{p_value(kept, redrawn):.1g}"),
        )


def published(name: str) -> tuple[Any, Any]:
    """Return what the published method, or code, gives after forgetting and after a retrain."""
    case, _, p_value = cases.CASES[name]
    rng = np.random.default_rng(26)
    if p_value is cases.same_law:
        ranges = case.X[:, 0], case.X[:-1, 0]
        kept, redrawn = ([stale_range(x, rng) for _ in range(cases.N_RUNS)] for x in ranges)
        return kept, redrawn
    if case is cases.CONSTANT:
        merits = [0.0, 3.0, 2.0, 1.0]
        runs = range(cases.N_RUNS)
        kept = [unreplaced_attribute(merits, 0, 2, rng) for _ in runs]
        return kept, [1 + unreplaced_attribute(merits[1:], -1, 2, rng) for _ in runs]
    return case.published(20, retrain=False), case.published(21, retrain=True)


def variation(one: Sample, two: Sample) -> float:
    """Return the total variation distance of two samples."""
    first, second = Counter(one), Counter(two)
    gaps = [abs(first[key] / len(one) - second[key] / len(two)) for key in first | second]
    return sum(gaps) / 2


def ks_distance(one: Sequence[float], two: Sequence[float]) -> float:
    """Return the largest difference of the distribution functions."""
    return float(ks_2samp(one, two).statistic)


def all_values(x: Floats, _: Floats) -> Floats:
    """Candidates of letheon: values present, but the largest."""
    return np.unique(x)[:-1]


def label_boundaries(x: Floats, y: Floats) -> Floats:
    """Candidates as published: middles of neighbours whose rows differ in label."""
    values, place = np.unique(x, return_inverse=True)
    ones, sizes = np.bincount(place, y), np.bincount(place)
    zeros = sizes - ones
    mixed = (ones[1:] + ones[:-1] > 0) & (zeros[1:] + zeros[:-1] > 0)
    middles: Floats = ((values[1:] + values[:-1]) / 2)[mixed]
    return middles


class PlainForest(NamedTuple):
    """A plain forest, all of it but the rule that names its candidates."""

    rule: Callable[[Floats, Floats], Floats]
    k: int
    rng: np.random.Generator
    n_trees: int = 30
    max_depth: int = 8

    def scores(self, split: Split) -> Floats:
        """Return the mean share of class 1 for the held-out rows."""
        total = np.zeros(len(split.X_test))
        for _ in range(self.n_trees):
            self._answer(split.X, split.y, split.X_test, total, np.arange(len(total)), 0)
        return total

    def _answer(
        self, X: Floats, y: Floats, ask: Floats, total: Floats, who: Floats, depth: int
    ) -> None:
        split = None if depth >= self.max_depth or y.min() == y.max() else self._best(X, y)
        if split is None:
            total[who] += y.mean()
            return
        attribute, threshold = split
        here, there = X[:, attribute] <= threshold, ask[who, attribute] <= threshold
        self._answer(X[here], y[here], ask, total, who[there], depth + 1)
        self._answer(X[~here], y[~here], ask, total, who[~there], depth + 1)

    def _best(self, X: Floats, y: Floats) -> tuple[int, float] | None:
        found: list[tuple[float, int, float]] = []
        wanted = int(np.sqrt(X.shape[1]))
        for a in self.rng.permutation(X.shape[1]).tolist():
            x = X[:, a]
            if wanted and x.min() < x.max():
                wanted -= 1
                valid = self.rng.permutation(self.rule(x, y))[: self.k]
                if len(valid):
                    scores = purities(x, y, valid)
                    best = int(scores.argmax())
                    found.append((float(scores[best]), a, float(valid[best])))
        return max(found)[1:] if found else None


def purities(x: Floats, y: Floats, thresholds: Floats) -> Floats:
    """Return the Gini score of each split of labels 0 and 1."""
    order = np.argsort(x)
    sizes = np.searchsorted(x[order], thresholds, side="right")
    ones = np.append(0, np.cumsum(y[order]))[sizes]
    rest, others = y.sum() - ones, len(y) - sizes
    left = (ones**2 + (sizes - ones) ** 2) / sizes
    scores: Floats = left + (rest**2 + (others - rest) ** 2) / others
    return scores


def candidates(split: Split) -> Iterator[tuple[Any, ...]]:
    """Compare the AUC of forests that differ in their rule for candidates only."""
    small = split.head(4_000)
    for k in (1, 5, 25):
        cells = []
        for rule in (all_values, label_boundaries):
            forests = [PlainForest(rule, k, np.random.default_rng(seed)) for seed in range(3)]
            each = [roc_auc_score(small.y_test, forest.scores(small)) for forest in forests]
            cells.append(f"{np.mean(each):.4f} (seeds differ by {np.ptp(each):.4f})")
        yield split.name, k, *cells


def moves(split: Split) -> Iterator[tuple[Any, ...]]:
    """Count the rows that random nodes make a removal regrow, for the removal of each row.

    Ours: the threshold moves with the least and greatest value, and a row changes sides. Published:
    the threshold lies outside of the values that stay.
    """
    small = split.head(20_000)
    for levels in (1, 3, 5):
        model = DaREForestClassifier(
            max_depth=levels, random_depth=levels, n_estimators=100, random_state=0
        ).fit(small.X, small.y)
        costs = np.zeros((2, len(small.y)))
        for number in range(100):
            for ours, asked, person in tree_moves(model.tree_(number), small.X):
                costs[:, person] += ours, asked
        shares = costs / (100 * len(small.y))
        cells = [f"{value:.4%}" for value in (*shares.mean(axis=1), *shares.max(axis=1))]
        yield split.name, levels, cells[0], cells[1], cells[2], cells[3]


def tree_moves(tree: Any, X: Floats) -> Iterator[tuple[int, int, int]]:
    """Yield the rows of subtrees that go, ours and as published, and who makes them go."""
    todo = [(0, np.arange(len(X)))]
    while todo:
        node, rows = todo.pop()
        if tree.kind[node] != 2:
            continue
        x, t = X[rows, tree.feature[node]], tree.threshold[node]
        for end in (x.min(), x.max()):
            who = np.flatnonzero(x == end)
            if len(who) == 1 and len(x) > 2:
                moved, outside = moved_by(np.delete(x, who), float(x.min()), float(x.max()), t)
                size = len(x) - 1
                yield size * moved, size * outside, int(rows[who[0]])
        left = x <= t
        todo += [(int(tree.left[node]), rows[left]), (int(tree.right[node]), rows[~left])]


def moved_by(rest: Floats, least: float, greatest: float, t: float) -> tuple[bool, bool]:
    """Return whether the column becomes constant or a row changes sides; if t splits nothing."""
    share = (float(t) - least) / (greatest - least)
    low, high = float(rest.min()), float(rest.max())
    new = np.float32(low + share * (high - low))
    moved = low == high or bool(((rest <= t) != (rest <= new)).any())
    return moved, not low <= t < high


def thresholds(split: Split) -> Iterator[tuple[Any, ...]]:
    """Measure forests that try 25 values of a column, and all."""
    small = split.head(20_000)
    for k in (25, None):
        model = DaREForestClassifier(n_thresholds=k, random_state=0)
        fit = time_call(partial(model.fit, small.X, small.y))
        auc = roc_auc_score(small.y_test, model.predict_proba(small.X_test)[:, 1])
        size = model.forest_.core.n_bytes / 1e6
        receipts = [model.forget([row]) for row in range(100)]
        rows = np.mean([receipt.rebuilt["rows"] for receipt in receipts])
        each = (sum(receipt.seconds for receipt in receipts) + time_call(model.settle)) / 100
        name = "all" if k is None else k
        cells = (f"{auc:.4f}", f"{fit:.2f}", f"{1000 * each:.2f}", f"{size:.0f}", f"{rows:,.0f}")
        yield split.name, name, *cells


if __name__ == "__main__":
    main()
