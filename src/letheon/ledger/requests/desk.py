"""The desk at which requests are taken in and looked after; a part of `Ledger`."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import date
from typing import Any

from letheon.data import Ids
from letheon.exceptions import IdempotencyError
from letheon.ledger.certificates import receipts
from letheon.ledger.certificates.receipt_codes import (
    ReceiptCode,
    new_private_key,
    open_sealed,
    public_of,
)
from letheon.ledger.certificates.receipts import Coverage, may_come, receipt_key_of
from letheon.ledger.core import Core
from letheon.ledger.db.actor import acting
from letheon.ledger.models.versions import ModelRow, VersionRow, find_model, read_head, read_ids
from letheon.ledger.requests import intake, listing, records
from letheon.ledger.requests.listing import Order, RequestCounts, RequestFilter, RequestPage
from letheon.ledger.requests.records import Request, found
from letheon.verifier import Refused

__all__ = ["Desk", "Receipts"]


class Receipts:
    """Codes, sealed receipts, and what covers them; see `Ledger`."""

    _core: Core

    def new_receipt_code(self, request_id: str, *, tenant: str | None = None) -> str:
        """Return a new receipt code for a request of one person; an older one opens nothing then.

        Raises
        ------
        RequestStateError
            The request was applied or ended already, or names several people.
        """
        code = ReceiptCode(request_id, new_private_key())
        receipts.set_key(self._core, request_id, code.public, tenant=tenant)
        return str(code)

    def set_receipt_key(
        self, request_id: str, public_key: str, *, tenant: str | None = None
    ) -> None:
        """Let the receipt of a request be sealed to this X25519 public key; see `request`."""
        receipts.set_key(self._core, request_id, public_key, tenant=tenant)

    def receipt_key(self, request_id: str, *, tenant: str | None = None) -> str | None:
        """Return the public key that the receipt of a request is, or will be, sealed to."""
        with self._core.database.reading() as conn:
            found(conn, request_id, tenant=tenant)
        return receipts.receipt_key_of(self._core, request_id)

    def sealed_receipt(self, request_id: str, public_key: str) -> bytes | None:
        """Return the receipt of a request, sealed to this public key; None if there is none."""
        return receipts.sealed_receipt(self._core, request_id, public_key)

    def opened_receipt(self, code: str) -> bytes | None:
        """Return the receipt that a code opens, without its salts; None if there is none.

        Raises
        ------
        Refused
            The text is no code, or has a typing error.
        """
        parsed = ReceiptCode.parse(code)
        sealed = receipts.sealed_receipt(self._core, parsed.request, parsed.public)
        try:
            return None if sealed is None else open_sealed(parsed, sealed).receipt
        except Refused:
            return None

    def coverage(self, receipt: bytes) -> Coverage | None:
        """Return what the certificate says that covers a receipt without salts, or None.

        It shows that the receipt's commitments stood in the data set before and that their slots
        are empty after, under a certificate that this ledger signed; see
        `letheon.verifier.check_receipt_commitment`.
        """
        return receipts.coverage(self._core, receipt)


# Seconds.
_LOOK_AGAIN = 5.0


class Desk(Receipts):
    """What can be done about requests; see `Ledger`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._group = intake.intake_group()
        self._rows: dict[tuple[str, str], ModelRow] = {}
        self._people: dict[int, tuple[float, Ids]] = {}
        self._read: dict[int, tuple[str, Ids]] = {}

    def request(
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
            The people. They are kept sealed, and destroyed with their rows.
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
            receipt is sealed to it; see `request_with_code`. For one person only.
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
        found = self._submit(
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
        if receipt_key not in (None, receipt_key_of(self._core, found.id)):
            raise IdempotencyError(
                "this idempotency key was used for a request whose receipt goes to another key; "
                "take another idempotency key, or the receipt key that it has"
            )
        return found

    def _submit(self, ids: Any, *, model: str, tenant: str = "default", **given: Any) -> Request:
        row = self._row(model, tenant)
        held = self._held(row)
        return intake.submit(
            self._core, row, ids, tenant=tenant, held=held, group=self._group, **given
        )

    def request_with_code(
        self, ids: Any, *, model: str, **given: Any
    ) -> tuple[Request, str | None]:
        """Record that one person is to be erased, and return a receipt code for them too.

        The code opens the receipt that is made when the erasure is certified. It is nowhere kept:
        who repeats a request by its idempotency key gets None in its place. So does who asks for
        somebody whose erasure was applied already: there is no receipt to come.

        Parameters
        ----------
        ids, model, **given
            As for `request`, without `receipt_key`; one person.
        """
        private = new_private_key()
        public = public_of(private)
        request = self._submit(ids, model=model, receipt_key=public, **given)
        code = ReceiptCode(request.id, private)
        is_mine = receipt_key_of(self._core, request.id) == public
        is_late = request.state == "duplicate" and not may_come(self._core, request.id)
        return request, str(code) if is_mine and not is_late else None

    def verify(
        self, request_id: str, *, tenant: str | None = None, needs_approval: bool = False
    ) -> Request:
        """Record that the identity was verified: the rows are blocked, the request is queued.

        A request of more rows than `Policy.approve_above` stays verified until `approve`; with
        `needs_approval` any does. One all of whose people are unknown to the model is rejected
        with the ground ``no-data-held``.
        """
        request = self.request_of(request_id, tenant=tenant)
        return intake.verify(
            self._core,
            request_id,
            tenant=tenant,
            needs_approval=needs_approval,
            held=intake.index_of(self._held(self._row(request.model, request.tenant))),
        )

    def approve(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Queue a verified request that is large enough to need a second pair of eyes.

        Raises
        ------
        RequestStateError
            It waits for no approval, or whoever acts (see `acting`) has filed or verified it.
        """
        return intake.approve(self._core, request_id, tenant=tenant)

    def acting(self, by: str) -> AbstractContextManager[None]:
        """Name who acts, by an opaque id, until the context is left.

        Every event of a request that is recorded meanwhile in this thread carries it as ``by``;
        requests remember who filed and who verified them, so that nobody approves their own.
        """
        return acting(by)

    def await_identity(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Record that the person was asked for a proof of identity: the GDPR's clock pauses."""
        return intake.await_identity(self._core, request_id, tenant=tenant)

    def cancel(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Withdraw a request that no batch has taken up yet."""
        return intake.cancel(self._core, request_id, tenant=tenant)

    def retry(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Queue a stuck request again, or one that waits after a failure."""
        return intake.retry(self._core, request_id, tenant=tenant)

    def hold(
        self, request_id: str, ground: str, until: Any, *, tenant: str | None = None
    ) -> Request:
        """Put a request off on a legal ground until a day; its clock goes on.

        `until` is a date (its beginning at the seat), a text YYYY-MM-DD, or a datetime.
        """
        return intake.hold(self._core, request_id, ground, until, tenant=tenant)

    def release(self, request_id: str, *, tenant: str | None = None) -> Request:
        """End a hold."""
        return intake.release(self._core, request_id, tenant=tenant)

    def reject(self, request_id: str, ground: str, *, tenant: str | None = None) -> Request:
        """Refuse a request on a legal ground."""
        return intake.reject(self._core, request_id, ground, tenant=tenant)

    def extend(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Put the due day off, as far as the regime permits; the person was told."""
        return intake.extend(self._core, request_id, tenant=tenant)

    def tell(self, request_id: str, recipients: int, *, tenant: str | None = None) -> Request:
        """Record that so many recipients of the data were told; the purge attests their number."""
        return intake.tell(self._core, request_id, recipients, tenant=tenant)

    def answer(self, request_id: str, *, recipients: int = 0, tenant: str | None = None) -> Request:
        """Close a purged request: the person was answered, so many more recipients were told."""
        return intake.close(self._core, request_id, recipients=recipients, tenant=tenant)

    def request_of(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Return a request as it is now."""
        with self._core.database.reading() as conn:
            return records.found(conn, request_id, tenant=tenant)

    def requests(
        self, *, model: str | None = None, state: str | None = None, tenant: str | None = None
    ) -> tuple[Request, ...]:
        """Return all requests, earliest due first; `find_requests` returns them page by page."""
        with self._core.database.reading() as conn:
            found = records.listed(conn, model=model, state=state, tenant=tenant)
        return tuple(sorted(found, key=lambda request: (request.due_on, request.received_at)))

    def find_requests(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        states: Sequence[str] = (),
        regime: str | None = None,
        overdue: bool = False,
        due_before: date | None = None,
        search: str | None = None,
        filed_by: str | None = None,
        coarse: bool = False,
        order: Order = "due",
        after: str | None = None,
        limit: int = 50,
    ) -> RequestPage:
        """Return one page of requests; quick however many there are.

        Requests that are there while all pages are read come once each, whatever is filed
        meanwhile. One whose last day is put off meanwhile may come again.

        Parameters
        ----------
        tenant, model, regime, filed_by : str, optional
            Those of this tenant, model, law, or filed by this one.
        states : sequence of str, default=()
            Those in one of these states; all by default.
        overdue : bool, default=False
            Open ones whose last day has passed at the seat.
        due_before : date, optional
            Those whose last day is before this one.
        search : str, optional
            The beginning of a request's id, that of a batch's id from four digits on, or ``#12``
            for certificate 12.
        coarse : bool, default=False
            Whether states and search are those of a filer who may not know who is held: a request
            is ``closed`` if it is final and its last day has passed, else ``received``, and only
            ids of requests are searched.
        order : {"due", "newest"}, default="due"
            Earliest last day first, or latest receipt first.
        after : str, optional
            `next` of the page before.
        limit : int, default=50
            Requests of a page, up to 500.

        Raises
        ------
        ValueError
            `after` is no cursor of this list, or another value is none.
        """
        wanted = RequestFilter(
            tenant=tenant,
            model=model,
            states=states,
            regime=regime,
            overdue=overdue,
            due_before=due_before,
            search=search,
            filed_by=filed_by,
            coarse=coarse,
        )
        return listing.find_requests(self._core, wanted, order=order, after=after, limit=limit)

    def iter_requests(
        self, *, order: Order = "due", chunk: int = 500, **wanted: Any
    ) -> Iterator[Request]:
        """Yield all requests that `find_requests` would return, read `chunk` at a time."""
        return listing.iter_requests(self._core, RequestFilter(**wanted), order=order, chunk=chunk)

    def count_requests(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        filed_by: str | None = None,
        coarse: bool = False,
    ) -> RequestCounts:
        """Count requests by their state, and those that are late."""
        wanted = RequestFilter(tenant=tenant, model=model, filed_by=filed_by, coarse=coarse)
        return listing.count_requests(self._core, wanted)

    def count_due(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        filed_by: str | None = None,
        coarse: bool = False,
    ) -> dict[date, int]:
        """Count the open requests by their last day, the earliest first."""
        wanted = RequestFilter(tenant=tenant, model=model, filed_by=filed_by, coarse=coarse)
        return listing.count_by_day(self._core, wanted)

    def timeline(self, request_id: str, *, tenant: str | None = None) -> tuple[Any, ...]:
        """Return what happened to a request, oldest first."""
        with self._core.database.reading() as conn:
            records.found(conn, request_id, tenant=tenant)
            return tuple(records.timeline(conn, request_id))

    def holds_numbers(self, model: str, *, tenant: str = "default") -> bool:
        """Return whether the ids of a model are numbers, and not texts."""
        return self._held(self._row(model, tenant)).kind == "int"

    def _row(self, model: str, tenant: str) -> ModelRow:
        """Return what never changes about a model; asked once."""
        for what, value in (("model", model), ("tenant", tenant)):
            if not isinstance(value, str):
                raise TypeError(f"{what} is a {type(value).__name__}; give its name, a text")
        found = self._rows.get((model, tenant))
        if found is None:
            with self._core.database.reading() as conn:
                found = find_model(conn, model, tenant)
            self._rows[model, tenant] = found
        return found

    def _held(self, model: ModelRow) -> Ids:
        """Return whose rows are in the version that is served, as of some seconds ago.

        People only leave. Of somebody who left since, the ledger knows that they had asked, so a
        look that is a little old accepts nobody wrongly.
        """
        now = time.monotonic()
        known = self._people.get(model.id)
        if known is not None and now < known[0]:
            return known[1]
        people = read_head(self._core, model, lambda head: self._ids_of(model, head))
        self._people[model.id] = now + _LOOK_AGAIN, people
        return people

    def _ids_of(self, model: ModelRow, head: VersionRow) -> Ids:
        found = self._read.get(model.id)
        if found is None or found[0] != head.ids_blob:
            found = self._read[model.id] = head.ids_blob, read_ids(self._core, model, head)
        return found[1]
