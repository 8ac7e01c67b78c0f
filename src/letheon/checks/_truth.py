"""The gradient of a linear model's problem, in extended precision and written a second time."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from letheon.noise import Sealed

__all__ = ["true_residual", "unperturbed_weights"]

Long = NDArray[np.longdouble]


def unperturbed_weights(model: Any) -> NDArray[np.float64]:
    """Return the sealed parameters before noise of a linear model, shape (d, K)."""
    held = vars(model)
    names = ("weights_", "unperturbed_", "optimum_")
    sealed = next((held[name] for name in names if held.get(name) is not None), None)
    if sealed is None:
        raise TypeError(f"{type(model).__name__} holds no parameters before noise; give `secret=`")
    values = np.asarray(sealed.open() if hasattr(sealed, "open") else sealed, np.float64)
    return values[0] if values.ndim == 3 else values  # Fisher seals its gradient with them


def true_residual(model: Any) -> float:
    """Return the norm of the gradient at the parameters before noise, on the rows held.

    For Influence and other linear models with the same objective that hold their rows; computed
    in `numpy.longdouble`, which has 64 bits or more on most machines.
    """
    rows = model.rows_
    X = rows.X[rows.alive]
    X = np.asarray(X.toarray() if sp.issparse(X) else X).astype(np.longdouble)
    W = unperturbed_weights(model).astype(np.longdouble)
    loss = model._loss(model.model_.classes)
    with np.errstate(over="ignore", under="ignore"):
        slopes = _slopes(type(loss).__name__, X @ W, rows.y[rows.alive], loss)
        ridge = np.longdouble(model.l2) * (len(X) if model.reg == "per_sample" else 1)
        gradient = X.T @ slopes + ridge * W
        if isinstance(vars(model).get("noise_"), Sealed):
            gradient = gradient + model.noise_.open()
        return float(np.sqrt((gradient * gradient).sum()))


def _slopes(kind: str, Z: Long, y: NDArray[Any], loss: Any) -> Long:
    """Return the derivative of every row's loss in its scores."""
    if kind in ("Squared", "PseudoHuber"):
        gaps = Z - y[:, None]
        return np.asarray(gaps if kind == "Squared" else gaps / np.hypot(1, gaps / loss.scale))
    own = y[:, None] == (np.arange(Z.shape[1]) if Z.shape[1] > 1 else 1)
    if kind == "Logistic":
        # No difference of numbers that are nearly equal.
        return np.asarray(np.where(own, -1 / (1 + np.exp(Z)), 1 / (1 + np.exp(-Z))))
    shares = np.exp(Z - Z.max(axis=1, keepdims=True))
    total, others = shares.sum(axis=1, keepdims=True), np.where(own, 0, shares)
    return np.asarray(np.where(own, -others.sum(axis=1, keepdims=True), others) / total)
