"""Batches, as their users see them: page by page, newest first."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, select, tuple_

from letheon.exceptions import LedgerMissingError
from letheon.ledger.core import Core
from letheon.ledger.db.cursor import cursor, place_of, require_limit
from letheon.ledger.tables import batches, certificates, models, requests, versions

__all__ = ["BatchInfo", "BatchPage", "batch_info", "batch_page"]

_LIST = "batches"


@dataclass(frozen=True)
class BatchInfo:
    """Requests that are erased together, or a retrain.

    Attributes
    ----------
    id : str
        64 hexadecimal digits.
    model, tenant : str
        From what, and whose it is.
    kind : {"erase", "retrain"}
        What is done.
    state : {"open", "published", "certified", "purged", "abandoned"}
        How far it is.
    reason : str
        Why it was sealed, a code.
    created_at : datetime
        When it was sealed.
    n_requests, n_rows : int
        Requests in it, and the rows that left the model with it; before that, the rows of its
        requests.
    version, certificate : int or None
        Number of the version that it made, and of the certificate.
    """

    id: str
    model: str
    tenant: str
    kind: str
    state: str
    reason: str
    created_at: datetime
    n_requests: int
    n_rows: int
    version: int | None
    certificate: int | None


@dataclass(frozen=True)
class BatchPage:
    """Some batches of a list: `items`, the cursor of the `next` page if any, and their `total`."""

    items: tuple[BatchInfo, ...]
    next: str | None
    total: int


def batch_page(
    core: Core,
    *,
    tenant: str | None = None,
    model: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> BatchPage:
    """Return one page of batches, newest first."""
    require_limit(limit)
    key = tuple_(batches.c.created_at, batches.c.id)
    wanted = _wanted(tenant, model)
    start = and_(True) if after is None else key < place_of(core, _LIST, after)
    newest = (batches.c.created_at.desc(), batches.c.id.desc())
    with core.database.reading() as conn:
        query = _query().where(wanted, start).order_by(*newest).limit(limit + 1)
        rows = conn.execute(query).all()
        items = tuple(_info(conn, row) for row in rows[:limit])
        everything = select(func.count()).select_from(batches).join(models)
        total = conn.scalar(everything.where(wanted)) or 0
    last = rows[limit - 1] if len(rows) > limit else None
    more = None if last is None else cursor(core, _LIST, (last.created_at, last.id))
    return BatchPage(items, more, total)


def batch_info(core: Core, batch_id: str, *, tenant: str | None = None) -> BatchInfo:
    """Return one batch, or raise `LedgerMissingError`; another tenant's is as if it were none."""
    with core.database.reading() as conn:
        query = _query().where(batches.c.id == str(batch_id), _wanted(tenant, None))
        row = conn.execute(query).first()
        if row is None:
            raise LedgerMissingError("there is no batch of that id in this ledger")
        return _info(conn, row)


def _wanted(tenant: str | None, model: str | None) -> ColumnElement[bool]:
    pairs = ((models.c.tenant, tenant), (models.c.name, model))
    return and_(True, *(column == value for column, value in pairs if value is not None))


def _query() -> Select[Any]:
    parent = versions.alias("parent")
    return (
        select(
            batches,
            models.c.name,
            models.c.tenant,
            versions.c.number,
            certificates.c.sequence,
            (parent.c.live - versions.c.live).label("n_erased"),
        )
        .join(models, models.c.id == batches.c.model_id)
        .outerjoin(versions, versions.c.batch_id == batches.c.id)
        .outerjoin(parent, parent.c.id == versions.c.parent_id)
        .outerjoin(certificates, certificates.c.version_id == versions.c.id)
    )


def _info(conn: Connection, row: Row[Any]) -> BatchInfo:
    mine = requests.c.batch_id == row.id
    n_rows = row.n_erased
    if n_rows is None:  # not published; otherwise many requests need not be added up
        n_rows = int(conn.scalar(select(func.sum(requests.c.n_rows)).where(mine)) or 0)
    return BatchInfo(
        id=row.id,
        model=row.name,
        tenant=row.tenant,
        kind=row.kind,
        state=row.state,
        reason=row.reason,
        created_at=datetime.fromtimestamp(row.created_at, UTC),
        n_requests=conn.scalar(select(func.count()).where(mine)) or 0,
        n_rows=n_rows,
        version=row.number,
        certificate=row.sequence,
    )
