"""API routes of OpenDSR: a controller sends an erasure request for all models of a person.

Hashed identities are compared in memory with the hashes of the ids in a model; neither the hash nor
the matching id is stored. An OpenDSR request becomes one request per model, with idempotency keys
that are derived from the controller's ``subject_request_id``. Responses are signed.
"""

import base64
import hashlib
import pathlib
import re
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StrictStr

from letheon.exceptions import (
    IdempotencyError,
    KeyFileError,
    LetheonError,
    RequestStateError,
    UnknownIdError,
    UnknownRequestError,
)
from letheon.ledger import Ledger
from letheon.ledger import Request as LedgerRequest
from letheon.ledger.db.webhooks import Webhooks
from letheon.ledger.schemas import to_datetime
from letheon.service.auth import Principal, allows, context
from letheon.service.errors import ApiProblem, problem_of
from letheon.service.request_views import RequestOut, raise_problems, show_requests
from letheon.service.routes import filing
from letheon.service.routes.requests import read_timeline
from letheon.service.schemas import Out, describe_file

VERSION = "2.0"
_PEM = "application/x-pem-file"
_UUID4 = "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
_BEGINS_WITH_A_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ]")
_PENDING = ("received", "verified", "queued", "retry_wait", "on_hold", "duplicate")
_WITHDRAWN = ("rejected", "cancelled")

FOLDER = "opendsr"

_Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_LEAST_RSA_BITS = 2048
_BEGIN, _END = datetime(2020, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)

IdentityFormat = Literal["raw", "sha256", "sha1", "md5"]
FORMATS: tuple[IdentityFormat, ...] = ("raw", "sha256", "sha1", "md5")
RequestStatus = Literal["pending", "in_progress", "completed", "cancelled"]
SubjectRequestId = Annotated[StrictStr, Field(pattern=_UUID4)]


def _require_text(value: object) -> object:
    """Reject a time that is not an RFC 3339 string; a number would be read as seconds."""
    if not isinstance(value, str) or not _BEGINS_WITH_A_DAY.match(value):
        raise ValueError("expected an RFC 3339 time, for example 2026-01-31T12:00:00Z")
    return value


class _Sent(BaseModel):
    """A request body sent by a controller; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class Identity(_Sent):
    """The identity by which a controller knows a person, in plain text or hashed."""

    identity_type: Literal["controller_customer_id"]
    identity_value: Annotated[StrictStr, Field(min_length=1, max_length=10_000)]
    identity_format: IdentityFormat = "raw"


class OpenDsrIn(_Sent):
    """An erasure request from a controller.

    Attributes
    ----------
    submitted_time : AwareDatetime
        When the person sent the request to the controller.
    status_callback_urls : list of str
        URLs to notify of status changes; each must be the URL of a webhook of this desk.
    """

    subject_request_id: SubjectRequestId
    subject_request_type: Literal["erasure"]
    subject_identities: list[Identity] = Field(min_length=1, max_length=50)
    submitted_time: Annotated[AwareDatetime, BeforeValidator(_require_text)]
    regulation: Literal["gdpr", "ccpa"] = "gdpr"
    api_version: Annotated[StrictStr, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){0,2}$")] | None = (
        None
    )
    status_callback_urls: list[Annotated[StrictStr, Field(max_length=2048)]] = Field(
        default_factory=list, max_length=10
    )
    extensions: dict[str, Any] | None = None


class Discovery(Out):
    """The OpenDSR features that this desk supports.

    Attributes
    ----------
    supported_identities : list of dict
        Supported pairs of `identity_type` and `identity_format`.
    """

    api_version: str
    supported_identities: list[dict[str, str]]
    supported_subject_request_types: list[str]
    processor_certificate: str


class OpenDsrPart(Out):
    """The part of an OpenDSR request that concerns one model."""

    request: str
    model: str
    state: str
    certificate: int | None
    version: str | None


class _OpenDsrOut(Out):
    """The fields that all OpenDSR responses have."""

    controller_id: str
    subject_request_id: str


class Received(_OpenDsrOut):
    """The confirmation of a request.

    Attributes
    ----------
    encoded_request : str
        The received body, in Base64.
    """

    expected_completion_time: datetime
    received_time: datetime
    encoded_request: str


class Status(_OpenDsrOut):
    """The status of a request.

    Attributes
    ----------
    results_count : int or None
        Number of rows of the person in all models; null for a token that can only file requests.
    extensions : dict of str to list of OpenDsrPart
        Requests with their states and certificates, one for each model, under the domain of this
        desk.
    """

    expected_completion_time: datetime
    request_status: RequestStatus
    api_version: str = VERSION
    results_count: int | None
    extensions: dict[str, list[OpenDsrPart]]


class Cancelled(_OpenDsrOut):
    """The confirmation of a cancellation."""

    received_time: datetime
    api_version: str = VERSION


class AnswerKey(NamedTuple):
    """The key that signs responses: the operator's key if there is one, or the ledger's key.

    The specification requires a key with an X.509 certificate of a known authority. An operator can
    store such a key in the folder ``opendsr`` of the ledger. Otherwise responses are signed with
    the current key of the ledger (Ed25519), which can be verified with the ledger's first public
    key. A signed response begins with ``{``, so it cannot be mistaken for a certificate
    (``DSSEv1``), a checkpoint (a name) or an X.509 certificate (byte 0x30) signed by the same key.
    """

    key: _Private
    certificate: bytes
    domain: str

    def sign(self, body: bytes) -> str:
        """Return the signature of a response, in Base64.

        RSA keys sign with PKCS #1 v1.5 and SHA-256, elliptic curve keys with ECDSA and SHA-256.
        Both follow FIPS 186-4, as the specification requires. Ed25519 keys follow RFC 8032, which
        FIPS 186-5 added.
        """
        if isinstance(self.key, rsa.RSAPrivateKey):
            signed = self.key.sign(body, padding.PKCS1v15(), hashes.SHA256())
        elif isinstance(self.key, ec.EllipticCurvePrivateKey):
            signed = self.key.sign(body, ec.ECDSA(hashes.SHA256()))
        else:
            signed = self.key.sign(body)
        return base64.b64encode(signed).decode()

    def make_response(self, content: BaseModel, status: int) -> Response:
        """Return a response with this content, signed in its headers."""
        body = content.model_dump_json().encode()
        values = {"Processor-Domain": self.domain, "Signature": self.sign(body)}
        prefixes = ("X-OpenDSR", "X-OpenGDPR")
        headers = {
            f"{prefix}-{name}": value for prefix in prefixes for name, value in values.items()
        }
        return Response(body, status, headers, media_type="application/json")


def load_answer_key(ledger: Ledger, domain: str) -> AnswerKey:
    """Load the key that signs responses, with its X.509 certificate for a domain.

    Raises
    ------
    KeyFileError
        The operator's key is readable by other users, or the operator's files are damaged or do not
        match.
    """
    folder = ledger.folder / FOLDER
    if (folder / "key.pem").exists():
        return _load_operators(folder, domain)
    key = ledger._core.keys.signer._key
    return AnswerKey(key, _self_signed(key, domain), domain)


def _load_operators(folder: pathlib.Path, domain: str) -> AnswerKey:
    place = folder / "key.pem"
    if place.stat().st_mode & 0o077:
        raise KeyFileError(f"{place} is readable by other users; run chmod 600 on it")
    try:
        key = load_pem_private_key(place.read_bytes(), password=None)
        data = (folder / "certificate.pem").read_bytes()
        certificate = x509.load_pem_x509_certificate(data)
    except (OSError, ValueError, TypeError) as error:
        raise KeyFileError(
            f"{folder} must contain key.pem without a password, and certificate.pem"
        ) from error
    is_short = isinstance(key, rsa.RSAPrivateKey) and key.key_size < _LEAST_RSA_BITS
    if not isinstance(key, _Private) or is_short:
        raise KeyFileError(
            f"{place} is not a valid key: expected RSA (2048 bits or more), ECDSA or Ed25519"
        )
    if key.public_key() != certificate.public_key():
        raise KeyFileError(
            f"certificate.pem in {folder} does not belong to key.pem; replace one of them"
        )
    return AnswerKey(key, data, domain)


def _self_signed(key: ed25519.Ed25519PrivateKey, domain: str) -> bytes:
    """Return a self-signed X.509 certificate of the ledger's key; always the same bytes."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, domain[:64])])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(domain)]), critical=False)
    )
    return builder.sign(key, None).public_bytes(Encoding.PEM)


class _Route(APIRoute):
    """A route with status 400 instead of 422 for errors, as the specification requires."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route; it replaces status 422 by 400."""
        handle = super().get_route_handler()

        async def handle_as_specified(request: Request) -> Response:
            try:
                return await handle(request)
            except (RequestValidationError, ApiProblem, LetheonError) as error:
                problem = problem_of(error)
                if problem is None or problem.status_code != 422:
                    raise
                raise ApiProblem(
                    400, problem.code, problem.title, problem.detail, fields=problem.fields
                ) from error

        return handle_as_specified


router = APIRouter(tags=["opendsr"], route_class=_Route)

Filer = Annotated[Principal, Depends(allows("requests:file"))]
LongFiler = Annotated[Principal, Depends(allows("requests:file", is_long=True))]
Id = Annotated[SubjectRequestId, Path(description="Id that the controller chose.")]


def _answer_key(request: Request) -> AnswerKey:
    """Return the key that signs the response; raise a problem if it cannot be loaded."""
    # The host name of the desk; the server accepts only known names.
    desk = context(request)
    public_url = desk.settings.public_url
    name = request.url.hostname if public_url is None else urlsplit(public_url).hostname
    try:
        return load_answer_key(desk.ledger, name or "localhost")
    except KeyFileError as error:
        words = "The operator must check key.pem and certificate.pem in the folder opendsr."
        raise ApiProblem(503, "opendsr-key", "responses cannot be signed", words) from error


Key = Annotated[AnswerKey, Depends(_answer_key)]


async def _raw_body(request: Request) -> bytes:
    return await request.body()


@router.get("/opendsr/v2/discovery", summary="Show supported OpenDSR features")
def discover_opendsr(request: Request, caller: Filer) -> Discovery:
    """Show the version, the supported identities and request types, and the certificate URL."""
    base = (caller.desk.settings.public_url or str(request.base_url)).rstrip("/")
    kind = {"identity_type": "controller_customer_id"}
    return Discovery(
        api_version=VERSION,
        supported_identities=[kind | {"identity_format": name} for name in FORMATS],
        supported_subject_request_types=["erasure"],
        processor_certificate=f"{base}/opendsr/v2/certificate",
    )


@router.get(
    "/opendsr/v2/certificate",
    summary="Download the certificate of the signing key",
    **describe_file(_PEM, "An X.509 certificate."),
)
def read_opendsr_certificate(caller: Filer, key: Key) -> Response:  # noqa: ARG001  (the gate)
    """Download the X.509 certificate of the key that signs responses, in PEM."""
    return Response(key.certificate, media_type=_PEM)


@router.post(
    "/opendsr/v2/requests",
    summary="Send an erasure request",
    status_code=201,
    response_model=Received,
)
def send_opendsr_request(
    caller: LongFiler, body: OpenDsrIn, raw: Annotated[bytes, Depends(_raw_body)], key: Key
) -> Response:
    """File an erasure request for every model that contains the person; the response is signed.

    Repeating the call with the same subject_request_id and person returns the same response.
    """
    # A repeat also creates the requests that a crash left out. With the scope requests:vouch the
    # identity counts as verified, because the controller has verified it.
    tenant = caller.tenant_for(None)
    _require_callbacks(caller, tenant, body.status_callback_urls)
    inputs, erased = _plan_requests(caller, body)
    filed = filing.file_everywhere(caller, inputs, stored=erased)
    answer = Received(
        controller_id=tenant,
        subject_request_id=body.subject_request_id,
        expected_completion_time=_completion_time(caller, filed),
        received_time=min(request.received_at for request in filed),
        encoded_request=base64.b64encode(raw).decode(),
    )
    return key.make_response(answer, 201)


@router.get(
    "/opendsr/v2/requests/{subject_request_id}",
    summary="Show the status of an erasure request",
    response_model=Status,
)
def read_opendsr_request(caller: Filer, subject_request_id: Id, key: Key) -> Response:
    """Show the status of an erasure request in all models; the response is signed."""
    requests = _find_requests(caller, subject_request_id)
    shown = show_requests(caller, requests)
    if caller.sees_all_requests:
        statuses = [_find_status(caller, request) for request in requests]
    else:
        statuses = [_coarse_status(caller, item) for item in shown]
    names = ("model", "state", "certificate", "version")
    parts = [
        OpenDsrPart(request=item.id, **{name: getattr(item, name) for name in names})
        for item in shown
    ]
    answer = Status(
        controller_id=caller.tenant_for(None),
        subject_request_id=subject_request_id,
        expected_completion_time=_completion_time(caller, shown),
        request_status=combine_statuses(statuses),
        results_count=sum(request.n_rows for request in requests)
        if caller.sees_all_requests
        else None,
        extensions={key.domain: parts},
    )
    return key.make_response(answer, 200)


@router.delete(
    "/opendsr/v2/requests/{subject_request_id}",
    summary="Cancel an erasure request",
    status_code=202,
    response_model=Cancelled,
)
def cancel_opendsr_request(caller: Filer, subject_request_id: Id, key: Key) -> Response:
    """Cancel an erasure request while it is pending; the response is signed."""
    requests = _find_requests(caller, subject_request_id)
    if not caller.may("requests:handle") and any(
        request.filed_by != caller.id for request in requests
    ):
        title = "this erasure request was filed with another token"
        words = "Use the token that filed it, or a token with the scope requests:handle."
        raise ApiProblem(403, "not-allowed", title, words)
    if not caller.sees_all_requests:
        # The filer may not learn the state of requests that it cannot cancel.
        requests = [request for request in requests if not _has_withdrawn(caller, request.id)]
        if any(request.state != "received" for request in requests):
            raise RequestStateError(
                "the desk is processing the request; ask its operator to cancel it"
            )
    waiting = [request for request in requests if request.state not in _WITHDRAWN]
    if any(_find_status(caller, item) != "pending" for item in waiting):
        raise RequestStateError("the request is no longer pending; an erasure cannot be undone")
    tenant = caller.tenant_for(None)
    with raise_problems(), caller.ledger.acting(caller.id):
        for item in waiting:
            caller.ledger.requests.cancel(item.id, tenant=tenant)
    answer = Cancelled(
        controller_id=tenant,
        subject_request_id=subject_request_id,
        received_time=to_datetime(caller.ledger.clock()),
    )
    return key.make_response(answer, 202)


def _plan_requests(
    caller: Principal, body: OpenDsrIn
) -> tuple[list[filing.RequestInput], list[LedgerRequest]]:
    """Return the requests to file, and the existing requests of a person who was erased since.

    A token that can only file requests must not learn which models contain the person. It files one
    request for each model, and a hash that matches no id is used as an id. Its requests are bound
    to the idempotency key by the identities that were sent, whether they match or not.
    """
    tenant, law, requests = caller.tenant_for(None), body.regulation, caller.ledger.requests
    sent = sorted(
        (identity.identity_format, identity.identity_value) for identity in body.subject_identities
    )
    is_hashed = all(name != "raw" for name, _ in sent)
    terms = (tenant, law, filing.DEFAULT_GROUNDS[law], caller.may("requests:vouch"))
    keys = _keys_of(caller, body.subject_request_id)
    stored = requests.find_by_key(keys.values(), tenant=tenant)
    inputs, erased = [], []
    for model, key in keys.items():
        named = _find_ids(caller.ledger, sent, model, tenant)
        if not caller.sees_all_requests:
            ids = named or [":".join(identity) for identity in sent]
            request_input = filing.RequestInput(ids, model, *terms, key)
            inputs.append(
                request_input._replace(part_of=filing.digest_texts(sent), ids_derived=True)
            )
        elif known := requests.find_known_ids(named, model=model, tenant=tenant) if named else []:
            inputs.append(filing.RequestInput(known, model, *terms, key))
        elif key in stored:
            # After an erasure no id of the model matches these hashes.
            if not is_hashed or _find_status(caller, stored[key]) not in (
                "in_progress",
                "completed",
            ):
                raise IdempotencyError(
                    "this subject_request_id was used for another person; use a new id"
                )
            erased.append(stored[key])
    if not inputs and not erased:
        raise UnknownIdError("no model contains a person with these identities")
    return inputs, erased


def _find_ids(
    ledger: Ledger, sent: Sequence[tuple[str, str]], model: str, tenant: str
) -> Sequence[int | str]:
    """Return the ids that were sent, and the ids in the model whose hashes were sent."""
    texts = [value for name, value in sent if name == "raw"]
    hashed = {(name, value.lower()) for name, value in sent if name != "raw"}
    if hashed:
        model_ids = map(str, ledger.models.ids(model, tenant=tenant).distinct().to_list())
        names = {name for name, _ in hashed}
        texts += [
            text
            for text in model_ids
            if any((name, _hash_text(name, text)) in hashed for name in names)
        ]
    if ledger.models.has_integer_ids(model, tenant=tenant):
        return [number for text in texts if (number := filing.parse_number(text)) is not None]
    return texts


def _hash_text(name: str, text: str) -> str:
    return hashlib.new(name, text.encode(), usedforsecurity=False).hexdigest()


def _keys_of(caller: Principal, subject_request_id: str) -> dict[str, str]:
    """Return the idempotency keys of an OpenDSR request, by model name."""
    names = [model.name for model in caller.ledger.models.list(tenant=caller.tenant_for(None))]
    return {name: filing.derive_key("opendsr", subject_request_id, name) for name in names}


def _find_requests(caller: Principal, subject_request_id: str) -> list[LedgerRequest]:
    keys = _keys_of(caller, subject_request_id).values()
    stored = caller.ledger.requests.find_by_key(keys, tenant=caller.tenant_for(None))
    known = [stored[key] for key in keys if key in stored]
    requests = [item for item in known if caller.sees_all_requests or item.filed_by == caller.id]
    if not requests:
        raise UnknownRequestError("there is no erasure request with this subject_request_id")
    return requests


def _has_withdrawn(caller: Principal, request_id: str) -> bool:
    entries = read_timeline(caller, request_id).items
    return any(entry.code == "cancelled" for entry in entries)


def _coarse_status(caller: Principal, shown: RequestOut) -> RequestStatus:
    """Return a status that does not reveal which ids a model contains."""
    if _has_withdrawn(caller, shown.id):
        return "cancelled"
    return "completed" if shown.state == "closed" else "pending"


def _find_status(caller: Principal, request: LedgerRequest) -> RequestStatus:
    """Return the OpenDSR status of a request of the ledger."""
    if request.state == "duplicate" and request.duplicate_of is not None:
        return _find_status(caller, caller.ledger.requests.get(request.duplicate_of))
    if request.state in ("purged", "closed"):
        return "completed"
    if request.state in _WITHDRAWN:
        return "cancelled"
    is_waiting = request.state in _PENDING or (request.state == "stuck" and request.batch is None)
    return "pending" if is_waiting else "in_progress"


def combine_statuses(statuses: Sequence[RequestStatus]) -> RequestStatus:
    """Return the common status of several requests; cancelled requests are ignored.

    If the statuses differ, the result is "in_progress".
    """
    left = [status for status in statuses if status != "cancelled"]
    if not left:
        return "cancelled"
    return left[0] if len(set(left)) == 1 else "in_progress"


def _completion_time(caller: Principal, shown: Sequence[RequestOut]) -> datetime:
    last = max(item.due_on for item in shown)
    return caller.ledger.settings.calendar.end_of(last).astimezone(UTC)


def _require_callbacks(caller: Principal, tenant: str, urls: Sequence[str]) -> None:
    """Reject callback URLs that are not the URL of a webhook of this desk.

    A caller must not choose where the desk sends messages.
    """
    if urls and not set(urls) <= Webhooks(caller.ledger).list_addresses(tenant):
        title = "this desk calls only URLs of its webhooks"
        words = (
            "Ask the operator to create a webhook with this URL, or omit status_callback_urls and "
            "poll the status."
        )
        raise ApiProblem(400, "callback", title, words)
