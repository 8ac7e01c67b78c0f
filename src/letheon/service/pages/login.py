"""Coming in with a token, and leaving."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from letheon.ledger.db.tokens import Token
from letheon.service.auth import (
    COOKIE,
    PAGE_OF_ROLE,
    Principal,
    _is_same_origin,
    address_of,
    context,
    public,
)
from letheon.service.errors import Problem
from letheon.service.forms import text_of
from letheon.service.pages._shared import SentForm, done, page, page_allows, safe_path, visitor

router = APIRouter(include_in_schema=False)

_UNKNOWN = "That token is unknown, expired or revoked."
_RECEIPT = "That is a receipt code, and no token. Check it with the link below."


@router.get("/login", dependencies=[Depends(public())])
def show_login(request: Request) -> HTMLResponse:
    """Ask for a token."""
    return _asked(request, safe_path(request.query_params.get("next")))


@router.post("/login", dependencies=[Depends(public())])
def log_in(request: Request, form: SentForm) -> Response:
    """Start a session; the old one of this browser, if any, ends."""
    if not _is_same_origin(request):
        raise Problem(403, "csrf", "This form is not from this desk", "Open /login and try again.")
    desk, address, where = context(request), address_of(request), safe_path(text_of(form, "next"))
    token = desk.tokens.find(text_of(form, "token"))
    if token is None:
        desk.limiter.count("login", address)  # wrong ones only: an office shares its address
        is_code = text_of(form, "token").lower().startswith("lethe-")
        return _asked(request, where, error=_RECEIPT if is_code else _UNKNOWN)
    old = visitor(request)
    if old is not None and old.session is not None:
        desk.sessions.end(old.session.id)
    return _let_in(request, token, where)


@router.post("/logout")
def log_out(request: Request, who: Annotated[Principal, Depends(page_allows())]) -> Response:
    """End the session."""
    if who.session is not None:
        context(request).sessions.end(who.session.id)
    answer = done(request, "/login", "logged-out")
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


def _asked(request: Request, where: str, *, error: str = "") -> HTMLResponse:
    status = 401 if error else 200
    return page(request, "login.html", None, status=status, where=where, error=error)


def _let_in(request: Request, token: Token, where: str) -> RedirectResponse:
    desk = context(request)
    cookie, _ = desk.sessions.start(token.id)
    target = PAGE_OF_ROLE.get(token.role, "/") if where == "/" else where
    answer = RedirectResponse(target, status_code=303)
    answer.set_cookie(
        COOKIE,
        cookie,
        max_age=desk.settings.session_hours * 3600,
        path="/",
        secure=desk.is_secure,
        httponly=True,
        samesite="strict",
    )
    return answer
