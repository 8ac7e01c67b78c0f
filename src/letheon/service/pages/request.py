"""One request: its timeline, what it resolves to (counts only), and what can be done about it."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import HTMLResponse, Response

from letheon.service._auth import Principal
from letheon.service._context import context
from letheon.service._forms import check_form, text_of
from letheon.service._people import token_names
from letheon.service._problems import Problem
from letheon.service._requests import ACTIONS, RequestOut, refusals
from letheon.service.pages._shared import SentForm, done, page, page_allows
from letheon.service.routes import receipts
from letheon.service.routes.filing import parse_number
from letheon.service.routes.requests import (
    ActionOnMany,
    act,
    read_request,
    read_timeline,
)

router = APIRouter(include_in_schema=False)

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

Reader = Annotated[Principal, Depends(page_allows("requests:read"))]
Caller = Annotated[Principal, Depends(page_allows("requests:handle"))]
RequestId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]


@router.get("/requests/{request_id}")
def show_request(request: Request, who: Reader, request_id: RequestId) -> HTMLResponse:
    """Show one request."""
    return _page(request, who, request_id)


@router.post("/requests/{request_id}")
def act_on_request(
    request: Request, who: Reader, request_id: RequestId, form: SentForm
) -> Response:
    """Do one thing about it; the page says why if it cannot be done."""
    name = text_of(form, "action")
    texts = {field: text_of(form, field) for field in ("ground", "until", "recipients")}
    number = parse_number(texts["recipients"])
    values = texts if number is None else texts | {"recipients": number}
    try:
        takes = ACTIONS[name].takes if name in ACTIONS else ()
        given = {field: values[field] for field in takes}
        wanted = check_form(ActionOnMany, given | {"action": name, "requests": [request_id]})
        details = {field: getattr(wanted, field) for field in takes}
        act(request, who, request_id, wanted.action, **details)
    except Problem as problem:
        if problem.status_code in (403, 404):
            raise
        return _page(request, who, request_id, problem=problem)
    return done(request, f"/requests/{request_id}", wanted.action)


@router.post("/requests/{request_id}/receipt-code")
def make_receipt_code(request: Request, who: Caller, request_id: RequestId) -> HTMLResponse:
    """Make a new receipt code, and show it once; the one before opens nothing any more."""
    with refusals():
        code = receipts.make_receipt_code(request, who, request_id).code
    return _page(request, who, request_id, code=code)


def _page(
    request: Request,
    who: Principal,
    request_id: str,
    *,
    problem: Problem | None = None,
    code: str | None = None,
) -> HTMLResponse:
    ledger, found = context(request).ledger, read_request(request, who, request_id)
    entries, names = read_timeline(request, who, request_id).items, {}
    if who.sees_all_requests:
        tokens = {found.filed_by, *(one.by for one in entries)}
        names = token_names(ledger, [one for one in tokens if one is not None])
    return page(
        request,
        "request.html",
        who,
        json=f"/api/v1/requests/{request_id}",
        status=200 if problem is None else problem.status_code,
        found=found,
        entries=entries,
        names=names,
        steps=_steps(found, _STEPS if who.sees_all_requests else _STEPS_OF_FILER),
        actions=[(name, ACTIONS[name].words) for name in found.actions],
        zone=ledger.settings.calendar.timezone,
        problem=problem,
        code=code,
    )


def _steps(found: RequestOut, all_steps: _Steps) -> list[tuple[str, str]]:
    """Return the steps of a request's life, each with how it is: done, now, off or to come."""
    reached = [number for number, (_, states) in enumerate(all_steps) if found.state in states]
    if found.state == "stuck" and found.certificate is not None:
        reached = [4]
    at = reached[0] if reached else -1
    steps = []
    for number, (word, _) in enumerate(all_steps):
        is_last = number == at == len(all_steps) - 1
        how = "off" if at < 0 else "done" if number < at or is_last else "to-come"
        steps.append((word, "now" if number == at and not is_last else how))
    return steps
