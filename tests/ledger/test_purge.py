"""The purge as a whole: what it attests, when it waits, and what happens twice at once."""

import fcntl
import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import select, update

from letheon.exceptions import LedgerBusyError, RequestStateError
from letheon.ledger import core as faults
from letheon.ledger.leases import Lease, owner_name, take_lease
from letheon.ledger.models.versions import find_head
from letheon.ledger.purge import purge
from letheon.ledger.requests.people import move_requests
from letheon.ledger.requests.states import STATES
from letheon.ledger.tables import batches, purge_steps, purges, requests, versions
from letheon.verifier import PURGE, open_envelope, parse_strict
from tests.ledger.points import SimulatedKillError
from tests.ledger.residue import NAME, MarkedLedger, make_marked, quick_folder


@pytest.fixture
def marked() -> Iterator[MarkedLedger]:
    with quick_folder() as folder, closing(make_marked(folder / "home", 8)) as marked_ledger:
        yield marked_ledger


def only_batch(marked: MarkedLedger) -> str:
    with marked.core.database.reading() as conn:
        return str(conn.execute(select(batches.c.id)).scalar_one())


def leave_a_copy(marked: MarkedLedger) -> None:
    """Leave a copy of the first person where a purge finds it."""
    (marked.home / "notes.txt").write_text(f"seen: {marked.ids[0]}")


def test_attestation_says_what_was_done(marked: MarkedLedger) -> None:
    marked.erase(*marked.ids[:3])
    data = marked.ledger.certificates.purge_attestation(1)
    assert (marked.home / "purges" / "000001.json").read_bytes() == data
    statement = open_envelope(data, marked.core.keys.trust()).statement
    certificate = open_envelope(marked.ledger.certificates.envelope(1), marked.core.keys.trust())
    predicate = statement["predicate"]
    assert statement["predicateType"] == PURGE
    assert statement["subject"] == certificate.statement["subject"]
    assert predicate["certificate"] == {"sha256": certificate.id}
    assert predicate["ledger"] == {"id": "marked", "sequence": 1}
    assert predicate["salts"]["destroyed"] == 3
    assert not marked.core.keys.has(predicate["salts"]["key"])
    scanner = predicate["scanner"]
    assert (scanner["markers"], scanner["hits"]) == (9, 0)
    assert scanner["files"] > 10
    assert {store["store"] for store in predicate["stores"]} == {
        "blobs",
        "key",
        "intake",
        "training",
        "temporary",
        "database",
    }
    assert "no-copy-kept-outside-inventory" in predicate["notClaimed"]


def test_version_before_is_marked_as_purged(marked: MarkedLedger) -> None:
    marked.erase(marked.ids[0])
    with marked.core.database.reading() as conn:
        purged = list(conn.scalars(select(versions.c.purged_at).order_by(versions.c.number)))
        rows = conn.execute(select(purges.c.sequence, purges.c.batch_id)).all()
    assert purged == [marked.clock.now, None]
    assert rows == [(1, only_batch(marked))]


def test_finished_purge_is_not_done_again(marked: MarkedLedger) -> None:
    marked.erase(marked.ids[0])
    data = marked.ledger.certificates.purge_attestation(1)
    assert not purge.purge_next(marked.core, only_batch(marked))
    assert marked.ledger.certificates.purge_attestation(1) == data


def test_attestation_has_the_same_bytes_after_a_kill(
    marked: MarkedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(name: str) -> None:
        if name == "purge.before-commit":
            raise SimulatedKillError

    monkeypatch.setattr(faults, "hook", kill)
    with pytest.raises(SimulatedKillError):
        marked.erase(marked.ids[0])
    monkeypatch.setattr(faults, "hook", None)
    first = (marked.home / "purges" / "000001.json").read_bytes()
    marked.clock.now += 1000
    marked.run()
    assert marked.ledger.certificates.purge_attestation(1) == first


def test_purge_that_was_killed_while_it_began_goes_on(
    marked: MarkedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: Any) -> None:
        raise SimulatedKillError

    with monkeypatch.context() as patch:
        patch.setattr(purge, "write_atomically", kill)
        with pytest.raises(SimulatedKillError):
            marked.erase(marked.ids[0])
    assert len(marked.core.keys.list_ids("purge")) == 1
    marked.run()
    assert marked.states() == {"purged"}
    assert marked.core.keys.list_ids("purge") == []


def test_two_workers_purge_once(marked: MarkedLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    second: list[bool] = []

    def race(name: str) -> None:
        if name == "purge.blobs-half":
            batch = only_batch(marked)
            work = lambda: second.append(purge.purge_next(marked.core, batch))  # noqa: E731
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

    monkeypatch.setattr(faults, "hook", race)
    marked.erase(marked.ids[0])
    assert second == [False]
    assert marked.states() == {"purged"}


def test_retrain_without_new_requests_is_purged_too(marked: MarkedLedger) -> None:
    marked.erase(marked.ids[0])
    marked.ledger.models.retrain(NAME)
    statement = open_envelope(
        marked.ledger.certificates.purge_attestation(2), marked.core.keys.trust()
    ).statement
    assert statement["predicate"]["salts"]["destroyed"] == 0
    assert statement["predicate"]["scanner"]["markers"] == 0


def test_residue_is_tried_again_then_stuck_then_goes_on(marked: MarkedLedger) -> None:
    leave_a_copy(marked)
    marked.ask(marked.ids[0])
    max_tries = marked.core.settings.policy.max_tries
    for number in range(1, max_tries + 1):
        marked.run()
        state = "purging" if number < max_tries else "stuck"
        assert marked.states() == {state}
        marked.clock.now += 4000
    marked.run()
    assert marked.states() == {"stuck"}
    (marked.home / "notes.txt").unlink()
    marked.ledger.requests.retry(marked.ledger.requests.list()[0].id)
    marked.run()
    assert marked.states() == {"purged"}


def test_a_purge_waits_for_a_room_of_the_desk_without_giving_up(marked: MarkedLedger) -> None:
    room = marked.home / ".desk" / "audit-1"
    room.mkdir(parents=True)
    (room / "copy").write_text(str(marked.ids[0]))
    lock = room.with_name("audit-1.lock")
    marked.ask(marked.ids[0])
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for _ in range(marked.core.settings.policy.max_tries + 2):
            marked.run()
            assert marked.states() == {"purging"}
            marked.clock.now += 4000
        shutil.rmtree(room)
    marked.run()
    assert marked.states() == {"purged"}


@pytest.mark.parametrize("how", ["left", "too-long"])
def test_a_room_that_does_not_go_away_is_residue(marked: MarkedLedger, how: str) -> None:
    room = marked.home / ".desk" / "audit-1"
    room.mkdir(parents=True)
    (room / "copy").write_text(str(marked.ids[0]))
    lock = room.with_name("audit-1.lock")
    marked.ask(marked.ids[0])
    with lock.open("w") as held:
        if how == "too-long":
            fcntl.flock(held, fcntl.LOCK_EX)
            os.utime(lock, (1, 1))
        for _ in range(marked.core.settings.policy.max_tries):
            marked.run()
            marked.clock.now += 4000
        assert marked.states() == {"stuck"}


def test_residue_is_not_looked_for_during_the_pause(marked: MarkedLedger) -> None:
    leave_a_copy(marked)
    marked.erase(marked.ids[0])
    (marked.home / "notes.txt").unlink()
    marked.run()
    assert marked.states() == {"purging"}
    marked.clock.now += 4000
    marked.run()
    assert marked.states() == {"purged"}


def test_database_holds_no_name_of_a_file(marked: MarkedLedger) -> None:
    exports = marked.home.parent / "exports"
    exports.mkdir()
    marked.ledger.stores.add("exports", exports)
    (exports / "another-person.csv").write_text(marked.ids[0])
    marked.erase(marked.ids[0])
    with marked.core.database.reading() as conn:
        evidence = list(conn.scalars(select(purge_steps.c.evidence)))
    assert "another-person" not in json.dumps(evidence)
    assert [problem.where.file for problem in purge.list_problems(marked.core)] == [
        "another-person.csv"
    ]


def test_person_of_another_model_may_stay_there(marked: MarkedLedger) -> None:
    model = marked.ledger.models.load(NAME)
    y = [number % 2 for number in range(len(marked.ids))]
    marked.ledger.models.register(model, marked.X, y, ids=marked.ids, name="other")
    marked.erase(marked.ids[0])
    assert marked.states() == {"purged"}
    assert marked.ledger.models.load("other").n_rows_ == len(marked.ids)


def test_purge_waits_while_readers_keep_the_journal_in_use(
    marked: MarkedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy() -> None:
        raise LedgerBusyError("readers still use the write-ahead log")

    with monkeypatch.context() as patch:
        patch.setattr(marked.core.database, "truncate_journal", busy)
        marked.erase(marked.ids[0])
        assert marked.states() == {"purging"}
    marked.run()
    assert marked.states() == {"purged"}


def test_half_written_file_of_a_living_worker_is_left_to_it(
    marked: MarkedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = marked.core.blob_store(marked.model.folder).folder / ".0123456789abcdef.partial"
    other: list[Lease | None] = []

    def hold_lease() -> None:
        other.append(take_lease(marked.core, marked.model.id, owner_name()))
        started.set()
        done.wait()

    def work_elsewhere(name: str) -> None:
        if name == "purge.started":
            file.write_bytes(b"half of a model")
            thread.start()
            started.wait()

    started, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=hold_lease)
    monkeypatch.setattr(faults, "hook", work_elsewhere)
    marked.erase(marked.ids[0])
    done.set()
    thread.join()
    assert other != [None]
    assert file.exists()
    assert marked.states() == {"purged"}


def stuck(marked: MarkedLedger, *people: str) -> list[str]:
    """Leave a copy of the first person until the requests of all are stuck; return these."""
    leave_a_copy(marked)
    marked.ask(*people)
    for _ in range(marked.core.settings.policy.max_tries):
        marked.run()
        marked.clock.now += 4000
    assert marked.states() == {"stuck"}
    (marked.home / "notes.txt").unlink()
    return [request.id for request in marked.ledger.requests.list()]


def test_retry_of_one_request_lets_all_of_its_batch_go_on(marked: MarkedLedger) -> None:
    first, *others = stuck(marked, *marked.ids[:3])
    marked.ledger.requests.retry(first)
    marked.run()
    assert marked.states() == {"purged"}
    for request in others:
        story = [entry.kind for entry in marked.ledger.requests.timeline(request)]
        assert [kind for kind in story if kind in STATES][-3:] == ["stuck", "purging", "purged"]
        assert marked.ledger.requests.get(request).reason is None
        with pytest.raises(RequestStateError, match="only a failed request can be retried"):
            marked.ledger.requests.retry(request)


def test_purge_that_goes_on_for_one_request_finishes_all(marked: MarkedLedger) -> None:
    first, *_ = stuck(marked, *marked.ids[:3])
    with marked.core.database.transaction() as conn:
        move_requests(conn, first, "purging", at=marked.clock())
    marked.run()
    assert marked.states() == {"purged"}


def test_orphans_of_the_model_are_swept_without_a_half_written_file(marked: MarkedLedger) -> None:
    blobs, orphan = marked.core.blob_store(marked.model.folder), "0" * 64
    keys: list[str] = []

    def overtaken(name: str) -> None:
        if name == "purge.started":
            blobs.path_of(orphan).write_bytes(b"sealed")
            keys.append(marked.core.keys.new_key("epoch", label=marked.model.folder))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "hook", overtaken)
        marked.erase(marked.ids[0])
    assert marked.states() == {"purged"}
    assert orphan not in blobs.list_addresses()
    assert not marked.core.keys.has(keys[0])


@pytest.mark.parametrize("content", [None, bytes(40), b"", b"[[1,"])
def test_problems_that_are_being_destroyed_are_none(
    marked: MarkedLedger, content: bytes | None
) -> None:
    file = marked.home / "purges" / ".abc.problems"
    if content is None:
        file.symlink_to("nowhere")
    else:
        file.write_bytes(content)
    assert purge.list_problems(marked.core) == ()
    assert marked.ledger.run_once() == ()


def set_recipients(marked: MarkedLedger, number: int) -> None:
    with marked.core.database.transaction() as conn:
        conn.execute(update(requests).values(recipients=number))


def recipients_told(marked: MarkedLedger) -> int:
    data = marked.ledger.certificates.purge_attestation(1)
    statement = open_envelope(data, marked.core.keys.trust()).statement
    return int(statement["predicate"]["recipientsTold"])


def test_recipients_who_were_told_before_are_counted(marked: MarkedLedger) -> None:
    marked.ask(*marked.ids[:2])
    set_recipients(marked, 3)
    marked.run()
    assert recipients_told(marked) == 6


def test_recipients_who_are_told_between_two_signings_change_nothing(
    marked: MarkedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(name: str) -> None:
        if name == "purge.signed":
            raise SimulatedKillError

    monkeypatch.setattr(faults, "hook", kill)
    marked.ask(marked.ids[0])
    set_recipients(marked, 1)
    with pytest.raises(SimulatedKillError):
        marked.run()
    monkeypatch.setattr(faults, "hook", None)
    first = (marked.home / "purges" / "000001.json").read_bytes()
    set_recipients(marked, 5)
    marked.run()
    assert marked.ledger.certificates.purge_attestation(1) == first
    assert recipients_told(marked) == 1


@pytest.mark.parametrize("what", ["rows", "vault"])
def test_damage_does_not_protect_a_version(marked: MarkedLedger, what: str) -> None:
    blobs = marked.core.blob_store(marked.model.folder)
    with marked.core.database.reading() as conn:
        old = find_head(conn, marked.model.id)

    def damage(name: str) -> None:
        if name == "certify.before-commit":
            blobs.path_of(getattr(old, f"{what}_blob")).write_bytes(b"damaged")

    leave_a_copy(marked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "hook", damage)
        marked.erase(*marked.ids[:2])
    assert marked.states() == {"purging"}
    assert [problem.where.file for problem in purge.list_problems(marked.core)] == ["notes.txt"]
    assert not blobs.list_addresses() & set(old.blobs)
    (marked.home / "notes.txt").unlink()
    marked.clock.now += 4000
    marked.run()
    data = marked.ledger.certificates.purge_attestation(1)
    predicate = open_envelope(data, marked.core.keys.trust()).statement["predicate"]
    assert predicate["scanner"]["markers"] == predicate["salts"]["destroyed"] == 2
    assert "search-for-rows-that-were-damaged" in predicate["notClaimed"]


def test_purge_reads_the_facts_of_living_versions_only(
    marked: MarkedLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for person in marked.ids[:3]:
        marked.erase(person)
    read: list[bytes] = []

    def noted(data: bytes) -> Any:
        read.append(data)
        return parse_strict(data)

    monkeypatch.setattr(purge, "parse_strict", noted)
    marked.erase(marked.ids[3])
    assert marked.states() == {"purged"}
    assert len(read) == 1
