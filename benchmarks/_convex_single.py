"""Single removals: time, error, budget and fallbacks of every method."""

from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._convex_models import (
    ConvexMethod,
    Floats,
    Left,
    RetrainRace,
    RetrainSeconds,
    SolverBaseline,
    draw_people,
    make_descent,
    remove_people,
    score_accuracy,
    score_released,
)
from benchmarks._convex_retrain import find_optimum
from benchmarks._report import Seconds, Table, TargetCheck, time_call

__all__ = [
    "Single",
    "check_certificates",
    "check_noise",
    "check_ratio",
    "distance",
    "make_single_table",
    "make_summary_table",
    "measure_additions",
    "measure_single",
    "race_singles",
    "times",
]

UNKNOWN = RetrainSeconds(np.nan, np.nan, "", "")
COLUMNS = (
    "method", "requests", "cpu ms", "p50", "p99", "max", "wall ms", "x named", "x fastest",
    "error", "do nothing", "epsilon", "spent of budget", "fallbacks", "accuracy - retrained",
    "fit s",
)  # fmt: skip
NOTE = (
    "Times of one `forget` call, ids, certificate and receipt included: mean, median, p99 and "
    "maximum of the processor's time, and the mean on the clock. *x named*: the same rows "
    "retrained by the fastest of L-BFGS and Newton-Cholesky (ours or scikit-learn's), here {named} "
    "with {named_ms:.4g} ms, over the mean of all requests, fallbacks included; verdicts judge "
    "this. *x fastest*: the fastest of all solvers tried, here {fastest} with {fastest_ms:.4g} ms. "
    "Retrains run between the methods, every time without some other people: the mean counts. "
    "*error*: distance to the retrained optimum after all requests, before noise; *do nothing*: "
    "the same for the model before. *in the noise*: parameters without noise are not kept. "
    "*accuracy - retrained*: on test rows, beside the retrained optimum without noise; Influence: "
    "mean of 100 releases. *epsilon*: what the account needs at "
    "delta=1e-4, of 1. *fit s* is not in any ratio; it has the Hessian in it. LOSS: a retrain is "
    "quicker."
)


class Single(NamedTuple):
    """Single removals by one method on one table."""

    data: str
    method: ConvexMethod
    fit: float
    left: Left
    retrain: RetrainSeconds
    error: float | None
    idle: float | None
    epsilon: float | None
    spent: float | None
    budget: float | None
    covered: bool | None
    truth: float | None
    gain: float

    @property
    def ratio(self) -> float:
        """Time of a retraining by a named solver divided by the mean time of a removal."""
        return self.retrain.named / self.left.mean

    @property
    def ratio_fastest(self) -> float:
        """Time of a retraining by the fastest solver divided by the mean time of a removal."""
        return self.retrain.fastest / self.left.mean

    def row(self) -> tuple[Any, ...]:
        """Return the row of the table."""
        return (
            self.method.title, len(self.left.seconds), 1000 * self.left.mean, *self.left.spread(),
            1000 * self.left.wall, times(self.ratio), times(self.ratio_fastest),
            distance(self.error), distance(self.idle), _number(self.epsilon), _share(self),
            self.left.fallbacks, f"{100 * self.gain:+.2f} points", self.fit,
        )  # fmt: skip


def race_singles(
    methods: list[tuple[ConvexMethod, int]], yardstick: SolverBaseline, n_new: int = 0
) -> list[Single]:
    """Remove people from each model, with retrainings in between; add `n_new` people too."""
    race, results = RetrainRace(yardstick), []
    for place, (method, n_people) in enumerate(methods):
        race.look(draw_people(yardstick.data, n_people, seed=place))
        results.append(measure_single(method, yardstick, n_people))
    race.look(draw_people(yardstick.data, n_people, seed=len(methods)))
    if n_new:
        results.append(measure_additions(make_descent(state="secret"), yardstick, n_new))
    return [result._replace(retrain=race.result()) for result in results]


def measure_single(method: ConvexMethod, yardstick: SolverBaseline, n_people: int) -> Single:
    """Remove people one by one, after one removal as a warm-up."""
    data = yardstick.data
    model = method.make(data)
    seconds = time_call(partial(model.fit, data.X, data.y))[1]
    before = method.bare(model)
    gone = draw_people(data, n_people + 1)
    remove_people(model, [[int(gone[0])]])
    work = partial(remove_people, model, [[int(person)] for person in gone[1:]])
    return compare_with_optimum(method, yardstick, model, RemovalRun(gone, seconds, work(), before))


def measure_additions(method: ConvexMethod, yardstick: SolverBaseline, n_people: int) -> Single:
    """Fit without some people and add them one by one; compared with a fit on all people."""
    data = yardstick.data
    model = method.make(data)
    new = draw_people(data, n_people + 1)
    old = np.delete(np.arange(len(data.y)), new)
    seconds = time_call(partial(model.fit, data.X[old], data.y[old], ids=old))[1]
    before = method.bare(model)

    def come(number: int) -> None:
        model.learn(data.X[[number]], data.y[[number]], ids=[number])

    def work() -> Left:
        return Left([time_call(partial(come, int(each)))[1] for each in new[1:]], Counter())

    come(int(new[0]))
    no_people = new[:0]
    named = method._replace(name=f"{method.name}: learn")
    return compare_with_optimum(
        named, yardstick, model, RemovalRun(no_people, seconds, work(), before)
    )


class RemovalRun(NamedTuple):
    """Removed people, times, and the parameters before the removals."""

    gone: NDArray[np.int64]
    fit: Seconds
    left: Left
    before: Floats | None


def compare_with_optimum(
    method: ConvexMethod, yardstick: SolverBaseline, model: Any, seen: RemovalRun
) -> Single:
    """Compare a model with the optimum of the remaining rows."""
    data = yardstick.data
    plain = yardstick.problem.without(seen.gone)
    retrained = find_optimum(plain, yardstick.best.W[:, 0])
    W, error, idle = method.bare(model), None, None
    if W is not None and seen.before is not None:
        error = float(np.linalg.norm(W - retrained))
        idle = float(np.linalg.norm(seen.before - retrained))
    gain = score_released(model, data) - score_accuracy(retrained, data.X_test, data.y_test)
    claim, truth = model.guarantee_, _measure_truth(model, error)
    return Single(
        data.name, method, seen.fit.cpu, seen.left, UNKNOWN, error, idle,
        getattr(model, "epsilon_", None), claim.spent, claim.budget,
        _is_covered(model, truth), truth, gain,
    )  # fmt: skip


def _is_covered(model: Any, truth: float | None) -> bool | None:
    """Return whether the certificate is true; None if the method is not certified."""
    claim = model.guarantee_
    if claim.kind != "certified":
        return None
    if claim.spent is None or claim.budget is None:
        return False
    inside: bool = claim.spent <= claim.budget
    return inside and (truth is None or truth <= claim.spent * (1 + 1e-9))


def _measure_truth(model: Any, error: float | None) -> float | None:
    """Return the quantity that the certificate bounds; None for Fisher (another distance)."""
    if hasattr(model, "weights_"):
        return float(model.exact_residual())
    return error if hasattr(model, "distance_") else None


def make_single_table(singles: list[Single], yardstick: SolverBaseline) -> Table:
    """Return the results of all methods on one table."""
    retrain = singles[0].retrain
    names = {
        "named": retrain.named_solver,
        "named_ms": 1000 * retrain.named,
        "fastest": retrain.fastest_solver,
        "fastest_ms": 1000 * retrain.fastest,
    }
    title = f"One person leaves: {yardstick.data.describe()}"
    return Table(title, COLUMNS, [single.row() for single in singles], NOTE.format(**names))


def make_summary_table(singles: list[Single]) -> Table:
    """Return the table of all speed-ups."""
    names = list(dict.fromkeys(single.data for single in singles))
    order = list(dict.fromkeys(single.method.name for single in singles))
    titles = list(dict.fromkeys(single.method.title for single in singles))
    titles.sort(key=lambda title: order.index(title.partition(",")[0]))
    cells = {(single.method.title, single.data): single for single in singles}
    rows = [
        (title, *(_format_ratios(cells.get((title, name))) for name in names)) for title in titles
    ]
    note = "Retrain over the mean request: best named solver, and in brackets the fastest of all."
    return Table("One person leaves: all ratios", ("method", *names), rows, note)


def _format_ratios(one: Single | None) -> str:
    return "" if one is None else f"{times(one.ratio)} ({times(one.ratio_fastest)})"


def check_ratio(one: Single, least: float) -> TargetCheck:
    """Check the speed of single removals."""
    what = f"{one.data}, one person leaves: {one.method.title}, over the best named retrain"
    return TargetCheck(what, f"{one.ratio:,.1f}x", f">= {least:,g}x", one.ratio >= least)


def check_noise(one: Single, most: float) -> TargetCheck:
    """Check the accuracy lost to the noise."""
    what = f"{one.data}, {one.method.title}: accuracy beside the unnoised optimum, 100 releases"
    points = 100 * one.gain
    return TargetCheck(what, f"{points:+.2f} points", f"within {most:g}", abs(points) <= most)


def check_certificates(singles: list[Single]) -> TargetCheck:
    """Check that certificates are within their budget, and true where that can be measured."""
    judged = [single for single in singles if single.covered is not None]
    wrong = [one.method.title for one in judged if not one.covered]
    measured = sum(one.truth is not None for one in judged)
    what = f"{singles[0].data}, certificates: spent <= budget, and truth <= spent where measured"
    reached = f"{len(judged) - len(wrong)} of {len(judged)}, truth measured in {measured}"
    return TargetCheck(what, reached + (f"; not {wrong}" if wrong else ""), "all", not wrong)


def times(ratio: float) -> str:
    """Format a speed-up; write LOSS if retraining is faster."""
    if ratio < 1:
        return f"LOSS ({ratio:.2g})"
    return f"{ratio:,.3g}" if ratio < 100 else f"{ratio:,.0f}"


def distance(value: float | None) -> str:
    """Format a distance between parameters."""
    return "in the noise" if value is None else f"{value:.2g}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def _share(one: Single) -> str:
    return "-" if one.spent is None or not one.budget else f"{one.spent / one.budget:.0%}"
