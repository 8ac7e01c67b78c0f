"""Certificates, as their users see them: page by page, newest first; and their proofs."""

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, select

from letheon.exceptions import LedgerMissingError
from letheon.ledger.core import Core
from letheon.ledger.db.cursor import cursor, place_of, require_limit
from letheon.ledger.models.versions import model_of, proof_path, version_of
from letheon.ledger.tables import certificates, events, models, purges, versions
from letheon.verifier import search_gaps

__all__ = [
    "CertificateInfo",
    "CertificatePage",
    "certificate_info",
    "certificate_page",
    "gaps_in",
    "sequences_of_tenant",
    "transition_proof",
]

_LIST = "certificates"
_UNREADABLE = "unreadable"


@dataclass(frozen=True)
class CertificateInfo:
    """What a certificate says, in short.

    Attributes
    ----------
    sequence : int
        Its number.
    id : str
        SHA-256 of what is signed.
    model, tenant : str
        From what was erased, and whose it is.
    version : int
        Number of the version that it certifies.
    batch : str
        The batch.
    method : str
        How rows were removed; "unreadable" where the envelope was damaged.
    guarantee : {"exact", "certified", "empirical", "unreadable"}
        Of which kind its guarantee is.
    n_rows : int
        Rows that it covers.
    certified_at, purged_at : datetime or None
        When it was made, and when the purge was attested.
    purge_gaps : str or None
        What the purge did not search, in words; None if it searched everything.
    log_index : int or None
        Its place in the log; None until the next checkpoint.
    """

    sequence: int
    id: str
    model: str
    tenant: str
    version: int
    batch: str
    method: str
    guarantee: str
    n_rows: int
    certified_at: datetime
    purged_at: datetime | None
    purge_gaps: str | None
    log_index: int | None


@dataclass(frozen=True)
class CertificatePage:
    """Some certificates of a list: `items`, the cursor of the `next` page, and their `total`."""

    items: tuple[CertificateInfo, ...]
    next: str | None
    total: int


def certificate_page(
    core: Core,
    *,
    tenant: str | None = None,
    model: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> CertificatePage:
    """Return one page of certificates, newest first."""
    require_limit(limit)
    wanted = _wanted(tenant, model)
    query = _query().where(wanted).order_by(certificates.c.sequence.desc()).limit(limit + 1)
    if after is not None:
        query = query.where(certificates.c.sequence < place_of(core, _LIST, after)[0])
    everything = select(func.count()).select_from(certificates).join(versions).join(models)
    with core.database.reading() as conn:
        rows = conn.execute(query).all()
        total = conn.scalar(everything.where(wanted)) or 0
    last = rows[limit - 1] if len(rows) > limit else None
    more = None if last is None else cursor(core, _LIST, (last.sequence,))
    return CertificatePage(tuple(_info(row) for row in rows[:limit]), more, total)


def certificate_info(core: Core, sequence: int, *, tenant: str | None = None) -> CertificateInfo:
    """Return what one certificate says, or raise `LedgerMissingError`."""
    with core.database.reading() as conn:
        mine = (certificates.c.sequence == sequence) & _wanted(tenant, None)
        row = conn.execute(_query().where(mine)).first()
    if row is None:
        raise LedgerMissingError(f"there is no certificate {sequence} in this ledger yet")
    return _info(row)


def sequences_of_tenant(conn: Connection, tenant: str) -> list[int]:
    """Return the numbers of the certificates of a tenant, the oldest first."""
    query = select(certificates.c.sequence).select_from(certificates).join(versions).join(models)
    own = query.where(models.c.tenant == tenant).order_by(certificates.c.sequence)
    return list(conn.scalars(own))


def transition_proof(core: Core, sequence: int) -> bytes:
    """Return the proof that exactly the erased rows left the data with certificate `sequence`."""
    with core.database.reading() as conn:
        query = select(certificates.c.version_id).where(certificates.c.sequence == sequence)
        version_id = conn.scalar(query)
        if version_id is None:
            raise LedgerMissingError(f"there is no certificate {sequence} in this ledger yet")
        version = version_of(conn, version_id)
        model = model_of(conn, version.model_id)
    path = proof_path(core, model, str(version.run["proof"]))
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise LedgerMissingError(f"{path} is gone; restore the file") from None


def _wanted(tenant: str | None, model: str | None) -> ColumnElement[bool]:
    pairs = ((models.c.tenant, tenant), (models.c.name, model))
    return and_(True, *(column == value for column, value in pairs if value is not None))


def _query() -> Select[Any]:
    is_mine = (events.c.about == versions.c.batch_id) & (events.c.kind == "certificate")
    place = select(events.c.log_index).where(is_mine).limit(1).scalar_subquery()
    return (
        select(
            certificates,
            models.c.name,
            models.c.tenant,
            versions.c.number,
            versions.c.batch_id,
            purges.c.at.label("purged_at"),
            purges.c.envelope.label("purge"),
            place.label("log_index"),
        )
        .join(versions, versions.c.id == certificates.c.version_id)
        .join(models, models.c.id == versions.c.model_id)
        .outerjoin(purges, purges.c.sequence == certificates.c.sequence)
    )


def _said(envelope: bytes) -> tuple[str, str, int]:
    """Return method, kind of guarantee and rows; a damaged one must not hide the others."""
    try:
        said = _predicate(envelope)
        found = said["method"]["name"], said["guarantee"]["kind"], said["erasure"]["rows"]
    except (ValueError, LookupError, TypeError):
        return _UNREADABLE, _UNREADABLE, 0
    is_sound = isinstance(found[0], str) and isinstance(found[1], str) and type(found[2]) is int
    return found if is_sound else (_UNREADABLE, _UNREADABLE, 0)


def gaps_in(attestation: bytes) -> str | None:
    """Return what a purge did not search, in words; None if it searched everything."""
    try:
        return search_gaps(_predicate(attestation)) or None
    except (ValueError, LookupError, TypeError, AttributeError):
        return "the attestation cannot be read"


def _predicate(envelope: bytes) -> Any:
    return json.loads(base64.b64decode(json.loads(envelope)["payload"]))["predicate"]


def _info(row: Row[Any]) -> CertificateInfo:
    method, guarantee, n_rows = _said(bytes(row.envelope))
    purged = row.purged_at
    return CertificateInfo(
        sequence=row.sequence,
        id=row.id,
        model=row.name,
        tenant=row.tenant,
        version=row.number,
        batch=row.batch_id,
        method=method,
        guarantee=guarantee,
        n_rows=n_rows,
        certified_at=datetime.fromtimestamp(row.at, UTC),
        purged_at=None if purged is None else datetime.fromtimestamp(purged, UTC),
        purge_gaps=None if row.purge is None else gaps_in(bytes(row.purge)),
        log_index=row.log_index,
    )
