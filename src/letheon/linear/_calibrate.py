"""Noise calibration, and the grid on which parameters are released.

Two distributions (laws) P and Q are (epsilon, delta)-close if ``P(A) <= e^epsilon Q(A) + delta``
and ``Q(A) <= e^epsilon P(A) + delta`` for every event A. The smallest such delta is the
hockey-stick divergence. Every function states in which direction its result may be wrong. This is
always the safe direction: a delta or an epsilon may be too large, a shift may be too small.

A certified model releases its parameters on a grid, with integer noise:
``release = step * (round(W / step) + Z)`` with Z independent integers of an exact law. The step is
a power of two that depends on sigma alone. So a release is a function of the rounded parameters
and of secret integers, and its low-order bits reveal nothing else.
"""

import hashlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Self

import numpy as np
from scipy.special import erfcx, ndtr

from letheon.noise import Floats, NoiseSource

# More than the rounding errors of the closed forms (below 5e-12 where delta > 1e-300).
_UP = 1 + 1e-11
# Relative tolerance of a root.
_CLOSE = 1e-12
# Replaces positive deltas that underflow.
_LEAST = sys.float_info.min
_ROOT2 = math.sqrt(2)
_ROOT_PI = math.sqrt(math.pi)

# Below this shift the two terms of the closed form cancel, so their difference is integrated.
_SMALL_SHIFT = 0.1
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(5)

# Orders of the Rényi divergence that are tried, as shares of the largest finite one.
_LOGITS = np.linspace(-30, 30, 601)
_SHARE = 1 / (1 + np.exp(-_LOGITS))
_LOG_REST = -np.log1p(np.exp(_LOGITS))
_SMALLEST_SPREAD = 1e-12
_LARGEST_SPREAD = 50.0
_LARGEST_SPLIT = 700.0


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the smallest delta at which N(0, 1) and N(mu, 1) are (epsilon, delta)-close.

    It is ``Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)``. The formula also holds for
    unit covariance in any dimension, where mu is the length of the shift (Balle and Wang 2018). It
    increases with mu and decreases with epsilon. The result may be too large by less than 2e-11 of
    its value; a positive value below the smallest normal float becomes that float.
    """
    _require_non_negative(epsilon=epsilon, mu=mu)
    if mu == 0 or epsilon == math.inf:
        return 0.0
    if mu == math.inf:
        return 1.0
    return min(1.0, max(_UP * _hockey_stick(epsilon, mu), _LEAST))


def _hockey_stick(epsilon: float, mu: float) -> float:
    """Return the formula of `gaussian_delta`, evaluated without overflow.

    Because e^epsilon φ(-mu/2-epsilon/mu) = φ(mu/2-epsilon/mu), both terms have the same factor.
    With E(y) = e^(y²) erfc(y) the formula becomes ``½ e^(-(mu/2-epsilon/mu)²/2) [E((epsilon/mu -
    mu/2)/√2) - E((epsilon/mu + mu/2)/√2)]``.
    """
    centre, half = epsilon / mu, mu / 2
    factor = math.exp(-(half - centre) * (half - centre) / 2) / 2
    if factor == 0 and centre > half:
        return 0.0
    if mu < _SMALL_SHIFT:
        y = (centre + half * _NODES) / _ROOT2
        slopes = 2 / _ROOT_PI - 2 * y * erfcx(y)
        return factor * half / _ROOT2 * float(_WEIGHTS @ slopes)
    far = factor * float(erfcx((centre + half) / _ROOT2))
    if centre < half:
        return float(ndtr(half - centre)) - far
    return factor * float(erfcx((centre - half) / _ROOT2)) - far


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu with ``gaussian_delta(epsilon, mu) <= delta``.

    Noise of standard deviation ``s / gaussian_mu(epsilon, delta)`` hides a shift of length s. The
    result may be too small, as if delta were smaller by 2e-11 of itself. It is 0 for delta = 0.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        An argument is negative or NaN.

    Examples
    --------
    >>> round(gaussian_mu(epsilon=1.0, delta=1e-5), 4)
    0.2681
    """
    _require_non_negative(epsilon=epsilon, delta=delta)
    if delta >= 1 or epsilon == math.inf:
        return math.inf
    if delta < _LEAST:
        return 0.0
    # Valid starts: the zCDP bound, and delta(0, mu) <= mu / sqrt(2 pi).
    good = max(_ROOT2 * zcdp_gap(epsilon, delta), math.sqrt(2 * math.pi) * delta) * (1 - 1e-9)
    bad = 2 * good
    while gaussian_delta(epsilon, bad) <= delta:
        good, bad = bad, 2 * bad
    return _find_crossing(lambda mu: _log_ratio(gaussian_delta(epsilon, mu), delta), bad, good)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon >= 0 with ``gaussian_delta(epsilon, mu) <= delta``.

    The result may be too large, as if delta were smaller by 2e-11 of itself.
    ``gaussian_epsilon(gaussian_mu(e, delta), delta)`` may exceed e in the last digits, so compare
    mu or delta with a budget, not epsilon. The result is infinite for delta = 0 and mu > 0.

    Parameters
    ----------
    mu : float
        Length of the shift, in standard deviations of the noise.
    delta : float
        Delta of the guarantee.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        An argument is negative or NaN.

    Examples
    --------
    >>> round(gaussian_epsilon(mu=1.0, delta=1e-5), 4)
    4.3772
    """
    _require_non_negative(mu=mu, delta=delta)
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    if delta < _LEAST or mu == math.inf:
        return math.inf
    # mu²/2-zCDP implies (mu²/2 + mu sqrt(2 log 1/delta), delta).
    good = (mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))) * (1 + 1e-9)
    return _find_crossing(lambda eps: _log_ratio(gaussian_delta(eps, mu), delta), 0.0, good)


def zcdp_gap(epsilon: float, delta: float) -> float:
    """Return q such that a shift of ``sqrt(2) q`` deviations is hidden by Gaussian noise.

    It is ``q = sqrt(log(1/delta) + epsilon) - sqrt(log(1/delta))``: a shift of sqrt(2) q standard
    deviations is q²-zCDP and therefore (epsilon, delta)-close. The result is smaller than
    necessary: ``sqrt(2) q < gaussian_mu(epsilon, delta)``. It is 0 for delta = 0.
    """
    _require_non_negative(epsilon=epsilon, delta=delta)
    if delta == 0:
        return 0.0
    log_inverse = max(-math.log(delta), 0.0)
    root = math.sqrt(log_inverse + epsilon) + math.sqrt(log_inverse)
    return epsilon / root if root > 0 else 0.0


def mismatch_kl(mu: float, log_spread: float, dimension: float) -> float:
    """Return a bound on the Kullback-Leibler divergence of two Gaussians, in both directions.

    The parameters are those of `mismatch_delta`. The bound is ``½ [e^t mu² + d (e^t - 1 - t)]``:
    the divergence is ``½ [|v|² + Σ (s_i - 1 - log s_i)]`` with s_i in [e^-t, e^t], and ``e^u - 1 -
    u`` is largest at u = t. The result may be too large; at t = 0 it is mu²/2, the divergence for
    equal covariances.
    """
    _require_laws(mu, log_spread, dimension)
    if log_spread > _LARGEST_SPREAD:
        return math.inf
    excess = math.expm1(log_spread) - log_spread
    return (math.exp(log_spread) * mu * mu + dimension * max(excess, 0.0)) / 2


def mismatch_delta(epsilon: float, mu: float, log_spread: float, dimension: float) -> float:
    r"""Return a delta at which two Gaussians of unequal covariance are (epsilon, delta)-close.

    Parameters
    ----------
    epsilon : float
        Epsilon at which the Gaussians are compared.
    mu : float
        Bound on ``|S2^(-1/2) (m1 - m2)|`` for the laws N(m1, S1) and N(m2, S2).
    log_spread : float
        A t such that every eigenvalue of ``S2^(-1/2) S1 S2^(-1/2)`` is in [e^-t, e^t].
    dimension : float
        Number of coordinates d, or any number d such that the sum of K (see Notes) over all
        coordinates is at most d K(t).

    Returns
    -------
    float
        Valid in both directions, and never below the true delta. Equal to `gaussian_delta` at
        ``log_spread=0``.

    Notes
    -----
    Whitening gives P = N(v, S) and Q = N(0, I), where S is diagonal with entries e^u and |u| <= t.
    Whitening by the other law turns the reverse direction into the same case with ``|v| <= e^(t/2)
    mu``. This length, called ν, is therefore used for both directions.

    *Order.* For λ > 0 and every x, ``(1 - e^-x)_+ <= c e^(λx)`` with
    ``c = λ^λ / (1+λ)^(1+λ)``. Since delta is the mean of ``(1 - e^(epsilon - L))_+`` under P, L the
    log-ratio of densities, ``delta <= c E_P[e^(λL)] e^(-λ epsilon)``. For Gaussians

    .. math:: \log E_P[e^{λL}] = \sum_i \frac{λ(1+λ) v_i^2}{2(1+λ-λe^{u_i})} + K(u_i),
              \quad K(u) = -\tfrac12 [λu + \log(1+λ-λe^u)].

    The first term is largest at u = t. ``K'' = ½ λ(1+λ)e^u / (1+λ-λe^u)² > 0``, so K is largest at
    an end of [-t, t]; and K(t) >= K(-t), because ``1/((1+λ)e^-u - λ)`` is convex, which makes the
    derivative of K(t) - K(-t) non-negative. Hence, for every ``λ < 1/(e^t - 1)``,

    .. math:: δ \le c \exp\Big(\frac{λ(1+λ)ν^2}{2(1+λ-λe^t)} + d K(t) - λε\Big).   \quad (1)

    *Split.* If ``P <= e^a M + δ_1`` and ``M <= e^(ε-a) Q + δ_2`` on every event, then
    ``P <= e^ε Q + δ_1 + e^a δ_2``. With M = N(v, I) the first pair differs in covariance only,
    where (1) holds with ν = 0, and the second is a plain shift:

    .. math:: δ \le δ_1(a) + e^a \, δ_{Gauss}(ε - a, ν).   \quad (2)

    Any choice of λ and a is valid, so the result is the smallest value of (1) and (2) over the λ
    and a that are tried. At t = 0, (2) with a = 0 is exact.
    """
    _require_non_negative(epsilon=epsilon)
    _require_laws(mu, log_spread, dimension)
    if log_spread == 0 or epsilon == math.inf:
        return gaussian_delta(epsilon, mu)
    if log_spread > _LARGEST_SPREAD or mu == math.inf:
        return 1.0
    orders, exponents = _renyi_orders(log_spread, dimension)
    shift = mu * math.exp(log_spread / 2)
    by_order = np.min(exponents + _shift_exponents(orders, shift) - orders * epsilon)
    least = min(math.exp(min(by_order, 0.0)), _least_split(epsilon, shift, orders, exponents))
    return min(1.0, max(_UP * least, _LEAST))


def mismatch_epsilon(mu: float, log_spread: float, dimension: float, delta: float) -> float:
    """Return the smallest epsilon >= 0 with ``mismatch_delta(epsilon, ...) <= delta``.

    The result may be too large. It is equal to `gaussian_epsilon` at ``log_spread=0``, and infinite
    for delta = 0 unless the laws are equal.
    """
    _require_laws(mu, log_spread, dimension)
    _require_non_negative(delta=delta)
    if log_spread == 0:
        return gaussian_epsilon(mu, delta)
    if mismatch_delta(0.0, mu, log_spread, dimension) <= delta:
        return 0.0
    if delta < _LEAST or log_spread > _LARGEST_SPREAD or mu == math.inf:
        return math.inf
    orders, exponents = _renyi_orders(log_spread, dimension)
    shift = mu * math.exp(log_spread / 2)
    # Equation (1) of `mismatch_delta`, solved for epsilon.
    by_order = (exponents + _shift_exponents(orders, shift) - math.log(delta)) / orders
    good = max(float(np.min(by_order)), 0.0) * (1 + 1e-9) + 1e-300
    while mismatch_delta(good, mu, log_spread, dimension) > delta:
        good *= 1 + 1e-6
    return _find_crossing(
        lambda eps: _log_ratio(mismatch_delta(eps, mu, log_spread, dimension), delta), 0.0, good
    )


def _renyi_orders(log_spread: float, dimension: float) -> tuple[Floats, Floats]:
    """Return the values of λ to try, and ``log c + d K(t)`` for each; see `mismatch_delta`."""
    spread = max(log_spread, _SMALLEST_SPREAD)
    orders = _SHARE / math.expm1(spread)
    log_c = -np.log1p(orders) - orders * np.log1p(1 / orders)
    # 1+λ-λe^t is 1 - share. The last term outweighs the rounding errors of the first two.
    per_axis = -(orders * spread + _LOG_REST) / 2 + 1e-14
    return orders, log_c + dimension * per_axis


def _shift_exponents(orders: Floats, shift: float) -> Floats:
    with np.errstate(over="ignore"):
        return orders * (1 + orders) * (shift * shift / 2) * np.exp(-_LOG_REST)


def _least_split(epsilon: float, shift: float, orders: Floats, exponents: Floats) -> float:
    """Return the smallest bound (2) of `mismatch_delta` over two rounds of candidates for a."""

    def bound(a: float) -> float:
        covariance = math.exp(min(float(np.min(exponents - orders * a)), 0.0))
        return covariance + math.exp(a) * gaussian_delta(max(epsilon - a, 0.0), shift)

    # Below `low` the first term is 1, above `high` it is 0.
    high = min(epsilon, float(np.min((exponents + 745) / orders)), _LARGEST_SPLIT)
    low = min(max(float(np.min(exponents / orders)), 0.0), high)
    least = math.inf
    for _ in range(2):
        candidates = np.linspace(low, high, 25)
        values = [bound(float(a)) for a in candidates]
        best = int(np.argmin(values))
        least = min(least, values[best])
        low = float(candidates[max(best - 1, 0)])
        high = float(candidates[min(best + 1, len(values) - 1)])
    return least


def _log_ratio(value: float, target: float) -> float:
    return math.log(value / target) if value > target else math.log(value) - math.log(target)


def _find_crossing(excess: Callable[[float], float], bad: float, good: float) -> float:
    """Return a point where ``excess <= 0``, close to a point where ``excess > 0``.

    `excess` is positive at `bad` and at most 0 at `good`. The search uses regula falsi (Illinois
    variant), with a bisection in every sixth step. The returned point was evaluated, so a rounding
    error cannot make it a point where ``excess > 0``.
    """
    above, below = excess(bad), excess(good)
    was_above: bool | None = None
    for turn in range(1, 200):
        if abs(good - bad) <= _CLOSE * good or below == 0:
            break
        guess = good - below * (good - bad) / (below - above)
        if turn % 6 == 0 or not min(bad, good) < guess < max(bad, good):
            guess = bad + (good - bad) / 2
        value = excess(guess)
        # Illinois: halve the value of an end that stays twice, to move the next guess towards it.
        if value > 0:
            bad, above = guess, value
            below /= 2 if was_above is True else 1
        else:
            good, below = guess, value
            above /= 2 if was_above is False else 1
        was_above = value > 0
    return good


def _require_non_negative(**values: float) -> None:
    for name, value in values.items():
        # Written so that NaN raises as well.
        if not value >= 0:
            raise ValueError(f"{name}={value!r} must be a non-negative number")


def _require_laws(mu: float, log_spread: float, dimension: float) -> None:
    _require_non_negative(mu=mu, log_spread=log_spread)
    if dimension < 1:
        raise ValueError(f"dimension={dimension!r} must be at least 1")


# Steps of the grid in one sigma: 2**20 to 2**21.
_SCALE_BITS = 20
# Parameters are clipped to this many steps. Clipping never increases the distance of two vectors.
_MOST_STEPS = 2.0**51
_LEAST_SIGMA = 1e-100


def rounding_gap(scale: int) -> float:
    """Return a bound on the total variation between a discrete and a rounded Gaussian.

    These are the discrete Gaussian of scale s on the integers, and the normal distribution of
    standard deviation s, rounded to integers.

    Notes
    -----
    With f the normal density and x uniform in [-1/2, 1/2], the rounded law has the probabilities
    ``r(z) = f(z) E[exp(-x**2 / 2s**2) cosh(x z / s**2)]``. The expectation is between ``1 - 1 /
    24s**2`` and, for ``|z| <= s**2``, ``1 + z**2 / 23s**4`` (cosh t <= 1 + 12 t**2 / 23 for t <=
    1/2). The sum of f over the integers is ``1 + c`` with 0 < c < 3 exp(-2 pi**2 s**2), by Poisson
    summation. So half of the sum of ``|r - f / (1 + c)|`` is at most ``(1 / 24s**2 + 1.01 / 23s**2
    + c) / 2`` plus the mass beyond s**2, together below ``1 / 20s**2`` from s = 8 on.
    """
    if scale < 8:
        raise ValueError(f"scale={scale} must be at least 8")
    return 1 / (20 * scale * scale)


@dataclass(frozen=True)
class ReleaseGrid:
    """The grid on which parameters are released, and the scale of their noise.

    Attributes
    ----------
    step : float
        A power of two.
    scale : int
        Noise per coordinate, in steps: the standard deviation of a discrete Gaussian, or the scale
        of a discrete Laplace distribution if delta is 0.
    """

    step: float
    scale: int

    @classmethod
    def of_sigma(cls, sigma: float) -> Self:
        """Return the grid for noise of at least `sigma` per coordinate."""
        if not _LEAST_SIGMA <= sigma <= 1 / _LEAST_SIGMA:
            raise ValueError(
                f"sigma={sigma} must be a number from {_LEAST_SIGMA} to {1 / _LEAST_SIGMA}"
            )
        step = math.ldexp(1.0, math.frexp(sigma)[1] - 1 - _SCALE_BITS)
        return cls(step, math.ceil(sigma / step))

    @property
    def sigma(self) -> float:
        """Scale of the noise that is added per coordinate; at least the requested sigma."""
        return self.step * self.scale

    def clipping_distance(self, length: float) -> float:
        """Return the largest distance by which clipping moves a vector of this norm."""
        return max(length - _MOST_STEPS * self.step, 0.0)

    def release(self, weights: Floats, source: NoiseSource, *, is_pure: bool = False) -> Floats:
        """Return the parameters rounded to the grid, plus fresh noise.

        `is_pure` draws the Laplace noise of a guarantee with delta = 0.
        """
        draw = source.laplaces if is_pure else source.discrete_normals
        return self.release_with(weights, draw(weights.shape, self.scale).astype(np.float64))

    def release_with(self, weights: Floats, noise: Floats) -> Floats:
        """Return the parameters rounded to the grid, plus the given noise, which is in steps."""
        return (self._round_to_steps(weights) + noise) * self.step

    def commit_noise(self, released: Floats, weights: Floats, salt: str) -> str:
        """Return ``SHA-256(salt | noise)`` of a release, with the noise as 64-bit integers."""
        noise = (released / self.step - self._round_to_steps(weights)).astype("<i8")
        return hashlib.sha256(bytes.fromhex(salt) + noise.tobytes()).hexdigest()

    def _round_to_steps(self, weights: Floats) -> Floats:
        """Return the parameters as integer numbers of steps, clipped to the range of the grid."""
        limit = _MOST_STEPS * self.step
        if not np.abs(weights).max(initial=0.0) <= limit:
            weights = np.clip(weights, -limit, limit)
        steps: Floats = np.rint(weights / self.step)
        return steps

    @cache  # noqa: B019  (a grid is two numbers)
    def max_hidden_distance(self, epsilon: float, delta: float, size: int) -> float:
        """Return the largest distance of two parameter vectors at which their releases are close.

        Close means (epsilon, delta)-close, in both directions. `size` is the number of coordinates.
        Rounding moves the vectors apart by at most one step per coordinate. With delta > 0 the
        noise differs from a rounded Gaussian by `rounding_gap` per coordinate, which is charged to
        delta in both laws. If delta is too small for that, the proof uses zCDP: the discrete
        Gaussian is as concentrated as the continuous one (Canonne et al. 2020), without a charge.
        With delta = 0 each step of distance costs 1 / scale. The result may be too small; it is 0
        if no distance can be hidden.
        """
        if delta == 0.0:
            steps = (epsilon * self.scale - size) / math.sqrt(size)
        else:
            # The charge grows with epsilon. If it would take more than half of delta, a smaller
            # epsilon than the requested one is claimed.
            most = math.log(max(delta / (2 * size * rounding_gap(self.scale)) - 1, 1.0))
            claimed = min(epsilon, most)
            remaining = delta - self.noise_charge(claimed, size)
            mu = gaussian_mu(claimed, remaining) if remaining > 0.0 else 0.0
            mu = max(mu, math.sqrt(2) * zcdp_gap(epsilon, delta))
            steps = mu * self.scale - math.sqrt(size)
        return max(steps * self.step * (1 - 1e-12), 0.0)

    def noise_charge(self, epsilon: float, size: int) -> float:
        """Return the part of delta that is charged because the noise is discrete."""
        return (1 + math.exp(min(epsilon, 700.0))) * size * rounding_gap(self.scale)

    def compute_delta(self, epsilon: float, distance: float, size: int) -> float:
        """Return a delta such that releases of parameters at this distance are close."""
        mu = (distance / self.step + math.sqrt(size)) / self.scale * (1 + 1e-12)
        by_zcdp = math.exp(-(max(epsilon / mu - mu / 2, 0.0) ** 2) / 2) * (1 + 1e-9)
        return min(1.0, by_zcdp, gaussian_delta(epsilon, mu) + self.noise_charge(epsilon, size))

    def compute_epsilon(self, distance: float, delta: float, size: int) -> float:
        """Return an epsilon such that releases of parameters at this distance are close."""
        steps = distance / self.step * (1 + 1e-12)
        if delta == 0.0:
            return (steps * math.sqrt(size) + size) / self.scale
        mu = (steps + math.sqrt(size)) / self.scale
        # An upper bound first: the charge grows with epsilon.
        rough = gaussian_epsilon(mu, delta / 2)
        remaining = delta - self.noise_charge(rough, size)
        by_zcdp = mu * (mu / 2 + math.sqrt(-2 * math.log(delta))) * (1 + 1e-12)
        return min(by_zcdp, gaussian_epsilon(mu, remaining) if remaining >= delta / 2 else math.inf)
