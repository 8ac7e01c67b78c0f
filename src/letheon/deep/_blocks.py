"""Rows in blocks that a net is trained on one after the other, each from where the last ended."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from letheon.data import Ids, SlotRows
from letheon.deep._loop import Callback, Loop, Stretch
from letheon.deep._order import EMPTY
from letheon.seeds import Purpose

Integers = NDArray[np.int64]

BLOCK, SLOT = "block", "slot"
ANNEALS = ("none", "linear", "one-cycle")
# Share of the blocks over which the learning rate rises.
_WARM_UP = 0.1


def blocks_of(ids: Ids, seed: int, n_blocks: int) -> Integers:
    """Return the block of every row: ``keyed_hash(seed, "block", id) mod n_blocks``."""
    return (ids.hashes(seed, Purpose.BLOCK) % np.uint64(n_blocks)).astype(np.int64)


def numbered_slots(blocks: Integers) -> Integers:
    """Return the slot of every row: how many rows of its block stand before it."""
    order = np.argsort(blocks, kind="stable")
    ranked = blocks[order]
    slots = np.empty_like(blocks)
    slots[order] = np.arange(len(blocks)) - np.searchsorted(ranked, ranked)
    return slots


class Pace(NamedTuple):
    """How every block is trained: passes over it, and the learning rate over the blocks."""

    epochs: int
    n_blocks: int
    anneal: str

    def rate(self, block: int) -> float:
        """Return the factor of the learning rate in block ``b = 0, ..., B - 1``.

        1 ("none"), ``1 - b / B`` ("linear"), or the smaller of that and
        ``(b + 1) / max(B / 10, 1)`` ("one-cycle", which is "linear" up to 10 blocks).
        """
        if self.anneal == "none":
            return 1.0
        fall = 1.0 - block / self.n_blocks
        rise = (block + 1) / max(_WARM_UP * self.n_blocks, 1.0)
        return min(fall, rise) if self.anneal == "one-cycle" else fall


class Blocks:
    """Who is in which slot of which block.

    Parameters
    ----------
    rows : SlotRows
        Rows with their `block` and `slot`.
    n_slots : ndarray of int64, shape (B,)
        Slots of every block, those of people who left included.
    leaving : ndarray of int64, optional
        Positions of rows that are about to leave; they count as gone.
    """

    def __init__(self, rows: SlotRows, n_slots: Integers, leaving: Integers | None = None) -> None:
        self._block, self._slot, self._n_slots = rows.extra[BLOCK], rows.extra[SLOT], n_slots
        self._alive = rows.alive.copy()
        if leaving is not None:
            self._alive[leaving] = False
        self.sizes: Integers = np.bincount(self._block[self._alive], minlength=len(n_slots))

    def __len__(self) -> int:
        return len(self._n_slots)

    @property
    def positions(self) -> Integers:
        """Positions of all rows."""
        return np.flatnonzero(self._alive)

    def slots(self, block: int) -> Integers:
        """Return the positions of a block's rows in slot order, -1 where nobody is."""
        here = np.flatnonzero(self._alive & (self._block == block))
        slots = np.full(self._n_slots[block], EMPTY)
        slots[self._slot[here]] = here
        return slots


def train_blocks(
    loop: Loop,
    blocks: Blocks,
    start: Tensor,
    first: int,
    pace: Pace,
    callback: Callback | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Train block `first`, the next, and so on to the end.

    Parameters
    ----------
    loop : Loop
        Of one lane.
    blocks : Blocks
        The rows.
    start : Tensor of shape (p,)
        Parameters before block `first`.
    first : int
        Number of the block, from 0.
    pace : Pace
        Passes over every block, and its learning rate.
    callback : callable, optional
        Called after every epoch.

    Yields
    ------
    block, flat
        Number of a block and the parameters after it. A block without rows changes nothing.
    """
    flat, n_parts = start[None], len(blocks) - first
    for block in range(first, len(blocks)):
        if blocks.sizes[block]:
            stretch = Stretch(
                block, (blocks.slots(block),), pace.epochs, pace.rate(block), kind="block"
            )
            flat = loop.train(flat, stretch, callback, (block - first, n_parts))
        yield block, flat[0]
