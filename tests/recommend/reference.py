"""Recommenders by plain loops over sets, for comparison."""

from fractions import Fraction
from math import sqrt
from typing import Any

import numpy as np

History = frozenset[int]


def read_histories(X: Any) -> list[History]:
    """Return the items of each row as a set."""
    return [frozenset(np.flatnonzero(row).tolist()) for row in np.asarray(X)]


def count_pair(histories: list[History], *items: int) -> int:
    """Return the number of histories that contain all these items."""
    return sum(history.issuperset(items) for history in histories)


def similarity(histories: list[History], name: str, first: int, second: int) -> float:
    """Return the similarity of two items."""
    both = count_pair(histories, first, second)
    own, other = count_pair(histories, first), count_pair(histories, second)
    if name == "cosine":
        return both / sqrt(own * other)
    if name == "jaccard":
        return float(Fraction(both, own + other - both))
    return float(Fraction(both * len(histories), own * other))


def list_neighbors(
    histories: list[History], name: str, item: int, n_items: int, width: int
) -> dict[int, float]:
    """Return the most similar items of an item; ties in the order of the numbers."""
    scores = {
        other: similarity(histories, name, item, other)
        for other in range(n_items)
        if other != item and count_pair(histories, item, other)
    }
    best = sorted(scores, key=lambda other: (-scores[other], other))[:width]
    return {other: scores[other] for other in best}


def recommend(
    histories: list[History], name: str, query: History, n_items: int, width: int, k: int
) -> list[tuple[int, float]]:
    """Return the recommendations of `ItemKNN` for a history that are not in it."""
    totals: dict[int, float] = {}
    for item in sorted(query):
        for other, score in list_neighbors(histories, name, item, n_items, width).items():
            totals[other] = totals.get(other, 0.0) + score
    unseen = {item: score for item, score in totals.items() if item not in query}
    best = sorted(unseen, key=lambda item: (-unseen[item], item))[:k]
    return [(item, unseen[item]) for item in best]


def solve_ridge(histories: list[History], n_items: int, l2: float) -> np.ndarray[Any, Any]:
    """Return the weights of EASE: the ridge regression of each item on all others."""
    X = np.array([[float(item in history) for item in range(n_items)] for history in histories])
    weights = np.zeros((n_items, n_items))
    for target in range(n_items):
        others = [item for item in range(n_items) if item != target]
        A, b = X[:, others], X[:, target]
        solution = np.linalg.solve(A.T @ A + l2 * np.eye(len(others)), A.T @ b)
        weights[others, target] = solution
    return weights
