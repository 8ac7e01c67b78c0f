"""The path of a gradient descent, its batches, and secant pairs along it.

Which rows make which step of a stochastic descent: a removal reshuffles nobody.

The steps are cut into epochs of n_batches steps. In every epoch a row belongs to one batch::

    key(row)    = mix64(keyed_hash(seed, "batch", id of the row), number of the row among its id's)
    batch(row)  = mix64(keyed_hash(seed, "batch-epoch", epoch), key(row)) mod n_batches

It depends on the row's own id, on the seed and on the epoch, and on nobody else. Sizes of batches
vary; a batch may be empty.

The path of a gradient descent: where it was and which way it went, step by step.

Products with a Hessian that is known from a few steps only: L-BFGS in compact form.

`letheon.removal.secant_matrix` has the formula.
"""

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from letheon.data import Ids
from letheon.linear._problem import Floats, Positions
from letheon.removal import RecordedPath, allocate_file, secant_matrix
from letheon.seeds import Purpose, keyed_hash, mix64

Keys = NDArray[np.uint64]


def row_keys(ids: Ids, seed: int) -> Keys:
    """Return the key of every row; rows of one person have different ones."""
    owners = ids.hashes(seed, Purpose.BATCH)
    order = np.argsort(owners, kind="stable")
    ranks = np.arange(len(owners), dtype=np.int64)
    in_order = owners[order]
    is_first = np.append(True, in_order[1:] != in_order[:-1])[: len(owners)]
    numbers = np.empty(len(owners), np.uint64)
    numbers[order] = ranks - np.maximum.accumulate(np.where(is_first, ranks, 0))
    return mix64(owners, numbers)


class Batches:
    """The batches of one descent.

    Parameters
    ----------
    keys : ndarray of uint64
        Key of every slot.
    alive : ndarray of bool
        Which slots hold a row.
    n_batches : int
        Batches in an epoch.
    seed : int
        Seed of the model.
    """

    def __init__(self, keys: Keys, alive: NDArray[np.bool_], n_batches: int, seed: int) -> None:
        self._keys = keys
        self._held = np.flatnonzero(alive)
        self._n_batches = n_batches
        self._seed = seed
        self._epoch = -1
        self._order: Positions = np.empty(0, np.int64)
        self._ends: Positions = np.empty(0, np.int64)

    def at(self, step: int) -> Positions:
        """Return the positions of the rows of a step, ascending."""
        epoch, batch = divmod(step, self._n_batches)
        if epoch != self._epoch:
            self._sort(epoch)
        found: Positions = self._order[self._ends[batch] : self._ends[batch + 1]]
        return found

    def meetings(self, chosen: Positions, n_steps: int) -> Iterator[tuple[int, Positions]]:
        """Yield the steps, ascending, that some rows take part in, and which of them do."""
        keys = self._keys[chosen]
        for first in range(0, n_steps, self._n_batches):
            batches = self._batches(first // self._n_batches, keys)
            for batch in np.unique(batches).tolist():
                if first + batch < n_steps:
                    yield first + batch, np.flatnonzero(batches == batch)

    def _sort(self, epoch: int) -> None:
        batches = self._batches(epoch, self._keys[self._held])
        self._order = self._held[np.argsort(batches, kind="stable")]
        counts = np.bincount(batches, minlength=self._n_batches)
        self._ends = np.append(0, np.cumsum(counts))
        self._epoch = epoch

    def _batches(self, epoch: int, keys: Keys) -> Positions:
        key = keyed_hash(self._seed, Purpose.BATCH_EPOCH, epoch)
        return (mix64(key, keys) % np.uint64(self._n_batches)).astype(np.int64)


Sizes = NDArray[np.int64]


class Trajectory(RecordedPath[Floats]):
    """A path in float64, score after score."""

    @classmethod
    def allocate(cls, n_steps: int, n_parameters: int, max_memory: int) -> Self:
        """Return room for a path: in memory, or in a file if it takes more bytes than that."""
        shape = (2, n_steps, n_parameters)
        n_bytes = 8 * int(np.prod(shape, dtype=np.int64))
        if n_bytes <= max_memory:
            room = np.zeros(shape)
        else:
            room = np.frombuffer(allocate_file(n_bytes), np.float64).reshape(shape)
        return cls(room[0], room[1], np.zeros(n_steps, np.int64))

    def _to_state(self) -> dict[str, Any]:
        return {"points": self.points, "gradients": self.gradients, "sizes": self.sizes}

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        return cls(state["points"], state["gradients"], state["sizes"])


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
