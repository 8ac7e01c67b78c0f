"""Forests under test, and timed removals."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmarks._data import Split
from letheon import Receipt
from letheon.forest import DaREForestClassifier


def time_call(call: Callable[[], Any]) -> float:
    """Return the wall-clock seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class RepeatedTimes(NamedTuple):
    """Repeated times of one operation, in seconds."""

    what: str
    values: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Mean time."""
        return float(self.values.mean())

    def quantile(self, share: float) -> float:
        """Return a quantile of the times."""
        return float(np.quantile(self.values, share))

    def row(self, unit: float) -> tuple[Any, ...]:
        """Return the row of the table, in milliseconds, and the mean as a multiple of `unit`."""
        spread = (1000 * self.quantile(share) for share in (0.5, 0.99, 1))
        return (
            self.what,
            len(self.values),
            1000 * self.mean,
            *spread,
            format_in_units(self.mean, unit),
        )


def format_in_units(value: float, unit: float) -> str:
    """Format a time as a multiple or as a fraction of F."""
    share = value / unit
    return f"{share:.2f} F" if share > 0.05 else f"F/{1 / share:,.0f}"


class Quality(NamedTuple):
    """Ranking quality on the test rows."""

    auc: float
    average_precision: float


def score_model(model: Any, split: Split) -> Quality:
    """Score a fitted model on the test rows."""
    scores = model.predict_proba(split.X_test)[:, 1]
    return Quality(
        float(roc_auc_score(split.y_test, scores)),
        float(average_precision_score(split.y_test, scores)),
    )


class ForestSize(NamedTuple):
    """Number of trees and depth of all forests in a comparison."""

    n_estimators: int = 100
    max_depth: int = 10

    def ours(self, seed: int, **settings: Any) -> Any:
        """Return our forest, unfitted, one thread."""
        chosen = {"n_thresholds": 25, "n_jobs": 1, **self._asdict(), **settings}
        return DaREForestClassifier(max_features="sqrt", random_state=seed, **chosen)

    def random_forest(self, seed: int) -> Any:
        """Return scikit-learn's forest whose fit time is the unit F."""
        return RandomForestClassifier(
            **self._asdict(), max_features="sqrt", bootstrap=False, n_jobs=1, random_state=seed
        )

    def extra_trees(self, seed: int) -> Any:
        """Return scikit-learn's extremely randomised trees."""
        return ExtraTreesClassifier(
            **self._asdict(), max_features="sqrt", n_jobs=1, random_state=seed
        )


class RemainingPeople:
    """People who are not removed yet, in random order."""

    def __init__(self, people: NDArray[np.int64], seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._waiting: list[int] = self._rng.permutation(people).tolist()

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, number: int) -> list[int]:
        """Return the next people and remove them from the list."""
        taken = self._waiting[-number:]
        del self._waiting[-number:]
        return taken

    def put_back(self, people: list[int]) -> None:
        """Put people back at random positions."""
        self._waiting = self._rng.permutation(self._waiting + people).tolist()


class RemovalTimes(NamedTuple):
    """Times of single removals and of the final `settle`, with means of the receipts.

    `rows` are the rows of dropped subtrees; `inside` are the seconds reported by the receipts.
    """

    forgets: NDArray[np.float64]
    settle: float
    rows: float
    inside: float

    @property
    def settled(self) -> float:
        """Time of one removal, with its share of the `settle`."""
        return float((self.forgets.sum() + self.settle) / len(self.forgets))


def remove_people(model: Any, crowd: RemainingPeople, number: int, *, rebuild: str) -> RemovalTimes:
    """Forget people one by one, then settle. `rebuild` does not change the result."""
    model.rebuild = rebuild
    model.settle()
    receipts: list[Receipt] = []
    people = [[person] for person in crowd.take(number)]
    times = [time_call(partial(_forget_people, model, person, receipts)) for person in people]
    rows = float(np.mean([receipt.rebuilt.get("rows", 0) for receipt in receipts]))
    inside = float(np.mean([receipt.seconds for receipt in receipts]))
    return RemovalTimes(np.array(times), time_call(model.settle), rows, inside)


def _forget_people(model: Any, people: list[int], receipts: list[Receipt]) -> None:
    receipts.append(model.forget(people))


def time_first_predict(
    model: Any, crowd: RemainingPeople, X: NDArray[np.float32], n_rows: int, n: int
) -> RepeatedTimes:
    """Time the first prediction after a lazy removal from a settled forest."""
    model.rebuild = "lazy"
    rng, times = np.random.default_rng(0), []
    for person in crowd.take(n):
        model.settle()
        model.forget([person])
        rows = X[rng.integers(len(X), size=n_rows)]
        times.append(time_call(partial(model.predict_proba, rows)))
    return RepeatedTimes(f"first predict after it, {n_rows:,} row(s)", np.array(times))


def time_batch(model: Any, crowd: RemainingPeople, share: float) -> RepeatedTimes:
    """Time one removal of a share of the people at once, `settle` included."""
    model.rebuild = "lazy"
    model.settle()
    people = crowd.take(int(share * len(crowd)))
    took = time_call(partial(model.forget, people)) + time_call(model.settle)
    return RepeatedTimes(f"batch of {share:.0%} of the people + settle", np.array([took]))


def time_worst_removal(
    model: Any, crowd: RemainingPeople, n_drawn: int, repeats: int
) -> list[RepeatedTimes]:
    """Forget the costliest of several random people, repeatedly; settle after each."""
    model.rebuild = "lazy"
    asked, times, settled = [], [], []
    for _ in range(repeats):
        model.settle()
        drawn = crowd.take(n_drawn)
        costs: list[int] = []
        asked += [time_call(partial(_estimate_cost, model, [person], costs)) for person in drawn]
        worst = drawn.pop(int(np.argmax(costs)))
        crowd.put_back(drawn)
        times.append(time_call(partial(model.forget, [worst])))
        settled.append(times[-1] + time_call(model.settle))
    return [
        RepeatedTimes("forget_cost of one", np.array(asked)),
        RepeatedTimes(f"forget, lazy, worst of {n_drawn:,}", np.array(times)),
        RepeatedTimes(f"forget + settle, worst of {n_drawn:,}", np.array(settled)),
    ]


def _estimate_cost(model: Any, people: list[int], costs: list[int]) -> None:
    costs.append(model.forget_cost(people).rows)
