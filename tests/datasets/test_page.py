"""The page about data sets is that of the loaders."""

import re
import runpy
from pathlib import Path

from letheon import datasets

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_tables_are_up_to_date() -> None:
    text = (DOCS / "datasets.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(DOCS / "make_datasets.py"))
    assert text == made["page"](text), "run python docs/make_datasets.py"
    assert all(f"### {name}\n" in text for name in datasets.names())


def test_an_old_table_is_noticed() -> None:
    made = runpy.run_path(str(DOCS / "make_datasets.py"))
    text = (DOCS / "datasets.md").read_text(encoding="utf-8")
    assert made["page"](text.replace("patient_nbr", "other_column")) == text


def test_every_public_name_is_explained() -> None:
    text = (DOCS / "datasets.md").read_text(encoding="utf-8")
    missing = [name for name in datasets.__all__ if not re.search(rf"\b{name}\b", text)]
    assert missing == []
