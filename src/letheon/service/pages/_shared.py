"""What all pages share: who may see one, the form that was sent, the frame around the content.

A page is open to browser sessions only. A form is accepted only with the CSRF token of its session,
and from a page of this very site.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import Depends, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException

from letheon.ledger.db.jobs import CURSOR, JOB_ID
from letheon.ledger.schemas import NAME
from letheon.service.auth import (
    COOKIE,
    SAFE,
    Gate,
    Principal,
    context,
    principal_of_session,
    require_csrf,
)
from letheon.service.errors import Problem
from letheon.service.forms import read_form
from letheon.service.request_words import GROUND_WORDS, stuck_words
from letheon.service.routes.requests import GROUNDS

Model = Annotated[str, Path(pattern=f"^{NAME.pattern}$")]
ModelFilter = Annotated[str | None, Query(pattern=f"^({NAME.pattern})?$")]
Tenant = Annotated[str | None, Query(max_length=200)]
After = Annotated[str | None, Query(pattern="^[0-9]{1,12}$")]
AfterText = Annotated[str | None, Query(max_length=200)]
AfterJob = Annotated[str | None, Query(pattern=CURSOR)]
Job = Annotated[str | None, Query(pattern=JOB_ID)]
JobId = Annotated[str, Path(pattern=JOB_ID)]

LAWS = (("gdpr", "GDPR (EU)"), ("ccpa", "CCPA (California)"))
FLASH = "letheon_flash"
THEME = "letheon_theme"
_FLASH_SECONDS = 30
# No control characters, spaces or backslashes: browsers read "/\" and "/<tab>/" as "//".
_SAFE_PATH = re.compile(r"/(?!/)[!-\[\]-~]{0,1000}")
_FOR_PROGRAMS = re.compile(r"/api/|/openapi|`letheon [a-z]+ list`")
_FLASH_VALUE = re.compile(r"([a-z-]{1,40})(?:\.([0-9]{1,9}))?")

FLASHES: dict[str, tuple[str, str]] = {
    "verify": ("good", "Identity recorded as verified."),
    "await-identity": ("good", "Recorded that a proof of identity was asked for."),
    "approve": ("good", "Approved: it waits for the next batch."),
    "hold": ("good", "Put on hold. The legal clock goes on."),
    "release": ("good", "The hold ended."),
    "extend": ("good", "Extended."),
    "retry": ("good", "Queued again."),
    "cancel": ("good", "Cancelled."),
    "reject": ("good", "Rejected."),
    "tell": ("good", "Recorded that recipients were told."),
    "answer": ("good", "Closed: the person was answered."),
    "filed": ("good", "The request is recorded."),
    "filed-many": (
        "warn",
        "Recorded for {number} people, so without a receipt code: that is for one person alone.",
    ),
    "filed-no-code": (
        "warn",
        "The request is recorded, without a receipt code: another request erased the person.",
    ),
    "filed-before": ("warn", "The request was recorded before; its receipt code was shown then."),
    "many-done": ("good", "Done. Requests changed: {number}."),
    "many-none": ("warn", "Select at least one request first."),
    "many-no-ground": ("warn", "Choose a legal ground first. Nothing was changed."),
    "token-revoked": ("good", "The token was revoked. Its sessions have ended."),
    "webhook-removed": ("good", "The webhook was removed."),
    "webhook-delivered": ("good", "The test was delivered (status {number})."),
    "webhook-failed": ("bad", "The test was not delivered."),
    "logged-out": ("good", "You are logged out."),
    "model-registered": ("good", "The model is registered."),
    "example-added": ("good", "The example model is registered."),
    "job-queued": ("good", "The worker has been asked; progress shows here."),
    "audit-started": ("good", "The audit is under way."),
}
"""What a page may say after an action: tone and words. Only codes travel, in a cookie."""

MEASURES = {
    "efficiency": ("Efficiency", "How many times faster than training afresh.", "×"),
    "effectiveness": ("Effectiveness", "Loss of quality against a retrained model.", ""),
    "consistency": ("Consistency", "Distance of the parameters from a retrained model.", ""),
    "certifiability": ("Certifiability", "How far the model can be told from a retrained one.", ""),
}
"""Title, meaning and unit of the four measures."""

LEVEL_WORDS = {
    "V0": "Signatures, schema and chain of the certificates",
    "V1": "The log: nothing was dropped, changed or put in between",
    "V2": "The data: erased rows are gone from the commitment, nothing else moved",
    "V3": "Residue: the purges, and what the search of the stores found",
    "V4": "Re-derivation: the model is trained again and compared",
    "V5": "Bound: epsilon and delta follow from rows and settings",
    "V6": "Canaries that an auditor planted",
    "own": "Measures of the auditor's own",
}
"""What an audit looks at on each level."""

DRILLS = {
    "none": "No drill: audit the ledger as it is",
    "model": "Drill: change one byte of a model file in the copy",
    "certificate": "Drill: change one byte of a certificate in the copy",
    "log": "Drill: change one byte of the log in the copy",
}
"""What a drill damages, in a copy, so that an audit must fail."""


@dataclass(frozen=True)
class PageGate(Gate):
    """What a page demands: a session whose token has one of some scopes.

    Without a session it leads to the log-in. A change needs the CSRF token in its form as well.
    """

    async def __call__(self, request: Request) -> AsyncIterator[Principal]:  # type: ignore[override]
        """Yield who is looking, or refuse; what was sent is let go of at the end."""
        try:
            yield await self._admitted(request)
        finally:
            await _close_form(request)

    async def _admitted(self, request: Request) -> Principal:
        who = await run_in_threadpool(visitor, request)
        if who is None or who.session is None:
            raise _to_login(request)
        request.scope["letheon_token"] = who.token_id
        context(request).limiter.count_call(who.token_id)
        who.require(*self.scopes, title="Your token may not do that")
        self.enter(request, who)
        if request.method not in SAFE:  # last: what is sent may be large, and is read for this
            require_csrf(request, who.session, await _sent_token(request))
        return who


def page_allows(*scopes: str, is_long: bool = False) -> PageGate:
    """Return a dependency: who is looking, if they have one of these scopes; none for anybody."""
    return PageGate(scopes, is_long=is_long)


async def csrf_protected(request: Request) -> AsyncIterator[FormData]:
    """Yield the form that was sent; the page's gate has checked its CSRF token."""
    try:
        yield await _form_of(request)
    finally:
        await _close_form(request)


SentForm = Annotated[FormData, Depends(csrf_protected)]


def visitor(request: Request) -> Principal | None:
    """Return whose session a browser shows, if it lasts."""
    desk, cookie = context(request), request.cookies.get(COOKIE)
    session = None if cookie is None else desk.sessions.find(cookie)
    return None if session is None else principal_of_session(desk, session)


def page(
    request: Request,
    name: str,
    who: Principal | None,
    *,
    json: str | None = None,
    status: int = 200,
    **values: Any,
) -> HTMLResponse:
    """Return a page.

    Parameters
    ----------
    request : Request
        The call.
    name : str
        File of the template.
    who : Principal or None
        Who is looking; None on public pages.
    json : str, optional
        Address of the same in JSON.
    status : int, default=200
        Of the answer.
    **values
        What the template shows. It also has `csrf`, `theme`, `flash`, `tenant`, `now`.
    """
    desk = context(request)
    code = request.cookies.get(FLASH)
    frame = {
        "who": who,
        "csrf": "" if who is None or who.session is None else who.session.csrf,
        "theme": _theme(request),
        "flash": _flash(code),
        "tenant": _tenant(request, who),
        "tenant_query": _tenant_query(request, who),
        "json": json,
        "now": desk.clock(),
        "is_demo": desk.is_demo,
        "laws": LAWS,
        "grounds": GROUNDS,
        "ground_words": GROUND_WORDS,
        "stuck_words": stuck_words,
        "measures": MEASURES,
    }
    answer: HTMLResponse = desk.templates.TemplateResponse(
        request, name, frame | values, status_code=status
    )
    if code is not None:
        answer.delete_cookie(FLASH, path="/", httponly=True, samesite="strict")
    return answer


def done(request: Request, path: str, code: str, number: int | None = None) -> Response:
    """Lead to another page that says, once, that something was done.

    `code` is one of `FLASHES`; `number` takes the place that its words leave for one.
    """
    if code not in FLASHES:
        raise KeyError(f"{code} is no message; add it to FLASHES")
    answer: Response = RedirectResponse(path, status_code=303)
    if "hx-request" in request.headers:  # a script would follow by itself, and lose the message
        answer = Response(status_code=204, headers={"HX-Redirect": path})
    answer.set_cookie(
        FLASH,
        code if number is None else f"{code}.{number}",
        max_age=_FLASH_SECONDS,
        path="/",
        httponly=True,
        samesite="strict",
        secure=context(request).is_secure,
    )
    return answer


def problem_page(request: Request, problem: Problem) -> Response:
    """Return a problem as a page; a redirection stays one."""
    headers = dict(problem.headers or {})
    if problem.status_code == 303:
        if "hx-request" in request.headers:
            return Response(status_code=204, headers={"HX-Redirect": headers["Location"]})
        return RedirectResponse(headers["Location"], status_code=303)
    who = visitor(request) if problem.status_code < 500 else None
    shown = _for_people(problem)
    answer = page(request, "problem.html", who, status=problem.status_code, problem=shown)
    for name, value in headers.items():
        answer.headers[name] = value
    return answer


def _for_people(problem: Problem) -> Problem:
    """Return a problem without what is of use to programs only."""
    status = problem.status_code
    if problem.code == "not-found":
        return Problem(status, problem.code, "There is no such page", "Use the menu, or go back.")
    if problem.code == "invalid" and problem.fields:
        words = "A part of it is missing, or has not the form that it must have. Use the menu."
        return Problem(status, problem.code, "This address cannot be right", words)
    parts = re.split(r"(?<=[.;])\s+", str(problem.detail))
    kept = " ".join(part for part in parts if not _FOR_PROGRAMS.search(part)).removesuffix(";")
    return Problem(status, problem.code, problem.title, kept, fields=problem.fields)


def safe_path(text: str | None) -> str:
    """Return where a log-in may lead: a path of this desk, and nothing else."""
    return text if text is not None and _SAFE_PATH.fullmatch(text) else "/"


def _to_login(request: Request) -> HTTPException:
    path = request.url.path
    if request.method not in SAFE:
        path = "/"
    elif request.url.query:
        path = f"{path}?{request.url.query}"
    where = "/login" if path == "/" else f"/login?next={quote(safe_path(path), safe='/')}"
    return HTTPException(303, headers={"Location": where})


async def _sent_token(request: Request) -> str | None:
    header = request.headers.get("x-csrf-token")
    if header is not None:
        return header
    token = (await _form_of(request)).get("csrf")
    return token if isinstance(token, str) else None


async def _form_of(request: Request) -> FormData:
    """Return the form that was sent, read once."""
    form: FormData | None = getattr(request.state, "form", None)
    if form is None:
        form = request.state.form = await read_form(request)
    return form


async def _close_form(request: Request) -> None:
    form: FormData | None = getattr(request.state, "form", None)
    if form is not None:
        await form.close()


def _tenant(request: Request, who: Principal | None) -> str | None:
    """Return the tenant in the address, or the one that the visitor is bound to."""
    if who is not None and who.tenant is not None:
        return who.tenant
    asked = request.query_params.get("tenant")
    return asked if asked is not None and NAME.fullmatch(asked) else None


def _tenant_query(request: Request, who: Principal | None) -> str:
    tenant = _tenant(request, who)
    is_chosen = tenant is not None and who is not None and who.tenant is None
    return "?" + urlencode({"tenant": tenant}) if is_chosen else ""


def _theme(request: Request) -> str | None:
    found = request.cookies.get(THEME)
    return found if found in ("light", "dark") else None


def _flash(value: str | None) -> dict[str, str] | None:
    found = None if value is None else _FLASH_VALUE.fullmatch(value)
    if found is None or found[1] not in FLASHES:
        return None
    tone, words = FLASHES[found[1]]
    return {"tone": tone, "words": words.format(number=found[2] or "")}


def tenant_choices(who: Principal) -> list[str]:
    """Return whose things a visitor may choose; nothing where there is nothing to choose."""
    tenants = set() if who.tenant is not None else {one.tenant for one in who.ledger.models.list()}
    return sorted(tenants) if len(tenants) > 1 else []


def address(path: str, **query: Any) -> str:
    """Return a path of this desk with a query of what is not None."""
    given = {name: value for name, value in query.items() if value is not None}
    return quote(path) + ("?" + urlencode(given) if given else "")


def page_links(
    path: str, after: str | None, following: str | None, query: dict[str, Any]
) -> dict[str, Any]:
    """Return the addresses of the first and of the next part of a list, where there are others."""
    return {
        "first": address(path, **query) if after else None,
        "next": address(path, after=following, **query) if following else None,
    }
