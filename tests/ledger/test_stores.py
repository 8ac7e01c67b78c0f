"""Stores of the operator: registered, looked through, and named when something is left."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from letheon.exceptions import LedgerError
from letheon.ledger import Store
from letheon.ledger.purge import purge
from letheon.verifier import open_envelope
from tests.ledger.residue import MarkedLedger, make_marked, quick_folder


@pytest.fixture
def marked() -> Iterator[MarkedLedger]:
    with quick_folder() as folder, closing(make_marked(folder / "home", 6)) as marked_ledger:
        yield marked_ledger


@pytest.fixture
def exports(marked: MarkedLedger) -> Path:
    folder = marked.home.parent / "exports"
    folder.mkdir()
    return folder


def attested(marked: MarkedLedger, sequence: int = 1) -> dict[str, dict[str, str]]:
    envelope = marked.ledger.certificates.purge_attestation(sequence)
    predicate = open_envelope(envelope, marked.core.keys.trust()).statement["predicate"]
    return {store["store"]: store for store in predicate["stores"]}


def test_stores_are_listed_by_name(marked: MarkedLedger, exports: Path) -> None:
    backup = Store("backup", exports, owner="it", scope="nightly", days=30)
    marked.ledger.stores.add("z-copies", str(exports))
    marked.ledger.stores.add(**vars(backup))
    assert [store.name for store in marked.ledger.stores.list()] == ["backup", "z-copies"]
    assert marked.ledger.stores.list()[0] == Store("backup", str(exports), "it", "nightly", 30)
    assert [store.kind for store in marked.ledger.stores.list()] == ["backup", "folder"]
    marked.ledger.stores.remove("backup")
    assert [store.name for store in marked.ledger.stores.list()] == ["z-copies"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Ann Smith"}, "name="),
        ({"owner": "ann@example.org"}, "owner="),
        ({"scope": ""}, "scope="),
        ({"days": 0}, "days="),
        ({"path": "/no/such/folder"}, "not an existing folder"),
    ],
)
def test_bad_stores_are_refused(
    change: dict[str, object], message: str, marked: MarkedLedger, exports: Path
) -> None:
    given = {"name": "copies", "path": exports} | change
    with pytest.raises(ValueError, match=message):
        marked.ledger.stores.add(**given)  # type: ignore[arg-type]
    assert marked.ledger.stores.list() == ()


def test_the_home_itself_is_no_store(marked: MarkedLedger) -> None:
    for path in (marked.home, marked.home.parent, marked.home / "blobs"):
        with pytest.raises(ValueError, match="overlaps the folder of the ledger"):
            marked.ledger.stores.add("home", path)


def test_a_name_is_used_once(marked: MarkedLedger, exports: Path) -> None:
    marked.ledger.stores.add("copies", exports)
    with pytest.raises(LedgerError, match="already"):
        marked.ledger.stores.add("copies", exports)
    with pytest.raises(LedgerError, match="no store"):
        marked.ledger.stores.remove("other")


def test_leftover_holds_the_purge_up_and_is_named(marked: MarkedLedger, exports: Path) -> None:
    marked.ledger.stores.add("feature-files", exports, scope="features")
    (exports / "march.csv").write_text(f"id,age\n{marked.ids[0]},44\n")
    marked.erase(marked.ids[0])
    (request,) = marked.ledger.requests.list()
    assert (request.state, request.reason) == ("purging", "residue-found")
    (problem,) = purge.list_problems(marked.core)
    assert (problem.where.store, problem.where.file) == ("feature-files", "march.csv")
    assert "'feature-files', file 'march.csv'" in str(problem)
    assert marked.ids[0] not in str(problem)
    (exports / "march.csv").unlink()
    marked.clock.now += 7200
    marked.run()
    assert marked.states() == {"purged"}
    assert not purge.list_problems(marked.core)
    assert attested(marked)["store:feature-files"]["state"] == "purged"


def test_store_that_is_gone_holds_the_purge_up(marked: MarkedLedger, exports: Path) -> None:
    marked.ledger.stores.add("copies", exports)
    exports.rmdir()
    marked.erase(marked.ids[0])
    assert [problem.where.reason for problem in purge.list_problems(marked.core)] == ["missing"]
    assert marked.states() == {"purging"}


def test_backup_expires_and_says_when(marked: MarkedLedger, exports: Path) -> None:
    marked.ledger.stores.add("tapes", exports, scope="backups", days=30)
    file = exports / "monday"
    file.write_text(marked.ids[0])
    os.utime(file, (marked.clock.now, marked.clock.now))
    marked.erase(marked.ids[0])
    assert marked.states() == {"purged"}
    backup = attested(marked)["store:tapes"]
    assert (backup["state"], backup["by"], backup["scope"]) == ("expires", "2026-10-21", "backups")
    assert "at" not in backup


def test_backup_that_outlived_its_days_is_found(marked: MarkedLedger, exports: Path) -> None:
    marked.ledger.stores.add("tapes", exports, days=30)
    file = exports / "forgotten"
    file.write_text("an old backup")
    os.utime(file, (marked.clock.now - 31 * 86_400,) * 2)
    marked.erase(marked.ids[0])
    assert [problem.where.reason for problem in purge.list_problems(marked.core)] == [
        "older-than-30-days"
    ]


def test_backup_that_is_rotated_meanwhile_is_no_error(
    marked: MarkedLedger, exports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked.ledger.stores.add("tapes", exports, days=30)
    (exports / "monday").write_text("a backup")
    real = os.walk

    def rotated(top: Any, **given: Any) -> Iterator[Any]:
        for folder, folders, names in real(top, **given):
            for name in names if Path(folder) == exports.resolve() else ():
                Path(folder, name).unlink()
            yield folder, folders, names

    monkeypatch.setattr(os, "walk", rotated)
    marked.erase(marked.ids[0])
    assert marked.states() == {"purged"}


@pytest.mark.parametrize("days", [None, 30])
def test_folder_that_cannot_be_looked_into_is_named(
    days: int | None, marked: MarkedLedger, exports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (exports / "locked").mkdir()
    marked.ledger.stores.add("tapes", exports, days=days)
    real = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(13, "denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    marked.erase(marked.ids[0])
    issues = [
        (problem.where.file, problem.where.reason) for problem in purge.list_problems(marked.core)
    ]
    assert issues == [("locked", "unreadable")]
