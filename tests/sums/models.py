"""Sequences of requests on models made of sums, and data that breaks careless ones."""

from typing import Any

import numpy as np

N_COLUMNS = 4


def draw_rows(rng: Any, n_rows: int) -> Any:
    """Return rows with a large mean, a constant, an outlier and a tiny scale."""
    X = rng.normal(size=(n_rows, N_COLUMNS))
    X[:, 0] += 1.7e9
    X[:, 1] *= 1e-200
    X[:, 2] = 5.0
    if rng.random() < 0.3:
        X[rng.integers(n_rows), 3] = 1e300
    if rng.random() < 0.5:
        X[:, 2] = np.where(np.arange(n_rows) == 0, 6.0, 5.0)
    return X


def draw_labels(rng: Any, n_rows: int) -> Any:
    """Return labels of three classes, at least three rows each at the beginning."""
    labels = np.array(list("abc"))[rng.integers(0, 3, n_rows)]
    labels[:9] = list("aaabbbccc")
    return labels


class Held:
    """The rows that a model should have, in the order in which they arrived."""

    def __init__(self, X: Any, y: Any, weights: Any) -> None:
        self.X, self.y, self.weights, self.ids = X, y, weights, list(range(len(X)))
        self.next_id = len(X)

    def drop(self, ids: list[int]) -> None:
        """Remove rows by id."""
        kept = [k for k, name in enumerate(self.ids) if name not in set(ids)]
        self.ids = [self.ids[k] for k in kept]
        self.X, self.y = self.X[kept], self.y[kept]
        self.weights = None if self.weights is None else self.weights[kept]

    def append(self, X: Any, y: Any, weights: Any) -> list[int]:
        """Add rows; return their ids."""
        ids = list(range(self.next_id, self.next_id + len(X)))
        self.next_id += len(X)
        self.ids += ids
        self.X, self.y = np.concatenate([self.X, X]), np.concatenate([self.y, y])
        self.weights = None if weights is None else np.concatenate([self.weights, weights])
        return ids

    def keywords(self) -> dict[str, Any]:
        """Return arguments of fit besides X and y."""
        weights = {} if self.weights is None else {"sample_weight": self.weights}
        return {"ids": self.ids, **weights}
