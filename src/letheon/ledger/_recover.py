"""What a worker does first: sweep what killed processes left, and look whether all is sound."""

from typing import Literal

from sqlalchemy import select

from letheon.exceptions import CorruptFileError
from letheon.ledger._blobs import destroy_file
from letheon.ledger._core import Core
from letheon.ledger._faults import point
from letheon.ledger._tables import batches
from letheon.ledger._versions import ModelRow, VersionRow, head_of, versions_of

__all__ = ["sweep_model"]


def sweep_model(core: Core, model: ModelRow) -> int:
    """Destroy blobs, keys and proofs of a model that no version names; return how many.

    Only for the holder of the lease: nobody else can publish what is being swept.

    Raises
    ------
    CorruptFileError
        The file of the model that is served was altered, or is gone.
    """
    with core.database.reading() as conn:
        known = versions_of(conn, model.id)
        head = head_of(conn, model.id)
    _require_sound(core, model, head)
    alive = [version for version in known if version.purged_at is None]
    swept = core.blobs(model.folder).sweep({name for version in alive for name in version.blobs})
    swept += _sweep_keys(core, model, "epoch", {version.epoch_key for version in alive})
    swept += _sweep_keys(core, model, "training", _training_keys(core, model, known))
    swept += _sweep_proofs(core, model, {str(version.run.get("proof")) for version in known})
    point("recover.swept")
    return swept


def _require_sound(core: Core, model: ModelRow, head: VersionRow) -> None:
    if not core.blobs(model.folder).is_sound(head.model_blob):
        raise CorruptFileError(
            f"the file of model {model.name!r}, {head.model_blob[:12]}…, is gone or was altered; "
            "nothing is applied to it. Restore the file, or register the model again."
        )


def _training_keys(core: Core, model: ModelRow, known: list[VersionRow]) -> set[str]:
    """Return the keys of the last training, and of one that is intended."""
    with core.database.reading() as conn:
        mine = (batches.c.model_id == model.id) & (batches.c.state == "open")
        intended = set(conn.scalars(select(batches.c.training_key).where(mine)))
    return intended | {str(version.run["training"]["key"]) for version in known}


def _sweep_keys(
    core: Core, model: ModelRow, kind: Literal["epoch", "training"], named: set[str]
) -> int:
    orphans = [key for key in core.keys.ids(kind, label=model.folder) if key not in named]
    for key in orphans:
        core.keys.destroy(key)
    return len(orphans)


def _sweep_proofs(core: Core, model: ModelRow, named: set[str]) -> int:
    folder = core.place("proofs") / model.folder
    orphans = [
        path for path in (folder.iterdir() if folder.is_dir() else ()) if path.stem not in named
    ]
    for path in orphans:
        destroy_file(path)
    return len(orphans)
