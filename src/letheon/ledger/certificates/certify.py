"""Issue certificates, receipts and checkpoints, with checks before signing.

The signer checks what it signs: it hashes the model's file again, loads the model, compares the
claim with the model's own guarantee, and checks the transition proof. It never signs two different
statements with the same sequence number. Everything that it writes follows from committed database
rows, so a worker that takes over from a killed one writes the same bytes.

With a receipt, a person can check that their rows were removed from a model. Receipts are created
together with the certificate, from the rows and salts of the previous version, which the purge
destroys. Each receipt is encrypted to the person's key. The operator cannot decrypt it, so it may
be kept when all other data of the person is deleted. Certificate and receipts are written in one
transaction: a killed process leaves both or neither.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, func, insert, select, tuple_, update

from letheon.data import IdIndex, Ids, Rows
from letheon.exceptions import (
    CertificateError,
    CorruptFileError,
    KeyFileError,
    LedgerMissingError,
    SignerRefusedError,
    StateError,
)
from letheon.ledger.certificates.claims import RETRAIN
from letheon.ledger.certificates.facts import (
    method_parameters,
    reject_false_claims,
    reject_false_predictor,
)
from letheon.ledger.certificates.receipt_codes import OpenedReceipt, encrypt_receipt
from letheon.ledger.certificates.statement import Covered, ledger_id, make_statement
from letheon.ledger.core import Core, fault_point
from letheon.ledger.db.events import (
    advance_mark,
    integrate_events,
    mark_at,
    record_event,
    write_mark,
)
from letheon.ledger.keys.signing import Signer, sign_statement
from letheon.ledger.models.commitment import RowSlots, encode_rows
from letheon.ledger.models.versions import (
    ModelRow,
    VersionRow,
    find_head,
    find_model_by_id,
    find_version,
    locate_signed_file,
    proof_path,
    read_model,
    read_nonce,
    read_row_slots,
    read_rows,
)
from letheon.ledger.requests.people import lock_current_key, move_requests, read_body
from letheon.ledger.schemas import CertificateLine, Checkpoint
from letheon.ledger.tables import (
    batches,
    blocked,
    certificates,
    checkpoints,
    events,
    requests,
    versions,
)
from letheon.state import write_atomically
from letheon.verifier import (
    MOST_RECEIPT_ROWS,
    PAYLOAD_TYPE,
    TOMBSTONE,
    SignedStatement,
    VerificationError,
    canonical,
    check_next,
    check_receipt_commitment,
    check_schema,
    node_hash,
    note_body,
    note_digest,
    note_key_hash,
    open_envelope,
    pae,
    parse_strict,
    slot_commitment,
    transition_roots,
)

_ED25519 = 1
# Number of newest checkpoints whose files are checked; only the last one can be missing.
_RECENT = 16
# States of requests without a receipt.
_UNAPPLIED = ("received", "verified", "queued", "applying", "retry_wait", "on_hold")


def sign_checkpoint(origin: str, size: int, root: bytes, signer: Signer) -> str:
    """Return a signed note that the log `origin` has this size and this root.

    The last line is ``— origin base64(key hash || signature)``; the key hash is the first four
    bytes of ``SHA-256(origin || 0x0A || 0x01 || public key)``.
    """
    body = note_body(origin, size, root)
    key_hash = note_key_hash(origin, _ED25519, signer.public)
    line = base64.b64encode(key_hash + signer.sign(body)).decode()
    return f"{body.decode()}\n\N{EM DASH} {origin} {line}\n"


def take_checkpoint(core: Core) -> Checkpoint:
    """Give every event its position in the log, sign the head, and return the checkpoint.

    Two checkpoints of the same size are identical. The file is written after the database row is
    committed, because an uncommitted tree may be rolled back.
    """
    with core.database.transaction() as conn:
        size, root = integrate_events(conn)
        known = select(checkpoints).where(checkpoints.c.size == size)
        row = conn.execute(known).mappings().one_or_none()
        if row is None:
            note = sign_checkpoint(ledger_id(conn), size, root, core.keys.signer)
            checkpoint = Checkpoint(size, root.hex(), note, core.clock())
            conn.execute(insert(checkpoints).values(checkpoint._asdict()))
        else:
            checkpoint = Checkpoint(**row)
        mark = mark_at(conn, size)
        fault_point("checkpoint.before-commit")
    _write_checkpoints(core)
    write_mark(core, mark)
    return checkpoint


def take_beacon(core: Core, committed: str) -> str:
    """Return the digest of the first checkpoint after the event that commits to a training key.

    The training seed depends on this digest. Another worker may take a checkpoint in the meantime;
    the first checkpoint counts, so that an operator cannot wait for a preferred seed.
    """
    take_checkpoint(core)
    with core.database.reading() as conn:
        is_intent = events.c.kind.in_(("training", "sealed")) & events.c.body.contains(committed)
        place = conn.scalars(select(func.min(events.c.log_index)).where(is_intent)).one()
        later = select(checkpoints.c.note).where(checkpoints.c.size > place)
        return note_digest(conn.scalars(later.order_by(checkpoints.c.size).limit(1)).one())


def _write_checkpoints(core: Core) -> None:
    """Write the files of the newest checkpoints, if they are missing."""
    with core.database.reading() as conn:
        newest = select(checkpoints.c.size, checkpoints.c.note).order_by(checkpoints.c.size.desc())
        rows = conn.execute(newest.limit(_RECENT)).all()
    for size, note in rows:
        path = locate_signed_file(core, "checkpoints", size)
        if not path.exists():
            _write_file(path, note.encode())


def find_covered(conn: Connection, version: VersionRow) -> Covered:
    """Return which model, batch and earlier versions the certificate of this version covers."""
    if version.parent_id is None:
        raise CertificateError(
            "the first version of a model has no certificate, because nothing was erased"
        )
    kind = conn.scalars(select(batches.c.kind).where(batches.c.id == version.batch_id)).one()
    parent, last = find_version(conn, version.parent_id), _last_retrain(conn, version)
    base = last if kind == "retrain" else parent
    return Covered(find_model_by_id(conn, version.model_id), kind, parent, base, last)


def _last_retrain(conn: Connection, version: VersionRow) -> VersionRow:
    """Return the newest retrained version before a version, or the first version."""
    trained = select(versions.c.id).outerjoin(batches, batches.c.id == versions.c.batch_id)
    earlier = (versions.c.model_id == version.model_id) & (versions.c.number < version.number)
    is_fresh = (batches.c.kind == "retrain") | (versions.c.number == 0)
    newest = trained.where(earlier & is_fresh).order_by(versions.c.number.desc()).limit(1)
    return find_version(conn, conn.scalars(newest).one())


def certify_next(core: Core) -> int | None:
    """Issue the certificate of the published version that is next in the chain.

    Returns
    -------
    int or None
        Sequence number of the certificate; None if every published version has one.

    Raises
    ------
    SignerRefusedError
        The model's file differs from the published file, the claim is stronger than the model
        permits, the proof does not show the transition, or a different statement was already
        signed with this number. Nothing was signed.
    CertificateError
        The database contradicts itself.
    """
    version = _next_version(core)
    if version is None:
        return None
    version, sequence = _set_certificate_time(core, version), version.sequence or 0
    fault_point("certify.claimed")
    with core.database.reading() as conn:
        covered = find_covered(conn, version)
        statement = make_statement(conn, version, covered)
        _check_continuation(core, conn, version, statement)
    _check_statement(core, covered, version, statement["predicate"])
    certificate_id = hashlib.sha256(pae(PAYLOAD_TYPE, canonical(statement))).hexdigest()
    claimed = SignedStatement(statement, (), certificate_id)
    receipts = make_receipts(core, covered.model, covered.parent, version, claimed)
    path = locate_signed_file(core, "certificates", sequence)
    envelope = _sign_statement(core, path, sequence, statement)
    fault_point("certify.signed")
    _write_file(path, envelope)
    fault_point("certify.file-written")
    _commit_certificate(core, version, envelope, certificate_id, receipts)
    fault_point("certify.after-commit")
    advance_mark(core)
    return sequence


def check_certifiable(core: Core, conn: Connection, version: VersionRow) -> None:
    """Raise the same error as `certify_next` if no certificate can be issued for a version.

    Certificates are signed in the order of their numbers, so a certificate that cannot be signed
    blocks all later ones. The result of a sandboxed process is checked before it is published.
    """
    claimed = replace(version, certified_at=version.published_at, checkpoint_before="0" * 64)
    covered = find_covered(conn, version)
    statement = make_statement(conn, claimed, covered, is_rehearsal=True)
    _check_statement(core, covered, version, statement["predicate"])
    try:
        check_schema(statement)
    except VerificationError as error:
        raise SignerRefusedError(f"the statement does not match its schema: {error}") from error


def _check_continuation(
    core: Core, conn: Connection, version: VersionRow, statement: dict[str, Any]
) -> None:
    """Raise `SignerRefusedError` if a statement does not continue the model's chain.

    Verifiers would reject such a certificate.
    """
    line = line_before(conn, version.model_id, version.sequence or 0)
    if line.before is None:
        return
    in_line = certificates.c.sequence.in_([number for number in line if number is not None])
    rows = conn.execute(select(certificates.c.sequence, certificates.c.envelope).where(in_line))
    opened = {number: open_envelope(bytes(data), core.keys.trust()) for number, data in rows}
    retrain = None if line.retrain is None else opened[line.retrain]
    try:
        check_next(
            SignedStatement(statement, (), ""), opened[line.first], retrain, opened[line.before]
        )
    except VerificationError as error:
        raise SignerRefusedError(f"the statement does not continue the chain: {error}") from error


def line_before(conn: Connection, model_id: int, sequence: int) -> CertificateLine:
    """Return the numbers of the first, last retrain and last certificate of a model before this.

    They are 0, None and None if the model has no earlier certificate.
    """
    earlier = (versions.c.model_id == model_id) & (versions.c.sequence < sequence)
    query = select(func.max(versions.c.sequence)).join(batches, batches.c.id == versions.c.batch_id)
    first = conn.scalar(select(func.min(versions.c.sequence)).where(earlier))
    retrain = conn.scalar(query.where(earlier, batches.c.kind == RETRAIN))
    return CertificateLine(first or 0, retrain, conn.scalar(query.where(earlier)))


def _next_version(core: Core) -> VersionRow | None:
    with core.database.reading() as conn:
        last = conn.scalar(select(func.max(certificates.c.sequence))) or 0
        version_id = conn.scalar(select(versions.c.id).where(versions.c.sequence == last + 1))
        return None if version_id is None else find_version(conn, version_id)


def _set_certificate_time(core: Core, version: VersionRow) -> VersionRow:
    """Set the time and the checkpoint of a certificate, and return the version.

    If another worker has set them already, its values stay.
    """
    if version.certified_at is not None:
        _write_checkpoints(core)
        return version
    checkpoint = take_checkpoint(core)
    with core.database.transaction() as conn:
        unclaimed = (versions.c.id == version.id) & versions.c.certified_at.is_(None)
        at = max(core.clock(), version.published_at)
        values = {"certified_at": at, "checkpoint_before": checkpoint.digest}
        conn.execute(update(versions).where(unclaimed).values(values))
        return find_version(conn, version.id)


def _check_statement(
    core: Core, covered: Covered, version: VersionRow, claims: dict[str, Any]
) -> None:
    """Compare a statement with the model's file and the transition proof before signing.

    Raise `SignerRefusedError` if they contradict each other.
    """
    try:
        built = read_model(core, covered.model, version)
    except (StateError, LedgerMissingError) as error:
        raise SignerRefusedError(f"the published model cannot be read: {error}") from error
    method, data = claims["method"], claims["dataset"]
    if (covered.kind == RETRAIN) != (method["name"] == RETRAIN):
        raise SignerRefusedError(
            f"the statement names the method {method['name']!r}, which contradicts the batch of "
            f"kind {covered.kind!r}"
        )
    reject_false_claims(built, claims)
    if method["parameters"] != method_parameters(built, method["name"]):
        raise SignerRefusedError(
            "the parameters in the statement differ from those of the published model"
        )
    if not covered.model.is_outside:
        reject_false_predictor(built, read_nonce(core, covered.model, version), claims)
    digest = data["transitionProof"]["sha256"]
    try:
        proof = proof_path(core, covered.model, digest).read_bytes()
        before, after, erased = transition_roots(proof)
    except (OSError, VerificationError) as error:
        raise SignerRefusedError(
            f"the transition proof cannot be read or is not valid: {error}"
        ) from error
    stated = (digest, data["rootBefore"], data["rootAfter"], claims["erasure"]["rows"])
    if stated != (hashlib.sha256(proof).hexdigest(), before.hex(), after.hex(), erased):
        raise SignerRefusedError(
            f"the transition proof of version {version.number} contradicts the statement: hash, "
            "roots or number of rows differ"
        )


def _sign_statement(core: Core, path: Path, sequence: int, statement: dict[str, Any]) -> bytes:
    """Return the signed statement.

    Raise `SignerRefusedError` if a different statement was already signed with this number.
    """
    if path.exists():
        try:
            payload = base64.b64decode(parse_strict(path.read_bytes())["payload"])
        except (VerificationError, KeyError, TypeError, ValueError):
            payload = b""
        if payload != canonical(statement):
            raise SignerRefusedError(
                f"{path.name} exists with different content; two certificates with the same "
                "number would fork the chain. Find out which process wrote the file"
            )
    try:
        return sign_statement(statement, core.keys.signer_at(sequence))
    except VerificationError as error:
        raise SignerRefusedError(f"the statement does not match its schema: {error}") from error


def _commit_certificate(
    core: Core,
    version: VersionRow,
    envelope: bytes,
    certificate: str,
    receipts: "list[EncryptedReceipt]",
) -> None:
    """Store the certificate and receipts, and update the states of the batch and its requests."""
    with core.database.transaction() as conn:
        # The row is locked, so that a second worker sees the work of the first.
        conn.execute(select(versions.c.id).where(versions.c.id == version.id).with_for_update())
        known = select(certificates.c.id).where(certificates.c.sequence == version.sequence)
        if conn.scalar(known) is not None:
            return
        row = {"sequence": version.sequence, "id": certificate, "version_id": version.id}
        values = row | {"envelope": envelope, "at": version.certified_at}
        conn.execute(insert(certificates).values(values))
        now = core.clock()
        body = {"certificate": certificate, "sequence": version.sequence}
        record_event(conn, "certificate", body, now, about=version.batch_id)
        mine = (requests.c.batch_id == version.batch_id) & (requests.c.state == "applied")
        move_requests(
            conn, list(conn.scalars(select(requests.c.id).where(mine))), "certified", at=now
        )
        batch = batches.c.id == version.batch_id
        conn.execute(update(batches).where(batch).values(state="certified"))
        store_receipts(conn, receipts)
        fault_point("certify.before-commit")


def _write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, [data])


class EncryptedReceipt(NamedTuple):
    """Receipt of one request, encrypted to the key of its person."""

    request: str
    key: str
    sealed: bytes


def make_receipts(
    core: Core,
    model: ModelRow,
    parent: VersionRow,
    version: VersionRow,
    certificate: SignedStatement,
) -> list[EncryptedReceipt]:
    """Return the receipts for a batch whose certificate is about to be issued.

    A request gets a receipt if it has one person and a key, and if the batch erases this person.
    The batch may contain the request itself, an earlier request of which it is a duplicate, or a
    later request for the same person. If the previous version is damaged, the list is empty,
    because a missing receipt must not block the certificate.

    Raises
    ------
    SignerRefusedError
        A row of a person in the batch was not removed, so the certificate would be wrong.
    """
    try:
        due = _find_due_receipts(core, version)
        if not due:
            return []
        rows, vault = read_rows(core, model, parent), read_row_slots(core, model, parent)
    except (CorruptFileError, LedgerMissingError, KeyFileError):
        return []
    proof = proof_path(core, model, version.run["proof"]).read_bytes()
    levels, index = _list_proof_levels(proof), IdIndex(rows.ids)
    receipts = []
    for request, key, person in due:
        positions = index.find_one(person)
        if len(positions):
            receipt = _make_receipt(rows, vault, positions, levels, certificate)
            receipts.append(EncryptedReceipt(request, key, encrypt_receipt(key, request, receipt)))
    return receipts


def _find_due_receipts(core: Core, version: VersionRow) -> list[tuple[str, str, Ids]]:
    """Return the request, the key and the person of each receipt to be made for this version.

    The ids of the people are decrypted with the current key.
    """
    member, claim = requests.alias(), blocked.alias()
    erased = select(claim.c.tag).join(member, member.c.id == claim.c.request_id)
    erased = erased.where(member.c.batch_id == version.batch_id)
    if _is_split(core, version):  # see `reveals_sample`
        erased = erased.where(member.c.receipt_key.is_not(None))
    in_model = blocked.c.model_id == version.model_id
    theirs = requests.c.id.in_(
        select(blocked.c.request_id).where(in_model, blocked.c.tag.in_(erased))
    )
    due = theirs & requests.c.receipt_key.is_not(None) & (requests.c.n_ids == 1)
    columns = (requests.c.id, requests.c.receipt_key, requests.c.intake_key, requests.c.sealed)
    query = select(*columns).where(
        due, requests.c.sealed.is_not(None), requests.c.receipt.is_(None)
    )
    with core.database.reading() as conn:
        if conn.execute(query.limit(1)).first() is None:
            return []
    with core.database.transaction() as conn:
        lock_current_key(core, conn)
        return [
            (request, key, read_body(core, intake_key, request, encrypted))
            for request, key, intake_key, encrypted in conn.execute(query.order_by(requests.c.id))
        ]


_Level = dict[int, tuple[bytes, bytes]]


def _list_proof_levels(proof: bytes) -> list[_Level]:
    """Return the nodes of the transition tree that receipts need, by level and position.

    These are the nodes on and next to the paths of the erased slots, each as a pair of hashes
    before and after the removal.
    """
    transition = parse_strict(proof)
    siblings = map(bytes.fromhex, transition["siblings"])
    nodes: _Level = {
        leaf["slot"]: (bytes.fromhex(leaf["leaf"]), TOMBSTONE) for leaf in transition["erased"]
    }
    levels = []
    for _ in range(transition["slots"].bit_length() - 1):
        level = dict(nodes)
        for place in nodes:
            if place ^ 1 not in nodes:
                level[place ^ 1] = (next(siblings),) * 2
        levels.append(level)
        pairs = {place >> 1: (level[place & ~1], level[place | 1]) for place in nodes}
        nodes = {
            place: (node_hash(left[0], right[0]), node_hash(left[1], right[1]))
            for place, (left, right) in pairs.items()
        }
    return levels


def _make_receipt(
    rows: Rows,
    vault: RowSlots,
    positions: NDArray[np.int64],
    levels: Sequence[_Level],
    certificate: SignedStatement,
) -> bytes:
    """Return the receipt for the rows at these positions, with at most 64 rows, in slot order."""
    order = np.argsort(vault.slots[positions], kind="stable")
    chosen = positions[order][:MOST_RECEIPT_ROWS]
    contents = encode_rows(rows.take(chosen))
    lines, openings = [], []
    for slot, salt, place, ranks, content in zip(*vault.take(chosen), contents, strict=True):
        coded = ranks.astype("<i8").tobytes() + content
        commitment = slot_commitment(salt.tobytes(), int(place), coded)
        paths = _extract_paths(levels, int(slot))
        lines.append({"slot": int(slot), "commitment": commitment.hex(), **paths})
        openings.append(
            {"place": int(place), "salt": salt.tobytes().hex(), "ranks": ranks.tolist()}
        )
    receipt = OpenedReceipt(certificate.id, lines, openings, len(positions) - len(chosen))
    try:
        check_receipt_commitment(receipt.receipt, certificate)
    except VerificationError as error:
        raise SignerRefusedError(
            f"a row of an erased person was not removed from the data set: {error}"
        ) from error
    return receipt.to_bytes()


def _extract_paths(levels: Sequence[_Level], slot: int) -> dict[str, list[str]]:
    if levels and slot not in levels[0]:
        raise SignerRefusedError("a row of an erased person is not in the transition proof")
    pairs = [level[(slot >> height) ^ 1] for height, level in enumerate(levels)]
    return {"before": [old.hex() for old, _ in pairs], "after": [new.hex() for _, new in pairs]}


def store_receipts(conn: Connection, receipts: Sequence[EncryptedReceipt]) -> None:
    """Store each receipt with its request, unless the request has a receipt already."""
    for request, key, encrypted in receipts:
        mine = (requests.c.id == request) & (requests.c.receipt_key == key)
        change = update(requests).where(mine, requests.c.receipt.is_(None))
        conn.execute(change.values(receipt=encrypted))


def receipt_key_of(core: Core, request_id: str) -> str | None:
    """Return the public key for the receipt of a request, or None if it has none."""
    with core.database.reading() as conn:
        return conn.scalar(select(requests.c.receipt_key).where(requests.c.id == request_id))


def can_receive_receipt(core: Core, request_id: str) -> bool:
    """Return whether a receipt can still be made for a request."""
    with core.database.transaction() as conn:
        return is_receipt_open(conn, request_id) and not reveals_sample(core, conn, request_id)


def reveals_sample(core: Core, conn: Connection, request_id: str) -> bool:
    """Return whether a new receipt code would reveal that a person is in a keyed sample.

    A queued request without a code waits only if its person is in a sample; see `Policy`. The same
    is true of a request of which this request is a duplicate.
    """
    model = conn.execute(select(requests.c.model_id).where(requests.c.id == request_id))
    if not _is_split(core, find_head(conn, model.scalar_one())):
        return False
    mine = select(blocked.c.model_id, blocked.c.tag).where(blocked.c.request_id == request_id)
    same = tuple_(blocked.c.model_id, blocked.c.tag).in_(mine)
    query = select(requests.c.id, requests.c.state).join(blocked)
    query = query.where(same, requests.c.state != "duplicate", requests.c.receipt_key.is_(None))
    return any(
        owner != request_id or state not in {"received", "verified"}
        for owner, state in conn.execute(query)
    )


def _is_split(core: Core, version: VersionRow) -> bool:
    is_on = core.settings.policy.unsampled_at_once
    return is_on and bool(version.run.get("has_sample", False))


def is_receipt_open(conn: Connection, request_id: str) -> bool:
    """Return whether no request for the same person has been applied.

    The rows of these requests stay locked until the transaction of `conn` ends.
    """
    mine = select(blocked.c.model_id, blocked.c.tag).where(blocked.c.request_id == request_id)
    same = tuple_(blocked.c.model_id, blocked.c.tag).in_(mine)
    # Duplicates erase no rows themselves.
    query = select(requests.c.id).join(blocked).where(same, requests.c.state != "duplicate")
    names = {request_id, *conn.scalars(query)}
    locked = select(requests.c.id, requests.c.state, requests.c.batch_id)
    locked = locked.where(requests.c.id.in_(names)).order_by(requests.c.id).with_for_update()
    return all(
        state in _UNAPPLIED
        or (state == "duplicate" and identity == request_id)
        or (state == "stuck" and batch is None)
        for identity, state, batch in conn.execute(locked).all()
    )
