"""What a ledger shows to strangers: a folder that is verified with the public key alone.

The public tier holds certificates, attestations, checkpoints, keys and proofs of the log. The
auditor's tier also holds what re-derivation needs: transition proofs, all events, and of every
model its newest certified version with its rows, salts and training key. That part is personal
data. Handing it out is an event of the log, and the bundle says until when it may be kept.

``index.json`` has the SHA-256 of every other file, and ``index.signed.json`` is signed over it.
"""

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, select

from letheon import state
from letheon.exceptions import LedgerError, LedgerMissingError, LedgerUnwritableError
from letheon.ledger.certificates.certify import take_checkpoint
from letheon.ledger.certificates.statement import DEFAULT_TENANT
from letheon.ledger.core import Core
from letheon.ledger.db.events import bodies, leaves, record
from letheon.ledger.db.log import LogTree
from letheon.ledger.keys.blobs import NONCE_BYTES
from letheon.ledger.keys.signing import sign
from letheon.ledger.leases import owner_name
from letheon.ledger.models.reader import Pins
from letheon.ledger.models.versions import (
    ModelRow,
    VersionRow,
    list_models,
    model_of,
    proof_path,
    raw_model,
    read_model,
    read_rows,
    read_vault,
    version_of,
    versions_of,
)
from letheon.ledger.schemas import Checkpoint
from letheon.ledger.tables import certificates, checkpoints, events, purges, versions
from letheon.state import sync_directory
from letheon.verifier import (
    INDEX,
    INDEX_FILES,
    STATEMENT_TYPE,
    canonical,
    list_files,
    parse_strict,
)

Tier = Literal["public", "auditor"]

BUNDLE = "letheon-bundle-v1"
# An auditor promises to destroy the personal part after so many days.
KEPT_DAYS = 30
_DAY = 86_400
_PIN_SECONDS = 600
# No hash of rows and salts is published, so nothing blinds them.
_UNBLINDED = bytes(NONCE_BYTES)


class _Asked(NamedTuple):
    """What an export is to have: the tier, and the tenant or the model that it is limited to."""

    tier: Tier
    scope: dict[str, str]


@dataclass(frozen=True)
class _Custody:
    """A model that goes to an auditor, in the version of its newest certificate in the bundle."""

    model: ModelRow
    version: VersionRow


def export(
    core: Core,
    folder: Path,
    *,
    tier: Tier = "public",
    model: str | None = None,
    tenant: str | None = None,
) -> Path:
    """Write a bundle into a new folder, whole or not at all.

    Parameters
    ----------
    core : Core
        The ledger.
    folder : Path
        It must not exist, or be empty.
    tier : {"public", "auditor"}, default="public"
        Whether models, rows and salts go along.
    model, tenant : str, optional
        Of the auditor's part, models of this name or tenant only; a name alone is one of the
        default tenant.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    FileExistsError
        Something is in the folder already.
    LedgerError
        No certified model has that name, the newest version was replaced meanwhile, or it has no
        certificate yet: the rows of the one before hold people who are erased already.
    """
    if tier not in ("public", "auditor"):
        raise ValueError(f"tier={tier!r}; expected 'public' or 'auditor'")
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; name a new folder for the bundle")
    if model is not None and tenant is None:
        tenant = DEFAULT_TENANT  # another tenant may have a model of that name
    wanted = _wanted(core, model, tenant) if tier == "auditor" else []
    if tier == "auditor":
        _note_export(core, wanted)
    checkpoint = _checkpoint(core, tier)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.partial")
    scope = {"tenant": tenant, "model": model} if tier == "auditor" else {}
    asked = _Asked(tier, {name: text for name, text in scope.items() if text is not None})
    try:
        _fill(core, partial, asked, wanted, checkpoint)
        if folder.is_dir():
            folder.rmdir()
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_directory(folder.parent)
    return folder


def _checkpoint(core: Core, tier: Tier) -> Checkpoint:
    """Return a new checkpoint; for the public tier the newest there is if none can be written."""
    try:
        return take_checkpoint(core)
    except LedgerUnwritableError:
        with core.database.reading() as conn:
            newest = select(checkpoints).order_by(checkpoints.c.size.desc()).limit(1)
            row = conn.execute(newest).mappings().first()
        if tier != "public" or row is None:
            raise
        return Checkpoint(**row)


def _wanted(core: Core, name: str | None, tenant: str | None) -> list[ModelRow]:
    with core.database.reading() as conn:
        found = [row for row in list_models(conn, tenant) if name in (None, row.name)]
    if name is not None and not found:
        raise LedgerError(f"no model {name!r} is registered; `letheon model list` shows all")
    return found


def _note_export(core: Core, wanted: list[ModelRow]) -> None:
    """Record that rows leave the house, before they do."""
    now = core.clock()
    body = {"tier": "auditor", "models": [row.folder for row in wanted]}
    with core.database.transaction() as conn:
        record(conn, "export", {**body, "until": now + KEPT_DAYS * _DAY}, at=now)


def _fill(
    core: Core, folder: Path, asked: _Asked, wanted: list[ModelRow], checkpoint: Checkpoint
) -> None:
    tier = asked.tier
    folder.mkdir(mode=0o700)
    for name in ("keys", "certificates", "purges", "checkpoints"):
        (folder / name).mkdir(mode=0o700)
    with core.database.reading() as conn:
        entries = _logged(conn, "certificate", checkpoint.size)
        _write_envelopes(conn, folder, entries, checkpoint.size)
        _write_checkpoints(conn, folder, checkpoint.size)
        _write_log(conn, folder, checkpoint, entries)
        held = [found for row in wanted if (found := _newest(conn, row, len(entries)))]
        if tier == "auditor":
            _write_events(conn, folder, checkpoint.size)
    _write(folder / "keys" / "root.pub", [f"{core.keys.root}\n".encode()])
    for number, statement in enumerate(core.keys.statements(), 1):
        _write(folder / "keys" / f"{number:04d}.json", [statement])
    if tier == "auditor":
        _write_proofs(core, folder)
        _write_definitions(folder, [_write_model(core, folder, one) for one in held])
    _write(folder / "bundle.json", [canonical(_description(core, asked, held, checkpoint))])
    _write_index(core, folder, tier, len(entries))


def _description(
    core: Core, asked: _Asked, held: list[_Custody], checkpoint: Checkpoint
) -> dict[str, Any]:
    now = core.clock()
    models = [
        {"tenant": one.model.tenant, "name": one.model.name, "sequence": one.version.sequence}
        for one in held
    ]
    kept = {"destroyBy": now + KEPT_DAYS * _DAY} if asked.tier == "auditor" else {}
    return {
        "format": BUNDLE,
        "tier": asked.tier,
        "ledger": core.settings.name,
        "exportedAt": now,
        "size": checkpoint.size,
        "models": models,
        "scope": asked.scope,
        **kept,
    }


def _write_index(core: Core, folder: Path, tier: Tier, sequence: int) -> None:
    """Write the hash of every file, and sign for all of them at once."""
    listed = {}
    for name in list_files(folder):
        with (folder / name).open("rb") as file:
            listed[name] = hashlib.file_digest(file, "sha256").hexdigest()
    _write(folder / INDEX_FILES[0], [canonical(listed)])
    _write(folder / INDEX_FILES[1], [sign_index(core, listed, tier, sequence)])


def sign_index(core: Core, listed: dict[str, str], tier: str, sequence: int) -> bytes:
    """Return the signed statement about the files of a bundle with this many certificates."""
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": INDEX_FILES[0], "digest": {"sha256": _sha256(canonical(listed))}}],
        "predicateType": INDEX,
        "predicate": {
            "ledger": {"id": core.settings.name, "sequence": sequence},
            "tier": tier,
            "files": len(listed),
        },
    }
    return sign(statement, core.keys.signer)


def _logged(conn: Connection, kind: str, size: int) -> list[dict[str, Any]]:
    """Return place and body of the events of a kind up to the checkpoint, in order."""
    query = select(events.c.log_index, events.c.body).where(
        (events.c.kind == kind) & (events.c.log_index < size)
    )
    found = conn.execute(query.order_by(events.c.log_index)).all()
    return [{"index": row.log_index, "event": parse_strict(row.body.encode())} for row in found]


def _write_envelopes(
    conn: Connection, folder: Path, entries: list[dict[str, Any]], size: int
) -> None:
    """Write certificates and attestations whose events are in the log up to the checkpoint."""
    logged = {
        "certificates": (certificates, entries),
        "purges": (purges, _logged(conn, "purge", size)),
    }
    for name, (table, found) in logged.items():
        numbers = {entry["event"]["sequence"] for entry in found}
        for sequence, envelope in conn.execute(select(table.c.sequence, table.c.envelope)):
            if sequence in numbers:
                _write(folder / name / f"{sequence:06d}.json", [bytes(envelope)])


def _write_checkpoints(conn: Connection, folder: Path, size: int) -> None:
    query = select(checkpoints.c.size, checkpoints.c.note).where(checkpoints.c.size <= size)
    for one, note in conn.execute(query):
        _write(folder / "checkpoints" / f"{one:012d}.txt", [note.encode()])


def _write_log(
    conn: Connection, folder: Path, checkpoint: Checkpoint, entries: list[dict[str, Any]]
) -> None:
    tree = LogTree(leaves(conn)[: checkpoint.size])
    query = select(checkpoints.c.size).where(checkpoints.c.size <= checkpoint.size)
    sizes = list(conn.scalars(query.order_by(checkpoints.c.size)))
    log = {
        "size": checkpoint.size,
        "root": checkpoint.root,
        "certificates": [
            {
                "sequence": entry["event"]["sequence"],
                "index": entry["index"],
                "event": entry["event"],
                "proof": _hex(tree.inclusion(entry["index"], checkpoint.size)),
            }
            for entry in entries
        ],
        "consistency": [
            {"from": first, "to": second, "proof": _hex(tree.consistency(first, second))}
            for first, second in pairwise(sizes)
        ],
    }
    _write(folder / "log.json", [canonical(log)])


def _hex(hashes: Iterable[bytes]) -> list[str]:
    return [one.hex() for one in hashes]


def _write_events(conn: Connection, folder: Path, size: int) -> None:
    lines = (body + b"\n" for _, body in zip(range(size), bodies(conn), strict=False))
    _write(folder / "events.jsonl", lines)


def _write_proofs(core: Core, folder: Path) -> None:
    (folder / "proofs").mkdir(mode=0o700)
    for certificate in sorted((folder / "certificates").iterdir()):
        sequence = int(certificate.stem)
        with core.database.reading() as conn:
            found = conn.scalar(select(versions.c.id).where(versions.c.sequence == sequence))
            version = version_of(conn, found) if found is not None else None
            if version is None:
                raise LedgerMissingError(f"the database has no version of certificate {sequence}")
            model = model_of(conn, version.model_id)
        digest = version.run["proof"]
        path = folder / "proofs" / f"{digest}.json"
        # A retrain that erases nobody new proves what the erasure before it proved.
        if not path.exists():
            _write(path, [proof_path(core, model, digest).read_bytes()])


def _newest(conn: Connection, model: ModelRow, last: int) -> _Custody | None:
    """Return the newest version of a model whose certificate is in the bundle, if there is one."""
    found = [v for v in versions_of(conn, model.id) if v.sequence is not None]
    certified = [version for version in found if (version.sequence or 0) <= last]
    if len(certified) < len(found):
        raise LedgerError(
            f"the newest version of {model.name!r} has no certificate yet, and the one before "
            "holds people who are erased already; let the worker finish, then export again"
        )
    return _Custody(model, certified[-1]) if certified else None


def _write_model(core: Core, folder: Path, one: _Custody) -> Any:
    """Write the files of one model; return the model, for its definition."""
    place = folder
    for name in ("models", one.model.tenant, one.model.name):
        place = place / name
        place.mkdir(mode=0o700, exist_ok=True)
    pins = Pins(core, owner_name())
    pin = pins.pin(one.version.id, _PIN_SECONDS)
    try:
        blob = raw_model(core, one.model, one.version)
        rows = read_rows(core, one.model, one.version)
        vault = read_vault(core, one.model, one.version)
        model = read_model(core, one.model, one.version)
        key = _training_key(core, one.version)
    finally:
        pins.release(pin)
    _write(place / "model.blob", [blob])
    _write(place / "rows.blob", [_UNBLINDED, state.encode(rows)])
    _write(place / "vault.blob", [_UNBLINDED, state.encode(vault._asdict())])
    _write(place / "training.json", [canonical(key)])
    return model


def _training_key(core: Core, version: VersionRow) -> dict[str, str]:
    """Return how the seed was made; with the key, where there is one, it can be made again."""
    training = dict(version.run["training"])
    key = training.pop("key")
    return training | {"key": core.keys.secret(key).hex() if key else ""}


def _write_definitions(folder: Path, models: Iterable[Any]) -> None:
    """Write the texts whose hashes certificates quote."""
    (folder / "definitions").mkdir(mode=0o700)
    texts = {*_definition_texts(), *(model.facts.definition for model in models)}
    for text in texts:
        data = text.encode()
        name = _sha256(data)
        _write(folder / "definitions" / f"{name}.md", [data])


def _definition_texts() -> Iterator[str]:
    for file in resources.files("letheon.definitions").iterdir():
        if file.name.endswith(".md"):
            yield file.read_text(encoding="utf-8")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file that only its owner can read; the folder is renamed when all are there."""
    with open(path, "xb", opener=_for_owner) as file:
        file.writelines(pieces)


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
