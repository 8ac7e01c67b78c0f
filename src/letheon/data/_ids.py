"""Ids: all int (64 bits) or all str, kept in a compact form, and the index that finds their rows.

Canonical bytes of an id are ``i`` + 8 bytes big-endian two's complement, or ``s`` + UTF-8 (not
Unicode-normalised), so ``1 != "1"``. Kinds are checked element by element *before* NumPy sees
the values: ``np.asarray([1, "1"])`` is ``["1", "1"]`` and ``np.asarray([2**63, -1])`` is float.

The index is a sorted array of hashes with row numbers: eight bytes of hash and eight of row number
per row. The originals are compared on a hit, so a collision of hashes never confuses two people.
The index is a cache: it is not part of the state. A row that leaves is erased: its entry gets row
number -1 and, so that the array stays sorted, the hash of somebody who stays. Copies of a hash lie
side by side, so they go when its owner goes.
"""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, ClassVar, NamedTuple, Self

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from letheon.exceptions import IdsLengthError, IdsTypeError
from letheon.seeds import Purpose, keyed_hash, keyed_hash_ints, keyed_hash_texts

_LEAST, _MOST = -(2**63), 2**63 - 1
_EXPECTED = "expected all int (64 bits) or all str, one kind only"
# Things that can be iterated over, but whose items are no ids.
_NO_LISTS = (bytes, bytearray, memoryview, dict)
# Drawn per process, so that nobody can choose ids that collide.
_KEY = secrets.randbits(128)
# From this many rows on, one pass over all entries is cheaper than a search for each.
_MANY = 64


class Ids(ABC):
    """Ids of one kind, one per row, in order. Immutable, but for `wipe`, their owner's."""

    kind: ClassVar[str]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, positions: NDArray[np.int64]) -> Self:
        """Return the ids at these positions, in a fresh buffer."""

    @abstractmethod
    def joined(self, *others: "Ids") -> Self:
        """Return these ids followed by the others, which must be of the same kind."""

    @abstractmethod
    def hashes(self, seed: int, purpose: Purpose, *parts: int | str) -> NDArray[np.uint64]:
        """Return the keyed hash of every id."""

    @abstractmethod
    def to_list(self) -> list[int] | list[str]:
        """Return the ids as plain Python values."""

    @abstractmethod
    def to_array(self) -> NDArray[Any]:
        """Return the ids as an array: int64, or objects that are str."""

    @abstractmethod
    def at(self, position: int) -> int | str:
        """Return one id as a plain Python value."""

    @abstractmethod
    def wipe(self, positions: NDArray[np.int64]) -> None:
        """Overwrite the ids at these positions with zero bytes, in place; lengths stay."""

    def distinct(self) -> Self:
        """Return each id once, in order of first appearance."""
        if len(self) <= 1:
            return self
        first: dict[object, int] = {}
        for position, value in enumerate(self.to_list()):
            first.setdefault(value, position)
        return self.take(np.fromiter(first.values(), np.int64, len(first)))

    def _same_kind(self, others: "tuple[Ids, ...]") -> list[Self]:
        """Return these ids and the others, or raise if they are of different kinds."""
        parts = [self]
        for other in others:
            if not isinstance(other, type(self)):
                raise IdsTypeError(
                    f"this model holds {self.kind} ids and was given {other.kind} ids; {_EXPECTED}"
                )
            parts.append(other)
        return parts


@dataclass(eq=False, repr=False)
class IntIds(Ids):
    """Ids that are int, as one int64 array."""

    kind: ClassVar[str] = "int"
    values: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, positions: NDArray[np.int64]) -> Self:
        """Return the ids at these positions, in a fresh buffer."""
        return type(self)(self.values[positions])

    def joined(self, *others: Ids) -> Self:
        """Return these ids followed by the others, which must be of the same kind."""
        return type(self)(np.concatenate([ids.values for ids in self._same_kind(others)]))

    def hashes(self, seed: int, purpose: Purpose, *parts: int | str) -> NDArray[np.uint64]:
        """Return the keyed hash of every id."""
        return keyed_hash_ints(seed, purpose, self.values, *parts)

    def to_list(self) -> list[int]:
        """Return the ids as plain Python values."""
        values: list[int] = self.values.tolist()
        return values

    def to_array(self) -> NDArray[Any]:
        """Return a copy of the ids as an int64 array."""
        return self.values.copy()

    def at(self, position: int) -> int:
        """Return one id as a plain Python value."""
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
    """Ids that are str, as one UTF-8 buffer and n + 1 offsets (a dict costs ten times more)."""

    kind: ClassVar[str] = "str"
    blob: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def from_strings(cls, values: list[str]) -> Self:
        """Encode Python strings."""
        encoded = [_utf8(value) for value in values]
        ends = accumulate(map(len, encoded), initial=0)
        offsets = np.fromiter(ends, np.int64, len(encoded) + 1)
        return cls(np.frombuffer(b"".join(encoded), np.uint8).copy(), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, positions: NDArray[np.int64]) -> Self:
        """Return the ids at these positions, in a fresh buffer."""
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
        """Copy runs of neighbours: what a removal leaves, without an index of every byte."""
        first = positions[np.concatenate([[0], ends + 1])]
        last = positions[np.concatenate([ends, [len(positions) - 1]])]
        spans = zip(self.offsets[first].tolist(), self.offsets[last + 1].tolist(), strict=True)
        return np.concatenate([self.blob[begin:end] for begin, end in spans])

    def joined(self, *others: Ids) -> Self:
        """Return these ids followed by the others, which must be of the same kind."""
        parts = self._same_kind(others)
        offsets = np.zeros(sum(len(ids) for ids in parts) + 1, np.int64)
        np.cumsum(np.concatenate([np.diff(ids.offsets) for ids in parts]), out=offsets[1:])
        return type(self)(np.concatenate([ids.blob for ids in parts]), offsets)

    def hashes(self, seed: int, purpose: Purpose, *parts: int | str) -> NDArray[np.uint64]:
        """Return the keyed hash of every id."""
        if len(self) == 1:  # checks of the arrays would cost ten times the hash
            return np.array([keyed_hash(seed, purpose, *parts, self.at(0))], np.uint64)
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

    def at(self, position: int) -> str:
        """Return one id as a plain Python value."""
        return self.blob[self.offsets[position] : self.offsets[position + 1]].tobytes().decode()

    def wipe(self, positions: NDArray[np.int64]) -> None:
        """Overwrite the ids at these positions with zero bytes, in place; lengths stay."""
        for position in positions.tolist():
            begin, end = self.offsets[position : position + 2].tolist()
            self.blob[begin:end] = 0


def as_ids(values: Any, *, what: str = "ids") -> Ids:
    """Normalise what a caller gives as ids.

    Accepts lists, tuples, sets, iterators, NumPy arrays, pandas and polars series. Raises
    `IdsTypeError` for bool, float, bytes, None, NaN, NA, mixed kinds and for a single bare id.
    """
    if isinstance(values, Ids):
        return values
    if type(values) is list:  # what most callers give: no need to ask whether it is a frame
        return (_lone_id(values[0]) if len(values) == 1 else None) or _from_values(values, what)
    if isinstance(values, str | int | np.integer) and not isinstance(values, bool):
        raise IdsTypeError(f"{what}={values!r} is a single value; give a list of ids: [{values!r}]")
    if isinstance(values, np.ndarray):
        return _from_array(values, what)
    native = nw.from_native(values, allow_series=True, pass_through=True)
    if isinstance(native, nw.DataFrame | nw.LazyFrame):
        raise IdsTypeError(f"{what} is a whole frame; give one column of it, such as frame['id']")
    if isinstance(native, nw.Series):
        values = native.to_list()
    elif not isinstance(values, Iterable) or isinstance(values, _NO_LISTS):
        raise IdsTypeError(f"{what} is a {type(values).__name__}; {_EXPECTED}")
    return _from_values(list(values), what)


def row_ids(values: Any, n_rows: int) -> Ids:
    """Return one id per row: the caller's, or ``0..n-1`` when none were given."""
    if values is None:
        return IntIds(np.arange(n_rows, dtype=np.int64))
    if isinstance(values, str):
        raise IdsTypeError(
            f"ids={values!r} is one text; give one id per row, such as frame[{values!r}]"
        )
    if isinstance(values, set | frozenset):
        raise IdsTypeError("ids is a set, which has no order; give one id per row, in row order")
    ids = as_ids(values)
    if len(ids) != n_rows:
        raise IdsLengthError(f"got {len(ids)} ids for {n_rows} rows; give one id per row")
    return ids


def _from_array(values: NDArray[Any], what: str) -> Ids:
    if values.ndim != 1:
        raise IdsTypeError(f"{what} has {values.ndim} dimensions; expected one")
    if isinstance(values, np.ma.MaskedArray):
        return _from_values(values.tolist(), what)  # masked ids become None, which is refused
    if values.size == 0:  # what an empty filter yields, whatever its dtype
        return IntIds(np.empty(0, np.int64))
    if values.dtype.kind == "i" or (values.dtype.kind == "u" and values.dtype.itemsize < 8):
        return IntIds(values.astype(np.int64))
    if values.dtype.kind in "bfcmMSV":
        raise IdsTypeError(f"{what} has dtype {values.dtype}; {_EXPECTED}")
    return _from_values(values.tolist(), what)


def _lone_id(value: Any) -> Ids | None:
    """Return one id of a plain kind by the shortest way; None for anything else."""
    if type(value) is int and _LEAST <= value <= _MOST:
        return IntIds(np.array([value], np.int64))
    if type(value) is str:
        text = _utf8(value)
        return TextIds(np.frombuffer(text, np.uint8), np.array([0, len(text)], np.int64))
    return None


def _from_values(values: list[Any], what: str) -> Ids:
    kinds = set(map(type, values))
    if kinds and all(issubclass(kind, str) for kind in kinds):
        return TextIds.from_strings(values)
    if all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds):
        return IntIds(_int64(values, what))
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    hint = " (a missing value is a float or None)" if kinds & {float, type(None)} else ""
    raise IdsTypeError(f"{what} holds values of type {names}{hint}; {_EXPECTED}")


def _int64(values: list[Any], what: str) -> NDArray[np.int64]:
    for value in values:
        if not _LEAST <= value <= _MOST:
            raise IdsTypeError(f"{what} holds {value}, which does not fit 64 bits; use str ids")
    return np.array([int(value) for value in values], np.int64)


def _utf8(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise IdsTypeError(f"id {value!r} is no valid Unicode text: {error.reason}") from error


class Matches(NamedTuple):
    """Rows that belong to the wanted ids, and one row of each wanted id (-1: it has none)."""

    positions: NDArray[np.int64]
    any_row: NDArray[np.int64]

    @property
    def found(self) -> NDArray[np.bool_]:
        """Which of the wanted ids have rows."""
        return self.any_row >= 0


class IdIndex:
    """Index of ids by hash; `find` is O(k log n) for k ids."""

    def __init__(self, ids: Ids) -> None:
        hashes = ids.hashes(_KEY, Purpose.ID_INDEX)
        self._order = np.argsort(hashes, kind="stable").astype(np.int64)
        self._sorted = hashes[self._order]
        self._ids = ids

    def find(self, wanted: Ids) -> Matches:
        """Return the rows of the wanted ids, ascending, and which ids were found."""
        if type(wanted) is not type(self._ids):
            return Matches(np.empty(0, np.int64), np.full(len(wanted), -1))
        hashes = wanted.hashes(_KEY, Purpose.ID_INDEX)
        first = np.searchsorted(self._sorted, hashes, "left")
        count = np.searchsorted(self._sorted, hashes, "right") - first
        asker = np.repeat(np.arange(len(wanted)), count)
        offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        rows = self._order[first[asker] + offset]
        held = rows >= 0
        rows, asker = rows[held], asker[held]
        pairs = zip(self._ids.take(rows).to_list(), wanted.take(asker).to_list(), strict=True)
        same = np.fromiter((a == b for a, b in pairs), bool, len(rows))
        any_row = np.full(len(wanted), -1)
        any_row[asker[same]] = rows[same]
        return Matches(np.unique(rows[same]), any_row)

    def find_one(self, wanted: Ids) -> NDArray[np.int64]:
        """Return the rows of a lone id, ascending; `find` without its overhead for many."""
        if type(wanted) is not type(self._ids):
            return np.empty(0, np.int64)
        first, end = self._run(wanted.hashes(_KEY, Purpose.ID_INDEX))
        value, ids = wanted.at(0), self._ids
        rows = self._order[first:end].tolist()
        return np.array([row for row in rows if row >= 0 and ids.at(row) == value], np.int64)

    def erase(self, rows: NDArray[np.int64]) -> None:
        """Erase the entries of these rows, in place; those erased before are left alone."""
        if len(rows) < _MANY:
            for row in rows.tolist():
                entry = int(self._entry_of_row[row])
                if entry >= 0:
                    self._order[entry] = self._entry_of_row[row] = -1
                    self._overwrite_if_erased(*self._run(self._sorted[entry : entry + 1]))
            return
        entries = self._entry_of_row[rows]
        self._order[entries[entries >= 0]] = -1
        self._entry_of_row[rows] = -1
        self._overwrite_all_erased()

    @cached_property
    def _entry_of_row(self) -> NDArray[np.int64]:
        entries = np.full(len(self._ids), -1)
        held = np.flatnonzero(self._order >= 0)
        entries[self._order[held]] = held
        return entries

    def _run(self, lone_hash: NDArray[np.uint64]) -> tuple[int, int]:
        """Return where the entries with this hash begin and end."""
        first = self._sorted.searchsorted(lone_hash, "left")
        end = self._sorted.searchsorted(lone_hash, "right")
        return int(first[0]), int(end[0])

    def _overwrite_if_erased(self, first: int, end: int) -> None:
        """Give a run of equal hashes that nobody has any more the hash of a neighbour."""
        if max(self._order[first:end].tolist()) >= 0:
            return
        if first > 0:
            self._sorted[first:end] = self._sorted[first - 1]
        else:
            self._sorted[:end] = self._sorted[end] if end < len(self._sorted) else 0

    def _overwrite_all_erased(self) -> None:
        """Give every erased entry the hash of the last row before it, or else of the first."""
        held = self._order >= 0
        if not held.any():
            self._sorted[:] = 0
            return
        source = np.where(held, np.arange(len(held)), held.argmax())
        np.maximum.accumulate(source, out=source)
        self._sorted[:] = self._sorted[source]
