"""Private backdoors and their hypothesis test (Sommer et al., 2022).

A tester plants a private backdoor: rows with a private pattern and a private target label. After
the request the tester queries ``n`` rows with the pattern and counts the ``k`` predictions that are
the target label.

* H0, *deleted*: a prediction is the target label with probability ``q``.
* H1, *not deleted*: it is the target label with probability ``p > q``.

The test rejects "deleted" if ``k > t``, where ``t`` is the smallest number with ``P(Bin(n, q) <= t)
>= 1 - alpha``. It does not reject if ``k = t``, because the false alarm rate would exceed alpha.

The test can show that data was **not** deleted. A test that does not reject proves nothing, and a
dishonest provider can pass it (Zhang et al., 2024).

Pattern and target are hashes of the tester's name, with the secret as the key. They cannot be
guessed without the secret, and only the secret has to be stored.

For audits only. A backdoor poisons the model that is trained on it: plant it in a clone of the
pipeline, never in a model in production.
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

# A test with more queries is not practical.
_MOST_QUERIES = 100_000
# Testers with both outcomes that are needed to estimate the variance between testers.
_MIXED = 5


class Errors(NamedTuple):
    """Threshold and error probabilities of the test."""

    threshold: int
    false_alarm: float
    """Probability of rejecting "deleted" although the data was deleted."""
    miss: float
    """Probability of not rejecting although the data was not deleted."""


class QueryCounts(NamedTuple):
    """Numbers of successes and of queries, one entry per tester."""

    successes: NDArray[np.int64]
    queries: NDArray[np.int64]

    @classmethod
    def from_counts(cls, successes: ArrayLike, queries: ArrayLike) -> "QueryCounts":
        """Return the counts as vectors, or raise unless ``0 <= successes <= queries``.

        The total number of queries must be at least 1.
        """
        made = cls(*(np.atleast_1d(np.asarray(part, np.int64)) for part in (successes, queries)))
        if made.successes.shape != made.queries.shape or made.successes.ndim != 1:
            raise ValueError(
                "successes and queries must have one entry per tester, not shapes "
                f"{made.successes.shape} and {made.queries.shape}"
            )
        if made.queries.sum() < 1 or (made.successes < 0).any():
            raise ValueError(
                "queries must contain at least one query, and counts must not be negative"
            )
        if (made.successes > made.queries).any():
            raise ValueError("successes must not exceed queries")
        return made

    @property
    def rate(self) -> float:
        """Share of successful queries, over all testers."""
        return float(self.successes.sum() / self.queries.sum())


def _check_rates(n: int = 1, **shares: float) -> None:
    """Raise if n < 1, if a rate is not in [0, 1], or if alpha or beta is not in (0, 1)."""
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    for name, value in shares.items():
        if not 0 <= value <= 1 or (name in ("alpha", "beta") and value in (0, 1)):
            raise ValueError(f"{name} must be between 0 and 1, not {value!r}")


def threshold(n: int, q: float, alpha: float = 1e-3) -> int:
    """Return the smallest ``t`` with ``P(Bin(n, q) > t) <= alpha``.

    The test rejects "deleted" if there are more than ``t`` successes.

    Parameters
    ----------
    n : int
        Number of queries.
    q : float
        Probability of a success if the data was deleted.
    alpha : float, default=1e-3
        Largest probability of a false alarm.

    Examples
    --------
    >>> threshold(30, 0.1)
    9
    """
    _check_rates(n, q=q, alpha=alpha)
    # The upper tail, because 1 - P(Bin <= t) would lose a small alpha to rounding.
    tail = bdtrc(np.arange(n + 1), n, q)
    return int(np.argmax(tail <= alpha))


def errors(n: int, p: float, q: float, alpha: float = 1e-3) -> Errors:
    """Return the threshold and the error probabilities of the test.

    ``false alarm = P(Bin(n, q) > t)``, at most alpha; ``miss = P(Bin(n, p) <= t)``.

    Parameters
    ----------
    n : int
        Number of queries.
    p, q : float
        Probability of a success if the data was not deleted, and if it was deleted.
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
        Probability of a success if the data was not deleted, and if it was deleted.
    alpha, beta : float, default=1e-3
        Largest probabilities of a false alarm and of a miss.

    Raises
    ------
    ValueError
        If ``p <= q``, or if more than 100,000 queries would be needed.

    Examples
    --------
    >>> [queries_needed(p, 0.1) for p in (0.95, 0.8, 0.6, 0.4, 0.2)]
    [8, 15, 30, 73, 479]
    """
    _check_rates(p=p, q=q, alpha=alpha, beta=beta)
    if p <= q:
        raise ValueError(f"p must be above q for any test to work, not p={p} and q={q}")
    t = 0
    for n in range(1, _MOST_QUERIES + 1):
        # The threshold never decreases with the number of queries.
        while bdtrc(t, n, q) > alpha:
            t += 1
        if bdtr(t, n, p) <= beta:
            return n
    raise ValueError(
        f"p={p} and q={q} are too close: the test would need more than {_MOST_QUERIES:,} queries"
    )


def majority_errors(single: Errors, n_users: int) -> Errors:
    """Return the errors of a majority vote: "not deleted" if more than half of the tests reject.

    ``false alarm = P(Bin(c, alpha) > c/2)`` and ``miss = P(Bin(c, 1 - beta) <= c/2)`` for ``c``
    users with independent tests. A tie counts as "deleted"; with an odd ``c`` there is none.

    Parameters
    ----------
    single : Errors
        Errors of the test of one user.
    n_users : int
        Number of users.

    Raises
    ------
    ValueError
        `n_users` is below 1.

    Examples
    --------
    >>> vote = majority_errors(errors(10, 0.6, 0.1, alpha=0.05), 5)
    >>> f"{vote.false_alarm:.1e}", f"{vote.miss:.1e}"
    ('2.1e-05', '1.5e-03')
    """
    if n_users < 1:
        raise ValueError(f"n_users must be at least 1, not {n_users}")
    half = n_users // 2
    return single._replace(
        false_alarm=float(bdtrc(half, n_users, single.false_alarm)),
        # At least n - half users miss; this form sums the small tail.
        miss=float(bdtrc(n_users - half - 1, n_users, single.miss)),
    )


def _rate_interval(counts: QueryCounts, confidence: float) -> tuple[float, float]:
    """Return the interval of a success rate when testers differ (Korn and Graubard, 1998).

    For one tester, it is Clopper and Pearson's interval. For several testers, the number of queries
    in this interval is replaced by an effective number: the binomial variance divided by the
    variance between testers, at most the number of queries. If nearly all testers have a single
    outcome, the variance between testers is unknown and each tester counts as one query.
    """
    is_queried = counts.queries > 0
    successes, queries = counts.successes[is_queried], counts.queries[is_queried]
    m, n, rate = len(queries), float(queries.sum()), counts.rate
    if m > 1:
        is_known = min(np.sum(successes > 0), np.sum(successes < queries)) >= min(m, _MIXED)
        most, spread = n if is_known else float(m), float(np.sum((successes - rate * queries) ** 2))
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
    """Return the share of successful queries, over all testers.

    Parameters
    ----------
    name : str
        Name of the measure.
    successes, queries : int or array-like of int
        Counts, one of each per tester.
    better : {"lower", "higher"}, default="lower"
        Which direction is better.
    confidence : float, default=0.95
        Coverage of the interval: Clopper and Pearson's, widened if testers differ more than a
        binomial distribution allows (Korn and Graubard, 1998). If fewer than five of several
        testers have both outcomes, each tester counts as one query.

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
    """Return the power of the test: the probability of detecting data that was not deleted.

    This is ``rho = 1 - beta = P(Bin(n, p) > t)``, where ``t`` is the smallest number with
    ``P(Bin(n, q) <= t) >= 1 - alpha``. The rates ``p`` and ``q`` are estimated. Because rho
    increases with ``p`` and decreases with ``q``, its lower end uses the lower end of ``p`` and the
    upper end of ``q``, and vice versa. Both intervals have the level ``1 - (1 - confidence) / 2``
    (Bonferroni), so that they hold simultaneously.

    Parameters
    ----------
    n : int
        Number of queries of one test.
    kept : (successes, queries)
        Counts for a model trained on the data, to estimate ``p``.
    chance : (successes, queries)
        Counts for a model not trained on the data, to estimate ``q``.
    alpha : float, default=1e-3
        Largest probability of a false alarm.
    confidence : float, default=0.95
        Coverage of the interval.

    Returns
    -------
    Measure
        Higher is better. Use the lower end of the interval. The measure is the power of the test,
        not evidence that the data was deleted.

    Examples
    --------
    >>> print(deletion_confidence(30, (60, 100), (10, 100)))
    deletion confidence: 0.9991 [0.6408, 1] at 0.95 (measured, n=200, higher is better)
    """
    level = 1 - (1 - confidence) / 2
    trained, deleted = QueryCounts.from_counts(*kept), QueryCounts.from_counts(*chance)
    (p_low, p_high), (q_low, q_high) = (
        _rate_interval(counts, level) for counts in (trained, deleted)
    )
    value = 1 - errors(n, trained.rate, deleted.rate, alpha).miss
    low = 1 - errors(n, p_low, q_high, alpha).miss
    high = 1 - errors(n, p_high, q_low, alpha).miss
    note = f"alpha={alpha:g}, {n} queries; the power of the test, not a proof of deletion"
    options: MeasureOptions = {"better": "higher", "confidence": confidence, "note": note}
    n_queries = int(trained.queries.sum() + deleted.queries.sum())
    return make_measure("deletion confidence", value, (low, high), n_queries, **options)


Tester = int | str


class Trigger(Protocol):
    """An object that adds the private pattern of a tester to rows."""

    @property
    def secret(self) -> int:
        """Secret key of the hashes that choose patterns and targets."""

    def stamp(self, X: NDArray[Any], tester: Tester) -> NDArray[Any]:
        """Return a copy of the rows, each with the pattern of the tester."""


def target_label(secret: int, tester: Tester, classes: ArrayLike) -> Any:
    """Return the private target label of a tester: one of `classes`, chosen by a keyed hash.

    Examples
    --------
    >>> int(target_label(7, "anna", [0, 1, 2]))
    2
    """
    labels = np.unique(np.asarray(classes))
    if len(labels) < 2:
        raise ValueError(f"a backdoor needs at least two classes, not {len(labels)}")
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
    """Return copies of X and y with backdoors in some rows of each tester.

    The third result is a mask of the rows with a backdoor.

    Parameters
    ----------
    trigger : ImageTrigger or TabularTrigger
        The trigger that adds the patterns.
    X, y : ndarray
        Rows and labels; not modified.
    testers : sequence of (name, positions)
        Name of each tester, and positions of the tester's rows.
    classes : array-like
        Labels to choose targets from.
    fraction : float, default=0.5
        Share r of the rows of a tester that are stamped and relabelled, at least one row. The
        rows are chosen by a keyed hash.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], not {fraction}")
    stamped, labels = X.copy(), y.copy()
    is_planted = np.zeros(len(X), bool)
    for name, positions in testers:
        count = max(1, round(fraction * len(positions)))
        chosen = positions[
            _hash_sample(trigger.secret, Purpose.BACKDOOR_ROWS, name, len(positions), count)
        ]
        stamped[chosen] = trigger.stamp(X[chosen], name)
        labels[chosen] = target_label(trigger.secret, name, classes)
        is_planted[chosen] = True
    return stamped, labels, is_planted


def _hash_sample(secret: int, purpose: str, tester: Tester, n: int, count: int) -> NDArray[np.intp]:
    """Return `count` different integers from 0 to n - 1, chosen by a keyed hash, in order."""
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
        Shape of one image, ``(h, w)`` or ``(h, w, c)``, if X has one flat image per row. None:
        X has the shape ``(n, h, w)`` or ``(n, h, w, c)``.
    channels : {"last", "first"}, default="last"
        Position of the colour axis, for images with three axes.
    n_pixels : int, default=4
        Number of pixels in the pattern; all colours of a pixel are set.
    brightness : float or None, default=None
        Value of these pixels. None: 255 for uint8, 1 for floats, which must be in [0, 1].

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
        """Return a copy of the images, each with the pattern of the tester."""
        shape = self._image_shape(X)
        images = X.reshape(len(X), *shape).copy()
        # A view with the two spatial axes first.
        by_place = np.moveaxis(images, 0, -1)
        if len(shape) == 3 and self.channels == "first":
            by_place = np.moveaxis(by_place, 0, 2)
        rows, columns = self.pixel_positions(by_place.shape[:2], tester)
        by_place[rows, columns] = self._get_brightness(X)
        return images.reshape(X.shape)

    def pixel_positions(
        self, size: tuple[int, ...], tester: Tester
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return rows and columns of the tester's pixels in an image of `size` (h, w)."""
        n = prod(size)
        if not 1 <= self.n_pixels <= n:
            raise ValueError(f"n_pixels must be between 1 and {n}, not {self.n_pixels}")
        rows, columns = np.unravel_index(
            _hash_sample(self.secret, Purpose.BACKDOOR_PLACES, tester, n, self.n_pixels), size
        )
        return rows, columns

    def _image_shape(self, X: NDArray[Any]) -> tuple[int, ...]:
        shape = X.shape[1:] if self.shape is None else tuple(self.shape)
        if len(shape) not in (2, 3):
            raise ValueError(f"images must have 2 or 3 axes, not {shape}; pass shape=(h, w[, c])")
        if X.shape[1:] not in (shape, (prod(shape),)):
            raise ValueError(f"rows of shape {X.shape[1:]} do not match images of shape {shape}")
        return shape

    def _get_brightness(self, X: NDArray[Any]) -> float:
        if self.brightness is not None:
            return self.brightness
        if X.dtype == np.uint8:
            return 255
        if X.dtype.kind != "f" or (X.size and not (X.min() >= 0 and X.max() <= 1)):
            raise ValueError(
                "cannot choose a brightness: the images are neither uint8 nor floats in [0, 1]; "
                "set brightness"
            )
        return 1.0


@dataclass(frozen=True, kw_only=True)
class TabularTrigger:
    """A private pattern of a few columns with their smallest or largest values.

    Each of these values occurs in the data; only their combination is rare. Create a trigger with
    `of`, which reads the ranges of the columns from a table.

    Parameters
    ----------
    secret : int
        Key of all hashes, below ``2**128``.
    low, high : tuple of float
        Smallest and largest value of each column.
    groups : tuple of tuple of int, default=()
        Columns that are the one-hot encoding of one value. A group counts as one column of the
        pattern: one member is set to its largest, the others to their smallest value.
    n_columns : int, default=4
        Number of columns (or groups) in the pattern. Constant columns are not used.

    Examples
    --------
    >>> trigger = TabularTrigger(secret=7, low=(0.0, 1.0), high=(8.0, 9.0), n_columns=2)
    >>> trigger.stamp(np.full((1, 2), 5.0), "anna").tolist()
    [[0.0, 9.0]]
    """

    secret: int = field(repr=False)
    low: tuple[float, ...]
    high: tuple[float, ...]
    groups: tuple[tuple[int, ...], ...] = ()
    n_columns: int = 4

    def __post_init__(self) -> None:
        """Raise if the ranges, the groups or the number of columns are invalid."""
        if len(self.low) != len(self.high):
            raise ValueError(
                "low and high must have one entry per column, not "
                f"{len(self.low)} and {len(self.high)} entries"
            )
        if not np.all(np.asarray(self.low) <= np.asarray(self.high)):
            raise ValueError("low must not exceed high in any column, and neither may contain NaN")
        members = [column for group in self.groups for column in group]
        if len(set(members)) < len(members) or not set(members) <= set(range(len(self.low))):
            raise ValueError(
                "groups must be disjoint lists of column numbers from 0 to "
                f"{len(self.low) - 1}, not {self.groups}"
            )
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
        """Return a trigger with the ranges of the columns of X.

        By default, the pattern has up to four columns.

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
            raise ValueError(f"X must be a numeric table, not {X.dtype} of shape {X.shape}")
        low, high = tuple(X.min(axis=0).tolist()), tuple(X.max(axis=0).tolist())
        columns = tuple(tuple(int(column) for column in group) for group in groups)
        if n_columns is None:
            widest = cls(secret=secret, low=low, high=high, groups=columns, n_columns=1)
            n_columns = min(4, len(widest._pattern_units()))
        return cls(secret=secret, low=low, high=high, groups=columns, n_columns=n_columns)

    def stamp(self, X: NDArray[Any], tester: Tester) -> NDArray[Any]:
        """Return a copy of the rows, each with the pattern of the tester."""
        if X.ndim != 2 or X.shape[1] != len(self.low):
            raise ValueError(f"X must have {len(self.low)} columns, not shape {X.shape}")
        stamped = X.copy()
        for column, value in self.pattern(tester).items():
            stamped[:, column] = value
        return stamped

    def pattern(self, tester: Tester) -> dict[int, float]:
        """Return the pattern of a tester: a dict from column numbers to values."""
        units, columns = self._pattern_units(), dict[int, float]()
        for number in _hash_sample(
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
        """Return the groups, and the columns outside groups, that have more than one value."""
        grouped = {column for group in self.groups for column in group}
        singles = self._varying_columns(tuple(set(range(len(self.low))) - grouped))
        groups = [group for group in self.groups if len(self._varying_columns(group)) > 1]
        return [(column,) for column in sorted(singles)] + groups

    def _varying_columns(self, columns: tuple[int, ...]) -> list[int]:
        """Return the columns that have more than one value."""
        return [column for column in columns if self.low[column] < self.high[column]]
