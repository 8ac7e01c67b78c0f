"""Recovery: delete files of killed processes, and check that models are complete.

Partial files, folders of failed registrations, and blobs, keys and proofs that no version refers to
are destroyed. `adopt_database` makes a ledger continue with a database that is older than its
files, after the newer database was lost.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select, update

from letheon.exceptions import CorruptFileError, OldDatabaseError
from letheon.ledger.core import Core, destroy_file, fault_point, lock_file
from letheon.ledger.db.events import (
    advance_mark,
    find_differences,
    integrate_events,
    list_numbers,
    mark_at,
    read_mark,
    record_event,
    require_agreement,
    require_own_log,
    write_mark,
)
from letheon.ledger.leases import Lease, require_fence
from letheon.ledger.models.versions import (
    ModelRow,
    find_head,
    list_models,
    list_versions,
    locate_signed_file,
    make_blob_cipher,
)
from letheon.ledger.requests.people import (
    list_lost_keys,
    move_requests,
    replace_lost_key,
    unreadable_requests,
)
from letheon.ledger.tables import (
    batches,
    certificates,
    checkpoints,
    meta,
    models,
    purges,
    requests,
    versions,
)
from letheon.state import sync_directory, write_atomically

SUPERSEDED = "superseded"
PARTIAL = ".*.partial"
_LOCK = ".lock"
_LEFT_AFTER = 600
_UNLOCKED = (".", "certificates", "checkpoints")
# Models that this process has checked.
_seen: set[tuple[int, str]] = set()


def sweep_partials(core: Core, *, purges_too: bool = False) -> int:
    """Destroy partial files of killed processes; return the number of files.

    Partial files in the folder of a model are destroyed by the holder of its lease.

    Parameters
    ----------
    core : Core
        The ledger.
    purges_too : bool, default=False
        Whether the caller holds the lock on purges. Otherwise, partial files of purges are
        destroyed only if this function gets the lock.
    """
    swept = [path for name in _UNLOCKED for path in _find_old_partials(core.folder / name)]
    n_swept = _destroy_files(swept) + core.keys.remove_partial_files()
    with contextlib.nullcontext(True) if purges_too else lock_purges(core) as is_locked:
        return n_swept + (
            _destroy_files([*core.subfolder("purges").glob(PARTIAL)]) if is_locked else 0
        )


def lock_purges(core: Core) -> AbstractContextManager[bool]:
    """Lock purges until the context ends; yield False if another process holds the lock."""
    return lock_file(core.subfolder("purges") / _LOCK, wait=False)


def list_leftovers(core: Core) -> tuple[Path, ...]:
    """Return the partial files in the ledger that are too old to be still in use."""
    folders = (Path(folder) for folder, _, _ in os.walk(core.folder))
    return tuple(sorted(path for folder in folders for path in _find_old_partials(folder)))


def _find_old_partials(folder: Path) -> Iterator[Path]:
    for path in folder.glob(PARTIAL):
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_mtime < time.time() - _LEFT_AFTER:
                yield path


def _destroy_files(paths: list[Path]) -> int:
    for path in paths:
        destroy_file(path)
    return len(paths)


@contextmanager
def new_folder(core: Core) -> Iterator[str]:
    """Create the folder of a new model and yield its name; lock it until the context ends.

    A folder without a model and without a lock belongs to a failed registration. The folder and its
    keys are destroyed: by this function after an error, by the next worker after a kill.
    """
    require_agreement(core)
    folder, lock = _make_locked_folder(core)
    try:
        with lock:
            yield folder.name
            advance_mark(core)
    finally:
        _sweep_if_orphan(core, folder)


def _make_locked_folder(core: Core) -> tuple[Path, ExitStack]:
    while True:
        folder = core.blob_store(secrets.token_hex(16)).folder
        folder.mkdir(mode=0o700, parents=True)
        # A sweep may delete the folder before it is locked.
        with ExitStack() as stack, contextlib.suppress(FileNotFoundError):
            stack.enter_context(lock_file(folder / _LOCK))
            return folder, stack.pop_all()


def sweep_registrations(core: Core) -> int:
    """Destroy the files of killed or failed registrations; return the number of registrations."""
    with core.database.reading() as conn:
        folders = list_unregistered_folders(core, conn)
    return sum(_sweep_if_orphan(core, folder) for folder in folders)


def list_unregistered_folders(core: Core, conn: Connection) -> list[Path]:
    """Return the blob folders that do not belong to a model in the database."""
    home = core.subfolder("blobs")
    known = set(conn.scalars(select(models.c.folder)))
    folders = sorted(home.iterdir()) if home.is_dir() else []
    return [folder for folder in folders if folder.name not in known]


def _sweep_if_orphan(core: Core, folder: Path) -> bool:
    """Destroy a folder and its keys if no model in the database uses the folder.

    Return False if nothing was destroyed: a model or a process uses the folder, or the database is
    older than the files.
    """
    named = select(models.c.id).where(models.c.folder == folder.name)
    try:
        with lock_file(folder / _LOCK, wait=False) as is_locked:
            if not is_locked:
                return False
            with core.database.transaction() as conn:
                lock_registrations(conn)
                if conn.scalar(named) is not None:
                    return False
                require_own_log(conn)
                for key in _list_keys(core, folder.name):
                    core.keys.destroy(key)
                _destroy_files(sorted(folder.iterdir()))
                folder.rmdir()
    except (FileNotFoundError, OldDatabaseError):
        return False
    return True


def lock_registrations(conn: Connection) -> None:
    """Lock registrations, and the sweeps of failed registrations, until the transaction ends.

    A commit that was sent is visible to the next holder of this lock, even if its sender was
    killed. On PostgreSQL, new requests wait for the lock; SQLite permits only one writer anyway.
    """
    conn.execute(select(meta.c.value).where(meta.c.key == "ledger_id").with_for_update())
    if conn.dialect.name == "postgresql":
        conn.exec_driver_sql("LOCK TABLE blocked IN SHARE MODE")


def _list_keys(core: Core, folder: str) -> list[str]:
    return [key for kind in ("epoch", "training") for key in core.keys.list_ids(kind, label=folder)]


class UnreferencedFiles(NamedTuple):
    """Blobs, key ids and proofs of a model that no version refers to."""

    blob_files: list[Path]
    key_ids: list[str]
    proof_files: list[Path]


def is_first_look(core: Core, model: ModelRow) -> bool:
    """Return whether this is the first time that this process checks a model.

    The first check always looks for leftover files: a worker that was paused, replaced and then
    killed leaves files, although another worker has released the lease.
    """
    key = os.getpid(), f"{core.folder}/{model.folder}"
    if key in _seen:
        return False
    _seen.add(key)
    return True


def sweep_model(core: Core, lease: Lease, model: ModelRow) -> int:
    """Destroy blobs, keys and proofs of a model that no version refers to; return their number.

    The row of the model in `heads` stays locked during the sweep. So a delayed worker cannot
    destroy files that its successor has published or is about to publish.

    Raises
    ------
    StaleWorkerError
        Another worker took over the model; nothing was destroyed.
    OldDatabaseError
        The files are newer than the database; nothing was destroyed.
    CorruptFileError
        Files of the current version are missing; nothing was destroyed.
    """
    with core.database.transaction() as conn:
        require_fence(conn, lease)
        require_own_log(conn)
        blobs = core.blob_store(model.folder)
        # The remaining files may be the only copies.
        if not all(blobs.path_of(name).exists() for name in find_head(conn, model.id).blobs):
            raise CorruptFileError(
                f"files of model {model.name!r} are missing in {blobs.folder}; nothing was "
                "deleted. Restore the files from a backup, or register the model again under "
                "another name."
            )
        unnamed = list_unreferenced_files(core, conn, model)
        n_files = _destroy_files([*unnamed.blob_files, *unnamed.proof_files])
        for key in unnamed.key_ids:
            core.keys.destroy(key)
    fault_point("recover.swept")
    return n_files + len(unnamed.key_ids)


def list_unreferenced_files(core: Core, conn: Connection, model: ModelRow) -> UnreferencedFiles:
    """Return the files and keys of a model that no version refers to."""
    alive = list_versions(conn, model.id, unpurged=True)
    # The training key of an open batch has no version yet.
    mine = (batches.c.model_id == model.id) & (batches.c.state == "open")
    named = set(conn.scalars(select(batches.c.training_key).where(mine)))
    for version in alive:
        named |= {version.epoch_key, str(version.run["training"]["key"])}
    return UnreferencedFiles(
        core.blob_store(model.folder).list_unreferenced(
            name for version in alive for name in version.blobs
        ),
        [key for key in _list_keys(core, model.folder) if key not in named],
        _list_unreferenced_proofs(core, conn, model),
    )


def _list_unreferenced_proofs(core: Core, conn: Connection, model: ModelRow) -> list[Path]:
    """Return the proofs that no version refers to. Each version except the first has a proof."""
    folder = core.subfolder("proofs") / model.folder
    paths = list(folder.iterdir()) if folder.is_dir() else []
    mine = (versions.c.model_id == model.id) & (versions.c.number > 0)
    if len(paths) <= (conn.scalar(select(func.count()).where(mine)) or 0):
        return []
    named = {str(version.run.get("proof")) for version in list_versions(conn, model.id)}
    return [path for path in paths if path.stem not in named]


def require_sound(core: Core, model: ModelRow) -> None:
    """Raise `CorruptFileError` unless all files of the current version can be read."""
    with core.database.reading() as conn:
        head = find_head(conn, model.id)
    blobs = core.blob_store(model.folder)
    for content in ("model", "rows", "vault"):
        address = getattr(head, f"{content}_blob")
        if not blobs.is_sound(address, make_blob_cipher(core, model, head.epoch_key, content)):
            raise CorruptFileError(
                f"the {content} of model {model.name!r}, {address[:12]}…, is missing or was "
                "altered, so no request is applied to this model. Restore the file, or "
                "register the model again."
            )


@dataclass(frozen=True)
class Adoption:
    """What is lost when a ledger continues with a database that is older than its files.

    Attributes
    ----------
    differences : tuple of str
        Descriptions of how the files are newer; empty if there is nothing to adopt.
    certificates, checkpoints, purges : tuple of int
        Numbers of signed files that the database does not contain. The files are kept in
        ``superseded/``, and new documents get the same numbers.
    n_models : int
        Number of registered models that the database does not contain; the next worker destroys
        their files.
    n_blobs, n_keys, n_proofs : int
        Numbers of files that no version refers to; the next worker destroys them.
    models : tuple of str
        Models with missing files, which cannot be served or changed. Restore their files and keys
        from a backup, or register them again under another name.
    requests : tuple of str
        Requests whose ids cannot be decrypted. File new requests, then cancel these requests.
    is_done : bool
        Whether the database was adopted.
    """

    differences: tuple[str, ...]
    certificates: tuple[int, ...]
    checkpoints: tuple[int, ...]
    purges: tuple[int, ...]
    n_models: int
    n_blobs: int
    n_keys: int
    n_proofs: int
    models: tuple[str, ...]
    requests: tuple[str, ...]
    is_done: bool


def adopt_database(core: Core, *, yes: bool) -> Adoption:
    """Return what is lost by continuing with this database; continue with it if `yes` is True.

    ``high-water.txt`` is written last. If the process is killed before that, the ledger still
    rejects all writes, and the call can be repeated.
    """
    try:
        texts = find_differences(core)
    except RuntimeError as error:  # an unreadable mark is a difference
        texts = [str(error)]
    with core.database.reading() as conn:
        signed = _read_signed_rows(conn)
        unknown = {
            kind: tuple(
                number
                for number in list_numbers(core.subfolder(kind))
                if locate_signed_file(core, kind, number).read_bytes() != rows.get(number)
            )
            for kind, rows in signed.items()
        }
        loss = _assess_loss(core, conn, texts, unknown, is_done=yes and bool(texts))
    if not loss.is_done:
        return loss
    with core.database.transaction() as conn:
        conn.execution_options(letheon_guard=None)
        record_event(conn, "database-adopted", _adoption_event(core, loss), at=core.clock())
        _release_requests(core, conn)
        replace_lost_key(core, conn)
        size, _ = integrate_events(conn)
        mark = mark_at(conn, size)
    _set_aside(core, unknown)
    _write_missing(core, signed)
    write_mark(core, mark, adopted=True)
    return loss


def _release_requests(core: Core, conn: Connection) -> None:
    """Abandon open batches that cannot be computed because ids of their requests are lost.

    The requests of these batches are queued again.
    """
    mine = requests.c.intake_key.in_(list_lost_keys(core, conn)) & (requests.c.state == "applying")
    for batch in set(conn.scalars(select(requests.c.batch_id).where(mine))):
        conn.execute(update(batches).where(batches.c.id == batch).values(state="abandoned"))
        members = conn.scalars(select(requests.c.id).where(requests.c.batch_id == batch))
        move_requests(conn, list(members), "queued", at=core.clock(), batch_id=None)


def _read_signed_rows(conn: Connection) -> dict[str, dict[int, bytes]]:
    """Return the bytes of all signed documents in the database, by folder and number."""
    notes = conn.execute(select(checkpoints.c.size, checkpoints.c.note))
    signed = {"checkpoints": {int(size): note.encode() for size, note in notes}}
    for kind, table in (("certificates", certificates), ("purges", purges)):
        rows: Any = conn.execute(select(table.c.sequence, table.c.envelope))
        signed[kind] = {int(number): bytes(envelope) for number, envelope in rows}
    return signed


def _assess_loss(
    core: Core,
    conn: Connection,
    texts: list[str],
    unknown: dict[str, tuple[int, ...]],
    *,
    is_done: bool,
) -> Adoption:
    known = list_models(conn)
    folders = [folder.name for folder in list_unregistered_folders(core, conn)]
    damaged = []
    for model in known:
        head = find_head(conn, model.id)
        has_blobs = set(head.blobs) <= core.blob_store(model.folder).list_addresses()
        if not has_blobs or not core.keys.has(head.epoch_key):
            damaged.append(model)
    # Nothing is destroyed of a model with missing files: the rest may be the only copies.
    unnamed = [
        list_unreferenced_files(core, conn, model) for model in known if model not in damaged
    ]
    blobs = [len(files.blob_files) for files in unnamed]
    keys = [len(files.key_ids) for files in unnamed]
    return Adoption(
        differences=tuple(texts),
        **unknown,
        n_models=len(folders),
        n_blobs=sum(blobs)
        + sum(len(core.blob_store(folder).list_addresses()) for folder in folders),
        n_keys=sum(keys) + sum(len(_list_keys(core, folder)) for folder in folders),
        n_proofs=sum(len(files.proof_files) for files in unnamed),
        models=tuple(model.name for model in damaged),
        requests=tuple(unreadable_requests(core, conn)),
        is_done=is_done,
    )


def _adoption_event(core: Core, loss: Adoption) -> dict[str, int]:
    """Return the body of the log event: the log size that the files record, and the losses."""
    try:
        mark = read_mark(core.folder)
    except RuntimeError:
        mark = None
    counts = {name: len(getattr(loss, name)) for name in ("certificates", "checkpoints", "purges")}
    files = {"models": loss.n_models, "blobs": loss.n_blobs, "keys": loss.n_keys}
    return counts | files | {"entries": 0 if mark is None else mark.size}


def _set_aside(core: Core, unknown: dict[str, tuple[int, ...]]) -> None:
    """Move signed files to ``superseded/``. They are evidence, because they may be published."""
    if not any(unknown.values()):
        return
    now = datetime.fromtimestamp(core.clock(), UTC)
    home = core.folder / SUPERSEDED / f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    for kind, numbers in unknown.items():
        place = home / kind
        place.mkdir(mode=0o700, parents=True)
        for number in numbers:
            path = locate_signed_file(core, kind, number)
            path.rename(place / path.name)
        sync_directory(place)
        sync_directory(core.subfolder(kind))
    for folder in (home, home.parent, core.folder):
        sync_directory(folder)


def _write_missing(core: Core, signed: dict[str, dict[int, bytes]]) -> None:
    """Write the missing files of signed documents that are in the database."""
    for kind, rows in signed.items():
        for number, data in rows.items():
            if not (path := locate_signed_file(core, kind, number)).exists():
                write_atomically(path, [data])
