"""Home: how the requests stand against the legal clock, and what waits for whom."""

from collections.abc import Iterator
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse

from letheon.service.auth import Principal
from letheon.service.forms import check_form
from letheon.service.pages._shared import page, page_allows
from letheon.service.routes.requests import (
    OPEN,
    RequestQuery,
    Summary,
    find_first_requests,
    summarise_requests,
)

router = APIRouter(include_in_schema=False)

_SHOWN = 6
_MOST_DUPLICATES = 200
_TONES = ("bad", "warn", "warn", "info", "info", "neutral")


class Task(NamedTuple):
    """Something that waits for an action."""

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
    stand = summarise_requests(who, tenant=tenant)
    query = check_form(RequestQuery, {"tenant": tenant, "state": list(OPEN)})
    n_covered = 0  # duplicates whose people are erased, among the first that are due
    if stand.counts["duplicate"]:
        duplicates = query.model_copy(update={"state": ["duplicate"]})
        requests = find_first_requests(who, duplicates, limit=_MOST_DUPLICATES)
        n_covered = sum(one.certificate is not None for one in requests)
    return page(
        request,
        "home.html",
        who,
        json="/api/v1/summary" + (f"?tenant={tenant}" if tenant else ""),
        stand=stand,
        tasks=list(_tasks(who, stand, n_covered)),
        bars=list(zip(stand.by_days_left, _TONES, strict=True)),
        first=find_first_requests(who, query, limit=_SHOWN),
    )


def _tasks(who: Principal, stand: Summary, n_covered: int) -> Iterator[Task]:
    """Yield what waits, by what the one who looks may do about it."""
    counts, handle = stand.counts, "requests:handle"
    known = (
        ("requests:approve", counts["verified"], "to approve", "state=verified", "warn"),
        (handle, counts["received"], "identity to verify", "state=received", "warn"),
        (handle, counts["stuck"], "stuck: look, then retry", "state=stuck", "bad"),
        (handle, counts["purged"], "to answer: purged", "state=purged", "info"),
        (handle, n_covered, "to answer: erased with an earlier request", "state=duplicate", "info"),
        ("requests:read", stand.n_overdue, "overdue", "overdue=true", "bad"),
        ("requests:read", stand.n_due_soon, "due within a week", "order=due", "warn"),
    )
    for scope, number, words, query, tone in known:
        if number and who.may(scope):
            yield Task(number, words, f"/requests?{query}", tone)
