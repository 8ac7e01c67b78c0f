"""All sums of one table: columns, products, classes; and the grid that its rows are rounded to."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from letheon.data import Frame, numbers_of
from letheon.delta import Block, Delta, RowSource
from letheon.sums._columns import ColumnSums
from letheon.sums._gram import (
    Gram,
    PendingGram,
    Slices,
    empty_slices,
    multiply_diagonal,
    multiply_slices,
    slice_columns,
    slice_sparse,
)
from letheon.sums._rounding import round_location_scale

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# How targets enter: not at all, as numbers, as one indicator column per class, or as one Gram
# matrix per class (of all pairs, or of squares only).
Role = Literal["none", "numbers", "indicators", "groups", "squares"]

# The grid needs no precision: means to 8 scales, scales within a factor of 4 of the deviation.
_COARSE: dict[str, int] = {"centre_bits": -3, "scale_step": 2}
# Values of one part of the rows: their slices then stay in the cache.
_PART_VALUES = 2**19
_MIN_PART_ROWS = 1024
_SPARSE_PART_ROWS = 2**14


@dataclass(frozen=True, eq=False)
class Grid:
    """Published centres and scales; all scales are powers of two.

    Attributes
    ----------
    centres, scales : ndarray of shape (n_features,)
        Of the features.
    target_centres, target_scales : ndarray of shape (n_numbers,)
        Of the numbers to predict.
    root_scale : float
        Scale of the square roots of the weights; 1 without weights.
    """

    centres: Floats
    scales: Floats
    target_centres: Floats
    target_scales: Floats
    root_scale: float = 1.0

    @cached_property
    def factors(self) -> Floats:
        """Factors of the features: 1 / scale, exact."""
        return 1.0 / self.scales

    @cached_property
    def shifts(self) -> Floats:
        """Centres in units of the scale."""
        return self.centres * self.factors

    def equals(self, other: "Grid") -> bool:
        """Return whether all values are equal."""
        return self.root_scale == other.root_scale and not (
            self.stale_features(other).any() or self.stale_targets(other).any()
        )

    def stale_features(self, other: "Grid") -> npt.NDArray[np.bool_]:
        """Return for each feature whether its grid differs."""
        stale: npt.NDArray[np.bool_] = (self.centres != other.centres) | (
            self.scales != other.scales
        )
        return stale

    def stale_targets(self, other: "Grid") -> npt.NDArray[np.bool_]:
        """Return for each target whether its grid differs."""
        stale: npt.NDArray[np.bool_] = (self.target_centres != other.target_centres) | (
            self.target_scales != other.target_scales
        )
        return stale

    def select(self, layout: Ints) -> "Grid":
        """Return the grid of some features, in this order; -1 gives NaN, which equals nothing."""
        centre = np.where(layout >= 0, self.centres[layout], np.nan)
        scale = np.where(layout >= 0, self.scales[layout], np.nan)
        return Grid(centre, scale, self.target_centres, self.target_scales, self.root_scale)


class RowPart(NamedTuple):
    """Some rows as numbers: features (dense or CSR), numeric targets, labels, roots of weights."""

    X: Any
    numbers: Floats
    labels: npt.NDArray[Any] | None
    roots: Floats | None

    def take(self, rows: Any) -> "RowPart":
        """Return some of the rows."""
        labels, roots = self.labels, self.roots
        return RowPart(
            self.X[rows],
            self.numbers[rows],
            None if labels is None else labels[rows],
            None if roots is None else roots[rows],
        )

    def take_columns(self, columns: Ints) -> Floats:
        """Return some features as a dense array in C order."""
        X = self.X[:, columns]
        return X.toarray() if sp.issparse(X) else np.ascontiguousarray(X)

    @property
    def column_targets(self) -> Floats:
        """Columns whose grid is published: numeric targets, then the roots of the weights."""
        return self.numbers if self.roots is None else np.column_stack([self.numbers, self.roots])


def split_block(block: Block, role: Role) -> Iterator[RowPart]:
    """Iterate over the rows of a block in small parts."""
    X = numbers_of(block.X) if isinstance(block.X, Frame) else block.X
    if not sp.issparse(X):
        X = np.ascontiguousarray(X, np.float64)
    n_rows, n_columns = X.shape
    numbers, labels = np.empty((n_rows, 0)), None
    if role == "numbers" and block.y is not None:
        y = np.ascontiguousarray(block.y, np.float64)
        numbers = y[:, None] if y.ndim == 1 else y
    elif role != "none":
        labels = block.y
    roots = None if block.weights is None else np.sqrt(block.weights)
    rows = RowPart(X, numbers, labels, roots)
    step = max(_MIN_PART_ROWS, _PART_VALUES // (n_columns + 1))
    step = _SPARSE_PART_ROWS if sp.issparse(X) else step
    if n_rows <= step:
        yield rows
        return
    for start in range(0, n_rows, step):
        yield rows.take(slice(start, start + step))


_STATE_NAMES = {
    *("role", "is_sparse", "is_weighted", "features", "targets"),
    *("classes", "class_rows", "n_rows", "grams"),
}


class TableSums:
    """Exact sums of the rows of a table.

    Attributes
    ----------
    features : ColumnSums
        Sums of the features, for the grid.
    targets : ColumnSums
        Sums of the numbers to predict and of the roots of the weights, for the grid.
    grams : list of Gram
        Products of all columns: features, targets, a constant column. One matrix, or one per class.
    classes : ndarray or None
        Labels of the rows, sorted.
    class_rows : ndarray of int64
        Number of rows of each class.
    n_rows : int
        Number of rows.
    """

    def __init__(self, role: Role, first: RowPart) -> None:
        self.role: Role = role
        self.is_sparse = sp.issparse(first.X)
        self.is_weighted = first.roots is not None
        self.features = ColumnSums(first.X.shape[1])
        self.targets = ColumnSums(first.column_targets.shape[1])
        self.classes = None if first.labels is None else first.labels[:0]
        self.class_rows: Ints = np.zeros(0, np.int64)
        self.n_rows = 0
        self.grams: list[Gram] = [] if self.has_groups else [self._make_gram()]

    @property
    def has_groups(self) -> bool:
        """Whether each class has its own products."""
        return self.role in ("groups", "squares")

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.features.n_columns

    @property
    def n_numbers(self) -> int:
        """Number of numeric targets."""
        return self.targets.n_columns - self.is_weighted

    @property
    def n_clipped(self) -> Ints:
        """Number of values of each feature beyond the range of the grid."""
        total = sum((gram.n_clipped for gram in self.grams), np.zeros(1, np.int64))
        return np.asarray(total)[: self.n_features]

    def _make_gram(self) -> Gram:
        n_classes = 0 if self.classes is None or self.has_groups else len(self.classes)
        n_columns = self.n_features + 1 + self.n_numbers + n_classes
        return Gram(n_columns, self.n_features if self.role == "squares" else None)

    def count_columns(self, part: RowPart, sign: int) -> None:
        """Add (1) or subtract (-1) the columns of some rows; products are counted separately.

        Raises
        ------
        ValueError
            The rows contain infinity, or weights in spite of the other rows. Nothing was changed.
        """
        if (part.roots is not None) != self.is_weighted:
            raise ValueError(
                "some rows have weights and some do not; expected sample_weight in all calls or "
                "in none"
            )
        self.features.add(part.X) if sign > 0 else self.features.subtract(part.X)
        try:
            if self.targets.n_columns:
                X = part.column_targets
                self.targets.add(X) if sign > 0 else self.targets.subtract(X)
        except ValueError:  # infinity
            self.features.subtract(part.X) if sign > 0 else self.features.add(part.X)
            raise
        self.n_rows += sign * part.X.shape[0]

    @contextmanager
    def preview(self, parts: list[tuple[int, RowPart]]) -> Iterator[None]:
        """Change the column sums by some rows, and undo it exactly at the end."""
        done = []
        try:
            for sign, part in parts:
                self.count_columns(part, sign)
                done.append((sign, part))
            yield
        finally:
            for sign, part in done:
                self.count_columns(part, -sign)

    def require_values(self) -> None:
        """Raise for missing values, which column sums skip, and if all weights are 0.

        Raises
        ------
        ValueError
            A feature or target has missing values, or no row has a positive weight.
        """
        for name, sums in (("X", self.features), ("y", self.targets)):
            if (sums.counts != self.n_rows).any():
                raise ValueError(f"Input {name} contains NaN.")
        if self.is_weighted and self.targets.totals[-1] == 0.0:
            raise ValueError("Sample weights must contain at least one non-zero number.")

    def make_grid(self, seed: int) -> Grid:
        """Return the published grid of the current columns."""
        # All columns share one dither: then a column that vanishes does not move the grids of the
        # columns after it.
        columns = np.zeros(self.n_features, np.int64)
        centre, scale = round_location_scale(self.features, seed, columns=columns, **_COARSE)
        if self.is_sparse:
            centre = np.zeros_like(centre)  # zeros stay zeros
        numbers = -1 - np.arange(self.targets.n_columns)
        rounded = round_location_scale(self.targets, seed, columns=numbers, **_COARSE)
        target_centre, target_scale = rounded
        root_scale = 1.0
        if self.is_weighted:
            exponent = np.frexp(target_centre[-1] + 2.0 * target_scale[-1])[1]
            root_scale = float(np.ldexp(1.0, np.clip(exponent, -1022, 1022)))
        n = self.n_numbers
        return Grid(centre, scale, target_centre[:n], target_scale[:n], root_scale)

    def slice_rows(self, part: RowPart, grid: Grid) -> Slices:
        """Return some rows on the grid: features, targets, a constant column."""
        n_rows = part.X.shape[0]
        roots = None if part.roots is None else part.roots / grid.root_scale
        extra, factors, shifts = self._extra_columns(part, grid)
        n_features = 0 if self.is_sparse else self.n_features
        rows = empty_slices(n_rows, n_features + extra.shape[1])
        slice_columns(extra, factors, shifts, roots, rows, n_features)
        if self.is_sparse:
            return slice_sparse(part.X, grid.factors, roots, rows)
        slice_columns(part.X, grid.factors, grid.shifts, roots, rows, 0)
        return rows

    def _extra_columns(self, part: RowPart, grid: Grid) -> tuple[Floats, Floats, Floats]:
        """Return the targets and the constant column, with their factors and shifts."""
        n_rows = part.X.shape[0]
        if self.role == "indicators":
            n_classes = 0 if self.classes is None else len(self.classes)
            targets = np.eye(n_classes)[self.find_codes(part)]
        else:
            targets = part.numbers
        extra = np.empty((n_rows, targets.shape[1] + 1))
        extra[:, :-1] = targets
        extra[:, -1] = 1.0
        factors, shifts = np.ones(extra.shape[1]), np.zeros(extra.shape[1])
        if self.role == "numbers":
            factors[:-1] = 1.0 / grid.target_scales
            shifts[:-1] = grid.target_centres * factors[:-1]
        return extra, factors, shifts

    def slice_groups(self, part: RowPart, grid: Grid) -> list[tuple[int, Slices]]:
        """Return some rows on the grid, each group with the number of its Gram matrix."""
        if not self.has_groups:
            return [(0, self.slice_rows(part, grid))]
        codes = self.find_codes(part)
        present = np.unique(codes).tolist()
        if len(present) == 1:
            return [(present[0], self.slice_rows(part, grid))]
        return [(code, self.slice_rows(part.take(codes == code), grid)) for code in present]

    def find_codes(self, part: RowPart) -> Ints:
        """Return the number of the class of each row."""
        assert self.classes is not None
        assert part.labels is not None
        codes: Ints = np.searchsorted(self.classes, part.labels)
        return codes

    def count_products(self, groups: Iterable[tuple[int, Slices]], sign: int) -> None:
        """Add (1) or subtract (-1) the products of rows on the grid."""
        for number, rows in groups:
            gram = self.grams[number]
            gram.add(rows) if sign > 0 else gram.subtract(rows)

    def recount_columns(self, parts: Iterable[RowPart], columns: Ints) -> None:
        """Count the sums of some features again; rows that are not in `parts` have zeros."""
        fresh, n_zeros = ColumnSums(len(columns)), self.n_rows
        for part in parts:
            fresh.add(part.take_columns(columns))
            n_zeros -= part.X.shape[0]
        fresh.add(sp.csr_array((n_zeros, len(columns))))
        self.features.put(columns, fresh)

    def guess_grid(self, source: RowSource, columns: Ints, seed: int) -> Grid:
        """Return the grid, with that of some features guessed from the first block of rows."""
        if not len(columns):
            return self.make_grid(seed)
        first = ColumnSums(len(columns))
        for part in split_block(next(source.blocks()), self.role):
            first.add(part.take_columns(columns))
        exact, guess = self.features, self.features.copy()
        guess.put(columns, first)
        try:
            self.features = guess
            return self.make_grid(seed)
        finally:
            self.features = exact

    def recount_products(
        self, parts: Iterable[RowPart], grid: Grid, columns: Ints, uncounted: Ints
    ) -> None:
        """Count all products with some columns again, and the sums of uncounted features.

        Rows that are not in `parts` have zeros in these columns; none is missing if `uncounted` is
        not empty.
        """
        fresh: list[Any] = [0] * len(self.grams)
        n_clipped: list[Any] = [0] * len(self.grams)
        features = ColumnSums(len(uncounted))
        for part in parts:
            if len(uncounted):
                features.add(part.take_columns(uncounted))
            for number, rows in self.slice_groups(part, grid):
                gram = self.grams[number]
                if gram.lead is None:
                    chosen = Slices(rows.upper[:, columns], rows.lower[:, columns], rows.n_clipped)
                    fresh[number] = fresh[number] + multiply_slices(rows, chosen)
                else:
                    fresh[number] = fresh[number] + multiply_diagonal(rows, gram.lead)
                n_clipped[number] = n_clipped[number] + rows.n_clipped
        self.features.put(uncounted, features)
        for gram, products, clipped in zip(self.grams, fresh, n_clipped, strict=True):
            gram.put(columns, products, clipped)

    def recount_all(self, source: RowSource, grid: Grid) -> None:
        """Count all products again."""
        n_grams = len(self.classes) if self.has_groups and self.classes is not None else 1
        self.grams = [self._make_gram() for _ in range(n_grams)]
        for part in self.read_parts(source):
            self.count_products(self.slice_groups(part, grid), 1)

    def read_parts(self, source: RowSource) -> Iterator[RowPart]:
        """Iterate over all rows in small parts."""
        for block in source.blocks():
            yield from split_block(block, self.role)

    def read_parts_with(self, delta: Delta, columns: Ints) -> Iterator[RowPart]:
        """Iterate over the rows after a change; those with zeros in some columns may be missing."""
        if delta.find_rows is None or (columns >= self.n_features).any():
            yield from self.read_parts(delta.source)
            return
        for block in delta.source.blocks(delta.find_rows(columns)):
            yield from split_block(block, self.role)

    def with_features(self, layout: Ints) -> "TableSums":
        """Return the sums of some features, in this order; -1 gives an empty column."""
        sums = self._copy_columns()
        n_others = self.grams[0].n_columns - self.n_features
        columns = np.concatenate([layout, self.n_features + np.arange(n_others)])
        sums.features = self.features.select(layout)
        sums.grams = [gram.select(columns, len(layout)) for gram in self.grams]
        return sums

    def with_classes(self, classes: npt.NDArray[Any], class_rows: Ints) -> "TableSums":
        """Return the sums with other classes; new ones are empty, missing ones are dropped."""
        sums = self._copy_columns()
        assert self.classes is not None
        numbers = {label: k for k, label in enumerate(self.classes.tolist())}
        old = np.array([numbers.get(label, -1) for label in classes.tolist()], np.int64)
        sums.classes, sums.class_rows = classes, class_rows
        if self.has_groups:
            sums.grams = [self.grams[k].copy() if k >= 0 else sums._make_gram() for k in old]
        else:
            n, constant = self.n_features, self.grams[0].n_columns - 1
            indicators = np.where(old >= 0, n + old, -1)
            columns = np.concatenate([np.arange(n), indicators, [constant]])
            sums.grams = [gram.select(columns) for gram in self.grams]
        return sums

    def fork(self) -> "TableSums":
        """Return a copy whose products are changed when `settle` is called, in the originals."""
        other = self._copy_columns()
        other.grams = [PendingGram(gram) for gram in self.grams]
        return other

    def settle(self) -> None:
        """Make the pending changes of products. Cannot fail."""
        self.grams = [gram.settle() for gram in self.grams]

    def copy(self) -> "TableSums":
        """Return a copy with its own memory."""
        other = self._copy_columns()
        other.grams = [gram.copy() for gram in self.grams]
        return other

    def _copy_columns(self) -> "TableSums":
        """Return a copy with its own memory, except for the products, which may be large."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other.features, other.targets = self.features.copy(), self.targets.copy()
        other.class_rows = self.class_rows.copy()
        return other

    __copy__ = copy

    def _to_state(self) -> dict[str, Any]:
        return vars(self).copy()

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        if state.keys() != _STATE_NAMES or not isinstance(state["grams"], list):
            raise ValueError(f"the sums have the parts {sorted(state)}, which are not complete")
        self = object.__new__(cls)
        vars(self).update(state)
        n_classes = 0 if self.classes is None else len(self.classes)
        n_grams = n_classes if self.has_groups else 1
        sizes = [gram.products.shape for gram in self.grams]
        if sizes != [self._make_gram().products.shape] * n_grams:
            raise ValueError(f"the products have shapes {sizes}, which do not match the columns")
        if self.class_rows.shape != (n_classes,):
            raise ValueError(f"{n_classes} classes have {len(self.class_rows)} numbers of rows")
        return self


def count_labels(
    changes: Iterable[tuple[int, npt.NDArray[Any]]],
) -> tuple[npt.NDArray[Any], Ints]:
    """Return the labels with rows, sorted and in the smallest dtype, and their numbers of rows.

    Parameters
    ----------
    changes : iterable of (int, ndarray)
        Labels and how often each row of them counts: 1 or -1.
    """
    counts: dict[Any, int] = {}
    kinds = []
    for sign, labels in changes:
        values, numbers = np.unique(labels, return_counts=True)
        kinds.append(values)
        for value, number in zip(values.tolist(), numbers.tolist(), strict=True):
            counts[value] = counts.get(value, 0) + sign * number
    kept = sorted(value for value, number in counts.items() if number)
    dtype = None if not kinds or kinds[0].dtype.kind == "U" else kinds[0].dtype
    classes = np.array(kept, dtype)
    return classes, np.array([counts[value] for value in kept], np.int64)
