"""Formulas of the convex methods, dense and naive: nothing here is shared with the library.

Labels of two classes are -1 and +1 inside, as in the papers. A Hessian is one matrix of Kd x Kd,
score after score.
"""

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def sigmoid(z: Floats) -> Floats:
    """1 / (1 + e^-z) without overflow."""
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1 / (1 + e), e / (1 + e))


@dataclass(frozen=True, eq=False)
class LinearCase:
    """Rows, targets and settings of one problem.

    `kind` is "logistic", "ovr", "softmax", "squared" or "huber"; y holds codes or numbers.
    """

    X: Any
    y: NDArray[Any]
    kind: str
    l2: float
    reg: str = "per_sample"
    tilt: Floats | None = None
    n_classes: int = 2
    scale: float = 1.0

    @property
    def dense(self) -> Floats:
        X = self.X.toarray() if hasattr(self.X, "toarray") else self.X
        return np.asarray(X, np.float64)

    @property
    def n_scores(self) -> int:
        return self.n_classes if self.kind in ("ovr", "softmax") else 1

    @property
    def shape(self) -> tuple[int, int]:
        return self.X.shape[1], self.n_scores

    @property
    def ridge(self) -> float:
        return self.l2 * len(self.y) if self.reg == "per_sample" else self.l2

    @property
    def b(self) -> Floats:
        return np.zeros(self.shape) if self.tilt is None else self.tilt

    def without(self, gone: Any) -> "LinearCase":
        keep = np.setdiff1d(np.arange(len(self.y)), gone)
        return replace(self, X=self.X[keep], y=self.y[keep])

    def only(self, chosen: Any) -> "LinearCase":
        return replace(self, X=self.X[chosen], y=self.y[chosen])


def row_loss(case: LinearCase, z: Floats, target: Any) -> float:
    """The loss of one row with scores z."""
    if case.kind == "squared":
        return float((z[0] - target) ** 2 / 2)
    if case.kind == "huber":
        return float(case.scale**2 * (sqrt(1 + ((z[0] - target) / case.scale) ** 2) - 1))
    if case.kind == "softmax":
        return float(z.max() + np.log(np.exp(z - z.max()).sum()) - z[target])
    return float(np.logaddexp(0, -signs(case, target) * z).sum())


def signs(case: LinearCase, target: Any) -> Floats:
    """+1 for the class of the score, -1 for the others."""
    if case.kind == "logistic":
        return np.array([2.0 * target - 1.0])
    return np.where(np.arange(case.n_classes) == target, 1.0, -1.0)


def shares(z: Floats) -> Floats:
    e = np.exp(z - z.max())
    return np.asarray(e / e.sum())


def row_slope(case: LinearCase, z: Floats, target: Any) -> Floats:
    """Derivative of `row_loss` in z."""
    if case.kind == "squared":
        return np.asarray(z - target)
    if case.kind == "huber":
        u = (z - target) / case.scale
        return np.asarray(case.scale * u / np.sqrt(1 + u * u))
    if case.kind == "softmax":
        return np.asarray(shares(z) - (np.arange(case.n_classes) == target))
    t = signs(case, target)
    return -t * sigmoid(-t * z)


def row_curvature(case: LinearCase, z: Floats, target: Any) -> Floats:
    """Second derivative of `row_loss` in z, K x K."""
    if case.kind == "squared":
        return np.ones((1, 1))
    if case.kind == "huber":
        u = (z - target) / case.scale
        return np.diag((1 + u * u) ** -1.5)
    if case.kind == "softmax":
        q = shares(z)
        return np.diag(q) - np.outer(q, q)
    return np.diag(sigmoid(z) * sigmoid(-z))


def objective(case: LinearCase, W: Floats) -> float:
    """S(W) = sum of losses + (ridge / 2)|W|^2 + <b, W>."""
    losses = [row_loss(case, x @ W, t) for x, t in zip(case.dense, case.y, strict=True)]
    return float(sum(losses) + case.ridge / 2 * (W**2).sum() + (case.b * W).sum())


def data_gradient(case: LinearCase, W: Floats) -> Floats:
    """Sum of the rows' gradients alone."""
    total = np.zeros(case.shape)
    for x, t in zip(case.dense, case.y, strict=True):
        total += np.outer(x, row_slope(case, x @ W, t))
    return total


def gradient(case: LinearCase, W: Floats) -> Floats:
    """Gradient of S, noise included."""
    return data_gradient(case, W) + case.ridge * W + case.b


def data_hessian(case: LinearCase, W: Floats) -> Floats:
    """Hessian of the rows alone."""
    size = case.X.shape[1] * case.n_scores
    total = np.zeros((size, size))
    for x, t in zip(case.dense, case.y, strict=True):
        total += np.kron(row_curvature(case, x @ W, t), np.outer(x, x))
    return total


def hessian(case: LinearCase, W: Floats) -> Floats:
    """Hessian of S."""
    H = data_hessian(case, W)
    return H + case.ridge * np.eye(len(H))


def flat(W: Floats) -> Floats:
    return W.ravel(order="F")


def solve(H: Floats, G: Floats) -> Floats:
    """H^-1 G for parameters G."""
    solved: Any = np.linalg.solve(H, flat(G))
    return np.asarray(solved, np.float64).reshape(G.shape, order="F")


def residual(case: LinearCase, W: Floats) -> float:
    """|grad S(W)|, noise included."""
    return float(np.linalg.norm(gradient(case, W)))


def retrain(case: LinearCase, start: Floats | None = None, tolerance: float = 1e-13) -> Floats:
    """Minimise S by plain Newton with halving of values, to |grad| <= tolerance times rows."""
    W = np.zeros(case.shape) if start is None else start
    for _ in range(200):
        g = gradient(case, W)
        if np.linalg.norm(g) <= tolerance * len(case.y):
            break
        step, value, length = solve(hessian(case, W), g), objective(case, W), 1.0
        while length > 1e-3 and objective(case, W - length * step) > value + 1e-12 * abs(value):
            length /= 2
        W = W - length * step
    return W


def removed_gradient(case: LinearCase, W: Floats, gone: Any) -> Floats:
    """Delta of the sum form: gradients of the rows that leave, and their share of the ridge."""
    share = case.ridge - case.without(gone).ridge
    return data_gradient(case.only(gone), W) + share * W


def influence_in_sums(case: LinearCase, W: Floats, gone: Any) -> Floats:
    """W + [hess S(W; D_r)]^-1 Delta."""
    return W + solve(hessian(case.without(gone), W), removed_gradient(case, W, gone))


def influence_in_means(case: LinearCase, W: Floats, gone: Any) -> Floats:
    """W + m/(n-m) [hess L(W; D_r)]^-1 grad L(W; D_u), L the mean without noise."""
    n, m = len(case.y), len(gone)
    H = hessian(case.without(gone), W) / (n - m)
    return W + m / (n - m) * solve(H, mean_gradient(case, W, gone))


def influence_taken_literally(case: LinearCase, W: Floats, gone: Any) -> Floats:
    """The survey's equation with a mean L: the factor m/(n-m) is missing."""
    H = hessian(case.without(gone), W) / (len(case.y) - len(gone))
    return W + solve(H, mean_gradient(case, W, gone))


def jackknife(case: LinearCase, W: Floats, gone: Any) -> Floats:
    """W + m/n [hess L(W; D)]^-1 grad L(W; D_u)."""
    n = len(case.y)
    return W + len(gone) / n * solve(hessian(case, W) / n, mean_gradient(case, W, gone))


def influence_without_regulariser(case: LinearCase, W: Floats, gone: Any) -> Floats:
    """The sum form with a Delta that misses the regulariser."""
    return W + solve(hessian(case.without(gone), W), data_gradient(case.only(gone), W))


def mean_gradient(case: LinearCase, W: Floats, chosen: Any) -> Floats:
    return data_gradient(case.only(chosen), W) / len(chosen) + case.l2 * W
