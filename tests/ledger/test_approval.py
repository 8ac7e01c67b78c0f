"""Approval: a large request waits for a second pair of eyes, whatever way it comes."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from letheon.audit._levels import _RequestHistory
from letheon.exceptions import RequestStateError, UnknownRequestError
from letheon.ledger import Ledger, Policy, Settings
from letheon.ledger.db.events import acting
from letheon.ledger.requests import people
from letheon.ledger.tables import blocked
from tests.cli.ledgers import call
from tests.ledger.databases import (
    LedgerSetup,
    SettableClock,
    desk,
    kind,
    place,
    requests_of,
    sqlite_desk,
)
from tests.ledger.homes import make, person
from tests.sharded.people import examples

__all__ = ["desk", "kind", "place", "sqlite_desk"]

MOST = 2


def careful(desk: LedgerSetup, most: int | None = MOST) -> LedgerSetup:
    """The same ledger with another policy; every person has one row."""
    policy = Policy(approve_above=most)
    desk.core = replace(desk.core, settings=replace(desk.core.settings, policy=policy))
    return desk


def kinds(desk: LedgerSetup, request_id: str) -> list[str]:
    return [entry.kind for entry in requests_of(desk.core).timeline(request_id)]


@pytest.mark.parametrize("is_verified", [True, False], ids=["vouched for", "verified later"])
def test_a_large_request_waits_and_is_queued_when_approved(
    desk: LedgerSetup, is_verified: bool
) -> None:
    careful(desk)
    request = desk.submit(1, 2, 3, verified=is_verified)
    if not is_verified:
        assert request.state == "received"
        request = requests_of(desk.core).verify(request.id)
    assert request.state == desk.state(request) == "verified"
    assert len(desk.rows(blocked)) == 3
    assert requests_of(desk.core).approve(request.id).state == "queued"
    told = kinds(desk, request.id)
    assert told == ["received", "verified", "approved", "queued"]


@pytest.mark.parametrize(("most", "state"), [(None, "queued"), (3, "queued"), (0, "verified")])
def test_only_what_is_larger_waits(sqlite_desk: LedgerSetup, most: int | None, state: str) -> None:
    assert careful(sqlite_desk, most).submit(1, 2, 3, verified=True).state == state


def test_a_worker_leaves_it_where_it_is(sqlite_desk: LedgerSetup) -> None:
    desk = careful(sqlite_desk)
    waiting = desk.submit(1, 2, 3, verified=True)
    assert people.mark_queued_duplicates(desk.core, desk.model.id) == []
    assert desk.state(waiting) == "verified"


@pytest.mark.parametrize(
    ("how", "state"),
    [
        (lambda core, one: requests_of(core).cancel(one), "cancelled"),
        (lambda core, one: requests_of(core).reject(one, "internal"), "rejected"),
    ],
)
def test_it_can_be_withdrawn_and_its_people_pass_on(
    desk: LedgerSetup, how: Callable[[Any, str], Any], state: str
) -> None:
    careful(desk)
    large = desk.submit(1, 2, 3, verified=True)
    desk.clock.now += 1
    small = desk.submit(2, verified=True)
    desk.clock.now += 1
    other = desk.submit(1, 2, 3, verified=True)
    assert [desk.state(small), desk.state(other)] == ["queued", "duplicate"]
    how(desk.core, large.id)
    assert desk.state(large) == state
    assert desk.state(small) == "queued"
    # The request that inherits the other people is as large, and is not approved yet.
    assert desk.state(other) == "verified"
    assert requests_of(desk.core).approve(other.id).state == "queued"


def test_no_person_waits_behind_an_unapproved_request(desk: LedgerSetup) -> None:
    """A person's own request has a clock of its own."""
    careful(desk)
    large = desk.submit(1, 2, 3, verified=True)
    unverified = desk.submit(3)
    first, second = desk.submit(1, verified=True), desk.submit(1, verified=True)
    assert [desk.state(one) for one in (large, first, second)] == [
        "verified",
        "queued",
        "duplicate",
    ]
    assert desk.reload(second).duplicate_of == first.id
    assert requests_of(desk.core).verify(unverified.id).state == "queued"
    # The next one comes before the large one too, which is the oldest.
    requests_of(desk.core).cancel(first.id)
    assert [desk.state(one) for one in (large, second)] == ["verified", "queued"]
    assert requests_of(desk.core).approve(large.id).state == "queued"
    assert desk.submit(2, verified=True).state == "duplicate"


@pytest.mark.parametrize("is_vouched_for", [True, False])
def test_what_has_to_be_approved_stays_so_as_an_heir(
    desk: LedgerSetup, is_vouched_for: bool
) -> None:
    careful(desk)
    first = desk.submit(1, verified=True)
    marked = desk.submit(1, verified=is_vouched_for, needs_approval=True)
    if not is_vouched_for:
        requests_of(desk.core).verify(marked.id)
    desk.clock.now += 1
    late = desk.submit(1)
    requests_of(desk.core).verify(late.id, needs_approval=True)
    assert [desk.state(one) for one in (marked, late)] == ["duplicate", "duplicate"]
    for withdrawn, heir in ((first, marked), (marked, late)):
        requests_of(desk.core).cancel(withdrawn.id)
        assert desk.state(heir) == "verified"


@pytest.mark.parametrize("state", ["received", "queued", "on_hold", "cancelled", "duplicate"])
def test_what_does_not_wait_for_it_is_not_approved(sqlite_desk: LedgerSetup, state: str) -> None:
    desk = careful(sqlite_desk)
    first = desk.submit(1, verified=True)
    one = {"received": lambda: desk.submit(2), "duplicate": lambda: desk.submit(1, verified=True)}
    request = one.get(state, lambda: first)()
    if state == "on_hold":
        requests_of(desk.core).hold(first.id, "litigation-hold", date(2099, 1, 1))
    if state == "cancelled":
        requests_of(desk.core).cancel(first.id)
    before = desk.snapshot()
    with pytest.raises(RequestStateError, match="only a verified request can be approved"):
        requests_of(desk.core).approve(request.id)
    assert desk.snapshot() == before


def test_it_cannot_be_held_past_the_approval(sqlite_desk: LedgerSetup) -> None:
    desk = careful(sqlite_desk)
    request = desk.submit(1, 2, 3, verified=True)
    with pytest.raises(RequestStateError):
        requests_of(desk.core).hold(request.id, "litigation-hold", date(2099, 1, 1))


HANDS = ("anna", "bert", "carl")
hands = st.sampled_from((None, *HANDS))


@given(filer=hands, verifier=hands, approver=hands, vouches=st.booleans())
@examples(40)
def test_the_filer_and_the_verifier_cannot_approve(
    shared: LedgerSetup, filer: Any, verifier: Any, approver: Any, vouches: bool
) -> None:
    desk = shared
    request = act_as(filer, lambda: desk.submit(1, 2, 3, verified=vouches))
    if vouches:
        verifier = filer
    else:
        request = act_as(verifier, lambda: requests_of(desk.core).verify(request.id))
    assert (request.filed_by, request.verified_by) == (filer, verifier)
    if approver is not None and approver in (filer, verifier):
        with pytest.raises(RequestStateError, match="another person"):
            act_as(approver, lambda: requests_of(desk.core).approve(request.id))
        assert desk.state(request) == "verified"
    else:
        act_as(approver, lambda: requests_of(desk.core).approve(request.id))
        assert desk.state(request) == "queued"
    requests_of(desk.core).cancel(request.id)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("shared")
    made = careful(LedgerSetup(folder, "sqlite", folder))
    yield made
    made.database.dispose()


def act_as(by: str | None, work: Callable[[], Any]) -> Any:
    if by is None:
        return work()
    with acting(by):
        return work()


def test_who_filed_and_who_verified_cannot_be_changed_by_sql(desk: LedgerSetup) -> None:
    careful(desk)
    with acting("anna"):
        desk.submit(1, 2, 3, verified=True)
    for column in ("filed_by", "verified_by"):
        for value in ("'bert'", "NULL"):
            with pytest.raises(DBAPIError, match="is fixed"), desk.database.transaction() as conn:
                conn.execute(text(f"UPDATE requests SET {column} = {value}"))


def test_verifying_is_for_what_was_received_only(sqlite_desk: LedgerSetup) -> None:
    """A duplicate becomes verified only by inheriting people, never by `verify`."""
    desk = careful(sqlite_desk)
    large = desk.submit(1, 2, 3, verified=True)
    again = desk.submit(1, 2, 3, verified=True)
    before = desk.snapshot()
    for request in (large, again):
        with pytest.raises(RequestStateError, match="is already verified"):
            requests_of(desk.core).verify(request.id)
    assert desk.snapshot() == before


def test_another_tenant_does_not_find_it(sqlite_desk: LedgerSetup) -> None:
    desk = careful(sqlite_desk)
    request = desk.submit(1, 2, 3, verified=True)
    with pytest.raises(UnknownRequestError):
        requests_of(desk.core).approve(request.id, tenant="rival")


def test_the_whole_way_with_a_worker_in_between(tmp_path: Path) -> None:
    policy = Policy(pin_seconds=1, approve_above=2)
    with make(tmp_path, policy=policy) as ledger:
        large = ledger.requests.submit([person(1), person(2)], model="risk", verified=True)
        small = ledger.requests.submit([person(3)], model="risk", verified=True)
        ledger.run_once(force=True)
        assert ledger.requests.get(small.id).state == "purged"
        assert ledger.requests.get(large.id).state == "verified"
        assert [plan.n_requests for plan in ledger.plan()] == [0]
        ledger.requests.approve(large.id)
        ledger.run_once(force=True)
        assert ledger.requests.get(large.id).state == "purged"


def test_people_who_left_meanwhile_make_it_a_duplicate(tmp_path: Path) -> None:
    policy = Policy(pin_seconds=1, approve_above=2)
    with make(tmp_path, policy=policy) as ledger:
        small = [ledger.requests.submit([person(n)], model="risk", verified=True) for n in (1, 2)]
        large = ledger.requests.submit(
            [person(1), person(2), person(3)], model="risk", verified=True
        )
        ledger.requests.cancel(small[0].id)
        ledger.requests.submit([person(1), person(4)], model="risk", verified=True)
        assert ledger.requests.get(large.id).state == "verified"
        ledger.run_once(force=True)
        ledger.requests.approve(large.id)
        ledger.run_once(force=True)
        assert ledger.requests.get(large.id).state in ("purged", "duplicate")
        assert ledger.models.load("risk").n_rows_ <= 60 - 2 * 3


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "3"])
def test_a_policy_that_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="approve_above"):
        Policy(approve_above=wrong)


@pytest.mark.parametrize("most", [None, 0, 40])
def test_the_policy_is_kept_in_the_settings(tmp_path: Path, most: int | None) -> None:
    Settings(name="test", policy=Policy(approve_above=most)).write(tmp_path)
    assert Settings.read(tmp_path).policy.approve_above == most


def test_an_audit_sees_a_request_that_was_not_approved_in_time() -> None:
    day = datetime(2027, 3, 1, tzinfo=UTC)
    course = _RequestHistory()
    at = int(day.timestamp())
    for what, more in (("received", {"due": "2027-03-31"}), ("verified", {"by": "a1"})):
        course.apply_event({"kind": what, "at": at, "request": "r", **more})
    assert not course.is_late(date(2027, 3, 31))
    assert course.is_late(date(2027, 4, 2))


def test_a_pause_counts_once_though_a_request_is_verified_twice() -> None:
    day = datetime(2027, 3, 1, tzinfo=UTC)
    course = _RequestHistory()
    story = [("received", 0), ("identity-asked", 1), ("verified", 3), ("duplicate", 3)]
    for what, days in [*story, ("verified", 20)]:
        at = int((day + timedelta(days=days)).timestamp())
        course.apply_event({"kind": what, "at": at, "request": "r"})
    assert course.paused == 2 * 86_400


def test_the_command_approves(tmp_path: Path) -> None:
    now = SettableClock(int(time.time()))
    with make(tmp_path, policy=Policy(approve_above=2), clock=now) as ledger:
        folder = str(ledger.folder)
        large = ledger.requests.submit([person(1), person(2)], model="risk", verified=True)
    result = call("request", "approve", large.id, "--ledger", folder)
    assert result.exit_code == 0
    assert ": Queued" in result.output
    with Ledger.open(folder) as again:
        assert again.requests.get(large.id).state == "queued"
