"""Private folders for what is at hand for a moment: bundles that are sent, models that arrive.

They lie in the ledger's home, which is readable by its owner only and which every purge searches:
a purge waits until a room that holds an erased person is gone, for a day at most. A room is
destroyed by whoever made it. If that process died, its lock is free, and the next start of the desk
destroys the room.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from letheon.ledger import Ledger
from letheon.ledger.core import destroy_file
from letheon.ledger.purge.stores import SERVICE_FOLDERS as _FOLDER
from letheon.ledger.purge.stores import SERVICE_LOCK as _LOCK


def _hold(lock: Path) -> int:
    """Make a file and hold its lock; again, if a sweep took it away in between."""
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), lock.stat()):
                return descriptor
        os.close(descriptor)


@contextlib.contextmanager
def temp_folder(ledger: Ledger, kind: str) -> Iterator[Path]:
    """Return a private folder, locked while its maker lives and destroyed at the end of the block.

    Parameters
    ----------
    ledger : Ledger
        In whose home it lies.
    kind : str
        What it is for, a word.
    """
    home = ledger.folder / _FOLDER
    home.mkdir(mode=0o700, exist_ok=True)
    folder = home / f"{kind}-{secrets.token_hex(8)}"
    lock = folder.with_name(folder.name + _LOCK)
    held = _hold(lock)  # the lock comes first: a folder without one is swept
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        try:
            _destroy(folder)
            lock.unlink(missing_ok=True)
        finally:
            os.close(held)


def sweep_temp_folders(ledger: Ledger) -> int:
    """Destroy the rooms of processes that died; return how many."""
    home = ledger.folder / _FOLDER
    if not home.is_dir():
        return 0
    names = {path.name.removesuffix(_LOCK) for path in home.iterdir()}
    return sum(_sweep(home / name) for name in sorted(names))


def _sweep(folder: Path) -> bool:
    lock = folder.with_name(folder.name + _LOCK)
    held = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        _destroy(folder)
        lock.unlink(missing_ok=True)
        return True
    finally:
        os.close(held)


def _destroy(folder: Path) -> None:
    """Overwrite what holds people, and remove everything.

    In a bundle that is what lies below ``models``. Else it is what lies in the room itself.
    """
    for here, _, names in os.walk(folder):
        inside = Path(here).relative_to(folder).parts
        if not inside or "models" in inside:
            for name in names:
                destroy_file(Path(here, name))
    shutil.rmtree(folder, ignore_errors=True)
