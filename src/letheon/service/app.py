"""`create_app`: the erasure desk as an ASGI application."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from letheon import __version__
from letheon.exceptions import LetheonError
from letheon.ledger import Ledger
from letheon.ledger.db.tokens import Sessions, Tokens
from letheon.service import middleware
from letheon.service.auth import Context, Limiter, find_gates
from letheon.service.errors import MEDIA_TYPE, ApiProblem, make_response, problem_of
from letheon.service.pages import ROUTERS as PAGES
from letheon.service.pages._shared import make_templates
from letheon.service.routes import ROUTERS as API
from letheon.service.schemas import ProblemOut
from letheon.service.settings import ServiceSettings
from letheon.verifier import VerificationError

_ATTRIBUTES = "\n\nAttributes\n----------\n"
_ATTRIBUTE = re.compile(r"^(\w[\w, ]*) : .*\n((?:    .*\n?)+)", re.MULTILINE)
_PROBLEM = {"$ref": "#/components/schemas/ProblemOut"}
_ABOUT = """API of the erasure desk: requests, models, certificates and audits of one ledger.

Authenticate with `Authorization: Bearer TOKEN`. Errors are `application/problem+json` (RFC 9457).
Lists are paginated: pass `next` of a page as `after` to get the following page. Repeating a POST
with the same `Idempotency-Key` has no further effect.
"""
_STATIC = Path(__file__).parent / "static"
_FOR_PROGRAMS = ("/api/", "/opendsr/", "/metrics", "/healthz", "/readyz", "/openapi.json")


def create_app(
    ledger: Ledger,
    settings: ServiceSettings | None = None,
    *,
    bound: str = "localhost",
    is_secure: bool | None = None,
    is_demo: bool = False,
    has_worker: Callable[[], bool] | None = None,
) -> FastAPI:
    """Return the erasure desk of a ledger as an ASGI application.

    Parameters
    ----------
    ledger : Ledger
        The ledger; it must stay open while the application is used. The desk uses its clock.
    settings : ServiceSettings, optional
        Settings; by default those in ``service.toml`` in the folder of the ledger.
    bound : str
        The address that the server listens on; clients may use it as host name.
    is_secure : bool, optional
        Whether browsers use HTTPS; by default, whether ``public_url`` does.
    is_demo : bool, default=False
        Whether pages show a banner for the demo.
    has_worker : callable, optional
        A function that returns whether the worker is running.

    Returns
    -------
    FastAPI
        The application. Run it in a single process: rate limits are counted in memory.

    Examples
    --------
    >>> import tempfile
    >>> from letheon.ledger import Ledger
    >>> from letheon.service import create_app
    >>> with tempfile.TemporaryDirectory() as folder, Ledger.create(folder, name="demo") as ledger:
    ...     create_app(ledger).title
    'letheon desk'
    """
    settings = ServiceSettings.read(ledger.folder) if settings is None else settings
    secure = settings.is_https if is_secure is None else is_secure
    lengths = settings.session_hours * 3600, settings.idle_minutes * 60
    app = FastAPI(title="letheon desk", version=__version__, docs_url=None, redoc_url=None)
    app.state.context = Context(
        ledger=ledger,
        settings=settings,
        tokens=Tokens(ledger),
        sessions=Sessions(ledger, *lengths),
        limiter=Limiter(settings),
        templates=make_templates(),
        is_secure=secure,
        is_demo=is_demo,
        has_worker=has_worker,
    )
    app.state.metrics = metrics = middleware.Metrics(ledger, has_worker)
    routers = (*API, *PAGES)
    app.state.routes = routes = [
        route for router in routers for route in router.routes if isinstance(route, APIRoute)
    ]
    _require_gates(routes)
    for router in routers:
        app.include_router(router)
    app.mount("/static", _Assets(directory=_STATIC), name="static")
    app.openapi = partial(_make_document, app, routes)  # type: ignore[method-assign]
    for kind in (
        HTTPException,
        RequestValidationError,
        LetheonError,
        VerificationError,
        SQLAlchemyError,
    ):
        app.add_exception_handler(kind, _respond_to_error)
    app.add_middleware(
        middleware.Guards,
        settings=settings,
        hosts=middleware.list_allowed_hosts(settings, bound),
        is_secure=secure,
        observe=metrics.observe,
        answer=_respond_to_error,
    )
    return app


class _Assets(StaticFiles):
    """The scripts and styles of the pages.

    Their URLs contain a digest of their contents, so browsers may cache them without limit.
    """

    def file_response(self, *words: Any, **options: Any) -> Response:
        """Return the response for a file, with a header that lets browsers cache it."""
        response = super().file_response(*words, **options)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


async def _respond_to_error(request: Request, error: Exception) -> Response:
    """Turn an error into a response; the response to an internal error contains no details."""
    problem = problem_of(error)
    if problem is None:
        middleware.log_internal_error(error)
        words = "This is a bug in letheon; please report it. Acknowledged requests are not lost."
        problem = ApiProblem(500, "internal", "Internal error", words)
    if request.url.path.startswith(_FOR_PROGRAMS):
        return make_response(request, problem)
    from letheon.service.pages._shared import problem_page

    # The page reads the session: the event loop must not wait for the database.
    return await run_in_threadpool(problem_page, request, problem)


def _make_document(app: FastAPI, routes: Sequence[APIRoute]) -> dict[str, Any]:
    """Return the OpenAPI document, with the scopes and error responses of every operation.

    The document is created once and then cached.
    """
    if app.openapi_schema is None:
        document = get_openapi(
            title="letheon desk", version=__version__, description=_ABOUT, routes=app.routes
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        schemas["ProblemOut"] = ProblemOut.model_json_schema()
        for schema in schemas.values():
            _describe_fields(schema)
        for route in routes:
            for method in (route.methods or ()) if route.include_in_schema else ():
                _complete_operation(document["paths"][route.path_format][method.lower()], route)
        app.openapi_schema = document
    return app.openapi_schema


def _describe_fields(schema: dict[str, Any]) -> None:
    """Move the attribute descriptions in the description of a schema to its fields."""
    about, separator, attributes = schema.get("description", "").partition(_ATTRIBUTES)
    if separator:
        schema["description"] = about
        for names, words in _ATTRIBUTE.findall(attributes):
            for name in names.split(", "):
                # A reference to another schema may not have a description.
                if "$ref" not in schema["properties"].get(name, {"$ref": ""}):
                    text = " ".join(words.split()).replace("None", "null")
                    schema["properties"][name]["description"] = text


def _complete_operation(operation: dict[str, Any], route: APIRoute) -> None:
    gate = find_gates(route)[0]
    operation |= {
        "operationId": route.name,
        "x-scopes": list(gate.scopes),
        "x-public": gate.is_public,
        "security": [{"token": []}],
    }
    if gate.is_public:
        del operation["security"]
    answers = operation["responses"]
    answers.pop("422", None)
    problem = {"content": {MEDIA_TYPE: {"schema": _PROBLEM}}}
    words = "The request cannot be fulfilled; `title` and `detail` say why."
    answers["4XX"] = {"description": words} | problem
    answers["503"] = {"description": "Temporarily unavailable; try again."} | problem


def _require_gates(routes: Iterable[APIRoute]) -> None:
    """Raise an error for a route that does not declare its scopes."""
    for route in routes:
        if len(find_gates(route)) != 1:
            raise RuntimeError(
                f"{route.path} declares {len(find_gates(route))} gates; expected exactly one: "
                "allows(...) or public()"
            )
