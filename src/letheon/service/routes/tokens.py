"""Tokens: made by a token that holds at least as much, and shown once."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from letheon.ledger.db.tokens import ROLES, SCOPES, Token, require_scopes
from letheon.service.auth import Principal, allows
from letheon.service.errors import Problem, cursor_problem
from letheon.service.schemas import In, Limit, Name, Page, TenantFilter

router = APIRouter(tags=["tokens"])

Manager = Annotated[Principal, Depends(allows("tokens:manage"))]
Scope = Annotated[str, Field(pattern=f"^({'|'.join(SCOPES)})$")]


class TokenIn(In):
    """A token that is wanted."""

    name: Name = Field(description="What it is called in lists; no name of a person.")
    role: str = Field(pattern=f"^({'|'.join(ROLES)})$")
    scopes: list[Scope] | None = Field(
        default=None, max_length=32, description="Fewer than the role's; null for all of them."
    )
    tenant: Name | None = Field(default=None, description="Whose things it sees; null: all.")
    days: int | None = Field(default=None, ge=1, le=3650, description="How long it is valid.")


@dataclass(frozen=True)
class TokenMade(Token):
    """A token that was just made.

    Attributes
    ----------
    token : str
        The text to be sent; it is shown this once.
    """

    token: str


@router.get("/api/v1/tokens", summary="List tokens")
def list_tokens(
    who: Manager,
    tenant: TenantFilter = None,
    after: Annotated[str | None, Query(pattern="^[0-9a-f]{16}$")] = None,
    limit: Limit = 50,
) -> Page[Token]:
    """Return tokens, newest first; their texts are not kept."""
    wanted = who.tenant_filter(tenant)
    try:
        tokens = who.desk.tokens.listed(tenant=wanted, after=after, limit=limit + 1)
    except ValueError as error:
        raise cursor_problem(error) from error
    return Page.cut(tokens, limit, key=lambda one: one.id)


@router.post("/api/v1/tokens", summary="Make a token", status_code=201)
def make_token(who: Manager, wanted: TokenIn) -> TokenMade:
    """Make a token; the answer holds its text, which is shown this once."""
    desk = who.desk
    tenant = wanted.tenant if who.tenant is None else who.tenant_for(wanted.tenant)
    try:
        scopes = require_scopes(wanted.role, wanted.scopes)
    except ValueError as error:
        raise Problem(422, "scopes", "the scopes cannot be given", str(error)) from error
    _require_within(who, scopes, "nobody grants more than they hold")
    if who.role != "admin" and wanted.role == "admin":
        raise Problem(403, "beyond-own", "only an admin makes admins", "Ask one of them.")
    maker = desk.tokens.of_id(who.token_id)
    if maker is None:  # revoked a moment ago
        raise Problem(401, "no-token", "the token is not valid", "It is expired or revoked.")
    days = wanted.days if wanted.days is not None else desk.settings.token_days
    text, token = desk.tokens.mint(
        wanted.name, wanted.role, scopes=scopes, tenant=tenant, days=days, by=maker
    )
    return TokenMade(**vars(token), token=text)


@router.delete("/api/v1/tokens/{token_id}", summary="Revoke a token", status_code=204)
def revoke_token(
    who: Manager,
    token_id: str,
    descendants: Annotated[
        bool, Query(description="Whether those that were made with it are taken back too.")
    ] = False,
) -> None:
    """Take a token back at once, with the sessions that were opened with it."""
    tokens = who.desk.tokens
    token = tokens.any_of_id(token_id, tenant=who.tenant)
    if token is None or token.revoked_at is not None:
        raise Problem(404, "unknown-token", "no such token", "It may be revoked already.")
    _require_within(who, frozenset(token.scopes), "nobody revokes who holds more than they do")
    tokens.revoke(token_id, descendants=descendants, by=who.token_id)


def _require_within(who: Principal, scopes: frozenset[str], title: str) -> None:
    beyond = sorted(scopes - who.scopes)
    if beyond:
        detail = f"Your token does not have {', '.join(beyond)}."
        raise Problem(403, "beyond-own", title, detail)
