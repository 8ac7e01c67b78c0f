"""A small model of DaRE as published, to show that our tests would notice its bias.

The rule: a node samples `k` valid thresholds per attribute; after a deletion it keeps those that
are still valid and redraws the rest. A threshold is the middle between two neighbouring values
whose rows differ in label, so a deletion can make new ones, which never get a fair chance.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Threshold = tuple[float, float]  # the two neighbouring values


def valid_thresholds(x: NDArray[Any], y: NDArray[Any]) -> list[Threshold]:
    """Return neighbouring values whose rows are not all of one class."""
    labels: dict[float, set[int]] = {}
    for value, label in zip(x.tolist(), y.tolist(), strict=True):
        labels.setdefault(value, set()).add(label)
    neighbours = pairwise(sorted(labels))
    return [(low, high) for low, high in neighbours if len(labels[low] | labels[high]) > 1]


def impurity(y: NDArray[Any], left: NDArray[np.bool_]) -> float:
    sides = (y[left], y[~left])
    return float(sum(len(side) * side.mean() * (1 - side.mean()) for side in sides))


class PublishedNode:
    """One greedy node: keeps what is valid, redraws the rest."""

    def __init__(self, X: NDArray[Any], y: NDArray[Any], k: int, rng: np.random.Generator) -> None:
        self.X, self.y, self.k, self.rng = X, y, k, rng
        self.held: list[list[Threshold]] = [[] for _ in range(X.shape[1])]
        self._top_up()

    def _top_up(self) -> None:
        for a, values in enumerate(self.held):
            valid = valid_thresholds(self.X[:, a], self.y)
            kept = [threshold for threshold in values if threshold in valid]
            free = [threshold for threshold in valid if threshold not in kept]
            places = self.rng.permutation(len(free))[: self.k - len(kept)]
            self.held[a] = kept + [free[place] for place in places]

    def forget(self, row: int) -> None:
        self.X, self.y = np.delete(self.X, row, axis=0), np.delete(self.y, row)
        self._top_up()

    def best(self) -> tuple[int, float]:
        """Return the attribute and the lower value of the threshold that splits best."""
        scored = [
            (impurity(self.y, self.X[:, a] <= low), a, low)
            for a, values in enumerate(self.held)
            for low, _ in values
        ]
        return min(scored)[1:]


def stale_range(x: NDArray[Any], rng: np.random.Generator) -> float:
    """A random node that keeps its threshold although the greatest value left."""
    return float(rng.uniform(x.min(), x.max()))


def unreplaced_attribute(
    merits: list[float], constant: int, n_chosen: int, rng: np.random.Generator
) -> int:
    """A node whose attribute became constant takes every replacement for constant too.

    `merits` says how good a split by each attribute is; the best one left is returned.
    """
    chosen: list[int] = rng.permutation(len(merits))[:n_chosen].tolist()
    return max((a for a in chosen if a != constant), key=lambda a: merits[a])
