"""The commitment to the rows of a model: a Merkle tree over slots with salted rows.

The leaf of a row is ``SHA-256(00 || HMAC-SHA256(salt, place || ranks || row))``, the leaf of an
empty slot is `TOMBSTONE`, and a node is ``SHA-256(01 || left || right)``. Erasing rows replaces
their leaves by the tombstone. The roots before and after follow from the old leaves and the
siblings on their paths. This proves that exactly these leaves were removed and nothing else changed
(`letheon.verifier.transition_roots`), and it reveals no row and no salt.
"""

import hashlib
import os
import secrets
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from letheon.data import IntIds, Rows
from letheon.exceptions import CorruptFileError, UnsupportedStateError
from letheon.state import codec_of, plain_descr, to_bytes, to_tree
from letheon.verifier import TOMBSTONE, canonical, node_hash, slot_leaf

SCHEME = "salted-slot-merkle-v1"
_FEWEST = 8
_SIZE = 32


def count_slots(n_rows: int) -> int:
    """Return the number of slots: a power of two, at least 8, with at least one empty slot."""
    return max(_FEWEST, 1 << n_rows.bit_length())


def draw_slots(slots: int, n_rows: int) -> NDArray[np.int64]:
    """Draw a different random slot for each row, with randomness from the operating system.

    The order of the slots must not reveal the order of the rows.
    """
    if not 0 <= n_rows <= slots:
        raise ValueError(f"{n_rows} rows do not fit into {slots} slots")
    keys = np.frombuffer(os.urandom(8 * slots), np.uint64)
    return np.argsort(keys, kind="stable")[:n_rows].astype(np.int64)


class SlotTree:
    """An immutable Merkle tree over the slots; `without` and `transition` return a new tree.

    `levels[0]` contains the concatenated leaves; the last level contains the root.
    """

    def __init__(self, levels: Sequence[bytes | bytearray]) -> None:
        self.levels = levels

    @classmethod
    def build(
        cls, slots: int, positions: NDArray[np.int64] | Sequence[int], leaves: Iterable[bytes]
    ) -> Self:
        """Build the tree from the leaves of the rows; all other slots are empty.

        Parameters
        ----------
        slots : int
            A power of two.
        positions : sequence of int
            Slot of each row, without repetition.
        leaves : iterable of bytes
            Leaf of each row (`letheon.verifier.slot_leaf`).

        Raises
        ------
        ValueError
            A slot is used twice or does not exist, or a leaf is not valid.
        """
        if slots < 1 or slots.bit_count() != 1:
            raise ValueError(f"slots={slots} is not a power of two")
        places = np.asarray(positions, np.int64)
        _require_slots(places, slots)
        level = bytearray(TOMBSTONE * slots)
        for place, leaf in zip(places.tolist(), leaves, strict=True):
            _require_leaf(leaf)
            level[place * _SIZE : (place + 1) * _SIZE] = leaf
        levels = [bytes(level)]
        while len(levels[-1]) > _SIZE:
            levels.append(b"".join(_hash_parents(levels[-1])))
        return cls(levels)

    @property
    def slots(self) -> int:
        """Number of slots."""
        return len(self.levels[0]) // _SIZE

    @property
    def root(self) -> bytes:
        """Root of the tree, 32 bytes."""
        return bytes(self.levels[-1])

    def leaf(self, slot: int) -> bytes:
        """Return the leaf of a slot."""
        _require_slots(np.array([slot], np.int64), self.slots)
        return _read_node(self.levels[0], slot)

    def inclusion(self, slot: int) -> list[bytes]:
        """Return the siblings on the path of a slot, from leaf to root: its inclusion proof."""
        _require_slots(np.array([slot], np.int64), self.slots)
        return [
            _read_node(level, (slot >> height) ^ 1) for height, level in enumerate(self.levels[:-1])
        ]

    def without(self, positions: NDArray[np.int64] | Sequence[int]) -> Self:
        """Return a new tree in which these slots are empty; only their paths are hashed again.

        Raises
        ------
        ValueError
            A slot is already empty, is given twice, or does not exist.
        """
        places = np.sort(np.asarray(positions, np.int64))
        _require_slots(places, self.slots)
        levels = [bytearray(level) for level in self.levels]
        changed: list[int] = places.tolist()
        for place in changed:
            if _read_node(levels[0], place) == TOMBSTONE:
                raise ValueError(f"slot {place} is already empty")
            levels[0][place * _SIZE : (place + 1) * _SIZE] = TOMBSTONE
        for below, level in pairwise(levels):
            changed = _list_parents(changed)
            for place in changed:
                both = (_read_node(below, 2 * place), _read_node(below, 2 * place + 1))
                level[place * _SIZE : (place + 1) * _SIZE] = node_hash(*both)
        return type(self)(levels)

    def transition(self, positions: NDArray[np.int64] | Sequence[int]) -> tuple[bytes, Self]:
        """Return the proof that these slots became empty, and the new tree."""
        after = self.without(positions)
        old = {int(place): self.leaf(int(place)) for place in positions}
        return transition_between(after, old), after


def transition_between(after: SlotTree, old_leaves: Mapping[int, bytes]) -> bytes:
    """Return the proof that removing these leaves gives the tree `after`.

    One proof can cover several transitions: pass the leaves that any of them removed.

    Parameters
    ----------
    after : SlotTree
        The tree after the removal; the slots in `old_leaves` are empty in it.
    old_leaves : mapping of int to bytes
        The leaf that each emptied slot had before the removal.

    Returns
    -------
    bytes
        Canonical JSON with `scheme`, `slots`, `erased` (by slot) and `siblings` (level by level
        from the leaves, from left to right), for `letheon.verifier.transition_roots`.
    """
    places = sorted(old_leaves)
    if not places:
        raise ValueError("old_leaves is empty; expected at least one leaf")
    _require_slots(np.array(places, np.int64), after.slots)
    for place in places:
        _require_leaf(old_leaves[place])
        if _read_node(after.levels[0], place) != TOMBSTONE:
            raise ValueError(f"slot {place} is not empty in the tree after the transition")
    return canonical(
        {
            "scheme": SCHEME,
            "slots": after.slots,
            "erased": [{"slot": place, "leaf": old_leaves[place].hex()} for place in places],
            "siblings": [sibling.hex() for sibling in _list_siblings(after, places)],
        }
    )


def _list_siblings(tree: SlotTree, places: list[int]) -> Iterator[bytes]:
    """Yield the nodes that are needed to hash the paths of these slots, level by level.

    These are the siblings of path nodes that are not on a path themselves.
    """
    for level in tree.levels[:-1]:
        on_a_path = set(places)
        for place in places:
            if place ^ 1 not in on_a_path:
                yield _read_node(level, place ^ 1)
        places = _list_parents(places)


def _list_parents(places: list[int]) -> list[int]:
    """Return the positions of the parents of sorted nodes, one level up, without duplicates."""
    return list(dict.fromkeys([place >> 1 for place in places]))


def _hash_parents(level: bytes) -> Iterator[bytes]:
    """Yield the hash of each pair of nodes of a level; pairs of equal nodes are hashed once."""
    pair, hashes = 2 * _SIZE, {}
    for begin in range(0, len(level), pair):
        both = level[begin : begin + pair]
        left, right = both[:_SIZE], both[_SIZE:]
        if left != right:
            yield node_hash(left, right)
            continue
        if both not in hashes:
            hashes[both] = node_hash(left, right)
        yield hashes[both]


def _read_node(level: bytes | bytearray, place: int) -> bytes:
    return bytes(level[place * _SIZE : (place + 1) * _SIZE])


def _require_slots(places: NDArray[np.int64], slots: int) -> None:
    if places.size and not (places.min() >= 0 and places.max() < slots):
        raise ValueError(
            f"slots are outside of 0..{slots - 1}: the smallest is {places.min()}, the largest "
            f"is {places.max()}"
        )
    if len(np.unique(places)) != len(places):
        raise ValueError("a slot is given twice; expected different slots")


def _require_leaf(leaf: bytes) -> None:
    if len(leaf) != _SIZE or leaf == TOMBSTONE:
        raise ValueError(
            f"a leaf with {len(leaf)} bytes is not valid; expected 32 bytes other than the "
            "tombstone"
        )


_MAGIC = b"letheon-row-v1\n"
_LENGTH = struct.Struct("<Q")
_FRAMES = ("pandas.DataFrame", "polars.DataFrame")
_BLOCK = 1 << 22  # bytes copied at once
_PRESENT, _MISSING = b"\1", b"\0"


class _RowPart(NamedTuple):
    """One part of every row: a description of its format, and its bytes row by row."""

    form: Any
    values: Iterable[bytes]


def encode_rows(rows: Rows) -> Iterator[bytes]:
    """Yield the canonical bytes of each row, in order.

    Parameters
    ----------
    rows : Rows
        Dense or sparse numbers, strings, objects with canonical bytes, pandas or polars frames.

    Raises
    ------
    UnsupportedStateError
        A value has no canonical bytes.
    """
    if isinstance(rows.ids, IntIds):
        people = _RowPart("int", _iterate_fixed(np.asarray(rows.ids.values, "<i8")))
    else:
        people = _RowPart("str", map(_encode_text, rows.ids.to_array()))
    parts = [people, _encode_labels(rows.y, len(rows)), _encode_table(rows.X)]
    parts += [_encode_labels(rows.extra[name], len(rows)) for name in sorted(rows.extra)]
    form = [*(part.form for part in parts), sorted(rows.extra)]
    head = _MAGIC + hashlib.sha256(to_bytes(to_tree(form))).digest()
    for values in zip(*(part.values for part in parts), strict=True):
        yield head + b"".join(values)


def compute_ranks(rows: Rows) -> NDArray[np.int64]:
    """Return the rank of each cell among the ordered categories of its column; -1 if missing.

    The result has one column for every column of the frame with ordered categories. `encode_rows`
    does not include the ranks, because they change when the last row of a category is removed.
    """
    codec = codec_of(type(rows.X))
    columns = codec.encode(rows.X)["columns"] if codec and codec.name in _FRAMES else []
    ordered = [codes for codes in map(_read_ranks, columns) if codes is not None]
    return np.column_stack(ordered) if ordered else np.empty((len(rows), 0), np.int64)


def _read_ranks(column: dict[str, Any]) -> NDArray[np.int64] | None:
    if column["dtype"] == "category":
        return column["values"].astype(np.int64) if column["ordered"] else None
    if column["dtype"] != "Enum":
        return None
    places = {name: place for place, name in enumerate(column["categories"])}
    values = column["values"].tolist()
    return np.array([-1 if each is None else places[each] for each in values], np.int64)


def _encode_labels(y: NDArray[Any] | None, length: int) -> _RowPart:
    """Return the encoded labels without their dtype, which may depend on removed rows."""
    if y is None:
        return _RowPart("none", (b"" for _ in range(length)))
    return _RowPart(["values", list(y.shape[1:])], map(_encode_objects, y.astype(object)))


def _encode_table(X: Any) -> _RowPart:
    if sp.issparse(X):
        return _encode_sparse(X)
    if not isinstance(X, np.ndarray):
        return _encode_frame(X)
    shape = list(X.shape[1:])
    if X.dtype.kind in "OU":
        return _RowPart(["objects", shape], map(_encode_objects, X.astype(object)))
    numbers = _to_little_endian(X)
    return _RowPart(["array", numbers.dtype.str, shape], _iterate_fixed(numbers))


def _encode_sparse(matrix: Any) -> _RowPart:
    csr = matrix.tocsr()
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    places, data = csr.indices.astype("<i8"), _to_little_endian(csr.data)
    form = ["sparse", data.dtype.str, int(csr.shape[1])]
    spans = (slice(begin, end) for begin, end in pairwise(csr.indptr.tolist()))
    return _RowPart(
        form,
        (
            _LENGTH.pack(span.stop - span.start) + places[span].tobytes() + data[span].tobytes()
            for span in spans
        ),
    )


def _encode_frame(frame: Any) -> _RowPart:
    codec = codec_of(type(frame))
    if codec is None or codec.name not in _FRAMES:
        raise UnsupportedStateError(
            f"a table of type {type(frame).__name__} cannot be encoded as canonical bytes; use "
            "a NumPy array, a sparse matrix, or a pandas or polars frame"
        )
    plain = codec.encode(frame)
    columns = [_encode_column(column) for column in plain["columns"]]
    form = ["frame", codec.name, plain["names"], [column.form for column in columns]]
    return _RowPart(form, map(b"".join, zip(*(column.values for column in columns), strict=True)))


def _encode_column(column: dict[str, Any]) -> _RowPart:
    """Return a column of a frame: its dtype, and its values with missing values marked.

    The set of categories and its dtype are not encoded, because removing rows changes both.
    """
    dtype, values = column["dtype"], column["values"]
    if dtype == "category":
        names = [_PRESENT + name for name in _encode_categories(column["categories"])]
        cells = (names[code] if code >= 0 else _MISSING for code in values.tolist())
        return _RowPart([dtype, column["ordered"]], cells)
    if values.dtype.kind == "O":
        return _RowPart(dtype, map(_encode_object, values.tolist()))
    numbers = _to_little_endian(values)
    # A pandas dtype may name the byte order, which is a matter of memory only.
    form = ["" if dtype == str(values.dtype) else dtype, numbers.dtype.str]
    if "mask" not in column:
        return _RowPart(form, _iterate_fixed(numbers))
    marked = zip(_iterate_fixed(numbers), column["mask"].tolist(), strict=True)
    return _RowPart(
        form, (_MISSING if is_missing else _PRESENT + cell for cell, is_missing in marked)
    )


def _encode_categories(column: dict[str, Any]) -> Iterable[bytes]:
    """Return the encoded categories of a pandas column; times include their unit."""
    values = column["values"]
    if values.dtype.kind in "mM":
        return (
            _encode_object([column["dtype"], ticks]) for ticks in values.astype(np.int64).tolist()
        )
    return map(_encode_object, values.tolist())


def _to_little_endian(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in little-endian byte order; booleans become 0 or 1."""
    if array.dtype.names is not None:
        raise UnsupportedStateError(
            "a structured array cannot be encoded; use one column per field"
        )
    truth = array.dtype.kind == "b"
    numbers: NDArray[Any] = (
        array.view(np.uint8) != 0 if truth else array.astype(plain_descr(array.dtype), copy=False)
    )
    return numbers


def _iterate_fixed(array: NDArray[Any]) -> Iterator[bytes]:
    """Yield the bytes of each row of an array, in C order. The array must be little-endian."""
    width = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    per_block = max(1, _BLOCK // max(width, 1))
    for begin in range(0, len(array), per_block):
        part = array[begin : begin + per_block]
        data = part.tobytes()
        for row in range(len(part)):
            yield data[row * width : (row + 1) * width]


def _encode_objects(row: Any) -> bytes:
    """Return the encoded objects of a row, concatenated. Each encoding contains its length."""
    if isinstance(row, np.ndarray):
        return b"".join(map(_encode_object, row.ravel().tolist()))
    return _encode_object(row)


def _encode_object(value: Any) -> bytes:
    """Return a value in the encoding of `letheon.state`: tag, length, bytes."""
    return to_bytes(to_tree(value))


def _encode_text(value: str) -> bytes:
    data = value.encode()
    return _LENGTH.pack(len(data)) + data


SALT_BYTES = 32


class RowSlots(NamedTuple):
    """Slot, salt, place and ranks of every row, in the order of the rows.

    The place is the position of the row at registration. The place never changes, and places
    increase strictly, so the remaining rows cannot be reordered. The ranks are those that cells in
    columns with ordered categories had at registration. They are stored because removing a category
    would change them.
    """

    slots: NDArray[np.int64]
    salts: NDArray[np.uint8]
    places: NDArray[np.int64]
    ranks: NDArray[np.int64]

    def take(self, positions: NDArray[np.int64]) -> "RowSlots":
        """Return the slots, salts, places and ranks of the rows at these positions."""
        return RowSlots(**{name: part[positions] for name, part in self._asdict().items()})


def draw_row_slots(n_rows: int, n_slots: int, ranks: NDArray[np.int64] | None = None) -> RowSlots:
    """Draw a random slot and a random salt for every row, and number the rows from 0.

    The slots are a secret permutation, so that they do not reveal the order of the rows. Each salt
    is drawn independently: a salt derived from a master key could not be destroyed separately.
    """
    salts = np.frombuffer(secrets.token_bytes(SALT_BYTES * n_rows), np.uint8)
    return RowSlots(
        draw_slots(n_slots, n_rows),
        salts.reshape(n_rows, SALT_BYTES).copy(),
        np.arange(n_rows, dtype=np.int64),
        np.empty((n_rows, 0), np.int64) if ranks is None else ranks,
    )


def build_tree(rows: Rows, row_slots: RowSlots, n_slots: int) -> SlotTree:
    """Return the tree over all slots; slots without a row are tombstones.

    Raises
    ------
    ValueError
        Rows or ordered categories are not in the order that they had at registration, or slots or
        salts are not valid.
    """
    codes = compute_ranks(rows)
    _require_row_slots(row_slots, codes)
    if not all(map(_is_same_order, codes.T, row_slots.ranks.T)):
        raise ValueError("ordered categories are not in the order that they had at registration")
    salts = row_slots.salts.tobytes()
    starts = range(0, len(salts), SALT_BYTES)
    leaves = [
        slot_leaf(salts[start : start + SALT_BYTES], place, ranks.tobytes() + content)
        for start, place, ranks, content in zip(
            starts,
            row_slots.places.tolist(),
            row_slots.ranks.astype("<i8"),
            encode_rows(rows),
            strict=True,
        )
    ]
    return SlotTree.build(n_slots, row_slots.slots, leaves)


def _is_same_order(codes: NDArray[np.int64], ranks: NDArray[np.int64]) -> bool:
    """Return whether category codes are ordered like the ranks, with the same missing values."""
    distinct, first, inverse = np.unique(ranks, return_index=True, return_inverse=True)
    rising = bool((np.diff(codes[first]) > 0).all())
    missing = bool(((distinct < 0) == (codes[first] < 0)).all())
    return rising and missing and np.array_equal(codes[first][inverse], codes)


def _require_row_slots(row_slots: RowSlots, codes: NDArray[np.int64]) -> None:
    n_rows = len(codes)
    shapes = {"salts": (n_rows, SALT_BYTES), "ranks": codes.shape}
    for name, value in row_slots._asdict().items():
        kind = np.uint8 if name == "salts" else np.int64
        if not isinstance(value, np.ndarray) or value.dtype != kind:
            raise ValueError(f"{name} must be a NumPy array of dtype {np.dtype(kind)}")
        if value.shape != shapes.get(name, (n_rows,)):
            raise ValueError(
                f"{name} has the shape {value.shape}; expected {shapes.get(name, (n_rows,))}"
            )
    if n_rows and (row_slots.places[0] < 0 or bool((np.diff(row_slots.places) <= 0).any())):
        raise ValueError(
            "the rows are not in the order that they had at registration: places must increase"
        )


def require_root(tree: SlotTree, root: str) -> None:
    """Raise `CorruptFileError` unless the root of the tree is the root recorded in the ledger."""
    if tree.root.hex() != root:
        raise CorruptFileError(
            "the rows of this version do not match the root recorded in the ledger: the files "
            "were altered. Nothing was changed."
        )


def locate_salt(model_files: Path) -> Path:
    """Return the file in a bundle with the salt of the settings and seeds of a model.

    `model_files` is the folder with the model's files, ``models/TENANT/NAME``.
    """
    tenant = model_files.parent
    return model_files.parents[2] / "proofs" / "settings" / tenant.name / f"{model_files.name}.json"
