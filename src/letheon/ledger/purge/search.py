"""Search for many byte strings at once, at the speed of the disk.

A string of L bytes that lies anywhere in a buffer covers one of the windows of w bytes that begin
at multiples of s, as soon as ``L >= w + s - 1``. So only those windows are looked up, in a hash
table of the s windows of every string; a window that is found is compared byte by byte. Long
strings use ``w = s = 8``: one look-up for eight bytes of data, however many strings there are.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["SHORTEST", "Searcher"]

SHORTEST = 6
_MIX = np.uint64(0x9E37_79B9_7F4A_7C15)
_FEWEST_BITS, _MOST_BITS = 12, 26


class _Shape(NamedTuple):
    """Windows of `width` bytes that begin at multiples of `stride`."""

    width: int
    stride: int

    @property
    def needs(self) -> int:
        return self.width + self.stride - 1


# In order of speed; a string goes to the first whose need it meets.
_SHAPES = (_Shape(8, 8), _Shape(8, 2), _Shape(4, 2))


class Searcher:
    """Find every occurrence of any of these strings, of at least `SHORTEST` bytes each.

    Parameters
    ----------
    strings : iterable of bytes
        What to look for; a string is known by its number in this order.
    """

    def __init__(self, strings: Iterable[bytes]) -> None:
        self.strings = tuple(strings)
        if any(len(string) < SHORTEST for string in self.strings):
            raise ValueError(f"a string to look for has at least {SHORTEST} bytes")
        self.longest = max(map(len, self.strings), default=0)
        numbers: dict[_Shape, list[int]] = {}
        for number, string in enumerate(self.strings):
            shape = next(shape for shape in _SHAPES if len(string) >= shape.needs)
            numbers.setdefault(shape, []).append(number)
        self._windows = [_Windows(shape, self.strings, group) for shape, group in numbers.items()]

    def find(self, data: bytes | bytearray | memoryview) -> list[tuple[int, int]]:
        """Return where each string begins, and its number: sorted, without repeats."""
        view = memoryview(data)
        found = {
            (start, number)
            for windows in self._windows
            for start, number in windows.candidates(view)
            if view[start : start + len(self.strings[number])] == self.strings[number]
        }
        return sorted(found)


class _Windows:
    """The windows of some strings, in a table that is asked for many windows at once."""

    def __init__(self, shape: _Shape, strings: Sequence[bytes], numbers: Sequence[int]) -> None:
        self.shape = shape
        entries = [
            (string[place : place + shape.width], number, place)
            for number in numbers
            for string in (strings[number],)
            # The end of an id differs from its neighbours' more than its beginning does.
            for place in range(len(string) - shape.needs, len(string) - shape.width + 1)
        ]
        keys = np.frombuffer(b"".join(key for key, _, _ in entries), self._dtype).astype(np.uint64)
        order = np.argsort(keys, kind="stable")
        self._keys = keys[order]
        self._numbers = np.array([number for _, number, _ in entries], np.int64)[order]
        self._places = np.array([place for _, _, place in entries], np.int64)[order]
        self._lengths = np.array([len(strings[number]) for number in self._numbers], np.int64)
        bits = min(max(_FEWEST_BITS, len(entries).bit_length() + 6), _MOST_BITS)
        self._shift = np.uint64(64 - bits)
        self._seen = np.zeros(1 << bits, np.bool_)
        self._seen[self._hashes(self._keys)] = True

    @property
    def _dtype(self) -> np.dtype[np.uint64] | np.dtype[np.uint32]:
        return np.dtype("<u8") if self.shape.width == 8 else np.dtype("<u4")

    def _hashes(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        return ((keys * _MIX) >> self._shift).view(np.int64)

    def candidates(self, data: memoryview) -> list[tuple[int, int]]:
        """Return begin and number of every string of which one window is where it should be."""
        found: list[tuple[int, int]] = []
        for begin in range(0, self.shape.width, self.shape.stride):
            count = (len(data) - begin) // self.shape.width
            if count > 0:
                windows = np.frombuffer(data, self._dtype, count, begin)
                found += self._looked_up(windows.astype(np.uint64, copy=False), begin, len(data))
        return found

    def _looked_up(
        self, windows: NDArray[np.uint64], begin: int, length: int
    ) -> list[tuple[int, int]]:
        likely = np.flatnonzero(self._seen[self._hashes(windows)])
        wanted = windows[likely]
        first = np.searchsorted(self._keys, wanted, "left")
        counts = np.searchsorted(self._keys, wanted, "right") - first
        # One entry per pair of a place in the data and a string that has this window.
        entries = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        starts = np.repeat(likely * self.shape.width + begin, counts) - self._places[entries]
        fits = (starts >= 0) & (starts + self._lengths[entries] <= length)
        numbers = self._numbers[entries[fits]]
        return list(zip(starts[fits].tolist(), numbers.tolist(), strict=True))
