"""Newton steps on the remaining rows, until noise hides what tells them from a retrain."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

import numpy as np

from letheon.linear._account import rounded_up
from letheon.linear._fisher_expansion import Fisher, View, look
from letheon.linear._fisher_law import Closeness, Law, Limits, Shape
from letheon.linear._losses import Floats
from letheon.linear._problem import Problem
from letheon.removal import Opaque

_MOST_POLISHES = 12
# A step that leaves more than this share of the gradient was made with a Hessian that is too old.
# Passes over the rows are so much cheaper than a Hessian that a slow step is still worth it.
_STALE = 0.5


@dataclass(eq=False, repr=False)
class Walk(Opaque):
    """Parameters on their way to the optimum of the remaining rows.

    Attributes
    ----------
    after : Problem
        The remaining rows.
    law : Law
        The noise, and what it has to hide.
    fisher : Fisher
        Used for steps and for the noise.
    fresh : callable
        Returns the Fisher matrix taken anew at some parameters; None where it always is.
    W : ndarray
        Parameters now.
    view : View
        Gradient and scores there.
    polishes, hessians : int
        Further steps made, and Hessians taken.
    """

    after: Problem
    law: Law
    fisher: Fisher
    fresh: Callable[[Floats], Fisher] | None
    W: Floats
    view: View
    polishes: int = 0
    hessians: int = 0
    flops: float = 0.0
    _expanded_at: Floats | None = None

    @property
    def limits(self) -> Limits:
        """What the noise hides."""
        return self.law.limits(self.shape)

    @property
    def closeness(self) -> Closeness:
        """How far the laws of this removal and of a retrain are apart at most."""
        noise = self.fisher.noise
        change = 0.0 if noise is None else noise.change(self.W, self.view.scores)
        return self.law.closeness(self.view.residual, change, self.shape)

    @property
    def rebuilt(self) -> dict[str, int]:
        """What it took beside the first step, in the words of a receipt."""
        counts = {"polishes": self.polishes, "hessians": self.hessians}
        return {name: count for name, count in counts.items() if count}

    @property
    def shape(self) -> Shape | None:
        """What is known of the matrix that shapes the noise, if one does."""
        return None if self.fisher.noise is None else self.fisher.noise.shape()

    def settle(self) -> bool:
        """Walk until the noise hides the rest; False if it cannot."""
        if not self.limits.hide(self.law.closeness(0.0, 0.0, self.shape)):
            return False  # A retrain may stop so early that no removal is close to all of them.
        while not self.limits.hide(self.closeness):
            in_place = self.law.closeness(self.view.residual, 0.0, self.shape)
            if self.limits.hide(in_place):
                if not self._expand():
                    return False
            elif self.polishes == _MOST_POLISHES or not self._polish():
                return False
        return True

    def _polish(self) -> bool:
        """Make one more step; False if not even a fresh Hessian brings the gradient down."""
        W = self.W - self.fisher.step(self.W, self.view.gradient)
        there, before = look(self.after, W), self.view.residual
        self.polishes += 1
        self.flops += self.after.pass_flops
        residual = there.residual
        is_better = bool(np.isfinite(residual)) and residual < before
        if is_better:
            self.W, self.view = W, there
        if not is_better or residual > _STALE * before:
            return self._expand() or is_better
        return True

    def _expand(self) -> bool:
        """Take the Hessian here; False if it already is."""
        if self.fresh is None or self._expanded_at is self.W:
            return False
        self.fisher, self._expanded_at = self.fresh(self.W), self.W
        self.hessians += 1
        self.flops += hessian_flops(self.after)
        return True


def hessian_flops(problem: Problem) -> float:
    """Operations of one Hessian."""
    d, K = problem.shape
    return problem.pass_flops / 4.0 * d * (K if problem.loss.is_joint else 1)


@dataclass(frozen=True)
class FisherAccount:
    """How close the model is to a retrain after the last request.

    Noise is fresh, and every request looks at the gradient itself, so nothing adds up. All numbers
    are rounded up to powers of two, since the numbers themselves tell of the rows that left.

    Attributes
    ----------
    closeness : Closeness
        Bounds of the shift and spread between the laws of this model and of a retrain.
    used : float
        Share of what the noise hides; at most 1 in a certified model, 0 after training.
    """

    closeness: Closeness
    used: float

    def __post_init__(self) -> None:
        """A bound that could not be computed is no bound."""
        if isnan(self.used):
            object.__setattr__(self, "used", inf)

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> "FisherAccount":
        """Read a file; what earlier versions released is not proved."""
        closeness = state["closeness"]
        return cls(closeness, state["used"] if closeness.gap < inf else inf)

    @classmethod
    def after(cls, walk: Walk) -> "FisherAccount":
        """Return the account after a removal."""
        closeness, limits, shape = walk.closeness, walk.limits, walk.shape
        shift = min(rounded_up(closeness.shift), max(limits.shift, closeness.shift))
        spread = min(rounded_up(closeness.spread), max(limits.spread, closeness.spread))
        dimension = closeness.dimension if shape is None else shape.dimension(spread)
        shown = Closeness(shift, spread, dimension, closeness.gap)
        return cls(shown, limits.share(closeness))


JUST_TRAINED = FisherAccount(Closeness(), 0.0)
