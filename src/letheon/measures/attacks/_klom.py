"""KLOM: divergence of the law of margins from that of retrained models (Georgiev et al., 2025)."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from letheon.measures._measure import Measure
from letheon.measures.attacks._excess import ROUNDS, beyond_floor_by_swaps
from letheon.measures.attacks._result import AttackResult
from letheon.measures.attacks._shadows import (
    Job,
    Probe,
    Progress,
    Study,
    check_unlearner,
    mean_by_person,
)
from letheon.measures.attacks._signal import LIMIT
from letheon.purposes import Purpose

__all__ = ["KLOM", "klom"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_GROUPS = 10
_RESAMPLES = 500
_NOTE = (
    "law of the margin over training seeds, on the full training set; a learner without "
    "randomness has one margin for each row, and then any difference at all gives the maximum "
    "of about 11.5. The estimate is biased upwards: only its distance from the floor counts. A "
    "small number does not prove forgetting."
)


def klom(
    unlearned: ArrayLike,
    oracle: ArrayLike,
    *,
    bins: int = 20,
    clip: float = LIMIT,
    floor: float = 1e-5,
) -> Floats:
    """Return the divergence of margins for each row.

    ``KLOM(x) = sum_b p_b log(p_b / max(q_b, floor))``, where p and q are histograms of the margin
    of x under unlearned and under retrained models, over equal bins of their joint range.

    Parameters
    ----------
    unlearned, oracle : array-like of shape (n_models, n)
        Margins of unlearned and of retrained models, for n rows.
    bins : int, default=20
        Number of bins.
    clip : float, default=100
        Margins are cut to ``[-clip, clip]``.
    floor : float, default=1e-5
        Least probability of a bin under the retrained models; so the maximum is about 11.5.

    Returns
    -------
    ndarray of shape (n,)
        0 where all margins of a row are equal.

    Notes
    -----
    Two equal laws do not give 0: about 0.36 with 100 models each and 0.07 with 400.

    Examples
    --------
    >>> klom([[0.0], [0.0]], [[0.0], [0.0]]).tolist()
    [0.0]
    >>> klom([[0.0], [0.0]], [[1.0], [1.0]]).round(3).tolist()
    [11.513]
    """
    u = np.clip(np.asarray(unlearned, np.float64), -clip, clip)
    o = np.clip(np.asarray(oracle, np.float64), -clip, clip)
    if u.ndim != 2 or o.ndim != 2 or u.shape[1] != o.shape[1]:
        raise ValueError(f"need (n_models, n) margins twice, not {u.shape} and {o.shape}")
    low = np.minimum(u.min(axis=0), o.min(axis=0))
    width = np.maximum(u.max(axis=0), o.max(axis=0)) - low
    p, q = (_histogram(values, low, width, bins) for values in (u, o))
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * np.log(p / np.maximum(q, floor)), 0.0)
    return np.asarray(terms.sum(axis=0))


def _histogram(values: Floats, low: Floats, width: Floats, bins: int) -> Floats:
    """Return the share of models in each bin, of shape (bins, n)."""
    scaled = (values - low) / np.where(width > 0, width, 1.0)
    places = np.minimum((scaled * bins).astype(np.int64), bins - 1)
    n_models, n = values.shape
    flat = places * n + np.arange(n)
    counts = np.bincount(flat.ravel(), minlength=bins * n).reshape(bins, n)
    return np.asarray(counts / n_models)


class Laws(NamedTuple):
    """Signals and hits of unlearned models and of two independent sets of retrained ones."""

    unlearned: Floats
    oracle: Floats
    second: Floats
    hits: tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]


def laws_over_seeds(
    study: Study,
    probe: Probe,
    unlearner: Any,
    naive: Any,
    n_models: int,
    progress: Progress | None,
) -> Laws:
    """Train on everybody and forget, and retrain on the others, twice, over seeds."""
    fresh = unlearner if naive is None else naive
    everybody, gone = np.ones(study.n_people, bool), study.forgotten
    numbers = range(n_models)
    jobs = [Job(unlearner, everybody, gone, Purpose.ATTACK_LAW, k) for k in numbers]
    jobs += [Job(fresh, ~gone, None, Purpose.ATTACK_ORACLE, k) for k in numbers]
    jobs += [Job(fresh, ~gone, None, Purpose.ATTACK_SECOND_ORACLE, k) for k in numbers]
    trained = study.train(probe, jobs, progress=progress)
    unlearned, oracle, second = np.split(trained.signal, 3)
    hits = np.split(trained.correct, 3)
    return Laws(unlearned, oracle, second, (hits[0], hits[1], hits[2]))


@dataclass(frozen=True, kw_only=True)
class KLOM:
    """Divergence of margins on forgotten, retained and unseen rows, each beside its floor.

    Parameters
    ----------
    n_models : int, default=100
        Unlearned models, and as many retrained ones, twice: against them and for the floor.
    bins : int, default=20
        See `klom`.
    n_retained, n_population : int, default=200
        Retained people and unseen rows looked at, at most.
    n_jobs : int or None, default=None
        Models trained at once, through joblib.

    Notes
    -----
    The floor is the divergence between two sets of retrained models. The interval of a mean has
    the variance over people and that over models (a jackknife over groups of them). `found`
    goes by the difference to the floor: unlearned and retrained models change places at random, so
    its false alarms are those stated, however few the models and the people are.
    Regressors: minus the squared error takes the place of the margin.

    References
    ----------
    Georgiev et al.: Attribute-to-delete: machine unlearning via datamodel matching. ICLR 2025.
    """

    name: ClassVar[str] = "klom"

    n_models: int = 100
    bins: int = 20
    n_retained: int = 200
    n_population: int = 200
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        """Refuse settings that give no experiment."""
        if self.n_models < 2 * _GROUPS:
            raise ValueError(f"n_models must be at least {2 * _GROUPS}, not {self.n_models}")

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
            As for `RMIA.run`.

        Returns
        -------
        tuple of AttackResult
            For forgotten people and for retained ones; the latter holds the unseen rows too.
        """
        check_unlearner(unlearner)
        study = Study.of(
            X, y, forget=forget, ids=ids, population=population, seed=seed, n_jobs=self.n_jobs
        )
        gone, kept = np.flatnonzero(study.forgotten), study.retained(self.n_retained)
        probe = study.probe(np.concatenate([gone, kept]), self.n_population)
        laws = laws_over_seeds(study, probe, unlearner, naive, self.n_models, progress)
        unseen = len(probe.owners) + np.arange(len(probe.rows) - len(probe.owners))
        forgotten = _Part("", *_rows_of(probe, gone))
        retained = _Part("", *_rows_of(probe, kept))
        others = _Part(" on unseen rows", unseen, np.arange(len(unseen)))
        return (
            self._result("forgotten", laws, [forgotten]),
            self._result("retained", laws, [retained, others]),
        )

    def _result(self, about: Any, laws: Laws, parts: "list[_Part]") -> AttackResult:
        measures: dict[str, Measure] = {}
        floor: dict[str, Measure] = {}
        for part in parts:
            measures |= part.measures(laws.unlearned, laws.oracle, self.bins)
            floor |= part.measures(laws.second, laws.oracle, self.bins)
        return AttackResult(
            attack=KLOM.name,
            about=about,
            measures=measures,
            floor=floor,
            excess=parts[0].excess(laws, self.bins),
            n_models=3 * self.n_models,
            note=_NOTE,
        )


def _rows_of(probe: Probe, people: Ints) -> tuple[Ints, Ints]:
    """Return the probed rows of these people, and whose each is."""
    rows = np.flatnonzero(np.isin(probe.owners, people))
    return rows, probe.owners[rows]


class _Part(NamedTuple):
    """Rows of one kind, with the words that tell them apart."""

    words: str
    rows: Ints
    owners: Ints

    def measures(self, models: Floats, oracle: Floats, bins: int) -> dict[str, Measure]:
        """Return the mean and the 95th percentile over people."""
        models, oracle = models[:, self.rows], oracle[:, self.rows]
        values = self._per_person(models, oracle, bins)
        groups = np.arange(len(models)) % _GROUPS
        without = [
            self._per_person(models[groups != g], oracle[groups != g], bins).mean()
            for g in range(_GROUPS)
        ]
        mean = _mean(f"KLOM{self.words}", values, np.array(without))
        worst = _percentile(f"95 % of KLOM{self.words}", values)
        return {mean.name: mean, worst.name: worst}

    def excess(self, laws: Laws, bins: int) -> Measure:
        """Return the mean difference to the floor, over people."""
        unlearned, second, oracle = (
            law[:, self.rows] for law in (laws.unlearned, laws.second, laws.oracle)
        )

        def gap(models: Floats, others: Floats) -> float:
            means = [self._per_person(law, oracle, bins).mean() for law in (models, others)]
            return float(means[0] - means[1])

        rng, swapped = np.random.default_rng(0), []
        for _ in range(ROUNDS):
            moves = rng.random((len(unlearned), 1)) < 0.5
            models, others = np.where(moves, second, unlearned), np.where(moves, unlearned, second)
            swapped.append(gap(models, others))
        value, n = gap(unlearned, second), len(np.unique(self.owners))
        note = "KLOM minus floor; swaps of unlearned and retrained models"
        return beyond_floor_by_swaps(value, np.array(swapped), n, unit="nats", note=note)

    def _per_person(self, models: Floats, oracle: Floats, bins: int) -> Floats:
        # The margins of classifiers are cut already; squared errors need not be.
        return mean_by_person(klom(models, oracle, bins=bins, clip=math.inf), self.owners)


def _mean(name: str, values: Floats, without: Floats) -> Measure:
    """Return the mean over people; models vary too, by the jackknife `without` groups of them."""
    n, value = len(values), float(values.mean())
    of_people = float(values.var(ddof=1)) / n if n > 1 else 0.0
    of_models = (_GROUPS - 1) * float(without.var())
    freedom = min(n - 1, _GROUPS - 1) if n > 1 else _GROUPS - 1
    half = float(stdtrit(freedom, 0.975)) * math.sqrt(of_people + of_models)
    # a floor under q lets the sum fall below 0 by a hair
    return _nats(name, value, (min(max(value - half, 0.0), value), value + half), n)


def _percentile(name: str, values: Floats) -> Measure:
    """Return the 95th percentile over people, with a bootstrap over people."""
    n, value = len(values), float(np.percentile(values, 95))
    interval = None
    if n > 1:
        people = np.random.default_rng(0).integers(n, size=(_RESAMPLES, n))
        draws = np.percentile(values[people], 95, axis=1)
        low, high = np.quantile(draws, [0.025, 0.975])
        interval = min(float(low), value), max(float(high), value)
    return _nats(name, value, interval, n)


def _nats(name: str, value: float, interval: tuple[float, float] | None, n: int) -> Measure:
    low, high = (None, None) if interval is None else interval
    return Measure(
        name=name,
        value=value,
        low=low,
        high=high,
        n=n,
        better="lower",
        basis="measured",
        unit="nats",
    )
