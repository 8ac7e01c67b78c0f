"""docs/desk.md against the desk: scopes with their roles, states with their words."""

import re
from pathlib import Path

from letheon.ledger.db.tokens import ROLES, SCOPES
from letheon.service.pages._shared import STATE_LABELS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "desk.md").read_text("utf-8")


def rows(head: str) -> dict[str, tuple[str, str]]:
    """Lines of the table with this head: what stands in code in the first cell, and the others."""
    table = PAGE.partition(f"{head}\n|---|---|---|\n")[2].partition("\n\n")[0]
    matches = re.findall(r"^\| `(\S+)` \| (.+) \| (.+) \|$", table, re.MULTILINE)
    return {name: (second, third) for name, second, third in matches}


def test_every_scope_is_explained_with_the_roles_that_have_it() -> None:
    holders = {scope: [role for role in ROLES if scope in ROLES[role]] for scope in SCOPES}
    names = {
        scope: "all" if len(roles) == len(ROLES) else ", ".join(roles)
        for scope, roles in holders.items()
    }
    assert rows("| scope | permission | roles |") == {
        scope: (words, names[scope]) for scope, words in SCOPES.items()
    }


def test_every_state_is_explained_as_the_pages_do() -> None:
    said = {
        state: (label.text, label.meaning[0].lower() + label.meaning[1:].rstrip("."))
        for state, label in STATE_LABELS.items()
    }
    assert rows("| state | in the pages | means |") == said
