"""Rows of people: a table, its labels and ids, with physical removal.

`Rows.without` copies everybody who stays. A method that forgets in microseconds cannot afford
that: in `SlotRows` a row is overwritten with zeros, and its slot stays empty until a fifth of all
slots are. Products with X need no mask: an empty slot is a row of zeros.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from letheon.data._ids import IdIndex, Ids
from letheon.data._tables import (
    Table,
    join_rows,
    join_target,
    read_only,
    slice_rows,
    table_length,
    take_rows,
    take_target,
)
from letheon.exceptions import IdsLengthError

# Compact when more than one slot in so many is empty.
_SLOTS_PER_HOLE = 5


class Found(NamedTuple):
    """Positions of the rows of some people, and the ids that nobody here has."""

    positions: NDArray[np.int64]
    missing: Ids


class Rows:
    """Rows in held order. Immutable: removal returns new rows in fresh memory.

    Parameters
    ----------
    X : table
        As `hold_table` returns it.
    y : ndarray or None
        As `hold_target` returns it.
    ids : Ids
        One per row; a person may own many rows.
    extra : mapping of str to ndarray
        Further values per row that the method needs, such as its slice.
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
        """Index of the ids; a cache, built at the first look-up."""
        return IdIndex(self.ids)

    def find(self, wanted: Ids) -> Found:
        """Return where the rows of these people are."""
        matches = self.index.find(wanted)
        return Found(matches.positions, wanted.take(np.flatnonzero(~matches.found)))

    def take(self, positions: NDArray[np.int64]) -> Self:
        """Return the rows at these positions, in that order, in fresh memory."""
        extra = {name: values[positions] for name, values in self.extra.items()}
        return type(self)(
            take_rows(self.X, positions),
            take_target(self.y, positions),
            self.ids.take(positions),
            extra,
        )

    def without(self, positions: NDArray[np.int64]) -> Self:
        """Return the other rows, in fresh memory."""
        keep = np.ones(len(self), bool)
        keep[positions] = False
        return self.take(np.flatnonzero(keep))

    def joined(self, other: "Rows") -> Self:
        """Return these rows followed by `other`."""
        extra = {
            name: np.concatenate([values, other.extra[name]]) for name, values in self.extra.items()
        }
        return type(self)(
            join_rows(self.X, other.X),
            join_target(self.y, other.y),
            self.ids.joined(other.ids),
            extra,
        )

    def part(self, begin: int, end: int) -> tuple[Table, NDArray[Any] | None]:
        """Return X and y of rows begin..end to train on; writing into them spoils nothing."""
        y = None if self.y is None else read_only(self.y[begin:end])
        return slice_rows(self.X, begin, end), y

    def _to_state(self) -> dict[str, Any]:
        return {"X": self.X, "y": self.y, "ids": self.ids, "extra": self.extra}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        return cls(state["X"], state["y"], state["ids"], state["extra"])

    def __getstate__(self) -> dict[str, Any]:
        """Leave the index out: it is rebuilt where it is needed."""
        return self._to_state()


class SlotRows:
    """Rows in slots. Mutable: `wipe` empties slots in place, `append` adds rows.

    Parameters
    ----------
    X : ndarray or CSR, shape (n, d)
        float32 or float64, as `hold_table` returns it. It is taken over, not copied: nobody else
        may hold its memory. Dense: writable, in C order and no view of anything larger; it may be
        uint8 and have more axes, as images do. CSR (array or matrix): sorted indices without
        repetition; buffers that scipy made views are copied.
    y : ndarray, shape (n,)
        float64 or int64; taken over, or copied if it is a view.
    ids : Ids
        One per row; a person may own many rows. Copied, since an `Ids` may be shared.
    extra : mapping of str to ndarray, optional
        Further numbers per row, along the first axis; as y.

    Attributes
    ----------
    X, y, extra
        One entry per slot; zeros in empty slots. Read them anew after every `wipe` and `append`.
    alive : ndarray of bool, shape (n_slots,)
        Which slots hold a row.

    Raises
    ------
    ValueError
        If an array has another form, or lengths differ.

    Notes
    -----
    What `wipe` leaves of a row in the memory of the process, until the next compaction: that its
    slot was in use, how many values a sparse row stored and how many bytes a text id had. What
    leaves the process (state, pickle) has no slots and no holes: it is that of rows which never
    held the wiped ones.

    Nothing here is locked. Positions hold until the next `wipe` or `append`, so find and wipe
    under one lock.

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
        y: NDArray[Any],
        ids: Ids,
        extra: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self._adopt(X, y, ids, dict(extra or {}))

    def _adopt(self, X: Table, y: NDArray[Any], ids: Ids, extra: dict[str, NDArray[Any]]) -> None:
        """Check everything, then hold it in place of what was held."""
        X = _own_csr(X) if sp.issparse(X) else _require_dense(X)
        n_slots = X.shape[0]
        _require_target(y, n_slots)
        _require_extra(extra, n_slots)
        if len(ids) != n_slots:
            raise IdsLengthError(f"got {len(ids)} ids for {n_slots} rows; give one id per row")
        own = {name: _owned(values) for name, values in extra.items()}
        fresh_ids = ids.take(np.arange(n_slots))
        self._hold(X, _owned(y), fresh_ids, own, np.ones(n_slots, bool))

    def _hold(
        self,
        X: Table,
        y: NDArray[Any],
        ids: Ids,
        extra: dict[str, NDArray[Any]],
        alive: NDArray[np.bool_],
    ) -> None:
        self.X = X
        self.y = y
        self.extra = extra
        self.alive = alive
        self._ids = ids
        self._n_held = int(np.count_nonzero(alive))
        vars(self).pop("index", None)

    def __len__(self) -> int:
        return self._n_held

    @property
    def n_slots(self) -> int:
        """Number of slots, empty ones included: the length of X, y and alive."""
        return len(self.alive)

    @property
    def ids(self) -> Ids:
        """Ids of the rows held, in the order of their slots; a copy."""
        return self._ids.take(np.flatnonzero(self.alive))

    def ids_at(self, positions: NDArray[np.int64]) -> Ids:
        """Return the ids of the rows in these slots; a copy."""
        return self._ids.take(positions)

    @cached_property
    def index(self) -> IdIndex:
        """Index of the ids held; a cache, built at the first look-up (or by asking for it)."""
        index = IdIndex(self._ids)
        index.erase(np.flatnonzero(~self.alive))
        return index

    @cached_property
    def _nobody(self) -> Ids:
        return self._ids.take(np.empty(0, np.int64))

    def find(self, wanted: Ids) -> Found:
        """Return the slots of these people's rows, ascending, and the ids that nobody has.

        O(k log n) for k ids.
        """
        if len(wanted) == 1:
            positions = self.index.find_one(wanted)
            return Found(positions, self._nobody if len(positions) else wanted)
        matches = self.index.find(wanted)
        return Found(matches.positions, wanted.take(np.flatnonzero(~matches.found)))

    def wipe(self, positions: NDArray[np.int64]) -> None:
        """Overwrite rows, labels, extras, ids and index entries with zeros; empty the slots.

        Costs O(size of the rows). Empty slots among `positions` are skipped, so a call that was
        interrupted can be repeated. When more than a fifth of the slots are empty, the rest moves
        together: positions that were found before are void then.

        Raises
        ------
        IndexError
            If there is no such slot; nothing has changed then. Nothing else can fail.
        """
        if len(positions) > 1:
            positions = np.unique(positions)
        if len(positions) and positions[0] < 0:
            raise IndexError(f"slot {positions[0]} is negative")
        positions = positions[self.alive[positions]]
        self._zero(positions)
        if (self.n_slots - self._n_held) * _SLOTS_PER_HOLE > self.n_slots:
            self._compact()

    def _zero(self, positions: NDArray[np.int64]) -> None:
        # NumPy writes through a lone position fastest if it is a number.
        where = int(positions[0]) if len(positions) == 1 else positions
        if isinstance(self.X, np.ndarray):
            self.X[where] = 0
        else:
            _zero_csr(self.X, positions)
        self.y[where] = 0
        for values in self.extra.values():
            values[where] = 0
        if "index" in vars(self):
            self.index.erase(positions)
        self._ids.wipe(positions)
        # Last: whoever is interrupted before this can wipe the same positions again.
        self.alive[where] = False
        self._n_held -= len(positions)

    def _compact(self) -> None:
        """Move the rows together, in their order; what they leave behind is zeroed."""
        kept = np.flatnonzero(self.alive)
        try:
            ids, alive, runs = self._ids.take(kept), np.ones(len(kept), bool), _runs(kept)
            rebuilt = _own_csr(take_rows(self.X, kept)) if sp.issparse(self.X) else None
        except MemoryError:  # nothing has moved; the next wipe tries again
            return
        if rebuilt is None:
            X = _moved_down(self.X, runs)
        else:
            X = rebuilt
            for buffer in (self.X.data, self.X.indices):
                buffer.fill(0)  # people who may leave later; a stale reference must not keep them
        extra = {name: _moved_down(values, runs) for name, values in self.extra.items()}
        self._hold(X, _moved_down(self.y, runs), ids, extra, alive)

    def append(
        self,
        X: Table,
        y: NDArray[Any],
        ids: Ids,
        extra: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Add rows after those held; holes are closed on the way. O(n): everything is copied.

        The dtypes held stay. Positions found before are void.

        Raises
        ------
        ValueError
            For another kind of table, other columns, other names or dtypes in `extra`, lengths
            that differ, or values that the dtypes held cannot represent. Nothing has changed then.
        IdsTypeError
            For ids of the other kind.
        """
        extra = dict(extra or {})
        n_new = X.shape[0]
        _require_target(y, n_new)
        _require_extra(extra, n_new)
        held, given = _layout(self.extra), _layout(extra)
        if held != given:
            raise ValueError(f"extra values are {given}; these rows hold {held}")
        if len(ids) != n_new:
            raise IdsLengthError(f"got {len(ids)} ids for {n_new} rows; give one id per row")
        both = Rows(**self._held_parts()).joined(Rows(X, y, ids, extra))
        assert both.y is not None
        self._adopt(both.X, both.y, both.ids, both.extra)

    def compacted(self) -> Self:
        """Return the rows held, without holes, in fresh memory."""
        kept = np.flatnonzero(self.alive)
        extra = {name: values[kept] for name, values in self.extra.items()}
        return type(self)(take_rows(self.X, kept), self.y[kept], self._ids.take(kept), extra)

    def __copy__(self) -> Self:
        """Return the same rows in the same slots, in fresh memory."""
        new = object.__new__(type(self))
        X = self.X
        if sp.issparse(X):
            X = _csr_like(X, X.data.copy(), X.indices.copy(), X.indptr.copy())
        else:
            X = X.copy()
        extra = {name: values.copy() for name, values in self.extra.items()}
        ids = self._ids.take(np.arange(self.n_slots))
        new._hold(X, self.y.copy(), ids, extra, self.alive.copy())
        return new

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self.__copy__()

    def _held_parts(self) -> dict[str, Any]:
        """Return X, y, ids and extra without holes; shared with these rows if there are none."""
        if self._n_held < self.n_slots:
            return self.compacted()._held_parts()
        return {"X": self.X, "y": self.y, "ids": self._ids, "extra": self.extra}

    def _to_state(self) -> dict[str, Any]:
        return self._held_parts()

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        X = state["X"]
        # A pickle or joblib hands over views of its own buffers, maybe read-only ones.
        if not sp.issparse(X) and not isinstance(X, np.ndarray):
            raise ValueError(f"rows of {type(X).__name__}; expected an array or a sparse matrix")
        X = X if sp.issparse(X) else _owned(X)
        return cls(X, state["y"], state["ids"], state["extra"])

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        """Pickle the rows held: holes, slots and the index stay in this process."""
        return type(self)._from_state, (self._to_state(),)


def _is_owned(array: NDArray[Any]) -> bool:
    """Say whether an array can be written and shows all of the memory that it keeps alive."""
    if type(array) is not np.ndarray or not (array.flags.writeable and array.flags.c_contiguous):
        return False
    base = array.base
    whole = type(base) is np.ndarray and base.flags.owndata and base.nbytes == array.nbytes
    return base is None or whole


def _owned(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array if its memory is its own, else a copy in C order."""
    return array if _is_owned(array) else np.array(array, order="C", subok=False)


def _require_dense(X: Any) -> NDArray[Any]:
    if not isinstance(X, np.ndarray) or X.ndim < 2:
        raise ValueError(f"X is a {type(X).__name__}; expected an array of rows or a CSR")
    if X.dtype != np.uint8:
        _require_float(X)
    if not _is_owned(X):
        raise ValueError(
            "X is read-only, not in C order or a view of other memory; rows are wiped in place, "
            "so give an array of its own, such as np.array(X, order='C')"
        )
    return X


def _require_float(X: Any) -> None:
    if X.dtype not in (np.float32, np.float64):
        raise ValueError(f"X has dtype {X.dtype}; expected float32 or float64")


def _own_csr(X: Any) -> Any:
    """Return the CSR with buffers of its own, in the index dtype that its size asks for."""
    if X.format != "csr":
        raise ValueError(f"X is sparse in {X.format} form; expected CSR: X.tocsr()")
    _require_float(X)
    if not X.has_canonical_format:
        raise ValueError("X has unsorted or repeated indices; give hold_table(X)")
    largest = max(X.nnz, *X.shape)
    kind = np.int32 if largest <= np.iinfo(np.int32).max else np.int64
    indices, indptr = (part.astype(kind, copy=False) for part in (X.indices, X.indptr))
    return _csr_like(X, _owned(X.data), _owned(indices), _owned(indptr))


def _csr_like(X: Any, data: Any, indices: Any, indptr: Any) -> Any:
    """Return a CSR of the class and shape of X; always built alike, so pickles tell no history."""
    new = type(X)((data, indices, indptr), shape=X.shape)
    # Holes will repeat column 0; scipy would squeeze that out in place and shift the rows.
    new.has_canonical_format = True
    return new


def _require_target(y: Any, n_rows: int) -> None:
    if not isinstance(y, np.ndarray) or y.dtype not in (np.float64, np.int64):
        given = getattr(y, "dtype", type(y).__name__)
        raise ValueError(f"y is {given}; expected an array of float64 or int64")
    if y.shape != (n_rows,):
        raise ValueError(f"y has shape {y.shape}; expected ({n_rows},), one label per row")


def _require_extra(extra: Mapping[str, Any], n_rows: int) -> None:
    for name, values in extra.items():
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf":
            raise ValueError(f"extra[{name!r}] is no array of numbers")
        if values.shape[:1] != (n_rows,):
            raise ValueError(f"extra[{name!r}] has shape {values.shape} for {n_rows} rows")


def _layout(extra: Mapping[str, NDArray[Any]]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (str(extra[name].dtype), extra[name].shape[1:]) for name in sorted(extra)}


def _zero_csr(X: Any, positions: NDArray[np.int64]) -> None:
    """Turn rows into explicit zeros of column 0: the others stay where they are."""
    for position in positions.tolist():
        begin, end = X.indptr[position : position + 2].tolist()
        X.data[begin:end] = 0
        X.indices[begin:end] = 0


def _runs(kept: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return begin and end of every run of neighbours, ascending."""
    if not len(kept):
        return []
    breaks = np.flatnonzero(np.diff(kept) != 1)
    begins = kept[np.concatenate([[0], breaks + 1])]
    ends = kept[np.concatenate([breaks, [len(kept) - 1]])] + 1
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def _moved_down(array: NDArray[Any], runs: list[tuple[int, int]]) -> NDArray[Any]:
    """Move runs of rows to the front, in place, zero the rest, and return a view of the front.

    Rows move in blocks no longer than the way they go: such a block never overlaps its target,
    so NumPy makes no copy of it.
    """
    target = 0
    for begin, end in runs:
        way = begin - target
        for source in range(begin, end, way) if way else ():
            stop = min(source + way, end)
            array[source - way : stop - way] = array[source:stop]
        target += end - begin
    array[target:] = 0
    return array[:target]


@dataclass(frozen=True)
class People:
    """Rows with their labels and owners.

    Attributes
    ----------
    X : array, sparse matrix or frame
        The rows.
    y : ndarray or None
        Their labels or targets.
    ids : ndarray
        Whose row each is.
    owned : bool
        Rows of which nobody said whose they are (False) have their numbers as ids: nobody who is
        forgotten owns one of them.
    """

    X: Any
    y: Any
    ids: NDArray[Any]
    owned: bool = True

    @property
    def names(self) -> list[Any]:
        """Every person once, in order of first appearance."""
        return list(dict.fromkeys(self.ids.tolist()))

    def at(self, where: NDArray[Any]) -> "People":
        """Return some of the rows, in the order they have."""
        X = self.X.iloc[where] if hasattr(self.X, "iloc") else self.X[where]
        y = None if self.y is None else self.y[where]
        return People(X, y, self.ids[where], self.owned)

    def without(self, people: Any) -> "People":
        """Return the rows of everybody else."""
        return self.at(np.flatnonzero(~np.isin(self.ids, people))) if self.owned else self

    def of(self, people: Any) -> "People":
        """Return the rows of some people."""
        return self.at(np.flatnonzero(np.isin(self.ids, people)))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.ids)
