"""A database that is older than the files: nothing is destroyed, signed or recorded."""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from letheon.audit import audit
from letheon.exceptions import LedgerError, OldDatabaseError
from letheon.ledger import Ledger
from letheon.ledger import core as faults
from letheon.ledger.db.events import HIGH_WATER, LogMark, read_mark, settle_mark, write_mark
from letheon.ledger.purge import purge
from letheon.ledger.worker import recover as _adopt
from letheon.ledger.worker.recover import new_folder, sweep_registrations
from tests.ledger.databases import die, in_processes
from tests.ledger.homes import IDS, X, Y, person
from tests.ledger.old_copies import (
    KINDS,
    STEPS,
    LedgerTimeline,
    copy_database,
    inventory,
    other_model,
)
from tests.ledger.points import SimulatedKillError
from tests.marks import soak
from tests.postgres import PostgresServer

WRITES: dict[str, Callable[[Ledger], Any]] = {
    "work": lambda ledger: ledger.run_once(force=True),
    "retrain": lambda ledger: ledger.models.retrain("risk"),
    "register": lambda ledger: ledger.models.register(other_model(), X, Y, ids=IDS, name="third"),
    "request": lambda ledger: ledger.requests.submit([person(9)], model="risk", verified=True),
    "rotate": lambda ledger: ledger.keys.rotate(),
    "checkpoint": lambda ledger: ledger.log.checkpoint(),
}


@pytest.fixture(scope="module")
def stories(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Callable[[str], LedgerTimeline]:
    """Gives a story by the kind of its database; tests work on copies of its home."""

    @functools.cache
    def play(kind: str) -> LedgerTimeline:
        is_server = kind == "postgresql"
        server: PostgresServer | None = (
            request.getfixturevalue("postgres_server") if is_server else None
        )
        story = LedgerTimeline(tmp_path_factory.mktemp(kind) / "home", kind, server)
        story.play()
        return story

    return play


@pytest.fixture(params=[soak(kind) if kind == "delete" else kind for kind in KINDS])
def story(
    stories: Callable[[str], LedgerTimeline], request: pytest.FixtureRequest
) -> LedgerTimeline:
    return stories(request.param)


@pytest.fixture
def lived(stories: Callable[[str], LedgerTimeline]) -> LedgerTimeline:
    return stories("wal")


def errors(ledger: Ledger) -> list[str]:
    # A copy of a database has the modes that it was copied with.
    findings = [one for one in ledger.doctor() if one.level == "error" and one.check != "files"]
    return [f"{finding.check}: {finding.text}" for finding in findings]


def test_a_round_with_an_older_copy_destroys_nothing(tmp_path: Path) -> None:
    story = LedgerTimeline(tmp_path / "home")
    with story.create() as ledger:
        copy_database(story.home, tmp_path / "old")
        ledger.models.register(other_model(), X, Y, ids=IDS, name="risk")
        ledger.requests.submit([person(1)], model="risk", verified=True)
        ledger.run_once(force=True)
    before = inventory(story.home)
    copy_database(story.home, tmp_path / "new")
    copy_database(tmp_path / "old", story.home)
    with (
        story.open() as ledger,
        pytest.raises(LedgerError, match=r"newer than its database: .*letheon"),
    ):
        ledger.run_once()
    assert inventory(story.home) == before
    copy_database(tmp_path / "new", story.home)
    with story.open() as ledger:
        assert errors(ledger) == []
        assert ledger.models.load("risk").n_rows_ == 58


def test_a_copy_from_before_a_purge_is_refused_though_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that it names are destroyed already."""

    story, gather = LedgerTimeline(tmp_path / "home"), purge._collect_markers

    def copy_first(given: purge.PurgeRun) -> Any:
        copy_database(story.home, tmp_path / "old")
        return gather(given)

    def kill(name: str) -> None:
        if name == "purge.blobs-half":
            raise SimulatedKillError

    with story.create() as ledger:
        ledger.models.register(other_model(), X, Y, ids=IDS, name="risk")
        ledger.requests.submit([person(1)], model="risk", verified=True)
        monkeypatch.setattr(purge, "_collect_markers", copy_first)
        monkeypatch.setattr(faults, "hook", kill)
        with pytest.raises(SimulatedKillError):
            ledger.run_once(force=True)
    monkeypatch.undo()
    copy_database(tmp_path / "old", story.home)
    with story.open() as ledger, pytest.raises(OldDatabaseError):
        ledger.run_once()


def test_every_older_copy_is_refused_and_can_be_read(story: LedgerTimeline) -> None:
    newest = inventory(story.home)
    for step in STEPS:
        home = story.home_with(step)
        with story.open(home) as ledger:
            if step == STEPS[-1]:
                assert errors(ledger) == []
                assert ledger.database_differences() == ()
                assert ledger.run_once(force=True) == ()
                continue
            for write in WRITES.values():
                with pytest.raises(OldDatabaseError, match="ledger adopt"):
                    write(ledger)
            assert [error for error in errors(ledger) if error.startswith("agreement: ")], step
            assert len(ledger.requests.list()) == {
                "registered": 0,
                "filed again": 3,
                "retrained": 3,
            }.get(step, 1)
        assert inventory(home) == newest, step
        shutil.rmtree(home)


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.soak)])
def test_copies_of_every_moment_are_refused(lived: LedgerTimeline, every: int) -> None:
    """Copies from within the steps of workers: only the very last ones are not too old."""
    moments = [step for step in lived.copies if step not in STEPS]
    assert len(moments) > 25
    newest, n_refused, chosen = inventory(lived.home), 0, moments[::every]
    for moment in chosen:
        home = lived.home_with(moment)
        with lived.open(home) as ledger:
            try:
                ledger.run_once(force=True)
            except OldDatabaseError:
                n_refused += 1
        assert inventory(home) == newest, moment
        shutil.rmtree(home)
    assert n_refused >= len(chosen) - 3


def test_a_whole_older_backup_goes_on(lived: LedgerTimeline) -> None:
    with lived.open(lived.backup) as ledger:
        assert errors(ledger) == []
        ledger.requests.submit([person(3)], model="risk", verified=True)
        assert "purged" in {step.what for step in ledger.run_once(force=True)}
        assert errors(ledger) == []


@pytest.mark.parametrize("point", ["mark.integrated", "mark.written"])
@pytest.mark.parametrize("nth", [1, 3])
def test_a_kill_beside_the_file_blocks_nothing(tmp_path: Path, point: str, nth: int) -> None:
    story = LedgerTimeline(tmp_path / "home")
    story.create().close()

    def live() -> None:
        left = [None] * nth

        def kill(name: str) -> None:
            if name == point and (left.pop() or not left):
                die()

        with story.open() as ledger:
            faults.hook = kill
            ledger.models.register(other_model(), X, Y, ids=IDS, name="risk")
            ledger.requests.submit([person(1)], model="risk", verified=True)
            ledger.run_once(force=True)

    assert in_processes([live]) == [-9]
    copy_database(story.home, tmp_path / "killed")
    with story.open() as ledger:
        if not ledger.requests.list():
            ledger.requests.submit([person(1)], model="risk", verified=True)
        ledger.run_once(force=True)
        assert {request.state for request in ledger.requests.list()} == {"purged"}
        assert errors(ledger) == []
        assert ledger.models.load("risk").n_rows_ == 58
    # And the hole is closed: the database of the killed process is too old by now.
    copy_database(tmp_path / "killed", story.home)
    with story.open() as ledger, pytest.raises(OldDatabaseError):
        ledger.run_once(force=True)


def test_the_mark_never_goes_back_and_follows_the_database(lived: LedgerTimeline) -> None:
    with lived.open(lived.home_with(STEPS[-1])) as ledger:
        core = ledger._core
        newest = read_mark(core.folder)
        assert newest is not None
        write_mark(core, LogMark(1, "0" * 64))
        assert read_mark(core.folder) == newest
        (core.folder / HIGH_WATER).unlink()
        ledger.run_once()
        assert read_mark(core.folder) == newest
        ledger.requests.submit([person(9)], model="risk", verified=True)
        assert read_mark(core.folder) == newest
        settle_mark(core)
        later = read_mark(core.folder)
        assert later is not None
        assert later.size > newest.size


@pytest.mark.parametrize("content", ["", "7 " + "A" * 64 + "\n"])
def test_a_damaged_mark_is_refused_and_adopted(lived: LedgerTimeline, content: str) -> None:
    home = lived.home_with(STEPS[-1])
    (home / HIGH_WATER).write_text(content)
    with lived.open(home) as ledger:
        with pytest.raises(OldDatabaseError, match="damaged"):
            ledger.run_once()
        with pytest.raises(OldDatabaseError, match="damaged"):
            ledger.requests.submit([person(9)], model="risk")
        assert ledger.adopt_database(yes=True).is_done
        assert errors(ledger) == []
        ledger.run_once()


@pytest.mark.parametrize("gone", [(), ("checkpoints",), ("certificates",)])
def test_signed_files_alone_tell_that_a_database_is_old(
    lived: LedgerTimeline, gone: tuple[str, ...]
) -> None:
    """A ledger of an earlier letheon has no mark."""
    home = lived.home_with("erased")
    (home / HIGH_WATER).unlink()
    for kind in gone:
        shutil.rmtree(home / kind)
    before = inventory(home)
    with lived.open(home) as ledger, pytest.raises(OldDatabaseError):
        ledger.run_once()
    assert inventory(home) == before


def test_another_history_of_the_same_length_is_refused(tmp_path: Path) -> None:
    story = LedgerTimeline(tmp_path / "home")
    with story.create() as ledger:
        ledger.log.checkpoint()
    shutil.copytree(story.home, tmp_path / "fork")
    for home in (story.home, tmp_path / "fork"):
        with story.open(home) as ledger:
            ledger.models.register(other_model(), X, Y, ids=IDS, name="risk")
            ledger.log.checkpoint()
    copy_database(tmp_path / "fork", story.home)
    before = inventory(story.home)
    with story.open() as ledger:
        differences = " ".join(ledger.database_differences())
        assert "differs from high-water.txt" in differences
        assert "different root" in differences
        with pytest.raises(OldDatabaseError):
            ledger.run_once()
    assert inventory(story.home) == before


def test_single_folders_and_keys_are_kept_too(lived: LedgerTimeline) -> None:
    home = lived.home_with("registered")
    before = inventory(home)
    with lived.open(home) as ledger:
        core = ledger._core
        assert sweep_registrations(core) == 0
        with pytest.raises(OldDatabaseError), new_folder(core):
            pytest.fail("no folder is made for a database that is too old")
        with pytest.raises(OldDatabaseError):
            ledger.requests.submit([person(9)], model="risk", verified=True)
    assert inventory(home) == before


def test_a_served_version_whose_files_are_gone_stops_the_sweep(lived: LedgerTimeline) -> None:
    home = lived.home_with(STEPS[-1])
    folder = next(one for one in (home / "blobs").iterdir())
    for path in folder.iterdir():
        if not path.name.startswith("."):
            path.unlink()
    (folder / ("0" * 64)).write_bytes(b"all that is left")
    with lived.open(home) as ledger:
        steps = ledger.run_once()
        assert [step.what for step in steps] == ["failed"]
        assert "nothing was deleted" in steps[0].detail
    assert (folder / ("0" * 64)).exists()


def test_an_intake_key_that_the_database_lost_is_kept(tmp_path: Path) -> None:
    story = LedgerTimeline(tmp_path / "home")
    with story.create() as ledger:
        ledger.models.register(other_model(), X, Y, ids=IDS, name="risk")
        copy_database(story.home, tmp_path / "old")
        ledger.requests.submit([person(1)], model="risk", verified=True)
    copy_database(story.home, tmp_path / "new")
    copy_database(tmp_path / "old", story.home)
    with story.open() as ledger:
        # The request is lost, and no file tells; its key must stay.
        ledger.requests.submit([person(2)], model="risk", verified=True)
    copy_database(tmp_path / "new", story.home)
    with story.open() as ledger:
        ledger.run_once(force=True)
        assert {request.state for request in ledger.requests.list()} == {"purged"}


def test_adopting_says_what_is_lost_and_goes_on(story: LedgerTimeline) -> None:
    home = story.home_with("filed again")
    before = inventory(home)
    with story.open(home) as ledger:
        listed = ledger.adopt_database()
        assert listed.differences
        assert not listed.is_done
        assert listed.certificates == (2, 3)
        assert listed.purges == (2, 3)
        assert listed.checkpoints
        assert (listed.n_blobs, listed.n_keys) == (0, 0)  # nothing of a lost model is destroyed
        assert set(listed.models) == {"risk", "churn"}
        assert len(listed.requests) == 2
        assert inventory(home) == before
        done = ledger.adopt_database(yes=True)
        assert done.is_done
        assert done.certificates == listed.certificates
        assert ledger.adopt_database(yes=True).differences == ()
        kinds = [entry.kind for entry in ledger.log.entries(limit=500).items]
        assert kinds.count("database-adopted") == 1
        kept = [path.name for path in (home / "superseded").rglob("*.json")]
        assert sorted(kept) == ["000002.json", "000002.json", "000003.json", "000003.json"]
        ledger.run_once()
        ledger.models.register(other_model(), X, Y, ids=IDS, name="fresh", tenant="other")
        ledger.requests.submit([person(9)], model="fresh", tenant="other", verified=True)
        assert "purged" in {step.what for step in ledger.run_once(force=True)}
        assert ledger.certificates.sequences() == (1, 2)
        assert all("missing" in error for error in errors(ledger)), errors(ledger)
        # Who asked before is asked for again, and comes first when the old request is withdrawn.
        for request in listed.requests:
            assert ledger.requests.get(request).state == "queued"
            ledger.requests.cancel(request)
        assert all(error.startswith("models: ") for error in errors(ledger)), errors(ledger)


@pytest.fixture
def stopped(lived: LedgerTimeline, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Adopts the database of a step and dies before one of its parts."""

    def stop(name: str) -> Path:
        home = lived.home_with("erased")

        def adopt() -> None:
            monkeypatch.setattr(_adopt, name, lambda *_, **__: die())
            with lived.open(home) as ledger:
                ledger.adopt_database(yes=True)

        assert in_processes([adopt]) == [-9]
        return home

    return stop


@pytest.mark.parametrize("part", ["_set_aside", "_write_missing", "write_mark"])
def test_a_killed_adoption_is_repeated(
    lived: LedgerTimeline, stopped: Callable[[str], Path], part: str
) -> None:
    home = stopped(part)
    with lived.open(home) as ledger:
        with pytest.raises(OldDatabaseError):
            ledger.run_once()
        assert ledger.adopt_database(yes=True).is_done
        assert ledger.database_differences() == ()
        ledger.run_once()
        assert [error for error in errors(ledger) if "missing" not in error] == []


def test_an_export_after_an_adoption_holds(tmp_path: Path) -> None:
    story = LedgerTimeline(tmp_path / "home")
    with story.create() as ledger:
        ledger.models.register(other_model(), X, Y, ids=IDS, name="risk")
        copy_database(story.home, tmp_path / "old")
        ledger.models.register(other_model(), X, Y, ids=IDS, name="lost")
    copy_database(tmp_path / "old", story.home)
    with story.open() as ledger:
        assert ledger.adopt_database(yes=True).n_models == 1
        ledger.requests.submit([person(1)], model="risk", verified=True)
        ledger.run_once(force=True)
        assert errors(ledger) == []
        assert len(list((story.home / "blobs").iterdir())) == 1
        ledger.export(tmp_path / "bundle", tier="auditor")
        report = audit(tmp_path / "bundle", key=ledger.public_key)
    assert report.passed, str(report)


def test_a_server_that_takes_no_writes_is_named(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    story = LedgerTimeline(tmp_path / "home", "postgresql", postgres_server)
    with story.create() as ledger:
        ledger.models.register(other_model(), X, Y, ids=IDS, name="risk")
        url = ledger.settings.database or ""
        with ledger._core.database.transaction() as conn:
            name = url.rpartition("/")[2]
            conn.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
    before = inventory(story.home)
    with story.open() as ledger:
        for write in (WRITES["work"], WRITES["request"], WRITES["rotate"]):
            with pytest.raises(LedgerError, match="standby"):
                write(ledger)
        assert ledger.models.list()[0].name == "risk"
        assert ledger.models.load("risk").n_rows_ == 60
        assert "standby" in " ".join(errors(ledger))
    assert inventory(story.home) == before
