"""Keep or retrain: what the tolerances say about one request, in words."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from letheon.monitor._limits import Limit
from letheon.monitor._reading import Decision, Tolerances

__all__ = ["Seen", "decide", "say_if_useless"]

# So many requests are looked back at before a monitor is called useless.
_WINDOW = 10


class Seen(NamedTuple):
    """What a decision rests on."""

    proxies: Mapping[str, float]
    share: float
    """People who left since the last retrain, of those held then."""
    horizon: float | None
    """Largest such share that was rehearsed; None: nothing was rehearsed, or need not be."""
    guarantee: str
    was_guaranteed: str
    """Kind of the guarantee right after the last retrain."""
    spent: float | None
    budget: float | None
    residual: float | None
    speed_ups: tuple[float, ...]
    """Efficiency of the last few requests."""
    is_judged: bool = True
    """Whether the performance is a number at all."""


def decide(seen: Seen, tolerances: Tolerances) -> tuple[Decision, tuple[str, ...]]:
    """Return the decision and its reasons."""
    breaches = [*_passed(seen, tolerances), *_certificate(seen, tolerances)]
    notes = _slow(seen, tolerances)
    if breaches:
        return "retrain", (*breaches, *notes)
    return "keep", ("within all tolerances", *notes)


def _passed(seen: Seen, tolerances: Tolerances) -> list[str]:
    if seen.guarantee != "exact" and not seen.is_judged:
        return ["answers or metric are not finite: the model cannot be judged"]
    found = [
        f"{name} may be up to {seen.proxies[name]:.3g}, tolerance {tolerance:.3g}"
        for name, tolerance in tolerances.watched().items()
        if seen.guarantee != "exact" and seen.proxies[name] > tolerance
    ]
    if seen.horizon is not None and seen.share >= seen.horizon:
        found.append(
            f"{seen.share:.1%} of the people left since the last retrain; no more was rehearsed"
        )
    return found


def _certificate(seen: Seen, tolerances: Tolerances) -> list[str]:
    found = []
    if seen.spent is not None and seen.budget is not None:
        limit = tolerances.budget * seen.budget
        if seen.spent > limit:
            found.append(f"{seen.spent:.3g} of a budget of {limit:.3g} is spent")
    if seen.was_guaranteed != "empirical" and seen.guarantee == "empirical":
        found.append(f"the guarantee was {seen.was_guaranteed} and is empirical now")
    most = tolerances.residual
    if seen.residual is not None and most is not None and seen.residual > most:
        found.append(f"the gradient per row is {seen.residual:.3g}, tolerance {most:.3g}")
    return found


def _slow(seen: Seen, tolerances: Tolerances) -> list[str]:
    """Return a note when the last removals were slower than accepted; one alone says little."""
    if tolerances.efficiency is None or not seen.speed_ups:
        return []
    usual = median(seen.speed_ups)
    if usual >= tolerances.efficiency:
        return []
    return [f"removals are only {usual:.3g} times faster than a retrain; look into it"]


def say_if_useless(
    retrained: Sequence[bool], limits: Mapping[str, Limit], trainings_per_retrain: int
) -> str:
    """Return in words that a monitor saves nothing, if so.

    A retrain at every request costs one training each. A monitor saves nothing where its trainings,
    those of rehearsals after a retrain included, are as many: over the last ten requests, or over
    the stretches between retrains that the rehearsals let expect.
    """
    stretches = [limit.stretch for limit in limits.values() if limit.stretch is not None]
    if stretches and min(stretches) + 1 <= trainings_per_retrain:
        return (
            f"by the rehearsals a retrain is due after {min(stretches) + 1:.2g} request(s), and "
            f"costs {trainings_per_retrain} training(s): this monitor saves nothing"
        )
    n_retrains = sum(retrained[-_WINDOW:])
    if len(retrained) < _WINDOW or n_retrains * trainings_per_retrain < _WINDOW:
        return ""
    return (
        f"{n_retrains} of the last {_WINDOW} requests ended with a retrain, "
        f"{n_retrains * trainings_per_retrain} trainings in all: this monitor saves nothing over a "
        "retrain at every request"
    )


def guarantee_of(model: Any) -> tuple[str, float | None, float | None]:
    """Return kind, spent and budget of a model's guarantee; "empirical" if it claims nothing."""
    claim = getattr(model, "guarantee_", None)
    return ("empirical", None, None) if claim is None else (claim.kind, claim.spent, claim.budget)
