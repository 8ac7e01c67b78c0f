"""Readers of the rows of a model from files with arrays, or with a table of named columns.

Error messages of table readers may quote values of rows, so only the type of their error is
reported.
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
_MOST_NAMES, _LONGEST_NAME = 30, 60


class TableFileError(ValueError):
    """A file of rows cannot be used. The text may contain names of columns, but no values."""


class MissingColumnError(TableFileError):
    """The target or id column is not in the table. The text names it and the existing columns."""


class NoTableReaderError(TableFileError):
    """Neither pandas nor polars is installed."""


class TableColumns(NamedTuple):
    """Roles of the columns of a table, and the kind of data that the model was fitted on.

    Attributes
    ----------
    target, ids : str or None
        Names of the target and id columns; the other columns are X. If `ids` is None, the rows are
        numbered from 0.
    has_text_ids : bool
        Whether the ids of the model are strings. Strings are read unchanged: 007 stays 007.
    is_table : bool
        Whether the model was fitted on a table with column names, and not on an array.
    """

    target: str | None
    ids: str | None
    has_text_ids: bool
    is_table: bool


def read_table_file(
    path: Path, columns: TableColumns, *, content: bytes | None = None
) -> tuple[Any, Any, Any]:
    """Return X, y and ids from a file; ids is None if the file has no ids.

    Parameters
    ----------
    path : Path
        ``.npz`` with arrays X, y and perhaps ids; ``.csv`` or ``.parquet`` with named columns.
    columns : TableColumns
        Names of the target and id columns, and the kind of data to return.
    content : bytes, optional
        Content of the file; `path` is then only its name.

    Raises
    ------
    TableFileError
        The file type is unknown, the file cannot be read, or an array or a column is missing.
    """
    source = path if content is None else io.BytesIO(content)
    if path.suffix == ".npz":
        return _load_arrays(path, source)
    if path.suffix not in (".csv", ".parquet"):
        raise TableFileError(
            f"{path.name} has an unsupported file type; expected .npz, .csv or .parquet"
        )
    if columns.target is None:
        raise TableFileError(
            f"no target column was given for {path.name}; name it with --target COLUMN"
        )
    with _hide_reader_errors(path):
        table = _load_table(path, source, columns)
    X, y, ids = _split_table(table, path, columns)
    return X if columns.is_table else X.to_numpy(), y, ids


@contextmanager
def _hide_reader_errors(path: Path) -> Iterator[None]:
    """Turn errors of a table reader into `TableFileError`.

    The text of the original error is omitted, because it may quote values of rows.
    """
    try:
        yield
    except (OSError, TableFileError):
        raise
    except Exception as error:
        reason = type(error).__name__
        if "allow_pickle" in str(error):
            reason = "the file contains Python objects; save arrays of numbers or strings"
        text = f"{path.name} cannot be read as a {path.suffix} file: {reason}"
        raise TableFileError(text) from error


def memory_limit(n_bytes: int) -> int:
    """Return how many bytes of memory an untrusted file of `n_bytes` may unpack to."""
    return _MOST_UNPACKED + _MOST_PER_BYTE * n_bytes


def _require_moderate_size(path: Path, source: Source, n_bytes: int, advice: str) -> None:
    """Raise `TableFileError` if a file unpacks to `n_bytes`, far more than its size.

    A small malicious file may expand to gigabytes.
    """
    size = source.getbuffer().nbytes if isinstance(source, io.BytesIO) else source.stat().st_size
    limit = memory_limit(size)
    if n_bytes > limit:
        raise TableFileError(
            f"{path.name} unpacks to {n_bytes:,} bytes, but the limit for a file of its size "
            f"is {limit:,}; {advice}"
        )


def _load_arrays(path: Path, source: Source) -> tuple[Any, Any, Any]:
    with _hide_reader_errors(path), np.load(source, allow_pickle=False) as file:
        unpacked = sum(entry.file_size for entry in file.zip.infolist())
        advice = "save it with numpy.savez, which does not compress"
        _require_moderate_size(path, source, unpacked, advice)
        missing = [name for name in ("X", "y") if name not in file]
        if missing:
            raise TableFileError(
                f"{path.name} has no array {missing[0]!r}; its arrays are {sorted(file)}"
            )
        return file["X"], file["y"], file.get("ids")


def _load_table(path: Path, source: Source, columns: TableColumns) -> Any:
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
            f"{path.name} needs pandas or polars; install one of them, or use an .npz file with "
            "the arrays X, y and ids"
        ) from error
    if path.suffix == ".parquet":
        return pl.read_parquet(source)
    return pl.read_csv(source, schema_overrides=dict.fromkeys(texts, pl.String))


def check_parquet(path: Path, source: Source) -> None:
    """Raise `TableFileError` if a Parquet file declares an unpacked size far above its own size.

    Without pyarrow, nothing is checked.
    """
    try:
        from pyarrow.parquet import read_metadata  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        return
    metadata = read_metadata(source)
    groups = [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]
    unpacked = max(sum(groups), 8 * metadata.num_rows * metadata.num_columns)
    advice = "use a .csv file, or an uncompressed .npz file"
    _require_moderate_size(path, source, unpacked, advice)


def _split_table(table: Any, path: Path, columns: TableColumns) -> tuple[Any, Any, Any]:
    import narwhals as nw

    frame = nw.from_native(table, eager_only=True)
    used = [name for name in (columns.target, columns.ids) if name is not None]
    for name in used:
        if name not in frame.columns:
            columns_text = _describe_columns(frame.columns)
            raise MissingColumnError(f"{path.name} has no column {name!r}; {columns_text}")
    ids = None if columns.ids is None else frame[columns.ids].to_list()
    return frame.drop(used).to_native(), frame[str(columns.target)].to_numpy(), ids


def _describe_columns(names: list[str]) -> str:
    """Return a text with the column names for an error message.

    If a name is a number, the file probably has no header. Its values are then not shown.
    """
    if any(_is_number(name) for name in names):
        return "its first line contains numbers instead of column names; add a header"
    text = ", ".join(name[:_LONGEST_NAME] for name in names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"its columns are {text}" + (f" and {more} more" if more > 0 else "")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
