"""Pipelines that forget: every step either can forget or is independent of the data.

A scaler or encoder in front of a model also learns from the rows. In a plain `Pipeline`, such a
step would keep what it learned from forgotten rows.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from sklearn import get_config
from sklearn.base import (
    BaseEstimator,
    MetaEstimatorMixin,
    TransformerMixin,
    clone,
    is_regressor,
)
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import Tags, get_tags
from sklearn.utils.validation import check_is_fitted

from letheon import state
from letheon.base import ForgetMixin, Outcome, Removal, locate_in, lock_model
from letheon.data import (
    Ids,
    Rows,
    hold_table,
    hold_target,
    present_table,
    row_ids,
    table_length,
)
from letheon.exceptions import CannotForgetError, CheckpointWarning, warn_caller
from letheon.guarantee import KINDS, Guarantee, Kind, MethodFacts
from letheon.inner_estimator import (
    available_from,
    fix_environment,
    inherit_tags,
    inner_training,
    refuse_learner,
    remember_features,
    require_independence,
    transform_alone,
    translate_fit_errors,
    versions_of,
)
from letheon.receipt import Receipt
from letheon.seeds import Purpose, library_seed, seed_from

Steps = list[tuple[str, Any]]


def forget(model: Any, ids: Any, *, digest: bool = False) -> Receipt:
    """Forget these ids in any model that can forget.

    Raises
    ------
    CannotForgetError
        The model cannot forget, such as a plain `Pipeline`, whose scaler would keep what it learned
        from the forgotten rows. The message says what to do instead.
    """
    if isinstance(model, ForgetMixin):
        return model.forget(ids, digest=digest)
    if isinstance(model, Pipeline):
        raise CannotForgetError(
            "a plain Pipeline cannot forget: its steps keep what they learned from the rows. Wrap "
            "the whole pipeline (SISAClassifier(pipeline) or NaiveUnlearner(pipeline)), or build "
            "a letheon.ForgetPipeline from steps that can forget."
        )
    kind = type(model).__name__
    raise CannotForgetError(
        f"{kind} cannot forget; wrap it before fitting, for example SISAClassifier({kind}(...)) "
        f"or NaiveUnlearner({kind}(...))"
    )


class DataIndependent(TransformerMixin, BaseEstimator):
    """A wrapper that declares that a transformer learns nothing from data.

    Use it for steps whose `fit` ignores values (a fixed projection, a hashing vectoriser, a column
    selection by name), if each output row depends on one input row only. A function that subtracts
    the mean of its input is stateless, but it mixes rows. The stateless transformers of
    scikit-learn need no declaration, except `FunctionTransformer`: its function may do anything.

    The declaration is checked. Of the transformers of scikit-learn, only those whose `fit` can
    ignore values are accepted, with suitable settings (``OneHotEncoder(categories=...)``). Every
    transformer is also fitted on samples of a few rows. It is rejected if the states differ, or if
    the output for a row depends on other rows.

    Parameters
    ----------
    transformer : transformer
        Never fitted itself: one clone is fitted on all rows, and further clones on a few of them.
        By using this class, you declare that a fitted clone stores no value of a row.

    Raises
    ------
    CannotForgetError
        From `fit`: the transformer learns from rows, or mixes them.
    """

    def __init__(self, transformer: Any) -> None:
        self.transformer = transformer

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit a clone of the transformer."""
        refuse_learner(self.transformer)
        fresh = _clone_with_seeds(self.transformer)
        fitted = clone(fresh).fit(X, y)
        require_independence(fresh, fitted, X, y)
        self.transformer_ = fitted
        return self

    def transform(self, X: Any) -> Any:
        """Return X, transformed by the fitted clone."""
        check_is_fitted(self)
        return self.transformer_.transform(X)

    @property
    def n_features_in_(self) -> int:
        """Number of columns of the transformer, if it has `n_features_in_`."""
        check_is_fitted(self)
        return int(self.transformer_.n_features_in_)

    def __sklearn_tags__(self) -> Tags:
        """Return the tags of the inner transformer."""
        return inherit_tags(super().__sklearn_tags__(), self.transformer)


def is_data_independent(step: Any) -> bool:
    """Return whether a step learns nothing from data, according to its class or its tags."""
    if _passes_through(step) or isinstance(step, DataIndependent):
        return True
    learns = isinstance(step, ForgetMixin | FunctionTransformer) or get_tags(step).requires_fit
    return not learns


def _passes_through(step: Any) -> bool:
    return step is None or (isinstance(step, str) and step == "passthrough")


@dataclass(frozen=True)
class FittedSteps:
    """The fitted steps, and the raw rows if a step before the last one learns from data."""

    steps: tuple[tuple[str, Any], ...]
    rows: Rows | None

    @property
    def model(self) -> Any:
        """The last step."""
        return self.steps[-1][1]

    def transform(self, X: Any) -> Any:
        """Return X, transformed by every step except the last."""
        for _, step in self.steps[:-1]:
            X = X if _passes_through(step) else step.transform(X)
        return X

    def destroy_files(self) -> list[str]:
        """Destroy the files of all steps; return a warning for each file that remains."""
        forgetting = [step for _, step in self.steps if isinstance(step, ForgetMixin)]
        return [message for step in forgetting for message in step._destroy_files()]


def _last_step(pipeline: "ForgetPipeline") -> Any:
    """Return the last step: the fitted step if the pipeline is fitted."""
    fitted: FittedSteps | None = vars(pipeline).get("fitted_")
    return pipeline.steps[-1][1] if fitted is None else fitted.model


class _PipelineFacts:
    """Descriptor of the facts of a pipeline, which depend on the facts of its steps.

    On the class, it returns the facts of pipelines in general.
    """

    def __init__(self, **facts: Any) -> None:
        self._general = MethodFacts(**facts)

    def __get__(self, pipeline: Any, owner: type) -> MethodFacts:
        if pipeline is None:
            return self._general
        steps = [step.facts for _, step in pipeline.steps if isinstance(step, ForgetMixin)]
        last = steps[-1] if steps else self._general
        # A pipeline can claim no more than its weakest step.
        kinds: list[Kind] = [facts.certificate for facts in steps]
        weakest: Kind = max(kinds, key=KINDS.index, default="exact")
        return replace(
            self._general,
            exact=weakest == "exact",
            certificate=weakest,
            requests=last.requests,
            releases=last.releases,
            families=last.families,
            tasks=last.tasks,
            needs=last.needs,
            batches=last.batches,
        )


class ForgetPipeline(ForgetMixin, MetaEstimatorMixin, BaseEstimator):
    """A pipeline of steps that can forget, with a forgetting estimator as the last step.

    If a step before the last learns from data, `forget` refits all steps. If all steps before the
    last are data-independent, only the last step forgets, at its usual speed. If steps must be
    refitted, a plain `Pipeline` inside `SISAClassifier` is faster.

    Parameters
    ----------
    steps : list of (name, step)
        Each step is a forgetting estimator (such as `NaiveUnlearner(StandardScaler())`), a
        stateless transformer of scikit-learn, or a `DataIndependent`. The last step must be a
        forgetting estimator.

    Attributes
    ----------
    steps_ : tuple of (name, fitted step)
        The fitted steps, in order.
    ids_, guarantee_, n_rows_
        See `ForgetMixin`.

    Notes
    -----
    Guarantee: that of the last step. It is exact only if every step is exact.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import StandardScaler
    >>> from letheon import ForgetPipeline, NaiveUnlearner
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ForgetPipeline([
    ...     ("scale", NaiveUnlearner(StandardScaler(), random_state=0)),
    ...     ("model", NaiveUnlearner(LogisticRegression(), random_state=0)),
    ... ]).fit(X, y)
    >>> model.forget([0, 1, 2]).rebuilt
    {'steps': 2}
    """

    facts: ClassVar[Any] = _PipelineFacts(
        method="pipeline",
        applicability="steps that can forget",
        exact=True,
        strength="not stated",
        definition_name="pipeline",
        families=("any",),
        tasks=("classification", "regression"),
        batches=True,
    )

    fitted_: FittedSteps
    seed_: int
    config_: dict[str, Any]

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def fit(self, X: Any, y: Any = None, *, ids: Any = None) -> Self:
        """Fit the steps in order, all with the same ids.

        Parameters
        ----------
        X : array-like, sparse, pandas or polars frame, or a list of texts
            Training rows.
        y : array-like, optional
            Labels or targets, if the last step needs them.
        ids : sequence of int or of str, optional
            Id of each row; may repeat. Default ``0..n-1``.

        Returns
        -------
        self
        """
        with lock_model(self):
            self._check_steps()
            table, is_number = hold_table(X), is_regressor(self.steps[-1][1])
            target = None if y is None else hold_target(y, as_float=is_number)
            state.ensure_supported((list(self.steps), table, target))
            rows = Rows(table, target, row_ids(ids, table_length(table)))
            config = get_config()
            steps = [(name, _clone_with_seeds(step)) for name, step in self.steps]
            fitted = self._fit_steps(steps, rows, config)
            remember_features(self, X)
            vars(self).pop("tuning_", None)
            messages = self._destroy_files()
            self._install_steps(fitted, config)
        for message in messages:
            warn_caller(message, CheckpointWarning)
        return self

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
        check_is_fitted(self)
        return int(self.fitted_.model.n_rows_)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the pipeline and of its steps, like `Pipeline`."""
        params: dict[str, Any] = {"steps": self.steps}
        if not deep or not isinstance(self.steps, list | tuple):
            return params
        params.update(dict(self.steps))
        for name, step in self.steps:
            if hasattr(step, "get_params"):
                params.update(
                    {f"{name}__{key}": value for key, value in step.get_params(deep=True).items()}
                )
        return params

    def set_params(self, **params: Any) -> Self:
        """Set `steps`, a whole step by its name, or a parameter of a step."""
        if "steps" in params:
            self.steps = params.pop("steps")
        names = [name for name, _ in self.steps] if params else []
        for name in [key for key in params if key in names]:
            step = params.pop(name)
            self.steps = [(key, step if key == name else old) for key, old in self.steps]
        super().set_params(**params)
        return self

    def _apply_method(self, method: str, X: Any, *more: Any) -> Any:
        check_is_fitted(self)
        fitted = self.fitted_  # read once: a concurrent commit may replace it
        return getattr(fitted.model, method)(fitted.transform(present_table(X)), *more)

    def _check_steps(self) -> None:
        if not all(isinstance(step, list | tuple) and len(step) == 2 for step in self.steps):
            raise ValueError(f"steps={self.steps!r} is not valid; expected a list of (name, step)")
        names = [name for name, _ in self.steps]
        if not names or len(set(names)) != len(names):
            raise ValueError(
                f"the names of steps are {names}; expected at least one step, and distinct names"
            )
        if any(name == "steps" or "__" in name for name in names):
            raise ValueError(
                f"the names of steps are {names}; a name must not be 'steps' or contain '__'"
            )
        *early, (last_name, last) = self.steps
        if not isinstance(last, ForgetMixin):
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
                    f"step {name!r} learns from data and cannot forget; use "
                    f"NaiveUnlearner({kind}(...)), or DataIndependent({kind}(...)) if it learns "
                    "nothing from the rows"
                )

    def _fit_steps(self, steps: Steps, rows: Rows, config: dict[str, Any]) -> FittedSteps:
        """Fit unfitted steps on the rows, in order, and return them.

        The raw rows are stored only if a step before the last must be refitted by `forget`.
        """
        is_needed = not all(is_data_independent(step) for _, step in self.steps[:-1])
        fitted = FittedSteps(tuple(steps), rows if is_needed else None)
        X, _ = rows.slice(0, len(rows))  # a copy: a step may work in place
        try:
            with fix_environment(config, library_seed(0, Purpose.STEP)):
                for name, step in steps:
                    with inner_training(f"step {name!r}"):
                        _fit_step(step, X, rows)
                        if step is not fitted.model and not _passes_through(step):
                            can_forget = isinstance(step, ForgetMixin)
                            X = step.transform(X) if can_forget else transform_alone(step, X)
        except BaseException:
            fitted.destroy_files()
            raise
        return fitted

    def _install_steps(self, fitted: FittedSteps, config: dict[str, Any]) -> None:
        vars(self).update(
            fitted_=fitted, seed_=fitted.model.seed_, config_=config, **self._remember_settings()
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
        ids: Ids = self.fitted_.model._get_ids()
        return ids

    def _make_guarantee(self) -> Guarantee:
        claim: Guarantee = self.fitted_.model.guarantee_
        return claim

    def _locate_rows(self, ids: Ids) -> Removal:
        if self.fitted_.rows is not None:
            return locate_in(self.fitted_.rows, ids)
        removal: Removal = self.fitted_.model._locate_rows(ids)
        return removal

    def _prepare(self, removal: Removal) -> Any:
        """Return refitted steps, or the plan of the last step if no other step learns from data."""
        rows = self.fitted_.rows
        if rows is None:
            self.fitted_.model._require_same_parameters()
            return self.fitted_.model._prepare(removal)
        steps = [(name, clone_unfitted(step)) for name, step in self.fitted_.steps]
        with translate_fit_errors():
            return self._fit_steps(steps, rows.without(removal.where), self.config_)

    def _commit(self, plan: Any) -> Outcome:
        if self.fitted_.rows is None:
            outcome: Outcome = self.fitted_.model._commit(plan)
            return outcome
        warnings = tuple(CheckpointWarning(message) for message in self._destroy_files())
        self._install_steps(plan, self.config_)
        return Outcome(1.0, {"steps": len(plan.steps)}, warnings)

    def __sklearn_tags__(self) -> Tags:
        """Return the tags of the last step with the input tags of the first."""
        tags = super().__sklearn_tags__()
        if not (self.steps and isinstance(self.steps, list | tuple)):
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


def _clone_step(step: Any) -> Any:
    return step if _passes_through(step) else clone(step)


def _clone_with_seeds(step: Any) -> Any:
    """Return an unfitted clone with fixed seeds, so that later fits use the same seeds."""
    fresh = _clone_step(step)
    if fresh is None or isinstance(fresh, str | ForgetMixin):
        return fresh
    unset = {
        name: library_seed(seed_from(value), Purpose.STEP, name)
        for name, value in fresh.get_params(deep=True).items()
        if name.rpartition("__")[2] == "random_state" and not isinstance(value, int)
    }
    return fresh.set_params(**unset)


def clone_unfitted(step: Any) -> Any:
    """Return an unfitted clone with the seeds of the fitted step."""
    fresh = _clone_step(step)
    if isinstance(step, ForgetPipeline):
        return fresh.set_params(steps=[(name, clone_unfitted(part)) for name, part in step.steps_])
    if isinstance(step, ForgetMixin) and "random_state" in fresh.get_params(deep=False):
        fresh.set_params(random_state=step.seed_)  # type: ignore[attr-defined]
    return fresh


def _fit_step(step: Any, X: Any, rows: Rows) -> None:
    if _passes_through(step):
        return
    if isinstance(step, ForgetMixin):
        step.fit(X, rows.y, ids=rows.ids)  # type: ignore[attr-defined]
    else:
        fresh = clone(step)
        step.fit(X, rows.y)
        if not isinstance(step, DataIndependent):
            require_independence(fresh, step, X, rows.y)
