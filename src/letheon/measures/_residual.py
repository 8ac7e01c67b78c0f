"""The gradient that unlearning has left: zero at the retrained optimum."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from letheon.measures._measure import Measure, known

__all__ = ["gradient_residual", "gradient_residual_of"]


def gradient_residual(gradient: ArrayLike, n_rows: int) -> Measure:
    """Return the size of the gradient on the remaining rows, per row.

    ``|| grad L(theta_U, D_r) ||_2 / n`` with `L` the sum of losses over the ``n`` rows of ``D_r``,
    regulariser and, where the training objective has one, noise term included (the survey's
    residual leaves the noise term out, which is not what Guo et al. bound).

    Parameters
    ----------
    gradient : array-like
        Gradient of the *summed* objective at the unlearned parameters, of any shape.
    n_rows : int
        Rows that remain.

    Returns
    -------
    Measure
        Lower is better; 0 exactly at a stationary point. A fact about these parameters: ``low =
        value = high``. With strong convexity ``mu`` per row, ``value / mu`` bounds the distance of
        the parameters to the retrained optimum. `n` is the number of rows.

    Examples
    --------
    >>> gradient_residual([[3.0], [4.0]], n_rows=10).value
    0.5
    """
    if n_rows < 1:
        raise ValueError(f"n_rows must be at least 1, not {n_rows!r}")
    values = np.asarray(gradient, dtype=np.float64).ravel()
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError("the gradient must hold finite numbers, at least one")
    # scaled first, so that squares neither overflow nor vanish
    scale = float(abs(values).max())
    length = scale * float(np.linalg.norm(values / scale)) if scale > 0 else 0.0
    size = length / n_rows
    return known("gradient residual", size, (size, size), int(n_rows))


def gradient_residual_of(model: Any) -> Measure | None:
    """Return `gradient_residual` of a fitted model, None if the model cannot tell.

    Parameters
    ----------
    model : estimator
        A model with `exact_residual` (one pass over the rows it holds) and `n_rows_`, as the
        linear models of `letheon.linear` have while they hold their rows. Noise that is added to
        the parameters (Fisher, Descent-to-Delete) shows in it, after a retrain too.

    Returns
    -------
    Measure or None
    """
    ask = getattr(model, "exact_residual", None)
    if ask is None or getattr(model, "data_free", False):
        return None
    return gradient_residual([ask()], model.n_rows_)
