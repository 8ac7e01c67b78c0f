"""Certificates and checkpoints: who signs, when, and what is looked at before.

The signer trusts no row that it can check: it hashes the model's file again, builds the model and
compares the claim with the model's own guarantee, checks the transition proof, and never signs one
sequence number with two contents. Everything that it writes follows from rows that are committed,
so a worker that takes over after a kill writes the same bytes.
"""

import base64
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from letheon.exceptions import LedgerMissingError, SignerRefusedError, StateError
from letheon.ledger.certificates.claims import RETRAIN
from letheon.ledger.certificates.facts import method_parameters, refuse_boasts
from letheon.ledger.certificates.receipts import SealedReceipt, keep_receipts, make_receipts
from letheon.ledger.certificates.statement import covered_by, ledger_id, unlearning
from letheon.ledger.core import Core, point
from letheon.ledger.db.events import advance_mark, integrate, mark_at, record, write_mark
from letheon.ledger.keys.signing import Signer, sign
from letheon.ledger.models.versions import ModelRow, VersionRow, proof_path, read_model, version_of
from letheon.ledger.requests.people import move
from letheon.ledger.schemas import Checkpoint
from letheon.ledger.tables import batches, certificates, checkpoints, events, requests, versions
from letheon.state import write_atomically
from letheon.verifier import (
    PAYLOAD_TYPE,
    Opened,
    Refused,
    canonical,
    check_next,
    check_schema,
    note_body,
    note_digest,
    note_key_hash,
    open_envelope,
    pae,
    parse_strict,
    transition_roots,
)

_ED25519 = 1


def sign_checkpoint(origin: str, size: int, root: bytes, signer: Signer) -> str:
    """Return the signed note that the log of this name has this size and root.

    The last line is ``— origin base64(key hash || signature)``; the key hash is the first four
    bytes of ``SHA-256(origin || 0x0A || 0x01 || public key)``.
    """
    body = note_body(origin, size, root)
    key_hash = note_key_hash(origin, _ED25519, signer.public)
    line = base64.b64encode(key_hash + signer.sign(body)).decode()
    return f"{body.decode()}\n\N{EM DASH} {origin} {line}\n"


# Files of the newest checkpoints are looked for; a kill can leave out the last one only.
_RECENT = 16


def take_checkpoint(core: Core) -> Checkpoint:
    """Give every event its place in the log, sign the head, and return it.

    Two checkpoints of one size are the same one. The file is written when the row is committed:
    before, it could show a tree that is rolled back.
    """
    with core.database.transaction() as conn:
        size, root = integrate(conn)
        known = select(checkpoints).where(checkpoints.c.size == size)
        row = conn.execute(known).mappings().one_or_none()
        if row is None:
            note = sign_checkpoint(ledger_id(conn), size, root, core.keys.signer)
            checkpoint = Checkpoint(size, root.hex(), note, core.clock())
            conn.execute(insert(checkpoints).values(checkpoint._asdict()))
        else:
            checkpoint = Checkpoint(**row)
        mark = mark_at(conn, size)
        point("checkpoint.before-commit")
    _write_checkpoints(core)
    write_mark(core, mark)
    return checkpoint


def take_beacon(core: Core, committed: str) -> str:
    """Return the digest of the first checkpoint after the event that commits to a training key.

    Another worker may take a checkpoint in between: the first one counts, so that nobody can wait
    for a beacon whose seed they like.
    """
    take_checkpoint(core)
    with core.database.reading() as conn:
        is_intent = events.c.kind.in_(("training", "sealed")) & events.c.body.contains(committed)
        place = conn.scalars(select(func.min(events.c.log_index)).where(is_intent)).one()
        later = select(checkpoints.c.note).where(checkpoints.c.size > place)
        return note_digest(conn.scalars(later.order_by(checkpoints.c.size).limit(1)).one())


def _write_checkpoints(core: Core) -> None:
    """Write the files of the newest checkpoints that have none."""
    with core.database.reading() as conn:
        newest = select(checkpoints.c.size, checkpoints.c.note).order_by(checkpoints.c.size.desc())
        rows = conn.execute(newest.limit(_RECENT)).all()
    for size, note in rows:
        path = core.place("checkpoints") / f"{size:012d}.txt"
        if not path.exists():
            _write(path, note.encode())


def certificate_path(core: Core, sequence: int) -> Path:
    """Return where the certificate of this number lies."""
    return core.place("certificates") / f"{sequence:06d}.json"


def certify_next(core: Core) -> int | None:
    """Certify the published version that comes next in the chain.

    Returns
    -------
    int or None
        Its sequence number; None if every published version has its certificate.

    Raises
    ------
    SignerRefusedError
        The model's file is not the published one, the claim is stronger than the model permits,
        the proof does not show the transition, or another content was signed under this number.
        Nothing was signed.
    CertificateError
        The database contradicts itself.
    """
    version = _next_version(core)
    if version is None:
        return None
    version = _claimed(core, version)
    point("certify.claimed")
    with core.database.reading() as conn:
        statement = unlearning(conn, version)
        covered = covered_by(conn, version)
        _require_line(core, conn, version, statement)
    _inspect(core, covered.model, covered.kind, version, statement["predicate"])
    claimed = Opened(statement, (), _id_of(statement))
    receipts = make_receipts(core, covered.model, covered.parent, version, claimed)
    envelope = _signed(core, version, statement)
    point("certify.signed")
    _write(certificate_path(core, _sequence(version)), envelope)
    point("certify.file-written")
    _commit(core, version, envelope, claimed.id, receipts)
    point("certify.after-commit")
    advance_mark(core)
    return version.sequence


def rehearse(core: Core, conn: Connection, model: ModelRow, kind: str, version: VersionRow) -> None:
    """Raise as `certify_next` would if no certificate can be made of a version.

    Certificates are signed in the order of their numbers, so one that cannot be signed holds up
    those of everybody. What a sandboxed process computed is tried before it is published.
    """
    claimed = replace(version, certified_at=version.published_at, checkpoint_before="0" * 64)
    statement = unlearning(conn, claimed, is_rehearsal=True)
    _inspect(core, model, kind, version, statement["predicate"])
    try:
        check_schema(statement)
    except Refused as error:
        raise SignerRefusedError(f"the statement breaks its schema: {error}") from error


def _require_line(
    core: Core, conn: Connection, version: VersionRow, statement: dict[str, Any]
) -> None:
    """Refuse a statement that does not continue the model's line: no verifier would accept it."""
    query = select(certificates.c.sequence, certificates.c.envelope).join(
        versions, versions.c.id == certificates.c.version_id
    )
    earlier = (versions.c.model_id == version.model_id) & (versions.c.number < version.number)

    def opened(condition: Any) -> Opened:
        row = conn.execute(query.where(earlier & condition)).one()
        return open_envelope(bytes(row.envelope), core.keys.trust())

    numbers = query.with_only_columns(
        func.min(certificates.c.sequence), func.max(certificates.c.sequence)
    )
    first, last = conn.execute(numbers.where(earlier)).one()
    if first is None:
        return
    newest = opened(certificates.c.sequence == last)
    is_retrain = newest.predicate["method"]["name"] == RETRAIN
    trained = last if is_retrain else newest.predicate["monitor"]["lastRetrainSequence"]
    try:
        check_next(
            Opened(statement, (), ""),
            opened(certificates.c.sequence == first),
            opened(certificates.c.sequence == trained) if trained else None,
            newest,
        )
    except Refused as error:
        raise SignerRefusedError(f"the statement breaks the chain: {error}") from error


def _next_version(core: Core) -> VersionRow | None:
    with core.database.reading() as conn:
        last = conn.scalar(select(func.max(certificates.c.sequence))) or 0
        found = conn.scalar(select(versions.c.id).where(versions.c.sequence == last + 1))
        return None if found is None else version_of(conn, found)


def _claimed(core: Core, version: VersionRow) -> VersionRow:
    """Fix the time and the checkpoint of a certificate; whoever comes first decides for all."""
    if version.certified_at is not None:
        _write_checkpoints(core)
        return version
    checkpoint = take_checkpoint(core)
    with core.database.transaction() as conn:
        unclaimed = (versions.c.id == version.id) & versions.c.certified_at.is_(None)
        at = max(core.clock(), version.published_at)
        values = {"certified_at": at, "checkpoint_before": checkpoint.digest}
        conn.execute(update(versions).where(unclaimed).values(values))
        return version_of(conn, version.id)


def _inspect(
    core: Core, model: ModelRow, kind: str, version: VersionRow, claims: dict[str, Any]
) -> None:
    """Compare a statement with the model's file and with the proof, before anything is signed."""
    try:
        built = read_model(core, model, version)
    except (StateError, LedgerMissingError) as error:
        raise SignerRefusedError(f"the published model cannot be certified: {error}") from error
    if (kind == RETRAIN) != (claims["method"]["name"] == RETRAIN):
        raise SignerRefusedError(f"a batch of kind {kind} is certified as another")
    refuse_boasts(built, claims)
    if claims["method"]["parameters"] != method_parameters(built, claims["method"]["name"]):
        raise SignerRefusedError("the parameters in the statement are not those of the model")
    _require_transition(core, model, version, claims)


def _require_transition(
    core: Core, model: ModelRow, version: VersionRow, claims: dict[str, Any]
) -> None:
    data = claims["dataset"]
    digest = data["transitionProof"]["sha256"]
    try:
        proof = proof_path(core, model, digest).read_bytes()
        before, after, erased = transition_roots(proof)
    except (OSError, Refused) as error:
        raise SignerRefusedError(f"the transition proof cannot be used: {error}") from error
    said = (digest, data["rootBefore"], data["rootAfter"], claims["erasure"]["rows"])
    if said != (hashlib.sha256(proof).hexdigest(), before.hex(), after.hex(), erased):
        raise SignerRefusedError(
            f"the transition proof of version {version.number} does not show what is claimed"
        )


def _signed(core: Core, version: VersionRow, statement: dict[str, Any]) -> bytes:
    """Sign, unless other content was signed under this number before."""
    path = certificate_path(core, _sequence(version))
    if path.exists():
        _require_same(path, statement)
    try:
        return sign(statement, core.keys.signer_at(_sequence(version)))
    except Refused as error:
        raise SignerRefusedError(f"the statement breaks its schema: {error}") from error


def _require_same(path: Path, statement: dict[str, Any]) -> None:
    try:
        payload = base64.b64decode(parse_strict(path.read_bytes())["payload"])
    except (Refused, KeyError, TypeError, ValueError):
        payload = b""
    if payload != canonical(statement):
        raise SignerRefusedError(
            f"{path.name} holds another content than the one that is to be signed; two "
            "certificates of one number would be a fork. Find out who wrote it."
        )


def _commit(
    core: Core,
    version: VersionRow,
    envelope: bytes,
    certificate: str,
    receipts: list[SealedReceipt],
) -> None:
    with core.database.transaction() as conn:
        # The row is locked, so that of two workers the second one sees the first one's work.
        conn.execute(select(versions.c.id).where(versions.c.id == version.id).with_for_update())
        if _is_certified(conn, version):
            return
        row = {"sequence": version.sequence, "id": certificate, "version_id": version.id}
        values = row | {"envelope": envelope, "at": version.certified_at}
        conn.execute(insert(certificates).values(values))
        now = core.clock()
        body = {"certificate": certificate, "sequence": version.sequence}
        record(conn, "certificate", body, now, about=version.batch_id)
        _advance(conn, version, now)
        keep_receipts(conn, receipts)
        point("certify.before-commit")


def _is_certified(conn: Connection, version: VersionRow) -> bool:
    query = select(certificates.c.id).where(certificates.c.sequence == version.sequence)
    return conn.scalar(query) is not None


def _advance(conn: Connection, version: VersionRow, now: int) -> None:
    """Move the batch and its requests on."""
    mine = (requests.c.batch_id == version.batch_id) & (requests.c.state == "applied")
    move(conn, list(conn.scalars(select(requests.c.id).where(mine))), "certified", at=now)
    batch = batches.c.id == version.batch_id
    conn.execute(update(batches).where(batch).values(state="certified"))


def _id_of(statement: dict[str, Any]) -> str:
    """Return the id of a certificate: the SHA-256 of what is signed."""
    return hashlib.sha256(pae(PAYLOAD_TYPE, canonical(statement))).hexdigest()


def _sequence(version: VersionRow) -> int:
    assert version.sequence is not None
    return version.sequence


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, [data])
