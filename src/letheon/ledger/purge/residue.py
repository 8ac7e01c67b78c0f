"""The search for residue in the ledger's own files, and in its database."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, Table, select, tuple_

from letheon.ledger.core import Core
from letheon.ledger.db.events import HIGH_WATER
from letheon.ledger.keys.blobs import destroy_file
from letheon.ledger.purge.markers import Markers
from letheon.ledger.purge.scan import Hit, Place, ScanResult, scan
from letheon.ledger.settings import FILE
from letheon.ledger.tables import metadata

# Private folders of the desk, each with a lock beside it while its maker lives.
ROOMS = ".desk"
ROOM_LOCK = ".lock"

PARTIAL = ".*.partial"
_LEFT_AFTER = 600
_LONGEST_USE = 86_400
_UNLOCKED = (".", "certificates", "checkpoints")


def sweep_partials(core: Core, *, purges_too: bool = False) -> int:
    """Destroy half-written files of processes that died; return how many.

    Those in the folders of models are swept by whoever holds the model's lease.

    Parameters
    ----------
    core : Core
        The ledger.
    purges_too : bool, default=False
        Whether the caller holds the lock of purges; else it is tried.
    """
    doomed = [path for name in _UNLOCKED for path in _partials(core.folder / name) if _is_old(path)]
    n_swept = _destroy(doomed) + core.keys.sweep()
    if purges_too:
        return n_swept + _destroy(_partials(core.place("purges")))
    with purging_alone(core) as is_alone:
        return n_swept + (_destroy(_partials(core.place("purges"))) if is_alone else 0)


def leftovers(core: Core) -> tuple[Path, ...]:
    """Return the half-written files anywhere in the home that no process can be writing still."""
    found = (path for folder, _, _ in os.walk(core.folder) for path in _partials(Path(folder)))
    return tuple(sorted(path for path in found if _is_old(path)))


@contextlib.contextmanager
def purging_alone(core: Core) -> Iterator[bool]:
    """Whether no other process purges in this home; the lock of a dead one is free."""
    descriptor = os.open(core.place("purges") / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def is_in_use(core: Core, room: str) -> bool:
    """Whether somebody has a private folder of the desk at hand, since less than a day."""
    try:
        descriptor = os.open(core.folder / ROOMS / f"{room}{ROOM_LOCK}", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return time.time() - os.fstat(descriptor).st_mtime < _LONGEST_USE
    else:
        return False
    finally:
        os.close(descriptor)


def _partials(folder: Path) -> list[Path]:
    return sorted(folder.glob(PARTIAL))


def _is_old(path: Path) -> bool:
    try:
        return path.lstat().st_mtime < time.time() - _LEFT_AFTER
    except FileNotFoundError:
        return False


def _destroy(paths: list[Path]) -> int:
    for path in paths:
        destroy_file(path)
    return len(paths)


_ROWS = 500
# What letheon itself writes into its home; another file there is searched like one of a store.
_OWN = {FILE, HIGH_WATER, ROOMS, "keys", "public", "proofs", "certificates", "purges"}
_OWN |= {"checkpoints", "superseded", "service.toml", "service.key"}


def look_at_home(core: Core, model_folder: str, markers: Markers) -> ScanResult:
    """Look for the markers in every file of the home, and in the rows of a database server.

    Blobs of other models are left out: a person who asked to be erased from one model may be in
    another one.

    Parameters
    ----------
    core : Core
        The ledger.
    model_folder : str
        Key of the folder of the model's blobs.
    markers : Markers
        What must be nowhere.
    """
    result = scan(_places(core, model_folder), markers)
    if core.database.path is not None:
        return result
    with core.database.reading() as conn:
        rows = _look_at_rows(conn, markers)
    return replace(
        result,
        bytes=result.bytes + rows.bytes,
        hits=(*result.hits, *rows.hits),
        id_numbers=result.id_numbers | rows.id_numbers,
    )


def _places(core: Core, model_folder: str) -> Iterator[Place]:
    database = core.database.files()
    for path in database:
        yield Place("database", path, archives=False, apart=True, own=True)
    yield Place("blobs", core.blobs(model_folder).folder, archives=False, own=True)
    blobs = core.place("blobs")
    known = {path.resolve() for path in database}
    for path in sorted(core.folder.iterdir()):
        if path != blobs and path.resolve() not in known and not _is_log_of(path, known):
            is_own = path.name in _OWN or path.match(PARTIAL)
            yield Place(path.name if path.is_dir() else "home", path, own=is_own)


def _is_log_of(path: Path, database: set[Path]) -> bool:
    """Whether a file belongs to the database, even if it came into being a moment ago."""
    return any(path.name.startswith(f"{file.name}-") for file in database)


def _look_at_rows(conn: Connection, markers: Markers) -> ScanResult:
    """Look into every value of every table: a server's files are out of reach."""
    hits: list[Hit] = []
    numbers: set[int] = set()
    n_bytes = 0
    for table in metadata.sorted_tables:
        for rows in _pages(conn, table):
            data = b"\n".join(_as_bytes(value) for row in rows for value in row)
            n_bytes += len(data)
            for found in markers.find(data):
                hits.append(Hit("database", table.name, found.offset, found.kind))
                if found.id_number is not None:
                    numbers.add(found.id_number)
    return ScanResult(0, n_bytes, tuple(hits), (), frozenset(numbers))


def _pages(conn: Connection, table: Table) -> Iterator[Sequence[Row[Any]]]:
    """Yield the rows of a table a page at a time, so that no table has to fit into memory."""
    key = list(table.primary_key.columns)
    query = select(table).order_by(*key).limit(_ROWS)
    rows = conn.execute(query).all()
    while rows:
        yield rows
        last = [getattr(rows[-1], column.name) for column in key]
        rows = conn.execute(query.where(tuple_(*key) > tuple_(*last))).all()


def _as_bytes(value: object) -> bytes:
    return bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()
