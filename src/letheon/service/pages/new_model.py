"""Register a model: upload one, or add an example."""

from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from starlette.datastructures import FormData, UploadFile

from letheon.exceptions import LedgerError
from letheon.ledger.schemas import NAME
from letheon.service.auth import Principal
from letheon.service.errors import Problem, problem_of
from letheon.service.forms import text_of
from letheon.service.pages._shared import SentForm, Tenant, address, done, page, page_allows
from letheon.service.routes import registration
from letheon.service.routes.models import ModelOut, Releases
from letheon.service.routes.registration import EXAMPLES, ExampleIn, ModelForm, ModelUpload

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_FIELDS = ("name", "tenant", "target", "ids", "dataset", "releases", "kind", "example_name")
_RELEASES = {
    "labels-only": "Predicted labels only",
    "latest-only": "The newest version",
    "every-version": "Every version",
}
Writer = Annotated[Principal, Depends(page_allows("models:write", is_long=True))]


@router.get("/models/new")
def show_new_model(request: Request, who: Writer, tenant: Tenant = None) -> Response:
    """Show the forms."""
    return _page(request, who, {"tenant": tenant or ""})


@router.post("/models/new")
def register_model(request: Request, who: Writer, form: SentForm) -> Response:
    """Register the model that was uploaded, or say why it cannot be."""
    try:
        model = registration.register_model(who, _read_upload(form))
    except (Problem, LedgerError) as error:
        return _show_problem(request, who, form, error)
    return _lead_to(request, who, model, "model-registered")


@router.post("/models/example")
def register_example(request: Request, who: Writer, form: SentForm) -> Response:
    """Train and register a small example."""
    kind: Any = form.get("kind")
    try:
        if kind not in EXAMPLES:
            raise Problem(422, "kind", "There is no such example", "Choose one from the list.")
        name, tenant = text_of(form, "example_name") or None, text_of(form, "tenant") or None
        if name is not None:
            _require_name(name)
        wanted = ExampleIn.model_construct(kind=kind, name=name, tenant=tenant)
        model = registration.register_example(who, wanted)
    except (Problem, LedgerError) as error:
        return _show_problem(request, who, form, error)
    return _lead_to(request, who, model, "example-added")


def _read_upload(form: FormData) -> ModelUpload:
    # The ledger refuses a tenant, data set or column that cannot be, as it does for the API.
    fields: dict[str, Any] = {name: text_of(form, name) or None for name in ModelForm.model_fields}
    if fields["name"] is None or fields["target"] is None:
        raise Problem(422, "field", "Name and target are missing", "Fill in both.")
    _require_name(fields["name"])
    if fields["releases"] not in (None, *get_args(Releases)):
        raise Problem(422, "field", "There is no such release", "Choose one from the list.")
    model, rows = _file(form, "model"), _file(form, "rows")
    return ModelUpload(model, rows, ModelForm.model_construct(**fields))


def _require_name(name: str) -> None:
    if NAME.fullmatch(name) is None:
        raise Problem(
            422,
            "name",
            "This name cannot be used",
            "Use up to 63 lower case letters, digits and . _ : - beginning with a letter or digit.",
        )


def _file(form: FormData, name: str) -> Any:
    value = form.get(name)
    if not isinstance(value, UploadFile) or not value.filename:
        raise Problem(422, "file", f"The file of the {name} is missing", "Choose one.")
    return value.file


def _show_problem(request: Request, who: Principal, form: FormData, error: Exception) -> Response:
    problem = problem_of(error)
    if problem is None or problem.status_code >= 500:
        raise error
    return _page(request, who, {name: text_of(form, name) for name in _FIELDS}, problem)


def _lead_to(request: Request, who: Principal, model: ModelOut, code: str) -> Response:
    tenant = model.tenant if who.tenant is None else None
    return done(request, address(f"/models/{model.name}", tenant=tenant), code)


def _page(
    request: Request, who: Principal, sent: dict[str, str], problem: Problem | None = None
) -> Response:
    return page(
        request,
        "new_model.html",
        who,
        json="/api/v1/models",
        status=200 if problem is None else problem.status_code,
        sent=dict.fromkeys(_FIELDS, "") | sent,
        problem=problem,
        releases=[("", "What its guarantee covers"), *_RELEASES.items()],
        examples=list(EXAMPLES.items()),
    )
