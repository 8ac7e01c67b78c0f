"""The map of residue: stores by purges."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from letheon.service.auth import Principal, context
from letheon.service.desk.residue import residue
from letheon.service.pages._shared import page, page_allows
from letheon.service.pages._where import After, ModelFilter, Tenant, address

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

# Columns that can be read without scrolling far.
_PURGES = 6


@router.get("/residue")
def show_residue(
    request: Request,
    who: Annotated[Principal, Depends(page_allows("certificates:read"))],
    tenant: Tenant = None,
    model: ModelFilter = None,
    after: After = None,
) -> Response:
    """Show what each purge found in each store, newest purge first."""
    query = {"tenant": tenant, "model": model or None}
    found = residue(
        context(request), who, tenant=tenant, model=model or None, after=after, limit=_PURGES
    )
    return page(
        request,
        "residue.html",
        who,
        json=address("/api/v1/residue", after=after, **query),
        found=found,
        cells={
            (cell.store, purge.certificate): cell for purge in found.purges for cell in purge.cells
        },
        first=address("/residue", **query) if after else None,
        next=address("/residue", after=found.next, **query) if found.next else None,
    )
