"""Releases on a grid: what is hidden is hidden, by exact sums over the integers."""

import itertools
import math

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.linear._calibrate import ReleaseGrid, gaussian_mu, rounding_gap
from letheon.noise import NoiseSource


def discrete_law(scale: int) -> tuple[list[int], list[mpmath.mpf]]:
    """Return integers and their exact probabilities, of all but a mass below 1e-40."""
    integers = list(range(-14 * scale, 14 * scale + 1))
    weights = [mpmath.exp(-mpmath.mpf(z * z) / (2 * scale * scale)) for z in integers]
    total = mpmath.fsum(weights)
    return integers, [weight / total for weight in weights]


@pytest.mark.parametrize("scale", [8, 9, 16, 40])
def test_the_gap_to_a_rounded_normal_is_bounded(scale: int) -> None:
    with mpmath.workdps(40):
        integers, law = discrete_law(scale)

        def below(x: float) -> mpmath.mpf:
            return mpmath.ncdf(mpmath.mpf(x) / scale)

        gap = mpmath.fsum(
            abs(p - (below(z + 0.5) - below(z - 0.5))) for z, p in zip(integers, law, strict=True)
        )
        assert gap / 2 + mpmath.mpf("1e-35") <= rounding_gap(scale)
        assert gap / 2 > rounding_gap(scale) / 10, "the bound says something"


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.5, 1e-2), (1.0, 1e-3), (3.0, 1e-6), (2.0, 1e-15)]
)
@pytest.mark.parametrize("scale", [40, 100])
def test_the_exact_delta_is_below_the_stated_one(scale: int, epsilon: float, delta: float) -> None:
    grid = ReleaseGrid(1.0, scale)
    # Rounding may move the two vectors apart by one more step.
    shift = math.floor(grid.max_hidden_distance(epsilon, delta, 1) + 1)
    assert shift >= 1
    with mpmath.workdps(30):
        integers, law = discrete_law(scale)
        known = dict(zip(integers, law, strict=True))
        factor = mpmath.exp(epsilon)
        exact = mpmath.fsum(
            max(p - factor * known.get(z - shift, mpmath.mpf(0)), mpmath.mpf(0))
            for z, p in known.items()
        )
    assert exact <= delta
    assert float(exact) <= grid.compute_delta(epsilon, shift - 1, 1) <= 1.01 * delta
    assert grid.compute_epsilon(shift - 1, delta, 1) <= 1.01 * epsilon
    wide = math.ceil(grid.scale * gaussian_mu(epsilon, delta) * 1.2)
    assert grid.compute_delta(epsilon, wide, 1) > delta, "a larger distance is not covered"


def test_the_exact_delta_in_two_dimensions_is_below_the_stated_one() -> None:
    grid, epsilon, delta = ReleaseGrid(1.0, 12), 1.0, 0.05
    reach = grid.max_hidden_distance(epsilon, delta, 2) + math.sqrt(2)
    integers = np.arange(-130, 131)
    weights = np.exp(-(integers**2) / (2.0 * grid.scale**2))
    law = weights / weights.sum()
    joint = np.outer(law, law)
    shifts = [
        (a, b) for a, b in itertools.product(range(-8, 9), repeat=2) if math.hypot(a, b) <= reach
    ]
    assert len(shifts) > 20
    for a, b in shifts:
        other = np.roll(joint, (a, b), axis=(0, 1))
        exact = np.maximum(joint - math.exp(epsilon) * other, 0.0).sum()
        assert exact <= delta


def test_pure_noise_hides_without_delta() -> None:
    grid, epsilon, size = ReleaseGrid(1.0, 50), 1.5, 3
    reach = grid.max_hidden_distance(epsilon, 0.0, size)
    # The farthest vector in steps: along the diagonal, and one more step each for rounding.
    steps = size * (reach / math.sqrt(size) + 1)
    assert steps / grid.scale <= epsilon
    assert ReleaseGrid(1.0, 1).max_hidden_distance(epsilon, 0.0, size) == 0.0


@given(sigma=st.floats(1e-99, 1e99), seed=st.integers(0, 2**32), n=st.integers(1, 5))
def test_a_release_lies_on_the_grid_whatever_is_released(sigma: float, seed: int, n: int) -> None:
    grid = ReleaseGrid.of_sigma(sigma)
    assert math.frexp(grid.step)[0] == 0.5
    assert 1 << 20 <= grid.scale <= 1 << 21
    assert grid.sigma >= sigma
    weights = np.random.default_rng(seed).normal(size=(n, 2)) * sigma
    released = grid.release(weights, NoiseSource(seed))
    steps = released / grid.step
    np.testing.assert_array_equal(steps, np.rint(steps))
    noise = NoiseSource(seed).discrete_normals((n, 2), grid.scale)
    np.testing.assert_array_equal(steps - noise, np.rint(weights / grid.step))


def test_far_parameters_stay_on_the_grid_and_no_farther_apart() -> None:
    grid = ReleaseGrid.of_sigma(1e-9)
    near, far = (grid.release(np.array([value]), NoiseSource(5)) for value in (3e9, 1e300))
    np.testing.assert_array_equal(near, far)
    assert np.isfinite(grid.release(np.array([-1e308, 1e308]), NoiseSource(6))).all()


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf, math.nan, 1e-200])
def test_a_sigma_that_gives_no_grid_is_refused(sigma: float) -> None:
    with pytest.raises(ValueError, match="must be a number"):
        ReleaseGrid.of_sigma(sigma)


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("delta", [1e-3, 0.0])
def test_what_is_hidden_has_spent_all_of_epsilon(size: int, delta: float) -> None:
    grid = ReleaseGrid(2.0**-10, 1000)
    hidden = grid.max_hidden_distance(1.0, delta, size)
    assert 1.0 - 1e-6 <= grid.compute_epsilon(hidden, delta, size) <= 1.05


def test_a_commitment_depends_on_its_salt() -> None:
    grid, weights = ReleaseGrid.of_sigma(1.0), np.ones((2, 1))
    released = grid.release(weights, NoiseSource(1))
    first, second = (grid.commit_noise(released, weights, salt * 32) for salt in ("00", "01"))
    assert first != second


def test_a_delta_that_the_charge_uses_up_hides_nothing() -> None:
    assert ReleaseGrid(1.0, 8).max_hidden_distance(1.0, 1e-8, 2) == 0.0
    assert ReleaseGrid.of_sigma(1.0).noise_charge(1.0, 784) < 1e-9
