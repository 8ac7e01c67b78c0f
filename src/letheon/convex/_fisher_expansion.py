"""The Fisher matrix of the remaining rows near their optimum: steps with it, noise from it.

With labels drawn from the model, the Fisher matrix of these losses is the Hessian of the data part.
With the regulariser, and as a mean, F = H / n. `Expanded` holds H as matrices that follow removals;
`Products` forms no matrix.
"""

from typing import NamedTuple, Protocol, Self

import numpy as np

from letheon.convex._curvature import Curvature, Downdate, times
from letheon.convex._design import row_norms
from letheon.convex._fisher_law import Shape
from letheon.convex._fisher_noise import (
    EIGH_LIMIT,
    Product,
    Rooted,
    by_eigenvectors,
    by_lanczos,
)
from letheon.convex._losses import Floats, Loss
from letheon.convex._problem import Positions, Problem, roots_of
from letheon.convex._quiet import quiet_repr
from letheon.convex._solve import conjugate_gradients, join, split

# The linear system is solved to this share of its target, or as well as so many repetitions can.
_LINEAR = 1e-13
_MOST_REFINEMENTS = 4
_CG_TOLERANCE = 1e-3


class View(NamedTuple):
    """What one pass over the rows shows at some parameters: gradient and scores."""

    gradient: Floats
    scores: Floats

    def __repr__(self) -> str:
        return quiet_repr(self)

    @property
    def residual(self) -> float:
        """Norm of the gradient."""
        return float(np.linalg.norm(self.gradient))


def look(problem: Problem, W: Floats) -> View:
    """Return gradient and scores at W; one pass over the rows."""
    return View(*problem.gradient_and_scores(W))


def log_change(loss: Loss, change: Floats) -> float:
    """Largest logarithm by which a row's curvature changes when its scores change so.

    The third derivative of the softmax loss is a covariance with the change less its mean, which
    nowhere exceeds the range of the change.
    """
    if loss.is_joint:
        return float(np.ptp(change, axis=1).max())
    return loss.concordance * float(np.abs(change).max())


class Expansion:
    """The Hessian at a point, the rows' scores there, and its degrees of freedom.

    Attributes
    ----------
    curvature : Curvature
        Blocks with their inverses, which follow removals.
    scores : ndarray of shape (n_slots, K)
        Scores at the point where the Hessian was evaluated; zeros for rows that left.
    """

    def __init__(self, problem: Problem, curvature: Curvature) -> None:
        self.curvature = curvature
        self.scores = look(problem, curvature.point).scores
        self._ridge = problem.ridge
        self._size = curvature.point.size
        trace = sum(float(np.trace(block.inverse)) for block in curvature.blocks)
        self._freedom = max(self._size - problem.ridge * trace, 0.0)

    @classmethod
    def at(cls, problem: Problem, W: Floats, radius: float | None, seed: int) -> Self:
        """Evaluate the Hessian of the problem's rows at W."""
        return cls(problem, Curvature.at(problem, W, radius=radius, seed=seed))

    def shape(self, after: Problem, error: float) -> Shape:
        """Return bounds for the remaining rows; `error` is that of the matrices without the others.

        Rows that leave take curvature away, which lowers eigenvalues and degrees of freedom. A
        regulariser that shrinks raises the latter, by no more than the factor it shrinks by.
        """
        freedom = self._freedom * max(self._ridge / after.ridge, 1.0)
        return Shape(
            top=max(self.curvature.tops),
            freedom=min(freedom, float(self._size)),
            size=self._size,
            radius=self.curvature.radius,
            concordance=after.loss.concordance,
            rounding=error / after.ridge,
        )


class Fisher(Protocol):
    """What a removal needs of the Fisher matrix of the rows that remain."""

    @property
    def expansion(self) -> Expansion | None:
        """Matrices to keep for the next removal, if there are any."""

    @property
    def flops(self) -> float:
        """Operations that products with the Hessian took so far."""

    def shape(self) -> Shape:
        """Return bounds."""

    def step(self, W: Floats, gradient: Floats) -> Floats:
        """Return H^(-1) gradient, nearly."""

    def change(self, scores: Floats) -> float:
        """Largest logarithm by which a row's curvature changed since the expansion point."""

    def quarter_root(self, W: Floats, b: Floats) -> Rooted:
        """Return H^(-1/4) b for parameters that end at W."""

    def apply(self) -> None:
        """Write a pending removal into the matrices. Cannot fail."""


class Expanded:
    """Matrices of the remaining rows.

    `leaving` are rows that the matrices still contain; nothing is written before `apply`.
    """

    flops = 0.0  # Products with a matrix are nothing beside a pass over the rows.

    def __init__(self, expansion: Expansion, after: Problem, leaving: Positions | None) -> None:
        self._expansion, self._after, self._leaving = expansion, after, leaving
        self._roots: list[Floats] = []
        self._downdate: Downdate | None = None
        if leaving is not None:
            rows, y = after.rows_at(leaving), after.y[leaving]
            self._roots = roots_of(after.loss, rows, y, expansion.curvature.point)
            self._downdate = Downdate(expansion.curvature, self._roots, after.ridge)

    @property
    def expansion(self) -> Expansion:
        """Matrices to keep for the next removal."""
        return self._expansion

    def shape(self) -> Shape:
        """Return bounds."""
        error = (self._downdate or self._expansion.curvature).error
        return self._expansion.shape(self._after, error)

    def step(self, W: Floats, gradient: Floats) -> Floats:  # noqa: ARG002
        """Return H^(-1) gradient, refined to rounding where H has changed."""
        if self._downdate is None:
            return self._expansion.curvature.solve(gradient)
        step, goal = self._downdate.solve(gradient), _LINEAR * float(np.linalg.norm(gradient))
        for _ in range(_MOST_REFINEMENTS):
            if step.left <= goal:
                break
            better = self._downdate.refine(step, gradient)
            if better.left >= step.left:
                break
            step = better
        return step.change

    def change(self, scores: Floats) -> float:
        """Largest logarithm by which a row's curvature changed since the expansion point."""
        change = scores - self._expansion.scores
        change[self._after.gone] = 0.0
        return log_change(self._after.loss, change)

    def quarter_root(self, W: Floats, b: Floats) -> Rooted:  # noqa: ARG002
        """Return H^(-1/4) b, H at the expansion point."""
        columns = split(b, len(self._expansion.curvature.blocks))
        rooted = [self._block_root(k, column) for k, column in enumerate(columns)]
        error = max(each.error for each in rooted)
        return Rooted(join([each.vector for each in rooted], b.shape), error)

    def apply(self) -> None:
        """Write a pending removal into the matrices. Cannot fail."""
        if self._downdate is not None and self._leaving is not None:
            self._downdate.apply()
            self._expansion.scores[self._leaving] = 0.0

    def _block_root(self, k: int, b: Floats) -> Rooted:
        least = self._after.ridge
        if len(b) > EIGH_LIMIT:
            rooted = by_lanczos(self._product(k), b, least)
            if rooted.is_accurate:
                return rooted
        return Rooted(by_eigenvectors(self._matrix(k), b, least), 0.0)

    def _product(self, k: int) -> Product:
        hessian, ridge = self._expansion.curvature.blocks[k].hessian, self._after.ridge
        if not self._roots:
            return lambda x: times(hessian, x) + ridge * x
        V = self._roots[k]
        return lambda x: times(hessian, x) + (ridge * x - V @ (x @ V))

    def _matrix(self, k: int) -> Floats:
        matrix = self._expansion.curvature.blocks[k].hessian.copy()
        if self._roots:
            matrix -= self._roots[k] @ self._roots[k].T
        matrix[np.diag_indices_from(matrix)] += self._after.ridge
        return matrix


class Products:
    """The Hessian by its products, taken wherever the parameters are: for many columns."""

    expansion: Expansion | None = None

    def __init__(self, after: Problem, radius: float | None) -> None:
        self._after, self.flops = after, 0.0
        squares = row_norms(after.X) ** 2
        squares[after.gone] = 0.0
        self._radius = float(np.sqrt(squares.max())) if radius is None else radius
        self._total = float(squares.sum())

    def shape(self) -> Shape:
        """Return bounds from the rows' norms: the trace of the data part bounds the rest."""
        loss, (d, K) = self._after.loss, self._after.shape
        top = loss.curvature_bound * self._total
        # No row's curvature has a trace above K times the bound, or 1 for shares.
        trace = self._total * (1.0 if loss.is_joint else K * loss.curvature_bound)
        freedom = min(trace / self._after.ridge, float(d * K), float(self._after.n_held * K))
        return Shape(top, freedom, d * K, self._radius, loss.concordance)

    def step(self, W: Floats, gradient: Floats) -> Floats:
        """Return H^(-1) gradient by conjugate gradients, H taken at W."""
        curvature = self._after.curvature(W)
        step, flops = conjugate_gradients(self._after, curvature, gradient, _CG_TOLERANCE)
        self.flops += flops
        return step

    def change(self, scores: Floats) -> float:  # noqa: ARG002
        """Return 0: the noise takes the Hessian where the parameters end."""
        return 0.0

    def quarter_root(self, W: Floats, b: Floats) -> Rooted:
        """Return H^(-1/4) b by Lanczos steps, H taken at W."""
        curvature, shape = self._after.curvature(W), b.shape

        def product(x: Floats) -> Floats:
            return self._after.hessian_product(curvature, x.reshape(shape)).ravel()

        rooted = by_lanczos(product, b.ravel(), self._after.ridge)
        # Half a pass for the curvature.
        self.flops += (rooted.n_products + 0.5) * self._after.pass_flops
        return rooted._replace(vector=rooted.vector.reshape(shape))

    def apply(self) -> None:
        """Do nothing: there are no matrices."""
