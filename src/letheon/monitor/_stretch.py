"""What happened since the last retrain."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from letheon.monitor._limits import Tally

__all__ = ["Stretch"]


@dataclass
class Stretch:
    """What happened since the last retrain: numbers only."""

    tally: Tally
    people_then: int
    guaranteed: str
    retrain_seconds: float | None
    n_people: int = 0
    peaks: dict[str, dict[str, float]] = field(default_factory=dict)

    def note(self, scores: Mapping[str, Mapping[str, float]]) -> None:
        """Take the scores of one request: a proxy never falls within a stretch."""
        for name, found in scores.items():
            peaks = self.peaks.setdefault(name, {})
            for score, value in found.items():
                peaks[score] = max(peaks.get(score, 0.0), value)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the stretch that `asdict` described."""
        return cls(**{**values, "tally": Tally(**values["tally"])})
