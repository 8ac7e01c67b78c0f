"""Ledgers with a history, their bundles, and an operator who can sign whatever they like."""

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.naive_bayes import GaussianNB

from letheon import DaREForestClassifier, NaiveUnlearner, SISAClassifier
from letheon.audit import AuditReport, audit
from letheon.ledger import Ledger
from letheon.ledger._signing import sign
from tests.audit.people import table

KINDS: dict[str, Callable[[], Any]] = {
    "naive": lambda: NaiveUnlearner(GaussianNB(), random_state=1),
    "sisa": lambda: SISAClassifier(GaussianNB(), n_shards=3, random_state=1),
    "forest": lambda: DaREForestClassifier(n_estimators=3, random_state=1),
}


@contextmanager
def ledger_of(folder: Path, *kinds: str, n: int = 60) -> Iterator[Ledger]:
    """Open a new ledger with a model of each kind on the same people, 0..n-1."""
    X, y = table(n)
    with Ledger.create(folder, name="audited") as ledger:
        for kind in kinds:
            model = KINDS[kind]().fit(X, y, ids=np.arange(n))
            ledger.register(model, X, y, ids=np.arange(n), name=kind)
        yield ledger


def erase(ledger: Ledger, model: str, *people: int) -> None:
    """Erase people, with certificate and purge."""
    ledger.request(list(people), model=model, verified=True)
    ledger.run_once(force=True, model=model)


def judged(ledger: Ledger, folder: Path, *levels: str, **options: Any) -> AuditReport:
    """Export an auditor's bundle into a new folder and audit it."""
    bundle = ledger.export(folder, tier="auditor")
    return audit(bundle, key=ledger.public_key, levels=levels or None, **options)


def verdicts(report: AuditReport) -> dict[str, str]:
    """Return the worst verdict of every level."""
    order = ("fail", "skipped", "pass")
    found: dict[str, str] = {}
    for result in report:
        before = found.get(result.level, "pass")
        found[result.level] = min(before, result.verdict, key=order.index)
    return found


def copied(bundle: Path, name: str) -> Path:
    """Return a copy of a bundle, to be tampered with."""
    return Path(shutil.copytree(bundle, bundle.with_name(name)))


def payload_of(envelope: bytes) -> dict[str, Any]:
    """Return the statement in an envelope."""
    found: dict[str, Any] = json.loads(base64.b64decode(json.loads(envelope)["payload"]))
    return found


def resign(ledger: Ledger, path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a certificate as its operator can: sign again with the real key."""
    statement = payload_of(path.read_bytes())
    change(statement)
    path.write_bytes(sign(statement, ledger._core.keys.signer))
