"""Shared parts of all pages: templates, access checks, forms and messages.

Pages require a browser session. A form is accepted only with the CSRF token of the session, and
only from the same origin.
"""

import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote, urlencode

import fastapi
from fastapi import Depends, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.templating import Jinja2Templates

from letheon.ledger import REQUEST_STATES
from letheon.ledger.db.jobs import JOB_ID
from letheon.ledger.schemas import NAME, to_datetime
from letheon.service import auth
from letheon.service.errors import ApiProblem
from letheon.service.forms import read_form
from letheon.service.request_views import GROUND_WORDS, GROUNDS, count_words, explain_failure

_HERE = Path(__file__).parents[1]
_SOON_DAYS = 7
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_AGES = ((86_400, "day"), (3600, "hour"), (60, "minute"))


class StateLabel(NamedTuple):
    """A label as pages show it, with its tone (colour) and an explanation."""

    text: str
    tone: str
    meaning: str = ""


STATE_LABELS = {name: StateLabel(*state[:3]) for name, state in REQUEST_STATES.items()}
"""The label of each state of a request, in the order in which a request passes them."""


def state_label(state: str) -> StateLabel:
    """Return the label of a state; an unknown state is shown as its code."""
    return STATE_LABELS.get(state, StateLabel(state.replace("_", " "), "neutral"))


def days_label(days_left: int) -> StateLabel:
    """Return a label such as "3 days left", or "2 days overdue" for a negative number."""
    if days_left < 0:
        return StateLabel(f"{count_words(-days_left, 'day')} overdue", "bad")
    if days_left == 0:
        return StateLabel("due today", "bad")
    tone = "warn" if days_left <= _SOON_DAYS else "neutral"
    return StateLabel(f"{count_words(days_left, 'day')} left", tone)


def make_templates() -> Jinja2Templates:
    """Return the templates of the pages; they escape values and reject missing variables."""
    env = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        day=_format_day,
        moment=format_moment,
        ago=_format_age,
        iso=_format_iso,
        number=_format_number,
        counted=count_words,
        bytes=_format_bytes,
        pair=_to_option,
    )
    env.globals.update(
        asset=_asset_address,
        state_label=state_label,
        days_label=days_label,
        address=address,
        ground_options=_ground_options,
        ground_choices=_ground_choices,
        laws=LAWS,
        grounds=GROUNDS,
        ground_words=GROUND_WORDS,
        stuck_words=explain_failure,
        measures=MEASURES,
        tenant_choices=tenant_choices,
    )
    env.globals["ui"] = env.get_template("macros.html").module
    return Jinja2Templates(env=env)


@cache
def _asset_address(name: str) -> str:
    """Return the URL of a static file, with a digest of its contents so that it can be cached."""
    digest = hashlib.sha256((_HERE / "static" / name).read_bytes()).hexdigest()
    return f"/static/{name}?v={digest[:12]}"


def address(path: str, *parts: dict[str, Any], **changes: Any) -> str:
    """Return a path with a query string of all parameters that are not empty.

    A later value of a parameter replaces an earlier one. A list becomes a repeated parameter.
    """
    values: dict[str, Any] = {}
    for part in (*parts, changes):
        values |= part
    kept = {name: value for name, value in values.items() if value or value == 0}
    return f"{path}?{urlencode(kept, doseq=True)}" if kept else path


def _to_option(text: str) -> tuple[str, str]:
    """Return an option of a select field, whose label is the same as its value."""
    return text, text


def _ground_options(grounds: Any) -> list[tuple[str, str]]:
    """Return options of a select field for legal grounds, labelled with words and code."""
    return [
        (ground.code, f"{ground.words[:1].upper()}{ground.words[1:]} ({ground.code})")
        for ground in grounds
    ]


def _ground_choices(grounds: Any, law: str = "") -> list[tuple[str, str]]:
    """Return options of a select field for legal grounds, with no ground preselected.

    If a law is given, the grounds of other laws are left out.
    """
    others = tuple(f"{code}." for code, _ in LAWS if law and code != law)
    matching = [ground for ground in grounds if not ground.code.startswith(others)]
    return [("", "Choose a ground…"), *_ground_options(matching)]


def _read_time(value: Any) -> datetime | date:
    """Convert seconds since 1970, an ISO text, a date or a datetime to a date or datetime."""
    time: datetime | date = value
    if isinstance(value, int):
        time = to_datetime(value)
    elif isinstance(value, str):
        time = datetime.fromisoformat(value) if "T" in value else date.fromisoformat(value)
    return time.astimezone(UTC) if isinstance(time, datetime) else time


def _format_iso(value: Any) -> str:
    time = _read_time(value)
    return time.isoformat(timespec="seconds") if isinstance(time, datetime) else time.isoformat()


def _format_day(value: Any) -> str:
    """Format a day: "15 Nov 2026" for a date, "15 Nov 2026 UTC" for a datetime."""
    time = _read_time(value)
    zone = " UTC" if isinstance(time, datetime) else ""
    return f"{time.day} {_MONTHS[time.month - 1]} {time.year}{zone}"


def format_moment(value: Any) -> str:
    """Format a time as "15 Nov 2026, 14:03 UTC"; a date without the time of day."""
    time = _read_time(value)
    return (
        f"{_format_day(time.date())}, {time:%H:%M} UTC"
        if isinstance(time, datetime)
        else _format_day(time)
    )


def _format_age(value: Any, now: int) -> str:
    """Format a time relative to now: "3 hours ago", "in 3 hours" or "just now"."""
    time = _read_time(value)
    if not isinstance(time, datetime):
        time = datetime(time.year, time.month, time.day, tzinfo=UTC)
    seconds = now - int(time.timestamp())
    for length, word in _AGES:
        if abs(seconds) >= length:
            age = count_words(abs(seconds) // length, word)
            return f"{age} ago" if seconds > 0 else f"in {age}"
    return "just now"


def _format_number(value: float) -> str:
    """Format a number with thousands separators; a float with four significant digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _format_bytes(size: float) -> str:
    """Format a size in bytes, for example as "3.4 MiB"."""
    for unit in ("bytes", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"


Model = Annotated[str, fastapi.Path(pattern=f"^{NAME.pattern}$")]
ModelFilter = Annotated[str | None, Query(pattern=f"^({NAME.pattern})?$")]
Tenant = Annotated[str | None, Query(max_length=200)]
After = Annotated[str | None, Query(pattern="^[0-9]{1,12}$")]
AfterText = Annotated[str | None, Query(max_length=200)]
AfterJob = Annotated[str | None, Query(pattern=JOB_ID)]
Job = Annotated[str | None, Query(pattern=JOB_ID)]
JobId = Annotated[str, fastapi.Path(pattern=JOB_ID)]

LAWS = (("gdpr", "GDPR (EU)"), ("ccpa", "CCPA (California)"))
FLASH = "letheon_flash"
THEME = "letheon_theme"
_FLASH_SECONDS = 30
# No control characters, spaces or backslashes: browsers read "/\" and "/<tab>/" as "//".
_SAFE_PATH = re.compile(r"/(?!/)[!-\[\]-~]{0,1000}")
_FOR_PROGRAMS = re.compile(r"/api/|/openapi|`letheon [a-z]+ list`")
_FLASH_VALUE = re.compile(r"([a-z-]{1,40})(?:\.([0-9]{1,9}))?")

FLASHES: dict[str, tuple[str, str]] = {
    "verify": ("good", "Identity marked as verified."),
    "await-identity": ("good", "Recorded that proof of identity was requested."),
    "approve": ("good", "Approved. The request is waiting for the next batch."),
    "hold": ("good", "Put on hold. The deadline does not change."),
    "release": ("good", "Released from hold."),
    "extend": ("good", "Deadline extended."),
    "retry": ("good", "Retry scheduled."),
    "cancel": ("good", "Request withdrawn."),
    "reject": ("good", "Request rejected."),
    "tell": ("good", "Number of notified recipients recorded."),
    "answer": ("good", "Marked as answered."),
    "filed": ("good", "Request recorded."),
    "filed-many": (
        "warn",
        "Request for {number} people recorded without a receipt code: a code is for one person.",
    ),
    "filed-no-code": (
        "warn",
        "Request recorded without a receipt code, because this person's data was already erased.",
    ),
    "filed-before": ("warn", "This request was recorded earlier; its receipt code was shown then."),
    "many-done": ("good", "Requests changed: {number}."),
    "many-none": ("warn", "Select at least one request first."),
    "many-no-ground": ("warn", "Choose a legal ground first. No request was changed."),
    "token-revoked": ("good", "Token revoked. Its sessions have ended."),
    "webhook-removed": ("good", "Webhook removed."),
    "webhook-delivered": ("good", "Test message delivered (status {number})."),
    "webhook-failed": ("bad", "The test message could not be delivered."),
    "logged-out": ("good", "You are logged out."),
    "model-registered": ("good", "Model registered."),
    "example-added": ("good", "Example model registered."),
    "job-queued": ("good", "Job queued. This page shows its progress."),
    "audit-started": ("good", "Audit started."),
}
"""Messages that pages show after an action, by code: tone and text.

The cookie that selects the message contains only the code.
"""

MEASURES = {
    "efficiency": ("Efficiency", "How many times faster the removal was than retraining.", "×"),
    "effectiveness": ("Effectiveness", "Loss of performance compared with a retrained model.", ""),
    "consistency": (
        "Consistency",
        "Distance between the parameters of the model and those of a retrained model.",
        "",
    ),
    "certifiability": (
        "Certifiability",
        "How well the model can be distinguished from a retrained model.",
        "",
    ),
}
"""Title, description and unit of each of the four measures."""

LEVEL_WORDS = {
    "V0": "Signatures, schema and chain of the certificates",
    "V1": "Log: no entry was removed, changed or inserted",
    "V2": "Data: the signed commitment changed only for the erased rows",
    "V3": "Residue: the erased data was purged, and the stores were searched",
    "V4": "Reproduction: the model is retrained and compared",
    "V5": "Bound: epsilon and delta are recomputed from rows and settings",
    "V6": "Canaries planted by an auditor",
    "own": "Measures computed by the auditor",
}
"""What each level of an audit checks."""

DRILLS = {
    "none": "No drill",
    "model": "Change one byte of a model file in a copy",
    "certificate": "Change one byte of a certificate in a copy",
    "log": "Change one byte of the log in a copy",
}
"""What each drill changes in a copy of the bundle; the audit must then fail."""


@dataclass(frozen=True, kw_only=True)
class Visitor(auth.Principal):
    """The user of a browser session.

    Attributes
    ----------
    request : Request
        The HTTP request.
    """

    request: Request = field(repr=False, compare=False)

    def page(self, name: str, **values: Any) -> HTMLResponse:
        """Return a page for this visitor; the arguments are those of the function `page`."""
        return page(self.request, name, self, **values)

    def list_page(
        self, name: str, listing: Any, query: dict[str, Any], **more: Any
    ) -> HTMLResponse:
        """Return one page of a list, with links to the first and the next page of the list."""
        path, after = self.request.url.path, self.request.query_params.get("after")
        links = {
            "json": address(f"/api/v1{path}", query, after=after),
            "first": address(path, query) if after else None,
            "next": address(path, query, after=listing.next) if listing.next else None,
        }
        return self.page(name, listing=listing, query=query, **links | more)

    def redirect_with(self, path: str, code: str, number: int | None = None) -> Response:
        """Redirect to a page that shows a message once.

        `code` is a key of `FLASHES`; `number` replaces the placeholder in the message.
        """
        if code not in FLASHES:
            raise KeyError(f"unknown message {code!r}; add it to FLASHES")
        answer = redirect(self.request, path)
        message = code if number is None else f"{code}.{number}"
        set_cookie(answer, self.desk, FLASH, message, _FLASH_SECONDS)
        return answer


@dataclass(frozen=True)
class PageGate(auth.Gate):
    """The access check of a page: the token of the session must have one of the scopes.

    A visitor without a session is redirected to the login page. Calls that change data also need
    the CSRF token of the session.
    """

    async def __call__(self, request: Request) -> AsyncIterator[Visitor]:  # type: ignore[override]
        """Yield the visitor, and close the submitted form after the call.

        Raise an `ApiProblem`, or an `HTTPException` that redirects to the login page, if access is
        refused.
        """
        try:
            yield await self._load_visitor(request)
        finally:
            await _close_form(request)

    async def _load_visitor(self, request: Request) -> Visitor:
        visitor = await run_in_threadpool(auth.find_visitor, request)
        if visitor is None or visitor.session is None:
            raise _login_redirect(request)
        self.admit(request, visitor, title="Your token does not permit this")
        self.enter(request, visitor)
        if request.method not in auth.SAFE:  # last: reading a large form is expensive
            token: Any = request.headers.get("x-csrf-token")
            token = token if token is not None else (await _read_sent_form(request)).get("csrf")
            auth.require_csrf(request, visitor.session, token if isinstance(token, str) else None)
        return Visitor(**vars(visitor), request=request)


def page_allows(*scopes: str, is_long: bool = False) -> PageGate:
    """Return a dependency that yields the visitor if the token has one of these scopes.

    Any token is accepted if no scopes are given.
    """
    return PageGate(scopes, is_long=is_long)


async def read_sent_form(request: Request) -> AsyncIterator[FormData]:
    """Yield the submitted form; the access check of the page has verified its CSRF token."""
    try:
        yield await _read_sent_form(request)
    finally:
        await _close_form(request)


SentForm = Annotated[FormData, Depends(read_sent_form)]


def page(
    request: Request,
    name: str,
    visitor: auth.Principal | None = None,
    *,
    json: str | None = None,
    status: int = 200,
    problem: ApiProblem | None = None,
    **values: Any,
) -> HTMLResponse:
    """Render a template as a page.

    Parameters
    ----------
    request : Request
        The HTTP request.
    name : str
        File name of the template.
    visitor : Principal or None
        The user; None on public pages.
    json : str, optional
        Address where the API returns the same content as JSON.
    status : int, default=200
        Status of the response; `problem` overrides it.
    problem : ApiProblem, optional
        Error to show.
    **values
        Variables of the template, in addition to `csrf`, `theme`, `flash`, `tenant`, `now` and
        the other variables that all pages have.
    """
    desk, code, theme = (
        auth.context(request),
        request.cookies.get(FLASH),
        request.cookies.get(THEME),
    )
    tenant, bound = request.query_params.get("tenant"), None if visitor is None else visitor.tenant
    if tenant is not None and not NAME.fullmatch(tenant):
        tenant = None
    frame = {
        "visitor": visitor,
        "csrf": "" if visitor is None or visitor.session is None else visitor.session.csrf,
        "theme": theme if theme in ("light", "dark") else None,
        "flash": _read_flash(code),
        "tenant": bound or tenant,
        "tenant_query": "" if visitor is None or bound else address("", tenant=tenant),
        "json": json,
        "now": desk.ledger.clock(),
        "is_demo": desk.is_demo,
        "problem": problem,
    }
    status = status if problem is None else problem.status_code
    answer: HTMLResponse = desk.templates.TemplateResponse(
        request, name, frame | values, status_code=status
    )
    if code is not None:
        set_cookie(answer, desk, FLASH, "", 0)
    return answer


def set_cookie(answer: Response, desk: auth.Context, name: str, value: str, seconds: int) -> None:
    """Set a cookie that scripts cannot read and that is not sent with calls from other sites.

    The cookie expires after `seconds`; 0 deletes it.
    """
    is_secure = desk.is_secure and seconds > 0
    answer.set_cookie(
        name, value, seconds, path="/", httponly=True, samesite="strict", secure=is_secure
    )


def redirect(request: Request, path: str) -> Response:
    """Return a redirect to another page.

    A call by the htmx script gets the header ``HX-Redirect``, because the browser would follow a
    303 response without telling the script.
    """
    if "hx-request" in request.headers:
        return Response(status_code=204, headers={"HX-Redirect": path})
    return RedirectResponse(path, status_code=303)


def problem_page(request: Request, problem: ApiProblem) -> Response:
    """Return the page that shows a problem, or a redirect if its status is 303."""
    headers = dict(problem.headers or {})
    if problem.status_code == 303:
        return redirect(request, headers["Location"])
    visitor = auth.find_visitor(request) if problem.status_code < 500 else None
    answer = page(request, "problem.html", visitor, problem=_simplify_problem(problem))
    answer.headers.update(headers)
    return answer


def _simplify_problem(problem: ApiProblem) -> ApiProblem:
    """Return a problem whose text is meant for users of pages, without hints for API clients."""
    status = problem.status_code
    if problem.code == "not-found":
        return ApiProblem(
            status, problem.code, "Page not found", "Use the menu, or go back to the previous page."
        )
    if problem.code == "invalid" and problem.fields:
        words = "A parameter of the address is missing or not valid. Use the menu."
        return ApiProblem(status, problem.code, "Invalid address", words)
    parts = re.split(r"(?<=[.;])\s+", str(problem.detail))
    kept = " ".join(part for part in parts if not _FOR_PROGRAMS.search(part)).removesuffix(";")
    return ApiProblem(status, problem.code, problem.title, kept, fields=problem.fields)


def safe_path(text: str | None) -> str:
    """Return the path to open after login; "/" if the text is not a path of this site."""
    return text if text is not None and _SAFE_PATH.fullmatch(text) else "/"


def _login_redirect(request: Request) -> HTTPException:
    path = request.url.path
    if request.method not in auth.SAFE:
        path = "/"
    elif request.url.query:
        path = f"{path}?{request.url.query}"
    where = "/login" if path == "/" else f"/login?next={quote(safe_path(path), safe='/')}"
    return HTTPException(303, headers={"Location": where})


async def _read_sent_form(request: Request) -> FormData:
    """Return the submitted form of a call; it is parsed once and then kept."""
    form: FormData | None = getattr(request.state, "form", None)
    if form is None:
        form = request.state.form = await read_form(request)
    return form


async def _close_form(request: Request) -> None:
    form: FormData | None = getattr(request.state, "form", None)
    if form is not None:
        await form.close()


def _read_flash(value: str | None) -> dict[str, str] | None:
    match = _FLASH_VALUE.fullmatch(value or "")
    if match is None or match[1] not in FLASHES:
        return None
    tone, words = FLASHES[match[1]]
    return {"tone": tone, "words": words.format(number=match[2] or "")}


def tenant_choices(visitor: auth.Principal) -> list[str]:
    """Return the tenants that a visitor can choose from; an empty list if there is only one."""
    if visitor.tenant is not None:
        return []
    tenants = {model.tenant for model in visitor.ledger.models.list()}
    return sorted(tenants) if len(tenants) > 1 else []
