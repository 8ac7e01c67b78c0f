"""Certificates, the chain, the log, batches, residue and keys: what they say, and tampering."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text, update

from letheon.ledger.tables import certificates, checkpoints, events, purges
from letheon.service.routes.evidence import OWN_STORES
from letheon.verifier import (
    Trust,
    check_chain,
    check_consistency,
    check_inclusion,
    check_note,
    leaf_hash,
    open_envelope,
    read_note,
    transition_roots,
)
from tests.service.desks import Desk, make_desk, person

CHECKS = ("schema", "signature", "chain", "line", "log", "proof", "purge")


def _fill(desk: Desk) -> None:
    (desk.folder / "copies").mkdir()
    (desk.folder / "copies" / "old.csv").write_text("no ids")
    (desk.folder / "backups").mkdir()
    desk.ledger.stores.add("copies", desk.folder / "copies")
    desk.ledger.stores.add("backups", desk.folder / "backups", days=30)
    for ids, model, tenant in (
        ([person(1)], "risk", "default"),
        ([person(2)], "churn", "rival"),
        ([3], "forest", "default"),
        ([person(4)], "risk", "default"),
    ):
        desk.clock.now += 60
        desk.ledger.requests.submit(ids, model=model, tenant=tenant, verified=True)
        desk.work()
    desk.ledger.log.checkpoint()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk with four certificates, the second of the other tenant; tests do not change it."""
    desk = make_desk(tmp_path_factory.mktemp("filled"))
    _fill(desk)
    yield desk
    desk.close()


@pytest.fixture
def harmed(filled: Desk, tmp_path: Path) -> Iterator[Desk]:
    """A copy that a test may spoil."""
    import shutil

    from letheon.ledger import Ledger
    from letheon.service import create_app
    from tests.service.desks import QUICK

    home = tmp_path / "home"
    shutil.copytree(filled.ledger.folder, home)
    ledger = Ledger.open(home, clock=filled.clock)
    desk = Desk(tmp_path, ledger, filled.clock, create_app(ledger, QUICK), filled.tokens)
    yield desk
    ledger.close()


def get(desk: Desk, path: str, who: str = "auditor") -> Any:
    return desk.client(who).get(path).json()


def test_every_certificate_verifies(filled: Desk) -> None:
    for number in (1, 2, 3, 4):
        response = get(filled, f"/api/v1/certificates/{number}/verification")
        assert response["passed"] is True
        assert {check["check"]: check["passed"] for check in response["checks"]} == dict.fromkeys(
            CHECKS, True
        )
        assert response["key"] == filled.ledger.public_key


def _execute(desk: Desk, statement: Any) -> None:
    with desk.ledger._core.database.transaction() as conn:
        for (name,) in conn.execute(text("SELECT name FROM sqlite_master WHERE type='trigger'")):
            conn.execute(text(f"DROP TRIGGER {name}"))
        conn.execute(statement)


def _envelope(desk: Desk, number: int) -> bytes:
    return desk.ledger.certificates.envelope(number)


def _replace_certificate(desk: Desk, number: int, data: bytes) -> None:
    change = update(certificates).where(certificates.c.sequence == number)
    _execute(desk, change.values(envelope=data))


def _other_signature(desk: Desk) -> None:
    document = json.loads(_envelope(desk, 4))
    signature = bytearray(base64.b64decode(document["signatures"][0]["sig"]))
    signature[0] ^= 1
    document["signatures"][0]["sig"] = base64.b64encode(bytes(signature)).decode()
    _replace_certificate(desk, 4, json.dumps(document, separators=(",", ":")).encode())


def _other_claim(desk: Desk) -> None:
    document = json.loads(_envelope(desk, 4))
    payload = base64.b64decode(document["payload"]).replace(b'"rows":2', b'"rows":3')
    document["payload"] = base64.b64encode(payload).decode()
    _replace_certificate(desk, 4, json.dumps(document, separators=(",", ":")).encode())


def _free_text(desk: Desk) -> None:
    document = json.loads(_envelope(desk, 4))
    payload = base64.b64decode(document["payload"]).replace(
        b'"_type":', b'"_note":"ask Ann","_type":'
    )
    document["payload"] = base64.b64encode(payload).decode()
    _replace_certificate(desk, 4, json.dumps(document, separators=(",", ":")).encode())


def _swapped(desk: Desk) -> None:
    _replace_certificate(desk, 4, _envelope(desk, 3))


def _dropped_before(desk: Desk) -> None:
    _replace_certificate(desk, 3, _envelope(desk, 1))


def _other_line(desk: Desk) -> None:
    _replace_certificate(desk, 1, _envelope(desk, 2))


def _other_event(desk: Desk) -> None:
    place = desk.ledger.certificates.get(4).log_index
    with desk.ledger._core.database.reading() as conn:
        body = conn.scalar(select(events.c.body).where(events.c.log_index == place))
    changed = str(body).replace('"sequence":4', '"sequence":5')
    assert changed != body
    _execute(desk, update(events).where(events.c.log_index == place).values(body=changed))


def _other_root(desk: Desk) -> None:
    with desk.ledger._core.database.reading() as conn:
        size, note = conn.execute(
            select(checkpoints.c.size, checkpoints.c.note).order_by(checkpoints.c.size.desc())
        ).first() or (0, "")
    lines = str(note).split("\n")
    lines[2] = base64.b64encode(bytes(32)).decode()
    change = update(checkpoints).where(checkpoints.c.size == size)
    _execute(desk, change.values(note="\n".join(lines)))


def _proof_path(desk: Desk) -> Path:
    digest = json.loads(base64.b64decode(json.loads(_envelope(desk, 4))["payload"]))["predicate"][
        "dataset"
    ]["transitionProof"]["sha256"]
    return next((desk.ledger.folder / "proofs").rglob(f"{digest}.json"))


def _other_proof(desk: Desk) -> None:
    path = _proof_path(desk)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b"a", b"b", 1))


def _no_proof(desk: Desk) -> None:
    _proof_path(desk).unlink()


def _other_purge(desk: Desk) -> None:
    change = update(purges).where(purges.c.sequence == 4)
    _execute(desk, change.values(envelope=desk.ledger.certificates.purge_attestation(3)))


@pytest.mark.parametrize(
    ("spoil", "seen_by"),
    [
        (_other_signature, "signature"),
        (_other_claim, "signature"),
        (_free_text, "schema"),
        (_swapped, "signature"),
        (_dropped_before, "chain"),
        (_other_line, "line"),
        (_other_event, "log"),
        (_other_root, "log"),
        (_other_proof, "proof"),
        (_no_proof, "proof"),
        (_other_purge, "purge"),
    ],
)
def test_tampering_is_seen_by_the_check_that_is_for_it(
    harmed: Desk, spoil: Callable[[Desk], None], seen_by: str
) -> None:
    spoil(harmed)
    response = get(harmed, "/api/v1/certificates/4/verification")
    failed = {
        check["check"]: check["reason"] for check in response["checks"] if check["passed"] is False
    }
    assert response["passed"] is False
    assert seen_by in failed
    assert str(harmed.folder) not in json.dumps(response)


def test_a_damaged_byte_anywhere_fails_and_is_no_mistake_of_the_desk(harmed: Desk) -> None:
    envelope = _envelope(harmed, 4)
    client = harmed.client("auditor")
    for place in range(0, len(envelope), 611):
        damaged = envelope[:place] + bytes([envelope[place] ^ 1]) + envelope[place + 1 :]
        _replace_certificate(harmed, 4, damaged)
        response = client.get("/api/v1/certificates/4/verification")
        assert (response.status_code, response.json()["passed"]) == (200, False)
        assert client.get("/api/v1/certificates/4").status_code in (200, 409)
        assert client.get("/api/v1/chain").json()["is_whole"] is False


def test_the_chain_shows_where_it_is_broken(harmed: Desk) -> None:
    assert get(harmed, "/api/v1/chain")["is_whole"] is True
    _other_signature(harmed)
    _dropped_before(harmed)
    response = get(harmed, "/api/v1/chain")
    assert response["is_whole"] is False
    shown = {item["sequence"]: (item["is_linked"], item["is_signed"]) for item in response["items"]}
    assert shown == {4: (False, False), 3: (False, False), 2: (True, True), 1: (True, True)}


def test_before_the_purge_and_the_next_checkpoint_nothing_has_failed(desk: Desk) -> None:
    from letheon.ledger.worker.compute import compute
    from letheon.ledger.worker.worker import run_once

    desk.ledger.requests.submit([person(1)], model="risk", verified=True)
    for step in run_once(desk.ledger._core, "test", compute, forced=True):
        if step.what == "certified":
            break
    response = get(desk, "/api/v1/certificates/1/verification")
    states = {check["check"]: check["passed"] for check in response["checks"]}
    assert (response["verdict"], response["passed"]) == ("incomplete", False)
    assert (states["purge"], states["signature"]) == (None, True)
    assert desk.client("auditor").get("/api/v1/certificates/1/purge").status_code == 404
    waiting = get(desk, "/api/v1/residue")["purges"][0]
    assert (waiting["state"], waiting["cells"]) == ("waiting", [])


def test_downloads_are_the_bytes_that_a_stranger_verifies(filled: Desk) -> None:
    client = filled.client("auditor")
    keys = client.get("/api/v1/keys").json()
    trust = Trust.from_pinned(
        keys["pinned"], [statement.encode() for statement in keys["statements"]]
    )
    envelopes = [client.get(f"/api/v1/certificates/{n}/envelope").content for n in (1, 2, 3, 4)]
    chain = check_chain(envelopes, trust)
    for opened in chain:
        proof = client.get(f"/api/v1/certificates/{opened.sequence}/proof")
        before, after, rows = transition_roots(proof.content)
        data = opened.predicate["dataset"]
        assert (before.hex(), after.hex()) == (data["rootBefore"], data["rootAfter"])
        assert rows == opened.predicate["erasure"]["rows"]
        purge = client.get(f"/api/v1/certificates/{opened.sequence}/purge")
        assert open_envelope(purge.content, trust).sequence == opened.sequence
        assert f"purge-{opened.sequence:06d}.json" in purge.headers["content-disposition"]


def test_keys_follow_a_rotation(harmed: Desk) -> None:
    harmed.ledger.keys.rotate()
    response = get(harmed, "/api/v1/keys")
    assert [key["state"] for key in response["keys"]] == ["retired", "current"]
    trust = Trust.from_pinned(
        response["pinned"], [statement.encode() for statement in response["statements"]]
    )
    assert trust.current == response["keys"][1]["keyid"]


def test_proofs_of_the_log_hold(filled: Desk) -> None:
    checkpoint = get(filled, "/api/v1/checkpoints/latest")
    note = read_note(checkpoint["note"])
    check_note(note, Trust.from_pinned(filled.ledger.public_key))
    for number in (1, 2, 3, 4):
        path = f"/api/v1/log/inclusion?certificate={number}&size={note.size}"
        response = get(filled, path)
        proof = [bytes.fromhex(item) for item in response["path"]]
        check_inclusion(
            bytes.fromhex(response["leaf"]), response["index"], note.size, proof, note.root
        )
        event = json.dumps(response["event"], sort_keys=True, separators=(",", ":")).encode()
        assert leaf_hash(event).hex() == response["leaf"]
        assert response["event"]["sequence"] == number
    response = get(filled, f"/api/v1/log/consistency?first=3&second={note.size}")
    proof = [bytes.fromhex(item) for item in response["path"]]
    roots = (bytes.fromhex(response[name]) for name in ("root1", "root2"))
    first, second = roots
    check_consistency(3, first, note.size, second, proof)
    assert second == note.root


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/log/inclusion", 422),
        ("/api/v1/log/inclusion?index=99999", 404),
        ("/api/v1/log/inclusion?index=3&size=2", 404),
        ("/api/v1/log/inclusion?certificate=99", 404),
        ("/api/v1/log/consistency?first=9&second=3", 404),
        ("/api/v1/log/consistency?first=-1", 422),
        (f"/api/v1/certificates/{2**63}", 422),
        ("/api/v1/certificates/0", 422),
        ("/api/v1/certificates?after=made-up", 422),
        ("/api/v1/chain?after=made-up", 422),
        ("/api/v1/batches?after=made-up", 422),
        ("/api/v1/batches/" + "0" * 64, 404),
    ],
)
def test_what_is_not_there_is_refused(filled: Desk, path: str, status: int) -> None:
    answer = filled.client("auditor").get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


def test_another_tenants_certificate_is_like_none(filled: Desk) -> None:
    client = filled.client("auditor@rival")

    def told(path: str) -> tuple[int, dict[str, Any]]:
        answer = client.get(path)
        return answer.status_code, {k: v for k, v in answer.json().items() if k != "instance"}

    for end in ("", "/envelope", "/proof", "/purge", "/verification"):
        missing = told(f"/api/v1/certificates/99{end}")
        assert missing[0] == 404
        assert told(f"/api/v1/certificates/2{end}") == missing
        assert client.get(f"/api/v1/certificates/1{end}").status_code == 200
    batch = filled.ledger.certificates.get(1).batch
    assert told(f"/api/v1/batches/{batch}") == told(f"/api/v1/batches/{'0' * 64}")


def test_lists_of_a_tenant_hold_only_its_own(filled: Desk) -> None:
    client = filled.client("auditor@rival")
    page = client.get("/api/v1/certificates").json()
    assert [item["sequence"] for item in page["items"]] == [1]
    assert page["total"] == 1
    assert {item["tenant"] for item in client.get("/api/v1/batches").json()["items"]} == {"rival"}
    assert [purge["certificate"] for purge in client.get("/api/v1/residue").json()["purges"]] == [1]
    assert client.get("/api/v1/certificates?tenant=default").status_code == 404


def test_no_size_of_the_whole_ledger_is_told_to_a_tenant(filled: Desk) -> None:
    def told(name: str, number: int) -> tuple[Any, ...]:
        client = filled.client(name)
        checks = client.get(f"/api/v1/certificates/{number}/verification").json()["checks"]
        log = next(check for check in checks if check["check"] == "log")
        request = client.get("/api/v1/requests?tenant=rival").json()["items"][0]["id"]
        entries = client.get(f"/api/v1/requests/{request}/timeline").json()["items"]
        places = {entry["log_index"] for entry in entries}
        stores = {store["name"] for store in client.get("/api/v1/residue").json()["stores"]}
        assert log["passed"] is True
        return log["reason"], places, stores

    (filled.folder / "new").mkdir()
    filled.ledger.stores.add("new", filled.folder / "new")
    try:
        reason, places, stores = told("auditor@rival", 1)
        assert (re.search(r"\d", reason), places) == (None, {None})
        assert "store:new" not in stores, "no attestation of theirs names it"
        assert set(OWN_STORES) < stores
        reason, places, stores = told("auditor", 2)
        assert re.search(r"entry \d+ of the signed log with \d+", reason)
        assert None not in places
        assert "store:new" in stores
    finally:
        filled.ledger.stores.remove("new")


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/chain",
        "/api/v1/checkpoints/latest",
        "/api/v1/log/inclusion?index=0",
        "/api/v1/log/consistency?first=1",
        "/api/v1/bundle",
    ],
)
def test_what_concerns_all_tenants_needs_a_token_for_all(filled: Desk, path: str) -> None:
    answer = filled.client("admin@default").get(path)
    assert answer.status_code == 403
    assert answer.json()["type"] == "urn:letheon:problem:needs-unbound-token"


def test_pages_of_certificates_are_the_whole_list(filled: Desk) -> None:
    for path in ("/api/v1/certificates", "/api/v1/chain"):
        items, after = [], ""
        while after is not None:
            page = get(filled, f"{path}?limit=3{after and '&after=' + after}")
            items += [item["sequence"] for item in page["items"]]
            after = page["next"]
        assert items == [4, 3, 2, 1]


def test_a_certificate_in_words(filled: Desk) -> None:
    response = get(filled, "/api/v1/certificates/4")
    assert (response["model"], response["version"], response["rows"]) == ("risk", 2, 2)
    assert response["statement"]["predicate"]["erasure"]["rows"] == 2
    assert response["previous"] == get(filled, "/api/v1/certificates/3")["id"]
    assert {"code", "words"} == set(response["not_claimed"][0])
    assert json.loads(response["envelope"])["payloadType"] == "application/vnd.in-toto+json"
    assert "person-" not in json.dumps(response)


def test_residue_is_what_the_attestations_say(filled: Desk) -> None:
    response = get(filled, "/api/v1/residue?limit=1")
    newest = response["purges"][0]
    assert (newest["certificate"], newest["state"], newest["hits"]) == (4, "purged", 0)
    cells = {cell["store"]: cell for cell in newest["cells"]}
    assert set(OWN_STORES) | {"store:copies", "store:backups"} == set(cells)
    assert cells["store:copies"]["files"] == 1
    assert cells["store:copies"]["bytes"] == len("no ids")
    assert (cells["store:backups"]["state"], cells["store:backups"]["at"]) == ("expires", None)
    assert [store_item["name"] for store_item in response["stores"]] == [
        *OWN_STORES,
        "store:backups",
        "store:copies",
    ]
    scopes = {store_item["name"]: store_item["scope"] for store_item in response["stores"]}
    said = json.loads(
        base64.b64decode(json.loads(filled.ledger.certificates.purge_attestation(4))["payload"])
    )
    for store in said["predicate"]["stores"]:
        assert scopes[store["store"]] == store["scope"]
    rest = get(filled, f"/api/v1/residue?after={response['next']}")
    assert [purge["certificate"] for purge in rest["purges"]] == [3, 2, 1]


def test_a_store_that_was_taken_off_the_list_is_still_on_the_map(harmed: Desk) -> None:
    harmed.ledger.stores.remove("copies")
    stores = {store["name"]: store for store in get(harmed, "/api/v1/residue")["stores"]}
    assert stores["store:copies"]["is_registered"] is False
    assert stores["store:backups"]["is_registered"] is True


def test_batches_have_counts_and_no_ids(filled: Desk) -> None:
    batches = get(filled, "/api/v1/batches?model=risk")["items"]
    assert [(item["certificate"], item["n_requests"], item["n_rows"]) for item in batches] == [
        (4, 1, 2),
        (1, 1, 2),
    ]
    assert get(filled, f"/api/v1/batches/{batches[0]['id']}") == batches[0]


ROUTES = (
    "models",
    "models/risk",
    "models/risk/versions",
    "models/risk/versions/1",
    "models/risk/compare?a=0&b=1",
    "models/risk/history",
    "batches",
    "certificates",
    "certificates/1",
    "certificates/1/verification",
    "certificates/1/proof",
    "certificates/1/purge",
    "chain",
    "checkpoints/latest",
    "log/inclusion?certificate=1",
    "log/consistency?first=1",
    "residue",
    "keys",
    "bundle?tier=auditor",
)


def test_all_of_it_works_over_postgresql(postgres_url: str, tmp_path: Path) -> None:
    desk = make_desk(tmp_path, database=postgres_url)
    desk.ledger.requests.submit([person(1)], model="risk", verified=True)
    desk.work()
    desk.ledger.log.checkpoint()
    client = desk.client("admin")
    by_name = {route: client.get(f"/api/v1/{route}").status_code for route in ROUTES}
    assert by_name == dict.fromkeys(ROUTES, 200)
    assert get(desk, "/api/v1/certificates/1/verification")["passed"] is True
    assert get(desk, "/api/v1/models/risk")["storage"]["database"] > 0
    desk.close()
