"""The Newton step of a removal, its repair, and removal without stored rows.

*Newton step* (Guo et al. 2020). At the optimum of all rows, the gradient on the remaining rows is
-g, where g is the gradient of the removed rows, including their share of the regulariser. A Newton
step on the remaining rows is therefore ``W + H^(-1) g``. The step does not change an old residual.

*Repair.* When the bounds have used up the budget, the residual is measured, and then reduced by
further Newton steps.

*Without stored rows* (Sekhari et al. 2021). Parameters and Hessian are enough to remove rows that
the caller provides; fingerprints identify the rows. The entries of the Hessian are rounded to a
grid. Otherwise, rounding errors would show which columns only the removed rows used.
"""

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from math import frexp, isfinite, sqrt
from operator import itemgetter
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from letheon.data import SlotRows
from letheon.linear._account import Account, concordant_bound, lipschitz_bound
from letheon.linear._curvature import Curvature, Downdate, HessianBlock, NewtonStep
from letheon.linear._problem import FitProblem, Floats, Loss, hessian_roots, n_stored, sum_gradients
from letheon.linear._solve import DENSE_LIMIT, block_norms, l2_norm, minimise
from letheon.parallel import one_thread
from letheon.removal import Cache, Opaque

Fingerprints = NDArray[np.uint64]

# The grid step is about 2^-36 times the largest eigenvalue: far above the rounding errors of a
# removal, and far below anything that changes a step.
_GRID_BITS = 36


class StoredCurvature(Cache[Curvature]):
    """A Hessian that is saved with its model, for models without stored rows."""

    def __init__(self, content: Curvature | None = None, ridge: float = 0.0) -> None:
        super().__init__(content)
        self.ridge = ridge

    @classmethod
    def from_curvature(cls, curvature: Curvature, ridge: float) -> Self:
        """Return a new Hessian, rounded to the grid."""
        stored = cls(curvature, ridge)
        stored.round_to_grid()
        return stored

    def round_to_grid(self, ridge: float | None = None) -> None:
        """Round the entries to the grid and add the rounding error to `error`.

        If `ridge` is given, it replaces the stored regulariser.
        """
        self.ridge = self.ridge if ridge is None else ridge
        curvature = self.content
        assert curvature is not None
        for block, top in zip(curvature.blocks, curvature.tops, strict=True):
            grid = 2.0 ** (frexp(top)[1] - _GRID_BITS)
            block.hessian /= grid
            np.rint(block.hessian, out=block.hessian)
            block.hessian *= grid
            curvature.error += grid / 2 * len(block.hessian)

    def _to_state(self) -> dict[str, Any]:
        curvature = self.content
        assert curvature is not None
        return {
            "point": curvature.point,
            # Removals do not update the upper triangle.
            "blocks": [np.tril(block.hessian) for block in curvature.blocks],
            "tops": list(curvature.tops),
            "radius": curvature.radius,
            "error": curvature.error,
            "ridge": self.ridge,
        }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        ridge = float(state["ridge"])
        for hessian in state["blocks"]:
            if not isinstance(hessian, np.ndarray) or hessian.dtype != np.float64:
                raise ValueError(
                    "the model file is damaged: a block of the Hessian is not a float64 array"
                )
        blocks = [HessianBlock.from_hessian(hessian, ridge) for hessian in state["blocks"]]
        bounds = list(state["tops"]), float(state["radius"]), float(state["error"])
        return cls(Curvature(state["point"], blocks, *bounds), ridge)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the state for pickle, which is the same as in files."""
        return type(self)._from_state, (self._to_state(),)

    def __copy__(self) -> Self:
        """Return a copy with its own matrices."""
        return type(self)._from_state(self._to_state())

    def __deepcopy__(self, _: Any) -> Self:
        return self.__copy__()


def data_free_state(rows: SlotRows, curvature: Curvature | None, ridge: float) -> dict[str, Any]:
    """Return the attributes of a model that stores a Hessian and fingerprints instead of rows."""
    if curvature is None:
        raise ValueError(
            f"data_free=True stores a Hessian, but {rows.X.shape[1]} columns are too many for "
            f"it; the limit is {DENSE_LIMIT} columns, or columns times classes with "
            "multi_class='softmax'"
        )
    key = secrets.token_hex(32)
    marks = {"fingerprint": fingerprint_rows(rows.X, rows.y, key)}
    return {
        "rows_": SlotRows(np.empty((len(rows), 0)), np.zeros_like(rows.y), rows.ids, marks),
        "fingerprint_key_": key,
        "cache_": StoredCurvature.from_curvature(curvature, ridge),
    }


def fingerprint_rows(rows: Any, y: NDArray[Any], key: str) -> Fingerprints:
    """Return a 64-bit keyed hash of each row and target. Testing a guess needs the key.

    Parameters
    ----------
    rows : ndarray or sparse matrix of shape (n, d)
        Numeric rows.
    y : ndarray of shape (n,)
        Targets.
    key : str
        Secret key, in hexadecimal digits.

    Returns
    -------
    ndarray of uint64, shape (n,)

    Examples
    --------
    >>> rows = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> first, second, third = fingerprint_rows(rows, np.array([0.0, 0.0, 0.0]), "00" * 16)
    >>> bool(first == third), bool(first == second)
    (True, False)
    """
    dense = rows.toarray() if sp.issparse(rows) else rows
    secret, fingerprints = bytes.fromhex(key), np.empty(len(y), np.uint64)
    for number, (row, target) in enumerate(zip(dense, y, strict=True)):
        message = np.ascontiguousarray(row, "<f8").tobytes() + np.float64(target).tobytes()
        digest = hashlib.blake2b(message, digest_size=8, key=secret).digest()
        fingerprints[number] = int.from_bytes(digest, "little")
    return fingerprints


BOUNDS = ("tightest", "data-dependent", "worst-case")

# The linear system is solved to this share of the nonlinear residual.
_LINEAR_SHARE = 0.5
_ROUNDING = 1e-13
_MOST_REFINEMENTS = 4


@dataclass(frozen=True, eq=False, repr=False)
class RowsToRemove(Opaque):
    """A copy of the rows to remove, in float64, and their targets. The copy may be overwritten."""

    rows: Any
    y: NDArray[Any]


class RemovalContext(NamedTuple):
    """Loss, regulariser before and after a removal, number of remaining rows, and kind of bound."""

    loss: Loss
    ridge_before: float
    ridge_after: float
    n_remaining: int
    bound: str = "tightest"


@dataclass(frozen=True, eq=False, repr=False)
class Proposal(Opaque):
    """A Newton step that has not been applied yet.

    `W` are the parameters after the step, `added` bounds the gradient norm that the step adds, and
    `downdate` is the pending removal from the Hessian.
    """

    W: Floats
    added: float
    downdate: Downdate
    flops: float


def propose_removal(
    curvature: Curvature, W: Floats, rows_to_remove: RowsToRemove, context: RemovalContext
) -> Proposal:
    """Return the Newton step that removes rows. This reads no other row and changes nothing."""
    loss = context.loss
    g = sum_gradients(loss, rows_to_remove.rows, rows_to_remove.y, W)
    shrinkage = context.ridge_before - context.ridge_after
    if shrinkage:
        g += shrinkage * W
    roots = hessian_roots(loss, rows_to_remove.rows, rows_to_remove.y, curvature.point, spoil=True)
    downdate = Downdate(curvature, roots, context.ridge_after)
    size, way = l2_norm(g), (curvature.bound_offsets(W), curvature.bound_drifts(W))
    step = downdate.solve(g)
    bent = bound_step(curvature, step, *way, downdate.error, context)
    for _ in range(_MOST_REFINEMENTS):
        if step.residual <= _LINEAR_SHARE * bent + _ROUNDING * size:
            break
        better = downdate.refine(step, g)
        if better.residual >= step.residual:
            break
        step = better
        bent = bound_step(curvature, step, *way, downdate.error, context)
    n_columns = sum(root.shape[1] for root in roots)
    flops = sum(len(root) ** 2 for root in roots) * (6.0 + 4.0 * n_columns / len(roots))
    added = step.residual + bent + curvature.rounding_at(W)
    return Proposal(W + step.change, added, downdate, flops)


def bound_step(
    curvature: Curvature,
    step: NewtonStep,
    offsets: list[float],
    drifts: list[float],
    error: float,
    context: RemovalContext,
) -> float:
    """Return a bound on the gradient that the nonlinearity of the loss leaves after a step.

    `offsets` and `drifts` measure how far the parameters are from the expansion point of the
    Hessian (see `concordant_bound`); `error` bounds the rounding error of the Hessian.
    """
    loss, radius = context.loss, curvature.radius
    lengths = block_norms(step.change, len(curvature.blocks))
    length, bounds = sqrt(sum(part * part for part in lengths)), []
    if context.bound != "worst-case":
        pairs = zip(step.energies, lengths, strict=True)
        energies = [energy + error * part * part for energy, part in pairs]
        numbers = offsets, lengths, curvature.tops, drifts, energies
        bounds.append(concordant_bound(loss, radius, *numbers))
    if context.bound != "data-dependent":
        offset = sqrt(sum(part * part for part in offsets))
        bounds.append(lipschitz_bound(loss, radius, context.n_remaining, offset, length))
    return min(bounds) + error * length


Solve = Callable[[Floats], Floats]

_MOST_POLISHES = 4
_MOST_SOLVING = 1000
# A residual above this share of the limit is polished: that costs one more pass now and saves one
# at each of the next removals. Polishing then continues to a tenth of it.
_COMFORT = 0.275
_POLISHED = 0.1
# If a step leaves more than this share of the gradient, its Hessian is stale.
_STALE = 0.5


@dataclass(frozen=True, eq=False, repr=False)
class Repair(Opaque):
    """Result of a repair: parameters, account, the Hessian if it was computed again, operations.

    `reach` is the largest change of scores, per block, between the expansion point of the Hessian
    and `measured_at`; None if it was not measured.
    """

    W: Floats
    account: Account
    curvature: Curvature | None
    flops: float
    measured_at: Floats
    reach: list[float] | None


@one_thread()
def repair_residual(
    problem: FitProblem,
    W: Floats,
    account: Account,
    solve: Solve,
    renew: Callable[[Floats], Curvature] | None = None,
    origin: Floats | None = None,
    tolerance: float = 0.0,
) -> Repair:
    """Measure the residual at W and, if it is not small, make further Newton steps.

    If these steps are not enough, an optimiser solves the problem again.

    Parameters
    ----------
    problem : FitProblem
        The problem of the remaining rows, including the linear term of ``mechanism="objective"``.
    W, account
        Parameters after a removal, and the account with the bound of the removal added.
    solve : callable
        Multiplies a gradient by an approximate inverse Hessian.
    renew : callable, optional
        Computes the Hessian at given parameters; used if the Hessian of `solve` is stale.
    origin : ndarray, optional
        Expansion point of the Hessian of `solve`. If given, the change of scores since then is
        measured too.
    tolerance : float
        Gradient norm at which the optimiser stops, as in training.
    """
    measured_at, slack = W, problem.gradient_error(W)
    comfort = _COMFORT * account.limit
    if origin is None:
        gradient, reach = problem.gradient_at(W), None
    else:
        gradient, reach = problem.gradient_and_reach(W, origin)
    account, flops = (account.record_measurement(l2_norm(gradient) + slack), problem.pass_flops)
    curvature, best = None, (account.spent, W)
    for number in range(_MOST_POLISHES):
        enough = max(comfort if number == 0 else _POLISHED * comfort, 2 * slack)
        if account.spent <= enough or not isfinite(account.spent):
            break
        before, W = account.spent, W - solve(gradient)
        gradient, slack = problem.gradient_at(W), problem.gradient_error(W)
        account = account.record_polish(l2_norm(gradient) + slack)
        flops += problem.pass_flops
        best = min(best, (account.spent, W), key=itemgetter(0))
        if renew is not None and account.spent > _STALE * before:
            curvature = renew(W)
            solve = curvature.solve
            flops += n_stored(problem.X) * problem.shape[0]
    if not account.is_covered:
        start = best[1] if isfinite(best[0]) else None
        solution = minimise(problem, tolerance=tolerance, max_iter=_MOST_SOLVING, start=start)
        W, slack = solution.W, problem.gradient_error(solution.W)
        account = account.record_polish(solution.residual + slack)
        flops += solution.flops
        curvature = None if renew is None else renew(W)
    return Repair(W, account, curvature, flops, measured_at, reach)
