"""Positions of rows in slots: samples, keys, and the rows of shards and slices."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.data import SlotRows
from letheon.removal import opaque_repr
from letheon.seeds import Purpose, mix64

Positions = NDArray[np.int64]


class ShardGrid(NamedTuple):
    """Rows to train on, held-out rows (masks of the slots), and the epochs of each stage."""

    rows: SlotRows
    is_trained: NDArray[np.bool_]
    is_held_out: NDArray[np.bool_]
    epochs: tuple[int, ...]

    def __repr__(self) -> str:
        return opaque_repr(self)

    def slots_of(self, shard: int, stage: int) -> Positions:
        """Return the positions of the rows that a shard is trained on in a stage.

        These are its slices 0 to `stage`, in order.
        """
        return np.flatnonzero(self.is_trained & self._is_reached(shard, stage))

    def list_held_out(self, shard: int, stage: int) -> Positions:
        """Return the positions of the rows that are held out from a shard in a stage."""
        return np.flatnonzero(self.is_held_out & self._is_reached(shard, stage))

    def _is_reached(self, shard: int, stage: int) -> NDArray[np.bool_]:
        extra = self.rows.extra
        mask: NDArray[np.bool_] = (extra["shard"] == shard) & (extra["slice"] <= stage)
        return mask

    def count_visits(self, n_shards: int) -> NDArray[np.int64]:
        """Return the row visits (rows times epochs) of each of S shards in each of R stages."""
        extra, n_stages = self.rows.extra, len(self.epochs)
        cells = (extra["shard"] * n_stages + extra["slice"])[self.is_trained]
        sizes = np.bincount(cells, minlength=n_shards * n_stages).reshape(n_shards, n_stages)
        visits: NDArray[np.int64] = sizes.cumsum(axis=1) * np.array(self.epochs)
        return visits


def find_first_slices(shards: Positions, slices: Positions) -> dict[int, int]:
    """Return a dict from every affected shard to its first affected slice."""
    return {int(shard): int(slices[shards == shard].min()) for shard in np.unique(shards)}


def sample_calibration_rows(
    rows: SlotRows, positions: Positions, seed: int, limit: int
) -> Positions:
    """Return up to `limit` of these rows: those whose ids have the smallest keyed hashes.

    So the sample does not depend on forgotten rows.
    """
    if len(positions) <= limit:
        return positions
    hashes = rows.ids_at(positions).hashes(seed, Purpose.CALIBRATION)
    return positions[np.sort(np.argsort(hashes, kind="stable")[:limit])]


def compute_row_keys(rows: SlotRows, seed: int) -> Positions:
    """Return the key of every slot for its augmentation; 0 for an empty slot.

    The key of a row depends on its id and on the number of earlier rows with this id::

        key = mix64(keyed_hash(seed, "augment", id), number)
    """
    where = np.flatnonzero(rows.alive)
    hashes = rows.ids_at(where).hashes(seed, Purpose.AUGMENT)
    keys = np.zeros(rows.n_slots, np.uint64)
    keys[where] = mix64(hashes, assign_slots(hashes.view(np.int64)).astype(np.uint64))
    return keys.view(np.int64)


def alive_mask(rows: SlotRows, removed: Positions | None) -> NDArray[np.bool_]:
    """Return a boolean mask of the slots that have a row after removing `removed`."""
    alive = rows.alive.copy()
    if removed is not None:
        alive[removed] = False
    return alive


def assign_slots(groups: Positions) -> Positions:
    """Return the slot of every row: the number of earlier rows in its group."""
    order = np.argsort(groups, kind="stable")
    ranked = groups[order]
    slots = np.empty_like(groups)
    slots[order] = np.arange(len(groups)) - np.searchsorted(ranked, ranked)
    return slots
