"""`KeyedSample`: any transformer, fitted on a keyed sample of people."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import MetaEstimatorMixin
from sklearn.utils import Tags, get_tags
from sklearn.utils.validation import check_is_fitted

from letheon.data import Frame, Ids, Rows, as_ids, as_table, to_native
from letheon.delta import Block, Delta, RowSource, StableTransformer, StepPlan, Table
from letheon.guarantee import MethodFacts
from letheon.inner_estimator import (
    available_from,
    clone_with_seed,
    fix_environment,
    inherit_tags,
    inner_training,
    refuse_nested_files,
    refuse_unencodable,
    require_acceptable,
    require_encodable,
    versions_of,
)
from letheon.parallel import ROWS_TOGETHER, one_thread
from letheon.preprocessing._facts import make_facts
from letheon.preprocessing._quantiles import find_sampled
from letheon.seeds import Purpose, library_seed
from letheon.steps import (
    join_blocks,
    take_table,
    transform_in_groups,
    transform_rows,
)
from letheon.sums import SAMPLE_SIZE, sample_border
from letheon.validation import Rules

_SHIFTS = (1, 3, 50, 167)


@dataclass(eq=False)
class SampleBorder:
    """Border of the hashes of sampled people."""

    border: int

    def _to_state(self) -> dict[str, Any]:
        return {"border": str(self.border)}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        return cls(int(state["border"]))


@dataclass(frozen=True, eq=False)
class SampledFit:
    """A fitted transformer.

    Attributes
    ----------
    transformer : transformer
        Fitted on the rows of the sampled people.
    n_sampled : int
        Number of sampled people.
    n_outputs : int
        Number of columns of the output.
    n_together : int
        Number of rows that are transformed together.
    """

    transformer: Any
    n_sampled: int
    n_outputs: int
    n_together: int


def _choose_group_size(transformer: Any, X: Table) -> int:
    """Return 336 if the place of a row in a group does not change its output, else 1."""
    positions = np.resize(np.arange(X.shape[0]), ROWS_TOGETHER)
    output = _to_bytes(transform_rows(transformer, take_table(X, positions)))
    for shift in _SHIFTS:
        moved = _to_bytes(transform_rows(transformer, take_table(X, np.roll(positions, shift))))
        if moved != output[-shift:] + output[:-shift]:
            return 1
    return ROWS_TOGETHER


def _to_bytes(table: Table) -> list[bytes]:
    """Return the bytes of each row."""
    if isinstance(table, Frame):
        pairs = zip(table.numbers, table.codes, strict=True)
        return [numbers.tobytes() + codes.tobytes() for numbers, codes in pairs]
    dense = table.toarray() if sp.issparse(table) else table
    return [np.ascontiguousarray(row).tobytes() for row in dense]


def _find_transformer(model: Any) -> Any:
    """Return the fitted transformer, or the given one before the fit."""
    fit = vars(model).get("published_")
    return model.transformer if fit is None else fit.transformer


class KeyedSample(MetaEstimatorMixin, StableTransformer):
    """A transformer of scikit-learn that is fitted on a keyed sample of people.

    Whether a person is in the sample depends on the id, the seed and the rounded number of people.
    Forgetting a person outside the sample changes nothing; for a person in the sample the
    transformer is fitted again.

    Parameters
    ----------
    transformer : transformer
        Any transformer that letheon can save: PCA, feature selection, splines, discretisers, ...
    n_people : int, default=5000
        Expected number of people in the sample, up to 1.2 times as many. With fewer people in
        total, all are in it.
    random_state : int, RandomState, Generator or None, default=None
        Source of the seed.

    Attributes
    ----------
    transformer_ : transformer
        The fitted transformer.
    n_sampled_ : int
        Number of people in the sample.
    n_features_in_ : int
        Number of input columns.

    Notes
    -----
    Rows are transformed in groups of 336, and one by one if the transformer's output for a row
    depends on its place in a group. So the output for a row does not depend on other rows, not
    even in the last bit.

    The time of a removal and its receipt reveal whether a person was in the sample.

    Guarantee: exact, with the same libraries and CPU kernel.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.decomposition import PCA
    >>> from letheon.preprocessing import KeyedSample
    >>> X = np.random.default_rng(0).normal(size=(1000, 5))
    >>> model = KeyedSample(PCA(2), n_people=100, random_state=0).fit(X)
    >>> model.transform(X).shape, model.n_sampled_
    ((1000, 2), 107)
    >>> model.is_sampled([0, 1])
    array([False, False])
    >>> model.forget([0, 1]).work
    0.0
    """

    sums_: SampleBorder
    published_: SampledFit
    config_: dict[str, Any]
    facts: ClassVar[MethodFacts] = make_facts(
        "any transformer", "keyed-sample", "bitwise-same-kernel"
    )
    _parameter_rules: ClassVar[Rules] = {"n_people": SAMPLE_SIZE}

    def __init__(self, transformer: Any, *, n_people: int = 5000, random_state: Any = None) -> None:
        self.transformer = transformer
        self.n_people = n_people
        self.random_state = random_state

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not (hasattr(self.transformer, "fit") and hasattr(self.transformer, "transform")):
            raise TypeError(
                f"transformer={self.transformer!r}; expected a transformer with fit and transform"
            )
        refuse_nested_files(self.transformer)

    def _convert_table(self, X: Any, *, copy: bool) -> Table:
        is_objects = isinstance(X, np.ndarray) and X.dtype.kind == "O" and X.ndim == 2
        if is_objects and not get_tags(self.transformer).input_tags.string:
            X = X.astype(np.float64)
        table = as_table(X, copy=copy)
        # Rows outside the sample are never shown to the `fit` of the transformer.
        require_acceptable(self.transformer, table)
        return table

    def _convert_rows(self, X: Any, y: Any, ids: Any, weights: Any) -> Block:
        if y is None and get_tags(self.transformer).target_tags.required:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        return super()._convert_rows(X, y, ids, weights)

    def _remember_settings(self) -> dict[str, Any]:
        return super()._remember_settings() | {"config_": get_config()}

    def _describe_environment(self) -> dict[str, str]:
        return super()._describe_environment() | versions_of(self.transformer)

    def _count(self, source: RowSource, seed: int) -> tuple[SampleBorder, SampledFit]:
        return self._fit_sample(source, seed, get_config())

    def _fit_sample(
        self, source: RowSource, seed: int, config: dict[str, Any]
    ) -> tuple[SampleBorder, SampledFit]:
        """Fit the transformer on the rows of the sampled people."""
        border = sample_border(self.n_people, source.n_people)
        parts = []
        for block in source.blocks():
            sampled = np.flatnonzero(find_sampled(block.ids, seed, Purpose.KEYED_SAMPLE, border))
            if len(sampled):
                y = None if block.y is None else block.y[sampled]
                parts.append(Block(take_table(block.X, sampled), y, block.ids.take(sampled)))
        if not parts:
            raise ValueError(f"no person is in the sample of n_people={self.n_people}; increase it")
        sample = join_blocks(parts)
        return SampleBorder(border), self._fit_rows(sample, seed, config)

    def _fit_rows(self, sample: Block, seed: int, config: dict[str, Any]) -> SampledFit:
        rows = Rows(to_native(sample.X), sample.y, sample.ids)
        refuse_unencodable(self.transformer, rows, seed, config)
        fresh = clone_with_seed(self.transformer, seed, Purpose.KEYED_SAMPLE)
        environment = fix_environment(config, library_seed(seed, Purpose.KEYED_SAMPLE))
        with environment, inner_training(type(self).__name__):
            fitted = fresh.fit(*rows.slice(0, len(rows)))
            size = _choose_group_size(fitted, sample.X)
            shape = transform_in_groups(fitted, take_table(sample.X, np.arange(1)), size).shape
        require_encodable(fitted, self.transformer, rows)
        n_outputs = shape[1] if len(shape) == 2 else 1
        return SampledFit(fitted, len(sample.ids.distinct()), int(n_outputs), size)

    def _prepare_delta(self, delta: Delta) -> StepPlan:
        old = self.published_
        if not self._needs_fit(delta):
            return StepPlan(published=old)
        sums, new = self._fit_sample(delta.source, self.seed_, self.config_)
        same_width = new.n_outputs == old.n_outputs
        return StepPlan(
            published=new,
            apply=self._replace_sums(sums),
            columns=tuple(range(new.n_outputs)),
            layout=None if same_width else np.full(new.n_outputs, -1, np.int64),
            work=1.0,
            rebuilt={"steps": 1},
        )

    def _needs_fit(self, delta: Delta) -> bool:
        """Return whether the sample or its rows change."""
        if delta.columns or delta.layout is not None:
            return True
        if sample_border(self.n_people, delta.source.n_people) != self.sums_.border:
            return True
        return any(self._find_sampled(block.ids).any() for _, block in delta.iter_signed())

    def _find_sampled(self, ids: Ids) -> NDArray[np.bool_]:
        return find_sampled(ids, self.seed_, Purpose.KEYED_SAMPLE, self.sums_.border)

    def _count_outputs(self, published: SampledFit) -> int:
        return published.n_outputs

    def _transform_with(self, published: SampledFit, X: Table) -> Table:
        if X.shape[0] == 0:
            return np.empty((0, published.n_outputs))
        with one_thread():
            return transform_in_groups(published.transformer, X, published.n_together)

    def is_sampled(self, ids: Any) -> NDArray[np.bool_]:
        """Return for each id whether its rows are in the sample."""
        check_is_fitted(self)
        return self._find_sampled(as_ids(ids))

    @property
    def n_sampled_(self) -> int:
        """Number of people in the sample."""
        check_is_fitted(self)
        return self.published_.n_sampled

    @property
    def transformer_(self) -> Any:
        """The fitted transformer."""
        check_is_fitted(self)
        return self.published_.transformer

    @available_from(_find_transformer)
    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return the names of the output columns."""
        check_is_fitted(self)
        return self.published_.transformer.get_feature_names_out(input_features)

    @available_from(_find_transformer)
    def inverse_transform(self, X: Any) -> Any:
        """Return rows in the original units."""
        check_is_fitted(self)
        return self.published_.transformer.inverse_transform(X)

    def __sklearn_tags__(self) -> Tags:
        """Return the tags of the transformer."""
        tags = inherit_tags(super().__sklearn_tags__(), self.transformer)
        tags.transformer_tags = get_tags(self.transformer).transformer_tags
        if tags.transformer_tags is not None:
            tags.transformer_tags.preserves_dtype = ["float64"]
        return tags
