"""Tables of numbers and words: read column by column, encoded by what the published file holds.

Words of a column are numbered in alphabetical order over the whole published file, before any
sampling, splitting or removal. The list is a constant of that file: nobody who leaves changes it.
A missing number becomes -1, because a mean would depend on people who may leave.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.datasets._info import Encoding
from letheon.exceptions import DatasetFormatError

__all__ = [
    "MISSING",
    "MISSING_NUMBER",
    "Column",
    "Columns",
    "Plan",
    "encode",
    "first_line",
    "number",
    "numbers_of",
    "read_columns",
    "word",
]

MISSING = frozenset(("", "?", "NA", "NaN", "nan"))
MISSING_NUMBER = -1.0
_CHUNK = 20_000  # rows whose texts are in memory at once


class Column(NamedTuple):
    """One column of texts: distinct ones, and the number of the one that each row has."""

    texts: list[str]
    codes: NDArray[np.int32]

    def map(self, function: Callable[[str], Any], dtype: Any) -> NDArray[Any]:
        """Return a value for every row; the function sees every distinct text once."""
        with _cells_checked():
            values = np.array([function(text) for text in self.texts], dtype)
        return values[self.codes]

    def sorted_words(self, function: Callable[[str], str]) -> tuple[list[str], NDArray[np.int32]]:
        """Return distinct words in alphabetical order, and the number of every row's word."""
        with _cells_checked():
            words = [function(text) for text in self.texts]
        book = sorted(set(words))
        places = {word: place for place, word in enumerate(book)}
        return book, np.array([places[word] for word in words], np.int32)[self.codes]


@contextmanager
def _cells_checked() -> Iterator[None]:
    try:
        yield
    except DatasetFormatError:
        raise
    except (OverflowError, ValueError) as error:
        raise DatasetFormatError(f"a cell is not as published: {error}") from error


@dataclass(frozen=True)
class Columns:
    """Columns of a file by name."""

    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())).codes)

    def __getitem__(self, name: str) -> Column:
        """Return a column, or say which there are."""
        if name not in self.columns:
            raise DatasetFormatError(
                f"no column {name!r} in the file; it has {', '.join(self.columns)}"
            )
        return self.columns[name]

    def __add__(self, other: "Columns") -> "Columns":
        """Return the rows of both, one after the other."""
        return Columns({name: _joined(each, other[name]) for name, each in self.columns.items()})

    def where(self, keep: NDArray[np.bool_]) -> "Columns":
        """Return the rows marked; words that only other rows have stay in the lists."""
        return Columns(
            {name: Column(each.texts, each.codes[keep]) for name, each in self.columns.items()}
        )


def _joined(first: Column, second: Column) -> Column:
    book = _Book({text: place for place, text in enumerate(first.texts)})
    places = np.array([book[text] for text in second.texts], np.int32)
    return Column(list(book), np.concatenate([first.codes, places[second.codes]]))


def read_columns(
    lines: Iterable[str],
    *,
    names: Sequence[str] | None = None,
    delimiter: str = ",",
    limit: int | None = None,
    skip: str | None = None,
) -> Columns:
    """Read a table of texts; without names the first line has them.

    Parameters
    ----------
    lines : iterable of str
        Lines of the file. Empty ones are left out.
    names : sequence of str, optional
        Names of the columns of a file that has none.
    delimiter : str, default=","
        What stands between cells.
    limit : int, optional
        Read so many rows at most.
    skip : str, optional
        Lines that start with this are no rows.
    """
    wanted = (line for line in lines if skip is None or not line.startswith(skip))
    rows = csv.reader(wanted, delimiter=delimiter, skipinitialspace=True)
    heads = list(names) if names is not None else [each.strip("\ufeff ") for each in _first(rows)]
    books: list[_Book] = [_Book() for _ in heads]
    parts: list[list[NDArray[np.int32]]] = [[] for _ in heads]
    for chunk in _chunks(islice((row for row in rows if row), limit)):
        _check_width(chunk, len(heads))
        for book, part, cells in zip(books, parts, zip(*chunk, strict=True), strict=True):
            part.append(np.fromiter(map(book.__getitem__, cells), np.int32, len(chunk)))
    if not parts or not parts[0]:
        raise DatasetFormatError("the file has no rows")
    return Columns(
        {
            name: Column(list(book), np.concatenate(part))
            for name, book, part in zip(heads, books, parts, strict=True)
        }
    )


def first_line(lines: Iterator[str]) -> str:
    """Return the first line of a file, which must have one."""
    line: str = _first(lines)
    return line


def _first(items: Iterator[Any]) -> Any:
    item = next(items, None)
    if item is None:
        raise DatasetFormatError("the file is empty")
    return item


class _Book(dict[str, int]):
    """Numbers texts in the order of their first mention."""

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self)
        return number


def _chunks(rows: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    while chunk := list(islice(rows, _CHUNK)):
        yield chunk


def _check_width(rows: list[list[str]], width: int) -> None:
    wrong = next((row for row in rows if len(row) != width), None)
    if wrong is not None:
        raise DatasetFormatError(
            f"a row has {len(wrong)} cells, expected {width}; it starts with {wrong[:3]}"
        )


def number(text: str) -> float:
    """Return the number in a cell, -1 for a missing one."""
    text = text.strip()
    try:
        return MISSING_NUMBER if text in MISSING else float(text)
    except ValueError:
        raise DatasetFormatError(f"{text!r} where a number is expected") from None


def word(text: str) -> str:
    """Return the word in a cell; all ways to say that there is none are one word."""
    text = text.strip()
    return "missing" if text in MISSING else text


@dataclass(frozen=True)
class Plan:
    """Which columns become features, and how.

    Attributes
    ----------
    numbers : mapping of str to (str, callable)
        Feature name -> column it is made of, and the function of a cell's text.
    words : mapping of str to (str, callable)
        The same for columns of words.
    """

    numbers: Mapping[str, tuple[str, Callable[[str], float]]] = field(default_factory=dict)
    words: Mapping[str, tuple[str, Callable[[str], str]]] = field(default_factory=dict)

    @classmethod
    def of(cls, numbers: Iterable[str], words: Iterable[str]) -> "Plan":
        """Return a plan that takes cells as they are."""
        return cls(
            {name: (name, number) for name in numbers}, {name: (name, word) for name in words}
        )


def encode(
    table: Columns, plan: Plan, how: Encoding
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Return features and their names: numbers first, then words.

    ``"one-hot"``: a column ``name=word`` for every word; ``"ordinal"``: one column with the
    place of the word in the alphabetical list.
    """
    coded = [
        (name, *table[column].sorted_words(function))
        for name, (column, function) in plan.words.items()
    ]
    n_columns = sum(len(book) if how == "one-hot" else 1 for _, book, _ in coded)
    X = np.zeros((len(table), len(plan.numbers) + n_columns), np.float32)
    names = list(plan.numbers)
    for place, (column, function) in enumerate(plan.numbers.values()):
        X[:, place] = table[column].map(function, np.float32)
    rows = np.arange(len(X))
    for name, book, codes in coded:
        if how == "one-hot":
            X[rows, len(names) + codes] = 1
            names += [f"{name}={each}" for each in book]
        else:
            X[:, len(names)] = codes
            names.append(name)
    return X, tuple(names)


def numbers_of(
    lines: Iterable[str], *, delimiter: str = ",", limit: int | None = None
) -> NDArray[np.float32]:
    """Return a table that has nothing but numbers."""
    try:
        return np.loadtxt(
            lines, np.float32, delimiter=delimiter, max_rows=limit, ndmin=2, comments=None
        )
    except ValueError as error:
        raise DatasetFormatError(f"not a table of numbers: {error}") from error
