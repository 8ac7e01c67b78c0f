"""Exact sums of products of columns, of rows on a fixed-point grid."""

from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from letheon import _core

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Values are multiples of 2**-20 below 2**10, in two slices: value = upper * 2**16 + lower.
GRID_BITS = 20
LARGEST = 2**30 - 1
# Values that are converted at once, in the cache of the processor.
_CACHED_VALUES = 2**14
# For so few rows a plain loop is faster than a matrix product.
_FEW_ROWS = 4
# Up to so many runs of columns, products are copied run by run.
_FEW_RUNS = 64


class Slices(NamedTuple):
    """Rows on the grid: upper and lower parts of the integers, and how many values were clipped.

    `upper` and `lower` are float64 arrays, or sparse arrays of int64, of shape (n_rows, n_columns);
    `n_clipped` are integers of shape (n_columns,).
    """

    upper: Any
    lower: Any
    n_clipped: Ints

    def select(self, columns: Ints) -> "Slices":
        """Return some columns, in this order; -1 gives a column of zeros."""
        sources, is_known = np.maximum(columns, 0), columns >= 0
        if sp.issparse(self.upper):
            upper, lower = self.upper[:, sources], self.lower[:, sources]
            for part in (upper, lower):
                part.data *= is_known[part.indices]
        else:  # in C order
            upper = np.take(self.upper, sources, axis=1) * is_known
            lower = np.take(self.lower, sources, axis=1) * is_known
        return Slices(upper, lower, self.n_clipped[sources] * is_known)


def slice_columns(
    X: Floats, factors: Floats, shifts: Floats, roots: Floats | None, out: Slices, start: int
) -> None:
    """Write ``rint((X * factors - shifts) * roots * 2**20)`` into columns of slices.

    Values beyond 2**30 - 1 are clipped and counted. Every operation is IEEE arithmetic on single
    numbers, so the integers are the same on every CPU.
    """
    part = slice(start, start + X.shape[1])
    _core.quantise(
        X, factors, shifts, roots, out.upper[:, part], out.lower[:, part], out.n_clipped[part]
    )


def empty_slices(n_rows: int, n_columns: int) -> Slices:
    """Return slices with memory for some rows."""
    shape = (n_rows, n_columns)
    return Slices(np.empty(shape), np.empty(shape), np.zeros(n_columns, np.int64))


def slice_sparse(X: Any, factors: Floats, roots: Floats | None, extra: Slices) -> Slices:
    """Return the slices of a CSR array, followed by dense columns that are already in slices."""
    n_rows, n_columns = X.shape
    with np.errstate(over="ignore"):
        values = X.data * factors[X.indices]
        if roots is not None:
            values = values * np.repeat(roots, np.diff(X.indptr))
    data = empty_slices(len(values), 1)
    one, none = np.full(1, 1.0), np.zeros(1)
    slice_columns(values[:, None], one, none, None, data, 0)
    is_clipped = np.abs(values) > LARGEST / 2.0**GRID_BITS
    n_clipped = np.bincount(X.indices[is_clipped], minlength=n_columns).astype(np.int64)
    # Both parts have the same places, also where one of them is zero.
    n_extra = extra.upper.shape[1]
    places = np.repeat(X.indptr[1:].astype(np.int64), n_extra)
    columns = np.tile(n_columns + np.arange(n_extra), n_rows)
    indices = np.insert(X.indices.astype(np.int64), places, columns)
    begins = X.indptr.astype(np.int64) + n_extra * np.arange(n_rows + 1)
    parts = [
        sp.csr_array(
            (np.insert(inner[:, 0], places, outer.ravel()).astype(np.int64), indices, begins),
            shape=(n_rows, n_columns + n_extra),
        )
        for inner, outer in ((data.upper, extra.upper), (data.lower, extra.lower))
    ]
    upper, lower = parts
    return Slices(upper, lower, np.concatenate([n_clipped, extra.n_clipped]))


def multiply_slices(left: Slices, right: Slices | None = None) -> Ints:
    """Return the three matrices of products of all columns of `left` and of `right`.

    Shape (3, n_left, n_right): products of upper parts, mixed products (both orders together), and
    products of lower parts. Without `right`, it is `left`. Sums of up to 2**20 rows are exact.
    """
    right = left if right is None else right
    if sp.issparse(left.upper):
        high, low = left.upper.T @ right.upper, left.lower.T @ right.lower
        both = (left.upper + left.lower).T @ (right.upper + right.lower)
        parts = [part.toarray() for part in (high, both - high - low, low)]
        return np.stack(parts).astype(np.int64)
    # The sum of both parts has 16 bits, too: three products instead of four (Karatsuba).
    total = left.upper + left.lower
    other = total if right is left else right.upper + right.lower
    products = np.empty((3, left.upper.shape[1], right.upper.shape[1]), np.int64)
    products[0] = left.upper.T @ right.upper
    products[2] = left.lower.T @ right.lower
    products[1] = total.T @ other
    products[1] -= products[0] + products[2]
    return products


class Gram:
    """Exact sums of products of columns, for all pairs or for squares only.

    Parameters
    ----------
    n_columns : int
        Number of columns, with the constant column and the targets.
    lead : int or None, default=None
        None keeps the products of all pairs of columns. A number keeps the squares and the
        products with this column only, for models with diagonal covariances.

    Attributes
    ----------
    products : ndarray of int64, shape (3, n_columns, n_columns) or (3, 2, n_columns)
        Sums of the products of upper parts, of mixed products, and of products of lower parts. With
        `lead`, the first row has the products with that column and the second one the squares.
    n_clipped : ndarray of int64, shape (n_columns,)
        Number of values beyond the range of the grid, for each column.

    Notes
    -----
    Rows are integers of 31 bits on a grid (`Slices`). Each matrix is a plain sum of integers, so
    rows can be added and subtracted in any order. BLAS multiplies blocks of rows; all of its
    intermediate sums are integers below 2**53, so the result is exact with every BLAS kernel and
    number of threads.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.sums import Gram
    >>> from letheon.sums._gram import empty_slices, slice_columns
    >>> rows = empty_slices(2, 2)
    >>> X = np.array([[1.0, 2.0], [0.5, -1.0]])
    >>> slice_columns(X, np.ones(2), np.zeros(2), None, rows, 0)
    >>> gram = Gram(2)
    >>> gram.add(rows)
    >>> gram.to_float().tolist()
    [[1.25, 1.5], [1.5, 5.0]]
    """

    __slots__ = ("_floats", "lead", "n_clipped", "products")

    def __init__(self, n_columns: int, lead: int | None = None) -> None:
        self.lead = lead
        self._floats: Floats | None = None
        n_rows = n_columns if lead is None else 2
        self.products: Ints = np.zeros((3, n_rows, n_columns), np.int64)
        self.n_clipped: Ints = np.zeros(n_columns, np.int64)

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return len(self.n_clipped)

    def add(self, rows: Slices) -> None:
        """Add the products of some rows, at most 2**20."""
        self._change(rows, 1)

    def subtract(self, rows: Slices) -> None:
        """Subtract the products of rows that were added before."""
        self._change(rows, -1)

    def _change(self, rows: Slices, sign: int) -> None:
        n_rows = rows.upper.shape[0]
        if self.lead is not None or not sp.issparse(rows.upper):
            self._floats = None
        if self.lead is not None:
            self.products += sign * multiply_diagonal(rows, self.lead)
        elif sp.issparse(rows.upper):
            self._change_sparse(rows, sign)
        elif n_rows <= _FEW_ROWS:
            _core.add_products(rows.upper, rows.lower, sign, self.products)
        elif sign == 1:
            self.products += multiply_slices(rows)
        else:
            self.products -= multiply_slices(rows)
        if rows.n_clipped.any():
            self.n_clipped += sign * rows.n_clipped

    def _change_sparse(self, rows: Slices, sign: int) -> None:
        upper, lower = rows.upper, rows.lower
        _core.add_sparse_products(
            upper.indptr.astype(np.int64),
            upper.indices.astype(np.int64),
            upper.data,
            lower.data,
            sign,
            upper.shape[1],
            self.products,
            self._floats,
        )

    def put(self, columns: Ints, products: Ints, n_clipped: Ints) -> None:
        """Replace all products with these columns.

        Parameters
        ----------
        columns : ndarray of int
            Numbers of the columns.
        products : ndarray of int64
            `multiply_slices` of all columns and these columns; with `lead`, of shape
            (3, 2, n_columns) and only these columns are used.
        n_clipped : ndarray of int64
            Numbers of clipped values of all columns.
        """
        if self.lead is not None:
            self.products[:, :, columns] = products[:, :, columns]
        else:
            self.products[:, :, columns] = products
            self.products[:, columns, :] = np.swapaxes(products, 1, 2)
            if self._floats is not None:
                self._floats[columns] = _convert(*self.products[:, columns])
                self._floats[:, columns] = self._floats[columns].T
        self.n_clipped[columns] = n_clipped[columns]

    def select(self, columns: Ints, lead: int | None = None) -> "Gram":
        """Return the products of some columns, in this order; -1 gives a column of zeros."""
        gram = Gram(len(columns), None if self.lead is None else lead)
        places = np.flatnonzero(columns >= 0)
        sources = columns[places]
        if self.lead is None:
            gram._copy_pairs(self.products, places, sources)
        else:
            gram.products[:, :, places] = self.products[:, :, sources]
        gram.n_clipped[places] = self.n_clipped[sources]
        return gram

    def _copy_pairs(self, products: Ints, places: Ints, sources: Ints) -> None:
        """Write the products of all pairs of some columns."""
        runs = list(_find_runs(places, sources))
        if len(runs) <= _FEW_RUNS:  # three times as fast
            for (rows, old_rows), (columns, old_columns) in product(runs, runs):
                self.products[:, rows, columns] = products[:, old_rows, old_columns]
            return
        for part, source in zip(self.products, products, strict=True):
            part[np.ix_(places, places)] = source[np.ix_(sources, sources)]

    def to_float(self) -> Floats:
        """Return the sums of products in float64, in units of the grid's scale."""
        values = np.empty(self.products.shape[1:])
        n_rows = max(1, _CACHED_VALUES // max(1, self.products.shape[2]))
        for begin in range(0, len(values), n_rows):
            here = slice(begin, begin + n_rows)
            values[here] = _convert(*(products[here] for products in self.products))
        return values

    def read_floats(self) -> Floats:
        """Return `to_float()`, which is kept; it must not be changed.

        Changes by sparse rows and of some columns renew only what they concern.
        """
        if self._floats is None:
            self._floats = self.to_float()
        return self._floats

    def settle(self) -> "Gram":
        """Return the products with all changes."""
        return self

    def exact_product(self, row: int, column: int) -> int:
        """Return one sum of products as an integer, in units of 2**-40."""
        high, mixed, low = (int(part) for part in self.products[:, row, column])
        return (high << 32) + (mixed << 16) + low

    def copy(self) -> "Gram":
        """Return a copy with its own memory."""
        gram = Gram(0, self.lead)
        gram.products, gram.n_clipped = self.products.copy(), self.n_clipped.copy()
        return gram

    __copy__ = copy

    def _to_state(self) -> dict[str, Any]:
        return {"lead": self.lead, "n_clipped": self.n_clipped, "products": self.products}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        products, n_clipped, lead = state["products"], state["n_clipped"], state["lead"]
        n_columns = len(n_clipped)
        shape = (3, n_columns if lead is None else 2, n_columns)
        if products.shape != shape or n_clipped.shape != (n_columns,):
            raise ValueError(f"the products have shape {products.shape}; expected {shape}")
        if products.dtype != np.int64 or n_clipped.dtype != np.int64:
            raise ValueError(f"the products have dtype {products.dtype}; expected int64")
        gram = cls(0, lead)
        gram.products = np.array(products, order="C")
        gram.n_clipped = np.array(n_clipped)
        return gram

    def __reduce__(self) -> tuple[Any, tuple[dict[str, Any]]]:
        """Pickle the integers."""
        return type(self)._from_state, (self._to_state(),)


class PendingGram(Gram):
    """Changes of products that are made later, in the original: `settle` returns it.

    A large matrix is then neither copied nor read.

    Parameters
    ----------
    original : Gram
        The products; not changed before `settle` is called.
    """

    __slots__ = ("_changes", "_original")

    def __init__(self, original: Gram) -> None:
        self.lead, self._original = original.lead, original
        self._changes: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return self._original.n_columns

    def _change(self, rows: Slices, sign: int) -> None:
        self._changes.append((Gram._change, (rows, sign)))

    def put(self, columns: Ints, products: Ints, n_clipped: Ints) -> None:
        """Replace all products with these columns; see `Gram.put`."""
        self._changes.append((Gram.put, (columns, products, n_clipped)))

    def select(self, columns: Ints, lead: int | None = None) -> Gram:
        """Return the changed products of some columns; see `Gram.select`."""
        gram = self._original.select(columns, lead)
        for change, (rows, *others) in self._changes:
            if change is not Gram._change:
                return self.copy().select(columns, lead)
            change(gram, rows.select(columns), *others)
        return gram

    def to_float(self) -> Floats:
        """Return the changed products in float64; see `Gram.to_float`."""
        return self.copy().to_float()

    def copy(self) -> Gram:
        """Return the changed products with their own memory."""
        return self._change_all(self._original.copy())

    def settle(self) -> Gram:
        """Make all changes in the original and return it. Cannot fail."""
        return self._change_all(self._original)

    def _change_all(self, gram: Gram) -> Gram:
        for change, arguments in self._changes:
            change(gram, *arguments)
        return gram


def _convert(high: Ints, mixed: Ints, low: Ints) -> Floats:
    """Return sums of products in float64, in units of the grid's scale."""
    values = np.multiply(high, 2.0 ** (32 - 2 * GRID_BITS), dtype=np.float64)
    values += mixed * 2.0 ** (16 - 2 * GRID_BITS)
    values += low * 2.0 ** (-2 * GRID_BITS)
    return values


def _find_runs(places: Ints, sources: Ints) -> Iterator[tuple[slice, slice]]:
    """Iterate over the runs in which both arrays count up; a copy of a run is fast."""
    breaks = np.flatnonzero((np.diff(places) != 1) | (np.diff(sources) != 1)) + 1
    edges = [0, *breaks.tolist(), len(places)]
    for begin, end in pairwise(edges if len(places) else []):
        place, source = int(places[begin]), int(sources[begin])
        yield slice(place, place + end - begin), slice(source, source + end - begin)


def multiply_diagonal(rows: Slices, lead: int) -> Ints:
    """Return products with one column and squares, shape (3, 2, n_columns)."""
    high, low = rows.upper, rows.lower
    if sp.issparse(high):
        high, low = high.toarray().astype(np.float64), low.toarray().astype(np.float64)
    first_high, first_low = high[:, [lead]], low[:, [lead]]
    parts = [
        [first_high * high, high * high],
        [first_high * low + first_low * high, 2.0 * (high * low)],
        [first_low * low, low * low],
    ]
    sums = [[part.sum(axis=0) for part in pair] for pair in parts]
    return np.array(sums).astype(np.int64)
