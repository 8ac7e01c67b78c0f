"""`Ledger.batches`: requests that are erased together, page by page, newest first."""

from typing import Any

from sqlalchemy import Connection, Row, Select, and_, func, select, tuple_

from letheon.exceptions import LedgerMissingError
from letheon.ledger.certificates.certificates import is_of
from letheon.ledger.core import Core
from letheon.ledger.db.cursor import cursor, place_of, require_limit
from letheon.ledger.schemas import Batch, Page, moment
from letheon.ledger.tables import batches, certificates, models, requests, versions

_LIST = "batches"


class Batches:
    """The batches of a ledger.

    Parameters
    ----------
    core : Core
        The ledger.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def list(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Page[Batch]:
        """Return one page of batches, newest first; those of a tenant or a model if given."""
        require_limit(limit)
        core, wanted = self._core, is_of(tenant, model)
        key = tuple_(batches.c.created_at, batches.c.id)
        start = and_(True) if after is None else key < place_of(core, _LIST, after)
        newest = (batches.c.created_at.desc(), batches.c.id.desc())
        with core.database.reading() as conn:
            query = _query().where(wanted, start).order_by(*newest).limit(limit + 1)
            rows = conn.execute(query).all()
            items = tuple(_batch(conn, row) for row in rows[:limit])
            everything = select(func.count()).select_from(batches).join(models)
            total = conn.scalar(everything.where(wanted)) or 0
        last = rows[limit - 1] if len(rows) > limit else None
        more = None if last is None else cursor(core, _LIST, (last.created_at, last.id))
        return Page(items, more, total)

    def get(self, batch_id: str, *, tenant: str | None = None) -> Batch:
        """Return one batch, or raise `LedgerMissingError`; another tenant's does not exist."""
        with self._core.database.reading() as conn:
            query = _query().where(batches.c.id == str(batch_id), is_of(tenant, None))
            row = conn.execute(query).first()
            if row is None:
                raise LedgerMissingError("there is no batch of that id in this ledger")
            return _batch(conn, row)


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


def _batch(conn: Connection, row: Row[Any]) -> Batch:
    mine = requests.c.batch_id == row.id
    n_rows = row.n_erased
    if n_rows is None:  # not published; otherwise many requests need not be added up
        n_rows = int(conn.scalar(select(func.sum(requests.c.n_rows)).where(mine)) or 0)
    return Batch(
        id=row.id,
        model=row.name,
        tenant=row.tenant,
        kind=row.kind,
        state=row.state,
        reason=row.reason,
        created_at=moment(row.created_at),
        n_requests=conn.scalar(select(func.count()).where(mine)) or 0,
        n_rows=n_rows,
        version=row.number,
        certificate=row.sequence,
    )
