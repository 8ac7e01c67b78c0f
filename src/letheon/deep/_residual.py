"""Stop rules of DeepObliviate: when the residual influence of removed rows has faded.

Detrended fluctuation analysis (DFA) measures how the fluctuation F of a series grows with the size
s of a window. With the profile ``y_k = sum_{i<=k} (x_i - mean(x))``, windows of ``s`` points and
the polynomial of degree `order` fitted to each window,

    F(s)^2 = mean squared distance of the profile from the polynomials,    F(s) ~ s^alpha.

Windows are cut from both ends of the series, so every point is used.

References
----------
C.-K. Peng et al., Mosaic organization of DNA nucleotides, Physical Review E 49, 1994.

A fading residual is modelled by ``Y(x) = a x^-alpha + b``, fitted by least squares.

Block ``i`` moves the parameters by ``V_i = theta_i - theta_(i-1)`` in the run with the removed
rows, and by ``V'_i`` in the run without them. From the last affected block ``d`` on, the *residual
memory* is

    Delta_t = ||V_(d+t) - V'_(d+t)||_1,    t = 0, 1, ...

A rule gets the residuals one after the other: absolute, or relative to ``||V_(d+t)||_1``. When it
stops after ``t``, the remaining moves of the old run are added to the new run, and the error of the
parameters is at most the sum of the residuals that were not computed. The rules estimate each of
them. Guarantee: empirical; a small slope or estimate does not bound the effect of later blocks.

References
----------
Y. He et al., DeepObliviate: a powerful charm for erasing data residual memory in deep neural
networks, 2021.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_N_SIZES = 8
# Per point and relative to the largest one: less than this is rounding, not fluctuation.
_ROUNDING = 1e-13


def _window_sizes(n: int, order: int) -> list[int]:
    """Return up to eight window sizes, geometric from ``max(order + 2, 3)`` to ``n // 2``."""
    least, most = max(order + 2, 3), n // 2
    if most <= least:
        return []
    ratio = most / least
    steps = (least * ratio ** (i / (_N_SIZES - 1)) for i in range(_N_SIZES))
    # Rounding may put an integer power just below the integer.
    return sorted({math.floor(step + 1e-9) for step in steps})


def _window_fluctuation(profile: Floats, size: int, order: int) -> float:
    """Return F(size): the root mean square of the profile around its trends in the windows."""
    used = len(profile) // size * size
    windows = np.concatenate([profile[:used], profile[-used:]]).reshape(-1, size)
    trend, _ = np.linalg.qr(np.vander(np.linspace(-1.0, 1.0, size), order + 1))
    residual = windows - windows @ trend @ trend.T
    return float(np.sqrt(np.mean(residual**2)))


def dfa_exponent(series: Floats, order: int = 1) -> float | None:
    """Return the DFA exponent of a series, or None if it is undefined.

    The exponent is the slope of ``log F(s)`` over ``log s``.

    Parameters
    ----------
    series : array of shape (n,)
        The series, in order. Its scale and its mean do not matter.
    order : int, default=1
        Degree of the trend that is removed from every window.

    Returns
    -------
    float or None
        About 0.5 for white noise and 1.5 for its running sum. None when there are fewer than two
        window sizes (fewer than 8 points for ``order=1``), when fewer than two sizes show any
        fluctuation (a constant series), and when a point is not finite.

    Notes
    -----
    The exponent measures how a series fluctuates, not how fast it falls: for ``x_t = t^-h`` it
    *decreases* as ``h`` increases.

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
        if (fluctuation := _window_fluctuation(profile, size, order)) > _ROUNDING * len(points)
    ]
    if len(logs) < 2:
        return None
    sizes_log, heights = np.array(logs).T
    spread = sizes_log - sizes_log.mean()
    return float(spread @ heights / (spread @ spread))


_LEAST_EXPONENT, _MOST_EXPONENT = 0.02, 10.0
_GRID: Floats = np.geomspace(_LEAST_EXPONENT, _MOST_EXPONENT, 32)
_ZOOMS, _ZOOM_POINTS = 7, 17


@dataclass(frozen=True)
class FadingLaw:
    """Model of a fading residual: ``Y(x) = a x^-alpha + b`` for ``x >= 1``.

    Parameters
    ----------
    a, alpha, b : float
        Scale, exponent and level.
    """

    a: float
    alpha: float
    b: float

    def values(self, x: Floats) -> Floats:
        """Return ``Y(x)`` for every x."""
        return self._power_term(x) + self.b

    def slope(self, x: float) -> float:
        """Return the slope at x: ``Y'(x) = -a alpha x^(-alpha - 1)``."""
        return -self.alpha * float(self._power_term(np.array([float(x)]))[0]) / x

    def scale_by(self, factor: float) -> "FadingLaw":
        """Return the law multiplied by a factor."""
        return FadingLaw(factor * self.a, self.alpha, factor * self.b)

    def _power_term(self, x: Floats) -> Floats:
        """Return the fading term ``a x^-alpha``."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            fading: Floats = self.a * x**-self.alpha
        return fading


def fit_scale_and_level(x: Floats, y: Floats, alpha: float) -> FadingLaw | None:
    """Fit ``a`` and ``b`` to points for a given exponent by ordinary least squares.

    If all ``x^-alpha`` are equal (``alpha = 0`` or one point), ``a`` is undetermined; it is set to
    0, and ``b`` to the mean.

    Parameters
    ----------
    x, y : array of shape (n,)
        The points, all finite; ``x > 0`` and increasing.
    alpha : float
        The exponent; any sign.

    Returns
    -------
    FadingLaw or None
        The fitted law, or None if ``a`` is out of the range of a float.
    """
    unit_x, unit_y = x[0] if alpha >= 0 else x[-1], float(np.abs(y).max()) or 1.0
    # Powers relative to the largest one stay accurate for large exponents.
    with np.errstate(under="ignore"):
        power = (x / unit_x) ** -alpha
    shares = y / unit_y
    spread = power - power.mean()
    square = float(spread @ spread)
    # Equal up to rounding: the direction of `spread` is meaningless.
    if square <= len(x) * 1e-30:
        return FadingLaw(0.0, alpha, unit_y * float(shares.mean()))
    height = float(spread @ shares) / square
    level = float(shares.mean()) - height * float(power.mean())
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        law = FadingLaw(float(height * unit_y * unit_x**alpha), alpha, unit_y * level)
    return law if math.isfinite(law.a) and math.isfinite(law.b) else None


def _fit_exponents(log_x: Floats, y: Floats, alphas: Floats, level: bool) -> tuple[Floats, ...]:
    """Return the best ``a >= 0`` and ``b >= 0``, and the squared error, for each exponent."""
    power = np.exp(-np.multiply.outer(alphas, log_x))
    a = power @ y / np.einsum("ij,ij->i", power, power)
    b = np.zeros_like(a)
    if level:
        centre = power.mean(axis=1)
        spread = power - centre[:, None]
        free_a = spread @ y / np.einsum("ij,ij->i", spread, spread)
        free_b = y.mean() - free_a * centre
        # y is not negative, so at most one of the two is.
        a = np.where(free_b < 0, a, np.maximum(free_a, 0.0))
        b = np.where(a > 0, np.maximum(free_b, 0.0), y.mean())
    error = a[:, None] * power + b[:, None] - y
    return a, b, np.einsum("ij,ij->i", error, error)


def fit_fading_law(y: Floats, *, level: bool = True) -> FadingLaw:
    """Fit ``a x^-alpha + b`` to ``x = 1..n`` by least squares, ``a, b >= 0``.

    ``a`` and ``b`` have a closed form for every exponent. The exponent is searched on a grid over
    ``0.02..10`` that is refined seven times, so equal inputs give equal results.

    Parameters
    ----------
    y : array of shape (n,)
        At least two finite numbers, none negative.
    level : bool, default=True
        Whether to fit ``b``; otherwise ``b = 0``.

    Returns
    -------
    FadingLaw
        ``FadingLaw(0, 0, mean(y))`` if no decreasing law fits better than a constant.
    """
    unit = float(y.max())
    if not y.min() < unit:
        return FadingLaw(0.0, 0.0, unit)
    shares, log_x = y / unit, np.log(np.arange(1.0, len(y) + 1))
    alphas = _GRID
    for _ in range(_ZOOMS + 1):
        a, b, error = _fit_exponents(log_x, shares, alphas, level)
        best = int(error.argmin())
        law = FadingLaw(float(a[best]), float(alphas[best]), float(b[best]))
        low, high = alphas[max(best - 1, 0)], alphas[min(best + 1, len(alphas) - 1)]
        alphas = np.linspace(low, high, _ZOOM_POINTS)
    constant = float(shares.mean())
    if not error[best] < float(np.square(shares - constant).sum()):
        law = FadingLaw(0.0, 0.0, constant)
    return law.scale_by(unit)


Origin = Literal["block", "one"]

_SHORT_SERIES = 8  # fewer residuals have no DFA exponent
_FEWEST_TO_FIT = 3  # the number of parameters of the law
_FEWEST_TO_TRUST = 6  # three more points, to distinguish a level from a slow decay


def relative_residual(residual: float, influence: float) -> float:
    """Return a residual divided by the influence of the block.

    If the influence is 0, the result is 0 for a residual of 0 and infinite otherwise. After an
    infinite value no rule stops.
    """
    if influence > 0:
        return residual / influence
    return 0.0 if residual == 0 else math.inf


class StopRule(ABC):
    """Base class of the rules that decide, after every retrained block, whether to skip the rest.

    Only blocks with rows count. The residual of an empty block is always zero and must not be
    passed to a rule.
    """

    _most: ClassVar[float] = math.inf
    _is_relative: ClassVar[bool] = False

    def __init__(self, epsilon: float, first: int = 1) -> None:
        if not 0.0 <= epsilon < math.inf:
            raise ValueError(
                f"epsilon={epsilon!r} is invalid; expected a finite number of at least 0"
            )
        self.epsilon = float(epsilon)
        self.law: FadingLaw | None = None  # the last fit, in units of the residual
        self.residuals: list[float] = []
        self._first = first  # x of the first residual
        self._deltas: list[float] = []  # residuals, relative or absolute
        self._finite = True

    def update(self, residual: float, influence: float = 1.0) -> bool:
        """Add a residual and the influence of its block in the old run; return whether to stop."""
        if residual < 0.0:
            raise ValueError(
                f"residual={residual!r} is invalid: a residual is a norm and cannot be negative"
            )
        delta = relative_residual(residual, influence) if self._is_relative else residual
        self.residuals.append(residual)
        self._deltas.append(float(delta))
        self._finite = self._finite and math.isfinite(delta)
        self.law = None
        return self._finite and self._should_stop(delta)

    @abstractmethod
    def _should_stop(self, delta: float) -> bool:
        """Fit the law to the residuals so far, all finite; return whether to stop now."""

    @property
    def slope(self) -> float | None:
        """Slope of the fitted law at the last residual; None before a law is fitted."""
        return None if self.law is None else self.law.slope(self._first + len(self._deltas) - 1)

    def estimate_omitted(self, influences: Floats) -> tuple[float, float]:
        """Return the tail and the ceiling: two estimates of the sum of the skipped residuals.

        The tail sums `predict_residuals` and the ceiling sums `ceiling_residuals` over the skipped
        blocks. Relative residuals are multiplied by the influences of these blocks in the old run.
        """
        n_left = len(influences)
        weights = influences if self._is_relative else np.ones(n_left)
        return float(self.predict_residuals(n_left) @ weights), float(
            self.ceiling_residuals(n_left) @ weights
        )

    def predict_residuals(self, n_left: int) -> Floats:
        """Return estimates of the next `n_left` residuals, in the units of the rule.

        Every rule uses the largest value of the fits ``a x^-alpha + b`` of `RobustRule`, because
        the published fit often has a negative level. If the residuals do not fade, every estimate
        is the larger of the last two residuals.
        """
        laws = self._fading_laws() if self._finite else []
        if not laws or laws[0].a == 0.0:
            return np.full(max(n_left, 0), self._recent_level())
        x = len(self._deltas) + np.arange(1.0, n_left + 1)
        values: Floats = np.maximum.reduce([law.values(x) for law in laws])
        return np.maximum(values, 0.0)

    def ceiling_residuals(self, n_left: int) -> Floats:
        """Return the next `n_left` residuals if the trend of their later half continues.

        They start at the larger of the last two residuals and rise with the slope of the line
        through the later half, up to the largest value that a residual of the rule can have.
        """
        ahead = np.arange(1.0, n_left + 1)
        rise = max(self._recent_slope(), 0.0) if self._finite else 0.0
        return np.minimum(
            self._recent_level() + rise * ahead, max(self._most, self._recent_level())
        )

    def _recent_level(self) -> float:
        """Return the larger of the last two residuals, or infinity if a residual was not finite."""
        return max(self._deltas[-2:]) if self._finite and self._deltas else math.inf

    def _recent_slope(self) -> float:
        """Return the slope of the line through the later half of the residuals."""
        later = np.array(self._deltas[-max(len(self._deltas) // 2, 2) :])
        if len(later) < 2:
            return 0.0
        steps = np.arange(len(later)) - (len(later) - 1) / 2
        top = float(later.max()) or 1.0  # keeps tiny residuals accurate
        return float(steps @ (later / top) / (steps @ steps)) * top

    def _fading_laws(self) -> list[FadingLaw]:
        """Return the fit with a level b and, for few points, also the fit without a level.

        The list is empty if there are too few residuals to fit a law.
        """
        n = len(self._deltas)
        if n < _FEWEST_TO_FIT:
            return []
        y = np.array(self._deltas)
        laws = [fit_fading_law(y)]
        return laws if n >= _FEWEST_TO_TRUST else [*laws, fit_fading_law(y, level=False)]


class PaperRule(StopRule):
    """Published stop rule, which stops when the slope of the fitted law is small.

    After each residual, DFA of ``Delta_0 .. Delta_t`` gives alpha, and least squares gives ``a``
    and ``b`` of ``Y(x) = a x^-alpha + b``. The rule stops when ``|Y'(x_t)| < epsilon``.

    Parameters
    ----------
    epsilon : float
        Largest slope that counts as stable, in the units of the residual. 0 never stops.
    first_block : int
        Number of the block that ``Delta_0`` belongs to, counted from 1.
    origin : {"block", "one"}, default="block"
        Whether ``x_t = first_block + t``, as published, or ``x_t = 1 + t``.

    Notes
    -----
    *Short series.* DFA has no exponent for fewer than 8 residuals. The publication does not cover
    this case; this rule continues retraining.

    *Origin.* With ``"block"`` the slope depends on the number of the block, even if the residuals
    are the same.

    *Scale.* The slope has the units of the residual, an L1 norm over all parameters. Therefore the
    same `epsilon` has a different meaning for every network. `RobustRule` has neither problem.

    *Series without fluctuation.* Equal residuals, including zeros, have no exponent. Their slope
    counts as 0, so the rule stops at the eighth residual. A growing series has a negative ``a``,
    and only the absolute value of the slope counts. After a residual that is not finite the rule
    never stops.
    """

    def __init__(self, epsilon: float, first_block: int, origin: Origin = "block") -> None:
        if first_block < 1:
            raise ValueError(f"first_block={first_block!r} is invalid; blocks are counted from 1")
        if origin not in ("block", "one"):
            raise ValueError(f"origin={origin!r} is invalid; expected 'block' or 'one'")
        super().__init__(epsilon, first_block if origin == "block" else 1)

    def _should_stop(self, delta: float) -> bool:  # noqa: ARG002
        if len(self._deltas) < _SHORT_SERIES:
            return False
        y = np.array(self._deltas)
        x = self._first + np.arange(float(len(y)))
        # Without fluctuation there is no exponent; any exponent gives a constant fit.
        self.law = fit_scale_and_level(x, y, dfa_exponent(y) or 0.0)
        return self.law is not None and abs(self.law.slope(x[-1])) < self.epsilon


class RobustRule(StopRule):
    """Stop rule: the residual, relative to the block's influence, is stable or at noise level.

    It uses ``r_t = Delta_t / ||V_(d+t)||_1``. After each residual, ``a x^-alpha + b`` with ``a,
    alpha, b >= 0`` is fitted over ``x = 1 .. t + 1``. An ``r_t`` is a *hit* when both the fit and
    the line through the later half of the series change by less than `epsilon` per block, or when
    ``r_t <= 2 floor``. The rule stops at `patience` hits in a row.

    Parameters
    ----------
    epsilon : float
        Largest change per block that counts as stable, as a share of the block's own influence.
        0 never stops, not even at residuals of zero.
    floor : float, default=0.0
        ``r`` of a replay without removed rows; 0 if training is reproducible bit by bit.
    patience : int, default=2
        Number of hits in a row that are required.
    min_points : int, default=3
        Number of blocks after the last affected block before a small slope may stop the rule. Hits
        at the floor need only `patience` blocks.

    Notes
    -----
    *Scale.* ``r`` has no unit, so scaling all parameters of a network does not change the decision.
    It is 0 if the block makes the same change in both runs, about 1.4 for two unrelated changes of
    equal size, and at most 2 for changes of equal size. `ceiling_residuals` never exceeds 2.

    *Growth.* In ordinary training the residual often does not fade: it grows from block to block
    and then levels off, because small differences of parameters are amplified. While it grows by
    `epsilon` or more per block, the rule continues. When the residual is level or grows more
    slowly, the rule stops, and the estimates show how much is skipped.

    *Few points.* Three parameters interpolate three points, and a level cannot be distinguished
    from a slow decay. Up to five points the law without a level (``b = 0``) is fitted as well; the
    steeper slope decides and the larger tail is reported.

    *Equal residuals* are stable: the rule stops, and the estimates show that nothing faded. After a
    residual that is not finite it never stops.
    """

    _most: ClassVar[float] = 2.0
    _is_relative: ClassVar[bool] = True

    def __init__(
        self, epsilon: float, floor: float = 0.0, patience: int = 2, min_points: int = 3
    ) -> None:
        super().__init__(epsilon)
        if not 0.0 <= floor < math.inf:
            raise ValueError(f"floor={floor!r} is invalid; expected a finite number of at least 0")
        if patience < 1 or min_points < 0:
            raise ValueError(
                f"patience={patience!r}, min_points={min_points!r}; expected patience of at least "
                "1 and min_points of at least 0"
            )
        self.floor, self.patience, self.min_points = float(floor), patience, min_points
        self._quiet = self._hits = 0

    def _should_stop(self, delta: float) -> bool:
        laws = self._fading_laws()
        self.law = laws[0] if laws else None
        # Neither the fits nor the later residuals change by `epsilon` per block.
        slopes = [*(abs(law.slope(len(self._deltas))) for law in laws), abs(self._recent_slope())]
        is_stable = bool(laws) and max(slopes) < self.epsilon
        is_quiet = delta <= 2.0 * self.floor
        self._quiet = self._quiet + 1 if is_quiet else 0
        self._hits = self._hits + 1 if is_quiet or is_stable else 0
        if self.epsilon == 0.0:
            return False
        has_enough = len(self._deltas) > self.min_points
        return self._quiet >= self.patience or (has_enough and self._hits >= self.patience)
