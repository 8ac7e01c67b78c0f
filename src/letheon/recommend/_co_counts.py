"""Exact numbers of histories with each item and with each pair of items."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Places = NDArray[np.int32]

_LARGEST_COUNT = np.iinfo(np.int32).max


class _Partners(NamedTuple):
    """The new partners of one item, sorted, and how often they share a history with it."""

    item: int
    items: Places
    counts: Places


class _Steps(NamedTuple):
    """Changes of the counts of one item, at places in its list of partners."""

    item: int
    places: Integers
    steps: Places


class CoCounts:
    """Number of histories with each item, and with each pair of items.

    Parameters
    ----------
    n_items : int
        Number of items.

    Attributes
    ----------
    totals : ndarray of int64, shape (n_items,)
        Number of histories with each item.
    partners : list of ndarray of int32
        For each item the other items that share a history with it, sorted.
    counts : list of ndarray of int32
        The number of these histories for each partner; at least 1.

    Notes
    -----
    Counts are integers, so the result does not depend on the order of changes. A pair that no
    history contains any more is not stored.

    Examples
    --------
    >>> import numpy as np
    >>> import scipy.sparse as sp
    >>> from letheon.recommend import CoCounts
    >>> histories = sp.csr_array(np.array([[1, 1, 0], [1, 1, 1]]))
    >>> counts = CoCounts.count(histories)
    >>> counts.partners[0].tolist(), counts.counts[0].tolist()
    ([1, 2], [2, 1])
    >>> counts.plan_change([(-1, histories[[1]])])()
    >>> counts.partners[0].tolist(), counts.counts[0].tolist()
    ([1], [1])
    """

    def __init__(self, n_items: int) -> None:
        self.totals: Integers = np.zeros(n_items, np.int64)
        self.partners: list[Places] = [np.empty(0, np.int32) for _ in range(n_items)]
        self.counts: list[Places] = [np.empty(0, np.int32) for _ in range(n_items)]

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.totals)

    @classmethod
    def count(cls, histories: Any) -> Self:
        """Return the counts of all histories, a CSR array; every stored entry counts as 1."""
        counts = cls(histories.shape[1])
        counts.totals = np.bincount(histories.indices, minlength=counts.n_items).astype(np.int64)
        by_item = histories.tocsc()
        lengths = np.diff(histories.indptr)
        for item in np.flatnonzero(counts.totals).tolist():
            rows = by_item.indices[by_item.indptr[item] : by_item.indptr[item + 1]]
            places = _join_ranges(histories.indptr[rows], lengths[rows])
            numbers = np.bincount(histories.indices[places], minlength=counts.n_items)
            numbers[item] = 0
            partners = np.flatnonzero(numbers)
            counts.partners[item] = partners.astype(np.int32)
            counts.counts[item] = numbers[partners].astype(np.int32)
        return counts

    def plan_change(self, changes: Iterable[tuple[int, Any]]) -> Callable[[], None]:
        """Return a function that adds (+1) or subtracts (-1) histories; it cannot fail.

        Parameters
        ----------
        changes : iterable of (sign, CSR array)
            Histories to add and to subtract. Those to subtract were added before.
        """
        totals, updates = self.totals, list[_Partners | _Steps]()
        signed = [(sign, sp.csr_array(part, dtype=np.int64)) for sign, part in changes]
        for sign, part in signed:
            totals = totals + sign * np.bincount(part.indices, minlength=self.n_items)
        if signed:
            pairs = sum(sign * (part.T @ part) for sign, part in signed).tocsr()
            pairs.sort_indices()
            updates = [self._plan_item(item, *row) for item, row in _iter_rows(pairs)]
        return partial(self._apply, totals, updates)

    def _plan_item(self, item: int, others: Integers, steps: Integers) -> _Partners | _Steps:
        is_pair = others != item
        others, steps = others[is_pair], steps[is_pair]
        partners, counts = self.partners[item], self.counts[item]
        places = np.searchsorted(partners, others)
        is_new = places == len(partners)
        is_new[~is_new] = partners[places[~is_new]] != others[~is_new]
        if not is_new.any() and (counts[places] + steps > 0).all():
            return _Steps(item, places, steps.astype(np.int32))
        joint = np.insert(partners, places[is_new], others[is_new].astype(np.int32))
        numbers = np.insert(counts.astype(np.int64), places[is_new], 0)
        numbers[np.searchsorted(joint, others)] += steps
        keep = numbers > 0
        return _Partners(item, joint[keep], numbers[keep].astype(np.int32))

    def _apply(self, totals: Integers, updates: list[_Partners | _Steps]) -> None:
        self.totals = totals
        for update in updates:
            if isinstance(update, _Steps):
                self.counts[update.item][update.places] += update.steps
            else:
                self.counts[update.item].fill(0)
                self.partners[update.item].fill(0)
                self.partners[update.item], self.counts[update.item] = update.items, update.counts

    def to_matrix(self) -> NDArray[np.float64]:
        """Return the counts of all pairs as a dense matrix, with `totals` on the diagonal."""
        matrix = np.zeros((self.n_items, self.n_items))
        for item, (partners, counts) in enumerate(zip(self.partners, self.counts, strict=True)):
            matrix[item, partners] = counts
        np.fill_diagonal(matrix, self.totals)
        return matrix

    def __copy__(self) -> "CoCounts":
        """Return a copy with its own memory."""
        duplicate = CoCounts(0)
        duplicate.totals = self.totals.copy()
        duplicate.partners = [partners.copy() for partners in self.partners]
        duplicate.counts = [counts.copy() for counts in self.counts]
        return duplicate

    def _to_state(self) -> dict[str, Any]:
        lengths = np.array([len(partners) for partners in self.partners], np.int64)
        empty = np.empty(0, np.int32)
        return {
            "totals": self.totals,
            "lengths": lengths,
            "partners": np.concatenate([empty, *self.partners]),
            "counts": np.concatenate([empty, *self.counts]),
        }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        totals, lengths, partners, counts = (
            np.array(state[name]) for name in ("totals", "lengths", "partners", "counts")
        )
        _require_layout(totals, lengths, partners, counts)
        ends = np.cumsum(lengths)[:-1]
        loaded = cls(0)
        loaded.totals = totals
        # Copies, because each list changes alone.
        loaded.partners = [part.copy() for part in np.split(partners, ends)] if len(totals) else []
        loaded.counts = [part.copy() for part in np.split(counts, ends)] if len(totals) else []
        return loaded

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        """Pickle the integers."""
        return type(self)._from_state, (self._to_state(),)


def _join_ranges(begins: NDArray[Any], lengths: NDArray[Any]) -> Integers:
    """Return the numbers of all ranges ``begin .. begin + length - 1``, one after the other."""
    ends = np.cumsum(lengths)
    shifts = np.repeat(begins - (ends - lengths), lengths)
    ranges: Integers = shifts + np.arange(ends[-1] if len(ends) else 0)
    return ranges


def _iter_rows(table: Any) -> Iterator[tuple[int, tuple[Integers, Integers]]]:
    """Iterate over the rows of a CSR array that are not empty: number, columns and values."""
    for row in np.flatnonzero(np.diff(table.indptr)).tolist():
        part = slice(table.indptr[row], table.indptr[row + 1])
        yield row, (table.indices[part], table.data[part])


def _require_layout(
    totals: NDArray[Any], lengths: NDArray[Any], partners: NDArray[Any], counts: NDArray[Any]
) -> None:
    """Raise ValueError unless the arrays of a file are counts of pairs."""
    n_items = len(totals)
    dtypes = tuple(str(array.dtype) for array in (totals, lengths, partners, counts))
    if dtypes != ("int64", "int64", "int32", "int32"):
        raise ValueError(f"co-counts have the dtypes {dtypes}; expected int64 twice, int32 twice")
    if any(array.ndim != 1 for array in (totals, lengths, partners, counts)):
        raise ValueError("co-counts are not one-dimensional")
    is_sized = lengths.shape == (n_items,) and bool((lengths >= 0).all())
    is_sized = is_sized and bool((lengths <= n_items).all())
    if not is_sized or not int(lengths.sum()) == len(partners) == len(counts):
        raise ValueError("co-counts have lists of another length than stated")
    if len(partners) and not (int(partners.min()) >= 0 and int(partners.max()) < n_items):
        raise ValueError(f"co-counts have an item that does not exist; expected 0 to {n_items - 1}")
    items = np.repeat(np.arange(n_items), lengths)
    in_list = items[1:] == items[:-1]
    if (items == partners).any() or (np.diff(partners) <= 0)[in_list].any():
        raise ValueError("co-counts have partners that are not sorted, or an item as its partner")
    bounds = np.minimum(totals[items], totals[partners])
    if (counts < 1).any() or (counts > bounds).any() or (totals < 0).any():
        raise ValueError("co-counts are not between 1 and the number of histories of both items")
