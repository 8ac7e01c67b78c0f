"""Health checks of a ledger: what is wrong, and what to do about it."""

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
# Settings of the service, and the key that signs its OpenDSR responses.
_OTHER_SETTINGS = ("service.toml", "opendsr/key.pem")

Level = Literal["ok", "warning", "error"]
_CheckResults = Iterator[tuple[Level, str]]


@dataclass(frozen=True)
class Finding:
    """One result of a health check.

    Attributes
    ----------
    check : str
        Name of the check.
    level : {"ok", "warning", "error"}
        Severity.
    text : str
        What is wrong, and what to do about it.
    """

    check: str
    level: Level
    text: str


def run_checks(core: Core) -> Iterator[Finding]:
    """Check the folder, database, keys, blobs, certificates, log, requests and clock."""
    for name, check in _CHECKS.items():
        n_findings = 0
        try:
            for n_findings, (level, words) in enumerate(check(core), 1):  # noqa: B007
                yield Finding(name, level, words)
        except (LetheonError, VerificationError, OSError) as error:
            n_findings += 1
            yield Finding(name, "error", str(error))
        if n_findings == 0:
            yield Finding(name, "ok", "no problem found")


def _check_folder(core: Core) -> _CheckResults:
    mode = stat.S_IMODE(core.folder.stat().st_mode)
    if mode & 0o077:
        yield "error", f"other users can enter {core.folder}; run: chmod 700 {core.folder}"
    for path in list_leftovers(core):
        yield "warning", f"{path} was left by a killed process; a worker will delete it"
    free = shutil.disk_usage(core.folder).free
    if free < _LOW_SPACE:
        yield "warning", f"only {free // 2**20} MiB of disk space are free"


def _check_agreement(core: Core) -> _CheckResults:
    require_agreement(core)
    yield "ok", "no file is newer than the database"


def _check_modes(core: Core) -> _CheckResults:
    """Check that files with requests or passwords are readable only by their owner."""
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
            yield (
                level,
                f"other users can read or change {path} (mode {mode:03o}); run: chmod 600 {path}",
            )


def _check_disk(core: Core) -> _CheckResults:
    if not is_writable(core.folder):
        words = (
            f"the disk of {core.folder} is full or read-only: requests cannot be recorded or "
            "applied, and deadlines pass; free disk space, or mount the disk read-write"
        )
        yield "error", words


def _check_database(core: Core) -> _CheckResults:
    if core.database.path is not None:
        version, mode = sqlite_module().sqlite_version, core.database.journal_mode
        yield "ok", f"SQLite {version}, journal {mode}"
        return
    if core.database.read_value(text("SHOW transaction_read_only")) == "on":
        words = "the database server is a read-only standby; use the address of the primary"
        yield "error", words
    else:
        yield "ok", "PostgreSQL, synchronous commits"


def _check_keys(core: Core) -> _CheckResults:
    current, changes = core.keys.signer.keyid, len(core.keys.statements())
    yield "ok", f"current signing key {current[:16]}…; rotations and revocations: {changes}"


def _check_models(core: Core) -> _CheckResults:
    with core.database.reading() as conn:
        heads = [(model, find_head(conn, model.id)) for model in list_models(conn)]
    for model, version in heads:
        if not core.keys.has(version.epoch_key):
            yield "error", f"the key of model {model.name!r} is missing; restore keys/"
            continue
        kinds = ("model", "rows", "ids", "vault", "monitor")
        for content in kinds if version.monitor_blob else kinds[:-1]:
            address = getattr(version, f"{content}_blob")
            opener = make_blob_cipher(core, model, version.epoch_key, content)
            if not core.blob_store(model.folder).is_sound(address, opener):
                words = (
                    f"the {content} of model {model.name!r}, blob {address[:12]}…, is missing or "
                    "was changed; restore the file"
                )
                yield "error", words


def _check_chain(core: Core) -> _CheckResults:
    query = select(certificates.c.envelope).order_by(certificates.c.sequence)
    envelopes = [bytes(row.envelope) for row in core.database.read(query)]
    check_chain(envelopes, core.keys.trust())
    for sequence, envelope in enumerate(envelopes, start=1):
        path = core.subfolder("certificates") / f"{sequence:06d}.json"
        if not path.exists() or path.read_bytes() != envelope:
            yield "error", f"{path} differs from the database"
    if envelopes:
        yield "ok", f"{len(envelopes)} certificate(s) in one chain, all valid"


def _check_log(core: Core) -> _CheckResults:
    with core.database.reading() as conn:
        now, hashes = read_log_head(conn), read_leaves(conn)
        notes = list(conn.execute(select(checkpoints).order_by(checkpoints.c.size)))
    tree = LogTree(hashes)
    if len(hashes) != now.size or tree.root(len(hashes)) != now.root:
        yield "error", "the events do not produce the recorded root"
    trust = core.keys.trust()
    for row in notes:
        note = read_note(row.note)
        check_note(note, trust, revoked_too=note.size < now.size)
        if note.size > len(hashes) or tree.root(note.size) != note.root:
            yield "error", f"the checkpoint at {note.size} events does not match this log"


def _check_due_days(core: Core) -> _CheckResults:
    now = to_datetime(core.clock())
    with core.database.reading() as conn:
        waiting = [request for request in list_requests(conn) if request.is_open]
    for request in waiting:
        share = alarm_level(request, now, core.settings.calendar)
        about = f"request {request.id} is"
        if request.state == "stuck":
            yield "error", f"{about} stuck ({request.reason}); fix the cause, then retry it"
        elif share >= 75:
            level: Level = "error" if share >= 100 else "warning"
            yield level, f"{about} due on {request.due_on} ({share} % of its time has passed)"


def _check_request_ids(core: Core) -> _CheckResults:
    with core.database.reading() as conn:
        lost = unreadable_requests(core, conn)
    for request in lost:
        words = (
            f"request {request}: the key that encrypts its ids is missing. Restore it in keys/; if "
            "it is lost, file a new request for the same people, then cancel this one"
        )
        yield "error", words


def list_unconfirmed_requests(
    connection: Connection, now: datetime, calendar: Calendar
) -> list[Request]:
    """Return unverified requests whose receipt must be confirmed by today or earlier.

    CCPA requires a confirmation within 10 business days. A verified request counts as confirmed.
    """
    waiting = list_requests(connection, state="received")
    days = {
        request.id: confirm_by(request.regime, request.received_at, calendar) for request in waiting
    }
    today = calendar.day_of(now)
    return [
        request for request in waiting if (day := days[request.id]) is not None and day <= today
    ]


def _check_confirmations(core: Core) -> _CheckResults:
    with core.database.reading() as conn:
        late = list_unconfirmed_requests(conn, to_datetime(core.clock()), core.settings.calendar)
    for request in late:
        about = "confirm its receipt (due within 10 business days)"
        yield "warning", f"request {request.id}: {about}"


def _check_purges(core: Core) -> _CheckResults:
    for problem in list_problems(core):
        yield "error", str(problem)


def _check_clock(core: Core) -> _CheckResults:
    with core.database.reading() as conn:
        behind, ahead = seconds_behind(conn, core.clock()), seconds_ahead(core, conn)
    if behind > 0:
        words = (
            f"the clock of this machine is {behind} s behind the latest event; correct it or, if "
            "it is right, run `letheon doctor --accept-clock`"
        )
        yield "error" if behind > 300 else "warning", words
    if ahead > core.settings.policy.clock_ahead.total_seconds():
        words = (
            f"the clock of this machine is {ahead / 86_400:.1f} days ahead of the time "
            "measured by machine uptime: it was set ahead, or the machines were off. Until an "
            "operator confirms the clock, holds do not end and old tags are not deleted. Compare "
            "the clock with another one; if it is right, run `letheon doctor --accept-clock`"
        )
        yield "error", words
    if os.environ.get("TZ", "") not in ("", "UTC"):
        yield "ok", "times are recorded in UTC; TZ is ignored"


def _check_sandbox(_: Core) -> _CheckResults:
    """Start a sandboxed process and report which operations are blocked in it."""
    active = protection()
    if active.is_full:
        yield "ok", str(active)
    else:
        words = (
            f"uploaded models are only partly sandboxed: {active}. Use Linux 5.13 or later on "
            "x86-64 with Landlock and seccomp"
        )
        yield "warning", words


_CHECKS: dict[str, Callable[[Core], _CheckResults]] = {
    "folder": _check_folder,
    "agreement": _check_agreement,
    "files": _check_modes,
    "disk": _check_disk,
    "database": _check_database,
    "keys": _check_keys,
    "models": _check_models,
    "certificates": _check_chain,
    "log": _check_log,
    "requests": _check_due_days,
    "request ids": _check_request_ids,
    "confirmations": _check_confirmations,
    "purge": _check_purges,
    "clock": _check_clock,
    "sandbox": _check_sandbox,
}
