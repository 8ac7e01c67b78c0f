"""Webhooks: every event once, signed, delivered at least once, also after kills."""

import base64
import hashlib
import hmac
import json
import stat
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, update

from letheon.ledger import Ledger, Policy
from letheon.ledger.db.events import record_event
from letheon.ledger.db.webhooks import EVENTS, Webhook, Webhooks, read_service_key
from letheon.ledger.requests.people import move_requests
from letheon.ledger.tables import deliveries, events, webhooks
from letheon.service import webhooks as sending
from letheon.service.settings import ServiceSettings
from letheon.service.webhooks import (
    TRIES,
    Courier,
    deliver_due,
    derive_secret,
    longest_pause,
    sign_message,
)
from letheon.verifier import verify_bundle
from tests.ledger.databases import (
    NOON,
    LedgerSetup,
    SettableClock,
    die,
    in_processes,
    sqlite_desk,
)
from tests.ledger.homes import make, person
from tests.postgres import _ledger_template, postgres_server, postgres_url
from tests.service.receivers import Receiver, receiving
from tests.sharded.people import examples

__all__ = ["_ledger_template", "postgres_server", "postgres_url", "sqlite_desk"]

DAY = 86_400


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(NOON)


@pytest.fixture
def ledger(tmp_path: Path, clock: SettableClock) -> Iterator[Ledger]:
    with make(tmp_path, clock=clock, policy=Policy(pin_seconds=1, k_min=1)) as made:
        yield made


def settings_for(*receivers: Receiver) -> ServiceSettings:
    return ServiceSettings(webhook_hosts=tuple(receiver_item.entry for receiver_item in receivers))


def add(ledger: Ledger, url: str, *events: str, tenant: str | None = None) -> tuple[Webhook, str]:
    hook = Webhooks(ledger).add(url, events or EVENTS, tenant=tenant)
    return hook, derive_secret(read_service_key(ledger.folder), hook.id)


def waiting(ledger: Ledger, *columns: Any) -> list[Any]:
    with ledger._core.database.reading() as conn:
        return list(conn.execute(select(*(columns or (deliveries,)))))


def told(receiver: Receiver) -> list[tuple[str, Any]]:
    messages = [call.message for call in receiver.calls]
    return [
        (message["type"], message["data"].get("request", message["data"].get("version")))
        for message in messages
    ]


def test_the_key_of_the_desk_is_made_once_and_private(ledger: Ledger) -> None:
    first = read_service_key(ledger.folder)
    path = ledger.folder / "keys" / "service.key"
    assert (len(first), read_service_key(ledger.folder)) == (32, first)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_ledgers_own_checks_do_not_mind_the_desk(
    ledger: Ledger, clock: SettableClock, tmp_path: Path
) -> None:
    """Its key lies beside the ledger's, and places in the log are given without a checkpoint."""
    add(ledger, "https://hooks.example.org/")
    ledger.requests.submit([person(1)], model="risk", verified=True)
    Webhooks(ledger).write_new_messages()
    ledger.run_once(force=True)
    Webhooks(ledger).write_new_messages()
    assert [finding for finding in ledger.doctor() if finding.level == "error"] == []
    verdicts = verify_bundle(ledger.export(tmp_path / "bundle"), ledger.public_key)
    assert {verdict.level: verdict.passed for verdict in verdicts}.items() >= {
        ("V0", True),
        ("V1", True),
    }


def test_secrets_are_derived_and_not_stored(ledger: Ledger) -> None:
    one, secret = add(ledger, "https://hooks.example.org/")
    _, other = add(ledger, "https://hooks.example.org/")
    assert secret == derive_secret(read_service_key(ledger.folder), one.id) != other
    raw = base64.b64decode(secret.removeprefix("whsec_"))
    for path in ledger._core.database.list_files():
        assert raw not in path.read_bytes()
        assert secret.encode() not in path.read_bytes()


def test_the_signature_is_that_of_standard_webhooks() -> None:
    # The example of the specification's own test suites.
    body = b'{"event_type":"ping","data":{"success":true}}'
    outcome = sign_message(
        "whsec_plJ3nmyCDGBKInavdOK15jsl", "msg_loFOjxBNrRLzqYUf", 1731705121, body
    )
    assert outcome == "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="


def test_a_request_is_told_signed_and_without_the_person(
    ledger: Ledger, receiver: Receiver, clock: SettableClock
) -> None:
    _, secret = add(ledger, receiver.url)
    request = ledger.requests.submit([person(1)], model="risk", verified=True)
    clock.now += 5
    assert deliver_due(ledger, settings_for(receiver)) == 1
    (call,) = receiver.calls
    message = call.message
    assert message["data"] == {
        "request": request.id,
        "model": "risk",
        "tenant": "default",
        "state": "queued",
        "due_on": request.due_on.isoformat(),
        "certificate": None,
    }
    assert message["created_at"] == datetime.fromtimestamp(NOON, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert (message["id"], message["type"]) == (call.headers["webhook-id"], "received")
    assert call.headers["webhook-timestamp"] == str(NOON + 5)
    signed = f"{message['id']}.{NOON + 5}.".encode() + call.body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    assert call.headers["webhook-signature"] == f"v1,{expected}"
    assert b"person" not in call.body


def test_everything_is_told_once(ledger: Ledger, receiver: Receiver, clock: SettableClock) -> None:
    add(ledger, receiver.url)
    settings = settings_for(receiver)
    first = ledger.requests.submit([person(1)], model="risk", verified=True)
    behind = ledger.requests.submit([person(1)], model="risk", verified=True)
    deliver_due(ledger, settings)
    ledger.run_once(force=True)
    deliver_due(ledger, settings)
    clock.now += 60
    late = ledger.requests.submit([person(1)], model="risk", verified=True)
    ledger.models.retrain("risk")
    for _ in range(3):
        deliver_due(ledger, settings)
    assert sorted(told(receiver), key=str) == sorted(
        [
            *(
                (event, item.id)
                for event in ("received", "certified")
                for item in (first, behind, late)
            ),
            ("retrained", 2),
        ],
        key=str,
    )
    certified = [call.message["data"] for call in receiver.calls if b"certified" in call.body]
    assert {item["certificate"] for item in certified if "request" in item} <= {None, 1}


def test_who_waits_behind_one_that_was_overtaken_is_told_too(
    ledger: Ledger, clock: SettableClock
) -> None:
    add(ledger, "https://hooks.example.org/", "certified")
    slow, waits = (
        ledger.requests.submit([person(1)], model="risk", verified=True) for _ in range(2)
    )
    with ledger._core.database.transaction() as conn:
        move_requests(conn, slow.id, "applying", at=clock.now)
        move_requests(conn, slow.id, "retry_wait", at=clock.now, not_before=clock.now + 100)
    both = ledger.requests.submit([person(1), person(2)], model="risk", verified=True)
    ledger.run_once(force=True)
    Webhooks(ledger).write_new_messages()
    clock.now += 200
    ledger.run_once()
    Webhooks(ledger).write_new_messages()
    about = sorted(row.about for row in waiting(ledger))
    assert about == sorted([both.id, slow.id, waits.id])


def test_a_retrain_names_version_certificate_and_model(ledger: Ledger, receiver: Receiver) -> None:
    add(ledger, receiver.url, "retrained")
    ledger.requests.submit([person(3)], model="risk", verified=True)
    ledger.models.retrain("risk")
    deliver_due(ledger, settings_for(receiver))
    (call,) = receiver.calls
    assert call.message["data"] == {
        "version": 1,
        "certificate": 1,
        "model": "risk",
        "tenant": "default",
    }


def test_what_is_overdue_is_told_once(
    ledger: Ledger, receiver: Receiver, clock: SettableClock
) -> None:
    settings = settings_for(receiver)
    request = ledger.requests.submit([person(2)], model="risk")
    add(ledger, receiver.url, "overdue")
    last_day = datetime.combine(request.due_on, datetime.min.time(), UTC)
    clock.now = int(last_day.timestamp()) + DAY // 2
    deliver_due(ledger, settings)
    assert told(receiver) == []
    for _ in range(3):
        clock.now += DAY
        deliver_due(ledger, settings)
    assert told(receiver) == [("overdue", request.id)]
    ledger.requests.cancel(request.id)
    add(ledger, receiver.url, "overdue")
    deliver_due(ledger, settings)
    assert len(receiver.calls) == 1


def test_a_webhook_hears_of_its_own_tenant_only(ledger: Ledger, receiver: Receiver) -> None:
    from tests.ledger.homes import IDS, X, Y, fitted

    ledger.models.register(fitted(), X, Y, ids=IDS, name="other", tenant="acme")
    add(ledger, receiver.url, "received", tenant="acme")
    ledger.requests.submit([person(1)], model="risk")
    mine = ledger.requests.submit([person(1)], model="other", tenant="acme")
    deliver_due(ledger, settings_for(receiver))
    assert told(receiver) == [("received", mine.id)]


def test_nothing_from_before_a_webhook_is_told(ledger: Ledger, receiver: Receiver) -> None:
    ledger.requests.submit([person(1)], model="risk")
    add(ledger, receiver.url)
    deliver_due(ledger, settings_for(receiver))
    assert receiver.calls == []


def test_a_receiver_that_was_down_gets_the_same_message_later(
    ledger: Ledger, clock: SettableClock
) -> None:
    with receiving() as before:
        before.statuses = [500]
        settings, port = settings_for(before), before.port
        add(ledger, before.url, "received")
        request = ledger.requests.submit([person(1)], model="risk")
        deliver_due(ledger, settings)
    first = before.calls[0].message["id"]
    clock.now += 60
    assert deliver_due(ledger, settings) == 1  # the receiver is down
    clock.now += 600
    with receiving(port) as after:
        assert deliver_due(ledger, settings) == 1
        assert deliver_due(ledger, settings) == 0
    assert told(after) == [("received", request.id)]
    assert after.calls[0].message["id"] == first
    (row,) = waiting(ledger)
    assert (row.tries, row.last_status, row.delivered_at) == (3, 204, clock.now)


def test_a_courier_killed_after_sending_sends_again(
    ledger: Ledger, receiver: Receiver, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(ledger, receiver.url, "received")
    ledger.requests.submit([person(1)], model="risk")
    settings = settings_for(receiver)
    ledger.close()
    home = ledger.folder

    def killed() -> None:
        monkeypatch.setattr(sending, "_record_attempt", lambda *given: die())
        deliver_due(Ledger.open(home, clock=clock), settings)

    assert in_processes([killed]) == [-9]
    assert len(receiver.calls) == 1
    with Ledger.open(home, clock=clock) as again:
        assert deliver_due(again, settings) == 0  # it may still be on its way
        clock.now += sending._CLAIM_SECONDS + 1
        assert deliver_due(again, settings) == 1
    assert len({call.message["id"] for call in receiver.calls}) == 1
    assert len(receiver.calls) == 2


def test_two_couriers_send_one_message_once(
    ledger: Ledger, receiver: Receiver, clock: SettableClock
) -> None:
    add(ledger, receiver.url, "received")
    for number in range(6):
        ledger.requests.submit([person(number)], model="risk")
    settings = settings_for(receiver)
    ledger.close()

    def work() -> None:
        deliver_due(Ledger.open(ledger.folder, clock=clock), settings)

    assert in_processes([work, work, work]) == [0, 0, 0]
    assert len(receiver.calls) == len({call.message["id"] for call in receiver.calls}) == 6


def test_after_twelve_tries_it_is_given_up_and_visible(
    ledger: Ledger, receiver: Receiver, clock: SettableClock
) -> None:
    hook, _ = add(ledger, receiver.url, "received")
    ledger.requests.submit([person(1)], model="risk")
    receiver.statuses = [503] * 100
    pauses = []
    for _ in range(TRIES + 3):
        deliver_due(ledger, settings_for(receiver), overdue=False)
        (row,) = waiting(ledger)
        pauses.append(row.not_before - clock.now)
        clock.now += 6 * 3600
    assert len(receiver.calls) == TRIES
    match = Webhooks(ledger).find(hook.id)
    assert match is not None
    assert (match.waiting, match.given_up) == (0, 1)
    assert all(5 <= pause <= longest_pause(n) for n, pause in enumerate(pauses[: TRIES - 1], 1))


def test_pauses_grow_from_seconds_to_hours() -> None:
    longest = [longest_pause(tries) for tries in range(1, TRIES)]
    assert longest[0] == 5
    assert longest[-1] == 6 * 3600
    assert longest == sorted(longest)


def test_gone_switches_a_webhook_off(
    ledger: Ledger, receiver: Receiver, clock: SettableClock
) -> None:
    hook, _ = add(ledger, receiver.url, "received")
    receiver.statuses = [410]
    ledger.requests.submit([person(1)], model="risk")
    deliver_due(ledger, settings_for(receiver))
    ledger.requests.submit([person(2)], model="risk")
    clock.now += DAY
    deliver_due(ledger, settings_for(receiver))
    assert len(receiver.calls) == 1
    match = Webhooks(ledger).find(hook.id)
    assert match is not None
    assert match.disabled_at == datetime.fromtimestamp(NOON, UTC)


def test_one_slow_receiver_leaves_room_for_others(
    ledger: Ledger, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_PER_WEBHOOK", 2)
    with receiving() as failing:
        failing.statuses = [500] * 100
        for hook in (failing, receiver):
            add(ledger, hook.url, "received")
        for number in range(5):
            ledger.requests.submit([person(number)], model="risk")
        assert deliver_due(ledger, settings_for(failing, receiver)) == 4
    assert (len(failing.calls), len(receiver.calls)) == (2, 2)


def test_a_host_that_was_taken_off_the_list_is_called_no_more(
    ledger: Ledger, receiver: Receiver
) -> None:
    add(ledger, receiver.url, "received")
    ledger.requests.submit([person(1)], model="risk")
    deliver_due(ledger, ServiceSettings())
    (row,) = waiting(ledger)
    assert receiver.calls == []
    assert (row.tries, row.last_status, row.delivered_at) == (1, None, None)


def test_delivered_messages_are_dropped_after_a_month(
    ledger: Ledger, receiver: Receiver, clock: SettableClock
) -> None:
    add(ledger, receiver.url, "received", "overdue")
    ledger.requests.submit([person(1)], model="risk")
    deliver_due(ledger, settings_for(receiver))
    clock.now += 60 * DAY
    deliver_due(ledger, settings_for(receiver))
    clock.now += 31 * DAY
    assert Webhooks(ledger).forget_old() == 1
    assert [row.kind for row in waiting(ledger)] == ["overdue"]


def test_messages_that_were_given_up_are_dropped_after_a_month(
    ledger: Ledger, clock: SettableClock
) -> None:
    add(ledger, "https://hooks.example.org/", "received")
    ledger.requests.submit([person(1)], model="risk")
    Webhooks(ledger).write_new_messages()
    clock.now += 31 * DAY
    assert Webhooks(ledger).forget_old() == 0, "it still waits"
    with ledger._core.database.transaction() as conn:
        conn.execute(update(deliveries).values(given_up_at=clock.now))
    clock.now += 29 * DAY
    assert Webhooks(ledger).forget_old() == 0
    clock.now += 2 * DAY
    assert Webhooks(ledger).forget_old() == 1


def test_a_claim_outlasts_a_round() -> None:
    longest = sending._ROUND / sending._AT_ONCE * sending._IN_ALL_SECONDS
    assert longest < sending._CLAIM_SECONDS


def test_a_removed_webhook_takes_its_messages_along(ledger: Ledger, clock: SettableClock) -> None:
    hook, _ = add(ledger, "https://hooks.example.org/", "received")
    ledger.requests.submit([person(1)], model="risk")
    Webhooks(ledger).write_new_messages()
    assert len(waiting(ledger)) == 1
    Webhooks(ledger).remove(hook.id)
    assert waiting(ledger) == waiting(ledger, webhooks) == []


def test_the_courier_delivers_beside_others_and_stops(ledger: Ledger, receiver: Receiver) -> None:
    arrived = threading.Event()
    receiver.answer = lambda handler, call: arrived.set()
    with Courier(ledger, settings_for(receiver), pause=30) as courier:
        add(ledger, receiver.url, "received")
        ledger.requests.submit([person(1)], model="risk")
        courier.wake()
        assert arrived.wait(20)
    assert len(receiver.calls) == 1


def test_a_round_that_fails_is_reported_and_not_the_last(ledger: Ledger) -> None:
    failed = threading.Event()
    reported: list[Exception] = []

    def report(error: Exception) -> None:
        reported.append(error)
        failed.set()

    courier = Courier(ledger, ServiceSettings(), pause=0.01, report=report)
    ledger.close()
    with courier:
        assert failed.wait(20)
    assert "closed" in str(reported[0])


def test_an_event_committed_late_is_not_passed_by(postgres_url: str, tmp_path: Path) -> None:
    """Numbers of rows are given before the commit, places in the log after it."""
    desk = LedgerSetup(tmp_path, "postgresql", postgres_url)
    ledger, old = Ledger(desk.core), desk.submit(1)
    add(ledger, "https://hooks.example.org/", "received")
    with desk.database.engine.connect() as slow, slow.begin():
        record_event(slow, "received", {"request": old.id}, at=NOON)
        quick = desk.submit(2)
        assert Webhooks(ledger).write_new_messages() == 1
    assert Webhooks(ledger).write_new_messages() == 1
    numbers = {row.about: row.id for row in desk.rows(events)}
    request_ids = {row.about for row in desk.rows(deliveries)}
    desk.database.dispose()
    assert numbers[old.id] < numbers[quick.id]  # a cursor over numbers would have passed it by
    assert request_ids == {old.id, quick.id}


@examples(20)
@given(st.lists(st.sampled_from(["submit", "feed", "killed feed"]), max_size=12))
def test_each_event_gives_one_message_whatever_is_killed(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    desk = LedgerSetup(*_fresh(tmp_path_factory))
    ledger = Ledger(desk.core)
    add(ledger, "https://hooks.example.org/", "received")
    filed: list[str] = []
    for step in steps:
        if step == "submit":
            filed.append(desk.submit(len(filed)).id)
        else:
            _feed(ledger, is_killed=step == "killed feed")
    Webhooks(ledger).write_new_messages()
    request_ids = [row.about for row in desk.rows(deliveries)]
    desk.database.dispose()
    assert sorted(request_ids) == sorted(filed)


def _fresh(factory: pytest.TempPathFactory) -> tuple[Path, str, Path]:
    folder = factory.mktemp("desk")
    return folder, "sqlite", folder


def _feed(ledger: Ledger, *, is_killed: bool) -> None:
    if not is_killed:
        Webhooks(ledger).write_new_messages()
        return

    class Crash(Exception):
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("letheon.ledger.db.webhooks._feed_overdue", lambda *given: _raise(Crash()))
        with pytest.raises(Crash):
            Webhooks(ledger).write_new_messages()


def _raise(error: Exception) -> int:
    raise error


def test_more_events_than_a_round_takes_come_in_the_next(
    sqlite_desk: LedgerSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("letheon.ledger.db.webhooks._MOST", 3)
    ledger = Ledger(sqlite_desk.core)
    add(ledger, "https://hooks.example.org/", "received")
    filed = [sqlite_desk.submit(number).id for number in range(8)]
    assert [Webhooks(ledger).write_new_messages() for _ in range(4)] == [3, 3, 2, 0]
    assert sorted(row.about for row in sqlite_desk.rows(deliveries)) == sorted(filed)


def test_bodies_are_plain_json(ledger: Ledger, clock: SettableClock) -> None:
    add(ledger, "https://hooks.example.org/")
    ledger.requests.submit([person(1)], model="risk")
    Webhooks(ledger).write_new_messages()
    (row,) = waiting(ledger)
    document = json.loads(row.body)
    assert list(document) == ["id", "type", "created_at", "data"]
    assert document["id"] == row.id
