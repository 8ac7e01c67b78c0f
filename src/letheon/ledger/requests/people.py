"""The people of requests: encrypted ids, claims, and changes of state.

The body of a request consists of its ids and is encrypted with the current intake key. A purge
encrypts the open bodies with a new key and destroys the old key, so that no copy of the database
reveals the body of a closed request. A transaction that encrypts or decrypts bodies locks the row
of the current key.

A verified request claims all its people, and the first request to claim a person owns the person.
The database permits only one owner per person of a model, so concurrent requests erase a person
once. A request that owns no person is a duplicate: it waits for the owners and keeps its own
deadline. When an owner is withdrawn, the request with the next claim owns its people. An owner that
waits for an approval does not block other requests: a request that needs no approval takes over its
people.
"""

import contextlib
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    ScalarSelect,
    Select,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)

from letheon.data import IdIndex, Ids, IntIds, as_ids
from letheon.exceptions import (
    KeyFileError,
    LedgerBusyError,
    RequestStateError,
    UnknownRequestError,
)
from letheon.ledger.core import Core
from letheon.ledger.db.events import (
    BulkInsert,
    record_events,
    require_own_log,
    select_in,
    split_into_chunks,
)
from letheon.ledger.requests.states import ALLOWED, FINISHED, PUBLISHED
from letheon.ledger.tables import blocked, events, intake_keys, meta, models, requests
from letheon.ledger.worker.policy import Policy

NEEDS_APPROVAL = "approval-needed"
"""Event of a request that needs an approval, whatever its number of rows."""

NO_BODY: dict[str, Any] = {"sealed": None, "intake_key": None}
"""Columns of a request whose ids are deleted."""

_CURRENT = "intake_key"
_encode = json.JSONEncoder(separators=(",", ":")).encode
_INT64 = struct.Struct(">q")
_TRIES = 5
_CHUNK = 500
_CURRENT_KEY = select(meta.c.value).where(meta.c.key == _CURRENT)
_LOCKED_KEY = _CURRENT_KEY.with_for_update(read=True)
_PERSON = tuple_(blocked.c.model_id, blocked.c.tag)

_insert = BulkInsert(
    blocked,
    ("tenant", "model_id", "tag", "request_id", "owner"),
    unless_there=True,
    returning=("request_id", "tag"),
)


def move_requests(
    connection: Connection,
    request_ids: str | Iterable[str],
    after: str,
    *,
    at: int,
    fields: dict[str, str | int] | None = None,
    **columns: Any,
) -> None:
    """Move requests to a state and record one event for each; either all or none are moved.

    Parameters
    ----------
    connection : Connection
        A connection with an open transaction.
    request_ids : str or iterable of str
        The requests.
    after : str
        The new state.
    at : int
        Time of the events, in seconds since 1970.
    fields : dict, optional
        Further fields of the events: codes, counts, opaque ids.
    **columns
        Other columns of the requests to set.

    Raises
    ------
    RequestStateError
        One of the requests cannot change to this state; the caller must roll back the transaction.
    UnknownRequestError
        A request does not exist.
    """
    ids = [request_ids] if isinstance(request_ids, str) else list(dict.fromkeys(request_ids))
    # Ordered by id, so that transactions that lock the same rows cannot deadlock.
    query = select(requests.c.id, requests.c.state).order_by(requests.c.id).with_for_update()
    states = {row.id: row.state for row in select_in(connection, query, requests.c.id, ids)}
    for request in ids:
        if request not in states:
            raise UnknownRequestError(f"unknown request {request}")
        if (states[request], after) not in ALLOWED:
            raise RequestStateError(
                f"request {request} cannot change from {states[request]} to {after}"
            )
    for chunk in split_into_chunks(ids):
        change = update(requests).where(requests.c.id.in_(chunk))
        connection.execute(change.values(state=after, **columns))
    bodies = [{"request": request, "from": states[request], **(fields or {})} for request in ids]
    record_events(connection, after, bodies, at)


def has_erased(table: FromClause) -> ColumnElement[bool]:
    """Return the SQL condition that a request was applied; `table` is `requests` or an alias."""
    stuck_later = (table.c.state == "stuck") & table.c.batch_id.is_not(None)
    return or_(table.c.state.in_(PUBLISHED), stuck_later)


def encode_ids(ids: Ids) -> list[bytes]:
    """Return the canonical bytes of each id: ``i`` and 8 bytes for int, ``s`` and UTF-8 for str."""
    values: Sequence[Any] = ids.to_list()
    if isinstance(ids, IntIds):
        return [b"i" + _INT64.pack(value) for value in values]
    return [b"s" + value.encode() for value in values]


def compute_person_tags(core: Core, tenant: str, ids: Ids) -> list[str]:
    """Return a keyed hash (tag) of each id; equal ids of a tenant have equal tags."""
    return compute_tags(core, tenant, encode_ids(ids))


def compute_tags(core: Core, tenant: str, names: Sequence[bytes]) -> list[str]:
    """Return the tag of each id that `encode_ids` encoded; see `compute_person_tags`."""
    scope = tenant.encode()
    return [core.keys.compute_tag("person", scope, name) for name in names]


def make_body_encrypter(core: Core, key: str) -> Callable[[str, Ids], bytes]:
    """Return a function that encrypts the ids of a request; the key file is read only once."""
    encrypt = core.keys.load_cipher(key).encrypt
    return lambda request_id, ids: encrypt(
        _encode(ids.to_list()).encode(), _encryption_context(request_id)
    )


def read_body(core: Core, key: str, request_id: str, sealed: bytes) -> Ids:
    """Decrypt the body of a request and return its ids."""
    return as_ids(json.loads(core.keys.decrypt(key, sealed, _encryption_context(request_id))))


def _encryption_context(request_id: str) -> bytes:
    return b"letheon/request/v1/" + request_id.encode()


def decrypt_ids(core: Core, conn: Connection, batch_id: str) -> Ids | None:
    """Return the distinct ids of all requests of a batch; None if no body is stored.

    The read is repeated if a purge replaces the key at the same time.
    """
    with contextlib.suppress(KeyFileError):
        return _read_ids(core, conn, batch_id)
    for _ in range(_TRIES):
        with contextlib.suppress(KeyFileError), core.database.reading() as fresh:
            return _read_ids(core, fresh, batch_id)
    return _read_ids(core, conn, batch_id)


def _read_ids(core: Core, connection: Connection, batch_id: str) -> Ids | None:
    columns = select(requests.c.id, requests.c.intake_key, requests.c.sealed)
    has_body = (requests.c.batch_id == batch_id) & requests.c.sealed.is_not(None)
    rows = connection.execute(columns.where(has_body).order_by(requests.c.id)).all()
    parts = [read_body(core, row.intake_key, row.id, row.sealed) for row in rows]
    return parts[0].concat(*parts[1:]).distinct() if parts else None


def get_cached_key(core: Core) -> str:
    """Return the id of the current intake key from a cache; create a key if there is none."""
    cache = core.database.cached_values
    if _CURRENT not in cache:
        key = core.database.read_value(_CURRENT_KEY)
        cache[_CURRENT] = key or _change_key(core, None)
    return cache[_CURRENT]


def lock_current_key(core: Core, connection: Connection) -> str:
    """Return the id of the current intake key and lock its row until the transaction ends."""
    key = connection.scalar(_LOCKED_KEY)
    if not key:
        raise LedgerBusyError("the ledger has no key for new requests yet; try again")
    core.database.cached_values[_CURRENT] = key
    return str(key)


def rotate_intake_key(core: Core, batch_id: str) -> None:
    """Make the bodies of a batch permanently unreadable; repeated calls are harmless.

    The bodies are deleted, and so are those of duplicates whose people are all erased. Bodies of
    open requests are encrypted with a new key, and older keys are destroyed. A key is kept if a
    body could not be read and still needs it.
    """
    _change_key(core, batch_id)
    is_idle = ~exists().where(requests.c.intake_key == intake_keys.c.id)
    is_old = intake_keys.c.id != _CURRENT_KEY.scalar_subquery()
    query = select(intake_keys.c.id).where(intake_keys.c.destroyed_at.is_(None), is_old, is_idle)
    old = [row.id for row in core.database.read(query)]
    for key in old:
        core.keys.destroy(key)
    if old:
        with core.database.transaction() as connection:
            change = update(intake_keys).where(intake_keys.c.id.in_(old))
            connection.execute(change.values(destroyed_at=core.clock()))


def _change_key(core: Core, batch_id: str | None) -> str:
    """Make a new intake key current and return its id; delete the bodies of the batch.

    If `batch_id` is None, an existing key is kept and returned.
    """
    with core.database.transaction() as connection:
        require_own_log(connection)
        old = connection.scalar(_CURRENT_KEY.with_for_update())
        if old and batch_id is None:
            return str(old)
        if old and core.keys.has(str(old)):
            _destroy_unrecorded(core, connection)
        key = _make_current(core, connection)
        if batch_id is not None:
            _drop_bodies(connection, batch_id)
            _encrypt_bodies(core, connection, key)
    core.database.cached_values[_CURRENT] = key
    return key


def _make_current(core: Core, connection: Connection) -> str:
    key = core.keys.new_key("intake")
    connection.execute(insert(intake_keys).values(id=key, created_at=core.clock()))
    connection.execute(update(meta).where(meta.c.key == _CURRENT).values(value=key))
    return key


def replace_lost_key(core: Core, connection: Connection) -> None:
    """Create a new intake key if the key file is missing, so that new requests can be stored."""
    key = connection.scalar(_CURRENT_KEY.with_for_update())
    if key and not core.keys.has(str(key)):
        _make_current(core, connection)


def list_lost_keys(core: Core, connection: Connection) -> list[str]:
    """Return the ids of intake keys that are missing, but that bodies of requests need."""
    query = select(requests.c.intake_key).where(requests.c.intake_key.is_not(None)).distinct()
    return [str(key) for key in connection.scalars(query) if not core.keys.has(str(key))]


def unreadable_requests(core: Core, connection: Connection) -> list[str]:
    """Return the ids of the requests whose bodies cannot be read because their key is missing."""
    lost = requests.c.intake_key.in_(list_lost_keys(core, connection))
    return list(connection.scalars(select(requests.c.id).where(lost).order_by(requests.c.id)))


def _destroy_unrecorded(core: Core, connection: Connection) -> None:
    """Destroy intake keys that a process created but never recorded in the database.

    The caller holds the lock of the current key, so no other process is creating a key. Do not call
    this if the current key is missing: a newer database may need the other keys.
    """
    recorded = set(connection.scalars(select(intake_keys.c.id)))
    for key in core.keys.list_ids("intake"):
        if key not in recorded:
            core.keys.destroy(key)


def _drop_bodies(connection: Connection, batch_id: str) -> None:
    done = requests.c.batch_id == batch_id
    connection.execute(update(requests).where(done).values(NO_BODY))
    waiting = (requests.c.state == "duplicate") & requests.c.sealed.is_not(None)
    uncovered = _select_unfinished_people(batch_id).where(blocked.c.request_id == requests.c.id)
    connection.execute(update(requests).where(waiting, ~uncovered.exists()).values(NO_BODY))


def _encrypt_bodies(core: Core, connection: Connection, key: str) -> None:
    """Encrypt all stored bodies with a new key.

    The bodies are read in chunks, because a server ends a session that is idle for long. Unreadable
    bodies stay unchanged; `letheon doctor` reports them.
    """
    columns = select(requests.c.id, requests.c.intake_key, requests.c.sealed)
    readable = requests.c.intake_key.not_in(list_lost_keys(core, connection))
    query = columns.where(requests.c.sealed.is_not(None), readable).order_by(requests.c.id)
    # A request that is withdrawn at the same time has no body any more; it must not get one.
    has_body = (requests.c.id == bindparam("request")) & requests.c.sealed.is_not(None)
    change = update(requests).where(has_body).values(sealed=bindparam("body"), intake_key=key)
    ciphers = {key: core.keys.load_cipher(key)}
    rows = connection.execute(query.limit(_CHUNK)).all()
    while rows:
        for old in {row.intake_key for row in rows} - set(ciphers):
            ciphers[old] = core.keys.load_cipher(old)
        bodies = []
        for row in rows:
            context = _encryption_context(row.id)
            data = ciphers[row.intake_key].decrypt(row.sealed, context)
            bodies.append({"request": row.id, "body": ciphers[key].encrypt(data, context)})
        connection.execute(change, bodies)
        rows = connection.execute(query.where(requests.c.id > rows[-1].id).limit(_CHUNK)).all()


def is_covered(connection: Connection, request_id: str, batch_id: str | None = None) -> bool:
    """Return whether finished requests have erased all people of a request.

    The requests of the batch `batch_id` count as finished.
    """
    uncovered = _select_unfinished_people(batch_id).where(blocked.c.request_id == request_id)
    return connection.execute(uncovered.limit(1)).first() is None


def _select_unfinished_people(batch_id: str | None) -> Select[tuple[str]]:
    def is_finished(claim: FromClause) -> ColumnElement[bool]:
        return or_(claim.c.state.in_(FINISHED), claim.c.batch_id == (batch_id or "none"))

    return _select_unerased_people(is_finished)


def _select_unerased_people(
    is_done: Callable[[FromClause], ColumnElement[bool]],
) -> Select[tuple[str]]:
    """Select the people of requests, without those in a request that satisfies `is_done`."""
    other, claim = blocked.alias(), requests.alias()
    same = (other.c.model_id == blocked.c.model_id) & (other.c.tag == blocked.c.tag)
    joined = select(other.c.tag).join(claim, claim.c.id == other.c.request_id)
    return select(blocked.c.tag).where(~joined.where(same, is_done(claim)).exists())


class Claimant(NamedTuple):
    """A verified request, the tags of its people, and whether it needs an approval."""

    request_id: str
    tenant: str
    model_id: int
    tags: Sequence[str]
    needs_approval: bool = False


def lock_model(connection: Connection, model_id: int | ScalarSelect[int], *, alone: bool) -> None:
    """Lock the claims on a model until the transaction ends.

    `alone=True` locks exclusively, to change owners; `alone=False` is shared, to add claims.
    """
    query = select(models.c.id).where(models.c.id == model_id)
    connection.execute(query.with_for_update(read=not alone, key_share=not alone))


def claim_people(connection: Connection, claimants: Sequence[Claimant]) -> dict[str, str]:
    """Claim all people of these requests.

    Returns
    -------
    dict
        Each request that owns no person, with the id of a request that owns one of its people.
    """
    claims = [
        {
            "tenant": request.tenant,
            "model_id": request.model_id,
            "tag": tag,
            "request_id": request.request_id,
        }
        for request in claimants
        for tag in request.tags
    ]
    # The same order in all transactions, so that they cannot deadlock.
    claims.sort(key=lambda row: (row["model_id"], row["tag"]))
    owned = set(_insert(connection, [row | {"owner": True} for row in claims]))
    rest = [row for row in claims if (row["request_id"], row["tag"]) not in owned]
    ready = {request.request_id for request in claimants if not request.needs_approval}
    owned |= _take_over(connection, [row for row in rest if row["request_id"] in ready])
    rest = [row | {"owner": (row["request_id"], row["tag"]) in owned} for row in rest]
    _insert(connection, rest)
    owners = {request_id for request_id, _ in owned}
    waits = {}
    for request in claimants:
        if request.request_id not in owners:
            is_owner = _is_person(request.model_id, request.tags[0]) & blocked.c.owner
            query = select(blocked.c.request_id).where(is_owner)
            waits[request.request_id] = str(connection.scalars(query).one())
    return waits


def _is_person(model_id: int, tag: Any) -> ColumnElement[bool]:
    return and_(blocked.c.model_id == model_id, blocked.c.tag == tag)


def _take_over(connection: Connection, claims: Sequence[dict[str, Any]]) -> set[tuple[str, str]]:
    """Release claimed people whose owner waits for an approval.

    Return (id of the new owner, tag) for each released person.
    """
    firsts: dict[tuple[int, str], str] = {}
    for row in claims:
        firsts.setdefault((row["model_id"], row["tag"]), row["request_id"])
    waits = blocked.c.owner & (requests.c.state == "verified")
    query = select(blocked.c.model_id, blocked.c.tag, blocked.c.request_id).join(requests)
    released = set()
    rows: list[Any] = select_in(connection, query.where(waits), _PERSON, firsts)
    for model_id, tag, owner in sorted(rows):
        heir = firsts[model_id, tag]
        is_theirs = _is_person(model_id, tag) & blocked.c.owner & (blocked.c.request_id == owner)
        change = update(blocked).where(is_theirs).values(owner=False)
        # If two requests do this at the same time, the second finds nothing to release.
        if heir != owner and connection.execute(change).rowcount:
            released.add((heir, tag))
    return released


def find_needing_approval(connection: Connection, request_ids: Iterable[str]) -> set[str]:
    """Return those of the requests that are marked as needing an approval."""
    query = select(events.c.about).where(events.c.kind == NEEDS_APPROVAL)
    return {row.about for row in select_in(connection, query, events.c.about, request_ids)}


def find_known_tags(
    connection: Connection, pairs: Iterable[tuple[int, str]]
) -> set[tuple[int, str]]:
    """Return those of the pairs (model, tag) that an earlier request has claimed."""
    query = select(blocked.c.model_id, blocked.c.tag)
    return {(row.model_id, row.tag) for row in select_in(connection, query, _PERSON, pairs)}


def find_known_people(
    connection: Connection, model_id: int, tags: list[str], ids: Ids, people: IdIndex
) -> list[str]:
    """Return the tags of those people who are in the model or in an earlier request."""
    known = find_known_tags(connection, [(model_id, tag) for tag in tags])
    in_model = people.find(ids).has_rows
    return [
        tag for tag, is_in in zip(tags, in_model, strict=True) if is_in or (model_id, tag) in known
    ]


def release_claims(
    connection: Connection, request_id: str, model_id: int, *, at: int, policy: Policy
) -> list[str]:
    """Delete the claims of a withdrawn request; return the duplicates that take over its people.

    These requests are queued, or wait for an approval if they need one. Other duplicates of the
    withdrawn request become duplicates of these requests.
    """
    lock_model(connection, model_id, alone=True)
    mine = blocked.c.request_id == request_id
    tags = list(connection.scalars(select(blocked.c.tag).where(mine, blocked.c.owner)))
    connection.execute(delete(blocked).where(mine))
    heirs = sorted(set(_assign_owners(connection, model_id, tags, policy).values()))
    query = select(requests.c.id, requests.c.n_rows).where(requests.c.state == "duplicate")
    waiting = {row.id: row.n_rows for row in select_in(connection, query, requests.c.id, heirs)}
    marked = find_needing_approval(connection, waiting)
    large = {key for key, n in waiting.items() if key in marked or policy.needs_approval(n)}
    move_requests(
        connection, [key for key in waiting if key in large], "verified", at=at, duplicate_of=None
    )
    small = [key for key in waiting if key not in large]
    move_requests(connection, small, "queued", at=at, duplicate_of=None)
    _redirect_duplicates(connection, request_id, model_id, at=at)
    return list(waiting)


def _assign_owners(
    connection: Connection, model_id: int, tags: Sequence[str], policy: Policy
) -> dict[str, str]:
    """Choose a new owner for each person; return the request by the tag of the person.

    A request that has erased the person comes first, then the oldest request. Requests that need an
    approval come last.
    """
    rank = case((has_erased(requests), 0), (_waits_for_approval(policy), 2), else_=1)
    order = (rank, requests.c.received_at, requests.c.id)
    query = select(blocked.c.tag, blocked.c.request_id).join(requests).order_by(*order)
    query = query.where(blocked.c.model_id == model_id)
    heirs: dict[str, str] = {}
    for row in select_in(connection, query, blocked.c.tag, tags):
        heirs.setdefault(row.tag, row.request_id)
    if heirs:
        is_heir = blocked.c.request_id == bindparam("heir")
        change = update(blocked).where(_is_person(model_id, bindparam("person")), is_heir)
        rows = [{"person": tag, "heir": heir} for tag, heir in heirs.items()]
        connection.execute(change.values(owner=True), rows)
    return heirs


def _waits_for_approval(policy: Policy) -> ColumnElement[bool]:
    """Return the SQL condition that a request waits for, or will need, an approval."""
    mark = (events.c.about == requests.c.id) & (events.c.kind == NEEDS_APPROVAL)
    needs: list[ColumnElement[bool]] = [select(events.c.id).where(mark).exists()]
    if policy.approve_above is not None:
        needs.append(requests.c.n_rows > policy.approve_above)
    is_idle = requests.c.state == "duplicate"
    return or_(requests.c.state == "verified", is_idle & or_(*needs))


def _redirect_duplicates(
    connection: Connection, request_id: str, model_id: int, *, at: int
) -> None:
    """Make the duplicates of a request that owns no people wait for another request.

    The new request has erased, or will erase, the people of the duplicate.
    """
    waiting = requests.c.duplicate_of == request_id
    query = select(requests.c.id, func.min(blocked.c.tag).label("tag")).where(waiting)
    query = query.join(blocked, blocked.c.request_id == requests.c.id).group_by(requests.c.id)
    behind: dict[str, list[str]] = {}
    for row in connection.execute(query.order_by(requests.c.id)):
        behind.setdefault(row.tag, []).append(row.id)
    # A request that has erased the person comes first, then the owner.
    has_left = has_erased(requests) & requests.c.batch_id.is_not(None)
    order = (case((has_left, 0), (blocked.c.owner, 1), else_=2), requests.c.id)
    claims = select(blocked.c.request_id).join(requests).order_by(*order).limit(1)
    for tag, followers in sorted(behind.items()):
        leader = str(connection.scalars(claims.where(_is_person(model_id, tag))).one())
        moved = [key for key in followers if key != leader]
        if moved and leader != request_id:
            change = update(requests).where(requests.c.id == bindparam("request"))
            rows = [{"request": key} for key in moved]
            connection.execute(change.values(duplicate_of=leader), rows)
            bodies = [{"request": key, "of": leader} for key in moved]
            record_events(connection, "waits-for", bodies, at)


def mark_queued_duplicates(core: Core, model_id: int) -> list[str]:
    """Mark queued requests whose people are all erased as duplicates; return their ids.

    Requests may have people in common. If other requests have erased all people of a queued
    request, the queued request has nothing left to erase.
    """

    def mark_all(connection: Connection) -> list[str]:
        mine = _select_unerased_people(has_erased).where(blocked.c.request_id == requests.c.id)
        idle = (requests.c.model_id == model_id) & (requests.c.state == "queued")
        query = select(requests.c.id).where(idle, ~mine.exists()).order_by(requests.c.id)
        idle_ids = list(connection.scalars(query))
        for request_id in idle_ids:
            erasers = _select_same_people(request_id).where(has_erased(requests))
            now = core.clock()
            mark_duplicate(connection, request_id, str(connection.scalars(erasers).one()), now)
            _redirect_duplicates(connection, request_id, model_id, at=now)
        return idle_ids

    return core.database.run_transaction(mark_all)


def mark_duplicate(connection: Connection, request_id: str, owner: str, now: int) -> None:
    """Make a request a duplicate of the request that erases its people."""
    columns = NO_BODY if is_covered(connection, request_id) else {}
    fields: dict[str, str | int] = {"of": owner}
    move_requests(
        connection, request_id, "duplicate", at=now, fields=fields, duplicate_of=owner, **columns
    )


def _select_same_people(request_id: str) -> Select[tuple[str]]:
    """Select the first request that has a person in common with this request."""
    mine, other = blocked.alias(), blocked.alias()
    same = (other.c.model_id == mine.c.model_id) & (other.c.tag == mine.c.tag)
    query = select(requests.c.id).join(other, other.c.request_id == requests.c.id).join(mine, same)
    return query.where(mine.c.request_id == request_id).order_by(requests.c.id).limit(1)


def require_not_applying(connection: Connection, request_id: str) -> None:
    """Raise `RequestStateError` if another request is erasing a person of this request.

    The error is also raised if the person is already erased.
    """
    leaving = or_(requests.c.state == "applying", has_erased(requests))
    query = _select_same_people(request_id).where(requests.c.id != request_id, leaving)
    other = connection.scalar(query)
    if other is not None:
        raise RequestStateError(
            f"request {request_id} cannot be put on hold: request {other} contains some of the "
            "same people, and they are being erased or are already erased"
        )
