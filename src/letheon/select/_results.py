"""Tolerances and their checks, costs, and the result of a candidate with its settings."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from letheon.evaluation import ORDINARY, SAME, Evaluation
from letheon.measures import Measure, TextRepr

Verdict = Literal["within", "undecided", "beyond"]
# Effectiveness with its sign, because a better model is not a problem.
LOST = "score lost"
_CONSISTENCIES = ("output consistency", "prediction gap")


@dataclass(frozen=True, kw_only=True, repr=False)
class Check(TextRepr):
    """The comparison of one measure with its tolerance.

    Attributes
    ----------
    measure : Measure
        The measured value with its interval.
    baseline : str
        What the model is compared with: the ordinary model or the same algorithm.
    limit : float
        The worst tolerated value.
    floor : Measure or None
        The same measure between two retrained models, which shows the effect of randomness alone;
        None if it is unknown.

    Examples
    --------
    >>> from letheon.measures import make_measure
    >>> measure = make_measure("output consistency", 98, (97, 99), 500)
    >>> check = Check(measure=measure, baseline="same algorithm", limit=95)
    >>> print(check)
    output consistency 98 % (at worst 97), tolerance at least 95 %
    >>> check.verdict
    'within'
    """

    measure: Measure
    baseline: str
    limit: float
    floor: Measure | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether the measure is *within* the tolerance, *beyond* it, or *undecided*.

        It is within the tolerance if the worse end of its interval is acceptable, and beyond it if
        even the better end is not. Otherwise, or if there is no interval, it is undecided.
        """
        if self.excess <= 0:
            return "within"
        return "undecided" if self._distance_beyond(good_end(self.measure)) <= 0 else "beyond"

    @property
    def excess(self) -> float:
        """How far the worse end of the interval is beyond the limit; negative if it is within."""
        return self._distance_beyond(bad_end(self.measure))

    def _distance_beyond(self, value: float) -> float:
        return value - self.limit if self.measure.better == "lower" else self.limit - value

    def __str__(self) -> str:
        """Return the measure, its tolerance and the excess in one line.

        The number in brackets is the end of the interval that decides the verdict.
        """
        measure, is_beyond = self.measure, self.verdict == "beyond"
        unit = measure.unit and f" {measure.unit}"
        limit = "at most" if measure.better == "lower" else "at least"
        end = good_end(measure) if is_beyond else bad_end(measure)
        decides = not math.isinf(end) and end != measure.value
        at = f" (at {'best' if is_beyond else 'worst'} {end:.3g})" if decides else ""
        text = f"{measure.name} {measure.value:.3g}{unit}{at}, "
        text += f"tolerance {limit} {self.limit:g}{unit}"
        if self.verdict == "within":
            return text
        if is_beyond:
            text += f": outside by at least {abs(end - self.limit):.3g}"
        elif math.isinf(self.excess):
            text += ": undecided, because its error is unknown"
        else:
            text += f": undecided, it may be outside by {self.excess:.3g}"
        if self.floor is not None:
            text += f" (one retrain against another: {self.floor.value:.3g}{unit})"
        return text


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """The worst acceptable results (survey, 6.3); None means no limit.

    A measure passes if the worse end of its interval is within the tolerance. It is undecided if
    the interval contains the tolerance, or if there is no interval: use more seeds, more test rows,
    or for certifiability more requests.

    Parameters
    ----------
    effectiveness : float or None, default=0.02
        Largest acceptable loss of the metric on test rows, compared with the *ordinary model*. It
        is the survey's ``|M_U - M_*|``, but with a sign: a model that is better than the ordinary
        model passes.
    certifiability : float or None, default=5.0
        Largest difference (SAPE, per cent) from a retrained model of the *same algorithm* on the
        forgotten rows. It is 0 by proof for exact methods.
    consistency : float or None, default=None
        Smallest percentage of test rows with the same prediction as a retrained model of the same
        algorithm; for regression, the largest root mean square difference.

    Examples
    --------
    >>> Tolerances(effectiveness=0.05, certifiability=None).by_measure()
    {'score lost': 0.05}
    """

    effectiveness: float | None = 0.02
    certifiability: float | None = 5.0
    consistency: float | None = None

    def __post_init__(self) -> None:
        """Raise a ValueError for a tolerance that is negative or not finite."""
        for name, value in vars(self).items():
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be None or a number of at least 0, not {value!r}")

    def check(self, evaluation: Evaluation) -> tuple[Check, ...]:
        """Compare an evaluation with the tolerances; return one check per tolerance that is set."""
        same, ordinary = evaluation.measures[SAME], evaluation.measures[ORDINARY]
        closeness = next(name for name in _CONSISTENCIES if name in same)
        limits = [
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
            for measure, baseline, limit in limits
            if limit is not None
        )

    def by_measure(self) -> dict[str, float]:
        """Return the tolerances for score lost and certifiability that are set, by measure name."""
        limits = {LOST: self.effectiveness, "certifiability": self.certifiability}
        return {name: limit for name, limit in limits.items() if limit is not None}


def bad_end(measure: Measure) -> float:
    """Return the worse end of the interval of a measure; infinitely bad if it is unknown."""
    return _interval_ends(measure)[measure.better == "lower"]


def good_end(measure: Measure) -> float:
    """Return the better end of the interval of a measure; infinitely good if it is unknown."""
    return _interval_ends(measure)[measure.better != "lower"]


def _interval_ends(measure: Measure) -> tuple[float, float]:
    low, high = measure.low, measure.high
    return -math.inf if low is None else low, math.inf if high is None else high


@dataclass(frozen=True, kw_only=True)
class Cost(TextRepr):
    """Time for the first training and all expected requests, in seconds.

    The method takes ``fit + calls * forget``. Plain retraining takes ``(calls + 1) * retrain``,
    including the first model. If requests are batched, one call of `forget` forgets several people.

    Attributes
    ----------
    calls : int
        Number of calls of `forget`, or of the retrainings that replace them.
    fit, forget, retrain : float
        Seconds of the first fit, of one call of `forget`, and of one training of the ordinary
        model.

    Examples
    --------
    >>> cost = Cost(calls=100, fit=2.0, forget=0.1, retrain=1.0)
    >>> cost.method, cost.plain, cost.pays_from
    (12.0, 101.0, 2)
    """

    calls: int
    fit: float
    forget: float
    retrain: float

    def __str__(self) -> str:
        """Return the totals of the method and of plain retraining in one line."""
        return (
            f"{self.method:.3g} s with the method, {self.plain:.3g} s with plain retraining, for "
            f"{self.calls:,} call(s) of forget"
        )

    @property
    def method(self) -> float:
        """Total seconds with the method."""
        return self.fit + self.calls * self.forget

    @property
    def plain(self) -> float:
        """Total seconds with plain retraining of the ordinary model."""
        return (self.calls + 1) * self.retrain

    @property
    def retraining_is_cheaper(self) -> bool:
        """Whether plain retraining takes less time for this number of calls."""
        return self.plain < self.method

    @property
    def pays_from(self) -> float:
        """Smallest number of calls for which the method is not slower than plain retraining.

        Infinite if the method is always slower.
        """
        if self.fit <= self.retrain:
            return 0
        if self.forget >= self.retrain:
            return math.inf
        return math.ceil((self.fit - self.retrain) / (self.retrain - self.forget))

    @property
    def pays_to(self) -> float:
        """Largest number of calls for which the method is not slower than plain retraining.

        Infinite if there is no such limit, finite for a method that trains fast but forgets slowly,
        and 0 if the method never pays off.
        """
        if self.forget <= self.retrain:
            return math.inf if math.isfinite(self.pays_from) else 0
        return max(math.floor((self.retrain - self.fit) / (self.forget - self.retrain)), 0)


def name_setting(candidate: str, settings: dict[str, Any]) -> str:
    """Return a name such as "SISAClassifier with n_shards=4"."""
    words = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"{candidate} with {words}" if words else candidate


@dataclass(frozen=True, kw_only=True, repr=False)
class CandidateResult(TextRepr):
    """The evaluation of a candidate with its settings.

    Attributes
    ----------
    candidate : str
        Name of the candidate.
    settings : dict
        Parameter values.
    estimator : forgetting estimator
        The unfitted estimator with these settings.
    evaluation : Evaluation
        Measures and guarantee of the estimator.
    checks : tuple of Check
        One check per tolerance.
    lacks : str
        Requirements that are not met, apart from tolerances; empty if none.
    cost : Cost
        Cost of the expected requests.
    """

    candidate: str
    settings: dict[str, Any]
    estimator: Any = field(repr=False)
    evaluation: Evaluation = field(repr=False)
    checks: tuple[Check, ...]
    lacks: str
    cost: Cost

    def __str__(self) -> str:
        """Return the name and the failures; the verdict if there are no failures."""
        return f"{self.name}: {self.failures or self.verdict}"

    @property
    def name(self) -> str:
        """Name of the candidate with its settings."""
        return name_setting(self.candidate, self.settings)

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the checks; *beyond* if a requirement is not met."""
        verdicts = {check.verdict for check in self.checks}
        if self.lacks or "beyond" in verdicts:
            return "beyond"
        return "undecided" if "undecided" in verdicts else "within"

    @property
    def efficiency(self) -> Measure:
        """Speed-up over retraining the ordinary model, which is the same for all candidates."""
        return self.evaluation.measures[ORDINARY]["efficiency"]

    @property
    def speed(self) -> float:
        """Lower end of the interval of the speed-up, for ranking settings; 0 if it is unknown."""
        return max(bad_end(self.efficiency), 0.0)

    @property
    def points(self) -> dict[str, Measure]:
        """The measures that the plot shows, by name.

        Speed-up and score lost are relative to the ordinary model, certifiability to a retrained
        model of the same algorithm.
        """
        axes = {"efficiency": ORDINARY, LOST: ORDINARY, "certifiability": SAME}
        measures = self.evaluation.measures
        return {
            name: measures[baseline][name]
            for name, baseline in axes.items()
            if name in measures[baseline]
        }

    @property
    def failures(self) -> str:
        """Reasons why the setting is not acceptable; an empty string if it is acceptable."""
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
class Tuning(TextRepr):
    """The search for the value of one efficiency parameter.

    Attributes
    ----------
    parameter : str
        Name of the parameter.
    values, scores : tuple
        Values that were tried, from slow to fast, and their cross-validated scores.
    goal : float
        Smallest tolerated score.
    chosen : value
        The fastest value before the score fell below the goal; the slowest value if its score is
        already below.

    Examples
    --------
    >>> scores = {"values": (0, 2), "scores": (0.95, 0.93)}
    >>> print(Tuning(parameter="random_depth", goal=0.94, chosen=0, **scores))
    random_depth=0 (scores 0: 0.95, 2: 0.93; required 0.94)
    """

    parameter: str
    values: tuple[Any, ...]
    scores: tuple[float, ...]
    goal: float
    chosen: Any

    def __str__(self) -> str:
        """Return the chosen value and all scores in one line."""
        tried = ", ".join(
            f"{value}: {score:.4g}" for value, score in zip(self.values, self.scores, strict=True)
        )
        return f"{self.parameter}={self.chosen} (scores {tried}; required {self.goal:.4g})"


def tune_efficiency(
    score: Callable[[Any], float], parameter: str, values: Sequence[Any], goal: float
) -> Tuning:
    """Increase an efficiency parameter until the cross-validated score falls below a goal.

    This works for exact methods. The parameter affects training in the same way as removal, so
    cross-validation measures its full effect on the score. Consistency and certifiability hold by
    definition.

    Parameters
    ----------
    score : callable
        ``score(value)``, the cross-validated score with this value; higher is better.
    parameter : str
        Name of the parameter.
    values : sequence
        Values to try, from slow to fast.
    goal : float
        Smallest tolerated score.

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
