"""The ordinary model that candidates are held against, and folds by person."""

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.neural_network import MLPClassifier, MLPRegressor

from letheon.evaluation import (
    CrossValidation,
    Problem,
    choose_best,
    named,
    prepare_model,
    require_task,
    usual_models,
)
from letheon.guarantee import Family
from letheon.measures import bootstrap

_RESAMPLES = 200
# More classes than these are not tried one by one as a constant answer: the most frequent are.
_MOST_ANSWERS = 20


class Constant:
    """The best constant answer by the metric on the training rows: what any model must beat."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        scores = {answer: self._score(problem.train.y, answer) for answer in self._answers()}
        self.answer = max(scores, key=lambda answer: scores[answer])
        self.score = scores[self.answer]

    def _answers(self) -> list[Any]:
        y = self._problem.train.y
        if self._problem.is_regression:
            return [float(np.mean(y)), float(np.median(y))]
        classes, counts = np.unique(y, return_counts=True)
        return list(classes[np.argsort(-counts, kind="stable")][:_MOST_ANSWERS])

    def _score(self, y: NDArray[Any], answer: Any) -> float:
        """Return the metric of one answer for all rows; -inf where it has none."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return self._problem.scored(y, np.full(len(y), answer))
            except ValueError:
                return -np.inf

    def why_not_beaten(self, estimator: Any) -> str:
        """Return why an estimator, fitted on the training rows, is no better; empty if it is.

        It must be better on the test rows by the lower end of a 95 % interval, where there is one.
        """
        train, test, metric = self._problem.train, self._problem.test, self._problem.metric
        ours = np.asarray(clone(estimator).fit(train.X, train.y, ids=train.ids).predict(test.X))
        answers = np.full(len(test), self.answer)

        def gain(rows: NDArray[np.int64]) -> float:
            y = test.y[rows]
            return float(metric(y, ours[rows])) - float(metric(y, answers[rows]))

        rival = self._score(test.y, self.answer)
        if rival == -np.inf:
            return ""
        found = self._problem.scored(test.y, ours) - rival
        ends = bootstrap(gain, len(test), found, confidence=0.95, n_resamples=_RESAMPLES, seed=0)
        least = found if ends is None else ends[0]
        if least > 0:
            return ""
        return (
            f"it does not surely beat a constant answer, {self.answer!s} for every row: "
            f"{self._problem.metric_name} {found + rival:.4g} against {rival:.4g} on "
            f"{len(test):,} test rows, at worst {abs(least):.3g} below it"
        )


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
        return [prepare_model(X, net(random_state=seed), scaled=True)]
    models = usual_models(X, is_regression=problem.is_regression, seed=seed)
    return [*models.values()] if family == "any" else [models[family]]


def yardstick(
    given: Any, family: Family, problem: Problem, folds: CrossValidation, seed: int
) -> Yardstick:
    """Return the given model, or the best of the usual ones of a family by cross-validation."""
    models = _usual(problem, family, seed) if given is None else [given]
    for model in models:
        require_task(problem, model)
    best = choose_best(models, folds.score, are_given=given is not None)
    how = "as given" if given is not None else f"best by cross-validation of: {best.scores}"
    return Yardstick(best.model, named(best.model), best.score, how)
