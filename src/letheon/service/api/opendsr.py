"""OpenDSR: the intake for controllers that speak it, with signed answers."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel

from letheon.exceptions import KeyFileError, LetheonError
from letheon.service.auth import Principal, allows, context
from letheon.service.desk import opendsr as desk
from letheon.service.desk.opendsr import (
    Cancelled,
    Discovery,
    OpenDsrIn,
    Received,
    Status,
    SubjectRequestId,
)
from letheon.service.desk.opendsr_signing import Stamp, stamp_of
from letheon.service.errors import Problem, problem_of

__all__ = ["router"]

_PEM = "application/x-pem-file"
_PREFIXES = ("X-OpenDSR", "X-OpenGDPR")
_FALLBACK = "localhost"

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class _Route(APIRoute):
    """Answers 400 where the rest of the desk answers 422: so says the specification."""

    def get_route_handler(self) -> Handler:
        """Return the handler, with its refusals changed."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except (RequestValidationError, Problem, LetheonError) as error:
                problem = problem_of(error)
                if problem is None or problem.status_code != 422:
                    raise
                raise Problem(
                    400, problem.code, problem.title, problem.detail, fields=problem.fields
                ) from error

        return handled


router = APIRouter(tags=["opendsr"], route_class=_Route)

Filer = Annotated[Principal, Depends(allows("requests:file"))]
Finder = Annotated[Principal, Depends(allows("requests:file", is_long=True))]
Id = Annotated[SubjectRequestId, Path(description="As the controller chose it.")]


@router.get("/opendsr/v2/discovery", summary="What this desk understands of OpenDSR")
def discover_opendsr(request: Request, who: Filer) -> Discovery:  # noqa: ARG001  (the gate)
    """Return versions, kinds of identities and of requests, and where the certificate lies."""
    settings = context(request).settings
    base = (settings.public_url or str(request.base_url)).rstrip("/")
    return desk.discovery(f"{base}/opendsr/v2/certificate")


@router.get(
    "/opendsr/v2/certificate",
    summary="What answers are signed with",
    response_class=Response,
    responses={
        200: {
            "description": "An X.509 certificate.",
            "content": {_PEM: {"schema": {"type": "string"}}},
        }
    },
)
def read_opendsr_certificate(request: Request, who: Filer) -> Response:  # noqa: ARG001  (the gate)
    """Return the certificate, in PEM, of the key that signs answers."""
    return Response(_stamp(request).certificate, media_type=_PEM)


async def _raw(request: Request) -> bytes:
    return await request.body()


@router.post(
    "/opendsr/v2/requests", summary="Send an erasure", status_code=201, response_model=Received
)
def send_opendsr_request(
    request: Request, who: Finder, body: OpenDsrIn, raw: Annotated[bytes, Depends(_raw)]
) -> Response:
    """File the erasure of a person from every model that knows them; the answer is signed.

    The same subject_request_id with the same person gives the same answer again.
    """
    stamp = _stamp(request)
    return _signed(request, stamp, desk.receive(context(request), who, body, raw), 201)


@router.get(
    "/opendsr/v2/requests/{subject_request_id}",
    summary="How far an erasure is",
    response_model=Status,
)
def read_opendsr_request(request: Request, who: Filer, subject_request_id: Id) -> Response:
    """Return the status over all models; the answer is signed."""
    found = desk.status(context(request), who, subject_request_id, _domain(request))
    return _signed(request, _stamp(request), found, 200)


@router.delete(
    "/opendsr/v2/requests/{subject_request_id}",
    summary="Withdraw an erasure",
    status_code=202,
    response_model=Cancelled,
)
def cancel_opendsr_request(request: Request, who: Filer, subject_request_id: Id) -> Response:
    """Withdraw an erasure while it is pending; the answer is signed."""
    stamp = _stamp(request)
    return _signed(request, stamp, desk.cancel(context(request), who, subject_request_id), 202)


def _stamp(request: Request) -> Stamp:
    """Return what signs answers; asked before anything is done that an answer must confirm."""
    try:
        return stamp_of(context(request).ledger, _domain(request))
    except KeyFileError as error:
        raise Problem(
            503,
            "opendsr-key",
            "answers cannot be signed",
            "The operator has to look at key.pem and certificate.pem in the folder opendsr.",
        ) from error


def _signed(request: Request, stamp: Stamp, answer: BaseModel, status: int) -> Response:
    body, domain = answer.model_dump_json().encode(), _domain(request)
    signature = stamp.signature(body)
    headers = {
        f"{prefix}-{name}": value
        for prefix in _PREFIXES
        for name, value in (("Processor-Domain", domain), ("Signature", signature))
    }
    return Response(body, status, headers, media_type="application/json")


def _domain(request: Request) -> str:
    """Return the name by which the desk is reached; the server accepts known ones only."""
    public_url = context(request).settings.public_url
    found = request.url.hostname if public_url is None else urlsplit(public_url).hostname
    return found or _FALLBACK
