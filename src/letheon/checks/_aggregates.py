"""What is left of a stored aggregate once the remaining rows are taken out of it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.checks._people import People

Floats = NDArray[np.float64]
_MOST_LINES = 100


def reveals(array: NDArray[Any], row: Floats, rest: People) -> str | None:
    """Return what kind of old aggregate an array is, if it gives the forgotten row away."""
    targets = (row, np.abs(row), row - rest.X.mean(axis=0))
    for kind, leftover in _leftovers(array, rest):
        if any(_points_along(leftover, target) for target in targets):
            return kind
    return None


def _leftovers(array: NDArray[Any], rest: People) -> Iterator[tuple[str, Floats]]:
    p = rest.X.shape[1]
    for lines in _lines(array, p):
        yield from _of_lines(lines[:_MOST_LINES], rest)
    for matrix in _squares(array, p):
        yield from _of_moments(matrix, rest.X)
    if array.ndim == 2 and array.shape[0] == array.shape[1] == len(rest.X) + 1:
        yield "kernel matrix", array[-1]


def _lines(array: NDArray[Any], p: int) -> Iterator[Floats]:
    """The vectors of length p in an array: along the last axis or the first, with intercept."""
    sides = [array, array.T] if array.ndim == 2 else [array]
    for side in sides:
        width = side.shape[-1] if side.ndim else 0
        if width == p:
            yield side.reshape(-1, p)
        elif width == p + 1:
            yield from (side.reshape(-1, width)[:, :p], side.reshape(-1, width)[:, 1:])


def _of_lines(lines: Floats, rest: People) -> Iterator[tuple[str, Floats]]:
    """Sums, means, sums of squares, and X'y."""
    total, squares, n_before = rest.X.sum(axis=0), (rest.X**2).sum(axis=0), len(rest.X) + 1
    products = [rest.X.T @ target for target in _targets(rest)]
    for line in lines:
        yield "sum", line - total
        yield "mean", line * n_before - total
        yield "squared sum", np.sign(line) * np.sqrt(np.abs(line - squares))
        yield "copy", line
        for product in products:
            yield "product of X and y", line - product


def _targets(rest: People) -> list[Floats]:
    """Numeric y, or one indicator per class."""
    if rest.y is None:
        return []
    if rest.y.dtype.kind == "f":
        return [rest.y]
    return [(rest.y == label).astype(float) for label in np.unique(rest.y)]


def _squares(array: NDArray[Any], p: int) -> Iterator[Floats]:
    """The p x p matrix in an array: itself, a block of one with intercept, inverted, squared."""
    blocks: list[Floats] = []
    if array.ndim >= 2 and array.shape[-2:] == (p, p):
        blocks = [array.reshape(-1, p, p)[0].astype(float)]
    if array.shape == (p + 1, p + 1):
        blocks = [array[:p, :p].astype(float), array[1:, 1:].astype(float)]
    for block in blocks:
        if np.isfinite(block).all():
            yield from (block, block @ block.T, block.T @ block)
            if np.linalg.cond(block) < 1e12:
                yield np.asarray(np.linalg.inv(block), np.float64)


def _of_moments(matrix: Floats, X: Floats) -> Iterator[tuple[str, Floats]]:
    """Leading directions of second moments and covariances; a ridge on the diagonal hides none."""
    n_before = len(X) + 1.0
    centred = X - X.mean(axis=0)
    for scale in (1.0, n_before, n_before - 1.0):
        yield "second moment", _leading(matrix * scale - X.T @ X)
        yield "covariance", _leading(matrix * scale - centred.T @ centred)


def _leading(matrix: Floats) -> Floats:
    direction: Floats = np.linalg.eigh((matrix + matrix.T) / 2)[1][:, -1] * 1e3
    return direction


def _points_along(leftover: Floats, target: Floats) -> bool:
    """Whether a difference is a multiple of the row, to one in ten million.

    A large row bends honest parameters its way too, so only the aggregate itself, whose
    leftover is the row up to rounding, counts as revealing.
    """
    if leftover.shape != target.shape or not np.isfinite(leftover).all():
        return False
    length = np.linalg.norm(leftover)
    if length < 1.0:
        return False
    cosine = abs(leftover @ target) / (length * np.linalg.norm(target))
    return bool(cosine > 1 - 1e-7)
