"""Certificates, receipts and batches: `Ledger.certificates` and `Ledger.batches`."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    func,
    select,
    tuple_,
    update,
)

from letheon.exceptions import LedgerMissingError, RequestStateError
from letheon.ledger.certificates.certify import (
    is_receipt_open,
    line_before,
    receipt_key_of,
    reveals_sample,
)
from letheon.ledger.certificates.receipt_codes import (
    ReceiptCode,
    check_public_key,
    new_private_key,
    open_receipt,
)
from letheon.ledger.certificates.statement import gaps_in, predicate_of
from letheon.ledger.core import Core
from letheon.ledger.db.cursor import decode_cursor, encode_cursor, require_limit
from letheon.ledger.db.events import record_event
from letheon.ledger.models.versions import VersionRow, find_model_by_id, find_version, proof_path
from letheon.ledger.requests.listing import find_request
from letheon.ledger.requests.people import lock_model
from letheon.ledger.schemas import (
    Batch,
    Certificate,
    CertificateLine,
    Coverage,
    Page,
    Purge,
    to_datetime,
)
from letheon.ledger.tables import (
    batches,
    certificates,
    checkpoints,
    events,
    models,
    purge_steps,
    purges,
    requests,
    versions,
)
from letheon.verifier import (
    SMALL,
    VerificationError,
    check_receipt_commitment,
    from_hex,
    open_envelope,
    parse_strict,
)

_UNREADABLE = "unreadable"
_T = TypeVar("_T")


class Certificates:
    """The certificates of a ledger.

    Parameters
    ----------
    core : Core
        The ledger.

    Attributes
    ----------
    receipts : Receipts
        Receipts of people whose erasure has a certificate.

    Examples
    --------
    >>> import tempfile
    >>> from letheon import NearestCentroid
    >>> from letheon.ledger import Ledger
    >>> X, y, people = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1], ["anna", "ben", "carl", "dora"]
    >>> model = NearestCentroid().fit(X, y, ids=people)
    >>> with tempfile.TemporaryDirectory() as folder, Ledger.create(folder, name="demo") as ledger:
    ...     _ = ledger.models.register(model, X, y, ids=people, name="shop")
    ...     _ = ledger.requests.submit(["ben"], model="shop", verified=True)
    ...     _ = ledger.run_once(force=True)
    ...     [(each.guarantee, each.n_rows) for each in ledger.certificates.list().items]
    [('exact', 1)]
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.receipts = Receipts(core)

    def sequences(self, *, tenant: str | None = None) -> tuple[int, ...]:
        """Return the numbers of all certificates, or of those of a tenant, oldest first."""
        with self._core.database.reading() as conn:
            return list_sequences(conn, tenant)

    def list(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Page[Certificate]:
        """Return one page of summaries of certificates, newest first."""
        condition = _is_of(tenant, model)
        total = select(func.count()).select_from(certificates).join(versions).join(models)
        return _read_page(
            self._core,
            "certificates",
            (certificates.c.sequence,),
            _certificates_query().where(condition),
            total.where(condition),
            _make_certificate,
            after,
            limit,
        )

    def get(self, sequence: int, *, tenant: str | None = None) -> Certificate:
        """Return the summary of one certificate; raise `LedgerMissingError` if there is none."""
        mine = (certificates.c.sequence == sequence) & _is_of(tenant, None)
        with self._core.database.reading() as conn:
            row = conn.execute(_certificates_query().where(mine)).first()
        if row is None:
            raise _make_missing_error("certificate", sequence)
        return _make_certificate(row)

    def line(self, sequence: int) -> CertificateLine:
        """Return the numbers of the model's earlier certificates that a certificate refers to."""
        with self._core.database.reading() as conn:
            line = line_before(conn, self._read_version(conn, sequence).model_id, sequence)
        return line if line.before is not None else line._replace(first=sequence)

    def envelope(self, sequence: int) -> bytes:
        """Return a certificate as a DSSE envelope in canonical JSON."""
        return self._read_envelope(certificates, sequence, "certificate")

    def envelopes(self, first: int, last: int) -> dict[int, bytes]:
        """Return the certificates with numbers from `first` to `last`, by number."""
        query = select(certificates.c.sequence, certificates.c.envelope).where(
            certificates.c.sequence.between(first, last)
        )
        with self._core.database.reading() as conn:
            return {sequence: bytes(envelope) for sequence, envelope in conn.execute(query)}

    def purge_attestation(self, sequence: int) -> bytes:
        """Return the signed statement that the data erased by certificate `sequence` was purged."""
        return self._read_envelope(purges, sequence, "purge attestation of certificate")

    def proof(self, sequence: int) -> bytes:
        """Return the transition proof of a certificate: exactly the erased rows were removed."""
        with self._core.database.reading() as conn:
            version = self._read_version(conn, sequence)
            model = find_model_by_id(conn, version.model_id)
        path = proof_path(self._core, model, str(version.run["proof"]))
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise LedgerMissingError(
                f"the transition proof {path} is missing; restore the file from a backup"
            ) from None

    def purges(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> tuple[Purge, ...]:
        """Return certificates with their purges, newest first.

        `tenant` and `model` limit the list, and `before` excludes certificates from that number on.
        """
        query = _certificates_query().where(_is_of(tenant, model))
        if before is not None:
            query = query.where(certificates.c.sequence < before)
        with self._core.database.reading() as conn:
            rows = conn.execute(query.order_by(certificates.c.sequence.desc()).limit(limit)).all()
            noted = _read_evidence(conn, [row.batch for row in rows if row.purge is not None])
        shown = []
        for row in rows:
            envelope = None if row.purge is None else bytes(row.purge)
            evidence = noted.get(row.batch, {})
            shown.append(Purge(row.sequence, row.tenant, row.model, envelope, evidence))
        return tuple(shown)

    def _read_envelope(self, table: Table, sequence: int, name: str) -> bytes:
        query = select(table.c.envelope).where(table.c.sequence == sequence)
        with self._core.database.reading() as conn:
            envelope = conn.scalar(query)
        if envelope is None:
            raise _make_missing_error(name, sequence)
        return bytes(envelope)

    def _read_version(self, conn: Connection, sequence: int) -> VersionRow:
        query = select(certificates.c.version_id).where(certificates.c.sequence == sequence)
        version_id = conn.scalar(query)
        if version_id is None:
            raise _make_missing_error("certificate", sequence)
        return find_version(conn, version_id)


class Receipts:
    """Receipt codes, encrypted receipts, and the certificates that cover them.

    Parameters
    ----------
    core : Core
        The ledger.

    Examples
    --------
    >>> import tempfile
    >>> from letheon import NearestCentroid
    >>> from letheon.ledger import Ledger
    >>> X, y, people = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1], ["anna", "ben", "carl", "dora"]
    >>> model = NearestCentroid().fit(X, y, ids=people)
    >>> with tempfile.TemporaryDirectory() as folder, Ledger.create(folder, name="demo") as ledger:
    ...     _ = ledger.models.register(model, X, y, ids=people, name="shop")
    ...     request = ledger.requests.submit(["ben"], model="shop", verified=True)
    ...     len(ledger.certificates.receipts.new_code(request.id))
    101
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def new_code(self, request_id: str, *, tenant: str | None = None) -> str:
        """Return a new receipt code for a request of one person; an older code becomes invalid.

        Raises
        ------
        RequestStateError
            The request was already applied or closed, or it covers several people.
        """
        code = ReceiptCode(request_id, new_private_key())
        self.set_key(request_id, code.public, tenant=tenant)
        return str(code)

    def set_key(self, request_id: str, key: str, *, tenant: str | None = None) -> None:
        """Set the X25519 public key to which the receipt is encrypted, and record it in the log.

        Raises
        ------
        RequestStateError
            The request was already applied or closed, or it covers several people.
        """
        check_public_key(key)

        def work(conn: Connection) -> None:
            request = find_request(conn, request_id, tenant=tenant)
            mine = requests.c.id == request.id
            # Lock the model before the request: claims change under the lock of the model.
            model = conn.execute(select(requests.c.model_id).where(mine)).scalar_one()
            lock_model(conn, model, alone=False)
            if not is_receipt_open(conn, request.id):
                raise RequestStateError(
                    f"this request has the state {request.state}; a receipt code can be created "
                    "only before a request is applied"
                )
            if request.n_ids != 1:
                raise RequestStateError(
                    f"this request has {request.n_ids} people, but a receipt is for one person; "
                    "submit a separate request for each person"
                )
            if reveals_sample(self._core, conn, request_id):
                raise RequestStateError(
                    f"this request has the state {request.state}, and the model has a keyed "
                    "sample; a code created now would reveal who is in the sample, so create codes "
                    "before you verify"
                )
            conn.execute(update(requests).where(mine).values(receipt_key=key))
            record_event(conn, "receipt-code", {"request": request.id}, self._core.clock())

        self._core.database.run_transaction(work)

    def key(self, request_id: str, *, tenant: str | None = None) -> str | None:
        """Return the public key for the receipt of a request, or None if it has none."""
        with self._core.database.reading() as conn:
            find_request(conn, request_id, tenant=tenant)
        return receipt_key_of(self._core, request_id)

    def get_encrypted(self, request_id: str, public_key: str) -> bytes | None:
        """Return the encrypted receipt of a request with this key; None if there is none.

        A caller cannot distinguish an unknown request, a different key and a request without a
        certificate, because each of them is the same query with an empty result.
        """
        query = select(requests.c.receipt).where(
            requests.c.id == request_id,
            requests.c.receipt_key == public_key,
            requests.c.receipt.is_not(None),
        )
        with self._core.database.reading() as conn:
            encrypted = conn.scalar(query)
        return None if encrypted is None else bytes(encrypted)

    def open(self, code: str) -> bytes | None:
        """Decrypt a receipt with its code; return it without salts, or None if there is none.

        Raises
        ------
        VerificationError
            The text is not a receipt code, or it contains a typing error.
        """
        parsed = ReceiptCode.parse(code)
        encrypted = self.get_encrypted(parsed.request, parsed.public)
        try:
            return None if encrypted is None else open_receipt(parsed, encrypted).receipt
        except VerificationError:
            return None

    def coverage(self, receipt: bytes) -> Coverage | None:
        """Return a summary of the certificate that covers a receipt without salts, or None.

        The signature of the certificate and every path of the receipt are verified first.
        """
        newest = select(func.max(checkpoints.c.size)).scalar_subquery()
        query = _certificates_query().add_columns(newest.label("size"))
        try:
            named = from_hex(parse_strict(receipt, SMALL)["certificate"]).hex()
            with self._core.database.reading() as conn:
                row = conn.execute(query.where(certificates.c.id == named)).first()
            if row is None:
                return None
            certificate = open_envelope(bytes(row.envelope), self._core.keys.trust())
            check_receipt_commitment(receipt, certificate)
        except (VerificationError, KeyError, TypeError):
            return None
        return Coverage(
            certificate=row.sequence,
            certified_at=to_datetime(row.certified_at),
            purged_at=to_datetime(row.purged_at),
            purge_gaps=None if row.purge is None else gaps_in(bytes(row.purge)),
            guarantee=certificate.predicate["guarantee"]["kind"],
            in_log=row.log_index is not None and row.log_index < (row.size or 0),
        )


class Batches:
    """The batches of a ledger: requests that are applied together.

    Parameters
    ----------
    core : Core
        The ledger.

    Examples
    --------
    >>> import tempfile
    >>> from letheon import NearestCentroid
    >>> from letheon.ledger import Ledger
    >>> X, y, people = [[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1], ["anna", "ben", "carl", "dora"]
    >>> model = NearestCentroid().fit(X, y, ids=people)
    >>> with tempfile.TemporaryDirectory() as folder, Ledger.create(folder, name="demo") as ledger:
    ...     _ = ledger.models.register(model, X, y, ids=people, name="shop")
    ...     _ = ledger.requests.submit(["ben"], model="shop", verified=True)
    ...     _ = ledger.run_once(force=True)
    ...     [(batch.state, batch.n_rows) for batch in ledger.batches.list().items]
    [('purged', 1)]
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def list(
        self,
        *,
        tenant: str | None = None,
        model: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Page[Batch]:
        """Return one page of batches, newest first, optionally only of a tenant or a model."""
        condition = _is_of(tenant, model)
        return _read_page(
            self._core,
            "batches",
            (batches.c.created_at, batches.c.id),
            _batches_query().where(condition),
            select(func.count()).select_from(batches).join(models).where(condition),
            _make_batch,
            after,
            limit,
        )

    def get(self, batch_id: str, *, tenant: str | None = None) -> Batch:
        """Return one batch; raise `LedgerMissingError` if the tenant has no batch with this id."""
        with self._core.database.reading() as conn:
            query = _batches_query().where(batches.c.id == str(batch_id), _is_of(tenant, None))
            row = conn.execute(query).first()
            if row is None:
                raise LedgerMissingError(
                    "there is no batch with this id in this ledger; check the id"
                )
            return _make_batch(row)


def _read_page(
    core: Core,
    name: str,
    key: tuple[ColumnElement[Any], ...],
    query: Select[Any],
    total: Select[Any],
    convert: Callable[[Row[Any]], _T],
    after: str | None,
    limit: int,
) -> Page[_T]:
    """Return a page of the list `name`, in descending order of the key.

    `total` counts all items, and `convert` turns a database row into an item.
    """
    require_limit(limit)
    if after is not None:
        query = query.where(tuple_(*key) < decode_cursor(core, name, after))
    with core.database.reading() as conn:
        query = query.order_by(*(column.desc() for column in key)).limit(limit + 1)
        rows = conn.execute(query).all()
        items = tuple(convert(row) for row in rows[:limit])
        n_items = conn.scalar(total) or 0
    last = rows[limit - 1]._mapping if len(rows) > limit else None
    more = (
        None if last is None else encode_cursor(core, name, tuple(last[column] for column in key))
    )
    return Page(items, more, n_items)


def list_sequences(conn: Connection, tenant: str | None = None) -> tuple[int, ...]:
    """Return the numbers of all certificates, or of those of a tenant, oldest first."""
    query = select(certificates.c.sequence).order_by(certificates.c.sequence)
    if tenant is not None:
        query = query.join(versions, versions.c.id == certificates.c.version_id)
        query = query.join(models, models.c.id == versions.c.model_id)
        query = query.where(models.c.tenant == tenant)
    return tuple(conn.scalars(query))


def _is_of(tenant: str | None, model: str | None) -> ColumnElement[bool]:
    """Return the SQL condition that a row has this tenant and model; None matches all."""
    pairs = ((models.c.tenant, tenant), (models.c.name, model))
    return and_(True, *(column == value for column, value in pairs if value is not None))


def _make_missing_error(name: str, sequence: int) -> LedgerMissingError:
    return LedgerMissingError(f"there is no {name} {sequence} in this ledger yet")


def _certificates_query() -> Select[Any]:
    is_mine = (events.c.about == versions.c.batch_id) & (events.c.kind == "certificate")
    place = select(events.c.log_index).where(is_mine).limit(1).scalar_subquery()
    return (
        select(
            certificates.c.sequence,
            certificates.c.id,
            models.c.name.label("model"),
            models.c.tenant,
            versions.c.number.label("version"),
            versions.c.batch_id.label("batch"),
            certificates.c.at.label("certified_at"),
            purges.c.at.label("purged_at"),
            place.label("log_index"),
            certificates.c.envelope,
            purges.c.envelope.label("purge"),
        )
        .join(versions, versions.c.id == certificates.c.version_id)
        .join(models, models.c.id == versions.c.model_id)
        .outerjoin(purges, purges.c.sequence == certificates.c.sequence)
    )


def _batches_query() -> Select[Any]:
    parent = versions.alias("parent")
    members = select(requests).where(requests.c.batch_id == batches.c.id)
    requested = members.with_only_columns(func.sum(requests.c.n_rows)).scalar_subquery()
    n_erased = parent.c.live - versions.c.live
    return (
        select(
            batches.c.id,
            models.c.name.label("model"),
            models.c.tenant,
            batches.c.kind,
            batches.c.state,
            batches.c.reason,
            batches.c.created_at,
            members.with_only_columns(func.count()).scalar_subquery().label("n_requests"),
            # For a published batch the rows of its requests need not be added up.
            func.coalesce(n_erased, requested, 0).label("n_rows"),
            versions.c.number.label("version"),
            certificates.c.sequence.label("certificate"),
        )
        .join(models, models.c.id == batches.c.model_id)
        .outerjoin(versions, versions.c.batch_id == batches.c.id)
        .outerjoin(parent, parent.c.id == versions.c.parent_id)
        .outerjoin(certificates, certificates.c.version_id == versions.c.id)
    )


def _read_evidence(
    conn: Connection, batch_ids: Sequence[str]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the evidence that the search steps of purges recorded, by batch and step."""
    query = select(purge_steps.c.batch_id, purge_steps.c.step, purge_steps.c.evidence).where(
        purge_steps.c.batch_id.in_(batch_ids) & purge_steps.c.step.in_(("stores", "scan"))
    )
    noted: dict[str, dict[str, dict[str, Any]]] = {}
    for batch, step, evidence in conn.execute(query):
        if evidence is not None:
            noted.setdefault(batch, {})[step] = parse_strict(evidence.encode())
    return noted


def _make_certificate(row: Row[Any]) -> Certificate:
    values = dict(row._mapping)
    method, guarantee, n_rows = _summarize(bytes(values.pop("envelope")))
    purge = values.pop("purge")
    times = {name: to_datetime(values[name]) for name in ("certified_at", "purged_at")}
    gaps = None if purge is None else gaps_in(bytes(purge))
    summary = {"method": method, "guarantee": guarantee, "n_rows": n_rows, "purge_gaps": gaps}
    return Certificate(**values | times | summary)


def _summarize(envelope: bytes) -> tuple[str, str, int]:
    """Return the method, the kind of guarantee and the number of rows of a certificate.

    For a damaged certificate the method and the kind are "unreadable".
    """
    try:
        claims = predicate_of(envelope)
        summary = (claims["method"]["name"], claims["guarantee"]["kind"], claims["erasure"]["rows"])
    except (ValueError, LookupError, TypeError):
        return _UNREADABLE, _UNREADABLE, 0
    is_sound = [type(value) for value in summary] == [str, str, int]
    return summary if is_sound else (_UNREADABLE, _UNREADABLE, 0)


def _make_batch(row: Row[Any]) -> Batch:
    # A database server may return a sum as a decimal.
    exact = {"created_at": to_datetime(row.created_at), "n_rows": int(row.n_rows)}
    return Batch(**{**row._mapping, **exact})
