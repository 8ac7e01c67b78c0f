"""DeltaGrad against the gradient descent that it replays, and against an honest retrain."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks._convex_models import Floats, Method, Race, Yardstick, deltagrad, leave, people
from benchmarks._convex_retrain import NAMED
from benchmarks._convex_single import times
from benchmarks._report import Table, Verdict, timed

__all__ = ["Replayed", "replay_table", "replay_verdicts", "replays"]

CACHED, PLAIN = "cached", "lbfgs"
COLUMNS = (
    "data", "leave", "method", "cpu ms", "x own descent", "x named retrain", "error",
    "do nothing", "exact steps", "distance bound", "fit s", "own descent s",
)  # fmt: skip
NOTE = (
    "*own descent*: the same {steps} gradient steps on the remaining rows, same step size, nothing "
    "kept. *error*: distance to where that ends; *do nothing*: the same for the model before. "
    "*x named retrain*: against {named}, which reaches the optimum and not only the end of a "
    "descent: LOSS where retraining is quicker. *distance bound*: |gradient| / l2 of the model, "
    "measured, to the optimum itself; plain descent leaves {plain:.2g}. The Hessians of "
    "`cached` are made in the fit. One person: mean of {singles} requests, after one to warm up."
)


class Replayed(NamedTuple):
    """One way to replay, one request size."""

    data: str
    method: Method
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
        """Own descent over one request."""
        return self.descent / self.cpu

    def row(self) -> tuple[Any, ...]:
        """Return the line of a table."""
        return (
            self.data, self.n_gone, self.method.title, 1000 * self.cpu, times(self.ratio),
            times(self.retrain / self.cpu), f"{self.error:.2g}", f"{self.idle:.2g}", self.exact,
            f"{self.bound:.2g}", self.fit, self.descent,
        )  # fmt: skip


def replays(yardstick: Yardstick, n_steps: int, n_gone: int, n_singles: int) -> list[Replayed]:
    """Replay with cached Hessians and with L-BFGS; one person at a time, or a crowd."""
    kinds = [deltagrad(n_steps, hessian=CACHED), deltagrad(n_steps, hessian=PLAIN)]
    return [_replayed(kind, yardstick, n_steps, n_gone, n_singles) for kind in kinds]


def _replayed(
    method: Method, yardstick: Yardstick, n_steps: int, n_gone: int, n_singles: int
) -> Replayed:
    data = yardstick.data
    model = method.make(data)
    fit = timed(partial(model.fit, data.X, data.y))[1].cpu
    gone = people(data, n_gone if n_gone > 1 else n_singles + 1, seed=3)
    before = np.array(model.coef_[0])
    requests = [gone.tolist()] if n_gone > 1 else [[int(person)] for person in gone]
    if n_gone == 1:
        leave(model, requests[:1])
        requests = requests[1:]
    race = Race(yardstick)
    race.look(gone)
    left = leave(model, requests)
    race.look(gone)
    own, descent = own_descent(yardstick, n_steps, model.learning_rate_, gone)
    W = np.array(own.coef_[0])
    return Replayed(
        data.name, method, n_gone, left.mean, descent, race.result().named,
        _norm(model.coef_[0] - W), _norm(before - W),
        left.rebuilt["exact steps"] // len(requests), float(model.distance_bound_), fit,
        float(own.distance_bound_),
    )  # fmt: skip


def own_descent(yardstick: Yardstick, n_steps: int, rate: float, gone: Any) -> tuple[Any, float]:
    """Return the model that the same steps on the remaining rows make, and seconds for them."""
    data, kept = yardstick.data, np.delete(np.arange(len(yardstick.data.y)), gone)
    X, y = data.X[kept], data.y[kept]
    settings: dict[str, Any] = {"hessian": PLAIN, "learning_rate": rate}
    quiet = deltagrad(n_steps, **settings, measure_distance=False).make(data)
    seconds = min(timed(partial(quiet.fit, X, y))[1].cpu for _ in range(2))
    return deltagrad(n_steps, **settings).make(data).fit(X, y), seconds


def _norm(difference: Floats) -> float:
    return float(np.linalg.norm(difference))


def replay_table(found: list[Replayed], yardstick: Yardstick, n_steps: int, singles: int) -> Table:
    """Return both ways and all sizes."""
    note = NOTE.format(
        steps=n_steps,
        named=yardstick.best.among(NAMED).solver,
        singles=singles,
        plain=found[0].plain_bound,
    )
    return Table("DeltaGrad", COLUMNS, [each.row() for each in found], note)


def replay_verdicts(found: list[Replayed], least: float) -> list[Verdict]:
    """Judge one person with cached Hessians on the first table."""
    ones = {each.method.settings: each for each in found if each.n_gone == 1}
    cached, plain = (ones[f"hessian {kind}"] for kind in (CACHED, PLAIN))
    what = f"{cached.data}, one person leaves: DeltaGrad, cached Hessians"
    return [
        Verdict(
            f"{what}, over its own descent",
            f"{cached.ratio:,.1f}x",
            f">= {least:g}x",
            cached.ratio >= least,
        ),
        Verdict(
            f"{what}: error beside that of the plain kind",
            f"{cached.error / plain.error:.2g}",
            "<= 1",
            cached.error <= plain.error,
        ),
    ]
