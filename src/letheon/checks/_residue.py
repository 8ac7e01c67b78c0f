"""Checks of residue: nothing of a forgotten row survives, neither as bytes nor in an aggregate."""

import pickle
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import clone

from letheon.checks._aggregates import reveals
from letheon.checks._files import all_bytes, saved_bytes
from letheon.checks._people import CANARY, People, fit, make_people
from letheon.checks._walk import leaves


def check_canary_bytes_absent_from_saved_model(estimator: Any) -> None:
    """The id and the numbers of a forgotten person are in no file and no pickle."""
    people = make_people(estimator)
    model = fit(estimator, people)
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
    people = make_people(estimator)
    model = fit(estimator, people)
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
