"""From a request to the purge: seconds and sizes by number of rows."""

import time
from pathlib import Path
from typing import Any

from sqlalchemy import text

from benchmarks._ledger_people import names_of, register
from letheon import DaREForestClassifier
from letheon.ledger import Ledger
from letheon.ledger.leases import owner_name
from letheon.ledger.worker.compute import compute
from letheon.ledger.worker.worker import run_once

PARTS = ("register", "apply", "certify", "purge")


def batch_row(home: Path, n_rows: int, n_erased: int, kind: str) -> tuple[Any, ...]:
    """Return seconds of registration, application, certificate and purge of one batch."""
    model = DaREForestClassifier(n_estimators=10, random_state=0) if kind == "forest" else None
    with Ledger.create(home, name="bench") as ledger:
        seconds = {"register": _timed(lambda: register(ledger, n_rows, model=model))}
        ledger.requests.submit(names_of(n_rows)[:n_erased], model="bench", verified=True)
        seconds |= _steps(ledger)
        certificate, attestation = (
            ledger.certificates.envelope(1),
            ledger.certificates.purge_attestation(1),
        )
        proof = next(home.joinpath("proofs").rglob("*.json")).stat().st_size
        state = ledger.requests.list()[0].state
        with ledger._core.database.reading() as connection:
            n_events = connection.execute(text("SELECT count(*) FROM events")).scalar()
    sizes = (len(certificate) / 1024, len(attestation) / 1024, proof / 1024)
    shown = tuple(seconds.get(part, 0.0) for part in PARTS)
    return (kind, f"{n_rows:,}", f"{n_erased:,}", *shown, *sizes, n_events, state)


def _timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _steps(ledger: Ledger) -> dict[str, float]:
    """Run a worker's steps one by one, and time each."""
    names = {"applied": "apply", "certified": "certify", "purged": "purge"}
    found: dict[str, float] = {}
    start = time.perf_counter()
    for step in run_once(ledger._core, owner_name(), compute, forced=True):
        now = time.perf_counter()
        found[names.get(step.what, step.what)] = now - start
        start = now
    return found
