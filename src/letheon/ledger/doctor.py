"""Looking a ledger over: what is wrong, and what to do about it."""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from sqlalchemy import make_url, select

from letheon.exceptions import LetheonError
from letheon.ledger.core import Core
from letheon.ledger.db.elapsed import seconds_ahead
from letheon.ledger.db.events import head, leaves, seconds_behind
from letheon.ledger.db.log_tree import LogTree
from letheon.ledger.db.sqlite import is_writable
from letheon.ledger.models.versions import head_of, list_models, sealer
from letheon.ledger.purge.purge import problems
from letheon.ledger.requests.deadlines import alarm
from letheon.ledger.requests.encrypted_ids import unreadable_requests
from letheon.ledger.requests.listing import list_requests, unconfirmed
from letheon.ledger.settings import FILE as SETTINGS_FILE
from letheon.ledger.tables import certificates, checkpoints
from letheon.ledger.worker.agreement import require_agreement
from letheon.ledger.worker.recover import leftovers
from letheon.sandbox import protection
from letheon.verifier import Refused, check_chain, check_note, read_note

_LOW_SPACE = 1 << 30
# Of the desk: its settings, and what signs its OpenDSR answers.
_OTHER_SETTINGS = ("service.toml", "opendsr/key.pem")

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """What one look found.

    Attributes
    ----------
    check : str
        What was looked at.
    level : {"ok", "warning", "error"}
        How bad it is.
    text : str
        What was found, and what to do about it.
    """

    check: str
    level: Level
    text: str


def examine(core: Core) -> Iterator[Finding]:
    """Look at folder, database, keys, blobs, certificates, log, requests and clock."""
    looks: tuple[tuple[str, Callable[[Core], Iterator[Finding]]], ...] = (
        ("folder", _folder),
        ("agreement", _agreement),
        ("files", _modes),
        ("disk", _disk),
        ("database", _database),
        ("keys", _keys),
        ("models", _models),
        ("certificates", _chain),
        ("log", _log),
        ("requests", _due),
        ("request ids", _request_ids),
        ("confirmations", _confirmations),
        ("purge", _purge),
        ("clock", _clock),
        ("sandbox", _sandbox),
    )
    for name, look in looks:
        found = False
        try:
            for finding in look(core):
                found = True
                yield finding
        except (LetheonError, Refused, OSError) as error:
            found = True
            yield Finding(name, "error", str(error))
        if not found:
            yield Finding(name, "ok", "sound")


def _folder(core: Core) -> Iterator[Finding]:
    mode = stat.S_IMODE(core.folder.stat().st_mode)
    if mode & 0o077:
        yield Finding("folder", "error", f"others can enter {core.folder}: chmod 700 {core.folder}")
    for path in leftovers(core):
        yield Finding(
            "folder", "warning", f"{path} was left by a killed process; a worker sweeps it"
        )
    free = shutil.disk_usage(core.folder).free
    if free < _LOW_SPACE:
        yield Finding("folder", "warning", f"only {free // 2**20} MiB are free on its disk")


def _agreement(core: Core) -> Iterator[Finding]:
    require_agreement(core)
    yield Finding("agreement", "ok", "no file is newer than the database")


def _modes(core: Core) -> Iterator[Finding]:
    """Look at files that hold requests or may hold a password: only their owner may read them."""
    database = core.settings.database
    has_password = database is not None and make_url(database).password is not None
    levels: dict[Path, Level] = dict.fromkeys(core.database.files(), "error")
    levels[core.folder / SETTINGS_FILE] = "error" if has_password else "warning"
    levels |= dict.fromkeys((core.folder / name for name in _OTHER_SETTINGS), "warning")
    for path, level in levels.items():
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            continue
        if mode & 0o077:
            text = f"others can read or change {path} (mode {mode:03o}): chmod 600 {path}"
            yield Finding("files", level, text)


def _disk(core: Core) -> Iterator[Finding]:
    if not is_writable(core.folder):
        text = (
            f"the disk of {core.folder} is full or read-only: no request can be recorded, nothing "
            "is erased, and due days pass; free space, or mount it for writing"
        )
        yield Finding("disk", "error", text)


def _database(core: Core) -> Iterator[Finding]:
    database = core.database
    if database.dialect == "sqlite":
        about = f"SQLite {database.sqlite_version}, journal {database.journal_mode}"
        yield Finding("database", "ok", about)
        return
    with database.reading() as conn:
        is_standby = conn.exec_driver_sql("SHOW transaction_read_only").scalar() == "on"
    if is_standby:
        text = "the server accepts no writes: it is a standby; give the address of the primary"
        yield Finding("database", "error", text)
    else:
        yield Finding("database", "ok", "PostgreSQL, synchronous commits")


def _keys(core: Core) -> Iterator[Finding]:
    current, changes = core.keys.signer.keyid, len(core.keys.statements())
    yield Finding("keys", "ok", f"signs with {current[:16]}…; {changes} rotations and revocations")


def _models(core: Core) -> Iterator[Finding]:
    with core.database.reading() as conn:
        found = [(model, head_of(conn, model.id)) for model in list_models(conn)]
    for model, version in found:
        if not core.keys.has(version.epoch_key):
            text = f"the key of model {model.name!r} is gone: restore keys/"
            yield Finding("models", "error", text)
            continue
        kinds = ("model", "rows", "ids", "vault", "monitor")
        for what in kinds if version.monitor_blob else kinds[:-1]:
            address = getattr(version, f"{what}_blob")
            opener = sealer(core, model, version.epoch_key, what)
            if not core.blobs(model.folder).is_sound(address, opener):
                text = (
                    f"the {what} of model {model.name!r}, blob {address[:12]}…, is gone or was "
                    "altered: restore the file"
                )
                yield Finding("models", "error", text)


def _chain(core: Core) -> Iterator[Finding]:
    with core.database.reading() as conn:
        query = select(certificates.c.envelope).order_by(certificates.c.sequence)
        envelopes = [bytes(envelope) for envelope in conn.scalars(query)]
    check_chain(envelopes, core.keys.trust())
    for sequence, envelope in enumerate(envelopes, start=1):
        path = core.place("certificates") / f"{sequence:06d}.json"
        if not path.exists() or path.read_bytes() != envelope:
            yield Finding("certificates", "error", f"{path} is not what the database holds")
    if envelopes:
        yield Finding("certificates", "ok", f"{len(envelopes)} in one chain, all valid")


def _log(core: Core) -> Iterator[Finding]:
    with core.database.reading() as conn:
        now, hashes = head(conn), leaves(conn)
        notes = list(conn.execute(select(checkpoints).order_by(checkpoints.c.size)))
    tree = LogTree(hashes)
    if len(hashes) != now.size or tree.root(len(hashes)) != now.root:
        yield Finding("log", "error", "its events do not give the root that it has recorded")
    trust = core.keys.trust()
    for row in notes:
        note = read_note(row.note)
        check_note(note, trust, revoked_too=note.size < now.size)
        if note.size > len(hashes) or tree.root(note.size) != note.root:
            text = f"the checkpoint of {note.size} events does not belong to this log"
            yield Finding("log", "error", text)


def _due(core: Core) -> Iterator[Finding]:
    now = datetime.fromtimestamp(core.clock(), UTC)
    with core.database.reading() as conn:
        waiting = [request for request in list_requests(conn) if request.is_open]
    for request in waiting:
        share = alarm(request, now, core.settings.calendar)
        if request.state == "stuck":
            text = f"request {request.id} is stuck ({request.reason}): look at it, then retry it"
            yield Finding("requests", "error", text)
        elif share >= 75:
            text = (
                f"request {request.id} is due on {request.due_on} ({share} % of its time is over)"
            )
            yield Finding("requests", "error" if share >= 100 else "warning", text)


def _request_ids(core: Core) -> Iterator[Finding]:
    with core.database.reading() as conn:
        lost = unreadable_requests(core, conn)
    for request in lost:
        text = (
            f"request {request}: the key of its ids is gone. Restore it in keys/; if it is lost, "
            "file a new request for the same people, then cancel this one"
        )
        yield Finding("request ids", "error", text)


def _confirmations(core: Core) -> Iterator[Finding]:
    now = datetime.fromtimestamp(core.clock(), UTC)
    with core.database.reading() as conn:
        late = unconfirmed(conn, now, core.settings.calendar)
    for request in late:
        text = f"request {request.id}: its receipt had to be confirmed within 10 business days"
        yield Finding("confirmations", "warning", text)


def _purge(core: Core) -> Iterator[Finding]:
    for problem in problems(core):
        yield Finding("purge", "error", str(problem))


def _clock(core: Core) -> Iterator[Finding]:
    with core.database.reading() as conn:
        behind, ahead = seconds_behind(conn, core.clock()), seconds_ahead(core, conn)
    if behind > 0:
        text = (
            f"the clock of this machine is {behind} s behind the latest event; set it, or, if it "
            "is right, `letheon doctor --accept-clock`"
        )
        yield Finding("clock", "error" if behind > 300 else "warning", text)
    if ahead > core.settings.policy.clock_ahead.total_seconds():
        text = (
            f"the clock of this machine is {ahead / 86_400:.1f} days ahead of the time that the "
            "uptime of machines accounts for: it was set ahead, or the machines were off. Until an "
            "operator confirms it, holds do not end and nothing is forgotten. Compare it with "
            "another clock; if it is right: `letheon doctor --accept-clock`"
        )
        yield Finding("clock", "error", text)
    if os.environ.get("TZ", "") not in ("", "UTC"):
        yield Finding("clock", "ok", "times are recorded in UTC, whatever TZ says")


def _sandbox(_: Core) -> Iterator[Finding]:
    """Start a sandboxed process and say what is blocked in it."""
    active = protection()
    if active.is_full:
        yield Finding("sandbox", "ok", str(active))
        return
    text = (
        f"models from outside are only partly contained: {active}. Use Linux 5.13 or later on "
        "x86-64 with Landlock and seccomp"
    )
    yield Finding("sandbox", "warning", text)
