"""Versions with what was found out about them, and certificates with their neighbours.

For whoever shows a ledger: each function is one short reading of the database, however many
versions, certificates and requests there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, func, select

from letheon.ledger.certificates.claims import claim_of, guarantee_section, published_account
from letheon.ledger.models.info import VersionInfo, version_info
from letheon.ledger.models.versions import (
    ModelRow,
    VersionRow,
    find_model,
    head_of,
    read_head,
    read_model,
)
from letheon.ledger.tables import (
    batches,
    certificates,
    checkpoints,
    events,
    models,
    purge_steps,
    purges,
    requests,
    versions,
)
from letheon.verifier import Trust, parse_strict

if TYPE_CHECKING:
    from letheon.ledger.ledger import Ledger

__all__ = [
    "CertificateRecord",
    "CheckpointRecord",
    "PurgeRecord",
    "VersionRecord",
    "certificate_record",
    "claims_of_head",
    "envelopes",
    "event_at",
    "latest_checkpoint",
    "purge_records",
    "requests_by_model",
    "sequences_between",
    "spending",
    "trust_of",
    "version_records",
]

VersionKind = Literal["registration", "erase", "retrain"]
_MOST_KNOWN = 256
# What a model claims of its next removal, by the address of the model.
_claims: dict[str, dict[str, Any]] = {}


@dataclass(frozen=True)
class VersionRecord:
    """A version, and what its certificate says or will say.

    Attributes
    ----------
    info : VersionInfo
        Number, address, rows, times.
    kind : {"registration", "erase", "retrain"}
        How it came about.
    batch, certificate : str or None
        The batch that made it, and the id of its certificate.
    n_erased : int
        Rows that left with it.
    seconds : float
        What the removal or the retrain took.
    facts : dict or None
        Method, execution, guarantee, measurements, monitor and limits, as the certificate has
        them; None for the registration.
    """

    info: VersionInfo
    kind: VersionKind
    batch: str | None
    certificate: str | None
    n_erased: int
    seconds: float
    facts: dict[str, Any] | None


@dataclass(frozen=True)
class CertificateRecord:
    """Where a certificate stands.

    Attributes
    ----------
    sequence, id
        Number and id.
    tenant, model : str
        Whose certificate it is.
    version : int
        Number of the version that it certifies.
    batch : str
        The batch.
    first, retrain, before : int or None
        Certificates of the same model: the first, the last retrain before, and the one before.
    """

    sequence: int
    id: str
    tenant: str
    model: str
    version: int
    batch: str
    first: int
    retrain: int | None
    before: int | None


@dataclass(frozen=True)
class PurgeRecord:
    """A certificate, and the purge that follows it.

    Attributes
    ----------
    sequence : int
        Number of the certificate.
    tenant, model : str
        Whose it is.
    envelope : bytes or None
        The attestation; None while the purge is not done.
    evidence : dict of str to dict
        What the steps noted: `stores` by name, and `scan`.
    """

    sequence: int
    tenant: str
    model: str
    envelope: bytes | None
    evidence: dict[str, dict[str, Any]]


class CheckpointRecord(NamedTuple):
    """A signed checkpoint of the log, in the form of a C2SP note."""

    size: int
    root: str
    note: str
    at: int


def version_records(
    ledger: "Ledger",
    model: str,
    *,
    tenant: str = "default",
    before: int | None = None,
    numbers: Sequence[int] | None = None,
    limit: int = 50,
) -> list[VersionRecord]:
    """Return versions of a model, newest first.

    Parameters
    ----------
    ledger : Ledger
        The ledger.
    model, tenant : str
        The model.
    before : int, optional
        Only versions with a lower number.
    numbers : sequence of int, optional
        Only these.
    limit : int, default=50
        At most so many.
    """
    with ledger._core.database.reading() as conn:
        row = find_model(conn, model, tenant)
        wanted = versions.c.model_id == row.id
        if before is not None:
            wanted &= versions.c.number < before
        if numbers is not None:
            wanted &= versions.c.number.in_(numbers)
        query = _with_neighbours(wanted).order_by(versions.c.number.desc()).limit(limit)
        found = conn.execute(query).mappings().all()
    return [_version_record(row, dict(one)) for one in found]


def _with_neighbours(wanted: ColumnElement[bool]) -> Select[Any]:
    return (
        select(
            versions,
            batches.c.kind.label("_kind"),
            certificates.c.id.label("_certificate"),
        )
        .outerjoin(batches, batches.c.id == versions.c.batch_id)
        .outerjoin(certificates, certificates.c.version_id == versions.c.id)
        .where(wanted)
    )


def _version_record(model: ModelRow, found: dict[str, Any]) -> VersionRecord:
    kind, certificate = found.pop("_kind"), found.pop("_certificate")
    version = VersionRow(**{**found, "facts": parse_strict(found["facts"].encode())})
    facts = version.facts["certificate"]
    return VersionRecord(
        info=version_info(version),
        kind=kind or "registration",
        batch=version.batch_id,
        certificate=certificate,
        n_erased=0 if facts is None else int(facts["rows"]),
        seconds=float(version.run["seconds"]),
        facts=None if facts is None else _published(facts, model, kind),
    )


def _published(facts: dict[str, Any], model: ModelRow, kind: str) -> dict[str, Any]:
    """Return facts as a certificate shows them: the operator's releases, a coarse account."""
    guarantee = facts["guarantee"]
    keeps = kind == "retrain" and model.releases == "every-version"
    shown = guarantee | {
        "releases": guarantee["releases"] if keeps else model.releases,
        "accounting": published_account(guarantee["accounting"]),
    }
    return facts | {"guarantee": shown}


def claims_of_head(ledger: "Ledger", model: str, *, tenant: str = "default") -> dict[str, Any]:
    """Return what the model that is served claims about its next removal.

    It is the `guarantee` part that a certificate would have now: also for a model that was only
    registered, or has just been retrained. The model is read once per version.
    """
    core, row = ledger._core, ledger._row(model, tenant)

    def read(head: VersionRow) -> dict[str, Any]:
        found = _claims.get(head.model_blob)
        if found is None:
            if len(_claims) >= _MOST_KNOWN:
                _claims.clear()
            claim = claim_of(read_model(core, row, head), "erase")
            section = guarantee_section(claim, since_retrain=head.run["rows_since_retrain"])
            found = _claims[head.model_blob] = section
        account = published_account(found["accounting"])
        if "spent" in account and head.run["rows_since_retrain"] == 0:
            account["spent"] = "0"  # nobody left, so there is nobody to be told apart
        return found | {"releases": row.releases, "accounting": account}

    return read_head(core, row, read)


def spending(
    ledger: "Ledger", model: str, *, tenant: str = "default", newest: int = 200
) -> list[tuple[int, float]]:
    """Return when how much of the budget was spent since the last retrain, oldest first.

    The figures are finer than those of certificates: they are for forecasts, not for showing.
    """
    with ledger._core.database.reading() as conn:
        row = find_model(conn, model, tenant)
        head = head_of(conn, row.id)
        last = head.run["last_retrain_sequence"]
        fresh = func.coalesce(versions.c.sequence, 0) >= last
        query = select(versions.c.published_at, versions.c.facts).where(
            (versions.c.model_id == row.id) & fresh
        )
        found = conn.execute(query.order_by(versions.c.number.desc()).limit(newest)).all()
    return [(at, _spent(parse_strict(facts.encode())["certificate"])) for at, facts in found][::-1]


def _spent(facts: dict[str, Any] | None) -> float:
    return 0.0 if facts is None else float(facts["guarantee"]["accounting"].get("spent", 0))


def requests_by_model(
    ledger: "Ledger", *, tenant: str | None = None
) -> dict[tuple[str, str], dict[str, int]]:
    """Count requests by (tenant, model) and state, in one reading; of one tenant if given."""
    query = (
        select(models.c.tenant, models.c.name, requests.c.state, func.count().label("n"))
        .join(models, models.c.id == requests.c.model_id)
        .group_by(requests.c.model_id, requests.c.state, models.c.tenant, models.c.name)
    )
    if tenant is not None:
        query = query.where(models.c.tenant == tenant)
    counts: dict[tuple[str, str], dict[str, int]] = {}
    with ledger._core.database.reading() as conn:
        for row in conn.execute(query):
            counts.setdefault((row.tenant, row.name), {})[row.state] = row.n
    return counts


def certificate_record(ledger: "Ledger", sequence: int) -> CertificateRecord | None:
    """Return where a certificate stands; None if there is none of that number."""
    with ledger._core.database.reading() as conn:
        query = (
            select(
                certificates.c.sequence,
                certificates.c.id,
                models.c.tenant,
                models.c.name.label("model"),
                versions.c.number.label("version"),
                versions.c.batch_id.label("batch"),
                versions.c.model_id,
            )
            .join(versions, versions.c.id == certificates.c.version_id)
            .join(models, models.c.id == versions.c.model_id)
            .where(certificates.c.sequence == sequence)
        )
        found = conn.execute(query).mappings().one_or_none()
        if found is None:
            return None
        values = dict(found)
        line = _line(conn, values.pop("model_id"), sequence)
    return CertificateRecord(**values, **line._asdict())


class _Line(NamedTuple):
    """Certificates of a model that the next one must continue."""

    first: int
    retrain: int | None
    before: int | None


def _line(conn: Connection, model_id: int, sequence: int) -> _Line:
    mine = versions.c.model_id == model_id
    earlier = mine & (versions.c.sequence < sequence)
    newest = select(func.max(versions.c.sequence)).where(earlier)
    retrains = newest.join(batches, batches.c.id == versions.c.batch_id)
    return _Line(
        conn.execute(select(func.min(versions.c.sequence)).where(mine)).scalar_one(),
        conn.scalar(retrains.where(batches.c.kind == "retrain")),
        conn.scalar(newest),
    )


def envelopes(ledger: "Ledger", first: int, last: int) -> dict[int, bytes]:
    """Return the certificates with numbers from `first` to `last`."""
    query = select(certificates.c.sequence, certificates.c.envelope).where(
        certificates.c.sequence.between(first, last)
    )
    with ledger._core.database.reading() as conn:
        return {sequence: bytes(envelope) for sequence, envelope in conn.execute(query)}


def purge_records(
    ledger: "Ledger",
    *,
    tenant: str | None = None,
    model: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[PurgeRecord]:
    """Return certificates with their purges, newest first; those of a tenant or a model only."""
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
        .order_by(certificates.c.sequence.desc())
        .limit(limit)
    )
    for column, value in ((models.c.tenant, tenant), (models.c.name, model)):
        if value is not None:
            query = query.where(column == value)
    if before is not None:
        query = query.where(certificates.c.sequence < before)
    with ledger._core.database.reading() as conn:
        found = conn.execute(query).all()
        noted = _evidence(conn, [row.batch_id for row in found])
    return [
        PurgeRecord(
            row.sequence,
            row.tenant,
            row.name,
            None if row.envelope is None else bytes(row.envelope),
            noted.get(row.batch_id, {}) if row.envelope is not None else {},
        )
        for row in found
    ]


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


def latest_checkpoint(ledger: "Ledger") -> CheckpointRecord | None:
    """Return the newest checkpoint of the log; None before the first."""
    query = select(checkpoints).order_by(checkpoints.c.size.desc()).limit(1)
    with ledger._core.database.reading() as conn:
        found = conn.execute(query).mappings().one_or_none()
    return None if found is None else CheckpointRecord(**found)


def event_at(ledger: "Ledger", index: int) -> bytes | None:
    """Return the event in a place of the log, as its leaf hashes it; None if there is none."""
    query = select(events.c.body).where(events.c.log_index == index)
    with ledger._core.database.reading() as conn:
        found = conn.scalar(query)
    return None if found is None else str(found).encode()


def trust_of(ledger: "Ledger") -> Trust:
    """Return the keys that follow from the ledger's first public key, as a stranger finds them."""
    return Trust.from_pinned(ledger.public_key, ledger._core.keys.statements())


def sequences_between(
    ledger: "Ledger", model: str, first: int, last: int, *, tenant: str = "default"
) -> list[int]:
    """Return the numbers of the certificates of versions after `first`, up to `last`."""
    with ledger._core.database.reading() as conn:
        row = find_model(conn, model, tenant)
        query = select(versions.c.sequence).where(
            versions.c.model_id == row.id,
            versions.c.number > first,
            versions.c.number <= last,
            versions.c.sequence.is_not(None),
        )
        return [int(one) for one in conn.scalars(query.order_by(versions.c.number))]
