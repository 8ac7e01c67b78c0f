"""Certificates, and whether they hold."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from letheon.service.auth import Principal, allows, context
from letheon.service.desk import certificates as desk
from letheon.service.desk.certificates import CertificateDetail, CertificateOut, VerificationOut
from letheon.service.schemas import Name, Page
from letheon.verifier import MAX_INT

router = APIRouter(tags=["certificates"])

Reader = Annotated[Principal, Depends(allows("certificates:read"))]
Number = Annotated[int, Path(ge=1, le=MAX_INT, description="Number of the certificate.")]
_FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The file, byte for byte as it was signed.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}


@router.get("/api/v1/certificates", summary="List certificates")
def list_certificates(
    request: Request,
    who: Reader,
    tenant: Annotated[Name | None, Query(description="Of one tenant only.")] = None,
    model: Annotated[Name | None, Query(description="Of one model only.")] = None,
    after: Annotated[str | None, Query(max_length=400)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Page[CertificateOut]:
    """Return certificates, newest first."""
    return desk.page_of_certificates(
        context(request), who, tenant=tenant, model=model, after=after, limit=limit
    )


@router.get("/api/v1/certificates/{number}", summary="Show a certificate")
def show_certificate(request: Request, who: Reader, number: Number) -> CertificateDetail:
    """Return what a certificate says and does not claim, its statement and its envelope."""
    return desk.find_certificate(context(request), who, number)


@router.get("/api/v1/certificates/{number}/verification", summary="Verify a certificate")
def verify_certificate(request: Request, who: Reader, number: Number) -> VerificationOut:
    """Check signature, schema, chain, log, transition proof and purge, as a stranger would."""
    return desk.verification(context(request), who, number)


@router.get(
    "/api/v1/certificates/{number}/envelope",
    summary="Download a certificate",
    response_class=Response,
    responses=_FILE,
)
def download_certificate(request: Request, who: Reader, number: Number) -> Response:
    """Return the DSSE envelope, byte for byte."""
    data = desk.envelope_of(context(request), who, number)
    return _file(data, f"certificate-{number:06d}")


@router.get(
    "/api/v1/certificates/{number}/proof",
    summary="Download a transition proof",
    response_class=Response,
    responses=_FILE,
)
def download_proof(request: Request, who: Reader, number: Number) -> Response:
    """Return the proof that exactly the erased slots of the data set changed."""
    return _file(desk.proof_of(context(request), who, number), f"proof-{number:06d}")


@router.get(
    "/api/v1/certificates/{number}/purge",
    summary="Download a purge attestation",
    response_class=Response,
    responses=_FILE,
)
def download_purge(request: Request, who: Reader, number: Number) -> Response:
    """Return the signed attestation of the purge; 404 until it is done."""
    return _file(desk.purge_of(context(request), who, number), f"purge-{number:06d}")


def _file(data: bytes, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}.json"'}
    return Response(data, media_type="application/json", headers=headers)
