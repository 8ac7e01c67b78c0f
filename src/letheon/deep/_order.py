"""Which rows make which step: the order of slots in an epoch, and tables of batches.

Rows lie in slots. An epoch takes the slots in the order of a keyed hash of their numbers, cut into
batches; a slot whose row was forgotten keeps its place, so that nobody else changes batches::

    order(slots) = argsort mix64(mix64(keyed_hash(seed, "net-order", stretch, epoch), lane), slot)

The numbers are 64-bit integers, so every device finds the same order.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Slots = NDArray[np.int64]

EMPTY = -1
_ABSENT = -2  # beyond the slots of a lane that has fewer than others
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB


class Batches(NamedTuple):
    """T steps of W lanes, b slots each.

    Attributes
    ----------
    rows : int64 tensor of shape (T, W, b)
        Positions of rows; empty slots repeat the rows of their batch in turn.
    weights : float32 tensor of shape (T, W, b)
        1 / (rows present), 0 for empty slots: the weighted sum of losses is their mean.
    active : bool tensor of shape (T, W)
        Whether anybody is in the batch; otherwise it is no step.
    """

    rows: Tensor
    weights: Tensor
    active: Tensor


def signed(word: int) -> int:
    """Return an unsigned word of 64 bits as the integer that has the same bits."""
    return word - (1 << 64) if word >= 1 << 63 else word


def mix64(key: Tensor, bits: Tensor) -> Tensor:
    """`letheon.seeds.mix64` on int64 tensors, which broadcast against each other."""
    return _finalise(key ^ _finalise(bits + signed(_GOLDEN_GAMMA)))


def _finalise(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * signed(_MULTIPLIER_1)
    z = (z ^ _shifted(z, 27)) * signed(_MULTIPLIER_2)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def slot_matrix(slots: Sequence[Slots | None], device: torch.device) -> Tensor:
    """Return the slots of all lanes as one matrix; an idle lane (None) has no slots."""
    width = max((len(lane) for lane in slots if lane is not None), default=0)
    matrix = np.full((len(slots), width), _ABSENT)
    for line, lane in zip(matrix, slots, strict=True):
        if lane is not None:
            line[: len(lane)] = lane
    return torch.from_numpy(matrix).to(device)


def epoch_batches(matrix: Tensor, lanes: Tensor, key: int, batch_size: int) -> Batches:
    """Return the batches of one epoch.

    Parameters
    ----------
    matrix : int64 tensor of shape (W, n)
        From `slot_matrix`.
    lanes : int64 tensor of shape (W,)
        Numbers of the lanes.
    key : int
        Keyed hash of the epoch, 64 bits.
    batch_size : int
        b, the number of slots in every batch.
    """
    n_lanes, n_slots = matrix.shape
    n_steps = -(-n_slots // batch_size)
    keys = mix64(torch.full_like(lanes, signed(key)), lanes)
    order = mix64(keys[:, None], torch.arange(n_slots, device=matrix.device)[None, :])
    order = order.masked_fill(matrix == _ABSENT, torch.iinfo(torch.int64).max)
    sequence = matrix.gather(1, order.argsort(dim=1, stable=True))
    padded = torch.full(
        (n_lanes, n_steps * batch_size), EMPTY, dtype=torch.int64, device=matrix.device
    )
    padded[:, :n_slots] = sequence
    return _tables(padded.view(n_lanes, n_steps, batch_size).transpose(0, 1))


def _tables(rows: Tensor) -> Batches:
    present = rows >= 0
    counts = present.sum(dim=2, keepdim=True)
    # The empty slots repeat those present in turn: BatchNorm then sees them in equal shares.
    first = rows.gather(2, (~present).to(torch.int8).argsort(dim=2, stable=True)).clamp(min=0)
    turn = ((~present).cumsum(dim=2) - 1).clamp(min=0) % counts.clamp(min=1)
    weights = present / counts.clamp(min=1)
    filled = torch.where(present, rows, first.gather(2, turn))
    return Batches(filled, weights, counts[:, :, 0] > 0)


def join_epochs(epochs: Sequence[Batches]) -> Batches:
    """Return the batches of epochs, one after the other."""
    return Batches(*(torch.cat(parts) for parts in zip(*epochs, strict=True)))
