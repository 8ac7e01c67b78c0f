"""Parse submitted forms of the pages and the API; uploaded files stay in memory."""

import re
import secrets
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData
from starlette.formparsers import FormParser, MultiPartException, MultiPartParser

from letheon.service.errors import ApiProblem

_KEY = re.compile("[0-9a-f]{32}")

M = TypeVar("M", bound=BaseModel)


class MemoryParser(MultiPartParser):
    """A form parser that keeps files in memory; rows and ids must not be written to the disk."""

    spool_max_size = 1 << 40


async def read_form(
    request: Request, *, most_files: int = 8, most_fields: int = 2000, longest_field: int = 1 << 20
) -> FormData:
    """Return the submitted form; an empty form if the body is of another media type.

    The middleware limits the size of the body. A handler reads the form after authentication, so
    that the body of an unauthenticated call is not read.

    Raises
    ------
    ApiProblem
        400: the form cannot be read, or has too many parts.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    limits = {"max_files": most_files, "max_fields": most_fields, "max_part_size": longest_field}
    try:
        if kind == "multipart/form-data":
            return await MemoryParser(request.headers, request.stream(), **limits).parse()
        if kind == "application/x-www-form-urlencoded":
            return await FormParser(request.headers, request.stream()).parse()
    except (MultiPartException, UnicodeError) as error:
        raise ApiProblem(
            400, "form", "The form could not be read", "Reload the page and submit it again."
        ) from error
    return FormData()


async def read_parts(request: Request, *, most_fields: int = 8) -> FormData:
    """Return the parts of a multipart body of an API call.

    Raises
    ------
    ApiProblem
        422: the body is not multipart, cannot be read, or has too many parts.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise form_problem("the body is not multipart/form-data")
    try:
        return await read_form(
            request, most_files=most_fields, most_fields=most_fields, longest_field=1024
        )
    except ApiProblem as problem:
        if problem.code != "form":
            raise
        raise form_problem("the parts of the body cannot be read") from problem


def multipart_body(parts: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """Return the OpenAPI description of a multipart form with these parts."""
    schema = {"type": "object", "required": required, "additionalProperties": False}
    content = {"multipart/form-data": {"schema": schema | {"properties": parts}}}
    return {"requestBody": {"required": True, "content": content}}


def form_problem(why: str) -> ApiProblem:
    """Return the problem for an API call whose form is not valid; `why` gives the reason."""
    words = f"{why[0].upper()}{why[1:]}; send multipart/form-data with the CSV in the part `file`."
    return ApiProblem(422, "form", "the form is not valid", words)


def text_of(form: FormData, name: str) -> str:
    """Return a text field of a form, stripped; an empty string if it is missing or a file."""
    value = form.get(name, "")
    return value.strip() if isinstance(value, str) else ""


def key_of(form: FormData) -> str:
    """Return the idempotency key of a form; a random key if it is missing or not valid.

    With the key, submitting the same form twice has the effect of submitting it once.
    """
    key = text_of(form, "key")
    return key if _KEY.fullmatch(key) else secrets.token_hex(16)


def check_form(kind: type[M], values: dict[str, Any]) -> M:
    """Validate the values of a form with the model class `kind`; ignore empty values.

    Raises
    ------
    ApiProblem
        422: a value is not valid. The problem names the field but not the value.
    """
    filled = {name: value for name, value in values.items() if value not in (None, "", [])}
    try:
        return kind.model_validate(filled)
    except ValidationError as error:
        names = [str(details["loc"][0]) for details in error.errors() if details["loc"]]
        where = ", ".join(dict.fromkeys(names)) or "the form"
        raise ApiProblem(422, "invalid", "Some values are not valid", f"Check: {where}.") from error
