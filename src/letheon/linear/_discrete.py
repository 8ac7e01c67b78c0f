"""Exact noise on the integers: the discrete Gaussian and the discrete Laplace law.

Noise that is added in floating point can be read off: the last bits of a sum tell which noiseless
number it came from (Mironov 2012). Integers have no such bits. The laws are those of Canonne,
Kamath and Steinke (2020); here they are drawn by rejection, many numbers at a time:

- a *block* v >= 0 with probability ``2**-(v+1)``, read from random bits,
- a place u below the scale s, uniform, so that ``y = v s + u``,
- kept with probability ``f 2**v exp(-energy(y / s))``, which is at most 1, and given a sign.

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

try:
    from letheon import _core
except ImportError:  # pragma: no cover
    _core = None  # type: ignore[assignment]

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

LARGEST_SCALE = 1 << 24
# A candidate is one word: its sign, a fraction of the scale for its place, and its block.
_PLACE_BITS, _BLOCK_BITS = 38, 25
# Random bits of the uniform number that is tried first.
_TRIAL_BITS = 32
# Random bits of a number below 1 in `draw_long`: in its first and in its second float.
_HIGH_BITS, _LOW_BITS = 46, 53
LONG_BITS = _HIGH_BITS + _LOW_BITS
# More than the error of a probability below 1 that was computed in floats.
_MARGIN = 2.0**-44
_WORD_BITS = 64
_REJECTED, _KEPT, _UNDECIDED = range(3)


class LongFloats(NamedTuple):
    """Numbers as unevaluated sums of two floats."""

    high: Floats
    low: Floats


@dataclass(frozen=True)
class _Law:
    """A law whose probabilities are proportional to ``exp(-energy(y / s))``.

    Attributes
    ----------
    factor : Fraction
        f, so that ``f 2**v exp(-energy(v))`` is at most 1 for every block v. About half of all
        candidates are kept.
    energy : callable
        For arrays of floats and for fractions.
    """

    factor: Fraction
    energy: Callable[[Any], Any]


_NORMAL = _Law(Fraction(4, 5), lambda x: x * x / 2)
_LAPLACE = _Law(Fraction(1), lambda x: x)


@dataclass(frozen=True)
class _Candidates:
    """Numbers of which some are kept.

    Attributes
    ----------
    values
        The numbers, along the last axis.
    fates
        Whether each is kept: 0, 1, or 2 where floats cannot decide.
    decide
        Decides about one of the last, exactly; may change its value.
    """

    values: NDArray[Any]
    fates: NDArray[np.uint8]
    decide: Callable[[int], bool]


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
    return _draw_integers(words, n, scale, _NORMAL)


def draw_laplaces(words: Words, n: int, scale: int) -> Ints:
    """Return n integers z with probabilities proportional to ``exp(-|z| / scale)``."""
    return _draw_integers(words, n, scale, _LAPLACE)


def draw_long(words: Words, n: int) -> LongFloats:
    """Return n multiples z of ``2**-LONG_BITS``, probabilities proportional to ``exp(-z**2 / 2)``.

    A normal number that is rounded to such a multiple has this law but for a total variation of
    less than ``2**-200``.
    """
    return LongFloats(*_draw(words, n, _long_floats))


def _draw(words: Words, n: int, propose: Callable[[Words, int], _Candidates]) -> NDArray[Any]:
    parts: list[NDArray[Any]] = []
    n_missing = n
    while n_missing or not parts:
        candidates = propose(words, _n_candidates(n_missing))
        is_kept = candidates.fates == _KEPT
        for i in np.flatnonzero(candidates.fates == _UNDECIDED).tolist():
            # Those after the last one needed draw no bits: the core does not look at them either.
            if is_kept[:i].sum() >= n_missing:
                break
            is_kept[i] = candidates.decide(i)
        parts.append(candidates.values[..., np.flatnonzero(is_kept)[:n_missing]])
        n_missing -= parts[-1].shape[-1]
    return np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]


def _n_candidates(n_wanted: int) -> int:
    """Return an even number of candidates, of which mostly enough are kept."""
    return 9 * n_wanted // 8 * 2 + 32


def _draw_integers(words: Words, n: int, scale: int, law: _Law) -> Ints:
    if not 1 <= scale <= LARGEST_SCALE:
        raise ValueError(f"scale must be a whole number from 1 to {LARGEST_SCALE}, got {scale}")
    given = words(3 * _n_candidates(n) // 2)
    if _core is not None:
        kept = _core.keep_candidates(law is _NORMAL, scale, given, n)
        if len(kept) == n:
            return kept
    # Too few were kept, or one could not be decided: the same words, looked at more closely.
    first = [given]
    return _draw(lambda size: first.pop() if first else words(size), n, _integers_of(scale, law))


def _integers_of(scale: int, law: _Law) -> Callable[[Words, int], _Candidates]:
    def propose(words: Words, size: int) -> _Candidates:
        given = words(3 * size // 2)
        values, fates = _try_candidates(law, scale, given)

        def decide(i: int) -> bool:
            is_negative, place, block = (int(part[0]) for part in _parts(given[i : i + 1], scale))
            if block == _BLOCK_BITS:
                block += int(_draw_blocks(words, 1)[0])
                values[i] = (block * scale + place) * (-1 if is_negative else 1)
            share = Fraction(abs(int(values[i])), scale)
            trial, height = int(_halves(given[size:])[i]), law.factor * (1 << block)
            return _is_below(words, trial, law.energy(share), height, _TRIAL_BITS)

        return _Candidates(values, fates, decide)

    return propose


def _try_candidates(
    law: _Law, scale: int, words: NDArray[np.uint64]
) -> tuple[Ints, NDArray[np.uint8]]:
    """Return candidates and their fates: the rule of the core's `keep_candidates`."""
    size = len(words) // 3 * 2
    is_negative, place, block = _parts(words[:size], scale)
    absolute = block * scale + place
    uniform = (_halves(words[size:]).astype(np.float64) + 0.5) * 2.0**-_TRIAL_BITS
    fates = _try_floats(law, block, place / scale, uniform, 0.5 * 2.0**-_TRIAL_BITS)
    fates[block == _BLOCK_BITS] = _UNDECIDED
    fates[(place < 0) | (is_negative & (absolute == 0))] = _REJECTED
    return np.where(is_negative, -absolute, absolute), fates


def _parts(word: NDArray[np.uint64], scale: int) -> tuple[NDArray[np.bool_], Ints, Ints]:
    """Return signs, places (-1: none) and blocks of candidates.

    A place is a number of `_PLACE_BITS` bits times the scale, without its fraction. Those with the
    least fractions have none, so that every place has equally many (Lemire 2019).
    """
    product = (word >> np.uint64(1) & np.uint64((1 << _PLACE_BITS) - 1)) * np.uint64(scale)
    place = (product >> np.uint64(_PLACE_BITS)).astype(np.int64)
    fraction = product & np.uint64((1 << _PLACE_BITS) - 1)
    place[fraction < (1 << _PLACE_BITS) % scale] = -1
    block = np.minimum(_count_ones(word >> np.uint64(1 + _PLACE_BITS)), _BLOCK_BITS)
    return (word & np.uint64(1)).astype(bool), place, block


def _halves(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the lower and the upper 32 bits of each word in turn."""
    low, high = words & np.uint64((1 << 32) - 1), words >> np.uint64(32)
    return np.stack([low, high], axis=-1).ravel()


def _long_floats(words: Words, size: int) -> _Candidates:
    word, more, block, uniform = words(size), words(size), _draw_blocks(words, size), words(size)
    high = (word >> np.uint64(64 - _HIGH_BITS)).astype(np.float64) * 2.0**-_HIGH_BITS
    low = (more >> np.uint64(64 - _LOW_BITS)).astype(np.float64) * 2.0**-LONG_BITS
    is_negative = (word & np.uint64(1)).astype(bool)
    trial = (uniform >> np.uint64(11)).astype(np.float64) * 2.0**-53
    fates = _try_floats(_NORMAL, block, high, trial)
    fates[is_negative & (block == 0) & (high == 0.0) & (low == 0.0)] = _REJECTED

    def decide(i: int) -> bool:
        exact = _NORMAL.energy(int(block[i]) + Fraction(high[i]) + Fraction(low[i]))
        return _is_below(words, int(uniform[i]), exact, _NORMAL.factor * (1 << int(block[i])))

    values = np.where(is_negative, -1.0, 1.0) * np.stack([block + high, low])
    return _Candidates(values, fates, decide)


def _draw_blocks(words: Words, size: int) -> Ints:
    """Return how many ones come before the first zero in fresh random bits."""
    block = _count_ones(words(size))
    endless = np.flatnonzero(block == _WORD_BITS)
    if len(endless):
        block[endless] += _draw_blocks(words, len(endless))
    return block


def _count_ones(word: NDArray[np.uint64]) -> Ints:
    """Return how many of the lowest bits of each word are ones."""
    # ~word has a lowest set bit 2**k after k ones; without any, all 64 bits are ones.
    lowest = ~word & (word + np.uint64(1))
    n_ones = np.frexp(lowest.astype(np.float64))[1].astype(np.int64) - 1
    n_ones[lowest == 0] = _WORD_BITS
    return n_ones


def _try_floats(
    law: _Law, block: Ints, part: Floats, uniform: Floats, error: float = 0.0
) -> NDArray[np.uint8]:
    """Return which numbers lie below ``factor 2**block exp(-energy(block + part))``.

    `error`: how far a number may be off, beyond what `_MARGIN` has room for.
    """
    decay = float(law.factor) * np.exp(-law.energy(block + part))
    gap = np.ldexp(decay, np.minimum(block, 1000)) - uniform
    fates: NDArray[np.uint8] = (gap > 0.0).astype(np.uint8)
    fates[np.abs(gap) <= error + _MARGIN] = _UNDECIDED
    return fates


def _is_below(
    words: Words, bits: int, energy: Fraction, height: Fraction, n_bits: int = 64
) -> bool:
    """Whether the uniform number that begins with `bits` is below ``height exp(-energy)``."""
    while True:
        # So many digits that the exponent, and with it the result, is off by less than `error`.
        n_digits = n_bits // 3
        context = Context(prec=n_digits + len(str(int(energy))) + 20)
        exponent = context.divide(Decimal(-energy.numerator), Decimal(energy.denominator))
        bound = Fraction(context.exp(exponent)) * height * (1 << n_bits)
        error = bound / 10**n_digits
        if bits + 1 <= bound - error:
            return True
        if bits >= bound + error:
            return False
        bits, n_bits = bits << 64 | int(words(1)[0]), n_bits + 64
