"""Who erases whom: every person of a model is owned by one request at most.

A verified request claims everybody whom it names. The first one owns the person; the database
allows one owner only, so racing requests have one effect. A request that owns nobody is a
duplicate: it waits behind the owners, with its own clock. When an owner is withdrawn, its people
pass on to the next request that claims them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, case, delete, select, tuple_, update

from letheon.ledger._moves import has_erased, move
from letheon.ledger._policy import Policy
from letheon.ledger._rows_in import RowsIn
from letheon.ledger._tables import blocked, models, requests

__all__ = ["Claimant", "claim", "hold_model", "known_tags", "pass_on"]

_CHUNK = 400
_insert = RowsIn(
    blocked,
    ("tenant", "model_id", "tag", "request_id", "owner"),
    unless_there=True,
    returning=("request_id", "tag"),
)


class Claimant(NamedTuple):
    """A verified request, and the tags of the people whom it names."""

    request_id: str
    tenant: str
    model_id: int
    tags: Sequence[str]


def hold_model(connection: Connection, model_id: int, *, alone: bool) -> None:
    """Keep claims on a model from changing owners: `alone` to pass on, shared to claim."""
    query = select(models.c.id).where(models.c.id == model_id)
    connection.execute(query.with_for_update(read=not alone, key_share=not alone))


def claim(connection: Connection, claimants: Sequence[Claimant]) -> dict[str, str]:
    """Claim everybody whom these requests name, in their order.

    Returns
    -------
    dict
        For each request that owns nobody, a request that owns somebody whom it names.
    """
    wanted = [
        {"tenant": one.tenant, "model_id": one.model_id, "tag": tag, "request_id": one.request_id}
        for one in claimants
        for tag in one.tags
    ]
    # In one order for everybody, so that two transactions never wait for each other.
    wanted.sort(key=lambda row: (row["model_id"], row["tag"]))
    owned = set(_insert(connection, [row | {"owner": True} for row in wanted]))
    rest = [row for row in wanted if (row["request_id"], row["tag"]) not in owned]
    _insert(connection, [row | {"owner": False} for row in rest])
    owners = {request_id for request_id, _ in owned}
    idle = [one for one in claimants if one.request_id not in owners]
    return {one.request_id: _owner(connection, one.model_id, one.tags[0]) for one in idle}


def known_tags(connection: Connection, pairs: Sequence[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return those of the pairs (model, tag) whose person was asked for before."""
    found: set[tuple[int, str]] = set()
    for start in range(0, len(pairs), _CHUNK):
        part = tuple_(blocked.c.model_id, blocked.c.tag).in_(pairs[start : start + _CHUNK])
        rows = connection.execute(select(blocked.c.model_id, blocked.c.tag).where(part))
        found.update((row.model_id, row.tag) for row in rows)
    return found


def pass_on(
    connection: Connection, request_id: str, model_id: int, *, at: int, policy: Policy
) -> list[str]:
    """Give up all claims of a withdrawn request; return who erases its people instead.

    They are queued, or wait for an approval if they are of many rows.
    """
    hold_model(connection, model_id, alone=True)
    mine = blocked.c.request_id == request_id
    tags = list(connection.scalars(select(blocked.c.tag).where(mine, blocked.c.owner)))
    connection.execute(delete(blocked).where(mine))
    heirs = _promote(connection, model_id, tags)
    waiting = _duplicates(connection, sorted(set(heirs.values())))
    large = [one for one, n_rows in waiting.items() if policy.needs_approval(n_rows)]
    small = [one for one in waiting if one not in large]
    move(connection, large, "verified", at=at, duplicate_of=None)
    move(connection, small, "queued", at=at, duplicate_of=None)
    return list(waiting)


def _promote(connection: Connection, model_id: int, tags: Sequence[str]) -> dict[str, str]:
    """Make a claim on each person the owner: one that has erased them, else the oldest."""
    order = (case((has_erased(requests), 0), else_=1), requests.c.received_at, requests.c.id)
    query = select(blocked.c.tag, blocked.c.request_id).join(requests).order_by(*order)
    heirs: dict[str, str] = {}
    for start in range(0, len(tags), _CHUNK):
        here = (blocked.c.model_id == model_id) & blocked.c.tag.in_(tags[start : start + _CHUNK])
        for row in connection.execute(query.where(here)):
            heirs.setdefault(row.tag, row.request_id)
    if heirs:
        person = (blocked.c.model_id == model_id) & (blocked.c.tag == bindparam("person"))
        change = update(blocked).where(person, blocked.c.request_id == bindparam("heir"))
        rows = [{"person": tag, "heir": heir} for tag, heir in heirs.items()]
        connection.execute(change.values(owner=True), rows)
    return heirs


def _duplicates(connection: Connection, request_ids: Sequence[str]) -> dict[str, int]:
    """Return those that are duplicates, with the number of their rows."""
    found: dict[str, int] = {}
    for start in range(0, len(request_ids), _CHUNK):
        those = requests.c.id.in_(request_ids[start : start + _CHUNK])
        query = select(requests.c.id, requests.c.n_rows)
        rows = connection.execute(query.where(those, requests.c.state == "duplicate"))
        found.update((row.id, row.n_rows) for row in rows)
    return found


def _owner(connection: Connection, model_id: int, tag: str) -> str:
    here = (blocked.c.model_id == model_id) & (blocked.c.tag == tag) & blocked.c.owner
    return str(connection.scalars(select(blocked.c.request_id).where(here)).one())
