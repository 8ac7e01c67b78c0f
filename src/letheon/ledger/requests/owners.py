"""Who erases whom: every person of a model is owned by one request at most.

A verified request claims everybody whom it names. The first one owns the person; the database
allows one owner only, so racing requests have one effect. A request that owns nobody is a
duplicate: it waits behind the owners, with its own clock. When an owner is withdrawn, its people
pass on to the next request that claims them. An owner that waits for an approval keeps nobody
waiting: a request that needs none takes its people over.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    case,
    delete,
    func,
    or_,
    select,
    tuple_,
    update,
)

from letheon.data import IdIndex, Ids
from letheon.exceptions import RequestStateError
from letheon.ledger.core import Core
from letheon.ledger.db import events as _events
from letheon.ledger.db.bulk import RowsIn, chunked
from letheon.ledger.requests.encrypted_ids import is_covered, uncovered_people
from letheon.ledger.requests.transitions import has_erased, move
from letheon.ledger.tables import batches, blocked, events, models, requests
from letheon.ledger.worker.policy import Policy

# The event of a request that waits for an approval however few rows it has.
NEEDS_APPROVAL = "approval-needed"

_insert = RowsIn(
    blocked,
    ("tenant", "model_id", "tag", "request_id", "owner"),
    unless_there=True,
    returning=("request_id", "tag"),
)


class Claimant(NamedTuple):
    """A verified request, the tags of the people whom it names, and whether it has to wait."""

    request_id: str
    tenant: str
    model_id: int
    tags: Sequence[str]
    needs_approval: bool = False


def hold_model(connection: Connection, model_id: int, *, alone: bool) -> None:
    """Keep claims on a model from changing owners: `alone` to pass on, shared to claim."""
    query = select(models.c.id).where(models.c.id == model_id)
    connection.execute(query.with_for_update(read=not alone, key_share=not alone))


def share_model(connection: Connection, request_id: str, *, alone: bool = False) -> None:
    """Keep claims on the model of a request from changing owners."""
    mine = select(requests.c.model_id).where(requests.c.id == request_id)
    model_id = connection.scalar(mine)
    if model_id is not None:
        hold_model(connection, model_id, alone=alone)


def lock_model(connection: Connection, request_id: str) -> None:
    """Let no other transaction claim or pass on people of the model of a request."""
    share_model(connection, request_id, alone=True)


def lock_batch(connection: Connection, request_id: str) -> None:
    """Lock the batch of a request."""
    mine = select(requests.c.batch_id).where(requests.c.id == request_id)
    query = select(batches.c.id).where(batches.c.id == mine.scalar_subquery())
    connection.execute(query.with_for_update())


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
    ready = {one.request_id for one in claimants if not one.needs_approval}
    owned |= _take_over(connection, [row for row in rest if row["request_id"] in ready])
    rest = [row | {"owner": (row["request_id"], row["tag"]) in owned} for row in rest]
    _insert(connection, rest)
    owners = {request_id for request_id, _ in owned}
    idle = [one for one in claimants if one.request_id not in owners]
    return {one.request_id: _owner(connection, one.model_id, one.tags[0]) for one in idle}


def _take_over(connection: Connection, wanted: Sequence[dict[str, Any]]) -> set[tuple[str, str]]:
    """Free people whose owner waits for an approval; return who may own whom instead."""
    firsts: dict[tuple[int, str], str] = {}
    for row in wanted:
        firsts.setdefault((row["model_id"], row["tag"]), row["request_id"])
    waits = blocked.c.owner & (requests.c.state == "verified")
    query = select(blocked.c.model_id, blocked.c.tag, blocked.c.request_id).join(requests)
    pairs, found = list(firsts), list[Any]()
    for some in chunked(pairs):
        here = tuple_(blocked.c.model_id, blocked.c.tag).in_(some)
        found += connection.execute(query.where(here, waits)).all()
    taken = set()
    for model_id, tag, owner in sorted(found):
        person = (blocked.c.model_id == model_id) & (blocked.c.tag == tag) & blocked.c.owner
        change = update(blocked).where(person, blocked.c.request_id == owner)
        # Of two who come at once the second one finds nothing to free.
        if (
            firsts[model_id, tag] != owner
            and connection.execute(change.values(owner=False)).rowcount
        ):
            taken.add((firsts[model_id, tag], tag))
    return taken


def needing_approval(connection: Connection, request_ids: Sequence[str]) -> set[str]:
    """Return which of these requests were marked as waiting for an approval."""
    marked: set[str] = set()
    for some in chunked(request_ids):
        those = events.c.about.in_(some)
        query = select(events.c.about).where(those, events.c.kind == NEEDS_APPROVAL)
        marked.update(connection.scalars(query))
    return marked


def known_tags(connection: Connection, pairs: Sequence[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return those of the pairs (model, tag) whose person was asked for before."""
    found: set[tuple[int, str]] = set()
    for some in chunked(pairs):
        part = tuple_(blocked.c.model_id, blocked.c.tag).in_(some)
        rows = connection.execute(select(blocked.c.model_id, blocked.c.tag).where(part))
        found.update((row.model_id, row.tag) for row in rows)
    return found


def pass_on(
    connection: Connection, request_id: str, model_id: int, *, at: int, policy: Policy
) -> list[str]:
    """Give up all claims of a withdrawn request; return who erases its people instead.

    They are queued, or wait for an approval if they are of many rows. Who waited behind it too and
    owns nobody now either waits behind them.
    """
    hold_model(connection, model_id, alone=True)
    mine = blocked.c.request_id == request_id
    tags = list(connection.scalars(select(blocked.c.tag).where(mine, blocked.c.owner)))
    connection.execute(delete(blocked).where(mine))
    heirs = _promote(connection, model_id, tags, policy)
    waiting = _duplicates(connection, sorted(set(heirs.values())))
    marked = needing_approval(connection, list(waiting))
    large = [one for one, n in waiting.items() if one in marked or policy.needs_approval(n)]
    small = [one for one in waiting if one not in large]
    move(connection, large, "verified", at=at, duplicate_of=None)
    move(connection, small, "queued", at=at, duplicate_of=None)
    lead_on(connection, request_id, model_id, at=at)
    return list(waiting)


def lead_on(connection: Connection, request_id: str, model_id: int, *, at: int) -> None:
    """Let who waits behind a request that erases nobody wait behind one that does, or has."""
    waiting = requests.c.duplicate_of == request_id
    query = select(requests.c.id, func.min(blocked.c.tag).label("tag")).where(waiting)
    query = query.join(blocked, blocked.c.request_id == requests.c.id).group_by(requests.c.id)
    behind: dict[str, list[str]] = {}
    for row in connection.execute(query.order_by(requests.c.id)):
        behind.setdefault(row.tag, []).append(row.id)
    for tag, followers in sorted(behind.items()):
        leader = _leader(connection, model_id, tag)
        moved = [one for one in followers if one != leader]
        change = update(requests).where(requests.c.id == bindparam("request"))
        rows = [{"request": one, "leader": leader} for one in moved]
        if rows and leader != request_id:
            connection.execute(change.values(duplicate_of=bindparam("leader")), rows)
            bodies = [{"request": one, "of": leader} for one in moved]
            _events.record_many(connection, "waits-for", bodies, at)


def _leader(connection: Connection, model_id: int, tag: str) -> str:
    """Return the request whose batch has erased a person, else the one that is to."""
    has_left = has_erased(requests) & requests.c.batch_id.is_not(None)
    order = (case((has_left, 0), (blocked.c.owner, 1), else_=2), requests.c.id)
    query = select(blocked.c.request_id).join(requests).order_by(*order).limit(1)
    here = (blocked.c.model_id == model_id) & (blocked.c.tag == tag)
    return str(connection.scalars(query.where(here)).one())


def _promote(
    connection: Connection, model_id: int, tags: Sequence[str], policy: Policy
) -> dict[str, str]:
    """Make a claim on each person the owner: of who has erased them, else the oldest.

    One that has to wait for an approval comes last.
    """
    rank = case((has_erased(requests), 0), (_would_wait(policy), 2), else_=1)
    order = (rank, requests.c.received_at, requests.c.id)
    query = select(blocked.c.tag, blocked.c.request_id).join(requests).order_by(*order)
    heirs: dict[str, str] = {}
    for some in chunked(tags):
        here = (blocked.c.model_id == model_id) & blocked.c.tag.in_(some)
        for row in connection.execute(query.where(here)):
            heirs.setdefault(row.tag, row.request_id)
    if heirs:
        person = (blocked.c.model_id == model_id) & (blocked.c.tag == bindparam("person"))
        change = update(blocked).where(person, blocked.c.request_id == bindparam("heir"))
        rows = [{"person": tag, "heir": heir} for tag, heir in heirs.items()]
        connection.execute(change.values(owner=True), rows)
    return heirs


def _would_wait(policy: Policy) -> ColumnElement[bool]:
    """Whether a request would own people and wait for an approval."""
    mark = (events.c.about == requests.c.id) & (events.c.kind == NEEDS_APPROVAL)
    needs: list[ColumnElement[bool]] = [select(events.c.id).where(mark).exists()]
    if policy.approve_above is not None:
        needs.append(requests.c.n_rows > policy.approve_above)
    is_idle = requests.c.state == "duplicate"
    return or_(requests.c.state == "verified", is_idle & or_(*needs))


def _duplicates(connection: Connection, request_ids: Sequence[str]) -> dict[str, int]:
    """Return those that are duplicates, with the number of their rows."""
    found: dict[str, int] = {}
    for some in chunked(request_ids):
        those = requests.c.id.in_(some)
        query = select(requests.c.id, requests.c.n_rows)
        rows = connection.execute(query.where(those, requests.c.state == "duplicate"))
        found.update((row.id, row.n_rows) for row in rows)
    return found


def _owner(connection: Connection, model_id: int, tag: str) -> str:
    here = (blocked.c.model_id == model_id) & (blocked.c.tag == tag) & blocked.c.owner
    return str(connection.scalars(select(blocked.c.request_id).where(here)).one())


def settle_queue(core: Core, model_id: int) -> list[str]:
    """Take requests off the queue whose people were all erased with others'; return their ids.

    Requests may name some of the same people. When the last of them left with another request,
    there is nothing to apply: what is still queued becomes a duplicate of what erased them.
    """

    def work(connection: Connection) -> list[str]:
        mine = uncovered_people(has_erased).where(blocked.c.request_id == requests.c.id)
        idle = (requests.c.model_id == model_id) & (requests.c.state == "queued")
        query = select(requests.c.id).where(idle, ~mine.exists()).order_by(requests.c.id)
        found_ids = list(connection.scalars(query))
        for request_id in found_ids:
            eraser = _eraser(connection, request_id)
            now = core.clock()
            wait_behind(connection, request_id, eraser, now)
            lead_on(connection, request_id, model_id, at=now)
        return found_ids

    return core.database.run(work)


def wait_behind(connection: Connection, request_id: str, owner: str, now: int) -> None:
    """Make a request a duplicate of the one that erases its people."""
    body: dict[str, Any] = (
        {"sealed": None, "intake_key": None} if is_covered(connection, request_id) else {}
    )
    fields: dict[str, str | int] = {"of": owner}
    move(connection, request_id, "duplicate", at=now, fields=fields, duplicate_of=owner, **body)


def _eraser(connection: Connection, request_id: str) -> str:
    """Return a request that erased somebody whom this one names."""
    mine, other = blocked.alias(), blocked.alias()
    same = (other.c.model_id == mine.c.model_id) & (other.c.tag == mine.c.tag)
    query = select(requests.c.id).join(other, other.c.request_id == requests.c.id).join(mine, same)
    query = query.where(mine.c.request_id == request_id, has_erased(requests))
    return str(connection.scalars(query.order_by(requests.c.id).limit(1)).one())


def known_people(
    connection: Connection, model_id: int, tags: list[str], ids: Ids, people: IdIndex | None
) -> list[str]:
    """Return the tags of the people whom the model holds, or whom an earlier request named."""
    if people is None:
        return tags
    is_held = people.find(ids).found
    known = known_tags(connection, [(model_id, tag) for tag in tags])
    return [
        tag for tag, here in zip(tags, is_held, strict=True) if here or (model_id, tag) in known
    ]


def require_none_leaving(connection: Connection, request_id: str) -> None:
    """Refuse a hold that comes too late: somebody whom it names is erased by another request."""
    mine, other = blocked.alias(), blocked.alias()
    same = (other.c.model_id == mine.c.model_id) & (other.c.tag == mine.c.tag)
    query = select(requests.c.id).join(other, other.c.request_id == requests.c.id).join(mine, same)
    leaving = or_(requests.c.state == "applying", has_erased(requests))
    query = query.where(mine.c.request_id == request_id, requests.c.id != request_id, leaving)
    found_id = connection.scalar(query.order_by(requests.c.id).limit(1))
    if found_id is not None:
        raise RequestStateError(
            f"request {request_id} cannot be held: request {found_id} names some of the same "
            "people and is erasing them, or has"
        )
