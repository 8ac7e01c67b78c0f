"""Checks before every route (host, body size), response headers, the log and the metrics.

Metrics are kept in memory and are lost when the server stops. The log line of a
call contains no personal data, no body and no URL path: the template of the route is logged instead
of the path. Only the line for a refused connection contains an address, grouped as in
`address_group`.
"""

import json
import logging
import secrets
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import anyio
import prometheus_client as prometheus
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from letheon.exceptions import find_own_line
from letheon.ledger import Ledger
from letheon.ledger.db.jobs import Jobs
from letheon.ledger.db.webhooks import Webhooks
from letheon.service.errors import ApiProblem, make_response
from letheon.service.settings import ServiceSettings

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
_logger = logging.getLogger("letheon.desk")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

SLOWEST = 10_000
"""Minimum rate of a body or a response in bytes per second, beyond its time limit."""


CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
_ONE_YEAR = "max-age=31536000"
_UPLOADS = frozenset({"/api/v1/requests/upload", "/requests/upload"})
_MODELS = frozenset({"/api/v1/models", "/models/new"})
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]", "::1")


def list_allowed_hosts(settings: ServiceSettings, *bound: str) -> frozenset[str]:
    """Return the host names under which the desk may be called.

    Calls for other names are rejected, so that a foreign website whose name resolves to this
    machine (DNS rebinding) cannot reach the desk.
    """
    own = [] if settings.public_url is None else [urlsplit(settings.public_url).hostname or ""]
    return frozenset(name.lower() for name in (*_LOOPBACK, *settings.hosts, *bound, *own))


class Guards:
    """Middleware that checks, logs and counts every call, and handles errors.

    Calls with a body that is too large, or for another host name, are rejected. Every response gets
    an id and security headers. Only the type of an internal error and its line in the code are
    logged, because its text and traceback may contain personal data.

    Parameters
    ----------
    app : ASGI application
        The application behind the middleware.
    settings : ServiceSettings
        Size limits.
    hosts : frozenset of str
        Allowed host names; see `list_allowed_hosts`.
    is_secure : bool
        Whether to send Strict-Transport-Security.
    observe : callable
        Called with method, route, status and seconds, for the metrics.
    answer : callable
        A function that turns a call and an error into a response.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ServiceSettings,
        hosts: frozenset[str],
        is_secure: bool,
        observe: Callable[[str, str, int, float], None],
        answer: Callable[[Request, Exception], Awaitable[Response]],
    ) -> None:
        self.app, self.settings, self.hosts = app, settings, hosts
        self.observe, self.answer = observe, answer
        self.headers = dict(HEADERS)
        if is_secure:
            self.headers["Strict-Transport-Security"] = _ONE_YEAR

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI call."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        call, start, status = secrets.token_hex(8), time.perf_counter(), 0
        method, is_head = scope["method"], scope["method"] == "HEAD"
        # HEAD is answered as GET without the body.
        scope = {**scope, "letheon_call": call, "method": "GET" if is_head else method}

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, headers = message["status"], MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers.setdefault(name, value)
                headers["x-request-id"] = call
            elif is_head:
                message = {**message, "body": b""}
            await send(message)

        try:
            self._require_host(scope)
            receive = self._limit_body(scope, receive)
            await self.app(scope, receive, send_marked)
        except Exception as error:  # noqa: BLE001  (its text must not be printed)
            if status:  # the server notices that the rest is missing, and closes the connection
                log_internal_error(error)
            elif isinstance(error, ApiProblem):
                await make_response(Request(scope), error)(scope, receive, send_marked)
            else:
                response = await self.answer(Request(scope, receive), error)
                await response(scope, receive, send_marked)
        finally:
            if release := scope.get("letheon_release"):
                release()
            self._log_call(scope, method, status or 500, time.perf_counter() - start)

    def _log_call(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        route = str(getattr(scope.get("route"), "path", None) or "-")
        method = method if method in _METHODS else "-"
        self.observe(method, route, status, seconds)
        log_line(
            "call",
            method=method,
            route=route,
            status=status,
            ms=round(seconds * 1000, 1),
            token=scope.get("letheon_token"),
            id=scope["letheon_call"],
        )

    def _require_host(self, scope: Scope) -> None:
        host = Headers(scope=scope).get("host", "").lower()
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if name not in self.hosts:
            words = "Add the name to `hosts` or `public_url` in service.toml."
            raise ApiProblem(400, "host", "unknown host name", words)

    def _limit_body(self, scope: Scope, receive: Receive) -> Receive:
        """Return a `receive` that enforces the limits on the size and duration of the body."""
        most = self._size_limit(scope["path"])
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdigit() or int(length) > most:
            raise _too_large(most)
        seen, is_whole = 0, False
        ends_at = anyio.current_time() + self.settings.body_seconds

        async def receive_capped() -> Message:
            nonlocal seen, is_whole
            if is_whole:  # the next message is the disconnect of the caller
                return await receive()
            try:
                # Received bytes extend the time limit, so a long body that makes progress is
                # accepted.
                with anyio.fail_after(ends_at + seen / SLOWEST - anyio.current_time()):
                    message = await receive()
            except TimeoutError:
                headers = {"Connection": "close"}
                title, words = "the body arrived too slowly", "Send the call again."
                raise ApiProblem(408, "too-slow", title, words, headers=headers) from None
            seen += len(message.get("body", b""))
            if seen > most:
                raise _too_large(most)
            is_whole = not message.get("more_body", False)
            return message

        return receive_capped

    def _size_limit(self, path: str) -> int:
        if path in _UPLOADS:
            return self.settings.max_upload_bytes
        return self.settings.max_model_bytes if path in _MODELS else self.settings.max_body_bytes


def _too_large(most: int) -> ApiProblem:
    headers, words = {"Connection": "close"}, f"The limit is {most} bytes."
    return ApiProblem(413, "too-large", "the body is too large", words, headers=headers)


def configure_logging() -> None:
    """Write log lines to standard error; log only warnings of libraries, and shorten them."""
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
    if died.exc_value is not None:
        log_internal_error(died.exc_value)


class _Brief(logging.Handler):
    """Log handler for libraries; it drops values and tracebacks that may contain personal data."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the first 80 characters of a warning, without its values."""
        if record.levelno < logging.WARNING:
            return
        error = record.exc_info[0] if record.exc_info else None
        kind = None if error is None else error.__name__
        log_line("server", level=record.levelname.lower(), words=str(record.msg)[:80], kind=kind)


def log_line(event: str, **facts: Any) -> None:
    """Write one log line as JSON; facts must not contain personal data."""
    if _logger.isEnabledFor(logging.INFO):
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        # JSON escapes line breaks and every control character.
        _logger.info(json.dumps({"time": now, "event": event} | facts, ensure_ascii=True))


def log_internal_error(error: BaseException) -> None:
    """Log the type of an internal error, and the file and line of letheon that raised it."""
    line = find_own_line(error)
    at = "-" if line is None else f"{line[0]}:{line[1]}"
    log_line("internal-error", kind=type(error).__name__, at=at)


class Metrics(Collector):
    """Prometheus metrics of a server; those of the ledger are read at each scrape.

    Parameters
    ----------
    ledger : Ledger
        The ledger of the desk.
    has_worker : callable, optional
        A function that returns whether the worker is running.
    """

    def __init__(self, ledger: Ledger, has_worker: Callable[[], bool] | None) -> None:
        self._ledger = ledger
        self._has_worker = has_worker
        self._registry = registry = prometheus.CollectorRegistry()
        labels = ["method", "route", "status"]
        self._calls = prometheus.Counter(
            "letheon_calls", "HTTP calls of the desk.", labels, registry=registry
        )
        self._seconds = prometheus.Histogram(
            "letheon_call_seconds",
            "Duration of an HTTP call.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges of the ledger: requests by state, overdue requests, jobs, webhooks."""
        counts = self._ledger.requests.count()
        by_state = GaugeMetricFamily("letheon_requests", "Requests by state.", labels=["state"])
        for state, number in counts.by_state.items():
            by_state.add_metric([state], number)
        yield by_state
        n_jobs, n_messages = Jobs(self._ledger).count_open(), Webhooks(self._ledger).count_waiting()
        gauges = [
            ("letheon_requests_overdue", "Open requests past their deadline.", counts.overdue),
            ("letheon_jobs_open", "Unfinished jobs.", n_jobs),
            ("letheon_webhooks_waiting", "Webhook messages waiting for delivery.", n_messages),
        ]
        if self._has_worker is not None:
            is_up = int(self._has_worker())
            gauges.append(("letheon_worker_up", "Whether the worker is running.", is_up))
        for name, words, value in gauges:
            yield GaugeMetricFamily(name, words, value=value)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a call and its duration."""
        self._calls.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def to_text(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return bytes(prometheus.generate_latest(self._registry))
