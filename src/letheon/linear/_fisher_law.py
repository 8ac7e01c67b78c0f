r"""How close a removal and a retrain are, seen through noise of covariance sigma^2 F^(-1/2).

Both end near the same optimum of the remaining rows: the removal at W with a gradient that was
measured, a retrain at V with one that its stop rule bounds by `tolerance`, rounding included in
both. Strong convexity gives

.. math:: |W - V| \le a = (|\nabla S(W)| + tolerance) / ridge.

*Means.* They are rounded to the grid, which moves them apart by one step per coordinate at most. In
the metric of the removal's noise they are apart by at most ``shift``,
e^(c/2) |F|^(1/4) (a + step sqrt(p)) / sigma; c is `COVARIANCE_ERROR`, p the number of parameters.

*Covariances.* The removal takes F at W0, a retrain at some V0 that obeys the stop rule too. Between
them a row's curvature changes by a factor within e^(+-τ), τ = M (max_i |x_i (W - W0)| + R a), M the
constant of self-concordance. So e^-τ F <= F' <= e^τ F. Because x^(1/2) is operator monotone, the
covariances differ by eigenvalues within e^(+-τ/2). Each is drawn up to a factor within e^(+-c), so
that they lie within e^(+-t), t = τ/2 + 2c: the ``spread``.

*Directions.* Few of them change at all, because both matrices share the regulariser. Let
F = A + l I, F' = B + l I, and P = F^(-1/2) A F^(-1/2) with trace f, the degrees of freedom. From
e^-τ A <= B <= e^τ A the matrix E = F^(-1/2) F' F^(-1/2) - I lies between -(e^τ - 1) P and
(e^τ - 1) P, so its trace norm is at most (e^τ - 1) f. As -log(1 - x) <= x τ / (1 - e^-τ) up to
x = 1 - e^-τ, the logarithms u_i = log(1 + E_i) have sum_i |u_i| <= τ e^τ f. The logarithms u' of
F^(-1/4) F'^(1/2) F^(-1/4) are majorised by u/2 (Araki 1990), so sum_i |u'_i| <= (τ/2) e^τ f. Those
of the covariances as drawn, v, differ from u' by 2c each at most. For every convex K with K(0) = 0
and K(-t) <= K(t), K(v) <= K(t) |v| / t, and so

.. math:: \sum_i K(v_i) \le D K(t), \quad D = ((τ/2) e^τ f + 2cp) / t.

The proofs of `mismatch_delta` and `mismatch_kl` sum such a K over all directions: D, the
``dimension``, may stand there in place of the number of parameters. D K(t) increases with τ.

*Noise.* Each law differs from a rounded normal law by a total variation of ``gap`` at most. So
delta grows by (1 + e^epsilon) gap.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, inf, isnan, log, log2, sqrt
from typing import Any

from letheon.linear._account import rounded_up
from letheon.linear._calibrate import (
    gaussian_mu,
    mismatch_delta,
    mismatch_epsilon,
    mismatch_kl,
)
from letheon.linear._fisher_noise import COVARIANCE_ERROR, shaped_gap
from letheon.linear._grid import Grid, rounding_gap

# Share of the largest shift that is allowed beside a spread: one more pass over the rows brings a
# shift down, only a new Hessian a spread.
_SHIFT_SHARE = 0.25
# Limits of the spread are found for degrees of freedom on this grid (per doubling), rounded up.
_PER_DOUBLING = 4
_BISECTIONS = 24
# Without noise there is nothing to certify; parameters are still kept this close to the optimum.
_DISTANCE_WITHOUT_NOISE = 1e-4
# More than the rounding errors of the few operations below.
_UP = 1 + 1e-9
_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class Closeness:
    """How far two laws are apart at most.

    Attributes
    ----------
    shift, spread : float
        Of the means, and log spread of the covariances; infinite where they are not known.
    dimension : float
        Directions that count.
    gap : float
        Total variation between each law and a rounded normal law.
    """

    shift: float = 0.0
    spread: float = 0.0
    dimension: float = 1.0
    gap: float = 0.0

    def __post_init__(self) -> None:
        """A bound that could not be computed is no bound."""
        for name in ("shift", "spread", "gap"):
            if isnan(getattr(self, name)):
                object.__setattr__(self, name, inf)

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> "Closeness":
        """Read a file; earlier versions drew noise in doubles, for which no gap is known."""
        gap = state.get("gap", inf)
        return cls(state["shift"], state["spread"], state["dimension"], gap)

    def epsilon(self, delta: float) -> float:
        """Return an epsilon that is proved at this delta; infinite if none is."""
        # An upper bound first: the charge grows with epsilon.
        rough = mismatch_epsilon(self.shift, self.spread, self.dimension, delta / 2)
        left = delta - charge(rough, self.gap)
        if not left >= delta / 2:
            return inf
        return mismatch_epsilon(self.shift, self.spread, self.dimension, left)

    @property
    def kl(self) -> float:
        """Bound of the Kullback-Leibler divergence of the normal laws, either way."""
        return mismatch_kl(self.shift, self.spread, self.dimension)


def charge(epsilon: float, gap: float) -> float:
    """Return the part of delta that pays for the noise as it is drawn."""
    return (1 + exp(min(epsilon, _LARGEST_EXPONENT))) * gap


@dataclass(frozen=True)
class Limits:
    """The largest shift and spread that the noise hides together."""

    shift: float
    spread: float

    def hide(self, closeness: Closeness) -> bool:
        """Whether the noise hides the difference; not for NaN."""
        return closeness.shift <= self.shift and closeness.spread <= self.spread

    def share(self, closeness: Closeness) -> float:
        """Share of the limits that is used, rounded up; above 1 nothing is proved."""
        if not self.hide(closeness):
            return inf
        spread = closeness.spread / self.spread if closeness.spread else 0.0
        shift = closeness.shift / self.shift if closeness.shift else 0.0
        return min(rounded_up(max(shift, spread)), 1.0)


@dataclass(frozen=True)
class Law:
    """The noise and what it has to hide.

    `grid` is None without noise. `tolerance` is the gradient at which training on the remaining
    rows stops; `ridge`, `n_rows` and `size` (the number of parameters) are those of the remaining
    rows.
    """

    grid: Grid | None
    isotropic: bool
    epsilon: float
    delta: float
    tolerance: float
    ridge: float
    n_rows: int
    size: int

    def distance(self, residual: float) -> float:
        """Upper bound of the distance of the two worlds' parameters before noise."""
        stopped = 0.0 if self.grid is None else self.tolerance
        return (residual + stopped) / self.ridge * _UP

    @property
    def gap(self) -> float:
        """Total variation between the law of a release and a rounded normal law, at most."""
        if self.grid is None:
            return 0.0
        if self.isotropic:
            return self.size * rounding_gap(self.grid.scale)
        return shaped_gap(self.grid, self.size, self.ridge / self.n_rows * (1 - 1e-12))

    def closeness(self, residual: float, change: float, shape: "Shape | None") -> Closeness:
        """Bound the laws of a removal and of a retrain.

        Parameters
        ----------
        residual : float
            Norm of the gradient on the remaining rows, at the removal's parameters.
        change : float
            Largest logarithm by which a row's curvature changed since the expansion point.
        shape : Shape or None
            What is known of the Fisher matrix, where it shapes the noise.
        """
        distance = self.distance(residual)
        if self.grid is None:
            return Closeness(distance / _DISTANCE_WITHOUT_NOISE)
        shift = (distance / self.grid.step + sqrt(self.size)) / self.grid.scale * _UP
        if shape is None:
            return Closeness(shift, gap=self.gap)
        scale = ((shape.top + self.ridge) / self.n_rows) ** 0.25 * exp(COVARIANCE_ERROR / 2)
        moved = (change + shape.concordance * shape.radius * distance) * _UP
        spread = moved / 2 + 2 * COVARIANCE_ERROR
        return Closeness(scale * shift * _UP, spread, shape.dimension(spread), self.gap)

    def limits(self, shape: "Shape | None") -> Limits:
        """Return what the noise hides.

        The charge grows with epsilon: where it would take half of delta, a smaller epsilon is
        claimed in place of the one asked for.
        """
        if self.grid is None:
            return Limits(1.0, inf)
        gap = self.gap
        claimed = min(self.epsilon, log(max(self.delta / (2 * gap) - 1, 1.0)))
        left = self.delta - charge(claimed, gap)
        if not left > 0.0:
            return Limits(0.0, 0.0)
        if shape is None:
            return Limits(gaussian_mu(claimed, left), 0.0)
        return _limits(claimed, left, shape.rounded_freedom, shape.size)


@dataclass(frozen=True)
class Shape:
    """What is known of the Hessian of the remaining rows at the expansion point.

    `top` bounds the largest eigenvalue of its data part, `freedom` its degrees of freedom, `radius`
    the rows' norms; `size` is the number of parameters.
    """

    top: float
    freedom: float
    size: int
    radius: float
    concordance: float

    def dimension(self, spread: float) -> float:
        """Directions that count in `mismatch_delta` at this spread."""
        return _dimension(self.rounded_freedom, self.size, spread)

    @property
    def rounded_freedom(self) -> float:
        """Degrees of freedom on a grid, so that limits are found once for many."""
        if not self.freedom < self.size:
            return float(self.size)
        steps = ceil(_PER_DOUBLING * log2(max(self.freedom, 1.0)))
        return min(float(2.0 ** (steps / _PER_DOUBLING)), float(self.size))


def _dimension(freedom: float, size: int, spread: float) -> float:
    error = 2 * COVARIANCE_ERROR
    if not error < spread <= 1.0:
        return float(size)
    moved = spread - error
    count = (moved * exp(2 * moved) * freedom + error * size) / spread * _UP
    return min(max(count, 1.0), float(size))


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
