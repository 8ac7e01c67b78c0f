r"""Canonical bytes of each row: what a leaf of the dataset's commitment is made of.

A row is ``letheon-row-v1\n``, the SHA-256 of its form, and its values: id, y, X, extra. The form
is the kind of table, the names and dtypes of its columns; it says how the values are read. Every
value of variable length is preceded by its length. So two rows with the same bytes have the same
values and the same form, bit by bit (-0.0 and the payload of a NaN count), unless SHA-256 is
broken. The bytes of a row do not depend on its position, on the other rows, or on how the table
lies in memory; a saved and loaded row has the same bytes.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from letheon.data import Ids, IntIds, Rows
from letheon.exceptions import UnsupportedStateError
from letheon.state import codec_of, plain_descr, to_bytes, to_tree

__all__ = ["ordered_codes", "row_bytes"]

_MAGIC = b"letheon-row-v1\n"
_LENGTH = struct.Struct("<Q")
_FRAMES = ("pandas.DataFrame", "polars.DataFrame")
_BLOCK = 1 << 22  # bytes copied at once
_PRESENT, _MISSING = b"\1", b"\0"


class _Part(NamedTuple):
    """One part of every row: its form, a plain value, and its bytes row by row."""

    form: Any
    values: Iterable[bytes]


def row_bytes(rows: Rows) -> Iterator[bytes]:
    """Yield the canonical bytes of each row, in held order.

    Parameters
    ----------
    rows : Rows
        Dense or sparse numbers, texts, objects that have canonical bytes, pandas or polars frames.

    Raises
    ------
    UnsupportedStateError
        If a value has no canonical bytes.
    """
    parts = [_ids_part(rows.ids), _labels_part(rows.y, len(rows)), _table_part(rows.X)]
    parts += [_labels_part(rows.extra[name], len(rows)) for name in sorted(rows.extra)]
    form = [*(part.form for part in parts), sorted(rows.extra)]
    head = _MAGIC + hashlib.sha256(to_bytes(to_tree(form))).digest()
    for values in zip(*(part.values for part in parts), strict=True):
        yield head + b"".join(values)


def ordered_codes(rows: Rows) -> NDArray[np.int64]:
    """Return the place of each cell in the order of its column's categories, -1 where missing.

    One column for every column of a frame whose categories have an order of their own. The order
    is no part of `row_bytes`: places close up when the last row of a category leaves.
    """
    codec = codec_of(type(rows.X))
    columns = codec.encode(rows.X)["columns"] if codec and codec.name in _FRAMES else []
    found = [_ordered(column) for column in columns]
    kept = [codes for codes in found if codes is not None]
    return np.column_stack(kept) if kept else np.empty((len(rows), 0), np.int64)


def _ordered(column: dict[str, Any]) -> NDArray[np.int64] | None:
    if column["dtype"] == "category":
        return column["values"].astype(np.int64) if column["ordered"] else None
    if column["dtype"] != "Enum":
        return None
    places = {name: place for place, name in enumerate(column["categories"])}
    values = column["values"].tolist()
    return np.array([-1 if each is None else places[each] for each in values], np.int64)


def _ids_part(ids: Ids) -> _Part:
    if isinstance(ids, IntIds):
        return _Part("int", _fixed(np.asarray(ids.values, "<i8")))
    return _Part("str", (_text(one) for one in ids.to_array()))


def _labels_part(y: NDArray[Any] | None, length: int) -> _Part:
    """Return labels by value: their dtype may depend on rows that are gone, such as its width."""
    if y is None:
        return _Part("none", (b"" for _ in range(length)))
    return _Part(["values", list(y.shape[1:])], map(_objects, y.astype(object)))


def _table_part(X: Any) -> _Part:
    if isinstance(X, np.ndarray):
        return _array_part(X)
    if sp.issparse(X):
        return _sparse_part(X)
    return _frame_part(X)


def _array_part(array: NDArray[Any]) -> _Part:
    shape = list(array.shape[1:])
    if array.dtype.kind in "OU":
        return _Part(["objects", shape], map(_objects, array.astype(object)))
    numbers = _plain(array)
    return _Part(["array", numbers.dtype.str, shape], _fixed(numbers))


def _sparse_part(matrix: Any) -> _Part:
    csr = matrix.tocsr()
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    places, data = csr.indices.astype("<i8"), _plain(csr.data)
    form = ["sparse", data.dtype.str, int(csr.shape[1])]
    return _Part(form, _spans(csr.indptr.tolist(), places, data))


def _spans(ends: list[int], places: NDArray[Any], data: NDArray[Any]) -> Iterator[bytes]:
    for begin, end in pairwise(ends):
        yield _LENGTH.pack(end - begin) + places[begin:end].tobytes() + data[begin:end].tobytes()


def _frame_part(frame: Any) -> _Part:
    codec = codec_of(type(frame))
    if codec is None or codec.name not in _FRAMES:
        raise UnsupportedStateError(
            f"a table of type {type(frame).__name__} has no canonical bytes; give a NumPy array, "
            "a sparse matrix, a pandas or a polars frame"
        )
    plain = codec.encode(frame)
    columns = [_column_part(column) for column in plain["columns"]]
    form = ["frame", codec.name, plain["names"], [column.form for column in columns]]
    return _Part(form, map(b"".join, zip(*(column.values for column in columns), strict=True)))


def _column_part(column: dict[str, Any]) -> _Part:
    """Return a column of a frame: its dtype, and values with missing ones marked.

    The set of categories and their common dtype are no part of it: both change when others leave.
    """
    dtype, values = column["dtype"], column["values"]
    if dtype == "category":
        names = [_PRESENT + name for name in _categories(column["categories"])]
        cells = (names[code] if code >= 0 else _MISSING for code in values.tolist())
        return _Part([dtype, column["ordered"]], cells)
    if values.dtype.kind == "O":
        return _Part(dtype, map(_object, values.tolist()))
    numbers = _plain(values)
    # A dtype of pandas may name the order of bytes, which is an affair of memory.
    form = ["" if dtype == str(values.dtype) else dtype, numbers.dtype.str]
    if "mask" not in column:
        return _Part(form, _fixed(numbers))
    marked = zip(_fixed(numbers), column["mask"].tolist(), strict=True)
    return _Part(form, (_MISSING if gone else _PRESENT + cell for cell, gone in marked))


def _categories(column: dict[str, Any]) -> Iterable[bytes]:
    """Return the categories of pandas by value; those that are times say in which unit."""
    values = column["values"]
    if values.dtype.kind in "mM":
        return (_object([column["dtype"], ticks]) for ticks in values.astype(np.int64).tolist())
    return map(_object, values.tolist())


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return numbers in little-endian order; a true is 1."""
    if array.dtype.names is not None:
        raise UnsupportedStateError("a structured array is no table; give one column per field")
    truth = array.dtype.kind == "b"
    numbers: NDArray[Any] = (
        array.view(np.uint8) != 0 if truth else array.astype(plain_descr(array.dtype), copy=False)
    )
    return numbers


def _fixed(array: NDArray[Any]) -> Iterator[bytes]:
    """Yield the bytes of each row of numbers of fixed size, in C order and little-endian."""
    width = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    per_block = max(1, _BLOCK // max(width, 1))
    for begin in range(0, len(array), per_block):
        part = array[begin : begin + per_block]
        data = part.tobytes()
        for row in range(len(part)):
            yield data[row * width : (row + 1) * width]


def _objects(row: Any) -> bytes:
    """Return the values of one row of objects, one after the other; each says where it ends."""
    if isinstance(row, np.ndarray):
        return b"".join(map(_object, row.ravel().tolist()))
    return _object(row)


def _object(value: Any) -> bytes:
    """Return a value as state writes it: a tag, its length, its bytes."""
    return to_bytes(to_tree(value))


def _text(value: str) -> bytes:
    data = value.encode()
    return _LENGTH.pack(len(data)) + data
