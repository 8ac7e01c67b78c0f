"""What an attacker would try first, over all routes; each attack is refused.

Parts that have tests of their own go deeper: addresses of webhooks in `test_addresses`, uploads in
`test_uploads`, tokens in `test_tokens`, who may do what in `test_matrix`.
"""

import csv
import io
import itertools
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from letheon.ledger.tables import jobs, tokens, webhooks
from letheon.service import ROLES, ServiceSettings, create_app
from letheon.service.webhooks import deliver_due
from tests.service.desks import BASE, OTHER, QUICK, Desk, make_desk, person
from tests.service.raw_calls import call
from tests.service.receivers import receiving

MARK = "\"'><b data-evil=1>{{ 31337 * 4391 }}"
EVALUATED = str(31337 * 4391)
MIB = 1 << 20


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk with something on every page; its tests do not change what others look at."""
    made = make_desk(tmp_path_factory.mktemp("attacked"))
    made.ledger.requests.submit([person(1)], model="risk", verified=True)
    made.work()
    made.ledger.requests.submit([person(2)], model="risk")
    made.client().post("/api/v1/audits", json={})
    yield made
    made.close()


def csrf_of(client: TestClient) -> str:
    match = re.search(r'name="csrf" value="([^"]+)"', client.get("/tokens").text)
    assert match is not None
    return match[1]


class _Page(HTMLParser):
    """Finds what an attacker put into a page: elements of theirs, handlers, scripts in links."""

    def __init__(self) -> None:
        super().__init__()
        self.evil: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            is_script = (value or "").strip().lower().startswith("javascript:")
            if name == "data-evil" or name.startswith("on") or is_script:
                self.evil.append(f"<{tag} {name}={value}>")


def evil_in(text: str) -> list[str]:
    page = _Page()
    page.feed(text)
    return page.evil + ["evaluated"] * (EVALUATED in text)


def pages(desk: Desk, method: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the path of every page, with things that exist, and the names in its query."""
    listed = desk.client().get("/api/v1/requests?state=received").json()["items"]
    audit = desk.client().get("/api/v1/audits").json()["items"][0]["id"]
    things = {
        "model": "risk",
        "number": "1",
        "request_id": listed[0]["id"],
        "audit_id": audit,
        "webhook_id": "0" * 16,
        "token_id": desk.tokens["requester"].id,
    }
    for route in desk.app.state.routes:
        if method in route.methods and not route.include_in_schema:
            yield route.path.format(**things), list(query_of(route.dependant))


def query_of(dependant: Any) -> Iterator[str]:
    yield from (param.alias for param in dependant.query_params)
    for inner in dependant.dependencies:
        yield from query_of(inner)


def reflections(desk: Desk) -> list[str]:
    """Send the mark to every page in every value of its query and path; return what came of it."""
    browser, items = desk.browser(), []
    for path, names in pages(desk, "GET"):
        for name in [*names, "unknown"]:
            answer = browser.get(path, params={name: MARK})
            assert answer.status_code < 500, (path, name)
            items += [f"{path}?{name}: {item}" for item in evil_in(answer.text)]
        answer = browser.get(f"{path.rstrip('/')}/{MARK}")
        assert answer.status_code < 500, path
        items += [f"{path}/...: {item}" for item in evil_in(answer.text)]
    return items


def test_no_page_reflects_what_it_is_sent(desk: Desk) -> None:
    assert reflections(desk) == []


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/login", "token"),
        ("/login", "next"),
        ("/receipt", "code"),
        ("/tokens", "name"),
        ("/tokens", "tenant"),
        ("/webhooks", "url"),
        ("/requests/new", "ids"),
        ("/requests/new", "model"),
        ("/requests/new", "ground"),
        ("/models/new", "name"),
        ("/models/example", "example_name"),
        ("/models/example", "kind"),
        ("/audits", "model"),
        ("/audits", "drill"),
        ("/requests/actions", "requests"),
        ("/requests/actions", "back"),
    ],
)
def test_no_form_reflects_what_it_is_sent(desk: Desk, path: str, field: str) -> None:
    browser = desk.browser()
    filled = {"csrf": csrf_of(browser), "name": "n", "role": "admin", "events": "received"}
    answer = browser.post(path, data=filled | {"model": "risk", "action": "approve", field: MARK})
    assert answer.status_code < 500
    assert evil_in(answer.text) == []
    assert "\n" not in answer.headers.get("location", "")


def test_an_uploaded_file_is_not_reflected(desk: Desk) -> None:
    browser = desk.browser()
    for name, table in [
        (MARK, "model,id\nrisk,unknown\n"),
        ("a.csv", f"model,id\n{MARK},{MARK}\n"),
        ("a.csv", f"model,id,{MARK}\nrisk,{person(3)},x\n"),
    ]:
        answer = browser.post(
            "/requests/upload",
            data={"csrf": csrf_of(browser)},
            files={"file": (name, table, "text/csv")},
        )
        assert answer.status_code < 500
        assert evil_in(answer.text) == []


def test_what_is_stored_is_shown_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also values that were written directly into the database."""
    settings = replace(QUICK, webhook_hosts=("hooks.example.org",))
    desk = make_desk(tmp_path, settings=settings)
    client, browser = desk.client(), desk.browser()
    body = {"url": "https://hooks.example.org/a", "events": ["received"]}
    webhook = client.post("/api/v1/webhooks", json=body).json()["id"]
    audit = client.post("/api/v1/audits", json={}).json()["id"]
    progress = json.dumps([{"at": 1_800_000_000, "words": MARK}])
    with desk.ledger._core.database.transaction() as connection:
        theirs = tokens.c.id == desk.tokens["auditor"].id
        connection.execute(update(tokens).where(theirs).values(name=MARK))
        connection.execute(update(webhooks).values(url=f"https://hooks.example.org/{MARK}"))
        connection.execute(update(jobs).values(progress=progress))
    paths = ("/tokens", "/webhooks", f"/webhooks/{webhook}", f"/audits/{audit}")
    for path in paths:
        shown = browser.get(path)
        assert (shown.status_code, evil_in(shown.text)) == (200, [])
        assert "data-evil" in shown.text, f"{path} does not show it at all"
    environment = desk.app.state.context.templates.env
    environment.cache.clear()
    monkeypatch.setattr(environment, "autoescape", False)
    assert all(evil_in(browser.get(path).text) for path in paths), "the planted mistake is found"
    desk.close()


def test_forms_of_other_sites_are_refused(desk: Desk) -> None:
    """With the cookie, and even with the secret of the form."""
    browser = desk.browser()
    csrf = csrf_of(browser)
    hostile = [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ]
    before = desk.client().get("/api/v1/tokens").json()["total"]
    for path, _ in pages(desk, "POST"):
        for headers in hostile:
            answer = browser.post(path, data={"csrf": csrf, "token": "x"}, headers=headers)
            assert answer.status_code == 403 or path == "/receipt", (path, headers)
    simple = {"Content-Type": "text/plain"}  # what a form elsewhere can send without being asked
    body = json.dumps({"name": "mine", "role": "admin"})
    answer = browser.post("/api/v1/tokens", content=body, headers=simple)
    assert answer.status_code in (401, 403)
    assert desk.client().get("/api/v1/tokens").json()["total"] == before


def test_webhooks_reach_nothing_inside(tmp_path: Path) -> None:
    """A listed name that leads to this machine is not reached, unless listed as internal."""
    with receiving() as inside:
        open_name = f"http://localhost:{inside.port}"
        for entry, reached in ((open_name, 0), ({"host": open_name, "internal": True}, 1)):
            folder = tmp_path / str(reached)
            folder.mkdir()
            settings = replace(QUICK, webhook_hosts=(entry,))
            desk = make_desk(folder, settings=settings)
            made = desk.client().post(
                "/api/v1/webhooks", json={"url": f"{open_name}/in", "events": ["received"]}
            )
            if made.status_code == 201:
                desk.ledger.requests.submit([person(1)], model="risk")
                deliver_due(desk.ledger, settings)
            assert len(inside.calls) == reached
            desk.close()


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "169.254.169.254",
        "localhost",
        "user@127.0.0.1",
        "127.0.0.1#@hooks.example.org",
        "hooks.example.org@127.0.0.1",
        "hooks.example.org.evil.example",
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https", "file", "gopher"])
def test_webhooks_go_to_listed_hosts_only(attacked: Desk, scheme: str, host: str) -> None:
    body = {"url": f"{scheme}://{host}/", "events": ["received"]}
    assert attacked.client().post("/api/v1/webhooks", json=body).status_code == 422


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    settings = replace(
        QUICK, webhook_hosts=("hooks.example.org",), max_upload_bytes=MIB, max_model_bytes=MIB
    )
    made = make_desk(tmp_path_factory.mktemp("listed"), settings=settings)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/api/v1/requests", "application/json"),
        ("/api/v1/requests/upload", "multipart/form-data; boundary=b"),
        ("/api/v1/models", "multipart/form-data; boundary=b"),
        ("/api/v1/receipts/check", "application/json"),
        ("/login", "application/x-www-form-urlencoded"),
        ("/receipt", "application/x-www-form-urlencoded"),
    ],
)
def test_endless_bodies_are_refused_while_they_come(attacked: Desk, path: str, kind: str) -> None:
    headers = {
        "Authorization": f"Bearer {attacked.tokens['admin'].text}",
        "Content-Type": kind,
        "Transfer-Encoding": "chunked",
    }
    start = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\n'
    endless = itertools.chain([start], itertools.repeat(b"a" * 65536, 400))
    answer = call(attacked.app, "POST", path, headers=headers, chunks=endless)
    assert answer.status == 413
    assert answer.n_read <= 3 * MIB


def test_strangers_send_nothing(attacked: Desk) -> None:
    """Who has no token is refused before a byte of a large body is taken."""
    for path in ("/api/v1/requests/upload", "/api/v1/models"):
        endless = itertools.repeat(b"a" * 65536, 400)
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        answer = call(attacked.app, "POST", path, headers=headers, chunks=endless)
        assert (answer.status, answer.n_read) == (401, 0)


TRICKS = [
    b"/static/../_tokens.py",
    b"/static/%2e%2e/_tokens.py",
    b"/static/..%2f_tokens.py",
    b"/static/..%5c_tokens.py",
    b"/static/....//_tokens.py",
    b"/static//etc/passwd",
    b"/static/%2fetc%2fpasswd",
    b"/static/vendor/../../templates/login.html",
    b"/static/%00",
    b"/static/desk.css%00.html",
    b"/static/" + b"a" * 5000,
    b"/static/" + b"../" * 40 + b"etc/passwd",
    b"//evil.example/login",
    b"/api/v1/../../metrics",
    b"/api/v1//requests",
    b"/api/v1/requests/%2e%2e%2fmodels",
    b"/api/v1/certificates/1%2f..%2f..%2fmodels/proof",
    b"/api/v1/models/..%2f..%2fkeys",
    b"/models/%2e%2e/plan",
    b"/\xff\xfe",
    b"/api/v1/models/%ff%fe",
    b"/login;/../metrics",
]


@pytest.mark.parametrize("raw", TRICKS)
def test_paths_lead_nowhere_else(desk: Desk, raw: bytes) -> None:
    from urllib.parse import unquote_to_bytes

    headers = {"Authorization": f"Bearer {desk.tokens['requester'].text}"}
    path = unquote_to_bytes(raw).decode("utf-8", "replace")
    answer = call(desk.app, "GET", path, raw_path=raw, headers=headers)
    assert answer.status in (303, 307, 400, 401, 403, 404, 405, 422)
    assert answer.headers.get("location", "/")[:1] == "/"
    assert answer.headers.get("location", "/")[:2] != "//"
    for secret in (b"import secrets", b"root:x:", b"{% extends"):
        assert secret not in answer.body


def test_the_right_path_is_served(desk: Desk) -> None:
    """So that the tricks above are refused for what they are."""
    assert call(desk.app, "GET", "/static/desk.css").status == 200


def plain(answer: Any) -> tuple[int, dict[str, Any], str | None]:
    body = answer.json()
    body.pop("instance")
    return answer.status_code, body, answer.headers.get("www-authenticate")


def test_wrong_tokens_are_all_answered_alike(desk: Desk) -> None:
    """The response does not reveal that a token was once valid, or how close a guess is."""
    right = desk.tokens["admin"].text
    guesses = [
        desk.tokens["revoked"].text,
        desk.tokens["expired"].text,
        right[:-1] + ("A" if right[-1] != "A" else "B"),
        right[:20],
        right + "A",
        right.swapcase(),
        "lth_" + "A" * 43,
        "x",
        desk.tokens["admin"].id,
    ]
    client = desk.client(None)
    answers = [
        plain(client.get("/api/v1/me", headers={"Authorization": f"Bearer {guess}"}))
        for guess in guesses
    ]
    assert answers == [answers[0]] * len(guesses)
    assert answers[0][0] == 401
    pages = [client.post("/login", data={"token": guess}) for guess in guesses]
    assert {(page.status_code, page.text) for page in pages} == {(401, pages[0].text)}


def test_guessing_is_slowed_down(tmp_path: Path) -> None:
    with make_desk(tmp_path).ledger as ledger:
        app = create_app(ledger, ServiceSettings(rate_failed="20/minute", rate_login="5/minute"))
        client = TestClient(app, base_url=BASE, follow_redirects=False)
        spread = [f"Bearer lth_{number:043d}" for number in range(40)]
        answers = [client.get("/api/v1/me", headers={"Authorization": item}) for item in spread]
        assert [response.status_code for response in answers] == [401] * 20 + [429] * 20
        assert int(answers[-1].headers["retry-after"]) >= 1
        forged = {"X-Forwarded-For": "192.0.2.7", "X-Real-IP": "192.0.2.7", "Forwarded": "for=x"}
        again = client.get("/api/v1/me", headers={"Authorization": spread[0], **forged})
        assert again.status_code == 429, "another address was believed"


def test_a_session_that_was_there_before_is_not_taken_over(desk: Desk) -> None:
    planted = "f" * 43
    browser = desk.client(None)
    browser.cookies.set("letheon_session", planted)
    browser.post("/login", data={"token": desk.tokens["admin"].text})
    cookies = {item.value for item in browser.cookies.jar if item.name == "letheon_session"}
    assert cookies - {planted}
    thief = desk.client(None)
    thief.cookies.set("letheon_session", planted)
    assert thief.get("/tokens").status_code == 303


def test_every_page_refuses_to_be_framed(desk: Desk) -> None:
    browser, n_pages = desk.browser(), 0
    for path, _ in [*pages(desk, "GET"), ("/nowhere", [])]:
        answer = browser.get(path)
        policy = answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        n_pages += 1
    assert n_pages > 15


@pytest.mark.parametrize(
    "where",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/%09/evil.example",
        "/\t/evil.example",
        "javascript:alert(1)",
        "/login\r\nSet-Cookie: a=b",
        "http:evil.example",
        "///evil.example",
        "/../..//evil.example",
    ],
)
def test_a_log_in_leads_to_this_desk_only(desk: Desk, where: str) -> None:
    sent = {"token": desk.tokens["admin"].text, "next": where}
    answer = desk.client(None).post("/login", data=sent)
    target = answer.headers["location"]
    assert re.fullmatch(r"/([^/\\\s].*)?", target), target
    assert "a=b" not in str(answer.headers.get_list("set-cookie"))


def test_nothing_that_is_sent_reaches_the_log(desk: Desk) -> None:
    lines: list[str] = []

    class _AttackLog(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    logger, handler = logging.getLogger("letheon.desk"), _AttackLog()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    forged = '\r\n{"event": "call", "status": 200}\x1b[2J\u2028evil'
    client = desk.client()
    try:
        client.get("/api/v1/requests", params={"search": forged, "evil\n": "evil"})
        call(desk.app, "GET", f"/api/v1/models/{forged}")
        client.post("/api/v1/tokens", json={"name": forged, "role": forged})
        client.post("/receipt", data={"code": forged})
        client.post("/login", data={"token": forged, "next": forged})
        client.get("/nowhere/evil", headers={"X-Request-Id": "evil", "User-Agent": "evil\x1b"})
        call(desk.app, "EVIL\x1b[2J", "/evil\n")
    finally:
        logger.removeHandler(handler)
    assert len(lines) >= 7
    for line in lines:
        assert line.isprintable()
        assert "evil" not in line.lower() or json.loads(line)["method"] not in ("GET", "POST")
        assert set(json.loads(line)) >= {"time", "event"}


@pytest.mark.parametrize("path", ["/api/v1/requests.csv", "/api/v1/bundle"])
def test_names_of_downloads_are_ours(desk: Desk, path: str) -> None:
    evil = 'a"\r\nSet-Cookie: a=b\r\n\r\n../../x'
    query = {"model": evil, "tenant": evil, "tier": evil, "search": evil, "filename": evil}
    for name, value in query.items():
        answer = desk.client().get(path, params={name: value})
        assert answer.status_code in (200, 404, 422)
        assert "set-cookie" not in answer.headers
        named = answer.headers.get("content-disposition", 'attachment; filename="x.csv"')
        assert re.fullmatch(r'attachment; filename="[a-z0-9.-]+"', named)


def test_no_cell_of_an_export_is_a_formula(desk: Desk) -> None:
    table = desk.client().get("/api/v1/requests.csv", params={"state": "received"}).text
    cells = [cell for line in csv.reader(io.StringIO(table)) for cell in line]
    assert len(cells) > 10
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    for name in ("=1+1", "+x", "-x", "@x"):
        body = {"kind": "sisa", "name": name}
        assert desk.client().post("/api/v1/models/example", json=body).status_code == 422


def test_other_verbs_change_nothing(desk: Desk) -> None:
    client = desk.client()
    listed = client.get("/api/v1/requests?state=received").json()
    path = f"/api/v1/requests/{listed['items'][0]['id']}/cancel"
    for method in ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "PATCH", "DELETE", "PROPFIND"):
        assert client.request(method, path).status_code == 405
    tricks = {"X-HTTP-Method-Override": "DELETE", "X-Method-Override": "DELETE"}
    token = desk.tokens["requester"].id
    client.get(f"/api/v1/tokens?_method=DELETE&token_id={token}", headers=tricks)
    client.post("/api/v1/me", headers=tricks, data={"_method": "DELETE"})
    assert client.get("/api/v1/requests?state=received").json() == listed
    assert desk.client("requester").get("/api/v1/me").status_code == 200


BOMBS = [
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b'{"model": ' + b"9" * 100_000 + b"}",
    b'{"model": 1e999999}',
    b'{"ids": [NaN, Infinity, -Infinity]}',
    b'{"model": "\\ud800", "name": "\\ud800", "code": "\\udfff"}',
    b'{"model": "\\u0000", "name": "\\u0000", "ids": ["\\u0000"]}',
    '{"evil": 1}'.encode("utf-16"),
    b'\xef\xbb\xbf{"evil": 1}',
    b"null",
    b"",
]


def json_operations(desk: Desk) -> Iterator[tuple[str, str]]:
    for path, operations in desk.app.openapi()["paths"].items():
        for method, operation in operations.items():
            if "application/json" in operation.get("requestBody", {}).get("content", {}):
                yield method.upper(), re.sub(r"\{\w+\}", "0" * 16, path)


@pytest.mark.parametrize("bomb", BOMBS, ids=range(len(BOMBS)))
def test_json_that_harms_parsers_is_refused(desk: Desk, bomb: bytes) -> None:
    client, n_operations = desk.client(), 0
    for method, path in json_operations(desk):
        answer = client.request(
            method, path, content=bomb, headers={"Content-Type": "application/json"}
        )
        assert 400 <= answer.status_code < 500 or answer.status_code == 202, (method, path)
        n_operations += 1
    assert n_operations > 10


def test_of_a_key_that_stands_twice_only_one_counts(desk: Desk) -> None:
    """The value that is checked is the value that is used."""
    admin = desk.client(f"admin@{OTHER}")
    sent = b'{"name": "twice", "role": "auditor", "tenant": "%s", "tenant": "%s"}'
    for first, last in (("default", OTHER), (OTHER, "default")):
        body = sent % (first.encode(), last.encode())
        answer = admin.post(
            "/api/v1/tokens", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code != 201 or answer.json()["tenant"] == OTHER


def test_a_token_cannot_create_one_with_more_scopes(desk: Desk) -> None:
    """Of every token that can make tokens, all that it makes are its equals at most."""
    admin = desk.client()
    helper = {"name": "helper", "role": "admin", "scopes": ["tokens:manage", "requests:read"]}
    made = admin.post("/api/v1/tokens", json=helper).json()
    makers = {None: desk.tokens["admin"].text, "narrow": made["token"]}
    makers["bound"] = desk.tokens["admin@default"].text
    n_made = 0
    for text in makers.values():
        client = desk.client(None)
        client.headers["Authorization"] = f"Bearer {text}"
        me = client.get("/api/v1/me").json()
        for role, tenant in itertools.product(ROLES, (None, "default", OTHER)):
            body = {"name": "child", "role": role, "tenant": tenant}
            answer = client.post("/api/v1/tokens", json=body)
            if answer.status_code != 201:
                assert answer.status_code in (403, 404, 422)
                continue
            child = answer.json()
            n_made += 1
            assert set(child["scopes"]) <= set(me["scopes"])
            assert me["tenant"] in (None, child["tenant"])
    assert n_made > len(ROLES)
