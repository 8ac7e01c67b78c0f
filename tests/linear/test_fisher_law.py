"""What noise hides: bounds of shift, spread and directions, against exact laws."""

from itertools import product
from math import exp, inf, nan, sqrt
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from letheon.linear._calibrate import ReleaseGrid, gaussian_mu, mismatch_delta
from letheon.linear._fisher_law import (
    COVARIANCE_ERROR,
    Closeness,
    HessianBounds,
    NoiseLimits,
    ReleaseNoise,
)
from letheon.linear._fisher_walk import FisherAccount
from tests.linear.test_fisher_noise import power

Floats = NDArray[np.float64]


def law(**changes: Any) -> ReleaseNoise:
    settings: dict[str, Any] = {
        "grid": ReleaseGrid.of_sigma(0.1),
        "isotropic": False,
        "epsilon": 1.0,
        "delta": 1e-4,
        "tolerance": 0.0,
        "ridge": 2.0,
        "n_rows": 100,
        "size": 3,
    }
    return ReleaseNoise(**(settings | changes))


def close_matrices(seed: int, tau: float, ridge: float) -> tuple[Floats, Floats, float]:
    """F = A + ridge I and F' = B + ridge I with e^-tau A <= B <= e^tau A; and the freedom of F."""
    rng = np.random.default_rng(seed)
    d, n = int(rng.integers(1, 8)), int(rng.integers(1, 20))
    rows = rng.normal(size=(n, d)) * rng.exponential(size=(n, 1))
    weights = rng.exponential(size=n)
    signs = rng.choice([-1.0, 1.0, rng.uniform(-1, 1)], size=n)
    changed = weights * np.exp(tau * signs)
    A, B = (rows.T * weights) @ rows, (rows.T * changed) @ rows
    F = A + ridge * np.eye(d)
    return F, B + ridge * np.eye(d), float(np.trace(np.linalg.solve(F, A)))


def log_ratios(F: Floats, other: Floats) -> Floats:
    """Logarithms of the eigenvalues of one covariance relative to the other."""
    ratio = power(F, 0.25) @ power(other, -0.5) @ power(F, 0.25)
    return np.asarray(np.log(np.linalg.eigvalsh((ratio + ratio.T) / 2)))


def order_term(u: Floats, order: float) -> Floats:
    """K of `mismatch_delta`."""
    return np.asarray(-(order * u + np.log(1 + order - order * np.exp(u))) / 2)


@given(
    seed=st.integers(0, 10**6),
    tau=st.floats(1e-3, 1.5),
    ridge=st.sampled_from([1e-3, 0.3, 10.0]),
    share=st.floats(0.01, 0.99),
)
def test_few_directions_count(seed: int, tau: float, ridge: float, share: float) -> None:
    F, other, freedom = close_matrices(seed, tau, ridge)
    u, t = log_ratios(F, other), tau / 2
    assert np.abs(u).max() <= t + 1e-9
    assert np.abs(u).sum() <= exp(2 * t) * freedom * t + 1e-9
    order = share / np.expm1(t)
    for logs in (u, -u):
        total = order_term(logs, order).sum()
        assert total <= exp(2 * t) * freedom * order_term(np.array(t), order) + 1e-9
        assert np.sum(np.expm1(logs) - logs) <= exp(2 * t) * freedom * (np.expm1(t) - t) + 1e-9


@given(
    seed=st.integers(0, 10**6),
    tau=st.floats(0.0, 1.5),
    ridge=st.sampled_from([1e-3, 0.3, 10.0]),
    share=st.floats(0.01, 0.99),
)
def test_directions_that_count_pay_for_rounding_too(
    seed: int, tau: float, ridge: float, share: float
) -> None:
    """Covariances as drawn lie within e^(+-c) of those of the definition."""
    F, other, freedom = close_matrices(seed, tau, ridge)
    rng, error = np.random.default_rng(seed), 2 * COVARIANCE_ERROR
    u = log_ratios(F, other) + rng.choice([-error, error], size=len(F))
    spread = tau / 2 + error
    shape = HessianBounds(1.0, freedom, len(F), 1.0, 1.0)
    order = share / np.expm1(spread)
    for logs in (u, -u):
        bound = shape.effective_dimension(spread) * order_term(np.array(spread), order)
        assert order_term(logs, order).sum() <= bound + 1e-9
        assert (
            np.sum(np.expm1(logs) - logs)
            <= shape.effective_dimension(spread) * (np.expm1(spread) - spread) + 1e-9
        )


@given(freedom=st.floats(0.0, 50.0), spreads=st.tuples(st.floats(0, 1.2), st.floats(0, 1.2)))
def test_what_counts_grows_with_the_spread(freedom: float, spreads: tuple[float, float]) -> None:
    """So the limit of the spread covers every smaller one."""
    shape, error = HessianBounds(1.0, freedom, 40, 1.0, 1.0), 2 * COVARIANCE_ERROR
    small, large = (error + each for each in sorted(spreads))
    order = 0.5 / np.expm1(large)
    totals = [shape.effective_dimension(t) * order_term(np.array(t), order) for t in (small, large)]
    assert totals[0] <= totals[1] * (1 + 1e-9) + 1e-15


@pytest.mark.parametrize("freedom", [1.0, 3.5, 30.0, 700.0])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-4), (8.0, 1e-2)])
def test_limits_keep_the_promise_and_waste_little(
    freedom: float, epsilon: float, delta: float
) -> None:
    shape = HessianBounds(top=5.0, freedom=freedom, size=1000, radius=1.0, concordance=1.0)
    noise = law(epsilon=epsilon, delta=delta, size=1000)
    limits = noise.compute_limits(shape)
    assert freedom <= shape.freedom_on_grid < 1.2 * freedom
    charged = (1 + exp(epsilon)) * noise.gap
    assert 0 < charged < 1e-3 * delta

    def spent(spread: float) -> float:
        return charged + mismatch_delta(
            epsilon, limits.shift, spread, shape.effective_dimension(spread)
        )

    assert spent(limits.spread) <= delta < spent(1.1 * limits.spread)
    assert 0 < limits.shift < gaussian_mu(epsilon, delta)
    dimension = shape.effective_dimension(limits.spread)
    at_the_corner = Closeness(limits.shift, limits.spread, dimension, noise.gap)
    assert limits.can_hide(at_the_corner)
    assert limits.share_used(at_the_corner) == 1.0
    assert at_the_corner.epsilon_at(delta) <= epsilon * (1 + 1e-6)


def test_isotropic_noise_hides_what_the_grid_hides() -> None:
    isotropic, grid = law(isotropic=True), ReleaseGrid.of_sigma(0.1)
    limits, closeness = isotropic.compute_limits(None), isotropic.bound_closeness(0.4, 3.0, None)
    hidden = grid.max_hidden_distance(1.0, 1e-4, 3)
    assert limits.shift * grid.scale - sqrt(3) == pytest.approx(hidden / grid.step, rel=1e-9)
    assert closeness.shift == pytest.approx(
        (0.4 / 2.0 / grid.step + sqrt(3)) / grid.scale, rel=1e-8
    )
    assert closeness.epsilon_at(1e-4) == pytest.approx(grid.compute_epsilon(0.2, 1e-4, 3), rel=1e-6)
    assert (closeness.spread, limits.spread) == (0.0, 0.0)


def test_the_stop_rule_of_a_retrain_and_the_grid_count() -> None:
    shape = HessianBounds(top=5.0, freedom=3.0, size=3, radius=10.0, concordance=1.0)
    grid = ReleaseGrid(2.0**-10, 100)
    loose = law(grid=grid, tolerance=0.2).bound_closeness(0.4, 0.01, shape)
    steps = 0.3 / grid.step + sqrt(3)
    scale = ((5.0 + 2.0) / 100) ** 0.25 * exp(COVARIANCE_ERROR / 2)
    assert loose.shift == pytest.approx(scale * steps / 100, rel=1e-8)
    assert loose.spread == pytest.approx((0.01 + 10.0 * 0.3) / 2 + 2 * COVARIANCE_ERROR)


BAD = (nan, inf)


@pytest.mark.parametrize("bad", BAD)
def test_what_is_not_known_is_not_hidden(bad: float) -> None:
    shape = HessianBounds(top=5.0, freedom=3.0, size=3, radius=10.0, concordance=1.0)
    noise, limits = law(), law().compute_limits(shape)
    settings = {"shift": bad}, {"spread": bad}
    cases = [Closeness(**values) for values in settings]
    cases += [noise.bound_closeness(bad, 0.0, shape), noise.bound_closeness(0.0, bad, shape)]
    spoilt: list[dict[str, float]] = [{"top": bad}, {"radius": bad}, {"concordance": bad}]
    for values in spoilt:
        known: dict[str, Any] = {"top": 5.0, "radius": 10.0, "concordance": 1.0}
        cases.append(
            noise.bound_closeness(0.0, 0.0, HessianBounds(freedom=3.0, size=3, **(known | values)))
        )
    for case in cases:
        assert not limits.can_hide(case)
        assert limits.share_used(case) == inf
        assert case.epsilon_at(1e-4) == inf
        assert case.kl == inf
        assert not np.isnan([case.shift, case.spread, case.dimension, case.gap]).any()
    assert FisherAccount(Closeness(), nan).used == inf
    # Degrees of freedom that are not known are all there are.
    assert HessianBounds(5.0, bad, 3, 10.0, 1.0).freedom_on_grid == 3.0
    assert Closeness(0.1, gap=bad).epsilon_at(1e-4) == inf


@pytest.mark.parametrize("ridge", [1e-30, 1e-300, 5e-324])
def test_a_ridge_too_small_for_the_integers_hides_nothing(ridge: float) -> None:
    shape = HessianBounds(top=5.0, freedom=3.0, size=3, radius=10.0, concordance=1.0)
    noise = law(ridge=ridge)
    assert noise.gap == inf
    assert not noise.compute_limits(shape).can_hide(noise.bound_closeness(0.0, 0.0, shape))


def test_without_noise_the_distance_is_kept_small() -> None:
    shape = HessianBounds(top=5.0, freedom=3.0, size=3, radius=10.0, concordance=1.0)
    silent = law(grid=None, tolerance=100.0)
    assert silent.compute_limits(shape).can_hide(silent.bound_closeness(1.9e-4, 9.0, shape))
    assert not silent.compute_limits(shape).can_hide(silent.bound_closeness(2.1e-4, 0.0, shape))


# Exact laws in one and two dimensions. The steps are so large that rounding shows.


def corner(size: int, epsilon: float, delta: float) -> tuple[NoiseLimits, HessianBounds]:
    """Return what noise of twenty steps hides at most, in all directions."""
    shape = HessianBounds(top=0.0, freedom=float(size), size=size, radius=1.0, concordance=1.0)
    limits = law(grid=ReleaseGrid(1.0, 20), epsilon=epsilon, delta=delta, size=size).compute_limits(
        shape
    )
    return limits, shape


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-2), (1.0, 1e-4), (3.0, 1e-6)])
def test_the_exact_delta_in_one_dimension_is_below_the_stated_one(
    epsilon: float, delta: float
) -> None:
    limits, _ = corner(1, epsilon, delta)
    scale = 20.0
    with mpmath.workdps(30):
        # Rounded normal laws, the second in either direction narrower or wider.
        for sign in (-1, 1):
            other = scale * mpmath.exp(sign * limits.spread / 2)
            shift = limits.shift * scale
            integers = range(int(-14 * scale), int(14 * scale))
            first = [rounded_normal(z, mpmath.mpf(0), mpmath.mpf(scale)) for z in integers]
            second = [rounded_normal(z, mpmath.mpf(shift), other) for z in integers]
            for p, q in ((first, second), (second, first)):
                pairs = zip(p, q, strict=True)
                exact = mpmath.fsum(max(a - mpmath.exp(epsilon) * b, 0) for a, b in pairs)
                assert exact <= delta


def rounded_normal(z: int, mean: mpmath.mpf, scale: mpmath.mpf) -> mpmath.mpf:
    """Return the probability that a normal number rounds to z."""
    low, high = (z - 0.5 - mean) / scale, (z + 0.5 - mean) / scale
    if low > 0:
        low, high = -high, -low
    return mpmath.ncdf(high) - mpmath.ncdf(low)


def test_the_exact_delta_in_two_dimensions_is_below_the_stated_one() -> None:
    epsilon, delta = 1.0, 1e-3
    limits, _ = corner(2, epsilon, delta)
    points = np.stack(np.meshgrid(*2 * [np.arange(-160, 161)]), axis=-1).reshape(-1, 2)

    def density(mean: Floats, covariance: Floats) -> Floats:
        away = points - mean
        energy = np.einsum("ij,jk,ik->i", away, np.linalg.inv(covariance), away) / 2
        return np.asarray(np.exp(-energy) / (2 * np.pi * np.sqrt(np.linalg.det(covariance))))

    removal = density(np.zeros(2), 400 * np.eye(2))
    for first, second, angle in product((-1, 1), (-1, 1), (0.0, 0.8)):
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        spreads = np.exp(limits.spread * np.array([first, second]))
        covariance = 400 * turn @ np.diag(spreads) @ turn.T
        retrain = density(np.array([limits.shift * 20, 0.0]), covariance)
        for p, q in ((removal, retrain), (retrain, removal)):
            assert np.maximum(p - exp(epsilon) * q, 0.0).sum() <= delta
