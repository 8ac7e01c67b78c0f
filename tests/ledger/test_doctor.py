"""The doctor finds what was planted, and nothing in a sound ledger."""

from pathlib import Path

import pytest

from letheon.ledger import Ledger
from tests.ledger.databases import NOON, SettableClock
from tests.ledger.homes import make, person


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(NOON)


@pytest.fixture
def ledger(tmp_path: Path, clock: SettableClock) -> Ledger:
    made = make(tmp_path, clock=clock)
    made.requests.submit([person(1)], model="risk", verified=True)
    made.run_once(force=True)
    return made


def _wrong(ledger: Ledger) -> dict[str, str]:
    return {finding.check: finding.text for finding in ledger.doctor() if finding.level != "ok"}


def test_a_sound_ledger_has_no_finding(ledger: Ledger) -> None:
    assert _wrong(ledger) == {}
    assert {finding.check for finding in ledger.doctor()} >= {"folder", "keys", "log", "purge"}


def test_an_open_folder(ledger: Ledger) -> None:
    ledger.folder.chmod(0o755)
    assert "chmod 700" in _wrong(ledger)["folder"]


def test_a_lost_blob(ledger: Ledger) -> None:
    (folder,) = (ledger.folder / "blobs").iterdir()
    (folder / ledger.models.list()[0].head.address).unlink()
    assert "restore the file" in _wrong(ledger)["models"]


def test_an_altered_certificate_file(ledger: Ledger) -> None:
    path = ledger.folder / "certificates" / "000001.json"
    path.write_bytes(path.read_bytes() + b" ")
    assert "differs from the database" in _wrong(ledger)["certificates"]


def test_an_event_that_was_dropped_by_force(ledger: Ledger) -> None:
    from sqlalchemy import text

    with ledger._core.database.transaction() as conn:
        names = [row[0] for row in conn.execute(text("select name from sqlite_master"))]
        for trigger in [name for name in names if "events" in name]:
            kind = conn.execute(
                text("select type from sqlite_master where name = :name"), {"name": trigger}
            ).scalar()
            if kind == "trigger":
                conn.execute(text(f"drop trigger {trigger}"))
        conn.execute(text("delete from events where log_index = 1"))
    assert "log" in _wrong(ledger)


def test_a_clock_that_went_back(ledger: Ledger, clock: SettableClock) -> None:
    clock.now -= 3600
    assert "behind" in _wrong(ledger)["clock"]


def test_requests_that_are_late_or_stuck(ledger: Ledger, clock: SettableClock) -> None:
    ledger.requests.submit([person(2)], model="risk", verified=True)
    clock.now += 26 * 86_400
    assert "% of its time has passed" in _wrong(ledger)["requests"]
