"""Batches."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

from letheon.service.auth import Principal, allows
from letheon.service.auth import context
from letheon.service.schemas import Page
from letheon.service.desk import batches as desk
from letheon.service.desk.batches import BatchOut
from letheon.service.schemas import Name

router = APIRouter(tags=["batches"])

Reader = Annotated[Principal, Depends(allows("batches:read"))]


@router.get("/api/v1/batches", summary="List batches")
def list_batches(
    request: Request,
    who: Reader,
    tenant: Annotated[Name | None, Query(description="Of one tenant only.")] = None,
    model: Annotated[Name | None, Query(description="Of one model only.")] = None,
    after: Annotated[str | None, Query(max_length=400)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Page[BatchOut]:
    """Return batches, newest first."""
    return desk.page_of_batches(
        context(request), who, tenant=tenant, model=model, after=after, limit=limit
    )


@router.get("/api/v1/batches/{batch_id}", summary="Show a batch")
def show_batch(
    request: Request, who: Reader, batch_id: Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
) -> BatchOut:
    """Return one batch."""
    return desk.find_batch(context(request), who, batch_id)
