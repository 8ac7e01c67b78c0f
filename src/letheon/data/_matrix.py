"""Tables as float matrices for models of trees: numbers, and categories by a keyed hash.

A category is an opaque float32, a function of the seed, the name of its column and its text. So a
compiled core needs no dictionary, and none can keep a category that was forgotten. The names of the
categories that remaining rows have are in `CategoryTable`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import narwhals.stable.v2 as nw
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import check_array

from letheon.data._columns import encode_series, encode_values
from letheon.data._ids import TextIds
from letheon.seeds import Purpose

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
_CATEGORIES = (nw.String, nw.Categorical, nw.Enum)
_BY_DTYPE = "from_dtype"
# Categories are positive normal floats: some libraries make the processor treat others as zero.
_LEAST_BITS = 0x00800000
_N_BITS = 0x7F800000 - _LEAST_BITS

# Value of a category in the core -> its text.
ValueNames = dict[float, str]
# Values and their numbers of rows, for each column of categories.
ValueCounts = list[tuple[list[float], list[int]]]


class EncodedRows(NamedTuple):
    """Rows as a float matrix.

    Parameters
    ----------
    matrix : ndarray or sparse matrix of float64
        The rows.
    names : tuple of dict
        Names of the categories by code, for each column of categories.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.data import EncodedRows
    >>> EncodedRows(np.array([[0.5, 2.0]])).names
    ()
    """

    matrix: Any
    names: tuple[ValueNames, ...] = ()


@dataclass(frozen=True)
class CategoryColumns:
    """The columns of a table that contain categories.

    Attributes
    ----------
    seed : int
        Seed of the model, the key of the hash.
    columns : tuple of int
        Numbers of the columns, ascending.
    names : tuple of str
        Their names; for a table without names, their numbers as text.

    Examples
    --------
    >>> import pandas as pd
    >>> from letheon.data import CategoryColumns
    >>> X = pd.DataFrame({"age": [30.0, 41.0, 29.0], "city": ["Bonn", "Ulm", "Bonn"]})
    >>> columns = CategoryColumns.from_input(X, ["city"], seed=0)
    >>> codes = columns.encode(X).matrix[:, 1]
    >>> columns.columns, bool(codes[0] == codes[2]), bool(codes[0] == codes[1])
    ((1,), True, False)
    """

    seed: int
    columns: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    @classmethod
    def from_input(cls, X: Any, categorical_features: Any, seed: int) -> Self:
        """Return the columns of X that `categorical_features` selects.

        "from_dtype" selects the columns of a frame that are texts or categories; None selects no
        column; otherwise it is a list of names, of numbers or of bools.
        """
        frame = _as_frame(X)
        names = None if frame is None else [str(name) for name in frame.columns]
        if isinstance(categorical_features, str) and categorical_features == _BY_DTYPE:
            kinds = [] if frame is None else list(frame.schema.values())
            columns = [j for j, kind in enumerate(kinds) if kind in _CATEGORIES]
        elif categorical_features is None:
            columns = []
        else:
            n_columns = np.shape(X)[1] if names is None else len(names)
            columns = _select_columns(categorical_features, names, n_columns)
        if columns and sp.issparse(X):
            raise ValueError(
                "X is sparse, and categorical_features selects columns of it; expected categories "
                "in a data frame or an array. One-hot columns in a sparse X need no selection"
            )
        texts = tuple(_as_text(j if names is None else names[j]) for j in columns)
        return cls(seed, tuple(columns), texts)

    def encode(self, X: Any, *, by_dtype: bool = False) -> EncodedRows:
        """Return X as a float matrix; equal texts in a column have equal values.

        Values of other types count as their texts: 1, 1.0 and "1" are one category. With
        `by_dtype`, a column of categories must not have a numeric dtype.

        Raises
        ------
        ValueError
            Two categories of a column have the same value.
        """
        if not self.columns:
            return EncodedRows(as_matrix(X))
        frame = _as_frame(X)
        if frame is not None:
            numbers = frame.drop([frame.columns[j] for j in self.columns])
            series = [frame.get_column(frame.columns[j]) for j in self.columns]
            if by_dtype:
                _require_category_types(series)
            columns = [encode_series(each) for each in series]
            rest, n_columns = _frame_matrix(numbers), len(frame.columns)
        else:
            table = X if isinstance(X, np.ndarray) else np.array(X, object)
            if table.ndim != 2 or table.shape[1] <= self.columns[-1]:
                raise ValueError(
                    f"X has shape {table.shape}; expected a table with the columns of fit"
                )
            columns = [
                encode_values(table[:, j].tolist(), None, name)
                for j, name in zip(self.columns, self.names, strict=True)
            ]
            rest, n_columns = np.delete(table, self.columns, axis=1), table.shape[1]
        matrix = np.empty((len(columns[0][0]), n_columns), order="F")
        if rest.size:
            matrix[:, np.setdiff1d(np.arange(n_columns), self.columns)] = as_matrix(rest)
        names = []
        for place, (codes, values) in enumerate(columns):
            matrix[:, self.columns[place]], known = self._encode_column(place, codes, values)
            names.append(known)
        return EncodedRows(check_array(matrix, ensure_all_finite=False), tuple(names))

    def hash_texts(self, place: int, texts: Sequence[str]) -> list[float]:
        """Return the value of each category of the column at this place among `columns`."""
        if not texts:
            return []
        ids = TextIds.from_strings(list(texts))
        hashes = ids.hashes(self.seed, Purpose.CATEGORY, self.names[place])
        bits = (hashes % np.uint64(_N_BITS)).astype(np.uint32) + np.uint32(_LEAST_BITS)
        values: list[float] = bits.view(np.float32).tolist()
        return values

    def _encode_column(
        self, place: int, codes: NDArray[np.int32], values: list[Any]
    ) -> tuple[NDArray[np.float64], ValueNames]:
        texts = [_as_text(value) for value in values]
        hashes = self.hash_texts(place, texts)
        table = np.array([*hashes, np.nan])
        return table[codes], self.join_names(place, {}, zip(hashes, texts, strict=True))

    def join_names(self, place: int, names: ValueNames, others: Any) -> ValueNames:
        """Return the names of both; raise `ValueError` if two categories have the same value."""
        joint = dict(names)
        for value, text in others:
            if joint.setdefault(value, text) != text:
                raise ValueError(
                    f"the categories {joint[value]!r} and {text!r} of column "
                    f"{self.names[place]!r} have the same keyed hash; use another random_state, "
                    "or join rare categories"
                )
        return joint


@dataclass(frozen=True)
class KnownCategories(CategoryColumns):
    """Columns of categories whose values are places in a list, instead of keyed hashes.

    Parameters
    ----------
    seed : int
        Seed of the model.
    columns : tuple of int
        Numbers of the columns of categories.
    names : tuple of str
        Names of these columns.

    Attributes
    ----------
    texts : tuple of tuple of str
        The known categories of each column. All other categories have the value -1.

    Examples
    --------
    >>> from letheon.data import KnownCategories
    >>> columns = KnownCategories(seed=0, columns=(0,), names=("city",), texts=(("Bonn", "Ulm"),))
    >>> columns.encode([["Ulm"], ["Bonn"], ["Kiel"]]).matrix.ravel().tolist()
    [1.0, 0.0, -1.0]
    """

    texts: tuple[tuple[str, ...], ...] = ()

    def _encode_column(
        self, place: int, codes: NDArray[np.int32], values: list[Any]
    ) -> tuple[NDArray[np.float64], ValueNames]:
        places = {text: number for number, text in enumerate(self.texts[place])}
        numbers = [float(places.get(_as_text(value), -1)) for value in values]
        return np.array([*numbers, np.nan])[codes], {}


class CategoryTable:
    """Names and numbers of remaining rows of all categories.

    A category without rows is erased.

    Parameters
    ----------
    columns : CategoryColumns
        The columns of categories.

    Examples
    --------
    >>> import pandas as pd
    >>> from letheon.data import CategoryColumns, CategoryTable
    >>> X = pd.DataFrame({"city": ["Bonn", "Ulm", "Bonn"]})
    >>> table = CategoryTable(CategoryColumns.from_input(X, ["city"], seed=0))
    >>> rows = table.columns.encode(X)
    >>> table.add_rows(rows)
    >>> table.remove_rows(rows.matrix[1:2])
    >>> list(table.names[0].values())
    ['Bonn']
    """

    def __init__(self, columns: CategoryColumns) -> None:
        self.columns = columns
        self.names: tuple[ValueNames, ...] = tuple({} for _ in columns.columns)
        self._counts: tuple[dict[float, int], ...] = tuple({} for _ in columns.columns)

    def require_distinct(self, rows: EncodedRows) -> None:
        """Raise `ValueError` if a new category has the value of another one."""
        for place, names in enumerate(rows.names):
            self.columns.join_names(place, self.names[place], names.items())

    def add_rows(self, rows: EncodedRows) -> None:
        """Count rows that arrive; names of categories without rows are ignored."""
        self.add_counts(self.count_values(rows.matrix), rows.names)

    def remove_rows(self, matrix: NDArray[Any]) -> None:
        """Count rows that leave."""
        self.remove_counts(self.count_values(matrix))

    def add_counts(self, added: ValueCounts, names: tuple[ValueNames, ...]) -> None:
        """Add the result of `count_values`, with the names of the values."""
        for place, (values, counts) in enumerate(added):
            for value, count in zip(values, counts, strict=True):
                self.names[place].setdefault(value, names[place][value])
                self._counts[place][value] = self._counts[place].get(value, 0) + count

    def remove_counts(self, removed: ValueCounts) -> None:
        """Subtract the result of `count_values`. Cannot fail."""
        for place, (values, counts) in enumerate(removed):
            for value, count in zip(values, counts, strict=True):
                self._counts[place][value] -= count
                if self._counts[place][value] == 0:
                    del self._counts[place][value], self.names[place][value]

    def count_values(self, matrix: NDArray[Any]) -> ValueCounts:
        """Return the values of each column of categories, and their numbers of rows."""
        counts_by_column = []
        for column in self.columns.columns:
            values = matrix[:, column]
            values, counts = np.unique(values[~np.isnan(values)], return_counts=True)
            counts_by_column.append((values.tolist(), counts.tolist()))
        return counts_by_column

    def names_by_column(self) -> dict[int, ValueNames]:
        """Return the names of the categories, by number of the column."""
        return {
            column: dict(names)
            for column, names in zip(self.columns.columns, self.names, strict=True)
        }

    def to_state(self) -> dict[str, Any]:
        """Return the columns and the sorted texts of their categories as plain data."""
        return {
            "columns": list(self.columns.columns),
            "names": list(self.columns.names),
            "texts": [sorted(names.values()) for names in self.names],
        }

    @classmethod
    def from_state(cls, state: Any, seed: int, matrix: NDArray[Any]) -> Self:
        """Return the table of these rows; raise `ValueError` if the texts are not theirs."""
        columns, names, texts = _read_state(state, matrix.shape[1])
        table = cls(CategoryColumns(seed, columns, names))
        known = tuple(
            table.columns.join_names(
                place, {}, zip(table.columns.hash_texts(place, each), each, strict=True)
            )
            for place, each in enumerate(texts)
        )
        for place, (values, _) in enumerate(table.count_values(matrix)):
            if set(values) != set(known[place]) or texts[place] != sorted(set(texts[place])):
                raise ValueError(
                    f"the categories of column {names[place]!r} are not those of its rows"
                )
        table.add_rows(EncodedRows(matrix, known))
        return table


def _as_text(value: Any) -> str:
    return str(value).encode(errors="backslashreplace").decode()


def _read_state(
    state: Any, n_columns: int
) -> tuple[tuple[int, ...], tuple[str, ...], list[list[str]]]:
    parts = [state.get(name) for name in ("columns", "names", "texts")] if state else []
    is_plain = len(parts) == 3 and all(isinstance(part, list) for part in parts)
    if not is_plain or len({len(part) for part in parts}) != 1:
        raise ValueError("categories must have one number, name and list of texts per column")
    columns, names, texts = parts
    if not all(type(column) is int and 0 <= column < n_columns for column in columns):
        raise ValueError("categories name a column that the rows do not have")
    all_texts = [*names, *(text for each in texts for text in each)]
    if columns != sorted(set(columns)) or not all(type(text) is str for text in all_texts):
        raise ValueError("columns of categories must be ascending, and categories texts")
    return tuple(columns), tuple(names), texts


def _select_columns(
    categorical_features: Any, names: list[str] | None, n_columns: int
) -> list[int]:
    chosen = np.asarray(categorical_features)
    if chosen.ndim == 1 and chosen.dtype == bool and len(chosen) == n_columns:
        return np.flatnonzero(chosen).tolist()
    if chosen.ndim == 1 and (len(chosen) == 0 or chosen.dtype.kind in "iuUOT"):
        wanted = chosen.tolist()
        columns = {names.index(each) if names and each in names else each for each in wanted}
        if all(isinstance(j, int) and 0 <= j < n_columns for j in columns):
            return sorted(columns)
    raise ValueError(
        f"categorical_features={categorical_features!r}; expected 'from_dtype', None, or a list of "
        f"names or numbers of columns of X, which has {n_columns} columns"
    )


def _require_category_types(series: "list[nw.Series[Any]]") -> None:
    for each in series:
        if each.dtype.is_numeric() and not each.is_null().all():
            raise ValueError(
                f"column {each.name!r} has dtype {each.dtype}; expected texts or categories, as in "
                "fit"
            )


def _as_frame(X: Any) -> "nw.DataFrame[Any] | None":
    frame = nw.from_native(X, pass_through=True)
    if isinstance(frame, nw.LazyFrame):
        raise TypeError("X is a lazy frame; expected a frame in memory. Call X.collect() first")
    return frame if isinstance(frame, nw.DataFrame) else None


def as_matrix(X: Any) -> NDArray[Any]:
    """Return X as a matrix of float32 or float64, with NaN for missing values.

    A sparse X stays sparse, in CSR or CSC format. A NumPy matrix of these types is returned
    unchanged: the core copies and checks the numbers.

    Parameters
    ----------
    X : array-like, sparse matrix or data frame
        Numbers.

    Returns
    -------
    ndarray or sparse array

    Raises
    ------
    ValueError
        X is not a table of numbers.

    Examples
    --------
    >>> import pandas as pd
    >>> from letheon.data import as_matrix
    >>> as_matrix(pd.DataFrame({"age": [30, None]}))
    array([[30.],
           [nan]])
    """
    if is_matrix(X):
        return X  # type: ignore[no-any-return]
    frame = _as_frame(X)
    matrix: NDArray[Any] = check_array(
        X if frame is None else _frame_matrix(frame),
        accept_sparse=["csr", "csc"],
        dtype=[np.float64, np.float32],
        ensure_all_finite="allow-nan",
        input_name="X",
    )
    if sp.issparse(matrix):
        return matrix
    return matrix if _has_whole_strides(matrix) else np.ascontiguousarray(matrix)


def is_matrix(X: Any) -> bool:
    """Return whether X is a float matrix that the C++ core can read without conversion.

    Parameters
    ----------
    X : object
        Anything.

    Returns
    -------
    bool

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.data import is_matrix
    >>> is_matrix(np.ones((2, 3))), is_matrix(np.ones((2, 3), int)), is_matrix([[1.0]])
    (True, False, False)
    """
    return (
        type(X) is np.ndarray
        and X.ndim == 2
        and X.dtype in _FLOATS
        and 0 not in X.shape
        and (X.flags.c_contiguous or _has_whole_strides(X))
    )


def _has_whole_strides(X: NDArray[Any]) -> bool:
    """Return whether the strides of X are multiples of the item size.

    They are not if X is a field of a structured array.
    """
    return X.flags.aligned and all(stride % X.itemsize == 0 for stride in X.strides)


def _frame_matrix(frame: "nw.DataFrame[Any]") -> Any:
    """Return a frame of numbers as a matrix, with NaN for missing values of any kind."""
    other = [name for name in frame.columns if not _may_be_numbers(frame.get_column(name))]
    if other:
        dates = [name for name in other if frame.schema[name].is_temporal()]
        advice = "name them in categorical_features, or encode them"
        if dates:
            other, advice = dates, "convert dates and times to numbers, such as days since a date"
        named = ", ".join(map(repr, other[:5])) + (" and others" if len(other) > 5 else "")
        raise ValueError(f"columns {named} are not numeric; {advice}")
    columns = [_column_values(frame.get_column(name)) for name in frame.columns]
    return np.column_stack(columns) if columns else np.empty(frame.shape)


def _may_be_numbers(series: "nw.Series[Any]") -> bool:
    kind = series.dtype
    # A column without values often has no numeric type.
    is_blank = len(series) > 0 and bool(series.is_null().all())
    return is_blank or kind.is_numeric() or kind in (nw.Boolean, nw.Object)


def _column_values(series: "nw.Series[Any]") -> NDArray[np.float64]:
    missing = series.is_null()
    if missing.all():
        return np.full(len(series), np.nan)
    if series.dtype != nw.Object:
        return series.cast(nw.Float64).fill_null(float("nan")).to_numpy()
    pairs = zip(series, missing, strict=True)
    try:
        return np.array([np.nan if is_null else value for value, is_null in pairs], np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"column {series.name!r} is not numeric: {error}") from error
