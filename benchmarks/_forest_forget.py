"""People leave a forest: one by one, in batches, and the worst of a thousand."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._forest_models import Timing, seconds
from letheon import Receipt

__all__ = ["Crowd", "Leaving", "batch", "first_predict", "leave", "worst_leave"]


class Crowd:
    """People who have not left yet, in random order."""

    def __init__(self, people: NDArray[np.int64], seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._waiting: list[int] = self._rng.permutation(people).tolist()

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, number: int) -> list[int]:
        """Return the next people, who are not drawn again."""
        taken = self._waiting[-number:]
        del self._waiting[-number:]
        return taken

    def put_back(self, people: list[int]) -> None:
        """Return people to random places."""
        self._waiting = self._rng.permutation(self._waiting + people).tolist()


class Leaving(NamedTuple):
    """Times of single removals and of the settling after all of them, with the receipts' means.

    `rows` are to be built again; `inside` are the seconds that the receipts tell of.
    """

    forgets: NDArray[np.float64]
    settle: float
    rows: float
    inside: float

    @property
    def settled(self) -> float:
        """Time of one removal, everything counted."""
        return float((self.forgets.sum() + self.settle) / len(self.forgets))


def leave(model: Any, crowd: Crowd, number: int, *, rebuild: str) -> Leaving:
    """Forget people one by one, then settle. `rebuild` never changes the result."""
    model.rebuild = rebuild
    model.settle()
    receipts: list[Receipt] = []
    people = [[person] for person in crowd.take(number)]
    times = [seconds(partial(_forget, model, person, receipts)) for person in people]
    rows = float(np.mean([receipt.rebuilt.get("rows", 0) for receipt in receipts]))
    inside = float(np.mean([receipt.seconds for receipt in receipts]))
    return Leaving(np.array(times), seconds(model.settle), rows, inside)


def _forget(model: Any, people: list[int], receipts: list[Receipt]) -> None:
    receipts.append(model.forget(people))


def first_predict(model: Any, crowd: Crowd, X: NDArray[np.float32], n_rows: int, n: int) -> Timing:
    """Time the first prediction after a lazy removal from a settled forest."""
    model.rebuild = "lazy"
    rng, times = np.random.default_rng(0), []
    for person in crowd.take(n):
        model.settle()
        model.forget([person])
        rows = X[rng.integers(len(X), size=n_rows)]
        times.append(seconds(partial(model.predict_proba, rows)))
    return Timing(f"first predict after it, {n_rows:,} row(s)", np.array(times))


def batch(model: Any, crowd: Crowd, share: float) -> Timing:
    """Time one removal of a share of the people at once, with the settling after it."""
    model.rebuild = "lazy"
    model.settle()
    people = crowd.take(int(share * len(crowd)))
    took = seconds(partial(model.forget, people)) + seconds(model.settle)
    return Timing(f"batch of {share:.0%} of the people + settle", np.array([took]))


def worst_leave(model: Any, crowd: Crowd, n_drawn: int, repeats: int) -> list[Timing]:
    """Forget the costliest of so many random people, several times; settle after each."""
    model.rebuild = "lazy"
    asked, times, settled = [], [], []
    for _ in range(repeats):
        model.settle()
        drawn = crowd.take(n_drawn)
        costs: list[int] = []
        asked += [seconds(partial(_ask, model, [person], costs)) for person in drawn]
        worst = drawn.pop(int(np.argmax(costs)))
        crowd.put_back(drawn)
        times.append(seconds(partial(model.forget, [worst])))
        settled.append(times[-1] + seconds(model.settle))
    return [
        Timing("forget_cost of one", np.array(asked)),
        Timing(f"forget, lazy, worst of {n_drawn:,}", np.array(times)),
        Timing(f"forget + settle, worst of {n_drawn:,}", np.array(settled)),
    ]


def _ask(model: Any, people: list[int], costs: list[int]) -> None:
    costs.append(model.forget_cost(people).rows)
