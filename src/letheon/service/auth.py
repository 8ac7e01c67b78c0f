"""Who is asking, whether they may, and which numbers of certificates they see.

Every route names its scope with `allows` or says that it is `public`; `create_app` refuses one that
does neither. A bearer token is looked at first, then the cookie of a session. A session may change
things only with its CSRF token, because a browser sends cookies whoever made the form.
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
from letheon.ledger.db.tokens import Session, Sessions, Token, Tokens
from letheon.ledger.schemas import require_name
from letheon.service.addresses import network_of
from letheon.service.errors import Problem
from letheon.service.settings import ServiceSettings

# A token with none of these only files requests.
_KNOWING = frozenset({"requests:read", "requests:handle", "requests:approve"})
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
COOKIE = "letheon_session"
PAGE_OF_ROLE = {"requester": "/requests", "auditor": "/certificates"}
"""Where a log-in leads; for all others to the first page."""
_bearer = HTTPBearer(auto_error=False, description="A token of the desk.", scheme_name="token")
_NUMBER_IN_TEXT = re.compile(r"(?<=\b[Cc]ertificate )[0-9]{1,15}\b")
_NUMBER_KEYS = ("sequence", "certificate")


@dataclass(frozen=True)
class Places:
    """Lets so much be done at a time.

    Attributes
    ----------
    each, most : int
        How much of one key, and in all.
    status, code, title, words, retry : int or str
        The problem beyond that, and after how many seconds to try again.
    """

    each: int
    most: int
    status: int
    code: str
    title: str
    words: str
    retry: str
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _taken: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def take(self, key: str) -> Iterator[None]:
        """Take a place for a block, or raise the problem."""
        with self._lock:
            if self._taken[key] >= self.each or self._taken.total() >= self.most:
                raise self.problem()
            self._taken[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken[key] -= 1
                if not self._taken[key]:
                    del self._taken[key]

    def problem(self) -> Problem:
        """Return the problem of a caller for whom there is no place."""
        headers = {"Retry-After": self.retry}
        return Problem(self.status, self.code, self.title, self.words, headers=headers)


class Limiter:
    """Counts calls by token and by address; long ones, bundles and models at a time.

    Parameters
    ----------
    settings : ServiceSettings
        The rates.
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
        # They hold a thread of the server each; it has 40, and short ones must always find one.
        words = "At most 4 of one token. Wait for the answers, then go on."
        title = "too many long calls at a time"
        self.long_calls = Places(4, 16, 429, "too-many-long-calls", title, words, "1")
        words = "One at a time for each token, 2 in all; ask again later."
        title = "bundles are being sent already"
        self.bundles = Places(1, 2, 429, "too-many-bundles", title, words, "30")
        words, title = "Try again when it is done.", "another model is being registered"
        self.models = Places(1, 4, 503, "busy", title, words, "5")  # each takes memory

    def count(self, what: str, key: str) -> None:
        """Count a call of a token, or from an address; or raise the problem 429.

        From an address log-ins, wrong tokens and checks of receipts are counted.
        """
        limiter, rate = self._limits[what]
        if not limiter.hit(rate, what, key):
            headers = {"Retry-After": str(min(rate.get_expiry(), 60))}
            words = f"At most {rate}. Wait and try again."
            raise Problem(429, "too-many", "too many calls", words, headers=headers)


@dataclass(frozen=True)
class Context:
    """The desk of one ledger.

    Attributes
    ----------
    ledger : Ledger
        What it is about.
    settings : ServiceSettings
        What its operator decided.
    tokens, sessions, limiter
        Who may come in, and how often.
    templates : Jinja2Templates
        Of the pages.
    is_secure : bool
        Whether browsers reach it by HTTPS, so that cookies may insist on it.
    is_demo : bool
        Whether it is the filled example.
    has_worker : callable
        Whether a worker runs beside the server; None where none should.
    stopping : Event
        Set when the server was asked to stop; what it computes is ended then.
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
    """Return the desk that a call is for."""
    desk: Context = request.app.state.context
    return desk


class Numbers:
    """How one tenant numbers its certificates; without a tenant, as the ledger does.

    The ledger counts all of its certificates together, so its numbers would tell a tenant how much
    the others erase. The signed files have these numbers inside: the chain is checked by them.

    Parameters
    ----------
    ledger : Ledger
        Where they are.
    tenant : str or None
        Whose certificates these are.
    """

    def __init__(self, ledger: Ledger, tenant: str | None) -> None:
        self._ledger = ledger
        self.tenant = tenant

    @cached_property
    def _sequences(self) -> tuple[int, ...]:
        return self._ledger.certificates.sequences(tenant=str(self.tenant))

    def shown(self, sequence: int | None) -> int | None:
        """Return the number that stands for a certificate of the ledger; None for another's."""
        if sequence is None or self.tenant is None:
            return sequence
        place = bisect_left(self._sequences, sequence)
        is_own = self._sequences[place : place + 1] == (sequence,)
        return place + 1 if is_own else None

    def sequence(self, number: int) -> int:
        """Return the ledger's number of a certificate.

        Raises
        ------
        Problem
            404: the tenant has no certificate of that number.
        """
        if self.tenant is None:
            return number
        if not 1 <= number <= len(self._sequences):
            raise unknown_certificate()
        return self._sequences[number - 1]

    def in_json(self, value: Any, name: str = "") -> Any:
        """Return JSON, or a text, with the numbers of certificates that are shown."""
        if self.tenant is None:
            return value
        if isinstance(value, int) and name in _NUMBER_KEYS:
            return self.shown(value)
        if isinstance(value, dict):
            return {key: self.in_json(one, key) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.in_json(one) for one in value]
        if isinstance(value, str):
            return _NUMBER_IN_TEXT.sub(lambda text: str(self.shown(int(text[0])) or "?"), value)
        return value


def unknown_certificate() -> Problem:
    """Return the answer for a certificate that is another tenant's, or not there."""
    words = "GET /api/v1/certificates lists those that you see."
    return Problem(404, "unknown-certificate", "no such certificate", words)


@dataclass(frozen=True)
class Principal(Token):
    """Who is asking: a token, at a desk.

    Attributes
    ----------
    desk : Context
        The desk that is asked.
    session : Session or None
        The browser that it came through.
    """

    desk: Context = field(repr=False, compare=False)
    session: Session | None = None

    @property
    def ledger(self) -> Ledger:
        """The ledger of the desk."""
        return self.desk.ledger

    @cached_property
    def numbers(self) -> Numbers:
        """The numbers of certificates that it sees."""
        return Numbers(self.ledger, self.tenant)

    def may(self, *scopes: str) -> bool:
        """Whether it has one of some scopes."""
        return not set(scopes).isdisjoint(self.scopes)

    def require(self, *scopes: str, title: str = "this token may not do that") -> None:
        """Refuse what needs one of some scopes; none are needed where none is named."""
        if scopes and not self.may(*scopes):
            words = f"It needs the scope {' or '.join(scopes)}; its role is {self.role}."
            raise Problem(403, "not-allowed", title, words)

    @property
    def sees_all_requests(self) -> bool:
        """Whether it sees requests that others filed, and who is held and who was erased.

        Others get one answer for a person who is held, erased or unknown.
        """
        return self.role != "requester" and self.may(*_KNOWING)

    def tenant_for(self, asked: str | None) -> str:
        """Return the tenant of one thing; another's things are as if they were not there."""
        return self.tenant_filter(asked) or "default"

    def tenant_filter(self, asked: str | None) -> str | None:
        """Return whose things a list shows; None for everybody's."""
        if asked is None:
            return self.tenant
        with suppress(ValueError):
            if self.tenant in (None, asked):
                return require_name("tenant", asked)
        raise Problem(404, "not-there", "not there", "There is nothing of that name.")


@dataclass(frozen=True)
class Gate:
    """What a route demands: one of some scopes; none for anybody with a token.

    `is_public` marks a route that demands nothing, `is_long` one that may take its time: few of
    these are served at once.
    """

    scopes: tuple[str, ...]
    is_public: bool = False
    is_long: bool = False

    def __call__(
        self,
        request: Request,
        credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)] = None,
    ) -> Principal:
        """Return who is asking, or refuse."""
        desk = context(request)
        who = _identify(desk, request, credentials)
        self.admit(request, who)
        _require_known_query(request)
        if request.method not in ("GET", "HEAD"):
            # Changes are refused where files are newer than the database: they would be lost.
            desk.ledger.require_current_database()
        self.enter(request, who)
        return who

    def admit(self, request: Request, who: Principal, **words: str) -> None:
        """Count the call of a token, and refuse it if the token has none of the scopes."""
        request.scope["letheon_token"] = who.id
        who.desk.limiter.count("token", who.id)
        who.require(*self.scopes, **words)

    def enter(self, request: Request, who: Principal) -> None:
        """Take a place among the long calls if this is one; it is given back at the end."""
        if self.is_long:
            held = ExitStack()
            held.enter_context(who.desk.limiter.long_calls.take(who.id))
            request.scope["letheon_release"] = held.close


@dataclass(frozen=True)
class _Open(Gate):
    """A gate that stands open."""

    async def __call__(self, request: Request) -> None:  # type: ignore[override]
        """Let everybody in; without a thread, so that a full server can say that it is alive."""


def allows(*scopes: str, is_long: bool = False) -> Gate:
    """Return a dependency: who is asking, if they have one of these scopes; none for anybody."""
    return Gate(scopes, is_long=is_long)


def public() -> Gate:
    """Return a dependency that marks a route as open to everybody."""
    return _Open((), is_public=True)


def find_visitor(request: Request) -> Principal | None:
    """Return whose session a browser shows; None when it, or its token, is no longer valid."""
    desk, cookie = context(request), request.cookies.get(COOKIE)
    session = None if cookie is None else desk.sessions.find(cookie)
    token = None if session is None else desk.tokens.find_valid(session.token_id)
    return None if token is None else Principal(**vars(token), desk=desk, session=session)


def address_of(request: Request) -> str:
    """Return the address that a call comes from, for counting; of IPv6 the network of a house."""
    return "unknown" if request.client is None else network_of(request.client.host)


def require_csrf(request: Request, session: Session, sent: str | None) -> None:
    """Refuse a change that no page of this session has asked for."""
    if not is_same_origin(request) or not session.accepts_csrf(sent):
        words = "Load the page again and send its form; programs use a bearer token."
        raise Problem(403, "csrf", "the form is not from this session", words)


def require_unbound(who: Principal) -> None:
    """Refuse what concerns the whole ledger to whoever sees one tenant only."""
    if who.tenant is not None:
        words = "Use a token that is not bound to a tenant."
        raise Problem(403, "needs-unbound-token", "this concerns all tenants", words)


def is_same_origin(request: Request) -> bool:
    """Whether a browser says that our own page made the call; old ones say nothing."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return True
    public_url = context(request).settings.public_url
    ours = {f"{scheme}://{request.headers.get('host', '')}" for scheme in ("http", "https")}
    return origin in ours or (public_url is not None and origin == public_url.rstrip("/"))


def _identify(
    desk: Context, request: Request, credentials: HTTPAuthorizationCredentials | None
) -> Principal:
    if "authorization" in request.headers:
        token = desk.tokens.find_by_text("" if credentials is None else credentials.credentials)
        if token is None:
            # Only wrong ones are counted and slowed down: others behind one address must get in.
            desk.limiter.count("failed", address_of(request))
            raise _no_token("the token is not valid", "It is unknown, expired or revoked.")
        return Principal(**vars(token), desk=desk)
    who = find_visitor(request)
    if who is None or who.session is None:
        raise _no_token("no token", "Send the header Authorization: Bearer TOKEN.")
    if request.method not in SAFE:
        require_csrf(request, who.session, request.headers.get("x-csrf-token"))
    return who


def _no_token(title: str, detail: str) -> Problem:
    return Problem(401, "no-token", title, detail, headers={"WWW-Authenticate": "Bearer"})


def gates_of(route: Any) -> list[Gate]:
    """Return the gates among the dependencies of a route."""
    return [one.call for one in _dependants(route) if isinstance(one.call, Gate)]


def _dependants(route: Any) -> Iterator[Any]:
    """Yield what a route depends on, itself included."""
    waiting: list[Any] = [route.dependant]
    while waiting:
        dependant = waiting.pop()
        yield dependant
        waiting += dependant.dependencies


def _require_known_query(request: Request) -> None:
    """Refuse a filter that does not exist: whoever mistypes one must not be shown everything."""
    if not request.query_params:
        return
    params = [one for each in _dependants(request.scope["route"]) for one in each.query_params]
    names: set[str] = set()
    for one in params:
        kind = one.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):  # it stands for its fields
            names |= {field.alias or name for name, field in kind.model_fields.items()}
        else:
            names.add(one.alias)
    if not request.query_params.keys() <= names:
        known = ", ".join(sorted(names)) or "none"
        raise Problem(422, "query", "there is no such parameter", f"Known here: {known}.")
