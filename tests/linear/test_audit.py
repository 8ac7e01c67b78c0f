"""The audit of certificates: never too high, and high enough to catch a false claim."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from letheon.linear._calibrate import gaussian_epsilon, gaussian_mu
from tests.linear import audit
from tests.linear.audit import epsilon_lower_bound

Rows = NDArray[np.float64]


def shifted(rng: np.random.Generator, n: int, p: int, mu: float) -> tuple[Rows, Rows]:
    """Samples of two Gaussians that are `mu` apart along the diagonal."""
    return rng.normal(size=(n, p)) + mu / math.sqrt(p), rng.normal(size=(n, p))


def responses(rng: np.random.Generator, n: int, epsilon: float, delta: float) -> tuple[Rows, Rows]:
    """The worst pair at (epsilon, delta): a bit told truly or not, and sometimes for certain."""
    wrong = (1 - delta) / (1 + math.exp(epsilon))
    law = [delta, 1 - delta - wrong, wrong, 0.0]
    values = np.array([2.0, 1.0, -1.0, -2.0])
    return rng.choice(values, n, p=law), -rng.choice(values, n, p=law)


def n_false_alarms(bound: Any, epsilon: float, delta: float, n_runs: int) -> int:
    rng = np.random.default_rng(5)
    runs = (responses(rng, 200, epsilon, delta) for _ in range(n_runs))
    return sum(bound(a, b, delta, 0.9, seed=k) > epsilon for k, (a, b) in enumerate(runs))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 0.0), (1.0, 0.05), (3.0, 0.01)])
def test_bound_exceeds_the_truth_no_more_often_than_allowed(epsilon: float, delta: float) -> None:
    n_runs = 100
    allowed = stats.binom.isf(1e-4, n_runs, 0.1)
    assert n_false_alarms(epsilon_lower_bound, epsilon, delta, n_runs) <= allowed


def test_choosing_and_judging_on_the_same_rows_is_a_false_alarm() -> None:
    def without_split(a: Rows, b: Rows) -> float:
        scores = audit._RowScores(a, b)
        a, b = scores(a), scores(b)
        right, wrong = audit._guesses(audit._choose(a, b, 0.0), a, b)
        return audit._bound(right, wrong, len(a) + len(b), 0.0, 0.1)

    rng = np.random.default_rng(2)
    pairs = [shifted(rng, 200, 3, 0.0) for _ in range(200)]
    allowed = stats.binom.isf(1e-4, len(pairs), 0.1)
    assert sum(epsilon_lower_bound(a, b, 0.0, 0.9) > 0 for a, b in pairs) <= allowed
    assert sum(without_split(a, b) > 0 for a, b in pairs) > allowed


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("delta", [1e-2, 1e-4])
def test_honest_gaussian_raises_no_alarm(p: int, delta: float) -> None:
    rng = np.random.default_rng(p)
    mu = gaussian_mu(1.0, delta)
    bounds = [epsilon_lower_bound(*shifted(rng, 2_000, p, mu), delta) for _ in range(20)]
    assert max(bounds) <= 1.0


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(("delta", "caught"), [(1e-2, 20), (1e-3, 18), (1e-4, 13)])
def test_epsilon_of_three_claimed_as_one_is_caught(p: int, delta: float, caught: int) -> None:
    rng = np.random.default_rng(10 + p)
    mu = gaussian_mu(3.0, delta)
    bounds = [epsilon_lower_bound(*shifted(rng, 2_000, p, mu), delta) for _ in range(20)]
    assert sum(bound > 1 for bound in bounds) >= caught


def test_more_samples_bring_the_bound_nearer() -> None:
    rng = np.random.default_rng(3)
    few, many = (epsilon_lower_bound(*shifted(rng, n, 1, 1.0), 1e-3) for n in (1_000, 100_000))
    assert few < many <= gaussian_epsilon(1.0, 1e-3)


def test_difference_of_spread_alone_is_seen() -> None:
    rng = np.random.default_rng(4)
    assert epsilon_lower_bound(3 * rng.normal(size=(2_000, 2)), rng.normal(size=(2_000, 2)), 0) > 1


def test_roles_are_alike() -> None:
    a, b = shifted(np.random.default_rng(6), 5_000, 1, 1.5)
    first, other = epsilon_lower_bound(a, b, 1e-3), epsilon_lower_bound(b, a, 1e-3)
    assert first == pytest.approx(other, abs=0.4)


def test_one_direction_is_enough() -> None:
    rng = np.random.default_rng(7)
    # Values above 1 betray `a`; nothing betrays `b`.
    a, b = rng.uniform(0, 1.1, 4_000), rng.uniform(0, 1, 4_000)
    assert epsilon_lower_bound(a, b, 0.0) > 1.5


def test_laws_without_spread() -> None:
    assert epsilon_lower_bound(np.zeros(2_000), np.ones(2_000), 0.0) > 5
    assert epsilon_lower_bound(np.zeros((2_000, 3)), np.zeros((2_000, 3)), 0.0) == 0


def test_large_units_and_offsets_do_not_matter() -> None:
    a, b = shifted(np.random.default_rng(8), 2_000, 2, 2.0)
    plain = epsilon_lower_bound(a, b, 1e-3)
    scaled = epsilon_lower_bound(a * [1e8, 1e-8] + 5, b * [1e8, 1e-8] + 5, 1e-3)
    assert plain > 1
    assert scaled == pytest.approx(plain, abs=0.3)


@pytest.mark.parametrize(("successes", "n"), [(0, 5), (1, 5), (5, 5), (40, 1_000)])
def test_lower_end_is_clopper_and_pearsons(successes: int, n: int) -> None:
    low = audit._lower(successes, n, 0.01)
    exact = stats.binomtest(successes, n, alternative="greater").proportion_ci(0.99, "exact").low
    assert low == pytest.approx(exact, rel=1e-9)


def test_refuses_too_few_rows_and_unequal_widths() -> None:
    with pytest.raises(ValueError, match="8 rows or more"):
        epsilon_lower_bound(np.zeros(7), np.zeros(70), 0.0)
    with pytest.raises(ValueError, match="equal width"):
        epsilon_lower_bound(np.zeros((9, 2)), np.zeros((9, 3)), 0.0)


def test_a_hole_in_a_law_is_seen() -> None:
    rng = np.random.default_rng(3)
    whole, holed = rng.normal(size=8000), rng.normal(size=12000)
    holed = holed[(holed < 0.2) | (holed > 0.35)][:8000]
    assert epsilon_lower_bound(holed, whole, 1e-4) > 2.0
    assert epsilon_lower_bound(rng.normal(size=8000), whole, 1e-4) < 0.5
