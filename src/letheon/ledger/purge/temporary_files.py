"""Half-written files of processes that died: where they may lie, and who may destroy them.

Where a lock tells the living from the dead, a file that nobody can be writing is destroyed at once.
Certificates, checkpoints and settings are written without one, in far less than the time after
which a half-written file counts as left.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from letheon.ledger.core import Core
from letheon.ledger.keys.blobs import destroy_file

__all__ = [
    "PARTIAL",
    "ROOMS",
    "ROOM_LOCK",
    "is_in_use",
    "leftovers",
    "purging_alone",
    "sweep_partials",
]

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
