"""The ordinary model that candidates are held against, and folds by person."""

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    StratifiedGroupKFold,
    StratifiedKFold,
    cross_val_score,
)
from sklearn.neural_network import MLPClassifier, MLPRegressor

from letheon.evaluation import Problem, best_of, named, prepared, require_task, usual_models
from letheon.guarantee import Family

__all__ = ["CrossValidation", "Yardstick", "yardstick"]

# By whether people own several rows, and whether targets are classes.
_SPLITTERS: dict[tuple[bool, bool], Any] = {
    (False, False): KFold,
    (False, True): StratifiedKFold,
    (True, False): GroupKFold,
    (True, True): StratifiedGroupKFold,
}


class CrossValidation:
    """The same folds for everybody; all rows of a person are in one of them."""

    def __init__(self, problem: Problem, *, cv: int, seed: int) -> None:
        self._rows, self._problem = problem.train, problem
        people, groups = np.unique(self._rows.ids, return_inverse=True)
        grouped = len(people) < len(groups)
        splitter = _SPLITTERS[grouped, _is_stratified(problem, cv)]
        folds = splitter(cv, shuffle=True, random_state=seed)
        blank = np.zeros(len(groups))
        self._folds = list(folds.split(blank, self._rows.y, groups if grouped else None))

    def score(self, estimator: Any, *, with_ids: bool = True) -> float:
        """Return the mean of the metric over the folds."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            scores: NDArray[np.float64] = cross_val_score(
                clone(estimator),
                self._rows.X,
                self._rows.y,
                cv=self._folds,
                scoring=self._scorer,
                params={"ids": self._rows.ids} if with_ids else None,
                error_score="raise",
            )
        return float(scores.mean())

    def _scorer(self, model: Any, X: Any, y: Any) -> float:
        return self._problem.scored(y, model.predict(X))


def _is_stratified(problem: Problem, cv: int) -> bool:
    """Whether every class can be in every fold."""
    if problem.is_regression:
        return False
    return bool(np.unique(problem.train.y, return_counts=True)[1].min() >= cv)


class Yardstick(NamedTuple):
    """The ordinary model, its name, its cross-validated score, and how it was chosen."""

    estimator: Any
    name: str
    score: float
    how: str


def _usual(problem: Problem, family: Family, seed: int) -> list[Any]:
    X = problem.train.X
    if family == "net":
        net = MLPRegressor if problem.is_regression else MLPClassifier
        return [prepared(X, net(random_state=seed), scaled=True)]
    models = usual_models(X, is_regression=problem.is_regression, seed=seed)
    return [*models.values()] if family == "any" else [models[family]]


def yardstick(
    given: Any, family: Family, problem: Problem, folds: CrossValidation, seed: int
) -> Yardstick:
    """Return the given model, or the best of the usual ones of a family by cross-validation."""
    models = _usual(problem, family, seed) if given is None else [given]
    for model in models:
        require_task(problem, model)
    best = best_of(
        models, lambda model: folds.score(model, with_ids=False), are_given=given is not None
    )
    how = "as given" if given is not None else f"best by cross-validation of: {best.told}"
    return Yardstick(best.model, named(best.model), best.score, how)
