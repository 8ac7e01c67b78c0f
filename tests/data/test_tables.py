"""NumPy arrays, sparse matrices and texts as a model holds them."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from letheon.data import hold_table, is_text_column, present_table, table_length
from letheon.data._tables import join_rows, slice_rows, take_rows
from tests.data.buffers import owned_bytes

CANARY = 1234567.890625
ODD_NAN = np.array([0x7FF8000000000123], np.uint64).view(np.float64)[0]
SPARSE = [sp.csr_array, sp.csr_matrix, sp.csc_array, sp.csc_matrix, sp.coo_array, sp.coo_matrix]


def bits(values: Any) -> list[int]:
    return np.ascontiguousarray(values, np.float64).view(np.uint64).ravel().tolist()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f8", "i1", ">i4", "i8", "u1", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_keep_dtype_and_lose_layout(dtype: str, order: Any) -> None:
    X = np.array([[1, 0, 1], [0, 1, 1]], dtype, order=order)
    held = hold_table(X)
    assert held.dtype == np.dtype(dtype).newbyteorder("=")
    assert held.dtype.isnative
    assert held.flags.c_contiguous
    assert held.base is None
    assert np.array_equal(held, X)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_one_zero_and_one_nan(dtype: Any) -> None:
    held = hold_table(np.array([[-0.0, ODD_NAN], [-np.nan, 0.0]]).astype(dtype))
    assert bits(held) == bits([[0.0, np.nan], [np.nan, 0.0]])


@pytest.mark.parametrize("view", [lambda X: X, lambda X: X[::-1, ::2], lambda X: X.T])
def test_caller_keeps_its_array(view: Any) -> None:
    X = np.arange(12, dtype=float).reshape(3, 4)
    X[0, 0] = -0.0
    held = hold_table(view(X))
    before = held.copy()
    assert np.signbit(X[0, 0]), "the caller's array was changed"
    X[:] = 99
    assert np.array_equal(held, before), "the model reads the caller's array"


def test_memmap_and_list_become_plain_arrays(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "X", np.float64, "w+", shape=(2, 2))
    for X in (mapped, [[0.0, 0.0], [0.0, 0.0]]):
        held = hold_table(X)
        assert type(held) is np.ndarray
        assert held.base is None


@pytest.mark.parametrize("odd", [None, "a", 2.5, True])
def test_objects_stay_objects_after_any_removal(odd: Any) -> None:
    # Numbers among objects must not become float64 once no other row is left, or before.
    held = hold_table(np.array([[1, 2], [odd, 3]], object))
    left = take_rows(held, np.array([0]))
    assert held.dtype == left.dtype == object
    assert [type(value) for value in left.flat] == [int, int]
    assert held[1, 0] is odd


@pytest.mark.parametrize(
    "X",
    [
        [[1, 2]],
        [[True, 2]],
        [[1, 2.5]],
        ((1, 2),),
        [np.array([1, 2], np.float32)],
        [np.array([1, 2], np.int8), np.array([0.5, 1])],
    ],
)
def test_a_list_of_numbers_is_float64_whatever_they_are(X: Any) -> None:
    held = hold_table(X)
    assert held.dtype == np.float64
    assert held.tolist() == [[float(value) for value in row] for row in X]


@pytest.mark.parametrize("X", [[["a", 1.0]], [[1.0], [None]], [["a"], [None]], ["a", 1], [[2**70]]])
def test_lists_of_mixed_kinds_are_refused(X: Any) -> None:
    with pytest.raises(ValueError, match=r"list of mixed types"):
        hold_table(X)


@pytest.mark.parametrize(
    "X", [[["a", "b"]], np.array([["a", "b"]]), np.array([["a", "b"]], object)]
)
def test_tables_of_text_are_python_strings(X: Any) -> None:
    held = hold_table(X)
    assert held.dtype == object
    assert {type(value) for value in held.flat} == {str}


def test_mixed_objects_stay_as_they_are() -> None:
    assert hold_table(np.array([["a", None], ["b", 1]], object)).tolist() == [["a", None], ["b", 1]]


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([1.0, 2.0], "Expected 2D array"),
        (np.empty((0, 2)), "0 sample"),
        (np.empty((2, 0)), "0 feature"),
        ([[1 + 1j]], "Complex data not supported"),
        ([["a"], ["b", "c"]], "inhomogeneous"),
        ([], "Expected 2D array"),
    ],
)
def test_impossible_tables_raise_what_sklearn_users_know(X: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hold_table(X)


@pytest.mark.parametrize("kind", SPARSE, ids=lambda kind: kind.__name__)
def test_sparse_is_held_as_canonical_csr(kind: Any) -> None:
    dense = np.array([[0, 2.0, 1.0], [3.0, 0, 0]])
    held = hold_table(kind(dense))
    assert held.format == "csr"
    assert isinstance(held, sp.sparray) == issubclass(kind, sp.sparray)
    assert np.array_equal(held.toarray(), dense)
    assert held.indices.tolist() == [1, 2, 0]
    assert held.indptr.tolist() == [0, 2, 3]
    assert held.indices.dtype == held.indptr.dtype == np.int32


def test_sparse_duplicates_order_and_index_width_do_not_show() -> None:
    index = np.array([2, 0, 0], np.int64)
    twice = sp.csr_array(
        (np.array([1.0, 2.0, -0.0]), index, np.array([0, 3], np.int64)), shape=(1, 3)
    )
    once = sp.csr_array((np.array([2.0, 1.0]), np.array([0, 2], np.int32), [0, 2]), shape=(1, 3))
    a, b = hold_table(twice), hold_table(once)
    for name in ("data", "indices", "indptr"):
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes()
        assert getattr(a, name).dtype == getattr(b, name).dtype
    assert index.tolist() == [2, 0, 0], "the caller's matrix was changed"


def test_sparse_values_are_plain_floats() -> None:
    held = hold_table(sp.csr_array((np.array([-0.0, ODD_NAN]), ([0, 0], [0, 1])), shape=(1, 2)))
    assert bits(held.data) == bits([0.0, np.nan])


@pytest.mark.parametrize("kind", SPARSE, ids=lambda kind: kind.__name__)
def test_caller_keeps_its_sparse_matrix(kind: Any) -> None:
    X = kind(np.array([[1.0, 2.0], [3.0, 4.0]]))
    held = hold_table(X)
    X.data[:] = 99
    assert held.toarray().tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    "X", [["a b", "c"], ("a b", "c"), np.array(["a b", "c"]), np.array(["a b", "c"], object)]
)
def test_texts_are_one_column_of_python_strings(X: Any) -> None:
    held = hold_table(X)
    assert is_text_column(held)
    assert table_length(held) == 2
    assert held.tolist() == ["a b", "c"]
    assert {type(value) for value in held} == {str}, "np.str_ would have other canonical bytes"


@given(hnp.arrays(st.sampled_from(["f4", "f8", "i4"]), (5, 2)), st.lists(st.integers(0, 4)))
def test_take_is_indexing_in_fresh_memory(X: Any, positions: list[int]) -> None:
    held = hold_table(X)
    taken = take_rows(held, np.array(positions, np.int64))
    assert np.array_equal(taken, held[positions], equal_nan=True)
    assert taken.base is None
    assert not np.shares_memory(taken, held)


@given(
    hnp.arrays("i8", (5, 3), elements=st.integers(-1, 1)), st.lists(st.integers(0, 4), min_size=1)
)
def test_sparse_take_is_indexing(X: Any, positions: list[int]) -> None:
    taken = take_rows(hold_table(sp.csr_array(X)), np.array(positions, np.int64))
    assert np.array_equal(taken.toarray(), X[positions])
    assert taken.data.tobytes() == hold_table(sp.csr_array(X[positions])).data.tobytes()


@pytest.mark.parametrize("kind", [np.array, sp.csr_array, sp.csr_matrix])
def test_removed_row_is_in_no_buffer(kind: Any) -> None:
    held = hold_table(kind([[1.0, 2.0], [CANARY, 3.0], [4.0, 5.0]]))
    secret = np.float64(CANARY).tobytes()
    taken = take_rows(held, np.array([0, 2]))
    arrays = [taken] if isinstance(taken, np.ndarray) else [taken.data, taken.indices, taken.indptr]
    assert secret in owned_bytes(held if isinstance(held, np.ndarray) else held.data)
    assert not any(secret in owned_bytes(array) for array in arrays)


@pytest.mark.parametrize("kind", [np.array, sp.csr_array])
def test_rows_to_train_on_cannot_spoil_the_held_ones(kind: Any) -> None:
    held = hold_table(kind([[1.0, 2.0], [3.0, 4.0]]))
    part = slice_rows(held, 0, 2)
    data = part if isinstance(part, np.ndarray) else part.data
    with suppress(ValueError):  # read-only is just as good as a copy
        data *= 0
    assert np.array_equal(held.toarray() if sp.issparse(held) else held, [[1, 2], [3, 4]])


@pytest.mark.parametrize("kind", [np.array, sp.csr_array, sp.csr_matrix])
def test_joined_rows_keep_kind_and_dtype(kind: Any) -> None:
    held, more = hold_table(kind(np.array([[1, 2]], "f4"))), hold_table(kind([[3.0, 4.0]]))
    both = join_rows(held, more)
    assert type(both) is type(held)
    assert both.dtype == np.float32
    assert (both.toarray() if sp.issparse(both) else both).tolist() == [[1, 2], [3, 4]]


def test_sparse_matrix_stays_a_matrix_whatever_joins() -> None:
    # Otherwise the kind of the table would show that a row was added and removed.
    held = hold_table(sp.csr_matrix([[1.0]]))
    assert type(join_rows(held, hold_table(sp.csr_array([[2.0]])))) is type(held)


@pytest.mark.parametrize(
    ("held", "given"),
    [
        (np.array([[1]]), [[1.5]]),
        (np.array([[1]], np.int8), [[300]]),
        (np.array([[1]]), [[np.nan]]),
        (np.array([[1]], np.uint8), [[-1]]),
        (sp.csr_array([[1]]), sp.csr_array([[1.5]])),
        (np.array([[True]]), [[2]]),
    ],
)
def test_values_never_change_to_fit_in(held: Any, given: Any) -> None:
    with pytest.raises(ValueError, match=r"new rows have dtype .* do not fit into .*; fit with"):
        join_rows(hold_table(held), hold_table(given))


def test_whole_numbers_may_join_ints_and_floats() -> None:
    ints, floats = hold_table(np.array([[1]])), hold_table(np.array([[2.0]]))
    assert join_rows(ints, floats).dtype == np.int64
    assert join_rows(floats, ints).dtype == np.float64
    assert join_rows(floats, ints).tolist() == [[2.0], [1.0]]


@pytest.mark.parametrize(
    ("held", "given"),
    [
        ([[1.0, 2.0]], [[1.0]]),
        ([[1.0]], [["a"]]),
        ([["a"]], [[1.0]]),
        ([[1.0]], sp.csr_array([[1.0]])),
        (["a text"], [["a text"]]),
        (sp.csr_array([[1.0, 2.0]]), sp.csr_array([[1.0]])),
    ],
)
def test_other_layouts_are_refused(held: Any, given: Any) -> None:
    with pytest.raises(
        ValueError, match=r"X has the layout .*; this model was fitted with .*same kind of table"
    ):
        join_rows(hold_table(held), hold_table(given))


@pytest.mark.parametrize("kind", [np.array, np.asfortranarray, *SPARSE])
def test_rows_to_predict_cannot_be_spoilt(kind: Any) -> None:
    X = kind(np.array([[1.0, -0.0], [3.0, 4.0]]))
    before = X.copy()
    shown = present_table(X)
    data = shown if isinstance(shown, np.ndarray) else shown.data
    with suppress(ValueError):  # read-only is just as good as a copy
        data *= 0
    same = (before != X).nnz == 0 if sp.issparse(X) else np.array_equal(X, before)
    assert same, "the caller's rows were changed"


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "u1", "?"])
def test_rows_to_predict_are_not_copied_for_nothing(dtype: str) -> None:
    X = np.array([[1, 0], [0, 1]], dtype)
    shown = present_table(X)
    assert np.shares_memory(shown, X)
    assert X.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        shown[0, 0] = 0


@given(hnp.arrays(st.sampled_from(["f4", "f8", "i4"]), (3, 2)))
def test_rows_to_predict_are_the_values_that_would_be_held(X: Any) -> None:
    held, shown = hold_table(X), present_table(X)
    assert shown.dtype == held.dtype
    assert np.array_equal(shown, held, equal_nan=True)
    assert not np.signbit(shown[shown == 0]).any(), "-0.0 may be told from 0.0"


@pytest.mark.parametrize("X", [[[1, 2]], ["a text"], np.array([["a", 1]], object)])
def test_other_rows_to_predict_are_converted_as_when_held(X: Any) -> None:
    held, shown = hold_table(X), present_table(X)
    assert (shown.dtype, shown.tolist()) == (held.dtype, held.tolist())
