"""Exact noise on the integers: the discrete Gaussian and the discrete Laplace law.

Noise that is added in floating point can be read off: the last bits of a sum tell which noiseless
number it came from (Mironov 2012). Integers have no such bits. The laws are those of Canonne,
Kamath and Steinke (2020); here they are drawn by rejection, many numbers at a time:

- a *block* v >= 0 with probability ``2**-(v+1)``, read from random bits,
- a place u below the scale s, uniform, so that ``y = v s + u``,
- kept with probability ``2**(v - a) exp(-energy(y))``, which is at most 1, and given a sign.

Whether a uniform number lies below that probability is decided by floats where their error cannot
matter, and by decimals of growing length, with more random bits, in the rare other case. So every
number is drawn from exactly the stated law.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LARGEST_SCALE",
    "LONG_BITS",
    "LongFloats",
    "draw_laplaces",
    "draw_long",
    "draw_normals",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Words = Callable[[int], NDArray[np.uint64]]

LARGEST_SCALE = 1 << 40
# Random bits of a number below 1 in `draw_long`: in its first and in its second float.
_HIGH_BITS, _LOW_BITS = 46, 53
LONG_BITS = _HIGH_BITS + _LOW_BITS
# More than the error of a probability below 1 that was computed in floats.
_MARGIN = 2.0**-44


class LongFloats(NamedTuple):
    """Numbers as unevaluated sums of two floats."""

    high: Floats
    low: Floats


@dataclass(frozen=True)
class _Law:
    """A law whose probabilities are proportional to ``exp(-energy(y / s))``.

    Attributes
    ----------
    halvings : int
        a, so that ``2**(v - a) exp(-energy(v))`` is at most 1 for every block v.
    energy : callable
        For arrays of floats and for fractions.
    """

    halvings: int
    energy: Callable[[Any], Any]


_NORMAL = _Law(1, lambda x: x * x / 2)
_LAPLACE = _Law(0, lambda x: x)


@dataclass(frozen=True)
class _Candidates:
    """Numbers of which some are kept.

    Attributes
    ----------
    values
        The numbers, along the last axis.
    block, part
        The absolute value of each over the scale is about block + part.
    exact
        Returns that absolute value over the scale of one of them, exactly.
    is_possible
        False for places outside the block and for a second zero.
    """

    values: NDArray[Any]
    block: Ints
    part: Floats
    exact: Callable[[int], Fraction]
    is_possible: NDArray[np.bool_]


def draw_normals(words: Words, n: int, scale: int) -> Ints:
    """Return n integers z with probabilities proportional to ``exp(-z**2 / (2 scale**2))``.

    Parameters
    ----------
    words : callable
        Returns as many random words of 64 bits as it is asked for.
    n : int
        How many.
    scale : int
        From 1 to `LARGEST_SCALE`.
    """
    return _draw(words, n, _NORMAL, _integers_of(scale))


def draw_laplaces(words: Words, n: int, scale: int) -> Ints:
    """Return n integers z with probabilities proportional to ``exp(-|z| / scale)``."""
    return _draw(words, n, _LAPLACE, _integers_of(scale))


def draw_long(words: Words, n: int) -> LongFloats:
    """Return n multiples z of ``2**-LONG_BITS``, probabilities proportional to ``exp(-z**2 / 2)``.

    A normal number that is rounded to such a multiple has this law but for a total variation of
    less than ``2**-200``.
    """
    return LongFloats(*_draw(words, n, _NORMAL, _long_floats))


def _draw(
    words: Words, n: int, law: _Law, propose: Callable[[Words, int], _Candidates]
) -> NDArray[Any]:
    parts: list[NDArray[Any]] = []
    n_missing = n
    while n_missing or not parts:
        candidates = propose(words, 5 * n_missing // 2 + 16)
        kept = np.flatnonzero(_accept(words, candidates, law) & candidates.is_possible)
        parts.append(candidates.values[..., kept[:n_missing]])
        n_missing -= parts[-1].shape[-1]
    return np.concatenate(parts, axis=-1)


def _integers_of(scale: int) -> Callable[[Words, int], _Candidates]:
    if not 1 <= scale <= LARGEST_SCALE:
        raise ValueError(f"scale must be a whole number from 1 to {LARGEST_SCALE}, got {scale}")
    n_bits = (scale - 1).bit_length()

    def propose(words: Words, size: int) -> _Candidates:
        word, block = words(size), _draw_blocks(words, size)
        place = ((word >> np.uint64(1)) & np.uint64((1 << n_bits) - 1)).astype(np.int64)
        absolute, is_negative = block * scale + place, (word & np.uint64(1)).astype(bool)
        return _Candidates(
            np.where(is_negative, -absolute, absolute),
            block,
            place / scale,
            lambda i: Fraction(int(absolute[i]), scale),
            (place < scale) & ~(is_negative & (absolute == 0)),
        )

    return propose


def _long_floats(words: Words, size: int) -> _Candidates:
    word, more, block = words(size), words(size), _draw_blocks(words, size)
    high = (word >> np.uint64(64 - _HIGH_BITS)).astype(np.float64) * 2.0**-_HIGH_BITS
    low = (more >> np.uint64(64 - _LOW_BITS)).astype(np.float64) * 2.0**-LONG_BITS
    is_negative = (word & np.uint64(1)).astype(bool)
    return _Candidates(
        np.where(is_negative, -1.0, 1.0) * np.stack([block + high, low]),
        block,
        high,
        lambda i: int(block[i]) + Fraction(high[i]) + Fraction(low[i]),
        ~(is_negative & (block == 0) & (high == 0.0) & (low == 0.0)),
    )


def _draw_blocks(words: Words, size: int) -> Ints:
    """Return how many ones come before the first zero in fresh random bits."""
    word = words(size)
    # ~word has a lowest set bit 2**k after k ones; without any, all 64 bits are ones.
    lowest = ~word & (word + np.uint64(1))
    block = np.frexp(lowest.astype(np.float64))[1].astype(np.int64) - 1
    endless = np.flatnonzero(lowest == 0)
    block[endless] = 64
    if len(endless):
        block[endless] += _draw_blocks(words, len(endless))
    return block


def _accept(words: Words, candidates: _Candidates, law: _Law) -> NDArray[np.bool_]:
    """Return which uniform numbers lie below ``2**(block - halvings) exp(-energy)``."""
    word = words(len(candidates.block))
    uniform = (word >> np.uint64(11)).astype(np.float64) * 2.0**-53
    energy = law.energy(candidates.block + candidates.part)
    power = candidates.block - law.halvings
    gap = np.ldexp(np.exp(-energy), np.minimum(power, 1000)) - uniform
    is_below: NDArray[np.bool_] = gap > 0.0
    for i in np.flatnonzero(np.abs(gap) <= _MARGIN).tolist():
        exact = law.energy(candidates.exact(i))
        is_below[i] = _is_below(words, int(word[i]), exact, int(power[i]))
    return is_below


def _is_below(words: Words, bits: int, energy: Fraction, power: int) -> bool:
    """Whether the uniform number that begins with 64 `bits` is below ``2**power exp(-energy)``."""
    n_bits = 64
    while True:
        # So many digits that the exponent, and with it the result, is off by less than `error`.
        n_digits = n_bits // 3
        context = Context(prec=n_digits + len(str(int(energy))) + 20)
        exponent = context.divide(Decimal(-energy.numerator), Decimal(energy.denominator))
        bound = Fraction(context.exp(exponent)) * (1 << (n_bits + power))
        error = bound / 10**n_digits
        if bits + 1 <= bound - error:
            return True
        if bits >= bound + error:
            return False
        bits, n_bits = bits << 64 | int(words(1)[0]), n_bits + 64
