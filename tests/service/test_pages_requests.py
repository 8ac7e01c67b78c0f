"""Pages of requests, log-in, tokens and webhooks; how all pages look and what they may not do."""

import re
from collections.abc import Iterator
from html import unescape
from importlib import import_module
from pathlib import Path
from socket import socket
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

import letheon.service
from letheon.ledger import Request
from letheon.ledger._compute import BUDGET_SPENT, NO_MODEL, NOBODY_HELD
from letheon.ledger._moves import STATES
from letheon.ledger._purge import _RESIDUE
from letheon.service import ServiceSettings
from letheon.service._templates import STATE_WORDS, days_words, make_templates
from letheon.service.desk.people import held_ids
from letheon.service.desk.request_actions import ACTIONS
from letheon.service.desk.request_words import stuck_words
from letheon.service.pages import _shared
from letheon.service.pages._shared import FLASHES, safe_path
from tests.browser import chromium
from tests.service.desks import OTHER, QUICK, Desk, make_desk, person

HERE = Path(letheon.service.__file__).parent
TEMPLATES = sorted((HERE / "templates").glob("*.html"))
PAGES = ("/", "/requests", "/requests?state=all", "/requests/new", "/requests/upload", "/tokens")


def csrf_of(client: TestClient, path: str = "/") -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', client.get(path).text)
    assert found is not None
    return found[1]


def send(client: TestClient, path: str, **values: object) -> object:
    return client.post(path, data={"csrf": csrf_of(client), **values})


def shown_ids(text: str) -> list[str]:
    """Ids of the requests in the table of a page, in their order."""
    return re.findall(r'<th scope="row" class="main-cell"><a href="/requests/([0-9a-f]{32})"', text)


def twin_of(text: str) -> str:
    found = re.search(r'rel="alternate" type="application/json" href="([^"]+)"', text)
    assert found is not None
    return unescape(found[1])


def file(desk: Desk, *numbers: int, by: str = "operator", **given: object) -> Request:
    with desk.ledger.acting(desk.tokens[by].id):
        return desk.ledger.request([person(one) for one in numbers], model="risk", **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk with requests in many states; tests of this file only read it."""
    desk = make_desk(tmp_path_factory.mktemp("filled"))
    file(desk, 1, verified=True)
    desk.work()
    file(desk, 2, by="requester")
    file(desk, 3, verified=True, regime="ccpa", ground="ccpa.1798.105")
    file(desk, 4, 5, 6, 7, verified=True)
    desk.ledger.reject(file(desk, 8).id, "gdpr.art12.6")
    desk.ledger.hold(file(desk, 9, verified=True).id, "litigation-hold", "2027-12-01")
    desk.ledger.request([person(1)], model="churn", tenant=OTHER)
    yield desk
    desk.close()


# How it looks: what can be computed is computed.


def tokens_of_colour() -> dict[str, tuple[str, str]]:
    text = (HERE / "static" / "desk.css").read_text()
    found = re.findall(r"--([a-z-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", text)
    return {name: (light, dark) for name, light, dark in found}


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


TONES = ("good", "warn", "bad", "info", "neutral")
GROUNDS = ("canvas", "surface", "raised", "sunken", "hover")
TEXTS = [
    *((text, ground) for text in ("ink", "soft") for ground in GROUNDS),
    *((tone, f"{tone}-wash") for tone in TONES),
    *((tone, ground) for tone in TONES for ground in ("surface", "canvas")),
    *(("ink", f"{tone}-wash") for tone in TONES),
    *(("accent", ground) for ground in ("canvas", "surface", "hover", "accent-wash")),
    ("accent-strong", "accent-wash"),
    *(("on-accent", ground) for ground in ("accent", "accent-strong")),
    *(("on-danger", ground) for ground in ("danger", "danger-strong")),
]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(theme: int) -> None:
    colours = tokens_of_colour()
    poor = {
        pair: round(contrast(colours[pair[0]][theme], colours[pair[1]][theme]), 2)
        for pair in TEXTS
        if contrast(colours[pair[0]][theme], colours[pair[1]][theme]) < 4.5
    }
    assert poor == {}


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_edges_of_fields_and_bars_can_be_seen(theme: int) -> None:
    colours = tokens_of_colour()
    assert contrast(colours["edge"][theme], colours["surface"][theme]) >= 3
    for tone in ("good", "warn", "bad", "info"):
        assert contrast(colours[f"{tone}-fill"][theme], colours["sunken"][theme]) >= 2.3, tone


def test_black_on_white_is_the_known_contrast() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def forbidden_in(text: str) -> list[str]:
    """What the content policy of the desk would not run or show."""
    return re.findall(
        r"""\sstyle=|<style|<script(?![^>]*\ssrc=)|\son[a-z]+=|hx-on|javascript:|hx-vals=["']js:""",
        text,
    )


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_has_inline_script_or_style(path: Path) -> None:
    assert forbidden_in(path.read_text()) == []


@pytest.mark.parametrize(
    "planted",
    [
        '<p style="color: red">',
        "<script>alert(1)</script>",
        '<a onclick="x()">',
        "<style>p {}</style>",
        '<a href="javascript:x()">',
    ],
)
def test_planted_inline_code_is_found(planted: str) -> None:
    assert forbidden_in(planted)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_every_picture_that_a_template_names_exists(path: Path) -> None:
    ui = make_templates().env.globals["ui"]
    text = path.read_text()
    names = re.findall(r'(?:ui\.)?icon\("([a-z]+)"', text) + re.findall(r'picture="([a-z]+)"', text)
    empty = {name for name in names if not re.search("<(path|circle)", str(ui.icon(name)))}  # type: ignore[attr-defined]
    assert empty == set()


def test_every_state_has_words_and_every_action_a_message() -> None:
    assert set(STATE_WORDS) == set(STATES)
    assert set(ACTIONS) <= set(FLASHES)


@given(st.integers(-10_000, 10_000))
def test_days_left_say_the_number_and_a_word(days: int) -> None:
    words = days_words(days)
    assert words.word == "due today" if days == 0 else str(abs(days)) in words.word.replace(",", "")
    assert (words.tone == "bad") == (days <= 0)
    assert words.word.endswith("late") == (days < 0)


# Coming in.


@given(st.text() | st.from_regex(r"[/\\]{1,3}[a-z\t\\/.@:?#]{0,12}", fullmatch=True))
def test_a_log_in_leads_nowhere_else(text: str) -> None:
    found = safe_path(text)
    # As browsers read an address: no tabs or line ends, a backslash is a slash.
    read = re.sub(r"[\t\r\n]", "", found).replace("\\", "/").strip()
    assert read.startswith("/")
    assert not read.startswith("//")
    assert urlsplit(read).netloc == ""


@pytest.mark.parametrize("path", ["/requests?state=queued&order=newest", "/audits/1", "/"])
def test_a_path_of_the_desk_is_kept(path: str) -> None:
    assert safe_path(path) == path


def test_log_in_sets_a_cookie_that_scripts_and_other_sites_do_not_get(shared_desk: Desk) -> None:
    client = shared_desk.client(None)
    token = shared_desk.tokens["operator"].text
    answer = client.post("/login", data={"token": token, "next": "/requests?order=newest"})
    cookie = answer.headers["set-cookie"]
    assert answer.headers["location"] == "/requests?order=newest"
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert token not in cookie


def test_cookies_insist_on_https_where_the_desk_is_reached_by_it(tmp_path: Path) -> None:
    settings = ServiceSettings(**(vars(QUICK) | {"public_url": "https://desk.example.org"}))
    desk = make_desk(tmp_path, settings=settings)
    answer = desk.client(None).post("/login", data={"token": desk.tokens["admin"].text})
    desk.close()
    assert "Secure" in answer.headers["set-cookie"]


@pytest.mark.parametrize("name", ["expired", "revoked", None])
def test_a_token_that_is_not_valid_does_not_come_in(shared_desk: Desk, name: str | None) -> None:
    client = shared_desk.client(None)
    text = "lth_guess" if name is None else shared_desk.tokens[name].text
    answer = client.post("/login", data={"token": text})
    assert answer.status_code == 401
    assert "unknown, expired or revoked" in answer.text
    assert text not in answer.text
    assert "letheon_session" not in client.cookies


def test_a_receipt_code_in_the_log_in_is_told_apart(shared_desk: Desk) -> None:
    answer = shared_desk.client(None).post("/login", data={"token": "LETHE-0123-4567"})
    assert answer.status_code == 401
    assert "That is a receipt code, and no token" in answer.text


def test_log_in_from_another_site_is_refused(shared_desk: Desk) -> None:
    answer = shared_desk.client(None).post(
        "/login",
        data={"token": shared_desk.tokens["admin"].text},
        headers={"Origin": "https://evil.example"},
    )
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_log_in_anew_ends_the_session_before(shared_desk: Desk) -> None:
    client = shared_desk.browser("operator")
    old = client.cookies["letheon_session"]
    client.post("/login", data={"token": shared_desk.tokens["admin"].text})
    other = shared_desk.client(None)
    other.cookies.set("letheon_session", old)
    assert other.get("/").status_code == 303
    assert client.get("/").status_code == 200


def test_log_out_ends_the_session(shared_desk: Desk) -> None:
    client = shared_desk.browser("operator")
    old = client.cookies["letheon_session"]
    assert send(client, "/logout").status_code == 303  # type: ignore[attr-defined]
    client.cookies.set("letheon_session", old)
    assert client.get("/requests").headers["location"] == "/login?next=/requests"


def test_who_has_no_session_is_led_to_the_log_in_and_back(shared_desk: Desk) -> None:
    client = shared_desk.client(None)
    answer = client.get("/requests?state=queued")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=/requests%3Fstate%3Dqueued"
    page = client.get(answer.headers["location"])
    assert 'name="next" value="/requests?state=queued"' in page.text


def test_a_script_without_a_session_is_told_to_go_to_the_log_in(shared_desk: Desk) -> None:
    answer = shared_desk.client(None).get("/requests", headers={"HX-Request": "true"})
    assert answer.status_code == 204
    assert answer.headers["hx-redirect"] == "/login?next=/requests"


# Forms.


def test_a_form_without_the_token_of_its_session_changes_nothing(desk: Desk) -> None:
    found = file(desk, 1)
    client, other = desk.browser("operator"), desk.browser("operator")
    for csrf in ({}, {"csrf": ""}, {"csrf": csrf_of(other)}):
        answer = client.post(f"/requests/{found.id}", data={"action": "verify", **csrf})
        assert answer.status_code == 403
    assert desk.ledger.request_of(found.id).state == "received"


def test_a_form_of_another_site_changes_nothing(desk: Desk) -> None:
    found, client = file(desk, 1), desk.browser("operator")
    values = {"action": "verify", "csrf": csrf_of(client)}
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = client.post(f"/requests/{found.id}", data=values, headers=headers)
        assert answer.status_code == 403
    assert desk.ledger.request_of(found.id).state == "received"
    assert client.post(f"/requests/{found.id}", data=values).status_code == 303


def test_an_action_is_done_in_the_name_of_the_token_and_said_once(desk: Desk) -> None:
    found, client = file(desk, 1), desk.browser("operator")
    answer = client.post(
        f"/requests/{found.id}", data={"action": "verify", "csrf": csrf_of(client)}
    )
    said = client.get(answer.headers["location"]).text
    assert "Identity recorded as verified." in said
    assert "by you" in said
    assert "Identity recorded as verified." not in client.get(f"/requests/{found.id}").text
    assert desk.ledger.request_of(found.id).verified_by == desk.tokens["operator"].id


def test_a_request_is_told_about_and_answered_with_what_the_forms_hold(desk: Desk) -> None:
    """Numbers come as texts from a form; the page's own values must do."""
    client = desk.browser("operator")
    made = desk.ledger.request([person(3)], model="risk", verified=True)
    assert send(client, f"/requests/{made.id}", action="tell", recipients="2").status_code == 303  # type: ignore[attr-defined]
    desk.work()
    wrong = send(client, f"/requests/{made.id}", action="answer", recipients="two")
    assert wrong.status_code == 422  # type: ignore[attr-defined]
    page = client.get(f"/requests/{made.id}").text
    fields = re.findall(r'name="recipients"[^>]*value="([^"]*)"', page)
    answered = send(client, f"/requests/{made.id}", action="answer", recipients=fields[-1])
    assert answered.status_code == 303  # type: ignore[attr-defined]
    assert desk.ledger.request_of(made.id).state == "closed"


def test_an_action_that_is_refused_says_why_on_the_page(desk: Desk) -> None:
    found, client = file(desk, 1, verified=True), desk.browser("operator")
    answer = client.post(
        f"/requests/{found.id}", data={"action": "verify", "csrf": csrf_of(client)}
    )
    assert answer.status_code == 409
    assert "not in a state for that" in answer.text


def test_a_stuck_request_says_why_and_what_helps(desk: Desk) -> None:
    everybody = held_ids(desk.ledger, "risk", tenant="default")
    found = desk.ledger.request(everybody, model="risk", verified=True)
    desk.ledger.approve(found.id)
    desk.work()
    assert desk.ledger.request_of(found.id).state == "stuck"
    text = desk.browser("operator").get(f"/requests/{found.id}").text
    assert "no model can be trained on the rows that would remain" in text
    assert NO_MODEL in text


def test_every_code_of_the_ledger_for_stuck_has_words() -> None:
    codes = (NO_MODEL, BUDGET_SPENT, NOBODY_HELD, _RESIDUE)
    assert len({stuck_words(code) for code in (*codes, "memory-error")}) == len(codes) + 1


def test_a_request_that_ended_otherwise_says_that_nobody_was_erased(desk: Desk) -> None:
    rejected, cancelled = file(desk, 1), file(desk, 2)
    desk.ledger.reject(rejected.id, "gdpr.art12.6")
    desk.ledger.cancel(cancelled.id)
    client = desk.browser("operator")
    assert "the request was rejected." in client.get(f"/requests/{rejected.id}").text
    assert "the request was withdrawn." in client.get(f"/requests/{cancelled.id}").text


def test_hold_needs_a_day(desk: Desk) -> None:
    found, client = file(desk, 1, verified=True), desk.browser("operator")
    values = {"action": "hold", "ground": "litigation-hold", "csrf": csrf_of(client)}
    assert client.post(f"/requests/{found.id}", data=values).status_code == 422
    assert (
        client.post(f"/requests/{found.id}", data=values | {"until": "2027-09-01"}).status_code
        == 303
    )
    assert desk.ledger.request_of(found.id).state == "on_hold"


@pytest.mark.parametrize("role", ["requester", "operator", "approver", "auditor", "admin"])
def test_buttons_are_the_actions_that_the_api_names(filled: Desk, role: str) -> None:
    browser, client = filled.browser(role), filled.client(role)
    for one in client.get("/api/v1/requests").json()["items"]:
        text = browser.get(f"/requests/{one['id']}").text
        assert re.findall(r'name="action" value="([^"]+)"', text) == one["actions"]


def test_filing_shows_the_receipt_code_once(desk: Desk) -> None:
    client = desk.browser("operator")
    values = {"csrf": csrf_of(client), "model": "risk", "ids": person(3), "key": "a" * 32}
    first = client.post("/requests/new", data=values | {"receipt": "on"})
    assert re.search("lethe-[0-9A-Z-]{20,}", first.text)
    again = client.post("/requests/new", data=values | {"receipt": "on"})
    assert again.status_code == 303
    assert len(desk.ledger.requests()) == 1


def test_a_lost_receipt_code_is_replaced_by_who_filed_or_handles(desk: Desk) -> None:
    found = file(desk, 1, by="requester")
    for role, status in (("operator", 200), ("requester", 200), ("approver", 403)):
        answer = send(desk.browser(role), f"/requests/{found.id}/receipt-code")
        assert answer.status_code == status  # type: ignore[attr-defined]
        assert bool(re.search("lethe-[0-9A-Z-]{20,}", answer.text)) == (status == 200)  # type: ignore[attr-defined]


def test_filing_several_people_is_one_request_without_a_code(desk: Desk) -> None:
    client = desk.browser("operator")
    people = "\n".join(person(number) for number in range(3))
    answer = send(client, "/requests/new", model="risk", ids=people, receipt="on", verified="on")
    found = desk.ledger.requests()[0]
    assert answer.headers["location"] == f"/requests/{found.id}"  # type: ignore[attr-defined]
    assert found.n_ids == 3
    said = client.get(f"/requests/{found.id}").text
    assert "Recorded for 3 people, so without a receipt code" in said


def test_a_code_that_does_not_come_is_explained(desk: Desk) -> None:
    client = desk.browser("operator")
    values = {"model": "risk", "ids": person(3), "key": "d" * 32, "receipt": "on"}
    for text in ("shown this once", "its receipt code was shown then"):
        answer = send(client, "/requests/new", **values)
        where = answer.headers.get("location")  # type: ignore[attr-defined]
        assert text in (client.get(where) if where else answer).text  # type: ignore[attr-defined]
    several = f"{person(1)}\n{person(2)}"
    everywhere = send(client, "/requests/new", model="*", ids=several, receipt="on")
    shown = everywhere.text if everywhere.status_code == 200 else client.get("/").text  # type: ignore[attr-defined]
    assert "without a receipt code" in shown or "No receipt code" in shown


def test_filing_in_a_model_with_numbers(desk: Desk) -> None:
    client = desk.browser("operator")
    assert send(client, "/requests/new", model="forest", ids="7").status_code == 303  # type: ignore[attr-defined]
    refused = send(client, "/requests/new", model="forest", ids="seven")
    assert refused.status_code == 422  # type: ignore[attr-defined]
    assert desk.ledger.requests()[0].n_rows == 2


def test_a_refused_filing_does_not_repeat_the_ids(shared_desk: Desk) -> None:
    client = shared_desk.browser("operator")
    answer = send(client, "/requests/new", model="risk", ids="somebody-unknown")
    assert answer.status_code == 422  # type: ignore[attr-defined]
    assert "Line 1: a typo, or erased already? Nothing was filed." in answer.text  # type: ignore[attr-defined]
    assert "somebody-unknown" not in answer.text  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("model", "ids", "said"),
    [
        ("risk", f"{person(1)}\n\nnobody\n{person(2)}\nno-one", "Lines 3, 5: a typo"),
        ("risk", f"{person(1)}, {person(2)}", "One id per line; there is a comma"),
        ("forest", "7\n999999", "Line 2: a typo"),
        ("*", "nobody\nno-one", "No model of tenant default knows these people"),
    ],
)
def test_unknown_ids_are_named_by_their_lines(
    shared_desk: Desk, model: str, ids: str, said: str
) -> None:
    before = len(shared_desk.ledger.requests())
    answer = send(shared_desk.browser("operator"), "/requests/new", model=model, ids=ids)
    assert (answer.status_code, said in answer.text) == (422, True)  # type: ignore[attr-defined]
    assert len(shared_desk.ledger.requests()) == before


def test_all_of_many_unknown_lines_are_counted(shared_desk: Desk) -> None:
    ids = "\n".join(f"nobody-{number}" for number in range(25))
    answer = send(shared_desk.browser("operator"), "/requests/new", model="risk", ids=ids)
    assert "19, 20 and 5 more: a typo" in answer.text  # type: ignore[attr-defined]


def test_who_may_not_vouch_cannot_file_as_verified(desk: Desk) -> None:
    client = desk.browser("requester")
    assert 'name="verified"' not in client.get("/requests/new").text
    answer = send(client, "/requests/new", model="risk", ids=person(3), verified="on")
    assert answer.status_code == 403  # type: ignore[attr-defined]
    assert desk.ledger.requests() == ()


def test_upload_files_each_line_once(desk: Desk) -> None:
    client = desk.browser("operator")
    values = {"csrf": csrf_of(client), "key": "b" * 32}
    sheet = f"model,id\nrisk,{person(1)}\n\nforest,7\nrisk,nobody-we-know\n"
    for _ in range(2):
        answer = client.post("/requests/upload", data=values, files={"file": ("a.csv", sheet)})
        assert answer.status_code == 200
        assert "2 requests recorded, 1 line refused" in answer.text
        assert "Line 5: " in answer.text
        assert "nobody-we-know" not in answer.text
    assert len(desk.ledger.requests()) == 2


def test_an_upload_says_what_is_a_duplicate(desk: Desk) -> None:
    file(desk, 1, verified=True)
    client, sheet = desk.browser("operator"), f"model,id\nrisk,{person(1)}\nrisk,{person(2)}\n"
    values = {"csrf": csrf_of(client), "verified": "on"}
    answer = client.post("/requests/upload", data=values, files={"file": ("a.csv", sheet)})
    assert "2 requests recorded, 1 as duplicate of open requests" in answer.text


@pytest.mark.parametrize(
    ("sheet", "said"),
    [
        ("", "The file is empty"),
        ("model\nrisk\n", "there is no column id;"),
        ("model;id\nrisk;1\n", "there are semicolons"),
        ("model,id\nrisk\n", "1 cells, and not 2"),
        ("\0", "a NUL character"),
    ],
)
def test_upload_of_a_wrong_file_says_so_once(shared_desk: Desk, sheet: str, said: str) -> None:
    client = shared_desk.browser("operator")
    values = {"csrf": csrf_of(client)}
    answer = client.post("/requests/upload", data=values, files={"file": ("a.csv", sheet)})
    assert answer.status_code == 422
    assert 'role="alert"' in answer.text
    assert answer.text.count(said) == 1


# Lists.


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
    found = {
        query: len(shown_ids(client.get(f"/requests{query}").text))
        for query in ("", "?state=all", "?state=rejected", "?regime=ccpa", "?search=zz")
    }
    assert found == {
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
        found = re.search(r'rel="next" href="([^"]+)"', text)
        path = unescape(found[1]) if found else ""
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
    assert [desk.ledger.request_of(one).state for one in chosen] == ["queued", "queued"]


def test_of_many_those_that_cannot_be_are_named(desk: Desk) -> None:
    good, bad = file(desk, 1), file(desk, 2, verified=True)
    client = desk.browser("operator")
    answer = send(client, "/requests/actions", action="verify", requests=[good.id, bad.id])
    assert "1 request done, 1 request refused" in answer.text  # type: ignore[attr-defined]
    assert f"{bad.id[:12]}</code></a>: is queued; its identity" in answer.text  # type: ignore[attr-defined]
    assert f'/requests/{bad.id}"' in answer.text  # type: ignore[attr-defined]
    assert desk.ledger.request_of(good.id).state == "queued"


def test_many_are_rejected_on_a_ground(desk: Desk) -> None:
    found, client = file(desk, 1), desk.browser("operator")
    values = {"action": "reject", "requests": [found.id], "ground": "gdpr.art12.6"}
    send(client, "/requests/actions", **values)
    assert desk.ledger.request_of(found.id).reason == "gdpr.art12.6"


def test_many_are_not_rejected_without_a_ground(desk: Desk) -> None:
    found, client = file(desk, 1), desk.browser("operator")
    send(client, "/requests/actions", action="reject", requests=[found.id], ground="")
    assert "Choose a legal ground first" in client.get("/requests").text
    assert desk.ledger.request_of(found.id).state == "received"


@pytest.mark.parametrize(("law", "other"), [("gdpr", "ccpa."), ("ccpa", "gdpr.")])
def test_no_ground_is_chosen_beforehand_and_none_is_of_the_other_law(
    desk: Desk, law: str, other: str
) -> None:
    ground = {"gdpr": "gdpr.art17.1.b", "ccpa": "ccpa.1798.105"}[law]
    found = file(desk, 1, regime=law, ground=ground, verified=True)
    text = desk.browser("operator").get(f"/requests/{found.id}").text
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
    assert "to answer: all is destroyed" in home
    assert "to answer: erased with an earlier request" in home
    assert "Covered by #1" in client.get(f"/requests/{again}").text
    send(client, "/requests/actions", action="answer", requests=[*chosen, again])
    assert {desk.ledger.request_of(one).state for one in (*chosen, again)} == {"closed"}
    assert "to answer" not in client.get("/").text


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
        assert "Erasing cannot be undone" in asked or "erasing cannot be undone" in asked
        assert asked.index(f'value="{name}"') > asked.index("cannot be undone")
        assert text.count(f'name="action" value="{name}"') == 1


@pytest.mark.parametrize("action", ["hold", "tell", "drop-table", ""])
def test_other_actions_are_not_for_many(desk: Desk, action: str) -> None:
    found, client = file(desk, 1, verified=True), desk.browser("operator")
    answer = send(client, "/requests/actions", action=action, requests=[found.id])
    assert answer.status_code == 422  # type: ignore[attr-defined]
    assert desk.ledger.request_of(found.id).state == "queued"


def test_back_leads_nowhere_else(desk: Desk) -> None:
    found, client = file(desk, 1), desk.browser("operator")
    values = {"action": "verify", "requests": [found.id], "back": "//evil.example"}
    answer = send(client, "/requests/actions", **values)
    assert answer.headers["location"] == "/requests"  # type: ignore[attr-defined]


# Who sees what.


@pytest.mark.parametrize("role", ["admin", "operator", "approver", "auditor", "requester"])
def test_no_page_shows_an_id_of_a_person(filled: Desk, role: str) -> None:
    client = filled.browser(role)
    pages = [*PAGES, *(f"/requests/{one.id}" for one in filled.ledger.requests())]
    texts = {path: client.get(path).text for path in pages}
    assert {path for path, text in texts.items() if re.search(r"person-\d", text)} == set()


@pytest.mark.parametrize(
    "path", ["/requests/abc", "/models/risk/compare", "/nowhere", f"/requests/{'0' * 32}"]
)
def test_problems_of_pages_speak_to_people(filled: Desk, path: str) -> None:
    answer = filled.browser().get(path)
    found = re.search('<div class="empty">(.*)</main>', answer.text, re.DOTALL)
    assert answer.status_code in (404, 422)
    assert found is not None
    assert not re.search("/api/|openapi|pattern|Field required|letheon [a-z]+ list", found[1])


def test_a_request_of_another_tenant_is_as_if_it_were_not_there(filled: Desk) -> None:
    client = filled.browser(f"operator@{OTHER}")
    mine = {one.tenant: one.id for one in filled.ledger.requests()}
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
    assert "to approve" in filled.browser("approver").get("/").text
    operator = filled.browser("operator").get("/").text
    assert "identity to verify" in operator
    assert "to approve</span>" not in operator


def test_home_lists_what_it_counts_as_open(desk: Desk) -> None:
    found = file(desk, 1, verified=True)
    desk.work()
    assert desk.ledger.request_of(found.id).state == "purged"
    text = desk.browser("operator").get("/").text
    assert shown_ids(text) == [found.id]
    assert "No open requests" not in text


def test_a_day_of_a_moment_is_that_of_utc() -> None:
    day = make_templates().env.filters["day"]
    assert day("2026-11-16T00:30:00+01:00") == "15 Nov 2026 UTC"
    assert day("2026-11-16") == "16 Nov 2026"


def test_what_somebody_sends_who_may_not_is_not_read(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    async def noted(request: Any) -> Any:
        read.append(request.url.path)
        return await real(request)

    real = _shared._read_form
    monkeypatch.setattr(_shared, "_read_form", noted)
    large = {"model": ("a.blob", b"x" * 2**20)}
    for name in ("requester", "admin"):
        answer = desk.browser(name).post("/models/new", data={"csrf": "wrong"}, files=large)
        assert answer.status_code == 403
    assert read.count("/models/new") == 1, "of the admin, who may send models, only"


def test_home_of_a_token_that_sees_no_requests(filled: Desk) -> None:
    answer = filled.browser("narrow").get("/")
    assert answer.status_code == 200
    assert "may not see requests" in answer.text


# In a real browser.


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Desk, str]]:
    """A desk of this test's own, and the address at which it is served."""
    desk = make_desk(tmp_path)
    with socket() as bound:
        bound.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(desk.app, log_level="error", timeout_keep_alive=1))
        thread = Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        yield desk, f"http://localhost:{bound.getsockname()[1]}"
        server.should_exit = True
        thread.join()
    desk.close()


def logged_in(browser: Any, desk: Desk, address: str, role: str, **given: Any) -> Any:
    page = browser.new_context(**given).new_page()
    page.goto(f"{address}/login")
    page.fill("input[name=token]", desk.tokens[role].text)
    page.keyboard.press("Enter")
    page.wait_for_selector("nav.side-nav", state="attached")
    page.wait_for_load_state("load")
    return page


def test_requests_are_handled_with_keys_alone(served: tuple[Desk, str]) -> None:
    desk, address = served
    for number in range(3):
        desk.clock.now += 60
        file(desk, number)
    with chromium() as browser:
        page = logged_in(browser, desk, address, "operator")
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
        for key in "gr":
            page.keyboard.press(key)
        page.wait_for_url(f"{address}/requests")
        for key in "jxjx":  # two rows are chosen
            page.keyboard.press(key)
        assert page.text_content("[data-selected]") == "2"
        assert page.is_disabled("button[data-does=reject]") is False
        page.click("button[data-does=verify]")
        assert page.text_content("#bulk-verify [data-selected]") == "2"
        page.click("#bulk-verify button[value=verify]")
        page.wait_for_selector(".toast")
        page.wait_for_load_state("load")
        states = [one.state for one in desk.ledger.requests()]
        assert sorted(states) == ["queued", "queued", "received"]
        page.keyboard.press("/")
        page.keyboard.type(desk.ledger.requests(state="received")[0].id[:8])
        page.wait_for_selector("tbody tr:only-child")
        assert "search=" in page.url
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_selector("button[popovertarget=ask-verify]")
        page.wait_for_load_state("load")
        page.keyboard.press("t")
        page.reload()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.click("footer button[popovertarget=keys]")
        page.uncheck("[data-keys-switch]")
        page.reload()
        assert page.is_checked("[data-keys-switch]") is False
        page.keyboard.press("t")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark", "keys are off"
        assert faults == []


def test_everything_works_without_a_script(served: tuple[Desk, str]) -> None:
    desk, address = served
    found = file(desk, 1)
    with chromium() as browser:
        page = logged_in(
            browser,
            desk,
            address,
            "admin",
            java_script_enabled=False,
            viewport={"width": 400, "height": 800},
        )
        page.click("button.menu-button")
        page.click('nav.side-nav a[href="/requests"]')
        page.check(f"input[value='{found.id}']")
        page.click("text=Reject…")
        page.select_option("#bulk-ground", "gdpr.art12.6")
        page.click("#bulk-reject button[value=reject]")
        page.wait_for_selector(".toast")
        assert desk.ledger.request_of(found.id).reason == "gdpr.art12.6"
        page.goto(f"{address}/requests/new")
        page.fill("textarea[name=ids]", person(2))
        page.click("text=File the request")
        assert page.text_content("#receipt-code").startswith("lethe-")


# Tokens and webhooks.


def test_a_token_is_made_shown_once_used_and_revoked(desk: Desk) -> None:
    client = desk.browser()
    made = send(client, "/tokens", name="intake", role="requester", tenant="default", days="30")
    text = re.findall("lth_[A-Za-z0-9_-]{40,}", made.text)[0]  # type: ignore[attr-defined]
    bearer = {"Authorization": f"Bearer {text}"}
    me = desk.client(None).get("/api/v1/me", headers=bearer).json()
    assert (me["role"], me["tenant"]) == ("requester", "default")
    assert text not in client.get("/tokens").text
    assert send(client, f"/tokens/{me['token']}/revoke").status_code == 303  # type: ignore[attr-defined]
    assert desk.client(None).get("/api/v1/me", headers=bearer).status_code == 401


def test_a_token_for_nobodys_tenant_or_with_a_used_name_is_made_with_a_warning(desk: Desk) -> None:
    client, given = desk.browser(), {"role": "operator", "name": "intake"}
    first = send(client, "/tokens", tenant="rivall", **given).text  # type: ignore[attr-defined]
    again = send(client, "/tokens", tenant=OTHER, **given).text  # type: ignore[attr-defined]
    assert ("Tenant rivall has no model" in first, "Another valid token" in first) == (True, False)
    assert ("has no model" in again, "Another valid token has this name" in again) == (False, True)


def test_a_token_bound_to_a_tenant_makes_only_such(desk: Desk) -> None:
    client = desk.browser("admin@default")
    assert send(client, "/tokens", name="x", role="operator", tenant=OTHER).status_code == 404  # type: ignore[attr-defined]
    made = send(client, "/tokens", name="x", role="operator")
    text = re.findall("lth_[A-Za-z0-9_-]{40,}", made.text)[0]  # type: ignore[attr-defined]
    me = desk.client(None).get("/api/v1/me", headers={"Authorization": f"Bearer {text}"}).json()
    assert me["tenant"] == "default"


def test_a_token_with_a_wrong_name_is_refused_on_the_page(shared_desk: Desk) -> None:
    answer = send(shared_desk.browser(), "/tokens", name="Maria M.", role="operator")
    assert answer.status_code == 422  # type: ignore[attr-defined]
    assert "Look at: name." in answer.text  # type: ignore[attr-defined]


def test_a_webhook_to_a_host_that_is_not_listed_is_refused_on_the_page(shared_desk: Desk) -> None:
    client = shared_desk.browser()
    answer = send(client, "/webhooks", url="https://169.254.169.254/", events=["received"])
    assert answer.status_code == 422  # type: ignore[attr-defined]
    assert "cannot be sent" in answer.text  # type: ignore[attr-defined]


def test_a_webhook_is_made_shown_and_removed(tmp_path: Path) -> None:
    hosts = {"webhook_hosts": ("hooks.example.org",)}
    desk = make_desk(tmp_path, settings=ServiceSettings(**(vars(QUICK) | hosts)))
    client = desk.browser()
    made = send(client, "/webhooks", url="https://hooks.example.org/x", events=["received"])
    assert 'id="new-secret"' in made.text  # type: ignore[attr-defined]
    path = re.findall(r'href="(/webhooks/[^"]+)"', client.get("/webhooks").text)[0]
    assert "No messages yet" in client.get(path).text
    assert send(client, f"{path}/delete").status_code == 303  # type: ignore[attr-defined]
    assert client.get(path).status_code == 404
    desk.close()
