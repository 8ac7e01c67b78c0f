"""Secret noise that hides the effect of a forgotten row.

The noise follows an exact distribution on the integers: the discrete Gaussian or the discrete
Laplace distribution (Canonne, Kamath and Steinke 2020). Noise added in floating point is not safe:
the last bits of a sum can reveal the number without noise (Mironov 2012). Integers do not have this
problem. This module samples the distributions by rejection, many numbers at a time:

- Draw a *block* v >= 0 with probability ``2**-(v+1)``, read from random bits.
- Draw a uniform offset u below the scale s. The candidate is ``y = v s + u``.
- Keep y with probability ``f 2**v exp(-energy(y / s))``, which is at most 1, with a random sign.

Usually floats are accurate enough to decide whether a uniform number is below that probability. In
the rare other cases decimals of growing length decide, with more random bits. So every number
follows exactly the stated distribution.

Noise protects only while it is secret. So it comes from the operating system, and noise that must
be kept is stored in a `SecretArray`. A seed makes a run repeatable for tests. Anyone who knows
the seed knows the noise, so a model with a seed has no guarantee.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple, Self, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, ndtri

from letheon.seeds import Purpose, keyed_hash, mix64

try:
    from letheon import _core
except ImportError:  # pragma: no cover
    _core = None  # type: ignore[assignment]


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Words = Callable[[int], NDArray[np.uint64]]

LARGEST_SCALE = 1 << 24
# A candidate is one word: its sign, a fraction of the scale for its offset, and its block.
_PLACE_BITS, _BLOCK_BITS = 38, 25
# Random bits of the uniform number that is tried first.
_TRIAL_BITS = 32
# Random bits of a number below 1 in `long_normals`: in its first and in its second float.
_HIGH_BITS, _LOW_BITS = 46, 53
LONG_BITS = _HIGH_BITS + _LOW_BITS
# An upper bound on the rounding error of a probability in floats.
_MARGIN = 2.0**-44
_WORD_BITS = 64
_REJECTED, _KEPT, _UNDECIDED = range(3)


class LongFloats(NamedTuple):
    """Numbers ``high + low``, stored as two floats each for more precision."""

    high: Floats
    low: Floats


@dataclass(frozen=True)
class _Distribution:
    """A distribution with probabilities proportional to ``exp(-energy(y / s))``.

    Attributes
    ----------
    factor : Fraction
        The factor f, chosen so that ``f 2**v exp(-energy(v))`` is at most 1 for every block v.
        About half of all candidates are kept.
    energy : callable
        The energy function, for arrays of floats and for fractions.
    """

    factor: Fraction
    energy: Callable[[Any], Any]


_NORMAL = _Distribution(Fraction(4, 5), lambda x: x * x / 2)
_LAPLACE = _Distribution(Fraction(1), lambda x: x)


@dataclass(frozen=True)
class _Candidates:
    """Candidates for the sample, of which some are kept.

    Attributes
    ----------
    values
        The numbers, along the last axis.
    decisions
        Whether each candidate is kept: 0 no, 1 yes, 2 if floats cannot decide.
    decide
        Function that decides exactly about a candidate with decision 2. It may change the value.
    """

    values: NDArray[Any]
    decisions: NDArray[np.uint8]
    decide: Callable[[int], bool]


def _draw_accepted(
    words: Words, n: int, propose: Callable[[Words, int], _Candidates]
) -> NDArray[Any]:
    parts: list[NDArray[Any]] = []
    n_missing = n
    while n_missing or not parts:
        candidates = propose(words, _n_candidates(n_missing))
        is_kept = candidates.decisions == _KEPT
        for i in np.flatnonzero(candidates.decisions == _UNDECIDED).tolist():
            # Candidates after the last one needed draw no bits, as in the core.
            if is_kept[:i].sum() >= n_missing:
                break
            is_kept[i] = candidates.decide(i)
        parts.append(candidates.values[..., np.flatnonzero(is_kept)[:n_missing]])
        n_missing -= parts[-1].shape[-1]
    return np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]


def _n_candidates(n_wanted: int) -> int:
    """Return how many candidates to draw so that usually `n_wanted` are kept; an even number."""
    return 9 * n_wanted // 8 * 2 + 32


def _draw_integers(words: Words, n: int, scale: int, distribution: _Distribution) -> Ints:
    """Return n integers z with probabilities proportional to ``exp(-energy(|z| / scale))``.

    `words(n)` returns n random words of 64 bits.
    """
    if not 1 <= scale <= LARGEST_SCALE:
        raise ValueError(f"scale must be a whole number from 1 to {LARGEST_SCALE}, got {scale}")
    block_words = words(3 * _n_candidates(n) // 2)
    if _core is not None:
        kept = _core.keep_candidates(distribution is _NORMAL, scale, block_words, n)
        if len(kept) == n:
            return kept
    # Too few were kept, or one could not be decided: use the same words with exact decisions.
    first = [block_words]
    return _draw_accepted(
        lambda size: first.pop() if first else words(size), n, _integers_of(scale, distribution)
    )


def _integers_of(scale: int, distribution: _Distribution) -> Callable[[Words, int], _Candidates]:
    def propose(words: Words, size: int) -> _Candidates:
        block_words = words(3 * size // 2)
        values, decisions = _try_candidates(distribution, scale, block_words)

        def decide(i: int) -> bool:
            is_negative, place, block = (
                int(part[0]) for part in _split_words(block_words[i : i + 1], scale)
            )
            if block == _BLOCK_BITS:
                block += int(_draw_blocks(words, 1)[0])
                values[i] = (block * scale + place) * (-1 if is_negative else 1)
            share = Fraction(abs(int(values[i])), scale)
            trial, height = (
                int(_split_halves(block_words[size:])[i]),
                distribution.factor * (1 << block),
            )
            return _is_below(words, trial, distribution.energy(share), height, _TRIAL_BITS)

        return _Candidates(values, decisions, decide)

    return propose


def _try_candidates(
    distribution: _Distribution, scale: int, words: NDArray[np.uint64]
) -> tuple[Ints, NDArray[np.uint8]]:
    """Return the values and decisions of candidates from random words.

    The compiled function `keep_candidates` uses the words in the same way.
    """
    size = len(words) // 3 * 2
    is_negative, place, block = _split_words(words[:size], scale)
    absolute = block * scale + place
    uniform = (_split_halves(words[size:]).astype(np.float64) + 0.5) * 2.0**-_TRIAL_BITS
    decisions = _try_floats(distribution, block, place / scale, uniform, 0.5 * 2.0**-_TRIAL_BITS)
    decisions[block == _BLOCK_BITS] = _UNDECIDED
    decisions[(place < 0) | (is_negative & (absolute == 0))] = _REJECTED
    return np.where(is_negative, -absolute, absolute), decisions


def _split_words(word: NDArray[np.uint64], scale: int) -> tuple[NDArray[np.bool_], Ints, Ints]:
    """Return signs (True if negative), offsets (-1 if rejected) and blocks of candidates.

    An offset is the integer part of a random fraction of `_PLACE_BITS` bits times the scale.
    Offsets with the smallest remainders are rejected, so that all are equally likely (Lemire 2019).
    """
    product = (word >> np.uint64(1) & np.uint64((1 << _PLACE_BITS) - 1)) * np.uint64(scale)
    place = (product >> np.uint64(_PLACE_BITS)).astype(np.int64)
    fraction = product & np.uint64((1 << _PLACE_BITS) - 1)
    place[fraction < (1 << _PLACE_BITS) % scale] = -1
    block = np.minimum(_count_ones(word >> np.uint64(1 + _PLACE_BITS)), _BLOCK_BITS)
    return (word & np.uint64(1)).astype(bool), place, block


def _split_halves(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return two numbers for each word: its lower 32 bits, then its upper 32 bits."""
    low, high = words & np.uint64((1 << 32) - 1), words >> np.uint64(32)
    return np.stack([low, high], axis=-1).ravel()


def _long_floats(words: Words, size: int) -> _Candidates:
    word, more, block, uniform = words(size), words(size), _draw_blocks(words, size), words(size)
    high = (word >> np.uint64(64 - _HIGH_BITS)).astype(np.float64) * 2.0**-_HIGH_BITS
    low = (more >> np.uint64(64 - _LOW_BITS)).astype(np.float64) * 2.0**-LONG_BITS
    is_negative = (word & np.uint64(1)).astype(bool)
    trial = (uniform >> np.uint64(11)).astype(np.float64) * 2.0**-53
    decisions = _try_floats(_NORMAL, block, high, trial)
    decisions[is_negative & (block == 0) & (high == 0.0) & (low == 0.0)] = _REJECTED

    def decide(i: int) -> bool:
        exact = _NORMAL.energy(int(block[i]) + Fraction(high[i]) + Fraction(low[i]))
        return _is_below(words, int(uniform[i]), exact, _NORMAL.factor * (1 << int(block[i])))

    values = np.where(is_negative, -1.0, 1.0) * np.stack([block + high, low])
    return _Candidates(values, decisions, decide)


def _draw_blocks(words: Words, size: int) -> Ints:
    """Return `size` blocks: each is the number of ones before the first zero in random bits."""
    block = _count_ones(words(size))
    endless = np.flatnonzero(block == _WORD_BITS)
    if len(endless):
        block[endless] += _draw_blocks(words, len(endless))
    return block


def _count_ones(word: NDArray[np.uint64]) -> Ints:
    """Return the number of ones below the lowest zero bit of each word."""
    # ~word has a lowest set bit 2**k after k ones; without any, all 64 bits are ones.
    lowest = ~word & (word + np.uint64(1))
    n_ones = np.frexp(lowest.astype(np.float64))[1].astype(np.int64) - 1
    n_ones[lowest == 0] = _WORD_BITS
    return n_ones


def _try_floats(
    distribution: _Distribution, block: Ints, part: Floats, uniform: Floats, error: float = 0.0
) -> NDArray[np.uint8]:
    """Return decisions: 1 if `uniform` is below ``factor 2**block exp(-energy(block + part))``.

    The decision is 0 if it is above, and 2 if the two numbers are too close for floats. `error` is
    the error of `uniform`, in addition to `_MARGIN`.
    """
    decay = float(distribution.factor) * np.exp(-distribution.energy(block + part))
    gap = np.ldexp(decay, np.minimum(block, 1000)) - uniform
    decisions: NDArray[np.uint8] = (gap > 0.0).astype(np.uint8)
    decisions[np.abs(gap) <= error + _MARGIN] = _UNDECIDED
    return decisions


def _is_below(
    words: Words, bits: int, energy: Fraction, height: Fraction, n_bits: int = 64
) -> bool:
    """Return whether a uniform number is below ``height * exp(-energy)``, decided exactly.

    `bits` are the first `n_bits` bits of the number. More bits are drawn from `words` if needed.
    """
    while True:
        # With this many digits the error of the result is below `error`.
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


Shape = int | tuple[int, ...]


class NoiseSource:
    """A source of noise: the operating system, or a seed.

    A draw with a seed is a function of the seed and the number of earlier draws. A removal that may
    still fail draws from a ``copy.copy`` of the source, which replaces the source when the removal
    succeeds.

    Parameters
    ----------
    seed : int or None
        If None, every draw comes from the operating system (`os.urandom`). An int from 0 to
        ``2**128 - 1`` makes the draws repeatable.

    Attributes
    ----------
    n_draws : int
        Number of draws with the seed so far; stays 0 without a seed.

    Examples
    --------
    >>> NoiseSource(7).normals(2)
    array([0.58256755, 0.9878355 ])
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = None if seed is None else _check_seed(seed)
        self.n_draws = 0

    def __copy__(self) -> Self:
        """Return a source that will draw the same numbers; without a seed, the source itself."""
        if self.seed is None:
            return self
        duplicate = type(self)(self.seed)
        duplicate.n_draws = self.n_draws
        return duplicate

    @property
    def is_repeatable(self) -> bool:
        """Whether the source has a seed; the noise is then not secret."""
        return self.seed is not None

    def uniforms(self, n: int) -> Floats:
        """Return `n` uniform numbers strictly between 0 and 1.

        They are the odd multiples of ``2**-53``, all equally likely: neither end of the interval
        can occur, and ``u`` is as likely as ``1 - u``.
        """
        bits = self._words(n) >> np.uint64(12)
        return (2.0 * bits.astype(np.float64) + 1.0) * 2.0**-53

    def integers(self, shape: Shape, n: int) -> NDArray[np.int64]:
        """Return independent uniform integers from 0 to n - 1; the distribution is exact."""
        size, largest = _count_entries(shape), np.uint64(2**64 - 2**64 % n - 1)
        accepted = np.empty(0, np.uint64)
        while len(accepted) < size:
            words = self._words(size - len(accepted))
            accepted = np.concatenate([accepted, words[words <= largest]])
        return (accepted % np.uint64(n)).astype(np.int64).reshape(shape)

    def normals(self, shape: Shape) -> Floats:
        """Return independent standard normal numbers, ``ndtri(u)`` of uniform numbers u.

        The tails end at 8.2 standard deviations. The probability beyond is ``2**-53``.
        """
        return ndtri(self.uniforms(_count_entries(shape))).reshape(shape)

    def ball(self, shape: Shape, scale: float) -> Floats:
        """Return one vector ``b`` with density proportional to ``exp(-|b| / scale)``.

        ``|.|`` is the Euclidean (Frobenius) norm over all entries. With ``d`` entries, the radius
        follows a gamma distribution of shape ``d``, with density proportional to
        ``r^(d-1) exp(-r / scale)``, and the direction is uniform (Chaudhuri, Monteleoni and
        Sarwate, 2011).
        """
        if not scale >= 0:
            raise ValueError(f"scale must not be negative, got {scale}")
        size = _count_entries(shape)
        if size == 0:
            return np.zeros(shape)
        radius = scale * float(gammaincinv(size, self.uniforms(1)[0]))
        direction = self.normals(shape)
        return direction * (radius / float(np.linalg.norm(direction)))

    def discrete_normals(self, shape: Shape, scale: int) -> NDArray[np.int64]:
        """Return independent integers from the exact discrete Gaussian distribution.

        The probability of z is proportional to ``exp(-(z / scale)**2 / 2)``.
        """
        return _draw_integers(self._words, _count_entries(shape), scale, _NORMAL).reshape(shape)

    def laplaces(self, shape: Shape, scale: int) -> NDArray[np.int64]:
        """Return independent integers from the exact discrete Laplace distribution.

        The probability of z is proportional to ``exp(-|z| / scale)``.
        """
        return _draw_integers(self._words, _count_entries(shape), scale, _LAPLACE).reshape(shape)

    def long_normals(self, n: int) -> LongFloats:
        """Return n multiples z of ``2**-LONG_BITS`` with a normal distribution.

        The probability of z is proportional to ``exp(-z**2 / 2)``.
        A normal number rounded to a multiple of ``2**-LONG_BITS`` has this distribution up to a
        total variation distance of less than ``2**-200``. The results are sums of two floats.
        """
        return LongFloats(*_draw_accepted(self._words, n, _long_floats))

    def salt(self) -> str:
        """Return 32 random bytes as hexadecimal digits, for a commitment."""
        return self._words(4).tobytes().hex()

    def _words(self, n: int) -> NDArray[np.uint64]:
        """Return `n` random words of 64 bits."""
        if self.seed is None:
            return np.frombuffer(os.urandom(8 * n), np.uint64)
        key = keyed_hash(self.seed, Purpose.NOISE, self.n_draws)
        self.n_draws += 1
        return mix64(key, np.arange(n, dtype=np.uint64))

    def __repr__(self) -> str:
        return f"<noise from {'the operating system' if self.seed is None else 'a seed'}>"

    def _to_state(self) -> dict[str, Any]:
        return {"seed": self.seed, "n_draws": self.n_draws}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        source, n_draws = cls(state["seed"]), state["n_draws"]
        if type(n_draws) is not int or n_draws < 0:
            raise ValueError(f"n_draws={n_draws!r} is not valid: expected an int of at least 0")
        source.n_draws = n_draws
        return source


class SecretArray:
    """A container for a secret array: noise, or parameters without their noise.

    It is printed as ``<secret>`` and compared by identity. It cannot be used as an array or a
    sequence, or written as JSON. Files and pickles contain the value, because a loaded model needs
    it. Keep them as private as the rows.

    Parameters
    ----------
    value : ndarray of float64
        The secret. The object takes ownership of the array: do not use the array elsewhere.

    Examples
    --------
    >>> secret = SecretArray(np.array([0.25, -3.0]))
    >>> secret
    <secret>
    >>> float(secret.open().sum())
    -2.75
    """

    # No __dict__, so that `vars` and generic serialisers do not see the value.
    __slots__ = ("__weakref__", "_value")

    def __init__(self, value: Floats) -> None:
        if not isinstance(value, np.ndarray) or value.dtype != np.float64:
            raise TypeError("value must be a NumPy array of float64")
        owned = value.flags.owndata and value.flags.writeable and value.flags.c_contiguous
        self._value: Floats | None = value if owned else np.array(value, order="C")

    def open(self) -> Floats:
        """Return a read-only view of the value.

        Raises
        ------
        ValueError
            If the value was wiped. Zeros in place of the noise would protect nothing.
        """
        if self._value is None:
            raise ValueError("this secret value was wiped and can no longer be read")
        view = self._value.view()
        view.flags.writeable = False
        return view

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.open().size

    def wipe(self) -> None:
        """Overwrite the value with zeros; views that `open` returned become zero too."""
        if self._value is not None:
            self._value.fill(0.0)
            self._value = None

    def __repr__(self) -> str:
        return "<secret>"

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __copy__(self) -> Self:
        return type(self)(self.open().copy())

    def __deepcopy__(self, memo: Any) -> Self:
        return self.__copy__()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return type(self), (self.open(),)

    def _to_state(self) -> dict[str, Any]:
        return {"value": self.open()}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        return cls(state["value"])


def _check_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"noise_seed must be None or an int, got {type(seed).__name__}")
    if not 0 <= seed < 2**128:
        raise ValueError(f"noise_seed must be from 0 to 2**128 - 1, got {seed}")
    return int(seed)


def _count_entries(shape: Shape) -> int:
    return shape if isinstance(shape, int) else prod(shape)
