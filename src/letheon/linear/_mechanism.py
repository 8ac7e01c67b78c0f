"""How Influence hides what a removal leaves: noise on what is released, or in the objective."""

from typing import Any, NamedTuple, Protocol

import numpy as np

from letheon.guarantee import SearchRanges, TrainingSize
from letheon.linear._account import residual_limit
from letheon.linear._calibrate import gaussian_epsilon
from letheon.linear._grid import Grid
from letheon.linear._losses import Floats
from letheon.noise import NoiseSource

__all__ = [
    "MECHANISMS",
    "Limits",
    "Mechanism",
    "NoNoise",
    "ObjectiveNoise",
    "OutputNoise",
    "batches_and_noise",
    "mechanism_of",
    "release_code",
]

MECHANISMS = ("output", "objective")

# Without noise there is no budget; the residual is still kept so small that the parameters are
# no further than this from the optimum.
_DISTANCE_WITHOUT_NOISE = 1e-4
# Part of the hidden distance that pays for what a fresh fit leaves.
_SHARE_OF_FIT = 0.125


class Limits(NamedTuple):
    """Largest gradients, rounding included: after a fit, and after a removal."""

    fit: float
    removal: float


class Mechanism(Protocol):
    """What a mechanism draws, hides and releases."""

    def draw_tilt(self, source: NoiseSource, shape: tuple[int, int]) -> Floats | None:
        """Return the random linear term of the objective, if there is one."""

    def limits(self, ridge: float, tolerance: float, size: int) -> Limits:
        """Return what gradients are hidden, for `size` parameters.

        `ridge` is the strong convexity, `tolerance` the gradient at which training stops.
        """

    def spent_epsilon(self, spent: float, ridge: float, size: int) -> float:
        """Return an epsilon that hides a gradient of norm `spent`; infinite if none does."""

    def release(self, weights: Floats, source: NoiseSource) -> Floats:
        """Return the parameters that others may see."""


class NoNoise:
    """Nothing is hidden, and nothing is certified."""

    def draw_tilt(self, source: NoiseSource, shape: tuple[int, int]) -> Floats | None:  # noqa: ARG002
        """Return no term."""
        return None

    def limits(self, ridge: float, tolerance: float, size: int) -> Limits:  # noqa: ARG002
        """Return a gradient that keeps the parameters close to the optimum."""
        return Limits(np.inf, _DISTANCE_WITHOUT_NOISE * ridge)

    def spent_epsilon(self, spent: float, ridge: float, size: int) -> float:  # noqa: ARG002
        """Return 0 only where nothing is left."""
        return np.inf if spent > 0.0 else 0.0

    def release(self, weights: Floats, source: NoiseSource) -> Floats:  # noqa: ARG002
        """Return the parameters."""
        return weights


class OutputNoise(NoNoise):
    """Fresh integer noise on parameters that are rounded to a grid; they stay secret themselves.

    No limit, threshold or refusal depends on the noise, so none of them tells of it.

    Parameters
    ----------
    sigma, epsilon, delta : float
        Noise per parameter, and what is claimed.
    """

    def __init__(self, sigma: float, epsilon: float, delta: float) -> None:
        self.grid = Grid.of_sigma(sigma)
        self.epsilon = epsilon
        self.delta = delta

    def limits(self, ridge: float, tolerance: float, size: int) -> Limits:  # noqa: ARG002
        """Share the hidden distance between the model that forgot and a fresh fit."""
        hidden = ridge * self.grid.hidden_distance(self.epsilon, self.delta, size)
        return Limits(_SHARE_OF_FIT * hidden, (1 - _SHARE_OF_FIT) * hidden)

    def spent_epsilon(self, spent: float, ridge: float, size: int) -> float:
        """Add what a fresh fit may leave."""
        of_fit = self.limits(ridge, 0.0, size).fit
        return self.grid.spent_epsilon((spent + of_fit) / ridge, self.delta, size)

    def release(self, weights: Floats, source: NoiseSource) -> Floats:
        """Return the parameters on the grid, with noise."""
        return self.grid.release(weights, source, is_pure=self.delta == 0.0)


class ObjectiveNoise(NoNoise):
    """A secret linear term in the objective, drawn once (Guo et al. 2020); proves nothing here."""

    def __init__(self, sigma: float, epsilon: float, delta: float) -> None:
        self.sigma = sigma
        self.epsilon = epsilon
        self.delta = delta

    def draw_tilt(self, source: NoiseSource, shape: tuple[int, int]) -> Floats | None:
        """Return normal numbers, or a vector of density exp(-|b| / sigma) where delta is 0."""
        if self.delta == 0.0:
            return source.ball(shape, self.sigma)
        return self.sigma * source.normals(shape)

    def limits(self, ridge: float, tolerance: float, size: int) -> Limits:  # noqa: ARG002
        """Leave room for what a retrain may leave."""
        hidden = max(residual_limit(self.sigma, self.epsilon, self.delta) - tolerance, 0.0)
        return Limits(hidden, hidden)

    def spent_epsilon(self, spent: float, ridge: float, size: int) -> float:  # noqa: ARG002
        """Return that of the published theorem."""
        if self.delta == 0.0:
            return spent / self.sigma
        return gaussian_epsilon(spent / self.sigma, self.delta)


def mechanism_of(name: str, sigma: float, epsilon: float, delta: float) -> Mechanism:
    """Return the mechanism of a model's settings, one of `MECHANISMS` by name."""
    if sigma == 0.0:
        return NoNoise()
    return (OutputNoise if name == "output" else ObjectiveNoise)(sigma, epsilon, delta)


def release_code(model: Any) -> str:
    """Return the code of the mechanism that hides what removals leave, for certificates."""
    is_pure = model.delta == 0
    if getattr(model, "mechanism", None) == "objective":
        return f"objective-perturbation-{'gamma-ball' if is_pure else 'gaussian'}"
    return f"grid-release-discrete-{'laplace' if is_pure else 'gaussian'}"


def batches_and_noise(size: TrainingSize) -> SearchRanges:
    """Return both extremes of Mahadevan and Mathioudakis, m' = m/8 and m, and scales of noise."""
    batches = {"batch_size": (size.n_together // 8, None)} if size.n_together >= 8 else {}
    return SearchRanges(batches, {"sigma": (0.01, 0.1)})
