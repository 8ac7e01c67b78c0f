"""`create_app`: the desk of a ledger as an ASGI application."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from letheon import __version__
from letheon.exceptions import LetheonError
from letheon.ledger import Ledger
from letheon.service import _openapi
from letheon.service.auth import Context
from letheon.service.guards import Guards, allowed_hosts
from letheon.service.guards import Limiter
from letheon.service.logs import CallLog, Mistakes, log_line, place_of
from letheon.service.logs import Metrics
from letheon.service.errors import Problem, problem_of, respond
from letheon.ledger.db.tokens import Sessions
from letheon.service.settings import ServiceSettings
from letheon.service.templating import make_templates
from letheon.ledger.db.tokens import Tokens
from letheon.service.api import ROUTERS as API
from letheon.service.pages import ROUTERS as PAGES
from letheon.verifier import Refused

__all__ = ["create_app"]

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
    """Return the desk of a ledger as an ASGI application.

    Parameters
    ----------
    ledger : Ledger
        It stays open as long as the application is used; its clock is the desk's.
    settings : ServiceSettings, optional
        Default: what ``service.toml`` in the ledger's home says.
    bound : str
        The address that the server listens at: a name by which it may be called.
    is_secure : bool, optional
        Whether browsers reach it by HTTPS; default: what ``public_url`` says.
    is_demo : bool, default=False
        Whether pages say that this is the filled example.
    has_worker : callable, optional
        Whether a worker runs beside the server.

    Returns
    -------
    FastAPI
        Run it with one process: limits on calls are counted in memory.
    """
    settings = ServiceSettings.read(ledger.folder) if settings is None else settings
    secure = settings.is_https if is_secure is None else is_secure
    clock = ledger._core.clock
    app = FastAPI(title="letheon desk", version=__version__, docs_url=None, redoc_url=None)
    app.state.context = Context(
        ledger=ledger,
        settings=settings,
        clock=clock,
        tokens=Tokens(ledger, clock),
        sessions=Sessions(ledger, settings, clock),
        limiter=Limiter(settings),
        templates=make_templates(),
        is_secure=secure,
        is_demo=is_demo,
        has_worker=has_worker,
    )
    app.state.metrics = metrics = Metrics(ledger, has_worker)
    app.state.routes = routes = _openapi.routes_of((*API, *PAGES))
    _openapi.require_gates(routes)
    for router in (*API, *PAGES):
        app.include_router(router)
    app.mount("/static", _Assets(directory=_STATIC), name="static")
    _describe(app, routes)
    _handle_errors(app)
    hosts = allowed_hosts(settings, bound)
    app.add_middleware(Mistakes, answer=_answer)
    app.add_middleware(Guards, settings=settings, hosts=hosts, is_secure=secure)
    app.add_middleware(CallLog, observe=metrics.observe)
    return app


class _Assets(StaticFiles):
    """Scripts and styles; pages name them with a digest of their content, so they may be kept."""

    def file_response(self, *words: Any, **given: Any) -> Response:
        """Return a file that browsers keep."""
        found = super().file_response(*words, **given)
        found.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return found


def _describe(app: FastAPI, routes: list[APIRoute]) -> None:
    def describe() -> dict[str, Any]:
        return _openapi.document(app, routes, __version__)

    app.openapi = describe  # type: ignore[method-assign]


def _handle_errors(app: FastAPI) -> None:
    known = (HTTPException, RequestValidationError, LetheonError, Refused, SQLAlchemyError)
    for kind in known:
        app.add_exception_handler(kind, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    """Turn an error into an answer; of a mistake in the program only its kind is told."""
    problem = problem_of(error)
    if problem is None:
        log_line("mistake", kind=type(error).__name__, at=place_of(error))
        problem = Problem(
            500,
            "internal",
            "a mistake in letheon",
            "Please report it; what was acknowledged is kept.",
        )
    if request.url.path.startswith(_FOR_PROGRAMS):
        return respond(request, problem)
    from letheon.service.pages._shared import problem_page

    # It reads the session: the loop that serves everybody must not wait for the database.
    return await run_in_threadpool(problem_page, request, problem)
