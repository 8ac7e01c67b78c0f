"""Tiny SISA nets for the tests, and their fresh fits."""

from typing import Any

import numpy as np
from sklearn.base import clone

from letheon import SISANetClassifier
from letheon.deep import MLP
from tests.sharded.people import ShardPeople

TINY: dict[str, Any] = {
    "module": MLP(widths=(4,)),
    "n_shards": 3,
    "epochs": 3,
    "batch_size": 4,
    "device": "cpu",
    "random_state": 7,
}
NETS = (
    MLP(widths=()),
    MLP(widths=(3,)),
    MLP(widths=(3,), dropout=0.5),
    MLP(widths=(3,), batch_norm=True),
)


def fitted(people: ShardPeople, **settings: Any) -> SISANetClassifier:
    return SISANetClassifier(**{**TINY, **settings}).fit(people.X, people.y, ids=people.ids)


def refitted(model: SISANetClassifier, people: ShardPeople) -> SISANetClassifier:
    fresh: SISANetClassifier = clone(model).set_params(random_state=model.seed_)
    return fresh.fit(people.X, people.y, ids=people.ids)


def joined(one: ShardPeople, two: ShardPeople) -> ShardPeople:
    return ShardPeople(*(np.concatenate(parts) for parts in zip(one, two, strict=True)))
