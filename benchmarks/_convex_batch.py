"""Batches and sequences of removals from convex models."""

import copy
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._convex_data import ConvexSet
from benchmarks._convex_models import (
    EPSILON,
    ConvexMethod,
    Floats,
    Left,
    RetrainRace,
    RetrainSeconds,
    SolverBaseline,
    draw_people,
    remove_people,
    score_accuracy,
    score_released,
)
from benchmarks._convex_retrain import find_optimum
from benchmarks._convex_single import UNKNOWN, distance, times
from benchmarks._report import Table, TargetCheck

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


class BatchRemoval(NamedTuple):
    """Removal of one batch by one method."""

    data: str
    share: float
    chosen: str
    method: str
    left: Left
    retrain: RetrainSeconds
    error: float | None
    idle: float | None
    epsilon: float | None
    gain: float

    @property
    def ratio(self) -> float:
        """Time of a retraining by a named solver divided by the mean time of a removal."""
        return self.retrain.named / self.left.mean

    def row(self) -> tuple[Any, ...]:
        """Return the row of the table."""
        return (
            self.data, f"{self.share:.0%}", self.chosen, self.method, 1000 * self.left.mean,
            1000 * self.left.wall, times(self.ratio),
            times(self.retrain.fastest / self.left.mean), distance(self.error),
            distance(self.idle), "-" if self.epsilon is None else f"{self.epsilon:.2g}",
            self.left.fallbacks, f"{100 * self.gain:+.2f} points",
        )  # fmt: skip


class RemovalBatch(NamedTuple):
    """People to remove, the person removed before them, and the optimum of the remaining rows."""

    share: float
    chosen: str
    first: int
    ids: list[int]
    optimum: Floats

    @property
    def gone(self) -> NDArray[np.int64]:
        """All removed people."""
        return np.array([self.first, *self.ids])


def choose_batches(yardstick: SolverBaseline, shares: tuple[float, ...]) -> list[RemovalBatch]:
    """Choose people at random and by their margin."""
    data, W = yardstick.data, yardstick.best.W[:, 0]
    first, *order = draw_people(data, len(data.y), seed=1).tolist()
    margins = np.abs(data.X @ W)
    near = [person for person in np.argsort(margins).tolist() if person != first]
    chunks = []
    for share in shares:
        for chosen, line in ((RANDOM, order), (NEAR, near)):
            ids = line[: int(share * len(data.y))]
            rest = yardstick.problem.without(np.array([first, *ids]))
            chunks.append(RemovalBatch(share, chosen, first, ids, find_optimum(rest, W)))
    return chunks


def measure_batches(
    methods: list[tuple[ConvexMethod, int]],
    yardstick: SolverBaseline,
    shares: tuple[float, ...],
    repeats: int,
) -> list[BatchRemoval]:
    """Fit every method once and remove batches from copies, in `n_parts` parts unless 0."""
    data, removals = yardstick.data, []
    batches = choose_batches(yardstick, shares)
    races = {(crowd.share, crowd.chosen): RetrainRace(yardstick) for crowd in batches}
    for method, n_parts in methods:
        model = method.make(data).fit(data.X, data.y)
        for crowd in batches:
            races[crowd.share, crowd.chosen].look(crowd.gone)
            many = 1 if n_parts else repeats
            removals.append(_measure_batch(method, yardstick, model, crowd, many, n_parts))
    return [each._replace(retrain=races[each.share, each.chosen].result()) for each in removals]


def _measure_batch(
    method: ConvexMethod,
    yardstick: SolverBaseline,
    model: Any,
    crowd: RemovalBatch,
    repeats: int,
    n_parts: int,
) -> BatchRemoval:
    options = {"batch_size": -(-len(crowd.ids) // n_parts)} if n_parts else {}
    twin, left = _leave_copies(model, crowd, repeats, options)
    data, target = yardstick.data, crowd.optimum
    title = f"{method.title}, batch_size m/{n_parts}" if n_parts else method.title
    return BatchRemoval(
        data.name, crowd.share, crowd.chosen, title, left, UNKNOWN,
        _measure_distance(method.bare(twin), target), _measure_distance(method.bare(model), target),
        getattr(twin, "epsilon_", None), _measure_gain(twin, crowd.optimum, data),
    )  # fmt: skip


def _leave_copies(
    model: Any, crowd: RemovalBatch, repeats: int, options: dict[str, Any]
) -> tuple[Any, Left]:
    total = Left([], Counter())
    for _ in range(repeats):
        twin = copy.copy(model)
        remove_people(twin, [[crowd.first]])
        left = remove_people(twin, [crowd.ids], **options)
        total.seconds.extend(left.seconds)
        total.rebuilt.update(left.rebuilt)
    return twin, total


def _measure_distance(W: Floats | None, target: Floats) -> float | None:
    return None if W is None else float(np.linalg.norm(W - target))


def _measure_gain(model: Any, retrained: Floats, data: ConvexSet) -> float:
    test = (data.X_test, data.y_test)
    return score_accuracy(model.coef_[0], *test) - score_accuracy(retrained, *test)


def make_batch_table(removals: list[BatchRemoval], repeats: int) -> Table:
    """Return the table of all batches."""
    rows = [each.row() for each in removals]
    return Table("Many people leave at once", COLUMNS, rows, NOTE.format(repeats=repeats))


def check_batches(removals: list[BatchRemoval], least: float) -> list[TargetCheck]:
    """Check the speed of batches."""
    return [
        TargetCheck(
            f"{each.data}, {each.share:.0%} leave at once ({each.chosen}): {each.method}, over "
            "the best named retrain",
            f"{each.ratio:,.1f}x",
            f">= {least:g}x",
            each.ratio >= least,
        )
        for each in removals
    ]


POINTS = 0.1
SEQUENCE_COLUMNS = (
    "method", "gone", "cpu ms per person", "spent", "true residual", "budget", "epsilon",
    "exact residuals", "polishes", "retrains", "accuracy", "mean of 100 releases", "retrained",
    "error",
)  # fmt: skip
SEQUENCE_NOTE = (
    "epsilon=1, delta=1e-4. *spent*: the account, an upper bound of the residual. *true residual*: "
    "measured beside the model, which does not learn it. Counts of fallbacks are since the fit. "
    "*accuracy*: of the model as it is released; *retrained*: without noise. *error*: distance to "
    "the retrained optimum, before noise. Retrains of the last line "
    "over the time of all: {ratio:,.0f}x the best named solver, mean of {n_people:,} people."
)


class StreamPoint(NamedTuple):
    """State after a number of removals. Accuracies and error are None where not measured."""

    gone: int
    cpu: float
    spent: float
    true: float
    budget: float
    epsilon: float
    exact: int
    polishes: int
    retrains: int
    accuracy: float | None = None
    released: float | None = None
    retrained: float | None = None
    error: float | None = None

    @property
    def off(self) -> float:
        """Mean accuracy of releases minus that of a retrained model without noise, in points."""
        if self.released is None or self.retrained is None:
            return 0.0
        return 100 * abs(self.released - self.retrained)


class Sequence(NamedTuple):
    """Removals of many people by one method."""

    data: str
    method: ConvexMethod
    checkpoints: list[StreamPoint]
    left: list[float]
    retrain: float


def run_sequence(
    method: ConvexMethod, yardstick: SolverBaseline, n_people: int, every: int, n_retrained: int
) -> Sequence:
    """Remove people one by one and measure the model at checkpoints."""
    data = yardstick.data
    gone = draw_people(data, n_people, seed=2)
    model = method.make(data).fit(data.X, data.y)
    looks = set(np.linspace(0, n_people, n_retrained + 1).astype(int)[1:].tolist())
    race, points = RetrainRace(yardstick), list[StreamPoint]()
    times: list[float] = []

    for begin in range(0, n_people, every):
        part = gone[begin : begin + every]
        left = remove_people(model, [[int(person)] for person in part])
        times.extend(left.cpu.tolist())
        now = begin + len(part)
        point = _make_point(model, now, left)
        if now in looks:
            race.look(gone[:now])
            point = _compare_with_retraining(method, yardstick, model, point, gone[:now])
        points.append(point)
    return Sequence(data.name, method, points, times, race.result().named)


def _make_point(model: Any, gone: int, left: Left) -> StreamPoint:
    account = model.account_
    return StreamPoint(
        gone, left.mean, account.spent, model.exact_residual(), account.limit, model.epsilon_,
        account.exact, account.polishes, account.retrains,
    )  # fmt: skip


def _compare_with_retraining(
    method: ConvexMethod, yardstick: SolverBaseline, model: Any, point: StreamPoint, gone: Any
) -> StreamPoint:
    data, W = yardstick.data, method.bare(model)
    best = find_optimum(yardstick.problem.without(gone), yardstick.best.W[:, 0])
    assert W is not None
    return point._replace(
        accuracy=score_accuracy(model.coef_[0], data.X_test, data.y_test),
        released=score_released(model, data),
        retrained=score_accuracy(best, data.X_test, data.y_test),
        error=float(np.linalg.norm(W - best)),
    )


def make_sequence_table(sequence: Sequence) -> Table:
    """Return the checkpoints with a retrained model, and some between."""
    rows = [
        (
            sequence.method.title, point.gone, 1000 * point.cpu, point.spent, point.true,
            point.budget, point.epsilon, point.exact, point.polishes, point.retrains,
            *("" if value is None else f"{value:.4f}" for value in
              (point.accuracy, point.released, point.retrained)),
            "" if point.error is None else point.error,
        )
        for point in sequence.checkpoints
    ]  # fmt: skip
    n_people = len(sequence.left)
    note = SEQUENCE_NOTE.format(ratio=sequence.retrain / np.mean(sequence.left), n_people=n_people)
    title = (
        f"{n_people:,} people leave one after the other: {sequence.data}, {sequence.method.title}"
    )
    return Table(title, SEQUENCE_COLUMNS, rows, note)


def check_sequence(sequence: Sequence) -> list[TargetCheck]:
    """Check retrainings, accuracy, budget, and that the account is an upper bound."""
    last = sequence.checkpoints[-1]
    start = f"{sequence.data}, {len(sequence.left):,} people one by one, {sequence.method.settings}"
    worst = max(point.off for point in sequence.checkpoints)
    false = [point.gone for point in sequence.checkpoints if point.true > point.spent * (1 + 1e-9)]
    over = max(point.epsilon for point in sequence.checkpoints)
    return [
        TargetCheck(f"{start}: retrains", str(last.retrains), "0", last.retrains == 0),
        TargetCheck(
            f"{start}: mean accuracy of releases beside the unnoised optimum",
            f"{worst:.2f} points",
            f"<= {POINTS} points",
            worst <= POINTS + 1e-9,
        ),
        TargetCheck(f"{start}: epsilon spent", f"{over:.3f}", f"<= {EPSILON:g}", over <= EPSILON),
        TargetCheck(
            f"{start}: true residual below the account at {len(sequence.checkpoints)} checkpoints",
            "always" if not false else f"not after {false}",
            "always",
            not false,
        ),
    ]
