"""Attacks on the distribution of margins over seeds: KLOM and forgetting quality."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from letheon.measures._intervals import Bools, Floats, Ints
from letheon.measures._measure import Better, Measure, MeasureOptions, make_measure
from letheon.measures.attacks._result import (
    BEYOND,
    ROUNDS,
    About,
    AttackResult,
    beyond_floor_by_swaps,
)
from letheon.measures.attacks._shadows import (
    LIMIT,
    Attack,
    AttackInputs,
    Probe,
    ShadowJob,
    Study,
    mean_by_person,
)
from letheon.purposes import Purpose

_GROUPS = 10
_RESAMPLES = 500
_KLOM_NOTE = (
    "Distribution of the margin over training seeds, on the full training set. A deterministic "
    "learner has one margin for each row; any difference then gives the maximum of about 11.5. The "
    "estimate is biased upwards: only its difference from the floor is meaningful. A low value "
    "does not prove forgetting."
)


def klom(
    unlearned: ArrayLike,
    oracle: ArrayLike,
    *,
    bins: int = 20,
    clip: float = LIMIT,
    floor: float = 1e-5,
) -> Floats:
    """Return the KL divergence of margins (KLOM) of each row.

    ``KLOM(x) = sum_b p_b log(p_b / max(q_b, floor))``, where p and q are histograms of the margin
    of x under unlearned and under retrained models, over equal bins of their joint range.

    Parameters
    ----------
    unlearned, oracle : array-like of shape (n_models, n)
        Margins of unlearned and of retrained models, for n rows.
    bins : int, default=20
        Number of bins.
    clip : float, default=100
        Margins are clipped to ``[-clip, clip]``.
    floor : float, default=1e-5
        Smallest probability of a bin under the retrained models. It limits KLOM to
        ``-log(floor)``, about 11.5 by default.

    Returns
    -------
    ndarray of shape (n,)
        KLOM of each row, in nats; 0 if all margins of the row are equal.

    Raises
    ------
    ValueError
        The shapes do not match.

    Notes
    -----
    Equal distributions do not give 0: about 0.36 with 100 models each and 0.07 with 400.

    Examples
    --------
    >>> klom([[0.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]).round(3).tolist()
    [0.0, 11.513]
    """
    u = np.clip(np.asarray(unlearned, np.float64), -clip, clip)
    o = np.clip(np.asarray(oracle, np.float64), -clip, clip)
    if u.ndim != 2 or o.ndim != 2 or u.shape[1] != o.shape[1]:
        raise ValueError(
            "unlearned and oracle must have shape (n_models, n) with equal n, not "
            f"{u.shape} and {o.shape}"
        )
    low = np.minimum(u.min(axis=0), o.min(axis=0))
    width = np.maximum(u.max(axis=0), o.max(axis=0)) - low
    p, q = (_margin_histogram(values, low, width, bins) for values in (u, o))
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * np.log(p / np.maximum(q, floor)), 0.0)
    return np.asarray(terms.sum(axis=0))


def _margin_histogram(values: Floats, low: Floats, width: Floats, bins: int) -> Floats:
    """Return the share of models in each bin for each of n rows, shape (bins, n).

    The bins of a row divide the range from `low` to `low` + `width` into equal parts.
    """
    scaled = (values - low) / np.where(width > 0, width, 1.0)
    places = np.minimum((scaled * bins).astype(np.int64), bins - 1)
    n_models, n = values.shape
    bins_of_rows = places * n + np.arange(n)
    counts = np.bincount(bins_of_rows.ravel(), minlength=bins * n).reshape(bins, n)
    return np.asarray(counts / n_models)


class MarginSamples(NamedTuple):
    """Signals and correct predictions of unlearned models and of two sets of retrained models.

    `oracle` is the set to compare with and `second` the set for the floor. `hits` has three arrays,
    in the order unlearned, oracle, second. `probe` contains the queried rows, and `people` the
    forgotten and the retained people.
    """

    unlearned: Floats
    oracle: Floats
    second: Floats
    hits: list[Bools]
    probe: Probe
    people: dict[str, Ints]


@dataclass(frozen=True, kw_only=True)
class _DistributionAttack(Attack):
    """Base class of attacks that compare distributions over seeds."""

    n_models: int = 100
    n_retained: int = 200
    n_population: int = 200
    n_jobs: int | None = None

    least_models: ClassVar[int]

    def __post_init__(self) -> None:
        """Raise if a setting is invalid."""
        if self.n_models < self.least_models:
            raise ValueError(f"n_models must be at least {self.least_models}, not {self.n_models}")

    def _sample_margins(self, inputs: AttackInputs) -> MarginSamples:
        """Return the signals of unlearned models and of two sets of retrained models.

        All models have different seeds.
        """
        study = Study.from_inputs(inputs, n_jobs=self.n_jobs)
        people = study.sample_people(self.n_retained)
        probe = study.make_probe(np.concatenate(list(people.values())), self.n_population)
        all_people, others = np.ones_like(study.forgotten), ~study.forgotten
        jobs = [
            ShadowJob(inputs.unlearner, all_people, study.forgotten, Purpose.ATTACK_LAW, k)
            for k in range(self.n_models)
        ]
        for purpose in (Purpose.ATTACK_ORACLE, Purpose.ATTACK_SECOND_ORACLE):
            jobs += [
                ShadowJob(inputs.naive, others, None, purpose, k) for k in range(self.n_models)
            ]
        trained = study.train_models(probe, jobs, inputs.progress)
        unlearned, oracle, second = np.split(trained.signal, 3)
        return MarginSamples(unlearned, oracle, second, np.split(trained.correct, 3), probe, people)


def _mean_over_people(
    name: str,
    values: Floats,
    of_models: float,
    n_groups: int,
    within: tuple[float, float] = (0.0, math.inf),
    **options: Unpack[MeasureOptions],
) -> Measure:
    """Return the mean over people with Student's interval at 0.95, clipped to `within`.

    `of_models` is the variance of the mean over models, estimated from `n_groups` groups.
    """
    n, value = len(values), float(values.mean())
    of_people = float(values.var(ddof=1)) / n if n > 1 else 0.0
    freedom = min(n - 1, n_groups - 1) if n > 1 else n_groups - 1
    half = float(stdtrit(freedom, 0.975)) * math.sqrt(of_people + of_models)
    interval = max(value - half, within[0]), min(value + half, within[1])
    return make_measure(name, value, interval, n, **options)


@dataclass(frozen=True, kw_only=True)
class KLOM(_DistributionAttack):
    """KL divergence of margins on forgotten, retained and unseen rows, each with its floor.

    Parameters
    ----------
    n_models : int, default=100
        Number of unlearned models, and of each of two sets of retrained models: one to compare
        with, one for the floor.
    bins : int, default=20
        See `klom`.
    n_retained, n_population : int, default=200
        Largest numbers of retained people and of unseen rows.
    n_jobs : int or None, default=None
        Number of models trained in parallel, with joblib.

    Notes
    -----
    The floor is the divergence between two sets of retrained models. The interval of a mean
    includes the variance over people and over models (a jackknife over groups of models). `found`
    depends on the difference from the floor: a permutation test swaps unlearned and retrained
    models, so its false alarm rate is as stated for any number of models and people. For
    regressors, the signal is minus the squared error instead of the margin.

    References
    ----------
    Georgiev et al.: Attribute-to-delete: machine unlearning via datamodel matching. ICLR 2025.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from letheon import NaiveUnlearner
    >>> X, y = np.arange(80.0).reshape(40, 2), np.arange(40) % 2
    >>> attack = KLOM(n_models=20, n_retained=8)
    >>> forgotten, retained = attack.run(NaiveUnlearner(GaussianNB()), X, y, forget=range(5))
    >>> forgotten.measures["KLOM"].value, forgotten.found
    (0.0, False)
    """

    name: ClassVar[str] = "klom"

    least_models: ClassVar[int] = 2 * _GROUPS

    bins: int = 20

    def _run_attack(self, inputs: AttackInputs) -> tuple[AttackResult, ...]:
        """Return two results: for forgotten people, and for retained people with unseen rows."""
        samples = self._sample_margins(inputs)
        n_seen, n_rows = len(samples.probe.owners), len(samples.probe.rows)
        unseen = np.arange(n_seen, n_rows)
        forgotten, retained = (
            _RowGroup("", *samples.probe.rows_of(people)) for people in samples.people.values()
        )
        others = _RowGroup(" on unseen rows", unseen, unseen - n_seen)
        return (
            self._make_result("forgotten", samples, forgotten),
            self._make_result("retained", samples, retained, others),
        )

    def _make_result(
        self, about: About, samples: MarginSamples, *parts: "_RowGroup"
    ) -> AttackResult:
        measures, floor = (
            {
                name: measure
                for part in parts
                for name, measure in part.make_measures(models, samples.oracle, self.bins).items()
            }
            for models in (samples.unlearned, samples.second)
        )
        return AttackResult(
            attack=self.name,
            about=about,
            measures=measures,
            floor=floor,
            excess=parts[0].measure_excess(samples, self.bins),
            n_models=3 * self.n_models,
            note=_KLOM_NOTE,
        )


class _RowGroup(NamedTuple):
    """A group of rows, with the suffix for the names of its measures."""

    words: str
    rows: Ints
    owners: Ints

    def make_measures(self, models: Floats, oracle: Floats, bins: int) -> dict[str, Measure]:
        """Return the mean and the 95th percentile of KLOM over people, by name."""
        models, oracle = models[:, self.rows], oracle[:, self.rows]
        values = self._per_person(models, oracle, bins)
        groups, name = np.arange(len(models)) % _GROUPS, f"KLOM{self.words}"
        without = [
            self._per_person(models[groups != g], oracle[groups != g], bins).mean()
            for g in range(_GROUPS)
        ]
        of_models = (_GROUPS - 1) * float(np.var(without))
        options: MeasureOptions = {"better": "lower", "unit": "nats"}
        # Clipping q at the floor can make the sum slightly negative.
        mean = _mean_over_people(name, values, of_models, _GROUPS, **options)
        n, interval = len(values), None
        if n > 1:
            people = np.random.default_rng(0).integers(n, size=(_RESAMPLES, n))
            draws = np.percentile(values[people], 95, axis=1)
            interval = tuple(np.quantile(draws, [0.025, 0.975]).tolist())
        percentile = float(np.percentile(values, 95))
        worst = make_measure(f"95 % of {name}", percentile, interval, n, **options)
        return {mean.name: mean, worst.name: worst}

    def measure_excess(self, samples: MarginSamples, bins: int) -> Measure:
        """Return the mean KLOM over people minus its floor, with a permutation test."""
        unlearned, oracle, second = (sample[:, self.rows] for sample in samples[:3])

        def mean_gap(models: Floats, others: Floats) -> float:
            means = [self._per_person(sample, oracle, bins).mean() for sample in (models, others)]
            return float(means[0] - means[1])

        rng, swapped = np.random.default_rng(0), []
        for _ in range(ROUNDS):
            moves = rng.random((len(unlearned), 1)) < 0.5
            models, others = np.where(moves, second, unlearned), np.where(moves, unlearned, second)
            swapped.append(mean_gap(models, others))
        value, n = mean_gap(unlearned, second), len(np.unique(self.owners))
        note = "KLOM minus floor; swaps of unlearned and retrained models"
        return beyond_floor_by_swaps(value, np.array(swapped), n, unit="nats", note=note)

    def _per_person(self, models: Floats, oracle: Floats, bins: int) -> Floats:
        # The margins of classifiers are already clipped; squared errors need no clipping.
        return mean_by_person(klom(models, oracle, bins=bins, clip=math.inf), self.owners)


_DELTA = 1e-5
_CAP = 50.0
_BIN = 0.5
# The rules use intervals about as wide as the range of the narrower distribution, plus or minus.
_BUFFER = 2.0
_LEAST_RANGE_RATIO = 0.01
# Number of disjoint parts of the models, for the interval of the score.
_PARTS = 4
# Points are multiples of 1/4 and smaller: those of fewer people are often equal by chance.
_LEAST_PEOPLE = 5
_QUALITY_NOTE = (
    "Compare the score with its floor: equal distributions score about 0.18, not 1 (0.36 with "
    "thresholds only, without intervals). A deterministic learner has one margin for each row: "
    "equal margins score 1, others 0. A high score does not prove forgetting."
)
_FEW = f"Fewer than {_LEAST_PEOPLE} people are too few to compare the score with its floor."


def forgetting_epsilon(
    unlearned: ArrayLike, retrained: ArrayLike, *, double: bool = True
) -> Floats:
    """Return for each example how well its two distributions of margins can be distinguished.

    ``eps = max over rules of max(log((1 - d - FPR) / FNR), log((1 - d - FNR) / FPR))``, with
    d = 1e-5, clipped to [0, 50]. There are two kinds of rules. A threshold assigns margins above it
    to the distribution with the larger median. An interval, about as wide as the range of the
    narrower distribution, assigns margins inside to this distribution. A rule with exactly one
    rate of 0 is dropped. Epsilon is 50 for perfect separation, and if one range is below 1 % of the
    other.

    Parameters
    ----------
    unlearned, retrained : array-like of shape (n_models, n)
        Margins of unlearned and of retrained models, for n examples.
    double : bool, default=True
        Whether to use the intervals too.

    Returns
    -------
    ndarray of shape (n,)
        Epsilon of each example, or 0.

    Raises
    ------
    ValueError
        The shapes do not match.

    Examples
    --------
    >>> forgetting_epsilon([[0.0], [1.0]], [[5.0], [6.0]]).tolist()
    [50.0]
    """
    u, r = np.asarray(unlearned, np.float64), np.asarray(retrained, np.float64)
    if u.ndim != 2 or u.shape != r.shape:
        raise ValueError(
            "unlearned and retrained must have the same shape (n_models, n), not "
            f"{u.shape} and {r.shape}"
        )
    return np.array([_example_epsilon(u[:, k], r[:, k], double) for k in range(u.shape[1])])


def _example_epsilon(u: Floats, r: Floats, double: bool) -> float:
    """Return the epsilon of one example, from its margins under unlearned and retrained models."""
    ranges = sorted([float(np.ptp(u)), float(np.ptp(r))])
    if ranges[1] == 0:
        return 0.0 if u[0] == r[0] else _CAP
    if ranges[0] / ranges[1] < _LEAST_RANGE_RATIO:
        return _CAP
    best = _from_rates(*_single_rates(u, r))
    return max(best, _from_rates(*_double_rates(u, r))) if double else best


def _from_rates(fpr: Floats, fnr: Floats) -> float:
    """Return the largest epsilon of several rules, from their error rates."""
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
    """Return FPR and FNR of the rules ``margin >= t``, for every margin t."""
    positive, negative = (r, u) if np.median(r) > np.median(u) else (u, r)
    thresholds = np.unique(np.concatenate([u, r]))
    fnr = np.searchsorted(np.sort(positive), thresholds, side="left") / len(positive)
    fpr = 1 - np.searchsorted(np.sort(negative), thresholds, side="left") / len(negative)
    return fpr, fnr


def _double_rates(u: Floats, r: Floats) -> tuple[Floats, Floats]:
    """Return FPR and FNR of the rules ``left <= margin <= right`` for the narrower distribution."""
    narrow, broad = (r, u) if np.ptp(u) >= np.ptp(r) else (u, r)
    width = float(np.ptp(narrow))
    points = np.unique(np.concatenate([u, r]))
    first, last = np.triu_indices(len(points))
    before, after = np.append(-np.inf, points), np.append(points, np.inf)[1:]
    # An interval that contains the points first..last may extend into the gaps next to them.
    fits = points[last] - points[first] <= width + _BUFFER
    fits &= after[last] - before[first] > width - _BUFFER
    fits &= points[last] <= narrow.max() + _BUFFER
    fits &= after[last] > narrow.min() + width - _BUFFER
    first, last = first[fits], last[fits]

    def share_inside(values: Floats) -> Floats:
        ordered = np.sort(values)
        upto = np.searchsorted(ordered, points, side="right")[last]
        below = np.searchsorted(ordered, points, side="left")[first]
        return np.asarray((upto - below) / len(values))

    return share_inside(broad), 1 - share_inside(narrow)


def forgetting_points(epsilon: ArrayLike, n_models: int) -> Floats:
    """Return the points of each epsilon: 1 below 0.5, 1/2 below 1, 1/4 below 1.5, ...

    The points are 0 for an epsilon of at least ``ceil(log(n_models - 1))``, because `n_models`
    models cannot show a larger epsilon.

    Parameters
    ----------
    epsilon : array-like of shape (n,)
        Result of `forgetting_epsilon`.
    n_models : int
        Number of models of each kind.

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
class ForgettingQuality(_DistributionAttack):
    """Forgetting quality, the score of the NeurIPS 2023 unlearning challenge.

    The quality F is the mean of `forgetting_points` over the forgotten people. The final score is
    ``F * RA_U / RA_R * TA_U / TA_R``, where RA and TA are the accuracies on retained and on unseen
    rows, of unlearned (U) and retrained (R) models.

    Parameters
    ----------
    n_models : int, default=64
        Number of unlearned models, and of each of two sets of retrained models. The challenge
        used 512.
    n_retained, n_population : int, default=500
        Largest numbers of retained people and of unseen rows for the accuracies.
    n_jobs : int or None, default=None
        Number of models trained in parallel, with joblib.

    Notes
    -----
    `found` depends on the difference from the floor, person by person and over the same parts of
    the models. It is never True with fewer than five people: use `ULiRA` instead.

    References
    ----------
    Triantafillou et al.: Are we making progress in unlearning? Findings from the first NeurIPS
    unlearning competition. 2024.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from letheon import NaiveUnlearner
    >>> X, y = np.arange(80.0).reshape(40, 2), np.arange(40) % 2
    >>> attack = ForgettingQuality(n_models=32)
    >>> (result,) = attack.run(NaiveUnlearner(GaussianNB()), X, y, forget=range(5))
    >>> result.measures["forgetting quality"].value, result.found
    (1.0, False)
    """

    name: ClassVar[str] = "forgetting-quality"

    least_models: ClassVar[int] = 8 * _PARTS

    n_models: int = 64
    n_retained: int = 500
    n_population: int = 500

    def _run_attack(self, inputs: AttackInputs) -> tuple[AttackResult, ...]:
        """Return one result about forgotten people; regressors have no final score."""
        samples = self._sample_margins(inputs)
        rows, owners = samples.probe.rows_of(samples.people["forgotten"])
        after, floor = (
            _QualityScores.from_margins(models[:, rows], samples.oracle[:, rows], owners)
            for models in (samples.unlearned, samples.second)
        )
        caveat = f" {_FEW}" if len(samples.people["forgotten"]) < _LEAST_PEOPLE else ""
        result = AttackResult(
            attack=self.name,
            about="forgotten",
            measures=after.make_measures(_accuracy_ratio(samples, 0)),
            floor=floor.make_measures(_accuracy_ratio(samples, 2)),
            excess=_quality_excess(after, floor),
            n_models=3 * self.n_models,
            note=_QUALITY_NOTE + caveat,
        )
        return (result,)


def _accuracy_ratio(samples: MarginSamples, index: int) -> float | None:
    """Return the factor ``RA_U / RA_R * TA_U / TA_R`` of the final score.

    `index` chooses the set of models in `samples.hits`. Return None if an accuracy of the retrained
    models is 0, as in regression.
    """
    probe, kept = samples.probe, samples.people["retained"]
    shares = [
        (probe.of_people(hits, kept).mean(), probe.of_unseen(hits).mean())
        for hits in (samples.hits[index], samples.hits[1])
    ]
    (retain, test), (retain_naive, test_naive) = shares
    if retain_naive == 0 or test_naive == 0:
        return None
    return float(retain / retain_naive * test / test_naive)


class _QualityScores(NamedTuple):
    """Forgetting points and epsilon per person, and their means for disjoint subsets of models."""

    points: Floats
    epsilon: Floats
    points_of_parts: Floats
    epsilon_of_parts: Floats

    @classmethod
    def from_margins(cls, models: Floats, oracle: Floats, owners: Ints) -> "_QualityScores":
        """Return the scores from the margins of the attacked (`models`) and retrained models."""

        def over_people(chosen: slice) -> tuple[Floats, Floats]:
            epsilon = forgetting_epsilon(models[chosen], oracle[chosen])
            points = forgetting_points(epsilon, len(models[chosen]))
            return mean_by_person(points, owners), mean_by_person(epsilon, owners)

        parts = [over_people(slice(k, None, _PARTS)) for k in range(_PARTS)]
        means = [np.array([v.mean() for v in values]) for values in zip(*parts, strict=True)]
        return cls(*over_people(slice(None)), *means)

    def make_measures(self, accuracy_ratio: float | None) -> dict[str, Measure]:
        """Return F, the final score (unless `accuracy_ratio` is None) and the mean epsilon."""
        columns: dict[str, tuple[Floats, Floats, float, Better]] = {
            "forgetting quality": (self.points, self.points_of_parts, 1.0, "higher")
        }
        if accuracy_ratio is not None:
            scaled = self.points * accuracy_ratio, self.points_of_parts * accuracy_ratio
            columns["final score"] = (*scaled, math.inf, "higher")
        columns["epsilon"] = (self.epsilon, self.epsilon_of_parts, math.inf, "lower")
        measures = {}
        for name, (values, of_parts, most, better) in columns.items():
            of_models = float(of_parts.var(ddof=1)) / _PARTS
            measures[name] = _mean_over_people(
                name, values, of_models, _PARTS, (0.0, most), better=better
            )
        return measures


def _quality_excess(after: _QualityScores, floor: _QualityScores) -> Measure:
    """Return the mean points of the floor minus those of the unlearned models.

    There is no interval if there are too few people.
    """
    gaps = floor.points - after.points
    of_models = float((floor.points_of_parts - after.points_of_parts).var(ddof=1)) / _PARTS
    options: MeasureOptions = {
        "better": "lower",
        "note": "floor minus score: higher scores are better",
    }
    limits = (-math.inf, math.inf)
    excess = _mean_over_people(BEYOND, gaps, of_models, _PARTS, limits, **options)
    return excess if len(gaps) >= _LEAST_PEOPLE else replace(excess, low=None, high=None)
