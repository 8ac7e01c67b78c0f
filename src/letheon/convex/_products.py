"""The Hessian as products with the rows, where no matrix of its size is formed."""

from dataclasses import dataclass

import numpy as np

from letheon.convex._losses import Floats
from letheon.convex._problem import Positions, Problem
from letheon.convex._solve import conjugate_gradients


@dataclass(eq=False)
class Products:
    """Curvature of every slot and the diagonal of the Hessian's data part, at one point.

    Both follow removals: the diagonal would otherwise still hold the squares of rows that left.
    """

    weights: Floats
    diagonal: Floats

    @classmethod
    def at(cls, problem: Problem, W: Floats) -> "Products":
        """Evaluate at W: one pass over the rows, and one over their squares."""
        weights = problem.curvature(W)
        return cls(weights, problem.hessian_diagonal(weights) - problem.ridge)

    def fits(self, problem: Problem) -> bool:
        """Whether slots are still those of the problem; rows move when many have left."""
        return len(self.weights) == len(problem.y)

    def solve(self, after: Problem, G: Floats, tolerance: float) -> tuple[Floats, float]:
        """Solve H step = G on the remaining rows to a relative residual."""
        weights = self.weights.copy()
        weights[after.gone] = 0.0
        return conjugate_gradients(
            after, weights, G, tolerance, preconditioner=self.diagonal + after.ridge
        )

    def forget(self, problem: Problem, positions: Positions) -> None:
        """Take rows out; they are still in the problem."""
        rows = problem.rows_at(positions)
        own = self.weights[positions]
        if problem.loss.is_joint:
            own = own * (1.0 - own)
        squares = rows.power(2) if hasattr(rows, "power") else rows * rows
        self.diagonal -= squares.T @ own
        np.maximum(self.diagonal, 0.0, out=self.diagonal)
        self.weights[positions] = 0.0
