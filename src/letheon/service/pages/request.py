"""One request: its timeline, what it resolves to (counts only), and what can be done about it."""

from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select

from letheon.ledger.tables import tokens
from letheon.service._auth import Principal
from letheon.service._context import Context, context
from letheon.service._problems import Problem
from letheon.service.desk.filing import as_number
from letheon.service.desk.receipts import new_code
from letheon.service.desk.request_actions import ACTIONS, act
from letheon.service.desk.request_forms import ActionOnMany, Details, RequestOut
from letheon.service.desk.request_refusals import refusals
from letheon.service.desk.request_words import GROUND_WORDS, stuck_words
from letheon.service.desk.requests import find_request, grounds, timeline
from letheon.service.pages._choices import checked, text_of
from letheon.service.pages._shared import SentForm, done, page, page_allows

router = APIRouter(include_in_schema=False)

_NEEDED = {"hold": ("ground", "until"), "reject": ("ground",), "tell": ("recipients",)}
_GIVEN = _NEEDED | {"answer": ("recipients",)}
_TONES = {
    "verified": "info",
    "approved": "good",
    "certified": "good",
    "purged": "good",
    "closed": "good",
    "rejected": "bad",
    "cancelled": "bad",
    "stuck": "bad",
    "retry_wait": "warn",
    "on_hold": "warn",
    "identity-asked": "warn",
    "extended": "warn",
}
# Each step of a life, and the states in which a request stands there.
_Steps = tuple[tuple[str, tuple[str, ...]], ...]
_STEPS: _Steps = (
    ("Received", ("received",)),
    ("Verified", ("verified",)),
    ("Queued", ("queued", "applying", "retry_wait", "on_hold", "duplicate", "stuck")),
    ("Applied", ("applied",)),
    ("Certified", ("certified", "purging")),
    ("Purged", ("purged",)),
    ("Answered", ("closed",)),
)
# A filer who may not know whom a model holds sees no more.
_STEPS_OF_FILER: _Steps = (("Received", ("received",)), ("Ended", ("closed",)))

# Until the people have left the model a lost receipt code can be replaced.
_BEFORE = ("received", "verified", "queued", "retry_wait", "on_hold")

Reader = Annotated[Principal, Depends(page_allows("requests:read"))]
Caller = Annotated[Principal, Depends(page_allows("requests:handle"))]
RequestId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]


class Step(NamedTuple):
    """A step of a request's life: done, now, off or to come."""

    word: str
    how: str


@router.get("/requests/{request_id}")
def show_request(request: Request, who: Reader, request_id: RequestId) -> HTMLResponse:
    """Show one request."""
    return _shown(request, who, request_id)


@router.post("/requests/{request_id}")
def act_on_request(
    request: Request, who: Reader, request_id: RequestId, form: SentForm
) -> Response:
    """Do one thing about it; the page says why if it cannot be done."""
    name = text_of(form, "action")
    try:
        asked = checked(ActionOnMany, {"action": name, "requests": [request_id]})
        given = {field: _typed(field, text_of(form, field)) for field in _GIVEN.get(name, ())}
        act(context(request), who, request_id, asked.action, checked(Details, given))
    except Problem as problem:
        if problem.status_code in (403, 404):
            raise
        return _shown(request, who, request_id, problem=problem)
    return done(request, f"/requests/{request_id}", asked.action)


def _typed(field: str, text: str) -> str | int:
    """Return what was typed, as a number where one is asked for and one was typed."""
    number = as_number(text) if field == "recipients" else None
    return text if number is None else number


@router.post("/requests/{request_id}/receipt-code")
def make_receipt_code(request: Request, who: Caller, request_id: RequestId) -> HTMLResponse:
    """Make a new receipt code, and show it once; the one before opens nothing any more."""
    with refusals():
        code = new_code(context(request), who, request_id)
    return _shown(request, who, request_id, code=code)


def _shown(
    request: Request,
    who: Principal,
    request_id: str,
    *,
    problem: Problem | None = None,
    code: str | None = None,
) -> HTMLResponse:
    desk = context(request)
    found, entries = find_request(desk, who, request_id), timeline(desk, who, request_id)
    return page(
        request,
        "request.html",
        who,
        json=f"/api/v1/requests/{request_id}",
        status=200 if problem is None else problem.status_code,
        found=found,
        entries=entries,
        names=_names(desk, who, {found.filed_by, *(one.by for one in entries)}),
        steps=_steps(found, _STEPS if who.sees_all_requests else _STEPS_OF_FILER),
        actions=[(name, ACTIONS[name].words) for name in found.actions],
        grounds=grounds(),
        ground_words=GROUND_WORDS,
        stuck_words=stuck_words,
        zone=desk.ledger.settings.calendar.timezone,
        tones=_TONES,
        problem=problem,
        code=code,
        may_have_code=_may_have_code(who, found),
    )


def _names(desk: Context, who: Principal, ids: set[str | None]) -> dict[str, str]:
    """Return what tokens are called, to those who see more than their own requests."""
    wanted = [one for one in ids if one is not None]
    if not who.sees_all_requests or not wanted:
        return {}
    query = select(tokens.c.id, tokens.c.name).where(tokens.c.id.in_(wanted))
    with desk.ledger._core.database.reading() as conn:
        return {row.id: row.name for row in conn.execute(query)}


def _may_have_code(who: Principal, found: RequestOut) -> bool:
    return found.n_ids == 1 and found.state in _BEFORE and who.may("requests:handle")


def _steps(found: RequestOut, all_steps: _Steps) -> list[Step]:
    reached = [number for number, (_, states) in enumerate(all_steps) if found.state in states]
    if found.state == "stuck" and found.certificate is not None:
        reached = [4]
    at = reached[0] if reached else -1
    steps = []
    for number, (word, _) in enumerate(all_steps):
        is_last = number == at == len(all_steps) - 1
        how = "off" if at < 0 else "done" if number < at or is_last else "to-come"
        steps.append(Step(word, "now" if number == at and not is_last else how))
    return steps
