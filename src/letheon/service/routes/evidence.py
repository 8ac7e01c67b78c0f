"""API routes for receipts, for bundles for third parties and auditors, and for purge results.

Checking a receipt does not reveal a model, a tenant or a count. The response is the same for an
unknown request, a wrong key and a request without a certificate.

A bundle is a zip file that is created while it is sent, from a private temporary folder in the
folder of the ledger. This temporary folder is deleted when the last byte is sent, and when the
client disconnects or is too slow. If the server is killed, it is deleted at the next start. Purges
wait until it is deleted. Therefore each token can download only one bundle at a time, and the total
number of downloads is limited.
"""

import base64
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from letheon.ledger import Coverage, Purge, Store
from letheon.ledger.certificates.explanations import PURGE_NOT_CLAIMED
from letheon.service import auth
from letheon.service.errors import ApiProblem
from letheon.service.guarantees import codes_out
from letheon.service.request_views import RequestPath, find_visible
from letheon.service.routes.certificates import Reader, statement_in
from letheon.service.schemas import (
    CodeOut,
    In,
    Limit,
    ModelFilter,
    Out,
    TenantFilter,
    describe_file,
)
from letheon.service.temp_folders import temp_folder
from letheon.verifier import SMALL, VerificationError, parse_strict, search_gaps

router = APIRouter(tags=["receipts"])
verifiable = APIRouter(tags=["certificates"])

_NOT_YET = (
    "No certificate covers this code yet. Check again after the due date of your request. If you "
    "filed more than one request, try the code of the first request."
)


class CodeIn(In):
    """A receipt code.

    Attributes
    ----------
    code : str
        The receipt code; it begins with lethe-.
    """

    code: str = Field(min_length=1, max_length=400)


class ReceiptIn(In):
    """A decrypted receipt.

    Attributes
    ----------
    receipt : str
        Content of the file written by `letheon receipt open`.
    """

    receipt: str = Field(min_length=2, max_length=500_000)


class SealedIn(In):
    """The encrypted receipt to fetch.

    Attributes
    ----------
    request : str
        Id of the request.
    public_key : str
        X25519 public key, in hexadecimal digits.
    """

    request: str = Field(pattern="^[0-9a-f]{32}$")
    public_key: str = Field(pattern="^[0-9a-f]{64}$")


class ReceiptCodeOut(Out):
    """A new receipt code.

    Attributes
    ----------
    code : str
        The code; it is shown only once and not stored.
    """

    code: str


class ReceiptVerdict(Out):
    """The result of checking a receipt; unknown values are null.

    Attributes
    ----------
    certificate : int or None
        Number of the certificate among the certificates of its tenant.
    certified_on : date or None
        Day of the signature, in UTC.
    purged_on : date or None
        Day on which all copies in the ledger were destroyed, in UTC.
    guarantee : {"exact", "certified", "empirical"} or None
        Kind of guarantee that the certificate states.
    in_log : bool
        Whether a signed checkpoint of the log covers the certificate.
    """

    covered: bool
    certificate: int | None = None
    certified_on: date | None = None
    purged_on: date | None = None
    guarantee: Literal["exact", "certified", "empirical"] | None = None
    in_log: bool = False
    words: str


class SealedOut(Out):
    """An encrypted receipt.

    Attributes
    ----------
    sealed : str or None
        The receipt in base64; null if there is none yet.
    """

    sealed: str | None


@router.post(
    "/api/v1/receipts/check", summary="Check a receipt", dependencies=[Depends(auth.public())]
)
def check_receipt(request: Request, body: CodeIn | ReceiptIn) -> ReceiptVerdict:
    """Check whether a certificate covers a receipt; no token is needed.

    If you send a receipt code, the desk decrypts the receipt in memory and stores nothing. If the
    desk should not see the code, decrypt the receipt with `letheon receipt open` and send the
    result.
    """
    count_check(request)
    return verify_receipt(request, body.code if isinstance(body, CodeIn) else body.receipt)


def count_check(request: Request) -> None:
    """Count a receipt check of a client address; raise an `ApiProblem` (429) at the limit."""
    auth.context(request).limiter.count("receipt", auth.client_address(request))


def verify_receipt(request: Request, text: str) -> ReceiptVerdict:
    """Return whether a certificate covers a receipt code or a decrypted receipt.

    Raises
    ------
    ApiProblem
        422, code ``receipt-malformed``: the text is neither a receipt code nor a receipt, or
        contains a typing error.
    """
    desk, text = auth.context(request), text.strip()
    receipts = desk.ledger.certificates.receipts
    try:
        receipt = _parse_receipt(text) if text[:1] == "{" else receipts.open(text)
    except VerificationError as error:
        words = f"The code cannot be read: {error}. Copy the complete code; it begins with lethe-."
        raise ApiProblem(422, "receipt-malformed", "not a valid receipt code", words) from None
    coverage = None if receipt is None else receipts.coverage(receipt)
    if coverage is None:
        return ReceiptVerdict(covered=False, words=_NOT_YET)
    return _make_verdict(desk, coverage)


def _parse_receipt(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    try:
        parse_strict(data, SMALL)
    except VerificationError:
        # The original text could quote the input.
        raise VerificationError(
            "it is not a receipt as written by `letheon receipt open`"
        ) from None
    return data


def _make_verdict(desk: auth.Context, coverage: Coverage) -> ReceiptVerdict:
    # The number among the certificates of the tenant.
    tenant = desk.ledger.certificates.get(coverage.certificate).tenant
    number = auth.CertificateNumbers(desk.ledger, tenant).tenant_number(coverage.certificate)
    certified = coverage.certified_at.astimezone(UTC).date()
    purged = None if coverage.purged_at is None else coverage.purged_at.astimezone(UTC).date()
    words = (
        f"Certificate {number}, signed on {certified} (UTC), covers this receipt: the row was in "
        "the training data before, and is not in it afterwards."
    )
    if purged is None:
        words += " Copies in the ledger have not been destroyed yet."
    else:
        words += f" All copies in the ledger were destroyed on {purged} (UTC)."
    if coverage.purge_gaps is not None:
        words += " Some of the operator's files could not be searched for copies."
    if not coverage.in_log:
        words += " The next signed checkpoint of the public log will cover the certificate."
    return ReceiptVerdict(
        covered=True,
        certificate=number,
        certified_on=certified,
        purged_on=purged,
        guarantee=coverage.guarantee,
        in_log=coverage.in_log,
        words=words,
    )


@router.post(
    "/api/v1/receipts/sealed",
    summary="Fetch an encrypted receipt",
    dependencies=[Depends(auth.public())],
)
def fetch_sealed_receipt(request: Request, body: SealedIn) -> SealedOut:
    """Return an encrypted receipt; only the holder of the private key can decrypt it."""
    count_check(request)
    desk = auth.context(request)
    sealed = desk.ledger.certificates.receipts.get_encrypted(body.request, body.public_key)
    return SealedOut(sealed=None if sealed is None else base64.b64encode(sealed).decode())


@router.post(
    "/api/v1/requests/{request_id}/receipt-code", summary="Create a receipt code", status_code=201
)
def make_receipt_code(
    caller: Annotated[auth.Principal, Depends(auth.allows("requests:handle"))],
    request_id: RequestPath,
) -> ReceiptCodeOut:
    """Create a receipt code for a request about one person; it replaces earlier codes.

    A code can be created until the request is applied.
    """
    # Filers get no code: whether it is covered in the end reveals that the id was in the model.
    find_visible(caller, request_id)
    with caller.ledger.acting(caller.id):
        code = caller.ledger.certificates.receipts.new_code(request_id, tenant=caller.tenant)
    return ReceiptCodeOut(code=code)


_CHUNK = 1 << 18
_LONGEST_SECONDS = 900.0
# A fixed time: the same bundle gives the same zip file.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_ZIP = "The bundle as a zip file, for `letheon audit` and verifier.py."


@verifiable.get(
    "/api/v1/bundle", summary="Download a bundle", **describe_file("application/zip", _ZIP)
)
def download_bundle(
    caller: Annotated[auth.Principal, Depends(auth.allows("certificates:read", is_long=True))],
    tier: Annotated[
        Literal["public", "auditor"],
        Query(
            description="The auditor tier contains personal data and needs the scope bundles:read."
        ),
    ] = "public",
) -> Response:
    """Download the files that a third party or an auditor needs to verify the ledger.

    The auditor bundle contains personal data. Its export is recorded in the log, and you must
    delete it within thirty days.
    """
    auth.require_unbound(caller)
    if tier == "auditor":
        caller.require("bundles:read")
    ledger = caller.ledger
    with ExitStack() as cleanup:
        cleanup.enter_context(caller.desk.limiter.bundles.acquire(caller.id))
        folder_path = cleanup.enter_context(temp_folder(ledger, "bundle"))
        caller.desk.tokens.record_action(caller.id, f"bundle-{tier}")
        folder = ledger.export(folder_path / "bundle", tier=tier)
        return BundleResponse(folder, f"{ledger.name}-{tier}", cleanup.pop_all())


class BundleResponse(StreamingResponse):
    """A response that streams a folder as a zip file, and cleans up afterwards.

    Parameters
    ----------
    folder : Path
        Folder to send.
    name : str
        Name of the zip file and of the folder in it.
    cleanup : ExitStack
        Closed at the end, even if sending fails; it deletes the temporary folder.

    Guarantee
    ---------
    The temporary folder is deleted after at most 15 minutes, however slowly the client reads.
    """

    def __init__(self, folder: Path, name: str, cleanup: ExitStack) -> None:
        # Names of ledgers may contain a colon, which some systems do not allow in file names.
        safe = name.replace(":", "-")
        headers = {"Content-Disposition": f'attachment; filename="{safe}.zip"'}
        super().__init__(zip_folder(folder, safe), media_type="application/zip", headers=headers)
        self._cleanup = cleanup

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, then clean up, even if the client disconnects."""
        try:
            # A truncated zip file is not valid: its end is missing.
            with anyio.move_on_after(_LONGEST_SECONDS):
                await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await run_in_threadpool(self._cleanup.close)


def zip_folder(folder: Path, name: str) -> Iterator[bytes]:
    """Yield a zip file of a folder in chunks, so that memory does not grow with its size.

    Parameters
    ----------
    folder : Path
        The folder; its regular files are included, sorted by name.
    name : str
        Name of the folder in the zip file.
    """
    pieces: list[bytes] = []

    def write(data: bytes) -> int:
        pieces.append(bytes(data))
        return len(data)

    def take_pieces() -> bytes:
        data = b"".join(pieces)
        pieces.clear()
        return data

    sink = SimpleNamespace(write=write, flush=lambda: None)  # a write-only file
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                inside = zipfile.ZipInfo(f"{name}/{path.relative_to(folder).as_posix()}", _EPOCH)
                inside.compress_type = zipfile.ZIP_DEFLATED
                inside.external_attr = 0o600 << 16
                with path.open("rb") as source, archive.open(inside, "w", force_zip64=True) as out:
                    while piece := source.read(_CHUNK):
                        out.write(piece)
                        yield take_pieces()
                yield take_pieces()
    yield take_pieces()


_USERS = "store:"
StoreKind = Literal["own", "folder", "backup"]
OWN_STORES = {
    "blobs": ("version-before", "Encrypted files of the previous version."),
    "key": ("epoch-key", "Key that encrypted the files of the previous version."),
    "intake": ("request-bodies", "Contents of the requests, with the ids."),
    "training": ("training-keys", "Keys of training seeds that are no longer in use."),
    "temporary": ("half-written-files", "Temporary files."),
    "database": ("journal", "Old pages and the journal of the database."),
}
"""The ledger's own stores: scope and description."""


@dataclass(frozen=True)
class StoreOut:
    """A store that may contain personal data.

    Attributes
    ----------
    is_registered : bool
        Whether purges search the store.
    """

    name: str
    scope: str
    kind: StoreKind
    words: str
    is_registered: bool = True


class CellOut(Out):
    """The result of one purge in one store.

    Attributes
    ----------
    state : {"purged", "expires", "not-searched"}
        Result of the purge; `not-searched` if nothing was found, but some files could not be
        searched.
    at : datetime or None
        Time of the search or deletion; null for backups, which expire.
    by : date or None
        Day on which the last backup with the data expires; null for other stores.
    evidence : str
        SHA-256 of the record of this step of the purge.
    files : int or None
        Number of files that were searched; null if it was not recorded.
    files_not_searched : int or None
        Number of files that could not be searched; null if it is not known.
    """

    store: str
    state: Literal["purged", "expires", "not-searched"]
    at: datetime | None
    by: date | None
    evidence: str
    files: int | None
    bytes: int | None
    files_not_searched: int | None


class PurgeOut(Out):
    """The purge after a certificate; its state is `waiting` until the purge is finished.

    Attributes
    ----------
    markers : int or None
        Number of ids, rows and salts that were searched for.
    files : int or None
        Number of files that were searched; null for a tenant's token.
    gaps : str or None
        Description of what was not searched; null if everything was searched.
    not_searched : list of CodeOut
        Limitations that the attestation states.
    """

    certificate: int
    model: str
    tenant: str
    state: Literal["purged", "waiting"]
    started_at: datetime | None = None
    purged_at: datetime | None = None
    salts_destroyed: int | None = None
    scanner: str | None = None
    markers: int | None = None
    files: int | None = None
    bytes: int | None = None
    hits: int | None = None
    gaps: str | None = None
    recipients_told: int | None = None
    cells: list[CellOut]
    not_searched: list[CodeOut]


class ResidueOut(Out):
    """The stores, and the results of purges by store, newest purge first."""

    stores: list[StoreOut]
    purges: list[PurgeOut]
    next: str | None


@verifiable.get("/api/v1/residue", summary="Show the results of purges")
def show_residue(
    caller: Reader,
    tenant: TenantFilter = None,
    model: ModelFilter = None,
    after: Annotated[str | None, Query(pattern="^[0-9]{1,15}$")] = None,
    limit: Limit = 50,
) -> ResidueOut:
    """Show the results of purges by store, as signed in their attestations, newest first."""
    numbers = caller.numbers
    records = caller.ledger.certificates.purges(
        tenant=caller.tenant_filter(tenant),
        model=model,
        before=None if after is None else numbers.ledger_number(int(after)),
        limit=limit + 1,
    )
    purges = [_purge_out(record, numbers) for record in records[:limit]]
    more = str(purges[-1].certificate) if len(records) > limit else None
    cells = {cell.store: cell for purge in purges for cell in purge.cells}
    # A tenant's token sees a registered store only if an attestation of the tenant contains it.
    registered = [
        store
        for store in caller.ledger.stores.list()
        if caller.tenant is None or _USERS + store.name in cells
    ]
    return ResidueOut(stores=_stores_out(registered, cells), purges=purges, next=more)


def _purge_out(record: Purge, numbers: auth.CertificateNumbers) -> PurgeOut:
    values: dict[str, Any] = {"state": "waiting", "cells": [], "not_searched": []}
    if record.envelope is not None:
        claims, sees_all = statement_in(record.envelope)["predicate"], numbers.tenant is None
        scanner, evidence = claims["scanner"], record.evidence if sees_all else {}
        values = {
            "state": "purged",
            "started_at": claims["times"]["startedAt"],
            "purged_at": claims["times"]["purgedAt"],
            "salts_destroyed": claims["salts"]["destroyed"],
            "scanner": scanner["version"],
            "markers": scanner["markers"],
            # The searched files include those of all tenants.
            "files": scanner["files"] if sees_all else None,
            "bytes": scanner["bytes"] if sees_all else None,
            "hits": scanner["hits"],
            "gaps": search_gaps(claims) or None,
            "recipients_told": claims["recipientsTold"],
            "cells": [_cell_out(store, scanner, evidence) for store in claims["stores"]],
            "not_searched": codes_out(claims["notClaimed"], PURGE_NOT_CLAIMED),
        }
    whose = {"model": record.model, "tenant": record.tenant}
    return PurgeOut.model_validate(
        {"certificate": numbers.tenant_number(record.sequence) or 0, **whose, **values}
    )


def _cell_out(
    store: dict[str, Any], scanner: dict[str, Any], evidence: dict[str, dict[str, Any]]
) -> CellOut:
    """Return the result of a purge in a store.

    Attestations of an earlier scanner do not state what could not be searched in a folder; the
    state is then `not-searched`. An attestation contains only totals over all stores. The counts of
    a registered store come from the record of the step, whose digest is in the attestation.
    """
    name, noted = store["store"], {}
    is_counted = "notSearched" in scanner or not name.startswith(_USERS)
    if name.startswith(_USERS):
        noted = evidence.get("stores", {}).get(name.removeprefix(_USERS), {})
    is_open = store["state"] == "purged" and not is_counted
    return CellOut(
        store=name,
        state="not-searched" if is_open else store["state"],
        at=store.get("at"),
        by=store.get("by"),
        evidence=store["evidence"]["sha256"],
        files=noted.get("files"),
        bytes=noted.get("bytes"),
        files_not_searched=store.get("notSearched", 0) if is_counted else None,
    )


def _stores_out(registered: list[Store], cells: dict[str, CellOut]) -> list[StoreOut]:
    """Return the ledger's own stores, the registered stores, and former stores in attestations."""
    stores = [StoreOut(name, scope, "own", words) for name, (scope, words) in OWN_STORES.items()]
    for store in registered:
        words = f"A backup that expires after {store.days} days."
        if store.days is None:
            words = "A folder with copies of the data."
        stores.append(StoreOut(_USERS + store.name, store.scope, store.kind, words))
    for name in sorted(cells.keys() - {store.name for store in stores}):
        kind: StoreKind = "backup" if cells[name].state == "expires" else "folder"
        words = "No longer registered: later purges do not search it."
        stores.append(StoreOut(name, "former", kind, words, is_registered=False))
    return stores
