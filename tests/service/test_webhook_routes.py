"""Webhooks over HTTP: allow-listed, the secret shown once, other tenants' as if not there."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from letheon.ledger.db.webhooks import read_service_key
from letheon.service.webhooks import deliver_due, derive_secret
from tests.service.desks import OTHER, QUICK, Desk, make_desk, person
from tests.service.receivers import Receiver, receiving

PATH = "/api/v1/webhooks"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def desk(tmp_path: Path, receiver: Receiver) -> Iterator[Desk]:
    made = make_desk(tmp_path, settings=replace(QUICK, webhook_hosts=(receiver.entry,)))
    yield made
    made.close()


def wanted(receiver: Receiver, *events: str, **given: object) -> dict[str, object]:
    return {"url": receiver.url, "events": list(events or ("received",)), **given}


def test_a_webhook_is_made_shown_and_removed(desk: Desk, receiver: Receiver) -> None:
    client = desk.client()
    made = client.post(PATH, json=wanted(receiver, "certified", "received"))
    assert made.status_code == 201
    secret = made.json().pop("secret")
    key = read_service_key(desk.ledger.folder)
    assert secret == derive_secret(key, made.json()["id"])
    place = f"{PATH}/{made.json()['id']}"
    shown = client.get(place).json()
    assert shown["events"] == ["received", "certified"]
    assert "secret" not in shown
    assert client.get(PATH).json()["items"] == [shown]
    assert client.delete(place).status_code == 204
    assert client.get(place).status_code == client.delete(place).status_code == 404


def test_without_the_key_of_its_secret_no_webhook_is_made(desk: Desk, receiver: Receiver) -> None:
    (desk.ledger.folder / "keys" / "service.key").mkdir()
    client = desk.client()
    assert client.post(PATH, json=wanted(receiver)).status_code >= 400
    assert client.get(PATH).json()["items"] == []


def test_an_address_off_the_list_is_refused_with_advice(desk: Desk) -> None:
    body = {"url": "https://evil.example/?secret", "events": ["received"]}
    refused = desk.client().post(PATH, json=body)
    assert refused.status_code == 422
    assert refused.json()["type"] == "urn:letheon:problem:webhook-address"
    assert "webhook_hosts" in refused.json()["detail"]
    assert "evil" not in refused.text


def test_without_a_list_no_webhook_can_be_made(tmp_path: Path, receiver: Receiver) -> None:
    desk = make_desk(tmp_path / "none")
    refused = desk.client().post(PATH, json=wanted(receiver))
    desk.close()
    assert refused.status_code == 422
    assert "service.toml" in refused.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"url": "https://a.example.org/", "events": []},
        {"url": "https://a.example.org/", "events": ["purged"]},
        {"url": "https://a.example.org/", "events": ["received"], "tenant": "No Such"},
        {"url": "https://a.example.org/", "events": ["received"], "cursor": 0},
        {"url": "x", "events": ["received"]},
    ],
)
def test_what_is_no_webhook_is_refused(desk: Desk, body: dict[str, object]) -> None:
    assert desk.client().post(PATH, json=body).status_code == 422


def test_another_tenants_webhook_is_not_there(desk: Desk, receiver: Receiver) -> None:
    mine, rival = desk.client("admin@default"), desk.client(f"admin@{OTHER}")
    place = f"{PATH}/{mine.post(PATH, json=wanted(receiver)).json()['id']}"
    missing = f"{PATH}/{'0' * 16}"
    assert mine.get(place).json()["tenant"] == "default"
    for ask in (rival.get, rival.delete):
        answer_body, none = ask(place), ask(missing)
        assert answer_body.status_code == 404
        assert {**answer_body.json(), "instance": ""} == {**none.json(), "instance": ""}
    assert rival.post(f"{place}/test").status_code == 404
    assert rival.get(f"{place}/deliveries").status_code == 404
    assert rival.get(PATH).json()["items"] == []
    assert receiver.calls == []
    assert rival.post(PATH, json=wanted(receiver, tenant="default")).status_code == 404


def test_a_test_message_says_what_came_of_it(desk: Desk, receiver: Receiver) -> None:
    client = desk.client()
    place = f"{PATH}/{client.post(PATH, json=wanted(receiver)).json()['id']}/test"
    receiver.statuses = [500]
    answers = [client.post(place).json() for _ in range(2)]
    assert answers[0] == {"delivered": False, "status": 500, "outcome": "answered"}
    assert answers[1] == {"delivered": True, "status": 204, "outcome": "delivered"}
    assert [call.message["type"] for call in receiver.calls] == ["test", "test"]


def test_a_test_message_without_a_receiver(desk: Desk, receiver: Receiver) -> None:
    client = desk.client()
    place = f"{PATH}/{client.post(PATH, json=wanted(receiver)).json()['id']}/test"
    receiver.answer = lambda handler, call: handler.connection.close()
    document = client.post(place).json()
    assert document == {"delivered": False, "status": None, "outcome": "unreachable"}


def test_deliveries_are_listed_in_parts(desk: Desk, receiver: Receiver) -> None:
    client = desk.client()
    place = f"{PATH}/{client.post(PATH, json=wanted(receiver)).json()['id']}"
    for number in range(5):
        desk.ledger.requests.submit([person(number)], model="risk")
    receiver.statuses = [500]
    deliver_due(desk.ledger, desk.app.state.context.settings)
    assert client.get(place).json()["waiting"] == 1
    seen, after = [], None
    while True:
        query = {"limit": "2"} | ({} if after is None else {"after": after})
        part = client.get(f"{place}/deliveries", params=query).json()
        seen += part["items"]
        after = part["next"]
        if after is None:
            break
    assert len({item["id"] for item in seen}) == len(seen) == 5
    assert sorted(item["state"] for item in seen) == ["delivered"] * 4 + ["waiting"]
    wrong = client.get(f"{place}/deliveries", params={"after": f"msg_{'0' * 32}"})
    assert wrong.status_code == 422
