"""Base class of the SISA classifier and regressor."""

import math
from abc import abstractmethod
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, MetaEstimatorMixin, is_classifier, is_regressor
from sklearn.utils import Tags
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from letheon import state
from letheon.base import ForgetMixin, Outcome, Removal, lock_model, require_known
from letheon.checkpoint_home import HomeMixin
from letheon.data import Ids, Rows, hold_table, list_orders, row_ids, table_length
from letheon.exceptions import CheckpointWarning, warn_caller
from letheon.guarantee import Guarantee, MethodFacts
from letheon.inner_estimator import (
    add_weights,
    inherit_tags,
    iter_estimators,
    refuse_nested_files,
    refuse_unencodable,
    remember_features,
    translate_fit_errors,
    versions_of,
)
from letheon.parallel import run_tasks
from letheon.seeds import seed_from
from letheon.sharded._plan import StageData, epochs_per_stage, shard_counts
from letheon.sharded._predictor import EnsemblePredictor
from letheon.sharded._shards import (
    Assignment,
    ConstantModel,
    Ensemble,
    Integers,
    Replacement,
    Shard,
    ShardChange,
    ShardRecipe,
    ShardStateStore,
    ShardTraining,
    change_rows,
    check_risk_edges,
    resume_training,
    risk_tiers,
    train_shard,
    warn_if_crowded,
)
from letheon.terminal import progress_bar
from letheon.validation import (
    JOBS,
    VERBOSE,
    OneOf,
    OrNone,
    Rules,
    Whole,
    require_target,
    validate_parameters,
)

_USUAL_EPOCHS = 10


def stage_epochs(
    estimator: Any, n_slices: int, epochs: int | None, stage_data: str
) -> tuple[int, ...] | None:
    """Return how often each stage passes over its rows.

    None if each shard is trained by one call of `fit`. Raise a ValueError if the estimator does not
    support the stages.
    """
    if n_slices == 1 and epochs is None:
        return None
    if not hasattr(estimator, "partial_fit"):
        setting, hint = f"n_slices={n_slices}" if n_slices > 1 else f"epochs={epochs}", ""
        if "warm_start" in estimator.get_params(deep=False):
            hint = " (warm_start is not enough: a warm-started ensemble keeps its first size)"
        raise ValueError(
            f"{setting} needs an estimator with partial_fit, which "
            f"{type(estimator).__name__} does not have{hint}; use n_slices=1 and epochs=None, or "
            "an incremental learner such as SGDClassifier or MLPClassifier"
        )
    if epochs is None:
        least = math.ceil((n_slices + 1) / 2)
        epochs = max(_USUAL_EPOCHS, least) if stage_data == "cumulative" else 1
    schedule = epochs_per_stage(int(epochs), n_slices, stage_data)  # type: ignore[arg-type]
    is_repeated = max(schedule) > 1 or (stage_data == "cumulative" and len(schedule) > 1)
    for part in iter_estimators(estimator):
        if is_repeated and type(part.estimator).__module__ == "sklearn.naive_bayes":
            raise ValueError(
                f"{type(part.estimator).__name__} counts rows, so it must see each row once: use "
                f"stage_data='new' and epochs=1 (got stage_data={stage_data!r}, passes {schedule})"
            )
    return schedule


_FACTS = MethodFacts(
    method="sisa",
    applicability=(
        "any estimator whose state has canonical bytes (shards), with partial_fit (slices)"
    ),
    exact=True,
    strength="weak",
    efficiency_parameters=("n_shards", "n_slices"),
    definition_name="sisa",
    families=("any",),
    tasks=("classification", "regression"),
    batches=True,
    search_ranges=shard_counts,
)


class SISABase(HomeMixin, ForgetMixin, MetaEstimatorMixin, BaseEstimator):
    """Base class for sharded and sliced training of any scikit-learn estimator."""

    facts: ClassVar[MethodFacts] = _FACTS
    _not_digested: ClassVar[frozenset[str]] = ForgetMixin._not_digested | HomeMixin.home_attributes
    _is_classifier: ClassVar[bool]
    _parameter_rules: ClassVar[Rules] = {
        "n_shards": Whole(1),
        "n_slices": Whole(1),
        "epochs": OrNone(Whole(1)),
        "stage_data": OneOf(("cumulative", "new")),
        "n_jobs": JOBS,
        "verbose": VERBOSE,
    }
    _later_parameters: ClassVar[dict[str, Any]] = {"verbose": 0}

    verbose: int = 0  # for files of earlier versions
    ensemble_: Ensemble
    seed_: int
    config_: dict[str, Any]
    environment_: dict[str, str]

    def __init__(
        self,
        estimator: Any,
        *,
        n_shards: int = 5,
        n_slices: int = 1,
        epochs: int | None = None,
        stage_data: StageData = "cumulative",
        aggregation: str = "mean",
        risk_edges: Any = None,
        checkpoint_dir: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.n_shards = n_shards
        self.n_slices = n_slices
        self.epochs = epochs
        self.stage_data = stage_data
        self.aggregation = aggregation
        self.risk_edges = risk_edges
        self.checkpoint_dir = checkpoint_dir
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        ids: Any = None,
        risk: Any = None,
        sample_weight: Any = None,
    ) -> Self:
        """Train every shard, and store the rows and the state after each slice.

        Parameters
        ----------
        X : array-like, sparse, pandas or polars frame, or a list of texts
            Training rows.
        y : array-like
            Labels or targets.
        ids : sequence of int or of str, optional
            Id of the person each row belongs to; several rows may have the same id. The default
            is ``0..n-1``. All rows of a person are in one shard and one slice.
        risk : one number per row, or mapping from id to number, optional
            How likely each person is to request erasure; needs `risk_edges`. It must be the same
            for all rows of a person, and must not depend on other people's data.
        sample_weight : array-like of shape (n_rows,), optional
            Weights of the rows, if the estimator accepts them. A row with weight 0 is omitted.

        Returns
        -------
        self
        """
        with lock_model(self):
            seed = seed_from(self.random_state)
            edges = self._check_settings()
            assignment = Assignment(seed, self.n_shards, self.n_slices, len(edges) + 1)
            rows = self._prepare_rows(X, y, ids, sample_weight)
            warn_if_crowded("n_shards", self.n_shards, rows.ids)
            blocks = _split_by_shard(rows, risk_tiers(risk, rows.ids, edges), assignment)
            del rows  # Only the blocks stay in memory.
            changes = [
                ShardChange(None, ShardTraining(number, block))
                for number, block in enumerate(blocks)
            ]
            config = get_config()
            refuse_unencodable(self.estimator, max(blocks, key=len), seed, config)
            replacement = self._train((), changes, assignment, self._new_home(), config)
            remember_features(self, X)
            vars(self).pop("tuning_", None)
            messages = self._destroy_files()
            messages += self._install_ensemble(replacement.ensemble, replacement.home, config, None)
        for message in messages:
            warn_caller(message, CheckpointWarning)
        return self

    def learn(
        self, X: Any, y: Any, *, ids: Any, risk: Any = None, sample_weight: Any = None
    ) -> Self:
        """Add rows after the stored rows; the model is the same as if `fit` had seen them all.

        Parameters
        ----------
        X, y
            As in `fit`, with the same columns.
        ids : sequence of int or of str
            Id of the person each row belongs to. Rows of a known id go to that person's shard and
            slice.
        risk : one number per row, or mapping from id to number, optional
            As in `fit`; needed for new people if the model has `risk_edges`.
        sample_weight : array-like of shape (n_rows,), optional
            As in `fit`; required if `fit` had weights.

        Returns
        -------
        self
        """
        return self._learn_rows(ids, lambda: self._prepare_learn(X, y, ids, risk, sample_weight))

    @property
    def estimators_(self) -> list[Any]:
        """Fitted models of the shards that have rows."""
        check_is_fitted(self)
        return self.ensemble_.models

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """Mean of the importances of the models of the shards, if they have importances."""
        models = [model for model in self.estimators_ if not isinstance(model, ConstantModel)]
        if not models:
            raise AttributeError(
                "each shard has rows of one class only, so there are no importances"
            )
        return np.asarray(np.mean([model.feature_importances_ for model in models], axis=0))

    def _make_predictor(self, claim: Guarantee) -> EnsemblePredictor:
        known = vars(self)
        names = known.get("feature_names_in_")
        columns = known.get("n_features_in_", 1), None if names is None else tuple(names)
        return EnsemblePredictor.of(self.ensemble_, self.aggregation, claim, columns)

    @property
    def n_rows_(self) -> int:
        """Number of remaining rows."""
        check_is_fitted(self)
        return sum(len(shard.rows) for shard in self.ensemble_.shards)

    def _get_ids(self) -> Ids:
        first, *others = (shard.rows.ids for shard in self.ensemble_.shards)
        return first.concat(*others)

    def _make_guarantee(self) -> Guarantee:
        return Guarantee(
            kind="exact",
            reference="Bourtoule et al. 2021, section V; oblivious by Gupta et al. 2021",
            assumptions=("seed-independent-of-requests", "same-libraries-and-cpu-kernel"),
            residual_state=self._list_residue(),
        )

    def _locate_rows(self, wanted: Ids) -> Removal:
        where, tiers = self.ensemble_.find_rows(wanted)
        require_known(wanted.take(np.flatnonzero(tiers < 0)), self.ensemble_.shards[0].rows.ids)
        return Removal(len(wanted), sum(len(rows) for rows in where.values()), where)

    def _prepare(self, removal: Removal) -> Replacement:
        recipe, changes = self._build_recipe(self.seed_, self.config_), []
        for number, positions in removal.where.items():
            shard = self.ensemble_.shards[number]
            touched = shard.rows.extra["slice"][positions]
            changes.append(change_rows(shard, shard.rows.without(positions), touched, recipe))
        with translate_fit_errors():
            return self._retrain_shards(changes)

    def _prepare_learn(
        self, X: Any, y: Any, ids: Any, risk: Any, sample_weight: Any
    ) -> Replacement:
        rows = self._prepare_rows(X, y, ids, sample_weight)
        blocks = _split_by_shard(
            rows, self._assign_tiers(rows.ids, risk), self.ensemble_.assignment
        )
        orders = list_orders(X)
        changes, recipe = [], self._build_recipe(self.seed_, self.config_)
        for shard, block in zip(self.ensemble_.shards, blocks, strict=True):
            if len(block):
                joined = shard.rows.concat(block, orders)
                joined = joined.take(np.argsort(joined.extra["slice"], kind="stable"))
                changes.append(change_rows(shard, joined, block.extra["slice"], recipe))
        return self._retrain_shards(changes)

    def _commit(self, plan: Replacement) -> Outcome:
        messages = self._install_ensemble(plan.ensemble, plan.home, self.config_, self.ensemble_)
        warnings = (*plan.outcome.warnings, *map(CheckpointWarning, messages))
        return plan.outcome._replace(warnings=warnings)

    @abstractmethod
    def _prepare_labels(self, y: Any) -> NDArray[Any]:
        """Return y as an array in canonical form; raise an error for labels of the wrong kind."""

    def _prepare_rows(self, X: Any, y: Any, ids: Any, sample_weight: Any) -> Rows:
        require_target(self, y)
        table, target = hold_table(X), self._prepare_labels(y)
        check_consistent_length(table, target)
        state.ensure_supported((table, target))
        rows = Rows(table, target, row_ids(ids, table_length(table)))
        method = "fit" if self.n_slices == 1 and self.epochs is None else "partial_fit"
        return add_weights(self.estimator, rows, sample_weight, method)

    def _check_settings(self) -> NDArray[np.float64]:
        validate_parameters(self)
        right = is_classifier if self._is_classifier else is_regressor
        if not right(self.estimator):
            expected, other = "classifier", "SISARegressor"
            if not self._is_classifier:
                expected, other = "regressor", "SISAClassifier"
            raise TypeError(
                f"estimator={self.estimator!r} is not a {expected}; pass a {expected}, or use "
                f"{other} or NaiveUnlearner for this estimator"
            )
        stage_epochs(self.estimator, self.n_slices, self.epochs, self.stage_data)
        refuse_nested_files(self.estimator)
        return check_risk_edges(self.risk_edges)

    def _require_same_parameters(self) -> None:
        super()._require_same_parameters()
        self._require_home_in_place()

    def _assign_tiers(self, ids: Ids, risk: Any) -> Integers:
        """Return the risk tier of each new row: the stored tier of a known person, or by `risk`."""
        edges = check_risk_edges(self.risk_edges)
        _, known = self.ensemble_.find_rows(ids)
        if len(edges) and risk is None and (known >= 0).all():
            return known
        tiers = risk_tiers(risk, ids, edges)
        if ((known >= 0) & (known != tiers)).any():
            raise ValueError(
                "risk assigns a person who is already in the model to another tier, which would "
                "move their rows; forget and learn them again, or use their previous risk"
            )
        return tiers

    def _build_recipe(self, seed: int, config: dict[str, Any]) -> ShardRecipe:
        return ShardRecipe(
            template=self.estimator,
            seed=seed,
            n_slices=self.n_slices,
            epochs=stage_epochs(self.estimator, self.n_slices, self.epochs, self.stage_data),
            stage_data=self.stage_data,
            is_classifier=self._is_classifier,
            config=config,
        )

    def _train(
        self,
        shards: tuple[Shard, ...],
        changes: list[ShardChange],
        assignment: Assignment,
        home: str | None,
        config: dict[str, Any],
    ) -> Replacement:
        """Train the changed shards; return a new ensemble with them and the unchanged shards.

        The current model is not changed. If training fails, all new states are destroyed.
        """
        recipe, store = self._build_recipe(assignment.seed, config), ShardStateStore(home)
        fresh: dict[int, Shard] = {}
        jobs = [resume_training(change, store) for change in changes]
        tasks = [(recipe, job) for job in jobs]
        bar = progress_bar("shards", len(tasks), is_shown=bool(self.verbose))
        with store.all_or_nothing():
            with bar as note:
                results = run_tasks(train_shard, tasks, n_jobs=self.n_jobs, note=note)
            for change, job, result in zip(changes, jobs, results, strict=True):
                before = () if change.old is None else change.old.states[: job.first]
                states = (*before, *(store.keep_state(blob) for blob in result.states))
                fresh[job.number] = Shard(job.number, job.rows, states, result.model)
        numbers = range(assignment.n_shards)
        shards = tuple(fresh[n] if n in fresh else shards[n] for n in numbers)
        classes = None
        if recipe.is_classifier:
            classes = np.unique(np.concatenate([s.classes for s in shards if len(s.rows)]))
        # Work is the number of row visits, as a share of the row visits of a fresh fit.
        visits = sum(recipe.count_visits(job.rows, job.first) for job in jobs)
        naive = sum(recipe.count_visits(shard.rows) for shard in shards)
        rebuilt = {"shards": len(jobs), "stages": sum(recipe.n_slices - job.first for job in jobs)}
        ensemble = Ensemble(assignment, shards, classes)
        warnings = tuple(map(CheckpointWarning, store.warnings))
        return Replacement(ensemble, home, Outcome(visits / max(naive, 1), rebuilt, warnings))

    def _retrain_shards(self, changes: list[ShardChange]) -> Replacement:
        """Train the changed shards, or all shards if library versions changed since the fit.

        Training never continues from states of another library version, because the result would
        differ from a fresh fit.
        """
        shards = self.ensemble_.shards
        if self.environment_ != self._describe_environment():
            rows = {change.job.number: change.job.rows for change in changes}
            changes = [
                ShardChange(shard, ShardTraining(shard.number, rows.get(shard.number, shard.rows)))
                for shard in shards
            ]
        return self._train(
            shards, changes, self.ensemble_.assignment, self._current_home(), self.config_
        )

    def _describe_environment(self) -> dict[str, str]:
        return super()._describe_environment() | versions_of(self.estimator)

    def _install_ensemble(
        self,
        ensemble: Ensemble,
        home: str | None,
        config: dict[str, Any],
        previous: Ensemble | None,
    ) -> list[str]:
        """Replace the ensemble of this model, and destroy the states that the new one does not use.

        Return warnings about states that could not be destroyed.
        """
        before = frozenset() if previous is None else previous.files
        # One call, so that a concurrent predict never sees a partial update.
        vars(self).update(
            ensemble_=ensemble,
            seed_=ensemble.assignment.seed,
            config_=config,
            **self._describe_home(home),
            **self._remember_settings(),
        )
        purge = ShardStateStore(home).purge(before, ensemble.files)
        return self._record_destruction(purge, is_new_fit=previous is None)

    def __sklearn_tags__(self) -> Tags:
        """Return the tags of the inner estimator, with the estimator type of this class."""
        kind = super().__sklearn_tags__().estimator_type
        tags = inherit_tags(super().__sklearn_tags__(), self.estimator)
        tags.estimator_type = kind
        return tags


def _split_by_shard(rows: Rows, tiers: Integers, assignment: Assignment) -> list[Rows]:
    """Return the rows of every shard, ordered by slice.

    Rows of the same slice keep their order.
    """
    shards, slices = assignment.shards(rows.ids, tiers), assignment.slices(rows.ids, tiers)
    placed = Rows(rows.X, rows.y, rows.ids, {**rows.extra, "tier": tiers, "slice": slices})
    order = np.lexsort((slices, shards))
    bounds = np.searchsorted(shards[order], np.arange(assignment.n_shards + 1))
    return [placed.take(order[a:b]) for a, b in pairwise(bounds.tolist())]
