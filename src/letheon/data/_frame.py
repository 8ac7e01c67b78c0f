"""`Frame`: the columns of a data frame as arrays, so that a row can be read and wiped quickly.

Numbers are one float64 matrix, in which NaN means missing. Every other column is a column of codes
with a dictionary of values. A value whose last row is wiped also leaves the dictionary.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any, NamedTuple, Self

import narwhals.stable.v2 as nw
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from letheon.data._columns import (
    column_codes,
    column_numbers,
    encode_values,
    number_kind,
    refuse_mixed_kinds,
)
from letheon.data._tables import (
    Orders,
    Table,
    as_narwhals,
    hold_table,
    merge_categories,
    present_table,
    require_rows,
    tidy_frame,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_OBJECTS = "array"
_TEXT_KINDS = ("str", "string", "String", "Categorical", "Enum")


class Column(NamedTuple):
    """A column of a frame; its place is among the numbers or among the codes."""

    name: str
    kind: str
    is_number: bool
    place: int


class ColumnSelection(NamedTuple):
    """Some columns of a frame: their schema, and where they are among numbers and codes.

    Columns that follow each other are a slice, so that a selection needs no copy.
    """

    schema: "FrameSchema"
    numbers: Integers | slice
    codes: Integers | slice


@dataclass(frozen=True)
class FrameSchema:
    """Names and types of the columns of a frame.

    Attributes
    ----------
    backend : str
        Library of the frame that was given; "array" for a NumPy array of objects.
    names : tuple of str
        Names of the columns.
    kinds : tuple of str
        Data types of the columns, as the library writes them.
    is_number : tuple of bool
        Whether a column contains numbers.

    Examples
    --------
    >>> import pandas as pd
    >>> from letheon.data import as_table
    >>> as_table(pd.DataFrame({"city": ["Bonn"], "age": [41]})).schema.is_number
    (False, True)
    """

    backend: str
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    is_number: tuple[bool, ...]

    @property
    def has_names(self) -> bool:
        """Whether the names were given, and not made from the numbers of the columns."""
        return self.backend != _OBJECTS

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Place of each column among the numbers or among the codes."""
        counts, places = [0, 0], []
        for is_number in self.is_number:
            places.append(counts[is_number])
            counts[is_number] += 1
        return tuple(places)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """All columns, each with its name, kind and place."""
        return tuple(map(Column, self.names, self.kinds, self.is_number, self.places))

    @cached_property
    def _selections(self) -> dict[tuple[int, ...], ColumnSelection]:
        return {}

    def select(self, columns: tuple[int, ...]) -> ColumnSelection:
        """Return the schema and places of some columns. The result is cached."""
        if columns not in self._selections:
            chosen = [self.columns[j] for j in columns]
            schema = FrameSchema(
                self.backend,
                tuple(column.name for column in chosen),
                tuple(column.kind for column in chosen),
                tuple(column.is_number for column in chosen),
            )
            numbers = _as_slice([column.place for column in chosen if column.is_number])
            codes = _as_slice([column.place for column in chosen if not column.is_number])
            self._selections[columns] = ColumnSelection(schema, numbers, codes)
        return self._selections[columns]


def _as_slice(places: list[int]) -> Integers | slice:
    """Return places as a slice, or as an array if they do not follow each other."""
    begin = places[0] if places else 0
    end = begin + len(places)
    return slice(begin, end) if places == list(range(begin, end)) else np.array(places, int)


class Frame:
    """Columns of a data frame.

    Parameters
    ----------
    schema : FrameSchema
        Names and types of the columns.
    numbers : ndarray of float64, shape (n_rows, n_numbers)
        Columns of numbers, in the order of the schema; NaN is missing.
    codes : ndarray of int32, shape (n_rows, n_others)
        All other columns, in the order of the schema; -1 is missing.
    values : tuple of list
        Dictionary of each column of codes: the value of code ``k`` is ``values[j][k]``.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = as_frame(pd.DataFrame({"age": [31.0, None], "city": ["Rome", "Oslo"]}))
    >>> frame.numbers.tolist(), frame.codes.tolist(), frame.values
    ([[31.0], [nan]], [[1], [0]], (['Oslo', 'Rome'],))
    """

    def __init__(
        self,
        schema: FrameSchema,
        numbers: Floats,
        codes: NDArray[np.int32],
        values: tuple[list[Any], ...],
    ) -> None:
        self.schema = schema
        self.numbers = numbers
        self.codes = codes
        self.values = values

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and of columns."""
        return len(self.numbers), len(self.schema.names)

    def take(self, positions: Any) -> "Frame":
        """Return some rows; the dictionaries are shared."""
        return Frame(self.schema, self.numbers[positions], self.codes[positions], self.values)

    def select(self, columns: tuple[int, ...]) -> "Frame":
        """Return some columns, in this order, for reading: they can share memory with the frame."""
        schema, numbers, codes = self.schema.select(columns)
        if isinstance(codes, slice):
            values = self.values[codes]
        else:
            values = tuple(self.values[j] for j in codes.tolist())
        return Frame(schema, self.numbers[:, numbers], self.codes[:, codes], values)

    def list_values(self, column: int) -> list[Any]:
        """Return the dictionary of a column, without the values that were wiped."""
        return [value for value in self.values[column] if value is not None]

    def column_values(self, column: int) -> list[Any]:
        """Return the values of the column at this place among the codes; None is missing."""
        values = [*self.values[column], None]
        return [values[code] for code in self.codes[:, column].tolist()]

    def map_codes(self, column: int, numbers: "dict[Any, int]", default: int) -> NDArray[np.int32]:
        """Return a number for each row: that of its value; `default` for other values.

        Missing values have the key None.
        """
        values, codes = self.values[column], self.codes[:, column]
        if len(codes) < len(values):  # a few rows: do not read the whole dictionary
            return np.array([numbers.get(v, default) for v in self.column_values(column)], np.int32)
        table = [*(numbers.get(value, default) for value in values), numbers.get(None, default)]
        return np.array(table, np.int32)[codes]

    def count_codes(self, column: int) -> dict[Any, int]:
        """Return the number of rows of each value of a column; None: missing."""
        values, codes = self.values[column], self.codes[:, column]
        if len(codes) < len(values):
            counts: dict[Any, int] = {}
            for value in self.column_values(column):
                counts[value] = counts.get(value, 0) + 1
            return counts
        numbers = np.bincount(codes + 1, minlength=len(values) + 1).tolist()
        pairs = zip([None, *values], numbers, strict=True)
        return {value: number for value, number in pairs if number}

    def concat(self, other: "Frame", orders: Orders | None = None) -> "Frame":
        """Return these rows followed by `other`, with new dictionaries.

        The types of the columns stay. Raises `ValueError` for values that do not fit; floats may be
        rounded. `orders` is the result of `list_orders` for new rows.
        """
        if (self.schema.names, self.schema.is_number) != (
            other.schema.names,
            other.schema.is_number,
        ):
            given, expected = _describe_difference(other.schema, self.schema)
            raise ValueError(f"new rows have the columns {given}; expected {expected}")
        new_numbers = _fit_numbers(self.schema, other.numbers)
        _refuse_other_values(self, other)
        values: list[list[Any]] = []
        parts = []
        for name, kind, is_number, j in self.schema.columns:
            if is_number:
                continue
            known, new = self.list_values(j), other.list_values(j)
            is_ordered = kind in ("ordered", "Enum")
            own = merge_categories(name, known, new, orders if is_ordered else None)
            joint = {value: code for code, value in enumerate(own)}
            parts.append(
                np.concatenate([self.map_codes(j, joint, -1), other.map_codes(j, joint, -1)])
            )
            values.append(own)
        codes = (
            np.stack(parts, axis=1) if parts else np.empty((len(self) + len(other), 0), np.int32)
        )
        numbers = np.concatenate([self.numbers, new_numbers])
        return Frame(self.schema, numbers, codes.astype(np.int32), tuple(values))

    def as_types_of(self, other: "Frame") -> "Frame":
        """Return the same rows with the library and the column types of another frame.

        In a file without types, such as CSV, categories are texts. Returns this frame if the
        columns differ in more than that.
        """
        theirs = other.schema
        if (theirs.names, theirs.is_number) != (self.schema.names, self.schema.is_number):
            return self
        codes, values = self.codes.copy(), list(self.values)
        for _, kind, is_number, place in theirs.columns:
            if not is_number and kind in ("ordered", "Enum"):
                known = other.list_values(place)
                order = {value: code for code, value in enumerate(known)}
                codes[:, place], values[place] = self.map_codes(place, order, -1), known
        return Frame(theirs, self.numbers, codes, tuple(values))

    def __copy__(self) -> Self:
        values = tuple(list(column) for column in self.values)
        return type(self)(self.schema, self.numbers.copy(), self.codes.copy(), values)

    @cached_property
    def code_counts(self) -> tuple[Integers, Integers]:
        """Number of rows of every code, of all columns in one array, and where a column begins."""
        sizes = [len(column) + 1 for column in self.values]
        begins = np.cumsum([0, *sizes])
        counts = np.zeros(begins[-1], np.int64)
        for j, begin in enumerate(begins[:-1].tolist()):
            counts[begin : begin + sizes[j]] = np.bincount(self.codes[:, j] + 1, minlength=sizes[j])
        return counts, begins[:-1] + 1

    def wipe(self, positions: Integers) -> None:
        """Overwrite rows with zeros and missing codes; drop values without rows."""
        counts, begins = self.code_counts
        places = (self.codes[positions] + begins).ravel()
        if len(positions) == 1:  # every column has its own places
            counts[places] -= 1
        else:
            np.subtract.at(counts, places, 1)
        self.numbers[positions] = 0
        self.codes[positions] = -1
        counts[begins - 1] += len(positions)
        empty = places[counts[places] == 0]
        for place in np.unique(empty).tolist() if len(empty) else ():
            column = int(np.searchsorted(begins, place + 1, "right")) - 1
            code = place - int(begins[column])
            if code >= 0:
                self.values[column][code] = None

    def to_native(self, *, all_categories: bool = False) -> Any:
        """Return the rows as the kind of table that was given.

        With `all_categories`, dtypes also have the categories of other rows of the table.
        """
        schema = self.schema
        columns = [
            _native_numbers(schema.backend, self.numbers[:, place], kind)
            if is_number
            else self.column_values(place)
            for _, kind, is_number, place in schema.columns
        ]
        if schema.backend == _OBJECTS:
            table = np.empty(self.shape, object)
            for j, column in enumerate(columns):
                table[:, j] = column
            return table
        frame = _build_frame(schema, columns, self)
        return frame.to_native() if all_categories else tidy_frame(frame)


def _describe_difference(first: FrameSchema, second: FrameSchema) -> tuple[str, str]:
    """Return the columns of each schema; only those that differ, if the names are the same."""
    both = [list(zip(schema.names, schema.kinds, strict=True)) for schema in (first, second)]
    if first.names == second.names:
        differs = [a != b for a, b in zip(first.is_number, second.is_number, strict=True)]
        both = [list(compress(columns, differs)) for columns in both]
    given, expected = (", ".join(f"{name} ({kind})" for name, kind in part) for part in both)
    return given, expected


def _fit_numbers(schema: FrameSchema, numbers: Floats) -> Floats:
    """Return new numbers as the columns of a schema store them."""
    fitted = numbers.copy()
    for name, kind, is_number, place in schema.columns:
        if not is_number or kind.lower() == "float64":
            continue
        column, dtype = numbers[:, place], np.dtype(kind.lower().replace("boolean", "bool"))
        with np.errstate(invalid="ignore", over="ignore"):
            cast = column.astype(dtype).astype(np.float64)
        if kind == "boolean" or kind[0].isupper():  # such a column can have missing values
            cast[np.isnan(column)] = math.nan
        same = np.isfinite if dtype.kind == "f" else np.asarray
        if not np.array_equal(same(cast), same(column), equal_nan=True):
            raise ValueError(
                f"column {name!r} of the new rows has values that do not fit into {kind}, the "
                "dtype of this model; fit with a wider dtype from the start"
            )
        fitted[:, place] = cast
    return fitted


def _refuse_other_values(frame: Frame, new: Frame) -> None:
    """Raise for new values that a column cannot contain, or that a fit would not mix."""
    for name, kind, is_number, place in frame.schema.columns:
        if is_number:
            continue
        known = {*map(type, frame.values[place]), *map(type, new.values[place])}
        refuse_mixed_kinds(known, name)
        if kind in _TEXT_KINDS and not {type(v) for v in new.values[place]} <= {str, type(None)}:
            raise ValueError(
                f"column {name!r} of the new rows contains values that are not texts; expected "
                f"{kind}, as in this model"
            )


def _native_numbers(backend: str, column: Floats, kind: str) -> Any:
    """Return a column of numbers with the dtype that was given."""
    if backend == _OBJECTS:
        return column.tolist()
    if backend != "pandas":
        is_float = kind.startswith("Float")
        return [None if math.isnan(v) and not is_float else v for v in column.tolist()]
    if kind in ("Int64", "boolean") or kind.startswith(("Int", "UInt", "Float")):
        import pandas as pd

        return pd.Series([None if math.isnan(v) else v for v in column.tolist()], dtype=kind)
    return column.astype(kind)


def _build_frame(schema: FrameSchema, columns: list[Any], frame: Frame) -> Any:
    backend: Any = schema.backend
    if backend == "pandas":
        return nw.from_native(_pandas_frame(schema, columns, frame), eager_only=True)
    series = {}
    for (name, kind, _, place), column in zip(schema.columns, columns, strict=True):
        dtype = nw.Enum(frame.list_values(place)) if kind == "Enum" else getattr(nw, kind)
        is_text = kind in ("Enum", "String", "Categorical")
        first = nw.String if is_text else nw.Float64
        series[name] = nw.new_series(name, column, first, backend=backend).cast(dtype)
    return nw.from_dict(series, backend=backend)


def _pandas_frame(schema: FrameSchema, columns: list[Any], frame: Frame) -> Any:
    import pandas as pd

    series = {}
    for j, (_, kind, is_number, place) in enumerate(schema.columns):
        if kind == "ordered":
            known = frame.list_values(place)
            series[j] = pd.Series(pd.Categorical(columns[j], known, ordered=True))
        else:
            series[j] = pd.Series(columns[j], dtype=None if is_number else kind)
    native = pd.DataFrame(series, index=range(len(frame)))
    native.columns = list(schema.names)
    return native


def as_table(X: Any, *, copy: bool = True) -> Table:
    """Return X as a model stores it: an array, a CSR matrix of floats, a `Frame` or texts.

    Data frames and two-dimensional arrays of objects or strings become a `Frame`. Without `copy`,
    for predictions, an array is copied only if needed and may be read-only.

    Parameters
    ----------
    X : array-like, sparse matrix or data frame
        The rows.
    copy : bool, default=True
        Whether the result must have its own memory.

    Examples
    --------
    >>> from letheon.data import as_table
    >>> as_table([[1, 2], [3, 4]])
    array([[1., 2.],
           [3., 4.]])
    >>> type(as_table([["a", "x"], ["b", "y"]])).__name__
    'Frame'
    """
    if isinstance(X, Frame):
        return X.__copy__() if copy else X
    frame = as_narwhals(X)
    if isinstance(frame, nw.DataFrame):
        return as_frame(frame.to_native())
    table = hold_table(X) if copy else present_table(X)
    if sp.issparse(table):
        return sp.csr_array(table) if table.dtype.kind == "f" else sp.csr_array(table, dtype=float)
    is_object = isinstance(table, np.ndarray) and table.ndim == 2 and table.dtype.kind == "O"
    return _frame_of_objects(table) if is_object else table


def to_native(X: Table, *, all_categories: bool = False) -> Any:
    """Return a stored table as the kind of table that was given; see `Frame.to_native`.

    Parameters
    ----------
    X : ndarray, sparse array or Frame
        A table as `as_table` returns it.
    all_categories : bool, default=False
        As for `Frame.to_native`.

    Examples
    --------
    >>> import pandas as pd
    >>> from letheon.data import as_table, to_native
    >>> table = as_table(pd.DataFrame({"age": [30, 41], "city": ["Bonn", "Ulm"]}))
    >>> to_native(table)["city"].tolist()
    ['Bonn', 'Ulm']
    """
    return X.to_native(all_categories=all_categories) if isinstance(X, Frame) else X


def as_frame(X: Any) -> Frame:
    """Return the columns of a pandas, polars or other eager data frame.

    Parameters
    ----------
    X : data frame
        At least one row and one column.

    Raises
    ------
    ValueError
        A column has dates or other values that are neither numbers nor texts, or integers above
        2**53.

    Examples
    --------
    >>> import pandas as pd
    >>> from letheon.data import as_frame
    >>> frame = as_frame(pd.DataFrame({"age": [30, 41], "city": ["Bonn", "Ulm"]}))
    >>> frame.shape, frame.numbers.tolist()
    ((2, 2), [[30.0], [41.0]])
    """
    frame = nw.from_native(X, eager_only=True)
    require_rows(frame.shape)
    frame = nw.from_native(tidy_frame(frame), eager_only=True)
    numbers, codes, values, kinds, is_number = [], [], [], [], []
    for name, dtype in frame.schema.items():
        series = frame.get_column(name)
        is_number.append(dtype.is_numeric() or dtype == nw.Boolean)
        if is_number[-1]:
            kinds.append(number_kind(series))
            numbers.append(column_numbers(series))
        else:
            kind, code, known = column_codes(series)
            kinds.append(kind)
            codes.append(code)
            values.append(known)
    schema = FrameSchema(
        str(frame.implementation.value), tuple(frame.columns), tuple(kinds), tuple(is_number)
    )
    n_rows = len(frame)
    return Frame(
        schema,
        np.stack(numbers, axis=1) if numbers else np.empty((n_rows, 0)),
        np.stack(codes, axis=1) if codes else np.empty((n_rows, 0), np.int32),
        tuple(values),
    )


def _frame_of_objects(array: NDArray[Any]) -> Frame:
    """Return the columns of a two-dimensional array of objects, all of them as codes."""
    n_rows, n_columns = array.shape
    names = tuple(f"x{j}" for j in range(n_columns))
    columns = [encode_values(array[:, j].tolist(), None, names[j]) for j in range(n_columns)]
    schema = FrameSchema(_OBJECTS, names, ("object",) * n_columns, (False,) * n_columns)
    codes = np.stack([code for code, _ in columns], axis=1)
    return Frame(schema, np.empty((n_rows, 0)), codes, tuple(known for _, known in columns))


def numbers_of(X: Table) -> Floats:
    """Return a table as a float64 matrix; NaN is missing.

    Parameters
    ----------
    X : ndarray or Frame
        A table as `as_table` returns it.

    Raises
    ------
    ValueError
        A column is not a column of numbers.
    TypeError
        X is a sparse matrix.

    Examples
    --------
    >>> import pandas as pd
    >>> from letheon.data import as_table, numbers_of
    >>> numbers_of(as_table(pd.DataFrame({"age": [30, 41], "is_new": [True, False]})))
    array([[30.,  1.],
           [41.,  0.]])
    """
    if not isinstance(X, Frame):
        if sp.issparse(X):
            raise TypeError("X is sparse; expected a dense array or a data frame")
        return np.asarray(X, np.float64)
    if X.codes.shape[1] == 0:
        return X.numbers
    parts = [
        X.numbers[:, place] if is_number else _parse_numbers(X, place, name)
        for name, _, is_number, place in X.schema.columns
    ]
    return np.stack(parts, axis=1)


def _parse_numbers(X: Frame, place: int, name: str) -> Floats:
    """Return a column of objects as numbers."""
    numbers = []
    for value in X.column_values(place):
        if isinstance(value, str):
            raise ValueError(
                f"could not convert string to float: column {name!r} contains {value!r}; encode "
                "the column first, for example with OneHotEncoder"
            )
        numbers.append(math.nan if value is None else float(value))
    return np.array(numbers, np.float64)


def column_names(X: Any) -> list[str]:
    """Return the names of the columns of a raw table.

    Parameters
    ----------
    X : ndarray or Frame
        A table as `as_table` returns it.

    Examples
    --------
    >>> import pandas as pd
    >>> from letheon.data import as_table, column_names
    >>> column_names(as_table(pd.DataFrame({"age": [30]}))), column_names(as_table([[1.0, 2.0]]))
    (['age'], ['x0', 'x1'])
    """
    if isinstance(X, Frame) and X.schema.has_names:
        return list(map(str, X.schema.names))
    return [f"x{j}" for j in range(X.shape[1] if len(X.shape) == 2 else 1)]
