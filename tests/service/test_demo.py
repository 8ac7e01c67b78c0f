"""The filled example: everything in it is real, and a visitor finds each state."""

import time
from pathlib import Path

import pytest

from letheon.demo.desk import DemoInfo, make_demo
from letheon.exceptions import LedgerError
from letheon.ledger import Ledger
from letheon.ledger.db.jobs import Jobs
from letheon.service import ROLES, ServiceSettings, Tokens, create_app

STATES = {
    "received",
    "verified",
    "queued",
    "purged",
    "closed",
    "rejected",
    "cancelled",
    "duplicate",
    "on_hold",
    "stuck",
}


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DemoInfo]:
    folder = tmp_path_factory.mktemp("demo") / "ledger"
    return folder, make_demo(folder)


def test_requests_are_in_every_state_that_lasts(example: tuple[Path, DemoInfo]) -> None:
    with Ledger.open(example[0]) as ledger:
        counts = ledger.requests.count()
    assert {state for state, n in counts.by_state.items() if n} == STATES
    assert 50 <= sum(counts.by_state.values()) <= 70
    assert counts.overdue == 1


def test_models_have_certificates_purges_and_a_retrain(example: tuple[Path, DemoInfo]) -> None:
    with Ledger.open(example[0]) as ledger:
        methods = {model.name: model.method for model in ledger.models.list()}
        kinds = [item.kind for item in ledger.batches.list(limit=100).items]
        last = ledger.certificates.sequences()[-1]
        assert ledger.certificates.purge_attestation(last)
        assert [store.name for store in ledger.stores.list()] == ["exports"]
    assert methods["credit"] == "dare"
    assert methods["churn"] == "sisa"
    assert methods["marketing"] == "influence"
    assert "retrain" in kinds
    assert len(kinds) > 10


def test_the_clock_of_the_ledger_is_right(example: tuple[Path, DemoInfo]) -> None:
    with Ledger.open(example[0]) as ledger:
        clock = next(item for item in ledger.doctor() if item.check == "clock")
        newest = max(item.received_at for item in ledger.requests.find(order="newest").items)
        filed = ledger.requests.submit(["credit-person-0400"], model="credit")
        ledger.requests.cancel(filed.id)
    assert clock.level == "ok"
    assert 0 <= time.time() - newest.timestamp() < 86_400


def test_the_audit_passed(example: tuple[Path, DemoInfo]) -> None:
    with Ledger.open(example[0]) as ledger:
        (job,) = Jobs(ledger).list_page(kinds=["audit"]).items
    assert job.state == "done"
    assert (job.result or {})["passed"] is True


def test_the_tokens_open_the_desk(example: tuple[Path, DemoInfo]) -> None:
    folder, info = example
    assert set(ROLES) < info.tokens.keys()
    with Ledger.open(folder) as ledger:
        known = Tokens(ledger, ledger._core.clock)
        by_name = {name: known.find_by_text(text) for name, text in info.tokens.items()}
    assert all(by_name.values())
    bound = by_name["operator of acme"]
    assert bound is not None
    assert bound.tenant == "acme"


def test_the_receipt_code_is_covered_by_a_certificate(example: tuple[Path, DemoInfo]) -> None:
    from fastapi.testclient import TestClient

    folder, info = example
    with Ledger.open(folder) as ledger:
        app = create_app(ledger, ServiceSettings())
        with TestClient(app, base_url="http://localhost") as client:
            answer = client.post("/api/v1/receipts/check", json={"code": info.receipt_code})
    assert answer.status_code == 200
    assert answer.json()["covered"] is True


def test_a_folder_that_holds_something_is_refused(example: tuple[Path, DemoInfo]) -> None:
    with pytest.raises(LedgerError, match="already"):
        make_demo(example[0])
