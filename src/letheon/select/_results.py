"""What is held against a tolerance: checks, costs, and what an evaluation said of a setting."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from letheon.evaluation import ORDINARY, SAME, Evaluation
from letheon.measures import Measure

Verdict = Literal["within", "undecided", "beyond"]
# What effectiveness is here: signed, because nobody minds a model that is better.
LOST = "score lost"
_CONSISTENCIES = ("output consistency", "prediction gap")


@dataclass(frozen=True, kw_only=True)
class Check:
    """One measure against its tolerance.

    Attributes
    ----------
    measure : Measure
        What was found.
    baseline : str
        Against which model.
    limit : float
        The worst value that is tolerated.
    floor : Measure or None
        The same of one retrain against another, where it was measured: what randomness alone gives.
    """

    measure: Measure
    baseline: str
    limit: float
    floor: Measure | None = None

    @property
    def verdict(self) -> Verdict:
        """*within*: the bad end of the interval is. *beyond*: not even the good end is.

        Without an interval nothing is known about the error: *undecided*.
        """
        if self.excess <= 0:
            return "within"
        return "undecided" if self._distance_beyond(good_end(self.measure)) <= 0 else "beyond"

    @property
    def excess(self) -> float:
        """How far the bad end of the interval is beyond the limit; negative if it is within."""
        return self._distance_beyond(bad_end(self.measure))

    def _distance_beyond(self, value: float) -> float:
        return value - self.limit if self.measure.better == "lower" else self.limit - value

    def __str__(self) -> str:
        """Say which measure, which tolerance, and by how much it failed.

        The number in brackets is the end of the interval that decides.
        """
        measure, is_beyond = self.measure, self.verdict == "beyond"
        unit = measure.unit and f" {measure.unit}"
        limit = "at most" if measure.better == "lower" else "at least"
        end = good_end(measure) if is_beyond else bad_end(measure)
        decides = not math.isinf(end) and end != measure.value
        at = f" (at {'best' if is_beyond else 'worst'} {end:.3g})" if decides else ""
        text = f"{measure.name} {measure.value:.3g}{unit}{at} where {limit} {self.limit:g}{unit}"
        text += " is tolerated"
        if self.verdict == "within":
            return text
        if is_beyond:
            text += f": beyond by {abs(end - self.limit):.3g} at least"
        elif math.isinf(self.excess):
            text += ": undecided, nothing is known about its error"
        else:
            text += f": undecided, it may be {self.excess:.3g} beyond"
        if self.floor is not None:
            text += f" (one retrain against another: {self.floor.value:.3g}{unit})"
        return text


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """The worst results that are acceptable (survey, 6.3); None: whatever comes.

    A measure passes when the bad end of its interval is within the tolerance. Where the interval
    straddles the tolerance, or where there is none, it is undecided: more seeds, more test rows, or
    for certifiability more requests, would tell.

    Parameters
    ----------
    effectiveness : float or None, default=0.02
        Most that the metric on test rows may be below that of the *ordinary model*. The survey's
        ``|M_U - M_*|`` with its sign: a model that is better than the ordinary one passes.
    certifiability : float or None, default=5.0
        Largest difference (SAPE, per cent) to a retrain of the *same algorithm* on the rows that
        left. 0 by proof for exact methods.
    consistency : float or None, default=None
        Least per cent of test rows on which a retrain of the same algorithm answers the same; in
        regression, largest root mean square of the differences.
    """

    effectiveness: float | None = 0.02
    certifiability: float | None = 5.0
    consistency: float | None = None

    def __post_init__(self) -> None:
        """Refuse what nobody could meet or miss."""
        for name, value in vars(self).items():
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name}={value!r} must be a number, 0 or more, or None")

    def check(self, evaluation: Evaluation) -> tuple[Check, ...]:
        """Return one check for each tolerance that is set."""
        same, ordinary = evaluation.measures[SAME], evaluation.measures[ORDINARY]
        closeness = next(name for name in _CONSISTENCIES if name in same)
        wanted = [
            (ordinary[LOST], ORDINARY, self.effectiveness),
            (same["certifiability"], SAME, self.certifiability),
            (same[closeness], SAME, self.consistency),
        ]
        return tuple(
            Check(
                measure=measure,
                baseline=baseline,
                limit=limit,
                floor=evaluation.floor.get(measure.name) if baseline == SAME else None,
            )
            for measure, baseline, limit in wanted
            if limit is not None
        )

    def by_measure(self) -> dict[str, float]:
        """Return the tolerances that are set, by the name of the measure that they limit."""
        name_candidates = {LOST: self.effectiveness, "certifiability": self.certifiability}
        return {name: limit for name, limit in name_candidates.items() if limit is not None}


def bad_end(measure: Measure) -> float:
    """Return the worse end of the interval; infinitely bad where nothing is known of the error."""
    return _interval_ends(measure)[measure.better == "lower"]


def good_end(measure: Measure) -> float:
    """Return the better end of the interval; infinitely good where the error is not known."""
    return _interval_ends(measure)[measure.better != "lower"]


def _interval_ends(measure: Measure) -> tuple[float, float]:
    low, high = measure.low, measure.high
    return -math.inf if low is None else low, math.inf if high is None else high


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds for a first training and for all requests that are expected.

    ``fit + k forget`` against ``(k + 1) retrain``: both sides train a first model. k counts calls:
    people who may wait are served together on both sides.

    Attributes
    ----------
    calls : int
        Calls of `forget`, and retrains instead of them.
    fit, forget, retrain : float
        Seconds of the first fit, of one call, and of one training of the ordinary model.
    """

    calls: int
    fit: float
    forget: float
    retrain: float

    @property
    def method(self) -> float:
        """Seconds with the method."""
        return self.fit + self.calls * self.forget

    @property
    def plain(self) -> float:
        """Seconds by plain retraining of the ordinary model."""
        return (self.calls + 1) * self.retrain

    @property
    def retraining_is_cheaper(self) -> bool:
        """Whether plain retraining takes less time for so many calls."""
        return self.plain < self.method

    @property
    def pays_from(self) -> float:
        """Least number of calls for which the method is no dearer; infinite if there is none."""
        if self.fit <= self.retrain:
            return 0
        if self.forget >= self.retrain:
            return math.inf
        return math.ceil((self.fit - self.retrain) / (self.retrain - self.forget))

    @property
    def pays_to(self) -> float:
        """Largest number of calls for which the method is no dearer; infinite if all from there.

        Finite for a method that trains quickly but forgets slowly; 0 also if it never pays.
        """
        if self.forget <= self.retrain:
            return math.inf if math.isfinite(self.pays_from) else 0
        return max(math.floor((self.retrain - self.fit) / (self.forget - self.retrain)), 0)


def name_setting(candidate: str, settings: dict[str, Any]) -> str:
    """Return candidate and settings in words."""
    words = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"{candidate} with {words}" if words else candidate


@dataclass(frozen=True, kw_only=True)
class CandidateResult:
    """What an evaluation said about a candidate with some settings.

    Attributes
    ----------
    candidate : str
        Name of the candidate.
    settings : dict
        The values that were tried.
    estimator : forgetting estimator
        Unfitted, with these settings.
    evaluation : Evaluation
        Everything that was measured.
    checks : tuple of Check
        One for each tolerance.
    lacks : str
        What its guarantee lacks of what was asked for, in words; empty if nothing.
    cost : Cost
        Of the requests that are expected.
    """

    candidate: str
    settings: dict[str, Any]
    estimator: Any = field(repr=False)
    evaluation: Evaluation = field(repr=False)
    checks: tuple[Check, ...]
    lacks: str
    cost: Cost

    @property
    def name(self) -> str:
        """Candidate and settings in words."""
        return name_setting(self.candidate, self.settings)

    @property
    def verdict(self) -> Verdict:
        """The worst of its checks; *beyond* if its guarantee is not what was asked for."""
        verdicts = {check.verdict for check in self.checks}
        if self.lacks or "beyond" in verdicts:
            return "beyond"
        return "undecided" if "undecided" in verdicts else "within"

    @property
    def efficiency(self) -> Measure:
        """Speed-up against retraining the ordinary model, the same yardstick for everybody."""
        return self.evaluation.measures[ORDINARY]["efficiency"]

    @property
    def speed(self) -> float:
        """The lower end of the speed-up, by which settings are ranked; 0 if nothing is sure."""
        return max(bad_end(self.efficiency), 0.0)

    @property
    def points(self) -> dict[str, Measure]:
        """Speed-up and score lost against the ordinary model, certifiability against a retrain."""
        axes = {"efficiency": ORDINARY, LOST: ORDINARY, "certifiability": SAME}
        measures = self.evaluation.measures
        return {
            name: measures[baseline][name]
            for name, baseline in axes.items()
            if name in measures[baseline]
        }

    @property
    def failures(self) -> str:
        """Why it is not within the tolerances, in words; empty if it is."""
        failed = [str(check) for check in self.checks if check.verdict != "within"]
        return "; ".join([*([self.lacks] if self.lacks else []), *failed])

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the estimator as plain values."""
        return {
            "candidate": self.candidate,
            "settings": dict(self.settings),
            "verdict": self.verdict,
            "lacks": self.lacks,
            "checks": [
                {
                    "measure": check.measure.to_dict(),
                    "baseline": check.baseline,
                    "limit": check.limit,
                    "verdict": check.verdict,
                    "excess": check.excess,
                }
                for check in self.checks
            ],
            "cost": {
                "calls": self.cost.calls,
                "seconds": self.cost.method,
                "seconds of plain retraining": self.cost.plain,
            },
            "evaluation": self.evaluation.to_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How the value of one efficiency parameter was found.

    Attributes
    ----------
    parameter : str
        Its name.
    values, scores : tuple
        Values that were tried, from slow to fast, and their cross-validated scores.
    goal : float
        Least score that was tolerated.
    chosen : value
        The fastest value before the score fell below the goal; the slowest if even that did.
    """

    parameter: str
    values: tuple[Any, ...]
    scores: tuple[float, ...]
    goal: float
    chosen: Any

    def __str__(self) -> str:
        """Say what was tried and where it stopped."""
        tried = ", ".join(
            f"{value}: {score:.4g}" for value, score in zip(self.values, self.scores, strict=True)
        )
        return f"{self.parameter}={self.chosen} (tried {tried}; needed {self.goal:.4g})"


def tune_efficiency(
    score: Callable[[Any], float], parameter: str, values: Sequence[Any], goal: float
) -> Tuning:
    """Raise an efficiency parameter until the cross-validated score falls below a goal.

    This is possible for exact methods: the parameter belongs to training as much as to removal, so
    that cross-validation sees its whole price, and consistency and certifiability are given.

    Parameters
    ----------
    score : callable
        ``score(value)``, the cross-validated score with this value; higher is better.
    parameter : str
        Name of the parameter.
    values : sequence
        From slow to fast.
    goal : float
        Least score that is tolerated.

    Returns
    -------
    Tuning

    Examples
    --------
    >>> tune_efficiency({1: 0.95, 2: 0.94, 4: 0.90, 8: 0.94}.get, "n_shards", (1, 2, 4, 8), 0.93)
    Tuning(parameter='n_shards', values=(1, 2, 4), scores=(0.95, 0.94, 0.9), goal=0.93, chosen=2)
    """
    scores: list[float] = []
    for value in values:
        scores.append(score(value))
        if scores[-1] < goal:
            break
    passed = len(scores) - (scores[-1] < goal)
    return Tuning(
        parameter=parameter,
        values=tuple(values[: len(scores)]),
        scores=tuple(scores),
        goal=goal,
        chosen=values[max(passed - 1, 0)],
    )
