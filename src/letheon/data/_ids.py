"""Ids (all 64-bit int or all str) in a compact form, and the index of their rows.

Canonical bytes of an id are ``i`` + 8 bytes big-endian two's complement, or ``s`` + UTF-8 (not
Unicode-normalised), so ``1 != "1"``. Kinds are checked element by element *before* NumPy sees
the values: ``np.asarray([1, "1"])`` is ``["1", "1"]`` and ``np.asarray([2**63, -1])`` is float.

The index is a sorted array of hashes with row numbers: eight bytes for the hash and eight for the
row number, for each row. If hashes match, the ids themselves are compared, so a collision never
confuses two ids. The index is a cache: it is not part of the state. The entry of a removed row is
erased: it gets row number -1 and, because the array must stay sorted, the hash of a remaining row.
Equal hashes are adjacent, so these copies are erased together with the row that the hash belongs
to.
"""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, ClassVar, NamedTuple, Self
from uuid import UUID

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from letheon.exceptions import IdsLengthError, IdsTypeError
from letheon.seeds import Purpose, keyed_hash, keyed_hash_ints, keyed_hash_texts

_LEAST, _MOST = -(2**63), 2**63 - 1
_EXPECTED = "expected either all 64-bit integers or all strings"
# Iterables whose items are not ids.
_NO_LISTS = (bytes, bytearray, memoryview, dict)
# Drawn per process, so an attacker cannot choose ids that collide.
_KEY = secrets.randbits(128)
# From this many rows on, one pass over all entries is cheaper than a search for each.
_MANY = 64


class Ids(ABC):
    """Ids of one kind, one per row, in order. Immutable, except for `wipe`.

    Examples
    --------
    >>> from letheon.data import as_ids
    >>> ids = as_ids(["anna", "ben", "anna"])
    >>> len(ids), ids.kind, ids.distinct().to_list()
    (3, 'str', ['anna', 'ben'])
    """

    kind: ClassVar[str]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, positions: NDArray[np.int64]) -> Self:
        """Return the ids at these positions, in new memory."""

    @abstractmethod
    def concat(self, *others: "Ids") -> Self:
        """Return these ids followed by `others`, which must be of the same kind."""

    @abstractmethod
    def hashes(self, seed: int, purpose: Purpose, *parts: int | str) -> NDArray[np.uint64]:
        """Return a 64-bit hash of every id, keyed by seed, purpose and `parts`."""

    @abstractmethod
    def to_list(self) -> list[int] | list[str]:
        """Return the ids as plain Python values."""

    @abstractmethod
    def to_array(self) -> NDArray[Any]:
        """Return the ids as an array, of dtype int64 or of str objects."""

    @abstractmethod
    def get_id(self, position: int) -> int | str:
        """Return the id at this position as a plain Python value."""

    @abstractmethod
    def wipe(self, positions: NDArray[np.int64]) -> None:
        """Overwrite the ids at these positions with zero bytes, in place; their lengths remain."""

    def distinct(self) -> Self:
        """Return each id once, in order of first appearance."""
        if len(self) <= 1:
            return self
        first: dict[object, int] = {}
        for position, value in enumerate(self.to_list()):
            first.setdefault(value, position)
        return self.take(np.fromiter(first.values(), np.int64, len(first)))

    def _require_same_kind(self, others: "tuple[Ids, ...]") -> list[Self]:
        """Return a list of these ids and `others`; raise `IdsTypeError` if their kinds differ."""
        parts = [self]
        for other in others:
            if not isinstance(other, type(self)):
                raise IdsTypeError(
                    f"the model has {self.kind} ids, but got {other.kind} ids; {_EXPECTED}"
                )
            parts.append(other)
        return parts


@dataclass(eq=False, repr=False)
class IntIds(Ids):
    """Ids of type int, stored as one int64 array.

    Parameters
    ----------
    values : ndarray of int64
        The ids.

    Examples
    --------
    >>> from letheon.data import as_ids
    >>> as_ids([7, 5]).concat(as_ids([9])).to_list()
    [7, 5, 9]
    """

    kind: ClassVar[str] = "int"
    values: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, positions: NDArray[np.int64]) -> Self:
        """Return the ids at these positions, in new memory."""
        return type(self)(self.values[positions])

    def concat(self, *others: Ids) -> Self:
        """Return these ids followed by `others`, which must be of the same kind."""
        return type(self)(np.concatenate([ids.values for ids in self._require_same_kind(others)]))

    def hashes(self, seed: int, purpose: Purpose, *parts: int | str) -> NDArray[np.uint64]:
        """Return a 64-bit hash of every id, keyed by seed, purpose and `parts`."""
        return keyed_hash_ints(seed, purpose, self.values, *parts)

    def to_list(self) -> list[int]:
        """Return the ids as plain Python values."""
        values: list[int] = self.values.tolist()
        return values

    def to_array(self) -> NDArray[Any]:
        """Return a copy of the ids as an int64 array."""
        return self.values.copy()

    def get_id(self, position: int) -> int:
        """Return the id at this position as a plain Python value."""
        return int(self.values[position])

    def wipe(self, positions: NDArray[np.int64]) -> None:
        """Overwrite the ids at these positions with zeros, in place."""
        self.values[positions] = 0

    def distinct(self) -> Self:
        """Return each id once, in order of first appearance."""
        if len(self) <= 1:
            return self
        _, first = np.unique(self.values, return_index=True)
        return self.take(np.sort(first))


@dataclass(eq=False, repr=False)
class TextIds(Ids):
    """Ids of type str, stored as one UTF-8 buffer and n + 1 offsets.

    A dict would be ten times larger.

    Parameters
    ----------
    blob : ndarray of uint8
        All ids in UTF-8.
    offsets : ndarray of int64
        Where each id begins, and where the last one ends.

    Examples
    --------
    >>> from letheon.data import TextIds
    >>> ids = TextIds.from_strings(["anna", "ben"])
    >>> ids.get_id(1), ids.offsets.tolist()
    ('ben', [0, 4, 7])
    """

    kind: ClassVar[str] = "str"
    blob: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def from_strings(cls, values: list[str]) -> Self:
        """Return ids made from Python strings."""
        encoded = [_encode_utf8(value) for value in values]
        ends = accumulate(map(len, encoded), initial=0)
        offsets = np.fromiter(ends, np.int64, len(encoded) + 1)
        return cls(np.frombuffer(b"".join(encoded), np.uint8).copy(), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, positions: NDArray[np.int64]) -> Self:
        """Return the ids at these positions, in new memory."""
        positions = np.asarray(positions, np.int64)
        starts = self.offsets[:-1][positions]
        lengths = self.offsets[1:][positions] - starts
        offsets = np.zeros(len(positions) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        follows = np.diff(positions) == 1
        if len(follows) and follows.mean() > 0.9:
            return type(self)(self._copy_runs(positions, np.flatnonzero(~follows)), offsets)
        source = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return type(self)(self.blob[source], offsets)

    def _copy_runs(
        self, positions: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Return the bytes of the ids at these positions, copied run by run.

        This is faster than copying byte by byte if most positions are adjacent.
        """
        first = positions[np.concatenate([[0], ends + 1])]
        last = positions[np.concatenate([ends, [len(positions) - 1]])]
        spans = zip(self.offsets[first].tolist(), self.offsets[last + 1].tolist(), strict=True)
        return np.concatenate([self.blob[begin:end] for begin, end in spans])

    def concat(self, *others: Ids) -> Self:
        """Return these ids followed by `others`, which must be of the same kind."""
        parts = self._require_same_kind(others)
        offsets = np.zeros(sum(len(ids) for ids in parts) + 1, np.int64)
        np.cumsum(np.concatenate([np.diff(ids.offsets) for ids in parts]), out=offsets[1:])
        return type(self)(np.concatenate([ids.blob for ids in parts]), offsets)

    def hashes(self, seed: int, purpose: Purpose, *parts: int | str) -> NDArray[np.uint64]:
        """Return a 64-bit hash of every id, keyed by seed, purpose and `parts`."""
        if len(self) == 1:  # array checks would cost ten times as much as the hash
            return np.array([keyed_hash(seed, purpose, *parts, self.get_id(0))], np.uint64)
        return keyed_hash_texts(seed, purpose, self.blob, self.offsets, *parts)

    def to_list(self) -> list[str]:
        """Return the ids as plain Python values."""
        data, ends = self.blob.tobytes(), self.offsets.tolist()
        return [data[a:b].decode() for a, b in pairwise(ends)]

    def to_array(self) -> NDArray[Any]:
        """Return the ids as an array of str objects (a fixed-width dtype drops trailing NULs)."""
        array = np.empty(len(self), object)
        array[:] = self.to_list()
        return array

    def get_id(self, position: int) -> str:
        """Return the id at this position as a plain Python value."""
        return self.blob[self.offsets[position] : self.offsets[position + 1]].tobytes().decode()

    def wipe(self, positions: NDArray[np.int64]) -> None:
        """Overwrite the ids at these positions with zero bytes, in place; their lengths remain."""
        for position in positions.tolist():
            begin, end = self.offsets[position : position + 2].tolist()
            self.blob[begin:end] = 0


def as_ids(values: Any, *, what: str = "ids") -> Ids:
    """Convert ids from a caller to `Ids`; `what` names the argument in errors.

    Accepts lists, tuples, sets, iterators, NumPy arrays, pandas and polars series. Raises
    `IdsTypeError` for bool, float, bytes, UUID, None, NaN, NA, mixed kinds and for a single id.

    Parameters
    ----------
    values : list, tuple, set, iterator, ndarray or series
        Ids, either all integers or all strings.
    what : str, default="ids"
        Name of the argument in errors.

    Returns
    -------
    Ids

    Raises
    ------
    IdsTypeError
        The values are not ids of one kind, or are a single id.

    Examples
    --------
    >>> from letheon.data import as_ids
    >>> as_ids((3, 1, 3)).to_list()
    [3, 1, 3]
    >>> as_ids([1, "1"])
    Traceback (most recent call last):
    ...
    letheon.exceptions.IdsTypeError: ids contains values of type int, str; expected either ...
    """
    if isinstance(values, Ids):
        return values
    if type(values) is list:  # the usual case: skip the checks for frames
        return (_single_id(values[0]) if len(values) == 1 else None) or _from_values(values, what)
    if isinstance(values, str | int | np.integer) and not isinstance(values, bool):
        raise IdsTypeError(f"{what}={values!r} is a single id; pass a list: [{values!r}]")
    if isinstance(values, np.ndarray):
        return _from_array(values, what)
    native = nw.from_native(values, allow_series=True, pass_through=True)
    if isinstance(native, nw.DataFrame | nw.LazyFrame):
        raise IdsTypeError(f"{what} is a data frame; pass one column, such as frame['id']")
    if isinstance(native, nw.Series):
        values = native.to_list()
    elif not isinstance(values, Iterable) or isinstance(values, _NO_LISTS):
        hint = "; use str()" if isinstance(values, UUID) else ""
        raise IdsTypeError(f"{what} is a {type(values).__name__}; {_EXPECTED}{hint}")
    return _from_values(list(values), what)


def row_ids(values: Any, n_rows: int) -> Ids:
    """Return the ids of a caller, one per row; ``0..n-1`` if `values` is None.

    Parameters
    ----------
    values : array-like or None
        The ids.
    n_rows : int
        Number of rows.

    Returns
    -------
    Ids

    Raises
    ------
    IdsTypeError
        The values are not ids of one kind, or have no order.
    IdsLengthError
        There is not one id per row.

    Examples
    --------
    >>> from letheon.data import row_ids
    >>> row_ids(["anna", "ben"], 2).to_list(), row_ids(None, 3).to_list()
    (['anna', 'ben'], [0, 1, 2])
    """
    if values is None:
        return IntIds(np.arange(n_rows, dtype=np.int64))
    if isinstance(values, str):
        raise IdsTypeError(
            f"ids={values!r} is a single string; pass one id per row, such as frame[{values!r}]"
        )
    if isinstance(values, set | frozenset):
        raise IdsTypeError(
            "ids is a set, which has no order; pass a list with one id per row, in row order"
        )
    ids = as_ids(values)
    if len(ids) != n_rows:
        raise IdsLengthError(f"got {len(ids)} ids for {n_rows} rows; give one id per row")
    return ids


def _from_array(values: NDArray[Any], what: str) -> Ids:
    if values.ndim != 1:
        raise IdsTypeError(
            f"{what} is an array with {values.ndim} dimensions; expected one dimension"
        )
    if isinstance(values, np.ma.MaskedArray):
        return _from_values(values.tolist(), what)  # masked ids become None, which is rejected
    if values.size == 0:  # the result of an empty filter has any dtype
        return IntIds(np.empty(0, np.int64))
    if values.dtype.kind == "i" or (values.dtype.kind == "u" and values.dtype.itemsize < 8):
        return IntIds(values.astype(np.int64))
    if values.dtype.kind in "bfcmMSV":
        raise IdsTypeError(f"{what} has dtype {values.dtype}; {_EXPECTED}")
    return _from_values(values.tolist(), what)


def _single_id(value: Any) -> Ids | None:
    """Return the `Ids` of a single int or str; None for other types.

    This shortcut is faster than `_from_values`.
    """
    if type(value) is int and _LEAST <= value <= _MOST:
        return IntIds(np.array([value], np.int64))
    if type(value) is str:
        text = _encode_utf8(value)
        return TextIds(np.frombuffer(text, np.uint8), np.array([0, len(text)], np.int64))
    return None


def _from_values(values: list[Any], what: str) -> Ids:
    kinds = set(map(type, values))
    if kinds and all(issubclass(kind, str) for kind in kinds):
        return TextIds.from_strings(values)
    if all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds):
        return IntIds(_to_int64(values, what))
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    hint = " (a missing value is a float or None)" if kinds & {float, type(None)} else ""
    advice = f"; use str(): [str(value) for value in {what}]" if UUID in kinds else ""
    raise IdsTypeError(f"{what} contains values of type {names}{hint}; {_EXPECTED}{advice}")


def _to_int64(values: list[Any], what: str) -> NDArray[np.int64]:
    for value in values:
        if not _LEAST <= value <= _MOST:
            raise IdsTypeError(
                f"{what} contains {value}, which does not fit into 64 bits; use str ids"
            )
    return np.array([int(value) for value in values], np.int64)


def _encode_utf8(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise IdsTypeError(f"id {value!r} is not valid Unicode: {error.reason}") from error


class Matches(NamedTuple):
    """Result of a lookup: positions of all rows, and one row per requested id.

    `any_row` is -1 for an id without rows.
    """

    positions: NDArray[np.int64]
    any_row: NDArray[np.int64]

    @property
    def has_rows(self) -> NDArray[np.bool_]:
        """Boolean array: whether each requested id has rows."""
        return self.any_row >= 0


class IdIndex:
    """Index of ids by hash; `find` takes O(k log n) time for k ids.

    Parameters
    ----------
    ids : Ids
        The ids of the rows.

    Examples
    --------
    >>> from letheon.data import IdIndex, as_ids
    >>> index = IdIndex(as_ids(["anna", "ben", "anna"]))
    >>> matches = index.find(as_ids(["anna", "zoe"]))
    >>> matches.positions.tolist(), matches.has_rows.tolist()
    ([0, 2], [True, False])
    """

    def __init__(self, ids: Ids) -> None:
        hashes = ids.hashes(_KEY, Purpose.ID_INDEX)
        self._order = np.argsort(hashes, kind="stable").astype(np.int64)
        self._sorted = hashes[self._order]
        self._ids = ids

    def find(self, requested: Ids) -> Matches:
        """Return the rows of the requested ids, ascending, and which ids have rows."""
        if type(requested) is not type(self._ids):
            return Matches(np.empty(0, np.int64), np.full(len(requested), -1))
        hashes = requested.hashes(_KEY, Purpose.ID_INDEX)
        first = np.searchsorted(self._sorted, hashes, "left")
        count = np.searchsorted(self._sorted, hashes, "right") - first
        owner = np.repeat(np.arange(len(requested)), count)
        offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        rows = self._order[first[owner] + offset]
        remaining = rows >= 0
        rows, owner = rows[remaining], owner[remaining]
        pairs = zip(self._ids.take(rows).to_list(), requested.take(owner).to_list(), strict=True)
        same = np.fromiter((a == b for a, b in pairs), bool, len(rows))
        any_row = np.full(len(requested), -1)
        any_row[owner[same]] = rows[same]
        return Matches(np.unique(rows[same]), any_row)

    def find_one(self, requested: Ids) -> NDArray[np.int64]:
        """Return the rows of a single id, ascending; faster than `find`."""
        if type(requested) is not type(self._ids):
            return np.empty(0, np.int64)
        first, end = self._hash_range(requested.hashes(_KEY, Purpose.ID_INDEX))
        value, ids = requested.get_id(0), self._ids
        rows = self._order[first:end].tolist()
        return np.array([row for row in rows if row >= 0 and ids.get_id(row) == value], np.int64)

    def erase(self, rows: NDArray[np.int64]) -> None:
        """Erase the index entries of these rows, in place; entries already erased are skipped."""
        if len(rows) < _MANY:
            for row in rows.tolist():
                entry = int(self._entry_of_row[row])
                if entry >= 0:
                    self._order[entry] = self._entry_of_row[row] = -1
                    self._overwrite_erased_run(*self._hash_range(self._sorted[entry : entry + 1]))
            return
        entries = self._entry_of_row[rows]
        self._order[entries[entries >= 0]] = -1
        self._entry_of_row[rows] = -1
        self._overwrite_all_erased()

    @cached_property
    def _entry_of_row(self) -> NDArray[np.int64]:
        entries = np.full(len(self._ids), -1)
        remaining = np.flatnonzero(self._order >= 0)
        entries[self._order[remaining]] = remaining
        return entries

    def _hash_range(self, lone_hash: NDArray[np.uint64]) -> tuple[int, int]:
        """Return begin and end of the range of entries with this hash."""
        first = self._sorted.searchsorted(lone_hash, "left")
        end = self._sorted.searchsorted(lone_hash, "right")
        return int(first[0]), int(end[0])

    def _overwrite_erased_run(self, first: int, end: int) -> None:
        """Overwrite a run of equal hashes with an adjacent hash, if no entry of it has a row."""
        if max(self._order[first:end].tolist()) >= 0:
            return
        if first > 0:
            self._sorted[first:end] = self._sorted[first - 1]
        else:
            self._sorted[:end] = self._sorted[end] if end < len(self._sorted) else 0

    def _overwrite_all_erased(self) -> None:
        """Overwrite the hash of every erased entry with that of a remaining entry.

        It is the last remaining entry before the erased one, or else the first remaining entry.
        """
        remaining = self._order >= 0
        if not remaining.any():
            self._sorted[:] = 0
            return
        source = np.where(remaining, np.arange(len(remaining)), remaining.argmax())
        np.maximum.accumulate(source, out=source)
        self._sorted[:] = self._sorted[source]
