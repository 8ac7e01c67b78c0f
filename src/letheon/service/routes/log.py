"""The chain of certificates, the log, and proofs about both; for tokens that see all tenants."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from letheon.ledger import Certificate, LogConsistency
from letheon.service.auth import Principal, require_unbound
from letheon.service.errors import Problem
from letheon.service.numbers import Numbers
from letheon.service.routes.certificates import (
    After,
    CertificateOut,
    Reader,
    certificate_out,
    find_certificates,
    previous_id,
)
from letheon.service.schemas import Limit, Out
from letheon.verifier import MAX_INT, Refused, Trust, certificate_id, open_envelope, parse_strict

router = APIRouter(tags=["certificates"])

Place = Annotated[int | None, Query(ge=0, le=MAX_INT)]


class LinkOut(CertificateOut):
    """A certificate in the chain."""

    previous: str = Field(description="The id that it names as the one before, or `genesis`.")
    is_linked: bool = Field(description="Whether that is the id of the certificate before.")
    is_signed: bool = Field(description="Whether signature, schema and key hold.")
    reason: str | None = Field(description="Why not.")


class ChainOut(Out):
    """Certificates, newest first, each with its link to the one before."""

    items: list[LinkOut]
    next: str | None
    total: int = Field(ge=0)
    is_whole: bool = Field(description="Whether all links and signatures of this part hold.")


class CheckpointOut(Out):
    """A signed state of the log."""

    size: int = Field(ge=0)
    root: str
    at: datetime
    note: str = Field(description="The C2SP note with its signatures.")


class InclusionOut(Out):
    """Proof that an event is in the log (RFC 6962)."""

    index: int = Field(ge=0)
    size: int = Field(ge=0)
    leaf: str
    root: str
    path: list[str]
    event: dict[str, Any] = Field(description="Codes, counts and opaque ids.")


@router.get("/api/v1/chain", summary="Show the chain of certificates")
def show_chain(who: Reader, after: After = None, limit: Limit = 50) -> ChainOut:
    """Return certificates, newest first, with every link and signature checked."""
    require_unbound(who)
    page = find_certificates(who, after=after, limit=limit)
    items: list[LinkOut] = []
    if page.items:
        contents = who.ledger.certificates.envelopes(
            page.items[-1].sequence - 1, page.items[0].sequence
        )
        trust = who.ledger.keys.trust()
        items = [_check_link(who, one, contents, trust) for one in page.items]
    is_whole = all(item.is_linked and item.is_signed for item in items)
    return ChainOut(items=items, next=page.next, total=page.total, is_whole=is_whole)


def _check_link(
    who: Principal, info: Certificate, contents: dict[int, bytes], trust: Trust
) -> LinkOut:
    values: dict[str, Any]
    try:
        opened = open_envelope(contents[info.sequence], trust)
    except Refused as error:
        values = {"previous": "?", "is_linked": False, "is_signed": False, "reason": str(error)}
    else:
        previous = previous_id(opened.predicate)
        values = {
            "previous": previous,
            "is_linked": previous == _id_before(info.sequence, contents),
            "is_signed": opened.id == info.id and opened.sequence == info.sequence,
            "reason": None,
        }
    return LinkOut.of(certificate_out(info, Numbers(who.desk, None)), **values)


def _id_before(sequence: int, contents: dict[int, bytes]) -> str | None:
    """Return what the certificate before really is: its bytes, not what the database says."""
    if sequence == 1:
        return "genesis"
    try:
        return certificate_id(contents[sequence - 1])
    except (Refused, KeyError):
        return None


@router.get("/api/v1/checkpoints/latest", summary="Show the newest checkpoint")
def show_checkpoint(who: Reader) -> CheckpointOut:
    """Return the newest signed checkpoint of the log; keep it to notice a roll-back."""
    require_unbound(who)
    checkpoint = who.ledger.log.latest_checkpoint()
    if checkpoint is None:
        words = "The ledger signs one with the next certificate or bundle."
        raise Problem(404, "no-checkpoint", "no checkpoint yet", words)
    return CheckpointOut.of(checkpoint, at=datetime.fromtimestamp(checkpoint.at, UTC))


@router.get("/api/v1/log/inclusion", summary="Prove that an event is in the log")
def prove_inclusion(
    who: Reader,
    index: Place = None,
    certificate: Annotated[int | None, Query(ge=1, le=MAX_INT)] = None,
    size: Place = None,
) -> InclusionOut:
    """Return an RFC 6962 path from an event, or from that of a certificate, to the root."""
    require_unbound(who)
    ledger = who.ledger
    if index is None and certificate is None:
        words = "Give index, the place of an event, or certificate, a number."
        raise Problem(422, "invalid", "what is to be proved?", words)
    if index is None and certificate is not None:
        index = ledger.certificates.get(certificate).log_index
    body = None if index is None else ledger.log.event(index)
    if index is None or body is None:
        raise _not_in_log()
    try:
        proof = ledger.log.inclusion(index, size=size)
    except ValueError as error:
        raise _not_in_log() from error
    return InclusionOut.of(proof, event=parse_strict(body))


@router.get("/api/v1/log/consistency", summary="Prove that the log only grew")
def prove_consistency(
    who: Reader,
    first: Annotated[int, Query(ge=0, le=MAX_INT)],
    second: Place = None,
) -> LogConsistency:
    """Return an RFC 6962 proof that the log of one size is the beginning of another."""
    require_unbound(who)
    try:
        return who.ledger.log.consistency(first, second)
    except ValueError as error:
        raise _not_in_log() from error


def _not_in_log() -> Problem:
    words = "GET /api/v1/checkpoints/latest says how long the signed log is."
    return Problem(404, "not-in-log", "the log has no such place or size", words)
