"""Evidence: receipts of people, bundles for strangers and auditors, the map of residue.

A check of a receipt says something about the one that was sent: no model, no tenant, no count. A
code of an unknown request, a wrong key and a request without certificate are answered alike, by one
query that finds nothing.

A bundle is one zip file that is made while it is sent. The folder that it is made from lies in
a private room of the ledger's home. It is destroyed when the last byte was sent, when the client
hangs up or is too slow, and at the next start after a kill. Purges wait for it, so that a token has
one at a time, and all tokens together few.
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
from letheon.service.errors import Problem
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
    "filed more than one request, try the code of the first one."
)


class CodeIn(In):
    """A receipt code.

    Attributes
    ----------
    code : str
        It begins with lethe-.
    """

    code: str = Field(min_length=1, max_length=400)


class ReceiptIn(In):
    """A receipt that its holder has opened.

    Attributes
    ----------
    receipt : str
        The file that `letheon receipt open` wrote.
    """

    receipt: str = Field(min_length=2, max_length=500_000)


class SealedIn(In):
    """Which receipt, and whose.

    Attributes
    ----------
    request : str
        Id of the request.
    public_key : str
        X25519, hexadecimal digits.
    """

    request: str = Field(pattern="^[0-9a-f]{32}$")
    public_key: str = Field(pattern="^[0-9a-f]{64}$")


class ReceiptCodeOut(Out):
    """A new receipt code.

    Attributes
    ----------
    code : str
        Shown this once, and kept nowhere.
    """

    code: str


class ReceiptVerdict(Out):
    """Whether a certificate covers a receipt; what is not known yet is null.

    Attributes
    ----------
    certificate : int or None
        Its number, among those of its tenant.
    certified_on : date or None
        Day, in UTC, on which it was signed.
    purged_on : date or None
        Day, in UTC, on which what was left of the rows was destroyed.
    guarantee : {"exact", "certified", "empirical"} or None
        Kind of guarantee that the model has forgotten.
    in_log : bool
        Whether a signed checkpoint covers it.
    """

    covered: bool
    certificate: int | None = None
    certified_on: date | None = None
    purged_on: date | None = None
    guarantee: Literal["exact", "certified", "empirical"] | None = None
    in_log: bool = False
    words: str


class SealedOut(Out):
    """A sealed receipt.

    Attributes
    ----------
    sealed : str or None
        In base64; null while there is none.
    """

    sealed: str | None


@router.post(
    "/api/v1/receipts/check", summary="Check a receipt", dependencies=[Depends(auth.public())]
)
def check_receipt(request: Request, body: CodeIn | ReceiptIn) -> ReceiptVerdict:
    """Say whether a certificate covers a receipt, and nothing else; everybody may ask.

    A code lets the desk open the receipt for a moment; nothing of it is kept. Who does not want
    that opens the receipt alone (`letheon receipt open`) and sends what is in it.
    """
    count_check(request)
    return verify_receipt(request, body.code if isinstance(body, CodeIn) else body.receipt)


def count_check(request: Request) -> None:
    """Count a question about receipts, whatever it holds; 429 if an address asks too often."""
    auth.context(request).limiter.count("receipt", auth.address_of(request))


def verify_receipt(request: Request, text: str) -> ReceiptVerdict:
    """Say whether a certificate covers a receipt code, or a receipt that its holder has opened.

    Raises
    ------
    Problem
        The text is neither, or was mistyped: 422, code ``receipt-malformed``.
    """
    desk, text = auth.context(request), text.strip()
    receipts = desk.ledger.certificates.receipts
    try:
        receipt = _parse_receipt(text) if text[:1] == "{" else receipts.open(text)
    except VerificationError as error:
        words = f"It cannot be read: {error}. Copy the whole code, which begins with lethe-."
        raise Problem(422, "receipt-malformed", "this is no receipt code", words) from None
    coverage = None if receipt is None else receipts.coverage(receipt)
    if coverage is None:
        return ReceiptVerdict(covered=False, words=_NOT_YET)
    return _verdict(desk, coverage)


def _parse_receipt(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    try:
        parse_strict(data, SMALL)
    except VerificationError:
        # Its own words could quote what was sent.
        raise VerificationError("it is no receipt as `letheon receipt open` writes it") from None
    return data


def _verdict(desk: auth.Context, coverage: Coverage) -> ReceiptVerdict:
    # Its number among those of its tenant: all that the tenant's people see.
    tenant = desk.ledger.certificates.get(coverage.certificate).tenant
    number = auth.Numbers(desk.ledger, tenant).shown(coverage.certificate)
    certified = coverage.certified_at.astimezone(UTC).date()
    purged = None if coverage.purged_at is None else coverage.purged_at.astimezone(UTC).date()
    words = (
        f"Certificate {number}, signed on {certified} (UTC), covers this receipt: the row was in "
        "the training data before and is not in it now."
    )
    if purged is None:
        words += " The remaining copies in the ledger still have to be destroyed."
    else:
        words += f" All copies in the ledger were destroyed on {purged} (UTC)."
    if coverage.purge_gaps is not None:
        words += " Some files of the operator could not be searched for copies."
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
    summary="Fetch a sealed receipt",
    dependencies=[Depends(auth.public())],
)
def fetch_sealed_receipt(request: Request, body: SealedIn) -> SealedOut:
    """Return a sealed receipt, which only the holder of its private key can open."""
    count_check(request)
    desk = auth.context(request)
    sealed = desk.ledger.certificates.receipts.get_encrypted(body.request, body.public_key)
    return SealedOut(sealed=None if sealed is None else base64.b64encode(sealed).decode())


@router.post(
    "/api/v1/requests/{request_id}/receipt-code", summary="Make a new receipt code", status_code=201
)
def make_receipt_code(
    who: Annotated[auth.Principal, Depends(auth.allows("requests:handle"))],
    request_id: RequestPath,
) -> ReceiptCodeOut:
    """Make a new code for a request of one person, until it is applied; older ones end."""
    # Filers get none: only a code of a person who was held is covered in the end.
    find_visible(who, request_id)
    with who.ledger.acting(who.id):
        code = who.ledger.certificates.receipts.new_code(request_id, tenant=who.tenant)
    return ReceiptCodeOut(code=code)


_CHUNK = 1 << 18
_LONGEST_SECONDS = 900.0
# Certificates have no time of a file; the same bundle gives the same names and times.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_ZIP = "A zip file with the folder that `letheon audit` and verifier.py check."


@verifiable.get(
    "/api/v1/bundle", summary="Download a bundle", **describe_file("application/zip", _ZIP)
)
def download_bundle(
    who: Annotated[auth.Principal, Depends(auth.allows("certificates:read", is_long=True))],
    tier: Annotated[
        Literal["public", "auditor"],
        Query(description="The auditor's holds rows of people, and needs the scope bundles:read."),
    ] = "public",
) -> Response:
    """Return what a stranger, or an auditor, needs to verify the ledger without it.

    The auditor's bundle is personal data, handed over in custody: its export is an event of the
    log, and it is to be destroyed within thirty days.
    """
    auth.require_unbound(who)
    if tier == "auditor":
        who.require("bundles:read")
    ledger = who.ledger
    with ExitStack() as cleanup:
        cleanup.enter_context(who.desk.limiter.bundles.take(who.id))
        room = cleanup.enter_context(temp_folder(ledger, "bundle"))
        who.desk.tokens.record_action(who.id, f"bundle-{tier}")
        folder = ledger.export(room / "bundle", tier=tier)
        return BundleResponse(folder, f"{ledger.name}-{tier}", cleanup.pop_all())


class BundleResponse(StreamingResponse):
    """A zip file of a folder, and what is to be cleaned up after it was sent.

    Parameters
    ----------
    folder : Path
        What is sent.
    name : str
        Name of the file, and of the folder in it.
    cleanup : ExitStack
        Closed afterwards, whatever happens; it destroys the room that the folder lies in.

    Guarantee
    ---------
    The room is gone after 15 minutes, however slowly the client reads.
    """

    def __init__(self, folder: Path, name: str, cleanup: ExitStack) -> None:
        # A name of a ledger has letters, digits and ._:- only; some systems dislike the colon.
        safe = name.replace(":", "-")
        headers = {"Content-Disposition": f'attachment; filename="{safe}.zip"'}
        super().__init__(zip_folder(folder, safe), media_type="application/zip", headers=headers)
        self._cleanup = cleanup

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, then clean up: also when the client hung up."""
        try:
            # A file that breaks off is no zip file: its end is missing.
            with anyio.move_on_after(_LONGEST_SECONDS):
                await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):
                await run_in_threadpool(self._cleanup.close)


def zip_folder(folder: Path, name: str) -> Iterator[bytes]:
    """Yield a zip file of a folder, a piece at a time: memory does not grow with it.

    Parameters
    ----------
    folder : Path
        Its plain files are taken, in order of their names.
    name : str
        The folder's name in the file.
    """
    pieces: list[bytes] = []

    def write(data: bytes) -> int:
        pieces.append(bytes(data))
        return len(data)

    def take() -> bytes:
        data = b"".join(pieces)
        pieces.clear()
        return data

    sink = SimpleNamespace(write=write, flush=lambda: None)  # it is only written, piece by piece
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                inside = zipfile.ZipInfo(f"{name}/{path.relative_to(folder).as_posix()}", _EPOCH)
                inside.compress_type = zipfile.ZIP_DEFLATED
                inside.external_attr = 0o600 << 16
                with path.open("rb") as source, archive.open(inside, "w", force_zip64=True) as out:
                    while piece := source.read(_CHUNK):
                        out.write(piece)
                        yield take()
                yield take()
    yield take()


_USERS = "store:"
StoreKind = Literal["own", "folder", "backup"]
OWN_STORES = {
    "blobs": ("version-before", "Sealed files of the version before."),
    "key": ("epoch-key", "The key that these files were sealed with."),
    "intake": ("request-bodies", "Bodies of the requests, which named people."),
    "training": ("training-keys", "Keys of training seeds that are no longer used."),
    "temporary": ("half-written-files", "Half-written files."),
    "database": ("journal", "Old pages of the database and its journal."),
}
"""The ledger's own stores: scope and words."""


@dataclass(frozen=True)
class StoreOut:
    """A place that may hold people.

    Attributes
    ----------
    is_registered : bool
        Whether purges look through it from now on.
    """

    name: str
    scope: str
    kind: StoreKind
    words: str
    is_registered: bool = True


class CellOut(Out):
    """What one purge found in one store.

    Attributes
    ----------
    state : {"purged", "expires", "not-searched"}
        not-searched: nothing was found, but not all of it could be searched.
    at : datetime or None
        When it was searched or destroyed.
    by : date or None
        When the last backup expires.
    evidence : str
        SHA-256 of what the step noted.
    files : int or None
        Files that were searched; null where it says nothing.
    files_not_searched : int or None
        Files that could not be searched; null where it is not known.
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
    """One purge, or a certificate whose purge is not done.

    Attributes
    ----------
    markers : int or None
        What was looked for: ids, rows, salts.
    files : int or None
        Null for a tenant's token.
    gaps : str or None
        What was not searched, in words; null if nothing.
    not_searched : list of CodeOut
        What the attestation does not claim.
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
    """Stores by purges, the newest purge first."""

    stores: list[StoreOut]
    purges: list[PurgeOut]
    next: str | None


@verifiable.get("/api/v1/residue", summary="Show what purges found in each store")
def show_residue(
    who: Reader,
    tenant: TenantFilter = None,
    model: ModelFilter = None,
    after: Annotated[str | None, Query(pattern="^[0-9]{1,15}$")] = None,
    limit: Limit = 50,
) -> ResidueOut:
    """Return stores by purges, from the signed attestations; the newest purge first."""
    numbers = who.numbers
    records = who.ledger.certificates.purges(
        tenant=who.tenant_filter(tenant),
        model=model,
        before=None if after is None else numbers.sequence(int(after)),
        limit=limit + 1,
    )
    purges = [_purge_out(record, numbers) for record in records[:limit]]
    more = str(purges[-1].certificate) if len(records) > limit else None
    cells = {cell.store: cell for purge in purges for cell in purge.cells}
    # A tenant's token learns of registered stores only where an attestation of the tenant does.
    registered = [
        store
        for store in who.ledger.stores.list()
        if who.tenant is None or _USERS + store.name in cells
    ]
    return ResidueOut(stores=_stores_out(registered, cells), purges=purges, next=more)


def _purge_out(record: Purge, numbers: auth.Numbers) -> PurgeOut:
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
            # What was searched holds the files of all tenants.
            "files": scanner["files"] if sees_all else None,
            "bytes": scanner["bytes"] if sees_all else None,
            "hits": scanner["hits"],
            "gaps": search_gaps(claims) or None,
            "recipients_told": claims["recipientsTold"],
            "cells": [_cell_out(one, scanner, evidence) for one in claims["stores"]],
            "not_searched": codes_out(claims["notClaimed"], PURGE_NOT_CLAIMED),
        }
    whose = {"model": record.model, "tenant": record.tenant}
    return PurgeOut.model_validate(
        {"certificate": numbers.shown(record.sequence) or 0, **whose, **values}
    )


def _cell_out(
    store: dict[str, Any], scanner: dict[str, Any], evidence: dict[str, dict[str, Any]]
) -> CellOut:
    """Return a cell; an earlier scanner did not say what it could not search in a folder.

    The attestation says what was searched in all. How much of that was in a registered store is
    what the step noted, whose digest the attestation has.
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
    """Return the ledger's own stores, those that are registered, and those that purges name."""
    stores = [StoreOut(name, scope, "own", words) for name, (scope, words) in OWN_STORES.items()]
    for store in registered:
        words = f"A backup that expires after {store.days} days."
        if store.days is None:
            words = "A folder of copies."
        stores.append(StoreOut(_USERS + store.name, store.scope, store.kind, words))
    for name in sorted(cells.keys() - {one.name for one in stores}):
        kind: StoreKind = "backup" if cells[name].state == "expires" else "folder"
        words = "It was taken off the list: later purges do not look there."
        stores.append(StoreOut(name, "former", kind, words, is_registered=False))
    return stores
