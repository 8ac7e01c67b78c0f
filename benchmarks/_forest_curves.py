"""Forests by two parameters: thresholds per attribute, and levels of random nodes."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks._data import Split
from benchmarks._forest_models import (
    ForestSize,
    Quality,
    RemainingPeople,
    format_in_units,
    remove_people,
    score_model,
    time_call,
    time_worst_removal,
)
from benchmarks._report import Table
from letheon.forest import tune_random_depth

__all__ = [
    "CurveEffort",
    "Dial",
    "make_random_table",
    "make_threshold_table",
    "vary_random_depths",
    "vary_thresholds",
]

TOLERANCES = (0.001, 0.0025, 0.005, 0.01)
COLUMNS = (
    "data", "AUC", "AUC change", "average precision", "fit s", "fit in F", "lazy ms",
    "forget + settle ms", "speed-up", "worst: forget + settle ms", "worst: speed-up",
)  # fmt: skip
NOTE = (
    "*speed-up*: naive retraining (our own fit of the same forest) over one removal, everything "
    "counted; *worst*: the costliest of {worst_of:,} random people by `forget_cost`, {repeats} "
    "times. F as everywhere: the fit of scikit-learn's RandomForest on the same rows. AUC change: "
    "against the first line of the same data."
)


class CurveEffort(NamedTuple):
    """Numbers of repetitions."""

    leaving: int
    worst_of: int
    worst_repeats: int
    tuning_rows: int
    folds: int


class Dial(NamedTuple):
    """One forest: value of a parameter and results. `tolerance` is None if not tuned."""

    data: str
    value: int
    tolerance: float | None
    cv_score: float
    quality: Quality
    unit: float
    fit: float
    lazy: float
    settled: float
    worst: float

    @property
    def speed_up(self) -> float:
        """Time of naive retraining divided by the time of one removal, settling included."""
        return self.fit / self.settled

    def row(self, first: "Dial") -> tuple[Any, ...]:
        """Return the row of the table; `first` has the AUC to compare with."""
        return (
            self.data, self.quality.auc, f"{self.quality.auc - first.quality.auc:+.4f}",
            self.quality.average_precision, self.fit, format_in_units(self.fit, self.unit),
            1000 * self.lazy, 1000 * self.settled, f"{self.speed_up:,.0f}", 1000 * self.worst,
            f"{self.fit / self.worst:,.0f}",
        )  # fmt: skip


def _measure_forest(split: Split, model: Any, unit: float, effort: CurveEffort, **how: Any) -> Dial:
    fit = time_call(partial(model.fit, split.X, split.y, ids=split.ids))
    scores = score_model(model, split)
    crowd = RemainingPeople(split.people, 0)
    left = remove_people(model, crowd, effort.leaving, rebuild="lazy")
    worst = time_worst_removal(model, crowd, effort.worst_of, effort.worst_repeats)[-1].mean
    lazy = float(left.forgets.mean())
    measured: dict[str, Any] = {"settled": left.settled, "worst": worst, **how}
    return Dial(data=split.name, quality=scores, unit=unit, fit=fit, lazy=lazy, **measured)


def vary_thresholds(
    split: Split, shape: ForestSize, unit: float, counts: tuple[int, ...], effort: CurveEffort
) -> list[Dial]:
    """Measure forests by the number of candidate thresholds per attribute."""
    return [
        _measure_forest(
            split, shape.ours(0, n_thresholds=count), unit, effort,
            value=count, tolerance=None, cv_score=np.nan,
        )
        for count in counts
    ]  # fmt: skip


def vary_random_depths(
    split: Split, shape: ForestSize, unit: float, effort: CurveEffort
) -> list[Dial]:
    """Measure the survey's five models: no random level, and the most for each tolerance."""
    sample = split.head(effort.tuning_rows)
    tuned = tune_random_depth(
        shape.ours(0),
        sample.X,
        sample.y,
        ids=sample.ids,
        tolerance=max(TOLERANCES),
        scoring="roc_auc",
        cv=effort.folds,
    )
    scores = list(tuned.scores)
    depths = [find_allowed_depth(scores, tolerance) for tolerance in TOLERANCES]
    if depths[-1] != tuned.random_depth:
        raise AssertionError(f"tuned to {tuned.random_depth}, its scores say {depths[-1]}")
    measured: dict[int, Dial] = {}
    for depth in dict.fromkeys((0, *depths)):
        measured[depth] = _measure_forest(
            split, shape.ours(0, random_depth=depth), unit, effort,
            value=depth, tolerance=None, cv_score=scores[depth],
        )  # fmt: skip
    chosen = zip(depths, TOLERANCES, strict=True)
    return [measured[0], *(measured[d]._replace(tolerance=t) for d, t in chosen)]


def find_allowed_depth(scores: list[float], tolerance: float) -> int:
    """Return the last depth before the score first falls by more than the tolerance."""
    for depth, score in enumerate(scores):
        if scores[0] - score > tolerance:
            return depth - 1
    return len(scores) - 1


def make_threshold_table(dials: list[Dial], effort: CurveEffort) -> Table:
    """Return the curve over the number of thresholds."""
    firsts = _find_first_forests(dials)
    rows = [(dial.value, *dial.row(firsts[dial.data])) for dial in dials]
    note = NOTE.format(worst_of=effort.worst_of, repeats=effort.worst_repeats)
    return Table("Thresholds per attribute (k)", ("k", *COLUMNS), rows, note)


def make_random_table(dials: list[Dial], effort: CurveEffort) -> Table:
    """Return the survey's five models on every table."""
    firsts = _find_first_forests(dials)
    rows = [
        (
            "none random" if dial.tolerance is None else f"{dial.tolerance:.2%}",
            dial.value,
            dial.cv_score,
            *dial.row(firsts[dial.data]),
        )
        for dial in dials
    ]
    note = (
        f"`tune_random_depth`: {effort.folds}-fold cross-validated AUC on at most "
        f"{effort.tuning_rows:,} rows may fall by the tolerance. Forests of equal depth are the "
        "same forest, measured once. " + NOTE
    )
    note = note.format(worst_of=effort.worst_of, repeats=effort.worst_repeats)
    columns = ("tolerance", "random depth", "CV AUC", *COLUMNS)
    return Table("Levels of random nodes (d_rmax): the survey's five models", columns, rows, note)


def _find_first_forests(dials: list[Dial]) -> dict[str, Dial]:
    return {dial.data: dial for dial in reversed(dials)}
