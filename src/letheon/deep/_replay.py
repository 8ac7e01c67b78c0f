"""The descent of a net, its path, and the replay without some rows.

Plain stochastic gradient descent of one net, kept step by step. The batches are those of the one
loop: slots in keyed order, empty ones masked. What is kept of a step is the mean gradient of the
rows in its batch at the point where it was, decay included.

The replay (Wu et al. 2020, Algorithm 4) has products with a Hessian that is known from a few steps
only: L-BFGS in compact form, see `letheon.removal.secant_matrix`. B is positive definite if every
s.y is above 0, which a loss that is not convex does not grant: `LocalChecks` says which pairs may
be used.
"""

from dataclasses import dataclass, replace
from math import inf, nan, sqrt
from statistics import fmean
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from letheon.deep._base import Positions, Workshop
from letheon.deep._device import CPU, mapped_zeros, paused
from letheon.deep._loop import (
    Callback,
    LoopSettings,
    Progress,
    Slots,
    learning_rates,
    slot_batches,
    slot_matrix,
)
from letheon.exceptions import TrainingError
from letheon.removal import Exactness, Opaque, RecordedPath, descend, secant_matrix


class Path(RecordedPath[Tensor]):
    """A path in float32, on a device or in a file; `sizes` lie on the CPU."""

    @classmethod
    def allocate(cls, n_steps: int, size: int, device: torch.device, max_memory: int) -> Self:
        """Return room for a path: on the device, or in a file if it takes more bytes than that."""
        shape = (2, n_steps, size)
        if 4 * int(np.prod(shape, dtype=np.int64)) > max_memory:
            room = mapped_zeros(shape, "the path", "raise max_memory, or train with larger batches")
        else:
            room = torch.zeros(shape, device=device)
        return cls(room[0], room[1], torch.zeros(n_steps, dtype=torch.int64))

    def copy_steps(self, source: "Path", n_steps: int) -> None:
        """Take over the first steps of another path."""
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
        # A batch has no more slots than there are: more would be empty and cost as much.
        width = min(settings.batch_size, len(slots))
        lane = torch.zeros(1, dtype=torch.int64)
        batches = slot_batches(slot_matrix((slots,), CPU), lane, seed, 0, n_epochs, width)
        return cls._of(batches.rows[:, 0], batches.weights[:, 0], settings, n_epochs)

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

    def where(self, positions: Positions) -> Tensor:
        """Return a table of shape (T, b) that marks some rows."""
        return torch.isin(self.rows, torch.from_numpy(positions)) & (self.weights > 0)

    def meetings(self, marked: Tensor) -> dict[int, Tensor]:
        """Return the rows that a table marks by their steps, for steps that have any."""
        steps, columns = marked.nonzero(as_tuple=True)
        met, counts = steps.unique_consecutive(return_counts=True)
        members = self.rows[steps, columns].split(counts.tolist())
        return dict(zip(met.tolist(), members, strict=True))


class Descent(Opaque):
    """Makes the steps of a plan and keeps them; counts what that takes.

    Attributes
    ----------
    path : Path
        The steps, after `run`.
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

    def __init__(
        self, workshop: Workshop, plan: Plan, max_memory: int, callback: Callback | None
    ) -> None:
        self._workshop, self._device = workshop, workshop.device
        self._max_memory, self._callback = max_memory, callback
        rows, weights = plan.rows.to(self._device), plan.weights.to(self._device)
        self._plan = replace(plan, rows=rows, weights=weights)
        self._losses: list[Tensor] = []
        self.n_exact = self.n_approximate = self.n_visits = 0

    @property
    def missed(self) -> float:
        """How far errors of approximate steps lead; here there are none."""
        return 0.0

    def run(self, start: Tensor, first: int = 0) -> Self:
        """Descend from step `first` on and keep every step.

        Raises
        ------
        TrainingError
            The loss or a parameter is not finite; the text names the epoch.
        """
        plan, template = self._plan, self._workshop.template.to(self._device)
        n_steps = len(plan.sizes)
        self.path = Path.allocate(n_steps, template.n_parameters, self._device, self._max_memory)

        def gradient(t: int, w: Tensor) -> tuple[Tensor, int]:
            size = plan.sizes[t]
            return self._step(t, w) if size else torch.zeros_like(w), size

        self.end = descend(
            self.path, start, plan.rates, gradient, first=first, after=self._close_epoch
        )
        return self

    def gradient(
        self, w: Tensor, rows: Tensor, weights: Tensor, total: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of the losses of some rows at w, and its gradient.

        The decay is in the gradient of every row; `total` is the sum of the weights.
        """
        data, settings = self._workshop.data, self._workshop.settings
        x = data.X.index_select(0, rows).to(torch.float32)
        y = data.y.index_select(0, rows)
        leaf = w.detach().requires_grad_()
        with torch.enable_grad():
            logits = self._workshop.template.train_logits(leaf, x)
            loss = (settings.row_losses(logits, y) * weights).sum()
            (gradient,) = torch.autograd.grad(loss, leaf)
        if settings.weight_decay:
            gradient = gradient.add(w, alpha=total * settings.weight_decay)
        return loss.detach(), gradient

    def _step(self, t: int, w: Tensor) -> Tensor:
        """Return the mean gradient at w over the rows of a step; here computed from them."""
        loss, gradient = self.gradient(w, self._plan.rows[t], self._plan.weights[t])
        self._losses.append(loss)
        self.n_exact += 1
        self.n_visits += self._plan.sizes[t]
        return gradient

    def _close_epoch(self, t: int, w: Tensor) -> None:
        """Tell the callback the mean loss of the steps of an epoch, if one ends with this step."""
        plan = self._plan
        epoch, place = divmod(t + 1, len(plan.sizes) // plan.n_epochs)
        if place:
            return
        loss = float(torch.stack(self._losses).mean()) if self._losses else nan
        self._losses = []
        if self._callback is not None:
            # Nothing is drawn in a descent, so generators that start anew change nothing.
            with paused():
                self._callback(Progress(0, 1, epoch - 1, plan.n_epochs, loss))
        self._require_finite(w, epoch - 1, loss)

    def _require_finite(self, w: Tensor, epoch: int, loss: float) -> None:
        if not bool(torch.isfinite(w).all()):
            raise TrainingError(
                f"training diverged in epoch {epoch}: the loss is {loss}, and parameters are not "
                "finite; nothing was changed. Scale the rows, or lower learning_rate"
            )


class LocalChecks(NamedTuple):
    """Where the loss is treated as convex and smooth (Wu et al. 2020, Algorithm 4).

    Attributes
    ----------
    min_curvature : float
        mu > 0: a pair needs ``s.y >= mu s.s``.
    max_smoothness : float
        L: a pair needs ``|y| <= L |s|``, and a product ``|B v| <= L |v|``.
    max_error : float
        B, as it is before a pair is kept, must have foretold it: ``|y - B s| <= max_error |y|``.
    max_distance : float
        Products are used for ``|v| <= max_distance |w|`` only.
    """

    min_curvature: float
    max_smoothness: float
    max_error: float
    max_distance: float

    def accept(self, ss: float, sy: float, yy: float) -> bool:
        """Whether a pair with these inner products may be used."""
        # In this form a number that is not finite is refused too.
        is_convex = 0.0 < self.min_curvature * ss <= sy
        return is_convex and yy <= self.max_smoothness**2 * ss


class Secants:
    """The last pairs (s, y).

    Parameters
    ----------
    history : int
        How many pairs are kept.
    size : int
        Length of s and y.
    device : torch.device
        Where they lie.
    checks : LocalChecks
        Which pairs may be used.
    """

    def __init__(self, history: int, size: int, device: torch.device, checks: LocalChecks) -> None:
        self._checks = checks
        # Lines of Y, then those of S; the newest pair takes the place of the oldest.
        self._lines = torch.zeros(2 * history, size, device=device)
        self._inner = np.zeros((history, history))  # s_i . y_j
        self._gram = np.zeros((history, history))  # s_i . s_j
        self._ages = np.full(history, -1)
        self._n_kept = 0
        self._scale = 0.0
        self._middle = torch.zeros(2 * history, 2 * history, dtype=torch.float64, device=device)
        self.is_trusted = False

    def offer(self, s: Tensor, y: Tensor) -> float:
        """Keep a pair if it passes the checks; B is trusted if it does and had foretold it.

        Returns
        -------
        float
            ``|y - B s|``, B being what it was before.
        """
        missed = y - self.product(s)
        ss, sy, yy, ee = torch.stack([s @ s, s @ y, y @ y, missed @ missed]).tolist()
        is_kept = self._checks.accept(ss, sy, yy)
        self.is_trusted = is_kept and self._n_kept > 0 and ee <= self._checks.max_error**2 * yy
        if is_kept:
            self._keep(s, y, sy / ss)
        return sqrt(ee)

    def product(self, v: Tensor) -> Tensor:
        """Return B v; zeros before the first pair."""
        ahead = (self._lines @ v).double()
        weights = (self._middle @ ahead).to(v.dtype)
        return torch.addmv(v, self._lines.T, weights, beta=self._scale, alpha=-1.0)

    def _keep(self, s: Tensor, y: Tensor, scale: float) -> None:
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
        self._middle.copy_(torch.from_numpy(self._inverted()))

    def _inverted(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Return the inverse of the middle matrix, scaled, with zeros for pairs still to come."""
        history, filled = len(self._ages), np.flatnonzero(self._ages >= 0)
        n, ages = len(filled), self._ages[filled]
        inner, gram = self._inner[np.ix_(filled, filled)], self._gram[np.ix_(filled, filled)]
        middle = secant_matrix(inner, gram, ages, self._scale)
        scales = np.repeat([1.0, self._scale], n)
        # Lengths of s and y are far from 1; only their ratio counts.
        sizes = np.sqrt(np.abs(np.diag(middle)))
        inverse = np.linalg.pinv(middle / np.outer(sizes, sizes)) / np.outer(sizes, sizes)
        where = np.concatenate([filled, history + filled])
        full = np.zeros((2 * history, 2 * history))
        full[np.ix_(where, where)] = inverse * np.outer(scales, scales)
        return full


class Replay(Descent):
    """Goes a path again without some rows; between exact steps L-BFGS stands in for the Hessian.

    ``w'_(t+1) = w'_t - rate_t / (n_t - m_t) [ n_t (g_t + B v) - gradients of those who leave ]``
    with v = w'_t - w_t, and n_t rows of which m_t leave in the batch of step t. Steps that B cannot
    be trusted with are computed from the rows that stay.

    Parameters
    ----------
    workshop, plan, max_memory, callback
        As of a `Descent`; the plan has the steps of the rows that stay.
    old : Path
        To be gone again.
    leaving : dict of int to Tensor
        Rows that leave, by the steps they were in.
    exactness : Exactness
        Which steps are exact, counted from the first that changes, and how many pairs are kept.
    checks : LocalChecks
        When a product is trusted.
    """

    def __init__(
        self,
        workshop: Workshop,
        plan: Plan,
        max_memory: int,
        callback: Callback | None,
        *,
        old: Path,
        leaving: dict[int, Tensor],
        exactness: Exactness,
        checks: LocalChecks,
    ) -> None:
        super().__init__(workshop, plan, max_memory, callback)
        self._old, self._exactness, self._checks = old, exactness, checks
        self._leaving = {step: rows.to(self._device) for step, rows in leaving.items()}
        self._secants = Secants(exactness.history, old.points.shape[1], self._device, checks)
        self._longest = inf
        self._squared_errors: list[float] = []
        self._squared_rates = 0.0
        self._last = max((t for t, size in enumerate(plan.sizes) if size), default=-1)

    @property
    def missed(self) -> float:
        """How far errors of approximate steps lead."""
        if not self.n_approximate:
            return 0.0
        return sqrt(self._squared_rates * fmean(self._squared_errors))

    def replay(self, first: int) -> Self:
        """Replay from step `first` on; those before it are taken over as they are."""
        self._first = first
        self.run(self._old.points[first].to(self._device, copy=True), first)
        self.path.copy_steps(self._old, first)
        return self

    def _step(self, t: int, w: Tensor) -> Tensor:
        if self._exactness.period == 1:
            return super()._step(t, w)
        recorded, point = (
            part[t].to(self._device) for part in (self._old.gradients, self._old.points)
        )
        v, own, count = w - point, self._own_gradient(t, w), t - self._first
        # Once at least B is compared with the rows at a step that it could have been used for.
        is_untested_end = t == self._last and not self._squared_errors
        is_due = is_untested_end or self._exactness.is_exact(count)
        bent = None if is_due else self._bent(v)
        # Rows of the step without and with those who leave.
        after = self._plan.sizes[t]
        before = after + (0 if own is None else len(self._leaving[t]))
        if bent is not None:
            self.n_approximate += 1
            self._squared_rates += self._plan.rates[t] ** 2
            gradient = recorded + bent
            return gradient if own is None else (before * gradient - own) / after
        gradient = super()._step(t, w)
        self._longest = self._checks.max_distance * float(torch.linalg.vector_norm(point))
        was_trusted = self._secants.is_trusted
        whole = gradient if own is None else (after * gradient + own) / before
        error = self._secants.offer(v, whole - recorded)
        if was_trusted and count > self._exactness.burn_in:
            self._squared_errors.append(error**2)
        return gradient

    def _own_gradient(self, t: int, w: Tensor) -> Tensor | None:
        """Return the sum of the gradients of the rows that leave a step; None if nobody does."""
        rows = self._leaving.get(t)
        if rows is None:
            return None
        self.n_visits += len(rows)
        weights = torch.ones(len(rows), device=self._device)
        return self.gradient(w, rows, weights, total=len(rows))[1]

    def _bent(self, v: Tensor) -> Tensor | None:
        """Return B v, or None where it cannot be trusted."""
        length = float(torch.linalg.vector_norm(v))
        # Negated, so that a number that is not finite is not trusted either.
        if not self._secants.is_trusted or not length <= self._longest:
            return None
        bent = self._secants.product(v)
        most = self._checks.max_smoothness * length
        return bent if float(torch.linalg.vector_norm(bent)) <= most else None

    def _require_finite(self, w: Tensor, epoch: int, loss: float) -> None:
        """Do nothing: a replay that is not finite is answered by a retrain."""
