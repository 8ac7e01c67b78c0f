"""The four convex methods under test, their shared settings, and timed removals."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._convex_data import ConvexSet
from benchmarks._convex_retrain import NAMED, BestSolver, Retraining, SolverTrial, find_best_solver
from benchmarks._report import Seconds, time_call
from letheon.noise import NoiseSource

__all__ = [
    "DELTA",
    "EPSILON",
    "ConvexMethod",
    "Left",
    "RetrainRace",
    "RetrainSeconds",
    "SolverBaseline",
    "draw_people",
    "make_deltagrad",
    "make_descent",
    "make_fisher",
    "make_influence",
    "remove_people",
    "score_accuracy",
    "score_released",
]

Floats = NDArray[np.float64]
EPSILON, DELTA = 1.0, 1e-4
DELTAGRAD_STEPS = 300
N_RELEASES = 100
CLOSE = 1.6  # slower solvers, relative to the best one, are not timed again


class ConvexMethod(NamedTuple):
    """A method with its settings, and access to its parameters without noise.

    `bare` returns the parameters before noise was added, None if they are not kept.
    """

    name: str
    settings: str
    make: Callable[[ConvexSet], Any]
    bare: Callable[[Any], Floats | None]

    @property
    def title(self) -> str:
        """Name and settings."""
        return f"{self.name}, {self.settings}" if self.settings else self.name


def make_influence(sigma: float, **settings: Any) -> ConvexMethod:
    """Newton removal on secret parameters, released with noise."""
    from letheon.linear import InfluenceClassifier

    shown = _describe_settings(sigma=sigma, **settings)
    make = partial(_make_model, InfluenceClassifier, sigma=sigma, **_CERTIFIED, **settings)
    return ConvexMethod("Influence", shown, make, _read_secret)


def make_fisher(sigma: float = 0.01, **settings: Any) -> ConvexMethod:
    """Newton step on the remaining rows, then noise shaped by the Fisher matrix."""
    from letheon.linear import FisherClassifier

    shown = _describe_settings(sigma=sigma, **settings)
    make = partial(_make_model, FisherClassifier, sigma=sigma, **_CERTIFIED, **settings)
    return ConvexMethod("Fisher", shown, make, _fisher_optimum)


def make_descent(sigma: float | None = 0.01, **settings: Any) -> ConvexMethod:
    """Further training, then noise."""
    from letheon.linear import DescentToDeleteClassifier

    shown = _describe_settings(**({} if sigma is None else {"sigma": sigma}), **settings)
    make = partial(_make_model, DescentToDeleteClassifier, sigma=sigma, **_CERTIFIED, **settings)
    return ConvexMethod("Descent-to-Delete", shown, make, _read_unperturbed)


def make_deltagrad(
    n_steps: int = DELTAGRAD_STEPS, sigma: float = 0.0, **settings: Any
) -> ConvexMethod:
    """A replay of gradient descent."""
    from letheon.linear import DeltaGradClassifier

    shown = _describe_settings(**({"sigma": sigma} if sigma else {}), **settings)
    make = partial(
        _make_model, DeltaGradClassifier, n_steps=n_steps, sigma=sigma, random_state=0, **settings
    )
    return ConvexMethod("DeltaGrad", shown, make, _return_none if sigma else _read_published)


_CERTIFIED: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA}


def _make_model(kind: Any, data: ConvexSet, **settings: Any) -> Any:
    return kind(l2=data.l2, fit_intercept=False, rows="refuse", row_norm=1.0, **settings)


def _describe_settings(**settings: Any) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in settings.items()
    )


def _return_none(_: Any) -> None:
    """The parameters without noise are not kept."""


def _read_published(model: Any) -> Floats:
    return np.array(model.coef_[0])


def _read_secret(model: Any) -> Floats:
    return np.array(model.weights_.open()[:, 0])


def _fisher_optimum(model: Any) -> Floats | None:
    return None if model.optimum_ is None else model.optimum_.open()[0, :, 0].copy()


def _read_unperturbed(model: Any) -> Floats | None:
    return None if model.unperturbed_ is None else model.unperturbed_.open()[:, 0].copy()


class Left(NamedTuple):
    """Times of single removals, and the number of fallbacks."""

    seconds: list[Seconds]
    rebuilt: Counter[str]

    @property
    def cpu(self) -> Floats:
        """Processor time of each removal."""
        return np.array([each.cpu for each in self.seconds])

    @property
    def wall(self) -> float:
        """Mean wall-clock time."""
        return float(np.mean([each.wall for each in self.seconds]))

    @property
    def mean(self) -> float:
        """Mean processor time, including fallbacks."""
        return float(self.cpu.mean())

    def spread(self) -> tuple[float, float, float]:
        """Return median, p99 and maximum in milliseconds."""
        p50, p99, top = (1000 * np.quantile(self.cpu, share) for share in (0.5, 0.99, 1.0))
        return float(p50), float(p99), float(top)

    @property
    def fallbacks(self) -> str:
        """Description of the fallbacks."""
        return (
            ", ".join(f"{count} {name}" for name, count in sorted(self.rebuilt.items())) or "none"
        )


def remove_people(model: Any, requests: Iterable[list[int]], **options: Any) -> Left:
    """Remove people one by one; the time includes ids, certificate and receipt."""
    left = Left([], Counter())
    for ids in requests:
        receipt, seconds = time_call(partial(model.forget, ids, **options))
        left.seconds.append(seconds)
        left.rebuilt.update(receipt.rebuilt)
    return left


def draw_people(data: ConvexSet, n_people: int, seed: int = 0) -> NDArray[np.int64]:
    """Return random people; ids are positions in the table."""
    return np.random.default_rng(seed).permutation(len(data.y))[:n_people]


def score_accuracy(W: Floats, X: Any, y: NDArray[Any]) -> float:
    """Return the share of rows that these parameters classify correctly."""
    return float(((X @ W > 0) == y).mean())


def score_released(model: Any, data: ConvexSet) -> float:
    """Return the accuracy on test rows; for Influence, the mean of many releases."""
    if not hasattr(model, "weights_"):
        return score_accuracy(model.coef_[0], data.X_test, data.y_test)
    W, release = (
        model.weights_.open(),
        partial(model._make_mechanism().release, source=NoiseSource(None)),
    )
    draws = (release(W)[:, 0] for _ in range(N_RELEASES))
    return float(np.mean([score_accuracy(draw, data.X_test, data.y_test) for draw in draws]))


class RetrainSeconds(NamedTuple):
    """Processor seconds of a retraining, by a named solver and by the fastest solver."""

    named: float
    fastest: float
    named_solver: str
    fastest_solver: str


class SolverBaseline:
    """The solvers to compare with, on the rows of one table."""

    def __init__(self, data: ConvexSet, repeats: int) -> None:
        self.data, self.repeats = data, repeats
        self.problem = Retraining(data.X, data.y, data.l2)
        self.best: BestSolver = find_best_solver(self.problem, repeats)

    def candidates(self) -> list[SolverTrial]:
        """Return the solvers that may be the fastest on some of the rows."""
        limits = (self.best.seconds.cpu, self.best.among(NAMED).seconds.cpu)
        return [
            trial
            for trial in self.best.trials
            if trial.reached and trial.seconds.cpu <= CLOSE * limits[trial.solver in NAMED]
        ]


class RetrainRace:
    """Repeated retrainings between removals, each time on other rows.

    The number of steps of a solver depends on the rows, so the mean is reported.
    """

    def __init__(self, yardstick: SolverBaseline) -> None:
        self.yardstick = yardstick
        self.seconds: dict[str, list[float]] = {}

    def look(self, gone: NDArray[np.int64]) -> None:
        """Retrain without these rows; the memory layout is prepared before timing starts."""
        rest = self.yardstick.problem.without(gone)
        for trial in self.yardstick.candidates():
            calls = range(self.yardstick.repeats)
            shortest = min(time_call(partial(trial.call, rest))[1].cpu for _ in calls)
            self.seconds.setdefault(trial.solver, []).append(shortest)

    def result(self) -> RetrainSeconds:
        """Return the shortest mean times."""
        means = {solver: float(np.mean(values)) for solver, values in self.seconds.items()}
        named = min((name for name in means if name in NAMED), key=means.__getitem__)
        fastest = min(means, key=means.__getitem__)
        return RetrainSeconds(means[named], means[fastest], named, fastest)
