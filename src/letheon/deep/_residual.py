"""When DeepObliviate may stop to retrain, and what it leaves out then.

Block ``i`` moves the parameters by ``V_i = theta_i - theta_(i-1)`` in the run that saw a person,
and by ``V'_i`` in the run without. From the last affected block ``d`` on, the *residual memory* is

    Delta_t = ||V_(d+t) - V'_(d+t)||_1,    t = 0, 1, ...

A rule is given the residuals one after the other: as they are, or relative to ``||V_(d+t)||_1``.
When it stops after ``t``, the rest of the old run is added to the new one, and the new parameters
are off by at most the sum of the residuals that were never computed. The rules estimate each of
them. Guarantee: empirical; a small slope, or a small estimate, is no bound on what later blocks do.

References
----------
Y. He et al., DeepObliviate: a powerful charm for erasing data residual memory in deep neural
networks, 2021.
"""

import math
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from letheon.deep._dfa import dfa_exponent
from letheon.deep._laws import Law, fit_fading_law, fit_scale_and_level

__all__ = ["Law", "PaperRule", "RobustRule", "StopRule", "dfa_exponent"]

Floats = NDArray[np.float64]
Origin = Literal["block", "one"]

_SHORT_SERIES = 8  # fewer residuals have no DFA exponent
_FEWEST_TO_FIT = 3  # as many as the fading law has numbers
_FEWEST_TO_TRUST = 6  # three spare points: enough to tell a level from a slow decay


class StopRule(Protocol):
    """Decides after every retrained block whether the rest may be left out.

    Only blocks in which training took a step count. The residual of a block that holds nobody is
    zero whatever the parameters are, and must not be given to a rule.
    """

    @property
    def law(self) -> Law | None:
        """The law fitted last, in units of the residual; None before there is one."""

    def update(self, delta: float) -> bool:
        """Take ``Delta_t``, return whether to stop now."""

    def expected(self, n_left: int) -> Floats:
        """Return estimates of the next `n_left` residuals, in the units that were given.

        By the law ``a x^-alpha + b`` of `RobustRule` under every rule, because the published
        fit often has a negative level. Where nothing fades, the larger of the last two.
        """

    def ceiling(self, n_left: int) -> Floats:
        """Return the next `n_left` residuals if they go on as their later half did.

        At least the larger of the last two, and rising as the line through the later half does.
        """


class _Rule:
    """The residuals so far and what all rules say about the rest."""

    _most: ClassVar[float] = math.inf

    def __init__(self, epsilon: float) -> None:
        if not 0.0 <= epsilon < math.inf:
            raise ValueError(f"epsilon must be a finite number of at least 0, not {epsilon!r}")
        self.epsilon = float(epsilon)
        self._deltas: list[float] = []
        self._finite = True

    def expected(self, n_left: int) -> Floats:
        """Return what the heavier of the fading laws says, or the level where nothing fades."""
        laws = self._fading_laws() if self._finite else []
        if not laws or laws[0].a == 0.0:
            return np.full(max(n_left, 0), self._level())
        x = len(self._deltas) + np.arange(1.0, n_left + 1)
        found: Floats = np.maximum.reduce([law.values(x) for law in laws])
        return np.maximum(found, 0.0)

    def ceiling(self, n_left: int) -> Floats:
        """Return level and rise of the later half, up to the most that the rule knows of."""
        ahead = np.arange(1.0, n_left + 1)
        rise = max(self._rise(), 0.0) if self._finite else 0.0
        return np.minimum(self._level() + rise * ahead, max(self._most, self._level()))

    def _level(self) -> float:
        """Return the larger of the last two residuals; infinite when any was."""
        return max(self._deltas[-2:]) if self._finite and self._deltas else math.inf

    def _rise(self) -> float:
        """Return the slope of the line through the later half of the residuals."""
        later = np.array(self._deltas[-max(len(self._deltas) // 2, 2) :])
        if len(later) < 2:
            return 0.0
        steps = np.arange(len(later)) - (len(later) - 1) / 2
        top = float(later.max()) or 1.0  # keeps the digits of tiny residuals
        return float(steps @ (later / top) / (steps @ steps)) * top

    def _take(self, delta: float) -> bool:
        """Note one residual; return whether a rule may judge the series at all."""
        if delta < 0.0:
            raise ValueError(f"a residual is a norm and cannot be negative: {delta!r}")
        self._deltas.append(float(delta))
        self._finite = self._finite and math.isfinite(delta)
        return self._finite

    def _fading_laws(self) -> list[Law]:
        """Return the law with a level and, while points are few, the one without."""
        n = len(self._deltas)
        if n < _FEWEST_TO_FIT:
            return []
        y = np.array(self._deltas)
        laws = [fit_fading_law(y)]
        return laws if n >= _FEWEST_TO_TRUST else [*laws, fit_fading_law(y, level=False)]


class PaperRule(_Rule):
    """The published rule: exponent by DFA, law by least squares, stop at a small slope.

    After each residual, ``alpha = DFA(Delta_0 .. Delta_t)``; then ``a`` and ``b`` of
    ``Y(x) = a x^-alpha + b`` by least squares; stop when ``|Y'(x_t)| < epsilon``.

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
    *Short series.* DFA has no exponent for fewer than 8 residuals. The publication does
    not say what to do then; this rule keeps retraining.

    *Origin.* With ``"block"`` the same residuals give another slope in another block.

    *Scale.* The slope has the units of the residual, an L1 norm over all parameters: the same
    `epsilon` means another thing for another net. `RobustRule` is free of both.

    *Series without fluctuation.* Equal residuals, all zeros too, have no exponent but a slope of 0:
    the rule stops at the eighth. A series that grows has a negative ``a``, and only the size of
    the slope counts. After a residual that is not finite the rule never stops.
    """

    def __init__(self, epsilon: float, first_block: int, origin: Origin = "block") -> None:
        super().__init__(epsilon)
        if first_block < 1:
            raise ValueError(f"first_block is counted from 1, not {first_block!r}")
        if origin not in ("block", "one"):
            raise ValueError(f"origin must be 'block' or 'one', not {origin!r}")
        self._first = first_block if origin == "block" else 1
        self._law: Law | None = None

    @property
    def law(self) -> Law | None:
        """The law fitted last, over the `x` of `origin`; None before the eighth residual."""
        return self._law

    def update(self, delta: float) -> bool:
        """Take ``Delta_t``, return whether ``|Y'(x_t)| < epsilon``."""
        self._law = None
        if not self._take(delta) or len(self._deltas) < _SHORT_SERIES:
            return False
        y = np.array(self._deltas)
        x = self._first + np.arange(float(len(y)))
        # No exponent means no fluctuation: any exponent gives the constant law.
        self._law = fit_scale_and_level(x, y, dfa_exponent(y) or 0.0)
        return self._law is not None and abs(self._law.slope(x[-1])) < self.epsilon


class RobustRule(_Rule):
    """Stop when the residual, relative to what the block does, is stable or lost in the noise.

    It is given ``r_t = Delta_t / ||V_(d+t)||_1``. After each, ``a x^-alpha + b`` with ``a, alpha,
    b >= 0`` is fitted over ``x = 1 .. t + 1``. An ``r_t`` is a *hit* when neither the law nor the
    line through the later half of the series changes by `epsilon` per block, or when
    ``r_t <= 2 floor``. The rule stops at `patience` hits in a row.

    Parameters
    ----------
    epsilon : float
        Largest change per block that counts as stable, as a share of the block's own influence.
        0 never stops, not even at residuals of zero.
    floor : float, default=0.0
        ``r`` of a replay in which nobody was dropped; 0 where training repeats bit by bit.
    patience : int, default=2
        Hits in a row that are needed.
    min_points : int, default=3
        Blocks after the last affected one before a small slope may stop the rule. Hits
        by the floor alone need no more than `patience` blocks.

    Notes
    -----
    *Scale.* ``r`` has no unit, so the rule decides the same for a net with all parameters scaled.
    It is 0 where the block does the same in both runs, about 1.4 where it does two unrelated things
    of one size, and at most 2 where they have one size. `ceiling` rises no further than 2.

    *Growth.* In much of ordinary training the residual does not fade: it grows from block to block
    and then levels off, because small differences of parameters are amplified. While it grows by
    `epsilon` or more per block, the rule goes on. At a level, or in slower growth, it stops, and
    the estimates say how much is left out.

    *Few points.* Three points are interpolated by three numbers, and a level cannot be told from a
    slow decay. Up to five points the law without a level (``b = 0``) is fitted as well; the steeper
    slope decides and the heavier tail is reported.

    *Equal residuals* are stable: the rule stops, and the estimates say that nothing faded. After
    a residual that is not finite it never stops.
    """

    _most: ClassVar[float] = 2.0

    def __init__(
        self, epsilon: float, floor: float = 0.0, patience: int = 2, min_points: int = 3
    ) -> None:
        super().__init__(epsilon)
        if not 0.0 <= floor < math.inf:
            raise ValueError(f"floor must be a finite number of at least 0, not {floor!r}")
        if patience < 1 or min_points < 0:
            raise ValueError("patience must be at least 1 and min_points at least 0")
        self.floor = float(floor)
        self.patience = patience
        self.min_points = min_points
        self._law: Law | None = None
        self._quiet = self._hits = 0

    @property
    def law(self) -> Law | None:
        """The three-number law fitted last, over ``x = 1 .. t + 1``; None before the third."""
        return self._law

    def update(self, delta: float) -> bool:
        """Take ``r_t``, return whether this is the last of `patience` hits in a row."""
        self._law = None
        if not self._take(delta):
            return False
        laws = self._fading_laws()
        self._law = laws[0] if laws else None
        quiet = delta <= 2.0 * self.floor
        hit = quiet or self._is_stable(laws)
        self._quiet = self._quiet + 1 if quiet else 0
        self._hits = self._hits + 1 if hit else 0
        if self.epsilon == 0.0:
            return False
        enough = len(self._deltas) > self.min_points
        return self._quiet >= self.patience or (enough and self._hits >= self.patience)

    def _is_stable(self, laws: list[Law]) -> bool:
        """Whether neither the laws nor the later residuals change by `epsilon` a block."""
        now = len(self._deltas)
        slopes = [*(abs(law.slope(now)) for law in laws), abs(self._rise())]
        return bool(laws) and max(slopes) < self.epsilon
