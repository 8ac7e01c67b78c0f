"""After a purge nothing of the erased is left, and every single step of it is needed for that."""

import logging
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from letheon.ledger import Ledger
from letheon.ledger import core as faults
from letheon.ledger.purge import purge as _purge
from letheon.ledger.purge import stores
from letheon.ledger.purge.scan import Markers
from tests.ledger import points
from tests.ledger.points import SimulatedKillError
from tests.ledger.residue import (
    NAME,
    MarkedLedger,
    Witness,
    make_marked,
    quick_folder,
    without_step,
)
from tests.postgres import PostgresServer

POINTS = [name for name in points.POINTS if name.startswith("purge.")]


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as folder_path:
        yield folder_path


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this process and its children, empty at the beginning."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def marked(folder: Path) -> Iterator[MarkedLedger]:
    with closing(make_marked(folder / "home")) as marked_ledger:
        yield marked_ledger


def erase_history(marked: MarkedLedger, witness: Witness, per_batch: int) -> None:
    for start in range(0, len(marked.ids) - 10, per_batch):
        marked.ask(*marked.ids[start : start + per_batch])
        witness.copy(marked)
        marked.run()
        assert not _purge.list_problems(marked.core)


def grep(marked: MarkedLedger, *folders: Path) -> list[str]:
    """Ids and rows in hexadecimal digits, by a program that is not ours."""
    words = [*marked.erased, *(marked.salts[person].hex() for person in marked.erased)]
    process = subprocess.run(
        ["grep", "-rlaF", "-f", "-", *map(str, folders)],
        input="\n".join(words),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode in (0, 1), process.stderr
    return process.stdout.splitlines()


def check_history(
    marked: MarkedLedger, per_batch: int, temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    witness = Witness()
    erase_history(marked, witness, per_batch)
    assert marked.states() == {"purged"}
    assert not marked.markers().find(caplog.text.encode())
    assert not witness.leaks(marked, temporary)
    copy = temporary / "copy"
    shutil.copytree(marked.home, copy)
    assert not grep(marked, copy)


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_nothing_is_left_after_many_erasures(
    journal: str, folder: Path, temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(make_marked(folder / "home", 90, journal=journal)) as marked:
        check_history(marked, 10, temporary, caplog)


def test_nothing_is_left_on_a_server(
    folder: Path,
    temporary: Path,
    caplog: pytest.LogCaptureFixture,
    postgres_url: str,
    postgres_server: PostgresServer,
) -> None:
    with closing(make_marked(folder / "home", 60, database=postgres_url)) as marked:
        check_history(marked, 10, temporary, caplog)
        with postgres_server.connect(postgres_url.rpartition("/")[2]) as connection:
            connection.execute("CHECKPOINT")
        assert not Witness().leaks(marked, postgres_server.folder)
        assert not grep(marked, postgres_server.folder)


@pytest.mark.soak
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_nothing_is_left_after_ten_thousand_erasures(
    journal: str, folder: Path, temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(make_marked(folder / "home", 5_010, journal=journal)) as marked:
        check_history(marked, 50, temporary, caplog)


def test_witness_sees_what_is_there_before_the_purge(marked: MarkedLedger) -> None:
    witness = Witness()
    marked.ask(*marked.ids[:2])
    witness.copy(marked)
    leaks = witness.leaks(marked)
    assert {"body in ledger.db-wal", "body by a key"} <= leaks
    marked.run()
    (marked.home / "old.csv").write_text(f"{marked.ids[0]},")
    (marked.home / "rows.bin").write_bytes(marked.X[0].tobytes())
    assert witness.leaks(marked) == {"id in home", "row in home"}


def planted_for(marked: MarkedLedger, store: Path, step: str) -> None:
    """Put something where only this step would find it."""
    person = marked.ids[0]
    if step == "stores":
        store.mkdir()
        marked.ledger.stores.add("exports", store)
        (store / "old.csv").write_text(f"id\n{person}\n")
    if step == "scan":
        (marked.home / "debug.log").write_text(f"learnt {person}\n")
    if step == "temporary":
        faults.hook = lambda name: leave_half_a_file(marked) if name == "purge.started" else None


def leave_half_a_file(marked: MarkedLedger) -> None:
    """Do what a worker does that is killed while it writes, after the last sweep."""
    blobs = marked.core.blob_store(marked.model.folder)
    (blobs.folder / ".0123456789abcdef.partial").write_bytes(marked.X[0].tobytes())


# How a purge without the step is caught: by its own search, or by the witness.
NEEDED = {
    "blobs": "old file",
    "key": "model by a key",
    "intake": "body by a key",
    "stores": "id in exports",
    "temporary": "",
    "database": "body in ledger.db-wal",
    "scan": "id in home",
    "markers": "markers by a key",
}


@pytest.mark.parametrize("step", NEEDED)
def test_every_step_is_needed(
    step: str, marked: MarkedLedger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness, store = Witness(), folder / "exports"
    monkeypatch.setattr(faults, "hook", None)
    planted_for(marked, store, step)
    marked.ask(marked.ids[0])
    witness.copy(marked)
    # What a step before left, the step `temporary` sweeps.
    left_out = (step, "temporary") if step in ("blobs", "key") else (step,)
    monkeypatch.setattr(_purge, "STEPS", without_step(*left_out))
    with pytest.MonkeyPatch.context() as patch:
        # The sealed markers are there only for a moment.
        drop = dict(_purge.STEPS)["markers"]

        def copy_and_drop(purge: _purge.PurgeRun) -> dict[str, object] | None:
            witness.copy(marked)
            return drop(purge)

        steps = [(name, copy_and_drop if name == "markers" else do) for name, do in _purge.STEPS]
        patch.setattr(_purge, "STEPS", tuple(steps))
        marked.run()
    if NEEDED[step]:
        assert marked.states() == {"purged"}
        assert NEEDED[step] in witness.leaks(marked, *([store] if store.exists() else []))
    else:
        assert marked.states() == {"purging"}
        assert {problem.where.store for problem in _purge.list_problems(marked.core)} == {"blobs"}


def test_half_written_file_is_swept(marked: MarkedLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "hook", None)
    planted_for(marked, marked.home, "temporary")
    marked.erase(marked.ids[0])
    assert marked.states() == {"purged"}
    assert not Witness().leaks(marked)


def test_training_key_goes_with_the_model_that_it_made(
    marked: MarkedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = Witness()
    for person in marked.ids[:2]:
        marked.ask(person)
        marked.ledger.models.retrain(NAME)
        assert len(marked.core.keys.list_ids("training")) == 1
    marked.erase(marked.ids[2])
    assert len(marked.core.keys.list_ids("training")) == 1
    assert not witness.leaks(marked)
    monkeypatch.setattr(_purge, "STEPS", without_step("training", "temporary"))
    marked.ask(marked.ids[3])
    marked.ledger.models.retrain(NAME)
    assert "key of kind training" in witness.leaks(marked)


def test_pinned_version_is_not_destroyed_under_its_reader(
    marked: MarkedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = marked.ledger.models.reader(NAME)
    assert reader.model.n_rows_ == len(marked.ids)
    file = marked.core.blob_store(marked.model.folder).path_of(reader.address)
    marked.erase(marked.ids[0])
    assert marked.states() == {"purging"}
    assert file.exists()
    monkeypatch.setattr(_purge, "_is_drained", lambda conn, purge: True)
    monkeypatch.setitem(_purge._IN_TRANSACTION, "pins", lambda conn, purge: True)
    marked.run()
    assert not file.exists()


def test_reader_follows_the_head_and_lets_the_old_version_go(marked: MarkedLedger) -> None:
    reader = marked.ledger.models.reader(NAME)
    assert reader.model.n_rows_ == len(marked.ids)
    marked.erase(marked.ids[0])
    assert reader.model.n_rows_ == len(marked.ids) - 1
    marked.run()
    assert marked.states() == {"purged"}


def test_purge_without_markers_goes_nowhere(
    marked: MarkedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_purge, "STEPS", without_step("started"))
    marked.ask(marked.ids[0])
    steps = marked.ledger.run_once(force=True)
    (failed,) = [step for step in steps if step.what == "failed"]
    assert "restore keys/purge-" in failed.detail
    assert marked.states() == {"purging"}


@pytest.mark.parametrize("at", POINTS)
def test_purge_goes_on_after_a_kill(
    at: str, marked: MarkedLedger, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = Witness()
    marked.ask(*marked.ids[:3])
    witness.copy(marked)

    def kill(name: str) -> None:
        if name == at:
            raise SimulatedKillError

    monkeypatch.setattr(faults, "hook", kill)
    with pytest.raises(SimulatedKillError):
        marked.run()
    monkeypatch.setattr(faults, "hook", None)
    witness.copy(marked)
    marked.close()
    marked.ledger = Ledger.open(marked.home, clock=marked.clock)
    marked.run()
    assert marked.states() == {"purged"}
    assert not witness.leaks(marked)
    left = sorted(path.name for path in (marked.home / "purges").iterdir())
    assert left == [".lock", "000001.json"]


def test_rows_of_a_server_are_read_a_page_at_a_time(
    marked: MarkedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_ROWS", 3)
    marked.ask(*marked.ids[:6])
    marked.run()
    with marked.core.database.reading() as conn:
        requests = list(conn.scalars(text("SELECT id FROM requests")))
        contents = list(stores._read_tables(conn))
    markers = Markers.from_values(ids=requests)
    hits = [(name, match.id_number) for name, data in contents for match in markers.find(data)]
    assert {number for _, number in hits} == set(range(6))
    assert {name for name, _ in hits} >= {"requests", "events", "blocked"}
    assert [name for name, _ in contents].count("requests") == 2
