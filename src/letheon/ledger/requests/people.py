"""The people of requests: their sealed ids, who erases whom, and the states that requests pass.

A body, the ids of a request, is sealed under the current intake key. A purge seals the open ones
again under a new key and destroys the old one, so that nothing of a closed body can be read from
any copy of the database. Whoever seals or unseals in a transaction holds the row that names the
current key.

Every person of a model is owned by one request at most. A verified request claims everybody whom it
names. The first one owns the person; the database allows one owner only, so racing requests have
one effect. A request that owns nobody is a duplicate: it waits behind the owners, with its own
clock. When an owner is withdrawn, its people pass on to the next request that claims them. An owner
that waits for an approval keeps nobody waiting: a request that needs none takes its people over.
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
"""The event of a request that waits for an approval however few rows it has."""

NO_BODY: dict[str, Any] = {"sealed": None, "intake_key": None}
"""Columns of a request whose ids are gone."""

_CURRENT = "intake_key"
_encode = json.JSONEncoder(separators=(",", ":")).encode
_INT64 = struct.Struct(">q")
_TRIES = 5
_CHUNK = 500
_CURRENT_KEY = select(meta.c.value).where(meta.c.key == _CURRENT)
_HELD = _CURRENT_KEY.with_for_update(read=True)
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
    # In order of id: two transactions that lock the same rows must not cross.
    query = select(requests.c.id, requests.c.state).order_by(requests.c.id).with_for_update()
    states = {row.id: row.state for row in select_in(connection, query, requests.c.id, ids)}
    for request in ids:
        if request not in states:
            raise UnknownRequestError(f"no request {request}")
        if (states[request], after) not in ALLOWED:
            raise RequestStateError(
                f"request {request} is {states[request]}; it cannot become {after}"
            )
    for chunk in split_into_chunks(ids):
        change = update(requests).where(requests.c.id.in_(chunk))
        connection.execute(change.values(state=after, **columns))
    bodies = [{"request": request, "from": states[request], **(fields or {})} for request in ids]
    record_events(connection, after, bodies, at)


def has_erased(table: FromClause) -> ColumnElement[bool]:
    """Whether a request's people have left the model; `table` is `requests` or an alias."""
    stuck_later = (table.c.state == "stuck") & table.c.batch_id.is_not(None)
    return or_(table.c.state.in_(PUBLISHED), stuck_later)


def encode_ids(ids: Ids) -> list[bytes]:
    """Return the canonical bytes of each id: ``i`` + 8 bytes, or ``s`` + UTF-8."""
    values: Sequence[Any] = ids.to_list()
    if isinstance(ids, IntIds):
        return [b"i" + _INT64.pack(value) for value in values]
    return [b"s" + value.encode() for value in values]


def compute_person_tags(core: Core, tenant: str, ids: Ids) -> list[str]:
    """Return one tag for each id: equal for equal people of a tenant, and nothing else."""
    return compute_tags(core, tenant, encode_ids(ids))


def compute_tags(core: Core, tenant: str, names: Sequence[bytes]) -> list[str]:
    """Return one tag for each of the canonical bytes of an id; see `person_tags`."""
    scope = tenant.encode()
    return [core.keys.compute_tag("person", scope, one) for one in names]


def make_body_encrypter(core: Core, key: str) -> Callable[[str, Ids], bytes]:
    """Return what seals ids, bound to their request, under a key that is read once."""
    seal = core.keys.load_cipher(key).encrypt
    return lambda request_id, ids: seal(
        _encode(ids.to_list()).encode(), _encryption_context(request_id)
    )


def read_body(core: Core, key: str, request_id: str, sealed: bytes) -> Ids:
    """Return the ids of a request."""
    return as_ids(json.loads(core.keys.decrypt(key, sealed, _encryption_context(request_id))))


def _encryption_context(request_id: str) -> bytes:
    return b"letheon/request/v1/" + request_id.encode()


def decrypt_ids(core: Core, conn: Connection, batch_id: str) -> Ids | None:
    """Return the people of all requests of a batch, each once; None if there are none.

    Read again when a purge exchanges the key meanwhile.
    """
    with contextlib.suppress(KeyFileError):
        return _read_ids(core, conn, batch_id)
    for _ in range(_TRIES):
        with contextlib.suppress(KeyFileError), core.database.reading() as fresh:
            return _read_ids(core, fresh, batch_id)
    return _read_ids(core, conn, batch_id)


def _read_ids(core: Core, connection: Connection, batch_id: str) -> Ids | None:
    columns = select(requests.c.id, requests.c.intake_key, requests.c.sealed)
    wanted = (requests.c.batch_id == batch_id) & requests.c.sealed.is_not(None)
    rows = connection.execute(columns.where(wanted).order_by(requests.c.id)).all()
    parts = [read_body(core, row.intake_key, row.id, row.sealed) for row in rows]
    return parts[0].concat(*parts[1:]).distinct() if parts else None


def get_cached_key(core: Core) -> str:
    """Return the intake key that was current a moment ago; made if there was none yet."""
    remembered = core.database.cached_values
    if _CURRENT not in remembered:
        key = core.database.read_value(_CURRENT_KEY)
        remembered[_CURRENT] = key or _change_key(core, None)
    return remembered[_CURRENT]


def lock_current_key(core: Core, connection: Connection) -> str:
    """Return the current intake key; it stays current until the transaction ends."""
    key = connection.scalar(_HELD)
    if not key:
        raise LedgerBusyError("the ledger has no intake key yet; try again")
    core.database.cached_values[_CURRENT] = key
    return str(key)


def rotate_intake_key(core: Core, batch_id: str) -> None:
    """Make the bodies of a batch unreadable for ever.

    They are removed, as are those of duplicates whose people are all erased. The open ones are
    sealed under a new key, and every older key is destroyed, but for one that could not be read
    just now. May be repeated.
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
    """Make a new key current, unless it is only needed and somebody else has made one."""
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
    """Make a new key current if the current one is gone: new requests can be sealed then."""
    key = connection.scalar(_CURRENT_KEY.with_for_update())
    if key and not core.keys.has(str(key)):
        _make_current(core, connection)


def list_lost_keys(core: Core, connection: Connection) -> list[str]:
    """Return the keys that requests are sealed under and that are gone."""
    query = select(requests.c.intake_key).where(requests.c.intake_key.is_not(None)).distinct()
    return [str(key) for key in connection.scalars(query) if not core.keys.has(str(key))]


def unreadable_requests(core: Core, connection: Connection) -> list[str]:
    """Return the requests whose ids cannot be read any more, since their key is gone."""
    lost = requests.c.intake_key.in_(list_lost_keys(core, connection))
    return list(connection.scalars(select(requests.c.id).where(lost).order_by(requests.c.id)))


def _destroy_unrecorded(core: Core, connection: Connection) -> None:
    """Destroy keys that a process made and never recorded; the row that is held excludes others.

    Not where the database has no key, or one that is gone: a later database may need the others.
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
    """Seal all bodies under a new key, some at a time: a server ends a session that is idle.

    Those that cannot be read stay as they are; `letheon doctor` names them.
    """
    columns = select(requests.c.id, requests.c.intake_key, requests.c.sealed)
    readable = requests.c.intake_key.not_in(list_lost_keys(core, connection))
    query = columns.where(requests.c.sealed.is_not(None), readable).order_by(requests.c.id)
    # Who withdraws a request meanwhile drops its body, and that stays so.
    still = (requests.c.id == bindparam("request")) & requests.c.sealed.is_not(None)
    change = update(requests).where(still).values(sealed=bindparam("body"), intake_key=key)
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
    """Whether everybody whom a request names was erased by requests that are finished.

    Those of one more batch count as finished, if it is given.
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
    """Select the people of requests whom no request that is done names."""
    other, claim = blocked.alias(), requests.alias()
    same = (other.c.model_id == blocked.c.model_id) & (other.c.tag == blocked.c.tag)
    joined = select(other.c.tag).join(claim, claim.c.id == other.c.request_id)
    return select(blocked.c.tag).where(~joined.where(same, is_done(claim)).exists())


class Claimant(NamedTuple):
    """A verified request, the tags of the people whom it names, and whether it has to wait."""

    request_id: str
    tenant: str
    model_id: int
    tags: Sequence[str]
    needs_approval: bool = False


def lock_model(connection: Connection, model_id: int | ScalarSelect[int], *, alone: bool) -> None:
    """Keep claims on a model from changing owners: `alone` to pass on, shared to claim."""
    query = select(models.c.id).where(models.c.id == model_id)
    connection.execute(query.with_for_update(read=not alone, key_share=not alone))


def claim_people(connection: Connection, claimants: Sequence[Claimant]) -> dict[str, str]:
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
    waits = {}
    for one in claimants:
        if one.request_id not in owners:
            here = _is_person(one.model_id, one.tags[0]) & blocked.c.owner
            query = select(blocked.c.request_id).where(here)
            waits[one.request_id] = str(connection.scalars(query).one())
    return waits


def _is_person(model_id: int, tag: Any) -> ColumnElement[bool]:
    return and_(blocked.c.model_id == model_id, blocked.c.tag == tag)


def _take_over(connection: Connection, wanted: Sequence[dict[str, Any]]) -> set[tuple[str, str]]:
    """Free people whose owner waits for an approval; return who may own whom instead."""
    firsts: dict[tuple[int, str], str] = {}
    for row in wanted:
        firsts.setdefault((row["model_id"], row["tag"]), row["request_id"])
    waits = blocked.c.owner & (requests.c.state == "verified")
    query = select(blocked.c.model_id, blocked.c.tag, blocked.c.request_id).join(requests)
    taken = set()
    rows: list[Any] = select_in(connection, query.where(waits), _PERSON, firsts)
    for model_id, tag, owner in sorted(rows):
        heir = firsts[model_id, tag]
        is_theirs = _is_person(model_id, tag) & blocked.c.owner & (blocked.c.request_id == owner)
        change = update(blocked).where(is_theirs).values(owner=False)
        # Of two who come at once the second one finds nothing to free.
        if heir != owner and connection.execute(change).rowcount:
            taken.add((heir, tag))
    return taken


def find_needing_approval(connection: Connection, request_ids: Iterable[str]) -> set[str]:
    """Return which of these requests were marked as waiting for an approval."""
    query = select(events.c.about).where(events.c.kind == NEEDS_APPROVAL)
    return {row.about for row in select_in(connection, query, events.c.about, request_ids)}


def find_known_tags(
    connection: Connection, pairs: Iterable[tuple[int, str]]
) -> set[tuple[int, str]]:
    """Return those of the pairs (model, tag) whose person was asked for before."""
    query = select(blocked.c.model_id, blocked.c.tag)
    return {(row.model_id, row.tag) for row in select_in(connection, query, _PERSON, pairs)}


def find_known_people(
    connection: Connection, model_id: int, tags: list[str], ids: Ids, people: IdIndex
) -> list[str]:
    """Return the tags of the people whom the model holds, or whom an earlier request named."""
    known = find_known_tags(connection, [(model_id, tag) for tag in tags])
    is_held = people.find(ids).has_rows
    return [
        tag for tag, here in zip(tags, is_held, strict=True) if here or (model_id, tag) in known
    ]


def release_claims(
    connection: Connection, request_id: str, model_id: int, *, at: int, policy: Policy
) -> list[str]:
    """Give up all claims of a withdrawn request; return who erases its people instead.

    They are queued, or wait for an approval if they are of many rows. Who waited behind it too and
    owns nobody now either waits behind them.
    """
    lock_model(connection, model_id, alone=True)
    mine = blocked.c.request_id == request_id
    tags = list(connection.scalars(select(blocked.c.tag).where(mine, blocked.c.owner)))
    connection.execute(delete(blocked).where(mine))
    heirs = sorted(set(_assign_owners(connection, model_id, tags, policy).values()))
    query = select(requests.c.id, requests.c.n_rows).where(requests.c.state == "duplicate")
    waiting = {row.id: row.n_rows for row in select_in(connection, query, requests.c.id, heirs)}
    marked = find_needing_approval(connection, waiting)
    large = {one for one, n in waiting.items() if one in marked or policy.needs_approval(n)}
    move_requests(
        connection, [one for one in waiting if one in large], "verified", at=at, duplicate_of=None
    )
    small = [one for one in waiting if one not in large]
    move_requests(connection, small, "queued", at=at, duplicate_of=None)
    _redirect_duplicates(connection, request_id, model_id, at=at)
    return list(waiting)


def _assign_owners(
    connection: Connection, model_id: int, tags: Sequence[str], policy: Policy
) -> dict[str, str]:
    """Make a claim on each person the owner: of who has erased them, else the oldest.

    One that has to wait for an approval comes last.
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
    """Whether a request would own people and wait for an approval."""
    mark = (events.c.about == requests.c.id) & (events.c.kind == NEEDS_APPROVAL)
    needs: list[ColumnElement[bool]] = [select(events.c.id).where(mark).exists()]
    if policy.approve_above is not None:
        needs.append(requests.c.n_rows > policy.approve_above)
    is_idle = requests.c.state == "duplicate"
    return or_(requests.c.state == "verified", is_idle & or_(*needs))


def _redirect_duplicates(
    connection: Connection, request_id: str, model_id: int, *, at: int
) -> None:
    """Let who waits behind a request that erases nobody wait behind one that does, or has."""
    waiting = requests.c.duplicate_of == request_id
    query = select(requests.c.id, func.min(blocked.c.tag).label("tag")).where(waiting)
    query = query.join(blocked, blocked.c.request_id == requests.c.id).group_by(requests.c.id)
    behind: dict[str, list[str]] = {}
    for row in connection.execute(query.order_by(requests.c.id)):
        behind.setdefault(row.tag, []).append(row.id)
    # Who has erased the person leads, else who is to.
    has_left = has_erased(requests) & requests.c.batch_id.is_not(None)
    order = (case((has_left, 0), (blocked.c.owner, 1), else_=2), requests.c.id)
    claims = select(blocked.c.request_id).join(requests).order_by(*order).limit(1)
    for tag, followers in sorted(behind.items()):
        leader = str(connection.scalars(claims.where(_is_person(model_id, tag))).one())
        moved = [one for one in followers if one != leader]
        if moved and leader != request_id:
            change = update(requests).where(requests.c.id == bindparam("request"))
            rows = [{"request": one} for one in moved]
            connection.execute(change.values(duplicate_of=leader), rows)
            bodies = [{"request": one, "of": leader} for one in moved]
            record_events(connection, "waits-for", bodies, at)


def mark_queued_duplicates(core: Core, model_id: int) -> list[str]:
    """Take requests off the queue whose people were all erased with others'; return their ids.

    Requests may name some of the same people. When the last of them left with another request,
    there is nothing to apply: what is still queued becomes a duplicate of what erased them.
    """

    def work(connection: Connection) -> list[str]:
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

    return core.database.run_transaction(work)


def mark_duplicate(connection: Connection, request_id: str, owner: str, now: int) -> None:
    """Make a request a duplicate of the one that erases its people."""
    columns = NO_BODY if is_covered(connection, request_id) else {}
    fields: dict[str, str | int] = {"of": owner}
    move_requests(
        connection, request_id, "duplicate", at=now, fields=fields, duplicate_of=owner, **columns
    )


def _select_same_people(request_id: str) -> Select[tuple[str]]:
    """Select the first request that names somebody whom this one names, too."""
    mine, other = blocked.alias(), blocked.alias()
    same = (other.c.model_id == mine.c.model_id) & (other.c.tag == mine.c.tag)
    query = select(requests.c.id).join(other, other.c.request_id == requests.c.id).join(mine, same)
    return query.where(mine.c.request_id == request_id).order_by(requests.c.id).limit(1)


def require_not_applying(connection: Connection, request_id: str) -> None:
    """Refuse a hold that comes too late: somebody whom it names is erased by another request."""
    leaving = or_(requests.c.state == "applying", has_erased(requests))
    query = _select_same_people(request_id).where(requests.c.id != request_id, leaving)
    other = connection.scalar(query)
    if other is not None:
        raise RequestStateError(
            f"request {request_id} cannot be held: request {other} names some of the same "
            "people and is erasing them, or has"
        )
