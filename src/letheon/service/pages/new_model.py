"""Register a model: upload one, or add an example."""

from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from starlette.datastructures import FormData, UploadFile

from letheon.exceptions import LedgerError
from letheon.ledger.schemas import NAME
from letheon.service._auth import Principal
from letheon.service._context import context
from letheon.service._problems import Problem, problem_of
from letheon.service.desk.models import ModelOut, Releases
from letheon.service.desk.new_models import EXAMPLES, ModelUpload, add_example, add_model
from letheon.service.pages._shared import SentForm, Tenant, address, done, page, page_allows

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
        made = add_model(context(request), who, _upload(form))
    except (Problem, LedgerError) as error:
        return _refused(request, who, form, error)
    return _done(request, who, made, "model-registered")


@router.post("/models/example")
def register_example(request: Request, who: Writer, form: SentForm) -> Response:
    """Train and register a small example."""
    kind: Any = form.get("kind")
    try:
        if kind not in EXAMPLES:
            raise Problem(422, "kind", "There is no such example", "Choose one from the list.")
        name, tenant = _text(form, "example_name"), _text(form, "tenant")
        if name is not None:
            _require_name(name)
        made = add_example(context(request), who, kind, name=name, tenant=tenant)
    except (Problem, LedgerError) as error:
        return _refused(request, who, form, error)
    return _done(request, who, made, "example-added")


def _upload(form: FormData) -> ModelUpload:
    target, name = _text(form, "target"), _text(form, "name")
    if name is None or target is None:
        raise Problem(422, "field", "Name and target are missing", "Fill in both.")
    _require_name(name)
    releases: Any = _text(form, "releases")
    if releases is not None and releases not in get_args(Releases):
        raise Problem(422, "field", "There is no such release", "Choose one from the list.")
    return ModelUpload(
        model=_file(form, "model"),
        rows=_file(form, "rows"),
        name=name,
        target=target,
        ids=_text(form, "ids"),
        tenant=_text(form, "tenant"),
        dataset=_text(form, "dataset"),
        releases=releases,
    )


def _require_name(name: str) -> None:
    if NAME.fullmatch(name) is None:
        raise Problem(
            422,
            "name",
            "This name cannot be used",
            "Use up to 63 lower case letters, digits and . _ : - beginning with a letter or digit.",
        )


def _text(form: FormData, name: str) -> str | None:
    value = form.get(name)
    return value.strip() or None if isinstance(value, str) else None


def _file(form: FormData, name: str) -> Any:
    value = form.get(name)
    if not isinstance(value, UploadFile) or not value.filename:
        raise Problem(422, "file", f"The file of the {name} is missing", "Choose one.")
    return value.file


def _refused(request: Request, who: Principal, form: FormData, error: Exception) -> Response:
    problem = problem_of(error)
    if problem is None or problem.status_code >= 500:
        raise error
    sent = {name: _text(form, name) or "" for name in _FIELDS}
    return _page(request, who, sent, problem)


def _done(request: Request, who: Principal, made: ModelOut, code: str) -> Response:
    tenant = made.tenant if who.tenant is None else None
    return done(request, address(f"/models/{made.name}", tenant=tenant), code)


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
