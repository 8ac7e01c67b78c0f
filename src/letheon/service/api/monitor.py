"""Measures over time."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from letheon.service.auth import Principal, allows
from letheon.service.auth import context
from letheon.service.desk import monitor as desk
from letheon.service.schemas import Name
from letheon.service.desk.monitor import HistoryOut

router = APIRouter(tags=["models"])


@router.get("/api/v1/models/{model}/history", summary="Show measures over time")
def show_history(
    request: Request,
    who: Annotated[Principal, Depends(allows("monitor:read"))],
    model: Name,
    tenant: Annotated[
        Name | None, Query(description="Whose; default: your own, or `default`.")
    ] = None,
    after: Annotated[str | None, Query(pattern="^[0-9]{1,15}$")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 200,
) -> HistoryOut:
    """Return the four measures of each version with what they rest on, and what is tolerated."""
    return desk.history(context(request), who, model, tenant=tenant, after=after, limit=limit)
