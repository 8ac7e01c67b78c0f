"""The plan of a model: the next batch, what it costs, and what would be under other methods."""

from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from letheon.service._auth import Principal
from letheon.service._context import context
from letheon.service._problems import Problem
from letheon.service.desk import plans
from letheon.service.desk.jobs import find_job
from letheon.service.pages._shared import (
    Job,
    Model,
    SentForm,
    Tenant,
    address,
    done,
    page,
    page_allows,
)

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_TITLES = {
    "apply": "Applying the batch",
    "retrain": "Training afresh",
    "what-if": "Comparing methods",
}


@router.get("/models/{model}/plan")
def show_plan(
    request: Request,
    who: Annotated[Principal, Depends(page_allows("batches:read"))],
    model: Model,
    tenant: Tenant = None,
    job: Job = None,
) -> Response:
    """Show the next batch of a model, and a job that is at work or was asked for."""
    desk = context(request)
    plan = plans.plan(desk, who, model, tenant=tenant)
    shown = job or plan.job
    found = None if shown is None else find_job(desk, who, shown)
    here = address(f"/models/{plan.model}/plan", tenant=tenant)
    return page(
        request,
        "plan.html",
        who,
        json=address(f"/api/v1/models/{plan.model}/plan", tenant=tenant),
        plan=plan,
        here=here,
        model_address=address(f"/models/{plan.model}", tenant=tenant),
        job=found,
        job_title="" if found is None else _TITLES.get(found.kind, found.kind),
        job_address=address(f"/models/{plan.model}/plan", tenant=tenant, job=shown),
        what_if=_what_if(found),
        numbers=_certificates(found),
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
    work = cast("plans.Work", action)
    job = plans.start(context(request), who, work, model, tenant=tenant)
    path = address(f"/models/{model}/plan", tenant=tenant, job=job.id)
    return done(request, path, "job-queued")


def _what_if(job: Any) -> dict[str, Any] | None:
    """Return the table of a comparison that is done."""
    is_done = job is not None and job.kind == "what-if" and job.state == "done"
    return job.result if is_done else None


def _certificates(job: Any) -> list[int]:
    """Return the numbers of certificates that a job has led to, each once."""
    steps = (job.result or {}).get("steps", []) if job is not None else []
    found = (step.get("sequence") for step in steps)
    return list(dict.fromkeys(number for number in found if number is not None))
