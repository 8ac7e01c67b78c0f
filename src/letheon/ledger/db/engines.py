"""Engines: which build of SQLite is used, and how connections to it or to PostgreSQL are set up.

WAL mode below 3.51.3 can corrupt a database when one connection writes while another one
checkpoints, which is what a ledger does. So WAL is used from that version on only, and a rollback
journal with one more sync otherwise. Both are durable when a commit returns.
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
    "the disk of the ledger is full or read-only, so nothing was recorded; free space on it, or "
    "mount it for writing, then try again. Reading works meanwhile"
)
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

SCHEMA = "letheon"  # of a PostgreSQL database, where other programs may have tables too

_SAFE_WAL = (3, 51, 3)
_WAIT_SECONDS = 30
_IDLE_SECONDS = 60
_JOURNALS = {"wal": "FULL", "delete": "EXTRA"}
# More than what SQLite needs to open a database with a write-ahead log.
_PROBE_BYTES = 64 << 10


class _Compiler(SQLiteCompiler):
    """Writes hints behind tables: without statistics SQLite takes the wrong one of two indexes."""

    def get_from_hint_text(self, table: Any, text: str | None) -> str | None:  # noqa: ARG002
        """Return the hint as it is."""
        return text


def sqlite_module() -> Any:
    """Return the database module: `pysqlite3` where its WAL is safe, else Python's own."""
    try:
        found = importlib.import_module("pysqlite3.dbapi2")
    except ImportError:
        return sqlite3
    return found if has_safe_wal(found) else sqlite3


def has_safe_wal(module: Any) -> bool:
    """Whether this build is free of the WAL-reset race."""
    return bool(module.sqlite_version_info >= _SAFE_WAL)


def sqlite_engine(url: URL, journal: str | None) -> tuple[Engine, str]:
    """Return an engine for the file and the journal mode that its connections use."""
    module = sqlite_module()
    mode = journal or ("wal" if has_safe_wal(module) else "delete")
    if mode not in _JOURNALS:
        raise LedgerError(f"journal={journal!r}; expected 'wal', 'delete' or nothing")
    if mode == "wal" and not has_safe_wal(module):
        raise LedgerError(
            f"journal='wal' needs SQLite 3.51.3, found {module.sqlite_version}; "
            "install pysqlite3 or leave the journal mode to letheon"
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
    """Whether files can be made in a folder; not on a disk that is full or read-only."""
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".letheon-probe-") as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return error.errno not in (*UNWRITABLE, errno.EACCES, errno.EPERM)
    return True


def _open_connection(module: Any, path: Path, mode: str, read_only: "_ReadOnlyFiles") -> Any:
    """Return a connection; one that only reads where the disk permits no more."""
    try:
        return _set_up_or_close(module.connect(str(path), **_OPTIONS), partial(_set_up, mode=mode))
    except module.OperationalError:
        if is_writable(path.parent):
            raise
        return read_only.connect()


_OPTIONS: dict[str, Any] = {"timeout": _WAIT_SECONDS, "check_same_thread": False}


class _ReadOnlyFiles:
    """A database on a disk that cannot be written: how it is read nevertheless.

    SQLite reads a write-ahead log only with a file of shared memory beside it. Where another
    process has made one it is used. Without a log the file alone is all there is. Else file and log
    are copied to a private temporary folder.

    Parameters
    ----------
    module : module
        The database module.
    path : Path
        The file.
    """

    def __init__(self, module: Any, path: Path) -> None:
        self._module = module
        self._path = path
        self._copy: tuple[tuple[int, ...], Path] | None = None
        marks = {"__slots__": (), "is_read_only": True}
        self._class = type("ReadOnlyConnection", (module.Connection,), marks)

    def connect(self) -> Any:
        """Return a connection that only reads."""
        with contextlib.suppress(self._module.OperationalError):
            return self._open_read_only(self._path, "mode=ro")
        log = self._path.with_name(f"{self._path.name}-wal")
        if not log.exists() or log.stat().st_size == 0:
            return self._open_read_only(self._path, "mode=ro&immutable=1")
        return self._open_read_only(self._copy_files(log), "mode=rw")

    def close(self) -> None:
        """Remove the copy."""
        if self._copy is not None:
            shutil.rmtree(self._copy[1].parent, ignore_errors=True)
            self._copy = None

    def _open_read_only(self, path: Path, how: str) -> Any:
        address = f"{path.absolute().as_uri()}?{how}"
        options = {**_OPTIONS, "factory": self._class, "uri": True}
        connection = _set_up_or_close(self._module.connect(address, **options), _set_up)
        connection.execute("PRAGMA query_only=ON")
        return connection

    def _copy_files(self, log: Path) -> Path:
        stats = [path.stat() for path in (self._path, log)]
        version = tuple(value for one in stats for value in (one.st_size, one.st_mtime_ns))
        if self._copy is None or self._copy[0] != version:
            self.close()
            folder = Path(tempfile.mkdtemp(prefix="letheon-read-only-"))
            for path in (self._path, log):
                shutil.copyfile(path, folder / path.name)
            self._copy = version, folder / self._path.name
        return self._copy[1]


def _set_up(connection: Any, mode: str | None = None) -> None:
    """Set a connection up; without a journal mode, for reading."""
    connection.isolation_level = None  # transactions are begun by `Database` alone
    for pragma in (
        f"busy_timeout={_WAIT_SECONDS * 1000}",
        "secure_delete=ON",
        "foreign_keys=ON",
        "recursive_triggers=ON",  # so that REPLACE meets the triggers of DELETE too
        "temp_store=MEMORY",
        "mmap_size=0",
    ):
        connection.execute(f"PRAGMA {pragma}")
    if mode is not None:
        _set_journal(connection, mode)
        connection.execute(f"PRAGMA synchronous={_JOURNALS[mode]}")
    connection.execute("PRAGMA schema_version").fetchone()


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


def postgresql_engine(url: URL) -> Engine:
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
    event.listen(engine, "connect", lambda raw, _: _set_up_or_close(raw, _set_up_session))
    return engine


def _set_up_session(connection: Any) -> None:
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


def _set_up_or_close(connection: Any, set_up: Callable[[Any], None]) -> Any:
    """Return a connection that was set up; one that cannot be is closed."""
    try:
        set_up(connection)
    except BaseException:
        connection.close()
        raise
    return connection
