"""Batches of requests that were applied together."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from letheon.exceptions import LedgerMissingError
from letheon.ledger import BatchInfo
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._numbers import Numbers
from letheon.service._problems import Problem
from letheon.service._schemas import Out, Page

__all__ = ["BatchOut", "find_batch", "page_of_batches"]


class BatchOut(Out):
    """A batch; counts only."""

    id: str
    model: str
    tenant: str
    kind: Literal["erase", "retrain"]
    state: Literal["open", "published", "certified", "purged", "abandoned"]
    reason: str = Field(description="Why it was sealed then, a code.")
    created_at: datetime
    n_requests: int = Field(ge=0)
    n_rows: int = Field(ge=0)
    version: int | None = Field(description="Number of the version that it made.")
    certificate: int | None = Field(description="Number of its certificate.")


def page_of_batches(
    context: Context,
    who: Principal,
    *,
    tenant: str | None = None,
    model: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[BatchOut]:
    """Return batches, newest first."""
    try:
        found = context.ledger.batches(
            tenant=who.tenant_filter(tenant), model=model, after=after, limit=limit
        )
    except ValueError as error:
        raise _cursor() from error
    numbers = Numbers(context, who)
    items = [_out(one, numbers) for one in found.items]
    return Page(items=items, next=found.next, total=found.total)


def find_batch(context: Context, who: Principal, batch_id: str) -> BatchOut:
    """Return one batch; another tenant's is as if it were not there."""
    try:
        info = context.ledger.batch(batch_id, tenant=who.tenant)
    except LedgerMissingError as error:
        raise _unknown() from error
    return _out(info, Numbers(context, who))


def _out(info: BatchInfo, numbers: Numbers) -> BatchOut:
    shown = BatchOut.model_validate(info)
    return shown.model_copy(update={"certificate": numbers.shown(shown.certificate)})


def _unknown() -> Problem:
    return Problem(
        404, "unknown-batch", "no such batch", "GET /api/v1/batches lists those that you see."
    )


def _cursor() -> Problem:
    return Problem(422, "cursor", "after cannot be used", "Give back `next` as it was given.")
