"""Definition texts and the page that explains digests and codes of certificates."""

import re
import runpy
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from letheon.ledger.certificates.facts import _NEVER_CLAIMED, PROPERTIES
from letheon.linear._descent import _THEOREMS
from tests.ledger.forgetters import CALLER, EPOCH, EVERY, Maker, erased

ROOT = Path(__file__).resolve().parents[2]
MADE: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "make_definitions.py"))
PAGE = (ROOT / "docs" / "definitions.md").read_text(encoding="utf-8")
TEXTS = {
    file.name: file.read_text(encoding="utf-8")
    for file in resources.files("letheon.definitions").iterdir()
    if file.name.endswith(".md")
}


def explained(*titles: str) -> set[str]:
    """Return the codes in sections of the page."""
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    wanted = [text for text in sections if text.split("\n")[0] in titles]
    assert len(wanted) == len(titles)
    return set(re.findall(r"^\| `([^`]+)` \|", "".join(wanted), flags=re.MULTILINE))


def test_the_page_is_up_to_date() -> None:
    assert MADE["page"]() == PAGE, "run python docs/make_definitions.py"


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_definition_has_all_its_parts(name: str) -> None:
    text = TEXTS[name]
    assert text.startswith("# ")
    assert all(f"**{part}" in text for part in ("Claim.**", "Assumptions.**", "Removal"))
    assert "**Proof" in text or "**Reference" in text
    removal = text.partition("**Removal")[2]
    assert re.search(r"^    \S.*\n {8}\S", removal, flags=re.MULTILINE), "no pseudo-code"


@pytest.mark.parametrize("kind", ["erase", "retrain"])
@pytest.mark.parametrize("maker", EVERY)
def test_every_code_of_a_certificate_is_explained(maker: Maker, kind: str) -> None:
    facts = erased(maker, kind).facts
    method, noise = facts["method"], facts["method"]["noise"]
    line = f"| `{method['name']}` | [{'naive' if kind == 'retrain' else method['name']}]"
    assert f"{line}(methods.md#" in PAGE
    assert f"`{method['definition']['sha256']}`" in PAGE
    assert facts["guarantee"]["accounting"]["rule"] in explained("Rules of accounting")
    assert noise == "none" or noise["mechanism"] in explained("Noise")
    assert facts["execution"]["replay"] in explained("Replay")
    assert set(facts["notClaimed"]) <= explained("Not claimed")
    measures = facts["measurements"].values()
    assert {each["metric"] for each in measures} <= explained("Measures")
    assert {each["basis"] for each in measures} <= explained("What a measure rests on")


def test_codes_that_no_small_model_shows_are_explained() -> None:
    rules = {"guo2020-residual-sum", "golatkar2020-closeness-per-request", *_THEOREMS.values()}
    assert rules <= explained("Rules of accounting")
    assert {CALLER["rule"], EPOCH["rule"]} <= explained("Seeds of training")
    list_unmeasured = {f"{name}-not-measured" for name in PROPERTIES}
    assert {*_NEVER_CLAIMED, *list_unmeasured, "batch-of-one"} <= explained("Not claimed")
