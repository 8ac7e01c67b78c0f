"""Forms about requests: filing, uploading, acting on one."""

import re

import pytest

from letheon.ledger.purge.purge import _RESIDUE
from letheon.ledger.schemas import to_datetime
from letheon.ledger.worker.compute import BUDGET_SPENT, NO_MATCHING_ROWS, NO_MODEL
from letheon.service.pages._shared import format_moment
from letheon.service.request_views import explain_failure
from letheon.service.routes import filing
from tests.service.desks import Desk, person
from tests.service.page_tools import csrf_of, file, filled, send

__all__ = ["filled"]


def test_a_form_without_the_token_of_its_session_changes_nothing(desk: Desk) -> None:
    request = file(desk, 1)
    client, other = desk.browser("operator"), desk.browser("operator")
    for csrf in ({}, {"csrf": ""}, {"csrf": csrf_of(other)}):
        answer = client.post(f"/requests/{request.id}", data={"action": "verify", **csrf})
        assert answer.status_code == 403
    assert desk.ledger.requests.get(request.id).state == "received"


def test_a_form_of_another_site_changes_nothing(desk: Desk) -> None:
    request, client = file(desk, 1), desk.browser("operator")
    values = {"action": "verify", "csrf": csrf_of(client)}
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = client.post(f"/requests/{request.id}", data=values, headers=headers)
        assert answer.status_code == 403
    assert desk.ledger.requests.get(request.id).state == "received"
    assert client.post(f"/requests/{request.id}", data=values).status_code == 303


def test_an_action_is_done_in_the_name_of_the_token_and_said_once(desk: Desk) -> None:
    request, client = file(desk, 1), desk.browser("operator")
    answer = client.post(
        f"/requests/{request.id}", data={"action": "verify", "csrf": csrf_of(client)}
    )
    said = client.get(answer.headers["location"]).text
    assert "Identity marked as verified." in said
    assert "by you" in said
    assert "Identity marked as verified." not in client.get(f"/requests/{request.id}").text
    assert desk.ledger.requests.get(request.id).verified_by == desk.tokens["operator"].id


def test_a_request_is_told_about_and_answered_with_what_the_forms_hold(desk: Desk) -> None:
    """Numbers come as texts from a form; the page's own values must do."""
    client = desk.browser("operator")
    made = desk.ledger.requests.submit([person(3)], model="risk", verified=True)
    assert send(client, f"/requests/{made.id}", action="tell", recipients="2").status_code == 303  # type: ignore[attr-defined]
    desk.work()
    wrong = send(client, f"/requests/{made.id}", action="answer", recipients="two")
    assert wrong.status_code == 422  # type: ignore[attr-defined]
    page = client.get(f"/requests/{made.id}").text
    fields = re.findall(r'name="recipients"[^>]*value="([^"]*)"', page)
    answered = send(client, f"/requests/{made.id}", action="answer", recipients=fields[-1])
    assert answered.status_code == 303  # type: ignore[attr-defined]
    assert desk.ledger.requests.get(made.id).state == "closed"


def test_an_action_that_is_refused_says_why_on_the_page(desk: Desk) -> None:
    request, client = file(desk, 1, verified=True), desk.browser("operator")
    answer = client.post(
        f"/requests/{request.id}", data={"action": "verify", "csrf": csrf_of(client)}
    )
    assert answer.status_code == 409
    assert "in the wrong state" in answer.text


def test_a_stuck_request_says_why_and_what_helps(desk: Desk) -> None:
    all_ids = desk.ledger.models.ids("risk", tenant="default").distinct().to_list()
    request = desk.ledger.requests.submit(all_ids, model="risk", verified=True)
    desk.ledger.requests.approve(request.id)
    desk.work()
    assert desk.ledger.requests.get(request.id).state == "stuck"
    text = desk.browser("operator").get(f"/requests/{request.id}").text
    assert "Failed after 1 attempt" in text
    assert "No model can be trained without these rows" in text
    assert 'value="retry"' not in text, "a retry cannot help"
    assert NO_MODEL in text


def test_every_code_of_the_ledger_for_stuck_has_words() -> None:
    codes = (NO_MODEL, BUDGET_SPENT, NO_MATCHING_ROWS, _RESIDUE)
    assert len({explain_failure(code) for code in (*codes, "memory-error")}) == len(codes) + 1


def test_a_rejected_or_cancelled_request_says_that_no_data_was_erased(desk: Desk) -> None:
    rejected, cancelled = file(desk, 1), file(desk, 2)
    desk.ledger.requests.reject(rejected.id, "gdpr.art12.6")
    desk.ledger.requests.cancel(cancelled.id)
    client = desk.browser("operator")
    assert "the request was rejected." in client.get(f"/requests/{rejected.id}").text
    assert "the request was withdrawn." in client.get(f"/requests/{cancelled.id}").text


def test_hold_needs_a_day(desk: Desk) -> None:
    request, client = file(desk, 1, verified=True), desk.browser("operator")
    values = {"action": "hold", "ground": "litigation-hold", "csrf": csrf_of(client)}
    assert client.post(f"/requests/{request.id}", data=values).status_code == 422
    assert (
        client.post(f"/requests/{request.id}", data=values | {"until": "2027-09-01"}).status_code
        == 303
    )
    assert desk.ledger.requests.get(request.id).state == "on_hold"


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
    assert len(desk.ledger.requests.list()) == 1


def test_a_lost_receipt_code_is_replaced_by_who_handles(desk: Desk) -> None:
    request = file(desk, 1, by="requester")
    for role, status in (("operator", 200), ("requester", 403), ("approver", 403)):
        answer = send(desk.browser(role), f"/requests/{request.id}/receipt-code")
        assert answer.status_code == status  # type: ignore[attr-defined]
        assert bool(re.search("lethe-[0-9A-Z-]{20,}", answer.text)) == (status == 200)  # type: ignore[attr-defined]


def test_filing_several_people_is_one_request_without_a_code(desk: Desk) -> None:
    client = desk.browser("operator")
    people = "\n".join(person(number) for number in range(3))
    answer = send(client, "/requests/new", model="risk", ids=people, receipt="on", verified="on")
    request = desk.ledger.requests.list()[0]
    assert answer.headers["location"] == f"/requests/{request.id}"  # type: ignore[attr-defined]
    assert request.n_ids == 3
    said = client.get(f"/requests/{request.id}").text
    assert "Request for 3 people recorded without a receipt code" in said


def test_a_code_that_does_not_come_is_explained(desk: Desk) -> None:
    client = desk.browser("operator")
    values = {"model": "risk", "ids": person(3), "key": "d" * 32, "receipt": "on"}
    for text in ("shown only once", "its receipt code was shown then"):
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
    assert desk.ledger.requests.list()[0].n_rows == 2


def test_a_refused_filing_does_not_repeat_the_ids(shared_desk: Desk) -> None:
    client = shared_desk.browser("operator")
    answer = send(client, "/requests/new", model="risk", ids="unknown-person")
    assert answer.status_code == 422  # type: ignore[attr-defined]
    assert "Check the spelling in line 1. No request was filed." in answer.text  # type: ignore[attr-defined]
    assert "unknown-person" not in answer.text  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("model", "ids", "said"),
    [
        (
            "risk",
            f"{person(1)}\n\nunknown\n{person(2)}\nno-one",
            "spelling in lines 3, 5.",
        ),
        ("risk", f"{person(1)}, {person(2)}", "Write one id per line, without commas"),
        ("forest", "7\n999999", "Check the spelling in line 2."),
        ("*", "unknown\nno-one", "No model of tenant default has these ids"),
    ],
)
def test_unknown_ids_are_named_by_their_lines(
    shared_desk: Desk, model: str, ids: str, said: str
) -> None:
    before = len(shared_desk.ledger.requests.list())
    answer = send(shared_desk.browser("operator"), "/requests/new", model=model, ids=ids)
    assert (answer.status_code, said in answer.text) == (422, True)  # type: ignore[attr-defined]
    assert len(shared_desk.ledger.requests.list()) == before


def test_all_of_many_unknown_lines_are_counted(shared_desk: Desk) -> None:
    ids = "\n".join(f"unknown-{number}" for number in range(25))
    answer = send(shared_desk.browser("operator"), "/requests/new", model="risk", ids=ids)
    assert "19, 20 and 5 more." in answer.text  # type: ignore[attr-defined]


def test_who_may_not_vouch_cannot_file_as_verified(desk: Desk) -> None:
    client = desk.browser("requester")
    assert 'name="verified"' not in client.get("/requests/new").text
    answer = send(client, "/requests/new", model="risk", ids=person(3), verified="on")
    assert answer.status_code == 403  # type: ignore[attr-defined]
    assert desk.ledger.requests.list() == ()


def test_upload_files_each_line_once(desk: Desk) -> None:
    client = desk.browser("operator")
    values = {"csrf": csrf_of(client), "key": "b" * 32}
    sheet = f"model,id\nrisk,{person(1)}\n\nforest,7\nrisk,unknown-person\n"
    for _ in range(2):
        answer = client.post("/requests/upload", data=values, files={"file": ("a.csv", sheet)})
        assert answer.status_code == 200
        assert "2 requests recorded, 1 line skipped" in answer.text
        assert "Line 5: " in answer.text
        assert "unknown-person" not in answer.text
    assert len(desk.ledger.requests.list()) == 2


def test_an_upload_says_what_is_a_duplicate(desk: Desk) -> None:
    file(desk, 1, verified=True)
    client, sheet = desk.browser("operator"), f"model,id\nrisk,{person(1)}\nrisk,{person(2)}\n"
    values = {"csrf": csrf_of(client), "verified": "on"}
    answer = client.post("/requests/upload", data=values, files={"file": ("a.csv", sheet)})
    assert "2 requests recorded, 1 as a duplicate of an open request" in answer.text


@pytest.mark.parametrize(
    ("sheet", "said"),
    [
        ("", "The file is empty"),
        ("model\nrisk\n", "missing columns: id;"),
        ("model;id\nrisk;1\n", "the separator is a semicolon"),
        ("model,id\nrisk\n", "1 cells, expected 2"),
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


@pytest.mark.parametrize("law", ["gdpr", "ccpa"])
def test_the_default_ground_is_that_of_the_law(desk: Desk, law: str) -> None:
    """Without a script the form may send the preselected ground of the other law."""
    client = desk.browser("operator")
    text = client.get("/requests/new").text
    assert "(CCPA: right to delete)" not in text
    options = re.findall('<option value="([^"]+)" data-for="([a-z]+)" data-default', text)
    assert dict(map(reversed, options)) == filing.DEFAULT_GROUNDS
    values = {"model": "risk", "ids": person(1), "regime": law, "ground": "gdpr.art17.1.b"}
    assert send(client, "/requests/new", **values).status_code == 303  # type: ignore[attr-defined]
    assert desk.ledger.requests.list()[0].ground == filing.DEFAULT_GROUNDS[law]


def test_a_queued_request_says_when_it_runs(desk: Desk) -> None:
    request, client = file(desk, 1, verified=True), desk.browser("operator")
    text = client.get(f"/requests/{request.id}").text
    latest = to_datetime(int(request.received_at.timestamp()) + 72 * 3600)
    assert f"when 50 rows are waiting (now 2), at the latest on {format_moment(latest)}." in text
    desk.clock.now += 73 * 3600
    client = desk.browser("operator")
    assert "as soon as the worker is free" in client.get(f"/requests/{request.id}").text
    desk.work()
    assert "rows are waiting" not in client.get(f"/requests/{request.id}").text
