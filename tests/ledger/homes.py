"""Whole ledgers with small models, for tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

from letheon import DaREForestClassifier, NaiveUnlearner, SISAClassifier
from letheon.ledger import Ledger, Policy
from tests.ledger.databases import NOON, SettableClock

N_ROWS = 60
IDS = np.array([f"person-{number // 2:03d}" for number in range(N_ROWS)])
X = np.random.default_rng(7).normal(size=(N_ROWS, 3))
Y = (X[:, 0] + X[:, 1] > 0).astype(int)

EXACT: dict[str, Callable[[], Any]] = {
    "naive": lambda: NaiveUnlearner(GaussianNB(), random_state=0),
    "sisa": lambda: SISAClassifier(LogisticRegression(), n_shards=3, random_state=0),
    "forest": lambda: DaREForestClassifier(n_estimators=3, max_depth=4, random_state=0),
}


def fitted(kind: str = "naive") -> Any:
    return EXACT[kind]().fit(X, Y, ids=IDS)


def make(
    folder: Path, *, model: Any = None, clock: SettableClock | None = None, **given: Any
) -> Ledger:
    """Make a ledger with one model named "risk"; two rows per person."""
    policy = given.pop("policy", Policy(pin_seconds=1))
    ledger = Ledger.create(
        folder / "home", name="test", policy=policy, clock=clock or SettableClock(NOON), **given
    )
    ledger.models.register(fitted() if model is None else model, X, Y, ids=IDS, name="risk")
    return ledger


def person(number: int) -> str:
    return f"person-{number:03d}"
