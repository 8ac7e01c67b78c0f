"""`ForgetColumnTransformer`: another transformer for each group of columns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.utils.validation import check_is_fitted

from letheon.base import ForgetMixin
from letheon.chain import name_outputs, sum_counts
from letheon.data import Frame, FrameSchema, numbers_of, to_native
from letheon.delta import (
    Block,
    Columns,
    Delta,
    ReplacedRows,
    RowSource,
    StableTransformer,
    StepPlan,
    Table,
    prepare_step,
)
from letheon.exceptions import CannotForgetError
from letheon.guarantee import MethodFacts
from letheon.steps import (
    NamedStepsMixin,
    as_delta_step,
    clone_step,
    clone_unfitted,
    clone_with_seeds,
    count_columns,
    passes_deltas,
    passes_through,
)
from letheon.validation import Boolean, Interval, Rules

_REMAINDER = "remainder"
# More columns than any hashing vectoriser returns by default.
_MOST_COLUMNS = 1 << 24


@dataclass(frozen=True)
class ColumnPart:
    """One fitted transformer and its columns.

    Attributes
    ----------
    name : str
        Name of the transformer.
    step : transformer, None or "passthrough"
        The fitted transformer.
    columns : tuple of int
        Columns that it gets.
    is_text : bool
        Whether it gets one column as a list of texts.
    width : int
        Number of columns that it returns.
    """

    name: str
    step: Any
    columns: Columns
    is_text: bool
    width: int

    def _to_state(self) -> dict[str, Any]:
        return vars(self)

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        part = cls(**state)
        counts = (*part.columns, part.width)
        is_valid = type(part.columns) is tuple and all(type(count) is int for count in counts)
        if not is_valid or min(counts) < 0 or max(counts) > _MOST_COLUMNS:
            raise ValueError("not a valid column transformer: wrong numbers of columns")
        if _count_width(part.step, len(part.columns)) not in (None, part.width):
            raise ValueError("not a valid column transformer: a part has another width")
        return part


def _count_width(step: Any, n_columns: int) -> int | None:
    """Return the number of columns that a fitted step returns, or None if it does not say."""
    if passes_through(step):
        return n_columns
    if hasattr(step, "_inner_steps"):
        *_, step = step._inner_steps()
    return step._count_outputs(step.published_) if isinstance(step, StableTransformer) else None


class _PublishedPart(NamedTuple):
    """A part and the published values of its transformer."""

    part: ColumnPart
    published: Any

    def select(self, X: Table) -> Table:
        """Return the columns of this part."""
        return select_columns(X, self.part.columns, self.part.is_text)


class ForgetColumnTransformer(NamedStepsMixin, StableTransformer):
    """Apply transformers that forget to groups of columns, like scikit-learn's `ColumnTransformer`.

    Parameters
    ----------
    transformers : list of (name, transformer, columns)
        Each transformer is one of `letheon.preprocessing`, a `ForgetPipeline` of them, a
        transformer that learns nothing from data, ``"drop"`` or ``"passthrough"``. Columns are
        names, numbers, a slice, a mask or a function of an empty table, such as the result of
        `sklearn.compose.make_column_selector`. A single name (not in a list) selects a column of
        texts for a vectoriser.
    remainder : "drop", "passthrough" or transformer, default="drop"
        What to do with all other columns.
    sparse_threshold : float, default=0.3
        0 makes the output dense. Otherwise it is sparse if a transformer returns a sparse matrix,
        whatever the share of zeros: that share would depend on rows that may be removed.
    verbose_feature_names_out : bool, default=True
        Whether names of output columns start with the name of the transformer.

    Attributes
    ----------
    transformers_ : list of (name, fitted transformer, columns)
        The fitted transformers.

    Notes
    -----
    Guarantee: exact. A request costs what it costs in the transformers.

    Examples
    --------
    >>> import pandas as pd
    >>> from letheon.preprocessing import ForgetColumnTransformer, OneHotEncoder, StandardScaler
    >>> frame = pd.DataFrame({"age": [20.0, 40.0, 60.0], "city": ["Oslo", "Rome", "Oslo"]})
    >>> columns = ForgetColumnTransformer([
    ...     ("number", StandardScaler(random_state=0), ["age"]),
    ...     ("city", OneHotEncoder(sparse_output=False), ["city"]),
    ... ]).fit(frame, ids=["a", "b", "c"])
    >>> columns.forget(["b"]).n_rows
    1
    >>> columns.get_feature_names_out().tolist()
    ['number__age', 'city__city_Oslo']
    """

    facts: ClassVar[MethodFacts] = MethodFacts(
        method="stable-preprocessing",
        applicability="columns with transformers that can forget",
        exact=True,
        strength="strong",
        definition_name="stable-preprocessing",
        families=("any",),
        batches=True,
        replay="bitwise",
    )
    _steps_name: ClassVar[str] = "transformers"
    _parameter_rules: ClassVar[Rules] = {
        "sparse_threshold": Interval(0, 1),
        "verbose_feature_names_out": Boolean(),
    }
    # Only the transformers have seeds.
    random_state = 0

    parts_: tuple[ColumnPart, ...]

    def __init__(
        self,
        transformers: Any,
        *,
        remainder: Any = "drop",
        sparse_threshold: float = 0.3,
        verbose_feature_names_out: bool = True,
    ) -> None:
        self.transformers = transformers
        self.remainder = remainder
        self.sparse_threshold = sparse_threshold
        self.verbose_feature_names_out = verbose_feature_names_out

    def _sk_visual_block_(self) -> Any:
        """Return the diagram of the transformers that notebooks show."""
        parts = ColumnTransformer(list(self.transformers), remainder=self.remainder)
        return parts._sk_visual_block_()

    @property
    def transformers_(self) -> list[tuple[str, Any, list[int]]]:
        """Name, fitted transformer and columns of each part."""
        check_is_fitted(self)
        return [(part.name, part.step, list(part.columns)) for part in self.parts_]

    @property
    def named_transformers_(self) -> dict[str, Any]:
        """Fitted transformers by name."""
        return {name: step for name, step, _ in self.transformers_}

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the columns that `transform` returns."""
        check_is_fitted(self)
        names = input_features
        if names is None:
            known = getattr(self, "feature_names_in_", None)
            names = [f"x{j}" for j in range(self.n_features_in_)] if known is None else known
        out: list[str] = []
        for part in self.parts_:
            own: Any = [names[j] for j in part.columns]
            if hasattr(part.step, "get_feature_names_out"):
                own = part.step.get_feature_names_out(
                    None if part.is_text else np.array(own, object)
                )
            prefix = f"{part.name}__" if self.verbose_feature_names_out else ""
            out += [f"{prefix}{name}" for name in own]
        if len(set(out)) < len(out):
            raise ValueError(
                "output columns of different transformers have the same names; set "
                "verbose_feature_names_out=True"
            )
        return np.array(out, object)

    @property
    def passes_deltas(self) -> bool:
        """Whether all transformers pass changes on; others are refused by `fit`."""
        return True

    def _check_parameters(self) -> None:
        super()._check_parameters()
        parts = self.transformers
        is_list = isinstance(parts, list | tuple)
        if not is_list or not all(isinstance(p, list | tuple) and len(p) == 3 for p in parts):
            raise ValueError(
                f"transformers must be a list of (name, transformer, columns); got "
                f"{self.transformers!r}"
            )
        names = [name for name, _, _ in self.transformers]
        if not names or len(set(names)) < len(names) or any("__" in name for name in names):
            raise ValueError(
                f"names of transformers are {names}; expected at least one name, all distinct and "
                "without '__'"
            )
        named = [(name, step) for name, step, _ in self.transformers]
        for name, step in [*named, (_REMAINDER, self.remainder)]:
            if isinstance(step, str) and step in ("drop", "passthrough"):
                continue
            if isinstance(step, str) or not passes_deltas(step):
                kind = type(step).__name__
                raise CannotForgetError(
                    f"transformer {name!r} ({step!r}) cannot forget quickly: use a transformer of "
                    f"letheon.preprocessing, KeyedSample({kind}(...)), 'drop' or 'passthrough'"
                )

    def _count(self, source: RowSource, seed: int) -> tuple[Any, Any]:  # noqa: ARG002
        first = next(iter(source.blocks())).X
        parts = [
            self._fit_part(name, clone_with_seeds(step), columns, is_text, source)
            for name, step, columns, is_text in self._assign_columns(first)
        ]
        if not any(part.width for part in parts):
            raise ValueError("the transformers return no columns; select at least one column")
        return tuple(parts), None

    def _assign_columns(self, X: Table) -> list[tuple[str, Any, Columns, bool]]:
        """Return name, transformer and columns of each part that is not dropped."""
        n_columns, used, parts = X.shape[1], set[int](), []
        for name, step, columns in self.transformers:
            chosen, is_text = _resolve_columns(columns, X, name)
            used |= set(chosen)
            if chosen and step != "drop":
                parts.append((name, step, chosen, is_text))
        others = tuple(j for j in range(n_columns) if j not in used)
        if others and not (isinstance(self.remainder, str) and self.remainder == "drop"):
            parts.append((_REMAINDER, self.remainder, others, False))
        return parts

    def _fit_part(
        self, name: str, step: Any, columns: Columns, is_text: bool, source: RowSource
    ) -> ColumnPart:
        inner = as_delta_step(step)
        selected = source.through(_selector(columns, is_text))
        inner._fit_source(selected)
        published = inner.published_
        output = selected.through(lambda block: inner._transform_training(published, block))
        return ColumnPart(name, step, columns, is_text, count_columns(output))

    def _install(self, sums: Any, published: Any, seed: int, **more: Any) -> None:  # noqa: ARG002
        vars(self).update(parts_=sums, seed_=seed, **self._remember_settings(), **more)

    @property
    def published_(self) -> tuple[_PublishedPart, ...]:
        """Columns and published values of the transformers."""
        return tuple(
            _PublishedPart(part, as_delta_step(part.step).published_) for part in self.parts_
        )

    def _count_outputs(self, published: Any) -> int:
        return sum(view.part.width for view in published)

    def _transform_with(self, published: Any, X: Table) -> Table:
        return self._combine(
            as_delta_step(view.part.step)._transform_with(view.published, view.select(X))
            for view in published
        )

    def _transform_training(self, published: Any, block: Block) -> Table:
        return self._combine(
            as_delta_step(view.part.step)._transform_training(
                view.published, block.with_table(view.select(block.X))
            )
            for view in published
        )

    def _name_outputs(self, published: Any, names: list[str]) -> list[str] | None:
        out: list[str] = []
        for view in published:
            own = [names[j] for j in view.part.columns]
            named = name_outputs([as_delta_step(view.part.step)], [view.published], own)
            if named is None:
                return None
            out += [f"{view.part.name}__{name}" for name in named]
        return out

    def _combine(self, tables: Any) -> Table:
        return join_columns(list(tables), allow_sparse=self.sparse_threshold > 0)

    def _prepare_leaving(self, row: Block) -> StepPlan | None:
        plans = []
        for part in self.parts_:
            view = _selector(part.columns, part.is_text)
            plan = as_delta_step(part.step)._prepare_leaving(row.through(view))
            if plan is None:
                return None
            plans.append(plan)
        return StepPlan(
            published=self.published_, apply=partial(self._apply_parts, plans, self.parts_)
        )

    def _prepare_delta(self, delta: Delta) -> StepPlan:
        if delta.layout is not None:
            return self._rebuild_parts(delta)
        plans, views, columns, rows = [], [], [], []
        begin = 0
        for part in self.parts_:
            inner = as_delta_step(part.step)
            plan = prepare_step(inner, _select_delta(delta, part.columns, part.is_text))
            width = part.width if plan.layout is None else len(plan.layout)
            columns += [begin + j for j in plan.columns]
            rows += [] if plan.rows is None else [plan.rows]
            new = part if width == part.width else replace(part, width=width)
            views.append(_PublishedPart(new, plan.published))
            plans.append(plan)
            begin += width
        return StepPlan(
            published=tuple(views),
            apply=partial(self._apply_parts, plans, tuple(view.part for view in views)),
            columns=tuple(columns),
            layout=self._join_layouts(plans),
            rows=np.unique(np.concatenate(rows)) if rows else None,
            work=max(plan.work for plan in plans),
            rebuilt=sum_counts([plan.rebuilt for plan in plans]),
        )

    def _join_layouts(self, plans: list[StepPlan]) -> NDArray[np.int64] | None:
        """Return the layout of the whole output; None if no transformer moves its columns."""
        if all(plan.layout is None for plan in plans):
            return None
        layouts, begin = [], 0
        for part, plan in zip(self.parts_, plans, strict=True):
            layout = np.arange(part.width) if plan.layout is None else plan.layout
            layouts.append(np.where(layout < 0, -1, layout + begin))
            begin += part.width
        return np.concatenate(layouts).astype(np.int64)

    def _apply_parts(self, plans: list[StepPlan], parts: tuple[ColumnPart, ...]) -> None:
        for part, plan in zip(self.parts_, plans, strict=True):
            as_delta_step(part.step)._apply_plan(plan)
        self.parts_ = parts

    def _rebuild_parts(self, delta: Delta) -> StepPlan:
        """Return a plan that fits all transformers again: the columns of the input changed."""
        fresh = self._clone_unfitted()
        parts, _ = fresh._count(delta.source, self.seed_)
        fresh.parts_ = parts
        published = fresh.published_

        def apply() -> None:
            self.parts_ = parts

        width = self._count_outputs(published)
        return StepPlan(
            published=published,
            apply=apply,
            columns=tuple(range(width)),
            layout=np.full(width, -1, np.int64),
            work=1.0,
            rebuilt={"steps": len(parts)},
        )

    def _apply_plan(self, plan: StepPlan) -> None:
        plan.apply()

    def _require_same_parameters(self) -> None:
        super()._require_same_parameters()
        for part in self.parts_:
            if isinstance(part.step, ForgetMixin):
                part.step._require_same_parameters()

    def _clone_unfitted(self) -> Any:
        fitted = {part.name: part.step for part in self.parts_}
        steps = [
            (name, clone_unfitted(fitted[name]) if name in fitted else step, columns)
            for name, step, columns in self.transformers
        ]
        fresh = clone_step(self).set_params(transformers=steps)
        if _REMAINDER in fitted:
            fresh.remainder = clone_unfitted(fitted[_REMAINDER])
        return fresh


def _resolve_columns(columns: Any, X: Table, name: str) -> tuple[Columns, bool]:
    """Return the numbers of columns, and whether one column is selected as texts."""
    names = list(X.schema.names) if isinstance(X, Frame) else []
    n_columns = X.shape[1]
    if callable(columns):
        # On an empty table, so that the choice depends on names and types only.
        columns = columns(to_native(X.take(np.arange(0)) if isinstance(X, Frame) else X[:0]))
    is_text = isinstance(columns, str | int | np.integer)
    if isinstance(columns, slice):
        begin, end = (_place(edge, names, name) for edge in (columns.start, columns.stop))
        if isinstance(columns.stop, str):
            end = (end or 0) + 1  # as in pandas, the end of a slice of names is included
        return tuple(range(n_columns)[slice(begin, end, columns.step)]), False
    chosen = [columns] if is_text else list(columns)
    if chosen and all(isinstance(value, bool | np.bool_) for value in chosen):
        return tuple(np.flatnonzero(chosen).tolist()), False
    places = [_place(value, names, name) for value in chosen]
    if any(place is None or not -n_columns <= place < n_columns for place in places):
        raise ValueError(
            f"transformer {name!r} selects {chosen}; the table has {n_columns} columns"
        )
    return tuple(int(place) % n_columns for place in places if place is not None), is_text


def _place(column: Any, names: list[str], part: str) -> int | None:
    if isinstance(column, str):
        if column not in names:
            raise ValueError(
                f"transformer {part!r} selects the column {column!r}; the table has {names}"
            )
        return names.index(column)
    return None if column is None else int(column)


def select_columns(X: Table, columns: Columns, is_text: bool) -> Table:
    """Return some columns of a table, or one column of texts."""
    if isinstance(X, Frame):
        chosen = X.select(columns)
        if not is_text:
            return chosen
        texts = chosen.column_values(0) if chosen.codes.shape[1] else [None]
        if any(not isinstance(text, str) for text in texts):
            raise ValueError(
                f"column {chosen.schema.names[0]!r} has missing values or numbers; expected texts. "
                "Pass a list of names to select a table"
            )
        return np.array(texts, object)
    if columns == tuple(range(X.shape[1])):
        return X
    return X[:, list(columns)]


def _selector(columns: Columns, is_text: bool) -> Any:
    return lambda block: select_columns(block.X, columns, is_text)


def _select_delta(delta: Delta, columns: Columns, is_text: bool) -> Delta:
    """Return a change as the columns of one transformer see it."""
    view = _selector(columns, is_text)

    def select(block: Block | None) -> Any:
        return None if block is None else block.through(view)

    replaced = delta.replaced
    if replaced is not None:
        replaced = ReplacedRows(replaced.ranks, select(replaced.old), select(replaced.new))
    changed = set(delta.columns)
    before = delta.before.through(view)
    return Delta(
        removed=select(delta.removed),
        added=select(delta.added),
        replaced=replaced,
        columns=tuple(place for place, column in enumerate(columns) if column in changed)
        if changed
        else (),
        before=before,
        source=before if delta.source is delta.before else delta.source.through(view),
    )


def join_columns(tables: Sequence[Table], *, allow_sparse: bool) -> Table:
    """Return tables with the same rows side by side: sparse if one is, a `Frame` with texts."""
    if any(isinstance(table, Frame) and table.codes.shape[1] for table in tables):
        return _join_frames([_as_frame(table, place) for place, table in enumerate(tables)])
    if any(map(sp.issparse, tables)):
        if allow_sparse:
            parts = [t if sp.issparse(t) else sp.csr_array(numbers_of(t)) for t in tables]
            return sp.csr_array(sp.hstack(parts, format="csr"))
        tables = [table.toarray() if sp.issparse(table) else table for table in tables]
    numbers = [numbers_of(table) for table in tables]
    return numbers[0] if len(numbers) == 1 else np.concatenate(numbers, axis=1)


def _as_frame(table: Table, place: int) -> Frame:
    if isinstance(table, Frame):
        return table
    numbers = numbers_of(table.toarray() if sp.issparse(table) else table)
    names = tuple(f"part{place}_{j}" for j in range(numbers.shape[1]))
    schema = FrameSchema("array", names, ("float64",) * len(names), (True,) * len(names))
    return Frame(schema, numbers, np.empty((len(numbers), 0), np.int32), ())


def _join_frames(frames: list[Frame]) -> Frame:
    schemas = [frame.schema for frame in frames]
    backend = next(schema.backend for schema in schemas if not all(schema.is_number))
    names = [name for schema in schemas for name in schema.names]
    if len(set(names)) < len(names):  # a frame needs distinct names
        names = [f"x{j}" for j in range(len(names))]
    # Other libraries than pandas write "Float64" for the numbers that a transformer returns.
    is_pandas = backend in ("pandas", "array")
    schema = FrameSchema(
        backend,
        tuple(names),
        tuple(
            kind if is_pandas or schema.backend != "array" else kind.capitalize()
            for schema in schemas
            for kind in schema.kinds
        ),
        tuple(is_number for schema in schemas for is_number in schema.is_number),
    )
    return Frame(
        schema,
        np.concatenate([frame.numbers for frame in frames], axis=1),
        np.concatenate([frame.codes for frame in frames], axis=1),
        tuple(values for frame in frames for values in frame.values),
    )
