"""Recorded gradient descent of a network, and its replay without some rows.

`NetDescent` runs plain stochastic gradient descent of one network and records every step. It uses
the batches of the training loop: slots in keyed order, empty slots masked. For each step it stores
the parameters and the mean gradient of the batch at these parameters, including weight decay.

The replay (Wu et al. 2020, Algorithm 4) approximates the gradients of most steps: it multiplies the
difference between the replayed and the recorded parameters by an approximate Hessian B, and adds
the product to the recorded gradient. B is estimated from pairs (s, y) of a few steps with L-BFGS in
compact form, see `letheon.removal.secant_matrix`: s is the difference between the replayed and the
recorded parameters, and y is the measured change of the gradient. B is positive definite if
s.y > 0 for every pair. A loss that is not convex does not guarantee this, so `LocalChecks` decides
which pairs may be used.
"""

from dataclasses import dataclass, replace
from math import inf, nan, sqrt
from statistics import fmean
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from letheon.deep._base import TrainingContext
from letheon.deep._batches import Slots, slot_batches, slot_matrix
from letheon.deep._device import CPU, allocate_on_disk, pause_runs
from letheon.deep._loop import Callback, Progress
from letheon.deep._optim import LoopSettings, learning_rates
from letheon.deep._slots import Positions
from letheon.exceptions import TrainingError
from letheon.removal import Exactness, Opaque, RecordedPath, descend, secant_matrix


class Path(RecordedPath[Tensor]):
    """Recorded steps of a descent in float32, on a device or in a file; `sizes` is on the CPU."""

    @classmethod
    def allocate(cls, n_steps: int, size: int, device: torch.device, max_memory: int) -> Self:
        """Return an empty path on the device, or in a file if larger than `max_memory` bytes."""
        shape = (2, n_steps, size)
        if 4 * int(np.prod(shape, dtype=np.int64)) > max_memory:
            room = allocate_on_disk(
                shape, "the path", "raise max_memory, or train with larger batches"
            )
        else:
            room = torch.zeros(shape, device=device)
        return cls(room[0], room[1], torch.zeros(n_steps, dtype=torch.int64))

    def copy_steps(self, source: "Path", n_steps: int) -> None:
        """Copy the first `n_steps` steps of another path into this path."""
        for name in ("points", "gradients", "sizes"):
            getattr(self, name)[:n_steps].copy_(getattr(source, name)[:n_steps])

    def _to_state(self) -> dict[str, Any]:
        return {name: part.cpu().numpy() for name, part in vars(self).items()}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        dtypes = {"points": np.float32, "gradients": np.float32, "sizes": np.int64}
        parts = (np.array(state[name], dtype) for name, dtype in dtypes.items())
        return cls(*map(torch.from_numpy, parts))

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        return type(self)._from_state, (self._to_state(),)


@dataclass(frozen=True, eq=False, repr=False)
class StepSchedule(Opaque):
    """Rows and learning rates of T steps with b slots each.

    Attributes
    ----------
    rows, weights : tensors of shape (T, b)
        Positions and weights of the rows of every step, as in `LaneBatches`, for a single lane.
    sizes : list of int
        Number of rows in every batch; an empty batch is not a step.
    rates : list of float
        Learning rates.
    n_epochs : int
        Number of epochs.
    """

    rows: Tensor
    weights: Tensor
    sizes: list[int]
    rates: list[float]
    n_epochs: int

    @classmethod
    def from_slots(
        cls, slots: Slots, settings: LoopSettings, n_epochs: int, seed: int
    ) -> "StepSchedule":
        """Return the steps of a descent over these slots (-1 for an empty slot), on the CPU."""
        # More slots per batch than rows would stay empty and cost as much.
        width = min(settings.batch_size, len(slots))
        lane = torch.zeros(1, dtype=torch.int64)
        batches = slot_batches(slot_matrix((slots,), CPU), lane, seed, 0, n_epochs, width)
        return cls._from_tables(batches.rows[:, 0], batches.weights[:, 0], settings, n_epochs)

    @classmethod
    def _from_tables(
        cls, rows: Tensor, weights: Tensor, settings: LoopSettings, n_epochs: int
    ) -> "StepSchedule":
        sizes = (weights > 0).sum(dim=1)
        rates = learning_rates((sizes > 0)[:, None], settings.schedule, settings.learning_rate)
        return cls(rows, weights, sizes.tolist(), rates[:, 0].tolist(), n_epochs)

    def without_rows(self, removed: Tensor, settings: LoopSettings) -> "StepSchedule":
        """Return the schedule with the slots that are marked in `removed` emptied."""
        present = (self.weights > 0) & ~removed
        counts = present.sum(dim=1, keepdim=True)
        first = self.rows.gather(1, present.to(torch.int8).argmax(dim=1, keepdim=True))
        rows = torch.where(present, self.rows, first)
        return self._from_tables(rows, present / counts.clamp(min=1), settings, self.n_epochs)

    def mark_rows(self, positions: Positions) -> Tensor:
        """Return a boolean table of shape (T, b) that marks the rows at these positions."""
        return torch.isin(self.rows, torch.from_numpy(positions)) & (self.weights > 0)

    def rows_by_step(self, marked: Tensor) -> dict[int, Tensor]:
        """Return the positions of the marked rows by step, for the steps that have any."""
        steps, columns = marked.nonzero(as_tuple=True)
        met, counts = steps.unique_consecutive(return_counts=True)
        members = self.rows[steps, columns].split(counts.tolist())
        return dict(zip(met.tolist(), members, strict=True))


class NetDescent(Opaque):
    """Gradient descent that records the steps of a schedule and counts the work.

    Attributes
    ----------
    path : Path
        The steps, after `run`.
    end : Tensor
        Parameters after the last step.
    n_exact, n_approximate : int
        Steps computed from the rows of the batch, and steps computed with B.
    n_visits : int
        Number of row gradients that were computed.
    error_estimate : float
        Estimated distance of the end point from that of an exact run, if the errors of the steps
        have independent directions: the root of the sum of the squared learning rates of the
        approximate steps, times the root mean square error of B v at exact steps.
    """

    path: Path
    end: Tensor

    def __init__(
        self,
        context: TrainingContext,
        plan: StepSchedule,
        max_memory: int,
        callback: Callback | None,
    ) -> None:
        self._context, self._device = context, context.device
        self._max_memory, self._callback = max_memory, callback
        rows, weights = plan.rows.to(self._device), plan.weights.to(self._device)
        self._plan = replace(plan, rows=rows, weights=weights)
        self._losses: list[Tensor] = []
        self.n_exact = self.n_approximate = self.n_visits = 0

    @property
    def error_estimate(self) -> float:
        """Estimated effect of approximate steps on the end point: 0, since all steps are exact."""
        return 0.0

    def run(self, start: Tensor, first: int = 0) -> Self:
        """Run the descent from step `first` on and record every step.

        Raises
        ------
        TrainingError
            The loss or a parameter is not finite; the message names the epoch.
        """
        plan, template = self._plan, self._context.template.to(self._device)
        n_steps = len(plan.sizes)
        self.path = Path.allocate(n_steps, template.n_parameters, self._device, self._max_memory)

        def compute_step(t: int, w: Tensor) -> tuple[Tensor, int]:
            size = plan.sizes[t]
            return self._step_gradient(t, w) if size else torch.zeros_like(w), size

        self.end = descend(
            self.path, start, plan.rates, compute_step, first=first, after=self._close_epoch
        )
        return self

    def loss_and_gradient(
        self, w: Tensor, rows: Tensor, weights: Tensor, total: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of the losses of some rows at w, and the gradient of this sum.

        The gradient of every row includes the weight decay; `total` is the sum of the weights.
        """
        data, settings = self._context.data, self._context.settings
        x = data.X.index_select(0, rows).to(torch.float32)
        y = data.y.index_select(0, rows)
        leaf = w.detach().requires_grad_()
        with torch.enable_grad():
            logits = self._context.template.train_logits(leaf, x)
            loss = (settings.row_losses(logits, y) * weights).sum()
            (gradient,) = torch.autograd.grad(loss, leaf)
        if settings.weight_decay:
            gradient = gradient.add(w, alpha=total * settings.weight_decay)
        return loss.detach(), gradient

    def _step_gradient(self, t: int, w: Tensor) -> Tensor:
        """Return the mean gradient at w over the rows of a step."""
        loss, gradient = self.loss_and_gradient(w, self._plan.rows[t], self._plan.weights[t])
        self._losses.append(loss)
        self.n_exact += 1
        self.n_visits += self._plan.sizes[t]
        return gradient

    def _close_epoch(self, t: int, w: Tensor) -> None:
        """Report the mean loss of an epoch to the callback if step t is the last of the epoch."""
        plan = self._plan
        epoch, place = divmod(t + 1, len(plan.sizes) // plan.n_epochs)
        if place:
            return
        loss = float(torch.stack(self._losses).mean()) if self._losses else nan
        self._losses = []
        if self._callback is not None:
            # A descent draws no random numbers, so resetting the generators has no effect.
            with pause_runs():
                self._callback(Progress(0, 1, epoch - 1, plan.n_epochs, loss))
        self._require_finite(w, epoch - 1, loss)

    def _require_finite(self, w: Tensor, epoch: int, loss: float) -> None:
        if not bool(torch.isfinite(w).all()):
            raise TrainingError(
                f"training diverged in epoch {epoch}: the loss is {loss}, or a parameter is not "
                "finite; nothing was changed. Scale the rows, or lower learning_rate"
            )


class LocalChecks(NamedTuple):
    """Conditions under which the loss is treated as convex and smooth (Wu et al. 2020).

    Attributes
    ----------
    min_curvature : float
        mu > 0. A pair (s, y) is used only if ``s.y >= mu s.s``.
    max_smoothness : float
        L. A pair is used only if ``|y| <= L |s|``, and a product B v only if ``|B v| <= L |v|``.
    max_error : float
        B is trusted only if it predicts a new pair: ``|y - B s| <= max_error |y|``.
    max_distance : float
        A product B v is used only if ``|v| <= max_distance |w|``.
    """

    min_curvature: float
    max_smoothness: float
    max_error: float
    max_distance: float

    def accepts_pair(self, ss: float, sy: float, yy: float) -> bool:
        """Return whether a pair (s, y) with the inner products s.s, s.y and y.y may be used."""
        # In this form a number that is not finite is rejected too.
        is_convex = 0.0 < self.min_curvature * ss <= sy
        return is_convex and yy <= self.max_smoothness**2 * ss


class NetSecants:
    """The last accepted pairs (s, y), and the L-BFGS matrix B that they define.

    Parameters
    ----------
    history : int
        Largest number of pairs to store.
    size : int
        Length of s and y.
    device : torch.device
        Device of the pairs.
    checks : LocalChecks
        Conditions for using a pair.
    """

    def __init__(self, history: int, size: int, device: torch.device, checks: LocalChecks) -> None:
        self._checks = checks
        # Rows of Y, then rows of S; the newest pair replaces the oldest.
        self._lines = torch.zeros(2 * history, size, device=device)
        self._inner = np.zeros((history, history))  # s_i . y_j
        self._gram = np.zeros((history, history))  # s_i . s_j
        self._ages = np.full(history, -1)
        self._n_kept = 0
        self._scale = 0.0
        self._middle = torch.zeros(2 * history, 2 * history, dtype=torch.float64, device=device)
        self.is_trusted = False

    def offer_pair(self, s: Tensor, y: Tensor) -> float:
        """Store a pair (s, y) if it passes the checks; trust B if it also predicted the pair.

        Returns
        -------
        float
            Error of the prediction, ``|y - B s|``, with B before the update.
        """
        missed = y - self.hessian_product(s)
        ss, sy, yy, ee = torch.stack([s @ s, s @ y, y @ y, missed @ missed]).tolist()
        is_kept = self._checks.accepts_pair(ss, sy, yy)
        self.is_trusted = is_kept and self._n_kept > 0 and ee <= self._checks.max_error**2 * yy
        if is_kept:
            self._store_pair(s, y, sy / ss)
        return sqrt(ee)

    def hessian_product(self, v: Tensor) -> Tensor:
        """Return B v, the approximate product of the Hessian and v; zeros before the first pair."""
        ahead = (self._lines @ v).double()
        weights = (self._middle @ ahead).to(v.dtype)
        return torch.addmv(v, self._lines.T, weights, beta=self._scale, alpha=-1.0)

    def _store_pair(self, s: Tensor, y: Tensor, scale: float) -> None:
        history = len(self._ages)
        place = self._n_kept % history
        self._lines[place], self._lines[history + place] = y, s
        along_s, along_y = (self._lines @ s).tolist(), (self._lines @ y).tolist()
        self._inner[place] = along_s[:history]
        self._inner[:, place] = along_y[history:]
        self._gram[place] = self._gram[:, place] = along_s[history:]
        self._ages[place] = self._n_kept
        self._n_kept += 1
        self._scale = scale
        self._middle.copy_(torch.from_numpy(self._invert_middle()))

    def _invert_middle(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Return the scaled inverse of the middle matrix of the compact form of L-BFGS.

        Rows and columns of pairs that have not been stored yet are zero.
        """
        history, filled = len(self._ages), np.flatnonzero(self._ages >= 0)
        n, ages = len(filled), self._ages[filled]
        inner, gram = self._inner[np.ix_(filled, filled)], self._gram[np.ix_(filled, filled)]
        middle = secant_matrix(inner, gram, ages, self._scale)
        scales = np.repeat([1.0, self._scale], n)
        # s and y may be very small or large; only their ratio matters.
        sizes = np.sqrt(np.abs(np.diag(middle)))
        inverse = np.linalg.pinv(middle / np.outer(sizes, sizes)) / np.outer(sizes, sizes)
        where = np.concatenate([filled, history + filled])
        full = np.zeros((2 * history, 2 * history))
        full[np.ix_(where, where)] = inverse * np.outer(scales, scales)
        return full


class NetReplay(NetDescent):
    """Replay of a path without some rows; L-BFGS approximates the Hessian between exact steps.

    The next parameters are

    ``w'_(t+1) = w'_t - rate_t / (n_t - m_t) [ n_t (g_t + B v) - gradients of the removed rows ]``
    with v = w'_t - w_t. The batch of step t has n_t rows, of which m_t are removed. Steps for which
    B is not trusted are computed from the remaining rows.

    Parameters
    ----------
    context, plan, max_memory, callback
        The same as in `NetDescent`; the plan has the steps of the remaining rows.
    old : Path
        The path to replay.
    removed : dict of int to Tensor
        Removed rows, by step.
    exactness : Exactness
        Which steps are exact, counted from the first changed step, and how many pairs are stored.
    checks : LocalChecks
        Conditions for using a product B v.
    """

    def __init__(
        self,
        context: TrainingContext,
        plan: StepSchedule,
        max_memory: int,
        callback: Callback | None,
        *,
        old: Path,
        removed: dict[int, Tensor],
        exactness: Exactness,
        checks: LocalChecks,
    ) -> None:
        super().__init__(context, plan, max_memory, callback)
        self._old, self._exactness, self._checks = old, exactness, checks
        self._removed = {step: rows.to(self._device) for step, rows in removed.items()}
        self._secants = NetSecants(exactness.history, old.points.shape[1], self._device, checks)
        self._longest = inf
        self._squared_errors: list[float] = []
        self._squared_rates = 0.0
        self._last = max((t for t, size in enumerate(plan.sizes) if size), default=-1)

    @property
    def error_estimate(self) -> float:
        """Estimated effect of approximate steps on the end point."""
        if not self.n_approximate:
            return 0.0
        return sqrt(self._squared_rates * fmean(self._squared_errors))

    def run_from(self, first: int) -> Self:
        """Replay the path from step `first` on, and copy the earlier steps."""
        self._first = first
        self.run(self._old.points[first].to(self._device, copy=True), first)
        self.path.copy_steps(self._old, first)
        return self

    def _step_gradient(self, t: int, w: Tensor) -> Tensor:
        if self._exactness.period == 1:
            return super()._step_gradient(t, w)
        recorded, point = (
            part[t].to(self._device) for part in (self._old.gradients, self._old.points)
        )
        v, own, count = w - point, self._own_gradient(t, w), t - self._first
        # At least one exact step after the burn-in must compare B with the rows.
        is_untested_end = t == self._last and not self._squared_errors
        is_due = is_untested_end or self._exactness.is_exact(count)
        predicted = None if is_due else self._product_if_trusted(v)
        # Rows of the step without and with the removed rows.
        after = self._plan.sizes[t]
        before = after + (0 if own is None else len(self._removed[t]))
        if predicted is not None:
            self.n_approximate += 1
            self._squared_rates += self._plan.rates[t] ** 2
            gradient = recorded + predicted
            return gradient if own is None else (before * gradient - own) / after
        gradient = super()._step_gradient(t, w)
        self._longest = self._checks.max_distance * float(torch.linalg.vector_norm(point))
        was_trusted = self._secants.is_trusted
        whole = gradient if own is None else (after * gradient + own) / before
        error = self._secants.offer_pair(v, whole - recorded)
        if was_trusted and count > self._exactness.burn_in:
            self._squared_errors.append(error**2)
        return gradient

    def _own_gradient(self, t: int, w: Tensor) -> Tensor | None:
        """Return the sum of the gradients at w of the removed rows of step t; None without any."""
        rows = self._removed.get(t)
        if rows is None:
            return None
        self.n_visits += len(rows)
        weights = torch.ones(len(rows), device=self._device)
        return self.loss_and_gradient(w, rows, weights, total=len(rows))[1]

    def _product_if_trusted(self, v: Tensor) -> Tensor | None:
        """Return B v, or None if B or the product is not trusted."""
        length = float(torch.linalg.vector_norm(v))
        # Negated, so that a number that is not finite is not trusted either.
        if not self._secants.is_trusted or not length <= self._longest:
            return None
        predicted = self._secants.hessian_product(v)
        most = self._checks.max_smoothness * length
        return predicted if float(torch.linalg.vector_norm(predicted)) <= most else None

    def _require_finite(self, w: Tensor, epoch: int, loss: float) -> None:
        """Do nothing, because a replay that is not finite is replaced by retraining."""
