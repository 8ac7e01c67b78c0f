"""Training data of networks: rows on the device, samples of rows, and keys of rows."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from letheon.data import SlotRows
from letheon.deep._device import to_batch
from letheon.deep._loop import DeviceData, Loop
from letheon.deep._module import Statistics, Template
from letheon.deep._optim import LoopSettings
from letheon.removal import Opaque
from letheon.seeds import Purpose, mix64

Positions = NDArray[np.int64]

_ANSWER_BATCH = 4096
_CALIBRATION_BATCH = 256
_CALIBRATION_ROWS = 4096


@dataclass(eq=False, repr=False)
class TrainingContext(Opaque):
    """What training needs: rows on the device, the architecture, and reusable training loops.

    On a CPU the rows share the memory of `SlotRows`. On a GPU they are a copy; `wipe` removes rows
    from it.

    Parameters
    ----------
    rows : SlotRows
        The remaining rows. The rows on the device are in the same slots.
    template : Template
        The architecture.
    settings : LoopSettings
        Settings of the training loop.
    seed : int
        Seed of the model.
    device : torch.device
        Device of the training.
    calibration_rows : int
        Largest number of rows to compute BatchNorm's running statistics from.
    """

    rows: SlotRows
    template: Template
    settings: LoopSettings
    seed: int
    device: torch.device
    calibration_rows: int = _CALIBRATION_ROWS

    def __post_init__(self) -> None:
        self._X, self._y = self.rows.X, self.rows.y
        y = torch.from_numpy(self._y)
        if y.is_floating_point():
            y = y.to(torch.float32).view(len(y), -1)
        keys = None
        if self.settings.augmentation.is_used:
            keys = torch.from_numpy(compute_row_keys(self.rows, self.seed)).to(self.device)
        X = torch.from_numpy(self._X)
        self.data = DeviceData(X.to(self.device), y.to(self.device), keys)
        self._loops: dict[tuple[tuple[int, ...], int], Loop] = {}

    def get_loop(self, lanes: tuple[int, ...] = (0,), group: int = 0) -> Loop:
        """Return the training loop of these lanes; it is created at the first call."""
        key = lanes, group
        if key not in self._loops:
            self._loops[key] = Loop(
                self.template, self.settings, self.data, seed=self.seed, lanes=lanes, group=group
            )
        return self._loops[key]

    def is_valid_for(self, rows: SlotRows, device: torch.device) -> bool:
        """Return whether the data on the device still matches these rows."""
        return rows.X is self._X and rows.y is self._y and device == self.device

    def wipe(self, positions: Positions) -> None:
        """Overwrite rows with zeros in all copies of the memory of `SlotRows`."""
        where = torch.from_numpy(positions).to(self.device)
        of_host = (self._X.ctypes.data, self._y.ctypes.data)
        for part in self.data:
            if part is not None and (self.device.type != "cpu" or part.data_ptr() not in of_host):
                part[where] = 0

    def compute_statistics(self, flat: Tensor, positions: Positions) -> Statistics:
        """Return BatchNorm's running statistics of one network, from a sample of its rows."""
        if not self.template.has_batch_norm or not len(positions):
            return {}
        sample = sample_calibration_rows(self.rows, positions, self.seed, self.calibration_rows)
        if len(sample) == 1:
            sample = np.repeat(sample, 2)  # BatchNorm needs two rows
        parts = np.array_split(sample, -(-len(sample) // _CALIBRATION_BATCH))
        return self.template.running_statistics(flat, map(self.load_rows, parts))

    def load_rows(self, positions: Positions) -> Tensor:
        """Return the rows at these positions on the device, as a module gets them."""
        where = torch.from_numpy(positions).to(self.device)
        return to_batch(self.data.X.index_select(0, where))

    def mean_loss(self, flat: Tensor, positions: Positions, trained: Positions) -> Tensor:
        """Return the mean loss of rows for one network that was trained on other rows.

        The network is in evaluation mode. The result is NaN without rows.
        """
        module = self.template.make_module(flat, self.compute_statistics(flat, trained))
        losses = []
        with torch.no_grad():
            for part in np.array_split(positions, -(-len(positions) // _ANSWER_BATCH) or 1):
                y = self.data.y[torch.from_numpy(part).to(self.device)]
                losses.append(self.settings.row_losses(module(self.load_rows(part)).float(), y))
        return torch.cat(losses).mean()


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
