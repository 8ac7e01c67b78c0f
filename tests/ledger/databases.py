"""Databases of each kind for the ledger's tests, and a ledger of which only the desk is real."""

import functools
import itertools
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, insert, select

from letheon.data import IdIndex, Ids, as_ids
from letheon.ledger.core import Core
from letheon.ledger.db.database import Database
from letheon.ledger.keys.keyring import KeyRing
from letheon.ledger.models.versions import ModelRow, find_model
from letheon.ledger.requests import people
from letheon.ledger.requests.deadlines import Calendar
from letheon.ledger.requests.intake import make_intake_group, prepare_request
from letheon.ledger.requests.listing import find_request
from letheon.ledger.requests.people import move_requests
from letheon.ledger.requests.requests import LedgerRequests
from letheon.ledger.schemas import Request
from letheon.ledger.settings import Settings
from letheon.ledger.tables import batches, blocked, events, models, requests
from letheon.ledger.worker.policy import Policy

KINDS = ("sqlite", "sqlite-delete", "postgresql")
NOON = 1_800_000_000
PEOPLE = as_ids([f"person-{number}" for number in range(1000)])


class Everyone:
    """An index of a model that holds each person who is named."""

    def find(self, ids: Ids) -> Any:
        return SimpleNamespace(has_rows=np.ones(len(ids), bool))


class KnownModels:
    """Stands for `Models`: rows of the database, and the people that a test says."""

    def __init__(self, core: Core, people: Any) -> None:
        self.core, self.people = core, people

    def row(self, model: str, tenant: str) -> ModelRow:
        with self.core.database.reading() as connection:
            return find_model(connection, model, tenant)

    def get_ids_index(self, _: ModelRow) -> Any:
        return self.people


def requests_of(core: Core, people: Any = None) -> LedgerRequests:
    """The requests of a ledger whose models hold these people, or everyone."""
    return LedgerRequests(core, KnownModels(core, people or Everyone()))  # type: ignore[arg-type]


@functools.cache
def index_of(held: Ids) -> IdIndex:
    return IdIndex(held)


def submit(core: Core, model: ModelRow, ids: Any, *, held: Ids, **given: Any) -> Request:
    """Submit a request to a model that holds these people."""
    group = given.pop("group", None) or make_intake_group()
    return group.submit(prepare_request(core, model, ids, people=index_of(held), **given))


class SettableClock:
    """A clock that stands still unless a test moves it."""

    def __init__(self, now: int = NOON) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


@functools.cache
def _empty_file(journal: str | None) -> bytes:
    """A file with the ledger's tables: cheaper than all migrations again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        Database.open(path, create=True, journal=journal).dispose()
        return path.read_bytes()


def open_kind(kind: str, place: str | Path, *, create: bool = False) -> Database:
    """Open a database: a file in a folder, or the address of a server's."""
    if kind == "postgresql":
        return Database.open(str(place), create=create)
    journal, path = "delete" if kind == "sqlite-delete" else None, Path(place) / "ledger.db"
    if create:
        path.write_bytes(_empty_file(journal))
    return Database.open(path, journal=journal)


class LedgerSetup:
    """A ledger with two models and no worker."""

    def __init__(self, folder: Path, kind: str, place: str | Path) -> None:
        self.kind, self.place = kind, place
        database = open_kind(kind, place, create=True)
        self.clock = SettableClock()
        settings = Settings(name="test", policy=Policy(), calendar=Calendar())
        self.core = Core(folder, settings, database, KeyRing.create(folder), self.clock)
        with database.transaction() as connection:
            self.model = add_model(connection, "risk")
            self.other = add_model(connection, "churn")
        self._numbers = itertools.count()

    @property
    def database(self) -> Database:
        return self.core.database

    def reopened(self) -> Core:
        """The same ledger for another process or thread, with connections of its own."""
        database = open_kind(self.kind, self.place)
        keys = KeyRing(self.core.folder)
        return Core(self.core.folder, self.core.settings, database, keys, self.clock)

    def submit(self, *people: Any, held: Ids = PEOPLE, **given: Any) -> Request:
        """Submit for people by their numbers, with a key of its own unless one is given."""
        given.setdefault("key", f"key-{next(self._numbers)}")
        ids = [f"person-{person}" if isinstance(person, int) else person for person in people]
        core, model = given.pop("core", self.core), given.pop("model", self.model)
        given.pop("tenant", None)
        return submit(core, model, ids, held=held, **given)

    def reload(self, request: Request | str) -> Request:
        with self.database.reading() as connection:
            return find_request(connection, request if isinstance(request, str) else request.id)

    def state(self, request: Request | str) -> str:
        return self.reload(request).state

    def rows(self, *columns: Any) -> list[Any]:
        with self.database.reading() as connection:
            return list(connection.execute(select(*columns)))

    def snapshot(self) -> tuple[Any, ...]:
        """Everything that a refused call must leave alone."""
        return (
            sorted(map(tuple, self.rows(requests)), key=str),
            sorted(map(tuple, self.rows(blocked))),
            sorted(map(tuple, self.rows(events)), key=str),
        )


def add_model(connection: Connection, name: str, tenant: str = "default") -> ModelRow:
    values = {
        "tenant": tenant,
        "name": name,
        "folder": f"{tenant}-{name}",
        "dataset": "people",
        "method": "naive",
        "slots": 8,
        "preprocessing": "0" * 64,
        "releases": "latest-only",
        "created_at": NOON,
        "trusted": "",
    }
    connection.execute(insert(models).values(values))
    return find_model(connection, name, tenant)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str | Path:
    """Where a database of the kind is, or comes to be."""
    return str(request.getfixturevalue("postgres_url")) if kind == "postgresql" else tmp_path


@pytest.fixture
def database(kind: str, place: str | Path) -> Iterator[Database]:
    opened = open_kind(kind, place, create=True)
    yield opened
    opened.dispose()


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Iterator[Database]:
    """One database, for what does not depend on its kind."""
    opened = open_kind("sqlite", tmp_path, create=True)
    yield opened
    opened.dispose()


@pytest.fixture
def desk(kind: str, place: str | Path, tmp_path: Path) -> Iterator[LedgerSetup]:
    """A ledger on each kind of database, for what depends on it."""
    made = LedgerSetup(tmp_path, kind, place)
    yield made
    made.database.dispose()


@pytest.fixture(scope="module")
def still_desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerSetup]:
    """A ledger that no test changes, for calls that are refused."""
    folder = tmp_path_factory.mktemp("still")
    made = LedgerSetup(folder, "sqlite", folder)
    yield made
    made.database.dispose()


@pytest.fixture
def sqlite_desk(tmp_path: Path) -> Iterator[LedgerSetup]:
    """A ledger on one database, for what does not depend on its kind."""
    made = LedgerSetup(tmp_path, "sqlite", tmp_path)
    yield made
    made.database.dispose()


def in_processes(works: list[Callable[[], None]]) -> list[int]:
    """Run each in a process of its own, all at once; return their exit codes."""
    children = []
    for work in works:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def die() -> None:
    """End this process as a power cut does."""
    os.kill(os.getpid(), signal.SIGKILL)


def erase(desk: LedgerSetup, *ids: str, upto: str = "purged") -> str:
    """Do to queued requests what workers do; return the batch."""
    batch = f"{len(desk.rows(batches)):064x}"
    steps = ("applying", "applied", "certified", "purging", "purged")
    with desk.database.transaction() as connection:
        values = {"id": batch, "model_id": desk.model.id, "kind": "erase", "parent_id": 1}
        rest = {"state": "certified", "created_at": NOON, "reason": "operator", "fence": 1}
        connection.execute(batches.insert().values(**values, **rest))
        for step in steps[: steps.index(upto) + 1]:
            move_requests(connection, ids, step, at=desk.clock(), batch_id=batch)
    return batch


def bodies(desk: LedgerSetup) -> dict[str, Any]:
    with desk.database.reading() as connection:
        rows = connection.execute(select(requests.c.id, requests.c.intake_key, requests.c.sealed))
        return {
            row.id: people.read_body(desk.core, row.intake_key, row.id, row.sealed).to_list()
            for row in rows
            if row.sealed is not None
        }
