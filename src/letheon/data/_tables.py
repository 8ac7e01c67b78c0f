"""X and y as a model holds them: converted once, owned, in canonical order.

A table is a NumPy array (C order), a scipy.sparse CSR, a pandas or polars frame, or one column of
texts. The inner estimator of a wrapper receives the kind of table that was given.
"""

import math
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite, check_array
from sklearn.utils.validation import column_or_1d

Table = Any
_INT64 = np.iinfo(np.int64)


def table_length(X: Table) -> int:
    """Return the number of rows."""
    return int(X.shape[0])


def is_text_column(X: Table) -> bool:
    """Return whether X is one column of texts, as text vectorisers take it."""
    return isinstance(X, np.ndarray) and X.ndim == 1


def hold_table(X: Any) -> Table:
    """Convert X once: own copy, C order, -0.0 to +0.0, one NaN pattern.

    Raises the errors scikit-learn users know for empty, one-dimensional or complex input;
    whether NaN and infinity are allowed is the inner estimator's business.
    """
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        _require_rows(frame.shape)
        return _tidy_frame(_plain_columns(_fresh_rows(frame, list(range(len(frame))))))
    if not sp.issparse(X) and _is_texts(X):
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
    """Return X as the model may be asked about it: converted as when held, safe from writing.

    Copied only where that is needed; an estimator that works in place cannot spoil the caller's X.
    """
    if sp.issparse(X):
        return X.copy()
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        return frame.clone().to_native()
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "biuf":
        zeros = X[X == 0] if X.dtype.kind == "f" else X[:0]
        return X + 0.0 if np.signbit(zeros).any() else read_only(X)
    return hold_table(X)


def _with_dtype(X: Any) -> Any:
    """Return a list as an array whose dtype does not depend on rows that may leave: float64."""
    if not isinstance(X, list | tuple):
        return X
    array = np.asarray(X)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    texts = np.asarray(X, object).ravel() if array.dtype.kind == "U" else ()
    if array.dtype.kind == "O" or not all(isinstance(value, str) for value in texts):
        raise ValueError(
            "X is a list that holds more than numbers, or more than texts; give "
            "np.array(X, dtype=object) or a data frame"
        )
    return array


def take_rows(X: Table, positions: NDArray[np.int64]) -> Table:
    """Return the rows at these positions in fresh memory; the others leave no trace in it."""
    if isinstance(X, np.ndarray):
        return X[positions]
    if sp.issparse(X):
        return _canonical_sparse(X[positions])
    return _tidy_frame(_fresh_rows(nw.from_native(X, eager_only=True), positions.tolist()))


def _fresh_rows(frame: "nw.DataFrame[Any]", positions: list[int]) -> "nw.DataFrame[Any]":
    """Return rows in fresh memory.

    polars copies what it takes by number, but not what it clones, and it can share memory with the
    caller's NumPy arrays. pandas takes neighbouring rows as a view, but its clones are copies.
    """
    return frame[positions].clone()


def slice_rows(X: Table, begin: int, end: int) -> Table:
    """Return rows begin..end to train on: a read-only view, or a copy that may be spoilt.

    An estimator told not to copy (``copy_X=False``) writes into what it is given.
    """
    if isinstance(X, np.ndarray):
        return read_only(X[begin:end])
    if sp.issparse(X):
        return X[begin:end]  # scipy copies, and some estimators refuse read-only sparse data
    return nw.from_native(X, eager_only=True)[begin:end].clone().to_native()


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view of the array that nobody can write through."""
    view = array.view()
    view.flags.writeable = False
    return view


def join_rows(X: Table, other: Table) -> Table:
    """Return X followed by `other`, which must have the same kind, columns and dtypes."""
    _require_same_layout(X, other)
    if isinstance(X, np.ndarray):
        return np.concatenate([X, _cast_like(X, other, "rows")])
    if sp.issparse(X):
        data = _cast_like(X, other.data, "rows")
        other = type(X)((data, other.indices, other.indptr), shape=other.shape)
        return _canonical_sparse(sp.vstack([X, other], format="csr"))
    frames = [nw.from_native(table, eager_only=True) for table in (X, other)]
    return _tidy_frame(nw.concat(_same_categories(frames), how="vertical"))


def hold_target(y: Any, *, as_float: bool = False) -> NDArray[Any]:
    """Return y as an owned array of a canonical dtype.

    int64, float64, bool or the narrowest fixed-width text: the width of a text dtype would
    otherwise still show the length of a forgotten label. With `as_float`, for regression, numbers
    are float64 whatever they were.
    """
    if not as_float:
        require_one_kind(y)
    array = check_array(y, ensure_2d=False, dtype=None, ensure_all_finite=False, input_name="y")
    labels = _canonical_labels(array)
    return labels.astype(np.float64) if as_float and labels.dtype.kind in "bi" else labels


def require_one_kind(y: Any) -> None:
    """Refuse labels of mixed kinds: their common dtype would depend on rows that may leave.

    In an array of objects texts may stand beside numbers; in a list NumPy would turn the numbers
    into texts.
    """
    numbers = {"bool", "int", "float"}
    kinds = {type(_plain_value(value)).__name__ for value in _objects_of(y)}
    _require_one(kinds & (numbers | {"str"} if isinstance(y, list | tuple) else numbers))


def _objects_of(y: Any) -> list[Any]:
    """Return the labels of a list or of an array of objects; arrays of one dtype hold no others."""
    is_list = isinstance(y, list | tuple)
    if not is_list and str(getattr(y, "dtype", "")).lower() != "object":
        return []
    return np.asarray(y, object).ravel().tolist()


def _require_one(kinds: set[str]) -> None:
    if len(kinds) > 1:
        raise ValueError(f"y mixes {' and '.join(sorted(kinds))}; give labels of one kind")


def _plain_value(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def hold_labels(y: Any, *, name: str, regressor: str) -> NDArray[Any]:
    """Return class labels in canonical form, or raise for those of the wrong kind.

    `name` is the estimator's and `regressor` the one to take for fractions instead.
    """
    _require_labels(y)
    given = column_or_1d(y, warn=True)
    assert_all_finite(given, estimator_name=name, input_name="y")
    labels = hold_target(given)
    # Of dates NumPy may make numbers.
    if labels.dtype.kind not in "biUf" or given.dtype.kind in "mM":
        kind = type(given.flat[0]).__name__ if given.dtype.kind == "O" else given.dtype.name
        raise ValueError(f"y holds labels of type {kind}; give numbers, truth values or texts")
    if labels.dtype.kind != "f":
        return labels
    if (labels != np.floor(labels)).any():
        raise ValueError(
            f"Unknown label type: continuous; y holds fractions, so {regressor} may be "
            "what you want"
        )
    return labels + 0.0  # -0.0 becomes 0.0


def _require_labels(y: Any) -> None:
    """Raise for labels that are missing or of mixed kinds, in a list, objects or a series."""
    series = nw.from_native(y, series_only=True, pass_through=True)
    if isinstance(series, nw.Series) and not series.dtype.is_float() and series.is_null().any():
        raise ValueError("y has missing labels; leave these rows out")
    values = [_plain_value(value) for value in _objects_of(y)]
    missing = {"None" if value is None else "NaN" for value in values if _is_missing(value)}
    if missing:
        raise ValueError(
            f"y has missing labels ({', '.join(sorted(missing))}); leave these rows out"
        )
    _require_one({type(value).__name__ for value in values})


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def take_target(y: NDArray[Any] | None, positions: NDArray[np.int64]) -> NDArray[Any] | None:
    """Return the labels at these positions in a canonical dtype."""
    return None if y is None else _canonical_labels(y[positions])


def join_target(y: NDArray[Any] | None, other: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return y followed by `other`; numbers and texts do not mix."""
    if y is None or other is None:
        if y is not other:
            raise ValueError("the model was fitted with y or without it; give the same now")
        return None
    if (y.dtype.kind == "U") != (other.dtype.kind == "U") or y.shape[1:] != other.shape[1:]:
        raise ValueError(
            f"new labels are {_label_kind(other)}; this model was fitted with {_label_kind(y)}"
        )
    if y.dtype.kind != "U":
        other = _cast_like(y, other, "labels")
    return _canonical_labels(np.concatenate([y, other]))


def _cast_like(held: Any, given: NDArray[Any], what: str) -> NDArray[Any]:
    """Return the given values in the held dtype, which must not depend on rows that may leave.

    Raises rather than change a value: 1.5 among ints, 300 among int8. Floats may be rounded.
    """
    dtype = held.dtype
    with np.errstate(invalid="ignore"):
        cast = given.astype(dtype, copy=False)
    both_floats = dtype.kind == given.dtype.kind == "f"
    if dtype != given.dtype and not both_floats and not _same_values(cast, given):
        raise ValueError(
            f"new {what} have dtype {given.dtype} and values that {dtype}, which this model "
            f"holds, cannot represent; fit with {given.dtype} {what} from the start"
        )
    return cast


def _same_values(cast: NDArray[Any], given: NDArray[Any]) -> bool:
    """Whether a cast lost nothing, there and back: large whole numbers round alike as floats."""
    with np.errstate(invalid="ignore"):
        back = cast.astype(given.dtype)
    return np.array_equal(cast, given) and np.array_equal(back, given)


def _require_rows(shape: tuple[int, int]) -> None:
    if 0 in shape:
        what = "sample(s)" if shape[0] == 0 else "feature(s)"
        raise ValueError(
            f"Found array with 0 {what} (shape={shape}) while a minimum of 1 is required"
        )


def _is_texts(X: Any) -> bool:
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
    return _plain_floats(array)


def _plain_floats(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "f":
        array += 0.0  # -0.0 + 0.0 is +0.0
        missing = np.isnan(array)
        if missing.any():
            array[missing] = np.nan
    return array


def _canonical_sparse(matrix: Any) -> Any:
    matrix.sum_duplicates()
    matrix.sort_indices()
    matrix.data = _plain_floats(matrix.data)
    largest = max(matrix.nnz, *matrix.shape)
    kind = np.int32 if largest <= np.iinfo(np.int32).max else np.int64
    matrix.indices = matrix.indices.astype(kind, copy=False)
    matrix.indptr = matrix.indptr.astype(kind, copy=False)
    return matrix


def _canonical_labels(array: NDArray[Any]) -> NDArray[Any]:
    match array.dtype.kind:
        case "i" | "u":
            return _int64_labels(array)
        case "f":
            return array.astype(np.float64)
        case "b":
            return array.copy()
    values = [_plain_value(value) for value in array.ravel().tolist()]
    return _labels_of(values).reshape(array.shape)


def _labels_of(values: list[Any]) -> NDArray[Any]:
    if all(isinstance(value, str) for value in values):
        return np.array(values, dtype=np.str_)
    kinds = {type(value) for value in values}
    if kinds == {int}:
        return _int64_labels(np.array(values, object))
    if kinds <= {int, float}:
        return np.array(values, np.float64)
    return np.array(values, bool if kinds == {bool} else object)


def _int64_labels(array: NDArray[Any]) -> NDArray[np.int64]:
    for extreme in (array.min(), array.max()) if array.size else ():
        if not _INT64.min <= extreme <= _INT64.max:
            raise ValueError(f"y holds {extreme}, which does not fit 64 bits; use str labels")
    return array.astype(np.int64)


def _plain_columns(frame: "nw.DataFrame[Any]") -> "nw.DataFrame[Any]":
    """Return the frame with -0.0 as +0.0 and one NaN pattern; missing values stay missing."""
    floats = [(name, kind) for name, kind in frame.schema.items() if kind.is_float()]
    return frame.with_columns(_plain_column(*column) for column in floats)


def _plain_column(name: str, kind: "nw.dtypes.DType") -> "nw.Expr":
    column = nw.col(name)
    missing = nw.when(column.is_nan()).then(nw.lit(float("nan"), kind)).otherwise(column)
    # Not `column + 0.0`, which polars simplifies away.
    return nw.when(column == 0).then(nw.lit(0.0, kind)).otherwise(missing).alias(name)


def _tidy_frame(frame: "nw.DataFrame[Any]") -> Table:
    """Return the native frame without old row labels, unused categories and shared texts.

    A filtered frame keeps the labels of its rows and the *names* of values that only forgotten
    rows had.
    """
    frame = nw.maybe_reset_index(frame)
    for name, kind in frame.schema.items():
        if kind in (nw.Categorical, nw.Enum):
            frame = frame.with_columns(_used_categories(frame.get_column(name)).alias(name))
        elif kind == nw.String and frame.implementation.is_polars():
            # In a fresh buffer; rows taken from a polars frame share the old one.
            texts = frame.get_column(name).to_list()
            own = nw.new_series(name, texts, nw.String, backend="polars")
            frame = frame.with_columns(own.alias(name))
    return frame.to_native()


def _used_categories(series: "nw.Series[Any]") -> "nw.Series[Any]":
    native = series.to_native()
    if not series.implementation.is_polars():
        native = native.cat.remove_unused_categories()
        if not native.cat.ordered:  # their order tells nothing of who was there before
            order = sorted(native.cat.categories, key=lambda value: (type(value).__name__, value))
            native = native.cat.reorder_categories(order)
        return _as_series(native)
    if isinstance(series.dtype, nw.Enum):
        present = set(series.cast(nw.String).drop_nulls().to_list())
        native = native.cast(
            type(native.dtype)([name for name in series.dtype.categories if name in present])
        )
    return _as_series(native)


def _same_categories(frames: "list[nw.DataFrame[Any]]") -> "list[nw.DataFrame[Any]]":
    """Return the frames with categorical columns as the union of both sets of categories."""
    head, tail = frames
    for name, kind in head.schema.items():
        if kind not in (nw.Categorical, nw.Enum):
            continue
        native, other = head.get_column(name).to_native(), tail.get_column(name).to_native()
        if not head.implementation.is_polars():
            held = native.cat.categories
            union = [*held, *(value for value in other.cat.categories if value not in held)]
            head = head.with_columns(_as_series(native.cat.set_categories(union)).alias(name))
            tail = tail.with_columns(_as_series(other.cat.set_categories(union)).alias(name))
        elif kind == nw.Enum:
            held = native.dtype.categories.to_list()
            more = [value for value in other.dtype.categories.to_list() if value not in held]
            wide = type(native.dtype)([*held, *more])
            head = head.with_columns(_as_series(native.cast(wide)).alias(name))
            tail = tail.with_columns(_as_series(other.cast(wide)).alias(name))
    return [head, tail]


def _as_series(native: Any) -> "nw.Series[Any]":
    return nw.from_native(native, series_only=True)


def _label_kind(y: NDArray[Any]) -> str:
    kind = "texts" if y.dtype.kind == "U" else f"numbers ({y.dtype})"
    return kind if y.ndim == 1 else f"{kind} in {y.shape[1]} columns"


def _require_same_layout(X: Table, other: Table) -> None:
    held, given = _layout(X), _layout(other)
    if held == given:
        return
    if held[0] == given[0] and isinstance(held[-1], tuple):
        wrong = [
            f"{a} where {b} is held" for a, b in zip(given[1:], held[1:], strict=False) if a != b
        ]
        what = "; ".join(wrong[:3]) or f"{len(given) - 1} columns, not {len(held) - 1}"
        raise ValueError(
            f"new rows have other columns: {what}. Give the columns of the fit, in that order and "
            "with those dtypes (frame[list(model.feature_names_in_)], astype)"
        )
    raise ValueError(f"new rows are {given}; this model holds {held}; give the same kind of table")


def _layout(X: Table) -> tuple[Any, ...]:
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
