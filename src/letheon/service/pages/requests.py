"""The list of requests: filters and search in the address, and one action on many."""

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from starlette.datastructures import QueryParams

from letheon.ledger.requests.states import FINAL, STATES
from letheon.service._auth import Principal
from letheon.service._context import context
from letheon.service._problems import Problem
from letheon.service.desk.request_actions import ACTIONS, act_on_many
from letheon.service.desk.request_forms import (
    ActionName,
    ActionOnMany,
    Details,
    Outcome,
    RequestQuery,
)
from letheon.service.desk.requests import grounds, list_requests, own_filter
from letheon.service.pages._choices import LAWS, checked, model_choices, tenant_choices, text_of
from letheon.service.pages._shared import SentForm, done, page, page_allows, safe_path

router = APIRouter(include_in_schema=False)

_LIMIT = 50
_BULK: tuple[ActionName, ...] = ("approve", "verify", "answer", "retry", "reject")
# What is asked before one of them is done about many: title, text, and what the button says.
_QUESTIONS: dict[ActionName, tuple[str, str, str]] = {
    "approve": (
        "Approve the selected requests?",
        "They are queued at once, and erasing cannot be undone.",
        "Approve",
    ),
    "verify": (
        "Was it checked who asked, for each of them?",
        "They are queued at once, and erasing cannot be undone. Large ones wait for an approval.",
        "Record it",
    ),
    "answer": (
        "Close the selected requests?",
        "Each person was told that the data are erased. No recipients are recorded.",
        "Close them",
    ),
    "reject": (
        "Reject the selected requests?",
        "The people stay in the model. They must be told why, and that they may complain.",
        "Reject",
    ),
}
_OPEN = [state for state in STATES if state not in FINAL]
_ALL = "all"
_ALWAYS = ("received", "verified", "queued", "stuck")

Reader = Annotated[Principal, Depends(page_allows("requests:read"))]
BulkActor = Annotated[Principal, Depends(page_allows("requests:read", is_long=True))]


@router.get("/requests")
def show_requests(request: Request, who: Reader) -> HTMLResponse:
    """Show a page of the requests that the one who looks may see."""
    return _listed(request, who, request.query_params)


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
    wanted = checked(ActionOnMany, {"action": action, "requests": chosen, "ground": ground})
    if wanted.action not in _BULK:
        raise Problem(422, "action", "Not for many at once", "Open the request and do it there.")
    details = Details(ground=wanted.ground)
    outcomes = act_on_many(context(request), who, wanted.action, wanted.requests, details)
    refused = [one for one in outcomes if one.problem is not None]
    if not refused:
        return done(request, where, "many-done", len(outcomes))
    return _listed(
        request,
        who,
        QueryParams(where.partition("?")[2]),
        refused=_told(wanted.requests, refused),
        n_done=len(outcomes) - len(refused),
    )


def _told(ids: list[str], refused: list[Outcome]) -> list[tuple[str, str]]:
    """Return why each was refused; its id stands before the text, so not in it once more."""
    told = []
    for one in refused:
        why = one.problem.detail if one.problem else ""
        told.append((ids[one.index], why.removeprefix(f"request {ids[one.index]} ")))
    return told


def _listed(
    request: Request,
    who: Principal,
    params: QueryParams,
    *,
    refused: list[tuple[str, str]] | None = None,
    n_done: int = 0,
) -> HTMLResponse:
    desk, asked = context(request), _asked(params)
    view = _view(asked)
    states = _OPEN if view == "open" else [] if view == _ALL else asked["state"]
    shown = asked | {"state": states}
    query = checked(RequestQuery, shown)
    whose = who.tenant_filter(query.tenant)
    found = list_requests(desk, who, query, after=params.get("after") or None, limit=_LIMIT)
    counts = desk.ledger.count_requests(
        tenant=whose,
        model=query.model,
        **own_filter(who),
    )
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
        back=_with("/requests", asked | {"after": params.get("after", "")}),
        chips=_chips(who, counts.by_state, [] if view else asked["state"]),
        view=view,
        n_open=sum(counts.by_state[state] for state in _OPEN),
        n_all=sum(counts.by_state.values()),
        counts=counts,
        bulk=[(name, ACTIONS[name].words) for name in bulk],
        questions=_QUESTIONS,
        models=model_choices(desk, whose),
        tenants=tenant_choices(desk, who),
        laws=LAWS,
        grounds=grounds(),
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
