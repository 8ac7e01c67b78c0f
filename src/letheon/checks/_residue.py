"""Checks of residue: nothing of a forgotten row survives, neither as bytes nor in an aggregate."""

import pickle
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from letheon.checks._people import (
    CANARY,
    People,
    all_bytes,
    fit,
    fit_people,
    make_people,
    saved_bytes,
)
from letheon.checks._walk import leaves

Floats = NDArray[np.float64]
_MOST_LINES = 100


def check_canary_bytes_absent_from_saved_model(estimator: Any) -> None:
    """The id and the numbers of a forgotten person are in no file and no pickle."""
    people, model = fit_people(estimator)
    model.forget([CANARY])
    needles = {"the id": CANARY.encode(), **_needles(people.only([CANARY]))}
    for where, data in all_bytes(model):
        for what, needle in needles.items():
            assert needle not in data, f"{what} of a forgotten person is still in {where}"


def _needles(canary: People) -> dict[str, bytes]:
    """The canary's numbers in every spelling: binary, hexadecimal and decimal text."""
    values = canary.X[0].tolist()
    if canary.y is not None and canary.y.dtype.kind == "f":
        values += canary.y.tolist()
    needles = {f"{value} as text": repr(value).encode() for value in values}
    for kind in ("<d", ">d", "<f", ">f"):
        needles |= {f"{value} as {kind}": struct.pack(kind, value) for value in values}
    for kind in ("<d", ">d"):
        needles |= {f"{v} as {kind} in hex": struct.pack(kind, v).hex().encode() for v in values}
    return needles


def check_aggregates_do_not_reveal_the_row(estimator: Any) -> None:
    """Subtracting the remaining rows from what is stored never leaves the forgotten row.

    Every stored vector of the right length is compared with sums, means and X'y of the remaining
    rows, every square matrix with their second moments and covariance, with and without ridge or
    intercept, inverted or factored; the difference must not point along the row.
    """
    people, model = fit_people(estimator)
    model.forget([CANARY])
    row = people.only([CANARY]).X[0]
    rest = people.without([CANARY])
    declared = " ".join(model.residual_state_)
    for leaf in leaves(pickle.loads(pickle.dumps(model))):
        if isinstance(leaf.value, np.ndarray) and leaf.value.dtype.kind == "f":
            kind = reveals(leaf.value, row, rest)
            named = leaf.path.rpartition(".")[2].partition("[")[0] in declared
            assert kind is None or named, (
                f"{leaf.path} is a {kind} that still contains the forgotten row"
            )


def check_forgotten_values_leave_no_trace(estimator: Any) -> None:
    """Two exact models that forgot different rows of the same person are the same in every part."""
    people = make_people(estimator)
    models = [_forgetful(estimator, data) for data in (people, _other_values(people))]
    digests = {model.digest() for model in models}
    assert len(digests) == 1, "the digest depends on what the forgotten row said"
    # Where the difference lies says more than that the files differ, so it comes first.
    for where, (one, two) in _forms(models):
        for path in _differences(one, two):
            raise AssertionError(f"{path} in {where} depends on what the forgotten row said")
    files = {saved_bytes(model) for model in models}
    assert len(files) == 1, "the saved file depends on what the forgotten row said"


def _forgetful(estimator: Any, people: People) -> Any:
    """Return a model that forgot the canary; without checkpoints, whose place is drawn anew."""
    settings = estimator.get_params(deep=True)
    places = [name for name in settings if name.rpartition("__")[2] == "checkpoint_dir"]
    model = fit(clone(estimator).set_params(**dict.fromkeys(places)), people)
    model.forget([CANARY])
    return model


def _other_values(people: People) -> People:
    """Return the same people, but the canary's row and label say something else."""
    mine = people.ids == CANARY
    X, y = people.X.copy(), None if people.y is None else people.y.copy()
    X[mine] = X[mine][:, ::-1] * 0.625
    if y is not None:
        y[mine] = y[mine] * -3.5 if y.dtype.kind == "f" else next(iter(set(y) - set(y[mine])))
    return People(X, y, people.ids)


def _forms(models: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    yield "the model", models
    yield "a pickled copy", [pickle.loads(pickle.dumps(model)) for model in models]


def _differences(one: Any, two: Any) -> list[str]:
    """Paths of leaves that only one of the models has, or that differ."""
    mine, yours = ({leaf.path: leaf.value for leaf in leaves(model)} for model in (one, two))
    lonely = mine.keys() ^ yours.keys()
    differ = {path for path in mine.keys() & yours.keys() if not _same(mine[path], yours[path])}
    return sorted(lonely | differ)


def _same(one: Any, two: Any) -> bool:
    if type(one) is not type(two):
        return False
    if isinstance(one, str | bytes):
        return bool(one == two)
    mine, yours = np.asarray(one), np.asarray(two)
    if mine.dtype != yours.dtype or mine.shape != yours.shape:
        return False
    if mine.dtype.names:  # padding between the fields of a compiled tree is no data
        return all(_same(mine[name], yours[name]) for name in mine.dtype.names)
    return np.array_equal(mine, yours, equal_nan=mine.dtype.kind in "fc")


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
