"""Solvers of the regularised problem, which stop when the norm of the gradient is small enough."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
import scipy.linalg
from scipy.optimize import fmin_l_bfgs_b

from letheon.linear._problem import FitProblem, Floats, n_stored
from letheon.removal import Opaque

# Hessian blocks above this size are never formed.
DENSE_LIMIT = 5000
# Blocks up to this size are always formed; larger ones only up to this multiple of X's entries.
_SMALL_BLOCK, _LARGEST_SHARE = 400, 2
# Up to this size Newton steps with a Hessian are cheaper than L-BFGS (measured; see benchmarks).
_NEWTON_LIMIT = 200
_LEAST_DECREASE = 1e-4
_MOST_HALVINGS = 40
# After this many consecutive steps that do not reduce the gradient, the rest is rounding error.
_MOST_IDLE = 3


@dataclass(frozen=True, eq=False, repr=False)
class Solution(Opaque):
    """Parameters, the gradient at them, and the numbers of operations and iterations used."""

    W: Floats
    gradient: Floats
    flops: float
    n_iter: int = 1

    @property
    def residual(self) -> float:
        """Norm of the gradient at the solution."""
        return float(np.linalg.norm(self.gradient))


def block_size(problem: FitProblem) -> int:
    """Return the number of rows of the largest block of the Hessian."""
    d, K = problem.shape
    return d * K if problem.loss.is_joint else d


def is_dense(problem: FitProblem) -> bool:
    """Return whether the blocks of the Hessian are small enough to be formed.

    Small blocks are always formed. Larger blocks must be within `DENSE_LIMIT` and not much larger
    than X.
    """
    size = block_size(problem)
    return size <= _SMALL_BLOCK or (
        size <= DENSE_LIMIT and size * size <= _LARGEST_SHARE * n_stored(problem.X)
    )


def minimise(
    problem: FitProblem, *, tolerance: float, max_iter: int, start: Floats | None = None
) -> Solution:
    """Return the minimiser of S, with |grad S| <= tolerance unless `max_iter` is reached first."""
    W = np.zeros(problem.shape) if start is None else start
    if block_size(problem) <= _NEWTON_LIMIT:
        return minimise_by_newton(problem, W, tolerance, max_iter)
    rough = minimise_by_lbfgs(problem, W, tolerance, max_iter)
    if rough.residual <= tolerance:
        return rough
    # L-BFGS stalls where differences of values are below rounding; gradients are still accurate.
    fine = minimise_by_newton(problem, rough.W, tolerance, min(max_iter, 20))
    return replace(fine, flops=fine.flops + rough.flops, n_iter=fine.n_iter + rough.n_iter)


def minimise_by_lbfgs(problem: FitProblem, W: Floats, tolerance: float, max_iter: int) -> Solution:
    """Minimise S by L-BFGS, starting at W."""
    shape, calls = problem.shape, 0

    def objective(flat: Floats) -> tuple[float, Floats]:
        nonlocal calls
        calls += 1
        value, gradient = problem.value_and_gradient(flat.reshape(shape))
        return value, gradient.ravel()

    flat, _, info = fmin_l_bfgs_b(
        objective,
        W.ravel(),
        m=20,
        factr=0.0,
        pgtol=tolerance / np.sqrt(W.size),
        maxiter=max_iter,
        maxfun=2 * max_iter,
        maxls=50,
    )
    W, flops = flat.reshape(shape), (calls + 1) * problem.pass_flops
    return Solution(W, problem.gradient_at(W), flops, max(1, int(info["nit"])))


def minimise_by_newton(problem: FitProblem, W: Floats, tolerance: float, max_iter: int) -> Solution:
    """Minimise S by damped Newton steps, starting at W.

    Each step solves a linear system by Cholesky factors or, with many columns, by conjugate
    gradients.
    """
    gradient, flops = problem.gradient_at(W), problem.pass_flops
    n_iter, n_idle = 0, 0
    while n_iter < max_iter and n_idle < _MOST_IDLE:
        size = np.linalg.norm(gradient)
        if size <= tolerance:
            break
        n_iter += 1
        try:
            step, spent = newton_step(problem, W, gradient)
        except np.linalg.LinAlgError:  # the ridge is below the rounding of the Hessian
            break
        W, gradient, passes = _line_search(problem, W, gradient, step)
        flops += spent + passes * problem.pass_flops
        n_idle = 0 if np.linalg.norm(gradient) < size else n_idle + 1
    return Solution(W, gradient, flops, max(1, n_iter))


def polish_once(
    problem: FitProblem, solution: Solution, solve: Callable[[Floats], Floats]
) -> Solution:
    """Return the solution after one more Newton step, or the old one if the gradient grew.

    `solve` multiplies a gradient by an inverse Hessian that is already factored.
    """
    W = solution.W - solve(solution.gradient)
    gradient = problem.gradient_at(W)
    flops = solution.flops + problem.pass_flops
    if np.linalg.norm(gradient) >= solution.residual:
        return replace(solution, flops=flops)
    return Solution(W, gradient, flops, solution.n_iter + 1)


def newton_step(problem: FitProblem, W: Floats, gradient: Floats) -> tuple[Floats, float]:
    """Return the Newton step -H^(-1) gradient at W, and its number of floating-point operations."""
    if not is_dense(problem):
        return conjugate_gradients(problem, problem.curvature_at(W), -gradient, 1e-3)
    blocks = problem.hessian_at(W)
    columns = to_blocks(gradient, len(blocks))
    for block in blocks:
        block[np.diag_indices_from(block)] += problem.ridge
    solved = [
        scipy.linalg.solve(block, -column, assume_a="pos", overwrite_a=True)
        for block, column in zip(blocks, columns, strict=True)
    ]
    size = block_size(problem)
    flops = len(blocks) * (n_stored(problem.X) * size + size**3 / 3.0)
    return from_blocks(solved, problem.shape), flops


def conjugate_gradients(
    problem: FitProblem, curvature: Floats, target: Floats, tolerance: float, *, max_iter: int = 500
) -> tuple[Floats, float]:
    """Solve H x = `target`, with H the Hessian; return x and the number of operations.

    `tolerance` is the largest residual, relative to the norm of `target`. The preconditioner is the
    diagonal of H.
    """
    inverse = 1.0 / problem.hessian_diagonal(curvature)
    x, residual = np.zeros_like(target), target.copy()
    scaled = inverse * residual
    direction, energy = scaled.copy(), float((residual * scaled).sum())
    goal, n_products = tolerance * np.linalg.norm(target), 0
    while np.linalg.norm(residual) > goal and n_products < max_iter:
        product = problem.hessian_product(curvature, direction)
        n_products += 1
        length = energy / float((direction * product).sum())
        x += length * direction
        residual -= length * product
        scaled = inverse * residual
        before, energy = energy, float((residual * scaled).sum())
        direction = scaled + (energy / before) * direction
    return x, (n_products + 1.5) * problem.pass_flops


def to_blocks(W: Floats, n_blocks: int) -> list[Floats]:
    """Return the parameters W, shape (d, K), as one vector per block of the Hessian."""
    if W.shape[1] == 1:
        return [W[:, 0]]
    if n_blocks == W.shape[1]:
        return [np.ascontiguousarray(column) for column in W.T]
    return [W.ravel(order="F")]


def from_blocks(columns: list[Floats], shape: tuple[int, int]) -> Floats:
    """Return parameters of shape (d, K) from one vector per block; the inverse of `to_blocks`."""
    flat = columns[0] if len(columns) == 1 else np.concatenate(columns)
    return flat.reshape(shape, order="F")


def l2_norm(change: Floats) -> float:
    """Return the Frobenius norm, computed faster than by NumPy for small arrays."""
    return sqrt(float(np.vdot(change, change)))


def block_norms(change: Floats, n_blocks: int) -> list[float]:
    """Return the norm of a change of parameters for each block of the Hessian."""
    if n_blocks == 1:
        return [l2_norm(change)]
    squares: list[float] = np.einsum("dk,dk->k", change, change).tolist()
    return [sqrt(square) for square in squares]


def _line_search(
    problem: FitProblem, W: Floats, gradient: Floats, step: Floats
) -> tuple[Floats, Floats, int]:
    """Halve the step until the gradient shrinks or the objective still decreases at its end.

    Return the new parameters, the gradient at them, and the number of gradients computed. Values
    of the objective are not compared: near the optimum, rounding exceeds their differences.
    """
    size, length = np.linalg.norm(gradient), 1.0
    for passes in range(1, _MOST_HALVINGS + 1):
        trial = W + length * step
        trial_gradient = problem.gradient_at(trial)
        shrinks = np.linalg.norm(trial_gradient) <= (1 - _LEAST_DECREASE * length) * size
        # The objective is convex: if it still descends at the end, it descends along the step.
        if shrinks or float((trial_gradient * step).sum()) <= 0.0:
            return trial, trial_gradient, passes
        length /= 2
    return W, gradient, _MOST_HALVINGS + 1
