"""Who erases whom: duplicates, and who comes next when a request is withdrawn."""

import pytest

from letheon.data import as_ids
from letheon.exceptions import (
    RequestStateError,
)
from letheon.ledger.requests import people
from letheon.ledger.tables import blocked, events
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


def test_people_asked_for_before_make_a_duplicate_with_its_own_clock(
    sqlite_desk: LedgerSetup,
) -> None:
    first = sqlite_desk.submit(1, 2, verified=True)
    sqlite_desk.clock.now += 20 * 86_400
    second = sqlite_desk.submit(2, verified=True)
    assert (second.state, second.duplicate_of) == ("duplicate", first.id)
    assert second.due_on > first.due_on
    assert second == sqlite_desk.reload(second)


def test_one_new_person_makes_it_no_duplicate(sqlite_desk: LedgerSetup) -> None:
    sqlite_desk.submit(1, verified=True)
    assert sqlite_desk.submit(1, 2, verified=True).state == "queued"


def test_an_unverified_request_blocks_no_other(sqlite_desk: LedgerSetup) -> None:
    sqlite_desk.submit(1)
    assert sqlite_desk.submit(1, verified=True).state == "queued"


def test_verifying_the_second_makes_it_the_duplicate(sqlite_desk: LedgerSetup) -> None:
    first, second = sqlite_desk.submit(1), sqlite_desk.submit(1)
    requests_of(sqlite_desk.core).verify(second.id)
    verified = requests_of(sqlite_desk.core).verify(first.id)
    assert (verified.state, verified.duplicate_of) == ("duplicate", second.id)


def test_the_same_person_in_another_model_is_no_duplicate(sqlite_desk: LedgerSetup) -> None:
    sqlite_desk.submit(1, verified=True)
    assert sqlite_desk.submit(1, verified=True, model=sqlite_desk.other).state == "queued"


def test_asking_again_after_the_erasure_is_a_duplicate_without_a_body(desk: LedgerSetup) -> None:
    first = desk.submit(1, verified=True)
    erase(desk, first.id)
    again = desk.submit(1, verified=True, held=as_ids(["person-2"]))
    assert (again.state, again.duplicate_of) == ("duplicate", first.id)
    assert again.id not in bodies(desk)
    assert requests_of(desk.core).answer(again.id, recipients=2).state == "closed"


def test_a_duplicate_cannot_be_closed_before_its_people_are_erased(
    sqlite_desk: LedgerSetup,
) -> None:
    first, second = sqlite_desk.submit(1, verified=True), sqlite_desk.submit(1, verified=True)
    with pytest.raises(RequestStateError, match="has not been purged yet"):
        requests_of(sqlite_desk.core).answer(second.id)
    erase(sqlite_desk, first.id)
    assert requests_of(sqlite_desk.core).answer(second.id).state == "closed"


@pytest.mark.parametrize("how", ["cancel", "reject"])
def test_who_waited_behind_a_withdrawn_request_comes_first(desk: LedgerSetup, how: str) -> None:
    first = desk.submit(1, 2, verified=True)
    desk.clock.now += 1
    second = desk.submit(1, verified=True)
    desk.clock.now += 1
    third = desk.submit(1, 2, verified=True)
    if how == "cancel":
        requests_of(desk.core).cancel(first.id)
    else:
        requests_of(desk.core).reject(first.id, "gdpr.art17.3.e")
    assert [desk.state(one) for one in (second, third)] == ["queued", "queued"]
    owners = {row.request_id for row in desk.rows(blocked) if row.owner}
    assert owners == {second.id, third.id}


def test_the_others_wait_behind_the_heir_of_a_withdrawn_request(desk: LedgerSetup) -> None:
    """Otherwise they would wait forever for a request that erases no one."""
    first = desk.submit(1, 2, verified=True)
    desk.clock.now += 1
    second = desk.submit(1, verified=True)
    desk.clock.now += 1
    third, other = desk.submit(1, verified=True), desk.submit(2, verified=True)
    desk.clock.now += 1
    fourth = desk.submit(1, verified=True)
    requests_of(desk.core).cancel(first.id)
    items = [desk.reload(one) for one in (second, third, other, fourth)]
    assert [one.state for one in items] == ["queued", "duplicate", "queued", "duplicate"]
    assert [one.duplicate_of for one in items] == [None, second.id, None, second.id]
    assert [row.about for row in desk.rows(events) if row.kind == "waits-for"] == [
        *sorted([third.id, fourth.id])
    ]


def test_people_who_are_erased_pass_on_to_who_erased_them(sqlite_desk: LedgerSetup) -> None:
    """Else a duplicate without a body would be queued, and wait for ever."""
    desk = sqlite_desk
    owner = desk.submit(1, verified=True)
    desk.clock.now += 1
    waits = desk.submit(1, verified=True)
    desk.clock.now += 1
    quicker = desk.submit(1, 2, verified=True)
    people.rotate_intake_key(desk.core, erase(desk, quicker.id, upto="purging"))
    assert waits.id not in bodies(desk)
    requests_of(desk.core).cancel(owner.id)
    assert desk.state(waits) == "duplicate"
    assert {row.request_id for row in desk.rows(blocked) if row.owner} == {quicker.id}


def test_a_request_whose_people_left_with_others_is_taken_off_the_queue(desk: LedgerSetup) -> None:
    first, both = desk.submit(1, verified=True), desk.submit(1, 2, verified=True)
    more, unverified = desk.submit(2, 3, verified=True), desk.submit(1)
    assert people.mark_queued_duplicates(desk.core, desk.model.id) == []
    erase(desk, both.id, upto="applied")
    assert people.mark_queued_duplicates(desk.core, desk.other.id) == []
    assert people.mark_queued_duplicates(desk.core, desk.model.id) == [first.id]
    waits = desk.reload(first)
    assert (waits.state, waits.duplicate_of) == ("duplicate", both.id)
    assert [desk.state(one) for one in (more, unverified)] == ["queued", "received"]


def test_who_waits_behind_one_that_was_overtaken_waits_behind_who_erased_them(
    desk: LedgerSetup,
) -> None:
    slow = desk.submit(1, verified=True)
    waits = desk.submit(1, verified=True)
    both = desk.submit(1, 2, verified=True)
    erase(desk, both.id, upto="applied")
    assert people.mark_queued_duplicates(desk.core, desk.model.id) == [slow.id]
    assert [desk.reload(one).duplicate_of for one in (slow, waits)] == [both.id, both.id]


def test_a_withdrawn_request_has_no_body_and_blocks_no_other(sqlite_desk: LedgerSetup) -> None:
    request = sqlite_desk.submit(1, verified=True)
    requests_of(sqlite_desk.core).cancel(request.id)
    assert bodies(sqlite_desk) == {}
    assert sqlite_desk.rows(blocked) == []
