"""API tokens: 256 random bits, kept as SHA-256, with a role, scopes, perhaps a tenant, an end."""

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, func, insert, select, update

from letheon.ledger import Ledger
from letheon.ledger.schemas import require_name
from letheon.ledger.tables import actions, tokens
from letheon.service._roles import narrowed

__all__ = ["PREFIX", "Token", "Tokens", "note_action"]

PREFIX = "lth_"
_DAY = 86_400
_LONGEST_DAYS = 3650


@dataclass(frozen=True)
class Token:
    """A token as the desk knows it; the text itself is not kept.

    Attributes
    ----------
    id : str
        Random, 16 hexadecimal digits; events name it as the one who acted.
    name, role : str
        What it is called, and what it is for.
    scopes : frozenset of str
        What it may do.
    tenant : str or None
        Whose things it sees; None for everybody's.
    created_at, expires_at : int
        Seconds since 1970.
    revoked_at : int or None
        When it was taken back.
    created_by : str or None
        The token that made it.
    """

    id: str
    name: str
    role: str
    scopes: frozenset[str]
    tenant: str | None
    created_at: int
    expires_at: int
    revoked_at: int | None
    created_by: str | None

    def is_valid(self, now: int) -> bool:
        """Whether it opens anything now."""
        return self.revoked_at is None and now < self.expires_at


class Tokens:
    """The tokens of a desk.

    Parameters
    ----------
    ledger : Ledger
        Whose desk it is.
    clock : callable
        Seconds since 1970.
    """

    def __init__(self, ledger: Ledger, clock: Callable[[], int]) -> None:
        self._database = ledger._core.database
        self._clock = clock

    def mint(
        self,
        name: str,
        role: str,
        *,
        scopes: Iterable[str] | None = None,
        tenant: str | None = None,
        days: int = 90,
        by: Token | None = None,
    ) -> tuple[str, Token]:
        """Make a token; return its text, which is not kept, and what is kept.

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
        text, now = PREFIX + secrets.token_urlsafe(32), self._clock()
        token = Token(
            id=secrets.token_hex(8),
            name=name,
            role=role,
            scopes=narrowed(role, scopes),
            tenant=tenant,
            created_at=now,
            expires_at=min(now + days * _DAY, by.expires_at if by else now + days * _DAY),
            revoked_at=None,
            created_by=by.id if by else None,
        )
        values = vars(token) | {"scopes": json.dumps(sorted(token.scopes)), "hash": _hash(text)}
        with self._database.transaction() as conn:
            conn.execute(insert(tokens).values(values))
            note_action(conn, now, by.id if by else token.id, "token.made", token.id)
        return text, token

    def find(self, text: str) -> Token | None:
        """Return the token of a text if it is valid now."""
        if not text.startswith(PREFIX) or len(text) > 100:
            return None
        return self._valid(tokens.c.hash == _hash(text))

    def of_id(self, token_id: str) -> Token | None:
        """Return a token if it is valid now."""
        return self._valid(tokens.c.id == token_id)

    def _valid(self, wanted: Any) -> Token | None:
        with self._database.reading() as conn:
            row = conn.execute(select(tokens).where(wanted)).first()
        token = None if row is None else _token(row)
        return token if token is not None and token.is_valid(self._clock()) else None

    def listed(
        self, *, tenant: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[Token]:
        """Return tokens, of a tenant only if one is named, newest first."""
        query = select(tokens).order_by(tokens.c.created_at.desc(), tokens.c.id.desc())
        if tenant is not None:
            query = query.where(tokens.c.tenant == tenant)
        with self._database.reading() as conn:
            if after is not None:
                mark = conn.execute(query.where(tokens.c.id == after)).first()
                if mark is None:
                    raise ValueError("after names no token; use what the last part gave as next")
                older = (tokens.c.created_at < mark.created_at) | (
                    (tokens.c.created_at == mark.created_at) & (tokens.c.id < mark.id)
                )
                query = query.where(older)
            return [_token(row) for row in conn.execute(query.limit(limit))]

    def any_of_id(self, token_id: str, *, tenant: str | None = None) -> Token | None:
        """Return a token, valid or not; of a tenant only if one is named."""
        wanted = tokens.c.id == token_id
        if tenant is not None:
            wanted &= tokens.c.tenant == tenant
        with self._database.reading() as conn:
            row = conn.execute(select(tokens).where(wanted)).first()
        return None if row is None else _token(row)

    def revoke(self, token_id: str, *, descendants: bool = False, by: str | None = None) -> int:
        """Take a token back; its sessions end with it. Return how many were taken back.

        Parameters
        ----------
        token_id : str
            The token.
        descendants : bool, default=False
            Whether those that were made with it, with these, and so on, are taken back too: what
            is to be done when it was stolen.
        by : str, optional
            The token that does it.
        """
        now = self._clock()
        with self._database.transaction() as conn:
            found = _with_descendants(conn, token_id) if descendants else [token_id]
            alive = tokens.c.id.in_(found) & tokens.c.revoked_at.is_(None)
            done = list(conn.scalars(select(tokens.c.id).where(alive)))
            conn.execute(update(tokens).where(tokens.c.id.in_(done)).values(revoked_at=now))
            for one in done:
                note_action(conn, now, by, "token.revoked", one)
        return len(done)

    def has_admin(self) -> bool:
        """Whether a valid token of an admin exists."""
        alive = tokens.c.revoked_at.is_(None) & (tokens.c.expires_at > self._clock())
        query = select(func.count()).where(alive, tokens.c.role == "admin")
        with self._database.reading() as conn:
            return bool(conn.scalar(query))

    def was_ever(self) -> bool:
        """Whether any token was ever made."""
        with self._database.reading() as conn:
            return bool(conn.scalar(select(func.count()).select_from(tokens)))


def note_action(conn: Any, at: int, token_id: str | None, action: str, about: str | None) -> None:
    """Note who did what at the desk, in the transaction that does it."""
    conn.execute(insert(actions).values(at=at, token_id=token_id or "", action=action, about=about))


def _with_descendants(conn: Any, token_id: str) -> list[str]:
    """Return a token and all that were made with it, directly or not."""
    start = select(tokens.c.id).where(tokens.c.id == token_id).cte(recursive=True)
    family = start.union(select(tokens.c.id).where(tokens.c.created_by == start.c.id))
    return list(conn.scalars(select(family.c.id)))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _token(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        role=row.role,
        scopes=frozenset(json.loads(row.scopes)),
        tenant=row.tenant,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        created_by=row.created_by,
    )
