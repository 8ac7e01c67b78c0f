"""The database of a ledger: SQLite by default, PostgreSQL by URL.

A transaction is durable when its context is left. Writers of one SQLite file queue up in the
process before they queue at the file, where waiting is by polling.
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
    "the database server accepts no writes: it is a standby, or set to read-only; give the address "
    "of the primary as database in letheon.toml. Nothing was changed"
)
_LOCKED = "another process has kept the database for 30 seconds; try again"
_FULL = ("53100", "attempt to write a readonly database", "database or disk is full")
# What PostgreSQL (a code) or SQLite (words) says, and what that means for a caller.
_ERROR_MEANINGS: tuple[tuple[tuple[str, ...], type[LedgerError], str], ...] = (
    (("55P03", "database is locked"), LedgerBusyError, _LOCKED),
    (("25006",), LedgerUnwritableError, _STANDBY),
    (_FULL, LedgerUnwritableError, engines.CANNOT_WRITE),
)

_in_use: "weakref.WeakSet[Database]" = weakref.WeakSet()


class _ForkState(threading.local):
    """What this thread keeps from other threads until it has forked."""

    stack = contextlib.ExitStack()


_fork_state = _ForkState()


def _close_before_fork() -> None:
    """Close idle connections: SQLite's locks and a server's sessions must not reach a child.

    What other threads do on SQLite is waited for. A child would inherit the note that somebody of
    this process has a lock, and wait for ever for a thread that it does not have.
    """
    _fork_state.stack = contextlib.ExitStack()
    for database in sorted(_in_use, key=id):  # in one order: two threads may fork at once
        _fork_state.stack.enter_context(database._hold_others())
        database.dispose()


def _resume_after_fork() -> None:
    _fork_state.stack.close()


os.register_at_fork(before=_close_before_fork, after_in_parent=_resume_after_fork)


class _ThreadState(threading.local):
    """What this thread has open."""

    readings = 0
    is_writing = False


class _DatabaseUse:
    """Who uses a database in this process: one writer at a time, and any number of readings."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.mine = _ThreadState()
        self.writer = threading.Lock()
        self.changed = threading.Condition()
        self.readings = 0

    def count_reading(self, step: int) -> None:
        """Count one reading of this thread more or less; new ones wait while somebody forks."""
        with self.changed:
            self.readings += step
            self.changed.notify_all()
        self.mine.readings += step


class Database:
    """An open database.

    Parameters
    ----------
    engine : Engine
        As `engines` makes it.
    path : Path or None
        The file, for SQLite.
    journal_mode : str or None
        ``wal`` or ``delete``, for SQLite.
    """

    def __init__(self, engine: Engine, path: Path | None, journal_mode: str | None) -> None:
        self.engine = engine
        self.path = path
        self.journal_mode = journal_mode
        # Called before anything is recorded; raises if this is not the ledger's own database.
        self.guard: Callable[[Connection], None] | None = None
        # What a process may remember in order to prepare; the transaction checks it.
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
        """Open the database; make it first, or bring that of an older letheon to today's form.

        Raises
        ------
        LedgerMissingError
            There is none, and `create` is false.
        NewerLedgerError
            A later letheon wrote it. Nothing is changed.
        LedgerError
            It is older than this library; ``letheon ledger upgrade`` is named.
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
            # Only its owner can read it; SQLite's other files take that over.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        elif not path.is_file():
            raise LedgerMissingError(f"no ledger database at {path}")
        engine, mode = engines.sqlite_engine(parsed, journal)
        return cls(engine, path, mode)

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self.engine.dialect.name

    @property
    def revision(self) -> str | None:
        """Revision of the tables, as the last migration left it; None where there are none."""
        with self.reading() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return None
            row = connection.execute(text("SELECT version_num FROM alembic_version")).first()
            return None if row is None else str(row[0])

    def upgrade(self) -> None:
        """Bring the tables to this library's revision, in one transaction."""
        from letheon.ledger.db.migrations import upgrade

        with self.transaction() as connection:
            upgrade(connection)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Return a connection in a writing transaction: durable when left, or rolled back.

        Raises
        ------
        RuntimeError
            This thread is in a `reading`. Without a write-ahead log its own lock would keep it
            from committing.
        """
        with self._hold_write_lock(), _translate_errors(), self.engine.begin() as connection:
            yield connection.execution_options(letheon_guard=self.guard)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Return a connection for statements that only read: one snapshot on SQLite."""
        use = self._current_use()
        use.count_reading(1)
        try:
            with _translate_errors(), self.engine.connect() as connection:
                yield connection.execution_options(letheon_reading=True)
        finally:
            use.count_reading(-1)

    def read(self, query: Executable) -> list[Row[Any]]:
        """Return the rows of a query, in a reading of its own."""
        with self.reading() as connection:
            return list(connection.execute(query))

    def read_first(self, query: Executable) -> Row[Any] | None:
        """Return the first row of a query, if there is one."""
        with self.reading() as connection:
            return connection.execute(query).first()

    def read_value(self, query: Executable) -> Any:
        """Return the first value of the first row of a query; None without one."""
        with self.reading() as connection:
            return connection.scalar(query)

    def require_current(self) -> None:
        """Raise `OldDatabaseError` if the log lacks what the files rest on; one short reading."""
        with self.reading() as connection:
            if self.guard is not None:
                self.guard(connection)

    def run_transaction(self, work: Callable[[Connection], _T]) -> _T:
        """Return ``work(connection)`` of one transaction; done again after a deadlock only.

        `work` may run several times, so it must have no effect outside the database.
        """
        for attempt in range(_TRIES):
            try:
                with self.transaction() as connection:
                    return work(connection)
            except DBAPIError as error:
                if _read_sqlstate(error) not in (_SERIALISATION, _DEADLOCK):
                    raise
                time.sleep(random.uniform(0, 0.01 * 2**attempt))
        raise LedgerBusyError(f"{_TRIES} transactions in a row met others; try again")

    def truncate_journal(self) -> None:
        """Leave no old page behind: empty SQLite's write-ahead log. PostgreSQL: nothing.

        Deleted content is zeroed in the file itself; the log would keep it until it is reset.
        """
        if self.journal_mode != "wal":
            return
        deadline = time.monotonic() + _WAIT_SECONDS
        while not self._truncate_log():
            if time.monotonic() > deadline:
                raise LedgerBusyError("readers keep the write-ahead log in use; try again")
            time.sleep(0.05)

    def _truncate_log(self) -> bool:
        with self._hold_write_lock(), _translate_errors(), self.engine.connect() as connection:
            raw: Any = connection.connection.driver_connection
            return bool(raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)

    def list_files(self) -> list[Path]:
        """Return the files that hold this database, as far as they exist (none: a server)."""
        if self.path is None:
            return []
        names = [f"{self.path.name}{end}" for end in ("", "-wal", "-shm", "-journal")]
        return [path for name in names if (path := self.path.with_name(name)).exists()]

    def dispose(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def close(self) -> None:
        """Close every connection for good."""
        self._is_closed = True
        self.dispose()

    @contextlib.contextmanager
    def _hold_write_lock(self) -> Iterator[None]:
        use = self._current_use()
        if use.mine.readings:
            raise RuntimeError("a transaction was begun inside a reading of the same thread")
        if self.path is None:
            yield
            return
        if not use.writer.acquire(timeout=_WAIT_SECONDS):
            raise LedgerBusyError("another thread has been writing for 30 seconds; try again")
        use.mine.is_writing = True
        try:
            yield
        finally:
            use.mine.is_writing = False
            use.writer.release()

    @contextlib.contextmanager
    def _hold_others(self) -> Iterator[None]:
        """Keep other threads from this SQLite file, as far as they come to an end in time."""
        if self.path is None:
            yield
            return
        use = self._use
        is_mine = not use.mine.is_writing and use.writer.acquire(timeout=_WAIT_SECONDS)
        try:
            with use.changed:
                use.changed.wait_for(lambda: use.readings == use.mine.readings, _WAIT_SECONDS)
                yield
        finally:
            if is_mine:
                use.writer.release()

    def _current_use(self) -> _DatabaseUse:
        """Drop what belongs to the parent process; refuse to go on after `close`."""
        if self._is_closed:
            raise LedgerError("this ledger is closed; Ledger.open(folder) opens it again")
        if self._use.process != os.getpid():
            self.engine.dispose(close=False)
            self._use = _DatabaseUse()
        return self._use

    def _require_revision(self, *, older_too: bool) -> None:
        revision = self.revision
        if revision is None:
            raise LedgerMissingError("this database holds no ledger; make one: letheon init")
        if revision not in KNOWN_REVISIONS:
            raise NewerLedgerError(
                f"this ledger has tables of revision {revision!r}, and this letheon knows them "
                f"up to {REVISION!r}; install the letheon that wrote it. Nothing was changed"
            )
        if revision != REVISION and not older_too:
            raise LedgerError(
                f"this ledger has tables of revision {revision!r}, this letheon needs "
                f"{REVISION!r}; run: letheon ledger upgrade"
            )


def _begin_transaction(connection: Connection) -> None:
    """Begin a transaction of SQLite: one that writes waits for its turn at once."""
    reading = connection.get_execution_options().get("letheon_reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _drop_read_only(connection: Any, record: Any) -> None:
    """Close a connection that only reads: the next one may find a disk that can be written."""
    if getattr(connection, "is_read_only", False):
        record.invalidate()


def _parse_url(url: str | Path) -> URL:
    if isinstance(url, Path):
        return URL.create("sqlite", database=str(url))
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise LedgerError(
            "the database is no URL; expected sqlite:///ledger.db or postgresql://host/name"
        ) from None  # the text may hold a password
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise LedgerError(f"a ledger lives in sqlite or postgresql, not in {backend!r}")
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise LedgerError("a ledger needs a file; expected sqlite:///ledger.db")
    return parsed


def _read_sqlstate(error: DBAPIError) -> str:
    return str(getattr(error.orig, "sqlstate", None))


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Name a wait that lasted too long, and a disk that is full or read-only.

    Any other error of the database passes as it is.
    """
    try:
        yield
    except PoolTimeout as error:
        raise LedgerBusyError("all connections to the database are in use; try again") from error
    except DBAPIError as error:
        words = str(error.orig)
        for signs, kind, meaning in _ERROR_MEANINGS:
            if _read_sqlstate(error) in signs or any(sign in words for sign in signs[1:]):
                raise kind(meaning) from error
        raise
