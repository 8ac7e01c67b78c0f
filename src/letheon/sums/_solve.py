"""Linear algebra on float64 copies of the integers; nothing here is part of a digest."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import blas, lapack

from letheon.sums._table_sums import Grid, TableSums

Floats = npt.NDArray[np.float64]

# A huge penalty keeps a coefficient at 0 without an overflow.
_LARGEST_PENALTY = 1e250
# From this size on, conjugate gradients are tried first, with up to so many right sides and steps.
# A step reads the matrix once; a factorisation of this size takes longer than all the steps.
_LARGE, _FEW_SIDES, _MOST_STEPS = 1024, 4, 48
_TOLERANCE = 1e-13


class Moments(NamedTuple):
    """Moments of a table on its grid, in units of the scales.

    Attributes
    ----------
    weight : float
        Sum of the weights.
    means : ndarray of shape (n_columns,)
        Weighted means of the features and targets.
    scatter : ndarray of shape (n_columns, n_columns)
        Weighted products of the columns: centred, or not.
    """

    weight: float
    means: Floats
    scatter: Floats


def read_moments(sums: TableSums, grid: Grid, *, is_centred: bool = True) -> Moments:
    """Return the moments of a table with one Gram matrix.

    Without centring, the columns are multiples of the original ones (they include the centre).
    """
    products = sums.grams[0].to_float()
    if grid.root_scale != 1.0:
        products *= grid.root_scale**2
    # The constant column is the last one.
    totals, weight = products[-1, :-1], float(products[-1, -1])
    means, scatter = totals / weight, products[:-1, :-1]
    if is_centred:
        # In place, without a second matrix of this size.
        left, right = np.append(means, 0.0), np.append(totals, 0.0)
        blas.dger(-1.0, left, right, a=products.T, overwrite_a=1)
        return Moments(weight, means, scatter)
    # x / scale = (grid value) + centre / scale, for features and numeric targets.
    offsets = np.concatenate([grid.shifts, grid.target_centres / grid.target_scales])
    offsets = np.concatenate([offsets, np.zeros(len(means) - len(offsets))])
    cross = np.multiply.outer(totals, offsets)
    scatter += cross + cross.T + weight * np.multiply.outer(offsets, offsets)
    return Moments(weight, means + offsets, scatter)


def scale_penalty(alpha: float, scale: Floats) -> Floats:
    """Return the penalty of coefficients in units of the scale: alpha / scale**2."""
    with np.errstate(over="ignore"):
        penalty: Floats = np.minimum(alpha / scale / scale, _LARGEST_PENALTY)
    return penalty if alpha > 0 else np.zeros_like(scale)


def solve_positive(matrix: Floats, right: Floats) -> Floats:
    """Return the solution of a symmetric positive system; the shortest one if it is singular."""
    if is_large(*right.shape):
        approached = _descend_conjugate(lambda v: matrix @ v, np.diag(matrix), right)
        if approached is not None:
            return approached
    return factorise(matrix, right)


def is_large(n_columns: int, n_sides: int) -> bool:
    """Return whether conjugate gradients are tried for a system of this size."""
    return n_columns >= _LARGE and n_sides <= _FEW_SIDES


def factorise(matrix: Floats, right: Floats) -> Floats:
    """Return the solution of `solve_positive`, by a factorisation."""
    _, solution, info = lapack.dposv(matrix, right, lower=1)
    if info == 0 and np.isfinite(solution).all():
        solved: Floats = solution
        return solved
    values, vectors = np.linalg.eigh(matrix)
    return invert_spectrum(values, vectors) @ right


def read_cross_moments(products: Floats, factor: float, first: int) -> Moments:
    """Return the centred moments, with the columns of the scatter from `first` on only.

    Parameters
    ----------
    products : ndarray of shape (n_columns + 1, n_columns + 1)
        Products of the columns and the constant; not changed, as it may be large.
    factor : float
        Unit of the products.
    first : int
        Number of the first column.
    """
    totals, weight = factor * products[-1, :-1], factor * float(products[-1, -1])
    means = totals / weight
    scatter = factor * products[:-1, first:-1] - np.multiply.outer(totals, means[first:])
    return Moments(weight, means, scatter)


def descend_centred(
    products: Floats, factor: float, moments: Moments, penalty: Floats, right: Floats
) -> Floats | None:
    """Return the solution of centred normal equations by conjugate gradients, or None.

    The matrix is the scatter of the first columns of the products, with a penalty on the diagonal;
    it is never formed. See `read_cross_moments` for the parameters.
    """
    n = len(right)
    means, totals = moments.means[:n], moments.weight * moments.means[:n]
    whole = np.zeros(len(products))

    def multiply(directions: Floats) -> Floats:
        result = penalty[:, None] * directions - np.multiply.outer(totals, means @ directions)
        for k in range(directions.shape[1]):
            whole[:n] = directions[:, k]
            # The products are symmetric: only one half of them is read.
            result[:, k] += blas.dsymv(factor, products.T, whole, lower=1)[:n]
        return result

    diagonal = factor * np.diag(products)[:n] - totals * means + penalty
    return _descend_conjugate(multiply, diagonal, right)


def _descend_conjugate(
    multiply: Callable[[Floats], Floats], diagonal: Floats, right: Floats
) -> Floats | None:
    """Return the solution by conjugate gradients from 0, scaled by the diagonal.

    `multiply` returns the product of the matrix with vectors; `diagonal` is that of the matrix.
    Returns None if the residual does not become small in a few steps. The result depends on the
    system only, not on earlier solutions.
    """
    diagonal = diagonal[:, None]
    if not (diagonal > 0).all() or not right.any(axis=0).all():
        return None
    solution, residual = np.zeros_like(right), right.copy()
    direction = residual / diagonal
    size = (residual * direction).sum(axis=0)
    goal = size * _TOLERANCE**2
    for _ in range(_MOST_STEPS):
        product = multiply(direction)
        energy = (direction * product).sum(axis=0)
        if not (energy > 0).all():
            return None
        solution += size / energy * direction
        residual -= size / energy * product
        scaled = residual / diagonal
        last, size = size, (residual * scaled).sum(axis=0)
        if (size <= goal).all():
            return solution
        direction = scaled + size / last * direction
    return None


def invert_spectrum(values: Floats, vectors: Floats) -> Floats:
    """Return the pseudo-inverse of a matrix with these eigenvalues and eigenvectors."""
    smallest = len(values) * np.finfo(np.float64).eps * max(float(values[-1]), 0.0)
    is_large = values > smallest
    inverse = np.where(is_large, 1.0 / np.where(is_large, values, 1.0), 0.0)
    product: Floats = (vectors * inverse) @ vectors.T
    return product
