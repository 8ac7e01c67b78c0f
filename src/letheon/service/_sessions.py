"""Browser sessions: a random cookie kept as SHA-256, bound to a token, with a CSRF token."""

import contextlib
import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, insert, or_, select, update

from letheon.exceptions import LedgerUnwritableError
from letheon.ledger import Ledger
from letheon.ledger.db.events import TOLERATED_SECONDS
from letheon.ledger.tables import sessions
from letheon.service._settings import ServiceSettings
from letheon.service._tokens import note_action

__all__ = ["COOKIE", "Session", "Sessions"]

COOKIE = "letheon_session"
# A visit is noted at most this often: a page must not cost a synced write.
_NOTE_SECONDS = 60


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

    def accepts(self, csrf: str | None) -> bool:
        """Whether a form was made by this session's pages."""
        return csrf is not None and hmac.compare_digest(csrf.encode(), self.csrf.encode())


class Sessions:
    """The sessions of a desk.

    Parameters
    ----------
    ledger : Ledger
        Whose desk it is.
    settings : ServiceSettings
        How long a session lasts.
    clock : callable
        Seconds since 1970.
    """

    def __init__(self, ledger: Ledger, settings: ServiceSettings, clock: Callable[[], int]) -> None:
        self._database = ledger._core.database
        self._settings = settings
        self._clock = clock
        self._seen: dict[str, int] = {}
        self._unsaved: dict[str, Session] = {}

    def start(self, token_id: str) -> tuple[str, Session]:
        """Log a browser in; return the cookie, which is not kept, and the session."""
        cookie, now = secrets.token_urlsafe(32), self._clock()
        session = Session(
            id=_hash(cookie),
            token_id=token_id,
            csrf=secrets.token_urlsafe(32),
            expires_at=now + self._settings.session_hours * 3600,
            last_seen_at=now,
        )
        idle = now - self._settings.idle_minutes * 60
        over = or_(sessions.c.expires_at <= now, sessions.c.last_seen_at < idle)
        self._seen = {known: at for known, at in list(self._seen.items()) if at >= idle}
        try:
            with self._database.transaction() as conn:
                conn.execute(delete(sessions).where(over))
                conn.execute(insert(sessions).values(**vars(session), created_at=now))
                note_action(conn, now, token_id, "session.started", None)
        except LedgerUnwritableError:
            self._unsaved[session.id] = session  # pages can be read till the server stops
        return cookie, session

    def find(self, cookie: str) -> Session | None:
        """Return the session of a cookie if it lasts."""
        with self._database.reading() as conn:
            row: Any = conn.execute(select(sessions).where(sessions.c.id == _hash(cookie))).first()
        row = self._unsaved.get(_hash(cookie)) if row is None else row
        if row is None:
            return None
        seen = max(row.last_seen_at, self._seen.get(row.id, 0))
        session = Session(row.id, row.token_id, row.csrf, row.expires_at, seen)
        now = self._clock()
        is_idle = now - session.last_seen_at > self._settings.idle_minutes * 60
        # Begun by a clock that was ahead: it would last until that time has come.
        latest = now + self._settings.session_hours * 3600 + TOLERATED_SECONDS
        if now >= session.expires_at or is_idle or session.expires_at > latest:
            return None
        if now - session.last_seen_at >= _NOTE_SECONDS:
            # Aside: a page that is only read must not wait for whoever writes.
            self._seen[session.id] = now
            threading.Thread(target=self._see, args=(session.id, now), daemon=True).start()
        return session

    def end(self, session_id: str) -> None:
        """Log a browser out."""
        self._seen.pop(session_id, None)
        if self._unsaved.pop(session_id, None) is not None:
            return
        with self._database.transaction() as conn:
            conn.execute(delete(sessions).where(sessions.c.id == session_id))

    def _see(self, session_id: str, now: int) -> None:
        # Memory knows it as well; a visit that is not noted costs a log-in after a restart.
        change = update(sessions).where(sessions.c.id == session_id).values(last_seen_at=now)
        with contextlib.suppress(Exception), self._database.transaction() as conn:
            conn.execute(change)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
