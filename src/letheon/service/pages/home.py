"""Home: how the requests stand against the legal clock, and what waits for whom."""

from collections.abc import Iterator
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse

from letheon.ledger.requests.states import FINAL, STATES
from letheon.service._auth import Principal
from letheon.service._context import Context, context
from letheon.service.desk.request_forms import RequestQuery, Summary
from letheon.service.desk.requests import first_requests, summary
from letheon.service.pages._choices import checked
from letheon.service.pages._shared import page, page_allows

router = APIRouter(include_in_schema=False)

_SHOWN = 6
_MOST_DUPLICATES = 200
_UNANSWERED = tuple(state for state in STATES if state not in FINAL)
_TONES = ("bad", "warn", "warn", "info", "info", "neutral")


class Task(NamedTuple):
    """Something that waits for somebody."""

    number: int
    words: str
    href: str
    tone: str


@router.get("/")
def show_home(
    request: Request,
    who: Annotated[Principal, Depends(page_allows())],
    tenant: str | None = None,
) -> HTMLResponse:
    """Show how the requests stand, and what waits for the one who looks."""
    if not who.may("requests:read"):
        return page(request, "home.html", who, stand=None, tasks=[], bars=[], first=[])
    desk = context(request)
    stand = summary(desk, who, tenant=tenant)
    query = checked(RequestQuery, {"tenant": tenant, "state": list(_UNANSWERED)})
    return page(
        request,
        "home.html",
        who,
        json="/api/v1/summary" + (f"?tenant={tenant}" if tenant else ""),
        stand=stand,
        tasks=list(_tasks(who, stand, _covered(desk, who, stand, tenant))),
        bars=list(zip(stand.by_days_left, _TONES, strict=True)),
        first=first_requests(desk, who, query, limit=_SHOWN),
    )


def _covered(desk: Context, who: Principal, stand: Summary, tenant: str | None) -> int:
    """Count the duplicates whose people are erased, among the first that are due."""
    if not stand.counts["duplicate"]:
        return 0
    query = checked(RequestQuery, {"tenant": tenant, "state": ["duplicate"]})
    found = first_requests(desk, who, query, limit=_MOST_DUPLICATES)
    return sum(one.certificate is not None for one in found)


def _tasks(who: Principal, stand: Summary, covered: int) -> Iterator[Task]:
    """Yield what waits, by what the one who looks may do about it."""
    counts, handle = stand.counts, "requests:handle"
    known = (
        ("requests:approve", counts["verified"], "to approve", "state=verified", "warn"),
        (handle, counts["received"], "identity to verify", "state=received", "warn"),
        (handle, counts["stuck"], "stuck: look, then retry", "state=stuck", "bad"),
        (handle, counts["purged"], "to answer: purged", "state=purged", "info"),
        (handle, covered, "to answer: erased with an earlier request", "state=duplicate", "info"),
        ("requests:read", stand.n_overdue, "overdue", "overdue=true", "bad"),
        ("requests:read", stand.n_due_soon, "due within a week", "order=due", "warn"),
    )
    for scope, number, words, query, tone in known:
        if number and who.may(scope):
            yield Task(number, words, f"/requests?{query}", tone)
