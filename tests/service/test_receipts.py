"""Receipts at the desk: a code decrypts one receipt, and reveals nothing else."""

import base64
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from letheon.ledger.certificates.receipt_codes import ReceiptCode, open_receipt, public_of
from letheon.verifier import Trust, check_receipt_commitment, open_envelope
from tests.service.desks import QUICK, Desk, make_desk, person

CHECK, SEALED = "/api/v1/receipts/check", "/api/v1/receipts/sealed"


def filed(desk: Desk, number: int, *, by: str = "operator", **more: Any) -> dict[str, Any]:
    body = {"model": "risk", "ids": [person(number)], "verified": True, "receipt": True} | more
    done = desk.client(by).post("/api/v1/requests", json=body)
    assert done.status_code == 201, done.text
    outcome: dict[str, Any] = (
        done.json()["requests"][0] if "requests" in done.json() else done.json()
    )
    return outcome


def check(desk: Desk, **body: str) -> Any:
    return desk.client(None).post(CHECK, json=body)


def test_a_person_follows_their_receipt(desk: Desk) -> None:
    filed_request = filed(desk, 1)
    code = filed_request["receipt_code"]
    waiting = check(desk, code=code)
    assert (waiting.status_code, waiting.json()["covered"]) == (200, False)
    desk.work()
    desk.ledger.log.checkpoint()
    verdict = check(desk, code=code.lower().replace("-", " ").replace("lethe ", "lethe-")).json()
    assert verdict.pop("words").startswith("Certificate 1, signed on 2027-01-15 (UTC), covers")
    assert verdict == {
        "covered": True,
        "certificate": 1,
        "certified_on": "2027-01-15",
        "purged_on": "2027-01-15",
        "guarantee": "exact",
        "in_log": True,
    }


def test_the_private_key_can_stay_with_the_person(desk: Desk) -> None:
    filed_request = filed(desk, 1)
    code = ReceiptCode.parse(filed_request["receipt_code"])
    asked = {"request": code.request, "public_key": code.public}
    client = desk.client(None)
    assert client.post(SEALED, json=asked).json() == {"sealed": None}
    desk.work()
    opened = open_receipt(code, base64.b64decode(client.post(SEALED, json=asked).json()["sealed"]))
    trust = Trust.from_pinned(desk.ledger.public_key)
    certificate = open_envelope(desk.ledger.certificates.envelope(1), trust)
    assert check_receipt_commitment(opened.receipt, certificate) == 2
    verdict = check(desk, receipt=opened.receipt.decode() + "\n").json()
    assert (verdict["covered"], verdict["certificate"]) == (True, 1)
    changed = opened.receipt.decode().replace('"slot":', '"slot":1')
    assert check(desk, receipt=changed).json()["covered"] is False


def test_a_person_may_draw_the_key(desk: Desk) -> None:
    private = os.urandom(32)
    filed_request = filed(desk, 1, receipt=False, receipt_key=public_of(private))
    assert filed_request["receipt_code"] is None
    desk.work()
    verdict = check(desk, code=str(ReceiptCode(filed_request["id"], private))).json()
    assert (verdict["covered"], verdict["certificate"]) == (True, 1)


def test_the_page_says_the_same(desk: Desk) -> None:
    code = filed(desk, 1)["receipt_code"]
    before = desk.client(None).post("/receipt", data={"code": code})
    desk.work()
    after = desk.client(None).post("/receipt", data={"code": f" {code}\n"})
    assert (before.status_code, "No certificate yet" in before.text) == (200, True)
    assert (after.status_code, "covers this receipt" in after.text) == (200, True)
    assert not any(word in after.text for word in ("risk", code, person(1)))


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, dict[str, str]]]:
    """A desk, and codes that no certificate covers, each for another reason."""
    desk = make_desk(tmp_path_factory.mktemp("states"))
    certified = ReceiptCode.parse(filed(desk, 1)["receipt_code"])
    desk.work()
    waiting = filed(desk, 2)["receipt_code"]
    unverified = filed(desk, 3, verified=False)["receipt_code"]
    cancelled = filed(desk, 4)
    desk.ledger.requests.cancel(cancelled["id"])
    yield (
        desk,
        {
            "unknown request": str(ReceiptCode(os.urandom(16).hex(), os.urandom(32))),
            "wrong key": str(ReceiptCode(certified.request, os.urandom(32))),
            "key of another request": str(ReceiptCode("0" * 32, certified.private)),
            "not certified": waiting,
            "not verified": unverified,
            "cancelled": cancelled["receipt_code"],
        },
    )
    desk.close()


def test_codes_without_certificate_are_answered_alike(states: Any) -> None:
    desk, codes = states
    answers = {name: check(desk, code=code) for name, code in codes.items()}
    texts = {answer.text for answer in answers.values()}
    headers = {str(sorted({**answer.headers}.keys())) for answer in answers.values()}
    assert {answer.status_code for answer in answers.values()} == {200}
    assert (len(texts), len(headers)) == (1, 1)
    assert "No certificate covers this code yet" in texts.pop()


def test_codes_without_certificate_cost_the_same_work(states: Any) -> None:
    """The same statements reach the database, and none of them brings anything back."""
    desk, codes = states
    engine = desk.ledger._core.database.engine
    seen: dict[str, list[str]] = {}
    for name, code in codes.items():
        statements: list[str] = []

        def note(*given: Any, into: list[str] = statements) -> None:
            into.append(given[2])

        event.listen(engine, "before_cursor_execute", note)
        check(desk, code=code)
        event.remove(engine, "before_cursor_execute", note)
        seen[name] = statements
    assert len({tuple(statements) for statements in seen.values()}) == 1
    assert sum("requests.receipt" in item for item in seen["wrong key"]) == 1


@pytest.mark.parametrize("name", ["unknown request", "wrong key", "not certified"])
def test_sealed_receipts_that_are_not_there_are_answered_alike(name: str, states: Any) -> None:
    desk, codes = states
    code = ReceiptCode.parse(codes[name])
    body = {"request": code.request, "public_key": code.public}
    done = desk.client(None).post(SEALED, json=body)
    assert (done.status_code, done.json()) == (200, {"sealed": None})


def test_an_answer_names_no_model_tenant_or_count(desk: Desk) -> None:
    code = filed(desk, 1, model="churn", tenant="rival")["receipt_code"]
    desk.work()
    text = check(desk, code=code).text
    assert '"covered":true' in text
    assert not any(
        word in text for word in ("churn", "rival", "rows", ReceiptCode.parse(code).request)
    )


@pytest.mark.parametrize(
    "body",
    [
        {"code": "lethe-12345"},
        {"code": "person-001@example.org"},
        {"receipt": "{{"},
        {"receipt": '{"certificate": 1}'},
        {"receipt": '{"a":"person-001"'},
    ],
)
def test_what_is_no_code_is_said_and_not_repeated(body: dict[str, str], states: Any) -> None:
    done = check(states[0], **body)
    assert (done.status_code, done.json()["type"]) == (422, "urn:letheon:problem:receipt-malformed")
    assert "person-001" not in done.text


@pytest.mark.parametrize(
    "receipt", ["{}", '{"certificate":null}', '{"certificate":"%s","rows":[]}' % ("0" * 64)]
)
def test_receipts_of_other_forms_are_not_covered(receipt: str, states: Any) -> None:
    done = check(states[0], receipt=receipt)
    assert (done.status_code, done.json()["covered"]) == (200, False)


@pytest.mark.parametrize("body", [{}, {"code": ""}, {"code": "a", "receipt": "{}"}, {"name": "a"}])
def test_bodies_of_other_forms_are_refused(body: dict[str, str], states: Any) -> None:
    assert check(states[0], **body).status_code == 422


def test_checks_are_limited_by_address(tmp_path: Path) -> None:
    desk = make_desk(tmp_path, settings=replace(QUICK, rate_receipt="3/minute"))
    code = str(ReceiptCode("0" * 32, os.urandom(32)))
    status_codes = [check(desk, code=code).status_code for _ in range(5)]
    status_codes.append(
        desk.client(None)
        .post(SEALED, json={"request": "0" * 32, "public_key": "0" * 64})
        .status_code
    )
    desk.close()
    assert status_codes == [200, 200, 200, 429, 429, 429]


def test_a_lost_code_is_replaced(desk: Desk) -> None:
    mine = filed(desk, 1, verified=False)
    path = f"/api/v1/requests/{mine['id']}/receipt-code"
    second = desk.client("operator@default").post(path)
    third = desk.client("operator").post(path)
    assert (second.status_code, third.status_code) == (201, 201)
    desk.ledger.requests.verify(mine["id"])
    desk.work()
    codes = [mine["receipt_code"], second.json()["code"], third.json()["code"]]
    assert [check(desk, code=code).json()["covered"] for code in codes] == [False, False, True]
    late = desk.client("operator").post(path)
    assert (late.status_code, late.json()["type"]) == (409, "urn:letheon:problem:wrong-state")


def test_who_gave_out_a_code_stands_in_the_log(desk: Desk) -> None:
    filed_request = filed(desk, 1, verified=False)
    desk.client("operator").post(f"/api/v1/requests/{filed_request['id']}/receipt-code")
    given = [
        request
        for request in desk.ledger.requests.timeline(filed_request["id"])
        if request.kind == "receipt-code"
    ]
    assert [item.details["by"] for item in given] == [desk.tokens["operator"].id]


@pytest.mark.parametrize(
    ("who", "status"),
    [
        (None, 401),
        ("auditor", 403),
        ("approver", 403),
        ("operator@rival", 404),
        ("requester", 403),
        ("requester@default", 403),
    ],
)
def test_others_get_no_code(who: str | None, status: int, shared_desk: Desk) -> None:
    request = shared_desk.ledger.requests.submit([person(9)], model="risk")
    done = shared_desk.client(who).post(f"/api/v1/requests/{request.id}/receipt-code")
    assert done.status_code == status


def test_the_desk_keeps_nothing_of_a_code(desk: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    code = filed(desk, 1)["receipt_code"]
    desk.work()
    check(desk, code=code)
    desk.close()
    said = "".join(capfd.readouterr())
    private = ReceiptCode.parse(code).private
    files = [path for path in desk.folder.rglob("*") if path.is_file()]
    content = b"".join(path.read_bytes() for path in files) + said.encode()
    assert len(files) > 10
    assert not any(item in content for item in (private, private.hex().encode(), code.encode()))


def test_receipts_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    desk = make_desk(tmp_path, database=postgres_url)
    code = filed(desk, 1)["receipt_code"]
    wrong = str(ReceiptCode(ReceiptCode.parse(code).request, os.urandom(32)))
    desk.work()
    verdicts = [check(desk, code=item).json()["covered"] for item in (code, wrong)]
    # A text that PostgreSQL cannot hold.
    verdicts.append(check(desk, receipt='{"certificate":"\\u0000"}').json()["covered"])
    desk.close()
    assert verdicts == [True, False, False]
