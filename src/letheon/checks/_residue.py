"""Checks of residue: nothing of a forgotten row survives, neither as bytes nor in an aggregate."""

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.checks._files import all_bytes
from letheon.checks._people import CANARY, People, fit, make_people


def check_canary_bytes_absent_from_saved_model(estimator: Any) -> None:
    """The id and the numbers of a forgotten person are in no file and no pickle."""
    people = make_people(estimator)
    model = fit(estimator, people)
    model.forget([CANARY])
    row = people.only([CANARY]).X[0]
    needles = {"id": CANARY.encode()}
    for kind in ("<f8", "<f4", ">f8"):
        needles |= {f"{value} as {kind}": value.astype(kind).tobytes() for value in row}
    for where, data in all_bytes(model):
        for what, needle in needles.items():
            assert needle not in data, f"{what} of a forgotten person is still in {where}"


def check_aggregates_do_not_reveal_the_row(estimator: Any) -> None:
    """Subtracting the remaining rows from what is stored never leaves the forgotten row.

    Every stored vector of the right length is compared with sums and means of the remaining rows,
    every square matrix with their second moments; the difference must not point along the row.
    """
    people = make_people(estimator)
    model = fit(estimator, people)
    model.forget([CANARY])
    row = people.only([CANARY]).X[0]
    rest = people.without([CANARY])
    declared = " ".join(model.residual_state_)
    for path, array in _float_arrays(pickle.loads(pickle.dumps(model)), type(model).__name__):
        for kind, leftover in _leftovers(array, rest, len(people.ids)):
            name = path.rpartition(".")[2]
            revealed = _points_along(leftover, row)
            assert not revealed or name in declared, (
                f"{path} is a {kind} that still contains the forgotten row"
            )


def check_digest_depends_on_state(estimator: Any) -> None:
    """A change of any stored number changes the digest."""
    model = fit(estimator, make_people(estimator))
    copy = pickle.loads(pickle.dumps(model))
    digest = model.digest()
    assert copy.digest() == digest, "a pickled copy has another digest"
    for path, array in _float_arrays(copy, type(model).__name__):
        if array.flags.writeable and array.size:
            old = array.flat[0]
            array.flat[0] = old + 1.0 if np.isfinite(old) else 0.0
            assert copy.digest() != digest, f"changing {path} does not change the digest"
            array.flat[0] = old
    other = fit(estimator, make_people(estimator, seed=1))
    assert other.digest() != digest, "models of different people have the same digest"


def _leftovers(
    array: NDArray[Any], rest: People, n_before: int
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield what is left of a stored aggregate once the remaining rows are taken out of it."""
    X, n, p = rest.X, len(rest.X), rest.X.shape[1]
    if array.shape and array.shape[-1] == p:
        for line in array.reshape(-1, p)[:100]:
            yield "sum", line - X.sum(axis=0)
            yield "mean", line * n_before - X.sum(axis=0)
            yield "squared sum", np.sign(line) * np.sqrt(np.abs(line - (X**2).sum(axis=0)))
            yield "copy", line
    if array.shape[-2:] == (p, p):
        for scale in (1.0, n_before, n_before - 1.0):
            moment = array.reshape(-1, p, p)[0] * scale - X.T @ X
            yield "second moment", np.linalg.eigh((moment + moment.T) / 2)[1][:, -1] * 1e3
    if array.ndim == 2 and array.shape[0] == array.shape[1] == n + 1:
        yield "kernel matrix", array[-1]


def _points_along(leftover: NDArray[np.float64], row: NDArray[np.float64]) -> bool:
    """Whether a difference is a multiple of the row, to one in ten million.

    A large row bends honest parameters its way too, so only the aggregate itself, whose
    leftover is the row up to rounding, counts as revealing.
    """
    if leftover.shape != row.shape or not np.isfinite(leftover).all():
        return False
    length = np.linalg.norm(leftover)
    if length < 1.0:
        return False
    for target in (row, np.abs(row)):
        cosine = abs(leftover @ target) / (length * np.linalg.norm(target))
        if cosine > 1 - 1e-7:
            return True
    return False


def _float_arrays(root: Any, name: str) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield every floating array reachable through attributes and containers, with its path."""
    seen: set[int] = set()
    todo: list[tuple[str, Any]] = [(name, root)]
    while todo:
        path, value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, np.ndarray):
            if value.dtype.kind == "f":
                yield path, value
        else:
            todo += [(f"{path}.{key}", part) for key, part in _parts(value)]


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(str(key), part) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [(str(position), part) for position, part in enumerate(value)]
    if isinstance(value, type) or (callable(value) and not hasattr(value, "get_params")):
        return []
    return list(vars(value).items()) if hasattr(value, "__dict__") else []
