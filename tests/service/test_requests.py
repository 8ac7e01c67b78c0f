"""Requests over HTTP: filed once, seen by whom they concern, handled by who may."""

import csv
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from letheon.exceptions import UnknownIdError
from letheon.ledger import REQUEST_STATES, LogEntry
from letheon.ledger.db.tokens import SCOPES
from letheon.ledger.requests.states import (
    ALLOWED,
    HOLD_GROUNDS,
    NO_DATA_HELD,
    REJECT_GROUNDS,
    REQUEST_GROUNDS,
    STATES,
)
from letheon.service.request_views import (
    ACTIONS,
    GROUND_WORDS,
    ActionName,
    RequestOut,
    describe_event,
)
from letheon.service.routes import filing
from letheon.service.routes.requests import export_cell
from tests.ledger.databases import NOON
from tests.ledger.homes import IDS, X, Y, fitted
from tests.service.desks import OTHER, Desk, make_desk, person
from tests.sharded.people import examples

URL = "/api/v1/requests"


def _file(client: TestClient, number: int, *, key: str | None = None, **given: Any) -> Any:
    body = {"model": "risk", "ids": [person(number)], **given}
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post(URL, json=body, headers=headers)


def _act(client: TestClient, request_id: str, action: str, **details: Any) -> Any:
    return client.post(f"{URL}/{request_id}/{action}", json=details or None)


def test_a_request_is_filed_verified_applied_certified_and_answered(desk: Desk) -> None:
    operator = desk.client("operator")
    filed = _file(operator, 1)
    assert (filed.status_code, filed.json()["state"]) == (201, "received")
    request_id = filed.json()["id"]
    assert _act(operator, request_id, "verify").json()["state"] == "queued"
    desk.work()
    outcome = operator.get(f"{URL}/{request_id}").json()
    assert (outcome["state"], outcome["certificate"], outcome["version"]) == ("purged", 1, "risk@1")
    assert (outcome["n_ids"], outcome["n_rows"], outcome["is_overdue"]) == (1, 2, False)
    assert _act(operator, request_id, "tell", recipients=2).json()["state"] == "purged"
    assert _act(operator, request_id, "answer").json()["state"] == "closed"
    assert operator.get(f"{URL}/{request_id}").json()["days_left"] is None


def test_no_answer_holds_an_id_of_a_person(desk: Desk) -> None:
    admin = desk.client("admin")
    filed = _file(admin, 7, verified=True)
    desk.work()
    request_id = filed.json()["id"]
    paths = (URL, f"{URL}.csv", f"{URL}/{request_id}", f"{URL}/{request_id}/timeline")
    texts = [filed.text, *(admin.get(path).text for path in paths)]
    refused = [
        admin.post(URL, json={"model": "risk", "ids": [person(7), 3]}),
        admin.post(URL, json={"model": "risk", "ids": ["mallory@example.org"]}),
        admin.post(URL, json={"model": "risk", "ids": [["mallory@example.org"]]}),
        admin.post(URL, json={"model": "forest", "ids": [person(7)]}),
    ]
    assert [answer.status_code for answer in refused] == [422] * 4
    assert not any("person-" in text or "mallory" in text for text in texts)
    assert not any("person-" in item.text or "mallory" in item.text for item in refused)


def test_the_same_key_and_content_give_the_same_request(desk: Desk) -> None:
    operator = desk.client("operator")
    first, again = _file(operator, 2, key="case 4711"), _file(operator, 2, key="case 4711")
    other = _file(operator, 3, key="case 4711")
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 422)
    assert first.json() == again.json()
    assert other.json()["type"] == "urn:letheon:problem:key-used"
    assert _file(operator, 3, key="case 4712").status_code == 201


def test_keys_are_a_tenants_own(desk: Desk) -> None:
    ours, theirs = desk.client("operator@default"), desk.client(f"operator@{OTHER}")
    mine = _file(ours, 2, key="k")
    other = _file(theirs, 2, key="k", model="churn")
    assert (mine.status_code, other.status_code) == (201, 201)
    assert mine.json()["id"] != other.json()["id"]


@pytest.mark.parametrize("key", ["", "x" * 256, "line\x7f", "\xe9"])
def test_a_key_is_printable_and_short(shared_desk: Desk, key: str) -> None:
    headers = {"Idempotency-Key": key.encode("latin-1")}
    body = {"model": "risk", "ids": [person(1)]}
    client = shared_desk.client("operator")
    assert client.post(URL, json=body, headers=headers).status_code == 422  # type: ignore[arg-type]


def test_only_who_may_vouch_files_verified_requests(desk: Desk) -> None:
    refused = _file(desk.client("requester"), 4, verified=True)
    bulk = {"items": [{"model": "risk", "ids": [person(4)], "verified": True}]}
    many = desk.client("requester").post(f"{URL}/bulk", json=bulk)
    assert (refused.status_code, many.status_code) == (403, 403)
    assert _file(desk.client("operator"), 4, verified=True).json()["state"] == "queued"
    assert desk.ledger.requests.count().total == 1


def test_requesters_see_only_what_they_filed(desk: Desk) -> None:
    requester, operator = desk.client("requester"), desk.client("operator")
    mine, others = _file(requester, 5).json()["id"], _file(operator, 6).json()["id"]
    listed = requester.get(URL).json()
    assert ([item["id"] for item in listed["items"]], listed["total"]) == ([mine], 1)
    assert requester.get("/api/v1/summary").json()["n_open"] == 1
    exported = list(csv.DictReader(io.StringIO(requester.get(f"{URL}.csv").text)))
    assert [line["id"] for line in exported] == [mine]
    for path in (f"{URL}/{others}", f"{URL}/{others}/timeline"):
        hidden, absent = requester.get(path), requester.get(path.replace(others, "0" * 32))
        assert hidden.status_code == absent.status_code == 404
        assert {**hidden.json(), "instance": ""} == {**absent.json(), "instance": ""}


def test_a_requester_learns_nothing_by_anothers_key(desk: Desk) -> None:
    _file(desk.client("operator"), 5, key="shared")
    answer = _file(desk.client("requester"), 5, key="shared")
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:letheon:problem:key-used")


def test_another_tenants_request_is_as_if_it_were_not_there(desk: Desk) -> None:
    request_id = _file(desk.client("operator"), 5).json()["id"]
    stranger = desk.client(f"admin@{OTHER}")
    for method, path, body in (
        ("GET", f"{URL}/ID", None),
        ("GET", f"{URL}/ID/timeline", None),
        ("POST", f"{URL}/ID/verify", None),
        ("POST", f"{URL}/ID/reject", {"ground": "internal"}),
    ):
        there = stranger.request(method, path.replace("ID", request_id), json=body)
        absent = stranger.request(method, path.replace("ID", "0" * 32), json=body)
        assert there.status_code == absent.status_code == 404
        assert {**there.json(), "instance": ""} == {**absent.json(), "instance": ""}
    assert stranger.get(URL).json() == {"items": [], "next": None, "total": 0}
    assert desk.ledger.requests.get(request_id).state == "received"


def test_every_model_that_knows_the_person_forgets_them(desk: Desk) -> None:
    _register_twin(desk)
    operator = desk.client("operator")
    wish = {"model": "*", "ids": [person(3), person(4)], "verified": True}
    headers = {"Idempotency-Key": "all"}
    first = operator.post(URL, json=wish, headers=headers)
    assert first.status_code == 201
    assert [request["model"] for request in first.json()["requests"]] == ["risk", "twin"]
    desk.work()
    again = operator.post(URL, json=wish, headers=headers)
    assert again.status_code == 200
    assert _ids(again) == _ids(first)
    assert operator.post(URL, json=wish | {"ids": ["unknown"]}).status_code == 422


def test_a_repeat_completes_what_a_crash_left_out(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    _register_twin(desk)
    operator, real, calls = desk.client("operator"), filing.submit_request, []

    def dies_at_the_second(*given: Any, **more: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise OSError
        return real(*given, **more)

    wish, headers = {"model": "*", "ids": [person(3)]}, {"Idempotency-Key": "all"}
    with monkeypatch.context() as patched:
        patched.setattr(filing, "submit_request", dies_at_the_second)
        assert operator.post(URL, json=wish, headers=headers).status_code == 500
    assert desk.ledger.requests.count().total == 1
    again = operator.post(URL, json=wish, headers=headers)
    assert (again.status_code, len(_ids(again))) == (201, 2)
    assert desk.ledger.requests.count().total == 2


def _register_twin(desk: Desk) -> None:
    desk.ledger.models.register(fitted(), X, Y, ids=IDS, name="twin")


def _ids(answer: Any) -> list[str]:
    return [request["id"] for request in answer.json()["requests"]]


def test_bulk_keeps_the_order_and_says_what_became_of_each(desk: Desk) -> None:
    items = [
        {"model": "risk", "ids": [person(1)]},
        {"model": "risk", "ids": ["unknown"]},
        {"model": "forest", "ids": [5], "regime": "ccpa"},
        {"model": "none", "ids": [5]},
        {"model": "risk", "ids": [person(2)], "ground": "ccpa.1798.105"},
    ]
    done = desk.client("operator").post(f"{URL}/bulk", json={"items": items}).json()
    assert [item["index"] for item in done["items"]] == [0, 1, 2, 3, 4]
    assert [item["status"] for item in done["items"]] == [201, 422, 201, 404, 422]
    assert (done["n_done"], done["n_refused"]) == (2, 3)
    assert [item["request"] and item["request"]["model"] for item in done["items"][:3]] == [
        "risk",
        None,
        "forest",
    ]


def test_a_repeated_bulk_gives_the_same_requests(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [{"model": "risk", "ids": [person(number)]} for number in range(30)]
    operator, headers = desk.client("operator"), {"Idempotency-Key": "bulk-1"}
    real = filing.submit_request

    def dies_at_some(who: Any, one: filing.RequestInput) -> Any:
        if str(one.ids[0]) >= person(15):
            raise UnknownIdError("as if there had been a crash before it")
        return real(who, one)

    with monkeypatch.context() as patched:
        patched.setattr(filing, "submit_request", dies_at_some)
        half = operator.post(f"{URL}/bulk", json={"items": items}, headers=headers).json()
    first = operator.post(f"{URL}/bulk", json={"items": items}, headers=headers).json()
    again = operator.post(f"{URL}/bulk", json={"items": items}, headers=headers).json()
    assert [item["status"] for item in first["items"]] == [200] * 15 + [201] * 15
    assert [item["status"] for item in again["items"]] == [200] * 30
    ids = [[item["request"]["id"] for item in many["items"]] for many in (first, again)]
    assert [item["request"]["id"] for item in half["items"][:15]] == ids[0][:15]
    assert ids[0] == ids[1]
    assert desk.ledger.requests.count().total == 30


@pytest.mark.parametrize("n_before", [1, 2, 5])
def test_a_key_stands_for_one_list(desk: Desk, n_before: int) -> None:
    operator, headers = desk.client("operator"), {"Idempotency-Key": "list"}
    # The first is refused, and is no request: what was filed still has the key.
    people = ["unknown", *(person(number) for number in range(1, 6))]
    items = [{"model": "risk", "ids": [person_item]} for person_item in people]
    first = operator.post(f"{URL}/bulk", json={"items": items[: n_before + 1]}, headers=headers)
    assert first.json()["n_done"] == n_before
    others = (
        [*items[: n_before + 1], {"model": "risk", "ids": [person(9)]}],
        [{"model": "risk", "ids": [person(9)]}],
        [{"model": "forest", "ids": [1]}, *items[1:]],
        [{"model": "risk", "ids": [person(9)], "key": "own"}] * 2,
    )
    for other_item in others:
        answer = operator.post(f"{URL}/bulk", json={"items": other_item}, headers=headers)
        assert answer.status_code == 422, answer.text
    assert desk.ledger.requests.count().total == n_before


def test_a_key_stands_for_one_request_to_all_models(desk: Desk) -> None:
    operator = desk.client("operator")

    def post(key: str, model: str, person: int | str) -> int:
        body = {"model": model, "ids": [person]}
        return operator.post(URL, json=body, headers={"Idempotency-Key": key}).status_code

    assert [post("all", "*", person(1)), post("all", "*", person(1))] == [201, 200]
    assert [post("all", "*", 7), post("all", "*", person(2))] == [422, 422]
    assert [post("all", "risk", person(1)), post("all", "forest", 7)] == [422, 422]
    assert [post("one", "risk", person(1)), post("one", "*", 7)] == [201, 422]
    assert desk.ledger.requests.count().total == 2


def test_of_many_posts_at_once_with_one_key_one_is_new(desk: Desk) -> None:
    with ThreadPoolExecutor(8) as pool:
        posts = [pool.submit(_file, desk.client("operator"), 1, key="k") for _ in range(16)]
    assert sorted(post.result().status_code for post in posts) == [200] * 15 + [201]


def test_a_related_token_cannot_approve(desk: Desk) -> None:
    admin, large = desk.client("admin"), [person(number) for number in range(10, 14)]

    def made(by: TestClient, role: str) -> TestClient:
        answer = by.post("/api/v1/tokens", json={"name": role, "role": role})
        assert answer.status_code == 201, answer.text
        return TestClient(
            desk.app,
            base_url=str(by.base_url),
            headers={"Authorization": f"Bearer {answer.json()['token']}"},
        )

    second = made(admin, "admin")
    third = made(second, "approver")
    filed = _file(admin, 1, ids=large, verified=True).json()["id"]
    for own in (admin, second, third):
        assert _act(own, filed, "approve").status_code == 409
        assert "approve" not in own.get(f"{URL}/{filed}").json()["actions"]
    theirs = _file(second, 1, ids=[person(number) for number in range(4)], verified=True)
    assert _act(admin, theirs.json()["id"], "approve").status_code == 409
    other = desk.client("approver")
    assert "approve" in other.get(f"{URL}/{filed}").json()["actions"]
    assert _act(other, filed, "approve").status_code == 200


def test_what_one_call_vouches_for_counts_together(desk: Desk) -> None:
    operator = desk.client("operator")

    def bulk(*numbers: int, verified: bool = True) -> list[dict[str, Any]]:
        items = [
            {"model": "risk", "ids": [person(number)], "verified": verified} for number in numbers
        ]
        done = operator.post(f"{URL}/bulk", json={"items": items}).json()
        return [item["request"] for item in done["items"]]

    # Each person has two rows, and more than six need an approval.
    assert {item["state"] for item in bulk(1, 2, 3)} == {"queued"}
    waiting = bulk(4, 5, 6, 7)
    assert {item["state"] for item in waiting} == {"verified"}
    desk.work()
    assert desk.ledger.requests.get(waiting[0]["id"]).state == "verified"
    assert _act(desk.client("approver"), waiting[0]["id"], "approve").json()["state"] == "queued"
    received = bulk(10, 11, 12, 13, verified=False)
    assert {item["state"] for item in received} == {"received"}

    def verified(some: list[dict[str, Any]]) -> set[str]:
        body = {"action": "verify", "requests": [item["id"] for item in some]}
        done = operator.post(f"{URL}/actions", json=body).json()
        return {item["request"]["state"] for item in done["items"]}

    assert verified(received) == {"verified"}
    assert verified(bulk(14, 15, 16, verified=False)) == {"queued"}


def test_a_key_in_an_item_goes_before_the_key_of_all(desk: Desk) -> None:
    operator = desk.client("operator")
    alone = _file(operator, 1, key="own").json()["id"]
    items = [{"model": "risk", "ids": [person(1)], "key": "own"}] * 2
    done = operator.post(
        f"{URL}/bulk", json={"items": items}, headers={"Idempotency-Key": "bulk"}
    ).json()
    assert [item["request"]["id"] for item in done["items"]] == [alone, alone]
    assert [item["status"] for item in done["items"]] == [200, 200]


def test_no_caller_can_send_a_derive_key() -> None:
    key = filing.derive_key("bulk", "a", "b")
    assert not key.isprintable()
    assert key != filing.derive_key("bulk", "ab") != filing.derive_key("bulk", "a", "b")


def test_large_requests_wait_for_a_second_pair_of_eyes(desk: Desk) -> None:
    operator, approver = desk.client("operator"), desk.client("approver")
    people = [person(number) for number in range(4)]
    filed = _file(operator, 0, ids=people, verified=True).json()
    assert (filed["state"], filed["needs_approval"]) == ("verified", True)
    assert "approve" not in filed["actions"]
    assert _act(operator, filed["id"], "approve").status_code == 403
    shown = approver.get(f"{URL}/{filed['id']}").json()
    assert shown["actions"] == ["approve", "reject"]
    assert _act(approver, filed["id"], "approve").json()["state"] == "queued"


def test_a_token_cannot_approve_its_own_request(desk: Desk) -> None:
    admin = desk.client("admin")
    people = [person(number) for number in range(4)]
    filed = _file(admin, 0, ids=people, verified=True).json()
    assert "approve" not in filed["actions"]
    assert _act(admin, filed["id"], "approve").status_code == 409


def test_a_token_cannot_approve_what_it_verified(desk: Desk) -> None:
    people = [person(number) for number in range(4)]
    filed = _file(desk.client("operator"), 0, ids=people).json()
    admin, helper = desk.client("admin"), desk.client(None)
    made = admin.post("/api/v1/tokens", json={"name": "helper", "role": "approver"}).json()
    helper.headers["Authorization"] = f"Bearer {made['token']}"
    assert _act(admin, filed["id"], "verify").json()["state"] == "verified"
    assert _act(admin, filed["id"], "approve").status_code == 409
    assert _act(helper, filed["id"], "approve").status_code == 409, "of the same line"
    assert _act(desk.client("approver"), filed["id"], "approve").json()["state"] == "queued"


def test_an_action_on_many_needs_its_own_scope(desk: Desk) -> None:
    operator = desk.client("operator")
    ids = [_file(operator, number).json()["id"] for number in range(3)]
    body = {"action": "verify", "requests": [*ids[:2], "0" * 32, ids[0]]}
    assert desk.client("auditor").post(f"{URL}/actions", json=body).status_code == 403
    done = operator.post(f"{URL}/actions", json=body).json()
    assert [item["status"] for item in done["items"]] == [200, 200, 404, 409]
    assert (done["n_done"], done["n_refused"]) == (2, 2)
    rejected = {"action": "reject", "requests": [ids[2]]}
    assert operator.post(f"{URL}/actions", json=rejected).status_code == 422
    rejected |= {"ground": "gdpr.art12.6"}
    done = desk.client("approver").post(f"{URL}/actions", json=rejected).json()
    assert done["items"][0]["request"]["state"] == "rejected"


@pytest.mark.parametrize(
    ("action", "details"),
    [
        ("hold", {"ground": "gdpr.art17.3.e", "until": "2020-01-01"}),
        ("hold", {"ground": "because", "until": "2099-01-01"}),
        ("hold", {"ground": "gdpr.art17.3.e"}),
        ("hold", {"ground": "gdpr.art17.3.e", "until": 4_070_908_800}),
        ("tell", {"recipients": "3"}),
        ("reject", {"ground": "bad.code"}),
        ("tell", {"recipients": 0}),
        ("tell", {"recipients": 1, "name": "mallory"}),
    ],
)
def test_details_that_cannot_be_are_refused(
    shared_desk: Desk, action: str, details: dict[str, Any]
) -> None:
    operator = shared_desk.client("operator")
    request_id = _file(operator, 9, verified=True).json()["id"]
    assert _act(operator, request_id, action, **details).status_code == 422
    assert shared_desk.ledger.requests.get(request_id).state in ("queued", "duplicate")


def test_the_timeline_says_in_words_what_happened_and_who_did_it(desk: Desk) -> None:
    operator = desk.client("operator")
    request_id = _file(operator, 1).json()["id"]
    _act(operator, request_id, "verify")
    desk.work()
    entries = operator.get(f"{URL}/{request_id}/timeline").json()["items"]
    codes = [entry["code"] for entry in entries]
    assert codes[:3] == ["received", "verified", "queued"]
    assert codes[-1] in ("purged", "purge")
    by = {entry["code"]: entry["by"] for entry in entries}
    assert by["received"] == by["verified"] == desk.tokens["operator"].id
    assert by["applied"] is None
    assert all(entry["words"].endswith(".") and len(entry["words"]) > 9 for entry in entries)
    assert "1 person" in entries[0]["words"]


def test_a_requester_is_not_told_who_else_asked(desk: Desk) -> None:
    requester, operator = desk.client("requester"), desk.client("operator")
    first = _file(operator, 1, verified=True).json()["id"]
    mine = _file(requester, 1).json()["id"]
    _act(operator, mine, "verify")
    assert first in operator.get(f"{URL}/{mine}/timeline").text
    assert operator.get(f"{URL}/{mine}").json()["duplicate_of"] == first
    hidden = [requester.get(f"{URL}/{mine}{path}").text for path in ("", "/timeline")]
    assert not any(first in text or desk.tokens["operator"].id in text for text in hidden)
    assert requester.get(f"{URL}/{mine}").json()["state"] == "received"


def test_a_receipt_code_is_shown_once(desk: Desk) -> None:
    operator = desk.client("operator")
    first = _file(operator, 1, key="k", receipt=True)
    again = _file(operator, 1, key="k", receipt=True)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["receipt_code"].startswith("lethe-")
    assert again.json() == first.json() | {"receipt_code": None}
    own = _file(operator, 2, receipt_key="ab" * 32)
    assert (own.status_code, own.json()["receipt_code"]) == (201, None)
    both = _file(operator, 3, receipt=True, receipt_key="ab" * 32)
    many = _file(operator, 3, ids=[person(3), person(4)], receipt=True)
    assert (both.status_code, many.status_code) == (422, 422)


def test_racing_bulks_of_one_key_have_one_effect(desk: Desk) -> None:
    items = [{"model": "risk", "ids": [person(number)]} for number in range(20)]
    headers = {"Idempotency-Key": "race"}

    def send(_: int) -> list[str]:
        answer = desk.client("operator").post(f"{URL}/bulk", json={"items": items}, headers=headers)
        return [item["request"]["id"] for item in answer.json()["items"]]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(send, range(4)))
    assert all(item == results[0] for item in results)
    assert desk.ledger.requests.count().total == 20


def test_the_same_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    made = make_desk(tmp_path, database=postgres_url)
    try:
        operator, headers = made.client("operator"), {"Idempotency-Key": "k"}
        items = [{"model": "risk", "ids": [person(number)]} for number in range(10)]
        for status in (201, 200):
            done = operator.post(f"{URL}/bulk", json={"items": items}, headers=headers).json()
            assert [item["status"] for item in done["items"]] == [status] * 10
        ids = [item["request"]["id"] for item in done["items"]]
        body = {"action": "verify", "requests": ids}
        assert operator.post(f"{URL}/actions", json=body).json()["n_done"] == 10
        wish = {"model": "*", "ids": [person(1)]}
        assert len(_ids(operator.post(URL, json=wish))) == 1
        assert operator.get("/api/v1/summary").json()["n_open"] == 11
    finally:
        made.close()


def test_filters_and_pages_of_the_list(desk: Desk) -> None:
    operator = desk.client("operator")
    ids = [_file(operator, number).json()["id"] for number in range(5)]
    _act(operator, ids[0], "verify")
    pages, after = [], None
    while True:
        given = {"limit": 2, **({"after": after} if after else {})}
        page = operator.get(URL, params=given).json()
        pages.append([item["id"] for item in page["items"]])
        after = page["next"]
        if after is None:
            break
    assert sorted(item for page in pages for item in page) == sorted(ids)
    assert [len(page) for page in pages] == [2, 2, 1]
    queued = operator.get(URL, params={"state": ["queued", "applied"]}).json()
    assert [item["id"] for item in queued["items"]] == [ids[0]]
    document = operator.get(URL, params={"search": ids[3][:8]}).json()
    assert [item["id"] for item in document["items"]] == [ids[3]]
    for wrong in ({"after": "x"}, {"limit": 0}, {"limit": 201}, {"state": "lost"}, {"other": 1}):
        assert operator.get(URL, params=wrong).status_code == 422


def test_what_is_late_is_counted_late(desk: Desk) -> None:
    operator = desk.client("operator")
    _file(operator, 1)
    desk.clock.now = NOON + 40 * 86_400
    _file(operator, 2)
    shown = operator.get("/api/v1/summary").json()
    assert (shown["n_open"], shown["n_overdue"], shown["counts"]["received"]) == (2, 1, 2)
    assert [item["count"] for item in shown["by_days_left"]] == [1, 0, 0, 0, 1, 0]
    late = operator.get(URL, params={"overdue": True}).json()["items"]
    assert [item["is_overdue"] for item in late] == [True]
    assert late[0]["days_left"] < 0
    assert late[0]["due_on"] == shown["earliest_due_on"]
    assert "extend" not in late[0]["actions"]


def test_the_export_has_every_request_once(desk: Desk) -> None:
    operator = desk.client("operator")
    ids = [_file(operator, number).json()["id"] for number in range(3)]
    answer = operator.get(f"{URL}.csv", params={"order": "newest"})
    lines = list(csv.DictReader(io.StringIO(answer.text)))
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert sorted(line["id"] for line in lines) == sorted(ids)
    assert lines[0]["state"] == "received"


@examples(100)
@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_no_exported_cell_begins_a_formula(text: str) -> None:
    cell = export_cell(text)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert cell.removeprefix("'") == text.removeprefix("'")


def test_states_and_grounds_are_the_ledgers() -> None:
    schema = TypeAdapter(RequestOut).json_schema()["properties"]
    assert schema["state"]["enum"] == list(STATES)
    assert schema["actions"]["items"]["enum"] == list(ACTIONS)
    codes = {
        *REJECT_GROUNDS,
        *HOLD_GROUNDS,
        NO_DATA_HELD,
        *(code for of in REQUEST_GROUNDS.values() for code in of),
    }
    assert codes == GROUND_WORDS.keys()
    assert {scope for action in ACTIONS.values() for scope in action.scopes} <= SCOPES.keys()


@pytest.mark.parametrize(
    ("action", "after"),
    [
        ("hold", "on_hold"),
        ("reject", "rejected"),
        ("cancel", "cancelled"),
        ("answer", "closed"),
    ],
)
def test_the_table_permits_what_the_state_machine_does(action: ActionName, after: str) -> None:
    possible = {before for before, then in ALLOWED if then == after and before}
    assert {name for name, state in REQUEST_STATES.items() if action in state.actions} == possible


def test_every_event_of_a_request_has_words() -> None:
    plain = [
        describe_event(LogEntry(_noon(), kind, {}, None)) for kind in (*STATES, "something-new")
    ]
    assert plain[-1] == "Something new."
    assert all(len(words.split()) > 1 for words in plain)


def _noon() -> Any:
    return datetime.fromtimestamp(NOON, UTC)


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    made = make_desk(tmp_path_factory.mktemp("walk"))
    yield made
    made.close()


_STEPS = st.lists(st.sampled_from([name for name in ACTIONS if name != "hold"]), max_size=5)


@examples(40)
@given(person=st.integers(0, 39), verified=st.booleans(), steps=_STEPS)
def test_what_is_offered_works_and_what_is_not_offered_is_refused(
    walked: Desk, person: int, verified: bool, steps: list[ActionName]
) -> None:
    """Walk along actions: each that the answer offers succeeds, each other is refused.

    Hold is left out: it is refused, too, while another request erases one of its ids.
    """
    client = walked.client("operator")
    body = {"model": "forest", "ids": [person], "verified": verified}
    shown = client.post(URL, json=body).json()
    details: dict[str, dict[str, Any]] = {
        "reject": {"ground": "internal"},
        "tell": {"recipients": 1},
    }
    for action in steps:
        offered = action in shown["actions"]
        answer = _act(client, shown["id"], action, **details.get(action, {}))
        assert (answer.status_code == 200) == offered, (action, shown["state"])
        shown = client.get(f"{URL}/{shown['id']}").json()
