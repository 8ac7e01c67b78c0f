"""Intake of requests: each request is checked, encrypted and stored before it is acknowledged.

A request is checked and its tags are computed outside the transaction. Then all waiting requests
are stored together in one transaction (`GroupCommit`).
"""

import os
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

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
from letheon.ledger.certificates.receipt_codes import check_public_key
from letheon.ledger.core import Core, fault_point
from letheon.ledger.db import events
from letheon.ledger.db.events import BulkInsert, Event, current_actor
from letheon.ledger.requests.deadlines import REGIMES, due_on, tz_version
from letheon.ledger.requests.listing import find_requests
from letheon.ledger.requests.people import (
    NEEDS_APPROVAL,
    NO_BODY,
    Claimant,
    claim_people,
    compute_tags,
    encode_ids,
    find_known_tags,
    get_cached_key,
    is_covered,
    lock_current_key,
    make_body_encrypter,
)
from letheon.ledger.requests.states import REQUEST_GROUNDS
from letheon.ledger.schemas import Request, record_from, to_datetime
from letheon.ledger.tables import requests

if TYPE_CHECKING:
    from letheon.ledger.models.versions import ModelRow

LONGEST_ID = 10_000
MOST_IDS = 100_000
LONGEST_KEY = 255

# Errors that are not caused by a request; each may come after a wait of 30 seconds.
_FOR_ALL = (OSError, LedgerBusyError, OperationalError, InterfaceError)

# Statements are built once: building one takes as long as running it.
_BY_KEY = select(requests.c.key_tag, requests.c.id, requests.c.body_tag).where(
    requests.c.tenant == bindparam("tenant"),
    requests.c.key_tag.in_(bindparam("keys", expanding=True)),
)
_FACTS = ("id", "tenant", "model_id", "state", "regime", "ground", "received_at", "due_on")
_SECRETS = ("key_tag", "body_tag", "nonce", "sealed", "intake_key", "receipt_key")
_COLUMNS = (*_FACTS, *_SECRETS, "n_ids", "n_rows", "filed_by", "verified_by")
_insert_firsts = BulkInsert(requests, _COLUMNS, unless_there=True, returning=("id",))

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class PreparedRequest:
    """A checked request that has not been stored yet.

    Attributes
    ----------
    core, model : Core, ModelRow
        Ledger and model of the request.
    ids : Ids
        Ids of the request.
    tags, missing : tuple of str
        Tags of all ids, and tags of the ids that are not in the model. `missing` is empty if
        unknown ids are accepted.
    is_verified : bool
        Whether the identity is verified, so that the request is queued or waits for approval.
    row : dict
        Columns of the request without its body; the body is encrypted when the request is stored.
    needs_approval : bool
        Whether the request needs an approval, whatever its number of rows.
    """

    core: Core
    model: "ModelRow"
    ids: Ids
    tags: tuple[str, ...]
    missing: tuple[str, ...]
    is_verified: bool
    row: dict[str, Any]
    needs_approval: bool = False

    @property
    def id(self) -> str:
        """Id of the request; used only if no earlier request has the same idempotency key."""
        return str(self.row["id"])

    @property
    def key(self) -> str:
        """Keyed hash of the tenant and the idempotency key."""
        return str(self.row["key_tag"])


def prepare_request(
    core: Core,
    model: "ModelRow",
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
) -> PreparedRequest:
    """Check a request and compute everything that needs no transaction.

    `people` indexes the ids of the served version of the model; the other parameters are those of
    `LedgerRequests.submit`.
    """
    tenant = model.tenant
    if regime not in REGIMES:
        raise ValueError(f"unknown regime; expected one of: {', '.join(REGIMES)}")
    require_ground(ground, REQUEST_GROUNDS[regime])
    ids = _parse_ids(ids)
    if receipt_key is not None and len(ids) != 1:
        raise ValueError(
            f"a receipt is for one person, but this request has {len(ids)} ids; file one request "
            "per person"
        )
    encoded = encode_ids(ids)
    tags = tuple(compute_tags(core, tenant, encoded))
    is_present, n_rows = _find_rows(people, ids)
    received, by = core.clock(), current_actor()
    first_state = "received"
    if verified:
        waits = needs_approval or core.settings.policy.needs_approval(n_rows)
        first_state = "verified" if waits else "queued"
    content = [model.name, regime, ground, "verified" if verified else "received"]
    content += [] if part_of is None else ["part-of", part_of]
    compared = [] if ids_derived and part_of is not None else sorted(encoded)
    row = {
        "id": secrets.token_hex(16),
        "tenant": tenant,
        "model_id": model.id,
        "state": first_state,
        "regime": regime,
        "ground": ground,
        "received_at": received,
        "due_on": due_on(regime, to_datetime(received), core.settings.calendar).isoformat(),
        "key_tag": core.keys.compute_tag("key", tenant.encode(), _encode_key(key)),
        "body_tag": core.keys.compute_tag("body", *(text.encode() for text in content), *compared),
        "nonce": secrets.token_hex(32),
        "n_ids": len(ids),
        "n_rows": n_rows,
        "filed_by": by,
        "verified_by": by if verified else None,
        "receipt_key": None if receipt_key is None else check_public_key(receipt_key),
    }
    missing = tuple(
        tag
        for tag, present in zip(tags, is_present, strict=True)
        if not (present or accept_unknown)
    )
    return PreparedRequest(core, model, ids, tags, missing, verified, row, needs_approval)


def require_ground(ground: object, known: tuple[str, ...]) -> None:
    """Raise `ValueError` if a ground is not one of the known codes.

    The error does not repeat the ground, because it may contain the name of a person.
    """
    if not isinstance(ground, str) or ground not in known:
        raise ValueError(f"unknown ground; expected one of: {', '.join(known)}")


def _parse_ids(ids: Any) -> Ids:
    if isinstance(ids, str | int):
        # The error of `as_ids` would repeat the id, which then may be logged.
        raise IdsTypeError(f"ids is a single {type(ids).__name__}; pass a list of ids")
    people = as_ids(ids).distinct()
    if len(people) == 0:
        raise IdsLengthError("ids is empty; pass at least one id")
    if len(people) > MOST_IDS:
        raise IdsLengthError(
            f"ids contains {len(people)} people, but a request may have at most {MOST_IDS}; split "
            "the request"
        )
    values: Sequence[Any] = people.to_list()
    if people.kind == "str" and max(map(len, values)) > LONGEST_ID:
        raise IdsTypeError(
            f"ids contains an id longer than {LONGEST_ID} characters; use the ids that the model "
            "was fitted with"
        )
    return people


def _encode_key(key: str | None) -> bytes:
    """Return the bytes of an idempotency key; random bytes if `key` is None."""
    if key is None:
        return secrets.token_bytes(32)
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        raise ValueError(
            f"key, the idempotency key, must be a string of 1 to {LONGEST_KEY} characters"
        )
    try:
        return key.encode()
    except UnicodeEncodeError:
        raise ValueError(
            "key, the idempotency key, is not valid Unicode text; use a text without surrogates"
        ) from None


def _find_rows(people: IdIndex, ids: Ids) -> tuple[list[bool], int]:
    """Return for each id whether it is in the model, and the number of rows of all ids."""
    if len(ids) == 1:
        n_rows = len(people.find_one(ids))
        return [n_rows > 0], n_rows
    matches = people.find(ids)
    return matches.has_rows.tolist(), len(matches.positions)


def record_all(items: Sequence[PreparedRequest]) -> list[Request | Exception]:
    """Store requests on disk; return the stored request, or the error, for each of them.

    An invalid request does not affect the others.
    """
    core = items[0].core
    get_cached_key(core)  # the first request of a ledger creates it

    def work(connection: Connection) -> list[Request | Exception]:
        events.require_own_log(connection)
        results = _record_in(core, connection, items)
        fault_point("submit.before-commit")
        return results

    results = core.database.run_transaction(work)
    fault_point("submit.after-commit")
    return results


def _record_in(
    core: Core, connection: Connection, items: Sequence[PreparedRequest]
) -> list[Request | Exception]:
    intake_key = lock_current_key(core, connection)
    refused = _find_unknown(connection, items)
    firsts: dict[str, PreparedRequest] = {}
    for item in items:
        if item.id not in refused:
            firsts.setdefault(item.key, item)
    mine = _insert_requests(core, connection, firsts, intake_key)
    stored = {item.key: (item.id, item.row["body_tag"]) for item in mine}
    stored |= _find_stored(connection, [item for key, item in firsts.items() if key not in stored])
    duplicates = _claim_people(connection, [item for item in mine if item.is_verified])
    events.append_events(
        connection, [event for item in mine for event in _make_events(item, duplicates)]
    )
    known = {item.id: _make_request(item, duplicates) for item in mine}
    old = {request_id for request_id, _ in stored.values()} - known.keys()
    if old:
        known |= find_requests(connection, old)
    return [refused.get(item.id) or _make_result(item, *stored[item.key], known) for item in items]


def _find_stored(
    connection: Connection, items: Sequence[PreparedRequest]
) -> dict[str, tuple[str, str]]:
    """Return (request id, tag of the content) of the stored requests with these keys."""
    keys: dict[str, set[str]] = {}
    for item in items:
        keys.setdefault(item.row["tenant"], set()).add(item.key)
    stored: dict[str, tuple[str, str]] = {}
    for tenant, tags in keys.items():
        rows = connection.execute(_BY_KEY, {"tenant": tenant, "keys": list(tags)})
        stored |= {row.key_tag: (row.id, row.body_tag) for row in rows}
    return stored


def _find_unknown(connection: Connection, items: Sequence[PreparedRequest]) -> dict[str, Exception]:
    """Return an error for each new request with unknown ids.

    Ids that an earlier request erased are not in the model, but they are known.
    """
    incomplete = [item for item in items if item.missing]
    if not incomplete:
        return {}
    stored = _find_stored(connection, incomplete)
    incomplete = [item for item in incomplete if item.key not in stored]
    pairs = {(item.model.id, tag) for item in incomplete for tag in item.missing}
    known = find_known_tags(connection, sorted(pairs))
    refused: dict[str, Exception] = {}
    for item in incomplete:
        count = sum((item.model.id, tag) not in known for tag in item.missing)
        if count:
            refused[item.id] = UnknownIdError(
                f"{count} of {len(item.tags)} ids {'is' if count == 1 else 'are'} not in model "
                f"{item.model.name!r}; give the ids that it was trained with, as int or as str. "
                "No request was recorded"
            )
    return refused


def _insert_requests(
    core: Core, connection: Connection, firsts: dict[str, PreparedRequest], intake_key: str
) -> list[PreparedRequest]:
    """Insert requests; return those whose idempotency key was not used before."""
    if not firsts:
        return []
    # Bodies are encrypted here, because the key is locked now and no purge can replace it. All
    # transactions insert in the same order, so that they cannot deadlock.
    encrypt = make_body_encrypter(core, intake_key)
    rows = [
        item.row | {"sealed": encrypt(item.id, item.ids), "intake_key": intake_key}
        for _, item in sorted(firsts.items())
    ]
    inserted = {row[0] for row in _insert_firsts(connection, rows)}
    return [item for item in firsts.values() if item.id in inserted]


def _claim_people(connection: Connection, items: Sequence[PreparedRequest]) -> dict[str, str]:
    """Claim the people of verified requests.

    Return the duplicates: for each, the id of the request that owns its people.
    """
    if not items:
        return {}
    claimants = [
        Claimant(
            item.id,
            item.row["tenant"],
            item.model.id,
            item.tags,
            needs_approval=item.row["state"] == "verified",
        )
        for item in items
    ]
    duplicates = claim_people(connection, claimants)
    for request_id, owner in duplicates.items():
        body = NO_BODY if is_covered(connection, request_id) else {}
        change = update(requests).where(requests.c.id == request_id)
        connection.execute(change.values(state="duplicate", duplicate_of=owner, **body))
    return duplicates


def _make_events(item: PreparedRequest, duplicates: dict[str, str]) -> list[Event]:
    row, at = item.row, item.row["received_at"]
    received = {name: row[name] for name in ("regime", "ground")}
    received |= {"model": item.model.id, "due": row["due_on"], "people": row["n_ids"]}
    entries: list[tuple[str, dict[str, Any]]] = [("received", received | {"tz": _tz_version()})]
    if item.needs_approval:
        entries.append((NEEDS_APPROVAL, {}))
    if item.is_verified:
        entries.append(("verified", {"from": "received"}))
        if item.id in duplicates:
            entries.append(("duplicate", {"from": "verified", "of": duplicates[item.id]}))
        elif row["state"] == "queued":
            entries.append(("queued", {"from": "verified"}))
    # Another thread may store the request, so the actor is taken from the row.
    by = {} if row["filed_by"] is None else {"by": row["filed_by"]}
    return [Event(kind, {"request": item.id, **body, **by}, at) for kind, body in entries]


_tz_version = cache(tz_version)


def _make_request(item: PreparedRequest, duplicates: dict[str, str]) -> Request:
    due, row = date.fromisoformat(item.row["due_on"]), item.row
    if item.id in duplicates:
        row = row | {"state": "duplicate", "duplicate_of": duplicates[item.id]}
    return record_from(Request, row, model=item.model.name, due_on=due, is_new=True)


def _make_result(
    item: PreparedRequest, request_id: str, body_tag: str, known: dict[str, Request]
) -> Request | Exception:
    if body_tag != item.row["body_tag"]:
        return IdempotencyError(
            "this idempotency key was used for a request with other content; use another key, or "
            "repeat the same request"
        )
    # If two requests with the same key are stored together, only one is new.
    return replace(known[request_id], is_new=request_id == item.id)


_groups: "weakref.WeakSet[GroupCommit[Any, Any]]" = weakref.WeakSet()


def _reset_groups() -> None:
    """Forget the waiting threads of the parent process, which do not exist in a child process."""
    for group in list(_groups):
        group._forget_threads()


os.register_at_fork(after_in_child=_reset_groups)


class _Ticket(Generic[_Item, _Result]):
    """The item of a thread and its result. `turn` is released when the thread may continue."""

    __slots__ = ("is_gone", "is_leader", "item", "result", "turn")

    def __init__(self, item: _Item) -> None:
        self.item = item
        self.result: _Result | Exception | None = None
        self.is_leader = False
        self.is_gone = False
        self.turn = threading.Lock()  # ten times cheaper than an Event
        self.turn.acquire()


class GroupCommit(Generic[_Item, _Result]):
    """A group commit: several threads write their items in one shared transaction.

    A disk confirms a few hundred to a few thousand commits per second, whatever their size. So the
    first thread (the leader) writes the items of all waiting threads. Threads that arrive later
    wait for the next round.

    Parameters
    ----------
    write : callable
        Takes a list of items, writes them in one transaction, and returns the result or the error
        of each. An item may be written again after an error, or if the writing thread was
        interrupted, so writing an item twice must have the same effect as writing it once.
    largest : int, default=256
        Maximum number of items in a transaction.
    for_all : tuple of exception classes, default=(OSError,)
        Errors of `write` that are not caused by an item, such as a full disk. They are raised in
        every thread of the round. After any other error each item is written separately, so that an
        item that cannot be written does not affect the others.
    """

    def __init__(
        self,
        write: Callable[[Sequence[_Item]], Sequence[_Result | Exception]],
        *,
        largest: int = 256,
        for_all: tuple[type[Exception], ...] = (OSError,),
    ) -> None:
        self._write = write
        self._largest = largest
        self._for_all = for_all
        self._is_busy = False
        self._forget_threads()
        _groups.add(self)

    def submit(self, item: _Item) -> _Result:
        """Write an item, alone or with others, and return its result once it is on disk."""
        ticket = _Ticket[_Item, _Result](item)
        with self._lock:
            self._waiting.append(ticket)
            ticket.is_leader = not self._is_busy
            self._is_busy = True
        if not ticket.is_leader:
            self._wait_for_turn(ticket)
        if ticket.is_leader:
            self._write_round(ticket)
        if isinstance(ticket.result, Exception):
            raise ticket.result
        return ticket.result  # type: ignore[return-value]  # set by the leader, None or not

    def _forget_threads(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Ticket[_Item, _Result]] = []
        self._is_busy = False

    def _wait_for_turn(self, ticket: _Ticket[_Item, _Result]) -> None:
        """Wait until the item is written, or until this thread becomes the leader.

        If the thread is interrupted as the leader, the next waiting thread becomes the leader.
        """
        try:
            ticket.turn.acquire()
        except BaseException:
            with self._lock:
                ticket.is_gone = True
                if ticket in self._waiting:
                    self._waiting.remove(ticket)
                is_leader = ticket.is_leader
            if is_leader:
                self._pass_lead()
            raise

    def _write_round(self, own: _Ticket[_Item, _Result]) -> None:
        """Write the waiting items of one round, then make the next waiting thread the leader."""
        with self._lock:
            round_ = self._waiting[: self._largest]
            del self._waiting[: self._largest]
        try:
            self._write_items(round_)
        except BaseException:  # only this thread ends
            with self._lock:
                others = [ticket for ticket in round_ if ticket is not own and not ticket.is_gone]
                self._waiting[:0] = others
            round_ = []
            raise
        finally:
            self._pass_lead()
            for ticket in round_:
                if ticket is not own:
                    ticket.turn.release()

    def _pass_lead(self) -> None:
        with self._lock:
            successor = self._waiting[0] if self._waiting else None
            self._is_busy = successor is not None
            if successor is not None:
                successor.is_leader = True
        if successor is not None:
            successor.turn.release()

    def _write_items(self, round_: list[_Ticket[_Item, _Result]]) -> None:
        results: Sequence[_Result | Exception]
        try:
            results = self._write([ticket.item for ticket in round_])
        except self._for_all as error:
            results = [error] * len(round_)
        except Exception as error:  # noqa: BLE001  (each thread raises it itself)
            if len(round_) > 1:  # one item may be the cause: write each separately
                for ticket in round_:
                    self._write_items([ticket])
                return
            results = [error]
        for ticket, result in zip(round_, results, strict=True):
            ticket.result = result


def make_intake_group() -> GroupCommit[PreparedRequest, Request]:
    """Return a group commit for requests, which the threads of a process share."""
    return GroupCommit(record_all, for_all=_FOR_ALL)
