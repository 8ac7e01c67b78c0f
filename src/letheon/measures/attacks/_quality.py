"""Forgetting quality of the NeurIPS 2023 unlearning challenge (Triantafillou et al., 2024)."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from letheon.measures._measure import Better, Measure
from letheon.measures.attacks._excess import beyond_floor
from letheon.measures.attacks._klom import Laws, laws_over_seeds
from letheon.measures.attacks._result import AttackResult
from letheon.measures.attacks._shadows import (
    Probe,
    Progress,
    Study,
    check_unlearner,
    mean_by_person,
)

__all__ = ["ForgettingQuality", "forgetting_epsilon", "forgetting_points"]

Floats = NDArray[np.float64]

_DELTA = 1e-5
_CAP = 50.0
_BIN = 0.5
# The reference rule looks at intervals about as wide as the narrower law, give or take this.
_BUFFER = 2.0
_LEAST_RANGE_RATIO = 0.01
# Parts of the models between which the score is compared, for the interval.
_PARTS = 4
# Points come in halves and quarters: those of fewer people are often equal by luck.
_LEAST_PEOPLE = 5
_NOTE = (
    "unreadable without its floor: two equal laws score about 0.18, not 1 (0.36 if only "
    "thresholds are tried, not intervals). A learner without randomness has one margin for each "
    "row: equal ones score 1, others 0. A good score does not prove forgetting."
)
_FEW = f"Fewer than {_LEAST_PEOPLE} people: too few to tell a score from its floor."


def forgetting_epsilon(
    unlearned: ArrayLike, retrained: ArrayLike, *, double: bool = True
) -> NDArray[np.float64]:
    """Return for each example the epsilon at which its two laws are told apart.

    ``eps = max over rules of max(log((1 - d - FPR) / FNR), log((1 - d - FNR) / FPR))``, with
    d = 1e-5, cut to [0, 50]. Rules are all thresholds on the margin (above: the law with the
    larger median), and all intervals about as wide as the range of the narrower law (inside:
    that law). A rule with exactly one rate 0 is dropped; perfect separation is 50, and so is
    one law whose range is below 1 % of the other's.

    Parameters
    ----------
    unlearned, retrained : array-like of shape (n_models, n)
        Margins of unlearned and of retrained models, for n examples.
    double : bool, default=True
        Whether to use the intervals too.

    Returns
    -------
    ndarray of shape (n,)

    Notes
    -----
    The larger of both logarithms is taken: the smaller one would miss an attack that is sure in
    one direction only. Thresholds are taken at every margin, not on a grid.

    Examples
    --------
    >>> forgetting_epsilon([[0.0], [1.0]], [[5.0], [6.0]]).tolist()
    [50.0]
    """
    u, r = np.asarray(unlearned, np.float64), np.asarray(retrained, np.float64)
    if u.ndim != 2 or u.shape != r.shape:
        raise ValueError(f"need (n_models, n) margins twice, not {u.shape} and {r.shape}")
    return np.array([_epsilon(u[:, k], r[:, k], double) for k in range(u.shape[1])])


def _epsilon(u: Floats, r: Floats, double: bool) -> float:
    """Return the epsilon of one example."""
    ranges = sorted([float(np.ptp(u)), float(np.ptp(r))])
    if ranges[1] == 0:
        return 0.0 if u[0] == r[0] else _CAP
    if ranges[0] / ranges[1] < _LEAST_RANGE_RATIO:
        return _CAP
    best = _from_rates(*_single_rates(u, r))
    return max(best, _from_rates(*_double_rates(u, r))) if double else best


def _from_rates(fpr: Floats, fnr: Floats) -> float:
    """Return the largest epsilon of rules with these error rates."""
    if ((fpr == 0) & (fnr == 0)).any():
        return _CAP
    usable = (fpr > 0) & (fnr > 0)
    fpr, fnr = fpr[usable], fnr[usable]
    best = 0.0
    for a, b in ((fpr, fnr), (fnr, fpr)):
        top = 1 - _DELTA - a
        ratios = top[top > 0] / b[top > 0]
        best = max(best, math.log(ratios.max()) if ratios.size else 0.0)
    return min(best, _CAP)


def _single_rates(u: Floats, r: Floats) -> tuple[Floats, Floats]:
    """Return the rates of ``margin >= t``, for every t."""
    positive, negative = (r, u) if np.median(r) > np.median(u) else (u, r)
    thresholds = np.unique(np.concatenate([u, r]))
    fnr = np.searchsorted(np.sort(positive), thresholds, side="left") / len(positive)
    fpr = 1 - np.searchsorted(np.sort(negative), thresholds, side="left") / len(negative)
    return fpr, fnr


def _double_rates(u: Floats, r: Floats) -> tuple[Floats, Floats]:
    """Return the rates of ``left <= margin <= right``, which speaks for the narrower law."""
    narrow, broad = (r, u) if np.ptp(u) >= np.ptp(r) else (u, r)
    width = float(np.ptp(narrow))
    points = np.unique(np.concatenate([u, r]))
    first, last = np.triu_indices(len(points))
    before, after = np.append(-np.inf, points), np.append(points, np.inf)[1:]
    # An interval that holds the points first..last may reach into the gaps beside them.
    fits = points[last] - points[first] <= width + _BUFFER
    fits &= after[last] - before[first] > width - _BUFFER
    fits &= points[last] <= narrow.max() + _BUFFER
    fits &= after[last] > narrow.min() + width - _BUFFER
    first, last = first[fits], last[fits]

    def inside(values: Floats) -> Floats:
        ordered = np.sort(values)
        upto = np.searchsorted(ordered, points, side="right")[last]
        below = np.searchsorted(ordered, points, side="left")[first]
        return np.asarray((upto - below) / len(values))

    return inside(broad), 1 - inside(narrow)


def forgetting_points(epsilon: ArrayLike, n_models: int) -> NDArray[np.float64]:
    """Return the points of each epsilon: 1 below 0.5, 1/2 below 1, 1/4 below 1.5, ...

    From ``ceil(log(n_models - 1))`` on, the largest that so many models can show, there are none.

    Examples
    --------
    >>> forgetting_points([0.2, 0.5, 1.2, 50.0], 64).tolist()
    [1.0, 0.5, 0.25, 0.0]
    """
    values = np.asarray(epsilon, np.float64)
    n_bins = int(math.ceil(math.log(n_models - 1)) / _BIN)
    bins = np.floor(values / _BIN)
    return np.where(bins < n_bins, 0.5**bins, 0.0)


@dataclass(frozen=True, kw_only=True)
class ForgettingQuality:
    """The challenge's score: how alike unlearned and retrained models treat forgotten people.

    ``F = mean of points``, and the final score is ``F * RA_U / RA_R * TA_U / TA_R`` with the
    accuracies on retained and on unseen rows.

    Parameters
    ----------
    n_models : int, default=64
        Unlearned models, and as many retrained ones, twice. The challenge took 512.
    n_retained, n_population : int, default=500
        Retained people and unseen rows for the accuracies, at most.
    n_jobs : int or None, default=None
        Models trained at once, through joblib.

    Notes
    -----
    `found` goes by the difference to the floor, person by person and over the same parts of the
    models. With fewer than five people it is never true: take `ULiRA` for them.

    References
    ----------
    Triantafillou et al.: Are we making progress in unlearning? Findings from the first NeurIPS
    unlearning competition. 2024.
    """

    name: ClassVar[str] = "forgetting-quality"

    n_models: int = 64
    n_retained: int = 500
    n_population: int = 500
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        """Refuse settings that give no experiment."""
        if self.n_models < 8 * _PARTS:
            raise ValueError(f"n_models must be at least {8 * _PARTS}, not {self.n_models}")

    def run(
        self,
        unlearner: Any,
        X: Any,
        y: Any,
        *,
        forget: Any,
        ids: Any = None,
        population: tuple[Any, Any] | None = None,
        naive: Any = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> tuple[AttackResult, ...]:
        """Compare unlearned with retrained models.

        Parameters
        ----------
        unlearner, X, y, forget, ids, population, naive, seed, progress
            As for `RMIA.run`. For regressors there is no final score.

        Returns
        -------
        tuple of AttackResult
            One, about forgotten people.
        """
        check_unlearner(unlearner)
        study = Study.of(
            X, y, forget=forget, ids=ids, population=population, seed=seed, n_jobs=self.n_jobs
        )
        gone, kept = np.flatnonzero(study.forgotten), study.retained(self.n_retained)
        probe = study.probe(np.concatenate([gone, kept]), self.n_population)
        laws = laws_over_seeds(study, probe, unlearner, naive, self.n_models, progress)
        rows = np.flatnonzero(np.isin(probe.owners, gone))
        after, floor = (
            _Scores.of(models[:, rows], laws.oracle[:, rows], probe.owners[rows])
            for models in (laws.unlearned, laws.second)
        )
        few = f" {_FEW}" if len(gone) < _LEAST_PEOPLE else ""
        result = AttackResult(
            attack=ForgettingQuality.name,
            about="forgotten",
            measures=after.measures(_accuracy_ratio(laws, probe, kept, 0)),
            floor=floor.measures(_accuracy_ratio(laws, probe, kept, 2)),
            excess=_excess(after, floor),
            n_models=3 * self.n_models,
            note=_NOTE + few,
        )
        return (result,)


def _accuracy_ratio(laws: Laws, probe: Probe, kept: NDArray[np.int64], which: int) -> float | None:
    """Return ``RA_U / RA_R * TA_U / TA_R``, or None where nothing is ever right (regression)."""
    shares = [
        (probe.of_people(hits, kept).mean(), probe.of_unseen(hits).mean())
        for hits in (laws.hits[which], laws.hits[1])
    ]
    (retain, test), (retain_naive, test_naive) = shares
    if retain_naive == 0 or test_naive == 0:
        return None
    return float(retain / retain_naive * test / test_naive)


class _Scores(NamedTuple):
    """Points and epsilon of each person, and their means by disjoint parts of the models."""

    points: Floats
    epsilon: Floats
    points_of_parts: Floats
    epsilon_of_parts: Floats

    @classmethod
    def of(cls, models: Floats, oracle: Floats, owners: NDArray[np.int64]) -> "_Scores":
        """Return the scores of models against retrained ones."""

        def over_people(chosen: slice) -> tuple[Floats, Floats]:
            epsilon = forgetting_epsilon(models[chosen], oracle[chosen])
            points = forgetting_points(epsilon, len(models[chosen]))
            return mean_by_person(points, owners), mean_by_person(epsilon, owners)

        parts = [over_people(slice(k, None, _PARTS)) for k in range(_PARTS)]
        means = [np.array([v.mean() for v in each]) for each in zip(*parts, strict=True)]
        return cls(*over_people(slice(None)), *means)

    def measures(self, accuracy_ratio: float | None) -> dict[str, Measure]:
        """Return F, the final score and the mean epsilon, over people."""
        found = [_mean("forgetting quality", self.points, self.points_of_parts, "higher")]
        if accuracy_ratio is not None:
            scaled = self.points * accuracy_ratio, self.points_of_parts * accuracy_ratio
            found.append(_mean("final score", *scaled, "higher"))
        found.append(_mean("epsilon", self.epsilon, self.epsilon_of_parts, "lower"))
        return {measure.name: measure for measure in found}


def _excess(after: _Scores, floor: _Scores) -> Measure:
    """Return by how much the score is below its floor."""
    gaps = floor.points - after.points
    n, value = len(gaps), float(gaps.mean())
    half = _half_width(gaps, floor.points_of_parts - after.points_of_parts)
    interval = (value - half, value + half) if n >= _LEAST_PEOPLE else None
    return beyond_floor(value, interval, n, note="floor minus score: higher scores are better")


def _half_width(values: Floats, of_parts: Floats) -> float:
    """Return Student's half-width of a mean over people, of which models are sampled too."""
    n = len(values)
    of_people = float(values.var(ddof=1)) / n if n > 1 else 0.0
    of_models = float(of_parts.var(ddof=1)) / _PARTS
    freedom = min(n - 1, _PARTS - 1) if n > 1 else _PARTS - 1
    return float(stdtrit(freedom, 0.975)) * math.sqrt(of_people + of_models)


def _mean(name: str, values: Floats, of_parts: Floats, better: Better) -> Measure:
    """Return the mean over people; models vary too, which disjoint parts of them show."""
    value, half = float(values.mean()), _half_width(values, of_parts)
    return Measure(
        name=name,
        value=value,
        low=max(value - half, 0.0),
        high=min(value + half, 1.0) if name == "forgetting quality" else value + half,
        n=len(values),
        better=better,
        basis="measured",
    )
