"""Scores: the usual one for a target, in folds that separate people, and of a constant."""

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.metrics import check_scoring
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    StratifiedGroupKFold,
    StratifiedKFold,
    cross_val_score,
)
from sklearn.utils.multiclass import type_of_target

from letheon.data import Ids, hold_target
from letheon.exceptions import NoCandidateError
from letheon.guarantee import Task
from letheon.seeds import Purpose
from letheon.validation import Whole, check_parameter

Folds = Sequence[tuple[NDArray[Any], NDArray[Any]]]

# Classes are unbalanced if the largest class has at least this share of the rows: a model that
# always predicts it has this accuracy.
UNBALANCED = 2 / 3
# Floats without fractions are class labels if there are few distinct values.
_MOST_CLASSES = 20
# Keys: whether people own several rows, whether targets are classes.
_SPLITTERS: dict[tuple[bool, bool], Any] = {
    (False, False): KFold,
    (False, True): StratifiedKFold,
    (True, False): GroupKFold,
    (True, True): StratifiedGroupKFold,
}


def infer_task(y: Any) -> Task:
    """Return the task for a target: regression for fractions and for many different floats."""
    target = np.asarray(y)
    is_number = target.dtype.kind == "f" and len(np.unique(target)) > _MOST_CLASSES
    is_number = is_number or type_of_target(target).startswith("continuous")
    return "regression" if is_number else "classification"


def largest_class(y: Any) -> tuple[Any, float]:
    """Return the most frequent class and its share of the rows."""
    classes, counts = np.unique(np.asarray(y), return_counts=True)
    most = int(np.argmax(counts))
    return classes[most], float(counts[most] / counts.sum())


def is_unbalanced(y: Any) -> bool:
    """Return whether one class makes up two thirds of the rows or more."""
    return largest_class(y)[1] >= UNBALANCED


def balanced_accuracy(y_true: Any, y_pred: Any) -> float:
    """Return the recall of each class, averaged over the classes.

    The value is the same as in scikit-learn, but there is no warning if a predicted class is not in
    `y_true`.
    """
    truth, right = np.asarray(y_true), np.asarray(y_true) == np.asarray(y_pred)
    _, inverse = np.unique(truth, return_inverse=True)
    return float(np.mean(np.bincount(inverse, right) / np.bincount(inverse)))


def label_probability(model: Any, X: Any, y: NDArray[Any]) -> NDArray[np.float64]:
    """Return the predicted probability of each row's label; 0 if the model lacks this class."""
    classes, shares = np.asarray(model.classes_), np.asarray(model.predict_proba(X))
    column = np.searchsorted(classes, y).clip(max=len(classes) - 1)
    return np.where(classes[column] == y, shares[np.arange(len(y)), column], 0.0)


def choose_scoring(model: Any, y: Any, scoring: Any) -> Any:
    """Return the scoring; None becomes balanced accuracy if one class has two thirds of the rows.

    Otherwise None is kept: accuracy for classifiers, R2 for regressors.
    """
    if scoring is None and is_classifier(model) and is_unbalanced(hold_target(y)):
        return "balanced_accuracy"
    return scoring


def make_folds(model: Any, X: Any, y: Any, owners: Ids, cv: Any) -> Folds:
    """Return folds that separate people, as a list, so that all candidates use the same folds.

    `cv` is a number of folds, a splitter of scikit-learn or an iterable of folds.
    """
    people = owners.hashes(0, Purpose.ID_INDEX)
    grouped = len(np.unique(people)) < len(people)
    groups = people if grouped else None
    if not isinstance(cv, int | np.integer):
        return list(cv.split(X, y, groups)) if hasattr(cv, "split") else list(cv)
    kind = _SPLITTERS[grouped, is_classifier(model)]
    check_parameter("cv", cv, Whole(2))
    splitter = kind(int(cv), shuffle=True, random_state=0)
    return list(splitter.split(np.zeros(len(people)), hold_target(y), groups))


def score_folds(
    model: Any, X: Any, y: Any, folds: Folds, *, scoring: Any, params: Mapping[str, Any]
) -> NDArray[np.float64]:
    """Return the score of a model in each fold.

    `params` are arguments of `fit`, one value per row. Weights among them are used in the score of
    the held-out rows, too.
    """
    scorer = check_scoring(model, scoring)
    weights = params.get("sample_weight")
    scores: list[float] = []
    for fold in folds:
        weighting = {} if weights is None else {"sample_weight": np.asarray(weights)[fold[1]]}

        def score_held_out(fitted: Any, X: Any, y: Any, weighting: Any = weighting) -> float:
            return float(scorer(fitted, X, y, **weighting))

        scores += cross_val_score(
            model,
            X,
            y,
            scoring=score_held_out,
            cv=[fold],
            params=dict(params),
            error_score="raise",
        ).tolist()
    return np.array(scores)


def score_constant(
    model: Any, y: Any, folds: Folds, *, scoring: Any, sample_weight: Any = None
) -> float:
    """Return the score of the best constant prediction; -inf if the scoring fails for all."""
    rivals: list[Any] = [DummyRegressor()]
    if is_classifier(model):
        classes = np.unique(hold_target(y))
        rivals = [DummyClassifier(strategy="constant", constant=each) for each in classes]
    blank, best = np.zeros((len(y), 1)), -np.inf
    params = {} if sample_weight is None else {"sample_weight": sample_weight}
    for rival in rivals:
        # A custom scoring may use attributes that only the model has.
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scores = score_folds(rival, blank, y, folds, scoring=scoring, params=params)
            best = max(best, float(scores.mean()))
    return best


def require_better(name: str, score: float, constant: float, scoring: Any) -> None:
    """Raise unless a cross-validated score is better than that of a constant prediction."""
    if not score > constant:
        raise NoCandidateError(
            f"this {name} does not beat a constant prediction: cross-validated score {score:.4g}, "
            f"constant {constant:.4g} (scoring={scoring!r}). Use different features, settings or "
            "scoring"
        )
