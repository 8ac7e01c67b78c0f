"""Types and helpers that all routes of the API share."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from letheon.ledger import Page

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._:-]{0,62}$")]
TenantFilter = Annotated[Name | None, Query(description="Only this tenant.")]
ModelFilter = Annotated[Name | None, Query(description="Only this model.")]
Tenant = Annotated[
    Name | None, Query(description="Tenant; default: the tenant of your token, or `default`.")
]
Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str | None, Query(max_length=400)]

S = TypeVar("S")
T = TypeVar("T")
Hidden = Annotated[T, Field(exclude=True)]
"""A field of a record that is not part of responses."""


class Out(BaseModel):
    """Base class of response bodies; unknown fields are an error."""

    model_config = ConfigDict(extra="forbid")


class In(BaseModel):
    """Base class of the bodies of calls; unknown fields are an error."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=False)


class CodeOut(Out):
    """A code with its meaning in words."""

    code: str
    words: str


def object_schema(*texts: str, **others: str | list[str]) -> WithJsonSchema:
    """Return the OpenAPI schema of a dict: string keys `texts`, and `others` by JSON type."""
    kinds = dict.fromkeys(texts, "string") | others
    properties = {name: {"type": kind} for name, kind in kinds.items()}
    return WithJsonSchema({"type": "object", "properties": properties, "required": [*kinds]})


def describe_file(media_type: str, words: str, kind: str = "string") -> dict[str, Any]:
    """Return the options of a route whose response is a file of this media type."""
    answer = {"description": words, "content": {media_type: {"schema": {"type": kind}}}}
    return {"response_class": Response, "responses": {200: answer}}


def cut_page(
    items: Sequence[T], limit: int, key: Callable[[T], str], total: int | None = None
) -> Page[T]:
    """Return the first `limit` items as a page.

    If there are more items, the page has a cursor to the next page: the key of its last item.
    """
    shown = tuple(items[:limit])
    return Page(shown, key(shown[-1]) if len(items) > limit else None, total)


def map_page(page: Page[S], change: Callable[[S], T]) -> Page[T]:
    """Return a page on which each item is replaced by `change(item)`."""
    return Page(tuple(map(change, page.items)), page.next, page.total)


class ItemProblem(BaseModel):
    """The reason why an item was refused.

    Attributes
    ----------
    type : str
        `urn:letheon:problem:` followed by a code.
    """

    type: str = Field(pattern="^urn:letheon:problem:")
    title: str
    detail: str


class ProblemOut(ItemProblem):
    """An error response (RFC 9457).

    Attributes
    ----------
    type : str
        `urn:letheon:problem:` followed by a code.
    instance : str
        Id of this call in the log of the server.
    errors : list of dict or None
        Rejected fields, with the reasons; null if the error is not about fields.
    """

    status: int = Field(ge=400, le=599)
    instance: str
    errors: list[dict[str, str]] | None = None
