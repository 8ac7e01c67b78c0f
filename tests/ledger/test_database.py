"""The database: durable, one writer at a time, clear words when it cannot be used."""

import os
import sqlite3
import stat
import threading
from pathlib import Path

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import DBAPIError

from letheon.exceptions import LedgerBusyError, LedgerError, LedgerMissingError
from letheon.ledger.db import database as _database
from letheon.ledger.db import engines
from letheon.ledger.db.database import Database
from letheon.ledger.tables import meta
from tests.ledger.databases import (
    KINDS,
    database,
    die,
    in_processes,
    kind,
    open_kind,
    place,
    sqlite_database,
)

__all__ = ["database", "kind", "place", "sqlite_database"]


def note(database: Database, key: str) -> None:
    with database.transaction() as connection:
        connection.execute(insert(meta).values(key=key, value="x"))


def notes(database: Database) -> set[str]:
    with database.reading() as connection:
        return set(connection.scalars(select(meta.c.key))) - {"intake_key"}


def test_what_was_committed_is_there_after_a_kill(
    database: Database, kind: str, place: str | Path
) -> None:
    def work() -> None:
        mine = open_kind(kind, place)
        note(mine, "kept")
        with mine.transaction() as connection:
            connection.execute(insert(meta).values(key="half", value="x"))
            die()

    assert in_processes([work]) == [-9]
    assert notes(database) == {"kept"}


def test_an_error_leaves_nothing(sqlite_database: Database) -> None:
    def fail() -> None:
        with sqlite_database.transaction() as connection:
            connection.execute(insert(meta).values(key="half", value="x"))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert notes(sqlite_database) == set()


def test_threads_write_one_after_the_other(database: Database) -> None:
    def count() -> None:
        for _ in range(10):
            with database.transaction() as connection:
                row = select(meta.c.value).where(meta.c.key == "n").with_for_update()
                value = int(connection.scalars(row).one())
                connection.execute(meta.update().where(meta.c.key == "n").values(value=value + 1))

    with database.transaction() as connection:
        connection.execute(insert(meta).values(key="n", value="0"))
    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.reading() as connection:
        assert connection.scalar(select(meta.c.value).where(meta.c.key == "n")) == "40"


def test_a_forked_process_has_connections_of_its_own(database: Database) -> None:
    note(database, "parent")
    assert database.engine.pool.checkedin() == 1  # type: ignore[attr-defined]
    codes = in_processes([lambda: note(database, "child-1"), lambda: note(database, "child-2")])
    note(database, "parent-again")
    assert codes == [0, 0]
    assert notes(database) == {"parent", "child-1", "child-2", "parent-again"}


def test_texts_of_errors_hold_no_values(database: Database) -> None:
    note(database, "same")
    with pytest.raises(DBAPIError) as caught, database.transaction() as connection:
        connection.execute(insert(meta), [{"key": "same", "value": "alice@example.org"}])
    assert "alice" not in str(caught.value)


def test_run_does_it_again_after_a_deadlock(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_database, "_read_sqlstate", lambda _: "40P01")
    calls = []

    def work(connection: object) -> str:
        calls.append(connection)
        if len(calls) < 3:
            raise DBAPIError("", {}, Exception("deadlock"))
        return "done"

    assert (sqlite_database.run_transaction(work), len(calls)) == ("done", 3)


def test_run_gives_up_after_many_deadlocks(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_database, "_read_sqlstate", lambda _: "40001")
    monkeypatch.setattr("time.sleep", lambda _: None)

    def work(connection: object) -> None:
        raise DBAPIError("", {}, Exception("serialisation"))

    with pytest.raises(LedgerBusyError, match="try again"):
        sqlite_database.run_transaction(work)


def test_run_does_not_repeat_another_error(sqlite_database: Database) -> None:
    calls = []

    def work(connection: object) -> None:
        calls.append(connection)
        raise DBAPIError("", {}, Exception("disk full"))

    with pytest.raises(DBAPIError):
        sqlite_database.run_transaction(work)
    assert len(calls) == 1


def test_postgresql_deadlock_is_met_and_survived(postgres_url: str) -> None:
    database = Database.open(postgres_url)
    note(database, "a")
    note(database, "b")
    barrier = threading.Barrier(2)
    tries: list[str] = []

    def touch(first: str, second: str) -> None:
        def work(connection: object) -> None:
            tries.append(first)
            for key in (first, second):
                row = select(meta.c.key).where(meta.c.key == key).with_for_update()
                connection.execute(row)  # type: ignore[attr-defined]
                if key == first and len(tries) <= 2:
                    barrier.wait(10)

        database.run_transaction(work)

    threads = [threading.Thread(target=touch, args=pair) for pair in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    database.dispose()
    assert len(tries) >= 3  # who lost may meet the winner again


def test_sqlite_is_set_up_as_promised(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "ledger.db", create=True)
    with database.reading() as connection:
        values = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "secure_delete", "foreign_keys")
        }
    database.dispose()
    assert database.journal_mode == "wal"
    assert values == {
        "journal_mode": "wal",
        "synchronous": 2,
        "secure_delete": 1,
        "foreign_keys": 1,
    }


@pytest.mark.parametrize("by", ["setting", "old library"])
def test_without_safe_wal_the_journal_is_deleted_and_synced(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "old library":
        monkeypatch.setattr(engines, "sqlite_module", lambda: sqlite3)
        assert not engines.has_safe_wal(sqlite3)
    journal = "delete" if by == "setting" else None
    database = Database.open(tmp_path / "ledger.db", create=True, journal=journal)
    with database.reading() as connection:
        synchronous = connection.exec_driver_sql("PRAGMA synchronous").scalar()
    database.dispose()
    assert (database.journal_mode, synchronous) == ("delete", 3)


def test_wal_on_an_old_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "sqlite_module", lambda: sqlite3)
    with pytest.raises(LedgerError, match="needs SQLite"):
        Database.open(tmp_path / "ledger.db", create=True, journal="wal")


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        database = Database.open(tmp_path / "ledger.db", create=True)
        note(database, "x")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in database.list_files()}
    finally:
        os.umask(old)
    database.dispose()
    assert modes == dict.fromkeys(["ledger.db", "ledger.db-wal", "ledger.db-shm"], 0o600)


def test_shrink_leaves_no_old_page(tmp_path: Path) -> None:
    secret = "marker-of-an-erased-person"
    database = Database.open(tmp_path / "ledger.db", create=True)
    note(database, secret)
    with database.transaction() as connection:
        connection.execute(meta.delete().where(meta.c.key == secret))

    def has_secret() -> bool:
        return any(secret.encode() in path.read_bytes() for path in tmp_path.iterdir())

    before = has_secret()
    database.truncate_journal()
    after = has_secret()
    database.dispose()
    assert (before, after) == (True, False)


def test_a_reader_that_stays_makes_shrink_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database.open(tmp_path / "ledger.db", create=True)
    monkeypatch.setattr(_database, "_WAIT_SECONDS", 0)
    monkeypatch.setattr(Database, "_truncate_log", lambda _: False)
    with pytest.raises(LedgerBusyError, match="write-ahead log"):
        database.truncate_journal()
    database.dispose()


def test_a_long_wait_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_WAIT_SECONDS", 0)
    first = Database.open(tmp_path / "ledger.db", create=True)
    second = Database.open(tmp_path / "ledger.db")
    with first.transaction(), pytest.raises(LedgerBusyError), second.transaction():
        pass
    first.dispose()
    second.dispose()


def test_two_journal_modes_at_once_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(engines, "_WAIT_SECONDS", 0)
    first = Database.open(tmp_path / "ledger.db", create=True)
    with first.reading() as connection:
        connection.execute(select(meta))
        with pytest.raises(LedgerBusyError, match="journal mode"):
            Database.open(tmp_path / "ledger.db", journal="delete")
    first.dispose()


@pytest.mark.parametrize("journal", ["off", "memory", "WAL"])
def test_an_unsafe_journal_is_refused(journal: str, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="expected 'wal'"):
        Database.open(tmp_path / "ledger.db", create=True, journal=journal)


@pytest.mark.parametrize(
    "url", ["mysql://host/x", "sqlite://", "sqlite:///:memory:", "not a url", "sqlite:///"]
)
def test_a_database_that_cannot_hold_a_ledger_is_refused(url: str) -> None:
    with pytest.raises(LedgerError):
        Database.open(url, create=True)


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(LedgerError) as caught:
        Database.open("postgresql//user:geheim@host", create=True)
    assert "geheim" not in str(caught.value)


def test_a_missing_file_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(LedgerMissingError, match="no ledger database"):
        Database.open(tmp_path / "ledger.db")
    assert list(tmp_path.iterdir()) == []


def test_postgresql_that_may_forget_commits_is_refused(postgres_url: str) -> None:
    database = Database.open(postgres_url)
    with database.transaction() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar()
        connection.execute(text(f'ALTER DATABASE "{name}" SET synchronous_commit = off'))
    database.dispose()
    with pytest.raises(LedgerError, match="synchronous_commit"):
        Database.open(postgres_url)


def test_a_wait_for_a_row_is_named(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_WAIT_SECONDS", 0.05)
    database = Database.open(postgres_url)
    row = select(meta).where(meta.c.key == "intake_key").with_for_update()
    with database.transaction() as first:
        first.execute(row)
        with pytest.raises(LedgerBusyError), database.transaction() as second:
            second.execute(row)
    database.dispose()


def test_a_connection_that_the_server_dropped_is_replaced(postgres_url: str) -> None:
    database = Database.open(postgres_url)
    with database.reading() as connection:
        backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
    other = Database.open(postgres_url)
    with other.reading() as connection:
        # Never itself: the numbers of processes are used again.
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE pid = {backend} AND pid <> pg_backend_pid()"
        )
    note(database, "after")
    assert notes(database) == {"after"}
    database.dispose()
    other.dispose()


def test_a_transaction_inside_a_reading_is_refused(database: Database) -> None:
    """With a rollback journal it would wait for itself; nothing may depend on the journal."""
    with (
        database.reading(),
        pytest.raises(RuntimeError, match="thread has an open reading"),
    ):
        note(database, "never")
    with (
        database.reading(),
        pytest.raises(RuntimeError, match="thread has an open reading"),
    ):
        database.run_transaction(lambda connection: None)
    with pytest.raises(KeyError), database.reading():
        raise KeyError
    note(database, "after")
    assert notes(database) == {"after"}


def test_readings_of_other_threads_and_inside_a_transaction_are_allowed(
    database: Database, kind: str
) -> None:
    held, done = threading.Event(), threading.Event()

    def read() -> None:
        with database.reading() as connection:
            connection.scalar(select(meta.c.key))
            held.set()
            done.wait(30)

    reader = threading.Thread(target=read)
    reader.start()
    assert held.wait(30)
    if kind == "sqlite-delete":  # there a commit waits for readers
        done.set()
        reader.join()
    with database.transaction() as connection:
        connection.execute(insert(meta).values(key="kept", value="x"))
        assert "kept" not in notes(database)
    done.set()
    reader.join()
    assert notes(database) == {"kept"}


def test_a_process_forked_inside_a_reading_may_write(sqlite_database: Database) -> None:
    with sqlite_database.reading():
        assert in_processes([lambda: note(sqlite_database, "child")]) == [0]
    assert notes(sqlite_database) == {"child"}


def test_kinds_are_what_they_say(database: Database, kind: str) -> None:
    expected = {"sqlite": "wal", "sqlite-delete": "delete", "postgresql": None}
    assert database.journal_mode == expected[kind]
    assert database.dialect == kind.partition("-")[0]
    assert (database.list_files() == []) == (kind == "postgresql")
    assert len(KINDS) == 3
