"""What a worker does first: sweep what killed processes left, and look whether all is sound."""

import os
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from letheon.exceptions import CorruptFileError
from letheon.ledger.core import Core, point
from letheon.ledger.db.events import require_own_log
from letheon.ledger.keys.blobs import destroy_file
from letheon.ledger.leases import Lease, require_fence
from letheon.ledger.models.versions import ModelRow, VersionRow, head_of, sealer, versions_of
from letheon.ledger.tables import batches, versions

# Models that this process has looked at.
_seen: set[tuple[int, str]] = set()


class Unnamed(NamedTuple):
    """Files of a model that no version names: blobs, ids of keys, proofs."""

    blobs: list[Path]
    keys: list[str]
    proofs: list[Path]


def is_first_look(core: Core, model: ModelRow) -> bool:
    """Return whether this process looks at a model for the first time.

    A worker that was stopped, overtaken and killed leaves files although nobody's lease was left.
    """
    key = os.getpid(), f"{core.folder}/{model.folder}"
    if key in _seen:
        return False
    _seen.add(key)
    return True


def sweep_model(core: Core, lease: Lease, model: ModelRow) -> int:
    """Destroy blobs, keys and proofs of a model that no version names; return how many.

    The head stays locked meanwhile: a worker that woke up late, after another one had taken over,
    must not sweep what that one has published or is about to.

    Raises
    ------
    StaleWorkerError
        Another worker took the model over; nothing was swept.
    OldDatabaseError
        The files are newer than the database; nothing was swept.
    CorruptFileError
        Files of the version that is served are gone; nothing was swept.
    """
    with core.database.transaction() as conn:
        require_fence(conn, lease)
        require_own_log(conn)
        _require_files(core, model, head_of(conn, model.id))
        unnamed = unnamed_files(core, conn, model)
        for path in (*unnamed.blobs, *unnamed.proofs):
            destroy_file(path)
        for key in unnamed.keys:
            core.keys.destroy(key)
    point("recover.swept")
    return len(unnamed.blobs) + len(unnamed.keys) + len(unnamed.proofs)


def unnamed_files(core: Core, conn: Connection, model: ModelRow) -> Unnamed:
    """Return what lies in the folders of a model and belongs to none of its versions."""
    alive = versions_of(conn, model.id, unpurged=True)
    named = {version.epoch_key for version in alive} | _training_keys(conn, model, alive)
    keys = [key for kind in ("epoch", "training") for key in core.keys.ids(kind, model.folder)]
    blobs = core.blobs(model.folder).unnamed(name for version in alive for name in version.blobs)
    return Unnamed(
        blobs, [key for key in keys if key not in named], _unnamed_proofs(core, conn, model)
    )


def _require_files(core: Core, model: ModelRow, head: VersionRow) -> None:
    """Raise if a file of the served version is gone: what is left may be all that there is."""
    blobs = core.blobs(model.folder)
    if not all(blobs.path(address).exists() for address in head.blobs):
        raise CorruptFileError(
            f"files of model {model.name!r} are gone from {blobs.folder}; nothing was swept. "
            "Restore them from a backup, or register the model again under another name."
        )


def require_sound(core: Core, model: ModelRow) -> None:
    """Raise `CorruptFileError` unless everything of the version that is served can be read."""
    with core.database.reading() as conn:
        head = head_of(conn, model.id)
    blobs = core.blobs(model.folder)
    for what in ("model", "rows", "vault"):
        address = getattr(head, f"{what}_blob")
        if not blobs.is_sound(address, sealer(core, model, head.epoch_key, what)):
            raise CorruptFileError(
                f"the {what} of model {model.name!r}, {address[:12]}…, is gone or was altered; "
                "nothing is applied to it. Restore the file, or register the model again."
            )


def _training_keys(conn: Connection, model: ModelRow, alive: list[VersionRow]) -> set[str]:
    """Return the keys of the trainings of versions that are there, and of one that is intended."""
    mine = (batches.c.model_id == model.id) & (batches.c.state == "open")
    intended = set(conn.scalars(select(batches.c.training_key).where(mine)))
    return intended | {str(version.run["training"]["key"]) for version in alive}


def _unnamed_proofs(core: Core, conn: Connection, model: ModelRow) -> list[Path]:
    """Return proofs that no version names; each version but the first has one."""
    folder = core.place("proofs") / model.folder
    found = list(folder.iterdir()) if folder.is_dir() else []
    mine = (versions.c.model_id == model.id) & (versions.c.number > 0)
    if len(found) <= (conn.scalar(select(func.count()).where(mine)) or 0):
        return []
    named = {str(version.run.get("proof")) for version in versions_of(conn, model.id)}
    return [path for path in found if path.stem not in named]
