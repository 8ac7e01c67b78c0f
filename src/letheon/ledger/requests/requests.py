"""`Ledger.requests`: intake and handling; each change is one transaction with its event."""

import builtins
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, select, update

from letheon.data import as_ids
from letheon.exceptions import (
    IdempotencyError,
    IdsTypeError,
    RequestStateError,
    UnknownRequestError,
)
from letheon.ledger.certificates.certify import may_come, receipt_key_of
from letheon.ledger.certificates.receipt_codes import ReceiptCode, new_private_key, public_of
from letheon.ledger.core import Core
from letheon.ledger.db import events
from letheon.ledger.db.cursor import cursor, place_of, require_limit
from letheon.ledger.db.events import actor
from letheon.ledger.requests import listing
from letheon.ledger.requests.deadlines import (
    due_on,
    end_of_hold,
    extended,
    may_pause,
    paused_seconds,
)
from letheon.ledger.requests.encrypted_ids import (
    is_covered,
    person_tags,
    read_body,
)
from letheon.ledger.requests.intake import intake_group, prepare
from letheon.ledger.requests.listing import Order, RequestFilter, find_request, list_requests
from letheon.ledger.requests.owners import (
    NEEDS_APPROVAL,
    Claimant,
    claim,
    known_people,
    lock_batch,
    lock_model,
    needing_approval,
    pass_on,
    require_none_leaving,
    share_model,
    wait_behind,
)
from letheon.ledger.requests.states import (
    FINAL,
    FINISHED,
    HOLD_GROUNDS,
    NO_DATA_HELD,
    REJECT_GROUNDS,
    require_ground,
)
from letheon.ledger.requests.transitions import move
from letheon.ledger.schemas import LogEntry, Page, Request, RequestCounts
from letheon.ledger.tables import batches, requests

if TYPE_CHECKING:
    from letheon.ledger.models.models import Models


_ID = re.compile(r"[0-9a-f]{32}")
_NO_BODY: dict[str, Any] = {"sealed": None, "intake_key": None}
_PUBLISHED_BATCH = ("published", "certified", "purged")

_Work = Callable[[Connection, Row[Any], int], None]
_Lock = Callable[[Connection, str], None]


class Requests:
    """Requests to be erased: intake, what operators do about them, lists.

    Parameters
    ----------
    core : Core
        The ledger.
    models : Models
        Its models: who is in them.
    """

    def __init__(self, core: Core, models: "Models") -> None:
        self._core = core
        self._models = models
        self._group = intake_group()

    def submit(
        self,
        ids: Any,
        *,
        model: str,
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
    ) -> Request:
        """Record that people are to be erased from a model; it is on the disk when this returns.

        Parameters
        ----------
        ids : sequence of int or of str
            The people. They are kept encrypted, and destroyed with their rows.
        model : str
            Name of the model.
        key : str, optional
            Idempotency key: the same key with the same content gives the same request again.
        tenant : str, default="default"
            Whose model it is.
        regime : {"gdpr", "ccpa"}, default="gdpr"
            Whose clock runs.
        ground : str, default="gdpr.art17.1.b"
            Code of the legal ground; no free text.
        verified : bool, default=False
            Whether the caller vouches for the identity. Otherwise `verify` must follow.
        receipt_key : str, optional
            X25519 public key, 64 hexadecimal digits. When the erasure is certified, the person's
            receipt is encrypted to it; see `submit_with_code`. For one person only.
        part_of : str, optional
            Digest of what it was sent with, such as a list of requests. It counts as content: a
            repeat by the key has to be a part of the same.
        needs_approval : bool, default=False
            Whether it waits for `approve` once it is verified, however few rows it has.
        accept_unknown : bool, default=False
            Whether people whom the model does not know are recorded too. So the answer does not
            tell who is held; `verify` rejects a request all of whose people are unknown.
        ids_derived : bool, default=False
            Whether the ids were derived from what `part_of` is a digest of, such as hashes. A
            repeat by the key is then compared by `part_of`, and not by the ids.

        Raises
        ------
        UnknownModelError, UnknownIdError, IdsTypeError, IdempotencyError, ClockError
            Nothing was recorded then.
        """
        request = self._record(
            ids,
            model=model,
            tenant=tenant,
            key=key,
            regime=regime,
            ground=ground,
            verified=verified,
            receipt_key=receipt_key,
            part_of=part_of,
            needs_approval=needs_approval,
            accept_unknown=accept_unknown,
            ids_derived=ids_derived,
        )
        if receipt_key not in (None, receipt_key_of(self._core, request.id)):
            raise IdempotencyError(
                "this idempotency key was used for a request whose receipt goes to another key; "
                "take another idempotency key, or the receipt key that it has"
            )
        return request

    def _record(self, ids: Any, *, model: str, tenant: str = "default", **given: Any) -> Request:
        row = self._models.row(model, tenant)
        people = self._models.ids_index(row)
        return self._group.submit(prepare(self._core, row, ids, people=people, **given))

    def submit_with_code(self, ids: Any, *, model: str, **given: Any) -> tuple[Request, str | None]:
        """Record that one person is to be erased, and return a receipt code for them too.

        The code opens the receipt that is made when the erasure is certified. It is not stored:
        a repeat by the idempotency key gets None in its place, as does a request for a person
        whose erasure was applied already: there is no receipt to come.

        Parameters
        ----------
        ids, model, **given
            As for `submit`, without `receipt_key`; one person.
        """
        private = new_private_key()
        public = public_of(private)
        request = self._record(ids, model=model, receipt_key=public, **given)
        code = ReceiptCode(request.id, private)
        is_mine = receipt_key_of(self._core, request.id) == public
        is_late = request.state == "duplicate" and not may_come(self._core, request.id)
        return request, str(code) if is_mine and not is_late else None

    def verify(
        self,
        request_id: str,
        *,
        tenant: str | None = None,
        needs_approval: bool = False,
    ) -> Request:
        """Record that whoever asks is who they say: block their rows and queue the request.

        A pause of the clock ends. The request becomes a duplicate if others erase all its people.
        It stays verified if it needs an approval, for its size or as `needs_approval` says; its
        rows are blocked meanwhile. Of a request that was recorded with
        unknown people only the known ones are blocked, and without any it is rejected.
        """
        request = self.get(request_id, tenant=tenant)
        people = self._models.ids_index(self._models.row(request.model, request.tenant))

        def work(connection: Connection, row: Row[Any], now: int) -> None:
            if row.state != "received":  # a duplicate may become verified, but not by this
                raise RequestStateError(
                    f"request {row.id} is {row.state}; its identity was verified"
                )
            clock = _clock_started(self._core, row, now)
            move(connection, row.id, "verified", at=now, verified_by=actor(), **clock)
            # Who exchanges the key waits for this row, and keeps the old key until then.
            body = connection.execute(
                select(requests.c.intake_key, requests.c.sealed).where(requests.c.id == row.id)
            ).one()
            ids = read_body(self._core, body.intake_key, row.id, body.sealed)
            tags = known_people(
                connection, row.model_id, person_tags(self._core, row.tenant, ids), ids, people
            )
            if not tags:
                _reject(connection, row.id, NO_DATA_HELD, now)
                return
            if needs_approval:
                events.record(connection, NEEDS_APPROVAL, {"request": row.id}, now)
            is_marked = bool(needing_approval(connection, [row.id]))
            is_large = is_marked or self._core.settings.policy.needs_approval(row.n_rows)
            claimant = Claimant(row.id, row.tenant, row.model_id, tags, is_large)
            waits = claim(connection, [claimant])
            if row.id in waits:
                wait_behind(connection, row.id, waits[row.id], now)
            elif not is_large:
                move(connection, row.id, "queued", at=now)

        return self._change(request_id, tenant, work, first=share_model)

    def approve(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Queue a verified request of many rows, as somebody else than who filed or verified it.

        Raises
        ------
        RequestStateError
            It waits for no approval, or whoever acts has filed or verified it.
        """

        def work(connection: Connection, row: Row[Any], now: int) -> None:
            if row.state != "verified":
                raise RequestStateError(
                    f"request {row.id} is {row.state}; it waits for no approval"
                )
            if actor() is not None and actor() in (row.filed_by, row.verified_by):
                raise RequestStateError(
                    f"request {row.id} was filed or verified by the one who would approve it; "
                    "somebody else has to"
                )
            events.record(connection, "approved", {"request": row.id}, now)
            move(connection, row.id, "queued", at=now)

        return self._change(request_id, tenant, work)

    def await_identity(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Record that proof of identity was asked for: the GDPR clock pauses until `verify`."""

        def work(connection: Connection, row: Row[Any], now: int) -> None:
            if row.state != "received":
                raise RequestStateError(
                    f"request {row.id} is {row.state}; nobody asks who it is now"
                )
            if not may_pause(row.regime):
                raise RequestStateError(f"nothing stops the clock of a {row.regime} request")
            if row.paused_at is None:
                _set(connection, row.id, paused_at=now)
                events.record(connection, "identity-asked", {"request": row.id}, now)

        return self._change(request_id, tenant, work)

    def cancel(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Withdraw a request that is not applied yet; its people pass on to other requests."""

        def work(connection: Connection, row: Row[Any], now: int) -> None:
            _require_not_applied(row)
            move(connection, row.id, "cancelled", at=now, closed_at=now, **_NO_BODY)
            pass_on(connection, row.id, row.model_id, at=now, policy=self._core.settings.policy)

        return self._change(request_id, tenant, work, first=lock_model)

    def reject(self, request_id: str, ground: str, *, tenant: str | None = None) -> Request:
        """Refuse a request on a ground of law, a registered code."""
        require_ground(ground, REJECT_GROUNDS)

        def work(connection: Connection, row: Row[Any], now: int) -> None:
            _require_not_applied(row)
            _reject(connection, row.id, ground, now)
            pass_on(connection, row.id, row.model_id, at=now, policy=self._core.settings.policy)

        return self._change(request_id, tenant, work, first=lock_model)

    def hold(
        self,
        request_id: str,
        ground: str,
        until: date | datetime | str,
        *,
        tenant: str | None = None,
    ) -> Request:
        """Keep a request back on a ground of law, until a day (at the seat) or moment at most.

        Raises
        ------
        RequestStateError
            It is past that, or another request is erasing somebody whom it names.
        """
        require_ground(ground, HOLD_GROUNDS)
        moment = end_of_hold(until, self._core.settings.calendar)

        def work(connection: Connection, row: Row[Any], now: int) -> None:
            if moment <= now:
                raise ValueError(f"until={until} has passed; a hold ends in the future")
            require_none_leaving(connection, row.id)
            columns = {"hold_ground": ground, "hold_until": moment, "reason": ground}
            fields: dict[str, str | int] = {"ground": ground, "until": moment}
            move(connection, row.id, "on_hold", at=now, fields=fields, **columns)

        return self._change(request_id, tenant, work, first=lock_model)

    def release(self, request_id: str, *, tenant: str | None = None) -> Request:
        """End a hold."""

        def work(connection: Connection, row: Row[Any], now: int) -> None:
            if row.state != "on_hold":
                raise RequestStateError(f"request {row.id} is {row.state}, not on hold")
            columns = {"hold_ground": None, "hold_until": None, "reason": None}
            move(connection, row.id, "queued", at=now, **columns)

        return self._change(request_id, tenant, work)

    def retry(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Send a request that is stuck, or waits after a failure, back to where it failed.

        A purge is about all people of its batch, so what is stuck there is retried together.
        """

        def work(connection: Connection, row: Row[Any], now: int) -> None:
            if row.state not in ("stuck", "retry_wait"):
                raise RequestStateError(
                    f"request {row.id} is {row.state}; there is nothing to retry"
                )
            batch = _state_of_batch(connection, row.batch_id)
            columns: dict[str, Any] = {"tries": 0, "not_before": 0, "reason": None}
            if batch not in _PUBLISHED_BATCH:
                move(connection, row.id, "queued", at=now, **columns)
                return
            mates = (requests.c.batch_id == row.batch_id) & (requests.c.state == "stuck")
            movers = list(connection.scalars(select(requests.c.id).where(mates)))
            move(connection, movers, "purging", at=now, **columns)
            if batch == "purged":  # another one's retry has finished it
                move(connection, movers, "purged", at=now)

        return self._change(request_id, tenant, work, first=lock_batch)

    def extend(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Record an extension, of which the person was told: two months (GDPR), 45 days (CCPA)."""

        def work(connection: Connection, row: Row[Any], now: int) -> None:
            if row.state in (*FINAL, *FINISHED) or row.extended_to is not None:
                raise RequestStateError(
                    f"request {row.id} is {row.state} and can be extended once, while it is open"
                )
            day = extended(
                row.regime,
                _moment(min(row.received_at, now)),
                self._core.settings.calendar,
                noticed=_moment(now),
                paused_seconds=paused_seconds(row.paused_seconds, row.paused_at, now),
            ).isoformat()
            _set(connection, row.id, extended_to=day)
            events.record(connection, "extended", {"request": row.id, "due": day}, now)

        return self._change(request_id, tenant, work)

    def record_recipients(
        self, request_id: str, recipients: int, *, tenant: str | None = None
    ) -> Request:
        """Record that recipients of the data were told (Article 19), while a request is open.

        The attestation of the purge counts those who were told before it.
        """
        _require_count(recipients, 1)

        def work(connection: Connection, row: Row[Any], now: int) -> None:
            if row.state in ("received", *FINAL):
                raise RequestStateError(
                    f"request {row.id} is {row.state}; nobody is told of it now"
                )
            _set(connection, row.id, recipients=(row.recipients or 0) + recipients)
            body = {"request": row.id, "recipients": recipients}
            events.record(connection, "recipients-told", body, now)

        return self._change(request_id, tenant, work)

    def answer(self, request_id: str, *, recipients: int = 0, tenant: str | None = None) -> Request:
        """Record that the person was answered, and how many more recipients were told."""
        _require_count(recipients, 0)

        def work(connection: Connection, row: Row[Any], now: int) -> None:
            if row.state == "duplicate" and not is_covered(connection, row.id):
                raise RequestStateError(
                    f"request {row.id} waits for request {row.duplicate_of}, which is not purged "
                    "yet"
                )
            columns = {
                "recipients": (row.recipients or 0) + recipients,
                "closed_at": now,
                **_NO_BODY,
            }
            move(connection, row.id, "closed", at=now, fields={"recipients": recipients}, **columns)

        return self._change(request_id, tenant, work)

    def get(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Return a request as it is now, or raise `UnknownRequestError`."""
        with self._core.database.reading() as conn:
            return find_request(conn, request_id, tenant=tenant)

    def get_many(self, request_ids: Collection[str]) -> dict[str, Request]:
        """Return requests by their ids; ids that no request has are left out."""
        with self._core.database.reading() as conn:
            return listing.find_requests(conn, request_ids)

    def by_key(self, keys: Collection[str], *, tenant: str) -> dict[str, Request]:
        """Return the requests of a tenant that were filed with these idempotency keys."""
        tag = self._core.keys.tag
        by_tag = {tag("key", tenant.encode(), key.encode()): key for key in keys}
        with self._core.database.reading() as conn:
            ids = listing.ids_by_key_tag(conn, tenant, list(by_tag))
            known = listing.find_requests(conn, list(ids.values()))
        return {by_tag[key_tag]: known[request_id] for key_tag, request_id in ids.items()}

    def version_numbers(self, some: Sequence[Request]) -> dict[str, int]:
        """Return the number of the version that forgot, by the id of the request."""
        with self._core.database.reading() as conn:
            return listing.version_numbers(conn, some)

    def known_ids(
        self, ids: Sequence[int | str], *, model: str, tenant: str = "default"
    ) -> "builtins.list[Any]":
        """Return those of the ids that a model holds, or that an earlier request to it named.

        The answer stays the same when they are erased meanwhile, so that a repeated request has
        the content of the first.
        """
        try:
            people = as_ids([*ids]).distinct()
        except TypeError:  # its text repeats an id
            raise IdsTypeError("the ids are neither all numbers nor all texts") from None
        row = self._models.row(model, tenant)
        tags = person_tags(self._core, tenant, people)
        with self._core.database.reading() as conn:
            known = {*known_people(conn, row.id, tags, people, self._models.ids_index(row))}
        named = zip(people.to_list(), tags, strict=True)
        return [one for one, tag in named if tag in known]

    def list(
        self, *, model: str | None = None, state: str | None = None, tenant: str | None = None
    ) -> tuple[Request, ...]:
        """Return all requests, earliest due first; `find` returns them page by page."""
        with self._core.database.reading() as conn:
            every = list_requests(conn, model=model, state=state, tenant=tenant)
        return tuple(sorted(every, key=lambda request: (request.due_on, request.received_at)))

    def find(
        self, *, order: Order = "due", after: str | None = None, limit: int = 50, **wanted: Any
    ) -> Page[Request]:
        """Return one page of requests; quick however many there are.

        Requests that are there while all pages are read come once each, whatever is filed
        meanwhile. One whose last day is put off meanwhile may come again. `order` is the earliest
        last day ("due") or the latest receipt ("newest") first, `after` the `next` of the page
        before, `limit` at most 500, `wanted` the attributes of `RequestFilter`. A value that is
        not valid, or a cursor of another list, raises `ValueError`.
        """
        require_limit(limit)
        name, chosen = listing.list_name(order), RequestFilter(**wanted)
        start = None if after is None else place_of(self._core, name, after)
        with self._core.database.reading() as conn:
            keys = listing.keys_after(self._core, conn, chosen, order, start, limit + 1)
            items = listing.requests_in_order(conn, [key[-1] for key in keys[:limit]])
            total = len(keys)
            if after is not None or total > limit:
                total = listing.count(self._core, conn, chosen)
        more = cursor(self._core, name, keys[limit - 1]) if len(keys) > limit else None
        return Page(tuple(items), more, total)

    def iterate(
        self, *, order: Order = "due", chunk: int = 500, **wanted: Any
    ) -> Iterator[Request]:
        """Yield all requests that `find` would return, read `chunk` at a time.

        No transaction is open while the caller works.
        """
        listing.list_name(order)
        start, chosen = None, RequestFilter(**wanted)
        while True:
            with self._core.database.reading() as conn:
                keys = listing.keys_after(self._core, conn, chosen, order, start, chunk)
                items = listing.requests_in_order(conn, [key[-1] for key in keys])
            yield from items
            if len(keys) < chunk:
                return
            start = keys[-1]

    def count(self, **wanted: Any) -> RequestCounts:
        """Count requests by their state, and those that are late: of a `tenant`, `model`, filer."""
        with self._core.database.reading() as conn:
            return listing.count_by_state(self._core, conn, RequestFilter(**wanted))

    def count_due(self, **wanted: Any) -> dict[date, int]:
        """Count the open requests by their last day, the earliest first."""
        with self._core.database.reading() as conn:
            return listing.count_by_day(self._core, conn, RequestFilter(**wanted))

    def count_by_model(self, *, tenant: str | None = None) -> dict[tuple[str, str], dict[str, int]]:
        """Count requests by (tenant, model) and state, in one reading; of one tenant if given."""
        with self._core.database.reading() as conn:
            return listing.count_by_model(conn, tenant)

    def timeline(self, request_id: str, *, tenant: str | None = None) -> tuple[LogEntry, ...]:
        """Return what happened to a request and to its batch, oldest first."""
        with self._core.database.reading() as conn:
            return tuple(listing.timeline(conn, request_id, tenant=tenant))

    def _change(
        self, request_id: str, tenant: str | None, work: _Work, *, first: _Lock | None = None
    ) -> Request:
        """Do the work on the locked row of a request, in one transaction.

        `first` locks its model or batch before. What seals, submits or finishes a purge comes to
        these before the requests; in another order two would wait for each other.
        """

        def change(connection: Connection) -> Request:
            if first is not None:
                first(connection, str(request_id))
            row = _locked(connection, request_id, tenant)
            work(connection, row, self._core.clock())
            return find_request(connection, request_id)

        return self._core.database.run(change)


def _locked(connection: Connection, request_id: str, tenant: str | None) -> Row[Any]:
    row = None
    if isinstance(request_id, str) and _ID.fullmatch(request_id):
        query = select(requests).where(requests.c.id == request_id).with_for_update()
        row = connection.execute(query).first()
    if row is None or tenant not in (None, row.tenant):
        raise UnknownRequestError("no request of that id; `letheon request list` shows all")
    return row


def _clock_started(core: Core, row: Row[Any], now: int) -> dict[str, Any]:
    """Return the columns of a clock that runs again, if it stood still."""
    if row.paused_at is None:
        return {}
    stood = paused_seconds(row.paused_seconds, row.paused_at, now)
    received, calendar = _moment(min(row.received_at, now)), core.settings.calendar
    day = due_on(row.regime, received, calendar, paused_seconds=stood)
    return {"paused_at": None, "paused_seconds": stood, "due_on": day.isoformat()}


def _state_of_batch(connection: Connection, batch_id: str | None) -> str | None:
    query = select(batches.c.state).where(batches.c.id == batch_id)
    return None if batch_id is None else connection.scalar(query)


def _reject(connection: Connection, request_id: str, ground: str, now: int) -> None:
    columns = {"reason": ground, "closed_at": now, **_NO_BODY}
    move(connection, request_id, "rejected", at=now, fields={"ground": ground}, **columns)


def _require_not_applied(row: Row[Any]) -> None:
    if row.state == "stuck" and row.batch_id is not None:
        raise RequestStateError(f"request {row.id} was applied; it can only be retried")


def _require_count(recipients: Any, least: int) -> None:
    if type(recipients) is not int or recipients < least:
        raise ValueError(f"recipients={recipients!r} must be a whole number from {least} on")


def _set(connection: Connection, request_id: str, **columns: Any) -> None:
    connection.execute(update(requests).where(requests.c.id == request_id).values(columns))


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
