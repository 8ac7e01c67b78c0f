"""Looking a ledger over: what is wrong, and what to do about it."""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from sqlalchemy import Connection, make_url, select, text

from letheon.exceptions import LetheonError
from letheon.ledger.core import Core
from letheon.ledger.db.elapsed import seconds_ahead
from letheon.ledger.db.engines import is_writable, sqlite_module
from letheon.ledger.db.events import read_leaves, read_log_head, require_agreement, seconds_behind
from letheon.ledger.db.log import LogTree
from letheon.ledger.models.versions import find_head, list_models, make_blob_cipher
from letheon.ledger.purge.purge import list_problems
from letheon.ledger.requests.deadlines import Calendar, alarm_level, confirm_by
from letheon.ledger.requests.listing import list_requests
from letheon.ledger.requests.people import unreadable_requests
from letheon.ledger.schemas import Request, to_datetime
from letheon.ledger.settings import FILE as SETTINGS_FILE
from letheon.ledger.tables import certificates, checkpoints
from letheon.ledger.worker.recover import list_leftovers
from letheon.sandbox import protection
from letheon.verifier import VerificationError, check_chain, check_note, read_note

_LOW_SPACE = 1 << 30
# Of the desk: its settings, and what signs its OpenDSR answers.
_OTHER_SETTINGS = ("service.toml", "opendsr/key.pem")

Level = Literal["ok", "warning", "error"]
_CheckResults = Iterator[tuple[Level, str]]


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


def run_checks(core: Core) -> Iterator[Finding]:
    """Look at folder, database, keys, blobs, certificates, log, requests and clock."""
    for name, look in _CHECKS.items():
        n_found = 0
        try:
            for n_found, (level, words) in enumerate(look(core), 1):  # noqa: B007
                yield Finding(name, level, words)
        except (LetheonError, VerificationError, OSError) as error:
            n_found += 1
            yield Finding(name, "error", str(error))
        if n_found == 0:
            yield Finding(name, "ok", "sound")


def _look_at_folder(core: Core) -> _CheckResults:
    mode = stat.S_IMODE(core.folder.stat().st_mode)
    if mode & 0o077:
        yield "error", f"others can enter {core.folder}: chmod 700 {core.folder}"
    for path in list_leftovers(core):
        yield "warning", f"{path} was left by a killed process; a worker sweeps it"
    free = shutil.disk_usage(core.folder).free
    if free < _LOW_SPACE:
        yield "warning", f"only {free // 2**20} MiB are free on its disk"


def _look_at_agreement(core: Core) -> _CheckResults:
    require_agreement(core)
    yield "ok", "no file is newer than the database"


def _look_at_modes(core: Core) -> _CheckResults:
    """Look at files that hold requests or may hold a password: only their owner may read them."""
    database = core.settings.database
    has_password = database is not None and make_url(database).password is not None
    levels: dict[Path, Level] = dict.fromkeys(core.database.list_files(), "error")
    levels[core.folder / SETTINGS_FILE] = "error" if has_password else "warning"
    levels |= dict.fromkeys((core.folder / name for name in _OTHER_SETTINGS), "warning")
    for path, level in levels.items():
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            continue
        if mode & 0o077:
            yield level, f"others can read or change {path} (mode {mode:03o}): chmod 600 {path}"


def _look_at_disk(core: Core) -> _CheckResults:
    if not is_writable(core.folder):
        words = (
            f"the disk of {core.folder} is full or read-only: no request can be recorded, nothing "
            "is erased, and due days pass; free space, or mount it for writing"
        )
        yield "error", words


def _look_at_database(core: Core) -> _CheckResults:
    if core.database.path is not None:
        version, mode = sqlite_module().sqlite_version, core.database.journal_mode
        yield "ok", f"SQLite {version}, journal {mode}"
        return
    if core.database.read_value(text("SHOW transaction_read_only")) == "on":
        words = "the server accepts no writes: it is a standby; give the address of the primary"
        yield "error", words
    else:
        yield "ok", "PostgreSQL, synchronous commits"


def _look_at_keys(core: Core) -> _CheckResults:
    current, changes = core.keys.signer.keyid, len(core.keys.statements())
    yield "ok", f"signs with {current[:16]}…; {changes} rotations and revocations"


def _look_at_models(core: Core) -> _CheckResults:
    with core.database.reading() as conn:
        heads = [(model, find_head(conn, model.id)) for model in list_models(conn)]
    for model, version in heads:
        if not core.keys.has(version.epoch_key):
            yield "error", f"the key of model {model.name!r} is gone: restore keys/"
            continue
        kinds = ("model", "rows", "ids", "vault", "monitor")
        for what in kinds if version.monitor_blob else kinds[:-1]:
            address = getattr(version, f"{what}_blob")
            opener = make_blob_cipher(core, model, version.epoch_key, what)
            if not core.blob_store(model.folder).is_sound(address, opener):
                words = (
                    f"the {what} of model {model.name!r}, blob {address[:12]}…, is gone or was "
                    "altered: restore the file"
                )
                yield "error", words


def _look_at_chain(core: Core) -> _CheckResults:
    query = select(certificates.c.envelope).order_by(certificates.c.sequence)
    envelopes = [bytes(row.envelope) for row in core.database.read(query)]
    check_chain(envelopes, core.keys.trust())
    for sequence, envelope in enumerate(envelopes, start=1):
        path = core.subfolder("certificates") / f"{sequence:06d}.json"
        if not path.exists() or path.read_bytes() != envelope:
            yield "error", f"{path} is not what the database holds"
    if envelopes:
        yield "ok", f"{len(envelopes)} in one chain, all valid"


def _look_at_log(core: Core) -> _CheckResults:
    with core.database.reading() as conn:
        now, hashes = read_log_head(conn), read_leaves(conn)
        notes = list(conn.execute(select(checkpoints).order_by(checkpoints.c.size)))
    tree = LogTree(hashes)
    if len(hashes) != now.size or tree.root(len(hashes)) != now.root:
        yield "error", "its events do not give the root that it has recorded"
    trust = core.keys.trust()
    for row in notes:
        note = read_note(row.note)
        check_note(note, trust, revoked_too=note.size < now.size)
        if note.size > len(hashes) or tree.root(note.size) != note.root:
            yield "error", f"the checkpoint of {note.size} events does not belong to this log"


def _look_at_due_days(core: Core) -> _CheckResults:
    now = to_datetime(core.clock())
    with core.database.reading() as conn:
        waiting = [request for request in list_requests(conn) if request.is_open]
    for request in waiting:
        share = alarm_level(request, now, core.settings.calendar)
        about = f"request {request.id} is"
        if request.state == "stuck":
            yield "error", f"{about} stuck ({request.reason}): look at it, then retry it"
        elif share >= 75:
            level: Level = "error" if share >= 100 else "warning"
            yield level, f"{about} due on {request.due_on} ({share} % of its time is over)"


def _look_at_request_ids(core: Core) -> _CheckResults:
    with core.database.reading() as conn:
        lost = unreadable_requests(core, conn)
    for request in lost:
        words = (
            f"request {request}: the key of its ids is gone. Restore it in keys/; if it is lost, "
            "file a new request for the same people, then cancel this one"
        )
        yield "error", words


def list_unconfirmed_requests(
    connection: Connection, now: datetime, calendar: Calendar
) -> list[Request]:
    """Return requests whose receipt must be confirmed today, or had to be, and nothing was done.

    That is CCPA's rule (10 business days). What was verified was answered.
    """
    waiting = list_requests(connection, state="received")
    days = {one.id: confirm_by(one.regime, one.received_at, calendar) for one in waiting}
    today = calendar.day_of(now)
    return [one for one in waiting if (day := days[one.id]) is not None and day <= today]


def _look_at_confirmations(core: Core) -> _CheckResults:
    with core.database.reading() as conn:
        late = list_unconfirmed_requests(conn, to_datetime(core.clock()), core.settings.calendar)
    for request in late:
        about = "its receipt had to be confirmed within 10 business days"
        yield "warning", f"request {request.id}: {about}"


def _look_at_purges(core: Core) -> _CheckResults:
    for problem in list_problems(core):
        yield "error", str(problem)


def _look_at_clock(core: Core) -> _CheckResults:
    with core.database.reading() as conn:
        behind, ahead = seconds_behind(conn, core.clock()), seconds_ahead(core, conn)
    if behind > 0:
        words = (
            f"the clock of this machine is {behind} s behind the latest event; set it, or, if it "
            "is right, `letheon doctor --accept-clock`"
        )
        yield "error" if behind > 300 else "warning", words
    if ahead > core.settings.policy.clock_ahead.total_seconds():
        words = (
            f"the clock of this machine is {ahead / 86_400:.1f} days ahead of the time that the "
            "uptime of machines accounts for: it was set ahead, or the machines were off. Until an "
            "operator confirms it, holds do not end and nothing is forgotten. Compare it with "
            "another clock; if it is right: `letheon doctor --accept-clock`"
        )
        yield "error", words
    if os.environ.get("TZ", "") not in ("", "UTC"):
        yield "ok", "times are recorded in UTC, whatever TZ says"


def _look_at_sandbox(_: Core) -> _CheckResults:
    """Start a sandboxed process and say what is blocked in it."""
    active = protection()
    if active.is_full:
        yield "ok", str(active)
    else:
        words = (
            f"models from outside are only partly contained: {active}. Use Linux 5.13 or later on "
            "x86-64 with Landlock and seccomp"
        )
        yield "warning", words


_CHECKS: dict[str, Callable[[Core], _CheckResults]] = {
    "folder": _look_at_folder,
    "agreement": _look_at_agreement,
    "files": _look_at_modes,
    "disk": _look_at_disk,
    "database": _look_at_database,
    "keys": _look_at_keys,
    "models": _look_at_models,
    "certificates": _look_at_chain,
    "log": _look_at_log,
    "requests": _look_at_due_days,
    "request ids": _look_at_request_ids,
    "confirmations": _look_at_confirmations,
    "purge": _look_at_purges,
    "clock": _look_at_clock,
    "sandbox": _look_at_sandbox,
}
