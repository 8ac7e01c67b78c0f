"""A ledger on a disk that is full or read-only: it is read, and every write says one thing."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from letheon import NaiveUnlearner
from letheon.exceptions import LedgerUnwritableError
from letheon.ledger import Ledger
from letheon.ledger.db import engines
from letheon.ledger.db.database import _translate_errors
from letheon.ledger.tables import meta
from tests.cli.ledgers import call
from tests.ledger.databases import NOON, SettableClock

_MIB = 1 << 20


def make_ledger(home: Path) -> None:
    """Make a ledger with a model, an erasure and a request that waits."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = (X[:, 0] > 0).astype(int)
    with Ledger.create(home, name="disk", clock=SettableClock(NOON)) as ledger:
        model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y)
        ledger.models.register(model, X, y, name="risk")
        ledger.requests.submit([3], model="risk", verified=True)
        ledger.run_once(force=True)
        ledger.log.checkpoint()
        ledger.requests.submit([4], model="risk")
        ledger.keys.rotate()


@contextlib.contextmanager
def mounted(place: Path) -> Iterator[None]:
    """Mount a small file system of its own; skip where that is not permitted."""
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> None:
    """Take the last byte of a disk."""
    with (place / "rest").open("wb", buffering=0) as rest:
        for size in (_MIB, 4096, 1):
            with contextlib.suppress(OSError):
                while rest.write(bytes(size)) == size:
                    pass


def lock(place: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)


def assert_read_only(home: Path, elsewhere: Path, clock: Any = None) -> None:
    """Read everything, and try to write."""
    with Ledger.open(home, clock=clock or SettableClock(NOON + 1000)) as ledger:
        states = sorted(request.state for request in ledger.requests.list())
        assert states == ["purged", "received"]
        assert ledger.models.load("risk").n_rows_ == 39
        assert ledger.requests.find(limit=1).total == 2
        waiting = ledger.requests.find(states=("received",)).items[0]
        assert [event.kind for event in ledger.requests.timeline(waiting.id)] == ["received"]
        assert len(ledger.certificates.list().items) == 1
        ledger.export(elsewhere / "bundle")
        for write in (
            lambda: ledger.requests.submit([5], model="risk"),
            lambda: ledger.requests.verify(waiting.id),
            ledger.log.checkpoint,
            lambda: ledger.export(elsewhere / "auditors", tier="auditor"),
        ):
            with pytest.raises(LedgerUnwritableError, match="full or read-only, so nothing was"):
                write()
        assert not (elsewhere / "auditors").exists()
        levels = {finding.check: finding.level for finding in ledger.doctor()}
        assert (levels["disk"], levels["certificates"], levels["log"]) == ("error", "ok", "ok")


@pytest.mark.parametrize("close", [fill, lock])
def test_a_ledger_on_a_disk_that_cannot_be_written_is_read(tmp_path: Path, close: Any) -> None:
    disk = tmp_path / "disk"
    with mounted(disk):
        make_ledger(disk / "home")
        close(disk)
        before = sorted(path for path in disk.rglob("*") if not path.name.startswith("ledger.db-"))
        assert_read_only(disk / "home", tmp_path)
        after = sorted(path for path in disk.rglob("*") if not path.name.startswith("ledger.db-"))
        assert before == after


def test_commands_read_and_name_the_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with mounted(disk):
        make_ledger(disk / "home")
        lock(disk)
        words = ["--ledger", str(disk / "home")]
        for command in (["request", "list"], ["cert", "show", "1"], ["ledger", "verify"]):
            outcome = call(*command, *words)
            assert outcome.exit_code == 0, outcome.output
        refused = call("request", "add", "--model", "risk", "7", *words)
    assert refused.exit_code == 5
    assert "full or read-only" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


def test_a_log_that_a_crash_left_on_a_read_only_disk_is_read(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with mounted(disk):
        make_ledger(tmp_path / "home")
        with Ledger.open(tmp_path / "home", clock=SettableClock(NOON + 10)) as ledger:
            ledger.requests.await_identity(ledger.requests.find(states=("received",)).items[0].id)
            shutil.copytree(tmp_path / "home", disk / "home")  # as a crash would leave it
        (disk / "home" / "ledger.db-shm").unlink()
        assert (disk / "home" / "ledger.db-wal").stat().st_size > 0
        lock(disk)
        with Ledger.open(disk / "home", clock=SettableClock(NOON + 1000)) as ledger:
            waiting = ledger.requests.find(states=("received",)).items[0]
            kinds = [event.kind for event in ledger.requests.timeline(waiting.id)]
            assert kinds == ["received", "identity-asked"]
            with pytest.raises(LedgerUnwritableError):
                ledger.requests.verify(waiting.id)


class FullDisk:
    """Lets SQLite fail as it does on a disk that cannot be written; no mount is needed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        module = engines.sqlite_module()

        def connect(address: str, **given: Any) -> Any:
            if self.is_full and not given.get("uri"):
                raise module.OperationalError("unable to open database file")
            return module.connect(address, **given)

        class FailingModule:
            def __getattr__(self, name: str) -> Any:
                return connect if name == "connect" else getattr(module, name)

        patch.setattr(engines, "sqlite_module", FailingModule)
        for place in ("db.engines", "doctor"):
            patch.setattr(f"letheon.ledger.{place}.is_writable", lambda _: not self.is_full)


def test_without_a_mount_the_way_of_reading_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_ledger(tmp_path / "home")
    FullDisk(monkeypatch)
    assert_read_only(tmp_path / "home", tmp_path)


def test_a_disk_that_can_be_written_again_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_ledger(tmp_path / "home")
    disk = FullDisk(monkeypatch)
    with Ledger.open(tmp_path / "home", clock=SettableClock(NOON + 10)) as ledger:
        with pytest.raises(LedgerUnwritableError):
            ledger.requests.submit([6], model="risk")
        disk.is_full = False
        assert ledger.requests.submit([6], model="risk").state == "received"
        assert ledger.requests.find().total == 3


def test_another_error_of_the_database_stays_what_it_is(tmp_path: Path) -> None:
    make_ledger(tmp_path / "home")
    (tmp_path / "home" / "ledger.db").write_bytes(b"no database" * 1000)
    with pytest.raises(Exception, match="not a database") as caught:
        Ledger.open(tmp_path / "home")
    assert not isinstance(caught.value, LedgerUnwritableError)


def test_a_write_on_a_connection_that_only_reads_names_the_disk(tmp_path: Path) -> None:
    make_ledger(tmp_path / "home")
    with Ledger.open(tmp_path / "home") as ledger:
        database = ledger._core.database

        def write(conn: Any) -> None:
            conn.exec_driver_sql("PRAGMA query_only=ON")
            conn.execute(meta.insert().values(key="x", value="y"))

        with pytest.raises(LedgerUnwritableError):
            database.run_transaction(write)
        with database.reading() as conn:
            assert conn.scalar(select(meta.c.value).where(meta.c.key == "x")) is None


@pytest.mark.parametrize("state", ["25006", "53100"])
def test_a_server_that_cannot_be_written_is_named_too(state: str) -> None:
    class ServerError(Exception):
        sqlstate = state

    error = DBAPIError("INSERT", {}, ServerError("no"))
    with pytest.raises(LedgerUnwritableError), _translate_errors():
        raise error


@pytest.mark.parametrize(
    ("name", "mode", "level"),
    [
        ("ledger.db", 0o640, "error"),
        ("ledger.db-wal", 0o604, "error"),
        ("letheon.toml", 0o644, "warning"),
        ("service.toml", 0o660, "warning"),
        ("opendsr/key.pem", 0o644, "warning"),
    ],
)
def test_files_that_others_can_read_are_found(
    tmp_path: Path, name: str, mode: int, level: str
) -> None:
    home = tmp_path / "home"
    Ledger.create(home, name="modes").close()
    (home / "opendsr").mkdir()
    for secret in ("service.toml", "opendsr/key.pem"):
        (home / secret).touch(0o600)
    with Ledger.open(home) as ledger:
        assert [one.level for one in ledger.doctor() if one.check == "files"] == ["ok"]
        path = home / name
        path.chmod(mode)
        (finding,) = [one for one in ledger.doctor() if one.check == "files"]
        assert finding.level == level
        assert f"mode {mode:03o}" in finding.text
        command = finding.text.rpartition(": ")[2].split()
        assert command == ["chmod", "600", str(path)]
        Path(command[2]).chmod(int(command[1], 8))
        assert [one.level for one in ledger.doctor() if one.check == "files"] == ["ok"]


def test_settings_with_a_password_that_others_can_read_are_an_error(tmp_path: Path) -> None:
    from dataclasses import replace

    from letheon.ledger.doctor import _check_modes

    home = tmp_path / "home"
    with Ledger.create(home, name="modes") as ledger:
        settings = replace(ledger.settings, database="postgresql://desk:secret@db/letheon")
        (home / "letheon.toml").chmod(0o644)
        findings = list(_check_modes(replace(ledger._core, settings=settings)))
        assert [level for level, _ in findings] == ["error"]
        assert "secret" not in findings[0][1]
