"""The Fisher matrix of the remaining rows, and the Newton steps of a request.

If the labels are drawn from the model, the Fisher matrix of these losses is the Hessian of the
losses. As a mean over n rows, and with the regulariser, it is F = H / n. `FisherMatrix` stores H as
matrices that removals update, or evaluates it by products with vectors. `FullNoise` shapes the
noise by F, `DiagonalNoise` by the diagonal of F.

`NewtonWalk` makes steps on the remaining rows until the noise hides the difference from a
retraining.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isnan
from typing import Any, Self

import numpy as np
import scipy.sparse as sp

from letheon.linear._account import round_up_to_power
from letheon.linear._calibrate import ReleaseGrid
from letheon.linear._curvature import Curvature, Downdate
from letheon.linear._fisher_law import (
    COVARIANCE_ERROR,
    FULL_LIMIT,
    Closeness,
    HessianBounds,
    NoiseLimits,
    NoiseRoot,
    ReleaseNoise,
    Spectrum,
    diagonal_root,
)
from letheon.linear._problem import EPSILON, FitProblem, Floats, Positions, hessian_roots
from letheon.linear._solve import block_size, conjugate_gradients
from letheon.removal import Opaque

# Relative residual to which the linear system is solved.
_LINEAR = 1e-13
_MOST_REFINEMENTS = 4
_CG_TOLERANCE = 1e-3
# Factor of an error of the matrix in the error of `Spectrum.noise_root`.
_SHARE_OF_ERROR = 0.53
_ROWS_AT_ONCE = 256
# With larger errors of scores, curvature is unbounded.
_KNOWN_SCORES = 0.05
# Largest second derivative of a loss in one score, of the logistic and of the softmax loss.
_LARGEST_CURVATURE = 0.25


@dataclass(frozen=True, eq=False, repr=False)
class GradientEvaluation(Opaque):
    """Gradient and scores at some parameters, from one pass over the rows.

    `error` bounds the norm of the rounding error of the gradient.
    """

    gradient: Floats
    scores: Floats
    error: float = 0.0

    @property
    def residual(self) -> float:
        """Upper bound on the norm of the gradient."""
        return float(np.linalg.norm(self.gradient)) + self.error


def evaluate_at(problem: FitProblem, W: Floats) -> GradientEvaluation:
    """Return gradient and scores at W, in one pass over the rows."""
    return GradientEvaluation(*problem.gradient_and_scores(W), problem.gradient_error(W))


class Expansion:
    """The Hessian and the scores of the rows at a point, and the spectra that shape the noise.

    Attributes
    ----------
    curvature : Curvature
        Blocks of the Hessian with their inverses, which removals update.
    scores : ndarray of shape (n_slots, K)
        Scores at the point where the Hessian was evaluated; zeros for removed rows.
    spectra : list of Spectrum or None
        Spectra of the evaluated blocks; None after a removal, or if whole blocks do not shape the
        noise.
    error : float
        Bound on the spectral norm of the rounding error of the stored blocks.
    bounds : ndarray or None
        Upper bounds on the diagonal, if only the diagonal shapes the noise; otherwise None.
    """

    def __init__(self, problem: FitProblem, curvature: Curvature, *, is_shaped: bool) -> None:
        self.curvature = curvature
        self.scores = evaluate_at(problem, curvature.point).scores
        self.ridge = problem.ridge
        self.spectra: list[Spectrum] | None = None
        self.top = self.freedom = self.error = 0.0
        self.is_full = is_shaped and block_size(problem) <= FULL_LIMIT
        if self.is_full:
            bent = problem.loss.curvature_at(self.scores, problem.y)
            self.error = problem.hessian_error(curvature.point, bent)
            self.spectra = [Spectrum.from_matrix(block.hessian) for block in curvature.blocks]
            values = np.concatenate([each.largest_values(self.error) for each in self.spectra])
            self.top = float(values.max())
            self.freedom = float(np.sum(values / (values + self.ridge))) * (1 + 1e-9)
        self.bounds = bound_diagonal(problem) if is_shaped and not self.is_full else None

    @classmethod
    def evaluate_at(
        cls,
        problem: FitProblem,
        W: Floats,
        radius: float | None,
        seed: int,
        *,
        is_shaped: bool = True,
    ) -> Self:
        """Return the expansion at the parameters W, for the rows of a problem."""
        curvature = Curvature.from_problem(problem, W, radius=radius, seed=seed)
        return cls(problem, curvature, is_shaped=is_shaped)


class FullNoise(Opaque):
    """Noise shaped by the blocks of an expansion, without the removed rows.

    `removed` contains one factor V of the removed rows per block; V V' is subtracted from the
    block.
    """

    def __init__(self, expansion: Expansion, after: FitProblem, removed: list[Floats]) -> None:
        self._expansion, self._after, self._removed = expansion, after, removed
        self.error = expansion.error
        self._n_columns = max((V.shape[1] for V in removed), default=0)
        if removed:
            self.error += self._downdate_error()

    def hessian_bounds(self) -> HessianBounds:
        """Return bounds on the Hessian of the remaining rows.

        A removal lowers the curvature, and therefore the eigenvalues and the degrees of freedom. If
        the regulariser shrinks by a factor, the degrees of freedom grow by at most this factor.
        """
        expansion, size = self._expansion, self._expansion.curvature.point.size
        return HessianBounds(
            top=expansion.top,
            freedom=expansion.freedom * max(expansion.ridge / self._after.ridge, 1.0),
            size=size,
            radius=expansion.curvature.radius,
            concordance=self._after.loss.concordance,
        )

    def curvature_change(self, W: Floats, scores: Floats) -> float:
        """Return a bound on the change of log curvature since the expansion point.

        The bound is infinite if the rounding error of the blocks is too large. The scores at both
        points have an error of (d + 1) u |x| |W|, where u is the unit of rounding.
        """
        if not _SHARE_OF_ERROR * self.error <= COVARIANCE_ERROR / 2 * self._after.ridge:
            return float("inf")
        curvature, loss = self._expansion.curvature, self._after.loss
        change = scores - self._expansion.scores
        change[self._after.removed] = 0.0
        lengths = float(np.linalg.norm(W)) + float(np.linalg.norm(curvature.point))
        rounding = EPSILON * (len(W) + 4) * curvature.radius * lengths
        # The third derivative of the softmax loss is a covariance with the change less its mean,
        # which nowhere exceeds the range of the change.
        most = np.ptp(change, axis=1).max() if loss.is_joint else np.abs(change).max()
        factor = 1.0 if loss.is_joint else loss.concordance
        return factor * float(most) + 1.05 * rounding

    def noise_roots(self, W: Floats, grid: ReleaseGrid) -> list[NoiseRoot]:  # noqa: ARG002
        """Return the matrix that shapes the noise of each block, at the expansion point."""
        spectra, after = self._expansion.spectra, self._after
        if self._removed or spectra is None:
            blocks = [block.hessian for block in self._expansion.curvature.blocks]
            for k, V in enumerate(self._removed):
                blocks[k] = blocks[k] - V @ V.T
            spectra = [Spectrum.from_matrix(block) for block in blocks]
        return [
            each.noise_root(grid, after.ridge, after.n_remaining, self.error) for each in spectra
        ]

    def _downdate_error(self) -> float:
        """Return a bound on the rounding error of subtracting V V' from the blocks.

        As in `FitProblem.hessian_error`, the error comes from a sum of terms and from the
        curvature, which is computed again.
        """
        after, curvature = self._after, self._expansion.curvature
        d, K = after.shape
        trace = max(float(np.trace(block.hessian)) for block in curvature.blocks)
        lost = max(float((V * V).sum()) for V in self._removed)
        scores = 6 * (d + 4) * curvature.radius * float(np.linalg.norm(curvature.point))
        if not scores * EPSILON <= _KNOWN_SCORES:
            return float("inf")
        units = 2 * (self._n_columns + 4) * (trace + lost) + (16 + scores) * lost
        if after.loss.is_joint:
            units += 8 * K * (K + 6) * self._n_columns * curvature.radius**2
        return 1.05 * EPSILON / 2 * units


class DiagonalNoise(Opaque):
    """Noise shaped by the diagonal of the Hessian at the final parameters; for many columns.

    `bounds` is the result of `bound_diagonal` for these rows, or for a superset of them.
    """

    def __init__(
        self, after: FitProblem, radius: float | None, bounds: Floats | None = None
    ) -> None:
        self._after = after
        self._radius = float(after.norms.max()) if radius is None else radius
        self._bounds = bound_diagonal(after) if bounds is None else bounds

    def hessian_bounds(self) -> HessianBounds:
        """Return bounds on the Hessian, computed from the norms of the columns."""
        after, bounds = self._after, self._bounds
        d, K = after.shape
        return HessianBounds(
            top=float(bounds.max()),
            freedom=K * float(np.sum(bounds / (bounds + after.ridge))) * (1 + 1e-9),
            size=d * K,
            radius=self._radius,
            concordance=after.loss.concordance,
        )

    def curvature_change(self, W: Floats, scores: Floats) -> float:  # noqa: ARG002
        """Return 0, because the noise uses the Hessian at the final parameters."""
        return 0.0

    def noise_roots(self, W: Floats, grid: ReleaseGrid) -> list[NoiseRoot]:
        """Return the matrix that shapes the noise, as one block for all parameters."""
        after = self._after
        curvature = after.curvature_at(W)
        diagonal = after.hessian_diagonal(curvature).ravel(order="F")
        # Sums over all rows at once, which `hessian_error` counts for sparse rows only.
        error = after.hessian_error(W, curvature) + EPSILON * after.X.shape[0] * float(
            self._bounds.max()
        )
        return [diagonal_root(grid, diagonal, after.ridge, after.n_remaining, error)]


# Noise whose covariance depends on the remaining rows.
NoiseShape = FullNoise | DiagonalNoise


def bound_diagonal(problem: FitProblem) -> Floats:
    """Return upper bounds on the diagonal of the Hessian, one per column, without regulariser.

    The bounds hold at any parameters.
    """
    X, is_kept = problem.X, np.ones(problem.X.shape[0])
    is_kept[problem.removed] = 0.0
    total = np.zeros(X.shape[1])
    if sp.issparse(X):
        total += X.astype(np.float64).power(2).T @ is_kept
    else:
        for begin in range(0, len(X), _ROWS_AT_ONCE):
            where = slice(begin, begin + _ROWS_AT_ONCE)
            total += is_kept[where] @ np.square(X[where], dtype=np.float64)
    return _LARGEST_CURVATURE * (1 + 1e-9) * total


class FisherMatrix:
    """The Fisher matrix of the remaining rows, for the steps and the noise of a removal.

    With an expansion, the matrix is stored as blocks. `removed` contains the positions of removed
    rows that the blocks still contain; only `apply` changes the blocks. Without an expansion, for
    many columns, the matrix is evaluated by products at the current parameters, and `flops` counts
    their operations. Products with a stored matrix are not counted, because a pass over the rows
    takes much longer.
    """

    flops = 0.0
    noise: NoiseShape | None = None

    def __init__(
        self,
        expansion: Expansion | None,
        after: FitProblem,
        removed: Positions | None = None,
        *,
        radius: float | None = None,
        is_shaped: bool = True,
    ) -> None:
        self.expansion, self._after, self._removed = expansion, after, removed
        self._downdate: Downdate | None = None
        if expansion is None:
            self.noise = DiagonalNoise(after, radius) if is_shaped else None
            return
        roots: list[Floats] = []
        if removed is not None:
            rows, y = after.copy_rows(removed), after.y[removed]
            roots = hessian_roots(after.loss, rows, y, expansion.curvature.point)
            self._downdate = Downdate(expansion.curvature, roots, after.ridge)
        if expansion.is_full:
            self.noise = FullNoise(expansion, after, roots)
        elif is_shaped:
            self.noise = DiagonalNoise(after, expansion.curvature.radius, expansion.bounds)

    def newton_step(self, W: Floats, gradient: Floats) -> Floats:
        """Return H^(-1) gradient, by stored blocks or by conjugate gradients with H at W.

        If rows are pending removal, the step is refined until only rounding errors remain.
        """
        if self.expansion is None:
            curvature = self._after.curvature_at(W)
            by_products, flops = conjugate_gradients(
                self._after, curvature, gradient, _CG_TOLERANCE
            )
            self.flops += flops
            return by_products
        if self._downdate is None:
            return self.expansion.curvature.solve(gradient)
        step, goal = self._downdate.solve(gradient), _LINEAR * float(np.linalg.norm(gradient))
        for _ in range(_MOST_REFINEMENTS):
            if step.residual <= goal:
                break
            better = self._downdate.refine(step, gradient)
            if better.residual >= step.residual:
                break
            step = better
        return step.change

    def apply(self) -> None:
        """Apply the pending removal to the blocks in place. This cannot fail."""
        expansion = self.expansion
        if expansion is None or self._downdate is None:
            return
        self._downdate.apply()
        expansion.scores[self._removed] = 0.0
        for spectrum in expansion.spectra or ():  # They contain the removed rows.
            spectrum.values[:] = 0.0
            spectrum.vectors[:] = 0.0
        expansion.spectra = None
        if isinstance(self.noise, FullNoise):
            expansion.error = self.noise.error


_MOST_POLISHES = 12
# If a step leaves more than this share of the gradient, its Hessian is stale. Passes over the rows
# are much cheaper than a Hessian, so even a slow step is worth it.
_STALE = 0.5


@dataclass(eq=False, repr=False)
class NewtonWalk(Opaque):
    """Newton steps towards the optimum of the remaining rows.

    Attributes
    ----------
    after : FitProblem
        The problem of the remaining rows.
    release_noise : ReleaseNoise
        The noise, and the constants that its bounds need.
    fisher : FisherMatrix
        The Fisher matrix for the steps and for the noise.
    renew : callable or None
        Computes the Fisher matrix at given parameters; None if it is not stored and therefore
        always up to date.
    W : ndarray
        Current parameters.
    evaluation : GradientEvaluation
        Gradient and scores at the current parameters.
    polishes, hessians : int
        Number of further steps, and number of new Hessians.
    """

    after: FitProblem
    release_noise: ReleaseNoise
    fisher: FisherMatrix
    renew: Callable[[Floats], FisherMatrix] | None
    W: Floats
    evaluation: GradientEvaluation
    polishes: int = 0
    hessians: int = 0
    flops: float = 0.0
    _expanded_at: Floats | None = None

    @property
    def limits(self) -> NoiseLimits:
        """Largest shift and spread that the noise hides."""
        return self.release_noise.compute_limits(self.hessian_bounds)

    @property
    def closeness(self) -> Closeness:
        """Bounds on the difference between this removal and a retraining."""
        noise = self.fisher.noise
        change = 0.0 if noise is None else noise.curvature_change(self.W, self.evaluation.scores)
        return self.release_noise.bound_closeness(
            self.evaluation.residual, change, self.hessian_bounds
        )

    @property
    def rebuild_counts(self) -> dict[str, int]:
        """Counts of the work beyond the first step, with the names used in receipts."""
        counts = {"polishes": self.polishes, "hessians": self.hessians}
        return {name: count for name, count in counts.items() if count}

    @property
    def hessian_bounds(self) -> HessianBounds | None:
        """Bounds on the matrix that shapes the noise; None for isotropic noise."""
        return None if self.fisher.noise is None else self.fisher.noise.hessian_bounds()

    def run_until_hidden(self) -> bool:
        """Make steps until the noise hides the difference; return False if this fails."""
        if not self.limits.can_hide(
            self.release_noise.bound_closeness(0.0, 0.0, self.hessian_bounds)
        ):
            return False  # A retrain may stop so early that no removal is close to it.
        while not self.limits.can_hide(self.closeness):
            in_place = self.release_noise.bound_closeness(
                self.evaluation.residual, 0.0, self.hessian_bounds
            )
            if self.limits.can_hide(in_place):
                if not self._renew_hessian():
                    return False
            elif self.polishes == _MOST_POLISHES or not self._polish_once():
                return False
        return True

    def _polish_once(self) -> bool:
        """Make one more step; return False if the gradient cannot be reduced further."""
        W = self.W - self.fisher.newton_step(self.W, self.evaluation.gradient)
        evaluation, before = evaluate_at(self.after, W), self.evaluation.residual
        self.polishes += 1
        self.flops += self.after.pass_flops
        residual = evaluation.residual
        is_better = bool(np.isfinite(residual)) and residual < before
        if is_better:
            self.W, self.evaluation = W, evaluation
        if not is_better or residual > _STALE * before:
            return self._renew_hessian() or is_better
        return True

    def _renew_hessian(self) -> bool:
        """Compute the Hessian at the current parameters; return False if it is up to date."""
        if self.renew is None or self._expanded_at is self.W:
            return False
        self.fisher, self._expanded_at = self.renew(self.W), self.W
        self.hessians += 1
        self.flops += hessian_flops(self.after)
        return True


def hessian_flops(problem: FitProblem) -> float:
    """Return the number of floating-point operations that computing a Hessian takes."""
    d, K = problem.shape
    return problem.pass_flops / 4.0 * d * (K if problem.loss.is_joint else 1)


@dataclass(frozen=True)
class FisherAccount:
    """Bounds on how close the model is to a retrained model after the last request.

    The noise is fresh, and every request measures the gradient, so the bounds of requests do not
    add up. All numbers are rounded up to powers of two, because the exact numbers depend on removed
    rows.

    Attributes
    ----------
    closeness : Closeness
        Bounds on the shift and spread between this model and a retrained model.
    used : float
        Share of the limits that is used; at most 1 in a certified model, 0 after training.
    """

    closeness: Closeness
    used: float

    def __post_init__(self) -> None:
        """Replace a share that is NaN, because it could not be computed, by infinity."""
        if isnan(self.used):
            object.__setattr__(self, "used", inf)

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> "FisherAccount":
        """Build the account from the values in a file.

        `used` is infinite for a release of an earlier version of letheon, which is not proved.
        """
        closeness = state["closeness"]
        return cls(closeness, state["used"] if closeness.gap < inf else inf)

    @classmethod
    def from_walk(cls, walk: NewtonWalk) -> "FisherAccount":
        """Return the account after the removal that these Newton steps made."""
        closeness, limits, shape = walk.closeness, walk.limits, walk.hessian_bounds
        shift = min(round_up_to_power(closeness.shift), max(limits.shift, closeness.shift))
        spread = min(round_up_to_power(closeness.spread), max(limits.spread, closeness.spread))
        dimension = closeness.dimension if shape is None else shape.effective_dimension(spread)
        shown = Closeness(shift, spread, dimension, closeness.gap)
        return cls(shown, limits.share_used(closeness))


JUST_TRAINED = FisherAccount(Closeness(), 0.0)
