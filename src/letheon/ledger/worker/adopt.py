"""Going on from a database that is older than the files, because the newer one is lost."""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select, update

from letheon.ledger.certificates.certify import certificate_path
from letheon.ledger.core import Core
from letheon.ledger.db.events import (
    differences,
    integrate,
    mark_at,
    numbers_in,
    read_mark,
    record,
    write_mark,
)
from letheon.ledger.models.register import unregistered_folders
from letheon.ledger.models.versions import ModelRow, VersionRow, head_of, list_models
from letheon.ledger.purge.purge import purge_path
from letheon.ledger.requests.people import lost_keys, move, replace_lost_key, unreadable_requests
from letheon.ledger.tables import batches, certificates, checkpoints, purges, requests
from letheon.ledger.worker.recover import unnamed_files
from letheon.state import sync_directory, write_atomically

SUPERSEDED = "superseded"


@dataclass(frozen=True)
class Adoption:
    """What is lost when a ledger goes on from a database that is older than its files.

    Attributes
    ----------
    differences : tuple of str
        In what the files are newer; empty if there is nothing to adopt.
    certificates, checkpoints, purges : tuple of int
        Numbers of signed files that the database does not hold. They are kept in ``superseded/``;
        the numbers are given out again, with other content.
    n_models : int
        Registered models that the database does not know; the next worker destroys them.
    n_blobs, n_keys, n_proofs : int
        Files that no version names; the next worker destroys them.
    models : tuple of str
        Models whose files are gone: they can neither be served nor changed. Restore their files
        and keys from a backup, or register them again under another name.
    requests : tuple of str
        Requests whose ids cannot be read any more: file them again, then cancel these.
    is_done : bool
        Whether the database was accepted.
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


def adopt(core: Core, *, yes: bool) -> Adoption:
    """Say what would be lost; with `yes` record that the database is the truth from now on.

    ``high-water.txt`` comes last: after a kill before it the ledger still refuses to go on, and
    this can be repeated.
    """
    found = _differences(core)
    with core.database.reading() as conn:
        unknown = _unknown_files(core, conn)
        lost = _lost(core, conn, found, unknown, is_done=yes and bool(found))
    if not lost.is_done:
        return lost
    with core.database.transaction() as conn:
        conn.execution_options(letheon_guard=None)
        record(conn, "database-adopted", _body(core, lost), at=core.clock())
        _release_requests(core, conn)
        replace_lost_key(core, conn)
        size, _ = integrate(conn)
        mark = mark_at(conn, size)
    _set_aside(core, unknown)
    _write_missing(core)
    write_mark(core, mark, adopted=True)
    return lost


def _release_requests(core: Core, conn: Connection) -> None:
    """Give up open batches that cannot be computed, since ids of their requests are lost."""
    mine = requests.c.intake_key.in_(lost_keys(core, conn)) & (requests.c.state == "applying")
    for batch in set(conn.scalars(select(requests.c.batch_id).where(mine))):
        conn.execute(update(batches).where(batches.c.id == batch).values(state="abandoned"))
        members = conn.scalars(select(requests.c.id).where(requests.c.batch_id == batch))
        move(conn, list(members), "queued", at=core.clock(), batch_id=None)


def _differences(core: Core) -> list[str]:
    """Return the differences; a mark that cannot be read is one."""
    try:
        return differences(core)
    except RuntimeError as error:
        return [str(error)]


def _signed_rows(conn: Connection) -> dict[str, dict[int, bytes]]:
    """Return all signed documents of the database by folder and number."""
    notes = conn.execute(select(checkpoints.c.size, checkpoints.c.note))
    found = {"checkpoints": {int(size): note.encode() for size, note in notes}}
    for kind, table in (("certificates", certificates), ("purges", purges)):
        rows: Any = conn.execute(select(table.c.sequence, table.c.envelope))
        found[kind] = {int(number): bytes(envelope) for number, envelope in rows}
    return found


def _path(core: Core, kind: str, number: int) -> Path:
    if kind == "checkpoints":
        return core.place(kind) / f"{number:012d}.txt"
    return (certificate_path if kind == "certificates" else purge_path)(core, number)


def _unknown_files(core: Core, conn: Connection) -> dict[str, tuple[int, ...]]:
    """Return the numbers of signed files that are not what the database holds."""
    return {
        kind: tuple(
            number
            for number in numbers_in(core.place(kind))
            if _path(core, kind, number).read_bytes() != rows.get(number)
        )
        for kind, rows in _signed_rows(conn).items()
    }


def _lost(
    core: Core,
    conn: Connection,
    found: list[str],
    unknown: dict[str, tuple[int, ...]],
    *,
    is_done: bool,
) -> Adoption:
    models = list_models(conn)
    folders = unregistered_folders(core, conn)
    heads = [(model, head_of(conn, model.id)) for model in models]
    gone = [model for model, head in heads if not _has_files(core, model, head)]
    # Of a model whose served files are gone nothing is destroyed: it may be all that is left.
    unnamed = [unnamed_files(core, conn, model) for model in models if model not in gone]
    keys = sum(
        len(core.keys.ids(kind, folder.name))
        for folder in folders
        for kind in ("epoch", "training")
    )
    return Adoption(
        differences=tuple(found),
        **unknown,
        n_models=len(folders),
        n_blobs=sum(len(one.blobs) for one in unnamed)
        + sum(len(core.blobs(folder.name).addresses()) for folder in folders),
        n_keys=sum(len(one.keys) for one in unnamed) + keys,
        n_proofs=sum(len(one.proofs) for one in unnamed),
        models=tuple(model.name for model in gone),
        requests=tuple(unreadable_requests(core, conn)),
        is_done=is_done,
    )


def _has_files(core: Core, model: ModelRow, head: VersionRow) -> bool:
    has_blobs = set(head.blobs) <= core.blobs(model.folder).addresses()
    return has_blobs and core.keys.has(head.epoch_key)


def _body(core: Core, lost: Adoption) -> dict[str, int]:
    """Return the event: how far the files were, and how much of them is given up."""
    try:
        mark = read_mark(core.folder)
    except RuntimeError:
        mark = None
    counts = {name: len(getattr(lost, name)) for name in ("certificates", "checkpoints", "purges")}
    files = {"models": lost.n_models, "blobs": lost.n_blobs, "keys": lost.n_keys}
    return counts | files | {"entries": 0 if mark is None else mark.size}


def _set_aside(core: Core, unknown: dict[str, tuple[int, ...]]) -> None:
    """Move signed files out of the way: they were given out, and are evidence."""
    if not any(unknown.values()):
        return
    now = datetime.fromtimestamp(core.clock(), UTC)
    home = core.folder / SUPERSEDED / f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    for kind, numbers in unknown.items():
        place = home / kind
        place.mkdir(mode=0o700, parents=True)
        for number in numbers:
            path = _path(core, kind, number)
            path.rename(place / path.name)
        sync_directory(place)
        sync_directory(core.place(kind))
    for folder in (home, home.parent, core.folder):
        sync_directory(folder)


def _write_missing(core: Core) -> None:
    """Write the files of signed documents that only the database holds."""
    with core.database.reading() as conn:
        signed = _signed_rows(conn)
    for kind, rows in signed.items():
        for number, data in rows.items():
            if not (path := _path(core, kind, number)).exists():
                write_atomically(path, [data])
