"""Addresses of pages, and the parts that they share."""

from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import Path, Query

from letheon.ledger.schemas import NAME
from letheon.service._jobs import CURSOR, JOB_ID

__all__ = [
    "After",
    "AfterJob",
    "AfterText",
    "Job",
    "JobId",
    "Model",
    "ModelFilter",
    "Tenant",
    "address",
]

Model = Annotated[str, Path(pattern=f"^{NAME.pattern}$")]
ModelFilter = Annotated[str | None, Query(pattern=f"^({NAME.pattern})?$")]
Tenant = Annotated[str | None, Query(max_length=200)]
After = Annotated[str | None, Query(pattern="^[0-9]{1,12}$")]
AfterText = Annotated[str | None, Query(max_length=200)]
AfterJob = Annotated[str | None, Query(pattern=CURSOR)]
Job = Annotated[str | None, Query(pattern=JOB_ID)]
JobId = Annotated[str, Path(pattern=JOB_ID)]


def address(path: str, **query: Any) -> str:
    """Return a path of this desk with a query of what is not None."""
    given = {name: value for name, value in query.items() if value is not None}
    return quote(path) + ("?" + urlencode(given) if given else "")
