"""Detrended fluctuation analysis: how the fluctuation of a series grows with the window.

With the profile ``y_k = sum_{i<=k} (x_i - mean(x))``, windows of ``s`` points and the polynomial of
degree `order` fitted to each window,

    F(s)^2 = mean of the squared residuals over all windows,    F(s) ~ s^alpha.

Windows are cut from both ends of the series, so that no point is left out.

References
----------
C.-K. Peng et al., Mosaic organization of DNA nucleotides, Physical Review E 49, 1994.
"""

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["dfa_exponent"]

Floats = NDArray[np.float64]

_N_SIZES = 8
# Per point and relative to the largest one: less than this is rounding, not fluctuation.
_ROUNDING = 1e-13


def _window_sizes(n: int, order: int) -> list[int]:
    """Return up to eight sizes, geometric from ``max(order + 2, 3)`` to ``n // 2``."""
    least, most = max(order + 2, 3), n // 2
    if most <= least:
        return []
    ratio = most / least
    steps = (least * ratio ** (i / (_N_SIZES - 1)) for i in range(_N_SIZES))
    # A power that should be whole may come out just below.
    return sorted({math.floor(step + 1e-9) for step in steps})


def _fluctuation(profile: Floats, size: int, order: int) -> float:
    """Return the root mean square of the profile around its trend in windows of `size`."""
    used = len(profile) // size * size
    windows = np.concatenate([profile[:used], profile[-used:]]).reshape(-1, size)
    trend, _ = np.linalg.qr(np.vander(np.linspace(-1.0, 1.0, size), order + 1))
    residual = windows - windows @ trend @ trend.T
    return float(np.sqrt(np.mean(residual**2)))


def dfa_exponent(series: Floats, order: int = 1) -> float | None:
    """Return the slope of ``log F(s)`` over ``log s``, or None where there is none.

    Parameters
    ----------
    series : array of shape (n,)
        The series, in order. Its scale and its mean do not matter.
    order : int, default=1
        Degree of the trend that is taken out of every window.

    Returns
    -------
    float or None
        About 0.5 for white noise and 1.5 for its running sum. None when there are fewer than two
        window sizes (fewer than 8 points for ``order=1``), when fewer than two sizes show any
        fluctuation (a constant series), and when a point is not finite.

    Notes
    -----
    The exponent says how a series fluctuates, not how fast it falls: for ``x_t = t^-h``
    it goes *down* as ``h`` goes up.

    Examples
    --------
    >>> import numpy as np
    >>> round(dfa_exponent(np.arange(1.0, 16.0) ** -0.5), 2)
    1.84
    >>> dfa_exponent(np.ones(20)) is None
    True
    """
    points = np.asarray(series, dtype=np.float64)
    sizes = _window_sizes(len(points), order)
    if not sizes or not np.isfinite(points).all() or not points.any():
        return None
    points = points / np.abs(points).max()
    profile = np.cumsum(points - points.mean())
    logs = [
        (math.log(size), math.log(fluctuation))
        for size in sizes
        if (fluctuation := _fluctuation(profile, size, order)) > _ROUNDING * len(points)
    ]
    if len(logs) < 2:
        return None
    sizes_log, heights = np.array(logs).T
    spread = sizes_log - sizes_log.mean()
    return float(spread @ heights / (spread @ spread))
