"""Models: all of them, and one with its versions, its guarantee and its figures over time."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from letheon.service._auth import Principal
from letheon.service._context import context
from letheon.service._schemas import Page
from letheon.service.desk import models, monitor, versions
from letheon.service.desk.versions import VersionOut
from letheon.service.pages._shared import MEASURES, After, Model, Tenant, address, page, page_allows

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_PAGE = 25
# Versions in the charts: more would not be told apart.
_CHARTED = 200


@router.get("/models")
def show_models(
    request: Request,
    who: Annotated[Principal, Depends(page_allows("models:read"))],
    tenant: Tenant = None,
    after: After = None,
) -> Response:
    """Show the models; a requester sees their names."""
    found = models.list_models(context(request), who, tenant=tenant, after=after, limit=_PAGE)
    return page(
        request,
        "models.html",
        who,
        json=address("/api/v1/models", tenant=tenant, after=after),
        found=found,
        sees_details=all(one.guarantee is not None for one in found.items),
        first=address("/models", tenant=tenant) if after else None,
        next=address("/models", tenant=tenant, after=found.next) if found.next else None,
    )


@router.get("/models/{model}")
def show_model(
    request: Request,
    who: Annotated[Principal, Depends(page_allows("models:read"))],
    model: Model,
    tenant: Tenant = None,
    after: After = None,
) -> Response:
    """Show one model; versions and figures only to those who may see them."""
    desk = context(request)
    found = models.find_model(desk, who, model, tenant=tenant)
    here = address(f"/models/{found.name}", tenant=tenant)
    shown = past = None
    if who.may("monitor:read"):
        shown = versions.page_of_versions(desk, who, model, tenant=tenant, after=after, limit=_PAGE)
        past = monitor.history(desk, who, model, tenant=tenant, limit=_CHARTED)
    return page(
        request,
        "model.html",
        who,
        json=address(f"/api/v1/models/{found.name}", tenant=tenant),
        model=found,
        versions=shown,
        past=past,
        tolerances={} if past is None else {one.measure: one for one in past.tolerances},
        measures=MEASURES,
        query={"tenant": tenant},
        first=here if after else None,
        next=_next(found.name, tenant, shown),
    )


def _next(model: str, tenant: str | None, shown: Page[VersionOut] | None) -> str | None:
    if shown is None or shown.next is None:
        return None
    return address(f"/models/{model}", tenant=tenant, after=shown.next) + "#versions"
