"""The descent of a net, its path, and the replay without some rows.

The path of a net's descent: where it was and which way it went, step by step.

Plain stochastic gradient descent of one net, kept step by step.

The batches are those of the one loop: slots in keyed order, empty ones masked. What is kept of a
step is the mean gradient of the rows in its batch at the point where it was, decay included.

Products with a net's Hessian that is known from a few steps only: L-BFGS in compact form.

`letheon.removal.secant_matrix` has the formula. B is positive definite if every s.y is above 0,
which a loss that is not convex does not grant: `LocalChecks` says which pairs may be used.

The replay of a net's descent without some rows (Wu et al. 2020, Algorithm 4).
"""

from dataclasses import dataclass
from math import inf, nan, sqrt
from statistics import fmean
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from letheon.deep._device import mapped_zeros, paused
from letheon.deep._loop import (
    Callback,
    DeviceData,
    LoopSettings,
    Progress,
    Slots,
    epoch_batches,
    join_epochs,
    slot_matrix,
)
from letheon.deep._module import Template
from letheon.deep._optim import learning_rates
from letheon.exceptions import TrainingError
from letheon.removal import Exactness, Opaque, RecordedPath, descend, secant_matrix
from letheon.seeds import Purpose, keyed_hash


class Path(RecordedPath[Tensor]):
    """A path in float32, on a device or in a file; `sizes` lie on the CPU."""

    @classmethod
    def allocate(cls, n_steps: int, size: int, device: torch.device, max_memory: int) -> Self:
        """Return room for a path: on the device, or in a file if it takes more bytes than that."""
        shape = (2, n_steps, size)
        is_large = 4 * int(np.prod(shape, dtype=np.int64)) > max_memory
        if is_large:
            room = mapped_zeros(shape, "the path", "raise max_memory, or train with larger batches")
        else:
            room = torch.zeros(shape, device=device)
        return cls(room[0], room[1], torch.zeros(n_steps, dtype=torch.int64))

    def at(self, step: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return point and gradient of a step, on a device."""
        return self.points[step].to(device), self.gradients[step].to(device)

    def copy_steps(self, source: "Path", n_steps: int) -> None:
        """Take over the first steps of another path."""
        self.points[:n_steps].copy_(source.points[:n_steps])
        self.gradients[:n_steps].copy_(source.gradients[:n_steps])
        self.sizes[:n_steps].copy_(source.sizes[:n_steps])

    def _to_state(self) -> dict[str, Any]:
        return {
            "points": self.points.cpu().numpy(),
            "gradients": self.gradients.cpu().numpy(),
            "sizes": self.sizes.numpy(),
        }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        points, gradients = (
            torch.from_numpy(np.array(state[name], np.float32)) for name in ("points", "gradients")
        )
        return cls(points, gradients, torch.from_numpy(np.array(state["sizes"], np.int64)))

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        return type(self)._from_state, (self._to_state(),)


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
        plan, path, diary = plan.to(self.device), self.room(len(plan)), Diary(callback)

        def gradient(t: int, w: Tensor) -> tuple[Tensor, int]:
            if not plan.sizes[t]:
                return torch.zeros_like(w), 0
            loss, found = self.gradient(w, plan.rows[t], plan.weights[t])
            diary.note(loss)
            return found, plan.sizes[t]

        def close(t: int, w: Tensor) -> None:
            if diary.close(t, plan) and not bool(torch.isfinite(w).all()):
                raise TrainingError(
                    f"training diverged in epoch {t // plan.n_steps}: the loss is {diary.last}, "
                    "and parameters are not finite; nothing was changed. Scale the rows, or lower "
                    "learning_rate"
                )

        w = descend(path, start, plan.rates, gradient, after=close)
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


class Replay:
    """Goes a path again without some rows; between exact steps L-BFGS stands in for the Hessian.

    ``w'_(t+1) = w'_t - rate_t / (n_t - m_t) [ n_t (g_t + B v) - gradients of those who leave ]``
    with v = w'_t - w_t, and n_t rows of which m_t leave in the batch of step t. Steps that B cannot
    be trusted with are computed from the rows that stay.

    Parameters
    ----------
    descent : Descent
        How steps are made.
    path : Path
        To be gone again.
    plan : Plan
        Steps of the rows that stay.
    leaving : dict of int to Tensor
        Rows that leave, by the steps they were in.
    exactness : Exactness
        Which steps are exact, counted from the first that changes, and how many pairs are kept.
    checks : LocalChecks
        When a product is trusted.
    """

    def __init__(
        self,
        descent: Descent,
        path: Path,
        plan: Plan,
        leaving: dict[int, Tensor],
        exactness: Exactness,
        checks: LocalChecks,
    ) -> None:
        self._descent, self._path, self._exactness = descent, path, exactness
        self._plan, self._device = plan.to(descent.device), descent.device
        self._leaving = {step: rows.to(self._device) for step, rows in leaving.items()}
        self._checks = checks
        self._secants = Secants(exactness.history, path.points.shape[1], self._device, checks)
        self._longest = inf
        self._squared_errors: list[float] = []
        self._n_exact = self._n_approximate = self._n_visits = 0
        self._squared_rates = 0.0
        self._last = max((t for t, size in enumerate(plan.sizes) if size), default=-1)

    def run(self, first: int, callback: Callback | None) -> Run:
        """Replay from step `first` on; those before it are taken over as they are."""
        plan = self._plan
        self._descent.template.to(self._device)
        found, diary = self._descent.room(len(plan)), Diary(callback)
        found.copy_steps(self._path, first)
        start = self._path.points[first].to(self._device, copy=True)

        def gradient(t: int, w: Tensor) -> tuple[Tensor, int]:
            size = plan.sizes[t]
            return self._step(t, t - first, w, diary) if size else torch.zeros_like(w), size

        w = descend(
            found,
            start,
            plan.rates,
            gradient,
            first=first,
            after=lambda t, _: diary.close(t, plan),
        )
        return Run(found, w, self._n_exact, self._n_approximate, self._n_visits, self._missed())

    def _step(self, t: int, count: int, w: Tensor, diary: Diary) -> Tensor:
        """Return the mean gradient at w over the rows of a step that stay."""
        if self._exactness.period == 1:
            return self._exact(t, w, diary)
        point, recorded = self._path.at(t, self._device)
        v, own = w - point, self._own_gradient(t, w)
        bent = None if self._must_be_exact(t, count) else self._bent(v)
        if bent is not None:
            self._n_approximate += 1
            self._squared_rates += self._plan.rates[t] ** 2
            return self._without_leaving(t, recorded + bent, own)
        gradient = self._exact(t, w, diary)
        self._longest = self._checks.max_distance * float(torch.linalg.vector_norm(point))
        was_trusted = self._secants.is_trusted
        error = self._secants.offer(v, self._with_leaving(t, gradient, own) - recorded)
        if was_trusted and count > self._exactness.burn_in:
            self._squared_errors.append(error**2)
        return gradient

    def _must_be_exact(self, t: int, count: int) -> bool:
        """Whether a step is computed from the rows: by schedule, or for want of a measurement."""
        # Once at least B is compared with the rows at a step that it could have been used for.
        is_untested_end = t == self._last and not self._squared_errors
        return is_untested_end or self._exactness.is_exact(count)

    def _own_gradient(self, t: int, w: Tensor) -> Tensor | None:
        """Return the sum of the gradients of the rows that leave a step; None if nobody does."""
        rows = self._leaving.get(t)
        if rows is None:
            return None
        self._n_visits += len(rows)
        weights = torch.ones(len(rows), device=self._device)
        return self._descent.gradient(w, rows, weights, total=len(rows))[1]

    def _bent(self, v: Tensor) -> Tensor | None:
        """Return B v, or None where it cannot be trusted."""
        length = float(torch.linalg.vector_norm(v))
        # Negated, so that a number that is not finite is not trusted either.
        if not self._secants.is_trusted or not length <= self._longest:
            return None
        bent = self._secants.product(v)
        most = self._checks.max_smoothness * length
        return bent if float(torch.linalg.vector_norm(bent)) <= most else None

    def _exact(self, t: int, w: Tensor, diary: Diary) -> Tensor:
        """Return the mean gradient of the rows that stay, computed from them."""
        loss, gradient = self._descent.gradient(w, self._plan.rows[t], self._plan.weights[t])
        diary.note(loss)
        self._n_exact += 1
        self._n_visits += self._plan.sizes[t]
        return gradient

    def _with_leaving(self, t: int, gradient: Tensor, own: Tensor | None) -> Tensor:
        """Turn the mean gradient over the rows that stay into that over all rows of a step."""
        if own is None:
            return gradient
        after = self._plan.sizes[t]
        return (after * gradient + own) / (after + len(self._leaving[t]))

    def _without_leaving(self, t: int, gradient: Tensor, own: Tensor | None) -> Tensor:
        """Turn the mean gradient over all rows of a step into that over the rows that stay."""
        if own is None:
            return gradient
        after = self._plan.sizes[t]
        return ((after + len(self._leaving[t])) * gradient - own) / after

    def _missed(self) -> float:
        if not self._n_approximate:
            return 0.0
        return sqrt(self._squared_rates * fmean(self._squared_errors))
