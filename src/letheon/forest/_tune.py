"""Choice of the number of random levels (survey, section 4.2; Brophy and Lowd, 2021)."""

import contextlib
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    StratifiedGroupKFold,
    StratifiedKFold,
    cross_val_score,
)

from letheon.data import Ids, hold_target, row_ids
from letheon.exceptions import NoCandidateError
from letheon.forest._base import DaREForestBase
from letheon.scoring import is_unbalanced
from letheon.seeds import Purpose, seed_from
from letheon.validation import Interval, Whole, check_parameter

# Keys: whether people own several rows, whether targets are classes.
_SPLITTERS: dict[tuple[bool, bool], Any] = {
    (False, False): KFold,
    (False, True): StratifiedKFold,
    (True, False): GroupKFold,
    (True, True): StratifiedGroupKFold,
}
# Levels to try in a forest without a limit.
_USUAL_DEPTH = 20


@dataclass(frozen=True, eq=False)
class RandomDepthSearch:
    """Result of `tune_random_depth`.

    Attributes
    ----------
    random_depth : int
        The largest depth that was tried whose score is within the tolerance and better than a
        constant prediction.
    tolerance : float
        The tolerance that was used.
    depths : ndarray of int
        Depths that were tried: 0, 1, 2, ...
    scores : ndarray of float
        Mean cross-validated score at each depth; higher is better.
    std : ndarray of float
        Standard deviation over the folds.
    constant : float
        Score of the best constant prediction; -inf if the scoring cannot compute it.
    scoring : str, callable or None
        The scoring that was used.
    """

    random_depth: int
    tolerance: float
    depths: NDArray[np.int64]
    scores: NDArray[np.float64]
    std: NDArray[np.float64]
    constant: float = -np.inf
    scoring: Any = None


def tune_random_depth(
    model: Any,
    X: Any,
    y: Any,
    *,
    ids: Any = None,
    tolerance: float = 0.005,
    scoring: Any = None,
    cv: Any = 5,
    max_random_depth: int | None = None,
) -> RandomDepthSearch:
    """Increase `random_depth` from 0 until the score drops by more than a tolerance.

    Random levels make forgetting faster and predictions worse. This function finds the largest
    number of levels that lowers the cross-validated score by at most `tolerance`. The survey uses
    tolerances of 0.001, 0.0025, 0.005 and 0.01. The rows used here influence the choice: call
    `declare_tuning` if they may be forgotten later.

    Parameters
    ----------
    model : DaREForestClassifier or DaREForestRegressor
        The forest to tune; its other parameters are kept. It is not fitted or changed.
    X, y : array-like
        Rows and targets, in the same form as for `fit`.
    ids : sequence of int or of str, optional
        Id of the person each row belongs to. All rows of a person are in the same fold.
    tolerance : float, default=0.005
        Largest drop of the score, compared with ``random_depth=0``.
    scoring : str, callable or None, default=None
        The same as in `sklearn.model_selection.cross_val_score`. None means R2 for regression,
        balanced accuracy if one class has two thirds of the rows or more, and accuracy otherwise.
    cv : int, splitter or iterable, default=5
        Folds. A number means shuffled folds, stratified for classification, and grouped by person
        if people have several rows.
    max_random_depth : int, optional
        Largest depth to try; by default `max_depth`, or 20 if `max_depth` is unlimited.

    Returns
    -------
    RandomDepthSearch

    Raises
    ------
    NoCandidateError
        The forest does not beat a constant prediction at any depth.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from letheon.forest import DaREForestClassifier, tune_random_depth
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = DaREForestClassifier(n_estimators=5, random_state=0)
    >>> search = tune_random_depth(model, X, y, tolerance=0.02, max_random_depth=2)
    >>> bool(search.scores[0] - search.scores[search.random_depth] <= 0.02)
    True
    """
    if not isinstance(model, DaREForestBase):
        raise TypeError(
            "model must be a DaREForestClassifier or a DaREForestRegressor, the only models with "
            f"random_depth; got {type(model).__name__}"
        )
    check_parameter("tolerance", tolerance, Interval(0))
    owners = row_ids(ids, len(y))
    folds = _build_folds(model, X, y, owners, cv)
    seed = seed_from(model.random_state)
    if scoring is None and is_classifier(model) and is_unbalanced(hold_target(y)):
        scoring = "balanced_accuracy"
    constant = _constant_score(model, y, scoring, folds)
    scores: list[NDArray[np.float64]] = []
    if max_random_depth is None:
        max_random_depth = _USUAL_DEPTH if model.max_depth is None else int(model.max_depth)
    check_parameter("max_random_depth", max_random_depth, Whole(0))
    for depth in range(int(max_random_depth) + 1):
        candidate = clone(model).set_params(random_depth=depth, random_state=seed)
        params = {"ids": owners.to_array()}
        scores.append(
            cross_val_score(
                candidate, X, y, scoring=scoring, cv=folds, params=params, error_score="raise"
            )
        )
        if scores[0].mean() - scores[-1].mean() > tolerance or scores[-1].mean() <= constant:
            break
    means = np.array([each.mean() for each in scores])
    is_good = (means[0] - means <= tolerance) & (means > constant)
    if not is_good.any():
        raise NoCandidateError(
            "this forest does not beat a constant prediction: cross-validated score "
            f"{means[0]:.4g}, constant {constant:.4g} (scoring={scoring!r}). Use different "
            "features, settings or scoring"
        )
    return RandomDepthSearch(
        random_depth=int(np.flatnonzero(is_good).max()),
        tolerance=float(tolerance),
        depths=np.arange(len(scores)),
        scores=means,
        std=np.array([each.std() for each in scores]),
        constant=constant,
        scoring=scoring,
    )


def _constant_score(model: Any, y: Any, scoring: Any, folds: list[Any]) -> float:
    """Return the score of the best constant prediction; -inf if the scoring fails for all."""
    rivals: list[Any] = [DummyRegressor()]
    if is_classifier(model):
        classes = np.unique(hold_target(y))
        rivals = [DummyClassifier(strategy="constant", constant=each) for each in classes]
    blank, scores = np.zeros((len(y), 1)), [-np.inf]
    for rival in rivals:
        # A custom scoring may use attributes that only forests have.
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            score = cross_val_score(rival, blank, y, scoring=scoring, cv=folds, error_score="raise")
            scores.append(float(score.mean()))
    return max(scores)


def _build_folds(model: Any, X: Any, y: Any, owners: Ids, cv: Any) -> list[Any]:
    """Return the cross-validation splits as a list, so that every depth uses the same splits."""
    people = owners.hashes(0, Purpose.ID_INDEX)
    grouped = len(np.unique(people)) < len(people)
    groups = people if grouped else None
    if not isinstance(cv, int | np.integer):
        return list(cv.split(X, y, groups)) if hasattr(cv, "split") else list(cv)
    kind = _SPLITTERS[grouped, is_classifier(model)]
    check_parameter("cv", cv, Whole(2))
    splitter = kind(int(cv), shuffle=True, random_state=0)
    return list(splitter.split(np.zeros(len(people)), hold_target(y), groups))
