"""One candidate with one choice of parameters, evaluated and judged."""

from dataclasses import dataclass, field
from typing import Any

from letheon.evaluation import ORDINARY, SAME, Evaluation
from letheon.measures import Measure
from letheon.select._cost import Cost
from letheon.select._tolerances import LOST, Check, Verdict, bad_end

__all__ = ["Tried"]


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
