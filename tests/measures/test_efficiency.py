"""Speed-up and its interval."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from letheon.measures import efficiency

seconds = st.floats(1e-6, 1e6)
some_seconds = st.lists(seconds, min_size=1, max_size=8)


def test_two_numbers() -> None:
    measure = efficiency(10.0, 0.5)
    assert (measure.value, measure.low, measure.high, measure.n) == (20.0, None, None, 1)
    assert (measure.name, measure.better, measure.basis) == ("efficiency", "higher", "measured")


def test_ratio_of_means_not_mean_of_ratios() -> None:
    assert efficiency([1.0, 1.0], [0.1, 1.9]).value == pytest.approx(1.0)


@given(naive=some_seconds, unlearn=some_seconds)
def test_value_lies_in_its_interval_and_swapping_inverts_it(
    naive: list[float], unlearn: list[float]
) -> None:
    forward, back = efficiency(naive, unlearn), efficiency(unlearn, naive)
    assert forward.value * back.value == pytest.approx(1)
    if forward.low is not None and forward.high is not None:
        assert 0 <= forward.low <= forward.value <= forward.high


@given(naive=some_seconds, unlearn=some_seconds, factor=st.floats(0.01, 100))
def test_unit_of_time_does_not_matter(
    naive: list[float], unlearn: list[float], factor: float
) -> None:
    scaled = efficiency(np.multiply(naive, factor), np.multiply(unlearn, factor))
    assert scaled.value == pytest.approx(efficiency(naive, unlearn).value)


def test_few_times_have_student_s_interval_of_the_logarithm() -> None:
    top, bottom = np.array([9.0, 10.0, 12.0]), np.array([1.0, 1.2, 0.9])
    measure = efficiency(top, bottom)
    variances = [(stats.sem(each) / each.mean()) ** 2 for each in (top, bottom)]
    df = sum(variances) ** 2 / sum(v**2 / 2 for v in variances)
    half = stats.t.ppf(0.975, df) * math.sqrt(sum(variances))
    assert measure.low == pytest.approx(measure.value * math.exp(-half))
    assert measure.high == pytest.approx(measure.value * math.exp(half))


def test_a_time_that_is_lost_in_noise_bounds_nothing() -> None:
    measure = efficiency([10.0, 10.1], [0.001, 2.0])
    assert measure.low is not None
    assert measure.high is not None
    assert measure.low < 0.01
    assert measure.high > 1e5


@pytest.mark.parametrize(
    ("n_naive", "n_unlearn", "words"),
    [
        (5, 60, ""),
        (5, 59, "only 59 timings of removals, 60 are needed"),
        (4, 60, "only 4 timings of retrains, 5 are needed"),
    ],
)
def test_too_few_times_are_called_rough(n_naive: int, n_unlearn: int, words: str) -> None:
    rng = np.random.default_rng(0)
    measure = efficiency(rng.uniform(9, 11, n_naive), rng.uniform(1, 2, n_unlearn))
    assert measure.is_rough == bool(words)
    assert words in measure.note
    assert ("roughly [" in str(measure)) == bool(words)
    assert ("at 0.95" in str(measure)) != bool(words)


def test_times_that_depend_on_those_before_make_it_rough() -> None:
    rng = np.random.default_rng(0)
    drifting = np.exp(np.cumsum(rng.normal(0, 0.1, 100)))
    assert "consecutive timings are correlated" in efficiency([1.0, 1.1] * 5, drifting).note
    shuffled = [efficiency([1.0, 1.1] * 5, rng.permutation(drifting)) for _ in range(100)]
    assert sum(measure.is_rough for measure in shuffled) <= 10


def test_one_time_that_rules_the_mean_makes_it_rough() -> None:
    times = np.append(np.linspace(1, 2, 99), 500.0)
    assert "a few timings of removals dominate the mean" in efficiency([1.0] * 5, times).note


@pytest.mark.parametrize("unlearn", [[0.5], [0.5, 0.5]])
def test_no_interval_without_spread(unlearn: list[float]) -> None:
    assert efficiency([10.0, 10.0], unlearn).low is None


def test_higher_confidence_is_wider() -> None:
    narrow, wide = (efficiency([9, 10, 11], [1, 2, 1.5], confidence=c) for c in (0.5, 0.8))
    assert (narrow.high or 0) < (wide.high or 0)
    assert (narrow.low or 0) > (wide.low or 0)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, [], [1.0, 0.0], [[1.0]]])
def test_bad_times_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="naive_seconds must be"):
        efficiency(bad, 1.0)
    with pytest.raises(ValueError, match="unlearn_seconds must be"):
        efficiency(1.0, bad)


def test_the_error_says_what_times_are() -> None:
    with pytest.raises(ValueError, match=r"naive_seconds must be finite and above 0, not \[0.0\]"):
        efficiency([1.0, 0.0], 1.0)


def test_bad_confidence_is_refused() -> None:
    with pytest.raises(ValueError, match="confidence"):
        efficiency(1.0, 1.0, confidence=95)


def test_a_few_retrains_that_differ_make_it_rough() -> None:
    """Five heavy-tailed ones do not show their tail: the interval held the truth in 83 %."""
    removals = np.random.default_rng(0).uniform(1, 2, 60)
    alike, different = [9.0, 10.0, 11.0, 9.5, 10.5], [6.0, 10.0, 15.0, 8.0, 11.0]
    assert not efficiency(alike, removals).is_rough
    assert "timings of retrains, which vary widely" in efficiency(different, removals).note
    assert not efficiency(different * 12, removals).is_rough
