"""Rows as a user gives them, with the people who own them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
