"""OpenDSR: erasures that a controller sends, for every model that knows the person.

Hashed identities are compared with the hashes of the ids that are held, in memory; neither the
hash nor which id it was is kept. What comes in becomes ordinary requests, one for each model, whose
idempotency keys are derived from the controller's ``subject_request_id``. Answers are signed.
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
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    load_pem_private_key,
)
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
from letheon.service.errors import Problem, problem_of
from letheon.service.request_views import RequestOut, refusals, show_requests
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
    """Refuse a time that is no text with a day in it: numbers would be taken for seconds."""
    if not isinstance(value, str) or not _BEGINS_WITH_A_DAY.match(value):
        raise ValueError("a time is written as RFC 3339 says")
    return value


class _Sent(BaseModel):
    """What controllers send may hold more than what is looked at."""

    model_config = ConfigDict(extra="ignore")


class Identity(_Sent):
    """By what a controller knows a person."""

    identity_type: Literal["controller_customer_id"]
    identity_value: Annotated[StrictStr, Field(min_length=1, max_length=10_000)]
    identity_format: IdentityFormat = "raw"


class OpenDsrIn(_Sent):
    """An erasure that a controller sends.

    Attributes
    ----------
    submitted_time : AwareDatetime
        When the person asked the controller.
    status_callback_urls : list of str
        Addresses of webhooks of this desk; see its documentation.
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
    """What this desk understands.

    Attributes
    ----------
    supported_identities : list of dict
        Pairs of `identity_type` and `identity_format`.
    """

    api_version: str
    supported_identities: list[dict[str, str]]
    supported_subject_request_types: list[str]
    processor_certificate: str


class Part(Out):
    """What one model has to do with it."""

    request: str
    model: str
    state: str
    certificate: int | None
    version: str | None


class _Answer(Out):
    """Whose erasure it is."""

    controller_id: str
    subject_request_id: str


class Received(_Answer):
    """What was received.

    Attributes
    ----------
    encoded_request : str
        The body that was sent, in Base64.
    """

    expected_completion_time: datetime
    received_time: datetime
    encoded_request: str


class Status(_Answer):
    """How far an erasure is.

    Attributes
    ----------
    results_count : int or None
        Rows that were the person's, in all models; null for who only files.
    extensions : dict of str to list of Part
        By model: state and certificate.
    """

    expected_completion_time: datetime
    request_status: RequestStatus
    api_version: str = VERSION
    results_count: int | None
    extensions: dict[str, list[Part]]


class Cancelled(_Answer):
    """What was withdrawn."""

    received_time: datetime
    api_version: str = VERSION


class AnswerKey(NamedTuple):
    """The operator's certified key, or else the ledger's own, for answers of a domain.

    The specification wants a key with an X.509 certificate of a known authority. An operator who
    has one puts it into the folder ``opendsr`` of the ledger's home. Without it answers are signed
    with the current key of the ledger (Ed25519), which whoever has pinned the ledger's first key
    can trace. A signed answer begins with ``{``, so it can pass for no certificate (``DSSEv1``), no
    checkpoint (a name) and no X.509 certificate (a byte 0x30) that the same key signs.
    """

    key: _Private
    certificate: bytes
    domain: str

    def sign(self, body: bytes) -> str:
        """Return the signature of an answer, in Base64.

        RSA: PKCS #1 v1.5 with SHA-256; elliptic curves: ECDSA with SHA-256 (FIPS 186-4, as the
        specification says); Ed25519: RFC 8032, which FIPS 186-5 has added.
        """
        if isinstance(self.key, rsa.RSAPrivateKey):
            signed = self.key.sign(body, padding.PKCS1v15(), hashes.SHA256())
        elif isinstance(self.key, ec.EllipticCurvePrivateKey):
            signed = self.key.sign(body, ec.ECDSA(hashes.SHA256()))
        else:
            signed = self.key.sign(body)
        return base64.b64encode(signed).decode()

    def answer(self, content: BaseModel, status: int) -> Response:
        """Return a signed answer."""
        body = content.model_dump_json().encode()
        values = {"Processor-Domain": self.domain, "Signature": self.sign(body)}
        prefixes = ("X-OpenDSR", "X-OpenGDPR")
        headers = {f"{one}-{name}": value for one in prefixes for name, value in values.items()}
        return Response(body, status, headers, media_type="application/json")


def load_answer_key(ledger: Ledger, domain: str) -> AnswerKey:
    """Return what answers are signed with.

    Raises
    ------
    KeyFileError
        The operator's files are open to others, damaged, or do not belong together.
    """
    folder = ledger.folder / FOLDER
    if (folder / "key.pem").exists():
        return _load_operators(folder, domain)
    key = ledger._core.keys.signer._key
    return AnswerKey(key, _self_signed(key, domain), domain)


def _load_operators(folder: pathlib.Path, domain: str) -> AnswerKey:
    place = folder / "key.pem"
    if place.stat().st_mode & 0o077:
        raise KeyFileError(f"{place} can be read by others; run chmod 600 on it")
    try:
        key = load_pem_private_key(place.read_bytes(), password=None)
        data = (folder / "certificate.pem").read_bytes()
        certificate = x509.load_pem_x509_certificate(data)
    except (OSError, ValueError, TypeError) as error:
        raise KeyFileError(
            f"{folder} must hold key.pem, without a password, and certificate.pem"
        ) from error
    is_short = isinstance(key, rsa.RSAPrivateKey) and key.key_size < _LEAST_RSA_BITS
    if not isinstance(key, _Private) or is_short:
        raise KeyFileError(f"{place} is no key of RSA (2048 bits or more), ECDSA or Ed25519")
    if key.public_key() != certificate.public_key():
        raise KeyFileError(f"{folder}: certificate.pem is of another key than key.pem")
    return AnswerKey(key, data, domain)


def _self_signed(key: ed25519.Ed25519PrivateKey, domain: str) -> bytes:
    """Return the certificate of a ledger's key for a domain; always the same bytes."""
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
    """Answers 400 where the rest of the desk answers 422: so says the specification."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with its refusals changed."""
        handle = super().get_route_handler()

        async def handle_as_specified(request: Request) -> Response:
            try:
                return await handle(request)
            except (RequestValidationError, Problem, LetheonError) as error:
                problem = problem_of(error)
                if problem is None or problem.status_code != 422:
                    raise
                raise Problem(
                    400, problem.code, problem.title, problem.detail, fields=problem.fields
                ) from error

        return handle_as_specified


router = APIRouter(tags=["opendsr"], route_class=_Route)

Filer = Annotated[Principal, Depends(allows("requests:file"))]
LongFiler = Annotated[Principal, Depends(allows("requests:file", is_long=True))]
Id = Annotated[SubjectRequestId, Path(description="As the controller chose it.")]


def _answer_key(request: Request) -> AnswerKey:
    """Return what signs answers; loaded before anything is done that an answer must confirm."""
    # The name by which the desk is reached; the server accepts known ones only.
    desk = context(request)
    public_url = desk.settings.public_url
    name = request.url.hostname if public_url is None else urlsplit(public_url).hostname
    try:
        return load_answer_key(desk.ledger, name or "localhost")
    except KeyFileError as error:
        words = "The operator has to look at key.pem and certificate.pem in the folder opendsr."
        raise Problem(503, "opendsr-key", "answers cannot be signed", words) from error


Key = Annotated[AnswerKey, Depends(_answer_key)]


async def _raw_body(request: Request) -> bytes:
    return await request.body()


@router.get("/opendsr/v2/discovery", summary="What this desk understands of OpenDSR")
def discover_opendsr(request: Request, who: Filer) -> Discovery:
    """Return versions, kinds of identities and of requests, and where the certificate lies."""
    base = (who.desk.settings.public_url or str(request.base_url)).rstrip("/")
    kind = {"identity_type": "controller_customer_id"}
    return Discovery(
        api_version=VERSION,
        supported_identities=[kind | {"identity_format": name} for name in FORMATS],
        supported_subject_request_types=["erasure"],
        processor_certificate=f"{base}/opendsr/v2/certificate",
    )


@router.get(
    "/opendsr/v2/certificate",
    summary="What answers are signed with",
    **describe_file(_PEM, "An X.509 certificate."),
)
def read_opendsr_certificate(who: Filer, key: Key) -> Response:  # noqa: ARG001  (the gate)
    """Return the certificate, in PEM, of the key that signs answers."""
    return Response(key.certificate, media_type=_PEM)


@router.post(
    "/opendsr/v2/requests", summary="Send an erasure", status_code=201, response_model=Received
)
def send_opendsr_request(
    who: LongFiler, body: OpenDsrIn, raw: Annotated[bytes, Depends(_raw_body)], key: Key
) -> Response:
    """File the erasure of a person from every model that knows them; the answer is signed.

    The same subject_request_id with the same person gives the same answer again.
    """
    # A repeat also completes what a crash left out. A token that may vouch for identities does so
    # by sending: a controller has verified the person.
    tenant = who.tenant_for(None)
    _require_callbacks(who, tenant, body.status_callback_urls)
    inputs, erased = _plan_requests(who, body)
    filed = filing.file_everywhere(who, inputs, stored=erased)
    answer = Received(
        controller_id=tenant,
        subject_request_id=body.subject_request_id,
        expected_completion_time=_completion(who, filed),
        received_time=min(one.received_at for one in filed),
        encoded_request=base64.b64encode(raw).decode(),
    )
    return key.answer(answer, 201)


@router.get(
    "/opendsr/v2/requests/{subject_request_id}",
    summary="How far an erasure is",
    response_model=Status,
)
def read_opendsr_request(who: Filer, subject_request_id: Id, key: Key) -> Response:
    """Return the status over all models; the answer is signed."""
    requests = _find_requests(who, subject_request_id)
    shown = show_requests(who, requests)
    if who.sees_all_requests:
        statuses = [_status(who, one) for one in requests]
    else:
        statuses = [_coarse_status(who, one) for one in shown]
    names = ("model", "state", "certificate", "version")
    parts = [Part(request=one.id, **{name: getattr(one, name) for name in names}) for one in shown]
    answer = Status(
        controller_id=who.tenant_for(None),
        subject_request_id=subject_request_id,
        expected_completion_time=_completion(who, shown),
        request_status=combine_statuses(statuses),
        results_count=sum(one.n_rows for one in requests) if who.sees_all_requests else None,
        extensions={key.domain: parts},
    )
    return key.answer(answer, 200)


@router.delete(
    "/opendsr/v2/requests/{subject_request_id}",
    summary="Withdraw an erasure",
    status_code=202,
    response_model=Cancelled,
)
def cancel_opendsr_request(who: Filer, subject_request_id: Id, key: Key) -> Response:
    """Withdraw an erasure while it is pending; the answer is signed."""
    requests = _find_requests(who, subject_request_id)
    if not who.may("requests:handle") and any(one.filed_by != who.id for one in requests):
        words = "Use that one, or requests:handle."
        raise Problem(403, "not-allowed", "another token sent it", words)
    if not who.sees_all_requests:
        # What became of those that the filer cannot withdraw is not theirs to know.
        requests = [one for one in requests if not _has_withdrawn(who, one.id)]
        if any(one.state != "received" for one in requests):
            raise RequestStateError("the desk has taken it up; ask its operator to withdraw it")
    waiting = [one for one in requests if one.state not in _WITHDRAWN]
    if any(_status(who, one) != "pending" for one in waiting):
        raise RequestStateError("it is no longer pending; what is being erased stays erased")
    tenant = who.tenant_for(None)
    with refusals(), who.ledger.acting(who.id):
        for one in waiting:
            who.ledger.requests.cancel(one.id, tenant=tenant)
    answer = Cancelled(
        controller_id=tenant,
        subject_request_id=subject_request_id,
        received_time=to_datetime(who.ledger.clock()),
    )
    return key.answer(answer, 202)


def _plan_requests(
    who: Principal, body: OpenDsrIn
) -> tuple[list[filing.RequestInput], list[LedgerRequest]]:
    """Return the requests to be filed, and those whose person was erased since.

    For a sender who may not know which model holds the person there is one for every model. A hash
    that no id of a model has stands in it as it came; what counts as the same content is what was
    sent, whether its person is found or not.
    """
    tenant, law, requests = who.tenant_for(None), body.regulation, who.ledger.requests
    sent = sorted((one.identity_format, one.identity_value) for one in body.subject_identities)
    is_hashed = all(name != "raw" for name, _ in sent)
    terms = (tenant, law, filing.DEFAULT_GROUNDS[law], who.may("requests:vouch"))
    keys = _keys_of(who, body.subject_request_id)
    stored = requests.find_by_key(keys.values(), tenant=tenant)
    inputs, erased = [], []
    for model, key in keys.items():
        named = _find_ids(who.ledger, sent, model, tenant)
        if not who.sees_all_requests:
            ids = named or [":".join(identity) for identity in sent]
            one = filing.RequestInput(ids, model, *terms, key)
            inputs.append(one._replace(part_of=filing.digest(sent), ids_derived=True))
        elif known := requests.find_known_ids(named, model=model, tenant=tenant) if named else []:
            inputs.append(filing.RequestInput(known, model, *terms, key))
        elif key in stored:
            # After an erasure the model knows nobody by these hashes any more.
            if not is_hashed or _status(who, stored[key]) not in ("in_progress", "completed"):
                raise IdempotencyError(
                    "this subject_request_id was used for another person; take a new one"
                )
            erased.append(stored[key])
    if not inputs and not erased:
        raise UnknownIdError("no model knows a person of these identities")
    return inputs, erased


def _find_ids(
    ledger: Ledger, sent: Sequence[tuple[str, str]], model: str, tenant: str
) -> Sequence[int | str]:
    """Return the ids that were sent, and those in the model whose hashes were sent."""
    texts = [value for name, value in sent if name == "raw"]
    hashed = {(name, value.lower()) for name, value in sent if name != "raw"}
    if hashed:
        held = map(str, ledger.models.ids(model, tenant=tenant).distinct().to_list())
        names = {name for name, _ in hashed}
        texts += [text for text in held if any((one, _hash(one, text)) in hashed for one in names)]
    if ledger.models.has_integer_ids(model, tenant=tenant):
        return [number for text in texts if (number := filing.parse_number(text)) is not None]
    return texts


def _hash(name: str, text: str) -> str:
    return hashlib.new(name, text.encode(), usedforsecurity=False).hexdigest()


def _keys_of(who: Principal, subject_request_id: str) -> dict[str, str]:
    """Return the idempotency keys of an erasure, by model."""
    names = [model.name for model in who.ledger.models.list(tenant=who.tenant_for(None))]
    return {name: filing.derive_key("opendsr", subject_request_id, name) for name in names}


def _find_requests(who: Principal, subject_request_id: str) -> list[LedgerRequest]:
    keys = _keys_of(who, subject_request_id).values()
    stored = who.ledger.requests.find_by_key(keys, tenant=who.tenant_for(None))
    found = [stored[key] for key in keys if key in stored]
    requests = [one for one in found if who.sees_all_requests or one.filed_by == who.id]
    if not requests:
        raise UnknownRequestError("no erasure of that subject_request_id was received")
    return requests


def _has_withdrawn(who: Principal, request_id: str) -> bool:
    entries = read_timeline(who, request_id).items
    return any(one.code == "cancelled" for one in entries)


def _coarse_status(who: Principal, shown: RequestOut) -> RequestStatus:
    """Return how far a request is for a filer who may not know whom a model holds."""
    if _has_withdrawn(who, shown.id):
        return "cancelled"
    return "completed" if shown.state == "closed" else "pending"


def _status(who: Principal, request: LedgerRequest) -> RequestStatus:
    """Return how far one request is, in the words of the specification."""
    if request.state == "duplicate" and request.duplicate_of is not None:
        return _status(who, who.ledger.requests.get(request.duplicate_of))
    if request.state in ("purged", "closed"):
        return "completed"
    if request.state in _WITHDRAWN:
        return "cancelled"
    is_waiting = request.state in _PENDING or (request.state == "stuck" and request.batch is None)
    return "pending" if is_waiting else "in_progress"


def combine_statuses(statuses: Sequence[RequestStatus]) -> RequestStatus:
    """Return how far all are together: as far as the last of those that were not withdrawn."""
    left = [one for one in statuses if one != "cancelled"]
    if not left:
        return "cancelled"
    return left[0] if len(set(left)) == 1 else "in_progress"


def _completion(who: Principal, shown: Sequence[RequestOut]) -> datetime:
    last = max(one.due_on for one in shown)
    return who.ledger.settings.calendar.end_of(last).astimezone(UTC)


def _require_callbacks(who: Principal, tenant: str, urls: Sequence[str]) -> None:
    """Refuse addresses that no webhook of this desk goes to: a caller must not choose them."""
    if urls and not set(urls) <= Webhooks(who.ledger).list_addresses(tenant):
        title = "this desk calls only addresses that its operator allows"
        words = "Have a webhook made for the address, or leave status_callback_urls out and ask for"
        raise Problem(400, "callback", title, f"{words} the status.")
