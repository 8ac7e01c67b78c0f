"""Two versions of a model side by side."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from letheon.service._auth import Principal
from letheon.service._context import context
from letheon.service.desk import versions
from letheon.service.pages._shared import Model, Tenant, address, page, page_allows

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

Number = Annotated[int, Query(ge=0, le=2**31)]


@router.get("/models/{model}/compare")
def compare_versions(
    request: Request,
    who: Annotated[Principal, Depends(page_allows("monitor:read"))],
    model: Model,
    a: Number,
    b: Number,
    tenant: Tenant = None,
) -> Response:
    """Show what changed from one version to another."""
    found = versions.compare(context(request), who, model, a, b, tenant=tenant)
    return page(
        request,
        "compare.html",
        who,
        json=address(f"/api/v1/models/{found.model}/compare", a=a, b=b, tenant=tenant),
        found=found,
        back=address(f"/models/{found.model}", tenant=tenant),
        query={"tenant": tenant},
    )
