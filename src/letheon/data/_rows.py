"""Rows of people: a table, its labels and ids, with physical removal."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from letheon.data._ids import Ids
from letheon.data._index import IdIndex
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
