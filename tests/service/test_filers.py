"""A token that only files learns nothing about whom a model holds, never held, or has forgotten.

Every test files for a person who is held, one who was erased and one who is unknown, each with a
token of its own, and compares all bytes that the three tokens can get.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import pytest
from fastapi.testclient import TestClient
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from letheon.service import Token, Tokens
from letheon.service.auth import Principal
from tests.service.desks import Desk, Secret, make_desk, person

URL = "/api/v1/requests"
DSR = "/opendsr/v2/requests"
KINDS = ("held", "erased", "unknown")
FILER_SCOPES = ["requests:file", "requests:vouch", "models:read"]
# Random in every answer: ids, keys of forms, CSRF tokens, and signatures over ids.
_RANDOM = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b|"
    r"\b[0-9a-f]{12}\b|\b[0-9a-f]{16}\b|(?<=value=\")[\w-]{43}(?=\")|(?<=content=\")[\w-]{43}(?=\")"
)
_counter = itertools.count(1000)


@dataclass
class Filer:
    """One token that files for one person."""

    client: TestClient
    browser: TestClient
    token: Secret
    person: str
    requests: list[str]
    heard: list[str]

    def hear(self, answer: Any) -> Any:
        """Keep an answer without what is random in every one."""
        headers = {
            name: value
            for name, value in answer.headers.items()
            if name not in ("date", "set-cookie") and "signature" not in name
        }
        text = f"{answer.status_code} {sorted(headers.items())} {_ordered(answer)}"
        for own in (self.token.text, self.person, _name(self.person)):
            text = text.replace(own, "OWN")
        text = re.sub(r'"next":"[\w-]+"', '"next":"CURSOR"', text)
        self.heard.append(_RANDOM.sub("RANDOM", re.sub(r"filer-\d+", "FILER", text)))
        return answer


def _ordered(answer: Any) -> str:
    """Return an answer whose requests do not stand in the order of their random ids."""
    if answer.headers.get("content-type") == "application/json":
        body = answer.json()
        if isinstance(body, dict) and "items" in body:
            body["items"].sort(key=lambda item: json.dumps({**item, "id": ""}))
        return json.dumps(body, separators=(",", ":"))
    return "\n".join(sorted(_RANDOM.sub("RANDOM", answer.text).splitlines()))


def _name(who: str) -> str:
    return hashlib.sha256(who.encode()).hexdigest()


@pytest.fixture(scope="module")
def erased_desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk that has erased the first ten people from the model `risk`."""
    made = make_desk(tmp_path_factory.mktemp("filers"))
    for number in range(10):
        made.ledger.requests.submit([person(number)], model="risk", verified=True)
    made.work()
    for request in made.ledger.requests.list():
        made.ledger.requests.answer(request.id)
    yield made
    made.close()


def make_filer(desk: Desk, who: str, *, vouches: bool) -> Filer:
    number = next(_counter)
    role, scopes = ("operator", FILER_SCOPES) if vouches else ("requester", None)
    text, token = Tokens(desk.ledger, desk.clock).create(f"filer-{number}", role, scopes=scopes)
    secret = Secret(text, token.id, role, None)
    desk.tokens[f"filer-{number}"] = secret
    client, browser = desk.client(f"filer-{number}"), desk.browser(f"filer-{number}")
    return Filer(client, browser, secret, who, [], [])


def file_alone(filer: Filer) -> None:
    body = {"model": "risk", "ids": [filer.person], "verified": filer.token.role != "requester"}
    first, again = (
        filer.hear(filer.client.post(URL, json=body, headers={"Idempotency-Key": filer.token.id}))
        for _ in range(2)
    )
    assert (first.status_code, again.status_code) == (201, 200)
    other = body | {"ids": ["another"]}
    filer.hear(filer.client.post(URL, json=other, headers={"Idempotency-Key": filer.token.id}))
    for receipt in ({"receipt": True}, {"receipt_key": "00" * 32}):
        filer.hear(filer.client.post(URL, json=body | receipt))


def file_everywhere(filer: Filer) -> None:
    answer = filer.hear(filer.client.post(URL, json={"model": "*", "ids": [filer.person]}))
    assert answer.status_code == 201


def file_bulk(filer: Filer) -> None:
    items = [{"model": "risk", "ids": [filer.person]}, {"model": "risk", "ids": [person(11)]}]
    assert filer.hear(filer.client.post(f"{URL}/bulk", json={"items": items})).json()["n_done"] == 2


def file_csv(filer: Filer) -> None:
    files = {"file": ("a.csv", f"model,id\nrisk,{filer.person}\n")}
    assert filer.hear(filer.client.post(f"{URL}/upload", files=files)).json()["n_done"] == 1


def file_page(filer: Filer) -> None:
    shown = filer.hear(filer.browser.get("/requests/new")).text
    csrf, key = (re.search(f'name="{name}" value="([^"]+)"', shown) for name in ("csrf", "key"))
    assert csrf is not None
    assert key is not None
    form = {"csrf": csrf[1], "key": key[1], "model": "risk", "ids": filer.person, "receipt": "on"}
    form |= {"regime": "gdpr", "tenant": "default"}
    assert filer.hear(filer.browser.post("/requests/new", data=form)).status_code == 303
    uploaded = {"file": ("a.csv", f"model,id\nrisk,{filer.person}\n")}
    filer.hear(
        filer.browser.post(
            "/requests/upload", data=form | {"key": 2 * filer.token.id}, files=uploaded
        )
    )


def file_opendsr(filer: Filer, identity_format: str = "raw") -> None:
    value = filer.person if identity_format == "raw" else _name(filer.person)
    subject = f"a7551968-d5d6-44b2-9831-{filer.token.id[:12]}"
    identity = {
        "identity_type": "controller_customer_id",
        "identity_value": value,
        "identity_format": identity_format,
    }
    body = {
        "subject_request_id": subject,
        "subject_request_type": "erasure",
        "submitted_time": "2026-11-02T15:00:00Z",
        "subject_identities": [identity],
    }
    for _ in range(2):
        answer = filer.client.post(DSR, json=body)
        assert answer.status_code == 201, answer.text
        encoded = answer.json()["encoded_request"]
        answer._content = answer.content.replace(encoded.encode(), b"SENT")
        filer.hear(answer)
    swapped = body | {"subject_identities": [identity | {"identity_value": _name("else")}]}
    assert filer.hear(filer.client.post(DSR, json=swapped)).status_code == 400
    filer.requests.append(subject)


def file_hashed(filer: Filer) -> None:
    file_opendsr(filer, "sha256")


WAYS = (file_alone, file_everywhere, file_bulk, file_csv, file_page, file_opendsr, file_hashed)


def look(desk: Desk, filer: Filer) -> None:
    """Get everything that the token can get."""
    items = desk.ledger.requests.find(filed_by=filer.token.id).items
    models = {item.model: item.id for item in items}
    own = [one for _, one in sorted(models.items())]
    searches = ["%231", "%232", *(entry[:8] for entry in own)]
    paths = [URL, f"{URL}.csv", "/api/v1/summary", "/api/v1/models", "/api/v1/models/risk"]
    paths += [f"{URL}?search={search}" for search in searches]
    if len(own) == 1:
        paths.append(f"{URL}?order=newest&limit=1")
    states = ("received", "queued", "duplicate", "rejected", "closed")
    paths += [f"{URL}?state={state}" for state in states]
    paths += [f"{URL}?overdue=true", "/api/v1/batches", "/api/v1/certificates", "/readyz"]
    paths += [f"{DSR}/{subject}" for subject in filer.requests]
    for entry in own:
        paths += [f"{URL}/{entry}", f"{URL}/{entry}/timeline"]
        filer.hear(filer.client.post(f"{URL}/{entry}/receipt-code"))
        filer.hear(filer.client.post(f"{URL}/{entry}/cancel"))
    for path in paths:
        filer.hear(filer.client.get(path))
    pages = ["/", "/requests", "/requests?state=all", "/requests?state=queued", "/models"]
    for path in (*pages, *(f"/requests/{entry}" for entry in own)):
        filer.hear(filer.browser.get(path))


def assert_alike(filers: dict[str, Filer]) -> None:
    for others in ("erased", "unknown"):
        pairs = zip(filers["held"].heard, filers[others].heard, strict=True)
        for first, second in pairs:
            assert first == second, f"held and {others} differ"


def handle(desk: Desk, filers: dict[str, Filer]) -> None:
    """Do what operators and workers do, until every request has ended."""
    for filer in filers.values():
        for item in desk.ledger.requests.find(filed_by=filer.token.id, states=("received",)).items:
            desk.ledger.requests.verify(item.id)
    for filer in filers.values():
        for path in (URL, "/api/v1/summary", *(f"{DSR}/{request}" for request in filer.requests)):
            filer.hear(filer.client.get(path))
    desk.work()
    for filer in filers.values():
        for item in desk.ledger.requests.find(filed_by=filer.token.id).items:
            if item.is_open:
                desk.ledger.requests.answer(item.id)


_cases = given(
    held=st.integers(12, 39),
    erased=st.integers(0, 9),
    unknown=st.integers(100, 999),
    way=st.sampled_from(WAYS),
    vouches=st.booleans(),
)
# Examples change the desk, so none can be tried again in a smaller form.
_plan = settings(deadline=None, phases=(Phase.generate,), derandomize=True)


@settings(_plan, max_examples=2)
@_cases
def test_held_erased_and_unknown_people_look_alike(erased_desk: Desk, **case: Any) -> None:
    assert_case(erased_desk, **case)


@pytest.mark.soak
@settings(_plan, max_examples=60)
@_cases
def test_many_people_look_alike(erased_desk: Desk, **case: Any) -> None:
    assert_case(erased_desk, **case)


def assert_case(
    desk: Desk, *, held: int, erased: int, unknown: int, way: Any, vouches: bool
) -> None:
    """File for one of each kind, handle the requests to their end, and compare all answers."""
    still = desk.ledger.models.ids("risk", tenant="default").distinct().to_list()
    assume(person(held) in still)  # an example before this one may have erased them
    people = dict(zip(KINDS, map(person, (held, erased, unknown)), strict=True))
    filers = {kind: make_filer(desk, who, vouches=vouches) for kind, who in people.items()}
    for filer in filers.values():
        way(filer)
    handle(desk, filers)
    for filer in filers.values():
        look(desk, filer)
    assert_alike(filers)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_filing_gives_one_answer(erased_desk: Desk, way: Any) -> None:
    people = dict(zip(KINDS, map(person, (11, 3, 777)), strict=True))
    filers = {kind: make_filer(erased_desk, who, vouches=False) for kind, who in people.items()}
    for filer in filers.values():
        way(filer)
        for subject in filer.requests:
            assert filer.hear(filer.client.delete(f"{DSR}/{subject}")).status_code == 202
            status = filer.hear(filer.client.get(f"{DSR}/{subject}")).json()
            assert status["request_status"] == "cancelled"
        look(erased_desk, filer)
    assert_alike(filers)


def test_after_the_last_day_an_ended_request_is_closed(desk: Desk) -> None:
    for number in (0, 1):
        request = desk.ledger.requests.submit([person(number)], model="risk", verified=True)
        desk.work()
        desk.ledger.requests.answer(request.id)
    people = dict(zip(KINDS, (person(5), person(0), "unknown-1"), strict=True))
    filers = {kind: make_filer(desk, who, vouches=False) for kind, who in people.items()}
    for filer in filers.values():
        file_alone(filer)
    handle(desk, filers)
    states = {
        kind: [item.state for item in desk.ledger.requests.find(filed_by=filer.token.id).items]
        for kind, filer in filers.items()
    }
    assert states == {"held": ["closed"], "erased": ["closed"], "unknown": ["rejected"]}
    assert {item["state"] for item in filers["held"].client.get(URL).json()["items"]} == {
        "received"
    }
    desk.clock.now += 40 * 86_400
    for filer in filers.values():
        filer.client.cookies.clear()
        look_after(desk, filer)
    assert_alike(filers)


def look_after(desk: Desk, filer: Filer) -> None:
    (own,) = desk.ledger.requests.find(filed_by=filer.token.id).items
    shown = filer.hear(filer.client.get(f"{URL}/{own.id}")).json()
    assert (shown["state"], shown["days_left"], shown["is_overdue"]) == ("closed", None, False)
    for path in (f"{URL}?state=closed", f"{URL}?state=received", f"{URL}?overdue=true"):
        filer.hear(filer.client.get(path))
    counts = filer.hear(filer.client.get("/api/v1/summary")).json()
    assert (counts["counts"]["closed"], counts["n_open"], counts["n_overdue"]) == (1, 0, 0)


def test_operators_see_what_there_is(desk: Desk) -> None:
    desk.ledger.requests.submit([person(0)], model="risk", verified=True)
    desk.work()
    requester, operator = desk.client("requester"), desk.client("operator")
    desk.ledger.models._people.clear()  # what is known of a model is a few seconds old at most
    values = {}
    for kind, who in zip(KINDS, (person(1), person(0), "unknown-1"), strict=True):
        made = requester.post(URL, json={"model": "risk", "ids": [who]}).json()["id"]
        rows = operator.get(f"{URL}/{made}").json()["n_rows"]
        verified = operator.post(f"{URL}/{made}/verify").json()
        values[kind] = (rows, verified["state"], verified["reason"])
    assert values == {
        "held": (2, "queued", None),
        "erased": (0, "duplicate", None),
        "unknown": (0, "rejected", "no-data-held"),
    }
    words = operator.get(f"{URL}/{made}/timeline").json()["items"][-1]["words"]
    assert words == "Rejected: the model has no rows of these people."
    unknown = operator.post(URL, json={"model": "risk", "ids": ["unknown-2"]})
    assert (unknown.status_code, unknown.json()["type"]) == (422, "urn:letheon:problem:unknown-ids")


def test_of_known_and_unknown_people_the_known_are_erased(desk: Desk) -> None:
    body = {"model": "risk", "ids": [person(1), "unknown-1", person(2)]}
    made = desk.client("requester").post(URL, json=body).json()["id"]
    desk.ledger.requests.verify(made)
    desk.work()
    response = desk.ledger.requests.get(made)
    assert (response.state, response.n_rows) == ("purged", 4)
    again = desk.client("requester").post(URL, json={"model": "risk", "ids": ["unknown-1"]}).json()
    assert desk.ledger.requests.verify(again["id"]).state == "rejected"
    mixed = desk.ledger.requests.submit([person(1), "unknown-1"], model="risk", accept_unknown=True)
    assert desk.ledger.requests.verify(mixed.id).state == "duplicate"


def test_texts_for_a_model_of_numbers_are_unknown_people(desk: Desk) -> None:
    made = desk.client("requester").post(URL, json={"model": "forest", "ids": ["x"]})
    assert made.status_code == 201
    assert desk.ledger.requests.verify(made.json()["id"]).reason == "no-data-held"


def test_who_may_know() -> None:
    def knows(role: str, *scopes: str) -> bool:
        now = datetime.now(UTC)
        token = Token("t", "n", role, scopes, None, now, now, None, None, True)
        return Principal(**vars(token), desk=Mock()).sees_all_requests

    assert knows("operator", "requests:read")
    assert knows("operator", "requests:handle")
    assert not knows("operator", "requests:file", "requests:vouch")
    assert not knows("requester", "requests:read", "requests:file")


def test_an_operator_sees_nothing_less(erased_desk: Desk) -> None:
    """The comparison itself notices a difference: an operator's answers differ."""
    erased_desk.ledger.models._people.clear()
    bodies = [
        erased_desk.client("operator").post(URL, json={"model": "risk", "ids": [item]})
        for item in (person(11), person(3), "unknown")
    ]
    shown = [json.dumps(body.json().get("n_rows")) for body in bodies]
    assert [body.status_code for body in bodies] == [201, 201, 422]
    assert shown == ["2", "0", "null"]
