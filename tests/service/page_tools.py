"""What the tests of pages share: forms with their token, ids on a page, a desk with requests."""

import re
from collections.abc import Iterator
from html import unescape

import pytest
from fastapi.testclient import TestClient

from letheon.ledger import Request
from tests.service.desks import OTHER, Desk, make_desk, person


def csrf_of(client: TestClient, path: str = "/") -> str:
    match = re.search(r'name="csrf" value="([^"]+)"', client.get(path).text)
    assert match is not None
    return match[1]


def send(client: TestClient, path: str, **values: object) -> object:
    return client.post(path, data={"csrf": csrf_of(client), **values})


def shown_ids(text: str) -> list[str]:
    """Ids of the requests in the table of a page, in their order."""
    return re.findall(r'<th scope="row" class="main-cell"><a href="/requests/([0-9a-f]{32})"', text)


def twin_of(text: str) -> str:
    match = re.search(r'rel="alternate" type="application/json" href="([^"]+)"', text)
    assert match is not None
    return unescape(match[1])


def file(desk: Desk, *numbers: int, by: str = "operator", **given: object) -> Request:
    people = [person(number) for number in numbers]
    with desk.ledger.acting(desk.tokens[by].id):
        return desk.ledger.requests.submit(people, model="risk", **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk with requests in many states; tests of this file only read it."""
    desk = make_desk(tmp_path_factory.mktemp("filled"))
    file(desk, 1, verified=True)
    desk.work()
    file(desk, 2, by="requester")
    file(desk, 3, verified=True, regime="ccpa", ground="ccpa.1798.105")
    file(desk, 4, 5, 6, 7, verified=True)
    desk.ledger.requests.reject(file(desk, 8).id, "gdpr.art12.6")
    desk.ledger.requests.hold(file(desk, 9, verified=True).id, "litigation-hold", "2027-12-01")
    desk.ledger.requests.submit([person(1)], model="churn", tenant=OTHER)
    yield desk
    desk.close()
