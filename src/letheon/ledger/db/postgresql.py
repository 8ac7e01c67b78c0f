"""PostgreSQL: how connections are set up, and what is refused."""

from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL

from letheon.exceptions import LedgerError
from letheon.ledger.tables import SCHEMA

_WAIT_SECONDS = 30
_IDLE_SECONDS = 60


def engine_for(url: URL) -> Engine:
    """Return an engine for the server; every connection is checked when it is made.

    Statements are never prepared by name, so that a proxy between client and server cannot mix
    them up. A transaction that a stopped process holds open is ended by the server.
    """
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        isolation_level="READ COMMITTED",
        hide_parameters=True,
        pool_pre_ping=True,
        pool_size=8,
        max_overflow=24,
        pool_timeout=_WAIT_SECONDS,
        connect_args={"prepare_threshold": None, "application_name": "letheon"},
    )
    event.listen(engine, "connect", lambda raw, _: _prepare(raw))
    return engine


def _prepare(connection: Any) -> None:
    try:
        _set_up(connection)
    except BaseException:
        connection.close()
        raise


def _set_up(connection: Any) -> None:
    with connection.cursor() as cursor:
        durable = cursor.execute("SHOW synchronous_commit").fetchone()[0]
        if durable == "off":
            raise LedgerError(
                "the server has synchronous_commit=off: an acknowledged request could be lost; "
                "set it to on (ALTER ROLE ... SET synchronous_commit = on)"
            )
        # Tables called events or log, and Alembic's own, may be there for another program too.
        cursor.execute(f"SET search_path = {SCHEMA}")
        cursor.execute(f"SET lock_timeout = '{_WAIT_SECONDS}s'")
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{_IDLE_SECONDS}s'")
    connection.commit()
