"""How much disk a model takes."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import text

if TYPE_CHECKING:
    from letheon.ledger.ledger import Ledger

__all__ = ["Storage", "database_bytes", "storage_of"]


class Storage(NamedTuple):
    """Bytes of a model's own files.

    Attributes
    ----------
    blobs : int
        Sealed models, rows, ids, salts and monitors of the versions that are still there.
    proofs : int
        Transition proofs, which are kept.
    """

    blobs: int
    proofs: int


def storage_of(ledger: "Ledger", model: str, *, tenant: str = "default") -> Storage:
    """Return the bytes of a model's files."""
    core, row = ledger._core, ledger._row(model, tenant)
    return Storage(
        sum(_sizes(core.blobs(row.folder).folder)),
        sum(_sizes(core.place("proofs") / row.folder)),
    )


def database_bytes(ledger: "Ledger") -> int:
    """Return the bytes of the whole database, its write-ahead log included."""
    database = ledger._core.database
    if database.path is not None:
        return sum(size for path in database.files() for size in _size(path))
    with database.reading() as conn:
        query = text("SELECT pg_database_size(current_database())")
        return int(conn.execute(query).scalar_one())


def _sizes(folder: Path) -> Iterator[int]:
    if folder.is_dir():
        with os.scandir(folder) as entries:
            for entry in entries:
                yield from _size(Path(entry.path))


def _size(path: Path) -> Iterator[int]:
    try:
        yield path.stat().st_size
    except FileNotFoundError:  # purged meanwhile
        return
