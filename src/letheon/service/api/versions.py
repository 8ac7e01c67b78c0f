"""Versions of a model."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

from letheon.service.auth import Principal, allows
from letheon.service.auth import context
from letheon.service.schemas import Page
from letheon.service.desk import versions as desk
from letheon.service.schemas import Name
from letheon.service.desk.versions import ComparisonOut, VersionOut
from letheon.verifier import MAX_INT

router = APIRouter(tags=["models"])

# Not models:read, by which a requester sees names only.
Reader = Annotated[Principal, Depends(allows("monitor:read"))]
Tenant = Annotated[Name | None, Query(description="Whose; default: your own, or `default`.")]
Number = Annotated[int, Query(ge=0, le=MAX_INT)]


@router.get("/api/v1/models/{model}/versions", summary="List versions")
def list_versions(
    request: Request,
    who: Reader,
    model: Name,
    tenant: Tenant = None,
    after: Annotated[str | None, Query(pattern="^[0-9]{1,15}$")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Page[VersionOut]:
    """Return versions of a model, newest first, with what was certified about each."""
    return desk.page_of_versions(
        context(request), who, model, tenant=tenant, after=after, limit=limit
    )


@router.get("/api/v1/models/{model}/versions/{number}", summary="Show a version")
def show_version(
    request: Request,
    who: Reader,
    model: Name,
    number: Annotated[int, Path(ge=0, le=MAX_INT)],
    tenant: Tenant = None,
) -> VersionOut:
    """Return one version."""
    return desk.find_version(context(request), who, model, number, tenant=tenant)


@router.get("/api/v1/models/{model}/compare", summary="Compare two versions")
def compare_versions(
    request: Request, who: Reader, model: Name, a: Number, b: Number, tenant: Tenant = None
) -> ComparisonOut:
    """Return two versions side by side, what changed, and what was certified in between."""
    return desk.compare(context(request), who, model, a, b, tenant=tenant)
