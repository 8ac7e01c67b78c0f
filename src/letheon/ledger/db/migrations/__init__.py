"""Migrations of the ledger's tables: each is one transaction, and none is ever edited."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from letheon.ledger.tables import SCHEMA

__all__ = ["config_for", "upgrade"]


def config_for(connection: Connection | None = None) -> Config:
    """Return Alembic's settings for these migrations, to run on the connection."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Bring the tables up to a revision, within the connection's transaction."""
    if connection.dialect.name == "postgresql":
        _make_schema(connection)
    command.upgrade(config_for(connection), revision)


def _make_schema(connection: Connection) -> None:
    """Make the schema, unless somebody with more rights has made it."""
    known = text("SELECT 1 FROM pg_namespace WHERE nspname = :name")
    if connection.scalar(known, {"name": SCHEMA}) is None:
        connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))
