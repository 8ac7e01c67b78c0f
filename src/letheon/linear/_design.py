"""Rows of a table as rows of a linear problem: checked, with an intercept, of bounded norm."""

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import check_array

from letheon.exceptions import AssumptionError
from letheon.linear._losses import Floats

RULES = ("keep", "clip", "normalize", "refuse")
# Norms are computed in floating point; a row scaled to R may come out this much above it.
NORM_ROUNDING = 1e-6


@dataclass(frozen=True)
class Design:
    """How a row becomes a row of the problem.

    The intercept is a column of ones, put there before norms are taken. `rule` says what happens
    to a row whose norm is not the declared bound `row_norm`: "keep" (no bound is declared), "clip"
    (longer rows are scaled down), "normalize" (all rows are scaled to it) or "refuse" (longer rows
    are an error).
    """

    fit_intercept: bool
    rule: str = "keep"
    row_norm: float | None = None

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        if self.rule not in RULES:
            raise ValueError(f"rows={self.rule!r}; expected one of {RULES}")
        if self.rule == "keep":
            if self.row_norm is not None:
                raise ValueError(
                    f"row_norm={self.row_norm!r} has no effect with rows='keep'; choose "
                    "rows='clip', 'normalize' or 'refuse', or leave row_norm=None"
                )
        elif not _is_positive(self.row_norm):
            raise ValueError(
                f"rows={self.rule!r} needs row_norm, a positive bound of the norm of every row "
                f"(the intercept's 1 included); got {self.row_norm!r}"
            )

    def rows(self, X: Any) -> Any:
        """Return the rows of the problem in memory of their own: C order, or CSR.

        Raises
        ------
        AssumptionError
            With the rule "refuse", if a row is longer than declared.
        """
        matrix = as_matrix(X)
        n, p = matrix.shape
        if sp.issparse(matrix):
            columns = [matrix, np.ones((n, 1), matrix.dtype)] if self.fit_intercept else [matrix]
            # In float64: SciPy would convert it anew at every product.
            rows: Any = sp.csr_array(sp.hstack(columns, format="csr"), dtype=np.float64, copy=True)
            rows.sum_duplicates()
        else:
            rows = np.ones((n, p + self.fit_intercept), matrix.dtype)
            rows[:, :p] = matrix
            rows += 0.0  # -0.0 becomes 0.0
        scales = self._scales(row_norms(rows))
        if scales is not None:
            _scale(rows, scales)
        return rows

    def scores(self, X: Any, W: Floats) -> Floats:
        """Return X W without building the rows, shape (n, K)."""
        matrix = as_matrix(X)
        weights = W[:-1] if self.fit_intercept else W
        scores: Floats = np.asarray(matrix @ weights, np.float64)
        if self.fit_intercept:
            scores += W[-1]
        scales = self._prediction_scales(matrix)
        return scores if scales is None else scores * scales[:, None]

    def _prediction_scales(self, matrix: Any) -> Floats | None:
        if self.rule in ("keep", "refuse"):
            return None
        return self._scales(np.hypot(row_norms(matrix), float(self.fit_intercept)))

    def _scales(self, norms: Floats) -> Floats | None:
        """Return the factor of every row; None where all are 1."""
        if self.rule == "keep" or self.row_norm is None:
            return None
        longer = norms > self.row_norm * (1 + NORM_ROUNDING)
        if self.rule == "refuse":
            if longer.any():
                raise AssumptionError(
                    f"{longer.sum()} row(s) have a norm above row_norm={self.row_norm:g}, up to "
                    f"{norms.max():g} (intercept included); give a larger row_norm, or rows='clip'"
                )
            return None
        scales = np.ones_like(norms)
        wanted = norms > 0 if self.rule == "normalize" else norms > self.row_norm
        scales[wanted] = self.row_norm / norms[wanted]
        return scales


def as_matrix(X: Any) -> Any:
    """Return X as float64 or float32, dense or CSR; NaN, infinity and texts are refused."""
    try:
        return check_array(X, accept_sparse="csr", dtype=[np.float64, np.float32], input_name="X")
    except ValueError as error:
        if "could not convert string" not in str(error):
            raise
    # The original text would quote a value of somebody's row.
    raise ValueError(
        "X holds texts, and a linear model needs numbers; turn texts into numbers "
        "(HashingVectorizer) and encode columns of categories (OneHotEncoder)"
    )


def row_norms(X: Any) -> Floats:
    """Norm of every row, in float64."""
    if sp.issparse(X):
        squares = X.astype(np.float64).power(2).sum(axis=1)
        return np.sqrt(np.asarray(squares, np.float64).ravel())
    norms: Floats = np.sqrt(np.einsum("ij,ij->i", X, X, dtype=np.float64))
    return norms


def _scale(rows: Any, scales: NDArray[np.float64]) -> None:
    if sp.issparse(rows):
        rows.data *= np.repeat(scales, np.diff(rows.indptr)).astype(rows.dtype)
    else:
        rows *= scales[:, None].astype(rows.dtype)


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return is_number and isfinite(value) and value > 0
