"""Ledgers with a history, their bundles, and an operator who can sign whatever they like."""

import base64
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

from letheon import DaREForestClassifier, NaiveUnlearner, SISAClassifier
from letheon.audit import AuditReport, audit
from letheon.ledger import Ledger
from letheon.ledger.certificates import certify
from letheon.ledger.certificates.bundle import sign_index
from letheon.ledger.certificates.certify import sign_checkpoint
from letheon.ledger.db.log import LogTree
from letheon.ledger.keys.signing import sign_statement
from letheon.ledger.worker import compute
from letheon.verifier import (
    INDEX_FILES,
    canonical,
    certificate_id,
    leaf_hash,
    log_root,
    note_digest,
)
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
            ledger.models.register(model, X, y, ids=np.arange(n), name=kind)
        yield ledger


def erase(ledger: Ledger, model: str, *people: int) -> None:
    """Erase people, with certificate and purge."""
    ledger.requests.submit(list(people), model=model, verified=True)
    ledger.run_once(force=True, model=model)


def judged(ledger: Ledger, folder: Path, *levels: str, **options: Any) -> AuditReport:
    """Export an auditor's bundle into a new folder and audit it."""
    bundle = ledger.export(folder, tier="auditor")
    return audit(bundle, key=ledger.public_key, levels=levels or None, **options)


def verdicts(report: AuditReport) -> dict[str, str]:
    """Return the worst verdict of every level."""
    order = ("fail", "skipped", "pass")
    by_level: dict[str, str] = {}
    for result in report:
        before = by_level.get(result.level, "pass")
        by_level[result.level] = min(before, result.verdict, key=order.index)
    return by_level


def copied(bundle: Path, name: str) -> Path:
    """Return a copy of a bundle, to be tampered with."""
    return Path(shutil.copytree(bundle, bundle.with_name(name)))


def payload_of(envelope: bytes) -> dict[str, Any]:
    """Return the statement in an envelope."""
    statement: dict[str, Any] = json.loads(base64.b64decode(json.loads(envelope)["payload"]))
    return statement


def resign(ledger: Ledger, path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a certificate as its operator can: sign again with the real key."""
    statement = payload_of(path.read_bytes())
    change(statement)
    path.write_bytes(sign_statement(statement, ledger._core.keys.signer))


def reindex(ledger: Ledger, bundle: Path, tier: str | None = None) -> Path:
    """Sign for the files as they are now, as the operator can who holds the key."""
    for name in INDEX_FILES:
        (bundle / name).unlink(missing_ok=True)
    files = [path for path in sorted(bundle.rglob("*")) if path.is_file()]
    listed = {
        path.relative_to(bundle).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }
    said = json.loads((bundle / "bundle.json").read_bytes())["tier"] if tier is None else tier
    count = sum(name.startswith("certificates/") for name in listed)
    (bundle / INDEX_FILES[0]).write_bytes(canonical(listed))
    signed = sign_index(ledger._core, listed, said, count)
    (bundle / INDEX_FILES[1]).write_bytes(signed)
    return bundle


def computing(patch: pytest.MonkeyPatch, change: Callable[[Any, Any], Any]) -> None:
    """Let the ledger compute honestly, and publish something else instead."""
    honest = compute._run_computation
    patch.setattr(compute, "compute", lambda job: change(job, honest(job)))


def signing(patch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], Any]) -> None:
    """Sign something else than what follows from the database, and look at nothing before."""
    honest: Callable[..., Any] = vars(certify)["make_statement"]

    def boasting(*given: Any) -> dict[str, Any]:
        statement: dict[str, Any] = honest(*given)
        change(statement["predicate"])
        return statement

    patch.setattr(certify, "make_statement", boasting)
    patch.setattr(certify, "_check_statement", lambda *_: None)


def rewrite(
    ledger: Ledger, bundle: Path, change: Callable[[dict[str, Any]], Any], hashes: dict[str, str]
) -> None:
    """Sign the whole history anew, as the operator can who holds the key: nothing is left of it.

    `change` edits every certificate, and `hashes` says which digests are replaced by which. Then
    ids, events, checkpoints, proofs and the index follow.
    """
    new = dict(hashes)
    signer, name = ledger._core.keys.signer, ledger._core.settings.name

    def renew(data: bytes) -> bytes:
        for old, text in new.items():
            data = data.replace(old.encode(), text.encode())
        return data

    def renew_envelope(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
        old = path.read_bytes()
        statement = json.loads(renew(canonical(payload_of(old))))
        edit(statement)
        path.write_bytes(sign_statement(statement, signer))
        new[certificate_id(old)] = certificate_id(path.read_bytes())

    lines: list[bytes] = []
    for line in (bundle / "events.jsonl").read_bytes().splitlines():
        event = json.loads(line)
        if event["kind"] == "certificate":
            renew_envelope(bundle / f"certificates/{event['sequence']:06d}.json", change)
        elif event["kind"] == "purge":
            renew_envelope(bundle / f"purges/{event['sequence']:06d}.json", lambda _: None)
        lines.append(renew(line))
        note = bundle / f"checkpoints/{len(lines):012d}.txt"
        if note.exists():
            old = note_digest(note.read_text())
            root = log_root(map(leaf_hash, lines))
            note.write_text(sign_checkpoint(name, len(lines), root, signer))
            new[old] = note_digest(note.read_text())
    (bundle / "events.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    _rewrite_log(bundle, lines)
    reindex(ledger, bundle)


def _rewrite_log(bundle: Path, lines: list[bytes]) -> None:
    tree, log = LogTree([leaf_hash(line) for line in lines]), bundle / "log.json"
    log_file = json.loads(log.read_bytes()) | {"root": log_root(map(leaf_hash, lines)).hex()}
    for entry in log_file["certificates"]:
        entry["event"] = json.loads(lines[entry["index"]])
        entry["proof"] = [one.hex() for one in tree.inclusion_path(entry["index"], len(lines))]
    for step in log_file["consistency"]:
        step["proof"] = [one.hex() for one in tree.consistency_path(step["from"], step["to"])]
    log.write_bytes(canonical(log_file))
