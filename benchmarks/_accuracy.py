"""Accuracy against the number of shards, and mean against vote, on repeated random splits."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.tree import DecisionTreeClassifier

from benchmarks._data import Data
from benchmarks._report import Table, compute_mean_interval
from letheon import Measure, NaiveUnlearner, SISAClassifier
from letheon.plot import AccuracyShardsDisplay, PlanDisplay

SHARDS = (1, 2, 5, 10, 20, 50, 100)
NAIVE = 0  # the number of shards that means NaiveUnlearner


class AccuracyRun(NamedTuple):
    """Accuracy of one model on one split, under both aggregations."""

    data: str
    learner: str
    n_shards: int
    seed: int
    mean: float
    vote: float


def make_learners(data: str) -> dict[str, Any]:
    """Return the inner estimators; on images a forest is faster than one tree on all pixels."""
    tree: Any = DecisionTreeClassifier()
    if data == "mnist":
        tree = RandomForestClassifier(n_estimators=10)
    name = "forest of 10" if data == "mnist" else "decision tree"
    return {name: tree, "SGD logistic": SGDClassifier(loss="log_loss", max_iter=5, tol=None)}


def run_splits(data: Data, n_train: int, n_test: int, seeds: Iterable[int]) -> list[AccuracyRun]:
    """Fit every learner with every number of shards on one random split per seed."""
    results = []
    for seed in seeds:
        split = data.sample(n_train + n_test, seed)
        train, test = slice(None, -n_test), slice(-n_test, None)
        for name, learner in make_learners(data.name).items():
            naive = NaiveUnlearner(learner, random_state=seed).fit(split.X[train], split.y[train])
            score = _score_model(naive, split.X[test], split.y[test])
            results.append(AccuracyRun(data.name, name, NAIVE, seed, score, score))
            for n_shards in SHARDS:
                model = SISAClassifier(learner, n_shards=n_shards, random_state=seed)
                model.fit(split.X[train], split.y[train])
                mean = _score_model(model, split.X[test], split.y[test])
                model.aggregation = "vote"
                vote = _score_model(model, split.X[test], split.y[test])
                results.append(AccuracyRun(data.name, name, n_shards, seed, mean, vote))
    return results


def _score_model(model: Any, X: Any, y: Any) -> float:
    return float(np.mean(model.predict(X) == y))


def summarize_runs(results: list[AccuracyRun]) -> dict[tuple[str, str, int], Measure]:
    """Return the mean accuracy of every case with Student's interval over the splits."""
    scores = defaultdict(list)
    for run in results:
        scores[run[:3]].append(run.mean)
    return {case: _make_measure(values) for case, values in scores.items()}


def _make_measure(values: list[float]) -> Measure:
    value, half = compute_mean_interval(values)
    return Measure(
        name="accuracy",
        value=value,
        low=value - half,
        high=value + half,
        n=len(values),
        better="higher",
        basis="measured",
        note="Student's interval over random splits, which share rows: a little too narrow",
    )


def accuracy_table(results: list[AccuracyRun], sizes: str) -> Table:
    """Return accuracy by data, learner and number of shards."""
    scores = summarize_runs(results)
    cases = dict.fromkeys(case[:2] for case in scores)
    rows = [
        (*case, *(_format_percent(scores[(*case, n)]) for n in (NAIVE, *SHARDS))) for case in cases
    ]
    columns = ("data", "learner", "naive", *(f"S={n}" for n in SHARDS))
    note = (
        f"Per cent correct on held-out rows ± half of Student's 95 % interval; {sizes}. "
        "Mean of probabilities, no slices."
    )
    return Table("4. Accuracy against the number of shards", columns, rows, note)


def _format_percent(measure: Measure) -> str:
    assert measure.high is not None
    return f"{100 * measure.value:.2f} ± {100 * (measure.high - measure.value):.2f}"


def aggregation_table(results: list[AccuracyRun]) -> Table:
    """Return the paired difference of the two aggregations."""
    differences = defaultdict(list)
    for run in results:
        if run.n_shards > 1:
            differences[run[:3]].append(100 * (run.mean - run.vote))
    cases = dict.fromkeys(case[:2] for case in differences)
    rows = []
    for case in cases:
        pairs = (compute_mean_interval(differences[(*case, n)]) for n in SHARDS[1:])
        rows.append((*case, *(f"{value:+.2f} ± {half:.2f}" for value, half in pairs)))
    columns = ("data", "learner", *(f"S={n}" for n in SHARDS[1:]))
    note = (
        "Percentage points, the same shard models; positive: the mean of probabilities is better."
    )
    return Table("6. Mean against vote: difference in accuracy", columns, rows, note)


SETTINGS = ((1, 1), (5, 1), (20, 1), (5, 10), (20, 50))


def draw_accuracy(results: list[AccuracyRun], file: Path) -> None:
    """Draw accuracy against shards, one panel per data set."""
    accuracies = summarize_runs(results)
    names = list(dict.fromkeys(data for data, _, _ in accuracies))
    figure = Figure(figsize=(5.2 * len(names), 4.4), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for name, ax in zip(names, panels, strict=True):
        scores: dict[str, dict[int, Measure]] = {}
        naive = {}
        for (data, learner, n_shards), measure in accuracies.items():
            if data == name and n_shards != NAIVE:
                scores.setdefault(learner, {})[n_shards] = measure
            elif data == name:
                naive[learner] = measure.value
        AccuracyShardsDisplay(scores, naive=naive).plot(ax)
        ax.set_title(name)
    figure.savefig(file, dpi=110)


def draw_plan(n_rows: int, state_bytes: int, file: Path) -> None:
    """Draw the planned speed-up against shards, slices and batch size."""
    mpl.use("agg")
    display = PlanDisplay.from_grid(n_rows, settings=SETTINGS, state_bytes=state_bytes)
    display.figure_.savefig(file, dpi=110, bbox_inches="tight")
