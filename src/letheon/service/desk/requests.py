"""Requests as the desk shows them: one, a page of them, all as CSV, and how they stand."""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import islice
from typing import Any

from letheon.exceptions import UnknownRequestError
from letheon.ledger import Entry, Request
from letheon.ledger.requests.states import FINAL, STATES
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._problems import Problem
from letheon.service._schemas import Page
from letheon.service.desk.four_eyes import family
from letheon.service.desk.numbers import Numbers
from letheon.service.desk.people import version_numbers
from letheon.service.desk.request_forms import (
    Bucket,
    DueDay,
    Grounds,
    RequestOut,
    RequestQuery,
    Summary,
    TimelineEntry,
)
from letheon.service.desk.request_table import actions_for
from letheon.service.desk.request_words import all_grounds, sentence

__all__ = [
    "EXPORTED",
    "answers",
    "export",
    "find_request",
    "first_requests",
    "grounds",
    "list_requests",
    "own_filter",
    "summary",
    "timeline",
    "visible",
]

EXPORTED = (
    "id",
    "model",
    "tenant",
    "state",
    "regime",
    "ground",
    "received_at",
    "due_on",
    "is_overdue",
    "n_ids",
    "n_rows",
    "batch",
    "certificate",
    "version",
    "tries",
    "reason",
    "duplicate_of",
    "filed_by",
)
"""Columns of the export."""

_DERIVED = ("days_left", "is_overdue", "version", "needs_approval", "actions", "certificate")
_OPEN = tuple(state for state in STATES if state not in FINAL)
_BUCKETS = (
    ("overdue", -math.inf, 0),
    ("0 to 3 days", 0, 4),
    ("4 to 7 days", 4, 8),
    ("8 to 14 days", 8, 15),
    ("15 to 30 days", 15, 31),
    ("more than 30 days", 31, math.inf),
)
_CHUNK = 500
# What a spreadsheet takes for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def visible(context: Context, who: Principal, request_id: str) -> Request:
    """Return a request that somebody may see.

    Raises
    ------
    UnknownRequestError
        There is none; or it is another tenant's, or another's who may see only their own. The
        three cannot be told apart.
    """
    found = context.ledger.request_of(request_id, tenant=who.tenant)
    if not who.sees_all_requests and found.filed_by != who.token_id:
        raise UnknownRequestError("no request of that id; `letheon request list` shows all")
    return found


def find_request(context: Context, who: Principal, request_id: str) -> RequestOut:
    """Return one request as somebody sees it."""
    return answers(context, who, [visible(context, who, request_id)])[0]


def answers(context: Context, who: Principal, found: Sequence[Request]) -> list[RequestOut]:
    """Return requests as somebody sees them, in their order."""
    now = datetime.fromtimestamp(context.clock(), UTC)
    if not who.sees_all_requests:
        return [_answer_to_filer(context, one, now) for one in found]
    versions = version_numbers(context.ledger, found)
    numbers = Numbers(context, who)
    asks = who.may("requests:approve") and any(one.state == "verified" for one in found)
    own = family(context, who.token_id) if asks else frozenset()
    return [
        _answer(
            context,
            who,
            one,
            now,
            versions.get(one.id),
            numbers.shown(one.certificate),
            _is_of(own, one),
        )
        for one in found
    ]


def _is_of(own: frozenset[str], found: Request) -> bool:
    return not own.isdisjoint({found.filed_by, found.verified_by})


def _answer(
    context: Context,
    who: Principal,
    found: Request,
    now: datetime,
    number: int | None,
    certificate: int | None,
    is_own: bool,
) -> RequestOut:
    left = found.days_left(now, context.ledger.settings.calendar) if found.is_open else None
    is_overdue = left is not None and left < 0
    shown = {name: getattr(found, name) for name in RequestOut.model_fields if name not in _DERIVED}
    return RequestOut(
        **shown,
        certificate=certificate,
        days_left=left,
        is_overdue=is_overdue,
        version=None if number is None else f"{found.model}@{number}",
        needs_approval=found.state == "verified",
        actions=actions_for(who, found, is_overdue=is_overdue, is_own=is_own),
    )


def _answer_to_filer(context: Context, found: Request, now: datetime) -> RequestOut:
    """Return a request as a filer sees it who may not know whom a model holds or has forgotten.

    How soon a request ends would tell that too, so it is closed only after its last day.
    """
    left = found.days_left(now, context.ledger.settings.calendar)
    is_closed = not found.is_open and left < 0
    return RequestOut(
        id=found.id,
        model=found.model,
        tenant=found.tenant,
        state="closed" if is_closed else "received",
        regime=found.regime,
        ground=found.ground,
        received_at=found.received_at,
        due_on=found.due_on,
        days_left=None if is_closed else left,
        is_overdue=left < 0 and not is_closed,
        n_ids=None,
        n_rows=None,
        batch=None,
        certificate=None,
        version=None,
        tries=0,
        reason=None,
        duplicate_of=None,
        filed_by=found.filed_by,
        needs_approval=False,
        actions=[],
    )


def own_filter(who: Principal) -> dict[str, Any]:
    """Return which requests somebody sees in lists and counts, and in which states."""
    if who.sees_all_requests:
        return {"filed_by": None, "coarse": False}
    return {"filed_by": who.token_id, "coarse": True}


def list_requests(
    context: Context,
    who: Principal,
    query: RequestQuery,
    *,
    after: str | None = None,
    limit: int = 50,
) -> Page[RequestOut]:
    """Return a part of the requests that somebody may see."""
    try:
        page = context.ledger.find_requests(
            **_filters(context, who, query), order=query.order, after=after, limit=limit
        )
    except ValueError as error:
        raise _no_cursor() from error
    return Page[RequestOut](
        items=answers(context, who, page.items), next=page.next, total=page.total
    )


def first_requests(
    context: Context, who: Principal, query: RequestQuery, *, limit: int
) -> list[RequestOut]:
    """Return the first requests of a list; how many there are in all is not counted."""
    found = context.ledger.iter_requests(
        **_filters(context, who, query), order=query.order, chunk=limit
    )
    return answers(context, who, list(islice(found, limit)))


def _filters(context: Context, who: Principal, query: RequestQuery) -> dict[str, Any]:
    return {
        "tenant": who.tenant_filter(query.tenant),
        "model": query.model,
        "states": tuple(query.state),
        "regime": query.regime,
        "overdue": query.overdue,
        "due_before": query.due_before,
        "search": _search(context, who, query.search),
        **own_filter(who),
    }


def _search(context: Context, who: Principal, text: str | None) -> str | None:
    """Return what is searched for; the number of a certificate as the ledger has it."""
    if text is None or who.tenant is None or not text[1:].isdecimal() or text[0] != "#":
        return text
    try:
        return f"#{Numbers(context, who).sequence(int(text[1:]))}"
    except Problem:
        return "#0"  # none has it


def _no_cursor() -> Problem:
    return Problem(
        422,
        "cursor",
        "`after` belongs to no list like this one",
        "Give what `next` of the part before said, with the same filters and order.",
    )


def export(context: Context, who: Principal, query: RequestQuery) -> Iterator[str]:
    """Return all these requests as CSV, some at a time.

    A cell that a spreadsheet would take for a formula begins with an apostrophe.
    """
    found = context.ledger.iter_requests(**_filters(context, who, query), order=query.order)
    return _lines(context, who, found)


def _lines(context: Context, who: Principal, found: Iterator[Request]) -> Iterator[str]:
    yield _csv([EXPORTED])
    part: list[Request] = []
    for one in found:
        part.append(one)
        if len(part) == _CHUNK:
            yield _part(context, who, part)
            part = []
    if part:
        yield _part(context, who, part)


def _part(context: Context, who: Principal, part: Sequence[Request]) -> str:
    shown = answers(context, who, part)
    return _csv([[_cell(getattr(one, name)) for name in EXPORTED] for one in shown])


def _csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = value.isoformat() if isinstance(value, date) else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def timeline(context: Context, who: Principal, request_id: str) -> list[TimelineEntry]:
    """Return what happened to a request, oldest first, in words."""
    visible(context, who, request_id)
    entries = context.ledger.timeline(request_id, tenant=who.tenant)
    if not who.sees_all_requests:
        entries = tuple(entry for entry in entries if _is_for_filer(who, entry))
    numbers = Numbers(context, who)
    return [_entry(who, entry, numbers) for entry in entries]


def _is_for_filer(who: Principal, entry: Entry) -> bool:
    """Whether an event is the filer's own, or one of which the person was told."""
    is_withdrawn = entry.kind == "cancelled" and entry.details.get("by") == who.token_id
    return entry.kind in ("received", "extended") or is_withdrawn


def _entry(who: Principal, entry: Entry, numbers: Numbers) -> TimelineEntry:
    by = entry.details.get("by")
    entry = replace(entry, details=numbers.in_json(entry.details))
    if not who.sees_all_requests:
        kept = {key: one for key, one in entry.details.items() if key != "people"}
        entry, by = replace(entry, details=kept), by if by == who.token_id else None
    # Places in the log of all tenants would tell how much the others do.
    sees_log = who.tenant is None and who.sees_all_requests
    place = entry.log_index if sees_log else None
    return TimelineEntry(
        at=entry.at, code=entry.kind, words=sentence(entry), by=by, log_index=place
    )


def grounds() -> Grounds:
    """Return the codes of law that a request, a rejection or a hold may name."""
    return all_grounds()


def summary(
    context: Context, who: Principal, *, tenant: str | None = None, model: str | None = None
) -> Summary:
    """Return how the requests stand that somebody may see."""
    whose: dict[str, Any] = {
        "tenant": who.tenant_filter(tenant),
        "model": model,
        **own_filter(who),
    }
    counts = context.ledger.count_requests(**whose)
    days = context.ledger.count_due(**whose)
    now = datetime.fromtimestamp(context.clock(), UTC)
    today = context.ledger.settings.calendar.day_of(now)
    buckets = _buckets(days, today)
    first = context.ledger.find_requests(**whose, states=_OPEN, limit=1).items
    return Summary(
        counts=counts.by_state,
        n_open=counts.n_open,
        n_overdue=counts.overdue,
        n_due_soon=sum(one.count for one in buckets[1:3]),
        by_days_left=buckets,
        due_days=[DueDay(day=day, count=count) for day, count in days.items()],
        earliest_due_on=first[0].due_on if first else None,
        oldest_received_at=first[0].received_at if first else None,
    )


def _buckets(days: Mapping[date, int], today: date) -> list[Bucket]:
    """Count open requests by how many days they have left."""
    left = [((day - today).days, count) for day, count in days.items()]
    return [
        Bucket(label=label, count=sum(count for n, count in left if first <= n < end))
        for label, first, end in _BUCKETS
    ]
