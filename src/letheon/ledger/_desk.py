"""The desk at which requests are taken in and looked after; a part of `Ledger`."""

import time
from typing import Any

from letheon.ledger import _intake, _requests
from letheon.ledger._core import Core
from letheon.ledger._requests import Request
from letheon.ledger._versions import ModelRow, VersionRow, find_model, read_head, read_ids
from letheon.rows import Ids

__all__ = ["Desk"]

# Seconds.
_LOOK_AGAIN = 5.0


class Desk:
    """What can be done about requests; see `Ledger`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._group = _intake.intake_group()
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

        Raises
        ------
        UnknownModelError, UnknownIdError, IdsTypeError, IdempotencyError, ClockError
            Nothing was recorded then.
        """
        row = self._row(model, tenant)
        return _intake.submit(
            self._core,
            row,
            ids,
            key=key,
            tenant=tenant,
            regime=regime,
            ground=ground,
            verified=verified,
            held=self._held(row),
            group=self._group,
        )

    def verify(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Record that the identity was verified: the rows are blocked, the request is queued."""
        return _intake.verify(self._core, request_id, tenant=tenant)

    def await_identity(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Record that the person was asked for a proof of identity: the GDPR's clock pauses."""
        return _intake.await_identity(self._core, request_id, tenant=tenant)

    def cancel(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Withdraw a request that no batch has taken up yet."""
        return _intake.cancel(self._core, request_id, tenant=tenant)

    def retry(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Queue a stuck request again, or one that waits after a failure."""
        return _intake.retry(self._core, request_id, tenant=tenant)

    def hold(
        self, request_id: str, ground: str, until: Any, *, tenant: str | None = None
    ) -> Request:
        """Put a request off on a legal ground until a day; its clock goes on.

        `until` is a date (its beginning at the seat), a text YYYY-MM-DD, or a datetime.
        """
        return _intake.hold(self._core, request_id, ground, until, tenant=tenant)

    def release(self, request_id: str, *, tenant: str | None = None) -> Request:
        """End a hold."""
        return _intake.release(self._core, request_id, tenant=tenant)

    def reject(self, request_id: str, ground: str, *, tenant: str | None = None) -> Request:
        """Refuse a request on a legal ground."""
        return _intake.reject(self._core, request_id, ground, tenant=tenant)

    def extend(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Put the due day off, as far as the regime permits; the person was told."""
        return _intake.extend(self._core, request_id, tenant=tenant)

    def tell(self, request_id: str, recipients: int, *, tenant: str | None = None) -> Request:
        """Record that so many recipients of the data were told; the purge attests their number."""
        return _intake.tell(self._core, request_id, recipients, tenant=tenant)

    def answer(self, request_id: str, *, recipients: int = 0, tenant: str | None = None) -> Request:
        """Close a purged request: the person was answered, so many more recipients were told."""
        return _intake.close(self._core, request_id, recipients=recipients, tenant=tenant)

    def request_of(self, request_id: str, *, tenant: str | None = None) -> Request:
        """Return a request as it is now."""
        with self._core.database.reading() as conn:
            return _requests.found(conn, request_id, tenant=tenant)

    def requests(
        self, *, model: str | None = None, state: str | None = None, tenant: str | None = None
    ) -> tuple[Request, ...]:
        """Return requests, earliest due first."""
        with self._core.database.reading() as conn:
            found = _requests.listed(conn, model=model, state=state, tenant=tenant)
        return tuple(sorted(found, key=lambda request: (request.due_on, request.received_at)))

    def timeline(self, request_id: str, *, tenant: str | None = None) -> tuple[Any, ...]:
        """Return what happened to a request, oldest first."""
        with self._core.database.reading() as conn:
            _requests.found(conn, request_id, tenant=tenant)
            return tuple(_requests.timeline(conn, request_id))

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
