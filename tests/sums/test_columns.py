"""Exact sums of columns, against fractions."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from letheon.sums import ColumnSums
from tests.sums.columns import draw_matrix, mean_of, values_of, variance_of


def sum_rows(X: Any) -> ColumnSums:
    sums = ColumnSums(X.shape[1])
    sums.add(np.ascontiguousarray(X))
    return sums


@given(draw_matrix())
def test_sums_are_those_of_fractions(X: Any) -> None:
    sums = sum_rows(X)
    for j, column in enumerate(X.T):
        values = values_of(column)
        assert sums.counts[j] == len(values)
        assert sums.exact_total(j) == sum(values)
        assert sums.exact_square_total(j) == sum(x * x for x in values)
        if values:
            assert sums.exact_variance(j) == variance_of(column)


@given(draw_matrix())
def test_floats_are_rounded_once(X: Any) -> None:
    sums = sum_rows(X)
    for j, column in enumerate(X.T):
        if not values_of(column):
            assert np.isnan(sums.means[j])
            assert np.isnan(sums.variances[j])
            continue
        assert sums.means[j] == float(mean_of(column))
        assert not np.signbit(sums.means[j]) or sums.means[j] < 0
        try:
            variance = float(variance_of(column))
        except OverflowError:
            variance = np.inf
        assert sums.variances[j] == variance


@given(draw_matrix(), st.randoms())
def test_order_and_removed_rows_leave_no_trace(X: Any, random: Any) -> None:
    order = list(range(len(X)))
    random.shuffle(order)
    n_kept = random.randint(0, len(X))
    sums = sum_rows(X[order])
    for row in order[n_kept:]:
        sums.subtract(X[row : row + 1])
    assert sums == sum_rows(X[sorted(order[:n_kept])])


@given(draw_matrix(), st.integers(0, 8))
def test_sparse_rows_have_the_same_sums(X: Any, n_removed: int) -> None:
    X[np.abs(X) < 1.0] = 0.0
    table = sp.csr_array(X)
    sums = ColumnSums(X.shape[1])
    sums.add(table)
    sums.subtract(table[:n_removed])
    assert sums == sum_rows(X[n_removed:])


def test_sparse_rows_that_are_not_sorted_or_not_valid() -> None:
    table = sp.csr_array((np.array([2.0, 1.0, 4.0]), np.array([1, 0, 1]), np.array([0, 3])))
    sums = ColumnSums(2)
    sums.add(table)
    assert sums.totals.tolist() == [1.0, 6.0]
    assert table.data.tolist() == [2.0, 1.0, 4.0]
    before = sums.copy()
    for wrong, message in (([[1.0, np.inf]], "infinity"), ([[0.0, 1.0, 1.0]], "are missing")):
        with pytest.raises(ValueError, match=message):
            sums.add(sp.csr_array(np.array(wrong)))
    begins, columns = np.array([0, 1]), np.array([1, 0])
    with pytest.raises(ValueError, match="do not match"):
        sums._core.change_sparse(begins, columns, np.ones(2), True)
    assert sums == before


def test_many_sparse_rows_and_carries() -> None:
    X = np.full((5_000, 2), 1.7e9)
    X[:, 1] = 0.0
    sums = ColumnSums(2)
    sums.add(sp.csr_array(X))
    assert sums == sum_rows(X)


def test_many_rows_and_carries() -> None:
    rng = np.random.default_rng(3)
    X = np.ldexp(rng.normal(size=(9_001, 3)), rng.integers(-1070, 900, size=(9_001, 3)))
    sums = sum_rows(X)
    assert all(sums.exact_total(j) == sum(values_of(X[:, j])) for j in range(3))
    # Chunks would overflow without carries: 9,001 equal numbers with the largest mantissa.
    largest = np.full((9_001, 1), -np.nextafter(2.0**31, 0.0))
    sums = sum_rows(largest)
    assert sums.exact_total(0) == 9_001 * values_of(largest[:1, 0])[0]
    for start in range(0, 9_001, 1_000):
        sums.subtract(largest[start : start + 1_000])
    assert sums == ColumnSums(1)


def test_infinity_is_refused_and_changes_nothing() -> None:
    X = np.ones((1_000, 2))
    sums = sum_rows(X)
    before = sums.copy()
    X[999, 1] = -np.inf
    for change in (sums.add, sums.subtract):
        with pytest.raises(ValueError, match=r"Input X contains infinity or a value too large"):
            change(X)
    assert sums == before


def test_other_arrays_are_refused() -> None:
    sums = ColumnSums(2)
    with pytest.raises(TypeError):
        sums.add(np.ones((3, 2), dtype=np.float32))
    with pytest.raises(TypeError):
        sums.add(np.ones((2, 3)).T)
    with pytest.raises(ValueError, match="number of columns"):
        sums.add(np.ones((3, 3)))


@given(draw_matrix())
def test_state_and_copies(X: Any) -> None:
    sums = sum_rows(X)
    for again in (
        ColumnSums._from_state(sums._to_state()),
        pickle.loads(pickle.dumps(sums)),
        copy.deepcopy(sums),
    ):
        assert again == sums
        again.add(X)
        again.subtract(X)
        assert again == sums
        assert np.array_equal(again.variances, sums.variances, equal_nan=True)


def test_selected_columns() -> None:
    X = np.arange(12.0).reshape(4, 3)
    sums = sum_rows(X)
    selected = sums.select([2, -1, 0])
    expected = X[:, [2, 0, 0]].copy()
    expected[:, 1] = np.nan
    assert selected == sum_rows(expected)
    with pytest.raises(ValueError, match="outside the table"):
        sums.select([3])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sums", np.zeros((2, 271), np.uint8)),
        ("squares", np.zeros((1, 536), np.uint8)),
        ("counts", np.array([-1, 0])),
        ("counts", np.array([1.0, 0.0])),
    ],
)
def test_a_damaged_state_is_refused(name: str, value: Any) -> None:
    state = {**ColumnSums(2)._to_state(), name: value}
    with pytest.raises(ValueError, match=r"expected|must be"):
        ColumnSums._from_state(state)


@given(st.binary(min_size=808, max_size=808), st.integers(0, 2**63 - 1))
def test_any_integers_in_a_file_are_safe(data: bytes, count: int) -> None:
    raw = np.frombuffer(data, np.uint8)
    state = {
        "counts": np.array([count]),
        "sums": raw[None, :272],
        "squares": raw[None, 272:],
    }
    sums = ColumnSums._from_state(state)
    assert all(np.array_equal(sums._to_state()[name], value) for name, value in state.items())
    dither = np.array([12345], dtype=np.uint64)
    assert sums._core.round(dither, dither, 52, 3)[1].shape == sums.variances.shape == (1,)
