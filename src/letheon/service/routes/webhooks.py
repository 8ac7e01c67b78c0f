"""Webhooks: which events go where, and what became of the messages."""

import secrets
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query
from pydantic import Field

from letheon.ledger.db.webhooks import (
    Delivery,
    EventName,
    Webhook,
    Webhooks,
    read_service_key,
    write_body,
)
from letheon.service.addresses import LONGEST, AddressRefusedError, parse_hosts, parse_url
from letheon.service.auth import Context, Principal, allows
from letheon.service.errors import Problem, cursor_problem
from letheon.service.schemas import In, Limit, Name, Page, TenantFilter
from letheon.service.webhooks import derive_secret, send, sign_headers

router = APIRouter(tags=["webhooks"])

Manager = Annotated[Principal, Depends(allows("webhooks:manage"))]
Caller = Annotated[Principal, Depends(allows("webhooks:manage", is_long=True))]
WebhookId = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]


class WebhookIn(In):
    """A webhook that is wanted."""

    url: str = Field(
        min_length=8,
        max_length=LONGEST,
        description="Where messages go; the operator lists the hosts that are possible.",
    )
    events: list[EventName] = Field(min_length=1, max_length=4, description="What it is told of.")
    tenant: Name | None = Field(default=None, description="Whose events; null for everybody's.")


@dataclass(frozen=True)
class WebhookMade(Webhook):
    """A webhook that was just made.

    Attributes
    ----------
    secret : str
        What messages are signed with; it is shown this once.
    """

    secret: str


@dataclass(frozen=True)
class WebhookTest:
    """What came of a test message.

    Attributes
    ----------
    delivered : bool
        Whether the receiver answered with a status of success.
    status : int or None
        Status that the receiver answered with, if it did.
    outcome : {"delivered", "answered", "unreachable", "refused"}
        What happened.
    """

    delivered: bool
    status: int | None
    outcome: Literal["delivered", "answered", "unreachable", "refused"]


@router.get("/api/v1/webhooks", summary="List webhooks")
def list_webhooks(
    who: Manager,
    tenant: TenantFilter = None,
    after: Annotated[str | None, Query(pattern="^[0-9a-f]{16}$")] = None,
    limit: Limit = 50,
) -> Page[Webhook]:
    """Return webhooks; their secrets are not kept."""
    hooks = Webhooks(who.ledger)
    found = hooks.listed(tenant=who.tenant_filter(tenant), after=after, limit=limit + 1)
    return Page.cut(found, limit, key=lambda one: one.id)


@router.post("/api/v1/webhooks", summary="Make a webhook", status_code=201)
def make_webhook(who: Manager, wanted: WebhookIn) -> WebhookMade:
    """Make a webhook; the answer holds its secret, which is shown this once.

    It is told of what happens from now on, and of everything that is overdue by now.
    """
    desk = who.desk
    try:
        parse_url(wanted.url, parse_hosts(desk.settings.webhook_hosts))
    except AddressRefusedError as error:
        raise Problem(
            422, "webhook-address", "messages cannot be sent to this address", str(error)
        ) from error
    tenant = wanted.tenant if who.tenant is None else who.tenant_for(wanted.tenant)
    hook = Webhooks(who.ledger).add(wanted.url, wanted.events, tenant=tenant, by=who.token_id)
    return WebhookMade(**vars(hook), secret=_secret(desk, hook))


@router.get("/api/v1/webhooks/{webhook_id}", summary="Show a webhook")
def show_webhook(who: Manager, webhook_id: WebhookId) -> Webhook:
    """Return one webhook, with how many messages wait for it."""
    hook = Webhooks(who.ledger).find(webhook_id)
    if hook is None or who.tenant not in (None, hook.tenant):  # another tenant's is not there
        raise Problem(404, "unknown-webhook", "no such webhook", "It may have been removed.")
    return hook


@router.delete("/api/v1/webhooks/{webhook_id}", summary="Remove a webhook", status_code=204)
def remove_webhook(who: Manager, webhook_id: WebhookId) -> None:
    """Remove a webhook with the messages that wait for it."""
    hook = show_webhook(who, webhook_id)
    Webhooks(who.ledger).remove(hook.id, by=who.token_id)


@router.post("/api/v1/webhooks/{webhook_id}/test", summary="Send a test message")
def test_webhook(who: Caller, webhook_id: WebhookId) -> WebhookTest:
    """Send a message of type `test` once, now, and say what came of it."""
    desk, hook = who.desk, show_webhook(who, webhook_id)
    now, key = desk.clock(), f"msg_{secrets.token_hex(16)}"
    body = write_body(key, "test", now, {})
    headers = sign_headers(_secret(desk, hook), key, now, body)
    allowed = parse_hosts(desk.settings.webhook_hosts)
    answer = send(hook.url, body.encode(), headers, allowed=allowed)
    return WebhookTest(answer.outcome == "delivered", answer.status, answer.outcome)


@router.get("/api/v1/webhooks/{webhook_id}/deliveries", summary="List messages to a webhook")
def list_deliveries(
    who: Manager,
    webhook_id: WebhookId,
    after: Annotated[str | None, Query(pattern="^msg_[0-9a-f]{32}$")] = None,
    limit: Limit = 50,
) -> Page[Delivery]:
    """Return the messages to a webhook, newest first, with tries and answers."""
    hook = show_webhook(who, webhook_id)
    try:
        deliveries = Webhooks(who.ledger).deliveries(hook.id, after=after, limit=limit + 1)
    except ValueError as error:
        raise cursor_problem(error) from error
    return Page.cut(deliveries, limit, key=lambda one: one.id)


def _secret(desk: Context, hook: Webhook) -> str:
    return derive_secret(read_service_key(desk.ledger.folder), hook.id)
