"""Readers of the values of data files: CSV, TSV, JSON, Parquet, Arrow, SQLite and NumPy.

Nothing in a file is executed: pickles, views and triggers are not read. Files are read in chunks.
If a file cannot be read completely, `UnsearchableError` is raised, so the file never counts as
clean.
"""

import csv
import io
import itertools
import json
import re
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePath
from typing import IO, Any, TypeAlias
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from letheon.ledger.models.table_files import TableFileError, check_parquet
from letheon.ledger.purge.search import FREE_SPACE, Chunk, UnsearchableError

Reader: TypeAlias = Callable[[IO[bytes], Path | None], Iterator[Chunk]]

NAMES = "names"
_ROWS = 20_000
_MOST_COLUMNS = 256
_LONGEST_LINE = 1 << 24
_LARGEST_JSON = 1 << 25
_LARGEST_COPY = 1 << 28
_PIECE = 1 << 20
# In order of preference: commas also occur in numbers.
_DELIMITERS = "\t|;,"
_SAMPLE_LINES = 100
# Not in text files: such a file is compressed, encrypted or of another kind.
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x19\x1b-\x1f]")
_INNER_PAGES = (2, 5)
_TABLE_LEAF = 13
_BTREE_PAGES = (*_INNER_PAGES, 10, _TABLE_LEAF)


def find_reader(name: str, head: bytes) -> Reader | None:
    """Return the reader for a file with this name and these first bytes; None if there is none."""
    for magic, reader in _MAGIC.items():
        if head.startswith(magic):
            return reader
    return _SUFFIXES.get(PurePath(name).suffix.lower())


def read_values(reader: Reader, stream: IO[bytes], path: Path | None) -> Iterator[Chunk]:
    """Yield all values of a file as (column name, values), a part of a column at a time.

    Parameters
    ----------
    reader : callable
        Reader from `find_reader`.
    stream : file
        Content of the file, from the beginning.
    path : Path or None
        Path of the file; None inside an archive.

    Raises
    ------
    UnsearchableError
        A part of the file cannot be read. The values yielded until then are correct but incomplete.
    """
    try:
        yield from reader(stream, path)
    except (UnsearchableError, OSError):
        raise
    except (TableFileError, MemoryError) as error:
        raise UnsearchableError("too-large") from error
    except Exception as error:
        # Parsers raise any kind of error for damaged files.
        raise UnsearchableError("damaged") from error


def is_text(stream: IO[bytes]) -> bool:
    """Return whether a file is plain text. In plain text, a byte search finds every long id."""
    encoding, head = _encoding_of(stream)
    if head.startswith(b"-----BEGIN "):
        return False
    text = io.TextIOWrapper(stream, encoding, errors="strict", newline="")
    try:
        return all("\0" not in piece for piece in iter(lambda: text.read(_PIECE), ""))
    except UnicodeError:
        return False
    finally:
        text.detach()


def _encoding_of(stream: IO[bytes]) -> tuple[str, bytes]:
    stream.seek(0)
    head = stream.read(16)
    stream.seek(0)
    is_utf16 = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    return ("utf-16" if is_utf16 else "utf-8-sig"), head


def _read_lines(stream: IO[bytes]) -> Iterator[str]:
    """Yield the lines of a text file; bytes that cannot be decoded become surrogates."""
    encoding, _ = _encoding_of(stream)
    text = io.TextIOWrapper(stream, encoding, "surrogateescape", newline="")
    try:
        while line := text.readline(_LONGEST_LINE):
            if _CONTROL.search(line):
                raise UnsearchableError("file-kind")
            if len(line) == _LONGEST_LINE:
                raise UnsearchableError("too-large")
            yield line
    finally:
        text.detach()


def _read_delimited(stream: IO[bytes], _: Path | None) -> Iterator[Chunk]:
    lines = _read_lines(stream)
    sample = list(itertools.islice(lines, _SAMPLE_LINES))
    start = "".join(sample).lstrip()[:1]
    if start in ("{", "["):
        yield from _read_json(stream, None)
        return
    if start == "<":
        raise UnsearchableError("file-kind")
    # The delimiter of most lines; a space only if no line has another one.
    counts = {mark: sum(mark in line for line in sample) for mark in _DELIMITERS}
    best = max(counts, key=lambda mark: counts[mark])
    rows = csv.reader(itertools.chain(sample, lines), delimiter=best if counts[best] else " ")
    while batch := list(itertools.islice(rows, _ROWS)):
        columns: dict[str, list[str]] = defaultdict(list)
        for row in batch:
            for number, cell in enumerate(row):
                columns[str(number)].append(cell)
        yield from columns.items()


class _Pairs(list[tuple[str, Any]]):
    """A JSON object that may contain duplicate fields."""


def _parse_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_Pairs)


def _read_json(stream: IO[bytes], _: Path | None) -> Iterator[Chunk]:
    """Yield the values of a file with one JSON document, or with one document per line."""
    lines = (line for line in _read_lines(stream) if line.strip())
    first = next(lines, None)
    if first is None:
        return
    try:
        documents: Iterable[Any] = itertools.chain([_parse_json(first)], map(_parse_json, lines))
    except ValueError:
        rest = "".join(_limit_size(lines, _LARGEST_JSON))
        documents = [_parse_json(first + rest)]
    columns: dict[str, list[Any]] = defaultdict(list)
    n_values = 0
    for document in documents:
        for column, value in _iter_values(document):
            columns[column].append(value)
            n_values += 1
        if n_values > _ROWS:
            yield from columns.items()
            columns.clear()
            n_values = 0
    yield from columns.items()


def _limit_size(lines: Iterable[str], most: int) -> Iterator[str]:
    total = 0
    for line in lines:
        total += len(line)
        if total > most:
            raise UnsearchableError("too-large")
        yield line


def _iter_values(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for each value and for each field name of a JSON document."""
    pending: list[tuple[str, Any]] = [("", document)]
    while pending:
        location, value = pending.pop()
        if isinstance(value, dict):
            value = _Pairs(value.items())
        if isinstance(value, _Pairs):
            for name, inner in value:
                yield f"{location}.{NAMES}", name
                pending.append((f"{location}.{name}", inner))
        elif isinstance(value, list | tuple):
            pending += [(f"{location}[]", inner) for inner in value]
        elif value is not None and not isinstance(value, bool):
            yield location, value


def _seekable_copy(stream: IO[bytes]) -> io.BytesIO:
    content = stream.read(_LARGEST_COPY + 1)
    if len(content) > _LARGEST_COPY:
        raise UnsearchableError("too-large")
    return io.BytesIO(content)


def _read_parquet(stream: IO[bytes], path: Path | None) -> Iterator[Chunk]:
    pa, source = _import_pyarrow(), path or _seekable_copy(stream)
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        check_parquet(Path("a"), source)
        # The dictionary of a column also contains values that no row uses any more.
        kinds = (pa.string(), pa.large_string())
        texts = [field.name for field in pq.read_schema(source) if field.type in kinds]
        file = pq.ParquetFile(source, read_dictionary=texts)
        yield NAMES, _arrow_names(file.schema_arrow)
        for batch in file.iter_batches(batch_size=_ROWS):
            yield from _arrow_columns(pa, batch)
    except OSError as error:
        raise UnsearchableError("damaged") from error


def _read_arrow(stream: IO[bytes], path: Path | None) -> Iterator[Chunk]:
    pa = _import_pyarrow()
    try:
        # Not memory-mapped: truncating a mapped file would end the process.
        source = pa.OSFile(str(path)) if path else pa.BufferReader(stream.read(_LARGEST_COPY))
        with pa.ipc.open_file(source) as file:
            yield NAMES, _arrow_names(file.schema)
            for number in range(file.num_record_batches):
                yield from _arrow_columns(pa, file.get_batch(number))
    except OSError as error:
        raise UnsearchableError("damaged") from error


def _import_pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        raise UnsearchableError("needs-pyarrow") from error
    return pa


def _arrow_names(schema: Any) -> list[str | bytes]:
    """Return the column names and the metadata of a file, without the metadata of pandas."""
    notes = [note for note in (schema.metadata or {}).items() if note[0] != b"pandas"]
    return [*schema.names, *itertools.chain.from_iterable(notes)]


def _arrow_columns(pa: Any, batch: Any) -> Iterator[Chunk]:
    batch.validate(full=True)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        is_coded = isinstance(column, pa.DictionaryArray)
        yield from _arrow_values(pa, name, column.dictionary if is_coded else column)


def _arrow_values(pa: Any, name: str, column: Any) -> Iterator[Chunk]:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        yield name, column.drop_null().to_numpy(zero_copy_only=False)
    elif pa.types.is_nested(kind):
        inner: dict[str, list[Any]] = defaultdict(list)
        for location, value in _iter_values(column.to_pylist()):
            inner[name + location].append(value)
        yield from inner.items()
    elif isinstance(kind, pa.BaseExtensionType) and kind.extension_name != "arrow.uuid":
        yield from _arrow_values(pa, name, column.storage)
    elif not pa.types.is_boolean(kind):
        yield name, column.to_pylist()


def _read_sqlite(stream: IO[bytes], path: Path | None) -> Iterator[Chunk]:
    """Yield the values of all tables, and then the bytes of unused parts of the file.

    The file cannot be searched if it may contain deleted rows that are not overwritten.
    """
    if path is not None:
        address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        conn = sqlite3.connect(address, uri=True)
    else:
        content = _seekable_copy(stream)
        stream = io.BytesIO(content.getvalue())
        conn = sqlite3.connect(":memory:")
        # An in-memory database has no write-ahead log; bytes 18 and 19 of the header turn it off.
        conn.deserialize(content.getvalue()[:18] + b"\1\1" + content.getvalue()[20:])
    try:
        conn.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        conn.execute("PRAGMA trusted_schema = OFF")
        yield NAMES, [row[0] for row in conn.execute("SELECT sql FROM sqlite_master")]
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
        for (table,) in conn.execute(query).fetchall():
            yield from _sqlite_table(conn, table)
    finally:
        conn.close()
    for page in _free_space(stream):
        yield FREE_SPACE, [page]


def _sqlite_table(conn: sqlite3.Connection, table: str) -> Iterator[Chunk]:
    quoted = '"{}"'.format(table.replace('"', '""'))
    try:
        # The rowid may be an id without a separate column.
        cursor = conn.execute(f"SELECT rowid, * FROM {quoted}")
        names = ["", *(entry[0] for entry in cursor.description[1:])]
    except sqlite3.OperationalError:
        cursor = conn.execute(f"SELECT * FROM {quoted}")
        names = [entry[0] for entry in cursor.description]
    yield NAMES, [table, *names]
    while rows := cursor.fetchmany(_ROWS):
        for name, values in zip(names, zip(*rows, strict=True), strict=True):
            yield f"{table}.{name}", [value for value in values if value is not None]


def _free_space(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the bytes in unused parts of the pages of a SQLite file.

    Raise `UnsearchableError` if the file may contain deleted rows. ``VACUUM`` removes deleted rows,
    but the pages of indexes may still contain old bytes.
    """
    stream.seek(0)
    header = stream.read(100)
    size = int.from_bytes(header[16:18], "big")
    size = 1 << 16 if size == 1 else size
    if int.from_bytes(header[36:40], "big") > 0:
        raise UnsearchableError("deleted-rows")
    stream.seek(0)
    for number, page in enumerate(iter(lambda: stream.read(size), b"")):
        start = 100 if number == 0 else 0
        unused = _free_bytes(page, start) if page[start] in _BTREE_PAGES else b""
        if any(unused) and page[start] == _TABLE_LEAF:
            raise UnsearchableError("deleted-rows")
        if any(unused):
            yield unused


def _free_bytes(page: bytes, start: int) -> bytes:
    """Return the unused bytes of a page: those before its first cell, and its free blocks."""

    def number_at(location: int) -> int:
        return int.from_bytes(page[location : location + 2], "big")

    head = start + (12 if page[start] in _INNER_PAGES else 8) + 2 * number_at(start + 3)
    parts = [page[head : number_at(start + 5) or len(page)]]
    block = number_at(start + 1)
    while block:
        parts.append(page[block + 4 : block + number_at(block + 2)])
        # Free blocks are sorted by position, so this ends.
        following = number_at(block)
        block = following if following > block else 0
    return b"\0".join(parts)


def _read_npy(stream: IO[bytes], _: Path | None) -> Iterator[Chunk]:
    version = np.lib.format.read_magic(stream)
    headers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in headers:
        raise UnsearchableError("file-kind")
    shape, is_fortran, dtype = headers[version](stream)
    if dtype.hasobject:
        raise UnsearchableError("python-objects")
    n_rows = shape[0] if shape else 1
    width = int(np.prod(shape[1:], dtype=object)) if len(shape) > 1 else 1
    if is_fortran and len(shape) == 2 and width <= _MOST_COLUMNS:
        for number in range(width):
            for values in _read_pieces(stream, dtype, n_rows, 1):
                yield from _iter_fields(str(number), values[:, 0])
    else:
        per_piece = width if 0 < width <= _MOST_COLUMNS and not is_fortran else 1
        for values in _read_pieces(stream, dtype, n_rows * width // per_piece, per_piece):
            for number in range(per_piece):
                yield from _iter_fields(str(number), values[:, number])
    if stream.read(1):
        raise UnsearchableError("damaged")


def _read_pieces(stream: IO[bytes], dtype: Any, n_rows: int, width: int) -> Iterator[NDArray[Any]]:
    if dtype.itemsize == 0:
        return
    per_piece = max(1, _PIECE // (dtype.itemsize * width))
    while n_rows > 0:
        count = min(n_rows, per_piece) * width
        data = stream.read(count * dtype.itemsize)
        yield np.frombuffer(data, dtype, count).reshape(-1, width)
        n_rows -= per_piece


def _iter_fields(name: str, values: NDArray[Any]) -> Iterator[Chunk]:
    if values.dtype.names is not None:
        yield NAMES, list(values.dtype.names)
        for field in values.dtype.names:
            yield from _iter_fields(f"{name}.{field}", values[field])
    elif values.dtype.kind == "V":
        raise UnsearchableError("binary-values")
    elif values.dtype.kind in "SU":
        if values.dtype.kind == "U" and values.size and values.dtype.itemsize:
            code_points = np.ascontiguousarray(values.ravel()).view(f"{values.dtype.byteorder}u4")
            if code_points.max() > sys.maxunicode:
                raise UnsearchableError("damaged")
        yield name, values.ravel().tolist()
    elif values.dtype.kind in "iuf":
        yield name, values.ravel()
    elif values.dtype.kind == "c":
        yield name, values.ravel().real
        yield f"{name}.imag", values.ravel().imag
    elif values.dtype.kind == "M":
        yield name, np.datetime_as_string(values.ravel()).tolist()


_SUFFIXES: dict[str, Reader] = {
    **dict.fromkeys((".csv", ".tsv", ".tab", ".psv"), _read_delimited),
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), _read_json),
}
_MAGIC: dict[bytes, Reader] = {
    b"PAR1": _read_parquet,
    b"ARROW1": _read_arrow,
    b"SQLite format 3\0": _read_sqlite,
    b"\x93NUMPY": _read_npy,
}
