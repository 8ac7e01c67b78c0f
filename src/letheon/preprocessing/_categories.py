"""Categories of columns: the values of a table as dictionary keys, their counts, and their lists.

A category is a number, a text or a bool. A missing value (NaN or None) is a category too; its key
is None. Equal numbers are equal keys, so 1, 1.0 and True are the same category.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite

from letheon.data import Frame, as_table
from letheon.delta import Delta, RowSource, Table

Key = float | int | str | bool | None
Counts = dict[Key, int]

# Up to this many rows, a loop over the values is faster than array operations on each column.
FEW_ROWS = 16
# The input tags of transformers of categories.
CATEGORY_TAGS = ("categorical", "string", "allow_nan")


def to_categories_table(X: Any, *, copy: bool) -> Table:
    """Return X as a table of categories: an array of numbers or a `Frame`."""
    table = as_table(X, copy=copy)
    if sp.issparse(table):
        raise TypeError("Sparse data was passed for X, but dense data is required; use X.toarray()")
    numbers = table.numbers if isinstance(table, Frame) else table
    if not isinstance(numbers, np.ndarray) or numbers.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {numbers.ndim}D array instead. Reshape your data, for example "
            "with X.reshape(-1, 1)"
        )
    if numbers.dtype.kind == "f":
        assert_all_finite(numbers, allow_nan=True, input_name="X")
    return table


def column_kinds(X: Table) -> tuple[str, ...]:
    """Return the kind of each column: number, integer, boolean or text."""
    if isinstance(X, Frame):
        pairs = zip(X.schema.kinds, X.schema.is_number, strict=True)
        return tuple(_name_kind(kind) if is_number else "text" for kind, is_number in pairs)
    return (_name_kind(str(X.dtype)),) * int(X.shape[1])


def _name_kind(kind: str) -> str:
    lower = kind.lower()
    if lower.startswith("bool"):
        return "boolean"
    return "integer" if lower.startswith(("int", "uint")) else "number"


def find_missing(X: Table) -> NDArray[np.bool_]:
    """Return which values are missing."""
    if not isinstance(X, Frame):
        is_nan: NDArray[np.bool_] = np.isnan(X)
        return is_nan
    is_missing = np.empty(X.shape, bool)
    is_number = np.array(X.schema.is_number)
    is_missing[:, is_number] = np.isnan(X.numbers)
    is_missing[:, ~is_number] = X.codes < 0
    return is_missing


def list_rows(X: Table) -> Iterator[list[Key]]:
    """Iterate over the keys of each row."""
    if not isinstance(X, Frame):
        for numbers in X.tolist():
            yield [value if value == value else None for value in numbers]  # noqa: PLR0124
        return
    values, schema = X.values, X.schema
    if not any(schema.is_number):
        for codes in X.codes.tolist():
            pairs = zip(values, codes, strict=True)
            yield [known[code] if code >= 0 else None for known, code in pairs]
        return
    layout = list(zip(schema.is_number, schema.places, strict=True))
    for numbers, codes in zip(X.numbers.tolist(), X.codes.tolist(), strict=True):
        yield [
            (numbers[place] if numbers[place] == numbers[place] else None)
            if is_number
            else (values[place][codes[place]] if codes[place] >= 0 else None)
            for is_number, place in layout
        ]


def count_column(X: Table, column: int) -> Counts:
    """Return the number of rows of each key of a column."""
    if isinstance(X, Frame):
        place = X.schema.places[column]
        if not X.schema.is_number[column]:
            return X.count_codes(place)
        numbers = X.numbers[:, place]
    else:
        numbers = X[:, column]
    values, counts = np.unique(numbers, return_counts=True)
    pairs = zip(values.tolist(), counts.tolist(), strict=True)
    return {value if value == value else None: count for value, count in pairs}  # noqa: PLR0124


def number_column(X: Table, column: int) -> tuple[list[Key], NDArray[np.int64]]:
    """Return distinct keys of a column, and the number of the key of each row."""
    if isinstance(X, Frame):
        place = X.schema.places[column]
        if not X.schema.is_number[column]:
            codes = X.codes[:, place].astype(np.int64)
            return [*X.values[place], None], np.where(codes < 0, len(X.values[place]), codes)
        values = X.numbers[:, place]
    else:
        values = X[:, column]
    distinct, inverse = np.unique(values, return_inverse=True)
    keys = [value if value == value else None for value in distinct.tolist()]  # noqa: PLR0124
    return keys, inverse.ravel()


def map_column(X: Table, column: int, numbers: Mapping[Any, int], default: int) -> NDArray[Any]:
    """Return the number of the key of each row; `default` for other keys."""
    if isinstance(X, Frame) and not X.schema.is_number[column]:
        return X.map_codes(X.schema.places[column], dict(numbers), default)
    keys, places = number_column(X, column)
    return np.array([numbers.get(key, default) for key in keys], np.int64)[places]


def sort_keys(keys: Iterable[Key], name: str) -> tuple[Key, ...]:
    """Return keys in order, the missing one last.

    Raises
    ------
    TypeError
        Texts and numbers are mixed.
    """
    present = [key for key in keys if key is not None]
    try:
        ordered = sorted(present)
    except TypeError:
        kinds = sorted({type(key).__name__ for key in present})
        raise TypeError(
            "Encoders require their input argument must be uniformly strings or numbers. Got "
            f"{kinds} in {name}"
        ) from None
    return (*ordered, *([None] if len(present) < len(list(keys)) else []))


def category_array(keys: tuple[Key, ...], kind: str) -> NDArray[Any]:
    """Return keys as an array with the type of their column; NaN is missing."""
    if kind == "text":
        array = np.empty(len(keys), object)
        array[:] = [math.nan if key is None else key for key in keys]
        return array
    floats = np.array([math.nan if key is None else key for key in keys], np.float64)
    types: dict[str, Any] = {"integer": np.int64, "boolean": np.bool_}
    return floats if None in keys or kind not in types else floats.astype(types[kind])


# A count that changes: the column, the key, the old and the new count.
Change = tuple[int, Key, int, int]


@dataclass(eq=False)
class CategoryCounts:
    """Number of rows of each category of each column, and the number of rows.

    Changed in place. A category without rows has no entry.
    """

    n_rows: int
    counts: list[Counts]
    kinds: tuple[str, ...]

    @classmethod
    def from_source(cls, source: RowSource) -> Self:
        """Count all rows."""
        counts: list[Counts] = []
        kinds: tuple[str, ...] | None = None
        n_rows = 0
        for block in source.blocks():
            if kinds is None:
                kinds = column_kinds(block.X)
                counts = [{} for _ in kinds]
            n_rows += block.n_rows
            for column, known in enumerate(counts):
                for key, count in count_column(block.X, column).items():
                    known[key] = known.get(key, 0) + count
        return cls(n_rows, counts, kinds or ())

    def compare(self, delta: Delta, skipped: tuple[int, ...] = ()) -> tuple[int, list[Change]]:
        """Return the number of rows after a change, and the counts that change."""
        blocks = list(delta.iter_signed())
        n_rows = self.n_rows + sum(sign * block.n_rows for sign, block in blocks)
        differences: dict[tuple[int, Key], int] = {}
        for sign, block in blocks:
            for place, count in _count_block(block.X):
                differences[place] = differences.get(place, 0) + sign * count
        changes = []
        for (column, key), difference in differences.items():
            if difference and column not in skipped:
                old = self.counts[column].get(key, 0)
                changes.append((column, key, old, old + difference))
        return n_rows, changes

    def count_row(self, X: Table) -> tuple[list[Key], list[int]]:
        """Return the keys of a single row, and their counts."""
        row = next(list_rows(X))
        return row, [known[key] for known, key in zip(self.counts, row, strict=True)]

    def subtract_row(self, row: list[Key], numbers: list[int]) -> None:
        """Subtract one row with these counts of its keys; they are at least 2."""
        self.n_rows -= 1
        for known, key, number in zip(self.counts, row, numbers, strict=True):
            known[key] = number - 1

    def apply(self, n_rows: int, changes: list[Change], recounted: dict[int, Counts]) -> None:
        """Write the counts after a change."""
        self.n_rows = n_rows
        for column, key, _, new in changes:
            if new:
                self.counts[column][key] = new
            else:
                del self.counts[column][key]
        for column, counts in recounted.items():
            self.counts[column] = counts

    def preview(self, changes: list[Change], recounted: dict[int, Counts]) -> list[Counts]:
        """Return the counts after a change, as copies."""
        after = [dict(known) for known in self.counts]
        for column, key, _, new in changes:
            after[column][key] = new
            if not new:
                del after[column][key]
        return [recounted.get(column, known) for column, known in enumerate(after)]

    def __copy__(self) -> Self:
        return type(self)(self.n_rows, [dict(known) for known in self.counts], self.kinds)

    def _to_state(self) -> dict[str, Any]:
        columns = []
        for kind, counts in zip(self.kinds, self.counts, strict=True):
            keys = sort_keys(counts, "a column")
            numbers = np.array([counts[key] for key in keys], np.int64)
            columns.append([hold_keys(keys, kind), numbers])
        return {"n_rows": self.n_rows, "kinds": list(self.kinds), "columns": columns}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        counts = [
            dict(zip(read_keys(keys), numbers.tolist(), strict=True))
            for keys, numbers in state["columns"]
        ]
        return cls(state["n_rows"], counts, tuple(state["kinds"]))

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        """Pickle the canonical state."""
        return type(self)._from_state, (self._to_state(),)


def _count_block(X: Table) -> Iterator[tuple[tuple[int, Key], int]]:
    if X.shape[0] <= FEW_ROWS:
        for row in list_rows(X):
            for place in enumerate(row):
                yield place, 1
        return
    for column in range(X.shape[1]):
        for key, count in count_column(X, column).items():
            yield (column, key), count


def hold_keys(keys: tuple[Key, ...], kind: str) -> Any:
    """Return keys in canonical form: one array for a column of numbers, else a list."""
    if kind == "text":
        return list(keys)
    return np.array([math.nan if key is None else key for key in keys], np.float64)


def read_keys(keys: Any) -> list[Key]:
    values = keys.tolist() if isinstance(keys, np.ndarray) else keys
    return [None if value != value else value for value in values]  # noqa: PLR0124


@dataclass(frozen=True)
class CategoryLists:
    """Published lists of categories.

    Attributes
    ----------
    kinds : tuple of str
        Kind of each column.
    categories : tuple of tuple
        Sorted keys of each column; None is missing.
    infrequent : tuple of tuple of int
        Positions of the categories that share one output, for each column.
    dropped : tuple of int or None
        Output that is left out, for each column.
    """

    kinds: tuple[str, ...]
    categories: tuple[tuple[Key, ...], ...]
    infrequent: tuple[tuple[int, ...], ...]
    dropped: tuple[int | None, ...]

    @cached_property
    def groups(self) -> tuple[tuple[Any, ...], ...]:
        """Outputs of each column before one is dropped; `INFREQUENT` is the last one."""
        groups = []
        for keys, rare in zip(self.categories, self.infrequent, strict=True):
            few = set(rare)
            own = [key for place, key in enumerate(keys) if place not in few]
            groups.append((*own, INFREQUENT) if rare else tuple(own))
        return tuple(groups)

    @cached_property
    def codes(self) -> tuple[dict[Key, int], ...]:
        """Output of each category, for each column."""
        codes = []
        for keys, rare, group in zip(self.categories, self.infrequent, self.groups, strict=True):
            known = {key: code for code, key in enumerate(group) if key is not INFREQUENT}
            known |= {keys[place]: len(group) - 1 for place in rare}
            codes.append(known)
        return tuple(codes)

    @cached_property
    def outputs(self) -> list[tuple[int, Any]]:
        """Column and category of each output."""
        return [
            (column, key)
            for column, group in enumerate(self.groups)
            for code, key in enumerate(group)
            if code != self.dropped[column]
        ]

    @cached_property
    def places(self) -> tuple[dict[Key, int], ...]:
        """Number of the output column of each category, for each column; -1 if it is dropped."""
        numbers = {output: place for place, output in enumerate(self.outputs)}
        places = []
        for column, (known, group) in enumerate(zip(self.codes, self.groups, strict=True)):
            places.append(
                {key: numbers.get((column, group[code]), -1) for key, code in known.items()}
            )
        return tuple(places)

    @cached_property
    def rare_places(self) -> tuple[int, ...]:
        """Number of the output column of infrequent categories, for each column, or -1."""
        numbers = {output: place for place, output in enumerate(self.outputs)}
        return tuple(numbers.get((column, INFREQUENT), -1) for column in range(len(self.kinds)))

    def _to_state(self) -> dict[str, Any]:
        pairs = zip(self.categories, self.kinds, strict=True)
        return {
            "kinds": list(self.kinds),
            "categories": [hold_keys(keys, kind) for keys, kind in pairs],
            "infrequent": [list(rare) for rare in self.infrequent],
            "dropped": list(self.dropped),
        }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        return cls(
            tuple(state["kinds"]),
            tuple(tuple(read_keys(keys)) for keys in state["categories"]),
            tuple(tuple(rare) for rare in state["infrequent"]),
            tuple(state["dropped"]),
        )


class _Infrequent:
    """The group of infrequent categories; no category of the data is equal to it."""

    def __str__(self) -> str:
        return "infrequent_sklearn"


INFREQUENT = _Infrequent()
