"""What every call and every answer of the API has in common."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from letheon.ledger import Page

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._:-]{0,62}$")]
TenantFilter = Annotated[Name | None, Query(description="Of one tenant only.")]
ModelFilter = Annotated[Name | None, Query(description="Of one model only.")]
Tenant = Annotated[Name | None, Query(description="Whose; default: your own, or `default`.")]
Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str | None, Query(max_length=400)]

S = TypeVar("S")
T = TypeVar("T")
Hidden = Annotated[T, Field(exclude=True)]
"""A field of a record that is in no answer."""


class Out(BaseModel):
    """An answer that is read from texts, those of certificates for one."""

    model_config = ConfigDict(extra="forbid")


class In(BaseModel):
    """What a caller sends; a name that is not known is an error, not ignored."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=False)


class CodeOut(Out):
    """A code, and what it means."""

    code: str
    words: str


def shape(*texts: str, **others: str | list[str]) -> WithJsonSchema:
    """Return what the document of the API says about a dict: its names, and their kinds in JSON."""
    kinds = dict.fromkeys(texts, "string") | others
    properties = {name: {"type": kind} for name, kind in kinds.items()}
    return WithJsonSchema({"type": "object", "properties": properties, "required": [*kinds]})


def describe_file(media_type: str, words: str, kind: str = "string") -> dict[str, Any]:
    """Return what a route says about its answer that is a file."""
    answer = {"description": words, "content": {media_type: {"schema": {"type": kind}}}}
    return {"response_class": Response, "responses": {200: answer}}


def cut_page(
    items: Sequence[T], limit: int, key: Callable[[T], str], total: int | None = None
) -> Page[T]:
    """Return the first `limit` of a list that holds one more where there is a next part."""
    shown = tuple(items[:limit])
    return Page(shown, key(shown[-1]) if len(items) > limit else None, total)


def map_page(page: Page[S], change: Callable[[S], T]) -> Page[T]:
    """Return a part of a list with every item changed."""
    return Page(tuple(map(change, page.items)), page.next, page.total)


class ItemProblem(BaseModel):
    """Why something was refused.

    Attributes
    ----------
    type : str
        urn:letheon:problem: and a code
    """

    type: str = Field(pattern="^urn:letheon:problem:")
    title: str
    detail: str


class ProblemOut(ItemProblem):
    """An error (RFC 9457).

    Attributes
    ----------
    type : str
        urn:letheon:problem: and a code
    instance : str
        Id of this call, as the log of the server names it.
    errors : list of dict or None
        Which values were refused, and why.
    """

    status: int = Field(ge=400, le=599)
    instance: str
    errors: list[dict[str, str]] | None = None
