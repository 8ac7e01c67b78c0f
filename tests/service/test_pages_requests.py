"""Lists of requests, acting on many, and who sees what."""

import re
from html import unescape
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from letheon.service import forms
from letheon.service.pages import _shared
from letheon.service.pages._shared import make_templates
from tests.service.desks import OTHER, Desk, make_empty_desk
from tests.service.page_tools import file, filled, send, shown_ids, twin_of

__all__ = ["filled"]

PAGES = ("/", "/requests", "/requests?state=all", "/requests/new", "/requests/upload", "/tokens")


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?state=all",
        "?state=queued&state=received",
        "?model=risk&order=newest",
        "?regime=ccpa",
        "?overdue=true",
        "?tenant=rival",
        "?search=%231",
        "?model=&regime=&search=",
    ],
)
@pytest.mark.parametrize("role", ["admin", "requester", f"operator@{OTHER}"])
def test_a_list_shows_what_its_json_twin_says(filled: Desk, role: str, query: str) -> None:
    answer = filled.browser(role).get(f"/requests{query}")
    if "tenant=" in query and "@" in role:
        query = query.replace("rival", OTHER)
    twin = filled.client(role).get(twin_of(answer.text)).json()
    assert shown_ids(answer.text) == [one["id"] for one in twin["items"]]


def test_lists_differ_by_what_is_asked(filled: Desk) -> None:
    client = filled.browser()
    by_name = {
        query: len(shown_ids(client.get(f"/requests{query}").text))
        for query in ("", "?state=all", "?state=rejected", "?regime=ccpa", "?search=zz")
    }
    assert by_name == {
        "": 6,
        "?state=all": 7,
        "?state=rejected": 1,
        "?regime=ccpa": 1,
        "?search=zz": 0,
    }


def test_the_next_page_goes_on_where_this_one_ends(
    filled: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("letheon.service.pages.requests"), "_LIMIT", 2)
    client, path, seen = filled.browser(), "/requests?state=all", []
    while path:
        text = client.get(path).text
        seen += shown_ids(text)
        match = re.search(r'rel="next" href="([^"]+)"', text)
        path = unescape(match[1]) if match else ""
    assert len(seen) == len(set(seen)) == 7


@pytest.mark.parametrize("query", ["?state=gone", "?after=x", "?order=up", "?due_before=soon"])
def test_filters_that_cannot_be_are_a_page_that_says_so(filled: Desk, query: str) -> None:
    answer = filled.browser().get(f"/requests{query}")
    assert answer.status_code == 422
    assert answer.headers["content-type"].startswith("text/html")


def test_many_are_approved_at_once(desk: Desk) -> None:
    chosen = [file(desk, *range(start, start + 4), verified=True).id for start in (1, 5)]
    client = desk.browser("approver")
    answer = send(client, "/requests/actions", action="approve", requests=chosen, back="/requests")
    assert answer.headers["location"] == "/requests"  # type: ignore[attr-defined]
    assert "Requests changed: 2." in client.get("/requests").text
    assert [desk.ledger.requests.get(one).state for one in chosen] == ["queued", "queued"]


def test_of_many_those_that_cannot_be_are_named(desk: Desk) -> None:
    good, bad = file(desk, 1), file(desk, 2, verified=True)
    client = desk.browser("operator")
    answer = send(client, "/requests/actions", action="verify", requests=[good.id, bad.id])
    assert "1 request changed, 1 request not changed" in answer.text  # type: ignore[attr-defined]
    assert f"{bad.id[:12]}</code></a>: has the state Queued; the identity" in answer.text  # type: ignore[attr-defined]
    assert f'/requests/{bad.id}"' in answer.text  # type: ignore[attr-defined]
    assert desk.ledger.requests.get(good.id).state == "queued"


def test_many_are_rejected_on_a_ground(desk: Desk) -> None:
    request, client = file(desk, 1), desk.browser("operator")
    values = {"action": "reject", "requests": [request.id], "ground": "gdpr.art12.6"}
    send(client, "/requests/actions", **values)
    assert desk.ledger.requests.get(request.id).reason == "gdpr.art12.6"


def test_many_are_not_rejected_without_a_ground(desk: Desk) -> None:
    request, client = file(desk, 1), desk.browser("operator")
    send(client, "/requests/actions", action="reject", requests=[request.id], ground="")
    assert "Choose a legal ground first" in client.get("/requests").text
    assert desk.ledger.requests.get(request.id).state == "received"


@pytest.mark.parametrize(("law", "other"), [("gdpr", "ccpa."), ("ccpa", "gdpr.")])
def test_no_ground_is_chosen_beforehand_and_none_is_of_the_other_law(
    desk: Desk, law: str, other: str
) -> None:
    ground = {"gdpr": "gdpr.art17.1.b", "ccpa": "ccpa.1798.105"}[law]
    request = file(desk, 1, regime=law, ground=ground, verified=True)
    text = desk.browser("operator").get(f"/requests/{request.id}").text
    for name in ("hold", "reject"):
        field = re.search(rf'<select[^>]* id="{name}-ground"[^>]*>(.*?)</select>', text, re.DOTALL)
        assert field is not None
        assert " required" in field[0].partition(">")[0]
        codes = re.findall('<option value="([^"]*)"', field[1])
        assert (codes[0], len(codes) > 2) == ("", True)
        assert not any(code.startswith(other) for code in codes)


def test_many_are_answered_at_once(desk: Desk) -> None:
    chosen = [file(desk, number, verified=True).id for number in (1, 2)]
    desk.work()
    again = file(desk, 1, verified=True).id
    client = desk.browser("operator")
    home = client.get("/").text
    assert "Answer people whose data is purged" in home
    assert "Answer people with duplicate requests" in home
    assert "Covered by certificate #1" in client.get(f"/requests/{again}").text
    send(client, "/requests/actions", action="answer", requests=[*chosen, again])
    assert {desk.ledger.requests.get(one).state for one in (*chosen, again)} == {"closed"}
    assert "Answer people" not in client.get("/").text


@pytest.mark.parametrize(
    ("state", "offered"),
    [("purged", ["answer"]), ("queued", ["reject"]), ("received", ["verify", "reject"])],
)
def test_for_many_only_what_one_of_them_permits_is_offered(
    filled: Desk, state: str, offered: list[str]
) -> None:
    text = filled.browser("operator").get(f"/requests?state={state}").text
    assert re.findall(r'name="action" value="([^"]+)"', text) == offered


@pytest.mark.parametrize("name", ["verify", "approve"])
def test_what_cannot_be_undone_is_asked_first(filled: Desk, name: str) -> None:
    state = {"verify": "received", "approve": "verified"}[name]
    role = {"verify": "operator", "approve": "approver"}[name]
    client = filled.browser(role)
    listed = client.get(f"/requests?state={state}").text
    single = client.get(f"/requests/{shown_ids(listed)[0]}").text
    for text, place in ((listed, f"bulk-{name}"), (single, f"ask-{name}")):
        asked = text.partition(f'id="{place}" popover')[2]
        assert "Erasure cannot be undone" in asked
        assert asked.index(f'value="{name}"') > asked.index("cannot be undone")
        assert text.count(f'name="action" value="{name}"') == 1


@pytest.mark.parametrize("action", ["hold", "tell", "drop-table", ""])
def test_other_actions_are_not_for_many(desk: Desk, action: str) -> None:
    request, client = file(desk, 1, verified=True), desk.browser("operator")
    answer = send(client, "/requests/actions", action=action, requests=[request.id])
    assert answer.status_code == 422  # type: ignore[attr-defined]
    assert desk.ledger.requests.get(request.id).state == "queued"


def test_back_leads_nowhere_else(desk: Desk) -> None:
    request, client = file(desk, 1), desk.browser("operator")
    values = {"action": "verify", "requests": [request.id], "back": "//evil.example"}
    answer = send(client, "/requests/actions", **values)
    assert answer.headers["location"] == "/requests"  # type: ignore[attr-defined]


# Who sees what.


@pytest.mark.parametrize("role", ["admin", "operator", "approver", "auditor", "requester"])
def test_no_page_shows_an_id_of_a_person(filled: Desk, role: str) -> None:
    client = filled.browser(role)
    pages = [*PAGES, *(f"/requests/{request.id}" for request in filled.ledger.requests.list())]
    texts = {path: client.get(path).text for path in pages}
    assert {path for path, text in texts.items() if re.search(r"person-\d", text)} == set()


@pytest.mark.parametrize(
    "path", ["/requests/abc", "/models/risk/compare", "/nowhere", f"/requests/{'0' * 32}"]
)
def test_problems_of_pages_speak_to_people(filled: Desk, path: str) -> None:
    answer = filled.browser().get(path)
    match = re.search('<div class="empty">(.*)</main>', answer.text, re.DOTALL)
    assert answer.status_code in (404, 422)
    assert match is not None
    assert not re.search("/api/|openapi|pattern|Field required|letheon [a-z]+ list", match[1])


def test_a_request_of_another_tenant_is_as_if_it_were_not_there(filled: Desk) -> None:
    client = filled.browser(f"operator@{OTHER}")
    mine = {request.tenant: request.id for request in filled.ledger.requests.list()}
    missing = client.get(f"/requests/{'0' * 32}")
    other = client.get(f"/requests/{mine['default']}")
    assert (other.status_code, other.text) == (missing.status_code, missing.text)
    assert client.get(f"/requests/{mine[OTHER]}").status_code == 200


def test_the_menu_shows_what_the_token_may_see(filled: Desk) -> None:
    def menu(role: str) -> set[str]:
        text = filled.browser(role).get("/requests").text.partition("</header>")[0]
        return set(re.findall(r'<li><a href="(/[a-z]*)', text))

    assert menu("requester") == {"/", "/requests", "/models"}
    assert menu("admin") >= {"/tokens", "/webhooks", "/audits"}


def test_home_counts_what_waits_for_the_one_who_looks(filled: Desk) -> None:
    assert "Approve requests</span>" in filled.browser("approver").get("/").text
    operator = filled.browser("operator").get("/").text
    assert "Verify identities" in operator
    assert "Approve requests</span>" not in operator


def test_home_lists_what_it_counts_as_open(desk: Desk) -> None:
    request = file(desk, 1, verified=True)
    desk.work()
    assert desk.ledger.requests.get(request.id).state == "purged"
    text = desk.browser("operator").get("/").text
    assert shown_ids(text) == [request.id]
    assert "No open requests" not in text


def test_a_day_of_a_moment_is_that_of_utc() -> None:
    day = make_templates().env.filters["day"]
    assert day("2026-11-16T00:30:00+01:00") == "15 Nov 2026 UTC"
    assert day("2026-11-16") == "16 Nov 2026"


def test_a_forbidden_request_body_is_not_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    async def noted(request: Any) -> Any:
        read.append(request.url.path)
        return await real(request)

    real = forms.read_form
    monkeypatch.setattr(_shared, "read_form", noted)
    large = {"model": ("a.blob", b"x" * 2**20)}
    for name in ("requester", "admin"):
        answer = desk.browser(name).post("/models/new", data={"csrf": "wrong"}, files=large)
        assert answer.status_code == 403
    assert read.count("/models/new") == 1, "of the admin, who may send models, only"


def test_home_of_a_token_that_sees_no_requests(filled: Desk) -> None:
    answer = filled.browser("narrow").get("/")
    assert answer.status_code == 200
    assert "does not permit you to see requests" in answer.text


def test_home_of_a_ledger_without_models_leads_to_the_registration(tmp_path: Path) -> None:
    desk = make_empty_desk(tmp_path)
    text = desk.browser("admin").get("/").text
    assert "Register your first model" in text
    assert 'href="/models/new"' in text
    assert "No open tasks" not in text
    auditor = desk.browser("auditor").get("/").text
    assert 'href="/models/new"' not in auditor
    assert "an operator or admin can register one" in auditor
    desk.close()
