"""A CSV file with categories and missing values, uploaded to the desk."""

from pathlib import Path
from typing import Any

import pytest

import letheon
from letheon.audit import audit
from tests.pipelines.people import LEAVING, N, fit_pipeline, write_csv
from tests.service.desks import Desk
from tests.service.test_pages_models import send

FIELDS = {"name": "churn", "target": "churned", "ids": "customer"}


@pytest.fixture
def rows(tmp_path: Path) -> bytes:
    write_csv(tmp_path / "train.csv")
    return (tmp_path / "train.csv").read_bytes()


def upload(desk: Desk, rows: bytes, model: bytes | None = None, **fields: str) -> Any:
    files = {"rows": ("train.csv", rows)}
    if model is not None:
        files["model"] = ("model.letheon", model)
    return desk.client("operator").post("/api/v1/models", data=FIELDS | fields, files=files)


def check_erasure(desk: Desk, folder: Path) -> None:
    """Erase people in the model and audit the whole ledger."""
    client = desk.client("operator")
    for person in LEAVING:
        body = {"model": "churn", "ids": [person], "verified": True}
        assert client.post("/api/v1/requests", json=body).status_code == 201
    desk.work()
    shown = client.get("/api/v1/models/churn").json()
    assert (shown["live_rows"], shown["certificate"]) == (N - len(LEAVING), 1)
    bundle = desk.ledger.export(folder / "bundle", tier="auditor", model="churn")
    report = audit(bundle, key=desk.ledger.public_key)
    assert report.passed, [str(result) for result in report]
    assert {"V2", "V4"} <= {result.level for result in report if result.verdict == "pass"}


@pytest.mark.parametrize("method", ["boosting", "ridge"])
def test_a_table_is_trained_forgotten_and_audited(
    method: str,
    desk: Desk,
    rows: bytes,
    tmp_path: Path,
) -> None:
    made = upload(desk, rows, method=method)
    assert made.status_code == 201, made.text
    assert (made.json()["live_rows"], made.json()["method"]) == (N, "pipeline")
    check_erasure(desk, tmp_path)


def test_a_saved_pipeline_is_registered_with_its_table(
    desk: Desk,
    rows: bytes,
    tmp_path: Path,
) -> None:
    letheon.save(fit_pipeline("dare"), tmp_path / "model")
    made = upload(desk, rows, (tmp_path / "model").read_bytes())
    assert made.status_code == 201, made.text
    check_erasure(desk, tmp_path)


def test_the_form_takes_a_model_file_or_a_method(desk: Desk, rows: bytes) -> None:
    for answer in (upload(desk, rows), upload(desk, rows, b"model", method="dare")):
        assert answer.status_code == 422
        assert "method" in answer.json()["detail"]
    assert upload(desk, rows, method="magic").status_code == 422


def test_the_page_trains_a_model(desk: Desk, rows: bytes) -> None:
    client = desk.browser("operator@default")
    files = {"rows": ("train.csv", rows)}
    answer = send(client, "/models/new", data=FIELDS | {"method": "dare"}, files=files)
    assert answer.status_code == 303, answer.text
    answer = send(client, "/models/new", data=FIELDS | {"method": "magic"}, files=files)
    assert "Unknown method" in answer.text
    both = files | {"model": ("model.letheon", b"x")}
    answer = send(client, "/models/new", data=FIELDS | {"method": "dare"}, files=both)
    assert "A model file and a method were chosen" in answer.text
