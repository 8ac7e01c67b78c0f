"""Class labels as a caller gives them: refused where their kind is unclear, held in one dtype."""

from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import column_or_1d

from letheon.data._tables import hold_target


def hold_labels(y: Any, *, name: str, regressor: str) -> NDArray[Any]:
    """Return class labels in canonical form, or raise for those of the wrong kind.

    `name` is the estimator's and `regressor` the one to take for fractions instead.
    """
    require_labels(y)
    given = column_or_1d(y, warn=True)
    assert_all_finite(given, estimator_name=name, input_name="y")
    labels = hold_target(given)
    # Of dates NumPy may make numbers.
    if labels.dtype.kind not in "biUf" or given.dtype.kind in "mM":
        raise ValueError(
            f"y holds labels of type {kind_of(given)}; give numbers, truth values or texts"
        )
    if labels.dtype.kind != "f":
        return labels
    if (labels != np.floor(labels)).any():
        raise ValueError(
            f"Unknown label type: continuous; y holds fractions, so {regressor} may be "
            "what you want"
        )
    return labels + 0.0  # -0.0 becomes 0.0


def require_labels(y: Any) -> None:
    """Raise for labels that are missing or of mixed kinds, in a list, objects or a series."""
    series = nw.from_native(y, series_only=True, pass_through=True)
    if isinstance(series, nw.Series) and not series.dtype.is_float() and series.is_null().any():
        raise ValueError("y has missing labels; leave these rows out")
    if not isinstance(y, list | tuple) and str(getattr(y, "dtype", "")).lower() != "object":
        return
    values = np.asarray(y, object).ravel().tolist()
    missing = sorted({"None" if value is None else "NaN" for value in values if _is_missing(value)})
    if missing:
        raise ValueError(f"y has missing labels ({', '.join(missing)}); leave these rows out")
    kinds = {type(_plain(value)).__name__ for value in values}
    if len(kinds) > 1:
        raise ValueError(f"y mixes {' and '.join(sorted(kinds))}; give labels of one kind")


def kind_of(labels: NDArray[Any]) -> str:
    """Return the name of the type of labels, for people."""
    return type(labels.flat[0]).__name__ if labels.dtype.kind == "O" else labels.dtype.name


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
