"""The result of `choose`: what was tried, what was left out, which one is best, and why."""

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
from letheon.measures import Measure
from letheon.plot import ParetoDisplay, pareto_front
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
        """The fastest of those within all tolerances; None if nobody is."""
        within = [each for each in self.tried if each.verdict == "within"]
        # Names decide between equals, so that the order of candidates does not.
        return min(within, key=lambda each: (-each.speed, each.name), default=None)

    @property
    def reason(self) -> str:
        """Why this one, in words and numbers; or why nobody."""
        return _explain_choice(self)

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """Every evaluation, by candidate and settings."""
        return {each.name: each.evaluation for each in self.tried}

    @property
    def retraining_is_cheaper(self) -> bool:
        """Whether plain retraining serves the expected requests in less time than the best."""
        return self.best is not None and self.best.cost.retraining_is_cheaper

    def pareto(self) -> tuple[CandidateResult, ...]:
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
        rows = []
        for each in self.tried:
            row: dict[str, Any] = {
                "candidate": each.candidate,
                "settings": ", ".join(f"{name}={value!r}" for name, value in each.settings.items()),
                "verdict": each.verdict,
                "best": each is self.best,
                "guarantee": each.evaluation.guarantee.kind,
            }
            for name, point in each.points.items():
                row |= {name: point.value, f"{name} low": point.low, f"{name} high": point.high}
            rows.append(row | {"total seconds": each.cost.method, "plain seconds": each.cost.plain})
        return make_frame(rows)

    def __rich__(self) -> "RenderableType":
        """Show a table of the settings, and the reason below it."""
        return _as_table(self)

    def __str__(self) -> str:
        """Say the reason."""
        return self.reason


def _explain_choice(comparison: Comparison) -> str:
    """Return why the best one is, or why nobody is; then the others, one sentence each."""
    best = comparison.best
    lines = _explain_best(comparison, best) if best else _explain_no_choice(comparison)
    lines.append(f"Scored by {comparison.scored_by}.")
    for each in comparison.tried:
        lines += [f"{each.name}: {warning}" for warning in each.evaluation.warnings]
    lines += [f"{name} was left out: {why}." for name, why in comparison.excluded.items()]
    if comparison.is_subsample:
        lines.append(
            f"Times are those of a subsample of {comparison.n_people:,} people; speed-ups tend to "
            "grow with the number of rows."
        )
    return "\n".join(lines)


def _explain_best(comparison: Comparison, best: CandidateResult) -> list[str]:
    """Say why it was chosen, what is wrong with it, and how the others were."""
    others = _closest_results(comparison.tried, besides=best.candidate)
    pace, kind = _describe_speed(best, comparison.ordinary), best.evaluation.guarantee.kind
    lines = [
        f"{best.name}: {pace}{_describe_score(comparison, best)}, {kind}.",
        best.evaluation.tested,
    ]
    if best.speed <= 1:
        # The best of those within the tolerances is no gain.
        within = [each for each in comparison.tried if each.verdict == "within"]
        sure = "surely " if any(each.efficiency.value > 1 for each in within) else ""
        lines.append(
            f"Nobody within the tolerances is {sure}faster than plain retraining of "
            f"{comparison.ordinary}."
        )
    lines.append(_describe_cost(comparison, best))
    if best.estimator.facts.strength == "weak":
        lines.append(f"{best.name} is weak: removals can take longer along a sequence.")
    lines += [_describe_result(each, best) for each in others]
    rivals = [
        each.name
        for each in others
        if each.verdict == "within" and good_end(each.efficiency) > best.speed
    ]
    if rivals:
        lines.append(
            f"By speed the choice is not sure: the intervals of "
            f"{' and '.join([best.name, *rivals])} overlap, and another run may choose another "
            "one. More seeds or requests would tell."
        )
    return [*lines, *_warn_of_many_tests(comparison)]


def _describe_speed(each: CandidateResult, ordinary: str) -> str:
    """Say how a request compares with a retrain: on average, and at least."""
    value, sure = _format_factor(each.efficiency.value), f"(at least {_format_factor(each.speed)})"
    if each.speed >= 1:
        return f"{value} faster than retraining {ordinary} {sure}"
    if each.efficiency.value >= 1:
        return f"{value} faster than retraining {ordinary} on average, perhaps slower {sure}"
    return f"slower than retraining {ordinary}, at {value} of its speed {sure}"


def _warn_of_many_tests(comparison: Comparison) -> Iterator[str]:
    """Say how likely somebody is to pass by luck, where many were judged by the same rows."""
    # the probability that the bad end of an interval is too good
    risks = [
        max(0.0 if m.low == m.high else (1 - m.confidence) / 2 for m in measures)
        for measures in ([check.measure for check in each.checks] for each in comparison.tried)
        if measures
    ]
    n = sum(risk > 0 for risk in risks)
    if n > 1:
        yield (
            f"{n} settings were judged by the same {comparison.n_test_rows:,} test rows: "
            f"the probability that one of them passes by luck is up to {min(sum(risks), 1):.0%}. "
            "Judge the chosen one again on other rows."
        )


def _describe_score(comparison: Comparison, best: CandidateResult) -> str:
    """Say how the metric compares with the ordinary model's."""
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
    """Say what all requests cost, and when plain retraining is cheaper."""
    cost, k = best.cost, f"{comparison.expected_requests:,} request(s)"
    if comparison.expected_requests > comparison.n_people and not comparison.is_subsample:
        k += f", more than the {comparison.n_people:,} people of this training set"
    ours, plain, pays = (
        _format_seconds(cost.method),
        _format_seconds(cost.plain),
        _describe_break_even(cost),
    )
    if cost.retraining_is_cheaper:
        return (
            f"For {k}, plain retraining of {comparison.ordinary} is cheaper, first training "
            f"included: {plain} against {ours}; {pays}."
        )
    return f"For {k}, first training included: {ours} against {plain} of plain retraining; {pays}."


def _describe_break_even(cost: Cost) -> str:
    if cost.pays_from > cost.pays_to or cost.pays_to < 1:
        return "the method never pays"
    if math.isfinite(cost.pays_to):
        return f"the method pays up to {cost.pays_to:,} call(s) of forget only"
    if cost.pays_from <= 1:
        return "the method pays from the first request on"
    return f"the method pays from {cost.pays_from:,} calls of forget on"


def _describe_result(each: CandidateResult, best: CandidateResult | None = None) -> str:
    if best is not None and each.verdict == "within":
        value, sure = _format_factor(each.efficiency.value), _format_factor(each.speed)
        if each.efficiency.value > best.efficiency.value:
            return f"{each.name} is less sure to be fast: {value} on average, surely {sure} only."
        return f"{each.name} was slower: {value} (at least {sure})."
    word = "is undecided" if each.verdict == "undecided" else "is not within the tolerances"
    return f"{each.name} {word}: {each.failures}."


def _explain_no_choice(comparison: Comparison) -> list[str]:
    if not comparison.tried:
        return ["Nobody could be tried."]
    closest = _closest_results(comparison.tried)
    lines = [
        "Nobody is within all tolerances; nothing was chosen.",
        *map(_describe_result, closest),
    ]
    if any(each.verdict == "undecided" for each in closest):
        lines.append("More seeds, test rows or requests would decide what is undecided.")
    return lines


def _closest_results(
    tried: tuple[CandidateResult, ...], besides: str | None = None
) -> list[CandidateResult]:
    """Return for each candidate the setting that came closest to being chosen."""

    def tolerance_distance(each: CandidateResult) -> tuple[int, float, float, str]:
        """How far from its tolerances, relatively, and then how slow it is."""
        order = ("within", "undecided", "beyond").index(each.verdict)
        excesses = [max(check.excess, 0) / (check.limit or 1) for check in each.checks]
        return order, max(excesses, default=0.0), -each.speed, each.name

    closest: dict[str, CandidateResult] = {}
    for each in sorted(tried, key=tolerance_distance):
        closest.setdefault(each.candidate, each)
    return [each for name, each in sorted(closest.items()) if name != besides]


def _format_factor(factor: float) -> str:
    return f"{factor:,.3g}x" if factor < 1000 else f"{factor:,.0f}x"


def _format_seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


_COLUMNS = {"efficiency": "faster", "score lost": "score lost", "certifiability": "cert."}
_METHOD_WIDTH = 24


def _as_table(comparison: Comparison) -> "RenderableType":
    """Return the settings as a table of rich, the chosen one marked, and the reason below it.

    Below each value stands the bad end of its interval, by which it is judged; "?" where
    its error is not known.
    """
    from rich.console import Group
    from rich.text import Text

    title = f"Held against {comparison.ordinary} on {comparison.n_rows:,} training rows"
    rows = [
        (
            "*" if each is comparison.best else "",
            f"{each.name}, {each.evaluation.guarantee.kind}",
            *(_format_figures(each.points.get(name)) for name in _COLUMNS),
            f"{each.cost.method:.3g} s",
            each.verdict,
        )
        for each in comparison.tried
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
