"""Receipts: codes are handed out, and people see whether a certificate covers theirs.

A check says something about the one receipt that was sent: no model, no tenant, no count. A code
of an unknown request, a wrong key and a request without certificate are answered alike, by one
query that finds nothing.
"""

import base64
from datetime import UTC, date
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from letheon.ledger import Coverage
from letheon.service.auth import Context, Principal, address_of, allows, context, public
from letheon.service.errors import Problem
from letheon.service.numbers import Numbers
from letheon.service.request_views import RequestPath, find_visible
from letheon.service.schemas import In, Out
from letheon.verifier import SMALL, Refused, parse_strict

router = APIRouter(tags=["receipts"])

_NOT_YET = (
    "No certificate covers this code yet. Try again after the day on which an answer is due. If "
    "you asked more than once, try the code of your first request."
)


class CodeIn(In):
    """A receipt code."""

    code: str = Field(min_length=1, max_length=400, description="It begins with lethe-.")


class ReceiptIn(In):
    """A receipt that its holder has opened."""

    receipt: str = Field(
        min_length=2, max_length=500_000, description="The file that `letheon receipt open` wrote."
    )


class SealedIn(In):
    """Which receipt, and whose."""

    request: str = Field(pattern="^[0-9a-f]{32}$", description="Id of the request.")
    public_key: str = Field(pattern="^[0-9a-f]{64}$", description="X25519, hexadecimal digits.")


class ReceiptCodeOut(Out):
    """A new receipt code."""

    code: str = Field(description="Shown this once, and kept nowhere.")


class ReceiptVerdict(Out):
    """Whether a certificate covers a receipt; what is not known yet is null."""

    covered: bool
    certificate: int | None = Field(
        default=None, description="Its number, among those of its tenant."
    )
    certified_on: date | None = Field(
        default=None, description="Day, in UTC, on which it was signed."
    )
    purged_on: date | None = Field(
        default=None, description="Day, in UTC, on which what was left of the rows was destroyed."
    )
    guarantee: Literal["exact", "certified", "empirical"] | None = Field(
        default=None, description="Kind of guarantee that the model has forgotten."
    )
    in_log: bool = Field(default=False, description="Whether a signed checkpoint covers it.")
    words: str


class SealedOut(Out):
    """A sealed receipt."""

    sealed: str | None = Field(description="In base64; null while there is none.")


@router.post("/api/v1/receipts/check", summary="Check a receipt", dependencies=[Depends(public())])
def check_receipt(request: Request, body: CodeIn | ReceiptIn) -> ReceiptVerdict:
    """Say whether a certificate covers a receipt, and nothing else; everybody may ask.

    A code lets the desk open the receipt for a moment; nothing of it is kept. Who does not want
    that opens the receipt alone (`letheon receipt open`) and sends what is in it.
    """
    return verify_receipt(request, body.code if isinstance(body, CodeIn) else body.receipt)


def verify_receipt(request: Request, text: str) -> ReceiptVerdict:
    """Say whether a certificate covers a receipt code, or a receipt that its holder has opened.

    Raises
    ------
    Problem
        The text is neither, or was mistyped: 422, code ``receipt-malformed``; or 429.
    """
    desk, text = context(request), text.strip()
    desk.limiter.count("receipt", address_of(request))
    try:
        receipt = (
            _parse_receipt(text)
            if text[:1] == "{"
            else desk.ledger.certificates.receipts.open(text)
        )
    except Refused as error:
        raise Problem(
            422,
            "receipt-malformed",
            "this is no receipt code",
            f"It cannot be read: {error}. Copy the whole code, which begins with lethe-.",
        ) from None
    coverage = None if receipt is None else desk.ledger.certificates.receipts.coverage(receipt)
    if coverage is None:
        return ReceiptVerdict(covered=False, words=_NOT_YET)
    return _verdict(desk, coverage)


def _parse_receipt(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    try:
        parse_strict(data, SMALL)
    except Refused:
        # Its own words could quote what was sent.
        raise Refused("it is no receipt as `letheon receipt open` writes it") from None
    return data


def _verdict(desk: Context, coverage: Coverage) -> ReceiptVerdict:
    # Its number among those of its tenant: all that the tenant's people see.
    tenant = desk.ledger.certificates.get(coverage.certificate).tenant
    number = Numbers(desk, tenant).shown(coverage.certificate)
    certified = coverage.certified_at.astimezone(UTC).date()
    purged = None if coverage.purged_at is None else coverage.purged_at.astimezone(UTC).date()
    words = (
        f"Certificate {number}, signed on {certified} (UTC), covers this receipt: what "
        "it stands for was in the training data before, and its place is empty now."
    )
    if purged is None:
        words += " What was left of it still has to be destroyed."
    else:
        words += f" What was left of it in the ledger was destroyed on {purged} (UTC)."
    if coverage.purge_gaps is not None:
        words += " Not every file of the operator could be searched for copies."
    if not coverage.in_log:
        words += " The next signed checkpoint of the log will cover the certificate."
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
    "/api/v1/receipts/sealed", summary="Fetch a sealed receipt", dependencies=[Depends(public())]
)
def fetch_sealed_receipt(request: Request, body: SealedIn) -> SealedOut:
    """Return a sealed receipt, which only the holder of its private key can open."""
    desk = context(request)
    desk.limiter.count("receipt", address_of(request))
    sealed = desk.ledger.certificates.receipts.sealed(body.request, body.public_key)
    return SealedOut(sealed=None if sealed is None else base64.b64encode(sealed).decode())


@router.post(
    "/api/v1/requests/{request_id}/receipt-code", summary="Make a new receipt code", status_code=201
)
def make_receipt_code(
    who: Annotated[Principal, Depends(allows("requests:handle"))],
    request_id: RequestPath,
) -> ReceiptCodeOut:
    """Make a new code for a request of one person, until it is applied; older ones end."""
    # Filers get none: only a code of a person who was held is covered in the end.
    find_visible(who, request_id)
    with who.ledger.acting(who.token_id):
        code = who.ledger.certificates.receipts.new_code(request_id, tenant=who.tenant)
    return ReceiptCodeOut(code=code)
