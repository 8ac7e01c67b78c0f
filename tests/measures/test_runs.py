"""Means over several runs."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from letheon.measures import geometric_mean, over_seeds

some = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8)


def test_three_seeds_by_hand() -> None:
    measure = over_seeds("effectiveness", [0.1, 0.2, 0.6])
    # s² = (0.04 + 0.01 + 0.09) / 2, t = 4.3027
    half = 4.302652729911275 * math.sqrt(0.07 / 3)
    assert measure.value == pytest.approx(0.3)
    assert measure.high == pytest.approx(0.3 + half)
    assert measure.low == 0.0
    assert (measure.better, measure.unit, measure.n) == ("lower", "", 3)


@given(values=some, confidence=st.floats(0.5, 0.999))
def test_students_interval_is_scipys(values: list[float], confidence: float) -> None:
    measure = over_seeds("score", values, better="higher", confidence=confidence)
    assert measure.value == pytest.approx(np.mean(values))
    if len(set(values)) == 1:
        assert (measure.low, measure.high) == (None, None)
        return
    low, high = stats.t.interval(
        confidence, len(values) - 1, np.mean(values), stats.sem(values, ddof=1)
    )
    assert measure.low == pytest.approx(low)
    assert measure.high == pytest.approx(high)


@given(values=some)
def test_the_range_is_never_left(values: list[float]) -> None:
    percents = np.minimum(values, 100.0)
    measure = over_seeds("output consistency", percents)
    free = over_seeds("anything", percents, better="higher")
    assert measure.low is None or measure.low == max(free.low or 0.0, 0.0)
    assert measure.high is None or measure.high == min(free.high or 0.0, 100.0)


def test_rounding_beyond_the_range_is_forgiven_and_nonsense_is_not() -> None:
    assert over_seeds("output consistency", [100 * (1 + 1e-15), 100.0]).value == 100.0
    with pytest.raises(ValueError, match=r"output consistency must be in \[0, 100\]"):
        over_seeds("output consistency", [99.0, 101.0])


def test_infinite_runs_have_an_infinite_mean_and_no_interval() -> None:
    measure = over_seeds("KL consistency", [1.0, math.inf])
    assert (measure.value, measure.low, measure.high) == (math.inf, None, None)


@given(values=some)
def test_geometric_mean_is_scipys(values: list[float]) -> None:
    measure = geometric_mean("efficiency", values, note="five seeds")
    assert measure.value == pytest.approx(stats.gmean(values))
    assert measure.note == f"min {min(values):.4g}, max {max(values):.4g}; five seeds"
    inverse = geometric_mean("efficiency", np.reciprocal(values))
    assert inverse.value * measure.value == pytest.approx(1)
    if measure.high is not None and inverse.low is not None:
        assert inverse.low * measure.high == pytest.approx(1)


def test_geometric_interval_is_students_of_logarithms() -> None:
    values = [2.0, 8.0, 32.0, 3.0]
    measure, logs = geometric_mean("efficiency", values), np.log(values)
    ends = stats.t.interval(0.95, 3, logs.mean(), stats.sem(logs))
    assert measure.low == pytest.approx(math.exp(ends[0]))
    assert measure.high == pytest.approx(math.exp(ends[1]))


@pytest.mark.parametrize("function", [over_seeds, geometric_mean])
@pytest.mark.parametrize(
    ("values", "options", "text"),
    [
        ([], {}, "one for each run"),
        ([[1.0]], {}, "one for each run"),
        ([1.0, math.nan], {}, "NaN"),
        ([1.0], {"confidence": 1.0}, "confidence"),
    ],
)
def test_bad_runs_are_refused(
    function: Any, values: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        function("efficiency", values, **options)


def test_what_has_no_mean_is_refused() -> None:
    with pytest.raises(ValueError, match="both inf and -inf"):
        over_seeds("score", [math.inf, -math.inf], better="higher")
    with pytest.raises(ValueError, match="positive and finite"):
        geometric_mean("efficiency", [1.0, 0.0])
    with pytest.raises(ValueError, match="better must be"):
        over_seeds("score", [1.0])


@pytest.mark.parametrize("mean", [over_seeds, geometric_mean])
def test_a_misspelt_option_is_refused(mean: Any) -> None:
    with pytest.raises(TypeError, match="confidense"):
        mean("score", [1.0, 2.0, 4.0], better="higher", confidense=0.99)
