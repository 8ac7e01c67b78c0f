"""What purges found."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from letheon.service.auth import Principal, allows, context
from letheon.service.desk import residue as desk
from letheon.service.desk.residue import ResidueOut
from letheon.service.schemas import Name

router = APIRouter(tags=["certificates"])


@router.get("/api/v1/residue", summary="Show what purges found in each store")
def show_residue(
    request: Request,
    who: Annotated[Principal, Depends(allows("certificates:read"))],
    tenant: Annotated[Name | None, Query(description="Of one tenant only.")] = None,
    model: Annotated[Name | None, Query(description="Of one model only.")] = None,
    after: Annotated[str | None, Query(pattern="^[0-9]{1,15}$")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> ResidueOut:
    """Return stores by purges, from the signed attestations; the newest purge first."""
    return desk.residue(context(request), who, tenant=tenant, model=model, after=after, limit=limit)
