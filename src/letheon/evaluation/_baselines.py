"""The two baselines that every unlearner is held against, and the race for the best solver."""

import math
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from letheon.evaluation._problem import Problem, Rows

__all__ = ["ORDINARY", "SAME", "Contender", "best_ordinary", "fresh_copy", "race"]

SAME = "same algorithm"
ORDINARY = "ordinary model"
_MOST_CHOICE_ROWS = 4_000
_MOST_CHOLESKY_COLUMNS = 1_000
# A rival that stopped early would be fast and no retrain.
_LOSS_MARGIN = 1e-4
_LONG_SECONDS = 0.5


class Contender(NamedTuple):
    """A way to train on some rows."""

    name: str
    fit: Callable[[Rows], Any]


def fresh_copy(unlearner: Any, seed: int) -> Any:
    """Return an unfitted copy with this seed."""
    copy = clone(unlearner)
    return copy.set_params(random_state=seed) if "random_state" in copy.get_params() else copy


def _fresh_fit(unlearner: Any, seed: int) -> Contender:
    def fit(rows: Rows) -> Any:
        return fresh_copy(unlearner, seed).fit(rows.X, rows.y, ids=rows.ids)

    return Contender(f"fresh {type(unlearner).__name__}", fit)


def plain(estimator: Any) -> Contender:
    """Return the training of an estimator that knows no people."""

    def fit(rows: Rows) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return clone(estimator).fit(rows.X, rows.y)

    return Contender(named(estimator), fit)


def named(estimator: Any) -> str:
    """Return the name of an estimator; of a pipeline that of its last step."""
    last = estimator[-1] if hasattr(estimator, "steps") else estimator
    return type(last).__name__


def race(unlearner: Any, rows: Rows, seed: int, given: Any = None) -> tuple[Contender, list[str]]:
    """Return the fastest way to retrain the same algorithm, and what was tried.

    A fresh fit of the unlearner also builds what later removals need. Where the same optimum can be
    had without that, from scikit-learn's solvers, or from `given` estimators, those race too; one
    that leaves a larger regularised loss than the others is not a retrain and cannot win.
    """
    entrants = [_fresh_fit(unlearner, seed), *_linear_rivals(unlearner, rows)]
    if given is not None:
        several = given if isinstance(given, list | tuple) else [given]
        entrants += [plain(estimator) for estimator in several]
    if len(entrants) == 1:
        return entrants[0], [f"{entrants[0].name}: the only way to retrain"]
    seconds, losses = {}, {}
    for entrant in entrants:
        model, seconds[entrant.name] = _shortest(entrant, rows)
        losses[entrant.name] = _regularised_loss(unlearner, model, rows)
    known = [loss for loss in losses.values() if loss is not None]
    goal = min(known, default=0.0) * (1 + _LOSS_MARGIN)
    fair = [e for e in entrants if (losses[e.name] or 0.0) <= goal or e is entrants[0]]
    winner = min(fair, key=lambda entrant: seconds[entrant.name])
    told = [
        f"{e.name}: {1000 * seconds[e.name]:.3g} ms"
        + (", fastest" if e is winner else "" if e in fair else ", stopped too early to count")
        for e in entrants
    ]
    return winner, told


def _shortest(entrant: Contender, rows: Rows) -> tuple[Any, float]:
    """Return the model and the shortest of three runs; a long run is not repeated."""
    best = math.inf
    for _ in range(3):
        begin = time.perf_counter()
        model = entrant.fit(rows)
        best = min(best, time.perf_counter() - begin)
        if best > _LONG_SECONDS:
            break
    return model, best


def _linear_rivals(unlearner: Any, rows: Rows) -> list[Contender]:
    """Return scikit-learn's solvers for the same regularised logistic loss."""
    params = unlearner.get_params(deep=False)
    if not {"l2", "fit_intercept", "multi_class"} <= params.keys() or params.get("loss"):
        return []
    if params.get("rows", "keep") != "keep" or len(np.shape(rows.X)) != 2:
        return []
    ridge = params["l2"] * (len(rows) if params.get("reg") == "per_sample" else 1)
    solvers = ["lbfgs"]
    if rows.X.shape[1] <= _MOST_CHOLESKY_COLUMNS and not hasattr(rows.X, "tocsr"):
        solvers.append("newton-cholesky")
    return [_scikit(solver, ridge, params, rows) for solver in solvers if ridge > 0]


def _scikit(solver: str, ridge: float, params: dict[str, Any], rows: Rows) -> Contender:
    model: Any = LogisticRegression(
        C=1 / ridge,
        fit_intercept=params["fit_intercept"],
        solver=solver,
        tol=1e-6,
        max_iter=5_000,
    )
    if params["multi_class"] == "ovr" and len(np.unique(rows.y)) > 2:
        model = OneVsRestClassifier(model)
    return plain(model)._replace(name=f"scikit-learn {solver}")


def _regularised_loss(unlearner: Any, model: Any, rows: Rows) -> float | None:
    """Return the training loss of a binary linear classifier, with its regulariser."""
    params = unlearner.get_params(deep=False)
    coef = getattr(model, "coef_", None)
    if "l2" not in params or coef is None or np.shape(coef)[0] != 1:
        return None
    if not hasattr(model, "decision_function") or len(np.unique(rows.y)) != 2:
        return None
    sign = np.where(rows.y == model.classes_[1], 1.0, -1.0)
    margins = sign * np.ravel(model.decision_function(rows.X))
    share = 1 if params.get("reg") == "per_sample" else 1 / len(rows)
    penalty = 0.5 * float(params["l2"]) * share * float(np.sum(np.square(coef)))
    return float(np.mean(np.logaddexp(0, -margins))) + penalty


def best_ordinary(problem: Problem, given: Any, seed: int) -> tuple[Contender, str]:
    """Return the best ordinary model without unlearning support, and how it was chosen.

    `given` is an estimator or several; by default a logistic (ridge) regression on scaled columns,
    a random forest and boosted trees. Several are compared by cross-validation on training rows.
    """
    candidates = given if given is not None else _usual(problem, seed)
    if not isinstance(candidates, list | tuple):
        return plain(candidates), f"{named(candidates)}, as given"
    if len(candidates) == 1:
        return plain(candidates[0]), f"{named(candidates[0])}, as given"
    some = np.random.default_rng(seed).permutation(len(problem.train))[:_MOST_CHOICE_ROWS]
    rows = problem.train.at(np.sort(some))
    scores = [_cross_validated(problem, candidate, rows) for candidate in candidates]
    best = int(np.argmax(scores))
    told = ", ".join(
        f"{named(candidate)} {score:.4g}"
        for candidate, score in zip(candidates, scores, strict=True)
    )
    how = f"best of {len(candidates)} by 3-fold cross-validation on {len(rows):,} rows ({told})"
    return plain(candidates[best]), f"{named(candidates[best])}, {how}"


def _cross_validated(problem: Problem, candidate: Any, rows: Rows) -> float:
    def scorer(model: Any, X: Any, y: Any) -> float:
        return float(problem.metric(y, model.predict(X)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)
        return float(np.mean(cross_val_score(candidate, rows.X, rows.y, cv=3, scoring=scorer)))


def _usual(problem: Problem, seed: int) -> list[Any]:
    if len(np.shape(problem.train.X)) != 2:
        raise ValueError(
            f"no ordinary model is known for rows of shape {np.shape(problem.train.X)[1:]}; "
            "give one with ordinary="
        )
    if problem.is_regression:
        return [
            make_pipeline(StandardScaler(), RidgeCV()),
            RandomForestRegressor(random_state=seed),
            HistGradientBoostingRegressor(random_state=seed),
        ]
    return [
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        RandomForestClassifier(random_state=seed),
        HistGradientBoostingClassifier(random_state=seed),
    ]
