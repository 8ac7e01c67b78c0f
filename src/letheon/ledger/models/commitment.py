"""The commitment to the rows of a model: one salted leaf per row, in a slot that tells nothing."""

import hashlib
import secrets
import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from letheon.data import Ids, IntIds, Rows
from letheon.exceptions import CorruptFileError, UnsupportedStateError
from letheon.ledger.models.slot_tree import SlotTree, draw_slots
from letheon.ledger.models.versions import Vault
from letheon.state import codec_of, plain_descr, to_bytes, to_tree
from letheon.verifier import slot_leaf

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


SALT_BYTES = 32


def new_vault(n_rows: int, n_slots: int, ranks: NDArray[np.int64] | None = None) -> Vault:
    """Draw a slot and a salt for every row, and number the rows.

    The slots are a secret permutation: the order in which people came must not show. Each salt is
    drawn on its own; one that is derived from a master key could not be destroyed alone.
    """
    salts = np.frombuffer(secrets.token_bytes(SALT_BYTES * n_rows), np.uint8)
    return Vault(
        draw_slots(n_slots, n_rows),
        salts.reshape(n_rows, SALT_BYTES).copy(),
        np.arange(n_rows, dtype=np.int64),
        np.empty((n_rows, 0), np.int64) if ranks is None else ranks,
    )


def tree_of(rows: Rows, vault: Vault, n_slots: int) -> SlotTree:
    """Return the tree over all slots; those without a row are tombstones.

    Raises
    ------
    ValueError
        Rows or ordered categories are not in the order of their registration, or slots and salts
        are none.
    """
    codes = ordered_codes(rows)
    _require_vault(vault, codes)
    if not all(map(_is_same_order, codes.T, vault.ranks.T)):
        raise ValueError("ordered categories are not in the order of their registration")
    salts = vault.salts.tobytes()
    starts = range(0, len(salts), SALT_BYTES)
    leaves = [
        slot_leaf(salts[start : start + SALT_BYTES], place, ranks.tobytes() + content)
        for start, place, ranks, content in zip(
            starts,
            vault.places.tolist(),
            vault.ranks.astype("<i8"),
            row_bytes(rows),
            strict=True,
        )
    ]
    return SlotTree.build(n_slots, vault.slots, leaves)


def _is_same_order(codes: NDArray[np.int64], ranks: NDArray[np.int64]) -> bool:
    """Whether categories have the order of their ranks, and what is missing is missing."""
    found, first, inverse = np.unique(ranks, return_index=True, return_inverse=True)
    rising = bool((np.diff(codes[first]) > 0).all())
    missing = bool(((found < 0) == (codes[first] < 0)).all())
    return rising and missing and np.array_equal(codes[first][inverse], codes)


def _require_vault(vault: Vault, codes: NDArray[np.int64]) -> None:
    n_rows = len(codes)
    shapes = {"salts": (n_rows, SALT_BYTES), "ranks": codes.shape}
    for name, value in vault._asdict().items():
        kind = np.uint8 if name == "salts" else np.int64
        if not isinstance(value, np.ndarray) or value.dtype != kind:
            raise ValueError(f"{name} are no array of {np.dtype(kind)}")
        if value.shape != shapes.get(name, (n_rows,)):
            raise ValueError(f"{name} of shape {value.shape} for {n_rows} rows")
    if n_rows and (vault.places[0] < 0 or bool((np.diff(vault.places) <= 0).any())):
        raise ValueError("the rows are not in the order of their registration")


def require_root(tree: SlotTree, root: str) -> None:
    """Raise unless rows and salts are those that the ledger committed to."""
    if tree.root.hex() != root:
        raise CorruptFileError(
            "the rows of this version do not give the root that the ledger has recorded; "
            "they were altered. Nothing was changed."
        )
