"""Gradient descent that is recorded, and replayed without some rows (Wu et al. 2020).

Everything is in the mean objective F = S / n, whose regulariser has the weight lam = ridge / n. Of
a mini-batch of b rows, r of which leave, the mean gradient over those that stay is::

    g'(w) = (b g(w) - sum of the removed rows' gradients at w) / (b - r)

with the regulariser taken out of g and put back with the weight that it has afterwards. If all rows
of a batch leave, the step is skipped. Parameters are vectors here, score after score.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.linear._batches import Batches
from letheon.linear._losses import Floats, Loss
from letheon.linear._problem import NOBODY, Positions, Problem, slope_sum
from letheon.linear._secant import BlockSecants
from letheon.linear._trajectory import Sizes, Trajectory
from letheon.removal import Exactness, opaque_repr


class Replay(NamedTuple):
    """A path, where it ends, and how many of its gradients were computed from all rows."""

    trajectory: Trajectory
    end: Floats
    n_exact: int

    def __repr__(self) -> str:
        return opaque_repr(self)


@dataclass(frozen=True, eq=False)
class Descent:
    """How a descent goes on these rows: its problem, step size and batches (None: all rows)."""

    problem: Problem
    rate: float
    batches: Batches | None
    max_memory: int

    @property
    def lam(self) -> float:
        """Weight of the regulariser in the mean objective."""
        return self.problem.ridge / self.problem.n_held

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        d, K = self.problem.shape
        return d * K

    def matrix(self, w: Floats) -> Floats:
        """Return parameters in the shape (d, K) of the problem; a view."""
        d, K = self.problem.shape
        return w.reshape(K, d).T

    def room(self, n_steps: int) -> Trajectory:
        """Return room for a path."""
        return Trajectory.allocate(n_steps, self.n_parameters, self.max_memory)

    def gradient(self, w: Floats, step: int) -> tuple[Floats, int]:
        """Mean gradient at w over the rows of a step, and how many they are."""
        problem, W = self.problem, self.matrix(w)
        if self.batches is None:
            return problem.gradient(W).T.ravel() / problem.n_held, problem.n_held
        rows = self.batches.at(step)
        if not len(rows):
            return np.zeros_like(w), 0
        return problem.data_gradient(W, rows).T.ravel() / len(rows) + self.lam * w, len(rows)

    def recorded(self, n_steps: int) -> Replay:
        """Descend from 0 and keep every step."""
        path, w = self.room(n_steps), np.zeros(self.n_parameters)
        for t in range(n_steps):
            g, size = self.gradient(w, t)
            path.points[t], path.gradients[t], path.sizes[t] = w, g, size
            w = w - self.rate * g
        return Replay(path, w, n_steps)


class Removed:
    """Rows that leave, and the steps that they took part in.

    Parameters
    ----------
    descent : Descent
        Of all rows.
    positions : ndarray
        Rows that leave.
    sizes : ndarray
        Rows of every step.
    """

    def __init__(self, descent: Descent, positions: Positions, sizes: Sizes) -> None:
        problem = descent.problem
        self.loss: Loss = problem.loss
        self.rows = problem.rows_at(positions)
        self.y: NDArray[Any] = problem.y[positions]
        self._everybody: Positions | None = None
        self._meetings: dict[int, Positions] = {}
        self.after = problem.without(positions)
        self.lam = self.after.ridge / self.after.n_held
        counts = np.zeros_like(sizes)
        if descent.batches is None:
            self._everybody = np.arange(len(positions))
            counts += len(positions)
        else:
            self._meetings = dict(descent.batches.meetings(positions, len(sizes)))
            for step, members in self._meetings.items():
                counts[step] = len(members)
        self.sizes: Sizes = sizes - counts
        # A mean over b rows becomes one over b - r by this factor.
        stretch = sizes / np.maximum(self.sizes, 1)
        self._stretch: Floats = np.where(self.sizes > 0, stretch, 0.0)
        self._shrinkage: Floats = np.where(self.sizes > 0, self.lam - stretch * descent.lam, 0.0)

    def in_all_steps(self) -> bool:
        """Whether every step has all rows, as without batches."""
        return self._everybody is not None

    def members(self, step: int) -> Positions:
        """Return which of the removed rows were in a step."""
        return self._meetings.get(step, NOBODY) if self._everybody is None else self._everybody

    def own_gradient(self, W: Floats, step: int) -> Floats | None:
        """Sum of the gradients of the removed rows of a step, without regulariser."""
        members = self.members(step)
        if not len(members):
            return None
        if len(members) == len(self.y):
            return slope_sum(self.loss, self.rows, self.y, W).T.ravel()
        return slope_sum(self.loss, self.rows[members], self.y[members], W).T.ravel()

    def adjusted(self, g: Floats, w: Floats, own: Floats | None, step: int) -> Floats:
        """Turn the mean gradient at w over all rows of a step into that over those that stay."""
        adjusted: Floats = self._stretch[step] * g
        if self._shrinkage[step]:
            adjusted += self._shrinkage[step] * w
        if own is not None:
            adjusted -= own / self.sizes[step]
        return adjusted

    def adjusted_path(self, path: Trajectory, begin: int, end: int) -> Floats:
        """`adjusted` of the recorded gradients of several steps at the recorded points."""
        points, span = path.points[begin:end], slice(begin, end)
        adjusted = self._stretch[span, None] * path.gradients[span]
        if self._shrinkage[span].any():
            adjusted += self._shrinkage[span, None] * points
        if self.in_all_steps():
            adjusted -= self._own_gradients(points) / self.after.n_held
            return adjusted
        shape = self.after.shape[::-1]
        for t in range(begin, end):
            own = self.own_gradient(points[t - begin].reshape(shape).T, t)
            if own is not None and self.sizes[t]:
                adjusted[t - begin] -= own / self.sizes[t]
        return adjusted

    def _own_gradients(self, points: Floats) -> Floats:
        """Sums of the removed rows' gradients at many points: two products of matrices."""
        (d, K), n_points, m = self.after.shape, len(points), len(self.y)
        scores = (self.rows @ points.reshape(n_points * K, d).T).reshape(m, n_points, K)
        slopes = self.loss.slope(scores.reshape(m * n_points, K), np.repeat(self.y, n_points))
        sums: Floats = self.rows.T @ slopes.reshape(m, n_points * K)
        return sums.T.reshape(n_points, K * d)


def replayed_by_secants(
    descent: Descent, path: Trajectory, removed: Removed, exactness: Exactness
) -> Replay:
    """Replay a descent without some rows; between exact steps L-BFGS stands in for the Hessian.

    Steps that it cannot be trusted with are exact ones too.
    """
    problem, w = descent.problem, path.points[0].copy()
    n_blocks = 1 if problem.loss.is_joint else problem.shape[1]
    secants = BlockSecants(exactness.history, n_blocks, descent.n_parameters // n_blocks)
    # No descent with this rate goes down where the Hessian is larger.
    steepest = 2.0 / descent.rate
    found, n_exact = descent.room(len(path)), 0
    found.sizes[:] = removed.sizes
    for t in range(len(path)):
        found.points[t] = w
        if not removed.sizes[t]:
            continue
        v = w - path.points[t]
        bent = None if exactness.is_exact(t) else secants.product(v, steepest)
        if bent is None:
            g, n_exact = descent.gradient(w, t)[0], n_exact + 1
            secants.push(v, g - path.gradients[t])
        else:
            g = path.gradients[t] + bent
        g = removed.adjusted(g, w, removed.own_gradient(descent.matrix(w), t), t)
        found.gradients[t] = g
        w = w - descent.rate * g
    return Replay(found, w, n_exact)
