"""The story of one erasure in a real browser, with the server killed on the way."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from letheon.ledger import Ledger, Policy
from letheon.service.pages import ROUTERS
from tests.browser import chromium
from tests.service.servers import serving
from tests.service.story import MODEL, PERSON, BrowserLog, BrowserStory, faults_of, flip_a_byte

HOOK = "http://127.0.0.1:9"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[BrowserStory]:
    """A desk over an empty ledger in which every request must be approved, and a browser."""
    home = tmp_path / "home"
    Ledger.create(home, name="story", policy=Policy(approve_above=0, pin_seconds=1)).close()
    (home / "service.toml").write_text(f'webhook_hosts = [{{host = "{HOOK}", internal = true}}]\n')
    with chromium() as browser, serving(home) as server:
        yield BrowserStory(server, browser)


def test_the_story(stage: BrowserStory) -> None:
    admin = stage.page()
    register_a_model(stage, admin)
    for role in ("operator", "approver"):
        stage.server.tokens[role] = make_a_token(stage, admin, role)
    request, code = file_a_request(stage)
    approve_by_keyboard(stage)
    certificate = apply_the_batch(stage, admin)
    assert certificate == "Certificate #1"
    verify_the_certificate(stage, admin)
    assert audit(stage, admin, "audit", restarts=True) == "Passed"
    assert audit(stage, admin, "drill", drill="model") == "Failed"
    path = flip_a_byte(stage.server.home)
    assert audit(stage, admin, "tampered") == "Failed", path
    check_the_receipt(stage, code)
    see_the_rest(stage, admin, request)
    assert stage.faults == []
    assert stage.errors() == []
    assert stage.elsewhere() == []
    assert unseen_pages(stage.seen) == set()


def unseen_pages(seen: set[str]) -> set[str]:
    """Return the routes of pages to which none of the paths leads."""
    routers = [route for router in ROUTERS for route in router.routes]
    routes = {
        item.path
        for item in routers
        if isinstance(item, APIRoute) and "GET" in (item.methods or ())
    }
    patterns = {route: re.sub(r"\{\w+\}", "[^/]+", route) for route in routes}
    return {
        route
        for route, pattern in patterns.items()
        if not any(re.fullmatch(pattern, path) for path in seen)
    }


def register_a_model(stage: BrowserStory, page: Any) -> None:
    page.goto(stage.url)
    stage.look(page, "login")
    stage.log_in(page, "admin")
    stage.look(page, "home-empty")
    stage.visit(page, "/models", "models-empty")
    stage.visit(page, "/models/new", "model-new")
    page.get_by_role("button", name="Add example model").click()
    page.wait_for_url(re.compile(f"/models/{MODEL}"))
    stage.look(page, "model-first")


def make_a_token(stage: BrowserStory, page: Any, role: str) -> str:
    stage.visit(page, "/tokens", f"tokens-before-{role}")
    form = page.get_by_role("form", name="New token")
    form.get_by_label("Name").fill(f"our-{role}")
    form.get_by_label(role).check()
    form.get_by_role("button", name="Create token").click()
    text: str = page.locator("#new-token").inner_text()
    stage.look(page, f"tokens-{role}")
    return text


def file_a_request(stage: BrowserStory) -> tuple[str, str]:
    """File a request with a receipt as an operator; return the path of its page, and the code."""
    page = stage.page()
    stage.log_in(page, "operator")
    stage.visit(page, "/requests/new", "request-new")
    page.get_by_label("Ids, one per line").fill(PERSON)
    page.get_by_label("I have verified the identity").check()
    page.get_by_label("Create a receipt code").check()
    page.get_by_role("button", name="File request").click()
    code: str = page.locator("#receipt-code").inner_text()
    assert PERSON not in page.content()
    stage.look(page, "request-filed")
    page.get_by_role("link", name="Open the request").click()
    page.get_by_text("a second person has to approve the request").wait_for()
    stage.look(page, "request-verified")
    return page.url.removeprefix(stage.url), code


def approve_by_keyboard(stage: BrowserStory) -> None:
    """Log in and approve as the second person, with nothing but keys."""
    page = stage.page()
    page.goto(f"{stage.url}/login")
    page.keyboard.type(stage.server.tokens["approver"])
    page.keyboard.press("Enter")
    page.wait_for_url(f"{stage.url}/")
    for words in ("approv", "^[0-9a-f]{12}$"):
        tab_to(page, f"main a >> text=/{words}/i")
        with page.expect_navigation():
            page.keyboard.press("Enter")
    tab_to(page, "main button >> text=/^Approve…$/")
    page.keyboard.press("Enter")
    tab_to(page, "main [role=dialog] button >> text=/^Approve$/")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    page.get_by_role("status").wait_for()
    assert page.locator("main .badge").first.inner_text() == "Queued"


def tab_to(page: Any, selector: str) -> None:
    """Press Tab until an element has the focus; whatever has it on the way must show that."""
    wanted = page.locator(selector).first
    wanted.wait_for()
    for _ in range(80):
        page.keyboard.press("Tab")
        style = page.evaluate(
            "() => { const style = getComputedStyle(document.activeElement);"
            " return [style.outlineStyle, style.boxShadow]; }"
        )
        assert style != ["none", "none"], page.evaluate("document.activeElement.outerHTML")
        if wanted.evaluate("one => (one.closest('a, button') ?? one) === document.activeElement"):
            return
    raise AssertionError(f"Tab does not lead to {selector}")


def apply_the_batch(stage: BrowserStory, page: Any) -> str:
    """Apply the batch; the server is killed as soon as it was asked for."""
    stage.visit(page, f"/models/{MODEL}/plan", "plan")
    page.get_by_role("button", name="Apply now…").click()
    page.get_by_role("dialog").get_by_role("button", name="Apply now").click()
    page.wait_for_url(re.compile("job="))
    stage.restart()
    link = page.get_by_role("link", name="Certificate #")
    link.wait_for()
    stage.look(page, "plan-applied")
    words: str = link.inner_text()
    return words


def verify_the_certificate(stage: BrowserStory, page: Any) -> None:
    page.get_by_role("link", name="Certificate #1").click()
    page.get_by_role("button", name="Verify").click()
    # Until the purge is attested one check is open.
    words = re.compile("^(Valid|Incomplete: no check failed)")
    page.locator(".big-verdict").get_by_text(words).wait_for()
    stage.look(page, "certificate-verified")


def audit(
    stage: BrowserStory, page: Any, name: str, *, drill: str = "none", restarts: bool = False
) -> str:
    """Start an audit and return its verdict; the page shows it as it comes."""
    page.goto(f"{stage.url}/audits")
    page.get_by_label("Drill").select_option(drill)
    page.get_by_role("button", name="Start audit").click()
    page.wait_for_url(re.compile("/audits/[0-9a-f]+"))
    if restarts:
        stage.look(page, f"{name}-waiting")
        stage.restart()
    verdict = page.locator(".big-verdict strong").filter(
        has_text=re.compile("^(Passed|Failed|No verdict)$")
    )
    verdict.wait_for()
    stage.look(page, name)
    words: str = verdict.inner_text()
    return words


def check_the_receipt(stage: BrowserStory, code: str) -> None:
    """Look as the person who asked: without a token, in a browser that knows nothing."""
    page = stage.page()
    stage.visit(page, "/receipt", "receipt")
    page.get_by_label("Receipt code").fill(code)
    page.get_by_role("button", name="Check receipt").click()
    page.locator(".big-verdict").get_by_text(re.compile("^Certificate issued")).wait_for()
    assert MODEL not in page.content()
    stage.look(page, "receipt-covered")


def see_the_rest(stage: BrowserStory, page: Any, request: str) -> None:
    page.goto(f"{stage.url}/webhooks")
    page.get_by_label("URL").fill(f"{HOOK}/hook")
    page.get_by_role("button", name="Create webhook").click()
    page.locator("#new-secret").wait_for()
    stage.look(page, "webhooks-made")
    page.get_by_role("link", name=f"{HOOK}/hook").click()
    page.wait_for_url(re.compile("/webhooks/[0-9a-f]+"))
    stage.look(page, "webhook")
    places = {
        "home": "/",
        "requests": "/requests?state=all",
        "requests-none": "/requests?search=ffffffffffff",
        "upload": "/requests/upload",
        "request-closed": request,
        "models": "/models",
        "model": f"/models/{MODEL}",
        "compare": f"/models/{MODEL}/compare?a=0&b=1",
        "certificates": "/certificates",
        "audits": "/audits",
        "residue": "/residue",
    }
    for name, path in places.items():
        stage.visit(page, path, name)
    lost = stage.page(is_watched=False)
    stage.log_in(lost, "admin")
    stage.visit(lost, "/nowhere", "problem")


def test_what_the_nets_catch() -> None:
    """Planted mistakes, each of which the story would fail of."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 400, "height": 400})
        watch = BrowserLog(page.context, "http://desk.invalid")
        page.set_content(
            "<h1>a</h1><h1>b</h1><input><p id=x>x</p><p id=x>y</p><div class=wide>w</div>"
            "<p class=pale>pale</p><style>.wide {width: 900px} .pale {color: #999}</style>"
            "<script>console.error('planted')</script><img alt='' src='http://other.invalid/a.png'>"
        )
        page_text = " ".join(faults_of(page))
        with page.context.expect_event("weberror"):
            page.evaluate("setTimeout(() => { throw new Error('thrown') })")
    for words in ("sideways", "sticks out", "no name", "id twice: x", "2 main", "contrast 2.8"):
        assert words in page_text
    assert any("planted" in error for error in watch.errors)
    assert any("thrown" in error for error in watch.errors)
    assert watch.elsewhere == ["http://other.invalid/a.png"]
    assert "/audits/{audit_id}" in unseen_pages({"/audits"})
