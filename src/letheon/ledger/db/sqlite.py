"""SQLite: which build is used, and how its connections are set up.

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

_SAFE_WAL = (3, 51, 3)
_WAIT_SECONDS = 30
_JOURNALS = {"wal": "FULL", "delete": "EXTRA"}
# More than what SQLite needs to open a database with a write-ahead log.
_PROBE_BYTES = 64 << 10


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
    path = Path(str(url.database))
    read_only = _ReadOnlyFiles(module, path)
    engine = create_engine(
        url,
        module=module,
        creator=lambda: _connect(module, path, mode, read_only),
        poolclass=QueuePool,
        pool_size=8,
        max_overflow=-1,
        hide_parameters=True,
    )
    engine.dialect.statement_compiler = _Compiler
    event.listen(engine, "begin", _begin)
    event.listen(engine, "checkin", read_only.forget)
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


def _connect(module: Any, path: Path, mode: str, read_only: "_ReadOnlyFiles") -> Any:
    """Return a connection; one that only reads where the disk permits no more."""
    try:
        return _opened(lambda: module.connect(str(path), **_OPTIONS), mode)
    except module.OperationalError:
        if is_writable(path.parent):
            raise
        return read_only.connect()


_OPTIONS: dict[str, Any] = {"timeout": _WAIT_SECONDS, "check_same_thread": False}


def _opened(connect: Callable[[], Any], mode: str | None) -> Any:
    connection = connect()
    try:
        _set_up(connection, mode)
        connection.execute("PRAGMA schema_version").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


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
        self._class = type("ReadOnlyConnection", (module.Connection,), {"__slots__": ()})

    def connect(self) -> Any:
        """Return a connection that only reads."""
        with contextlib.suppress(self._module.OperationalError):
            return self._open(self._path, "mode=ro")
        log = self._path.with_name(f"{self._path.name}-wal")
        if not log.exists() or log.stat().st_size == 0:
            return self._open(self._path, "mode=ro&immutable=1")
        return self._open(self._copied(log), "mode=rw")

    def forget(self, connection: Any, record: Any) -> None:
        """Close such a connection after use: the next one may find a disk that can be written."""
        if isinstance(connection, self._class):
            record.invalidate()

    def close(self) -> None:
        """Remove the copy."""
        if self._copy is not None:
            shutil.rmtree(self._copy[1].parent, ignore_errors=True)
            self._copy = None

    def _open(self, path: Path, how: str) -> Any:
        address = f"{path.absolute().as_uri()}?{how}"
        options = {**_OPTIONS, "factory": self._class, "uri": True}
        connection = _opened(lambda: self._module.connect(address, **options), None)
        connection.execute("PRAGMA query_only=ON")
        return connection

    def _copied(self, log: Path) -> Path:
        stats = [path.stat() for path in (self._path, log)]
        version = tuple(value for one in stats for value in (one.st_size, one.st_mtime_ns))
        if self._copy is None or self._copy[0] != version:
            self.close()
            folder = Path(tempfile.mkdtemp(prefix="letheon-read-only-"))
            for path in (self._path, log):
                shutil.copyfile(path, folder / path.name)
            self._copy = version, folder / self._path.name
        return self._copy[1]


def _set_up(connection: Any, mode: str | None) -> None:
    """Set a connection up; without a journal mode, for reading."""
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
    if mode is not None:
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
