"""Columns that break careless sums, and references in exact fractions."""

from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

HOSTILE = st.one_of(
    st.floats(allow_nan=True, allow_infinity=False),
    st.floats(-1e3, 1e3),
    st.sampled_from(
        [0.0, 1e300, -1e300, 1e-300, 5e-324, -5e-324, 2.2e-308, 1.7976931348623157e308, np.nan]
    ),
    st.integers(-3, 3).map(lambda k: 1.7e9 + k),
)


def draw_matrix(max_rows: int = 8, max_columns: int = 3) -> st.SearchStrategy[Any]:
    """Return matrices with values of all sizes, some of them missing."""
    shapes = st.tuples(st.integers(1, max_rows), st.integers(1, max_columns))
    return shapes.flatmap(lambda shape: hnp.arrays(np.float64, shape, elements=HOSTILE))


def values_of(column: Any) -> list[Fraction]:
    """Return the values that are not missing."""
    return [Fraction(float(x)) for x in column if not np.isnan(x)]


def mean_of(column: Any) -> Fraction:
    """Return the mean."""
    values = values_of(column)
    return sum(values, Fraction(0)) / len(values)


def variance_of(column: Any) -> Fraction:
    """Return the population variance, by its definition."""
    mean, values = mean_of(column), values_of(column)
    return sum(((x - mean) ** 2 for x in values), Fraction(0)) / len(values)


def power_of_two(dither: int) -> int:
    """Return 2**(dither / 2**64) in units of 2**-63, from the rule in the C++ header."""
    power, root = 1 << 63, 1 << 64
    for bit in range(63, -1, -1):
        root = isqrt(root << 63)
        if dither >> bit & 1:
            power = power * root >> 63
    return power


def rounded_log2(value: Fraction, dither: int) -> int:
    """Return the largest integer e with value >= 2**(e - 1) * P(dither) / 2**63."""
    threshold = Fraction(power_of_two(dither), 2**63)
    exponent = value.numerator.bit_length() - value.denominator.bit_length() + 2
    while value < Fraction(2) ** (exponent - 1) * threshold:
        exponent -= 1
    return exponent


def rounded_root_log2(square: Fraction, dither: int, step: int) -> int:
    """Return the largest multiple e of g with root >= 2**(e - g) * (P(dither) / 2**63)**g."""
    threshold = Fraction(power_of_two(dither), 2**63) ** (2 * step)
    guess = (square.numerator.bit_length() - square.denominator.bit_length()) // 2
    exponent = (guess // step + 3) * step
    while square < Fraction(4) ** (exponent - step) * threshold:
        exponent -= step
    return exponent


def dithered(value: Fraction, dither: int) -> int:
    """Return floor(value + dither / 2**64)."""
    total = value + Fraction(dither, 2**64)
    return total.numerator // total.denominator
