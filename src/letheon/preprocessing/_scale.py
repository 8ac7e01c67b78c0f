"""Scalers that forget: exact sums or counts, published as rounded centres and scales."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import OneToOneFeatureMixin
from sklearn.utils import Tags, assert_all_finite
from sklearn.utils.validation import check_is_fitted

from letheon.data import as_table, numbers_of
from letheon.delta import Block, Delta, RowSource, StableTransformer, StepPlan, Table
from letheon.guarantee import MethodFacts
from letheon.preprocessing._facts import make_facts
from letheon.preprocessing._quantiles import QuantileRule, QuantileSums
from letheon.seeds import Purpose
from letheon.sums import (
    ColumnSums,
    keyed_dither,
    round_exponents,
    round_location_scale,
    round_values,
)
from letheon.validation import Boolean, Rules, is_number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Values of a sparse table that are written out at once.
_DENSE_SIZE = 1 << 22


def to_numbers(X: Any, *, copy: bool) -> Table:
    """Return X as a float64 array or CSR array; refuse infinity and values that are not numbers."""
    if isinstance(X, np.ndarray) and X.dtype.kind == "O":
        X = X.astype(np.float64)
    table = as_table(X, copy=copy)
    if sp.issparse(table):
        assert_all_finite(table.data, allow_nan=True, input_name="X")
        return table
    if isinstance(table, np.ndarray) and table.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {table.ndim}D array instead. Reshape your data, for example "
            "with X.reshape(-1, 1)"
        )
    numbers = read_numbers(table)
    assert_all_finite(numbers, allow_nan=True, input_name="X")
    return numbers


def read_numbers(X: Table) -> Floats:
    """Return a dense table as a float64 matrix in C order."""
    return np.ascontiguousarray(numbers_of(X))


def iter_numbers(X: Table) -> Iterator[Floats]:
    """Iterate over the rows as float64 matrices in C order; a sparse table in parts."""
    if not sp.issparse(X):
        yield read_numbers(X)
        return
    n_rows = max(1, _DENSE_SIZE // max(1, X.shape[1]))
    for begin in range(0, X.shape[0], n_rows):
        yield X[begin : begin + n_rows].toarray()


def count_sums(source: RowSource) -> ColumnSums:
    """Return the exact sums of all rows."""
    sums: ColumnSums | None = None
    for block in source.blocks():
        sums = sums or ColumnSums(int(block.X.shape[1]))
        for part in iter_numbers(block.X):
            sums.add(part)
    assert sums is not None
    return sums


def find_stale(delta: Delta) -> Ints:
    """Return the columns that must be counted again: changed or new ones, in new numbering."""
    if delta.only_rows:
        return np.empty(0, np.int64)
    new = () if delta.layout is None else np.flatnonzero(delta.layout < 0)
    return np.union1d(np.array(delta.columns, np.int64), np.array(new, np.int64))


def subtract_rows(sums: ColumnSums, *tables: Table) -> ColumnSums:
    """Return the sums without some rows, in new memory."""
    after = sums.copy()
    for table in tables:
        for part in iter_numbers(table):
            after.subtract(part)
    return after


def update_sums(sums: ColumnSums, delta: Delta) -> ColumnSums:
    """Return the sums after a change, in new memory."""
    stale = find_stale(delta)
    leaving = (delta.removed, None if delta.replaced is None else delta.replaced.old)
    after = subtract_rows(sums, *(block.X for block in leaving if block is not None))
    if delta.layout is not None or len(stale):
        layout = np.arange(sums.n_columns) if delta.layout is None else delta.layout.copy()
        layout[stale] = -1
        after = after.select(layout)
    for block in (delta.added, None if delta.replaced is None else delta.replaced.new):
        for part in () if block is None else iter_numbers(block.X):
            after.add(_without_columns(part, stale))
    if len(stale):
        others = np.setdiff1d(np.arange(after.n_columns), stale)
        for block in delta.source.blocks():
            for part in iter_numbers(block.X):
                after.add(_without_columns(part, others))
    return after


def _without_columns(X: Floats, columns: Ints) -> Floats:
    """Return rows with some columns missing."""
    if len(columns) == 0:
        return X
    part = X.copy()
    part[:, columns] = np.nan
    return part


@dataclass(frozen=True, eq=False)
class Scaling:
    """Published centre and scale of each column."""

    centre: Floats
    scale: Floats

    def compare(self, old: "Scaling", layout: Ints | None) -> Ints:
        """Return the columns whose values differ from those of another scaling."""
        places = np.arange(len(old.centre)) if layout is None else layout
        is_same = (self.centre == old.centre[places]) & (self.scale == old.scale[places])
        return np.flatnonzero(~is_same | (places < 0))


class _Scaler(OneToOneFeatureMixin, StableTransformer):
    """Base class of scalers: subtract a centre and divide by a scale."""

    published_: Scaling
    facts: ClassVar[MethodFacts] = make_facts("scaling of columns")
    _input_tags = ("allow_nan",)

    def _convert_table(self, X: Any, *, copy: bool) -> Table:
        table = to_numbers(X, copy=copy)
        self._require_dense(table)
        return table

    def _require_dense(self, X: Table) -> None:
        if sp.issparse(X) and self._has_centre:
            raise ValueError(
                f"Cannot center sparse matrices: pass `{self._centre_parameter}=False` instead"
            )

    @property
    def _has_centre(self) -> bool:
        return bool(getattr(self, self._centre_parameter))

    _centre_parameter: ClassVar[str]

    def _count_outputs(self, published: Scaling) -> int:
        return len(published.centre)

    def _plan(self, delta: Delta, published: Scaling, apply: Any, work: float) -> StepPlan:
        """Return the plan for new published values."""
        changed = published.compare(self.published_, delta.layout)
        if delta.layout is None and not len(changed):
            published = self.published_
        columns = tuple(sorted({*changed.tolist(), *find_stale(delta).tolist()}))
        return StepPlan(
            published=published, apply=apply, columns=columns, layout=delta.layout, work=work
        )

    def _transform_with(self, published: Scaling, X: Table) -> Table:
        self._require_dense(X)
        if sp.issparse(X):
            data = X.data / published.scale[X.indices] + 0.0
            table = sp.csr_array((data, X.indices, X.indptr), shape=X.shape)
            table.has_canonical_format = True
            return table
        scaled: Floats = read_numbers(X) - published.centre
        scaled /= published.scale
        scaled += 0.0  # tables have no -0.0
        return scaled

    def inverse_transform(self, X: Any) -> Any:
        """Return rows in the original units: times the scale, plus the centre."""
        check_is_fitted(self)
        table = to_numbers(X, copy=False)
        self._require_dense(table)
        published = self.published_
        if sp.issparse(table):
            data = table.data * published.scale[table.indices]
            return sp.csr_array((data, table.indices, table.indptr), shape=table.shape)
        return table * published.scale + published.centre

    @property
    def scale_(self) -> Floats:
        """Scale of each column; 1 without scaling."""
        check_is_fitted(self)
        return self.published_.scale.copy()

    def __sklearn_tags__(self) -> Tags:
        """Return scikit-learn's tags."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = not self._has_centre
        return tags


class StandardScaler(_Scaler):
    """Scaler that subtracts the mean and divides by the standard deviation, both rounded.

    Parameters
    ----------
    with_mean : bool, default=True
        Whether to subtract the centre; must be False for sparse tables.
    with_std : bool, default=True
        Whether to divide by the scale.
    random_state : int, RandomState, Generator or None, default=None
        Source of the seed, which decides how statistics are rounded.

    Attributes
    ----------
    mean_ : ndarray of shape (n_features,) or None
        Centre of each column: a multiple of the scale that is less than one scale away from the
        mean. The value itself in a constant column.
    scale_ : ndarray of shape (n_features,)
        Scale of each column: a power of two between half and twice the standard deviation; 1 in a
        constant column.
    n_samples_seen_ : ndarray of shape (n_features,)
        Number of values in each column that are not missing.
    n_features_in_ : int
        Number of columns.

    Notes
    -----
    scikit-learn publishes the mean and the deviation themselves; every removal changes them, and so
    every row of the output. Rounded values change with probability about 1.5 / n per column for n
    rows. Columns then have a mean between -1 and 1 and a deviation between 0.5 and 2, which is all
    that models need. NaN is skipped and stays NaN.

    Guarantee: exact. Sums and sums of squares are integers.

    Examples
    --------
    >>> from letheon.preprocessing import StandardScaler
    >>> model = StandardScaler(random_state=0).fit([[1.0], [2.0], [6.0]], ids=["a", "b", "c"])
    >>> model.mean_.tolist(), model.scale_.tolist()
    ([4.0], [4.0])
    >>> model.transform([[6.0]]).tolist()
    [[0.5]]
    >>> model.forget(["c"]).n_rows
    1
    """

    sums_: ColumnSums
    _centre_parameter = "with_mean"
    _parameter_rules: ClassVar[Rules] = {"with_mean": Boolean(), "with_std": Boolean()}

    def __init__(
        self, *, with_mean: bool = True, with_std: bool = True, random_state: Any = None
    ) -> None:
        self.with_mean = with_mean
        self.with_std = with_std
        self.random_state = random_state

    def _count(self, source: RowSource, seed: int) -> tuple[ColumnSums, Scaling]:
        sums = count_sums(source)
        return sums, self._publish(sums, seed)

    def _publish(self, sums: ColumnSums, seed: int) -> Scaling:
        centre, scale = round_location_scale(sums, seed)
        return Scaling(
            centre if self.with_mean else np.zeros_like(centre),
            scale if self.with_std else np.ones_like(scale),
        )

    def _prepare_leaving(self, row: Block) -> StepPlan | None:
        sums, old = subtract_rows(self.sums_, row.X), self.published_
        if len(self._publish(sums, self.seed_).compare(old, None)):
            return None
        return StepPlan(published=old, apply=self._replace_sums(sums))

    def _prepare_delta(self, delta: Delta) -> StepPlan:
        sums = update_sums(self.sums_, delta)
        work = len(find_stale(delta)) / max(1, sums.n_columns)
        published = self._publish(sums, self.seed_)
        return self._plan(delta, published, self._replace_sums(sums), work)

    @property
    def mean_(self) -> Floats | None:
        """Centre of each column."""
        check_is_fitted(self)
        return self.published_.centre.copy() if self.with_mean else None

    @property
    def var_(self) -> Floats:
        """Square of the scale of each column."""
        return self.scale_**2

    @property
    def n_samples_seen_(self) -> Ints:
        """Number of values in each column that are not missing."""
        check_is_fitted(self)
        return self.sums_.counts


@lru_cache
def _make_rule(begin: float, end: float) -> QuantileRule:
    """Return the rule for two quantiles, in percent, and the median."""
    low, high = (Fraction(repr(float(percent))) / 100 for percent in (begin, end))
    return QuantileRule((low, Fraction(1, 2), high), low, high)


class RobustScaler(_Scaler):
    """Scaler that subtracts the median and divides by the distance of two quantiles, both rounded.

    Parameters
    ----------
    with_centering : bool, default=True
        Whether to subtract the median.
    with_scaling : bool, default=True
        Whether to divide by the distance of the quantiles.
    quantile_range : tuple of two floats, default=(25.0, 75.0)
        The quantiles, in percent.
    random_state : int, RandomState, Generator or None, default=None
        Source of the seed, which decides how statistics are rounded.

    Attributes
    ----------
    center_ : ndarray of shape (n_features,) or None
        Centre of each column: a multiple of the scale that is about one scale or less away from
        the median. The median itself if the scale is 1 because the quantiles are equal.
    scale_ : ndarray of shape (n_features,)
        Scale of each column: a power of two between half and twice the distance of the quantiles;
        1 if they are equal.
    n_features_in_ : int
        Number of columns.

    Notes
    -----
    Differences from scikit-learn: the quantiles are rounded to 1/64 of their distance, on a grid
    that follows from about 1,023 people drawn with the seed. Centre and scale are then rounded
    again, as in `StandardScaler`, so that they rarely change. ``unit_variance`` and sparse tables
    are not supported. NaN is skipped and stays NaN.

    Guarantee: exact. Values are counted on a grid.

    Examples
    --------
    >>> from letheon.preprocessing import RobustScaler
    >>> model = RobustScaler(random_state=0).fit([[1.0], [2.0], [3.0], [4.0], [1e300]])
    >>> model.center_.tolist(), model.scale_.tolist()
    ([4.0], [2.0])
    """

    sums_: QuantileSums
    _centre_parameter = "with_centering"
    _parameter_rules: ClassVar[Rules] = {"with_centering": Boolean(), "with_scaling": Boolean()}

    def __init__(
        self,
        *,
        with_centering: bool = True,
        with_scaling: bool = True,
        quantile_range: tuple[float, float] = (25.0, 75.0),
        random_state: Any = None,
    ) -> None:
        self.with_centering = with_centering
        self.with_scaling = with_scaling
        self.quantile_range = quantile_range
        self.random_state = random_state

    def _check_parameters(self) -> None:
        super()._check_parameters()
        ends = self.quantile_range
        is_pair = isinstance(ends, tuple | list) and len(ends) == 2 and all(map(is_number, ends))
        if not (is_pair and 0 <= ends[0] < ends[1] <= 100):
            raise ValueError(
                f"Invalid quantile range: quantile_range={ends!r}; expected two increasing numbers "
                "from 0 to 100"
            )

    def _require_dense(self, X: Table) -> None:
        if sp.issparse(X):
            raise TypeError("Sparse data was passed for X, but dense data is required")

    @property
    def _rule(self) -> QuantileRule:
        return _make_rule(*self.quantile_range)

    def _count(self, source: RowSource, seed: int) -> tuple[QuantileSums, Scaling]:
        sums = QuantileSums.from_source(source, read_numbers, self._rule, seed)
        return sums, self._publish(sums.compute(self._rule.fractions).values, seed)

    def _publish(self, quantiles: Floats, seed: int) -> Scaling:
        low, middle, high = quantiles
        distance = np.minimum(high - low, np.finfo(np.float64).max)
        has_distance = distance > 0
        exponents = round_exponents(
            np.where(has_distance, distance, 1.0),
            keyed_dither(seed, Purpose.ROUND_SCALE, len(low)),
        )
        exponents = np.clip(exponents, -1022, 1022)
        dithers = keyed_dither(seed, Purpose.ROUND_CENTRE, len(low))
        centre = np.where(has_distance, round_values(middle, exponents, dithers), middle)
        scale = np.where(has_distance, np.ldexp(1.0, exponents), 1.0)
        return Scaling(
            np.where(np.isnan(middle) | (not self.with_centering), 0.0, centre),
            scale if self.with_scaling else np.ones_like(scale),
        )

    def _prepare_delta(self, delta: Delta) -> StepPlan:
        sums, seed = self.sums_, self.seed_
        change = sums.prepare(delta, read_numbers, self._rule, seed) if delta.only_rows else None
        if change is None:
            counted, published = self._count(delta.source, seed)
            return self._plan(delta, published, self._replace_sums(counted), 1.0)

        def apply() -> None:
            sums.apply(change)

        if change.quantiles.values is sums.compute(self._rule.fractions).values:
            return StepPlan(published=self.published_, apply=apply)
        return self._plan(delta, self._publish(change.quantiles.values, seed), apply, 0.0)

    @property
    def center_(self) -> Floats | None:
        """Median of each column, rounded."""
        check_is_fitted(self)
        return self.published_.centre.copy() if self.with_centering else None

    def __sklearn_tags__(self) -> Tags:
        """Return scikit-learn's tags."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags
