"""Tokens and webhooks; the ledger's public keys, and whether the server is well."""

import secrets
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field

from letheon.ledger import Page
from letheon.ledger.db.tokens import ROLES, SCOPES, Token, require_scopes
from letheon.ledger.db.webhooks import (
    Delivery,
    EventName,
    Webhook,
    Webhooks,
    read_service_key,
    write_body,
)
from letheon.sandbox import protection
from letheon.service.addresses import LONGEST, AddressRefusedError, parse_hosts, parse_url
from letheon.service.auth import (
    Principal,
    allows,
    context,
    public,
    require_unbound,
)
from letheon.service.errors import Problem, cursor_problems
from letheon.service.middleware import CONTENT_TYPE, Metrics
from letheon.service.schemas import In, Limit, Name, TenantFilter, cut_page, describe_file, shape
from letheon.service.webhooks import Answer, derive_secret, send, sign_headers

router = APIRouter(tags=["tokens"])

Manager = Annotated[Principal, Depends(allows("tokens:manage"))]
AfterId = Annotated[str | None, Query(pattern="^[0-9a-f]{16}$")]
Scope = Annotated[str, Field(pattern=f"^({'|'.join(SCOPES)})$")]


class TokenIn(In):
    """A token that is wanted.

    Attributes
    ----------
    name : Name
        What it is called in lists; no name of a person.
    scopes : list of Scope or None
        Fewer than the role's; null for all of them.
    tenant : Name or None
        Whose things it sees; null: all.
    days : int or None
        How long it is valid.
    """

    name: Name
    role: str = Field(pattern=f"^({'|'.join(ROLES)})$")
    scopes: list[Scope] | None = Field(default=None, max_length=32)
    tenant: Name | None = None
    days: int | None = Field(default=None, ge=1, le=3650)


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
    after: AfterId = None,
    limit: Limit = 50,
) -> Page[Token]:
    """Return tokens, newest first; their texts are not kept."""
    wanted = who.tenant_filter(tenant)
    with cursor_problems():
        tokens = who.desk.tokens.list_newest(tenant=wanted, after=after, limit=limit + 1)
    return cut_page(tokens, limit, key=lambda one: one.id)


@router.post("/api/v1/tokens", summary="Make a token", status_code=201)
def make_token(who: Manager, wanted: TokenIn) -> TokenMade:
    """Make a token; the answer holds its text, which is shown this once."""
    desk = who.desk
    tenant = who.tenant_filter(wanted.tenant)
    try:
        scopes = require_scopes(wanted.role, wanted.scopes)
    except ValueError as error:
        raise Problem(422, "scopes", "the scopes cannot be given", str(error)) from error
    _require_within(who, scopes, "nobody grants more than they hold")
    if who.role != "admin" and wanted.role == "admin":
        raise Problem(403, "beyond-own", "only an admin makes admins", "Ask one of them.")
    maker = desk.tokens.find_valid(who.id)
    if maker is None:  # revoked a moment ago
        raise Problem(401, "no-token", "the token is not valid", "It is expired or revoked.")
    days = wanted.days if wanted.days is not None else desk.settings.token_days
    text, token = desk.tokens.create(
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
    token = tokens.find_by_id(token_id, tenant=who.tenant)
    if token is None or token.revoked_at is not None:
        raise Problem(404, "unknown-token", "no such token", "It may be revoked already.")
    _require_within(who, frozenset(token.scopes), "nobody revokes who holds more than they do")
    tokens.revoke(token_id, descendants=descendants, by=who.id)


def _require_within(who: Principal, scopes: frozenset[str], title: str) -> None:
    beyond = sorted(scopes.difference(who.scopes))
    if beyond:
        detail = f"Your token does not have {', '.join(beyond)}."
        raise Problem(403, "beyond-own", title, detail)


webhooks = APIRouter(tags=["webhooks"])

HookManager = Annotated[Principal, Depends(allows("webhooks:manage"))]
Caller = Annotated[Principal, Depends(allows("webhooks:manage", is_long=True))]
WebhookId = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]


class WebhookIn(In):
    """A webhook that is wanted.

    Attributes
    ----------
    url : str
        Where messages go; the operator lists the hosts that are possible.
    events : list of EventName
        What it is told of.
    tenant : Name or None
        Whose events; null for everybody's.
    """

    url: str = Field(min_length=8, max_length=LONGEST)
    events: list[EventName] = Field(min_length=1, max_length=4)
    tenant: Name | None = None


@dataclass(frozen=True)
class WebhookMade(Webhook):
    """A webhook that was just made.

    Attributes
    ----------
    secret : str
        What messages are signed with; it is shown this once.
    """

    secret: str


@webhooks.get("/api/v1/webhooks", summary="List webhooks")
def list_webhooks(
    who: HookManager,
    tenant: TenantFilter = None,
    after: AfterId = None,
    limit: Limit = 50,
) -> Page[Webhook]:
    """Return webhooks; their secrets are not kept."""
    wanted = who.tenant_filter(tenant)
    hooks = Webhooks(who.ledger).list_webhooks(tenant=wanted, after=after, limit=limit + 1)
    return cut_page(hooks, limit, key=lambda one: one.id)


@webhooks.post("/api/v1/webhooks", summary="Make a webhook", status_code=201)
def make_webhook(who: HookManager, wanted: WebhookIn) -> WebhookMade:
    """Make a webhook; the answer holds its secret, which is shown this once.

    It is told of what happens from now on, and of everything that is overdue by now.
    """
    desk = who.desk
    try:
        parse_url(wanted.url, parse_hosts(desk.settings.webhook_hosts))
    except AddressRefusedError as error:
        title = "messages cannot be sent to this address"
        raise Problem(422, "webhook-address", title, str(error)) from error
    tenant = who.tenant_filter(wanted.tenant)
    key = read_service_key(who.ledger.folder)  # first: without it nothing is made
    hook = Webhooks(who.ledger).add(wanted.url, wanted.events, tenant=tenant, by=who.id)
    return WebhookMade(**vars(hook), secret=derive_secret(key, hook.id))


@webhooks.get("/api/v1/webhooks/{webhook_id}", summary="Show a webhook")
def show_webhook(who: HookManager, webhook_id: WebhookId) -> Webhook:
    """Return one webhook, with how many messages wait for it."""
    hook = Webhooks(who.ledger).find(webhook_id)
    if hook is None or who.tenant not in (None, hook.tenant):  # another tenant's is not there
        raise Problem(404, "unknown-webhook", "no such webhook", "It may have been removed.")
    return hook


@webhooks.delete("/api/v1/webhooks/{webhook_id}", summary="Remove a webhook", status_code=204)
def remove_webhook(who: HookManager, webhook_id: WebhookId) -> None:
    """Remove a webhook with the messages that wait for it."""
    hook = show_webhook(who, webhook_id)
    Webhooks(who.ledger).remove(hook.id, by=who.id)


@webhooks.post("/api/v1/webhooks/{webhook_id}/test", summary="Send a test message")
def test_webhook(who: Caller, webhook_id: WebhookId) -> Answer:
    """Send a message of type `test` once, now, and say what came of it."""
    desk, hook = who.desk, show_webhook(who, webhook_id)
    now, key = desk.ledger.clock(), f"msg_{secrets.token_hex(16)}"
    body = write_body(key, "test", now, {})
    secret = derive_secret(read_service_key(desk.ledger.folder), hook.id)
    headers = sign_headers(secret, key, now, body)
    allowed = parse_hosts(desk.settings.webhook_hosts)
    return send(hook.url, body.encode(), headers, allowed=allowed)


@webhooks.get("/api/v1/webhooks/{webhook_id}/deliveries", summary="List messages to a webhook")
def list_deliveries(
    who: HookManager,
    webhook_id: WebhookId,
    after: Annotated[str | None, Query(pattern="^msg_[0-9a-f]{32}$")] = None,
    limit: Limit = 50,
) -> Page[Delivery]:
    """Return the messages to a webhook, newest first, with tries and answers."""
    hook = show_webhook(who, webhook_id)
    with cursor_problems():
        deliveries = Webhooks(who.ledger).list_deliveries(hook.id, after=after, limit=limit + 1)
    return cut_page(deliveries, limit, key=lambda one: one.id)


server = APIRouter()

Me = Annotated[
    dict[str, Any],
    shape("token", "name", "role", "ledger", scopes="array", tenant=["string", "null"]),
]
Keys = Annotated[dict[str, Any], shape("ledger", "pinned", keys="array", statements="array")]


@server.get("/api/v1/me", summary="Who am I?", tags=["tokens"])
def show_me(who: Annotated[Principal, Depends(allows())]) -> Me:
    """Return the token that is used: its id, name, role, scopes and tenant; and the ledger."""
    known = {name: getattr(who, name) for name in ("name", "role", "scopes", "tenant")}
    return known | {"token": who.id, "ledger": who.ledger.name}


@server.get("/api/v1/keys", summary="List public keys", tags=["certificates"])
def list_keys(who: Annotated[Principal, Depends(allows("certificates:read"))]) -> Keys:
    """Return the keys that certificates are signed with; pin the first, from another source.

    `pinned` is the first public key: what verifies everything. `statements` are rotations and
    revocations in order: envelopes, each signed by the key before.
    """
    ledger = who.ledger
    keys = list(ledger.keys.list())
    if who.tenant is not None:  # what they may sign counts the certificates of all tenants
        keys = [replace(key, first=None, last=None) for key in keys]
    statements = [one.decode() for one in ledger.keys.statements()]
    whose = {"ledger": ledger.name, "pinned": ledger.public_key}
    return {**whose, "keys": keys, "statements": statements}


@server.get(
    "/healthz", summary="Is the server alive?", tags=["server"], dependencies=[Depends(public())]
)
async def show_health() -> dict[str, str]:
    """Answer without touching the ledger, and without waiting for a thread."""
    return {"status": "ok"}


@server.get(
    "/readyz", summary="Is the server ready?", tags=["server"], dependencies=[Depends(public())]
)
def show_readiness(request: Request) -> dict[str, str]:
    """Answer when the database is the right one and answers, and the worker, if any, runs.

    `sandbox` says what models from outside are kept from on this server.
    """
    desk = context(request)
    desk.tokens.has_admin()
    desk.ledger.require_current_database()
    if desk.has_worker is not None and not desk.has_worker():
        title, headers = "the worker does not run", {"Retry-After": "5"}
        raise Problem(503, "no-worker", title, "It is started again.", headers=headers)
    return {"status": "ok", "sandbox": str(protection())}


@server.get(
    "/metrics",
    summary="Metrics for Prometheus",
    tags=["server"],
    **describe_file("text/plain", "Counts and times."),
)
def show_metrics(
    request: Request, who: Annotated[Principal, Depends(allows("metrics:read"))]
) -> Response:
    """Return counts and times, in the text form of Prometheus; of all tenants together."""
    require_unbound(who)
    metrics: Metrics = request.app.state.metrics
    return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE})
