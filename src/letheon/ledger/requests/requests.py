"""`Ledger.requests`: file and handle erasure requests.

Each change to a request is one transaction, which also records an event in the log.
"""

import builtins
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import Connection, Row, select, update

from letheon.data import as_ids
from letheon.exceptions import (
    IdempotencyError,
    IdsTypeError,
    RequestStateError,
    UnknownRequestError,
)
from letheon.ledger.certificates.certify import can_receive_receipt, receipt_key_of
from letheon.ledger.certificates.receipt_codes import ReceiptCode, new_private_key, public_of
from letheon.ledger.core import Core
from letheon.ledger.db.events import current_actor, record_event
from letheon.ledger.requests.deadlines import (
    count_paused_seconds,
    due_on,
    end_of_hold,
    extend_due_date,
    may_pause,
)
from letheon.ledger.requests.intake import make_intake_group, prepare_request, require_ground
from letheon.ledger.requests.listing import RequestLists, find_request
from letheon.ledger.requests.people import (
    NEEDS_APPROVAL,
    NO_BODY,
    Claimant,
    claim_people,
    compute_person_tags,
    find_known_people,
    find_needing_approval,
    is_covered,
    lock_model,
    mark_duplicate,
    move_requests,
    read_body,
    release_claims,
    require_not_applying,
)
from letheon.ledger.requests.states import (
    HOLD_GROUNDS,
    NO_DATA_HELD,
    REFUSALS,
    REJECT_GROUNDS,
    REQUEST_STATES,
)
from letheon.ledger.schemas import Request, to_datetime
from letheon.ledger.tables import batches, requests

if TYPE_CHECKING:
    from letheon.ledger.models.models import Models


_ID = re.compile(r"[0-9a-f]{32}")
_PUBLISHED_BATCH = ("published", "certified", "purged")

_Work = Callable[[Connection, Row[Any], int], None]


class LedgerRequests(RequestLists):
    """The erasure requests of a ledger: file them, handle them, and list them.

    Parameters
    ----------
    core : Core
        The ledger.
    models : Models
        The models of the ledger.

    Examples
    --------
    >>> import tempfile
    >>> from letheon import NaiveUnlearner
    >>> from letheon.ledger import Ledger
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = [[0.0], [1.0]], [0, 1]
    >>> model = NaiveUnlearner(GaussianNB(), random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Ledger.create(folder, name="demo") as ledger:
    ...         _ = ledger.models.register(model, X, y, name="m")
    ...         request = ledger.requests.submit([1], model="m")
    ...         request.state, ledger.requests.cancel(request.id).state
    ('received', 'cancelled')
    """

    def __init__(self, core: Core, models: "Models") -> None:
        super().__init__(core)
        self._models = models
        self._group = make_intake_group()

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
        """Record a request to erase people from a model.

        When this method returns, the request is stored on disk.

        Parameters
        ----------
        ids : sequence of int or of str
            Ids of the people. The ids are stored encrypted and are destroyed with the rows.
        model : str
            Name of the model.
        key : str, optional
            Idempotency key: a repeat with the same key and the same content returns the first
            request.
        tenant : str, default="default"
            Owner of the model.
        regime : {"gdpr", "ccpa"}, default="gdpr"
            Law that sets the deadline.
        ground : str, default="gdpr.art17.1.b"
            Code of the legal ground; free text is not accepted.
        verified : bool, default=False
            Whether the caller has verified the identity. Otherwise `verify` must follow.
        receipt_key : str, optional
            X25519 public key, 64 hexadecimal digits. The receipt is encrypted with this key when
            the certificate is issued; see `submit_with_code`. The request must have one person
            only.
        part_of : str, optional
            Digest of the list of requests that this request was sent with. The digest is part of
            the content: a repeat with the same key must have the same digest.
        needs_approval : bool, default=False
            Whether the request must be approved after verification, whatever its number of rows.
        accept_unknown : bool, default=False
            Whether to record ids that are not in the model too, so that the result does not reveal
            which people are in the model. `verify` rejects a request without known ids.
        ids_derived : bool, default=False
            Whether the ids are derived from the content of `part_of`, such as hashes. A repeat
            with the same key is then compared by `part_of`, not by the ids.

        Raises
        ------
        UnknownModelError, UnknownIdError, IdsTypeError, IdempotencyError, ClockError
            The request was not recorded.
        """
        request = self._record_request(
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
        if receipt_key is not None and receipt_key != receipt_key_of(self._core, request.id):
            raise IdempotencyError(
                "this idempotency key was used for a request with another receipt key; use another "
                "idempotency key, or the same receipt key"
            )
        return request

    def _record_request(
        self, ids: Any, *, model: str, tenant: str = "default", **options: Any
    ) -> Request:
        row = self._models.row(model, tenant)
        people = self._models.get_ids_index(row)
        return self._group.submit(prepare_request(self._core, row, ids, people=people, **options))

    def submit_with_code(
        self, ids: Any, *, model: str, **options: Any
    ) -> tuple[Request, str | None]:
        """Record a request to erase one person, and return it with a receipt code.

        The code opens the receipt that is created with the certificate. The code is not stored.
        None is returned instead of a code for a repeat with the same idempotency key, and for a
        person who is already erased, because no receipt will be created.

        Parameters
        ----------
        ids, model, **options
            The same as for `submit`, without `receipt_key`. `ids` must contain one person.
        """
        private = new_private_key()
        public = public_of(private)
        request = self._record_request(ids, model=model, receipt_key=public, **options)
        code = ReceiptCode(request.id, private)
        is_mine = receipt_key_of(self._core, request.id) == public
        is_late = request.state == "duplicate" and not can_receive_receipt(self._core, request.id)
        return request, str(code) if is_mine and not is_late else None

    def verify(
        self, request_id: str, *, tenant: str | None = None, needs_approval: bool = False
    ) -> Request:
        """Record that the identity is verified, block the rows and queue the request.

        A pause of the deadline ends. If other requests erase all its people, the request becomes a
        duplicate. If it needs an approval, because of its size or `needs_approval`, it stays in the
        state verified, with its rows blocked. Unknown ids are ignored; a request without known ids
        is rejected.
        """
        request = self.get(request_id, tenant=tenant)
        people = self._models.get_ids_index(self._models.row(request.model, request.tenant))

        def apply_change(connection: Connection, row: Row[Any], now: int) -> None:
            clock = _restart_clock(self._core, row, now)
            move_requests(
                connection, row.id, "verified", at=now, verified_by=current_actor(), **clock
            )
            # A purge that replaces the key waits for this row and keeps the old key until then.
            columns = select(requests.c.intake_key, requests.c.sealed)
            body = connection.execute(columns.where(requests.c.id == row.id)).one()
            ids = read_body(self._core, body.intake_key, row.id, body.sealed)
            tags = compute_person_tags(self._core, row.tenant, ids)
            tags = find_known_people(connection, row.model_id, tags, ids, people)
            if not tags:
                _reject_request(connection, row.id, NO_DATA_HELD, now)
                return
            if needs_approval:
                record_event(connection, NEEDS_APPROVAL, {"request": row.id}, now)
            is_marked = bool(find_needing_approval(connection, [row.id]))
            is_large = is_marked or self._core.settings.policy.needs_approval(row.n_rows)
            claimant = Claimant(row.id, row.tenant, row.model_id, tags, is_large)
            waits = claim_people(connection, [claimant])
            if row.id in waits:
                mark_duplicate(connection, row.id, waits[row.id], now)
            elif not is_large:
                move_requests(connection, row.id, "queued", at=now)

        return self._change_request("verify", request_id, tenant, apply_change, lock="claims")

    def approve(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Approve a verified request as a second person, and queue it.

        Raises
        ------
        RequestStateError
            The request is not waiting for approval, or the actor has filed or verified it.
        """

        def apply_change(connection: Connection, row: Row[Any], now: int) -> None:
            if current_actor() is not None and current_actor() in (row.filed_by, row.verified_by):
                raise RequestStateError(
                    f"request {row.id} was filed or verified with this token; another person "
                    "has to approve it"
                )
            record_event(connection, "approved", {"request": row.id}, now)
            move_requests(connection, row.id, "queued", at=now)

        return self._change_request("approve", request_id, tenant, apply_change)

    def await_identity(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Record that proof of identity was requested; the GDPR deadline pauses until `verify`."""

        def apply_change(connection: Connection, row: Row[Any], now: int) -> None:
            if not may_pause(row.regime):
                raise RequestStateError(
                    f"the deadline of request {row.id} cannot be paused: its regime is "
                    f"{row.regime}, and only GDPR deadlines can be paused"
                )
            if row.paused_at is None:
                _update_columns(connection, row.id, paused_at=now)
                record_event(connection, "identity-asked", {"request": row.id}, now)

        return self._change_request("await-identity", request_id, tenant, apply_change)

    def cancel(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Withdraw a request that has not been applied; other requests take over its people."""

        def apply_change(connection: Connection, row: Row[Any], now: int) -> None:
            _require_not_applied(row)
            move_requests(connection, row.id, "cancelled", at=now, closed_at=now, **NO_BODY)
            release_claims(
                connection, row.id, row.model_id, at=now, policy=self._core.settings.policy
            )

        return self._change_request("cancel", request_id, tenant, apply_change, lock="model")

    def reject(self, request_id: str, ground: str, *, tenant: str | None = None) -> Request:
        """Reject a request on a legal ground; `ground` is one of the `REJECT_GROUNDS`."""
        require_ground(ground, REJECT_GROUNDS)

        def apply_change(connection: Connection, row: Row[Any], now: int) -> None:
            _require_not_applied(row)
            _reject_request(connection, row.id, ground, now)
            release_claims(
                connection, row.id, row.model_id, at=now, policy=self._core.settings.policy
            )

        return self._change_request("reject", request_id, tenant, apply_change, lock="model")

    def hold(
        self,
        request_id: str,
        ground: str,
        until: date | datetime | str,
        *,
        tenant: str | None = None,
    ) -> Request:
        """Put a request on hold on a legal ground, until a time or until the start of a day.

        `ground` is one of the `HOLD_GROUNDS`; a day starts in the time zone of the calendar.

        Raises
        ------
        RequestStateError
            The request can no longer be put on hold, or another request is erasing one of its
            people.
        """
        require_ground(ground, HOLD_GROUNDS)
        end = end_of_hold(until, self._core.settings.calendar)

        def apply_change(connection: Connection, row: Row[Any], now: int) -> None:
            if end <= now:
                raise ValueError(
                    f"until={until} is not in the future; the hold must end later than now"
                )
            require_not_applying(connection, row.id)
            columns = {"hold_ground": ground, "hold_until": end, "reason": ground}
            fields: dict[str, str | int] = {"ground": ground, "until": end}
            move_requests(connection, row.id, "on_hold", at=now, fields=fields, **columns)

        return self._change_request("hold", request_id, tenant, apply_change, lock="model")

    def release(self, request_id: str, *, tenant: str | None = None) -> Request:
        """End the hold of a request and queue the request."""

        def apply_change(connection: Connection, row: Row[Any], now: int) -> None:
            columns = {"hold_ground": None, "hold_until": None, "reason": None}
            move_requests(connection, row.id, "queued", at=now, **columns)

        return self._change_request("release", request_id, tenant, apply_change)

    def retry(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Retry a failed request from the step that failed.

        A purge covers all people of a batch, so if the purge failed, all failed requests of the
        batch are retried together.
        """

        def apply_change(connection: Connection, row: Row[Any], now: int) -> None:
            query = select(batches.c.state).where(batches.c.id == row.batch_id)
            batch = None if row.batch_id is None else connection.scalar(query)
            columns: dict[str, Any] = {"tries": 0, "not_before": 0, "reason": None}
            if batch not in _PUBLISHED_BATCH:
                move_requests(connection, row.id, "queued", at=now, **columns)
                return
            same_batch = (requests.c.batch_id == row.batch_id) & (requests.c.state == "stuck")
            request_ids = list(connection.scalars(select(requests.c.id).where(same_batch)))
            move_requests(connection, request_ids, "purging", at=now, **columns)
            if batch == "purged":  # the retry of another request has finished it
                move_requests(connection, request_ids, "purged", at=now)

        return self._change_request("retry", request_id, tenant, apply_change, lock="batch")

    def extend(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Extend the deadline by two months (GDPR) or 45 days (CCPA).

        Call this when the person was notified of the extension.
        """

        def apply_change(connection: Connection, row: Row[Any], now: int) -> None:
            if row.extended_to is not None:
                raise _make_refusal(row, "extend")
            day = extend_due_date(
                row.regime,
                to_datetime(min(row.received_at, now)),
                self._core.settings.calendar,
                noticed=to_datetime(now),
                paused_seconds=count_paused_seconds(row.paused_seconds, row.paused_at, now),
            ).isoformat()
            _update_columns(connection, row.id, extended_to=day)
            record_event(connection, "extended", {"request": row.id, "due": day}, now)

        return self._change_request("extend", request_id, tenant, apply_change)

    def record_recipients(
        self, request_id: str, recipients: int, *, tenant: str | None = None
    ) -> Request:
        """Record that more recipients of the data were notified of the erasure (Article 19).

        The purge attestation states how many recipients were recorded before it was signed.
        """
        _require_count(recipients, 1)

        def apply_change(connection: Connection, row: Row[Any], now: int) -> None:
            _update_columns(connection, row.id, recipients=(row.recipients or 0) + recipients)
            body = {"request": row.id, "recipients": recipients}
            record_event(connection, "recipients-told", body, now)

        return self._change_request("tell", request_id, tenant, apply_change)

    def answer(self, request_id: str, *, recipients: int = 0, tenant: str | None = None) -> Request:
        """Record that the person was answered, and how many more recipients were notified."""
        _require_count(recipients, 0)

        def apply_change(connection: Connection, row: Row[Any], now: int) -> None:
            if row.state == "duplicate" and not is_covered(connection, row.id):
                raise RequestStateError(
                    f"request {row.id} cannot be answered yet: it is a duplicate of request "
                    f"{row.duplicate_of}, which has not been purged yet"
                )
            n_notified = (row.recipients or 0) + recipients
            columns = {"recipients": n_notified, "closed_at": now, **NO_BODY}
            move_requests(
                connection, row.id, "closed", at=now, fields={"recipients": recipients}, **columns
            )

        return self._change_request("answer", request_id, tenant, apply_change)

    def find_known_ids(
        self, ids: Sequence[int | str], *, model: str, tenant: str = "default"
    ) -> "builtins.list[Any]":
        """Return those of the ids that are in a model, or in an earlier request for the model.

        An erasure does not change the result, so a repeated request has the same content.
        """
        try:
            people = as_ids([*ids]).distinct()
        except TypeError:  # its text repeats an id
            raise IdsTypeError("ids must be either all integers or all strings") from None
        row = self._models.row(model, tenant)
        tags = compute_person_tags(self._core, tenant, people)
        with self._core.database.reading() as conn:
            known = {
                *find_known_people(conn, row.id, tags, people, self._models.get_ids_index(row))
            }
        pairs = zip(people.to_list(), tags, strict=True)
        return [person for person, tag in pairs if tag in known]

    def _change_request(
        self,
        action: str,
        request_id: str,
        tenant: str | None,
        apply_change: _Work,
        *,
        lock: Literal["claims", "model", "batch"] | None = None,
    ) -> Request:
        """Lock a request, check that its state allows the action, and run `apply_change` on it.

        Everything happens in one transaction. `lock` is what to lock before the request: the model
        exclusively ("model"), the model shared ("claims"), or the batch ("batch"). Batching, intake
        and purges use the same order; another order could cause deadlocks.
        """
        if not isinstance(request_id, str) or not _ID.fullmatch(request_id):
            raise UnknownRequestError(_UNKNOWN)

        def change(connection: Connection) -> Request:
            is_mine = requests.c.id == request_id
            if lock == "batch":
                mine = select(requests.c.batch_id).where(is_mine).scalar_subquery()
                query = select(batches.c.id).where(batches.c.id == mine)
                connection.execute(query.with_for_update())
            elif lock is not None:
                mine = select(requests.c.model_id).where(is_mine).scalar_subquery()
                lock_model(connection, mine, alone=lock == "model")
            row = connection.execute(select(requests).where(is_mine).with_for_update()).first()
            if row is None or tenant not in (None, row.tenant):
                raise UnknownRequestError(_UNKNOWN)
            if action not in REQUEST_STATES[row.state].actions:
                raise _make_refusal(row, action)
            apply_change(connection, row, self._core.clock())
            return find_request(connection, request_id)

        return self._core.database.run_transaction(change)


_UNKNOWN = "unknown request id; `letheon request list` shows all requests"


def _restart_clock(core: Core, row: Row[Any], now: int) -> dict[str, Any]:
    """Return the new values of columns that end a pause of the deadline; empty without a pause."""
    if row.paused_at is None:
        return {}
    paused = count_paused_seconds(row.paused_seconds, row.paused_at, now)
    received, calendar = to_datetime(min(row.received_at, now)), core.settings.calendar
    day = due_on(row.regime, received, calendar, paused_seconds=paused)
    return {"paused_at": None, "paused_seconds": paused, "due_on": day.isoformat()}


def _make_refusal(row: Row[Any], action: str) -> RequestStateError:
    state = REQUEST_STATES[row.state].label
    return RequestStateError(f"request {row.id} has the state {state}; {REFUSALS[action]}")


def _reject_request(connection: Connection, request_id: str, ground: str, now: int) -> None:
    columns = {"reason": ground, "closed_at": now, **NO_BODY}
    move_requests(connection, request_id, "rejected", at=now, fields={"ground": ground}, **columns)


def _require_not_applied(row: Row[Any]) -> None:
    if row.state == "stuck" and row.batch_id is not None:
        raise RequestStateError(f"request {row.id} is already applied; it can only be retried")


def _require_count(recipients: Any, least: int) -> None:
    if type(recipients) is not int or recipients < least:
        raise ValueError(
            f"recipients={recipients!r} must be an integer of at least {least}: the number of "
            "notified recipients"
        )


def _update_columns(connection: Connection, request_id: str, **columns: Any) -> None:
    connection.execute(update(requests).where(requests.c.id == request_id).values(columns))
