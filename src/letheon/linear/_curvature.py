"""Hessians that are updated by removals, as factored blocks or as products with vectors.

`Curvature` contains Hessian blocks at an expansion point W0 with an explicit inverse. A removal of
m rows changes every block by -V V', where V has m columns (m K for a joint loss). The inverse is
updated by the Sherman-Morrison-Woodbury formula, without a pass over the n rows. Errors from
rounding, or from a smaller regulariser, are part of the residual |g - H step|, which is measured.

`Downdate` computes with the old matrices and V, and only its method `apply` changes them. So a
request that fails changes nothing.

`HessianProducts` multiplies the Hessian by vectors, for problems whose Hessian is too large to
store.
"""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import sqrt
from typing import Self

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.linalg import blas, lapack

from letheon.linear._problem import EPSILON, FitProblem, Floats, Positions, row_norms
from letheon.linear._solve import block_norms, from_blocks, l2_norm, to_blocks
from letheon.parallel import one_thread
from letheon.removal import Opaque

# A pivot of I - V'H^(-1)V below this means that the inverse can no longer be trusted.
_LEAST_PIVOT = 1e-8
# With more columns than this share of the size, factoring the block again costs less.
_MOST_FOLLOWED = 0.25
_MOST_DOWNDATES = 1000

# Lanczos from a random start: the top eigenvalue is below `ritz value / (1 - _SLACK)` except with
# probability 1.648 sqrt(s) exp(-sqrt(_SLACK) (2 _STEPS - 1)), s the size (Kuczynski and
# Wozniakowski 1992): less than 1e-13 at s = 5,000.
_STEPS, _SLACK = 80, 0.05


class HessianBlock:
    """A block of the Hessian without the regulariser, and the inverse of block + ridge I.

    Only lower triangles are used, in Fortran order, as LAPACK requires. The inverse is computed
    from the Cholesky factor on first use, because it takes two thirds of the work for a new block.
    """

    def __init__(self, hessian: Floats, factor: Floats) -> None:
        self.hessian = hessian
        self._factor: Floats | None = factor
        self._inverse: Floats | None = None

    @classmethod
    def from_hessian(cls, hessian: Floats, ridge: float) -> Self:
        """Return the block for a Hessian without regulariser; hessian + ridge I is factored."""
        # Removals update the lower triangle only; the upper one would keep the removed rows.
        hessian = np.asfortranarray(np.tril(hessian))
        return cls(hessian, cholesky_factor(hessian, ridge))

    @property
    def inverse(self) -> Floats:
        """Inverse of hessian + ridge I (lower triangle), which removals change in place."""
        if self._inverse is None:
            # LAPACK starts threads even for matrices that are too small to benefit.
            with one_thread():
                self._inverse, _ = lapack.dpotri(self._factor, lower=1, overwrite_c=1)
            self._factor = None
        assert self._inverse is not None
        return self._inverse

    def solve(self, g: Floats) -> Floats:
        """Return the stored inverse times g."""
        if self._inverse is not None:
            return symv(self._inverse, g)
        solved: Floats
        solved, _ = lapack.dpotrs(self._factor, g, lower=1)
        return solved

    def replace_with(self, other: "HessianBlock") -> None:
        """Take over the matrices of the other block, and overwrite the old matrices with zeros."""
        for matrix in (self.hessian, self._factor, self._inverse):
            if matrix is not None:
                matrix[:] = 0.0
        self.hessian, self._factor, self._inverse = other.hessian, other._factor, other._inverse

    def __copy__(self) -> "HessianBlock":
        """Return a copy with its own matrices."""
        duplicate = HessianBlock.__new__(HessianBlock)
        for name, matrix in vars(self).items():
            setattr(duplicate, name, None if matrix is None else matrix.copy("F"))
        return duplicate


class Curvature:
    """Hessian blocks of the remaining rows at W0. A removal takes O(d^2) operations.

    Attributes
    ----------
    point : ndarray
        W0, the point at which the Hessian was evaluated.
    tops : list of float
        Upper bound on the largest eigenvalue of each block; removals only lower the eigenvalues.
    radius : float
        Upper bound on the norm of every row.
    error : float
        Estimate of the spectral norm of the rounding error of the stored blocks. It matters when
        the removed row is longer than all others by orders of magnitude.
    """

    def __init__(
        self,
        point: Floats,
        blocks: list[HessianBlock],
        tops: list[float],
        radius: float,
        error: float = 0.0,
    ) -> None:
        self.point = point
        self.blocks = blocks
        self.tops = tops
        self.radius = radius
        self.error = error
        self.n_downdates = 0
        self.n_measured = 0
        # Parameters at which scores were last compared with the scores at the point, and the
        # largest difference in each block.
        self._anchor = point
        self._reach = [0.0] * len(blocks)
        roots = [np.sqrt(np.maximum(np.diag(block.hessian), 0.0)) for block in blocks]
        self._roots = [(float(np.linalg.norm(root)), root) for root in roots]

    @classmethod
    @one_thread()
    def from_problem(
        cls, problem: FitProblem, W: Floats, *, radius: float | None = None, seed: int = 0
    ) -> Self:
        """Return the curvature of the rows of a problem at the parameters W.

        `radius` is the declared bound on the norms of the rows; None computes it from the rows.
        `seed` is for the random start of the search for the largest eigenvalues and must not depend
        on the rows.
        """
        if radius is None:
            norms = row_norms(problem.X)
            norms[problem.removed] = 0.0
            radius = float(norms.max())
        hessians = problem.hessian_at(W)
        tops = [top_eigenvalue(hessian, seed) for hessian in hessians]
        blocks = [HessianBlock.from_hessian(hessian, problem.ridge) for hessian in hessians]
        return cls(W, blocks, tops, radius, rounding_error(blocks, tops))

    def bound_offsets(self, W: Floats) -> list[float]:
        """Return per block a number a with |x (W - W0)| <= radius * a for all remaining rows x."""
        since = block_norms(W - self._anchor, len(self.blocks))
        radius = self.radius or 1.0  # if all rows are zeros, scores do not change
        return [reach / radius + more for reach, more in zip(self._reach, since, strict=True)]

    def bound_drifts(self, W: Floats) -> list[float]:
        """Return for each block an upper bound on (W - W0)' H (W - W0), without the regulariser."""
        columns = to_blocks(W - self.point, len(self.blocks))
        return [
            max(float(d @ symv(block.hessian, d)), 0.0) + self.error * float(d @ d)
            for block, d in zip(self.blocks, columns, strict=True)
        ]

    def rounding_at(self, W: Floats) -> float:
        """Return the gradient norm caused by rounding W; see `FitProblem.rounding_at`."""
        pairs = zip(self._roots, to_blocks(W, len(self.blocks)), strict=True)
        sizes = [norm * float(root @ np.abs(w)) for (norm, root), w in pairs]
        return EPSILON * sqrt(sum(size * size for size in sizes))

    def record_reach(self, W: Floats, reach: list[float]) -> None:
        """Record, per block, the largest difference between the scores at W and at `point`."""
        self._anchor, self._reach = W, reach
        self.n_measured += 1

    def precompute_inverses(self) -> Self:
        """Compute the inverses now, so that the first single removal is fast."""
        for block in self.blocks:
            _ = block.inverse
        return self

    def solve(self, G: Floats) -> Floats:
        """Return the stored inverse times G, of shape (d, K)."""
        columns = to_blocks(G, len(self.blocks))
        solved = [block.solve(g) for block, g in zip(self.blocks, columns, strict=True)]
        return from_blocks(solved, G.shape)

    def __copy__(self) -> "Curvature":
        """Return a copy with its own matrices, because they change in place."""
        duplicate = Curvature.__new__(Curvature)
        vars(duplicate).update(vars(self), blocks=[copy.copy(block) for block in self.blocks])
        return duplicate


@dataclass(frozen=True, eq=False, repr=False)
class NewtonStep(Opaque):
    """An approximate solution of H step = G.

    `residual` is |G - H step|. `energies` are step' H step per block, of the data part alone.
    """

    change: Floats
    residual: float
    energies: list[float]


class Downdate:
    """A pending removal of rows from a curvature; only `apply` changes the matrices.

    Parameters
    ----------
    curvature : Curvature
        The curvature of the rows before the removal.
    roots : list of ndarray
        The matrix V of every block at the expansion point; V V' is subtracted from the block.
    ridge : float
        Regulariser after the removal.
    """

    def __init__(self, curvature: Curvature, roots: list[Floats], ridge: float) -> None:
        self._curvature = curvature
        worn_out = curvature.n_downdates >= _MOST_DOWNDATES
        pairs = zip(curvature.blocks, roots, strict=True)
        self._parts = [_choose_downdate(block, V, ridge, worn_out) for block, V in pairs]

    def solve(self, G: Floats) -> NewtonStep:
        """Return the solution of H step = G by the updated inverse."""
        targets = to_blocks(G, len(self._parts))
        return _make_step([p.solve(g) for p, g in zip(self._parts, targets, strict=True)], G.shape)

    def refine(self, step: NewtonStep, G: Floats) -> NewtonStep:
        """Return a step with a smaller residual, by solving once more for the residual."""
        size = len(self._parts)
        triples = zip(self._parts, to_blocks(step.change, size), to_blocks(G, size), strict=True)
        return _make_step([p.refine(x, g) for p, x, g in triples], G.shape)

    @property
    def error(self) -> float:
        """Estimated rounding error of the blocks after the removal."""
        curvature = self._curvature
        return curvature.error + rounding_error(curvature.blocks, curvature.tops)

    def apply(self) -> None:
        """Change the matrices in place. This cannot fail."""
        self._curvature.error = self.error
        for part in self._parts:
            part.apply()
        is_fresh = any(isinstance(part, _FullDowndate) for part in self._parts)
        self._curvature.n_downdates = 0 if is_fresh else self._curvature.n_downdates + 1


BlockSolution = tuple[Floats, Floats, float]  # solution x, residual, x' H x


def _make_step(solved: list[BlockSolution], shape: tuple[int, int]) -> NewtonStep:
    residual = sum(float(rest @ rest) for _, rest, _ in solved) ** 0.5
    energies = [max(energy, 0.0) for _, _, energy in solved]
    return NewtonStep(from_blocks([x for x, _, _ in solved], shape), residual, energies)


def _choose_downdate(
    block: HessianBlock, V: Floats, ridge: float, worn_out: bool
) -> "_BlockDowndate":
    """Return the cheapest accurate way to subtract V V' from a block."""
    n_columns = V.shape[1]
    if not worn_out and n_columns == 1:
        q = symv(block.inverse, V[:, 0])
        pivot = 1.0 - float(V[:, 0] @ q)
        if pivot > _LEAST_PIVOT:
            return _RankOneDowndate(block, V[:, 0], ridge, q, 1.0 / pivot)
    elif not worn_out and n_columns <= _MOST_FOLLOWED * len(V):
        V = np.asfortranarray(V)
        Q, factor, info = woodbury(block, V, -1.0)
        if not info and np.diag(factor).min() ** 2 > _LEAST_PIVOT:
            return _LowRankDowndate(block, V, ridge, Q)
    return _FullDowndate(block, V, ridge)


def woodbury(block: HessianBlock, V: Floats, sign: float) -> tuple[Floats, Floats, int]:
    """Return (Q, L, error code of LAPACK) for a block that changes by sign V V'.

    The inverse changes by -sign Q Q', where Q = H^(-1) V L'^(-1) and L L' = I + sign V' H^(-1) V.
    """
    Q = blas.dsymm(1.0, block.inverse, V, lower=1)
    core = np.eye(V.shape[1])
    core = core + V.T @ Q if sign > 0 else core - V.T @ Q
    factor, info = lapack.dpotrf(core, lower=1)
    return blas.dtrsm(1.0, factor, Q, side=1, lower=1, trans_a=1), factor, info


class _BlockDowndate(ABC):
    """The removal of V V' from a block. Products use the block after the removal."""

    def __init__(self, block: HessianBlock, V: Floats, ridge: float) -> None:
        self._block, self._V, self._ridge = block, V, ridge

    def solve(self, g: Floats) -> BlockSolution:
        return self._measure_solution(self._apply_inverse(g), g)

    def refine(self, x: Floats, g: Floats) -> BlockSolution:
        _, residual, _ = self._measure_solution(x, g)
        return self._measure_solution(x + self._apply_inverse(residual), g)

    def _measure_solution(self, x: Floats, g: Floats) -> BlockSolution:
        product = self._apply_hessian(x)
        return x, g - product - self._ridge * x, float(x @ product)

    @abstractmethod
    def _apply_inverse(self, g: Floats) -> Floats: ...

    @abstractmethod
    def _apply_hessian(self, x: Floats) -> Floats: ...

    @abstractmethod
    def apply(self) -> None: ...


class _RankOneDowndate(_BlockDowndate):
    """The removal of v v' from a block, by the Sherman-Morrison formula."""

    def __init__(
        self, block: HessianBlock, v: Floats, ridge: float, q: Floats, scale: float
    ) -> None:
        super().__init__(block, v, ridge)
        self._q, self._scale = q, scale

    def _apply_inverse(self, g: Floats) -> Floats:
        x = symv(self._block.inverse, g)
        x += (self._scale * float(self._q @ g)) * self._q
        return x

    def _apply_hessian(self, x: Floats) -> Floats:
        product = symv(self._block.hessian, x)
        product -= float(self._V @ x) * self._V
        return product

    def apply(self) -> None:
        block = self._block
        blas.dsyr(-1.0, self._V, a=block.hessian, lower=1, overwrite_a=1)
        blas.dsyr(self._scale, self._q, a=block.inverse, lower=1, overwrite_a=1)


class _LowRankDowndate(_BlockDowndate):
    """The removal of V V' from a block, where V has few columns, by the Woodbury formula."""

    def __init__(self, block: HessianBlock, V: Floats, ridge: float, Q: Floats) -> None:
        super().__init__(block, V, ridge)
        self._Q = Q

    def _apply_inverse(self, g: Floats) -> Floats:
        x = symv(self._block.inverse, g)
        x += self._Q @ (self._Q.T @ g)
        return x

    def _apply_hessian(self, x: Floats) -> Floats:
        product = symv(self._block.hessian, x)
        product -= self._V @ (self._V.T @ x)
        return product

    def apply(self) -> None:
        write_block(self._block, self._V, self._Q, -1.0)


def write_block(block: HessianBlock, V: Floats, Q: Floats, sign: float) -> None:
    """Add sign V V' to the block and subtract sign Q Q' from its inverse, in place."""
    blas.dsyrk(sign, V, beta=1.0, c=block.hessian, lower=1, overwrite_c=1)
    blas.dsyrk(-sign, Q, beta=1.0, c=block.inverse, lower=1, overwrite_c=1)


class _FullDowndate(_BlockDowndate):
    """The removal of V V' from a block that is then factored again."""

    @one_thread()
    def __init__(self, block: HessianBlock, V: Floats, ridge: float) -> None:
        super().__init__(block, np.asfortranarray(V), ridge)
        remaining = blas.dsyrk(-1.0, self._V, beta=1.0, c=block.hessian, lower=1, overwrite_c=0)
        self._fresh = HessianBlock(remaining, cholesky_factor(remaining, ridge))

    def _apply_inverse(self, g: Floats) -> Floats:
        return self._fresh.solve(g)

    def _apply_hessian(self, x: Floats) -> Floats:
        return symv(self._fresh.hessian, x)

    def apply(self) -> None:
        # The old matrices contain the removed rows.
        self._block.replace_with(self._fresh)


def rounding_error(blocks: list[HessianBlock], tops: list[float]) -> float:
    """Return an estimate of the rounding error when blocks with norms `tops` are added."""
    return max(EPSILON * len(b.hessian) * top for b, top in zip(blocks, tops, strict=True))


def symv(symmetric: Floats, x: Floats) -> Floats:
    """Return the product of a symmetric matrix (lower triangle, Fortran order) and a vector."""
    product: Floats = blas.dsymv(1.0, symmetric, x, lower=1)
    return product


@one_thread()
def cholesky_factor(hessian: Floats, ridge: float) -> Floats:
    """Return the lower Cholesky factor of hessian + ridge I."""
    shifted = hessian.copy("F")
    shifted[np.diag_indices_from(shifted)] += ridge
    factor: Floats
    factor, info = lapack.dpotrf(shifted, lower=1, overwrite_a=1)
    if info:
        raise np.linalg.LinAlgError(
            f"the Hessian with the regulariser {ridge:.3g} is not positive definite in double "
            "precision; use a larger l2 or scale the columns"
        )
    return factor


def top_eigenvalue(hessian: Floats, seed: int) -> float:
    """Return an upper bound on the largest eigenvalue of a full symmetric matrix."""
    size = len(hessian)
    if size <= _STEPS:
        return float(max(scipy.linalg.eigvalsh(hessian)[-1], 0.0)) * (1 + 1e-9)
    start = np.random.default_rng(seed).standard_normal(size)
    return _run_lanczos(hessian, start) / (1 - _SLACK)


def _run_lanczos(hessian: Floats, start: Floats) -> float:
    """Return the largest eigenvalue found by the Lanczos method with full orthogonalisation."""
    basis = np.zeros((_STEPS, len(hessian)))
    basis[0] = start / np.linalg.norm(start)
    diagonal, off_diagonal = np.zeros(_STEPS), np.zeros(_STEPS - 1)
    for k in range(_STEPS):
        vector = hessian @ basis[k]
        diagonal[k] = vector @ basis[k]
        vector -= basis[: k + 1].T @ (basis[: k + 1] @ vector)
        vector -= basis[: k + 1].T @ (basis[: k + 1] @ vector)
        length = np.linalg.norm(vector)
        if k + 1 == _STEPS or length <= 1e-12 * abs(diagonal[0]):
            diagonal, off_diagonal = diagonal[: k + 1], off_diagonal[:k]
            break
        off_diagonal[k] = length
        basis[k + 1] = vector / length
    ritz = scipy.linalg.eigvalsh_tridiagonal(diagonal, off_diagonal)
    return float(max(ritz[-1], 0.0))


_MOST_PRODUCTS = 500


@dataclass(frozen=True, eq=False, repr=False)
class ProductStep(Opaque):
    """An approximate solution of H step = G, and its effect on the scores and the gradient.

    `scores` is X step. `residual` bounds the gradient that the step adds: the residual of the
    linear system plus the effect of the nonlinearity of the loss.
    """

    change: Floats
    scores: Floats
    residual: float
    flops: float


@dataclass(eq=False, repr=False)
class HessianProducts(Opaque):
    """Stored values with which removals multiply the Hessian by vectors.

    Removals update all values. Otherwise, the diagonal would keep the squares of removed rows.

    Attributes
    ----------
    weights : ndarray
        Curvature of the loss for every slot, at the parameters where it was last evaluated.
    diagonal : ndarray
        Diagonal of the Hessian with these weights, without the regulariser.
    scores : ndarray
        X W of every slot, at the current parameters.
    spectral : float
        Upper bound on the spectral norm of X: sqrt(|X|_1 |X|_inf).
    """

    weights: Floats
    diagonal: Floats
    scores: Floats
    spectral: float

    @classmethod
    def evaluate_at(cls, problem: FitProblem, W: Floats) -> "HessianProducts":
        """Return the values at W; takes one pass over the rows and one over their squares."""
        scores = np.asarray(problem.X @ W, np.float64)
        weights = problem.loss.curvature_at(scores, problem.y)
        weights[problem.removed] = 0.0
        diagonal, sizes = problem.hessian_diagonal(weights) - problem.ridge, abs(problem.X)
        by_column, by_row = np.asarray(sizes.sum(axis=0)), np.asarray(sizes.sum(axis=1))
        spectral = sqrt(float(by_column.max()) * float(by_row.max()))
        return cls(weights, diagonal, scores, spectral)

    def is_valid_for(self, problem: FitProblem) -> bool:
        """Return whether the slots match the problem; after many removals, rows change slots."""
        return len(self.weights) == len(problem.y)

    def solve(self, after: FitProblem, G: Floats, tolerance: float) -> ProductStep:
        """Solve H step = G on the remaining rows, until the relative residual is below `tolerance`.

        The method is conjugate gradients with a diagonal preconditioner. It multiplies X by every
        direction, so X step needs no extra pass over the rows. The effect of the nonlinearity is
        bounded by |X' e| <= |X| |e| with e = slope after - slope before - weights * X step.
        """
        weights = self.weights.copy()
        weights[after.removed] = 0.0
        inverse = 1.0 / (self.diagonal + after.ridge)
        x, residual, moved = np.zeros_like(G), G.copy(), np.zeros_like(self.scores)
        scaled = inverse * residual
        direction, energy = scaled.copy(), float((residual * scaled).sum())
        goal, n_products = tolerance * l2_norm(G), 0
        while l2_norm(residual) > goal and n_products < _MOST_PRODUCTS:
            along = np.asarray(after.X @ direction, np.float64)
            product = after.ridge * direction + after.X.T @ after.loss.apply_curvature(
                weights, along
            )
            n_products += 1
            length = energy / float((direction * product).sum())
            x += length * direction
            moved += length * along
            residual -= length * product
            scaled = inverse * residual
            before, energy = energy, float((residual * scaled).sum())
            direction = scaled + (energy / before) * direction
        slope = after.loss.slopes_at
        bend = slope(self.scores + moved, after.y) - slope(self.scores, after.y)
        bend -= after.loss.apply_curvature(weights, moved)
        bend[after.removed] = 0.0
        added = l2_norm(residual) + self.spectral * l2_norm(bend)
        return ProductStep(x, moved, added, (n_products + 0.5) * after.pass_flops)

    def remove_rows(self, problem: FitProblem, positions: Positions, moved: Floats | None) -> None:
        """Remove rows from the stored values, and add `moved` to the scores.

        The problem must still contain the rows.
        """
        rows = problem.copy_rows(positions)
        own = self.weights[positions]
        if problem.loss.is_joint:
            own = own * (1.0 - own)
        squares = rows.power(2) if sp.issparse(rows) else rows * rows
        self.diagonal -= squares.T @ own
        np.maximum(self.diagonal, 0.0, out=self.diagonal)
        if moved is not None:
            self.scores += moved
        for values in (self.weights, self.scores):
            values[positions] = 0.0
