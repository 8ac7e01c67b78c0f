"""One Newton step that removes rows, and what it leaves at most (Guo et al. 2020).

At the optimum of all rows the gradient on the remaining ones is -g, g the gradient of the rows that
leave, their share of the regulariser included. A Newton step on the remaining rows is therefore
``W + H^(-1) g``. An old residual is carried along unchanged.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

from numpy.typing import NDArray

from letheon.linear._bounds import block_norms, concordant_bound, lipschitz_bound, norm
from letheon.linear._curvature import Curvature, Downdate, Step
from letheon.linear._losses import Floats, Loss
from letheon.linear._problem import roots_of, slope_sum
from letheon.removal import Opaque, opaque_repr

BOUNDS = ("tightest", "data-dependent", "worst-case")

# The linear system is solved to this share of what the step leaves anyway.
_LINEAR_SHARE = 0.5
_ROUNDING = 1e-13
_MOST_REFINEMENTS = 4


class Leaving(NamedTuple):
    """Rows that leave, in float64 and in memory that may be spoilt, and their targets."""

    rows: Any
    y: NDArray[Any]

    def __repr__(self) -> str:
        return opaque_repr(self)


class Setting(NamedTuple):
    """Loss and regulariser, before and after, and rows that stay."""

    loss: Loss
    ridge_before: float
    ridge_after: float
    n_left: int
    bound: str = "tightest"


@dataclass(frozen=True, eq=False, repr=False)
class Proposal(Opaque):
    """Parameters after the step, how much gradient it adds at most, and the pending downdate."""

    W: Floats
    added: float
    gradient_norm: float
    downdate: Downdate
    flops: float


def propose(curvature: Curvature, W: Floats, leaving: Leaving, setting: Setting) -> Proposal:
    """Return the parameters without some rows; touches no other row and changes nothing."""
    loss = setting.loss
    g = slope_sum(loss, leaving.rows, leaving.y, W)
    shrinkage = setting.ridge_before - setting.ridge_after
    if shrinkage:
        g += shrinkage * W
    roots = roots_of(loss, leaving.rows, leaving.y, curvature.point, spoil=True)
    downdate = Downdate(curvature, roots, setting.ridge_after)
    way = Way(curvature.offsets(W), curvature.drifts(W))
    size = norm(g)
    step = downdate.solve(g)
    bent = step_bound(curvature, step, way, downdate.error, setting)
    for _ in range(_MOST_REFINEMENTS):
        if step.left <= _LINEAR_SHARE * bent + _ROUNDING * size:
            break
        better = downdate.refine(step, g)
        if better.left >= step.left:
            break
        step = better
        bent = step_bound(curvature, step, way, downdate.error, setting)
    n_columns = sum(root.shape[1] for root in roots)
    flops = sum(len(root) ** 2 for root in roots) * (6.0 + 4.0 * n_columns / len(roots))
    added = step.left + bent + curvature.rounding(W)
    return Proposal(W + step.change, added, size, downdate, flops)


class Way(NamedTuple):
    """How far the parameters are from where the Hessian was taken; see `concordant_bound`."""

    offsets: list[float]
    drifts: list[float]


def step_bound(curvature: Curvature, step: Step, way: Way, error: float, setting: Setting) -> float:
    """Bound of the gradient that the bent part of the loss leaves after the step.

    `error` is the size of what the Hessian in use may miss.
    """
    loss, radius = setting.loss, curvature.radius
    lengths = block_norms(step.change, len(curvature.blocks))
    length = sqrt(sum(part * part for part in lengths))
    bounds = []
    if setting.bound != "worst-case":
        energies = [
            energy + error * part * part
            for energy, part in zip(step.energies, lengths, strict=True)
        ]
        bounds.append(
            concordant_bound(
                loss, radius, way.offsets, lengths, curvature.tops, way.drifts, energies
            )
        )
    if setting.bound != "data-dependent":
        offset = sqrt(sum(part * part for part in way.offsets))
        bounds.append(lipschitz_bound(loss, radius, setting.n_left, offset, length))
    return min(bounds) + error * length
