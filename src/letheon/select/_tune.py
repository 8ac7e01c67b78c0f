"""Tuning the efficiency parameter of an exact method (survey, 6.3; Brophy and Lowd, 2021)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Tuning", "tune_efficiency"]


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
