"""Checks of residue and secrecy: no trace of a forgotten row, and the noise stays secret."""

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
    fit,
    fit_people,
    fit_with,
    fit_with_secret_noise,
    get_outputs,
    make_people,
    save_to_bytes,
)
from letheon.checks._walk import SECRET_SUFFIX, iter_leaves
from letheon.data import People

Texts = dict[str, str]
Floats = NDArray[np.float64]
_MOST_LINES = 100


def check_canary_bytes_absent_from_saved_model(estimator: Any) -> None:
    """Check that no saved file or pickle contains the id or the numbers of a forgotten person."""
    people, model = fit_people(estimator)
    model.forget([CANARY])
    canary = people.rows_of([CANARY])
    values = canary.X[0].tolist()
    if canary.y is not None and canary.y.dtype.kind == "f":
        values += canary.y.tolist()
    # The canary's numbers in every encoding: binary, hexadecimal and decimal text.
    needles = {"the id": CANARY.encode()}
    for value in values:
        needles[f"{value} as text"] = repr(value).encode()
        for kind in ("<d", ">d", "<f", ">f"):
            packed = struct.pack(kind, value)
            needles[f"{value} as {kind}"] = packed
            if kind in ("<d", ">d"):
                needles[f"{value} as {kind} in hex"] = packed.hex().encode()
    # Every serialised form of the model.
    forms = {"the saved file": save_to_bytes(model), "the pickled object": pickle.dumps(model)}
    for where, data in forms.items():
        for label, needle in needles.items():
            assert needle not in data, f"{label} of a forgotten person is still in {where}"


def check_aggregates_do_not_reveal_the_row(estimator: Any) -> None:
    """Check that no stored aggregate, such as a sum, reveals the forgotten row.

    Every stored vector of the right length is compared with sums, means and X'y of the remaining
    rows. Every square matrix is compared with their second moments and covariance, with and without
    ridge or intercept, inverted or factored. The difference must not be a multiple of the forgotten
    row.
    """
    people, model = fit_people(estimator)
    model.forget([CANARY])
    row = people.rows_of([CANARY]).X[0]
    rest = people.without([CANARY])
    declared = " ".join(model.residual_state_)
    for leaf in iter_leaves(pickle.loads(pickle.dumps(model))):
        if isinstance(leaf.value, np.ndarray) and leaf.value.dtype.kind == "f":
            kind = find_revealing_aggregate(leaf.value, row, rest)
            named = leaf.path.rpartition(".")[2].partition("[")[0] in declared
            assert kind is None or named, (
                f"{leaf.path} is a {kind} that still contains the forgotten row"
            )


def check_forgotten_values_leave_no_trace(estimator: Any) -> None:
    """Check that an exact model does not depend on the values of the forgotten row.

    Two models forget the same person with different rows; they must be equal in every part.
    """
    people = make_people(estimator)
    # The same people, but with another row and label of the canary.
    mine = people.ids == CANARY
    X, y = people.X.copy(), None if people.y is None else people.y.copy()
    X[mine] = X[mine][:, ::-1] * 0.625
    if y is not None:
        y[mine] = y[mine] * -3.5 if y.dtype.kind == "f" else next(iter(set(y) - set(y[mine])))
    # Without checkpoints, whose directory names are random.
    settings = estimator.get_params(deep=True)
    places = [name for name in settings if name.rpartition("__")[2] == "checkpoint_dir"]
    bare = clone(estimator).set_params(**dict.fromkeys(places))
    models = [fit(bare, data) for data in (people, People(X, y, people.ids))]
    for model in models:
        model.forget([CANARY])
    digests = {model.digest() for model in models}
    assert len(digests) == 1, "the digest depends on the values of the forgotten row"
    # The path of a difference is more useful than different files, so it is checked first.
    copies = [pickle.loads(pickle.dumps(model)) for model in models]
    for where, pair in (("the model", models), ("a pickled copy", copies)):
        first, second = ({leaf.path: leaf.value for leaf in iter_leaves(model)} for model in pair)
        for path in sorted(first.keys() | second.keys()):
            is_same = path in first and path in second and _is_same(first[path], second[path])
            assert is_same, f"{path} in {where} depends on the values of the forgotten row"
    files = {save_to_bytes(model) for model in models}
    assert len(files) == 1, "the saved file depends on the values of the forgotten row"


def _is_same(first: Any, second: Any) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, str | bytes):
        return bool(first == second)
    left, right = np.asarray(first), np.asarray(second)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.names:  # padding between the fields of a compiled tree is not data
        return all(_is_same(left[name], right[name]) for name in left.dtype.names)
    return np.array_equal(left, right, equal_nan=left.dtype.kind in "fc")


def find_revealing_aggregate(array: NDArray[Any], row: Floats, rest: People) -> str | None:
    """Return the kind of aggregate in an array that reveals the forgotten row, or None."""
    targets = (row, np.abs(row), row - rest.X.mean(axis=0))
    leftovers = _iter_leftovers(array, rest)
    return next((kind for kind, left in leftovers if _points_along(left, targets)), None)


def _iter_leftovers(array: NDArray[Any], rest: People) -> Iterator[tuple[str, Floats]]:
    """Yield each kind of aggregate that an array may contain, and what it would reveal.

    That is the difference between the array and the same aggregate of the remaining rows.
    """
    p, n_before = rest.X.shape[1], len(rest.X) + 1.0
    # vectors of length p, along the last axis or the first, with an intercept or without
    for side in [array, array.T] if array.ndim == 2 else [array]:
        width = side.shape[-1] if side.ndim else 0
        for first in range(width - p + 1 if width in (p, p + 1) else 0):
            lines = side.reshape(-1, width)[:_MOST_LINES, first : first + p]
            yield from _iter_line_leftovers(lines, rest)
    # second moments and covariances; a ridge on the diagonal hides no leading direction
    centred = rest.X - rest.X.mean(axis=0)
    for matrix in _iter_squares(array, p):
        for scale in (1.0, n_before, n_before - 1.0):
            yield "second moment", _leading_direction(matrix * scale - rest.X.T @ rest.X)
            yield "covariance", _leading_direction(matrix * scale - centred.T @ centred)
    if array.ndim == 2 and array.shape[0] == array.shape[1] == len(rest.X) + 1:
        yield "kernel matrix", array[-1]


def _iter_line_leftovers(lines: Floats, rest: People) -> Iterator[tuple[str, Floats]]:
    """Yield the differences of stored lines from sums, means, sums of squares and X'y of `rest`."""
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


def _iter_squares(array: NDArray[Any], p: int) -> Iterator[Floats]:
    """Yield the p x p matrices in an array, with their squares and inverses."""
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


def _leading_direction(matrix: Floats) -> Floats:
    direction: Floats = np.linalg.eigh((matrix + matrix.T) / 2)[1][:, -1] * 1e3
    return direction


def _points_along(leftover: Floats, targets: Sequence[Floats]) -> bool:
    """Return whether a difference is a multiple of one of the targets, up to 1e-7.

    A large row pulls even the parameters of a correct model in its direction. So only a difference
    that is a multiple of the row up to rounding counts as revealing.
    """
    if leftover.shape != targets[0].shape or not np.isfinite(leftover).all():
        return False
    length = float(np.linalg.norm(leftover))
    return length >= 1.0 and any(
        abs(leftover @ target) / (length * np.linalg.norm(target)) > 1 - 1e-7 for target in targets
    )


_NUMBER = re.compile(r"\d*\.?\d+(?:[eE][-+]?\d+)?")
# With fewer digits, a number in a text may match the noise by chance.
_DIGITS = 7


def check_noise_stays_secret(estimator: Any) -> None:
    """Check that noise is new in every fit and secret, and that a seeded model is not certified.

    Secret values must not occur in receipts, guarantees, parameters, texts of the model, warnings,
    log records or printed output of `fit` and `forget`.
    """
    people, seeded = fit_people(estimator)
    _require_fresh_noise(estimator, people)
    for claim in (seeded.guarantee_, seeded.forget(people.unique_ids[:1]).guarantee):
        assert claim.kind != "certified", "with noise_seed the noise can be reproduced"
    secrets: dict[str, Floats] = {}
    texts: Texts = {}
    with _capture_output(estimator) as captured:
        model = fit_with_secret_noise(estimator, people)
        _record_secrets(model, secrets, texts)
        for person in people.unique_ids[:2]:
            receipt = model.forget([person])
            _record_secrets(model, secrets, texts)
            # The duration is not secret, and differs in every run.
            text = f"{receipt} {receipt.to_dict() | {'seconds': 0.0}} {receipt!r}"
            text = text.replace(repr(receipt.seconds), "")
            texts["a receipt"] = f"{texts.get('a receipt', '')} {text}"
    for label, text in (texts | captured).items():
        for path, secret in secrets.items():
            assert not _contains_secret(text, secret), f"{label} shows {path}"


def _require_fresh_noise(estimator: Any, people: People) -> None:
    model, other = (fit_with_secret_noise(estimator, people, random_state=0) for _ in range(2))
    if model.digest() != other.digest():
        return
    assert model.guarantee_.kind != "certified", (
        "two fits without noise_seed give the same model, which claims to be certified"
    )
    seeded = (fit_with(estimator, people, random_state=0, noise_seed=seed) for seed in (0, 1))
    first, second = (get_outputs(model, people.X) for model in seeded)
    assert np.array_equal(first, second), "without noise_seed the noise is the same in every fit"


def _record_secrets(model: Any, secrets: dict[str, Floats], texts: Texts) -> None:
    """Add the secret values of a model to `secrets`, and the texts that show it to `texts`."""
    number = len(secrets)
    for leaf in iter_leaves(model):
        if leaf.path.endswith(SECRET_SUFFIX):
            secrets[f"{leaf.path.removesuffix(SECRET_SUFFIX)} (state {number})"] = leaf.value.copy()
    # The repr of an estimator omits parameters with default values.
    shown_texts = {
        "the text of the model": f"{model!r} {model}",
        "get_params()": repr(model.get_params(deep=True)),
        "the guarantee": repr(model.guarantee_),
    }
    for label, text in shown_texts.items():
        texts[label] = f"{texts.get(label, '')} {text}"


@contextmanager
def _capture_output(estimator: Any) -> Iterator[Texts]:
    """Capture log records of every level, warnings and printed output; yield them as texts."""
    captured, printed = Texts(), io.StringIO()
    with (
        _logging_of({"letheon", type(estimator).__module__.partition(".")[0]}) as records,
        warnings.catch_warnings(record=True) as warned,
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        warnings.simplefilter("always")
        yield captured
    captured["a log record"] = " ".join(records)
    captured["a warning"] = " ".join(str(warning.message) for warning in warned)
    captured["the output"] = printed.getvalue()


@contextmanager
def _logging_of(packages: set[str]) -> Iterator[list[str]]:
    """Collect the log records of these packages at every level, even if logging is disabled."""
    make, texts = logging.getLogRecordFactory(), list[str]()
    known = [logging.getLogger(name) for name in (*packages, *logging.root.manager.loggerDict)]
    loggers = [each for each in known if each.name.partition(".")[0] in packages]
    levels, disabled = [each.level for each in loggers], logging.root.manager.disable

    def capture_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        texts.append(f"{record.getMessage()} {record.args!r}")
        return record

    logging.setLogRecordFactory(capture_record)
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


def _contains_secret(text: str, secret: Floats) -> bool:
    """Return whether a text contains a number of the secret, or the norm of the secret.

    Numbers are found in decimal and hexadecimal notation.
    """
    values = np.append(secret.ravel(), np.linalg.norm(secret))
    values = np.abs(values[values != np.round(values)])
    # Significant digits are counted without the exponent, the point and leading zeros.
    numbers = np.array(
        [
            float(number)
            for number in _NUMBER.findall(text)
            if len(re.split("[eE]", number)[0].replace(".", "").lstrip("0")) >= _DIGITS
        ]
    )
    near = np.isclose(numbers[:, None], values, rtol=0.5 * 10.0 ** (1 - _DIGITS), atol=0.0)
    spelled = any(value.tobytes().hex() in text.lower() for value in secret.ravel())
    return bool(near.any()) or spelled
