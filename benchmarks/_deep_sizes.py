"""Sizes of the runs, and the comparison at equal numbers of checkpoints."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks._deep_backdoor import Case, Planted
from benchmarks._deep_cifar import CifarPlan
from benchmarks._deep_models import (
    BIG_CNN,
    WIDE_MLP,
    Recipe,
    Yardstick,
    copy_model,
    percent,
    time_on_device,
    times,
)
from benchmarks._report import Table
from letheon.measures import effectiveness, output_consistency

COLUMNS = (
    "method", "states", "efficiency", "share of data", "effectiveness", "consistency",
    "certifiability", "accuracy", "prediction ms", "fit s", "state MB", "guarantee",
)  # fmt: skip
NOTE = (
    "One person leaves, mean of {n} random ones, each from a copy. *efficiency*: {naive:.3g} s of "
    "the tuned naive retrain over the request, everything loaded. *effectiveness*: gap of the test "
    "accuracy to that retrain, in points; *consistency*: equal answers, to that retrain. "
    "*certifiability*: SAPE on backdoored images, {rows} rows of one owner, from the section on "
    "backdoors. *prediction*: {n_test:,} images. *state*: parameters that are kept."
)


class Contender(NamedTuple):
    """One method with its measures."""

    method: str
    n_states: int
    walls: list[float]
    work: float
    effectiveness: float
    consistency: float
    accuracy: float
    prediction: float
    fit: float
    state: float
    guarantee: str


def measure_contender(
    method: str, model: Any, yardstick: Yardstick, fit: float, n_states: int, people: list[int]
) -> Contender:
    """Remove people from copies of a fitted model, one from each."""
    data, device, walls, work = yardstick.data, yardstick.device, [], []
    answers = model.predict(data.X_test)
    for person in people:
        mine = _load_copy(model, person, device)
        receipt, seconds = time_on_device(lambda mine=mine, p=person: mine.forget([p]), device)  # type: ignore[misc]
        walls.append(seconds.wall)
        work.append(receipt.work)
        answers = mine.predict(data.X_test)
    right = 100 * float(np.mean(answers == data.y_test))
    gap = effectiveness(_compute_share, data.y_test, answers, yardstick.answers, n_resamples=10)
    prediction = time_on_device(lambda: mine.predict(data.X_test), device)[1].wall
    return Contender(
        method, n_states, walls, float(np.mean(work)), 100 * gap.value,
        output_consistency(answers, yardstick.answers).value, right, prediction, fit,
        n_states * model.nets_.flat.shape[1] * 4 / 1e6, receipt.guarantee.kind,
    )  # fmt: skip


def _load_copy(model: Any, person: int, device: str) -> Any:
    """Return a copy; on a GPU, after a warm-up removal."""
    mine = copy_model(model)
    if device == "cuda":
        extra = mine.rows_.extra
        block = extra.get("block", extra.get("slice"))
        candidates = np.flatnonzero(block == block.max())
        mine.forget([int(candidates[candidates != person][0])])
    return mine


def _compute_share(truth: Any, answers: Any) -> float:
    return float(np.mean(truth == answers))


def make_budget_table(
    contenders: list[Contender], yardstick: Yardstick, backdoors: list[Planted], n_rows: int
) -> Table:
    """Return one row per method, naive retraining first."""
    naive = yardstick.seconds.wall
    n_test = len(yardstick.data.y_test)
    prediction = time_on_device(
        lambda: yardstick.model.predict(yardstick.data.X_test), yardstick.device
    )[1].wall
    rows: list[tuple[Any, ...]] = [
        (
            "naive", 0, "1x", "100 %", "0", "100 %", "0 %", percent(yardstick.accuracy),
            1000 * prediction, yardstick.first.wall, 0.0, "exact",
        )
    ]  # fmt: skip
    for each in contenders:
        wall = float(np.mean(each.walls))
        rows.append(
            (
                each.method, each.n_states, times(naive / wall), percent(100 * each.work),
                f"{each.effectiveness:.2f} points", percent(each.consistency),
                _find_sape(each.method, backdoors), percent(each.accuracy), 1000 * each.prediction,
                each.fit, each.state, each.guarantee,
            )
        )  # fmt: skip
    n = len(contenders[0].walls)
    note = NOTE.format(n=n, naive=naive, rows=n_rows, n_test=n_test)
    return Table(f"Equal numbers of states: {yardstick.data.describe()}", COLUMNS, rows, note)


def _find_sape(method: str, backdoors: list[Planted]) -> str:
    """Return the SAPE of the first backdoor case of a method, if measured."""
    mine = [each for each in backdoors if method.startswith(each.method)]
    return f"{mine[0].sape.value:.1f} %" if mine else "not measured"


class NetSize(NamedTuple):
    """Sizes and repetitions of a run."""

    n_rows: int | None
    n_test: int | None
    repeats: int
    n_blocks: int
    n_places: int
    crowds: tuple[int, ...]
    crowded: int
    shapes: tuple[tuple[int, int], ...]
    compared: tuple[tuple[int, int], ...]
    shard_crowds: tuple[int, ...]
    singles: int
    lane_rows: int | None
    lane_shards: tuple[int, ...]
    lane_recipes: tuple[Recipe, ...]
    cases: tuple[Case, ...]
    fisher_rows: tuple[int | None, ...]
    newton: bool
    replay_rows: int | None
    replay_epochs: int
    replay_crowds: tuple[int, ...]
    memory_rows: int
    memory_blocks: int
    equal_rows: int
    cifar: CifarPlan


def _list_cases(*sizes: int) -> tuple[Case, ...]:
    """Return cases: a single owner in the middle and near the end, and ten owners anywhere."""
    single = [Case(n, 1, place) for n in sizes for place in (0.5, 0.95)]
    return (*single, Case(sizes[-1], 10))


def _list_lane_recipes(precisions: tuple[str, ...], epochs: int) -> tuple[Recipe, ...]:
    nets = [Recipe(epochs, 128, 0.1, each, WIDE_MLP) for each in precisions]
    for precision, conv in (("float32", "matmul"), ("bfloat16", "matmul"), ("bfloat16", "cudnn")):
        nets.append(Recipe(epochs, 128, 0.1, precision, replace(BIG_CNN, conv=conv)))
    return tuple(nets)


GPU = NetSize(
    n_rows=None,
    n_test=None,
    repeats=5,
    n_blocks=100,
    n_places=10,
    crowds=(10, 100),
    crowded=4,
    shapes=((5, 1), (10, 1), (20, 1), (5, 5), (10, 5), (20, 5)),
    compared=((5, 1), (10, 1), (20, 1), (5, 5), (10, 5), (20, 5)),
    shard_crowds=(1, 10, 100),
    singles=5,
    lane_rows=None,
    lane_shards=(20,),
    lane_recipes=_list_lane_recipes(("float32", "tf32", "bfloat16"), 10),
    cases=_list_cases(500, 1000),
    fisher_rows=(None, 4096),
    newton=True,
    replay_rows=None,
    replay_epochs=5,
    replay_crowds=(1, 10, 100),
    memory_rows=20_000,
    memory_blocks=500,
    equal_rows=20_000,
    cifar=CifarPlan(
        None, None, 32, 8, ((5, None), (10, None), (20, None), (20, 1)), 50, 3, 4, "bfloat16"
    ),
)
CPU = GPU._replace(
    repeats=1,
    crowded=1,
    shapes=((5, 1), (20, 5)),
    compared=((20, 5),),
    shard_crowds=(1, 10),
    singles=2,
    lane_rows=10_000,
    lane_shards=(4,),
    lane_recipes=(Recipe(2, 128, 0.1, module=WIDE_MLP),),
    cases=(Case(1000, 1, 0.95),),
    fisher_rows=(2048, 512),
    newton=False,
    replay_rows=20_000,
    replay_epochs=3,
    replay_crowds=(1, 100),
    memory_rows=10_000,
    equal_rows=5_000,
    cifar=CifarPlan(2_000, 1_000, 8, 2, ((4, None),), 10, 1, 2, "float32", ("cudnn",)),
)
QUICK = CPU._replace(
    n_rows=2_000,
    n_test=1_000,
    repeats=1,
    n_blocks=10,
    n_places=2,
    crowds=(10,),
    shapes=((4, 1), (4, 5)),
    compared=((4, 5),),
    shard_crowds=(1, 10),
    singles=1,
    lane_rows=1_000,
    cases=(Case(100, 1, 0.5),),
    fisher_rows=(256, 128),
    replay_rows=2_000,
    replay_epochs=2,
    replay_crowds=(1,),
    memory_rows=1_000,
    memory_blocks=50,
    equal_rows=1_000,
    cifar=CifarPlan(600, 300, 4, 1, ((2, None),), 10, 1, 2, "float32", ("cudnn",)),
)
