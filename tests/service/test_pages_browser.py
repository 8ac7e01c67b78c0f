"""Requests in a real browser: by keys alone, and without a script."""

from collections.abc import Iterator
from pathlib import Path
from socket import socket
from threading import Thread
from typing import Any

import pytest
import uvicorn

from tests.browser import chromium
from tests.service.desks import Desk, make_desk, person
from tests.service.page_tools import file


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
        states = [request.state for request in desk.ledger.requests.list()]
        assert sorted(states) == ["queued", "queued", "received"]
        page.keyboard.press("/")
        page.keyboard.type(desk.ledger.requests.list(state="received")[0].id[:8])
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
    request = file(desk, 1)
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
        page.check(f"input[value='{request.id}']")
        page.click("text=Reject…")
        page.select_option("#bulk-ground", "gdpr.art12.6")
        page.click("#bulk-reject button[value=reject]")
        page.wait_for_selector(".toast")
        assert desk.ledger.requests.get(request.id).reason == "gdpr.art12.6"
        page.goto(f"{address}/requests/new")
        page.fill("textarea[name=ids]", person(2))
        page.click("text=File request")
        assert page.text_content("#receipt-code").startswith("lethe-")
