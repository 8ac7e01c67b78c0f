"""Descent-to-Delete on parts of a bootstrap sample (Neel et al. 2021, Algorithms 5 to 7).

``b^2`` rows are drawn with replacement, b = floor(n^(xi / 2)), and make b parts of b rows. Noise is
added to the mean of the parts' parameters. A request exchanges few rows of the sample, and only the
parts that have one of them go on training.

The bound of a part's distance to its own optimum is tracked: a step shrinks it by gamma, and an
exchange of c rows adds ``2 c L / (mu b)`` before the steps. The steps of the paper are made. If the
mean of the bounds were still above what the noise hides, all parts make further steps. So the
certificate does not rest on how many parts a request meets.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from letheon.linear._descent_steps import descend
from letheon.linear._descent_theory import DistributedPlan, steps_between
from letheon.linear._losses import Floats
from letheon.linear._problem import EPSILON, Problem
from letheon.linear._reservoir import Drawn, Ranks, draw
from letheon.linear._solve import minimise
from letheon.noise import NoiseSource, Sealed
from letheon.removal import opaque_repr

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


class PartSolver(Protocol):
    """How one part is trained."""

    @property
    def limit(self) -> float:
        """What the mean of the distances must not exceed."""

    def train(self, part: Problem) -> Trained:
        """Train from zero."""

    def update(self, part: Problem, old: Trained, n_changed: int) -> Trained:
        """Go on after `n_changed` rows of the part were exchanged."""

    def tighten(self, part: Problem, old: Trained, share: float) -> Trained:
        """Go on until the distance is that share of what it is."""


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
