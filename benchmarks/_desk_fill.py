"""A ledger with as many requests as a large house has after years."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.naive_bayes import GaussianNB

from letheon import NaiveUnlearner
from letheon.ledger import Ledger, Policy
from letheon.service import Tokens

__all__ = ["LOADED", "MODEL", "Filled", "fill"]

MODEL, LOADED = "risk", "load"
N_THREADS = 32
ERASED_PER_BATCH = 200
N_BATCHES = 5
SEED = 8


@dataclass(frozen=True)
class Filled:
    """What was made: a token of an admin, and how long it took."""

    token: str
    seconds: float


def fill(home: Path, n_requests: int, n_load: int, *, database: str | None = None) -> Filled:
    """Make a ledger with two models: one with requests in all states, one for the load.

    Most requests wait to be verified or are queued; a few are erased with certificates, a few were
    rejected or withdrawn. Each was filed by the call that the desk uses.
    """
    start = time.perf_counter()
    policy = Policy(pin_seconds=1, k_min=10**9)
    with Ledger.create(home, name="bench", database=database, policy=policy) as ledger:
        _register(ledger, MODEL, n_requests)
        _register(ledger, LOADED, n_load)
        text, _ = Tokens(ledger, lambda: int(time.time())).mint("bench", "admin", days=30)
        for number in range(N_BATCHES):
            people = range(number * ERASED_PER_BATCH, (number + 1) * ERASED_PER_BATCH)
            _file(ledger, people, is_verified=lambda _: True)
            ledger.run_once(force=True)
        draw = random.Random(SEED)
        chosen = [draw.random() < 0.6 for _ in range(n_requests)]
        left = range(N_BATCHES * ERASED_PER_BATCH, n_requests)
        _file(ledger, left, is_verified=chosen.__getitem__)
        for request in ledger.requests.find(states=("received",), limit=200).items:
            ledger.requests.cancel(request.id)
    return Filled(text, time.perf_counter() - start)


def _register(ledger: Ledger, name: str, n_rows: int) -> None:
    X = np.random.default_rng(SEED).normal(size=(n_rows, 2))
    y = (X[:, 0] > 0).astype(int)
    ids = list(range(n_rows))
    model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y, ids=ids)
    ledger.models.register(model, X, y, ids=ids, name=name)


def _file(ledger: Ledger, people: range, *, is_verified: object) -> None:
    def one(person: int) -> None:
        ledger.requests.submit([person], model=MODEL, verified=is_verified(person))  # type: ignore[operator]

    with ThreadPoolExecutor(N_THREADS) as pool:
        for _ in pool.map(one, people, chunksize=100):
            pass
