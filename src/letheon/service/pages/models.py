"""Models: all of them, one with versions and figures, two versions side by side, the next batch."""

from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from letheon.service.auth import Principal
from letheon.service.errors import Problem
from letheon.service.pages._shared import (
    MEASURES,
    After,
    Job,
    Model,
    SentForm,
    Tenant,
    address,
    done,
    page,
    page_allows,
    page_links,
)
from letheon.service.routes import batches, models, versions
from letheon.service.routes.jobs import show_job

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

ModelReader = Annotated[Principal, Depends(page_allows("models:read"))]
Number = Annotated[int, Query(ge=0, le=2**31)]
_PAGE = 25
# Versions in the charts: more would not be told apart.
_CHARTED = 200
_TITLES = {
    "apply": "Applying the batch",
    "retrain": "Training afresh",
    "what-if": "Comparing methods",
}


@router.get("/models")
def show_models(
    request: Request, who: ModelReader, tenant: Tenant = None, after: After = None
) -> Response:
    """Show the models; a requester sees their names."""
    found = models.list_models(who, tenant, after, _PAGE)
    return page(
        request,
        "models.html",
        who,
        json=address("/api/v1/models", tenant=tenant, after=after),
        found=found,
        sees_details=all(one.guarantee is not None for one in found.items),
        **page_links("/models", after, found.next, {"tenant": tenant}),
    )


@router.get("/models/{model}")
def show_model(
    request: Request, who: ModelReader, model: Model, tenant: Tenant = None, after: After = None
) -> Response:
    """Show one model; versions and figures only to those who may see them."""
    found = models.show_model(who, model, tenant)
    here = address(f"/models/{model}", tenant=tenant)
    shown = past = following = None
    if who.may("monitor:read"):
        shown = versions.list_versions(who, model, tenant, after, _PAGE)
        past = versions.show_history(who, model, tenant, limit=_CHARTED)
        if shown.next is not None:
            following = address(f"/models/{model}", tenant=tenant, after=shown.next) + "#versions"
    return page(
        request,
        "model.html",
        who,
        json=address(f"/api/v1/models/{model}", tenant=tenant),
        model=found,
        versions=shown,
        past=past,
        tolerances={} if past is None else {one.measure: one for one in past.tolerances},
        measures=MEASURES,
        query={"tenant": tenant},
        first=here if after else None,
        next=following,
    )


@router.get("/models/{model}/compare")
def compare_versions(
    request: Request,
    who: Annotated[Principal, Depends(page_allows("monitor:read"))],
    model: Model,
    a: Number,
    b: Number,
    tenant: Tenant = None,
) -> Response:
    """Show what changed from one version to another."""
    return page(
        request,
        "compare.html",
        who,
        json=address(f"/api/v1/models/{model}/compare", a=a, b=b, tenant=tenant),
        found=versions.compare_versions(who, model, a, b, tenant),
        back=address(f"/models/{model}", tenant=tenant),
        query={"tenant": tenant},
    )


@router.get("/models/{model}/plan")
def show_plan(
    request: Request,
    who: Annotated[Principal, Depends(page_allows("batches:read"))],
    model: Model,
    tenant: Tenant = None,
    job: Job = None,
) -> Response:
    """Show the next batch of a model, and a job that is at work or was asked for."""
    plan = batches.show_plan(who, model, tenant)
    job_id = job or plan.job
    shown = None if job_id is None else show_job(who, job_id)
    result: dict[str, Any] = {} if shown is None else shown.result or {}
    numbers = [step["sequence"] for step in result.get("steps", ())]
    return page(
        request,
        "plan.html",
        who,
        json=address(f"/api/v1/models/{model}/plan", tenant=tenant),
        plan=plan,
        here=address(f"/models/{model}/plan", tenant=tenant),
        model_address=address(f"/models/{model}", tenant=tenant),
        job=shown,
        job_title="" if shown is None else _TITLES.get(shown.kind, shown.kind),
        job_address=address(f"/models/{model}/plan", tenant=tenant, job=job_id),
        what_if=result if shown is not None and shown.kind == "what-if" and result else None,
        numbers=list(dict.fromkeys(number for number in numbers if number is not None)),
    )


@router.post("/models/{model}/plan")
def ask_for_job(
    request: Request,
    who: Annotated[Principal, Depends(page_allows("batches:run"))],
    form: SentForm,
    model: Model,
    tenant: Tenant = None,
) -> Response:
    """Ask the worker to apply the batch, to train afresh, or to compare methods."""
    action = form.get("action")
    if action not in _TITLES:
        raise Problem(422, "action", "There is no such action", "Use the buttons of the page.")
    if action == "what-if":
        job = batches.ask_what_if(who, model, tenant)
    else:
        job = batches.start_job(who, cast("batches.Work", action), model, tenant)
    path = address(f"/models/{model}/plan", tenant=tenant, job=job.id)
    return done(request, path, "job-queued")
