"""Other ways to retrain a linear model: scikit-learn's solvers for the same regularised loss."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from letheon.evaluation._contender import Contender, plain
from letheon.evaluation._problem import Rows

__all__ = ["linear_rivals", "regularised_loss"]

_MOST_CHOLESKY_COLUMNS = 1_000


def linear_rivals(unlearner: Any, rows: Rows) -> list[Contender]:
    """Return scikit-learn's solvers for the logistic loss of a linear unlearner; else nobody."""
    params = unlearner.get_params(deep=False)
    wanted = {"l2", "fit_intercept", "multi_class", "rows", "row_norm"}
    if not wanted <= params.keys() or params.get("loss") or not isinstance(rows.X, np.ndarray):
        return []
    solvers = ["lbfgs"]
    if rows.X.ndim == 2 and rows.X.shape[1] <= _MOST_CHOLESKY_COLUMNS:
        solvers.append("newton-cholesky")
    return [_rival(solver, params, rows) for solver in solvers if params["l2"] > 0]


def _rival(solver: str, params: dict[str, Any], rows: Rows) -> Contender:
    def fit(some: Rows) -> Any:
        ridge = params["l2"] * (len(some) if params["reg"] == "per_sample" else 1)
        model: Any = LogisticRegression(
            C=1 / ridge,
            fit_intercept=params["fit_intercept"],
            solver=solver,
            tol=1e-6,
            max_iter=5_000,
        )
        if params["multi_class"] == "ovr" and len(np.unique(rows.y)) > 2:
            model = OneVsRestClassifier(model)
        return plain(model).fit(Rows(_bounded(some.X, params), some.y, some.ids))

    return Contender(f"scikit-learn {solver}", fit)


def _bounded(X: NDArray[Any], params: dict[str, Any]) -> NDArray[Any]:
    """Return the rows scaled as the unlearner scales them to its bound of norms."""
    if params["rows"] in ("keep", "refuse") or params["row_norm"] is None:
        return X
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
    if not isinstance(rows.X, np.ndarray) or len(np.unique(rows.y)) != 2:
        return None
    sign = np.where(rows.y == model.classes_[1], 1.0, -1.0)
    scores = _bounded(rows.X, params) @ np.ravel(coef) + float(np.ravel(model.intercept_)[0])
    share = 1 if params["reg"] == "per_sample" else 1 / len(rows)
    penalty = 0.5 * float(params["l2"]) * share * float(np.sum(np.square(coef)))
    return float(np.mean(np.logaddexp(0, -sign * scores))) + penalty
