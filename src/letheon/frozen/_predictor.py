"""Copies of fitted steps that only transform, and predictors of whole pipelines."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray
from sklearn.base import clone

from letheon.chain import ChainStepMixin
from letheon.data import as_table, present_table, to_native
from letheon.delta import StableTransformer
from letheon.frozen._onnx import export_step, find_texts
from letheon.guarantee import Guarantee
from letheon.naive import NaiveUnlearner
from letheon.predictor import (
    Answers,
    OnnxGraph,
    OnnxTable,
    Predictor,
    copy_transformer,
    drop_seeds,
)
from letheon.preprocessing import CountVectorizer, ForgetColumnTransformer, KeyedSample
from letheon.steps import FittedSteps, as_delta_step, is_data_independent, passes_through
from letheon.sums import RandomFeatures

Steps = tuple[tuple[str, Any], ...]
Names = tuple[str, ...] | None


def freeze_step(step: Any) -> Any:
    """Return a copy of a fitted step that only transforms, without rows, sums, ids and seed.

    Parameters
    ----------
    step : transformer
        A fitted step of a pipeline.

    Returns
    -------
    transformer

    Raises
    ------
    TypeError
        The step needs its seed to transform, or may have stored rows.

    Examples
    --------
    >>> from letheon.frozen import freeze_step
    >>> from letheon.preprocessing import StandardScaler
    >>> step = StandardScaler(random_state=3).fit([[0.0], [1.0], [5.0]])
    >>> frozen = freeze_step(step)
    >>> frozen.random_state is None
    True
    """
    if passes_through(step):
        return step
    if isinstance(step, ForgetColumnTransformer):
        return _freeze_columns(step)
    if hasattr(step, "fitted_"):  # a pipeline
        frozen: Any = type(step)([])
        fitted = tuple((name, freeze_step(part)) for name, part in step.fitted_.steps)
        frozen.fitted_ = FittedSteps(fitted, None)
        return frozen
    # Random phases reveal their key.
    if isinstance(step, StableTransformer) and not isinstance(step, RandomFeatures):
        frozen, published = drop_seeds(clone(step)), step.published_
        if isinstance(step, CountVectorizer):
            published = published.link(None)
        elif isinstance(step, KeyedSample):
            fitted = copy_transformer(published.transformer)
            published = replace(published, transformer=fitted, n_sampled=0)
        frozen.published_ = published
        return frozen
    if isinstance(step, NaiveUnlearner):
        return copy_transformer(step.estimator_)
    if is_data_independent(step):
        return drop_seeds(deepcopy(step))
    raise TypeError(
        f"a predictor cannot contain {type(step).__name__}, which needs its seed, or may have "
        "stored rows; use another transformer of letheon.preprocessing"
    )


def _freeze_columns(step: ForgetColumnTransformer) -> ForgetColumnTransformer:
    frozen = ForgetColumnTransformer(
        [],
        sparse_threshold=step.sparse_threshold,
        verbose_feature_names_out=step.verbose_feature_names_out,
    )
    frozen.parts_ = tuple(replace(part, step=freeze_step(part.step)) for part in step.parts_)
    return frozen


class FrozenStepsMixin(ChainStepMixin):
    """Mixin for pipelines with the attribute `fitted_`: chains of steps with a predictor.

    Examples
    --------
    >>> from letheon import ForgetPipeline
    >>> from letheon.frozen import FrozenStepsMixin
    >>> issubclass(ForgetPipeline, FrozenStepsMixin)
    True
    """

    fitted_: FittedSteps

    def _make_predictor(self, claim: Guarantee) -> Predictor:
        *early, (_, model) = self.fitted_.steps
        names: Any = vars(self).get("feature_names_in_")
        return PipelinePredictor(
            tuple((name, freeze_step(step)) for name, step in early),
            model.predictor(),
            claim,
            None if names is None else tuple(map(str, names)),
            vars(self).get("n_features_in_"),
            is_in_tables=self.fitted_.is_in_slots,
        )


class PipelinePredictor(Predictor):
    """The predictor of a pipeline: transformers that only transform, and the predictor of a model.

    Parameters
    ----------
    steps : tuple of (name, transformer)
        The transformers.
    model : Predictor
        The last step.
    guarantee : Guarantee
        Guarantee of the pipeline.
    names : tuple of str or None
        Names of the columns.
    n_columns : int or None
        Number of columns; None for texts.
    is_in_tables : bool
        Whether the steps transform stored tables.

    Examples
    --------
    >>> from letheon.boosting import BoostingClassifier
    >>> from letheon.compose import ForgetPipeline
    >>> from letheon.preprocessing import StandardScaler
    >>> steps = [("scale", StandardScaler()), ("model", BoostingClassifier())]
    >>> model = ForgetPipeline(steps)
    >>> predictor = model.fit([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]).predictor()
    >>> type(predictor).__name__, len(predictor.steps)
    ('PipelinePredictor', 1)
    """

    def __init__(
        self,
        steps: Steps,
        model: Predictor,
        guarantee: Guarantee,
        names: Names = None,
        n_columns: int | None = None,
        *,
        is_in_tables: bool = True,
    ) -> None:
        self.steps = steps
        self.model = model
        self.guarantee = guarantee
        self.names = names
        self.n_columns = n_columns
        self.is_in_tables = is_in_tables

    def transform(self, X: Any) -> Any:
        """Return the rows that the last step gets."""
        if not self.is_in_tables:
            X = present_table(X)
            for _, step in self.steps:
                X = X if passes_through(step) else step.transform(X)
            return X
        table = as_table(X, copy=False)
        for _, fitted in self.steps:
            step = as_delta_step(fitted)
            table = step._transform_with(step.published_, table)
        return to_native(table)

    def _predict(self, method: str, X: Any) -> Any:
        return getattr(self.model, method)(self.transform(X))

    def _has(self, method: str) -> bool:
        return self.model._has(method)

    def _labels(self) -> NDArray[Any] | None:
        return self.model._labels()

    def _columns(self) -> tuple[int | None, Names]:
        return self.n_columns, self.names

    def to_shap(self) -> dict[str, Any]:
        """Return the trees of the last step; explain the rows that `transform` returns."""
        return self.model.to_shap()

    def _find_texts(self) -> tuple[int, ...]:
        learning = [step for _, step in self.steps if not passes_through(step)]
        return find_texts(learning[0]) if learning else self.model._find_texts()

    def _export(self, graph: OnnxGraph, table: OnnxTable) -> tuple[str, int, Answers]:
        for _, step in self.steps:
            table = export_step(step, graph, table)
        return self.model._export(graph, table)
