"""The two baselines of an evaluation: the same algorithm, and the best ordinary model."""

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import logsumexp
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier

from letheon.data import People
from letheon.evaluation._clock import finish_requests, now
from letheon.evaluation._problem import LearningProblem, MetricFailedError
from letheon.evaluation._usual import CrossValidation, name_model, usual_models
from letheon.exceptions import LetheonError
from letheon.inner_estimator import fresh_copy, iter_estimators, require_copy

_FEW_ROWS = 400


class Trainer(NamedTuple):
    """Name of a baseline and the function that trains it.

    If `is_given`, the caller passed the estimator, so its predictions must be checked.
    """

    name: str
    fit: Callable[[People], Any]
    is_given: bool = False


def make_trainer(estimator: Any, *, is_given: bool = False) -> Trainer:
    """Return a trainer that fits clones of an estimator without passing ids."""
    prototype = without_jobs(estimator)

    def fit(rows: People) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return clone(prototype).fit(rows.X, rows.y)

    return Trainer(name_model(estimator), fit, is_given)


def without_jobs(estimator: Any) -> Any:
    """Return an unfitted copy with all `n_jobs` set to None, including inner estimators."""
    copy = require_copy(estimator, clone(estimator))
    for part in list(iter_estimators(copy)):
        if part.params.get("n_jobs") is not None:
            part.estimator.set_params(n_jobs=None)
    return copy


def _sample_rows(rows: People) -> People:
    """Return the rows of a few people, for a warm-up."""
    people = np.random.default_rng(0).permutation(np.unique(rows.ids))
    return rows.rows_of(people[:_FEW_ROWS])


def _warm_up_trainer(trainer: Trainer, rows: People) -> None:
    """Train once on a sample of the rows, so that later timings exclude first-call overhead."""
    sample = _sample_rows(rows)
    # The sample may be too small: a class may be missing, or a shard empty.
    with suppress(LetheonError, ValueError):
        trainer.fit(sample).predict(sample.X)


class BestModel(NamedTuple):
    """The best of several models.

    Parameters
    ----------
    model : estimator
        The model.
    score : float
        Its score.
    scores : str
        The scores of all models.

    Examples
    --------
    >>> BestModel("forest", 0.9, "linear 0.8, forest 0.9").score
    0.9
    """

    model: Any
    score: float
    scores: str


def choose_best(
    models: Sequence[Any], score: Callable[[Any], float], *, are_given: bool
) -> BestModel:
    """Return the model with the largest score; models that fail are skipped.

    Parameters
    ----------
    models : sequence of estimators
        The models to compare.
    score : callable
        Function of a model; larger is better.
    are_given : bool
        Whether the caller of letheon passed the models. Only used in the text of the error.

    Raises
    ------
    ValueError
        All models fail. The first error is the cause of this error.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression, Perceptron
    >>> models = [Perceptron(), LogisticRegression()]
    >>> best = choose_best(models, lambda m: 0.9 if m is models[1] else 0.8, are_given=True)
    >>> best.scores
    'Perceptron 0.8, LogisticRegression 0.9'
    """
    if not models:
        raise ValueError("ordinary is an empty list; expected at least one model")
    values, words, failed = [], [], dict[str, Exception]()
    for model in models:
        try:
            values.append(float(score(model)))
            words.append(f"{name_model(model)} {values[-1]:.4g}")
        except Exception as error:  # noqa: BLE001  (any error excludes the model)
            values.append(-math.inf)
            # Only the type of the error: its text may contain personal data.
            words.append(f"{name_model(model)} failed: {type(error).__name__}")
            failed.setdefault(name_model(model), error)
    best = int(np.argmax(values))
    if values[best] > -math.inf:
        return BestModel(models[best], values[best], ", ".join(words))
    name, cause = next(iter(failed.items()))
    if isinstance(cause, MetricFailedError):
        raise cause
    kind = "candidate for the ordinary model" if are_given else "default ordinary model"
    first_line = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
    raise ValueError(
        f"no {kind} can be trained on these rows ({name}: {first_line}); pass a suitable "
        "estimator as ordinary=, for example the estimator inside the unlearner"
    ) from cause


_SETTINGS = {"l2", "reg", "fit_intercept", "rows", "row_norm"}
_MOST_CHOLESKY_COLUMNS = 1_000


class _LinearBaseline:
    """Linear model fitted with a column of ones, whose coefficient becomes `intercept_`."""

    def __init__(self, model: Any, params: dict[str, Any]) -> None:
        parts = getattr(model, "estimators_", [model])
        weights = np.vstack([np.atleast_2d(part.coef_) for part in parts])
        self.model, self.params = model, params
        has_ones = params["fit_intercept"]
        self.coef_ = weights[:, :-1] if has_ones else weights
        self.intercept_ = weights[:, -1] if has_ones else np.zeros(len(weights))
        if hasattr(model, "classes_"):
            self.classes_ = model.classes_

    def predict(self, X: Any) -> Any:
        return self.model.predict(_design_matrix(X, self.params))


def list_linear_solvers(unlearner: Any, rows: People) -> list[Trainer]:
    """Return trainers with scikit-learn's solvers for a linear unlearner; empty if none match."""
    params = unlearner.get_params(deep=False)
    if not params.keys() >= _SETTINGS:
        return []
    is_bounded = params["rows"] in ("clip", "normalize") and params["row_norm"] is not None
    if not params["l2"] > 0 or (is_bounded and sparse.issparse(rows.X)):
        return []
    if params.get("loss") == "squared":
        solvers = ["ridge"]
    elif params.get("loss") or "multi_class" not in params:
        return []
    else:
        solvers = ["lbfgs"]
        if rows.X.shape[1] <= _MOST_CHOLESKY_COLUMNS and not sparse.issparse(rows.X):
            solvers.append("newton-cholesky")

    def fit(solver: str, sample: People) -> Any:
        penalty = _penalty_factor(params, sample)
        model: Any = Ridge(penalty, fit_intercept=False)
        if solver != "ridge":
            settings = {"solver": solver, "tol": 1e-6, "max_iter": 5_000}
            model = LogisticRegression(C=1 / penalty, fit_intercept=False, **settings)
            if params["multi_class"] == "ovr" and len(np.unique(rows.y)) > 2:
                model = OneVsRestClassifier(model)
        design = People(_design_matrix(sample.X, params), sample.y, sample.ids)
        return _LinearBaseline(make_trainer(model).fit(design), params)

    return [Trainer(f"scikit-learn {solver}", partial(fit, solver)) for solver in solvers]


def _penalty_factor(params: dict[str, Any], rows: People) -> float:
    """Return the penalty p of the objective.

    The objective is the sum of the losses plus p / 2 times the sum of the squared coefficients.
    """
    return float(params["l2"]) * (len(rows) if params["reg"] == "per_sample" else 1)


def _design_matrix(table: Any, params: dict[str, Any]) -> Any:
    """Return the design matrix of a linear unlearner.

    Its settings may add a column of ones and bound the norms of the rows.
    """
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


def training_loss(unlearner: Any, model: Any, rows: People) -> float | None:
    """Return the mean regularised training loss of a linear model, or None if it is unknown.

    It is unknown if the model or the unlearner is not linear, if the loss is not one of the usual
    two, or if the coefficients do not match the columns.
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
    design = _design_matrix(rows.X, params)
    if design.shape[1] != weights.shape[1]:
        return None
    loss = _mean_loss(params, model, np.asarray(design @ weights.T), rows.y)
    penalty = 0.5 * _penalty_factor(params, rows) / len(rows) * float(np.sum(np.square(weights)))
    return None if loss is None else loss + penalty


def _mean_loss(
    params: dict[str, Any], model: Any, scores: NDArray[Any], y: NDArray[Any]
) -> float | None:
    """Return the mean loss of linear scores; None if they do not match the labels."""
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


SAME = "same algorithm"
ORDINARY = "ordinary model"
_MOST_CHOICE_ROWS = 4_000
# A solver that stops early is fast, but it is not a retrain.
_LOSS_MARGIN = 1e-4
_LONG_SECONDS = 0.5
# Two models count as the same training if they agree on these shares of rows, up to this margin.
_ALIKE = 0.99
_ALIKE_IN_EACH = 0.9
_NUMBER_MARGIN = 0.01


def find_fastest_retrainer(
    unlearner: Any, rows: People, seed: int, retrainer: Any = None
) -> tuple[Trainer, list[str]]:
    """Return the fastest trainer of the same algorithm, and a line of text for each trainer tried.

    A fresh fit of the unlearner also builds the data structures for later removals. scikit-learn's
    solvers and the estimators in `retrainer` may reach the same optimum faster. A solver with a
    larger regularised loss than the others does not count as retraining and is not used. If the
    loss is unknown, an estimator must agree with the fresh fit on 99 % of the rows.
    """
    estimators = retrainer if isinstance(retrainer, list | tuple) else [retrainer]
    trainers = [make_trainer(model, is_given=True) for model in estimators if model is not None]

    def fit(sample: People) -> Any:
        return fresh_copy(unlearner, seed).fit(sample.X, sample.y, ids=sample.ids)

    fresh = Trainer(f"fresh {type(unlearner).__name__}", fit)
    entrants = [fresh, *list_linear_solvers(unlearner, rows), *trainers]
    if len(entrants) == 1:
        return entrants[0], [f"{entrants[0].name}: the only known way to retrain it"]
    results = []
    for entrant in entrants:
        _warm_up_trainer(entrant, rows)
        seconds = math.inf
        # The shortest of three runs; a long run is not repeated.
        for _ in range(3):
            begin = now()
            model = entrant.fit(rows)
            seconds = min(seconds, now() - begin)
            if seconds > _LONG_SECONDS:
                break
        results.append(_RaceResult(entrant, model, seconds, training_loss(unlearner, model, rows)))
    known = [result.loss for result in results if result.loss is not None]
    goal = min(known, default=0.0) * (1 + _LOSS_MARGIN)
    # A fresh fit is a retrain by definition, even if its noise increases the loss.
    faults = ["", *(_describe_fault(result, results[0], goal, rows) for result in results[1:])]
    fair = [result for result, fault in zip(results, faults, strict=True) if not fault]
    winner = min(fair, key=lambda result: result.seconds)
    tried = [
        f"{result.entrant.name}: {1000 * result.seconds:.3g} ms"
        + (", fastest" if result is winner else fault)
        for result, fault in zip(results, faults, strict=True)
    ]
    return winner.entrant, tried


class _RaceResult(NamedTuple):
    """Model, shortest time and regularised loss (None if unknown) of one trainer."""

    entrant: Trainer
    model: Any
    seconds: float
    loss: float | None


def _describe_fault(result: _RaceResult, fresh: _RaceResult, goal: float, rows: People) -> str:
    """Return why a trainer does not retrain the same algorithm, or an empty text if it does."""
    if result.loss is not None:
        return "" if result.loss <= goal else ", not counted: its loss is larger"
    if not result.entrant.is_given:
        return ""
    is_same = _predict_alike(fresh.model, result.model, rows)
    return "" if is_same else ", not counted: its predictions differ from those of a fresh fit"


def _predict_alike(fresh: Any, other: Any, rows: People) -> bool:
    """Return whether two models agree on nearly all training rows.

    Labels must also agree on most rows of every class, because a constant agrees on nearly all rows
    if one class dominates. Numbers agree within a hundredth of their standard deviation.
    """
    ours, theirs = np.asarray(fresh.predict(rows.X)), np.asarray(other.predict(rows.X))
    if ours.dtype.kind == "f":
        agree = np.abs(ours - theirs) <= _NUMBER_MARGIN * float(np.std(ours))
        return bool(np.mean(agree) >= _ALIKE)
    agree = ours == theirs
    of_each = [float(np.mean(agree[ours == label])) for label in np.unique(ours)]
    return bool(np.mean(agree) >= _ALIKE) and min(of_each) >= _ALIKE_IN_EACH


def list_ordinary(
    problem: LearningProblem, ordinary: Any, seed: int, family: str = "any"
) -> list[Any]:
    """Return the ordinary models as a list; by default the usual models of the family.

    Parameters
    ----------
    problem : LearningProblem
        The rows.
    ordinary : estimator, list of estimators or None
        The models; None for the usual ones.
    seed : int
        Seed of the models.
    family : str, default="any"
        Family of the usual models.

    Raises
    ------
    ValueError
        A classifier was passed for a regression, or the reverse.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> data = np.arange(80.0).reshape(40, 2), np.repeat([0, 1], 20)
    >>> problem = LearningProblem.from_args(NearestCentroid(), data, 0.25, None, 0)
    >>> list_ordinary(problem, LogisticRegression(), 0)
    [LogisticRegression()]
    """
    if ordinary is None:
        is_regression = problem.is_regression
        return usual_models(problem.train.X, is_regression=is_regression, seed=seed, family=family)
    models = [*ordinary] if isinstance(ordinary, list | tuple) else [ordinary]
    ours, other = ("regressor", "classifier")[:: 1 if problem.is_regression else -1]
    for model in models:
        if is_classifier(model) if problem.is_regression else is_regressor(model):
            raise ValueError(
                f"ordinary must be a {ours}, like the unlearner, but {name_model(model)} is a "
                f"{other}"
            )
    return models


def best_ordinary(problem: LearningProblem, ordinary: Any, seed: int) -> tuple[Trainer, str]:
    """Return the trainer of the best ordinary model, and a text about how it was chosen.

    The model is trained once as a warm-up.

    Several models are compared by cross-validation on training rows, with all rows of a person in
    one fold. Models that fail are skipped.
    """
    candidates = list_ordinary(problem, ordinary, seed)
    if len(candidates) == 1:
        model, choice = candidates[0], "as given"
    else:
        sample = np.random.default_rng(seed).permutation(len(problem.train))[:_MOST_CHOICE_ROWS]
        rows = problem.train.take(np.sort(sample))
        folds = CrossValidation(replace(problem, train=rows), cv=3, seed=None)
        model, _, scores = choose_best(candidates, folds.score, are_given=ordinary is not None)
        n_rows = f"{len(rows):,} rows"
        choice = f"best of {len(candidates)} by 3-fold cross-validation on {n_rows} ({scores})"
    trainer = make_trainer(model)
    _warm_up_trainer(trainer, problem.train)
    return trainer, f"{name_model(model)}, {choice}"


def warm_up(unlearner: Any, problem: LearningProblem) -> str:
    """Fit, forget and predict once on a few rows; return a sentence about this warm-up."""
    sample = _sample_rows(problem.train)
    try:
        model = fresh_copy(unlearner, 0).fit(sample.X, sample.y, ids=sample.ids)
        model.forget(sample.ids[:1])
        finish_requests(model)
        model.predict(sample.X)
    except (LetheonError, ValueError):
        # The sample may be too small: a class may be missing, or a shard empty.
        return "The warm-up failed, because its sample of rows was too small for this model"
    return f"A warm-up on {len(sample):,} rows ran before the timing and is not counted"
