"""The desk of a ledger whose disk is full or read-only: it is read, and refuses to record."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from letheon.ledger import Ledger
from letheon.ledger.db import engines
from letheon.service import create_app
from tests.ledger.test_unwritable import FullDisk
from tests.service.desks import QUICK, Desk, make_desk, person


@pytest.fixture
def full_desk(tmp_path: Path) -> Iterator[Desk]:
    """A desk whose tokens were made before its disk could not be written any more."""
    desk = make_desk(tmp_path)
    desk.ledger.requests.submit([person(1)], model="risk")
    desk.ledger.close()
    with pytest.MonkeyPatch.context() as full:
        FullDisk(full)
        desk.ledger = Ledger.open(tmp_path / "home", clock=desk.clock)
        desk.app = create_app(desk.ledger, QUICK)
        yield desk
        desk.close()


def test_pages_and_calls_read(full_desk: Desk) -> None:
    client, browser = full_desk.client("operator"), full_desk.browser("operator")
    for path in ("requests", "summary", "models", "certificates", "batches", "residue"):
        assert client.get(f"/api/v1/{path}").status_code == 200
    for path in ("/", "/requests", "/models", "/models/risk", "/certificates", "/residue"):
        assert browser.get(path).status_code == 200
    assert browser.get("/requests").text.count("/requests/") > 1


def test_writes_give_one_clear_answer(full_desk: Desk) -> None:
    client, browser = full_desk.client("operator"), full_desk.browser("operator")
    request = client.get("/api/v1/requests").json()["items"][0]["id"]
    body = {"model": "risk", "ids": [person(2)]}
    answers = [
        client.post("/api/v1/requests", json=body),
        client.post(f"/api/v1/requests/{request}/verify"),
        full_desk.client("requester").post("/api/v1/requests", json=body),
        full_desk.client("admin").post("/api/v1/tokens", json={"name": "x", "role": "operator"}),
    ]
    assert {response.status_code for response in answers} == {507}
    assert {response.json()["type"] for response in answers} == {"urn:letheon:problem:unwritable"}
    assert {response.json()["detail"] for response in answers} == {engines.CANNOT_WRITE}
    many = client.post("/api/v1/requests/bulk", json={"items": [body]}).json()
    assert [item["status"] for item in many["items"]] == [507]
    assert str(full_desk.folder) not in "".join(response.text for response in answers)
    csrf = browser.get("/requests/new").text.partition('name="csrf" value="')[2].partition('"')[0]
    assert browser.post("/logout", data={"csrf": csrf}).status_code == 303


def test_a_file_that_cannot_be_written_says_the_same(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(desk.folder))

    monkeypatch.setattr(type(desk.ledger.requests), "submit", full)
    answer = desk.client("operator").post(
        "/api/v1/requests", json={"model": "risk", "ids": [person(2)]}
    )
    assert answer.status_code == 507
    assert str(desk.folder) not in answer.text
