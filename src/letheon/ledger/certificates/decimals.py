"""Numbers as certificates write them: decimal texts, and figures of few digits.

Certificates hold no JSON floats: two readers may print one float in two ways. Figures that were
measured have one or two significant digits, because a precise one tells of single rows.
"""

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Literal

__all__ = ["CODE", "Direction", "decimal", "figure", "is_code"]

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
