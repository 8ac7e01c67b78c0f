"""What forms offer: tenants, models, laws, and values of a form that were checked."""

import re
import secrets
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import select
from starlette.datastructures import FormData

from letheon.ledger.tables import models
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._problems import Problem

__all__ = ["LAWS", "checked", "key_of", "model_choices", "tenant_choices", "text_of"]

LAWS = (("gdpr", "GDPR (EU)"), ("ccpa", "CCPA (California)"))
_MOST = 500
_KEY = re.compile("[0-9a-f]{32}")

M = TypeVar("M", bound=BaseModel)


def model_choices(context: Context, tenant: str | None) -> list[str]:
    """Return the names of the models of a tenant, or of all."""
    query = select(models.c.name).distinct().order_by(models.c.name).limit(_MOST)
    if tenant is not None:
        query = query.where(models.c.tenant == tenant)
    with context.ledger._core.database.reading() as conn:
        return list(conn.scalars(query))


def tenant_choices(context: Context, who: Principal) -> list[str]:
    """Return whose things somebody may choose; nothing where there is nothing to choose."""
    if who.tenant is not None:
        return []
    query = select(models.c.tenant).distinct().order_by(models.c.tenant).limit(_MOST)
    with context.ledger._core.database.reading() as conn:
        found = list(conn.scalars(query))
    return found if len(found) > 1 else []


def text_of(form: FormData, name: str) -> str:
    """Return a field of a form, without space around it; nothing for one that is a file."""
    found = form.get(name, "")
    return found.strip() if isinstance(found, str) else ""


def key_of(form: FormData) -> str:
    """Return the idempotency key that a form carries, so that sending it twice has one effect."""
    found = text_of(form, "key")
    return found if _KEY.fullmatch(found) else secrets.token_hex(16)


def checked(kind: type[M], values: dict[str, Any]) -> M:
    """Return what a form asks for; empty values are left out.

    Raises
    ------
    Problem
        A value cannot be; it is not repeated.
    """
    given = {name: value for name, value in values.items() if value not in (None, "", [])}
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        names = [str(one["loc"][0]) for one in error.errors() if one["loc"]]
        where = ", ".join(dict.fromkeys(names)) or "the form"
        raise Problem(422, "invalid", "Some values cannot be used", f"Look at: {where}.") from error
