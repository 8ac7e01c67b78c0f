"""Database of a ledger: SQLite by default, or PostgreSQL if its URL says so.

A transaction is durable when its context ends. Threads that write to the same SQLite file first
acquire a lock of the process, because SQLite itself waits by polling.
"""

import contextlib
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine, Executable, Row, event, inspect, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from letheon.exceptions import (
    LedgerBusyError,
    LedgerError,
    LedgerMissingError,
    LedgerUnwritableError,
    NewerLedgerError,
)
from letheon.ledger.db import engines

REVISION = "0100"
KNOWN_REVISIONS = ("0002", "0003", REVISION)

_T = TypeVar("_T")
_WAIT_SECONDS = 30
_TRIES = 8
_SERIALISATION, _DEADLOCK = "40001", "40P01"
_STANDBY = (
    "the database server is read-only, for example a standby; set database in letheon.toml to the "
    "address of the primary. Nothing was changed"
)
_LOCKED = "another process has locked the database for 30 seconds; try again"
_FULL = ("53100", "attempt to write a readonly database", "database or disk is full")
# Error codes of PostgreSQL and error texts of SQLite, with the error to raise.
_ERROR_MEANINGS: tuple[tuple[tuple[str, ...], type[LedgerError], str], ...] = (
    (("55P03", "database is locked"), LedgerBusyError, _LOCKED),
    (("25006",), LedgerUnwritableError, _STANDBY),
    (_FULL, LedgerUnwritableError, engines.CANNOT_WRITE),
)

_in_use: "weakref.WeakSet[Database]" = weakref.WeakSet()


class _ForkState(threading.local):
    """Locks that this thread holds while it forks."""

    stack = contextlib.ExitStack()


_fork_state = _ForkState()


def _close_before_fork() -> None:
    """Close idle connections, because a child process must not inherit locks or sessions.

    This first waits for other threads that use SQLite. Otherwise the child would inherit SQLite's
    record of their locks and wait forever for threads that do not exist in the child.
    """
    _fork_state.stack = contextlib.ExitStack()
    for database in sorted(_in_use, key=id):  # in a fixed order: two threads may fork at once
        _fork_state.stack.enter_context(database._hold_others())
        database.dispose()


def _resume_after_fork() -> None:
    _fork_state.stack.close()


os.register_at_fork(before=_close_before_fork, after_in_parent=_resume_after_fork)


class _ThreadState(threading.local):
    """Number of open readings and transactions of this thread."""

    readings = 0
    is_writing = False


class _DatabaseUse:
    """How this process uses a database: at most one writer, and any number of readers."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.mine = _ThreadState()
        self.writer = threading.Lock()
        self.changed = threading.Condition()
        self.readings = 0

    def count_reading(self, step: int) -> None:
        """Add `step` (1 or -1) to this thread's count of readings; wait while a thread forks."""
        with self.changed:
            self.readings += step
            self.changed.notify_all()
        self.mine.readings += step


class Database:
    """Open database of a ledger.

    Parameters
    ----------
    engine : Engine
        Engine from `engines`.
    path : Path or None
        The SQLite file; None for PostgreSQL.
    journal_mode : str or None
        ``wal`` or ``delete`` for SQLite; None for PostgreSQL.
    """

    def __init__(self, engine: Engine, path: Path | None, journal_mode: str | None) -> None:
        self.engine = engine
        self.path = path
        self.journal_mode = journal_mode
        # Called before each write; raises if this database does not belong to the ledger's files.
        self.guard: Callable[[Connection], None] | None = None
        # Values cached to prepare a transaction; the transaction checks them.
        self.cached_values: dict[str, str] = {}
        self._is_closed = False
        self._use = _DatabaseUse()
        if path is not None and not event.contains(engine, "begin", _begin_transaction):
            event.listen(engine, "begin", _begin_transaction)
            event.listen(engine, "checkin", _drop_read_only)
        _in_use.add(self)

    @classmethod
    def open(
        cls,
        url: str | Path,
        *,
        create: bool = False,
        upgrade: bool = False,
        journal: str | None = None,
    ) -> Self:
        """Open the database; optionally create it, or upgrade it from an older version of letheon.

        Raises
        ------
        LedgerMissingError
            The database does not exist, and `create` is False.
        NewerLedgerError
            A newer version of letheon wrote the database. Nothing is changed.
        LedgerError
            The tables are older than this version of letheon; run ``letheon ledger upgrade``.
        """
        database = cls._connect(url, create=create, journal=journal)
        try:
            if not create:
                database._require_revision(older_too=upgrade)
            elif database.revision is not None:
                database._require_revision(older_too=True)
            if create or upgrade:
                database.upgrade()
        except BaseException:
            database.dispose()
            raise
        return database

    @classmethod
    def _connect(cls, url: str | Path, *, create: bool, journal: str | None) -> Self:
        parsed = _parse_url(url)
        if parsed.get_backend_name() == "postgresql":
            return cls(engines.postgresql_engine(parsed), None, None)
        path = Path(str(parsed.database))
        if create:
            # Only its owner can read it; SQLite gives its other files the same mode.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        elif not path.is_file():
            raise LedgerMissingError(
                f"there is no ledger database at {path}; check the path, or create a ledger with: "
                "letheon init"
            )
        engine, mode = engines.sqlite_engine(parsed, journal)
        return cls(engine, path, mode)

    @property
    def dialect(self) -> str:
        """Kind of database: ``sqlite`` or ``postgresql``."""
        return self.engine.dialect.name

    @property
    def revision(self) -> str | None:
        """Revision of the tables as of the last migration; None if there are no tables."""
        with self.reading() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return None
            row = connection.execute(text("SELECT version_num FROM alembic_version")).first()
            return None if row is None else str(row[0])

    def upgrade(self) -> None:
        """Upgrade the tables to the revision of this version of letheon, in one transaction."""
        from letheon.ledger.db.migrations import upgrade

        with self.transaction() as connection:
            upgrade(connection)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a write transaction, which is committed durably when the context ends.

        After an exception it is rolled back.

        Raises
        ------
        RuntimeError
            This thread has an open `reading`, whose read lock would block the commit if there is no
            write-ahead log.
        """
        with self._hold_write_lock(), _translate_errors(), self.engine.begin() as connection:
            yield connection.execution_options(letheon_guard=self.guard)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a connection for queries only; on SQLite all queries see the same snapshot."""
        use = self._current_use()
        use.count_reading(1)
        try:
            with _translate_errors(), self.engine.connect() as connection:
                yield connection.execution_options(letheon_reading=True)
        finally:
            use.count_reading(-1)

    def read(self, query: Executable) -> list[Row[Any]]:
        """Run a query on a separate connection and return its rows."""
        with self.reading() as connection:
            return list(connection.execute(query))

    def read_first(self, query: Executable) -> Row[Any] | None:
        """Return the first row of a query; None if there is none."""
        with self.reading() as connection:
            return connection.execute(query).first()

    def read_value(self, query: Executable) -> Any:
        """Return the first value of the first row of a query; None if there is none."""
        with self.reading() as connection:
            return connection.scalar(query)

    def require_current(self) -> None:
        """Raise `OldDatabaseError` if the database is older than the files."""
        with self.reading() as connection:
            if self.guard is not None:
                self.guard(connection)

    def run_transaction(self, work: Callable[[Connection], _T]) -> _T:
        """Run ``work(connection)`` in one transaction and return its result.

        After a deadlock it is retried. `work` may run several times, so it must have no effect
        outside the database.
        """
        for attempt in range(_TRIES):
            try:
                with self.transaction() as connection:
                    return work(connection)
            except DBAPIError as error:
                if _read_sqlstate(error) not in (_SERIALISATION, _DEADLOCK):
                    raise
                time.sleep(random.uniform(0, 0.01 * 2**attempt))
        raise LedgerBusyError(
            f"the transaction conflicted with others {_TRIES} times in a row; try again later"
        )

    def truncate_journal(self) -> None:
        """Empty SQLite's write-ahead log; do nothing on PostgreSQL.

        SQLite overwrites deleted content in the database file with zeros, but the write-ahead log
        keeps this content until the log is reset.
        """
        if self.journal_mode != "wal":
            return
        deadline = time.monotonic() + _WAIT_SECONDS
        while not self._truncate_log():
            if time.monotonic() > deadline:
                raise LedgerBusyError(
                    "the write-ahead log cannot be emptied, because readers still use it; try "
                    "again later"
                )
            time.sleep(0.05)

    def _truncate_log(self) -> bool:
        with self._hold_write_lock(), _translate_errors(), self.engine.connect() as connection:
            raw: Any = connection.connection.driver_connection
            return bool(raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)

    def list_files(self) -> list[Path]:
        """Return the existing files of a SQLite database; an empty list for PostgreSQL."""
        if self.path is None:
            return []
        names = [f"{self.path.name}{end}" for end in ("", "-wal", "-shm", "-journal")]
        return [path for name in names if (path := self.path.with_name(name)).exists()]

    def dispose(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def close(self) -> None:
        """Close all connections and refuse further use."""
        self._is_closed = True
        self.dispose()

    @contextlib.contextmanager
    def _hold_write_lock(self) -> Iterator[None]:
        use = self._current_use()
        if use.mine.readings:
            raise RuntimeError(
                "a transaction cannot be opened while the same thread has an open reading"
            )
        if self.path is None:
            yield
            return
        if not use.writer.acquire(timeout=_WAIT_SECONDS):
            raise LedgerBusyError(
                "another thread has been writing to the database for 30 seconds; try again later"
            )
        use.mine.is_writing = True
        try:
            yield
        finally:
            use.mine.is_writing = False
            use.writer.release()

    @contextlib.contextmanager
    def _hold_others(self) -> Iterator[None]:
        """Wait for other threads that use this SQLite file, and block new ones in the context."""
        if self.path is None:
            yield
            return
        use = self._use
        is_acquired = not use.mine.is_writing and use.writer.acquire(timeout=_WAIT_SECONDS)
        try:
            with use.changed:
                use.changed.wait_for(lambda: use.readings == use.mine.readings, _WAIT_SECONDS)
                yield
        finally:
            if is_acquired:
                use.writer.release()

    def _current_use(self) -> _DatabaseUse:
        """Return how this process uses the database.

        In a child process, the connections of the parent are dropped. After `close`, `LedgerError`
        is raised.
        """
        if self._is_closed:
            raise LedgerError("this ledger is closed; open it again with Ledger.open(folder)")
        if self._use.process != os.getpid():
            self.engine.dispose(close=False)
            self._use = _DatabaseUse()
        return self._use

    def _require_revision(self, *, older_too: bool) -> None:
        revision = self.revision
        if revision is None:
            raise LedgerMissingError(
                "this database contains no ledger; create one with: letheon init"
            )
        if revision not in KNOWN_REVISIONS:
            raise NewerLedgerError(
                f"this ledger has tables of revision {revision!r}, but this version of letheon "
                f"supports at most {REVISION!r}; nothing was changed. Install the version of "
                "letheon that wrote the ledger"
            )
        if revision != REVISION and not older_too:
            raise LedgerError(
                f"this ledger has tables of revision {revision!r}, but this version of letheon "
                f"needs {REVISION!r}; run: letheon ledger upgrade"
            )


def _begin_transaction(connection: Connection) -> None:
    """Begin a SQLite transaction; a write transaction takes the write lock immediately."""
    reading = connection.get_execution_options().get("letheon_reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _drop_read_only(connection: Any, record: Any) -> None:
    """Close a read-only connection, because the disk may be writable again for the next one."""
    if getattr(connection, "is_read_only", False):
        record.invalidate()


def _parse_url(url: str | Path) -> URL:
    if isinstance(url, Path):
        return URL.create("sqlite", database=str(url))
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise LedgerError(
            "database is not a URL; expected sqlite:///ledger.db or postgresql://host/name"
        ) from None  # the value may contain a password
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise LedgerError(f"unsupported database {backend!r}; expected sqlite or postgresql")
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise LedgerError(
            "the database URL names no file, but a SQLite ledger needs one; use a URL such as "
            "sqlite:///ledger.db"
        )
    return parsed


def _read_sqlstate(error: DBAPIError) -> str:
    return str(getattr(error.orig, "sqlstate", None))


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate timeouts and errors of full or read-only disks into ledger errors.

    Other database errors pass unchanged.
    """
    try:
        yield
    except PoolTimeout as error:
        raise LedgerBusyError(
            "all connections to the database are in use; try again later"
        ) from error
    except DBAPIError as error:
        words = str(error.orig)
        for signs, kind, meaning in _ERROR_MEANINGS:
            if _read_sqlstate(error) in signs or any(sign in words for sign in signs[1:]):
                raise kind(meaning) from error
        raise
