"""Base class of the forests: input, requests, and inspection of trees."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from letheon import _core
from letheon.base import (
    ForgetMixin,
    Outcome,
    Removal,
    lock_model,
    require_fitted,
)
from letheon.data import (
    CategoryColumns,
    to_native,
)
from letheon.delta import Delta
from letheon.forest._columns import ColumnChange, compare_columns, keys_from_names
from letheon.forest._core_base import CoreModelBase
from letheon.forest._inputs import (
    PARAMETER_RULES,
    RESOLVED,
    ForestBatch,
    resolve_settings,
    warn_if_coarse,
)
from letheon.forest._model import ForestModel, ForestPrediction, ForgetCost, grow_forest, work_share
from letheon.forest._threads import threads_for, threads_for_few
from letheon.forest._tree import ForestTree
from letheon.guarantee import Guarantee, MethodFacts, SearchRanges, TrainingSize
from letheon.inner_estimator import remember_features
from letheon.predictor import Answers, Predictor, ScorePredictor, TreeInputs, TreeScores
from letheon.seeds import seed_from
from letheon.validation import Rules, validate_parameters


def _random_depths(size: TrainingSize) -> SearchRanges:
    deepest = 8 if size.max_depth is None else size.max_depth
    return SearchRanges({"random_depth": tuple(d for d in (0, 1, 2, 4, 6, 8) if d <= deepest)})


_FACTS = MethodFacts(
    method="dare",
    applicability="random forests (classification, regression)",
    exact=True,
    strength="strong",
    efficiency_parameters=("n_thresholds", "random_depth", "subsample"),
    definition_name="dare",
    families=("forest",),
    tasks=("classification", "regression"),
    batches=True,
    replay="bitwise",
    search_ranges=_random_depths,
)
_CLAIM = Guarantee(
    kind="exact",
    reference="a tree is a function of seed and remaining rows; after Brophy and Lowd 2021",
    assumptions=("seed-independent-of-requests",),
)

# Up to this number of rows, asking joblib for threads takes longer than the threads save.
_FEW_ROWS = 8
_FEW_QUESTIONS = 64

PendingChange = Callable[[], _core.Report]


@dataclass(kw_only=True, eq=False, repr=False)
class ForestParameters:
    """Parameters of all forests, with their defaults."""

    max_features: Any = "sqrt"
    n_estimators: int = 100
    max_depth: int | None = 10
    n_thresholds: int | None = 25
    random_depth: int = 0
    min_samples_split: int = 2
    min_samples_leaf: int = 1
    subsample: float = 1.0
    categorical_features: Any = "from_dtype"
    weight_bits: int = 0
    rebuild: str = "lazy"
    n_jobs: int | None = None
    verbose: int = 0
    random_state: Any = None


class DaREForestBase(ForestParameters, CoreModelBase):
    """Base class of forests that depend only on their settings, seed and remaining rows."""

    facts: ClassVar[MethodFacts] = _FACTS
    # `forest_` stores their resolved values, so equivalent settings give the same digest.
    _not_digested: ClassVar[frozenset[str]] = ForgetMixin._not_digested | RESOLVED
    _parameter_rules: ClassVar[Rules] = PARAMETER_RULES
    _later_parameters: ClassVar[dict[str, Any]] = {
        "categorical_features": "from_dtype",
        "class_weight": None,
        "weight_bits": 0,
        "verbose": 0,
    }

    _core_attribute: ClassVar[str] = "forest_"
    _claim: ClassVar[Guarantee] = _CLAIM

    criterion: str
    forest_: ForestModel

    def fit(self, X: Any, y: Any, *, ids: Any = None, sample_weight: Any = None) -> Self:
        """Grow the forest and store the rows.

        Parameters
        ----------
        X : array-like, pandas or polars frame, or sparse matrix of shape (n_rows, n_columns)
            Training rows: numbers, stored as float32, and categories (see `categorical_features`).
            Missing values (NaN, null) are allowed.
        y : array-like of shape (n_rows,)
            Labels or targets.
        ids : sequence of int or of str, optional
            Id of the person each row belongs to; ids may repeat. The default is ``0..n-1``.
        sample_weight : array-like, optional
            A row with weight w counts w times; a row with weight 0 is omitted. Whole numbers, or
            fractions with `weight_bits`.

        Returns
        -------
        self
        """
        return self._grow(X, y, ids, sample_weight, None)

    def _fit_named(self, X: Any, y: Any, ids: Any, names: Sequence[Any]) -> Self:
        """Fit in a pipeline: the draws of a node depend on the names of columns, not on numbers."""
        return self._grow(X, y, ids, None, names)

    def _grow(
        self, X: Any, y: Any, ids: Any, sample_weight: Any, names: Sequence[Any] | None
    ) -> Self:
        with lock_model(self):
            seed = seed_from(self.random_state)
            validate_parameters(self)
            columns = CategoryColumns.from_input(X, self.categorical_features, seed)
            batch = self._prepare_batch(X, y, sample_weight, ids, columns)
            settings = resolve_settings(self, batch.X.shape[1], columns)
            keys = None if names is None else keys_from_names(names, seed)
            forest = grow_forest(
                settings, batch, columns, self.n_jobs, keys, is_shown=bool(self.verbose)
            )
            remember_features(self, X)
            vars(self).pop("tuning_", None)
            # One call, so that a concurrent predict never sees a partial update.
            vars(self).update(forest_=forest, seed_=seed, **self._remember_settings())
        warn_if_coarse(batch.target, getattr(self, "y_max", None))
        return self

    def forget_cost(self, ids: Any) -> ForgetCost:
        """Return the cost of forgetting these ids, without changing the model.

        Parameters
        ----------
        ids : sequence of int or of str
            Ids to forget, in the same form as for `forget`.

        Returns
        -------
            ForgetCost
                Number of subtrees and rows that would have to be grown again.

        Raises
        ------
        UnknownIdError
            Some ids have no rows in the model.
        EmptyModelError
            The ids cover all rows, so `forget` would raise.
        ChangedParametersError
            Parameters were changed after `fit`, so `forget` would raise.
        """
        nothing = ForgetCost(rows=0, subtrees=0, trees=0, share=0.0)
        cost: ForgetCost = self._estimate_cost(ids, nothing, self._estimate_removal)
        return cost

    def _estimate_removal(self, removal: Removal) -> ForgetCost:
        forest, rest = self.forest_, self.n_rows_ - removal.n_rows
        if forest.would_reweigh(removal.where):
            n_trees = forest.settings.n_trees
            return ForgetCost(rows=rest * n_trees, subtrees=n_trees, trees=n_trees, share=1.0)
        report = forest.core.forget_cost(removal.where, threads_for(self.n_jobs))
        return ForgetCost(
            rows=report.rebuilt_rows,
            subtrees=report.rebuilt_nodes,
            trees=report.touched_trees,
            share=work_share(report, forest.settings, rest),
        )

    def apply(self, X: Any) -> NDArray[np.int64]:
        """Return the index of the leaf of each row in each tree.

        Parameters
        ----------
        X : array-like, pandas or polars frame of shape (n_rows, n_columns)
            Rows with the columns of `fit`.

        Returns
        -------
        ndarray of int64, shape (n_rows, n_estimators)
            Indices of nodes in preorder, as in the arrays of `tree_`.
        """
        matrix = self._prepare_matrix(X)
        return self.forest_.apply(matrix, threads_for(self.n_jobs))

    def tree_(self, number: int) -> ForestTree:
        """Return one tree as arrays with one entry per node.

        Parameters
        ----------
        number : int
            ``0 <= number < n_estimators``.

        Returns
        -------
        ForestTree
        """
        require_fitted(self)
        forest = self.forest_
        if not isinstance(number, int | np.integer) or isinstance(number, bool):
            raise TypeError(f"number={number!r} is not a tree number; expected an int")
        if not 0 <= number < forest.settings.n_trees:
            raise IndexError(
                f"number={number} is out of range; expected a tree number from 0 to "
                f"{forest.settings.n_trees - 1}"
            )
        return ForestTree.from_arrays(
            forest.tree_arrays(int(number)), vars(self).get("feature_names_in_")
        )

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """Mean decrease in impurity for each column, from the remaining rows only; sums to 1."""
        require_fitted(self)
        return self.forest_.core.importances(threads_for(self.n_jobs))

    def _make_tree_predictor(self, inputs: TreeInputs, claim: Guarantee) -> Predictor:
        return _make_predictor(self.forest_, inputs, claim)

    def _predict_values(self, X: Any) -> ForestPrediction:
        matrix = self._prepare_matrix(X)
        threads = threads_for_few if matrix.shape[0] <= _FEW_QUESTIONS else threads_for
        return self.forest_.predict(matrix, threads(self.n_jobs))

    def _prepare(self, removal: Removal, columns: ColumnChange | None = None) -> PendingChange:
        eager = self._is_eager()
        few = not eager and removal.n_rows <= _FEW_ROWS
        n_threads = threads_for_few(self.n_jobs) if few else threads_for(self.n_jobs)
        return partial(self.forest_.forget, removal.where, eager, n_threads, columns)

    def _prepare_columns(self, delta: Delta, names: Sequence[Any]) -> PendingChange | None:
        """Return a change of rows and columns in a pipeline, or None if a new fit is needed.

        Rows that arrive are learned at once, because that can fail.
        """
        forest, described = self.forest_, vars(self)
        columns = forest.categories.columns
        if forest.keys is None or "feature_names_in_" in described or columns.columns:
            return None
        change = compare_columns(forest.settings, forest.keys, self.max_features, delta, names)
        if change is None:
            return None
        dropped = change.find_dropped(forest.settings.n_columns)
        if delta.added is not None:
            if dropped or delta.removed is not None:
                return None
            added = delta.added
            X, ids = to_native(added.X), added.ids.to_array()
            batch = self._prepare_batch(X, added.y, None, ids, columns)
            learn = self._plan_learn(batch, change)
            report = learn()
            described["n_features_in_"] = change.settings.n_columns
            return lambda: report
        assert delta.removed is not None
        removal = self._locate_rows(delta.removed.ids.distinct())
        if not all(forest.core.is_constant(column, removal.where) for column in dropped):
            return None
        forget = self._prepare(removal, change)

        def apply() -> _core.Report:
            report = forget()
            described["n_features_in_"] = change.settings.n_columns
            return report

        return apply

    def _plan_learn(self, batch: ForestBatch, columns: ColumnChange | None = None) -> PendingChange:
        self._require_same_ids(batch.ids)
        eager, threads = self._is_eager(), threads_for(self.n_jobs)
        return partial(self.forest_.learn, batch, eager, threads, columns)

    def _commit(self, plan: PendingChange) -> Outcome:
        report, forest = plan(), self.forest_
        rebuilt = {"subtrees": report.rebuilt_nodes}
        if report.rescaled:
            rebuilt = {"trees": forest.settings.n_trees}
        # A subtree has fewer levels than its tree, so this overestimates the share of time.
        work = work_share(report, forest.settings, forest.core.n_rows)
        return Outcome(work, rebuilt | {"rows": report.rebuilt_rows})


def _make_predictor(forest: ForestModel, inputs: TreeInputs, claim: Guarantee) -> ScorePredictor:
    """Return the predictor of a forest; `inputs` has no categories yet."""
    trees = [forest.tree_arrays(number) for number in range(forest.settings.n_trees)]
    classes, names = trees[0].get("classes"), trees[0]["categories"]
    trees = [tree for tree in trees if tree["weight"][0]] or [_make_leaf(forest)]
    for tree in trees:
        values = tree["values"]
        tree["value"] = values if classes is None else values / tree["weight"][:, None]
    n_scores = 1 if classes is None else len(classes)
    inputs, scores = TreeScores.from_trees(
        trees, names, inputs, base=np.zeros(n_scores), divisor=float(len(trees))
    )
    answers = Answers("values") if classes is None else Answers("shares", classes)
    return ScorePredictor(inputs, scores, answers, claim)


def _make_leaf(forest: ForestModel) -> dict[str, Any]:
    """Return the answer of a forest whose trees have no rows, as a tree of one leaf."""
    answer = forest.predict(np.zeros((1, forest.settings.n_columns)), 1)
    values = answer.values if answer.table is None else answer.values[:, answer.table.code_order]
    leaf = {"attribute": -1, "threshold": 0.0, "missing_left": 0, "right": -1, "weight": 1}
    return {key: np.array([value]) for key, value in leaf.items()} | {"values": values}
