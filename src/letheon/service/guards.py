"""What stands before every route: hosts, sizes and headers as plain ASGI; and limits on calls.

Calls are counted in the memory of the server, and forgotten when it stops.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from ipaddress import IPv6Network
from urllib.parse import urlsplit

import anyio
from limits import RateLimitItem, parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from letheon.service.errors import Problem, respond
from letheon.service.settings import ServiceSettings

__all__ = [
    "CONTENT_POLICY",
    "HEADERS",
    "SLOWEST",
    "Guards",
    "Limiter",
    "allowed_hosts",
    "network_of",
]

SLOWEST = 10_000
"""Bytes a second below which a body or an answer is too slow, after the seconds that it has."""


# Long calls hold a thread of the server each; it has 40, and short ones must always find one.
_LONG_AT_ONCE = 16
_LONG_PER_TOKEN = 4


def network_of(host: str) -> str:
    """Return what counts as one address: of IPv6 the network of a house."""
    if ":" not in host:
        return host
    try:
        return str(IPv6Network((host.partition("%")[0], 64), strict=False))
    except ValueError:
        return host


class Limiter:
    """Counts calls by token and by address, and long ones at a time.

    Parameters
    ----------
    settings : ServiceSettings
        The rates.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        storage = MemoryStorage()
        self._by_token = FixedWindowRateLimiter(storage)
        self._by_address = MovingWindowRateLimiter(storage)
        self._rates: dict[str, RateLimitItem] = {
            "token": parse(settings.rate_per_token),
            "login": parse(settings.rate_login),
            "failed": parse(settings.rate_failed),
            "receipt": parse(settings.rate_receipt),
        }
        self._one = threading.Lock()
        self._long: Counter[str] = Counter()

    def begin_long(self, token_id: str) -> Callable[[], None]:
        """Begin a long call; return what ends it. Or raise a problem: too many at a time."""
        with self._one:
            if self._long[token_id] >= _LONG_PER_TOKEN or self._long.total() >= _LONG_AT_ONCE:
                raise Problem(
                    429,
                    "too-many-long-calls",
                    "too many long calls at a time",
                    f"At most {_LONG_PER_TOKEN} of one token. Wait for the answers, then go on.",
                    headers={"Retry-After": "1"},
                )
            self._long[token_id] += 1
        return partial(self._end_long, token_id)

    def _end_long(self, token_id: str) -> None:
        with self._one:
            self._long[token_id] -= 1
            if not self._long[token_id]:
                del self._long[token_id]

    def count_call(self, token_id: str) -> None:
        """Count a call of a token, or raise the problem 429."""
        rate = self._rates["token"]
        if not self._by_token.hit(rate, "token", token_id):
            raise _too_many(rate)

    def count(self, what: str, address: str) -> None:
        """Count a log-in, a wrong token or a check of a receipt; or raise the problem 429."""
        rate = self._rates[what]
        if not self._by_address.hit(rate, what, address):
            raise _too_many(rate)


def _too_many(rate: RateLimitItem) -> Problem:
    seconds = rate.get_expiry()
    return Problem(
        429,
        "too-many",
        "too many calls",
        f"At most {rate}. Wait and try again.",
        headers={"Retry-After": str(min(seconds, 60))},
    )


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


def allowed_hosts(settings: ServiceSettings, *bound: str) -> frozenset[str]:
    """Return the names by which the desk may be addressed.

    Others are refused: a page of a stranger whose name leads to this machine must not reach it.
    """
    own = [] if settings.public_url is None else [urlsplit(settings.public_url).hostname or ""]
    return frozenset(name.lower() for name in (*_LOOPBACK, *settings.hosts, *bound, *own))


class Guards:
    """Refuses what is too large or meant for another host, and adds headers to every answer.

    Parameters
    ----------
    app : ASGI application
        What lies behind.
    settings : ServiceSettings
        Sizes.
    hosts : frozenset of str
        As `allowed_hosts` gives them.
    is_secure : bool
        Whether browsers shall insist on HTTPS from now on.
    """

    def __init__(
        self, app: ASGIApp, *, settings: ServiceSettings, hosts: frozenset[str], is_secure: bool
    ) -> None:
        self.app = app
        self.settings = settings
        self.hosts = hosts
        self.headers = dict(HEADERS)
        if is_secure:
            self.headers["Strict-Transport-Security"] = _ONE_YEAR

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers.setdefault(name, value)
            await send(message)

        inner_send: Send = send_with_headers
        if scope["method"] == "HEAD":  # every address that can be got can be asked about
            scope, inner_send = dict(scope, method="GET"), _without_body(send_with_headers)
        try:
            self._require_host(scope)
            receive = self._capped(scope, receive)
        except Problem as problem:
            await respond(Request(scope), problem)(scope, receive, inner_send)
            return
        await self.app(scope, receive, inner_send)

    def _require_host(self, scope: Scope) -> None:
        host = Headers(scope=scope).get("host", "").lower()
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if name not in self.hosts:
            raise Problem(
                400,
                "host",
                "this desk is not addressed by that name",
                "Put the name into `hosts` or `public_url` of service.toml.",
            )

    def _capped(self, scope: Scope, receive: Receive) -> Receive:
        """Return a `receive` that stops at the largest body of this path."""
        most = self._most(scope["path"])
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdigit() or int(length) > most:
            raise _too_large(most)
        seen, is_whole = 0, False
        ends_at = anyio.current_time() + self.settings.body_seconds

        async def receive_capped() -> Message:
            nonlocal seen, is_whole
            if is_whole:  # what comes now is that the caller has gone
                return await receive()
            try:
                # What has come already gives it time: a long body that makes progress goes on.
                with anyio.fail_after(ends_at + seen / SLOWEST - anyio.current_time()):
                    message = await receive()
            except TimeoutError:
                raise _too_slow() from None
            seen += len(message.get("body", b""))
            if seen > most:
                raise _too_large(most)
            is_whole = not message.get("more_body", False)
            return message

        return receive_capped

    def _most(self, path: str) -> int:
        if path in _UPLOADS:
            return self.settings.max_upload_bytes
        return self.settings.max_model_bytes if path in _MODELS else self.settings.max_body_bytes


def _without_body(send: Send) -> Send:
    """Return a `send` for an answer whose head alone was asked for."""

    async def send_head(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return send_head


def _too_slow() -> Problem:
    headers = {"Connection": "close"}
    return Problem(408, "too-slow", "the body came too slowly", "Send it again.", headers=headers)


def _too_large(most: int) -> Problem:
    headers = {"Connection": "close"}
    return Problem(
        413, "too-large", "the body is too large", f"At most {most} bytes.", headers=headers
    )
