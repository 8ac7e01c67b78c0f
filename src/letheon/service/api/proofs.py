"""The chain, the log, and proofs about them; for tokens that see the whole ledger."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from letheon.service.auth import Principal, allows, context
from letheon.service.desk import proofs as desk
from letheon.service.desk.proofs import ChainOut, CheckpointOut, ConsistencyOut, InclusionOut
from letheon.verifier import MAX_INT

router = APIRouter(tags=["certificates"])

Reader = Annotated[Principal, Depends(allows("certificates:read"))]
Place = Annotated[int | None, Query(ge=0, le=MAX_INT)]


@router.get("/api/v1/chain", summary="Show the chain of certificates")
def show_chain(
    request: Request,
    who: Reader,
    after: Annotated[str | None, Query(max_length=400)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> ChainOut:
    """Return certificates, newest first, with every link and signature checked."""
    return desk.chain(context(request), who, after=after, limit=limit)


@router.get("/api/v1/checkpoints/latest", summary="Show the newest checkpoint")
def show_checkpoint(request: Request, who: Reader) -> CheckpointOut:
    """Return the newest signed checkpoint of the log; keep it to notice a roll-back."""
    return desk.checkpoint(context(request), who)


@router.get("/api/v1/log/inclusion", summary="Prove that an event is in the log")
def prove_inclusion(
    request: Request,
    who: Reader,
    index: Place = None,
    certificate: Annotated[int | None, Query(ge=1, le=MAX_INT)] = None,
    size: Place = None,
) -> InclusionOut:
    """Return an RFC 6962 path from an event, or from that of a certificate, to the root."""
    return desk.inclusion(context(request), who, index=index, certificate=certificate, size=size)


@router.get("/api/v1/log/consistency", summary="Prove that the log only grew")
def prove_consistency(
    request: Request,
    who: Reader,
    first: Annotated[int, Query(ge=0, le=MAX_INT)],
    second: Place = None,
) -> ConsistencyOut:
    """Return an RFC 6962 proof that the log of one size is the beginning of another."""
    return desk.consistency(context(request), who, first=first, second=second)
