"""Pages of certificates, audits, residue and receipts."""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from letheon.exceptions import SearchWarning
from letheon.ledger.certificates.certificates import Receipts
from letheon.ledger.db.jobs import Jobs
from letheon.ledger.tables import certificates
from letheon.service import ServiceSettings
from tests.service.desks import OTHER, QUICK, Desk, make_desk, person

PAGES = ("/certificates", "/certificates/2", "/certificates/2?verify=1", "/audits", "/residue")


def words_of(text: str) -> str:
    """What a page says, without its marks."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", text))).strip()


def send(client: TestClient, path: str, **data: Any) -> Any:
    match = re.search(r'name="csrf" value="([^"]+)"', client.get(path).text)
    assert match is not None
    return client.post(path, data={"csrf": match[1], **data})


def erase(desk: Desk, number: int, model: str = "risk", tenant: str = "default") -> None:
    desk.ledger.requests.submit([person(number)], model=model, tenant=tenant, verified=True)
    desk.work()


def fill(desk: Desk) -> Desk:
    for number in (1, 2):
        erase(desk, number)
    erase(desk, 3, "churn", OTHER)
    return desk


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A desk with three certificates, the last of another tenant; tests only read it."""
    desk = fill(make_desk(tmp_path_factory.mktemp("filled")))
    yield desk
    desk.close()


def damage(desk: Desk, number: int, envelope: bytes) -> None:
    """Put other bytes in the place of a certificate, without the triggers that forbid it."""
    with desk.ledger._core.database.transaction() as conn:
        query = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = :table"
        for name in conn.scalars(sa.text(query), {"table": "certificates"}).all():
            conn.execute(sa.text(f'DROP TRIGGER "{name}"'))
        mine = certificates.c.sequence == number
        conn.execute(sa.update(certificates).where(mine).values(envelope=envelope))


@pytest.mark.parametrize("path", PAGES)
def test_every_page_has_a_twin_in_json(filled: Desk, path: str) -> None:
    text = filled.browser("auditor").get(path).text
    twin = re.search(r'rel="alternate" type="application/json" href="([^"]+)"', text)
    assert twin is not None
    assert filled.client("auditor").get(unescape(twin[1])).status_code == 200


@pytest.mark.parametrize("path", PAGES)
def test_no_id_stands_twice_and_headings_begin_at_the_top(filled: Desk, path: str) -> None:
    text = filled.browser("auditor").get(path).text
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert text.count("<h1>") == 1


# Certificates.


def test_the_chain_names_each_certificate_before(filled: Desk) -> None:
    text = filled.browser("auditor").get("/certificates").text
    said = words_of(text)
    chain = filled.client("auditor").get("/api/v1/chain").json()["items"]
    assert "This part of the chain is intact" in said
    assert re.findall(r'class="seq" href="/certificates/(\d+)"', text) == ["3", "2", "1"]
    assert [one["previous"] for one in chain][-1] == "genesis"
    for one in chain[:-1]:
        assert f'previous: <code title="{one["previous"]}">' in text


def test_a_tenant_sees_its_own_certificates_and_no_links_to_others(filled: Desk) -> None:
    client = filled.browser(f"auditor@{OTHER}")
    text = client.get("/certificates").text
    assert re.findall(r'class="seq" href="/certificates/(\d+)"', text) == ["1"]
    assert "previous:" not in words_of(text.partition("<ol")[2])
    assert "/api/v1/bundle" not in text
    other, missing = client.get("/certificates/3"), client.get("/certificates/99")
    assert (other.status_code, missing.status_code) == (404, 404)
    assert other.text == missing.text


def test_a_certificate_says_what_it_claims_and_what_not(filled: Desk) -> None:
    said = words_of(filled.browser("approver").get("/certificates/2").text)
    document = filled.client("approver").get("/api/v1/certificates/2").json()
    assert document["guarantee"]["words"] in said
    assert all(one["words"] in said for one in document["not_claimed"])
    assert document["statement"]["subject"][0]["digest"]["sha256"] in said
    assert "checks passed" not in said


def test_verification_in_the_page_is_that_of_the_api(filled: Desk) -> None:
    said = words_of(filled.browser("approver").get("/certificates/2?verify=1").text)
    checks = filled.client("approver").get("/api/v1/certificates/2/verification").json()["checks"]
    assert f"Valid {len(checks)} of {len(checks)} checks passed" in said
    assert all(one["reason"] in said for one in checks)


def test_a_damaged_certificate_is_shown_as_such(desk: Desk) -> None:
    fill(desk)
    client, whole = desk.browser("auditor"), desk.ledger.certificates.envelope(2)
    for damaged in (whole.replace(b"A", b"B", 1), whole[:-30], b"junk", b""):
        damage(desk, 2, damaged)
        said = words_of(client.get("/certificates/2").text)
        assert "Invalid" in said
        assert "Fail Signature" in said
        assert "The chain is broken" in words_of(client.get("/certificates").text)
        assert "Fail Certificate chain" in words_of(client.get("/certificates/3?verify=1").text)
        assert desk.browser(f"auditor@{OTHER}").get("/certificates/2").status_code == 404
    damage(desk, 2, whole)
    assert "is intact" in words_of(client.get("/certificates").text)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/certificates/0", 422),
        ("/certificates/x", 422),
        ("/certificates/99", 404),
        ("/certificates?after=x", 422),
        ("/certificates?model=%00", 422),
        ("/residue?after=x", 422),
        ("/audits?after=x", 422),
        ("/audits/x", 422),
        (f"/audits/{'0' * 32}", 404),
    ],
)
def test_an_address_that_leads_nowhere_is_refused(filled: Desk, path: str, status: int) -> None:
    assert filled.browser("admin").get(path).status_code == status


# Residue.


def test_the_map_has_a_cell_for_every_store_and_purge(filled: Desk) -> None:
    text = filled.browser("auditor").get("/residue").text
    document = filled.client("auditor").get("/api/v1/residue").json()
    table = text.partition("<table")[2].partition("</table>")[0]
    cells = re.findall(r'<td class="cell">(.*?)</td>', table, re.DOTALL)
    assert len(cells) == len(document["stores"]) * len(document["purges"])
    clean = [cell for cell in cells if "clean" in words_of(cell)]
    purged = [c for p in document["purges"] for c in p["cells"] if c["state"] == "purged"]
    assert len(clean) == len(purged) == len(cells)


def test_files_that_were_not_searched_are_grey_and_never_clean(tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies" / "train.pkl").write_bytes(b"\x80\x04N.")
    desk = make_desk(tmp_path / "desk")
    with pytest.warns(SearchWarning, match="train.pkl"):
        desk.ledger.stores.add("copies", tmp_path / "copies")
    with closing(desk):
        erase(desk, 1)
        browser, client = desk.browser("admin"), desk.client("admin")
        (request,) = client.get("/api/v1/requests").json()["items"]
        assert (request["state"], request["reason"]) == ("purged", "not-fully-searched")
        (purge,) = client.get("/api/v1/residue").json()["purges"]
        cell = {one["store"]: one for one in purge["cells"]}["store:copies"]
        assert (cell["state"], cell["files_not_searched"]) == ("not-searched", 1)
        assert purge["gaps"] == "1 file not searched"
        text = browser.get("/residue").text
        cells = re.findall(r'<td class="cell">(.*?)</td>', text, re.DOTALL)
        (grey,) = [document for document in cells if "not searched" in words_of(document)]
        assert "badge neutral" in grey
        assert "clean" not in words_of(grey)
        assert "not fully searched" in words_of(text.partition('id="h-searches"')[2])
        for page in (f"/requests/{request['id']}", "/requests", "/certificates", "/certificates/1"):
            assert "not fully searched" in words_of(browser.get(page).text)
        for address in ("/api/v1/certificates/1", "/api/v1/certificates"):
            document = client.get(address).json()
            assert document.get("items", [document])[0]["purge_gaps"] == "1 file not searched"
        check = client.get("/api/v1/certificates/1/verification").json()
        assert (check["passed"], check["verdict"]) == (False, "incomplete")
        assert "purged, but not fully searched: 1 file" in check["checks"][-1]["reason"]


def test_a_tenant_sees_its_own_purges(filled: Desk) -> None:
    said = words_of(filled.browser(f"auditor@{OTHER}").get("/residue").text)
    assert "#1" in said
    assert "#3" not in said


# Audits.


def start(client: TestClient, **data: Any) -> str:
    answer = send(client, "/audits", **data)
    assert answer.status_code == 303, words_of(answer.text)
    where = str(answer.headers["location"])
    assert re.fullmatch(r"/audits/[0-9a-f]{32}", where)
    return where


def level(verdict: str, name: str = "V0") -> dict[str, Any]:
    reason = f"because <i>{verdict}</i>"
    return {"level": name, "name": "n", "model": "risk", "verdict": verdict, "reason": reason}


def end(desk: Desk, verdicts: list[str], **more: Any) -> None:
    jobs = Jobs(desk.ledger)
    job = jobs.claim("test")
    assert job is not None
    levels = [level(verdict) for verdict in verdicts]
    jobs.finish(job, {"levels": levels, "seconds": 1.5, **more})


def test_an_audit_is_asked_for_with_model_levels_and_drill(desk: Desk) -> None:
    client = desk.browser("auditor")
    start(client, model="default/risk", levels=["V0", "V4"], drill="log")
    start(client, levels=["V0", "V1", "V2", "V3", "V4", "V5"])
    asked = {(job.model, job.tenant): job.asked for job in Jobs(desk.ledger).list_page().items}
    assert asked == {
        ("risk", "default"): {"levels": ["V0", "V4"], "drill": "log"},
        (None, None): {"levels": None, "drill": "none"},
    }


@pytest.mark.parametrize("data", [{"drill": "all"}, {"levels": ["V9"]}])
def test_other_levels_and_drills_are_refused(desk: Desk, data: dict[str, Any]) -> None:
    assert send(desk.browser("auditor"), "/audits", **data).status_code == 422
    assert Jobs(desk.ledger).list_page().items == ()


def test_a_tenant_cannot_audit_anothers_model(desk: Desk) -> None:
    client = desk.browser(f"auditor@{OTHER}")
    assert send(client, "/audits", model="default/risk").status_code == 404
    where = start(desk.browser("auditor"), model="default/risk")
    assert client.get(where).status_code == 404


def test_an_audit_fills_up_while_it_runs(desk: Desk) -> None:
    client = desk.browser("auditor")
    where = start(client)
    assert f'hx-get="{where}"' in client.get(where).text
    jobs = Jobs(desk.ledger)
    job = jobs.claim("test")
    assert job is not None
    jobs.add_progress(job, "V0: fail", level("fail"))
    text = client.get(where).text
    assert "Running 1 check done, 1 failed." in words_of(text)
    assert "because &lt;i&gt;fail&lt;/i&gt;" in text
    assert "/report" not in text


@pytest.mark.parametrize(
    ("drill", "verdicts", "passed", "words"),
    [
        ("none", ["pass"], True, "Passed 1 check passed, none failed."),
        (
            "none",
            ["pass", "skipped"],
            None,
            "Incomplete No check failed, but 1 of 2 was skipped, so",
        ),
        ("none", ["pass", "fail"], False, "Failed 1 of 2 checks failed."),
        (
            "model",
            ["fail"],
            False,
            "the audit detected the change.",
        ),
        ("model", ["pass"], True, "A drill should fail"),
        ("model", ["pass", "skipped"], None, "A drill should fail"),
    ],
)
def test_the_verdict_is_large_and_a_drill_is_marked(
    desk: Desk, drill: str, verdicts: list[str], passed: bool | None, words: str
) -> None:
    client = desk.browser("auditor")
    where = start(client, drill=drill)
    end(
        desk,
        verdicts,
        passed=bool(passed),
        changed="one byte of a file" if drill != "none" else None,
    )
    text = client.get(where).text
    assert words in words_of(text)
    assert ("This is a drill: one byte of a file" in words_of(text)) == (drill != "none")
    assert "hx-trigger" not in text
    assert f"/api/v1{where}/report" in text
    listed = words_of(client.get("/audits").text)
    assert ("drill: model" in listed) == (drill == "model")
    said = {True: "Passed", False: "Failed", None: "Incomplete"}
    drilled = "Change detected" if passed is False else "Change not detected"
    assert f" {said[passed] if drill == 'none' else drilled} " in listed
    assert ("Passed" in listed) == (passed is True and drill == "none")


def test_an_audit_that_broke_off_gives_no_verdict(desk: Desk) -> None:
    client = desk.browser("auditor")
    where = start(client)
    jobs = Jobs(desk.ledger)
    job = jobs.claim("test")
    assert job is not None
    jobs.fail(job, "worker-ended", "its worker ended")
    said = words_of(client.get(where).text)
    assert "No verdict The audit could not be completed: its worker ended" in said
    assert "Passed" not in said


def test_who_may_only_read_audits_has_no_form(filled: Desk) -> None:
    assert "New audit" not in words_of(filled.browser("operator").get("/audits").text)


# Receipts.


def check(desk: Desk, code: str, **given: Any) -> Any:
    return desk.client(None).post("/receipt", data={"code": code}, **given)


def test_a_receipt_is_covered_once_it_is_certified(desk: Desk) -> None:
    _, code = desk.ledger.requests.submit_with_code([person(4)], model="risk", verified=True)
    assert code is not None
    before = check(desk, code)
    desk.work()
    after = check(desk, code)
    assert "No certificate yet No certificate covers this code yet" in words_of(before.text)
    assert re.search(
        r"\bCertificate issued; log entry pending Certificate 1, signed on", words_of(after.text)
    )
    for answer in (before, after):
        assert answer.status_code == 200
        assert code not in answer.text
        assert not re.search(r"risk|default|person|desk-test|naive", words_of(answer.text))


def test_a_pending_log_entry_is_neither_good_nor_bad(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, code = desk.ledger.requests.submit_with_code([person(4)], model="risk", verified=True)
    assert code is not None
    desk.work()
    page = check(desk, code).text.partition("<main")[2].partition("<form")[0]
    assert "Certificate issued; log entry pending" in page
    assert 'class="big-verdict "' in page
    assert "In the public log pending" in words_of(page)
    assert not re.search(r'class="(badge|big-verdict) bad', page)
    real: Any = Receipts.coverage

    def coverage(receipts: Receipts, data: bytes) -> Any:
        return replace(real(receipts, data), in_log=True)

    monkeypatch.setattr(Receipts, "coverage", coverage)
    assert "Certificate issued Certificate 1, signed on" in words_of(check(desk, code).text)


def test_the_page_of_receipts_leads_nowhere_else(desk: Desk) -> None:
    text = desk.client(None).get("/receipt").text
    assert set(re.findall(r'<a [^>]*href="([^"]+)"', text)) == {"#content", "/receipt", "/login"}


@pytest.mark.parametrize(
    "code",
    ["", "   ", "lethe-AAAAA", "<script>alert(1)</script>", "{", "\0", '{"x": 1}', " []", "7"],
)
def test_what_is_no_code_is_told_apart_from_one_that_is_not_covered(desk: Desk, code: str) -> None:
    answer = check(desk, code)
    assert answer.status_code == 422
    assert "No certificate" not in words_of(answer.text)
    assert 'aria-invalid="true"' in answer.text
    assert "<script>alert" not in answer.text


@pytest.mark.parametrize("code", ["lethe-AAAAA", "", '{"x": 1}'])
def test_receipts_are_checked_only_so_often(tmp_path: Path, code: str) -> None:
    settings = ServiceSettings(**(vars(QUICK) | {"rate_receipt": "2/minute"}))
    desk = make_desk(tmp_path, settings=settings)
    items = [check(desk, code).status_code for _ in range(3)]
    desk.close()
    assert items == [422, 422, 429]
