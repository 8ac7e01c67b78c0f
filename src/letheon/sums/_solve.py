"""Linear algebra on float64 copies of the integers; nothing here is part of a digest."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack

from letheon.sums._table_sums import Grid, TableSums

Floats = npt.NDArray[np.float64]

# A huge penalty keeps a coefficient at 0 without an overflow.
_LARGEST_PENALTY = 1e250


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
        scatter -= np.multiply.outer(totals, means)
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
    _, solution, info = lapack.dposv(matrix, right, lower=1)
    if info == 0 and np.isfinite(solution).all():
        solved: Floats = solution
        return solved
    values, vectors = np.linalg.eigh(matrix)
    return invert_spectrum(values, vectors) @ right


def invert_spectrum(values: Floats, vectors: Floats) -> Floats:
    """Return the pseudo-inverse of a matrix with these eigenvalues and eigenvectors."""
    smallest = len(values) * np.finfo(np.float64).eps * max(float(values[-1]), 0.0)
    is_large = values > smallest
    inverse = np.where(is_large, 1.0 / np.where(is_large, values, 1.0), 0.0)
    product: Floats = (vectors * inverse) @ vectors.T
    return product
