"""API tokens and browser sessions: random secrets, stored as hashes, with a role and an expiry."""

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
# A visit is stored at most this often: a page view must not cost a synced write.
_NOTE_SECONDS = 60

SCOPES = {
    "requests:read": "see requests, their states and timelines",
    "requests:file": "file requests",
    "requests:vouch": "file requests for people whose identity was verified elsewhere",
    "requests:handle": "verify, hold, extend, retry, cancel and answer requests",
    "requests:approve": "approve or reject requests",
    "models:read": "see models, versions and guarantees",
    "models:write": "register models",
    "batches:read": "see batches, plans and their jobs",
    "batches:run": "apply a batch now, retrain, compare methods",
    "certificates:read": "see and download certificates, proofs and attestations",
    "bundles:read": "download the auditor's bundle, which contains personal data",
    "audits:read": "see audits",
    "audits:run": "start audits",
    "monitor:read": "see measures, proxies and budgets over time",
    "webhooks:manage": "create and remove webhooks",
    "tokens:manage": "create and revoke tokens",
    "metrics:read": "read the metrics of the server",
}
"""All permissions, with a description."""

_READ = {"requests:read", "models:read", "batches:read", "certificates:read", "monitor:read"}
_OPERATE = {"requests:file", "requests:vouch", "requests:handle", "models:write", "batches:run"}

ROLES: dict[str, frozenset[str]] = {
    "requester": frozenset({"requests:read", "requests:file", "models:read"}),
    "operator": frozenset(_READ | _OPERATE | {"audits:read"}),
    "approver": frozenset(_READ | {"requests:approve"}),
    "auditor": frozenset(_READ | {"bundles:read", "audits:read", "audits:run"}),
    "admin": frozenset(SCOPES),
}
"""Largest set of scopes of each role. A requester sees only its own requests."""

KNOWING = frozenset({"requests:read", "requests:handle", "requests:approve"})
"""Scopes that show which people a model contains, except to a requester."""

# They show how many people a model has, or how many requests wait.
_COUNTS = frozenset(
    {"batches:read", "batches:run", "certificates:read", "bundles:read", "audits:read"}
    | {"audits:run", "monitor:read", "webhooks:manage", "metrics:read"}
)


def require_scopes(role: str, scopes: Iterable[str] | None) -> frozenset[str]:
    """Return the scopes of a token: all scopes of its role, or the given subset.

    Raises
    ------
    ValueError
        The role is unknown, a scope does not belong to the role, or the token could file a request
        and learn from the counts whether the person is in a model.
    """
    if role not in ROLES:
        raise ValueError(f"unknown role {role!r}; expected one of: {', '.join(ROLES)}")
    if scopes is None:
        return ROLES[role]
    selected = frozenset(scopes)
    beyond = sorted(selected - ROLES[role])
    if beyond:
        raise ValueError(
            f"role {role!r} does not have the scopes {', '.join(beyond)}; expected one or more "
            f"of: {', '.join(sorted(ROLES[role]))}"
        )
    if not selected:
        raise ValueError(
            "scopes is empty; give at least one scope, or omit scopes for all scopes of the role"
        )
    counts = sorted(selected & _COUNTS)
    if "requests:file" in selected and counts and not selected & KNOWING:
        raise ValueError(
            f"with requests:file, the scopes {', '.join(counts)} reveal which people are in a "
            f"model; add one of {', '.join(sorted(KNOWING))}, or use two tokens"
        )
    return selected


@dataclass(frozen=True)
class Token:
    """API token, without its secret text.

    Attributes
    ----------
    id : str
        Random id of 16 hexadecimal digits; events store it as the acting user.
    name : str
        Name of the token.
    role : str
        Role of the token.
    scopes : tuple of str
        Permissions, in alphabetical order.
    tenant : str or None
        Tenant whose data the token can access; None for all tenants.
    created_at : datetime
        When the token was created.
    expires_at : datetime
        When the token expires.
    revoked_at : datetime or None
        When the token was revoked; None if it was not.
    created_by : str or None
        Id of the token with which it was created; None if there is none.
    is_valid : bool
        Whether the token was valid when this record was read.
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
    """Base class of the tables of a service, with database access and a clock.

    Parameters
    ----------
    ledger : Ledger
        Ledger of the service.
    clock : callable, optional
        Returns seconds since 1970. Default: the clock of the ledger.
    """

    def __init__(self, ledger: "Ledger", clock: Callable[[], int] | None = None) -> None:
        self._core = ledger._core
        self._database = ledger._core.database
        self._clock = clock or ledger._core.clock

    def _count_rows(self, *conditions: Any) -> int:
        return self._database.read_value(select(func.count()).where(*conditions)) or 0

    def _read_newest(self, query: Select[Any], table: Table, after: str | None, limit: int) -> Any:
        """Return at most `limit` rows, newest first, that follow the row with the id `after`."""
        if after is not None:
            mark = self._database.read_first(query.where(table.c.id == after))
            if mark is None:
                raise ValueError(
                    "after is not the id of an entry of this list; pass `next` of the previous "
                    "page unchanged"
                )
            place = tuple_(table.c.created_at, table.c.id)
            query = query.where(place < (mark.created_at, mark.id))
        order = table.c.created_at.desc(), table.c.id.desc()
        return self._database.read(query.order_by(*order).limit(limit))


class Tokens(ServiceTable):
    """The tokens of a service.

    Parameters
    ----------
    ledger : Ledger
        Ledger of the service.
    clock : callable, optional
        Returns seconds since 1970. Default: the clock of the ledger.

    Examples
    --------
    >>> import tempfile
    >>> from letheon.ledger import Ledger
    >>> from letheon.service import Tokens
    >>> with tempfile.TemporaryDirectory() as folder, Ledger.create(folder, name="demo") as ledger:
    ...     tokens = Tokens(ledger)
    ...     _ = tokens.create("worker", role="operator")
    ...     [token.role for token in tokens.list_newest()]
    ['operator']
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
        """Create a token; return its secret text, which is not stored, and its record.

        A token created with another token (`by`) expires no later than that token.

        Raises
        ------
        ValueError
            The name, role, scopes, tenant or days are invalid.
        """
        require_name("name", name)
        if tenant is not None:
            require_name("tenant", tenant)
        if not 1 <= days <= _LONGEST_DAYS:
            raise ValueError(f"days={days} is not valid; expected 1 to {_LONGEST_DAYS} days")
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
        """Return the token with this secret text; None if there is no valid one."""
        if not text.startswith(PREFIX) or len(text) > 100:
            return None
        return self._find_where(tokens.c.hash == _hash_text(text), valid=True)

    def find_valid(self, token_id: str) -> Token | None:
        """Return the token with this id; None if there is no valid one."""
        return self._find_where(_has_id(token_id), valid=True)

    def find_by_id(self, token_id: str, *, tenant: str | None = None) -> Token | None:
        """Return the token with this id, even if it is not valid; None if there is none.

        If a tenant is given, the token must belong to this tenant.
        """
        return self._find_where(_has_id(token_id) & (tenant is None or tokens.c.tenant == tenant))

    def _find_where(self, condition: Any, *, valid: bool = False) -> Token | None:
        row = self._database.read_first(select(tokens).where(condition))
        token = None if row is None else self._to_token(row)
        return token if token is None or token.is_valid or not valid else None

    def _to_token(self, row: Row[Any]) -> Token:
        is_valid = row.revoked_at is None and self._clock() < row.expires_at
        scopes = tuple(json.loads(row.scopes))
        return record_from(Token, row._mapping, scopes=scopes, is_valid=is_valid)

    def list_newest(
        self, *, tenant: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[Token]:
        """Return tokens, newest first, optionally only of a tenant."""
        query = select(tokens)
        if tenant is not None:
            query = query.where(tokens.c.tenant == tenant)
        return [self._to_token(row) for row in self._read_newest(query, tokens, after, limit)]

    def revoke(self, token_id: str, *, descendants: bool = False, by: str | None = None) -> int:
        """Revoke a token and end its sessions; return the number of revoked tokens.

        Parameters
        ----------
        token_id : str
            The token.
        descendants : bool, default=False
            Whether to revoke all tokens that were created with this token too, directly or
            indirectly. Use this option if the token was stolen.
        by : str, optional
            Id of the acting token.
        """
        now = self._clock()
        with self._database.transaction() as conn:
            family = _with_descendants(conn, token_id) if descendants else [token_id]
            alive = tokens.c.id.in_(family) & tokens.c.revoked_at.is_(None)
            revoked = list(conn.scalars(select(tokens.c.id).where(alive)))
            conn.execute(update(tokens).where(tokens.c.id.in_(revoked)).values(revoked_at=now))
            for revoked_id in revoked:
                record_action(conn, now, by, "token.revoked", revoked_id)
        return len(revoked)

    def find_family(self, token_id: str) -> frozenset[str]:
        """Return the ids of a token, of its creators, and of the tokens created with it.

        All of them count as one person, because the holder of a token can use the tokens created
        with it.
        """
        columns = select(tokens.c.id, tokens.c.created_by)
        start = columns.where(_has_id(token_id)).cte(recursive=True)
        above = start.union(columns.where(tokens.c.id == start.c.created_by))
        with self._database.reading() as conn:
            makers = conn.scalars(select(above.c.id)).all()
            return frozenset({token_id, *makers, *_with_descendants(conn, token_id)})

    def find_names(self, ids: Iterable[str]) -> dict[str, str]:
        """Return a dict from the ids of these tokens to their names."""
        query = select(tokens.c.id, tokens.c.name).where(tokens.c.id.in_(list(ids)))
        return {row.id: row.name for row in self._database.read(query)}

    def record_action(self, token_id: str, action: str, about: str | None = None) -> None:
        """Record an action that a token performed, in a separate transaction."""
        with self._database.transaction() as conn:
            record_action(conn, self._clock(), token_id, action, about)

    def has_admin(self) -> bool:
        """Return whether a valid admin token exists."""
        alive = tokens.c.revoked_at.is_(None) & (tokens.c.expires_at > self._clock())
        return self._count_rows(alive, tokens.c.role == "admin") > 0

    def has_any(self) -> bool:
        """Return whether any token was ever created."""
        return self._count_rows(tokens.c.id.is_not(None)) > 0


def record_action(conn: Any, at: int, token_id: str | None, action: str, about: str | None) -> None:
    """Record an action that a token performed, in the transaction of that action."""
    conn.execute(insert(actions).values(at=at, token_id=token_id or "", action=action, about=about))


def _has_id(token_id: str) -> Any:
    return tokens.c.id == token_id


def _with_descendants(conn: Connection, token_id: str) -> list[str]:
    """Return the ids of a token and of all tokens created with it, directly or indirectly."""
    start = select(tokens.c.id).where(_has_id(token_id)).cte(recursive=True)
    family = start.union(select(tokens.c.id).where(tokens.c.created_by == start.c.id))
    return list(conn.scalars(select(family.c.id)))


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Session:
    """Browser session, which belongs to a token.

    Attributes
    ----------
    id : str
        SHA-256 of the cookie.
    token_id : str
        Id of the token used to log in.
    csrf : str
        CSRF token that every form must send.
    expires_at, last_seen_at : int
        When the session expires, and when it was last used, in seconds since 1970.
    """

    id: str
    token_id: str
    csrf: str
    expires_at: int
    last_seen_at: int

    def accepts_csrf(self, csrf: str | None) -> bool:
        """Return whether a form has the CSRF token of this session."""
        return csrf is not None and hmac.compare_digest(csrf.encode(), self.csrf.encode())


class Sessions(ServiceTable):
    """The browser sessions of a service: a random cookie bound to a token, with a CSRF token.

    Parameters
    ----------
    ledger : Ledger
        Ledger of the service; its clock is used.
    session_seconds, idle_seconds : int
        Longest duration of a session in total, and longest time without a visit.
    """

    def __init__(self, ledger: "Ledger", session_seconds: int, idle_seconds: int) -> None:
        super().__init__(ledger)
        self._longest = session_seconds
        self._idle = idle_seconds
        self._seen: dict[str, int] = {}
        self._unsaved: dict[str, Session] = {}

    def start(self, token_id: str) -> tuple[str, Session]:
        """Start a session for a token; return the cookie, which is not stored, and the session."""
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
            self._unsaved[session.id] = (
                session  # kept in memory: pages stay readable until the server stops
            )
        return cookie, session

    def find(self, cookie: str) -> Session | None:
        """Return the session of a cookie; None if there is none or it has expired."""
        session_id = _hash_text(cookie)
        row: Any = self._database.read_first(select(sessions).where(sessions.c.id == session_id))
        row = row or self._unsaved.get(session_id)
        if row is None:
            return None
        now, seen = self._clock(), max(row.last_seen_at, self._seen.get(row.id, 0))
        # Started while the clock was ahead: it would last too long.
        latest = now + self._longest + TOLERATED_SECONDS
        if now >= row.expires_at or now - seen > self._idle or row.expires_at > latest:
            return None
        if now - seen >= _NOTE_SECONDS:
            # In the background: a page view must not wait for a writer.
            self._seen[row.id] = now
            threading.Thread(target=self._note_visit, args=(row.id, now), daemon=True).start()
        return Session(row.id, row.token_id, row.csrf, row.expires_at, seen)

    def end(self, session_id: str) -> None:
        """End a session, which logs the browser out."""
        self._seen.pop(session_id, None)
        if self._unsaved.pop(session_id, None) is not None:
            return
        with self._database.transaction() as conn:
            conn.execute(delete(sessions).where(sessions.c.id == session_id))

    def _note_visit(self, session_id: str, now: int) -> None:
        # The visit is also in memory; losing the write costs a login after a restart.
        change = update(sessions).where(sessions.c.id == session_id).values(last_seen_at=now)
        with contextlib.suppress(Exception), self._database.transaction() as conn:
            conn.execute(change)
