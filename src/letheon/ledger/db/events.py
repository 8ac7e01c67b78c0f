"""The log of events: append-only, with a Merkle tree over it (RFC 6962).

An event is written in the transaction of what it reports, without a place in the tree. Places are
given later, by whoever holds the row of the log (`integrate`), so that writers never wait for each
other. Bodies hold opaque ids, codes, counts and digests: never an id of a person, never free text.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, select, update

from letheon.exceptions import ClockError
from letheon.ledger.db.bulk import RowsIn
from letheon.ledger.db.log_tree import Frontier
from letheon.ledger.schemas import is_code
from letheon.ledger.tables import events, log
from letheon.verifier import MAX_INT, canonical, leaf_hash

_by: ContextVar[str | None] = ContextVar("letheon_actor", default=None)


def actor() -> str | None:
    """Return who acts in this thread or task; None where nobody was named."""
    return _by.get()


@contextmanager
def acting(by: str) -> Iterator[None]:
    """Name who acts until the context is left: an opaque id, such as that of a token.

    Raises
    ------
    ValueError
        It could be a name, an address or a sentence, which no event may hold.
    """
    if not isinstance(by, str) or not is_code(by):
        raise ValueError(
            "`by` cannot stand in an event: give the opaque id of whoever acts, of up to 128 "
            "letters, digits and ._:/+-"
        )
    token = _by.set(by)
    try:
        yield
    finally:
        _by.reset(token)


TOLERATED_SECONDS = 300
# Statements of every request are built once: building one takes as long as running it.
_LATEST = (
    select(events.c.era, events.c.at).order_by(events.c.era.desc(), events.c.at.desc()).limit(1)
)
_append = RowsIn(events, ("at", "era", "kind", "about", "body", "leaf"))


class Head(NamedTuple):
    """The tree over the events that have a place."""

    size: int
    root: bytes


class Event(NamedTuple):
    """What happened, when, and to whom (an opaque id)."""

    kind: str
    body: dict[str, Any]
    at: int
    about: str | None = None


def record(
    connection: Connection, kind: str, body: dict[str, Any], at: int, *, about: str | None = None
) -> None:
    """Append one event to the transaction; an event of a request says who acted, if anybody.

    Parameters
    ----------
    connection : Connection
        In a transaction.
    kind : str
        What happened, a code.
    body : dict
        Codes, digests, opaque ids, whole numbers, booleans; lists of these.
    at : int
        When, in seconds since 1970.
    about : str, optional
        Opaque id for timelines; by default the body's request, else its batch.

    Raises
    ------
    ClockError
        `at` is more than 300 seconds before the latest event.
    """
    record_many(connection, kind, [body], at, about=about)


def record_many(
    connection: Connection,
    kind: str,
    items: Sequence[dict[str, Any]],
    at: int,
    *,
    about: str | None = None,
) -> None:
    """Append several events of one kind and time; see `record`."""
    by = actor()
    if by is not None:
        items = [{**body, "by": by} if "request" in body else body for body in items]
    record_all(connection, [Event(kind, body, at, about) for body in items])


def record_all(connection: Connection, items: Sequence[Event]) -> None:
    """Append any events in one statement, as they are; see `record`.

    They may be of several threads, whose actors differ.
    """
    if items:
        require_own_log(connection)
        era = require_clock(connection, min(item.at for item in items))
        _append(connection, [_row(item, era) for item in items])


def require_own_log(connection: Connection) -> None:
    """Raise `OldDatabaseError` where entries would fork the log; see `_agreement`."""
    guard = connection.get_execution_options().get("letheon_guard")
    if guard is not None:
        guard(connection)


def require_clock(connection: Connection, at: int) -> int:
    """Refuse a clock that is far behind what was recorded before; return the era of the clock.

    Eras are what corrections of the clock (`accept_clock`) begin. Only the newest one counts.

    Raises
    ------
    ClockError
        It is more than 300 seconds behind the latest event.
    """
    era, latest = _latest(connection, at)
    if at < latest - TOLERATED_SECONDS:
        raise ClockError(
            f"the clock is {latest - at} seconds behind the latest event of this ledger; set it "
            "right and try again. If it is right, and an event was written while it was ahead, "
            "`letheon doctor --accept-clock` goes on from it. Nothing was recorded"
        )
    return era


def accept_clock(connection: Connection, at: int) -> bool:
    """Record that the clock is right, though events were written while it was ahead.

    Counting starts anew: from now on times are compared with this event and later ones only.
    Events that were written before keep their times.

    Returns
    -------
    bool
        False if the clock is not behind; nothing is recorded then.
    """
    require_own_log(connection)
    era, latest = _latest(connection, at)
    if at >= latest - TOLERATED_SECONDS:
        return False
    correction = Event("clock-corrected", {"seconds": latest - at}, at)
    _append(connection, [_row(correction, era + 1)])
    return True


def seconds_behind(connection: Connection, at: int) -> int:
    """Return by how much a clock is behind the latest event that counts; negative if it is not."""
    return _latest(connection, at)[1] - at


def _latest(connection: Connection, at: int) -> tuple[int, int]:
    """Return the newest era and the latest time in it; `at` where there is no event."""
    found = connection.execute(_LATEST).first()
    return (0, at) if found is None else (found.era, found.at)


def integrate(connection: Connection) -> Head:
    """Give every event without a place the next one, and return the new head of the tree."""
    require_own_log(connection)
    row = connection.execute(select(log.c.size, log.c.frontier).with_for_update()).one()
    frontier = Frontier.from_text(row.frontier)
    query = select(events.c.id, events.c.leaf).where(events.c.log_index.is_(None))
    places: list[dict[str, int]] = []
    for event in connection.execute(query.order_by(events.c.id)):
        places.append({"event": event.id, "place": row.size + len(places)})
        frontier = frontier.append(bytes.fromhex(event.leaf))
    if places:
        change = update(events).where(events.c.id == bindparam("event"))
        connection.execute(change.values(log_index=bindparam("place")), places)
        size = row.size + len(places)
        connection.execute(update(log).values(size=size, frontier=frontier.to_text()))
    return Head(row.size + len(places), frontier.root())


def head(connection: Connection) -> Head:
    """Return the head of the tree as it was integrated last."""
    row = connection.execute(select(log.c.size, log.c.frontier)).one()
    return Head(row.size, Frontier.from_text(row.frontier).root())


def leaves(connection: Connection) -> list[bytes]:
    """Return the leaf hashes of all integrated events, in the order of the tree."""
    query = select(events.c.leaf).where(events.c.log_index.is_not(None))
    return [bytes.fromhex(leaf) for leaf in connection.scalars(query.order_by(events.c.log_index))]


def bodies(connection: Connection) -> Iterator[bytes]:
    """Return the canonical bodies of all integrated events, in the order of the tree."""
    query = select(events.c.body).where(events.c.log_index.is_not(None))
    for body in connection.scalars(query.order_by(events.c.log_index)):
        yield body.encode()


def _row(event: Event, era: int) -> dict[str, Any]:
    kind, body, at, about = event
    fields = {**body, "at": at, "kind": kind}
    data = _flat(fields)
    if data is None:
        _require_codes([kind, body])
        data = canonical(fields)
    return {
        "at": at,
        "era": era,
        "kind": kind,
        "about": about or body.get("request") or body.get("batch"),
        "body": data.decode(),
        "leaf": leaf_hash(data).hex(),
        "log_index": None,
    }


def _flat(fields: dict[str, Any]) -> bytes | None:
    """Return what `canonical` does, in a third of the time; None unless all is codes and numbers.

    Codes have one order in every encoding, and nothing to escape.
    """
    if not all(map(_is_name, fields)):
        return None
    parts = []
    for name in sorted(fields):
        value = fields[name]
        if type(value) is str and is_code(value):
            parts.append(f'"{name}":"{value}"')
        elif type(value) is int and -MAX_INT <= value <= MAX_INT:
            parts.append(f'"{name}":{value}')
        else:
            return None
    return f"{{{','.join(parts)}}}".encode()


@lru_cache(maxsize=1024)
def _is_name(name: Any) -> bool:
    return type(name) is str and is_code(name)


def _require_codes(value: Any) -> None:
    """Refuse anything that could be a name, an address or a sentence."""
    if isinstance(value, dict):
        _require_codes([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            if type(item) is not int:  # spares most of the calls
                _require_codes(item)
    elif isinstance(value, str) and not is_code(value):
        raise ValueError(f"an event holds a text of {len(value)} characters that is no code")
