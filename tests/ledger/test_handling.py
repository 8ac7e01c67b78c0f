"""Looking after requests: pauses, extensions, holds, withdrawals, retries, answers."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from letheon.exceptions import (
    RequestStateError,
)
from letheon.ledger import Ledger
from letheon.ledger.requests.people import move_requests
from letheon.ledger.tables import batches, events, requests
from tests.ledger.databases import (
    NOON,
    LedgerSetup,
    desk,
    erase,
    kind,
    place,
    requests_of,
    sqlite_desk,
    still_desk,
)

__all__ = ["desk", "kind", "place", "sqlite_desk", "still_desk"]


def test_a_pause_puts_the_day_off_and_ends_with_verification(sqlite_desk: LedgerSetup) -> None:
    request = sqlite_desk.submit(1)
    requests_of(sqlite_desk.core).await_identity(request.id)
    sqlite_desk.clock.now += 5 * 86_400
    requests_of(sqlite_desk.core).await_identity(request.id)
    sqlite_desk.clock.now += 5 * 86_400
    verified = requests_of(sqlite_desk.core).verify(request.id)
    assert verified.due_on - request.due_on >= timedelta(days=9)
    row = sqlite_desk.rows(requests)[0]
    assert (row.paused_at, row.paused_seconds) == (None, 10 * 86_400)


def test_nothing_stops_the_clock_of_ccpa(sqlite_desk: LedgerSetup) -> None:
    request = sqlite_desk.submit(1, regime="ccpa", ground="ccpa.1798.105")
    with pytest.raises(RequestStateError, match="ccpa"):
        requests_of(sqlite_desk.core).await_identity(request.id)


def test_an_extension_is_given_once_and_in_time(sqlite_desk: LedgerSetup) -> None:
    request = sqlite_desk.submit(1, verified=True)
    extended = requests_of(sqlite_desk.core).extend(request.id)
    assert extended.due_on == date(2027, 4, 15)
    with pytest.raises(RequestStateError, match="once"):
        requests_of(sqlite_desk.core).extend(request.id)
    late = sqlite_desk.submit(2)
    sqlite_desk.clock.now += 60 * 86_400
    with pytest.raises(RequestStateError):
        requests_of(sqlite_desk.core).extend(late.id)


def test_a_hold_has_a_ground_and_an_end(sqlite_desk: LedgerSetup) -> None:
    request = sqlite_desk.submit(1, verified=True)
    day = date(2027, 3, 1)
    with pytest.raises(ValueError, match="unknown ground"):
        requests_of(sqlite_desk.core).hold(request.id, "because", day)
    with pytest.raises(ValueError, match="is not in the future"):
        requests_of(sqlite_desk.core).hold(request.id, "litigation-hold", date(2020, 1, 1))
    with pytest.raises(ValueError, match="time zone"):
        requests_of(sqlite_desk.core).hold(request.id, "litigation-hold", datetime(2027, 3, 1))
    held = requests_of(sqlite_desk.core).hold(request.id, "litigation-hold", day)
    assert (held.state, held.reason) == ("on_hold", "litigation-hold")
    assert requests_of(sqlite_desk.core).release(request.id).state == "queued"


@pytest.mark.parametrize(
    ("until", "seconds"),
    [
        ("2027-03-01", 1_803_855_600),  # midnight in Brussels is 23 h UTC
        (date(2027, 3, 1), 1_803_855_600),
        (datetime(2027, 3, 1, tzinfo=UTC), 1_803_859_200),
    ],
)
def test_a_hold_ends_with_a_day_of_the_seat_or_a_moment(
    sqlite_desk: LedgerSetup, until: Any, seconds: int
) -> None:
    request = sqlite_desk.submit(1, verified=True)
    requests_of(sqlite_desk.core).hold(request.id, "litigation-hold", until)
    assert sqlite_desk.rows(requests.c.hold_until) == [(seconds,)]


@pytest.mark.parametrize("until", ["tomorrow", "2027-02-30", "2027-3", "20270301", ""])
def test_a_text_that_is_no_day_ends_no_hold(still_desk: LedgerSetup, until: str) -> None:
    with pytest.raises(ValueError, match="is not a date"):
        requests_of(still_desk.core).hold("0" * 32, "litigation-hold", until)


@pytest.mark.parametrize("until", [None, 5, timedelta(days=1)])
def test_what_is_no_day_at_all_ends_no_hold(still_desk: LedgerSetup, until: Any) -> None:
    with pytest.raises(TypeError, match="must be a date"):
        requests_of(still_desk.core).hold("0" * 32, "litigation-hold", until)


@pytest.mark.parametrize("how", ["model", "tenant"])
def test_a_model_is_named_by_a_text(still_desk: LedgerSetup, how: str) -> None:
    given: dict[str, Any] = {"model": "risk", "tenant": "default", how: still_desk.model}
    with pytest.raises(TypeError, match=f"{how} must be a name of type str, not ModelRow"):
        Ledger(still_desk.core).requests.submit(["person-1"], **given)


@pytest.mark.parametrize("upto", ["applying", "applied", "purged"])
def test_a_hold_that_comes_too_late_is_refused(desk: LedgerSetup, upto: str) -> None:
    """A person of the request is erased by another request, so the hold could not be kept."""
    first, both = desk.submit(1, verified=True), desk.submit(1, 2, verified=True)
    apart = desk.submit(3, verified=True)
    erase(desk, both.id, upto=upto)
    with pytest.raises(RequestStateError, match=f"request {both.id} contains some"):
        requests_of(desk.core).hold(first.id, "litigation-hold", "2027-03-01")
    assert desk.state(first) == "queued"
    held = requests_of(desk.core).hold(apart.id, "litigation-hold", "2027-03-01")
    assert held.state == "on_hold"


def fail(desk: LedgerSetup, request: str, state: str) -> None:
    """Do to a queued request what a worker does whose computation fails."""
    erase(desk, request, upto="applying")
    with desk.database.transaction() as connection:
        connection.execute(update(batches).values(state="abandoned"))
        move_requests(connection, request, state, at=desk.clock(), batch_id=None, tries=1)


@pytest.mark.parametrize("state", ["retry_wait", "stuck"])
@pytest.mark.parametrize("how", ["cancel", "reject"])
def test_a_request_that_failed_can_be_withdrawn(
    sqlite_desk: LedgerSetup, state: str, how: str
) -> None:
    request = sqlite_desk.submit(1, verified=True)
    sqlite_desk.clock.now += 1
    waits = sqlite_desk.submit(1, verified=True)
    fail(sqlite_desk, request.id, state)
    if how == "cancel":
        done = requests_of(sqlite_desk.core).cancel(request.id)
    else:
        done = requests_of(sqlite_desk.core).reject(request.id, "gdpr.art17.3.e")
    assert done.state == {"cancel": "cancelled", "reject": "rejected"}[how]
    assert sqlite_desk.state(waits) == "queued"


def test_a_request_that_waits_for_its_next_try_can_be_held(sqlite_desk: LedgerSetup) -> None:
    request = sqlite_desk.submit(1, verified=True)
    fail(sqlite_desk, request.id, "retry_wait")
    held = requests_of(sqlite_desk.core).hold(request.id, "litigation-hold", "2027-03-01")
    assert held.state == "on_hold"
    assert requests_of(sqlite_desk.core).release(request.id).state == "queued"


def stuck_purge(desk: LedgerSetup) -> tuple[str, str, str]:
    """Two requests whose purge found something, and their batch."""
    one, two = desk.submit(1, verified=True).id, desk.submit(2, verified=True).id
    batch = erase(desk, one, two, upto="purging")
    with desk.database.transaction() as connection:
        move_requests(connection, [one, two], "stuck", at=NOON, reason="residue-found", tries=8)
    return one, two, batch


def test_a_stuck_purge_is_not_cancelled(sqlite_desk: LedgerSetup) -> None:
    one, _, _ = stuck_purge(sqlite_desk)
    with pytest.raises(RequestStateError, match="is already applied"):
        requests_of(sqlite_desk.core).cancel(one)


def test_what_is_stuck_in_one_purge_is_retried_together(desk: LedgerSetup) -> None:
    one, two, _ = stuck_purge(desk)
    requests_of(desk.core).retry(one)
    assert [desk.state(request) for request in (one, two)] == ["purging", "purging"]


def test_a_retry_after_the_purge_was_finished_finishes(desk: LedgerSetup) -> None:
    one, two, _ = stuck_purge(desk)
    with desk.database.transaction() as connection:
        move_requests(connection, one, "purging", at=NOON)
        move_requests(connection, one, "purged", at=NOON)
        connection.execute(update(batches).values(state="purged"))
    assert requests_of(desk.core).retry(two).state == "purged"
    assert desk.state(one) == "purged"


def test_a_stuck_purge_is_retried_as_a_purge(sqlite_desk: LedgerSetup) -> None:
    request = sqlite_desk.submit(1, verified=True)
    erase(sqlite_desk, request.id, upto="purging")
    with sqlite_desk.database.transaction() as connection:
        move_requests(connection, request.id, "stuck", at=NOON, reason="residue-found", tries=8)
    with pytest.raises(RequestStateError, match="is already applied"):
        requests_of(sqlite_desk.core).reject(request.id, "internal")
    retried = requests_of(sqlite_desk.core).retry(request.id)
    assert (retried.state, retried.tries, retried.reason) == ("purging", 0, None)


def test_a_stuck_request_that_was_not_applied_is_queued_again(sqlite_desk: LedgerSetup) -> None:
    request = sqlite_desk.submit(1, verified=True)
    erase(sqlite_desk, request.id, upto="applying")
    with sqlite_desk.database.transaction() as connection:
        connection.execute(update(batches).values(state="abandoned"))
        move_requests(connection, request.id, "stuck", at=NOON)
    assert requests_of(sqlite_desk.core).retry(request.id).state == "queued"


@pytest.mark.parametrize("recipients", [-1, True, 1.5, "2"])
def test_recipients_are_a_number(still_desk: LedgerSetup, recipients: Any) -> None:
    with pytest.raises(ValueError, match="integer of at least"):
        requests_of(still_desk.core).answer("0" * 32, recipients=recipients)
    with pytest.raises(ValueError, match="integer of at least 1"):
        requests_of(still_desk.core).record_recipients("0" * 32, recipients)


def test_recipients_may_be_told_at_several_times(sqlite_desk: LedgerSetup) -> None:
    desk = sqlite_desk
    request = desk.submit(1, verified=True)
    for count in (2, 3):
        assert requests_of(desk.core).record_recipients(request.id, count).state == "queued"
    assert desk.rows(requests.c.recipients) == [(5,)]  # what the purge will attest
    erase(desk, request.id)
    requests_of(desk.core).answer(request.id, recipients=4)
    assert desk.rows(requests.c.recipients) == [(9,)]
    told = [row.body for row in desk.rows(events) if row.kind == "recipients-told"]
    assert ['"recipients":2' in told[0], '"recipients":3' in told[1]] == [True, True]


def test_recipients_are_recorded_only_between_verification_and_end(
    sqlite_desk: LedgerSetup,
) -> None:
    open_one, gone = sqlite_desk.submit(1), sqlite_desk.submit(2, verified=True)
    requests_of(sqlite_desk.core).cancel(gone.id)
    for request in (open_one, gone):
        with pytest.raises(RequestStateError, match="recipients can be recorded only"):
            requests_of(sqlite_desk.core).record_recipients(request.id, 1)
