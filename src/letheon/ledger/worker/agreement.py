"""Whether database and files agree, before anything is destroyed, signed or recorded.

``high-water.txt`` in the folder of the ledger names the newest entry of the log that the files rest
on: its place, and the hash of its leaf. A database that does not hold this entry is older than the
files, or another one: a copy that was put back, or a replica that lagged behind and was promoted.
It would name neither the newest models nor their keys, and a sweep would destroy them.

The file is written after the commit that it speaks of. A kill in between leaves a file that is too
old, which blocks nothing; nothing was acknowledged or signed on top of that commit, since every
worker brings the file up to the database first.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select

from letheon.exceptions import OldDatabaseError
from letheon.ledger.core import Core
from letheon.ledger.db.events import head, integrate
from letheon.ledger.faults import point
from letheon.ledger.tables import checkpoints, events, meta
from letheon.state import write_atomically
from letheon.verifier import Refused, read_note

HIGH_WATER = "high-water.txt"
# Built once: it is asked for before every request.
_LEAF = select(events.c.leaf).where(events.c.log_index == bindparam("place"))
_LINE = re.compile(r"([1-9][0-9]{0,17}) ([0-9a-f]{64})\n")
_WAY_OUT = (
    "Nothing was changed. Put the newer database back: the newest copy, or the primary that this "
    "replica lagged behind. If it is lost for good, `letheon ledger adopt` lists what would be "
    "lost with it, and with --yes goes on from this one"
)


class Mark(NamedTuple):
    """The newest entry of the log that the files rest on: how many there were, and its leaf."""

    size: int
    leaf: str


def read_mark(folder: Path) -> Mark | None:
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
        raise _disagreement([f"{folder / HIGH_WATER} is damaged; restore it"])
    return Mark(int(match[1]), match[2])


def require_mark(folder: Path, connection: Connection) -> None:
    """Raise `OldDatabaseError` unless the log holds the entry that the files rest on."""
    text = _compare_mark(read_mark(folder), connection)
    if text is not None:
        raise _disagreement([text])


def require_agreement(core: Core) -> None:
    """Raise `OldDatabaseError` if any file is newer than the database; see `differences`."""
    found = differences(core)
    if found:
        raise _disagreement(found)


def differences(core: Core) -> list[str]:
    """Return in what the files are newer than the database; nothing if they agree.

    The files are looked at first: whatever they say then, the right database holds by now.
    """
    mark = read_mark(core.folder)
    certificate, checkpoint = (
        max(signed_numbers(core, kind), default=0) for kind in ("certificates", "checkpoints")
    )
    with core.database.reading() as conn:
        texts = [_compare_mark(mark, conn), _compare_checkpoint(core, checkpoint, conn)]
        known = int(conn.scalar(select(meta.c.value).where(meta.c.key == "sequence")) or 0)
    if certificate > known:
        texts.insert(
            1, f"certificates/ goes up to number {certificate}, and it has given out {known}"
        )
    return [text for text in texts if text is not None]


def signed_path(core: Core, kind: str, number: int) -> Path:
    """Return where one of the "certificates", "purges" or "checkpoints" lies."""
    name = f"{number:012d}.txt" if kind == "checkpoints" else f"{number:06d}.json"
    return core.place(kind) / name


def signed_numbers(core: Core, kind: str) -> list[int]:
    """Return the numbers of the signed files of a kind; see `signed_path`."""
    end, folder = signed_path(core, kind, 0).suffix, core.place(kind)
    stems = [
        path.stem for path in (folder.iterdir() if folder.is_dir() else ()) if path.suffix == end
    ]
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())


def advance_mark(core: Core) -> None:
    """Give every event its place in the log, and write down how far the log is."""
    with core.database.transaction() as conn:
        size, _ = integrate(conn)
        mark = mark_at(conn, size)
    point("mark.integrated")
    write_mark(core, mark)
    point("mark.written")


def settle_mark(core: Core) -> None:
    """Bring the file up to the database, where a kill or a request left it behind."""
    mark = read_mark(core.folder)
    with core.database.reading() as conn:
        unplaced = select(events.c.id).where(events.c.log_index.is_(None)).limit(1)
        is_behind = mark is None or head(conn).size > mark.size
        is_behind = is_behind or conn.scalar(unplaced) is not None
    if is_behind:
        advance_mark(core)


def write_mark(core: Core, mark: Mark | None, *, adopted: bool = False) -> None:
    """Write the file unless it is further already; `adopted` writes in any case."""
    if mark is None:
        return
    # One process at a time compares and writes, so that the file never goes back.
    with lock_file(core.folder / ".high-water.lock", wait=True):
        known = None if adopted else read_mark(core.folder)
        if known is None or known.size < mark.size:
            line = f"{mark.size} {mark.leaf}\n".encode()
            write_atomically(core.folder / HIGH_WATER, [line])


@contextmanager
def lock_file(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of a file, which is made if need be; the lock of a dead process is free.

    Yields False where another process has it, unless this one is to wait.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def mark_at(connection: Connection, size: int) -> Mark | None:
    """Return what the file says when the log has so many entries; None for an empty log."""
    leaf = connection.scalar(_LEAF, {"place": size - 1})
    return None if leaf is None else Mark(size, leaf)


def _compare_mark(mark: Mark | None, connection: Connection) -> str | None:
    if mark is None or mark == (found := mark_at(connection, mark.size)):
        return None
    if found is not None:
        return f"entry {mark.size} of the log is another one than {HIGH_WATER} names"
    size = head(connection).size
    return f"its log has {size} entries, and the files were written with {mark.size}"


def _compare_checkpoint(core: Core, size: int, connection: Connection) -> str | None:
    if not size:
        return None
    path = signed_path(core, "checkpoints", size)
    root = connection.scalar(select(checkpoints.c.root).where(checkpoints.c.size == size))
    if root is None:
        return f"it does not hold the checkpoint of {size} entries, {path.name}"
    try:
        note = read_note(path.read_text("utf-8"))
    except (OSError, ValueError, Refused):
        return None  # damage, not age; `letheon doctor` compares files and rows
    if note.root.hex() == root:
        return None
    return f"its checkpoint of {size} entries has another root than {path.name}"


def _disagreement(found: list[str]) -> OldDatabaseError:
    return OldDatabaseError(
        f"the files of this ledger are newer than its database: {'; '.join(found)}. {_WAY_OUT}"
    )
