"""Noise that hides what a forgotten row did, and the seal under which it is kept.

Noise protects only while nobody knows it, so it comes from the operating system, and what must be
kept of it is kept in a `Sealed`. A seed makes a run repeatable for tests; whoever knows the seed
knows the noise, so a model with a seed proves nothing.
"""

import os
from math import prod
from typing import Any, Self, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, ndtri

from letheon.linear._discrete import LongFloats, draw_laplaces, draw_long, draw_normals
from letheon.seeds import Purpose, keyed_hash, mix64

Floats = NDArray[np.float64]
Shape = int | tuple[int, ...]


class NoiseSource:
    """Draws noise: from the operating system, or from a seed.

    A draw with a seed is a function of the seed and of how many draws were made before. A plan that
    may still fail draws from a ``copy.copy`` of the source, which its commit puts in place.

    Parameters
    ----------
    seed : int or None
        None asks the operating system for every draw (`os.urandom`). An int,
        ``0 <= seed < 2**128``, makes the draws repeatable.

    Attributes
    ----------
    n_draws : int
        Draws made so far with the seed. Without one it stays 0: nothing depends on it.

    Examples
    --------
    >>> NoiseSource(7).normals(2)
    array([0.58256755, 0.9878355 ])
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = None if seed is None else _verified(seed)
        self.n_draws = 0

    def __copy__(self) -> Self:
        """Return a source that goes on alike; without a seed there is nothing to copy."""
        if self.seed is None:
            return self
        twin = type(self)(self.seed)
        twin.n_draws = self.n_draws
        return twin

    @property
    def is_repeatable(self) -> bool:
        """Whether a seed was given, so that the noise is no secret."""
        return self.seed is not None

    def uniforms(self, n: int) -> Floats:
        """Return `n` uniform numbers strictly between 0 and 1.

        They are the odd multiples of ``2**-53``, all equally likely: neither end of the interval
        can occur, and ``u`` is as likely as ``1 - u``.
        """
        bits = self._words(n) >> np.uint64(12)
        return (2.0 * bits.astype(np.float64) + 1.0) * 2.0**-53

    def integers(self, shape: Shape, n: int) -> NDArray[np.int64]:
        """Return independent integers from 0 to n - 1, all exactly equally likely."""
        size, largest = _size(shape), np.uint64(2**64 - 2**64 % n - 1)
        found = np.empty(0, np.uint64)
        while len(found) < size:
            words = self._words(size - len(found))
            found = np.concatenate([found, words[words <= largest]])
        return (found % np.uint64(n)).astype(np.int64).reshape(shape)

    def normals(self, shape: Shape) -> Floats:
        """Return independent standard normal numbers, ``ndtri(u)``.

        The tails end at 8.2 standard deviations, beyond which lies a mass of ``2**-53``.
        """
        return ndtri(self.uniforms(_size(shape))).reshape(shape)

    def ball(self, shape: Shape, scale: float) -> Floats:
        """Return one vector ``b`` with density proportional to ``exp(-|b| / scale)``.

        With ``d`` entries the radius has the density ``r^(d-1) exp(-r / scale)``, that of a gamma
        law of shape ``d``, and the direction is uniform (Chaudhuri, Monteleoni and Sarwate, 2011).
        ``|.|`` is the Euclidean (Frobenius) norm over all entries.
        """
        if not scale >= 0:
            raise ValueError(f"scale must be a number that is not negative, got {scale}")
        size = _size(shape)
        if size == 0:
            return np.zeros(shape)
        radius = scale * float(gammaincinv(size, self.uniforms(1)[0]))
        direction = self.normals(shape)
        return direction * (radius / float(np.linalg.norm(direction)))

    def discrete_normals(self, shape: Shape, scale: int) -> NDArray[np.int64]:
        """Return independent integers, exactly of the discrete Gaussian law of this scale."""
        return draw_normals(self._words, _size(shape), scale).reshape(shape)

    def laplaces(self, shape: Shape, scale: int) -> NDArray[np.int64]:
        """Return independent integers, exactly of the discrete Laplace law of this scale."""
        return draw_laplaces(self._words, _size(shape), scale).reshape(shape)

    def long_normals(self, n: int) -> LongFloats:
        """Return independent normal numbers to ``2**-LONG_BITS``, as sums of two floats."""
        return draw_long(self._words, n)

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
            raise ValueError("n_draws must be an int that is not negative")
        source.n_draws = n_draws
        return source


class Sealed:
    """Holds one array that nobody should see: secret noise, or a state without its noise.

    However it is printed it reads ``<sealed>``. It compares by identity, is no array, no sequence
    and no JSON. Files and pickles carry the value, as a model that goes on needs it: they are as
    private as the rows.

    Parameters
    ----------
    value : ndarray of float64
        Becomes the seal's own: do not keep it.

    Examples
    --------
    >>> secret = Sealed(np.array([0.25, -3.0]))
    >>> secret
    <sealed>
    >>> float(secret.open().sum())
    -2.75
    """

    # No __dict__: `vars` and generic serialisers find nothing.
    __slots__ = ("__weakref__", "_value")

    def __init__(self, value: Floats) -> None:
        if not isinstance(value, np.ndarray) or value.dtype != np.float64:
            raise TypeError("a sealed value must be an array of float64")
        owned = value.flags.owndata and value.flags.writeable and value.flags.c_contiguous
        self._value: Floats | None = value if owned else np.array(value, order="C")

    def open(self) -> Floats:
        """Return the value, read-only.

        Raises
        ------
        ValueError
            It was wiped: zeros in place of noise would protect nobody.
        """
        if self._value is None:
            raise ValueError("this sealed value was wiped")
        view = self._value.view()
        view.flags.writeable = False
        return view

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.open().size

    def wipe(self) -> None:
        """Fill the memory with zeros, also for whoever still holds an opened view."""
        if self._value is not None:
            self._value.fill(0.0)
            self._value = None

    def __repr__(self) -> str:
        return "<sealed>"

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


def _verified(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"noise_seed must be None or an int, got {type(seed).__name__}")
    if not 0 <= seed < 2**128:
        raise ValueError(f"noise_seed must be in 0 .. 2**128 - 1, got {seed}")
    return int(seed)


def _size(shape: Shape) -> int:
    return shape if isinstance(shape, int) else prod(shape)
