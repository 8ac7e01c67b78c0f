"""Blocks of DeepObliviate, and the retraining that stops early.

Rows in blocks that a net is trained on one after the other, each from where the last ended.

The unlearning run of DeepObliviate: retrain blocks, compare, stop, and stitch the rest on.

The old run went ``theta_0, ..., theta_B``; the new one starts from ``theta_d``, the state before
the first block d that somebody leaves. With ``s_i = theta'_i - theta_i``, block i leaves the
residual

    Delta_i = ||(theta'_(i+1) - theta'_i) - (theta_(i+1) - theta_i)||_1 = ||s_(i+1) - s_i||_1,

and when the run stops after block j, every later state is taken to be ``theta_i + s_(j+1)``. Then
no later block does anything else than in the old run: its influence ``||theta_(i+1) - theta_i||_1``
stays. No theorem says that a shifted state is nearer to the exact one than the old state was.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from letheon.data import Ids, SlotRows
from letheon.deep._loop import EMPTY, Callback, Loop, Stretch
from letheon.deep._residual import PaperRule, RobustRule, StopRule
from letheon.deep._vault import Vault, VaultChange
from letheon.exceptions import CorruptFileError
from letheon.removal import Opaque
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


Floats = NDArray[np.float64]

STOPS = ("robust", "paper")
ORIGINS = ("block", "one")


@dataclass(frozen=True, eq=False, repr=False)
class Stitched(Opaque):
    """What an unlearning run came to.

    Attributes
    ----------
    first, last : int
        First and last block of the run.
    end : Tensor of shape (p,)
        Parameters of the model.
    tail, ceiling : float
        Estimated sum of the residuals that were not computed, and what it is if they go on as
        the later half of the others did.
    influences : ndarray of float64, shape (last - first + 1,)
        L1 norm of what every block of the run did.
    watch : Watch
        The stop rule with the residuals that it was given.
    is_whole : bool
        Whether the run went to the end, so that nothing is left out.
    """

    first: int
    last: int
    end: Tensor
    tail: float
    ceiling: float
    influences: Floats
    watch: "Watch"
    is_whole: bool

    def estimates(self) -> dict[str, float]:
        """Return the numbers for the receipt."""
        residuals, slope = self.watch.residuals, self.watch.slope
        found = {
            "residual_first": residuals[0],
            "residual_last": residuals[-1],
            "residual_tail": self.tail,
            "residual_ceiling": self.ceiling,
        }
        return found if slope is None else found | {"slope": slope}


class Watch:
    """A stop rule and the residuals that it was given.

    Parameters
    ----------
    model : estimator
        With the settings `stop`, `epsilon`, `stop_origin` and `patience`.
    last_affected : int
        Block of the first residual that counts, from 0.
    floor : float
        Relative residual of a replay in which nobody left.
    """

    def __init__(self, model: Any, last_affected: int, floor: float) -> None:
        self.residuals: list[float] = []
        self._before = 0
        self._is_relative = model.stop == "robust"
        self.rule: StopRule
        if self._is_relative:
            self.rule = RobustRule(model.epsilon, floor, patience=int(model.patience))
        else:
            self.rule = PaperRule(model.epsilon, last_affected + 1, model.stop_origin)
            self._before = last_affected if model.stop_origin == "block" else 0

    def update(self, residual: float, influence: float) -> bool:
        """Take a residual and what the block did in the old run; return whether to stop."""
        self.residuals.append(residual)
        return self.rule.update(ratio(residual, influence) if self._is_relative else residual)

    def left_out(self, influences: Floats) -> tuple[float, float]:
        """Return tail and ceiling for blocks that did so much in the old run.

        With ``r_k`` the rule's estimate for the k-th of them, the sum over k of ``r_k`` times its
        influence ("robust"), or of ``r_k`` ("paper").
        """
        n_left = len(influences)
        weights = influences if self._is_relative else np.ones(n_left)
        parts = self.rule.expected(n_left), self.rule.ceiling(n_left)
        return float(parts[0] @ weights), float(parts[1] @ weights)

    @property
    def slope(self) -> float | None:
        """Slope of the law at the last residual."""
        law = self.rule.law
        return None if law is None else law.slope(self._before + len(self.residuals))


def ratio(residual: float, influence: float) -> float:
    """Return a residual relative to what the block did.

    Where the block did nothing: 0 if it does nothing in the new run either, otherwise infinite,
    after which no rule stops.
    """
    if influence > 0:
        return residual / influence
    return 0.0 if residual == 0 else float("inf")


def entry(vault: Vault, i: int) -> Tensor:
    """Return a state that must be there."""
    found = vault.get(i)
    if found is None:
        raise CorruptFileError(f"the state before block {i} is not among the checkpoints")
    return found


def distance(one: Tensor, two: Tensor) -> float:
    """Return the L1 distance of two vectors, added up in float64."""
    return float((one - two).abs().sum(dtype=torch.float64))


def stitch(
    run: Iterable[tuple[int, Tensor]],
    blocks: Blocks,
    vault: Vault,
    aside: VaultChange,
    watch: Watch,
    affected: tuple[int, int],
    influences: Floats,
) -> Stitched:
    """Follow a run until the rule stops it; write all states that change aside.

    Parameters
    ----------
    run : iterable of (block, parameters after it)
        The new run, from the first affected block on.
    blocks : Blocks
        Rows that stay.
    vault : Vault
        States of the old run: entry i is the one before block i.
    aside : VaultChange
        Takes the new states, and the shift of later ones.
    watch : Watch
        The stop rule.
    affected : tuple of int
        First and last block that somebody leaves. No residual before the last one counts.
    influences : ndarray of float64, shape (B,)
        L1 norm of what every block did in the old run.
    """
    first, last_affected = affected
    last, end = first, entry(vault, first)
    old, shift, done = end, torch.zeros_like(end), list[float]()
    for last, new in run:
        aside.set(last + 1, new)
        done.append(distance(new, end))
        before, old_before, old, end = shift, old, entry(vault, last + 1), new
        shift = end - old
        counts = last == last_affected or (last > last_affected and blocks.sizes[last] > 0)
        stops = counts and watch.update(distance(shift, before), distance(old, old_before))
        # Blocks without rows cost nothing, so a run that has only those ahead goes to the end.
        if stops and blocks.sizes[last + 1 :].any():
            break
    is_whole = last + 1 == len(blocks)
    if not is_whole:
        aside.shift(shift, range(last + 2, len(blocks) + 1))
        end = entry(vault, len(blocks)) + shift
    left = influences[last + 1 :][blocks.sizes[last + 1 :] > 0]
    tail, ceiling = watch.left_out(left)
    return Stitched(first, last, end, tail, ceiling, np.array(done), watch, is_whole)
