"""Conversion of X and y to the form in which a model stores them.

A table is a NumPy array (C order), a scipy.sparse CSR, a pandas or polars frame, or one column of
strings. The inner estimator of a wrapper gets the same kind of table as the one that the caller
passed.
"""

from collections.abc import Mapping
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import check_array

Table = Any
# The categories of each ordered column, in their order.
Orders = Mapping[str, list[Any]]
_NAN_BITS = np.array(np.nan).view(np.int64)


def table_length(X: Table) -> int:
    """Return the number of rows.

    Parameters
    ----------
    X : object
        A table of any kind.

    Examples
    --------
    >>> from letheon.data import hold_table, table_length
    >>> table_length(hold_table([[1.0], [2.0]]))
    2
    """
    return int(X.shape[0])


def is_text_column(X: Table) -> bool:
    """Return whether X is one column of strings, the input of text vectorisers.

    Parameters
    ----------
    X : object
        The result of `hold_table`.

    Examples
    --------
    >>> from letheon.data import hold_table, is_text_column
    >>> is_text_column(hold_table(["a text", "another"])), is_text_column(hold_table([[1.0]]))
    (True, False)
    """
    return isinstance(X, np.ndarray) and X.ndim == 1


def as_narwhals(X: Any) -> Any:
    """Return a data frame of narwhals, or X if it is none; an Arrow table becomes a pandas frame.

    Parameters
    ----------
    X : object
        A table of any kind.

    Examples
    --------
    >>> from letheon.data import as_narwhals
    >>> as_narwhals([[1.0]])
    [[1.0]]
    """
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    is_arrow = isinstance(frame, nw.DataFrame) and frame.implementation.is_pyarrow()
    return nw.from_native(frame.to_pandas(), eager_only=True) if is_arrow else frame


def hold_table(X: Any) -> Table:
    """Return a copy of X in canonical form: C order, -0.0 as +0.0, one NaN bit pattern.

    Raises scikit-learn's errors for empty, one-dimensional or complex input. The inner estimator
    decides whether NaN and infinity are allowed.

    Parameters
    ----------
    X : array-like, sparse matrix or frame
        Rows.

    Examples
    --------
    >>> from letheon.data import hold_table
    >>> hold_table([[-0.0, 1.0]])
    array([[0., 1.]])
    """
    frame = as_narwhals(X)
    if isinstance(frame, nw.DataFrame):
        require_rows(frame.shape)
        return tidy_frame(_plain_columns(_fresh_rows(frame, list(range(len(frame))))))
    if not sp.issparse(X) and _is_text_column(X):
        return np.array([str(value) for value in X], object)
    array = check_array(
        _with_dtype(X),
        accept_sparse="csr",
        dtype=None,
        ensure_all_finite=False,
        ensure_min_features=1,
    )
    if sp.issparse(array):
        return _canonical_sparse(array.copy())
    return _canonical_array(array)


def present_table(X: Any) -> Table:
    """Return X for predictions, in the canonical form of `hold_table` and read-only.

    X is copied only if needed. An estimator that works in place cannot change the caller's X.

    Parameters
    ----------
    X : array-like, sparse matrix or frame
        Rows to predict.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.data import present_table
    >>> present_table(np.array([[0.5, 1.0]])).flags.writeable
    False
    """
    if sp.issparse(X):
        return X.copy()
    frame = as_narwhals(X)
    if isinstance(frame, nw.DataFrame):
        return frame.clone().to_native()
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "biuf":
        zeros = X[X == 0] if X.dtype.kind == "f" else X[:0]
        return X + 0.0 if np.signbit(zeros).any() else read_only(X)
    return hold_table(X)


def _with_dtype(X: Any) -> Any:
    """Return a list of numbers as a float64 array, and other tables unchanged.

    The dtype of the array must not depend on rows that may be removed.
    """
    if not isinstance(X, list | tuple):
        return X
    array = np.asarray(X)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    texts = np.asarray(X, object).ravel() if array.dtype.kind == "U" else ()
    if array.dtype.kind == "O" or not all(isinstance(value, str) for value in texts):
        raise ValueError(
            "X is a list of mixed types; expected numbers only or strings only. Pass "
            "np.array(X, dtype=object) or a data frame"
        )
    return array


def take_rows(X: Table, positions: NDArray[np.int64]) -> Table:
    """Return the rows at these positions in new memory, without traces of other rows."""
    if isinstance(X, np.ndarray):
        return X[positions]
    if sp.issparse(X):
        return _canonical_sparse(X[positions])
    return tidy_frame(_fresh_rows(nw.from_native(X, eager_only=True), positions.tolist()))


def _fresh_rows(frame: "nw.DataFrame[Any]", positions: list[int]) -> "nw.DataFrame[Any]":
    """Return the rows at these positions in new memory.

    A selection by position is a copy in polars, and a clone is a copy in pandas, so both steps are
    needed.
    """
    return frame[positions].clone()


def slice_rows(X: Table, begin: int, end: int) -> Table:
    """Return the rows from `begin` up to, but not including, `end`.

    The result is a read-only view or a copy, because an estimator with ``copy_X=False`` writes to
    its input.
    """
    if isinstance(X, np.ndarray):
        return read_only(X[begin:end])
    if sp.issparse(X):
        return X[begin:end]  # scipy copies; some estimators reject read-only sparse data
    return nw.from_native(X, eager_only=True)[begin:end].clone().to_native()


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view of the array."""
    view = array.view()
    view.flags.writeable = False
    return view


def list_orders(X: Any) -> Orders:
    """Return the categories of each ordered column of a data frame, in the order of its dtype.

    Parameters
    ----------
    X : object
        A table of any kind.

    Examples
    --------
    >>> import pandas as pd
    >>> from letheon.data import list_orders
    >>> sizes = pd.Categorical(["L", "S"], categories=["S", "M", "L"], ordered=True)
    >>> list_orders(pd.DataFrame({"size": sizes, "age": [30, 41]}))
    {'size': ['S', 'M', 'L']}
    """
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame):
        return {}
    return {
        name: frame.get_column(name).cat.get_categories().to_list()
        for name, kind in frame.schema.items()
        if kind == nw.Enum or (kind == nw.Categorical and _is_ordered(frame.get_column(name)))
    }


def _is_ordered(series: "nw.Series[Any]") -> bool:
    return bool(getattr(series.to_native().dtype, "ordered", False))


def merge_categories(
    name: str, known: list[Any], new: list[Any], orders: Orders | None = None
) -> list[Any]:
    """Return the categories of an ordered column with those of new rows.

    A category that no row has is not stored, so the order must come from the dtype of the new rows,
    `orders`. Otherwise it would depend on the times at which categories arrived.

    Raises
    ------
    ValueError
        The dtype of the new rows does not say where a new category belongs.
    """
    held, arrived = set(known), set(new)
    if arrived <= held:
        return known
    declared = new if orders is None else orders.get(name, new)
    order = [value for value in declared if value in held or value in arrived]
    if [value for value in order if value in held] == known:
        return order
    if orders is None:
        return [*known, *(value for value in new if value not in held)]
    raise ValueError(
        f"column {name!r} is ordered, and the new rows have other categories than the model. "
        "Expected a dtype that lists the categories of the model in their order, and the new ones "
        "at their places: use the same dtype in fit and learn"
    )


def join_rows(X: Table, other: Table, orders: Orders | None = None) -> Table:
    """Return X followed by `other`, which must have the same kind, columns and dtypes.

    `orders` is the result of `list_orders` for new rows.
    """
    _require_same_layout(X, other)
    if isinstance(X, np.ndarray):
        return np.concatenate([X, _cast_like(X, other, "rows")])
    if sp.issparse(X):
        data = _cast_like(X, other.data, "rows")
        other = type(X)((data, other.indices, other.indptr), shape=other.shape)
        return _canonical_sparse(sp.vstack([X, other], format="csr"))
    frames = [nw.from_native(table, eager_only=True) for table in (X, other)]
    return tidy_frame(nw.concat(_same_categories(frames, orders), how="vertical"))


def _cast_like(stored: Any, values: NDArray[Any], what: str) -> NDArray[Any]:
    """Return values in the dtype of the stored rows, which `learn` must not change.

    Raise `ValueError` if a value would change, such as 1.5 as an int or 300 as an int8. Floats may
    be rounded, but not to infinity.
    """
    dtype = stored.dtype
    with np.errstate(invalid="ignore", over="ignore"):
        cast = values.astype(dtype, copy=False)
    both_floats = dtype.kind == values.dtype.kind == "f"
    fits = np.array_equal(np.isinf(cast), np.isinf(values)) if both_floats else None
    if dtype != values.dtype and not (_same_values(cast, values) if fits is None else fits):
        raise ValueError(
            f"new {what} have dtype {values.dtype} and values that do not fit into {dtype}, the "
            f"dtype of this model; fit with {values.dtype} {what} from the start"
        )
    return cast


def _same_values(cast: NDArray[Any], values: NDArray[Any]) -> bool:
    """Return whether a cast changed no value.

    The values are also cast back, because large integers are rounded as floats.
    """
    with np.errstate(invalid="ignore"):
        back = cast.astype(values.dtype)
    return np.array_equal(cast, values) and np.array_equal(back, values)


def require_rows(shape: tuple[int, int]) -> None:
    """Raise if a table has no rows or no columns."""
    if 0 in shape:
        what = "sample(s)" if shape[0] == 0 else "feature(s)"
        raise ValueError(
            f"Found array with 0 {what} (shape={shape}) while a minimum of 1 is required"
        )


def _is_text_column(X: Any) -> bool:
    if isinstance(X, np.ndarray) and (X.ndim != 1 or X.dtype.kind not in "OUT"):
        return False
    if not isinstance(X, np.ndarray | list | tuple):
        series = nw.from_native(X, series_only=True, pass_through=True)
        if not isinstance(series, nw.Series):
            return False
    return len(X) > 0 and all(isinstance(value, str) for value in X)


def _canonical_array(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind in "UT":
        return array.astype(object)
    if array.dtype.kind == "O":
        return np.array(array, order="C", copy=True)
    array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    return plain_floats(array)


def plain_floats(array: NDArray[Any]) -> NDArray[Any]:
    """Write -0.0 as +0.0, and one NaN bit pattern, into an array; return it."""
    if array.dtype.kind == "f":
        array += 0.0  # -0.0 + 0.0 is +0.0
        missing = np.isnan(array)
        if missing.any():
            array[missing] = np.nan
    return array


def _canonical_sparse(matrix: Any) -> Any:
    matrix.sum_duplicates()
    matrix.sort_indices()
    matrix.data = plain_floats(matrix.data)
    largest = max(matrix.nnz, *matrix.shape)
    kind = np.int32 if largest <= np.iinfo(np.int32).max else np.int64
    matrix.indices = matrix.indices.astype(kind, copy=False)
    matrix.indptr = matrix.indptr.astype(kind, copy=False)
    return matrix


def _plain_columns(frame: "nw.DataFrame[Any]") -> "nw.DataFrame[Any]":
    """Return the frame with -0.0 as +0.0 and one NaN bit pattern; missing values stay missing."""
    floats = [(name, kind) for name, kind in frame.schema.items() if kind.is_float()]
    if frame.implementation.is_pandas():  # an expression takes a millisecond for each column
        native = frame.to_native()
        floats = [column for column in floats if not _is_plain(native[column[0]])]
    return frame.with_columns(_plain_column(*column) for column in floats)


def _is_plain(column: Any) -> bool:
    """Return whether a pandas column is of float64 values without -0.0 and with one NaN only."""
    if column.dtype != np.float64:
        return False
    values = column.to_numpy()
    bits = values.view(np.int64)
    return not (bits[(values == 0) | np.isnan(values)] & ~_NAN_BITS).any()


def _plain_column(name: str, kind: "nw.dtypes.DType") -> "nw.Expr":
    column = nw.col(name)
    missing = nw.when(column.is_nan()).then(nw.lit(float("nan"), kind)).otherwise(column)
    # Not `column + 0.0`, which polars simplifies away.
    return nw.when(column == 0).then(nw.lit(0.0, kind)).otherwise(missing).alias(name)


def tidy_frame(frame: "nw.DataFrame[Any]") -> Table:
    """Return the native frame without old row labels, unused categories and shared strings.

    A filtered frame keeps the labels of its rows and the *names* of categories that only forgotten
    rows had.
    """
    frame = nw.maybe_reset_index(frame)
    for name, kind in frame.schema.items():
        if kind in (nw.Categorical, nw.Enum):
            frame = frame.with_columns(_drop_unused_categories(frame.get_column(name)).alias(name))
        elif kind == nw.String and frame.implementation.is_polars():
            # In a new buffer; rows taken from a polars frame share the old one.
            texts = frame.get_column(name).to_list()
            own = nw.new_series(name, texts, nw.String, backend="polars")
            frame = frame.with_columns(own.alias(name))
    return frame.to_native()


def _drop_unused_categories(series: "nw.Series[Any]") -> "nw.Series[Any]":
    native = series.to_native()
    if not series.implementation.is_polars():
        native = native.cat.remove_unused_categories()
        if not native.cat.ordered:  # a sorted order reveals nothing about earlier rows
            order = sorted(native.cat.categories, key=lambda value: (type(value).__name__, value))
            native = native.cat.reorder_categories(order)
        return _as_series(native)
    if isinstance(series.dtype, nw.Enum):
        present = set(series.cast(nw.String).drop_nulls().to_list())
        native = native.cast(
            type(native.dtype)([name for name in series.dtype.categories if name in present])
        )
    return _as_series(native)


def _same_categories(
    frames: "list[nw.DataFrame[Any]]", orders: Orders | None
) -> "list[nw.DataFrame[Any]]":
    """Return two frames whose categorical columns have the categories of both."""
    head, tail = frames
    for name, kind in head.schema.items():
        if kind not in (nw.Categorical, nw.Enum):
            continue
        native, other = head.get_column(name).to_native(), tail.get_column(name).to_native()
        if not head.implementation.is_polars():
            stored, new = native.cat.categories.tolist(), other.cat.categories.tolist()
            wanted = orders if native.cat.ordered else None
            union = merge_categories(name, stored, new, wanted)
            head = head.with_columns(_as_series(native.cat.set_categories(union)).alias(name))
            tail = tail.with_columns(_as_series(other.cat.set_categories(union)).alias(name))
        elif kind == nw.Enum:
            stored, new = native.dtype.categories.to_list(), other.dtype.categories.to_list()
            wide = type(native.dtype)(merge_categories(name, stored, new, orders))
            head = head.with_columns(_as_series(native.cast(wide)).alias(name))
            tail = tail.with_columns(_as_series(other.cast(wide)).alias(name))
    return [head, tail]


def _as_series(native: Any) -> "nw.Series[Any]":
    return nw.from_native(native, series_only=True)


def _require_same_layout(X: Table, other: Table) -> None:
    expected, layout = _table_layout(X), _table_layout(other)
    if expected == layout:
        return
    if expected[0] == layout[0] and isinstance(expected[-1], tuple):
        wrong = [
            f"{a} instead of {b}" for a, b in zip(layout[1:], expected[1:], strict=False) if a != b
        ]
        what = "; ".join(wrong[:3]) or f"{len(layout) - 1} columns, not {len(expected) - 1}"
        raise ValueError(
            f"the columns of X differ from those in fit: {what}. Pass the same columns in the "
            f"same order and with the same dtypes (frame[list(model.feature_names_in_)], astype)"
        )
    raise ValueError(
        f"X has the layout {layout}; this model was fitted with {expected}. Pass the same kind of "
        f"table"
    )


def _table_layout(X: Table) -> tuple[Any, ...]:
    if isinstance(X, np.ndarray):
        kind = "number" if X.dtype.kind in "biuf" else X.dtype.name
        return ("array", kind, *X.shape[1:])
    if sp.issparse(X):
        return ("sparse", X.shape[1])
    frame = nw.from_native(X, eager_only=True)
    kinds = [
        (name, type(kind).__name__ if kind in (nw.Categorical, nw.Enum) else str(X[name].dtype))
        for name, kind in frame.schema.items()
    ]
    return (str(frame.implementation), *kinds)
