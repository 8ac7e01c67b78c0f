"""Public keys."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from letheon.service.auth import Principal, allows
from letheon.service.auth import context
from letheon.service.desk import keys as desk
from letheon.service.desk.keys import KeysOut

router = APIRouter(tags=["certificates"])


@router.get("/api/v1/keys", summary="List public keys")
def list_keys(
    request: Request, who: Annotated[Principal, Depends(allows("certificates:read"))]
) -> KeysOut:
    """Return the keys that certificates are signed with; pin the first, from another source."""
    return desk.keys(context(request), who)
