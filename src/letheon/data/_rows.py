"""Rows: a table with its labels and ids, and physical removal.

`Rows.without` copies all remaining rows, which is too slow for methods that forget in microseconds.
`SlotRows` overwrites a row with zeros, and its slot stays empty until a fifth of all slots are
empty. Products with X need no mask: an empty slot is a row of zeros.
"""

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from letheon.data._frame import Frame, as_table, to_native
from letheon.data._ids import IdIndex, Ids
from letheon.data._tables import (
    Orders,
    Table,
    join_rows,
    read_only,
    slice_rows,
    table_length,
    take_rows,
)
from letheon.data._targets import hold_target, join_target, take_target
from letheon.exceptions import IdsLengthError

Extra = Mapping[str, NDArray[Any]] | None

# Compact when more than one in this many slots is empty.
_SLOTS_PER_HOLE = 5


class RowMatch(NamedTuple):
    """Result of a lookup of ids.

    Parameters
    ----------
    positions, missing : ndarray of int64, Ids
        Positions of the rows with these ids; ids without rows.
    """

    positions: NDArray[np.int64]
    missing: Ids


class Rows:
    """Rows in their original order. Immutable: removal returns new rows in new memory.

    Parameters
    ----------
    X : table
        The result of `hold_table`.
    y : ndarray or None
        The result of `hold_target`.
    ids : Ids
        One per row; a person may own many rows.
    extra : mapping of str to ndarray
        Further values per row, such as its slice.

    Examples
    --------
    >>> from letheon.data import Rows, as_ids, hold_table, hold_target
    >>> rows = Rows(hold_table([[0.0], [1.0], [2.0]]), hold_target([0, 1, 1]), as_ids([7, 8, 7]))
    >>> rows.find(as_ids([7])).positions
    array([0, 2])
    """

    def __init__(
        self,
        X: Table,
        y: NDArray[Any] | None,
        ids: Ids,
        extra: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self.X = X
        self.y = y
        self.ids = ids
        self.extra = dict(extra or {})

    def __len__(self) -> int:
        return table_length(self.X)

    @cached_property
    def index(self) -> IdIndex:
        """Index of the ids, built at the first lookup and cached."""
        return IdIndex(self.ids)

    def find(self, requested: Ids) -> RowMatch:
        """Return the positions of the rows with these ids, and the ids without rows."""
        matches = self.index.find(requested)
        return RowMatch(matches.positions, requested.take(np.flatnonzero(~matches.has_rows)))

    def take(self, positions: NDArray[np.int64]) -> Self:
        """Return the rows at these positions, in that order, in new memory."""
        extra = {name: values[positions] for name, values in self.extra.items()}
        return type(self)(
            take_rows(self.X, positions),
            take_target(self.y, positions),
            self.ids.take(positions),
            extra,
        )

    def without(self, positions: NDArray[np.int64]) -> Self:
        """Return all rows except those at these positions, in new memory."""
        keep = np.ones(len(self), bool)
        keep[positions] = False
        return self.take(np.flatnonzero(keep))

    def concat(self, other: "Rows", orders: Orders | None = None) -> Self:
        """Return these rows followed by `other`; `orders` is that of `list_orders`."""
        if differing := sorted(self.extra.keys() ^ other.extra.keys()):
            raise ValueError(
                f"some rows have {', '.join(differing)} and some do not; expected it in all calls "
                "of fit and learn, or in none"
            )
        extra = {
            name: np.concatenate([values, other.extra[name]]) for name, values in self.extra.items()
        }
        return type(self)(
            join_rows(self.X, other.X, orders),
            join_target(self.y, other.y),
            self.ids.concat(other.ids),
            extra,
        )

    def slice(self, begin: int, end: int) -> tuple[Table, NDArray[Any] | None]:
        """Return X and y of the rows `begin` to ``end - 1``, as read-only views or copies."""
        y = None if self.y is None else read_only(self.y[begin:end])
        return slice_rows(self.X, begin, end), y

    def _to_state(self) -> dict[str, Any]:
        return {"X": self.X, "y": self.y, "ids": self.ids, "extra": self.extra}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        return cls(state["X"], state["y"], state["ids"], state["extra"])

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the index, which is rebuilt when needed."""
        return self._to_state()


class SlotRows:
    """Rows in slots. Mutable: `wipe` empties slots in place, `append` adds rows.

    Parameters
    ----------
    X : ndarray, CSR or Frame, shape (n, d)
        The result of `as_table`. It is not copied, so no other object may use its memory. A dense
        array has numbers or one column of texts; it must be writable, in C order and not a view of
        a larger array, and may have more axes, like images. A CSR array or matrix has float32 or
        float64 values and sorted indices without duplicates; buffers that are views are copied.
    y : ndarray, shape (n,) or (n, k), or None
        The result of `hold_target`; copied only if it is a view.
    ids : Ids
        One per row; a person may own many rows. Copied, because an `Ids` may be shared.
    extra : mapping of str to ndarray, optional
        Further numbers per row, along the first axis; copied only if they are views.

    Attributes
    ----------
    X, y, extra
        One entry per slot; zeros in empty slots. Read them again after every `wipe` and `append`.
    alive : ndarray of bool, shape (n_slots,)
        Which slots have a row.

    Raises
    ------
    ValueError
        If an array has another type, dtype or layout, or if lengths differ.

    Notes
    -----
    Until the next compaction the memory of the process still shows that a wiped slot was in use,
    how many values a sparse row had and how many bytes a text id had. The state and the pickle
    contain no slots: they are the same as if the wiped rows had never existed.

    There are no locks. `wipe` and `append` invalidate positions: hold a lock from `find` to `wipe`.

    Examples
    --------
    >>> from letheon.data import as_ids
    >>> rows = SlotRows(np.eye(20), np.ones(20), as_ids(list(range(20))))
    >>> rows.wipe(rows.find(as_ids([7])).positions)
    >>> len(rows), rows.n_slots, rows.X[7].any()
    (19, 20, np.False_)
    """

    def __init__(
        self,
        X: Table,
        y: NDArray[Any] | None,
        ids: Ids,
        extra: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self._replace_arrays(X, y, ids, dict(extra or {}))

    def _replace_arrays(
        self, X: Table, y: NDArray[Any] | None, ids: Ids, extra: dict[str, NDArray[Any]]
    ) -> None:
        """Check the arrays, then replace the current arrays by them."""
        X = _own_table(X)
        n_slots = X.shape[0]
        _require_target(y, n_slots)
        _require_extra(extra, n_slots)
        if len(ids) != n_slots:
            raise IdsLengthError(f"got {len(ids)} ids for {n_slots} rows; give one id per row")
        own = {name: _ensure_owned(values) for name, values in extra.items()}
        fresh_ids = ids.take(np.arange(n_slots))
        target = None if y is None else _ensure_owned(y)
        self._set_arrays(X, target, fresh_ids, own, np.ones(n_slots, bool))

    def _set_arrays(
        self,
        X: Table,
        y: Any,
        ids: Ids,
        extra: dict[str, NDArray[Any]],
        alive: NDArray[np.bool_],
    ) -> None:
        self.X = X
        self.y = y
        self.extra = extra
        self.alive = alive
        self._ids = ids
        self._n_rows = int(np.count_nonzero(alive))
        vars(self).pop("index", None)
        vars(self).pop("n_people", None)

    def __len__(self) -> int:
        return self._n_rows

    @property
    def n_slots(self) -> int:
        """Number of slots, including empty ones: the length of X, y and alive."""
        return len(self.alive)

    @property
    def ids(self) -> Ids:
        """Copy of the ids of the remaining rows, in slot order."""
        return self._ids.take(np.flatnonzero(self.alive))

    def ids_at(self, positions: NDArray[np.int64]) -> Ids:
        """Return a copy of the ids of the rows in these slots."""
        return self._ids.take(positions)

    @cached_property
    def index(self) -> IdIndex:
        """Index of the remaining ids, built at the first lookup and cached."""
        index = IdIndex(self._ids)
        index.erase(np.flatnonzero(~self.alive))
        return index

    def build_caches(self) -> None:
        """Build what the first request would build, so that it is as fast as the others."""
        _ = self.index._entry_of_row, getattr(self.X, "code_counts", None)

    @cached_property
    def n_people(self) -> int:
        """Number of distinct ids; counted at the first use, then kept up to date."""
        return len(self.ids.distinct())

    @cached_property
    def _no_ids(self) -> Ids:
        return self._ids.take(np.empty(0, np.int64))

    def find(self, requested: Ids) -> RowMatch:
        """Return the slots of the rows with these ids, ascending, and the ids without rows.

        The lookup takes O(k log n) time for k ids.
        """
        if len(requested) == 1:
            positions = self.index.find_one(requested)
            return RowMatch(positions, self._no_ids if len(positions) else requested)
        matches = self.index.find(requested)
        return RowMatch(matches.positions, requested.take(np.flatnonzero(~matches.has_rows)))

    def wipe(self, positions: NDArray[np.int64]) -> None:
        """Overwrite rows, labels, extras, ids and index entries with zeros; empty the slots.

        The time is proportional to the size of the wiped rows. Empty slots among `positions` are
        skipped, so an interrupted call can be repeated. If more than a fifth of the slots are empty
        afterwards, the rows are compacted, and earlier positions become invalid.

        Raises
        ------
        IndexError
            If a slot does not exist; no row is changed. There are no other errors.
        """
        if len(positions) > 1:
            positions = np.unique(positions)
        if len(positions) and positions[0] < 0:
            raise IndexError(f"positions contains {positions[0]}; expected slots of at least 0")
        positions = positions[self.alive[positions]]
        self._zero_slots(positions)
        if (self.n_slots - self._n_rows) * _SLOTS_PER_HOLE > self.n_slots:
            self._compact_slots()

    def _zero_slots(self, positions: NDArray[np.int64]) -> None:
        # NumPy writes a single position fastest if it is an int.
        where = int(positions[0]) if len(positions) == 1 else positions
        if isinstance(self.X, np.ndarray):
            self.X[where] = 0
        elif isinstance(self.X, Frame):
            self.X.wipe(positions)
        else:
            _zero_csr(self.X, positions)
        if self.y is not None:
            self.y[where] = 0
        for values in self.extra.values():
            values[where] = 0
        if "n_people" in vars(self):
            self.n_people -= self._count_last_rows(positions)
        if "index" in vars(self):
            self.index.erase(positions)
        self._ids.wipe(positions)
        # Last, so that an interrupted wipe can be repeated with the same positions.
        self.alive[where] = False
        self._n_rows -= len(positions)

    def _count_last_rows(self, positions: NDArray[np.int64]) -> int:
        """Return the number of ids all of whose rows are at these positions."""
        owners = self._ids.take(positions).distinct()
        others = np.setdiff1d(self.find(owners).positions, positions)
        return len(owners) - len(self._ids.take(others).distinct())

    def _compact_slots(self) -> None:
        """Remove the empty slots, keeping the order; overwrite the freed memory with zeros."""
        slots = np.flatnonzero(self.alive)
        try:
            ids, alive, runs = (
                self._ids.take(slots),
                np.ones(len(slots), bool),
                _find_runs(slots),
            )
            rebuilt = None if isinstance(self.X, np.ndarray) else _own_table(self._take_X(slots))
        except MemoryError:  # nothing has moved; the next wipe tries again
            return
        if rebuilt is None:
            X = _move_down(self.X, runs)
        else:
            X = rebuilt
            is_frame = isinstance(X, Frame)
            for name in ("numbers", "codes") if is_frame else ("data", "indices"):
                # A stale reference must not keep rows that are removed later.
                getattr(self.X, name).fill(0)
        extra = {name: _move_down(values, runs) for name, values in self.extra.items()}
        y = None if self.y is None else _move_down(self.y, runs)
        self._set_arrays(X, y, ids, extra, alive)

    def _take_X(self, slots: NDArray[np.int64]) -> Table:
        """Return the table at some slots, in new memory."""
        if isinstance(self.X, Frame):
            return self.X.take(slots).concat(self.X.take(slots[:0]))  # without unused values
        return take_rows(self.X, slots)

    def append(
        self,
        X: Table,
        y: NDArray[Any] | None,
        ids: Ids,
        extra: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Add rows after the existing rows and remove empty slots.

        All rows are copied (O(n) time). Dtypes do not change. Earlier positions become invalid.

        Raises
        ------
        ValueError
            For another kind of table, other columns, other names or dtypes in `extra`, different
            lengths, or values that the current dtypes cannot represent. No row is changed.
        IdsTypeError
            For ids of the other kind.
        """
        joint = self.join(X, y, ids, extra)
        self._set_arrays(joint.X, joint.y, joint._ids, joint.extra, joint.alive)

    def join(
        self, X: Table, y: Any, ids: Ids, extra: Extra = None, orders: Orders | None = None
    ) -> Self:
        """Return old and new rows in new memory; `orders` is `list_orders` of the new ones."""
        extra = dict(extra or {})
        n_new = X.shape[0]
        _require_target(y, n_new)
        _require_extra(extra, n_new)
        expected, layout = _extra_layout(self.extra), _extra_layout(extra)
        if expected != layout:
            raise ValueError(f"extra has the layout {layout}; expected {expected}")
        if len(ids) != n_new:
            raise IdsLengthError(f"got {len(ids)} ids for {n_new} rows; give one id per row")
        own = self._compact_parts()
        first = own["X"]
        table = first.concat(X, orders) if isinstance(X, Frame) else join_rows(first, X)
        joint = {name: np.concatenate([own["extra"][name], extra[name]]) for name in extra}
        return type(self)(table, join_target(own["y"], y), own["ids"].concat(ids), joint)

    def compact_copy(self) -> Self:
        """Return the remaining rows without empty slots, in new memory."""
        slots = np.flatnonzero(self.alive)
        extra = {name: values[slots] for name, values in self.extra.items()}
        y = None if self.y is None else self.y[slots]
        return type(self)(self._take_X(slots), y, self._ids.take(slots), extra)

    def __copy__(self) -> Self:
        """Return the same rows in the same slots, in new memory."""
        new = object.__new__(type(self))
        X = self.X
        if sp.issparse(X):
            X = _csr_like(X, X.data.copy(), X.indices.copy(), X.indptr.copy())
        else:
            X = copy.copy(X) if isinstance(X, Frame) else X.copy()
        extra = {name: values.copy() for name, values in self.extra.items()}
        ids = self._ids.take(np.arange(self.n_slots))
        y = None if self.y is None else self.y.copy()
        new._set_arrays(X, y, ids, extra, self.alive.copy())
        return new

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self.__copy__()

    def _compact_parts(self) -> dict[str, Any]:
        """Return X, y, ids and extra without empty slots; if none is empty, memory is shared."""
        if self._n_rows < self.n_slots:
            return self.compact_copy()._compact_parts()
        return {"X": self.X, "y": self.y, "ids": self._ids, "extra": self.extra}

    def _to_state(self) -> dict[str, Any]:
        parts = self._compact_parts()
        if parts["y"] is not None and parts["y"].dtype.kind == "U":
            parts["y"] = hold_target(parts["y"])  # the width shows the longest label
        return parts | {"X": to_native(parts["X"])}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        X = state["X"]
        # pickle and joblib pass views of their own buffers, which may be read-only.
        if not sp.issparse(X):
            is_numbers = isinstance(X, np.ndarray) and X.dtype.kind != "O"
            X = _ensure_owned(X) if is_numbers else as_table(X)
        return cls(X, state["y"], state["ids"], state["extra"])

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        """Pickle the remaining rows, without slots and index."""
        return type(self)._from_state, (self._to_state(),)


def _is_owned(array: NDArray[Any]) -> bool:
    """Return whether an array is writable, C-contiguous and not a view of a larger array."""
    if type(array) is not np.ndarray or not (array.flags.writeable and array.flags.c_contiguous):
        return False
    base = array.base
    whole = type(base) is np.ndarray and base.flags.owndata and base.nbytes == array.nbytes
    return base is None or whole


def _ensure_owned(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array if it owns its memory, else a copy in C order."""
    return array if _is_owned(array) else np.array(array, order="C", subok=False)


def _own_table(X: Any) -> Any:
    """Return a table whose memory the rows may overwrite."""
    if isinstance(X, Frame):
        return X if _is_owned(X.numbers) and _is_owned(X.codes) else copy.copy(X)
    return _own_csr(X) if sp.issparse(X) else _require_dense(X)


def _require_dense(X: Any) -> NDArray[Any]:
    if not isinstance(X, np.ndarray) or (X.ndim < 2 and X.dtype.kind != "O"):
        raise ValueError(
            f"X is a {type(X).__name__}; expected an array of rows, a CSR matrix, a Frame or texts"
        )
    if X.dtype.kind not in "biufO" or not X.dtype.isnative or X.dtype.itemsize > 8:
        raise ValueError(f"X has dtype {X.dtype}; expected numbers of 64 bits, native byte order")
    if not _is_owned(X):
        raise ValueError(
            "X is read-only, not in C order, or a view of a larger array; rows are wiped in "
            "place, so pass a copy, such as np.array(X, order='C')"
        )
    return X


def _require_float(X: Any) -> None:
    if X.dtype not in (np.float32, np.float64):
        raise ValueError(f"X has dtype {X.dtype}; expected float32 or float64")


def _own_csr(X: Any) -> Any:
    """Return a CSR matrix with its own buffers, and with the smallest sufficient index dtype."""
    if X.format != "csr":
        raise ValueError(f"X has the sparse format {X.format}; expected CSR: pass X.tocsr()")
    _require_float(X)
    if not X.has_canonical_format:
        raise ValueError("X has unsorted or duplicate indices; pass hold_table(X)")
    largest = max(X.nnz, *X.shape)
    kind = np.int32 if largest <= np.iinfo(np.int32).max else np.int64
    indices, indptr = (part.astype(kind, copy=False) for part in (X.indices, X.indptr))
    return _csr_like(X, _ensure_owned(X.data), _ensure_owned(indices), _ensure_owned(indptr))


def _csr_like(X: Any, data: Any, indices: Any, indptr: Any) -> Any:
    """Return a CSR matrix of the class and shape of X, whose pickle depends only on its values."""
    new = type(X)((data, indices, indptr), shape=X.shape)
    # Empty slots repeat column 0; scipy would remove the duplicates and shift the rows.
    new.has_canonical_format = True
    return new


def _require_target(y: Any, n_rows: int) -> None:
    if y is None:
        return
    kinds = (np.float64, np.int64, np.bool_)
    if not isinstance(y, np.ndarray) or not (y.dtype in kinds or y.dtype.kind in "UO"):
        kind = getattr(y, "dtype", type(y).__name__)
        raise ValueError(f"y has the type {kind}; expected the result of hold_target")
    if y.shape[:1] != (n_rows,):
        raise ValueError(f"y has shape {y.shape}; expected one label for each of {n_rows} rows")


def _require_extra(extra: Mapping[str, Any], n_rows: int) -> None:
    for name, values in extra.items():
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf":
            raise ValueError(f"extra[{name!r}] is not valid; expected an array of numbers")
        if values.shape[:1] != (n_rows,):
            raise ValueError(f"extra[{name!r}] has shape {values.shape}; expected {n_rows} rows")


def _extra_layout(extra: Mapping[str, NDArray[Any]]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (str(extra[name].dtype), extra[name].shape[1:]) for name in sorted(extra)}


def _zero_csr(X: Any, positions: NDArray[np.int64]) -> None:
    """Replace the entries of rows by explicit zeros in column 0, so that other rows do not move."""
    for position in positions.tolist():
        begin, end = X.indptr[position : position + 2].tolist()
        X.data[begin:end] = 0
        X.indices[begin:end] = 0


def _find_runs(slots: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return begin and end of every run of consecutive slots, in ascending order."""
    if not len(slots):
        return []
    breaks = np.flatnonzero(np.diff(slots) != 1)
    begins = slots[np.concatenate([[0], breaks + 1])]
    ends = slots[np.concatenate([breaks, [len(slots) - 1]])] + 1
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def _move_down(array: NDArray[Any], runs: list[tuple[int, int]]) -> NDArray[Any]:
    """Move runs of rows to the front in place, and return a view of the moved rows.

    The rest is overwritten with zeros. Blocks are no longer than the distance that they move, so a
    block never overlaps its target, and NumPy makes no temporary copy.
    """
    target = 0
    for begin, end in runs:
        distance = begin - target
        for source in range(begin, end, distance) if distance else ():
            stop = min(source + distance, end)
            array[source - distance : stop - distance] = array[source:stop]
        target += end - begin
    array[target:] = 0
    return array[:target]
