"""Made-up people and the models that know them."""

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.naive_bayes import GaussianNB

from letheon import NaiveUnlearner
from letheon.ledger import Ledger

N_COLUMNS = 20


def names_of(n_people: int) -> list[str]:
    """Return ids as a controller has them."""
    return [f"customer-{number:09d}" for number in range(n_people)]


def table(n_people: int, seed: int = 0) -> tuple[Any, Any, list[str]]:
    """Return rows, labels and ids, one row for each person."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n_people)
    return rng.normal(size=(n_people, N_COLUMNS)) + y[:, None], y, names_of(n_people)


def register(ledger: Ledger, n_people: int, name: str = "bench", model: Any = None) -> None:
    """Register a fitted model of so many people."""
    X, y, ids = table(n_people)
    fresh = NaiveUnlearner(GaussianNB(), random_state=0) if model is None else model
    ledger.models.register(fresh.fit(X, y, ids=ids), X, y, ids=ids, name=name)


def new_ledger(home: Path, n_people: int, **options: Any) -> None:
    """Make a ledger that has one model of so many people."""
    with Ledger.create(home, name="bench", **options) as ledger:
        register(ledger, n_people)
