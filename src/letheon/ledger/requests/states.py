"""States of a request, and which may follow which.

The same pairs lie in the database, where a trigger refuses every other change, by whatever
program. ``NEW`` stands before the first state of a request.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, or_, select, update

from letheon.exceptions import RequestStateError, UnknownRequestError
from letheon.ledger.db import events
from letheon.ledger.tables import requests

__all__ = [
    "ALLOWED",
    "FINAL",
    "FINISHED",
    "NEW",
    "OPEN",
    "PUBLISHED",
    "STATES",
    "is_allowed",
    "move",
]

NEW = ""

_AFTER = {
    # A request that comes verified passes the states in between, but for an approval that it needs.
    NEW: ("received", "verified", "queued"),
    "received": ("verified", "rejected", "cancelled"),
    "verified": ("queued", "duplicate", "rejected", "cancelled"),
    "queued": ("applying", "duplicate", "rejected", "cancelled", "on_hold"),
    "applying": ("applied", "queued", "retry_wait", "stuck"),
    "retry_wait": ("queued", "stuck", "rejected", "cancelled", "on_hold"),
    "applied": ("certified",),
    "certified": ("purging",),
    "purging": ("purged", "stuck"),
    "purged": ("closed",),
    # A person who waits behind another request comes first when that one is withdrawn.
    "duplicate": ("queued", "verified", "closed", "rejected", "cancelled"),
    "on_hold": ("queued", "rejected", "cancelled"),
    "stuck": ("queued", "purging", "rejected", "cancelled"),  # the last two: if not published
    "rejected": (),
    "cancelled": (),
    "closed": (),
}

ALLOWED = frozenset((before, after) for before, follow in _AFTER.items() for after in follow)
STATES = tuple(state for state in _AFTER if state != NEW)
PUBLISHED = ("applied", "certified", "purging", "purged", "closed")
FINISHED = ("purged", "closed")
FINAL = ("rejected", "cancelled", "closed")
OPEN = tuple(state for state in STATES if state not in (*FINISHED, *FINAL))


def has_erased(table: FromClause) -> ColumnElement[bool]:
    """Whether a request's people have left the model; `table` is `requests` or an alias."""
    stuck_later = (table.c.state == "stuck") & table.c.batch_id.is_not(None)
    return or_(table.c.state.in_(PUBLISHED), stuck_later)


def is_allowed(before: str, after: str) -> bool:
    """Whether a request may go from one state to the other."""
    return (before, after) in ALLOWED


def move(
    connection: Connection,
    request_ids: str | Iterable[str],
    after: str,
    *,
    at: int,
    fields: dict[str, str | int] | None = None,
    **columns: Any,
) -> None:
    """Move requests to a state, all or none, with one event each.

    Parameters
    ----------
    connection : Connection
        In a transaction.
    request_ids : str or iterable of str
        Who moves.
    after : str
        The state that they get.
    at : int
        Time of the events.
    fields : dict, optional
        More for the bodies of the events: codes, counts, opaque ids.
    **columns
        Other columns of the requests to set.

    Raises
    ------
    RequestStateError
        One of them may not go there; the caller's transaction must be given up.
    UnknownRequestError
        There is no such request.
    """
    ids = [request_ids] if isinstance(request_ids, str) else list(dict.fromkeys(request_ids))
    if not ids:
        return
    states = _states(connection, ids)
    for request, before in states.items():
        if not is_allowed(before, after):
            raise RequestStateError(f"request {request} is {before}; it cannot become {after}")
    for before in sorted(set(states.values())):
        movers = [request for request in ids if states[request] == before]
        _update(connection, movers, before, {"state": after, **columns})
    bodies = [{"request": request, "from": states[request], **(fields or {})} for request in ids]
    events.record_many(connection, after, bodies, at)


def _states(connection: Connection, ids: Sequence[str]) -> dict[str, str]:
    """Return the state of each request, and keep others from changing it."""
    found: dict[str, str] = {}
    for start in range(0, len(ids), _CHUNK):
        chunk = ids[start : start + _CHUNK]
        # In order of id: two transactions that lock the same rows must not cross.
        query = select(requests.c.id, requests.c.state).where(requests.c.id.in_(chunk))
        rows = connection.execute(query.order_by(requests.c.id).with_for_update())
        found.update((row.id, row.state) for row in rows)
    missing = [request for request in ids if request not in found]
    if missing:
        raise UnknownRequestError(f"no request {missing[0]}")
    return found


def _update(
    connection: Connection, ids: Sequence[str], before: str, values: dict[str, Any]
) -> None:
    touched = 0
    for start in range(0, len(ids), _CHUNK):
        chunk = ids[start : start + _CHUNK]
        change = update(requests).where(requests.c.id.in_(chunk), requests.c.state == before)
        touched += connection.execute(change.values(values)).rowcount
    if touched != len(ids):
        raise RequestStateError(f"{len(ids) - touched} requests are no longer {before}")


# SQLite before 3.32 takes 999 parameters in a statement.
_CHUNK = 500
