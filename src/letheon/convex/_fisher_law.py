r"""How close a removal and a retrain are, seen through noise of covariance sigma^2 F^(-1/2).

Both end near the same optimum of the remaining rows: the removal at W with a gradient that was
measured, a retrain at V with one that its stop rule bounds by `tolerance`. Strong convexity gives

.. math:: |W - V| \le a = (|\nabla S(W)| + tolerance) / ridge.

*Means.* In the metric of the removal's noise they are apart by at most ``shift``,
|F|^(1/4) a / sigma.

*Covariances.* The removal takes F at W0, a retrain at some V0 that obeys the stop rule too. Between
them a row's curvature changes by a factor within e^(+-τ), τ = M (max_i |x_i (W - W0)| + R a), M the
constant of self-concordance. So e^-τ F <= F' <= e^τ F. Because x^(1/2) is operator monotone, the
covariances differ by eigenvalues within e^(+-t), t = τ/2: the ``spread``.

*Directions.* Few of them change at all, because both matrices share the regulariser. Let
F = A + l I, F' = B + l I, and P = F^(-1/2) A F^(-1/2) with trace f, the degrees of freedom. From
e^-τ A <= B <= e^τ A the matrix E = F^(-1/2) F' F^(-1/2) - I lies between -(e^τ - 1) P and
(e^τ - 1) P, so its trace norm is at most (e^τ - 1) f. As -log(1 - x) <= x τ / (1 - e^-τ) up to
x = 1 - e^-τ, the logarithms u_i = log(1 + E_i) have sum_i |u_i| <= τ e^τ f. The logarithms u' of
F^(-1/4) F'^(1/2) F^(-1/4) are majorised by u/2 (Araki 1990), so sum_i K(u'_i) <= sum_i K(u_i / 2)
for every convex K. With K(0) = 0 and K(-t) <= K(t) this is at most e^τ f K(t). The proofs of
`mismatch_delta` and `mismatch_kl` sum such a K over all directions: e^(2t) f may stand there in
place of the number of parameters.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, inf, log2, sqrt

from letheon.convex._calibrate import (
    gaussian_epsilon,
    gaussian_mu,
    mismatch_delta,
    mismatch_epsilon,
    mismatch_kl,
)

# Share of the largest shift that is allowed beside a spread: one more pass over the rows brings a
# shift down, only a new Hessian a spread.
_SHIFT_SHARE = 0.25
# Limits of the spread are found for degrees of freedom on this grid (per doubling), rounded up.
_PER_DOUBLING = 4
_BISECTIONS = 24
# Without noise there is nothing to certify; parameters are still kept this close to the optimum.
_DISTANCE_WITHOUT_NOISE = 1e-4


@dataclass(frozen=True)
class Closeness:
    """How far two laws are apart at most: shift of means, log spread of covariances, directions."""

    shift: float = 0.0
    spread: float = 0.0
    dimension: int = 1

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon that is proved at this delta."""
        if self.spread == 0.0:
            return gaussian_epsilon(self.shift, delta)
        return mismatch_epsilon(self.shift, self.spread, self.dimension, delta)

    @property
    def kl(self) -> float:
        """Bound of the Kullback-Leibler divergence, either way."""
        return mismatch_kl(self.shift, self.spread, self.dimension)


@dataclass(frozen=True)
class Limits:
    """The largest shift and spread that the noise hides together."""

    shift: float
    spread: float

    def hide(self, closeness: Closeness) -> bool:
        """Whether the noise hides the difference; not for NaN."""
        return closeness.shift <= self.shift and closeness.spread <= self.spread

    def share(self, closeness: Closeness) -> float:
        """Share of the limits that is used; above 1 nothing is proved."""
        if closeness.spread > self.spread:
            return inf
        spread = closeness.spread / self.spread if closeness.spread else 0.0
        return max(closeness.shift / self.shift, spread)


@dataclass(frozen=True)
class Law:
    """The noise and what it has to hide.

    `tolerance` is the gradient at which training on the remaining rows stops, `ridge` and `n_rows`
    are those of the remaining rows.
    """

    sigma: float
    isotropic: bool
    epsilon: float
    delta: float
    tolerance: float
    ridge: float
    n_rows: int

    def distance(self, residual: float) -> float:
        """Upper bound of the distance of the two worlds' parameters before noise."""
        stopped = self.tolerance if self.sigma > 0.0 else 0.0
        return (residual + stopped) / self.ridge

    def closeness(self, residual: float, change: float, shape: "Shape") -> Closeness:
        """Bound the laws of a removal and of a retrain.

        Parameters
        ----------
        residual : float
            Norm of the gradient on the remaining rows, at the removal's parameters.
        change : float
            Largest logarithm by which a row's curvature changed since the expansion point.
        shape : Shape
            What is known of the Fisher matrix.
        """
        distance = self.distance(residual)
        if self.sigma == 0.0:
            return Closeness(distance / _DISTANCE_WITHOUT_NOISE)
        if self.isotropic:
            return Closeness(distance / self.sigma)
        scale = ((shape.top + self.ridge) / self.n_rows) ** 0.25
        change += shape.concordance * shape.radius * distance + shape.rounding
        spread = change / 2
        return Closeness(scale * distance / self.sigma, spread, shape.dimension(spread))

    def limits(self, shape: "Shape") -> Limits:
        """Return what the noise hides."""
        if self.sigma == 0.0:
            return Limits(1.0, inf)
        if self.isotropic:
            return Limits(gaussian_mu(self.epsilon, self.delta), inf)
        return _limits(self.epsilon, self.delta, shape.rounded_freedom, shape.size)


@dataclass(frozen=True)
class Shape:
    """What is known of the Hessian of the remaining rows at the expansion point.

    `top` bounds the largest eigenvalue of its data part, `freedom` its degrees of freedom, `radius`
    the rows' norms; `size` is the number of parameters. `rounding` bounds the matrix's error as a
    share of its smallest eigenvalue: what is left of a matrix that lost a long row may be little.
    """

    top: float
    freedom: float
    size: int
    radius: float
    concordance: float
    rounding: float = 0.0

    def dimension(self, spread: float) -> int:
        """Directions that count in `mismatch_delta` at this spread."""
        return _dimension(self.rounded_freedom, self.size, spread)

    @property
    def rounded_freedom(self) -> float:
        """Degrees of freedom on a grid, so that limits are found once for many."""
        steps = ceil(_PER_DOUBLING * log2(max(self.freedom, 1.0)) - 1e-9)
        return min(float(2.0 ** (steps / _PER_DOUBLING)), float(self.size))


def _dimension(freedom: float, size: int, spread: float) -> int:
    return size if spread > 1.0 else min(ceil(exp(2 * spread) * freedom), size)


@lru_cache(maxsize=1024)
def _limits(epsilon: float, delta: float, freedom: float, size: int) -> Limits:
    """Bisect for the largest spread at the allowed shift."""
    shift = _SHIFT_SHARE * gaussian_mu(epsilon, delta)
    # Of one direction: the log-ratio of densities has a deviation of about spread / sqrt(2).
    good, bad = 0.0, 4.0 * (1.0 + epsilon) / sqrt(freedom)
    for _ in range(_BISECTIONS):
        middle = (good + bad) / 2
        found = mismatch_delta(epsilon, shift, middle, _dimension(freedom, size, middle))
        good, bad = (middle, bad) if found <= delta else (good, middle)
    return Limits(shift, good)
