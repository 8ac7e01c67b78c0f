"""The replay of a descent without some rows (Wu et al. 2020).

Gradient descent that is recorded, and replayed without some rows (Wu et al. 2020).

Everything is in the mean objective F = S / n, whose regulariser has the weight lam = ridge / n. Of
a mini-batch of b rows, r of which leave, the mean gradient over those that stay is::

    g'(w) = (b g(w) - sum of the removed rows' gradients at w) / (b - r)

with the regulariser taken out of g and put back with the weight that it has afterwards. If all rows
of a batch leave, the step is skipped. Parameters are vectors here, score after score.

Hessians at a few points of a descent, by which it is replayed without reading the rows again.

With H the Hessian of the rows that stay, taken near w_t, and g'_t their mean gradient at w_t, the
descent without the rows that leave keeps the distance v_t = w'_t - w_t, where::

    g'(w'_t) ~ g'_t + H v_t,        v_(t+1) = v_t - rate (g'_t - g_t + H v_t)
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from letheon.linear._path import Batches, BlockSecants, Sizes, Trajectory
from letheon.linear._problem import NOBODY, Floats, Loss, Positions, Problem, roots_of, slope_sum
from letheon.removal import Exactness, Opaque, descend, opaque_repr


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

    def gradient(self, step: int, w: Floats) -> tuple[Floats, int]:
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
        path, start = self.room(n_steps), np.zeros(self.n_parameters)
        rates = [self.rate] * n_steps
        return Replay(path, descend(path, start, rates, self.gradient), n_steps)


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
    problem = descent.problem
    n_blocks = 1 if problem.loss.is_joint else problem.shape[1]
    secants = BlockSecants(exactness.history, n_blocks, descent.n_parameters // n_blocks)
    # No descent with this rate goes down where the Hessian is larger.
    steepest = 2.0 / descent.rate
    found, n_exact = descent.room(len(path)), 0

    def gradient(t: int, w: Floats) -> tuple[Floats, int]:
        nonlocal n_exact
        size = int(removed.sizes[t])
        if not size:
            return np.zeros_like(w), 0
        v = w - path.points[t]
        bent = None if exactness.is_exact(t) else secants.product(v, steepest)
        if bent is None:
            g, n_exact = descent.gradient(t, w)[0], n_exact + 1
            secants.push(v, g - path.gradients[t])
        else:
            g = path.gradients[t] + bent
        return removed.adjusted(g, w, removed.own_gradient(descent.matrix(w), t), t), size

    end = descend(found, path.points[0].copy(), [descent.rate] * len(path), gradient)
    return Replay(found, end, n_exact)


# Numbers of the blocks of a path and of scores along it that are worked on at once.
_CHUNK = 2**21
# Columns of the factors of a downdate at a time.
_FACTOR_COLUMNS = 4096


@dataclass(frozen=True, eq=False, repr=False)
class Checkpoints(Opaque):
    """Hessians of the data part, summed over rows: lower triangles in Fortran order.

    Attributes
    ----------
    points : ndarray of shape (C, N)
        Where they were taken.
    blocks : list of list of ndarray
        Blocks of the Hessian at every point.
    nearest : ndarray of shape (T,)
        Which point stands for each step.
    """

    points: Floats
    blocks: list[list[Floats]]
    nearest: NDArray[np.int64]

    @classmethod
    def along(cls, problem: Problem, path: Trajectory, n_checkpoints: int) -> "Checkpoints":
        """Take Hessians at some points of a path."""
        nodes, nearest = _nodes(path.points, n_checkpoints)
        d, K = problem.shape
        points = path.points[nodes].copy()
        hessians = [problem.hessian(point.reshape(K, d).T) for point in points]
        # Removals follow in the lower triangle; the other half would keep the rows that left.
        blocks = [[np.asfortranarray(np.tril(block)) for block in each] for each in hessians]
        return cls(points, blocks, nearest)

    def without(self, removed: Removed) -> "Checkpoints":
        """Return the Hessians of the rows that stay, in memory of their own."""
        d, K = removed.after.shape
        blocks = [
            _downdated(each, removed, point.reshape(K, d).T)
            for each, point in zip(self.blocks, self.points, strict=True)
        ]
        return Checkpoints(self.points, blocks, self.nearest)


def _nodes(points: Floats, n_nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose steps of a path as nodes; return them and which is nearest to every step.

    By length of the path they lie closer to each other towards its end: later steps forget earlier
    errors, and most steps are short ones.
    """
    lengths = np.zeros(len(points))
    for t in range(1, len(points)):
        lengths[t] = lengths[t - 1] + np.linalg.norm(points[t] - points[t - 1])
    ahead = 1.0 - np.arange(1, n_nodes + 1) / n_nodes
    wanted = np.searchsorted(lengths, (1.0 - ahead**2) * lengths[-1])
    nodes = np.unique(np.minimum(wanted, len(points) - 1))
    return nodes, np.abs(lengths[:, None] - lengths[nodes]).argmin(axis=1)


def _downdated(blocks: list[Floats], removed: Removed, W: Floats) -> list[Floats]:
    """Return Hessian blocks at W without what the removed rows add to them."""
    found = [block.copy("F") for block in blocks]
    columns = removed.loss.n_outputs if removed.loss.is_joint else 1
    step = max(1, _FACTOR_COLUMNS // columns)
    for begin in range(0, len(removed.y), step):
        rows, y = removed.rows[begin : begin + step], removed.y[begin : begin + step]
        for k, V in enumerate(roots_of(removed.loss, rows, y, W)):
            _take_out(found[k], V)
    return found


def _take_out(block: Floats, V: Floats) -> None:
    if V.shape[1] == 1:
        blas.dsyr(-1.0, V[:, 0], a=block, lower=1, overwrite_a=1)
    else:
        blas.dsyrk(-1.0, np.asfortranarray(V), beta=1.0, c=block, lower=1, overwrite_c=1)


def replayed_by_hessians(
    descent: Descent, path: Trajectory, removed: Removed, checkpoints: Checkpoints
) -> Replay:
    """Replay a descent without some rows; `checkpoints` are those of the rows that stay."""
    found, v = descent.room(len(path)), np.zeros(descent.n_parameters)
    found.sizes[:] = removed.sizes
    per_step = max(descent.n_parameters, len(removed.y) * removed.loss.n_outputs)
    chunk = max(1, _CHUNK // per_step)
    for begin in range(0, len(path), chunk):
        end = min(begin + chunk, len(path))
        g = removed.adjusted_path(path, begin, end)
        pull = g - path.gradients[begin:end]
        for t in range(begin, end):
            found.points[t] = v
            if removed.sizes[t]:
                bent = _product(checkpoints.blocks[checkpoints.nearest[t]], v, removed)
                found.gradients[t] = bent
                v = v - descent.rate * (pull[t - begin] + bent)
            else:
                v = v - descent.rate * pull[t - begin]
        found.points[begin:end] += path.points[begin:end]
        found.gradients[begin:end] += g
    end_before = path.points[-1] - descent.rate * path.gradients[-1]
    return Replay(found, end_before + v, 0)


def _product(blocks: list[Floats], v: Floats, removed: Removed) -> Floats:
    """Hessian of the mean objective times v."""
    scale, lam = 1.0 / removed.after.n_held, removed.lam
    if len(blocks) == 1:
        product: Floats = blas.dsymv(scale, blocks[0], v, beta=lam, y=v, lower=1)
        return product
    parts = v.reshape(len(blocks), -1)
    products = [
        blas.dsymv(scale, block, part, beta=lam, y=part, lower=1)
        for block, part in zip(blocks, parts, strict=True)
    ]
    return np.concatenate(products)
