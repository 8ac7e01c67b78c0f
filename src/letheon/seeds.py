"""Keyed randomness: every random decision is a pure function of a seed and its subject.

The state of an ordinary generator depends on all earlier rows. Here a decision about an id, a slice
or a step is ``keyed_hash(seed, purpose, ...)``. So a model that forgot a row and a model that was
never trained on it make the same decisions about all other rows.

The hash, byte by byte
----------------------
``keyed_hash(seed, purpose, *parts)`` is SipHash-2-4 with 64 bits of output (Aumasson and
Bernstein, 2012).

* Key: the seed, ``0 <= seed < 2**128``, as 16 bytes little-endian.
* Message: ``frame(purpose) + frame(part_1) + frame(part_2) + ...``, where

  ========= ====== ============================== ==========================
  value     tag    length                         payload
  ========= ====== ============================== ==========================
  ``int``   ``i``  none                           8 bytes, two's complement,
                                                  big-endian
  ``str``   ``s``  4 bytes, big-endian, of the    UTF-8, not normalised
                   payload in bytes
  ``bytes`` ``b``  4 bytes, big-endian            the bytes themselves
  ========= ====== ============================== ==========================

  No frame is a prefix of another frame, so different lists of parts have different messages;
  ``1``, ``"1"`` and ``b"1"`` differ. A ``bool`` is rejected.
* SipHash reads the message as 8-byte little-endian words; the last word is filled with zeros
  and has the length of the message modulo 256 as its top byte.

``mix64(key, bits)`` is a faster hash for inner loops, ``f(key ^ f(bits + 0x9E3779B97F4A7C15))``
modulo ``2**64``, where ``f`` is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)::

    f(z):  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
           z = (z ^ (z >> 27)) * 0x94D049BB133111EB
           return z ^ (z >> 31)

``mix32(key, bits)`` puts 32-bit values, such as the bits of floats, into a random order. It is
Wellons' lowbias32 with the lower half of the 64-bit key mixed in before it, and the upper half and
another multiplication after it, all modulo ``2**32``::

    x = bits ^ lo
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16) ^ hi
    x = (x ^ (x >> 15)) * 0x9E3779B1
    return x ^ (x >> 16)

The compiled core (`letheon._core`) and the NumPy code below give the same bits; golden vectors
in the tests check both. These rules are frozen: changing them changes every digest.
"""

import secrets
import struct
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from letheon.purposes import Purpose

try:
    from letheon import _core
except ImportError:  # without the compiled core: slower, same results
    _core = None  # type: ignore[assignment]

__all__ = [
    "Purpose",
    "keyed_hash",
    "keyed_hash_ints",
    "keyed_hash_texts",
    "library_seed",
    "mix32",
    "mix64",
    "seed_from",
]

_Part = int | str | bytes
_UInt32Array = npt.NDArray[np.uint32]
_UInt64Array = npt.NDArray[np.uint64]
_Scalar = TypeVar("_Scalar", bound=np.generic)

_SEED_BITS = 128
_MASK = 2**64 - 1
_MAX_FRAME = 2**32 - 1
# "somepseudorandomlygeneratedbytes" in big-endian words: SipHash's initial state.
_SIP_INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_LOWBIAS_1 = np.uint32(0x7FEB352D)
_LOWBIAS_2 = np.uint32(0x846CA68B)
_GOLDEN_32 = np.uint32(0x9E3779B1)
# Bytes of messages in one block of the NumPy code: its temporary arrays then stay in the cache.
_BLOCK_BYTES = 2**19


def keyed_hash(seed: int, purpose: str, *parts: int | str | bytes) -> int:
    """Hash `purpose` and `parts` under the key `seed` to 64 bits.

    Parameters
    ----------
    seed : int
        The key, ``0 <= seed < 2**128``.
    purpose : str
        Purpose of the decision; within letheon, a member of `Purpose`.
    *parts : int, str or bytes
        Subject of the decision, such as an id. Ints must fit in 64 bits; ``1`` and ``"1"`` differ.

    Returns
    -------
    int
        ``SipHash-2-4(key = seed, message = frame(purpose) + frame(part) + ...)``, in
        ``0 .. 2**64 - 1``; the module docstring defines the frames.

    Examples
    --------
    >>> keyed_hash(0, "shard", 17)
    9376836954017881026
    >>> keyed_hash(0, "shard", "17") == keyed_hash(0, "shard", 17)
    False
    """
    key, message = _seed_bytes(seed), _frame_message(purpose, parts)
    return _siphash24(key, message) if _core is None else _core.siphash24(key, message)


def keyed_hash_ints(
    seed: int, purpose: str, values: npt.NDArray[np.int64], *parts: int | str | bytes
) -> npt.NDArray[np.uint64]:
    """Hash many ints with `keyed_hash`.

    Element ``k`` of the result is ``keyed_hash(seed, purpose, *parts, values[k])``.

    Parameters
    ----------
    seed : int
        The key, ``0 <= seed < 2**128``.
    purpose : str
        Purpose of the decisions.
    values : ndarray of int64, shape (n,)
        The ints, each the last part of its message.
    *parts : int, str or bytes
        Parts that all messages share, before the int.

    Returns
    -------
    ndarray of uint64, shape (n,)

    Examples
    --------
    >>> keyed_hash_ints(7, "shard", np.array([17, 204])) % np.uint64(5)
    array([4, 3], dtype=uint64)
    """
    key, prefix = _seed_bytes(seed), _frame_message(purpose, parts)
    values = _check_vector(values, np.int64, "values")
    if _core is not None:
        return _core.hash_ints(key, prefix, values)
    return _hash_ints_numpy(key, prefix, values)


def keyed_hash_texts(
    seed: int,
    purpose: str,
    blob: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
    *parts: int | str | bytes,
) -> npt.NDArray[np.uint64]:
    """Hash many texts with `keyed_hash`.

    Element ``k`` of the result is ``keyed_hash(seed, purpose, *parts, text_k)``.

    Parameters
    ----------
    seed : int
        The key, ``0 <= seed < 2**128``.
    purpose : str
        Purpose of the decisions.
    blob : ndarray of uint8
        The UTF-8 bytes of all texts; text ``k`` is ``blob[offsets[k]:offsets[k + 1]]``.
    offsets : ndarray of int64, shape (n + 1,)
        Start and end of each text in `blob`; never decreasing.
    *parts : int, str or bytes
        Parts that all messages share, before the text.

    Returns
    -------
    ndarray of uint64, shape (n,)

    Examples
    --------
    >>> blob = np.frombuffer("c-17c-204".encode(), dtype=np.uint8)
    >>> hashes = keyed_hash_texts(7, "shard", blob, np.array([0, 4, 9]))
    >>> int(hashes[1]) == keyed_hash(7, "shard", "c-204")
    True
    """
    key, prefix = _seed_bytes(seed), _frame_message(purpose, parts)
    blob, offsets = (
        _check_vector(blob, np.uint8, "blob"),
        _check_vector(offsets, np.int64, "offsets"),
    )
    _verify_offsets(offsets, blob.size)
    if _core is not None:
        return _core.hash_texts(key, prefix, blob, offsets)
    return _hash_texts_numpy(key, prefix, blob, offsets)


def mix64(
    key: int | npt.NDArray[np.uint64], bits: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Hash `bits` with `key`, element by element; a fast hash for inner loops.

    Parameters
    ----------
    key : int or ndarray of uint64
        One key of 64 bits, usually a `keyed_hash`, or one per element (broadcast against `bits`).
    bits : ndarray of uint64
        The values, for instance the bit patterns of floats.

    Returns
    -------
    ndarray of uint64
        ``f(key ^ f(bits + 0x9E3779B97F4A7C15))`` modulo ``2**64``, where ``f`` is the finaliser of
        SplitMix64. For one key this is a bijection of the 64-bit values: distinct values never
        collide. The results look random, but this is not a cryptographic function.

    Examples
    --------
    >>> mix64(keyed_hash(7, "epoch", 3), np.arange(2, dtype=np.uint64))
    array([13859472909994731424, 12237039881345208923], dtype=uint64)
    """
    _verify_dtype(bits, np.uint64, "bits")
    if isinstance(key, np.ndarray):
        _verify_dtype(key, np.uint64, "key")
        keys, values = np.broadcast_arrays(key, bits)
        return _mix64_flat(np.ravel(keys), np.ravel(values)).reshape(values.shape)
    return _mix64_flat(_verify_key(key), np.ravel(bits)).reshape(bits.shape)


def mix32(key: int, bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Hash 32-bit `bits` with `key`, element by element; used to order float32 values at random.

    Parameters
    ----------
    key : int
        One key of 64 bits.
    bits : ndarray of uint32
        The values, for instance the bit patterns of float32 numbers.

    Returns
    -------
    ndarray of uint32
        The hashes; the module docstring has the formula. For every key this is a bijection of the
        32-bit values: distinct values never tie. The results look random, but this is not a
        cryptographic function.

    Examples
    --------
    >>> mix32(keyed_hash(7, "tree", 3), np.arange(2, dtype=np.uint32))
    array([ 122611108, 3565037292], dtype=uint32)
    """
    _verify_dtype(bits, np.uint32, "bits")
    checked_key, flat = _verify_key(key), np.ascontiguousarray(np.ravel(bits))
    mixed = _mix32_numpy(checked_key, flat) if _core is None else _core.mix32(checked_key, flat)
    return mixed.reshape(bits.shape)


def seed_from(random_state: int | np.random.RandomState | np.random.Generator | None) -> int:
    """Return a seed of 128 bits from scikit-learn's `random_state`.

    Parameters
    ----------
    random_state : None, int, RandomState or Generator
        An int from 0 to ``2**128 - 1`` is itself the seed, so ``random_state=model.seed_``
        reproduces a model. From a generator, 16 bytes are drawn. None draws them from the operating
        system.

    Returns
    -------
    int
        In ``0 .. 2**128 - 1``.

    Raises
    ------
    TypeError
        `random_state` is of another kind.

    Examples
    --------
    >>> seed_from(42)
    42
    >>> seed_from(np.random.default_rng(0)) == seed_from(np.random.default_rng(0))
    True
    """
    if random_state is None:
        return secrets.randbits(_SEED_BITS)
    if isinstance(random_state, np.random.RandomState | np.random.Generator):
        return int.from_bytes(random_state.bytes(_SEED_BITS // 8), "little")
    if isinstance(random_state, bool) or not isinstance(random_state, int | np.integer):
        raise TypeError(
            "random_state must be None, an int, a numpy RandomState or a numpy Generator, "
            f"got {random_state!r} of type {type(random_state).__name__}"
        )
    return _check_seed_range(int(random_state), "random_state")


def library_seed(seed: int, purpose: str, *parts: int | str | bytes) -> int:
    """Return a seed of 32 bits from `keyed_hash`, for a generator of scikit-learn or NumPy.

    Parameters
    ----------
    seed : int
        The key, ``0 <= seed < 2**128``.
    purpose : str
        Purpose of the generator.
    *parts : int, str or bytes
        The part of the training that uses the generator, such as shard, slice, epoch or node.

    Returns
    -------
    int
        ``keyed_hash(seed, purpose, *parts) mod 2**32``.

    Examples
    --------
    >>> library_seed(7, Purpose.STAGE, 0, 2)
    1947213295
    """
    return keyed_hash(seed, purpose, *parts) & 0xFFFFFFFF


def _check_integer(value: Any, name: str) -> int:
    """Return `value` as an int, or raise TypeError if it is a bool or another type."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an int, got {value!r} of type {type(value).__name__}")
    return int(value)


def _check_seed_range(seed: int, name: str) -> int:
    """Return `seed`, or raise if it is negative or has more than 128 bits."""
    if not 0 <= seed < 2**_SEED_BITS:
        raise ValueError(f"{name} must be from 0 to 2**{_SEED_BITS} - 1, got {seed}")
    return seed


def _verify_key(key: Any) -> int:
    """Return `key` as an int, or raise if it is negative or has more than 64 bits."""
    checked_key = _check_integer(key, "key")
    if not 0 <= checked_key <= _MASK:
        raise ValueError(f"key must be from 0 to 2**64 - 1, got {checked_key}")
    return checked_key


def _seed_bytes(seed: int) -> bytes:
    """Return the seed as SipHash's key of 16 bytes, or raise if the seed is invalid."""
    return _check_seed_range(_check_integer(seed, "seed"), "seed").to_bytes(16, "little")


def _frame_part(part: _Part) -> bytes:
    """Return the frame of one part: tag, length and payload, as in the module docstring."""
    if isinstance(part, str):
        payload = part.encode()
        return b"s" + len(payload).to_bytes(4, "big") + payload
    if isinstance(part, bytes):
        return b"b" + len(part).to_bytes(4, "big") + part
    value = _check_integer(part, "a part that is neither str nor bytes")
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"an int part must fit in 64 bits (int64), got {value}")
    return b"i" + value.to_bytes(8, "big", signed=True)


def _frame_message(purpose: str, parts: tuple[_Part, ...]) -> bytes:
    """Return the frames of `purpose` and `parts`, one after the other."""
    if not isinstance(purpose, str):
        raise TypeError(f"purpose must be a str, got {purpose!r}")
    return _frame_part(purpose) + b"".join(map(_frame_part, parts))


def _verify_dtype(array: Any, dtype: type[np.generic], name: str) -> None:
    """Raise unless `array` has exactly this dtype, because a silent cast would change hashes."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        actual = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise TypeError(f"{name} must be an array of {dtype.__name__}, got {actual}")


def _check_vector(
    array: npt.NDArray[_Scalar], dtype: type[_Scalar], name: str
) -> npt.NDArray[_Scalar]:
    """Return `array` in contiguous memory, or raise unless it is a vector of this dtype."""
    _verify_dtype(array, dtype, name)
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {array.shape}")
    return np.ascontiguousarray(array)


def _verify_offsets(offsets: npt.NDArray[np.int64], size: int) -> None:
    """Raise unless `offsets` divide a blob of `size` bytes into texts that fit in a frame."""
    if offsets.size == 0:
        raise ValueError("offsets must have n + 1 numbers for n texts, got none")
    lengths = np.diff(offsets)
    if offsets[0] < 0 or offsets[-1] > size or np.any(lengths < 0):
        raise ValueError(
            f"offsets must not decrease and must be from 0 to {size}, the size of the blob"
        )
    if np.any(lengths > _MAX_FRAME):
        raise ValueError(
            f"each text must have at most {_MAX_FRAME} bytes, got {int(lengths.max())}"
        )


def _siphash24(key: bytes, message: bytes) -> int:
    """Return SipHash-2-4 of one message, in plain Python."""
    k0, k1 = struct.unpack("<2Q", key)
    v0, v1, v2, v3 = (c ^ k for c, k in zip(_SIP_INITIAL, (k0, k1, k0, k1), strict=True))
    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v0, v1, v2, v3 = _sip_rounds(2, v0, v1, v2, v3 ^ word)
        v0 ^= word
    v0, v1, v2, v3 = _sip_rounds(4, v0, v1, v2 ^ 0xFF, v3)
    return v0 ^ v1 ^ v2 ^ v3


def _sip_rounds(count: int, v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    """Apply SipRound `count` times to Python ints."""
    for _ in range(count):
        v0 = (v0 + v1) & _MASK
        v1 = ((v1 << 13 | v1 >> 51) & _MASK) ^ v0
        v0 = (v0 << 32 | v0 >> 32) & _MASK
        v2 = (v2 + v3) & _MASK
        v3 = ((v3 << 16 | v3 >> 48) & _MASK) ^ v2
        v0 = (v0 + v3) & _MASK
        v3 = ((v3 << 21 | v3 >> 43) & _MASK) ^ v0
        v2 = (v2 + v1) & _MASK
        v1 = ((v1 << 17 | v1 >> 47) & _MASK) ^ v2
        v2 = (v2 << 32 | v2 >> 32) & _MASK
    return v0, v1, v2, v3


def _siphash24_numpy(key: bytes, words: _UInt64Array) -> _UInt64Array:
    """Return SipHash-2-4 of n padded messages of equal length.

    `words` has the shape (n_words, n), with one message per column.
    """
    k0, k1 = struct.unpack("<2Q", key)
    v0, v1, v2, v3 = (
        np.full(words.shape[1], c ^ k, dtype=np.uint64)
        for c, k in zip(_SIP_INITIAL, (k0, k1, k0, k1), strict=True)
    )
    for word in words:
        v3 ^= word
        _sip_rounds_numpy(2, v0, v1, v2, v3)
        v0 ^= word
    v2 ^= np.uint64(0xFF)
    _sip_rounds_numpy(4, v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


def _rotate_left(values: _UInt64Array, bits: int) -> None:
    """Rotate every element to the left, in place."""
    low = values >> (64 - bits)
    values <<= bits
    values |= low


def _sip_rounds_numpy(
    count: int, v0: _UInt64Array, v1: _UInt64Array, v2: _UInt64Array, v3: _UInt64Array
) -> None:
    """Apply SipRound `count` times to arrays, in place."""
    for _ in range(count):
        _half_round(v0, v1, v2, v3, 13, 16)
        _half_round(v2, v1, v0, v3, 17, 21)


def _half_round(
    a: _UInt64Array, b: _UInt64Array, c: _UInt64Array, d: _UInt64Array, left: int, right: int
) -> None:
    """Apply half of SipRound in place.

    The halves differ only in the order of the arguments and in the rotations.
    """
    a += b
    _rotate_left(b, left)
    b ^= a
    _rotate_left(a, 32)
    c += d
    _rotate_left(d, right)
    d ^= c


def _to_words(messages: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]) -> _UInt64Array:
    """Return zero-filled messages (rows of bytes) as SipHash's words, one message per column."""
    messages[:, -1] = lengths & 0xFF
    return np.ascontiguousarray(messages.view("<u8").T, dtype=np.uint64)


def _hash_ints_numpy(key: bytes, prefix: bytes, values: npt.NDArray[np.int64]) -> _UInt64Array:
    """Return the same hashes as `hash_ints` of the compiled core, computed with NumPy."""
    out = np.empty(values.size, dtype=np.uint64)
    head = np.frombuffer(prefix + b"i", dtype=np.uint8)
    length = head.size + 8
    width = length // 8 * 8 + 8
    rows = max(1, _BLOCK_BYTES // width)
    for start in range(0, values.size, rows):
        block = values[start : start + rows]
        messages = np.zeros((block.size, width), dtype=np.uint8)
        messages[:, : head.size] = head
        messages[:, head.size : length] = block.astype(">i8").view(np.uint8).reshape(-1, 8)
        words = _to_words(messages, np.full(block.size, length))
        out[start : start + rows] = _siphash24_numpy(key, words)
    return out


def _hash_texts_numpy(
    key: bytes, prefix: bytes, blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
) -> _UInt64Array:
    """Return the same hashes as `hash_texts` of the compiled core, computed with NumPy."""
    out = np.empty(offsets.size - 1, dtype=np.uint64)
    head = np.frombuffer(prefix + b"s", dtype=np.uint8)
    lengths = np.diff(offsets)
    for rows, width in _iter_blocks(head.size + 4 + lengths):
        messages = _text_messages(head, width, blob, offsets[rows], lengths[rows])
        out[rows] = _siphash24_numpy(key, _to_words(messages, head.size + 4 + lengths[rows]))
    return out


def _iter_blocks(lengths: npt.NDArray[np.int64]) -> Iterator[tuple[npt.NDArray[np.intp], int]]:
    """Yield blocks of messages with equal padded length: their positions, and this length."""
    if lengths.size == 0:
        return
    widths = lengths // 8 * 8 + 8
    order = np.argsort(widths, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(widths[order])) + 1):
        width = int(widths[group[0]])
        step = max(1, _BLOCK_BYTES // width)
        for start in range(0, group.size, step):
            yield group[start : start + step], width


def _text_messages(
    head: npt.NDArray[np.uint8],
    width: int,
    blob: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> npt.NDArray[np.uint8]:
    """Return one row of `width` bytes per message: head, length, text, and zeros to fill."""
    messages = np.zeros((starts.size, width), dtype=np.uint8)
    begin = head.size + 4
    messages[:, : head.size] = head
    messages[:, head.size : begin] = lengths.astype(">u4").view(np.uint8).reshape(-1, 4)
    columns = np.arange(lengths.max())
    inside = columns < lengths[:, None]
    messages[:, begin : begin + columns.size][inside] = blob[(starts[:, None] + columns)[inside]]
    return messages


def _mix64_flat(key: int | _UInt64Array, bits: _UInt64Array) -> _UInt64Array:
    """Return `mix64` of a flat array, computed by the compiled core or by NumPy."""
    if _core is None:
        return _mix64_numpy(key, bits)
    bits = np.ascontiguousarray(bits)
    if isinstance(key, np.ndarray):
        return _core.mix64_pairs(np.ascontiguousarray(key), bits)
    return _core.mix64(key, bits)


def _mix64_numpy(key: int | _UInt64Array, bits: _UInt64Array) -> _UInt64Array:
    """Return the same as `mix64` or `mix64_pairs` of the compiled core, computed with NumPy."""
    keys = key if isinstance(key, np.ndarray) else np.uint64(key)
    return _finalise_bits(keys ^ _finalise_bits(bits + _GOLDEN_GAMMA))


def _finalise_bits(z: _UInt64Array) -> _UInt64Array:
    """Return SplitMix64's finaliser (Stafford's variant 13) of every element."""
    z = (z ^ (z >> np.uint64(30))) * _MULTIPLIER_1
    z = (z ^ (z >> np.uint64(27))) * _MULTIPLIER_2
    return z ^ (z >> np.uint64(31))


def _mix32_numpy(key: int, bits: _UInt32Array) -> _UInt32Array:
    """Return the same as `mix32` of the compiled core, computed with NumPy."""
    low, high = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
    x = bits ^ low
    x = (x ^ (x >> np.uint32(16))) * _LOWBIAS_1
    x = (x ^ (x >> np.uint32(15))) * _LOWBIAS_2
    x = x ^ (x >> np.uint32(16)) ^ high
    x = (x ^ (x >> np.uint32(15))) * _GOLDEN_32
    return x ^ (x >> np.uint32(16))
