"""Two searches for erased people: for strings in bytes, and for ids among values of data files.

A short id occurs in many columns by chance. It counts as found if its column contains ids, which
means that nearly all other values are known ids too, more than chance explains. In other columns
the id is ambiguous, and the file counts as not searched, never as clean.
"""

import base64
import html
import json
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

SHORTEST = 6
_MIX = np.uint64(0x9E37_79B9_7F4A_7C15)
_FEWEST_BITS, _MOST_BITS = 12, 26
_SHORTEST_ENCODED = 8
# A row with few different bytes (zeros, small integers) does not identify a person.
_FEWEST_VALUES = 8
_LONGEST_ROW = 64
SHORTEST_ROW = 16
_BLOCK = 1 << 20
_DIGITS = b"0123456789"
_LETTERS = frozenset(_DIGITS + b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")

Key = int | str
Chunk: TypeAlias = tuple[str, Sequence[Any] | NDArray[Any]]
"""Name of a column and some of its values."""
FREE_SPACE = "\0free-space"
AMBIGUOUS = "ambiguous-value"

_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,2})?")
# Parts of a number or a timestamp are not separate values.
_ONE_VALUE = re.compile(
    r"[+-]?[0-9]*\.?[0-9]*([eE][+-]?[0-9]+)?"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]{4,18}(Z|[+-][0-9:]{2,5})?)?"
)
# Digits in groups of three; a single point is a decimal point.
_GROUPED = re.compile(r"\b[0-9]{1,3}(?:(?:[,'\u2019\s_][0-9]{3})+|(?:\.[0-9]{3}){2,})\b")
_NO_DIGIT = re.compile(r"[^0-9]")
_EXPONENT = re.compile(r"\b[0-9](?:\.[0-9]{0,40})?[eE]\+?[0-9]{1,2}\b")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)")
_SPELLED = re.compile(r"\\|[0-9][,.'\u2019\s_][0-9]{3}|[0-9][eE]\+?[0-9]|[0-9]T[0-9]")
_TIME_MARK = re.compile(r"(?<=[0-9])T(?=[0-9])")
# A decimal fraction is one word.
_WORD = re.compile(r"(?<![^\W_])[0-9]+\.[0-9]+(?![^\W_])|[^\W_]+")
_UNDECODED = re.compile("[\udc80-\udcff]")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")
_QUOTES = "\"'`"
_FEWEST_IDS = 3
_MOST_CHANCE = math.log(1e-9)
_NEARLY_ALL = 0.9
_FEWEST_COVERED = 20
_SHORTEST_CODE = 4
# Ids up to this many times their count look like row numbers, which any file may contain.
_NUMBERING = 4
_MOST_PATTERNS = 200


class UnsearchableError(Exception):
    """A file cannot be searched completely; `reason` is a code for the cause."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _WindowShape(NamedTuple):
    """Width of a window (a piece of a string) in bytes, and distance between window starts."""

    width: int
    stride: int

    @property
    def needs(self) -> int:
        return self.width + self.stride - 1


# Fastest first; a string uses the first shape that it is long enough for.
_SHAPES = (_WindowShape(8, 8), _WindowShape(8, 2), _WindowShape(4, 2))


class Searcher:
    """A search for all occurrences of strings that have at least `SHORTEST` bytes.

    Parameters
    ----------
    strings : iterable of bytes
        Strings to search for; results refer to them by index.
    """

    def __init__(self, strings: Iterable[bytes]) -> None:
        self.strings = tuple(strings)
        if any(len(string) < SHORTEST for string in self.strings):
            raise ValueError(
                f"a string to search for is too short; expected at least {SHORTEST} bytes"
            )
        self.longest = max(map(len, self.strings), default=0)
        numbers: dict[_WindowShape, list[int]] = {}
        for number, string in enumerate(self.strings):
            shape = next(shape for shape in _SHAPES if len(string) >= shape.needs)
            numbers.setdefault(shape, []).append(number)
        self._windows = [_Windows(shape, self.strings, group) for shape, group in numbers.items()]

    def find(self, data: bytes | bytearray | memoryview) -> list[tuple[int, int]]:
        """Return each occurrence as (position in the data, index of the string), sorted."""
        view = memoryview(data)
        matches = {
            (start, number)
            for windows in self._windows
            for start, number in windows.find_candidates(view)
            if view[start : start + len(self.strings[number])] == self.strings[number]
        }
        return sorted(matches)


class _Windows:
    """A hash table of windows (short pieces) of the strings, for vectorised lookups."""

    def __init__(
        self, shape: _WindowShape, strings: Sequence[bytes], numbers: Sequence[int]
    ) -> None:
        self.shape = shape
        entries = [
            (string[position : position + shape.width], number, position)
            for number in numbers
            for string in (strings[number],)
            # The ends of ids differ more than their beginnings.
            for position in range(len(string) - shape.needs, len(string) - shape.width + 1)
        ]
        keys = np.frombuffer(b"".join(key for key, _, _ in entries), self._dtype).astype(np.uint64)
        order = np.argsort(keys, kind="stable")
        self._keys = keys[order]
        self._numbers = np.array([number for _, number, _ in entries], np.int64)[order]
        self._places = np.array([position for _, _, position in entries], np.int64)[order]
        self._lengths = np.array([len(strings[number]) for number in self._numbers], np.int64)
        bits = min(max(_FEWEST_BITS, len(entries).bit_length() + 6), _MOST_BITS)
        self._shift = np.uint64(64 - bits)
        self._seen = np.zeros(1 << bits, np.bool_)
        self._seen[self._hash_windows(self._keys)] = True

    @property
    def _dtype(self) -> np.dtype[np.uint64] | np.dtype[np.uint32]:
        return np.dtype("<u8") if self.shape.width == 8 else np.dtype("<u4")

    def _hash_windows(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        return ((keys * _MIX) >> self._shift).view(np.int64)

    def find_candidates(self, data: memoryview) -> list[tuple[int, int]]:
        """Return (position, index of the string) wherever a window of a string matches."""
        matches: list[tuple[int, int]] = []
        for begin in range(0, self.shape.width, self.shape.stride):
            count = (len(data) - begin) // self.shape.width
            if count > 0:
                windows = np.frombuffer(data, self._dtype, count, begin)
                matches += self._look_up(windows.astype(np.uint64, copy=False), begin, len(data))
        return matches

    def _look_up(
        self, windows: NDArray[np.uint64], begin: int, length: int
    ) -> list[tuple[int, int]]:
        likely = np.flatnonzero(self._seen[self._hash_windows(windows)])
        wanted = windows[likely]
        first = np.searchsorted(self._keys, wanted, "left")
        counts = np.searchsorted(self._keys, wanted, "right") - first
        # One entry per pair of a position in the data and a string with this window.
        entries = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        starts = np.repeat(likely * self.shape.width + begin, counts) - self._places[entries]
        fits = (starts >= 0) & (starts + self._lengths[entries] <= length)
        numbers = self._numbers[entries[fits]]
        return list(zip(starts[fits].tolist(), numbers.tolist(), strict=True))


@lru_cache(maxsize=1024)
def text_forms(text: str) -> tuple[bytes, ...]:
    """Return the bytes of a text in the usual escapes, charsets and Unicode forms."""
    spelled = {text, *(unicodedata.normalize(form, text) for form in ("NFC", "NFD"))}
    forms = [form for spelling in spelled for form in _encode_forms(spelling)]
    return tuple(form for form in dict.fromkeys(forms) if len(form) >= SHORTEST)


def _encode_forms(text: str) -> Iterator[bytes]:
    escaped, percent = json.dumps(text)[1:-1], quote(text, safe="")
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
    yield from (form.encode() for form in texts)
    yield from (text.encode("utf-16-le"), text.encode("utf-16-be"), *byte_forms(text.encode())[1:])


def byte_forms(data: bytes) -> tuple[bytes, ...]:
    """Return data as it is, in hexadecimal and in base64 at each of the three offsets."""
    forms = [data.hex().encode(), data.hex().upper().encode()]
    for before in range(3):
        first, last = -(-8 * before // 6), 8 * (before + len(data)) // 6
        padded = bytes(before) + data
        forms += [
            base64.b64encode(padded)[first:last],
            base64.urlsafe_b64encode(padded)[first:last],
        ]
    return (data, *(form for form in dict.fromkeys(forms) if len(form) >= _SHORTEST_ENCODED))


def row_pieces(erased: Any, remaining: Any) -> list[bytes]:
    """Return a distinctive piece of each erased row that does not occur in remaining rows.

    The result is empty for data frames and sparse rows.
    """
    if not isinstance(erased, np.ndarray) or not len(erased):
        return []
    if erased.dtype.kind in "OU":
        pieces = [str(value).encode()[:_LONGEST_ROW] for value in np.ravel(erased)]
        remaining_data = memoryview("\n".join(str(value) for value in np.ravel(remaining)).encode())
    else:
        places = range(0, max(1, erased[0].nbytes - _LONGEST_ROW + 1), 8)
        pieces = [
            max(
                (row[position : position + _LONGEST_ROW] for position in places),
                key=lambda p: len(set(p)),
            )
            for row in (row.tobytes() for row in erased)
        ]
        remaining_data = np.ascontiguousarray(remaining).view(np.uint8).data.cast("B")
    distinctive = list(dict.fromkeys(piece for piece in pieces if is_distinctive_row(piece)))
    shared = _find_pieces(remaining_data, distinctive)
    return [piece for piece in distinctive if piece not in shared]


def _find_pieces(data: memoryview, pieces: Sequence[bytes]) -> set[bytes]:
    """Return the pieces that occur in the data."""
    searcher = Searcher(pieces)
    return {
        pieces[number]
        for start in range(0, len(data), _BLOCK)
        for _, number in searcher.find(data[start : start + _BLOCK + searcher.longest])
    }


def is_distinctive_row(row: bytes) -> bool:
    """Return whether a piece of a row is long and varied enough to identify a person."""
    return len(row) >= SHORTEST_ROW and len(set(row)) >= _FEWEST_VALUES


def is_word(data: memoryview, start: int, length: int) -> bool:
    """Return whether the text at `start` is a separate word, or a number of its own."""
    before = bytes(data[max(0, start - 2) : start])
    after = bytes(data[start + length : start + length + 1])
    if _LETTERS.intersection(before[-1:] + after):
        return False
    if before[-1:] in (b".", b"-") and not bytes(data[start : start + length]).strip(_DIGITS):
        # Part of a decimal or negative number, "0.5" or "-5", but not of "user-5".
        is_after_word = bool(_LETTERS.intersection(before[:-1]))
        return is_after_word if before.endswith(b"-") else not before[:-1].isdigit()
    return True


def is_part_at(data: memoryview, start: int, part: bytes, whole: bytes) -> bool:
    """Return whether `part`, which occurs at `start`, belongs to an occurrence of `whole`."""
    position = whole.find(part)
    while position >= 0:
        begin = start - position
        if begin >= 0 and len(whole) > len(part) and data[begin : begin + len(whole)] == whole:
            return True
        position = whole.find(part, position + 1)
    return False


class ValueResult(NamedTuple):
    """Result of a search among the values of a file.

    Attributes
    ----------
    row : int or None
        Row number of the first erased id, from 0; None if no erased id was found.
    reasons : frozenset of str
        Codes for why the file was not completely searched; empty if it was.
    """

    row: int | None
    reasons: frozenset[str]


@dataclass
class _Column:
    """Statistics of a column: numbers of values and of known ids, and rows of erased ids."""

    n_values: int = 0
    n_known: int = 0
    ids: set[Key] = field(default_factory=set)
    erased: dict[Key, int] = field(default_factory=dict)


class IdValues:
    """A search for erased ids among the values of data files.

    Parameters
    ----------
    erased : iterable of int or str
        Erased ids, which must not occur in the files.
    others : iterable of str
        Remaining ids; they show which columns contain ids.
    distinctive : container of str
        Ids that identify the person wherever they occur.
    """

    def __init__(
        self,
        erased: Iterable[int | str],
        others: Iterable[str],
        distinctive: Container[str],
    ) -> None:
        self.erased = tuple(erased)
        self._known: dict[Key, bool] = {}
        self._distinctive: set[Key] = set()
        self._n_ids = len(self.erased)
        for text in others:
            self._known.update(dict.fromkeys(_forms_of(text), False))
            self._n_ids += 1
        for value in self.erased:
            forms = _forms_of(value)
            self._known.update(dict.fromkeys(forms, True))
            if str(value) in distinctive:
                self._distinctive.update(forms)
        self._words: dict[str, list[list[str]]] = defaultdict(list)
        for words in map(_split_words, map(str, self.erased)):
            self._words[words[0] if words else ""].append(words)
        self._has_numbers_in_groups = any(
            len(words) > 1 and all(map(str.isdecimal, words))
            for group in self._words.values()
            for words in group
        )
        self._is_ascii = all(str(value).isascii() for value in self.erased)
        self._numbers = sorted(key for key in self._known if isinstance(key, int))

    def search(self, chunks: Iterable[Chunk]) -> ValueResult:
        """Search all values of a file, given as chunks of named columns."""
        columns: dict[str, _Column] = defaultdict(_Column)
        reasons: set[str] = set()
        try:
            for name, values in chunks:
                if name == FREE_SPACE:
                    reasons.update(self._search_free_space(values))
                else:
                    reasons.update(self._add_values(columns[name], values))
        except UnsearchableError as error:
            reasons.add(error.reason)
        rows = []
        for column in columns.values():
            for key, row in column.erased.items():
                if key in self._distinctive or self._holds_ids(column, key):
                    rows.append(row)
                else:
                    reasons.add(AMBIGUOUS)
        return ValueResult(min(rows, default=None), frozenset(reasons))

    def is_part_of(self, name: str, *, shortest: int = 1) -> bool:
        """Return whether a file name, or a word of it, is an erased id."""
        keys = (self._find_id(part) for part in (name, name.partition(".")[0]))
        whole = (str(key) for key in keys if key is not None and self._known[key])
        return any(len(part) >= shortest for part in (*whole, *self._find_words(name)))

    def _add_values(self, column: _Column, values: Sequence[Any] | NDArray[Any]) -> Iterator[str]:
        start = column.n_values
        column.n_values += len(values)
        if isinstance(values, np.ndarray):
            counts = _count_whole_numbers(values, self._numbers)
            if self._has_rounded(values):
                yield AMBIGUOUS
        else:
            counts = Counter(values)
        for original, count in counts.items():
            value = _as_value(original)
            key = self._find_id(value)
            if key is not None:
                column.n_known += count
                column.ids.add(key)
                if self._known[key] and key not in column.erased:
                    if isinstance(values, np.ndarray):
                        position = int(np.argmax(values == original))
                    else:
                        position = values.index(original)
                    column.erased[key] = start + position
            elif isinstance(value, str) and self._may_hold(value):
                yield AMBIGUOUS

    def _find_id(self, value: Any) -> Key | None:
        """Return the known id that equals a value; None if the value is not a known id."""
        if isinstance(value, str):
            if value in self._known:
                return value
            text = _strip_value(value)
            if text in self._known:
                return text
            value = _number_in(text)
        elif isinstance(value, float | Decimal):
            value = int(value) if math.isfinite(value) and value == int(value) else None
        return value if type(value) is int and value in self._known else None

    def _may_hold(self, value: str) -> bool:
        """Return whether a text may contain an erased id, as a word or in an unknown encoding."""
        if not self._is_ascii and _UNDECODED.search(value):
            return True
        if not _ONE_VALUE.fullmatch(value):
            return any(self._find_words(_strip_value(value)))
        return self._has_numbers_in_groups and any(self._find_words(value, fewest=2))

    def _find_words(self, text: str, *, fewest: int = 1) -> Iterator[str]:
        """Yield erased ids of at least `fewest` words that occur in a text, ignoring case."""
        texts = (text, _spell_out(text)) if _SPELLED.search(text) else (text,)
        for words in map(_split_words, texts):
            for position, word in enumerate(words):
                for wanted in self._words.get(word, ()):
                    is_long = len(wanted) >= fewest
                    if is_long and words[position : position + len(wanted)] == wanted:
                        yield " ".join(wanted)

    def _has_rounded(self, values: NDArray[Any]) -> bool:
        """Return whether a column of floats contains an erased id rounded to float precision."""
        if values.dtype.kind != "f":
            return False
        exact, most = _exact_up_to(values), float(np.finfo(values.dtype).max)
        wanted = [n for n in self._numbers if self._known[n] and exact < abs(n) <= most]
        return bool(wanted) and bool(np.isin(values, np.array(wanted, values.dtype)).any())

    def _holds_ids(self, column: _Column, key: Key) -> bool:
        """Return whether the values of a column are probably ids."""
        others = len(column.ids) - 1
        # The first value may be the column name.
        if others < _FEWEST_IDS or column.n_known < _NEARLY_ALL * (column.n_values - 1):
            return False
        chance = self._chance_of(key)
        if chance < 1 and others * math.log(chance) <= _MOST_CHANCE:
            return True
        is_covered = len(column.ids) >= max(_FEWEST_COVERED, _NEARLY_ALL * self._n_ids)
        is_unique = _NEARLY_ALL * column.n_known <= len(column.ids)
        return is_covered and is_unique and not self._is_numbering(key)

    def _chance_of(self, key: Key) -> float:
        """Return an upper bound on the probability that a random value of this form is an id."""
        number = _number_in(key) if isinstance(key, str) else key
        if number is None:
            # Short codes look alike everywhere.
            return (
                1.0 if len(str(key)) < _SHORTEST_CODE else float(self._n_ids / 36 ** len(str(key)))
            )
        if self._is_numbering(key):
            return 1.0
        density = self._n_ids / (self._numbers[-1] - self._numbers[0] + 1)
        return max(density, float(self._n_ids / 10 ** len(str(abs(number)))))

    def _is_numbering(self, key: Key) -> bool:
        """Return whether a key is a number and the ids are as small as row numbers."""
        is_number = isinstance(key, int) or _number_in(key) is not None
        return is_number and self._numbers[-1] <= _NUMBERING * self._n_ids

    def _search_free_space(self, values: Iterable[bytes]) -> Iterator[str]:
        """Yield "deleted-rows" if the unused parts of a SQLite file may contain an erased id."""
        if len(self.erased) > _MOST_PATTERNS:
            yield "deleted-rows"
            return
        patterns = {form for value in self.erased for form in _record_forms(value)}
        if any(form in data for data in values for form in patterns):
            yield "deleted-rows"


def _forms_of(value: int | str) -> list[Key]:
    """Return the lookup keys of an id: its text and, if the id is a number, the integer."""
    text = _strip_value(str(value)) or str(value)
    number = _number_in(text)
    return [text] if number is None else [text, number]


def _strip_value(text: str) -> str:
    """Return a value without surrounding spaces and quotes, in Unicode form NFC."""
    if not text.isascii():
        if not text.isprintable() and any("\udc80" <= mark <= "\udcff" for mark in text):
            text = text.encode("utf-8", "surrogateescape").decode("cp1252", "replace")
        text = unicodedata.normalize("NFC", text)
    return text.strip().strip(_QUOTES).strip()


def _spell_out(text: str) -> str:
    """Return a text with JSON escapes resolved and numbers such as 12,345 written plainly."""
    text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else " ", text)
    text = _EXPONENT.sub(lambda match: str(_number_in(match[0])), text)
    text = _GROUPED.sub(lambda match: _NO_DIGIT.sub("", match[0]), text)
    return _TIME_MARK.sub(" ", text)


def _split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, with numbers without leading zeros."""
    text = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    return [_strip_zeros(word) if word[0].isdecimal() else word for word in _WORD.findall(text)]


def _strip_zeros(word: str) -> str:
    if "." in word:
        word = word.rstrip("0").rstrip(".")
    return word.lstrip("0") or "0" if word.isdecimal() else word


def _number_in(text: str) -> int | None:
    if not text or not (text[0].isdigit() or text[0] in "+-") or not _NUMBER.fullmatch(text):
        return None
    number = Decimal(text)
    return int(number) if number == number.to_integral_value() else None


def _as_value(value: Any) -> Any:
    """Return bytes, dates and UUIDs as text, and any other value unchanged."""
    if value is None or isinstance(value, str | int | float | Decimal):
        return value
    try:
        text = value.decode().rstrip("\0") if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise UnsearchableError("binary-values") from error
    if isinstance(value, bytes) and _CONTROL.search(text):
        raise UnsearchableError("binary-values")
    return text


def _count_whole_numbers(values: NDArray[Any], numbers: Sequence[int]) -> dict[int, int]:
    """Count how often each integer between the smallest and the largest id occurs."""
    if not numbers:
        return {}
    if values.dtype.kind == "f":
        # Larger ones may be rounded; `_has_rounded` searches for them.
        values = values[np.abs(values) <= _exact_up_to(values)]
        values = values[values == np.floor(values)]
    values = values[(values >= numbers[0]) & (values <= numbers[-1])]
    distinct, counts = np.unique(values, return_counts=True)
    return dict(zip(map(int, distinct.tolist()), counts.tolist(), strict=True))


def _exact_up_to(values: NDArray[Any]) -> int:
    """Return the largest number up to which these floats represent all integers."""
    return int(2 ** (np.finfo(values.dtype).nmant + 1))


def _record_forms(value: int | str) -> Iterator[bytes]:
    """Yield the bytes of an id in SQLite records: as text and, for a number, as an integer."""
    text = str(value)
    yield from (text.encode(), text.encode("utf-16-le"), text.encode("utf-16-be"))
    number = _number_in(text)
    if number is None or abs(number) >= 1 << 63:
        return
    # Zero and one are stored without bytes.
    width = 0 if number in (0, 1) else (number if number >= 0 else ~number).bit_length() // 8 + 1
    yield number.to_bytes(width, "big", signed=True) if width else b""
    groups = [number & 0x7F]
    while (number := number >> 7) > 0:
        groups.append(number & 0x7F | 0x80)
    yield bytes(reversed(groups))
