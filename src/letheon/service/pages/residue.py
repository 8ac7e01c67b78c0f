"""The map of residue: stores by purges."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from letheon.service._auth import Principal
from letheon.service.pages._shared import (
    After,
    ModelFilter,
    Tenant,
    address,
    page,
    page_allows,
    page_links,
)
from letheon.service.routes.residue import show_residue as read_residue

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
    found = read_residue(request, who, **query, after=after, limit=_PURGES)
    return page(
        request,
        "residue.html",
        who,
        json=address("/api/v1/residue", after=after, **query),
        found=found,
        cells={
            (cell.store, purge.certificate): cell for purge in found.purges for cell in purge.cells
        },
        **page_links("/residue", after, found.next, query),
    )
