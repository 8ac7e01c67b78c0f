import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.measures.attacks import ForgettingQuality, forgetting_epsilon, forgetting_points
from tests.sharded.people import examples


def slow_epsilon(u: Any, r: Any, buffer: float = 2.0, per_unit: int = 50) -> float:
    """The challenge's rules on a grid of thresholds (half as dense as there)."""
    positive, negative = (r, u) if np.median(r) > np.median(u) else (u, r)
    both = np.concatenate([u, r])
    grid = np.linspace(both.min(), both.max(), math.ceil(np.ptp(both) * per_unit))[:, None]
    rates = [((negative >= grid).mean(axis=1), (positive < grid).mean(axis=1))]
    narrow, broad = (r, u) if np.ptp(u) >= np.ptp(r) else (u, r)
    width = np.ptp(narrow)
    first, last = narrow.min() + width - buffer, narrow.max() + buffer
    for right in np.linspace(first, last, math.ceil((last - first) * per_unit)):
        left = right - width + np.linspace(-buffer, buffer, int(2 * buffer * per_unit))[:, None]
        fpr = ((left <= broad) & (broad <= right)).mean(axis=1)
        fnr = 1 - ((left <= narrow) & (narrow <= right)).mean(axis=1)
        rates.append((fpr, fnr))
    return max(_worst(*each) for each in rates)


def _worst(fpr: Any, fnr: Any) -> float:
    if ((fpr < 1e-12) & (fnr < 1e-12)).any():
        return 50.0
    usable = (fpr > 1e-12) & (fnr > 1e-12)
    fpr, fnr = fpr[usable], fnr[usable]
    with np.errstate(all="ignore"):
        both = np.log([(1 - 1e-5 - fpr) / fnr, (1 - 1e-5 - fnr) / fpr])
    return float(np.nanmax([0.0, *both.ravel()]))


@examples(10)
@given(st.integers(0, 10**6), st.floats(0, 2), st.floats(0.5, 2))
def test_epsilon_is_that_of_the_challenge_or_a_little_more(
    seed: int, shift: float, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    u, r = rng.normal(size=32), rng.normal(shift, scale, size=32)
    (epsilon,) = forgetting_epsilon(u[:, None], r[:, None])
    slow = slow_epsilon(u, r)
    # every margin is a threshold here, so that none falls between two points of the grid
    assert slow - 1e-9 <= epsilon <= slow + 0.7


def test_the_larger_logarithm_counts() -> None:
    # threshold 1: FNR = 2/4, FPR = 1/4
    u, r = np.array([[0.0], [0.5], [1.0], [2.0]]), np.array([[-1.0], [-0.5], [0.2], [1.5]])
    (epsilon,) = forgetting_epsilon(u, r, double=False)
    candidates = []
    for t in np.concatenate([u, r]).ravel():
        fnr, fpr = (u < t).mean(), (r >= t).mean()
        if fnr > 0 and fpr > 0:
            candidates += [
                math.log(max(1 - 1e-5 - a, 1e-300) / b) for a, b in ((fpr, fnr), (fnr, fpr))
            ]
    assert epsilon == pytest.approx(max(candidates))


@pytest.mark.parametrize("n", [64, 256])
def test_equal_laws_give_the_known_floor(n: int) -> None:
    rng = np.random.default_rng(n)
    epsilon = forgetting_epsilon(rng.normal(size=(n, 300)), rng.normal(size=(n, 300)), double=False)
    assert epsilon.mean() == pytest.approx(1.1, abs=0.15)
    assert forgetting_points(epsilon, n).mean() == pytest.approx(0.36, abs=0.05)


def test_both_kinds_of_rules_lower_the_floor_to_what_the_note_says() -> None:
    rng = np.random.default_rng(0)
    epsilon = forgetting_epsilon(rng.normal(size=(64, 200)), rng.normal(size=(64, 200)))
    assert forgetting_points(epsilon, 64).mean() == pytest.approx(0.18, abs=0.04)


@pytest.mark.parametrize(
    ("u", "r", "expected"),
    [
        ([0.0, 1.0], [5.0, 6.0], 50),
        ([0.0, 0.001], [-1.0, 1.0], 50),
        ([3.0, 3.0], [3.0, 3.0], 0),
        ([3.0, 3.0], [4.0, 4.0], 50),
    ],
)
def test_special_cases(u: list[float], r: list[float], expected: float) -> None:
    assert forgetting_epsilon(np.array([u]).T, np.array([r]).T)[0] == expected


def test_points_halve_and_end() -> None:
    last = math.ceil(math.log(99)) - 0.5
    points = forgetting_points([0, 0.49, 0.5, 1.0, last, last + 0.5], 100)
    assert points.tolist() == [1, 1, 0.5, 0.25, 0.5**9, 0]


def test_shapes_and_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="unlearned and retrained must have the same shape"):
        forgetting_epsilon(np.zeros((3, 2)), np.zeros((2, 2)))
    with pytest.raises(ValueError, match="at least 32"):
        ForgettingQuality(n_models=16)
