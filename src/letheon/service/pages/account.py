"""Tokens and webhooks: who and what may come in, and where messages go."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from starlette.datastructures import FormData

from letheon.ledger.db.tokens import ROLES, SCOPES
from letheon.service.auth import Principal
from letheon.service.errors import Problem
from letheon.service.forms import check_form, text_of
from letheon.service.pages._shared import SentForm, done, page, page_allows, tenant_choices
from letheon.service.routes import tokens, webhooks
from letheon.service.routes.tokens import TokenIn
from letheon.service.routes.webhooks import WebhookIn

router = APIRouter(include_in_schema=False)

TokenKeeper = Annotated[Principal, Depends(page_allows("tokens:manage"))]
HookKeeper = Annotated[Principal, Depends(page_allows("webhooks:manage"))]
HookCaller = Annotated[Principal, Depends(page_allows("webhooks:manage", is_long=True))]
_ROLE_WORDS = {
    "requester": "files requests and sees its own",
    "operator": "handles requests, models and batches",
    "approver": "approves or rejects requests",
    "auditor": "reads all, runs audits",
    "admin": "all of it",
}
_EVENT_WORDS = {
    "received": "a request came in",
    "certified": "a certificate covers a request",
    "overdue": "a request is past its day",
    "retrained": "a model was trained afresh",
}


# What the form of a page makes, the fields of the form, the one of several values, and routes.
_SUBJECTS: dict[str, tuple[Any, ...]] = {
    "tokens": (
        *(TokenIn, ("name", "role", "tenant", "days"), "scopes"),
        *(tokens.make_token, tokens.list_tokens),
    ),
    "webhooks": (
        *(WebhookIn, ("url", "tenant"), "events"),
        *(webhooks.make_webhook, webhooks.list_webhooks),
    ),
}


@router.get("/tokens")
def show_tokens(request: Request, who: TokenKeeper, after: str | None = None) -> HTMLResponse:
    """Show the tokens, and a form for a new one."""
    return _show(request, who, "tokens", after=after)


@router.post("/tokens")
def make_token(request: Request, who: TokenKeeper, form: SentForm) -> HTMLResponse:
    """Make a token, and show it once."""
    return _make(request, who, "tokens", form)


@router.post("/tokens/{token_id}/revoke")
def revoke(request: Request, who: TokenKeeper, token_id: str, form: SentForm) -> Response:
    """Take a token back."""
    tokens.revoke_token(who, token_id, descendants="descendants" in form)
    return done(request, "/tokens", "token-revoked")


@router.get("/webhooks")
def show_webhooks(request: Request, who: HookKeeper, after: str | None = None) -> HTMLResponse:
    """Show the webhooks, and a form for a new one."""
    return _show(request, who, "webhooks", after=after)


@router.post("/webhooks")
def make_webhook(request: Request, who: HookKeeper, form: SentForm) -> HTMLResponse:
    """Make a webhook, and show its secret once."""
    return _make(request, who, "webhooks", form)


@router.get("/webhooks/{webhook_id}")
def show_webhook(
    request: Request, who: HookKeeper, webhook_id: str, after: str | None = None
) -> HTMLResponse:
    """Show one webhook and its messages."""
    return page(
        request,
        "webhook.html",
        who,
        json=f"/api/v1/webhooks/{webhook_id}",
        hook=webhooks.show_webhook(who, webhook_id),
        found=webhooks.list_deliveries(who, webhook_id, after=after or None),
        after=after,
        event_words=_EVENT_WORDS,
    )


@router.post("/webhooks/{webhook_id}/test")
def try_webhook(request: Request, who: HookCaller, webhook_id: str) -> Response:
    """Send a test message now."""
    came = webhooks.test_webhook(who, webhook_id)
    code = "webhook-delivered" if came.delivered else "webhook-failed"
    return done(request, f"/webhooks/{webhook_id}", code, came.status)


@router.post("/webhooks/{webhook_id}/delete")
def delete_webhook(request: Request, who: HookKeeper, webhook_id: str) -> Response:
    """Remove a webhook."""
    webhooks.remove_webhook(who, webhook_id)
    return done(request, "/webhooks", "webhook-removed")


def _make(request: Request, who: Principal, subject: str, form: FormData) -> HTMLResponse:
    kind, names, several, make, _ = _SUBJECTS[subject]
    chosen = [one for one in form.getlist(several) if isinstance(one, str)]
    typed = {name: text_of(form, name) for name in names}
    try:
        made = make(who, check_form(kind, typed | {several: chosen}))
    except Problem as problem:
        if problem.status_code == 404:
            raise
        return _show(request, who, subject, problem=problem, typed=typed)
    return _show(request, who, subject, made=made)


def _show(
    request: Request,
    who: Principal,
    subject: str,
    *,
    after: str | None = None,
    made: Any = None,
    problem: Problem | None = None,
    typed: dict[str, str] | None = None,
) -> HTMLResponse:
    _, names, _, _, list_all = _SUBJECTS[subject]
    settings = who.desk.settings
    is_for_tenant = made is not None and made.tenant is not None
    return page(
        request,
        f"{subject}.html",
        who,
        json=f"/api/v1/{subject}",
        status=200 if problem is None else problem.status_code,
        found=list_all(who, after=after or None),
        after=after,
        made=made,
        problem=problem,
        typed=typed or dict.fromkeys(names, "") | {"role": "requester", "tenant": who.tenant or ""},
        roles=[(role, role, _ROLE_WORDS[role]) for role in ROLES if ROLES[role] <= who.scopes],
        scopes={scope: words for scope, words in SCOPES.items() if who.may(scope)},
        days=settings.token_days,
        tenants=tenant_choices(who),
        has_model=not is_for_tenant or bool(who.ledger.models.list(tenant=made.tenant)),
        event_words=_EVENT_WORDS,
        has_hosts=bool(settings.webhook_hosts),
    )
