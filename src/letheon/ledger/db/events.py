"""Append-only log of events, its Merkle tree (RFC 6962), and its high-water mark.

An event is written in the transaction of the change that it records, without a position in the
tree. Positions are assigned later under a lock on the log row (`integrate_events`), so that writers
never wait for each other. Bodies contain opaque ids, codes, counts and digests, never an id of a
person or free text.

``high-water.txt`` in the folder of the ledger names the newest log entry that the files depend on:
its position and leaf hash. A database without this entry is older than the files, for example a
restored copy or a promoted replica that lagged behind. Such a database does not contain the
newest models and keys, so a sweep would destroy their files. The file is written after the commit
that it describes. If a process is killed in between, the file is older, which is safe: every worker
updates the file before it acknowledges or signs anything on top of that commit.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, bindparam, select, update

from letheon.exceptions import ClockError, OldDatabaseError
from letheon.ledger.core import Core, fault_point, lock_file
from letheon.ledger.tables import checkpoints, events, log, meta
from letheon.state import write_atomically
from letheon.verifier import MAX_INT, VerificationError, canonical, leaf_hash, node_hash, read_note

_T = TypeVar("_T")
_MOST_PARAMETERS = 5000
_PLACEHOLDERS = {"sqlite": "?", "postgresql": "%s"}
_EMPTY = hashlib.sha256(b"").digest()
_HASH_BYTES = 32
TOLERATED_SECONDS = 300

CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]{0,127}")
"""Pattern of texts allowed in an event: names, codes, digests, versions, opaque ids."""


def is_code(text: str) -> bool:
    """Return whether a text is a code that events may contain, not an address or a sentence."""
    return CODE.fullmatch(text) is not None


class BulkInsert:
    """INSERT of any number of rows, whose SQL text is built once per number of rows.

    Thousands of requests may arrive at once. Compiling a statement costs as much as running it, and
    one statement per row causes a thread switch per row.

    Parameters
    ----------
    table : Table
        Target table.
    names : sequence of str
        Columns to set; values must be types that the driver accepts.
    unless_there : bool, default=False
        Skip rows that violate a unique index instead of raising.
    returning : sequence of str, default=()
        Columns of the inserted rows to return.
    """

    def __init__(
        self,
        table: Table,
        names: Sequence[str],
        *,
        unless_there: bool = False,
        returning: Sequence[str] = (),
    ) -> None:
        self._names = tuple(table.c[name].name for name in names)
        self._head = f"INSERT INTO {table.name} ({', '.join(self._names)}) VALUES "
        self._tail = " ON CONFLICT DO NOTHING" if unless_there else ""
        if returning:
            self._tail += f" RETURNING {', '.join(table.c[name].name for name in returning)}"
        self._returns = bool(returning)
        self._most = _MOST_PARAMETERS // len(self._names)

    def __call__(
        self, connection: Connection, rows: Sequence[Mapping[str, Any]]
    ) -> list[tuple[Any, ...]]:
        """Insert rows in order; return the `returning` columns of the new rows, in any order."""
        returned: list[tuple[Any, ...]] = []
        for part in split_into_chunks(rows, self._most):
            values = tuple([row[name] for row in part for name in self._names])
            places = _format_placeholders(connection.dialect.name, len(self._names), len(part))
            result = connection.exec_driver_sql(self._head + places + self._tail, values)
            if self._returns:
                returned.extend(map(tuple, result))
        return returned


@cache
def _format_placeholders(dialect: str, n_names: int, n_rows: int) -> str:
    row = f"({', '.join([_PLACEHOLDERS[dialect]] * n_names)})"
    return ", ".join([row] * n_rows)


def split_into_chunks(items: Iterable[_T], size: int = 400) -> Iterator[list[_T]]:
    """Yield lists of at most `size` items, because old SQLite versions allow 999 parameters."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


def select_in(
    connection: Connection, query: Select[Any], column: ColumnElement[Any], values: Iterable[Any]
) -> list[Row[Any]]:
    """Return the rows of a query whose column has one of the values; any number is allowed."""
    parts = (query.where(column.in_(part)) for part in split_into_chunks(values))
    return [row for part in parts for row in connection.execute(part)]


@dataclass(frozen=True)
class Frontier:
    """Roots of the full subtrees of a log, largest first, which are needed to append leaves.

    There is one root for each bit of `size` that is 1.
    """

    size: int = 0
    hashes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        is_complete = all(len(node) == _HASH_BYTES for node in self.hashes)
        if self.size < 0 or len(self.hashes) != self.size.bit_count() or not is_complete:
            raise ValueError(
                f"the hashes do not match a log of {self.size} events; expected one hash of 32 "
                "bytes for each full subtree"
            )

    def append(self, leaf: bytes) -> Self:
        """Return the frontier after appending a leaf hash."""
        hashes, merged, size = list(self.hashes), leaf, self.size
        while size & 1:
            merged = node_hash(hashes.pop(), merged)
            size >>= 1
        return type(self)(self.size + 1, (*hashes, merged))

    def root(self) -> bytes:
        """Return the root of the Merkle tree."""
        return fold_roots(self.hashes)

    def to_text(self) -> str:
        """Return the size and the hashes as one line of text."""
        return " ".join([str(self.size), *(node.hex() for node in self.hashes)])

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the frontier from a line that `to_text` made."""
        size, *hashes = text.split(" ")
        return cls(int(size), tuple(bytes.fromhex(node) for node in hashes))


def fold_roots(parts: Sequence[bytes]) -> bytes:
    """Return the root of a tree from the roots of its full subtrees, largest first."""
    if not parts:
        return _EMPTY
    root = parts[-1]
    for left in reversed(parts[:-1]):
        root = node_hash(left, root)
    return root


_by: ContextVar[str | None] = ContextVar("letheon_actor", default=None)


def current_actor() -> str | None:
    """Return the opaque id of the acting user of this thread or task; None if it is not set."""
    return _by.get()


@contextmanager
def acting(by: str) -> Iterator[None]:
    """Set the opaque id of the acting user, such as a token id, until the context ends.

    Raises
    ------
    ValueError
        `by` is not a code: it could be a name, an address or a sentence.
    """
    if not isinstance(by, str) or not is_code(by):
        raise ValueError(
            "`by` is not a valid id; expected an opaque id of at most 128 letters, digits and "
            "._:/+-"
        )
    token = _by.set(by)
    try:
        yield
    finally:
        _by.reset(token)


# Statements used by every request are built once: building takes as long as running.
_LATEST = (
    select(events.c.era, events.c.at).order_by(events.c.era.desc(), events.c.at.desc()).limit(1)
)
_append = BulkInsert(events, ("at", "era", "kind", "about", "body", "leaf"))


class LogHead(NamedTuple):
    """Size and root of the tree over the events that have a position."""

    size: int
    root: bytes


class Event(NamedTuple):
    """Event of the log: kind, body, time and opaque id of the request or batch."""

    kind: str
    body: dict[str, Any]
    at: int
    about: str | None = None


def record_event(
    connection: Connection, kind: str, body: dict[str, Any], at: int, *, about: str | None = None
) -> None:
    """Record an event in a transaction; the body of a request's event gets the acting user.

    Parameters
    ----------
    connection : Connection
        Connection in a transaction.
    kind : str
        Code of what happened.
    body : dict
        Codes, digests, opaque ids, integers, booleans, and lists of these.
    at : int
        Time in seconds since 1970.
    about : str, optional
        Opaque id of the request or batch, for timelines. By default it is taken from the body.

    Raises
    ------
    ClockError
        `at` is more than 300 seconds before the latest event.
    """
    record_events(connection, kind, [body], at, about=about)


def record_events(
    connection: Connection,
    kind: str,
    items: Sequence[dict[str, Any]],
    at: int,
    *,
    about: str | None = None,
) -> None:
    """Record several events of the same kind and time, each as `record_event` does."""
    by = current_actor()
    if by is not None:
        items = [{**body, "by": by} if "request" in body else body for body in items]
    append_events(connection, [Event(kind, body, at, about) for body in items])


def append_events(connection: Connection, items: Sequence[Event]) -> None:
    """Append events in one SQL statement, without adding the acting user.

    The events may come from several threads with different users. Like `record_event`, raise
    `ClockError` if the clock is far behind the latest event of the newest era; `accept_clock`
    starts a new era.
    """
    if not items:
        return
    require_own_log(connection)
    at = min(item.at for item in items)
    era, latest = _latest_time(connection, at)
    if at < latest - TOLERATED_SECONDS:
        raise ClockError(
            f"the clock is {latest - at} seconds behind the latest event of this ledger; correct "
            "the clock and try again. If the clock is right now but was ahead earlier, run "
            "`letheon doctor --accept-clock`. Nothing was recorded"
        )
    _append(connection, [_event_row(item, era) for item in items])


def require_own_log(connection: Connection) -> None:
    """Raise `OldDatabaseError` if the database is older than the files.

    New entries would fork the log; see `require_mark`.
    """
    guard = connection.get_execution_options().get("letheon_guard")
    if guard is not None:
        guard(connection)


def accept_clock(connection: Connection, at: int) -> bool:
    """Record that the clock is right, although events were written while it was ahead.

    This starts a new era: the times of later events are compared only with events of this era.
    Earlier events keep their times.

    Returns
    -------
    bool
        Whether the clock was behind. If not, nothing is recorded.
    """
    require_own_log(connection)
    era, latest = _latest_time(connection, at)
    if at >= latest - TOLERATED_SECONDS:
        return False
    correction = Event("clock-corrected", {"seconds": latest - at}, at)
    _append(connection, [_event_row(correction, era + 1)])
    return True


def seconds_behind(connection: Connection, at: int) -> int:
    """Return by how many seconds a time is behind the latest event of the newest era.

    The result is negative if the time is later.
    """
    return _latest_time(connection, at)[1] - at


def _latest_time(connection: Connection, at: int) -> tuple[int, int]:
    """Return the newest era and the time of its latest event; ``(0, at)`` without events."""
    row = connection.execute(_LATEST).first()
    return (0, at) if row is None else (row.era, row.at)


def integrate_events(connection: Connection) -> LogHead:
    """Assign positions to all events without one, and return the new head of the tree."""
    require_own_log(connection)
    row = connection.execute(select(log.c.size, log.c.frontier).with_for_update()).one()
    frontier = Frontier.from_text(row.frontier)
    query = select(events.c.id, events.c.leaf).where(events.c.log_index.is_(None))
    places: list[dict[str, int]] = []
    for event in connection.execute(query.order_by(events.c.id)):
        places.append({"event": event.id, "place": row.size + len(places)})
        frontier = frontier.append(bytes.fromhex(event.leaf))
    if places:
        change = update(events).where(events.c.id == bindparam("event"))
        connection.execute(change.values(log_index=bindparam("place")), places)
        size = row.size + len(places)
        connection.execute(update(log).values(size=size, frontier=frontier.to_text()))
    return LogHead(row.size + len(places), frontier.root())


def read_log_head(connection: Connection) -> LogHead:
    """Return the head of the tree as of the last call of `integrate_events`."""
    row = connection.execute(select(log.c.size, log.c.frontier)).one()
    return LogHead(row.size, Frontier.from_text(row.frontier).root())


def read_leaves(connection: Connection) -> list[bytes]:
    """Return the leaf hashes of all integrated events, in the order of the tree."""
    query = select(events.c.leaf).where(events.c.log_index.is_not(None))
    return [bytes.fromhex(leaf) for leaf in connection.scalars(query.order_by(events.c.log_index))]


def read_bodies(connection: Connection) -> Iterator[bytes]:
    """Yield the canonical bodies of all integrated events, in the order of the tree."""
    query = select(events.c.body).where(events.c.log_index.is_not(None))
    for body in connection.scalars(query.order_by(events.c.log_index)):
        yield body.encode()


def _event_row(event: Event, era: int) -> dict[str, Any]:
    kind, body, at, about = event
    fields = {**body, "at": at, "kind": kind}
    data = _encode_flat(fields)
    if data is None:
        _require_codes([kind, body])
        data = canonical(fields)
    return {
        "at": at,
        "era": era,
        "kind": kind,
        "about": about or body.get("request") or body.get("batch"),
        "body": data.decode(),
        "leaf": leaf_hash(data).hex(),
        "log_index": None,
    }


def _encode_flat(fields: dict[str, Any]) -> bytes | None:
    """Return the same text as `canonical` for a dict of codes and integers, in a third of the time.

    Return None if there is another kind of value. Codes sort the same in every encoding and need no
    escapes.
    """
    if not all(map(_is_name, fields)):
        return None
    parts = []
    for name in sorted(fields):
        value = fields[name]
        if type(value) is str and is_code(value):
            parts.append(f'"{name}":"{value}"')
        elif type(value) is int and -MAX_INT <= value <= MAX_INT:
            parts.append(f'"{name}":{value}')
        else:
            return None
    return f"{{{','.join(parts)}}}".encode()


@lru_cache(maxsize=1024)
def _is_name(name: Any) -> bool:
    return type(name) is str and is_code(name)


def _require_codes(value: Any) -> None:
    """Raise `ValueError` if a text in a value is not a code: it could be a name or a sentence."""
    if isinstance(value, dict):
        _require_codes([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            if type(item) is not int:  # avoids most of the calls
                _require_codes(item)
    elif isinstance(value, str) and not is_code(value):
        raise ValueError(
            f"an event contains a text of {len(value)} characters that is not a code; expected "
            "letters, digits and ._:/+- only"
        )


HIGH_WATER = "high-water.txt"
# Built once: it runs before every request.
_LEAF = select(events.c.leaf).where(events.c.log_index == bindparam("place"))
_ENDS = {"certificates": ".json", "checkpoints": ".txt"}
_LINE = re.compile(r"([1-9][0-9]{0,17}) ([0-9a-f]{64})\n")
_REMEDY = (
    "Nothing was changed. Restore the newer database: the newest copy, or the primary that this "
    "replica lagged behind. If it is lost, `letheon ledger adopt` lists what is lost with it, and "
    "with --yes continues with this database"
)


class LogMark(NamedTuple):
    """High-water mark: the newest log entry that the files depend on, as log size and leaf hash."""

    size: int
    leaf: str


def read_mark(folder: Path) -> LogMark | None:
    """Read ``high-water.txt``; return None if it does not exist.

    Raises
    ------
    OldDatabaseError
        The file is damaged, so it cannot be compared with the database.
    """
    try:
        text = (folder / HIGH_WATER).read_text("ascii", "replace")
    except FileNotFoundError:
        return None
    match = _LINE.fullmatch(text)
    if match is None:
        raise _old_database_error([f"{folder / HIGH_WATER} is damaged; restore the file"])
    return LogMark(int(match[1]), match[2])


def require_mark(folder: Path, connection: Connection) -> None:
    """Raise `OldDatabaseError` unless the log contains the entry of the high-water mark."""
    text = _compare_mark(read_mark(folder), connection)
    if text is not None:
        raise _old_database_error([text])


def require_agreement(core: Core) -> None:
    """Raise `OldDatabaseError` if any file is newer than the database."""
    differences = find_differences(core)
    if differences:
        raise _old_database_error(differences)


def find_differences(core: Core) -> list[str]:
    """Return a description of each difference between the files and the database.

    A difference is a file that is newer than the database, or that contradicts it. The files are
    read first, so that a write at the same time does not look like a difference.
    """
    mark = read_mark(core.folder)
    newest = {kind: max(list_numbers(core.subfolder(kind)), default=0) for kind in _ENDS}
    with core.database.reading() as conn:
        differences = [
            _compare_mark(mark, conn),
            _compare_certificate(newest["certificates"], conn),
            _compare_checkpoint(core, newest["checkpoints"], conn),
        ]
    return [text for text in differences if text is not None]


def list_numbers(folder: Path) -> list[int]:
    """Return the numbers in the names of the signed files of a folder, sorted."""
    end = _ENDS.get(folder.name, ".json")
    paths = folder.iterdir() if folder.is_dir() else ()
    stems = [path.stem for path in paths if path.suffix == end]
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())


def advance_mark(core: Core) -> None:
    """Assign positions to all events, and update the high-water mark."""
    with core.database.transaction() as conn:
        size, _ = integrate_events(conn)
        mark = mark_at(conn, size)
    fault_point("mark.integrated")
    write_mark(core, mark)
    fault_point("mark.written")


def settle_mark(core: Core) -> None:
    """Update the high-water mark if it is older than the database.

    This happens after a process was killed, and after requests, which do not update the mark.
    """
    mark = read_mark(core.folder)
    with core.database.reading() as conn:
        unplaced = select(events.c.id).where(events.c.log_index.is_(None)).limit(1)
        is_behind = mark is None or read_log_head(conn).size > mark.size
        is_behind = is_behind or conn.scalar(unplaced) is not None
    if is_behind:
        advance_mark(core)


def write_mark(core: Core, mark: LogMark | None, *, adopted: bool = False) -> None:
    """Write the mark, unless the file has a newer mark; if `adopted`, write it in any case."""
    if mark is None:
        return
    # One process at a time compares and writes, so that the mark never moves back.
    with lock_file(core.folder / ".high-water.lock"):
        known = None if adopted else read_mark(core.folder)
        if known is None or known.size < mark.size:
            line = f"{mark.size} {mark.leaf}\n".encode()
            write_atomically(core.folder / HIGH_WATER, [line])


def mark_at(connection: Connection, size: int) -> LogMark | None:
    """Return the mark for a log of this size; None if the log is shorter."""
    leaf = connection.scalar(_LEAF, {"place": size - 1})
    return None if leaf is None else LogMark(size, leaf)


def _compare_mark(mark: LogMark | None, connection: Connection) -> str | None:
    if mark is None or mark == (own_mark := mark_at(connection, mark.size)):
        return None
    if own_mark is not None:
        return f"entry {mark.size} of the log differs from {HIGH_WATER}"
    size = read_log_head(connection).size
    return f"its log has {size} entries, and the files were written at {mark.size} entries"


def _compare_certificate(number: int, connection: Connection) -> str | None:
    query = select(meta.c.value).where(meta.c.key == "sequence")
    known = int(connection.scalar(query) or 0)
    if number <= known:
        return None
    return f"certificates/ contains number {number}, and it has assigned numbers up to {known}"


def _compare_checkpoint(core: Core, size: int, connection: Connection) -> str | None:
    if not size:
        return None
    path = core.subfolder("checkpoints") / f"{size:012d}.txt"
    root = connection.scalar(select(checkpoints.c.root).where(checkpoints.c.size == size))
    if root is None:
        return f"it lacks the checkpoint at {size} entries, {path.name}"
    try:
        note = read_note(path.read_text("utf-8"))
    except (OSError, ValueError, VerificationError):
        return None  # damaged, not newer; `letheon doctor` reports it
    if note.root.hex() == root:
        return None
    return f"its checkpoint at {size} entries has a different root than {path.name}"


def _old_database_error(differences: list[str]) -> OldDatabaseError:
    return OldDatabaseError(
        f"the files of this ledger are newer than its database: {'; '.join(differences)}. {_REMEDY}"
    )
