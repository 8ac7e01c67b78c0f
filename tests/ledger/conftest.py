"""What the ledger's tests share: a PostgreSQL server."""

import pytest

from tests.postgres import _ledger_template, postgres_server, postgres_url

__all__ = ["_ledger_template", "postgres_server", "postgres_url"]

# Here the database itself is the subject.
EVERY_JOURNAL = ("test_database.py", "test_intake.py", "test_migrations.py")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave SQLite's other journal to long runs, but for a few files."""
    given = getattr(getattr(item, "callspec", None), "params", {})
    if given.get("kind") == "sqlite-delete" and item.path.name not in EVERY_JOURNAL:
        item.add_marker(pytest.mark.soak)
