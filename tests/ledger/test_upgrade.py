"""A ledger of an earlier revision is brought up to date: nothing is lost, and it goes on."""

import functools
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import MetaData, Table, create_engine, event, insert, inspect, text

from letheon.audit import audit
from letheon.exceptions import LedgerError
from letheon.ledger import Ledger, Settings
from letheon.ledger.db.database import REVISION, Database
from letheon.ledger.home import database_url
from letheon.ledger.tables import metadata
from tests.ledger.databases import SettableClock, die, in_processes
from tests.ledger.homes import make, person
from tests.postgres import PostgresServer

OLD_REVISIONS = Path(__file__).parent / "old_revisions"
DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest) -> Callable[[], str | None]:
    """Gives the address of a new server's database; None for a file in the folder."""
    if request.param == "sqlite":
        return lambda: None
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.create


def story(ledger: Ledger, clock: SettableClock) -> None:
    """One erasure, and a request in each of some states."""
    ledger.requests.submit([person(1), person(2)], model="risk", verified=True, key="first")
    ledger.run_once(force=True)
    clock.now += 3600
    ledger.requests.submit([person(3)], model="risk")
    ledger.requests.submit([person(4)], model="risk", verified=True)
    ledger.requests.submit([person(4)], model="risk", verified=True)
    held = ledger.requests.submit([person(5)], model="risk", verified=True)
    ledger.requests.hold(held.id, "litigation-hold", "2099-01-01")
    ledger.requests.extend(held.id)


@pytest.fixture
def old(tmp_path: Path, address: Callable[[], str | None]) -> tuple[Path, SettableClock, Any]:
    """The home of a ledger whose tables are of the first revision, and what was in it."""
    clock, url = SettableClock(), address()
    given = {} if url is None else {"database": url}
    with make(tmp_path, clock=clock, **given) as ledger:
        story(ledger, clock)
        told = facts(ledger)
        home = ledger.folder
        rows = contents(ledger._core.database)
    take_back(home, url, rows)
    return home, clock, told


def facts(ledger: Ledger) -> dict[str, Any]:
    listed_requests = ledger.requests.list()
    return {
        "requests": listed_requests,
        "timelines": [ledger.requests.timeline(request.id) for request in listed_requests],
        "certificates": [
            ledger.certificates.envelope(sequence) for sequence in ledger.certificates.sequences()
        ],
        "models": ledger.models.list(),
    }


def contents(database: Database) -> dict[str, list[dict[str, Any]]]:
    with database.reading() as connection:
        return {
            table.name: [dict(row) for row in connection.execute(table.select()).mappings()]
            for table in metadata.sorted_tables
        }


def take_back(home: Path, url: str | None, rows: dict[str, list[dict[str, Any]]]) -> None:
    """Replace the database by one of revision 0002, that of commit 6763b0c, with the same rows."""
    path = home / "ledger.db"
    if url is None:
        path.unlink()
    else:
        wipe(url)
    database = Database._connect(url or path, create=True, journal=None)
    with database.transaction() as connection:
        if url is not None:
            connection.execute(text("CREATE SCHEMA letheon"))
        config = Config()
        config.set_main_option("script_location", str(OLD_REVISIONS).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
    with database.transaction() as connection:
        without_triggers(connection, functools.partial(put, connection, rows))
    assert database.revision == "0002"
    database.dispose()


def wipe(url: str) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA letheon CASCADE"))
    engine.dispose()


def put(connection: Any, rows: dict[str, list[dict[str, Any]]]) -> None:
    there = MetaData()
    for name in [table.name for table in metadata.sorted_tables]:
        if not inspect(connection).has_table(name):
            continue
        table = Table(name, there, autoload_with=connection)
        connection.execute(table.delete())
        own = {one.name for one in table.c if one.computed is None}
        kept = [{key: row[key] for key in row if key in own} for row in rows[name]]
        for row in kept:
            connection.execute(insert(table).values(row))


def without_triggers(connection: Any, work: Callable[[], None]) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        work()
        for table in ("events", "models", "versions"):
            sequence = f"pg_get_serial_sequence('{table}', 'id')"
            connection.execute(text(f"SELECT setval({sequence}, max(id)) FROM {table}"))
        return
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    triggers = connection.execute(text(query)).all()
    for name, _ in triggers:
        connection.execute(text(f"DROP TRIGGER {name}"))
    work()
    for _, sql in triggers:
        connection.exec_driver_sql(sql)


def test_it_is_refused_until_it_is_upgraded_and_then_goes_on(
    old: tuple[Path, SettableClock, Any], tmp_path: Path
) -> None:
    home, clock, told = old
    with pytest.raises(LedgerError, match="letheon ledger upgrade"):
        Ledger.open(home, clock=clock)
    Ledger.upgrade(home)
    Ledger.upgrade(home)
    with Ledger.open(home, clock=clock) as ledger:
        assert facts(ledger) == told
        page = ledger.requests.find()
        assert sorted(page.items, key=str) == sorted(told["requests"], key=str)
        assert ledger.requests.count().by_state["on_hold"] == 1
        again = ledger.requests.submit(
            [person(1), person(2)], model="risk", verified=True, key="first"
        )
        assert again.id in {one.id for one in told["requests"]}
        with ledger.acting("a1"):
            fresh = ledger.requests.submit([person(6)], model="risk", verified=True)
        ledger.run_once(force=True)
        assert ledger.requests.get(fresh.id).state == "purged"
        assert ledger.requests.get(fresh.id).filed_by == "a1"
        assert [finding for finding in ledger.doctor() if finding.level == "error"] == []
        bundle = ledger.export(tmp_path / "bundle", tier="auditor")
        assert audit(bundle, key=ledger.public_key).passed


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_kill_in_the_middle_leaves_the_old_one(
    old: tuple[Path, SettableClock, Any], stop: int
) -> None:
    home, clock, told = old
    url = database_url(home, Settings.read(home))

    def work() -> None:
        opened = Database._connect(url, create=False, journal=None)
        count: list[int] = []

        def tick(*_: Any) -> None:
            count.append(1)
            if len(count) == stop:
                die()

        event.listen(opened.engine, "after_cursor_execute", tick)
        opened.upgrade()

    assert in_processes([work]) == [-9]
    older = Database._connect(url, create=False, journal=None)
    assert older.revision == "0002"
    older.upgrade()
    assert older.revision == REVISION
    older.dispose()
    with Ledger.open(home, clock=clock) as ledger:
        assert facts(ledger) == told


def test_a_ledger_of_an_earlier_commit_goes_on(tmp_path: Path) -> None:
    with zipfile.ZipFile(DATA / "ledger_6763b0c.zip") as archive:
        archive.extractall(tmp_path)
    [settings] = tmp_path.rglob("letheon.toml")
    home = settings.parent
    for path in (home, *home.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    with pytest.raises(LedgerError, match="letheon ledger upgrade"):
        Ledger.open(home)
    Ledger.upgrade(home)
    with Ledger.open(home) as ledger:
        ledger.accept_clock()  # days have passed since the ledger was stored
        assert [finding for finding in ledger.doctor() if finding.level == "error"] == []
        assert ledger.certificates.sequences()
        for model in ledger.models.list():
            assert len(ledger.models.load(model.name, tenant=model.tenant).ids_) > 0
