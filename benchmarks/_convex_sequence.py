"""A thousand people leave one after the other: what of the budget is spent, and what is true."""

from typing import Any, NamedTuple

import numpy as np

from benchmarks._convex_models import (
    EPSILON,
    Left,
    Method,
    Race,
    Yardstick,
    accuracy,
    leave,
    people,
    released_accuracy,
)
from benchmarks._convex_retrain import optimum
from benchmarks._report import Table, Verdict

__all__ = ["Checkpoint", "Sequence", "run_sequence", "sequence_table", "sequence_verdicts"]

POINTS = 0.1
COLUMNS = (
    "method", "gone", "cpu ms per person", "spent", "true residual", "budget", "epsilon",
    "exact residuals", "polishes", "retrains", "accuracy", "mean of 100 releases", "retrained",
    "error",
)  # fmt: skip
NOTE = (
    "epsilon=1, delta=1e-4. *spent*: the account, an upper bound of the residual. *true residual*: "
    "measured beside the model, which does not learn it. Counts of fallbacks are since the fit. "
    "*accuracy*: of the model as it is released; *retrained*: without noise. *error*: distance to "
    "the retrained optimum, before noise. Retrains of the last line "
    "over the time of all: {ratio:,.0f}x the best named solver, mean of {n_people:,} people."
)


class Checkpoint(NamedTuple):
    """How things stand after so many people. Accuracies and error only where they were measured."""

    gone: int
    cpu: float
    spent: float
    true: float
    budget: float
    epsilon: float
    exact: int
    polishes: int
    retrains: int
    accuracy: float | None = None
    released: float | None = None
    retrained: float | None = None
    error: float | None = None

    @property
    def off(self) -> float:
        """Points between the mean accuracy of releases and that of a retrain without noise."""
        if self.released is None or self.retrained is None:
            return 0.0
        return 100 * abs(self.released - self.retrained)


class Sequence(NamedTuple):
    """One method over many requests."""

    data: str
    method: Method
    checkpoints: list[Checkpoint]
    left: list[float]
    retrain: float


def run_sequence(
    method: Method, yardstick: Yardstick, n_people: int, every: int, n_retrained: int
) -> Sequence:
    """Let people leave one by one, and look at the model every so often."""
    data = yardstick.data
    gone = people(data, n_people, seed=2)
    model = method.make(data).fit(data.X, data.y)
    looks = set(np.linspace(0, n_people, n_retrained + 1).astype(int)[1:].tolist())
    race, found = Race(yardstick), list[Checkpoint]()
    times: list[float] = []

    for begin in range(0, n_people, every):
        part = gone[begin : begin + every]
        left = leave(model, [[int(person)] for person in part])
        times.extend(left.cpu.tolist())
        now = begin + len(part)
        point = _stand(model, now, left)
        if now in looks:
            race.look(gone[:now])
            point = _retrained(method, yardstick, model, point, gone[:now])
        found.append(point)
    return Sequence(data.name, method, found, times, race.result().named)


def _stand(model: Any, gone: int, left: Left) -> Checkpoint:
    account = model.account_
    return Checkpoint(
        gone, left.mean, account.spent, model.exact_residual(), account.limit, model.epsilon_,
        account.exact, account.polishes, account.retrains,
    )  # fmt: skip


def _retrained(
    method: Method, yardstick: Yardstick, model: Any, point: Checkpoint, gone: Any
) -> Checkpoint:
    data, W = yardstick.data, method.bare(model)
    best = optimum(yardstick.problem.without(gone), yardstick.best.W[:, 0])
    assert W is not None
    return point._replace(
        accuracy=accuracy(model.coef_[0], data.X_test, data.y_test),
        released=released_accuracy(model, data),
        retrained=accuracy(best, data.X_test, data.y_test),
        error=float(np.linalg.norm(W - best)),
    )


def sequence_table(found: Sequence) -> Table:
    """Return the checkpoints at which retrains were made, and some between."""
    rows = [
        (
            found.method.title, point.gone, 1000 * point.cpu, point.spent, point.true,
            point.budget, point.epsilon, point.exact, point.polishes, point.retrains,
            *("" if value is None else f"{value:.4f}" for value in
              (point.accuracy, point.released, point.retrained)),
            "" if point.error is None else point.error,
        )
        for point in found.checkpoints
    ]  # fmt: skip
    n_people = len(found.left)
    note = NOTE.format(ratio=found.retrain / np.mean(found.left), n_people=n_people)
    title = f"{n_people:,} people leave one after the other: {found.data}, {found.method.title}"
    return Table(title, COLUMNS, rows, note)


def sequence_verdicts(found: Sequence) -> list[Verdict]:
    """Judge retrains, accuracy, budget and the truth of the account."""
    last = found.checkpoints[-1]
    start = f"{found.data}, {len(found.left):,} people one by one, {found.method.settings}"
    worst = max(point.off for point in found.checkpoints)
    false = [point.gone for point in found.checkpoints if point.true > point.spent * (1 + 1e-9)]
    over = max(point.epsilon for point in found.checkpoints)
    return [
        Verdict(f"{start}: retrains", str(last.retrains), "0", last.retrains == 0),
        Verdict(
            f"{start}: mean accuracy of releases beside the unnoised optimum",
            f"{worst:.2f} points",
            f"<= {POINTS} points",
            worst <= POINTS + 1e-9,
        ),
        Verdict(f"{start}: epsilon spent", f"{over:.3f}", f"<= {EPSILON:g}", over <= EPSILON),
        Verdict(
            f"{start}: true residual below the account at {len(found.checkpoints)} checkpoints",
            "always" if not false else f"not after {false}",
            "always",
            not false,
        ),
    ]
