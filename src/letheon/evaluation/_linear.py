"""Other ways to retrain a linear model: scikit-learn's solvers for the same regularised loss."""

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier

from letheon.evaluation._contender import Contender, plain
from letheon.evaluation._problem import Rows

__all__ = ["linear_rivals", "regularised_loss"]

_MOST_CHOLESKY_COLUMNS = 1_000


def linear_rivals(unlearner: Any, rows: Rows) -> list[Contender]:
    """Return scikit-learn's solvers for the logistic loss of a linear unlearner; else nobody."""
    params = unlearner.get_params(deep=False)
    if not {"l2", "reg", "fit_intercept", "rows", "row_norm"} <= params.keys():
        return []
    is_bounded = params["rows"] in ("clip", "normalize") and params["row_norm"] is not None
    if not params["l2"] > 0 or (is_bounded and sparse.issparse(rows.X)):
        return []
    if params.get("loss") == "squared":
        return [_ridge(params)]
    if params.get("loss") or "multi_class" not in params:
        return []
    solvers = ["lbfgs"]
    if rows.X.shape[1] <= _MOST_CHOLESKY_COLUMNS and not sparse.issparse(rows.X):
        solvers.append("newton-cholesky")
    return [_logistic(solver, params, rows) for solver in solvers]


def _ridge(params: dict[str, Any]) -> Contender:
    """Return the closed form of the squared loss."""

    def fit(some: Rows) -> Any:
        model = Ridge(_penalty(params, some), fit_intercept=params["fit_intercept"])
        return plain(model).fit(Rows(_bounded(some.X, params), some.y, some.ids))

    return Contender("scikit-learn ridge", fit)


def _penalty(params: dict[str, Any], rows: Rows) -> float:
    """Return the factor of half the squared coefficients, against the sum of the losses."""
    return float(params["l2"]) * (len(rows) if params["reg"] == "per_sample" else 1)


def _logistic(solver: str, params: dict[str, Any], rows: Rows) -> Contender:
    def fit(some: Rows) -> Any:
        model: Any = LogisticRegression(
            C=1 / _penalty(params, some),
            fit_intercept=params["fit_intercept"],
            solver=solver,
            tol=1e-6,
            max_iter=5_000,
        )
        if params["multi_class"] == "ovr" and len(np.unique(rows.y)) > 2:
            model = OneVsRestClassifier(model)
        return plain(model).fit(Rows(_bounded(some.X, params), some.y, some.ids))

    return Contender(f"scikit-learn {solver}", fit)


def _bounded(table: Any, params: dict[str, Any]) -> Any:
    """Return the rows scaled as the unlearner scales them to its bound of norms."""
    if params["rows"] in ("keep", "refuse") or params["row_norm"] is None:
        return table
    X = np.asarray(table, dtype=np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", X, X) + bool(params["fit_intercept"]))
    is_scaled = norms > (0 if params["rows"] == "normalize" else params["row_norm"])
    factors = np.where(is_scaled, params["row_norm"] / np.where(norms > 0, norms, 1), 1)
    return np.asarray(X * factors[:, None])


def regularised_loss(unlearner: Any, model: Any, rows: Rows) -> float | None:
    """Return the training loss of a binary linear classifier, with its regulariser."""
    params = unlearner.get_params(deep=False)
    coef = getattr(model, "coef_", None)
    if not {"l2", "rows", "row_norm"} <= params.keys() or coef is None or len(coef) != 1:
        return None
    if not hasattr(model, "classes_") or len(np.unique(rows.y)) != 2:
        return None
    sign = np.where(rows.y == model.classes_[1], 1.0, -1.0)
    X = rows.X if sparse.issparse(rows.X) else np.asarray(_bounded(rows.X, params))
    scores = X @ np.ravel(coef) + float(np.ravel(model.intercept_)[0])
    penalty = 0.5 * _penalty(params, rows) / len(rows) * float(np.sum(np.square(coef)))
    return float(np.mean(np.logaddexp(0, -sign * scores))) + penalty
