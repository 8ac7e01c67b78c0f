"""Products with a Hessian that is known from a few steps only: L-BFGS in compact form.

`letheon.removal.secant_matrix` has the formula.
"""

from typing import Any

import numpy as np
from scipy.linalg import lapack

from letheon.linear._losses import Floats
from letheon.removal import secant_matrix

# Least scale c of the starting matrix, in the mean objective: that of the authors of DeltaGrad.
LEAST_SCALE = 1e-3


class Secants:
    """The last pairs (s, y) of one block of the Hessian.

    Parameters
    ----------
    history : int
        How many pairs are kept.
    size : int
        Length of s and y.
    """

    def __init__(self, history: int, size: int) -> None:
        # Pairs stay where they are: the newest takes the place of the oldest.
        self._s, self._y = np.zeros((history, size)), np.zeros((history, size))
        self._inner = np.zeros((history, history))  # s_i . y_j
        self._gram = np.zeros((history, history))  # s_i . s_j
        self._ages = np.zeros(history, np.int64)
        self._n_pushed = 0
        self._scale = 0.0
        self._factor: tuple[Floats, Any] | None = None

    def __len__(self) -> int:
        return min(self._n_pushed, len(self._ages))

    def push(self, s: Floats, y: Floats) -> bool:
        """Keep a pair, and drop the oldest if there are too many; refused unless s.y > 0."""
        along = float(s @ y)
        if not along > 0.0:
            return False
        place = self._n_pushed % len(self._ages)
        self._s[place], self._y[place] = s, y
        self._ages[place] = self._n_pushed
        self._n_pushed += 1
        n = len(self)
        self._inner[place, :n], self._inner[:n, place] = self._y[:n] @ s, self._s[:n] @ y
        self._gram[place, :n] = self._gram[:n, place] = self._s[:n] @ s
        self._scale = max(along / self._gram[place, place], LEAST_SCALE)
        self._factor = None
        return True

    def product(self, v: Floats) -> Floats | None:
        """Return B v; None where there is no pair, or none that can be computed with."""
        n, scale = len(self), self._scale
        if n == 0:
            return None
        if self._factor is None:
            self._factor = self._factored()
        ahead = np.concatenate([self._y[:n] @ v, scale * (self._s[:n] @ v)])
        middle, _ = lapack.dgetrs(*self._factor, ahead)
        product: Floats = scale * v
        product -= middle[:n] @ self._y[:n]
        product -= (scale * middle[n:]) @ self._s[:n]
        return product if np.isfinite(product).all() else None

    def _factored(self) -> tuple[Floats, Any]:
        n = len(self)
        inner, gram, ages = self._inner[:n, :n], self._gram[:n, :n], self._ages[:n]
        middle = secant_matrix(inner, gram, ages, self._scale)
        factor, pivots, _ = lapack.dgetrf(middle)
        return factor, pivots


class BlockSecants:
    """Pairs of parameters whose Hessian has several blocks, one after the other."""

    def __init__(self, history: int, n_blocks: int, size: int) -> None:
        self._blocks = [Secants(history, size) for _ in range(n_blocks)]
        self._shape = n_blocks, size

    def push(self, s: Floats, y: Floats) -> None:
        """Keep a pair, block by block."""
        pairs = zip(self._blocks, s.reshape(self._shape), y.reshape(self._shape), strict=True)
        for block, s_block, y_block in pairs:
            block.push(s_block, y_block)

    def product(self, v: Floats, most: float) -> Floats | None:
        """Return B v, or None where it cannot be trusted.

        That is where a block that moved has no pairs, or where B v is longer than `most` times v,
        `most` being an upper bound of the Hessian's norm.
        """
        product = np.zeros(self._shape)
        for block, change, out in zip(self._blocks, v.reshape(self._shape), product, strict=True):
            length = float(np.linalg.norm(change))
            if length == 0.0:
                continue
            found = block.product(change)
            if found is None or not float(np.linalg.norm(found)) <= most * length:
                return None
            out[:] = found
        return product.ravel()
