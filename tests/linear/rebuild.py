"""An attack on a model's file: compute the row that left from the rows held and what is sealed.

After a lone removal the parameters are where one Newton step on the remaining rows ended. The point
where it started solves d equations in d unknowns. It was the optimum of all rows, so the gradient
of the remaining rows there is minus that of the row that left, which is a multiple of the row.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import root
from scipy.special import expit

Floats = NDArray[np.float64]

_N_STARTS = 60
# Solvers stop at absolute numbers, and the gradient that is left is small.
_SCALE = 1e6
_ACCURACY = 1e-4


@dataclass(frozen=True)
class RebuildAttack:
    """Rows with a column of ones, labels 0 and 1, regulariser per row, noise in the objective."""

    X: Floats
    y: NDArray[Any]
    l2: float
    tilt: Floats | float = 0.0

    def gradient(self, w: Floats) -> Floats:
        """Gradient of the remaining rows."""
        slopes = expit(self.X @ w) - self.y
        total: Floats = self.X.T @ slopes + self.l2 * len(self.y) * w + self.tilt
        return total

    def hessian(self, w: Floats) -> Floats:
        """Hessian of the remaining rows."""
        share = expit(self.X @ w)
        weighted = self.X * (share * (1 - share))[:, None]
        total: Floats = weighted.T @ self.X + self.l2 * len(self.y) * np.eye(len(w))
        return total

    def rows(self, w: Floats, seed: int = 0) -> list[Floats]:
        """Return what the row that left may have been, with its intercept 1; `w` is sealed."""
        rng, rows = np.random.default_rng(seed), []
        for _ in range(_N_STARTS):
            start = rng.normal(size=len(w))
            start *= 10 ** rng.uniform(-2.5, 0) / np.linalg.norm(start)
            solved = root(self._missed, start, (w,), method="lm", options={"xtol": 1e-15})
            before = w - solved.x
            own = -self.gradient(before) - self.l2 * before
            # Not the step of length 0 from the optimum that w may be.
            if np.linalg.norm(solved.fun) <= _ACCURACY * _SCALE * np.linalg.norm(own):
                rows.append(own / own[-1])
        return rows

    def error(self, w: Floats, row: Floats) -> float:
        """Smallest relative error of any reconstructed row; infinite if there is none."""
        truth = np.append(row, 1.0)
        errors = [np.linalg.norm(each - truth) for each in self.rows(w)]
        return float(min(errors, default=np.inf) / np.linalg.norm(truth))

    def _missed(self, step: Floats, w: Floats) -> Floats:
        before = w - step
        return _SCALE * (self.gradient(before) + self.hessian(before) @ step)
