"""One table: fit, removals, predictions, memory and ranking, in units of F."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._data import Split
from benchmarks._forest_fresh import NOTE, Fresh, store_rows
from benchmarks._forest_models import (
    ForestSize,
    Quality,
    RemainingPeople,
    RemovalTimes,
    RepeatedTimes,
    format_in_units,
    remove_people,
    score_model,
    time_batch,
    time_call,
    time_first_predict,
    time_worst_removal,
)
from benchmarks._report import Table, TargetCheck

__all__ = [
    "SetEffort",
    "SetFindings",
    "check_set",
    "make_quality_table",
    "make_set_table",
    "make_summary_table",
    "measure_set",
]

FIT, SCIKIT_FIT = "fit", "fit, RandomForest (= F)"
LAZY, EAGER = "forget, lazy", "forget, eager"
SETTLED = "forget, everything counted"
SUBSAMPLED = "forget, lazy, subsample=.1"
PREDICT, SCIKIT_PREDICT = "predict, per row", "predict, per row, RandomForest"
COLUMNS = ("what", "calls", "mean ms", "p50 ms", "p99 ms", "max ms", "mean in F")
MOST_AUC_LOSS = 0.003


class Reach(NamedTuple):
    """Targets of a table: fit in F, other times as fractions of F, memory in MB."""

    fit: float
    lazy: int
    settled: int
    eager: int
    subsampled: int
    megabytes: int


REACH = {
    "adult": Reach(1.0, 12_000, 1_500, 1_000, 30_000, 40),
    "synthetic": Reach(0.25, 40_000, 4_000, 1_500, 160_000, 180),
}


class SetEffort(NamedTuple):
    """Numbers of repetitions."""

    repeats: int
    leaving: int
    first_predicts: int
    worst_of: int
    worst_repeats: int


@dataclass
class SetFindings:
    """Measurements of one table."""

    split: Split
    memory: Fresh
    qualities: dict[str, list[Quality]]
    timings: dict[str, RepeatedTimes] = field(default_factory=dict)
    lazy: RemovalTimes | None = None

    def add(self, *timings: RepeatedTimes) -> None:
        """Add times."""
        self.timings |= {timing.what: timing for timing in timings}

    @property
    def unit(self) -> float:
        """F, the shortest fit of scikit-learn's forest in this run."""
        return float(self.timings[SCIKIT_FIT].values.min())

    @property
    def fit(self) -> float:
        """The shortest fit of our forest."""
        return float(self.timings[FIT].values.min())

    def auc(self, model: str) -> float:
        """Return the mean AUC over repetitions with different seeds."""
        return float(np.mean([score.auc for score in self.qualities[model]]))


def measure_set(split: Split, shape: ForestSize, effort: SetEffort) -> SetFindings:
    """Measure one table; all removals are made from one forest."""
    model, findings = _measure_fits(split, shape, effort)
    crowd = RemainingPeople(split.people, 0)
    lazy = remove_people(model, crowd, effort.leaving, rebuild="lazy")
    findings.lazy = lazy
    findings.add(
        RepeatedTimes(LAZY, lazy.forgets), RepeatedTimes(SETTLED, np.array([lazy.settled]))
    )
    eager = remove_people(model, crowd, effort.leaving, rebuild="eager")
    findings.add(RepeatedTimes(EAGER, eager.forgets))
    for n_rows in (1, 1000):
        findings.add(time_first_predict(model, crowd, split.X_test, n_rows, effort.first_predicts))
    findings.add(*time_worst_removal(model, crowd, effort.worst_of, effort.worst_repeats))
    for share in (0.01, 0.1):
        findings.add(time_batch(model, crowd, share))
    sampled = shape.ours(0, subsample=0.1).fit(split.X, split.y, ids=split.ids)
    findings.qualities["letheon, subsample=.1"] = [score_model(sampled, split)]
    left = remove_people(sampled, RemainingPeople(split.people, 1), effort.leaving, rebuild="lazy")
    findings.add(RepeatedTimes(SUBSAMPLED, left.forgets))
    return findings


def _measure_fits(split: Split, shape: ForestSize, effort: SetEffort) -> tuple[Any, SetFindings]:
    """Fit in turn, so that load on the machine affects all methods."""
    names = ("RandomForest", "letheon", "ExtraTrees")
    qualities: dict[str, list[Quality]] = {name: [] for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(effort.repeats):
        scikit, ours, extra = shape.random_forest(seed), shape.ours(seed), shape.extra_trees(seed)
        times["RandomForest"].append(time_call(partial(scikit.fit, split.X, split.y)))
        times["letheon"].append(time_call(partial(ours.fit, split.X, split.y, ids=split.ids)))
        times["ExtraTrees"].append(time_call(partial(extra.fit, split.X, split.y)))
        for name, model in zip(names, (scikit, ours, extra), strict=True):
            qualities[name].append(score_model(model, split))
    with store_rows(split) as files:
        memory = files.measure(shape)
    findings = SetFindings(split, memory, qualities)
    findings.add(
        RepeatedTimes(SCIKIT_FIT, np.array(times["RandomForest"])),
        RepeatedTimes(FIT, np.array(times["letheon"])),
        RepeatedTimes("fit, ExtraTrees", np.array(times["ExtraTrees"])),
        *_measure_predictions(ours, split.X_test),
        *_measure_predictions(scikit, split.X_test, whose=", RandomForest"),
    )
    return ours, findings


def _measure_predictions(
    model: Any, X: NDArray[np.float32], whose: str = ""
) -> list[RepeatedTimes]:
    """Time predictions of many rows and of one."""
    one = [time_call(partial(model.predict_proba, X[[i]])) for i in range(min(100, len(X)))]
    return [
        _per_row(PREDICT + whose, model, X),
        RepeatedTimes(f"predict, one row{whose}", np.array(one)),
    ]


def _per_row(what: str, model: Any, X: NDArray[np.float32]) -> RepeatedTimes:
    model.predict_proba(X)
    times = [time_call(partial(model.predict_proba, X)) / len(X) for _ in range(5)]
    return RepeatedTimes(what, np.array(times))


def make_set_table(result: SetFindings) -> Table:
    """Return the times of one table."""
    memory = result.memory
    note = (
        f"{result.split.describe()}. F = {result.unit:.3f} s, our fit = {result.fit:.3f} s (the "
        f"shortest of {len(result.timings[FIT].values)}). *everything counted*: all removals of "
        f"*{LAZY}* and the `settle` after them, by removal. {_describe_removal(result)} "
        f"Memory over the data: {memory.memory / 1e6:.1f} MB "
        f"({memory.memory / memory.n_rows:,.0f} bytes per row; peak {memory.peak / 1e6:.1f} MB); "
        f"X itself takes {result.split.X.nbytes / 1e6:.1f} MB. {NOTE}"
    )
    rows = [timing.row(result.unit) for timing in result.timings.values()]
    return Table(f"Forgetting: {result.split.name}", COLUMNS, rows, note)


def _describe_removal(result: SetFindings) -> str:
    """Describe the parts of the time of a lazy removal."""
    if result.lazy is None:
        return ""
    outside = result.lazy.forgets.mean() - result.lazy.inside
    return (
        f"A removal drops subtrees of {result.lazy.rows:,.0f} rows, summed over the trees; of its "
        f"time {1e6 * outside:.0f} µs are checks and the receipt, the rest the forest's own work; "
        f"the `settle` took {result.lazy.settle:.3f} s."
    )


def check_set(result: SetFindings) -> list[TargetCheck]:
    """Check the targets of all tables, and the specific targets of this one."""
    name, unit = result.split.name, result.unit
    mean = {what: timing.mean for what, timing in result.timings.items()}
    fastest = {what: result.timings[what].quantile(0) for what in (PREDICT, SCIKIT_PREDICT)}
    batched = mean["batch of 10% of the people + settle"] / result.fit
    predicted = fastest[PREDICT] / fastest[SCIKIT_PREDICT]
    copied = result.memory.copied
    verdicts = [
        TargetCheck(
            f"{name}: 10 % at once + settle", f"{batched:.2f} of a fit", "< 1", batched < 1
        ),
        TargetCheck(
            f"{name}: predict, per row",
            f"{predicted:.2f} of scikit-learn's",
            "<= 1",
            predicted <= 1,
        ),
        TargetCheck(
            f"{name}: predict makes no copy of X", f"{copied:.2f} of X", "< 0.5", copied < 0.5
        ),
    ]
    if name not in REACH:
        return verdicts
    reach, loss = REACH[name], result.auc("RandomForest") - result.auc("letheon")
    megabytes = result.memory.memory / 1e6
    parts = {LAZY: reach.lazy, SETTLED: reach.settled, EAGER: reach.eager}
    return [
        _check_units(f"{name}: fit", result.fit, unit, 1 / reach.fit),
        *(_check_units(f"{name}: {what}", mean[what], unit, part) for what, part in parts.items()),
        _check_units(f"{name}: {SUBSAMPLED}", mean[SUBSAMPLED], unit, reach.subsampled),
        TargetCheck(
            f"{name}: AUC beside RandomForest",
            f"{-loss:+.4f}",
            f">= -{MOST_AUC_LOSS}",
            loss <= MOST_AUC_LOSS,
        ),
        TargetCheck(
            f"{name}: memory over the data",
            f"{megabytes:.1f} MB",
            f"<= {reach.megabytes} MB",
            megabytes <= reach.megabytes,
        ),
        *verdicts,
    ]


def _check_units(what: str, value: float, unit: float, part: float) -> TargetCheck:
    reached = f"{format_in_units(value, unit)} ({1000 * value:,.3f} ms)"
    return TargetCheck(
        what, reached, f"<= {format_in_units(unit / part, unit)}", value <= unit / part
    )


def make_summary_table(results: list[SetFindings]) -> Table:
    """Return the means of all tables, in units of F."""
    names = list(dict.fromkeys(what for result in results for what in result.timings))
    rows: list[tuple[Any, ...]] = [
        ("F", *(f"{result.unit:.2f} s" for result in results)),
        *((name, *(_mean_cell(result, name) for result in results)) for name in names),
        ("memory over the data", *(f"{result.memory.memory / 1e6:.1f} MB" for result in results)),
        ("AUC", *(f"{result.auc('letheon'):.4f}" for result in results)),
        ("AUC, RandomForest", *(f"{result.auc('RandomForest'):.4f}" for result in results)),
    ]
    note = "Mean times as multiples or parts of F of the same run (fits: the shortest)."
    columns = ("", *(result.split.name for result in results))
    return Table("All tables in units of F", columns, rows, note)


def _mean_cell(result: SetFindings, name: str) -> str:
    timing = result.timings[name]
    value = timing.quantile(0) if name.startswith("fit") else timing.mean
    return format_in_units(value, result.unit)


def make_quality_table(results: list[SetFindings]) -> Table:
    """Return AUC and average precision of our forests and scikit-learn's."""
    rows = []
    for result in results:
        for model, scores in result.qualities.items():
            auc, precision = np.mean(scores, axis=0)
            spread = np.ptp([score.auc for score in scores])
            rows.append((result.split.name, model, len(scores), auc, spread, precision))
    columns = ("data", "model", "seeds", "AUC", "AUC, max - min", "average precision")
    note = "On held-out rows; mean over seeds. All forests have the same number of trees and depth."
    return Table("Ranking compared with scikit-learn's forests", columns, rows, note)
