"""What erased people would leave behind: their ids, salts and rows, in every usual form.

A marker is looked for as raw bytes, in hexadecimal, in base64 (both alphabets, at each of the three
places in a group) and, if it is text, JSON-escaped, percent-escaped and in UTF-16.
"""

import base64
import html
import json
import secrets
import unicodedata
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from letheon.data import Rows
from letheon.ledger.purge.id_values import IdValues

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


# Below it a text counts only as a word of its own: it may stand in a digest by chance.
_SHORT_TEXT = 12
# A row of few different bytes (zeros, small integers) is no sign of one person.
_FEWEST_VALUES = 8
_LONGEST_ROW = 64
_SHORTEST_ROW = 16
_SHORTEST_NUMBER = 9
_SHORTEST_ENCODED = 8
_MOST_PEOPLE = 5_000
_BLOCK = 1 << 20
_DIGITS = b"0123456789"
_WORD = frozenset(_DIGITS + b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Found(NamedTuple):
    """Where a marker begins, its kind, and which id it is, by number; never the marker itself."""

    offset: int
    kind: str
    id_number: int | None = None


class _Pattern(NamedTuple):
    """One form of one marker."""

    content: bytes
    kind: str
    text: str | None


def _nobody() -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Markers:
    """Texts and bytes that must be nowhere.

    Attributes
    ----------
    texts : tuple of str
        Ids of at least 6 bytes; numbers of at least 9 digits.
    salts, rows : tuple of bytes
        Salts of the commitment; pieces of the values of a row.
    neighbours : callable
        Returns the ids that may stay. An id that is part of a longer one that stays is excused
        where the longer one stands: ``ann@example.org`` in ``joann@example.org``.
    ids : tuple of int or str, or None
        All ids, however short: they are looked for as whole values of data files. None: a purge
        that an earlier version began kept only `texts`.
    """

    texts: tuple[str, ...] = ()
    salts: tuple[bytes, ...] = ()
    rows: tuple[bytes, ...] = ()
    neighbours: Callable[[], Sequence[str]] = field(default=_nobody, repr=False, compare=False)
    ids: tuple[int | str, ...] | None = ()

    @classmethod
    def of(
        cls,
        *,
        ids: Iterable[int | str] = (),
        salts: Iterable[bytes] = (),
        rows: Iterable[bytes] = (),
    ) -> Self:
        """Return the markers: all ids, and what is long enough for a search for bytes."""
        ids = tuple(dict.fromkeys(ids))
        return cls(
            ids=ids,
            texts=tuple(str(value) for value in ids if is_distinctive_id(value)),
            salts=tuple(dict.fromkeys(salt for salt in salts if len(salt) >= _SHORTEST_ROW)),
            rows=tuple(dict.fromkeys(row for row in rows if _is_distinctive(row))),
        )

    def __len__(self) -> int:
        return len(self.texts) + len(self.salts) + len(self.rows)

    def beside(self, neighbours: Callable[[], Sequence[str]]) -> "Markers":
        """Return the same markers, with other people whose longer ids may stay."""
        return replace(self, neighbours=neighbours)

    def without_texts(self, texts: Container[str]) -> "Markers":
        """Return the markers without a search for the bytes of these ids."""
        return replace(self, texts=tuple(text for text in self.texts if text not in texts))

    def to_bytes(self) -> bytes:
        """Return the markers as bytes; they are as secret as what they mark."""
        parts = {
            "texts": list(self.texts),
            "salts": [salt.hex() for salt in self.salts],
            "rows": [row.hex() for row in self.rows],
            "ids": self.ids,
        }
        return json.dumps(parts).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return what `to_bytes` wrote."""
        parts = json.loads(data)
        return cls(
            tuple(parts["texts"]),
            tuple(map(bytes.fromhex, parts["salts"])),
            tuple(map(bytes.fromhex, parts["rows"])),
            ids=None if parts.get("ids") is None else tuple(parts["ids"]),
        )

    @classmethod
    def probe(cls, *, has_short_ids: bool) -> Self:
        """Return markers of nobody: what cannot be searched for them cannot be searched at all."""
        nobody = secrets.token_hex(16)
        return cls(texts=() if has_short_ids else (nobody,), ids=(nobody,))

    @property
    def n_weak(self) -> int:
        """How many ids are looked for as whole values only, and not as bytes."""
        return 0 if self.ids is None else len(self.ids) - len(self.texts)

    @cached_property
    def id_values(self) -> IdValues:
        """The search for ids among the values of data files."""
        others = self.neighbours() if self.n_weak else ()
        return IdValues(self.ids or (), others, frozenset(self.texts))

    @property
    def margin(self) -> int:
        """How many bytes on each side of a piece of data decide about what lies in it."""
        return self._searcher.longest + 256

    def find(self, data: bytes | bytearray | memoryview) -> list[Found]:
        """Return every place at which a marker stands."""
        view = memoryview(data)
        return [
            Found(start, pattern.kind, self._id_numbers.get(pattern.text))
            for start, number in self._searcher.find(view)
            for pattern in (self._patterns[number],)
            if self._counts(view, start, pattern)
        ]

    def _counts(self, data: memoryview, start: int, pattern: _Pattern) -> bool:
        if pattern.text is None:
            return True
        if len(pattern.content) < _SHORT_TEXT and not _is_word(data, start, len(pattern.content)):
            return False
        return not any(
            _stands(data, start, pattern.content, longer)
            for neighbour in self._longer_ids(pattern.text)
            for longer in _text_forms(neighbour)
        )

    def _longer_ids(self, text: str) -> list[str]:
        if text not in self._longer:
            self._longer[text] = [name for name in self.neighbours() if text in name]
        return self._longer[text]

    @cached_property
    def _longer(self) -> dict[str, list[str]]:
        return {}

    @cached_property
    def _id_numbers(self) -> dict[str | None, int]:
        return {text: number for number, text in enumerate(self.texts)}

    @cached_property
    def _patterns(self) -> tuple[_Pattern, ...]:
        texts = [_Pattern(form, "id", text) for text in self.texts for form in _text_forms(text)]
        salts = [_Pattern(form, "salt", None) for salt in self.salts for form in _forms(salt)]
        rows = [_Pattern(form, "row", None) for row in self.rows for form in _forms(row)]
        return tuple({pattern.content: pattern for pattern in texts + salts + rows}.values())

    @cached_property
    def _searcher(self) -> Searcher:
        return Searcher(pattern.content for pattern in self._patterns)


def markers_of(erased: Rows, salts: NDArray[np.uint8], left: Rows) -> Markers:
    """Return the markers of erased rows: what nobody who is left has as well.

    Of more than 5,000 rows every so-many-th is taken for the search for bytes, so that it stays
    quick. As values of data files all ids are looked for.
    """
    step = -(-len(erased) // _MOST_PEOPLE) or 1
    chosen = erased.take(np.arange(0, len(erased), step))
    found = Markers.of(
        ids=chosen.ids.to_list(),
        salts=[bytes(salt) for salt in salts[::step]],
        rows=_row_pieces(chosen.X, left.X),
    )
    return replace(found, ids=tuple(erased.ids.distinct().to_list()))


def _row_pieces(erased: Any, left: Any) -> list[bytes]:
    """The most telling piece of every row; frames and sparse rows are known by id and salt."""
    if not isinstance(erased, np.ndarray) or not len(erased):
        return []
    if erased.dtype.kind in "OU":
        pieces = [str(value).encode()[:_LONGEST_ROW] for value in np.ravel(erased)]
        stays = memoryview("\n".join(str(value) for value in np.ravel(left)).encode())
    else:
        pieces = [_most_telling(row.tobytes()) for row in erased]
        stays = np.ascontiguousarray(left).view(np.uint8).data.cast("B")
    telling = list(dict.fromkeys(piece for piece in pieces if _is_distinctive(piece)))
    shared = _found_in(stays, telling)
    return [piece for piece in telling if piece not in shared]


def _found_in(data: memoryview, pieces: Sequence[bytes]) -> set[bytes]:
    """Which of the pieces stand in the data: whatever stays is no sign of the erased."""
    searcher = Searcher(pieces)
    return {
        pieces[number]
        for start in range(0, len(data), _BLOCK)
        for _, number in searcher.find(data[start : start + _BLOCK + searcher.longest])
    }


def _most_telling(row: bytes) -> bytes:
    places = range(0, max(1, len(row) - _LONGEST_ROW + 1), 8)
    return max((row[place : place + _LONGEST_ROW] for place in places), key=_values)


def _values(data: bytes) -> int:
    return len(set(data))


def _is_distinctive(row: bytes) -> bool:
    return len(row) >= _SHORTEST_ROW and _values(row) >= _FEWEST_VALUES


def is_distinctive_id(value: int | str) -> bool:
    """Whether an id is long enough to mean the person wherever its bytes stand."""
    if not isinstance(value, str):
        return len(str(value)) >= _SHORTEST_NUMBER
    return min(len(value.encode()), len(value.encode("utf-16-le"))) >= SHORTEST


def _is_word(data: memoryview, start: int, length: int) -> bool:
    """Whether no letter or digit stands next to a text, and a number is one as a whole."""
    before = bytes(data[max(0, start - 2) : start])
    after = bytes(data[start + length : start + length + 1])
    if _WORD.intersection(before[-1:] + after):
        return False
    if before[-1:] in (b".", b"-") and not bytes(data[start : start + length]).strip(_DIGITS):
        # Decimals of a longer number, or a negative one: "0.5", "-5", but "user-5".
        is_after_word = bool(_WORD.intersection(before[:-1]))
        return is_after_word if before.endswith(b"-") else not before[:-1].isdigit()
    return True


def _stands(data: memoryview, start: int, part: bytes, whole: bytes) -> bool:
    """Return whether `part`, found at `start`, stands there as a part of `whole`."""
    place = whole.find(part)
    while place >= 0:
        begin = start - place
        if begin >= 0 and len(whole) > len(part) and data[begin : begin + len(whole)] == whole:
            return True
        place = whole.find(part, place + 1)
    return False


@lru_cache(maxsize=1024)
def _text_forms(text: str) -> tuple[bytes, ...]:
    forms = [form for spelled in _spellings(text) for form in _written(spelled)]
    return tuple(form for form in dict.fromkeys(forms) if len(form) >= SHORTEST)


def _spellings(text: str) -> set[str]:
    """Return a text in the forms of Unicode in which it is written."""
    return {text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD"))}


def _written(text: str) -> Iterator[bytes]:
    utf8, escaped = text.encode(), json.dumps(text)[1:-1]
    percent = quote(text, safe="")
    texts = (
        text,
        escaped,
        escaped.replace("/", "\\/"),
        json.dumps(text, ensure_ascii=False)[1:-1],
        percent,
        percent.lower() if text == text.lower() else percent,
        quote(text),
        html.escape(text),
    )
    yield from (one.encode() for one in texts)
    yield from (text.encode("utf-16-le"), text.encode("utf-16-be"), *_encoded(utf8))


def _forms(data: bytes) -> tuple[bytes, ...]:
    return (data, *_encoded(data))


def _encoded(data: bytes) -> tuple[bytes, ...]:
    """Hexadecimal and base64 forms of some bytes, whatever stands before and after them."""
    forms = [data.hex().encode(), data.hex().upper().encode()]
    for before in range(3):
        first = -(-8 * before // 6)
        last = 8 * (before + len(data)) // 6
        padded = bytes(before) + data
        forms += [
            base64.b64encode(padded)[first:last],
            base64.urlsafe_b64encode(padded)[first:last],
        ]
    return tuple(form for form in dict.fromkeys(forms) if len(form) >= _SHORTEST_ENCODED)
