"""Pages for models: registration, list, versions, comparison and the next batch."""

from collections.abc import Callable
from typing import Annotated, Any, cast, get_args

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response
from starlette.datastructures import FormData, UploadFile

from letheon.exceptions import LedgerError
from letheon.ledger.schemas import NAME
from letheon.service.errors import ApiProblem, problem_of
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

_FIELDS = (
    "name",
    "tenant",
    "target",
    "ids",
    "dataset",
    "releases",
    "method",
    "kind",
    "example_name",
)
_RELEASES = {
    "labels-only": "Predicted labels only",
    "latest-only": "The newest version",
    "every-version": "Every version",
}
_METHODS = {
    "dare": "Train a random forest (exact)",
    "boosting": "Train gradient boosting (exact)",
    "ridge": "Train a ridge model (exact)",
    "influence": "Train a linear model (certified)",
}
Writer = Annotated[Visitor, Depends(page_allows("models:write", is_long=True))]


@router.get("/models/new")
def show_new_model(visitor: Writer, tenant: Tenant = None) -> Response:
    """Show the forms for registering a model."""
    return _new_page(visitor, {"tenant": tenant or ""})


@router.post("/models/new")
def register_model(visitor: Writer, form: SentForm) -> Response:
    """Register an uploaded model; show the form again with the error if this fails."""

    def register() -> ModelOut:
        return registration.register_model(visitor, _read_upload(form))

    return _register(visitor, form, register, "model-registered")


@router.post("/models/example")
def register_example(visitor: Writer, form: SentForm) -> Response:
    """Train and register an example model."""

    def register() -> ModelOut:
        name = text_of(form, "example_name")
        _require_name(name or "example")
        fields = {"kind": form.get("kind"), "name": name, "tenant": text_of(form, "tenant")}
        return registration.register_example(visitor, check_form(ExampleIn, fields))

    return _register(visitor, form, register, "example-added")


def _register(
    visitor: Visitor, form: FormData, register: Callable[[], ModelOut], code: str
) -> Response:
    """Register a model and redirect to its page; `code` is the code of the message shown there.

    If registering fails, the form is shown again with the error.
    """
    try:
        model = register()
    except (ApiProblem, LedgerError) as error:
        problem = problem_of(error)
        if problem is None or problem.status_code >= 500:
            raise
        return _new_page(visitor, {name: text_of(form, name) for name in _FIELDS}, problem)
    tenant = model.tenant if visitor.tenant is None else None
    return visitor.redirect_with(address(f"/models/{model.name}", tenant=tenant), code)


def _read_upload(form: FormData) -> ModelUpload:
    # The ledger checks tenant, dataset and columns, as it does for the API.
    fields: dict[str, Any] = {name: text_of(form, name) or None for name in ModelForm.model_fields}
    if fields["name"] is None or fields["target"] is None:
        raise ApiProblem(
            422, "field", "Name and target column are required", "Fill in both fields."
        )
    _require_name(fields["name"])
    if fields["releases"] not in (None, *get_args(Releases)):
        raise ApiProblem(
            422, "field", "Unknown value for published outputs", "Choose a value from the list."
        )
    if fields["method"] not in (None, *_METHODS):
        raise ApiProblem(422, "field", "Unknown method", "Choose a value from the list.")
    model = None
    if not fields["method"]:
        model = _get_file(form, "model")
    elif getattr(form.get("model"), "filename", None):
        words = "Remove the model file to train a new model."
        raise ApiProblem(422, "file", "A model file and a method were chosen", words)
    return ModelUpload(ModelForm.model_construct(**fields), model, _get_file(form, "rows"))


def _require_name(name: str) -> None:
    if NAME.fullmatch(name) is None:
        words = (
            "Use up to 63 lower-case letters, digits and . _ : -, starting with a letter or digit."
        )
        raise ApiProblem(422, "name", "The name is not valid", words)


def _get_file(form: FormData, name: str) -> Any:
    value = form.get(name)
    if not isinstance(value, UploadFile) or not value.filename:
        raise ApiProblem(
            422, "file", f"No file selected for {name}", "Choose a file for this field."
        )
    return value.file


def _new_page(
    visitor: Visitor, form_values: dict[str, str], problem: ApiProblem | None = None
) -> Response:
    return visitor.page(
        "new_model.html",
        json="/api/v1/models",
        form_values=dict.fromkeys(_FIELDS, "") | form_values,
        problem=problem,
        releases=[("", "What the guarantee permits (default)"), *_RELEASES.items()],
        methods=[("", "Upload a model file"), *_METHODS.items()],
        examples=list(EXAMPLES.items()),
    )


ModelReader = Annotated[Visitor, Depends(page_allows("models:read"))]
Number = Annotated[int, Query(ge=0, le=2**31)]
_PAGE = 25
# Versions in the charts: more would overlap.
_CHARTED = 200
_TITLES = {
    "apply": "Apply the batch",
    "retrain": "Retrain",
    "what-if": "Compare methods",
}


@router.get("/models")
def show_models(visitor: ModelReader, tenant: Tenant = None, after: After = None) -> Response:
    """Show the models; a requester sees only their names."""
    listing = models.list_models(visitor, tenant, after, _PAGE)
    sees_details = all(model.guarantee is not None for model in listing.items)
    return visitor.list_page("models.html", listing, {"tenant": tenant}, sees_details=sees_details)


@router.get("/models/{model}")
def show_model(
    visitor: ModelReader, model: Model, tenant: Tenant = None, after: After = None
) -> Response:
    """Show a model; versions and figures require the scope monitor:read."""
    details = models.show_model(visitor, model, tenant)
    page_address = address(f"/models/{model}", tenant=tenant)
    versions = history = next_address = None
    if visitor.may("monitor:read"):
        versions = models.list_versions(visitor, model, tenant, after, _PAGE)
        history = models.show_history(visitor, model, tenant, limit=_CHARTED)
        if versions.next is not None:
            query = {"tenant": tenant, "after": versions.next}
            next_address = address(f"/models/{model}", query) + "#versions"
    return visitor.page(
        "model.html",
        json=address(f"/api/v1/models/{model}", tenant=tenant),
        model=details,
        versions=versions,
        history=history,
        tolerances={}
        if history is None
        else {limit.measure: limit for limit in history.tolerances},
        query={"tenant": tenant},
        first=page_address if after else None,
        next=next_address,
    )


@router.get("/models/{model}/compare")
def compare_versions(
    visitor: Annotated[Visitor, Depends(page_allows("monitor:read"))],
    model: Model,
    a: Number,
    b: Number,
    tenant: Tenant = None,
) -> Response:
    """Show the differences between two versions."""
    return visitor.page(
        "compare.html",
        json=address(f"/api/v1/models/{model}/compare", a=a, b=b, tenant=tenant),
        comparison=models.compare_versions(visitor, model, a, b, tenant),
        back=address(f"/models/{model}", tenant=tenant),
        query={"tenant": tenant},
    )


@router.get("/models/{model}/plan")
def show_plan(
    visitor: Annotated[Visitor, Depends(page_allows("batches:read"))],
    model: Model,
    tenant: Tenant = None,
    job: Job = None,
) -> Response:
    """Show the next batch of a model, and the running job or the job in the address."""
    plan = jobs.show_plan(visitor, model, tenant)
    job_id = job or plan.job
    current_job = None if job_id is None else jobs.show_job(visitor, job_id)
    result: dict[str, Any] = {} if current_job is None else current_job.result or {}
    numbers = [step["sequence"] for step in result.get("steps", ())]
    return visitor.page(
        "plan.html",
        json=address(f"/api/v1/models/{model}/plan", tenant=tenant),
        plan=plan,
        plan_address=address(f"/models/{model}/plan", tenant=tenant),
        model_address=address(f"/models/{model}", tenant=tenant),
        job=current_job,
        job_title="" if current_job is None else _TITLES.get(current_job.kind, current_job.kind),
        job_address=address(f"/models/{model}/plan", tenant=tenant, job=job_id),
        what_if=result
        if current_job is not None and current_job.kind == "what-if" and result
        else None,
        numbers=list(dict.fromkeys(number for number in numbers if number is not None)),
    )


@router.post("/models/{model}/plan")
def start_job(
    visitor: Annotated[Visitor, Depends(page_allows("batches:run"))],
    form: SentForm,
    model: Model,
    tenant: Tenant = None,
) -> Response:
    """Queue a job: apply the batch, retrain, or compare methods."""
    action = form.get("action")
    if action not in _TITLES:
        raise ApiProblem(422, "action", "Unknown action", "Use one of the buttons on the page.")
    if action == "what-if":
        job = jobs.ask_what_if(visitor, model, tenant)
    else:
        job = jobs.start_job(visitor, cast("jobs.Work", action), model, tenant)
    path = address(f"/models/{model}/plan", tenant=tenant, job=job.id)
    return visitor.redirect_with(path, "job-queued")
