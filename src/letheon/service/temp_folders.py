"""Private temporary folders for audits and for bundles that are sent.

They are in the folder of the ledger, which only its owner can read and which every purge searches.
A purge waits for at most one day until no temporary folder contains data of an erased person. The
process that created a folder deletes it. If that process died, its lock is free, and the next start
of the desk deletes the folder.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from letheon.ledger import Ledger
from letheon.ledger.core import destroy_file, lock_file
from letheon.ledger.purge.stores import SERVICE_FOLDERS as _FOLDER
from letheon.ledger.purge.stores import SERVICE_LOCK as _LOCK


@contextlib.contextmanager
def temp_folder(ledger: Ledger, kind: str) -> Iterator[Path]:
    """Yield a private folder that this process has locked; delete it at the end of the block.

    Parameters
    ----------
    ledger : Ledger
        The ledger in whose folder the temporary folder is created.
    kind : str
        Purpose of the temporary folder, the prefix of its name.
    """
    home = ledger.folder / _FOLDER
    home.mkdir(mode=0o700, exist_ok=True)
    folder = home / f"{kind}-{secrets.token_hex(8)}"
    lock = folder.with_name(folder.name + _LOCK)
    with lock_file(lock):  # the lock comes first: a folder without one is swept
        try:
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            _delete_folder(folder)
            lock.unlink(missing_ok=True)


def sweep_temp_folders(ledger: Ledger) -> int:
    """Delete the temporary folders of processes that ended; return the number of folders."""
    home = ledger.folder / _FOLDER
    if not home.is_dir():
        return 0
    names = {path.name.removesuffix(_LOCK) for path in home.iterdir()}
    return sum(_sweep_folder(home / name) for name in sorted(names))


def _sweep_folder(folder: Path) -> bool:
    lock = folder.with_name(folder.name + _LOCK)
    with lock_file(lock, wait=False) as is_locked:
        if is_locked:
            _delete_folder(folder)
            lock.unlink(missing_ok=True)
        return is_locked


def _delete_folder(folder: Path) -> None:
    """Overwrite the files with personal data in a folder, then delete the folder.

    Files with personal data are those directly in the folder, and those below ``models`` in a
    bundle.
    """
    for current, _, names in os.walk(folder):
        inside = Path(current).relative_to(folder).parts
        if not inside or "models" in inside:
            for name in names:
                destroy_file(Path(current, name))
    shutil.rmtree(folder, ignore_errors=True)
