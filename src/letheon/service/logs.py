"""One JSON line per call, and metrics for Prometheus; never a person, a body or a raw address.

The route's template is logged, not the path: a path or query may hold what a caller put there.
"""

import json
import logging
import secrets
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from letheon.exceptions import find_own_line
from letheon.ledger import Ledger
from letheon.ledger.db.jobs import Jobs
from letheon.ledger.db.webhooks import Webhooks

__all__ = [
    "CONTENT_TYPE",
    "CallLog",
    "ErrorHandler",
    "Metrics",
    "configure",
    "log_line",
    "place_of",
]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
_logger = logging.getLogger("letheon.desk")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def configure() -> None:
    """Send the lines to the error stream, as they are; of libraries only what is known by heart."""
    if _logger.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _logger.addHandler(handler)
    _logger.setLevel(logging.INFO)
    _logger.propagate = False
    logging.getLogger().handlers = [_Brief()]
    logging.captureWarnings(True)
    threading.excepthook = _log_thread


def _log_thread(died: threading.ExceptHookArgs) -> None:
    at = "-" if died.exc_value is None else place_of(died.exc_value)
    log_line("mistake", kind=died.exc_type.__name__, at=at)


class _Brief(logging.Handler):
    """Logs what a library says without its values and without a traceback: they may name people."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        if record.levelno < logging.WARNING:
            return
        error = record.exc_info[0] if record.exc_info else None
        kind = None if error is None else error.__name__
        log_line("server", level=record.levelname.lower(), words=str(record.msg)[:80], kind=kind)


def log_line(event: str, **facts: Any) -> None:
    """Write one line; values are codes, numbers and opaque ids."""
    if _logger.isEnabledFor(logging.INFO):
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        # JSON escapes line breaks and every control character.
        _logger.info(json.dumps({"time": now, "event": event} | facts, ensure_ascii=True))


def _nothing() -> None:
    """End a call that took no place."""


class CallLog:
    """Gives every call an id, and logs and counts it.

    Parameters
    ----------
    app : ASGI application
        What lies behind.
    observe : callable
        Takes method, route, status and seconds, for the metrics.
    """

    def __init__(self, app: ASGIApp, *, observe: Callable[[str, str, int, float], None]) -> None:
        self.app = app
        self.observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        call, start, status = secrets.token_hex(8), time.perf_counter(), 500
        scope["letheon_call"] = call

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", call.encode())]
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        finally:
            scope.get("letheon_release", _nothing)()
            self._note(scope, call, status, time.perf_counter() - start)

    def _note(self, scope: Scope, call: str, status: int, seconds: float) -> None:
        route = str(getattr(scope.get("route"), "path", None) or "-")
        method = scope["method"] if scope["method"] in _METHODS else "-"
        self.observe(method, route, status, seconds)
        log_line(
            "call",
            method=method,
            route=route,
            status=status,
            ms=round(seconds * 1000, 1),
            token=scope.get("letheon_token"),
            id=call,
        )


class ErrorHandler:
    """Answers where the program itself fails, and tells nothing but the kind and the place.

    It stands inside everything else that is ours. What reaches the server would be printed with a
    traceback, and the words of an error may name people.

    Parameters
    ----------
    app : ASGI application
        What lies behind.
    answer : callable
        Turns a call and an error into an answer.
    """

    def __init__(
        self, app: ASGIApp, *, answer: Callable[[Request, Exception], Awaitable[Response]]
    ) -> None:
        self.app = app
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        has_begun = False

        async def send_noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        except Exception as error:  # noqa: BLE001  (whatever it is, it must not be printed)
            if has_begun:  # the server notices that the rest is missing, and hangs up
                log_line("mistake", kind=type(error).__name__, at=place_of(error))
                return
            response = await self.answer(Request(scope, receive), error)
            await response(scope, receive, send)


def place_of(error: BaseException) -> str:
    """Return the file and line of ours that an error comes from."""
    line = find_own_line(error)
    return "-" if line is None else f"{line[0]}:{line[1]}"


class _OfLedger(Collector):
    """Gauges that are read from the ledger when they are asked for."""

    def __init__(self, ledger: Ledger, has_worker: Callable[[], bool] | None) -> None:
        self._ledger = ledger
        self._has_worker = has_worker

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges."""
        counts = self._ledger.requests.count()
        by_state = GaugeMetricFamily("letheon_requests", "Requests by state.", labels=["state"])
        for state, number in counts.by_state.items():
            by_state.add_metric([state], number)
        yield by_state
        yield GaugeMetricFamily(
            "letheon_requests_overdue", "Open requests past their day.", value=counts.overdue
        )
        n_jobs, n_messages = Jobs(self._ledger).count_open(), Webhooks(self._ledger).count_waiting()
        yield GaugeMetricFamily("letheon_jobs_open", "Jobs that are not done.", value=n_jobs)
        yield GaugeMetricFamily(
            "letheon_webhooks_waiting", "Calls of webhooks to be made.", value=n_messages
        )
        if self._has_worker is not None:
            yield GaugeMetricFamily(
                "letheon_worker_up", "Whether the worker runs.", value=int(self._has_worker())
            )


class Metrics:
    """The metrics of one server.

    Parameters
    ----------
    ledger : Ledger
        Whose desk it is.
    has_worker : callable, optional
        Whether the worker runs.
    """

    def __init__(self, ledger: Ledger, has_worker: Callable[[], bool] | None) -> None:
        self._registry = CollectorRegistry()
        labels = ["method", "route", "status"]
        self._calls = Counter(
            "letheon_calls", "Calls of the desk.", labels, registry=self._registry
        )
        self._seconds = Histogram(
            "letheon_call_seconds",
            "Time of a call.",
            ["route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._registry.register(_OfLedger(ledger, has_worker))

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a call."""
        self._calls.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return what a scrape gets."""
        found: Any = generate_latest(self._registry)
        return bytes(found)
