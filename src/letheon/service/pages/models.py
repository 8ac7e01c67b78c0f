"""Models: register one; all of them, one with its versions, two side by side, the next batch."""

from collections.abc import Callable
from typing import Annotated, Any, cast, get_args

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response
from starlette.datastructures import FormData, UploadFile

from letheon.exceptions import LedgerError
from letheon.ledger.schemas import NAME
from letheon.service.errors import Problem, problem_of
from letheon.service.forms import check_form, text_of
from letheon.service.pages._shared import (
    After,
    Job,
    Model,
    SentForm,
    Tenant,
    Visitor,
    address,
    page_allows,
)
from letheon.service.routes import jobs, models, registration
from letheon.service.routes.models import ModelOut, Releases
from letheon.service.routes.registration import EXAMPLES, ExampleIn, ModelForm, ModelUpload

router = APIRouter(include_in_schema=False)

_FIELDS = ("name", "tenant", "target", "ids", "dataset", "releases", "kind", "example_name")
_RELEASES = {
    "labels-only": "Predicted labels only",
    "latest-only": "The newest version",
    "every-version": "Every version",
}
Writer = Annotated[Visitor, Depends(page_allows("models:write", is_long=True))]


@router.get("/models/new")
def show_new_model(who: Writer, tenant: Tenant = None) -> Response:
    """Show the forms."""
    return _new_page(who, {"tenant": tenant or ""})


@router.post("/models/new")
def register_model(who: Writer, form: SentForm) -> Response:
    """Register the model that was uploaded, or say why it cannot be."""

    def register() -> ModelOut:
        return registration.register_model(who, _read_upload(form))

    return _register(who, form, register, "model-registered")


@router.post("/models/example")
def register_example(who: Writer, form: SentForm) -> Response:
    """Train and register a small example."""

    def register() -> ModelOut:
        name = text_of(form, "example_name")
        _require_name(name or "example")
        asked = {"kind": form.get("kind"), "name": name, "tenant": text_of(form, "tenant")}
        return registration.register_example(who, check_form(ExampleIn, asked))

    return _register(who, form, register, "example-added")


def _register(
    who: Visitor, form: FormData, register: Callable[[], ModelOut], code: str
) -> Response:
    """Register a model and lead to it, or show the form again with the reason why not."""
    try:
        model = register()
    except (Problem, LedgerError) as error:
        problem = problem_of(error)
        if problem is None or problem.status_code >= 500:
            raise
        return _new_page(who, {name: text_of(form, name) for name in _FIELDS}, problem)
    tenant = model.tenant if who.tenant is None else None
    return who.done(address(f"/models/{model.name}", tenant=tenant), code)


def _read_upload(form: FormData) -> ModelUpload:
    # The ledger refuses a tenant, data set or column that cannot be, as it does for the API.
    fields: dict[str, Any] = {name: text_of(form, name) or None for name in ModelForm.model_fields}
    if fields["name"] is None or fields["target"] is None:
        raise Problem(422, "field", "Name and target are missing", "Fill in both.")
    _require_name(fields["name"])
    if fields["releases"] not in (None, *get_args(Releases)):
        raise Problem(422, "field", "There is no such release", "Choose one from the list.")
    model, rows = _file(form, "model"), _file(form, "rows")
    return ModelUpload(ModelForm.model_construct(**fields), model, rows)


def _require_name(name: str) -> None:
    if NAME.fullmatch(name) is None:
        words = (
            "Use up to 63 lower case letters, digits and . _ : - beginning with a letter or digit."
        )
        raise Problem(422, "name", "This name cannot be used", words)


def _file(form: FormData, name: str) -> Any:
    value = form.get(name)
    if not isinstance(value, UploadFile) or not value.filename:
        raise Problem(422, "file", f"The file of the {name} is missing", "Choose one.")
    return value.file


def _new_page(who: Visitor, sent: dict[str, str], problem: Problem | None = None) -> Response:
    return who.page(
        "new_model.html",
        json="/api/v1/models",
        sent=dict.fromkeys(_FIELDS, "") | sent,
        problem=problem,
        releases=[("", "What its guarantee covers"), *_RELEASES.items()],
        examples=list(EXAMPLES.items()),
    )


ModelReader = Annotated[Visitor, Depends(page_allows("models:read"))]
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
def show_models(who: ModelReader, tenant: Tenant = None, after: After = None) -> Response:
    """Show the models; a requester sees their names."""
    found = models.list_models(who, tenant, after, _PAGE)
    sees_details = all(one.guarantee is not None for one in found.items)
    return who.list_page("models.html", found, {"tenant": tenant}, sees_details=sees_details)


@router.get("/models/{model}")
def show_model(
    who: ModelReader, model: Model, tenant: Tenant = None, after: After = None
) -> Response:
    """Show one model; versions and figures only to those who may see them."""
    found = models.show_model(who, model, tenant)
    here = address(f"/models/{model}", tenant=tenant)
    shown = past = following = None
    if who.may("monitor:read"):
        shown = models.list_versions(who, model, tenant, after, _PAGE)
        past = models.show_history(who, model, tenant, limit=_CHARTED)
        if shown.next is not None:
            following = address(f"/models/{model}", tenant=tenant, after=shown.next) + "#versions"
    return who.page(
        "model.html",
        json=address(f"/api/v1/models/{model}", tenant=tenant),
        model=found,
        versions=shown,
        past=past,
        tolerances={} if past is None else {one.measure: one for one in past.tolerances},
        query={"tenant": tenant},
        first=here if after else None,
        next=following,
    )


@router.get("/models/{model}/compare")
def compare_versions(
    who: Annotated[Visitor, Depends(page_allows("monitor:read"))],
    model: Model,
    a: Number,
    b: Number,
    tenant: Tenant = None,
) -> Response:
    """Show what changed from one version to another."""
    return who.page(
        "compare.html",
        json=address(f"/api/v1/models/{model}/compare", a=a, b=b, tenant=tenant),
        found=models.compare_versions(who, model, a, b, tenant),
        back=address(f"/models/{model}", tenant=tenant),
        query={"tenant": tenant},
    )


@router.get("/models/{model}/plan")
def show_plan(
    who: Annotated[Visitor, Depends(page_allows("batches:read"))],
    model: Model,
    tenant: Tenant = None,
    job: Job = None,
) -> Response:
    """Show the next batch of a model, and a job that is at work or was asked for."""
    plan = jobs.show_plan(who, model, tenant)
    job_id = job or plan.job
    shown = None if job_id is None else jobs.show_job(who, job_id)
    result: dict[str, Any] = {} if shown is None else shown.result or {}
    numbers = [step["sequence"] for step in result.get("steps", ())]
    return who.page(
        "plan.html",
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
    who: Annotated[Visitor, Depends(page_allows("batches:run"))],
    form: SentForm,
    model: Model,
    tenant: Tenant = None,
) -> Response:
    """Ask the worker to apply the batch, to train afresh, or to compare methods."""
    action = form.get("action")
    if action not in _TITLES:
        raise Problem(422, "action", "There is no such action", "Use the buttons of the page.")
    if action == "what-if":
        job = jobs.ask_what_if(who, model, tenant)
    else:
        job = jobs.start_job(who, cast("jobs.Work", action), model, tenant)
    path = address(f"/models/{model}/plan", tenant=tenant, job=job.id)
    return who.done(path, "job-queued")
