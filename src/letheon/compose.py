"""Pipelines that forget: every step can forget or is independent of the data.

A scaler or encoder in front of a model also learns from the rows. In a plain `Pipeline`, such a
step would keep what it learned from forgotten rows. Here every step hands the change of its output
to the next step (`letheon.delta`), so a request costs little more than in the last step.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

from sklearn import get_config
from sklearn.base import BaseEstimator, MetaEstimatorMixin, is_regressor
from sklearn.pipeline import Pipeline
from sklearn.utils import Tags, get_tags
from sklearn.utils.validation import check_is_fitted

from letheon import state
from letheon.base import ForgetMixin, Outcome, Removal, locate_in, lock_model, require_fitted
from letheon.chain import (
    ChainPlan,
    apply_chain,
    fit_chain,
    name_outputs,
    prepare_chain,
    prepare_leaving,
    sum_counts,
)
from letheon.data import (
    Ids,
    Rows,
    SlotRows,
    as_table,
    column_names,
    hold_table,
    hold_target,
    list_orders,
    present_table,
    row_ids,
    table_length,
)
from letheon.delta import Delta, RowSource, prepare_step, take_block
from letheon.exceptions import CannotForgetError, CheckpointWarning, warn_caller
from letheon.frozen import FrozenStepsMixin
from letheon.guarantee import KINDS, Guarantee
from letheon.inner_estimator import (
    available_from,
    explain_unforgettable,
    fix_environment,
    inherit_tags,
    inner_training,
    refuse_impossible_removals,
    refuse_learner,
    remember_features,
    require_features,
    translate_fit_errors,
    versions_of,
)
from letheon.receipt import Receipt
from letheon.seeds import Purpose, library_seed
from letheon.steps import (
    DataIndependent,
    FittedSteps,
    InnerFacts,
    NamedStepsMixin,
    as_delta_step,
    changing_steps,
    clone_step,
    clone_unfitted,
    clone_with_seeds,
    fit_in_order,
    fit_model,
    is_data_independent,
    learn_block,
    passes_deltas,
    passes_through,
    prepare_columns,
    takes_deltas,
)
from letheon.terminal import progress_bar
from letheon.validation import VERBOSE, Rules, validate_parameters

__all__ = [
    "DataIndependent",
    "FittedSteps",
    "ForgetPipeline",
    "clone_unfitted",
    "forget",
    "is_data_independent",
]

Steps = list[tuple[str, Any]]


def forget(model: Any, ids: Any, *, digest: bool = False) -> Receipt:
    """Return the receipt of `model.forget(ids)`, for any model that can forget.

    Parameters
    ----------
    model, ids, digest
        A fitted model; see its `forget`.

    Raises
    ------
    CannotForgetError
        The model cannot forget, for example a plain `Pipeline`; the message says what to do.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> forget(NearestCentroid().fit([[0.0], [1.0]], ["a", "b"], ids=[7, 8]), [8]).n_rows
    1
    """
    if isinstance(model, ForgetMixin):
        return model.forget(ids, digest=digest)
    raise explain_unforgettable(model)


class _DeltaChange(NamedTuple):
    """A change to a pipeline whose steps pass changes on."""

    chain: ChainPlan
    model: Any
    plan: Any
    outcome: Outcome | None
    slots: Any
    joined: SlotRows | None


def _last_step(pipeline: "ForgetPipeline") -> Any:
    """Return the last step: the fitted step if the pipeline is fitted."""
    fitted: FittedSteps | None = vars(pipeline).get("fitted_")
    return pipeline.steps[-1][1] if fitted is None else fitted.model


class ForgetPipeline(
    NamedStepsMixin, FrozenStepsMixin, ForgetMixin, MetaEstimatorMixin, BaseEstimator
):
    """A pipeline of steps that can forget, with a forgetting estimator as the last step.

    Steps of `letheon.preprocessing` pass changes on: a request subtracts the removed rows from
    every step, and the last step forgets at its own speed. A published value of a step changes
    rarely; then the rows or columns concerned are replaced in the next step, or the last step is
    retrained. A forest keeps its trees when a category appears or disappears. With other forgetting
    steps, such as ``NaiveUnlearner(StandardScaler())``, a request refits all steps.

    Parameters
    ----------
    steps : list of (name, step)
        Each step is a forgetting estimator, a stateless transformer of scikit-learn, or a
        `DataIndependent`. The last step must be a forgetting estimator.
    verbose : bool or int, default=0
        Whether `fit` shows a progress bar on standard error, step by step.

    Attributes
    ----------
    steps_ : tuple of (name, fitted step)
        The fitted steps, in order.
    ids_, guarantee_, n_rows_
        See `ForgetMixin`. The guarantee is that of the last step, or weaker if a step's is.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from letheon import DaREForestClassifier, ForgetPipeline, preprocessing
    >>> steps = [("scale", preprocessing.StandardScaler()), ("model", DaREForestClassifier())]
    >>> ForgetPipeline(steps).fit(*load_iris(return_X_y=True)).forget([0, 1, 2]).n_rows
    3
    """

    facts: ClassVar[Any] = InnerFacts(
        lambda pipeline: [step for _, step in pipeline.steps if isinstance(step, ForgetMixin)],
        method="pipeline",
        applicability="steps that can forget",
        exact=True,
        strength="not stated",
        definition_name="pipeline",
        families=("any",),
        tasks=("classification", "regression"),
        batches=True,
    )

    _parameter_rules: ClassVar[Rules] = {"verbose": VERBOSE}
    _later_parameters: ClassVar[dict[str, Any]] = {"verbose": 0}

    verbose: int = 0  # for files of earlier versions
    fitted_: FittedSteps
    seed_: int
    config_: dict[str, Any]

    def __init__(self, steps: Steps, *, verbose: int = 0) -> None:
        self.steps = steps
        self.verbose = verbose

    def _sk_visual_block_(self) -> Any:
        """Return the diagram of the steps that notebooks show."""
        return Pipeline(list(self.steps))._sk_visual_block_()

    def fit(self, X: Any, y: Any = None, *, ids: Any = None) -> Self:
        """Fit the steps in order, all with the same ids.

        Parameters
        ----------
        X, y : array-like, sparse, pandas or polars frame, or a list of texts
            Training rows, and their labels or targets if the last step needs them.
        ids : sequence of int or of str, optional
            Id of each row; may repeat. Default ``0..n-1``.
        """
        with lock_model(self):
            self._check_steps()
            validate_parameters(self)
            state.ensure_supported(list(self.steps))
            rows, config = self._collect_rows(X, y, ids), get_config()
            steps = [(name, clone_with_seeds(step)) for name, step in self.steps]
            fitted = self._fit_steps(steps, rows, config)
            remember_features(self, X)
            vars(self).pop("tuning_", None)
            messages = self._destroy_files()
            self._install_steps(fitted, config)
        for message in messages:
            warn_caller(message, CheckpointWarning)
        return self

    @available_from(_last_step)
    def learn(self, X: Any, y: Any = None, *, ids: Any) -> Self:
        """Add rows; a known id keeps its earlier rows.

        Parameters
        ----------
        X, y
            As in `fit`, with the same columns.
        ids : sequence of int or of str
            Id of each new row.
        """
        return self._learn_rows(ids, lambda: self._prepare_learn(X, y, ids))

    @available_from(_last_step)
    def predict(self, X: Any) -> Any:
        """Return the predictions of the last step for the transformed rows."""
        return self._apply_method("predict", X)

    @available_from(_last_step)
    def predict_proba(self, X: Any) -> Any:
        """Return the class probabilities of the last step for the transformed rows."""
        return self._apply_method("predict_proba", X)

    @available_from(_last_step)
    def decision_function(self, X: Any) -> Any:
        """Return the decision values of the last step for the transformed rows."""
        return self._apply_method("decision_function", X)

    @available_from(_last_step)
    def transform(self, X: Any) -> Any:
        """Return X, transformed by all steps, including the last."""
        return self._apply_method("transform", X)

    @available_from(_last_step)
    def score(self, X: Any, y: Any = None) -> float:
        """Return the score of the last step on the transformed rows."""
        return float(self._apply_method("score", X, y))

    @available_from(_last_step)
    def settle(self) -> Any:
        """Let the last step finish the work that it postponed."""
        check_is_fitted(self)
        return self.fitted_.model.settle()

    @available_from(_last_step)
    def publish(self, *args: Any, **options: Any) -> Any:
        """Publish the last step; see its `publish`."""
        check_is_fitted(self)
        return self.fitted_.model.publish(*args, **options)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return the names of the columns that the last transformer returns."""
        check_is_fitted(self)
        known = getattr(self, "feature_names_in_", None)
        names = known if input_features is None else input_features
        for _, step in self.steps_:
            if hasattr(step, "get_feature_names_out"):
                names = step.get_feature_names_out(names)
        return names

    def __getitem__(self, key: str | int) -> Any:
        """Return a step by its name or number: the fitted one after `fit`."""
        if isinstance(key, slice):
            raise TypeError("a ForgetPipeline has no slices; name a step, such as model['scale']")
        fitted: FittedSteps | None = vars(self).get("fitted_")
        steps = self.steps if fitted is None else fitted.steps
        return dict(steps)[key] if isinstance(key, str) else steps[key][1]

    @property
    def named_steps(self) -> dict[str, Any]:
        """Steps by name: the fitted steps if the pipeline is fitted."""
        return {name: self[name] for name, _ in self.steps}

    @property
    def account_(self) -> Any:
        """Privacy account of the last step."""
        check_is_fitted(self)
        return self.fitted_.model.account_

    @property
    def steps_(self) -> tuple[tuple[str, Any], ...]:
        """Names and fitted steps."""
        check_is_fitted(self)
        return self.fitted_.steps

    @property
    def classes_(self) -> Any:
        """Remaining labels, sorted."""
        check_is_fitted(self)
        return self.fitted_.model.classes_

    @property
    def n_rows_(self) -> int:
        """Number of remaining rows."""
        require_fitted(self)
        rows = self.fitted_.rows
        return int(self.fitted_.model.n_rows_) if rows is None else len(rows)

    def _apply_method(self, method: str, X: Any, *more: Any) -> Any:
        check_is_fitted(self)
        fitted = self.fitted_  # read once: a concurrent commit may replace it
        if not isinstance(fitted.rows, SlotRows):
            return getattr(fitted.model, method)(fitted.transform(present_table(X)), *more)
        require_features(self, X)
        with suppress(Exception):  # a commit may change the columns between the steps
            answer = getattr(fitted.model, method)(fitted.transform(X), *more)
            if self.fitted_ is fitted and not fitted.is_changing:
                return answer
        with lock_model(self):  # a commit changed steps meanwhile: the answer may be a mixture
            return getattr(self.fitted_.model, method)(self.fitted_.transform(X), *more)

    def _check_steps(self, *, is_step: bool = False) -> None:
        """Raise for wrong steps; only a pipeline that is itself a step may end with a fixed one."""
        if not all(isinstance(step, list | tuple) and len(step) == 2 for step in self.steps):
            raise ValueError(f"steps={self.steps!r} is not valid; expected a list of (name, step)")
        names = [name for name, _ in self.steps]
        if not names or len(set(names)) != len(names):
            raise ValueError(
                f"the names of steps are {names}; expected at least one step, and distinct names"
            )
        if any(name in ("steps", "verbose") or "__" in name for name in names):
            raise ValueError(
                f"the names of steps are {names}; a name must not be 'steps' or 'verbose', or "
                "contain '__'"
            )
        *early, (last_name, last) = self.steps
        if is_step and is_data_independent(last):
            early = self.steps
        elif not isinstance(last, ForgetMixin):
            kind = type(last).__name__
            raise CannotForgetError(
                f"the last step {last_name!r} ({last!r}) cannot forget; use "
                f"NaiveUnlearner({kind}(...)) or another forgetting estimator"
            )
        for name, step in early:
            if isinstance(step, DataIndependent):
                refuse_learner(step.transformer)
            if not isinstance(step, ForgetMixin) and not is_data_independent(step):
                kind = type(step).__name__
                raise CannotForgetError(
                    f"step {name!r} learns from data and cannot forget: use a transformer of "
                    f"letheon.preprocessing, NaiveUnlearner({kind}(...)), or "
                    f"DataIndependent({kind}(...)) if it learns nothing from the rows"
                )

    def _collect_rows(self, X: Any, y: Any, ids: Any) -> SlotRows | Rows:
        """Return the raw rows, in slots if all steps pass changes on."""
        in_slots = self._keeps_slots()
        table = as_table(X) if in_slots else hold_table(X)
        as_float = is_regressor(self.steps[-1][1])
        target = None if y is None else hold_target(y, as_float=as_float)
        owners = row_ids(ids, table_length(table))
        if in_slots:
            rows = SlotRows(table, target, owners)
            rows.build_caches()
            return rows
        state.ensure_supported((table, target))
        return Rows(table, target, owners)

    def _keeps_slots(self) -> bool:
        """Return whether some step before the last learns, and all of them pass changes on."""
        early = [step for _, step in self.steps[:-1]]
        return all(map(passes_deltas, early)) and not all(map(is_data_independent, early))

    def _fit_steps(
        self, steps: Steps, rows: SlotRows | Rows, config: dict[str, Any]
    ) -> FittedSteps:
        """Fit unfitted steps on the rows, in order, and return them.

        The raw rows are stored only if a step before the last must be refitted by `forget`.
        """
        is_needed = not all(is_data_independent(step) for _, step in self.steps[:-1])
        fitted = FittedSteps(tuple(steps), rows if is_needed else None)
        try:
            bar = progress_bar("steps", len(steps), is_shown=bool(self.verbose))
            with fix_environment(config, library_seed(0, Purpose.STEP)), bar as note:
                if isinstance(rows, SlotRows):
                    source = RowSource(rows)
                    for (name, _), step in zip(steps, fitted.early, strict=False):
                        note(name)
                        with inner_training(f"step {name!r}"):
                            source = fit_chain([step], source)
                        note()
                    note(steps[-1][0])
                    with inner_training(f"step {steps[-1][0]!r}"):
                        values = [step.published_ for step in fitted.early]
                        names = name_outputs(fitted.early, values, column_names(rows.X))
                        fit_model(fitted.model, source, names)
                    note()
                else:
                    fit_in_order(steps, rows, note)
        except BaseException:
            fitted.destroy_files()
            raise
        return fitted

    def _install_steps(self, fitted: FittedSteps, config: dict[str, Any]) -> None:
        vars(self).update(
            fitted_=fitted,
            seed_=getattr(fitted.model, "seed_", 0),
            config_=config,
            **self._remember_settings(),
        )

    def _destroy_files(self) -> list[str]:
        return self.fitted_.destroy_files() if "fitted_" in vars(self) else []

    def _finish_pending(self) -> None:
        for _, step in self.steps_:
            if isinstance(step, ForgetMixin):
                step._finish_pending()

    def _describe_environment(self) -> dict[str, str]:
        return super()._describe_environment() | versions_of(self)

    def _get_ids(self) -> Ids:
        rows = self.fitted_.rows
        return self.fitted_.model._get_ids() if rows is None else rows.ids

    def _make_guarantee(self) -> Guarantee:
        """Return the guarantee of the last step, or of a weaker step before it."""
        steps = [step for _, step in self.fitted_.steps]
        claims = [step.guarantee_ for step in steps if isinstance(step, ForgetMixin)]
        weakest = max(claims, key=lambda claim: KINDS.index(claim.kind))
        return claims[-1] if claims[-1].kind == weakest.kind else weakest

    def _require_same_parameters(self) -> None:
        super()._require_same_parameters()
        for _, step in self.fitted_.steps:
            if isinstance(step, ForgetMixin):
                step._require_same_parameters()

    def _locate_rows(self, ids: Ids) -> Removal:
        if self.fitted_.rows is not None:
            return locate_in(self.fitted_.rows, ids)
        return self.fitted_.model._locate_rows(ids)  # type: ignore[no-any-return]

    def _prepare(self, removal: Removal) -> Any:
        """Return a change of all steps, new fitted steps, or a plan of the last step only."""
        rows = self.fitted_.rows
        if rows is None:
            return self.fitted_.model._prepare(removal)
        if isinstance(rows, SlotRows):
            removed = take_block(rows, removal.where)
            is_usual = removal.n_rows == 1 and not takes_deltas(self.fitted_.model)
            chain = prepare_leaving(self.fitted_.early, removed) if is_usual else None
            if chain is not None:
                return self._remove_from_model(chain, removed.ids, removal.where)
            remaining = RowSource(rows, removal.where)
            delta = Delta(removed=removed, before=remaining, source=remaining)
            with refuse_impossible_removals():
                return self._prepare_change(delta, removal.where, None)
        with translate_fit_errors():
            return self._refit_steps(rows.without(removal.where))

    def _refit_steps(self, rows: Rows) -> FittedSteps:
        steps = [(name, clone_unfitted(step)) for name, step in self.fitted_.steps]
        return self._fit_steps(steps, rows, self.config_)

    def _prepare_change(self, delta: Delta, slots: Any, joined: SlotRows | None) -> _DeltaChange:
        """Return what a change does in all steps."""
        model = self.fitted_.model
        chain, output = prepare_chain(self.fitted_.early, delta)
        if takes_deltas(model):
            return _DeltaChange(chain, model, prepare_step(model, output), None, slots, joined)
        if not output.only_rows or (output.added is not None and not hasattr(model, "learn")):
            raw = column_names(delta.source.rows.X)
            names = name_outputs(self.fitted_.early, chain.published, raw)
            plan = prepare_columns(model, output, names)
            if plan is not None:
                return _DeltaChange(chain, model, plan, None, slots, joined)
            fresh = clone_unfitted(model)
            environment = fix_environment(self.config_, library_seed(0, Purpose.STEP))
            with translate_fit_errors(), environment, inner_training("the last step"):
                fit_model(fresh, output.source, names)
            outcome = Outcome(1.0, {"models": 1})
            return _DeltaChange(chain, fresh, None, outcome, slots, joined)
        if output.added is not None:
            # The last thing that can fail. It is atomic, and the commit follows at once.
            learn_block(model, output.added)
            return _DeltaChange(chain, model, None, Outcome(0.0), slots, joined)
        assert output.removed is not None
        return self._remove_from_model(chain, output.removed.ids, slots)

    def _remove_from_model(self, chain: ChainPlan, ids: Ids, slots: Any) -> _DeltaChange:
        """Return the change if rows leave, and the others stay as the last step knows them."""
        model = self.fitted_.model
        removal = model._locate_rows(ids.distinct())
        return _DeltaChange(chain, model, model._prepare(removal), None, slots, None)

    def _prepare_learn(self, X: Any, y: Any, ids: Any) -> Any:
        fitted, model = self.fitted_, self.fitted_.model
        if fitted.rows is None:
            model.learn(fitted.transform(present_table(X)), y, ids=ids)
            return None
        require_features(self, X)
        new = self._collect_rows(X, y, ids)
        if isinstance(fitted.rows, SlotRows):
            rows, orders = fitted.rows, list_orders(X)
            joined = rows.join(new.X, new.y, new.ids, orders=orders)
            added = take_block(joined, slice(len(rows), None))  # in the dtypes of the rows
            delta = Delta(added=added, before=RowSource(rows), source=RowSource(rows, added=added))
            return self._prepare_change(delta, None, joined)
        assert isinstance(new, Rows)
        return self._refit_steps(fitted.rows.concat(new, list_orders(X)))

    def _commit(self, plan: Any) -> Outcome:
        if isinstance(plan, _DeltaChange):
            return self._commit_change(plan)
        if plan is None:  # learned by the last step alone
            return Outcome(0.0)
        if self.fitted_.rows is None:
            return self.fitted_.model._commit(plan)  # type: ignore[no-any-return]
        warnings = tuple(CheckpointWarning(message) for message in self._destroy_files())
        self._install_steps(plan, self.config_)
        return Outcome(1.0, {"steps": len(plan.steps)}, warnings)

    def _commit_change(self, change: _DeltaChange) -> Outcome:
        fitted, chain = self.fitted_, change.chain
        rows = fitted.rows if change.joined is None else change.joined
        assert isinstance(rows, SlotRows)
        steps = (*fitted.steps[:-1], (fitted.steps[-1][0], change.model))
        messages: list[str] = []
        with changing_steps(self):  # first the model: it needs most memory
            outcome = change.outcome or change.model._commit(change.plan)
        apply_chain(fitted.early, chain.plans)
        if change.model is not fitted.model:
            messages = fitted.model._destroy_files()
        if change.slots is not None:
            rows.wipe(change.slots)
        self.fitted_ = FittedSteps(steps, rows)
        return Outcome(
            max(outcome.work, chain.work),
            sum_counts([chain.rebuilt, outcome.rebuilt]),
            (*outcome.warnings, *map(CheckpointWarning, messages)),
            outcome.estimates,
        )

    def _inner_steps(self) -> list[Any]:
        return [as_delta_step(step) for _, step in self.fitted_.steps]

    def _fit_source(self, source: RowSource) -> Self:
        self._check_steps(is_step=True)
        steps = [(name, clone_with_seeds(step)) for name, step in self.steps]
        fitted = FittedSteps(tuple(steps), None)
        fit_chain([as_delta_step(step) for _, step in fitted.steps], source)
        self._install_steps(fitted, get_config())
        return self

    @property
    def passes_deltas(self) -> bool:
        """Whether this pipeline can be a step that passes changes on: all its steps do."""
        return all(passes_deltas(step) for _, step in self.steps)

    def _clone_unfitted(self) -> Any:
        steps = [(name, clone_unfitted(part)) for name, part in self.steps_]
        return clone_step(self).set_params(steps=steps)

    def __sklearn_tags__(self) -> Tags:
        """Return the tags of the last step with the input tags of the first."""
        tags = super().__sklearn_tags__()
        if not (self.steps and isinstance(self.steps, list | tuple)):
            return tags
        if passes_through(self.steps[-1][1]):
            return tags
        tags = inherit_tags(tags, self.steps[-1][1])
        tags.estimator_type = get_tags(self.steps[-1][1]).estimator_type
        inputs = [
            get_tags(step).input_tags for _, step in self.steps if hasattr(step, "__sklearn_tags__")
        ]
        tags.input_tags = replace(
            inputs[0],
            allow_nan=all(step.allow_nan for step in inputs),
            sparse=all(step.sparse for step in inputs),
        )
        return tags
