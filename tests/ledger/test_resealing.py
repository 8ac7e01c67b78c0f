"""Sealing bodies again: nothing is left under a key that a purge destroys."""

import threading

import pytest
from sqlalchemy import select

from letheon.exceptions import (
    KeyFileError,
)
from letheon.ledger.requests import intake, people
from letheon.ledger.tables import intake_keys, meta
from tests.ledger.databases import (
    LedgerSetup,
    bodies,
    desk,
    erase,
    kind,
    place,
    requests_of,
    sqlite_desk,
    still_desk,
)

__all__ = ["desk", "kind", "place", "sqlite_desk", "still_desk"]


NO_BATCH = "f" * 64


def test_resealing_removes_the_batch_and_keeps_the_rest(desk: LedgerSetup) -> None:
    first, second = desk.submit(1, verified=True), desk.submit(2, 3)
    waiting = desk.submit(1, verified=True)
    old = desk.rows(intake_keys)[0].id
    batch = erase(desk, first.id, upto="purging")
    assert set(bodies(desk)) == {first.id, second.id, waiting.id}
    people.rotate_intake_key(desk.core, batch)
    assert bodies(desk) == {second.id: ["person-2", "person-3"]}
    assert not desk.core.keys.has(old)
    assert sorted(row.destroyed_at is None for row in desk.rows(intake_keys)) == [False, True]
    assert requests_of(desk.core).verify(second.id).state == "queued"


def test_a_duplicate_keeps_its_body_while_people_are_waiting(desk: LedgerSetup) -> None:
    first, second = desk.submit(1, verified=True), desk.submit(2, verified=True)
    both = desk.submit(1, 2, verified=True)
    people.rotate_intake_key(desk.core, erase(desk, first.id))
    assert bodies(desk) == {second.id: ["person-2"], both.id: ["person-1", "person-2"]}
    people.rotate_intake_key(desk.core, erase(desk, second.id))
    assert bodies(desk) == {}


def test_resealing_may_be_repeated(sqlite_desk: LedgerSetup) -> None:
    request = sqlite_desk.submit(1)
    for _ in range(3):
        people.rotate_intake_key(sqlite_desk.core, NO_BATCH)
    assert bodies(sqlite_desk) == {request.id: ["person-1"]}
    assert len(sqlite_desk.core.keys.list_ids("intake")) == 1


def test_a_key_that_cannot_be_read_now_is_not_said_to_be_destroyed(
    sqlite_desk: LedgerSetup,
) -> None:
    request = sqlite_desk.submit(1)
    [old] = sqlite_desk.rows(intake_keys)
    file = sqlite_desk.core.keys._files.path_of(old.id)
    aside = file.rename(file.with_suffix(".aside"))
    people.rotate_intake_key(sqlite_desk.core, NO_BATCH)
    assert [row.destroyed_at for row in sqlite_desk.rows(intake_keys)] == [None, None]
    aside.rename(file)
    people.rotate_intake_key(sqlite_desk.core, NO_BATCH)
    assert bodies(sqlite_desk) == {request.id: ["person-1"]}
    assert not sqlite_desk.core.keys.has(old.id)


def test_keys_of_processes_that_died_are_destroyed(sqlite_desk: LedgerSetup) -> None:
    sqlite_desk.submit(1)
    orphan = sqlite_desk.core.keys.new_key("intake")
    people.rotate_intake_key(sqlite_desk.core, NO_BATCH)
    assert not sqlite_desk.core.keys.has(orphan)


def test_submissions_during_resealing_are_never_under_a_destroyed_key(desk: LedgerSetup) -> None:
    desk.submit(999)
    other = desk.reopened()
    stop = threading.Event()

    def rotate() -> None:
        while not stop.is_set():
            people.rotate_intake_key(other, NO_BATCH)

    thread = threading.Thread(target=rotate)
    thread.start()
    try:
        sent = {desk.submit(number).id: [f"person-{number}"] for number in range(30)}
    finally:
        stop.set()
        thread.join()
    rotated = len(desk.rows(intake_keys))
    other.database.dispose()
    assert rotated >= 2
    assert {one: people for one, people in bodies(desk).items() if one in sent} == sent


def test_the_net_above_catches_a_submitter_that_trusts_its_memory(
    sqlite_desk: LedgerSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_desk.submit(999)
    remembered = people.get_cached_key(sqlite_desk.core)
    monkeypatch.setattr(intake, "lock_current_key", lambda *_: remembered)
    other = sqlite_desk.reopened()
    people.rotate_intake_key(other, NO_BATCH)
    other.database.dispose()
    with pytest.raises(KeyFileError):
        sqlite_desk.submit(1)


def test_reading_a_batch_goes_on_when_the_key_is_exchanged(desk: LedgerSetup) -> None:
    one, two = desk.submit(1, 2, verified=True), desk.submit(2, 3, verified=True)
    batch = erase(desk, one.id, two.id, upto="applying")
    with desk.database.reading() as connection:
        connection.execute(select(meta)).all()  # a snapshot from before
        other = desk.reopened()
        if desk.kind == "sqlite-delete":
            ids = people.decrypt_ids(desk.core, connection, batch)
        else:
            people.rotate_intake_key(other, NO_BATCH)
            ids = people.decrypt_ids(desk.core, connection, batch)
    other.database.dispose()
    assert ids is not None
    assert sorted(ids.to_list()) == ["person-1", "person-2", "person-3"]
