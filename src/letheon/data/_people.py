"""Rows with their labels and ids."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class People:
    """Rows with their labels and ids.

    Attributes
    ----------
    X : array, sparse matrix or frame
        The rows.
    y : ndarray or None
        Labels or targets of the rows.
    ids : ndarray
        The id of each row.
    has_owners : bool
        False if the rows have no ids: `ids` has their positions, and `without` removes no row.
    """

    X: Any
    y: Any
    ids: NDArray[Any]
    has_owners: bool = True

    @property
    def unique_ids(self) -> list[Any]:
        """Every id once, in order of first appearance."""
        return list(dict.fromkeys(self.ids.tolist()))

    def take(self, where: NDArray[Any]) -> "People":
        """Return the rows at these positions."""
        X = self.X.iloc[where] if hasattr(self.X, "iloc") else self.X[where]
        y = None if self.y is None else self.y[where]
        return People(X, y, self.ids[where], self.has_owners)

    def without(self, ids: Any) -> "People":
        """Return the rows whose ids are not in `ids`."""
        return self.take(np.flatnonzero(~np.isin(self.ids, ids))) if self.has_owners else self

    def rows_of(self, ids: Any) -> "People":
        """Return the rows whose ids are in `ids`."""
        return self.take(np.flatnonzero(np.isin(self.ids, ids)))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.ids)
