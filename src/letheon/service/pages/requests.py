"""Pages for requests: filing, upload, the list with its filters, and a single request."""

import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from fastapi.responses import HTMLResponse, Response
from starlette.datastructures import FormData, QueryParams, UploadFile

from letheon.service.auth import Principal
from letheon.service.errors import ApiProblem
from letheon.service.forms import check_form, key_of, text_of
from letheon.service.pages import _shared
from letheon.service.request_views import (
    ACTIONS,
    ActionName,
    RequestOut,
    count_words,
    raise_problems,
)
from letheon.service.routes import evidence, filing
from letheon.service.routes import requests as routes

router = APIRouter(include_in_schema=False)

# With a script only the message is replaced, so that the form keeps its values.
_KEEP_FORM = {"HX-Retarget": "#problem", "HX-Reselect": "#problem", "HX-Reswap": "outerHTML"}

_SHOWN_AGAIN = ("model", "regime", "ground", "verified", "receipt")
_MOST_PLACES = 20
_MOST_REFUSED = 50

Filer = Annotated[_shared.Visitor, Depends(_shared.page_allows("requests:file"))]
ManyFiler = Annotated[_shared.Visitor, Depends(_shared.page_allows("requests:file", is_long=True))]


@router.get("/requests/new")
def show_new_request(visitor: Filer, model: str = "", tenant: str | None = None) -> HTMLResponse:
    """Show the form for a new request."""
    values = {"model": model, "regime": "gdpr", "receipt": "on"}
    return _form_page(visitor, visitor.tenant_for(tenant or None), values)


@router.post("/requests/new")
def file_new_request(visitor: Filer, form: _shared.SentForm) -> Response:
    """File a request, and show its page or its receipt code.

    The form contains an idempotency key, so submitting it twice files one request.
    """
    tenant = visitor.tenant_for(text_of(form, "tenant") or None)
    try:
        filed = _file_form(visitor, tenant, form)
    except ApiProblem as problem:
        if problem.status_code in (403, 404, 429):
            raise
        # No response repeats ids.
        values = {name: text_of(form, name) for name in _SHOWN_AGAIN}
        answer = _form_page(visitor, tenant, values, problem=problem)
        answer.headers.update(_KEEP_FORM)
        return answer
    lost = _explain_missing_code(form, filed) if visitor.sees_all_requests else ""
    if any(request.receipt_code for request in filed) or len(filed) != 1:
        return _form_page(visitor, tenant, {"lost": lost}, filed=filed)
    request = filed[0]
    return visitor.redirect_with(f"/requests/{request.id}", lost or "filed", request.n_ids)


def _file_form(visitor: Principal, tenant: str, form: FormData) -> list[filing.RequestFiled]:
    model, lines = text_of(form, "model"), _read_id_lines(form)
    if not lines:
        raise ApiProblem(422, "ids", "No ids were entered", "Write one id per line.")
    ids = _parse_ids(visitor, model, tenant, [line for _, line in lines])
    wants_code = visitor.sees_all_requests and text_of(form, "receipt") == "on"
    values: dict[str, Any] = {name: text_of(form, name) for name in ("model", "regime", "ground")}
    values |= {"ids": ids, "tenant": tenant, "verified": text_of(form, "verified") == "on"}
    values["receipt"] = wants_code and len(set(ids)) == 1
    if values["ground"] in filing.DEFAULT_GROUNDS.values():
        values["ground"] = ""  # without a script, the form may preselect that of the other law
    request = check_form(filing.RequestIn, values)
    try:
        return filing.file_one(visitor, request, key=f"page-{key_of(form)}")
    except ApiProblem as problem:
        if problem.code != "unknown-ids":
            raise
        raise _unknown_ids_problem(visitor, model, tenant, ids, lines) from problem


def _parse_ids(visitor: Principal, model: str, tenant: str, lines: list[str]) -> list[Any]:
    """Return the ids of the form, as integers if the ids of the model are integers.

    Raises
    ------
    ApiProblem
        422: an id is not an integer. The text contains its place in the list, but not its value.
    """
    with raise_problems():
        if model == filing.EVERY_MODEL or not visitor.ledger.models.has_integer_ids(
            model, tenant=tenant
        ):
            return lines
    numbers = [filing.parse_number(line) for line in lines]
    if None in numbers:
        words = f"Id {numbers.index(None) + 1} of the list is not a 64-bit integer."
        raise ApiProblem(422, "ids", "the ids of this model are integers", words)
    return numbers


def _read_id_lines(form: FormData) -> list[tuple[int, str]]:
    """Return the ids in the form, each with its line number from 1; skip empty lines."""
    text = form.get("ids", "")
    lines = text.splitlines() if isinstance(text, str) else []
    return [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]


def _unknown_ids_problem(
    visitor: Principal, model: str, tenant: str, ids: list[Any], lines: list[tuple[int, str]]
) -> ApiProblem:
    """Return a problem that lists the line numbers of unknown ids, but not the ids."""
    if model == filing.EVERY_MODEL:
        unknown, title = lines, f"No model of tenant {tenant} has these ids"
    else:
        known = set(visitor.ledger.requests.find_known_ids(ids, model=model, tenant=tenant))
        unknown = [line for key, line in zip(ids, lines, strict=True) if key not in known]
        title = f"Some ids are not in model {model}"
    if not unknown:  # the ids were added between the two queries
        return ApiProblem(422, "unknown-ids", title, "No request was filed; try again.")
    places = ", ".join(str(number) for number, _ in unknown[:_MOST_PLACES])
    more = f" and {len(unknown) - _MOST_PLACES} more" if len(unknown) > _MOST_PLACES else ""
    words = f"Check the spelling in line{'s' if len(unknown) > 1 else ''} {places}{more}."
    if any("," in text or ";" in text for _, text in unknown):
        words += " Write one id per line, without commas or semicolons."
    return ApiProblem(422, "unknown-ids", title, f"{words} No request was filed.")


def _explain_missing_code(form: FormData, filed: list[filing.RequestFiled]) -> str:
    """Return the code of the message that says why there is no receipt code.

    Return an empty string if there is a receipt code or none was requested.
    """
    has_code = any(request.receipt_code for request in filed)
    if text_of(form, "receipt") != "on" or has_code:
        return ""
    if len({line for _, line in _read_id_lines(form)}) > 1:
        return "filed-many"
    return "filed-no-code" if any(request.is_new for request in filed) else "filed-before"


def _form_page(
    visitor: _shared.Visitor, tenant: str, values: dict[str, str], **more: Any
) -> HTMLResponse:
    models = [model.name for model in visitor.ledger.models.list(tenant=tenant)]
    context = {"filed": None, "values": values, "models": models} | more
    grounds = filing.DEFAULT_GROUNDS
    return _filing_page(visitor, tenant, "new_request.html", default_grounds=grounds, **context)


@router.get("/requests/upload")
def show_upload(visitor: ManyFiler, tenant: str | None = None) -> HTMLResponse:
    """Show the upload form."""
    return _upload_page(visitor, visitor.tenant_for(tenant or None))


@router.post("/requests/upload")
def file_from_csv(visitor: ManyFiler, form: _shared.SentForm) -> HTMLResponse:
    """File a request for each line of a CSV file.

    The form contains an idempotency key, so uploading it twice files each request once.
    """
    tenant = visitor.tenant_for(text_of(form, "tenant") or None)
    file = form.get("file")
    try:
        if not isinstance(file, UploadFile) or not file.filename:
            raise ApiProblem(422, "csv", "No file selected", "Choose a CSV file.")
        if not file.size:
            raise ApiProblem(
                422,
                "csv",
                "The file is empty",
                "Choose a file with a header and at least one line.",
            )
        upload = filing.Upload(file.file.read(), tenant, text_of(form, "verified") == "on")
        result = filing.upload_requests(visitor, upload, key=f"page-{key_of(form)}")
    except ApiProblem as problem:
        if problem.status_code in (403, 404, 429):
            raise
        return _upload_page(visitor, tenant, problem=problem)
    lines = [line for line, _ in filing.read_rows(upload.data)]
    refused = [(lines[item.index], item) for item in result.items if item.problem is not None]
    return _upload_page(visitor, tenant, result=result, refused=refused[:_MOST_REFUSED])


def _upload_page(visitor: _shared.Visitor, tenant: str, **more: Any) -> HTMLResponse:
    context = {"result": None, "columns": filing.COLUMNS, "most_rows": filing.MOST_ROWS}
    return _filing_page(visitor, tenant, "upload.html", **context | more)


def _filing_page(visitor: _shared.Visitor, tenant: str, name: str, **context: Any) -> HTMLResponse:
    return visitor.page(name, key=secrets.token_hex(16), selected_tenant=tenant, **context)


_LIMIT = 50
_BULK: tuple[ActionName, ...] = ("approve", "verify", "answer", "retry", "reject")
_ALL = "all"
_ALWAYS = ("received", "verified", "queued", "stuck")

# Each step of the progress bar, with its states.
_Steps = tuple[tuple[str, tuple[str, ...]], ...]
_STEPS: _Steps = (
    ("received", ("received",)),
    ("verified", ("verified",)),
    ("queued", ("queued", "applying", "retry_wait", "on_hold", "duplicate", "stuck")),
    ("applied", ("applied",)),
    ("certified", ("certified", "purging")),
    ("purged", ("purged",)),
    ("closed", ("closed",)),
)
# A requester must not learn which people a model contains.
_STEPS_OF_FILER: _Steps = (("received", ("received",)), ("closed", ("closed",)))

Reader = Annotated[_shared.Visitor, Depends(_shared.page_allows("requests:read"))]
BulkActor = Annotated[_shared.Visitor, Depends(_shared.page_allows("requests:read", is_long=True))]
Caller = Annotated[_shared.Visitor, Depends(_shared.page_allows("requests:handle"))]
RequestId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]


@router.get("/requests")
def show_requests(visitor: Reader) -> HTMLResponse:
    """Show a page of the requests that the visitor may see."""
    return _list_page(visitor, visitor.request.query_params)


@router.post("/requests/actions")
def act_on_requests(visitor: BulkActor, form: _shared.SentForm) -> Response:
    """Apply an action to several requests, and show which of them were refused.

    One refused request does not prevent the others from being changed.
    """
    where = _shared.safe_path(text_of(form, "back"))
    selected = [value for value in form.getlist("requests") if isinstance(value, str)]
    if not where.startswith("/requests"):
        where = "/requests"
    if not selected:
        return visitor.redirect_with(where, "many-none")
    action = text_of(form, "action")
    ground = text_of(form, "ground") if action == "reject" else None
    if ground == "":
        return visitor.redirect_with(where, "many-no-ground")
    bulk_action = check_form(
        routes.ActionOnMany, {"action": action, "requests": selected, "ground": ground}
    )
    if bulk_action.action not in _BULK:
        words = "Open each request and apply the action there."
        raise ApiProblem(422, "action", "This action cannot be applied to several requests", words)
    result = routes.act_on_requests(visitor, bulk_action)
    if not result.n_refused:
        return visitor.redirect_with(where, "many-done", result.n_done)
    # The page shows the id before the text.
    refused = [
        (selected[item.index], item.problem.detail.removeprefix(f"request {selected[item.index]} "))
        for item in result.items
        if item.problem is not None
    ]
    params = QueryParams(where.partition("?")[2])
    return _list_page(visitor, params, refused=refused, n_done=result.n_done)


def _list_page(
    visitor: _shared.Visitor,
    params: QueryParams,
    *,
    refused: list[tuple[str, str]] | None = None,
    n_done: int = 0,
) -> HTMLResponse:
    filters = _read_filters(params)
    view, after = _choose_view(filters), params.get("after", "")
    states = {"open": list(routes.OPEN), _ALL: []}.get(view, filters.get("state"))
    applied = filters | {"state": states}
    query = check_form(routes.RequestPageQuery, applied | {"after": after, "limit": _LIMIT})
    tenant = visitor.tenant_filter(query.tenant)
    listing = routes.list_requests(visitor, query)
    counts = visitor.ledger.requests.count(
        tenant=tenant, model=query.model, **routes.own_filter(visitor)
    )
    bulk = [name for name in _BULK if any(name in item.actions for item in listing.items)]
    return visitor.page(
        "requests.html",
        json=_shared.address("/api/v1/requests", applied),
        csv=_shared.address("/api/v1/requests.csv", applied),
        listing=listing,
        query=query,
        filters=filters,
        after=params.get("after"),
        back=_shared.address("/requests", filters | {"after": after}),
        chips=_list_chips(visitor, counts.by_state, [] if view else filters["state"]),
        view=view,
        counts=counts,
        bulk=[(name, ACTIONS[name].words) for name in bulk],
        models=sorted({model.name for model in visitor.ledger.models.list(tenant=tenant)}),
        refused=refused or [],
        n_done=n_done,
    )


def _read_filters(params: QueryParams) -> dict[str, Any]:
    """Return the filters in the query string that are not empty, without the page cursor."""
    names = ("tenant", "model", "regime", "overdue", "due_before", "search", "order")
    filters: dict[str, Any] = {name: params[name].strip() for name in names if params.get(name)}
    states = [state for state in params.getlist("state") if state]
    return filters | ({"state": states} if states else {})


def _choose_view(filters: dict[str, Any]) -> str:
    """Return which states the list shows: "all", "open", or "" for the states in the filter.

    Without a state filter, a search or the filter "overdue" shows all states, other lists the open
    states.
    """
    if filters.get("state") == [_ALL]:
        return _ALL
    if "state" in filters:
        return ""
    return _ALL if filters.keys() & {"search", "overdue"} else "open"


def _list_chips(
    visitor: Principal, by_state: dict[str, int], selected: list[Any]
) -> list[tuple[str, int, bool, list[str]]]:
    """Return one tuple for each state button above the list.

    The tuple contains the state, its number of requests, whether it is selected, and the states
    that are selected after a click.
    """
    chips, always = [], _ALWAYS if visitor.sees_all_requests else ("received", "closed")
    for state, count in by_state.items():
        is_selected = state in selected
        if not (count or is_selected or state in always):
            continue
        others = [code for code in selected if code != state]
        chips.append((state, count, is_selected, others if is_selected else [*selected, state]))
    return chips


@router.get("/requests/{request_id}")
def show_request(visitor: Reader, request_id: RequestId) -> HTMLResponse:
    """Show a request with its history and the possible actions."""
    return _request_page(visitor, request_id)


@router.post("/requests/{request_id}")
def act_on_request(visitor: Reader, request_id: RequestId, form: _shared.SentForm) -> Response:
    """Apply an action to a request, or show why the action is not possible."""
    name = text_of(form, "action")
    texts = {field: text_of(form, field) for field in ("ground", "until", "recipients")}
    number = filing.parse_number(texts["recipients"])
    values = texts if number is None else texts | {"recipients": number}
    try:
        takes = ACTIONS[name].takes if name in ACTIONS else ()
        fields: dict[str, Any] = {field: values[field] for field in takes}
        fields |= {"action": name, "requests": [request_id]}
        action = check_form(routes.ActionOnMany, fields)
        details = {field: getattr(action, field) for field in takes}
        routes.take_action(visitor, request_id, action.action, **details)
    except ApiProblem as problem:
        if problem.status_code in (403, 404):
            raise
        return _request_page(visitor, request_id, problem=problem)
    return visitor.redirect_with(f"/requests/{request_id}", action.action)


@router.post("/requests/{request_id}/receipt-code")
def make_receipt_code(visitor: Caller, request_id: RequestId) -> HTMLResponse:
    """Create a new receipt code and show it once; the previous code no longer works."""
    with raise_problems():
        code = evidence.make_receipt_code(visitor, request_id).code
    return _request_page(visitor, request_id, code=code)


def _request_page(
    visitor: _shared.Visitor,
    request_id: str,
    *,
    problem: ApiProblem | None = None,
    code: str | None = None,
) -> HTMLResponse:
    erasure = routes.read_request(visitor, request_id)
    entries, names = routes.read_timeline(visitor, request_id).items, {}
    if visitor.sees_all_requests:
        tokens = {erasure.filed_by, *(entry.by for entry in entries)}
        names = visitor.desk.tokens.find_names(token for token in tokens if token is not None)
    return visitor.page(
        "request.html",
        json=f"/api/v1/requests/{request_id}",
        erasure=erasure,
        entries=entries,
        names=names,
        steps=_list_steps(erasure, _STEPS if visitor.sees_all_requests else _STEPS_OF_FILER),
        actions=[(name, ACTIONS[name].words) for name in erasure.actions],
        schedule=_describe_schedule(visitor, erasure),
        problem=problem,
        code=code,
    )


def _list_steps(request: RequestOut, all_steps: _Steps) -> list[tuple[str, str]]:
    """Return label and status of each step of the progress bar.

    The status is "done", "now" or "to-come"; "off" for all steps of a request that left the
    sequence, for example because it was rejected.
    """
    reached = [number for number, (_, states) in enumerate(all_steps) if request.state in states]
    if request.state == "stuck" and request.certificate is not None:
        reached = [4]
    current = reached[0] if reached else -1
    steps = []
    for number, (state, _) in enumerate(all_steps):
        is_last = number == current == len(all_steps) - 1
        status = "off" if current < 0 else "done" if number < current or is_last else "to-come"
        status = "now" if number == current and not is_last else status
        label = _shared.state_label(request.state if number == current else state)
        steps.append((label.text, status))
    return steps


def _describe_schedule(visitor: Principal, request: RequestOut) -> str:
    """Return a sentence on when a queued request is applied; empty for other states."""
    if request.state != "queued" or not visitor.sees_all_requests:
        return ""
    ledger = visitor.ledger
    plan = ledger.plan(request.model, tenant=request.tenant)[0]
    latest = plan.decision.when_next
    if latest is None:
        return "The batch starts as soon as the worker is free."
    model = ledger.models.get(request.model, tenant=request.tenant)
    rows = ledger.settings.policy.enough_rows(model.releases)
    return (
        f"The next batch starts when {count_words(rows, 'row')} {'is' if rows == 1 else 'are'} "
        f"waiting (now {plan.n_rows}), at the latest on {_shared.format_moment(latest)}."
    )
