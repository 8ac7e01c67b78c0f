"""`Ledger.certificates`: envelopes, what they say in short, proofs, purges and receipts."""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, and_, func, select

from letheon.exceptions import LedgerMissingError
from letheon.ledger.certificates.receipts import Receipts, gaps_in, predicate_of
from letheon.ledger.core import Core
from letheon.ledger.db.cursor import cursor, place_of, require_limit
from letheon.ledger.models.versions import VersionRow, model_of, proof_path, version_of
from letheon.ledger.schemas import Certificate, CertificateLine, Page, Purge, moment
from letheon.ledger.tables import (
    batches,
    certificates,
    events,
    models,
    purge_steps,
    purges,
    versions,
)
from letheon.verifier import parse_strict

_LIST = "certificates"
_UNREADABLE = "unreadable"
_MISSING = "there is no {} {} in this ledger yet"


class Certificates:
    """The certificates of a ledger.

    Parameters
    ----------
    core : Core
        The ledger.

    Attributes
    ----------
    receipts : Receipts
        Receipts of the people whose erasure is certified.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.receipts = Receipts(core)

    def sequences(self, *, tenant: str | None = None) -> tuple[int, ...]:
        """Return the numbers of all certificates, or those of a tenant, the oldest first."""
        with self._core.database.reading() as conn:
            return list_sequences(conn, tenant)

    def list(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Page[Certificate]:
        """Return one page of what certificates say in short, newest first."""
        require_limit(limit)
        core, wanted = self._core, is_of(tenant, model)
        query = _query().where(wanted).order_by(certificates.c.sequence.desc()).limit(limit + 1)
        if after is not None:
            query = query.where(certificates.c.sequence < place_of(core, _LIST, after)[0])
        everything = select(func.count()).select_from(certificates).join(versions).join(models)
        with core.database.reading() as conn:
            rows = conn.execute(query).all()
            total = conn.scalar(everything.where(wanted)) or 0
        last = rows[limit - 1] if len(rows) > limit else None
        more = None if last is None else cursor(core, _LIST, (last.sequence,))
        return Page(tuple(_certificate(row) for row in rows[:limit]), more, total)

    def get(self, sequence: int, *, tenant: str | None = None) -> Certificate:
        """Return what one certificate says in short, or raise `LedgerMissingError`."""
        mine = (certificates.c.sequence == sequence) & is_of(tenant, None)
        with self._core.database.reading() as conn:
            row = conn.execute(_query().where(mine)).first()
        if row is None:
            raise LedgerMissingError(_MISSING.format("certificate", sequence))
        return _certificate(row)

    def line(self, sequence: int) -> CertificateLine:
        """Return the certificates of the same model that a certificate continues."""
        with self._core.database.reading() as conn:
            mine = versions.c.model_id == self._version(conn, sequence).model_id
            earlier = mine & (versions.c.sequence < sequence)
            newest = select(func.max(versions.c.sequence)).where(earlier)
            retrains = newest.join(batches, batches.c.id == versions.c.batch_id)
            return CertificateLine(
                conn.execute(select(func.min(versions.c.sequence)).where(mine)).scalar_one(),
                conn.scalar(retrains.where(batches.c.kind == "retrain")),
                conn.scalar(newest),
            )

    def envelope(self, sequence: int) -> bytes:
        """Return a certificate: a DSSE envelope in canonical JSON."""
        return self._envelope(certificates, sequence, "certificate")

    def envelopes(self, first: int, last: int) -> dict[int, bytes]:
        """Return the certificates with numbers from `first` to `last`."""
        query = select(certificates.c.sequence, certificates.c.envelope).where(
            certificates.c.sequence.between(first, last)
        )
        with self._core.database.reading() as conn:
            return {sequence: bytes(envelope) for sequence, envelope in conn.execute(query)}

    def purge_attestation(self, sequence: int) -> bytes:
        """Return the attestation that what certificate `sequence` erased was purged too."""
        return self._envelope(purges, sequence, "purge attestation of certificate")

    def proof(self, sequence: int) -> bytes:
        """Return the proof that exactly the erased rows left the data with a certificate."""
        with self._core.database.reading() as conn:
            version = self._version(conn, sequence)
            model = model_of(conn, version.model_id)
        path = proof_path(self._core, model, str(version.run["proof"]))
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise LedgerMissingError(f"{path} is gone; restore the file") from None

    def purges(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> tuple[Purge, ...]:
        """Return certificates with their purges, newest first; of a tenant or a model only."""
        query = (
            select(
                certificates.c.sequence,
                models.c.tenant,
                models.c.name,
                versions.c.batch_id,
                purges.c.envelope,
            )
            .join(versions, versions.c.id == certificates.c.version_id)
            .join(models, models.c.id == versions.c.model_id)
            .outerjoin(purges, purges.c.sequence == certificates.c.sequence)
            .where(is_of(tenant, model))
        )
        if before is not None:
            query = query.where(certificates.c.sequence < before)
        with self._core.database.reading() as conn:
            rows = conn.execute(query.order_by(certificates.c.sequence.desc()).limit(limit)).all()
            noted = _evidence(conn, [row.batch_id for row in rows if row.envelope is not None])
        return tuple(
            Purge(
                row.sequence,
                row.tenant,
                row.name,
                None if row.envelope is None else bytes(row.envelope),
                noted.get(row.batch_id, {}),
            )
            for row in rows
        )

    def _envelope(self, table: Table, sequence: int, what: str) -> bytes:
        query = select(table.c.envelope).where(table.c.sequence == sequence)
        with self._core.database.reading() as conn:
            envelope = conn.scalar(query)
        if envelope is None:
            raise LedgerMissingError(_MISSING.format(what, sequence))
        return bytes(envelope)

    def _version(self, conn: Connection, sequence: int) -> VersionRow:
        query = select(certificates.c.version_id).where(certificates.c.sequence == sequence)
        version_id = conn.scalar(query)
        if version_id is None:
            raise LedgerMissingError(_MISSING.format("certificate", sequence))
        return version_of(conn, version_id)


def list_sequences(conn: Connection, tenant: str | None = None) -> tuple[int, ...]:
    """Return the numbers of all certificates, or those of a tenant, the oldest first."""
    query = select(certificates.c.sequence).order_by(certificates.c.sequence)
    if tenant is not None:
        query = query.join(versions, versions.c.id == certificates.c.version_id)
        query = query.join(models, models.c.id == versions.c.model_id)
        query = query.where(models.c.tenant == tenant)
    return tuple(conn.scalars(query))


def is_of(tenant: str | None, model: str | None) -> ColumnElement[bool]:
    """Return whether a row is of this tenant and model; of any where None is given."""
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
        said = predicate_of(envelope)
        found = said["method"]["name"], said["guarantee"]["kind"], said["erasure"]["rows"]
    except (ValueError, LookupError, TypeError):
        return _UNREADABLE, _UNREADABLE, 0
    is_sound = isinstance(found[0], str) and isinstance(found[1], str) and type(found[2]) is int
    return found if is_sound else (_UNREADABLE, _UNREADABLE, 0)


def _evidence(conn: Connection, wanted: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return what the steps of purges noted about searches, by batch and step."""
    query = select(purge_steps.c.batch_id, purge_steps.c.step, purge_steps.c.evidence).where(
        purge_steps.c.batch_id.in_(wanted) & purge_steps.c.step.in_(("stores", "scan"))
    )
    noted: dict[str, dict[str, dict[str, Any]]] = {}
    for batch, step, evidence in conn.execute(query):
        if evidence is not None:
            noted.setdefault(batch, {})[step] = parse_strict(evidence.encode())
    return noted


def _certificate(row: Row[Any]) -> Certificate:
    method, guarantee, n_rows = _said(bytes(row.envelope))
    return Certificate(
        sequence=row.sequence,
        id=row.id,
        model=row.name,
        tenant=row.tenant,
        version=row.number,
        batch=row.batch_id,
        method=method,
        guarantee=guarantee,
        n_rows=n_rows,
        certified_at=moment(row.at),
        purged_at=moment(row.purged_at),
        purge_gaps=None if row.purge is None else gaps_in(bytes(row.purge)),
        log_index=row.log_index,
    )
