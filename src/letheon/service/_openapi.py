"""The OpenAPI document: what FastAPI finds, with scopes and problems on every operation."""

from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from letheon.service.auth import gates_of
from letheon.service.errors import MEDIA_TYPE
from letheon.service.schemas import ProblemOut

__all__ = ["document", "require_gates", "routes_of"]

_PROBLEM = {"$ref": "#/components/schemas/ProblemOut"}
_ABOUT = """The erasure desk: requests, models, certificates and audits of one ledger.

Send `Authorization: Bearer TOKEN`. Errors are `application/problem+json`. Lists have `next`: give
it back as `after`. A POST that is repeated with the same `Idempotency-Key` has one effect.
"""


def document(app: FastAPI, routes: Sequence[APIRoute], version: str) -> dict[str, Any]:
    """Return the document, made once."""
    if app.openapi_schema is None:
        found = get_openapi(
            title="letheon desk", version=version, description=_ABOUT, routes=app.routes
        )
        schemas = found.setdefault("components", {}).setdefault("schemas", {})
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        schemas["ProblemOut"] = ProblemOut.model_json_schema()
        for route in routes:
            for method in (route.methods or ()) if route.include_in_schema else ():
                operation = found["paths"][route.path_format][method.lower()]
                _complete(operation, route)
        app.openapi_schema = found
    return app.openapi_schema


def routes_of(routers: Iterable[APIRouter]) -> list[APIRoute]:
    """Return the routes of routers, whose paths are written in full."""
    return [one for router in routers for one in router.routes if isinstance(one, APIRoute)]


def _complete(operation: dict[str, Any], route: APIRoute) -> None:
    gate = gates_of(route)[0]
    operation["operationId"] = route.name
    operation["x-scopes"] = list(gate.scopes)
    operation["x-public"] = gate.is_public
    if gate.is_public:
        operation.pop("security", None)
    else:
        operation["security"] = [{"token": []}]
    answers = operation["responses"]
    answers.pop("422", None)
    problem = {"content": {MEDIA_TYPE: {"schema": _PROBLEM}}}
    answers["4XX"] = {
        "description": "What was asked cannot be done; the problem says why."
    } | problem
    answers["503"] = {"description": "Try again."} | problem


def require_gates(routes: Iterable[APIRoute]) -> None:
    """Refuse a route that does not say who may use it."""
    for route in routes:
        if len(gates_of(route)) != 1:
            raise RuntimeError(
                f"{route.path} names {len(gates_of(route))} gates; each route has exactly one of "
                "allows(...), allows_any(...), anybody() or public()"
            )
