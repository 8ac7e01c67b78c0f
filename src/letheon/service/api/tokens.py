"""Tokens."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from letheon.service.auth import Principal, allows
from letheon.service.auth import context
from letheon.service.schemas import Page
from letheon.service.desk import tokens as desk
from letheon.service.desk.tokens import Name, TokenIn, TokenMade, TokenOut

router = APIRouter(tags=["tokens"])

Manager = Annotated[Principal, Depends(allows("tokens:manage"))]


@router.get("/api/v1/tokens", summary="List tokens")
def list_tokens(
    request: Request,
    who: Manager,
    tenant: Annotated[Name | None, Query(description="Of one tenant only.")] = None,
    after: Annotated[str | None, Query(pattern="^[0-9a-f]{16}$")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Page[TokenOut]:
    """Return tokens, newest first; their texts are not kept."""
    return desk.page_of_tokens(context(request), who, tenant=tenant, after=after, limit=limit)


@router.post("/api/v1/tokens", summary="Make a token", status_code=201)
def make_token(request: Request, who: Manager, wanted: TokenIn) -> TokenMade:
    """Make a token; the answer holds its text, which is shown this once."""
    return desk.add_token(context(request), who, wanted)


@router.delete("/api/v1/tokens/{token_id}", summary="Revoke a token", status_code=204)
def revoke_token(
    request: Request,
    who: Manager,
    token_id: str,
    descendants: Annotated[
        bool, Query(description="Whether those that were made with it are taken back too.")
    ] = False,
) -> None:
    """Take a token back at once, with the sessions that were opened with it."""
    desk.revoke_token(context(request), who, token_id, descendants=descendants)
