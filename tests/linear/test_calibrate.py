"""Calibration of noise: closed forms against integrals, inverses, simulation."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from letheon.linear._calibrate import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    mismatch_delta,
    mismatch_epsilon,
    mismatch_kl,
    zcdp_gap,
)
from tests.linear.audit import epsilon_lower_bound
from tests.sharded.people import examples

Floats = NDArray[np.float64]

NODES, WEIGHTS = np.polynomial.legendre.leggauss(80)

epsilons = st.floats(1e-6, 50)
deltas = st.floats(-12, -0.05).map(lambda exponent: 10.0**exponent)
shifts = st.floats(-12, 1.3).map(lambda exponent: 10.0**exponent)
spreads = st.floats(-6, 0).map(lambda exponent: 10.0**exponent)


def integral(function: Any, edges: Floats) -> float:
    """Integrate piecewise by Gauss and Legendre."""
    half = np.diff(edges)[:, None] / 2
    points = (edges[:-1, None] + edges[1:, None]) / 2 + half * NODES
    return float(np.sum(half * WEIGHTS * function(points)))


def shift_delta(epsilon: float, mu: float) -> float:
    """Integral of φ(m/2 - epsilon/m) over 0 < m < mu: the derivative of delta in the shift."""

    def density(log_shift: Floats) -> Floats:
        m = np.exp(log_shift)
        return m * np.exp(-((m / 2 - epsilon / m) ** 2) / 2) / math.sqrt(2 * math.pi)

    return integral(density, np.linspace(math.log(mu) - 40, math.log(mu), 400))


def line_delta(epsilon: float, mean: float, variance: float) -> tuple[float, float]:
    """Both hockey-stick divergences of N(mean, variance) and N(0, 1), by quadrature."""
    scale = math.sqrt(variance)
    # The integrand has kinks where the log-ratio is ±epsilon: zeros of two quadratics.
    kinks = []
    for level in (epsilon, -epsilon):
        quadratic = [1 - 1 / variance, 2 * mean / variance]
        quadratic.append(-(mean**2) / variance - math.log(variance) - 2 * level)
        kinks += [root.real for root in np.roots(quadratic) if abs(root.imag) < 1e-12]
    far = 40 * max(scale, 1) + abs(mean)
    inside = [kink for kink in kinks if abs(kink) < far]
    edges = np.unique([*np.linspace(-far, far, 200), *inside])

    def positive_part(x: Floats, sign: int) -> Floats:
        p, q = stats.norm.logpdf(x, mean, scale), stats.norm.logpdf(x)
        first, second = (p, q) if sign > 0 else (q, p)
        excess: Floats = np.exp(first) - np.exp(epsilon + second)
        return np.maximum(excess, 0.0)

    return (
        integral(lambda x: positive_part(x, 1), edges),
        integral(lambda x: positive_part(x, -1), edges),
    )


def test_gaussian_delta_of_known_values() -> None:
    # At epsilon 0 it is the total variation distance; the second value is a tail difference.
    assert gaussian_delta(0.0, 2.0) == pytest.approx(math.erf(1 / math.sqrt(2)), rel=2e-11)
    exact = stats.norm.cdf(-0.5) - math.e * stats.norm.cdf(-1.5)
    assert gaussian_delta(1.0, 1.0) == pytest.approx(exact, rel=1e-10)


@given(epsilons | st.just(0.0), shifts)
def test_gaussian_delta_is_the_integral_and_never_below_it(epsilon: float, mu: float) -> None:
    exact = shift_delta(epsilon, mu)
    delta = gaussian_delta(epsilon, mu)
    assert delta >= exact * (1 - 1e-12)
    assert delta <= max(exact * (1 + 1e-9), 1e-290)


@given(st.floats(0, 5), st.floats(0.01, 4))
@examples(30)
def test_gaussian_delta_is_the_hockey_stick_divergence(epsilon: float, mu: float) -> None:
    forward, backward = line_delta(epsilon, mu, 1.0)
    assert forward == pytest.approx(backward, abs=1e-13)
    assert gaussian_delta(epsilon, mu) == pytest.approx(forward, rel=1e-8, abs=1e-13)


@given(epsilons, shifts, st.floats(1.0001, 3))
def test_gaussian_delta_is_monotone(epsilon: float, mu: float, factor: float) -> None:
    delta = gaussian_delta(epsilon, mu)
    assert gaussian_delta(epsilon, mu * factor) >= delta
    assert gaussian_delta(epsilon * factor, mu) <= delta


def test_limits_of_gaussian_delta() -> None:
    assert gaussian_delta(1.0, 0.0) == 0
    assert gaussian_delta(math.inf, 1.0) == 0
    assert gaussian_delta(1.0, math.inf) == 1
    assert gaussian_delta(5.0, 1e200) == 1
    assert 0 < gaussian_delta(50.0, 1e-300) < 1e-300


@given(epsilons | st.just(0.0), deltas)
def test_gaussian_mu_is_the_largest_safe_shift(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert shift_delta(epsilon, mu) <= delta * (1 + 1e-12)
    assert shift_delta(epsilon, mu * (1 + 1e-8)) > delta


@given(shifts, deltas)
def test_gaussian_epsilon_is_the_smallest_safe_one(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_delta(epsilon, mu) <= delta
    if epsilon > 0:
        smaller = max(epsilon * (1 - 1e-8) - 1e-12, 0.0)
        assert gaussian_delta(smaller, mu) > delta


@given(epsilons, deltas)
def test_epsilon_and_mu_are_inverse(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    # Each errs on its safe side, so that the way back may end a little above the start.
    assert gaussian_epsilon(mu, delta) <= epsilon * (1 + 1e-11) + 1e-12
    assert gaussian_mu(gaussian_epsilon(mu, delta), delta) == pytest.approx(mu, rel=1e-8)


def test_inverses_at_the_ends() -> None:
    assert gaussian_mu(1.0, 0.0) == 0
    assert gaussian_mu(math.inf, 1e-3) == math.inf
    assert gaussian_epsilon(0.0, 0.0) == 0
    assert gaussian_epsilon(1.0, 0.0) == math.inf
    assert gaussian_epsilon(math.inf, 1e-3) == math.inf


@given(epsilons, deltas)
def test_zcdp_gap_is_conservative(epsilon: float, delta: float) -> None:
    log_inverse = -math.log(delta)
    gap = zcdp_gap(epsilon, delta)
    # q solves q² + 2 q sqrt(log 1/delta) = epsilon.
    assert gap * (gap + 2 * math.sqrt(log_inverse)) == pytest.approx(epsilon, rel=1e-12)
    assert math.sqrt(2) * gap < gaussian_mu(epsilon, delta)


def classical_mu(epsilon: float, delta: float) -> float:
    """The shift allowed by sigma = c s / epsilon, c² = 2 log(1.5/delta)."""
    return epsilon / math.sqrt(2 * math.log(1.5 / delta))


def test_budget_is_larger_than_the_classical_one() -> None:
    assert gaussian_mu(1.0, 1e-4) / classical_mu(1.0, 1e-4) == pytest.approx(1.377, abs=1e-3)
    assert gaussian_mu(0.1, 1e-4) / classical_mu(0.1, 1e-4) == pytest.approx(1.789, abs=1e-3)


@pytest.mark.parametrize(("delta", "turn"), [(1e-2, 7.21), (1e-4, 8.38), (1e-6, 9.15)])
def test_classical_formula_is_false_for_large_epsilon(delta: float, turn: float) -> None:
    below, above = turn - 0.02, turn + 0.02
    assert gaussian_delta(below, classical_mu(below, delta)) < delta
    assert gaussian_delta(above, classical_mu(above, delta)) > delta


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-2), (1.0, 1e-4), (3.0, 1e-3)])
def test_simulated_mechanism_keeps_its_claim(epsilon: float, delta: float) -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(2, 100_000))
    sigma = 1 / gaussian_mu(epsilon, delta)
    assert 0.5 * epsilon < epsilon_lower_bound(1 + sigma * noise[0], sigma * noise[1], delta)
    assert epsilon_lower_bound(1 + sigma * noise[0], sigma * noise[1], delta) <= epsilon


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-2), (1.0, 1e-4), (3.0, 1e-3)])
def test_simulated_mechanism_of_half_the_noise_is_caught(epsilon: float, delta: float) -> None:
    rng = np.random.default_rng(2)
    noise = rng.normal(size=(2, 100_000))
    sigma = 0.5 / gaussian_mu(epsilon, delta)
    assert epsilon_lower_bound(1 + sigma * noise[0], sigma * noise[1], delta) > epsilon


@given(st.floats(0, 4), st.just(0.0) | st.floats(1e-6, 2), spreads, st.floats(-1, 1))
@examples(40)
def test_mismatch_bounds_both_directions_on_the_line(
    epsilon: float, mu: float, spread: float, where: float
) -> None:
    bound = mismatch_delta(epsilon, mu, spread, 1)
    exact = line_delta(epsilon, mu, math.exp(where * spread))
    assert max(exact) <= bound * (1 + 1e-9) + 1e-13


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("end", [-1, 1])
def test_mismatch_bounds_the_extremes_on_the_line(mu: float, end: int) -> None:
    for epsilon in (0.1, 1.0, 3.0, 10.0):
        for spread in (1e-3, 0.1, 0.7, 1.5):
            exact = max(line_delta(epsilon, mu, math.exp(end * spread)))
            assert exact <= mismatch_delta(epsilon, mu, spread, 1) * (1 + 1e-9) + 1e-13


def log_ratios(rng: np.random.Generator, mean: Floats, variances: Floats, n: int) -> list[Floats]:
    """Log-ratio of N(mean, variances) to N(0, I) under the first law, and the reverse."""
    noise = rng.normal(size=(2, n, len(mean)))
    under_first, under_second = mean + np.sqrt(variances) * noise[0], noise[1]

    def ratio(x: Floats) -> Floats:
        terms = x**2 - (x - mean) ** 2 / variances - np.log(variances)
        total: Floats = terms.sum(axis=1) / 2
        return total

    return [ratio(under_first), -ratio(under_second)]


@pytest.mark.parametrize("dimension", [2, 10, 60])
@pytest.mark.parametrize("kind", ["up", "down", "mixed"])
def test_mismatch_bounds_many_dimensions(dimension: int, kind: str) -> None:
    rng = np.random.default_rng(dimension)
    spread, mu = 0.5 / math.sqrt(dimension), 0.5
    ones = np.ones(dimension)
    signs = {"up": ones, "down": -ones, "mixed": rng.uniform(-1, 1, dimension)}[kind]
    direction = rng.normal(size=dimension)
    mean = mu * direction / np.linalg.norm(direction)
    variances = np.exp(spread * signs)
    for losses in log_ratios(rng, mean, variances, 20_000):
        for epsilon in (0.3, 1.0, 2.0):
            sampled = np.maximum(-np.expm1(epsilon - losses), 0.0)
            lowest = sampled.mean() - 4 * sampled.std() / math.sqrt(len(losses))
            assert lowest <= mismatch_delta(epsilon, mu, spread, dimension)


def equal_spread_delta(epsilon: float, spread: float, dimension: int) -> float:
    """Exact delta of N(0, e^t I) against N(0, I): both tails are chi-square."""
    radius = (2 * epsilon + spread * dimension) / -math.expm1(-spread)
    first = stats.chi2.sf(radius * math.exp(-spread), dimension)
    return float(first - math.exp(epsilon) * stats.chi2.sf(radius, dimension))


@pytest.mark.parametrize(("spread", "dimension"), [(0.5, 1), (0.1, 20), (0.02, 785), (0.05, 785)])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_mismatch_without_shift_is_near_the_chi_square_truth(
    spread: float, dimension: int, epsilon: float
) -> None:
    exact = equal_spread_delta(epsilon, spread, dimension)
    bound = mismatch_delta(epsilon, 0.0, spread, dimension)
    # An order-based bound loses a factor that grows slowly with log(1/delta).
    assert exact <= bound <= 25 * exact


def split_bound(epsilon: float, mu: float, spread: float, dimension: int) -> float:
    """Equation (2) as it is written, over a plain grid of orders and splits."""
    order = np.geomspace(1e-3, 1, 2_000)[:-1] / math.expm1(spread)
    cost = -order * spread - np.log(1 + order - order * math.exp(spread))
    log_c = order * np.log(order) - (1 + order) * np.log(1 + order)
    shift = mu * math.exp(spread / 2)
    return min(
        math.exp(min(float(np.min(log_c + dimension * cost / 2 - order * a)), 0.0))
        + math.exp(a) * gaussian_delta(epsilon - a, shift)
        for a in np.linspace(0, epsilon, 2_000)
    )


@pytest.mark.parametrize(
    ("epsilon", "mu", "spread", "dimension"),
    [(1.0, 0.3, 0.001, 50), (3.0, 1.0, 0.01, 5), (2.0, 1.0, 0.002, 785), (5.0, 2.0, 0.03, 3)],
)
def test_mismatch_is_the_equation_of_its_proof(
    epsilon: float, mu: float, spread: float, dimension: int
) -> None:
    expected = split_bound(epsilon, mu, spread, dimension)
    assert mismatch_delta(epsilon, mu, spread, dimension) == pytest.approx(expected, rel=1e-2)


@given(epsilons, shifts, st.integers(1, 10_000))
def test_no_mismatch_is_the_plain_gaussian(epsilon: float, mu: float, dimension: int) -> None:
    assert mismatch_delta(epsilon, mu, 0.0, dimension) == gaussian_delta(epsilon, mu)
    # Continuous at 0, too.
    nearly = mismatch_delta(epsilon, mu, 1e-15, dimension)
    assert gaussian_delta(epsilon, mu) <= nearly
    if mu > 1e-3 and gaussian_delta(epsilon, mu) > 1e-20:
        assert nearly == pytest.approx(gaussian_delta(epsilon, mu), rel=1e-3)


@given(st.floats(0.01, 20), shifts, spreads, st.integers(1, 3_000), st.floats(1.05, 3))
@examples(60)
def test_mismatch_delta_is_monotone(
    epsilon: float, mu: float, spread: float, dimension: int, factor: float
) -> None:
    # The candidates for the split differ between calls: equal within the width of their grid.
    delta = mismatch_delta(epsilon, mu, spread, dimension)
    less = delta * 0.98
    assert mismatch_delta(epsilon, mu * factor, spread, dimension) >= less
    assert mismatch_delta(epsilon, mu, spread * factor, dimension) >= less
    assert mismatch_delta(epsilon, mu, spread, dimension + 1) >= less
    assert mismatch_delta(epsilon * factor, mu, spread, dimension) <= delta / 0.98


@given(shifts, spreads, st.integers(1, 3_000), deltas)
@examples(60)
def test_mismatch_epsilon_is_the_smallest_safe_one(
    mu: float, spread: float, dimension: int, delta: float
) -> None:
    epsilon = mismatch_epsilon(mu, spread, dimension, delta)
    assert mismatch_delta(epsilon, mu, spread, dimension) <= delta
    assert epsilon >= gaussian_epsilon(mu, delta) * (1 - 1e-9)
    if epsilon > 0:
        assert mismatch_delta(epsilon * (1 - 1e-3), mu, spread, dimension) > delta * 0.98


def test_mismatch_at_the_ends() -> None:
    assert mismatch_delta(1.0, 1.0, 1e3, 3) == 1
    assert mismatch_delta(1.0, math.inf, 0.1, 3) == 1
    assert mismatch_epsilon(1.0, 1e3, 3, 1e-4) == math.inf
    assert mismatch_epsilon(0.0, 0.1, 3, 0.0) == math.inf
    assert mismatch_epsilon(0.5, 0.0, 3, 1e-4) == gaussian_epsilon(0.5, 1e-4)


@given(st.floats(0, 5), st.floats(0, 2), st.floats(-1, 1), st.integers(1, 50))
def test_mismatch_kl_bounds_both_divergences(
    mu: float, spread: float, where: float, dimension: int
) -> None:
    log_variance = where * spread
    forward = (mu**2 + dimension * (math.expm1(log_variance) - log_variance)) / 2
    scaled = mu**2 * math.exp(-log_variance)
    backward = (scaled + dimension * (math.expm1(-log_variance) + log_variance)) / 2
    bound = mismatch_kl(mu, spread, dimension)
    assert max(forward, backward) <= bound * (1 + 1e-9) + 1e-12
    assert mismatch_kl(mu, 0.0, dimension) == mu * mu / 2


@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_impossible_arguments_never_pass_as_safe(bad: float) -> None:
    calls: list[tuple[Callable[..., float], tuple[float, ...]]] = [
        (gaussian_delta, (bad, 1.0)),
        (gaussian_delta, (1.0, bad)),
        (gaussian_epsilon, (bad, 1e-3)),
        (gaussian_mu, (1.0, bad)),
        (zcdp_gap, (bad, 1e-3)),
        (mismatch_delta, (1.0, 1.0, bad, 1)),
        (mismatch_epsilon, (1.0, bad, 1, 1e-3)),
    ]
    for function, arguments in calls:
        with pytest.raises(ValueError, match="must be a non-negative number"):
            function(*arguments)
    with pytest.raises(ValueError, match="dimension"):
        mismatch_delta(1.0, 1.0, 0.1, 0)
