"""Certificates: all of them as a chain, and one with its claims and checks."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response

from letheon.service._auth import Principal
from letheon.service._context import context
from letheon.service.pages._shared import (
    AfterText,
    ModelFilter,
    Tenant,
    address,
    page,
    page_allows,
    page_links,
)
from letheon.service.routes.certificates import (
    list_certificates,
    verify_certificate,
)
from letheon.service.routes.certificates import show_certificate as read_certificate
from letheon.service.routes.log import show_chain
from letheon.verifier import Refused

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
    query = {"tenant": tenant, "model": model or None}
    is_chain = who.tenant is None and not any(query.values())
    found: Any
    if is_chain:
        found = show_chain(request, who, after=after, limit=_PAGE)
    else:
        found = list_certificates(request, who, **query, after=after, limit=_PAGE)
    return page(
        request,
        "certificates.html",
        who,
        json=address(f"/api/v1/{'chain' if is_chain else 'certificates'}", after=after, **query),
        found=found,
        is_chain=is_chain,
        query=query,
        key=context(request).ledger.public_key,
        **page_links("/certificates", after, found.next, query),
    )


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
    try:
        found = read_certificate(request, who, number)
    except Refused:
        found = None
    envelope = None if found is None or found.envelope is None else json.loads(found.envelope)
    return page(
        request,
        "certificate.html",
        who,
        json=f"/api/v1/certificates/{number}",
        number=number,
        found=found,
        checked=verify_certificate(request, who, number) if verify or found is None else None,
        statement=None if found is None else _pretty(found.statement),
        envelope=None if envelope is None else _pretty(envelope),
    )


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
