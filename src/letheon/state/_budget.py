"""How much memory a file may make its reader take, counted before it is taken.

A few bytes can ask for gigabytes: a wide array of strings, a sparse matrix with a billion empty
rows, the same tensor used a thousand times. So every size is computed in Python integers and taken
from one budget first; NumPy, pandas and compiled code see it only afterwards. The constants are
upper bounds of what CPython takes for an object in the tree and in the value together
(`tests/state/test_limits.py` compares them with measured peaks).
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.exceptions import CorruptFileError, MemoryLimitError

BASE = 64 << 20
"""Bytes that every file may take, however small it is."""
PER_BYTE = 4
"""Bytes that may be taken for each byte of the file."""
NATIVE_PER_BYTE = 16
"""The same for the compiled forest."""
UNLIMITED = 1 << 62
"""A `max_memory` for bytes that this installation wrote itself."""

MAX_DIMENSIONS = 64
MAX_SIZE = 1 << 62
# More values than this with one hash make building a set or dict take quadratic time.
_MAX_EQUAL_HASHES = 64
_STEPS_PER_BYTE = 16

# Bytes of objects: a number; the rest of a text; an item of a list or tuple, of a set, of a dict
# with str keys, of another dict; and what holds them.
ATOM = 40
TEXT = 96
ITEM = 44
SET_ITEM = 160
RECORD_ITEM = 160
PAIRS_ITEM = 210
CONTAINER = 280
ARRAY = 400
INSTANCE = 700


class MemoryBudget:
    """Counts the memory that one file takes, and refuses before it is too much.

    Parameters
    ----------
    size : int
        Bytes of the file.
    max_memory : int, optional
        The limit in bytes. By default 64 MiB and 4 bytes per byte of the file, for compiled
        forests 64 MiB and 16 bytes per byte.
    """

    def __init__(self, size: int, max_memory: int | None = None) -> None:
        if max_memory is not None and (type(max_memory) is not int or max_memory < 1):
            raise ValueError(f"max_memory={max_memory!r}; expected a number of bytes, or None")
        self.limit = BASE + PER_BYTE * size if max_memory is None else max_memory
        self.native_limit = BASE + NATIVE_PER_BYTE * size if max_memory is None else max_memory
        self.used = 0
        self.native_used = 0

    def take(self, n_bytes: int, what: str) -> None:
        """Count bytes that are about to be allocated.

        Raises
        ------
        MemoryLimitError
            If that would be more than the limit; nothing was allocated then.
        """
        self._require(self.used + n_bytes, self.limit, what)
        self.used += n_bytes

    def take_native(self, n_bytes: int, n_steps: int, what: str) -> None:
        """Count bytes and steps of compiled code of this package; a few steps for each byte."""
        self.native_used += max(n_bytes, n_steps // _STEPS_PER_BYTE)
        self._require(self.used + self.native_used, self.native_limit, what)

    def give_back(self, n_bytes: int) -> None:
        """Say that memory is free again."""
        self.used -= n_bytes

    def _require(self, needed: int, limit: int, what: str) -> None:
        if needed > limit:
            raise MemoryLimitError(
                f"reading {what} would take at least {needed:,} bytes of memory, and the limit is "
                f"{limit:,} bytes; if you know where the data come from, pass "
                f"max_memory={needed + needed // 2} or more"
            )


def check_shape(shape: Iterable[Any], itemsize: int) -> int:
    """Return the number of bytes of an array, in Python integers.

    Raises
    ------
    CorruptFileError
        If NumPy could not index such an array.
    """
    dimensions = tuple(shape)
    if len(dimensions) > MAX_DIMENSIONS:
        raise CorruptFileError(f"not a valid array: {len(dimensions)} dimensions")
    span = max(itemsize, 1)
    total = itemsize
    for n in dimensions:
        if type(n) is not int or n < 0:
            raise CorruptFileError("not a valid array: a dimension is no natural number")
        # Strides of an empty array are computed too, so no factor may be beyond what they hold.
        span *= max(n, 1)
        total *= n
        if span > MAX_SIZE:
            raise CorruptFileError("not a valid array: too many elements")
    return total


def array_bytes(values: Any) -> int:
    """Return the bytes of all arrays in plain values: lists, tuples, dicts, arrays."""
    total, stack = 0, [values]
    while stack:
        value = stack.pop()
        if isinstance(value, np.ndarray):
            total += value.nbytes
        elif isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list | tuple):
            stack.extend(value)
    return total


def require_distinct_hashes(values: list[Any] | NDArray[Any]) -> None:
    """Refuse keys that were chosen to have one hash: a dict of them is slow to build.

    Raises
    ------
    CorruptFileError
        If more than 64 keys have the same hash.
    """
    if len(values) <= _MAX_EQUAL_HASHES:
        return
    hashes = np.sort(np.fromiter(map(hash, values), np.int64, len(values)))
    if np.any(hashes[_MAX_EQUAL_HASHES:] == hashes[:-_MAX_EQUAL_HASHES]):
        raise CorruptFileError(f"more than {_MAX_EQUAL_HASHES} keys have the same hash")
