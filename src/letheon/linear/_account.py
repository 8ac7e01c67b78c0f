"""The residual gradient after removals: its bounds, its account, and the noise that hides it.

A removal makes one step that approximately solves ``H0 step = g``. Here H0 is the Hessian of the
remaining rows at W0, and g is the gradient of the removed rows. The new gradient is the old
residual plus ``(H0 step - g) + E step``, where E is the mean of ``H(W + s step) - H0`` over s in
[0, 1]. The norm of ``H0 step - g`` is measured; the functions below bound the norm of ``E step``.

`Account` adds up the bounds of all removals. A `Mechanism` hides the residual by noise on the
released parameters, or in the objective.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import expm1, frexp, inf, isfinite, isnan, ldexp, sqrt
from typing import Any, NamedTuple, Self

import numpy as np

from letheon.guarantee import SearchRanges, TrainingSize
from letheon.linear._calibrate import ReleaseGrid, gaussian_epsilon, gaussian_mu
from letheon.linear._problem import Floats, Loss
from letheon.noise import NoiseSource

_SMALL = 1e-3
_LARGE = 300.0
# Replaces eigenvalues and energies that underflow: 0 would hide an infinite growth.
_LEAST = 1e-300


def mean_growth(offset: float, length: float) -> float:
    """Return the mean of ``e^(offset + s length) - 1`` over s in [0, 1], never too small."""
    if offset + length > _LARGE:
        return inf
    if length < _SMALL:
        excess = length / 2 + length * length / 4
    else:
        excess = (expm1(length) - length) / length
    return expm1(offset) * (1.0 + excess) + excess


def concordant_bound(
    loss: Loss,
    radius: float,
    offsets: Sequence[float],
    lengths: Sequence[float],
    tops: Sequence[float],
    drifts: Sequence[float],
    energies: Sequence[float],
) -> float:
    """Return a data-dependent bound on |E step|, the smaller of two bounds by self-concordance.

    *First bound.* Along a step of length t the curvature of a row changes by a factor within e^(+-M
    R t), so |E step| <= rho sqrt(top) sqrt(step' H0 step). Here top is the largest eigenvalue of
    the data part of H0, b is |step|, and rho is the mean of e^(M R (a + s b)) - 1 over s in [0, 1].
    The number a is |W - W0|, or any number with |x (W - W0)| <= R a for all remaining rows.

    *Second bound.* The third derivative of a row's loss satisfies |D3 l[u, v, x]| <= M |x| sqrt(D2
    l[u, u] D2 l[v, v]). With the step as u, the path from W0 as v and |x| <= R, the sum over the
    rows gives |E step| <= M R f sqrt(step' H0 step) times the mean of sqrt(v' H0 v), which is at
    most sqrt((W - W0)' H0 (W - W0)) + sqrt(step' H0 step) / 2. Here f is the mean of e^(r T) over r
    in [0, 1], with T = M R (a + b).

    Parameters
    ----------
    loss : Loss
        The loss; its `concordance` is M.
    radius : float
        R, at least the norm of every remaining row.
    offsets, lengths, tops, drifts, energies : sequence of float
        a, b, top, (W - W0)' H0 (W - W0) and step' H0 step, one per block of the Hessian.
    """
    scale = loss.concordance * radius
    if scale == 0.0:
        return 0.0
    total = 0.0
    parts = zip(offsets, lengths, tops, drifts, energies, strict=True)
    for offset, length, top, drift, energy in parts:
        if length == 0.0:
            continue
        growth = mean_growth(scale * offset, scale * length)
        own, way = sqrt(max(energy, _LEAST)), sqrt(max(drift, 0.0))
        by_top = growth * sqrt(max(top, _LEAST))
        by_way = scale * (1.0 + mean_growth(0.0, scale * (offset + length))) * (way + own / 2)
        total += min(by_top, by_way) ** 2 * own * own
    return sqrt(total)


def lipschitz_bound(loss: Loss, radius: float, n_rows: int, offset: float, length: float) -> float:
    """Return a bound on |E step| that holds for all rows of norm at most `radius`.

    The bound is ``gamma n R^3 |step| (|W - W0| + |step| / 2)``, where `offset` is |W - W0| and
    `length` is |step|. It is that of theorems 1 and 4 of Guo et al. 2020 with the sharp constant,
    half of the term in |step|^2, and a term for a Hessian that was evaluated at W0 instead of W.
    """
    return loss.third_bound * n_rows * radius**3 * length * (offset + length / 2)


def residual_limit(sigma: float, epsilon: float, delta: float) -> float:
    """Return the largest residual norm that noise of scale sigma hides with (epsilon, delta).

    With delta > 0 the noise is Gaussian, and the limit is sigma times the largest shift that a unit
    Gaussian hides. With delta = 0 the noise has the density exp(-|b| / sigma), and a shift of
    length r changes the logarithm of the density by at most r / sigma.
    """
    if sigma == 0.0:
        return inf
    return sigma * (gaussian_mu(epsilon, delta) if delta > 0.0 else epsilon)


@dataclass(frozen=True)
class Account:
    """A bound on the residual over all removals, and how often the residual had to be reduced.

    Attributes
    ----------
    spent : float
        Upper bound on the norm of the gradient, noise included, on the remaining rows. It starts
        with the residual of the optimiser and grows with every removal.
    limit : float
        Largest norm that the noise hides.
    exact, polishes, retrains : int
        How often a request had to measure the residual, to make further Newton steps, and to
        retrain. Rows that were crafted to exhaust the budget (Marchant et al. 2022) increase these
        counts.

    Examples
    --------
    >>> account = Account(spent=0.25, limit=1.0).add_bound(0.5)
    >>> account.spent, account.is_covered
    (0.75, True)
    """

    spent: float
    limit: float
    exact: int = 0
    polishes: int = 0
    retrains: int = 0

    def __post_init__(self) -> None:
        """Replace a bound that is NaN, because it could not be computed, by infinity."""
        if isnan(self.spent):
            object.__setattr__(self, "spent", inf)

    @property
    def public_spent(self) -> float:
        """`spent` for receipts, rounded up because the exact number depends on the rows."""
        return min(round_up_to_power(self.spent), self.limit) if self.is_covered else self.spent

    @property
    def is_covered(self) -> bool:
        """Whether the noise hides the residual."""
        return self.spent <= self.limit

    def add_bound(self, bound: float) -> Self:
        """Return the account after a removal that adds at most `bound`."""
        return type(self)(self.spent + bound, self.limit, self.exact, self.polishes, self.retrains)

    def with_limit(self, limit: float) -> Self:
        """Return the account with another limit."""
        return type(self)(self.spent, limit, self.exact, self.polishes, self.retrains)

    def record_measurement(self, residual: float) -> Self:
        """Return the account after a measurement, with the measured residual as `spent`."""
        return replace(self, spent=residual, exact=self.exact + 1)

    def record_polish(self, residual: float) -> Self:
        """Return the account after a further Newton step that left this residual."""
        return replace(self, spent=residual, polishes=self.polishes + 1)

    def record_retrain(self, residual: float, limit: float) -> Self:
        """Return the account after a retraining that left this residual and set this limit."""
        return replace(self, spent=residual, limit=limit, retrains=self.retrains + 1)

    def count_since(self, before: "Account") -> dict[str, int]:
        """Return the counts since the account `before`, with the names used in receipts."""
        counts = {
            "exact residuals": self.exact - before.exact,
            "polishes": self.polishes - before.polishes,
            "retrains": self.retrains - before.retrains,
        }
        return {name: count for name, count in counts.items() if count}


def round_up_to_power(number: float) -> float:
    """Return the smallest power of two that is at least `number`; 0 if it is not positive."""
    if not isfinite(number):
        return number
    mantissa, exponent = frexp(number)
    return ldexp(1.0, exponent - (mantissa == 0.5)) if number > 0.0 else 0.0


MECHANISMS = ("output", "objective")

# Without noise there is no budget, but the parameters are still kept this close to the optimum.
_DISTANCE_WITHOUT_NOISE = 1e-4
# Part of the hidden distance reserved for the residual of a fresh fit.
_SHARE_OF_FIT = 0.125


class GradientLimits(NamedTuple):
    """Largest accepted gradient norms, rounding included, after a fit and after a removal."""

    fit: float
    removal: float


class Mechanism:
    """The way parameters are released. This base class adds no noise and has no guarantee."""

    def draw_tilt(self, source: NoiseSource, shape: tuple[int, int]) -> Floats | None:  # noqa: ARG002
        """Return the random linear term that is added to the objective; None if there is none."""
        return None

    def compute_limits(self, ridge: float, tolerance: float, size: int) -> GradientLimits:  # noqa: ARG002
        """Return the largest gradient norms that the noise hides, for `size` parameters.

        `ridge` is the strong convexity, and `tolerance` is the gradient norm at which training
        stops. Without noise, the limit after a removal keeps the parameters close to the optimum.
        """
        return GradientLimits(np.inf, _DISTANCE_WITHOUT_NOISE * ridge)

    def compute_epsilon(self, spent: float, ridge: float, size: int) -> float:  # noqa: ARG002
        """Return the epsilon that hides a gradient of norm `spent`; infinite if there is none."""
        return np.inf if spent > 0.0 else 0.0

    def release(self, weights: Floats, source: NoiseSource) -> Floats:  # noqa: ARG002
        """Return the parameters to publish."""
        return weights


class OutputNoise(Mechanism):
    """Fresh integer noise on parameters that are rounded to a grid.

    The parameters without noise stay secret. No limit, threshold or error depends on the noise, so
    none of them reveals it.

    Parameters
    ----------
    sigma, epsilon, delta : float
        Scale of the noise per parameter, and the certified (epsilon, delta).
    """

    def __init__(self, sigma: float, epsilon: float, delta: float) -> None:
        self.grid = ReleaseGrid.of_sigma(sigma)
        self.epsilon = epsilon
        self.delta = delta

    def compute_limits(self, ridge: float, tolerance: float, size: int) -> GradientLimits:  # noqa: ARG002
        """Return the largest gradients of a fit and of a removal; the noise hides their sum."""
        hidden = ridge * self.grid.max_hidden_distance(self.epsilon, self.delta, size)
        return GradientLimits(_SHARE_OF_FIT * hidden, (1 - _SHARE_OF_FIT) * hidden)

    def compute_epsilon(self, spent: float, ridge: float, size: int) -> float:
        """Return the epsilon that hides `spent` plus the residual that a fresh fit may have."""
        of_fit = self.compute_limits(ridge, 0.0, size).fit
        return self.grid.compute_epsilon((spent + of_fit) / ridge, self.delta, size)

    def release(self, weights: Floats, source: NoiseSource) -> Floats:
        """Return the parameters rounded to the grid, plus noise."""
        return self.grid.release(weights, source, is_pure=self.delta == 0.0)


class ObjectiveNoise(Mechanism):
    """A secret random linear term in the objective, drawn once per training (Guo et al. 2020).

    Its guarantee is only empirical.
    """

    def __init__(self, sigma: float, epsilon: float, delta: float) -> None:
        self.sigma = sigma
        self.epsilon = epsilon
        self.delta = delta

    def draw_tilt(self, source: NoiseSource, shape: tuple[int, int]) -> Floats | None:
        """Return normal noise, or noise with the density exp(-|b| / sigma) if delta is 0."""
        if self.delta == 0.0:
            return source.ball(shape, self.sigma)
        return self.sigma * source.normals(shape)

    def compute_limits(self, ridge: float, tolerance: float, size: int) -> GradientLimits:  # noqa: ARG002
        """Return the hidden norm, less the residual `tolerance` that a retraining may leave."""
        hidden = max(residual_limit(self.sigma, self.epsilon, self.delta) - tolerance, 0.0)
        return GradientLimits(hidden, hidden)

    def compute_epsilon(self, spent: float, ridge: float, size: int) -> float:  # noqa: ARG002
        """Return the epsilon that the theorem of Guo et al. 2020 states for this gradient norm."""
        if self.delta == 0.0:
            return spent / self.sigma
        return gaussian_epsilon(spent / self.sigma, self.delta)


def release_code(model: Any) -> str:
    """Return the code by which certificates name the release mechanism of a model."""
    is_pure = model.delta == 0
    if getattr(model, "mechanism", None) == "objective":
        return f"objective-perturbation-{'gamma-ball' if is_pure else 'gaussian'}"
    return f"grid-release-discrete-{'laplace' if is_pure else 'gaussian'}"


def suggest_search_ranges(size: TrainingSize) -> SearchRanges:
    """Return the values to try: batch sizes m/8 and m, and two scales of noise.

    The batch sizes are those of Mahadevan and Mathioudakis (2021), for requests of m rows.
    """
    batches = {"batch_size": (size.n_together // 8, None)} if size.n_together >= 8 else {}
    return SearchRanges(batches, {"sigma": (0.01, 0.1)})
