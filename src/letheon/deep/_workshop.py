"""Everything of a fitted model that lies on a device and can be made again."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from letheon.data import SlotRows
from letheon.deep._loop import DeviceData, Loop, LoopSettings
from letheon.deep._module import Statistics, Template
from letheon.seeds import Purpose

_CALIBRATION_BATCH = 256
_CALIBRATION_ROWS = 4096


class Workshop:
    """Rows on the device, the template, and loops with their captured steps.

    On a CPU the rows are those of `SlotRows`, in the same memory. On a GPU they are a copy, from
    which `wipe` removes people too.

    Parameters
    ----------
    rows : SlotRows
        Rows held; the slots of the device are theirs.
    template : Template
        The architecture.
    settings : LoopSettings
        How to train.
    seed : int
        Seed of the model.
    device : torch.device
        Where to train.
    calibration_rows : int
        Rows, at most, that BatchNorm's running statistics are taken from.
    """

    def __init__(
        self,
        rows: SlotRows,
        template: Template,
        settings: LoopSettings,
        seed: int,
        device: torch.device,
        calibration_rows: int = _CALIBRATION_ROWS,
    ) -> None:
        self._rows, self._calibration_rows = rows, calibration_rows
        self.template, self.settings, self.seed, self.device = template, settings, seed, device
        self._X, self._y = rows.X, rows.y
        self.data = DeviceData(
            torch.from_numpy(rows.X).to(device), torch.from_numpy(rows.y).to(device)
        )
        self._loops: dict[tuple[tuple[int, ...], int], Loop] = {}

    def loop(self, lanes: tuple[int, ...] = (0,), group: int = 0) -> Loop:
        """Return the loop of some lanes; it is made once."""
        key = lanes, group
        if key not in self._loops:
            self._loops[key] = Loop(
                self.template, self.settings, self.data, seed=self.seed, lanes=lanes, group=group
            )
        return self._loops[key]

    def serves(self, rows: SlotRows) -> bool:
        """Whether the slots of these rows are still those of the device."""
        return rows.X is self._X and rows.y is self._y

    def wipe(self, positions: NDArray[np.int64]) -> None:
        """Remove people from the device's own copy of the rows, if it has one."""
        if self.device.type == "cpu":
            return
        where = torch.from_numpy(positions).to(self.device)
        self.data.X[where] = 0
        self.data.y[where] = 0

    def statistics(self, flat: Tensor, positions: NDArray[np.int64]) -> Statistics:
        """Return BatchNorm's running statistics of one net, from a sample of its rows."""
        if not self.template.has_batch_norm:
            return {}
        sample = calibration_sample(self._rows, positions, self.seed, self._calibration_rows)
        return self.template.statistics(flat, self._batches(sample))

    def _batches(self, positions: NDArray[np.int64]) -> Iterator[Tensor]:
        if len(positions) == 1:
            positions = np.repeat(positions, 2)  # BatchNorm refuses one row; in training too
        n_batches = -(-len(positions) // _CALIBRATION_BATCH)
        for part in np.array_split(positions, n_batches) if n_batches else ():
            where = torch.from_numpy(part).to(self.device)
            yield self.data.X.index_select(0, where).to(torch.float32)


def calibration_sample(
    rows: SlotRows, positions: NDArray[np.int64], seed: int, limit: int
) -> NDArray[np.int64]:
    """Return the `limit` of these rows whose people have the smallest keyed hashes.

    Whether a row is in the sample of a smaller group of people depends on nobody who left before.
    """
    if len(positions) <= limit:
        return positions
    hashes = rows.ids_at(positions).hashes(seed, Purpose.CALIBRATION)
    return positions[np.sort(np.argsort(hashes, kind="stable")[:limit])]
