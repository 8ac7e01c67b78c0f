"""Ids: what is accepted, what is refused and with which words, and lists of them."""

import functools
import operator
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.data import Ids, IntIds, TextIds, as_ids, row_ids
from letheon.exceptions import IdsLengthError, IdsTypeError
from letheon.seeds import Purpose, keyed_hash

INTS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
LISTS: st.SearchStrategy[list[Any]] = st.one_of(
    st.lists(INTS, min_size=1), st.lists(TEXTS, min_size=1)
)
TEXT_DTYPE = np.dtypes.StringDType()


def name_of(value: Any) -> str:
    """Name of a test case; an address in it would differ between test processes."""
    return type(value).__name__ if " at 0x" in repr(value) else repr(value)[:40]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([3, -4], [3, -4]),
        ((3, 3), [3, 3]),
        (range(2), [0, 1]),
        ((n for n in (7, 8)), [7, 8]),
        ({5}, [5]),
        ({5: "x"}.keys(), [5]),
        ([np.int8(-1), np.uint64(2**63 - 1)], [-1, 2**63 - 1]),
        (np.array([1, 2], ">i2"), [1, 2]),
        (np.array([200], np.uint8), [200]),
        (np.array([2**63 - 1], np.uint64), [2**63 - 1]),
        (np.array([1, 2], object), [1, 2]),
        (np.array([1, 2, 3, 4])[::2], [1, 3]),
        (np.ma.array([1, 2]), [1, 2]),
        (pd.Series([1, 2], index=[9, 8]), [1, 2]),
        (pd.Series([1, 2], dtype="Int64"), [1, 2]),
        (pd.Series([1, 2], dtype="category"), [1, 2]),
        (pd.Index([1, 2]), [1, 2]),
        (pd.array([1, 2], dtype="UInt8"), [1, 2]),
        (pl.Series([1, 2], dtype=pl.UInt64), [1, 2]),
        ([-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
        ([], []),
        *((np.array([], dtype), []) for dtype in ("u8", "f8", "?", "U1", "S1", "M8[s]", object)),
        (pd.Series([], dtype=float), []),
        (pl.Series([], dtype=pl.Float64), []),
    ],
    ids=name_of,
)
def test_ints_are_normalised(given: Any, expected: list[int]) -> None:
    ids = as_ids(given)
    assert isinstance(ids, IntIds)
    assert type(ids.values) is np.ndarray
    assert ids.values.dtype == np.int64
    assert ids.to_list() == expected


@pytest.mark.parametrize(
    "given",
    [
        ["1", ""],
        [np.str_("1"), ""],
        np.array(["1", ""]),
        np.array(["1", ""], object),
        np.array(["1", ""], TEXT_DTYPE),
        pd.Series(["1", ""]),
        pd.Series(["1", ""], dtype=object),
        pd.Series(["1", ""], dtype="string"),
        pd.Series(["1", ""], dtype="category"),
        pl.Series(["1", ""]),
        pl.Series(["1", ""], dtype=pl.Categorical),
        pl.Series(["1", ""], dtype=pl.Enum(["", "1"])),
        {"1": 0, "": 0}.keys(),
    ],
    ids=lambda given: f"{type(given).__module__}-{getattr(given, 'dtype', type(given).__name__)}",
)
def test_texts_are_normalised(given: Any) -> None:
    ids = as_ids(given)
    assert isinstance(ids, TextIds)
    assert ids.to_list() == ["1", ""]
    assert {type(value) for value in ids.to_array()} == {str}


REFUSED: list[tuple[Any, str]] = [
    ([True], "bool"),
    ([1, True], "bool, int"),
    ([np.True_], "bool"),
    (np.array([True]), "dtype bool"),
    ([1.0], "float"),
    ([float("nan"), 1], "float, int"),
    (np.array([1.0]), "dtype float64"),
    ([b"a"], "bytes"),
    (np.array([b"a"]), r"dtype \|S1"),
    ([None], "NoneType"),
    (["a", None], "NoneType, str"),
    (["a", float("nan")], "float, str"),
    ([pd.NA, 1], "NAType"),
    ([pd.NaT], "NaTType"),
    ([1, "1"], "int, str"),
    (np.array([1, "1"], object), "int, str"),
    ([1 + 0j], "complex"),
    (np.array(["2020-01-01"], "M8[D]"), "datetime64"),
    (np.array([[1], [2]]), "2 dimensions"),
    (np.array(3), "0 dimensions"),
    ([[1], [2]], "list"),
    (np.ma.array([1, 2], mask=[False, True]), "NoneType, int"),
    (pd.Series([1, None], dtype="Int64"), "NAType, int"),
    (pd.Series([1, None]), "float"),
    (pd.Series(["a", None]), "float, str"),
    (pd.Series([True, False]), "bool"),
    (pl.Series([1, None]), "NoneType, int"),
    (pl.Series(["a", None]), "NoneType, str"),
    (np.array(["a", None], np.dtypes.StringDType(na_object=None)), "NoneType, str"),
    ({"a": 1}, "dict"),
    (None, "NoneType"),
    (1.5, "float"),
    (True, "bool"),
    (np.True_, "bool"),
    (b"ab", "bytes"),
    (bytearray(b"ab"), "bytearray"),
    (memoryview(b"ab"), "memoryview"),
    (pd.MultiIndex.from_tuples([(1, 2)]), "tuple"),
]


@pytest.mark.parametrize(("given", "named"), REFUSED, ids=name_of)
def test_other_kinds_are_refused_by_name(given: Any, named: str) -> None:
    with pytest.raises(IdsTypeError, match=rf"ids .*{named}.*expected"):
        as_ids(given)


@pytest.mark.parametrize("given", [2**63, -(2**63) - 1, np.uint64(2**63)])
def test_ints_beyond_64_bits_are_refused(given: int) -> None:
    with pytest.raises(
        IdsTypeError, match=rf"{given}, which does not fit into 64 bits; use str ids"
    ):
        as_ids([0, given])


def test_large_uint64_never_wraps_or_becomes_float() -> None:
    # np.asarray([2**63, -1]) is float64, and uint64 cast to int64 wraps silently.
    for values in ([2**63, -1], np.array([2**63], np.uint64), pl.Series([2**63], dtype=pl.UInt64)):
        with pytest.raises(IdsTypeError, match="9223372036854775808"):
            as_ids(values)


@pytest.mark.parametrize(
    ("bare", "shown"), [("c-17", "'c-17'"), (17, "17"), (np.int64(17), "17"), (np.str_("a"), "'a'")]
)
def test_single_value_is_refused_with_the_remedy(bare: Any, shown: str) -> None:
    with pytest.raises(IdsTypeError, match=rf"is a single id; pass a list: \[.*{shown}.*\]"):
        as_ids(bare)


@pytest.mark.parametrize(
    "frame", [pd.DataFrame({"id": [1]}), pl.DataFrame({"id": [1]}), pl.LazyFrame({"id": [1]})]
)
def test_whole_frame_is_refused_with_the_remedy(frame: Any) -> None:
    # Iterating over a pandas frame gives the names of its columns, which would pass for ids.
    with pytest.raises(IdsTypeError, match="is a data frame; pass one column"):
        as_ids(frame)


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(IdsTypeError, match="not valid Unicode"):
        as_ids(["fine", "\ud800"])


@given(
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(st.characters(exclude_categories=["Cs"])))
)
def test_a_lone_id_in_a_list_is_as_any_other(value: Any) -> None:
    alone, usual = as_ids([value]), as_ids((value,))
    assert type(alone) is type(usual)
    assert alone.to_list() == usual.to_list() == [value]
    assert alone.distinct().to_list() == [value]


@pytest.mark.parametrize("given", [[True], [1.0], [None], [b"x"], [2**63], [[1]], [float("nan")]])
def test_a_lone_value_that_is_no_id_is_refused(given: Any) -> None:
    with pytest.raises(IdsTypeError):
        as_ids(given)


def test_index_of_a_series_is_never_used() -> None:
    assert as_ids(pd.Series(["a", "b"], index=["x", "y"])).to_list() == ["a", "b"]


def test_default_ids_count_the_rows() -> None:
    assert row_ids(None, 3).to_list() == [0, 1, 2]


@pytest.mark.parametrize("unordered", [{1, 2}, frozenset({1, 2})])
def test_sets_are_refused_where_order_matters(unordered: Any) -> None:
    with pytest.raises(IdsTypeError, match="no order; pass a list with one id per row"):
        row_ids(unordered, 2)


def test_a_column_name_is_no_column() -> None:
    with pytest.raises(
        IdsTypeError, match=r"'customer' is a single string; pass one id per row, such as"
    ):
        row_ids("customer", 8)


@pytest.mark.parametrize("given", [[1, None], ["a", float("nan")]])
def test_missing_ids_are_explained(given: Any) -> None:
    with pytest.raises(IdsTypeError, match=r"\(a missing value is a float or None\)"):
        as_ids(given)


@pytest.mark.parametrize("n_rows", [0, 1, 3])
def test_one_id_per_row(n_rows: int) -> None:
    with pytest.raises(IdsLengthError, match=f"got 2 ids for {n_rows} rows"):
        row_ids(["a", "b"], n_rows)


@given(LISTS)
def test_round_trip(values: list[Any]) -> None:
    ids = as_ids(values)
    assert ids.to_list() == values
    assert ids.to_array().tolist() == values
    assert len(ids) == len(values)
    assert as_ids(ids) is ids
    assert as_ids(ids.to_array()).to_list() == values


@given(LISTS, st.data())
def test_take_is_list_indexing(values: list[Any], data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, len(values) - 1)))
    taken = as_ids(values).take(np.array(positions, np.int64))
    assert taken.to_list() == [values[position] for position in positions]


@given(st.sampled_from([0, 17, "p"]), st.sets(st.integers(0, 59), max_size=3))
def test_what_a_small_removal_leaves(start: Any, leaving: set[int]) -> None:
    # Long runs of neighbours are copied as runs.
    values = [start + n if isinstance(start, int) else f"{start * (n % 4)}{n}" for n in range(60)]
    stay = [n for n in range(60) if n not in leaving]
    taken = as_ids(values).take(np.array(stay))
    assert taken.to_list() == [values[n] for n in stay]
    assert all(buffer.base is None for buffer in vars(taken).values())


@given(
    st.one_of(
        st.lists(st.lists(INTS, min_size=1), min_size=1),
        st.lists(st.lists(TEXTS, min_size=1), min_size=1),
    )
)
def test_joined_is_list_addition(lists: list[list[Any]]) -> None:
    first, *others = [as_ids(values) for values in lists]
    assert first.concat(*others).to_list() == functools.reduce(operator.iadd, lists, [])


@given(LISTS)
def test_distinct_keeps_first_appearances(values: list[Any]) -> None:
    doubled = [*values, *values[::-1]]
    assert as_ids(doubled).distinct().to_list() == list(dict.fromkeys(values))


@given(LISTS)
def test_hashes_are_those_of_the_canonical_parts(values: list[Any]) -> None:
    hashes = as_ids(values).hashes(17, Purpose.SHARD, 4)
    assert hashes.tolist() == [keyed_hash(17, Purpose.SHARD, 4, value) for value in values]


@pytest.mark.parametrize(("held", "given"), [([1], ["1"]), (["1"], [1])])
def test_kinds_never_join(held: list[Any], given: list[Any]) -> None:
    kinds = type(held[0]).__name__, type(given[0]).__name__
    with pytest.raises(IdsTypeError, match="has {} ids, but got {} ids".format(*kinds)):
        as_ids(held).concat(as_ids(given))


@pytest.mark.parametrize("make", [lambda: as_ids([11, 22, 33]), lambda: as_ids(["aa", "bb", "cc"])])
def test_taken_ids_share_no_memory(make: Callable[[], Ids]) -> None:
    ids = make()
    taken = ids.take(np.array([0, 2]))
    for name, buffer in vars(taken).items():
        assert not np.shares_memory(buffer, getattr(ids, name))
        assert buffer.base is None


def test_removed_text_leaves_the_buffer() -> None:
    taken = as_ids(["keep", "secret", "this"]).take(np.array([0, 2]))
    assert isinstance(taken, TextIds)
    assert taken.blob.tobytes() == b"keepthis"


def test_caller_may_change_the_array_afterwards() -> None:
    mine = np.array([1, 2])
    ids = as_ids(mine)
    mine[0] = 9
    ids.to_array()[1] = 9
    assert ids.to_list() == [1, 2]


def test_nuls_and_empty_texts_survive() -> None:
    values = ["", "\0", "a\0", "a", "é", "e\u0301"]
    assert as_ids(values).distinct().to_list() == values
    assert as_ids(values).to_array().tolist() == values


@pytest.mark.parametrize("n_ids", [1, 3])
def test_uuids_are_refused_with_a_hint(n_ids: int) -> None:
    with pytest.raises(IdsTypeError, match=r"values of type UUID; .*; use str\(\)"):
        as_ids([uuid.UUID(int=number) for number in range(n_ids)])
    with pytest.raises(IdsTypeError, match=r"ids is a UUID; .*; use str\(\)"):
        as_ids(uuid.UUID(int=1))
