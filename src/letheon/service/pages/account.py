"""Coming in with a token, the first page, tokens and webhooks."""

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import FormData

from letheon.ledger.db.tokens import ROLES, SCOPES
from letheon.service import auth
from letheon.service.errors import Problem
from letheon.service.forms import check_form, text_of
from letheon.service.pages import _shared
from letheon.service.routes import account as routes
from letheon.service.routes import requests as request_routes
from letheon.service.routes.account import TokenIn, WebhookIn

router = APIRouter(include_in_schema=False)

_UNKNOWN = "That token is unknown, expired or revoked."
_RECEIPT = "That is a receipt code, and no token. Check it with the link below."


@router.get("/login", dependencies=[Depends(auth.public())])
def show_login(request: Request) -> HTMLResponse:
    """Ask for a token."""
    return _asked(request, _shared.safe_path(request.query_params.get("next")))


@router.post("/login", dependencies=[Depends(auth.public())])
def log_in(request: Request, form: _shared.SentForm) -> Response:
    """Start a session; the old one of this browser, if any, ends."""
    if not auth.is_same_origin(request):
        raise Problem(403, "csrf", "This form is not from this desk", "Open /login and try again.")
    desk, where = auth.context(request), _shared.safe_path(text_of(form, "next"))
    token = desk.tokens.find_by_text(text_of(form, "token"))
    if token is None:
        # Wrong ones only: an office shares its address.
        desk.limiter.count("login", auth.address_of(request))
        is_code = text_of(form, "token").lower().startswith("lethe-")
        return _asked(request, where, error=_RECEIPT if is_code else _UNKNOWN)
    old = auth.find_visitor(request)
    if old is not None and old.session is not None:
        desk.sessions.end(old.session.id)
    cookie, _ = desk.sessions.start(token.id)
    target = auth.PAGE_OF_ROLE.get(token.role, "/") if where == "/" else where
    answer = RedirectResponse(target, status_code=303)
    _shared.set_cookie(answer, desk, auth.COOKIE, cookie, desk.settings.session_hours * 3600)
    return answer


@router.post("/logout")
def log_out(who: Annotated[_shared.Visitor, Depends(_shared.page_allows())]) -> Response:
    """End the session."""
    if who.session is not None:
        who.desk.sessions.end(who.session.id)
    answer = who.done("/login", "logged-out")
    _shared.set_cookie(answer, who.desk, auth.COOKIE, "", 0)
    return answer


def _asked(request: Request, where: str, *, error: str = "") -> HTMLResponse:
    status = 401 if error else 200
    return _shared.page(request, "login.html", status=status, where=where, error=error)


_SHOWN = 6
_MOST_DUPLICATES = 200
_TONES = ("bad", "warn", "warn", "info", "info", "neutral")


class Task(NamedTuple):
    """Something that waits for an action."""

    number: int
    words: str
    href: str
    tone: str


@router.get("/")
def show_home(
    who: Annotated[_shared.Visitor, Depends(_shared.page_allows())],
    tenant: str | None = None,
) -> HTMLResponse:
    """Show how the requests stand, and what waits for the one who looks."""
    if not who.may("requests:read"):
        return who.page("home.html", stand=None, tasks=[], bars=[], first=[])
    asked = {"tenant": tenant, "state": list(request_routes.OPEN)}
    query = check_form(request_routes.RequestQuery, asked)
    stand = request_routes.summarise_requests(who, query)
    n_covered = 0  # duplicates whose people are erased, among the first that are due
    if stand.counts["duplicate"]:
        duplicates = query.model_copy(update={"state": ["duplicate"]})
        requests = request_routes.find_first_requests(who, duplicates, limit=_MOST_DUPLICATES)
        n_covered = sum(one.certificate is not None for one in requests)
    return who.page(
        "home.html",
        json=_shared.address("/api/v1/summary", tenant=tenant),
        stand=stand,
        tasks=list(_tasks(who, stand, n_covered)),
        bars=list(zip(stand.by_days_left, _TONES, strict=True)),
        first=request_routes.find_first_requests(who, query, limit=_SHOWN),
    )


def _tasks(who: auth.Principal, stand: request_routes.Summary, n_covered: int) -> Iterator[Task]:
    """Yield what waits, by what the one who looks may do about it."""
    counts, handle = stand.counts, "requests:handle"
    known = (
        ("requests:approve", counts["verified"], "to approve", "state=verified", "warn"),
        (handle, counts["received"], "identity to verify", "state=received", "warn"),
        (handle, counts["stuck"], "stuck: look, then retry", "state=stuck", "bad"),
        (handle, counts["purged"], "to answer: purged", "state=purged", "info"),
        (handle, n_covered, "to answer: erased with an earlier request", "state=duplicate", "info"),
        ("requests:read", stand.n_overdue, "overdue", "overdue=true", "bad"),
        ("requests:read", stand.n_due_soon, "due within a week", "order=due", "warn"),
    )
    for scope, number, words, query, tone in known:
        if number and who.may(scope):
            yield Task(number, words, f"/requests?{query}", tone)


TokenKeeper = Annotated[_shared.Visitor, Depends(_shared.page_allows("tokens:manage"))]
HookKeeper = Annotated[_shared.Visitor, Depends(_shared.page_allows("webhooks:manage"))]
HookCaller = Annotated[
    _shared.Visitor, Depends(_shared.page_allows("webhooks:manage", is_long=True))
]
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
        *(routes.make_token, routes.list_tokens),
    ),
    "webhooks": (
        *(WebhookIn, ("url", "tenant"), "events"),
        *(routes.make_webhook, routes.list_webhooks),
    ),
}


@router.get("/tokens")
def show_tokens(who: TokenKeeper, after: str | None = None) -> HTMLResponse:
    """Show the tokens, and a form for a new one."""
    return _show(who, "tokens", after=after)


@router.post("/tokens")
def make_token(who: TokenKeeper, form: _shared.SentForm) -> HTMLResponse:
    """Make a token, and show it once."""
    return _make(who, "tokens", form)


@router.post("/tokens/{token_id}/revoke")
def revoke(who: TokenKeeper, token_id: str, form: _shared.SentForm) -> Response:
    """Take a token back."""
    routes.revoke_token(who, token_id, descendants="descendants" in form)
    return who.done("/tokens", "token-revoked")


@router.get("/webhooks")
def show_webhooks(who: HookKeeper, after: str | None = None) -> HTMLResponse:
    """Show the webhooks, and a form for a new one."""
    return _show(who, "webhooks", after=after)


@router.post("/webhooks")
def make_webhook(who: HookKeeper, form: _shared.SentForm) -> HTMLResponse:
    """Make a webhook, and show its secret once."""
    return _make(who, "webhooks", form)


@router.get("/webhooks/{webhook_id}")
def show_webhook(who: HookKeeper, webhook_id: str, after: str | None = None) -> HTMLResponse:
    """Show one webhook and its messages."""
    hook = routes.show_webhook(who, webhook_id)
    found = routes.list_deliveries(who, webhook_id, after=after or None)
    shown = {"hook": hook, "found": found, "after": after, "event_words": _EVENT_WORDS}
    return who.page("webhook.html", json=f"/api/v1/webhooks/{webhook_id}", **shown)


@router.post("/webhooks/{webhook_id}/test")
def try_webhook(who: HookCaller, webhook_id: str) -> Response:
    """Send a test message now."""
    came = routes.test_webhook(who, webhook_id)
    code = "webhook-delivered" if came.delivered else "webhook-failed"
    return who.done(f"/webhooks/{webhook_id}", code, came.status)


@router.post("/webhooks/{webhook_id}/delete")
def delete_webhook(who: HookKeeper, webhook_id: str) -> Response:
    """Remove a webhook."""
    routes.remove_webhook(who, webhook_id)
    return who.done("/webhooks", "webhook-removed")


def _make(who: _shared.Visitor, subject: str, form: FormData) -> HTMLResponse:
    kind, names, several, make, _ = _SUBJECTS[subject]
    chosen = [one for one in form.getlist(several) if isinstance(one, str)]
    typed = {name: text_of(form, name) for name in names}
    try:
        made = make(who, check_form(kind, typed | {several: chosen}))
    except Problem as problem:
        if problem.status_code == 404:
            raise
        return _show(who, subject, problem=problem, typed=typed)
    return _show(who, subject, made=made)


def _show(
    who: _shared.Visitor, subject: str, *, after: str | None = None, made: Any = None, **more: Any
) -> HTMLResponse:
    _, names, _, _, list_all = _SUBJECTS[subject]
    is_for_tenant = made is not None and made.tenant is not None
    empty = dict.fromkeys(names, "") | {"role": "requester", "tenant": who.tenant or ""}
    own = set(who.scopes)
    shown = {
        "found": list_all(who, after=after or None),
        "after": after,
        "made": made,
        "typed": empty,
        "roles": [(role, role, _ROLE_WORDS[role]) for role in ROLES if ROLES[role] <= own],
        "scopes": {scope: words for scope, words in SCOPES.items() if who.may(scope)},
        "has_model": not is_for_tenant or bool(who.ledger.models.list(tenant=made.tenant)),
        "event_words": _EVENT_WORDS,
    }
    return who.page(f"{subject}.html", json=f"/api/v1/{subject}", **shown | more)
