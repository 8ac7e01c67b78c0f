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
from letheon.ledger.db.jobs import CURSOR, JOB_ID
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
    """A label with its tone and meaning."""

    text: str
    tone: str
    meaning: str = ""


STATE_LABELS = {name: StateLabel(*state[:3]) for name, state in REQUEST_STATES.items()}
"""Label of each state of a request, in the usual order."""


def state_label(state: str) -> StateLabel:
    """Return the label of a state; an unknown state is shown as its code."""
    return STATE_LABELS.get(state, StateLabel(state.replace("_", " "), "neutral"))


def days_label(days_left: int) -> StateLabel:
    """Return the label of the days left until a deadline; a negative number is overdue."""
    if days_left < 0:
        return StateLabel(f"{count_words(-days_left, 'day')} overdue", "bad")
    if days_left == 0:
        return StateLabel("due today", "bad")
    tone = "warn" if days_left <= _SOON_DAYS else "neutral"
    return StateLabel(f"{count_words(days_left, 'day')} left", tone)


def make_templates() -> Jinja2Templates:
    """Return the templates. Values are escaped; a missing value raises an error."""
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
    """Return the address of a static file, with a digest of its content for caching."""
    digest = hashlib.sha256((_HERE / "static" / name).read_bytes()).hexdigest()
    return f"/static/{name}?v={digest[:12]}"


def address(path: str, *parts: dict[str, Any], **changes: Any) -> str:
    """Return a path with the non-empty parameters; later values win, lists repeat a name."""
    values: dict[str, Any] = {}
    for part in (*parts, changes):
        values |= part
    kept = {name: value for name, value in values.items() if value or value == 0}
    return f"{path}?{urlencode(kept, doseq=True)}" if kept else path


def _to_option(text: str) -> tuple[str, str]:
    """Return a select option whose value is its label."""
    return text, text


def _ground_options(grounds: Any) -> list[tuple[str, str]]:
    """Return grounds as select options: description and code."""
    return [
        (ground.code, f"{ground.words[:1].upper()}{ground.words[1:]} ({ground.code})")
        for ground in grounds
    ]


def _ground_choices(grounds: Any, law: str = "") -> list[tuple[str, str]]:
    """Return select options without a preselected ground; `law` excludes those of other laws."""
    others = tuple(f"{code}." for code, _ in LAWS if law and code != law)
    matching = [ground for ground in grounds if not ground.code.startswith(others)]
    return [("", "Choose a ground…"), *_ground_options(matching)]


def _read_time(value: Any) -> datetime | date:
    """Return a time from seconds since 1970, ISO text, a date or a datetime."""
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
    """Return "15 Nov 2026" for a date, "15 Nov 2026 UTC" for a datetime."""
    time = _read_time(value)
    zone = " UTC" if isinstance(time, datetime) else ""
    return f"{time.day} {_MONTHS[time.month - 1]} {time.year}{zone}"


def format_moment(value: Any) -> str:
    """Return "15 Nov 2026, 14:03 UTC"."""
    time = _read_time(value)
    return (
        f"{_format_day(time.date())}, {time:%H:%M} UTC"
        if isinstance(time, datetime)
        else _format_day(time)
    )


def _format_age(value: Any, now: int) -> str:
    """Return "3 hours ago", or "in 3 hours"."""
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
    """Return an integer with thousands separators, or a float with four digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _format_bytes(size: float) -> str:
    """Return "3.4 MiB"."""
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
AfterJob = Annotated[str | None, Query(pattern=CURSOR)]
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
    "tell": ("good", "Notified recipients recorded."),
    "answer": ("good", "Marked as answered."),
    "filed": ("good", "Request recorded."),
    "filed-many": (
        "warn",
        "Request for {number} people recorded without a receipt code: a code is for one person.",
    ),
    "filed-no-code": (
        "warn",
        "Request recorded without a receipt code: this person's data is already erased.",
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
"""Messages after an action: tone and text. The cookie holds only the code."""

MEASURES = {
    "efficiency": ("Efficiency", "Speed-up over a retrain.", "×"),
    "effectiveness": ("Effectiveness", "Loss of performance compared with a retrained model.", ""),
    "consistency": ("Consistency", "Distance of the parameters from a retrained model.", ""),
    "certifiability": (
        "Certifiability",
        "How well the model can be distinguished from a retrained one.",
        "",
    ),
}
"""Title, description and unit of the four measures."""

LEVEL_WORDS = {
    "V0": "Signatures, schema and chain of the certificates",
    "V1": "Log: no entry was removed, changed or inserted",
    "V2": "Data: the commitment changed for erased rows only",
    "V3": "Residue: purges and the search of the stores",
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
"""What a drill changes in a copy; the audit must then fail."""


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
        """Return a page for this visitor; see `page`."""
        return page(self.request, name, self, **values)

    def list_page(
        self, name: str, listing: Any, query: dict[str, Any], **more: Any
    ) -> HTMLResponse:
        """Return a page of a list, with links to its first and next page."""
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
    """Access check of a page: a session whose token has one of the scopes.

    Without a session it redirects to the login. Changes require the CSRF token as well.
    """

    async def __call__(self, request: Request) -> AsyncIterator[Visitor]:  # type: ignore[override]
        """Yield the visitor, or raise; the form is closed at the end."""
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
    """Return a dependency that yields a visitor with one of these scopes; without scopes, any."""
    return PageGate(scopes, is_long=is_long)


async def read_sent_form(request: Request) -> AsyncIterator[FormData]:
    """Yield the form; the access check of the page has verified its CSRF token."""
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
    """Return a page.

    Parameters
    ----------
    request : Request
        The HTTP request.
    name : str
        File of the template.
    visitor : Principal or None
        The user; None on public pages.
    json : str, optional
        Address of the same content as JSON.
    status : int, default=200
        Status of the response; `problem` overrides it.
    problem : ApiProblem, optional
        Error to show.
    **values
        Variables of the template, besides `csrf`, `theme`, `flash`, `tenant` and `now`.
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
    """Set a cookie that scripts cannot read and other sites cannot send; `seconds=0` deletes it."""
    is_secure = desk.is_secure and seconds > 0
    answer.set_cookie(
        name, value, seconds, path="/", httponly=True, samesite="strict", secure=is_secure
    )


def redirect(request: Request, path: str) -> Response:
    """Redirect to another page; a script gets a header, because it would follow a 303 itself."""
    if "hx-request" in request.headers:
        return Response(status_code=204, headers={"HX-Redirect": path})
    return RedirectResponse(path, status_code=303)


def problem_page(request: Request, problem: ApiProblem) -> Response:
    """Return a problem as a page; a redirect stays a redirect."""
    headers = dict(problem.headers or {})
    if problem.status_code == 303:
        return redirect(request, headers["Location"])
    visitor = auth.find_visitor(request) if problem.status_code < 500 else None
    answer = page(request, "problem.html", visitor, problem=_simplify_problem(problem))
    answer.headers.update(headers)
    return answer


def _simplify_problem(problem: ApiProblem) -> ApiProblem:
    """Return a problem without the hints for API clients."""
    status = problem.status_code
    if problem.code == "not-found":
        return ApiProblem(
            status, problem.code, "Page not found", "Use the menu, or go back to the previous page."
        )
    if problem.code == "invalid" and problem.fields:
        words = "A parameter of the address is missing or invalid. Use the menu."
        return ApiProblem(status, problem.code, "Invalid address", words)
    parts = re.split(r"(?<=[.;])\s+", str(problem.detail))
    kept = " ".join(part for part in parts if not _FOR_PROGRAMS.search(part)).removesuffix(";")
    return ApiProblem(status, problem.code, problem.title, kept, fields=problem.fields)


def safe_path(text: str | None) -> str:
    """Return the path to open after login; anything but a path of this site becomes "/"."""
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
    """Return the form of the request; it is parsed once."""
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
    """Return the tenants that a visitor can select; empty if there is no choice."""
    if visitor.tenant is not None:
        return []
    tenants = {model.tenant for model in visitor.ledger.models.list()}
    return sorted(tenants) if len(tenants) > 1 else []
