"""The hypothesis test: thresholds, errors, votes, and intervals that cover."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom

from letheon.measures._intervals import clopper_pearson
from letheon.measures.attacks import _backdoor as backdoor_module
from letheon.measures.attacks._backdoor import (
    Errors,
    QueryCounts,
    deletion_confidence,
    errors,
    majority_errors,
    queries_needed,
    success_rate,
    threshold,
)

ALPHAS = (0.2, 0.05, 1e-3, 1e-6)
probabilities = st.integers(0, 20).map(lambda k: k / 20)


def tail(n: int, q: float, t: int) -> Fraction:
    """P(Bin(n, q) > t), exactly."""
    chance = Fraction(q)
    return sum(
        (math.comb(n, k) * chance**k * (1 - chance) ** (n - k) for k in range(t + 1, n + 1)),
        Fraction(0),
    )


def test_published_numbers() -> None:
    assert [queries_needed(p, 0.1) for p in (0.95, 0.8, 0.6, 0.4, 0.2)] == [8, 15, 30, 73, 479]
    test = errors(30, 0.6, 0.1)
    assert test.false_alarm == pytest.approx(4.5e-4, rel=0.02)
    assert test.miss == pytest.approx(8.6e-4, rel=0.02)


@given(st.integers(1, 40), probabilities, st.sampled_from(ALPHAS))
def test_threshold_is_the_smallest_that_keeps_false_alarms_at_alpha(
    n: int, q: float, alpha: float
) -> None:
    t = threshold(n, q, alpha)
    assert tail(n, q, t) <= alpha * (1 + 1e-9)
    assert t == 0 or tail(n, q, t - 1) > alpha * (1 - 1e-9)


@given(st.integers(1, 60), probabilities, probabilities, st.sampled_from(ALPHAS))
def test_errors_are_binomial_tails(n: int, p: float, q: float, alpha: float) -> None:
    test = errors(n, p, q, alpha)
    assert test.false_alarm == pytest.approx(binom.sf(test.threshold, n, q), rel=1e-9, abs=1e-15)
    assert test.miss == pytest.approx(binom.cdf(test.threshold, n, p), rel=1e-9, abs=1e-15)
    assert test.false_alarm <= alpha


def test_the_threshold_itself_does_not_reject() -> None:
    t = threshold(30, 0.1)
    assert not rejects(np.array([t]), 30, 0.1, 1e-3).any()
    assert rejects(np.array([t + 1]), 30, 0.1, 1e-3).all()


@given(st.integers(1, 40), st.lists(probabilities, min_size=4, max_size=4))
def test_power_grows_with_p_and_falls_with_q(n: int, rates: list[float]) -> None:
    p_low, p_high = sorted(rates[:2])
    q_low, q_high = sorted(rates[2:])
    assert errors(n, p_low, q_high, 0.05).miss >= errors(n, p_high, q_low, 0.05).miss - 1e-12


@pytest.mark.parametrize(("p", "q"), [(0.95, 0.1), (0.6, 0.1), (0.5, 0.3), (1.0, 0.0)])
def test_queries_needed_is_enough_and_one_less_is_not(p: float, q: float) -> None:
    n = queries_needed(p, q, alpha=0.01, beta=0.02)
    assert errors(n, p, q, 0.01).miss <= 0.02
    assert all(errors(fewer, p, q, 0.01).miss > 0.02 for fewer in range(1, n))


def test_a_backdoor_that_is_no_better_than_chance_needs_no_number_of_queries() -> None:
    with pytest.raises(ValueError, match="p must be above q"):
        queries_needed(0.1, 0.1)
    with pytest.raises(ValueError, match="too close"):
        queries_needed(0.500001, 0.5)


# Error rates as computed, over 20,000 simulated tests; and bugs that this must notice.

Rule = Callable[[NDArray[np.int64], int, float, float], NDArray[np.bool_]]
SETTINGS = [(30, 0.6, 0.1, 1e-3), (10, 0.5, 0.2, 0.05), (20, 0.35, 0.25, 0.1), (5, 0.9, 0.5, 0.2)]


def rejects(k: NDArray[np.int64], n: int, q: float, alpha: float) -> NDArray[np.bool_]:
    return k > threshold(n, q, alpha)


def rejects_at_the_threshold(
    k: NDArray[np.int64], n: int, q: float, alpha: float
) -> NDArray[np.bool_]:
    return k >= threshold(n, q, alpha)


def is_as_computed(
    rule: Rule, computed: Errors, n: int, p: float, q: float, alpha: float, draws: int = 20_000
) -> bool:
    rng = np.random.default_rng(0)
    alarm = float(rule(rng.binomial(n, q, draws), n, q, alpha).mean())
    miss = 1 - float(rule(rng.binomial(n, p, draws), n, q, alpha).mean())
    pairs = ((alarm, computed.false_alarm), (miss, computed.miss))
    return all(
        abs(seen - rate) <= 4 * math.sqrt(rate * (1 - rate) / draws) + 1 / draws
        for seen, rate in pairs
    )


@pytest.mark.parametrize(("n", "p", "q", "alpha"), SETTINGS)
def test_simulated_errors_are_those_computed(n: int, p: float, q: float, alpha: float) -> None:
    assert is_as_computed(rejects, errors(n, p, q, alpha), n, p, q, alpha)


@pytest.mark.parametrize(("n", "p", "q", "alpha"), SETTINGS)
def test_simulation_notices_a_threshold_that_is_off_by_one(
    n: int, p: float, q: float, alpha: float
) -> None:
    assert not is_as_computed(rejects_at_the_threshold, errors(n, p, q, alpha), n, p, q, alpha)


@pytest.mark.parametrize(("n", "p", "q", "alpha"), SETTINGS)
def test_simulation_notices_p_and_q_swapped(n: int, p: float, q: float, alpha: float) -> None:
    assert not is_as_computed(rejects, errors(n, q, p, alpha), n, p, q, alpha)


@pytest.mark.parametrize("n_users", [1, 2, 3, 4, 5])
def test_majority_by_enumeration(n_users: int) -> None:
    single = errors(10, 0.6, 0.1, alpha=0.05)
    alarm = miss = 0.0
    for votes in itertools.product([True, False], repeat=n_users):
        is_majority, yes = sum(votes) > n_users / 2, sum(votes)
        if is_majority:
            alarm += single.false_alarm**yes * (1 - single.false_alarm) ** (n_users - yes)
        else:
            miss += (1 - single.miss) ** yes * single.miss ** (n_users - yes)
    vote = majority_errors(single, n_users)
    assert vote.false_alarm == pytest.approx(alarm)
    assert vote.miss == pytest.approx(miss)


# Intervals cover.


def rho_coverage(p: float, q: float, n: int, *, draws: int = 2_000) -> float:
    rng = np.random.default_rng(1)
    true, n_queries = 1 - errors(n, p, q, 0.01).miss, 60
    hits = 0
    for kept, chance in rng.binomial(n_queries, (p, q), (draws, 2)):
        confidence = deletion_confidence(n, (kept, n_queries), (chance, n_queries), alpha=0.01)
        assert confidence.low is not None
        assert confidence.high is not None
        hits += confidence.low <= true <= confidence.high
    return hits / draws


@pytest.mark.parametrize(("p", "q", "n"), [(0.6, 0.1, 20), (0.5, 0.3, 30)])
def test_deletion_confidence_covers(p: float, q: float, n: int) -> None:
    assert rho_coverage(p, q, n) >= 0.95


def test_coverage_notices_the_wrong_end_of_the_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    right = backdoor_module._rate_interval

    def mixed(counts: QueryCounts, confidence: float) -> tuple[float, float]:
        low, high = right(counts, confidence)
        return (high, low) if counts.rate < 0.4 else (low, high)

    monkeypatch.setattr(backdoor_module, "_rate_interval", mixed)
    assert rho_coverage(0.5, 0.3, 30) < 0.9


def test_the_lower_end_puts_in_the_worst_rates() -> None:
    level = 0.975
    p_low, p_high = clopper_pearson(40, 60, level)
    q_low, q_high = clopper_pearson(6, 60, level)
    confidence = deletion_confidence(20, (40, 60), (6, 60), alpha=0.01)
    assert confidence.low == pytest.approx(1 - errors(20, p_low, q_high, 0.01).miss)
    assert confidence.high == pytest.approx(1 - errors(20, p_high, q_low, 0.01).miss)
    assert confidence.value == pytest.approx(1 - errors(20, 40 / 60, 0.1, 0.01).miss)


@given(st.integers(1, 80), st.data())
def test_one_tester_has_the_interval_of_clopper_and_pearson(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    measure = success_rate("backdoor success", k, n)
    low, high = clopper_pearson(k, n, 0.95)
    assert (measure.low, measure.high) == pytest.approx((low, high))


def cover(interval: Callable[[NDArray[np.int64]], tuple[float, float]]) -> float:
    """Share of 2,000 draws whose interval holds the mean rate of testers who differ."""
    rng, hits = np.random.default_rng(2), 0
    for _ in range(2_000):
        successes = rng.binomial(30, rng.beta(2, 3, size=15))
        low, high = interval(successes)
        hits += low <= 0.4 <= high
    return hits / 2_000


def test_interval_covers_where_testers_differ_and_a_pooled_one_would_not() -> None:
    def clustered(successes: NDArray[np.int64]) -> tuple[float, float]:
        measure = success_rate("backdoor success", successes, np.full(15, 30))
        assert measure.low is not None
        assert measure.high is not None
        return measure.low, measure.high

    assert cover(clustered) >= 0.94
    assert cover(lambda successes: clopper_pearson(int(successes.sum()), 450, 0.95)) < 0.8


@pytest.mark.parametrize("n_testers", [3, 5, 15])
@pytest.mark.parametrize(("rate", "alike"), [(0.1, 0.5), (0.02, 0.2), (0.3, 0.6), (0.1, 0.2)])
def test_interval_covers_where_testers_agree_by_luck(
    n_testers: int, rate: float, alike: float
) -> None:
    """Most testers with a rate near 0: no spread is no evidence that they are all alike."""
    rng, hits, draws = np.random.default_rng(3), 0, 500
    a, b = rate * (1 - alike) / alike, (1 - rate) * (1 - alike) / alike
    for _ in range(draws):
        successes = rng.binomial(30, rng.beta(a, b, size=n_testers))
        success = success_rate("chance", successes, np.full(n_testers, 30))
        assert success.low is not None
        assert success.high is not None
        hits += success.low <= rate <= success.high
    assert hits / draws >= 0.93


@pytest.mark.parametrize(
    "call",
    [
        lambda: threshold(0, 0.1),
        lambda: threshold(5, 1.1),
        lambda: threshold(5, 0.1, 0.0),
        lambda: errors(5, -0.1, 0.1),
        lambda: majority_errors(errors(5, 0.9, 0.1), 0),
        lambda: success_rate("x", 3, 2),
        lambda: success_rate("x", [1, 1], [2]),
        lambda: success_rate("x", 0, 0),
    ],
)
def test_refuses_what_is_no_test(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"query|queries|between|at least 1|testers?"):
        call()
