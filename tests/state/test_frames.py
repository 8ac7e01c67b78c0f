"""Frames come back with the same names, dtypes and values, or are refused by name."""

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal as assert_polars_equal

from letheon import state
from letheon.exceptions import CorruptFileError, UnsupportedStateError
from letheon.state._nodes import Coded

PANDAS = {
    "int": pd.Series([1, 2, 3]),
    "uint8": pd.Series([1, 2, 3], dtype="uint8"),
    "float": pd.Series([1.5, np.nan, -0.0]),
    "bool": pd.Series([True, False, True]),
    "text": pd.Series(["a", None, "ü"]),
    "string": pd.Series(["a", None, "c"], dtype="string"),
    "object": pd.Series(["x", None, 3.5], dtype=object),
    "category": pd.Series(pd.Categorical(["u", "v", None], categories=["v", "u", "w"])),
    "ordered": pd.Series(pd.Categorical([2, 1, 2], categories=[2, 1], ordered=True)),
    "Int64": pd.Series([1, None, 3], dtype="Int64"),
    "Float32": pd.Series([1, None, 3], dtype="Float32"),
    "boolean": pd.Series([True, None, False], dtype="boolean"),
    "datetime": pd.Series(pd.to_datetime(["2020-01-01", None, "2021-06-01"])),
    "zoned": pd.Series(pd.to_datetime(["2020-01-01", None, "2021-06-01"])).dt.tz_localize(
        "Europe/Paris"
    ),
    "timedelta": pd.Series(pd.to_timedelta([1, None, 3], unit="s")),
}
POLARS = {
    "int": pl.Series([1, None, 3]),
    "uint8": pl.Series([1, 2, 3], dtype=pl.UInt8),
    "float": pl.Series([1.5, None, float("nan")]),
    "bool": pl.Series([True, None, False]),
    "text": pl.Series(["a", None, "ü"]),
    "categorical": pl.Series(["u", None, "v"], dtype=pl.Categorical),
    "enum": pl.Series(["u", None, "v"], dtype=pl.Enum(["v", "u", "w"])),
    "date": pl.Series([dt.date(2020, 1, 1), None, dt.date(1960, 1, 1)]),
    "time": pl.Series([dt.time(1), None, dt.time(23, 59)]),
    "datetime": pl.Series([dt.datetime(2020, 1, 1), None, dt.datetime(2021, 1, 1)]),
    "milliseconds": pl.Series([dt.datetime(2020, 1, 1)] * 3, dtype=pl.Datetime("ms")),
    "zoned": pl.Series([dt.datetime(2020, 1, 1)] * 3).dt.replace_time_zone("Europe/Paris"),
    "duration": pl.Series([dt.timedelta(1), None, dt.timedelta(-2)]),
}


def again(value: Any) -> Any:
    return state.decode(state.encode(value))


@pytest.mark.parametrize("name", PANDAS)
def test_pandas_column(name: str) -> None:
    series = PANDAS[name].rename(name)
    pd.testing.assert_series_equal(again(series), series)
    pd.testing.assert_frame_equal(again(series.to_frame()), series.to_frame())


@pytest.mark.parametrize("name", POLARS)
def test_polars_column(name: str) -> None:
    series = POLARS[name].alias(name)
    decoded = again(series)
    assert decoded.dtype == series.dtype
    assert_polars_equal(decoded.to_frame(), series.to_frame())
    assert_polars_equal(again(series.to_frame()), series.to_frame())


def test_whole_pandas_frame_with_odd_names() -> None:
    frame = pd.concat(PANDAS.values(), axis=1)
    frame.columns = [*list(PANDAS)[:-2], "int", 7]
    decoded = again(frame)
    pd.testing.assert_frame_equal(decoded, frame)
    assert state.digest(decoded) == state.digest(frame)


def test_whole_polars_frame() -> None:
    frame = pl.DataFrame(POLARS)
    decoded = again(frame)
    assert decoded.schema == frame.schema
    assert state.digest(decoded) == state.digest(frame)


@pytest.mark.parametrize("frame", [pd.DataFrame(index=range(3)), pl.DataFrame(), pd.DataFrame()])
def test_empty_frames(frame: Any) -> None:
    assert again(frame).shape == frame.shape


def test_digest_sees_values_names_and_order() -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": [3, 4]})
    others = [
        frame.rename(columns={"a": "c"}),
        frame[["b", "a"]],
        frame.astype("int32"),
        frame.iloc[::-1],
        pl.DataFrame({"a": [1, 2], "b": [3, 4]}),
    ]
    digests = {state.digest(each) for each in [frame, *others]}
    assert len(digests) == 6


def test_index_is_not_stored() -> None:
    frame = pd.DataFrame({"a": [1, 2]})
    assert state.digest(frame.set_axis([5, 6])) == state.digest(frame)


def test_polars_categories_do_not_depend_on_the_process() -> None:
    first = pl.Series(["forgotten", "kept"], dtype=pl.Categorical)
    second = pl.Series(["kept"], dtype=pl.Categorical)
    assert state.digest(first[1:]) == state.digest(second)
    assert b"forgotten" not in state.encode(first[1:])


@given(st.lists(st.none() | st.text(), max_size=6))
def test_texts_in_both_libraries(texts: list[str | None]) -> None:
    polars = pl.Series(texts, dtype=pl.String)
    assert again(polars).to_list() == texts
    pandas = pd.Series(texts, dtype="str")
    pd.testing.assert_series_equal(again(pandas), pandas)


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"p": pd.period_range("2020", periods=2, freq="D")}),
        pd.DataFrame({"i": pd.interval_range(0, 2)}),
        pd.DataFrame({"s": pd.arrays.SparseArray([0, 1])}),
        pd.DataFrame([[1]], columns=pd.MultiIndex.from_tuples([("a", "b")])),
        pl.DataFrame({"l": [[1]]}),
        pl.DataFrame({"s": [{"a": 1}]}),
        pl.DataFrame({"d": [1]}, schema={"d": pl.Decimal(10, 2)}),
    ],
    ids=range(7),
)
def test_columns_without_canonical_bytes(frame: Any) -> None:
    with pytest.raises(UnsupportedStateError, match=r"column"):
        state.encode(frame)


FORGED = [
    ("pandas.DataFrame", {"names": ["a"], "columns": [], "n_rows": 0}),
    ("pandas.DataFrame", {"names": [], "columns": [], "n_rows": "x"}),
    ("pandas.Series", {"name": "a", "column": {"dtype": "Sparse[int]", "values": np.zeros(1)}}),
    ("pandas.Series", {"name": "a", "column": {"dtype": "str", "values": np.zeros(1)}}),
    (
        "pandas.Series",
        {
            "name": "a",
            "column": {
                "dtype": "category",
                "values": np.array([5]),
                "categories": {"dtype": "int64", "values": np.array([1])},
                "ordered": False,
            },
        },
    ),
    ("polars.Series", {"name": "a", "column": {"dtype": "Object", "values": np.zeros(1)}}),
    (
        "polars.Series",
        {
            "name": "a",
            "column": {"dtype": "Int64", "values": np.zeros(2), "mask": np.ones(1, bool)},
        },
    ),
]


@pytest.mark.parametrize(("name", "plain"), FORGED, ids=range(len(FORGED)))
def test_forged_frames_are_refused(name: str, plain: Any) -> None:
    from tests.state.forge import blob_of

    with pytest.raises(CorruptFileError):
        state.decode(blob_of(Coded(name, state.to_tree(plain))))
