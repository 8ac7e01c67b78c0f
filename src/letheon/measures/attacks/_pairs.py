"""LiRA within pairs of models with complementary halves: for each person one was in, one out.

Who of a pair was in is a coin. So where signals know nothing of it, the model that was in wins with
probability exactly 1/2, for any number of people and of models. Comparisons across pairs have no
such law: there the references of one pair hold the models of the other.

Wins of different pairs are not independent: their references overlap. What that does to a mean is
found by tossing the coins again and scoring everything anew.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.measures._inputs import confidence_level
from letheon.measures._intervals import clopper_pearson, effective_number
from letheon.measures._measure import Measure
from letheon.measures.attacks._excess import ROUNDS, beyond_floor_by_swaps
from letheon.measures.attacks._lira import ENOUGH, LEAST_DEVIATION

__all__ = ["Pairs", "pair_auc", "pair_excess"]

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

# Numbers scored in one step: bounds the memory.
_BLOCK = 2**20


class Pairs(NamedTuple):
    """Signals of the model that was in and of the one that was out, (.., pairs, people)."""

    inside: Floats
    outside: Floats

    @classmethod
    def of(cls, signals: Floats, members: Bools) -> "Pairs":
        """Return the pairs of signals of shape (.., models, people); lines 2k, 2k + 1 are one."""
        first, second, is_first = signals[..., ::2, :], signals[..., 1::2, :], members[::2]
        if not (is_first ^ members[1::2]).all():
            raise ValueError("lines 2k and 2k + 1 must be complements: each person in one of them")
        return cls(np.where(is_first, first, second), np.where(is_first, second, first))

    def wins(self) -> Floats:
        """Return 1 where the model that was in has the higher LiRA score, 1/2 at ties, else 0.

        Both models of a pair are judged by the Gaussians of all other pairs, see `cross_lira`.
        """
        laws = [_others(signals) for signals in self]
        inside, outside = (
            _log_density(signals, *laws[0]) - _log_density(signals, *laws[1]) for signals in self
        )
        return np.asarray((inside > outside) + 0.5 * (inside == outside), np.float64)


def _others(signals: Floats) -> tuple[Floats, Floats]:
    """Return mean and variance of all pairs but one, for each pair."""
    n = signals.shape[-2] - 1
    centre = signals.mean(axis=-2, keepdims=True)
    gaps = signals - centre
    mean = (gaps.sum(axis=-2, keepdims=True) - gaps) / n
    squares = (gaps**2).sum(axis=-2, keepdims=True) - gaps**2 - n * mean**2
    if n >= ENOUGH:
        variance = squares / (n - 1)
    else:
        variance = squares.mean(axis=-1, keepdims=True) / max(n - 1, 1)
    return centre + mean, np.maximum(variance, LEAST_DEVIATION**2)


def _log_density(x: Floats, mean: Floats, variance: Floats) -> Floats:
    return np.asarray(-0.5 * ((x - mean) ** 2 / variance + np.log(variance)))


def pair_auc(pairs: Pairs, *, confidence: float = 0.95, seed: int = 0) -> Measure:
    """Return ``P(s_in > s_out) + P(s_in = s_out) / 2`` within pairs, with its interval.

    Parameters
    ----------
    pairs : Pairs
        Signals of shape (pairs, people).
    confidence : float, default=0.95
        Coverage at which the interval aims: Clopper and Pearson's at an effective number of
        comparisons (Korn and Graubard, 1998). That is the lesser of two: by the variance over
        pairs and over people (Cameron, Gelbach and Miller, 2011), and by the variance over
        rounds in which the coins are tossed again.
    seed : int, default=0
        Seed of the coins.

    Returns
    -------
    Measure
        Lower is better. If all scores are equal the interval is the point 0.5.
    """
    won = pairs.wins()
    value, low, high = float(won.mean()), 0.5, 0.5
    if not (won == 0.5).all():
        number = _effective(won, value, confidence_level(confidence))
        spread = float(np.mean((_tossed(pairs, seed) - 0.5) ** 2))
        number = max(1.0, min(number, 0.25 / spread if spread > 0 else math.inf))
        low, high = clopper_pearson(value * number, number, confidence)
    return Measure(
        name="AUC",
        value=value,
        low=min(low, value),
        high=max(high, value),
        n=2 * won.size,
        better="lower",
        basis="measured",
        confidence=confidence,
    )


def _effective(won: Floats, value: float, confidence: float) -> float:
    """Return the number of independent comparisons that tell as much, people being sampled too."""
    gaps, sizes = won - value, [size for size in won.shape if size > 1]
    if not gaps.any() or not sizes:
        return float(min(sizes, default=1))
    cells = _variance(gaps.ravel(), won.size)
    over = [_variance(gaps.sum(axis=1 - axis), won.size) for axis in (0, 1) if won.shape[axis] > 1]
    variance = max(cells, sum(over) - (len(over) - 1) * cells)
    return min(effective_number(value, variance, min(sizes), confidence), float(won.size))


def _variance(sums: Floats, n: int) -> float:
    """Return the variance of the mean of n comparisons, by independent sums of them."""
    return len(sums) / (len(sums) - 1) * float(np.sum((sums / n) ** 2))


def _tossed(pairs: Pairs, seed: int) -> Floats:
    """Return the AUC of rounds in which the two models of a pair change roles at random."""
    rng, found = np.random.default_rng([seed, 1]), []
    n_pairs, n_people = pairs.inside.shape
    for size in _blocks(n_pairs * n_people):
        turned = rng.random((size, n_pairs, 1)) < 0.5
        inside, outside = (np.where(turned, b, a) for a, b in (pairs, pairs[::-1]))
        found.append(Pairs(inside, outside).wins().mean(axis=(-2, -1)))
    return np.concatenate(found)


def _blocks(n_numbers: int) -> list[int]:
    """Return how many rounds to score at once, until all are done."""
    size = max(1, min(ROUNDS, _BLOCK // n_numbers))
    return [min(size, ROUNDS - start) for start in range(0, ROUNDS, size)]


def pair_excess(signals: Floats, floor: Floats, members: Bools, *, seed: int = 0) -> Measure:
    """Return the AUC within pairs minus that of the floor; see `beyond_floor_by_swaps`.

    Parameters
    ----------
    signals, floor, members : ndarray of shape (n_models, n_people)
        Signals of unlearned and of retrained models, line by line of the same half; who is in it.
    seed : int, default=0
        Seed of the swaps.
    """
    both = np.stack([signals, floor])
    rng, found = np.random.default_rng([seed, 2]), [_gaps(both[None], members)]
    for size in _blocks(2 * signals.size):
        swapped = rng.random((size, 1, len(signals), 1)) < 0.5
        found.append(_gaps(np.where(swapped, both[::-1], both), members))
    (value, *moved), n_pairs = np.concatenate(found), len(signals) // 2
    note = "AUC minus floor, within pairs; swaps of unlearned and retrained models"
    return beyond_floor_by_swaps(float(value), np.array(moved), n_pairs, note=note)


def _gaps(both: Floats, members: Bools) -> Floats:
    """Return the difference of two AUCs, for signals of shape (rounds, 2, models, people)."""
    areas = Pairs.of(both, members).wins().mean(axis=(-2, -1))
    return np.asarray(areas[:, 0] - areas[:, 1])
