"""Rows for nets: tables and images, as float32 or uint8."""

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array

from letheon.inner import remember_features, require_features


def hold_rows(model: Any, X: Any) -> NDArray[Any]:
    """Return rows in memory of their own: uint8 as they are, everything else as float32."""
    given = _as_array(X, model)
    kind = np.uint8 if getattr(given, "dtype", None) == np.uint8 else np.float32
    options = {"order": "C", "copy": True, "allow_nd": True, "input_name": "X"}
    try:
        rows: NDArray[Any] = check_array(given, dtype=kind, estimator=model, **options)
    except ValueError as error:
        if "could not convert" not in str(error):
            raise
    else:
        return rows
    # Outside the handler: the text of the other error quotes somebody's row.
    raise ValueError("X holds texts, and a net needs numbers; encode these columns first")


def ask_rows(model: Any, X: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return rows to answer, or raise unless they have the shape of those of the fit."""
    if len(shape) == 1:
        require_features(model, X)
    rows = hold_rows(model, X)
    if rows.shape[1:] != shape:
        raise ValueError(f"X has rows of shape {rows.shape[1:]}; this net was fitted with {shape}")
    return rows


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
            "use X.toarray(), or a method of letheon.convex"
        )
    return X
