"""What all pages share: templates, who may see one, the form that was sent, the frame.

A page is open to browser sessions only. A form is accepted only with the CSRF token of its session,
and from a page of this very site.
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
from letheon.service.errors import Problem
from letheon.service.forms import read_form
from letheon.service.request_views import GROUND_WORDS, GROUNDS, count_words, stuck_words

_HERE = Path(__file__).parents[1]
_SOON_DAYS = 7
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_AGES = ((86_400, "day"), (3600, "hour"), (60, "minute"))


class Words(NamedTuple):
    """How something is said: a word, its tone, and what it means."""

    word: str
    tone: str
    meaning: str = ""


STATE_WORDS = {name: Words(*state[:3]) for name, state in REQUEST_STATES.items()}
"""Each state of a request in words, in the order of its life."""


def state_words(state: str) -> Words:
    """Return a state in words; one that this version does not know is its own word."""
    return STATE_WORDS.get(state, Words(state.replace("_", " "), "neutral"))


def days_words(days_left: int) -> Words:
    """Return the days left against a legal clock; below zero it is late."""
    if days_left < 0:
        return Words(f"{count_words(-days_left, 'day')} late", "bad")
    if days_left == 0:
        return Words("due today", "bad")
    tone = "warn" if days_left <= _SOON_DAYS else "neutral"
    return Words(f"{count_words(days_left, 'day')} left", tone)


def make_templates() -> Jinja2Templates:
    """Return the templates; every value is escaped, and one that is missing is an error."""
    env = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        day=_day,
        moment=_moment,
        ago=_ago,
        iso=_iso,
        number=_number,
        counted=count_words,
        bytes=_bytes,
        pair=_pair,
    )
    env.globals.update(
        asset=_asset,
        state_words=state_words,
        days_words=days_words,
        address=address,
        ground_options=_ground_options,
        ground_choices=_ground_choices,
        laws=LAWS,
        grounds=GROUNDS,
        ground_words=GROUND_WORDS,
        stuck_words=stuck_words,
        measures=MEASURES,
        tenant_choices=tenant_choices,
    )
    env.globals["ui"] = env.get_template("macros.html").module
    return Jinja2Templates(env=env)


@cache
def _asset(name: str) -> str:
    """Return the address of a static file; it changes with its content, so browsers may keep it."""
    digest = hashlib.sha256((_HERE / "static" / name).read_bytes()).hexdigest()
    return f"/static/{name}?v={digest[:12]}"


def address(path: str, *parts: dict[str, Any], **changes: Any) -> str:
    """Return a path with a query of what is not empty; later values win, lists repeat a name."""
    values: dict[str, Any] = {}
    for part in (*parts, changes):
        values |= part
    kept = {name: value for name, value in values.items() if value or value == 0}
    return f"{path}?{urlencode(kept, doseq=True)}" if kept else path


def _pair(text: str) -> tuple[str, str]:
    """Return an option of a select that is its own label."""
    return text, text


def _ground_options(grounds: Any) -> list[tuple[str, str]]:
    """Return grounds as options of a select: what they say, then their code."""
    return [(one.code, f"{one.words[:1].upper()}{one.words[1:]} ({one.code})") for one in grounds]


def _ground_choices(grounds: Any, law: str = "") -> list[tuple[str, str]]:
    """Return options of which none is chosen; with `law`, without those of other laws."""
    other = tuple(f"{one}." for one in ("gdpr", "ccpa") if law and one != law)
    fit = [one for one in grounds if not one.code.startswith(other)]
    return [("", "Choose a ground…"), *_ground_options(fit)]


def _read_time(value: Any) -> datetime | date:
    """Return a time: seconds since 1970, ISO text, date and datetime are understood."""
    time: datetime | date = value
    if isinstance(value, int):
        time = to_datetime(value)
    elif isinstance(value, str):
        time = datetime.fromisoformat(value) if "T" in value else date.fromisoformat(value)
    return time.astimezone(UTC) if isinstance(time, datetime) else time


def _iso(value: Any) -> str:
    time = _read_time(value)
    return time.isoformat(timespec="seconds") if isinstance(time, datetime) else time.isoformat()


def _day(value: Any) -> str:
    """Return "15 Nov 2026" for a day of the calendar, "15 Nov 2026 UTC" for that of a moment."""
    time = _read_time(value)
    zone = " UTC" if isinstance(time, datetime) else ""
    return f"{time.day} {_MONTHS[time.month - 1]} {time.year}{zone}"


def _moment(value: Any) -> str:
    """Return "15 Nov 2026, 14:03 UTC"."""
    time = _read_time(value)
    return f"{_day(time.date())}, {time:%H:%M} UTC" if isinstance(time, datetime) else _day(time)


def _ago(value: Any, now: int) -> str:
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


def _number(value: float) -> str:
    """Return a whole number with thousands separated, or another with four digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _bytes(size: float) -> str:
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


@dataclass(frozen=True, kw_only=True)
class Visitor(auth.Principal):
    """Who is looking at a page, with a browser.

    Attributes
    ----------
    request : Request
        The call.
    """

    request: Request = field(repr=False, compare=False)

    def page(self, name: str, **values: Any) -> HTMLResponse:
        """Return a page for the visitor; see `page`."""
        return page(self.request, name, self, **values)

    def list_page(self, name: str, found: Any, query: dict[str, Any], **more: Any) -> HTMLResponse:
        """Return a page with a part of a list, and links to its first and next part."""
        path, after = self.request.url.path, self.request.query_params.get("after")
        links = {
            "json": address(f"/api/v1{path}", query, after=after),
            "first": address(path, query) if after else None,
            "next": address(path, query, after=found.next) if found.next else None,
        }
        return self.page(name, found=found, query=query, **links | more)

    def done(self, path: str, code: str, number: int | None = None) -> Response:
        """Lead to another page that says, once, that something was done.

        `code` is one of `FLASHES`; `number` takes the place that its words leave for one.
        """
        if code not in FLASHES:
            raise KeyError(f"{code} is no message; add it to FLASHES")
        answer = redirect(self.request, path)
        message = code if number is None else f"{code}.{number}"
        set_cookie(answer, self.desk, FLASH, message, _FLASH_SECONDS)
        return answer


@dataclass(frozen=True)
class PageGate(auth.Gate):
    """What a page demands: a session whose token has one of some scopes.

    Without a session it leads to the log-in. A change needs the CSRF token in its form as well.
    """

    async def __call__(self, request: Request) -> AsyncIterator[Visitor]:  # type: ignore[override]
        """Yield who is looking, or refuse; what was sent is let go of at the end."""
        try:
            yield await self._admitted(request)
        finally:
            await _close_form(request)

    async def _admitted(self, request: Request) -> Visitor:
        who = await run_in_threadpool(auth.find_visitor, request)
        if who is None or who.session is None:
            raise _to_login(request)
        self.admit(request, who, title="Your token may not do that")
        self.enter(request, who)
        if request.method not in auth.SAFE:  # last: what is sent may be large, and is read for this
            token: Any = request.headers.get("x-csrf-token")
            token = token if token is not None else (await _form_of(request)).get("csrf")
            auth.require_csrf(request, who.session, token if isinstance(token, str) else None)
        return Visitor(**vars(who), request=request)


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


def page(
    request: Request,
    name: str,
    who: auth.Principal | None = None,
    *,
    json: str | None = None,
    status: int = 200,
    problem: Problem | None = None,
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
        Of the answer; a problem has its own.
    problem : Problem, optional
        What could not be done.
    **values
        What the template shows. It also has `csrf`, `theme`, `flash`, `tenant`, `now`.
    """
    desk, code, theme = (
        auth.context(request),
        request.cookies.get(FLASH),
        request.cookies.get(THEME),
    )
    tenant, bound = request.query_params.get("tenant"), None if who is None else who.tenant
    if tenant is not None and not NAME.fullmatch(tenant):
        tenant = None
    frame = {
        "who": who,
        "csrf": "" if who is None or who.session is None else who.session.csrf,
        "theme": theme if theme in ("light", "dark") else None,
        "flash": _flash(code),
        "tenant": bound or tenant,
        "tenant_query": "" if who is None or bound else address("", tenant=tenant),
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
    """Give a browser a cookie that no script reads and no other site sends; 0 seconds end it."""
    is_secure = desk.is_secure and seconds > 0
    answer.set_cookie(
        name, value, seconds, path="/", httponly=True, samesite="strict", secure=is_secure
    )


def redirect(request: Request, path: str) -> Response:
    """Lead to another page; a script would follow by itself, and lose the message there."""
    if "hx-request" in request.headers:
        return Response(status_code=204, headers={"HX-Redirect": path})
    return RedirectResponse(path, status_code=303)


def problem_page(request: Request, problem: Problem) -> Response:
    """Return a problem as a page; a redirection stays one."""
    headers = dict(problem.headers or {})
    if problem.status_code == 303:
        return redirect(request, headers["Location"])
    who = auth.find_visitor(request) if problem.status_code < 500 else None
    answer = page(request, "problem.html", who, problem=_for_people(problem))
    answer.headers.update(headers)
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
    if request.method not in auth.SAFE:
        path = "/"
    elif request.url.query:
        path = f"{path}?{request.url.query}"
    where = "/login" if path == "/" else f"/login?next={quote(safe_path(path), safe='/')}"
    return HTTPException(303, headers={"Location": where})


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


def _flash(value: str | None) -> dict[str, str] | None:
    match = _FLASH_VALUE.fullmatch(value or "")
    if match is None or match[1] not in FLASHES:
        return None
    tone, words = FLASHES[match[1]]
    return {"tone": tone, "words": words.format(number=match[2] or "")}


def tenant_choices(who: auth.Principal) -> list[str]:
    """Return whose things a visitor may choose; nothing where there is nothing to choose."""
    tenants = set() if who.tenant is not None else {one.tenant for one in who.ledger.models.list()}
    return sorted(tenants) if len(tenants) > 1 else []
