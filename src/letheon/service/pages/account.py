"""Pages for login, home, tokens and webhooks."""

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import FormData

from letheon.ledger.db.tokens import ROLES, SCOPES
from letheon.service import auth
from letheon.service.errors import ApiProblem
from letheon.service.forms import check_form, text_of
from letheon.service.pages import _shared
from letheon.service.routes import account as routes
from letheon.service.routes import requests as request_routes
from letheon.service.routes.account import TokenIn, WebhookIn

router = APIRouter(include_in_schema=False)

_UNKNOWN = "The token is unknown, expired or revoked."
_RECEIPT = "This is a receipt code, not a token. Check it with the link below."


@router.get("/login", dependencies=[Depends(auth.public())])
def show_login(request: Request) -> HTMLResponse:
    """Show the login form."""
    return _login_page(request, _shared.safe_path(request.query_params.get("next")))


@router.post("/login", dependencies=[Depends(auth.public())])
def log_in(request: Request, form: _shared.SentForm) -> Response:
    """Start a session with a token, and end an earlier session of this browser."""
    if not auth.is_same_origin(request):
        raise ApiProblem(
            403, "csrf", "The form was sent from another site", "Open /login and try again."
        )
    desk, where = auth.context(request), _shared.safe_path(text_of(form, "next"))
    token = desk.tokens.find_by_text(text_of(form, "token"))
    if token is None:
        # Count failures only: users of one office share an address.
        desk.limiter.count("login", auth.client_address(request))
        is_code = text_of(form, "token").lower().startswith("lethe-")
        return _login_page(request, where, error=_RECEIPT if is_code else _UNKNOWN)
    old = auth.find_visitor(request)
    if old is not None and old.session is not None:
        desk.sessions.end(old.session.id)
    cookie, _ = desk.sessions.start(token.id)
    target = auth.PAGE_OF_ROLE.get(token.role, "/") if where == "/" else where
    answer = RedirectResponse(target, status_code=303)
    _shared.set_cookie(answer, desk, auth.COOKIE, cookie, desk.settings.session_hours * 3600)
    return answer


@router.post("/logout")
def log_out(visitor: Annotated[_shared.Visitor, Depends(_shared.page_allows())]) -> Response:
    """End the session and show the login page."""
    if visitor.session is not None:
        visitor.desk.sessions.end(visitor.session.id)
    answer = visitor.redirect_with("/login", "logged-out")
    _shared.set_cookie(answer, visitor.desk, auth.COOKIE, "", 0)
    return answer


def _login_page(request: Request, where: str, *, error: str = "") -> HTMLResponse:
    status = 401 if error else 200
    return _shared.page(request, "login.html", status=status, where=where, error=error)


_SHOWN = 6
_MOST_DUPLICATES = 200
_TONES = ("bad", "warn", "warn", "info", "info", "neutral")


class HomeTask(NamedTuple):
    """A task on the home page: a group of requests that wait for the visitor to act."""

    number: int
    words: str
    href: str
    tone: str


@router.get("/")
def show_home(
    visitor: Annotated[_shared.Visitor, Depends(_shared.page_allows())],
    tenant: str | None = None,
) -> HTMLResponse:
    """Show the home page: numbers of requests, and the tasks of the visitor."""
    if not visitor.may("requests:read"):
        return visitor.page("home.html", summary=None, has_models=True)
    filters = {"tenant": tenant, "state": list(request_routes.OPEN)}
    query = check_form(request_routes.RequestQuery, filters)
    summary = request_routes.summarise_requests(visitor, query)
    n_covered = 0  # duplicates whose people are erased, among those with the earliest deadlines
    if summary.counts["duplicate"]:
        duplicates = query.model_copy(update={"state": ["duplicate"]})
        requests = request_routes.find_first_requests(visitor, duplicates, limit=_MOST_DUPLICATES)
        n_covered = sum(request.certificate is not None for request in requests)
    return visitor.page(
        "home.html",
        json=_shared.address("/api/v1/summary", tenant=tenant),
        summary=summary,
        has_models=bool(visitor.ledger.models.list(tenant=visitor.tenant_filter(query.tenant))),
        tasks=list(_list_tasks(visitor, summary, n_covered)),
        bars=list(zip(summary.by_days_left, _TONES, strict=True)),
        first=request_routes.find_first_requests(visitor, query, limit=_SHOWN),
    )


def _list_tasks(
    visitor: auth.Principal, summary: request_routes.Summary, n_covered: int
) -> Iterator[HomeTask]:
    """Yield the tasks of the visitor: groups of requests that the visitor may act on."""
    counts, handle = summary.counts, "requests:handle"
    groups = (
        ("requests:approve", counts["verified"], "Approve requests", "state=verified", "warn"),
        (handle, counts["received"], "Verify identities", "state=received", "warn"),
        (handle, counts["stuck"], "Resolve failed requests", "state=stuck", "bad"),
        (handle, counts["purged"], "Answer people whose data is purged", "state=purged", "info"),
        (handle, n_covered, "Answer people with duplicate requests", "state=duplicate", "info"),
        ("requests:read", summary.n_overdue, "Overdue requests", "overdue=true", "bad"),
        ("requests:read", summary.n_due_soon, "Requests due within a week", "order=due", "warn"),
    )
    for scope, number, words, query, tone in groups:
        if number and visitor.may(scope):
            yield HomeTask(number, words, f"/requests?{query}", tone)


TokenKeeper = Annotated[_shared.Visitor, Depends(_shared.page_allows("tokens:manage"))]
HookKeeper = Annotated[_shared.Visitor, Depends(_shared.page_allows("webhooks:manage"))]
HookCaller = Annotated[
    _shared.Visitor, Depends(_shared.page_allows("webhooks:manage", is_long=True))
]
_ROLE_WORDS = {
    "requester": "files requests and sees the requests filed with this token",
    "operator": "handles requests, models and batches",
    "approver": "approves or rejects requests",
    "auditor": "reads everything and runs audits",
    "admin": "has all permissions",
}
_EVENT_WORDS = {
    "received": "a request is received",
    "certified": "a certificate is issued",
    "overdue": "a request is overdue",
    "retrained": "a model is retrained",
}


# Input class, single-value fields, multi-value field, and the API functions that create and list.
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
def show_tokens(visitor: TokenKeeper, after: str | None = None) -> HTMLResponse:
    """Show the tokens and the form for a new token."""
    return _subject_page(visitor, "tokens", after=after)


@router.post("/tokens")
def make_token(visitor: TokenKeeper, form: _shared.SentForm) -> HTMLResponse:
    """Create a token and show it once."""
    return _create(visitor, "tokens", form)


@router.post("/tokens/{token_id}/revoke")
def revoke_token(visitor: TokenKeeper, token_id: str, form: _shared.SentForm) -> Response:
    """Revoke a token and end its sessions."""
    routes.revoke_token(visitor, token_id, descendants="descendants" in form)
    return visitor.redirect_with("/tokens", "token-revoked")


@router.get("/webhooks")
def show_webhooks(visitor: HookKeeper, after: str | None = None) -> HTMLResponse:
    """Show the webhooks and the form for a new webhook."""
    return _subject_page(visitor, "webhooks", after=after)


@router.post("/webhooks")
def make_webhook(visitor: HookKeeper, form: _shared.SentForm) -> HTMLResponse:
    """Create a webhook and show its secret once."""
    return _create(visitor, "webhooks", form)


@router.get("/webhooks/{webhook_id}")
def show_webhook(visitor: HookKeeper, webhook_id: str, after: str | None = None) -> HTMLResponse:
    """Show a webhook and its messages."""
    hook = routes.show_webhook(visitor, webhook_id)
    listing = routes.list_deliveries(visitor, webhook_id, after=after or None)
    values = {"hook": hook, "listing": listing, "after": after, "event_words": _EVENT_WORDS}
    return visitor.page("webhook.html", json=f"/api/v1/webhooks/{webhook_id}", **values)


@router.post("/webhooks/{webhook_id}/test")
def send_test_message(visitor: HookCaller, webhook_id: str) -> Response:
    """Send a test message to a webhook."""
    attempt = routes.test_webhook(visitor, webhook_id)
    code = "webhook-delivered" if attempt.delivered else "webhook-failed"
    return visitor.redirect_with(f"/webhooks/{webhook_id}", code, attempt.status)


@router.post("/webhooks/{webhook_id}/delete")
def delete_webhook(visitor: HookKeeper, webhook_id: str) -> Response:
    """Remove a webhook and its waiting messages."""
    routes.remove_webhook(visitor, webhook_id)
    return visitor.redirect_with("/webhooks", "webhook-removed")


def _create(visitor: _shared.Visitor, subject: str, form: FormData) -> HTMLResponse:
    kind, names, list_field, create, _ = _SUBJECTS[subject]
    values = [value for value in form.getlist(list_field) if isinstance(value, str)]
    form_values = {name: text_of(form, name) for name in names}
    try:
        created = create(visitor, check_form(kind, form_values | {list_field: values}))
    except ApiProblem as problem:
        if problem.status_code == 404:
            raise
        return _subject_page(visitor, subject, problem=problem, form_values=form_values)
    return _subject_page(visitor, subject, created=created)


def _subject_page(
    visitor: _shared.Visitor,
    subject: str,
    *,
    after: str | None = None,
    created: Any = None,
    **more: Any,
) -> HTMLResponse:
    _, names, _, _, list_all = _SUBJECTS[subject]
    is_for_tenant = created is not None and created.tenant is not None
    empty = dict.fromkeys(names, "") | {"role": "requester", "tenant": visitor.tenant or ""}
    own = set(visitor.scopes)
    values = {
        "listing": list_all(visitor, after=after or None),
        "after": after,
        "created": created,
        "form_values": empty,
        "roles": [(role, role, _ROLE_WORDS[role]) for role in ROLES if ROLES[role] <= own],
        "scopes": {scope: words for scope, words in SCOPES.items() if visitor.may(scope)},
        "has_model": not is_for_tenant or bool(visitor.ledger.models.list(tenant=created.tenant)),
        "event_words": _EVENT_WORDS,
    }
    return visitor.page(f"{subject}.html", json=f"/api/v1/{subject}", **values | more)
