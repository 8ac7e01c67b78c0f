"""Streams of requests, with true values and the estimates of each watcher."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin

from letheon.datasets import Requests
from letheon.measures import sape
from letheon.monitor import Calibration, Monitor, MonitorTolerances
from letheon.monitor._calibrate import StreamStart, fit_limits, rehearse_all

Floats = NDArray[np.float64]
DRIFTS = ("stale", "half", "nothing", "finetune")


class RemovalReceipt(NamedTuple):
    """The fields of a receipt that the monitor reads."""

    n_rows: int
    seconds: float


class DriftingClassifier(ClassifierMixin, BaseEstimator):
    """Logistic regression whose removals drift away from a retrained model.

    drift : {"stale", "half", "nothing", "finetune"}
        *stale*: one Newton step per removal from the gradient of the leaving rows alone, with
        the Hessian of the fit, so that errors add up. *half*: half of such a step. *nothing*: the
        rows are dropped, the model stays. *finetune*: one gradient step on the remaining rows.
    """

    n_trainings: ClassVar[int] = 0

    def __init__(self, drift: str = "stale", l2: float = 0.01) -> None:
        self.drift = drift
        self.l2 = l2

    def fit(self, X: Any, y: Any, ids: Any = None) -> Self:
        """Fit by Newton's method and count the training."""
        DriftingClassifier.n_trainings += 1
        self.X_ = np.column_stack([np.asarray(X, float), np.ones(len(X))])
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.t_ = 2.0 * codes - 1
        self.ids_held_ = np.arange(len(X)) if ids is None else np.asarray(ids)
        self.w_ = np.zeros(self.X_.shape[1])
        for _ in range(30):
            gradient, hessian = self._slopes()
            self.w_ = self.w_ - np.linalg.solve(hessian, gradient)
            if abs(gradient).max() < 1e-9:
                break
        self.inverse_ = np.linalg.inv(self._slopes()[1])
        return self

    def _slopes(self) -> tuple[Floats, Floats]:
        """Gradient and Hessian of the mean loss on the remaining rows."""
        n = len(self.X_)
        p = 1 / (1 + np.exp(np.clip(self.t_ * (self.X_ @ self.w_), -30, 30)))
        gradient = -(self.X_.T @ (self.t_ * p)) / n + self.l2 * self.w_
        weights = p * (1 - p)
        return gradient, (self.X_.T * weights) @ self.X_ / n + self.l2 * np.eye(len(self.w_))

    def forget(self, ids: Any) -> RemovalReceipt:
        """Remove the rows and update the parameters."""
        leaving = np.isin(self.ids_held_, ids)
        pull = self.pulls(leaving).sum(axis=0)
        self.X_, self.t_ = self.X_[~leaving], self.t_[~leaving]
        self.ids_held_ = self.ids_held_[~leaving]
        if self.drift == "finetune":
            self.w_ = self.w_ - self._slopes()[0]
        elif self.drift != "nothing":
            share = {"stale": 1.0, "half": 0.5}[self.drift]
            self.w_ = self.w_ + share * self.inverse_ @ pull / len(self.X_)
        return RemovalReceipt(int(leaving.sum()), 1e-6)

    def pulls(self, which: NDArray[np.bool_]) -> Floats:
        """Gradient of the loss of each of these rows."""
        X, t = self.X_[which], self.t_[which]
        p = 1 / (1 + np.exp(np.clip(t * (X @ self.w_), -30, 30)))
        return -X * (t * p)[:, None] + self.l2 * self.w_

    def upheaval(self, ids: Any) -> float:
        """Distance that a removal moves the parameters, to first order."""
        pull = self.pulls(np.isin(self.ids_held_, ids)).sum(axis=0)
        return float(np.linalg.norm(self.inverse_ @ pull))

    @property
    def n_rows_(self) -> int:
        """Number of remaining rows."""
        return len(self.X_)

    def predict_proba(self, X: Any) -> Floats:
        """Return class probabilities."""
        score = np.asarray(X, float) @ self.w_[:-1] + self.w_[-1]
        p = 1 / (1 + np.exp(-np.clip(score, -30, 30)))
        return np.column_stack([1 - p, p])

    def predict(self, X: Any) -> NDArray[Any]:
        """Return labels."""
        labels: NDArray[Any] = self.classes_[(self.predict_proba(X)[:, 1] > 0.5).astype(int)]
        return labels


KINDS = ("uniform", "class", "adaptive", "worst")
TOLERANCES = MonitorTolerances(effectiveness=0.005, certifiability=3.0)
CANDIDATES = 10
# People; one request in a large table does little, and only 40 of them are rehearsed.
SIZES = (400, 4000)
WATCHERS = ("ours, any kind", "ours, this kind", "survey")
ORACLE = "oracle"


class StreamWorld(NamedTuple):
    """A small table and the drift of its model."""

    X: NDArray[Any]
    y: NDArray[Any]
    X_test: NDArray[Any]
    y_test: NDArray[Any]
    drift: str

    @property
    def size(self) -> str:
        """Number of people, as text."""
        return f"{len(self.y):,}"

    def trained(self, keep: NDArray[np.int64]) -> DriftingClassifier:
        """Return a model trained on these rows."""
        return DriftingClassifier(self.drift).fit(self.X[keep], self.y[keep], ids=keep)


def make_world(seed: int, n_rows: int | None = None, n_columns: int = 8) -> StreamWorld:
    """Draw a logistic problem with columns of different scales."""
    n_rows, n_test = SIZES[seed // len(DRIFTS) % len(SIZES)] if n_rows is None else n_rows, 400
    rng = np.random.default_rng([seed, 6])
    scales = rng.uniform(0.5, 2.0, n_columns)
    X = rng.normal(size=(n_rows + n_test, n_columns)) * scales
    score = X @ (rng.normal(size=n_columns) * 0.5) + rng.normal() * 0.5
    y = (rng.random(len(X)) < 1 / (1 + np.exp(-score))).astype(int)
    drift = DRIFTS[seed % len(DRIFTS)]
    return StreamWorld(X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:], drift)


def make_requests(kind: str, n: int) -> Requests:
    """Return the stream; the worst case is the person who moves the parameters most."""
    return Requests(kind=kind, n=n, candidates=CANDIDATES, cost=_measure_upheaval)  # type: ignore[arg-type]


def _measure_upheaval(model: Any, ids: NDArray[Any]) -> float:
    return float(model.upheaval(ids))


def run_rehearsals(kinds: tuple[str, ...], n_streams: int) -> Calibration:
    """Return the rehearsals of our watchers."""
    return Calibration(
        kinds=kinds,
        assume="" if set(kinds) == set(KINDS) else f"streams are {' or '.join(kinds)}",
        n_streams=n_streams,
        n_requests=40,
        horizon=0.1,
        n_looks=10,
        requests={"candidates": CANDIDATES, "cost": _measure_upheaval},
    )


def _measure_confidence(model: Any, X: NDArray[Any], y: NDArray[Any]) -> float:
    return float(model.predict_proba(X)[np.arange(len(y)), y].mean())


class Watcher(Protocol):
    """A model that forgets, estimates its error and decides; the caller retrains."""

    @property
    def model(self) -> Any:
        """The current model."""

    def forget(self, ids: Any) -> tuple[dict[str, float], bool]:
        """Forget; return the estimates and whether to retrain."""

    def retrain(self, truth: dict[str, float]) -> None:
        """Retrain, given the true values of the current model."""


@dataclass
class Ours:
    """The monitor of letheon."""

    monitor: Monitor

    @property
    def model(self) -> Any:
        """The current model."""
        return self.monitor.model

    def forget(self, ids: Any) -> tuple[dict[str, float], bool]:
        """Forget; return the estimates and whether to retrain."""
        reading = self.monitor.forget(ids)
        return reading.proxies, reading.decision == "retrain"

    def retrain(self, truth: dict[str, float]) -> None:
        """Retrain."""
        del truth  # the monitor measures the truth itself
        self.monitor.retrain()


@dataclass
class PlainWatcher:
    """The survey's proxy: c and e from the last retraining, 1 before the first.

    0/0 keeps the factor; the denominator is at least one test row. The proxy is even given the true
    certifiability on forgotten rows, which would not be available in practice.
    """

    world: StreamWorld
    keep: NDArray[np.int64]
    model: Any = None
    then: float = 0.0
    factors: dict[str, float] = field(
        default_factory=lambda: {"effectiveness": 1.0, "certifiability": 1.0}
    )
    said: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Train the first model."""
        self._train()

    def _train(self) -> None:
        self.model = self.world.trained(self.keep)
        self.then = _measure_confidence(self.model, self.world.X_test, self.world.y_test)

    def forget(self, ids: Any) -> tuple[dict[str, float], bool]:
        """Forget; return the estimates and whether to retrain."""
        self.model.forget(ids)
        self.keep = np.setdiff1d(self.keep, ids)
        now = _measure_confidence(self.model, self.world.X_test, self.world.y_test)
        self.said = {
            "effectiveness": abs(now - self.then),
            "certifiability": sape(now, self.then),
        }
        estimates = {name: self.factors[name] * said for name, said in self.said.items()}
        limits = TOLERANCES.get_watched()
        return estimates, any(estimates[name] > limits[name] for name in limits)

    def retrain(self, truth: dict[str, float]) -> None:
        """Retrain and update both factors."""
        n = len(self.world.y_test)
        for name, least in (("effectiveness", 1 / n), ("certifiability", 50 / n)):
            if truth[name] > 0 or self.said[name] > 0:
                self.factors[name] = truth[name] / max(self.said[name], least)
        self._train()


@dataclass
class Oracle(PlainWatcher):
    """A watcher that knows the true values and retrains exactly when a tolerance is exceeded."""

    def forget(self, ids: Any) -> tuple[dict[str, float], bool]:
        """Forget; the caller decides by the true values."""
        super().forget(ids)
        return {}, False


class StreamStep(NamedTuple):
    """One request: true values, estimates and decision."""

    truth: dict[str, float]
    estimate: dict[str, float]
    retrained: bool
    n_trainings: int = 0
    """Trainings of the watcher, rehearsals included."""

    @property
    def is_breach(self) -> bool:
        """Whether a true value exceeds its tolerance."""
        return any(self.truth[name] > most for name, most in TOLERANCES.get_watched().items())

    @property
    def excess(self) -> float:
        """Largest excess over a tolerance, as a share of it."""
        limits = TOLERANCES.get_watched()
        return max(max(self.truth[name] / most - 1, 0.0) for name, most in limits.items())


def run_stream(
    world: StreamWorld, watcher: Watcher, kind: str, n: int, seed: int
) -> Iterator[StreamStep]:
    """Run one stream; yield the true values after every request, by naive retraining."""
    all_people = np.arange(len(world.y))
    view, gone, since = _View(watcher), np.empty(0, int), np.empty(0, int)
    for ids in make_requests(kind, n).stream(view, world.X, world.y, seed=seed):
        before = DriftingClassifier.n_trainings
        estimate, alarm = watcher.forget(ids)
        gone, since = np.append(gone, ids), np.append(since, ids)
        truth = _measure_truth(world, watcher.model, np.setdiff1d(all_people, gone), since)
        step = StreamStep(truth, estimate, alarm)
        if isinstance(watcher, Oracle) and step.is_breach:
            step = step._replace(retrained=True)
        before += 1  # the retrained model of the true values
        if step.retrained:
            watcher.retrain(truth)
            since = np.empty(0, int)
        yield step._replace(n_trainings=DriftingClassifier.n_trainings - before)


def _measure_truth(
    world: StreamWorld, model: Any, keep: NDArray[np.int64], since: NDArray[np.int64]
) -> dict[str, float]:
    naive = world.trained(keep)
    test, gone = (world.X_test, world.y_test), (world.X[since], world.y[since])
    return {
        "effectiveness": abs(_measure_confidence(model, *test) - _measure_confidence(naive, *test)),
        "certifiability": sape(
            _measure_confidence(model, *gone), _measure_confidence(naive, *gone)
        ),
    }


class _View:
    """The current model of a watcher, as adaptive requesters see it."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watcher.model, name)


def make_watchers(world: StreamWorld, n_streams: int, seed: int) -> Callable[[str, str], Watcher]:
    """Return a factory of watchers; all share the same rehearsals."""
    all_people = np.arange(len(world.y))
    monitor = Monitor(
        world.trained(all_people),
        world.X_test,
        world.y_test,
        tolerances=TOLERANCES,
        on_breach="advise",
        retrain_with=(world.X, world.y),
        calibration=None,
        random_state=seed,
    )
    limits = TOLERANCES.get_watched()
    settings = run_rehearsals(KINDS, n_streams)
    assert monitor._rows is not None
    stage = StreamStart(monitor.model, monitor._panel, monitor._rows)
    streams = rehearse_all(settings, stage, limits, seed=seed)

    def ours(kinds: tuple[str, ...]) -> Ours:
        fresh = copy.deepcopy(monitor)
        fresh.calibration = run_rehearsals(kinds, n_streams)
        chosen = {
            name: [r for r in rehearsed if r.kind in kinds] for name, rehearsed in streams.items()
        }
        n_test, n_rows = len(world.y_test), len(world.y)
        fresh.limits = fit_limits(chosen, limits, n_test=n_test, n_rows=n_rows, miss=settings.miss)
        return Ours(fresh)

    def make(name: str, kind: str) -> Watcher:
        if name == "survey":
            return PlainWatcher(world, all_people)
        if name == ORACLE:
            return Oracle(world, all_people)
        return ours(KINDS if name == WATCHERS[0] else (kind,))

    return make
