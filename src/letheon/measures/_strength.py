"""Strong or weak: how the work of the i-th removal grows (survey, section 2; Neel et al. 2021)."""

import math
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from letheon.measures._inputs import confidence_level
from letheon.measures._intervals import Interval, doubt_about, ratio_of_means
from letheon.measures._measure import Measure, known

__all__ = ["Strength", "strength"]

Kind = Literal["strong", "weak", "undecided"]

_FEWEST_REMOVALS = 16
# Over all sequences; with fewer the coverage of skewed work is below 93.5 %.
_FEWEST_EARLY = 60
# exponents beyond this say no more than "very fast"
_STEEPEST = 50.0


@dataclass(frozen=True, kw_only=True)
class Strength:
    """How the work of the i-th removal grows with i.

    Attributes
    ----------
    kind : {"strong", "weak", "undecided"}
        `strong`: no faster than a logarithm. `weak`: faster, like a power of i. `undecided`: the
        interval of the exponent holds the limit between the two, or there are too few removals.
    exponent : Measure
        k of the power ``i^k`` that grows like the work did.
    limit : float
        Largest exponent that a logarithm can show on a sequence of this length.
    rule : str
        How it was decided, in words.
    """

    kind: Kind
    exponent: Measure
    limit: float
    rule: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON but for infinite numbers."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Strength":
        """Return what `to_dict` wrote."""
        return cls(**(values | {"exponent": Measure(**values["exponent"])}))

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.kind}: {self.exponent}; {self.rule}"


def strength(work: ArrayLike, *, confidence: float = 0.95) -> Strength:
    """Return whether unlearning is strong or weak, from the counted work of a sequence.

    With ``C_i`` the work of the i-th removal, an algorithm is *strong* if ``C_i / C_1 = O(log i)``
    and *weak* if ``C_i / C_1 = O(poly(i))`` (survey, section 2). The survey prints
    ``Omega(poly(i))`` for weak, a lower bound; Neel et al. mean the upper one.

    Parameters
    ----------
    work : array-like of shape (n_removals,) or (n_sequences, n_removals)
        Counted work, not seconds: gradient passes, rows retrained, or `Receipt.work` (a share of a
        retrain) while few of the rows leave, else times the rows that were left. 16 removals at
        least, of one size each. Sequences are independent runs.
    confidence : float, default=0.95
        Coverage at which the exponent's interval aims.

    Returns
    -------
    Strength

    Notes
    -----
    **The rule.** No finite sequence shows an order of growth, but a logarithm grows only so much.
    Let ``R`` be the mean work of the late removals (m/2 < i <= m) over that of the early
    ones (sqrt(m) <= i < 2 sqrt(m)). For every ``a + b log i`` with ``a, b >= 0``, R is at most that
    of ``log i`` itself, which is below 2. The exponent is the k for which ``i^k`` has the ratio
    R; its interval is that of R, a bootstrap-t over removals and sequences. Strong: the whole
    interval is at most the k of ``log i`` (`limit`). Weak: it is wholly above. Else undecided. Work
    without any spread is decided by the value.

    Removals before sqrt(m) do not count, and ``C_1`` cancels: one removal is luck, and both
    definitions hold up to a constant.
    A power below `limit`, about 0.3 for 100 removals and 0.2 for 1000, cannot be told from a
    logarithm at this length. The premise of the definition, (alpha, beta)-accuracy that does not
    depend on m, is not looked at here; see `alpha_beta_accuracy`.

    Examples
    --------
    >>> strength([float(i**2) for i in range(1, 51)]).kind
    'weak'
    >>> strength([7.0] * 50).kind
    'strong'
    """
    confidence_level(confidence)
    table = _table(work)
    n_removals = table.shape[1]
    early, late = _windows(n_removals)
    limit = _limit(n_removals)
    first, last = table[:, early - 1].ravel(), table[:, late - 1].ravel()
    interval: Interval | None = None
    if not last.any() and not first.any():
        value = 0.0
    else:
        value = _exponent(_ratio(first, last), early, late)
        interval = _ends(first, last, early, late, confidence)
    exponent = known(
        "work exponent",
        value,
        interval,
        table.size,
        confidence=confidence,
        note=f"a logarithm shows at most {limit:.3g} on {n_removals} removals",
        doubt=doubt_about(first, _FEWEST_EARLY, "early removals"),
    )
    kind = _kind(value, interval, limit)
    return Strength(kind=kind, exponent=exponent, limit=limit, rule=_words(early, late, limit))


def _table(work: ArrayLike) -> NDArray[np.float64]:
    """Return work that is not negative, one line for each sequence."""
    table = np.atleast_2d(np.asarray(work, dtype=np.float64))
    if table.ndim != 2 or table.shape[1] < _FEWEST_REMOVALS or len(table) == 0:
        raise ValueError(
            f"work must be (n_sequences, n_removals) with at least {_FEWEST_REMOVALS} removals, "
            f"not {table.shape}"
        )
    if not (np.isfinite(table).all() and (table >= 0).all()):
        raise ValueError("work must be finite and not negative")
    return table


def _windows(m: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the early and of the late removals."""
    root = math.isqrt(m - 1) + 1
    return np.arange(root, min(2 * root, m // 2 + 1)), np.arange(m // 2 + 1, m + 1)


@cache
def _limit(m: int) -> float:
    """Return the exponent that log i itself shows: the largest of any a + b log i."""
    early, late = _windows(m)
    return _exponent(_ratio(np.log(early), np.log(late)), early, late)


def _ratio(first: NDArray[np.float64], last: NDArray[np.float64]) -> float:
    bottom = float(first.mean())
    return float(last.mean()) / bottom if bottom > 0 else math.inf


def _exponent(ratio: float, early: NDArray[np.int64], late: NDArray[np.int64]) -> float:
    """Return k such that i^k has this ratio of late to early means."""
    if ratio <= 0:
        return -math.inf
    if math.isinf(ratio):
        return math.inf
    x, y = (np.log(i / early[0]) for i in (early, late))

    def miss(k: float) -> float:
        grown = float(np.log(np.exp(k * y).mean()) - np.log(np.exp(k * x).mean()))
        return grown - math.log(ratio)

    if miss(_STEEPEST) < 0:
        return math.inf
    if miss(-_STEEPEST) > 0:
        return -math.inf
    return float(brentq(miss, -_STEEPEST, _STEEPEST, xtol=1e-12))


def _ends(
    first: NDArray[np.float64],
    last: NDArray[np.float64],
    early: NDArray[np.int64],
    late: NDArray[np.int64],
    confidence: float,
) -> Interval | None:
    """Return the exponents at the ends of the ratio's interval; None without any spread."""
    if not first.any():
        return -math.inf, math.inf
    ends = ratio_of_means(last, first, confidence)
    if ends is None:
        return None if np.ptp(first) == np.ptp(last) == 0 else (-math.inf, math.inf)
    low, high = (_exponent(end, early, late) for end in ends)
    value = _exponent(_ratio(first, last), early, late)
    return min(low, value), max(high, value)


def _kind(value: float, interval: Interval | None, limit: float) -> Kind:
    low, high = (value, value) if interval is None else interval
    if high <= limit + 1e-9:
        return "strong"
    return "weak" if low > limit + 1e-9 else "undecided"


def _words(early: NDArray[np.int64], late: NDArray[np.int64], limit: float) -> str:
    return (
        f"mean work of removals {late[0]}-{late[-1]} over that of {early[0]}-{early[-1]}; strong "
        f"if its exponent is at most {limit:.3g}, what a logarithm shows there, weak if above"
    )
