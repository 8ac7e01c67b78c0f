"""A hand-written loop for stacked shards, and letheon's loop in the same process.

The yardstick trains S shards of a network with one hidden layer: batched matrix products, momentum
by `torch._foreach`, one shared order of batches, and on a GPU one captured step. It does only what
training needs: no empty slots, no inactive networks, no checks.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks._deep_models import ImageSet, Recipe, make_sisa, percent, time_on_device, times
from benchmarks._report import Table, TargetCheck

__all__ = ["HandRace", "check_races", "make_race_table", "measure_race"]

MOST = 1.25
N_SHARDS, WIDTH = 20, 256
REPEATS = 3
COLUMNS = ("S", "lanes", "what", "letheon s", "by hand s", "over by hand", "accuracy of both")
NOTE = (
    "{recipe}, MLP of width {width}, {rows:,} images; the best of {repeats} runs each, in one "
    "process, taken in turn; processor seconds on a CPU. *every shard*: a request of one person "
    "per shard, and by hand the training of all shards. *one shard*: a request of one person, and "
    "by hand the training of one shard."
)


class StackedMLP:
    """S networks with one hidden layer, trained by hand."""

    def __init__(self, data: ImageSet, rows: Tensor, device: str) -> None:
        n_shards, d, generator = len(rows), data.X[0].size, torch.Generator().manual_seed(0)
        sizes = ((d, WIDTH), (WIDTH, 10))
        self.parameters = []
        for n_in, n_out in sizes:
            for shape in ((n_shards, n_in, n_out), (n_shards, 1, n_out)):
                start = (2 * torch.rand(shape, generator=generator) - 1) / n_in**0.5
                self.parameters.append(start.to(device).requires_grad_())
        self.velocities = [torch.zeros_like(part) for part in self.parameters]
        self.X = torch.from_numpy(data.X.reshape(len(data.X), -1)).to(device)
        self.y, self.rows, self.device = (
            torch.from_numpy(data.y).to(device),
            rows.to(device),
            device,
        )

    def compute_logits(self, x: Tensor) -> Tensor:
        """Return the logits (S, n, 10) of pixels (S, n, d)."""
        w1, b1, w2, b2 = self.parameters
        hidden = torch.relu(torch.baddbmm(b1, x.float() / 255, w1))
        return torch.baddbmm(b2, hidden, w2)

    def train(self, recipe: Recipe) -> None:
        """Train all shards; each has the same number of rows."""
        n_rows, size = self.rows.shape[1], recipe.batch_size
        n_batches, k = -(-n_rows // size), 0
        n_steps = recipe.epochs * n_batches
        batch, rate = self.rows[:, :size].clone(), torch.zeros((), device=self.device)
        step = self._capture(batch, rate) if self.device == "cuda" else self._step
        for _ in range(recipe.epochs):
            order = torch.rand(self.rows.shape, device=self.device).argsort(dim=1)
            # The last batch is filled with the first rows.
            shuffled = self.rows.gather(1, order).repeat(1, 2)[:, : n_batches * size]
            for begin in range(0, n_batches * size, size):
                x = (k + 1) / (n_steps + 1)
                batch.copy_(shuffled[:, begin : begin + size])
                rate.fill_(recipe.learning_rate * min(x / 0.25, (1 - x) / 0.75))
                step(batch, rate)
                k += 1

    def _step(self, batch: Tensor, rate: Tensor) -> None:
        logits = self.compute_logits(self.X[batch])
        loss = functional.cross_entropy(logits.flatten(0, 1), self.y[batch].flatten())
        gradients = torch.autograd.grad(loss * len(batch), self.parameters)
        with torch.no_grad():
            torch._foreach_mul_(self.velocities, 0.9)
            torch._foreach_add_(self.velocities, list(gradients))
            torch._foreach_sub_(self.parameters, torch._foreach_mul(self.velocities, rate))

    def _capture(self, batch: Tensor, rate: Tensor) -> Any:
        """Return a function that replays one captured step; the tensors are its inputs."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # with a rate of 0
                self._step(batch, rate)
        torch.cuda.current_stream().wait_stream(stream)
        for velocity in self.velocities:
            velocity.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(batch, rate)
        return lambda *_: graph.replay()

    def score_accuracy(self, data: ImageSet) -> float:
        """Return the accuracy of the mean over all networks in per cent."""
        x = torch.from_numpy(data.X_test.reshape(len(data.X_test), -1)).to(self.device)
        with torch.no_grad():
            shares = self.compute_logits(x.expand(len(self.rows), *x.shape)).softmax(dim=2).mean(0)
        return 100 * float(np.mean(shares.argmax(1).cpu().numpy() == data.y_test))


class HandRace(NamedTuple):
    """Seconds of a request with letheon and of the same training by hand."""

    lanes: int
    what: str
    letheon: float
    by_hand: float
    accuracies: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Time of letheon over the time by hand."""
        return self.letheon / self.by_hand


def measure_race(data: ImageSet, recipe: Recipe, lanes: int, device: str) -> list[HandRace]:
    """Measure requests in every shard and in one shard, in turn with the training by hand."""
    model = make_sisa(recipe, device, n_shards=N_SHARDS, n_slices=1, lane_width=lanes)
    model.fit(data.X, data.y)
    n_rows = len(data.y) // N_SHARDS
    table = torch.randperm(len(data.y))[: n_rows * N_SHARDS].view(N_SHARDS, n_rows)
    races = []
    for what, n_shards in (("every shard", N_SHARDS), ("one shard", 1)):
        mine, theirs, right = [], [], 0.0
        for skip in range(REPEATS + 1):  # the first is a warm-up
            people = _choose_people(model, n_shards, skip)
            seconds = time_on_device(lambda people=people: model.forget(people), device)[1]  # type: ignore[misc]
            mine.append(_choose_time(seconds, device))
            stacked = StackedMLP(data, table[:n_shards], device)
            seconds = time_on_device(lambda s=stacked: s.train(recipe), device)[1]  # type: ignore[misc]
            theirs.append(_choose_time(seconds, device))
            right = stacked.score_accuracy(data)
        both = 100 * float(np.mean(model.predict(data.X_test) == data.y_test)), right
        races.append(HandRace(lanes, what, min(mine[1:]), min(theirs[1:]), both))
    return races


def _choose_time(seconds: Any, device: str) -> float:
    """Return processor seconds on a CPU, which other processes hardly change, else wall time."""
    return float(seconds.cpu if device == "cpu" else seconds.wall)


def _choose_people(model: Any, n_shards: int, skip: int) -> list[int]:
    """Return one remaining person of each of the first shards."""
    rows = model.rows_
    shards = np.where(rows.alive, rows.extra["shard"], -1)
    slots = [int(np.flatnonzero(shards == shard)[skip]) for shard in range(n_shards)]
    people: list[int] = rows.ids_at(np.array(slots)).to_list()
    return people


def make_race_table(races: list[HandRace], data: ImageSet, recipe: Recipe) -> Table:
    """Return the table of all races."""
    rows = [
        (
            N_SHARDS, each.lanes, each.what, each.letheon, each.by_hand, times(each.ratio),
            " / ".join(percent(value) for value in each.accuracies),
        )
        for each in races
    ]  # fmt: skip
    note = NOTE.format(recipe=recipe, width=WIDTH, rows=len(data.y), repeats=REPEATS)
    return Table(f"Hand-written loop: {data.describe()}", COLUMNS, rows, note)


def check_races(races: list[HandRace]) -> list[TargetCheck]:
    """Compare the fastest number of lanes with the loop by hand."""
    best = min(
        (each for each in races if each.what == "every shard"), key=lambda each: each.letheon
    )
    what = f"{N_SHARDS} MLP shards, a request in every shard, over the loop by hand"
    return [TargetCheck(what, times(best.ratio), f"<= {MOST:g}x", best.ratio <= MOST)]
