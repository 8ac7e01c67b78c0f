"""From the input of `predict` to rows of numbers."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import check_array

from letheon.data import Frame, KnownCategories, as_matrix, numbers_of
from letheon.predictor._graph import OnnxGraph, OnnxTable


@dataclass(frozen=True, eq=False)
class NumberInputs:
    """Columns of numbers without missing values.

    Attributes
    ----------
    n_columns : int
        Number of columns.
    names : tuple of str or None
        Their names, if the model was fitted on a frame.
    is_sparse : bool
        Whether sparse rows are accepted.

    Examples
    --------
    >>> from letheon.predictor import NumberInputs
    >>> NumberInputs(n_columns=2).read([[1, -0.0]])
    array([[1., 0.]])
    """

    n_columns: int
    names: tuple[str, ...] | None = None
    is_sparse: bool = True

    def read(self, X: Any) -> Any:
        """Return X as float64, dense or CSR."""
        table = check_array(
            numbers_of(X) if isinstance(X, Frame) else X,
            accept_sparse="csr" if self.is_sparse else False,
            dtype=np.float64,
            order="C",
            input_name="X",
        )
        if not sp.issparse(table):
            return table + 0.0  # -0.0 becomes 0.0
        rows = sp.csr_array(table)
        rows.sum_duplicates()
        return rows

    def export(self, graph: OnnxGraph, table: OnnxTable) -> str:
        """Add the rows to an ONNX graph; return their name."""
        return graph.join(table)


@dataclass(frozen=True, eq=False)
class TreeInputs:
    """Columns of numbers, which may have missing values, and of categories, as trees read them.

    Attributes
    ----------
    n_columns : int
        Number of columns.
    names : tuple of str or None
        Their names, if the model was fitted on a frame.
    columns : tuple of int
        Numbers of the columns of categories, ascending.
    column_names : tuple of str
        Their names, or their numbers as texts.
    texts : tuple of tuple of str
        For each of them the categories that some tree asks for, sorted. The code of a category is
        its place; -1 is any other category.
    is_by_dtype : bool
        Whether a column of categories must not have a numeric dtype.

    Examples
    --------
    >>> from letheon.predictor import TreeInputs
    >>> inputs = TreeInputs(1, columns=(0,), column_names=("city",), texts=(("Bonn", "Ulm"),))
    >>> inputs.read([["Ulm"], ["Kiel"]]).ravel().tolist()
    [1.0, -1.0]
    """

    n_columns: int
    names: tuple[str, ...] | None = None
    columns: tuple[int, ...] = ()
    column_names: tuple[str, ...] = ()
    texts: tuple[tuple[str, ...], ...] = ()
    is_by_dtype: bool = False

    def _require_valid(self) -> None:
        """Raise `ValueError` if the columns of categories in a file do not match."""
        columns, texts = self.columns, self.texts
        is_order = all(a < b for a, b in pairwise((-1, *columns, self.n_columns)))
        is_text = all(isinstance(text, str) for each in texts for text in each)
        if not (is_order and is_text and len(columns) == len(self.column_names) == len(texts)):
            raise ValueError("the columns of categories are not valid")

    def read(self, X: Any) -> Any:
        """Return X as a float matrix with NaN for missing values, dense or sparse."""
        if not self.columns:
            return as_matrix(X)
        known = KnownCategories(0, self.columns, self.column_names, self.texts)
        return known.encode(X, by_dtype=self.is_by_dtype).matrix

    def export(self, graph: OnnxGraph, table: OnnxTable) -> str:
        """Add the rows to an ONNX graph, rounded to float32; return their name."""
        columns = list(table.columns)
        for place, texts in zip(self.columns, self.texts, strict=True):
            # The empty text is a missing value, unless it is a category.
            keys = texts if "" in texts else (None, *texts)
            codes = [-1.0, *([] if "" in texts else [np.nan]), *range(len(texts))]
            columns[place] = graph.look_up(
                columns[place], keys, np.array(codes)[:, None], is_text=True
            )
        rows = graph.join(OnnxTable(table.matrix, tuple(columns)))
        return graph.cast(graph.cast(rows, np.float32), np.float64)

    @property
    def categorical(self) -> NDArray[np.uint8]:
        """Whether each column has categories."""
        flags = np.zeros(self.n_columns, np.uint8)
        flags[list(self.columns)] = 1
        return flags


def dense_blocks(X: Any, n_cells: int = 1 << 22) -> Iterator[NDArray[Any]]:
    """Yield a matrix as dense blocks of rows."""
    rows, size = X.tocsr() if sp.issparse(X) else X, max(1, n_cells // max(1, X.shape[1]))
    for begin in range(0, X.shape[0], size):
        block = rows[begin : begin + size]
        yield block.toarray() if sp.issparse(block) else block
