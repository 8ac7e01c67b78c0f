"""SISA for networks: accuracy and cost by shards and slices."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks._deep_models import (
    SMALL_CNN,
    Recipe,
    Yardstick,
    agreement,
    make_sisa,
    percent,
    points,
    score_accuracy,
    time_on_device,
    times,
)
from benchmarks._report import Seconds, Table, TargetCheck

__all__ = [
    "SHARD_RECIPE",
    "Sharded",
    "check_sisa",
    "fit_shards",
    "list_points",
    "make_sisa_table",
    "measure_shards",
]

# Shards have few rows: smaller batches and one more epoch than naive retraining.
SHARD_RECIPE = Recipe(3, 32, 0.1, module=SMALL_CNN)
COLUMNS = (
    "S", "R", "lanes", "who leaves", "share of work", "again s", "x naive", "fit s (first call)",
    "accuracy", "accuracy - naive", "agrees: naive", "digest of a fresh fit",
)  # fmt: skip
NOTE = (
    "{recipe} per shard, mean of the shards' probabilities. Requests one after the other on one "
    "model, everything loaded. *lanes*: nets trained at once, in the fit and in a request, which "
    "then computes the others for nothing: the same width is what makes the bytes equal. *1 "
    "person*: mean of {singles}. *x naive*: {naive:.3g} s of the tuned naive retrain over it. "
    "*digest of a fresh fit*: whether the model after all requests has the digest of a new model "
    "fitted on the rows that are left; then its answers agree with that fit's on everything."
)


class Sharded(NamedTuple):
    """Removals of one size from one model."""

    n_shards: int
    n_slices: int
    lane_width: int
    n_people: int
    work: float
    seconds: Seconds
    fit: float
    accuracy: float
    agrees: float
    same: bool | None


class Fitted(NamedTuple):
    """A model and the time of its fit."""

    model: Any
    seconds: float


def fit_shards(
    data: Any,
    device: str,
    shape: tuple[int, int],
    ids: Any = None,
    *,
    lane_width: int | None = None,
) -> Fitted:
    """Return a model of S shards and R slices."""
    lanes = {"lane_width": lane_width}
    model = make_sisa(SHARD_RECIPE, device, n_shards=shape[0], n_slices=shape[1], **lanes)
    seconds = time_on_device(lambda: model.fit(data.X, data.y, ids=ids), device)[1]
    return Fitted(model, seconds.wall)


def measure_shards(
    mine: Fitted,
    yardstick: Yardstick,
    crowds: Sequence[int],
    singles: int,
    *,
    compare: bool,
) -> list[Sharded]:
    """Remove people, then compare with a fresh fit."""
    data, device, (model, fit) = yardstick.data, yardstick.device, mine
    shape = int(model.n_shards), int(model.n_slices)
    width = model.lane_width or (shape[0] if device == "cuda" else 1)
    answers = model.predict(data.X_test)
    right, agrees = score_accuracy(model, data), agreement(answers, yardstick.answers)
    leaving = np.random.default_rng(5).permutation(len(data.y)).tolist()
    ensembles = []
    for n_people in crowds:
        repeats = singles if n_people == 1 else 1
        work, times_taken = [], []
        for _ in range(repeats):
            people = [leaving.pop() for _ in range(n_people)]
            receipt, seconds = time_on_device(lambda people=people: model.forget(people), device)  # type: ignore[misc]
            work.append(receipt.work)
            times_taken.append(seconds)
        mean = Seconds(*np.mean(times_taken, axis=0).tolist())
        ensembles.append(
            Sharded(*shape, width, n_people, float(np.mean(work)), mean, fit, right, agrees, None)
        )
    same = _is_fresh(model, data, device, shape) if compare else None
    return [each._replace(same=same) for each in ensembles]


def _is_fresh(model: Any, data: Any, device: str, shape: tuple[int, int]) -> bool:
    """Return whether a fresh fit on the remaining rows has the same digest."""
    left = np.sort(np.asarray(model.ids_, np.int64))
    rest = data._replace(X=data.X[left], y=data.y[left])
    fresh, _ = fit_shards(rest, device, shape, ids=left, lane_width=model.lane_width)
    return bool(fresh.digest() == model.digest())


def make_sisa_table(ensembles: list[Sharded], yardstick: Yardstick, singles: int) -> Table:
    """Return the table of all settings and batch sizes."""
    naive = yardstick.seconds.wall
    rows = []
    for each in ensembles:
        people = "1 person" if each.n_people == 1 else f"{each.n_people} people"
        same = {None: "not compared", True: "equal", False: "DIFFERENT"}[each.same]
        rows.append(
            (
                each.n_shards, each.n_slices, each.lane_width, people,
                percent(100 * each.work), each.seconds.wall, times(naive / each.seconds.wall),
                each.fit, percent(each.accuracy), points(each.accuracy - yardstick.accuracy),
                percent(each.agrees), same,
            )
        )  # fmt: skip
    note = NOTE.format(recipe=SHARD_RECIPE, singles=singles, naive=naive)
    return Table(f"SISA: {yardstick.data.describe()}", COLUMNS, rows, note)


def list_points(ensembles: list[Sharded], yardstick: Yardstick) -> list[tuple[str, float, float]]:
    """Return name, speed-up and agreement with naive retraining, for one person."""
    naive = yardstick.seconds.wall
    return [
        (
            f"SISA, S={each.n_shards} R={each.n_slices} W={each.lane_width}",
            naive / each.seconds.wall,
            each.agrees,
        )
        for each in ensembles
        if each.n_people == 1
    ]


def check_sisa(compared: list[Sharded]) -> TargetCheck:
    """Check the digest after the removals, where a fresh fit was made."""
    n_same = sum(bool(each.same) for each in compared)
    return TargetCheck(
        "SISA of nets: digest after requests is that of a fresh fit",
        f"{n_same} of {len(compared)}",
        "all",
        n_same == len(compared),
    )
