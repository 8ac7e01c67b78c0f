r"""Noise shaped by the Fisher matrix, and bounds on how close two such distributions are.

Integer noise with a covariance close to F^(-1/2) is drawn without rounding errors. The noise of one
block is ``round(Q diag(s) z)``. Here z are normal numbers to 99 bits, s are scales in steps of the
grid, and the columns of Q are orthogonal up to a small error. Q and s are fixed-point numbers, and
the product is computed in integers, so no error is made before rounding:

- ``s z`` is floored to multiples of ``2**-90``, which differ from those of exact normal numbers by
  less than ``2**-90 + s 2**-100``;
- Q has multiples of ``2**-34``; with numbers of 10 bits and at most 256 columns every partial sum
  of a product has less than 53 bits, so that products in floats are exact in any order.

The rest of this module bounds how close a removal and a retraining are, with noise of covariance
sigma^2 F^(-1/2). Both end near the same optimum of the remaining rows: the removal at W with a
measured gradient, the retraining at V with a gradient below its stopping `tolerance`, rounding
included in both. Strong convexity gives

.. math:: |W - V| \le a = (|\nabla S(W)| + tolerance) / ridge.

*Means.* The means are rounded to the grid, which separates them by at most one step per coordinate.
In the metric of the noise of the removal, their distance is at most ``shift``, e^(c/2) |F|^(1/4) (a
+ step sqrt(p)) / sigma. Here c is `COVARIANCE_ERROR`, and p is the number of parameters.

*Covariances.* The removal uses F at W0, and a retraining uses F at some V0 that satisfies the
stopping rule too. Between these points the curvature of a row changes by a factor within e^(+-τ),
where τ = M (max_i |x_i (W - W0)| + R a) and M is the constant of self-concordance. So e^-τ F <= F'
<= e^τ F. Because x^(1/2) is operator monotone, the covariances differ by eigenvalues within
e^(+-τ/2). The drawn noise has each covariance up to a factor within e^(+-c), so the covariances as
drawn differ by factors within e^(+-t). The number t = τ/2 + 2c is the ``spread``.

*Directions.* The covariance changes in few directions, because both matrices contain the same
regulariser. Let F = A + l I, F' = B + l I, and P = F^(-1/2) A F^(-1/2) with trace f, the degrees of
freedom. From e^-τ A <= B <= e^τ A the matrix E = F^(-1/2) F' F^(-1/2) - I is between -(e^τ - 1) P
and (e^τ - 1) P, so its trace norm is at most (e^τ - 1) f. As -log(1 - x) <= x τ / (1 - e^-τ) up to
x = 1 - e^-τ, the logarithms u_i = log(1 + E_i) have sum_i |u_i| <= τ e^τ f. The logarithms u' of
F^(-1/4) F'^(1/2) F^(-1/4) are majorised by u/2 (Araki 1990), so sum_i |u'_i| <= (τ/2) e^τ f. Those
of the covariances as drawn, v, differ from u' by 2c each at most. For every convex K with K(0) = 0
and K(-t) <= K(t), K(v) <= K(t) |v| / t, and so

.. math:: \sum_i K(v_i) \le D K(t), \quad D = ((τ/2) e^τ f + 2cp) / t.

The proofs of `mismatch_delta` and `mismatch_kl` sum such a K over all directions, so D may replace
the number of parameters as their argument ``dimension``. D K(t) increases with τ.

*Noise.* The total variation between the distribution of the noise and a rounded normal distribution
is at most ``gap``. So delta grows by (1 + e^epsilon) gap.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, inf, isnan, log, log2, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.linear._account import round_up_to_power
from letheon.linear._calibrate import (
    ReleaseGrid,
    gaussian_mu,
    mismatch_delta,
    mismatch_epsilon,
    mismatch_kl,
    rounding_gap,
)
from letheon.linear._problem import EPSILON, Floats
from letheon.noise import LONG_BITS, LongFloats, NoiseSource
from letheon.removal import Opaque

# Up to this block size the whole matrix shapes the noise, above it only the diagonal.
FULL_LIMIT = 256
# Largest logarithm of a factor between the drawn covariance and its definition.
COVARIANCE_ERROR = 5e-5
_UNIT = EPSILON / 2
_VECTOR_BITS, _DIGIT_BITS, _N_DIGITS = 34, 10, 15
_SCALE_BITS, _FRACTION_BITS = 32, 90
# Scales in steps; noise is below 2**51 steps with all but a probability of exp(-2**15).
_LEAST_SCALE, _LARGEST_SCALE = 1.0, 2.0**43
_LARGEST_NOISE = 1 << (51 + _FRACTION_BITS)


@dataclass(frozen=True, eq=False, repr=False)
class NoiseRoot(Opaque):
    """The matrix that shapes the noise of one block, ``Q diag(scales)``.

    Attributes
    ----------
    vectors : ndarray or None
        Q as integers, where ``2**34`` represents 1; None for the unit matrix.
    scales : ndarray
        Scales of the noise, in steps of the grid.
    error : float
        Bound on the logarithm of the factor by which its covariance differs from the exact
        covariance.
    """

    vectors: Floats | None
    scales: Floats
    error: float

    @property
    def is_accurate(self) -> bool:
        """Whether the covariance is as accurate as the proof requires."""
        fits = self.scales.min() >= _LEAST_SCALE and self.scales.max() <= _LARGEST_SCALE
        return bool(fits) and self.error <= COVARIANCE_ERROR

    def apply(self, normals: LongFloats) -> Floats:
        """Return ``round(Q diag(scales) z)`` for normal numbers z."""
        high = _to_integers(np.ldexp(normals.high, 46))
        low = _to_integers(np.ldexp(normals.low, LONG_BITS))
        most = np.minimum(self.scales, _LARGEST_SCALE)
        scales = _to_integers(np.rint(np.ldexp(most, _SCALE_BITS)))
        scaled = (scales * ((high << 53) + low)) >> (_SCALE_BITS + LONG_BITS - _FRACTION_BITS)
        scaled = np.minimum(np.maximum(scaled, -_LARGEST_NOISE), _LARGEST_NOISE)
        if self.vectors is None:
            return _round_bits(scaled, _FRACTION_BITS)
        return _round_bits(_multiply_exactly(self.vectors, scaled), _FRACTION_BITS + _VECTOR_BITS)


def draw_noise(roots: list[NoiseRoot], source: NoiseSource) -> Floats:
    """Return fresh noise for all blocks, as a whole number of steps for each parameter."""
    sizes = [len(root.scales) for root in roots]
    normals, parts, end = source.long_normals(sum(sizes)), [], 0
    for root, size in zip(roots, sizes, strict=True):
        begin, end = end, end + size
        parts.append(root.apply(LongFloats(normals.high[begin:end], normals.low[begin:end])))
    return np.concatenate(parts)


def are_accurate(roots: list[NoiseRoot] | None) -> bool:
    """Return whether every covariance is as accurate as the proof requires.

    `roots` is None for isotropic noise, which is always accurate.
    """
    return roots is None or all(root.is_accurate for root in roots)


def fisher_noise_gap(grid: ReleaseGrid, size: int, least: float) -> float:
    """Return a bound on the total variation between the noise and a rounded normal distribution.

    Parameters
    ----------
    grid : ReleaseGrid
        The grid of the release.
    size : int
        Number of parameters.
    least : float
        Lower bound on the eigenvalues of F.

    Notes
    -----
    Let x be exact normal numbers and y = Q diag(s) x. The number that is rounded instead of y_j
    differs from y_j by at most ``e = sqrt(size) (2**-90 + 2**-100 s_j)``, where s_j is the standard
    deviation of y_j. It rounds to a different integer only if y_j is within e of a half, which has
    a probability of at most ``2 e (1 + 0.4 / s_j)``, and s_j is at least 1. Numbers to 99 bits
    instead of normal numbers cost ``2**-200`` each.
    """
    if not least >= (grid.scale / _LARGEST_SCALE) ** 4:
        return math.inf
    largest = grid.scale * least**-0.25
    return float(4 * size**1.5 * (2.0**-90 + 2.0**-100 * largest))


@dataclass(frozen=True, eq=False, repr=False)
class Spectrum(Opaque):
    """Eigenvalues and eigenvectors of a matrix, with proved bounds on their rounding errors.

    Attributes
    ----------
    values, vectors : ndarray
        Eigenvalues, which are not negative, and eigenvectors as columns.
    skew : float
        Bound on the spectral norm of ``vectors' vectors - I``.
    gap : float
        Bound on the spectral norm of the matrix minus ``vectors diag(values) vectors'``.
    """

    values: Floats
    vectors: Floats
    skew: float
    gap: float

    @classmethod
    def from_matrix(cls, matrix: Floats) -> "Spectrum":
        """Decompose a positive semidefinite matrix, given by its lower triangle.

        Both bounds are computed Frobenius norms, plus the rounding error of a product of d terms,
        which is at most d + 2 units of the product of absolute values.
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
        """Return upper bounds on the eigenvalues, if the matrix has an error of at most `error`."""
        slack = self.gap + 2.1 * self.skew * float(self.values[-1]) + error
        bounds: Floats = (self.values + slack) * (1 + 1e-12)
        return bounds

    def noise_root(self, grid: ReleaseGrid, ridge: float, n_rows: int, error: float) -> NoiseRoot:
        """Return the matrix for noise of covariance ``((H + ridge) / n_rows)**(-1/2)``.

        H differs from the decomposed matrix by at most `error` in spectral norm.

        Notes
        -----
        With the polar form ``vectors = U P``, ``|P - I| <= skew``, let L = values + ridge and k =
        max(L) / ridge. Then H + ridge is within ``1 +- x`` of U L U', where ``x = 2.05 skew sqrt(k)
        + (gap + error) / ridge``, so the roots within half of that. Q is U (I + E) with ``|E| <=
        skew + d 2**-35``, the scales s are L**(-1/4) up to a factor of ``1 +- y``. So Q diag(s**2)
        Q' is within ``2.12 (|E| k**(1/4) + y)`` of U L**(-1/2) U'.
        """
        shifted, d = self.values + ridge, len(self.values)
        scales = grid.scale * (shifted / n_rows) ** -0.25
        condition = float(shifted[-1]) / ridge
        off = 2.05 * self.skew * math.sqrt(condition) + (self.gap + error) / ridge
        turned = (self.skew + d * 2.0**-35) * condition**0.25
        vectors = np.rint(np.ldexp(self.vectors, _VECTOR_BITS))
        return NoiseRoot(vectors, scales, 0.53 * off + 2.12 * (turned + _scale_error(scales)))


def diagonal_root(
    grid: ReleaseGrid, diagonal: Floats, ridge: float, n_rows: int, error: float
) -> NoiseRoot:
    """Return the matrix for noise of covariance ``(diagonal / n_rows)**(-1/2)``.

    `diagonal` includes the ridge and has an error of at most `error`.
    """
    scales = grid.scale * (diagonal / n_rows) ** -0.25
    return NoiseRoot(None, scales, 0.53 * error / ridge + 2.12 * _scale_error(scales))


def _scale_error(scales: Floats) -> float:
    """Return the relative error of the scales, which comes from the power and the number format."""
    least = float(scales.min())
    return 2.0**-48 + 2.0 ** -(_SCALE_BITS + 1) / least if least > 0.0 else math.inf


def _multiply_exactly(vectors: Floats, numbers: NDArray[np.object_]) -> NDArray[np.object_]:
    """Return the exact product of a matrix and a vector of integers, computed digit by digit."""
    last = _N_DIGITS - 1
    mask = (1 << _DIGIT_BITS) - 1
    digits = [(numbers >> (_DIGIT_BITS * k)) & mask for k in range(last)]
    digits.append(numbers >> (_DIGIT_BITS * last))
    sums = vectors @ np.stack(digits, axis=1).astype(np.float64)
    total = np.zeros(len(vectors), object)
    for k in range(_N_DIGITS):
        total += _to_integers(sums[:, k]) << (_DIGIT_BITS * k)
    return total


def _to_integers(whole: Floats) -> NDArray[np.object_]:
    """Convert whole floats to Python integers, which do not overflow."""
    numbers = np.empty(len(whole), object)
    numbers[:] = [int(number) for number in whole.tolist()]
    return numbers


def _round_bits(numbers: NDArray[np.object_], n_bits: int) -> Floats:
    """Divide integers by ``2**n_bits`` and round to the nearest integer; halves are rounded up."""
    nearest: Floats = ((numbers + (1 << (n_bits - 1))) >> n_bits).astype(np.float64)
    return nearest


# Share of the largest shift that is allowed together with a spread: one more pass over the rows
# reduces a shift, but only a new Hessian reduces a spread.
_SHIFT_SHARE = 0.25
# Limits of the spread are computed for degrees of freedom rounded up to this grid (per doubling).
_PER_DOUBLING = 4
_BISECTIONS = 24
# Without noise no guarantee is certified, but parameters are still kept this close to the optimum.
_DISTANCE_WITHOUT_NOISE = 1e-4
# More than the rounding errors of the few operations below.
_UP = 1 + 1e-9
_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class Closeness:
    """Bounds on the difference of two distributions of released parameters.

    Attributes
    ----------
    shift, spread : float
        Bounds on the shift of the means and on the log spread of the covariances; infinite if
        unknown.
    dimension : float
        Effective number of directions in which the covariances differ.
    gap : float
        Bound on the total variation between each distribution and a rounded normal distribution.
    """

    shift: float = 0.0
    spread: float = 0.0
    dimension: float = 1.0
    gap: float = 0.0

    def __post_init__(self) -> None:
        """Replace bounds that are NaN, because they could not be computed, by infinity."""
        for name in ("shift", "spread", "gap"):
            if isnan(getattr(self, name)):
                object.__setattr__(self, name, inf)

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> "Closeness":
        """Build the object from the values in a file.

        Earlier versions of letheon drew noise in doubles, so `gap` is unknown and set to infinity.
        """
        gap = state.get("gap", inf)
        return cls(state["shift"], state["spread"], state["dimension"], gap)

    def epsilon_at(self, delta: float) -> float:
        """Return an epsilon that is proved at this delta; infinite if no epsilon is proved."""
        # An upper bound first: the charge grows with epsilon.
        rough = mismatch_epsilon(self.shift, self.spread, self.dimension, delta / 2)
        remaining = delta - noise_charge(rough, self.gap)
        if not remaining >= delta / 2:
            return inf
        return mismatch_epsilon(self.shift, self.spread, self.dimension, remaining)

    @property
    def kl(self) -> float:
        """Bound on the Kullback-Leibler divergence of the normal distributions, both directions."""
        return mismatch_kl(self.shift, self.spread, self.dimension)


def noise_charge(epsilon: float, gap: float) -> float:
    """Return the part of delta that is charged for the total variation `gap` of the noise."""
    return (1 + exp(min(epsilon, _LARGEST_EXPONENT))) * gap


@dataclass(frozen=True)
class NoiseLimits:
    """The largest shift and spread that the noise hides together."""

    shift: float
    spread: float

    def can_hide(self, closeness: Closeness) -> bool:
        """Return whether the noise hides a difference; False if a bound is NaN."""
        return closeness.shift <= self.shift and closeness.spread <= self.spread

    def share_used(self, closeness: Closeness) -> float:
        """Return the share of the limits that is used, rounded up to a power of two.

        The share is infinite if the noise does not hide the difference.
        """
        if not self.can_hide(closeness):
            return inf
        spread = closeness.spread / self.spread if closeness.spread else 0.0
        shift = closeness.shift / self.shift if closeness.shift else 0.0
        return min(round_up_to_power(max(shift, spread)), 1.0)


@dataclass(frozen=True)
class ReleaseNoise:
    """The noise of a release, and the constants that its bounds need.

    `grid` is None without noise. `tolerance` is the gradient norm at which training on the
    remaining rows stops. `ridge`, `n_rows` and `size` (the number of parameters) are those of the
    problem of the remaining rows.
    """

    grid: ReleaseGrid | None
    isotropic: bool
    epsilon: float
    delta: float
    tolerance: float
    ridge: float
    n_rows: int
    size: int

    def bound_distance(self, residual: float) -> float:
        """Return a bound on the distance between a removal and a retraining, before noise."""
        stopped = 0.0 if self.grid is None else self.tolerance
        return (residual + stopped) / self.ridge * _UP

    @property
    def gap(self) -> float:
        """Bound on the total variation between a release and a rounded normal distribution."""
        if self.grid is None:
            return 0.0
        if self.isotropic:
            return self.size * rounding_gap(self.grid.scale)
        return fisher_noise_gap(self.grid, self.size, self.ridge / self.n_rows * (1 - 1e-12))

    def bound_closeness(
        self, residual: float, change: float, shape: "HessianBounds | None"
    ) -> Closeness:
        """Return bounds on the difference between a removal and a retraining.

        Parameters
        ----------
        residual : float
            Norm of the gradient on the remaining rows, at the parameters of the removal.
        change : float
            Largest change of the logarithm of a row's curvature since the expansion point.
        shape : HessianBounds or None
            Bounds on the Fisher matrix; None if the noise is isotropic.
        """
        distance = self.bound_distance(residual)
        if self.grid is None:
            return Closeness(distance / _DISTANCE_WITHOUT_NOISE)
        shift = (distance / self.grid.step + sqrt(self.size)) / self.grid.scale * _UP
        if shape is None:
            return Closeness(shift, gap=self.gap)
        scale = ((shape.top + self.ridge) / self.n_rows) ** 0.25 * exp(COVARIANCE_ERROR / 2)
        moved = (change + shape.concordance * shape.radius * distance) * _UP
        spread = moved / 2 + 2 * COVARIANCE_ERROR
        return Closeness(scale * shift * _UP, spread, shape.effective_dimension(spread), self.gap)

    def compute_limits(self, shape: "HessianBounds | None") -> NoiseLimits:
        """Return the largest shift and spread that the noise hides.

        The charge for the gap grows with epsilon. If it would take more than half of delta, a
        smaller epsilon is used than requested.
        """
        if self.grid is None:
            return NoiseLimits(1.0, inf)
        gap = self.gap
        claimed = min(self.epsilon, log(max(self.delta / (2 * gap) - 1, 1.0)))
        remaining = self.delta - noise_charge(claimed, gap)
        if not remaining > 0.0:
            return NoiseLimits(0.0, 0.0)
        if shape is None:
            return NoiseLimits(gaussian_mu(claimed, remaining), 0.0)
        return _find_limits(claimed, remaining, shape.freedom_on_grid, shape.size)


@dataclass(frozen=True)
class HessianBounds:
    """Bounds on the Hessian of the remaining rows at the expansion point.

    `top` bounds the largest eigenvalue without the regulariser, `freedom` the degrees of freedom,
    and `radius` the norms of the rows. `size` is the number of parameters.
    """

    top: float
    freedom: float
    size: int
    radius: float
    concordance: float

    def effective_dimension(self, spread: float) -> float:
        """Return the effective number of directions for `mismatch_delta` at this spread."""
        return _effective_dimension(self.freedom_on_grid, self.size, spread)

    @property
    def freedom_on_grid(self) -> float:
        """Degrees of freedom, rounded up to a grid so that cached limits can be reused."""
        if not self.freedom < self.size:
            return float(self.size)
        steps = ceil(_PER_DOUBLING * log2(max(self.freedom, 1.0)))
        return min(float(2.0 ** (steps / _PER_DOUBLING)), float(self.size))


def _effective_dimension(freedom: float, size: int, spread: float) -> float:
    error = 2 * COVARIANCE_ERROR
    if not error < spread <= 1.0:
        return float(size)
    moved = spread - error
    count = (moved * exp(2 * moved) * freedom + error * size) / spread * _UP
    return min(max(count, 1.0), float(size))


@lru_cache(maxsize=1024)
def _find_limits(epsilon: float, delta: float, freedom: float, size: int) -> NoiseLimits:
    """Return the allowed shift, and the largest spread that the noise hides together with it."""
    shift = _SHIFT_SHARE * gaussian_mu(epsilon, delta)
    # In one direction the log-ratio of densities has a deviation of about spread / sqrt(2).
    good, bad = 0.0, 4.0 * (1.0 + epsilon) / sqrt(freedom)
    for _ in range(_BISECTIONS):
        middle = (good + bad) / 2
        delta_at_middle = mismatch_delta(
            epsilon, shift, middle, _effective_dimension(freedom, size, middle)
        )
        good, bad = (middle, bad) if delta_at_middle <= delta else (good, middle)
    return NoiseLimits(shift, good)
