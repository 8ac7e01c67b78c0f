"""Forgetting tags of requests that were closed long ago."""

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from letheon.data import as_ids
from letheon.exceptions import UnknownIdError
from letheon.ledger.requests import people
from letheon.ledger.settings import Settings
from letheon.ledger.tables import blocked, events, requests
from letheon.ledger.worker.policy import Policy
from letheon.ledger.worker.worker import forget_closed
from tests.ledger.databases import LedgerSetup, desk, erase, kind, place, requests_of, sqlite_desk

__all__ = ["desk", "kind", "place", "sqlite_desk"]

DAY = 86_400
TWO_YEARS = 731 * DAY  # 2028 is a leap year
OTHERS = as_ids(["person-99"])


def closed(desk: LedgerSetup, *people: int, **given: Any) -> str:
    """A request that was erased and answered."""
    request = desk.submit(*people, verified=True, **given)
    erase(desk, request.id)
    requests_of(desk.core).answer(request.id)
    return request.id


def tags(desk: LedgerSetup, request: str) -> tuple[str, str, str]:
    rows = {row.id: (row.key_tag, row.body_tag, row.nonce) for row in desk.rows(requests)}
    return rows[request]


def test_tags_are_kept_for_their_months_and_then_forgotten(desk: LedgerSetup) -> None:
    request = closed(desk, 1, 2, key="k")
    before = tags(desk, request)
    assert forget_closed(desk.core) == 0
    desk.clock.now += TWO_YEARS - DAY
    assert forget_closed(desk.core) == 0
    assert tags(desk, request) == before
    desk.clock.now += 2 * DAY
    assert forget_closed(desk.core) == 1
    key, body, nonce = tags(desk, request)
    assert (body, nonce) == ("", "")
    assert key not in ("", before[0])
    assert desk.rows(blocked) == []
    assert desk.state(request) == "closed"
    assert forget_closed(desk.core) == 0
    told = [row.body for row in desk.rows(events) if row.kind == "tags-forgotten"]
    assert len(told) == 1
    assert '"requests":1' in told[0]


def test_who_asks_again_is_new_or_unknown_then(sqlite_desk: LedgerSetup) -> None:
    desk = sqlite_desk
    request = closed(desk, 1, key="k")
    assert desk.submit(1, key="k", verified=True, held=OTHERS).id == request
    desk.clock.now += TWO_YEARS + DAY
    forget_closed(desk.core)
    with pytest.raises(UnknownIdError):
        desk.submit(1, key="k", verified=True, held=OTHERS)
    assert desk.submit(1, key="k", verified=True).state == "queued"  # another person of that id


def test_tags_of_people_whom_an_open_request_names_stay(desk: LedgerSetup) -> None:
    """Otherwise a duplicate could not know that all of its people are erased."""
    request = closed(desk, 1, 2)
    waits = desk.submit(2, verified=True, held=OTHERS)
    assert waits.state == "duplicate"
    desk.clock.now += TWO_YEARS + DAY
    assert forget_closed(desk.core) == 0
    assert requests_of(desk.core).answer(waits.id).state == "closed"
    assert forget_closed(desk.core) == 1
    assert {row.request_id for row in desk.rows(blocked)} == {waits.id}
    assert tags(desk, request)[1] == ""
    again = desk.submit(2, verified=True, held=OTHERS)
    people.mark_queued_duplicates(desk.core, desk.model.id)
    assert (desk.state(again), desk.reload(again).duplicate_of) == ("duplicate", waits.id)


def test_withdrawn_requests_are_forgotten_and_open_ones_are_not(sqlite_desk: LedgerSetup) -> None:
    desk = sqlite_desk
    gone, stays = desk.submit(1, verified=True), desk.submit(2, verified=True)
    requests_of(desk.core).cancel(gone.id)
    before = tags(desk, stays.id)
    desk.clock.now += 10 * TWO_YEARS
    assert forget_closed(desk.core) == 1
    assert tags(desk, stays.id) == before
    assert {row.request_id for row in desk.rows(blocked)} == {stays.id}


def test_many_are_forgotten_in_parts(
    sqlite_desk: LedgerSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("letheon.ledger.worker.worker._CHUNK", 2)
    for number in range(5):
        requests_of(sqlite_desk.core).cancel(sqlite_desk.submit(number).id)
    sqlite_desk.clock.now += TWO_YEARS + DAY
    assert forget_closed(sqlite_desk.core) == 5
    assert len({row.key_tag for row in sqlite_desk.rows(requests)}) == 5


@pytest.mark.parametrize("months", [24_320, 10**9])
def test_so_many_months_are_for_ever(sqlite_desk: LedgerSetup, months: int) -> None:
    requests_of(sqlite_desk.core).cancel(sqlite_desk.submit(1).id)
    policy = Policy(keep_keys_months=months)
    object.__setattr__(sqlite_desk.core, "settings", Settings(name="test", policy=policy))
    sqlite_desk.clock.now += TWO_YEARS
    assert forget_closed(sqlite_desk.core) == 0


@pytest.mark.parametrize("column", ["key_tag", "body_tag", "nonce"])
def test_tags_are_only_forgotten_never_changed(desk: LedgerSetup, column: str) -> None:
    """By SQL: not while it is open, and not to anything else afterwards."""
    request = desk.submit(1)
    changes = [f"{column} = 'x'", "key_tag = 'x', body_tag = '', nonce = ''"]
    for change in changes:
        with pytest.raises(DBAPIError, match="is fixed"), desk.database.transaction() as conn:
            conn.execute(text(f"UPDATE requests SET {change}"))
    requests_of(desk.core).cancel(request.id)
    with pytest.raises(DBAPIError, match="is fixed"), desk.database.transaction() as conn:
        conn.execute(text(f"UPDATE requests SET {changes[0]}"))
    assert "" not in tags(desk, request.id)
