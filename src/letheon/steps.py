"""Steps of a pipeline: steps that learn nothing, and steps that pass changes on.

A step that passes changes on implements the protocol of `letheon.delta.StableTransformer`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import Tags, get_tags
from sklearn.utils.validation import check_is_fitted

from letheon.base import ForgetMixin
from letheon.data import Frame, Rows, SlotRows, as_table, is_text_column, to_native
from letheon.delta import (
    Block,
    Delta,
    DeltaMixin,
    RowSource,
    StepPlan,
    Table,
    ask_names,
)
from letheon.guarantee import KINDS, Kind, MethodFacts
from letheon.inner_estimator import (
    inherit_tags,
    inner_training,
    refuse_learner,
    require_independence,
    transform_alone,
)
from letheon.parallel import ROWS_TOGETHER, one_thread
from letheon.seeds import Purpose, library_seed, seed_from
from letheon.terminal import Note, note_nothing


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

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.preprocessing import FunctionTransformer
    >>> from letheon.compose import DataIndependent
    >>> step = DataIndependent(FunctionTransformer(np.abs)).fit(np.array([[-1.0], [2.0]]))
    >>> step.transform(np.array([[-3.0]]))
    array([[3.]])
    """

    def __init__(self, transformer: Any) -> None:
        self.transformer = transformer

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit a clone of the transformer."""
        refuse_learner(self.transformer)
        fresh = clone_with_seeds(self.transformer)
        fitted = clone(fresh).fit(X, y)
        require_independence(fresh, fitted, X, y)
        self.transformer_ = fitted
        return self

    def transform(self, X: Any) -> Any:
        """Return X, transformed by the fitted clone."""
        check_is_fitted(self)
        return self.transformer_.transform(X)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return the names of the columns that `transform` returns."""
        check_is_fitted(self)
        return self.transformer_.get_feature_names_out(input_features)

    @property
    def n_features_in_(self) -> int:
        """Number of columns of the transformer, if it has `n_features_in_`."""
        check_is_fitted(self)
        return int(self.transformer_.n_features_in_)

    def __sklearn_tags__(self) -> Tags:
        """Return the tags of the inner transformer."""
        return inherit_tags(super().__sklearn_tags__(), self.transformer)


def passes_through(step: Any) -> bool:
    """Return whether a step returns its input: None or ``"passthrough"``."""
    return step is None or (isinstance(step, str) and step == "passthrough")


def is_data_independent(step: Any) -> bool:
    """Return whether a step learns nothing from data, according to its class or its tags.

    Parameters
    ----------
    step : transformer or str
        A step of a pipeline; "passthrough" is one, too.

    Returns
    -------
    bool

    Examples
    --------
    >>> from sklearn.preprocessing import Normalizer, StandardScaler
    >>> from letheon.compose import is_data_independent
    >>> is_data_independent(Normalizer()), is_data_independent(StandardScaler())
    (True, False)
    """
    if passes_through(step) or isinstance(step, DataIndependent):
        return True
    if isinstance(step, ForgetMixin | FunctionTransformer) or not hasattr(step, "transform"):
        return False
    return not get_tags(step).requires_fit


def passes_deltas(step: Any) -> bool:
    """Return whether a step can pass changes on instead of being refitted."""
    if hasattr(step, "passes_deltas"):
        return bool(step.passes_deltas)
    return is_data_independent(step) or hasattr(step, "_transform_with")


def clone_step(step: Any) -> Any:
    """Return an unfitted clone of a step."""
    return step if passes_through(step) else clone(step)


def clone_with_seeds(step: Any) -> Any:
    """Return an unfitted clone with fixed seeds, so that later fits use the same seeds."""
    fresh = clone_step(step)
    if fresh is None or isinstance(fresh, str | ForgetMixin):
        return fresh
    unset = {
        name: library_seed(seed_from(value), Purpose.STEP, name)
        for name, value in fresh.get_params(deep=True).items()
        if name.rpartition("__")[2] == "random_state" and not isinstance(value, int)
    }
    return fresh.set_params(**unset)


def clone_unfitted(step: Any) -> Any:
    """Return an unfitted clone with the seeds of the fitted step.

    Parameters
    ----------
    step : estimator
        A fitted step.

    Returns
    -------
    estimator
        An estimator with the same parameters.

    Examples
    --------
    >>> from letheon.compose import clone_unfitted
    >>> from letheon.preprocessing import StandardScaler
    >>> step = StandardScaler(random_state=3).fit([[0.0], [1.0]])
    >>> clone_unfitted(step)
    StandardScaler(random_state=3)
    """
    if hasattr(step, "_clone_unfitted"):
        return step._clone_unfitted()
    fresh = clone_step(step)
    if isinstance(step, ForgetMixin) and "random_state" in fresh.get_params(deep=False):
        fresh.set_params(random_state=step.seed_)  # type: ignore[attr-defined]
    return fresh


def take_table(X: Table, positions: Any) -> Table:
    """Return some rows of a table."""
    return X.take(positions) if isinstance(X, Frame) else X[positions]


def transform_rows(transformer: Any, X: Table) -> Table:
    """Return the output of a fitted transformer for some rows, as a stored table."""
    table = as_table(transformer.transform(to_native(X)))
    is_array = isinstance(table, np.ndarray) and table.dtype.kind in "biuf"
    return table.astype(np.float64, copy=False) if is_array else table


def transform_in_groups(transformer: Any, X: Table, size: int = ROWS_TOGETHER) -> Table:
    """Return the output for all rows, each in a group of the same size.

    The last bits of a matrix product can depend on the number of rows. A group that is too small is
    filled up with copies of its rows.
    """
    parts = []
    for begin in range(0, X.shape[0], size):
        positions = np.arange(begin, min(begin + size, X.shape[0]))
        part = transform_rows(transformer, take_table(X, np.resize(positions, size)))
        parts.append(take_table(part, np.arange(len(positions))))
    return join_tables(parts)


class FixedStep:
    """A step that learns nothing, with the methods of a step that passes changes on.

    Parameters
    ----------
    transformer : transformer, None or "passthrough"
        The fitted transformer.
    """

    def __init__(self, transformer: Any) -> None:
        self.transformer = transformer

    @property
    def published_(self) -> Any:
        """The fitted transformer; another one if the columns of the input change."""
        return self.transformer

    def _fit_source(self, source: RowSource) -> None:
        if passes_through(self.transformer):
            return
        rows = collect_rows(source)
        fresh, X = clone(self.transformer), to_native(rows.X)
        self.transformer.fit(X, rows.y)
        if not isinstance(self.transformer, DataIndependent):
            require_independence(fresh, self.transformer, X, rows.y)
        transform_alone(self.transformer, X)

    def _transform_with(self, published: Any, X: Table) -> Table:
        if passes_through(published) or X.shape[0] == 0:
            return X
        if is_text_column(X) or not isinstance(published, DataIndependent):
            return transform_rows(published, X)
        with one_thread():  # a declared transformer may multiply matrices
            return transform_in_groups(published, X)

    def _transform_training(self, published: Any, block: Block) -> Table:
        return self._transform_with(published, block.X)

    def _prepare_leaving(self, row: Block) -> StepPlan | None:  # noqa: ARG002
        return StepPlan(published=self.transformer)

    def _prepare_delta(self, delta: Delta) -> StepPlan:
        old = new = self.transformer
        if passes_through(old) or not (delta.columns or delta.layout is not None):
            return StepPlan(published=old, columns=delta.columns, layout=delta.layout)
        if delta.layout is not None:  # it knows the number of its columns
            new = clone(old)
            FixedStep(new)._fit_source(delta.source)
        n_columns = count_columns(delta.source.through(lambda b: self._transform_with(new, b.X)))
        n_before = count_columns(delta.before.through(lambda b: self._transform_with(old, b.X)))
        layout = None if n_columns == n_before else np.full(n_columns, -1, np.int64)
        return StepPlan(published=new, columns=tuple(range(n_columns)), layout=layout)

    def _apply_plan(self, plan: StepPlan) -> None:
        if plan.published is not self.transformer:
            vars(self.transformer).update(vars(plan.published))

    def _name_outputs(self, published: Any, names: list[str]) -> list[str] | None:
        return names if passes_through(published) else ask_names(published, names)


def as_delta_step(step: Any) -> Any:
    """Return a step with the methods of `StableTransformer`."""
    return step if hasattr(step, "_transform_with") else FixedStep(step)


def collect_rows(source: RowSource) -> Block:
    """Return all rows of a source as one block."""
    return join_blocks(list(source.blocks()))


def join_blocks(blocks: Sequence[Block]) -> Block:
    """Return blocks of rows as one block."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    y = None if first.y is None else np.concatenate([block.y for block in blocks])
    weights = None
    if first.weights is not None:
        weights = np.concatenate([block.weights for block in blocks])
    ids = first.ids.concat(*(block.ids for block in blocks[1:]))
    return Block(join_tables([block.X for block in blocks]), y, ids, weights)


def join_tables(tables: Sequence[Table]) -> Table:
    """Return tables with the same columns, one below the other."""
    if isinstance(tables[0], np.ndarray):
        return np.concatenate(tables)
    if sp.issparse(tables[0]):
        return sp.csr_array(sp.vstack(tables, format="csr"))
    joint = tables[0]
    for table in tables[1:]:
        joint = joint.concat(table)
    return joint


def count_columns(source: RowSource) -> int:
    """Return the number of columns of the rows of a source."""
    shape = source.take_first().X.shape
    return int(shape[1]) if len(shape) == 2 else 1


@dataclass(frozen=True)
class FittedSteps:
    """The fitted steps, and the raw rows if a step before the last one learns from data.

    Attributes
    ----------
    steps : tuple of (name, step)
        The fitted steps.
    rows : SlotRows, Rows or None
        `SlotRows` if all steps pass changes on, `Rows` if a request refits the steps.

    Examples
    --------
    >>> from letheon import NearestCentroid
    >>> from letheon.compose import FittedSteps
    >>> FittedSteps(steps=(("model", NearestCentroid()),), rows=None).steps[-1][0]
    'model'
    """

    steps: tuple[tuple[str, Any], ...]
    rows: SlotRows | Rows | None
    # Whether a commit is changing the steps, so that some are old and some are new.
    is_changing: ClassVar[bool] = False

    @property
    def is_in_slots(self) -> bool:
        """Whether all steps pass changes on, so that they transform stored tables."""
        return isinstance(self.rows, SlotRows)

    @property
    def model(self) -> Any:
        """The last step."""
        return self.steps[-1][1]

    @property
    def early(self) -> list[Any]:
        """The steps before the last, with the methods of steps that pass changes on."""
        return [as_delta_step(step) for _, step in self.steps[:-1]]

    def transform(self, X: Any) -> Any:
        """Return X, transformed by every step except the last."""
        if self.is_in_slots:
            table = as_table(X, copy=False)
            for step in self.early:
                table = step._transform_with(step.published_, table)
            return to_native(table)
        for _, step in self.steps[:-1]:
            X = X if passes_through(step) else step.transform(X)
        return X

    def destroy_files(self) -> list[str]:
        """Destroy the files of all steps; return a warning for each file that remains."""
        forgetting = [step for _, step in self.steps if isinstance(step, ForgetMixin)]
        return [message for step in forgetting for message in step._destroy_files()]


class ChangingSteps(FittedSteps):
    """The fitted steps during a commit."""

    is_changing: ClassVar[bool] = True


@contextmanager
def changing_steps(pipeline: Any) -> Iterator[None]:
    """Mark the steps of a pipeline as changing until it gets new ones; undo it after an error."""
    fitted: FittedSteps = pipeline.fitted_
    pipeline.fitted_ = ChangingSteps(fitted.steps, fitted.rows)
    try:
        yield
    except BaseException:
        pipeline.fitted_ = fitted
        raise


class InnerFacts:
    """Descriptor of the facts of an estimator made of others, which depend on their facts.

    On the class, it returns the facts of the class in general.

    Parameters
    ----------
    list_parts : callable
        Function from an estimator to its parts that forget, the model last.
    **facts
        The facts in general.
    """

    def __init__(self, list_parts: Callable[[Any], list[Any]], **facts: Any) -> None:
        self._list_parts = list_parts
        self._general = MethodFacts(**facts)

    def __get__(self, model: Any, owner: type) -> MethodFacts:
        if model is None:
            return self._general
        parts = self._list_parts(model)
        steps = [part.facts for part in parts]
        last = steps[-1] if steps else self._general
        # The whole can claim no more than its weakest part.
        kinds: list[Kind] = [facts.certificate for facts in steps]
        weakest: Kind = max(kinds, key=KINDS.index, default="exact")
        is_fast = all(map(passes_deltas, parts[:-1]))
        return replace(
            self._general,
            applicability=last.applicability,
            # A step in front that is refitted takes longest, whatever the last one does.
            strength=last.strength if is_fast else self._general.strength,
            exact=weakest == "exact",
            certificate=weakest,
            requests=last.requests,
            releases=last.releases,
            families=last.families,
            tasks=last.tasks,
            needs=last.needs,
            batches=last.batches,
        )


class NamedStepsMixin:
    """Mixin for estimators with a list of named steps; `get_params` and `set_params` reach into it.

    Each entry of the list starts with the name and the step.
    """

    _steps_name: ClassVar[str] = "steps"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the estimator and of its steps, like `Pipeline`."""
        params: dict[str, Any] = super().get_params(deep=False)  # type: ignore[misc]
        steps = params[self._steps_name]
        if not deep or not isinstance(steps, list | tuple):
            return params
        pairs = [entry[:2] for entry in steps if isinstance(entry, list | tuple) and entry[1:]]
        params.update(dict(pairs))
        for name, step in pairs:
            if hasattr(step, "get_params"):
                params.update(
                    {f"{name}__{key}": value for key, value in step.get_params(deep=True).items()}
                )
        return params

    def set_params(self, **params: Any) -> Self:
        """Set the list of steps, a whole step by its name, or a parameter of a step."""
        attribute = self._steps_name
        if attribute in params:
            setattr(self, attribute, params.pop(attribute))
        steps = getattr(self, attribute)
        entries = steps if params and isinstance(steps, list | tuple) else ()
        # `fit` refuses all other values and entries.
        names = [entry[0] for entry in entries if isinstance(entry, list | tuple) and entry]
        for name in [key for key in params if key in names]:
            step = params.pop(name)
            steps = [(key, step if key == name else old, *rest) for key, old, *rest in steps]
            setattr(self, attribute, steps)
        super().set_params(**params)  # type: ignore[misc]
        return self


def takes_deltas(model: Any) -> bool:
    """Return whether a last step takes changes, instead of rows that leave or a new fit."""
    return isinstance(model, DeltaMixin) or bool(getattr(model, "passes_deltas", False))


def fit_in_order(steps: Sequence[tuple[str, Any]], rows: Rows, note: Note = note_nothing) -> None:
    """Fit every step on the output of the steps before it; tell `note` the step that begins."""
    X, _ = rows.slice(0, len(rows))  # a copy: a step may work in place
    model = steps[-1][1]
    for name, step in steps:
        note(name)
        with inner_training(f"step {name!r}"):
            _fit_step(step, X, rows)
            if step is not model and not passes_through(step):
                can_forget = isinstance(step, ForgetMixin)
                X = step.transform(X) if can_forget else transform_alone(step, X)
        note()


def prepare_columns(model: Any, delta: Delta, names: list[str] | None) -> Any:
    """Return the plan of a last step for a change of columns, or None if it is fitted again."""
    if names is None or not hasattr(model, "_prepare_columns"):
        return None
    return model._prepare_columns(delta, names)


def fit_model(model: Any, source: RowSource, names: list[str] | None) -> None:
    """Fit the last step of a pipeline on the rows behind the others; `names` may be None."""
    if takes_deltas(model):
        model._fit_source(source)
        return
    rows = collect_rows(source)
    if names is not None and hasattr(model, "_fit_named"):
        model._fit_named(to_native(rows.X), rows.y, rows.ids.to_array(), names)
        return
    model.fit(to_native(rows.X), rows.y, ids=rows.ids.to_array())


def learn_block(model: Any, block: Block) -> None:
    """Add rows to a fitted model."""
    table = to_native(block.X, all_categories=True)  # in the order of the rows of the caller
    model.learn(table, block.y, ids=block.ids.to_array())


def _fit_step(step: Any, X: Any, rows: Rows) -> None:
    if passes_through(step):
        return
    if isinstance(step, ForgetMixin):
        step.fit(X, rows.y, ids=rows.ids)  # type: ignore[attr-defined]
    else:
        fresh = clone(step)
        step.fit(X, rows.y)
        if not isinstance(step, DataIndependent):
            require_independence(fresh, step, X, rows.y)
