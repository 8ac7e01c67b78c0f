"""The unlearning run of DeepObliviate: retrain blocks, compare, stop, and stitch the rest on.

The old run went ``theta_0, ..., theta_B``; the new one starts from ``theta_d``, the state before
the first block d that somebody leaves. With ``s_i = theta'_i - theta_i``, block i leaves the
residual

    Delta_i = ||(theta'_(i+1) - theta'_i) - (theta_(i+1) - theta_i)||_1 = ||s_(i+1) - s_i||_1,

and when the run stops after block j, every later state is taken to be ``theta_i + s_(j+1)``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from letheon.convex._quiet import Quiet
from letheon.deep._blocks import Blocks
from letheon.deep._residual import PaperRule, RobustRule, StopRule
from letheon.deep._vault import Vault, VaultChange
from letheon.exceptions import CorruptFileError

STOPS = ("robust", "paper")
ORIGINS = ("block", "one")
GROWTHS = ("continue", "stop")


@dataclass(frozen=True, eq=False, repr=False)
class Stitched(Quiet):
    """What an unlearning run came to.

    Attributes
    ----------
    first, last : int
        First and last block of the run.
    end : Tensor of shape (p,)
        Parameters of the model.
    tail, ceiling : float
        Estimated sum of the residuals that were not computed, and what it is if none of them
        exceeds the last two.
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
    """A stop rule and the number ``x`` of the residual that it was given last.

    Parameters
    ----------
    model : estimator
        With the settings `stop`, `epsilon`, `stop_origin`, `stop_growth` and `patience`.
    last_affected : int
        Block of the first residual that counts, from 0.
    floor : float
        Residual of a replay in which nobody left.
    """

    def __init__(self, model: Any, last_affected: int, floor: float) -> None:
        self.residuals: list[float] = []
        self._before = 0
        self.rule: StopRule
        if model.stop == "paper":
            self.rule = PaperRule(model.epsilon, last_affected + 1, model.stop_origin)
            self._before = last_affected if model.stop_origin == "block" else 0
        else:
            self.rule = RobustRule(
                model.epsilon, floor, patience=int(model.patience), growth=model.stop_growth
            )

    def update(self, residual: float) -> bool:
        """Take a residual; return whether to stop."""
        self.residuals.append(residual)
        return self.rule.update(residual)

    @property
    def slope(self) -> float | None:
        """Slope of the law at the last residual."""
        law = self.rule.law
        return None if law is None else law.slope(self._before + len(self.residuals))


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
    """
    first, last_affected = affected
    last, end = first, entry(vault, first)
    shift = torch.zeros_like(end)
    for last, end in run:
        aside.set(last + 1, end)
        before, shift = shift, end - entry(vault, last + 1)
        counts = last == last_affected or (last > last_affected and blocks.sizes[last] > 0)
        stops = counts and watch.update(distance(shift, before))
        # Blocks without rows cost nothing, so a run that has only those ahead goes to the end.
        if stops and blocks.sizes[last + 1 :].any():
            break
    is_whole = last + 1 == len(blocks)
    if not is_whole:
        aside.shift(shift, range(last + 2, len(blocks) + 1))
        end = entry(vault, len(blocks)) + shift
    n_left = int(np.count_nonzero(blocks.sizes[last + 1 :]))
    return Stitched(
        first, last, end, watch.rule.tail(n_left), watch.rule.ceiling(n_left), watch, is_whole
    )
