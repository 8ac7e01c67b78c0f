"""Other ways to retrain a linear model: scikit-learn's solvers for the same regularised loss.

The linear models of letheon regularise the intercept as any other coefficient, and scale a row
together with the intercept's 1. So the rivals get the ones as a column, and fit no intercept.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier

from letheon.evaluation._contender import Contender, plain
from letheon.evaluation._problem import Rows

__all__ = ["linear_rivals", "regularised_loss"]

_SETTINGS = {"l2", "reg", "fit_intercept", "rows", "row_norm"}
_MOST_CHOLESKY_COLUMNS = 1_000


class _Rival:
    """A model of rows with a column of ones, with its intercept where others have it."""

    def __init__(self, model: Any, params: dict[str, Any]) -> None:
        weights = np.atleast_2d(_weights(model))
        self.model, self.params = model, params
        has_ones = params["fit_intercept"]
        self.coef_ = weights[:, :-1] if has_ones else weights
        self.intercept_ = weights[:, -1] if has_ones else np.zeros(len(weights))
        if hasattr(model, "classes_"):
            self.classes_ = model.classes_

    def predict(self, X: Any) -> Any:
        return self.model.predict(_design(X, self.params))


def linear_rivals(unlearner: Any, rows: Rows) -> list[Contender]:
    """Return scikit-learn's solvers for the loss of a linear unlearner; else nobody."""
    params = unlearner.get_params(deep=False)
    if not params.keys() >= _SETTINGS:
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
        return _fitted(Ridge(_penalty(params, some), fit_intercept=False), params, some)

    return Contender("scikit-learn ridge", fit)


def _logistic(solver: str, params: dict[str, Any], rows: Rows) -> Contender:
    def fit(some: Rows) -> Any:
        model: Any = LogisticRegression(
            C=1 / _penalty(params, some),
            fit_intercept=False,
            solver=solver,
            tol=1e-6,
            max_iter=5_000,
        )
        if params["multi_class"] == "ovr" and len(np.unique(rows.y)) > 2:
            model = OneVsRestClassifier(model)
        return _fitted(model, params, some)

    return Contender(f"scikit-learn {solver}", fit)


def _fitted(model: Any, params: dict[str, Any], rows: Rows) -> _Rival:
    design = Rows(_design(rows.X, params), rows.y, rows.ids)
    return _Rival(plain(model).fit(design), params)


def _penalty(params: dict[str, Any], rows: Rows) -> float:
    """Return the factor of half the squared coefficients, against the sum of the losses."""
    return float(params["l2"]) * (len(rows) if params["reg"] == "per_sample" else 1)


def _design(table: Any, params: dict[str, Any]) -> Any:
    """Return the rows as the unlearner sees them: with ones, then scaled to its bound of norms."""
    if sparse.issparse(table):
        ones = np.ones((table.shape[0], 1))
        return sparse.hstack([table, ones], format="csr") if params["fit_intercept"] else table
    X = np.asarray(table, dtype=np.float64)
    if params["fit_intercept"]:
        X = np.column_stack([X, np.ones(len(X))])
    if params["rows"] in ("keep", "refuse") or params["row_norm"] is None:
        return X
    norms = np.sqrt(np.einsum("ij,ij->i", X, X))
    is_scaled = norms > (0 if params["rows"] == "normalize" else params["row_norm"])
    factors = np.where(is_scaled, params["row_norm"] / np.where(norms > 0, norms, 1), 1)
    return np.asarray(X * factors[:, None])


def _weights(model: Any) -> NDArray[Any]:
    if isinstance(model, OneVsRestClassifier):
        return np.vstack([each.coef_ for each in model.estimators_])
    return np.asarray(model.coef_)


def regularised_loss(unlearner: Any, model: Any, rows: Rows) -> float | None:
    """Return the mean training loss of a linear model with its regulariser, intercept included.

    None where the loss is not known: no linear model, or one of another shape.
    """
    params = unlearner.get_params(deep=False)
    if not params.keys() >= _SETTINGS or not hasattr(model, "coef_"):
        return None
    if params.get("loss") not in (None, "squared"):
        return None
    coef = np.atleast_2d(np.asarray(model.coef_, dtype=np.float64))
    weights = coef
    if params["fit_intercept"]:
        own = np.broadcast_to(np.asarray(model.intercept_, dtype=np.float64), len(coef))
        weights = np.column_stack([coef, own])
    elif np.any(model.intercept_):
        return None
    design = _design(rows.X, params)
    if design.shape[1] != weights.shape[1]:
        return None
    loss = _mean_loss(params, model, np.asarray(design @ weights.T), rows.y)
    penalty = 0.5 * _penalty(params, rows) / len(rows) * float(np.sum(np.square(weights)))
    return None if loss is None else loss + penalty


def _mean_loss(
    params: dict[str, Any], model: Any, scores: NDArray[Any], y: NDArray[Any]
) -> float | None:
    """Return the mean loss of scores; None where they do not fit the labels."""
    if params.get("loss") == "squared":
        return float(np.mean(np.square(scores[:, 0] - y))) / 2
    classes = np.asarray(getattr(model, "classes_", ()))
    n_scores = 1 if len(classes) == 2 else len(classes)
    if scores.shape[1] != n_scores or not np.isin(y, classes).all():
        return None
    is_own = y[:, None] == (classes[1:] if len(classes) == 2 else classes)
    own = float(np.sum(scores * is_own))
    if len(classes) > 2 and params.get("multi_class") == "softmax":
        return (float(np.sum(logsumexp(scores, axis=1))) - own) / len(y)
    return (float(np.sum(np.logaddexp(0, scores))) - own) / len(y)
