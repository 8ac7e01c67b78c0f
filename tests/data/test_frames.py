"""pandas and polars frames as a model holds them."""

import datetime as dt
import pickle
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.preprocessing import StandardScaler

from letheon.data import _tables, hold_table
from letheon.data._tables import join_rows, slice_rows, take_rows
from tests.data.buffers import owned_bytes, polars_text_bytes

FRAMES = [pd.DataFrame, pl.DataFrame]
ODD_NAN = np.array([0x7FF8000000000123], np.uint64).view(np.float64)[0]
LONG = "a text that is too long to lie inside its view"
COLUMNS: dict[str, Any] = {
    "int": [1, 2, 3],
    "small": np.array([1, 2, 3], np.int8),
    "float": [0.5, np.nan, 2.0],
    "single": np.array([0.5, 1.5, 2.5], np.float32),
    "flag": [True, False, True],
    "text": ["x", "y", "z"],
    "when": [dt.datetime(2020, 1, day) for day in (1, 2, 3)],
}


def categories(frame: Any, name: str = "c") -> list[Any]:
    dtype = frame[name].dtype
    return list(dtype.categories)


@pytest.mark.parametrize("make", FRAMES)
def test_columns_keep_their_types_and_values(make: Any) -> None:
    frame = make(COLUMNS)
    held = hold_table(frame)
    assert type(held) is type(frame)
    assert list(held.dtypes) == list(frame.dtypes)
    assert list(held.columns) == list(COLUMNS)
    assert held.equals(frame)


@pytest.mark.parametrize("make", FRAMES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n_rows", [1, 3])
def test_one_zero_and_one_nan(make: Any, dtype: Any, n_rows: int) -> None:
    odd = np.array([-0.0, ODD_NAN, 1.0], dtype)[:n_rows]
    held = np.array(hold_table(make({"a": odd}))["a"])
    assert held.dtype == dtype
    assert held.tobytes() == np.array([0.0, np.nan, 1.0], dtype)[:n_rows].tobytes()


def test_only_the_odd_columns_of_a_wide_pandas_frame_change() -> None:
    columns = {f"c{k}": np.array([0.0, np.nan, k]) for k in range(40)}
    columns["c7"][0], columns["c9"][1] = -0.0, ODD_NAN
    columns["c11"][1] = -np.array(np.nan)  # the sign bit
    held = hold_table(pd.DataFrame(columns))
    expected = {f"c{k}": np.array([0.0, np.nan, k]) for k in range(40)}
    assert [held[name].to_numpy().tobytes() for name in expected] == [
        values.tobytes() for values in expected.values()
    ]
    assert columns["c7"][0].tobytes() == np.array(-0.0).tobytes()  # those of the caller stay


def test_missing_values_stay_missing() -> None:
    nullable = hold_table(pd.DataFrame({"a": pd.array([-0.0, None, 2.0], dtype="Float64")}))["a"]
    nulls = hold_table(pl.DataFrame({"a": [-0.0, None, float("nan")]}))["a"]
    assert nullable.dtype == "Float64"
    assert nullable.isna().tolist() == [False, True, False]
    assert nulls.is_null().to_list() == [False, True, False]
    assert nulls.is_nan().to_list() == [False, None, True]


@pytest.mark.parametrize(
    "frame", [pd.DataFrame({"i": [1, 2]}), pd.DataFrame({"f": [1.0, 2.0], "i": [1, 2]})]
)
def test_caller_may_change_its_pandas_frame(frame: Any) -> None:
    held = hold_table(frame)
    assert held is not frame
    assert not any(np.shares_memory(held[name].array, frame[name].array) for name in frame)
    frame.loc[0, "i"] = 99
    assert held["i"].tolist() == [1, 2]


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_caller_may_change_arrays_behind_its_polars_frame(dtype: Any) -> None:
    array = np.array([1, 2], dtype)
    frame = pl.DataFrame({"i": array})  # polars shares the array's memory
    held = hold_table(frame)
    array[0] = 99
    assert held["i"].to_list() == [1, 2]


def test_index_is_dropped_and_never_ids() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0]}, index=["secret-1", "secret-2", "secret-3"])
    held = hold_table(frame)
    assert held.index.tolist() == [0, 1, 2]
    assert take_rows(held, np.array([0, 2])).index.tolist() == [0, 1]
    assert frame.index[0] == "secret-1"


def test_columns_named_by_numbers() -> None:
    frame = pd.DataFrame({0: [-0.0, 1.0], 1: pd.Categorical(["a", "b"])})
    taken = take_rows(hold_table(frame), np.array([0]))
    assert list(taken.columns) == [0, 1]
    assert categories(taken, 1) == ["a"]  # type: ignore[arg-type]


@pytest.mark.parametrize("ordered", [False, True])
def test_pandas_categories_shrink_when_held_and_when_rows_leave(ordered: bool) -> None:
    column = pd.Categorical(["b", "a", "b"], categories=["a", "b", "never"], ordered=ordered)
    held = hold_table(pd.DataFrame({"c": column}))
    assert categories(held) == ["a", "b"]
    left = take_rows(held, np.array([0, 2]))
    assert categories(left) == ["b"]
    assert left["c"].cat.ordered == ordered
    assert b"never" not in pickle.dumps(held)


@pytest.mark.parametrize("positions", [[0, 1], [1, 2], [0, 2]])
def test_removed_numbers_leave_the_memory_of_pandas(positions: list[int]) -> None:
    # pandas takes neighbouring rows as a view, which keeps the whole old block alive.
    secret = 1234567.890625
    values = [secret if row not in positions else float(row) for row in range(3)]
    held = hold_table(pd.DataFrame({"a": values, "b": values}))
    taken = take_rows(held, np.array(positions))
    assert np.float64(secret).tobytes() in owned_bytes(held["a"].to_numpy())
    assert np.float64(secret).tobytes() not in owned_bytes(taken["a"].to_numpy())


def test_order_of_ordered_categories_is_kept() -> None:
    column = pd.Categorical(["low", "high"], categories=["low", "mid", "high"], ordered=True)
    assert categories(hold_table(pd.DataFrame({"c": column}))) == ["low", "high"]


def test_polars_enum_shrinks_in_its_order() -> None:
    series = pl.Series(["b", "a", None], dtype=pl.Enum(["c", "b", "a"]))
    held = hold_table(pl.DataFrame({"c": series}))
    assert categories(held) == ["b", "a"]
    assert categories(take_rows(held, np.array([1, 2]))) == ["a"]
    assert held["c"].to_list() == ["b", "a", None]


def test_polars_categorical_keeps_values() -> None:
    frame = pl.DataFrame({"c": pl.Series(["b", "a", None], dtype=pl.Categorical)})
    taken = take_rows(hold_table(frame), np.array([2, 0]))
    assert taken["c"].dtype == pl.Categorical
    assert taken["c"].to_list() == [None, "b"]


def test_removed_texts_leave_the_buffers_of_polars() -> None:
    frame = hold_table(pl.DataFrame({"t": [f"{LONG} 1", f"{LONG} secret", f"{LONG} 3"]}))
    naive = frame[[0, 2]]
    assert b"secret" in polars_text_bytes(naive["t"]), "polars copies now: the test lost its point"
    assert b"secret" not in polars_text_bytes(take_rows(frame, np.array([0, 2]))["t"])


@pytest.mark.parametrize("make", FRAMES)
def test_removed_values_are_in_no_pickle(make: Any) -> None:
    values = {"t": ["one", "secret-name", "three"], "f": [1.0, 1234567.890625, 3.0]}
    taken = take_rows(hold_table(make(values)), np.array([0, 2]))
    dumped = pickle.dumps(taken)
    assert b"secret-name" not in dumped
    assert np.float64(1234567.890625).tobytes() not in dumped


@pytest.mark.parametrize("make", FRAMES)
def test_take_is_indexing(make: Any) -> None:
    held = hold_table(make({"i": [10, 20, 30], "t": ["a", "b", "c"]}))
    taken = take_rows(held, np.array([2, 0, 2]))
    assert list(taken["i"]) == [30, 10, 30]
    assert list(taken["t"]) == ["c", "a", "c"]


@pytest.mark.parametrize("make", FRAMES)
def test_rows_to_train_on_cannot_spoil_the_held_ones(make: Any) -> None:
    held = hold_table(make({"a": [1.0, 2.0]}))  # one column: NumPy sees it without a copy
    StandardScaler(copy=False).fit_transform(slice_rows(held, 0, 2))
    assert np.array(held).tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize("make", FRAMES)
def test_joined_rows_come_after(make: Any) -> None:
    held = hold_table(make({"f": [1.0], "t": ["a"]}))
    both = join_rows(held, hold_table(make({"f": [2.0], "t": ["b"]})))
    assert list(both["f"]) == [1.0, 2.0]
    assert list(both["t"]) == ["a", "b"]
    assert list(both.dtypes) == list(held.dtypes)


def test_order_of_pandas_categories_tells_no_history() -> None:
    first = hold_table(pd.DataFrame({"c": pd.Categorical(["b", "a"], categories=["b", "a"])}))
    second = hold_table(pd.DataFrame({"c": pd.Categorical(["c", "a"], categories=["c", "a"])}))
    left = take_rows(join_rows(first, second), np.array([2, 3]))
    assert categories(left) == categories(second)
    assert left["c"].cat.codes.tolist() == second["c"].cat.codes.tolist()


def test_mixed_kinds_of_categories_have_an_order() -> None:
    column = pd.Categorical(["x", 2, 1], categories=["x", 2, 1])
    assert categories(hold_table(pd.DataFrame({"c": column}))) == [1, 2, "x"]


def test_joined_enums_are_united() -> None:
    one = hold_table(pl.DataFrame({"c": pl.Series(["b"], dtype=pl.Enum(["b", "z"]))}))
    two = hold_table(pl.DataFrame({"c": pl.Series(["a"], dtype=pl.Enum(["a"]))}))
    both = join_rows(one, two)
    assert both["c"].to_list() == ["b", "a"]
    assert categories(both) == ["b", "a"]
    assert categories(take_rows(both, np.array([0]))) == ["b"]


@pytest.mark.parametrize(
    ("held", "given"),
    [
        (pd.DataFrame({"a": [1]}), pl.DataFrame({"a": [1]})),
        (pl.DataFrame({"a": [1]}), np.array([[1]])),
        (np.array([[1]]), pd.DataFrame({"a": [1]})),
    ],
)
def test_other_kinds_of_tables_are_refused(held: Any, given: Any) -> None:
    with pytest.raises(
        ValueError, match=r"X has the layout .*; this model was fitted with .*same kind of table"
    ):
        join_rows(hold_table(held), hold_table(given))


@pytest.mark.parametrize("make", FRAMES)
@pytest.mark.parametrize(
    ("held", "given", "what"),
    [
        ({"a": [1]}, {"b": [1]}, r"\('b', .*\) instead of \('a', .*\)"),
        ({"a": [1]}, {"a": [1.5]}, r"\('a', '.loat64'\) instead of \('a', '.nt64'\)"),
        ({"a": [1]}, {"a": ["1"]}, r"instead of \('a', '.nt64'\)"),
        (
            {"a": [1], "b": [1]},
            {"b": [1], "a": [1]},
            r"'b'.* of .*'a'.*;.*'a'.* of .*'b'",
        ),
        ({"a": [1], "b": [1]}, {"a": [1]}, "1 columns, not 2"),
        ({"a": [1]}, {"a": [1], "b": [1]}, "2 columns, not 1"),
    ],
)
def test_other_columns_are_refused(make: Any, held: Any, given: Any, what: str) -> None:
    # A join that widened a column would leave it wide after the newcomers have left.
    with pytest.raises(ValueError, match=rf"the columns of X differ .*{what}.*in the same order"):
        join_rows(hold_table(make(held)), hold_table(make(given)))


def test_a_nullable_column_is_another_column() -> None:
    nullable = pd.DataFrame({"a": pd.array([1], dtype="Int64")})
    with pytest.raises(ValueError, match=r"\('a', 'Int64'\) instead of \('a', 'int64'\)"):
        join_rows(hold_table(pd.DataFrame({"a": [1]})), hold_table(nullable))


@pytest.mark.parametrize("make", FRAMES)
def test_a_frame_to_predict_is_shown_without_being_held(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("a frame was converted as if it were kept")

    monkeypatch.setattr(_tables, "hold_table", never)
    monkeypatch.setattr(_tables, "tidy_frame", never)
    frame = make(COLUMNS)
    shown = _tables.present_table(frame)
    assert type(shown) is type(frame)
    assert shown.equals(frame)
    assert list(shown.dtypes) == list(frame.dtypes)


@pytest.mark.parametrize("make", FRAMES)
def test_a_frame_to_predict_cannot_be_spoilt(make: Any) -> None:
    frame = make({"a": [1.0, 2.0]})  # one column: NumPy sees it without a copy
    StandardScaler(copy=False).fit_transform(_tables.present_table(frame))
    assert np.array(frame).tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize("make", FRAMES)
@pytest.mark.parametrize(
    ("columns", "what"), [({"a": []}, r"0 sample"), ({}, r"0 (sample|feature)")]
)
def test_empty_frames_are_refused(make: Any, columns: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        hold_table(make(columns))


@pytest.mark.parametrize("series", [pd.Series(["a b", "c"]), pl.Series(["a b", "c"])])
def test_series_of_texts_is_one_column(series: Any) -> None:
    held = hold_table(series)
    assert held.ndim == 1
    assert held.tolist() == ["a b", "c"]


def test_series_with_missing_texts_is_no_column_of_texts() -> None:
    with pytest.raises(ValueError, match=r"Expected 2D array|Expected a 2-dimensional"):
        hold_table(pd.Series(["a", None]))
