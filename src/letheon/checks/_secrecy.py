"""The check that noise is fresh where nobody asked to repeat it, and that nobody gets to see it."""

import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.checks._people import (
    People,
    answers,
    fit,
    fit_in_secret,
    fit_with,
    make_people,
)
from letheon.checks._walk import SEAL, leaves

Floats = NDArray[np.float64]
Texts = dict[str, str]

_NUMBER = re.compile(r"\d*\.?\d+(?:[eE][-+]?\d+)?")
# With fewer digits than these a number of a text may be that of the noise by chance.
_DIGITS = 7


def check_noise_stays_secret(estimator: Any) -> None:
    """Noise is fresh in every fit, is in nothing that leaves the model, and a seed voids claims.

    What is under a seal must be in no receipt, no guarantee, no parameter, no text of the model,
    no warning, no log record and nothing printed while it fits and forgets.
    """
    people = make_people(estimator)
    _require_fresh_noise(estimator, people)
    _require_no_certificate_with_a_seed(estimator, people)
    secrets: dict[str, Floats] = {}
    texts: Texts = {}
    with _overheard(estimator) as heard:
        model = fit_in_secret(estimator, people)
        _note(model, secrets, texts)
        for person in people.names[:2]:
            receipt = model.forget([person])
            _note(model, secrets, texts)
            texts["a receipt"] = f"{texts.get('a receipt', '')} {_without_time(receipt)}"
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


def _require_no_certificate_with_a_seed(estimator: Any, people: People) -> None:
    model = fit(estimator, people)
    for claim in (model.guarantee_, model.forget(people.names[:1]).guarantee):
        assert claim.kind != "certified", "with noise_seed everybody can repeat the noise"


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


def _without_time(receipt: Any) -> str:
    """Return all that a receipt says; the time it took is no secret, and differs in every run."""
    told = receipt.to_dict() | {"seconds": 0.0}
    return f"{receipt} {told} {receipt!r}".replace(repr(receipt.seconds), "")


@contextmanager
def _overheard(estimator: Any) -> Iterator[Texts]:
    """Collect log records of every level, warnings, and what is printed."""
    heard: Texts = {}
    records: list[str] = []
    printed = io.StringIO()
    with (
        _logging_of({"letheon", type(estimator).__module__.partition(".")[0]}, records),
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
def _logging_of(packages: set[str], texts: list[str]) -> Iterator[None]:
    """Collect all records that loggers of these packages make, whether they are handled or not."""
    make = logging.getLogRecordFactory()
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
        yield
    finally:
        logging.setLogRecordFactory(make)
        logging.disable(disabled)
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


def _shows(text: str, secret: Floats) -> bool:
    """Whether a text has a number of the secret, or its norm, to seven digits or in hexadecimal."""
    values = np.append(secret.ravel(), np.linalg.norm(secret))
    values = np.abs(values[values != np.round(values)])
    long = [each for each in _NUMBER.findall(text) if _digits(each) >= _DIGITS]
    said = np.array([float(each) for each in long])
    near = np.isclose(said[:, None], values, rtol=0.5 * 10.0 ** (1 - _DIGITS), atol=0.0)
    spelled = any(value.tobytes().hex() in text.lower() for value in secret.ravel())
    return bool(near.any()) or spelled


def _digits(number: str) -> int:
    """Number of significant digits of a text."""
    return len(re.split("[eE]", number)[0].replace(".", "").lstrip("0"))
