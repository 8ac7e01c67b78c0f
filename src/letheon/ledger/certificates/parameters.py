"""Parameters of an estimator as certificates list them: codes, decimals and booleans.

No text of the operator's own gets in: a text that is no short code, a function, an array or any
other object is written as the digest of its canonical bytes.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Any, Literal

import numpy as np

from letheon import state
from letheon.base import neutral_parameters
from letheon.exceptions import StateError

Direction = Literal["up", "down", "nearest"]

CODE = re.compile(r"[a-z0-9][a-z0-9._:@/+-]{0,127}")
_LONGEST = 24
_ROUNDINGS = {"up": ROUND_CEILING, "down": ROUND_FLOOR, "nearest": ROUND_HALF_EVEN}


def decimal(number: float) -> str:
    """Return the text of a number from which the number is read again.

    Raises
    ------
    ValueError
        The number is infinite or NaN, or a whole number of more than 24 characters.
    """
    if not math.isfinite(number):
        raise ValueError(f"{number} has no decimal text")
    text = str(number) if isinstance(number, int) else _shortest(float(number))
    if len(text) > _LONGEST:
        raise ValueError(f"a number of {len(text)} characters does not fit into a certificate")
    return text


def _shortest(number: float) -> str:
    """Return `repr` without a plus sign, leading zeros of the exponent or an idle fraction."""
    mantissa, _, exponent = repr(number + 0.0).partition("e")
    mantissa = mantissa.removesuffix(".0")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def figure(number: float, direction: Direction, *, digits: int = 2) -> str:
    """Return a number of two significant digits, or of fewer, rounded in this direction.

    An upper bound is rounded up and a lower bound down, so that the figure claims no more.

    Examples
    --------
    >>> figure(0.01131, "up"), figure(212.7, "down")
    ('0.012', '210')
    """
    if not math.isfinite(number):
        raise ValueError(f"{number} has no figure")
    context = Context(prec=digits, rounding=_ROUNDINGS[direction], Emin=-400, Emax=400)
    return decimal(float(context.create_decimal(Decimal(repr(float(number))))))


def is_code(text: str) -> bool:
    """Return whether a text is a code: short, in lower case, without spaces."""
    return CODE.fullmatch(text) is not None


Value = str | bool

# With a seed for the noise everybody who reads it could take the noise away.
_SECRET = frozenset({"random_state", "noise_seed"})
_LONGEST_TEXT = 40
_LONGEST_LIST = 16


def parameters_of(model: Any, prefix: str = "") -> dict[str, Value]:
    """Return the parameters that affect what an estimator learns, nested ones with ``__``.

    An estimator inside is listed by the name of its class and then by its own parameters. Seeds
    are left out, as is what never changes a result (`n_jobs`, `verbose`, places of files).
    """
    skipped = neutral_parameters(model) | _SECRET
    found: dict[str, Value] = {}
    for name, value in model.get_params(deep=False).items():
        if name not in skipped:
            found.update(_entries(f"{prefix}{name}", value))
    return found


def class_code(value: Any) -> str:
    """Return the module and name of a class, or of an object's class, as a code."""
    kind = value if isinstance(value, type) else type(value)
    return code_of(state.tag_of(kind).lower(), longest=128)


def _entries(name: str, value: Any) -> Iterator[tuple[str, Value]]:
    if hasattr(value, "get_params") and not isinstance(value, type):
        yield name, class_code(value)
        yield from parameters_of(value, f"{name}__").items()
    elif isinstance(value, list | tuple) and len(value) <= _LONGEST_LIST:
        yield name, f"list:{len(value)}"
        for place, part in enumerate(value):
            yield from _entries(f"{name}.{place}", part)
    else:
        yield name, _scalar(value)


def _scalar(value: Any) -> Value:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return value
    if value is None:
        return "none"
    if isinstance(value, int | float):
        return _number(value)
    return code_of(value) if isinstance(value, str) else _digest(value)


def _number(value: float) -> str:
    try:
        return decimal(value)
    except ValueError:
        text = str(value)
        return text if is_code(text) else _hashed("number", text.encode())


def code_of(value: str, *, longest: int = _LONGEST_TEXT) -> str:
    """Return a text if it is a short code, else its digest."""
    # An address of a person has the form of a code, too.
    is_plain = is_code(value) and len(value) <= longest and "@" not in value
    return value if is_plain else _hashed("text", value.encode())


def _digest(value: Any) -> str:
    if isinstance(value, type):
        return class_code(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return _hashed("function", state.tag_of(value).encode())
    try:
        return f"{_kind(value)}:{state.digest(value)}"
    except StateError:
        return f"{_kind(value)}:no-canonical-bytes"


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "array"
    if isinstance(value, Mapping | Sequence):
        return "collection"
    return "object"


def _hashed(kind: str, data: bytes) -> str:
    return f"{kind}:{hashlib.sha256(data).hexdigest()}"
