"""Certificates of mechanisms that were refuted stay verifiable, and no longer pass V5."""

import zipfile
from pathlib import Path

import pytest

from letheon.audit import audit

# Written by the version before the release on a grid: objective perturbation, one erasure.
BUNDLE = Path(__file__).parents[1] / "data/withdrawn_bundle.zip"


@pytest.fixture
def bundle(tmp_path: Path) -> tuple[Path, str]:
    with zipfile.ZipFile(BUNDLE) as archive:
        archive.extractall(tmp_path / "bundle")
    key = tmp_path / "bundle/public_key.txt"
    text = key.read_text()
    key.unlink()
    return tmp_path / "bundle", text


def test_an_old_certificate_is_verified_and_incomplete(bundle: tuple[Path, str]) -> None:
    report = audit(bundle[0], key=bundle[1])
    verdicts = {(result.level, result.verdict) for result in report}
    assert {("V0", "pass"), ("V1", "pass"), ("V2", "pass"), ("V3", "pass")} <= verdicts
    (bound,) = report.of("V5")
    assert bound.verdict == "skipped"
    assert bound.reason.startswith("mechanism withdrawn: objective-perturbation-gaussian")
    assert report.verdict == "incomplete"


@pytest.mark.parametrize("level", ["V4", "V5"])
def test_no_choice_of_levels_lets_it_pass(bundle: tuple[Path, str], level: str) -> None:
    report = audit(bundle[0], key=bundle[1], levels=[level])
    assert report.verdict == "incomplete"
    assert any("mechanism withdrawn" in result.reason for result in report)
