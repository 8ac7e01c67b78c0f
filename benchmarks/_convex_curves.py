"""The survey's trade-offs: noise, mini-batches, exact steps and iterations.

Efficiency is the time of a retraining divided by the time of a removal. Effectiveness and
certifiability compare the accuracy with that of the retrained optimum without noise, on test rows
and on removed rows (SAPE in per cent; less is better).
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._convex_models import (
    ConvexMethod,
    Floats,
    RetrainRace,
    SolverBaseline,
    draw_people,
    make_deltagrad,
    make_descent,
    make_fisher,
    make_influence,
    remove_people,
    score_accuracy,
)
from benchmarks._convex_retrain import NAMED, find_optimum
from benchmarks._convex_single import times
from benchmarks._report import Table, TargetCheck, time_call
from letheon.exceptions import AssumptionError, GuaranteeWarning
from letheon.measures import sape

CACHED, PLAIN = "cached", "lbfgs"
DELTAGRAD_COLUMNS = (
    "data", "leave", "method", "cpu ms", "x own descent", "x named retrain", "error",
    "do nothing", "exact steps", "distance bound", "fit s", "own descent s",
)  # fmt: skip
DELTAGRAD_NOTE = (
    "*own descent*: the same {steps} gradient steps on the remaining rows, same step size, nothing "
    "kept. *error*: distance to where that ends; *do nothing*: the same for the model before. "
    "*x named retrain*: against {named}, which reaches the optimum and not only the end of a "
    "descent: LOSS where retraining is quicker. *distance bound*: |gradient| / l2 of the model, "
    "measured, to the optimum itself; plain descent leaves {plain:.2g}. The Hessians of "
    "`cached` are made in the fit. One person: mean of {singles} requests, after one to warm up."
)


class Replayed(NamedTuple):
    """Replay of one kind for one number of people."""

    data: str
    method: ConvexMethod
    n_gone: int
    cpu: float
    descent: float
    retrain: float
    error: float
    idle: float
    exact: int
    bound: float
    fit: float
    plain_bound: float

    @property
    def ratio(self) -> float:
        """Time of the same descent on the remaining rows divided by the time of a removal."""
        return self.descent / self.cpu

    def row(self) -> tuple[Any, ...]:
        """Return the row of the table."""
        return (
            self.data, self.n_gone, self.method.title, 1000 * self.cpu, times(self.ratio),
            times(self.retrain / self.cpu), f"{self.error:.2g}", f"{self.idle:.2g}", self.exact,
            f"{self.bound:.2g}", self.fit, self.descent,
        )  # fmt: skip


def measure_replays(
    yardstick: SolverBaseline, n_steps: int, n_gone: int, n_singles: int
) -> list[Replayed]:
    """Replay with cached Hessians and with L-BFGS, for one person at a time or for a batch."""
    kinds = [make_deltagrad(n_steps, hessian=CACHED), make_deltagrad(n_steps, hessian=PLAIN)]
    return [_measure_replay(kind, yardstick, n_steps, n_gone, n_singles) for kind in kinds]


def _measure_replay(
    method: ConvexMethod, yardstick: SolverBaseline, n_steps: int, n_gone: int, n_singles: int
) -> Replayed:
    data = yardstick.data
    model = method.make(data)
    fit = time_call(partial(model.fit, data.X, data.y))[1].cpu
    gone = draw_people(data, n_gone if n_gone > 1 else n_singles + 1, seed=3)
    before = np.array(model.coef_[0])
    requests = [gone.tolist()] if n_gone > 1 else [[int(person)] for person in gone]
    if n_gone == 1:
        remove_people(model, requests[:1])
        requests = requests[1:]
    race = RetrainRace(yardstick)
    race.look(gone)
    left = remove_people(model, requests)
    race.look(gone)
    own, descent = own_descent(yardstick, n_steps, model.learning_rate_, gone)
    W = np.array(own.coef_[0])
    return Replayed(
        data.name, method, n_gone, left.mean, descent, race.result().named,
        _compute_norm(model.coef_[0] - W), _compute_norm(before - W),
        left.rebuilt["exact steps"] // len(requests), float(model.distance_bound_), fit,
        float(own.distance_bound_),
    )  # fmt: skip


def own_descent(
    yardstick: SolverBaseline, n_steps: int, rate: float, gone: Any
) -> tuple[Any, float]:
    """Return the model after the same steps on the remaining rows, and the seconds."""
    data, kept = yardstick.data, np.delete(np.arange(len(yardstick.data.y)), gone)
    X, y = data.X[kept], data.y[kept]
    settings: dict[str, Any] = {"hessian": PLAIN, "learning_rate": rate}
    quiet = make_deltagrad(n_steps, **settings, measure_distance=False).make(data)
    seconds = min(time_call(partial(quiet.fit, X, y))[1].cpu for _ in range(2))
    return make_deltagrad(n_steps, **settings).make(data).fit(X, y), seconds


def _compute_norm(difference: Floats) -> float:
    return float(np.linalg.norm(difference))


def make_replay_table(
    replays: list[Replayed], yardstick: SolverBaseline, n_steps: int, singles: int
) -> Table:
    """Return the table of both kinds and all sizes."""
    note = DELTAGRAD_NOTE.format(
        steps=n_steps,
        named=yardstick.best.among(NAMED).solver,
        singles=singles,
        plain=replays[0].plain_bound,
    )
    return Table("DeltaGrad", DELTAGRAD_COLUMNS, [each.row() for each in replays], note)


def check_replays(replays: list[Replayed], least: float) -> list[TargetCheck]:
    """Check the removal of one person with cached Hessians on the first table."""
    ones = {each.method.settings: each for each in replays if each.n_gone == 1}
    cached, plain = (ones[f"hessian {kind}"] for kind in (CACHED, PLAIN))
    what = f"{cached.data}, one person leaves: DeltaGrad, cached Hessians"
    return [
        TargetCheck(
            f"{what}, over its own descent",
            f"{cached.ratio:,.1f}x",
            f">= {least:g}x",
            cached.ratio >= least,
        ),
        TargetCheck(
            f"{what}: error beside that of the plain kind",
            f"{cached.error / plain.error:.2g}",
            "<= 1",
            cached.error <= plain.error,
        ),
    ]


KEPT = "all at once, kept Hessian"
COLUMNS = (
    "data", "leave", "method", "dial", "value", "x named", "effectiveness: SAPE test",
    "certifiability: SAPE deleted", "error", "epsilon", "extra",
)  # fmt: skip
NOTE = (
    "All people of a line leave in one request: random ones of the second class only, so that the "
    "two classes are no longer balanced as they were. *SAPE test* and *SAPE deleted*: 100 |a - b| "
    "/ (a + b) of the accuracies of the published model and of the retrained optimum without "
    "noise, on the test rows and on the rows that left; mean of {repeats} runs with fresh noise. "
    "*x named*: the fastest of L-BFGS and Newton-Cholesky over the mean request. *error*: "
    "distance to the retrained optimum before noise. "
)


class Gone(NamedTuple):
    """Removed people of a table, the time of a retraining without them, and its optimum."""

    yardstick: SolverBaseline
    ids: NDArray[np.int64]
    seconds: float
    W: Floats

    @classmethod
    def of(cls, yardstick: SolverBaseline, n_people: int) -> "Gone":
        """Choose random people of the second class."""
        data = yardstick.data
        those = np.random.default_rng(4).permutation(np.flatnonzero(data.y == 1))
        ids = those[:n_people]
        race = RetrainRace(yardstick)
        race.look(ids)
        W = find_optimum(yardstick.problem.without(ids), yardstick.best.W[:, 0])
        return cls(yardstick, ids, race.result().named, W)


class Point(NamedTuple):
    """One value of one parameter. Ratio and errors are None where the method raised an error."""

    data: str
    n_gone: int
    method: str
    dial: str
    value: float
    ratio: float | None = None
    test: float | None = None
    deleted: float | None = None
    error: float | None = None
    epsilon: float | None = None
    extra: str = ""

    def row(self) -> tuple[Any, ...]:
        """Return the row of the table."""
        numbers = (self.test, self.deleted, self.error, self.epsilon)
        return (
            self.data, self.n_gone, self.method, self.dial, f"{self.value:g}",
            "-" if self.ratio is None else times(self.ratio),
            *("-" if number is None else f"{number:.2g}" for number in numbers), self.extra,
        )  # fmt: skip


class CurveRun(NamedTuple):
    """One fit and one removal."""

    cpu: float
    test: float
    deleted: float
    error: float | None
    epsilon: float | None
    model: Any


def _run_once(method: ConvexMethod, gone: Gone, **options: Any) -> CurveRun:
    data = gone.yardstick.data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuaranteeWarning)
        model = method.make(data).fit(data.X, data.y)
        _, seconds = time_call(partial(model.forget, gone.ids.tolist(), **options))
    W = np.asarray(model.coef_[0])
    test = (data.X_test, data.y_test)
    left = (data.X[gone.ids], data.y[gone.ids])
    bare = method.bare(model)
    return CurveRun(
        seconds.cpu,
        sape(score_accuracy(W, *test), score_accuracy(gone.W, *test)),
        sape(score_accuracy(W, *left), score_accuracy(gone.W, *left)),
        None if bare is None else float(np.linalg.norm(bare - gone.W)),
        getattr(model, "epsilon_", None),
        model,
    )


def _measure_point(
    method: ConvexMethod, gone: Gone, dial: str, value: float, repeats: int, **options: Any
) -> tuple[Point, Any]:
    """Return the mean of several runs and the last model; an error of the method is recorded."""
    name = method.name
    point = Point(gone.yardstick.data.name, len(gone.ids), name, dial, value)
    try:
        runs = [_run_once(method, gone, **options) for _ in range(repeats)]
    except AssumptionError as error:
        return point._replace(extra=f"refused: {str(error).partition(';')[0]}"), None
    errors = [run.error for run in runs if run.error is not None]
    measured = point._replace(
        ratio=gone.seconds / float(np.mean([run.cpu for run in runs])),
        test=float(np.mean([run.test for run in runs])),
        deleted=float(np.mean([run.deleted for run in runs])),
        error=float(np.mean(errors)) if errors else None,
        epsilon=runs[-1].epsilon,
    )
    return measured, runs[-1].model


def vary_sigma(
    gone: Gone, grid: dict[str, tuple[float, ...]], repeats: int, n_steps: int
) -> list[Point]:
    """Vary the noise of every method; the scales of the methods are not comparable."""
    makers: dict[str, Callable[[float], ConvexMethod]] = {
        "Influence": make_influence,
        "Fisher": partial(make_fisher, state="secret"),
        "Descent-to-Delete": make_descent,
        "DeltaGrad": lambda sigma: make_deltagrad(n_steps, sigma=sigma, hessian="cached"),
    }
    points = []
    for name, make in makers.items():
        for sigma in grid[name]:
            point, model = _measure_point(make(sigma), gone, "sigma", sigma, repeats)
            points.append(point._replace(extra=_describe_fallbacks(model)))
    return points


def _describe_fallbacks(model: Any) -> str:
    account = getattr(model, "account_", None)
    if account is None:
        return ""
    names = ("exact", "polishes", "hessians", "retrains")
    counts = {name: getattr(account, name, 0) for name in names}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def vary_minibatches(gone: Gone, sizes: tuple[int, ...]) -> list[Point]:
    """Vary m' of Influence and Fisher: one Hessian per mini-batch, then all rows at once."""
    points, m = [], len(gone.ids)
    for method in (make_influence(0.07), make_fisher(state="secret")):
        chosen = (*(size for size in sizes if size < m), m)
        points += [
            _measure_point(method, gone, "m'", size, 1, batch_size=size)[0] for size in chosen
        ]
        points.append(_measure_point(method, gone, KEPT, m, 1)[0])
    return points


def vary_periods(
    gone: Gone, values: tuple[int, ...], counts: tuple[int, ...], n_steps: int
) -> list[Point]:
    """Vary T0 of plain DeltaGrad, and the number of cached Hessians."""
    settings: list[tuple[str, int, dict[str, Any]]] = [
        *(("T0", value, {"period": value}) for value in values),
        *(("Hessians", n, {"hessian": "cached", "n_checkpoints": n}) for n in counts),
    ]
    points: list[Point] = []
    own: Any = None
    for dial, value, chosen in settings:
        method = make_deltagrad(n_steps, **chosen)
        point, model = _measure_point(method, gone, dial, value, 1)
        if own is None:
            own, seconds = own_descent(gone.yardstick, n_steps, model.learning_rate_, gone.ids)
        ratio = seconds * (point.ratio or 0.0) / gone.seconds
        off = float(np.linalg.norm(model.coef_ - own.coef_))
        extra = f"{ratio:,.1f}x own descent"
        points.append(point._replace(error=off, extra=extra))
    return points


def vary_iterations(gone: Gone, values: tuple[int, ...], repeats: int) -> list[Point]:
    """Vary I of Descent-to-Delete by theorem, from the secret and from the published state."""
    points = []
    for state in ("secret", "published"):
        for value in values:
            method = make_descent(None, stop="theorem", state=state, iterations=value)
            point, model = _measure_point(method, gone, "I", value, repeats)
            if model is not None:
                extra = f"sigma {model.sigma_:.3g}, {model.n_passes_:.0f} passes"
                point = point._replace(extra=extra)
            points.append(point._replace(method=f"{method.name}, {state}"))
    return points


def make_curve_table(title: str, points: list[Point], repeats: int, note: str = "") -> Table:
    """Return the table of one parameter."""
    rows = [point.row() for point in points]
    return Table(title, COLUMNS, rows, NOTE.format(repeats=repeats) + note)
