"""Deterministic training loop for many networks at once, with batches that removals keep stable.

A lane is one network. W lanes with the same architecture share one tensor of parameters of shape
(W, p) and take their steps together. The trained parameters of a lane depend only on its own
initial parameters, rows, lane number and seed. As long as the number of lanes is the same, they
have the same bits, whatever the other lanes are trained on.

`_batches.py` makes the batches, `_optim.py` the steps of the optimizers, `_augment.py` the
augmentation.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from letheon.deep._augment import roll_rows
from letheon.deep._batches import Slots, mix64, slot_batches, slot_matrix, to_signed
from letheon.deep._device import matmul_precision, pause_runs, to_batch
from letheon.deep._module import Template
from letheon.deep._optim import LoopSettings, clip_gradients, learning_rates, make_optimizer
from letheon.exceptions import TrainingError
from letheon.removal import opaque_repr
from letheon.seeds import Purpose, keyed_hash
from letheon.terminal import Note

_WARM_UPS = 3


class DeviceData(NamedTuple):
    """Rows, their class codes (int64) or targets (float32), and their keys, on the device.

    The keys are those of the augmentation (int64), one per slot; None without augmentation.
    """

    X: Tensor
    y: Tensor
    keys: Tensor | None = None

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
    validation_loss : float or None
        Mean loss of the held-out rows after the epoch; None without held-out rows.

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
    validation_loss: float | None = None


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
    stop: "EarlyStop | None" = None


class EarlyStop:
    """Held-out rows that decide which epoch's parameters a lane keeps.

    A lane keeps the parameters of the epoch with the lowest loss on its held-out rows, the earliest
    if several have it. It stops when `patience` epochs in a row were not better. This depends only
    on its own rows, although all lanes are trained until the last one has stopped. A lane without
    held-out rows keeps the parameters of the last epoch.

    Parameters
    ----------
    evaluate : callable
        Takes the parameters (W, p) and returns the loss of every lane on its held-out rows, (W,);
        NaN for a lane without such rows.
    patience : int
        Number of epochs.
    """

    def __init__(self, evaluate: Callable[[Tensor], Tensor], patience: int) -> None:
        self._evaluate, self._patience = evaluate, patience
        self.losses = torch.empty(0)

    def begin(self, flat: Tensor) -> None:
        """Start a new training."""
        self._best, self._flat = flat.new_full((len(flat),), torch.inf), flat.clone()
        self._age = torch.zeros(len(flat), dtype=torch.int64, device=flat.device)
        self.has_stopped = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)

    def note_epoch(self, flat: Tensor) -> None:
        """Evaluate the parameters after an epoch."""
        self.losses = self._evaluate(flat)
        is_last = self.losses.isnan()
        is_better = ~self.has_stopped & ((self.losses < self._best) | is_last)
        self._best = torch.where(is_better, self.losses, self._best)
        self._flat = torch.where(is_better[:, None], flat, self._flat)
        self._age = torch.where(is_better, 0, self._age + 1)
        self.has_stopped |= self._age >= self._patience

    @property
    def flat(self) -> Tensor:
        """The parameters that the lanes keep."""
        return self._flat


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
        self._gradient = torch.zeros_like(self._flat)
        # A single network has no axis for the lanes.
        pair = (self._flat, self._gradient) if width > 1 else (self._flat[0], self._gradient[0])
        self._parts, self._gradient_parts = map(template.split_lanes, pair)
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
        stop = phase.stop
        if not any(lane is not None and (lane >= 0).any() for lane in phase.slots):
            return self._flat.clone()
        plan = self._make_plan(slot_matrix(phase.slots, self.device), phase)
        if self._uses_graph and (self._captured is None or plan.n_steps > self._captured.room):
            # Before the generators are seeded: the first steps on a GPU draw numbers too.
            self._captured = _CapturedStep(self, plan.n_steps)
        if stop is not None:
            stop.begin(flat)
        losses = []
        for epoch in range(phase.epochs):
            self._seed_generators(phase.number, epoch)
            losses.append(self._run_epoch(plan, epoch))
            if stop is not None:
                losses[-1] = torch.where(stop.has_stopped, 0.0, losses[-1])
                stop.note_epoch(self._flat)
            if callback is not None:
                with pause_runs():
                    callback(_describe_epoch(place, epoch, phase, losses[-1], plan.takes_part))
            if stop is not None and bool((stop.has_stopped | ~plan.takes_part).all()):
                break
        if stop is not None:
            self._flat.copy_(stop.flat)
        # Inactive lanes were computed too, with meaningless results.
        self._flat.copy_(torch.where(plan.takes_part[:, None], self._flat, flat))
        self._require_finite(torch.stack(losses), phase)
        return self._flat.clone()

    def _make_plan(self, matrix: Tensor, phase: TrainingPhase) -> "_PhasePlan":
        size, n_epochs = self._settings.step_size, phase.epochs
        if len(self._lanes) == 1 and not (self._uses_graph or self._template.has_batch_norm):
            # A single lane does not need slots that are never filled. With BatchNorm it does: the
            # weights of the rows must be the same as next to other lanes.
            size = min(size, matrix.shape[1])
        rows, weights, active = slot_batches(
            matrix, self._lanes, self._seed, phase.number, n_epochs, size
        )
        top = phase.rate * self._settings.learning_rate
        rates = learning_rates(active, self._settings.schedule, top, self._settings.warm_up)
        n_steps = len(rows) // n_epochs
        seeds = [
            to_signed(keyed_hash(self._seed, Purpose.AUGMENT_EPOCH, phase.number, epoch))
            for epoch in range(n_epochs)
        ]
        keys = torch.tensor(seeds, device=self.device).repeat_interleave(n_steps)[:, None]
        return _PhasePlan((rows, weights, rates, active, keys), n_steps, active.any(dim=0))

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
        return self._loss / tables[3].sum(dim=0).clamp(min=1)

    @property
    def _uses_graph(self) -> bool:
        return self._optimizer.can_be_captured and self.device.type == "cuda"

    def _run_step(
        self, rows: Tensor, weights: Tensor, rates: Tensor, active: Tensor, key: Tensor
    ) -> None:
        """Run one step.

        `rows` and `weights` have shape (W, b), `rates` and `active` shape (W,). `key` (1,) is the
        key of the epoch for the augmentation.
        """
        # Each parameter is a leaf: its gradient is copied once into the flat one.
        leaves = [part.detach().requires_grad_() for part in self._parts]
        # TF32: a GPU may round the factors of matrix products.
        is_coarse = self._settings.precision == "tf32"
        size, limit = self._settings.batch_size, self._settings.max_grad_norm
        losses = None
        for part, part_weights in zip(rows.split(size, 1), weights.split(size, 1), strict=True):
            rounding = matmul_precision(self.device, coarse=True) if is_coarse else nullcontext()
            with torch.enable_grad(), rounding:
                part_losses = (self._row_losses(leaves, part, key) * part_weights).sum(dim=1)
                gradients = torch.autograd.grad(part_losses.sum(), leaves, allow_unused=True)
            for target, source in zip(self._gradient_parts, gradients, strict=True):
                # A parameter without influence has no gradient.
                part_of_sum = torch.zeros_like(target) if source is None else source
                target.copy_(part_of_sum if losses is None else target + part_of_sum)
            losses = part_losses if losses is None else losses + part_losses
        gradient = self._gradient
        assert losses is not None
        with torch.no_grad():
            # Inactive lanes have weights of 0, but 0 times infinity is NaN.
            self._loss.add_(torch.where(active, losses, 0.0))
            if limit is not None:
                gradient = clip_gradients(gradient, limit)
            self._optimizer.step(gradient, rates[:, None], active[:, None])

    def _row_losses(self, leaves: list[Tensor], rows: Tensor, key: Tensor) -> Tensor:
        """Return the loss of every row, shape (W, b)."""
        (width, size), augmentation = rows.shape, self._settings.augmentation
        where = rows.reshape(-1)
        x = to_batch(self._data.X.index_select(0, where))
        y = self._data.y.index_select(0, where)
        share = None
        if augmentation.is_used:
            assert self._data.keys is not None
            keys = mix64(key, self._data.keys.index_select(0, where))
            x = augmentation.change_rows(x, keys, width)
            if augmentation.has_mixup:
                x, share = augmentation.mix_rows(x, keys, width)
        with self._autocast_context():
            if width == 1:
                outputs = self._template.train_logits(leaves, x)
            else:
                stacked = x.view(width, size, *x.shape[1:])
                outputs = self._template.compute_stacked_logits(leaves, stacked).flatten(0, 1)
        losses = self._lane_losses(outputs.float(), y, width)
        if share is None:
            return losses
        other = self._lane_losses(outputs.float(), roll_rows(y, width), width)
        share = share.view(width, size)
        return share * losses + (1 - share) * other

    def _lane_losses(self, outputs: Tensor, y: Tensor, width: int) -> Tensor:
        settings = self._settings
        if isinstance(settings.loss, str):
            return settings.row_losses(outputs, y).view(width, -1)
        lanes = zip(outputs.chunk(width), y.chunk(width), strict=True)
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


def _describe_epoch(
    place: tuple[int, int], epoch: int, phase: TrainingPhase, losses: Tensor, takes_part: Tensor
) -> Progress:
    held_out = None
    if phase.stop is not None:
        held_out = float(phase.stop.losses[takes_part].nanmean())
    mean = float(losses[takes_part].mean())
    return Progress(*place, epoch, phase.epochs, mean, held_out)


class _PhasePlan(NamedTuple):
    """Rows, weights, rates, active lanes and keys of all steps; lanes that take part in any."""

    tables: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    n_steps: int
    takes_part: Tensor


class _CapturedStep:
    """Training step as a CUDA graph that reads its batch at a counter and advances the counter."""

    def __init__(self, loop: Loop, n_steps: int) -> None:
        device, size = loop.device, loop._settings.step_size
        width, self.room = len(loop._lanes), max(2 * n_steps, 64)
        self._tables = (
            torch.zeros(self.room, width, size, dtype=torch.int64, device=device),
            torch.zeros(self.room, width, size, device=device),
            torch.zeros(self.room, width, device=device),
            torch.zeros(self.room, width, dtype=torch.bool, device=device),
            torch.zeros(self.room, 1, dtype=torch.int64, device=device),
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


def report_epoch(note: Note, callback: Callback | None, progress: Progress) -> None:
    """Show the loss of an epoch in a progress bar, then call the callback."""
    held_out = progress.validation_loss
    more = "" if held_out is None else f", validation loss {held_out:.4g}"
    note(f"loss {progress.loss:.4g}{more}")
    note()
    if callback is not None:
        callback(progress)
