"""Settings of Descent-to-Delete, the plan that they ask for, and how it is carried out."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from letheon.linear._base import NOISE_SCALE
from letheon.linear._calibrate import zcdp_gap
from letheon.linear._curvature import Block, Curvature
from letheon.linear._descent_steps import (
    SHARE_OF_ROUNDING,
    Made,
    Move,
    Parts,
    PartSolver,
    Reached,
    ResidualSolver,
    TheoremSolver,
    Trail,
    after_addition,
    after_removal,
    descend,
    follow,
    part_size,
    top_of_gram,
    train_parts,
    update_parts,
)
from letheon.linear._descent_theory import (
    DistributedPlan,
    Geometry,
    Plan,
    PublishedPlan,
    SecretPlan,
    WeakPlan,
    geometry,
    hidden_distance,
    natural_radius,
    nominal_rows,
    same_shrinkage,
    strong_regulariser,
    weak_regulariser,
)
from letheon.linear._model import NORM_ROUNDING
from letheon.linear._problem import Floats, GradientErrors, Problem, row_norms
from letheon.linear._solve import Solution, is_dense, minimise
from letheon.noise import NoiseSource, Sealed
from letheon.removal import Cache, Opaque
from letheon.validation import POSITIVE, Either, Interval, OneOf, OrNone, Rules, Whole

REGULARIZED = ("regularized-strong", "regularized-weak")

# Noise of the residual stop where nobody says: one step per request is then usually enough.
_SIGMA = 0.01
PARAMETER_RULES: Rules = {
    "sigma": OrNone(NOISE_SCALE),
    # Parts of a smaller delta might not be above 0, and 0 stands for another law of the noise.
    "delta": Either(OneOf((0,), "0"), Interval(1e-300, 1, closed="left")),
    "variant": OneOf(("basic", "regularized-strong", "regularized-weak", "distributed")),
    "state": OneOf(("secret", "published")),
    "stop": OneOf(("residual", "theorem")),
    "xi": Interval(1, 4 / 3, expected="a number from 1 to 4/3"),
    **dict.fromkeys(("iterations", "n_copies"), Whole(1)),
    **dict.fromkeys(("regulariser", "radius"), OrNone(POSITIVE)),
}


def check_combination(model: Any) -> None:
    """Raise for settings that contradict each other."""
    by_theorem, regularized = model.stop == "theorem", model.variant in REGULARIZED
    wrong = {
        f"variant={model.variant!r} needs state='secret': its requests go on from parameters "
        "without noise": model.variant != "basic" and model.state != "secret",
        f"variant={model.variant!r} needs stop='theorem', which says what to add": regularized
        and not by_theorem,
        f"regulariser={model.regulariser!r} has no effect with variant={model.variant!r}": (
            model.regulariser is not None and not regularized
        ),
        f"n_copies={model.n_copies!r} needs variant='distributed'": (
            model.n_copies != 1 and model.variant != "distributed"
        ),
        f"radius={model.radius!r} has no effect with stop='residual'": (
            model.radius is not None and not by_theorem
        ),
        "stop='theorem' needs a declared row_norm, and rows='clip', 'normalize' or 'refuse': the "
        "noise depends on it": by_theorem and model.rows == "keep",
        f"reg={model.reg!r} needs variant='basic' and stop='residual': the theorems and the parts "
        "regularise per row": model.reg != "per_sample"
        and (by_theorem or model.variant != "basic"),
        "stop='theorem' needs delta above 0: its noise is Gaussian": by_theorem
        and model.delta == 0,
    }
    for text, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(text)


def plan_descent(model: Any, problem: Problem) -> Plan | None:
    """Return the plan of a fit on these rows; None for the residual stop."""
    if model.stop == "residual":
        return None
    row_norm = float(model.row_norm) * (1 + NORM_ROUNDING)
    radius = float(model.radius or natural_radius(problem.loss, model.l2))
    strong = float(model.l2) + _extra_regulariser(model, problem, row_norm, radius)
    shape = geometry(problem.loss, row_norm, strong, radius, problem.shape[0])
    epsilon, delta = shares(model)
    n, many = nominal_rows(problem.n_held), int(model.iterations)
    if model.variant == "distributed":
        size = parts_of(model, problem.n_held)
        return DistributedPlan.of(shape, n, size, model.xi, many, epsilon, delta)
    if model.state == "published":
        return _published_plan(model, shape, problem)
    kind = WeakPlan if model.variant == "regularized-weak" else SecretPlan
    return kind.of(shape, n, many, epsilon, delta)


def _published_plan(model: Any, shape: Geometry, problem: Problem) -> PublishedPlan:
    return PublishedPlan.of(
        shape,
        nominal_rows(problem.n_held),
        int(model.iterations),
        float(model.epsilon),
        float(model.delta),
        float(model.sigma) if model.sigma else None,
    )


def _extra_regulariser(model: Any, problem: Problem, row_norm: float, radius: float) -> float:
    if model.variant not in REGULARIZED:
        return 0.0
    if model.regulariser is not None:
        return float(model.regulariser)
    best = strong_regulariser if model.variant == "regularized-strong" else weak_regulariser
    d, K = problem.shape
    gap = zcdp_gap(model.epsilon, model.delta)
    n = nominal_rows(problem.n_held)
    return best(problem.loss, row_norm, radius, n, d * K, model.iterations, gap)


def parts_of(model: Any, n_rows: int) -> int:
    """Return the number of parts, and of rows in each: that of N/2 rows."""
    return part_size(nominal_rows(n_rows) // 2, model.xi)


def has_outgrown(model: Any, n_before: int, n_after: int) -> bool:
    """Whether a fresh fit on the new number of rows would have another plan or other parts."""
    depends = model.stop == "theorem" or model.variant == "distributed"
    return depends and nominal_rows(n_before) != nominal_rows(n_after)


def choose_noise_scale(model: Any, plan: Plan | None) -> float:
    """Return the scale of the noise: that of the settings, else the plan's."""
    if model.sigma is not None:
        return float(model.sigma)
    return _SIGMA if plan is None else plan.sigma


def shares(model: Any) -> tuple[float, float]:
    """Return epsilon and delta of one copy: all copies together are certified."""
    return float(model.epsilon) / model.n_copies, float(model.delta) / model.n_copies


def limit_of(model: Any, sigma: float, size: int) -> float:
    """Return the distance to the optimum that noise of this scale hides, for `size` parameters.

    From the published state half of delta is for noise of the past that was too long.
    """
    epsilon, delta = shares(model)
    if model.stop == "theorem" and model.state == "published":
        delta = delta / 2
    return hidden_distance(sigma, epsilon, delta, size)


@dataclass(frozen=True, eq=False, repr=False)
class Kept(Opaque):
    """What a request may start from: parameters (without noise, if they are kept) and the rest."""

    W: Floats
    trail: Trail | None = None
    parts: tuple[Parts, ...] = ()
    n_changed: int = 0
    top: float = inf


@dataclass(frozen=True, eq=False, repr=False)
class Found(Opaque):
    """Parameters before noise, one per copy, and what is kept for the next request."""

    optima: tuple[Floats, ...]
    distance: float
    flops: float
    kept: dict[str, Any] = field(default_factory=dict)
    writes: tuple[Callable[[], None], ...] = ()
    n_iter: int = 1


@dataclass(frozen=True)
class ByResidual:
    """Any optimiser, until |gradient| / ridge <= limit. With `secret` a Hessian is kept."""

    limit: float
    secret: bool
    tol: float
    max_iter: int

    def train(self, problem: Problem, source: NoiseSource) -> Found:  # noqa: ARG002
        """Minimise from zero."""
        found = self._minimise(problem, None)
        if not self.secret:
            return self._open(problem, found)
        curvature = curvature_at(problem, found.W) if is_dense(problem) else None
        reached = Reached(found.W, found.gradient, found.flops, curvature)
        sealed = self._sealed(problem, reached, problem.gradient_errors())
        return replace(sealed, n_iter=found.n_iter)

    def update(self, move: Move, kept: Kept, source: NoiseSource) -> Found:  # noqa: ARG002
        """Follow the optimum with the old Hessian, or minimise from what was published."""
        if not self.secret:
            return self._open(move.after, self._minimise(move.after, kept.W))
        trail = kept.trail or trail_at(move.before, kept.W)
        errors = move.after.gradient_errors() if move.adds else trail.errors
        goal = self._goal(move.after, 2 * errors.at(kept.W))
        reached = follow(move, kept.W, trail, goal, curvature_at, max_iter=self.max_iter)
        return self._sealed(move.after, reached, errors)

    def _goal(self, problem: Problem, error: float = inf) -> float:
        """Return the gradient to reach; `error` is what rounding may hide of it, roughly."""
        if self.limit == inf:
            return self.tol * problem.n_held
        hidden = self.limit * problem.ridge * (1 - 1e-6)
        return hidden - min(error, SHARE_OF_ROUNDING * hidden)

    def _minimise(self, problem: Problem, start: Floats | None) -> Solution:
        goal = self._goal(problem)
        return minimise(problem, start=start, tolerance=goal, max_iter=self.max_iter)

    def _open(self, problem: Problem, found: Solution) -> Found:
        distance = problem.distance_bound(found.gradient, problem.gradient_error(found.W))
        return Found((found.W,), distance, found.flops, n_iter=found.n_iter)

    def _sealed(self, problem: Problem, reached: Reached, errors: GradientErrors) -> Found:
        kept = {
            "unperturbed_": sealed(reached.W),
            "cache_": Cache(Trail(reached.gradient, reached.curvature, errors)),
        }
        distance = problem.distance_bound(reached.gradient, errors.at(reached.W))
        return Found((reached.W,), distance, reached.flops, kept, reached.writes)


def curvature_at(problem: Problem, W: Floats) -> Curvature:
    """Return the Hessian at W for solving only: no bound is ever taken from it."""
    blocks = [Block.of(hessian, problem.ridge) for hessian in problem.hessian(W)]
    return Curvature(W, blocks, [inf] * len(blocks), inf)


def trail_at(problem: Problem, W: Floats) -> Trail:
    """Return what was not saved: it is computed again from the rows."""
    curvature = curvature_at(problem, W) if is_dense(problem) else None
    return Trail(problem.gradient(W), curvature, problem.gradient_errors())


def sealed(W: Floats) -> Sealed:
    """Return a sealed copy; others may go on with W when the seal is wiped."""
    return Sealed(np.array(W, np.float64, order="C"))


@dataclass(frozen=True)
class ByTheorem:
    """Counted gradient steps. With `secret` the top eigenvalue of X'X is kept: it saves steps."""

    plan: Plan
    secret: bool

    def train(self, problem: Problem, source: NoiseSource) -> Found:  # noqa: ARG002
        """Descend from zero."""
        top = top_of_gram(problem.X) if self.secret else inf
        actual = self._actual(problem, top)
        n_steps = same_shrinkage(self.plan.training_steps, self.plan.geometry, actual)
        W = np.zeros(problem.shape)
        return self._found(problem, descend(problem, W, n_steps, actual), n_steps, 0, top)

    def update(self, move: Move, kept: Kept, source: NoiseSource) -> Found:  # noqa: ARG002
        """Descend from what is kept."""
        problem, n_now, top = move.after, len(move.positions), kept.top
        if move.adds and self.secret:
            more = float((row_norms(problem.rows_at(move.positions)) ** 2).sum())
            top = (top + more) * (1 + 1e-9)
        actual = self._actual(problem, top)
        n_steps = self.plan.update_steps(kept.n_changed, n_now, actual)
        W = descend(problem, kept.W, n_steps, actual)
        return self._found(problem, W, n_steps, kept.n_changed + n_now, top)

    def _actual(self, problem: Problem, top: float) -> Geometry:
        """Return the constants with the smoothness of the rows as they are, if that is less."""
        shape = self.plan.geometry
        smooth = shape.strong + problem.loss.curvature_bound * top / problem.n_held
        return replace(shape, smooth=min(shape.smooth, smooth * (1 + 1e-12)))

    def _found(
        self, problem: Problem, W: Floats, n_steps: int, n_changed: int, top: float
    ) -> Found:
        kept: dict[str, Any] = {"n_changed_": n_changed}
        if self.secret:
            kept |= {"unperturbed_": sealed(W), "top_": top}
        flops, n_iter = n_steps * problem.pass_flops, max(1, n_steps)
        return Found((W,), self.plan.distance, flops, kept, n_iter=n_iter)


@dataclass(frozen=True)
class InParts:
    """Copies of a bootstrap sample in parts; `plan` is None for the residual stop."""

    plan: DistributedPlan | None
    limit: float
    size: int
    n_copies: int
    max_iter: int

    def train(self, problem: Problem, source: NoiseSource) -> Found:
        """Draw and train every copy."""
        solver = self._solver(0)
        made = [train_parts(problem, self.size, solver, source) for _ in range(self.n_copies)]
        return self._found(problem, made, 0)

    def update(self, move: Move, kept: Kept, source: NoiseSource) -> Found:
        """Exchange rows of the samples, and go on with the parts that have them."""
        n_changed = kept.n_changed + len(move.positions)
        solver, n_before = self._solver(n_changed), move.before.n_held
        held = np.flatnonzero(move.alive)
        changed = np.searchsorted(held, move.positions)
        if not move.adds:
            held = np.delete(held, changed)
        made = []
        for parts in kept.parts:
            if move.adds:
                drawn = after_addition(source, parts.ranks, n_before, len(changed))
            else:
                drawn = after_removal(source, parts.ranks, changed, n_before)
            made.append(update_parts(move.after, held, parts, drawn, solver))
        return self._found(move.after, made, n_changed)

    def _solver(self, last: int) -> PartSolver:
        if self.plan is None:
            return ResidualSolver(self.limit * (1 - SHARE_OF_ROUNDING), self.max_iter)
        return TheoremSolver(self.plan, last)

    def _found(self, whole: Problem, made: list[Made], n_changed: int) -> Found:
        parts = tuple(each.parts for each in made)
        n_rows = sum(each.passes for each in made) * self.size
        # The plan's own bound: the tracked ones would tell how the rows were drawn.
        tracked = max(each.distance for each in parts)
        distance = tracked if self.plan is None else self.plan.distance
        kept = {"parts_": parts, "n_changed_": n_changed}
        optima = tuple(each.mean for each in parts)
        # Copies are compared by their loss on all rows.
        n_passes = n_rows / whole.n_held + (len(parts) if len(parts) > 1 else 0)
        return Found(optima, distance, n_passes * whole.pass_flops, kept)


# How optima are approached: changes nothing but the source of noise, which is that of the plan.
Engine = ByResidual | ByTheorem | InParts
