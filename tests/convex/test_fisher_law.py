"""What noise hides: bounds of shift, spread and directions, against exact Gaussians."""

from math import ceil, exp, inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from letheon.convex._calibrate import gaussian_mu, mismatch_delta
from letheon.convex._fisher_law import Closeness, Law, Limits, Shape
from tests.convex.test_fisher_noise import power

Floats = NDArray[np.float64]


def law(**changes: Any) -> Law:
    settings: dict[str, Any] = {
        "sigma": 0.1,
        "isotropic": False,
        "epsilon": 1.0,
        "delta": 1e-4,
        "tolerance": 0.0,
        "ridge": 2.0,
        "n_rows": 100,
    }
    return Law(**(settings | changes))


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


@pytest.mark.parametrize("freedom", [1.0, 3.5, 30.0, 700.0])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-4), (8.0, 1e-2)])
def test_limits_keep_the_promise_and_waste_little(
    freedom: float, epsilon: float, delta: float
) -> None:
    shape = Shape(top=5.0, freedom=freedom, size=1000, radius=1.0, concordance=1.0)
    limits = law(epsilon=epsilon, delta=delta).limits(shape)
    assert freedom <= shape.rounded_freedom < 1.2 * freedom

    def spent(spread: float) -> float:
        directions = ceil(exp(2 * spread) * shape.rounded_freedom)
        return mismatch_delta(epsilon, limits.shift, spread, min(directions, 1000))

    assert spent(limits.spread) <= delta < spent(1.1 * limits.spread)
    assert 0 < limits.shift < gaussian_mu(epsilon, delta)
    at_the_corner = Closeness(limits.shift, limits.spread, shape.dimension(limits.spread))
    assert limits.hide(at_the_corner)
    assert limits.share(at_the_corner) == 1.0
    assert at_the_corner.epsilon(delta) <= epsilon * (1 + 1e-6)


def test_isotropic_noise_hides_the_whole_shift() -> None:
    isotropic = law(isotropic=True)
    shape = Shape(top=5.0, freedom=3.0, size=3, radius=10.0, concordance=1.0)
    assert isotropic.limits(shape) == Limits(gaussian_mu(1.0, 1e-4), inf)
    found = isotropic.closeness(0.4, 3.0, shape)
    assert found == Closeness(0.4 / 2.0 / 0.1)


def test_the_stop_rule_of_a_retrain_counts() -> None:
    shape = Shape(top=5.0, freedom=3.0, size=3, radius=10.0, concordance=1.0)
    loose = law(tolerance=0.2).closeness(0.4, 0.01, shape)
    assert loose.shift == pytest.approx(((5.0 + 2.0) / 100) ** 0.25 * 0.3 / 0.1)
    assert loose.spread == pytest.approx((0.01 + 10.0 * 0.3) / 2)


def test_rounding_of_a_matrix_that_lost_a_long_row_counts() -> None:
    shape = Shape(top=5.0, freedom=3.0, size=3, radius=10.0, concordance=1.0, rounding=0.5)
    assert law().closeness(0.0, 0.0, shape).spread == 0.25


def test_not_a_number_is_not_hidden() -> None:
    limits = Limits(1.0, inf)
    assert not limits.hide(Closeness(shift=float("nan")))
    assert not limits.hide(Closeness(shift=0.0, spread=float("nan")))


def test_without_noise_the_distance_is_kept_small() -> None:
    shape = Shape(top=5.0, freedom=3.0, size=3, radius=10.0, concordance=1.0)
    silent = law(sigma=0.0, tolerance=100.0)
    assert silent.limits(shape).hide(silent.closeness(1.9e-4, 9.0, shape))
    assert not silent.limits(shape).hide(silent.closeness(2.1e-4, 0.0, shape))
