r"""Integer noise with a covariance that is close to F^(-1/2), drawn without rounding errors.

The noise of one block is ``round(Q diag(s) z)``: z are normal numbers to 99 bits, s scales in steps
of the grid, Q has orthogonal columns up to a small error. Q and s are fixed-point numbers and the
product is computed in integers, so nothing is lost before it is rounded:

- ``s z`` is floored to multiples of ``2**-90``, which differ from those of exact normal numbers by
  less than ``2**-90 + s 2**-100``;
- Q has multiples of ``2**-34``; with numbers of 10 bits and at most 256 columns every partial sum
  of a product has less than 53 bits, so that products in floats are exact in any order.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from letheon.linear._grid import Grid
from letheon.linear._losses import Floats
from letheon.linear._problem import EPSILON
from letheon.noise import LONG_BITS, LongFloats, NoiseSource
from letheon.removal import Opaque

# Up to this size of a block its whole matrix shapes the noise, above only the diagonal.
FULL_LIMIT = 256
# Largest logarithm of a factor between the covariance as drawn and that of the definition.
COVARIANCE_ERROR = 5e-5
_UNIT = EPSILON / 2
_VECTOR_BITS, _DIGIT_BITS, _N_DIGITS = 34, 10, 15
_SCALE_BITS, _FRACTION_BITS = 32, 90
# Scales in steps; noise is below 2**51 steps with all but a probability of exp(-2**15).
_LEAST_SCALE, _LARGEST_SCALE = 1.0, 2.0**43
_LARGEST_NOISE = 1 << (51 + _FRACTION_BITS)


@dataclass(frozen=True, eq=False, repr=False)
class Root(Opaque):
    """The matrix that makes the noise of one block, ``Q diag(scales)``.

    Attributes
    ----------
    vectors : ndarray or None
        Q as integers, ``2**34`` is one; None for the unit matrix.
    scales : ndarray
        In steps of the grid.
    error : float
        Bound of the logarithm of the factors between its covariance and that of the definition.
    """

    vectors: Floats | None
    scales: Floats
    error: float

    @property
    def is_accurate(self) -> bool:
        """Whether the covariance is as close as the theorem says."""
        fits = self.scales.min() >= _LEAST_SCALE and self.scales.max() <= _LARGEST_SCALE
        return bool(fits) and self.error <= COVARIANCE_ERROR

    def apply(self, normals: LongFloats) -> Floats:
        """Return ``round(Q diag(scales) z)`` for normal numbers z."""
        high = _integers(np.ldexp(normals.high, 46))
        low = _integers(np.ldexp(normals.low, LONG_BITS))
        most = np.minimum(self.scales, _LARGEST_SCALE)
        scales = _integers(np.rint(np.ldexp(most, _SCALE_BITS)))
        scaled = (scales * ((high << 53) + low)) >> (_SCALE_BITS + LONG_BITS - _FRACTION_BITS)
        scaled = np.minimum(np.maximum(scaled, -_LARGEST_NOISE), _LARGEST_NOISE)
        if self.vectors is None:
            return _rounded(scaled, _FRACTION_BITS)
        return _rounded(_product(self.vectors, scaled), _FRACTION_BITS + _VECTOR_BITS)


def draw_noise(roots: list[Root], source: NoiseSource) -> Floats:
    """Return fresh noise for all blocks, a whole number of steps per parameter."""
    sizes = [len(root.scales) for root in roots]
    normals, parts, end = source.long_normals(sum(sizes)), [], 0
    for root, size in zip(roots, sizes, strict=True):
        begin, end = end, end + size
        parts.append(root.apply(LongFloats(normals.high[begin:end], normals.low[begin:end])))
    return np.concatenate(parts)


def are_accurate(roots: list[Root] | None) -> bool:
    """Whether every covariance is as close as the theorem says; None is that of plain noise."""
    return roots is None or all(root.is_accurate for root in roots)


def shaped_gap(grid: Grid, size: int, least: float) -> float:
    """Return a bound of the total variation between the law of the noise and a rounded normal law.

    Parameters
    ----------
    grid : Grid
        Of the release.
    size : int
        Number of parameters.
    least : float
        Lower bound of the eigenvalues of F.

    Notes
    -----
    Let x be exact normal numbers and y = Q diag(s) x. What is rounded in place of y_j is off by at
    most ``e = sqrt(size) (2**-90 + 2**-100 s_j)``, s_j the deviation of y_j. It rounds to another
    integer only if y_j is within e of a half, which has a probability of at most
    ``2 e (1 + 0.4 / s_j)``, and s_j is at least 1. Numbers to 99 bits in place of normal numbers
    cost ``2**-200`` each.
    """
    if not least >= (grid.scale / _LARGEST_SCALE) ** 4:
        return math.inf
    largest = grid.scale * least**-0.25
    return float(4 * size**1.5 * (2.0**-90 + 2.0**-100 * largest))


@dataclass(frozen=True, eq=False, repr=False)
class Spectrum(Opaque):
    """Eigenvalues and vectors of a matrix of doubles, with proved bounds of their errors.

    Attributes
    ----------
    values, vectors : ndarray
        Of the matrix; no value is below 0.
    skew : float
        Bound of the spectral norm of ``vectors' vectors - I``.
    gap : float
        Bound of the spectral norm of the matrix less ``vectors diag(values) vectors'``.
    """

    values: Floats
    vectors: Floats
    skew: float
    gap: float

    @classmethod
    def of(cls, matrix: Floats) -> "Spectrum":
        """Decompose a positive semidefinite matrix; its lower triangle counts.

        Both bounds are Frobenius norms that are computed, plus what rounding may hide of a product
        of d terms: at most d + 2 units of the product of absolute values.
        """
        matrix = np.tril(matrix) + np.tril(matrix, -1).T
        values, vectors = np.linalg.eigh(matrix)
        values, d = np.maximum(values, 0.0), len(values)
        skew = float(np.linalg.norm(vectors.T @ vectors - np.eye(d)))
        gap = float(np.linalg.norm(matrix - (vectors * values) @ vectors.T))
        rounding = 1.1 * _UNIT * (d + 6)
        return cls(
            values, vectors, 1.01 * skew + rounding * d, 1.01 * gap + rounding * values.sum()
        )

    def largest_values(self, error: float) -> Floats:
        """Return upper bounds of the eigenvalues of a matrix that is off by `error` at most."""
        slack = self.gap + 2.1 * self.skew * float(self.values[-1]) + error
        bounds: Floats = (self.values + slack) * (1 + 1e-12)
        return bounds

    def root(self, grid: Grid, ridge: float, n_rows: int, error: float) -> Root:
        """Return the matrix for noise of covariance ``((H + ridge) / n_rows)**(-1/2)``.

        H is a matrix that differs from the one decomposed by `error` in spectral norm.

        Notes
        -----
        With the polar form ``vectors = U P``, ``|P - I| <= skew``, let L = values + ridge and
        k = max(L) / ridge. Then H + ridge lies within ``1 +- x`` of U L U', where
        ``x = 2.05 skew sqrt(k) + (gap + error) / ridge``, so the roots within half of that. Q is
        U (I + E) with ``|E| <= skew + d 2**-35``, the scales s are L**(-1/4) up to a factor of
        ``1 +- y``. So Q diag(s**2) Q' is within ``2.12 (|E| k**(1/4) + y)`` of U L**(-1/2) U'.
        """
        shifted, d = self.values + ridge, len(self.values)
        scales = grid.scale * (shifted / n_rows) ** -0.25
        condition = float(shifted[-1]) / ridge
        off = 2.05 * self.skew * math.sqrt(condition) + (self.gap + error) / ridge
        turned = (self.skew + d * 2.0**-35) * condition**0.25
        vectors = np.rint(np.ldexp(self.vectors, _VECTOR_BITS))
        return Root(vectors, scales, 0.53 * off + 2.12 * (turned + _scale_error(scales)))


def diagonal_root(grid: Grid, diagonal: Floats, ridge: float, n_rows: int, error: float) -> Root:
    """Return the matrix for noise of covariance ``(diagonal / n_rows)**(-1/2)``.

    `diagonal` includes the ridge and is off by `error` at most.
    """
    scales = grid.scale * (diagonal / n_rows) ** -0.25
    return Root(None, scales, 0.53 * error / ridge + 2.12 * _scale_error(scales))


def _scale_error(scales: Floats) -> float:
    """Relative error of scales: their powers, and the fixed point."""
    least = float(scales.min())
    return 2.0**-48 + 2.0 ** -(_SCALE_BITS + 1) / least if least > 0.0 else math.inf


def _product(vectors: Floats, numbers: NDArray[np.object_]) -> NDArray[np.object_]:
    """Return an exact product of integers, by digits whose products floats add up exactly."""
    last = _N_DIGITS - 1
    mask = (1 << _DIGIT_BITS) - 1
    digits = [(numbers >> (_DIGIT_BITS * k)) & mask for k in range(last)]
    digits.append(numbers >> (_DIGIT_BITS * last))
    sums = vectors @ np.stack(digits, axis=1).astype(np.float64)
    total = np.zeros(len(vectors), object)
    for k in range(_N_DIGITS):
        total += _integers(sums[:, k]) << (_DIGIT_BITS * k)
    return total


def _integers(whole: Floats) -> NDArray[np.object_]:
    """Return whole floats as Python integers, which do not overflow."""
    numbers = np.empty(len(whole), object)
    numbers[:] = [int(number) for number in whole.tolist()]
    return numbers


def _rounded(numbers: NDArray[np.object_], n_bits: int) -> Floats:
    """Return the nearest whole numbers to multiples of ``2**-n_bits``; halves are rounded up."""
    nearest: Floats = ((numbers + (1 << (n_bits - 1))) >> n_bits).astype(np.float64)
    return nearest
