"""Total cost of a number of requests, with a method and by plain retraining."""

import math
from dataclasses import dataclass

from letheon.evaluation import ORDINARY, Evaluation

__all__ = ["Cost", "cost_of"]


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
