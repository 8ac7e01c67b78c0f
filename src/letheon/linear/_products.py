"""The Hessian as products with the rows, where no matrix of its size is formed."""

from dataclasses import dataclass
from math import sqrt

import numpy as np
import scipy.sparse as sp

from letheon.linear._bounds import norm
from letheon.linear._losses import Floats
from letheon.linear._problem import Positions, Problem
from letheon.removal import Opaque

_MOST_PRODUCTS = 500


@dataclass(frozen=True, eq=False, repr=False)
class ProductStep(Opaque):
    """A step that solves H step = G nearly, and what it does.

    `scores` is X step. `left` bounds the gradient that the step adds: what is left of the linear
    system, and what the bend of the loss adds to it.
    """

    change: Floats
    scores: Floats
    left: float
    flops: float


@dataclass(eq=False, repr=False)
class Products(Opaque):
    """What is kept per slot and per column for removals by conjugate gradients.

    All of it follows removals: the diagonal would otherwise still hold the squares of rows that
    left.

    Attributes
    ----------
    weights : ndarray
        Curvature of every slot, at the point where it was last evaluated.
    diagonal : ndarray
        Diagonal of the data part of the Hessian with these weights.
    scores : ndarray
        X W of every slot, at the current parameters.
    spectral : float
        Upper bound of the spectral norm of X: sqrt(|X|_1 |X|_inf).
    """

    weights: Floats
    diagonal: Floats
    scores: Floats
    spectral: float

    @classmethod
    def at(cls, problem: Problem, W: Floats) -> "Products":
        """Evaluate at W: one pass over the rows, and one over their squares."""
        scores = np.asarray(problem.X @ W, np.float64)
        weights = problem.loss.curvature(scores, problem.y)
        weights[problem.gone] = 0.0
        diagonal = problem.hessian_diagonal(weights) - problem.ridge
        return cls(weights, diagonal, scores, spectral_bound_of(problem))

    def fits(self, problem: Problem) -> bool:
        """Whether slots are still those of the problem; rows move when many have left."""
        return len(self.weights) == len(problem.y)

    def solve(self, after: Problem, G: Floats, tolerance: float) -> ProductStep:
        """Solve H step = G on the remaining rows to a relative residual.

        Conjugate gradients with a diagonal preconditioner. X times every direction is needed
        anyway, so X step comes for free, and with it what the bend of the loss adds:
        |X' e| <= |X| |e|, e = slope after - slope before - weights * X step.
        """
        weights = self.weights.copy()
        weights[after.gone] = 0.0
        inverse = 1.0 / (self.diagonal + after.ridge)
        x, left, moved = np.zeros_like(G), G.copy(), np.zeros_like(self.scores)
        scaled = inverse * left
        direction, energy = scaled.copy(), float((left * scaled).sum())
        goal, n_products = tolerance * norm(G), 0
        while norm(left) > goal and n_products < _MOST_PRODUCTS:
            along = np.asarray(after.X @ direction, np.float64)
            product = after.ridge * direction + after.X.T @ curved(after, weights, along)
            n_products += 1
            length = energy / float((direction * product).sum())
            x += length * direction
            moved += length * along
            left -= length * product
            scaled = inverse * left
            before, energy = energy, float((left * scaled).sum())
            direction = scaled + (energy / before) * direction
        added = norm(left) + self.spectral * norm(self._bend(after, weights, moved))
        return ProductStep(x, moved, added, (n_products + 0.5) * after.pass_flops)

    def _bend(self, after: Problem, weights: Floats, moved: Floats) -> Floats:
        slope = after.loss.slope
        bend = slope(self.scores + moved, after.y) - slope(self.scores, after.y)
        bend -= curved(after, weights, moved)
        bend[after.gone] = 0.0
        return bend

    def forget(self, problem: Problem, positions: Positions, moved: Floats | None) -> None:
        """Take rows out, which are still in the problem, and move the scores."""
        rows = problem.rows_at(positions)
        own = self.weights[positions]
        if problem.loss.is_joint:
            own = own * (1.0 - own)
        squares = rows.power(2) if sp.issparse(rows) else rows * rows
        self.diagonal -= squares.T @ own
        np.maximum(self.diagonal, 0.0, out=self.diagonal)
        if moved is not None:
            self.scores += moved
        for values in (self.weights, self.scores):
            values[positions] = 0.0


def curved(problem: Problem, weights: Floats, scores: Floats) -> Floats:
    """Second derivatives of the losses, times a change of the scores."""
    change: Floats = weights * scores
    if problem.loss.is_joint:
        change -= weights * change.sum(axis=1, keepdims=True)
    return change


def spectral_bound_of(problem: Problem) -> float:
    """Upper bound of the spectral norm of X: sqrt(|X|_1 |X|_inf)."""
    sizes = abs(problem.X)
    by_column, by_row = np.asarray(sizes.sum(axis=0)), np.asarray(sizes.sum(axis=1))
    return sqrt(float(by_column.max()) * float(by_row.max()))
