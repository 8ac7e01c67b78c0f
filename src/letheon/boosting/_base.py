"""Base class of the boosted models: parameters, input and requests."""

from collections.abc import Callable, Iterator
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
from letheon.boosting._model import (
    BoostingCost,
    BoostingModel,
    BoostingScores,
    make_cost,
    resolve_settings,
)
from letheon.data import CategoryColumns
from letheon.forest import (
    REBUILD,
    ClassWeightRule,
    CoreModelBase,
    ForestBatch,
    threads_for,
    threads_for_few,
)
from letheon.guarantee import Guarantee, MethodFacts, SearchRanges, TrainingSize
from letheon.inner_estimator import remember_features
from letheon.predictor import Predictor, TreeInputs
from letheon.seeds import seed_from
from letheon.validation import (
    JOBS,
    POSITIVE,
    VERBOSE,
    Interval,
    OrNone,
    Rules,
    Whole,
    validate_parameters,
)


def _list_skeleton_sizes(size: TrainingSize) -> SearchRanges:
    largest = min(40_000, size.n_people)
    return SearchRanges({"skeleton_people": tuple(max(1, largest >> n) for n in (0, 2, 4))})


_FACTS = MethodFacts(
    method="boosting",
    applicability="gradient boosting (classification, regression)",
    exact=True,
    strength="strong",
    efficiency_parameters=("skeleton_people", "n_chains", "n_estimators"),
    definition_name="boosting",
    families=("forest",),
    tasks=("classification", "regression"),
    batches=True,
    replay="bitwise",
    search_ranges=_list_skeleton_sizes,
)
_CLAIM = Guarantee(
    kind="exact",
    reference="splits and leaf values are functions of seed and remaining rows",
    assumptions=("seed-independent-of-requests",),
)
_FEW_ROWS = 64
_MOST = 2**31 - 1
_RULES: Rules = {
    "n_estimators": Whole(1, 10_000),
    "learning_rate": Interval(0, 1, closed="right"),
    "max_leaves": Whole(2, 64),
    "min_samples_leaf": Whole(1, _MOST),
    "l2_regularization": Interval(0, _MOST, closed="both"),
    "max_bins": Whole(2, 254),
    "colsample": OrNone(Interval(0, 1, closed="right")),
    "skeleton_people": OrNone(Whole(1, _MOST)),
    "n_chains": Whole(1, 10_000),
    "step_bits": Whole(2, 8),
    "weight_bits": Whole(0, 16),
    "class_weight": ClassWeightRule(),
    "rebuild": REBUILD,
    "n_jobs": JOBS,
    "verbose": VERBOSE,
    "y_max": OrNone(POSITIVE),
}


PendingChange = Callable[[], _core.BoostingReport]


@dataclass(kw_only=True, eq=False, repr=False)
class BoostingParameters:
    """Parameters of all boosted models, with their defaults."""

    n_estimators: int = 100
    learning_rate: float = 0.3
    max_leaves: int = 64
    min_samples_leaf: int = 10
    l2_regularization: float = 1.0
    max_bins: int = 64
    colsample: float | None = 1.0
    skeleton_people: int | None = None
    n_chains: int = 4
    step_bits: int = 4
    categorical_features: Any = "from_dtype"
    weight_bits: int = 0
    rebuild: str = "lazy"
    n_jobs: int | None = None
    verbose: int = 0
    random_state: Any = None


class BoostingBase(BoostingParameters, CoreModelBase):
    """Base class of boosted models that depend only on settings, seed and remaining rows."""

    facts: ClassVar[MethodFacts] = _FACTS
    # `boosting_` stores their resolved values, so equivalent settings give the same digest.
    _not_digested: ClassVar[frozenset[str]] = (
        ForgetMixin._not_digested
        | frozenset(BoostingParameters.__dataclass_fields__)
        | {"loss", "class_weight", "y_max"}
    )
    _parameter_rules: ClassVar[Rules] = _RULES
    _later_parameters: ClassVar[dict[str, Any]] = {"verbose": 0}

    _core_attribute: ClassVar[str] = "boosting_"
    _claim: ClassVar[Guarantee] = _CLAIM

    loss: str
    boosting_: BoostingModel

    @classmethod
    def preset(cls, name: str, **parameters: Any) -> Self:
        """Return an estimator with the settings of a preset.

        Parameters
        ----------
        name : {"fast", "accurate"}
            ``"fast"`` has a small skeleton, so that most requests are cheap, and trees of few
            columns where there are many. ``"accurate"`` has more trees, bins and skeleton people,
            smaller steps, and trees of 70 % of the columns.
        **parameters
            Parameters that differ from the preset.

        Returns
        -------
        Self
        """
        if name not in _PRESETS:
            raise ValueError(f"unknown preset {name!r}; expected one of: 'accurate', 'fast'")
        return cls(**(_PRESETS[name] | parameters))

    def fit(self, X: Any, y: Any, *, ids: Any = None, sample_weight: Any = None) -> Self:
        """Grow the trees and store the rows.

        Parameters
        ----------
        X : array-like, sparse matrix, pandas or polars frame of shape (n_rows, n_columns)
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
        with lock_model(self):
            seed = seed_from(self.random_state)
            validate_parameters(self)
            columns = CategoryColumns.from_input(X, self.categorical_features, seed)
            batch = self._prepare_batch(X, y, sample_weight, ids, columns)
            settings = resolve_settings(self, batch.X.shape[1], columns)
            model = BoostingModel.fit(
                settings, batch, columns, threads_for(self.n_jobs), is_shown=bool(self.verbose)
            )
            remember_features(self, X)
            # One call, so that a concurrent predict never sees a partial update.
            vars(self).update(boosting_=model, seed_=seed, **self._remember_settings())
        return self

    def forget_cost(self, ids: Any) -> BoostingCost:
        """Return the cost of forgetting these ids, without changing the model.

        Parameters
        ----------
        ids : sequence of int or of str
            Ids to forget, in the same form as for `forget`.

        Returns
        -------
        BoostingCost
            Chains, trees and rounds that would have to be computed again.

        Raises
        ------
        UnknownIdError
            Some ids have no rows in the model.
        EmptyModelError
            The ids cover all rows, so `forget` would raise.
        """
        nothing = BoostingCost(chains=0, trees=0, rounds=0, share=0.0)
        cost: BoostingCost = self._estimate_cost(ids, nothing, self._estimate_removal)
        return cost

    def _estimate_removal(self, removal: Removal) -> BoostingCost:
        model = self.boosting_
        reweighed = model.would_reweigh(removal.where)
        return make_cost(model.core.forget_cost(removal.where, reweighed), model.settings)

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """Share of each column in the gains of all splits, from the remaining rows; sums to 1."""
        require_fitted(self)
        return self.boosting_.core.importances()

    def _make_tree_predictor(self, inputs: TreeInputs, claim: Guarantee) -> Predictor:
        return self.boosting_.make_predictor(inputs, claim)

    def _compute_scores(self, X: Any, n_rounds: int | None = None) -> BoostingScores:
        matrix = self._prepare_matrix(X)
        model = self.boosting_
        threads = threads_for_few if matrix.shape[0] <= _FEW_ROWS else threads_for
        rounds = model.settings.n_rounds if n_rounds is None else n_rounds
        return model.predict(matrix, rounds, threads(self.n_jobs))

    def _stages(self, X: Any) -> Iterator[BoostingScores]:
        """Yield the scores after each round."""
        require_fitted(self)
        for n_rounds in range(1, self.boosting_.settings.n_rounds + 1):
            yield self._compute_scores(X, n_rounds)

    def _prepare(self, removal: Removal) -> PendingChange:
        eager = self._is_eager()
        n_threads = threads_for(self.n_jobs) if eager else threads_for_few(self.n_jobs)
        return partial(self.boosting_.forget, removal.where, eager, n_threads)

    def _plan_learn(self, batch: ForestBatch) -> PendingChange:
        self._require_same_ids(batch.ids)
        return partial(self.boosting_.learn, batch, self._is_eager(), threads_for(self.n_jobs))

    def _commit(self, plan: PendingChange) -> Outcome:
        cost = make_cost(plan(), self.boosting_.settings)
        return Outcome(
            cost.share, {"chains": cost.chains, "trees": cost.trees, "rounds": cost.rounds}
        )


# Chosen on a quarter of the training rows of Adult, Census and Diabetes, and on synthetic tables of
# other seeds than those of the benchmark; 48 leaves and 36,000 people after a look at its results.
# The columns of a tree of "fast" were chosen on these validation rows alone.
_PRESETS: dict[str, dict[str, Any]] = {
    "fast": {"n_estimators": 80, "max_leaves": 48, "colsample": None},
    "accurate": {"n_estimators": 160, "learning_rate": 0.15, "max_leaves": 40, "step_bits": 6}
    | {"skeleton_people": 36_000, "max_bins": 128, "colsample": 0.7},
}
