"""Changes of rows on their way through a pipeline, and estimators made of exact sums.

A step that forgets hands a `Delta` to the next one: the rows that leave or arrive, and the rows or
columns whose transformed values changed. In most requests nothing changed but the rows that leave,
and every step needs only those.

An estimator of this kind has two parts. *Sums* are integers that rows are added to and subtracted
from. *Published* values, such as a mean on a grid, are computed from the sums and are immutable.
They rarely change, because they are rounded.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from letheon.base import ForgetMixin, InPlaceMixin, Outcome, Removal, locate_in, lock_model
from letheon.data import (
    Frame,
    Ids,
    SlotRows,
    as_table,
    hold_target,
    is_text_column,
    list_orders,
    row_ids,
    table_length,
    to_native,
)
from letheon.exceptions import LetheonError
from letheon.guarantee import Guarantee
from letheon.inner_estimator import refuse_impossible_removals
from letheon.seeds import seed_from
from letheon.validation import Rules, validate_parameters

Table = Any
Ranks = NDArray[np.int64]
Columns = tuple[int, ...]
FindRows = Callable[[NDArray[np.int64]], Ranks]

# Small blocks stay in the cache, and their memory is reused.
_BLOCK_ROWS = 1 << 13
_WEIGHT = "weight"
_NOTHING: Mapping[str, int] = MappingProxyType({})


class Block:
    """Some rows, in the form that a step gets them.

    Parameters
    ----------
    X : ndarray, CSR array, Frame or texts
        The rows.
    y : ndarray or None
        Their targets.
    ids : Ids
        Their ids.
    weights : ndarray of float64 or None
        Their weights.
    """

    __slots__ = ("_X", "_view", "ids", "weights", "y")

    def __init__(
        self,
        X: Table,
        y: NDArray[Any] | None,
        ids: Ids,
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        self._X = X
        self._view: Callable[[], Table] | None = None
        self.y, self.ids, self.weights = y, ids, weights

    @property
    def X(self) -> Table:
        """The rows; transformed at the first use."""
        if self._view is not None:
            self._X, self._view = self._view(), None
        return self._X

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.ids)

    def with_table(self, X: Table) -> "Block":
        """Return the same rows with another table."""
        return Block(X, self.y, self.ids, self.weights)

    def through(self, view: "View") -> "Block":
        """Return the same rows behind a transform, which runs at the first use of the table."""
        block = Block(None, self.y, self.ids, self.weights)
        block._view = lambda: view(self)
        return block


View = Callable[[Block], Table]


def take_block(rows: SlotRows, slots: Any) -> Block:
    """Return the rows in some slots."""
    X = rows.X.take(slots) if isinstance(rows.X, Frame) else rows.X[slots]
    y = None if rows.y is None else rows.y[slots]
    ids = rows.ids_at(np.arange(rows.n_slots)[slots] if isinstance(slots, slice) else slots)
    weights = rows.extra.get(_WEIGHT)
    return Block(X, y, ids, None if weights is None else weights[slots])


@dataclass(slots=True, eq=False)  # not frozen: a request makes many of them
class RowSource:
    """All rows after a change, as the input of one step; they can be read several times.

    Attributes
    ----------
    rows : SlotRows
        The stored rows.
    without : ndarray of int
        Slots of rows that leave.
    added : Block or None
        New rows, as the first step gets them.
    views : tuple of callable
        Transforms of the steps before this one, in order.
    """

    rows: SlotRows
    without: Ranks | None = None
    added: Block | None = None
    views: tuple[View, ...] = ()

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self._n_stored + (0 if self.added is None else self.added.n_rows)

    @property
    def _n_stored(self) -> int:
        return len(self.rows) - (0 if self.without is None else len(self.without))

    @property
    def n_people(self) -> int:
        """Number of distinct ids."""
        count = self.rows.n_people
        if self.without is not None:
            count -= len(self.rows.ids_at(self.without).distinct())
        if self.added is not None:
            people = self.added.ids.distinct()
            count += len(self.rows.find(people).missing)
        return count

    @property
    def _slots(self) -> Ranks:
        if self.without is None:
            return np.flatnonzero(self.rows.alive)
        keep = self.rows.alive.copy()
        keep[self.without] = False
        return np.flatnonzero(keep)

    def blocks(self, ranks: Ranks | None = None) -> Iterator[Block]:
        """Iterate over all rows in stored order, or over some stored rows and all new ones."""
        slots = self._slots if ranks is None else self._slots[ranks]
        is_whole = len(slots) == self.rows.n_slots
        for begin in range(0, len(slots), _BLOCK_ROWS):
            part = slice(begin, min(begin + _BLOCK_ROWS, len(slots)))
            yield self._look(take_block(self.rows, part if is_whole else slots[part]))
        if self.added is not None:
            yield self._look(self.added)

    def take(self, ranks: Ranks) -> Block:
        """Return stored rows by their rank among the rows that remain, in stored order."""
        return self._look(take_block(self.rows, self._slots[ranks]))

    def take_first(self) -> Block:
        """Return one row, or the new rows if no other row is stored; cheap."""
        if self._n_stored:
            return self.take(np.zeros(1, np.int64))
        return next(self.blocks())

    def through(self, view: View) -> "RowSource":
        """Return the source behind one more transform."""
        return RowSource(self.rows, self.without, self.added, (*self.views, view))

    def _look(self, block: Block) -> Block:
        for view in self.views:
            block = block.through(view)
        return block


class ReplacedRows(NamedTuple):
    """Rows that stay but have other values now: ranks, and the old and new rows."""

    ranks: Ranks
    old: Block
    new: Block


@dataclass(slots=True, eq=False, kw_only=True)
class Delta:
    """What changes in the input of one step. Never changed after it is made.

    Attributes
    ----------
    removed : Block or None
        Rows that leave, with the values that the step saw when they arrived.
    added : Block or None
        New rows.
    replaced : Replacement or None
        Rows that stay, with old and new values, except for changes in `columns`.
    columns : tuple of int
        Columns whose values may have changed in all rows; numbers of the new input.
    layout : ndarray of int or None
        For each column of the new input its number in the old one, or -1 for a new column. None if
        the columns are the same.
    before : RowSource
        The rows that remain, with their old values.
    source : RowSource
        All rows after the change, with their new values. Reading it costs O(n).
    find_rows : callable or None
        Returns the ranks of stored rows that may not be zero in some columns of the new input.
    """

    removed: Block | None = None
    added: Block | None = None
    replaced: ReplacedRows | None = None
    columns: Columns = ()
    layout: NDArray[np.int64] | None = None
    before: RowSource
    source: RowSource
    find_rows: FindRows | None = None

    @property
    def only_rows(self) -> bool:
        """Whether rows only leave or arrive, and all other values are the same."""
        return self.replaced is None and not self.columns and self.layout is None

    def iter_signed(self) -> Iterator[tuple[int, Block]]:
        """Iterate over the rows to subtract (-1) and to add (+1), without those in `columns`."""
        if self.removed is not None:
            yield -1, self.removed
        if self.replaced is not None:
            yield -1, self.replaced.old
            yield 1, self.replaced.new
        if self.added is not None:
            yield 1, self.added


def _do_nothing() -> None:
    """Apply a change that needs no update of sums."""


@dataclass(slots=True, eq=False, kw_only=True)
class StepPlan:
    """What a step will do at the commit, and what changes in its output. Never changed later.

    Attributes
    ----------
    published : object
        The published values after the commit; the same object if they do not change.
    apply : callable
        Updates the sums in place. It cannot fail.
    columns, layout
        Changes of the output that concern all rows; see `Delta`.
    rows : ndarray of int or None
        Ranks of further remaining rows whose output changed.
    find_rows : callable or None
        Finds rows by columns of the output; see `Delta`.
    work : float
        Work done, as a share of a fresh fit.
    rebuilt : mapping of str to int
        Numbers of rebuilt parts, for the receipt.
    """

    published: Any
    apply: Callable[[], None] = _do_nothing
    columns: Columns = ()
    layout: NDArray[np.int64] | None = None
    rows: Ranks | None = None
    find_rows: FindRows | None = None
    work: float = 0.0
    rebuilt: Mapping[str, int] = field(default_factory=lambda: _NOTHING)


class _StoredChange(NamedTuple):
    """A change to an estimator that stores its rows: plan, slots to wipe, or the joined rows."""

    plan: StepPlan
    slots: Ranks | None
    joined: SlotRows | None


class DeltaMixin(InPlaceMixin, ForgetMixin):
    """Mixin for estimators made of sums. Alone they store their rows; in a pipeline they do not.

    A subclass implements `_count` and `_prepare_delta`, and calls `_fit_table` in `fit`.

    Attributes
    ----------
    sums_ : object
        Exact integers, changed in place.
    published_ : object
        Values computed from the sums; replaced as a whole.
    rows_ : SlotRows
        The remaining rows; not set in a pipeline, which stores them once for all steps.
    """

    sums_: Any
    published_: Any
    rows_: SlotRows
    seed_: int
    random_state: Any

    def _count(self, source: RowSource, seed: int) -> tuple[Any, Any]:
        """Return the sums and the published values of all rows."""
        raise NotImplementedError(f"{type(self).__name__} must count its rows")

    def _prepare_delta(self, delta: Delta) -> StepPlan:
        """Return what a change will do. May fail; changes nothing."""
        raise NotImplementedError(f"{type(self).__name__} must prepare a change")

    def _prepare_leaving(self, row: Block) -> StepPlan | None:  # noqa: ARG002
        """Return the plan if one row leaves and all published values stay; None if they may change.

        The usual request of a pipeline: `_prepare_delta` gives an equal plan, but takes longer.
        """
        return None

    _parameter_rules: ClassVar[Rules] = {}

    def _check_parameters(self) -> None:
        """Raise for parameters that are wrong; called before each fit."""
        validate_parameters(self)

    def _replace_sums(self, sums: Any) -> Callable[[], None]:
        """Return what a plan applies if the sums are new."""
        return partial(setattr, self, "sums_", sums)

    def _convert_table(self, X: Any, *, copy: bool) -> Table:
        """Return X as a stored table, checked for this estimator."""
        return as_table(X, copy=copy)

    def _convert_target(self, y: Any) -> NDArray[Any] | None:
        """Return y in canonical form, checked for this estimator."""
        return None if y is None else hold_target(y)

    def _draw_seed(self) -> int:
        """Return the seed of a fit; 0 for an estimator without anything random."""
        return seed_from(self.random_state) if hasattr(self, "random_state") else 0

    def _rebuild_plan(self, delta: Delta) -> StepPlan:
        """Return a plan that counts all rows again; the whole output may change."""
        sums, published = self._count(delta.source, self.seed_)
        n_columns = self._count_outputs(published)
        n_before = self._count_outputs(self.published_)
        layout = None if n_columns == n_before else np.full(n_columns, -1, np.int64)
        return StepPlan(
            published=published,
            apply=self._replace_sums(sums),
            columns=tuple(range(n_columns)),
            layout=layout,
            work=1.0,
            rebuilt={"steps": 1},
        )

    def _count_outputs(self, published: Any) -> int:  # noqa: ARG002
        """Return the number of columns of the output; 0 for a model."""
        return 0

    def _fit_table(self, X: Any, y: Any, ids: Any, weights: Any = None) -> Self:
        """Fit on rows that this estimator stores."""
        with lock_model(self):
            self._check_parameters()
            seed = self._draw_seed()
            block = self._convert_rows(X, y, ids, weights)
            extra = {} if block.weights is None else {_WEIGHT: block.weights}
            rows = SlotRows(block.X, block.y, block.ids, extra)
            sums, published = self._count(RowSource(rows), seed)
            if not is_text_column(block.X):
                validate_data(self, X, skip_check_array=True, reset=True)
            vars(self).pop("tuning_", None)
            self._install(sums, published, seed, rows_=rows)
        return self

    def _fit_source(self, source: RowSource) -> Self:
        """Fit in a pipeline, which stores the rows."""
        self._check_parameters()
        seed = self._draw_seed()
        sums, published = self._count(source, seed)
        self._install(sums, published, seed, **_describe_features(source))
        return self

    def _install(self, sums: Any, published: Any, seed: int, **more: Any) -> None:
        settings = self._remember_settings()
        vars(self).update(sums_=sums, published_=published, seed_=seed, **settings, **more)
        self._after_change()

    def _in_place_attributes(self) -> tuple[str, ...]:
        return ("sums_", "rows_")

    def _after_change(self) -> None:
        """Drop caches that depend on the sums; called after every change."""

    def _convert_rows(self, X: Any, y: Any, ids: Any, weights: Any) -> Block:
        table = self._convert_table(X, copy=True)
        target = self._convert_target(y)
        n_rows = table_length(table)
        for name, values in (("y", target), ("sample_weight", weights)):
            if values is not None and len(values) != n_rows:
                raise ValueError(
                    f"X has {n_rows} rows and {name} has {len(values)}; expected one each"
                )
        weights = None if weights is None else _check_weights(weights)
        return Block(table, target, row_ids(ids, n_rows), weights)

    def _learn_table(self, X: Any, y: Any, ids: Any, weights: Any = None) -> Self:
        """Add rows to an estimator that stores its rows."""

        def prepare() -> _StoredChange:
            self._require_rows()
            added, rows = self._convert_rows(X, y, ids, weights), self.rows_
            if not is_text_column(added.X):
                validate_data(self, X, skip_check_array=True, reset=False)
            extra = {} if added.weights is None else {_WEIGHT: added.weights}
            joined = rows.join(added.X, added.y, added.ids, extra, list_orders(X))
            added = take_block(joined, slice(len(rows), None))  # in the dtypes of the rows
            delta = Delta(added=added, before=RowSource(rows), source=RowSource(rows, added=added))
            return _StoredChange(self._prepare_delta(delta), None, joined)

        return self._learn_rows(ids, prepare)

    def _require_rows(self) -> None:
        if "rows_" not in vars(self):
            raise LetheonError(
                f"this {type(self).__name__} is a step of a pipeline, which stores the rows; call "
                "forget or learn of the pipeline"
            )

    @property
    def n_rows_(self) -> int:
        """Number of remaining rows."""
        check_is_fitted(self)
        self._require_rows()
        return len(self.rows_)

    def _get_ids(self) -> Ids:
        self._require_rows()
        return self.rows_.ids

    def _make_guarantee(self) -> Guarantee:
        return Guarantee(
            kind="exact",
            reference="sums of integers are independent of order and history",
            assumptions=("seed-independent-of-requests", "same-libraries-and-cpu-kernel"),
        )

    def _locate_rows(self, ids: Ids) -> Removal:
        self._require_rows()
        return locate_in(self.rows_, ids)

    def _prepare(self, removal: Removal) -> _StoredChange:
        rows, slots = self.rows_, removal.where
        remaining = RowSource(rows, slots)
        delta = Delta(removed=take_block(rows, slots), before=remaining, source=remaining)
        with refuse_impossible_removals():
            return _StoredChange(self._prepare_delta(delta), slots, None)

    def _commit(self, change: Any) -> Outcome:
        is_stored = isinstance(change, _StoredChange)
        plan = change.plan if is_stored else change
        self._apply_plan(plan)
        if is_stored and change.joined is not None:
            self.rows_ = change.joined
        if is_stored and change.slots is not None:
            self.rows_.wipe(change.slots)
        return Outcome(plan.work, plan.rebuilt)

    def _apply_plan(self, plan: StepPlan) -> None:
        plan.apply()
        self.published_ = plan.published
        self._after_change()


def _describe_features(source: RowSource) -> dict[str, Any]:
    """Return the attributes that describe the columns of the rows of a source."""
    table = source.take_first().X
    described: dict[str, Any] = {}
    if len(table.shape) == 2:
        described["n_features_in_"] = int(table.shape[1])
    if isinstance(table, Frame) and table.schema.has_names:
        described["feature_names_in_"] = np.array(table.schema.names, object)
    return described


def prepare_step(step: Any, delta: Delta) -> StepPlan:
    """Return what a change does in a step, including the number of its input columns."""
    plan: StepPlan = step._prepare_delta(delta)
    if delta.layout is None or not isinstance(step, DeltaMixin):
        return plan
    described = _describe_features(delta.source)

    def apply() -> None:
        plan.apply()
        vars(step).update(described)

    return replace(plan, apply=apply)


def _check_weights(weights: Any) -> NDArray[np.float64]:
    values = np.array(weights, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
        raise ValueError("sample_weight must be one finite number of at least 0 per row")
    return values


class StableTransformer(DeltaMixin, TransformerMixin, BaseEstimator):
    """Base class of transformers that forget: statistics of exact sums, rounded by a keyed grid.

    A subclass implements `_count`, `_prepare_delta`, `_transform_with` and `_count_outputs`.
    """

    n_features_in_: int
    # What the input may be, besides numbers: fields of scikit-learn's tags.
    _input_tags: ClassVar[tuple[str, ...]] = ()

    def fit(self, X: Any, y: Any = None, *, ids: Any = None) -> Self:
        """Fit on all rows and store them.

        Parameters
        ----------
        X : array-like, sparse matrix, pandas or polars frame, or texts
            Training rows.
        y : array-like, optional
            Targets, for transformers that use them.
        ids : sequence of int or of str, optional
            Id of each row; may repeat. Default ``0..n-1``.

        Returns
        -------
        self
        """
        return self._fit_table(X, y, ids)

    def learn(self, X: Any, y: Any = None, *, ids: Any) -> Self:
        """Add rows, with an id for each; a known id keeps its earlier rows. X and y as in `fit`."""
        return self._learn_table(X, y, ids)

    def transform(self, X: Any) -> Any:
        """Transform rows with the published values.

        Parameters
        ----------
        X : table with the columns of the fit
            Rows to transform.

        Returns
        -------
        ndarray, sparse array or frame
            The transformed rows.
        """
        check_is_fitted(self)
        if not is_text_column(X):
            validate_data(self, X, skip_check_array=True, reset=False)
        table = self._convert_table(X, copy=False)
        return to_native(self._transform_with(self.published_, table))

    def fit_transform(  # type: ignore[override]
        self, X: Any, y: Any = None, *, ids: Any = None
    ) -> Any:
        """Fit, then transform the same rows."""
        fitted = self.fit(X, y, ids=ids)
        block = take_block(fitted.rows_, slice(0, fitted.rows_.n_slots))
        return to_native(fitted._transform_training(fitted.published_, block))

    def _transform_with(self, published: Any, X: Table) -> Table:
        """Return the transformed table. Pure: a plan uses it with values that are not committed."""
        raise NotImplementedError(f"{type(self).__name__} must transform a table")

    def _transform_training(self, published: Any, block: Block) -> Table:
        """Return the transformed training rows; another table than for new rows if cross-fitted."""
        return self._transform_with(published, block.X)

    def __sklearn_tags__(self) -> Tags:
        """Return scikit-learn's tags."""
        tags = super().__sklearn_tags__()
        tags.input_tags = replace(tags.input_tags, **dict.fromkeys(self._input_tags, True))
        return tags


def ask_names(transformer: Any, names: list[str]) -> list[str] | None:
    """Return the names of the output columns of a transformer, or None if it has no names."""
    try:
        return list(map(str, transformer.get_feature_names_out(np.array(names, object))))
    except (AttributeError, ValueError):
        return None
