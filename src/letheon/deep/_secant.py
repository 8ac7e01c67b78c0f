"""Products with a net's Hessian that is known from a few steps only: L-BFGS in compact form.

`letheon.removal.secant_matrix` has the formula. B is positive definite if every s.y is above 0,
which a loss that is not convex does not grant: `LocalChecks` says which pairs may be used.
"""

from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from letheon.removal import secant_matrix


class LocalChecks(NamedTuple):
    """Where the loss is treated as convex and smooth (Wu et al. 2020, Algorithm 4).

    Attributes
    ----------
    min_curvature : float
        mu > 0: a pair needs ``s.y >= mu s.s``.
    max_smoothness : float
        L: a pair needs ``|y| <= L |s|``, and a product ``|B v| <= L |v|``.
    max_error : float
        B, as it is before a pair is kept, must have foretold it: ``|y - B s| <= max_error |y|``.
    max_distance : float
        Products are used for ``|v| <= max_distance |w|`` only.
    """

    min_curvature: float
    max_smoothness: float
    max_error: float
    max_distance: float

    def accept(self, ss: float, sy: float, yy: float) -> bool:
        """Whether a pair with these inner products may be used."""
        # In this form a number that is not finite is refused too.
        is_convex = 0.0 < self.min_curvature * ss <= sy
        return is_convex and yy <= self.max_smoothness**2 * ss


class Secants:
    """The last pairs (s, y).

    Parameters
    ----------
    history : int
        How many pairs are kept.
    size : int
        Length of s and y.
    device : torch.device
        Where they lie.
    checks : LocalChecks
        Which pairs may be used.
    """

    def __init__(self, history: int, size: int, device: torch.device, checks: LocalChecks) -> None:
        self._checks = checks
        # Lines of Y, then those of S; the newest pair takes the place of the oldest.
        self._lines = torch.zeros(2 * history, size, device=device)
        self._inner = np.zeros((history, history))  # s_i . y_j
        self._gram = np.zeros((history, history))  # s_i . s_j
        self._ages = np.full(history, -1)
        self._n_kept = 0
        self._scale = 0.0
        self._middle = torch.zeros(2 * history, 2 * history, dtype=torch.float64, device=device)
        self.is_trusted = False

    def offer(self, s: Tensor, y: Tensor) -> float:
        """Keep a pair if it passes the checks; B is trusted if it does and had foretold it.

        Returns
        -------
        float
            ``|y - B s|``, B being what it was before.
        """
        missed = y - self.product(s)
        ss, sy, yy, ee = torch.stack([s @ s, s @ y, y @ y, missed @ missed]).tolist()
        is_kept = self._checks.accept(ss, sy, yy)
        self.is_trusted = is_kept and self._n_kept > 0 and ee <= self._checks.max_error**2 * yy
        if is_kept:
            self._keep(s, y, sy / ss)
        return sqrt(ee)

    def product(self, v: Tensor) -> Tensor:
        """Return B v; zeros before the first pair."""
        ahead = (self._lines @ v).double()
        weights = (self._middle @ ahead).to(v.dtype)
        return torch.addmv(v, self._lines.T, weights, beta=self._scale, alpha=-1.0)

    def _keep(self, s: Tensor, y: Tensor, scale: float) -> None:
        history = len(self._ages)
        place = self._n_kept % history
        self._lines[place], self._lines[history + place] = y, s
        along_s, along_y = (self._lines @ s).tolist(), (self._lines @ y).tolist()
        self._inner[place] = along_s[:history]
        self._inner[:, place] = along_y[history:]
        self._gram[place] = self._gram[:, place] = along_s[history:]
        self._ages[place] = self._n_kept
        self._n_kept += 1
        self._scale = scale
        self._middle.copy_(torch.from_numpy(self._inverted()))

    def _inverted(self) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        """Return the inverse of the middle matrix, scaled, with zeros for pairs still to come."""
        history, filled = len(self._ages), np.flatnonzero(self._ages >= 0)
        n, ages = len(filled), self._ages[filled]
        inner, gram = self._inner[np.ix_(filled, filled)], self._gram[np.ix_(filled, filled)]
        middle = secant_matrix(inner, gram, ages, self._scale)
        scales = np.repeat([1.0, self._scale], n)
        # Lengths of s and y are far from 1; only their ratio counts.
        sizes = np.sqrt(np.abs(np.diag(middle)))
        inverse = np.linalg.pinv(middle / np.outer(sizes, sizes)) / np.outer(sizes, sizes)
        where = np.concatenate([filled, history + filled])
        full = np.zeros((2 * history, 2 * history))
        full[np.ix_(where, where)] = inverse * np.outer(scales, scales)
        return full
