"""The server around the routes: gates, problems, sizes, hosts, headers, logs, health, metrics."""

import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from fastapi import APIRouter, Depends, Request
from fastapi.testclient import TestClient

from letheon.exceptions import LedgerError
from letheon.ledger.db.events import HIGH_WATER
from letheon.service import ServiceSettings, create_app
from letheon.service.auth import allows, client_address
from letheon.service.middleware import HEADERS
from letheon.service.routes import ROUTERS
from tests.service.desks import BASE, QUICK, Desk, person
from tests.service.servers import wait_for


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """What the server logs, line by line."""
    items: list[dict[str, Any]] = []

    class _ServerLog(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            assert "\n" not in text
            items.append(json.loads(text))

    logger, handler = logging.getLogger("letheon.desk"), _ServerLog()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield items
    logger.removeHandler(handler)


def client_of(desk: Desk, settings: ServiceSettings, **given: Any) -> TestClient:
    app = create_app(desk.ledger, settings, **given)
    return TestClient(app, base_url=BASE, follow_redirects=False)


def test_a_route_without_a_gate_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    router = APIRouter()

    @router.get("/api/v1/forgotten")
    def forgotten() -> None: ...

    monkeypatch.setattr("letheon.service.app.API", (*ROUTERS, router))
    with pytest.raises(RuntimeError, match="/api/v1/forgotten declares 0 gates"):
        create_app(desk.ledger, QUICK)


def test_a_route_with_two_gates_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    router = APIRouter()

    @router.get("/api/v1/double", dependencies=[Depends(allows())])
    def double(who: Annotated[Any, Depends(allows("requests:read"))]) -> None: ...

    monkeypatch.setattr("letheon.service.app.API", (*ROUTERS, router))
    with pytest.raises(RuntimeError, match="2 gates"):
        create_app(desk.ledger, QUICK)


@pytest.mark.parametrize(
    "path", ["/healthz", "/api/v1/me", "/login", "/nowhere", "/api/v1/nowhere"]
)
def test_every_answer_has_the_headers(shared_desk: Desk, path: str) -> None:
    response = shared_desk.client(None).get(path)
    assert {name: response.headers.get(name) for name in HEADERS} == dict(HEADERS)
    assert "server" not in response.headers
    assert len(response.headers["x-request-id"]) == 16


def test_https_is_insisted_on_where_it_is_spoken(desk: Desk) -> None:
    plain = client_of(desk, QUICK).get("/healthz")
    secure = client_of(desk, QUICK, is_secure=True).get("/healthz")
    assert "strict-transport-security" not in plain.headers
    assert "max-age" in secure.headers["strict-transport-security"]


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "169.254.169.254"])
def test_other_hosts_are_refused(shared_desk: Desk, host: str) -> None:
    response = shared_desk.client().get("/api/v1/me", headers={"Host": host})
    assert (response.status_code, response.json()["type"]) == (400, "urn:letheon:problem:host")


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8311", "127.0.0.1:1", "[::1]:99", "[::1]"]
)
def test_own_hosts_are_served(shared_desk: Desk, host: str) -> None:
    assert shared_desk.client().get("/api/v1/me", headers={"Host": host}).status_code == 200


def test_problems_are_problem_json(shared_desk: Desk) -> None:
    response = shared_desk.client(None).get("/api/v1/me")
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["www-authenticate"] == "Bearer"
    body = response.json()
    assert set(body) == {"type", "title", "status", "detail", "instance"}
    assert (body["status"], body["instance"]) == (401, response.headers["x-request-id"])


def test_refused_values_are_not_echoed(shared_desk: Desk) -> None:
    secret = "jane.doe@example.org"
    bodies: list[Any] = [
        {"name": secret, "role": secret, "scopes": [secret], "days": secret, secret: 1},
        {"name": "x", "role": "admin", "scopes": [secret]},
        [secret],
        secret,
    ]
    for body in bodies:
        response = shared_desk.client().post("/api/v1/tokens", json=body)
        assert response.status_code in (403, 422)
        if not (isinstance(body, dict) and body.get("role") == "admin"):
            assert response.json()["errors"]
        assert secret not in response.text


def test_bodies_stop_at_their_size(desk: Desk) -> None:
    client = client_of(desk, ServiceSettings(max_body_bytes=2000))
    client.headers["Authorization"] = f"Bearer {desk.tokens['admin'].text}"

    def chunks(number: int) -> Iterator[bytes]:
        for _ in range(number):
            seen.append(1)
            yield b" " * 500

    seen: list[int] = []
    told = client.post("/api/v1/tokens", content=b" " * 2001)
    assert (told.status_code, told.json()["type"]) == (413, "urn:letheon:problem:too-large")
    streamed = client.post("/api/v1/tokens", content=chunks(1000))
    assert streamed.status_code == 413
    fits = client.post("/api/v1/tokens", content=chunks(4))
    assert fits.status_code == 422


def test_wrong_lengths_are_refused(shared_desk: Desk) -> None:
    for length in ("-1", "1e3", "99999999999999999999"):
        response = shared_desk.client().post(
            "/api/v1/tokens", content=b"{}", headers={"Content-Length": length}
        )
        assert response.status_code == 413


def test_a_token_that_calls_too_often_is_slowed_down(desk: Desk) -> None:
    client = client_of(desk, ServiceSettings(rate_per_token="3/minute"))
    client.headers["Authorization"] = f"Bearer {desk.tokens['admin'].text}"
    statuses = [client.get("/api/v1/me").status_code for _ in range(5)]
    assert statuses == [200] * 3 + [429] * 2
    last = client.get("/api/v1/me")
    assert 1 <= int(last.headers["retry-after"]) <= 60
    client.headers["Authorization"] = f"Bearer {desk.tokens['operator'].text}"
    assert client.get("/api/v1/me").status_code == 200


def test_guessing_tokens_is_slowed_down_and_others_get_in(desk: Desk) -> None:
    client = client_of(desk, ServiceSettings(rate_failed="5/minute"))
    wrong = {"Authorization": "Bearer lth_" + "A" * 43}
    statuses = [client.get("/api/v1/me", headers=wrong).status_code for _ in range(7)]
    assert statuses == [401] * 5 + [429] * 2
    right = {"Authorization": f"Bearer {desk.tokens['admin'].text}"}
    assert client.get("/api/v1/me", headers=right).status_code == 200


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no:address", "no:address"),
    ],
)
def test_addresses_are_counted_by_house(address: str, counted: str) -> None:
    request = Request({"type": "http", "client": (address, 1), "headers": []})
    assert client_address(request) == counted


@pytest.mark.parametrize("path", ["/healthz", "/login", "/api/v1/me", "/static/desk.css"])
def test_heads_are_answered_like_gets_without_a_body(shared_desk: Desk, path: str) -> None:
    client = shared_desk.client()
    head, whole = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]


def test_a_body_that_trickles_is_cut_off(desk: Desk) -> None:
    app = create_app(desk.ledger, replace(QUICK, body_seconds=1))
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await anyio.sleep(0.05)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = {"host": "localhost", "authorization": f"Bearer {desk.tokens['admin'].text}"}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/v1/tokens",
        "raw_path": b"/api/v1/tokens",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "scheme": "http",
        "http_version": "1.1",
    }
    anyio.run(app, scope, receive, send)
    assert sent[0]["status"] == 408


def test_a_call_is_logged_without_what_the_caller_sent(
    shared_desk: Desk, lines: list[dict[str, Any]]
) -> None:
    client = shared_desk.client()
    client.get("/api/v1/requests/jane%0d%0adoe?search=jane%40example.org")
    client.get("/api/v1/me", headers={"User-Agent": "jane\x1b[31m"})
    assert [line["event"] for line in lines] == ["call", "call"]
    assert {frozenset(line) for line in lines} == {
        frozenset({"time", "event", "method", "route", "status", "ms", "token", "id"})
    }
    assert "jane" not in json.dumps(lines)
    assert lines[1]["route"] == "/api/v1/me"
    assert lines[1]["token"] == shared_desk.tokens["admin"].id


def test_a_mistake_tells_its_kind_only(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, Any]]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("person-007 is the reason")

    monkeypatch.setattr("letheon.ledger.db.tokens.Tokens.list_newest", broken)
    response = desk.client().get("/api/v1/tokens")
    assert (response.status_code, response.json()["type"]) == (500, "urn:letheon:problem:internal")
    assert "person-007" not in response.text + json.dumps(lines)
    assert {name: response.headers.get(name) for name in HEADERS} == dict(HEADERS)
    told = [line for line in lines if line["event"] == "internal-error"]
    assert [(line["kind"], line["at"].partition(":")[0]) for line in told] == [
        ("ZeroDivisionError", "account.py")
    ]


def test_a_mistake_under_a_real_server_prints_no_traceback(tmp_path: Path) -> None:
    """The server's own log is the danger: it prints the words of whatever reaches it."""
    done = subprocess.run(
        [sys.executable, "-c", BROKEN_SERVER, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["500", "500", "cut"]
    assert "person-007" not in done.stderr
    assert "Traceback" not in done.stderr
    events = [json.loads(line)["event"] for line in done.stderr.splitlines()]
    assert events.count("internal-error") == 3


BROKEN_SERVER = """
import sys, threading, time, pathlib, urllib.request, urllib.error, http.client
import uvicorn
from starlette.responses import StreamingResponse
from fastapi import Depends
from letheon.service import create_app, ServiceSettings
from letheon.service.auth import public
from letheon.service.middleware import configure_logging
from letheon.service.routes.account import router
from letheon.ledger import Ledger

@router.get("/api/v1/broken", dependencies=[Depends(public())])
def broken():
    raise KeyError("person-007")

@router.get("/broken", include_in_schema=False, dependencies=[Depends(public())])
def broken_page():
    raise KeyError("person-007")

@router.get("/api/v1/half", include_in_schema=False, dependencies=[Depends(public())])
def half():
    def parts():
        yield b"a" * 10
        raise KeyError("person-007")
    return StreamingResponse(parts(), headers={"Content-Length": "100"})

configure_logging()
ledger = Ledger.create(pathlib.Path(sys.argv[1]) / "home", name="broken")
app = create_app(ledger, ServiceSettings())
config = uvicorn.Config(app, port=0, log_config=None, lifespan="off")
server = uvicorn.Server(config)
threading.Thread(target=server.run, daemon=True).start()
while not server.started:
    time.sleep(0.05)
port = server.servers[0].sockets[0].getsockname()[1]
for path in ("/api/v1/broken", "/broken", "/api/v1/half"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    try:
        answer.read()
        print(answer.status)
    except http.client.IncompleteRead:
        print("cut")
    connection.close()
server.should_exit = True
"""


def test_readiness_tells_of_a_worker_that_does_not_run(desk: Desk) -> None:
    runs = [True]
    client = client_of(desk, QUICK, has_worker=lambda: runs[0])
    assert client.get("/readyz").status_code == 200
    runs[0] = False
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200


def test_a_desk_whose_database_is_too_old_can_be_read_only(desk: Desk) -> None:
    client, body = desk.client(), {"model": "risk", "ids": [person(1)]}
    assert client.get("/readyz").status_code == 200
    mark = desk.ledger.folder / HIGH_WATER
    mark.write_text(f"{10**6} {'a' * 64}\n")
    ready = client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["type"] == "urn:letheon:problem:old-database"
    assert str(desk.ledger.folder) not in ready.text
    filed = client.post("/api/v1/requests", json=body, headers={"Idempotency-Key": "k"})
    assert filed.status_code == 503, filed.text
    assert filed.json()["type"] == "urn:letheon:problem:old-database"
    assert client.get("/api/v1/requests").status_code == 200
    assert client.get("/api/v1/models").status_code == 200
    assert client.get("/healthz").status_code == 200
    browser = desk.browser()
    assert browser.get("/").status_code == 200
    mark.unlink()
    filed = client.post("/api/v1/requests", json=body, headers={"Idempotency-Key": "k"})
    assert filed.status_code in (201, 202), filed.text


def test_metrics_count_calls_by_route_and_requests_by_state(desk: Desk) -> None:
    desk.ledger.requests.submit(["person-001"], model="risk", verified=True)
    client = desk.client()
    client.delete("/api/v1/tokens/0123")
    text = client.get("/metrics").text
    assert 'letheon_requests{state="queued"} 1.0' in text
    assert 'route="/api/v1/tokens/{token_id}"' in text
    assert "0123" not in text
    assert desk.client("auditor").get("/metrics").status_code == 403


def test_unknown_methods_name_the_known_ones(shared_desk: Desk) -> None:
    response = shared_desk.client().put("/api/v1/tokens", json={})
    assert response.status_code == 405
    assert "POST" in response.headers["allow"] or "GET" in response.headers["allow"]
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/requests?state=queued&limit=1", 200),
        ("/api/v1/requests?stat=queued", 422),
        ("/api/v1/tokens?limit=1", 200),
        ("/api/v1/tokens?limit=1&limt=1", 422),
        ("/api/v1/me?x=1", 422),
    ],
)
def test_a_mistyped_filter_is_refused(shared_desk: Desk, path: str, status: int) -> None:
    response = shared_desk.client().get(path)
    assert response.status_code == status, response.text


def test_the_filters_that_there_are_are_named(shared_desk: Desk) -> None:
    refused = shared_desk.client().get("/api/v1/summary?x=1").json()
    assert refused["detail"] == "Parameters of this call: model, tenant."


def test_scripts_and_styles_may_be_kept_and_pages_not(shared_desk: Desk) -> None:
    client = shared_desk.browser()
    asset = re.search(r'href="(/static/desk\.css\?[^"]+)"', client.get("/").text)
    assert asset is not None
    assert "immutable" in client.get(asset[1]).headers["cache-control"]
    assert client.get("/").headers["cache-control"] == "no-store"
    assert client.get("/static/../_tokens.py").status_code == 404


def test_long_calls_leave_room_for_short_ones(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many long calls: most are refused, and other calls are served."""
    goes_on = threading.Event()

    def wait(*_: Any, **__: Any) -> None:
        goes_on.wait(60)
        raise LedgerError("not now")

    monkeypatch.setattr(sys.modules["letheon.service.routes.requests"], "_change_request", wait)
    body = {"action": "verify", "requests": ["0" * 32]}
    admin, operator = desk.client("admin"), desk.client("operator")
    with ThreadPoolExecutor(30) as pool:
        asked = [
            pool.submit(client.post, "/api/v1/requests/actions", json=body)
            for client in [admin] * 15 + [operator] * 15
        ]
        refused = wait_for(
            lambda: [item for item in asked if item.done()][21:] and [x for x in asked if x.done()],
            what="refusals",
        )
        assert {item.result().status_code for item in refused} == {429}
        assert len(refused) == 22, "four of each token are served"
        assert desk.client("auditor").get("/api/v1/me").status_code == 200
        goes_on.set()
    freed = operator.post("/api/v1/requests/actions", json=body)
    assert freed.status_code != 429
