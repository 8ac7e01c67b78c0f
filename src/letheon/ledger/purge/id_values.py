"""Find ids of erased people among the values of data files.

An id of few characters stands in many columns by chance. It is a finding where its column holds
ids: nearly all other values are known ids too, and more of them than chance explains. Anywhere
else it may be a finding or not; then the file counts as not searched, never as clean.
"""

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.ledger.purge.values import FREE_SPACE, Chunk, UnsearchableError

Key = int | str
AMBIGUOUS = "ambiguous-value"

_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,2})?")
# The parts of a number or a moment are no values of their own.
_ONE_VALUE = re.compile(
    r"[+-]?[0-9]*\.?[0-9]*([eE][+-]?[0-9]+)?"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]{4,18}(Z|[+-][0-9:]{2,5})?)?"
)
# Digits in groups of three; one point alone is that of a decimal fraction.
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
# Ids up to this many times their number look like numbers of rows, which any file may have.
_NUMBERING = 4
_MOST_PATTERNS = 200


class ValueResult(NamedTuple):
    """What a search among the values of a file gave.

    Attributes
    ----------
    row : int or None
        Where the first id of an erased person stands, in its column.
    reasons : frozenset of str
        Why the file was not searched as a whole; empty if it was.
    """

    row: int | None
    reasons: frozenset[str]


@dataclass
class _Column:
    """What was seen of a column: how many values, and which of them are ids."""

    n_values: int = 0
    n_known: int = 0
    ids: set[Key] = field(default_factory=set)
    erased: dict[Key, int] = field(default_factory=dict)


class IdValues:
    """Ids of erased people, beside those who are left.

    Parameters
    ----------
    erased : iterable of int or str
        What must not be found.
    others : iterable of str
        Ids that may stay; they show which column holds ids.
    distinctive : container of str
        Ids that mean the person wherever they stand.
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
        """Look at every value of a file."""
        columns: dict[str, _Column] = defaultdict(_Column)
        reasons: set[str] = set()
        try:
            for name, values in chunks:
                if name == FREE_SPACE:
                    reasons.update(self._search_free_space(values))
                else:
                    reasons.update(self._add(columns[name], values))
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
        """Whether the name of a file, or a word of it, is the id of an erased person."""
        keys = (self._find(part) for part in (name, name.partition(".")[0]))
        whole = (str(key) for key in keys if key is not None and self._known[key])
        return any(len(part) >= shortest for part in (*whole, *self._find_words(name)))

    def _add(self, column: _Column, values: Sequence[Any] | NDArray[Any]) -> Iterator[str]:
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
            key = self._find(value)
            if key is not None:
                column.n_known += count
                column.ids.add(key)
                if self._known[key] and key not in column.erased:
                    column.erased[key] = start + _place_of(original, values)
            elif isinstance(value, str) and self._may_hold(value):
                yield AMBIGUOUS

    def _find(self, value: Any) -> Key | None:
        """Return the id that a value is, if it is one."""
        if isinstance(value, str):
            if value in self._known:
                return value
            text = _clean(value)
            if text in self._known:
                return text
            value = _number_in(text)
        elif isinstance(value, float | Decimal):
            value = int(value) if math.isfinite(value) and value == int(value) else None
        return value if type(value) is int and value in self._known else None

    def _may_hold(self, value: str) -> bool:
        """Whether a text that is no id may hold one: as a word, or in an unknown encoding."""
        if not self._is_ascii and _UNDECODED.search(value):
            return True
        if not _ONE_VALUE.fullmatch(value):
            return any(self._find_words(_clean(value)))
        return self._has_numbers_in_groups and any(self._find_words(value, fewest=2))

    def _find_words(self, text: str, *, fewest: int = 1) -> Iterator[str]:
        """Yield the ids of erased people that stand in a text as so many words, in any case."""
        texts = (text, _spell_out(text)) if _SPELLED.search(text) else (text,)
        for words in map(_split_words, texts):
            for place, word in enumerate(words):
                for wanted in self._words.get(word, ()):
                    is_long = len(wanted) >= fewest
                    if is_long and words[place : place + len(wanted)] == wanted:
                        yield " ".join(wanted)

    def _has_rounded(self, values: NDArray[Any]) -> bool:
        """Whether an erased number stands in a column of floats that cannot hold it exactly."""
        if values.dtype.kind != "f":
            return False
        exact, most = _exact_up_to(values), float(np.finfo(values.dtype).max)
        wanted = [n for n in self._numbers if self._known[n] and exact < abs(n) <= most]
        return bool(wanted) and bool(np.isin(values, np.array(wanted, values.dtype)).any())

    def _holds_ids(self, column: _Column, key: Key) -> bool:
        """Whether the values of a column are ids, as far as one can tell."""
        others = len(column.ids) - 1
        # The first value may be the name of the column.
        if others < _FEWEST_IDS or column.n_known < _NEARLY_ALL * (column.n_values - 1):
            return False
        chance = self._chance(key)
        if chance < 1 and others * math.log(chance) <= _MOST_CHANCE:
            return True
        is_covered = len(column.ids) >= max(_FEWEST_COVERED, _NEARLY_ALL * self._n_ids)
        is_unique = _NEARLY_ALL * column.n_known <= len(column.ids)
        return is_covered and is_unique and not self._is_numbering(key)

    def _chance(self, key: Key) -> float:
        """Return how likely a value that looks like this id is an id by chance, at most."""
        number = _number_in(key) if isinstance(key, str) else key
        if number is None:
            # Codes of few characters are alike everywhere.
            return (
                1.0 if len(str(key)) < _SHORTEST_CODE else float(self._n_ids / 36 ** len(str(key)))
            )
        if self._is_numbering(key):
            return 1.0
        density = self._n_ids / (self._numbers[-1] - self._numbers[0] + 1)
        return max(density, float(self._n_ids / 10 ** len(str(abs(number)))))

    def _is_numbering(self, key: Key) -> bool:
        """Whether ids are small numbers, as the rows of any file may have."""
        is_number = isinstance(key, int) or _number_in(key) is not None
        return is_number and self._numbers[-1] <= _NUMBERING * self._n_ids

    def _search_free_space(self, values: Iterable[bytes]) -> Iterator[str]:
        """Look for ids in the unused parts of a SQLite file, as its records hold them."""
        if len(self.erased) > _MOST_PATTERNS:
            yield "deleted-rows"
            return
        patterns = {form for value in self.erased for form in _record_forms(value)}
        if any(form in data for data in values for form in patterns):
            yield "deleted-rows"


def _forms_of(value: int | str) -> list[Key]:
    """Return what an id is looked up by: its text, and its number if it is one."""
    text = _clean(str(value)) or str(value)
    number = _number_in(text)
    return [text] if number is None else [text, number]


def _clean(text: str) -> str:
    """Return a value without spaces and quotes around it, in one form of Unicode."""
    if not text.isascii():
        if not text.isprintable() and any("\udc80" <= mark <= "\udcff" for mark in text):
            text = text.encode("utf-8", "surrogateescape").decode("cp1252", "replace")
        text = unicodedata.normalize("NFC", text)
    return text.strip().strip(_QUOTES).strip()


def _spell_out(text: str) -> str:
    """Return a text without escapes as in JSON, and with plain numbers: 12,345 and 1.2345e4."""
    text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else " ", text)
    text = _EXPONENT.sub(lambda match: str(_number_in(match[0])), text)
    text = _GROUPED.sub(lambda match: _NO_DIGIT.sub("", match[0]), text)
    return _TIME_MARK.sub(" ", text)


def _split_words(text: str) -> list[str]:
    """Return the words of a text in one form: small letters, numbers without leading zeros."""
    text = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    return [_plain(word) if word[0].isdecimal() else word for word in _WORD.findall(text)]


def _plain(word: str) -> str:
    if "." in word:
        word = word.rstrip("0").rstrip(".")
    return word.lstrip("0") or "0" if word.isdecimal() else word


def _number_in(text: str) -> int | None:
    if not text or not (text[0].isdigit() or text[0] in "+-") or not _NUMBER.fullmatch(text):
        return None
    number = Decimal(text)
    return int(number) if number == number.to_integral_value() else None


def _as_value(value: Any) -> Any:
    """Return bytes, dates and UUIDs as texts, and any other value as it is."""
    if value is None or isinstance(value, str | int | float | Decimal):
        return value
    return _decode(value) if isinstance(value, bytes) else str(value)


def _decode(data: bytes) -> str:
    try:
        text = data.decode().rstrip("\0")
    except UnicodeDecodeError as error:
        raise UnsearchableError("binary-values") from error
    if _CONTROL.search(text):
        raise UnsearchableError("binary-values")
    return text


def _count_whole_numbers(values: NDArray[Any], numbers: Sequence[int]) -> dict[int, int]:
    """Return how often each whole number between the least and the greatest id stands there."""
    if not numbers:
        return {}
    if values.dtype.kind == "f":
        # Greater ones may be rounded: `_has_rounded` looks for them.
        values = values[np.abs(values) <= _exact_up_to(values)]
        values = values[values == np.floor(values)]
    values = values[(values >= numbers[0]) & (values <= numbers[-1])]
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(map(int, found.tolist()), counts.tolist(), strict=True))


def _exact_up_to(values: NDArray[Any]) -> int:
    """Return the number up to which floats of this width hold every whole number."""
    return int(2 ** (np.finfo(values.dtype).nmant + 1))


def _place_of(value: Any, values: Sequence[Any] | NDArray[Any]) -> int:
    if isinstance(values, np.ndarray):
        return int(np.argmax(values == value))
    return values.index(value)


def _record_forms(value: int | str) -> Iterator[bytes]:
    """Yield the bytes of an id in a record of SQLite: text, and integers of every width."""
    text = str(value)
    yield from (text.encode(), text.encode("utf-16-le"), text.encode("utf-16-be"))
    number = _number_in(text)
    if number is None or abs(number) >= 1 << 63:
        return
    # Zero and one have no bytes at all.
    width = 0 if number in (0, 1) else (number if number >= 0 else ~number).bit_length() // 8 + 1
    yield number.to_bytes(width, "big", signed=True) if width else b""
    groups = [number & 0x7F]
    while (number := number >> 7) > 0:
        groups.append(number & 0x7F | 0x80)
    yield bytes(reversed(groups))
