"""Taking in requests: checked, sealed, recorded once, durable before anybody is told.

A request is prepared outside the transaction (checks, tags, sealing), then stored with all others
that wait (`GroupCommit`), in a handful of statements for all of them.
"""

import secrets
import weakref
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy.exc import InterfaceError, OperationalError

from letheon.data import IdIndex, Ids, as_ids
from letheon.exceptions import (
    IdsLengthError,
    IdsTypeError,
    LedgerBusyError,
    UnknownModelError,
)
from letheon.ledger.certificates.receipt_codes import checked_public_key
from letheon.ledger.core import Core
from letheon.ledger.db.actor import actor
from letheon.ledger.db.group import GroupCommit
from letheon.ledger.models.versions import ModelRow
from letheon.ledger.requests.deadlines import REGIMES, due_on
from letheon.ledger.requests.encrypted_ids import (
    id_bytes,
    name_tags,
    person_tags,
    reseal,
    unsealed_ids,
)
from letheon.ledger.requests.grounds import REQUEST_GROUNDS, require_ground
from letheon.ledger.requests.handling import (
    approve,
    await_identity,
    cancel,
    close,
    extend,
    hold,
    reject,
    release,
    retry,
    settle_queue,
    tell,
    verify,
)
from letheon.ledger.requests.recording import Prepared, record_all
from letheon.ledger.requests.records import Request

__all__ = [
    "Intake",
    "Prepared",
    "approve",
    "await_identity",
    "cancel",
    "close",
    "extend",
    "hold",
    "index_of",
    "intake_group",
    "person_tags",
    "reject",
    "release",
    "reseal",
    "retry",
    "settle_queue",
    "submit",
    "tell",
    "unsealed_ids",
    "verify",
]

LONGEST_ID = 10_000
MOST_IDS = 100_000
LONGEST_KEY = 255

# Nobody's request is the cause, and each may come after a wait of 30 seconds.
_FOR_ALL = (OSError, LedgerBusyError, OperationalError, InterfaceError)

_indices: "weakref.WeakKeyDictionary[Ids, IdIndex]" = weakref.WeakKeyDictionary()


Intake = GroupCommit[Prepared, Request]


def intake_group() -> Intake:
    """Return what lets the threads of a process share transactions; one for each open ledger."""
    return GroupCommit(record_all, for_all=_FOR_ALL)


def submit(
    core: Core,
    model: ModelRow,
    ids: Any,
    *,
    key: str | None = None,
    tenant: str = "default",
    regime: str = "gdpr",
    ground: str = "gdpr.art17.1.b",
    verified: bool = False,
    receipt_key: str | None = None,
    part_of: str | None = None,
    needs_approval: bool = False,
    accept_unknown: bool = False,
    ids_derived: bool = False,
    held: Ids,
    group: Intake | None = None,
) -> Request:
    """Record that people are to be erased from a model; durable when it returns.

    Parameters
    ----------
    core : Core
        The ledger.
    model : ModelRow
        From what.
    ids : list of int or str
        Whom.
    key : str, optional
        Idempotency key: a repeat with the same key and content returns the stored request.
    tenant : str
        Whose model it is.
    regime, ground : str
        Registered codes.
    verified : bool
        Whether the identity of whoever asks is known. If so, the people are blocked from new
        training at once, and the request is queued; above `Policy.approve_above` rows it waits
        for an approval.
    receipt_key : str, optional
        X25519 public key that the person's receipt is sealed to; for a request of one person.
    part_of : str, optional
        Digest of what it was sent with. It counts as content: a repeat by the key has to be a part
        of the same. Only its tag is kept.
    needs_approval : bool
        Whether it waits for an approval, once it is verified, however few rows it has.
    accept_unknown : bool
        Whether people whom the model does not know are recorded too. `verify` answers for them.
    ids_derived : bool
        Whether the ids were derived from what `part_of` is a digest of: a repeat is then compared
        by `part_of` alone.
    held : Ids
        People in the newest version of the model.
    group : GroupCommit, optional
        Shares transactions between threads.

    Returns
    -------
    Request
        As it is stored. Its state is ``duplicate`` if earlier requests erase all these people.

    Raises
    ------
    UnknownIdError
        Somebody is neither held nor was asked for before, and `accept_unknown` is false.
    IdempotencyError
        The key was used for another content.
    ClockError
        The clock is behind; nothing was recorded.
    """
    prepared = prepare(
        core,
        model,
        ids,
        key=key,
        tenant=tenant,
        regime=regime,
        ground=ground,
        verified=verified,
        receipt_key=receipt_key,
        part_of=part_of,
        needs_approval=needs_approval,
        accept_unknown=accept_unknown,
        ids_derived=ids_derived,
        held=held,
    )
    if group is not None:
        return group.submit(prepared)
    result = record_all([prepared])[0]
    if isinstance(result, Exception):
        raise result
    return result


def prepare(
    core: Core,
    model: ModelRow,
    ids: Any,
    *,
    key: str | None,
    tenant: str,
    regime: str,
    ground: str,
    verified: bool,
    receipt_key: str | None = None,
    part_of: str | None = None,
    needs_approval: bool = False,
    accept_unknown: bool = False,
    ids_derived: bool = False,
    held: Ids,
) -> Prepared:
    """Check a request and do all work that needs no transaction."""
    if model.tenant != tenant:
        raise UnknownModelError(f"no model {model.name!r} is registered for tenant {tenant!r}")
    if regime not in REGIMES:
        raise ValueError(f"that regime is no registered code; expected one of {REGIMES}")
    require_ground(ground, REQUEST_GROUNDS[regime])
    people = _checked_ids(ids)
    names = id_bytes(people)
    tags = tuple(name_tags(core, tenant, names))
    is_held, n_rows = _held_rows(held, people)
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
        "n_ids": len(people),
        "n_rows": n_rows,
        "filed_by": by,
        "verified_by": by if verified else None,
        "receipt_key": _checked_receipt_key(receipt_key, people),
    }
    missing = tuple(
        tag for tag, here in zip(tags, is_held, strict=True) if not (here or accept_unknown)
    )
    return Prepared(core, model, people, tags, missing, verified, row, needs_approval)


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


def _held_rows(held: Ids, people: Ids) -> tuple[list[bool], int]:
    """Return who of them is held, and how many rows they own together."""
    if len(people) == 1:
        n_rows = len(index_of(held).find_one(people))
        return [n_rows > 0], n_rows
    matches = index_of(held).find(people)
    return matches.found.tolist(), len(matches.positions)


def index_of(held: Ids) -> IdIndex:
    """Return the index of the people of a model; made once."""
    if held not in _indices:
        _indices[held] = IdIndex(held)
    return _indices[held]
