"""The result of `choose`: what was tried, what was left out, which one is best, and why."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from sklearn.base import clone

from letheon.datasets import Requests
from letheon.evaluation import ORDINARY, SAME, Evaluation, make_frame
from letheon.exceptions import NoCandidateError
from letheon.measures import Measure
from letheon.plot import ParetoDisplay, pareto_front
from letheon.select._need import Need

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType


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
        if self._is_within(bad_end(self.measure)):
            return "within"
        return "undecided" if self._is_within(good_end(self.measure)) else "beyond"

    @property
    def excess(self) -> float:
        """How far the bad end of the interval is beyond the limit; negative if it is within."""
        gap = bad_end(self.measure) - self.limit
        return gap if self.measure.better == "lower" else -gap

    def _is_within(self, value: float) -> bool:
        if self.measure.better == "lower":
            return value <= self.limit
        return value >= self.limit

    def __str__(self) -> str:
        """Say which measure, which tolerance, and by how much it failed.

        The number in brackets is the end of the interval that decides.
        """
        unit = self.measure.unit and f" {self.measure.unit}"
        limit = "at most" if self.measure.better == "lower" else "at least"
        found = f"{self.measure.name} {self.measure.value:.3g}{unit}{self._deciding_end()}"
        text = f"{found} where {limit} {self.limit:g}{unit} is tolerated"
        if self.verdict == "within":
            return text
        text += f": {self._failure()}"
        if self.floor is not None:
            text += f" (one retrain against another: {self.floor.value:.3g}{unit})"
        return text

    def _deciding_end(self) -> str:
        is_beyond = self.verdict == "beyond"
        end = good_end(self.measure) if is_beyond else bad_end(self.measure)
        if math.isinf(end) or end == self.measure.value:
            return ""
        return f" (at {'best' if is_beyond else 'worst'} {end:.3g})"

    def _failure(self) -> str:
        if self.verdict == "beyond":
            return f"beyond by {abs(good_end(self.measure) - self.limit):.3g} at least"
        if math.isinf(self.excess):
            return "undecided, nothing is known about its error"
        return f"undecided, it may be {self.excess:.3g} beyond"


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
        named = {LOST: self.effectiveness, "certifiability": self.certifiability}
        return {name: limit for name, limit in named.items() if limit is not None}


def bad_end(measure: Measure) -> float:
    """Return the worse end of the interval; infinitely bad where nothing is known of the error."""
    if measure.better == "lower":
        return math.inf if measure.high is None else measure.high
    return -math.inf if measure.low is None else measure.low


def good_end(measure: Measure) -> float:
    """Return the better end of the interval; infinitely good where the error is not known."""
    if measure.better == "lower":
        return -math.inf if measure.low is None else measure.low
    return math.inf if measure.high is None else measure.high


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


def cost_of(evaluation: Evaluation, expected_requests: int, people_per_call: int) -> Cost:
    """Return the cost of the requests that are expected, from the times that were measured."""
    seconds = evaluation.seconds
    return Cost(
        calls=math.ceil(expected_requests / people_per_call),
        fit=seconds["fit"].value,
        forget=seconds["forget"].value,
        retrain=seconds[ORDINARY].value,
    )


@dataclass(frozen=True, kw_only=True)
class Tried:
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
        said = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{self.candidate} with {said}" if said else self.candidate

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
        measures = self.evaluation.measures
        found = {"efficiency": self.efficiency}
        for name, baseline in ((LOST, ORDINARY), ("certifiability", SAME)):
            if name in measures[baseline]:
                found[name] = measures[baseline][name]
        return found

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


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Methods, their measures, the choice under tolerances and the reason for it.

    Attributes
    ----------
    tried : tuple of Tried
        Every setting that was evaluated.
    excluded : dict of str to str
        Who was left out, and why.
    tunings : dict of str to tuple of Tuning
        How the efficiency parameters of exact methods were found.
    need, tolerances, requests, expected_requests
        As given.
    ordinary, ordinary_chosen : str
        The ordinary model that everybody is held against, and how it was chosen.
    scored_by : str
        The metric, and why this one.
    n_rows, n_people, n_test_rows : int
        Training rows and people of the comparison, and the rows that they were tested on.
    is_subsample : bool
        Whether these are some of the rows only.
    """

    tried: tuple[Tried, ...]
    excluded: dict[str, str]
    tunings: dict[str, tuple[Tuning, ...]]
    need: Need
    tolerances: Tolerances
    requests: Requests
    expected_requests: int
    ordinary: str
    ordinary_chosen: str
    scored_by: str
    n_rows: int
    n_people: int
    n_test_rows: int
    is_subsample: bool

    @cached_property
    def best(self) -> Tried | None:
        """The fastest of those within all tolerances; None if nobody is."""
        within = [each for each in self.tried if each.verdict == "within"]
        # Names decide between equals, so that the order of candidates does not.
        return min(within, key=lambda each: (-each.speed, each.name), default=None)

    @property
    def reason(self) -> str:
        """Why this one, in words and numbers; or why nobody."""
        from letheon.select._report import reason

        return reason(self)

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """Every evaluation, by candidate and settings."""
        return {each.name: each.evaluation for each in self.tried}

    @property
    def retraining_is_cheaper(self) -> bool:
        """Whether plain retraining serves the expected requests in less time than the best."""
        return self.best is not None and self.best.cost.retraining_is_cheaper

    def pareto(self) -> tuple[Tried, ...]:
        """Return who is beaten by nobody in speed-up, score lost and certifiability together.

        Values count, not intervals; so do settings that are not within the tolerances.
        """
        names = ("efficiency", LOST, "certifiability")
        whole = {each.name: each.points for each in self.tried if set(names) <= each.points.keys()}
        front = set(pareto_front(whole, names))
        return tuple(each for each in self.tried if each.name in front)

    def best_estimator(self) -> Any:
        """Return an unfitted copy of the best estimator with its settings.

        Its settings were chosen by looking at rows. `fit_best` fits it and says so in the
        guarantee; after a `fit` of your own call ``declare_tuning(comparison.tuning)``.

        Raises
        ------
        NoCandidateError
            Nobody is within all tolerances.
        """
        if self.best is None:
            raise NoCandidateError(self.reason)
        return clone(self.best.estimator)

    @property
    def tuning(self) -> str:
        """How the settings were chosen, as `declare_tuning` wants it."""
        some = " of a random subsample" if self.is_subsample else ""
        return (
            f"letheon.select: method and settings chosen of {len(self.tried)} by cross-validation "
            f"and evaluation on {self.n_rows:,} training rows of {self.n_people:,} people{some} "
            f"and {self.n_test_rows:,} test rows; rows forgotten later had a say in it"
        )

    def fit_best(self, X: Any, y: Any, *, ids: Any = None) -> Any:
        """Fit the best estimator, and declare in its guarantee how it was chosen."""
        return self.best_estimator().fit(X, y, ids=ids).declare_tuning(self.tuning)

    def plot(self, *, ax: Any = None) -> ParetoDisplay:
        """Draw speed-up against score lost, with tolerances and the choice.

        Who is not within all tolerances, also those that are not drawn, has a hollow marker.
        """
        points: dict[str, dict[str, Measure]] = {each.name: each.points for each in self.tried}
        display = ParetoDisplay(
            points,
            x=LOST,
            tolerances=self.tolerances.by_measure(),
            chosen=None if self.best is None else self.best.name,
            doubtful=[each.name for each in self.tried if each.verdict != "within"],
        )
        return display.plot(ax=ax)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but estimators as plain values."""
        return {
            "best": None if self.best is None else self.best.name,
            "reason": self.reason,
            "tried": [each.to_dict() for each in self.tried],
            "excluded": dict(self.excluded),
            "tunings": {
                name: [dict(vars(each)) for each in tunings]
                for name, tunings in self.tunings.items()
            },
            "need": dict(vars(self.need)),
            "tolerances": dict(vars(self.tolerances)),
            "requests": {
                "kind": self.requests.kind,
                "n": self.requests.n,
                "batch": self.requests.batch,
            },
            "expected requests": self.expected_requests,
            "ordinary": {"name": self.ordinary, "chosen": self.ordinary_chosen},
            "scored by": self.scored_by,
            "n_rows": self.n_rows,
            "n_people": self.n_people,
            "n_test_rows": self.n_test_rows,
            "is_subsample": self.is_subsample,
        }

    def to_frame(self) -> "pd.DataFrame":
        """Return one row for each setting, as a pandas frame."""
        return make_frame([self._row(each) for each in self.tried])

    def _row(self, each: Tried) -> dict[str, Any]:
        row: dict[str, Any] = {
            "candidate": each.candidate,
            "settings": ", ".join(f"{name}={value!r}" for name, value in each.settings.items()),
            "verdict": each.verdict,
            "best": each is self.best,
            "guarantee": each.evaluation.guarantee.kind,
        }
        for name, measure in each.points.items():
            row |= {name: measure.value, f"{name} low": measure.low, f"{name} high": measure.high}
        return row | {"total seconds": each.cost.method, "plain seconds": each.cost.plain}

    def __rich__(self) -> "RenderableType":
        """Show a table of the settings, and the reason below it."""
        from letheon.select._report import as_table

        return as_table(self)

    def __str__(self) -> str:
        """Say the reason."""
        return self.reason
