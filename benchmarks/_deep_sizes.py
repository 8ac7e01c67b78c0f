"""How much a run does: on a GPU, on a CPU, and for a first look."""

from dataclasses import replace
from typing import NamedTuple

from benchmarks._deep_backdoor import Case
from benchmarks._deep_cifar import Plan
from benchmarks._deep_models import BIG_CNN, WIDE_MLP, Recipe

__all__ = ["CPU", "GPU", "QUICK", "Size"]


class Size(NamedTuple):
    """How much of everything one run does."""

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
    cifar: Plan


def _cases(*sizes: int) -> tuple[Case, ...]:
    """Return single owners in the middle and near the end, and ten owners anywhere."""
    single = [Case(n, 1, place) for n in sizes for place in (0.5, 0.95)]
    return (*single, Case(sizes[-1], 10))


def _lanes(precisions: tuple[str, ...], epochs: int) -> tuple[Recipe, ...]:
    nets = [Recipe(epochs, 128, 0.1, each, WIDE_MLP) for each in precisions]
    for precision, conv in (("float32", "matmul"), ("bfloat16", "matmul"), ("bfloat16", "cudnn")):
        nets.append(Recipe(epochs, 128, 0.1, precision, replace(BIG_CNN, conv=conv)))
    return tuple(nets)


GPU = Size(
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
    lane_recipes=_lanes(("float32", "tf32", "bfloat16"), 10),
    cases=_cases(500, 1000),
    fisher_rows=(None, 4096),
    newton=True,
    replay_rows=None,
    replay_epochs=5,
    replay_crowds=(1, 10, 100),
    memory_rows=20_000,
    memory_blocks=500,
    equal_rows=20_000,
    cifar=Plan(
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
    cifar=Plan(2_000, 1_000, 8, 2, ((4, None),), 10, 1, 2, "float32", ("cudnn",)),
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
    cifar=Plan(600, 300, 4, 1, ((2, None),), 10, 1, 2, "float32", ("cudnn",)),
)
