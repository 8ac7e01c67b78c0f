"""What every part of a ledger is given: its folder, settings, database, keys and clock."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from letheon.ledger.db.database import Database
    from letheon.ledger.keys.blobs import Blobs
    from letheon.ledger.keys.keyring import KeyRing
    from letheon.ledger.settings import Settings

hook: Callable[[str], None] | None = None
"""What tests call at each named point: there they stop, kill or delay a process."""


def point(name: str) -> None:
    """Pass a named point; between any two of them a power cut may come in production."""
    if hook is not None:
        hook(name)


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Let one process at a time do something; the file is made if it is missing."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Core:
    """An open ledger, as its parts see it.

    Attributes
    ----------
    folder : Path
        Home of the ledger.
    settings : Settings
        What ``letheon.toml`` says.
    database : Database
        Requests, versions, events.
    keys : KeyRing
        Every secret; none of them is in the database.
    clock : callable
        Seconds since 1970, UTC.
    uptime : callable or None, default=None
        Name of the machine's boot and the seconds since; None where a caller gave the clock, which
        stands for itself then. See `letheon.ledger.db.elapsed`.
    """

    folder: Path
    settings: "Settings"
    database: "Database"
    keys: "KeyRing"
    clock: Callable[[], int]
    uptime: Callable[[], tuple[str, int]] | None = None

    def blobs(self, key: str) -> "Blobs":
        """Return the blobs of the model with this folder key."""
        from letheon.ledger.keys.blobs import Blobs  # which passes points too

        return Blobs(self.folder / "blobs" / key)

    def place(self, kind: str) -> Path:
        """Return a sub-folder: proofs, certificates, purges, checkpoints, keys, public."""
        return self.folder / kind
