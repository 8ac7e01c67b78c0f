"""Regularised convex problems over rows: losses, gradients and Hessians.

A loss is a function of the scores Z = X W, shape (n, K), and the targets y, shape (n,): class codes
0, 1, ... or real numbers. Let D be the derivative with respect to the scores of one row. Every loss
has four constants:

- `slope_bound`: an upper bound on |D l|;
- `curvature_bound`: an upper bound on the largest eigenvalue of D^2 l;
- `third_bound`: a Lipschitz constant of D^2 l;
- `concordance`: a number M with |D^3 l[u, u, v]| <= M |v| D^2 l[u, u]. So D^2 l changes by a factor
  between e^(-Mt) and e^(Mt) along a step of length t (Bach 2010, for the logistic loss).

Every method here minimises the sum objective, with the intercept as a column of ones in X::

    S(W) = sum_i l(x_i W, y_i) + (ridge / 2) |W|^2 + <tilt, W>

S is strongly convex with constant `ridge`, so |W - W*| <= |grad S(W)| / ridge, where W* is the
optimum. `tilt` is the noise of objective perturbation. Forgotten rows are zeros in X: they add a
constant to S and nothing to its derivatives.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, sqrt
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import expit, logsumexp, softmax

from letheon.removal import Opaque

Floats = NDArray[np.float64]


class Loss(ABC):
    """A loss with K scores per row.

    `is_joint` is True if the Hessian couples the K scores of a row. Otherwise the Hessian has K
    blocks, one per score.
    """

    is_joint: ClassVar[bool] = False
    n_outputs: int
    slope_bound: float
    curvature_bound: float
    third_bound: float
    concordance: float

    @abstractmethod
    def value_at(self, Z: Floats, y: NDArray[Any]) -> float:
        """Return the sum of the losses of the rows."""

    @abstractmethod
    def slopes_at(self, Z: Floats, y: NDArray[Any]) -> Floats:
        """Return the derivative of every row's loss with respect to its scores, shape (n, K)."""

    @abstractmethod
    def curvature_at(self, Z: Floats, y: NDArray[Any]) -> Floats:
        """Return second derivatives, or for a joint loss the class probabilities; shape (n, K)."""

    def apply_curvature(self, curvature: Floats, scores: Floats) -> Floats:
        """Multiply second derivatives, as returned by `curvature_at`, by a change of the scores."""
        change: Floats = curvature * scores
        if self.is_joint:
            change -= curvature * change.sum(axis=1, keepdims=True)
        return change

    def factor_curvature(self, curvature: Floats) -> Floats:
        """Return a factor L of shape (n, K, r) with D^2 l = L L' for each row of a joint loss."""
        raise NotImplementedError(f"{type(self).__name__} is not a joint loss: use curvature_at")


class Logistic(Loss):
    """The logistic loss log(1 + e^(-tz)), t = 1 for the class of the score and -1 for the others.

    With one output, the score is for class 1 against class 0. With K outputs, each score is for one
    class against the rest. Below, s is the logistic function.
    """

    curvature_bound = 0.25
    third_bound = 1 / (6 * sqrt(3))
    concordance = 1.0

    def __init__(self, n_outputs: int = 1) -> None:
        self.n_outputs = n_outputs
        self.slope_bound = sqrt(n_outputs)

    def value_at(self, Z: Floats, y: NDArray[Any]) -> float:
        """Return the sum of the losses of the rows."""
        return float(np.logaddexp(0.0, Z).sum() - (Z * self._is_own(y)).sum())

    def slopes_at(self, Z: Floats, y: NDArray[Any]) -> Floats:
        """Return the derivatives s(z), minus 1 where the row belongs to the class of the score."""
        slope: Floats = expit(Z)
        if self.n_outputs == 1:
            slope[:, 0] -= y
        else:
            slope[np.arange(len(y)), y] -= 1.0
        return slope

    def curvature_at(self, Z: Floats, y: NDArray[Any]) -> Floats:  # noqa: ARG002
        """Return the second derivatives s(z) s(-z)."""
        curvature: Floats = expit(Z) * expit(-Z)
        return curvature

    def _is_own(self, y: NDArray[Any]) -> NDArray[Any]:
        return y[:, None] if self.n_outputs == 1 else y[:, None] == np.arange(self.n_outputs)


class Softmax(Loss):
    """The cross-entropy: -log of the softmax probability of the row's class.

    With class probabilities q, D^2 l = diag(q) - q q'. The third derivative along v is a covariance
    with v - mean(v). No entry of v - mean(v) is larger than the range of v, at most sqrt(2)|v|.
    """

    is_joint = True
    slope_bound = sqrt(2)
    curvature_bound = 0.5
    third_bound = 2 * sqrt(2) / (6 * sqrt(3))
    concordance = sqrt(2)

    def __init__(self, n_outputs: int) -> None:
        self.n_outputs = n_outputs

    def value_at(self, Z: Floats, y: NDArray[Any]) -> float:
        """Return the sum of the losses of the rows."""
        return float(logsumexp(Z, axis=1).sum() - Z[np.arange(len(y)), y].sum())

    def slopes_at(self, Z: Floats, y: NDArray[Any]) -> Floats:
        """Return the derivatives: the class probabilities, minus 1 for the row's class."""
        slope: Floats = softmax(Z, axis=1)
        slope[np.arange(len(y)), y] -= 1.0
        return slope

    def curvature_at(self, Z: Floats, y: NDArray[Any]) -> Floats:  # noqa: ARG002
        """Return the class probabilities q; the Hessian in the scores is diag(q) - q q'."""
        shares: Floats = softmax(Z, axis=1)
        return shares

    def factor_curvature(self, curvature: Floats) -> Floats:
        """Return L = diag(sqrt q) - q sqrt(q)' per row. L L' = diag(q) - q q', as q sums to 1."""
        root = np.sqrt(curvature)
        return root[:, :, None] * np.eye(self.n_outputs) - curvature[:, :, None] * root[:, None, :]


class Squared(Loss):
    """The squared loss (z - y)^2 / 2.

    Its Hessian does not depend on W, so one Newton step reaches the optimum.
    """

    n_outputs = 1
    slope_bound = inf
    curvature_bound = 1.0
    third_bound = 0.0
    concordance = 0.0

    def value_at(self, Z: Floats, y: NDArray[Any]) -> float:
        """Return the sum of the losses of the rows."""
        return float(((Z[:, 0] - y) ** 2).sum() / 2)

    def slopes_at(self, Z: Floats, y: NDArray[Any]) -> Floats:
        """Return the derivatives Z - y."""
        slope: Floats = Z - y[:, None]
        return slope

    def curvature_at(self, Z: Floats, y: NDArray[Any]) -> Floats:  # noqa: ARG002
        """Return the second derivatives, which are all 1."""
        return np.ones_like(Z)


class PseudoHuber(Loss):
    """The smooth Huber loss s^2 (sqrt(1 + u^2) - 1), with u = (z - y) / s and `scale` s.

    Its Hessian is Lipschitz. The second derivatives of the original Huber loss and of the squared
    hinge are discontinuous, so they do not meet the assumptions of the methods here.
    """

    n_outputs = 1
    curvature_bound = 1.0

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self.slope_bound = scale
        self.third_bound = 3 * 0.5 / 1.25**2.5 / scale  # attained at u = 1/2
        self.concordance = 1.5 / scale  # 3u / (1 + u^2) / s, largest at u = 1

    def value_at(self, Z: Floats, y: NDArray[Any]) -> float:
        """Return the sum of the losses of the rows."""
        u = (Z[:, 0] - y) / self.scale
        return float(self.scale**2 * (u**2 / (np.hypot(1.0, u) + 1.0)).sum())

    def slopes_at(self, Z: Floats, y: NDArray[Any]) -> Floats:
        """Return the derivatives s u / sqrt(1 + u^2)."""
        residual = Z - y[:, None]
        slope: Floats = residual / np.hypot(1.0, residual / self.scale)
        return slope

    def curvature_at(self, Z: Floats, y: NDArray[Any]) -> Floats:
        """Return the second derivatives (1 + u^2)^(-3/2)."""
        curvature: Floats = np.hypot(1.0, (Z - y[:, None]) / self.scale) ** -3.0
        return curvature


Positions = NDArray[np.int64]
Reg = Literal["per_sample", "total"]
NO_ROWS: Positions = np.empty(0, np.int64)
EPSILON = float(np.finfo(np.float64).eps)

# A block of rows this large stays in the L2 cache, so scores and gradient read X once.
_BLOCK_BYTES = 2**21
# Rows per step when a Hessian is summed; bounds the memory for weighted copies of rows.
_HESSIAN_ROWS = 2048
# Curvature is bounded only for score errors up to this size.
_KNOWN_LOG = 1.0
# Squares below 1e-308 underflow to 0, so norms below 1e-154, and their sums, may be lost.
_UNDERFLOW = 1e-140


@dataclass(frozen=True, eq=False, repr=False)
class FitProblem(Opaque):
    """The objective S: rows, loss, regulariser and noise.

    X is dense (float32 or float64, C order) or CSR. Sums are in float64. `removed` contains the
    positions of rows to skip. `radius` is an upper bound on the norms of all rows, if known. With
    it, rounding errors can be bounded without a pass over the rows.
    """

    X: Any
    y: NDArray[Any]
    loss: Loss
    n_rows: int
    l2: float
    reg: Reg = "per_sample"
    tilt: Floats | None = None
    removed: Positions = field(default_factory=lambda: NO_ROWS)
    radius: float | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (d, K) of the parameters: columns of X, and scores per row."""
        return self.X.shape[1], self.loss.n_outputs

    @property
    def n_remaining(self) -> int:
        """Number of remaining rows."""
        return self.n_rows - len(self.removed)

    @property
    def ridge(self) -> float:
        """Weight of the regulariser in S; also the constant of strong convexity of S."""
        return compute_ridge(self.l2, self.reg, self.n_remaining)

    @property
    def pass_flops(self) -> float:
        """Number of floating-point operations to compute the gradient once."""
        return 4.0 * n_stored(self.X) * self.loss.n_outputs

    @cached_property
    def norms(self) -> Floats:
        """Euclidean norms of the rows, in float64; 0 for removed rows."""
        norms = row_norms(self.X)
        norms[self.removed] = 0.0
        return norms

    def without(self, positions: Positions) -> Self:
        """Return the problem without the rows at `positions`; both problems share the arrays."""
        return replace(self, removed=np.concatenate([self.removed, positions]))

    def copy_rows(self, positions: Positions) -> Any:
        """Return a copy of the rows at `positions`, in float64."""
        return rows_in_double(self.X, positions)

    def value_at(self, W: Floats) -> float:
        """Return S(W), plus a constant for the removed rows."""
        return self.value_and_gradient(W)[0]

    def value_and_gradient(self, W: Floats) -> tuple[float, Floats]:
        """Return S(W), plus a constant for the removed rows, and its gradient, in one pass."""
        gradient = self._smooth_part(W)
        total = 0.5 * self.ridge * float((W * W).sum())
        if self.tilt is not None:
            total += float((self.tilt * W).sum())
        for block in self._iter_blocks():
            Z = block.scores_at(W)
            total += self.loss.value_at(Z, block.y)
            gradient += block.sum_rows(self.loss.slopes_at(Z, block.y))
        return total, gradient

    def gradient_at(self, W: Floats) -> Floats:
        """Return the gradient of S at W, including the noise, in one pass over the rows."""
        gradient = self._smooth_part(W)
        for block in self._iter_blocks():
            gradient += block.sum_rows(self.loss.slopes_at(block.scores_at(W), block.y))
        return gradient

    def gradient_and_scores(self, W: Floats) -> tuple[Floats, Floats]:
        """Return the gradient of S at W and the scores of all rows (0 if removed), in one pass."""
        gradient, scores = self._smooth_part(W), []
        for block in self._iter_blocks():
            scores.append(block.scores_at(W))
            gradient += block.sum_rows(self.loss.slopes_at(scores[-1], block.y))
        return gradient, scores[0] if len(scores) == 1 else np.concatenate(scores)

    def gradient_and_reach(self, W: Floats, origin: Floats) -> tuple[Floats, list[float]]:
        """Return the gradient at W, and the largest change of a row's scores from `origin` to W.

        The largest change is a list with one absolute value per score. For a joint loss the list
        has a single number: the largest Euclidean norm of the change of a row's scores.
        """
        gradient, K = self._smooth_part(W), W.shape[1]
        both = np.hstack([W, W - origin])
        reach = np.zeros(1 if self.loss.is_joint else K)
        for block in self._iter_blocks():
            Z = block.scores_at(both)
            gradient += block.sum_rows(self.loss.slopes_at(np.ascontiguousarray(Z[:, :K]), block.y))
            change = np.abs(Z[:, K:])
            if self.loss.is_joint:
                change = np.sqrt((change * change).sum(axis=1, keepdims=True))
            np.maximum(reach, change.max(axis=0), out=reach)
        return gradient, reach.tolist()

    def data_gradient(self, W: Floats, positions: Positions) -> Floats:
        """Return the gradient at W of the summed losses of the rows at `positions`."""
        return sum_gradients(self.loss, self.copy_rows(positions), self.y[positions], W)

    def rounding_at(self, W: Floats) -> float:
        """Bound the norm of the gradient that remains because W is rounded to float64.

        No solver can reduce this part of the gradient. Rounding changes an entry w of W by up to
        eps |w|, and the gradient by up to eps |H| |w|, entry by entry. |H_jk| <= sqrt(H_jj H_kk),
        and H_jj is at most the curvature bound times the sum of squares of column j.
        """
        squares = np.zeros(self.X.shape[1])
        for block in self._iter_blocks(_HESSIAN_ROWS):
            rows = block.rows
            both = rows.power(2) if sp.issparse(rows) else rows * rows
            squares += np.asarray(both.sum(axis=0)).ravel()
        roots = np.sqrt(self.loss.curvature_bound * squares)
        return EPSILON * float(np.linalg.norm(roots) * np.linalg.norm(roots @ np.abs(W)))

    def gradient_error(self, W: Floats) -> float:
        """Return an upper bound on the norm of the rounding error of `gradient_at(W)`."""
        if np.isfinite(self.loss.slope_bound):
            return self.gradient_errors().bound_at(W)
        parts = [self.loss.slopes_at(block.scores_at(W), block.y) for block in self._iter_blocks()]
        return self.gradient_errors(np.linalg.norm(np.concatenate(parts), axis=1)).bound_at(W)

    def gradient_errors(self, slopes: Floats | None = None) -> "GradientErrors":
        """Return bounds on the rounding error of `gradient_at`, in at most one pass over the rows.

        `slopes` are the norms of the rows' slopes at W: optional, for a sharper bound.

        The bounds hold for sums in any order. With u = `EPSILON` / 2, the error of a score is at
        most d u |x| |W|. The error of its slope is the curvature bound times that, plus the error
        of evaluating the slope. The sum over n rows adds n u |x| |slope| for each row. Regulariser
        and tilt take one addition per block of rows. A constant covers norms whose squares
        underflow.
        """
        d, K = self.shape
        norms = self.norms if self.radius is None else np.full(len(self.y), self.radius)
        n_sums, lengths, squares = len(norms) + 4 + 8 * K, float(norms.sum()), float(norms @ norms)
        per_size = (d + 4) * self.loss.curvature_bound * squares
        if slopes is not None:
            fixed = n_sums * float(norms @ slopes)
        elif np.isfinite(self.loss.slope_bound):
            fixed = n_sums * self.loss.slope_bound * lengths
        else:
            fixed = n_sums * float(norms @ np.abs(self.y))
            per_size += n_sums * squares
        tilt = 0.0 if self.tilt is None else float(np.linalg.norm(self.tilt))
        n_added = -(-len(norms) // self._block_rows) + 4
        unit = 1.01 * EPSILON / 2
        return GradientErrors(
            unit * (fixed + 8 * K * lengths + n_added * tilt) + _UNDERFLOW,
            unit * (per_size + n_added * self.ridge),
        )

    def distance_bound(self, gradient: Floats, error: float = 0.0) -> float:
        """Return (|grad S| + error) / ridge, an upper bound on the distance to the optimum.

        `error` is a bound on the rounding error of `gradient`. The result is inf instead of NaN.
        """
        distance = (float(np.linalg.norm(gradient)) + error) / self.ridge * (1 + 1e-9)
        return distance if np.isfinite(distance) else np.inf

    def curvature_at(self, W: Floats) -> Floats:
        """Return `Loss.curvature_at` of all rows at W, shape (n, K); 0 for removed rows."""
        parts = [
            self.loss.curvature_at(block.scores_at(W), block.y) for block in self._iter_blocks()
        ]
        curvature: Floats = np.concatenate(parts)
        curvature[self.removed] = 0.0
        return curvature

    def hessian_at(self, W: Floats) -> list[Floats]:
        """Return the blocks of the Hessian of the summed losses at W, without the regulariser.

        There are K blocks of d x d. A joint loss has one block of Kd x Kd, with the parameters in
        Fortran order (score after score). For many columns, use `hessian_product` instead.
        """
        d, K = self.shape
        size, n_blocks = (K * d, 1) if self.loss.is_joint else (d, K)
        blocks = [np.zeros((size, size)) for _ in range(n_blocks)]
        for block in self._iter_blocks(_HESSIAN_ROWS):
            curvature = self.loss.curvature_at(block.scores_at(W), block.y)
            curvature[block.removed] = 0.0
            self._add_curvature(blocks, block.rows, curvature)
        return blocks

    def hessian_error(self, W: Floats, curvature: Floats) -> float:
        """Return a bound on the spectral norm of the rounding error of a block of `hessian_at(W)`.

        `curvature` is the result of `curvature_at(W)`. For sparse rows, the bound also holds for
        `hessian_diagonal`. A row adds at most its share, curvature times |x|^2. With
        u = `EPSILON` / 2, every term of a sum adds an error of u times the sum of the shares. The
        error of a score is (d + 1) u |x| |W|, which changes the curvature by a factor. The K x K
        differences of a joint loss add 4 K (K + 6) u.
        """
        norms = self.norms
        (d, K), n, squares = self.shape, len(norms), norms * norms
        is_joint = self.loss.is_joint
        traces = (curvature * (1.0 - curvature)).sum(axis=1) if is_joint else curvature.max(axis=1)
        shares = (traces + 2 * K * EPSILON * is_joint) * squares
        n_terms = n if sp.issparse(self.X) else min(n, _HESSIAN_ROWS) + n / _HESSIAN_ROWS
        differences = 4 * K * (K + 6) * float(squares.sum()) if is_joint else 0.0
        unit = EPSILON / 2
        # Logarithms of the factors; beyond some size a row's curvature is unbounded.
        logs = 3 * unit * (d + 4) * float(np.linalg.norm(W)) * norms
        known = shares * np.expm1(np.minimum(logs, _KNOWN_LOG))
        scores = np.where(logs < _KNOWN_LOG, known, squares)
        total = unit * ((n_terms + 24) * float(shares.sum()) + differences) + float(scores.sum())
        return 1.05 * total

    def hessian_product(self, curvature: Floats, V: Floats) -> Floats:
        """Return the Hessian of S times V, shape (d, K), from the result of `curvature_at`."""
        product = self.ridge * V
        for block in self._iter_blocks():
            change = self.loss.apply_curvature(curvature[block.where], block.rows @ V)
            product += block.rows.T @ change
        return product

    def hessian_diagonal(self, curvature: Floats) -> Floats:
        """Return the diagonal of the Hessian of S, shape (d, K)."""
        own = curvature * (1.0 - curvature) if self.loss.is_joint else curvature
        diagonal = np.full(self.shape, self.ridge)
        for block in self._iter_blocks():
            rows = block.rows
            squares = rows.power(2) if sp.issparse(rows) else rows * rows
            diagonal += squares.T @ own[block.where]
        return diagonal

    def _smooth_part(self, W: Floats) -> Floats:
        """Return the gradient of the regulariser and the noise term at W."""
        gradient = self.ridge * W
        if self.tilt is not None:
            gradient += self.tilt
        return gradient

    @property
    def _block_rows(self) -> int:
        return max(16, _BLOCK_BYTES // (8 * self.shape[0]))

    def _iter_blocks(self, n_rows: int | None = None) -> "Iterator[_RowBlock]":
        """Yield blocks of `n_rows` rows in float64; sparse rows are a single block."""
        X, removed = self.X, np.sort(self.removed)
        step = X.shape[0] if sp.issparse(X) else n_rows or self._block_rows
        for begin in range(0, X.shape[0], step):
            where = slice(begin, min(begin + step, X.shape[0]))
            rows = X if sp.issparse(X) else X[where]
            if rows.dtype != np.float64:
                rows = rows.astype(np.float64)
            first, last = removed.searchsorted([where.start, where.stop])
            yield _RowBlock(where, rows, self.y[where], removed[first:last] - begin)

    def _add_curvature(self, blocks: list[Floats], rows: Any, curvature: Floats) -> None:
        if not self.loss.is_joint:
            for k, weights in enumerate(curvature.T):
                weighted = _scale_rows(rows, np.sqrt(weights))
                blocks[k] += _to_dense(weighted.T @ weighted)
            return
        d = rows.shape[1]
        for k in range(self.loss.n_outputs):
            for j in range(k + 1):
                weights = curvature[:, k] * ((k == j) - curvature[:, j])
                part = _to_dense(rows.T @ _scale_rows(rows, weights))
                blocks[0][k * d : (k + 1) * d, j * d : (j + 1) * d] += part
                if j < k:
                    blocks[0][j * d : (j + 1) * d, k * d : (k + 1) * d] += part.T


@dataclass(frozen=True, eq=False, repr=False)
class GradientErrors(Opaque):
    """Bound on the rounding error of a gradient at W: `fixed` + `per_size` times |W|."""

    fixed: float
    per_size: float

    def bound_at(self, W: Floats) -> float:
        """Return the bound on the norm of the rounding error at W."""
        return self.fixed + self.per_size * float(np.linalg.norm(W))


class _RowBlock(NamedTuple):
    """Consecutive rows; `removed` contains the positions in the block to skip.

    Removed rows are skipped, not added and then subtracted: if the norm of a row is very large,
    subtracting the row would cancel the digits of all others.
    """

    where: slice
    rows: Any
    y: NDArray[Any]
    removed: Positions

    def scores_at(self, W: Floats) -> Floats:
        """Return the scores of the rows, rows times W; 0 for removed rows."""
        Z: Floats = self.rows @ W
        if len(self.removed):
            Z[self.removed] = 0.0
        return Z

    def sum_rows(self, slope: Floats) -> Floats:
        """Return the sum of the rows weighted by `slope`, shape (d, K), without removed rows."""
        if len(self.removed):
            slope[self.removed] = 0.0
        total: Floats = self.rows.T @ slope
        return total


def _scale_rows(rows: Any, factors: Floats) -> Any:
    """Return every row times its factor; sparse rows stay sparse."""
    return sp.diags_array(factors) @ rows if sp.issparse(rows) else rows * factors[:, None]


def _to_dense(matrix: Any) -> Floats:
    return matrix.toarray() if sp.issparse(matrix) else matrix  # type: ignore[no-any-return]


def compute_ridge(l2: float, reg: str, n_rows: int) -> float:
    """Return the weight of the regulariser in the sum: l2, or l2 times `n_rows` if per sample."""
    return l2 * n_rows if reg == "per_sample" else l2


def n_stored(X: Any) -> int:
    """Return the number of stored entries of X: all entries if X is dense."""
    return int(X.nnz if sp.issparse(X) else X.size)


def rows_in_double(X: Any, positions: Positions) -> Any:
    """Return a copy of the rows of X at `positions`, in float64."""
    rows = X[positions]
    return rows if rows.dtype == np.float64 else rows.astype(np.float64)


def sum_gradients(loss: Loss, rows: Any, y: NDArray[Any], W: Floats) -> Floats:
    """Return the sum over `rows` of the gradients of their losses at W, shape (d, K)."""
    gradient: Floats = rows.T @ loss.slopes_at(rows @ W, y)
    return gradient


def hessian_roots(
    loss: Loss, rows: Any, y: NDArray[Any], W: Floats, *, spoil: bool = False
) -> list[Floats]:
    """Return one factor V per block of the Hessian at W: `rows` add V V' to this block.

    If `spoil` is True, `rows` may be overwritten to save memory.
    """
    rows = rows.toarray() if sp.issparse(rows) else rows
    curvature = loss.curvature_at(rows @ W, y)
    if spoil and loss.n_outputs == 1:
        rows *= np.sqrt(curvature)
        return [rows.T]
    if not loss.is_joint:
        return [(rows * np.sqrt(c)[:, None]).T for c in curvature.T]
    stacked = np.einsum("nd,nkr->kdnr", rows, loss.factor_curvature(curvature))
    return [stacked.reshape(rows.shape[1] * loss.n_outputs, -1)]


def row_norms(X: Any) -> Floats:
    """Return the Euclidean norm of every row, in float64."""
    if sp.issparse(X):
        squares = X.astype(np.float64).power(2).sum(axis=1)
        return np.sqrt(np.asarray(squares, np.float64).ravel())
    norms: Floats = np.sqrt(np.einsum("ij,ij->i", X, X, dtype=np.float64))
    return norms
