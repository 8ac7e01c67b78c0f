"""`Frame`: the columns of a data frame, back and forth, and wiped."""

import copy
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.data import Frame, SlotRows, as_frame, as_ids, as_table, numbers_of, to_native
from letheon.state import digest
from tests.sharded.people import examples

TEXTS = st.one_of(st.none(), st.sampled_from(["a", "b", "länger", ""]))
NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))


def pandas_frame(rows: list[Any]) -> pd.DataFrame:
    texts, numbers = [row[0] for row in rows], [row[1] for row in rows]
    return pd.DataFrame(
        {
            "text": pd.Series(texts, dtype="str"),
            "objects": pd.Series(texts, dtype=object),
            "category": pd.Categorical(texts),
            "order": pd.Categorical(texts, ["b", "a", "länger", ""], ordered=True),
            "float": pd.Series(numbers, dtype="float64"),
            "small": pd.Series([k % 5 for k in range(len(rows))], dtype="int8"),
            "gaps": pd.Series([None if k % 3 else k for k in range(len(rows))], dtype="Int64"),
            "flag": pd.Series([k % 2 == 0 for k in range(len(rows))], dtype=bool),
        }
    )


def polars_frame(rows: list[Any]) -> pl.DataFrame:
    texts = [row[0] for row in rows]
    numbers = [float("nan") if row[1] is None else row[1] for row in rows]
    flags = [None if k % 2 else True for k in range(len(rows))]
    return pl.DataFrame(
        {
            "text": pl.Series(texts, dtype=pl.String),
            "category": pl.Series(texts, dtype=pl.Categorical),
            "enum": pl.Series(texts, dtype=pl.Enum(["b", "a", "länger", ""])),
            "float": pl.Series(numbers, dtype=pl.Float64),
            "gaps": pl.Series([None if k % 3 else k for k in range(len(rows))], dtype=pl.Int32),
            "flag": pl.Series(flags, dtype=pl.Boolean),
        }
    )


ROWS = st.lists(st.tuples(TEXTS, NUMBERS), min_size=1, max_size=8)


@pytest.mark.parametrize("make", [pandas_frame, polars_frame])
@given(rows=ROWS, data=st.data())
@examples(40)
def test_wiped_rows_leave_the_frame_of_the_others(make: Any, rows: list[Any], data: Any) -> None:
    keep = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    native = make(rows)
    held = SlotRows(as_table(native), None, as_ids(list(range(len(rows)))))
    assert digest(held) == digest(SlotRows(as_table(native), None, held.ids))
    if not any(keep):
        return
    held.wipe(np.flatnonzero(~np.array(keep)))
    chosen = [row for row, kept in zip(rows, keep, strict=True) if kept]
    numbered = [k for k, kept in enumerate(keep) if kept]
    rest = native[numbered] if isinstance(native, pl.DataFrame) else native.iloc[numbered]
    fresh = SlotRows(as_table(rest), None, as_ids(numbered))
    assert digest(held) == digest(fresh)
    present = {text for text, _ in chosen if text is not None}
    for values in held.X.values:
        assert {value for value in values if value is not None} <= present
    joined = copy.copy(held)
    joined.append(as_table(make(rows)), None, as_ids([100 + k for k in range(len(rows))]))
    assert len(joined) == len(chosen) + len(rows)


@pytest.mark.parametrize("make", [pandas_frame, polars_frame])
@given(rows=ROWS)
@examples(40)
def test_tall_frames_have_the_codes_of_short_ones(make: Any, rows: list[Any]) -> None:
    short, tall = as_frame(make(rows)), as_frame(make(rows * 60))
    assert tall.values == short.values
    assert [list(map(type, known)) for known in tall.values] == [
        list(map(type, known)) for known in short.values
    ]
    np.testing.assert_array_equal(tall.codes, np.tile(short.codes, (60, 1)))


@pytest.mark.parametrize(
    "values", [["a", 1, None], [1, 2.0, None], [True, "b"], [np.str_("a"), None]]
)
def test_tall_columns_of_objects_are_read_like_short_ones(values: list[Any]) -> None:
    def read(times: int) -> Any:
        try:
            frame = as_frame(pd.DataFrame({"x": pd.Series(values * times, dtype=object)}))
        except ValueError as error:
            return str(error)
        return (
            frame.values,
            [list(map(type, known)) for known in frame.values],
            frame.codes[: len(values)],
        )

    np.testing.assert_equal(read(60), read(1))


@pytest.mark.parametrize("make", [pandas_frame, polars_frame])
def test_there_and_back(make: Any) -> None:
    native = make([("a", 1.5), (None, None), ("länger", -2.0)])
    back = to_native(as_table(native))
    assert list(back.columns) == list(native.columns)
    assert digest(as_frame(back).to_native()) == digest(as_frame(native).to_native())


def test_arrays_of_objects() -> None:
    table = as_table(np.array([["a", 1], ["b", None], ["a", 2.0]], object))
    assert isinstance(table, Frame)
    assert table.to_native().tolist() == [["a", 1], ["b", None], ["a", 2]]
    assert table.count_codes(0) == {"a": 2, "b": 1}
    assert table.map_codes(0, {"a": 5}, -1).tolist() == [5, -1, 5]


def test_numbers_of_a_frame() -> None:
    frame = as_frame(pd.DataFrame({"n": [1, 2], "t": pd.Series([3, None], dtype=object)}))
    assert numbers_of(frame)[0].tolist() == [1.0, 3.0]
    with pytest.raises(ValueError, match="could not convert string to float: column 't'"):
        numbers_of(as_frame(pd.DataFrame({"t": ["x"]})))


@pytest.mark.parametrize(
    ("native", "message"),
    [
        (pd.DataFrame({"day": pd.to_datetime(["2020-01-01"])}), "'day' has dtype datetime64"),
        (pd.DataFrame({"big": [2**53 + 1]}), "'big' contains 9007199254740993"),
        (pd.DataFrame({"list": [[1, 2]]}), "'list' (contains a value of type list|has dtype List)"),
        (pd.DataFrame({"mix": pd.Series([True, 2], dtype=object)}), "mixes booleans and numbers"),
    ],
)
def test_columns_that_cannot_be_stored(native: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_table(native)


def test_other_columns_are_not_joined() -> None:
    frame = as_frame(pd.DataFrame({"a": ["x"]}))
    with pytest.raises(ValueError, match=r"new rows have the columns b \(.*\); expected a"):
        frame.concat(as_frame(pd.DataFrame({"b": ["x"]})))


def test_error_names_only_columns_of_another_type() -> None:
    frame = as_frame(pd.DataFrame({"a": [1.0], "b": ["x"]}))
    with pytest.raises(ValueError, match=r"columns a \(\w+\); expected a \(float64\)$"):
        frame.concat(as_frame(pd.DataFrame({"a": ["x"], "b": ["x"]})))


def test_people_are_counted() -> None:
    rows = SlotRows(np.zeros((30, 1)), None, as_ids([k // 2 for k in range(30)]))
    assert rows.n_people == 15
    rows.wipe(np.array([0]))
    assert rows.n_people == 15
    rows.wipe(np.array([1, 2, 3]))
    assert rows.n_people == 13
    rows.append(np.zeros((2, 1)), None, as_ids([0, 14]))
    assert rows.n_people == 14
