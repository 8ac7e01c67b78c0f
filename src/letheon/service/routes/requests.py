"""API routes that list, show and export requests, and take actions on them."""

import contextlib
import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date, datetime
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse
from pydantic import Field, StrictInt, StrictStr

from letheon.exceptions import RequestStateError, UnknownRequestError
from letheon.ledger import LogEntry, Page, Request
from letheon.ledger.requests import states
from letheon.ledger.requests.deadlines import Regime
from letheon.ledger.schemas import to_datetime
from letheon.service import request_views as views
from letheon.service.auth import Gate, Principal, allows
from letheon.service.errors import ApiProblem
from letheon.service.schemas import In, Out, describe_file

router = APIRouter(tags=["requests"])

Reader = Annotated[Principal, Depends(allows("requests:read"))]
Handler = Annotated[Principal, Depends(allows("requests:handle"))]
OPEN = tuple(state for state in states.STATES if state not in states.FINAL)
_CHUNK = 500
_MOST_RECIPIENTS = 1_000_000
_METHODS = {"await-identity": "await_identity", "tell": "record_recipients"}
_EXPORTED = (
    *("id", "model", "tenant", "state", "regime", "ground", "received_at", "due_on", "is_overdue"),
    *("n_ids", "n_rows", "batch", "certificate", "version", "tries", "reason", "duplicate_of"),
    "filed_by",
)
# Spreadsheets read a cell that starts with one of these as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_BUCKETS = (
    ("overdue", -math.inf, 0),
    ("0 to 3 days", 0, 4),
    ("4 to 7 days", 4, 8),
    ("8 to 14 days", 8, 15),
    ("15 to 30 days", 15, 31),
    ("more than 30 days", 31, math.inf),
)


class ModelQuery(In):
    """Query parameters that select requests by model and tenant."""

    model: views.ModelName | None = None
    tenant: views.TenantName | None = None


class RequestQuery(ModelQuery):
    """Query parameters that select and order the requests of a list."""

    state: list[views.State] = Field(default=[], max_length=15)
    regime: Regime | None = None
    overdue: bool = False
    due_before: views.Day | None = None
    search: Annotated[StrictStr, Field(max_length=64)] | None = Field(
        default=None,
        description="First characters of a request id or batch id; or a certificate, such as #12.",
    )
    order: Literal["due", "newest"] = "due"


class RequestPageQuery(RequestQuery):
    """Query parameters for one page of a list of requests."""

    after: Annotated[str, Field(max_length=512)] | None = Field(
        default=None, description="Value of `next` of the previous page."
    )
    limit: int = Field(default=50, ge=1, le=200)


class TimelineEntry(Out):
    """An event of a request.

    Attributes
    ----------
    by : str or None
        Id of the token that acted; null if the ledger acted itself.
    log_index : int or None
        Position of the event in the log. It is null until the next checkpoint, and for a token that
        is bound to a tenant or can only file requests.
    """

    at: datetime
    code: str
    words: str
    by: str | None
    log_index: int | None


class Bucket(Out):
    """The number of open requests in a range of days left."""

    label: str
    count: int


class DueDay(Out):
    """The number of open requests with a deadline on this day."""

    day: date
    count: int


class Summary(Out):
    """Numbers of requests by state and by deadline.

    Attributes
    ----------
    counts : dict of str to int
        Number of requests by state.
    n_due_soon : int
        Number of requests that are due within 7 days and not overdue.
    due_days : list of DueDay
        Number of open requests by deadline.
    oldest_received_at : datetime or None
        When the request with the earliest deadline was received; null if no request is open.
    """

    counts: dict[str, int]
    n_open: int
    n_overdue: int
    n_due_soon: int
    by_days_left: list[Bucket]
    due_days: list[DueDay]
    earliest_due_on: date | None
    oldest_received_at: datetime | None


@router.get("/api/v1/requests", summary="List requests")
def list_requests(
    caller: Reader, query: Annotated[RequestPageQuery, Query()]
) -> Page[views.RequestOut]:
    """List requests, earliest deadline first or newest first."""
    try:
        page = caller.ledger.requests.find(
            **_make_filters(caller, query), order=query.order, after=query.after, limit=query.limit
        )
    except ValueError as error:
        words = "Use `next` of the previous page, with the same filters and order."
        title = "`after` does not belong to this list"
        raise ApiProblem(422, "cursor", title, words) from error
    return Page(tuple(views.show_requests(caller, page.items)), page.next, page.total)


def find_first_requests(
    caller: Principal, query: RequestQuery, *, limit: int
) -> list[views.RequestOut]:
    """Return the first `limit` requests of a list; faster than a page, which counts them all."""
    filters = _make_filters(caller, query)
    requests = caller.ledger.requests.iterate(**filters, order=query.order, chunk=limit)
    return views.show_requests(caller, list(islice(requests, limit)))


def _make_filters(caller: Principal, query: RequestQuery) -> dict[str, Any]:
    return {
        "tenant": caller.tenant_filter(query.tenant),
        "model": query.model,
        "states": tuple(query.state),
        "regime": query.regime,
        "overdue": query.overdue,
        "due_before": query.due_before,
        "search": _search_text(caller, query.search),
        **own_filter(caller),
    }


def own_filter(caller: Principal) -> dict[str, Any]:
    """Return the filter arguments that select the requests a token may see."""
    sees_all = caller.sees_all_requests
    return {"filed_by": None if sees_all else caller.id, "coarse": not sees_all}


def _search_text(caller: Principal, text: str | None) -> str | None:
    """Replace a tenant's certificate number such as #12 in a search by the ledger's number."""
    if text is None or caller.tenant is None or not text[1:].isdecimal() or text[0] != "#":
        return text
    try:
        return f"#{caller.numbers.ledger_number(int(text[1:]))}"
    except ApiProblem:
        return "#0"  # matches nothing


@router.get(
    "/api/v1/requests.csv",
    summary="Export requests",
    **describe_file("text/csv", "The requests as CSV."),
)
def export_requests(caller: Reader, query: Annotated[RequestQuery, Query()]) -> StreamingResponse:
    """Export all matching requests as CSV, without the ids of people."""
    requests = caller.ledger.requests.iterate(**_make_filters(caller, query), order=query.order)
    return StreamingResponse(
        _export_lines(caller, requests),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="requests.csv"'},
    )


def _export_lines(caller: Principal, requests: Iterator[Request]) -> Iterator[str]:
    yield _csv_text([(*_EXPORTED, "state_label")])
    while part := list(islice(requests, _CHUNK)):
        shown = views.show_requests(caller, part)
        yield _csv_text([_export_cells(request) for request in shown])


def _export_cells(request: views.RequestOut) -> list[str]:
    cells = [export_cell(getattr(request, name)) for name in _EXPORTED]
    return [*cells, states.REQUEST_STATES[request.state].label]


def _csv_text(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue()


def export_cell(value: Any) -> str:
    """Return the text of a CSV cell, with an apostrophe before text that looks like a formula."""
    if value is None:
        return ""
    text = value.isoformat() if isinstance(value, date) else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


@router.get("/api/v1/summary", summary="Count requests")
def summarise_requests(caller: Reader, query: Annotated[ModelQuery, Query()]) -> Summary:
    """Count requests by state and by days left."""
    ledger, filters = caller.ledger, own_filter(caller)
    filters |= {"tenant": caller.tenant_filter(query.tenant), "model": query.model}
    counts, due_days = ledger.requests.count(**filters), ledger.requests.count_due(**filters)
    today = ledger.settings.calendar.day_of(to_datetime(caller.ledger.clock()))
    left = [((day - today).days, count) for day, count in due_days.items()]
    buckets = [
        Bucket(label=label, count=sum(count for days, count in left if first <= days < end))
        for label, first, end in _BUCKETS
    ]
    earliest = ledger.requests.find(**filters, states=OPEN, limit=1).items
    return Summary(
        counts=counts.by_state,
        n_open=counts.n_open,
        n_overdue=counts.overdue,
        n_due_soon=sum(bucket.count for bucket in buckets[1:3]),
        by_days_left=buckets,
        due_days=[DueDay(day=day, count=count) for day, count in due_days.items()],
        earliest_due_on=earliest[0].due_on if earliest else None,
        oldest_received_at=earliest[0].received_at if earliest else None,
    )


@router.get("/api/v1/grounds", summary="List legal grounds")
def list_grounds(caller: Reader) -> views.Grounds:  # noqa: ARG001  (the gate)
    """List the legal grounds for requests, rejections and holds."""
    return views.GROUNDS


@router.get("/api/v1/requests/{request_id}", summary="Show a request")
def read_request(caller: Reader, request_id: views.RequestPath) -> views.RequestOut:
    """Show the current state of a request."""
    return views.show_requests(caller, [views.find_visible(caller, request_id)])[0]


@router.get("/api/v1/requests/{request_id}/timeline", summary="Show the history of a request")
def read_timeline(caller: Reader, request_id: views.RequestPath) -> Page[TimelineEntry]:
    """List the events of a request and its batch, oldest first."""
    views.find_visible(caller, request_id)
    entries = caller.ledger.requests.timeline(request_id, tenant=caller.tenant)
    items = tuple(
        _entry_out(caller, entry)
        for entry in entries
        if caller.sees_all_requests or _is_for_filer(caller, entry)
    )
    return Page(items, total=len(items))


def _is_for_filer(caller: Principal, entry: LogEntry) -> bool:
    """Return whether a token that can only file requests may see an event.

    It may see the receipt of the request, extensions, and its own withdrawal.
    """
    is_withdrawn = entry.kind == "cancelled" and entry.details.get("by") == caller.id
    return entry.kind in ("received", "extended") or is_withdrawn


def _entry_out(caller: Principal, entry: LogEntry) -> TimelineEntry:
    by, details = entry.details.get("by"), caller.numbers.renumber(entry.details)
    if not caller.sees_all_requests:
        details = {key: value for key, value in details.items() if key != "people"}
        by = by if by == caller.id else None
    # Positions in the log would reveal the activity of other tenants.
    sees_log = caller.tenant is None and caller.sees_all_requests
    return TimelineEntry(
        at=entry.at,
        code=entry.kind,
        words=views.describe_event(replace(entry, details=details)),
        by=by,
        log_index=entry.index if sees_log else None,
    )


class RejectIn(In):
    """The legal ground of a rejection.

    Attributes
    ----------
    ground : str
        A code in the list `reject` of /api/v1/grounds.
    """

    ground: views.Code


class HoldIn(RejectIn):
    """The legal ground and the end of a hold.

    Attributes
    ----------
    ground : str
        A code in the list `hold` of /api/v1/grounds.
    until : date
        The hold ends at the beginning of this day.
    """

    until: views.Day


class TellIn(In):
    """The number of recipients of the data that were notified (GDPR, Article 19)."""

    recipients: StrictInt = Field(ge=1, le=_MOST_RECIPIENTS)


class AnswerIn(In):
    """The number of notified recipients that have not been recorded yet."""

    recipients: StrictInt = Field(default=0, ge=0, le=_MOST_RECIPIENTS)


class ActionOnMany(In):
    """One action on several requests.

    Attributes
    ----------
    ground : str or None
        Legal ground; required for the actions hold and reject.
    until : date or None
        Day on which the hold ends; required for the action hold.
    recipients : int or None
        Number of notified recipients; for the actions tell and answer.
    """

    ground: views.Code | None = None
    until: views.Day | None = None
    recipients: StrictInt | None = Field(default=None, ge=0, le=_MOST_RECIPIENTS)
    action: views.ActionName
    requests: list[views.RequestId] = Field(min_length=1, max_length=views.MOST_ITEMS)


@router.post("/api/v1/requests/actions", summary="Take an action on several requests")
def act_on_requests(
    caller: Annotated[Principal, Depends(allows("requests:read", is_long=True))], body: ActionOnMany
) -> views.BulkOut:
    """Take the same action on several requests; the token needs the scope for this action."""
    # The rows of requests that are verified together are added up: above `Policy.approve_above`
    # all of them need approval.
    details = body.model_dump()
    _require_action(caller, body.action, details)
    needs_approval = _is_large_together(caller, body)
    results: list[Request | Exception] = []
    for request_id in body.requests:
        try:
            changed = _change_request(
                caller, request_id, body.action, details, needs_approval=needs_approval
            )
            results.append(changed)
        except Exception as error:  # noqa: BLE001  (`bulk_out` raises internal errors)
            results.append(error)
    return views.bulk_out(caller, results)


def take_action(
    caller: Principal, request_id: str, name: views.ActionName, **details: Any
) -> views.RequestOut:
    """Take an action on a request; return the request as the caller sees it."""
    with views.raise_problems():
        return views.show_requests(caller, [_change_request(caller, request_id, name, details)])[0]


def _change_request(
    caller: Principal,
    request_id: str,
    name: views.ActionName,
    details: dict[str, Any],
    *,
    needs_approval: bool = False,
) -> Request:
    """Take an action on a request, and return the request as recorded in the ledger."""
    _require_action(caller, name, details)
    request = views.find_visible(caller, request_id)
    if name == "approve":
        _require_other_eyes(caller, request)
    arguments = {
        key: details[key] for key in views.ACTIONS[name].takes if details.get(key) is not None
    }
    if needs_approval:  # only for verify
        arguments["needs_approval"] = True
    method = getattr(caller.ledger.requests, _METHODS.get(name, name))
    with caller.ledger.acting(caller.id):
        changed: Request = method(request.id, tenant=caller.tenant, **arguments)
        return changed


def _require_action(caller: Principal, name: views.ActionName, details: dict[str, Any]) -> None:
    """Raise a problem if the token lacks the scope, or the details lack a required value."""
    action = views.ACTIONS[name]
    caller.require(*action.scopes)
    missing = [key for key in action.takes if details.get(key) is None]
    if missing and not action.is_optional:
        words = "GET /api/v1/grounds lists the codes of grounds; days are written YYYY-MM-DD."
        raise ApiProblem(
            422, "details-missing", f"the action {name} needs {' and '.join(missing)}", words
        )


def _require_other_eyes(caller: Principal, request: Request) -> None:
    """Reject an approval by the person who filed or verified the request, with any token.

    Only a verified request can be approved, so it is known who filed and verified it.
    """
    if request.state != "verified":
        label = states.REQUEST_STATES[request.state].label
        words = f"request {request.id} has the state {label}; {states.REFUSALS['approve']}"
        raise RequestStateError(words)
    family = caller.desk.tokens.find_family(caller.id)
    if not family.isdisjoint({request.filed_by, request.verified_by}):
        raise RequestStateError(
            f"request {request.id} was filed or verified with your token, or with a token that "
            "created your token or was created with it; another person must approve the request, "
            "with a token from `letheon token add`"
        )


def _is_large_together(caller: Principal, body: ActionOnMany) -> bool:
    """Return whether all requests that a call verifies need approval.

    They do if their rows together exceed the limit of the policy.
    """
    policy = caller.ledger.settings.policy
    if body.action != "verify" or policy.approve_above is None:
        return False
    rows = {}
    for request_id in body.requests:
        with contextlib.suppress(UnknownRequestError):
            request = views.find_visible(caller, request_id)
            rows[request.id] = request.n_rows if request.state == "received" else 0
    return policy.needs_approval(sum(rows.values()))


@router.post("/api/v1/requests/{request_id}/hold", summary="Put a request on hold")
def hold_request(caller: Handler, request_id: views.RequestPath, body: HoldIn) -> views.RequestOut:
    """Put a request on hold on a legal ground; its deadline does not change."""
    return take_action(caller, request_id, "hold", ground=body.ground, until=body.until)


@router.post("/api/v1/requests/{request_id}/reject", summary="Reject a request")
def reject_request(
    caller: Annotated[Principal, Depends(allows("requests:handle", "requests:approve"))],
    request_id: views.RequestPath,
    body: RejectIn,
) -> views.RequestOut:
    """Reject a request on a legal ground."""
    return take_action(caller, request_id, "reject", ground=body.ground)


@router.post("/api/v1/requests/{request_id}/tell", summary="Record notified recipients")
def tell_recipients(
    caller: Handler, request_id: views.RequestPath, body: TellIn
) -> views.RequestOut:
    """Record how many recipients were notified; the purge attestation states this number."""
    return take_action(caller, request_id, "tell", recipients=body.recipients)


@router.post("/api/v1/requests/{request_id}/answer", summary="Mark a request as answered")
def answer_request(
    caller: Handler, request_id: views.RequestPath, body: AnswerIn | None = None
) -> views.RequestOut:
    """Close a purged request after the requester was answered."""
    recipients = 0 if body is None else body.recipients
    return take_action(caller, request_id, "answer", recipients=recipients)


def _plain_handler(name: views.ActionName, gate: Gate) -> Callable[..., views.RequestOut]:
    """Return the route handler for an action that needs no details."""

    def handle_action(
        caller: Annotated[Principal, Depends(gate)], request_id: views.RequestPath
    ) -> views.RequestOut:
        return take_action(caller, request_id, name)

    return handle_action


# Operation, summary and description.
_PLAIN: dict[views.ActionName, tuple[str, str, str]] = {
    "verify": (
        "verify_request",
        "Mark the identity as verified",
        "Record that the identity was verified. A large request then needs approval.",
    ),
    "await-identity": (
        "await_identity",
        "Request proof of identity",
        "Record that proof of identity was requested; under the GDPR the deadline is paused.",
    ),
    "approve": (
        "approve_request",
        "Approve a request",
        "Approve a large request; not possible for the person who filed or verified it.",
    ),
    "release": ("release_request", "Release a request from hold", "End the hold of a request."),
    "extend": (
        "extend_request",
        "Extend the deadline",
        "Extend the deadline. You must inform the requester, with the reasons.",
    ),
    "retry": ("retry_request", "Retry a request", "Queue a failed request again."),
    "cancel": (
        "cancel_request",
        "Withdraw a request",
        "Withdraw a request that is not applied and not in a running batch.",
    ),
}

for _name, (_operation, _summary, _about) in _PLAIN.items():
    router.add_api_route(
        f"/api/v1/requests/{{request_id}}/{_name}",
        _plain_handler(_name, allows(views.ACTIONS[_name].scopes[0])),
        methods=["POST"],
        name=_operation,
        summary=_summary,
        description=_about,
        response_model=views.RequestOut,
    )
