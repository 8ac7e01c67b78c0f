"""Models."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError
from starlette.datastructures import FormData, UploadFile

from letheon.service._auth import Principal, allows
from letheon.service._context import context
from letheon.service._forms import read_parts
from letheon.service._problems import Problem
from letheon.service._schemas import In, Page
from letheon.service.desk import models as desk
from letheon.service.desk import new_models
from letheon.service.desk.models import ModelOut, Name, Releases
from letheon.service.desk.new_models import Example, ModelUpload

router = APIRouter(tags=["models"])

Reader = Annotated[Principal, Depends(allows("models:read"))]
Writer = Annotated[Principal, Depends(allows("models:write", is_long=True))]
Column = Annotated[str, Field(min_length=1, max_length=200)]
Tenant = Annotated[Name | None, Query(description="Whose; default: your own, or `default`.")]


class ExampleIn(In):
    """An example that is wanted."""

    kind: Example = "forest"
    name: Name | None = Field(default=None, description="Default: example- and the kind.")
    tenant: Name | None = None


class ModelForm(In):
    """What a form says about a model, beside its two files."""

    name: Name = Field(description="Its name in the ledger.")
    target: Column = Field(description="Column of the target.")
    ids: Column | None = Field(default=None, description="Column of the ids; default: 0, 1, 2.")
    tenant: Name | None = Field(default=None, description="Whose model it is.")
    dataset: Name | None = Field(default=None, description="What its data are called.")
    releases: Releases | None = Field(
        default=None, description="What leaves the house; default: what its guarantee covers."
    )


def _part(words: str) -> dict[str, Any]:
    return {"type": "string", "format": "binary", "description": words}


def _text_part(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a part: it is there with a text, or not there."""
    (only,) = [one for one in schema.pop("anyOf", [{}]) if one.get("type") != "null"]
    return {name: value for name, value in (schema | only).items() if name != "default"}


def _form_schema() -> dict[str, Any]:
    found = ModelForm.model_json_schema()
    files = {
        "model": _part("What `letheon.save` wrote."),
        "rows": _part("Its training rows: CSV in UTF-8 with a header line."),
    }
    parts = {name: _text_part(one) for name, one in found["properties"].items()}
    return {
        "type": "object",
        "required": [*files, *found["required"]],
        "additionalProperties": False,
        "properties": files | parts,
    }


_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"multipart/form-data": {"schema": _form_schema()}},
    }
}


@router.get("/api/v1/models", summary="List models")
def list_models(
    request: Request,
    who: Reader,
    tenant: Annotated[Name | None, Query(description="Of one tenant only.")] = None,
    after: Annotated[str | None, Query(pattern="^[0-9]{1,9}$")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Page[ModelOut]:
    """Return models in the order of their registration; a requester sees names only."""
    return desk.list_models(context(request), who, tenant=tenant, after=after, limit=limit)


async def _sent(request: Request) -> AsyncIterator[ModelUpload]:
    """Yield what was sent; it is read after the token was looked at, and kept in memory."""
    form = await read_parts(request)
    try:
        yield _upload(form)
    finally:
        await form.close()


def _upload(form: FormData) -> ModelUpload:
    parts = dict(form.multi_items())
    files = {name: parts.pop(name, None) for name in ("model", "rows")}
    if len(parts) + len(files) < len(form.multi_items()):
        raise Problem(422, "form", "the form cannot be used", "Send each part once.")
    model, rows = files["model"], files["rows"]
    if not isinstance(model, UploadFile) or not isinstance(rows, UploadFile):
        words = "Send the parts `model` and `rows` as files."
        raise Problem(422, "form", "the form cannot be used", words)
    try:
        fields = ModelForm.model_validate(parts)
    except ValidationError as error:
        found = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        raise RequestValidationError(found) from error
    return ModelUpload(model=model.file, rows=rows.file, **fields.model_dump())


@router.post(
    "/api/v1/models", summary="Register a saved model", status_code=201, openapi_extra=_BODY
)
def register_model(
    request: Request, who: Writer, upload: Annotated[ModelUpload, Depends(_sent)]
) -> ModelOut:
    """Register a model with the rows that it was fitted on.

    An exact model is trained once more on the rows and compared. The file is no pickle, and may
    name only classes of letheon and scikit-learn.
    """
    return new_models.add_model(context(request), who, upload)


@router.post("/api/v1/models/example", summary="Register an example", status_code=201)
def register_example(request: Request, who: Writer, wanted: ExampleIn) -> ModelOut:
    """Train and register a small model; its people are `person-0001` and so on."""
    return new_models.add_example(
        context(request), who, wanted.kind, name=wanted.name, tenant=wanted.tenant
    )


@router.get("/api/v1/models/{model}", summary="Show a model")
def show_model(request: Request, who: Reader, model: Name, tenant: Tenant = None) -> ModelOut:
    """Return one model; a requester sees names only."""
    return desk.find_model(context(request), who, model, tenant=tenant)
