"""The path of a gradient descent, and its replay without some rows (Wu et al. 2020).

*Batches.* The steps are divided into epochs of n_batches steps. In every epoch a row belongs to one
batch::

    key(row)    = mix64(keyed_hash(seed, "batch", id of the row), number of the row within its id)
    batch(row)  = mix64(keyed_hash(seed, "batch-epoch", epoch), key(row)) mod n_batches

The batch depends only on the row's own id, the seed and the epoch, so a removal does not move other
rows. Sizes of batches vary; a batch may be empty.

*Replay by secants.* Gradients use the mean objective F = S / n, whose regulariser has the weight
lam = ridge / n. For a mini-batch of b rows, r of which are removed, the mean gradient over the
remaining rows is::

    g'(w) = (b g(w) - sum of the removed rows' gradients at w) / (b - r)

with the regulariser of g replaced by that after the removal. If all rows of a batch are removed,
the step is skipped. Parameters are vectors here, score after score. Products with the Hessian come
from L-BFGS in compact form; `letheon.removal.secant_matrix` has the formula.

*Replay by Hessians.* Hessians at a few points of the descent are stored, so a removal reads only
the removed rows. Let H be the Hessian of the remaining rows near w_t, and g'_t their mean gradient
at w_t. The distance v_t = w'_t - w_t of the descent without the removed rows follows from::

    g'(w'_t) ~ g'_t + H v_t,        v_(t+1) = v_t - rate (g'_t - g_t + H v_t)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from letheon.data import Ids
from letheon.linear._problem import (
    NO_ROWS,
    FitProblem,
    Floats,
    Loss,
    Positions,
    hessian_roots,
    sum_gradients,
)
from letheon.removal import Exactness, Opaque, RecordedPath, allocate_file, descend, secant_matrix
from letheon.seeds import Purpose, keyed_hash, mix64

Keys = NDArray[np.uint64]


def row_keys(ids: Ids, seed: int) -> Keys:
    """Return a 64-bit key for every row; rows of the same id have different keys."""
    owners = ids.hashes(seed, Purpose.BATCH)
    order = np.argsort(owners, kind="stable")
    ranks = np.arange(len(owners), dtype=np.int64)
    in_order = owners[order]
    is_first = np.append(True, in_order[1:] != in_order[:-1])[: len(owners)]
    numbers = np.empty(len(owners), np.uint64)
    numbers[order] = ranks - np.maximum.accumulate(np.where(is_first, ranks, 0))
    return mix64(owners, numbers)


class BatchSchedule:
    """The rows that each step of a descent uses.

    Parameters
    ----------
    keys : ndarray of uint64
        Key of every slot, from `row_keys`.
    alive : ndarray of bool
        Which slots contain a row.
    n_batches : int
        Number of batches in an epoch.
    seed : int
        Seed of the model.
    """

    def __init__(self, keys: Keys, alive: NDArray[np.bool_], n_batches: int, seed: int) -> None:
        self._keys = keys
        self._held = np.flatnonzero(alive)
        self._n_batches = n_batches
        self._seed = seed
        self._epoch = -1
        self._order: Positions = np.empty(0, np.int64)
        self._ends: Positions = np.empty(0, np.int64)

    def rows_of_step(self, step: int) -> Positions:
        """Return the positions of the rows that a step uses, in ascending order."""
        epoch, batch = divmod(step, self._n_batches)
        if epoch != self._epoch:
            batches = self._assign_batches(epoch, self._keys[self._held])
            self._order = self._held[np.argsort(batches, kind="stable")]
            counts = np.bincount(batches, minlength=self._n_batches)
            self._epoch, self._ends = epoch, np.append(0, np.cumsum(counts))
        return self._order[self._ends[batch] : self._ends[batch + 1]]

    def iterate_steps_of(self, chosen: Positions, n_steps: int) -> Iterator[tuple[int, Positions]]:
        """Yield (step, indices into `chosen`) for each step that uses at least one chosen row.

        The steps are in ascending order, below `n_steps`.
        """
        keys = self._keys[chosen]
        for first in range(0, n_steps, self._n_batches):
            batches = self._assign_batches(first // self._n_batches, keys)
            for batch in np.unique(batches).tolist():
                if first + batch < n_steps:
                    yield first + batch, np.flatnonzero(batches == batch)

    def _assign_batches(self, epoch: int, keys: Keys) -> Positions:
        key = keyed_hash(self._seed, Purpose.BATCH_EPOCH, epoch)
        return (mix64(key, keys) % np.uint64(self._n_batches)).astype(np.int64)


Sizes = NDArray[np.int64]


class Trajectory(RecordedPath[Floats]):
    """A recorded path in float64; each point is a vector of the parameters, score after score."""

    @classmethod
    def allocate(cls, n_steps: int, n_parameters: int, max_memory: int) -> Self:
        """Return an empty path in memory, or in a file if it is larger than `max_memory` bytes."""
        shape = (2, n_steps, n_parameters)
        n_bytes = 8 * int(np.prod(shape, dtype=np.int64))
        if n_bytes <= max_memory:
            room = np.zeros(shape)
        else:
            room = np.frombuffer(allocate_file(n_bytes), np.float64).reshape(shape)
        return cls(room[0], room[1], np.zeros(n_steps, np.int64))

    def _to_state(self) -> dict[str, Any]:
        return {"points": self.points, "gradients": self.gradients, "sizes": self.sizes}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        return cls(state["points"], state["gradients"], state["sizes"])


# Least scale c of the initial matrix, in the mean objective, as in the authors' DeltaGrad code.
LEAST_SCALE = 1e-3


class SecantHistory:
    """The last secant pairs of one block of the Hessian, and the L-BFGS matrix B from them.

    In a pair (s, y), s is a change of the parameters and y is the change of the gradient.

    Parameters
    ----------
    history : int
        Number of pairs to keep.
    size : int
        Length of s and y.
    """

    def __init__(self, history: int, size: int) -> None:
        # A ring buffer: the newest pair replaces the oldest.
        self._s, self._y = np.zeros((history, size)), np.zeros((history, size))
        self._inner = np.zeros((history, history))  # s_i . y_j
        self._gram = np.zeros((history, history))  # s_i . s_j
        self._ages = np.zeros(history, np.int64)
        self._n_pushed = 0
        self._scale = 0.0
        self._factor: tuple[Floats, Any] | None = None

    def __len__(self) -> int:
        return min(self._n_pushed, len(self._ages))

    def add_pair(self, s: Floats, y: Floats) -> bool:
        """Add a pair if s.y > 0, replacing the oldest pair if full; return whether it was added."""
        along = float(s @ y)
        if not along > 0.0:
            return False
        place = self._n_pushed % len(self._ages)
        self._s[place], self._y[place] = s, y
        self._ages[place] = self._n_pushed
        self._n_pushed += 1
        n = len(self)
        self._inner[place, :n], self._inner[:n, place] = self._y[:n] @ s, self._s[:n] @ y
        self._gram[place, :n] = self._gram[:n, place] = self._s[:n] @ s
        self._scale = max(along / self._gram[place, place], LEAST_SCALE)
        self._factor = None
        return True

    def hessian_product(self, v: Floats) -> Floats | None:
        """Return B v, or None if there are no pairs or the product is not finite."""
        n, scale = len(self), self._scale
        if n == 0:
            return None
        if self._factor is None:
            middle = secant_matrix(self._inner[:n, :n], self._gram[:n, :n], self._ages[:n], scale)
            self._factor = lapack.dgetrf(middle)[:2]
        ahead = np.concatenate([self._y[:n] @ v, scale * (self._s[:n] @ v)])
        middle, _ = lapack.dgetrs(*self._factor, ahead)
        product: Floats = scale * v
        product -= middle[:n] @ self._y[:n]
        product -= (scale * middle[n:]) @ self._s[:n]
        return product if np.isfinite(product).all() else None


class BlockSecantHistory:
    """A `SecantHistory` for each block of the Hessian."""

    def __init__(self, history: int, n_blocks: int, size: int) -> None:
        self._blocks = [SecantHistory(history, size) for _ in range(n_blocks)]
        self._shape = n_blocks, size

    def add_pair(self, s: Floats, y: Floats) -> None:
        """Add a pair of full vectors: each block gets its part of s and y."""
        pairs = zip(self._blocks, s.reshape(self._shape), y.reshape(self._shape), strict=True)
        for block, s_block, y_block in pairs:
            block.add_pair(s_block, y_block)

    def hessian_product(self, v: Floats, most: float) -> Floats | None:
        """Return B v, or None if the product is unreliable.

        The product is unreliable if a block of v is not zero but has no pairs, or if in some block
        |B v| > most |v|. `most` is an upper bound on the norm of the Hessian.
        """
        product = np.zeros(self._shape)
        for block, change, out in zip(self._blocks, v.reshape(self._shape), product, strict=True):
            length = float(np.linalg.norm(change))
            if length == 0.0:
                continue
            bent = block.hessian_product(change)
            if bent is None or not float(np.linalg.norm(bent)) <= most * length:
                return None
            out[:] = bent
        return product.ravel()


@dataclass(frozen=True, eq=False, repr=False)
class ReplayedPath(Opaque):
    """A path, its last point, and the number of gradients that were computed from all rows."""

    trajectory: Trajectory
    end: Floats
    n_exact: int


@dataclass(frozen=True, eq=False)
class LinearDescent:
    """A gradient descent: its problem, step size and batches.

    If `batches` is None, every step uses all rows.
    """

    problem: FitProblem
    rate: float
    batches: BatchSchedule | None
    max_memory: int

    @property
    def lam(self) -> float:
        """Weight of the regulariser in the mean objective."""
        return self.problem.ridge / self.problem.n_remaining

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        d, K = self.problem.shape
        return d * K

    def as_matrix(self, w: Floats) -> Floats:
        """Return a view of the parameter vector w with the shape (d, K) of the problem."""
        d, K = self.problem.shape
        return w.reshape(K, d).T

    def allocate_path(self, n_steps: int) -> Trajectory:
        """Return an empty path with room for `n_steps` steps."""
        return Trajectory.allocate(n_steps, self.n_parameters, self.max_memory)

    def mean_gradient(self, step: int, w: Floats) -> tuple[Floats, int]:
        """Return the mean gradient at w over the rows of a step, and the number of these rows."""
        problem, W = self.problem, self.as_matrix(w)
        if self.batches is None:
            return problem.gradient_at(W).T.ravel() / problem.n_remaining, problem.n_remaining
        rows = self.batches.rows_of_step(step)
        if not len(rows):
            return np.zeros_like(w), 0
        return problem.data_gradient(W, rows).T.ravel() / len(rows) + self.lam * w, len(rows)

    def record_path(self, n_steps: int) -> ReplayedPath:
        """Run `n_steps` steps of the descent from 0, and return the recorded path."""
        path, start = self.allocate_path(n_steps), np.zeros(self.n_parameters)
        rates = [self.rate] * n_steps
        return ReplayedPath(path, descend(path, start, rates, self.mean_gradient), n_steps)


class RowRemoval:
    """Rows to remove, and the steps that used them.

    Parameters
    ----------
    descent : LinearDescent
        The descent on all rows.
    positions : ndarray
        Positions of the rows to remove.
    sizes : ndarray
        Number of rows that every step used.
    """

    def __init__(self, descent: LinearDescent, positions: Positions, sizes: Sizes) -> None:
        problem = descent.problem
        self.loss: Loss = problem.loss
        self.rows = problem.copy_rows(positions)
        self.y: NDArray[Any] = problem.y[positions]
        self._all_rows: Positions | None = None
        self._rows_by_step: dict[int, Positions] = {}
        self.after = problem.without(positions)
        self.lam = self.after.ridge / self.after.n_remaining
        counts = np.zeros_like(sizes)
        if descent.batches is None:
            self._all_rows = np.arange(len(positions))
            counts += len(positions)
        else:
            self._rows_by_step = dict(descent.batches.iterate_steps_of(positions, len(sizes)))
            for step, members in self._rows_by_step.items():
                counts[step] = len(members)
        self.sizes: Sizes = sizes - counts
        # Factor that turns a mean over b rows into one over b - r.
        stretch = sizes / np.maximum(self.sizes, 1)
        self._stretch: Floats = np.where(self.sizes > 0, stretch, 0.0)
        self._shrinkage: Floats = np.where(self.sizes > 0, self.lam - stretch * descent.lam, 0.0)

    def rows_in_step(self, step: int) -> Positions:
        """Return which removed rows a step used, as indices into the removed rows."""
        return self._rows_by_step.get(step, NO_ROWS) if self._all_rows is None else self._all_rows

    def own_gradient(self, W: Floats, step: int) -> Floats | None:
        """Return the sum of the gradients at W of the removed rows that a step used.

        The regulariser is not included. If the step used no removed row, return None.
        """
        members = self.rows_in_step(step)
        if not len(members):
            return None
        if len(members) == len(self.y):
            return sum_gradients(self.loss, self.rows, self.y, W).T.ravel()
        return sum_gradients(self.loss, self.rows[members], self.y[members], W).T.ravel()

    def adjust_gradient(self, g: Floats, w: Floats, own: Floats | None, step: int) -> Floats:
        """Return a step's mean gradient at w over the remaining rows, from `g` over all its rows.

        `own` is the result of `own_gradient` at w.
        """
        adjusted: Floats = self._stretch[step] * g
        if self._shrinkage[step]:
            adjusted += self._shrinkage[step] * w
        if own is not None:
            adjusted -= own / self.sizes[step]
        return adjusted

    def adjust_path(self, path: Trajectory, begin: int, end: int) -> Floats:
        """Apply `adjust_gradient` to the recorded gradients of the steps `begin` to `end - 1`.

        Return one adjusted gradient per row.
        """
        points, span = path.points[begin:end], slice(begin, end)
        adjusted = self._stretch[span, None] * path.gradients[span]
        if self._shrinkage[span].any():
            adjusted += self._shrinkage[span, None] * points
        (d, K), n_points, m = self.after.shape, len(points), len(self.y)
        if self._all_rows is None:
            for t in range(begin, end):
                own = self.own_gradient(points[t - begin].reshape(K, d).T, t)
                if own is not None and self.sizes[t]:
                    adjusted[t - begin] -= own / self.sizes[t]
            return adjusted
        # Two matrix products give the sums of the removed rows' gradients at all points.
        scores = (self.rows @ points.reshape(n_points * K, d).T).reshape(m, n_points, K)
        slopes = self.loss.slopes_at(scores.reshape(m * n_points, K), np.repeat(self.y, n_points))
        sums: Floats = self.rows.T @ slopes.reshape(m, n_points * K)
        adjusted -= sums.T.reshape(n_points, K * d) / self.after.n_remaining
        return adjusted


def replay_by_secants(
    descent: LinearDescent, path: Trajectory, removed: RowRemoval, exactness: Exactness
) -> ReplayedPath:
    """Replay a descent without the removed rows, with L-BFGS in place of the Hessian.

    `exactness` decides which steps compute the gradient from the rows. The others add an L-BFGS
    product to the recorded gradient; if the product is unreliable, the step uses the rows too.
    """
    problem = descent.problem
    n_blocks = 1 if problem.loss.is_joint else problem.shape[1]
    secants = BlockSecantHistory(exactness.history, n_blocks, descent.n_parameters // n_blocks)
    # A descent with this rate diverges if the Hessian is larger.
    steepest = 2.0 / descent.rate
    replayed, n_exact = descent.allocate_path(len(path)), 0

    def gradient(t: int, w: Floats) -> tuple[Floats, int]:
        nonlocal n_exact
        size = int(removed.sizes[t])
        if not size:
            return np.zeros_like(w), 0
        v = w - path.points[t]
        bent = None if exactness.is_exact(t) else secants.hessian_product(v, steepest)
        if bent is None:
            g, n_exact = descent.mean_gradient(t, w)[0], n_exact + 1
            secants.add_pair(v, g - path.gradients[t])
        else:
            g = path.gradients[t] + bent
        return removed.adjust_gradient(g, w, removed.own_gradient(descent.as_matrix(w), t), t), size

    end = descend(replayed, path.points[0].copy(), [descent.rate] * len(path), gradient)
    return ReplayedPath(replayed, end, n_exact)


# Path entries, and scores along the path, that are processed at once.
_CHUNK = 2**21
# Columns of the factors of a downdate at a time.
_FACTOR_COLUMNS = 4096


@dataclass(frozen=True, eq=False, repr=False)
class Checkpoints(Opaque):
    """Hessians of the summed losses at C points of a path, without the regulariser.

    Attributes
    ----------
    points : ndarray of shape (C, N)
        Parameters at which the Hessians were evaluated.
    blocks : list of list of ndarray
        For every point, the lower triangles of the Hessian's blocks, in Fortran order.
    nearest : ndarray of shape (T,)
        For every step, the index of the nearest point.
    """

    points: Floats
    blocks: list[list[Floats]]
    nearest: NDArray[np.int64]

    @classmethod
    def evaluate_along(
        cls, problem: FitProblem, path: Trajectory, n_checkpoints: int
    ) -> "Checkpoints":
        """Evaluate the Hessians at up to `n_checkpoints` points of a path."""
        nodes, nearest = _choose_nodes(path.points, n_checkpoints)
        d, K = problem.shape
        points = path.points[nodes].copy()
        hessians = [problem.hessian_at(point.reshape(K, d).T) for point in points]
        # Removals update the lower triangle only; the upper one would keep the removed rows.
        blocks = [[np.asfortranarray(np.tril(block)) for block in each] for each in hessians]
        return cls(points, blocks, nearest)

    def without(self, removed: RowRemoval) -> "Checkpoints":
        """Return a copy in which the Hessians are summed over the remaining rows only."""
        (d, K), loss = removed.after.shape, removed.loss
        step = max(1, _FACTOR_COLUMNS // (loss.n_outputs if loss.is_joint else 1))
        copies = [[block.copy("F") for block in blocks] for blocks in self.blocks]
        for blocks, point in zip(copies, self.points, strict=True):
            for begin in range(0, len(removed.y), step):
                rows, y = removed.rows[begin : begin + step], removed.y[begin : begin + step]
                roots = hessian_roots(loss, rows, y, point.reshape(K, d).T)
                for block, V in zip(blocks, roots, strict=True):
                    if V.shape[1] == 1:
                        blas.dsyr(-1.0, V[:, 0], a=block, lower=1, overwrite_a=1)
                    else:
                        columns = np.asfortranarray(V)
                        blas.dsyrk(-1.0, columns, beta=1.0, c=block, lower=1, overwrite_c=1)
        return Checkpoints(self.points, copies, self.nearest)


def _choose_nodes(points: Floats, n_nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return up to `n_nodes` steps of a path as nodes, and the nearest node of every step.

    Distances are measured along the path. The nodes are closer together towards its end, because
    later steps correct earlier errors and most steps are short.
    """
    lengths = np.zeros(len(points))
    for t in range(1, len(points)):
        lengths[t] = lengths[t - 1] + np.linalg.norm(points[t] - points[t - 1])
    ahead = 1.0 - np.arange(1, n_nodes + 1) / n_nodes
    wanted = np.searchsorted(lengths, (1.0 - ahead**2) * lengths[-1])
    nodes = np.unique(np.minimum(wanted, len(points) - 1))
    return nodes, np.abs(lengths[:, None] - lengths[nodes]).argmin(axis=1)


def replay_by_hessians(
    descent: LinearDescent, path: Trajectory, removed: RowRemoval, checkpoints: Checkpoints
) -> ReplayedPath:
    """Replay a descent without the removed rows, with Hessians at a few points of the path.

    `checkpoints` must be the Hessians of the remaining rows (see `Checkpoints.without`).
    """
    replayed, v = descent.allocate_path(len(path)), np.zeros(descent.n_parameters)
    replayed.sizes[:] = removed.sizes
    per_step = max(descent.n_parameters, len(removed.y) * removed.loss.n_outputs)
    chunk = max(1, _CHUNK // per_step)
    for begin in range(0, len(path), chunk):
        end = min(begin + chunk, len(path))
        g = removed.adjust_path(path, begin, end)
        pull = g - path.gradients[begin:end]
        for t in range(begin, end):
            replayed.points[t] = v
            if removed.sizes[t]:
                bent = _hessian_product(checkpoints.blocks[checkpoints.nearest[t]], v, removed)
                replayed.gradients[t] = bent
                v = v - descent.rate * (pull[t - begin] + bent)
            else:
                v = v - descent.rate * pull[t - begin]
        replayed.points[begin:end] += path.points[begin:end]
        replayed.gradients[begin:end] += g
    end_before = path.points[-1] - descent.rate * path.gradients[-1]
    return ReplayedPath(replayed, end_before + v, 0)


def _hessian_product(blocks: list[Floats], v: Floats, removed: RowRemoval) -> Floats:
    """Return the Hessian of the mean objective on the remaining rows, times v."""
    scale, lam = 1.0 / removed.after.n_remaining, removed.lam
    pairs = zip(blocks, v.reshape(len(blocks), -1), strict=True)
    return np.concatenate(
        [blas.dsymv(scale, block, part, beta=lam, y=part, lower=1) for block, part in pairs]
    )
