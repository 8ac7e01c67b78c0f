"""Batches of rows in a keyed order that removals keep stable.

Every row has a slot. An epoch orders the slots by a keyed hash of their numbers and cuts this order
into batches. The slot of a forgotten row stays empty, so all other rows stay in the same batches::

    order(slots) = argsort mix64(mix64(keyed_hash(seed, "net-order", phase, epoch), lane), slot)

The hashes are 64-bit integers, so the order is the same on every device.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from letheon.seeds import Purpose, keyed_hash

Slots = NDArray[np.int64]

EMPTY = -1
_ABSENT = -2  # beyond the slots of a lane that has fewer than others
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB


class LaneBatches(NamedTuple):
    """Batches of W lanes in T steps; each batch has b slots.

    Attributes
    ----------
    rows : int64 tensor of shape (T, W, b)
        Positions of the rows. An empty slot repeats a row of its batch, taken cyclically.
    weights : float32 tensor of shape (T, W, b)
        1 / (rows in the batch), 0 for empty slots; the weighted sum of the losses is their mean.
    active : bool tensor of shape (T, W)
        Whether the batch has rows. A lane makes no step on a batch without rows.
    """

    rows: Tensor
    weights: Tensor
    active: Tensor


def to_signed(word: int) -> int:
    """Return the signed 64-bit integer that has the same bits as an unsigned one."""
    return word - (1 << 64) if word >= 1 << 63 else word


def mix64(key: Tensor, bits: Tensor) -> Tensor:
    """Return the 64-bit hashes of `letheon.seeds.mix64` for int64 tensors, with broadcasting."""
    return _finalise_bits(key ^ _finalise_bits(bits + to_signed(_GOLDEN_GAMMA)))


def _finalise_bits(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30)) * to_signed(_MULTIPLIER_1)
    z = (z ^ _shift_right(z, 27)) * to_signed(_MULTIPLIER_2)
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def slot_matrix(slots: Sequence[Slots | None], device: torch.device) -> Tensor:
    """Return the slots of all lanes as a padded matrix (W, n); an idle lane (None) has none."""
    width = max((len(lane) for lane in slots if lane is not None), default=0)
    matrix = np.full((len(slots), width), _ABSENT)
    for line, lane in zip(matrix, slots, strict=True):
        if lane is not None:
            line[: len(lane)] = lane
    return torch.from_numpy(matrix).to(device)


def epoch_batches(matrix: Tensor, lanes: Tensor, key: int, batch_size: int) -> LaneBatches:
    """Return the batches of one epoch; each batch has `batch_size` slots.

    `matrix` (W, n) comes from `slot_matrix`, `lanes` (W,) has the numbers of the lanes, and `key`
    is the 64-bit keyed hash of the epoch.
    """
    n_lanes, n_slots = matrix.shape
    n_steps = -(-n_slots // batch_size)
    keys = mix64(torch.full_like(lanes, to_signed(key)), lanes)
    order = mix64(keys[:, None], torch.arange(n_slots, device=matrix.device)[None, :])
    order = order.masked_fill(matrix == _ABSENT, torch.iinfo(torch.int64).max)
    sequence = matrix.gather(1, order.argsort(dim=1, stable=True))
    padded = torch.full(
        (n_lanes, n_steps * batch_size), EMPTY, dtype=torch.int64, device=matrix.device
    )
    padded[:, :n_slots] = sequence
    return _fill_batches(padded.view(n_lanes, n_steps, batch_size).transpose(0, 1))


def _fill_batches(rows: Tensor) -> LaneBatches:
    present = rows >= 0
    counts = present.sum(dim=2, keepdim=True)
    # Empty slots repeat the rows cyclically, so BatchNorm weights them about equally.
    first = rows.gather(2, (~present).to(torch.int8).argsort(dim=2, stable=True)).clamp(min=0)
    turn = ((~present).cumsum(dim=2) - 1).clamp(min=0) % counts.clamp(min=1)
    weights = present / counts.clamp(min=1)
    filled = torch.where(present, rows, first.gather(2, turn))
    return LaneBatches(filled, weights, counts[:, :, 0] > 0)


def slot_batches(
    matrix: Tensor, lanes: Tensor, seed: int, phase: int, n_epochs: int, batch_size: int
) -> LaneBatches:
    """Return the batches of all epochs of a phase, one epoch after the other."""
    epochs = [
        epoch_batches(matrix, lanes, keyed_hash(seed, Purpose.NET_ORDER, phase, epoch), batch_size)
        for epoch in range(n_epochs)
    ]
    return LaneBatches(*map(torch.cat, zip(*epochs, strict=True)))
