"""Export of a ledger as a bundle, a folder that a third party can verify with the public key.

The public tier contains certificates, attestations, checkpoints, keys and proofs of the log. The
auditor's tier also contains what an auditor needs to compute a model again: transition proofs, all
events, and, for every model, the newest version with a certificate, with its rows, salts and
training key. That part is personal data. Its export is an event of the log, and the bundle states
until when it may be kept.

``index.json`` has the SHA-256 of every other file, and ``index.signed.json`` is the signed
statement about ``index.json``.
"""

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, Table, select

from letheon import state
from letheon.exceptions import LedgerError, LedgerMissingError, LedgerUnwritableError
from letheon.ledger.certificates.certify import take_checkpoint
from letheon.ledger.core import NONCE_BYTES, Core
from letheon.ledger.db.events import read_bodies, read_leaves, record_event
from letheon.ledger.db.log import LogTree
from letheon.ledger.keys.signing import sign_statement
from letheon.ledger.leases import owner_name
from letheon.ledger.models.commitment import locate_salt
from letheon.ledger.models.versions import (
    ModelRow,
    VersionRow,
    find_model_by_id,
    find_version,
    list_models,
    list_versions,
    pin_version,
    proof_path,
    read_model,
    read_raw_model,
    read_row_slots,
    read_rows,
    release_pin,
)
from letheon.ledger.schemas import Checkpoint
from letheon.ledger.tables import certificates, checkpoints, events, purges, versions
from letheon.state import sync_directory
from letheon.verifier import (
    DEFAULT_TENANT,
    INDEX,
    INDEX_FILES,
    STATEMENT_TYPE,
    canonical,
    list_files,
    parse_strict,
)

Tier = Literal["public", "auditor"]

BUNDLE = "letheon-bundle-v1"
# An auditor agrees to destroy the personal part after this number of days.
KEPT_DAYS = 30
_DAY = 86_400
_PIN_SECONDS = 600
# No hash of rows and salts is published, so their files need no nonce.
_UNBLINDED = bytes(NONCE_BYTES)


def export(
    core: Core,
    folder: Path,
    *,
    tier: Tier = "public",
    model: str | None = None,
    tenant: str | None = None,
) -> Path:
    """Write a bundle into a new folder, completely or not at all.

    Parameters
    ----------
    core : Core
        The ledger.
    folder : Path
        Folder for the bundle; it must be empty or not exist.
    tier : {"public", "auditor"}, default="public"
        Whether to include models, rows and salts.
    model, tenant : str, optional
        Limit the auditor's part to models of this name or tenant. A name without a tenant belongs
        to the default tenant.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    FileExistsError
        The folder is not empty.
    LedgerError
        No model has that name, or the newest version was replaced in the meantime, or it has no
        certificate yet. The version before must not be exported: it contains erased people.
    """
    if tier not in ("public", "auditor"):
        raise ValueError(f"tier={tier!r} is unknown; expected 'public' or 'auditor'")
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; choose a new folder for the bundle")
    if model is not None and tenant is None:
        tenant = DEFAULT_TENANT  # another tenant may have a model of that name
    scope, selected = {}, []
    if tier == "auditor":
        names = {"tenant": tenant, "model": model}
        scope = {name: text for name, text in names.items() if text is not None}
        selected = _record_export(core, model, tenant)
    checkpoint = _get_checkpoint(core, tier)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.partial")
    try:
        _fill_folder(core, partial, tier, scope, selected, checkpoint)
        if folder.is_dir():
            folder.rmdir()
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_directory(folder.parent)
    return folder


def _get_checkpoint(core: Core, tier: Tier) -> Checkpoint:
    """Return a new checkpoint.

    If none can be written, return the newest existing one; for the auditor's tier, raise.
    """
    try:
        return take_checkpoint(core)
    except LedgerUnwritableError:
        with core.database.reading() as conn:
            newest = select(checkpoints).order_by(checkpoints.c.size.desc()).limit(1)
            row = conn.execute(newest).mappings().first()
        if tier != "public" or row is None:
            raise
        return Checkpoint(**row)


def _record_export(core: Core, name: str | None, tenant: str | None) -> list[ModelRow]:
    """Record in the log which models will be exported, and return these models."""
    with core.database.reading() as conn:
        selected = [row for row in list_models(conn, tenant) if name in (None, row.name)]
    if name is not None and not selected:
        raise LedgerError(
            f"no model {name!r} is registered; run `letheon model list` to see all models"
        )
    now = core.clock()
    body = {"tier": "auditor", "models": [row.folder for row in selected]}
    with core.database.transaction() as conn:
        record_event(conn, "export", {**body, "until": now + KEPT_DAYS * _DAY}, at=now)
    return selected


def _fill_folder(
    core: Core,
    folder: Path,
    tier: Tier,
    scope: dict[str, str],
    selected: list[ModelRow],
    checkpoint: Checkpoint,
) -> None:
    for name in ("", "keys", "certificates", "purges", "checkpoints"):
        (folder / name).mkdir(mode=0o700)
    now, size = core.clock(), checkpoint.size
    with core.database.reading() as conn:
        logged = _read_logged(conn, "certificate", size)
        n_certificates = len(logged)
        _write_envelopes(conn, folder / "certificates", certificates, logged)
        _write_envelopes(conn, folder / "purges", purges, _read_logged(conn, "purge", size))
        _write_log(conn, folder, checkpoint, logged)
        exported = [
            (row, newest) for row in selected if (newest := _find_newest(conn, row, n_certificates))
        ]
        if tier == "auditor":
            lines = (body + b"\n" for _, body in zip(range(size), read_bodies(conn), strict=False))
            _write_file(folder / "events.jsonl", lines)
            _write_proofs(core, conn, folder, n_certificates)
    _write_file(folder / "keys" / "root.pub", [f"{core.keys.root}\n".encode()])
    for number, statement in enumerate(core.keys.statements(), 1):
        _write_file(folder / "keys" / f"{number:04d}.json", [statement])
    description = {
        "format": BUNDLE,
        "tier": tier,
        "ledger": core.settings.name,
        "exportedAt": now,
        "size": size,
        "models": [
            {"tenant": model.tenant, "name": model.name, "sequence": version.sequence}
            for model, version in exported
        ],
        "scope": scope,
    }
    if tier == "auditor":
        description["destroyBy"] = now + KEPT_DAYS * _DAY
        _write_definitions(folder, [_write_model(core, folder, *each) for each in exported])
    _write_file(folder / "bundle.json", [canonical(description)])
    listed = {}
    for name in list_files(folder):
        with (folder / name).open("rb") as file:
            listed[name] = hashlib.file_digest(file, "sha256").hexdigest()
    _write_file(folder / INDEX_FILES[0], [canonical(listed)])
    _write_file(folder / INDEX_FILES[1], [sign_index(core, listed, tier, n_certificates)])


def sign_index(core: Core, listed: dict[str, str], tier: str, sequence: int) -> bytes:
    """Return the signed statement about the files of a bundle that has `sequence` certificates."""
    digest = hashlib.sha256(canonical(listed)).hexdigest()
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": INDEX_FILES[0], "digest": {"sha256": digest}}],
        "predicateType": INDEX,
        "predicate": {
            "ledger": {"id": core.settings.name, "sequence": sequence},
            "tier": tier,
            "files": len(listed),
        },
    }
    return sign_statement(statement, core.keys.signer)


def _read_logged(conn: Connection, kind: str, size: int) -> dict[int, Any]:
    """Return the bodies of the events of a kind among the first `size` events, by position."""
    query = select(events.c.log_index, events.c.body).where(
        (events.c.kind == kind) & (events.c.log_index < size)
    )
    rows = conn.execute(query.order_by(events.c.log_index))
    return {row.log_index: parse_strict(row.body.encode()) for row in rows}


def _write_envelopes(conn: Connection, folder: Path, table: Table, logged: dict[int, Any]) -> None:
    """Write the certificates or attestations of `table` whose events are in `logged`."""
    numbers = {event["sequence"] for event in logged.values()}
    for sequence, envelope in conn.execute(select(table.c.sequence, table.c.envelope)):
        if sequence in numbers:
            _write_file(folder / f"{sequence:06d}.json", [bytes(envelope)])


def _write_log(
    conn: Connection, folder: Path, checkpoint: Checkpoint, logged: dict[int, Any]
) -> None:
    """Write the checkpoints, the consistency proofs between them, and a proof per certificate."""
    size = checkpoint.size
    query = select(checkpoints.c.size, checkpoints.c.note).where(checkpoints.c.size <= size)
    notes = conn.execute(query.order_by(checkpoints.c.size)).all()
    for number, note in notes:
        _write_file(folder / "checkpoints" / f"{number:012d}.txt", [note.encode()])
    tree = LogTree(read_leaves(conn)[:size])
    log = {
        "size": size,
        "root": checkpoint.root,
        "certificates": [
            {
                "sequence": event["sequence"],
                "index": index,
                "event": event,
                "proof": [node.hex() for node in tree.inclusion_path(index, size)],
            }
            for index, event in logged.items()
        ],
        "consistency": [
            {
                "from": old,
                "to": new,
                "proof": [node.hex() for node in tree.consistency_path(old, new)],
            }
            for (old, _), (new, _) in pairwise(notes)
        ],
    }
    _write_file(folder / "log.json", [canonical(log)])


def _write_proofs(core: Core, conn: Connection, folder: Path, n_certificates: int) -> None:
    (folder / "proofs").mkdir(mode=0o700)
    for sequence in range(1, n_certificates + 1):
        version_id = conn.scalar(select(versions.c.id).where(versions.c.sequence == sequence))
        if version_id is None:
            raise LedgerMissingError(
                f"the database has no model version for certificate {sequence}; run `letheon "
                "doctor`"
            )
        version = find_version(conn, version_id)
        digest = version.run["proof"]
        path = folder / "proofs" / f"{digest}.json"
        # A retrain without new erasures has the proof of the erasure before it.
        if not path.exists():
            model = find_model_by_id(conn, version.model_id)
            _write_file(path, [proof_path(core, model, digest).read_bytes()])


def _find_newest(conn: Connection, model: ModelRow, last: int) -> VersionRow | None:
    """Return the newest version of a model, whose certificate is in the bundle, or None."""
    published = [row for row in list_versions(conn, model.id) if row.sequence is not None]
    certified = [version for version in published if (version.sequence or 0) <= last]
    if len(certified) < len(published):
        raise LedgerError(
            f"the newest version of {model.name!r} has no certificate yet, and the previous "
            "version contains erased people; wait until the worker has issued the certificate, "
            "then export again"
        )
    return certified[-1] if certified else None


def _write_model(core: Core, folder: Path, row: ModelRow, version: VersionRow) -> Any:
    """Write the files of one model and return the loaded model."""
    place = folder / "models" / row.tenant / row.name
    salt = locate_salt(place)
    for each in (place.parent.parent, place.parent, place, salt.parent.parent, salt.parent):
        each.mkdir(mode=0o700, exist_ok=True)
    pin = pin_version(core, owner_name(), version.id, _PIN_SECONDS)
    try:
        blob = read_raw_model(core, row, version)
        rows = read_rows(core, row, version)
        vault = read_row_slots(core, row, version)
        model = read_model(core, row, version)
        # How the seed was derived, with the key if there is one.
        training = dict(version.run["training"])
        training["key"] = core.keys.read_secret(training["key"]).hex() if training["key"] else ""
    finally:
        release_pin(core, pin)
    _write_file(place / "model.blob", [blob])
    _write_file(place / "rows.blob", [_UNBLINDED, state.encode(rows)])
    _write_file(place / "vault.blob", [_UNBLINDED, state.encode(vault._asdict())])
    _write_file(place / "training.json", [canonical(training)])
    _write_file(salt, [canonical({"salt": core.keys.derive_salt(row.folder).hex()})])
    return model


def _write_definitions(folder: Path, models: Iterable[Any]) -> None:
    """Write the definition texts of these models; certificates contain their hashes."""
    (folder / "definitions").mkdir(mode=0o700)
    files = resources.files("letheon.definitions").iterdir()
    texts = {file.read_text(encoding="utf-8") for file in files if file.name.endswith(".md")}
    for text in texts | {model.facts.definition for model in models}:
        name = hashlib.sha256(text.encode()).hexdigest()
        _write_file(folder / "definitions" / f"{name}.md", [text.encode()])


def _write_file(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file that only its owner can read."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.writelines(pieces)
