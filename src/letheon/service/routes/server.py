"""The caller's token, the ledger's public keys, and whether the server is well."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from letheon.exceptions import OldDatabaseError
from letheon.ledger import Key
from letheon.sandbox import protection
from letheon.service.auth import Principal, allows, anybody, context, public, require_unbound
from letheon.service.errors import OLD_DATABASE, Problem
from letheon.service.logs import CONTENT_TYPE, Metrics
from letheon.service.schemas import Out

router = APIRouter()


class MeOut(Out):
    """The token of the caller."""

    token: str
    name: str
    role: str
    scopes: list[str]
    tenant: str | None
    ledger: str


class HealthOut(Out):
    """Whether the server answers."""

    status: str


class ReadyOut(HealthOut):
    """Whether the server can work, and what models from outside are kept from."""

    sandbox: str


class KeysOut(Out):
    """The keys of the ledger, the one that strangers pin first."""

    ledger: str
    pinned: str = Field(description="The first public key: what verifies everything.")
    keys: list[Key]
    statements: list[str] = Field(
        description="Rotations and revocations in order: envelopes, each signed by the key before."
    )


@router.get("/api/v1/me", summary="Who am I?", tags=["tokens"])
def show_me(who: Annotated[Principal, Depends(anybody())]) -> MeOut:
    """Return the role, the scopes and the tenant of the token that is used."""
    return MeOut(
        token=who.token_id,
        name=who.name,
        role=who.role,
        scopes=sorted(who.scopes),
        tenant=who.tenant,
        ledger=who.ledger.name,
    )


@router.get("/api/v1/keys", summary="List public keys", tags=["certificates"])
def list_keys(who: Annotated[Principal, Depends(allows("certificates:read"))]) -> KeysOut:
    """Return the keys that certificates are signed with; pin the first, from another source."""
    ledger = who.ledger
    keys = list(ledger.keys.list())
    if who.tenant is not None:  # what they may sign counts the certificates of all tenants
        keys = [replace(key, first=None, last=None) for key in keys]
    statements = [one.decode() for one in ledger.keys.statements()]
    return KeysOut(ledger=ledger.name, pinned=ledger.public_key, keys=keys, statements=statements)


@router.get(
    "/healthz", summary="Is the server alive?", tags=["server"], dependencies=[Depends(public())]
)
async def show_health() -> HealthOut:
    """Answer without touching the ledger, and without waiting for a thread."""
    return HealthOut(status="ok")


@router.get(
    "/readyz", summary="Is the server ready?", tags=["server"], dependencies=[Depends(public())]
)
def show_readiness(request: Request) -> ReadyOut:
    """Answer when the database is the right one and answers, and the worker, if any, runs.

    `sandbox` says what models from outside are kept from on this server.
    """
    desk = context(request)
    desk.tokens.has_admin()
    try:
        desk.ledger.require_current_database()
    except OldDatabaseError:
        raise OLD_DATABASE from None
    if desk.has_worker is not None and not desk.has_worker():
        headers = {"Retry-After": "5"}
        raise Problem(
            503, "no-worker", "the worker does not run", "It is started again.", headers=headers
        )
    return ReadyOut(status="ok", sandbox=str(protection()))


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    tags=["server"],
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def show_metrics(
    request: Request, who: Annotated[Principal, Depends(allows("metrics:read"))]
) -> Response:
    """Return counts and times, in the text form of Prometheus; of all tenants together."""
    require_unbound(who)
    metrics: Metrics = request.app.state.metrics
    return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE})
