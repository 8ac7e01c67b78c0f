"""Write the table of routes at the end of `docs/api.md` from the API's own OpenAPI document.

Run ``python docs/make_api.py`` after changing a route; a test compares.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from letheon.ledger import Ledger
from letheon.service import create_app

PAGE = Path(__file__).resolve().parent / "api.md"
TITLE = "## Routes\n"
ABOUT = """
Made by `docs/make_api.py` from the OpenAPI document, which a running desk gives at `/openapi.json`
with every parameter and answer. The scope is what a token needs; `public` needs none.
"""
ORDER = (
    "requests",
    "models",
    "batches",
    "jobs",
    "certificates",
    "audits",
    "receipts",
    "tokens",
    "webhooks",
    "opendsr",
    "server",
)


def document() -> dict[str, Any]:
    """Return the OpenAPI document of an empty desk."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.create(Path(folder) / "home", name="docs") as ledger,
    ):
        return create_app(ledger).openapi()


def routes(found: dict[str, Any]) -> Iterator[str]:
    """Yield one table per subject."""
    operations = [
        (operation["tags"][0], path, method.upper(), operation)
        for path, methods in found["paths"].items()
        for method, operation in methods.items()
    ]
    unknown = {tag for tag, *_ in operations} - set(ORDER)
    if unknown:
        raise ValueError(f"no place for the routes of {sorted(unknown)}; add them to ORDER")
    for tag in ORDER:
        yield f"\n### {tag.capitalize()}\n\n| route | scope | what |\n|---|---|---|\n"
        for _, path, method, operation in sorted(
            (one for one in operations if one[0] == tag), key=lambda one: (one[1], one[2])
        ):
            yield f"| `{method} {path}` | {_scope(operation)} | {operation['summary']} |\n"


def _scope(operation: dict[str, Any]) -> str:
    if operation["x-public"]:
        return "public"
    return " or ".join(f"`{scope}`" for scope in operation["x-scopes"]) or "any token"


def page() -> str:
    """Return the whole page: what was written by hand, and the tables."""
    written = PAGE.read_text(encoding="utf-8").partition(TITLE)[0]
    return written + TITLE + ABOUT + "".join(routes(document()))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
