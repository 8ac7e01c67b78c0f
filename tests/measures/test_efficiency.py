"""Speed-up and Fieller's interval."""

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
    there, back = efficiency(naive, unlearn), efficiency(unlearn, naive)
    assert there.value * back.value == pytest.approx(1)
    if there.low is not None and there.high is not None:
        assert 0 <= there.low <= there.value <= there.high


@given(naive=some_seconds, unlearn=some_seconds, factor=st.floats(0.01, 100))
def test_unit_of_time_does_not_matter(
    naive: list[float], unlearn: list[float], factor: float
) -> None:
    scaled = efficiency(np.multiply(naive, factor), np.multiply(unlearn, factor))
    assert scaled.value == pytest.approx(efficiency(naive, unlearn).value)


def test_ends_solve_the_defining_equation() -> None:
    top, bottom = np.array([9.0, 10.0, 12.0, 11.0]), np.array([1.0, 1.2, 0.9])
    measure = efficiency(top, bottom)
    v_top, v_bottom = stats.sem(top) ** 2, stats.sem(bottom) ** 2
    part_top, part_bottom = v_top, measure.value**2 * v_bottom
    df = (part_top + part_bottom) ** 2 / (part_top**2 / 3 + part_bottom**2 / 2)
    t = stats.t.ppf(0.975, df)
    for end in (measure.low, measure.high):
        assert end is not None
        z = (top.mean() - end * bottom.mean()) / np.sqrt(v_top + end**2 * v_bottom)
        assert abs(z) == pytest.approx(t)


def test_no_bound_when_unlearning_time_is_lost_in_noise() -> None:
    measure = efficiency([10.0, 10.1], [0.001, 2.0])
    assert (measure.low, measure.high) == (0.0, math.inf)


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


def test_bad_confidence_is_refused() -> None:
    with pytest.raises(ValueError, match="confidence"):
        efficiency(1.0, 1.0, confidence=95)
