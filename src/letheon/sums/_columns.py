"""Exact sums of the columns of a table."""

from fractions import Fraction
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from letheon import _core

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Units of the stored integers: sums are multiples of 2**-1074, sums of squares of 2**-2148.
_SUM_BYTES, _SUM_UNIT = 4 * 68, Fraction(1, 2**1074)
_SQUARE_BYTES, _SQUARE_UNIT = 4 * 134, Fraction(1, 2**2148)


class ColumnSums:
    """Count, sum and sum of squares of each column, without rounding.

    All three are integers, so adding and subtracting rows is exact: the order of the rows does not
    matter, and nothing remains of a row that was subtracted. NaN is a missing value: it is skipped
    and not counted. Infinity is refused.

    Parameters
    ----------
    n_columns : int
        Number of columns.

    Notes
    -----
    A sum is a fixed-point number wide enough for every float64 and for 2**63 rows ("small
    superaccumulator", Neal, 2015). Squares are added exactly, too. `subtract` must only be called
    with rows that were added.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.sums import ColumnSums
    >>> sums = ColumnSums(1)
    >>> sums.add(np.array([[1e300], [1.0], [np.nan], [3.0]]))
    >>> sums.subtract(np.array([[1e300]]))
    >>> sums.counts.tolist(), sums.means.tolist(), sums.variances.tolist()
    ([2], [2.0], [1.0])
    """

    __slots__ = ("_core",)

    def __init__(self, n_columns: int) -> None:
        self._core = _core.ColumnSums(n_columns)

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return self._core.n_columns

    def add(self, X: Any) -> None:
        """Add rows: a float64 matrix of shape (n, n_columns), in C order, or a CSR array.

        Raises
        ------
        ValueError
            X contains infinity. Nothing was added.
        """
        if sp.issparse(X):
            self._change_sparse(X, is_added=True)
        else:
            self._core.add(X)

    def subtract(self, X: Any) -> None:
        """Subtract rows that were added before."""
        if sp.issparse(X):
            self._change_sparse(X, is_added=False)
        else:
            self._core.subtract(X)

    def _change_sparse(self, X: Any, *, is_added: bool) -> None:
        if not X.has_canonical_format:
            X = X.copy()
            X.sum_duplicates()
        begins, columns = X.indptr.astype(np.int64), X.indices.astype(np.int64)
        self._core.change_sparse(begins, columns, X.data, is_added)

    @property
    def counts(self) -> Ints:
        """Number of values that are not missing, for each column (int64)."""
        return self._core.counts()

    @property
    def totals(self) -> Floats:
        """Sum of each column, correctly rounded to float64; infinite if it is too large."""
        return self._core.sums()

    @property
    def means(self) -> Floats:
        """Mean of each column, correctly rounded; NaN for columns without values."""
        return self._core.means()

    @property
    def variances(self) -> Floats:
        """Population variance of each column, correctly rounded; NaN for columns without values."""
        return self._core.variances()

    def exact_total(self, column: int) -> Fraction:
        """Return the sum of one column as a fraction."""
        return _read_integers(self._core.sum_bytes(), _SUM_BYTES)[column] * _SUM_UNIT

    def exact_square_total(self, column: int) -> Fraction:
        """Return the sum of the squares of one column as a fraction."""
        return _read_integers(self._core.square_bytes(), _SQUARE_BYTES)[column] * _SQUARE_UNIT

    def exact_mean(self, column: int) -> Fraction:
        """Return the mean of one column as a fraction; it must have values."""
        return self.exact_total(column) / int(self.counts[column])

    def exact_variance(self, column: int) -> Fraction:
        """Return the population variance of one column as a fraction; it must have values."""
        mean_square = self.exact_square_total(column) / int(self.counts[column])
        return mean_square - self.exact_mean(column) ** 2

    def select(self, columns: npt.ArrayLike) -> "ColumnSums":
        """Return the sums of these columns, in this order, with their own memory.

        Parameters
        ----------
        columns : array-like of int
            Numbers of columns; -1 gives an empty column. So this drops, reorders and resets
            columns.
        """
        return _wrap_core(self._core.select(np.ascontiguousarray(columns, dtype=np.int64)))

    def put(self, columns: npt.ArrayLike, other: "ColumnSums") -> None:
        """Replace these columns by the columns of other sums, in this order."""
        self._core.put(np.ascontiguousarray(columns, dtype=np.int64), other._core)

    def copy(self) -> "ColumnSums":
        """Return a copy with its own memory."""
        return self.select(np.arange(self.n_columns))

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> "ColumnSums":
        """Return a copy with its own memory."""
        return self.copy()

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        """Pickle the canonical state."""
        return type(self)._from_state, (self._to_state(),)

    def __eq__(self, other: object) -> bool:
        """Return whether all counts and sums are equal."""
        if not isinstance(other, ColumnSums):
            return NotImplemented
        pairs = zip(self._to_state().values(), other._to_state().values(), strict=True)
        return all(np.array_equal(mine, theirs) for mine, theirs in pairs)

    __hash__ = None  # type: ignore[assignment]

    def _to_state(self) -> dict[str, Any]:
        # The integers themselves (two's complement, little-endian), so equal sums have equal bytes.
        return {
            "counts": self._core.counts(),
            "squares": self._core.square_bytes().reshape(-1, _SQUARE_BYTES),
            "sums": self._core.sum_bytes().reshape(-1, _SUM_BYTES),
        }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        counts, sums, squares = state["counts"], state["sums"], state["squares"]
        shapes = {"counts": counts.shape, "sums": sums.shape, "squares": squares.shape}
        expected = {
            "counts": (len(counts),),
            "sums": (len(counts), _SUM_BYTES),
            "squares": (len(counts), _SQUARE_BYTES),
        }
        if shapes != expected:
            raise ValueError(f"the sums have the shapes {shapes}; expected {expected}")
        if counts.dtype != np.int64 or sums.dtype != np.uint8 or squares.dtype != np.uint8:
            raise ValueError("counts must be int64, the bytes of sums and squares uint8")
        if np.any(counts < 0):
            raise ValueError("a count is negative; expected counts of 0 or more")
        self = cls(0)
        flat_sums, flat_squares = np.ascontiguousarray(sums).ravel(), squares.ravel()
        core = _core.read_column_sums(
            np.ascontiguousarray(counts), flat_sums, np.ascontiguousarray(flat_squares)
        )
        self._core = core
        return self


def _wrap_core(core: _core.ColumnSums) -> ColumnSums:
    sums = ColumnSums(0)
    sums._core = core
    return sums


def _read_integers(data: npt.NDArray[np.uint8], width: int) -> list[int]:
    rows = data.reshape(-1, width)
    return [int.from_bytes(row.tobytes(), "little", signed=True) for row in rows]
