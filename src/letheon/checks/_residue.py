"""Checks of residue and secrecy: no trace of a forgotten row, and nobody gets to see the noise."""

import io
import logging
import pickle
import re
import struct
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from letheon.checks._people import (
    CANARY,
    answers,
    fit,
    fit_in_secret,
    fit_people,
    fit_with,
    make_people,
    saved_bytes,
)
from letheon.checks._walk import SEAL, leaves
from letheon.data import People

Texts = dict[str, str]
Floats = NDArray[np.float64]
_MOST_LINES = 100


def check_canary_bytes_absent_from_saved_model(estimator: Any) -> None:
    """The id and the numbers of a forgotten person are in no file and no pickle."""
    people, model = fit_people(estimator)
    model.forget([CANARY])
    canary = people.of([CANARY])
    values = canary.X[0].tolist()
    if canary.y is not None and canary.y.dtype.kind == "f":
        values += canary.y.tolist()
    # The canary's numbers in every spelling: binary, hexadecimal and decimal text.
    needles = {"the id": CANARY.encode()}
    for value in values:
        needles[f"{value} as text"] = repr(value).encode()
        for kind in ("<d", ">d", "<f", ">f"):
            packed = struct.pack(kind, value)
            needles[f"{value} as {kind}"] = packed
            if kind in ("<d", ">d"):
                needles[f"{value} as {kind} in hex"] = packed.hex().encode()
    # Every form in which the model could leave the process.
    forms = {"the saved file": saved_bytes(model), "the pickled object": pickle.dumps(model)}
    for where, data in forms.items():
        for what, needle in needles.items():
            assert needle not in data, f"{what} of a forgotten person is still in {where}"


def check_aggregates_do_not_reveal_the_row(estimator: Any) -> None:
    """Subtracting the remaining rows from what is stored never leaves the forgotten row.

    Every stored vector of the right length is compared with sums, means and X'y of the remaining
    rows, every square matrix with their second moments and covariance, with and without ridge or
    intercept, inverted or factored; the difference must not point along the row.
    """
    people, model = fit_people(estimator)
    model.forget([CANARY])
    row = people.of([CANARY]).X[0]
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
    # The same people, but the canary's row and label say something else.
    mine = people.ids == CANARY
    X, y = people.X.copy(), None if people.y is None else people.y.copy()
    X[mine] = X[mine][:, ::-1] * 0.625
    if y is not None:
        y[mine] = y[mine] * -3.5 if y.dtype.kind == "f" else next(iter(set(y) - set(y[mine])))
    # Without checkpoints, whose place is drawn anew.
    settings = estimator.get_params(deep=True)
    places = [name for name in settings if name.rpartition("__")[2] == "checkpoint_dir"]
    bare = clone(estimator).set_params(**dict.fromkeys(places))
    models = [fit(bare, data) for data in (people, People(X, y, people.ids))]
    for model in models:
        model.forget([CANARY])
    digests = {model.digest() for model in models}
    assert len(digests) == 1, "the digest depends on what the forgotten row said"
    # Where the difference lies says more than that the files differ, so it comes first.
    copies = [pickle.loads(pickle.dumps(model)) for model in models]
    for where, pair in (("the model", models), ("a pickled copy", copies)):
        one, two = ({leaf.path: leaf.value for leaf in leaves(model)} for model in pair)
        for path in sorted(one.keys() | two.keys()):
            is_same = path in one and path in two and _same(one[path], two[path])
            assert is_same, f"{path} in {where} depends on what the forgotten row said"
    files = {saved_bytes(model) for model in models}
    assert len(files) == 1, "the saved file depends on what the forgotten row said"


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
    leftovers = _leftovers(array, rest)
    return next((kind for kind, left in leftovers if _points_along(left, targets)), None)


def _leftovers(array: NDArray[Any], rest: People) -> Iterator[tuple[str, Floats]]:
    """Yield what is left of an array when the remaining rows are taken out of it, and its kind."""
    p, n_before = rest.X.shape[1], len(rest.X) + 1.0
    # vectors of length p, along the last axis or the first, with an intercept or without
    for side in [array, array.T] if array.ndim == 2 else [array]:
        width = side.shape[-1] if side.ndim else 0
        for first in range(width - p + 1 if width in (p, p + 1) else 0):
            lines = side.reshape(-1, width)[:_MOST_LINES, first : first + p]
            yield from _of_lines(lines, rest)
    # second moments and covariances; a ridge on the diagonal hides no leading direction
    centred = rest.X - rest.X.mean(axis=0)
    for matrix in _squares(array, p):
        for scale in (1.0, n_before, n_before - 1.0):
            yield "second moment", _leading(matrix * scale - rest.X.T @ rest.X)
            yield "covariance", _leading(matrix * scale - centred.T @ centred)
    if array.ndim == 2 and array.shape[0] == array.shape[1] == len(rest.X) + 1:
        yield "kernel matrix", array[-1]


def _of_lines(lines: Floats, rest: People) -> Iterator[tuple[str, Floats]]:
    """Sums, means, sums of squares, and X'y."""
    total, squares, n_before = rest.X.sum(axis=0), (rest.X**2).sum(axis=0), len(rest.X) + 1
    # Numeric y, or one indicator per class.
    targets = [] if rest.y is None else [rest.y]
    if rest.y is not None and rest.y.dtype.kind != "f":
        targets = [(rest.y == label).astype(float) for label in np.unique(rest.y)]
    products = [rest.X.T @ target for target in targets]
    for line in lines:
        yield "sum", line - total
        yield "mean", line * n_before - total
        yield "squared sum", np.sign(line) * np.sqrt(np.abs(line - squares))
        yield "copy", line
        for product in products:
            yield "product of X and y", line - product


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


def _leading(matrix: Floats) -> Floats:
    direction: Floats = np.linalg.eigh((matrix + matrix.T) / 2)[1][:, -1] * 1e3
    return direction


def _points_along(leftover: Floats, targets: Sequence[Floats]) -> bool:
    """Whether a difference is a multiple of one of the targets, to one in ten million.

    A large row bends honest parameters its way too, so only the aggregate itself, whose
    leftover is the row up to rounding, counts as revealing.
    """
    if leftover.shape != targets[0].shape or not np.isfinite(leftover).all():
        return False
    length = float(np.linalg.norm(leftover))
    return length >= 1.0 and any(
        abs(leftover @ target) / (length * np.linalg.norm(target)) > 1 - 1e-7 for target in targets
    )


_NUMBER = re.compile(r"\d*\.?\d+(?:[eE][-+]?\d+)?")
# With fewer digits than these a number of a text may be that of the noise by chance.
_DIGITS = 7


def check_noise_stays_secret(estimator: Any) -> None:
    """Noise is fresh in every fit, is in nothing that leaves the model, and a seed voids claims.

    What is under a seal must be in no receipt, no guarantee, no parameter, no text of the model,
    no warning, no log record and nothing printed while it fits and forgets.
    """
    people, seeded = fit_people(estimator)
    _require_fresh_noise(estimator, people)
    for claim in (seeded.guarantee_, seeded.forget(people.names[:1]).guarantee):
        assert claim.kind != "certified", "with noise_seed everybody can repeat the noise"
    secrets: dict[str, Floats] = {}
    texts: Texts = {}
    with _overheard(estimator) as heard:
        model = fit_in_secret(estimator, people)
        _note(model, secrets, texts)
        for person in people.names[:2]:
            receipt = model.forget([person])
            _note(model, secrets, texts)
            # The time it took is no secret, and differs in every run.
            told = f"{receipt} {receipt.to_dict() | {'seconds': 0.0}} {receipt!r}"
            told = told.replace(repr(receipt.seconds), "")
            texts["a receipt"] = f"{texts.get('a receipt', '')} {told}"
    for what, text in (texts | heard).items():
        for path, secret in secrets.items():
            assert not _shows(text, secret), f"{what} shows {path}"


def _require_fresh_noise(estimator: Any, people: People) -> None:
    one, two = (fit_in_secret(estimator, people, random_state=0) for _ in range(2))
    if one.digest() != two.digest():
        return
    assert one.guarantee_.kind != "certified", (
        "two fits without noise_seed are the same model, which claims to be certified"
    )
    seeded = (fit_with(estimator, people, random_state=0, noise_seed=seed) for seed in (0, 1))
    first, second = (answers(model, people.X) for model in seeded)
    assert np.array_equal(first, second), "without noise_seed the noise is the same in every fit"


def _note(model: Any, secrets: dict[str, Floats], texts: Texts) -> None:
    """Note what is secret in the model as it is now, and what it tells of itself."""
    number = len(secrets)
    for leaf in leaves(model):
        if leaf.path.endswith(SEAL):
            secrets[f"{leaf.path.removesuffix(SEAL)} (state {number})"] = leaf.value.copy()
    # The printout of an estimator hides parameters that have their default value.
    told = {
        "the text of the model": f"{model!r} {model}",
        "get_params()": repr(model.get_params(deep=True)),
        "the guarantee": repr(model.guarantee_),
    }
    for what, text in told.items():
        texts[what] = f"{texts.get(what, '')} {text}"


@contextmanager
def _overheard(estimator: Any) -> Iterator[Texts]:
    """Collect log records of every level, warnings, and what is printed."""
    heard, printed = Texts(), io.StringIO()
    with (
        _logging_of({"letheon", type(estimator).__module__.partition(".")[0]}) as records,
        warnings.catch_warnings(record=True) as warned,
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        warnings.simplefilter("always")
        yield heard
    heard["a log record"] = " ".join(records)
    heard["a warning"] = " ".join(str(warning.message) for warning in warned)
    heard["the output"] = printed.getvalue()


@contextmanager
def _logging_of(packages: set[str]) -> Iterator[list[str]]:
    """Collect all records that loggers of these packages make, whether they are handled or not."""
    make, texts = logging.getLogRecordFactory(), list[str]()
    known = [logging.getLogger(name) for name in (*packages, *logging.root.manager.loggerDict)]
    loggers = [each for each in known if each.name.partition(".")[0] in packages]
    levels, disabled = [each.level for each in loggers], logging.root.manager.disable

    def listen(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        texts.append(f"{record.getMessage()} {record.args!r}")
        return record

    logging.setLogRecordFactory(listen)
    logging.disable(logging.NOTSET)
    for each in loggers:
        each.setLevel(logging.DEBUG)
    try:
        yield texts
    finally:
        logging.setLogRecordFactory(make)
        logging.disable(disabled)
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


def _shows(text: str, secret: Floats) -> bool:
    """Whether a text has a number of the secret, or its norm, to seven digits or in hexadecimal."""
    values = np.append(secret.ravel(), np.linalg.norm(secret))
    values = np.abs(values[values != np.round(values)])
    # Significant digits: without the exponent, the point and zeros in front.
    said = np.array(
        [
            float(number)
            for number in _NUMBER.findall(text)
            if len(re.split("[eE]", number)[0].replace(".", "").lstrip("0")) >= _DIGITS
        ]
    )
    near = np.isclose(said[:, None], values, rtol=0.5 * 10.0 ** (1 - _DIGITS), atol=0.0)
    spelled = any(value.tobytes().hex() in text.lower() for value in secret.ravel())
    return bool(near.any()) or spelled
