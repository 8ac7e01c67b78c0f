"""The map for newcomers names each sub-package and top-level module of the ledger, no other."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_map_of_the_ledger_is_complete() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = page.partition("### Where is what in the ledger")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+(?:\.py|/))`", table))
    folder = ROOT / "src" / "letheon" / "ledger"
    modules = {path.name for path in folder.glob("[a-z]*.py")}
    packages = {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    assert named == modules | packages
