"""Migrations: they make what the code expects, in one transaction, and never go back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg import DatabaseError
from sqlalchemy import event, inspect, text

from letheon.exceptions import LedgerError, LedgerMissingError, NewerLedgerError
from letheon.ledger.db import database as _database
from letheon.ledger.db.database import KNOWN_REVISIONS, REVISION, Database
from letheon.ledger.db.engines import SCHEMA
from letheon.ledger.db.migrations import config_for
from letheon.ledger.requests.states import ALLOWED
from letheon.ledger.tables import allowed_moves, metadata
from tests.ledger.databases import (
    LedgerSetup,
    database,
    desk,
    die,
    in_processes,
    kind,
    open_kind,
    place,
)
from tests.postgres import PostgresServer

__all__ = ["database", "desk", "kind", "place"]


def test_the_migrations_make_the_tables_that_the_code_uses(database: Database) -> None:
    with database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = compare_metadata(context, metadata)
        names = set(inspect(connection).get_table_names())
    assert differences == []
    assert names == {*metadata.tables, "alembic_version"}


def test_checks_and_partial_indices_are_there(database: Database) -> None:
    with database.reading() as connection:
        inspector = inspect(connection)
        checks = {
            constraint["name"]
            for table in metadata.tables
            for constraint in inspector.get_check_constraints(table)
        }
        indices = {
            index["name"]
            for table in ("batches", "blocked", "events")
            for index in inspector.get_indexes(table)
        }
    assert checks == {"ck_batches_kind", "ck_batches_state", "ck_jobs_state", "ck_log_one"}
    assert indices >= {"one_open_batch_per_model", "one_owner_per_person", "events_to_integrate"}


def test_the_moves_in_the_database_are_those_of_the_code(database: Database) -> None:
    with database.reading() as connection:
        pairs = {(row.before, row.after) for row in connection.execute(allowed_moves.select())}
    assert pairs == ALLOWED


def test_the_newest_migration_is_the_one_that_the_code_names() -> None:
    scripts = ScriptDirectory.from_config(config_for())
    assert scripts.get_current_head() == REVISION
    assert {revision.revision for revision in scripts.walk_revisions()} == {REVISION}


def test_creating_twice_changes_nothing(database: Database, kind: str, place: Any) -> None:
    again = Database.open(place if kind == "postgresql" else Path(place) / "ledger.db", create=True)
    assert again.revision == REVISION
    again.dispose()


def revise(database: Database, revision: str) -> None:
    with database.transaction() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :it"), {"it": revision})


def test_a_newer_ledger_is_refused_and_left_alone(
    database: Database, kind: str, place: Any
) -> None:
    revise(database, "9999")
    database.dispose()
    where = place if kind == "postgresql" else Path(place) / "ledger.db"
    before = None if kind == "postgresql" else where.read_bytes()
    journal = "delete" if kind == "sqlite-delete" else None
    calls: list[Callable[[], object]] = [
        lambda: Database.open(where, journal=journal),
        lambda: Database.open(where, create=True, journal=journal),
        lambda: Database.open(where, upgrade=True, journal=journal),
    ]
    for call in calls:
        with pytest.raises(NewerLedgerError, match="9999"):
            call()
    assert before is None or where.read_bytes() == before


def test_an_older_ledger_names_the_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_kind("sqlite", tmp_path, create=True).dispose()
    monkeypatch.setattr(_database, "REVISION", "0101")
    monkeypatch.setattr(_database, "KNOWN_REVISIONS", (*KNOWN_REVISIONS, "0101"))
    with pytest.raises(LedgerError, match="letheon ledger upgrade"):
        Database.open(tmp_path / "ledger.db")
    older = Database.open(tmp_path / "ledger.db", upgrade=True)
    older.dispose()
    assert older.revision == REVISION
    older.dispose()


def test_a_database_of_another_program_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").touch()
    for upgrade in (False, True):
        with pytest.raises(LedgerMissingError):
            Database.open(tmp_path / "ledger.db", upgrade=upgrade)


def test_a_server_is_shared_with_another_program(postgres_server: PostgresServer) -> None:
    """Its tables may have our names, and its migrations are Alembic's too."""
    url = postgres_server.create()
    name = url.rpartition("/")[2]
    with postgres_server.connect(name) as connection:
        connection.execute("CREATE TABLE public.events (theirs int)")
        connection.execute("CREATE TABLE public.alembic_version (version_num text)")
        connection.execute("INSERT INTO public.alembic_version VALUES ('abc123')")
    with pytest.raises(LedgerMissingError):
        Database.open(url)
    Database.open(url, create=True).dispose()
    opened = Database.open(url)
    assert opened.revision == REVISION
    opened.dispose()
    with postgres_server.connect(name) as connection:
        theirs = connection.execute("SELECT version_num FROM public.alembic_version").fetchall()
        query = "SELECT tablename FROM pg_tables WHERE schemaname = %s"
        public = {row[0] for row in connection.execute(query, ["public"])}
        ours = {row[0] for row in connection.execute(query, [SCHEMA])}
    assert theirs == [("abc123",)]
    assert public == {"events", "alembic_version"}
    assert ours == {*metadata.tables, "alembic_version"}


@pytest.mark.parametrize("kind", ["postgresql"])
def test_the_triggers_hold_whatever_the_search_path(
    kind: str, desk: LedgerSetup, postgres_server: PostgresServer
) -> None:
    request = desk.submit(1)
    with postgres_server.connect(str(desk.place).rpartition("/")[2]) as connection:
        connection.execute("SET search_path = public")
        verify = "UPDATE letheon.requests SET state = 'verified' WHERE id = %s"
        close = "UPDATE letheon.requests SET state = 'closed' WHERE id = %s"
        with pytest.raises(DatabaseError, match="cannot follow"):
            connection.execute(close, [request.id])
        connection.execute(verify, [request.id])
    assert desk.state(request) == "verified"


def test_a_schema_that_is_there_is_used(postgres_server: PostgresServer) -> None:
    """A role that may create tables need not be allowed to create schemas."""
    url = postgres_server.create()
    name = url.rpartition("/")[2]
    with postgres_server.connect(name) as connection:
        connection.execute("DROP ROLE IF EXISTS clerk")
        connection.execute("CREATE ROLE clerk LOGIN")
        connection.execute("CREATE SCHEMA letheon AUTHORIZATION clerk")
    made = Database.open(url.replace("letheon@", "clerk@"), create=True)
    assert made.revision == REVISION
    made.dispose()


def test_downgrade_is_refused() -> None:
    for script in ScriptDirectory.from_config(config_for()).walk_revisions():
        with pytest.raises(NotImplementedError):
            script.module.downgrade()


STATEMENTS = (1, 20, 40)


@pytest.mark.parametrize("server", [False, True], ids=["sqlite", "postgresql"])
def test_a_kill_at_any_statement_leaves_all_or_nothing(
    server: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for stop in STATEMENTS:
        where: Any = tmp_path / f"{stop}.db"
        if server:
            postgres: PostgresServer = request.getfixturevalue("postgres_server")
            where = postgres.create()

        def work(where: Any = where, stop: int = stop) -> None:
            made = Database._connect(where, create=True, journal=None)
            count = []

            def tick(*_: Any) -> None:
                count.append(1)
                if len(count) == stop:
                    die()

            event.listen(made.engine, "after_cursor_execute", tick)
            made.upgrade()

        assert in_processes([work]) == [-9]
        with pytest.raises(LedgerMissingError):
            Database.open(where)
        finished = Database.open(where, create=True)
        assert finished.revision == REVISION
        finished.dispose()


def test_the_migrations_are_shipped_beside_the_package() -> None:
    folder = Path(_database.__file__).parent / "migrations"
    names = {path.name for path in (folder / "versions").glob("*.py")}
    assert names == {"0100_ledger.py"}
