"""The next batch of a model: planned, tried out, applied."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

from letheon.service.auth import Principal, allows
from letheon.service.auth import context
from letheon.service.desk import plans as desk
from letheon.service.desk.jobs import JobOut
from letheon.service.schemas import Name
from letheon.service.desk.plans import PlanOut

router = APIRouter(tags=["batches"])

Operator = Annotated[Principal, Depends(allows("batches:run"))]
ModelName = Annotated[Name, Path(description="Name of the model.")]
Tenant = Annotated[Name | None, Query(description="Whose model it is.")]


@router.get("/api/v1/models/{model}/plan", summary="Show the next batch of a model")
def show_plan(
    request: Request,
    who: Annotated[Principal, Depends(allows("batches:read"))],
    model: ModelName,
    tenant: Tenant = None,
) -> PlanOut:
    """Return what the next batch would be, when and why, its cost, and the guarantee after it."""
    return desk.plan(context(request), who, model, tenant=tenant)


@router.post(
    "/api/v1/models/{model}/what-if", summary="Compare methods for a batch", status_code=202
)
def ask_what_if(
    request: Request,
    who: Operator,
    model: ModelName,
    tenant: Tenant = None,
    people: Annotated[
        int | None,
        Query(ge=1, le=100_000, description="Size of the batch; as many as are queued, if null."),
    ] = None,
) -> JobOut:
    """Ask what a batch would cost under each method, and what would be guaranteed.

    Every method is trained on the rows of the model and made to forget people drawn at random.
    Nothing is changed.
    """
    return desk.start(context(request), who, "what-if", model, tenant=tenant, people=people)


@router.post("/api/v1/models/{model}/apply", summary="Apply what is queued", status_code=202)
def ask_apply(request: Request, who: Operator, model: ModelName, tenant: Tenant = None) -> JobOut:
    """Ask that what is queued for a model be applied now, however little it is."""
    return desk.start(context(request), who, "apply", model, tenant=tenant)


@router.post("/api/v1/models/{model}/retrain", summary="Train a model afresh", status_code=202)
def ask_retrain(request: Request, who: Operator, model: ModelName, tenant: Tenant = None) -> JobOut:
    """Ask that a model be trained afresh, with everything queued for it."""
    return desk.start(context(request), who, "retrain", model, tenant=tenant)
