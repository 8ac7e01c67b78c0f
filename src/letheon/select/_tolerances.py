"""Tolerances, and what an evaluation says about them."""

import math
from dataclasses import dataclass
from typing import Literal

from letheon.evaluation import ORDINARY, SAME, Evaluation
from letheon.measures import Measure

__all__ = ["Check", "Tolerances", "Verdict", "bad_end", "good_end"]

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
        unit = _spaced(self.measure.unit)
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


def _spaced(unit: str) -> str:
    return f" {unit}" if unit else ""
