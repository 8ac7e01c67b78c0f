"""Ledgers with versions that are published and wait for their certificates."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sqlalchemy import select

from letheon import DaREForestClassifier
from letheon.ledger import Ledger
from letheon.ledger.core import Core
from letheon.ledger.leases import release_lease, take_lease
from letheon.ledger.models.versions import find_model
from letheon.ledger.tables import certificates
from letheon.ledger.worker.compute import compute
from letheon.ledger.worker.worker import _serve_model
from tests.ledger.forgetters import SEED, table

NOW = 1_794_744_000  # 2026-11-15 12:00 UTC
NAME = "credit-risk"


def core_of(ledger: Ledger) -> Core:
    return ledger._core


def forest() -> Any:
    return DaREForestClassifier(n_estimators=2, random_state=SEED)


def new_ledger(
    folder: Path,
    model: Any = None,
    clock: Callable[[], int] = lambda: NOW,
    database: str | None = None,
    **settings: Any,
) -> Ledger:
    """Make a ledger with one registered model."""
    ledger = Ledger.create(folder, name="test-ledger", clock=clock, database=database)
    X, y, ids = table()
    fitted = (forest() if model is None else model).fit(X, y, ids=ids)
    ledger.models.register(fitted, X, y, ids=ids, name=NAME, **settings)
    return ledger


def ask(ledger: Ledger, people: Iterable[int], **more: Any) -> Any:
    """Request that people, by their numbers, be erased."""
    ids = table()[2]
    return ledger.requests.submit([ids[each] for each in people], model=NAME, verified=True, **more)


def publish(ledger: Ledger) -> None:
    """Apply what is queued, without certifying it."""
    core = core_of(ledger)
    with core.database.reading() as conn:
        model = find_model(conn, NAME, "default")
    lease = take_lease(core, model.id, "test")
    assert lease is not None
    steps = [*_serve_model(core, lease, model, compute, forced=True)]
    release_lease(core, lease)
    assert [step.what for step in steps] == ["applied"]


def published(folder: Path, batches: Iterable[Iterable[int]], **settings: Any) -> Ledger:
    """Make a ledger in which each of these batches was published."""
    ledger = new_ledger(folder, **settings)
    for batch in batches:
        ask(ledger, batch)
        publish(ledger)
    return ledger


def copied(home: Path, folder: Path, clock: Callable[[], int] = lambda: NOW) -> Ledger:
    """Open a copy of a ledger."""
    shutil.copytree(home, folder)
    return Ledger.open(folder, clock=clock)


def all_envelopes(ledger: Ledger) -> list[bytes]:
    """Return all certificates in the database."""
    query = select(certificates.c.envelope).order_by(certificates.c.sequence)
    with core_of(ledger).database.reading() as conn:
        return list(conn.scalars(query))
