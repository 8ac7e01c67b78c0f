"""Writes across tenants, with bodies that would do something: nothing of the other tenant changes.

The matrix sends empty bodies. Here each route that changes something gets a valid one, as a token
of one tenant, about things of another; before and after the other tenant's rows are the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import select

from letheon.ledger.tables import events, jobs, models, requests, tokens, webhooks
from tests.service.desks import OTHER, QUICK, Desk, make_desk, person
from tests.service.matrix import API
from tests.service.test_matrix import HOOK, make_things


@dataclass
class Try:
    """A call with a body that would do something in the tenant `default`."""

    name: str
    body: dict[str, Any] | None = None
    query: str = ""
    csv: str | None = None


RISK = {"model": "risk", "ids": [person(20)], "verified": True}
SUBJECT = {
    "regulation": "gdpr",
    "subject_request_id": "3d6b2a0e-4a3d-4c55-9f1c-0a0b0c0d0e0f",
    "subject_request_type": "erasure",
    "submitted_time": "2027-01-15T08:00:00Z",
    "subject_identities": [
        {
            "identity_type": "controller_customer_id",
            "identity_value": "7",
            "identity_format": "raw",
        }
    ],
    "api_version": "2.0",
}
TRIES = [
    Try("POST /api/v1/requests", RISK),
    Try("POST /api/v1/requests", RISK | {"tenant": "default"}),
    Try("POST /api/v1/requests", {"model": "*", "ids": [20], "verified": True}),
    Try("POST /api/v1/requests/bulk", {"items": [RISK]}),
    Try("POST /api/v1/requests/bulk", {"items": [RISK], "tenant": "default"}),
    Try("POST /api/v1/requests/upload", csv=f"model,id\nrisk,{person(20)}\n"),
    Try(
        "POST /api/v1/requests/upload", csv=f"model,id\nrisk,{person(20)}\n", query="tenant=default"
    ),
    *(
        Try(
            "POST /api/v1/requests/actions", {"action": action, "requests": ["{request_id}"]} | more
        )
        for action, more in (
            ("verify", {}),
            ("cancel", {}),
            ("approve", {}),
            ("reject", {"ground": "gdpr.art12.6"}),
        )
    ),
    *(
        Try(f"POST /api/v1/requests/{{request_id}}/{action}", body)
        for action, body in (
            ("verify", {}),
            ("await-identity", {}),
            ("approve", {}),
            ("cancel", {}),
            ("retry", {}),
            ("release", {}),
            ("extend", {}),
            ("hold", {"ground": "gdpr.art17.3.e", "until": "2027-03-01"}),
            ("reject", {"ground": "gdpr.art12.6"}),
            ("tell", {"recipients": 2}),
            ("answer", {"recipients": 1}),
        )
    ),
    Try("POST /api/v1/requests/{request_id}/receipt-code"),
    Try("POST /opendsr/v2/requests", SUBJECT),
    Try("DELETE /opendsr/v2/requests/{subject_request_id}"),
    Try("POST /api/v1/models/example", {"kind": "forest", "name": "planted", "tenant": "default"}),
    Try("POST /api/v1/models"),
    *(
        Try(f"POST /api/v1/models/{{model}}/{kind}", {}, query)
        for kind in ("what-if", "apply", "retrain")
        for query in ("", "tenant=default")
    ),
    Try("POST /api/v1/audits", {"model": "risk"}),
    Try("POST /api/v1/audits", {"tenant": "default"}),
    Try("POST /api/v1/audits", {"model": "risk", "tenant": "default"}),
    Try("POST /api/v1/webhooks", {"url": f"{HOOK}/z", "events": ["received"], "tenant": "default"}),
    Try("DELETE /api/v1/webhooks/{webhook_id}"),
    Try("POST /api/v1/webhooks/{webhook_id}/test"),
    Try("POST /api/v1/tokens", {"name": "planted", "role": "operator", "tenant": "default"}),
    Try("DELETE /api/v1/tokens/{token_id}"),
]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, dict[str, str]]]:
    settings = replace(QUICK, webhook_hosts=({"host": HOOK, "internal": True},))
    desk = make_desk(tmp_path_factory.mktemp("tenants"), settings=settings)
    yield desk, make_things(desk, "default", "risk")
    desk.close()


def everything(desk: Desk) -> list[Any]:
    """Return all rows of the tenant `default`, and the events of its requests."""
    items: list[Any] = []
    with desk.ledger._core.database.reading() as conn:
        for table in (models, requests, jobs, webhooks, tokens):
            rows = conn.execute(select(table).where(table.c.tenant == "default"))
            items += [tuple(row) for row in rows]
        mine = select(requests.c.id).where(requests.c.tenant == "default")
        items += [
            tuple(row) for row in conn.execute(select(events).where(events.c.about.in_(mine)))
        ]
    return sorted(items, key=repr)


def filled(value: Any, things: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: filled(one, things) for name, one in value.items()}
    if isinstance(value, list):
        return [filled(item, things) for item in value]
    if isinstance(value, str) and "{" in value:
        return value.format(**things)
    return value


def call(desk: Desk, who: str, one: Try, things: dict[str, str]) -> Any:
    method, _, path = one.name.partition(" ")
    address = path.format(**things) + (f"?{one.query}" if one.query else "")
    files = None if one.csv is None else {"file": ("people.csv", one.csv, "text/csv")}
    given = {"files": files} if files else {"json": filled(one.body, things)}
    return desk.client(who).request(method, address, **given)


def test_every_route_that_changes_something_is_tried() -> None:
    public = {"POST /api/v1/receipts/check", "POST /api/v1/receipts/sealed"}
    changing = {name for name in API if not name.startswith("GET")} - public
    assert {try_item.name for try_item in TRIES} == changing


@pytest.mark.parametrize(
    "one", TRIES, ids=lambda item: f"{item.name} {item.body or item.query}"[:70]
)
def test_nothing_of_another_tenant_changes(both: tuple[Desk, dict[str, str]], one: Try) -> None:
    desk, things = both
    before = everything(desk)
    for role in ("operator", "approver", "auditor", "admin"):
        response = call(desk, f"{role}@{OTHER}", one, things)
        assert response.status_code < 500
        assert response.status_code >= 400 or is_harmless(response), response.text
        assert everything(desk) == before, f"as {role}"


def is_harmless(response: Any) -> bool:
    """Whether an answer that is no refusal is about the own tenant, or refuses each item."""
    body = response.json()
    items = body.get("items") or body.get("outcomes") or []
    if items:
        return all(item["status"] >= 400 for item in items)
    return bool(body.get("tenant") == OTHER)


def test_the_same_calls_do_something_at_home(both: tuple[Desk, dict[str, str]]) -> None:
    """The test of the test: the bodies are valid, and the snapshot sees what they do."""
    desk, things = both
    before = everything(desk)
    does = {
        try_item.name
        for try_item in TRIES
        if "*" not in str(try_item.body)
        for role in ("operator", "approver", "auditor", "admin")
        if call(desk, f"{role}@default", try_item, things).status_code < 300
    }
    assert everything(desk) != before
    assert {
        "POST /api/v1/requests",
        "POST /api/v1/requests/bulk",
        "POST /api/v1/requests/upload",
        "POST /api/v1/requests/actions",
        "POST /opendsr/v2/requests",
        "POST /api/v1/models/example",
        "POST /api/v1/models/{model}/apply",
        "POST /api/v1/audits",
        "POST /api/v1/webhooks",
        "POST /api/v1/tokens",
        "DELETE /api/v1/webhooks/{webhook_id}",
        "DELETE /api/v1/tokens/{token_id}",
    } <= does
