"""When DeepObliviate may stop to retrain, and what it leaves out then.

Block ``i`` moves the parameters by ``V_i = theta_i - theta_(i-1)`` in the run that saw a person,
and by ``V'_i`` in the run without. From the last affected block ``d`` on, the *residual memory* is

    Delta_t = ||V_(d+t) - V'_(d+t)||_1,    t = 0, 1, ...

A rule is given the residuals one after the other. When it stops after ``t``, the rest of the old
run is added to the new one, and the new parameters are off by at most the sum of the residuals that
were never computed. The rules estimate that sum. Guarantee: empirical; a small slope, or a small
estimate, is no bound on what later blocks do.

References
----------
Y. He et al., DeepObliviate: a powerful charm for erasing data residual memory in deep neural
networks, 2021.
"""

import math
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from letheon.deep._dfa import dfa_exponent
from letheon.deep._laws import Law, fit_fading_law, fit_scale_and_level

__all__ = ["Law", "PaperRule", "RobustRule", "StopRule", "dfa_exponent"]

Floats = NDArray[np.float64]
Origin = Literal["block", "one"]
Growth = Literal["continue", "stop"]

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

    def tail(self, n_left: int) -> float:
        """Return the estimated sum of the next `n_left` residuals; 0 when none is left.

        By the law ``a x^-alpha + b`` of `RobustRule` under every rule, because the published
        fit often has a negative level. `ceiling` where nothing fades.
        """

    def ceiling(self, n_left: int) -> float:
        """Return what `n_left` more residuals sum to if none exceeds the last two."""


class _Rule:
    """The residuals so far and what all rules say about the rest."""

    def __init__(self, epsilon: float) -> None:
        if not 0.0 <= epsilon < math.inf:
            raise ValueError(f"epsilon must be a finite number of at least 0, not {epsilon!r}")
        self.epsilon = float(epsilon)
        self._deltas: list[float] = []
        self._finite = True

    def tail(self, n_left: int) -> float:
        """Return the heavier tail of the fading laws, or `ceiling` where nothing fades."""
        laws = self._fading_laws() if self._finite else []
        if n_left <= 0 or not laws or laws[0].a == 0.0:
            return self.ceiling(n_left)
        now = len(self._deltas)
        return max(law.tail(now + 1, now + n_left) for law in laws)

    def ceiling(self, n_left: int) -> float:
        """Return ``n_left * max`` of the last two residuals; infinite when any was."""
        if n_left <= 0:
            return 0.0
        if not self._finite or not self._deltas:
            return math.inf
        return n_left * max(self._deltas[-2:])

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
    """Stop when the residual, relative to the first, is stable or lost in the noise.

    After each residual, ``a x^-alpha + b`` with ``a, alpha, b >= 0`` is fitted to
    ``Delta_t / Delta_0`` over ``x = 1 .. t + 1``. A residual is a *hit* when the slope of the law
    at ``t + 1`` is below `epsilon` and the residual does not grow, or when
    ``Delta_t <= 2 floor``. The rule stops at `patience` hits in a row.

    Parameters
    ----------
    epsilon : float
        Largest slope that counts as stable, per block and relative to ``Delta_0``. 0 never
        stops, not even at residuals of zero.
    floor : float, default=0.0
        Residual of a replay in which nobody was dropped; 0 where training repeats bit by bit.
    patience : int, default=2
        Hits in a row that are needed.
    min_points : int, default=3
        Blocks after the last affected one before a small slope may stop the rule. Hits
        by the floor alone need no more than `patience` blocks.
    growth : {"continue", "stop"}, default="continue"
        What to do while the residual grows: it is above ``Delta_0``, or the line through the later
        half of the residuals rises by `epsilon` or more per block. ``"continue"``: the memory
        spreads, so retrain. ``"stop"``: take growth for noise around a level.

    Notes
    -----
    *Scale.* All residuals and the floor times one factor give the same decisions.

    *Few points.* Three points are interpolated by three numbers, and a level cannot be told from a
    slow decay. Up to five points the law without a level (``b = 0``) is fitted as well; the steeper
    slope decides and the heavier tail is reported.

    *Equal residuals* are stable: the rule stops, and the tail says that nothing faded.
    When ``Delta_0`` is 0, only the floor can stop the rule. After a residual that is not finite
    it never stops.
    """

    def __init__(
        self,
        epsilon: float,
        floor: float = 0.0,
        patience: int = 2,
        min_points: int = 3,
        growth: Growth = "continue",
    ) -> None:
        super().__init__(epsilon)
        if not 0.0 <= floor < math.inf:
            raise ValueError(f"floor must be a finite number of at least 0, not {floor!r}")
        if patience < 1 or min_points < 0:
            raise ValueError("patience must be at least 1 and min_points at least 0")
        if growth not in ("continue", "stop"):
            raise ValueError(f"growth must be 'continue' or 'stop', not {growth!r}")
        self.floor = float(floor)
        self.patience = patience
        self.min_points = min_points
        self.growth = growth
        self._law: Law | None = None
        self._quiet = self._hits = 0

    @property
    def law(self) -> Law | None:
        """The three-number law fitted last, over ``x = 1 .. t + 1``; None before the third."""
        return self._law

    def update(self, delta: float) -> bool:
        """Take ``Delta_t``, return whether this is the last of `patience` hits in a row."""
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
        first, now = self._deltas[0], len(self._deltas)
        if not laws or first == 0.0 or (self.growth == "continue" and self._grows()):
            return False
        return max(abs(law.slope(now)) for law in laws) / first < self.epsilon

    def _grows(self) -> bool:
        """Whether the residual is above the first, or rises in its later half."""
        first, last = self._deltas[0], self._deltas[-1]
        later = np.array(self._deltas[-max(len(self._deltas) // 2, 2) :])
        steps = np.arange(len(later)) - (len(later) - 1) / 2
        top = float(later.max()) or 1.0
        rise = float(steps @ (later / top) / (steps @ steps)) * (top / first)
        return last > first or rise >= self.epsilon
