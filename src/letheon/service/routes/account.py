"""API routes for tokens, webhooks, public keys, health and metrics."""

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
from letheon.service.auth import Principal, allows, context, public, require_unbound
from letheon.service.errors import ApiProblem, cursor_problems
from letheon.service.middleware import CONTENT_TYPE, Metrics
from letheon.service.schemas import (
    In,
    Limit,
    Name,
    TenantFilter,
    cut_page,
    describe_file,
    object_schema,
)
from letheon.service.webhooks import WebhookResult, derive_secret, send_message, sign_headers

router = APIRouter(tags=["tokens"])

Manager = Annotated[Principal, Depends(allows("tokens:manage"))]
AfterId = Annotated[str | None, Query(pattern="^[0-9a-f]{16}$")]
Scope = Annotated[str, Field(pattern=f"^({'|'.join(SCOPES)})$")]


class TokenIn(In):
    """The token to create.

    Attributes
    ----------
    name : Name
        Name of the token in lists; do not use the name of a person.
    scopes : list of Scope or None
        Scopes of the token; null for all scopes of the role.
    tenant : Name or None
        Tenant that the token is restricted to; null for all tenants.
    days : int or None
        Days until the token expires; null for the default of the desk.
    """

    name: Name
    role: str = Field(pattern=f"^({'|'.join(ROLES)})$")
    scopes: list[Scope] | None = Field(default=None, max_length=32)
    tenant: Name | None = None
    days: int | None = Field(default=None, ge=1, le=3650)


@dataclass(frozen=True)
class TokenMade(Token):
    """A new token.

    Attributes
    ----------
    token : str
        The secret token; it is shown only once.
    """

    token: str


@router.get("/api/v1/tokens", summary="List tokens")
def list_tokens(
    caller: Manager, tenant: TenantFilter = None, after: AfterId = None, limit: Limit = 50
) -> Page[Token]:
    """List tokens, newest first, without their secrets, which are not stored."""
    wanted = caller.tenant_filter(tenant)
    with cursor_problems():
        tokens = caller.desk.tokens.list_newest(tenant=wanted, after=after, limit=limit + 1)
    return cut_page(tokens, limit, key=lambda token: token.id)


@router.post("/api/v1/tokens", summary="Create a token", status_code=201)
def make_token(caller: Manager, wanted: TokenIn) -> TokenMade:
    """Create a token; the response contains the secret token, which is shown only once."""
    desk = caller.desk
    tenant = caller.tenant_filter(wanted.tenant)
    try:
        scopes = require_scopes(wanted.role, wanted.scopes)
    except ValueError as error:
        raise ApiProblem(422, "scopes", "the scopes are not valid", str(error)) from error
    _require_within(caller, scopes, "you cannot grant scopes that you do not have")
    if caller.role != "admin" and wanted.role == "admin":
        raise ApiProblem(
            403, "beyond-own", "only an admin can create admin tokens", "Ask an admin."
        )
    maker = desk.tokens.find_valid(caller.id)
    if maker is None:  # revoked during the call
        raise ApiProblem(
            401,
            "no-token",
            "your token is not valid",
            "The token has expired or was revoked. Use another token.",
        )
    days = wanted.days if wanted.days is not None else desk.settings.token_days
    text, token = desk.tokens.create(
        wanted.name, wanted.role, scopes=scopes, tenant=tenant, days=days, by=maker
    )
    return TokenMade(**vars(token), token=text)


@router.delete("/api/v1/tokens/{token_id}", summary="Revoke a token", status_code=204)
def revoke_token(
    caller: Manager,
    token_id: str,
    descendants: Annotated[
        bool, Query(description="Also revoke the tokens that were created with it.")
    ] = False,
) -> None:
    """Revoke a token immediately, and end its browser sessions."""
    tokens = caller.desk.tokens
    token = tokens.find_by_id(token_id, tenant=caller.tenant)
    if token is None or token.revoked_at is not None:
        raise ApiProblem(
            404, "unknown-token", "no such token", "The token may have been revoked already."
        )
    _require_within(
        caller,
        frozenset(token.scopes),
        "you cannot revoke a token with scopes that you do not have",
    )
    tokens.revoke(token_id, descendants=descendants, by=caller.id)


def _require_within(caller: Principal, scopes: frozenset[str], title: str) -> None:
    beyond = sorted(scopes.difference(caller.scopes))
    if beyond:
        detail = f"Your token does not have {', '.join(beyond)}."
        raise ApiProblem(403, "beyond-own", title, detail)


webhooks = APIRouter(tags=["webhooks"])

HookManager = Annotated[Principal, Depends(allows("webhooks:manage"))]
Caller = Annotated[Principal, Depends(allows("webhooks:manage", is_long=True))]
WebhookId = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]


class WebhookIn(In):
    """The webhook to create.

    Attributes
    ----------
    url : str
        URL that receives the messages; its host must be in the operator's list.
    events : list of EventName
        Events to send.
    tenant : Name or None
        Tenant whose events are sent; null for all tenants.
    """

    url: str = Field(min_length=8, max_length=LONGEST)
    events: list[EventName] = Field(min_length=1, max_length=4)
    tenant: Name | None = None


@dataclass(frozen=True)
class WebhookMade(Webhook):
    """A new webhook.

    Attributes
    ----------
    secret : str
        Secret for verifying signatures; it is shown only once.
    """

    secret: str


@webhooks.get("/api/v1/webhooks", summary="List webhooks")
def list_webhooks(
    caller: HookManager, tenant: TenantFilter = None, after: AfterId = None, limit: Limit = 50
) -> Page[Webhook]:
    """List webhooks, without their secrets, which are not stored."""
    wanted = caller.tenant_filter(tenant)
    hooks = Webhooks(caller.ledger).list_webhooks(tenant=wanted, after=after, limit=limit + 1)
    return cut_page(hooks, limit, key=lambda hook: hook.id)


@webhooks.post("/api/v1/webhooks", summary="Create a webhook", status_code=201)
def make_webhook(caller: HookManager, wanted: WebhookIn) -> WebhookMade:
    """Create a webhook; the response contains its secret, which is shown only once.

    The webhook receives all events from now on, and one event for each request that is already
    overdue.
    """
    desk = caller.desk
    try:
        parse_url(wanted.url, parse_hosts(desk.settings.webhook_hosts))
    except AddressRefusedError as error:
        title = "webhooks cannot be sent to this URL"
        raise ApiProblem(422, "webhook-address", title, str(error)) from error
    tenant = caller.tenant_filter(wanted.tenant)
    key = read_service_key(caller.ledger.folder)  # first: without the key no webhook is created
    hook = Webhooks(caller.ledger).add(wanted.url, wanted.events, tenant=tenant, by=caller.id)
    return WebhookMade(**vars(hook), secret=derive_secret(key, hook.id))


@webhooks.get("/api/v1/webhooks/{webhook_id}", summary="Show a webhook")
def show_webhook(caller: HookManager, webhook_id: WebhookId) -> Webhook:
    """Show a webhook, with the numbers of its waiting and failed messages."""
    hook = Webhooks(caller.ledger).find(webhook_id)
    if hook is None or caller.tenant not in (
        None,
        hook.tenant,
    ):  # webhooks of other tenants appear not to exist
        raise ApiProblem(
            404, "unknown-webhook", "no such webhook", "The webhook may have been removed."
        )
    return hook


@webhooks.delete("/api/v1/webhooks/{webhook_id}", summary="Delete a webhook", status_code=204)
def remove_webhook(caller: HookManager, webhook_id: WebhookId) -> None:
    """Delete a webhook and its waiting messages."""
    hook = show_webhook(caller, webhook_id)
    Webhooks(caller.ledger).remove(hook.id, by=caller.id)


@webhooks.post("/api/v1/webhooks/{webhook_id}/test", summary="Send a test message")
def test_webhook(caller: Caller, webhook_id: WebhookId) -> WebhookResult:
    """Send one message of type `test` now, and return the result."""
    desk, hook = caller.desk, show_webhook(caller, webhook_id)
    now, key = desk.ledger.clock(), f"msg_{secrets.token_hex(16)}"
    body = write_body(key, "test", now, {})
    secret = derive_secret(read_service_key(desk.ledger.folder), hook.id)
    headers = sign_headers(secret, key, now, body)
    allowed = parse_hosts(desk.settings.webhook_hosts)
    return send_message(hook.url, body.encode(), headers, allowed=allowed)


@webhooks.get("/api/v1/webhooks/{webhook_id}/deliveries", summary="List messages to a webhook")
def list_deliveries(
    caller: HookManager,
    webhook_id: WebhookId,
    after: Annotated[str | None, Query(pattern="^msg_[0-9a-f]{32}$")] = None,
    limit: Limit = 50,
) -> Page[Delivery]:
    """List the messages to a webhook, newest first, with their attempts and responses."""
    hook = show_webhook(caller, webhook_id)
    with cursor_problems():
        deliveries = Webhooks(caller.ledger).list_deliveries(hook.id, after=after, limit=limit + 1)
    return cut_page(deliveries, limit, key=lambda delivery: delivery.id)


server = APIRouter()

Me = Annotated[
    dict[str, Any],
    object_schema("token", "name", "role", "ledger", scopes="array", tenant=["string", "null"]),
]
Keys = Annotated[
    dict[str, Any], object_schema("ledger", "pinned", keys="array", statements="array")
]


@server.get("/api/v1/me", summary="Show your token", tags=["tokens"])
def show_me(caller: Annotated[Principal, Depends(allows())]) -> Me:
    """Show the id, name, role, scopes and tenant of your token, and the name of the ledger."""
    known = {name: getattr(caller, name) for name in ("name", "role", "scopes", "tenant")}
    return known | {"token": caller.id, "ledger": caller.ledger.name}


@server.get("/api/v1/keys", summary="List public keys", tags=["certificates"])
def list_keys(caller: Annotated[Principal, Depends(allows("certificates:read"))]) -> Keys:
    """List the keys that sign certificates.

    `pinned` is the first public key, with which all other keys are verified; compare it with a copy
    from another source. `statements` are signed envelopes, one for each rotation or revocation of a
    key, in order. Each is signed with the previous key.
    """
    ledger = caller.ledger
    keys = list(ledger.keys.list())
    if caller.tenant is not None:  # these numbers count the certificates of all tenants
        keys = [replace(key, first=None, last=None) for key in keys]
    statements = [statement.decode() for statement in ledger.keys.statements()]
    whose = {"ledger": ledger.name, "pinned": ledger.public_key}
    return {**whose, "keys": keys, "statements": statements}


@server.get(
    "/healthz",
    summary="Check that the server is alive",
    tags=["server"],
    dependencies=[Depends(public())],
)
async def show_health() -> dict[str, str]:
    """Return the status `ok` if the server responds; the ledger is not checked."""
    return {"status": "ok"}


@server.get(
    "/readyz",
    summary="Check that the server is ready",
    tags=["server"],
    dependencies=[Depends(public())],
)
def show_readiness(request: Request) -> dict[str, str]:
    """Check that the database is available and not older than the files of the ledger.

    If the server has a worker, it must be running. `sandbox` in the response describes how uploaded
    models are isolated on this server.
    """
    desk = context(request)
    desk.tokens.has_admin()
    desk.ledger.require_current_database()
    if desk.has_worker is not None and not desk.has_worker():
        title, headers = "the worker is not running", {"Retry-After": "5"}
        raise ApiProblem(503, "no-worker", title, "The worker is being restarted.", headers=headers)
    return {"status": "ok", "sandbox": str(protection())}


@server.get(
    "/metrics",
    summary="Show metrics for Prometheus",
    tags=["server"],
    **describe_file("text/plain", "Metrics in the text format of Prometheus."),
)
def show_metrics(
    request: Request, caller: Annotated[Principal, Depends(allows("metrics:read"))]
) -> Response:
    """Return call counts and durations of all tenants in the text format of Prometheus."""
    require_unbound(caller)
    metrics: Metrics = request.app.state.metrics
    return Response(metrics.to_text(), headers={"Content-Type": CONTENT_TYPE})
