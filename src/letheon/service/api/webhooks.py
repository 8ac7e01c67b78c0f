"""Webhooks."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

from letheon.service.auth import Principal, allows
from letheon.service.auth import context
from letheon.service.schemas import Page
from letheon.service.desk import webhooks as desk
from letheon.service.desk.webhooks import (
    DeliveryOut,
    Tenant,
    WebhookIn,
    WebhookMade,
    WebhookOut,
    WebhookTest,
)

router = APIRouter(tags=["webhooks"])

Manager = Annotated[Principal, Depends(allows("webhooks:manage"))]
Caller = Annotated[Principal, Depends(allows("webhooks:manage", is_long=True))]
WebhookId = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]
Limit = Annotated[int, Query(ge=1, le=200)]


@router.get("/api/v1/webhooks", summary="List webhooks")
def list_webhooks(
    request: Request,
    who: Manager,
    tenant: Annotated[Tenant | None, Query(description="Of one tenant only.")] = None,
    after: Annotated[str | None, Query(pattern="^[0-9a-f]{16}$")] = None,
    limit: Limit = 50,
) -> Page[WebhookOut]:
    """Return webhooks; their secrets are not kept."""
    return desk.page_of_webhooks(context(request), who, tenant=tenant, after=after, limit=limit)


@router.post("/api/v1/webhooks", summary="Make a webhook", status_code=201)
def make_webhook(request: Request, who: Manager, wanted: WebhookIn) -> WebhookMade:
    """Make a webhook; the answer holds its secret, which is shown this once.

    It is told of what happens from now on, and of everything that is overdue by now.
    """
    return desk.add_webhook(
        context(request), who, url=wanted.url, events=wanted.events, tenant=wanted.tenant
    )


@router.get("/api/v1/webhooks/{webhook_id}", summary="Show a webhook")
def show_webhook(request: Request, who: Manager, webhook_id: WebhookId) -> WebhookOut:
    """Return one webhook, with how many messages wait for it."""
    return desk.find_webhook(context(request), who, webhook_id)


@router.delete("/api/v1/webhooks/{webhook_id}", summary="Remove a webhook", status_code=204)
def remove_webhook(request: Request, who: Manager, webhook_id: WebhookId) -> None:
    """Remove a webhook with the messages that wait for it."""
    desk.remove_webhook(context(request), who, webhook_id)


@router.post("/api/v1/webhooks/{webhook_id}/test", summary="Send a test message")
def test_webhook(request: Request, who: Caller, webhook_id: WebhookId) -> WebhookTest:
    """Send a message of type `test` once, now, and say what came of it."""
    return desk.test_webhook(context(request), who, webhook_id)


@router.get("/api/v1/webhooks/{webhook_id}/deliveries", summary="List messages to a webhook")
def list_deliveries(
    request: Request,
    who: Manager,
    webhook_id: WebhookId,
    after: Annotated[str | None, Query(pattern="^msg_[0-9a-f]{32}$")] = None,
    limit: Limit = 50,
) -> Page[DeliveryOut]:
    """Return the messages to a webhook, newest first, with tries and answers."""
    return desk.page_of_deliveries(context(request), who, webhook_id, after=after, limit=limit)
