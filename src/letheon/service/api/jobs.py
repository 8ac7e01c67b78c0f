"""Jobs: work that takes long."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

from letheon.service.auth import Principal, allows_any
from letheon.service.auth import context
from letheon.ledger.db.jobs import CURSOR, JOB_ID, Kind, State
from letheon.service.schemas import Page
from letheon.service.desk import jobs as desk
from letheon.service.desk.jobs import JobOut
from letheon.service.schemas import Name

router = APIRouter(tags=["jobs"])

Reader = Annotated[Principal, Depends(allows_any("batches:read", "audits:read"))]


@router.get("/api/v1/jobs", summary="List jobs")
def list_jobs(
    request: Request,
    who: Reader,
    tenant: Annotated[Name | None, Query(description="Of one tenant only.")] = None,
    model: Annotated[Name | None, Query(description="Of one model only.")] = None,
    kind: Annotated[Kind | None, Query()] = None,
    state: Annotated[State | None, Query()] = None,
    after: Annotated[str | None, Query(pattern=CURSOR)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Page[JobOut]:
    """Return jobs, newest first: audits for who may read audits, others for who reads batches."""
    return desk.page_of_jobs(
        context(request),
        who,
        tenant=tenant,
        model=model,
        kind=kind,
        state=state,
        after=after,
        limit=limit,
    )


@router.get("/api/v1/jobs/{job_id}", summary="Show a job")
def show_job(request: Request, who: Reader, job_id: Annotated[str, Path(pattern=JOB_ID)]) -> JobOut:
    """Return a job with its progress, and its result once it is done."""
    return desk.find_job(context(request), who, job_id)
