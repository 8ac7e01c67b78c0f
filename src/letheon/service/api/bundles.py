"""Bundles for strangers and auditors."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from letheon.service.auth import Principal, allows, context
from letheon.service.desk import bundles as desk
from letheon.service.desk.bundles import Tier

router = APIRouter(tags=["certificates"])

_ZIP: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A zip file with the folder that `letheon audit` and verifier.py check.",
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get("/api/v1/bundle", summary="Download a bundle", response_class=Response, responses=_ZIP)
def download_bundle(
    request: Request,
    who: Annotated[Principal, Depends(allows("certificates:read", is_long=True))],
    tier: Annotated[
        Tier,
        Query(description="The auditor's holds rows of people, and needs the scope bundles:read."),
    ] = "public",
) -> Response:
    """Return what a stranger, or an auditor, needs to verify the ledger without it.

    The auditor's bundle is personal data, handed over in custody: its export is an event of the
    log, and it is to be destroyed within thirty days.
    """
    return desk.open_bundle(context(request), who, tier)
