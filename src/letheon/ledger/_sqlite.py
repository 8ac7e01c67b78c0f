"""SQLite: which build is used, and how its connections are set up.

WAL mode below 3.51.3 can corrupt a database when one connection writes while another one
checkpoints, which is what a ledger does. So WAL is used from that version on only, and a rollback
journal with one more sync otherwise. Both are durable when a commit returns.
"""

import importlib
import sqlite3
import time
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.engine import URL
from sqlalchemy.pool import QueuePool

from letheon.exceptions import LedgerBusyError, LedgerError

__all__ = ["engine_for", "has_safe_wal", "library"]

_SAFE_WAL = (3, 51, 3)
_WAIT_SECONDS = 30
_JOURNALS = {"wal": "FULL", "delete": "EXTRA"}


class _Compiler(SQLiteCompiler):
    """Writes hints behind tables: without statistics SQLite takes the wrong one of two indexes."""

    def get_from_hint_text(self, table: Any, text: str | None) -> str | None:  # noqa: ARG002
        """Return the hint as it is."""
        return text


def library() -> Any:
    """Return the database module: `pysqlite3` where its WAL is safe, else Python's own."""
    try:
        found = importlib.import_module("pysqlite3.dbapi2")
    except ImportError:
        return sqlite3
    return found if has_safe_wal(found) else sqlite3


def has_safe_wal(module: Any) -> bool:
    """Whether this build is free of the WAL-reset race."""
    return bool(module.sqlite_version_info >= _SAFE_WAL)


def engine_for(url: URL, journal: str | None) -> tuple[Engine, str]:
    """Return an engine for the file and the journal mode that its connections use."""
    module = library()
    mode = journal or ("wal" if has_safe_wal(module) else "delete")
    if mode not in _JOURNALS:
        raise LedgerError(f"journal={journal!r}; expected 'wal', 'delete' or nothing")
    if mode == "wal" and not has_safe_wal(module):
        raise LedgerError(
            f"journal='wal' needs SQLite 3.51.3, found {module.sqlite_version}; "
            "install pysqlite3 or leave the journal mode to letheon"
        )
    engine = create_engine(
        url,
        module=module,
        poolclass=QueuePool,
        pool_size=8,
        max_overflow=-1,
        hide_parameters=True,
        connect_args={"timeout": _WAIT_SECONDS, "check_same_thread": False},
    )
    engine.dialect.statement_compiler = _Compiler
    event.listen(engine, "connect", lambda raw, _: _prepare(raw, mode))
    event.listen(engine, "begin", _begin)
    return engine, mode


def _prepare(connection: Any, mode: str) -> None:
    try:
        _set_up(connection, mode)
    except BaseException:
        connection.close()
        raise


def _set_up(connection: Any, mode: str) -> None:
    connection.isolation_level = None  # transactions are begun by `_begin` alone
    for pragma in (
        f"busy_timeout={_WAIT_SECONDS * 1000}",
        "secure_delete=ON",
        "foreign_keys=ON",
        "recursive_triggers=ON",  # so that REPLACE meets the triggers of DELETE too
        "temp_store=MEMORY",
        "mmap_size=0",
    ):
        connection.execute(f"PRAGMA {pragma}")
    _set_journal(connection, mode)
    connection.execute(f"PRAGMA synchronous={_JOURNALS[mode]}")


def _set_journal(connection: Any, mode: str) -> None:
    """Set the journal mode; a change needs the file alone, and SQLite does not wait for that."""
    for _ in range(100):
        if connection.execute("PRAGMA journal_mode").fetchone()[0] == mode:
            return
        try:
            connection.execute(f"PRAGMA journal_mode={mode}").fetchone()
        except connection.OperationalError as error:
            if "locked" not in str(error):
                raise
            time.sleep(0.05)
    raise LedgerBusyError(
        f"other processes have this ledger open in another journal mode than {mode!r}; "
        "stop them, or give them the same SQLite version and settings"
    )


def _begin(connection: Any) -> None:
    reading = connection.get_execution_options().get("letheon_reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
