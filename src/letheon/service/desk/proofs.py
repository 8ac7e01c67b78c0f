"""The chain of certificates, checkpoints of the log, and proofs about both."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from letheon.ledger import CertificateInfo
from letheon.ledger.models.history import envelopes, event_at, latest_checkpoint, trust_of
from letheon.service._auth import Principal, require_unbound
from letheon.service._context import Context
from letheon.service._problems import Problem
from letheon.service._schemas import Out
from letheon.service.desk.certificates import CertificateOut, certificate_out
from letheon.service.desk.log import event_in_log
from letheon.service.desk.numbers import Numbers
from letheon.verifier import Refused, Trust, certificate_id, open_envelope

__all__ = [
    "ChainOut",
    "CheckpointOut",
    "ConsistencyOut",
    "InclusionOut",
    "LinkOut",
    "chain",
    "checkpoint",
    "consistency",
    "inclusion",
]


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


class ConsistencyOut(Out):
    """Proof that one state of the log continues another (RFC 6962)."""

    size1: int = Field(ge=0)
    size2: int = Field(ge=0)
    root1: str
    root2: str
    path: list[str]


def chain(
    context: Context, who: Principal, *, after: str | None = None, limit: int = 50
) -> ChainOut:
    """Return a part of the chain with every link and signature in it checked."""
    require_unbound(who)
    try:
        found = context.ledger.certificate_infos(after=after, limit=limit)
    except ValueError as error:
        words = "Give back `next` as it was given."
        raise Problem(422, "cursor", "after cannot be used", words) from error
    items = _links(context, found.items)
    return ChainOut(
        items=items,
        next=found.next,
        total=found.total,
        is_whole=all(item.is_linked and item.is_signed for item in items),
    )


def _links(context: Context, infos: Sequence[CertificateInfo]) -> list[LinkOut]:
    if not infos:
        return []
    oldest, newest = infos[-1].sequence, infos[0].sequence
    bytes_of = envelopes(context.ledger, oldest - 1, newest)
    trust = trust_of(context.ledger)
    numbers = Numbers(context, None)
    return [_link(certificate_out(one, numbers), one, bytes_of, trust) for one in infos]


def _link(
    out: CertificateOut, info: CertificateInfo, bytes_of: dict[int, bytes], trust: Trust
) -> LinkOut:
    shown = out.model_dump()
    try:
        opened = open_envelope(bytes_of[info.sequence], trust)
    except Refused as error:
        return LinkOut(**shown, previous="?", is_linked=False, is_signed=False, reason=str(error))
    said = opened.predicate["ledger"]["previousCertificate"]
    previous = said if isinstance(said, str) else said["sha256"]
    return LinkOut(
        **shown,
        previous=previous,
        is_linked=previous == _id_before(info.sequence, bytes_of),
        is_signed=opened.id == info.id and opened.sequence == info.sequence,
        reason=None,
    )


def _id_before(sequence: int, bytes_of: dict[int, bytes]) -> str | None:
    """Return what the certificate before really is: its bytes, not what the database says."""
    if sequence == 1:
        return "genesis"
    try:
        return certificate_id(bytes_of[sequence - 1])
    except (Refused, KeyError):
        return None


def checkpoint(context: Context, who: Principal) -> CheckpointOut:
    """Return the newest signed checkpoint of the log."""
    require_unbound(who)
    found = latest_checkpoint(context.ledger)
    if found is None:
        words = "The ledger signs one with the next certificate or bundle."
        raise Problem(404, "no-checkpoint", "no checkpoint yet", words)
    at = datetime.fromtimestamp(found.at, UTC)
    return CheckpointOut(size=found.size, root=found.root, at=at, note=found.note)


def inclusion(
    context: Context,
    who: Principal,
    *,
    index: int | None = None,
    certificate: int | None = None,
    size: int | None = None,
) -> InclusionOut:
    """Prove that an event, or the event of a certificate, is in the log of a size."""
    require_unbound(who)
    place = _place_of(context, certificate) if index is None else index
    body = event_at(context.ledger, place)
    if body is None:
        raise _not_in_log()
    try:
        found = context.ledger.log_inclusion(place, size=size)
    except ValueError as error:
        raise _not_in_log() from error
    return InclusionOut(
        index=found.index,
        size=found.size,
        leaf=found.leaf,
        root=found.root,
        path=list(found.path),
        event=event_in_log(body),
    )


def _place_of(context: Context, certificate: int | None) -> int:
    if certificate is None:
        words = "Give index, the place of an event, or certificate, a number."
        raise Problem(422, "invalid", "what is to be proved?", words)
    found = context.ledger.certificate_info(certificate).log_index
    if found is None:
        raise _not_in_log()
    return found


def _not_in_log() -> Problem:
    words = "GET /api/v1/checkpoints/latest says how long the signed log is."
    return Problem(404, "not-in-log", "the log has no such place or size", words)


def consistency(
    context: Context, who: Principal, *, first: int, second: int | None = None
) -> ConsistencyOut:
    """Prove that the log of one size is the beginning of that of another, or of all of it."""
    require_unbound(who)
    try:
        found = context.ledger.log_consistency(first, second)
    except ValueError as error:
        raise _not_in_log() from error
    return ConsistencyOut(
        size1=found.size1,
        size2=found.size2,
        root1=found.root1,
        root2=found.root2,
        path=list(found.path),
    )
