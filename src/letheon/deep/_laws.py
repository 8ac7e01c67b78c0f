"""Laws ``Y(x) = a x^-alpha + b`` of a residual that fades, and their least-squares fits."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Law", "fit_fading_law", "fit_scale_and_level"]

Floats = NDArray[np.float64]

_LEAST_EXPONENT, _MOST_EXPONENT = 0.02, 10.0
_GRID: Floats = np.geomspace(_LEAST_EXPONENT, _MOST_EXPONENT, 32)
_ZOOMS, _ZOOM_POINTS = 7, 17


@dataclass(frozen=True)
class Law:
    """``Y(x) = a x^-alpha + b`` for ``x >= 1``.

    Parameters
    ----------
    a, alpha, b : float
        Scale, exponent and level.
    """

    a: float
    alpha: float
    b: float

    def value(self, x: float) -> float:
        """Return ``Y(x)``."""
        return float(self.values(np.array([float(x)]))[0])

    def values(self, x: Floats) -> Floats:
        """Return ``Y(x)`` of every x."""
        return self._fading(x) + self.b

    def slope(self, x: float) -> float:
        """Return ``Y'(x) = -a alpha x^(-alpha - 1)``."""
        return -self.alpha * float(self._fading(np.array([float(x)]))[0]) / x

    def scaled(self, factor: float) -> "Law":
        """Return the law of `factor` times the residual."""
        return Law(factor * self.a, self.alpha, factor * self.b)

    def _fading(self, x: Floats) -> Floats:
        """Return ``a x^-alpha``."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            fading: Floats = self.a * x**-self.alpha
        return fading


def fit_scale_and_level(x: Floats, y: Floats, alpha: float) -> Law | None:
    """Fit ``a`` and ``b`` to points for a given exponent by ordinary least squares.

    Where all ``x^-alpha`` are equal (``alpha = 0`` or one point) ``a`` is not determined;
    it is 0 then, and ``b`` is the mean.

    Parameters
    ----------
    x, y : array of shape (n,)
        The points, ``x > 0`` and rising, all finite.
    alpha : float
        The exponent; any sign.

    Returns
    -------
    Law or None
        None when ``a`` is out of a float's range.
    """
    unit_x, unit_y = x[0] if alpha >= 0 else x[-1], float(np.abs(y).max()) or 1.0
    # Relative to the largest power, large exponents keep their digits.
    with np.errstate(under="ignore"):
        power = (x / unit_x) ** -alpha
    shares = y / unit_y
    spread = power - power.mean()
    square = float(spread @ spread)
    # Equal up to rounding: the direction of `spread` means nothing.
    if square <= len(x) * 1e-30:
        return Law(0.0, alpha, unit_y * float(shares.mean()))
    height = float(spread @ shares) / square
    level = float(shares.mean()) - height * float(power.mean())
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        law = Law(float(height * unit_y * unit_x**alpha), alpha, unit_y * level)
    return law if math.isfinite(law.a) and math.isfinite(law.b) else None


def _profile(log_x: Floats, y: Floats, alphas: Floats, level: bool) -> tuple[Floats, ...]:
    """Return the best ``a >= 0``, ``b >= 0`` and the squared error for each exponent."""
    power = np.exp(-np.multiply.outer(alphas, log_x))
    a = power @ y / np.einsum("ij,ij->i", power, power)
    b = np.zeros_like(a)
    if level:
        centre = power.mean(axis=1)
        spread = power - centre[:, None]
        free_a = spread @ y / np.einsum("ij,ij->i", spread, spread)
        free_b = y.mean() - free_a * centre
        # No number of y is negative, so at most one of the two is.
        a = np.where(free_b < 0, a, np.maximum(free_a, 0.0))
        b = np.where(a > 0, np.maximum(free_b, 0.0), y.mean())
    error = a[:, None] * power + b[:, None] - y
    return a, b, np.einsum("ij,ij->i", error, error)


def fit_fading_law(y: Floats, *, level: bool = True) -> Law:
    """Fit ``a x^-alpha + b`` to ``x = 1..n`` by least squares, ``a, b >= 0``.

    ``a`` and ``b`` have a closed form for every exponent. The exponent is searched on a grid over
    ``0.02..10`` that is zoomed seven times; the answer depends on nothing but `y`.

    Parameters
    ----------
    y : array of shape (n,)
        At least two finite numbers, none negative.
    level : bool, default=True
        Whether there is a ``b``; without it ``b = 0``.

    Returns
    -------
    Law
        ``Law(0, 0, mean(y))`` when no falling law is better than a constant.
    """
    unit = float(y.max())
    if not y.min() < unit:
        return Law(0.0, 0.0, unit)
    shares, log_x = y / unit, np.log(np.arange(1.0, len(y) + 1))
    alphas = _GRID
    for _ in range(_ZOOMS + 1):
        a, b, error = _profile(log_x, shares, alphas, level)
        best = int(error.argmin())
        found = Law(float(a[best]), float(alphas[best]), float(b[best]))
        low, high = alphas[max(best - 1, 0)], alphas[min(best + 1, len(alphas) - 1)]
        alphas = np.linspace(low, high, _ZOOM_POINTS)
    constant = float(shares.mean())
    if not error[best] < float(np.square(shares - constant).sum()):
        found = Law(0.0, 0.0, constant)
    return found.scaled(unit)
