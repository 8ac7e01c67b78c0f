"""Many people leave at once, and 1,000 leave one after the other."""

import copy
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._convex_data import ConvexSet
from benchmarks._convex_models import (
    Floats,
    Left,
    Method,
    Race,
    Retrain,
    Yardstick,
    accuracy,
    leave,
    people,
)
from benchmarks._convex_retrain import optimum
from benchmarks._convex_single import UNKNOWN, distance, times
from benchmarks._report import Table, Verdict

__all__ = ["RANDOM", "Batch", "batch_table", "batch_verdicts", "batches"]

RANDOM, NEAR = "random", "smallest margin"
COLUMNS = (
    "data", "leave", "chosen", "method", "cpu ms", "wall ms", "x named", "x fastest", "error",
    "do nothing", "epsilon", "fallbacks", "accuracy - retrained",
)  # fmt: skip
NOTE = (
    "One `forget` call for all of them, after one person who warms things up; mean of {repeats} "
    "calls on copies of one model. Ratios, errors and accuracy as in the tables of single "
    "removals; retrains have the remaining rows only. *smallest margin*: those nearest to the "
    "border between the classes, which moves it most; not judged. *batch_size*: the survey's m', "
    "one Hessian per batch, the published way."
)


class Batch(NamedTuple):
    """One method, one crowd."""

    data: str
    share: float
    chosen: str
    method: str
    left: Left
    retrain: Retrain
    error: float | None
    idle: float | None
    epsilon: float | None
    gain: float

    @property
    def ratio(self) -> float:
        """Retrain by a named solver over the mean request."""
        return self.retrain.named / self.left.mean

    def row(self) -> tuple[Any, ...]:
        """Return the line of a table."""
        return (
            self.data, f"{self.share:.0%}", self.chosen, self.method, 1000 * self.left.mean,
            1000 * self.left.wall, times(self.ratio),
            times(self.retrain.fastest / self.left.mean), distance(self.error),
            distance(self.idle), "-" if self.epsilon is None else f"{self.epsilon:.2g}",
            self.left.fallbacks, f"{100 * self.gain:+.2f} points",
        )  # fmt: skip


class Crowd(NamedTuple):
    """Who leaves, the one who went before them, and the optimum of the rest."""

    share: float
    chosen: str
    first: int
    ids: list[int]
    optimum: Floats

    @property
    def gone(self) -> NDArray[np.int64]:
        """Everybody who is not there in the end."""
        return np.array([self.first, *self.ids])


def crowds(yardstick: Yardstick, shares: tuple[float, ...]) -> list[Crowd]:
    """Choose people at random and by their margin."""
    data, W = yardstick.data, yardstick.best.W[:, 0]
    first, *order = people(data, len(data.y), seed=1).tolist()
    margins = np.abs(data.X @ W)
    near = [person for person in np.argsort(margins).tolist() if person != first]
    found = []
    for share in shares:
        for chosen, line in ((RANDOM, order), (NEAR, near)):
            ids = line[: int(share * len(data.y))]
            rest = yardstick.problem.without(np.array([first, *ids]))
            found.append(Crowd(share, chosen, first, ids, optimum(rest, W)))
    return found


def batches(
    methods: list[tuple[Method, int]], yardstick: Yardstick, shares: tuple[float, ...], repeats: int
) -> list[Batch]:
    """Fit every method once, and let crowds leave copies of it, in so many parts unless 0."""
    data, found = yardstick.data, []
    everybody = crowds(yardstick, shares)
    races = {(crowd.share, crowd.chosen): Race(yardstick) for crowd in everybody}
    for method, n_parts in methods:
        model = method.make(data).fit(data.X, data.y)
        for crowd in everybody:
            races[crowd.share, crowd.chosen].look(crowd.gone)
            many = 1 if n_parts else repeats
            found.append(_batch(method, yardstick, model, crowd, many, n_parts))
    return [each._replace(retrain=races[each.share, each.chosen].result()) for each in found]


def _batch(
    method: Method, yardstick: Yardstick, model: Any, crowd: Crowd, repeats: int, n_parts: int
) -> Batch:
    options = {"batch_size": -(-len(crowd.ids) // n_parts)} if n_parts else {}
    twin, left = _leave_copies(model, crowd, repeats, options)
    data, target = yardstick.data, crowd.optimum
    title = f"{method.title}, batch_size m/{n_parts}" if n_parts else method.title
    return Batch(
        data.name, crowd.share, crowd.chosen, title, left, UNKNOWN,
        _distance(method.bare(twin), target), _distance(method.bare(model), target),
        getattr(twin, "epsilon_", None), _gain(twin, crowd.optimum, data),
    )  # fmt: skip


def _leave_copies(
    model: Any, crowd: Crowd, repeats: int, options: dict[str, Any]
) -> tuple[Any, Left]:
    total = Left([], Counter())
    for _ in range(repeats):
        twin = copy.copy(model)
        leave(twin, [[crowd.first]])
        left = leave(twin, [crowd.ids], **options)
        total.seconds.extend(left.seconds)
        total.rebuilt.update(left.rebuilt)
    return twin, total


def _distance(W: Floats | None, target: Floats) -> float | None:
    return None if W is None else float(np.linalg.norm(W - target))


def _gain(model: Any, retrained: Floats, data: ConvexSet) -> float:
    test = (data.X_test, data.y_test)
    return accuracy(model.coef_[0], *test) - accuracy(retrained, *test)


def batch_table(found: list[Batch], repeats: int) -> Table:
    """Return all crowds."""
    rows = [each.row() for each in found]
    return Table("Many people leave at once", COLUMNS, rows, NOTE.format(repeats=repeats))


def batch_verdicts(found: list[Batch], least: float) -> list[Verdict]:
    """Judge the speed of batches."""
    return [
        Verdict(
            f"{each.data}, {each.share:.0%} leave at once ({each.chosen}): {each.method}, over "
            "the best named retrain",
            f"{each.ratio:,.1f}x",
            f">= {least:g}x",
            each.ratio >= least,
        )
        for each in found
    ]
