"""`SimpleImputer`: missing values are replaced by statistics that rarely change."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import OneToOneFeatureMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from letheon.data import Frame, FrameSchema
from letheon.delta import Block, Delta, RowSource, StableTransformer, StepPlan, Table
from letheon.guarantee import MethodFacts
from letheon.preprocessing._categories import (
    CategoryCounts,
    Counts,
    Key,
    category_array,
    column_kinds,
    find_missing,
    sort_keys,
    to_categories_table,
)
from letheon.preprocessing._facts import make_facts
from letheon.preprocessing._quantiles import QuantileRule, QuantileSums
from letheon.preprocessing._scale import count_sums, read_numbers, to_numbers, update_sums
from letheon.sums import ColumnSums, round_location_scale
from letheon.validation import Boolean, OneOf, Rules, is_number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Values = tuple[Key, ...]
Apply = Callable[[], None]

# Means and medians are rounded to a power of two near 2**-3 of the deviation or the IQR.
_STEP_BITS = 3
_MEDIAN = QuantileRule((Fraction(1, 2),), step_bits=_STEP_BITS)
_MISSING_TEXT = "missing_value"
# Up to this share of the rows, changed rows are listed; otherwise the whole column changes.
_FEW = 8


class Statistics(NamedTuple):
    """One value for each column, None without values, and the numbers of rows without a value."""

    values: Values
    n_missing: Ints
    n_rows: int


class StatisticsChange(NamedTuple):
    """Statistics after a change, and what writes the sums."""

    statistics: Statistics
    apply: Apply


@dataclass(eq=False)
class MeanSums:
    """Exact sums, for means."""

    n_rows: int
    sums: ColumnSums

    @classmethod
    def from_source(cls, source: RowSource, seed: int) -> Self:  # noqa: ARG003
        """Add all rows."""
        return cls(source.n_rows, count_sums(source))

    def publish(self, seed: int) -> Statistics:
        """Return the rounded means."""
        return _publish_means(self.sums, self.n_rows, seed)

    def prepare(self, delta: Delta, seed: int) -> StatisticsChange:
        """Return the rounded means after a change."""
        sums, n_rows = update_sums(self.sums, delta), delta.source.n_rows
        apply = partial(self._replace, sums, n_rows)
        return StatisticsChange(_publish_means(sums, n_rows, seed), apply)

    def prepare_leaving(self, X: Table, old: Values, seed: int) -> Apply | None:
        """Return what subtracts a row, or None if a value differs from the `old` ones."""
        sums, n_rows = self.sums.copy(), self.n_rows - 1
        sums.subtract(read_numbers(X))
        if _publish_means(sums, n_rows, seed).values != old:
            return None
        return partial(self._replace, sums, n_rows)

    def _replace(self, sums: ColumnSums, n_rows: int) -> None:
        self.sums, self.n_rows = sums, n_rows


def _publish_means(sums: ColumnSums, n_rows: int, seed: int) -> Statistics:
    counts = sums.counts
    centre = round_location_scale(sums, seed, centre_bits=_STEP_BITS).centre
    return Statistics(_list_values(centre, counts), n_rows - counts, n_rows)


def _list_values(numbers: Floats, counts: Ints) -> Values:
    if counts.all():
        return tuple(numbers.tolist())
    pairs = zip(numbers.tolist(), counts.tolist(), strict=True)
    return tuple(number if count else None for number, count in pairs)


@dataclass(eq=False)
class MedianSums:
    """Counts of rounded values, for medians."""

    n_rows: int
    sums: QuantileSums

    @classmethod
    def from_source(cls, source: RowSource, seed: int) -> Self:
        """Count all rows."""
        return cls(source.n_rows, QuantileSums.from_source(source, read_numbers, _MEDIAN, seed))

    def publish(self, seed: int) -> Statistics:  # noqa: ARG002
        """Return the rounded medians."""
        values = self.sums.compute(_MEDIAN.fractions).values[0]
        return _make_statistics(values, self.sums.n_values, self.n_rows)

    def prepare(self, delta: Delta, seed: int) -> StatisticsChange | None:
        """Return the rounded medians after a change, or None to count again."""
        change = self.sums.prepare(delta, read_numbers, _MEDIAN, seed) if delta.only_rows else None
        if change is None:
            return None
        n_rows = delta.source.n_rows

        def apply() -> None:
            self.sums.apply(change)
            self.n_rows = n_rows

        values = change.quantiles.values[0]
        return StatisticsChange(_make_statistics(values, change.n_values, n_rows), apply)

    def __copy__(self) -> Self:
        return type(self)(self.n_rows, copy(self.sums))


def _make_statistics(values: Floats, counts: Ints, n_rows: int) -> Statistics:
    return Statistics(_list_values(values, counts), n_rows - counts, n_rows)


@dataclass(eq=False)
class ModeSums:
    """Counts of categories, for most frequent values.

    `others` has an upper bound on the counts of all other values of each column. It is a cache:
    while the count of the most frequent value is above it, nothing else has to be compared.
    """

    counts: CategoryCounts
    values: list[Key] | None = None
    others: list[int] | None = None

    @classmethod
    def from_source(cls, source: RowSource, seed: int) -> Self:  # noqa: ARG003
        """Count all rows."""
        return cls(CategoryCounts.from_source(source))

    def publish(self, seed: int) -> Statistics:  # noqa: ARG002
        """Return the most frequent values."""
        values, _ = self._fill_cache()
        n_missing = [known.get(None, 0) for known in self.counts.counts]
        return Statistics(tuple(values), np.array(n_missing, np.int64), self.counts.n_rows)

    def _fill_cache(self) -> tuple[list[Key], list[int]]:
        if self.values is None or self.others is None:
            pairs = [_find_mode(*part) for part in zip(self.counts.counts, self.counts.kinds)]  # noqa: B905
            self.values, self.others = [key for key, _ in pairs], [count for _, count in pairs]
        return self.values, self.others

    def prepare(self, delta: Delta, seed: int) -> StatisticsChange | None:  # noqa: ARG002
        """Return the most frequent values after a change, or None to count again."""
        if not delta.only_rows:
            return None
        counts = self.counts
        n_rows, changes = counts.compare(delta)
        values, others = self._fill_cache()
        unclear = {
            column
            for column, key, old, new in changes
            if key is not None and (new > old or (new <= others[column] and key == values[column]))
        }
        n_missing = np.array([known.get(None, 0) for known in counts.counts], np.int64)
        for column, key, _, new in changes:
            if key is None:
                n_missing[column] = new
        if unclear:
            values, others = list(values), list(others)
        for column in unclear:
            own = [change for change in changes if change[0] == column]
            after = dict(counts.counts[column]) | {key: new for _, key, _, new in own}
            values[column], others[column] = _find_mode(after, counts.kinds[column])

        def apply() -> None:
            counts.apply(n_rows, changes, {})
            self.values, self.others = values, others

        return StatisticsChange(Statistics(tuple(values), n_missing, n_rows), apply)

    def prepare_leaving(self, X: Table, old: Values, seed: int) -> Apply | None:  # noqa: ARG002
        """Return what subtracts a row, or None if a value may differ from the `old` ones."""
        _, others = self._fill_cache()
        row, numbers = self.counts.count_row(X)
        if 1 in numbers:
            return None
        places = zip(row, old, numbers, others, strict=True)
        if any(key == mode and number - 1 <= other for key, mode, number, other in places):
            return None
        return partial(self.counts.subtract_row, row, numbers)

    def __copy__(self) -> Self:
        return type(self)(copy(self.counts))

    def _to_state(self) -> dict[str, Any]:
        return {"counts": self.counts}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        return cls(state["counts"])

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        """Pickle the canonical state."""
        return type(self)._from_state, (self._to_state(),)


def _find_mode(counts: Counts, kind: str) -> tuple[Key, int]:
    """Return the most frequent value, the smallest one of several, and the next count."""
    present = {key: count for key, count in counts.items() if key is not None and count}
    if not present:
        return None, 0
    most = max(present.values())
    best = [key for key, count in present.items() if count == most]
    mode = sort_keys(best, "a column")[0]
    if kind != "text" and mode is not None:
        mode = float(mode)
    if len(best) > 1:
        return mode, most
    return mode, max((count for key, count in present.items() if key != mode), default=0)


@dataclass(eq=False)
class MissingCounts:
    """Numbers of missing values, for constants."""

    n_rows: int
    n_missing: Ints

    @classmethod
    def from_source(cls, source: RowSource, seed: int) -> Self:  # noqa: ARG003
        """Count all rows."""
        parts = [find_missing(block.X).sum(axis=0) for block in source.blocks()]
        return cls(source.n_rows, np.sum(parts, axis=0, dtype=np.int64))

    def publish(self, seed: int) -> Statistics:  # noqa: ARG002
        """Return 0 for columns with values; the constant replaces it."""
        values = tuple(0.0 if n < self.n_rows else None for n in self.n_missing.tolist())
        return Statistics(values, self.n_missing, self.n_rows)

    def prepare(self, delta: Delta, seed: int) -> StatisticsChange | None:
        """Return the numbers after a change, or None to count again."""
        if not delta.only_rows:
            return None
        after = MissingCounts(delta.source.n_rows, self.n_missing.copy())
        for sign, block in delta.iter_signed():
            after.n_missing += sign * find_missing(block.X).sum(axis=0)

        def apply() -> None:
            self.n_rows, self.n_missing = after.n_rows, after.n_missing

        return StatisticsChange(after.publish(seed), apply)


@dataclass(frozen=True)
class FillValues:
    """Published values of an imputer.

    Attributes
    ----------
    kinds : tuple of str
        Kind of each column.
    statistics : tuple
        Value of each column; None without values.
    kept : tuple of int
        Columns of the output.
    fills : tuple
        What replaces missing values in each of them.
    indicated : tuple of int
        Columns with a column of the output that shows missing values.
    """

    kinds: tuple[str, ...]
    statistics: Values
    kept: tuple[int, ...]
    fills: Values
    indicated: tuple[int, ...]

    @property
    def fills_by_kind(self) -> tuple[list[Any], list[Any]]:
        """What replaces missing values in the columns of numbers, and in those of texts."""
        parts: tuple[list[Any], list[Any]] = [], []
        for column, fill in zip(self.kept, self.fills, strict=True):
            parts[self.kinds[column] == "text"].append(fill)
        return parts

    @property
    def outputs(self) -> list[tuple[str, int]]:
        """Kind and input column of each output column."""
        return [("value", j) for j in self.kept] + [("missing", j) for j in self.indicated]


class SimpleImputer(OneToOneFeatureMixin, StableTransformer):
    """Replace missing values by a statistic of their column, with the parameters of scikit-learn.

    Parameters
    ----------
    missing_values : nan, default=nan
        Only NaN, None and the missing values of data frames are supported.
    strategy : {"mean", "median", "most_frequent", "constant"}, default="mean"
        The statistic; texts need one of the last two.
    fill_value : str, number or None, default=None
        The value for ``strategy="constant"``; None: 0 in columns of numbers, ``"missing_value"`` in
        other columns.
    add_indicator : bool, default=False
        Whether a column of 0 and 1 is added for each column with missing values.
    keep_empty_features : bool, default=False
        Whether columns without values are kept; they are filled with `fill_value` or its default.
    random_state : int, RandomState, Generator or None, default=None
        Source of the seed, which decides how means and medians are rounded.

    Attributes
    ----------
    statistics_ : ndarray of shape (n_features,)
        Value that replaces missing ones in each column; NaN without values.
    n_features_in_ : int
        Number of input columns.

    Notes
    -----
    Differences from scikit-learn: means are rounded to a power of two near 1/8 of the standard
    deviation, medians to one near 1/8 of the interquartile range, so that a removal changes them
    with probability about 8 / n per column for n rows. The most frequent value is exact; of
    several, the smallest. A data frame with texts stays a data frame. Sparse tables are not
    supported.

    Guarantee: exact. Sums and counts are integers.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.preprocessing import SimpleImputer
    >>> model = SimpleImputer(strategy="most_frequent")
    >>> model = model.fit([[1.0], [1.0], [2.0], [np.nan]], ids=["a", "b", "c", "d"])
    >>> model.transform([[np.nan]]).tolist()
    [[1.0]]
    >>> model.forget(["a", "b"]).n_rows
    2
    >>> model.transform([[np.nan]]).tolist()
    [[2.0]]
    """

    published_: FillValues
    facts: ClassVar[MethodFacts] = make_facts("replacement of missing values")
    _input_tags = ("allow_nan",)
    _parameter_rules: ClassVar[Rules] = {
        "strategy": OneOf(("mean", "median", "most_frequent", "constant")),
        "add_indicator": Boolean(),
        "keep_empty_features": Boolean(),
    }

    def __init__(
        self,
        *,
        missing_values: Any = np.nan,
        strategy: str = "mean",
        fill_value: Any = None,
        add_indicator: bool = False,
        keep_empty_features: bool = False,
        random_state: Any = None,
    ) -> None:
        self.missing_values = missing_values
        self.strategy = strategy
        self.fill_value = fill_value
        self.add_indicator = add_indicator
        self.keep_empty_features = keep_empty_features
        self.random_state = random_state

    def _check_parameters(self) -> None:
        super()._check_parameters()
        missing = self.missing_values
        if is_number(missing) or isinstance(missing, str):
            raise ValueError(
                f"missing_values={missing!r}; expected nan. Replace the value by NaN first"
            )

    @property
    def _is_numeric(self) -> bool:
        return self.strategy in ("mean", "median")

    def _convert_table(self, X: Any, *, copy: bool) -> Table:
        if not self._is_numeric:
            table = to_categories_table(X, copy=copy)
            return table if isinstance(table, Frame) else table.astype(np.float64, copy=False)
        try:
            table = to_numbers(X, copy=copy)
        except ValueError as error:
            if "could not convert" not in str(error):
                raise
            raise ValueError(
                f"Cannot use {self.strategy} strategy with non-numeric data:\n{error}"
            ) from error
        if not isinstance(table, np.ndarray):
            raise TypeError("Sparse data was passed for X, but dense data is required")
        return table

    def _count(self, source: RowSource, seed: int) -> tuple[Any, FillValues]:
        sums = _SUMS[self.strategy].from_source(source, seed)
        kinds = column_kinds(next(iter(source.blocks())).X)
        return sums, self._publish(sums.publish(seed), kinds)

    def _publish(self, statistics: Statistics, kinds: tuple[str, ...]) -> FillValues:
        values = statistics.values
        is_constant = self.strategy == "constant"
        constants = tuple(self._constant(k) if is_constant else _default_fill(k) for k in kinds)
        if is_constant:
            values = tuple(None if v is None else constants[j] for j, v in enumerate(values))
        kept = [j for j, v in enumerate(values) if self.keep_empty_features or v is not None]
        fills = [constants[j] if values[j] is None else values[j] for j in kept]
        shown = np.flatnonzero(statistics.n_missing).tolist() if self.add_indicator else ()
        return FillValues(kinds, values, tuple(kept), tuple(fills), tuple(shown))

    def _constant(self, kind: str) -> Key:
        fill: Key = self.fill_value
        if fill is None:
            return _default_fill(kind)
        if isinstance(fill, np.generic):
            fill = fill.item()
        if kind != "text" and not is_number(fill):
            raise ValueError(f"fill_value={fill!r} for a column of numbers; expected a number")
        return fill if kind == "text" or fill is None else float(fill)

    def _prepare_leaving(self, row: Block) -> StepPlan | None:
        old, prepare = self.published_, getattr(self.sums_, "prepare_leaving", None)
        if self.add_indicator or prepare is None:
            return None
        apply = prepare(row.X, old.statistics, self.seed_)
        return None if apply is None else StepPlan(published=old, apply=apply)

    def _prepare_delta(self, delta: Delta) -> StepPlan:
        change = self.sums_.prepare(delta, self.seed_) if delta.layout is None else None
        if change is None:
            return self._recount(delta)
        old, statistics = self.published_, change.statistics
        if delta.only_rows and not self._differs(statistics):
            return StepPlan(published=old, apply=change.apply)
        published = self._publish(statistics, old.kinds)
        return self._plan(delta, published, statistics, change.apply, 0.0)

    def _differs(self, statistics: Statistics) -> bool:
        """Return whether the published values change."""
        old, values = self.published_, statistics.values
        if self.strategy == "constant":
            is_same = all((a is None) == (b is None) for a, b in zip(values, old.statistics))  # noqa: B905
        else:
            is_same = values == old.statistics
        if not (is_same and self.add_indicator):
            return not is_same
        return tuple(np.flatnonzero(statistics.n_missing).tolist()) != old.indicated

    def _recount(self, delta: Delta) -> StepPlan:
        if delta.layout is not None:
            return self._rebuild_plan(delta)
        sums, published = self._count(delta.source, self.seed_)
        statistics = sums.publish(self.seed_)
        return self._plan(delta, published, statistics, self._replace_sums(sums), 1.0)

    def _plan(
        self, delta: Delta, new: FillValues, statistics: Statistics, apply: Apply, work: float
    ) -> StepPlan:
        """Return the plan for new published values."""
        old = self.published_
        if new == old:
            new = old
        fills, before = (dict(zip(p.kept, p.fills, strict=True)) for p in (new, old))
        moved = [
            j for j in new.kept if j in before and fills[j] != before[j] and statistics.n_missing[j]
        ]
        n_changed = int(statistics.n_missing[moved].sum())
        is_few = n_changed * _FEW <= statistics.n_rows
        changed = {*delta.columns, *(() if is_few else moved)}
        columns = tuple(k for k, (_, j) in enumerate(new.outputs) if j in changed)
        layout = None
        if new.outputs != old.outputs:
            numbers = {output: place for place, output in enumerate(old.outputs)}
            layout = np.array([numbers.get(output, -1) for output in new.outputs], np.int64)
        rows = _find_rows(delta, moved) if is_few and moved else None
        return StepPlan(
            published=new, apply=apply, columns=columns, layout=layout, rows=rows, work=work
        )

    def _count_outputs(self, published: FillValues) -> int:
        return len(published.outputs)

    def _transform_with(self, published: FillValues, X: Table) -> Table:
        if isinstance(X, Frame) and X.codes.shape[1]:
            if self._is_numeric:
                return self._fill_numbers(published, read_numbers(X))
            return _fill_frame(published, X)
        return self._fill_numbers(published, read_numbers(X))

    def _fill_numbers(self, published: FillValues, X: Floats) -> Floats:
        is_missing = np.isnan(X)
        kept = list(published.kept)
        table = X[:, kept] if len(kept) < X.shape[1] else X
        fills = np.array(published.fills, np.float64)
        filled = np.where(np.isnan(table), fills, table)
        if not published.indicated:
            return filled
        return np.hstack([filled, is_missing[:, list(published.indicated)]])

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the output columns."""
        names = super().get_feature_names_out(input_features)
        prefixes = {"value": "", "missing": "missingindicator_"}
        outputs = self.published_.outputs
        return np.array([f"{prefixes[kind]}{names[j]}" for kind, j in outputs], object)

    @property
    def statistics_(self) -> NDArray[Any]:
        """Value that replaces missing ones in each column; NaN without values."""
        check_is_fitted(self)
        published = self.published_
        kind = "text" if "text" in published.kinds else "number"
        return category_array(published.statistics, kind)

    def __sklearn_tags__(self) -> Tags:
        """Return scikit-learn's tags."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = not self._is_numeric
        return tags


_SUMS: dict[str, Any] = {
    "mean": MeanSums,
    "median": MedianSums,
    "most_frequent": ModeSums,
    "constant": MissingCounts,
}


def _default_fill(kind: str) -> Key:
    return _MISSING_TEXT if kind == "text" else 0.0


def _find_rows(delta: Delta, columns: list[int]) -> Ints:
    """Return the ranks of remaining rows with a missing value in one of the columns."""
    n_added = 0 if delta.added is None else delta.added.n_rows
    parts = [find_missing(block.X)[:, columns].any(axis=1) for block in delta.source.blocks()]
    is_missing = np.concatenate(parts)
    return np.flatnonzero(is_missing[: len(is_missing) - n_added])


def _fill_frame(published: FillValues, X: Frame) -> Frame:
    """Return a frame without missing values, and with the indicators as numbers."""
    frame = X.select(published.kept)
    number_fills, text_fills = published.fills_by_kind
    numbers, codes, values = frame.numbers, frame.codes, frame.values
    if number_fills:
        numbers = np.where(np.isnan(numbers), np.array(number_fills), numbers)
    is_missing = codes < 0
    if is_missing.any():
        known, codes = list(values), codes.copy()
        for k in np.flatnonzero(is_missing.any(axis=0)).tolist():
            if text_fills[k] not in known[k]:
                known[k] = [*known[k], text_fills[k]]
            codes[is_missing[:, k], k] = known[k].index(text_fills[k])
        values = tuple(known)
    if not published.indicated:
        return Frame(frame.schema, numbers, codes, values)
    shown = find_missing(X)[:, list(published.indicated)]
    return Frame(_make_schema(published, X.schema), np.hstack([numbers, shown]), codes, values)


def _make_schema(published: FillValues, schema: FrameSchema) -> FrameSchema:
    kept, shown = published.kept, published.indicated
    selected = schema.select(kept).schema
    number = "Float64" if schema.backend not in ("pandas", "array") else "float64"
    return FrameSchema(
        schema.backend,
        (*selected.names, *(f"missingindicator_{schema.names[j]}" for j in shown)),
        (*selected.kinds, *(number for _ in shown)),
        (*selected.is_number, *(True for _ in shown)),
    )
