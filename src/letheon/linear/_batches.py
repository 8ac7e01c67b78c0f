"""Which rows make which step of a stochastic descent: a removal reshuffles nobody.

The steps are cut into epochs of n_batches steps. In every epoch a row belongs to one batch::

    key(row)    = mix64(keyed_hash(seed, "batch", id of the row), number of the row among its id's)
    batch(row)  = mix64(keyed_hash(seed, "batch-epoch", epoch), key(row)) mod n_batches

It depends on the row's own id, on the seed and on the epoch, and on nobody else. Sizes of batches
vary; a batch may be empty.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from letheon.data import Ids
from letheon.linear._problem import Positions
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
