"""Finding a person's rows: a sorted array of hashes with row numbers.

Eight bytes of hash and eight of row number per row; the originals are compared on a hit, so a
collision of hashes never confuses two people. The index is a cache: it is not part of the state.

A row that leaves is erased: its entry gets row number -1 and, so that the array stays sorted, the
hash of somebody who stays. Copies of a hash lie side by side, so they go when its owner goes.
"""

import secrets
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.data._ids import Ids
from letheon.seeds import Purpose

# Drawn per process, so that nobody can choose ids that collide.
_KEY = secrets.randbits(128)
# From this many rows on, one pass over all entries is cheaper than a search for each.
_MANY = 64


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
        same = self._same(rows, wanted, asker)
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
                self._erase_one(row)
            return
        entries = self._entry_of_row[rows]
        self._order[entries[entries >= 0]] = -1
        self._entry_of_row[rows] = -1
        self._overwrite_all_erased()

    def _erase_one(self, row: int) -> None:
        entry = int(self._entry_of_row[row])
        if entry >= 0:
            self._order[entry] = -1
            self._entry_of_row[row] = -1
            self._overwrite_if_erased(*self._run(self._sorted[entry : entry + 1]))

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

    def _same(
        self, rows: NDArray[np.int64], wanted: Ids, asker: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        held, asked = self._ids.take(rows).to_list(), wanted.take(asker).to_list()
        return np.fromiter((a == b for a, b in zip(held, asked, strict=True)), bool, len(held))
