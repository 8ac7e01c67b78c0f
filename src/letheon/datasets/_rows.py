"""Some rows of a table of any kind."""

from typing import Any

from numpy.typing import NDArray
from scipy import sparse

__all__ = ["by_row", "taken"]


def by_row(X: Any) -> Any:
    """Return a sparse table in the format from which rows can be taken; others as they are."""
    return X.tocsr() if sparse.issparse(X) else X


def taken(X: Any, where: NDArray[Any]) -> Any:
    """Return the rows with these numbers."""
    return X.iloc[where] if hasattr(X, "iloc") else X[where]
