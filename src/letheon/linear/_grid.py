"""The release of a certified model: its parameters on a grid, with integer noise.

``release = step * (round(W / step) + Z)`` with Z independent integers of an exact law. The step is
a power of two that follows from sigma alone. So a release is a function of the rounded parameters
and of secret integers, and its low-order bits tell nothing else.
"""

import hashlib
import math
from dataclasses import dataclass
from functools import cache
from typing import Self

import numpy as np

from letheon.linear._calibrate import gaussian_delta, gaussian_epsilon, gaussian_mu, zcdp_gap
from letheon.linear._losses import Floats
from letheon.noise import NoiseSource

__all__ = ["Grid", "rounding_gap"]

# Steps of the grid in one sigma: 2**20 to 2**21.
_SCALE_BITS = 20
# Farther from zero than this many steps, parameters are moved to this limit. Moving every
# coordinate into an interval brings no two of them farther apart.
_MOST_STEPS = 2.0**51
_LEAST_SIGMA = 1e-100


def rounding_gap(scale: int) -> float:
    """Return a bound of the total variation between two laws on the integers.

    They are the discrete Gaussian of this scale s and the normal law of deviation s, rounded.

    Notes
    -----
    With f the normal density and x uniform in [-1/2, 1/2], the rounded law has the probabilities
    ``r(z) = f(z) E[exp(-x**2 / 2s**2) cosh(x z / s**2)]``. The mean lies between
    ``1 - 1 / 24s**2`` and, for ``|z| <= s**2``, ``1 + z**2 / 23s**4`` (cosh t <= 1 + 12 t**2 / 23
    for t <= 1/2). The sum of f over the integers is ``1 + c`` with 0 < c < 3 exp(-2 pi**2 s**2), by
    Poisson summation. So half of the sum of ``|r - f / (1 + c)|`` is at most ``(1 / 24s**2 + 1.01
    / 23s**2 + c) / 2`` plus the mass beyond s**2, together below ``1 / 20s**2`` from s = 8 on.
    """
    if scale < 8:
        raise ValueError(f"scale must be at least 8, got {scale}")
    return 1 / (20 * scale * scale)


@dataclass(frozen=True)
class Grid:
    """Where releases lie, and how much noise they get.

    Attributes
    ----------
    step : float
        A power of two.
    scale : int
        The noise per coordinate, in steps: deviation of a discrete Gaussian, or scale of a
        discrete Laplace law where delta is 0.
    """

    step: float
    scale: int

    @classmethod
    def of_sigma(cls, sigma: float) -> Self:
        """Return the grid for noise of at least `sigma` per coordinate."""
        if not _LEAST_SIGMA <= sigma <= 1 / _LEAST_SIGMA:
            raise ValueError(
                f"sigma must be a number from {_LEAST_SIGMA} to {1 / _LEAST_SIGMA}, got {sigma}"
            )
        step = math.ldexp(1.0, math.frexp(sigma)[1] - 1 - _SCALE_BITS)
        return cls(step, math.ceil(sigma / step))

    @property
    def sigma(self) -> float:
        """Noise per coordinate, as it is added."""
        return self.step * self.scale

    def cut(self, length: float) -> float:
        """Return how far the bound of the grid moves a vector of this length at most."""
        return max(length - _MOST_STEPS * self.step, 0.0)

    def release(self, weights: Floats, source: NoiseSource, *, is_pure: bool = False) -> Floats:
        """Return parameters with fresh noise; `is_pure` for a guarantee with delta = 0."""
        draw = source.laplaces if is_pure else source.discrete_normals
        return self.release_with(weights, draw(weights.shape, self.scale).astype(np.float64))

    def release_with(self, weights: Floats, noise: Floats) -> Floats:
        """Return parameters with noise that is given, in whole steps."""
        return (self._round(weights) + noise) * self.step

    def commit(self, released: Floats, weights: Floats, salt: str) -> str:
        """Return ``SHA-256(salt | noise)`` of a release, the noise as integers of 64 bits."""
        noise = (released / self.step - self._round(weights)).astype("<i8")
        return hashlib.sha256(bytes.fromhex(salt) + noise.tobytes()).hexdigest()

    def _round(self, weights: Floats) -> Floats:
        """Return parameters in steps."""
        limit = _MOST_STEPS * self.step
        if not np.abs(weights).max(initial=0.0) <= limit:
            weights = np.clip(weights, -limit, limit)
        steps: Floats = np.rint(weights / self.step)
        return steps

    @cache  # noqa: B019  (a grid is two numbers)
    def hidden_distance(self, epsilon: float, delta: float, size: int) -> float:
        """Return how far apart two parameter vectors may be for their releases to be close.

        Close is (epsilon, delta)-close, in both directions. `size` is the number of coordinates.
        Rounding moves the vectors apart by at most one step per coordinate. With delta > 0 the
        noise is a rounded Gaussian but for `rounding_gap` per coordinate, which is charged to
        delta in both laws; where delta is too small for that, the discrete Gaussian is as
        concentrated (zCDP) as the continuous one (Canonne et al. 2020), without a charge. With
        delta = 0 each step of distance costs 1 / scale. Errs downwards; 0 if nothing can be hidden.
        """
        if delta == 0.0:
            steps = (epsilon * self.scale - size) / math.sqrt(size)
        else:
            # The charge grows with epsilon: where it would take half of delta, a smaller epsilon
            # is claimed in place of the one asked for.
            most = math.log(max(delta / (2 * size * rounding_gap(self.scale)) - 1, 1.0))
            claimed = min(epsilon, most)
            left = delta - self.charge(claimed, size)
            mu = gaussian_mu(claimed, left) if left > 0.0 else 0.0
            mu = max(mu, math.sqrt(2) * zcdp_gap(epsilon, delta))
            steps = mu * self.scale - math.sqrt(size)
        return max(steps * self.step * (1 - 1e-12), 0.0)

    def charge(self, epsilon: float, size: int) -> float:
        """Return the part of delta that pays for discrete noise in place of continuous noise."""
        return (1 + math.exp(min(epsilon, 700.0))) * size * rounding_gap(self.scale)

    def spent_delta(self, epsilon: float, distance: float, size: int) -> float:
        """Return a delta at which releases of parameters this far apart are close."""
        mu = (distance / self.step + math.sqrt(size)) / self.scale * (1 + 1e-12)
        by_zcdp = math.exp(-(max(epsilon / mu - mu / 2, 0.0) ** 2) / 2) * (1 + 1e-9)
        return min(1.0, by_zcdp, gaussian_delta(epsilon, mu) + self.charge(epsilon, size))

    def spent_epsilon(self, distance: float, delta: float, size: int) -> float:
        """Return an epsilon at which releases of parameters this far apart are close."""
        steps = distance / self.step * (1 + 1e-12)
        if delta == 0.0:
            return (steps * math.sqrt(size) + size) / self.scale
        mu = (steps + math.sqrt(size)) / self.scale
        # An upper bound first: the charge grows with epsilon.
        rough = gaussian_epsilon(mu, delta / 2)
        left = delta - self.charge(rough, size)
        by_zcdp = mu * (mu / 2 + math.sqrt(-2 * math.log(delta))) * (1 + 1e-12)
        return min(by_zcdp, gaussian_epsilon(mu, left) if left >= delta / 2 else math.inf)
