"""Limits from rehearsed streams: the scores up to which a model is within its tolerances.

A *score* can be computed without retraining and grows with removals. A *limit* turns a score into
an upper estimate of a property, ``estimate = factor x score``, like the survey's ``c SAPE`` and
``e |...|``. The factor is chosen so that in rehearsed streams the estimate exceeds the tolerance
no later than the true value does, except in a share `miss` of the streams.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from letheon.measures import from_plain, sape

# The survey's score, the change of single outputs, the number of removed rows, and two scores based
# on the errors of the model on the removed rows.
SCORES = ("metric", "movement", "share", "weight", "doubt")
# A product of powers of these scores, fitted on the rehearsals.
BLEND = "blend"
# The blend does not distinguish true values below this share of the tolerance.
_NEGLIGIBLE = 0.01
_HUGE = 1e9


class Rehearsal(NamedTuple):
    """A rehearsed stream: scores after every request, and true values after some requests."""

    kind: str
    scores: dict[str, list[float]]
    """For each score, by name, its running maximum after each request."""
    looks: list[int]
    """Requests, from 0, after which the true value was measured."""
    truths: list[float]
    """The true values after these requests."""
    chooses: bool = False
    """Whether the stream is used to fit the blend and choose the score, not for thresholds."""


@dataclass
class Tally:
    """Sums over the rows removed since the last retrain; no single row is kept."""

    rows_then: int
    n_rows: int = 0
    wrong: float = 0.0
    wrong_squared: float = 0.0

    def add(self, wrongness: NDArray[np.float64]) -> None:
        """Add removed rows; `wrongness` is the error of the model on each, from 0 to 1."""
        self.n_rows += len(wrongness)
        self.wrong += float(wrongness.sum())
        self.wrong_squared += float((wrongness**2).sum())


def compute_gap(name: str, metric: float, other: float) -> float:
    """Return the gap between two performances: SAPE for certifiability, or |metric - other|."""
    return sape(metric, other) if name == "certifiability" else abs(metric - other)


def compute_scores(
    name: str, metric: float, metric_retrained: float, movement: float, tally: Tally
) -> dict[str, float]:
    """Return the five scores of a property, by name.

    *metric* is the survey's proxy: ``SAPE(M_test(h_m), M_test(h*_ik))`` for certifiability,
    ``|M_test(h_m) - M_test(h*_ik)|`` for effectiveness. It is 0 for a model that does not change,
    and for changes that cancel each other. *movement* is the mean change of single outputs, which
    cannot cancel. The other scores depend on the removed rows. *share* is their number, as a share
    of the rows at the last retrain. *weight* is the same with each row weighted by the error w of
    the model on the row, which is the size of its gradient under logistic loss. *doubt* is
    ``sum w**2 / sum (1 - w)``, the relative loss of performance on these rows if each gradient were
    undone. If the model cannot be evaluated, all scores are infinite.
    """
    if not all(map(math.isfinite, (metric, metric_retrained, movement, tally.wrong))):
        return dict.fromkeys(SCORES, math.inf)
    known = max(tally.n_rows - tally.wrong, 1e-3)
    return {
        "metric": compute_gap(name, metric, metric_retrained),
        "movement": movement,
        "share": tally.n_rows / tally.rows_then,
        "weight": tally.wrong / tally.rows_then,
        "doubt": tally.wrong_squared / known,
    }


@dataclass(frozen=True)
class Limit:
    """An upper estimate of one property: ``factor * max(score, floor)``.

    Attributes
    ----------
    score : {"metric", "movement", "share", "weight", "doubt", "blend"}
        The score in use: the one with the longest intervals between retrains.
    factor : float
        The survey's factor c (certifiability) or e (effectiveness).
    floor : float
        Smallest positive value of the score, the effect of a single row. It also avoids 0/0 in the
        calibration of the factor.
    miss : float
        Upper bound on the share of streams, exchangeable with the rehearsed ones, in which the
        true value exceeds the tolerance before the estimate does. 1 without rehearsals.
    powers : dict of str to (float, float)
        Power and floor of each score in the blend.
    stretch : float or None
        Mean number of requests between two retrains in the rehearsals, for the kind with the
        longest intervals. None without rehearsals.

    Examples
    --------
    >>> limit = Limit(score="share", factor=2.0, floor=0.01, miss=0.1)
    >>> limit.estimate({"share": 0.05})
    0.1
    >>> limit.raise_factor(0.2, {"share": 0.05}).factor
    4.0
    """

    score: str
    factor: float
    floor: float
    miss: float
    powers: dict[str, tuple[float, float]] = field(default_factory=dict)
    stretch: float | None = None

    def estimate(self, scores: Mapping[str, float]) -> float:
        """Return the upper estimate of the property from the scores of a model."""
        return self.factor * self._get_score(scores)

    def _get_score(self, scores: Mapping[str, float]) -> float:
        if self.score == BLEND:
            return blend_scores(self.powers, scores)
        return max(scores[self.score], self.floor)

    def raise_factor(self, truth: float, scores: Mapping[str, float]) -> Self:
        """Return the limit with a factor of at least ``truth / score``.

        `truth` is the true value that a retrain measured. The factor never decreases.
        """
        ratio = truth / self._get_score(scores)
        return replace(self, factor=max(self.factor, ratio))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the limit from the result of `to_dict`, even after a conversion to JSON."""
        limit: Self = from_plain(cls, values)
        return limit


def score_at_breach(rehearsal: Rehearsal, score: str, tolerance: float) -> float:
    """Return the score at the first request at which the tolerance may have been exceeded.

    The true value is measured only after some requests. The breach may have occurred at the first
    request after the last measurement without a breach, so the score at that request is used. If
    there was no breach, return the last score.
    """
    values, first = rehearsal.scores[score], 0
    for look, truth in zip(rehearsal.looks, rehearsal.truths, strict=True):
        if truth > tolerance:
            return values[first]
        first = min(look + 1, len(values) - 1)
    return values[-1]


def blend_scores(powers: Mapping[str, tuple[float, float]], scores: Mapping[str, float]) -> float:
    """Return the blend of several scores: the product of ``(score / floor) ** power``.

    A score below its floor counts as the floor, so the blend is at least 1.
    """
    parts = ((max(scores[n], floor) / floor) ** power for n, (power, floor) in powers.items())
    return float(math.prod(parts))


def fit_powers(
    rehearsals: Sequence[Rehearsal], tolerance: float, floors: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Return power and floor of each score in the blend that fits the true values best.

    The powers are fitted by least squares of the logarithms and are not negative. So the blend
    grows with every score and, like the scores, never decreases between retrains.
    """
    least = _NEGLIGIBLE * tolerance
    lines, target = [], []
    for rehearsal in rehearsals:
        for look, truth in zip(rehearsal.looks, rehearsal.truths, strict=True):
            seen = [max(rehearsal.scores[n][look], floors[n]) / floors[n] for n in SCORES]
            lines.append([1.0, *np.log(np.minimum(seen, _HUGE))])
            target.append(math.log(min(max(truth / least, 1.0), _HUGE)))
    powers, _ = nnls(np.array(lines), np.array(target))
    return {n: (float(p), floors[n]) for n, p in zip(SCORES, powers[1:], strict=True) if p > 0}


def fit_limit(
    rehearsals: Sequence[Rehearsal], tolerance: float, *, floors: Mapping[str, float], miss: float
) -> Limit:
    """Return the limit that enforces the tolerance for every kind of rehearsed stream.

    The threshold of a kind is the k-th smallest score at the breach among its R streams. For
    another exchangeable stream, the score at the breach is below this threshold with probability at
    most ``k / (R + 1)`` (conformal prediction). k is the largest integer with
    ``k <= miss (R + 1)``, but at least 1. The limit uses the smallest threshold of all kinds, so
    the claim holds for each kind and for any mixture. Other streams than these R are used to choose
    the score and to fit the blend.
    """
    choosing = [rehearsal for rehearsal in rehearsals if rehearsal.chooses] or list(rehearsals)
    judging = [rehearsal for rehearsal in rehearsals if not rehearsal.chooses]
    powers, floors = fit_powers(choosing, tolerance, floors), {**floors, BLEND: 1.0}
    choosing, judging = ([_with_blend(r, powers) for r in part] for part in (choosing, judging))

    def rank_score(score: str) -> tuple[float, str]:
        """Return the sort key of a score: its mean number of requests between retrains."""
        threshold = _find_threshold(choosing, score, tolerance, miss)
        is_blind = threshold <= floors[score]
        return (0.0 if is_blind else _mean_interval(choosing, score, threshold)), score

    score = max((*SCORES, BLEND), key=rank_score)
    threshold = max(_find_threshold(judging, score, tolerance, miss), floors[score])
    # The smallest factor at which the threshold exceeds the tolerance, with rounding.
    factor = tolerance / threshold
    while factor * threshold <= tolerance:
        factor = math.nextafter(factor, math.inf)
    groups = _group_by_kind(judging)
    return Limit(
        score=score,
        factor=factor,
        floor=floors[score],
        miss=max(_threshold_rank(group, miss) / (len(group) + 1) for group in groups),
        powers=powers if score == BLEND else {},
        stretch=max(_mean_interval(group, score, threshold) for group in groups),
    )


def _with_blend(rehearsal: Rehearsal, powers: Mapping[str, tuple[float, float]]) -> Rehearsal:
    """Return the rehearsal with the blend as another score."""
    requests = zip(*(rehearsal.scores[name] for name in SCORES), strict=True)
    blend = [blend_scores(powers, dict(zip(SCORES, seen, strict=True))) for seen in requests]
    return rehearsal._replace(scores={**rehearsal.scores, BLEND: blend})


def _find_threshold(
    rehearsals: Sequence[Rehearsal], score: str, tolerance: float, miss: float
) -> float:
    return min(
        sorted(score_at_breach(r, score, tolerance) for r in group)[
            _threshold_rank(group, miss) - 1
        ]
        for group in _group_by_kind(rehearsals)
    )


def _threshold_rank(group: Sequence[Rehearsal], miss: float) -> int:
    """Return the rank k of the score that becomes the threshold; 1 is the smallest score."""
    # The small term makes 0.05 * 20 equal 1.
    return max(1, int(miss * (len(group) + 1) + 1e-9))


def _mean_interval(rehearsals: Iterable[Rehearsal], score: str, threshold: float) -> float:
    """Return the mean number of requests until the score reaches the threshold."""
    reached = (np.array([*r.scores[score], math.inf]) >= threshold for r in rehearsals)
    return float(np.mean([np.argmax(each) for each in reached]))


def _group_by_kind(rehearsals: Sequence[Rehearsal]) -> list[list[Rehearsal]]:
    kinds = dict.fromkeys(rehearsal.kind for rehearsal in rehearsals)
    return [[each for each in rehearsals if each.kind == kind] for kind in kinds]


@dataclass
class RetrainInterval:
    """Counts and peak scores since the last retrain."""

    tally: Tally
    people_then: int
    guaranteed: str
    retrain_seconds: float | None
    n_people: int = 0
    peaks: dict[str, dict[str, float]] = field(default_factory=dict)

    def update_peaks(self, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Raise the peak of each score of each property to its value after a request.

        The estimates use the peaks, so they never decrease between retrains.
        """
        for name, values in scores.items():
            peaks = self.peaks.setdefault(name, {})
            peaks |= {score: max(peaks.get(score, 0.0), value) for score, value in values.items()}
