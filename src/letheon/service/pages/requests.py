"""Requests: file one or many, a list with filters in its address, and one request."""

import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from fastapi.responses import HTMLResponse, Response
from starlette.datastructures import FormData, QueryParams, UploadFile

from letheon.service.auth import Principal
from letheon.service.errors import Problem
from letheon.service.forms import check_form, key_of, text_of
from letheon.service.pages import _shared
from letheon.service.request_views import ACTIONS, ActionName, RequestOut, refusals
from letheon.service.routes import evidence, filing
from letheon.service.routes import requests as routes

router = APIRouter(include_in_schema=False)

# With a script only the message is put in, so that what was typed stays in the browser.
_KEEP_FORM = {"HX-Retarget": "#problem", "HX-Reselect": "#problem", "HX-Reswap": "outerHTML"}

_MANY = "filed-many"
_SHOWN_AGAIN = ("model", "regime", "ground", "verified", "receipt")
_MOST_PLACES = 20
_MOST_REFUSED = 50

Filer = Annotated[_shared.Visitor, Depends(_shared.page_allows("requests:file"))]
ManyFiler = Annotated[_shared.Visitor, Depends(_shared.page_allows("requests:file", is_long=True))]


@router.get("/requests/new")
def show_new_request(who: Filer, model: str = "", tenant: str | None = None) -> HTMLResponse:
    """Show an empty form."""
    values = {"model": model, "regime": "gdpr", "receipt": "on"}
    return _form(who, who.tenant_for(tenant or None), values)


@router.post("/requests/new")
def file_new_request(who: Filer, form: _shared.SentForm) -> Response:
    """File it. A form that is sent twice has one effect: it carries an idempotency key."""
    tenant = who.tenant_for(text_of(form, "tenant") or None)
    try:
        filed = _file_form(who, tenant, form)
    except Problem as problem:
        if problem.status_code in (403, 404, 429):
            raise
        # Not the ids: no answer repeats who somebody is.
        typed = {name: text_of(form, name) for name in _SHOWN_AGAIN}
        answer = _form(who, tenant, typed, problem=problem)
        answer.headers.update(_KEEP_FORM)
        return answer
    lost = _code_lost(form, filed) if who.sees_all_requests else ""
    if any(one.receipt_code for one in filed) or len(filed) != 1:
        return _form(who, tenant, {"lost": lost}, filed=filed)
    one = filed[0]
    return who.done(f"/requests/{one.id}", lost or "filed", one.n_ids)


def _file_form(who: Principal, tenant: str, form: FormData) -> list[filing.RequestFiled]:
    model, lines = text_of(form, "model"), _lines(form)
    if not lines:
        raise Problem(422, "ids", "No id was given", "Write one id per line.")
    ids = _parse_ids(who, model, tenant, [line for _, line in lines])
    wants_code = who.sees_all_requests and text_of(form, "receipt") == "on"
    values: dict[str, Any] = {name: text_of(form, name) for name in ("model", "regime", "ground")}
    values |= {"ids": ids, "tenant": tenant, "verified": text_of(form, "verified") == "on"}
    values["receipt"] = wants_code and len(set(ids)) == 1
    wanted = check_form(filing.RequestIn, values)
    try:
        return filing.file_one(who, wanted, key=f"page-{key_of(form)}")
    except Problem as problem:
        if problem.code != "unknown-ids":
            raise
        raise _unknown(who, model, tenant, ids, lines) from problem


def _parse_ids(who: Principal, model: str, tenant: str, lines: list[str]) -> list[Any]:
    """Return ids that were typed: as numbers where the model holds numbers.

    Raises
    ------
    Problem
        One of them is no number; the text says which, not what it is.
    """
    with refusals():
        if model == filing.EVERY_MODEL or not who.ledger.models.has_integer_ids(
            model, tenant=tenant
        ):
            return lines
    numbers = [filing.parse_number(line) for line in lines]
    if None in numbers:
        words = f"Id {numbers.index(None) + 1} of the list is none, or one of more than 64 bits."
        raise Problem(422, "ids", "this model holds numbers as ids", words)
    return numbers


def _lines(form: FormData) -> list[tuple[int, str]]:
    """Return the ids that were typed, each with the number of its line."""
    typed = form.get("ids", "")
    texts = typed.splitlines() if isinstance(typed, str) else []
    return [(number, text.strip()) for number, text in enumerate(texts, 1) if text.strip()]


def _unknown(
    who: Principal, model: str, tenant: str, ids: list[Any], lines: list[tuple[int, str]]
) -> Problem:
    """Say on which lines the model knows nobody, and not who stands there."""
    if model == filing.EVERY_MODEL:
        wrong, title = lines, f"No model of tenant {tenant} knows these people"
    else:
        known = set(who.ledger.requests.known_ids(ids, model=model, tenant=tenant))
        wrong = [line for one, line in zip(ids, lines, strict=True) if one not in known]
        title = f"Some ids are not in model {model}"
    if not wrong:  # somebody came to be known between the two looks
        return Problem(422, "unknown-ids", title, "Nothing was filed; try again.")
    places = ", ".join(str(number) for number, _ in wrong[:_MOST_PLACES])
    more = f" and {len(wrong) - _MOST_PLACES} more" if len(wrong) > _MOST_PLACES else ""
    words = f"Line{'s' if len(wrong) > 1 else ''} {places}{more}: a typo, or erased already?"
    if any("," in text or ";" in text for _, text in wrong):
        words += " One id per line; there is a comma or semicolon."
    return Problem(422, "unknown-ids", title, f"{words} Nothing was filed.")


def _code_lost(form: FormData, filed: list[filing.RequestFiled]) -> str:
    """Return why no receipt code came although one was asked for; nothing where all is well."""
    has_code = any(one.receipt_code for one in filed)
    if text_of(form, "receipt") != "on" or has_code:
        return ""
    if len({line for _, line in _lines(form)}) > 1:
        return _MANY
    return "filed-no-code" if any(one.is_new for one in filed) else "filed-before"


def _form(who: _shared.Visitor, tenant: str, values: dict[str, str], **more: Any) -> HTMLResponse:
    models = [one.name for one in who.ledger.models.list(tenant=tenant)]
    shown = {"filed": None, "values": values, "models": models} | more
    return _filing_page(who, tenant, "new_request.html", **shown)


@router.get("/requests/upload")
def show_upload(who: ManyFiler, tenant: str | None = None) -> HTMLResponse:
    """Show the form."""
    return _upload_page(who, who.tenant_for(tenant or None))


@router.post("/requests/upload")
def file_from_csv(who: ManyFiler, form: _shared.SentForm) -> HTMLResponse:
    """File each line. A form that is sent twice has one effect: it carries an idempotency key."""
    tenant = who.tenant_for(text_of(form, "tenant") or None)
    file = form.get("file")
    try:
        if not isinstance(file, UploadFile) or not file.filename:
            raise Problem(422, "csv", "No file was chosen", "Choose a CSV file first.")
        if not file.size:
            raise Problem(422, "csv", "The file is empty", "Choose one with a header and lines.")
        upload = filing.Upload(file.file.read(), tenant, text_of(form, "verified") == "on")
        came = filing.upload_requests(who, upload, key=f"page-{key_of(form)}")
    except Problem as problem:
        if problem.status_code in (403, 404, 429):
            raise
        return _upload_page(who, tenant, problem=problem)
    lines = [line for line, _ in filing.read_rows(upload.data)]
    refused = [(lines[one.index], one) for one in came.items if one.problem is not None]
    return _upload_page(who, tenant, came=came, refused=refused[:_MOST_REFUSED])


def _upload_page(who: _shared.Visitor, tenant: str, **more: Any) -> HTMLResponse:
    shown = {"came": None, "columns": filing.COLUMNS, "most_rows": filing.MOST_ROWS}
    return _filing_page(who, tenant, "upload.html", **shown | more)


def _filing_page(who: _shared.Visitor, tenant: str, name: str, **shown: Any) -> HTMLResponse:
    return who.page(name, key=secrets.token_hex(16), whose=tenant, **shown)


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

Reader = Annotated[_shared.Visitor, Depends(_shared.page_allows("requests:read"))]
BulkActor = Annotated[_shared.Visitor, Depends(_shared.page_allows("requests:read", is_long=True))]
Caller = Annotated[_shared.Visitor, Depends(_shared.page_allows("requests:handle"))]
RequestId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]


@router.get("/requests")
def show_requests(who: Reader) -> HTMLResponse:
    """Show a page of the requests that the one who looks may see."""
    return _list_page(who, who.request.query_params)


@router.post("/requests/actions")
def act_on_requests(who: BulkActor, form: _shared.SentForm) -> Response:
    """Do one thing about many requests; each stands for itself."""
    where = _shared.safe_path(text_of(form, "back"))
    chosen = [one for one in form.getlist("requests") if isinstance(one, str)]
    if not where.startswith("/requests"):
        where = "/requests"
    if not chosen:
        return who.done(where, "many-none")
    action = text_of(form, "action")
    ground = text_of(form, "ground") if action == "reject" else None
    if ground == "":
        return who.done(where, "many-no-ground")
    wanted = check_form(
        routes.ActionOnMany, {"action": action, "requests": chosen, "ground": ground}
    )
    if wanted.action not in _BULK:
        raise Problem(422, "action", "Not for many at once", "Open the request and do it there.")
    came = routes.act_on_requests(who, wanted)
    if not came.n_refused:
        return who.done(where, "many-done", came.n_done)
    # The id of each stands before the text, so not in it once more.
    refused = [
        (chosen[one.index], one.problem.detail.removeprefix(f"request {chosen[one.index]} "))
        for one in came.items
        if one.problem is not None
    ]
    params = QueryParams(where.partition("?")[2])
    return _list_page(who, params, refused=refused, n_done=came.n_done)


def _list_page(
    who: _shared.Visitor,
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
    return who.page(
        "requests.html",
        json=_shared.address("/api/v1/requests", shown),
        csv=_shared.address("/api/v1/requests.csv", shown),
        found=found,
        query=query,
        asked=asked,
        after=params.get("after"),
        back=_shared.address("/requests", asked | {"after": after}),
        chips=_chips(who, counts.by_state, [] if view else asked["state"]),
        view=view,
        counts=counts,
        bulk=[(name, ACTIONS[name].words) for name in bulk],
        models=sorted({one.name for one in who.ledger.models.list(tenant=whose)}),
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
def show_request(who: Reader, request_id: RequestId) -> HTMLResponse:
    """Show one request."""
    return _page(who, request_id)


@router.post("/requests/{request_id}")
def act_on_request(who: Reader, request_id: RequestId, form: _shared.SentForm) -> Response:
    """Do one thing about it; the page says why if it cannot be done."""
    name = text_of(form, "action")
    texts = {field: text_of(form, field) for field in ("ground", "until", "recipients")}
    number = filing.parse_number(texts["recipients"])
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
        return _page(who, request_id, problem=problem)
    return who.done(f"/requests/{request_id}", wanted.action)


@router.post("/requests/{request_id}/receipt-code")
def make_receipt_code(who: Caller, request_id: RequestId) -> HTMLResponse:
    """Make a new receipt code, and show it once; the one before opens nothing any more."""
    with refusals():
        code = evidence.make_receipt_code(who, request_id).code
    return _page(who, request_id, code=code)


def _page(
    who: _shared.Visitor,
    request_id: str,
    *,
    problem: Problem | None = None,
    code: str | None = None,
) -> HTMLResponse:
    found = routes.read_request(who, request_id)
    entries, names = routes.read_timeline(who, request_id).items, {}
    if who.sees_all_requests:
        tokens = {found.filed_by, *(one.by for one in entries)}
        names = who.desk.tokens.find_names(one for one in tokens if one is not None)
    return who.page(
        "request.html",
        json=f"/api/v1/requests/{request_id}",
        found=found,
        entries=entries,
        names=names,
        steps=_steps(found, _STEPS if who.sees_all_requests else _STEPS_OF_FILER),
        actions=[(name, ACTIONS[name].words) for name in found.actions],
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
