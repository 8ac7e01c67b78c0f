"""A bundle that commit 6763b0c exported is still read: nothing in it fails."""

import zipfile
from pathlib import Path
from typing import Any

import pytest

from letheon import DaREForestClassifier, audit, state
from letheon.audit._merge import merge_neutral_settings
from letheon.ledger.certificates.claims import describe_parameters
from letheon.state import Record

BUNDLE = Path(__file__).parents[1] / "data" / "bundle_6763b0c.zip"
KEY = "7eb58dfe56ae519bf605426b39618b8db52f298c371ca20ec76c62cba5bea99a"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> audit.AuditReport:
    folder = tmp_path_factory.mktemp("old") / "bundle"
    with zipfile.ZipFile(BUNDLE) as file:
        file.extractall(folder)
    return audit.audit(folder, key=KEY)


def test_nothing_fails_in_an_old_bundle(report: audit.AuditReport) -> None:
    assert report.verdict == "incomplete"
    assert {result.verdict for result in report.results} == {"pass", "skipped"}


def test_only_what_became_stricter_is_left_open(report: audit.AuditReport) -> None:
    """It has no signed index, and its mechanism of noise was withdrawn."""
    open_points = {
        result.level: result.reason for result in report.results if result.verdict != "pass"
    }
    assert open_points.keys() == {"V0", "V5"}
    assert "no signed index" in open_points["V0"]
    assert "mechanism withdrawn" in open_points["V5"]


def test_every_exact_model_is_derived_again(report: audit.AuditReport) -> None:
    derived = {result.model for result in report.results if result.level == "V4"}
    assert {"dare", "naive", "sisa"} <= derived
    notes = {result.details.get("settings") for result in report.of("V4") if result.details}
    assert notes == {"not fixed before the first removal"}


def test_later_parameters_are_omitted_only_at_their_defaults() -> None:
    X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1]
    model = DaREForestClassifier(n_estimators=2, random_state=0).fit(X, y)
    assert "class_weight" not in describe_parameters(model)
    weighted = DaREForestClassifier(n_estimators=2, class_weight={0: 1, 1: 2}, random_state=0)
    weighted.fit(X, y)
    assert "class_weight" in describe_parameters(weighted)
    before: Any = state.to_tree(model)
    present: Any = state.to_tree(weighted)
    without = before._replace(
        state=Record(tuple(pair for pair in before.state.items if pair[0] != "class_weight"))
    )
    assert (
        dict(merge_neutral_settings(model, without, before).state.items).keys()
        == dict(without.state.items).keys()
    )
    assert "class_weight" in dict(merge_neutral_settings(model, without, present).state.items)
