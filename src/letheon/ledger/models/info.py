"""What a ledger tells about its models and versions."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Select, select

from letheon.ledger.core import Core
from letheon.ledger.models.versions import ModelRow, VersionRow, model_row
from letheon.ledger.tables import heads, models, versions
from letheon.verifier import MAX_INT

__all__ = [
    "KeyInfo",
    "ModelInfo",
    "VersionInfo",
    "all_models",
    "key_infos",
    "model_info",
    "model_infos",
    "version_info",
    "version_infos",
]


@dataclass(frozen=True)
class VersionInfo:
    """One published state of a model.

    Attributes
    ----------
    number : int
        0 is the registration.
    sequence : int or None
        Number of its certificate; None for the registration.
    address : str
        SHA-256 of the model's file, nonce included, as the certificate quotes it.
    live : int
        Rows that it was trained on.
    published_at, certified_at, purged_at : datetime or None
        When it was published, certified, and destroyed.
    """

    number: int
    sequence: int | None
    address: str
    live: int
    published_at: datetime
    certified_at: datetime | None
    purged_at: datetime | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in vars(self).items()
        }


@dataclass(frozen=True)
class ModelInfo:
    """A registered model.

    Attributes
    ----------
    name, tenant, dataset, method : str
        What it is called, whose it is, and how it forgets.
    releases : str
        What of it is released: "labels-only", "latest-only" or "every-version".
    n_rows : int
        Rows in the version that is served.
    slots : int
        Slots of the commitment to its rows.
    head : VersionInfo
        The version that is served.
    registered_at : datetime
        When it was registered.
    """

    name: str
    tenant: str
    dataset: str
    method: str
    releases: str
    n_rows: int
    slots: int
    head: VersionInfo
    registered_at: datetime

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return vars(self) | {
            "head": self.head.to_dict(),
            "registered_at": self.registered_at.isoformat(),
        }


@dataclass(frozen=True)
class KeyInfo:
    """A key that certificates are, or were, signed with.

    Attributes
    ----------
    keyid : str
        SHA-256 of the public key.
    public : str
        The public key, in hexadecimal digits.
    state : {"current", "retired", "revoked"}
        What became of it.
    first, last : int or None
        The certificates, by number, that it may sign; `last` is None for the current key.
    """

    keyid: str
    public: str
    state: str
    first: int
    last: int | None


def key_infos(core: Core) -> tuple[KeyInfo, ...]:
    """Return what is told about the signing keys, the first one first."""
    trust = core.keys.trust()

    def state_of(keyid: str) -> str:
        if trust.keys[keyid].revoked:
            return "revoked"
        return "current" if keyid == trust.current else "retired"

    return tuple(
        KeyInfo(
            keyid,
            key.public.hex(),
            state_of(keyid),
            key.first,
            None if key.last == MAX_INT else key.last,
        )
        for keyid, key in trust.keys.items()
    )


# Without the facts: to parse them costs more than all the rest.
_VERSION = (
    versions.c.number,
    versions.c.sequence,
    versions.c.model_blob,
    versions.c.live,
    versions.c.published_at,
    versions.c.certified_at,
    versions.c.purged_at,
)
_MODEL = tuple(
    models.c[name]
    for name in ("name", "tenant", "dataset", "method", "releases", "slots", "created_at")
)


def _when(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def version_info(version: VersionRow) -> VersionInfo:
    """Return what is told about a version."""
    return _version_info(version)


def _version_info(version: Any) -> VersionInfo:
    return VersionInfo(
        number=version.number,
        sequence=version.sequence,
        address=version.model_blob,
        live=version.live,
        published_at=datetime.fromtimestamp(version.published_at, UTC),
        certified_at=_when(version.certified_at),
        purged_at=_when(version.purged_at),
    )


def version_infos(
    conn: Connection, model_id: int, *, after: int | None = None, limit: int | None = None
) -> list[VersionInfo]:
    """Return what is told about the versions of a model after a number, oldest first."""
    query = select(*_VERSION).where(versions.c.model_id == model_id).order_by(versions.c.number)
    if after is not None:
        query = query.where(versions.c.number > after)
    return [_version_info(row) for row in conn.execute(query.limit(limit))]


def model_info(conn: Connection, model: ModelRow) -> ModelInfo:
    """Return what is told about a model."""
    return _model_info(conn.execute(_models_query().where(models.c.id == model.id)).one())


def model_infos(conn: Connection, tenant: str | None = None) -> list[ModelInfo]:
    """Return what is told about all models, or those of a tenant, oldest first."""
    query = _models_query().order_by(models.c.id)
    if tenant is not None:
        query = query.where(models.c.tenant == tenant)
    return [_model_info(row) for row in conn.execute(query)]


def _models_query() -> Select[Any]:
    return (
        select(*_MODEL, *_VERSION)
        .join(heads, heads.c.model_id == models.c.id)
        .join(versions, versions.c.id == heads.c.version_id)
    )


def _model_info(row: Any) -> ModelInfo:
    return ModelInfo(
        name=row.name,
        tenant=row.tenant,
        dataset=row.dataset,
        method=row.method,
        releases=row.releases,
        n_rows=row.live,
        slots=row.slots,
        head=_version_info(row),
        registered_at=datetime.fromtimestamp(row.created_at, UTC),
    )


def all_models(conn: Connection, tenant: str | None = None) -> list[ModelRow]:
    """Return all models, or those of a tenant, in the order of their registration."""
    query = select(models).order_by(models.c.id)
    if tenant is not None:
        query = query.where(models.c.tenant == tenant)
    return [model_row(dict(row)) for row in conn.execute(query).mappings()]
