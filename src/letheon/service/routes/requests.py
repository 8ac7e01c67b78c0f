"""Requests: list, look at, export; verify, approve, hold, reject, answer and so on."""

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
from letheon.service.errors import Problem
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
# What a spreadsheet takes for a formula.
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
    """Whose requests, about which model."""

    model: views.ModelName | None = None
    tenant: views.TenantName | None = None


class RequestQuery(ModelQuery):
    """Which requests a list shows."""

    state: list[views.State] = Field(default=[], max_length=15)
    regime: Regime | None = None
    overdue: bool = False
    due_before: views.Day | None = None
    search: Annotated[StrictStr, Field(max_length=64)] | None = Field(
        default=None, description="Start of an id of a request or batch; certificate: #12."
    )
    order: Literal["due", "newest"] = "due"


class RequestPageQuery(RequestQuery):
    """Which part of a list is shown."""

    after: Annotated[str, Field(max_length=512)] | None = Field(
        default=None, description="What `next` of the part before said."
    )
    limit: int = Field(default=50, ge=1, le=200)


class TimelineEntry(Out):
    """One thing that happened to a request.

    Attributes
    ----------
    by : str or None
        Id of the token that did it; null for the ledger itself.
    log_index : int or None
        Place in the log; null until the next checkpoint, and for a token that is bound to a
        tenant or only files.
    """

    at: datetime
    code: str
    words: str
    by: str | None
    log_index: int | None


class Bucket(Out):
    """How many open requests have so many days left."""

    label: str
    count: int


class DueDay(Out):
    """How many open requests have this last day."""

    day: date
    count: int


class Summary(Out):
    """How the requests stand.

    Attributes
    ----------
    counts : dict of str to int
        By state.
    n_due_soon : int
        Due within 7 days, and not overdue.
    due_days : list of DueDay
        Open requests by their last day.
    oldest_received_at : datetime or None
        Of the one that is due first.
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
    who: Reader, query: Annotated[RequestPageQuery, Query()]
) -> Page[views.RequestOut]:
    """Return requests, earliest due first or newest first."""
    try:
        page = who.ledger.requests.find(
            **_filters(who, query), order=query.order, after=query.after, limit=query.limit
        )
    except ValueError as error:
        words = "Give what `next` of the part before said, with the same filters and order."
        title = "`after` belongs to no list like this one"
        raise Problem(422, "cursor", title, words) from error
    return Page(tuple(views.show_requests(who, page.items)), page.next, page.total)


def find_first_requests(
    who: Principal, query: RequestQuery, *, limit: int
) -> list[views.RequestOut]:
    """Return the first requests of a list; how many there are in all is not counted."""
    filters = _filters(who, query)
    requests = who.ledger.requests.iterate(**filters, order=query.order, chunk=limit)
    return views.show_requests(who, list(islice(requests, limit)))


def _filters(who: Principal, query: RequestQuery) -> dict[str, Any]:
    return {
        "tenant": who.tenant_filter(query.tenant),
        "model": query.model,
        "states": tuple(query.state),
        "regime": query.regime,
        "overdue": query.overdue,
        "due_before": query.due_before,
        "search": _search_text(who, query.search),
        **own_filter(who),
    }


def own_filter(who: Principal) -> dict[str, Any]:
    """Return which requests a token sees in lists and counts, and in which states."""
    sees_all = who.sees_all_requests
    return {"filed_by": None if sees_all else who.id, "coarse": not sees_all}


def _search_text(who: Principal, text: str | None) -> str | None:
    """Return what is searched for; the number of a certificate as the ledger has it."""
    if text is None or who.tenant is None or not text[1:].isdecimal() or text[0] != "#":
        return text
    try:
        return f"#{who.numbers.sequence(int(text[1:]))}"
    except Problem:
        return "#0"  # none has it


@router.get(
    "/api/v1/requests.csv",
    summary="Export requests",
    **describe_file("text/csv", "All these requests, as CSV."),
)
def export_requests(who: Reader, query: Annotated[RequestQuery, Query()]) -> StreamingResponse:
    """Return all requests that the filters leave, as CSV; no id of a person is in it."""
    requests = who.ledger.requests.iterate(**_filters(who, query), order=query.order)
    return StreamingResponse(
        _export_lines(who, requests),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="requests.csv"'},
    )


def _export_lines(who: Principal, requests: Iterator[Request]) -> Iterator[str]:
    yield _csv_text([(*_EXPORTED, "state_label")])
    while part := list(islice(requests, _CHUNK)):
        shown = views.show_requests(who, part)
        yield _csv_text([_export_cells(request) for request in shown])


def _export_cells(request: views.RequestOut) -> list[str]:
    cells = [export_cell(getattr(request, name)) for name in _EXPORTED]
    return [*cells, states.REQUEST_STATES[request.state].label]


def _csv_text(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue()


def export_cell(value: Any) -> str:
    """Return a cell; one that a spreadsheet would take for a formula begins with an apostrophe."""
    if value is None:
        return ""
    text = value.isoformat() if isinstance(value, date) else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


@router.get("/api/v1/summary", summary="How the requests stand")
def summarise_requests(who: Reader, query: Annotated[ModelQuery, Query()]) -> Summary:
    """Return counts by state and by days left."""
    ledger, filters = who.ledger, own_filter(who)
    filters |= {"tenant": who.tenant_filter(query.tenant), "model": query.model}
    counts, due_days = ledger.requests.count(**filters), ledger.requests.count_due(**filters)
    today = ledger.settings.calendar.day_of(to_datetime(who.ledger.clock()))
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
        n_due_soon=sum(one.count for one in buckets[1:3]),
        by_days_left=buckets,
        due_days=[DueDay(day=day, count=count) for day, count in due_days.items()],
        earliest_due_on=earliest[0].due_on if earliest else None,
        oldest_received_at=earliest[0].received_at if earliest else None,
    )


@router.get("/api/v1/grounds", summary="Legal grounds")
def list_grounds(who: Reader) -> views.Grounds:  # noqa: ARG001  (the gate)
    """Return the codes of law that a request, a rejection or a hold may name."""
    return views.GROUNDS


@router.get("/api/v1/requests/{request_id}", summary="One request")
def read_request(who: Reader, request_id: views.RequestPath) -> views.RequestOut:
    """Return a request as it is now."""
    return views.show_requests(who, [views.find_visible(who, request_id)])[0]


@router.get("/api/v1/requests/{request_id}/timeline", summary="What happened to a request")
def read_timeline(who: Reader, request_id: views.RequestPath) -> Page[TimelineEntry]:
    """Return what happened to a request and to its batch, oldest first."""
    views.find_visible(who, request_id)
    entries = who.ledger.requests.timeline(request_id, tenant=who.tenant)
    items = tuple(
        _entry_out(who, entry)
        for entry in entries
        if who.sees_all_requests or _is_for_filer(who, entry)
    )
    return Page(items, total=len(items))


def _is_for_filer(who: Principal, entry: LogEntry) -> bool:
    """Whether an event is the filer's own, or one of which the person was told."""
    is_withdrawn = entry.kind == "cancelled" and entry.details.get("by") == who.id
    return entry.kind in ("received", "extended") or is_withdrawn


def _entry_out(who: Principal, entry: LogEntry) -> TimelineEntry:
    by, details = entry.details.get("by"), who.numbers.in_json(entry.details)
    if not who.sees_all_requests:
        details = {key: value for key, value in details.items() if key != "people"}
        by = by if by == who.id else None
    # Places in the log of all tenants would tell how much the others do.
    sees_log = who.tenant is None and who.sees_all_requests
    return TimelineEntry(
        at=entry.at,
        code=entry.kind,
        words=views.sentence(replace(entry, details=details)),
        by=by,
        log_index=entry.index if sees_log else None,
    )


class RejectIn(In):
    """Why a request is refused.

    Attributes
    ----------
    ground : str
        See /api/v1/grounds, reject.
    """

    ground: views.Code


class HoldIn(RejectIn):
    """Why a request has to wait, and until when.

    Attributes
    ----------
    ground : str
        See /api/v1/grounds, hold.
    until : date
        The day on whose beginning the hold ends.
    """

    until: views.Day


class TellIn(In):
    """How many recipients of the data were told (GDPR, Article 19)."""

    recipients: StrictInt = Field(ge=1, le=_MOST_RECIPIENTS)


class AnswerIn(In):
    """How many more recipients were told."""

    recipients: StrictInt = Field(default=0, ge=0, le=_MOST_RECIPIENTS)


class ActionOnMany(In):
    """One action on many requests; each stands for itself.

    Attributes
    ----------
    ground : str or None
        For hold and reject.
    until : date or None
        For hold: the day on which it ends.
    recipients : int or None
        For tell and answer: how many were told.
    """

    ground: views.Code | None = None
    until: views.Day | None = None
    recipients: StrictInt | None = Field(default=None, ge=0, le=_MOST_RECIPIENTS)
    action: views.ActionName
    requests: list[views.RequestId] = Field(min_length=1, max_length=views.MOST_ITEMS)


@router.post("/api/v1/requests/actions", summary="Do one thing about many requests")
def act_on_requests(
    who: Annotated[Principal, Depends(allows("requests:read", is_long=True))],
    body: ActionOnMany,
) -> views.BulkOut:
    """Do one thing about many requests, each for itself; it needs the scope of the action."""
    # Only what is verified together is counted together: above `Policy.approve_above` rows all of
    # it waits for an approval.
    details = body.model_dump()
    _require_action(who, body.action, details)
    needs_approval = _is_large_together(who, body)
    results: list[Request | Exception] = []
    for request_id in body.requests:
        try:
            changed = _change(who, request_id, body.action, details, needs_approval=needs_approval)
            results.append(changed)
        except Exception as error:  # noqa: BLE001  (`bulk_out` raises what is no refusal)
            results.append(error)
    return views.bulk_out(who, results)


def act(
    who: Principal, request_id: str, name: views.ActionName, **details: Any
) -> views.RequestOut:
    """Do one thing about one request."""
    with views.refusals():
        return views.show_requests(who, [_change(who, request_id, name, details)])[0]


def _change(
    who: Principal,
    request_id: str,
    name: views.ActionName,
    details: dict[str, Any],
    *,
    needs_approval: bool = False,
) -> Request:
    """Do one thing about one request, and return it as the ledger has it."""
    _require_action(who, name, details)
    request = views.find_visible(who, request_id)
    if name == "approve":
        _require_other_eyes(who, request)
    given = {key: details[key] for key in views.ACTIONS[name].takes if details.get(key) is not None}
    if needs_approval:  # it is to be verified, and no more
        given["needs_approval"] = True
    method = getattr(who.ledger.requests, _METHODS.get(name, name))
    with who.ledger.acting(who.id):
        changed: Request = method(request.id, tenant=who.tenant, **given)
        return changed


def _require_action(who: Principal, name: views.ActionName, details: dict[str, Any]) -> None:
    """Refuse an action to a token that has none of its scopes, and one without its details."""
    action = views.ACTIONS[name]
    who.require(*action.scopes)
    missing = [key for key in action.takes if details.get(key) is None]
    if missing and not action.is_optional:
        words = "Grounds are codes: see /api/v1/grounds. A day is written YYYY-MM-DD."
        raise Problem(422, "details-missing", f"{name} needs {' and '.join(missing)}", words)


def _require_other_eyes(who: Principal, request: Request) -> None:
    """Refuse an approval by the person who filed or verified it, with whatever token.

    Both are known for good once it is verified.
    """
    if request.state != "verified":
        label = states.REQUEST_STATES[request.state].label
        words = f"request {request.id} has the state {label}; {states.REFUSALS['approve']}"
        raise RequestStateError(words)
    family = who.desk.tokens.find_family(who.id)
    if not family.isdisjoint({request.filed_by, request.verified_by}):
        raise RequestStateError(
            f"request {request.id} was filed or verified with the token that would approve it, "
            "with one that made it, or with one that it made; somebody else has to, with a token "
            "of another line: `letheon token add` begins one"
        )


def _is_large_together(who: Principal, body: ActionOnMany) -> bool:
    """Whether one call verifies so much together that all of it needs an approval."""
    policy = who.ledger.settings.policy
    if body.action != "verify" or policy.approve_above is None:
        return False
    rows = {}
    for request_id in body.requests:
        with contextlib.suppress(UnknownRequestError):
            request = views.find_visible(who, request_id)
            rows[request.id] = request.n_rows if request.state == "received" else 0
    return policy.needs_approval(sum(rows.values()))


@router.post("/api/v1/requests/{request_id}/hold", summary="Put a request on hold")
def hold_request(who: Handler, request_id: views.RequestPath, body: HoldIn) -> views.RequestOut:
    """Put a request off on a legal ground; its clock goes on."""
    return act(who, request_id, "hold", ground=body.ground, until=body.until)


@router.post("/api/v1/requests/{request_id}/reject", summary="Reject a request")
def reject_request(
    who: Annotated[Principal, Depends(allows("requests:handle", "requests:approve"))],
    request_id: views.RequestPath,
    body: RejectIn,
) -> views.RequestOut:
    """Refuse a request on a legal ground."""
    return act(who, request_id, "reject", ground=body.ground)


@router.post("/api/v1/requests/{request_id}/tell", summary="Recipients were told")
def tell_recipients(who: Handler, request_id: views.RequestPath, body: TellIn) -> views.RequestOut:
    """Record that recipients of the data were told; the purge attests their number."""
    return act(who, request_id, "tell", recipients=body.recipients)


@router.post("/api/v1/requests/{request_id}/answer", summary="The person was answered")
def answer_request(
    who: Handler, request_id: views.RequestPath, body: AnswerIn | None = None
) -> views.RequestOut:
    """Close a purged request."""
    recipients = 0 if body is None else body.recipients
    return act(who, request_id, "answer", recipients=recipients)


def _plain_handler(name: views.ActionName, gate: Gate) -> Callable[..., views.RequestOut]:
    """Return the handler of an action that needs no details."""

    def handle(
        who: Annotated[Principal, Depends(gate)], request_id: views.RequestPath
    ) -> views.RequestOut:
        return act(who, request_id, name)

    return handle


_PLAIN: dict[views.ActionName, tuple[str, str]] = {
    "verify": ("verify_request", "The identity was verified; the request goes on."),
    "await-identity": ("await_identity", "A proof of identity was asked for; GDPR's clock stands."),
    "approve": ("approve_request", "Let a large request go on, as a second pair of eyes."),
    "release": ("release_request", "End a hold."),
    "extend": ("extend_request", "Put the due day off; the person was told why."),
    "retry": ("retry_request", "Try a failed request again."),
    "cancel": ("cancel_request", "Withdraw a request that no batch has taken up."),
}

for _name, (_operation, _about) in _PLAIN.items():
    router.add_api_route(
        f"/api/v1/requests/{{request_id}}/{_name}",
        _plain_handler(_name, allows(views.ACTIONS[_name].scopes[0])),
        methods=["POST"],
        name=_operation,
        summary=views.ACTIONS[_name].words,
        description=_about,
        response_model=views.RequestOut,
    )
