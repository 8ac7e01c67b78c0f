"""API tokens and browser sessions: random texts kept as SHA-256, with role, scopes and an end."""

import contextlib
import hashlib
import hmac
import json
import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Connection,
    Row,
    Select,
    Table,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)

from letheon.exceptions import LedgerUnwritableError
from letheon.ledger.db.events import TOLERATED_SECONDS
from letheon.ledger.schemas import record_from, require_name
from letheon.ledger.tables import actions, sessions, tokens

if TYPE_CHECKING:
    from letheon.ledger import Ledger


PREFIX = "lth_"
_DAY = 86_400
_LONGEST_DAYS = 3650
# A visit is noted at most this often: a page must not cost a synced write.
_NOTE_SECONDS = 60

SCOPES = {
    "requests:read": "see requests, their states and timelines",
    "requests:file": "file requests",
    "requests:vouch": "file requests of people whose identity was verified elsewhere",
    "requests:handle": "verify, hold, extend, retry, cancel, answer requests",
    "requests:approve": "approve or reject requests",
    "models:read": "see models, versions and what they guarantee",
    "models:write": "register models",
    "batches:read": "see batches, plans and their jobs",
    "batches:run": "apply a batch now, retrain, compare methods",
    "certificates:read": "see and download certificates, proofs and attestations",
    "bundles:read": "download the auditor's bundle, which holds personal data",
    "audits:read": "see audits",
    "audits:run": "start audits",
    "monitor:read": "see measures, proxies and budgets over time",
    "webhooks:manage": "make and remove webhooks",
    "tokens:manage": "make and revoke tokens",
    "metrics:read": "scrape the metrics of the server",
}
"""Every permission, with what it permits."""

_READ = {"requests:read", "models:read", "batches:read", "certificates:read", "monitor:read"}
_OPERATE = {"requests:file", "requests:vouch", "requests:handle", "models:write", "batches:run"}

ROLES: dict[str, frozenset[str]] = {
    "requester": frozenset({"requests:read", "requests:file", "models:read"}),
    "operator": frozenset(_READ | _OPERATE | {"audits:read"}),
    "approver": frozenset(_READ | {"requests:approve"}),
    "auditor": frozenset(_READ | {"bundles:read", "audits:read", "audits:run"}),
    "admin": frozenset(SCOPES),
}
"""What each role may do at most. A requester sees only the requests that it filed."""


def require_scopes(role: str, scopes: Iterable[str] | None) -> frozenset[str]:
    """Return the scopes of a token: those of its role, or fewer.

    Raises
    ------
    ValueError
        The role or a scope is unknown, or a scope is not the role's.
    """
    if role not in ROLES:
        raise ValueError(f"there is no role {role!r}; expected one of {', '.join(ROLES)}")
    if scopes is None:
        return ROLES[role]
    wanted = frozenset(scopes)
    beyond = sorted(wanted - ROLES[role])
    if beyond:
        raise ValueError(
            f"role {role} does not have {', '.join(beyond)}; expected some of "
            f"{', '.join(sorted(ROLES[role]))}"
        )
    if not wanted:
        raise ValueError("a token without a scope can do nothing; name one or leave scopes out")
    return wanted


@dataclass(frozen=True)
class Token:
    """A token, without its text.

    Attributes
    ----------
    id : str
        Random, 16 hexadecimal digits; events name it as the one who acted.
    name, role : str
        What it is called, and what it is for.
    scopes : tuple of str
        What it may do, in alphabetical order.
    tenant : str or None
        Whose things it sees; None for all tenants.
    created_at, expires_at : datetime
        When it was made, and when it ends.
    revoked_at : datetime or None
        When it was revoked.
    created_by : str or None
        The token that made it.
    is_valid : bool
        Whether it opened anything when it was read.
    """

    id: str
    name: str
    role: str
    scopes: tuple[str, ...]
    tenant: str | None
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    created_by: str | None
    is_valid: bool


class ServiceTable:
    """What the tables of a service share: how they are read, and which clock counts.

    Parameters
    ----------
    ledger : Ledger
        Whose service it is.
    clock : callable, optional
        Seconds since 1970; the ledger's by default.
    """

    def __init__(self, ledger: "Ledger", clock: Callable[[], int] | None = None) -> None:
        self._core = ledger._core
        self._database = ledger._core.database
        self._clock = clock or ledger._core.clock

    def _count_rows(self, *wanted: Any) -> int:
        return self._database.read_value(select(func.count()).where(*wanted)) or 0

    def _read_newest(self, query: Select[Any], table: Table, after: str | None, limit: int) -> Any:
        """Return rows, newest first; those after the row of an id."""
        if after is not None:
            mark = self._database.read_first(query.where(table.c.id == after))
            if mark is None:
                raise ValueError("after names nothing here; use what the last part gave as next")
            place = tuple_(table.c.created_at, table.c.id)
            query = query.where(place < (mark.created_at, mark.id))
        order = table.c.created_at.desc(), table.c.id.desc()
        return self._database.read(query.order_by(*order).limit(limit))


class Tokens(ServiceTable):
    """The tokens of a service.

    Parameters
    ----------
    ledger : Ledger
        Whose service it is.
    clock : callable, optional
        Seconds since 1970; the ledger's by default.
    """

    def create(
        self,
        name: str,
        role: str,
        *,
        scopes: Iterable[str] | None = None,
        tenant: str | None = None,
        days: int = 90,
        by: Token | None = None,
    ) -> tuple[str, Token]:
        """Make a token; return its text, which is not kept, and the record.

        One that is made with another token ends with it at the latest.

        Raises
        ------
        ValueError
            The name, role, scopes, tenant or days cannot be.
        """
        require_name("name", name)
        if tenant is not None:
            require_name("tenant", tenant)
        if not 1 <= days <= _LONGEST_DAYS:
            raise ValueError(f"days={days} must be from 1 to {_LONGEST_DAYS}")
        text, token_id = PREFIX + secrets.token_urlsafe(32), secrets.token_hex(8)
        now = self._clock()
        end = now + days * _DAY
        values = {
            "id": token_id,
            "hash": _hash_text(text),
            "name": name,
            "role": role,
            "scopes": json.dumps(sorted(require_scopes(role, scopes))),
            "tenant": tenant,
            "created_at": now,
            "expires_at": end if by is None else min(end, int(by.expires_at.timestamp())),
            "created_by": None if by is None else by.id,
        }
        with self._database.transaction() as conn:
            conn.execute(insert(tokens).values(values))
            record_action(conn, now, by.id if by else token_id, "token.made", token_id)
            return text, self._to_token(conn.execute(select(tokens).where(_has_id(token_id))).one())

    def find_by_text(self, text: str) -> Token | None:
        """Return the token of a text if it is valid now."""
        if not text.startswith(PREFIX) or len(text) > 100:
            return None
        return self._find_where(tokens.c.hash == _hash_text(text), valid=True)

    def find_valid(self, token_id: str) -> Token | None:
        """Return a token if it is valid now."""
        return self._find_where(_has_id(token_id), valid=True)

    def find_by_id(self, token_id: str, *, tenant: str | None = None) -> Token | None:
        """Return a token, valid or not; of a tenant only if one is named."""
        return self._find_where(_has_id(token_id) & (tenant is None or tokens.c.tenant == tenant))

    def _find_where(self, wanted: Any, *, valid: bool = False) -> Token | None:
        row = self._database.read_first(select(tokens).where(wanted))
        token = None if row is None else self._to_token(row)
        return token if token is None or token.is_valid or not valid else None

    def _to_token(self, row: Row[Any]) -> Token:
        is_valid = row.revoked_at is None and self._clock() < row.expires_at
        scopes = tuple(json.loads(row.scopes))
        return record_from(Token, row._mapping, scopes=scopes, is_valid=is_valid)

    def list_newest(
        self, *, tenant: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[Token]:
        """Return tokens, of a tenant only if one is named, newest first."""
        query = select(tokens)
        if tenant is not None:
            query = query.where(tokens.c.tenant == tenant)
        return [self._to_token(row) for row in self._read_newest(query, tokens, after, limit)]

    def revoke(self, token_id: str, *, descendants: bool = False, by: str | None = None) -> int:
        """Revoke a token; its sessions end with it. Return how many were revoked.

        Parameters
        ----------
        token_id : str
            The token.
        descendants : bool, default=False
            Whether those that were made with it, with these, and so on, are revoked too: what is
            to be done when it was stolen.
        by : str, optional
            The token that does it.
        """
        now = self._clock()
        with self._database.transaction() as conn:
            family = _with_descendants(conn, token_id) if descendants else [token_id]
            alive = tokens.c.id.in_(family) & tokens.c.revoked_at.is_(None)
            revoked = list(conn.scalars(select(tokens.c.id).where(alive)))
            conn.execute(update(tokens).where(tokens.c.id.in_(revoked)).values(revoked_at=now))
            for one in revoked:
                record_action(conn, now, by, "token.revoked", one)
        return len(revoked)

    def find_family(self, token_id: str) -> frozenset[str]:
        """Return a token, those that made it, and those that it made, over any number of steps.

        A token that makes tokens can be used through these too: they count as one person.
        """
        columns = select(tokens.c.id, tokens.c.created_by)
        start = columns.where(_has_id(token_id)).cte(recursive=True)
        above = start.union(columns.where(tokens.c.id == start.c.created_by))
        with self._database.reading() as conn:
            makers = conn.scalars(select(above.c.id)).all()
            return frozenset({token_id, *makers, *_with_descendants(conn, token_id)})

    def find_names(self, ids: Iterable[str]) -> dict[str, str]:
        """Return what tokens are called, by their ids."""
        query = select(tokens.c.id, tokens.c.name).where(tokens.c.id.in_(list(ids)))
        return {row.id: row.name for row in self._database.read(query)}

    def record_action(self, token_id: str, action: str, about: str | None = None) -> None:
        """Note which token did what, where nothing else is recorded with it."""
        with self._database.transaction() as conn:
            record_action(conn, self._clock(), token_id, action, about)

    def has_admin(self) -> bool:
        """Whether a valid admin token exists."""
        alive = tokens.c.revoked_at.is_(None) & (tokens.c.expires_at > self._clock())
        return self._count_rows(alive, tokens.c.role == "admin") > 0

    def has_any(self) -> bool:
        """Whether any token was ever made."""
        return self._count_rows(tokens.c.id.is_not(None)) > 0


def record_action(conn: Any, at: int, token_id: str | None, action: str, about: str | None) -> None:
    """Note which token did what, in the transaction that does it."""
    conn.execute(insert(actions).values(at=at, token_id=token_id or "", action=action, about=about))


def _has_id(token_id: str) -> Any:
    return tokens.c.id == token_id


def _with_descendants(conn: Connection, token_id: str) -> list[str]:
    """Return a token and all that were made with it, directly or not."""
    start = select(tokens.c.id).where(_has_id(token_id)).cte(recursive=True)
    family = start.union(select(tokens.c.id).where(tokens.c.created_by == start.c.id))
    return list(conn.scalars(select(family.c.id)))


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Session:
    """A browser that is logged in.

    Attributes
    ----------
    id : str
        SHA-256 of the cookie.
    token_id : str
        With which token it logged in.
    csrf : str
        What every form must send.
    expires_at, last_seen_at : int
        Seconds since 1970.
    """

    id: str
    token_id: str
    csrf: str
    expires_at: int
    last_seen_at: int

    def accepts_csrf(self, csrf: str | None) -> bool:
        """Whether a form was made by this session's pages."""
        return csrf is not None and hmac.compare_digest(csrf.encode(), self.csrf.encode())


class Sessions(ServiceTable):
    """The browser sessions of a service: a random cookie bound to a token, with a CSRF token.

    Parameters
    ----------
    ledger : Ledger
        Whose service it is; its clock is used.
    session_seconds, idle_seconds : int
        How long a session lasts, in all and without a visit.
    """

    def __init__(self, ledger: "Ledger", session_seconds: int, idle_seconds: int) -> None:
        super().__init__(ledger)
        self._longest = session_seconds
        self._idle = idle_seconds
        self._seen: dict[str, int] = {}
        self._unsaved: dict[str, Session] = {}

    def start(self, token_id: str) -> tuple[str, Session]:
        """Log a browser in; return the cookie, which is not kept, and the session."""
        cookie, csrf, now = secrets.token_urlsafe(32), secrets.token_urlsafe(32), self._clock()
        session = Session(_hash_text(cookie), token_id, csrf, now + self._longest, now)
        idle = now - self._idle
        is_over = or_(sessions.c.expires_at <= now, sessions.c.last_seen_at < idle)
        self._seen = {known: at for known, at in list(self._seen.items()) if at >= idle}
        try:
            with self._database.transaction() as conn:
                conn.execute(delete(sessions).where(is_over))
                conn.execute(insert(sessions).values(**vars(session), created_at=now))
                record_action(conn, now, token_id, "session.started", None)
        except LedgerUnwritableError:
            self._unsaved[session.id] = session  # pages can be read till the server stops
        return cookie, session

    def find(self, cookie: str) -> Session | None:
        """Return the session of a cookie if it lasts."""
        session_id = _hash_text(cookie)
        row: Any = self._database.read_first(select(sessions).where(sessions.c.id == session_id))
        row = row or self._unsaved.get(session_id)
        if row is None:
            return None
        now, seen = self._clock(), max(row.last_seen_at, self._seen.get(row.id, 0))
        # Begun by a clock that was ahead: it would last until that time has come.
        latest = now + self._longest + TOLERATED_SECONDS
        if now >= row.expires_at or now - seen > self._idle or row.expires_at > latest:
            return None
        if now - seen >= _NOTE_SECONDS:
            # Aside: a page that is only read must not wait for a writer.
            self._seen[row.id] = now
            threading.Thread(target=self._note_visit, args=(row.id, now), daemon=True).start()
        return Session(row.id, row.token_id, row.csrf, row.expires_at, seen)

    def end(self, session_id: str) -> None:
        """Log a browser out."""
        self._seen.pop(session_id, None)
        if self._unsaved.pop(session_id, None) is not None:
            return
        with self._database.transaction() as conn:
            conn.execute(delete(sessions).where(sessions.c.id == session_id))

    def _note_visit(self, session_id: str, now: int) -> None:
        # Memory knows it as well; a visit that is not noted costs a log-in after a restart.
        change = update(sessions).where(sessions.c.id == session_id).values(last_seen_at=now)
        with contextlib.suppress(Exception), self._database.transaction() as conn:
            conn.execute(change)
