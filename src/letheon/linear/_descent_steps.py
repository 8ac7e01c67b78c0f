"""The steps of Descent-to-Delete, on all rows or on parts of a random sample of the rows.

*Parts* (Neel et al. 2021, Algorithms 5 to 7). A sample of ``b^2`` rows is drawn with replacement,
where b = floor(n^(xi / 2)), and is split into b parts of b rows. Noise is added to the mean of the
parameters of all parts. A request exchanges few rows of the sample, and only parts with an
exchanged row continue training.

The sample stores the rank of each row among the remaining rows, so a removal only closes a gap.
After any sequence of requests that does not depend on the draws, the places of the sample are
independent and uniform over the remaining rows, as in a fresh fit:

- removal: a place whose row remains was uniform over all rows, so it is uniform over the remaining
  rows; a place whose row is removed is drawn again from them;
- addition of m rows to n: a place takes a new row with probability m / (n + m).

The sample is drawn from a `NoiseSource`, by default the operating system, and not from hashes of
the seed. A hash of place and number of rows would repeat when that number returns to an earlier
value. With a known seed, differences from the draws of a fresh fit would reveal requests.

A bound on the distance of each part to its own optimum is tracked. A step multiplies the bound by
gamma, and an exchange of c rows adds ``2 c L / (mu b)`` before the steps. Each part makes as many
steps as the paper requires. If the mean of the bounds is still above the limit that the noise
hides, all parts make further steps. So the guarantee does not depend on how many parts a request
changes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.linear._curvature import Curvature, Downdate, HessianBlock, symv, woodbury, write_block
from letheon.linear._descent_theory import (
    DescentPlan,
    DistributedPlan,
    Geometry,
    same_shrinkage,
    steps_between,
    top_of_gram,
)
from letheon.linear._problem import (
    EPSILON,
    FitProblem,
    Floats,
    GradientErrors,
    Positions,
    hessian_roots,
    row_norms,
    sum_gradients,
)
from letheon.linear._solve import Solution, from_blocks, is_dense, minimise, newton_step, to_blocks
from letheon.noise import NoiseSource, SecretArray
from letheon.removal import Cache, Opaque

Ranks = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class RowDraw(Opaque):
    """Ranks of the sampled rows, and which places of the sample changed."""

    ranks: Ranks
    changed: NDArray[np.bool_]


def draw_ranks(source: NoiseSource, shape: tuple[int, ...], n_rows: int) -> Ranks:
    """Return an array of independent random ranks, uniform in 0..n_rows - 1."""
    return source.integers(shape, n_rows)


def redraw_after_removal(source: NoiseSource, ranks: Ranks, removed: Ranks, n_rows: int) -> RowDraw:
    """Return the sample after rows with the (ascending) ranks `removed` of `n_rows` are removed."""
    below = np.searchsorted(removed, ranks)
    changed = np.searchsorted(removed, ranks, "right") > below
    closed = ranks - below
    closed[changed] = draw_ranks(source, (int(changed.sum()),), n_rows - len(removed))
    return RowDraw(closed, changed)


def redraw_after_addition(source: NoiseSource, ranks: Ranks, n_rows: int, n_new: int) -> RowDraw:
    """Return the sample after `n_new` rows were added to `n_rows`."""
    drawn = draw_ranks(source, ranks.shape, n_rows + n_new)
    changed = drawn >= n_rows
    return RowDraw(np.where(changed, drawn, ranks), changed)


# If a step leaves more than this share of the gradient, its Hessian is stale.
_STALE = 0.1
_MOST_STEPS = 8
# The linear system is solved to this share of the gradient; the nonlinear residual is larger.
_LINEAR_SHARE = 1e-3
_MOST_REFINEMENTS = 3
# With more new rows than this share of the columns, the Hessian is recomputed.
_MOST_GAINED = 0.25


def descend_projected(problem: FitProblem, W: Floats, n_steps: int, shape: Geometry) -> Floats:
    """Return W after projected gradient steps of length 2 / (M + mu) on the mean objective."""
    W, length = project_to_ball(W, shape.radius), shape.rate / problem.n_remaining
    for _ in range(n_steps):
        W = project_to_ball(W - length * problem.gradient_at(W), shape.radius)
    return W


def project_to_ball(W: Floats, radius: float) -> Floats:
    """Return the point of the ball |W| <= radius that is nearest to W."""
    norm = float(np.linalg.norm(W))
    return W if norm <= radius else W * (radius / norm)


@dataclass(eq=False, repr=False)
class WarmStart(Opaque):
    """Gradient and Hessian at the current parameters, from which the next request starts.

    The rounding errors `errors` are valid for the current rows and for any subset of them.
    """

    gradient: Floats
    curvature: Curvature | None
    errors: GradientErrors


@dataclass(frozen=True, eq=False, repr=False)
class RowUpdate(Opaque):
    """Rows to remove or to add, with the problem before and after.

    `positions` refer to the problem that contains the rows; `alive` marks its slots that have rows.
    """

    before: FitProblem
    after: FitProblem
    positions: Positions
    alive: NDArray[np.bool_]
    adds: bool

    @property
    def rows_and_targets(self) -> tuple[Any, NDArray[Any]]:
        """The rows to remove or to add, as float64, and their targets."""
        holder = self.after if self.adds else self.before
        return holder.copy_rows(self.positions), holder.y[self.positions]

    def gradient_after(self, W: Floats, gradient: Floats) -> Floats:
        """Return the gradient at W after the update, computed from the gradient before it."""
        rows, y = self.rows_and_targets
        own = sum_gradients(self.before.loss, rows, y, W)
        shift = (self.after.ridge - self.before.ridge) * W
        return gradient + shift + own if self.adds else gradient + shift - own


def follow_optimum(
    update: RowUpdate, W: Floats, trail: WarmStart, goal: float, max_iter: int
) -> tuple[Solution, Curvature | None, tuple[Callable[[], None], ...]]:
    """Step from the old optimum W towards the new optimum until the gradient is at most `goal`.

    Usually, one step and one pass over the rows are enough: the initial gradient is known, and the
    old Hessian is updated by the changed rows. If a step leaves much of the gradient, the Hessian
    is stale and computed again at the better point. If the steps do not reach the goal, an
    optimiser continues with at most `max_iter` iterations. Return the solution, the Hessian in use,
    and functions that update the Hessian on commit.
    """
    after, gradient = update.after, update.gradient_after(W, trail.gradient)
    curvature, change = trail.curvature, _update_curvature(update, trail.curvature)
    flops, is_measured, is_fresh = 0.0, False, False
    if change is None:
        curvature, flops, is_fresh = _fresh_curvature(after, W)
    for _ in range(_MOST_STEPS):
        step, spent = _solve_step(after, W, gradient, curvature, change)
        new_gradient = after.gradient_at(W - step)
        flops += spent + after.pass_flops
        size, new_norm = float(np.linalg.norm(gradient)), float(np.linalg.norm(new_gradient))
        if new_norm <= max(goal, size):
            W, gradient, is_measured = W - step, new_gradient, True
        if new_norm <= goal:
            break
        if new_norm > _STALE * size:
            if is_fresh:
                break
            curvature, spent, is_fresh = _fresh_curvature(after, W)
            change, flops = None, flops + spent
    if not is_measured or not np.linalg.norm(gradient) <= goal:
        solution = minimise(after, start=W, tolerance=goal, max_iter=max_iter)
        W, gradient, flops = solution.W, solution.gradient, flops + solution.flops
    writes = () if change is None else (change.apply,)
    return Solution(W, gradient, flops), curvature, writes


def _fresh_curvature(problem: FitProblem, W: Floats) -> tuple[Curvature | None, float, bool]:
    """Return (Hessian at W, operations, True); (None, 0, False) if it is too large to form."""
    if not is_dense(problem):
        return None, 0.0, False
    curvature = evaluate_curvature(problem, W)
    flops = sum(problem.pass_flops / 4 * len(block.hessian) for block in curvature.blocks)
    return curvature, flops, True


def _update_curvature(
    update: RowUpdate, curvature: Curvature | None
) -> "Downdate | LowRankUpdate | None":
    """Return the update of the old Hessian by the changed rows; None if it cannot be used."""
    if curvature is None:
        return None
    rows, y = update.rows_and_targets
    if update.adds and len(y) > max(1.0, _MOST_GAINED * curvature.point.size):
        return None
    roots = hessian_roots(update.before.loss, rows, y, curvature.point)
    if update.adds:
        return LowRankUpdate(curvature, roots)
    return Downdate(curvature, roots, update.after.ridge)


def _solve_step(
    problem: FitProblem,
    W: Floats,
    gradient: Floats,
    curvature: Curvature | None,
    change: "Downdate | LowRankUpdate | None",
) -> tuple[Floats, float]:
    """Return H^(-1) gradient, with the stored Hessian or by products, and the operations."""
    if curvature is None:
        by_products, flops = newton_step(problem, W, gradient)
        return -by_products, flops
    flops = 8.0 * len(gradient) * gradient.size
    if not isinstance(change, Downdate):
        return (curvature if change is None else change).solve(gradient), flops
    step, size = change.solve(gradient), float(np.linalg.norm(gradient))
    for _ in range(_MOST_REFINEMENTS):
        if step.residual <= _LINEAR_SHARE * size:
            break
        step = change.refine(step, gradient)
    return step.change, flops


class LowRankUpdate:
    """A pending addition of rows to a curvature; only `apply` changes the matrices.

    Parameters
    ----------
    curvature : Curvature
        The curvature of the rows before the addition.
    roots : list of ndarray
        The matrix V of every block at the expansion point; V V' is added to the block.
    """

    def __init__(self, curvature: Curvature, roots: list[Floats]) -> None:
        self._curvature, self._parts = curvature, []
        for block, root in zip(curvature.blocks, roots, strict=True):
            V = np.asfortranarray(root)
            self._parts.append((block, V, woodbury(block, V, 1.0)[0]))

    def solve(self, G: Floats) -> Floats:
        """Return the inverse of the Hessian with the new rows, times G."""
        targets = to_blocks(G, len(self._parts))
        solved = [
            symv(block.inverse, g) - Q @ (Q.T @ g)
            for (block, _, Q), g in zip(self._parts, targets, strict=True)
        ]
        return from_blocks(solved, G.shape)

    def apply(self) -> None:
        """Change the matrices in place. This cannot fail."""
        for block, V, Q in self._parts:
            write_block(block, V, Q, 1.0)
        self._curvature.n_downdates += 1


# Share of the hidden distance reserved for rounding errors of a measured gradient.
SHARE_OF_ROUNDING = 0.1


@dataclass(frozen=True, eq=False, repr=False)
class PartFit(Opaque):
    """Parameters of a part, a bound on their distance to its optimum, and the passes made."""

    W: Floats
    distance: float
    passes: float


@dataclass(frozen=True, eq=False)
class PartSolver:
    """Solver of one part: a planned number of gradient steps, or any optimiser without a plan.

    `limit` is the largest allowed mean of the distances, without rounding; `n_changed` is the
    number of rows changed since the fit. The optimiser stops when the measured gradient proves that
    the distance to the optimum is small enough.
    """

    plan: DistributedPlan | None
    limit: float
    max_iter: int = 1
    n_changed: int = 0

    def train(
        self, part: FitProblem, old: PartFit | None = None, n_exchanged: int = 0, share: float = 1.0
    ) -> PartFit:
        """Train from zero, or from the old parameters if they are given.

        `n_exchanged` rows were exchanged since then. With a `share` below 1, no row was exchanged,
        and training continues until the old distance is reduced to this share.
        """
        W = np.zeros(part.shape) if old is None else old.W
        if self.plan is None:
            near = self.limit if old is None or share == 1.0 else share * old.distance
            tolerance = (1 - SHARE_OF_ROUNDING) * min(self.limit, near) * part.ridge
            solution = minimise(part, start=W, tolerance=tolerance, max_iter=self.max_iter)
            distance = part.distance_bound(solution.gradient, part.gradient_error(solution.W))
            return PartFit(solution.W, distance, solution.flops / part.pass_flops)
        shape = self.plan.geometry
        if old is None:
            distance, n_steps = 2.0 * shape.radius, self.plan.training_steps
        elif share == 1.0:
            distance = old.distance + self.plan.part_shift(n_exchanged)
            n_steps = self.plan.update_steps(0, self.n_changed, shape)
        else:
            distance, n_steps = old.distance, steps_between(1.0, share, shape)
        W = descend_projected(part, W, n_steps, shape)
        return PartFit(W, distance * shape.shrinkage_after(n_steps), n_steps)


@dataclass(frozen=True, eq=False)
class Parts:
    """One copy of the sample: ranks of the rows, parameters and distance bound of every part."""

    ranks: Ranks = field(repr=False)
    weights: SecretArray
    distances: Floats = field(repr=False)

    @property
    def mean(self) -> Floats:
        """Mean of the parameters of all parts, of shape (d, K)."""
        mean: Floats = self.weights.open().mean(axis=0)
        return mean

    @property
    def distance(self) -> float:
        """Bound on the distance of `mean` to the mean of the optima, rounding included."""
        weights = self.weights.open()
        largest = float(np.linalg.norm(weights, axis=(1, 2)).max())
        rounding = EPSILON * (len(weights) + 2) * largest
        return float(self.distances.mean()) * (1 + 1e-9) + rounding

    def __copy__(self) -> "Parts":
        """Return a copy with its own secret array."""
        return replace(self, weights=SecretArray(self.weights.open().copy()))


class PartsTraining(NamedTuple):
    """Trained parts, and the number of passes over one part that the training took."""

    parts: Parts
    passes: float


def draw_parts(source: NoiseSource, size: int, n_rows: int) -> RowDraw:
    """Return a new sample of the rows: `size` parts of `size` rows."""
    return RowDraw(draw_ranks(source, (size, size), n_rows), np.ones((size, size), bool))


def train_parts(
    whole: FitProblem,
    remaining: NDArray[np.int64],
    drawn: RowDraw,
    solver: PartSolver,
    old: Parts | None = None,
) -> PartsTraining:
    """Train every part or, if `old` is given, continue the parts whose rows changed.

    `remaining` contains the positions of the remaining rows: the row of rank r is at
    ``remaining[r]``. All parts make further steps if the mean of the distances exceeds the limit.
    """
    results = []
    for k, n_exchanged in enumerate(drawn.changed.sum(axis=1).tolist()):
        result = None
        if old is not None:
            result = PartFit(old.weights.open()[k], float(old.distances[k]), 0.0)
        if result is None or n_exchanged:
            result = solver.train(part_of(whole, remaining[drawn.ranks[k]]), result, n_exchanged)
        results.append(result)
    passes = sum(result.passes for result in results)
    mean = float(np.mean([result.distance for result in results]))
    if not mean <= solver.limit:
        pairs, share = zip(drawn.ranks, results, strict=True), solver.limit / mean
        results = [solver.train(part_of(whole, remaining[own]), x, share=share) for own, x in pairs]
        passes += sum(result.passes for result in results)
    weights = SecretArray(np.stack([result.W for result in results]))
    distances = np.array([result.distance for result in results])
    return PartsTraining(Parts(drawn.ranks, weights, distances), passes)


def part_of(whole: FitProblem, positions: NDArray[np.int64]) -> FitProblem:
    """Return the problem for the rows at these positions; positions may repeat."""
    return FitProblem(whole.X[positions], whole.y[positions], whole.loss, len(positions), whole.l2)


@dataclass(frozen=True, eq=False, repr=False)
class PriorState(Opaque):
    """State of a model before a request: parameters (without noise if kept) and caches."""

    W: Floats
    warm_start: WarmStart | None = None
    parts: tuple[Parts, ...] = ()
    n_changed: int = 0
    top: float = inf


@dataclass(frozen=True, eq=False, repr=False)
class DescentOutcome(Opaque):
    """Result of a descent: parameters before noise (one array per copy), and new attributes."""

    optima: tuple[Floats, ...]
    distance: float
    flops: float
    attributes: dict[str, Any] = field(default_factory=dict)
    writes: tuple[Callable[[], None], ...] = ()
    n_iter: int = 1


@dataclass(frozen=True)
class ResidualDescent:
    """Descent by any optimiser until |gradient| / ridge <= limit; keeps a Hessian if `secret`."""

    limit: float
    secret: bool
    tol: float
    max_iter: int

    def train(self, problem: FitProblem, _: NoiseSource) -> DescentOutcome:
        """Minimise the objective from zero."""
        solution = self._minimise_from(problem, None)
        if not self.secret:
            return self._build_outcome(problem, solution)
        warm_start = warm_start_at(problem, solution.W, solution.gradient)
        return self._build_outcome(problem, solution, warm_start)

    def follow(self, update: RowUpdate, prior: PriorState, _: NoiseSource) -> DescentOutcome:
        """Follow the optimum with the old Hessian or, if not `secret`, minimise from `prior.W`."""
        if not self.secret:
            return self._build_outcome(update.after, self._minimise_from(update.after, prior.W))
        trail = prior.warm_start or warm_start_at(update.before, prior.W)
        errors = update.after.gradient_errors() if update.adds else trail.errors
        goal = self._gradient_goal(update.after, 2 * errors.bound_at(prior.W))
        solution, curvature, writes = follow_optimum(update, prior.W, trail, goal, self.max_iter)
        latest = WarmStart(solution.gradient, curvature, errors)
        return self._build_outcome(update.after, solution, latest, writes)

    def _gradient_goal(self, problem: FitProblem, error: float = inf) -> float:
        """Return the gradient norm at which to stop; `error` is its estimated rounding error."""
        if self.limit == inf:
            return self.tol * problem.n_remaining
        hidden = self.limit * problem.ridge * (1 - 1e-6)
        return hidden - min(error, SHARE_OF_ROUNDING * hidden)

    def _minimise_from(self, problem: FitProblem, start: Floats | None) -> Solution:
        goal = self._gradient_goal(problem)
        return minimise(problem, start=start, tolerance=goal, max_iter=self.max_iter)

    def _build_outcome(
        self,
        problem: FitProblem,
        solution: Solution,
        trail: WarmStart | None = None,
        writes: tuple[Callable[[], None], ...] = (),
    ) -> DescentOutcome:
        """Return the outcome; the parameters are kept as a secret only if `trail` is given."""
        W, attributes = solution.W, {}
        error = problem.gradient_error(W) if trail is None else trail.errors.bound_at(W)
        if trail is not None:
            attributes = {"unperturbed_": copy_as_secret(W), "cache_": Cache(trail)}
        distance = problem.distance_bound(solution.gradient, error)
        return DescentOutcome((W,), distance, solution.flops, attributes, writes, solution.n_iter)


def evaluate_curvature(problem: FitProblem, W: Floats) -> Curvature:
    """Return a curvature at W that can only solve systems, because its bounds are infinite."""
    blocks = [
        HessianBlock.from_hessian(hessian, problem.ridge) for hessian in problem.hessian_at(W)
    ]
    return Curvature(W, blocks, [inf] * len(blocks), inf)


def warm_start_at(problem: FitProblem, W: Floats, gradient: Floats | None = None) -> WarmStart:
    """Return the warm start at W; the gradient is computed unless it is given."""
    curvature = evaluate_curvature(problem, W) if is_dense(problem) else None
    gradient = problem.gradient_at(W) if gradient is None else gradient
    return WarmStart(gradient, curvature, problem.gradient_errors())


def copy_as_secret(W: Floats) -> SecretArray:
    """Return a secret copy of W; wiping the copy does not change W."""
    return SecretArray(np.array(W, np.float64, order="C"))


@dataclass(frozen=True)
class TheoremDescent:
    """Descent by a planned number of gradient steps.

    If `secret`, the largest eigenvalue of X'X is kept, which saves steps.
    """

    plan: DescentPlan
    secret: bool

    def train(self, problem: FitProblem, _: NoiseSource) -> DescentOutcome:
        """Make the planned steps of a fit from zero."""
        top, plan = top_of_gram(problem.X) if self.secret else inf, self.plan
        actual = self._actual_geometry(problem, top)
        n_steps = same_shrinkage(plan.training_steps, plan.geometry, actual)
        W = descend_projected(problem, np.zeros(problem.shape), n_steps, actual)
        return self._build_outcome(problem, W, n_steps, 0, top)

    def follow(self, update: RowUpdate, prior: PriorState, _: NoiseSource) -> DescentOutcome:
        """Make the planned steps of a request from the parameters before it."""
        problem, n_now, top = update.after, len(update.positions), prior.top
        if update.adds and self.secret:
            more = float((row_norms(problem.copy_rows(update.positions)) ** 2).sum())
            top = (top + more) * (1 + 1e-9)
        actual = self._actual_geometry(problem, top)
        n_steps = self.plan.update_steps(prior.n_changed, n_now, actual)
        W = descend_projected(problem, prior.W, n_steps, actual)
        return self._build_outcome(problem, W, n_steps, prior.n_changed + n_now, top)

    def _actual_geometry(self, problem: FitProblem, top: float) -> Geometry:
        """Return the constants, with the smoothness of the actual rows if it is smaller."""
        shape = self.plan.geometry
        smooth = shape.strong + problem.loss.curvature_bound * top / problem.n_remaining
        return replace(shape, smooth=min(shape.smooth, smooth * (1 + 1e-12)))

    def _build_outcome(
        self, problem: FitProblem, W: Floats, n_steps: int, n_changed: int, top: float
    ) -> DescentOutcome:
        attributes: dict[str, Any] = {"n_changed_": n_changed}
        if self.secret:
            attributes |= {"unperturbed_": copy_as_secret(W), "top_": top}
        flops, n_iter = n_steps * problem.pass_flops, max(1, n_steps)
        return DescentOutcome((W,), self.plan.distance, flops, attributes, n_iter=n_iter)


@dataclass(frozen=True)
class DistributedDescent:
    """Descent on the parts of one or more bootstrap samples (copies)."""

    solver: PartSolver
    size: int
    n_copies: int

    def train(self, problem: FitProblem, source: NoiseSource) -> DescentOutcome:
        """Draw the sample of every copy and train its parts."""
        n, trainings = problem.n_rows, []
        for _ in range(self.n_copies):
            drawn = draw_parts(source, self.size, n)
            trainings.append(train_parts(problem, np.arange(n), drawn, self.solver))
        return self._build_outcome(problem, trainings, 0)

    def follow(self, update: RowUpdate, prior: PriorState, source: NoiseSource) -> DescentOutcome:
        """Exchange rows of the samples, and continue training the parts that contain them."""
        n_changed, n_before = prior.n_changed + len(update.positions), update.before.n_remaining
        solver = replace(self.solver, n_changed=n_changed)
        remaining, trainings = np.flatnonzero(update.alive), []
        changed = np.searchsorted(remaining, update.positions)
        if not update.adds:
            remaining = np.delete(remaining, changed)
        for parts in prior.parts:
            if update.adds:
                drawn = redraw_after_addition(source, parts.ranks, n_before, len(changed))
            else:
                drawn = redraw_after_removal(source, parts.ranks, changed, n_before)
            trainings.append(train_parts(update.after, remaining, drawn, solver, parts))
        return self._build_outcome(update.after, trainings, n_changed)

    def _build_outcome(
        self, whole: FitProblem, trainings: list[PartsTraining], n_changed: int
    ) -> DescentOutcome:
        parts = tuple(each.parts for each in trainings)
        n_rows = sum(each.passes for each in trainings) * self.size
        # The plan's bound: the tracked bounds would reveal how the rows were drawn.
        tracked = max(each.distance for each in parts)
        plan = self.solver.plan
        distance = tracked if plan is None else plan.distance
        attributes = {"parts_": parts, "n_changed_": n_changed}
        optima = tuple(each.mean for each in parts)
        # Copies are compared by their loss on all rows.
        n_passes = n_rows / whole.n_remaining + (len(parts) if len(parts) > 1 else 0)
        return DescentOutcome(optima, distance, n_passes * whole.pass_flops, attributes)


# Engines change nothing but the state of the noise source.
DescentEngine = ResidualDescent | TheoremDescent | DistributedDescent
