"""The reason for a choice, in words and numbers."""

import math
from typing import TYPE_CHECKING

from letheon.evaluation import ORDINARY
from letheon.select._cost import Cost
from letheon.select._tolerances import LOST, bad_end
from letheon.select._tried import Tried

if TYPE_CHECKING:
    from letheon.select._comparison import Comparison

__all__ = ["reason"]


def reason(comparison: "Comparison") -> str:
    """Return why the best one is, or why nobody is; then the others, one sentence each."""
    best = comparison.best
    lines = [_praise(comparison, best), _total(comparison, best)] if best else _nobody(comparison)
    if best:
        if best.estimator.facts.strength == "weak":
            lines.append(f"{best.name} is weak: removals can take longer along a sequence.")
        others = _closest(comparison.tried, besides=best.candidate)
        lines += [_other(each) for each in others]
    lines += [f"{name} was left out: {why}." for name, why in comparison.excluded.items()]
    if comparison.is_subsample:
        lines.append(
            f"Times are those of a subsample of {comparison.n_people:,} people; speed-ups tend to "
            "grow with the number of rows."
        )
    return "\n".join(lines)


def _praise(comparison: "Comparison", best: Tried) -> str:
    return (
        f"{best.name}: {_times(best.efficiency.value)} faster than retraining "
        f"{comparison.ordinary} (at least {_times(best.speed)}){_quality(comparison, best)}, "
        f"{best.evaluation.guarantee.kind}."
    )


def _quality(comparison: "Comparison", best: Tried) -> str:
    """Say how the metric compares with the ordinary model's."""
    measures, limit = best.evaluation.measures[ORDINARY], comparison.tolerances.effectiveness
    if LOST not in measures:
        return ""
    lost = measures[LOST]
    side = "below" if lost.value > 0 else "above"
    text = f", {best.evaluation.metric} {abs(lost.value):.3g} {side} it"
    if limit is not None:
        text += f" (at worst {bad_end(lost):.3g} below, tolerance {limit:g})"
    return text


def _total(comparison: "Comparison", best: Tried) -> str:
    """Say what all requests cost, and when plain retraining is cheaper."""
    cost, k = best.cost, f"{comparison.expected_requests:,} request(s)"
    sums = f"{_seconds(cost.method)} against {_seconds(cost.plain)}"
    if cost.retraining_is_cheaper:
        return (
            f"For {k} plain retraining of {comparison.ordinary} is cheaper, first training "
            f"included: {_seconds(cost.plain)} against {_seconds(cost.method)}; {_pays(cost)}."
        )
    return f"For {k}, first training included: {sums} of plain retraining; {_pays(cost)}."


def _pays(cost: Cost) -> str:
    if math.isinf(cost.pays_from):
        return "the method never pays"
    if cost.pays_from <= 1:
        return "the method pays from the first request on"
    return f"the method pays from {cost.pays_from:,} calls of forget on"


def _other(each: Tried) -> str:
    if each.verdict == "within":
        return f"{each.name} was slower ({_times(each.efficiency.value)})."
    word = "is undecided" if each.verdict == "undecided" else "is not within the tolerances"
    return f"{each.name} {word}: {each.failures}."


def _nobody(comparison: "Comparison") -> list[str]:
    if not comparison.tried:
        return ["Nobody could be tried."]
    found = _closest(comparison.tried)
    lines = ["Nobody is within all tolerances; nothing was chosen.", *map(_other, found)]
    if any(each.verdict == "undecided" for each in found):
        lines.append("More seeds, or more test rows, would decide what is undecided.")
    return lines


def _closest(tried: tuple[Tried, ...], besides: str | None = None) -> list[Tried]:
    """Return for each candidate the setting that came closest to being chosen."""
    order = ("within", "undecided", "beyond")
    by_candidate: dict[str, list[Tried]] = {}
    for each in tried:
        if each.candidate != besides:
            by_candidate.setdefault(each.candidate, []).append(each)
    return [
        min(several, key=lambda each: (order.index(each.verdict), *_distance(each), each.name))
        for _, several in sorted(by_candidate.items())
    ]


def _distance(each: Tried) -> tuple[float, float]:
    """How far a setting is from its tolerances, relatively, and then how slow it is."""
    excesses = [max(check.excess, 0) / (check.limit or 1) for check in each.checks]
    return max(excesses, default=0.0), -each.speed


def _times(factor: float) -> str:
    return f"{factor:,.3g}x" if factor < 1000 else f"{factor:,.0f}x"


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
