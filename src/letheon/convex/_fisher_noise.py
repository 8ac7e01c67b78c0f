"""Noise of covariance A^(-1/2): the vector A^(-1/4) b for a standard normal b."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg

from letheon.convex._losses import Floats
from letheon.convex._quiet import quiet_repr

Product = Callable[[Floats], Floats]

# Up to this size all eigenvectors cost less than Lanczos steps.
EIGH_LIMIT = 64
# Relative error at which A^(-1/4) b counts as drawn.
ACCURACY = 1e-11
_MOST_STEPS = 250


class Rooted(NamedTuple):
    """The vector A^(-1/4) b, and a bound of its error as a share of least^(-1/4) |b|.

    `n_products` are products with A that it took.
    """

    vector: Floats
    error: float
    n_products: int = 0

    def __repr__(self) -> str:
        return quiet_repr(self)

    @property
    def is_accurate(self) -> bool:
        """Whether the error is that of rounding."""
        return self.error <= ACCURACY


def by_eigenvectors(matrix: Floats, b: Floats, least: float) -> Floats:
    """Return A^(-1/4) b; the lower triangle of A counts, `least` bounds its eigenvalues below."""
    values, vectors = np.linalg.eigh(matrix)
    powers = np.maximum(values, least) ** -0.25
    rooted: Floats = vectors @ (powers * (vectors.T @ b))
    return rooted


def by_lanczos(product: Product, b: Floats, least: float, most_steps: int = _MOST_STEPS) -> Rooted:
    r"""Return A^(-1/4) b from products with A, which is symmetric with eigenvalues >= `least`.

    k steps give A V = V T + rest with V'V = I and T tridiagonal; the result is |b| V T^(-1/4) e_1.

    Notes
    -----
    The power is a mean of resolvents, :math:`x^{-1/4} = \int (x+t)^{-1} dμ(t)`. For every t the
    same k steps solve (A + t) x = b with a residual of norm
    :math:`|b| β_k |e_k' (T+t)^{-1} e_1| = |b| \prod_j β_j / \det(T+t)`, which is largest at t = 0.
    So the error is at most :math:`\int |(A+t)^{-1}| dμ(t)` times that, which is `least`^(-1/4) |b|
    times the product of β_j over the pivots of T. It is measured; steps stop when it is small.
    """
    size, length = len(b), float(np.linalg.norm(b))
    basis = np.empty((min(most_steps, size), size))
    basis[0] = b / length
    diagonal: list[float] = []
    beside: list[float] = []
    pivot, error = 1.0, 1.0
    for k in range(len(basis)):
        vector = product(basis[k])
        diagonal.append(float(vector @ basis[k]))
        known = basis[: k + 1]
        vector = vector - (known @ vector) @ known
        vector -= (known @ vector) @ known
        lost = beside[-1] ** 2 / pivot if beside else 0.0
        pivot = max(diagonal[-1] - lost, least)
        beside.append(float(np.linalg.norm(vector)))
        error *= beside[-1] / pivot
        if error <= ACCURACY or k + 1 == len(basis):
            break
        basis[k + 1] = vector / beside[-1]
    # In a space of all dimensions nothing is left out, whatever rounding says of the rest.
    error = 0.0 if len(diagonal) == size else error
    values, vectors = scipy.linalg.eigh_tridiagonal(diagonal, beside[:-1])
    weights = vectors @ (np.maximum(values, least) ** -0.25 * vectors[0])
    return Rooted(length * (weights @ basis[: len(diagonal)]), error, len(diagonal))
