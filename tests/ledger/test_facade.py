"""The page about the ledger names parts and methods that exist."""

import re
from pathlib import Path

import pytest

from letheon.ledger import Ledger

PAGE = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Parts of a ledger")[2].partition("\n## ")[0]
LINES = re.findall(r"^\| `ledger\.?(\w*)`[^|]*\| (.*) \|$", TABLE, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    with Ledger.create(tmp_path_factory.mktemp("facade") / "home", name="test") as ledger:
        return ledger


@pytest.mark.parametrize(("part", "methods"), LINES)
def test_every_method_on_the_page_exists(ledger: Ledger, part: str, methods: str) -> None:
    place = getattr(ledger, part) if part else ledger
    names = re.findall(r"`(\w+)`", methods)
    assert names
    assert [name for name in names if not hasattr(place, name)] == []


def test_every_part_is_on_the_page(ledger: Ledger) -> None:
    named = {part for part, _ in LINES} - {""}
    parts = {name for name, value in vars(ledger).items() if not name.startswith("_")}
    assert {name for name in parts if hasattr(getattr(ledger, name), "list")} <= named
    assert len(named) == 7
