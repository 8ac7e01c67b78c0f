"""Bounds of the gradient that a removal leaves, for one step that solves H0 step = g nearly.

With H0 the Hessian of the remaining rows at W0 and g the gradient of the rows that leave, the new
gradient is the old residual plus ``(H0 step - g) + E step``, where E is the mean of H(W + s step)
- H0 over s in [0, 1]. |H0 step - g| is measured; a bound is a bound of |E step|.
"""

from collections.abc import Sequence
from math import expm1, inf, sqrt

import numpy as np

from letheon.linear._losses import Floats, Loss

_SMALL = 1e-3
_LARGE = 300.0
# Stands for eigenvalues and energies that a float cannot hold: 0 would hide an infinite growth.
_LEAST = 1e-300


def mean_growth(offset: float, length: float) -> float:
    """Mean of e^(offset + s length) - 1 over s in [0, 1], rounded up where it is a series."""
    if offset + length > _LARGE:
        return inf
    if length < _SMALL:
        excess = length / 2 + length * length / 4
    else:
        excess = (expm1(length) - length) / length
    return expm1(offset) * (1.0 + excess) + excess


def concordant_bound(
    loss: Loss,
    radius: float,
    offsets: Sequence[float],
    lengths: Sequence[float],
    tops: Sequence[float],
    drifts: Sequence[float],
    energies: Sequence[float],
) -> float:
    """Data-dependent bound of |E step| by self-concordance: the least of two.

    Along a step of length t the curvature of a row changes by a factor within e^(+-M R t), so
    |E step| <= rho sqrt(top) sqrt(step' H0 step), with top the largest eigenvalue of the data part
    of H0, and rho the mean of e^(M R (a + s b)) - 1, b = |step|. Here a is |W - W0|, or any number
    with |x (W - W0)| <= R a for all rows held.

    The third derivative of a row's loss has |D3 l[u, v, x]| <= M |x| sqrt(D2 l[u, u] D2 l[v, v]).
    With the step as u, the way from W0 as v and |x| <= R, the sum over the rows gives |E step| <=
    M R f sqrt(step' H0 step) times the mean of sqrt(v' H0 v), which is at most
    sqrt((W - W0)' H0 (W - W0)) + sqrt(step' H0 step) / 2. Here f is the mean of e^(r T) over r in
    [0, 1], T = M R (a + b).

    Parameters
    ----------
    loss : Loss
        Whose `concordance` M is used.
    radius : float
        R, at least the norm of every row held.
    offsets, lengths, tops, drifts, energies : sequence of float
        a, b, top, (W - W0)' H0 (W - W0) and step' H0 step, one per block of the Hessian.
    """
    scale = loss.concordance * radius
    if scale == 0.0:
        return 0.0
    total = 0.0
    parts = zip(offsets, lengths, tops, drifts, energies, strict=True)
    for offset, length, top, drift, energy in parts:
        if length == 0.0:
            continue
        growth = mean_growth(scale * offset, scale * length)
        own, way = sqrt(max(energy, _LEAST)), sqrt(max(drift, 0.0))
        by_top = growth * sqrt(max(top, _LEAST))
        by_way = scale * (1.0 + mean_growth(0.0, scale * (offset + length))) * (way + own / 2)
        total += min(by_top, by_way) ** 2 * own * own
    return sqrt(total)


def lipschitz_bound(loss: Loss, radius: float, n_rows: int, offset: float, length: float) -> float:
    """Bound of |E step| that looks at no row: gamma n R^3 |step| (|W - W0| + |step| / 2).

    Theorem 1 and 4 of Guo et al. 2020 with the sharp constant and half of |step|^2, and the
    term that pays for a Hessian taken elsewhere.
    """
    return loss.third_bound * n_rows * radius**3 * length * (offset + length / 2)


def norm(change: Floats) -> float:
    """Frobenius norm of parameters; quicker than NumPy's on small ones."""
    return sqrt(float(np.vdot(change, change)))


def block_norms(change: Floats, n_blocks: int) -> list[float]:
    """Norm of a change of parameters per block of the Hessian."""
    if n_blocks == 1:
        return [norm(change)]
    squares: list[float] = np.einsum("dk,dk->k", change, change).tolist()
    return [sqrt(square) for square in squares]
