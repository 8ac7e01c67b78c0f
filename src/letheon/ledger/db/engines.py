"""Database engines: choice of the SQLite build, and setup of connections.

Before SQLite 3.51.3, WAL mode can corrupt a database when one connection writes while another one
checkpoints, which happens in a ledger. Therefore WAL mode is used from that version on. Older
versions use a rollback journal with one more sync. Both are durable when a commit returns.
"""

import contextlib
import errno
import importlib
import os
import shutil
import sqlite3
import tempfile
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.engine import URL
from sqlalchemy.pool import QueuePool

from letheon.exceptions import LedgerBusyError, LedgerError

CANNOT_WRITE = (
    "the disk of the ledger is full or read-only, so nothing was recorded; free disk space, or "
    "mount the disk read-write, then try again. Reading still works"
)
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

SCHEMA = "letheon"  # schema in PostgreSQL, where other programs may have tables too

_SAFE_WAL = (3, 51, 3)
_WAIT_SECONDS = 30
_IDLE_SECONDS = 60
_JOURNALS = {"wal": "FULL", "delete": "EXTRA"}
# More than SQLite needs to open a database with a write-ahead log.
_PROBE_BYTES = 64 << 10


class _Compiler(SQLiteCompiler):
    """SQL compiler with index hints, because SQLite without statistics chooses wrong indexes."""

    def get_from_hint_text(self, table: Any, text: str | None) -> str | None:  # noqa: ARG002
        """Return the text of an index hint unchanged."""
        return text


def sqlite_module() -> Any:
    """Return `pysqlite3` if it is installed and its WAL mode is safe, otherwise `sqlite3`."""
    try:
        module = importlib.import_module("pysqlite3.dbapi2")
    except ImportError:
        return sqlite3
    return module if has_safe_wal(module) else sqlite3


def has_safe_wal(module: Any) -> bool:
    """Return whether this build of SQLite is free of the WAL-reset race."""
    return bool(module.sqlite_version_info >= _SAFE_WAL)


def sqlite_engine(url: URL, journal: str | None) -> tuple[Engine, str]:
    """Return an engine for the SQLite file of the URL, and the journal mode of its connections."""
    module = sqlite_module()
    mode = journal or ("wal" if has_safe_wal(module) else "delete")
    if mode not in _JOURNALS:
        raise LedgerError(f"journal={journal!r} is not valid; expected 'wal', 'delete' or None")
    if mode == "wal" and not has_safe_wal(module):
        raise LedgerError(
            f"journal='wal' needs SQLite 3.51.3 or later, but this is {module.sqlite_version}; "
            "install pysqlite3, or do not set journal"
        )
    path = Path(str(url.database))
    read_only = _ReadOnlyFiles(module, path)
    engine = create_engine(
        url,
        module=module,
        creator=lambda: _open_connection(module, path, mode, read_only),
        poolclass=QueuePool,
        pool_size=8,
        max_overflow=-1,
        hide_parameters=True,
    )
    engine.dialect.statement_compiler = _Compiler
    weakref.finalize(engine, read_only.close)
    return engine, mode


def is_writable(folder: Path) -> bool:
    """Return whether files can be created in a folder; False if the disk is full or read-only."""
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".letheon-probe-") as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return error.errno not in (*UNWRITABLE, errno.EACCES, errno.EPERM)
    return True


def _open_connection(module: Any, path: Path, mode: str, read_only: "_ReadOnlyFiles") -> Any:
    """Return a connection; it is read-only if the disk cannot be written."""
    try:
        return _set_up_or_close(module.connect(str(path), **_OPTIONS), partial(_set_up, mode=mode))
    except module.OperationalError:
        if is_writable(path.parent):
            raise
        return read_only.connect()


_OPTIONS: dict[str, Any] = {"timeout": _WAIT_SECONDS, "check_same_thread": False}


class _ReadOnlyFiles:
    """Read-only access to a database on a disk that cannot be written.

    SQLite reads a write-ahead log only with a shared-memory file next to it. If another process has
    created this file, it is used. If there is no write-ahead log, the database file is opened
    alone. Otherwise the database and its log are copied to a private temporary directory.

    Parameters
    ----------
    module : module
        The database module.
    path : Path
        The database file.
    """

    def __init__(self, module: Any, path: Path) -> None:
        self._module = module
        self._path = path
        self._copy: tuple[tuple[int, ...], Path] | None = None
        marks = {"__slots__": (), "is_read_only": True}
        self._class = type("ReadOnlyConnection", (module.Connection,), marks)

    def connect(self) -> Any:
        """Return a read-only connection."""
        with contextlib.suppress(self._module.OperationalError):
            return self._open_read_only(self._path, "mode=ro")
        log = self._path.with_name(f"{self._path.name}-wal")
        if not log.exists() or log.stat().st_size == 0:
            return self._open_read_only(self._path, "mode=ro&immutable=1")
        return self._open_read_only(self._copy_files(log), "mode=rw")

    def close(self) -> None:
        """Delete the temporary copy, if there is one."""
        if self._copy is not None:
            shutil.rmtree(self._copy[1].parent, ignore_errors=True)
            self._copy = None

    def _open_read_only(self, path: Path, options_text: str) -> Any:
        address = f"{path.absolute().as_uri()}?{options_text}"
        options = {**_OPTIONS, "factory": self._class, "uri": True}
        connection = _set_up_or_close(self._module.connect(address, **options), _set_up)
        connection.execute("PRAGMA query_only=ON")
        return connection

    def _copy_files(self, log: Path) -> Path:
        stats = [path.stat() for path in (self._path, log)]
        version = tuple(value for status in stats for value in (status.st_size, status.st_mtime_ns))
        if self._copy is None or self._copy[0] != version:
            self.close()
            folder = Path(tempfile.mkdtemp(prefix="letheon-read-only-"))
            for path in (self._path, log):
                shutil.copyfile(path, folder / path.name)
            self._copy = version, folder / self._path.name
        return self._copy[1]


def _set_up(connection: Any, mode: str | None = None) -> None:
    """Configure a connection; without a journal mode, only for reading."""
    connection.isolation_level = None  # `Database` begins all transactions
    for pragma in (
        f"busy_timeout={_WAIT_SECONDS * 1000}",
        "secure_delete=ON",
        "foreign_keys=ON",
        "recursive_triggers=ON",  # so that REPLACE fires DELETE triggers too
        "temp_store=MEMORY",
        "mmap_size=0",
    ):
        connection.execute(f"PRAGMA {pragma}")
    if mode is not None:
        _set_journal(connection, mode)
        connection.execute(f"PRAGMA synchronous={_JOURNALS[mode]}")
    connection.execute("PRAGMA schema_version").fetchone()


def _set_journal(connection: Any, mode: str) -> None:
    """Set the journal mode; wait a few seconds if other connections use the database.

    A change needs exclusive access, for which SQLite itself does not wait.
    """
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
        f"other processes use this ledger with a journal mode other than {mode!r}; stop them, or "
        "use the same SQLite version and settings"
    )


def postgresql_engine(url: URL) -> Engine:
    """Return an engine for a PostgreSQL server; the settings of new connections are checked.

    Statements are never prepared by name, so that a connection pooler cannot mix them up. The
    server ends the open transaction of a process that has stopped.
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
    event.listen(engine, "connect", lambda raw, _: _set_up_or_close(raw, _set_up_session))
    return engine


def _set_up_session(connection: Any) -> None:
    with connection.cursor() as cursor:
        durable = cursor.execute("SHOW synchronous_commit").fetchone()[0]
        if durable == "off":
            raise LedgerError(
                "the database server has synchronous_commit=off, so an acknowledged request "
                "could be lost; run: ALTER ROLE ... SET synchronous_commit = on"
            )
        # Other programs may have tables named events or log, or Alembic's table.
        cursor.execute(f"SET search_path = {SCHEMA}")
        cursor.execute(f"SET lock_timeout = '{_WAIT_SECONDS}s'")
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{_IDLE_SECONDS}s'")
    connection.commit()


def _set_up_or_close(connection: Any, set_up: Callable[[Any], None]) -> Any:
    """Configure and return a connection; close it if the configuration fails."""
    try:
        set_up(connection)
    except BaseException:
        connection.close()
        raise
    return connection
