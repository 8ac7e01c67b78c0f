"""Certificates are counted for each tenant: what a tenant sees tells nothing of the others."""

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from letheon.ledger.db.cursor import decode_cursor, encode_cursor
from letheon.ledger.db.webhooks import Webhooks
from letheon.ledger.tables import deliveries
from letheon.service.auth import CertificateNumbers
from tests.service.desks import OTHER, QUICK, Desk, make_desk, person

HOOK = "http://127.0.0.1:9"
SETTINGS = replace(QUICK, webhook_hosts=({"host": HOOK, "internal": True},))
_RANDOM = re.compile(r"[0-9a-f]{12,64}|lethe-[0-9A-Z-]+|(?<=\")[\w-]{43}(?=\")|[\d.]+ ms|msg_\w+")
# A speed that is a whole number is a measured one, too.
_TIMES = re.compile(r'\d+\.\d+(e-\d+)?|(?<="value":")\d+(?=")|\d+(?=×)')
API = (
    "requests",
    "requests.csv",
    "requests?search=%231",
    "requests?search=%232",
    "requests?search=%233",
    "certificates",
    "certificates?limit=1",
    "certificates/1",
    "certificates/2",
    "certificates/3",
    "certificates/1/verification",
    "certificates/2/verification",
    "certificates/4/envelope",
    "batches",
    "batches?limit=1",
    "models",
    "models/risk",
    "models/risk/versions",
    "models/risk/history",
    "models/risk/compare?a=0&b=1",
    "residue",
    "residue?limit=1",
    "residue?after=2",
    "keys",
    "jobs",
    "audits",
)
PAGES = ("/", "/requests?state=all", "/certificates", "/certificates/1?verify=true", "/residue")


def erase(desk: Desk, tenant: str, model: str, number: int) -> dict[str, Any]:
    client = desk.client(f"operator@{tenant}")
    body = {"model": model, "ids": [person(number)], "verified": True, "receipt": True}
    made: dict[str, Any] = client.post("/api/v1/requests", json=body).json()
    desk.work()
    desk.clock.now += 60
    return made


def story(folder: Path, *, others: bool) -> tuple[Desk, list[dict[str, Any]]]:
    """Two erasures of the tenant `default`, with two of another one between them or not."""
    desk = make_desk(folder, settings=SETTINGS)
    hook = {"url": f"{HOOK}/x", "events": ["certified", "retrained"]}
    assert desk.client("admin@default").post("/api/v1/webhooks", json=hook).status_code == 201
    made = [erase(desk, "default", "risk", 0)]
    for number in (0, 1):
        if others:
            erase(desk, OTHER, "churn", number)
        else:
            desk.clock.now += 60
    made.append(erase(desk, "default", "risk", 1))
    return desk, made


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[tuple[Desk, list[dict[str, Any]]]]]:
    made = [
        story(tmp_path_factory.mktemp(f"numbers-{others}"), others=others)
        for others in (False, True)
    ]
    yield made
    for desk, _ in made:
        desk.close()


def plain(text: str) -> str:
    """Return a text without what is random or measured."""
    return re.sub(
        r'"(next|seconds|blobs|proofs)":[^,}]+', "", _TIMES.sub("T", _RANDOM.sub("R", text))
    )


def seen(desk: Desk, made: list[dict[str, Any]], who: str = "admin@default") -> dict[str, str]:
    """Return everything that a tenant's token gets; not the files that were signed."""
    client, browser = desk.client(who), desk.browser(who)
    values = {}
    paths = [f"/api/v1/{path}" for path in API]
    paths += [f"/api/v1/requests/{item['id']}{end}" for item in made for end in ("", "/timeline")]
    for number, path in enumerate(paths):
        answer = client.get(path)
        values[f"{number} {plain(path)}"] = f"{answer.status_code} {plain(answer.text)}"
    for path in PAGES:
        answer = browser.get(path)
        assert answer.status_code == 200, path
        values[path] = plain(answer.text)
    for number, one in enumerate(made):
        checked = desk.client(None).post(
            "/api/v1/receipts/check", json={"code": one["receipt_code"]}
        )
        assert checked.json()["covered"]
        values[f"receipt {number}"] = plain(checked.text)
    Webhooks(desk.ledger).write_new_messages()
    with desk.ledger._core.database.reading() as conn:
        bodies = [json.loads(item) for item in conn.scalars(select(deliveries.c.body))]
    values["webhooks"] = str(sorted(body["data"]["certificate"] for body in bodies))
    return values


def test_a_tenant_sees_the_same_whatever_others_do(both: Any) -> None:
    alone, among = (seen(desk, made) for desk, made in both)
    assert alone.keys() == among.keys()
    for name in alone:
        assert alone[name] == among[name], name
    assert alone["webhooks"] == "[1, 2]"


def test_numbers_of_the_ledger_lead_nowhere(both: Any) -> None:
    desk, made = both[1]
    assert desk.client("admin").get(f"/api/v1/requests/{made[1]['id']}").json()["certificate"] == 4
    tenant = desk.client("admin@default")
    assert tenant.get(f"/api/v1/requests/{made[1]['id']}").json()["certificate"] == 2
    for number, status in ((1, 200), (2, 200), (3, 404), (4, 404)):
        assert tenant.get(f"/api/v1/certificates/{number}").status_code == status
        assert tenant.get(f"/api/v1/certificates/{number}/proof").status_code == status
        assert tenant.get(f"/api/v1/certificates/{number}/purge").status_code == status
    requests = tenant.get("/api/v1/requests?search=%232").json()["items"]
    assert [item["id"] for item in requests] == [made[1]["id"]]
    assert tenant.get("/api/v1/requests?search=%234").json()["total"] == 0


def test_the_signed_file_is_handed_out_as_it_was_signed(both: Any) -> None:
    """The chain is checked by the ledger's number, so it stays in the file; the manual says so."""
    desk, _ = both[1]
    answer = desk.client("admin@default").get("/api/v1/certificates/2/envelope")
    assert answer.content == desk.ledger.certificates.envelope(4)
    assert 'filename="certificate-000002.json"' in answer.headers["content-disposition"]
    shown = desk.client("admin@default").get("/api/v1/certificates/2").json()
    assert (shown["envelope"], shown["previous"]) == (None, None)
    assert shown["statement"]["predicate"]["ledger"] == {"id": "desk-test"}
    whole = desk.client("admin").get("/api/v1/certificates/4").json()
    assert whole["statement"]["predicate"]["ledger"]["sequence"] == 4


def test_pages_of_a_list_go_on_by_a_tenants_numbers(both: Any) -> None:
    desk, _ = both[1]
    client = desk.client("admin@default")
    for path, name in (("certificates", "sequence"), ("residue", "certificate")):
        numbers, after = [], ""
        while after is not None:
            page = client.get(f"/api/v1/{path}?limit=1{after and f'&after={after}'}").json()
            numbers += [item[name] for item in page.get("items", page.get("purges"))]
            after = page["next"]
        assert numbers == [2, 1]


def test_texts_of_jobs_have_a_tenants_numbers(both: Any) -> None:
    desk, _ = both[1]
    own, all_numbers = (
        CertificateNumbers(desk.ledger, "default"),
        CertificateNumbers(desk.ledger, None),
    )
    steps = {"steps": [{"sequence": 4, "words": "purged, certificate 4: done", "model": "risk"}]}
    assert own.renumber(steps) == {
        "steps": [{"sequence": 2, "words": "purged, certificate 2: done", "model": "risk"}]
    }
    assert own.renumber("certificate 3 and Certificate 1") == "certificate ? and Certificate 1"
    assert all_numbers.renumber(steps) == steps


def test_a_cursor_hides_its_key(both: Any) -> None:
    core = both[0][0].ledger._core
    numbers = (1_234_567, 7_654_321)  # long ones: a byte may turn up by chance
    texts = [encode_cursor(core, "certificates", (number,)) for number in numbers]
    assert [decode_cursor(core, "certificates", text) for text in texts] == [(n,) for n in numbers]
    raw = [base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) for text in texts]
    assert not any(str(n).encode() in one for n, one in zip(numbers, raw, strict=True))
    long = ("2026-01-01", "x" * 150, 3)
    assert decode_cursor(core, "requests/due", encode_cursor(core, "requests/due", long)) == long
