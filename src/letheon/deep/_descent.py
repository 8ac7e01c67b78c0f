"""Plain stochastic gradient descent of one net, kept step by step.

The batches are those of the one loop: slots in keyed order, empty ones masked. What is kept of a
step is the mean gradient of the rows in its batch at the point where it was, decay included.
"""

from dataclasses import dataclass
from math import nan
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from letheon.deep._device import paused
from letheon.deep._loop import Callback, DeviceData, LoopSettings, Progress
from letheon.deep._module import Template
from letheon.deep._order import Slots, epoch_batches, join_epochs, slot_matrix
from letheon.deep._path import Path
from letheon.deep._schedule import learning_rates
from letheon.exceptions import TrainingError
from letheon.removal import Opaque
from letheon.seeds import Purpose, keyed_hash

Positions = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Opaque):
    """Which rows make which of T steps of b slots.

    Attributes
    ----------
    rows, weights : tensors of shape (T, b)
        As in `Batches`, of the only lane.
    sizes : list of int
        Rows in every batch; a batch without any is no step.
    rates : list of float
        Learning rates.
    n_epochs : int
        Epochs that the steps make up.
    """

    rows: Tensor
    weights: Tensor
    sizes: list[int]
    rates: list[float]
    n_epochs: int

    @classmethod
    def make(cls, slots: Slots, settings: LoopSettings, n_epochs: int, seed: int) -> "Plan":
        """Return the steps of a descent over these slots, -1 where nobody is; on the CPU."""
        matrix = slot_matrix((slots,), torch.device("cpu"))
        # A batch has no more slots than there are: more would be empty and cost as much.
        width = min(settings.batch_size, len(slots))
        lane = torch.zeros(1, dtype=torch.int64)
        batches = join_epochs(
            [
                epoch_batches(matrix, lane, keyed_hash(seed, Purpose.NET_ORDER, 0, epoch), width)
                for epoch in range(n_epochs)
            ]
        )
        rows, weights = batches.rows[:, 0], batches.weights[:, 0]
        return cls._of(rows, weights, settings, n_epochs)

    @classmethod
    def _of(cls, rows: Tensor, weights: Tensor, settings: LoopSettings, n_epochs: int) -> "Plan":
        sizes = (weights > 0).sum(dim=1)
        rates = learning_rates((sizes > 0)[:, None], settings.schedule, settings.learning_rate)
        return cls(rows, weights, sizes.tolist(), rates[:, 0].tolist(), n_epochs)

    def without(self, leaving: Tensor, settings: LoopSettings) -> "Plan":
        """Return the steps of the same slots when those that a table marks are empty."""
        present = (self.weights > 0) & ~leaving
        counts = present.sum(dim=1, keepdim=True)
        first = self.rows.gather(1, present.to(torch.int8).argmax(dim=1, keepdim=True))
        rows = torch.where(present, self.rows, first)
        return self._of(rows, present / counts.clamp(min=1), settings, self.n_epochs)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def n_steps(self) -> int:
        """Steps of one epoch."""
        return len(self) // self.n_epochs

    def where(self, positions: Positions) -> Tensor:
        """Return a table of shape (T, b) that marks some rows."""
        return torch.isin(self.rows, torch.from_numpy(positions)) & (self.weights > 0)

    def meetings(self, marked: Tensor) -> dict[int, Tensor]:
        """Return the rows that a table marks by their steps, for steps that have any."""
        steps, columns = marked.nonzero(as_tuple=True)
        found, counts = steps.unique_consecutive(return_counts=True)
        members = self.rows[steps, columns].split(counts.tolist())
        return dict(zip(found.tolist(), members, strict=True))

    def to(self, device: torch.device) -> "Plan":
        """Return the same steps with their tables on a device."""
        tables = self.rows.to(device), self.weights.to(device)
        return Plan(*tables, self.sizes, self.rates, self.n_epochs)


class Run(NamedTuple):
    """A path, where it ends, and what it took.

    Attributes
    ----------
    path : Path
        The steps.
    end : Tensor
        Parameters after the last one.
    n_exact, n_approximate : int
        Steps by the rows of the batch, and by a product with B.
    n_visits : int
        Gradients of single rows that were computed.
    missed : float
        Root of the sum of squared rates of the approximate steps, times the root mean square of the
        error of B v at exact ones: how far such errors lead if their directions are independent.
    """

    path: Path
    end: Tensor
    n_exact: int
    n_approximate: int = 0
    n_visits: int = 0
    missed: float = 0.0

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


@dataclass(frozen=True, eq=False, repr=False)
class Descent(Opaque):
    """How a net descends: architecture, rows on the device, settings, and room for paths."""

    template: Template
    data: DeviceData
    settings: LoopSettings
    max_memory: int

    @property
    def device(self) -> torch.device:
        """Where it is computed."""
        return self.data.X.device

    def room(self, n_steps: int) -> Path:
        """Return room for a path."""
        return Path.allocate(n_steps, self.template.n_parameters, self.device, self.max_memory)

    def gradient(
        self, w: Tensor, rows: Tensor, weights: Tensor, total: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of the losses of some rows at w, and its gradient.

        The decay is in the gradient of every row; `total` is the sum of the weights.
        """
        x = self.data.X.index_select(0, rows).to(torch.float32)
        y = self.data.y.index_select(0, rows)
        leaf = w.detach().requires_grad_()
        with torch.enable_grad():
            losses = self.settings.row_losses(self.template.train_logits(leaf, x), y)
            loss = (losses * weights).sum()
            (gradient,) = torch.autograd.grad(loss, leaf)
        if self.settings.weight_decay:
            gradient = gradient.add(w, alpha=total * self.settings.weight_decay)
        return loss.detach(), gradient

    def recorded(self, start: Tensor, plan: Plan, callback: Callback | None) -> Run:
        """Descend and keep every step.

        Raises
        ------
        TrainingError
            The loss or a parameter is not finite; the text names the epoch.
        """
        self.template.to(self.device)
        plan, path, w, diary = plan.to(self.device), self.room(len(plan)), start, Diary(callback)
        for t, size in enumerate(plan.sizes):
            gradient = torch.zeros_like(w)
            if size:
                loss, gradient = self.gradient(w, plan.rows[t], plan.weights[t])
                diary.note(loss)
            path.write(t, w, gradient, size)
            w = w - plan.rates[t] * gradient
            if diary.close(t, plan) and not bool(torch.isfinite(w).all()):
                raise TrainingError(
                    f"training diverged in epoch {t // plan.n_steps}: the loss is {diary.last}, "
                    "and parameters are not finite; nothing was changed. Scale the rows, or lower "
                    "learning_rate"
                )
        n_exact = sum(size > 0 for size in plan.sizes)
        return Run(path, w, n_exact, n_visits=sum(plan.sizes))


class Diary:
    """Losses of the steps of an epoch that had any; tells the callback their mean."""

    def __init__(self, callback: Callback | None) -> None:
        self._callback = callback
        self._losses: list[Tensor] = []
        self.last = nan

    def note(self, loss: Tensor) -> None:
        """Remember the loss of a step."""
        self._losses.append(loss)

    def close(self, step: int, plan: Plan) -> bool:
        """Return whether an epoch ends with this step, and tell the callback if it does."""
        if (step + 1) % plan.n_steps:
            return False
        self.last = float(torch.stack(self._losses).mean()) if self._losses else nan
        self._losses = []
        if self._callback is not None:
            epoch = step // plan.n_steps
            # Nothing is drawn in a descent, so generators that start anew change nothing.
            with paused():
                self._callback(Progress(0, 1, epoch, plan.n_epochs, self.last))
        return True
