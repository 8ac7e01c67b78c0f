"""Convex losses of linear scores, and the constants that bounds need.

A loss is a function of the scores Z = X W, shape (n, K), and the targets y, shape (n,): class codes
0, 1, ... or real numbers. With D the derivative in the scores of one row, its constants are

- `slope_bound`: |D l| at most this;
- `curvature_bound`: the largest eigenvalue of D^2 l at most this;
- `third_bound`: D^2 l is Lipschitz with this constant;
- `concordance` M: |D^3 l[u, u, v]| <= M |v| D^2 l[u, u]. So D^2 l changes by a factor between
  e^(-Mt) and e^(Mt) along a step of length t (Bach 2010, for the logistic loss).
"""

from abc import ABC, abstractmethod
from math import inf, sqrt
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp, softmax

Floats = NDArray[np.float64]


class Loss(ABC):
    """A loss with K scores per row.

    `is_joint`: the Hessian couples the K scores of a row. Otherwise it has K blocks, one per score.
    """

    is_joint: ClassVar[bool] = False
    n_outputs: int
    slope_bound: float
    curvature_bound: float
    third_bound: float
    concordance: float

    @abstractmethod
    def value(self, Z: Floats, y: NDArray[Any]) -> float:
        """Sum of the losses of the rows."""

    @abstractmethod
    def slope(self, Z: Floats, y: NDArray[Any]) -> Floats:
        """Derivative of every row's loss in its scores, shape (n, K)."""

    @abstractmethod
    def curvature(self, Z: Floats, y: NDArray[Any]) -> Floats:
        """Second derivatives, shape (n, K); of a joint loss the numbers they are made of."""

    def root(self, curvature: Floats) -> Floats:
        """Factors L, shape (n, K, r), with D^2 l = L L' per row; of a joint loss only."""
        raise NotImplementedError(f"{type(self).__name__} has no joint Hessian")


class Logistic(Loss):
    """log(1 + e^(-tz)), t = 1 for the class of the score and -1 for the others.

    With one output the score is that of class 1 against class 0; with K, one against the rest each.
    """

    curvature_bound = 0.25
    third_bound = 1 / (6 * sqrt(3))
    concordance = 1.0

    def __init__(self, n_outputs: int = 1) -> None:
        self.n_outputs = n_outputs
        self.slope_bound = sqrt(n_outputs)

    def value(self, Z: Floats, y: NDArray[Any]) -> float:
        """Sum of the losses of the rows."""
        return float(np.logaddexp(0.0, Z).sum() - (Z * self._is_own(y)).sum())

    def slope(self, Z: Floats, y: NDArray[Any]) -> Floats:
        """s(z) - [the class is that of the score]."""
        slope: Floats = expit(Z)
        if self.n_outputs == 1:
            slope[:, 0] -= y
        else:
            slope[np.arange(len(y)), y] -= 1.0
        return slope

    def curvature(self, Z: Floats, y: NDArray[Any]) -> Floats:  # noqa: ARG002
        """s(z) s(-z)."""
        curvature: Floats = expit(Z) * expit(-Z)
        return curvature

    def _is_own(self, y: NDArray[Any]) -> NDArray[Any]:
        return y[:, None] if self.n_outputs == 1 else y[:, None] == np.arange(self.n_outputs)


class Softmax(Loss):
    """-log of the softmax share of the row's class.

    D^2 l = diag(q) - q q'. Its third derivative along v is a covariance with v - mean(v), and no
    entry of that is larger than the range of v, at most sqrt(2)|v|.
    """

    is_joint = True
    slope_bound = sqrt(2)
    curvature_bound = 0.5
    third_bound = 2 * sqrt(2) / (6 * sqrt(3))
    concordance = sqrt(2)

    def __init__(self, n_outputs: int) -> None:
        self.n_outputs = n_outputs

    def value(self, Z: Floats, y: NDArray[Any]) -> float:
        """Sum of the losses of the rows."""
        return float(logsumexp(Z, axis=1).sum() - Z[np.arange(len(y)), y].sum())

    def slope(self, Z: Floats, y: NDArray[Any]) -> Floats:
        """Shares, minus one for the row's class."""
        slope: Floats = softmax(Z, axis=1)
        slope[np.arange(len(y)), y] -= 1.0
        return slope

    def curvature(self, Z: Floats, y: NDArray[Any]) -> Floats:  # noqa: ARG002
        """Shares q; the Hessian in the scores is diag(q) - q q'."""
        shares: Floats = softmax(Z, axis=1)
        return shares

    def root(self, curvature: Floats) -> Floats:
        """L = diag(sqrt q) - q sqrt(q)': L L' = diag(q) - q q' for shares that add up to 1."""
        root = np.sqrt(curvature)
        return root[:, :, None] * np.eye(self.n_outputs) - curvature[:, :, None] * root[:, None, :]


class Squared(Loss):
    """(z - y)^2 / 2: the Hessian does not depend on W, so a Newton removal is exact."""

    n_outputs = 1
    slope_bound = inf
    curvature_bound = 1.0
    third_bound = 0.0
    concordance = 0.0

    def value(self, Z: Floats, y: NDArray[Any]) -> float:
        """Sum of the losses of the rows."""
        return float(((Z[:, 0] - y) ** 2).sum() / 2)

    def slope(self, Z: Floats, y: NDArray[Any]) -> Floats:
        """Z - y."""
        slope: Floats = Z - y[:, None]
        return slope

    def curvature(self, Z: Floats, y: NDArray[Any]) -> Floats:  # noqa: ARG002
        """1."""
        return np.ones_like(Z)


class PseudoHuber(Loss):
    """s^2 (sqrt(1 + u^2) - 1), u = (z - y) / s: Huber's loss with a Hessian that is Lipschitz.

    Huber's own second derivative jumps, and so does that of the squared hinge: neither meets the
    assumptions of the methods here.
    """

    n_outputs = 1
    curvature_bound = 1.0

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self.slope_bound = scale
        self.third_bound = 3 * 0.5 / 1.25**2.5 / scale  # attained at u = 1/2
        self.concordance = 1.5 / scale  # 3u / (1 + u^2) / s, largest at u = 1

    def value(self, Z: Floats, y: NDArray[Any]) -> float:
        """Sum of the losses of the rows."""
        u = (Z[:, 0] - y) / self.scale
        return float(self.scale**2 * (u**2 / (np.hypot(1.0, u) + 1.0)).sum())

    def slope(self, Z: Floats, y: NDArray[Any]) -> Floats:
        """S u / sqrt(1 + u^2)."""
        residual = Z - y[:, None]
        slope: Floats = residual / np.hypot(1.0, residual / self.scale)
        return slope

    def curvature(self, Z: Floats, y: NDArray[Any]) -> Floats:
        """(1 + u^2)^(-3/2)."""
        curvature: Floats = np.hypot(1.0, (Z - y[:, None]) / self.scale) ** -3.0
        return curvature
