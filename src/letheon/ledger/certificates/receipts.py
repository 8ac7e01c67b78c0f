"""Receipts: what a person keeps to see alone that their rows left a model.

They are made with the certificate, from the rows and salts of the version before, which the purge
destroys; each is sealed to the key that the person chose, so that nobody here can open it, and it
may stay when everything else of the person is gone. Certificate and receipts are written in one
transaction: after a kill there are both or neither.
"""

import base64
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, func, select, tuple_, update

from letheon.data import IdIndex, Ids, Rows
from letheon.exceptions import (
    CorruptFileError,
    KeyFileError,
    LedgerMissingError,
    RequestStateError,
    SignerRefusedError,
)
from letheon.ledger.certificates.receipt_codes import (
    OpenedReceipt,
    ReceiptCode,
    checked_public_key,
    new_private_key,
    open_sealed,
    seal_receipt,
)
from letheon.ledger.core import Core
from letheon.ledger.db.events import record
from letheon.ledger.models.commitment import row_bytes
from letheon.ledger.models.versions import (
    ModelRow,
    Vault,
    VersionRow,
    proof_path,
    read_rows,
    read_vault,
)
from letheon.ledger.requests.listing import find_request
from letheon.ledger.requests.people import hold_current_key, hold_model, read_body
from letheon.ledger.schemas import Coverage, moment
from letheon.ledger.tables import (
    blocked,
    certificates,
    checkpoints,
    events,
    purges,
    requests,
    versions,
)
from letheon.verifier import (
    MOST_RECEIPT_ROWS,
    SMALL,
    TOMBSTONE,
    Opened,
    Refused,
    check_receipt_commitment,
    from_hex,
    node_hash,
    open_envelope,
    parse_strict,
    search_gaps,
    slot_commitment,
)

# Until then no receipt was made, nor is one being made.
_UNAPPLIED = ("received", "verified", "queued", "applying", "retry_wait", "on_hold")


class SealedReceipt(NamedTuple):
    """The receipt of one request, sealed to a key."""

    request: str
    key: str
    sealed: bytes


class _Asked(NamedTuple):
    request: str
    key: str
    person: Ids


def make_receipts(
    core: Core, model: ModelRow, parent: VersionRow, version: VersionRow, certificate: Opened
) -> list[SealedReceipt]:
    """Return the receipts of a batch that is about to be certified.

    They go to requests that name one person and have a key, if somebody's request of the batch
    names that person: their own, one that they wait behind, or one that overtook theirs. If the
    version before is damaged there are none: that must not keep a certificate back.

    Raises
    ------
    SignerRefusedError
        A row of such a person did not leave the data set, so the certificate would be false.
    """
    try:
        asked = _asked(core, version)
        if not asked:
            return []
        rows, vault = read_rows(core, model, parent), read_vault(core, model, parent)
    except (CorruptFileError, LedgerMissingError, KeyFileError):
        return []
    proof = proof_path(core, model, version.run["proof"]).read_bytes()
    levels, index = _levels(proof), IdIndex(rows.ids)
    made = []
    for request, key, person in asked:
        positions = index.find_one(person)
        if len(positions):
            receipt = _receipt(rows, vault, positions, levels, certificate)
            made.append(SealedReceipt(request, key, seal_receipt(key, request, receipt)))
    return made


def _asked(core: Core, version: VersionRow) -> list[_Asked]:
    """Return who is to get a receipt with this version, read under the key of the moment."""
    member, claim = requests.alias(), blocked.alias()
    erased = select(claim.c.tag).join(member, member.c.id == claim.c.request_id)
    erased = erased.where(member.c.batch_id == version.batch_id)
    here = blocked.c.model_id == version.model_id
    theirs = requests.c.id.in_(select(blocked.c.request_id).where(here, blocked.c.tag.in_(erased)))
    wanted = theirs & requests.c.receipt_key.is_not(None) & (requests.c.n_ids == 1)
    columns = select(
        requests.c.id, requests.c.receipt_key, requests.c.intake_key, requests.c.sealed
    )
    query = columns.where(wanted, requests.c.sealed.is_not(None), requests.c.receipt.is_(None))
    with core.database.reading() as conn:
        if conn.execute(query.limit(1)).first() is None:
            return []
    with core.database.transaction() as conn:
        hold_current_key(core, conn)
        found = conn.execute(query.order_by(requests.c.id)).all()
        return [
            _Asked(row.id, row.receipt_key, read_body(core, row.intake_key, row.id, row.sealed))
            for row in found
        ]


_Level = dict[int, tuple[bytes, bytes]]


def _levels(proof: bytes) -> list[_Level]:
    """Return the nodes on and beside the paths of the erased slots, before and after, by level."""
    transition = parse_strict(proof)
    siblings = map(bytes.fromhex, transition["siblings"])
    nodes: _Level = {
        one["slot"]: (bytes.fromhex(one["leaf"]), TOMBSTONE) for one in transition["erased"]
    }
    levels = []
    for _ in range(transition["slots"].bit_length() - 1):
        level = dict(nodes)
        for place in nodes:
            if place ^ 1 not in nodes:
                level[place ^ 1] = (next(siblings),) * 2
        levels.append(level)
        nodes = {place >> 1: _parents(level, place) for place in nodes}
    return levels


def _parents(level: _Level, place: int) -> tuple[bytes, bytes]:
    left, right = level[place & ~1], level[place | 1]
    return node_hash(left[0], right[0]), node_hash(left[1], right[1])


def _receipt(
    rows: Rows,
    vault: Vault,
    positions: NDArray[np.int64],
    levels: Sequence[_Level],
    certificate: Opened,
) -> bytes:
    """Return the receipt of the rows at these positions, the first 64 of them by their slots."""
    order = np.argsort(vault.slots[positions], kind="stable")
    chosen = positions[order][:MOST_RECEIPT_ROWS]
    part = vault.take(chosen)
    contents = row_bytes(rows.take(chosen))
    lines, openings = [], []
    for slot, salt, place, ranks, content in zip(*part, contents, strict=True):
        coded = ranks.astype("<i8").tobytes() + content
        commitment = slot_commitment(salt.tobytes(), int(place), coded)
        lines.append({"slot": int(slot), "commitment": commitment.hex(), **_paths(levels, slot)})
        openings.append(
            {"place": int(place), "salt": salt.tobytes().hex(), "ranks": ranks.tolist()}
        )
    made = OpenedReceipt(certificate.id, lines, openings, len(positions) - len(chosen))
    try:
        check_receipt_commitment(made.receipt, certificate)
    except Refused as error:
        raise SignerRefusedError(
            f"a row of somebody who asked to be erased did not leave the data set: {error}"
        ) from error
    return made.to_bytes()


def _paths(levels: Sequence[_Level], slot: int) -> dict[str, list[str]]:
    slot = int(slot)
    if levels and slot not in levels[0]:
        raise SignerRefusedError(
            "a row of somebody who asked to be erased is not in the transition proof"
        )
    beside = [level[(slot >> height) ^ 1] for height, level in enumerate(levels)]
    return {"before": [old.hex() for old, _ in beside], "after": [new.hex() for _, new in beside]}


def keep_receipts(conn: Connection, receipts: Sequence[SealedReceipt]) -> None:
    """Store receipts, each with its request if that has none."""
    for request, key, sealed in receipts:
        mine = (requests.c.id == request) & (requests.c.receipt_key == key)
        change = update(requests).where(mine, requests.c.receipt.is_(None))
        conn.execute(change.values(receipt=sealed))


def may_come(core: Core, request_id: str) -> bool:
    """Return whether the receipt of a request is still to be made."""
    with core.database.transaction() as conn:
        return _may_come(conn, request_id)


def _may_come(conn: Connection, request_id: str) -> bool:
    """Whether nobody has applied a request that names this one's person; held so till the end."""
    mine = select(blocked.c.model_id, blocked.c.tag).where(blocked.c.request_id == request_id)
    same = tuple_(blocked.c.model_id, blocked.c.tag).in_(mine)
    # Others that wait erase nobody themselves.
    query = select(requests.c.id).join(blocked).where(same, requests.c.state != "duplicate")
    names = {request_id, *conn.scalars(query)}
    held = select(requests.c.id, requests.c.state, requests.c.batch_id)
    held = held.where(requests.c.id.in_(names)).order_by(requests.c.id).with_for_update()
    rows = conn.execute(held).all()
    return all(
        row.state in _UNAPPLIED
        or (row.state == "duplicate" and row.id == request_id)
        or (row.state == "stuck" and row.batch_id is None)
        for row in rows
    )


def receipt_key_of(core: Core, request_id: str) -> str | None:
    """Return the public key that a request's receipt is sealed to."""
    with core.database.reading() as conn:
        query = select(requests.c.receipt_key).where(requests.c.id == request_id)
        return conn.scalar(query)


def gaps_in(attestation: bytes) -> str | None:
    """Return what a purge did not search, in words; None if it searched everything."""
    try:
        return search_gaps(predicate_of(attestation)) or None
    except (ValueError, LookupError, TypeError, AttributeError):
        return "the attestation cannot be read"


def predicate_of(envelope: bytes) -> Any:
    """Return the predicate of a statement in an envelope, unverified."""
    return json.loads(base64.b64decode(json.loads(envelope)["payload"]))["predicate"]


class Receipts:
    """Receipt codes, encrypted receipts, and the certificates that cover them.

    Parameters
    ----------
    core : Core
        The ledger.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def new_code(self, request_id: str, *, tenant: str | None = None) -> str:
        """Return a new receipt code for a request of one person; an older one opens nothing then.

        Raises
        ------
        RequestStateError
            The request was applied or ended already, or names several people.
        """
        code = ReceiptCode(request_id, new_private_key())
        self.set_key(request_id, code.public, tenant=tenant)
        return str(code)

    def set_key(self, request_id: str, key: str, *, tenant: str | None = None) -> None:
        """Encrypt the receipt of a request to another X25519 public key; the log tells of it.

        Raises
        ------
        RequestStateError
            The request was applied, is closed, or names several people.
        """
        checked_public_key(key)

        def work(conn: Connection) -> None:
            request = find_request(conn, request_id, tenant=tenant)
            # Claims change under the lock of the model, which is taken before that of a request.
            model = select(requests.c.model_id).where(requests.c.id == request.id)
            hold_model(conn, conn.execute(model).scalar_one(), alone=False)
            if not _may_come(conn, request.id):
                raise RequestStateError(
                    f"this request is {request.state}; a receipt code is given out until it is "
                    "applied"
                )
            if request.n_ids != 1:
                raise RequestStateError(
                    f"this request names {request.n_ids} people, and a receipt is for one; file "
                    "one request for each of them"
                )
            conn.execute(
                update(requests).where(requests.c.id == request.id).values(receipt_key=key)
            )
            record(conn, "receipt-code", {"request": request.id}, self._core.clock())

        self._core.database.run(work)

    def key(self, request_id: str, *, tenant: str | None = None) -> str | None:
        """Return the public key that the receipt of a request is, or will be, encrypted to."""
        with self._core.database.reading() as conn:
            find_request(conn, request_id, tenant=tenant)
        return receipt_key_of(self._core, request_id)

    def sealed(self, request_id: str, public_key: str) -> bytes | None:
        """Return the encrypted receipt of a request with this key; None if there is none.

        Nothing tells an unknown request, another key and a request without certificate apart: all
        are one query that finds nothing.
        """
        query = select(requests.c.receipt).where(
            requests.c.id == request_id,
            requests.c.receipt_key == public_key,
            requests.c.receipt.is_not(None),
        )
        with self._core.database.reading() as conn:
            sealed = conn.scalar(query)
        return None if sealed is None else bytes(sealed)

    def open(self, code: str) -> bytes | None:
        """Return the receipt that a code opens, without its salts; None if there is none.

        Raises
        ------
        Refused
            The text is no code, or has a typing error.
        """
        parsed = ReceiptCode.parse(code)
        sealed = self.sealed(parsed.request, parsed.public)
        try:
            return None if sealed is None else open_sealed(parsed, sealed).receipt
        except Refused:
            return None

    def coverage(self, receipt: bytes) -> Coverage | None:
        """Return what the certificate says that covers a receipt without salts; None if none does.

        The certificate's signature is checked, and every path of the receipt.
        """
        try:
            named = parse_strict(receipt, SMALL)
            row = self._certificate(from_hex(named["certificate"]).hex())
            if row is None:
                return None
            certificate = open_envelope(bytes(row.envelope), self._core.keys.trust())
            check_receipt_commitment(receipt, certificate)
        except (Refused, KeyError, TypeError):
            return None
        return Coverage(
            certificate=row.sequence,
            certified_at=moment(row.at),
            purged_at=moment(row.purged),
            purge_gaps=None if row.purge is None else gaps_in(bytes(row.purge)),
            guarantee=certificate.predicate["guarantee"]["kind"],
            in_log=row.place is not None and row.place < (row.size or 0),
        )

    def _certificate(self, certificate: str) -> Any:
        place = select(events.c.log_index).where(
            events.c.about == versions.c.batch_id, events.c.kind == "certificate"
        )
        query = (
            select(
                certificates.c.sequence,
                certificates.c.envelope,
                certificates.c.at,
                purges.c.at.label("purged"),
                purges.c.envelope.label("purge"),
                place.limit(1).scalar_subquery().label("place"),
                select(func.max(checkpoints.c.size)).scalar_subquery().label("size"),
            )
            .join(versions, versions.c.id == certificates.c.version_id)
            .outerjoin(purges, purges.c.sequence == certificates.c.sequence)
            .where(certificates.c.id == certificate)
        )
        with self._core.database.reading() as conn:
            return conn.execute(query).first()
