"""Taking in requests: checked, encrypted, recorded once, durable before they are acknowledged.

A request is prepared outside the transaction (checks, tags), then stored with all others that
wait (`GroupCommit`), in a handful of statements for all of them.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, select, update
from sqlalchemy.exc import InterfaceError, OperationalError

from letheon.data import IdIndex, Ids, as_ids
from letheon.exceptions import (
    IdempotencyError,
    IdsLengthError,
    IdsTypeError,
    LedgerBusyError,
    UnknownIdError,
)
from letheon.ledger.certificates.receipt_codes import checked_public_key
from letheon.ledger.core import Core
from letheon.ledger.db import events
from letheon.ledger.db.bulk import RowsIn
from letheon.ledger.db.events import Event, actor
from letheon.ledger.db.group import GroupCommit
from letheon.ledger.faults import point
from letheon.ledger.models.versions import ModelRow
from letheon.ledger.requests import calendar
from letheon.ledger.requests.deadlines import REGIMES, due_on
from letheon.ledger.requests.encrypted_ids import (
    body_sealer,
    hold_current_key,
    id_bytes,
    is_covered,
    name_tags,
    remembered_key,
)
from letheon.ledger.requests.listing import find_requests
from letheon.ledger.requests.owners import NEEDS_APPROVAL, Claimant, claim, known_tags
from letheon.ledger.requests.states import REQUEST_GROUNDS, require_ground
from letheon.ledger.schemas import Request
from letheon.ledger.tables import requests

LONGEST_ID = 10_000
MOST_IDS = 100_000
LONGEST_KEY = 255

# No request is the cause, and each may come after a wait of 30 seconds.
_FOR_ALL = (OSError, LedgerBusyError, OperationalError, InterfaceError)

# Statements of every request are built once: building one takes as long as running it.
_BY_KEY = select(requests.c.key_tag, requests.c.id, requests.c.body_tag).where(
    requests.c.tenant == bindparam("tenant"),
    requests.c.key_tag.in_(bindparam("keys", expanding=True)),
)
_COLUMNS = (
    "id",
    "tenant",
    "model_id",
    "state",
    "regime",
    "ground",
    "received_at",
    "due_on",
    "key_tag",
    "body_tag",
    "nonce",
    "n_ids",
    "n_rows",
    "sealed",
    "intake_key",
    "filed_by",
    "verified_by",
    "receipt_key",
)
_insert_firsts = RowsIn(requests, _COLUMNS, unless_there=True, returning=("id",))


@dataclass(frozen=True)
class Prepared:
    """A request that was checked and waits to be stored.

    Attributes
    ----------
    core, model : Core, ModelRow
        Where it goes.
    ids : Ids
        Whom it names.
    tags, missing : tuple of str
        Tags of all of them, and of those whom the model does not hold, unless these are accepted.
    is_verified : bool
        Whether it is queued at once, or waits for an approval only.
    row : dict
        Columns of the request, but for its body, which is sealed when it is stored.
    needs_approval : bool
        Whether it waits for an approval however few rows it has.
    """

    core: Core
    model: ModelRow
    ids: Ids
    tags: tuple[str, ...]
    missing: tuple[str, ...]
    is_verified: bool
    row: dict[str, Any]
    needs_approval: bool = False

    @property
    def id(self) -> str:
        """Id that the request gets if it is the first with its key."""
        return str(self.row["id"])

    @property
    def key(self) -> str:
        """Tag of tenant and idempotency key."""
        return str(self.row["key_tag"])


def intake_group() -> GroupCommit[Prepared, Request]:
    """Return what lets the threads of a process share transactions; one for each open ledger."""
    return GroupCommit(record_all, for_all=_FOR_ALL)


def prepare(
    core: Core,
    model: ModelRow,
    ids: Any,
    *,
    key: str | None = None,
    regime: str = "gdpr",
    ground: str = "gdpr.art17.1.b",
    verified: bool = False,
    receipt_key: str | None = None,
    part_of: str | None = None,
    needs_approval: bool = False,
    accept_unknown: bool = False,
    ids_derived: bool = False,
    people: IdIndex,
) -> Prepared:
    """Check a request and do all work that needs no transaction.

    `people` are those in the newest version of the model; the rest as for `Requests.submit`.
    """
    tenant = model.tenant
    if regime not in REGIMES:
        raise ValueError(f"that regime is no registered code; expected one of {REGIMES}")
    require_ground(ground, REQUEST_GROUNDS[regime])
    named = _checked_ids(ids)
    names = id_bytes(named)
    tags = tuple(name_tags(core, tenant, names))
    is_held, n_rows = _held_rows(people, named)
    received, by = core.clock(), actor()
    first_state = "received"
    if verified:
        waits = needs_approval or core.settings.policy.needs_approval(n_rows)
        first_state = "verified" if waits else "queued"
    content = [model.name, regime, ground, "verified" if verified else "received"]
    content += [] if part_of is None else ["part-of", part_of]
    compared = [] if ids_derived and part_of is not None else sorted(names)
    row = {
        "id": secrets.token_hex(16),
        "tenant": tenant,
        "model_id": model.id,
        "state": first_state,
        "regime": regime,
        "ground": ground,
        "received_at": received,
        "due_on": _due_on(core, regime, received).isoformat(),
        "key_tag": core.keys.tag("key", tenant.encode(), _checked_key(key)),
        "body_tag": core.keys.tag("body", *(text.encode() for text in content), *compared),
        "nonce": secrets.token_hex(32),
        "n_ids": len(named),
        "n_rows": n_rows,
        "filed_by": by,
        "verified_by": by if verified else None,
        "receipt_key": _checked_receipt_key(receipt_key, named),
    }
    missing = tuple(
        tag for tag, here in zip(tags, is_held, strict=True) if not (here or accept_unknown)
    )
    return Prepared(core, model, named, tags, missing, verified, row, needs_approval)


def _due_on(core: Core, regime: str, received: int) -> date:
    return due_on(regime, datetime.fromtimestamp(received, UTC), core.settings.calendar)


def _checked_ids(ids: Any) -> Ids:
    if isinstance(ids, str | int):
        # Not `as_ids`' own words: they would repeat the id in somebody's log.
        raise IdsTypeError(f"ids is a single {type(ids).__name__}; give a list of ids")
    people = as_ids(ids).distinct()
    if len(people) == 0:
        raise IdsLengthError("a request names nobody; give at least one id")
    if len(people) > MOST_IDS:
        raise IdsLengthError(f"a request names at most {MOST_IDS} people; split it")
    values: Sequence[Any] = people.to_list()
    if people.kind == "str" and max(map(len, values)) > LONGEST_ID:
        raise IdsTypeError(f"an id has more than {LONGEST_ID} characters")
    return people


def _checked_receipt_key(key: str | None, people: Ids) -> str | None:
    if key is not None and len(people) != 1:
        raise ValueError(
            f"a receipt is for one person, and this request names {len(people)}; file one request "
            "for each of them"
        )
    return None if key is None else checked_public_key(key)


def _checked_key(key: str | None) -> bytes:
    """Return the bytes of an idempotency key; a random one where none was given."""
    if key is None:
        return secrets.token_bytes(32)
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        raise ValueError(f"an idempotency key is a text of 1 to {LONGEST_KEY} characters")
    try:
        return key.encode()
    except UnicodeEncodeError:
        raise ValueError("an idempotency key is valid Unicode text") from None


def _held_rows(people: IdIndex, named: Ids) -> tuple[list[bool], int]:
    """Return who of them is held, and how many rows they own together."""
    if len(named) == 1:
        n_rows = len(people.find_one(named))
        return [n_rows > 0], n_rows
    matches = people.find(named)
    return matches.found.tolist(), len(matches.positions)


class _Stored(NamedTuple):
    id: str
    body_tag: str


def record_all(items: Sequence[Prepared]) -> list[Request | Exception]:
    """Store requests durably; what is wrong with one of them does not touch the others."""
    core = items[0].core
    remembered_key(core)  # the very first request makes one

    def work(connection: Connection) -> list[Request | Exception]:
        events.require_own_log(connection)
        results = _record_in(core, connection, items)
        point("submit.before-commit")
        return results

    results = core.database.run(work)
    point("submit.after-commit")
    return results


def _record_in(
    core: Core, connection: Connection, items: Sequence[Prepared]
) -> list[Request | Exception]:
    intake_key = hold_current_key(core, connection)
    refused = _refused(connection, items)
    firsts: dict[str, Prepared] = {}
    for item in items:
        if item.id not in refused:
            firsts.setdefault(item.key, item)
    mine = _insert(core, connection, firsts, intake_key)
    stored = {item.key: _Stored(item.id, item.row["body_tag"]) for item in mine}
    stored |= _stored(connection, [item for key, item in firsts.items() if key not in stored])
    duplicates = _claim(connection, [item for item in mine if item.is_verified])
    events.record_all(connection, [event for item in mine for event in _story(item, duplicates)])
    fresh = {item.id: _request(item, duplicates) for item in mine}
    old = {one.id for one in stored.values()} - fresh.keys()
    known = fresh | find_requests(connection, old)
    return [refused.get(item.id) or _answer(item, stored[item.key], known) for item in items]


def _stored(connection: Connection, items: Sequence[Prepared]) -> dict[str, _Stored]:
    """Return the requests that have one of these keys already."""
    keys: dict[str, set[str]] = {}
    for item in items:
        keys.setdefault(item.row["tenant"], set()).add(item.key)
    found: dict[str, _Stored] = {}
    for tenant, wanted in keys.items():
        rows = connection.execute(_BY_KEY, {"tenant": tenant, "keys": list(wanted)})
        found |= {row.key_tag: _Stored(row.id, row.body_tag) for row in rows}
    return found


def _refused(connection: Connection, items: Sequence[Prepared]) -> dict[str, Exception]:
    """Return an error for each new request that names somebody unknown.

    Somebody whom an earlier request had erased is not held, and not unknown either.
    """
    doubtful = [item for item in items if item.missing]
    stored = _stored(connection, doubtful)
    doubtful = [item for item in doubtful if item.key not in stored]
    pairs = {(item.model.id, tag) for item in doubtful for tag in item.missing}
    known = known_tags(connection, sorted(pairs))
    refused: dict[str, Exception] = {}
    for item in doubtful:
        count = sum((item.model.id, tag) not in known for tag in item.missing)
        if count:
            refused[item.id] = UnknownIdError(
                f"{count} of {len(item.tags)} ids are not in model {item.model.name!r}; "
                "give the ids that it was trained with, as int or as str. Nothing was recorded"
            )
    return refused


def _insert(
    core: Core, connection: Connection, firsts: dict[str, Prepared], intake_key: str
) -> list[Prepared]:
    """Insert requests; return those whose key nobody had used."""
    if not firsts:
        return []
    # Bodies are sealed here, where no purge can exchange the key any more: one reading of it
    # serves all. In one order for everybody, so that two transactions never wait for each other.
    sealed = body_sealer(core, intake_key)
    rows = [
        item.row | {"sealed": sealed(item.id, item.ids), "intake_key": intake_key}
        for _, item in sorted(firsts.items())
    ]
    inserted = {row[0] for row in _insert_firsts(connection, rows)}
    return [item for item in firsts.values() if item.id in inserted]


def _claim(connection: Connection, items: Sequence[Prepared]) -> dict[str, str]:
    """Claim the people of verified requests; return whom the duplicates wait for."""
    claimants = [
        Claimant(
            *(item.id, item.row["tenant"], item.model.id, item.tags),
            needs_approval=item.row["state"] == "verified",
        )
        for item in items
    ]
    duplicates = claim(connection, claimants) if claimants else {}
    if duplicates:
        change = update(requests).where(requests.c.id == bindparam("request"))
        change = change.values(state="duplicate", duplicate_of=bindparam("owner"))
        rows = [{"request": one, "owner": owner} for one, owner in duplicates.items()]
        connection.execute(change, rows)
    for request_id in duplicates:
        if is_covered(connection, request_id):
            change = update(requests).where(requests.c.id == request_id)
            connection.execute(change.values(sealed=None, intake_key=None))
    return duplicates


def _story(item: Prepared, duplicates: dict[str, str]) -> list[Event]:
    at = item.row["received_at"]
    received = {
        "request": item.id,
        "model": item.model.id,
        "regime": item.row["regime"],
        "ground": item.row["ground"],
        "due": item.row["due_on"],
        "people": item.row["n_ids"],
        "tz": _tz_version(),
    }
    story = [Event("received", received, at)]
    if item.needs_approval:
        story.append(Event(NEEDS_APPROVAL, {"request": item.id}, at))
    if item.is_verified:
        story.append(Event("verified", {"request": item.id, "from": "received"}, at))
        last: dict[str, Any] = {"request": item.id, "from": "verified"}
        if item.id in duplicates:
            story.append(Event("duplicate", last | {"of": duplicates[item.id]}, at))
        elif item.row["state"] == "queued":
            story.append(Event("queued", last, at))
    # The thread that stores a request may be another one's: who filed it stands in its row.
    by = item.row["filed_by"]
    return story if by is None else [one._replace(body=one.body | {"by": by}) for one in story]


@cache
def _tz_version() -> str:
    return calendar.tz_version()


def _request(item: Prepared, duplicates: dict[str, str]) -> Request:
    row = item.row
    return Request(
        id=item.id,
        model=item.model.name,
        tenant=row["tenant"],
        state="duplicate" if item.id in duplicates else row["state"],
        regime=row["regime"],
        ground=row["ground"],
        received_at=datetime.fromtimestamp(row["received_at"], UTC),
        due_on=date.fromisoformat(row["due_on"]),
        n_ids=row["n_ids"],
        n_rows=row["n_rows"],
        batch=None,
        certificate=None,
        tries=0,
        reason=None,
        duplicate_of=duplicates.get(item.id),
        filed_by=row["filed_by"],
        verified_by=row["verified_by"],
        is_new=True,
    )


def _answer(item: Prepared, stored: _Stored, known: dict[str, Request]) -> Request | Exception:
    if stored.body_tag != item.row["body_tag"]:
        return IdempotencyError(
            "this idempotency key was used for a request with another content; "
            "take another key, or repeat the request as it was"
        )
    # Of two with one key that are stored together, one is new.
    return replace(known[stored.id], is_new=stored.id == item.id)
