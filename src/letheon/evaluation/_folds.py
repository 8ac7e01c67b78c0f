"""Cross-validation of ordinary models."""

import warnings
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    StratifiedGroupKFold,
    StratifiedKFold,
    cross_val_score,
)

from letheon.evaluation._problem import LearningProblem

# Keys: whether people have several rows, and whether folds are stratified.
_SPLITTERS: dict[tuple[bool, bool], Any] = {
    (False, False): KFold,
    (False, True): StratifiedKFold,
    (True, False): GroupKFold,
    (True, True): StratifiedGroupKFold,
}


class CrossValidation:
    """Cross-validation with the same folds for every model; all rows of a person are in one fold.

    Rows are shuffled if there is a seed. Folds are stratified if every class has enough rows.
    Without a seed they are always stratified, because rows may be sorted by class.

    Parameters
    ----------
    problem : LearningProblem
        Training rows and metric.
    cv : int
        Number of folds.
    seed : int or None
        Seed for shuffling the rows; None to keep their order.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> data = np.arange(80.0).reshape(40, 2), np.repeat([0, 1], 20)
    >>> problem = LearningProblem.from_args(NearestCentroid(), data, 0.25, None, 0)
    >>> CrossValidation(problem, cv=3, seed=0).score(NearestCentroid()) > 0.8
    True
    """

    def __init__(self, problem: LearningProblem, *, cv: int, seed: int | None) -> None:
        self._rows = rows = problem.train
        self._problem = problem
        people, groups = np.unique(rows.ids, return_inverse=True)
        is_grouped = len(people) < len(groups)
        is_stratified = not problem.is_regression and (
            seed is None or bool(np.unique(rows.y, return_counts=True)[1].min() >= cv)
        )
        shuffled = {} if seed is None else {"shuffle": True, "random_state": seed}
        folds = _SPLITTERS[is_grouped, is_stratified](cv, **shuffled)
        blank = np.zeros(len(groups))
        with warnings.catch_warnings():
            # Classes may have fewer rows than there are folds.
            warnings.simplefilter("ignore", UserWarning)
            self._folds = list(folds.split(blank, rows.y, groups if is_grouped else None))

    def score(self, estimator: Any, *, with_ids: bool = False) -> float:
        """Return the mean of the metric over the folds."""
        with warnings.catch_warnings():
            # For example, warnings about convergence.
            warnings.simplefilter("ignore", UserWarning)
            scores = cross_val_score(
                clone(estimator),
                self._rows.X,
                self._rows.y,
                cv=self._folds,
                scoring=lambda model, X, y: self._problem.score_predictions(y, model.predict(X)),
                params={"ids": self._rows.ids} if with_ids else None,
                error_score="raise",
            )
        return float(np.mean(scores))
