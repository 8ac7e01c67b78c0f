"""Labels and targets in canonical form."""

import math
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite, check_array
from sklearn.utils.validation import column_or_1d

from letheon.data._tables import _cast_like

_INT64 = np.iinfo(np.int64)


def hold_target(y: Any, *, as_float: bool = False) -> NDArray[Any]:
    """Return a copy of y in a canonical dtype: int64, float64, bool or fixed-width strings.

    Strings get the smallest possible width. Otherwise the dtype would reveal the length of a
    forgotten label. With `as_float`, for regression, all numbers become float64.

    Parameters
    ----------
    y : array-like
        Labels or targets.
    as_float : bool, default=False
        Whether numbers become float64.

    Examples
    --------
    >>> from letheon.data import hold_target
    >>> hold_target([0, 1, 1]).dtype.name, hold_target([0, 1, 1], as_float=True).dtype.name
    ('int64', 'float64')
    """
    if not as_float:
        require_one_kind(y)
    array = check_array(y, ensure_2d=False, dtype=None, ensure_all_finite=False, input_name="y")
    labels = _canonical_labels(array)
    return labels.astype(np.float64) if as_float and labels.dtype.kind in "bi" else labels


def require_one_kind(y: Any) -> None:
    """Raise `ValueError` for labels of mixed kinds.

    The common dtype of such labels would depend on rows that may be removed.

    An array of objects may contain both strings and numbers. A list may not, because NumPy would
    convert the numbers to strings.

    Parameters
    ----------
    y : array-like
        Labels.

    Raises
    ------
    ValueError
        The labels are of mixed kinds.

    Examples
    --------
    >>> from letheon.data import require_one_kind
    >>> require_one_kind([1, 0, 1])
    >>> require_one_kind([1, "no"])
    Traceback (most recent call last):
    ...
    ValueError: ...
    """
    numbers = {"bool", "int", "float"}
    kinds = {type(_plain_value(value)).__name__ for value in _objects_of(y)}
    _refuse_mixed_kinds(kinds & (numbers | {"str"} if isinstance(y, list | tuple) else numbers))


def _objects_of(y: Any) -> list[Any]:
    """Return the labels in a list or an array of objects; [] for an array of another dtype."""
    is_list = isinstance(y, list | tuple)
    if not is_list and str(getattr(y, "dtype", "")).lower() != "object":
        return []
    return np.asarray(y, object).ravel().tolist()


def _refuse_mixed_kinds(kinds: set[str]) -> None:
    if len(kinds) > 1:
        raise ValueError(
            f"y contains labels of several types: {' and '.join(sorted(kinds))}; expected one type"
        )


def _plain_value(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def hold_labels(y: Any, *, name: str, regressor: str) -> NDArray[Any]:
    """Return class labels in canonical form.

    Parameters
    ----------
    y : array-like
        The labels.
    name : str
        Name of the estimator, for the message.
    regressor : str
        The estimator to suggest if y contains fractions.

    Raises
    ------
    ValueError
        The values are not class labels.

    Examples
    --------
    >>> from letheon.data import hold_labels
    >>> hold_labels(["no", "yes"], name="Model", regressor="ModelRegressor")
    array(['no', 'yes'], dtype='<U3')
    """
    _require_labels(y)
    values = column_or_1d(y, warn=True)
    assert_all_finite(values, estimator_name=name, input_name="y")
    labels = hold_target(values)
    # NumPy may convert dates to numbers.
    if labels.dtype.kind not in "biUf" or values.dtype.kind in "mM":
        kind = type(values.flat[0]).__name__ if values.dtype.kind == "O" else values.dtype.name
        raise ValueError(f"y has labels of type {kind}; expected numbers, bool or strings")
    if labels.dtype.kind != "f":
        return labels
    if (labels != np.floor(labels)).any():
        raise ValueError(
            f"Unknown label type: continuous; y contains fractions. For regression use {regressor}"
        )
    return labels + 0.0  # -0.0 becomes 0.0


def _require_labels(y: Any) -> None:
    """Raise `ValueError` if labels are missing or of mixed kinds."""
    series = nw.from_native(y, series_only=True, pass_through=True)
    if isinstance(series, nw.Series) and not series.dtype.is_float() and series.is_null().any():
        raise ValueError("y has missing labels; remove the rows without a label")
    values = [_plain_value(value) for value in _objects_of(y)]
    missing = {"None" if value is None else "NaN" for value in values if _is_missing(value)}
    if missing:
        raise ValueError(
            f"y has missing labels ({', '.join(sorted(missing))}); remove the rows without a label"
        )
    _refuse_mixed_kinds({type(value).__name__ for value in values})


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def take_target(y: NDArray[Any] | None, positions: NDArray[np.int64]) -> NDArray[Any] | None:
    """Return the labels at these positions in a canonical dtype."""
    return None if y is None else _canonical_labels(y[positions])


def join_target(y: NDArray[Any] | None, other: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return y followed by `other`.

    Parameters
    ----------
    y, other : ndarray or None
        Results of `hold_target`.

    Raises
    ------
    ValueError
        One has strings and the other has numbers.

    Examples
    --------
    >>> from letheon.data import hold_target, join_target
    >>> join_target(hold_target(["no"]), hold_target(["yes"]))
    array(['no', 'yes'], dtype='<U3')
    """
    if y is None or other is None:
        if y is not other:
            raise ValueError("pass y if and only if the model was fitted with y")
        return None
    if (y.dtype.kind == "U") != (other.dtype.kind == "U") or y.shape[1:] != other.shape[1:]:
        raise ValueError(
            f"new labels are {_label_kind(other)}; this model was fitted with {_label_kind(y)}"
        )
    if y.dtype.kind != "U":
        other = _cast_like(y, other, "labels")
    return _canonical_labels(np.concatenate([y, other]))


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
            raise ValueError(
                f"y contains {extreme}, which does not fit into 64 bits; use str labels"
            )
    return array.astype(np.int64)


def _label_kind(y: NDArray[Any]) -> str:
    kind = "strings" if y.dtype.kind == "U" else f"numbers ({y.dtype})"
    return kind if y.ndim == 1 else f"{kind} in {y.shape[1]} columns"
