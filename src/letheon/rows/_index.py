"""Finding a person's rows: a sorted array of hashes with row numbers.

Eight bytes of hash and eight of row number per row; the originals are compared on a hit, so a
collision of hashes never confuses two people. The index is a cache: it is not part of the state.
"""

import secrets
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.rows._ids import Ids
from letheon.seeds import Purpose

# Drawn per process, so that nobody can choose ids that collide.
_KEY = secrets.randbits(128)


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
        same = self._same(rows, wanted, asker)
        any_row = np.full(len(wanted), -1)
        any_row[asker[same]] = rows[same]
        return Matches(np.unique(rows[same]), any_row)

    def _same(
        self, rows: NDArray[np.int64], wanted: Ids, asker: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        held, asked = self._ids.take(rows).to_list(), wanted.take(asker).to_list()
        return np.fromiter((a == b for a, b in zip(held, asked, strict=True)), bool, len(held))
