"""The demo step about an erasure request: it fails when one of its statements is false."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from letheon.demo import _context, _trust
from letheon.ledger.models.models import Models

pytest.importorskip("sqlalchemy")
pytest.importorskip("cryptography")

from letheon import audit, ledger
from letheon.ledger.worker import worker


def run_erasure(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], str]:
    """Run the step with few people; return false statements and the output."""
    monkeypatch.setattr(_context, "N_TRAIN", 120)
    monkeypatch.setattr(_trust, "TREES", 3)
    output_text = io.StringIO()
    context = _context.make_context(Console(file=output_text, width=80), 3)
    _trust.run_erasure(context)
    return context.failures, output_text.getvalue()


def test_the_whole_story_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    failures, output_text = run_erasure(monkeypatch)
    words = " ".join(output_text.split())
    assert failures == []
    assert "verified, queued, applying, applied, certified, purging, purged" in words
    assert [f"fails V{level}" in words for level in range(5)] == [True] * 5
    assert "the audit passes: yes" in words
    assert "person-" not in words
    assert max(map(len, output_text.splitlines())) <= 80


def test_an_audit_that_believes_everything_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = audit.audit

    def gullible(*args: Any, **options: Any) -> audit.AuditReport:
        report = honest(*args, **options)
        return replace(report, results=tuple(replace(result, verdict="pass") for result in report))

    monkeypatch.setattr(audit, "audit", gullible)
    failures = run_erasure(monkeypatch)[0]
    assert [f"fails V{level}" in text for level, text in enumerate(failures)] == [True] * 5


def test_an_audit_that_looks_at_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "audit", lambda *_, **__: audit.AuditReport(()))
    assert "the audit passes" in run_erasure(monkeypatch)[0]


def test_people_who_are_not_purged_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "purge_next", lambda *_: False)
    failures = run_erasure(monkeypatch)[0]
    assert failures == ["a request is applied, gets a certificate and is purged in one run"]


@pytest.mark.parametrize(
    ("name", "caught"),
    [
        ("notes.txt", "no file of the ledger contains an erased id"),
        ("keys/epoch-old.key", "the key of the version before is destroyed"),
    ],
)
def test_a_file_that_was_left_is_noticed(
    name: str, caught: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(opened: ledger.Ledger, folder: Path, **options: Any) -> Path:
        (opened.folder / name).write_text("person-000" if name == "notes.txt" else "")
        return export(opened, folder, **options)

    export = ledger.Ledger.export
    monkeypatch.setattr(ledger.Ledger, "export", careless)
    assert run_erasure(monkeypatch)[0] == [caught]


def test_a_served_model_that_kept_a_person_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(opened: Models, name: str) -> Any:
        model = load(opened, name)
        model.forget(model.ids_[:1].tolist())  # other people than those who asked
        return model

    load = Models.load
    monkeypatch.setattr(Models, "load", kept)
    assert run_erasure(monkeypatch)[0] == ["the served model is a fresh fit"]


def test_the_step_is_skipped_where_the_extra_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_context, "find_spec", lambda _: None)
    failures, output_text = run_erasure(monkeypatch)
    assert failures == []
    assert "pip install 'letheon[ledger]'" in output_text
