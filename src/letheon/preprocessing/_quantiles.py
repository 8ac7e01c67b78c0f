"""Quantiles of columns from exact counts of rounded values.

A keyed sample of people fixes a grid for each column. All values are rounded to the grid with a
keyed dither and counted, so a removal subtracts from one count. Rounding keeps the order of values;
so the quantile of the rounded values is the rounded quantile.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from letheon.data import Ids
from letheon.delta import Delta, RowSource, Table
from letheon.seeds import Purpose
from letheon.sums import keyed_dither, round_exponents, round_values, sample_border

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Fractions = tuple[Fraction, ...]
Read = Callable[[Table], Floats]

_MIDDLE = 4096
_N_CELLS = 2 * _MIDDLE + 1
# The centre of the cells is a multiple of 2**10 steps.
_CENTRE_BITS = 10
_N_SAMPLED = 1023
# With fewer sampled values, all values of a column decide its grid.
_FEW_VALUES = 16
_WIDER: tuple[Fractions, ...] = (
    (Fraction(1, 10), Fraction(9, 10)),
    (Fraction(1, 100), Fraction(99, 100)),
    (Fraction(0), Fraction(1)),
)


class QuantileRule(NamedTuple):
    """Which quantiles are computed, and on which grid.

    A step of the grid is a power of two near ``2**-step_bits`` of the distance between the
    quantiles `low` and `high`.
    """

    fractions: Fractions
    low: Fraction = Fraction(1, 4)
    high: Fraction = Fraction(3, 4)
    step_bits: int = 6


def find_sampled(ids: Ids, seed: int, purpose: Purpose, border: int) -> NDArray[np.bool_]:
    """Return which rows belong to sampled people."""
    if border >= 2**64:
        return np.ones(len(ids), bool)
    return ids.hashes(seed, purpose) < np.uint64(border)


class GridScale(NamedTuple):
    """Grid of each column: steps of ``2**exponent``, and the centre of the cells."""

    exponents: NDArray[np.int32]
    centres: Floats


def choose_grid(samples: list[Floats], rule: QuantileRule, seed: int) -> GridScale:
    """Return the grid of each column, from sorted values of a sample.

    If the two quantiles of the rule are equal, others further apart are used. If all values are
    equal, they are multiples of the step.
    """
    distances = np.array([_measure_spread(values, rule) for values in samples])
    medians = np.array([_order_statistic(values, Fraction(1, 2)) for values in samples])
    dithers = keyed_dither(seed, Purpose.QUANTILE_STEP, len(samples))
    has_spread = distances > 0
    exponents = round_exponents(np.where(has_spread, distances, 1.0), dithers)
    exponents -= rule.step_bits
    lowest = np.array([_lowest_bit(median) for median in medians.tolist()], np.int32)
    exponents = np.where(has_spread, exponents, lowest).astype(np.int32)
    exponents = np.maximum(exponents, -1074).astype(np.int32)
    dithers = keyed_dither(seed, Purpose.QUANTILE_CENTRE, len(samples))
    return GridScale(exponents, round_values(medians, exponents + _CENTRE_BITS, dithers))


def _order_statistic(values: Floats, fraction: Fraction) -> float:
    place = math.floor((len(values) - 1) * fraction)
    return float(values[place]) if len(values) else 0.0


def _measure_spread(values: Floats, rule: QuantileRule) -> float:
    for low, high in ((rule.low, rule.high), *_WIDER):
        begin, end = _order_statistic(values, low), _order_statistic(values, high)
        if begin < end:
            return min(end - begin, float(np.finfo(np.float64).max))
    return 0.0


def _lowest_bit(value: float) -> int:
    """Return the exponent of the lowest bit of a number; 0 for 0."""
    if value == 0:
        return 0
    mantissa, exponent = math.frexp(value)
    integer = abs(int(mantissa * 2**53))
    return exponent - 53 + (integer & -integer).bit_length() - 1


class QuantileChange(NamedTuple):
    """Counts, sample and positions after a change of rows."""

    places: Ints
    signs: Ints
    n_values: Ints
    samples: list[Floats]
    n_sampled: Ints
    quantiles: "Quantiles"


class Quantiles(NamedTuple):
    """For each quantile and column, its value, its cell and the number of values below the cell.

    The cell is -1 if the quantile is between two distant cells or there are no values.
    """

    values: Floats
    cells: Ints
    below: Ints


@dataclass(eq=False)
class QuantileSums:
    """Sample and grid of each column, and the number of values in each cell."""

    border: int
    n_sampled: Ints
    samples: list[Floats]
    grid: GridScale
    counts: Ints
    # Caches: they follow from the counts.
    n_values: Ints
    quantiles: Quantiles | None = None

    @classmethod
    def from_source(cls, source: RowSource, read: Read, rule: QuantileRule, seed: int) -> Self:
        """Sample people, choose the grids and count all values."""
        border = sample_border(_N_SAMPLED, source.n_people)
        samples, n_sampled = _collect_samples(source, read, border, seed)
        grid = choose_grid(samples, rule, seed)
        counts = np.zeros((len(samples), _N_CELLS), np.int64)
        for block in source.blocks():
            places = _find_places(read(block.X), grid, seed)
            counts += np.bincount(places, minlength=counts.size).reshape(counts.shape)
        return cls(border, n_sampled, samples, grid, counts, counts.sum(axis=1))

    def compute(self, fractions: Fractions) -> Quantiles:
        """Return the quantiles of each column; always call it with the same fractions."""
        if self.quantiles is None:
            columns = range(len(self.counts))
            parts = [self._compute_column(j, self.counts[j], fractions) for j in columns]
            shape = len(self.counts), len(fractions)
            values = np.array([part[0] for part in parts], np.float64).reshape(shape)
            cells = np.array([part[1] for part in parts], np.int64).reshape(shape)
            below = np.array([part[2] for part in parts], np.int64).reshape(shape)
            self.quantiles = Quantiles(values.T.copy(), cells.T.copy(), below.T.copy())
        return self.quantiles

    def _compute_column(
        self, column: int, counts: Ints, fractions: Fractions
    ) -> tuple[list[float], list[int], list[int]]:
        """Return the quantiles of a column, interpolated as NumPy does, and their positions."""
        cumulative = np.cumsum(counts)
        n_values = int(cumulative[-1])
        if n_values == 0:
            return [math.nan] * len(fractions), [-1] * len(fractions), [0] * len(fractions)
        step = Fraction(2) ** int(self.grid.exponents[column])
        centre = Fraction(float(self.grid.centres[column]))
        values, cells, belows = [], [], []
        for fraction in fractions:
            rank, rest = divmod((n_values - 1) * fraction, 1)
            ranks = [rank, min(rank + (rest > 0), n_values - 1)]
            low, high = np.searchsorted(cumulative, ranks, "right").tolist()
            # Between neighbouring cells the lower one, since most removals would move the value.
            between = rest * (high - low) if high > low + 1 else 0
            values.append(float(centre + step * (low - _MIDDLE + between)))
            cells.append(low if high <= low + 1 else -1)
            belows.append(int(cumulative[low] - counts[low]))
        return values, cells, belows

    def prepare(
        self, delta: Delta, read: Read, rule: QuantileRule, seed: int
    ) -> QuantileChange | None:
        """Return what a change of rows does, or None if all rows must be counted again."""
        if sample_border(_N_SAMPLED, delta.source.n_people) != self.border:
            return None
        samples, n_sampled = self._update_samples(delta, read, seed)
        if samples is not self.samples and not self._keeps_grid(samples, n_sampled, rule, seed):
            return None
        places, signs = _join_places(delta, read, self.grid, seed)
        columns, cells = np.divmod(places, _N_CELLS)
        n_values = self.n_values.copy()
        np.add.at(n_values, columns, signs)
        fractions = rule.fractions
        values, known, below = self.compute(fractions)
        below = below.copy()
        at = self.counts[np.arange(len(n_values)), known]
        for place, own in enumerate(known[:, columns]):
            np.add.at(below[place], columns, signs * (cells < own))
            np.add.at(at[place], columns, signs * (cells == own))
        moved = _find_moved(known, below, at, n_values, fractions)
        if len(moved):
            known = known.copy()
        for column in moved.tolist():
            counts, is_own = self.counts[column].copy(), columns == column
            np.add.at(counts, cells[is_own], signs[is_own])
            fresh, known[:, column], below[:, column] = self._compute_column(
                column, counts, fractions
            )
            if not np.array_equal(fresh, values[:, column], equal_nan=True):
                values = values.copy()
                values[:, column] = fresh
        quantiles = Quantiles(values, known, below)
        return QuantileChange(places, signs, n_values, samples, n_sampled, quantiles)

    def apply(self, change: QuantileChange) -> None:
        """Write the counts after a change."""
        np.add.at(self.counts.reshape(-1), change.places, change.signs)
        self.n_values = change.n_values
        self.samples, self.n_sampled = change.samples, change.n_sampled
        self.quantiles = change.quantiles

    def _update_samples(self, delta: Delta, read: Read, seed: int) -> tuple[list[Floats], Ints]:
        """Return the samples after a change; the same object if they do not change."""
        samples, n_sampled, is_full = self.samples, self.n_sampled, self._is_full(self.n_sampled)
        has_full = bool(is_full.any())
        for sign, block in delta.iter_signed():
            sampled = find_sampled(block.ids, seed, Purpose.QUANTILE_SAMPLE, self.border)
            if not (has_full or sampled.any()):
                continue
            X = read(block.X)
            is_present = ~np.isnan(X)
            n_sampled = n_sampled + sign * (is_present & sampled[:, None]).sum(axis=0)
            is_taken = is_present & (sampled[:, None] | is_full)
            if samples is self.samples:
                samples = list(samples)
            for column in np.flatnonzero(is_taken.any(axis=0)).tolist():
                own = np.sort(X[is_taken[:, column], column])
                samples[column] = change_sorted(samples[column], own, sign)
        return samples, n_sampled

    def _is_full(self, n_sampled: Ints) -> NDArray[np.bool_]:
        """Return for which columns the sample has all values."""
        return (n_sampled < _FEW_VALUES) & (self.border < 2**64)

    def _keeps_grid(
        self, samples: list[Floats], n_sampled: Ints, rule: QuantileRule, seed: int
    ) -> bool:
        if not np.array_equal(self._is_full(n_sampled), self._is_full(self.n_sampled)):
            return False
        exponents, centres = choose_grid(samples, rule, seed)
        is_same = np.array_equal(exponents, self.grid.exponents)
        return is_same and np.array_equal(centres, self.grid.centres)

    def __copy__(self) -> Self:
        return type(self)(
            self.border,
            self.n_sampled.copy(),
            list(self.samples),
            self.grid,
            self.counts.copy(),
            self.n_values.copy(),
        )

    def _to_state(self) -> dict[str, Any]:
        places = np.flatnonzero(self.counts)
        return {
            "border": str(self.border),
            "n_sampled": self.n_sampled,
            "samples": self.samples,
            "exponents": self.grid.exponents,
            "centres": self.grid.centres,
            "places": places,
            "counts": self.counts.reshape(-1)[places],
        }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        counts = np.zeros((len(state["samples"]), _N_CELLS), np.int64)
        counts.reshape(-1)[state["places"]] = state["counts"]
        grid = GridScale(state["exponents"], state["centres"])
        border, samples = int(state["border"]), list(state["samples"])
        return cls(border, state["n_sampled"], samples, grid, counts, counts.sum(axis=1))

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        """Pickle the canonical state."""
        return type(self)._from_state, (self._to_state(),)


def _collect_samples(
    source: RowSource, read: Read, border: int, seed: int
) -> tuple[list[Floats], Ints]:
    """Return the sorted sampled values of each column, and their number.

    Columns with few sampled values get all their values.
    """
    parts = []
    for block in source.blocks():
        sampled = find_sampled(block.ids, seed, Purpose.QUANTILE_SAMPLE, border)
        parts.append(read(block.X)[sampled])
    table = np.concatenate(parts)
    samples = [np.sort(column[~np.isnan(column)]) for column in table.T]
    n_sampled = np.array([len(values) for values in samples], np.int64)
    few = np.flatnonzero(n_sampled < _FEW_VALUES).tolist() if border < 2**64 else []
    if few:
        table = np.concatenate([read(block.X)[:, few] for block in source.blocks()])
        for column, values in zip(few, table.T, strict=True):
            samples[column] = np.sort(values[~np.isnan(values)])
    return samples, n_sampled


def _find_places(X: Floats, grid: GridScale, seed: int) -> Ints:
    """Return the place of each value that is not missing among all cells."""
    dithers = keyed_dither(seed, Purpose.ROUND_QUANTILE, len(grid.centres))
    rounded = round_values(X, grid.exponents, np.broadcast_to(dithers, X.shape))
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.ldexp(rounded - grid.centres, -grid.exponents)
    is_present = ~np.isnan(X)
    cells = np.clip(np.where(is_present, steps, 0.0), -_MIDDLE, _MIDDLE).astype(np.int64)
    columns = np.broadcast_to(np.arange(X.shape[1]), X.shape)[is_present]
    places: Ints = columns * _N_CELLS + (cells[is_present] + _MIDDLE)
    return places


def _join_places(delta: Delta, read: Read, grid: GridScale, seed: int) -> tuple[Ints, Ints]:
    """Return the places of all values that are subtracted or added, and their signs."""
    places, signs = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for sign, block in delta.iter_signed():
        own = _find_places(read(block.X), grid, seed)
        places.append(own)
        signs.append(np.full(len(own), sign, np.int64))
    return np.concatenate(places), np.concatenate(signs)


def _find_moved(cells: Ints, below: Ints, at: Ints, n_values: Ints, fractions: Fractions) -> Ints:
    """Return the columns with a quantile that may have left its cell."""
    has_moved = (cells < 0).any(axis=0) | (n_values == 0)
    for place, fraction in enumerate(fractions):
        rank, rest = np.divmod((n_values - 1) * fraction.numerator, fraction.denominator)
        begin, end = below[place], below[place] + at[place]
        has_moved |= (rank < begin) | (rank + (rest > 0) >= end)
    return np.flatnonzero(has_moved)


def change_sorted(values: Floats, own: Floats, sign: int) -> Floats:
    """Return sorted values with some added or removed, still sorted."""
    if sign > 0:
        return np.sort(np.concatenate([values, own]))
    places = np.searchsorted(values, own)
    # Equal values to remove take neighbouring places.
    places += np.arange(len(own)) - np.searchsorted(own, own)
    return np.delete(values, places)
