"""Choice of the number of skeleton people: accuracy against the cost of a request."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_consistent_length

from letheon.boosting._base import BoostingBase
from letheon.boosting._estimators import BoostingClassifier, BoostingRegressor
from letheon.data import Ids, row_ids
from letheon.scoring import (
    choose_scoring,
    infer_task,
    make_folds,
    require_better,
    score_constant,
    score_folds,
)
from letheon.seeds import Purpose, seed_from
from letheon.terminal import html_table, progress_bar, table_lines
from letheon.validation import Interval, Whole, check_parameter

# The largest size that is tried by default, and how many sizes: each is half of the one above.
_LARGEST = 40_000
_N_SIZES = 5
_HEAD = ("skeleton people", "score", "mean cost", "median", "largest", "chains", "values", "")


@dataclass(frozen=True, kw_only=True)
class SkeletonSize:
    """One size of the skeleton, with its score and the cost of forgetting one person.

    Costs are shares of a fit, computed by `forget_cost` for a sample of people.

    Attributes
    ----------
    skeleton_people : int
        The size.
    score, std : float
        Mean and standard deviation of the score on held-out people, over the folds.
    cost, median_cost, largest_cost : float
        Mean, median and largest cost of the people in the sample.
    regrown : float
        Share of these people whose removal grows a chain again.
    revalued : float
        Share of these people whose removal grows no chain, but changes values of leaves.

    Examples
    --------
    >>> from letheon.boosting import SkeletonSize
    >>> costs = {"cost": 0.01, "median_cost": 0.002, "largest_cost": 0.3}
    >>> size = SkeletonSize(
    ...     skeleton_people=400, score=0.9, std=0.01, regrown=0.02, revalued=0.5, **costs
    ... )
    >>> size.largest_cost
    0.3
    """

    skeleton_people: int
    score: float
    std: float
    cost: float
    median_cost: float
    largest_cost: float
    regrown: float
    revalued: float


@dataclass(frozen=True, kw_only=True, repr=False)
class SkeletonSearch:
    """Result of `suggest_skeleton`; `print` shows it as a table.

    Attributes
    ----------
    skeleton_people : int
        The size of lowest mean cost among those whose score is within the tolerance of the best
        score, and better than that of a constant prediction.
    sizes : tuple of SkeletonSize
        The sizes that were tried, in ascending order.
    tolerance : float
        The tolerance that was used.
    constant : float
        Score of the best constant prediction; -inf if the scoring cannot compute it.
    scoring : str, callable or None
        The scoring that was used.
    n_rows, n_people : int
        Size of the table.
    n_asked : int
        Number of people whose cost was computed.

    See Also
    --------
    letheon.plot.SkeletonDisplay : The same numbers as a plot.
    """

    skeleton_people: int
    sizes: tuple[SkeletonSize, ...]
    tolerance: float
    constant: float
    scoring: Any
    n_rows: int
    n_people: int
    n_asked: int

    @property
    def tuning(self) -> str:
        """Description of how the size was chosen; an argument for `declare_tuning`."""
        return (
            f"suggest_skeleton: skeleton_people chosen of {len(self.sizes)} by cross-validation on "
            f"{self.n_rows:,} rows of {self.n_people:,} people; rows that are forgotten later "
            "influenced the choice"
        )

    def __repr__(self) -> str:
        """Return the chosen size in one line."""
        return f"<SkeletonSearch: {self._describe_choice()}>"

    def __str__(self) -> str:
        """Return the table, its explanation and the choice as text."""
        lines = [*table_lines(_HEAD, self._cells()), "", self._describe_columns()]
        return "\n".join([*lines, self._describe_choice()])

    def _repr_html_(self) -> str:
        """Return an HTML table for notebooks."""
        return html_table(self._describe_choice(), _HEAD, self._cells())

    def _describe_choice(self) -> str:
        return (
            f"skeleton_people={self.skeleton_people}: the cheapest of {len(self.sizes)} sizes "
            f"whose score is at most {self.tolerance:g} below the best"
        )

    def _describe_columns(self) -> str:
        return (
            f"Costs: forgetting one person, as a share of a fit, for {self.n_asked} of "
            f"{self.n_people:,} people.\n"
            "chains: people whose removal grows a chain again; values: others whose removal "
            "changes values of leaves."
        )

    def _cells(self) -> list[list[str]]:
        return [list(self._format_size(size)) for size in self.sizes]

    def _format_size(self, size: SkeletonSize) -> Iterator[str]:
        yield f"{size.skeleton_people:,}"
        yield f"{size.score:.4f} ± {size.std:.4f}"
        yield f"{size.cost:.2%}"
        yield f"{size.median_cost:.2%}"
        yield f"{size.largest_cost:.1%}"
        yield f"{size.regrown:.1%}"
        yield f"{size.revalued:.1%}"
        yield "chosen" if size.skeleton_people == self.skeleton_people else ""


def suggest_skeleton(
    X: Any,
    y: Any,
    *,
    model: Any = None,
    ids: Any = None,
    sample_weight: Any = None,
    sizes: Iterable[int] | None = None,
    tolerance: float = 0.005,
    scoring: Any = None,
    cv: Any = 5,
    n_requests: int = 200,
    progress: bool = False,
) -> SkeletonSearch:
    """Compare sizes of the skeleton, and choose the cheapest within a tolerance.

    A larger skeleton gives more accurate trees, and more requests that grow a chain again. For each
    size this function computes the score on held-out people, and the cost of forgetting one person:
    a share of a fit, by `forget_cost` on a model of all rows, which counts work and measures no
    time. The rows used here influence the choice: if they may be forgotten later, call
    ``model.declare_tuning(search.tuning)`` on the fitted model, or make the search a part of the
    model with `ForgetSearchCV`.

    Parameters
    ----------
    X, y : array-like, sparse matrix, or pandas or polars frame
        Rows and targets, in the same form as for `fit`.
    model : BoostingClassifier or BoostingRegressor, optional
        The model to tune; its other parameters are kept. It is not fitted or changed. By default a
        regressor for fractions and for many different floats, and else a classifier.
    ids : sequence of int or of str, optional
        Id of the person each row belongs to. All rows of a person are in the same fold.
    sample_weight : array-like, optional
        Weights of the rows, as for `fit`. Scores use them, too.
    sizes : iterable of int, optional
        Sizes to try. By default five sizes, each half of the next; the largest is 40,000, or the
        number of people if it is smaller.
    tolerance : float, default=0.005
        Largest accepted difference to the best score.
    scoring : str, callable or None, default=None
        The same as in `sklearn.model_selection.cross_val_score`. None means R2 for regression,
        balanced accuracy if one class has two thirds of the rows or more, and accuracy otherwise.
    cv : int, splitter or iterable, default=5
        Folds. A number means shuffled folds, stratified for classification, and grouped by person
        if people have several rows.
    n_requests : int, default=200
        Number of people whose cost is computed: the same keyed sample for all sizes.
    progress : bool, default=False
        Show a progress bar.

    Returns
    -------
    SkeletonSearch

    Raises
    ------
    NoCandidateError
        The model does not beat a constant prediction with any size.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from letheon.boosting import BoostingClassifier, suggest_skeleton
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = BoostingClassifier(n_estimators=10, random_state=0)
    >>> search = suggest_skeleton(X, y, model=model, sizes=[80, 400], tolerance=0.05, cv=3)
    >>> search.skeleton_people
    80
    >>> search.sizes[0].cost < search.sizes[1].cost
    True
    """
    check_parameter("tolerance", tolerance, Interval(0))
    check_parameter("n_requests", n_requests, Whole(1))
    check_consistent_length(X, y, sample_weight)
    model = _make_model(model, y)
    owners = row_ids(ids, len(y))
    wanted = _list_sizes(sizes, len(owners.distinct()))
    folds = make_folds(model, X, y, owners, cv)
    scoring = choose_scoring(model, y, scoring)
    constant = score_constant(model, y, folds, scoring=scoring, sample_weight=sample_weight)
    params: dict[str, Any] = {"ids": owners.to_array()}
    if sample_weight is not None:
        params["sample_weight"] = np.asarray(sample_weight)
    results = []
    with progress_bar("skeleton sizes", len(wanted), is_shown=progress) as note:
        for size in wanted:
            candidate = clone(model).set_params(skeleton_people=size)
            scores = score_folds(candidate, X, y, folds, scoring=scoring, params=params)
            fitted = candidate.fit(X, y, **params)
            people = fitted._get_ids().distinct()  # without people whose rows have weight 0
            asked = _sample_people(people, model.random_state, int(n_requests))
            results.append(_measure_size(size, scores, fitted, asked))
            note()
    best = max(result.score for result in results)
    require_better("model", best, constant, scoring)
    good = [each for each in results if best - each.score <= tolerance and each.score > constant]
    return SkeletonSearch(
        skeleton_people=min(good, key=lambda each: each.cost).skeleton_people,
        sizes=tuple(results),
        tolerance=float(tolerance),
        constant=constant,
        scoring=scoring,
        n_rows=len(owners),
        n_people=len(people),
        n_asked=len(asked),
    )


def _make_model(model: Any, y: Any) -> Any:
    """Return a copy of the model to tune, with a fixed seed."""
    if model is None:
        model = BoostingRegressor() if infer_task(y) == "regression" else BoostingClassifier()
    if not isinstance(model, BoostingBase):
        raise TypeError(
            "model must be a BoostingClassifier or a BoostingRegressor, the only models with a "
            f"skeleton; got {type(model).__name__}"
        )
    return clone(model).set_params(random_state=seed_from(model.random_state))


def _list_sizes(sizes: Iterable[int] | None, n_people: int) -> list[int]:
    """Return the sizes to try, in ascending order and without duplicates."""
    if sizes is None:
        largest = min(n_people, _LARGEST)
        sizes = [max(1, largest >> power) for power in range(_N_SIZES)]
    if not isinstance(sizes, Iterable):
        raise TypeError(f"sizes={sizes!r}; expected numbers of people, such as [2_500, 10_000]")
    wanted = list(sizes)
    if not wanted:
        raise ValueError("sizes is empty; expected at least one number of people")
    for size in wanted:
        check_parameter("sizes", size, Whole(1))
    return sorted({int(size) for size in wanted})


def _sample_people(people: Ids, seed: Any, count: int) -> Ids:
    """Return the people of lowest keyed hash: the same for all sizes."""
    hashes = people.hashes(seed_from(seed), Purpose.SEARCH_SAMPLE)
    return people.take(np.argsort(hashes, kind="stable")[: min(count, len(people) - 1)])


def _measure_size(size: int, scores: Any, fitted: BoostingBase, asked: Ids) -> SkeletonSize:
    costs = [fitted.forget_cost([person]) for person in asked.to_array().tolist()]
    shares = np.array([cost.share for cost in costs])
    return SkeletonSize(
        skeleton_people=size,
        score=float(scores.mean()),
        std=float(scores.std()),
        cost=float(shares.mean()),
        median_cost=float(np.median(shares)),
        largest_cost=float(shares.max()),
        regrown=float(np.mean([cost.chains > 0 for cost in costs])),
        revalued=float(np.mean([cost.chains == 0 and cost.rounds > 0 for cost in costs])),
    )
