"""What a request says: the ids of people, sealed under a key outside the database.

A body is sealed under the current intake key. A purge seals the open ones again under a new key
and destroys the old one, so that nothing of a closed body can be read from any copy of the
database. Whoever seals or unseals in a transaction holds the row that names the current key.
"""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    bindparam,
    exists,
    insert,
    or_,
    select,
    update,
)

from letheon.data import Ids, IntIds, as_ids
from letheon.exceptions import KeyFileError, LedgerBusyError
from letheon.ledger.core import Core
from letheon.ledger.db.events import require_own_log
from letheon.ledger.keys.encryption import seal, unseal
from letheon.ledger.requests.states import FINISHED
from letheon.ledger.tables import blocked, intake_keys, meta, requests

_CURRENT = "intake_key"
_encode = json.JSONEncoder(separators=(",", ":")).encode
_INT64 = struct.Struct(">q")
_TRIES = 5
_CHUNK = 500
_CURRENT_KEY = select(meta.c.value).where(meta.c.key == _CURRENT)
_HELD = _CURRENT_KEY.with_for_update(read=True)


def id_bytes(ids: Ids) -> list[bytes]:
    """Return the canonical bytes of each id: ``i`` + 8 bytes, or ``s`` + UTF-8."""
    values: Sequence[Any] = ids.to_list()
    if isinstance(ids, IntIds):
        return [b"i" + _INT64.pack(value) for value in values]
    return [b"s" + value.encode() for value in values]


def person_tags(core: Core, tenant: str, ids: Ids) -> list[str]:
    """Return one tag for each id: equal for equal people of a tenant, and nothing else."""
    return name_tags(core, tenant, id_bytes(ids))


def name_tags(core: Core, tenant: str, names: Sequence[bytes]) -> list[str]:
    """Return one tag for each of the canonical bytes of an id; see `person_tags`."""
    scope = tenant.encode()
    return [core.keys.tag("person", scope, one) for one in names]


def seal_body(core: Core, key: str, request_id: str, ids: Ids) -> bytes:
    """Return the ids sealed under a key and bound to their request."""
    return core.keys.seal(key, _text(ids), _context(request_id))


def body_sealer(core: Core, key: str) -> Callable[[str, Ids], bytes]:
    """Return what seals ids, bound to their request, under a key that is read once."""
    secret = core.keys.secret(key)
    return lambda request_id, ids: seal(secret, _text(ids), _context(request_id))


def read_body(core: Core, key: str, request_id: str, sealed: bytes) -> Ids:
    """Return the ids of a request."""
    return as_ids(json.loads(core.keys.unseal(key, sealed, _context(request_id))))


def unsealed_ids(core: Core, conn: Connection, batch_id: str) -> Ids | None:
    """Return the people of all requests of a batch, each once; None if there are none.

    Read again when a purge exchanges the key meanwhile.
    """
    try:
        return _ids_of(core, conn, batch_id)
    except KeyFileError:
        pass
    for _ in range(_TRIES):
        try:
            with core.database.reading() as fresh:
                return _ids_of(core, fresh, batch_id)
        except KeyFileError as error:
            last = error
    raise last


def _ids_of(core: Core, connection: Connection, batch_id: str) -> Ids | None:
    columns = select(requests.c.id, requests.c.intake_key, requests.c.sealed)
    wanted = (requests.c.batch_id == batch_id) & requests.c.sealed.is_not(None)
    rows = connection.execute(columns.where(wanted).order_by(requests.c.id)).all()
    parts = [read_body(core, row.intake_key, row.id, row.sealed) for row in rows]
    return parts[0].joined(*parts[1:]).distinct() if parts else None


def remembered_key(core: Core) -> str:
    """Return the intake key that was current a moment ago; made if there was none yet."""
    remembered = core.database.remembered
    if _CURRENT not in remembered:
        with core.database.reading() as connection:
            found = connection.scalar(_CURRENT_KEY)
        remembered[_CURRENT] = found or _change_key(core, None)
    return remembered[_CURRENT]


def hold_current_key(core: Core, connection: Connection) -> str:
    """Return the current intake key; it stays current until the transaction ends."""
    found = connection.scalar(_HELD)
    if not found:
        raise LedgerBusyError("the ledger has no intake key yet; try again")
    core.database.remembered[_CURRENT] = found
    return str(found)


def reseal(core: Core, batch_id: str) -> None:
    """Make the bodies of a batch unreadable for ever.

    They are removed, as are those of duplicates whose people are all erased. The open ones are
    sealed under a new key, and every older key is destroyed. May be repeated.
    """
    _change_key(core, batch_id)
    destroy_old_keys(core)


def destroy_old_keys(core: Core) -> None:
    """Destroy every intake key but the current one, and one that could not be read just now."""
    with core.database.reading() as connection:
        query = select(intake_keys.c.id).where(
            intake_keys.c.destroyed_at.is_(None),
            intake_keys.c.id != _CURRENT_KEY.scalar_subquery(),
            ~exists().where(requests.c.intake_key == intake_keys.c.id),
        )
        old = list(connection.scalars(query))
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
            _seal_again(core, connection, key)
    core.database.remembered[_CURRENT] = key
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


def lost_keys(core: Core, connection: Connection) -> list[str]:
    """Return the keys that requests are sealed under and that are gone."""
    query = select(requests.c.intake_key).where(requests.c.intake_key.is_not(None)).distinct()
    return [str(key) for key in connection.scalars(query) if not core.keys.has(str(key))]


def unreadable_requests(core: Core, connection: Connection) -> list[str]:
    """Return the requests whose ids cannot be read any more, since their key is gone."""
    lost = requests.c.intake_key.in_(lost_keys(core, connection))
    return list(connection.scalars(select(requests.c.id).where(lost).order_by(requests.c.id)))


def _destroy_unrecorded(core: Core, connection: Connection) -> None:
    """Destroy keys that a process made and never recorded; the row that is held excludes others.

    Not where the database has no key, or one that is gone: a later database may need the others.
    """
    recorded = set(connection.scalars(select(intake_keys.c.id)))
    for key in core.keys.ids("intake"):
        if key not in recorded:
            core.keys.destroy(key)


def _drop_bodies(connection: Connection, batch_id: str) -> None:
    gone = {"sealed": None, "intake_key": None}
    done = requests.c.batch_id == batch_id
    connection.execute(update(requests).where(done).values(gone))
    waiting = (requests.c.state == "duplicate") & requests.c.sealed.is_not(None)
    uncovered = _uncovered(batch_id).where(blocked.c.request_id == requests.c.id)
    connection.execute(update(requests).where(waiting, ~uncovered.exists()).values(gone))


def is_covered(connection: Connection, request_id: str, batch_id: str | None = None) -> bool:
    """Whether everybody whom a request names was erased by requests that are finished.

    Those of one more batch count as finished, if it is given.
    """
    uncovered = _uncovered(batch_id).where(blocked.c.request_id == request_id)
    return connection.execute(uncovered.limit(1)).first() is None


def _uncovered(batch_id: str | None) -> Select[tuple[str]]:
    def is_finished(claim: FromClause) -> ColumnElement[bool]:
        return or_(claim.c.state.in_(FINISHED), claim.c.batch_id == (batch_id or "none"))

    return uncovered_people(is_finished)


def uncovered_people(is_done: Callable[[FromClause], ColumnElement[bool]]) -> Select[tuple[str]]:
    """Select the people of requests whom no request that is done names."""
    other, claim = blocked.alias(), requests.alias()
    same = (other.c.model_id == blocked.c.model_id) & (other.c.tag == blocked.c.tag)
    joined = select(other.c.tag).join(claim, claim.c.id == other.c.request_id)
    return select(blocked.c.tag).where(~joined.where(same, is_done(claim)).exists())


def _seal_again(core: Core, connection: Connection, key: str) -> None:
    """Seal all bodies under a new key, some at a time: a server ends a session that is idle.

    Those that cannot be read stay as they are; `letheon doctor` names them.
    """
    columns = select(requests.c.id, requests.c.intake_key, requests.c.sealed)
    readable = requests.c.intake_key.not_in(lost_keys(core, connection))
    query = (
        columns.where(requests.c.sealed.is_not(None), readable)
        .order_by(requests.c.id)
        .limit(_CHUNK)
    )
    # Who withdraws a request meanwhile drops its body, and that stays so.
    still = (requests.c.id == bindparam("request")) & requests.c.sealed.is_not(None)
    change = update(requests).where(still)
    change = change.values(sealed=bindparam("body"), intake_key=key)
    secrets = {key: core.keys.secret(key)}
    rows = connection.execute(query).all()
    while rows:
        for old in {row.intake_key for row in rows} - set(secrets):
            secrets[old] = core.keys.secret(old)
        connection.execute(change, [_sealed_again(secrets, key, row) for row in rows])
        rows = connection.execute(query.where(requests.c.id > rows[-1].id)).all()


def _sealed_again(secrets: Mapping[str, bytes], key: str, row: Any) -> dict[str, Any]:
    context = _context(row.id)
    data = unseal(secrets[row.intake_key], row.sealed, context)
    return {"request": row.id, "body": seal(secrets[key], data, context)}


def _text(ids: Ids) -> bytes:
    return _encode(ids.to_list()).encode()


def _context(request_id: str) -> bytes:
    return b"letheon/request/v1/" + request_id.encode()
