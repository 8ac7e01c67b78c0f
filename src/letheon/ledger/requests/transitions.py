"""Moving requests from state to state, each with its event in the log."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, or_, select, update

from letheon.exceptions import RequestStateError, UnknownRequestError
from letheon.ledger.db import events
from letheon.ledger.db.bulk import chunked
from letheon.ledger.requests.states import PUBLISHED, is_allowed
from letheon.ledger.tables import requests


def has_erased(table: FromClause) -> ColumnElement[bool]:
    """Whether a request's people have left the model; `table` is `requests` or an alias."""
    stuck_later = (table.c.state == "stuck") & table.c.batch_id.is_not(None)
    return or_(table.c.state.in_(PUBLISHED), stuck_later)


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
    for chunk in chunked(ids):
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
    for chunk in chunked(ids):
        change = update(requests).where(requests.c.id.in_(chunk), requests.c.state == before)
        touched += connection.execute(change.values(values)).rowcount
    if touched != len(ids):
        raise RequestStateError(f"{len(ids) - touched} requests are no longer {before}")
