"""Rows of a model from a file: arrays, or a table with named columns.

What a reader of tables says about a file may quote values of rows, so only the kind of its error is
passed on.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Source: TypeAlias = Path | io.BytesIO
_MOST_UNPACKED = 256 << 20
_MOST_PER_BYTE = 32


class TableFileError(ValueError):
    """A file of rows cannot be used; the text holds names of columns, and no value."""


class NoTableReaderError(TableFileError):
    """Neither pandas nor polars is installed."""


class Columns(NamedTuple):
    """What the columns of a table are, and what the model was fitted on.

    Attributes
    ----------
    target, ids : str or None
        Names of columns; X is what is left of the table. Without `ids` people are numbered from 0.
    has_text_ids : bool
        Whether the model holds texts as ids. They are read as they stand: 007 stays 007.
    is_table : bool
        Whether the model was fitted on a table with names of columns, and not on an array.
    """

    target: str | None
    ids: str | None
    has_text_ids: bool
    is_table: bool


def read_table_file(
    path: Path, columns: Columns, *, content: bytes | None = None
) -> tuple[Any, Any, Any]:
    """Return X, y and ids of a file.

    Parameters
    ----------
    path : Path
        ``.npz`` with arrays X, y and perhaps ids; ``.csv`` or ``.parquet`` with named columns.
    columns : Columns
        Which of them are target and ids.
    content : bytes, optional
        What is in the file; `path` is only its name then.

    Raises
    ------
    TableFileError
        It is of another kind, cannot be read, or lacks an array or a column.
    """
    source = path if content is None else io.BytesIO(content)
    if path.suffix == ".npz":
        return _from_arrays(path, source)
    if path.suffix not in (".csv", ".parquet"):
        raise TableFileError(f"{path.name} is no .npz, .csv or .parquet file")
    if columns.target is None:
        raise TableFileError(f"say which column of {path.name} is the target: --target COLUMN")
    with _read_from(path):
        table = _table(path, source, columns)
    X, y, people = _from_table(table, path, columns)
    return X if columns.is_table else X.to_numpy(), y, people


@contextmanager
def _read_from(path: Path) -> Iterator[None]:
    """Say that a file cannot be read; what its reader says may hold values of rows."""
    try:
        yield
    except (OSError, TableFileError):
        raise
    except Exception as error:
        why = type(error).__name__
        if "allow_pickle" in str(error):
            why = "it holds Python objects; save numbers or texts"
        text = f"{path.name} cannot be read as a {path.suffix} file: {why}"
        raise TableFileError(text) from error


def memory_limit(n_bytes: int) -> int:
    """Return the memory that bytes from elsewhere may take when they are unpacked."""
    return _MOST_UNPACKED + _MOST_PER_BYTE * n_bytes


def _require_moderate(path: Path, source: Source, n_bytes: int, instead: str) -> None:
    """Refuse a file that unpacks to far more than its size: a few bytes may stand for gigabytes."""
    size = source.getbuffer().nbytes if isinstance(source, io.BytesIO) else source.stat().st_size
    limit = memory_limit(size)
    if n_bytes > limit:
        raise TableFileError(
            f"{path.name} unpacks to {n_bytes:,} bytes, more than the limit of {limit:,}; {instead}"
        )


def _from_arrays(path: Path, source: Source) -> tuple[Any, Any, Any]:
    with _read_from(path), np.load(source, allow_pickle=False) as file:
        unpacked = sum(entry.file_size for entry in file.zip.infolist())
        instead = "save it with numpy.savez, which does not compress"
        _require_moderate(path, source, unpacked, instead)
        missing = [name for name in ("X", "y") if name not in file]
        if missing:
            raise TableFileError(f"{path.name} has no array {missing[0]!r}; it has {sorted(file)}")
        return file["X"], file["y"], file.get("ids")


def _table(path: Path, source: Source, columns: Columns) -> Any:
    texts = {columns.ids} if columns.ids is not None and columns.has_text_ids else set()
    if path.suffix == ".parquet":
        check_parquet(path, source)
    try:
        import pandas as pd
    except ModuleNotFoundError:
        pass
    else:
        if path.suffix == ".parquet":
            return pd.read_parquet(source)
        return pd.read_csv(source, dtype=dict.fromkeys(texts, str))
    try:
        import polars as pl
    except ModuleNotFoundError as error:
        raise NoTableReaderError(
            f"to read {path.name} pandas or polars must be installed; or give an .npz file with "
            "the arrays X, y and ids"
        ) from error
    if path.suffix == ".parquet":
        return pl.read_parquet(source)
    return pl.read_csv(source, schema_overrides=dict.fromkeys(texts, pl.String))


def check_parquet(path: Path, source: Source) -> None:
    """Check what the file says it unpacks to, where pyarrow is there to look."""
    try:
        from pyarrow.parquet import read_metadata  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        return
    about = read_metadata(source)
    groups = [about.row_group(i).total_byte_size for i in range(about.num_row_groups)]
    unpacked = max(sum(groups), 8 * about.num_rows * about.num_columns)
    instead = "give a .csv file, or an .npz file that is not compressed"
    _require_moderate(path, source, unpacked, instead)


def _from_table(table: Any, path: Path, columns: Columns) -> tuple[Any, Any, Any]:
    import narwhals as nw

    frame = nw.from_native(table, eager_only=True)
    named = [name for name in (columns.target, columns.ids) if name is not None]
    for name in named:
        if name not in frame.columns:
            raise TableFileError(f"{path.name} has no column {name!r}; it has {frame.columns}")
    people = None if columns.ids is None else frame[columns.ids].to_list()
    return frame.drop(named).to_native(), frame[str(columns.target)].to_numpy(), people
