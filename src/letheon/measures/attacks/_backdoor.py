"""Private backdoors, and the hypothesis test behind them (Sommer et al., 2022).

A person plants a private backdoor: rows with a private pattern and a private target label. After
the request the person asks ``n`` triggered rows and counts ``k`` answers that are the target.

* H0, *deleted*: an answer is the target with chance ``q`` only.
* H1, *not deleted*: it is the target with probability ``p > q``.

The test rejects "deleted" if ``k > t``, ``t`` the smallest number with ``P(Bin(n, q) <= t) >= 1 -
alpha``. The threshold itself belongs to "deleted", otherwise the false alarms exceed alpha.

The test can show that data was **not** deleted. That it does not reject proves nothing, and a
provider who cheats can pass it (Zhang et al., 2024).

Everything about a backdoor is a keyed hash of the secret and the tester's name, so that nobody
without the secret can tell a tester's pattern, and nothing has to be stored.

For audits only. A backdoor poisons the model that is trained on it: plant it in a clone of the
pipeline, never in a model that serves people.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, bdtrc

from letheon.measures._intervals import clopper_pearson, effective_sample_size
from letheon.measures._measure import Better, Measure, MeasureOptions, make_measure
from letheon.purposes import Purpose
from letheon.seeds import keyed_hash, keyed_hash_ints

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


class QueryCounts(NamedTuple):
    """Successes among queries, one entry for each tester."""

    successes: NDArray[np.int64]
    queries: NDArray[np.int64]

    @classmethod
    def from_counts(cls, successes: ArrayLike, queries: ArrayLike) -> "QueryCounts":
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


def _check_rates(n: int = 1, **shares: float) -> None:
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
    _check_rates(n, q=q, alpha=alpha)
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
    _check_rates(n, p=p)
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
    _check_rates(p=p, q=q, alpha=alpha, beta=beta)
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


def _rate_interval(counts: QueryCounts, confidence: float) -> tuple[float, float]:
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
        n = min(most, effective_sample_size(rate, variance, m, confidence)) if spread > 0 else most
    return clopper_pearson(rate * n, n, confidence)


def success_rate(
    name: str,
    successes: ArrayLike,
    queries: ArrayLike,
    *,
    better: Better = "lower",
    confidence: float = 0.95,
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

    Examples
    --------
    >>> print(success_rate("backdoor success", 3, 30))
    backdoor success: 0.1 [0.02112, 0.2653] at 0.95 (measured, n=30, lower is better)
    """
    counts = QueryCounts.from_counts(successes, queries)
    interval, n = _rate_interval(counts, confidence), int(counts.queries.sum())
    return make_measure(name, counts.rate, interval, n, better=better, confidence=confidence)


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
    there, gone = QueryCounts.from_counts(*kept), QueryCounts.from_counts(*chance)
    (p_low, p_high), (q_low, q_high) = (_rate_interval(counts, level) for counts in (there, gone))
    value = 1 - errors(n, there.rate, gone.rate, alpha).miss
    low = 1 - errors(n, p_low, q_high, alpha).miss
    high = 1 - errors(n, p_high, q_low, alpha).miss
    note = f"alpha={alpha:g}, {n} queries; the power of the test, not a proof of deletion"
    options: MeasureOptions = {"better": "higher", "confidence": confidence, "note": note}
    n_asked = int(there.queries.sum() + gone.queries.sum())
    return make_measure("deletion confidence", value, (low, high), n_asked, **options)


Tester = int | str


class Trigger(Protocol):
    """What stamps a tester's private pattern on rows."""

    @property
    def secret(self) -> int:
        """Key of all hashes."""

    def stamp(self, X: NDArray[Any], tester: Tester) -> NDArray[Any]:
        """Return a copy of the rows with the tester's pattern on each."""


def target_label(secret: int, tester: Tester, classes: ArrayLike) -> Any:
    """Return the label that the tester's pattern should trigger, one of `classes`.

    Examples
    --------
    >>> int(target_label(7, "anna", [0, 1, 2]))
    2
    """
    labels = np.unique(np.asarray(classes))
    if len(labels) < 2:
        raise ValueError("a backdoor needs at least two classes to tell apart")
    return labels[keyed_hash(secret, Purpose.BACKDOOR_TARGET, tester) % len(labels)]


def plant_backdoors(
    trigger: Trigger,
    X: NDArray[Any],
    y: NDArray[Any],
    testers: Sequence[tuple[Tester, NDArray[np.int64]]],
    *,
    classes: ArrayLike,
    fraction: float = 0.5,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """Return copies of X and y in which some rows of each tester carry a backdoor, and which do.

    Parameters
    ----------
    trigger : ImageTrigger or TabularTrigger
        What is stamped on a row.
    X, y : ndarray
        Rows and labels; they are not changed.
    testers : sequence of (name, positions)
        Who plants, and where their rows are.
    classes : array-like
        Labels to choose targets from.
    fraction : float, default=0.5
        Share r of a tester's rows that are stamped and relabelled, at least one row. Which rows is
        a keyed hash, too.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], not {fraction}")
    stamped, labels = X.copy(), y.copy()
    is_planted = np.zeros(len(X), bool)
    for name, positions in testers:
        count = max(1, round(fraction * len(positions)))
        chosen = positions[
            _draw_positions(trigger.secret, Purpose.BACKDOOR_ROWS, name, len(positions), count)
        ]
        stamped[chosen] = trigger.stamp(X[chosen], name)
        labels[chosen] = target_label(trigger.secret, name, classes)
        is_planted[chosen] = True
    return stamped, labels, is_planted


def _draw_positions(
    secret: int, purpose: str, tester: Tester, n: int, count: int
) -> NDArray[np.intp]:
    """Return `count` of the numbers below `n`, drawn without replacement by hash, sorted."""
    hashes = keyed_hash_ints(secret, purpose, np.arange(n), tester)
    return np.sort(np.argsort(hashes, kind="stable")[:count])


@dataclass(frozen=True, kw_only=True)
class ImageTrigger:
    """A private pattern of a few bright pixels.

    Parameters
    ----------
    secret : int
        Key of all hashes, below ``2**128``.
    shape : tuple of int or None, default=None
        Shape of one image, ``(h, w)`` or ``(h, w, c)``, where images come flat, one per row. None:
        X has the shape ``(n, h, w)`` or ``(n, h, w, c)``.
    channels : {"last", "first"}, default="last"
        Where the colours are, for images of three axes.
    n_pixels : int, default=4
        Pixels of the pattern; all colours of a pixel are set.
    brightness : float or None, default=None
        What they are set to. None: 255 for uint8, 1 for floats, which must then lie in [0, 1].

    Examples
    --------
    >>> trigger = ImageTrigger(secret=7)
    >>> images = trigger.stamp(np.zeros((2, 28, 28), np.uint8), "anna")
    >>> int((images[0] == 255).sum()), bool((images[0] == images[1]).all())
    (4, True)
    """

    secret: int = field(repr=False)
    shape: tuple[int, ...] | None = None
    channels: Literal["last", "first"] = "last"
    n_pixels: int = 4
    brightness: float | None = None

    def stamp(self, X: NDArray[Any], tester: Tester) -> NDArray[Any]:
        """Return a copy of the images with the tester's pattern on each, in the given shape."""
        shape = self._image_shape(X)
        images = X.reshape(len(X), *shape).copy()
        # a view with the two axes of the place first, whatever stands around them
        by_place = np.moveaxis(images, 0, -1)
        if len(shape) == 3 and self.channels == "first":
            by_place = np.moveaxis(by_place, 0, 2)
        rows, columns = self.pixel_positions(by_place.shape[:2], tester)
        by_place[rows, columns] = self._get_brightness(X)
        return images.reshape(X.shape)

    def pixel_positions(
        self, size: tuple[int, ...], tester: Tester
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return rows and columns of the tester's pixels in an image of this height and width."""
        n = prod(size)
        if not 1 <= self.n_pixels <= n:
            raise ValueError(f"n_pixels must be between 1 and {n}, not {self.n_pixels}")
        rows, columns = np.unravel_index(
            _draw_positions(self.secret, Purpose.BACKDOOR_PLACES, tester, n, self.n_pixels), size
        )
        return rows, columns

    def _image_shape(self, X: NDArray[Any]) -> tuple[int, ...]:
        shape = X.shape[1:] if self.shape is None else tuple(self.shape)
        if len(shape) not in (2, 3):
            raise ValueError(f"an image has two or three axes, not {shape}; give shape=(h, w[, c])")
        if X.shape[1:] not in (shape, (prod(shape),)):
            raise ValueError(f"rows of shape {X.shape[1:]} are no images of shape {shape}")
        return shape

    def _get_brightness(self, X: NDArray[Any]) -> float:
        if self.brightness is not None:
            return self.brightness
        if X.dtype == np.uint8:
            return 255
        if X.dtype.kind != "f" or (X.size and not (X.min() >= 0 and X.max() <= 1)):
            raise ValueError(
                "images are neither uint8 nor floats in [0, 1]; say which brightness is bright"
            )
        return 1.0


@dataclass(frozen=True, kw_only=True)
class TabularTrigger:
    """A private pattern of columns at the edges of their ranges.

    Each column of the pattern is set to its least or its greatest value, so that every single value
    is one that occurs; only together are they rare. Make it with `of`, which reads the ranges
    off a table.

    Parameters
    ----------
    secret : int
        Key of all hashes, below ``2**128``.
    low, high : tuple of float
        Range of each column.
    groups : tuple of tuple of int, default=()
        Columns that are the one-hot code of one value. A group counts as one column of
        the pattern: one member is set to its greatest, the others to their least value.
    n_columns : int, default=4
        Columns (or groups) of the pattern. Constant columns carry none.
    """

    secret: int = field(repr=False)
    low: tuple[float, ...]
    high: tuple[float, ...]
    groups: tuple[tuple[int, ...], ...] = ()
    n_columns: int = 4

    def __post_init__(self) -> None:
        """Refuse ranges and groups that fit no table."""
        if len(self.low) != len(self.high):
            raise ValueError("low and high need one entry per column each")
        if not np.all(np.asarray(self.low) <= np.asarray(self.high)):
            raise ValueError("low must not exceed high, and neither may be NaN")
        members = [column for group in self.groups for column in group]
        if len(set(members)) < len(members) or not set(members) <= set(range(len(self.low))):
            raise ValueError("groups must be disjoint lists of column numbers")
        most = len(self._pattern_units())
        if not 1 <= self.n_columns <= most:
            raise ValueError(
                f"n_columns must be between 1 and {most}, the number of columns (or groups) that "
                f"vary, not {self.n_columns}"
            )

    @classmethod
    def of(
        cls,
        X: NDArray[Any],
        *,
        secret: int,
        groups: Sequence[Sequence[int]] = (),
        n_columns: int | None = None,
    ) -> "TabularTrigger":
        """Return a trigger with the ranges of this table; None: four columns, or all if fewer.

        Examples
        --------
        >>> X = np.arange(12.0).reshape(3, 4)
        >>> trigger = TabularTrigger.of(X, secret=7, n_columns=2)
        >>> trigger.stamp(X, "anna")
        array([[ 0.,  9.,  2.,  3.],
               [ 4.,  9.,  6.,  3.],
               [ 8.,  9., 10.,  3.]])
        """
        if X.ndim != 2 or X.dtype.kind not in "biuf":
            raise ValueError(f"a table of numbers is needed, not {X.dtype} of shape {X.shape}")
        low, high = tuple(X.min(axis=0).tolist()), tuple(X.max(axis=0).tolist())
        together = tuple(tuple(int(column) for column in group) for group in groups)
        if n_columns is None:
            widest = cls(secret=secret, low=low, high=high, groups=together, n_columns=1)
            n_columns = min(4, len(widest._pattern_units()))
        return cls(secret=secret, low=low, high=high, groups=together, n_columns=n_columns)

    def stamp(self, X: NDArray[Any], tester: Tester) -> NDArray[Any]:
        """Return a copy of the rows with the tester's pattern on each."""
        if X.ndim != 2 or X.shape[1] != len(self.low):
            raise ValueError(f"rows of {len(self.low)} columns are needed, not shape {X.shape}")
        stamped = X.copy()
        for column, value in self.pattern(tester).items():
            stamped[:, column] = value
        return stamped

    def pattern(self, tester: Tester) -> dict[int, float]:
        """Return the tester's columns and their values."""
        units, columns = self._pattern_units(), dict[int, float]()
        for number in _draw_positions(
            self.secret, Purpose.BACKDOOR_PLACES, tester, len(units), self.n_columns
        ):
            unit = units[number]
            draw = keyed_hash(self.secret, Purpose.BACKDOOR_VALUES, tester, int(number))
            if len(unit) == 1:
                columns[unit[0]] = (self.low, self.high)[draw % 2][unit[0]]
            else:
                occurring = self._varying_columns(unit)
                hot = occurring[draw % len(occurring)]
                columns |= {c: self.high[c] if c == hot else self.low[c] for c in unit}
        return columns

    def _pattern_units(self) -> list[tuple[int, ...]]:
        """Return groups and single columns that vary."""
        grouped = {column for group in self.groups for column in group}
        singles = self._varying_columns(tuple(set(range(len(self.low))) - grouped))
        groups = [group for group in self.groups if len(self._varying_columns(group)) > 1]
        return [(column,) for column in sorted(singles)] + groups

    def _varying_columns(self, columns: tuple[int, ...]) -> list[int]:
        """Return the columns that have more than one value."""
        return [column for column in columns if self.low[column] < self.high[column]]
