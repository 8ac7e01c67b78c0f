"""What happens when bounds have used up the budget: measure, then polish."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from operator import itemgetter

from letheon.linear._account import Account
from letheon.linear._bounds import norm
from letheon.linear._curvature import Curvature
from letheon.linear._losses import Floats
from letheon.linear._problem import Problem, n_stored
from letheon.linear._solve import minimise
from letheon.parallel import one_thread
from letheon.removal import Opaque

Solve = Callable[[Floats], Floats]

_MOST_POLISHES = 4
_MOST_SOLVING = 1000
# A residual above this share of the limit is polished away: that costs one more pass now and saves
# one at each of the next removals. Polishing then goes on to a tenth of it.
_COMFORT = 0.275
_POLISHED = 0.1
# A step that leaves more than this share of the gradient was made with a Hessian that is too old.
_STALE = 0.5


@dataclass(frozen=True, eq=False, repr=False)
class Repaired(Opaque):
    """Parameters, their account, the Hessian if it had to be taken anew, and operations.

    `reach`: the largest change of scores between the origin of the Hessian and `measured_at`.
    """

    W: Floats
    account: Account
    curvature: Curvature | None
    flops: float
    measured_at: Floats
    reach: list[float] | None


def repair(
    problem: Problem,
    W: Floats,
    account: Account,
    solve: Solve,
    renew: Callable[[Floats], Curvature] | None = None,
    origin: Floats | None = None,
    tolerance: float = 0.0,
) -> Repaired:
    """Measure the residual at W and, where it is not small, make further Newton steps.

    If these do not help, the problem is solved again.

    Parameters
    ----------
    problem : Problem
        Of the rows that stay; with objective noise, its term included.
    W, account
        Parameters after a removal, and what bounds say about them.
    solve : callable
        An approximate inverse Hessian, times a gradient.
    renew : callable, optional
        Takes the Hessian anew at some parameters, when `solve` turns out to be no good.
    origin : ndarray, optional
        Where `solve` has its Hessian from; how far the rows' scores are from there is measured too.
    tolerance : float
        Gradient at which solving again stops: that of training.
    """
    with one_thread():
        return _repair(problem, W, account, solve, renew, origin, tolerance)


def _repair(
    problem: Problem,
    W: Floats,
    account: Account,
    solve: Solve,
    renew: Callable[[Floats], Curvature] | None,
    origin: Floats | None,
    tolerance: float,
) -> Repaired:
    measured_at, slack = W, problem.gradient_error(W)
    comfort = _COMFORT * account.limit
    if origin is None:
        gradient, reach = problem.gradient(W), None
    else:
        gradient, reach = problem.gradient_and_reach(W, origin)
    account, flops = account.measured(norm(gradient) + slack), problem.pass_flops
    curvature, best = None, (account.spent, W)
    for number in range(_MOST_POLISHES):
        enough = max(comfort if number == 0 else _POLISHED * comfort, 2 * slack)
        if account.spent <= enough or not isfinite(account.spent):
            break
        before, W = account.spent, W - solve(gradient)
        gradient, slack = problem.gradient(W), problem.gradient_error(W)
        account = account.polished(norm(gradient) + slack)
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
        account = account.polished(solution.residual + slack)
        flops += solution.flops
        curvature = None if renew is None else renew(W)
    return Repaired(W, account, curvature, flops, measured_at, reach)
