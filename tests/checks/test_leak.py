"""The lower bound on epsilon holds, and is large where the laws are far apart."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from letheon.checks._leak import clopper_pearson, epsilon_lower_bound

LEVEL = 1e-4
Draw = Callable[[Any, int], Any]


def _bound(one: Draw, two: Draw, *, n: int = 300, delta: float = 1e-5, seed: int = 0) -> float:
    rng = np.random.default_rng(seed)
    samples = (np.reshape(draw(rng, n), (n, -1)) for draw in (one, two))
    return epsilon_lower_bound(*samples, delta=delta, level=LEVEL)


def _normal(mean: float = 0.0, deviation: float = 1.0, columns: int = 1) -> Draw:
    return lambda rng, n: rng.normal(mean, deviation, (n, columns))


@given(n=st.integers(1, 400), share=st.floats(0, 1), level=st.floats(1e-6, 0.2))
def test_clopper_pearson_inverts_the_binomial_tails(n: int, share: float, level: float) -> None:
    hits = round(share * n)
    low, high = clopper_pearson(hits, n, level)
    assert 0 <= low <= hits / n <= high <= 1
    if hits:
        assert binom.sf(hits - 1, n, low) == pytest.approx(level, rel=1e-6)
    if hits < n:
        assert binom.cdf(hits, n, high) == pytest.approx(level, rel=1e-6)


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_equal_laws_leak_nothing(columns: int) -> None:
    law = _normal(columns=columns)
    assert max(_bound(law, law, seed=seed) for seed in range(20)) == 0.0


APART: dict[str, tuple[Draw, Draw]] = {
    "means": (_normal(0.0), _normal(8.0)),
    "deviations": (_normal(), _normal(deviation=1e-3)),
    "a point and a law": (_normal(deviation=0.0), _normal()),
    "two points": (_normal(0.0, 0.0), _normal(1e-7, 0.0)),
    "one of many columns": (
        _normal(columns=4),
        lambda rng, n: rng.normal([0.0, 0.0, 7.0, 0.0], size=(n, 4)),
    ),
    "columns of other sizes": (
        lambda rng, n: rng.normal(size=(n, 2)) * [1e6, 1e-6],
        lambda rng, n: rng.normal(size=(n, 2)) * [1e6, 1e-6] + [0.0, 8e-6],
    ),
    "only together": (
        lambda rng, n: np.repeat(rng.normal(size=(n, 1)), 2, axis=1),
        lambda rng, n: rng.normal(size=(n, 1)) * [1.0, -1.0],
    ),
}


@pytest.mark.parametrize("how", APART)
def test_laws_far_apart_leak_much_in_either_order(how: str) -> None:
    one, two = APART[how]
    for seed in range(5):
        assert _bound(one, two, seed=seed) > 1.2
        assert _bound(two, one, seed=seed) > 1.2


def test_points_that_are_the_same_leak_nothing() -> None:
    point = _normal(3.0, 0.0)
    assert _bound(point, point) == 0.0


def test_so_few_runs_never_show_more_than_three() -> None:
    assert 2.8 < _bound(_normal(0.0), _normal(100.0)) < 3.0


@given(shift=st.floats(0, 3), seed=st.integers(0, 2**32 - 1))
def test_the_bound_holds_for_normal_laws(shift: float, seed: int) -> None:
    delta = 0.01
    bound = _bound(_normal(), _normal(shift), delta=delta, seed=seed)
    # The exact delta of two normal laws at this epsilon (Balle and Wang, 2018).
    if shift > 0:
        exact = norm.cdf(shift / 2 - bound / shift)
        exact -= np.exp(bound) * norm.cdf(-shift / 2 - bound / shift)
        assert bound == 0.0 or exact >= delta


def test_randomised_answers_are_bounded_by_their_epsilon() -> None:
    truth = 1 / (1 + np.exp(-1.0))
    bounds = [
        _bound(
            lambda rng, n: rng.random(n) < truth,
            lambda rng, n: rng.random(n) >= truth,
            n=20_000,
            delta=0.0,
            seed=seed,
        )
        for seed in range(3)
    ]
    assert all(0.8 < bound <= 1.0 for bound in bounds)


def test_a_larger_delta_forgives_more() -> None:
    bounds = [_bound(_normal(), _normal(4.0), delta=delta) for delta in (0.0, 0.1, 0.5, 0.99)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] == 0.0


@pytest.mark.soak
def test_false_alarms_are_as_rare_as_said() -> None:
    # Laws of epsilon exactly 0.5 at delta = 0, with a level at which alarms would be seen.
    truth = 1 / (1 + np.exp(-0.5))
    rng = np.random.default_rng(1)
    alarms = 0
    for _ in range(2_000):
        one, two = rng.random((150, 1)) < truth, rng.random((150, 1)) >= truth
        bound = epsilon_lower_bound(one.astype(float), two.astype(float), delta=0.0, level=0.2)
        alarms += bound > 0.5
    assert alarms <= 0.2 * 2_000
