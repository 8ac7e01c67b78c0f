"""Made-up people for the SISA tests: some own many rows."""

from typing import Any, NamedTuple

import numpy as np
from hypothesis import settings
from numpy.typing import NDArray


class People(NamedTuple):
    X: NDArray[Any]
    y: NDArray[Any]
    ids: NDArray[Any]

    def without(self, gone: Any) -> "People":
        keep = ~np.isin(self.ids, list(gone))
        return People(self.X[keep], self.y[keep], self.ids[keep])


def make_people(n_people: int = 20, *, seed: int = 0, n_classes: int = 3) -> People:
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(n_people), rng.integers(1, 4, n_people))
    rng.shuffle(ids)
    y = rng.integers(0, n_classes, len(ids))
    return People(rng.normal(size=(len(ids), 3)) + y[:, None], y, ids)


def examples(count: int) -> settings:
    """`count` examples in `make test`, ten times as many in `make soak`."""
    return settings(max_examples=max(1, count * settings().max_examples // 100))
