"""Webhooks: who is told of what, and what became of the messages."""

import json
import secrets
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import Field

from letheon.service.addresses import LONGEST, AddressRefusedError, parse_hosts, parse_url
from letheon.service.auth import Principal
from letheon.service.auth import Context
from letheon.service.webhooks import send, signed_headers
from letheon.service.errors import Problem
from letheon.service.schemas import In, Out, Page
from letheon.ledger.db.webhooks import Delivery, Webhook, Webhooks

__all__ = [
    "DeliveryOut",
    "EventName",
    "WebhookIn",
    "WebhookMade",
    "WebhookOut",
    "WebhookTest",
    "add_webhook",
    "find_webhook",
    "page_of_deliveries",
    "page_of_webhooks",
    "remove_webhook",
    "test_webhook",
]

EventName = Literal["received", "certified", "overdue", "retrained"]
Tenant = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._:-]{0,62}$")]


class WebhookIn(In):
    """A webhook that is wanted."""

    url: str = Field(
        min_length=8,
        max_length=LONGEST,
        description="Where messages go; the operator lists the hosts that are possible.",
    )
    events: list[EventName] = Field(min_length=1, max_length=4, description="What it is told of.")
    tenant: Tenant | None = Field(default=None, description="Whose events; null for everybody's.")


class WebhookOut(Out):
    """A webhook, without its secret."""

    id: str
    url: str
    events: list[EventName]
    tenant: str | None
    created_at: datetime
    created_by: str | None
    disabled_at: datetime | None = Field(description="When the receiver said that it is gone.")
    waiting: int = Field(description="Messages that are still to be delivered.")
    given_up: int = Field(description="Messages that were tried in vain.")


class WebhookMade(WebhookOut):
    """A webhook that was just made."""

    secret: str = Field(description="What messages are signed with; it is shown this once.")


class WebhookTest(Out):
    """What came of a test message."""

    delivered: bool
    status: int | None = Field(description="Status that the receiver answered with, if it did.")
    outcome: Literal["delivered", "answered", "unreachable", "refused"]


class DeliveryOut(Out):
    """A message, and what became of it."""

    id: str
    kind: EventName
    about: str = Field(description="Id of the request or batch.")
    state: Literal["waiting", "delivered", "given-up"]
    created_at: datetime
    tries: int
    next_try_at: datetime | None
    delivered_at: datetime | None
    given_up_at: datetime | None
    last_status: int | None


def page_of_webhooks(
    context: Context,
    who: Principal,
    *,
    tenant: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[WebhookOut]:
    """Return webhooks, ordered by id."""
    hooks = _hooks(context)
    found = hooks.listed(tenant=who.tenant_filter(tenant), after=after, limit=limit + 1)
    items = [_out(hooks, one) for one in found[:limit]]
    return Page(items=items, next=items[-1].id if len(found) > limit else None)


def add_webhook(
    context: Context,
    who: Principal,
    *,
    url: str,
    events: list[EventName],
    tenant: str | None = None,
) -> WebhookMade:
    """Make a webhook; its secret is in the answer and nowhere else."""
    try:
        parse_url(url, parse_hosts(context.settings.webhook_hosts))
    except AddressRefusedError as error:
        raise Problem(
            422, "webhook-address", "messages cannot be sent to this address", str(error)
        ) from error
    whose = tenant if who.tenant is None else who.tenant_for(tenant)
    hooks = _hooks(context)
    made, secret = hooks.add(url, events, tenant=whose, by=who.token_id)
    return WebhookMade(secret=secret, **_out(hooks, made).model_dump())


def find_webhook(context: Context, who: Principal, webhook_id: str) -> WebhookOut:
    """Return one webhook."""
    hooks = _hooks(context)
    return _out(hooks, _found(hooks, who, webhook_id))


def remove_webhook(context: Context, who: Principal, webhook_id: str) -> None:
    """Remove a webhook with the messages that wait for it."""
    hooks = _hooks(context)
    hooks.remove(_found(hooks, who, webhook_id).id, by=who.token_id)


def test_webhook(context: Context, who: Principal, webhook_id: str) -> WebhookTest:
    """Send a message of type ``test`` now, once, and say what came of it."""
    hooks = _hooks(context)
    hook = _found(hooks, who, webhook_id)
    now, key = context.clock(), f"msg_{secrets.token_hex(16)}"
    when = _when(now).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = json.dumps({"id": key, "type": "test", "created_at": when, "data": {}})
    headers = signed_headers(hooks.secret(hook.id), key, now, body)
    allowed = parse_hosts(context.settings.webhook_hosts)
    answer = send(hook.url, body.encode(), headers, allowed=allowed)
    delivered = answer.outcome == "delivered"
    return WebhookTest(delivered=delivered, status=answer.status, outcome=answer.outcome)


def page_of_deliveries(
    context: Context,
    who: Principal,
    webhook_id: str,
    *,
    after: str | None = None,
    limit: int = 50,
) -> Page[DeliveryOut]:
    """Return the messages to a webhook, newest first."""
    hooks = _hooks(context)
    hook = _found(hooks, who, webhook_id)
    try:
        found = hooks.deliveries(hook.id, after=after, limit=limit + 1)
    except ValueError as error:
        raise Problem(422, "cursor", "after cannot be used", str(error)) from error
    items = [_delivery(one) for one in found[:limit]]
    return Page(items=items, next=items[-1].id if len(found) > limit else None)


def _hooks(context: Context) -> Webhooks:
    return Webhooks(context.ledger, context.clock)


def _found(hooks: Webhooks, who: Principal, webhook_id: str) -> Webhook:
    """Return a webhook; another tenant's is as if it were not there."""
    hook = hooks.find(webhook_id)
    if hook is None or who.tenant not in (None, hook.tenant):
        raise Problem(404, "unknown-webhook", "no such webhook", "It may have been removed.")
    return hook


def _out(hooks: Webhooks, hook: Webhook) -> WebhookOut:
    waiting, given_up = hooks.counts(hook.id)
    times = {"created_at": _when(hook.created_at), "disabled_at": _maybe(hook.disabled_at)}
    return WebhookOut.model_validate(
        vars(hook) | times | {"events": list(hook.events), "waiting": waiting, "given_up": given_up}
    )


def _delivery(one: Delivery) -> DeliveryOut:
    is_waiting = one.state == "waiting"
    return DeliveryOut.model_validate(
        {
            "id": one.id,
            "kind": one.kind,
            "about": one.about,
            "state": one.state,
            "created_at": _when(one.created_at),
            "tries": one.tries,
            "next_try_at": _when(one.not_before) if is_waiting else None,
            "delivered_at": _maybe(one.delivered_at),
            "given_up_at": _maybe(one.given_up_at),
            "last_status": one.last_status,
        }
    )


def _when(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _maybe(seconds: int | None) -> datetime | None:
    return None if seconds is None else _when(seconds)
