"""The optimum of a small problem to many digits: what bounds of distances are compared with."""

from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np

from letheon.linear._problem import FitProblem

_DIGITS = 60


def distance_to_optimum(problem: FitProblem, W: Any) -> float:
    """Return |W - W*| of a logistic or softmax problem without holes, by Newton's method.

    NaN where that does not arrive, as it may from a point far away.
    """
    with mpmath.workdps(_DIGITS):
        best, slack = _optimum(problem, np.asarray(W))
        gap = mpmath.sqrt(sum((best[i] - _mp(w)) ** 2 for i, w in enumerate(W.T.ravel())))
        return float(gap) if slack < mpmath.mpf(10) ** (-_DIGITS // 2) * (1 + gap) else np.nan


def _mp(value: Any) -> Any:
    return mpmath.mpf(float(value))


def _optimum(problem: FitProblem, start: Any) -> tuple[Any, Any]:
    """Return the parameters, score after score, and a bound of their distance to the optimum."""
    d, K = problem.shape
    rows = [[_mp(x) for x in row] for row in np.asarray(problem.X, np.float64)]
    labels = [int(label) for label in problem.y]
    ridge = _mp(problem.l2) * (len(rows) if problem.reg == "per_sample" else 1)
    w = mpmath.matrix([_mp(x) for x in start.T.ravel()])
    size, step = None, None
    for _ in range(60):
        gradient, hessian = _derivatives(rows, labels, w, d, K, ridge, problem.loss.is_joint)
        now = mpmath.norm(gradient)
        if now <= ridge * mpmath.mpf(10) ** (-_DIGITS * 3 // 4) * (1 + mpmath.norm(w)):
            break
        if size is not None and now >= size and step is not None:
            step /= 2  # too far: go back half of the way
            w += step
            continue
        size, step = now, mpmath.lu_solve(hessian, gradient)
        w -= step
    return w, now / ridge


def _derivatives(
    rows: Any, labels: list[int], w: Any, d: int, K: int, ridge: Any, is_joint: bool
) -> tuple[Any, Any]:
    gradient, hessian = ridge * w, ridge * mpmath.eye(d * K)
    for row, label in zip(rows, labels, strict=True):
        scores = [mpmath.fdot(row, w[k * d : (k + 1) * d]) for k in range(K)]
        shares = _shares(scores, is_joint=is_joint)
        for k in range(K):
            own = label if K == 1 else int(label == k)
            for i in range(d):
                gradient[k * d + i] += (shares[k] - own) * row[i]
        for k in range(K):
            for j in range(K) if is_joint else (k,):
                weight = shares[k] * ((k == j) - shares[j])
                for i in range(d):
                    for m in range(d):
                        hessian[k * d + i, j * d + m] += weight * row[i] * row[m]
    return gradient, hessian


def _shares(scores: list[Any], *, is_joint: bool) -> list[Any]:
    if not is_joint:
        return [1 / (1 + mpmath.exp(-z)) for z in scores]
    powers = [mpmath.exp(z - max(scores)) for z in scores]
    return [power / mpmath.fsum(powers) for power in powers]
