"""A ledger whose people are marked, and a witness who keeps everything and looks for them later.

Each person has an id, a row and a salt of 32 bytes that no other person has. Before a purge the
witness copies all that is sealed, as an old backup would have it. Afterwards it looks for the
people in every file, and tries every key that is left on everything that it copied.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.naive_bayes import GaussianNB
from sqlalchemy import select

from letheon import NaiveUnlearner
from letheon.exceptions import CorruptFileError
from letheon.ledger import Ledger
from letheon.ledger.core import Core
from letheon.ledger.home import create_home
from letheon.ledger.keys.keyring import KINDS
from letheon.ledger.models.versions import (
    ModelRow,
    find_head,
    find_model,
    list_versions,
    make_blob_cipher,
    read_row_slots,
)
from letheon.ledger.purge import purge as _purge
from letheon.ledger.purge.scan import Markers, ScanTarget, scan_files
from letheon.ledger.requests import people
from letheon.ledger.settings import Settings
from letheon.ledger.tables import requests

NAME = "risk"


class ManualClock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1_790_000_000

    def __call__(self) -> int:
        return self.now


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Give a folder in memory where there is one: these tests are not about the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


@dataclass
class MarkedLedger:
    """A ledger with one model that keeps its rows in the clear, as the naive method does."""

    ledger: Ledger
    clock: ManualClock
    X: Any
    ids: list[str]
    salts: dict[str, bytes]
    home: Path
    erased: list[str] = field(default_factory=list)

    @property
    def core(self) -> Core:
        return self.ledger._core

    @property
    def model(self) -> ModelRow:
        with self.core.database.reading() as conn:
            return find_model(conn, NAME, "default")

    def erase(self, *people: str) -> None:
        """Ask for people and do what is due."""
        self.ask(*people)
        self.run()

    def ask(self, *people: str) -> None:
        for person in people:
            self.ledger.requests.submit([person], model=NAME, verified=True)
            self.erased.append(person)

    def close(self) -> None:
        self.ledger.close()

    def run(self) -> None:
        self.ledger.run_once(force=True)

    def states(self) -> set[str]:
        return {request.state for request in self.ledger.requests.list()}

    def markers(self) -> Markers:
        """Markers of all who were erased, made without the ledger's own code for that."""
        rows = [self.X[self.ids.index(person)].tobytes() for person in self.erased]
        salts = [self.salts[person] for person in self.erased]
        return Markers.from_values(ids=self.erased, salts=salts, rows=rows)


def make_marked(
    home: Path, n_people: int = 12, *, journal: str | None = None, database: str | None = None
) -> MarkedLedger:
    rng = np.random.default_rng(int.from_bytes(os.urandom(8), "big"))
    X, y = rng.normal(size=(n_people, 4)), np.arange(n_people) % 2
    ids = [os.urandom(16).hex() for _ in range(n_people)]
    model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y, ids=ids)
    clock = ManualClock()
    settings = Settings(name="marked", journal=journal, database=database)
    ledger = Ledger(create_home(home, settings, clock))
    ledger.models.register(model, X, y, ids=ids, name=NAME)
    core = ledger._core
    with core.database.reading() as conn:
        row = find_model(conn, NAME, "default")
        head = find_head(conn, row.id)
    salts = [bytes(salt) for salt in read_row_slots(core, row, head).salts]
    return MarkedLedger(ledger, clock, X, ids, dict(zip(ids, salts, strict=True)), home)


@dataclass
class Witness:
    """Someone who copied everything that was sealed, and never had a key."""

    sealed: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    bodies: list[bytes] = field(default_factory=list)

    def copy(self, marked: MarkedLedger) -> None:
        """Copy what is sealed now: blobs, bodies of requests, markers of a purge."""
        core, model = marked.core, marked.model
        with core.database.reading() as conn:
            head = find_head(conn, model.id)
            rows = conn.execute(select(requests.c.id, requests.c.sealed)).all()
        for what, address in zip(("model", "rows", "ids", "vault"), head.blobs[:4], strict=True):
            content = core.blob_store(model.folder).path_of(address).read_bytes()
            context = make_blob_cipher(core, model, head.epoch_key, what).context
            self.sealed[f"{what}@{head.number}"] = (content, context)
        for request, body in rows:
            if body is not None:
                self.bodies.append(bytes(body))
                self.sealed[f"body@{request}"] = (bytes(body), people._encryption_context(request))
        for file in (marked.home / "purges").glob(".*.markers"):
            batch = file.name[1:].removesuffix(".markers")
            context = f"letheon/purge-markers/v1/{batch}".encode()
            self.sealed[f"markers@{batch}"] = (file.read_bytes(), context)

    def leaks(self, marked: MarkedLedger, *elsewhere: Path) -> set[str]:
        """Return how something of the erased can still be had; nothing, if all is well."""
        return self._in_the_clear(marked, *elsewhere) | self._by_keys(marked)

    def _in_the_clear(self, marked: MarkedLedger, *elsewhere: Path) -> set[str]:
        places = [ScanTarget(path.name, path) for path in elsewhere]
        files = marked.core.database.list_files()
        apart = [ScanTarget("database", file, archives=False, apart=True) for file in files]
        # The folder of the home is copied file by file: closing SQLite's own would unlock them.
        home = [ScanTarget("home", path) for path in marked.home.iterdir() if path not in files]
        scan_result = scan_files([*places, *apart, *home], marked.markers())
        # A server's socket is no place for residue.
        assert {unread.reason for unread in scan_result.unread} <= {"special-file"}
        leaks = {f"{hit.kind} in {hit.store}" for hit in scan_result.hits}
        bodies = Markers.from_values(salts=self.bodies)
        return leaks | {f"body in {hit.file}" for hit in scan_files(apart, bodies).hits}

    def _by_keys(self, marked: MarkedLedger) -> set[str]:
        core = marked.core
        with core.database.reading() as conn:
            history = list_versions(conn, marked.model.id)
            head = find_head(conn, marked.model.id)
        keys = {kind: core.keys.list_ids(kind) for kind in KINDS}
        opened = {
            f"{what.partition('@')[0]} by a key"
            for what, (content, context) in self.sealed.items()
            if not what.endswith(f"@{head.number}")
            for key in (key for group in keys.values() for key in group)
            if _opens(core, key, content, context)
        }
        if not all(version.purged_at or version == head for version in history):
            return opened
        named = {"epoch": {head.epoch_key}, "training": {head.run["training"]["key"]}}
        too_many = {
            f"key of kind {kind}" for kind, wanted in named.items() if not set(keys[kind]) <= wanted
        }
        files = core.blob_store(marked.model.folder).list_addresses()
        return opened | too_many | ({"old file"} if files - set(head.blobs) else set())


def _opens(core: Core, key: str, content: bytes, context: bytes) -> bool:
    try:
        core.keys.decrypt(key, content, context)
    except CorruptFileError:
        return False
    return True


def without_step(*names: str) -> tuple[tuple[str, Any], ...]:
    """Return the steps of a purge, some of which only say that they were done."""

    def pretend(name: str, purge: _purge.PurgeRun) -> dict[str, Any]:
        said: dict[str, dict[str, Any]] = {
            "started": {"key": "none", "markers": 0, "salts": 0, "whole": True},
            "key": {"key": purge.before.epoch_key},
            "scan": {"files": 0, "bytes": 0, "ambiguous": 0},
        }
        return said.get(name, {})

    return tuple(
        (step, partial(pretend, step) if step in names else work) for step, work in _purge.STEPS
    )
