"""The result of `choose`: results of all settings, exclusions, the best setting and the reason."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sklearn.base import clone

from letheon.datasets import Requests
from letheon.evaluation import ORDINARY, Evaluation, make_frame
from letheon.evaluation.report import Table
from letheon.exceptions import NoCandidateError
from letheon.measures import Measure, TextRepr
from letheon.plot import ParetoDisplay, pareto_front
from letheon.receipt import format_seconds
from letheon.select._candidates import Need
from letheon.select._results import (
    LOST,
    CandidateResult,
    Cost,
    Tolerances,
    Tuning,
    bad_end,
    good_end,
)

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(TextRepr):
    """The measures of all methods, the chosen method, and the explanation of the choice.

    Attributes
    ----------
    tried : tuple of CandidateResult
        Results of all settings that were evaluated.
    excluded : dict of str to str
        Excluded methods and settings, with the reason.
    tunings : dict of str to tuple of Tuning
        Tuning of the efficiency parameters of exact methods.
    need, tolerances, requests, expected_requests
        The arguments of `choose`.
    ordinary, ordinary_chosen : str
        The ordinary model that all methods are compared with, and how it was chosen.
    scored_by : str
        The metric, and why it was used.
    n_rows, n_people, n_test_rows : int
        Numbers of training rows, people and test rows.
    is_subsample : bool
        Whether the training rows are a subsample.
    """

    tried: tuple[CandidateResult, ...]
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
    def best(self) -> CandidateResult | None:
        """The fastest result within all tolerances; None if there is none."""
        within = [result for result in self.tried if result.verdict == "within"]
        # Ties are broken by name, so that the order of candidates does not matter.
        return min(within, key=lambda result: (-result.speed, result.name), default=None)

    @property
    def reason(self) -> str:
        """Explanation of the choice, or of why no method was chosen."""
        return _explain_choice(self)

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """All evaluations; the key is the name of the candidate with its settings."""
        return {result.name: result.evaluation for result in self.tried}

    @property
    def retraining_is_cheaper(self) -> bool:
        """Whether plain retraining is faster than the best method for the expected requests."""
        return self.best is not None and self.best.cost.retraining_is_cheaper

    def pareto(self) -> tuple[CandidateResult, ...]:
        """Return the results on the Pareto front of speed-up, score lost and certifiability.

        A result is on the front unless another result is better in one measure and at least as good
        in the others. The measured values are compared, not their intervals. Results outside the
        tolerances are included.
        """
        names = ("efficiency", LOST, "certifiability")
        points = {result.name: result.points for result in self.tried}
        points = {name: row for name, row in points.items() if set(names) <= row.keys()}
        front = set(pareto_front(points, names))
        return tuple(result for result in self.tried if result.name in front)

    def best_estimator(self) -> Any:
        """Return an unfitted copy of the best estimator with its settings.

        The settings depend on the rows, and the guarantee must declare this. `fit_best` does so.
        If you call `fit` yourself, call ``declare_tuning(comparison.tuning)`` afterwards.

        Raises
        ------
        NoCandidateError
            If no setting is within all tolerances.
        """
        if self.best is None:
            raise NoCandidateError(self.reason)
        return clone(self.best.estimator)

    @property
    def tuning(self) -> str:
        """Description of how the settings were chosen; an argument for `declare_tuning`."""
        subsample = " of a random subsample" if self.is_subsample else ""
        return (
            f"letheon.select: method and settings chosen of {len(self.tried)} by cross-validation "
            f"and evaluation on {self.n_rows:,} training rows of {self.n_people:,} people"
            f"{subsample} and {self.n_test_rows:,} test rows; rows that are forgotten later "
            "influenced the choice"
        )

    def fit_best(self, X: Any, y: Any, *, ids: Any = None) -> Any:
        """Fit the best estimator, and declare in its guarantee how its settings were chosen."""
        return self.best_estimator().fit(X, y, ids=ids).declare_tuning(self.tuning)

    def plot(self, *, ax: Any = None) -> ParetoDisplay:
        """Plot speed-up against score lost; show the tolerances and mark the chosen setting.

        Settings that are not within all tolerances have hollow markers.
        """
        points = {result.name: result.points for result in self.tried}
        display = ParetoDisplay(
            points,
            x=LOST,
            tolerances=self.tolerances.by_measure(),
            chosen=None if self.best is None else self.best.name,
            doubtful=[result.name for result in self.tried if result.verdict != "within"],
        )
        return display.plot(ax=ax)

    def to_dict(self) -> dict[str, Any]:
        """Return everything except estimators as plain values."""
        return {
            "best": None if self.best is None else self.best.name,
            "reason": self.reason,
            "tried": [result.to_dict() for result in self.tried],
            "excluded": dict(self.excluded),
            "tunings": {
                name: [dict(vars(tuning)) for tuning in tunings]
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
        """Return one row per setting, as a pandas frame."""
        rows = []
        for result in self.tried:
            row: dict[str, Any] = {
                "candidate": result.candidate,
                "settings": ", ".join(
                    f"{name}={value!r}" for name, value in result.settings.items()
                ),
                "verdict": result.verdict,
                "best": result is self.best,
                "guarantee": result.evaluation.guarantee.kind,
            }
            for name, point in result.points.items():
                row |= {name: point.value, f"{name} low": point.low, f"{name} high": point.high}
            cost = result.cost
            rows.append(row | {"total seconds": cost.method, "plain seconds": cost.plain})
        return make_frame(rows)

    def __rich__(self) -> "RenderableType":
        """Return a table of the settings with the reason below it, for a terminal."""
        return _as_table(self)

    def __str__(self) -> str:
        """Return the explanation of the choice."""
        return self.reason


def _explain_choice(comparison: Comparison) -> str:
    """Return the explanation of the choice: the best setting, the others, warnings, exclusions."""
    best = comparison.best
    lines = _explain_best(comparison, best) if best else _explain_no_choice(comparison)
    lines.append(f"Metric: {comparison.scored_by}.")
    for result in comparison.tried:
        lines += [f"{result.name}: {warning}" for warning in result.evaluation.warnings]
    lines += [f"{name} was excluded: {why}." for name, why in comparison.excluded.items()]
    if comparison.is_subsample:
        lines.append(
            f"The times are those of a subsample of {comparison.n_people:,} people; speed-ups tend "
            "to grow with the number of rows."
        )
    return "\n".join(lines)


def _explain_best(comparison: Comparison, best: CandidateResult) -> list[str]:
    """Return lines on the strengths and weaknesses of the best setting and on other candidates."""
    others = _closest_results(comparison.tried, besides=best.candidate)
    speed, kind = _describe_speed(best, comparison.ordinary), best.evaluation.guarantee.kind
    lines = [
        f"{best.name}: {speed}{_describe_score(comparison, best)}, {kind}.",
        best.evaluation.tested,
    ]
    if best.speed <= 1:
        # The best setting within the tolerances is not faster than retraining.
        within = [result for result in comparison.tried if result.verdict == "within"]
        sure = "significantly " if any(result.efficiency.value > 1 for result in within) else ""
        lines.append(
            f"No setting within the tolerances is {sure}faster than plain retraining of "
            f"{comparison.ordinary}."
        )
    lines.append(_describe_cost(comparison, best))
    if best.estimator.facts.strength == "weak":
        lines.append(f"{best.name} is weak: removals can get slower along a sequence.")
    lines += [_describe_result(other, best) for other in others]
    rivals = [
        other.name
        for other in others
        if other.verdict == "within" and good_end(other.efficiency) > best.speed
    ]
    if rivals:
        lines.append(
            f"The speed-up intervals of {' and '.join([best.name, *rivals])} overlap: another run "
            "may choose another method. Use more seeds or requests to decide."
        )
    return [*lines, *_warn_of_many_tests(comparison)]


def _describe_speed(result: CandidateResult, ordinary: str) -> str:
    """Describe the speed-up over retraining: its mean and the lower end of its interval."""
    value, least = _format_factor(result.efficiency.value), _format_factor(result.speed)
    if result.speed >= 1:
        return f"{value} faster than retraining {ordinary} (at least {least})"
    if result.efficiency.value >= 1:
        return f"{value} faster than retraining {ordinary} on average, at least {least}"
    return f"slower than retraining {ordinary}, at {value} of its speed (at least {least})"


def _warn_of_many_tests(comparison: Comparison) -> Iterator[str]:
    """Yield a warning if several settings were tested on the same rows: one may pass by chance."""
    # The probability that the true value is beyond the worse end of an interval.
    risks = [
        max(0.0 if m.low == m.high else (1 - m.confidence) / 2 for m in measures)
        for measures in ([check.measure for check in result.checks] for result in comparison.tried)
        if measures
    ]
    n = sum(risk > 0 for risk in risks)
    if n > 1:
        yield (
            f"{n} settings were tested on the same {comparison.n_test_rows:,} test rows: "
            f"the probability that one of them passes by chance is up to {min(sum(risks), 1):.0%}. "
            "Evaluate the chosen method again on other rows."
        )


def _describe_score(comparison: Comparison, best: CandidateResult) -> str:
    """Describe how far the score of the best setting is from that of the ordinary model."""
    measures, limit = best.evaluation.measures[ORDINARY], comparison.tolerances.effectiveness
    if LOST not in measures:
        return ""
    lost = measures[LOST]
    text = f", {best.evaluation.metric} {_describe_difference(lost.value)} it"
    if limit is not None:
        text += f" (at worst {_describe_difference(bad_end(lost))}, tolerance {limit:g})"
    return text


def _describe_difference(lost: float) -> str:
    return f"{abs(lost):.3g} {'below' if lost >= 0 else 'above'}"


def _describe_cost(comparison: Comparison, best: CandidateResult) -> str:
    """Describe the cost of all requests, and how many requests make the method pay off."""
    cost, k = best.cost, f"{comparison.expected_requests:,} request(s)"
    if comparison.expected_requests > comparison.n_people and not comparison.is_subsample:
        k += f" (more than the {comparison.n_people:,} people of this training set)"
    ours, plain, pays = (
        format_seconds(cost.method),
        format_seconds(cost.plain),
        _describe_break_even(cost),
    )
    if cost.retraining_is_cheaper:
        return (
            f"For {k}, plain retraining of {comparison.ordinary} is cheaper, including the first "
            f"training: {plain} compared with {ours}; {pays}."
        )
    return (
        f"For {k}, including the first training: {ours} compared with {plain} for plain "
        f"retraining; {pays}."
    )


def _describe_break_even(cost: Cost) -> str:
    if cost.pays_from > cost.pays_to or cost.pays_to < 1:
        return "the method never pays off"
    if math.isfinite(cost.pays_to):
        return f"the method pays off only up to {cost.pays_to:,} call(s) of forget"
    if cost.pays_from <= 1:
        return "the method pays off from the first request on"
    return f"the method pays off from {cost.pays_from:,} calls of forget on"


def _describe_result(result: CandidateResult, best: CandidateResult | None = None) -> str:
    if best is not None and result.verdict == "within":
        value, least = _format_factor(result.efficiency.value), _format_factor(result.speed)
        if result.efficiency.value > best.efficiency.value:
            return f"{result.name} is {value} faster on average, but possibly only {least}."
        return f"{result.name} was slower: {value} (at least {least})."
    word = "is undecided" if result.verdict == "undecided" else "is not within the tolerances"
    return f"{result.name} {word}: {result.failures}."


def _explain_no_choice(comparison: Comparison) -> list[str]:
    if not comparison.tried:
        return ["No candidate could be evaluated."]
    closest = _closest_results(comparison.tried)
    lines = [
        "No setting is within all tolerances; nothing was chosen.",
        *map(_describe_result, closest),
    ]
    if any(result.verdict == "undecided" for result in closest):
        lines.append("Use more seeds, test rows or requests to decide the undecided settings.")
    return lines


def _closest_results(
    tried: tuple[CandidateResult, ...], besides: str | None = None
) -> list[CandidateResult]:
    """Return the result of each candidate that is closest to being acceptable.

    The candidate named `besides` is left out.
    """

    def tolerance_distance(result: CandidateResult) -> tuple[int, float, float, str]:
        """Return a sort key: verdict, relative distance to the tolerances, speed, name."""
        order = ("within", "undecided", "beyond").index(result.verdict)
        excesses = [max(check.excess, 0) / (check.limit or 1) for check in result.checks]
        return order, max(excesses, default=0.0), -result.speed, result.name

    closest: dict[str, CandidateResult] = {}
    for result in sorted(tried, key=tolerance_distance):
        closest.setdefault(result.candidate, result)
    return [result for name, result in sorted(closest.items()) if name != besides]


def _format_factor(factor: float) -> str:
    return f"{factor:,.3g}x" if factor < 1000 else f"{factor:,.0f}x"


_COLUMNS = {"efficiency": "speed-up", "score lost": "score lost", "certifiability": "cert."}
_METHOD_WIDTH = 24


def _as_table(comparison: Comparison) -> "RenderableType":
    """Return a table of the settings, with the chosen setting marked and the reason below.

    Below each value is the worse end of its interval, which decides the verdict. The table shows
    "?" if the interval is unknown.
    """
    from rich.console import Group
    from rich.text import Text

    title = f"Compared with {comparison.ordinary} on {comparison.n_rows:,} training rows"
    rows = [
        (
            "*" if result is comparison.best else "",
            f"{result.name}, {result.evaluation.guarantee.kind}",
            *(_format_figures(result.points.get(name)) for name in _COLUMNS),
            f"{result.cost.method:.3g} s",
            result.verdict,
        )
        for result in comparison.tried
    ]
    right = (*_COLUMNS.values(), "total")
    table = Table(title, ("", "method", *right, "verdict"), rows)
    look = {"title_justify": "left", "padding": (0, 1, 0, 0)}
    shown = table.to_rich(right=right, no_wrap=(*right, "verdict"), **look)
    shown.columns[1].min_width = _METHOD_WIDTH
    return Group(shown, Text(comparison.reason))


def _format_figures(measure: Measure | None) -> str:
    if measure is None:
        return "-"
    unit = measure.unit if measure.unit in ("x", "%") else ""
    end = bad_end(measure)
    if end == measure.value:
        return f"{measure.value:.3g}{unit}"
    if math.isinf(end):
        return f"{measure.value:.3g}{unit}\n?"
    sign = "<=" if measure.better == "lower" else ">="
    return f"{measure.value:.3g}{unit}\n{sign} {end:.3g}"
