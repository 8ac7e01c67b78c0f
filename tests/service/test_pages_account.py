"""Coming in and leaving; tokens and webhooks on their pages."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from letheon.service import ServiceSettings
from letheon.service.pages._shared import safe_path
from tests.service.desks import OTHER, QUICK, Desk, make_desk
from tests.service.page_tools import send


@given(st.text() | st.from_regex(r"[/\\]{1,3}[a-z\t\\/.@:?#]{0,12}", fullmatch=True))
def test_a_log_in_leads_nowhere_else(text: str) -> None:
    actual = safe_path(text)
    # As browsers read an address: no tabs or line ends, a backslash is a slash.
    read = re.sub(r"[\t\r\n]", "", actual).replace("\\", "/").strip()
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
    assert "This is a receipt code, not a token" in answer.text


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


def test_a_token_for_an_unknown_tenant_or_with_a_used_name_is_made_with_a_warning(
    desk: Desk,
) -> None:
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
    assert "Check: name." in answer.text  # type: ignore[attr-defined]


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
