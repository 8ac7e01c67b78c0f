"""Requests as people see them: lists, timelines, days left."""

import json
from datetime import UTC, date, datetime, timedelta

import pytest
from sqlalchemy import insert, text

from letheon.exceptions import UnknownRequestError
from letheon.ledger.db import events
from letheon.ledger.doctor import list_unconfirmed_requests
from letheon.ledger.requests.deadlines import Calendar
from letheon.ledger.requests.listing import (
    find_request,
    find_requests,
    list_requests,
)
from letheon.ledger.requests.people import move_requests
from letheon.ledger.tables import batches, certificates
from tests.ledger.databases import (
    NOON,
    LedgerSetup,
    add_model,
    desk,
    kind,
    place,
    requests_of,
    sqlite_desk,
)
from tests.ledger.test_events import _VERSION

__all__ = ["desk", "kind", "place", "sqlite_desk"]

BATCH = "b" * 64


def certify(desk: LedgerSetup, request: str) -> None:
    """Apply one request in a batch, with certificate 7."""
    with desk.database.transaction() as connection:
        values = {"id": BATCH, "model_id": desk.model.id, "kind": "erase", "parent_id": 1}
        rest = {"state": "open", "created_at": NOON, "reason": "operator", "fence": 1}
        connection.execute(insert(batches).values(**values, **rest))
        events.record_event(connection, "sealed", {"batch": BATCH, "requests": 1}, NOON)
        move_requests(connection, request, "applying", at=NOON, batch_id=BATCH)
        connection.execute(text(_VERSION), {"model": desk.model.id})
        connection.execute(text(f"UPDATE versions SET batch_id = '{BATCH}', sequence = 7"))
        move_requests(connection, request, "applied", at=NOON)
        values = {"sequence": 7, "id": "a" * 64, "version_id": 1, "envelope": b"{}", "at": NOON}
        connection.execute(insert(certificates).values(values))
        move_requests(connection, request, "certified", at=NOON)


def test_a_list_is_filtered_and_the_earliest_due_comes_first(desk: LedgerSetup) -> None:
    with desk.database.transaction() as connection:
        theirs = add_model(connection, "risk", "acme")
    made = []
    for options in ({}, {"verified": True}, {"model": desk.other}):
        desk.clock.now += 10
        made.append(desk.submit(1, **options))
    other = desk.submit(1, model=theirs, tenant="acme")
    with desk.database.reading() as connection:
        assert [request.id for request in list_requests(connection, tenant="default")] == [
            one.id for one in made
        ]
        assert list_requests(connection, state="queued", tenant="default") == [made[1]]
        assert list_requests(connection, model="churn") == [made[2]]
        assert list_requests(connection, tenant="acme") == [other]
        assert list_requests(connection, state="no such state") == []
        assert find_requests(connection, [made[0].id, "0" * 32]) == {made[0].id: made[0]}
        assert find_requests(connection, []) == {}
    extended = requests_of(desk.core).extend(made[0].id)
    with desk.database.reading() as connection:
        assert list_requests(connection, tenant="default") == [made[1], made[2], extended]


def test_certificates_are_shown_to_who_asked_and_to_who_waited(desk: LedgerSetup) -> None:
    first = desk.submit(1, verified=True)
    second = desk.submit(1, verified=True)
    other = desk.submit(2, verified=True)
    assert desk.reload(first).certificate is None
    certify(desk, first.id)
    shown = [desk.reload(one).certificate for one in (first, second, other)]
    assert shown == [7, 7, None]
    assert desk.reload(first).batch == BATCH


def test_a_timeline_tells_everything_in_order_and_no_name(desk: LedgerSetup) -> None:
    request = desk.submit(1)
    other = desk.submit(2, verified=True)
    desk.clock.now += 60
    requests_of(desk.core).verify(request.id)
    certify(desk, request.id)
    entries = requests_of(desk.core).timeline(request.id)
    assert [entry.kind for entry in entries] == [
        "received",
        "verified",
        "queued",
        "sealed",
        "applying",
        "applied",
        "certified",
    ]
    assert entries[1].at - entries[0].at == timedelta(seconds=60)
    assert entries[0].details["ground"] == "gdpr.art17.1.b"
    assert entries[0].details["tz"].startswith("iana:")
    text_ = json.dumps([entry.details for entry in entries])
    assert "person" not in text_
    assert other.id not in text_


def test_another_tenant_sees_no_timeline(sqlite_desk: LedgerSetup) -> None:
    request = sqlite_desk.submit(1)
    with sqlite_desk.database.reading() as connection:
        assert find_request(connection, request.id, tenant="default") == request
    with pytest.raises(UnknownRequestError):
        requests_of(sqlite_desk.core).timeline(request.id, tenant="acme")


def test_days_left_are_counted_to_the_last_day(sqlite_desk: LedgerSetup) -> None:
    request = sqlite_desk.submit(1)
    assert request.due_on == date(2027, 2, 15)
    seat, other = Calendar(), Calendar(timezone="UTC")
    days = [request.days_left(datetime(2027, 2, day, 12, tzinfo=UTC), seat) for day in (14, 15, 16)]
    assert days == [1, 0, -1]
    late = datetime(2027, 2, 14, 23, 30, tzinfo=UTC)  # in Brussels the next day has begun
    assert (request.days_left(late, other), request.days_left(late, seat)) == (1, 0)


def test_receipts_that_are_not_confirmed_in_time_are_found(sqlite_desk: LedgerSetup) -> None:
    """NOON is Friday, 15 January 2027: ten business days end on the 29th."""
    late = sqlite_desk.submit(1, regime="ccpa", ground="ccpa.1798.105")
    done = sqlite_desk.submit(2, regime="ccpa", ground="ccpa.1798.105", verified=True)
    other = sqlite_desk.submit(3)
    days = {}
    with sqlite_desk.database.reading() as connection:
        for day in (28, 29, 30):
            now = datetime(2027, 1, day, 12, tzinfo=UTC)
            days[day] = [
                request.id for request in list_unconfirmed_requests(connection, now, Calendar())
            ]
    assert days == {28: [], 29: [late.id], 30: [late.id]}
    assert {done.state, other.state} == {"queued", "received"}


def test_open_means_that_a_person_waits(sqlite_desk: LedgerSetup) -> None:
    request = sqlite_desk.submit(1)
    assert request.is_open
    assert not requests_of(sqlite_desk.core).cancel(request.id).is_open


def test_a_request_shows_no_person(sqlite_desk: LedgerSetup) -> None:
    assert "person" not in repr(sqlite_desk.submit(1, verified=True))
