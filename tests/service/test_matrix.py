"""The authorisation matrix: every route x every principal, 100 % of the cells.

A cell is tried for real. Allowed means anything but 401, 403 and a server error: an empty body may
well be refused as a value. Another tenant's thing must answer as one that does not exist.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import APIRouter, Depends
from fastapi.testclient import TestClient

from letheon.service import create_app
from letheon.service.auth import allows, find_gates
from letheon.service.routes import ROUTERS
from tests.service.desks import OTHER, QUICK, Desk, make_desk, person
from tests.service.matrix import ANY_TOKEN, API, LEDGER_WIDE, PAGES, PUBLIC, TABLE, names_of

HOOK = "http://127.0.0.1:9"
INVALID = ("none", "garbage", "expired", "revoked")
NOWHERE = {
    "request_id": "0" * 32,
    "subject_request_id": "0f0f0f0f-0000-4000-8000-000000000000",
    "token_id": "0" * 16,
    "model": "nowhere",
    "number": "999999",
    "batch_id": "0" * 32,
    "job_id": "0" * 32,
    "audit_id": "0" * 32,
    "webhook_id": "0" * 32,
}
# A tenant numbers its own certificates: the ledger's number of its only one leads nowhere.
ELSEWHERE = {"number": "2"}
QUERIES = {
    "GET /api/v1/log/inclusion": "?index=0",
    "GET /api/v1/log/consistency": "?first=1&second=2",
    "GET /api/v1/models/{model}/compare": "?a=0&b=1",
    "GET /models/{model}/compare": "?a=0&b=1",
}


@dataclass
class Matrix:
    """A desk where both tenants have one of everything."""

    desk: Desk
    things: dict[str, dict[str, str]]
    browsers: dict[str, tuple[TestClient, str]]

    def path(self, name: str, things: dict[str, str]) -> str:
        path = name.partition(" ")[2]
        filled = re.sub(r"\{(\w+)(?::\w+)?\}", lambda item: things[item[1]], path)
        return filled + QUERIES.get(name, "")

    def call(self, name: str, who: str, things: dict[str, str], *, csrf: bool = True) -> Any:
        method = name.partition(" ")[0]
        if name in PAGES:
            client, token = self.browsers[who]
            data = {"csrf": token} if csrf else {}
            return client.request(
                method, self.path(name, things), data=data if method == "POST" else None
            )
        client = self.desk.client(None)
        if who == "garbage":
            client.headers["Authorization"] = "Bearer lth_" + "x" * 43
        elif who != "none":
            client.headers["Authorization"] = f"Bearer {self.desk.tokens[who].text}"
        return client.request(
            method, self.path(name, things), json={} if method == "POST" else None
        )


def make_things(desk: Desk, tenant: str, model: str) -> dict[str, str]:
    """Make one of everything for a tenant, through the API."""
    operator, admin = desk.client(f"operator@{tenant}"), desk.client(f"admin@{tenant}")

    def file(who: Any, number: int, **given: Any) -> str:
        body = {"model": model, "ids": [person(number)]} | given
        made = who.post("/api/v1/requests", json=body)
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    erased = file(operator, 0, verified=True)
    desk.work()
    done = operator.get(f"/api/v1/requests/{erased}").json()
    job = operator.post(f"/api/v1/models/{model}/what-if", json={}).json()
    audit = admin.post("/api/v1/audits", json={"model": model}).json()
    hook = admin.post("/api/v1/webhooks", json={"url": f"{HOOK}/x", "events": ["certified"]}).json()
    subject = {"request_id": file(operator, 1), "own": file(desk.client(f"requester@{tenant}"), 2)}
    return (
        NOWHERE
        | subject
        | {
            "model": model,
            "number": str(done["certificate"]),
            "batch_id": done["batch"],
            "job_id": job["id"],
            "audit_id": audit["id"],
            "webhook_id": hook["id"],
            "token_id": desk.tokens[f"requester@{tenant}"].id,
        }
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    settings = replace(QUICK, webhook_hosts=({"host": HOOK, "internal": True},))
    desk = make_desk(tmp_path_factory.mktemp("matrix"), settings=settings)
    things = {
        "default": make_things(desk, "default", "risk"),
        OTHER: make_things(desk, OTHER, "churn"),
    }
    browsers = {item: browser_of(desk, item) for item in (*desk.tokens, "none", "garbage")}
    yield Matrix(desk, things, browsers)
    desk.close()


def browser_of(desk: Desk, who: str) -> tuple[TestClient, str]:
    """Return a browser that has logged in, and its CSRF token; one that cannot has neither."""
    client = desk.client(None)
    if who in INVALID:
        client.cookies.set("letheon_session", "x" * 43)
        return client, "x" * 43
    assert client.post("/login", data={"token": desk.tokens[who].text}).status_code == 303
    match = re.search(r'name="csrf" value="([^"]+)"', client.get("/").text)
    assert match is not None
    return client, match[1]


def needs(name: str) -> set[str]:
    return set(TABLE[name].split()) if TABLE[name] not in (ANY_TOKEN, PUBLIC) else set()


def holds(world: Matrix, who: str, name: str) -> bool:
    """Whether a principal has a scope that the table asks for."""
    from letheon.service import ROLES

    role = world.desk.tokens[who].role
    scopes = {"metrics:read"} if who == "narrow" else ROLES[role]
    return not needs(name) or not needs(name).isdisjoint(scopes)


def test_every_route_has_a_row_and_every_row_a_route(world: Matrix) -> None:
    assert names_of(world.desk.app.state.routes) == set(TABLE)


def test_the_document_describes_the_api_and_its_scopes(world: Matrix) -> None:
    values = {}
    for path, operations in world.desk.app.openapi()["paths"].items():
        for method, operation in operations.items():
            scopes = " ".join(operation["x-scopes"])
            is_public = operation["x-public"]
            values[f"{method.upper()} {path}"] = PUBLIC if is_public else scopes or ANY_TOKEN
            assert ("security" in operation) == (not is_public)
    assert values == API


def test_gates_demand_what_the_table_says(world: Matrix) -> None:
    for route in world.desk.app.state.routes:
        (gate,) = find_gates(route)
        for name in names_of([route]):
            assert set(gate.scopes) == needs(name)
            assert gate.is_public == (TABLE[name] == PUBLIC)


def test_a_new_route_without_a_row_is_found(world: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    router = APIRouter()

    @router.get("/api/v1/new", dependencies=[Depends(allows())])
    def new() -> None: ...

    monkeypatch.setattr("letheon.service.app.API", (*ROUTERS, router))
    app = create_app(world.desk.ledger, QUICK)
    assert names_of(app.state.routes) - set(TABLE) == {"GET /api/v1/new"}


@pytest.mark.parametrize("name", TABLE)
def test_cells_of_a_route(world: Matrix, name: str) -> None:
    """Every principal, with things of the tenant `default`."""
    cells = 0
    for item in (*world.desk.tokens, "none", "garbage"):
        things = dict(world.things["default"])
        if item.endswith(f"@{OTHER}"):
            things |= ELSEWHERE
        if item.startswith("requester"):
            things["request_id"] = things["own"]
        if item == "requester" and name in OF_ONE_REQUEST:
            continue  # unbound, and not the one who filed it: see test_requesters_see_their_own
        if name in DESTROYS and item not in INVALID and holds(world, item, name):
            things |= disposable(world, item)
        response = world.call(name, item, things)
        if name == "POST /logout":
            world.browsers[item] = browser_of(world.desk, item)
        problem = wrong(world, name, item, response)
        assert problem is None, f"{name} as {item}: {problem}"
        cells += 1
    assert cells >= len(world.desk.tokens) + 1


OF_ONE_REQUEST = {name for name in TABLE if "{request_id}" in name}
DESTROYS = {
    "DELETE /api/v1/tokens/{token_id}",
    "POST /tokens/{token_id}/revoke",
    "DELETE /api/v1/webhooks/{webhook_id}",
    "POST /webhooks/{webhook_id}/delete",
}


def disposable(world: Matrix, who: str) -> dict[str, str]:
    """Make what a cell destroys, in the tenant of the one who destroys it."""
    tenant = world.desk.tokens[who].tenant or "default"
    admin = world.desk.client(f"admin@{tenant}")
    token = admin.post("/api/v1/tokens", json={"name": "x", "role": "requester"}).json()["id"]
    hook = admin.post("/api/v1/webhooks", json={"url": f"{HOOK}/y", "events": ["received"]})
    return {"token_id": token, "webhook_id": hook.json()["id"]}


def wrong(world: Matrix, name: str, who: str, response: Any) -> str | None:
    """Return what is wrong with an answer; None if it is what the table says."""
    status = response.status_code
    if status >= 500:
        return f"server error {status}"
    if TABLE[name] == PUBLIC:
        refuses = (403,) if name == "POST /login" else (401, 403)  # an empty form is not a log-in
        return f"refused with {status}" if status in refuses else None
    if who in INVALID:
        return check_refusal(name, response)
    if not holds(world, who, name):
        return None if status == 403 else f"{status} instead of 403"
    tenant = world.desk.tokens[who].tenant
    if tenant is not None and name in LEDGER_WIDE:
        return None if status == 403 else f"{status} for one tenant, instead of 403"
    if tenant == OTHER and "{" in name and name not in DESTROYS:
        return None if status in (404, 422) else f"{status} for another tenant's thing"
    return f"refused with {status}" if status in (401, 403) else None


def check_refusal(name: str, response: Any) -> str | None:
    if name in PAGES:
        is_led = response.status_code == 303 and response.headers["location"].startswith("/login")
        return None if is_led else f"{response.status_code} instead of the log-in"
    if response.status_code != 401 or response.headers.get("www-authenticate") != "Bearer":
        return f"{response.status_code} instead of 401 with WWW-Authenticate"
    return None


# Marks of the tenant `default` that no other tenant may see.
def marks(world: Matrix) -> list[str]:
    things = world.things["default"]
    names = ("request_id", "own", "batch_id", "job_id", "audit_id", "webhook_id", "token_id")
    return [*(things[name] for name in names), '"risk"', ">risk<", "/risk"]


@pytest.mark.parametrize("name", [name for name in TABLE if name.startswith("GET")])
@pytest.mark.parametrize("role", ["requester", "operator", "approver", "auditor", "admin"])
def test_a_tenant_sees_nothing_of_another(world: Matrix, name: str, role: str) -> None:
    who = f"{role}@{OTHER}"
    answers = [world.call(name, who, world.things[OTHER])]
    if "{" in name:
        answers.append(world.call(name, who, world.things["default"]))
    elif TABLE[name] != PUBLIC:
        client = world.browsers[who][0] if name in PAGES else world.desk.client(who)
        path = world.path(name, {})
        answers.append(client.get(path, params={"tenant": "default"}))
    seen = [mark for mark in marks(world) for response in answers if mark in response.text]
    own = "" if "{" not in name else world.path(name, world.things["default"])
    assert [mark for mark in seen if mark not in own and mark.strip('"></') not in own] == []


@pytest.mark.parametrize("name", [name for name in TABLE if "{" in name])
def test_another_tenants_thing_is_like_none(world: Matrix, name: str) -> None:
    """Same status, same words: guessing an id reveals nothing."""
    for role in ("requester", "operator", "approver", "auditor", "admin"):
        who = f"{role}@{OTHER}"
        others = world.things["default"] | ELSEWHERE
        theirs = world.call(name, who, others)
        none = nowhere(others)
        missing = world.call(name, who, none)
        assert theirs.status_code == missing.status_code
        assert plain(theirs, world.path(name, others)) == plain(missing, world.path(name, none))


def plain(response: Any, path: str) -> str:
    """Return an answer without its own address, the id of the call, and the token of its forms."""
    text = re.sub(r'"instance":"\w+"|[0-9a-f]{16}\b|value="[\w-]{43}"', "", response.text)
    return text.replace(path, "").replace(quote(path, safe=""), "")


def nowhere(things: dict[str, str]) -> dict[str, str]:
    """Return ids of the same form that nothing has."""
    return NOWHERE | {
        name: "0" * len(value)
        for name, value in things.items()
        if re.fullmatch("[0-9a-f]{16,}", value)
    }


def test_requesters_see_their_own(world: Matrix) -> None:
    """A requester gets at requests that it filed, and others are as if they were not there."""
    things = world.things["default"]
    for name in sorted(OF_ONE_REQUEST):
        who = "requester@default"
        theirs = world.call(name, who, things)
        none = nowhere(things)
        missing = world.call(name, who, none)
        assert theirs.status_code == missing.status_code
        assert plain(theirs, world.path(name, things)) == plain(missing, world.path(name, none))
    listed = world.desk.client("requester@default").get("/api/v1/requests").json()
    assert [item["id"] for item in listed["items"]] == [things["own"]]
    assert listed["total"] == 1


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("POST")])
def test_forms_without_their_token_are_refused(world: Matrix, name: str) -> None:
    if TABLE[name] == PUBLIC:
        return
    response = world.call(name, "admin", world.things["default"], csrf=False)
    assert response.status_code == 403


@pytest.mark.parametrize("name", [name for name in API if not name.startswith("GET")])
def test_a_session_changes_nothing_through_the_api_without_its_token(
    world: Matrix, name: str
) -> None:
    if TABLE[name] == PUBLIC:
        return
    client, token = world.browsers["admin"]
    method, path = name.partition(" ")[0], world.path(name, NOWHERE)
    assert client.request(method, path, json={}).status_code == 403
    with_token = client.request(method, path, json={}, headers={"X-CSRF-Token": token})
    assert with_token.status_code != 403
    elsewhere = {"X-CSRF-Token": token, "Origin": "https://evil.example"}
    assert client.request(method, path, json={}, headers=elsewhere).status_code == 403
