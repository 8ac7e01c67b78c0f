"""Rows for nets: tables and images, as float32 or uint8."""

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array

from letheon.inner import remember_features, require_features

# Words of other people's errors that quote somebody's row, and what is said instead.
_QUOTING = {
    "could not convert": "X holds texts, and a net needs numbers; encode these columns first",
    "could not be promoted": "X holds dates, and a net needs numbers; encode these columns first",
    "Expected 2D array": (
        "Expected 2D array, or one with more axes, for X: one row per person. Reshape your data "
        "with X.reshape(-1, 1) if it has a single feature, or X.reshape(1, -1) if it is one row"
    ),
    "Complex data": "Complex data not supported: X holds complex numbers",
}


def hold_rows(model: Any, X: Any) -> NDArray[Any]:
    """Return rows in memory of their own: uint8 as they are, everything else as float32."""
    return _rows(model, X, copy=True)


def _rows(model: Any, X: Any, *, copy: bool) -> NDArray[Any]:
    given = _as_array(X, model)
    kind = np.uint8 if getattr(given, "dtype", None) == np.uint8 else np.float32
    options = {"order": "C", "copy": copy, "allow_nd": True, "input_name": "X"}
    try:
        rows: NDArray[Any] = check_array(given, dtype=kind, estimator=model, **options)
    except (ValueError, TypeError) as error:
        words = [said for word, said in _QUOTING.items() if word in str(error)]
        if not words:
            raise
    else:
        return rows
    # Outside the handler: the text of the other error quotes somebody's row.
    raise ValueError(words[0])


def ask_rows(model: Any, X: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return rows to answer, or raise unless they have the shape of those of the fit.

    They are only read, and may be the caller's own memory.
    """
    if len(shape) == 1:
        require_features(model, X)
    rows = _rows(model, X, copy=False)
    if rows.shape[1:] != shape:
        raise ValueError(f"X has rows of shape {rows.shape[1:]}; this net was fitted with {shape}")
    # torch takes no memory that is read-only.
    return rows if rows.flags.writeable else rows.copy()


def shape_attributes(X: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return `n_features_in_`, and `feature_names_in_` for a table with names."""
    if len(shape) > 1:
        return {"n_features_in_": int(np.prod(shape))}
    # On somebody else: a fit that fails later must not have renamed the columns of the model.
    stand_in = BaseEstimator()
    remember_features(stand_in, X)
    return vars(stand_in)


def remember_shape(model: Any, X: Any, shape: tuple[int, ...]) -> None:
    """Set what `shape_attributes` returns; names of an earlier fit go."""
    vars(model).pop("feature_names_in_", None)
    vars(model).update(shape_attributes(X, shape))


def _as_array(X: Any, model: Any) -> Any:
    if isinstance(X, torch.Tensor):
        # NumPy knows no bfloat16.
        X = X.detach().cpu()
        return (X.float() if X.dtype == torch.bfloat16 else X).numpy()
    if sp.issparse(X):
        raise TypeError(
            f"Sparse data was passed for X, but {type(model).__name__} takes dense rows only; "
            "use X.toarray(), or a method of letheon.linear"
        )
    return X
