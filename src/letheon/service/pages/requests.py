"""Requests: a list with filters in its address and one action on many; and one request."""

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import HTMLResponse, Response
from starlette.datastructures import QueryParams

from letheon.service.auth import Principal
from letheon.service.errors import Problem
from letheon.service.forms import check_form, text_of
from letheon.service.pages._shared import (
    SentForm,
    done,
    page,
    page_allows,
    safe_path,
    tenant_choices,
)
from letheon.service.request_views import ACTIONS, ActionName, RequestOut, refusals
from letheon.service.routes import receipts
from letheon.service.routes import requests as routes
from letheon.service.routes.filing import parse_number

router = APIRouter(include_in_schema=False)

_LIMIT = 50
_BULK: tuple[ActionName, ...] = ("approve", "verify", "answer", "retry", "reject")
_ALL = "all"
_ALWAYS = ("received", "verified", "queued", "stuck")

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
BulkActor = Annotated[Principal, Depends(page_allows("requests:read", is_long=True))]
Caller = Annotated[Principal, Depends(page_allows("requests:handle"))]
RequestId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]


@router.get("/requests")
def show_requests(request: Request, who: Reader) -> HTMLResponse:
    """Show a page of the requests that the one who looks may see."""
    return _list_page(request, who, request.query_params)


@router.post("/requests/actions")
def act_on_requests(request: Request, who: BulkActor, form: SentForm) -> Response:
    """Do one thing about many requests; each stands for itself."""
    where = safe_path(text_of(form, "back"))
    chosen = [one for one in form.getlist("requests") if isinstance(one, str)]
    if not where.startswith("/requests"):
        where = "/requests"
    if not chosen:
        return done(request, where, "many-none")
    action = text_of(form, "action")
    ground = text_of(form, "ground") if action == "reject" else None
    if ground == "":
        return done(request, where, "many-no-ground")
    wanted = check_form(
        routes.ActionOnMany, {"action": action, "requests": chosen, "ground": ground}
    )
    if wanted.action not in _BULK:
        raise Problem(422, "action", "Not for many at once", "Open the request and do it there.")
    came = routes.act_on_requests(who, wanted)
    if not came.n_refused:
        return done(request, where, "many-done", came.n_done)
    # The id of each stands before the text, so not in it once more.
    refused = [
        (chosen[one.index], one.problem.detail.removeprefix(f"request {chosen[one.index]} "))
        for one in came.items
        if one.problem is not None
    ]
    params = QueryParams(where.partition("?")[2])
    return _list_page(request, who, params, refused=refused, n_done=came.n_done)


def _list_page(
    request: Request,
    who: Principal,
    params: QueryParams,
    *,
    refused: list[tuple[str, str]] | None = None,
    n_done: int = 0,
) -> HTMLResponse:
    asked = _asked(params)
    view, after = _view(asked), params.get("after", "")
    states = {"open": list(routes.OPEN), _ALL: []}.get(view, asked.get("state"))
    shown = asked | {"state": states}
    query = check_form(routes.RequestPageQuery, shown | {"after": after, "limit": _LIMIT})
    whose = who.tenant_filter(query.tenant)
    found = routes.list_requests(who, query)
    counts = who.ledger.requests.count(tenant=whose, model=query.model, **routes.own_filter(who))
    bulk = [name for name in _BULK if any(name in one.actions for one in found.items)]
    return page(
        request,
        "requests.html",
        who,
        json=_with("/api/v1/requests", shown),
        csv=_with("/api/v1/requests.csv", shown),
        found=found,
        query=query,
        asked=asked,
        after=params.get("after"),
        back=_with("/requests", asked | {"after": after}),
        chips=_chips(who, counts.by_state, [] if view else asked["state"]),
        view=view,
        n_open=sum(counts.by_state[state] for state in routes.OPEN),
        n_all=sum(counts.by_state.values()),
        counts=counts,
        bulk=[(name, ACTIONS[name].words) for name in bulk],
        models=sorted({one.name for one in who.ledger.models.list(tenant=whose)}),
        tenants=tenant_choices(who),
        refused=refused or [],
        n_done=n_done,
    )


def _asked(params: QueryParams) -> dict[str, Any]:
    """Return the filters in the address, without empty ones and without the place in the list."""
    names = ("tenant", "model", "regime", "overdue", "due_before", "search", "order")
    found: dict[str, Any] = {name: params[name].strip() for name in names if params.get(name)}
    states = [state for state in params.getlist("state") if state]
    return found | ({"state": states} if states else {})


def _view(asked: dict[str, Any]) -> str:
    """Return which states are meant where none is named: all in a search, else the open ones."""
    if asked.get("state") == [_ALL]:
        return _ALL
    if "state" in asked:
        return ""
    return _ALL if asked.keys() & {"search", "overdue"} else "open"


def _with(path: str, values: dict[str, Any]) -> str:
    given = {name: value for name, value in values.items() if value}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def _chips(
    who: Principal, by_state: dict[str, int], chosen: list[Any]
) -> list[tuple[str, int, bool, list[str]]]:
    """Return (state, count, whether it is chosen, what is chosen after a click) for each chip."""
    chips, always = [], _ALWAYS if who.sees_all_requests else ("received", "closed")
    for state, count in by_state.items():
        is_chosen = state in chosen
        if not (count or is_chosen or state in always):
            continue
        after = [one for one in chosen if one != state] if is_chosen else [*chosen, state]
        chips.append((state, count, is_chosen, after))
    return chips


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
        wanted = check_form(routes.ActionOnMany, given | {"action": name, "requests": [request_id]})
        details = {field: getattr(wanted, field) for field in takes}
        routes.act(who, request_id, wanted.action, **details)
    except Problem as problem:
        if problem.status_code in (403, 404):
            raise
        return _page(request, who, request_id, problem=problem)
    return done(request, f"/requests/{request_id}", wanted.action)


@router.post("/requests/{request_id}/receipt-code")
def make_receipt_code(request: Request, who: Caller, request_id: RequestId) -> HTMLResponse:
    """Make a new receipt code, and show it once; the one before opens nothing any more."""
    with refusals():
        code = receipts.make_receipt_code(who, request_id).code
    return _page(request, who, request_id, code=code)


def _page(
    request: Request,
    who: Principal,
    request_id: str,
    *,
    problem: Problem | None = None,
    code: str | None = None,
) -> HTMLResponse:
    ledger, found = who.ledger, routes.read_request(who, request_id)
    entries, names = routes.read_timeline(who, request_id).items, {}
    if who.sees_all_requests:
        tokens = {found.filed_by, *(one.by for one in entries)}
        names = who.desk.tokens.names(one for one in tokens if one is not None)
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
