"""Fast retraining: the baseline for every removal of the convex methods.

All solvers minimise the same sum, from zero, without noise and without an intercept of its own::

    S(w) = sum_i log(1 + exp(-t_i x_i w)) + (l2 n / 2) |w|^2,    t_i in {-1, +1}

until |grad S| / n <= 1e-8, measured afterwards by the same code for all. A solver that stops
earlier is listed and never used as the baseline. Data that a row store would keep is prepared
before timing starts: blocks of rows in the faster memory order, squares of sparse entries.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import blas
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from benchmarks._report import Seconds, Table, time_call
from letheon.parallel import one_thread

__all__ = [
    "NAMED",
    "TOLERANCE",
    "BestSolver",
    "Retraining",
    "SolverTrial",
    "find_best_solver",
    "find_optimum",
    "make_trials_table",
    "solve_lbfgs",
    "solve_newton_cg",
    "solve_newton_cholesky",
    "solve_sampled_lbfgs",
]

Floats = NDArray[np.float64]
TOLERANCE = 1e-8
ERROR_TOLERANCE = 1e-11
LBFGS, CHOLESKY, CG = "L-BFGS", "Newton-Cholesky", "Newton-CG"
SAMPLED = "sample, then L-BFGS"
SCIKIT_LBFGS, SCIKIT_CHOLESKY = "scikit-learn lbfgs", "scikit-learn newton-cholesky"
SCIKIT_CG, SCIKIT_LIBLINEAR = "scikit-learn newton-cg", "scikit-learn liblinear"
# The common solvers, which the targets refer to. The others are reported for comparison.
NAMED = (LBFGS, CHOLESKY, SCIKIT_LBFGS, SCIKIT_CHOLESKY)
MOST_CHOLESKY_COLUMNS = 1_000
SAMPLE_PART = 8
SAMPLE_TOLERANCE = 1e-3
HISTORY = 20
MOST_STEPS = 100
LONG_SECONDS = 3.0
_BLOCK_BYTES = 2_000_000  # two readings of a block, one from memory
_FEW_COLUMNS = 128  # below, columns of a block are long enough to be read one by one
_LARGEST_EXPONENT = 700.0


class Retraining:
    """Rows and labels in the fastest memory layout, and passes over them."""

    def __init__(self, X: Any, y: NDArray[Any], l2: float) -> None:
        self.X, self.y, self.l2 = X, y, l2
        self.n_rows, self.n_columns = int(X.shape[0]), int(X.shape[1])
        self.ridge = l2 * self.n_rows
        self.signs = 2.0 * y - 1.0
        self.is_sparse = bool(sparse.issparse(X))
        self.blocks: list[tuple[slice, Any, Any]] = []
        if self.is_sparse:
            # A transposed copy would evict X from the cache between two readings.
            self.blocks = [(slice(0, self.n_rows), X, X.T)]
            self.squares = X.power(2).T
            return
        step = max(64, _BLOCK_BYTES // (8 * self.n_columns))
        for start in range(0, self.n_rows, step):
            where = slice(start, start + step)
            order = np.asfortranarray if self.n_columns < _FEW_COLUMNS else np.ascontiguousarray
            block = order(X[where])
            self.blocks.append((where, block, block.T))

    def value_and_gradient(self, w: Floats, miss: Floats | None = None) -> tuple[float, Floats]:
        """Return S and its gradient in one reading of X; `miss` takes 1 / (1 + exp(t x w))."""
        gradient = self.ridge * w
        value = 0.5 * float(w @ gradient)
        for where, rows, columns in self.blocks:
            signs = self.signs[where]
            odds = rows @ w
            odds *= signs
            np.negative(odds, odds)
            np.minimum(odds, _LARGEST_EXPONENT, odds)
            np.exp(odds, odds)
            value += float(np.log1p(odds).sum())
            odds /= 1.0 + odds
            if miss is not None:
                miss[where] = odds
            odds *= signs
            gradient -= columns @ odds
        return value, gradient

    def factor(self, miss: Floats, weight: float, ridge: float) -> Any:
        """Return the lower Cholesky factor of weight * X' diag(miss (1 - miss)) X + ridge I."""
        hessian = np.zeros((self.n_columns, self.n_columns), order="F")
        roots = np.sqrt(miss * (1 - miss))
        for where, rows, _ in self.blocks:
            weighted = rows * roots[where, None]
            if weighted.flags.c_contiguous:
                hessian = blas.dsyrk(weight, weighted.T, 1.0, hessian, 0, 1, 1)
            else:
                hessian = blas.dsyrk(weight, weighted, 1.0, hessian, 1, 1, 1)
        hessian[np.diag_indices_from(hessian)] += ridge
        return scipy.linalg.cholesky(hessian, lower=True, overwrite_a=True, check_finite=False)

    def size(self, gradient: Floats) -> float:
        """Return |grad S| / n."""
        return float(np.linalg.norm(gradient)) / self.n_rows

    def residual(self, w: Floats) -> float:
        """Return |grad S| / n at w."""
        return self.size(self.value_and_gradient(w)[1])

    def without(self, rows: NDArray[np.int64]) -> "Retraining":
        """Return a copy of the problem without some rows."""
        kept = np.delete(np.arange(self.n_rows), rows)
        return Retraining(self.X[kept], self.y[kept], self.l2)


class _ReachedError(Exception):
    """The gradient is small enough."""


def solve_lbfgs(
    problem: Retraining,
    start: Floats | None = None,
    *,
    tolerance: float = TOLERANCE,
    factor: Any = None,
) -> Floats:
    """L-BFGS of SciPy that ends at the first point whose gradient is small enough.

    With a Cholesky factor L of a matrix like the Hessian it works on v = L'w.
    """
    solve = partial(scipy.linalg.solve_triangular, factor, lower=True, check_finite=False)
    last = np.zeros(problem.n_columns) if start is None else start

    def objective(v: Floats) -> tuple[float, Floats]:
        nonlocal last
        last = v.copy() if factor is None else solve(v, trans=1)
        value, gradient = problem.value_and_gradient(last)
        if problem.size(gradient) <= tolerance:
            raise _ReachedError
        if factor is not None:
            gradient = solve(gradient)
        return value / problem.n_rows, gradient / problem.n_rows

    options = {"maxcor": HISTORY, "ftol": 0.0, "gtol": 0.0, "maxiter": 10_000, "maxfun": 10_000}
    begin = last if factor is None else factor.T @ last
    try:
        solution = minimize(objective, begin, jac=True, method="L-BFGS-B", options=options)
    except _ReachedError:
        return last
    return np.asarray(solution.x if factor is None else solve(solution.x, trans=1))


def find_optimum(problem: Retraining, start: Floats) -> Floats:
    """Return the minimum, more precisely than any retraining; for errors, not for times."""
    factor = None
    if not problem.is_sparse and problem.n_columns <= MOST_CHOLESKY_COLUMNS:
        miss = np.empty(problem.n_rows)
        problem.value_and_gradient(start, miss)
        factor = problem.factor(miss, 1.0, problem.ridge)
    return solve_lbfgs(problem, start, tolerance=ERROR_TOLERANCE, factor=factor)


def solve_sampled_lbfgs(problem: Retraining) -> Floats:
    """Solve on every eighth row, then L-BFGS on all, preconditioned by the sample's Hessian."""
    part = slice(None, None, SAMPLE_PART)
    sample = Retraining(problem.X[part], problem.y[part], problem.l2)
    start = solve_lbfgs(sample, tolerance=SAMPLE_TOLERANCE)
    if problem.is_sparse or problem.n_columns > MOST_CHOLESKY_COLUMNS:
        return solve_lbfgs(problem, start)
    miss = np.empty(sample.n_rows)
    sample.value_and_gradient(start, miss)
    weight = problem.n_rows / sample.n_rows
    return solve_lbfgs(problem, start, factor=sample.factor(miss, weight, problem.ridge))


def solve_newton_cholesky(problem: Retraining) -> Floats:
    """Newton's method that keeps a Hessian as long as a new one would cost more."""
    w, miss = np.zeros(problem.n_columns), np.empty(problem.n_rows)
    value, gradient = problem.value_and_gradient(w, miss)
    left = problem.size(gradient)
    factor = None
    for _ in range(MOST_STEPS):
        if left <= TOLERANCE:
            break
        if factor is None:
            factor = problem.factor(miss, 1.0, problem.ridge)
        step = scipy.linalg.cho_solve((factor, True), gradient, check_finite=False)
        w, value, gradient = _line_search(problem, w, value, gradient, step, miss)
        before, left = left, problem.size(gradient)
        if not _worth_keeping(problem, before, left):
            factor = None
    return w


def _worth_keeping(problem: Retraining, before: float, left: float) -> bool:
    """Return whether the remaining steps at this rate cost less than a new Hessian."""
    if not 0 < left < before:
        return False
    hessian_in_passes = 4 + problem.n_columns / 30  # measured
    return bool(np.log(TOLERANCE / left) / np.log(left / before) <= hessian_in_passes)


def solve_newton_cg(problem: Retraining) -> Floats:
    """Newton with steps from conjugate gradients, diagonally preconditioned; for sparse rows."""
    w, miss = np.zeros(problem.n_columns), np.empty(problem.n_rows)
    value, gradient = problem.value_and_gradient(w, miss)
    first = left = problem.size(gradient)
    for _ in range(MOST_STEPS):
        if left <= TOLERANCE:
            break
        weights = miss * (1 - miss)
        diagonal = problem.ridge + problem.squares @ weights
        # No more precision than the next gradient can use, and none below the target.
        share = max(min(0.1, left / first), 0.5 * TOLERANCE / left)
        step = _solve_conjugate_gradients(problem, weights, diagonal, gradient, share)
        w, value, gradient = _line_search(problem, w, value, gradient, step, miss)
        left = problem.size(gradient)
    return w


def _solve_conjugate_gradients(
    problem: Retraining, weights: Floats, diagonal: Floats, target: Floats, share: float
) -> Floats:
    """Solve H x = target until the residual is a share of the target."""
    x, residual = np.zeros_like(target), target.copy()
    scaled = residual / diagonal
    direction, energy = scaled.copy(), float(residual @ scaled)
    goal = share * np.linalg.norm(target)
    while np.linalg.norm(residual) > goal:
        product = problem.ridge * direction
        for where, rows, columns in problem.blocks:
            product += columns @ (weights[where] * (rows @ direction))
        length = energy / float(direction @ product)
        x += length * direction
        residual -= length * product
        scaled = residual / diagonal
        before, energy = energy, float(residual @ scaled)
        direction = scaled + (energy / before) * direction
    return x


def _line_search(
    problem: Retraining, w: Floats, value: float, gradient: Floats, step: Floats, miss: Floats
) -> tuple[Floats, float, Floats]:
    """Take the step, halved until S falls enough; rounding errors of S are tolerated."""
    slope, length = float(gradient @ step), 1.0
    while True:
        trial = w - length * step
        reached, there = problem.value_and_gradient(trial, miss)
        if reached <= value - 1e-4 * length * slope + 1e-12 * abs(value):
            return trial, reached, there
        length /= 2


def _solve_scikit(problem: Retraining, solver: str, tolerance: float) -> Floats:
    model = LogisticRegression(
        C=1 / problem.ridge, fit_intercept=False, solver=solver, tol=tolerance, max_iter=5_000
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(model.fit(problem.X, problem.y).coef_[0])


class SolverTrial(NamedTuple):
    """One solver: shortest time, final gradient and final parameters."""

    solver: str
    seconds: Seconds
    residual: float
    w: Floats
    call: Callable[[Retraining], Floats]

    @property
    def reached(self) -> bool:
        """Whether the gradient reached the tolerance."""
        return self.residual <= TOLERANCE


class BestSolver(NamedTuple):
    """The fastest solver that reached the tolerance, and all of them."""

    name: str
    seconds: Seconds
    W: Floats
    trials: list[SolverTrial]

    def among(self, solvers: tuple[str, ...]) -> SolverTrial:
        """Return the fastest of some solvers by processor time."""
        return _find_fastest([trial for trial in self.trials if trial.solver in solvers])


def find_best_solver(problem: Retraining, repeats: int = 3, *, scikit: bool = True) -> BestSolver:
    """Try every solver that fits the shape, on one thread; W has shape (columns, 1)."""
    with one_thread():
        trials = [
            _time_solver(name, call, problem, repeats)
            for name, call in _list_solvers(problem).items()
        ]
        for name, solver in _scikit_solvers(problem).items() if scikit else ():
            trials.append(_time_scikit(name, solver, problem, repeats))
    best = _find_fastest(trials)
    return BestSolver(best.solver, best.seconds, best.w[:, None], trials)


def _find_fastest(trials: list[SolverTrial]) -> SolverTrial:
    return min((t for t in trials if t.reached), key=lambda trial: trial.seconds.cpu)


def _list_solvers(problem: Retraining) -> dict[str, Callable[[Retraining], Floats]]:
    if problem.is_sparse:
        return {LBFGS: solve_lbfgs, CG: solve_newton_cg, SAMPLED: solve_sampled_lbfgs}
    solvers: dict[str, Callable[[Retraining], Floats]] = {
        LBFGS: solve_lbfgs,
        SAMPLED: solve_sampled_lbfgs,
    }
    if problem.n_columns <= MOST_CHOLESKY_COLUMNS:
        solvers[CHOLESKY] = solve_newton_cholesky
    return solvers


def _scikit_solvers(problem: Retraining) -> dict[str, str]:
    if problem.is_sparse:
        return {SCIKIT_LBFGS: "lbfgs", SCIKIT_CG: "newton-cg", SCIKIT_LIBLINEAR: "liblinear"}
    if problem.n_columns <= MOST_CHOLESKY_COLUMNS:
        return {SCIKIT_LBFGS: "lbfgs", SCIKIT_CHOLESKY: "newton-cholesky"}
    return {SCIKIT_LBFGS: "lbfgs"}


def _time_solver(
    name: str, call: Callable[[Retraining], Floats], problem: Retraining, repeats: int
) -> SolverTrial:
    """Return the shortest of several calls; a long call is not repeated."""
    w, best = time_call(partial(call, problem))
    for _ in range(repeats - 1):
        if best.wall > LONG_SECONDS:
            break
        best = min(best, time_call(partial(call, problem))[1], key=lambda seconds: seconds.cpu)
    return SolverTrial(name, best, problem.residual(w), w, call)


def _time_scikit(name: str, solver: str, problem: Retraining, repeats: int) -> SolverTrial:
    """Use the loosest setting that reaches the tolerance; scikit-learn tests another norm."""
    for tolerance in (1e-6, 1e-7, 1e-8, 3e-9, 1e-9, 1e-10):
        call = partial(_solve_scikit, solver=solver, tolerance=tolerance)
        trial = _time_solver(name, call, problem, 1)
        if trial.reached:
            return _time_solver(name, call, problem, repeats)
    return trial


def make_trials_table(title: str, best: BestSolver, X_test: Any, y_test: NDArray[Any]) -> Table:
    """Return time, final gradient and accuracy of every solver."""
    rows = [
        (
            trial.solver,
            1000 * trial.seconds.cpu,
            1000 * trial.seconds.wall,
            f"{trial.residual:.1e}",
            f"{float(((X_test @ trial.w > 0) == y_test).mean()):.4f}",
            "yardstick" if trial.solver == best.name else "" if trial.reached else "too loose",
        )
        for trial in sorted(best.trials, key=lambda trial: trial.seconds.cpu)
    ]
    columns = ("solver", "cpu ms", "wall ms", "gradient / n", "test accuracy", "")
    return Table(title, columns, rows)
