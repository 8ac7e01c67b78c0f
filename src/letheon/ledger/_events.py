"""The log of events: append-only, with a Merkle tree over it (RFC 6962).

An event is written in the transaction of what it reports, without a place in the tree. Places are
given later, by whoever holds the row of the log (`integrate`), so that writers never wait for each
other. Bodies hold opaque ids, codes, counts and digests: never an id of a person, never free text.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, insert, select, update

from letheon.exceptions import ClockError
from letheon.ledger._log_tree import Frontier
from letheon.ledger._tables import events, log
from letheon.verifier import canonical, leaf_hash

__all__ = [
    "Event",
    "Head",
    "bodies",
    "head",
    "integrate",
    "leaves",
    "record",
    "record_all",
    "record_many",
    "require_clock",
]

_TOLERATED_SECONDS = 300
# Statements of every request are built once: building one takes as long as running it.
_NEWEST = select(events.c.at).order_by(events.c.id.desc()).limit(1)
_APPEND = insert(events)
_CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]{0,127}")


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
    """Append one event to the transaction.

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
        `at` is more than 300 seconds before the newest event.
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
    record_all(connection, [Event(kind, body, at, about) for body in items])


def record_all(connection: Connection, items: Sequence[Event]) -> None:
    """Append any events in one statement; see `record`."""
    if items:
        require_clock(connection, min(item.at for item in items))
        connection.execute(_APPEND, [_row(*item) for item in items])


def require_clock(connection: Connection, at: int) -> None:
    """Refuse a clock that is far behind what was recorded before.

    Raises
    ------
    ClockError
        It is more than 300 seconds behind the newest event.
    """
    newest = connection.scalar(_NEWEST)
    if newest is not None and at < newest - _TOLERATED_SECONDS:
        raise ClockError(
            f"the clock is {newest - at} seconds behind the newest event of this ledger; "
            "set it right and try again. Nothing was recorded"
        )


def integrate(connection: Connection) -> Head:
    """Give every event without a place the next one, and return the new head of the tree."""
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


def _row(kind: str, body: dict[str, Any], at: int, about: str | None) -> dict[str, Any]:
    _require_codes([kind, body])
    data = canonical({**body, "at": at, "kind": kind})
    return {
        "at": at,
        "kind": kind,
        "about": about or body.get("request") or body.get("batch"),
        "body": data.decode(),
        "leaf": leaf_hash(data).hex(),
        "log_index": None,
    }


def _require_codes(value: Any) -> None:
    """Refuse anything that could be a name, an address or a sentence."""
    if isinstance(value, dict):
        _require_codes([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            if type(item) is not int:  # spares most of the calls
                _require_codes(item)
    elif isinstance(value, str) and not _CODE.fullmatch(value):
        raise ValueError(f"an event holds a text of {len(value)} characters that is no code")
