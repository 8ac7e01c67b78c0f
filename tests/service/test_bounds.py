"""Limits that need an explicit check: tenants in a body, ends of sessions, rates."""

import dataclasses
from pathlib import Path

import pytest
from starlette.datastructures import UploadFile

from letheon.ledger.db.tokens import Tokens
from letheon.service import ServiceSettings
from letheon.service.forms import MemoryParser
from tests.service.desks import OTHER, QUICK, Desk, make_desk, person

URL = "/api/v1/requests"
HOUR = 3600


@pytest.mark.parametrize("is_verified", [False, True])
def test_a_tenants_token_files_for_that_tenant_only(desk: Desk, is_verified: bool) -> None:
    operator = desk.client("operator@default")
    item = {"model": "churn", "ids": [person(3)], "verified": is_verified}
    alone = operator.post(URL, json=item | {"tenant": OTHER})
    everywhere = operator.post(URL, json=item | {"tenant": OTHER, "model": "*"})
    many = operator.post(f"{URL}/bulk", json={"items": [item], "tenant": OTHER})
    assert [entry.status_code for entry in (alone, everywhere, many)] == [404, 404, 404]
    assert desk.ledger.requests.count().total == 0


def test_a_tenants_auditor_audits_that_tenant_only(desk: Desk) -> None:
    auditor = desk.client("auditor@default")
    for asked in ({"tenant": OTHER}, {"tenant": OTHER, "model": "churn"}, {"model": "churn"}):
        assert auditor.post("/api/v1/audits", json=asked).status_code == 404, asked
    assert auditor.post("/api/v1/audits", json={}).json()["tenant"] == "default"
    assert desk.client("auditor").get("/api/v1/audits").json()["total"] == 1


def test_a_tenants_operator_adds_examples_for_that_tenant_only(desk: Desk) -> None:
    asked = {"kind": "forest", "name": "mine", "tenant": OTHER}
    answer = desk.client("operator@default").post("/api/v1/models/example", json=asked)
    assert answer.status_code == 404
    assert "mine" not in desk.client("admin").get("/api/v1/models").text


def test_a_session_ends_however_busy_it_is(desk: Desk) -> None:
    browser, step = desk.browser("operator"), (QUICK.idle_minutes - 1) * 60
    begun = desk.clock.now
    while desk.clock.now + step < begun + QUICK.session_hours * HOUR:
        desk.clock.now += step
        assert browser.get("/requests").status_code == 200
    desk.clock.now = begun + QUICK.session_hours * HOUR
    assert browser.get("/requests").status_code == 303


def test_a_session_of_a_clock_that_was_ahead_ends_with_its_correction(desk: Desk) -> None:
    right = desk.clock.now
    desk.clock.now += 10 * 24 * HOUR
    browser = desk.browser("operator")
    assert browser.get("/requests").status_code == 200
    desk.clock.now = right
    assert browser.get("/requests").status_code == 303


def _slow_desk(folder: Path, **rates: str) -> Desk:
    settings: ServiceSettings = dataclasses.replace(QUICK, **rates)  # type: ignore[arg-type]
    return make_desk(folder, settings=settings)


def test_wrong_log_ins_are_counted(tmp_path: Path) -> None:
    desk = _slow_desk(tmp_path, rate_login="3/minute")
    try:
        stranger = desk.client(None)
        status_codes = [
            stranger.post("/login", data={"token": "wrong"}).status_code for _ in range(5)
        ]
        assert status_codes == [401, 401, 401, 429, 429]
        assert desk.browser("operator").get("/requests").status_code == 200
    finally:
        desk.close()


def test_calls_of_a_session_are_counted(tmp_path: Path) -> None:
    desk = _slow_desk(tmp_path, rate_per_token="4/minute")
    try:
        browser = desk.browser("operator")
        status_codes = [browser.get("/requests").status_code for _ in range(6)]
        assert status_codes == [200, 200, 200, 200, 429, 429]
    finally:
        desk.close()


def test_what_is_uploaded_stays_in_memory(desk: Desk) -> None:
    assert MemoryParser.spool_max_size > max(QUICK.max_upload_bytes, QUICK.max_model_bytes)
    spooled: list[bool] = []
    close = UploadFile.close

    async def noted(self: UploadFile) -> None:
        spooled.append(bool(getattr(self.file, "_rolled", True)))
        await close(self)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(UploadFile, "close", noted)
        rows = ("rows.csv", b"id,x\n" * 600_000)
        desk.browser("admin").post("/models/new", files={"rows": rows}, data={"csrf": "wrong"})
    assert spooled == [False]


def test_an_erasure_is_withdrawn_by_who_sent_it_or_who_handles(desk: Desk) -> None:
    identity = {
        "identity_type": "controller_customer_id",
        "identity_value": person(5),
        "identity_format": "raw",
    }
    body = {
        "subject_request_id": "a7551968-d5d6-44b2-9831-815ac9017798",
        "subject_request_type": "erasure",
        "submitted_time": "2026-11-02T15:00:00Z",
        "regulation": "gdpr",
        "subject_identities": [identity],
    }
    place = "/opendsr/v2/requests"
    assert desk.client("operator").post(place, json=body).status_code == 201
    place += f"/{body['subject_request_id']}"
    scopes = ["requests:file", "requests:read"]
    text, _ = Tokens(desk.ledger, desk.clock).create("narrow", "operator", scopes=scopes)
    other = desk.client(None)
    other.headers["Authorization"] = f"Bearer {text}"
    assert other.get(place).status_code == 200
    assert other.delete(place).status_code == 403
    assert desk.ledger.requests.count().by_state["cancelled"] == 0
    assert desk.client("operator").delete(place).status_code == 202
