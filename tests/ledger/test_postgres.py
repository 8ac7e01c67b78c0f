"""PostgreSQL as a real server: it dies, it is stopped, it cuts connections; nothing is lost.

``make test`` harms it at a few points, ``make soak`` at all of them.
"""

import signal
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from letheon.exceptions import LedgerError
from letheon.ledger.db.database import Database
from tests import postgres
from tests.ledger.arena import ArenaPlan
from tests.ledger.points import POINTS
from tests.ledger.test_kills import ALL_STOPS, fight, missed, quick_folder
from tests.postgres import PostgresServer, find_binaries

__all__ = ["quick_folder"]

HARM = {
    "crash": ("submit.before-commit", "submit.after-commit", "publish.before-commit"),
    "quit": ("certify.before-commit", "purge.key-destroyed"),
    "cut": ("submit.before-commit", "intent.before-commit", "compute.written"),
}
# The arena wakes a stopped worker up only after the server has ended its connections.
OVERTAKEN = ("compute.forgotten", "publish.after-commit")


def harmed(folder: Path, rounds: list[tuple[str, str]], workers: int = 1) -> None:
    """Run rounds against a server of their own; each must have done its harm, and no more."""
    plan = ArenaPlan(str(folder / "home"), rounds, database="own", workers=workers)
    (report,) = fight(folder, plan)
    assert report["violations"] == []
    assert [one for one in rounds if missed(report, one[0], [one[1]])] == []


def test_server_that_fails_loses_nothing(
    quick_folder: Path, postgres_server: PostgresServer
) -> None:
    harmed(quick_folder, [(kind, point) for kind, points in HARM.items() for point in points])


def test_worker_that_lost_its_connection_and_its_lease_is_refused(
    quick_folder: Path, postgres_server: PostgresServer
) -> None:
    harmed(quick_folder, [("stop", point) for point in OVERTAKEN], workers=3)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["crash", "quit", "cut", "stop"])
def test_server_that_fails_anywhere_loses_nothing(
    kind: str, quick_folder: Path, postgres_server: PostgresServer
) -> None:
    points = ALL_STOPS if kind == "stop" else POINTS
    harmed(quick_folder, [(kind, point) for point in points], workers=3)


def test_each_test_has_a_database_of_its_own(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    other = postgres_server.create()
    assert other != postgres_url
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM requests").fetchone() == (0,)
    with psycopg.connect(other) as connection:
        assert connection.execute("SELECT to_regclass('requests')").fetchone() == (None,)


def test_server_restarts_where_it_was(postgres_server: PostgresServer) -> None:
    url = postgres_server.create()
    for how in (signal.SIGKILL, signal.SIGQUIT, signal.SIGINT):
        with psycopg.connect(url) as connection:
            connection.execute(f"CREATE TABLE after_{how.value} (a int)".encode())
        postgres_server.end(how)
        postgres_server.start()
    with psycopg.connect(url) as connection:
        count = "SELECT count(*) FROM information_schema.tables WHERE table_name LIKE 'after_%'"
        assert connection.execute(count).fetchone() == (3,)


def test_server_that_does_not_sync_is_refused(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = postgres_url.rpartition("/")[2]
        connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off'.encode())
    with pytest.raises(LedgerError, match="synchronous_commit"):
        Database.open(postgres_url)


def test_cut_connection_is_replaced(postgres_server: PostgresServer, postgres_url: str) -> None:
    database = Database.open(postgres_url)
    try:
        for _ in range(3):
            with database.transaction() as connection:
                pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            with postgres_server.connect() as admin:
                admin.execute("SELECT pg_terminate_backend(%s)", [pid])
        with database.reading() as connection:
            assert connection.execute(text("SELECT 1")).scalar_one() == 1
    finally:
        database.dispose()


def test_missing_server_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skipped where a developer has none; a failure where CI must have one."""
    monkeypatch.setattr(postgres, "find_binaries", lambda: None)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="NOT TESTED"), postgres.serving():
        pass
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="apt-get install"), postgres.serving():
        pass


def test_binaries_are_found_beside_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    folder = find_binaries()
    assert folder is None or (folder / "initdb").exists()
