"""Categories of frames and arrays as keyed numbers, and the table of their names."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp

from letheon.data import CategoryColumns, CategoryTable, EncodedRows
from letheon.seeds import Purpose, keyed_hash

TOWNS = ["Oslo", "Rome", None, "Oslo", "Lima"]
AGES = [30.5, None, 40.0, 41.0, 42.0]


def encode(X: Any, chosen: Any = "from_dtype", seed: int = 7) -> tuple[EncodedRows, Any]:
    columns = CategoryColumns.from_input(X, chosen, seed)
    return columns.encode(X, by_dtype=isinstance(chosen, str)), columns


FRAMES: dict[str, Any] = {
    "pandas str": lambda: pd.DataFrame({"age": AGES, "town": TOWNS}),
    "pandas object": lambda: pd.DataFrame({"age": AGES, "town": pd.Series(TOWNS, dtype=object)}),
    "pandas category": lambda: pd.DataFrame(
        {"age": AGES, "town": pd.Series(TOWNS, dtype="category")}
    ),
    "polars": lambda: pl.DataFrame({"age": AGES, "town": TOWNS}),
    "polars categorical": lambda: pl.DataFrame(
        {"age": AGES, "town": pl.Series(TOWNS, dtype=pl.Categorical)}
    ),
    "polars enum": lambda: pl.DataFrame(
        {"age": AGES, "town": pl.Series(TOWNS, dtype=pl.Enum(["x", "Rome", "Oslo", "Lima"]))}
    ),
}


@pytest.mark.parametrize("frame", FRAMES)
def test_every_kind_of_frame_gives_the_same_matrix(frame: str) -> None:
    rows, columns = encode(FRAMES[frame]())
    assert (columns.columns, columns.names) == ((1,), ("town",))
    np.testing.assert_array_equal(rows.matrix[:, 0], np.array(AGES, float))
    bits = {
        text: keyed_hash(7, Purpose.CATEGORY, "town", text) for text in ("Oslo", "Rome", "Lima")
    }
    expected = [np.nan if t is None else bits[t] % 0x7F000000 + 0x00800000 for t in TOWNS]
    got = rows.matrix[:, 1].astype(np.float32)
    for value, want in zip(got, expected, strict=True):
        assert np.isnan(value) if np.isnan(want) else value.view(np.uint32) == want
    assert sorted(rows.names[0].values()) == ["Lima", "Oslo", "Rome"]


def test_numbers_and_booleans_stay_numbers_unless_they_are_named() -> None:
    frame = pd.DataFrame(
        {"n": [1, 2], "flag": [True, False], "o": pd.Series([1, None], dtype=object)}
    )
    rows, columns = encode(frame)
    assert (columns.columns, rows.names) == ((), ())
    np.testing.assert_array_equal(rows.matrix, [[1, 1, 1], [2, 0, np.nan]])
    rows, _ = encode(frame, ["n", "flag"])
    assert [sorted(names.values()) for names in rows.names] == [["1", "2"], ["False", "True"]]


def test_columns_are_chosen_by_names_numbers_and_bools() -> None:
    array = np.array([[1.0, 5.0], [2.0, 6.0]])
    by_number, _ = encode(array, [1])
    by_bool, _ = encode(array, [False, True])
    np.testing.assert_array_equal(by_number.matrix, by_bool.matrix)
    assert sorted(by_number.names[0].values()) == ["5", "6"]
    objects, _ = encode(np.array([[1.0, "5"], [2.0, 6]], object), [1])
    np.testing.assert_array_equal(objects.matrix, by_number.matrix)


@pytest.mark.parametrize("wrong", [["z"], [2], [-1], "town", [0.5], [[0]], [True], 3])
def test_a_wrong_choice_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"categorical_features=.*expected 'from_dtype'"):
        CategoryColumns.from_input(pd.DataFrame({"a": [1], "b": [2]}), wrong, 0)


def test_sparse_columns_cannot_be_categories() -> None:
    with pytest.raises(ValueError, match="X is sparse"):
        CategoryColumns.from_input(sp.csr_array(np.eye(3)), [0], 0)


def test_columns_must_have_the_kinds_of_fit() -> None:
    columns = CategoryColumns.from_input(FRAMES["polars"](), "from_dtype", 7)
    with pytest.raises(ValueError, match="column 'town' has dtype"):
        columns.encode(pl.DataFrame({"age": [1.0], "town": [3]}), by_dtype=True)
    with pytest.raises(ValueError, match="columns 'age' are not numeric; name them in"):
        columns.encode(pl.DataFrame({"age": ["x"], "town": ["Oslo"]}), by_dtype=True)
    blank = columns.encode(pl.DataFrame({"age": [1.0], "town": [None]}), by_dtype=True)
    assert np.isnan(blank.matrix[0, 1])


def test_a_frame_without_numbers_is_encoded() -> None:
    rows, _ = encode(pd.DataFrame({"a": ["x", "y"], "b": ["x", "x"]}))
    assert rows.matrix.shape == (2, 2)
    assert rows.matrix[0, 0] != rows.matrix[0, 1], "columns have their own values"


def test_a_category_is_gone_with_its_last_row() -> None:
    rows, columns = encode(FRAMES["polars"]())
    table = CategoryTable(columns)
    table.add_rows(rows)
    table.remove_rows(rows.matrix[[0, 2, 4]])
    assert table.to_state()["texts"] == [["Oslo", "Rome"]]
    table.remove_rows(rows.matrix[[3]])
    assert table.to_state() == {"columns": [1], "names": ["town"], "texts": [["Rome"]]}
    table.add_rows(EncodedRows(rows.matrix[[4]], rows.names))
    again = CategoryTable.from_state(table.to_state(), 7, rows.matrix[[1, 2, 4]])
    assert again.names == table.names


@pytest.mark.parametrize(
    "change",
    [
        {"texts": [["Oslo"]]},
        {"texts": [["Lima", "Oslo", "Rome", "Ulm"]]},
        {"texts": [["Oslo", "Lima", "Rome"]]},
        {"texts": [[1]]},
        {"columns": [2]},
        {"columns": []},
        {"names": ["city"]},
        {"names": None},
    ],
)
def test_a_state_that_is_not_that_of_the_rows_is_refused(change: dict[str, Any]) -> None:
    rows, columns = encode(FRAMES["polars"]())
    table = CategoryTable(columns)
    table.add_rows(rows)
    with pytest.raises(ValueError, match="categor"):
        CategoryTable.from_state(table.to_state() | change, 7, rows.matrix)


def test_two_categories_with_one_value_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        CategoryColumns, "hash_texts", lambda self, place, texts: [1.0 for _ in texts]
    )
    frame = pd.DataFrame({"a": ["x", "y"]})
    with pytest.raises(ValueError, match="'x' and 'y' of column 'a' have the same keyed hash"):
        encode(frame)
    rows, columns = encode(frame[:1])
    table = CategoryTable(columns)
    table.add_rows(rows)
    with pytest.raises(ValueError, match="same keyed hash"):
        table.require_distinct(columns.encode(frame[1:]))
