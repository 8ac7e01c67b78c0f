"""A model that keeps no rows: the Hessian, and fingerprints by which it knows its rows again.

Sekhari et al. 2021: parameters and Hessian are enough to remove rows that somebody brings back. The
Hessian's entries are kept on a grid: where only rows that left had put something, rounding would
otherwise leave a last bit that tells which columns they had.
"""

import hashlib
import secrets
from math import frexp
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from letheon.data import SlotRows
from letheon.linear._curvature import Block, Curvature
from letheon.linear._solve import DENSE_LIMIT
from letheon.removal import Cache

Fingerprints = NDArray[np.uint64]

# The grid is the largest eigenvalue times 2^-36, about: far above what rounding leaves of a row,
# and far below anything a step would notice.
_GRID_BITS = 36


class StoredCurvature(Cache[Curvature]):
    """A Hessian that is saved with its model, since no rows are there to compute it from."""

    def __init__(self, content: Curvature | None = None, ridge: float = 0.0) -> None:
        super().__init__(content)
        self.ridge = ridge

    @classmethod
    def of(cls, curvature: Curvature, ridge: float) -> Self:
        """Put a fresh Hessian on the grid and keep it."""
        stored = cls(curvature, ridge)
        stored.tidy()
        return stored

    def tidy(self, ridge: float | None = None) -> None:
        """Round the entries to the grid, and count what that may miss; `ridge` is the one now."""
        self.ridge = self.ridge if ridge is None else ridge
        curvature = self.content
        assert curvature is not None
        for block, top in zip(curvature.blocks, curvature.tops, strict=True):
            grid = 2.0 ** (frexp(top)[1] - _GRID_BITS)
            block.hessian /= grid
            np.rint(block.hessian, out=block.hessian)
            block.hessian *= grid
            curvature.error += grid / 2 * len(block.hessian)

    def _to_state(self) -> dict[str, Any]:
        curvature = self.content
        assert curvature is not None
        return {
            "point": curvature.point,
            # The upper triangle does not follow removals.
            "blocks": [np.tril(block.hessian) for block in curvature.blocks],
            "tops": list(curvature.tops),
            "radius": curvature.radius,
            "error": curvature.error,
            "ridge": self.ridge,
        }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        ridge = float(state["ridge"])
        for hessian in state["blocks"]:
            if not isinstance(hessian, np.ndarray) or hessian.dtype != np.float64:
                raise ValueError("a block of the Hessian is no array of float64")
        blocks = [Block.of(hessian, ridge) for hessian in state["blocks"]]
        bounds = list(state["tops"]), float(state["radius"]), float(state["error"])
        return cls(Curvature(state["point"], blocks, *bounds), ridge)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what a file would hold."""
        return type(self)._from_state, (self._to_state(),)

    def __copy__(self) -> Self:
        """Return a copy with matrices of its own."""
        return type(self)._from_state(self._to_state())

    def __deepcopy__(self, _: Any) -> Self:
        return self.__copy__()


def without_rows(rows: SlotRows, curvature: Curvature | None, ridge: float) -> dict[str, Any]:
    """Return the attributes of a model that keeps a Hessian and fingerprints in place of rows."""
    if curvature is None:
        raise ValueError(
            f"data_free=True keeps a Hessian, and {rows.X.shape[1]} columns are too many for one "
            f"(limit {DENSE_LIMIT}, times the classes with multi_class='softmax')"
        )
    key = secrets.token_hex(32)
    marks = {"fingerprint": fingerprint_rows(rows.X, rows.y, key)}
    return {
        "rows_": SlotRows(np.empty((len(rows), 0)), np.zeros_like(rows.y), rows.ids, marks),
        "fingerprint_key_": key,
        "cache_": StoredCurvature.of(curvature, ridge),
    }


def require_recognised(rows: Any, y: NDArray[Any], key: str, held: Fingerprints) -> None:
    """Raise unless these rows, in any order, are those whose fingerprints are held."""
    if not np.array_equal(np.sort(fingerprint_rows(rows, y, key)), np.sort(held)):
        raise ValueError(
            f"the {len(y)} row(s) given are not the {len(held)} row(s) that these people had in "
            "fit (every number and label counts); nothing was changed"
        )


def fingerprint_rows(rows: Any, y: NDArray[Any], key: str) -> Fingerprints:
    """Return 64 bits per row and target, by a keyed hash: nobody can test guesses without it."""
    dense = rows.toarray() if sp.issparse(rows) else rows
    secret, found = bytes.fromhex(key), np.empty(len(y), np.uint64)
    for number, (row, target) in enumerate(zip(dense, y, strict=True)):
        message = np.ascontiguousarray(row, "<f8").tobytes() + np.float64(target).tobytes()
        digest = hashlib.blake2b(message, digest_size=8, key=secret).digest()
        found[number] = int.from_bytes(digest, "little")
    return found
