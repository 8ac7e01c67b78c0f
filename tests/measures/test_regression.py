"""Consistency of regression models."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import root_mean_squared_error

from letheon.measures import agreement_within, kl_gaussian, prediction_gap
from tests.sharded.people import examples

Floats = NDArray[np.float64]
vectors = hnp.arrays(np.float64, 7, elements=st.floats(-1e3, 1e3))
deviations = hnp.arrays(np.float64, 7, elements=st.floats(0.1, 10))


def test_gap_by_hand() -> None:
    measure = prediction_gap([1.0, 2.0, 6.0], [1.0, 2.0, 3.0])
    assert measure.value == pytest.approx(math.sqrt(3))
    # the spread of 1, 2, 3 is 1
    assert prediction_gap([1.0, 2.0, 6.0], [1.0, 2.0, 3.0], relative=True).value == measure.value
    assert (measure.name, measure.better, measure.n) == ("prediction gap", "lower", 3)


@given(a=vectors, b=vectors, order=st.permutations(range(7)))
@examples(50)
def test_gap_is_scikit_learns_and_symmetric(a: Floats, b: Floats, order: list[int]) -> None:
    value = prediction_gap(a, b, n_resamples=20).value
    assert value == pytest.approx(root_mean_squared_error(a, b), abs=1e-12)
    assert prediction_gap(b, a, n_resamples=20).value == value
    assert prediction_gap(a[order], b[order], n_resamples=20).value == pytest.approx(value)
    assert prediction_gap(a, a).value == 0


@given(a=vectors, b=vectors, factor=st.floats(0.01, 100), shift=st.floats(-10, 10))
@examples(50)
def test_relative_gap_has_no_unit(a: Floats, b: Floats, factor: float, shift: float) -> None:
    assume(b.std() > 1e-2)
    value = prediction_gap(a, b, relative=True, n_resamples=20).value
    assert value == pytest.approx(root_mean_squared_error(a, b) / b.std(ddof=1))
    moved = prediction_gap(factor * a + shift, factor * b + shift, relative=True, n_resamples=20)
    assert moved.value == pytest.approx(value, abs=1e-6)


def test_extreme_gaps_neither_overflow_nor_vanish() -> None:
    for size in (1e200, 1e-200):
        measure = prediction_gap([size, 0.0, size], [0.0, 0.0, 0.0])
        assert measure.value == pytest.approx(size * math.sqrt(2 / 3))


@given(a=vectors, b=vectors, tolerance=st.floats(0, 100))
@examples(50)
def test_agreement_is_a_count_with_scipys_interval(a: Floats, b: Floats, tolerance: float) -> None:
    agree = sum(1 for x, y in zip(a, b, strict=True) if max(x, y) - min(x, y) <= tolerance)
    measure = agreement_within(a, b, tolerance)
    ends = stats.binomtest(agree, 7).proportion_ci()
    assert measure.value == pytest.approx(100 * agree / 7)
    assert measure.low == pytest.approx(100 * ends.low)
    assert measure.high == pytest.approx(100 * ends.high)
    assert agreement_within(b, a, tolerance) == measure


def test_a_gap_as_large_as_the_tolerance_is_agreement() -> None:
    assert agreement_within([0.0, 0.0], [0.5, -0.5], 0.5).value == 100
    assert agreement_within([1.0, 1.0], [1.0, 1.5], 0.0).value == 50


@pytest.mark.parametrize(
    ("m_p", "m_q", "s_p", "s_q"), [(0.0, 1.0, 1.0, 2.0), (1.0, -1.0, 2.0, 1.0), (0.0, 0.0, 0.5, 3)]
)
def test_gaussian_divergence_is_the_integral(
    m_p: float, m_q: float, s_p: float, s_q: float
) -> None:
    p, q = stats.norm(m_p, s_p), stats.norm(m_q, s_q)
    x = np.linspace(-25, 25, 100_001)
    reference = np.trapezoid(p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), x)
    assert kl_gaussian([m_p], [m_q], s_p, s_q).value == pytest.approx(reference, rel=1e-6)


@given(m=vectors, k=vectors, s=deviations, r=deviations)
@examples(50)
def test_gaussian_divergence_is_zero_only_for_equal_laws(
    m: Floats, k: Floats, s: Floats, r: Floats
) -> None:
    assert kl_gaussian(m, m, s, s).value == 0
    measure = kl_gaussian(m, k, s, r, n_resamples=20)
    loop = [
        math.log(r[i] / s[i]) + (s[i] ** 2 + (m[i] - k[i]) ** 2) / (2 * r[i] ** 2) - 0.5
        for i in range(7)
    ]
    assert measure.value == pytest.approx(np.mean(loop), rel=1e-9, abs=1e-9)
    assert measure.value >= 0


def test_tiny_gaps_of_deviations_do_not_drown_in_rounding() -> None:
    h = 1e-8
    assert kl_gaussian([0.0], [0.0], 1.0 + h, 1.0).value == pytest.approx(h**2, rel=1e-6)


@pytest.mark.parametrize(
    ("m", "s_p", "s_q", "value"),
    [
        (0.0, 0.0, 0.0, 0.0),
        (1.0, 0.0, 0.0, math.inf),
        (0.0, 1.0, 0.0, math.inf),
        (0, 0, 1, math.inf),
    ],
)
def test_certain_predictions(m: float, s_p: float, s_q: float, value: float) -> None:
    assert kl_gaussian([m], [0.0], s_p, s_q).value == value


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        (prediction_gap, ([1.0], [1.0, 2.0]), "same number of rows"),
        (prediction_gap, ([], []), "one number per row"),
        (prediction_gap, ([math.nan], [1.0]), "pred_unlearned must be finite"),
        (agreement_within, ([1.0], [1.0], -1.0), "tolerance must be at least 0"),
        (agreement_within, ([1.0], [1.0], math.nan), "tolerance must be a finite"),
        (kl_gaussian, ([1.0], [1.0], [1.0, 2.0], 1.0), "sd_unlearned must be a number or 1"),
        (kl_gaussian, ([1.0], [1.0], 1.0, -1.0), "sd_naive must be finite and at least 0"),
    ],
)
def test_bad_input_is_refused(function: Any, arguments: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        function(*arguments)


def test_no_spread_no_relative_gap() -> None:
    with pytest.raises(ValueError, match="all are equal"):
        prediction_gap([1.0, 2.0], [1.0, 1.0], relative=True)
