"""What every answer of the API has in common."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, Self, TypeVar

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "In",
    "Limit",
    "ModelFilter",
    "Name",
    "Out",
    "Page",
    "ProblemOut",
    "Tenant",
    "TenantFilter",
]


Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._:-]{0,62}$")]
TenantFilter = Annotated[Name | None, Query(description="Of one tenant only.")]
ModelFilter = Annotated[Name | None, Query(description="Of one model only.")]
Tenant = Annotated[Name | None, Query(description="Whose; default: your own, or `default`.")]
Limit = Annotated[int, Query(ge=1, le=200)]

T = TypeVar("T")


class Out(BaseModel):
    """An answer; made from an object with the same attributes, or from values."""

    model_config = ConfigDict(from_attributes=True, extra="forbid")

    @classmethod
    def of(cls, record: object, **changes: Any) -> Self:
        """Return an answer with the attributes of a record; `changes` replace some of them."""
        names = [name for name in cls.model_fields if name not in changes]
        return cls.model_validate({name: getattr(record, name) for name in names} | changes)


class In(BaseModel):
    """What a caller sends; a name that is not known is an error, not ignored."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=False)


class Page(Out, Generic[T]):
    """A part of a list."""

    items: list[T]
    next: str | None = Field(
        default=None, description="Give it as `after` for the next part; null at the end."
    )
    total: int | None = Field(default=None, description="How many there are in all, where known.")

    @classmethod
    def cut(
        cls, found: Sequence[T], limit: int, key: Callable[[T], str], total: int | None = None
    ) -> "Page[T]":
        """Return the first `limit` of a list that holds one more where there is a next part."""
        items = list(found[:limit])
        return cls(items=items, next=key(items[-1]) if len(found) > limit else None, total=total)


class ProblemOut(Out):
    """An error (RFC 9457)."""

    type: str = Field(
        description="urn:letheon:problem: and a code", pattern="^urn:letheon:problem:"
    )
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    instance: str = Field(description="Id of this call, as the log of the server names it.")
    errors: list[dict[str, str]] | None = Field(
        default=None, description="Which values were refused, and why."
    )
