"""Sums per class, to which rows are added and from which they are subtracted exactly."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

# Values and weights are rounded to multiples of 2**-20; whole numbers are exact.
UNIT = 2.0**20
_LARGEST_SUM = 2.0**62


def round_to_grid(values: Any) -> Integers:
    return np.rint(np.asarray(values) * UNIT).astype(np.int64)


class ClassRows(NamedTuple):
    """Rows to add or subtract: their classes, checked table and rounded weights."""

    sign: int
    codes: Integers
    X: Any
    weights: Floats | None

    @property
    def units(self) -> Integers:
        """Weight of each row on the grid."""
        if self.weights is None:
            return np.full(len(self.codes), int(UNIT), np.int64)
        return round_to_grid(self.weights)


class ClassSums:
    """Labels, and the number of rows and sum of weights of each; base of both kinds of sums.

    Parameters
    ----------
    classes : ndarray
        Labels of the remaining rows, sorted.
    n_columns : int
        Number of columns.

    Attributes
    ----------
    n_rows : ndarray of int64, shape (n_classes,)
        Number of rows of each class.
    weights : ndarray of int64, shape (n_classes,)
        Sum of the weights of each class, in units of 2**-20.
    """

    def __init__(self, classes: NDArray[Any], n_columns: int) -> None:
        self.classes = classes
        self.n_rows = np.zeros(len(classes), np.int64)
        self.weights = np.zeros(len(classes), np.int64)
        self._start(n_columns)

    @abstractmethod
    def _start(self, n_columns: int) -> None:
        """Set the sums of all columns to zero."""

    @property
    @abstractmethod
    def n_columns(self) -> int:
        """Number of columns."""

    @abstractmethod
    def add_columns(self, part: ClassRows, columns: Integers | None = None) -> None:
        """Add rows to the sums of some columns, or of all."""

    @abstractmethod
    def move_columns(self, layout: Integers) -> None:
        """Put columns into another order; -1 is a new column without rows."""

    @abstractmethod
    def clear_columns(self, columns: Integers) -> None:
        """Set the sums of some columns to zero."""

    @abstractmethod
    def take_classes(self, places: Integers) -> None:
        """Put classes into another order; -1 is a new class without rows."""

    @abstractmethod
    def bound_sums(self, part: ClassRows) -> float:
        """Return an upper bound on the largest sum after rows are added."""

    def add(self, part: ClassRows) -> None:
        """Add or subtract rows."""
        np.add.at(self.n_rows, part.codes, part.sign)
        np.add.at(self.weights, part.codes, part.sign * part.units)
        self.add_columns(part)

    def change_columns(
        self,
        parts: Sequence[ClassRows],
        layout: Integers | None,
        changed: Integers,
        source: Iterable[ClassRows],
    ) -> None:
        """Subtract rows with the old columns, move columns, and add rows with the new ones.

        New and changed columns are counted again in `source`, all rows after the change.
        """
        removed, added = ([part for part in parts if part.sign == sign] for sign in (-1, 1))
        require_room(self, removed)
        for part in removed:
            self.add(part)
        if layout is not None:
            self.move_columns(layout)
        require_room(self, added)
        for part in added:
            self.add(part)
        if len(changed):
            self.clear_columns(changed)
            for part in source:
                require_room(self, [part])
                self.add_columns(part, changed)

    def set_labels(self, labels: NDArray[Any]) -> None:
        """Replace the sorted labels; labels without rows may disappear."""
        places = np.minimum(np.searchsorted(self.classes, labels), len(self.classes) - 1)
        places = np.where(self.classes[places] == labels, places, -1)
        self.classes = labels
        self.n_rows, self.weights = (
            np.where(places < 0, 0, sums[places]) for sums in (self.n_rows, self.weights)
        )
        self.take_classes(places)

    def drop_empty_classes(self) -> None:
        """Remove labels without rows."""
        if not self.n_rows.all():
            self.set_labels(_narrow_labels(self.classes[self.n_rows > 0]))

    def _to_state(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        sums = cls(state["classes"], 0)
        if state.keys() != vars(sums).keys():
            raise ValueError("not valid sums: attributes are missing")
        # Memory of a decoder may be read-only; sums change in place.
        vars(sums).update({name: _copy_value(value) for name, value in state.items()})
        if not len(sums.classes) == len(sums.n_rows) == len(sums.weights):
            raise ValueError("not valid sums: numbers of classes differ")
        return sums

    def __copy__(self) -> Self:
        new = object.__new__(type(self))
        vars(new).update({name: _copy_value(value) for name, value in vars(self).items()})
        return new

    def __deepcopy__(self, _: Any) -> Self:
        return self.__copy__()


def _copy_value(value: Any) -> Any:
    return [part.copy() for part in value] if isinstance(value, list) else value.copy()


class FeatureSums(ClassSums):
    """Sums of the values of each column for each class.

    Attributes
    ----------
    values : ndarray of int64, shape (n_classes, n_columns)
        Sums of weighted values, in units of 2**-20.
    """

    values: Integers

    def _start(self, n_columns: int) -> None:
        self.values = np.zeros((len(self.classes), n_columns), np.int64)

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return int(self.values.shape[1])

    def add_columns(self, part: ClassRows, columns: Integers | None = None) -> None:
        """Add rows to the sums of some columns, or of all."""
        X, sign = part.X, part.sign
        if sp.issparse(X):
            X = X if columns is None else X[:, columns]
            rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
            places = X.indices if columns is None else columns[X.indices]
            cells = part.codes[rows] * self.values.shape[1] + places
            np.add.at(self.values.reshape(-1), cells, sign * _weigh(X.data, part, rows))
            return
        where = slice(None) if columns is None else columns
        values = sign * _weigh(X[:, where], part, np.arange(len(X)))
        for code in np.unique(part.codes).tolist():
            self.values[code, where] += values[part.codes == code].sum(axis=0)

    def move_columns(self, layout: Integers) -> None:
        """Put columns into another order; -1 is a new column without rows."""
        self.values = np.take(self.values, layout, axis=1)
        self.values[:, layout < 0] = 0

    def clear_columns(self, columns: Integers) -> None:
        """Set the sums of some columns to zero."""
        self.values[:, columns] = 0

    def take_classes(self, places: Integers) -> None:
        """Put classes into another order; -1 is a new class without rows."""
        self.values = self.values[places]
        self.values[places < 0] = 0

    def bound_sums(self, part: ClassRows) -> float:
        """Return an upper bound on the largest sum after rows are added."""
        X = part.X
        data = X.data if sp.issparse(X) else X
        largest = float(np.abs(data).max(initial=0.0))
        heaviest = 1.0 if part.weights is None else float(part.weights.max(initial=0.0))
        is_small = sp.issparse(X) and X.nnz < self.n_columns
        columns = X.indices if is_small else slice(None)
        present = float(np.abs(self.values[:, columns]).max(initial=0))
        return present + len(part.codes) * max(largest, 1.0) * max(heaviest, 1.0) * UNIT


def _weigh(data: Any, part: ClassRows, rows: Integers) -> Integers:
    """Return weighted values on the grid; a row of weight 2 counts as two rows."""
    values = round_to_grid(data)
    if part.weights is None:
        return values
    weights = part.weights[rows]
    return np.rint(values * (weights[:, None] if data.ndim == 2 else weights)).astype(np.int64)


class CategorySums(ClassSums):
    """Weights of each category of each column for each class.

    Attributes
    ----------
    tables : list of ndarray of int64
        For each column: weights by class and category, in units of 2**-20.
    totals : list of ndarray of int64
        For each column: the number of rows of each category; the last one is not zero.
    """

    tables: list[Integers]
    totals: list[Integers]

    def _start(self, n_columns: int) -> None:
        self.tables = [self._empty_table() for _ in range(n_columns)]
        self.totals = [np.zeros(0, np.int64) for _ in range(n_columns)]

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return len(self.tables)

    def _empty_table(self) -> Integers:
        return np.zeros((len(self.classes), 0), np.int64)

    def add_columns(self, part: ClassRows, columns: Integers | None = None) -> None:
        """Add rows to the tables of some columns, or of all."""
        units = part.sign * part.units
        every = range(len(self.tables)) if columns is None else columns.tolist()
        for j in every:
            categories = part.X[:, j]
            width = max(int(categories.max(initial=-1)) + 1, len(self.totals[j]))
            table, total = self.tables[j], self.totals[j]
            missing = width - len(total)
            if missing:
                table, total = np.pad(table, ((0, 0), (0, missing))), np.pad(total, (0, missing))
            np.add.at(table, (part.codes, categories), units)
            np.add.at(total, categories, part.sign)
            n_used = int(np.max(np.flatnonzero(total), initial=-1)) + 1
            self.tables[j], self.totals[j] = table[:, :n_used].copy(), total[:n_used].copy()

    def move_columns(self, layout: Integers) -> None:
        """Put columns into another order; -1 is a new column without rows."""
        places, tables, totals = layout.tolist(), self.tables, self.totals
        self.tables = [self._empty_table() if k < 0 else tables[k] for k in places]
        self.totals = [np.zeros(0, np.int64) if k < 0 else totals[k] for k in places]

    def clear_columns(self, columns: Integers) -> None:
        """Set the tables of some columns to zero."""
        for j in columns.tolist():
            self.tables[j], self.totals[j] = self._empty_table(), np.zeros(0, np.int64)

    def take_classes(self, places: Integers) -> None:
        """Put classes into another order; -1 is a new class without rows."""
        self.tables = [np.where(places[:, None] < 0, 0, table[places]) for table in self.tables]

    def bound_sums(self, part: ClassRows) -> float:
        """Return an upper bound on the largest sum after rows are added."""
        heaviest = 1.0 if part.weights is None else float(part.weights.max(initial=0.0))
        present = float(np.abs(self.weights).max(initial=0))
        return present + len(part.codes) * max(heaviest, 1.0) * UNIT


def as_weights(weights: Any) -> Floats | None:
    """Return weights as an array, or None."""
    return None if weights is None else np.asarray(weights, np.float64)


def union_labels(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return all labels, sorted."""
    return _narrow_labels(np.unique(np.concatenate(parts)))


def _narrow_labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels in the smallest width, which must not show the length of a removed label."""
    return np.array(labels.tolist(), np.str_) if labels.dtype.kind == "U" else labels


def count_classes(sums: ClassSums, labels: NDArray[Any], parts: Sequence[ClassRows]) -> int:
    """Return the number of classes with rows after a change."""
    counts = np.zeros(len(labels), np.int64)
    counts[np.searchsorted(labels, sums.classes)] = sums.n_rows
    for part in parts:
        counts += part.sign * np.bincount(part.codes, minlength=len(labels))
    return int(np.count_nonzero(counts))


def require_weight(sums: ClassSums, parts: Sequence[ClassRows]) -> None:
    change = sum(part.sign * int(part.units.sum()) for part in parts)
    if int(sums.weights.sum()) + change <= 0:
        raise ValueError("Sample weights must contain at least one non-zero number.")


def require_room(sums: ClassSums, parts: Sequence[ClassRows]) -> None:
    """Raise if a sum might not fit into 64 bits."""
    if sum(sums.bound_sums(part) for part in parts) > _LARGEST_SUM:
        raise ValueError(
            "the sum of a column may exceed 2**42, the largest sum on a grid of 2**-20; scale X or "
            "the weights down"
        )


@dataclass(frozen=True, eq=False)
class CategoryScores:
    """Scores of rows of categories: logarithms of the classes, and by column of the categories."""

    prior: Floats
    features: tuple[Floats, ...]

    def compute(self, X: Any) -> Floats:
        """Return the scores of rows."""
        X = as_codes(X)
        scores = np.tile(self.prior, (len(X), 1))
        for j, logs in enumerate(self.features):
            codes = X[:, j]
            if len(codes) and codes.max() >= logs.shape[1]:
                raise IndexError(
                    f"column {j} has the category {codes.max()}; this model has the categories "
                    f"0 to {logs.shape[1] - 1}. Set min_categories"
                )
            scores += logs[:, codes].T
        return scores


def as_codes(X: Any) -> Integers:
    """Return the categories of dense rows as integers."""
    if sp.issparse(X):
        raise TypeError("Sparse data was passed, but dense data is required")
    codes: Integers = X.astype(np.int64)
    return codes
