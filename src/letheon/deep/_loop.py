"""Deterministic training loop for many networks at once, with batches that removals keep stable.

A lane is one network. W lanes with the same architecture share one tensor of parameters of shape
(W, p) and take their steps together. The trained parameters of a lane depend only on its own
initial parameters, rows, lane number and seed. As long as the number of lanes is the same, they
have the same bits, whatever the other lanes are trained on.

Every row has a slot. An epoch orders the slots by a keyed hash of their numbers and cuts this order
into batches. The slot of a forgotten row stays empty, so all other rows stay in the same batches::

    order(slots) = argsort mix64(mix64(keyed_hash(seed, "net-order", phase, epoch), lane), slot)

The hashes are 64-bit integers, so the order is the same on every device.
The parameters, momentum and step count of an inactive lane must not change, so the named optimizers
are implemented here, with a mask of the active lanes. A custom one gets each lane separately.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import log, pi
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from letheon.deep._device import matmul_precision, pause_runs
from letheon.deep._module import Template
from letheon.exceptions import TrainingError
from letheon.removal import opaque_repr
from letheon.seeds import Purpose, keyed_hash

Slots = NDArray[np.int64]

OPTIMIZERS = ("sgd", "adam", "adamw")
PRECISIONS = ("float32", "tf32", "bfloat16")
SCHEDULES = ("constant", "cosine", "one-cycle")
EMPTY = -1
_ABSENT = -2  # beyond the slots of a lane that has fewer than others
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_BETA_1, _BETA_2, _TINY = 0.9, 0.999, 1e-8
_WARM_UP = 0.25
_WARM_UPS = 3


class LaneBatches(NamedTuple):
    """Batches of W lanes in T steps; each batch has b slots.

    Attributes
    ----------
    rows : int64 tensor of shape (T, W, b)
        Positions of the rows. An empty slot repeats a row of its batch, taken cyclically.
    weights : float32 tensor of shape (T, W, b)
        1 / (rows in the batch), 0 for empty slots; the weighted sum of the losses is their mean.
    active : bool tensor of shape (T, W)
        Whether the batch has rows. A lane makes no step on a batch without rows.
    """

    rows: Tensor
    weights: Tensor
    active: Tensor


def to_signed(word: int) -> int:
    """Return the signed 64-bit integer that has the same bits as an unsigned one."""
    return word - (1 << 64) if word >= 1 << 63 else word


def mix64(key: Tensor, bits: Tensor) -> Tensor:
    """Return the 64-bit hashes of `letheon.seeds.mix64` for int64 tensors, with broadcasting."""
    return _finalise_bits(key ^ _finalise_bits(bits + to_signed(_GOLDEN_GAMMA)))


def _finalise_bits(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30)) * to_signed(_MULTIPLIER_1)
    z = (z ^ _shift_right(z, 27)) * to_signed(_MULTIPLIER_2)
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def slot_matrix(slots: Sequence[Slots | None], device: torch.device) -> Tensor:
    """Return the slots of all lanes as a padded matrix (W, n); an idle lane (None) has none."""
    width = max((len(lane) for lane in slots if lane is not None), default=0)
    matrix = np.full((len(slots), width), _ABSENT)
    for line, lane in zip(matrix, slots, strict=True):
        if lane is not None:
            line[: len(lane)] = lane
    return torch.from_numpy(matrix).to(device)


def epoch_batches(matrix: Tensor, lanes: Tensor, key: int, batch_size: int) -> LaneBatches:
    """Return the batches of one epoch; each batch has `batch_size` slots.

    `matrix` (W, n) comes from `slot_matrix`, `lanes` (W,) has the numbers of the lanes, and `key`
    is the 64-bit keyed hash of the epoch.
    """
    n_lanes, n_slots = matrix.shape
    n_steps = -(-n_slots // batch_size)
    keys = mix64(torch.full_like(lanes, to_signed(key)), lanes)
    order = mix64(keys[:, None], torch.arange(n_slots, device=matrix.device)[None, :])
    order = order.masked_fill(matrix == _ABSENT, torch.iinfo(torch.int64).max)
    sequence = matrix.gather(1, order.argsort(dim=1, stable=True))
    padded = torch.full(
        (n_lanes, n_steps * batch_size), EMPTY, dtype=torch.int64, device=matrix.device
    )
    padded[:, :n_slots] = sequence
    return _fill_batches(padded.view(n_lanes, n_steps, batch_size).transpose(0, 1))


def _fill_batches(rows: Tensor) -> LaneBatches:
    present = rows >= 0
    counts = present.sum(dim=2, keepdim=True)
    # Empty slots repeat the rows cyclically, so BatchNorm weights them about equally.
    first = rows.gather(2, (~present).to(torch.int8).argsort(dim=2, stable=True)).clamp(min=0)
    turn = ((~present).cumsum(dim=2) - 1).clamp(min=0) % counts.clamp(min=1)
    weights = present / counts.clamp(min=1)
    filled = torch.where(present, rows, first.gather(2, turn))
    return LaneBatches(filled, weights, counts[:, :, 0] > 0)


def slot_batches(
    matrix: Tensor, lanes: Tensor, seed: int, phase: int, n_epochs: int, batch_size: int
) -> LaneBatches:
    """Return the batches of all epochs of a phase, one epoch after the other."""
    epochs = [
        epoch_batches(matrix, lanes, keyed_hash(seed, Purpose.NET_ORDER, phase, epoch), batch_size)
        for epoch in range(n_epochs)
    ]
    return LaneBatches(*map(torch.cat, zip(*epochs, strict=True)))


Loss = Callable[[Tensor, Tensor], Tensor]


class DeviceData(NamedTuple):
    """Rows (float32 or uint8) and class codes (int64) of all slots, on the device."""

    X: Tensor
    y: Tensor

    def __repr__(self) -> str:
        """Return a text without the rows, because a traceback must not contain them."""
        return opaque_repr(self)


@dataclass(frozen=True)
class Progress:
    """Progress of training; passed to the callback after every epoch.

    Attributes
    ----------
    part, n_parts, epoch, n_epochs, loss : int, int, int, int, float
        Current block or stage, and epoch in it, from 0, with their totals; mean loss of the epoch.

    Examples
    --------
    >>> Progress(part=0, n_parts=2, epoch=1, n_epochs=3, loss=0.5).epoch
    1
    """

    part: int
    n_parts: int
    epoch: int
    n_epochs: int
    loss: float


Callback = Callable[[Progress], object]


@dataclass(frozen=True)
class TrainingPhase:
    """One block or stage to train.

    Attributes
    ----------
    number : int
        Number of the phase; the seeds depend on it.
    slots : tuple of ndarray or None
        For every lane, the positions of its rows in slot order, with -1 for empty slots. None for
        a lane that is not trained in this phase.
    epochs : int
        Number of passes over the slots.
    rate : float
        Factor by which the learning rate is multiplied; only for named optimizers.
    kind : str
        What a phase is called in error messages: block, stage or part.
    """

    number: int
    slots: tuple[Slots | None, ...]
    epochs: int
    rate: float = 1.0
    kind: str = "part"


@dataclass(frozen=True)
class LoopSettings:
    """Settings of the training loop, with the names of the estimators' parameters."""

    batch_size: int
    optimizer: Any
    learning_rate: float
    momentum: float
    weight_decay: float
    schedule: str
    loss: str | Loss
    precision: str

    def row_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every row of one network.

        The loss is computed for one network at a time, because a custom loss may combine all the
        rows that it gets. Raise `TrainingError` if a custom loss does not return one number per
        row.
        """
        if isinstance(self.loss, str):
            return functional.cross_entropy(logits, targets, reduction="none")
        losses = self.loss(logits, targets)
        if losses.shape != targets.shape:
            raise TrainingError(
                f"loss returned shape {tuple(losses.shape)} for {len(targets)} rows; expected one "
                "number per row, for example a torch loss with reduction='none'"
            )
        return losses


class FlatSGD:
    """Gradient descent with momentum: ``v <- m v + g + decay w``, ``w <- w - rate v``."""

    can_be_captured = True

    def __init__(self, flat: Tensor, momentum: float, weight_decay: float) -> None:
        self._flat, self._momentum, self._decay = flat, momentum, weight_decay
        self._velocity = torch.zeros_like(flat) if momentum else None

    def reset(self) -> None:
        """Set the momentum to zero."""
        if self._velocity is not None:
            self._velocity.zero_()

    def step(self, gradient: Tensor, rate: Tensor, active: Tensor) -> None:
        """Update the parameters of the active lanes by one step."""
        pull = active.to(self._flat.dtype)
        if self._decay:
            gradient = gradient.add(self._flat, alpha=self._decay)
        if self._velocity is None:
            self._flat.addcmul_(gradient, -rate * pull)
            return
        # Few passes over memory: with many lanes they take most of the time of a step.
        self._velocity.mul_(torch.where(active, self._momentum, 1.0))
        self._velocity.addcmul_(gradient, pull)
        self._flat.addcmul_(self._velocity, -rate * pull)


class FlatAdam:
    """Adam (Kingma and Ba, 2015), or AdamW, which applies weight decay outside the gradient."""

    can_be_captured = True

    def __init__(self, flat: Tensor, weight_decay: float, *, decoupled: bool) -> None:
        self._flat, self._decay, self._decoupled = flat, weight_decay, decoupled
        self._first = torch.zeros_like(flat)
        self._second = torch.zeros_like(flat)
        self._count = torch.zeros(len(flat), 1, device=flat.device)

    def reset(self) -> None:
        """Reset both moments and the number of steps."""
        for part in (self._first, self._second, self._count):
            part.zero_()

    def step(self, gradient: Tensor, rate: Tensor, active: Tensor) -> None:
        """Update the parameters of the active lanes by one step."""
        if self._decay and not self._decoupled:
            gradient = gradient.add(self._flat, alpha=self._decay)
        first = torch.lerp(self._first, gradient, 1 - _BETA_1)
        second = torch.lerp(self._second, gradient * gradient, 1 - _BETA_2)
        self._first.copy_(torch.where(active, first, self._first))
        self._second.copy_(torch.where(active, second, self._second))
        self._count.add_(active.to(self._count.dtype))
        # Avoids a division by zero for lanes without a step.
        count = self._count.clamp(min=1)
        scale = torch.sqrt(self._second / _bias_correction(_BETA_2, count)) + _TINY
        update = self._first / _bias_correction(_BETA_1, count) / scale
        if self._decay and self._decoupled:
            update = update.add(self._flat, alpha=self._decay)
        self._flat.sub_(torch.where(active, update * rate, 0.0))


def _bias_correction(beta: float, count: Tensor) -> Tensor:
    """Return ``1 - beta ** count`` for each step count, without loss of digits in float32."""
    return -torch.expm1(log(beta) * count)


class CustomOptimizer:
    """Custom optimizers, one for each lane, which share no state.

    They use their own learning rate. The optimizer of an inactive lane makes no step.
    """

    can_be_captured = False

    def __init__(
        self, flat: Tensor, shapes: Sequence[torch.Size], factory: Callable[[Any], Any]
    ) -> None:
        self._factory = factory
        self._sizes = [shape.numel() for shape in shapes]
        self._shapes = list(shapes)
        self._lanes = [self._split_views(line) for line in flat]
        self.reset()

    def reset(self) -> None:
        """Replace all optimizers with new ones from the factory."""
        self._optimizers = [self._factory(views) for views in self._lanes]
        first = self._optimizers[0]
        try:
            inspect.signature(first.step).bind()
        except TypeError:
            raise TrainingError(
                f"optimizer {type(first).__name__} needs a closure that recomputes the loss; "
                "expected an optimizer whose step() takes no arguments"
            ) from None

    def step(self, gradient: Tensor, rate: Tensor, active: Tensor) -> None:  # noqa: ARG002
        """Update the parameters of the active lanes by one step."""
        takes_part = active[:, 0].tolist()
        lanes = zip(self._lanes, self._optimizers, gradient, takes_part, strict=True)
        for views, optimizer, line, is_active in lanes:
            if is_active:
                for view, part in zip(views, self._split_views(line), strict=True):
                    view.grad = part
                optimizer.step()

    def _split_views(self, line: Tensor) -> list[Tensor]:
        parts = zip(line.split(self._sizes), self._shapes, strict=True)
        return [part.view(shape) for part, shape in parts]


# Updates the lanes in place.
LaneOptimizer = FlatSGD | FlatAdam | CustomOptimizer


def make_optimizer(
    settings: LoopSettings, flat: Tensor, shapes: Sequence[torch.Size]
) -> LaneOptimizer:
    """Return the optimizer for a name, or for a factory such as ``lambda ps: SGD(ps, lr=0.1)``."""
    name, decay = settings.optimizer, settings.weight_decay
    if callable(name):
        return CustomOptimizer(flat, shapes, name)
    if name == "sgd":
        return FlatSGD(flat, settings.momentum, decay)
    return FlatAdam(flat, decay, decoupled=name == "adamw")


def learning_rates(active: Tensor, schedule: str, learning_rate: float) -> Tensor:
    """Return the learning rate of every step and lane, shape (T, W).

    In step k = 0, 1, ... of the n steps in which a lane is active, `learning_rate` is multiplied by
    a factor. It is 1 for "constant" and ``(1 + cos(pi k / n)) / 2`` for "cosine". For "one-cycle",
    with ``x = (k + 1) / (n + 1)``, it rises linearly from 0 to 1 over the first quarter of x and
    falls linearly to 0 over the rest.
    """
    if schedule == "constant":
        return torch.full(active.shape, learning_rate, device=active.device)
    steps = active.cumsum(0)
    total = steps[-1:].clamp(min=1)
    if schedule == "cosine":
        x = (steps - 1).clamp(min=0) / total
        return learning_rate * (1 + torch.cos(pi * x)) / 2
    x = steps / (total + 1)
    return learning_rate * torch.minimum(x / _WARM_UP, (1 - x) / (1 - _WARM_UP))


class Loop:
    """Training loop of W lanes with one architecture.

    Parameters
    ----------
    data : DeviceData
        Rows of all lanes. On a GPU a captured step reads this memory directly.
    lanes : tuple of int
        Numbers of the lanes; the seeds depend on them.
    group : int
        Number of this group of lanes; the seeds of its dropout masks depend on it.
    """

    def __init__(
        self,
        template: Template,
        settings: LoopSettings,
        data: DeviceData,
        *,
        seed: int,
        lanes: tuple[int, ...],
        group: int = 0,
    ) -> None:
        self.device = data.X.device
        self._template = template.to(self.device)
        self._settings, self._data, self._seed, self._group = settings, data, seed, group
        self._lanes = torch.tensor(lanes, device=self.device)
        width = len(lanes)
        self._flat = torch.zeros(width, template.n_parameters, device=self.device)
        self._optimizer = make_optimizer(settings, self._flat, template.shapes)
        self._loss = torch.zeros(width, device=self.device)
        self._captured: _CapturedStep | None = None

    def initial_flat(self) -> Tensor:
        """Return the initial parameters of the lanes, shape (W, p)."""
        lanes = [self._template.initial_flat(lane) for lane in self._lanes.tolist()]
        return torch.stack(lanes).to(self.device)

    def train(
        self,
        flat: Tensor,
        phase: TrainingPhase,
        callback: Callback | None = None,
        place: tuple[int, int] = (0, 1),
    ) -> Tensor:
        """Train the lanes on their slots, starting from `flat`, and return the new parameters.

        Parameters
        ----------
        flat : Tensor of shape (W, p)
            Initial parameters; not modified.
        callback : callable, optional
            Called after every epoch, which makes a GPU finish its queued work. During the call,
            other threads may train, and torch has the caller's settings.
        place : tuple of int
            Number of this part, from 0, and number of parts, both for the callback.

        Raises
        ------
        TrainingError
            The loss or a parameter is not finite; the message names the lane, phase and epoch.
        """
        self._flat.copy_(flat)
        self._optimizer.reset()
        if not any(lane is not None and (lane >= 0).any() for lane in phase.slots):
            return self._flat.clone()
        plan = self._make_plan(slot_matrix(phase.slots, self.device), phase)
        if self._uses_graph and (self._captured is None or plan.n_steps > self._captured.room):
            # Before the generators are seeded: the first steps on a GPU draw numbers too.
            self._captured = _CapturedStep(self, plan.n_steps)
        losses = []
        for epoch in range(phase.epochs):
            self._seed_generators(phase.number, epoch)
            losses.append(self._run_epoch(plan, epoch))
            if callback is not None:
                mean = float(losses[-1][plan.takes_part].mean())
                with pause_runs():
                    callback(Progress(*place, epoch, phase.epochs, mean))
        # Inactive lanes were computed too, with meaningless results.
        self._flat.copy_(torch.where(plan.takes_part[:, None], self._flat, flat))
        self._require_finite(torch.stack(losses), phase)
        return self._flat.clone()

    def _make_plan(self, matrix: Tensor, phase: TrainingPhase) -> "_PhasePlan":
        size, n_epochs = self._settings.batch_size, phase.epochs
        if len(self._lanes) == 1 and not (self._uses_graph or self._template.has_batch_norm):
            # A single lane does not need slots that are never filled. With BatchNorm it does: the
            # weights of the rows must be the same as next to other lanes.
            size = min(size, matrix.shape[1])
        rows, weights, active = slot_batches(
            matrix, self._lanes, self._seed, phase.number, n_epochs, size
        )
        top = phase.rate * self._settings.learning_rate
        rates = learning_rates(active, self._settings.schedule, top)
        return _PhasePlan((rows, weights, rates, active), len(rows) // n_epochs, active.any(dim=0))

    def _seed_generators(self, number: int, epoch: int) -> None:
        seed = keyed_hash(self._seed, Purpose.NET_EPOCH, self._group, number, epoch)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(seed)

    def _run_epoch(self, plan: "_PhasePlan", epoch: int) -> Tensor:
        """Run the steps of one epoch; return the mean loss of every lane."""
        self._loss.zero_()
        begin = epoch * plan.n_steps
        tables = [table[begin : begin + plan.n_steps] for table in plan.tables]
        if self._uses_graph:
            assert self._captured is not None
            self._captured.replay(tables)
        else:
            for step in zip(*tables, strict=True):
                self._run_step(*step)
        return self._loss / tables[-1].sum(dim=0).clamp(min=1)

    @property
    def _uses_graph(self) -> bool:
        return self._optimizer.can_be_captured and self.device.type == "cuda"

    def _run_step(self, rows: Tensor, weights: Tensor, rates: Tensor, active: Tensor) -> None:
        """Run one step; `rows` and `weights` have shape (W, b), `rates` and `active` shape (W,)."""
        leaf = self._flat.detach().requires_grad_()
        # TF32: a GPU may round the factors of matrix products.
        is_coarse = self._settings.precision == "tf32"
        rounding = matmul_precision(self.device, coarse=True) if is_coarse else nullcontext()
        with torch.enable_grad(), rounding:
            losses = (self._row_losses(leaf, rows) * weights).sum(dim=1)
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        with torch.no_grad():
            # Inactive lanes have weights of 0, but 0 times infinity is NaN.
            self._loss.add_(torch.where(active, losses, 0.0))
            self._optimizer.step(gradient, rates[:, None], active[:, None])

    def _row_losses(self, flat: Tensor, rows: Tensor) -> Tensor:
        width, size = rows.shape
        x = self._data.X.index_select(0, rows.reshape(-1)).to(torch.float32)
        y = self._data.y.index_select(0, rows.reshape(-1))
        with self._autocast_context():
            if width == 1:
                logits = self._template.train_logits(flat[0], x)
            else:
                stacked = x.view(width, size, *x.shape[1:])
                logits = self._template.compute_stacked_logits(flat, stacked).flatten(0, 1)
        logits, settings = logits.float(), self._settings
        if isinstance(settings.loss, str):
            return settings.row_losses(logits, y).view(width, size)
        lanes = zip(logits.split(size), y.split(size), strict=True)
        return torch.stack([settings.row_losses(*lane) for lane in lanes])

    def _autocast_context(self) -> AbstractContextManager[Any]:
        if self._settings.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    def _require_finite(self, losses: Tensor, phase: TrainingPhase) -> None:
        # The last step can make parameters infinite after the last loss was computed.
        losses[-1] = torch.where(torch.isfinite(self._flat).all(dim=1), losses[-1], torch.nan)
        bad = (~torch.isfinite(losses)).nonzero()
        if len(bad) == 0:
            return
        epoch, lane = bad[0].tolist()
        raise TrainingError(
            f"training diverged: the loss is {float(losses[epoch, lane])} in {phase.kind} "
            f"{phase.number}, epoch {epoch} of network {int(self._lanes[lane])} (counted from 0); "
            "nothing was changed. Scale the rows, or lower learning_rate"
        )


class _PhasePlan(NamedTuple):
    """Rows, weights, rates and active lanes of all steps of a phase; lanes that take part in it."""

    tables: tuple[Tensor, Tensor, Tensor, Tensor]
    n_steps: int
    takes_part: Tensor


class _CapturedStep:
    """Training step as a CUDA graph that reads its batch at a counter and advances the counter."""

    def __init__(self, loop: Loop, n_steps: int) -> None:
        device, size = loop.device, loop._settings.batch_size
        width, self.room = len(loop._lanes), max(2 * n_steps, 64)
        self._tables = (
            torch.zeros(self.room, width, size, dtype=torch.int64, device=device),
            torch.zeros(self.room, width, size, device=device),
            torch.zeros(self.room, width, device=device),
            torch.zeros(self.room, width, dtype=torch.bool, device=device),
        )
        self._counter = torch.zeros(1, dtype=torch.int64, device=device)
        self._graph = torch.cuda.CUDAGraph()
        # All lanes are inactive in these steps, so they change nothing.
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.device(device), torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self._run_step(loop)
        torch.cuda.current_stream(device).wait_stream(stream)
        self._counter.zero_()
        # Work of other threads on the GPU, such as predictions, is not part of the step.
        with (
            torch.cuda.device(device),
            torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"),
        ):
            self._run_step(loop)

    def _run_step(self, loop: Loop) -> None:
        loop._run_step(*(table.index_select(0, self._counter)[0] for table in self._tables))
        self._counter.add_(1)

    def replay(self, tables: Sequence[Tensor]) -> None:
        """Run one step for each entry of these tables by replaying the captured step."""
        n_steps = len(tables[0])
        for own, table in zip(self._tables, tables, strict=True):
            own[:n_steps] = table
        self._counter.zero_()
        for _ in range(n_steps):
            self._graph.replay()
