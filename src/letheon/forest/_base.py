"""Base class of the forests: input, requests, and inspection of trees."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Tags

from letheon import _core, state
from letheon.base import (
    ForgetMixin,
    InPlaceMixin,
    Outcome,
    Removal,
    lock_model,
    require_fitted,
    require_known,
)
from letheon.data import Ids, IntIds, TextIds, as_ids, to_native
from letheon.delta import Delta
from letheon.exceptions import EmptyModelError
from letheon.forest._columns import ColumnChange, compare_columns, keys_from_names
from letheon.forest._inputs import (
    PARAMETER_RULES,
    REBUILD,
    RESOLVED,
    ForestBatch,
    as_matrix,
    is_matrix,
    resolve_settings,
    warn_if_coarse,
)
from letheon.forest._model import (
    ForestModel,
    ForestPrediction,
    ForestTree,
    ForgetCost,
    grow_forest,
    threads_for,
    threads_for_few,
    work_share,
)
from letheon.guarantee import Guarantee, MethodFacts, SearchRanges, TrainingSize
from letheon.inner_estimator import remember_features, require_features
from letheon.seeds import seed_from
from letheon.validation import Rules, check_parameter, require_target, validate_parameters


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
_NO_IDS = {"int": IntIds(np.empty(0, np.int64)), "str": TextIds.from_strings([])}

# Up to this number of rows, asking joblib for threads takes longer than the threads save.
_FEW_ROWS = 8
_FEW_QUESTIONS = 64

PendingChange = Callable[[], _core.Report]


@dataclass(kw_only=True, eq=False, repr=False)
class ForestParameters:
    """Parameters of all forests, with their defaults."""

    n_estimators: int = 100
    max_depth: int | None = 10
    n_thresholds: int | None = 25
    random_depth: int = 0
    min_samples_split: int = 2
    min_samples_leaf: int = 1
    subsample: float = 1.0
    rebuild: str = "lazy"
    n_jobs: int | None = None
    random_state: Any = None


class DaREForestBase(ForestParameters, InPlaceMixin, ForgetMixin, BaseEstimator):
    """Base class of forests that depend only on their settings, seed and remaining rows."""

    facts: ClassVar[MethodFacts] = _FACTS
    # `forest_` stores their resolved values, so equivalent settings give the same digest.
    _not_digested: ClassVar[frozenset[str]] = ForgetMixin._not_digested | RESOLVED
    _parameter_rules: ClassVar[Rules] = PARAMETER_RULES

    criterion: str
    max_features: Any

    forest_: ForestModel
    seed_: int
    environment_: dict[str, str]
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    def fit(self, X: Any, y: Any, *, ids: Any = None, sample_weight: Any = None) -> Self:
        """Grow the forest and store the rows.

        Parameters
        ----------
        X : array-like, pandas or polars frame of shape (n_rows, n_columns)
            Training rows, stored as float32. Missing values (NaN, null) are allowed.
        y : array-like of shape (n_rows,)
            Labels or targets.
        ids : sequence of int or of str, optional
            Id of the person each row belongs to; ids may repeat. The default is ``0..n-1``.
        sample_weight : array-like of int, optional
            Whole numbers. A row with weight w counts w times; a row with weight 0 is omitted.

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
            batch = self._prepare_batch(X, y, sample_weight, ids)
            settings = resolve_settings(self, batch.X.shape[1], seed)
            keys = None if names is None else keys_from_names(names, seed)
            forest = grow_forest(settings, batch, self.n_jobs, keys)
            remember_features(self, X)
            vars(self).pop("tuning_", None)
            # One call, so that a concurrent predict never sees a partial update.
            vars(self).update(forest_=forest, seed_=seed, **self._remember_settings())
        warn_if_coarse(batch.target, getattr(self, "y_max", None))
        return self

    def learn(self, X: Any, y: Any, *, ids: Any, sample_weight: Any = None) -> Self:
        """Add rows; the result is the same as if they had been in `fit`.

        New classes are allowed.

        Parameters
        ----------
        X, y, sample_weight
            The same as in `fit`; X must have the same columns.
        ids : sequence of int or of str
            Id of the person each row belongs to. A known id keeps its earlier rows.

        Returns
        -------
        self
        """
        return self._learn_rows(ids, lambda: self._prepare_learn(X, y, sample_weight, ids))

    def settle(self) -> Self:
        """Grow the subtrees that lazy requests have dropped.

        Without this call they are grown when they are first needed. Predictions and the digest do
        not change.

        Returns
        -------
        self
        """
        require_fitted(self)
        with lock_model(self):
            self.forest_.core.settle(threads_for(self.n_jobs))
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
        require_fitted(self)
        wanted = as_ids(ids).distinct()
        with lock_model(self):
            self._require_same_parameters()
            if len(wanted) == 0:
                return ForgetCost(rows=0, subtrees=0, trees=0, share=0.0)
            removal = self._locate_rows(wanted, done="")
            rest = self.n_rows_ - removal.n_rows
            if rest == 0:
                raise EmptyModelError(
                    "ids covers all rows of the model, so no rows would remain to fit; keep at "
                    "least one id"
                )
            forest = self.forest_
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
        return self.forest_.core.apply(matrix, threads_for(self.n_jobs))

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

    @property
    def n_rows_(self) -> int:
        """Number of remaining rows."""
        require_fitted(self)
        return self.forest_.core.n_rows

    @abstractmethod
    def _prepare_target(self, y: Any) -> NDArray[Any]:
        """Return y in canonical form; raise `ValueError` for a target of the wrong kind."""

    def _prepare_batch(self, X: Any, y: Any, sample_weight: Any, ids: Any) -> ForestBatch:
        require_target(self, y)
        return ForestBatch.from_input(X, self._prepare_target(y), sample_weight, ids)

    def _prepare_matrix(self, X: Any) -> NDArray[Any]:
        """Return X as a float matrix for the C++ core; a suitable matrix is returned unchanged."""
        require_fitted(self)
        known = vars(self)
        plain = is_matrix(X) and X.shape[1] == known["n_features_in_"]
        if plain and "feature_names_in_" not in known:
            return X  # type: ignore[no-any-return]
        matrix = as_matrix(X)
        require_features(self, X)
        return matrix

    def _predict_values(self, X: Any) -> ForestPrediction:
        matrix = self._prepare_matrix(X)
        threads = threads_for_few if len(matrix) <= _FEW_QUESTIONS else threads_for
        return self.forest_.predict(matrix, threads(self.n_jobs))

    def _finish_pending(self) -> None:
        self.settle()

    def _describe_environment(self) -> dict[str, str]:
        # The core uses only integers and single IEEE operations, so no library version matters.
        return {"letheon": state.environment()["letheon"]}

    def _get_ids(self) -> Ids:
        return self.forest_.collect_ids()

    def _make_guarantee(self) -> Guarantee:
        return _CLAIM

    def _locate_rows(self, wanted: Ids, *, done: str = "nothing was forgotten, ") -> Removal:
        slots, missing = self.forest_.find_rows(wanted)
        if len(missing):
            require_known(wanted.take(missing), _NO_IDS[self.forest_.id_type.kind], done=done)
        return Removal(len(wanted), len(slots), slots)

    def _is_eager(self) -> bool:
        # Checked again, because the parameter may be changed after fit.
        check_parameter("rebuild", self.rebuild, REBUILD)
        return bool(self.rebuild == "eager")

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
        if forest.keys is None or "feature_names_in_" in described:
            return None
        change = compare_columns(forest.settings, forest.keys, self.max_features, delta, names)
        if change is None:
            return None
        dropped = change.find_dropped(forest.settings.n_columns)
        if delta.added is not None:
            if dropped or delta.removed is not None:
                return None
            added = delta.added
            batch = self._prepare_batch(to_native(added.X), added.y, None, added.ids.to_array())
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

    def _prepare_learn(self, X: Any, y: Any, sample_weight: Any, ids: Any) -> PendingChange:
        batch = self._prepare_batch(X, y, sample_weight, ids)
        require_features(self, X)
        return self._plan_learn(batch, None)

    def _plan_learn(self, batch: ForestBatch, columns: ColumnChange | None) -> PendingChange:
        eager, forest = self._is_eager(), self.forest_
        _NO_IDS[forest.id_type.kind].concat(batch.ids)  # raises for ids of the other kind
        return partial(forest.learn, batch, eager, threads_for(self.n_jobs), columns)

    def _commit(self, plan: PendingChange) -> Outcome:
        report, forest = plan(), self.forest_
        rebuilt = {"subtrees": report.rebuilt_nodes}
        if report.rescaled:
            rebuilt = {"trees": forest.settings.n_trees}
        # A subtree has fewer levels than its tree, so this overestimates the share of time.
        work = work_share(report, forest.settings, forest.core.n_rows)
        return Outcome(work, rebuilt | {"rows": report.rebuilt_rows})

    def _in_place_attributes(self) -> tuple[str, ...]:
        return ("forest_",)

    def __sklearn_tags__(self) -> Tags:
        """Return scikit-learn's tags: dense numeric input, missing values allowed."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
