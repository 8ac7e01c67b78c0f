"""One JSON line per call: what, how it ended, how long; never a person, a body or a raw address.

The route's template is logged, not the path: a path or query may hold what a caller put there.
"""

import json
import logging
import secrets
import sys
import time
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CallLog", "configure", "log_line"]

_logger = logging.getLogger("letheon.desk")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def configure() -> None:
    """Send the lines to the error stream, as they are."""
    if not _logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        _logger.addHandler(handler)
        _logger.setLevel(logging.INFO)
        _logger.propagate = False


def log_line(event: str, **facts: Any) -> None:
    """Write one line; values are codes, numbers and opaque ids."""
    if _logger.isEnabledFor(logging.INFO):
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        # JSON escapes line breaks and every control character.
        _logger.info(json.dumps({"time": now, "event": event} | facts, ensure_ascii=True))


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
