r"""Curves of Gaussian noise, written a second time and on their own.

A shift of mu standard deviations is (epsilon, delta)-hidden if and only if

.. math:: δ \ge Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)   \quad (Balle and Wang 2018, Theorem 8).

The library computes this by other closed forms; an audit must not repeat its mistakes.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammainccinv, gammaincinv, log_ndtr

__all__ = ["hidden_shift", "mismatch_delta", "noise_bounds", "shift_delta"]

_TAIL = 1e-9


def shift_delta(epsilon: float, mu: float) -> float:
    """Smallest delta at which a shift of mu standard deviations is hidden with epsilon."""
    # Beyond 38 standard deviations nothing is left that a float could hold.
    if mu <= 0.0 or epsilon / 38.0 > mu + mu * mu:
        return 0.0
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return max(-math.expm1(min(second - first, 0.0)), 0.0) * math.exp(first)


def hidden_shift(epsilon: float, delta: float) -> float:
    """Largest shift, in standard deviations, that is hidden with (epsilon, delta)."""
    if delta <= 0.0:
        return 0.0
    high = 1.0
    while shift_delta(epsilon, high) < delta:
        high *= 2.0
    return float(brentq(lambda mu: shift_delta(epsilon, mu) - delta, 0.0, high, xtol=1e-14))


def noise_bounds(size: int, *, ball: bool) -> tuple[float, float]:
    """Lengths, in units of sigma, between which noise of `size` entries lies but for 2e-9.

    The squared length of Gaussian noise has a chi-square law; the length of noise with the density
    exp(-|b| / sigma) has a gamma law.
    """
    if ball:
        return float(gammaincinv(size, _TAIL)), float(gammainccinv(size, _TAIL))
    low, high = gammaincinv(size / 2, _TAIL), gammainccinv(size / 2, _TAIL)
    return math.sqrt(2 * float(low)), math.sqrt(2 * float(high))


def mismatch_delta(epsilon: float, shift: float, spread: float, dimension: float) -> float:
    r"""Bound of delta between Gaussians whose covariances differ, too.

    Means are apart by `shift`; eigenvalues of one covariance seen by the other lie within
    e^(±spread), in `dimension` directions. With ν = shift e^(spread/2) and any λ > 0 for which
    1 + λ - λ e^spread > 0, Markov's inequality for the λ-th moment of the ratio of densities gives

    .. math:: δ \le \frac{λ^λ}{(1+λ)^{1+λ}}
              \exp\Big(\frac{λ(1+λ)ν²}{2(1+λ-λe^t)} + d K - λε\Big),
              \quad K = -\tfrac12 [λt + \log(1+λ-λe^t)];

    and a covariance first, mean second, δ <= δ_1(a) + e^a δ_shift(ε - a). The least of both.
    """
    if spread <= 0.0:
        return shift_delta(epsilon, shift)
    top = 1.0 / math.expm1(spread)
    orders = top / (1.0 + np.exp(-np.linspace(-28.0, 28.0, 701)))
    rest = 1.0 + orders - orders * math.exp(spread)
    orders, rest = orders[rest > 0], rest[rest > 0]
    scale = orders * np.log(orders) - (1.0 + orders) * np.log1p(orders)
    shape = -0.5 * dimension * (orders * spread + np.log(rest))
    far = shift * math.exp(spread / 2)
    moved = orders * (1.0 + orders) * far**2 / (2.0 * rest)
    together = float(np.min(scale + shape + moved - orders * epsilon))
    least = math.exp(min(together, 0.0))
    parts = np.linspace(0.0, epsilon, 201)[1:]
    firsts = np.exp(np.minimum(np.min(scale + shape - np.outer(parts, orders), axis=1), 0.0))
    for part, first in zip(parts.tolist(), firsts.tolist(), strict=True):
        least = min(least, first + math.exp(part) * shift_delta(epsilon - part, far))
    return least


def length(values: NDArray[np.float64]) -> float:
    """Euclidean norm over all entries."""
    return float(np.sqrt(np.sum(np.square(values))))
