"""Webhooks: who is told of what, the secret of each, and what is waiting for them.

The secret of a webhook is derived, not stored: HKDF-SHA-256 of a key in the ledger's folder of
keys and the webhook's id. Whoever reads the database can sign nothing.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from sqlalchemy import Connection, Row, Select, delete, func, insert, select

from letheon.exceptions import KeyFileError
from letheon.ledger import Ledger
from letheon.ledger.db.events import integrate
from letheon.ledger.keys.key_files import KeyFiles
from letheon.ledger.tables import deliveries, webhooks
from letheon.service._tokens import note_action

__all__ = [
    "EVENTS",
    "Delivery",
    "Webhook",
    "Webhooks",
    "delivery_of",
    "secret_of",
    "service_key",
    "sign",
    "webhook_of",
]

EVENTS = ("received", "certified", "overdue", "retrained")

_KEY = "service"
_KEY_BYTES = 32
_INFO = b"letheon/webhook/v1\n"


def service_key(folder: Path) -> bytes:
    """Return the secret of the desk, from the folder of keys in a ledger's home; made if missing.

    Raises
    ------
    KeyFileError
        The file is damaged, or open to others.
    """
    files = KeyFiles(folder / "keys")
    if not files.has(_KEY):
        with files.locked(), contextlib.suppress(KeyFileError):  # another process may be first
            files.write(_KEY, os.urandom(_KEY_BYTES))
    return files.read(_KEY)


def secret_of(key: bytes, webhook_id: str) -> str:
    """Return the secret of a webhook, ``whsec_`` and base64: HKDF(key, "webhook" | id).

    Secrets of other webhooks tell nothing about it, and neither does the database.
    """
    info = _INFO + webhook_id.encode()
    derived = HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=info).derive(key)
    return "whsec_" + base64.b64encode(derived).decode()


def sign(secret: str, message_id: str, at: int, body: bytes) -> str:
    """Return the value of ``webhook-signature`` (Standard Webhooks, version 1).

    It is ``v1,`` and the base64 of HMAC-SHA-256 over ``id.timestamp.body``.
    """
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{message_id}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


@dataclass(frozen=True)
class Webhook:
    """Somebody to be told.

    Attributes
    ----------
    id : str
        Random, 16 hexadecimal digits.
    tenant : str or None
        Whose events it gets; None for everybody's.
    url : str
        Where they go.
    events : tuple of str
        Which: some of `EVENTS`.
    created_at : int
        Seconds since 1970.
    created_by : str or None
        Token that made it.
    disabled_at : int or None
        When the receiver answered that it is gone (status 410).
    """

    id: str
    tenant: str | None
    url: str
    events: tuple[str, ...]
    created_at: int
    created_by: str | None
    disabled_at: int | None


@dataclass(frozen=True)
class Delivery:
    """One message to a webhook, and what became of it; times in seconds since 1970."""

    id: str
    webhook_id: str
    kind: str
    about: str
    body: str
    created_at: int
    tries: int
    not_before: int
    delivered_at: int | None
    given_up_at: int | None
    last_status: int | None

    @property
    def state(self) -> str:
        """``waiting``, ``delivered`` or ``given-up``."""
        if self.delivered_at is not None:
            return "delivered"
        return "waiting" if self.given_up_at is None else "given-up"


class Webhooks:
    """The webhooks of a desk.

    Parameters
    ----------
    ledger : Ledger
        Whose events are told.
    clock : callable
        Seconds since 1970.
    """

    def __init__(self, ledger: Ledger, clock: Callable[[], int]) -> None:
        self._database = ledger._core.database
        self._folder = ledger.folder
        self._clock = clock

    def add(
        self, url: str, events: Iterable[str], *, tenant: str | None = None, by: str | None = None
    ) -> tuple[Webhook, str]:
        """Make a webhook that is told of what happens from now on; return it and its secret."""
        wanted = tuple(name for name in EVENTS if name in set(events))
        now = self._clock()
        made = Webhook(secrets.token_hex(8), tenant, url, wanted, now, by, None)
        secret = self.secret(made.id)

        def work(conn: Connection) -> None:
            # Everything that is committed by now has a place below this one.
            values = vars(made) | {"events": json.dumps(wanted), "cursor": integrate(conn).size}
            conn.execute(insert(webhooks).values(values))
            note_action(conn, now, by, "webhook.made", made.id)

        self._database.run(work)
        return made, secret

    def secret(self, webhook_id: str) -> str:
        """Return the secret of a webhook."""
        return secret_of(service_key(self._folder), webhook_id)

    def find(self, webhook_id: str) -> Webhook | None:
        """Return a webhook, if there is one of that id."""
        with self._database.reading() as conn:
            row = conn.execute(select(webhooks).where(webhooks.c.id == webhook_id)).first()
        return None if row is None else webhook_of(row)

    def listed(
        self, *, tenant: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[Webhook]:
        """Return webhooks by id, of one tenant only if it is named; those after an id."""
        query = select(webhooks).order_by(webhooks.c.id)
        if tenant is not None:
            query = query.where(webhooks.c.tenant == tenant)
        if after is not None:
            query = query.where(webhooks.c.id > after)
        with self._database.reading() as conn:
            return [webhook_of(row) for row in conn.execute(query.limit(limit))]

    def remove(self, webhook_id: str, *, by: str | None = None) -> None:
        """Remove a webhook with everything that waits for it."""

        def work(conn: Connection) -> None:
            # Whoever writes messages to it holds this row, and none may come in between.
            row = select(webhooks.c.id).where(webhooks.c.id == webhook_id).with_for_update()
            conn.execute(row)
            conn.execute(delete(deliveries).where(deliveries.c.webhook_id == webhook_id))
            conn.execute(delete(webhooks).where(webhooks.c.id == webhook_id))
            note_action(conn, self._clock(), by, "webhook.removed", webhook_id)

        self._database.run(work)

    def counts(self, webhook_id: str) -> tuple[int, int]:
        """Return how many messages wait, and how many were given up."""
        lost = deliveries.c.given_up_at.is_not(None)
        open_ones = deliveries.c.delivered_at.is_(None) & deliveries.c.given_up_at.is_(None)
        query = select(func.count().filter(open_ones), func.count().filter(lost))
        with self._database.reading() as conn:
            row = conn.execute(query.where(deliveries.c.webhook_id == webhook_id)).one()
        return int(row[0]), int(row[1])

    def deliveries(
        self, webhook_id: str, *, after: str | None = None, limit: int = 50
    ) -> list[Delivery]:
        """Return messages to a webhook, newest first; those after one.

        Raises
        ------
        ValueError
            `after` names no message to it.
        """
        mine = select(deliveries).where(deliveries.c.webhook_id == webhook_id)
        order = (deliveries.c.created_at.desc(), deliveries.c.id.desc())
        with self._database.reading() as conn:
            query = mine if after is None else self._older(conn, mine, after)
            return [delivery_of(row) for row in conn.execute(query.order_by(*order).limit(limit))]

    @staticmethod
    def _older(conn: Connection, mine: Select[Any], after: str) -> Select[Any]:
        mark = conn.execute(mine.where(deliveries.c.id == after)).first()
        if mark is None:
            raise ValueError("after names no message; use what the last part gave as next")
        is_older = deliveries.c.created_at < mark.created_at
        is_next = (deliveries.c.created_at == mark.created_at) & (deliveries.c.id < mark.id)
        return mine.where(is_older | is_next)


def webhook_of(row: Row[Any]) -> Webhook:
    """Return a webhook from its row."""
    return Webhook(
        id=row.id,
        tenant=row.tenant,
        url=row.url,
        events=tuple(json.loads(row.events)),
        created_at=row.created_at,
        created_by=row.created_by,
        disabled_at=row.disabled_at,
    )


def delivery_of(row: Row[Any]) -> Delivery:
    """Return a message from its row."""
    return Delivery(**{field.name: getattr(row, field.name) for field in fields(Delivery)})
