"""Receipts at the desk: codes are handed out, and people see whether a certificate covers theirs.

Whoever checks learns about the one receipt that they hold: no model, no tenant, no count. A code
of an unknown request, a wrong key and a request without certificate are answered alike, by one
query that finds nothing.
"""

import base64
from datetime import UTC, date
from typing import Literal

from fastapi import Request
from pydantic import Field

from letheon.ledger import Coverage
from letheon.ledger.models.history import certificate_record
from letheon.service._auth import Principal, address_of
from letheon.service._context import Context
from letheon.service._problems import Problem
from letheon.service._schemas import Out
from letheon.service.desk.numbers import Numbers
from letheon.service.desk.requests import visible
from letheon.verifier import SMALL, Refused, parse_strict

__all__ = ["ReceiptVerdict", "SealedOut", "check", "limit", "new_code", "sealed"]

_NOT_YET = (
    "No certificate covers this code yet. Try again after the day on which an answer is due. If "
    "you asked more than once, try the code of your first request."
)


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


def limit(context: Context, request: Request) -> None:
    """Count a check from an address, or raise the problem 429."""
    context.limiter.count("receipt", address_of(request))


def check(context: Context, text: str) -> ReceiptVerdict:
    """Say whether a certificate covers a receipt code, or a receipt that its holder has opened.

    Raises
    ------
    Problem
        The text is neither, or was mistyped: 422, code ``receipt-malformed``.
    """
    text = text.strip()
    try:
        receipt = _receipt(text) if text.startswith("{") else context.ledger.opened_receipt(text)
    except Refused as error:
        raise Problem(
            422,
            "receipt-malformed",
            "this is no receipt code",
            f"It cannot be read: {error}. Copy the whole code, which begins with lethe-.",
        ) from None
    found = None if receipt is None else context.ledger.coverage(receipt)
    if found is None:
        return ReceiptVerdict(covered=False, words=_NOT_YET)
    return _told(found, _number(context, found.certificate))


def _number(context: Context, sequence: int) -> int | None:
    """Return the number of a certificate among those of its tenant: all that its people see."""
    record = certificate_record(context.ledger, sequence)
    return None if record is None else Numbers(context, record.tenant).shown(sequence)


def _receipt(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    try:
        parse_strict(data, SMALL)
    except Refused:
        # Its own words could quote what was sent.
        raise Refused("it is no receipt as `letheon receipt open` writes it") from None
    return data


def _told(found: Coverage, number: int | None) -> ReceiptVerdict:
    certified = found.certified_at.astimezone(UTC).date()
    purged = None if found.purged_at is None else found.purged_at.astimezone(UTC).date()
    words = (
        f"Certificate {number}, signed on {certified} (UTC), covers this receipt: what "
        "it stands for was in the training data before, and its place is empty now."
    )
    if purged is None:
        words += " What was left of it still has to be destroyed."
    else:
        words += f" What was left of it in the ledger was destroyed on {purged} (UTC)."
    if found.purge_gaps is not None:
        words += " Not every file of the operator could be searched for copies."
    if not found.in_log:
        words += " The next signed checkpoint of the log will cover the certificate."
    return ReceiptVerdict(
        covered=True,
        certificate=number,
        certified_on=certified,
        purged_on=purged,
        guarantee=found.guarantee,
        in_log=found.in_log,
        words=words,
    )


def sealed(context: Context, request_id: str, public_key: str) -> SealedOut:
    """Return a sealed receipt to who names its request and public key; the private one stays."""
    found = context.ledger.sealed_receipt(request_id, public_key)
    return SealedOut(sealed=None if found is None else base64.b64encode(found).decode())


def new_code(context: Context, who: Principal, request_id: str) -> str:
    """Return a new receipt code for a request, which an operator hands to the person.

    Filers get none: only a code of a person who was held is covered in the end.
    """
    visible(context, who, request_id)
    with context.ledger.acting(who.token_id):
        return context.ledger.new_receipt_code(request_id, tenant=who.tenant)
