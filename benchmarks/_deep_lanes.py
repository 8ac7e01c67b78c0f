"""Shards trained together as lanes of one stacked network, compared with one by one."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks._deep_models import (
    ImageSet,
    Recipe,
    make_sisa,
    percent,
    score_accuracy,
    time_on_device,
    times,
)
from benchmarks._report import Table, TargetCheck

__all__ = [
    "Ceilings",
    "Lanes",
    "check_lanes",
    "make_floor_table",
    "make_lane_table",
    "measure_lanes",
]

LEAST = {"MLP": 5.0, "CNN": 2.0}
COLUMNS = (
    "net", "precision", "convolution", "S", "stacked: first call s", "stacked: again s",
    "one by one: first call s", "one by one: again s", "x", "accuracy",
)  # fmt: skip
NOTE = (
    "{recipe} per shard, {rows:,} images. *stacked*: all shards in one step of S lanes; *one by "
    "one*: shard after shard, each with a loop of its own. *first call*: the fit{graphs}. "
    "*again*: a request of one person in every shard, which trains all of them again with "
    "everything loaded: rows on the device, batches made there, answers not included. *x*: one by "
    "one over stacked, again, in the same precision."
)
FLOOR_COLUMNS = (
    "net", "precision", "convolution", "S", "steps per epoch", "step us", "MB per step",
    "bytes floor us", "GFLOP per step", "FLOP floor us", "step / larger floor",
)  # fmt: skip
FLOOR_NOTE = (
    "One step of all lanes, from the time between callbacks after epochs. Bytes: parameters read "
    "in both passes, gradient written and read, parameter and momentum read and written, 32 per "
    "parameter; activations written and read, and their gradients likewise, counted as float32 (2 "
    "bytes with bfloat16). Nothing of the way a convolution is computed is in it. FLOPs: those of "
    "products and convolutions in both passes. Ceilings measured in this run: copy {copy:,.0f} "
    "GB/s read and written; products {products}. No floor for launches, which rule small nets."
)


class Lanes(NamedTuple):
    """One network in one precision: seconds of the first and of a later training, both ways."""

    net: str
    recipe: Recipe
    n_shards: int
    stacked: tuple[float, float]
    single: tuple[float, float]
    accuracy: float
    step: float
    n_steps: int
    data: ImageSet

    @property
    def ratio(self) -> float:
        """Time one by one divided by time stacked."""
        return self.single[1] / self.stacked[1]

    def names(self) -> tuple[str, str, str, int]:
        """Return the first cells of a row."""
        conv = getattr(self.recipe.module, "conv", "")
        return self.net, self.recipe.precision, conv, self.n_shards


def measure_lanes(data: ImageSet, recipe: Recipe, n_shards: int, device: str) -> Lanes:
    """Train S shards twice in both ways."""
    walls: dict[str, tuple[float, float]] = {}
    right = step = 0.0
    n_steps = 0
    for name, width in (("stacked", n_shards), ("single", 1)):
        model = make_sisa(recipe, device, n_shards=n_shards, n_slices=1, lane_width=width)
        first = time_on_device(lambda model=model: model.fit(data.X, data.y), device)[1]  # type: ignore[misc]
        people = _choose_people(model, 0)
        again = time_on_device(lambda model=model, people=people: model.forget(people), device)[1]  # type: ignore[misc]
        walls[name] = first.wall, again.wall
        if name == "stacked":
            right = score_accuracy(model, data)
            sizes = np.bincount(model.rows_.extra["shard"][model.rows_.alive])
            n_steps = -(-int(sizes.max()) // recipe.batch_size)
            step = _time_epoch(model) / n_steps
    net = type(recipe.module).__name__
    both = walls["stacked"], walls["single"]
    return Lanes(net, recipe, n_shards, *both, right, step, n_steps, data)


def _choose_people(model: Any, skip: int) -> list[int]:
    """Return one person of every shard."""
    rows = model.rows_
    shards = np.where(rows.alive, rows.extra["shard"], -1)
    return [int(np.flatnonzero(shards == shard)[skip]) for shard in range(int(model.n_shards))]


def _time_epoch(model: Any) -> float:
    """Return the median time between callbacks while all shards train again."""
    stamps: list[float] = []
    model.forget(_choose_people(model, 0), callback=lambda _: stamps.append(time.perf_counter()))
    return float(np.median(np.diff(stamps)))


class Ceilings:
    """Measured rates of copies and matrix products on the device."""

    def __init__(self, device: str) -> None:
        self.device = device
        large = device == "cuda"
        self.copy = self._copy(2**28 if large else 2**24)
        self.products = {name: self._product(name, 8192 if large else 1024) for name in _TYPES}

    def _copy(self, n: int) -> float:
        """Return bytes per second, read and written."""
        source = torch.zeros(n, device=self.device)
        target = torch.empty_like(source)
        return 8 * n / self._best(lambda: target.copy_(source))

    def _product(self, precision: str, n: int) -> float:
        """Return floating-point operations per second of a square product."""
        one = torch.randn(n, n, device=self.device).to(_TYPES[precision])
        out, allowed = torch.empty_like(one), torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        try:
            return 2 * n**3 / self._best(lambda: torch.mm(one, one, out=out))
        finally:
            torch.backends.cuda.matmul.allow_tf32 = allowed

    def _best(self, call: Callable[[], Any]) -> float:
        for _ in range(3):
            call()
        return min(
            time_on_device(lambda: [call() for _ in range(10)], self.device)[1].wall / 10
            for _ in range(3)
        )

    def describe(self) -> str:
        """Describe the rates of products."""
        return ", ".join(
            f"{name} {rate / 1e12:,.2f} TFLOP/s" for name, rate in self.products.items()
        )


_TYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}


def _count_step(lanes: Lanes) -> tuple[float, float]:
    """Return bytes and operations of one step of all lanes."""
    module = lanes.recipe.module(lanes.data.X.shape[1:], 10)
    x = torch.tensor(lanes.data.X[: lanes.recipe.batch_size]).float()
    sizes: list[int] = []
    for part in module.modules():
        if not list(part.children()):
            part.register_forward_hook(lambda _, __, out: sizes.append(out.numel()))
    with FlopCounterMode(display=False) as counter:
        module(x).sum().backward()
    n_parameters = sum(part.numel() for part in module.parameters())
    width = 2 if lanes.recipe.precision == "bfloat16" else 4
    moved = 32 * n_parameters + 4 * width * sum(sizes)
    return lanes.n_shards * moved, lanes.n_shards * float(counter.get_total_flops())


def make_lane_table(races: list[Lanes], device: str) -> Table:
    """Return the table of all networks and precisions."""
    rows = [
        (*each.names(), *each.stacked, *each.single, times(each.ratio), percent(each.accuracy))
        for each in races
    ]
    graphs = ", with one CUDA graph captured per loop" if device == "cuda" else ""
    recipes = "; ".join(
        dict.fromkeys(f"{each.net}: {each.recipe}" for each in races[:1] + races[-1:])
    )
    note = NOTE.format(recipe=recipes, rows=len(races[0].data.y), graphs=graphs)
    return Table(f"Stacked shards: {races[0].data.describe()}", COLUMNS, rows, note)


def make_floor_table(races: list[Lanes], ceilings: Ceilings) -> Table:
    """Compare the time of a step with the time of its memory traffic and operations."""
    rows = []
    for each in races:
        moved, operations = _count_step(each)
        floors = moved / ceilings.copy, operations / ceilings.products[each.recipe.precision]
        rows.append(
            (
                *each.names(), each.n_steps, 1e6 * each.step, moved / 1e6, 1e6 * floors[0],
                operations / 1e9, 1e6 * floors[1], each.step / max(floors),
            )
        )  # fmt: skip
    note = FLOOR_NOTE.format(copy=ceilings.copy / 1e9, products=ceilings.describe())
    return Table("Stacked shards: time against the floor", FLOOR_COLUMNS, rows, note)


def check_lanes(races: list[Lanes], device: str) -> list[TargetCheck]:
    """Compare the fastest stacked run with the fastest one-by-one run, per network, on a GPU."""
    verdicts = []
    for net, least in LEAST.items() if device == "cuda" else ():
        mine = [each for each in races if each.net == net]
        if not mine:
            continue
        stacked = min(mine, key=lambda each: each.stacked[1])
        single = min(mine, key=lambda each: each.single[1])
        ratio = single.single[1] / stacked.stacked[1]
        what = f"{net}, {stacked.n_shards} shards, fastest one by one over fastest stacked"
        verdicts.append(TargetCheck(what, times(ratio), f">= {least:g}x", ratio >= least))
    return verdicts
