"""Ways to the optimum of the rows held: plain descent, and steps with a Hessian of earlier rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from letheon.linear._curvature import Block, Curvature, Downdate, times
from letheon.linear._descent_theory import Geometry
from letheon.linear._design import row_norms
from letheon.linear._losses import Floats
from letheon.linear._problem import (
    EPSILON,
    GradientErrors,
    Positions,
    Problem,
    roots_of,
    slope_sum,
)
from letheon.linear._solve import is_dense, join, minimise, newton_step, split
from letheon.removal import Opaque, opaque_repr

# A step that leaves more than this share of the gradient was made with a Hessian that is too old.
_STALE = 0.1
_MOST_STEPS = 8
# The linear system is solved to this share of the gradient; steps leave more than that anyway.
_LINEAR_SHARE = 1e-3
_MOST_REFINEMENTS = 3
# More new rows than this share of the columns: the Hessian is evaluated anew.
_MOST_GAINED = 0.25
_GRAM_ROWS = 65_536
# With more columns than this no eigenvalue is computed.
_GRAM_COLUMNS = 2_000

CurvatureAt = Callable[[Problem, Floats], Curvature]


def descend(problem: Problem, W: Floats, n_steps: int, shape: Geometry) -> Floats:
    """Make projected gradient steps of length 2 / (M + mu) on the mean objective, one pass each."""
    W, length = projected(W, shape.radius), shape.rate / problem.n_held
    for _ in range(n_steps):
        W = projected(W - length * problem.gradient(W), shape.radius)
    return W


def projected(W: Floats, radius: float) -> Floats:
    """Return the nearest point of the ball |W| <= radius."""
    norm = float(np.linalg.norm(W))
    return W if norm <= radius else W * (radius / norm)


@dataclass(eq=False, repr=False)
class Trail(Opaque):
    """What the next request starts with, besides the parameters: gradient there, and Hessian.

    `errors` hold for the rows at that time and for any part of them.
    """

    gradient: Floats
    curvature: Curvature | None
    errors: GradientErrors


@dataclass(frozen=True, eq=False, repr=False)
class Move(Opaque):
    """Rows that leave or come.

    `positions` are theirs in the problem that has them, and `alive` says where that has rows.
    """

    before: Problem
    after: Problem
    positions: Positions
    alive: NDArray[np.bool_]
    adds: bool

    @property
    def changed_rows(self) -> tuple[Any, NDArray[Any]]:
        """Rows that leave or come, in float64, and their targets."""
        holder = self.after if self.adds else self.before
        return holder.rows_at(self.positions), holder.y[self.positions]

    def gradient_after(self, W: Floats, gradient: Floats) -> Floats:
        """Return the gradient at W after the move from the one before it; no other row is read."""
        rows, y = self.changed_rows
        own = slope_sum(self.before.loss, rows, y, W)
        shift = (self.after.ridge - self.before.ridge) * W
        return gradient + shift + own if self.adds else gradient + shift - own


class Reached(NamedTuple):
    """Where the steps ended, and the gradient as measured there.

    `writes` bring the Hessian up to date if the request is committed.
    """

    W: Floats
    gradient: Floats
    flops: float
    curvature: Curvature | None
    writes: tuple[Callable[[], None], ...] = ()

    def __repr__(self) -> str:
        return opaque_repr(self)


def follow(
    move: Move,
    W: Floats,
    trail: Trail,
    goal: float,
    curvature_at: CurvatureAt,
    *,
    max_iter: int,
) -> Reached:
    """Go from the old optimum W to the new one, until the measured gradient is at most `goal`.

    Usually one step and one pass: the gradient to start with is known, and the Hessian is the old
    one with the changed rows taken out or put in. A step that leaves much was made with a Hessian
    that is too old: the next one is made with a fresh one, from where the gradient is smaller.
    Where steps do not arrive, an optimiser goes on, with `max_iter` iterations as in training.
    """
    after, gradient = move.after, move.gradient_after(W, trail.gradient)
    way = _old_way(move, trail.curvature) or _fresh_way(after, W, curvature_at)
    flops, is_measured = way.flops, False
    for _ in range(_MOST_STEPS):
        step, spent = way.step(W, gradient)
        there = after.gradient(W - step)
        flops += spent + after.pass_flops
        size, left = float(np.linalg.norm(gradient)), float(np.linalg.norm(there))
        if left <= max(goal, size):
            W, gradient, is_measured = W - step, there, True
        if left <= goal:
            break
        if left > _STALE * size:
            if way.is_fresh:
                break
            way = _fresh_way(after, W, curvature_at)
            flops += way.flops
    if not is_measured or not np.linalg.norm(gradient) <= goal:
        found = minimise(after, start=W, tolerance=goal, max_iter=max_iter)
        W, gradient, flops = found.W, found.gradient, flops + found.flops
    return Reached(W, gradient, flops, way.curvature, way.writes)


@dataclass(frozen=True, eq=False, repr=False)
class _Way(Opaque):
    """How steps are computed, and what it took to get there; a fresh way needs no writes."""

    step: Callable[[Floats, Floats], tuple[Floats, float]]
    curvature: Curvature | None
    writes: tuple[Callable[[], None], ...] = ()
    flops: float = 0.0
    is_fresh: bool = True


def _fresh_way(problem: Problem, W: Floats, curvature_at: CurvatureAt) -> _Way:
    if not is_dense(problem):

        def by_products(W: Floats, gradient: Floats) -> tuple[Floats, float]:
            step, flops = newton_step(problem, W, gradient)
            return -step, flops

        return _Way(by_products, None, is_fresh=False)
    curvature = curvature_at(problem, W)
    flops = sum(problem.pass_flops / 4 * len(block.hessian) for block in curvature.blocks)
    return _Way(_by(curvature.solve), curvature, flops=flops)


def _by(solve: Callable[[Floats], Floats]) -> Callable[[Floats, Floats], tuple[Floats, float]]:
    return lambda _, gradient: (solve(gradient), 8.0 * len(gradient) * gradient.size)


def _old_way(move: Move, curvature: Curvature | None) -> _Way | None:
    """Return steps with the old Hessian after the move; None where there is none to go on with."""
    if curvature is None:
        return None
    rows, y = move.changed_rows
    if move.adds and len(y) > max(1.0, _MOST_GAINED * curvature.point.size):
        return None
    roots = roots_of(move.before.loss, rows, y, curvature.point)
    if move.adds:
        gain = Gain(curvature, roots)
        return _Way(_by(gain.solve), curvature, (gain.apply,), is_fresh=False)
    downdate = Downdate(curvature, roots, move.after.ridge)

    def refined(gradient: Floats) -> Floats:
        step, size = downdate.solve(gradient), float(np.linalg.norm(gradient))
        for _ in range(_MOST_REFINEMENTS):
            if step.left <= _LINEAR_SHARE * size:
                break
            step = downdate.refine(step, gradient)
        return step.change

    return _Way(_by(refined), curvature, (downdate.apply,), is_fresh=False)


class Gain:
    """The curvature with further rows, before anything is written: Woodbury with a plus sign.

    Parameters
    ----------
    curvature : Curvature
        Of the rows held so far.
    roots : list of ndarray
        V of every block at the expansion point; the block gains V V'.
    """

    def __init__(self, curvature: Curvature, roots: list[Floats]) -> None:
        self._curvature = curvature
        pairs = zip(curvature.blocks, roots, strict=True)
        self._parts = [(block, np.asfortranarray(V), _loss_of(block, V)) for block, V in pairs]

    def solve(self, G: Floats) -> Floats:
        """Return the inverse with the new rows, times G."""
        targets = split(G, len(self._parts))
        solved = [
            times(block.inverse, g) - Q @ (Q.T @ g)
            for (block, _, Q), g in zip(self._parts, targets, strict=True)
        ]
        return join(solved, G.shape)

    def apply(self) -> None:
        """Write the change into the matrices. Cannot fail."""
        for block, V, Q in self._parts:
            blas.dsyrk(1.0, V, beta=1.0, c=block.hessian, lower=1, overwrite_c=1)
            blas.dsyrk(-1.0, Q, beta=1.0, c=block.inverse, lower=1, overwrite_c=1)
        self._curvature.n_downdates += 1


def _loss_of(block: Block, V: Floats) -> Floats:
    """Return Q with Q Q' what the inverse loses: Q = H^(-1) V L'^(-1), L L' = I + V' H^(-1) V."""
    Q = blas.dsymm(1.0, block.inverse, np.asfortranarray(V), lower=1)
    factor, _ = lapack.dpotrf(np.eye(V.shape[1]) + V.T @ Q, lower=1)
    scaled: Floats = blas.dtrsm(1.0, factor, Q, side=1, lower=1, trans_a=1)
    return scaled


def top_of_gram(X: Any) -> float:
    """Upper bound of the largest eigenvalue of X'X, rounding included.

    With many columns it is the trace: no random search is as certain as that.
    """
    n, d = int(X.shape[0]), int(X.shape[1])
    trace = float((row_norms(X) ** 2).sum()) * (1 + 1e-9)
    if d > _GRAM_COLUMNS:
        return trace
    total = np.zeros((d, d))
    for begin in range(0, n, _GRAM_ROWS):
        rows = X[begin : begin + _GRAM_ROWS].astype(np.float64)
        product = rows.T @ rows
        total += product.toarray() if sp.issparse(product) else product
    top = float(scipy.linalg.eigvalsh(total, subset_by_index=[d - 1, d - 1])[0])
    return min(top * (1 + 1e-9) + (n + d) * EPSILON * trace, trace)
