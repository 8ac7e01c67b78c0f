"""Migrations of the ledger's tables, each in one transaction.

Until the first release there is a single revision, created from the table metadata. Databases of
earlier revisions are altered to the same form.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, inspect, text

from letheon.ledger.db.database import REVISION
from letheon.ledger.db.engines import SCHEMA

__all__ = ["config_for", "upgrade"]

# Statements that bring an earlier revision up to date.
_MISSING = {
    "0002": (
        "ALTER TABLE models ADD COLUMN origin TEXT DEFAULT 'own' NOT NULL",
        # Models with trusted classes were registered by the operator.
        "UPDATE models SET origin = 'outside' WHERE trusted = ''",
    ),
    "0003": (),
}


def config_for(connection: Connection | None = None) -> Config:
    """Return the Alembic configuration to run these migrations on the connection."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def upgrade(connection: Connection) -> None:
    """Upgrade the tables within the transaction of the connection."""
    if connection.dialect.name == "postgresql":
        _make_schema(connection)
    if inspect(connection).has_table("alembic_version"):
        _alter_old(connection)
    command.upgrade(config_for(connection), "head")


def _alter_old(connection: Connection) -> None:
    old = connection.scalar(text("SELECT version_num FROM alembic_version"))
    if old in _MISSING:
        for statement in _MISSING[old]:
            connection.execute(text(statement))
        change = text("UPDATE alembic_version SET version_num = :revision")
        connection.execute(change, {"revision": REVISION})


def _make_schema(connection: Connection) -> None:
    """Create the PostgreSQL schema, unless an administrator has created it already."""
    known = text("SELECT 1 FROM pg_namespace WHERE nspname = :name")
    if connection.scalar(known, {"name": SCHEMA}) is None:
        connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))
