"""Certificates: all of them as a chain, and one with its claims and checks."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response

from letheon.service.auth import Context, Principal, context
from letheon.service.desk import certificates, proofs
from letheon.service.pages._codes import MEASURES
from letheon.service.pages._shared import page, page_allows
from letheon.service.pages._where import AfterText, ModelFilter, Tenant, address
from letheon.verifier import Refused

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_PAGE = 20
Reader = Annotated[Principal, Depends(page_allows("certificates:read"))]


@router.get("/certificates")
def show_certificates(
    request: Request,
    who: Reader,
    tenant: Tenant = None,
    model: ModelFilter = None,
    after: AfterText = None,
) -> Response:
    """Show certificates, newest first; who sees all of them sees the links between them, too."""
    desk = context(request)
    query = {"tenant": tenant, "model": model or None}
    is_chain = who.tenant is None and not any(query.values())
    found = _listed(desk, who, query, after, is_chain=is_chain)
    return page(
        request,
        "certificates.html",
        who,
        json=address(f"/api/v1/{'chain' if is_chain else 'certificates'}", after=after, **query),
        found=found,
        is_chain=is_chain,
        query=query,
        key=desk.ledger.public_key,
        first=address("/certificates", **query) if after else None,
        next=address("/certificates", after=found.next, **query) if found.next else None,
    )


def _listed(
    desk: Context,
    who: Principal,
    query: dict[str, str | None],
    after: str | None,
    *,
    is_chain: bool,
) -> Any:
    if is_chain:
        return proofs.chain(desk, who, after=after, limit=_PAGE)
    return certificates.page_of_certificates(desk, who, **query, after=after, limit=_PAGE)


@router.get("/certificates/{number}")
def show_certificate(
    request: Request,
    who: Reader,
    number: Annotated[int, Path(ge=1, le=2**53)],
    verify: bool = False,
) -> Response:
    """Show one certificate; with `verify` also whether it holds, check by check.

    Of one that cannot be read, only the checks are shown.
    """
    desk = context(request)
    try:
        found = certificates.find_certificate(desk, who, number)
    except Refused:
        found = None
    is_checked = verify or found is None
    return page(
        request,
        "certificate.html",
        who,
        json=f"/api/v1/certificates/{number}",
        number=number,
        found=found,
        checked=certificates.verification(desk, who, number) if is_checked else None,
        measures=MEASURES,
        statement=None if found is None else _pretty(found.statement),
        envelope=None
        if found is None or found.envelope is None
        else _pretty(json.loads(found.envelope)),
    )


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
