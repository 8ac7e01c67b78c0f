"""Who is asking, and whether they may.

Every route names its scope with `allows` or says that it is `public`; `create_app` refuses one that
does neither. A bearer token is looked at first, then the cookie of a session. A session may change
things only with its CSRF token, because a browser sends cookies whoever made the form.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel

from letheon.ledger import Ledger
from letheon.ledger.db.tokens import Session, Sessions, Token, Tokens
from letheon.ledger.schemas import require_name
from letheon.service.errors import Problem
from letheon.service.guards import Limiter, network_of
from letheon.service.settings import ServiceSettings

__all__ = [
    "COOKIE",
    "PAGE_OF_ROLE",
    "Context",
    "Gate",
    "Principal",
    "address_of",
    "allows",
    "allows_any",
    "anybody",
    "context",
    "principal_of_session",
    "public",
    "require_csrf",
    "require_unbound",
]

# A token with none of these only files requests.
_KNOWING = frozenset({"requests:read", "requests:handle", "requests:approve"})
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
COOKIE = "letheon_session"
PAGE_OF_ROLE = {"requester": "/requests", "auditor": "/certificates"}
"""Where a log-in leads; for all others to the first page."""
_bearer = HTTPBearer(auto_error=False, description="A token of the desk.", scheme_name="token")


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

    @property
    def clock(self) -> Callable[[], int]:
        """The clock of the ledger: seconds since 1970."""
        return self.ledger.clock


def context(request: Request) -> Context:
    """Return the desk that a call is for."""
    desk: Context = request.app.state.context
    return desk


@dataclass(frozen=True)
class Principal:
    """Who is asking.

    Attributes
    ----------
    token_id, name, role : str
        The token.
    scopes : frozenset of str
        What it may do.
    tenant : str or None
        Whose things it sees; None for everybody's.
    desk : Context
        The desk that is asked.
    session : Session or None
        The browser that it came through.
    """

    token_id: str
    name: str
    role: str
    scopes: frozenset[str]
    tenant: str | None
    desk: Context = field(repr=False, compare=False)
    session: Session | None = None

    @property
    def ledger(self) -> Ledger:
        """The ledger of the desk."""
        return self.desk.ledger

    def may(self, scope: str) -> bool:
        """Whether it has a scope."""
        return scope in self.scopes

    def require(self, *scopes: str, title: str = "this token may not do that") -> None:
        """Refuse what needs one of some scopes; none are needed where none is named."""
        if scopes and self.scopes.isdisjoint(scopes):
            words = f"It needs the scope {' or '.join(scopes)}; its role is {self.role}."
            raise Problem(403, "not-allowed", title, words)

    @property
    def sees_all_requests(self) -> bool:
        """Whether it sees requests that others filed, and who is held and who was erased.

        Others get one answer for a person who is held, erased or unknown.
        """
        return self.role != "requester" and not self.scopes.isdisjoint(_KNOWING)

    def tenant_for(self, asked: str | None) -> str:
        """Return the tenant of one thing; another's things are as if they were not there."""
        if self.tenant is None:
            return "default" if asked is None else _name(asked)
        if asked is not None and asked != self.tenant:
            raise Problem(404, "not-there", "not there", "There is nothing of that name.")
        return self.tenant

    def tenant_filter(self, asked: str | None) -> str | None:
        """Return whose things a list shows; None for everybody's."""
        if self.tenant is None:
            return None if asked is None else _name(asked)
        return self.tenant_for(asked)


def _name(asked: str) -> str:
    try:
        return require_name("tenant", asked)
    except ValueError:
        raise Problem(404, "not-there", "not there", "There is nothing of that name.") from None


def _require_current_database(desk: Context, request: Request) -> None:
    """Refuse changes where files are newer than the database: they would be lost with it."""
    if request.method in ("GET", "HEAD") or request.url.path == "/logout":
        return
    desk.ledger.require_current_database()


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
        who = _known(desk, request, credentials)
        request.scope["letheon_token"] = who.token_id
        desk.limiter.count_call(who.token_id)
        who.require(*self.scopes)
        _require_known_query(request)
        _require_current_database(desk, request)
        self.enter(request, who)
        return who

    def enter(self, request: Request, who: Principal) -> None:
        """Take a place among the long calls if this is one; it is given back at the end."""
        if self.is_long:
            limiter = context(request).limiter
            request.scope["letheon_release"] = limiter.begin_long(who.token_id)


@dataclass(frozen=True)
class _Open(Gate):
    """A gate that stands open."""

    async def __call__(self, request: Request) -> None:  # type: ignore[override]
        """Let everybody in; without a thread, so that a full server can say that it is alive."""


def allows(scope: str, *, is_long: bool = False) -> Gate:
    """Return a dependency: who is asking, if they have this scope."""
    return Gate((scope,), is_long=is_long)


def allows_any(*scopes: str) -> Gate:
    """Return a dependency: who is asking, if they have one of these scopes."""
    return Gate(scopes)


def anybody() -> Gate:
    """Return a dependency: who is asking, whoever it is."""
    return Gate(())


def public() -> Gate:
    """Return a dependency that marks a route as open to everybody."""
    return _Open((), is_public=True)


def principal_of_session(desk: Context, session: Session) -> Principal | None:
    """Return who a session belongs to; None when its token is no longer valid."""
    token = desk.tokens.of_id(session.token_id)
    return None if token is None else _principal(desk, token, session)


def address_of(request: Request) -> str:
    """Return the address that a call comes from, for counting; of IPv6 the network of a house."""
    return "unknown" if request.client is None else network_of(request.client.host)


def require_csrf(request: Request, session: Session, sent: str | None) -> None:
    """Refuse a change that no page of this session has asked for."""
    if not _is_same_origin(request) or not session.accepts(sent):
        raise Problem(
            403,
            "csrf",
            "the form is not from this session",
            "Load the page again and send its form; programs use a bearer token.",
        )


def require_unbound(who: Principal) -> None:
    """Refuse what concerns the whole ledger to whoever sees one tenant only."""
    if who.tenant is not None:
        raise Problem(
            403,
            "needs-unbound-token",
            "this concerns all tenants",
            "Use a token that is not bound to a tenant.",
        )


def _is_same_origin(request: Request) -> bool:
    """Whether a browser says that our own page made the call; old ones say nothing."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return True
    public_url = context(request).settings.public_url
    ours = {f"{scheme}://{request.headers.get('host', '')}" for scheme in ("http", "https")}
    return origin in ours or (public_url is not None and origin == public_url.rstrip("/"))


def _known(
    desk: Context, request: Request, credentials: HTTPAuthorizationCredentials | None
) -> Principal:
    if "authorization" in request.headers:
        return _by_token(desk, request, credentials)
    cookie = request.cookies.get(COOKIE)
    session = None if cookie is None else desk.sessions.find(cookie)
    who = None if session is None else principal_of_session(desk, session)
    if session is None or who is None:
        raise _no_token("no token", "Send the header Authorization: Bearer TOKEN.")
    if request.method not in SAFE:
        require_csrf(request, session, request.headers.get("x-csrf-token"))
    return who


def _by_token(
    desk: Context, request: Request, credentials: HTTPAuthorizationCredentials | None
) -> Principal:
    text = "" if credentials is None else credentials.credentials
    token = desk.tokens.find(text)
    if token is None:
        # Only wrong ones are counted and slowed down: others behind one address must get in.
        desk.limiter.count("failed", address_of(request))
        raise _no_token("the token is not valid", "It is unknown, expired or revoked.")
    return _principal(desk, token, None)


def _principal(desk: Context, token: Token, session: Session | None) -> Principal:
    return Principal(
        token.id, token.name, token.role, frozenset(token.scopes), token.tenant, desk, session
    )


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


def _query_names(route: Any) -> set[str]:
    """Return the parameters that a route knows; a single model stands for its fields."""
    fields = [field for one in _dependants(route) for field in one.query_params]
    models = [one.field_info.annotation for one in fields if _is_model(one.field_info.annotation)]
    inner = [field.alias or name for one in models for name, field in one.model_fields.items()]
    return {field.alias for field in fields} | set(inner)


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _require_known_query(request: Request) -> None:
    """Refuse a filter that does not exist: whoever mistypes one must not be shown everything."""
    if not request.query_params:
        return
    names = _query_names(request.scope["route"])
    if not request.query_params.keys() <= names:
        known = ", ".join(sorted(names)) or "none"
        raise Problem(422, "query", "there is no such parameter", f"Known here: {known}.")
