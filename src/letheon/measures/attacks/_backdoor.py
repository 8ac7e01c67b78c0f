"""The hypothesis test behind backdoor verification, as formulas (Sommer et al., 2022).

A person plants a private backdoor: rows with a private pattern and a private target label. After
the request the person asks ``n`` triggered rows and counts ``k`` answers that are the target.

* H0, *deleted*: an answer is the target with chance ``q`` only.
* H1, *not deleted*: it is the target with probability ``p > q``.

The test rejects "deleted" if ``k > t``, ``t`` the smallest number with ``P(Bin(n, q) <= t) >= 1 -
alpha``. The threshold itself belongs to "deleted", otherwise the false alarms exceed alpha.

The test can show that data was **not** deleted. That it does not reject proves nothing, and a
provider who cheats can pass it (Zhang et al., 2024).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, bdtrc

from letheon.measures._intervals import clopper_pearson, effective_number
from letheon.measures._measure import Better, Measure, Options, make_measure

# More queries than this for one person is no test that anybody would run.
_MOST_QUERIES = 100_000
# Testers who must have both answers before the spread between them says how much they differ.
_MIXED = 5


class Errors(NamedTuple):
    """Threshold and both errors of the test."""

    threshold: int
    false_alarm: float
    """Probability to reject "deleted" though the data was deleted."""
    miss: float
    """Probability not to reject though the data is still there."""


class Counts(NamedTuple):
    """Successes among queries, one entry for each tester."""

    successes: NDArray[np.int64]
    queries: NDArray[np.int64]

    @classmethod
    def of(cls, successes: ArrayLike, queries: ArrayLike) -> "Counts":
        """Return the counts as vectors, or raise unless ``0 <= successes <= queries``."""
        made = cls(*(np.atleast_1d(np.asarray(part, np.int64)) for part in (successes, queries)))
        if made.successes.shape != made.queries.shape or made.successes.ndim != 1:
            raise ValueError("give one number of successes and one of queries for each tester")
        if made.queries.sum() < 1 or (made.successes < 0).any():
            raise ValueError("at least one query is needed, and no count is negative")
        if (made.successes > made.queries).any():
            raise ValueError("there are more successes than queries")
        return made

    @property
    def rate(self) -> float:
        """Successes of all testers by their queries."""
        return float(self.successes.sum() / self.queries.sum())


def _check(n: int = 1, **shares: float) -> None:
    """Refuse probabilities p and q beyond [0, 1], and levels that are not strictly between."""
    if n < 1:
        raise ValueError(f"at least one query is needed, not {n}")
    for name, value in shares.items():
        if not 0 <= value <= 1 or (name in ("alpha", "beta") and value in (0, 1)):
            raise ValueError(f"{name} must be between 0 and 1, not {value!r}")


def threshold(n: int, q: float, alpha: float = 1e-3) -> int:
    """Return the smallest ``t`` with ``P(Bin(n, q) > t) <= alpha``; more successes reject.

    Parameters
    ----------
    n : int
        Queries.
    q : float
        Probability of a success where the data was deleted.
    alpha : float, default=1e-3
        Largest probability of a false alarm.

    Examples
    --------
    >>> threshold(30, 0.1)
    9
    """
    _check(n, q=q, alpha=alpha)
    # the upper tail: 1 - P(Bin <= t) would lose a small alpha to rounding
    tail = bdtrc(np.arange(n + 1), n, q)
    return int(np.argmax(tail <= alpha))


def errors(n: int, p: float, q: float, alpha: float = 1e-3) -> Errors:
    """Return threshold, false-alarm and miss probability of the test.

    ``false alarm = P(Bin(n, q) > t)``, at most alpha; ``miss = P(Bin(n, p) <= t)``.

    Parameters
    ----------
    n : int
        Queries.
    p, q : float
        Probability of a success where the data is still there, and where it was deleted.
    alpha : float, default=1e-3
        Largest probability of a false alarm.

    Examples
    --------
    >>> test = errors(30, 0.6, 0.1)
    >>> test.threshold, f"{test.false_alarm:.1e}", f"{test.miss:.1e}"
    (9, '4.5e-04', '8.6e-04')
    """
    _check(n, p=p)
    t = threshold(n, q, alpha)
    return Errors(t, float(bdtrc(t, n, q)), float(bdtr(t, n, p)))


def queries_needed(p: float, q: float, alpha: float = 1e-3, beta: float = 1e-3) -> int:
    """Return the smallest number of queries with both errors at most alpha and beta.

    Parameters
    ----------
    p, q : float
        Probability of a success where the data is still there, and where it was deleted.
    alpha, beta : float, default=1e-3
        Largest probabilities of a false alarm and of a miss.

    Raises
    ------
    ValueError
        ``p <= q``, where no number is enough, or more than 100,000 would be needed.

    Examples
    --------
    >>> [queries_needed(p, 0.1) for p in (0.95, 0.8, 0.6, 0.4, 0.2)]
    [8, 15, 30, 73, 479]
    """
    _check(p=p, q=q, alpha=alpha, beta=beta)
    if p <= q:
        raise ValueError(f"p={p} must exceed q={q}: such a backdoor cannot be told from chance")
    t = 0
    for n in range(1, _MOST_QUERIES + 1):
        # one more query never lowers the threshold
        while bdtrc(t, n, q) > alpha:
            t += 1
        if bdtr(t, n, p) <= beta:
            return n
    raise ValueError(f"more than {_MOST_QUERIES} queries: p={p} and q={q} are too close")


def majority_errors(one: Errors, n_users: int) -> Errors:
    """Return the errors of a vote: "not deleted" if more than half of the users say so.

    ``false alarm = P(Bin(c, alpha) > c/2)`` and ``miss = P(Bin(c, 1 - beta) <= c/2)`` for ``c``
    users whose tests are independent. A tie says "deleted"; with an odd ``c`` there is none.

    Parameters
    ----------
    one : Errors
        Errors of one user's test.
    n_users : int
        Users who vote.

    Examples
    --------
    >>> vote = majority_errors(errors(10, 0.6, 0.1, alpha=0.05), 5)
    >>> f"{vote.false_alarm:.1e}", f"{vote.miss:.1e}"
    ('2.1e-05', '1.5e-03')
    """
    if n_users < 1:
        raise ValueError(f"at least one user votes, not {n_users}")
    half = n_users // 2
    return one._replace(
        false_alarm=float(bdtrc(half, n_users, one.false_alarm)),
        # voters who miss: at least n - half of them, so that the small tail is summed
        miss=float(bdtrc(n_users - half - 1, n_users, one.miss)),
    )


def _interval(counts: Counts, confidence: float) -> tuple[float, float]:
    """Return the interval of a success rate when testers differ (Korn and Graubard, 1998).

    Clopper and Pearson's at an effective number of queries: that of the binomial variance divided
    by the variance between testers, never more than there are. Where nearly all testers have
    the same answer throughout, that variance is not known, and a tester counts once.
    Equal to Clopper and Pearson's for one tester.
    """
    is_asked = counts.queries > 0
    successes, queries = counts.successes[is_asked], counts.queries[is_asked]
    m, n, rate = len(queries), float(queries.sum()), counts.rate
    if m > 1:
        known = min(np.sum(successes > 0), np.sum(successes < queries)) >= min(m, _MIXED)
        most, spread = n if known else float(m), float(np.sum((successes - rate * queries) ** 2))
        variance = m / (m - 1) * spread / n**2
        n = min(most, effective_number(rate, variance, m, confidence)) if spread > 0 else most
    return clopper_pearson(rate * n, n, confidence)


def success_rate(
    name: str,
    successes: ArrayLike,
    queries: ArrayLike,
    *,
    better: Better = "lower",
    confidence: float = 0.95,
    note: str = "",
) -> Measure:
    """Return the share of successful queries.

    Parameters
    ----------
    name : str
        What the share is of.
    successes, queries : int or array-like of int
        Counts, one of each for every tester.
    better : {"lower", "higher"}, default="lower"
        Which way is better.
    confidence : float, default=0.95
        Coverage of the interval: Clopper and Pearson's, made wider where testers differ from each
        other more than a binomial law allows (Korn and Graubard, 1998). With several testers of
        whom fewer than five have both answers, a tester counts as one query.
    note : str, default=""
        Note of the measure.

    Examples
    --------
    >>> print(success_rate("backdoor success", 3, 30))
    backdoor success: 0.1 [0.02112, 0.2653] at 0.95 (measured, n=30, lower is better)
    """
    counts = Counts.of(successes, queries)
    interval, n = _interval(counts, confidence), int(counts.queries.sum())
    options: Options = {"better": better, "confidence": confidence, "note": note}
    return make_measure(name, counts.rate, interval, n, **options)


def deletion_confidence(
    n: int,
    kept: tuple[ArrayLike, ArrayLike],
    chance: tuple[ArrayLike, ArrayLike],
    *,
    alpha: float = 1e-3,
    confidence: float = 0.95,
) -> Measure:
    """Return how surely the test would notice that data is still there.

    ``rho = 1 - beta = P(Bin(n, p) > t)``, ``t`` the smallest number with ``P(Bin(n, q) <= t) >= 1 -
    alpha``. Both rates are estimated, and rho grows with ``p`` and falls with ``q``, so its
    lower end puts in the lower end of ``p`` and the upper end of ``q``, and the other way
    round: each end at level ``1 - (1 - confidence) / 2`` (Bonferroni), so that both hold at
    once.

    Parameters
    ----------
    n : int
        Queries of one person's test.
    kept : (successes, queries)
        Counts where the data is there: p.
    chance : (successes, queries)
        Counts where it never was: q.
    alpha : float, default=1e-3
        Largest probability of a false alarm.
    confidence : float, default=0.95
        Coverage of the interval.

    Returns
    -------
    Measure
        Higher is better: the test is sharper. Read the lower end. It says nothing about whether the
        data was deleted, only what a test that does not reject is worth.

    Examples
    --------
    >>> print(deletion_confidence(30, (60, 100), (10, 100)))
    deletion confidence: 0.9991 [0.6408, 1] at 0.95 (measured, n=200, higher is better)
    """
    level = 1 - (1 - confidence) / 2
    there, gone = Counts.of(*kept), Counts.of(*chance)
    (p_low, p_high), (q_low, q_high) = (_interval(counts, level) for counts in (there, gone))
    value = 1 - errors(n, there.rate, gone.rate, alpha).miss
    low = 1 - errors(n, p_low, q_high, alpha).miss
    high = 1 - errors(n, p_high, q_low, alpha).miss
    note = f"alpha={alpha:g}, {n} queries; the power of the test, not a proof of deletion"
    options: Options = {"better": "higher", "confidence": confidence, "note": note}
    n_asked = int(there.queries.sum() + gone.queries.sum())
    return make_measure("deletion confidence", value, (low, high), n_asked, **options)
