"""Made-up people for the SISA tests: some own many rows."""

from typing import Any, NamedTuple

import numpy as np
from hypothesis import settings
from numpy.typing import NDArray


class ShardPeople(NamedTuple):
    X: NDArray[Any]
    y: NDArray[Any]
    ids: NDArray[Any]

    def without(self, gone: Any) -> "ShardPeople":
        keep = ~np.isin(self.ids, list(gone))
        return ShardPeople(self.X[keep], self.y[keep], self.ids[keep])


def make_people(n_people: int = 20, *, seed: int = 0, n_classes: int = 3) -> ShardPeople:
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(n_people), rng.integers(1, 4, n_people))
    rng.shuffle(ids)
    y = rng.integers(0, n_classes, len(ids))
    return ShardPeople(rng.normal(size=(len(ids), 3)) + y[:, None], y, ids)


def examples(count: int) -> settings:
    """`count` examples in `make test`, ten times as many in `make soak`."""
    return settings(max_examples=max(1, count * settings().max_examples // 100))
