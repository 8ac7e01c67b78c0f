r"""The training objective of a linear method and the bounds of noise, recomputed by the audit.

.. math:: S(W) = \sum_i l(x_i W, y_i) + \tfrac{ridge}{2} |W|^2

The intercept is a column of ones, and rows are scaled according to the settings. Everything is
computed from the rows in the bundle and the settings; the state of the model is not used.

A shift of mu standard deviations is (epsilon, delta)-hidden if and only if

.. math:: δ \ge Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)   \quad (Balle and Wang 2018, Theorem 8).

The library uses other closed forms. The audit has separate code, so that it does not repeat an
error of the library.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, gammainccinv, gammaincinv, log_ndtr, softmax

from letheon.data import Rows

_TAIL = 1e-9
Floats = NDArray[np.float64]
_NORM_ROUNDING = 1e-6
_MOST_STEPS = 60
# Number of entries that are converted to extended precision at once.
_BLOCK = 2**22
# Relative residual at which a Newton step counts as solved.
_PRECISION = 1e-8


def shift_delta(epsilon: float, mu: float) -> float:
    """Return the smallest delta at which a shift of mu standard deviations is hidden."""
    # Beyond 38 standard deviations the probability is below the smallest float.
    if mu <= 0.0 or epsilon / 38.0 > mu + mu * mu:
        return 0.0
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return max(-math.expm1(min(second - first, 0.0)), 0.0) * math.exp(first)


def largest_hidden_shift(epsilon: float, delta: float) -> float:
    """Return the largest shift, in standard deviations, that (epsilon, delta) hides."""
    if delta <= 0.0:
        return 0.0
    high = 1.0
    while shift_delta(epsilon, high) < delta:
        high *= 2.0
    return float(brentq(lambda mu: shift_delta(epsilon, mu) - delta, 0.0, high, xtol=1e-14))


def noise_bounds(size: int, *, ball: bool) -> tuple[float, float]:
    """Return the smallest and the largest plausible norm of noise with `size` entries.

    Norms are in units of sigma; the norm of correct noise is outside these limits with probability
    2e-9. The squared norm of Gaussian noise has a chi-square distribution; the norm of noise with
    the density exp(-|b| / sigma) has a gamma distribution (`ball`).
    """
    if ball:
        return float(gammaincinv(size, _TAIL)), float(gammainccinv(size, _TAIL))
    low, high = gammaincinv(size / 2, _TAIL), gammainccinv(size / 2, _TAIL)
    return math.sqrt(2 * float(low)), math.sqrt(2 * float(high))


def mismatch_delta(epsilon: float, shift: float, spread: float, dimension: float) -> float:
    r"""Return a bound on delta between Gaussians with different means and covariances.

    `shift` is the distance between the means, in standard deviations. The eigenvalues of one
    covariance relative to the other are within e^(±spread), in `dimension` directions. With ν =
    shift e^(spread/2) and any λ > 0 for which 1 + λ - λ e^spread > 0, Markov's inequality for the
    λ-th moment of the density ratio gives

    .. math:: δ \le \frac{λ^λ}{(1+λ)^{1+λ}}
              \exp\Big(\frac{λ(1+λ)ν²}{2(1+λ-λe^t)} + d K - λε\Big),
              \quad K = -\tfrac12 [λt + \log(1+λ-λe^t)];

    Changing first the covariance and then the mean gives δ <= δ_1(a) + e^a δ_shift(ε - a). The
    smaller of the two bounds is returned.
    """
    if spread <= 0.0:
        return shift_delta(epsilon, shift)
    top = 1.0 / math.expm1(spread)
    orders = top / (1.0 + np.exp(-np.linspace(-28.0, 28.0, 701)))
    rest = 1.0 + orders - orders * math.exp(spread)
    orders, rest = orders[rest > 0], rest[rest > 0]
    scale = orders * np.log(orders) - (1.0 + orders) * np.log1p(orders)
    shape = -0.5 * dimension * (orders * spread + np.log(rest))
    far = shift * math.exp(spread / 2)
    moved = orders * (1.0 + orders) * far**2 / (2.0 * rest)
    together = float(np.min(scale + shape + moved - orders * epsilon))
    least = math.exp(min(together, 0.0))
    parts = np.linspace(0.0, epsilon, 201)[1:]
    firsts = np.exp(np.minimum(np.min(scale + shape - np.outer(parts, orders), axis=1), 0.0))
    for part, first in zip(parts.tolist(), firsts.tolist(), strict=True):
        least = min(least, first + math.exp(part) * shift_delta(epsilon - part, far))
    return least


def l2_norm(values: NDArray[np.float64]) -> float:
    """Return the Euclidean norm over all entries."""
    return float(np.sqrt(np.sum(np.square(values))))


class RoundingInterval(NamedTuple):
    """Bounds on a number that was computed with rounding errors."""

    least: float
    most: float


@dataclass(frozen=True, eq=False)
class Objective:
    """The objective S of a linear method: rows, targets, name of the loss, ridge weight."""

    X: Any
    Y: Floats
    loss: str
    scale: float
    ridge: float
    classes: NDArray[Any] | None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    def loss_slopes(self, W: Floats) -> Floats:
        """Return the derivative of every row's loss with respect to its scores."""
        return np.asarray(self._slopes_at(np.asarray(self.X @ W), self.Y))

    def _slopes_at(self, Z: Any, target: Any) -> Any:
        if self.loss == "logistic":
            return expit(Z) - target
        if self.loss == "softmax":
            return softmax(Z, axis=1) - target
        gaps = Z - target
        return gaps if self.loss == "squared" else gaps / np.sqrt(1.0 + (gaps / self.scale) ** 2)

    def gradient(self, W: Floats) -> Floats:
        """Return the gradient of S at W."""
        return np.asarray(self.X.T @ self.loss_slopes(W)) + self.ridge * W

    def noise_floor(self, W: Floats) -> float:
        """Return a bound on the rounding error in the norm of the gradient at W."""
        sizes = abs(self.X).T @ np.abs(self.loss_slopes(W))
        return 1e-11 * (l2_norm(np.asarray(sizes)) + self.ridge * l2_norm(W))

    def bound_residual(self, W: Floats) -> "RoundingInterval":
        """Return bounds on the norm of the gradient at W, computed in extended precision.

        The rounding error of a sum of n terms is at most n units of roundoff times the sum of the
        absolute values. Rounding in the slopes and in their scores, sums of d products, is added.
        With very large parameters this error can exceed every gradient, so only the upper bound
        shows that parameters are near the optimum.
        """
        long = W.astype(np.longdouble)
        gradient, sizes = np.longdouble(self.ridge) * long, np.abs(long) * self.ridge
        step = max(1, _BLOCK // max(self.X.shape[1], 1))
        sizes *= 8 + self.n_rows // step
        for begin in range(0, self.n_rows, step):
            rows = self.X[begin : begin + step]
            rows = (rows.toarray() if sp.issparse(rows) else rows).astype(np.longdouble)
            Z, target = rows @ long, self.Y[begin : begin + step].astype(np.longdouble)
            slopes = self._slopes_at(Z, target)
            gradient += rows.T @ slopes
            # No second derivative exceeds 1; softmax couples the scores of a row.
            scores = (np.abs(rows) @ np.abs(long)).max(axis=1, keepdims=True)
            off = (self.n_rows + 64) * np.abs(slopes) + 64 + (W.shape[0] + 8) * scores
            sizes += np.abs(rows).T @ off
        size, error = (np.sqrt(np.sum(np.square(part))) for part in (gradient, sizes))
        error *= np.finfo(np.longdouble).eps
        least, most = float(size - error) * (1 - 2.0**-52), float(size + error) * (1 + 2.0**-52)
        # NaN stays NaN, and no condition holds for it.
        return RoundingInterval(max(least, 0.0), most)

    def hessian_product(self, W: Floats, V: Floats) -> Floats:
        """Return the Hessian at W times V."""
        Z, change = np.asarray(self.X @ W), np.asarray(self.X @ V)
        if self.loss == "softmax":
            shares = softmax(Z, axis=1)
            change = shares * (change - (shares * change).sum(axis=1, keepdims=True))
        elif self.loss == "logistic":
            change = expit(Z) * expit(-Z) * change
        elif self.loss == "huber":
            change = (1.0 + ((Z - self.Y) / self.scale) ** 2) ** -1.5 * change
        return np.asarray(self.X.T @ change) + self.ridge * V

    def hessian(self, W: Floats) -> Floats:
        """Return the Hessian at W as one matrix over the entries of W in row-major order."""
        size = W.size
        columns = [self.hessian_product(W, unit.reshape(W.shape)).ravel() for unit in np.eye(size)]
        matrix = np.array(columns).T
        return (matrix + matrix.T) / 2


def build_objective(model: Any, rows: Rows) -> Objective:
    """Return the objective that the settings of a convex model declare, on the auditor's rows."""
    X = build_design(rows.X, bool(model.fit_intercept), model.rows, model.row_norm)
    y = np.asarray(rows.y)
    plan = vars(model).get("plan_")
    l2 = float(model.l2) if plan is None else float(plan.geometry.strong)
    ridge = l2 * X.shape[0] if model.reg == "per_sample" else l2
    if not hasattr(model, "multi_class"):
        is_huber = getattr(model, "loss", "squared") == "pseudo_huber"
        scale = float(getattr(model, "huber_scale", 1.0))
        target = y.astype(np.float64)[:, None]
        return Objective(X, target, "huber" if is_huber else "squared", scale, ridge, None)
    classes = np.unique(y)
    if len(classes) == 2:
        target, loss = (y == classes[1]).astype(np.float64)[:, None], "logistic"
    else:
        target = (y[:, None] == classes[None, :]).astype(np.float64)
        loss = "softmax" if model.multi_class == "softmax" else "logistic"
    return Objective(X, target, loss, 1.0, ridge, classes)


def build_design(X: Any, intercept: bool, rule: str, row_norm: float | None) -> Any:
    """Return rows with the intercept column, scaled to the declared norm if `rule` requires it."""
    if sp.issparse(X):
        ones = [sp.csr_array(np.ones((X.shape[0], 1)))] if intercept else []
        rows: Any = sp.csr_array(sp.hstack([sp.csr_array(X), *ones]), dtype=np.float64)
    else:
        table = np.asarray(X)
        dtype = np.float32 if table.dtype == np.float32 else np.float64
        table = table.astype(dtype)
        rows = np.hstack([table, np.ones((len(table), 1), dtype)]) if intercept else table
    if rule in ("clip", "normalize") and row_norm is not None:
        norms = row_norms(rows)
        far = norms > row_norm if rule == "clip" else norms > 0
        factors = np.ones(len(norms))
        factors[far] = row_norm / norms[far]
        if sp.issparse(rows):
            rows = sp.csr_array(sp.diags_array(factors) @ rows)
        else:
            rows = rows * factors[:, None].astype(rows.dtype)
    return rows.astype(np.float64)


def row_norms(rows: Any) -> Floats:
    """Return the norm of every row."""
    squares = rows.power(2) if sp.issparse(rows) else np.square(rows.astype(np.float64))
    return np.sqrt(np.asarray(squares.sum(axis=1), np.float64)).ravel()


def is_bounded(objective: Objective, row_norm: float | None) -> bool:
    """Return whether the norm of every row is at most `row_norm`."""
    if row_norm is None:
        return True
    return bool(row_norms(objective.X).max(initial=0.0) <= row_norm * (1 + 2 * _NORM_ROUNDING))


def find_optimum(objective: Objective, start: Floats) -> Floats:
    """Return the minimiser of S, by damped Newton steps with conjugate gradients."""
    W = np.zeros_like(start)
    tolerance = 1e-10 * max(objective.n_rows, 1)
    for _ in range(_MOST_STEPS):
        gradient = objective.gradient(W)
        if l2_norm(gradient) <= tolerance:
            break
        step = _newton_step(objective, W, gradient)
        # Take the first step length of 1, 1/2, 1/4, ... that makes the gradient shorter.
        share, size = 1.0, l2_norm(gradient)
        while share > 1e-6 and l2_norm(objective.gradient(W + share * step)) >= size:
            share /= 2
        W = W + share * step
    return W


def _newton_step(objective: Objective, W: Floats, gradient: Floats) -> Floats:
    """Solve H step = -gradient by conjugate gradients (Hestenes and Stiefel 1952)."""
    step, rest = np.zeros_like(W), -gradient
    direction, size = rest.copy(), float(np.sum(rest * rest))
    tolerance = _PRECISION**2 * size
    for _ in range(20 * W.size):
        if size <= tolerance:
            break
        image = objective.hessian_product(W, direction)
        share = size / float(np.sum(direction * image))
        step, rest = step + share * direction, rest - share * image
        before, size = size, float(np.sum(rest * rest))
        direction = rest + size / before * direction
    return step
