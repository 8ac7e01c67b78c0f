"""Choice of the number of random levels (survey, section 4.2; Brophy and Lowd, 2021)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from letheon.data import row_ids
from letheon.forest._base import DaREForestBase
from letheon.scoring import (
    choose_scoring,
    make_folds,
    require_better,
    score_constant,
    score_folds,
)
from letheon.seeds import seed_from
from letheon.terminal import progress_bar
from letheon.validation import Interval, Whole, check_parameter

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
    progress: bool = False,
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
    progress : bool, default=False
        Show a progress bar; it ends early if the score drops.

    Returns
    -------
    RandomDepthSearch

    Raises
    ------
    NoCandidateError
        The forest does not beat a constant prediction at any depth.
    TypeError
        The model is not a forest of this package.

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
    folds = make_folds(model, X, y, owners, cv)
    seed = seed_from(model.random_state)
    scoring = choose_scoring(model, y, scoring)
    constant = score_constant(model, y, folds, scoring=scoring)
    scores: list[NDArray[np.float64]] = []
    if max_random_depth is None:
        max_random_depth = _USUAL_DEPTH if model.max_depth is None else int(model.max_depth)
    check_parameter("max_random_depth", max_random_depth, Whole(0))
    params = {"ids": owners.to_array()}
    n_depths = int(max_random_depth) + 1
    with progress_bar("random levels", n_depths, is_shown=progress) as note:
        for depth in range(n_depths):
            candidate = clone(model).set_params(random_depth=depth, random_state=seed)
            scores.append(score_folds(candidate, X, y, folds, scoring=scoring, params=params))
            note()
            if scores[0].mean() - scores[-1].mean() > tolerance or scores[-1].mean() <= constant:
                break
    means = np.array([each.mean() for each in scores])
    is_good = (means[0] - means <= tolerance) & (means > constant)
    require_better("forest", float(means[0]), constant, scoring)
    return RandomDepthSearch(
        random_depth=int(np.flatnonzero(is_good).max()),
        tolerance=float(tolerance),
        depths=np.arange(len(scores)),
        scores=means,
        std=np.array([each.std() for each in scores]),
        constant=constant,
        scoring=scoring,
    )
