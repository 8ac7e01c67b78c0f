"""Tokens: made by those who hold at least as much, and shown once."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

from letheon.service.auth import Principal
from letheon.service.auth import Context
from letheon.service.errors import Problem
from letheon.ledger.db.tokens import ROLES, SCOPES, narrowed
from letheon.service.schemas import In, Out, Page
from letheon.ledger.db.tokens import Token

__all__ = ["TokenIn", "TokenMade", "TokenOut", "add_token", "page_of_tokens", "revoke_token"]

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._:-]{0,62}$")]

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


class TokenOut(Out):
    """A token, without its text."""

    id: str
    name: str
    role: str
    scopes: list[str]
    tenant: str | None
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    created_by: str | None
    is_valid: bool


class TokenMade(TokenOut):
    """A token that was just made."""

    token: str = Field(description="The text to be sent; it is shown this once.")


def page_of_tokens(
    context: Context,
    who: Principal,
    *,
    tenant: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[TokenOut]:
    """Return tokens, newest first."""
    wanted = who.tenant_filter(tenant)
    try:
        found = context.tokens.listed(tenant=wanted, after=after, limit=limit + 1)
    except ValueError as error:
        raise Problem(422, "cursor", "after cannot be used", str(error)) from error
    items = [_out(context, one) for one in found[:limit]]
    return Page(items=items, next=items[-1].id if len(found) > limit else None)


def add_token(context: Context, who: Principal, wanted: TokenIn) -> TokenMade:
    """Make a token that can do no more than the one who asks for it."""
    tenant = wanted.tenant if who.tenant is None else who.tenant_for(wanted.tenant)
    days = wanted.days if wanted.days is not None else context.settings.token_days
    try:
        scopes = narrowed(wanted.role, wanted.scopes)
    except ValueError as error:
        raise Problem(422, "scopes", "the scopes cannot be given", str(error)) from error
    beyond = sorted(scopes - who.scopes)
    if beyond:
        raise Problem(
            403,
            "beyond-own",
            "nobody grants more than they hold",
            f"Your token does not have {', '.join(beyond)}.",
        )
    if who.role != "admin" and wanted.role == "admin":
        raise Problem(403, "beyond-own", "only an admin makes admins", "Ask one of them.")
    maker = context.tokens.of_id(who.token_id)
    if maker is None:  # taken back a moment ago
        raise Problem(401, "no-token", "the token is not valid", "It is expired or revoked.")
    text, token = context.tokens.mint(
        wanted.name,
        wanted.role,
        scopes=scopes,
        tenant=tenant,
        days=days,
        by=maker,
    )
    return TokenMade(token=text, **_out(context, token).model_dump())


def revoke_token(
    context: Context, who: Principal, token_id: str, *, descendants: bool = False
) -> None:
    """Take a token back that one could have made; with `descendants` those made with it too."""
    token = context.tokens.any_of_id(token_id, tenant=who.tenant)
    if token is None or token.revoked_at is not None:
        raise Problem(404, "unknown-token", "no such token", "It may be revoked already.")
    beyond = sorted(token.scopes - who.scopes)
    if beyond:
        raise Problem(
            403,
            "beyond-own",
            "nobody revokes who holds more than they do",
            f"Your token does not have {', '.join(beyond)}.",
        )
    context.tokens.revoke(token_id, descendants=descendants, by=who.token_id)


def _out(context: Context, token: Token) -> TokenOut:
    return TokenOut(
        id=token.id,
        name=token.name,
        role=token.role,
        scopes=sorted(token.scopes),
        tenant=token.tenant,
        created_at=_when(token.created_at),
        expires_at=_when(token.expires_at),
        revoked_at=None if token.revoked_at is None else _when(token.revoked_at),
        created_by=token.created_by,
        is_valid=token.is_valid(context.clock()),
    )


def _when(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
