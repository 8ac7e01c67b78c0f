"""The map for newcomers names every file of the ledger, and no other."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_map_of_the_ledger_is_complete() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = page.partition("### Where is what in the ledger")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(_\w+?)(?:\.py)?`", table))
    there = {path.stem for path in (ROOT / "src" / "letheon" / "ledger").glob("_[a-z]*.py")}
    assert named == there
