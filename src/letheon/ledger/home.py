"""Creating and opening the folder of a ledger."""

import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, insert, select

from letheon.exceptions import LedgerError, LedgerUnwritableError, OldDatabaseError
from letheon.ledger.core import Core
from letheon.ledger.db.database import Database
from letheon.ledger.db.elapsed import read_uptime, start_proven_time
from letheon.ledger.db.events import HIGH_WATER, record_event, require_mark
from letheon.ledger.keys.keyring import KeyRing
from letheon.ledger.settings import FILE, Settings
from letheon.ledger.tables import events, meta
from letheon.verifier import REVOCATION, ROTATION, certificate_id, from_base64, parse_strict

_STATEMENTS = {ROTATION: "key-rotation", REVOCATION: "key-revocation"}
_PLACES = ("blobs", "proofs", "certificates", "purges", "checkpoints")


def database_url(folder: Path, settings: Settings) -> str:
    """Return the database URL from the settings; by default a SQLite file in the folder."""
    return settings.database or f"sqlite:///{(folder / 'ledger.db').resolve()}"


def create_home(folder: Path, settings: Settings, clock: Callable[[], int] | None = None) -> Core:
    """Create a ledger in a folder and return it open.

    ``letheon.toml`` is written last; a folder with this file contains a complete ledger. If the
    process is killed before, call this function again to continue.
    """
    if (folder / FILE).exists():
        raise LedgerError(f"{folder} already contains a ledger; open it, or choose another folder")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = {*_PLACES, "keys", "public", HIGH_WATER}
    names = sorted(path.name for path in folder.iterdir())
    foreign = [
        name for name in names if name not in own and not name.startswith((".", "ledger.db"))
    ]
    if foreign:  # other users would lose access to them
        raise LedgerError(
            f"{folder} contains other files, for example {foreign[0]!r}; use an empty folder"
        )
    folder.chmod(0o700)
    for place in _PLACES:
        (folder / place).mkdir(mode=0o700, exist_ok=True)
    keys = KeyRing(folder) if KeyRing.is_complete(folder) else KeyRing.create(folder)
    core = _open_core(folder, settings, keys, clock, create=True)
    _write_first_rows(core)
    settings.write(folder)
    return core


def _write_first_rows(core: Core) -> None:
    """Write the first rows of the database, unless they exist already."""
    with core.database.transaction() as conn:
        if conn.scalar(select(meta.c.value).where(meta.c.key == "ledger_id")) is not None:
            _require_own_database(core, conn)
            return
        now = core.clock()
        first = {
            "ledger_id": core.settings.name,
            "root_key": core.keys.root,
            "created_at": str(now),
            "sequence": "0",
        }
        conn.execute(insert(meta), [{"key": key, "value": value} for key, value in first.items()])
        start_proven_time(core, conn)
        record_event(conn, "created", {"ledger": core.settings.name, "key": core.keys.root}, at=now)


def open_home(folder: Path, clock: Callable[[], int] | None = None) -> Core:
    """Open the ledger in a folder that `create_home` has created."""
    settings = Settings.read(folder)
    core = _open_core(folder, settings, KeyRing(folder), clock)
    with core.database.reading() as conn:
        _require_own_database(core, conn)
    if core.keys.statements():
        # A database that is too old, or on a read-only disk, can still be read.
        unwritable = (OldDatabaseError, LedgerUnwritableError)
        with contextlib.suppress(*unwritable), core.database.transaction() as conn:
            record_statements(core, conn)
    return core


def _open_core(
    folder: Path,
    settings: Settings,
    keys: KeyRing,
    clock: Callable[[], int] | None,
    *,
    create: bool = False,
) -> Core:
    """Return an open ledger; it does not write to a database that is older than the files."""
    url = database_url(folder, settings)
    database = Database.open(url, create=create, journal=settings.journal)
    database.guard = partial(require_mark, folder)
    if clock is not None:
        return Core(folder, settings, database, keys, clock)
    return Core(folder, settings, database, keys, lambda: int(time.time()), read_uptime)


def record_statements(core: Core, conn: Connection) -> None:
    """Record key rotations and revocations in the log if they are missing there.

    A rotation or revocation is valid as soon as the file of its statement exists. If a process is
    killed before it records the event, the next process that opens the ledger records it.
    """
    query = select(events.c.body).where(events.c.kind.in_(_STATEMENTS.values()))
    known = {parse_strict(body.encode())["statement"] for body in conn.scalars(query)}
    for envelope in core.keys.statements():
        identity = certificate_id(envelope)
        if identity not in known:
            statement = parse_strict(from_base64(parse_strict(envelope)["payload"]))
            kind = _STATEMENTS[statement["predicateType"]]
            record_event(conn, kind, {"statement": identity}, at=core.clock())


def _require_own_database(core: Core, conn: Connection) -> None:
    """Raise `LedgerError` unless the database belongs to this folder and its keys."""
    known = {row.key: row.value for row in conn.execute(select(meta))}
    if known.get("ledger_id") != core.settings.name:
        raise LedgerError(
            f"the database belongs to the ledger {known.get('ledger_id')!r}, but "
            f"{core.folder / FILE} names {core.settings.name!r}; use one database per ledger"
        )
    if known.get("root_key") != core.keys.root:
        raise LedgerError(
            f"the keys in {core.folder} do not belong to its database; restore the matching folder "
            "keys/, or use another database"
        )
