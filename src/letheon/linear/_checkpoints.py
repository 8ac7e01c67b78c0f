"""Hessians at a few points of a descent, by which it is replayed without reading the rows again.

With H the Hessian of the rows that stay, taken near w_t, and g'_t their mean gradient at w_t, the
descent without the rows that leave keeps the distance v_t = w'_t - w_t, where::

    g'(w'_t) ~ g'_t + H v_t,        v_(t+1) = v_t - rate (g'_t - g_t + H v_t)
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from letheon.linear._losses import Floats
from letheon.linear._problem import Problem, roots_of
from letheon.linear._replay import Descent, Removed, Replay
from letheon.linear._trajectory import Trajectory
from letheon.removal import Opaque

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
