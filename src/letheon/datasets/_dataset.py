"""A dataset in memory: rows, labels, and whose rows they are."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.datasets._info import DatasetInfo, Task

__all__ = ["Dataset"]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Rows to train on, rows to test on where there is a split, and what is known about them.

    Attributes
    ----------
    name : str
        Name and variant; made-up ones have "synthetic" in it.
    X : ndarray of float32, C-contiguous, or scipy.sparse.csr_array of float32
        Training rows. Columns are not scaled, but images are divided by 255.
    y : ndarray of int64
        Labels from 0 on.
    ids : ndarray or None
        Whose row it is, one per training row; None: every row is a person of its own.
    X_test, y_test, test_ids
        The same for the provider's test rows; None where there is no split. See `split`.
    feature_names : tuple of str
        Names of the columns; empty for images and sparse tables.
    task : {"classification", "regression"}
        Kind of y.
    info : DatasetInfo
        Provider, terms, and the survey's numbers.
    real : bool
        False for a made-up stand-in.
    note : str
        What one has to say beside any figure, such as "JPEG copies, lossy".

    Examples
    --------
    >>> from letheon.datasets import load
    >>> data = load("diabetes", synthetic="always", n_rows=300).split(0.25, seed=0)
    >>> data.describe()
    'diabetes (synthetic): 2... x 292, 1... people, 2 classes, ... positive, ... rows to test'
    >>> bool(set(data.ids) & set(data.test_ids))
    False
    """

    name: str
    X: Any
    y: NDArray[Any]
    ids: NDArray[Any] | None = None
    X_test: Any = None
    y_test: NDArray[Any] | None = None
    test_ids: NDArray[Any] | None = None
    feature_names: tuple[str, ...] = ()
    task: Task = "classification"
    info: DatasetInfo
    real: bool
    note: str = ""

    @property
    def people(self) -> NDArray[Any]:
        """Everybody who owns a training row, each once: row numbers where there are no ids."""
        return np.arange(len(self.y)) if self.ids is None else np.unique(self.ids)

    def split(self, test_share: float = 0.2, seed: int = 0) -> "Dataset":
        """Hold people out for testing; a dataset that has test rows is returned as it is.

        Parameters
        ----------
        test_share : float, default=0.2
            Share of the people, strictly between 0 and 1. At least one is on each side.
        seed : int, default=0
            Seed of the shuffle of people.

        Returns
        -------
        Dataset
            Nobody has rows on both sides.
        """
        if self.X_test is not None:
            return self
        if not 0 < test_share < 1:
            raise ValueError(f"test_share={test_share}; expected a number between 0 and 1")
        people = np.random.default_rng(seed).permutation(self.people)
        if len(people) < 2:
            raise ValueError("one person cannot be split into two sides")
        n_test = min(max(round(test_share * len(people)), 1), len(people) - 1)
        held_out = self._owned_by(people[:n_test])
        train, test = np.flatnonzero(~held_out), np.flatnonzero(held_out)
        kept = self._rows(train)
        return replace(
            kept,
            X_test=self.X[test],
            y_test=self.y[test],
            test_ids=None if self.ids is None else self.ids[test],
        )

    def sample(self, n_rows: int, seed: int = 0) -> "Dataset":
        """Return a random sample of the training rows; test rows stay.

        People come with all their rows, so there may be a few rows less than asked for. Everything
        stays when there are fewer rows than that. Rows keep their order.
        """
        if n_rows < 1:
            raise ValueError(f"n_rows={n_rows}; expected at least 1")
        if n_rows >= len(self.y):
            return self
        rng = np.random.default_rng(seed)
        if self.ids is None:
            return self._rows(np.sort(rng.permutation(len(self.y))[:n_rows]))
        people, owners = np.unique(self.ids, return_inverse=True)
        order = rng.permutation(len(people))
        n_owned = np.cumsum(np.bincount(owners)[order])
        n_people = max(1, int(np.searchsorted(n_owned, n_rows, side="right")))
        chosen = np.zeros(len(people), bool)
        chosen[order[:n_people]] = True
        return self._rows(np.flatnonzero(chosen[owners]))

    def describe(self) -> str:
        """Say what it is in one line."""
        parts = [f"{self.name}: {self.X.shape[0]:,} x {self.X.shape[1]:,}"]
        if self.ids is not None:
            parts.append(f"{len(self.people):,} people")
        if self.task == "classification":
            classes = np.unique(self.y)
            parts.append(f"{len(classes)} classes")
            if len(classes) == 2:
                parts.append(f"{np.mean(self.y == classes[1]):.1%} positive")
        if self.y_test is not None:
            parts.append(f"{len(self.y_test):,} rows to test")
        return ", ".join(parts) + (f" ({self.note})" if self.note else "")

    def images(self, X: Any = None) -> NDArray[np.float32]:
        """Return rows (those of X, or of the training rows) as channels x height x width."""
        if self.info.image_shape is None:
            raise ValueError(f"rows of {self.name!r} are no images")
        return np.asarray(self.X if X is None else X).reshape(-1, *self.info.image_shape)

    def _owned_by(self, people: NDArray[Any]) -> NDArray[np.bool_]:
        owners = np.arange(len(self.y)) if self.ids is None else self.ids
        return np.isin(owners, people)

    def _rows(self, rows: NDArray[np.int64]) -> "Dataset":
        ids = None if self.ids is None else self.ids[rows]
        return replace(self, X=self.X[rows], y=self.y[rows], ids=ids)
