"""Receipts: new codes for requests, and the public check."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from letheon.service.api.requests import Id
from letheon.service.auth import Principal, allows, context, public
from letheon.service.desk import receipts as desk
from letheon.service.desk.receipts import ReceiptVerdict, SealedOut
from letheon.service.schemas import In, Out

__all__ = ["router"]

router = APIRouter(tags=["receipts"])


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


@router.post("/api/v1/receipts/check", summary="Check a receipt", dependencies=[Depends(public())])
def check_receipt(request: Request, body: CodeIn | ReceiptIn) -> ReceiptVerdict:
    """Say whether a certificate covers a receipt, and nothing else; everybody may ask.

    A code lets the desk open the receipt for a moment; nothing of it is kept. Who does not want
    that opens the receipt alone (`letheon receipt open`) and sends what is in it.
    """
    desk.limit(context(request), request)
    text = body.code if isinstance(body, CodeIn) else body.receipt
    return desk.check(context(request), text)


@router.post(
    "/api/v1/receipts/sealed", summary="Fetch a sealed receipt", dependencies=[Depends(public())]
)
def fetch_sealed_receipt(request: Request, body: SealedIn) -> SealedOut:
    """Return a sealed receipt, which only the holder of its private key can open."""
    desk.limit(context(request), request)
    return desk.sealed(context(request), body.request, body.public_key)


@router.post(
    "/api/v1/requests/{request_id}/receipt-code", summary="Make a new receipt code", status_code=201
)
def make_receipt_code(
    request: Request,
    who: Annotated[Principal, Depends(allows("requests:handle"))],
    request_id: Id,
) -> ReceiptCodeOut:
    """Make a new code for a request of one person, until it is applied; older ones end."""
    return ReceiptCodeOut(code=desk.new_code(context(request), who, request_id))
