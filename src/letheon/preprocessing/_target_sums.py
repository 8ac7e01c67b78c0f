"""Sums of targets for each category, and the encodings that follow from them."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from letheon.delta import Table
from letheon.preprocessing._categories import Key, hold_keys, number_column, read_keys, sort_keys
from letheon.sums import ColumnSums

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Cells = list[dict[Key, list[int]]]

# Targets are integers in units of 2**-20 of their scale, and encodings in units of 2**-6.
UNIT_BITS, CODE_BITS = 20, 6
_LARGEST = 2**40


class TargetScale(NamedTuple):
    """How targets become integers: classes, or centre and scale of numbers."""

    classes: tuple[Any, ...] | None
    centre: float
    scale: float

    @property
    def n_targets(self) -> int:
        """Number of encodings of a category: 1, or one for each of more than two classes."""
        return len(self.classes) if self.classes is not None and len(self.classes) > 2 else 1

    def to_integers(self, y: NDArray[Any]) -> Ints:
        """Return the targets, shape (n_rows, n_targets)."""
        if self.classes is None:
            steps = np.rint((y - self.centre) * (2.0**UNIT_BITS / self.scale))
            return np.clip(steps, -_LARGEST, _LARGEST).astype(np.int64)[:, None]
        labels = np.array(self.classes[1:] if self.n_targets == 1 else self.classes, y.dtype)
        if len(labels) == 0:
            return np.zeros((len(y), 1), np.int64)
        integers: Ints = (y[:, None] == labels).astype(np.int64) << UNIT_BITS
        return integers

    def to_floats(self, codes: Floats) -> Floats:
        """Return encodings in the units of the target."""
        numbers: Floats = codes * (self.scale * 2.0**-CODE_BITS) + self.centre
        return numbers


@dataclass(eq=False)
class TargetSums:
    """Numbers of rows and sums of targets, for each category and fold.

    Attributes
    ----------
    labels : dict
        Number of rows of each class; empty for a target of numbers.
    n_fractions : int
        Number of rows whose target is not a whole number.
    y_sums : ColumnSums
        Exact sums of the targets; empty for classes.
    scale : TargetScale
        How targets became integers.
    totals : ndarray of shape (n_folds, 1 + n_targets)
        Number of rows and sums of targets of each fold.
    cells : list of dict
        The same for each category of each column, flat, as a list.
    kinds : tuple of str
        Kind of each column.
    """

    labels: dict[Any, int]
    n_fractions: int
    y_sums: ColumnSums
    scale: TargetScale
    totals: Ints
    cells: list[dict[Key, list[int]]]
    kinds: tuple[str, ...]

    def __copy__(self) -> Self:
        cells = [{key: list(cell) for key, cell in known.items()} for known in self.cells]
        return replace(self, labels=dict(self.labels), totals=self.totals.copy(), cells=cells)

    def _to_state(self) -> dict[str, Any]:
        columns = []
        for kind, known in zip(self.kinds, self.cells, strict=True):
            keys = sort_keys(known, "a column")
            cells = np.array([known[key] for key in keys], np.int64)
            columns.append([hold_keys(keys, kind), cells.reshape(len(keys), self.totals.size)])
        return {
            "labels": sorted(self.labels.items()),
            "n_fractions": self.n_fractions,
            "y_sums": self.y_sums,
            "units": list(self.scale),
            "totals": self.totals,
            "columns": columns,
            "kinds": list(self.kinds),
        }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        cells = [
            dict(zip(read_keys(keys), table.tolist(), strict=True))
            for keys, table in state["columns"]
        ]
        return cls(
            dict(state["labels"]),
            state["n_fractions"],
            state["y_sums"],
            TargetScale(*state["units"]),
            state["totals"],
            cells,
            tuple(state["kinds"]),
        )

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        """Pickle the canonical state."""
        return type(self)._from_state, (self._to_state(),)


@dataclass(frozen=True, eq=False)
class TargetCodes:
    """Published encodings, as integers in units of 2**-6 of the scale.

    Each category has ``(n_folds + 1) * n_targets`` numbers: for the rows of each fold, computed
    without that fold, and at the end for new rows.

    Attributes
    ----------
    scale : TargetScale
        How encodings become numbers.
    means : tuple of int
        Encodings of unknown categories.
    codes : tuple of dict
        Encodings of the categories of each column.
    kinds : tuple of str
        Kind of each column.
    """

    scale: TargetScale
    means: tuple[int, ...]
    codes: tuple[dict[Key, tuple[int, ...]], ...]
    kinds: tuple[str, ...]

    @cached_property
    def tables(self) -> list[tuple[dict[Key, int], Ints]]:
        """Number of each category, and its encodings; the last row is for unknown categories."""
        tables = []
        for known in self.codes:
            numbers = {key: number for number, key in enumerate(known)}
            table = np.array([*known.values(), self.means], np.int64)
            tables.append((numbers, table.reshape(len(table), -1, self.scale.n_targets)))
        return tables

    def _to_state(self) -> dict[str, Any]:
        columns = []
        for kind, known in zip(self.kinds, self.codes, strict=True):
            keys = sort_keys(known, "a column")
            table = np.array([known[key] for key in keys], np.int64)
            columns.append([hold_keys(keys, kind), table.reshape(len(keys), len(self.means))])
        return {
            "units": list(self.scale),
            "means": list(self.means),
            "columns": columns,
            "kinds": list(self.kinds),
        }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        codes = [
            dict(zip(read_keys(keys), map(tuple, table.tolist()), strict=True))
            for keys, table in state["columns"]
        ]
        scale = TargetScale(*state["units"])
        return cls(scale, tuple(state["means"]), tuple(codes), tuple(state["kinds"]))


def leave_out_folds(cells: Ints) -> Ints:
    """Return the sums over all folds except each one, and over all, along the second axis."""
    total = cells.sum(axis=1, keepdims=True)
    return np.concatenate([total - cells, total], axis=1)


def add_block(
    known: dict[Key, list[int]], X: Table, column: int, folds: Ints, numbers: Ints, n_folds: int
) -> None:
    """Add rows to the cells of one column."""
    keys, places = number_column(X, column)
    table = np.zeros((len(keys) * n_folds, numbers.shape[1]), np.int64)
    np.add.at(table, places * n_folds + folds, numbers)
    for key, own in zip(keys, table.reshape(len(keys), -1).tolist(), strict=True):
        if any(own[:: numbers.shape[1]]):
            cell = known.get(key)
            known[key] = own if cell is None else [a + b for a, b in zip(cell, own, strict=True)]


def write_cells(
    cells: list[dict[Key, list[int]]], touched: dict[tuple[int, Key], list[int]], width: int
) -> None:
    for (column, key), cell in touched.items():
        if any(cell[::width]):
            cells[column][key] = cell
        else:
            cells[column].pop(key, None)
