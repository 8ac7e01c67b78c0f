"""What a worker does first: sweep what killed processes left, and look whether all is sound."""

import os
from typing import Literal

from sqlalchemy import Connection, func, select

from letheon.exceptions import CorruptFileError
from letheon.ledger._blobs import destroy_file
from letheon.ledger._core import Core
from letheon.ledger._faults import point
from letheon.ledger._lease import Lease, require_fence
from letheon.ledger._tables import batches, versions
from letheon.ledger._versions import ModelRow, VersionRow, head_of, sealer, versions_of

__all__ = ["is_first_look", "require_sound", "sweep_model"]

# Models that this process has looked at.
_seen: set[tuple[int, str]] = set()


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
    """
    with core.database.transaction() as conn:
        require_fence(conn, lease)
        alive = versions_of(conn, model.id, unpurged=True)
        keep = {name for version in alive for name in version.blobs}
        swept = core.blobs(model.folder).sweep(keep)
        swept += _sweep_keys(core, model, "epoch", {version.epoch_key for version in alive})
        swept += _sweep_keys(core, model, "training", _training_keys(conn, model, alive))
        swept += _sweep_proofs(core, conn, model)
    point("recover.swept")
    return swept


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


def _sweep_keys(
    core: Core, model: ModelRow, kind: Literal["epoch", "training"], named: set[str]
) -> int:
    orphans = [key for key in core.keys.ids(kind, label=model.folder) if key not in named]
    for key in orphans:
        core.keys.destroy(key)
    return len(orphans)


def _sweep_proofs(core: Core, conn: Connection, model: ModelRow) -> int:
    """Destroy proofs that no version names; each version but the first has one."""
    folder = core.place("proofs") / model.folder
    found = list(folder.iterdir()) if folder.is_dir() else []
    mine = (versions.c.model_id == model.id) & (versions.c.number > 0)
    if len(found) <= (conn.scalar(select(func.count()).where(mine)) or 0):
        return 0
    named = {str(version.run.get("proof")) for version in versions_of(conn, model.id)}
    orphans = [path for path in found if path.stem not in named]
    for path in orphans:
        destroy_file(path)
    return len(orphans)
