"""Residual memory: the exponent, the laws, and when the rules stop."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from letheon.deep._residual import (
    FadingLaw,
    PaperRule,
    RobustRule,
    StopRule,
    dfa_exponent,
    fit_fading_law,
    fit_scale_and_level,
)
from tests.deep.slow_dfa import slow_dfa
from tests.sharded.people import examples

Floats = NDArray[np.float64]

sizes = st.integers(8, 60)
seeds = st.integers(0, 2**32 - 1)
shares = st.floats(0.0, 1.0)
residuals = st.lists(st.floats(0.0, 1e300), min_size=1, max_size=30)


def fading(n: int, alpha: float, a: float = 1.0, b: float = 0.0) -> Floats:
    series: Floats = a * np.arange(1.0, n + 1) ** -alpha + b
    return series


def blocks_until_stop(rule: Any, deltas: Iterable[float]) -> int | None:
    for n, delta in enumerate(deltas, 1):
        if rule.update(float(delta)):
            return n
    return None


class TestExponent:
    @given(n=st.integers(10, 60), seed=seeds, order=st.sampled_from([0, 1, 2]), walk=st.booleans())
    @examples(50)
    def test_agrees_with_the_slow_way(self, n: int, seed: int, order: int, walk: bool) -> None:
        steps = np.random.default_rng(seed).normal(size=n)
        series = np.cumsum(steps) if walk else steps
        assert dfa_exponent(series, order) == pytest.approx(slow_dfa(series, order), abs=1e-6)

    @pytest.mark.parametrize(("walks", "known"), [(False, 0.5), (True, 1.5)])
    def test_of_noise_and_of_a_random_walk(self, walks: bool, known: float) -> None:
        rng = np.random.default_rng(0)
        noises = rng.normal(size=(20, 2_000))
        exponents = [dfa_exponent(np.cumsum(noise) if walks else noise) for noise in noises]
        assert np.mean(np.array(exponents, dtype=float)) == pytest.approx(known, abs=0.06)

    @pytest.mark.parametrize(
        ("n", "known"), [(15, [1.94, 1.84, 1.60, 1.20]), (100, [1.63, 1.51, 1.24, 0.82])]
    )
    def test_goes_down_as_the_decay_goes_up(self, n: int, known: list[float]) -> None:
        exponents = [dfa_exponent(fading(n, h)) for h in (0.3, 0.5, 1.0, 2.0)]
        assert exponents == pytest.approx(known, abs=0.006)

    @given(n=sizes, seed=seeds, power=st.integers(-900, 900))
    def test_has_no_unit(self, n: int, seed: int, power: int) -> None:
        series = np.random.default_rng(seed).random(n) + 0.5
        assert dfa_exponent(series) == dfa_exponent(series * 2.0**power)

    def test_needs_eight_points(self) -> None:
        series = fading(8, 0.7)
        assert dfa_exponent(series[:7]) is None
        assert dfa_exponent(series) is not None

    @pytest.mark.parametrize("value", [0.0, 0.1, 1e300, math.inf, math.nan])
    def test_is_undefined_where_nothing_fluctuates(self, value: float) -> None:
        assert dfa_exponent(np.full(30, value)) is None


def value_of(law: FadingLaw, x: float) -> float:
    return float(law.values(np.array([float(x)]))[0])


class TestLaw:
    @given(a=st.floats(-3, 3), alpha=st.floats(0, 5), b=st.floats(-1, 1), x=st.integers(1, 99))
    def test_slope_is_the_derivative_of_the_value(
        self, a: float, alpha: float, b: float, x: int
    ) -> None:
        law, h = FadingLaw(a, alpha, b), 1e-4
        numeric = (value_of(law, x + h) - value_of(law, x - h)) / (2 * h)
        assert law.slope(x) == pytest.approx(numeric, abs=1e-5)

    @given(
        a=st.floats(0, 3),
        alpha=st.floats(0, 5),
        b=st.floats(-1, 1),
        first=st.integers(1, 40),
        length=st.integers(0, 40),
    )
    def test_values_are_those_of_the_formula(
        self, a: float, alpha: float, b: float, first: int, length: int
    ) -> None:
        xs = range(first, first + length)
        exponents = FadingLaw(a, alpha, b).values(np.array(xs, dtype=float))
        assert exponents.tolist() == pytest.approx([a * x**-alpha + b for x in xs], abs=1e-12)

    @given(
        n=st.integers(3, 40),
        first=st.integers(1, 60),
        alpha=st.floats(-2, 3).filter(lambda alpha: abs(alpha) > 0.05),
        seed=seeds,
    )
    def test_scale_and_level_are_those_of_lstsq(
        self, n: int, first: int, alpha: float, seed: int
    ) -> None:
        x, y = first + np.arange(float(n)), np.random.default_rng(seed).random(n)
        (a, b), *_ = np.linalg.lstsq(np.stack([x**-alpha, np.ones(n)], axis=1), y)
        law = fit_scale_and_level(x, y, alpha)
        assert law is not None
        fitted = [value_of(law, at) for at in x]
        np.testing.assert_allclose(fitted, a * x**-alpha + b, atol=1e-6)
        assert law.slope(x[-1]) == pytest.approx(-a * alpha * x[-1] ** (-alpha - 1), abs=1e-6)

    @pytest.mark.parametrize(("first", "known"), [(1, -0.0075), (10, -0.035), (50, -0.062)])
    def test_the_origin_of_x_changes_the_slope_at_the_end(self, first: int, known: float) -> None:
        x = first + np.arange(20.0)
        law = fit_scale_and_level(x, fading(20, 1.0, a=3.0), 1.0)
        assert law is not None
        assert law.slope(x[-1]) == pytest.approx(known, rel=0.01)

    def test_an_exponent_of_zero_leaves_the_mean(self) -> None:
        assert fit_scale_and_level(np.arange(1.0, 4), np.array([1.0, 2, 6]), 0.0) == FadingLaw(
            0, 0, 3
        )

    def test_a_scale_out_of_range_is_no_law(self) -> None:
        assert fit_scale_and_level(np.array([1e3, 1e3 + 1]), np.array([2.0, 1.0]), 500.0) is None

    @given(
        n=st.integers(4, 80),
        a=st.floats(0.1, 10),
        alpha=st.floats(0.1, 5),
        b=st.one_of(st.just(0.0), st.floats(0, 5)),
    )
    def test_fading_fit_recovers_an_exact_law(
        self, n: int, a: float, alpha: float, b: float
    ) -> None:
        law = fit_fading_law(fading(n, alpha, a, b))
        assert [law.a, law.alpha, law.b] == pytest.approx([a, alpha, b], rel=1e-4, abs=1e-4)

    @given(n=st.integers(3, 40), seed=seeds, falls=st.floats(0, 3), level=st.booleans())
    def test_no_law_on_a_fine_grid_fits_better(
        self, n: int, seed: int, falls: float, level: bool
    ) -> None:
        y = fading(n, falls) + 0.3 * np.random.default_rng(seed).random(n)
        law = fit_fading_law(y, level=level)
        mine = sum((value_of(law, x) - y[x - 1]) ** 2 for x in range(1, n + 1))
        for alpha in np.geomspace(0.02, 10, 200):
            power = fading(n, alpha)
            for b in np.linspace(0, y.max(), 9) if level else [0.0]:
                a = max(float(power @ (y - b) / (power @ power)), 0.0)
                assert mine <= np.square(a * power + b - y).sum() + 1e-9

    @given(residuals.filter(lambda y: len(y) > 1))
    def test_fading_fit_never_rises_and_is_never_negative(self, y: list[float]) -> None:
        law = fit_fading_law(np.array(y))
        assert min(law.a, law.alpha, law.b) >= 0
        assert law.slope(len(y)) <= 0

    @pytest.mark.parametrize("y", [[0.0] * 5, [0.3] * 5, [1.0, 2.0, 3.0, 4.0]])
    def test_without_a_fall_the_law_is_the_mean(self, y: list[float]) -> None:
        law = fit_fading_law(np.array(y))
        assert (law.a, law.alpha) == (0.0, 0.0)
        assert law.b == pytest.approx(np.mean(y))


def tail(rule: StopRule, n_left: int) -> float:
    return float(rule.predict_residuals(n_left).sum())


RULES = [
    lambda epsilon: PaperRule(epsilon, 7),
    lambda epsilon: PaperRule(epsilon, 7, "one"),
    lambda epsilon: RobustRule(epsilon, 0.1),
    lambda epsilon: RobustRule(epsilon, patience=1),
]


@pytest.mark.parametrize("make", RULES)
class TestEveryRule:
    @given(deltas=residuals)
    @examples(50)
    def test_zero_epsilon_never_stops(self, make: Any, deltas: list[float]) -> None:
        rule = make(0.0)
        assert blocks_until_stop(rule, deltas + [0.0] * 12) is None

    @given(deltas=residuals, bad=st.sampled_from([math.inf, math.nan]))
    @examples(50)
    def test_never_stops_after_a_residual_that_is_not_finite(
        self, make: Any, deltas: list[float], bad: float
    ) -> None:
        rule = make(0.1)
        assert blocks_until_stop(rule, [bad, *deltas, 0.0, 0.0]) is None
        assert tail(rule, 5) == rule.ceiling_residuals(5).sum() == math.inf

    @given(deltas=residuals, n_left=st.integers(1, 500))
    @examples(50)
    def test_takes_any_series_without_a_word(
        self, make: Any, deltas: list[float], n_left: int
    ) -> None:
        rule = make(0.1)
        for delta in deltas:
            rule.update(delta)
        assert tail(rule, n_left) >= 0
        assert len(rule.predict_residuals(0)) == len(rule.ceiling_residuals(0)) == 0
        assert (rule.ceiling_residuals(n_left) >= max(deltas[-2:])).all()

    def test_a_larger_epsilon_never_stops_later(self, make: Any) -> None:
        series = fading(60, 0.8, b=0.2)
        stops = [blocks_until_stop(make(e), series) or 61 for e in (1e-4, 1e-3, 0.01, 0.1, 1.0)]
        assert stops == sorted(stops, reverse=True)
        assert stops[0] > stops[-1]

    def test_refuses_what_is_no_norm(self, make: Any) -> None:
        with pytest.raises(ValueError, match="cannot be negative"):
            make(0.1).update(-1.0)

    @pytest.mark.parametrize("epsilon", [-0.1, math.inf, math.nan])
    def test_refuses_a_bad_epsilon(self, make: Any, epsilon: float) -> None:
        with pytest.raises(ValueError, match="epsilon"):
            make(epsilon)


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=30))
def test_the_ceiling_rises_as_the_line_through_the_later_half(deltas: list[float]) -> None:
    rule = PaperRule(0.0, 1)
    for delta in deltas:
        rule.update(delta)
    later = deltas[-max(len(deltas) // 2, 2) :]
    rise = max(np.polyfit(range(len(later)), later, 1)[0], 0.0)
    expected = max(deltas[-2:]) + rise * np.arange(1, 4)
    np.testing.assert_allclose(rule.ceiling_residuals(3), expected, atol=1e-9)


class TestPaperRule:
    @given(seed=seeds, first=st.integers(1, 90), n=st.integers(8, 30))
    @examples(50)
    def test_law_is_dfa_then_lstsq_over_block_numbers(self, seed: int, first: int, n: int) -> None:
        y = fading(n, 0.6) + 0.2 * np.random.default_rng(seed).random(n)
        rule = PaperRule(1e-12, first)
        for delta in y:
            rule.update(delta)
        x, alpha = first + np.arange(float(n)), slow_dfa(y, 1)
        power = (x / first) ** -alpha
        (a, b), *_ = np.linalg.lstsq(np.stack([power, np.ones(n)], axis=1), y)
        assert rule.law is not None
        assert rule.law.alpha == pytest.approx(alpha, abs=1e-6)
        fitted = [value_of(rule.law, at) for at in x]
        np.testing.assert_allclose(fitted, a * power + b, atol=1e-6)

    def test_keeps_going_while_the_series_is_short(self) -> None:
        assert blocks_until_stop(PaperRule(1e9, 1), fading(20, 1.0)) == 8

    def test_origin_changes_the_slope(self) -> None:
        slopes = {}
        for first in (1, 10, 50):
            rule = PaperRule(1e-12, first)
            for delta in fading(15, 1.0):
                rule.update(delta)
            assert rule.law is not None
            slopes[first] = abs(rule.law.slope(first + 14))
        assert slopes[1] < slopes[10] < slopes[50]

    def test_origin_one_forgets_the_block(self) -> None:
        series = fading(40, 0.5)
        stops = {blocks_until_stop(PaperRule(0.01, d, "one"), series) for d in (1, 10, 50)}
        assert len(stops) == 1
        assert len({blocks_until_stop(PaperRule(0.01, d), series) for d in (1, 10, 50)}) > 1

    def test_decides_otherwise_for_a_larger_net(self) -> None:
        series = fading(40, 0.5)
        stops = [blocks_until_stop(PaperRule(0.01, 1), c * series) for c in (1.0, 1000.0)]
        assert stops[0] == 8
        assert stops[1] is None

    @pytest.mark.parametrize("value", [0.0, 0.3, 5.0])
    def test_equal_residuals_stop_at_the_eighth(self, value: float) -> None:
        assert blocks_until_stop(PaperRule(0.01, 5), [value] * 20) == 8

    def test_growth_counts_by_its_size(self) -> None:
        assert blocks_until_stop(PaperRule(0.01, 5), np.arange(1.0, 30)) is None

    def test_refuses_bad_settings(self) -> None:
        with pytest.raises(ValueError, match="counted from 1"):
            PaperRule(0.1, 0)
        with pytest.raises(ValueError, match="'block' or 'one'"):
            PaperRule(0.1, 1, "zero")  # type: ignore[arg-type]


class TestRobustRule:
    @given(
        alpha=st.floats(0.1, 5),
        b=st.floats(0, 2),
        epsilon=st.sampled_from([0.01, 0.05, 0.1]),
        n_left=st.integers(1, 200),
    )
    def test_on_an_exact_law_it_stops_late_enough_and_the_tail_bounds_the_rest(
        self, alpha: float, b: float, epsilon: float, n_left: int
    ) -> None:
        series, rule = fading(400, alpha, b=b), RobustRule(epsilon)
        n = blocks_until_stop(rule, series)
        assert n is not None
        assert abs(FadingLaw(1.0, alpha, b).slope(n)) < epsilon * 1.001
        assert tail(rule, n_left) >= 0.999 * series[n : n + n_left].sum()

    @given(n=st.integers(6, 40), alpha=st.floats(0.1, 3), b=shares, n_left=st.integers(1, 100))
    def test_with_points_to_spare_the_tail_of_an_exact_law_is_exact(
        self, n: int, alpha: float, b: float, n_left: int
    ) -> None:
        series, rule = fading(n + n_left, alpha, b=b), RobustRule(0.0)
        for delta in series[:n]:
            rule.update(delta)
        assert tail(rule, n_left) == pytest.approx(series[n:].sum(), rel=1e-3)

    @given(rate=st.floats(0.02, 2.0), n_left=st.integers(1, 200))
    def test_the_tail_bounds_an_exponential_decay(self, rate: float, n_left: int) -> None:
        series, rule = np.exp(-rate * np.arange(400.0)), RobustRule(0.05)
        n = blocks_until_stop(rule, series)
        assert n is not None
        assert tail(rule, n_left) >= series[n : n + n_left].sum()

    def test_the_tail_bounds_noisy_power_laws_most_of_the_time(self) -> None:
        rng = np.random.default_rng(0)
        held = []
        for _ in range(100):
            series = fading(100, rng.uniform(0.3, 3)) * np.exp(0.1 * rng.normal(size=100))
            rule = RobustRule(0.05)
            n = blocks_until_stop(rule, series)
            assert n is not None
            held.append(tail(rule, 100 - n) >= series[n:].sum())
        assert np.mean(held) >= 0.8

    @given(rate=st.floats(0.1, 2.0), b=st.floats(0.01, 0.5))
    def test_the_ceiling_bounds_what_does_not_grow(self, rate: float, b: float) -> None:
        series, rule = np.exp(-rate * np.arange(100.0)) + b, RobustRule(0.05)
        n = blocks_until_stop(rule, series)
        assert n is not None
        assert rule.ceiling_residuals(100 - n).sum() >= series[n:].sum()

    def test_waits_for_the_points_and_for_the_hits(self) -> None:
        drop = [1.0, 0.0001, 0.0001, 0.0001, 0.0001, 0.0001, 0.0001, 0.0001]
        assert blocks_until_stop(RobustRule(0.1), drop) == 4
        assert blocks_until_stop(RobustRule(0.1, min_points=5), drop) == 6
        assert blocks_until_stop(RobustRule(0.1, patience=5), drop) == 7

    def test_hits_must_follow_each_other(self) -> None:
        assert blocks_until_stop(RobustRule(0.05), [1.0, 0.1, 0.1, 0.9, 0.9]) is None

    def test_stops_in_the_noise(self) -> None:
        steep = [1.0, 0.5, 0.019, 0.021, 0.02, 0.02]
        assert blocks_until_stop(RobustRule(1e-6, 0.01), steep) == 6

    def test_few_points_take_the_steeper_law(self) -> None:
        level = [1.0, 0.5, 0.5, 0.5, 0.5]
        assert abs(fit_fading_law(np.array(level[:4])).slope(4)) < 0.02
        assert blocks_until_stop(RobustRule(0.02), level) is None

    @pytest.mark.parametrize("value", [0.3, 5.0])
    def test_equal_residuals_are_stable_and_the_tail_says_so(self, value: float) -> None:
        rule = RobustRule(0.05)
        assert blocks_until_stop(rule, [value] * 20) == 4
        assert tail(rule, 10) == pytest.approx(10 * value)

    @pytest.mark.parametrize("floor", [0.0, 0.1])
    def test_zeros_stop_at_the_second(self, floor: float) -> None:
        rule = RobustRule(0.05, floor)
        assert blocks_until_stop(rule, [0.0] * 5) == 2
        assert tail(rule, 10) == 0

    @given(start=st.floats(0.0, 0.5), rise=st.floats(0.11, 0.5), n=st.integers(1, 30))
    def test_fast_growth_is_retrained_to_the_end(self, start: float, rise: float, n: int) -> None:
        deltas = start + rise * np.arange(float(n))
        assert blocks_until_stop(RobustRule(0.1), deltas) is None

    def test_growth_that_levels_off_stops_at_the_level(self) -> None:
        deltas = [0.05, 0.1, 0.3, 0.5, 0.6, *[0.6] * 10]
        rule = RobustRule(0.05)
        n = blocks_until_stop(rule, deltas)
        assert n is not None
        assert n > 6
        assert tail(rule, 10) == pytest.approx(6.0, rel=0.3)

    @given(st.lists(shares, min_size=4, max_size=20), st.integers(1, 100))
    def test_slow_growth_stops_and_the_ceiling_goes_on_with_it(
        self, steps: list[float], n_left: int
    ) -> None:
        deltas = 0.1 + 0.009 * np.cumsum(steps)
        rule = RobustRule(0.05)
        for delta in deltas:
            rule.update(delta)
        ceiling = rule.ceiling_residuals(n_left)
        assert (np.diff(ceiling) >= 0).all()
        assert ceiling.max() <= 2.0
        assert ceiling.sum() >= tail(rule, n_left) * 0.999
        assert blocks_until_stop(RobustRule(0.05), deltas) == 4

    def test_a_fall_after_growth_goes_on(self) -> None:
        deltas = [0.1, 0.5, 1.0, 0.9, 0.8, 0.7, 0.6]
        assert blocks_until_stop(RobustRule(0.05), deltas) is None
        assert blocks_until_stop(RobustRule(0.05), [*deltas, *[0.6] * 9]) is not None

    @pytest.mark.parametrize("start", [0.1, 1.0, 1.9, 3.0])
    def test_the_ceiling_rises_to_two_and_no_further(self, start: float) -> None:
        rule = RobustRule(0.05)
        for delta in start + 0.1 * np.arange(4):
            rule.update(delta)
        level = start + 0.3
        expected = [min(level + 0.1 * k, max(2.0, level)) for k in range(1, 31)]
        assert rule.ceiling_residuals(30).tolist() == pytest.approx(expected)

    def test_growth_after_a_fall_goes_on(self) -> None:
        deltas = [1.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
        assert blocks_until_stop(RobustRule(0.08), deltas) is None

    @pytest.mark.parametrize("bad", [{"floor": -1.0}, {"floor": math.nan}, {"patience": 0}])
    def test_refuses_bad_settings(self, bad: Any) -> None:
        with pytest.raises(ValueError, match=next(iter(bad))):
            RobustRule(0.1, **bad)
