"""Requests: file, list, look at, export."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from letheon.ledger.requests.deadlines import Regime
from letheon.service._auth import Principal, allows
from letheon.service._context import context
from letheon.service._schemas import Page
from letheon.service.desk import filing
from letheon.service.desk import requests as desk
from letheon.service.desk.request_forms import (
    BulkIn,
    BulkOut,
    Day,
    FiledEverywhere,
    Grounds,
    IdempotencyKey,
    ModelName,
    RequestFiled,
    RequestId,
    RequestIn,
    RequestOut,
    RequestQuery,
    State,
    Summary,
    TenantName,
    TimelineEntry,
)

__all__ = ["Key", "router"]

router = APIRouter(tags=["requests"])

Reader = Annotated[Principal, Depends(allows("requests:read"))]
Filer = Annotated[Principal, Depends(allows("requests:file"))]
BulkFiler = Annotated[Principal, Depends(allows("requests:file", is_long=True))]
Id = Annotated[RequestId, Path(description="Id of the request.")]
Key = Annotated[
    IdempotencyKey | None,
    Header(
        alias="Idempotency-Key",
        description="The same key with the same content gives the same requests again.",
    ),
]

_CSV: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "All these requests, as CSV.",
        "content": {"text/csv": {"schema": {"type": "string"}}},
    }
}


def _wanted(
    model: Annotated[ModelName | None, Query()] = None,
    tenant: Annotated[TenantName | None, Query()] = None,
    state: Annotated[list[State], Query(max_length=15)] = [],  # noqa: B006  (FastAPI copies it)
    regime: Annotated[Regime | None, Query()] = None,
    overdue: Annotated[bool, Query()] = False,
    due_before: Annotated[Day | None, Query()] = None,
    search: Annotated[
        str | None,
        Query(max_length=64, description="Start of an id of a request or batch; certificate: #12."),
    ] = None,
    order: Annotated[Literal["due", "newest"], Query()] = "due",
) -> RequestQuery:
    return RequestQuery(
        model=model,
        tenant=tenant,
        state=state,
        regime=regime,
        overdue=overdue,
        due_before=due_before,
        search=search,
        order=order,
    )


Wanted = Annotated[RequestQuery, Depends(_wanted)]


@router.get("/api/v1/requests", summary="List requests")
def list_requests(
    request: Request,
    who: Reader,
    wanted: Wanted,
    after: Annotated[
        str | None, Query(max_length=512, description="What `next` of the part before said.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Page[RequestOut]:
    """Return requests, earliest due first or newest first."""
    return desk.list_requests(context(request), who, wanted, after=after, limit=limit)


@router.get(
    "/api/v1/requests.csv",
    summary="Export requests",
    response_class=StreamingResponse,
    responses=_CSV,
)
def export_requests(request: Request, who: Reader, wanted: Wanted) -> StreamingResponse:
    """Return all requests that the filters leave, as CSV; no id of a person is in it."""
    return StreamingResponse(
        desk.export(context(request), who, wanted),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="requests.csv"'},
    )


@router.get("/api/v1/summary", summary="How the requests stand")
def summarise_requests(
    request: Request,
    who: Reader,
    tenant: Annotated[TenantName | None, Query()] = None,
    model: Annotated[ModelName | None, Query()] = None,
) -> Summary:
    """Return counts by state and by days left."""
    return desk.summary(context(request), who, tenant=tenant, model=model)


@router.get("/api/v1/grounds", summary="Legal grounds")
def list_grounds(who: Reader) -> Grounds:  # noqa: ARG001  (the gate)
    """Return the codes of law that a request, a rejection or a hold may name."""
    return desk.grounds()


@router.post(
    "/api/v1/requests",
    summary="File a request",
    status_code=201,
    responses={
        200: {"description": "It was filed before.", "model": RequestFiled | FiledEverywhere}
    },
)
def file_request(
    request: Request, response: Response, who: Filer, body: RequestIn, key: Key = None
) -> RequestFiled | FiledEverywhere:
    """Record that people are to be erased; it is on the disk when the answer comes.

    For the model `*` there is one request for each model of the tenant that knows somebody of
    them, and the answer lists them.
    """
    filed = filing.file_request(context(request), who, body, key=key)
    if not filed.is_new:
        response.status_code = 200
    if body.model == "*":
        return FiledEverywhere(requests=filed.requests)
    return filed.requests[0]


@router.post("/api/v1/requests/bulk", summary="File many requests")
def file_requests(request: Request, who: BulkFiler, body: BulkIn, key: Key = None) -> BulkOut:
    """File many requests, each for itself; the answer says what became of each, in their order.

    Repeated with the same Idempotency-Key, the whole gives the same requests again.
    """
    return filing.file_many(context(request), who, body.items, tenant=body.tenant, key=key)


@router.get("/api/v1/requests/{request_id}", summary="One request")
def read_request(request: Request, who: Reader, request_id: Id) -> RequestOut:
    """Return a request as it is now."""
    return desk.find_request(context(request), who, request_id)


@router.get("/api/v1/requests/{request_id}/timeline", summary="What happened to a request")
def read_timeline(request: Request, who: Reader, request_id: Id) -> Page[TimelineEntry]:
    """Return what happened to a request and to its batch, oldest first."""
    entries = desk.timeline(context(request), who, request_id)
    return Page[TimelineEntry](items=entries, total=len(entries))
