"""Rows for `letheon model add`, from every kind of file."""

import sys
from pathlib import Path

import numpy as np
import pytest

from letheon.ledger.models.table_files import TableColumns
from letheon.ledger.models.table_files import read_table_file as read_rows

TEXT = TableColumns(target="kind", ids="who", has_text_ids=True, is_table=False)
NUMBERS = TEXT._replace(has_text_ids=False)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("who,a,kind,b\n007,1.5,1,2\n010,2.5,0,4\n")
    return path


@pytest.mark.parametrize("missing", [(), ("pandas",)], ids=["pandas", "polars"])
def test_a_table_is_split_by_the_names_of_its_columns(
    table: Path, missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    X, y, ids = read_rows(table, TEXT)
    assert X.tolist() == [[1.5, 2.0], [2.5, 4.0]]
    assert y.tolist() == [1, 0]
    assert ids == ["007", "010"]
    assert read_rows(table, NUMBERS)[2] == [7, 10]
    named, _, no_ids = read_rows(table, TEXT._replace(ids=None, is_table=True))
    assert list(named.columns) == ["who", "a", "b"]
    assert no_ids is None


def test_without_a_library_for_tables_the_way_out_is_named(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ValueError, match=r"pandas or polars.* use an \.npz file"):
        read_rows(table, TEXT)


def test_arrays_by_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, X=np.eye(2), y=[0, 1])
    X, y, ids = read_rows(path, TEXT)
    assert (X.shape, y.tolist(), ids) == ((2, 2), [0, 1], None)
    np.savez(path, X=np.eye(2))
    with pytest.raises(ValueError, match="no array 'y'; its arrays are"):
        read_rows(path, TEXT)


def test_arrays_of_objects_are_not_executed(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, X=np.array([{}, []], dtype=object), y=[0, 1])
    with pytest.raises(ValueError, match="the file contains Python objects"):
        read_rows(path, TEXT)


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("a,b\n1,2\n", "its columns are a, b"),
        ("anna,2.5\nbert,1.5\n", "its first line contains numbers"),
    ],
)
def test_a_missing_column_is_named_and_values_are_not(
    tmp_path: Path, lines: str, text: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(lines)
    columns = TableColumns(target="y", ids=None, has_text_ids=False, is_table=False)
    with pytest.raises(ValueError, match=f"rows.csv has no column 'y'; {text}") as caught:
        read_rows(path, columns)
    assert "anna" not in str(caught.value)
