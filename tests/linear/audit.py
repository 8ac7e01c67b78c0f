"""How far apart two laws must be, judged from samples: a lower confidence bound on epsilon."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

# The event is chosen on this share of the samples, its probabilities are bounded on the rest.
_CHOOSING = 0.25
_LEVELS = np.linspace(0, 1, 60)
_MOST_BINS, _ROWS_PER_BIN, _DOUBT = 50, 12, 2.0
# Standard errors that the choice of an event allows for.
_Z = 3.0


class _Event(NamedTuple):
    """Say "a" above `high`, "b" below `low` of score number `score`; nothing in between.

    An infinite threshold leaves one of the two words out.
    """

    score: int
    low: float
    high: float


def epsilon_lower_bound(
    a: Any, b: Any, delta: float, confidence: float = 0.999, *, seed: int = 0
) -> float:
    """Return an epsilon that the laws of `a` and `b` reach or exceed, with the given confidence.

    If the laws are (epsilon, delta)-close in both directions, then for disjoint events E and F

        P_a(E) + P_b(F) <= e^epsilon (P_b(E) + P_a(F)) + 2 delta.

    Think of a row of either law with probability 1/2 each, and of the guess "a" on E and "b"
    on F. Let g be the probability that a guess is made and r the probability that a guess made is
    right. Dividing by 2g, ``r <= e^epsilon (1 - r) + delta / g``, so

        epsilon >= log((r - delta / g) / (1 - r)),

    which increases with r and g. With F empty this is the usual bound of one direction.

    E and F are chosen on a quarter of each sample: tails of the discriminant direction, of the
    log-ratio of two fitted Gaussians, of each column and its size, and bins of the direction and
    of each column in which one law is rarer. Of the other rows, which the
    choice has not seen, a coin takes each from `a` or from `b`. So the guesses made are a binomial
    number, and the right ones among them are binomial given that number: Clopper-Pearson bounds of
    g and r are exact. g gets a tenth of the error allowed, r the rest. Two pairs of events are
    tried there, one of tails and one of bins; they share the error allowed, four to one.

    Parameters
    ----------
    a, b : array-like of shape (n,) or (n, p)
        Independent draws. With fewer than about thirty the bound is 0 or close to it.
    delta : float
        The delta of the claim.
    confidence : float
        The bound is above the true epsilon with probability at most ``1 - confidence``.
    seed : int
        Of the coins.
    """
    a, b = _as_rows(a), _as_rows(b)
    n = min(len(a), len(b))
    if n < 8 or a.shape[1] != b.shape[1]:
        raise ValueError(f"need 8 rows or more of equal width, not {a.shape} and {b.shape}")
    n_choosing = int(_CHOOSING * n)
    n_a, n_b = _toss(n - n_choosing, seed)
    bounds = []
    for kind, share in ((_RowScores, 0.8), (_Shapes, 0.2)):
        scores = kind(a[:n_choosing], b[:n_choosing])
        event = _choose(scores(a[:n_choosing]), scores(b[:n_choosing]), delta)
        tested_a, tested_b = scores(a[n_choosing:][:n_a]), scores(b[n_choosing:][:n_b])
        right, wrong = _guesses(event, tested_a, tested_b)
        bounds.append(_bound(right, wrong, n_a + n_b, delta, share * (1 - confidence)))
    return max(bounds)


def _as_rows(sample: Any) -> Floats:
    rows = np.asarray(sample, dtype=np.float64)
    return rows[:, None] if rows.ndim == 1 else rows


class _RowScores:
    """Numbers that tend to be larger for rows of `a`: one column for each way of telling."""

    def __init__(self, a: Floats, b: Floats) -> None:
        both = np.vstack([a, b])
        self.centre = np.median(both, axis=0)
        spread = both.std(axis=0)
        self.spread = np.where(spread > 0, spread, 1.0)
        a, b = self._scaled(a), self._scaled(b)
        self.means = a.mean(axis=0), b.mean(axis=0)
        # A little of the identity: laws without any spread must not stop the audit.
        small = 1e-9 * np.eye(a.shape[1])
        covariances = [np.atleast_2d(np.cov(rows.T)) + small for rows in (a, b)]
        self.precisions = [np.linalg.inv(covariance) for covariance in covariances]
        pooled = (covariances[0] + covariances[1]) / 2
        self.direction = np.linalg.solve(pooled, self.means[0] - self.means[1])

    def _scaled(self, rows: Floats) -> Floats:
        return (rows - self.centre) / self.spread

    def __call__(self, rows: Floats) -> Floats:
        rows = self._scaled(rows)
        distances = []
        for mean, precision in zip(self.means, self.precisions, strict=True):
            away = rows - mean
            distances.append(np.einsum("ij,jk,ik->i", away, precision, away))
        ratio = distances[1] - distances[0]
        return np.column_stack([rows @ self.direction, ratio, rows, -rows, abs(rows), -abs(rows)])


class _Shapes:
    """Numbers that are larger where `a` has more rows than `b`, one column for each one of theirs.

    The first column is along the discriminant direction.
    """

    def __init__(self, a: Floats, b: Floats) -> None:
        self.scores = _RowScores(a, b)
        self.shapes = [
            _HistogramRatio(x, y) for x, y in zip(self._views(a), self._views(b), strict=True)
        ]

    def _views(self, rows: Floats) -> list[Floats]:
        return [self.scores(rows)[:, 0], *rows.T]

    def __call__(self, rows: Floats) -> Floats:
        views = self._views(rows)
        return np.column_stack([f(x) for f, x in zip(self.shapes, views, strict=True)])


class _HistogramRatio:
    """How much likelier a number is under `a`, from two histograms: it sees a hole in a law."""

    def __init__(self, a: Floats, b: Floats) -> None:
        n_bins = min(_MOST_BINS, max(len(a) // _ROWS_PER_BIN, 2))
        self.edges = np.quantile(np.concatenate([a, b]), np.linspace(0, 1, n_bins + 1)[1:-1])
        counts = [np.bincount(self._bins(x), minlength=n_bins) + _DOUBT for x in (a, b)]
        self.ratio = np.log(counts[0] / counts[1])

    def _bins(self, x: Floats) -> Counts:
        return np.searchsorted(self.edges, x)

    def __call__(self, x: Floats) -> Floats:
        ratio: Floats = self.ratio[self._bins(x)]
        return ratio


def _choose(a: Floats, b: Floats, delta: float) -> _Event:
    """Return the event that promises the largest bound on further rows."""
    best, event = -math.inf, _Event(0, -math.inf, math.inf)
    for score in range(a.shape[1]):
        cuts = np.quantile(np.concatenate([a[:, score], b[:, score]]), _LEVELS)
        # The infinite cuts stand for the empty events.
        lows, highs = np.append(cuts, -math.inf), np.append(cuts, math.inf)
        a_sorted, b_sorted = np.sort(a[:, score]), np.sort(b[:, score])
        right = _above(a_sorted, highs) + np.searchsorted(b_sorted, lows)[:, None]
        wrong = _above(b_sorted, highs) + np.searchsorted(a_sorted, lows)[:, None]
        promised = _promised(right, wrong, len(a) + len(b), delta)
        promised[lows[:, None] > highs] = -math.inf
        low, high = np.unravel_index(int(np.argmax(promised)), promised.shape)
        if promised[low, high] > best:
            best = promised[low, high]
            event = _Event(score, float(lows[low]), float(highs[high]))
    return event


def _above(values: Floats, cuts: Floats) -> Counts:
    return len(values) - np.searchsorted(values, cuts, "right")


def _promised(right: Counts, wrong: Counts, n: int, delta: float) -> Floats:
    """Return roughly the bound that as many new rows would give, by Wilson's formula.

    It only guides the choice. There will be more rows than that, but to count on them would
    prefer far tails that look good by chance. Half a guess more is wrong: no ratio is infinite.
    """
    guesses = np.asarray(right + wrong + 1, np.float64)
    share = (right + 0.5) / guesses
    half = np.sqrt(share * (1 - share) / guesses + (_Z / guesses) ** 2 / 4)
    least = (share + _Z**2 / (2 * guesses) - _Z * half) / (1 + _Z**2 / guesses)
    promised: Floats = np.log(np.maximum(least - delta * n / guesses, 1e-300) / (1 - least))
    return promised


def _toss(n: int, seed: int) -> tuple[int, int]:
    """Return how many rows a fair coin takes from each law, at most `n` from either."""
    n_tosses = 2 * n - math.ceil(4 * math.sqrt(2 * n))
    n_a = int(np.random.default_rng(seed).binomial(max(n_tosses, 0), 0.5))
    n_b = max(n_tosses, 0) - n_a
    # Four standard deviations: it hardly ever happens, and no rows give no bound.
    return (n_a, n_b) if max(n_a, n_b) <= n else (0, 0)


def _guesses(event: _Event, a: Floats, b: Floats) -> tuple[int, int]:
    """Return the numbers of right and of wrong guesses."""
    a, b = a[:, event.score], b[:, event.score]
    right = int(np.sum(a > event.high)) + int(np.sum(b < event.low))
    wrong = int(np.sum(b > event.high)) + int(np.sum(a < event.low))
    return right, wrong


def _bound(right: int, wrong: int, n: int, delta: float, error: float) -> float:
    least_made = _lower(right + wrong, n, 0.1 * error)
    least_right = _lower(right, right + wrong, 0.9 * error)
    if least_made == 0 or least_right <= delta / least_made:
        return 0.0
    return max(math.log((least_right - delta / least_made) / (1 - least_right)), 0.0)


def _lower(successes: int, n: int, tail: float) -> float:
    """Return the Clopper-Pearson lower bound, one-sided at `tail`."""
    return float(betaincinv(successes, n - successes + 1, tail)) if successes else 0.0
