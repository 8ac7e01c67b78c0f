"""What the ledger's tests share: a PostgreSQL server."""

from tests.postgres import _ledger_template, postgres_server, postgres_url

__all__ = ["_ledger_template", "postgres_server", "postgres_url"]
