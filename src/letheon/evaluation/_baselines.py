"""The two baselines that every unlearner is held against, and the race for the best solver."""

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier, is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold, cross_val_score

from letheon.evaluation._clock import now
from letheon.evaluation._contender import Contender, few_of, named, plain, warmed
from letheon.evaluation._linear import linear_rivals, regularised_loss
from letheon.evaluation._problem import Problem, Rows
from letheon.evaluation._usual import best_of, usual_models
from letheon.measures._copies import fresh_copy

__all__ = ["ORDINARY", "SAME", "best_ordinary", "race", "require_task"]

SAME = "same algorithm"
ORDINARY = "ordinary model"
_MOST_CHOICE_ROWS = 4_000
# A rival that stopped early would be fast and no retrain.
_LOSS_MARGIN = 1e-4
_LONG_SECONDS = 0.5
# When two models count as the same training: on how many rows, and how near, they must agree.
_ALIKE = 0.99
_ALIKE_IN_EACH = 0.9
_NUMBER_MARGIN = 0.01


def _fresh_fit(unlearner: Any, seed: int) -> Contender:
    def fit(rows: Rows) -> Any:
        return fresh_copy(unlearner, seed).fit(rows.X, rows.y, ids=rows.ids)

    return Contender(f"fresh {type(unlearner).__name__}", fit)


def race(unlearner: Any, rows: Rows, seed: int, given: Any = None) -> tuple[Contender, list[str]]:
    """Return the fastest way to retrain the same algorithm, and what was tried.

    A fresh fit of the unlearner also builds what later removals need. Where the same optimum can be
    had without that, from scikit-learn's solvers, or from `given` estimators, those race too. One
    that leaves a larger regularised loss than the others is not a retrain and cannot win; where
    the loss is not known, a given one must answer as the fresh fit does on 99 % of the rows.
    """
    several = given if isinstance(given, list | tuple) else [given]
    asked = [plain(each, is_given=True) for each in several if each is not None]
    entrants = [_fresh_fit(unlearner, seed), *linear_rivals(unlearner, rows), *asked]
    if len(entrants) == 1:
        return entrants[0], [f"{entrants[0].name}: no other way to retrain it is known"]
    few = few_of(rows)
    results = [_Result.of(warmed(entrant, few), unlearner, rows) for entrant in entrants]
    known = [result.loss for result in results if result.loss is not None]
    goal = min(known, default=0.0) * (1 + _LOSS_MARGIN)
    # A fresh fit is a retrain by definition, whatever its noise does to the loss.
    faults = ["", *(_fault(each, results[0], goal, rows) for each in results[1:])]
    fair = [each for each, fault in zip(results, faults, strict=True) if not fault]
    winner = min(fair, key=lambda result: result.seconds)
    told = [
        f"{each.entrant.name}: {1000 * each.seconds:.3g} ms"
        + (", fastest" if each is winner else fault)
        for each, fault in zip(results, faults, strict=True)
    ]
    return winner.entrant, told


class _Result(NamedTuple):
    """Model and shortest time of an entrant, and the loss it left, where that can be told."""

    entrant: Contender
    model: Any
    seconds: float
    loss: float | None

    @classmethod
    def of(cls, entrant: Contender, unlearner: Any, rows: Rows) -> "_Result":
        """Let an entrant train."""
        model, seconds = _shortest(entrant, rows)
        return cls(entrant, model, seconds, regularised_loss(unlearner, model, rows))


def _fault(each: _Result, fresh: _Result, goal: float, rows: Rows) -> str:
    """Return why an entrant is no retrain of the same algorithm; nothing if it is one."""
    if each.loss is not None:
        return "" if each.loss <= goal else ", left a larger loss and does not count"
    if not each.entrant.is_given:
        return ""
    is_alike = _answer_alike(fresh.model, each.model, rows)
    return "" if is_alike else ", answers otherwise than a fresh fit and does not count"


def _answer_alike(fresh: Any, other: Any, rows: Rows) -> bool:
    """Return whether two models agree on nearly all training rows.

    Labels must also agree on most rows of every label, since a constant agrees on nearly all rows
    where one label is rare. Numbers agree within a hundredth of their spread.
    """
    ours, theirs = np.asarray(fresh.predict(rows.X)), np.asarray(other.predict(rows.X))
    if ours.dtype.kind == "f":
        agree = np.abs(ours - theirs) <= _NUMBER_MARGIN * float(np.std(ours))
        return bool(np.mean(agree) >= _ALIKE)
    agree = ours == theirs
    of_each = [float(np.mean(agree[ours == label])) for label in np.unique(ours)]
    return bool(np.mean(agree) >= _ALIKE) and min(of_each) >= _ALIKE_IN_EACH


def _shortest(entrant: Contender, rows: Rows) -> tuple[Any, float]:
    """Return the model and the shortest of three runs; a long run is not repeated."""
    best = math.inf
    for _ in range(3):
        begin = now()
        model = entrant.fit(rows)
        best = min(best, now() - begin)
        if best > _LONG_SECONDS:
            break
    return model, best


def best_ordinary(problem: Problem, given: Any, seed: int) -> tuple[Contender, str]:
    """Return the best ordinary model without unlearning support, and how it was chosen.

    `given` is an estimator or several; by default a logistic (ridge) regression on scaled columns,
    a random forest and boosted trees. Several are compared by cross-validation on training
    rows, which keeps the rows of a person together. One that fails there cannot be chosen. The
    usual models encode columns of texts.
    """
    candidates = given if given is not None else _usual(problem, seed)
    if not isinstance(candidates, list | tuple):
        candidates = [candidates]
    for candidate in candidates:
        require_task(problem, candidate)
    if len(candidates) == 1:
        return plain(candidates[0]), f"{named(candidates[0])}, as given"
    some = np.random.default_rng(seed).permutation(len(problem.train))[:_MOST_CHOICE_ROWS]
    rows = problem.train.at(np.sort(some))
    best = best_of(
        candidates,
        lambda candidate: _cross_validated(problem, candidate, rows),
        are_given=given is not None,
    )
    how = f"best of {len(candidates)} by 3-fold cross-validation on {len(rows):,} rows"
    return plain(best.model), f"{named(best.model)}, {how} ({best.told})"


def require_task(problem: Problem, candidate: Any) -> None:
    """Refuse a regressor beside classifiers, and the other way round."""
    ours, other = ("regressor", "classifier")[:: 1 if problem.is_regression else -1]
    is_other = is_classifier(candidate) if problem.is_regression else is_regressor(candidate)
    if is_other:
        raise ValueError(f"ordinary: {named(candidate)} is a {other}, and the unlearner a {ours}")


def _cross_validated(problem: Problem, candidate: Any, rows: Rows) -> float:
    def scorer(model: Any, X: Any, y: Any) -> float:
        return problem.scored(y, model.predict(X))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)
        scores = cross_val_score(
            candidate,
            rows.X,
            rows.y,
            groups=rows.ids,
            cv=_folds(problem, rows),
            scoring=scorer,
            error_score="raise",
        )
    return float(np.mean(scores))


def _folds(problem: Problem, rows: Rows) -> Any:
    """Return three folds that nobody stands on both sides of."""
    if len(np.unique(rows.ids)) == len(rows):
        return 3
    return GroupKFold(3) if problem.is_regression else StratifiedGroupKFold(3)


def _usual(problem: Problem, seed: int) -> list[Any]:
    models = usual_models(problem.train.X, is_regression=problem.is_regression, seed=seed)
    return [*models.values()]
