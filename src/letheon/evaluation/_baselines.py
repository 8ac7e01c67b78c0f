"""The two baselines that every unlearner is held against, and the race for the best solver."""

import math
import time
import warnings
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
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from letheon.evaluation._contender import Contender, named, plain
from letheon.evaluation._linear import linear_rivals, regularised_loss
from letheon.evaluation._problem import Problem, Rows

__all__ = ["ORDINARY", "SAME", "best_ordinary", "fresh_copy", "race"]

SAME = "same algorithm"
ORDINARY = "ordinary model"
_MOST_CHOICE_ROWS = 4_000
# A rival that stopped early would be fast and no retrain.
_LOSS_MARGIN = 1e-4
_LONG_SECONDS = 0.5


def fresh_copy(unlearner: Any, seed: int) -> Any:
    """Return an unfitted copy with this seed."""
    copy = clone(unlearner)
    return copy.set_params(random_state=seed) if "random_state" in copy.get_params() else copy


def _fresh_fit(unlearner: Any, seed: int) -> Contender:
    def fit(rows: Rows) -> Any:
        return fresh_copy(unlearner, seed).fit(rows.X, rows.y, ids=rows.ids)

    return Contender(f"fresh {type(unlearner).__name__}", fit)


def race(unlearner: Any, rows: Rows, seed: int, given: Any = None) -> tuple[Contender, list[str]]:
    """Return the fastest way to retrain the same algorithm, and what was tried.

    A fresh fit of the unlearner also builds what later removals need. Where the same optimum can be
    had without that, from scikit-learn's solvers, or from `given` estimators, those race too; one
    that leaves a larger regularised loss than the others is not a retrain and cannot win.
    """
    entrants = [_fresh_fit(unlearner, seed), *linear_rivals(unlearner, rows)]
    if given is not None:
        several = given if isinstance(given, list | tuple) else [given]
        entrants += [plain(estimator) for estimator in several]
    if len(entrants) == 1:
        return entrants[0], [f"{entrants[0].name}: the only way to retrain"]
    results = [_Result.of(entrant, unlearner, rows) for entrant in entrants]
    known = [result.loss for result in results if result.loss is not None]
    goal = min(known, default=0.0) * (1 + _LOSS_MARGIN)
    # A fresh fit is a retrain by definition, whatever its noise does to the loss.
    fair = [each for each in results if each is results[0] or (each.loss or 0.0) <= goal]
    winner = min(fair, key=lambda result: result.seconds)
    told = [
        f"{each.entrant.name}: {1000 * each.seconds:.3g} ms"
        + (
            ", fastest"
            if each is winner
            else ""
            if each in fair
            else ", stopped too early to count"
        )
        for each in results
    ]
    return winner.entrant, told


class _Result(NamedTuple):
    """Shortest time of an entrant, and the loss it left, where that can be told."""

    entrant: Contender
    seconds: float
    loss: float | None

    @classmethod
    def of(cls, entrant: Contender, unlearner: Any, rows: Rows) -> "_Result":
        """Let an entrant train."""
        model, seconds = _shortest(entrant, rows)
        return cls(entrant, seconds, regularised_loss(unlearner, model, rows))


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
