"""The log of events: append-only, with a Merkle tree over it (RFC 6962), and its high-water mark.

An event is written in the transaction of what it reports, without a place in the tree. Places are
given later, by whoever holds the row of the log (`integrate`), so that writers never wait for each
other. Bodies hold opaque ids, codes, counts and digests: never an id of a person, never free text.

``high-water.txt`` in the folder of the ledger names the newest entry of the log that the files rest
on: its place, and the hash of its leaf. A database that does not hold this entry is older than the
files, or another one: a copy that was put back, or a replica that lagged behind and was promoted.
It would name neither the newest models nor their keys, and a sweep would destroy them. The file is
written after the commit that it speaks of. A kill in between leaves a file that is too old, which
blocks nothing; nothing was acknowledged or signed on top of that commit, since every worker brings
the file up to the database first.
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
"""What may stand in an event: names, codes, digests, versions, opaque ids."""


def is_code(text: str) -> bool:
    """Whether a text may stand in an event: it can be no address and no sentence."""
    return CODE.fullmatch(text) is not None


class BulkInsert:
    """An INSERT of any number of rows, whose text is built once for each number of rows.

    Requests come in by the thousand. Compiling a statement costs as much as running it, and one
    statement for each row makes the threads of a process change places at every row.

    Parameters
    ----------
    table : Table
        Where they go.
    names : sequence of str
        Columns that are set; values must be what the driver takes as it is.
    unless_there : bool, default=False
        Leave out rows that a unique index refuses, rather than raise.
    returning : sequence of str, default=()
        Columns of the rows that went in, to return.
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
        """Insert rows in their order; return what was asked for, in any order."""
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
    """Yield items in lists of this size; SQLite before 3.32 takes 999 parameters in a statement."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


def select_in(
    connection: Connection, query: Select[Any], column: ColumnElement[Any], values: Iterable[Any]
) -> list[Row[Any]]:
    """Return the rows of a query whose column has one of any number of values."""
    parts = (query.where(column.in_(part)) for part in split_into_chunks(values))
    return [row for part in parts for row in connection.execute(part)]


@dataclass(frozen=True)
class Frontier:
    """The roots of the full subtrees, largest first: all that appending needs.

    One root per bit that is set in `size`.
    """

    size: int = 0
    hashes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        whole = all(len(one) == _HASH_BYTES for one in self.hashes)
        if self.size < 0 or len(self.hashes) != self.size.bit_count() or not whole:
            raise ValueError(f"a log of {self.size} events has another frontier than this")

    def append(self, leaf: bytes) -> Self:
        """Return the frontier with one more leaf hash."""
        hashes, merged, size = list(self.hashes), leaf, self.size
        while size & 1:
            merged = node_hash(hashes.pop(), merged)
            size >>= 1
        return type(self)(self.size + 1, (*hashes, merged))

    def root(self) -> bytes:
        """Return the root of the tree."""
        return fold_roots(self.hashes)

    def to_text(self) -> str:
        """Return size and hashes in one line, for `from_text`."""
        return " ".join([str(self.size), *(one.hex() for one in self.hashes)])

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the frontier that `to_text` wrote."""
        size, *hashes = text.split(" ")
        return cls(int(size), tuple(bytes.fromhex(one) for one in hashes))


def fold_roots(parts: Sequence[bytes]) -> bytes:
    """Return the root over the roots of full subtrees, largest first."""
    if not parts:
        return _EMPTY
    root = parts[-1]
    for left in reversed(parts[:-1]):
        root = node_hash(left, root)
    return root


_by: ContextVar[str | None] = ContextVar("letheon_actor", default=None)


def current_actor() -> str | None:
    """Return who acts in this thread or task; None where nobody was named."""
    return _by.get()


@contextmanager
def acting(by: str) -> Iterator[None]:
    """Name who acts until the context is left: an opaque id, such as that of a token.

    Raises
    ------
    ValueError
        It could be a name, an address or a sentence, which no event may hold.
    """
    if not isinstance(by, str) or not is_code(by):
        raise ValueError(
            "`by` cannot stand in an event: give the opaque id of whoever acts, of up to 128 "
            "letters, digits and ._:/+-"
        )
    token = _by.set(by)
    try:
        yield
    finally:
        _by.reset(token)


# Statements of every request are built once: building one takes as long as running it.
_LATEST = (
    select(events.c.era, events.c.at).order_by(events.c.era.desc(), events.c.at.desc()).limit(1)
)
_append = BulkInsert(events, ("at", "era", "kind", "about", "body", "leaf"))


class LogHead(NamedTuple):
    """The tree over the events that have a place."""

    size: int
    root: bytes


class Event(NamedTuple):
    """What happened, when, and to whom (an opaque id)."""

    kind: str
    body: dict[str, Any]
    at: int
    about: str | None = None


def record_event(
    connection: Connection, kind: str, body: dict[str, Any], at: int, *, about: str | None = None
) -> None:
    """Append one event to the transaction; an event of a request says who acted, if anybody.

    Parameters
    ----------
    connection : Connection
        In a transaction.
    kind : str
        What happened, a code.
    body : dict
        Codes, digests, opaque ids, whole numbers, booleans; lists of these.
    at : int
        When, in seconds since 1970.
    about : str, optional
        Opaque id for timelines; by default the body's request, else its batch.

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
    """Append several events of one kind and time; see `record`."""
    by = current_actor()
    if by is not None:
        items = [{**body, "by": by} if "request" in body else body for body in items]
    append_events(connection, [Event(kind, body, at, about) for body in items])


def append_events(connection: Connection, items: Sequence[Event]) -> None:
    """Append any events in one statement, as they are; see `record`.

    They may be of several threads, whose actors differ. A clock that is far behind what was
    recorded before is refused; of the eras that `accept_clock` begins only the newest one counts.
    """
    if not items:
        return
    require_own_log(connection)
    at = min(item.at for item in items)
    era, latest = _latest_time(connection, at)
    if at < latest - TOLERATED_SECONDS:
        raise ClockError(
            f"the clock is {latest - at} seconds behind the latest event of this ledger; set it "
            "right and try again. If it is right, and an event was written while it was ahead, "
            "`letheon doctor --accept-clock` goes on from it. Nothing was recorded"
        )
    _append(connection, [_event_row(item, era) for item in items])


def require_own_log(connection: Connection) -> None:
    """Raise `OldDatabaseError` where entries would fork the log; see `require_mark`."""
    guard = connection.get_execution_options().get("letheon_guard")
    if guard is not None:
        guard(connection)


def accept_clock(connection: Connection, at: int) -> bool:
    """Record that the clock is right, though events were written while it was ahead.

    Counting starts anew: from now on times are compared with this event and later ones only.
    Events that were written before keep their times.

    Returns
    -------
    bool
        False if the clock is not behind; nothing is recorded then.
    """
    require_own_log(connection)
    era, latest = _latest_time(connection, at)
    if at >= latest - TOLERATED_SECONDS:
        return False
    correction = Event("clock-corrected", {"seconds": latest - at}, at)
    _append(connection, [_event_row(correction, era + 1)])
    return True


def seconds_behind(connection: Connection, at: int) -> int:
    """Return by how much a clock is behind the latest event that counts; negative if it is not."""
    return _latest_time(connection, at)[1] - at


def _latest_time(connection: Connection, at: int) -> tuple[int, int]:
    """Return the newest era and the latest time in it; `at` where there is no event."""
    found = connection.execute(_LATEST).first()
    return (0, at) if found is None else (found.era, found.at)


def integrate_events(connection: Connection) -> LogHead:
    """Give every event without a place the next one, and return the new head of the tree."""
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
    """Return the head of the tree as it was integrated last."""
    row = connection.execute(select(log.c.size, log.c.frontier)).one()
    return LogHead(row.size, Frontier.from_text(row.frontier).root())


def read_leaves(connection: Connection) -> list[bytes]:
    """Return the leaf hashes of all integrated events, in the order of the tree."""
    query = select(events.c.leaf).where(events.c.log_index.is_not(None))
    return [bytes.fromhex(leaf) for leaf in connection.scalars(query.order_by(events.c.log_index))]


def read_bodies(connection: Connection) -> Iterator[bytes]:
    """Return the canonical bodies of all integrated events, in the order of the tree."""
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
    """Return what `canonical` does, in a third of the time; None unless all is codes and numbers.

    Codes have one order in every encoding, and nothing to escape.
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
    """Refuse anything that could be a name, an address or a sentence."""
    if isinstance(value, dict):
        _require_codes([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            if type(item) is not int:  # spares most of the calls
                _require_codes(item)
    elif isinstance(value, str) and not is_code(value):
        raise ValueError(f"an event holds a text of {len(value)} characters that is no code")


HIGH_WATER = "high-water.txt"
# Built once: it is asked for before every request.
_LEAF = select(events.c.leaf).where(events.c.log_index == bindparam("place"))
_ENDS = {"certificates": ".json", "checkpoints": ".txt"}
_LINE = re.compile(r"([1-9][0-9]{0,17}) ([0-9a-f]{64})\n")
_WAY_OUT = (
    "Nothing was changed. Put the newer database back: the newest copy, or the primary that this "
    "replica lagged behind. If it is lost for good, `letheon ledger adopt` lists what would be "
    "lost with it, and with --yes goes on from this one"
)


class LogMark(NamedTuple):
    """The newest entry of the log that the files rest on: how many there were, and its leaf."""

    size: int
    leaf: str


def read_mark(folder: Path) -> LogMark | None:
    """Return what ``high-water.txt`` says; None where there is none yet.

    Raises
    ------
    OldDatabaseError
        It cannot be read, so nothing can be compared.
    """
    try:
        text = (folder / HIGH_WATER).read_text("ascii", "replace")
    except FileNotFoundError:
        return None
    match = _LINE.fullmatch(text)
    if match is None:
        raise _old_database_error([f"{folder / HIGH_WATER} is damaged; restore it"])
    return LogMark(int(match[1]), match[2])


def require_mark(folder: Path, connection: Connection) -> None:
    """Raise `OldDatabaseError` unless the log holds the entry that the files rest on."""
    text = _compare_mark(read_mark(folder), connection)
    if text is not None:
        raise _old_database_error([text])


def require_agreement(core: Core) -> None:
    """Raise `OldDatabaseError` if any file is newer than the database; see `differences`."""
    found = find_differences(core)
    if found:
        raise _old_database_error(found)


def find_differences(core: Core) -> list[str]:
    """Return in what the files are newer than the database; nothing if they agree.

    The files are looked at first: whatever they say then, the right database holds by now.
    """
    mark = read_mark(core.folder)
    newest = {kind: max(list_numbers(core.subfolder(kind)), default=0) for kind in _ENDS}
    with core.database.reading() as conn:
        found = [
            _compare_mark(mark, conn),
            _compare_certificate(newest["certificates"], conn),
            _compare_checkpoint(core, newest["checkpoints"], conn),
        ]
    return [text for text in found if text is not None]


def list_numbers(folder: Path) -> list[int]:
    """Return the numbers of the signed files in a folder."""
    end = _ENDS.get(folder.name, ".json")
    paths = folder.iterdir() if folder.is_dir() else ()
    stems = [path.stem for path in paths if path.suffix == end]
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())


def advance_mark(core: Core) -> None:
    """Give every event its place in the log, and write down how far the log is."""
    with core.database.transaction() as conn:
        size, _ = integrate_events(conn)
        mark = mark_at(conn, size)
    fault_point("mark.integrated")
    write_mark(core, mark)
    fault_point("mark.written")


def settle_mark(core: Core) -> None:
    """Bring the file up to the database, where a kill or a request left it behind."""
    mark = read_mark(core.folder)
    with core.database.reading() as conn:
        unplaced = select(events.c.id).where(events.c.log_index.is_(None)).limit(1)
        is_behind = mark is None or read_log_head(conn).size > mark.size
        is_behind = is_behind or conn.scalar(unplaced) is not None
    if is_behind:
        advance_mark(core)


def write_mark(core: Core, mark: LogMark | None, *, adopted: bool = False) -> None:
    """Write the file unless it is further already; `adopted` writes in any case."""
    if mark is None:
        return
    # One process at a time compares and writes, so that the file never goes back.
    with lock_file(core.folder / ".high-water.lock"):
        known = None if adopted else read_mark(core.folder)
        if known is None or known.size < mark.size:
            line = f"{mark.size} {mark.leaf}\n".encode()
            write_atomically(core.folder / HIGH_WATER, [line])


def mark_at(connection: Connection, size: int) -> LogMark | None:
    """Return what the file says when the log has so many entries; None for an empty log."""
    leaf = connection.scalar(_LEAF, {"place": size - 1})
    return None if leaf is None else LogMark(size, leaf)


def _compare_mark(mark: LogMark | None, connection: Connection) -> str | None:
    if mark is None or mark == (found := mark_at(connection, mark.size)):
        return None
    if found is not None:
        return f"entry {mark.size} of the log is another one than {HIGH_WATER} names"
    size = read_log_head(connection).size
    return f"its log has {size} entries, and the files were written with {mark.size}"


def _compare_certificate(number: int, connection: Connection) -> str | None:
    query = select(meta.c.value).where(meta.c.key == "sequence")
    known = int(connection.scalar(query) or 0)
    if number <= known:
        return None
    return f"certificates/ goes up to number {number}, and it has given out {known}"


def _compare_checkpoint(core: Core, size: int, connection: Connection) -> str | None:
    if not size:
        return None
    path = core.subfolder("checkpoints") / f"{size:012d}.txt"
    root = connection.scalar(select(checkpoints.c.root).where(checkpoints.c.size == size))
    if root is None:
        return f"it does not hold the checkpoint of {size} entries, {path.name}"
    try:
        note = read_note(path.read_text("utf-8"))
    except (OSError, ValueError, VerificationError):
        return None  # damage, not age; `letheon doctor` compares files and rows
    if note.root.hex() == root:
        return None
    return f"its checkpoint of {size} entries has another root than {path.name}"


def _old_database_error(found: list[str]) -> OldDatabaseError:
    return OldDatabaseError(
        f"the files of this ledger are newer than its database: {'; '.join(found)}. {_WAY_OUT}"
    )
