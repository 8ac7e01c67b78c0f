"""Steps of Descent-to-Delete, on all rows and on parts of them.

Rows drawn with replacement that stay so while people leave and come.

Rows are known by their rank among those held, so nothing is left of a row but a gap that closes.
After any sequence of requests that does not depend on the draws, all places are independent and
uniform over the rows held, as in a fresh fit:

- removal: a place whose row stays was uniform over all rows, so it is uniform over those that stay;
  a place whose row leaves is drawn anew from them;
- addition of m rows to n: a place takes a new row with probability m / (n + m), else it stays.

Draws come from a `NoiseSource`, by default the operating system, and not from hashes of the seed.
A hash of place and number of rows would repeat itself when that number comes back to an earlier
value. And whoever knew the seed would see where a fresh fit draws other rows than are found here.

Ways to the optimum of the rows held: plain descent, and steps with a Hessian of earlier rows.

Descent-to-Delete on parts of a bootstrap sample (Neel et al. 2021, Algorithms 5 to 7).

``b^2`` rows are drawn with replacement, b = floor(n^(xi / 2)), and make b parts of b rows. Noise is
added to the mean of the parts' parameters. A request exchanges few rows of the sample, and only the
parts that have one of them go on training.

The bound of a part's distance to its own optimum is tracked: a step shrinks it by gamma, and an
exchange of c rows adds ``2 c L / (mu b)`` before the steps. The steps of the paper are made. If the
mean of the bounds were still above what the noise hides, all parts make further steps. So the
certificate does not rest on how many parts a request meets.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from letheon.linear._curvature import Block, Curvature, Downdate, times
from letheon.linear._descent_theory import DistributedPlan, Geometry, steps_between
from letheon.linear._problem import (
    EPSILON,
    Floats,
    GradientErrors,
    Positions,
    Problem,
    roots_of,
    row_norms,
    slope_sum,
)
from letheon.linear._solve import is_dense, join, minimise, newton_step, split
from letheon.noise import NoiseSource, Sealed
from letheon.removal import Opaque, opaque_repr

Ranks = NDArray[np.int64]


class Drawn(NamedTuple):
    """Ranks of the rows in every place, and which places have another row than before."""

    ranks: Ranks
    changed: NDArray[np.bool_]

    def __repr__(self) -> str:
        return opaque_repr(self)


def draw(source: NoiseSource, shape: tuple[int, ...], n_rows: int) -> Ranks:
    """Return independent ranks, uniform over `n_rows` rows."""
    return source.integers(shape, n_rows)


def after_removal(source: NoiseSource, ranks: Ranks, gone: Ranks, n_rows: int) -> Drawn:
    """Return the places after the rows of these ranks, ascending, have left `n_rows` rows."""
    below = np.searchsorted(gone, ranks)
    changed = np.searchsorted(gone, ranks, "right") > below
    closed = ranks - below
    closed[changed] = draw(source, (int(changed.sum()),), n_rows - len(gone))
    return Drawn(closed, changed)


def after_addition(source: NoiseSource, ranks: Ranks, n_rows: int, n_new: int) -> Drawn:
    """Return the places after `n_new` rows came after `n_rows` others."""
    drawn = draw(source, ranks.shape, n_rows + n_new)
    changed = drawn >= n_rows
    return Drawn(np.where(changed, drawn, ranks), changed)


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


# Share of the hidden distance for what rounding may hide of a measured gradient.
SHARE_OF_ROUNDING = 0.1


def part_size(n_rows: int, xi: float) -> int:
    """Number of parts, and of rows in each: floor(n^(xi / 2))."""
    return max(1, int(n_rows ** (xi / 2.0) + 1e-9))


class Trained(NamedTuple):
    """Parameters of one part, the bound of their distance to its optimum, and passes over it."""

    W: Floats
    distance: float
    passes: float

    def __repr__(self) -> str:
        return opaque_repr(self)


@dataclass(frozen=True, eq=False)
class TheoremSolver:
    """Counted gradient steps; `last` is the number of rows changed since the fit."""

    plan: DistributedPlan
    last: int = 0

    @property
    def limit(self) -> float:
        """What the mean of the distances, without rounding, must not exceed."""
        return self.plan.left

    def train(self, part: Problem) -> Trained:
        """Train from zero."""
        far = 2.0 * self.plan.geometry.radius
        return self._steps(part, np.zeros(part.shape), far, self.plan.training_steps)

    def update(self, part: Problem, old: Trained, n_changed: int) -> Trained:
        """Make the steps of the paper."""
        moved = old.distance + self.plan.part_jolt(n_changed)
        n_steps = self.plan.update_steps(0, self.last, self.plan.geometry)
        return self._steps(part, old.W, moved, n_steps)

    def tighten(self, part: Problem, old: Trained, share: float) -> Trained:
        """Make as many steps as shrink a distance to that share."""
        n_steps = steps_between(1.0, share, self.plan.geometry)
        return self._steps(part, old.W, old.distance, n_steps)

    def _steps(self, part: Problem, W: Floats, distance: float, n_steps: int) -> Trained:
        shape = self.plan.geometry
        W = descend(part, W, n_steps, shape)
        return Trained(W, distance * shape.shrinkage(n_steps), n_steps)


@dataclass(frozen=True, eq=False)
class ResidualSolver:
    """Any optimiser, until the measured gradient says that the optimum is near."""

    limit: float
    max_iter: int

    def train(self, part: Problem) -> Trained:
        """Train from zero."""
        return self._minimise(part, np.zeros(part.shape), self.limit)

    def update(self, part: Problem, old: Trained, n_changed: int) -> Trained:  # noqa: ARG002
        """Go on from the old parameters."""
        return self._minimise(part, old.W, self.limit)

    def tighten(self, part: Problem, old: Trained, share: float) -> Trained:
        """Go on from the old parameters."""
        return self._minimise(part, old.W, min(self.limit, share * old.distance))

    def _minimise(self, part: Problem, W: Floats, distance: float) -> Trained:
        tolerance = (1 - SHARE_OF_ROUNDING) * distance * part.ridge
        found = minimise(part, start=W, tolerance=tolerance, max_iter=self.max_iter)
        left = part.distance_bound(found.gradient, part.gradient_error(found.W))
        return Trained(found.W, left, found.flops / part.pass_flops)


# How one part is trained.
PartSolver = TheoremSolver | ResidualSolver


@dataclass(frozen=True, eq=False)
class Parts:
    """One copy: which rows every part has, its parameters and the bounds of their distances."""

    ranks: Ranks = field(repr=False)
    weights: Sealed
    distances: Floats = field(repr=False)

    @property
    def mean(self) -> Floats:
        """Mean of the parts' parameters, shape (d, K)."""
        mean: Floats = self.weights.open().mean(axis=0)
        return mean

    @property
    def distance(self) -> float:
        """Bound of the distance of the mean, as computed, to the mean of the parts' optima."""
        weights = self.weights.open()
        largest = float(np.linalg.norm(weights, axis=(1, 2)).max())
        rounding = EPSILON * (len(weights) + 2) * largest
        return float(self.distances.mean()) * (1 + 1e-9) + rounding

    def __copy__(self) -> "Parts":
        """Return parts with a seal of their own."""
        return replace(self, weights=Sealed(self.weights.open().copy()))


class Made(NamedTuple):
    """Parts, and passes that making them took, in units of a pass over one part."""

    parts: Parts
    passes: float


def train_parts(whole: Problem, size: int, solver: PartSolver, source: NoiseSource) -> Made:
    """Draw the sample and train every part; the rows of `whole` have no holes."""
    ranks = draw(source, (size, size), whole.n_rows)
    results = [solver.train(part_of(whole, own)) for own in ranks]
    return _made(whole, np.arange(whole.n_rows), ranks, results, solver)


def update_parts(
    whole: Problem, held: NDArray[np.int64], old: Parts, drawn: Drawn, solver: PartSolver
) -> Made:
    """Go on with the parts that have other rows than before.

    `held` are the positions of the rows held, so that rank r is the row at ``held[r]``.
    """
    results = []
    weights, n_changed = old.weights.open(), drawn.changed.sum(axis=1).tolist()
    for k, own in enumerate(drawn.ranks):
        result = Trained(weights[k], float(old.distances[k]), 0.0)
        if n_changed[k]:
            result = solver.update(part_of(whole, held[own]), result, n_changed[k])
        results.append(result)
    return _made(whole, held, drawn.ranks, results, solver)


def part_of(whole: Problem, positions: NDArray[np.int64]) -> Problem:
    """Return the problem of the rows at some positions, which may repeat."""
    return Problem(whole.X[positions], whole.y[positions], whole.loss, len(positions), whole.l2)


def _made(
    whole: Problem,
    held: NDArray[np.int64],
    ranks: Ranks,
    results: list[Trained],
    solver: PartSolver,
) -> Made:
    """Return the parts, after further steps of all if the mean of the distances asks for it."""
    passes = sum(result.passes for result in results)
    mean = float(np.mean([result.distance for result in results]))
    if not mean <= solver.limit:
        pairs, share = zip(ranks, results, strict=True), solver.limit / mean
        results = [solver.tighten(part_of(whole, held[own]), old, share) for own, old in pairs]
        passes += sum(result.passes for result in results)
    weights = Sealed(np.stack([result.W for result in results]))
    distances = np.array([result.distance for result in results])
    return Made(Parts(ranks, weights, distances), passes)
