"""Effectiveness and certifiability: two models, one metric, the same rows."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import r2_score, roc_auc_score

from letheon.measures import (
    Measure,
    certifiability,
    certifiability_from_predictions,
    effectiveness,
    effectiveness_from_values,
    sape,
)

numbers = st.floats(-1e300, 1e300)


def accuracy(y: NDArray[Any], p: NDArray[Any]) -> float:
    return float(np.mean(y == p))


def bounds(measure: Measure) -> tuple[float, float]:
    assert measure.low is not None
    assert measure.high is not None
    return measure.low, measure.high


def guesses(rng: np.random.Generator, n: int, right: float) -> NDArray[np.int64]:
    """Predictions of an all-zero truth, right with a given probability."""
    return (rng.random(n) > right).astype(np.int64)


def test_effectiveness_by_hand() -> None:
    y = [0, 0, 1, 1, 1]
    measure = effectiveness(accuracy, y, [0, 0, 1, 1, 0], [1, 1, 1, 1, 0])
    assert measure.value == pytest.approx(0.8 - 0.4)
    assert (measure.n, measure.better, measure.basis) == (5, "lower", "measured")


def test_effectiveness_of_two_values() -> None:
    measure = effectiveness_from_values(0.91, 0.93, n=100)
    assert measure.value == pytest.approx(0.02)
    assert (measure.low, measure.high, measure.n) == (None, None, 100)


@given(st.data(), st.integers(2, 30))
@settings(max_examples=40)
def test_swapping_models_or_rows_changes_no_value(data: st.DataObject, n: int) -> None:
    labels = st.lists(st.integers(0, 2), min_size=n, max_size=n).map(np.array)
    y, a, b = data.draw(labels), data.draw(labels), data.draw(labels)
    order = data.draw(st.permutations(range(n)).map(np.array))
    value = effectiveness(accuracy, y, a, b, n_resamples=20).value
    assert effectiveness(accuracy, y, b, a, n_resamples=20).value == value
    assert effectiveness(accuracy, y[order], a[order], b[order], n_resamples=20).value == value


def test_pairing_uses_what_the_models_share() -> None:
    rng = np.random.default_rng(0)
    y, naive = np.zeros(300, dtype=np.int64), guesses(rng, 300, 0.7)
    close = naive.copy()
    close[:6] = 1 - close[:6]
    apart = guesses(rng, 300, 0.7)
    widths = [np.diff(bounds(effectiveness(accuracy, y, p, naive)))[0] for p in (close, apart)]
    assert widths[0] < 0.4 * widths[1]


def test_same_seed_same_interval() -> None:
    rng = np.random.default_rng(0)
    y, a, b = rng.normal(size=(3, 40))
    first, again, other = (
        effectiveness(r2_score, y, a, b, seed=s, n_resamples=100) for s in (1, 1, 2)
    )
    assert first == again
    assert bounds(first) != bounds(other)


@pytest.mark.parametrize("n", [1, 30])
def test_equal_predictions_claim_no_interval(n: int) -> None:
    measure = effectiveness(accuracy, [0] * n, [1] * n, [1] * n)
    assert (measure.value, measure.low, measure.high) == (0.0, None, None)


def test_resamples_without_a_metric_are_left_out() -> None:
    rng = np.random.default_rng(0)
    y = np.array([0, 1] * 10)
    scores = rng.random((2, 20))
    low, high = bounds(effectiveness(roc_auc_score, y, *scores, n_resamples=200))
    assert 0 <= low < high <= 1


def test_no_interval_when_the_metric_mostly_fails() -> None:
    rng = np.random.default_rng(0)
    y = np.array([1] + [0] * 20)
    measure = effectiveness(roc_auc_score, y, *rng.random((2, 21)), n_resamples=200)
    assert measure.low is None


def test_strings_frames_of_scores_and_lists_work() -> None:
    assert effectiveness(accuracy, ["a", "b"], ["a", "a"], ["a", "b"]).value == 0.5
    scores = np.array([[0.9, 0.1], [0.2, 0.8]])
    first = effectiveness(lambda y, p: accuracy(y, p.argmax(1)), [0, 1], scores, scores[::-1])
    assert first.value == 1.0


Call = tuple[list[Any], list[Any], list[Any]]


@pytest.mark.parametrize("measure", [effectiveness, certifiability_from_predictions])
@pytest.mark.parametrize(
    ("y", "text"),
    [
        (([0, 1], [0, 1], [0]), "'y_naive': 1"),
        (([0, 1], [0.0, math.nan], [0, 1]), "y_unlearned contains NaN"),
        (([0, None], [0, 1], [0, 1]), "y_true contains NaN or None"),
        (([], [], []), "y_true is empty"),
        (([[[1]]], [1], [1]), "one or two dimensions"),
    ],
)
def test_bad_rows_are_refused(measure: Any, y: Call, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        measure(accuracy, *y)


@pytest.mark.parametrize("measure", [effectiveness, certifiability_from_predictions])
def test_bad_metric_and_options_are_refused(measure: Any) -> None:
    y = ([0, 1], [0, 1], [1, 1])
    with pytest.raises(ValueError, match="the metric must be a finite number"):
        measure(lambda y, p: math.nan, *y)
    with pytest.raises(ValueError, match="n_resamples"):
        measure(accuracy, *y, n_resamples=0)
    with pytest.raises(ValueError, match="confidence"):
        measure(accuracy, *y, confidence=0)


@pytest.mark.parametrize(
    ("a", "b", "value"),
    [
        (0.1, 0.0, 100.0),
        (0.0, 0.0, 0.0),
        (90, 80, 1000 / 170),
        (-1.0, 1e-9, 100.0),
        (3.0, 1.0, 50.0),
        (1.6e308, 0.8e308, 100 / 3),
    ],
)
def test_sape_by_hand(a: float, b: float, value: float) -> None:
    assert sape(a, b) == pytest.approx(value)


@given(a=numbers, b=numbers)
def test_sape_is_symmetric_and_in_range(a: float, b: float) -> None:
    assert sape(a, b) == sape(b, a) == sape(-a, -b)
    assert 0 <= sape(a, b) <= 100 * (1 + 1e-12)
    assert sape(a, a) == 0


@given(a=st.floats(1e-3, 1e3), b=st.floats(1e-3, 1e3), factor=st.floats(1e-3, 1e3))
def test_sape_has_no_unit(a: float, b: float, factor: float) -> None:
    assert sape(factor * a, factor * b) == pytest.approx(sape(a, b), abs=1e-9)


def test_sape_punishes_small_baselines_more() -> None:
    assert sape(0.1, 0.0) > sape(0.3, 0.2) > sape(0.9, 0.8)


def test_certifiability_is_a_proxy_and_says_so() -> None:
    measure = certifiability(0.9, 0.8, n=12)
    assert measure.value == sape(0.9, 0.8)
    assert (measure.basis, measure.unit, measure.n, measure.low) == ("proxy", "%", 12, None)
    assert "does not prove forgetting" in measure.note


def test_certifiability_from_predictions_by_hand() -> None:
    y = np.zeros(20, dtype=int)
    unlearned, naive = np.repeat([0, 1], [18, 2]), np.repeat([0, 1], [9, 11])
    measure = certifiability_from_predictions(accuracy, y, unlearned, naive)
    assert measure.value == pytest.approx(100 * (0.9 - 0.45) / (0.9 + 0.45))
    low, high = bounds(measure)
    assert 0 < low < measure.value < high <= 100


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_values_are_refused(bad: float) -> None:
    for function in (sape, certifiability, effectiveness_from_values):
        with pytest.raises(ValueError, match="finite number"):
            function(0.5, bad)
