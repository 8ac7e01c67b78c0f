"""Authentication, authorization, rate limits, and the certificate numbers that a tenant sees.

Every route declares its scopes with `allows`, or that it is `public`; `create_app` rejects a route
that does neither. A bearer token is checked first, then the session cookie. A session may change
data only with its CSRF token, because a browser sends cookies with forms of any website.
"""

import re
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from limits import parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter
from pydantic import BaseModel

from letheon.ledger import Ledger
from letheon.ledger.db.tokens import KNOWING, Session, Sessions, Token, Tokens
from letheon.ledger.schemas import require_name
from letheon.service.addresses import address_group
from letheon.service.errors import ApiProblem
from letheon.service.settings import ServiceSettings

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
COOKIE = "letheon_session"
PAGE_OF_ROLE = {"requester": "/requests", "auditor": "/certificates"}
"""First page after the login; other roles see the home page."""
_bearer = HTTPBearer(auto_error=False, description="Access token of the desk.", scheme_name="token")
_NUMBER_IN_TEXT = re.compile(r"(?<=\b[Cc]ertificate )[0-9]{1,15}\b")
_NUMBER_KEYS = ("sequence", "certificate")


@dataclass(frozen=True)
class ConcurrencyLimit:
    """A limit on the number of calls that run at the same time.

    Attributes
    ----------
    each, most : int
        Maximum number per key, and in total.
    status, code, title, words : int or str
        The `ApiProblem` that is raised when the limit is reached.
    retry : str
        Number of seconds to wait before the next attempt.
    """

    each: int
    most: int
    status: int
    code: str
    title: str
    words: str
    retry: str
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _in_use: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def acquire(self, key: str) -> Iterator[None]:
        """Count a call during a ``with`` block; raise the problem if the limit is reached."""
        with self._lock:
            if self._in_use[key] >= self.each or self._in_use.total() >= self.most:
                raise self.make_problem()
            self._in_use[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_use[key] -= 1
                if not self._in_use[key]:
                    del self._in_use[key]

    def make_problem(self) -> ApiProblem:
        """Return the problem to raise when the limit is reached."""
        headers = {"Retry-After": self.retry}
        return ApiProblem(self.status, self.code, self.title, self.words, headers=headers)


class Limiter:
    """Limits on the rate of calls, and on the number of concurrent calls.

    Rates are limited per token and per client address. Long calls, bundle downloads and
    registrations of models are limited in number.

    Parameters
    ----------
    settings : ServiceSettings
        The settings that contain the rates.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        storage = MemoryStorage()
        by_address = MovingWindowRateLimiter(storage)
        self._limits = {
            "token": (FixedWindowRateLimiter(storage), parse(settings.rate_per_token)),
            "login": (by_address, parse(settings.rate_login)),
            "failed": (by_address, parse(settings.rate_failed)),
            "receipt": (by_address, parse(settings.rate_receipt)),
        }
        # Each long call occupies one of the 40 threads of the server; short calls need free
        # threads.
        words = "At most 4 are permitted per token. Wait for the responses, then continue."
        title = "too many concurrent long calls"
        self.long_calls = ConcurrencyLimit(4, 16, 429, "too-many-long-calls", title, words, "1")
        words = "At most 1 is permitted per token, and 2 in total. Try again later."
        title = "too many concurrent bundle downloads"
        self.bundles = ConcurrencyLimit(1, 2, 429, "too-many-bundles", title, words, "30")
        words, title = "Try again when it is finished.", "another model is being registered"
        self.models = ConcurrencyLimit(1, 4, 503, "busy", title, words, "5")  # each needs memory

    def count(self, limit_name: str, key: str) -> None:
        """Count a call; raise an `ApiProblem` with status 429 if the rate limit is exceeded.

        The key is the id of a token, or a client address for logins, invalid tokens and receipt
        checks.
        """
        limiter, rate = self._limits[limit_name]
        if not limiter.hit(rate, limit_name, key):
            headers = {"Retry-After": str(min(rate.get_expiry(), 60))}
            words = f"The limit is {rate}. Wait, then try again."
            raise ApiProblem(429, "too-many", "too many calls", words, headers=headers)


@dataclass(frozen=True)
class Context:
    """The state of a desk.

    Attributes
    ----------
    ledger : Ledger
        The ledger of the desk.
    settings : ServiceSettings
        Settings of the operator.
    tokens, sessions, limiter
        Access tokens, browser sessions and rate limits.
    templates : Jinja2Templates
        Templates of the pages.
    is_secure : bool
        Whether browsers use HTTPS. If so, cookies are only sent over HTTPS.
    is_demo : bool
        Whether this is the demo.
    has_worker : callable
        A function that returns whether the worker is running; None if there is no worker.
    stopping : Event
        Set when the server shuts down; running computations then stop.
    """

    ledger: Ledger
    settings: ServiceSettings
    tokens: Tokens
    sessions: Sessions
    limiter: Limiter
    templates: Any
    is_secure: bool = False
    is_demo: bool = False
    has_worker: Callable[[], bool] | None = None
    stopping: threading.Event = field(default_factory=threading.Event)


def context(request: Request) -> Context:
    """Return the state of the desk that serves a call."""
    desk: Context = request.app.state.context
    return desk


class CertificateNumbers:
    """Conversion between the certificate numbers of a tenant and those of the ledger.

    The ledger numbers the certificates of all tenants together, so its numbers would reveal how
    much other tenants erase. A tenant therefore sees numbers of its own, starting at 1. The signed
    files still contain the ledger's numbers, because the chain of certificates needs them.

    Parameters
    ----------
    ledger : Ledger
        The ledger with the certificates.
    tenant : str or None
        Owner of the certificates. If it is None, numbers are not converted.
    """

    def __init__(self, ledger: Ledger, tenant: str | None) -> None:
        self._ledger = ledger
        self.tenant = tenant

    @cached_property
    def _sequences(self) -> tuple[int, ...]:
        return self._ledger.certificates.sequences(tenant=str(self.tenant))

    def tenant_number(self, sequence: int | None) -> int | None:
        """Convert the ledger's certificate number to the tenant's; None if not the tenant's own."""
        if sequence is None or self.tenant is None:
            return sequence
        place = bisect_left(self._sequences, sequence)
        is_own = self._sequences[place : place + 1] == (sequence,)
        return place + 1 if is_own else None

    def ledger_number(self, number: int) -> int:
        """Convert a tenant's certificate number to the ledger's.

        Raises
        ------
        ApiProblem
            404: the tenant has no certificate with that number.
        """
        if self.tenant is None:
            return number
        if not 1 <= number <= len(self._sequences):
            raise unknown_certificate()
        return self._sequences[number - 1]

    def renumber(self, value: Any, name: str = "") -> Any:
        """Replace the ledger's certificate numbers by the tenant's in JSON data or a text.

        `name` is the key of the value in the JSON data. A certificate of another tenant gets
        ``None`` in data and "?" in a text.
        """
        if self.tenant is None:
            return value
        if isinstance(value, int) and name in _NUMBER_KEYS:
            return self.tenant_number(value)
        if isinstance(value, dict):
            return {key: self.renumber(item, key) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.renumber(item) for item in value]
        if isinstance(value, str):
            return _NUMBER_IN_TEXT.sub(
                lambda text: str(self.tenant_number(int(text[0])) or "?"), value
            )
        return value


def unknown_certificate() -> ApiProblem:
    """Return the problem for a certificate that does not exist or belongs to another tenant."""
    words = "GET /api/v1/certificates lists your certificates."
    return ApiProblem(404, "unknown-certificate", "no such certificate", words)


@dataclass(frozen=True)
class Principal(Token):
    """The authenticated caller of a desk: an access token, and the browser session if any.

    Attributes
    ----------
    desk : Context
        The desk of the call.
    session : Session or None
        The browser session, if any.
    """

    desk: Context = field(repr=False, compare=False)
    session: Session | None = None

    @property
    def ledger(self) -> Ledger:
        """The ledger of the desk."""
        return self.desk.ledger

    @cached_property
    def numbers(self) -> CertificateNumbers:
        """The certificate numbers that the caller sees."""
        return CertificateNumbers(self.ledger, self.tenant)

    def may(self, *scopes: str) -> bool:
        """Return whether the token has one of these scopes."""
        return not set(scopes).isdisjoint(self.scopes)

    def require(self, *scopes: str, title: str = "not permitted for this token") -> None:
        """Raise an `ApiProblem` with status 403 if the token has none of these scopes.

        Any token is accepted if no scopes are given.
        """
        if scopes and not self.may(*scopes):
            words = (
                f"The call needs the scope {' or '.join(scopes)}; your token has the role "
                f"{self.role}."
            )
            raise ApiProblem(403, "not-allowed", title, words)

    @property
    def sees_all_requests(self) -> bool:
        """Whether the caller sees requests of other tokens, and which ids a model contains.

        All other callers get the same response for an id that is in the model, erased or unknown.
        """
        return self.role != "requester" and self.may(*KNOWING)

    def tenant_for(self, requested: str | None) -> str:
        """Return the tenant in which to look up a single object, "default" if none is given.

        Raise an `ApiProblem` with status 404 if the caller belongs to another tenant.
        """
        return self.tenant_filter(requested) or "default"

    def tenant_filter(self, requested: str | None) -> str | None:
        """Return the tenant whose objects the caller may list; None for all tenants.

        Raise an `ApiProblem` with status 404 if the caller belongs to another tenant.
        """
        if requested is None:
            return self.tenant
        with suppress(ValueError):
            if self.tenant in (None, requested):
                return require_name("tenant", requested)
        raise ApiProblem(404, "not-there", "not found", "There is no object with that name.")


@dataclass(frozen=True)
class Gate:
    """The access check of a route: the token must have one of the scopes.

    Any token is accepted if there are no scopes. `is_public` marks a route that needs no token.
    `is_long` marks a route that may be slow; only a few of these run at the same time.
    """

    scopes: tuple[str, ...]
    is_public: bool = False
    is_long: bool = False

    def __call__(
        self,
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)] = None,
    ) -> Principal:
        """Return the authenticated caller; raise an `ApiProblem` if access is refused."""
        desk = context(request)
        caller = _identify_caller(desk, request, credentials)
        self.admit(request, caller)
        _require_known_query(request)
        if request.method not in ("GET", "HEAD"):
            # With files newer than the database, changes would be lost.
            desk.ledger.require_current_database()
        self.enter(request, caller)
        return caller

    def admit(self, request: Request, caller: Principal, **words: str) -> None:
        """Count the call for the rate limit, and check the scopes of the token.

        Raise an `ApiProblem` with status 429 at the rate limit, and 403 if no scope matches.
        """
        request.scope["letheon_token"] = caller.id
        caller.desk.limiter.count("token", caller.id)
        caller.require(*self.scopes, **words)

    def enter(self, request: Request, caller: Principal) -> None:
        """Count a call of a long route until it ends; raise an `ApiProblem` at the limit."""
        if self.is_long:
            places = ExitStack()
            places.enter_context(caller.desk.limiter.long_calls.acquire(caller.id))
            request.scope["letheon_release"] = places.close


@dataclass(frozen=True)
class _PublicGate(Gate):
    """The access check of a public route, which accepts every call."""

    async def __call__(self, request: Request) -> None:  # type: ignore[override]
        """Accept every call.

        The method is asynchronous and needs no thread, so a busy server can report its health.
        """


def allows(*scopes: str, is_long: bool = False) -> Gate:
    """Return a dependency that requires one of these scopes, or any token without scopes."""
    return Gate(scopes, is_long=is_long)


def public() -> Gate:
    """Return a dependency that marks a route as public."""
    return _PublicGate((), is_public=True)


def find_visitor(request: Request) -> Principal | None:
    """Return the caller of a browser session; None if there is no valid session and token."""
    desk, cookie = context(request), request.cookies.get(COOKIE)
    session = None if cookie is None else desk.sessions.find(cookie)
    token = None if session is None else desk.tokens.find_valid(session.token_id)
    return None if token is None else Principal(**vars(token), desk=desk, session=session)


def client_address(request: Request) -> str:
    """Return the address group of a client, by which calls are counted; see `address_group`."""
    return "unknown" if request.client is None else address_group(request.client.host)


def require_csrf(request: Request, session: Session, sent: str | None) -> None:
    """Raise an `ApiProblem` with status 403 if a page of this session did not send the call."""
    if not is_same_origin(request) or not session.accepts_csrf(sent):
        words = "Reload the page and submit its form again; programs use a bearer token."
        raise ApiProblem(403, "csrf", "the form was not sent by this session", words)


def require_unbound(caller: Principal) -> None:
    """Raise an `ApiProblem` with status 403 if the token is bound to a tenant."""
    if caller.tenant is not None:
        words = "Use a token that is not bound to a tenant."
        raise ApiProblem(403, "needs-unbound-token", "this call concerns all tenants", words)


def is_same_origin(request: Request) -> bool:
    """Return whether, according to its headers, a call may come from a page of this desk."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return True
    public_url = context(request).settings.public_url
    ours = {f"{scheme}://{request.headers.get('host', '')}" for scheme in ("http", "https")}
    return origin in ours or (public_url is not None and origin == public_url.rstrip("/"))


def _identify_caller(
    desk: Context, request: Request, credentials: HTTPAuthorizationCredentials | None
) -> Principal:
    if "authorization" in request.headers:
        token = desk.tokens.find_by_text("" if credentials is None else credentials.credentials)
        if token is None:
            # Count invalid tokens only, so that other users with the same address are not limited.
            desk.limiter.count("failed", client_address(request))
            raise _token_problem(
                "the token is not valid", "The token is unknown, expired or revoked."
            )
        return Principal(**vars(token), desk=desk)
    caller = find_visitor(request)
    if caller is None or caller.session is None:
        raise _token_problem("no token", "Send the header Authorization: Bearer TOKEN.")
    if request.method not in SAFE:
        require_csrf(request, caller.session, request.headers.get("x-csrf-token"))
    return caller


def _token_problem(title: str, detail: str) -> ApiProblem:
    return ApiProblem(401, "no-token", title, detail, headers={"WWW-Authenticate": "Bearer"})


def find_gates(route: Any) -> list[Gate]:
    """Return the access checks (`Gate`) that a route declares as dependencies."""
    return [
        dependant.call
        for dependant in _iterate_dependants(route)
        if isinstance(dependant.call, Gate)
    ]


def _iterate_dependants(route: Any) -> Iterator[Any]:
    """Yield the FastAPI dependants of a route: its own, and those of all its dependencies."""
    waiting: list[Any] = [route.dependant]
    while waiting:
        dependant = waiting.pop()
        yield dependant
        waiting += dependant.dependencies


def _require_known_query(request: Request) -> None:
    """Reject unknown query parameters, so that a mistyped filter does not return everything."""
    if not request.query_params:
        return
    params = [
        param
        for dependant in _iterate_dependants(request.scope["route"])
        for param in dependant.query_params
    ]
    names: set[str] = set()
    for param in params:
        kind = param.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):  # a model of several parameters
            names |= {field.alias or name for name, field in kind.model_fields.items()}
        else:
            names.add(param.alias)
    if not request.query_params.keys() <= names:
        known = ", ".join(sorted(names)) or "none"
        raise ApiProblem(
            422, "query", "unknown query parameter", f"Parameters of this call: {known}."
        )
