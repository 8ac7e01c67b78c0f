"""Reports: what they say, as values, JSON, a table and a page."""

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from letheon.audit import LEVELS, AuditReport, LevelResult
from letheon.audit._bundle import key_text
from letheon.ledger.certificates.explanations import ASSUMPTIONS, NOT_CLAIMED, explain_guarantee

NASTY = '<script>alert("x")</script> [bold]not markup[/bold]'


def result(verdict: str = "pass", level: str = "V4", reason: str = "fine") -> LevelResult:
    return LevelResult(level, "model", verdict, reason, {"number": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdicts", "wanted"),
    [
        (["pass"], "passed"),
        (["pass", "skipped"], "incomplete"),
        (["pass", "fail"], "failed"),
        (["fail", "skipped"], "failed"),
        (["skipped"], "incomplete"),
        ([], "incomplete"),
    ],
)
def test_what_was_skipped_is_no_pass(verdicts: list[str], wanted: str) -> None:
    report = AuditReport(tuple(map(result, verdicts)))
    assert (report.verdict, report.passed) == (wanted, wanted == "passed")
    assert json.loads(report.to_json())["verdict"] == wanted
    shown = {"passed": "Passed.", "failed": "Failed.", "incomplete": "Incomplete."}
    assert f"<strong>{shown[wanted]}</strong>" in report.to_page()
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report)
    assert f"Audit of a ledger: {wanted}" in console.export_text().replace(wanted.upper(), wanted)


def test_unclaimed_checks_may_be_skipped() -> None:
    extra = dataclasses.replace(result("skipped"), promised=False)
    assert AuditReport((result(), extra)).verdict == "passed"
    assert AuditReport((extra,)).verdict == "incomplete"
    assert AuditReport((result(), extra), scope="levels V0").to_dict()["scope"] == "levels V0"


def test_unknown_words_are_refused() -> None:
    with pytest.raises(ValueError, match="verdict"):
        result("maybe")
    with pytest.raises(ValueError, match="level"):
        result(level="V9")


def test_json_holds_every_result() -> None:
    report = AuditReport((result(), result("fail", reason=NASTY)), ledger="demo", key="ab" * 32)
    values = json.loads(report.to_json())
    assert (values["passed"], len(values["results"])) == (False, 2)
    assert values["results"][1]["reason"] == NASTY


def test_the_table_shows_reasons_as_text() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(AuditReport((result("fail", reason=NASTY),), ledger=NASTY))
    assert NASTY in console.export_text()


def test_the_page_escapes_everything_and_loads_nothing() -> None:
    report = AuditReport((result("fail", reason=NASTY),), ledger=NASTY, key=NASTY)
    page = report.to_page()
    assert "<script" not in page
    assert re.search(r"(src|href)=", page) is None
    assert "default-src 'none'" in page
    assert "Failed." in page


def test_the_page_names_what_levels_cannot_show(tmp_path: Path) -> None:
    report = AuditReport(tuple(result(level=level) for level in LEVELS))
    page = report.to_html(tmp_path / "deep" / "report.html").read_text()
    assert all(blind in page for _, blind in LEVELS.values())


SUBJECT: dict[str, Any] = {
    "model": "default/risk",
    "sequence": 3,
    "certificate": "ab" * 32,
    "subject": "cd" * 32,
    "method": "naive",
    "definitionInBundle": True,
    "guarantee": {
        "kind": "exact",
        "requests": "adaptive",
        "releases": "every-version",
        "assumptions": ["same-libraries-and-cpu-kernel"],
    },
    "rows": 2,
    "liveAfter": 58,
    "certifiedAt": "2026-03-01T10:00:00Z",
    "replay": "bitwise-same-kernel",
    "notClaimed": ["backups-expired", "bitwise-rederivation"],
}


def test_a_printed_report_is_readable_text() -> None:
    report = AuditReport(
        (result(), result("skipped", "V6", "no canaries")),
        ledger="demo",
        subjects=(SUBJECT,),
        audited_at="2026-03-02T09:00:00Z",
        scope="an auditor's bundle",
    )
    assert str(report) == (
        "Audit of demo, 2026-03-02T09:00:00Z: incomplete\n"
        "Scope: an auditor's bundle\n"
        "\n"
        "V4 re-derivation of model: pass (fine)\n"
        "V6 canaries of model: skipped (no canaries)\n"
        "\n"
        f"default/risk: {explain_guarantee(SUBJECT['guarantee'])}\n"
        "Not claimed:\n"
        f"- {NOT_CLAIMED['backups-expired']}\n"
        f"- {NOT_CLAIMED['bitwise-rederivation']}"
    )


def test_the_page_explains_codes_in_sentences() -> None:
    page = AuditReport((result(),), subjects=(SUBJECT,)).to_page()
    texts = [NOT_CLAIMED["backups-expired"], ASSUMPTIONS["same-libraries-and-cpu-kernel"]]
    assert all(text in page for text in [*texts, explain_guarantee(SUBJECT["guarantee"])])
    assert not re.search(r"backups-expired|every-version|bitwise-same-kernel", page)


def test_keys_come_as_text_bytes_or_file(tmp_path: Path) -> None:
    digits = "0f" * 32
    (tmp_path / "root.pub").write_text(f"{digits}\n")
    assert {
        key_text(digits),
        key_text(bytes.fromhex(digits)),
        key_text(tmp_path / "root.pub"),
        key_text(str(tmp_path / "root.pub")),
    } == {digits}


def test_what_is_no_key_is_refused() -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        key_text("Z" * 64)
