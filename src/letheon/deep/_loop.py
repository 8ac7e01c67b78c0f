"""The training loop of the nets, and which rows make which step.

Which rows make which step: the order of slots in an epoch, and tables of batches.

Rows lie in slots. An epoch takes the slots in the order of a keyed hash of their numbers, cut into
batches; a slot whose row was forgotten keeps its place, so that nobody else changes batches::

    order(slots) = argsort mix64(mix64(keyed_hash(seed, "net-order", stretch, epoch), lane), slot)

The numbers are 64-bit integers, so every device finds the same order.

The one loop that trains every net: deterministic, position-stable, many lanes at once.

A lane is one net. W lanes with one architecture are one tensor of parameters, (W, p), and take
their steps together. What a lane becomes depends on its own start, rows, number and seed only: at
the same width of lanes it has the same bits whoever else is trained beside it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from letheon.deep._device import paused, products
from letheon.deep._module import Template
from letheon.deep._optim import Step, learning_rates, make_optimizer
from letheon.exceptions import TrainingError
from letheon.removal import opaque_repr
from letheon.seeds import Purpose, keyed_hash

Slots = NDArray[np.int64]

EMPTY = -1
_ABSENT = -2  # beyond the slots of a lane that has fewer than others
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB


class Batches(NamedTuple):
    """T steps of W lanes, b slots each.

    Attributes
    ----------
    rows : int64 tensor of shape (T, W, b)
        Positions of rows; empty slots repeat the rows of their batch in turn.
    weights : float32 tensor of shape (T, W, b)
        1 / (rows present), 0 for empty slots: the weighted sum of losses is their mean.
    active : bool tensor of shape (T, W)
        Whether anybody is in the batch; otherwise it is no step.
    """

    rows: Tensor
    weights: Tensor
    active: Tensor


def signed(word: int) -> int:
    """Return an unsigned word of 64 bits as the integer that has the same bits."""
    return word - (1 << 64) if word >= 1 << 63 else word


def mix64(key: Tensor, bits: Tensor) -> Tensor:
    """`letheon.seeds.mix64` on int64 tensors, which broadcast against each other."""
    return _finalise(key ^ _finalise(bits + signed(_GOLDEN_GAMMA)))


def _finalise(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * signed(_MULTIPLIER_1)
    z = (z ^ _shifted(z, 27)) * signed(_MULTIPLIER_2)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def slot_matrix(slots: Sequence[Slots | None], device: torch.device) -> Tensor:
    """Return the slots of all lanes as one matrix; an idle lane (None) has no slots."""
    width = max((len(lane) for lane in slots if lane is not None), default=0)
    matrix = np.full((len(slots), width), _ABSENT)
    for line, lane in zip(matrix, slots, strict=True):
        if lane is not None:
            line[: len(lane)] = lane
    return torch.from_numpy(matrix).to(device)


def epoch_batches(matrix: Tensor, lanes: Tensor, key: int, batch_size: int) -> Batches:
    """Return the batches of one epoch.

    Parameters
    ----------
    matrix : int64 tensor of shape (W, n)
        From `slot_matrix`.
    lanes : int64 tensor of shape (W,)
        Numbers of the lanes.
    key : int
        Keyed hash of the epoch, 64 bits.
    batch_size : int
        b, the number of slots in every batch.
    """
    n_lanes, n_slots = matrix.shape
    n_steps = -(-n_slots // batch_size)
    keys = mix64(torch.full_like(lanes, signed(key)), lanes)
    order = mix64(keys[:, None], torch.arange(n_slots, device=matrix.device)[None, :])
    order = order.masked_fill(matrix == _ABSENT, torch.iinfo(torch.int64).max)
    sequence = matrix.gather(1, order.argsort(dim=1, stable=True))
    padded = torch.full(
        (n_lanes, n_steps * batch_size), EMPTY, dtype=torch.int64, device=matrix.device
    )
    padded[:, :n_slots] = sequence
    return _tables(padded.view(n_lanes, n_steps, batch_size).transpose(0, 1))


def _tables(rows: Tensor) -> Batches:
    present = rows >= 0
    counts = present.sum(dim=2, keepdim=True)
    # The empty slots repeat those present in turn: BatchNorm then sees them in equal shares.
    first = rows.gather(2, (~present).to(torch.int8).argsort(dim=2, stable=True)).clamp(min=0)
    turn = ((~present).cumsum(dim=2) - 1).clamp(min=0) % counts.clamp(min=1)
    weights = present / counts.clamp(min=1)
    filled = torch.where(present, rows, first.gather(2, turn))
    return Batches(filled, weights, counts[:, :, 0] > 0)


def join_epochs(epochs: Sequence[Batches]) -> Batches:
    """Return the batches of epochs, one after the other."""
    return Batches(*(torch.cat(parts) for parts in zip(*epochs, strict=True)))


PRECISIONS = ("float32", "tf32", "bfloat16")
_WARM_UPS = 3

Loss = Callable[[Tensor, Tensor], Tensor]


class DeviceData(NamedTuple):
    """Rows (float32 or uint8) and class codes (int64) of all slots, on the device."""

    X: Tensor
    y: Tensor

    def __repr__(self) -> str:
        """Show no rows: a traceback must not spell them out."""
        return opaque_repr(self)


@dataclass(frozen=True)
class Progress:
    """How far training is; given to the callback after every epoch.

    Attributes
    ----------
    part, n_parts : int
        Block or stage in training, from 0, and how many there are to train.
    epoch, n_epochs : int
        Epoch in it, from 0, and how many it has.
    loss : float
        Mean loss of the epoch, over the nets that took part.
    """

    part: int
    n_parts: int
    epoch: int
    n_epochs: int
    loss: float


Callback = Callable[[Progress], object]


@dataclass(frozen=True)
class Stretch:
    """One block or stage to train.

    Attributes
    ----------
    number : int
        Enters the seeds.
    slots : tuple of ndarray or None
        For every lane the positions of its rows in slot order, -1 where nobody is; None leaves the
        lane as it is.
    epochs : int
        Passes over the slots.
    rate : float
        Factor of the learning rate, for optimisers by name.
    kind : str
        What to call it in an error: block, stage.
    """

    number: int
    slots: tuple[Slots | None, ...]
    epochs: int
    rate: float = 1.0
    kind: str = "part"


@dataclass(frozen=True)
class LoopSettings:
    """How nets are trained; the parameters of the estimators have the same names."""

    batch_size: int
    optimizer: Any
    learning_rate: float
    momentum: float
    weight_decay: float
    schedule: str
    loss: str | Loss
    precision: str

    def row_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every row of one net."""
        if isinstance(self.loss, str):
            return cross_entropy(logits, targets)
        return own_losses(self.loss, logits, targets)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of every row."""
    return functional.cross_entropy(logits, targets, reduction="none")


def own_losses(loss: Loss, logits: Tensor, targets: Tensor) -> Tensor:
    """Return a caller's losses of the rows of one net, or raise if they are not one per row.

    Net by net: a loss may look at a whole batch, and must not see other people's.
    """
    losses = loss(logits, targets)
    if losses.shape != targets.shape:
        raise TrainingError(
            f"loss returned shape {tuple(losses.shape)} for {len(targets)} rows; expected one "
            "number per row, as torch's losses return with reduction='none'"
        )
    return losses


class Loop:
    """Trains W lanes.

    Parameters
    ----------
    template : Template
        The architecture.
    settings : LoopSettings
        How to train.
    data : DeviceData
        Rows of all lanes. On a GPU a captured step reads this very memory.
    seed : int
        Seed of the model.
    lanes : tuple of int
        Numbers of the lanes; they enter the seeds.
    group : int
        Number of this group of lanes: dropout is drawn for the group as a whole.
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
        self._optimizer = make_optimizer(
            settings.optimizer,
            self._flat,
            template.shapes,
            settings.momentum,
            settings.weight_decay,
        )
        self._loss = torch.zeros(width, device=self.device)
        self._captured: _Captured | None = None

    def initial(self) -> Tensor:
        """Return what the lanes start from, shape (W, p)."""
        lanes = [self._template.initial(lane) for lane in self._lanes.tolist()]
        return torch.stack(lanes).to(self.device)

    def train(
        self,
        flat: Tensor,
        stretch: Stretch,
        callback: Callback | None = None,
        place: tuple[int, int] = (0, 1),
    ) -> Tensor:
        """Train the lanes on their slots, from `flat` on, and return what they become.

        Parameters
        ----------
        flat : Tensor of shape (W, p)
            Parameters at the start; left as they are.
        stretch : Stretch
            What to train on.
        callback : callable, optional
            Called after every epoch; on a GPU this waits for it. Other threads may train
            meanwhile, and torch has the caller's settings.
        place : tuple of int
            Which part of how many this is, for the callback.

        Raises
        ------
        TrainingError
            The loss or a parameter is not finite; the text names lane, part and epoch.
        """
        self._flat.copy_(flat)
        self._optimizer.reset()
        if not any(lane is not None and rows_in_slots(lane) for lane in stretch.slots):
            return self._flat.clone()
        plan = self._plan(slot_matrix(stretch.slots, self.device), stretch)
        if self._uses_graph:
            # Before the generators are seeded: the first steps on a GPU draw numbers too.
            self._capture(plan.n_steps)
        losses = []
        for epoch in range(stretch.epochs):
            self._seed_generators(stretch.number, epoch)
            losses.append(self._epoch(plan, epoch))
            if callback is not None:
                mean = float(losses[-1][plan.takes_part].mean())
                with paused():
                    callback(Progress(*place, epoch, stretch.epochs, mean))
        # Lanes that took no part computed too, on nothing that means anything.
        self._flat.copy_(torch.where(plan.takes_part[:, None], self._flat, flat))
        self._require_finite(torch.stack(losses), stretch)
        return self._flat.clone()

    def _plan(self, matrix: Tensor, stretch: Stretch) -> "_Plan":
        size = self._settings.batch_size
        if len(self._lanes) == 1 and not (self._uses_graph or self._template.has_batch_norm):
            # A lone lane can do without slots that are never filled. BatchNorm cannot: it would
            # see other shares of the rows than it does among other lanes.
            size = min(size, matrix.shape[1])
        batches = join_epochs(
            [
                epoch_batches(matrix, self._lanes, self._order_key(stretch.number, epoch), size)
                for epoch in range(stretch.epochs)
            ]
        )
        top = stretch.rate * self._settings.learning_rate
        rates = learning_rates(batches.active, self._settings.schedule, top)
        n_steps = len(batches.rows) // stretch.epochs
        return _Plan(batches, rates, n_steps, batches.active.any(dim=0))

    def _order_key(self, number: int, epoch: int) -> int:
        return keyed_hash(self._seed, Purpose.NET_ORDER, number, epoch)

    def _seed_generators(self, number: int, epoch: int) -> None:
        seed = keyed_hash(self._seed, Purpose.NET_EPOCH, self._group, number, epoch)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(seed)

    def _epoch(self, plan: "_Plan", epoch: int) -> Tensor:
        """Make the steps of one epoch; return the mean loss of every lane."""
        self._loss.zero_()
        begin = epoch * plan.n_steps
        active = plan.batches.active[begin : begin + plan.n_steps]
        if self._uses_graph:
            self._replay(plan, begin)
        else:
            for step in range(begin, begin + plan.n_steps):
                self._step(
                    plan.batches.rows[step],
                    plan.batches.weights[step],
                    plan.rates[step],
                    plan.batches.active[step],
                )
        return self._loss / active.sum(dim=0).clamp(min=1)

    @property
    def _uses_graph(self) -> bool:
        return self._optimizer.can_be_captured and self.device.type == "cuda"

    def _step(self, rows: Tensor, weights: Tensor, rates: Tensor, active: Tensor) -> None:
        """Make one step: rows and weights (W, b), learning rates and activity (W,)."""
        leaf = self._flat.detach().requires_grad_()
        with torch.enable_grad(), self._products():
            losses = (self._row_losses(leaf, rows) * weights).sum(dim=1)
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        with torch.no_grad():
            # Lanes that take no part have weights of 0, but 0 times infinity is not 0.
            self._loss.add_(torch.where(active, losses, 0.0))
            self._optimizer.step(Step(gradient, rates[:, None], active[:, None]))

    def _row_losses(self, flat: Tensor, rows: Tensor) -> Tensor:
        width, size = rows.shape
        x = self._data.X.index_select(0, rows.reshape(-1)).to(torch.float32)
        y = self._data.y.index_select(0, rows.reshape(-1))
        with self._autocast():
            if width == 1:
                logits = self._template.train_logits(flat[0], x)
            else:
                stacked = x.view(width, size, *x.shape[1:])
                logits = self._template.stacked_logits(flat, stacked).flatten(0, 1)
        if isinstance(self._settings.loss, str):
            return cross_entropy(logits.float(), y).view(width, size)
        lanes = zip(logits.float().split(size), y.split(size), strict=True)
        return torch.stack([own_losses(self._settings.loss, *lane) for lane in lanes])

    def _products(self) -> AbstractContextManager[Any]:
        """Return the context in which a GPU may round the factors of products."""
        coarse = self._settings.precision == "tf32"
        return products(self.device, coarse=True) if coarse else nullcontext()

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._settings.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    def _require_finite(self, losses: Tensor, stretch: Stretch) -> None:
        # The last step can spoil parameters whose loss nobody sees any more.
        losses[-1] = torch.where(torch.isfinite(self._flat).all(dim=1), losses[-1], torch.nan)
        bad = (~torch.isfinite(losses)).nonzero()
        if len(bad) == 0:
            return
        epoch, lane = bad[0].tolist()
        raise TrainingError(
            f"training diverged: the loss is {float(losses[epoch, lane])} in {stretch.kind} "
            f"{stretch.number}, epoch {epoch} of net {int(self._lanes[lane])} (counted from 0); "
            "nothing was changed. Scale the rows, or lower learning_rate"
        )

    def _capture(self, n_steps: int) -> None:
        if self._captured is None or not self._captured.fits(n_steps):
            self._captured = _Captured(self, n_steps)

    def _replay(self, plan: "_Plan", begin: int) -> None:
        """Make the steps of an epoch by replaying one captured step."""
        captured = self._captured
        assert captured is not None
        captured.load(plan, begin)
        for _ in range(plan.n_steps):
            captured.graph.replay()


class _Plan(NamedTuple):
    """Batches and learning rates of all epochs, steps in one, and lanes that take part."""

    batches: Batches
    rates: Tensor
    n_steps: int
    takes_part: Tensor


class _Captured:
    """One step as a CUDA graph that reads its batch from a table and counts on by itself."""

    def __init__(self, loop: Loop, n_steps: int) -> None:
        device, size = loop.device, loop._settings.batch_size
        width, room = len(loop._lanes), max(2 * n_steps, 64)
        self.rows = torch.zeros(room, width, size, dtype=torch.int64, device=device)
        self.weights = torch.zeros(room, width, size, device=device)
        self.rates = torch.zeros(room, width, device=device)
        self.active = torch.zeros(room, width, dtype=torch.bool, device=device)
        self.counter = torch.zeros(1, dtype=torch.int64, device=device)
        self.graph = torch.cuda.CUDAGraph()
        # Nobody is active in these steps, so they change nothing.
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.device(device), torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self._one(loop)
        torch.cuda.current_stream(device).wait_stream(stream)
        self.counter.zero_()
        # What other threads do on the GPU meanwhile, such as answering, is no part of the step.
        with (
            torch.cuda.device(device),
            torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"),
        ):
            self._one(loop)

    def fits(self, n_steps: int) -> bool:
        """Whether the table has room for an epoch of so many steps."""
        return n_steps <= len(self.rows)

    def load(self, plan: _Plan, begin: int) -> None:
        """Put the batches of an epoch into the table."""
        end = begin + plan.n_steps
        self.rows[: plan.n_steps] = plan.batches.rows[begin:end]
        self.weights[: plan.n_steps] = plan.batches.weights[begin:end]
        self.rates[: plan.n_steps] = plan.rates[begin:end]
        self.active[: plan.n_steps] = plan.batches.active[begin:end]
        self.counter.zero_()

    def _one(self, loop: Loop) -> None:
        tables = (self.rows, self.weights, self.rates, self.active)
        loop._step(*(table.index_select(0, self.counter)[0] for table in tables))
        self.counter.add_(1)


def rows_in_slots(slots: Slots) -> int:
    """Return how many slots hold a row."""
    return int(np.count_nonzero(slots >= 0))
