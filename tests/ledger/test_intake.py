"""Taking in requests: nothing lost, nothing twice, nothing said, no client locked out."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.naive_bayes import GaussianNB
from sqlalchemy import event, update

from letheon import NaiveUnlearner
from letheon.data import as_ids
from letheon.exceptions import (
    ClockError,
    IdempotencyError,
    IdsLengthError,
    IdsTypeError,
    UnknownIdError,
    UnknownModelError,
    UnknownRequestError,
)
from letheon.ledger import Ledger
from letheon.ledger import core as faults
from letheon.ledger.requests import intake, people
from letheon.ledger.requests import requests as _requests
from letheon.ledger.requests.intake import GroupCommit, make_intake_group
from letheon.ledger.tables import batches, blocked, events, requests
from tests.ledger.databases import (
    NOON,
    PEOPLE,
    LedgerSetup,
    add_model,
    bodies,
    desk,
    die,
    erase,
    in_processes,
    index_of,
    kind,
    place,
    requests_of,
    sqlite_desk,
    still_desk,
    submit,
)

__all__ = ["desk", "kind", "place", "sqlite_desk", "still_desk"]


NO_BATCH = "f" * 64


def test_a_request_is_stored_and_says_what_it_is(desk: LedgerSetup) -> None:
    request = desk.submit(1, 2)
    assert request == desk.reload(request)
    assert (request.state, request.model, request.n_ids, request.n_rows) == (
        "received",
        "risk",
        2,
        2,
    )
    assert request.received_at == datetime.fromtimestamp(NOON, UTC)
    assert request.due_on == date(2027, 2, 15)


def test_a_verified_one_is_queued_with_every_event(sqlite_desk: LedgerSetup) -> None:
    request = sqlite_desk.submit(1, verified=True)
    kinds = [row.kind for row in sqlite_desk.rows(events)]
    assert (request.state, kinds) == ("queued", ["received", "verified", "queued"])


def test_verify_queues_and_blocks(desk: LedgerSetup) -> None:
    request = desk.submit(1, 2)
    assert desk.rows(blocked) == []
    assert requests_of(desk.core).verify(request.id).state == "queued"
    tags = people.compute_person_tags(desk.core, "default", as_ids(["person-1", "person-2"]))
    assert sorted(row.tag for row in desk.rows(blocked)) == sorted(tags)


def test_a_repeat_returns_the_stored_request(desk: LedgerSetup) -> None:
    first = desk.submit(1, 2, key="k", verified=True)
    desk.clock.now += 1000
    before = desk.snapshot()
    assert desk.submit(2, 1, 1, key="k", verified=True) == first
    assert desk.snapshot() == before


def test_a_repeat_after_the_purge_returns_the_stored_request(sqlite_desk: LedgerSetup) -> None:
    first = sqlite_desk.submit(1, key="k", verified=True)
    erase(sqlite_desk, first.id)
    other = as_ids(["person-2"])
    again = sqlite_desk.submit(1, key="k", verified=True, held=other)
    assert (again.id, again.state) == (first.id, "purged")


@pytest.mark.parametrize(
    "other",
    [
        {"people": (2,)},
        {"people": (1, 2)},
        {"ground": "gdpr.art17.1.c"},
        {"regime": "ccpa", "ground": "ccpa.1798.105"},
        {"verified": True},
        {"other_model": True},
    ],
)
def test_another_content_under_the_same_key_is_refused(
    sqlite_desk: LedgerSetup, other: dict[str, Any]
) -> None:
    sqlite_desk.submit(1, key="k")
    given = dict(other)
    if given.pop("other_model", False):
        given["model"] = sqlite_desk.other
    before = sqlite_desk.snapshot()
    with pytest.raises(IdempotencyError):
        sqlite_desk.submit(*given.pop("people", (1,)), key="k", **given)
    assert sqlite_desk.snapshot() == before


def test_two_tenants_may_use_one_key(sqlite_desk: LedgerSetup) -> None:
    with sqlite_desk.database.transaction() as connection:
        theirs = add_model(connection, "risk", "acme")
    mine = sqlite_desk.submit(1, key="k")
    other = sqlite_desk.submit(1, key="k", model=theirs, tenant="acme")
    assert mine.id != other.id


def test_another_tenants_model_is_as_unknown_as_none(tmp_path: Path) -> None:
    X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]
    model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y)
    with Ledger.create(tmp_path / "home", name="test") as ledger:
        ledger.models.register(model, X, y, name="secret", tenant="acme")
        with pytest.raises(UnknownModelError) as theirs:
            ledger.requests.submit([1], model="secret")
        with pytest.raises(UnknownModelError) as none:
            ledger.requests.submit([1], model="nothing")
        assert "acme" not in str(theirs.value)
        assert str(theirs.value).replace("secret", "nothing") == str(none.value)
        assert ledger.requests.list() == ()


@pytest.mark.parametrize("call", ["found", "verify", "cancel"])
def test_another_tenants_request_is_as_unknown_as_none(sqlite_desk: LedgerSetup, call: str) -> None:
    request = sqlite_desk.submit(1)
    calls: dict[str, Callable[[str], object]] = {
        "found": lambda one: desk_found(sqlite_desk, one),
        "verify": lambda one: requests_of(sqlite_desk.core).verify(one, tenant="acme"),
        "cancel": lambda one: requests_of(sqlite_desk.core).cancel(one, tenant="acme"),
    }
    texts = set()
    for one in (request.id, "0" * 32, "x", "", "\x00", "é" * 32):
        with pytest.raises(UnknownRequestError) as caught:
            calls[call](one)
        texts.add(str(caught.value))
    assert len(texts) == 1
    assert sqlite_desk.state(request) == "received"


def desk_found(desk: LedgerSetup, request_id: str) -> None:
    from letheon.ledger.requests.listing import find_request

    with desk.database.reading() as connection:
        find_request(connection, request_id, tenant="acme")


def test_unknown_people_are_refused_without_naming_them(still_desk: LedgerSetup) -> None:
    before = still_desk.snapshot()
    with pytest.raises(UnknownIdError, match="1 of 2 ids") as caught:
        still_desk.submit(1, "unknown-person")
    assert "unknown-person" not in str(caught.value)
    assert still_desk.snapshot() == before


def test_ids_of_the_other_kind_are_unknown(sqlite_desk: LedgerSetup) -> None:
    with pytest.raises(UnknownIdError):
        submit(sqlite_desk.core, sqlite_desk.model, [1], held=PEOPLE)
    numbers = as_ids([1, 2, 3])
    assert submit(sqlite_desk.core, sqlite_desk.model, [1], held=numbers).n_rows == 1


@pytest.mark.parametrize(
    "ids",
    [
        [],
        "person-1",
        7,
        None,
        [True],
        [1.0],
        [float("nan")],
        [None],
        [b"person-1"],
        [1, "1"],
        ["person-1", None],
        [2**63],
        [-(2**63) - 1],
        ["\ud800"],
        ["x" * 10_001],
        {"person-1": 1},
        np.array([[1]]),
        np.array([1.5]),
        [["person-1"]],
    ],
    ids=lambda value: repr(value)[:20],
)
def test_malformed_ids_are_refused(still_desk: LedgerSetup, ids: Any) -> None:
    before = still_desk.snapshot()
    with pytest.raises((IdsTypeError, IdsLengthError)):
        submit(still_desk.core, still_desk.model, ids, held=PEOPLE)
    assert still_desk.snapshot() == before


def test_a_request_for_too_many_is_refused(still_desk: LedgerSetup) -> None:
    with pytest.raises(IdsLengthError, match="split"):
        submit(still_desk.core, still_desk.model, np.arange(intake.MOST_IDS + 1), held=PEOPLE)


@given(
    values=st.one_of(
        st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, unique=True),
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, unique=True),
    )
)
def test_a_body_comes_back_as_it_was_given(values: list[Any]) -> None:
    core = _Sealer()
    ids = as_ids(values)
    sealed = people.make_body_encrypter(core, "key")("0" * 32, ids)  # type: ignore[arg-type]
    back = people.read_body(core, "key", "0" * 32, sealed)  # type: ignore[arg-type]
    assert back.to_list() == values
    assert back.kind == ids.kind


class _Sealer:
    """A core whose keys do not seal, so that only the form is tested."""

    @property
    def keys(self) -> Any:
        return self

    def load_cipher(self, key: str) -> Any:
        return self

    def encrypt(self, data: bytes, context: bytes) -> bytes:
        return data

    def decrypt(self, key: str, data: bytes, context: bytes) -> bytes:
        return data


@pytest.mark.parametrize(
    ("regime", "ground"),
    [
        ("gdpr", "alice@example.org"),
        ("gdpr", "gdpr.art17.1.g"),
        ("gdpr", "gdpr.art17.1.b "),
        ("gdpr", "ccpa.1798.105"),
        ("ccpa", "gdpr.art17.1.b"),
        ("ccpa", ""),
        ("gdpr", None),
        ("alice", "gdpr.art17.1.b"),
        ("GDPR", "gdpr.art17.1.b"),
        (None, "internal"),
    ],
)
def test_free_text_is_refused_and_not_repeated(
    still_desk: LedgerSetup, regime: Any, ground: Any
) -> None:
    before = still_desk.snapshot()
    with pytest.raises(ValueError, match=r"unknown (?:ground|regime)") as caught:
        still_desk.submit(1, regime=regime, ground=ground)
    assert "alice" not in str(caught.value)
    assert still_desk.snapshot() == before


@pytest.mark.parametrize("key", ["", "k" * 256, 7, b"k", "\ud800"])
def test_a_bad_key_is_refused(still_desk: LedgerSetup, key: Any) -> None:
    with pytest.raises(ValueError, match="idempotency key"):
        still_desk.submit(1, key=key)


@pytest.mark.parametrize("key", ["k" * 255, "é\x00☃", " "])
def test_a_strange_key_is_a_key(desk: LedgerSetup, key: str) -> None:
    assert desk.submit(1, key=key) == desk.submit(1, key=key)


def test_without_a_key_every_request_is_its_own(sqlite_desk: LedgerSetup) -> None:
    assert sqlite_desk.submit(1, key=None).id != sqlite_desk.submit(1, key=None).id


def test_no_id_and_no_key_is_in_the_database(sqlite_desk: LedgerSetup) -> None:
    desk = sqlite_desk
    desk.submit(1, key="a-very-telling-key")
    desk.submit(2, key="another-telling-key", verified=True)
    desk.database.truncate_journal()
    desk.database.dispose()
    data = b"".join(path.read_bytes() for path in desk.database.list_files())
    assert b"risk" in data
    assert b"person-" not in data
    assert b"telling" not in data


def test_a_clock_that_is_behind_records_nothing(desk: LedgerSetup) -> None:
    request = desk.submit(1)
    before = desk.snapshot()
    desk.clock.now = NOON - 301
    with pytest.raises(ClockError, match="301 seconds"):
        desk.submit(2)
    with pytest.raises(ClockError):
        requests_of(desk.core).verify(request.id)
    assert desk.snapshot() == before
    desk.clock.now = NOON - 300
    assert desk.submit(2).state == "received"


@pytest.mark.parametrize("people", [(1,), (1, 2)], ids=["duplicate", "overlap"])
def test_a_cancel_waits_for_a_submission_that_counts_on_it(
    desk: LedgerSetup, people: tuple[int, ...]
) -> None:
    """No person is left without an owner when the owner goes at the same moment."""
    first = desk.submit(1, verified=True)
    other = desk.reopened()
    cancelled = threading.Thread(target=lambda: requests_of(other).cancel(first.id))

    def hook(name: str) -> None:
        if name == "submit.before-commit":
            cancelled.start()
            cancelled.join(0.5 if desk.kind == "postgresql" else 0.2)

    faults.hook = hook
    try:
        second = desk.submit(*people, verified=True)
    finally:
        faults.hook = None
    cancelled.join()
    other.database.dispose()
    assert second.state == ("duplicate" if people == (1,) else "queued")
    assert desk.state(second) == "queued"
    claims = desk.rows(blocked.c.request_id, blocked.c.owner)
    assert claims == [(second.id, True)] * len(people)


def test_verifying_and_resealing_do_not_wait_for_each_other(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reseal has its key and wants the row; a verification has the row."""
    desk = LedgerSetup(tmp_path, "postgresql", postgres_url)
    request = desk.submit(1)
    other, has_row, tries = desk.reopened(), threading.Event(), list[int]()
    clock_started, destroy_unrecorded = _requests._restart_clock, people._destroy_unrecorded
    verifies = threading.Thread(target=lambda: requests_of(other).verify(request.id))

    def has_the_row(*given: Any) -> dict[str, Any]:
        tries.append(1)
        has_row.set()
        return clock_started(*given)

    def has_the_key(*given: Any) -> None:
        verifies.start()
        assert has_row.wait(10)
        destroy_unrecorded(*given)

    monkeypatch.setattr(_requests, "_restart_clock", has_the_row)
    monkeypatch.setattr(people, "_destroy_unrecorded", has_the_key)
    people.rotate_intake_key(desk.core, NO_BATCH)
    verifies.join()
    other.database.dispose()
    assert (desk.state(request), len(tries)) == ("queued", 1)
    assert bodies(desk) == {request.id: ["person-1"]}
    desk.database.dispose()


@pytest.mark.parametrize("how", ["cancel", "hold", "verify"])
def test_no_call_waits_for_a_submission_that_waits_for_it(
    postgres_url: str, tmp_path: Path, how: str
) -> None:
    """Locks are taken in one order: nothing has to be done again after a deadlock."""
    desk = LedgerSetup(tmp_path, "postgresql", postgres_url)
    first, unverified = desk.submit(1, verified=True), desk.submit(1)
    other = desk.reopened()
    errors: list[object] = []
    calls: dict[str, Callable[[], object]] = {
        "cancel": lambda: requests_of(other).cancel(first.id),
        "hold": lambda: requests_of(other).hold(first.id, "litigation-hold", "2027-03-01"),
        "verify": lambda: requests_of(other).verify(unverified.id),
    }
    thread = threading.Thread(target=calls[how])
    event.listen(other.database.engine, "handle_error", errors.append)
    event.listen(desk.database.engine, "handle_error", errors.append)
    claim = people.claim_people

    def late(*given: Any) -> Any:
        thread.start()
        thread.join(0.5)
        return claim(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intake, "claim_people", late)
        second = desk.submit(1, verified=True)
    thread.join()
    other.database.dispose()
    states = {"cancel": "queued", "hold": "duplicate", "verify": "duplicate"}
    assert desk.state(second) == states[how]
    desk.database.dispose()
    assert errors == []


def test_people_are_claimed_in_one_order(
    sqlite_desk: LedgerSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two who name the same people in another order never wait for each other."""
    insert, seen = people._insert, []

    def note(connection: Any, rows: Any) -> Any:
        seen.append([(row["model_id"], row["tag"]) for row in rows])
        return insert(connection, rows)

    monkeypatch.setattr(people, "_insert", note)
    sqlite_desk.submit(*range(8), verified=True)
    assert len(seen[0]) == 8
    assert all(rows == sorted(rows) for rows in seen)


def test_threads_that_repeat_each_other_have_one_effect(desk: LedgerSetup) -> None:
    group = make_intake_group()

    def send(number: int) -> str:
        return desk.submit(number % 10, key=f"k{number % 10}", verified=True, group=group).id

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(send, range(60)))
    assert len(set(ids)) == 10
    assert len(desk.rows(requests)) == 10
    assert len(desk.rows(events)) == 30
    assert {row.state for row in desk.rows(requests)} == {"queued"}


def test_processes_that_race_for_people_have_one_effect(desk: LedgerSetup) -> None:
    """Equal keys, and other keys for the same people, from several processes."""
    desk.submit(999)

    def work(process: int) -> None:
        core = desk.reopened()
        for number in range(12):
            desk.submit(number, key=f"same-{number}", verified=True, core=core)
            desk.submit(number, key=f"{process}-{number}", verified=True, core=core)

    codes = in_processes([lambda process=process: work(process) for process in range(3)])  # type: ignore[misc]
    assert codes == [0, 0, 0]
    states = [row.state for row in desk.rows(requests)]
    assert len(states) == 1 + 12 + 36
    assert (states.count("queued"), states.count("duplicate")) == (12, 36)
    assert sum(row.owner for row in desk.rows(blocked)) == 12


def test_concurrent_submissions_share_a_transaction(sqlite_desk: LedgerSetup) -> None:
    """While one thread writes, seven others queue; the next writes for all of them."""
    group = make_intake_group()
    write, rounds = group._write, list[int]()

    def write_when_others_wait(items: Sequence[Any]) -> Sequence[Any]:
        while not rounds and len(group._waiting) < 7:
            time.sleep(0.001)
        rounds.append(len(items))
        return write(items)

    group._write = write_when_others_wait
    commits: list[Any] = []
    sqlite_desk.submit(999)
    event.listen(sqlite_desk.database.engine, "commit", commits.append)
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda number: sqlite_desk.submit(number, group=group).id, range(8)))
    assert len(set(ids)) == 8
    assert rounds == [1, 7]
    assert len(commits) <= 4  # a row, and an event of the log, per round


def test_one_bad_submission_of_a_group_does_not_touch_the_others(desk: LedgerSetup) -> None:
    prepared = [
        intake.prepare_request(
            desk.core,
            desk.model,
            [name],
            key=key,
            ground="internal",
            verified=True,
            people=index_of(PEOPLE),
        )
        for name, key in [
            ("person-1", "a"),
            ("unknown", "b"),
            ("person-2", "a"),
            ("person-1", "a"),
            ("person-1", "c"),
            ("person-3", "b"),
        ]
    ]
    results = intake.record_all(prepared)
    kinds = [getattr(result, "state", type(result).__name__) for result in results]
    assert kinds == [
        "queued",
        "UnknownIdError",
        "IdempotencyError",
        "queued",
        "duplicate",
        "queued",
    ]
    assert len(desk.rows(requests)) == 3


def test_an_error_of_the_whole_group_is_found_out_one_by_one() -> None:
    def write(items: Any) -> list[int]:
        if 3 in items:
            raise ValueError("three")
        return [item * 2 for item in items]

    group = GroupCommit[int, int](write)
    barrier = threading.Barrier(5)

    def send(item: int) -> int | str:
        barrier.wait()
        try:
            return group.submit(item)
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(send, range(5))) == [0, 2, 4, "three", 8]


@settings(max_examples=20)
@given(largest=st.integers(1, 5), threads=st.integers(1, 6))
def test_a_group_answers_each_thread_once(largest: int, threads: int) -> None:
    written: list[int] = []
    running = []

    def write(items: Any) -> list[int]:
        running.append(1)
        assert len(running) == 1
        assert len(items) <= largest
        written.extend(items)
        running.pop()
        return list(items)

    group = GroupCommit[int, int](write, largest=largest)
    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(group.submit, range(40))) == list(range(40))
    assert sorted(written) == list(range(40))


@pytest.mark.parametrize("point", ["submit.before-commit", "submit.after-commit"])
def test_a_kill_leaves_all_or_nothing(desk: LedgerSetup, point: str) -> None:
    desk.submit(999)

    def work() -> None:
        core = desk.reopened()
        faults.hook = lambda name: die() if name == point else None
        desk.submit(1, key="k", verified=True, core=core)

    assert in_processes([work]) == [-9]
    expected = 1 if point == "submit.after-commit" else 0
    assert len(desk.rows(blocked)) == expected
    assert len(desk.rows(requests)) == 1 + expected
    assert desk.submit(1, key="k", verified=True).state == "queued"
    assert len(desk.rows(requests)) == 2


def test_an_empty_batch_has_no_ids(still_desk: LedgerSetup) -> None:
    with still_desk.database.reading() as connection:
        assert people.decrypt_ids(still_desk.core, connection, NO_BATCH) is None


def test_a_request_during_a_retrain_is_taken_in(sqlite_desk: LedgerSetup) -> None:
    first = sqlite_desk.submit(1, verified=True)
    erase(sqlite_desk, first.id, upto="applying")
    with sqlite_desk.database.transaction() as connection:
        connection.execute(update(batches).values(kind="retrain", state="open"))
    assert sqlite_desk.submit(2, verified=True).state == "queued"


def test_a_full_disk_is_no_acknowledgement(
    sqlite_desk: LedgerSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_desk.submit(999)
    before = sqlite_desk.snapshot()

    def fail(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(intake, "_claim_people", fail)
    with pytest.raises(OSError, match="no space"):
        sqlite_desk.submit(1, key="k", verified=True)
    assert sqlite_desk.snapshot() == before
    monkeypatch.undo()
    assert sqlite_desk.submit(1, key="k", verified=True).state == "queued"
