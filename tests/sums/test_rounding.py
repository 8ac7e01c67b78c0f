"""Keyed rounding, against fractions; and how rarely rounded values change."""

from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from letheon import _core
from letheon.seeds import Purpose, keyed_hash
from letheon.sums import (
    ColumnSums,
    floor_log2,
    keyed_dither,
    round_count,
    round_exponents,
    round_location_scale,
    round_logs,
    round_ratios,
    round_values,
)
from tests.sums.columns import (
    HOSTILE,
    dithered,
    draw_matrix,
    mean_of,
    power_of_two,
    rounded_log2,
    rounded_root_log2,
    values_of,
    variance_of,
)

WORDS = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63, 2**64 - 1])


def to_words(*values: int) -> Any:
    return np.array(values, dtype=np.uint64)


def round_reference(
    column: Any, seed: int, number: int, bits: int, step: int
) -> tuple[float, float]:
    """Return centre and scale by their definition."""
    values = values_of(column)
    if not values:
        return 0.0, 1.0
    mean, variance = mean_of(column), variance_of(column)
    if variance == 0:
        return float(mean), 1.0
    dither = keyed_hash(seed, Purpose.ROUND_SCALE, number)
    exponent = rounded_root_log2(variance, dither, step)
    exponent = min(max(exponent, -1022), 1022)
    grid = Fraction(2) ** (exponent - bits)
    centre = grid * dithered(mean / grid, keyed_hash(seed, Purpose.ROUND_CENTRE, number))
    largest = Fraction(np.finfo(np.float64).max)
    return float(min(max(centre, -largest), largest)), 2.0**exponent


@given(
    draw_matrix(),
    st.integers(0, 2**128 - 1),
    st.sampled_from([-3, 0, 3, 52]),
    st.integers(1, 3),
)
def test_location_and_scale_are_those_of_fractions(X: Any, seed: int, bits: int, step: int) -> None:
    sums = ColumnSums(X.shape[1])
    sums.add(X)
    centre, scale = round_location_scale(sums, seed, centre_bits=bits, scale_step=step)
    expected = [round_reference(column, seed, j, bits, step) for j, column in enumerate(X.T)]
    assert list(zip(centre.tolist(), scale.tolist(), strict=True)) == expected
    assert not np.signbit(centre[centre == 0]).any()


@pytest.mark.parametrize(
    "column",
    [[5.0, 5.0], [0.1] * 10, [-1e300] * 3, [5e-324] * 7, [np.nan, 3.0], [-0.0, 0.0]],
)
def test_a_constant_column_becomes_zero(column: list[float]) -> None:
    sums = ColumnSums(1)
    sums.add(np.array(column)[:, None])
    centre, scale = round_location_scale(sums, 3)
    assert scale[0] == 1.0
    assert np.nanmax(np.abs(np.array(column) - centre[0])) == 0.0


def test_timestamps_with_a_deviation_of_one() -> None:
    sums = ColumnSums(1)
    sums.add(1.7e9 + np.random.default_rng(0).normal(size=(10_000, 1)))
    centre, scale = round_location_scale(sums, 1)
    assert scale[0] in (0.5, 1.0, 2.0)
    assert abs(centre[0] - 1.7e9) <= 2.5


@given(st.lists(WORDS, min_size=1, max_size=5))
def test_powers_of_two_by_integer_roots(dithers: list[int]) -> None:
    powers = _core.powers_of_two(to_words(*dithers)).tolist()
    assert powers == [power_of_two(dither) for dither in dithers]
    exact = 2.0 ** (np.array(dithers, dtype=np.float64) / 2.0**64)
    assert np.allclose(np.array(powers) / 2.0**63, exact, rtol=1e-15)


@given(HOSTILE, st.integers(-40, 40), WORDS)
def test_rounded_values(value: float, exponent: int, dither: int) -> None:
    got = round_values(np.array([value]), exponent, to_words(dither))[0]
    grid = Fraction(2) ** exponent
    if np.isnan(value) or abs(value) >= 2.0**53 * float(grid):
        assert got == value or np.isnan(value)
    elif abs(value) >= 1e-290:
        assert got == float(grid * dithered(Fraction(value) / grid, dither))


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False), WORDS)
def test_rounded_exponents(value: float, dither: int) -> None:
    got = round_exponents(np.array([value]), to_words(dither))[0]
    assert got == rounded_log2(Fraction(value), dither)


@given(st.integers(-(2**40), 2**40), st.integers(1, 2**40), WORDS, st.integers(0, 16))
def test_rounded_ratios(top: int, bottom: int, dither: int, bits: int) -> None:
    got = round_ratios(np.array([top]), bottom, to_words(dither), bits=bits)[0]
    assert got == dithered(Fraction(top * 2**bits, bottom), dither)


@given(st.integers(1, 2**40), st.integers(1, 2**40), st.integers(0, 6))
def test_integer_logarithms(top: int, bottom: int, bits: int) -> None:
    exponent = floor_log2(top, bottom, bits=bits)
    power = Fraction(top, bottom) ** 2**bits
    assert Fraction(2) ** exponent <= power < Fraction(2) ** (exponent + 1)


@given(
    hnp.arrays(np.int64, 4, elements=st.integers(1, 2**40)),
    st.integers(1, 2**40),
    st.lists(WORDS, min_size=4, max_size=4),
    st.integers(0, 4),
)
def test_rounded_logarithms(tops: Any, bottom: int, dithers: list[int], bits: int) -> None:
    tops[0] = bottom  # a border: the logarithm is 0
    got = round_logs(tops, bottom, to_words(*dithers), bits=bits).tolist()
    ratios = [Fraction(int(top), bottom) ** 2**bits for top in tops]
    assert got == [rounded_log2(r, u) for r, u in zip(ratios, dithers, strict=True)]


def test_rounded_count() -> None:
    table = sorted({isqrt(isqrt(2**k)) for k in range(80)})
    for n in [*range(1, 3_000), 10**5, 10**6 - 1, 10**6]:
        assert round_count(n) == max(entry for entry in table if entry <= n)


def count_changes(n_trials: int, n_rows: int, keyed: bool) -> tuple[int, int]:
    """Remove one row from data that is the same in all trials; return changed centres, scales."""
    X = np.random.default_rng(5).normal(loc=3.0, scale=7.0, size=(n_rows, 1))
    sums = ColumnSums(1)
    sums.add(X)
    changed_centres = changed_scales = 0
    for seed in range(n_trials):
        key = seed if keyed else 0
        before = round_location_scale(sums, key)
        row = X[seed % n_rows : seed % n_rows + 1]
        sums.subtract(row)
        after = round_location_scale(sums, key)
        sums.add(row)
        changed_centres += int(before.centre[0] != after.centre[0])
        changed_scales += int(before.scale[0] != after.scale[0])
    return changed_centres, changed_scales


def test_a_removal_changes_values_as_rarely_as_stated() -> None:
    # Mean of |z| is 0.8; D is at least sd / 2 and 1.44 sd on average (harmonically), and a changed
    # scale moves the grid of the centre, too: about 1.5 / n per column for both together.
    n_trials, n_rows = 20_000, 200
    centres, scales = count_changes(n_trials, n_rows, keyed=True)
    assert 0.2 * n_trials / n_rows < centres < 2.2 * n_trials / n_rows
    assert 0.2 * n_trials / n_rows < scales < 1.2 * n_trials / n_rows


def test_without_a_key_all_seeds_change_together() -> None:
    X = np.random.default_rng(5).normal(size=(50, 400))
    sums = ColumnSums(400)
    sums.add(X)
    keyed = [round_location_scale(sums, seed).centre for seed in range(30)]
    assert len({centre.tobytes() for centre in keyed}) == 30
    offsets = keyed_dither(9, Purpose.ROUND_CENTRE, 400) / 2.0**64
    assert abs(offsets.mean() - 0.5) < 0.05
    assert len(np.unique(offsets)) == 400
