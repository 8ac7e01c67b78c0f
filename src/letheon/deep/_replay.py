"""The replay of a net's descent without some rows (Wu et al. 2020, Algorithm 4)."""

from math import inf, sqrt
from statistics import fmean

import torch
from torch import Tensor

from letheon.deep._descent import Descent, Diary, Plan, Run
from letheon.deep._loop import Callback
from letheon.deep._path import Path
from letheon.deep._secant import LocalChecks, Secants
from letheon.removal import Exactness


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
        w = self._path.points[first].to(self._device, copy=True)
        for t in range(first, len(plan)):
            gradient = torch.zeros_like(w)
            if plan.sizes[t]:
                gradient = self._step(t, t - first, w, diary)
            found.write(t, w, gradient, plan.sizes[t])
            w = w - plan.rates[t] * gradient
            diary.close(t, plan)
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
