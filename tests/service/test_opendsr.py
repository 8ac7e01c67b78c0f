"""OpenDSR: erasures of controllers, in every model that knows the person, with signed answers."""

import base64
import hashlib
import json
import uuid
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from sqlalchemy import insert

from letheon.ledger.tables import webhooks
from letheon.service.routes import opendsr
from letheon.service.routes.opendsr import FOLDER, load_answer_key
from tests.service.desks import OTHER, Desk, person

URL = "/opendsr/v2/requests"


def _body(value: str, format_: str = "raw", **more: Any) -> dict[str, Any]:
    return {
        "subject_request_id": str(uuid.uuid4()),
        "subject_request_type": "erasure",
        "submitted_time": "2026-11-02T15:00:00Z",
        "regulation": "gdpr",
        "subject_identities": [
            {
                "identity_type": "controller_customer_id",
                "identity_value": value,
                "identity_format": format_,
            }
        ],
        **more,
    }


def _status(desk: Desk, body: dict[str, Any], who: str = "operator") -> Any:
    return desk.client(who).get(f"{URL}/{body['subject_request_id']}")


def test_an_erasure_goes_from_pending_to_completed(desk: Desk) -> None:
    operator, body = desk.client("operator"), _body(person(5))
    sent = operator.post(URL, json=body)
    assert sent.status_code == 201
    received = sent.json()
    assert received["subject_request_id"] == body["subject_request_id"]
    assert json.loads(base64.b64decode(received["encoded_request"])) == body
    assert received["expected_completion_time"] > received["received_time"]
    assert _status(desk, body).json()["request_status"] == "pending"
    desk.work()
    done = _status(desk, body).json()
    assert (done["request_status"], done["results_count"]) == ("completed", 2)
    assert done["extensions"]["localhost"][0]["version"] == "risk@1"


@pytest.mark.parametrize("format_", ["raw", "sha256", "sha1", "md5"])
@pytest.mark.parametrize(("person_id", "model"), [(person(6), "risk"), ("6", "forest")])
def test_each_format_finds_texts_and_numbers(
    shared_desk: Desk, format_: str, person_id: str, model: str
) -> None:
    value = person_id if format_ == "raw" else hashlib.new(format_, person_id.encode()).hexdigest()
    operator, body = shared_desk.client("operator"), _body(value, format_)
    assert operator.post(URL, json=body).status_code == 201
    parts = _status(shared_desk, body).json()["extensions"]["localhost"]
    assert [part["model"] for part in parts] == [model]
    assert shared_desk.ledger.requests.get(parts[0]["request"]).n_ids == 1


def test_neither_a_hash_nor_an_id_is_kept(desk: Desk) -> None:
    digest = hashlib.sha256(person(8).encode()).hexdigest()
    assert desk.client("operator").post(URL, json=_body(digest, "sha256")).status_code == 201
    files = [path for path in desk.folder.rglob("*") if path.is_file()]
    assert not any(digest.encode() in path.read_bytes() for path in files)


@pytest.mark.parametrize("format_", ["raw", "sha256"])
def test_a_repeat_gives_the_same_requests_also_after_the_erasure(desk: Desk, format_: str) -> None:
    value = person(9) if format_ == "raw" else hashlib.sha256(person(9).encode()).hexdigest()
    operator, body = desk.client("operator"), _body(value, format_)
    first = operator.post(URL, json=body)
    assert operator.post(URL, json=body).json() == first.json()
    desk.work()
    again = operator.post(URL, json=body)
    assert (again.status_code, again.json()) == (201, first.json())
    assert desk.ledger.requests.count().total == 1


@pytest.mark.parametrize("other", [person(11), "12"])
def test_an_id_is_not_used_for_two_people(desk: Desk, other: str) -> None:
    operator, body = desk.client("operator"), _body(person(10))
    assert operator.post(URL, json=body).status_code == 201
    swapped = _body(other) | {"subject_request_id": body["subject_request_id"]}
    refused = operator.post(URL, json=swapped)
    assert (refused.status_code, refused.json()["type"]) == (400, "urn:letheon:problem:key-used")
    assert desk.ledger.requests.count().total == 1


def test_a_pending_erasure_can_be_withdrawn(desk: Desk) -> None:
    operator, body = desk.client("operator"), _body(person(3))
    operator.post(URL, json=body)
    place = f"{URL}/{body['subject_request_id']}"
    assert operator.delete(place).status_code == 202
    assert operator.delete(place).status_code == 202
    assert _status(desk, body).json()["request_status"] == "cancelled"
    done = _body(person(4))
    operator.post(URL, json=done)
    desk.work()
    assert operator.delete(f"{URL}/{done['subject_request_id']}").status_code == 409


def test_senders_without_vouching_wait_for_a_verification(desk: Desk) -> None:
    requester, body = desk.client("requester"), _body(person(3))
    assert requester.post(URL, json=body).status_code == 201
    part = _status(desk, body, "requester").json()["extensions"]["localhost"][0]
    assert part["state"] == "received"
    assert _status(desk, body, "operator").status_code == 200
    assert requester.delete(f"{URL}/{body['subject_request_id']}").status_code == 202


@pytest.mark.parametrize("who", ["requester", f"admin@{OTHER}"])
def test_anothers_erasure_is_as_if_it_were_not_there(desk: Desk, who: str) -> None:
    body = _body(person(3))
    desk.client("operator").post(URL, json=body)
    stranger = desk.client(who)
    for method in ("GET", "DELETE"):
        there = stranger.request(method, f"{URL}/{body['subject_request_id']}")
        absent = stranger.request(method, f"{URL}/{uuid.uuid4()}")
        assert there.status_code == absent.status_code == 404
        assert {**there.json(), "instance": ""} == {**absent.json(), "instance": ""}
    assert desk.ledger.requests.count().by_state["cancelled"] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"subject_request_type": "access"},
        {"subject_request_id": "A7551968-D5D6-44B2-9831-815AC9017798"},
        {"subject_request_id": str(uuid.UUID(int=0))},
        {"submitted_time": "yesterday"},
        {"submitted_time": 1_700_000_000},
        {"submitted_time": "2026-11-02T15:00:00"},
        {"subject_identities": []},
        {"regulation": "lgpd"},
        {"status_callback_urls": ["http://169.254.169.254/"]},
        {"subject_identities": [{"identity_type": "email", "identity_value": "a@example.org"}]},
        {
            "subject_identities": [
                {"identity_type": "controller_customer_id", "identity_value": "mallory"}
            ]
        },
    ],
)
def test_what_cannot_be_done_is_refused_with_400(shared_desk: Desk, change: dict[str, Any]) -> None:
    before = shared_desk.ledger.requests.count().total
    answer = shared_desk.client("operator").post(URL, json=_body(person(1)) | change)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert "person-" not in answer.text
    assert "example.org" not in answer.text
    assert shared_desk.ledger.requests.count().total == before


def test_callbacks_go_only_where_a_webhook_goes(desk: Desk) -> None:
    address = "https://hooks.example.org/a"
    row = {"id": "w1", "tenant": OTHER, "url": address, "events": "[]", "created_at": 0}
    with desk.ledger._core.database.transaction() as conn:
        conn.execute(insert(webhooks).values(row | {"created_by": None}))
    body = _body(person(2), status_callback_urls=[address])
    assert desk.client("operator").post(URL, json=body).status_code == 400
    assert desk.client(f"operator@{OTHER}").post(URL, json=body).status_code == 201


def test_answers_are_signed_by_the_certified_key_of_the_ledger(desk: Desk) -> None:
    operator, body = desk.client("operator"), _body(person(5))
    discovery = operator.get("/opendsr/v2/discovery").json()
    assert discovery["supported_subject_request_types"] == ["erasure"]
    pem = operator.get(discovery["processor_certificate"].removeprefix("http://localhost")).content
    key = x509.load_pem_x509_certificate(pem).public_key()
    assert isinstance(key, ed25519.Ed25519PublicKey)
    assert key.public_bytes_raw().hex() == desk.ledger.public_key
    for answer in (operator.post(URL, json=body), _status(desk, body)):
        assert answer.headers["x-opendsr-processor-domain"] == "localhost"
        key.verify(base64.b64decode(answer.headers["x-opendsr-signature"]), answer.content)


def _write_key(desk: Desk, key: Any, *, certified: Any = None) -> None:
    folder = desk.ledger.folder / FOLDER
    folder.mkdir()
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "key.pem").write_bytes(pem)
    (folder / "key.pem").chmod(0o600)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "desk.example.org")])
    begin, end = stamp_dates()
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key((certified or key).public_key())
        .serial_number(7)
        .not_valid_before(begin)
        .not_valid_after(end)
        .sign(certified or key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(built.public_bytes(serialization.Encoding.PEM))


def stamp_dates() -> Any:
    from datetime import UTC, datetime

    return datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)


def _rsa() -> Any:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def test_an_operators_rsa_key_signs_as_the_specification_says(desk: Desk) -> None:
    key = _rsa()
    _write_key(desk, key)
    answer = desk.client("operator").post(URL, json=_body(person(5)))
    signature = base64.b64decode(answer.headers["x-opendsr-signature"])
    key.public_key().verify(signature, answer.content, padding.PKCS1v15(), hashes.SHA256())
    assert answer.status_code == 201


def test_an_operators_curve_key_signs_too(desk: Desk) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    _write_key(desk, key)
    signature = load_answer_key(desk.ledger, "localhost").sign(b"{}")
    key.public_key().verify(base64.b64decode(signature), b"{}", ec.ECDSA(hashes.SHA256()))
    assert signature


@pytest.mark.parametrize("fault", ["open", "other", "damaged", "short"])
def test_without_a_usable_key_nothing_is_filed(desk: Desk, fault: str) -> None:
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    key = short if fault == "short" else ec.generate_private_key(ec.SECP256R1())
    other = ec.generate_private_key(ec.SECP256R1())
    _write_key(desk, key, certified=other if fault == "other" else None)
    place = desk.ledger.folder / FOLDER / "key.pem"
    if fault == "open":
        place.chmod(0o644)
    if fault == "damaged":
        place.write_bytes(b"-----BEGIN nothing")
    answer = desk.client("operator").post(URL, json=_body(person(5)))
    assert (answer.status_code, desk.ledger.requests.count().total) == (503, 0)
    assert str(desk.folder) not in answer.text


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        (["pending", "pending"], "pending"),
        (["pending", "completed"], "in_progress"),
        (["completed", "cancelled"], "completed"),
        (["cancelled", "cancelled"], "cancelled"),
        (["in_progress", "pending", "cancelled"], "in_progress"),
    ],
)
def test_the_status_of_several_models_is_that_of_the_last(parts: Any, whole: str) -> None:
    assert opendsr.combine_statuses(parts) == whole
