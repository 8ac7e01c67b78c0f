"""The ordinary model that candidates are held against, and folds by person."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    StratifiedGroupKFold,
    StratifiedKFold,
    cross_val_score,
)
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from letheon.evaluation import Problem
from letheon.guarantee import Family, Task

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
        self._rows, self._metric = problem.train, problem.metric
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
        return float(self._metric(y, model.predict(X)))


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


def _linear(task: Task, _: int) -> Any:
    model = RidgeCV() if task == "regression" else LogisticRegression(max_iter=1000)
    return make_pipeline(StandardScaler(), model)


def _forest(task: Task, seed: int) -> Any:
    kind = RandomForestRegressor if task == "regression" else RandomForestClassifier
    return kind(random_state=seed)


def _boosted(task: Task, seed: int) -> Any:
    regression = task == "regression"
    kind = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    return kind(random_state=seed)


def _net(task: Task, seed: int) -> Any:
    kind = MLPRegressor if task == "regression" else MLPClassifier
    return make_pipeline(StandardScaler(), kind(random_state=seed))


_USUAL: dict[Family, tuple[Callable[[Task, int], Any], ...]] = {
    "linear": (_linear,),
    "forest": (_forest,),
    "net": (_net,),
    "any": (_linear, _forest, _boosted),
}


def yardstick(
    given: Any, family: Family, task: Task, folds: CrossValidation, seed: int
) -> Yardstick:
    """Return the given model, or the best of the usual ones of a family by cross-validation."""
    models = [given] if given is not None else [make(task, seed) for make in _USUAL[family]]
    scores = [folds.score(model, with_ids=False) for model in models]
    best = int(np.argmax(scores))
    names = [type(m[-1] if hasattr(m, "steps") else m).__name__ for m in models]
    told = ", ".join(f"{name} {score:.4g}" for name, score in zip(names, scores, strict=True))
    how = "as given" if given is not None else f"best by cross-validation of: {told}"
    return Yardstick(models[best], names[best], scores[best], how)
