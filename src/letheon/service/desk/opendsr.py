"""OpenDSR: erasures that a controller sends, for every model that knows the person.

Hashed identities are compared with the hashes of the ids that are held, in memory; neither the
hash nor which id it was is kept. What comes in becomes ordinary requests, one for each model, whose
idempotency keys are derived from the controller's ``subject_request_id``.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StrictStr
from sqlalchemy import or_, select

from letheon.exceptions import (
    IdempotencyError,
    RequestStateError,
    UnknownIdError,
    UnknownRequestError,
)
from letheon.ledger import Request
from letheon.ledger.tables import webhooks
from letheon.service._auth import Principal
from letheon.service._context import Context
from letheon.service._problems import Problem
from letheon.service._schemas import Out
from letheon.service.desk.filing import Wish, as_number, derived_key, file_everywhere
from letheon.service.desk.people import held_ids, known_ids, model_names, requests_by_key
from letheon.service.desk.request_forms import Filed, RequestOut
from letheon.service.desk.request_refusals import refusals
from letheon.service.desk.requests import answers, timeline

__all__ = [
    "VERSION",
    "Cancelled",
    "Discovery",
    "OpenDsrIn",
    "Received",
    "Status",
    "SubjectRequestId",
    "cancel",
    "discovery",
    "receive",
    "status",
]

VERSION = "2.0"
_GROUNDS = {"gdpr": "gdpr.art17.1.b", "ccpa": "ccpa.1798.105"}
_UUID4 = "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
_BEGINS_WITH_A_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ]")
_PENDING = ("received", "verified", "queued", "retry_wait", "on_hold", "duplicate")
_DONE = ("purged", "closed")
_WITHDRAWN = ("rejected", "cancelled")

IdentityType = Literal["controller_customer_id"]
IdentityFormat = Literal["raw", "sha256", "sha1", "md5"]
RequestStatus = Literal["pending", "in_progress", "completed", "cancelled"]
SubjectRequestId = Annotated[StrictStr, Field(pattern=_UUID4)]


def _written(value: object) -> object:
    """Refuse a time that is no text with a day in it: numbers would be taken for seconds."""
    if not isinstance(value, str) or not _BEGINS_WITH_A_DAY.match(value):
        raise ValueError("a time is written as RFC 3339 says")
    return value


Moment = Annotated[AwareDatetime, BeforeValidator(_written)]


class _Sent(BaseModel):
    """What controllers send may hold more than what is looked at."""

    model_config = ConfigDict(extra="ignore")


class Identity(_Sent):
    """By what a controller knows a person."""

    identity_type: IdentityType
    identity_value: Annotated[StrictStr, Field(min_length=1, max_length=10_000)]
    identity_format: IdentityFormat = "raw"


class OpenDsrIn(_Sent):
    """An erasure that a controller sends."""

    subject_request_id: SubjectRequestId
    subject_request_type: Literal["erasure"]
    subject_identities: list[Identity] = Field(min_length=1, max_length=50)
    submitted_time: Moment = Field(description="When the person asked the controller.")
    regulation: Literal["gdpr", "ccpa"] = "gdpr"
    api_version: Annotated[StrictStr, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){0,2}$")] | None = (
        None
    )
    status_callback_urls: list[Annotated[StrictStr, Field(max_length=2048)]] = Field(
        default_factory=list,
        max_length=10,
        description="Addresses of webhooks of this desk; see its documentation.",
    )
    extensions: dict[str, Any] | None = None


class IdentityKind(Out):
    """A kind of identity that is understood."""

    identity_type: IdentityType
    identity_format: IdentityFormat


class Discovery(Out):
    """What this desk understands."""

    api_version: str
    supported_identities: list[IdentityKind]
    supported_subject_request_types: list[Literal["erasure"]]
    processor_certificate: str


class Part(Out):
    """What one model has to do with it."""

    request: str
    model: str
    state: str
    certificate: int | None
    version: str | None


class Received(Out):
    """What was received."""

    controller_id: str
    expected_completion_time: datetime
    received_time: datetime
    encoded_request: str = Field(description="The body that was sent, in Base64.")
    subject_request_id: str


class Status(Out):
    """How far an erasure is."""

    controller_id: str
    expected_completion_time: datetime
    subject_request_id: str
    request_status: RequestStatus
    api_version: str
    results_count: int | None = Field(
        description="Rows that were the person's, in all models; null for who only files."
    )
    extensions: dict[str, list[Part]] = Field(description="By model: state and certificate.")


class Cancelled(Out):
    """What was withdrawn."""

    controller_id: str
    received_time: datetime
    subject_request_id: str
    api_version: str


def discovery(certificate: str) -> Discovery:
    """Return what this desk understands; `certificate` is where its certificate lies."""
    formats: tuple[IdentityFormat, ...] = ("raw", "sha256", "sha1", "md5")
    return Discovery(
        api_version=VERSION,
        supported_identities=[
            IdentityKind(identity_type="controller_customer_id", identity_format=one)
            for one in formats
        ],
        supported_subject_request_types=["erasure"],
        processor_certificate=certificate,
    )


def receive(context: Context, who: Principal, body: OpenDsrIn, raw: bytes) -> Received:
    """File one request for each model that knows the person.

    A repeat gives the same answer, and completes what a crash left out. Whoever may vouch for
    identities does so by sending: a controller has verified the person.
    """
    tenant = who.tenant_for(None)
    _require_callbacks(context, tenant, body.status_callback_urls)
    names = model_names(context.ledger, tenant)
    keys = {name: derived_key("opendsr", body.subject_request_id, name) for name in names}
    if not who.sees_all_requests:
        wishes = _wishes_of_filer(context, who, body, keys, tenant)
        return _received(context, body, raw, tenant, file_everywhere(context, who, wishes))
    stored = requests_by_key(context.ledger, keys.values(), tenant=tenant)
    wishes, kept = [], []
    for name, key in keys.items():
        people = _people(context, body.subject_identities, name, tenant)
        if people:
            wishes.append(_wish(who, body, people, name, tenant, key))
        elif key in stored:
            kept.append(_erased_since(context, body, stored[key]))
    kept = _visible(who, kept)
    if not wishes and not kept:
        raise UnknownIdError("no model knows a person of these identities")
    filed = file_everywhere(context, who, wishes, stored=kept)
    return _received(context, body, raw, tenant, filed)


def _received(context: Context, body: OpenDsrIn, raw: bytes, tenant: str, filed: Filed) -> Received:
    return Received(
        controller_id=tenant,
        expected_completion_time=_completion(context, filed.requests),
        received_time=min(one.received_at for one in filed.requests),
        encoded_request=base64.b64encode(raw).decode(),
        subject_request_id=body.subject_request_id,
    )


def _wish(
    who: Principal, body: OpenDsrIn, ids: Sequence[int | str], model: str, tenant: str, key: str
) -> Wish:
    return Wish(
        ids=ids,
        model=model,
        tenant=tenant,
        regime=body.regulation,
        ground=_GROUNDS[body.regulation],
        verified=who.may("requests:vouch"),
        key=key,
    )


def _wishes_of_filer(
    context: Context, who: Principal, body: OpenDsrIn, keys: Mapping[str, str], tenant: str
) -> list[Wish]:
    """Return one request for every model: the sender may not know which of them holds the person.

    A hash that no id of a model has stands in the request as it came; what counts as the same
    content is what was sent, whether its person is found or not.
    """
    sent = sorted((one.identity_format, one.identity_value) for one in body.subject_identities)
    digest = hashlib.sha256(json.dumps(sent).encode()).hexdigest()
    wishes = []
    for model, key in keys.items():
        people = _named_people(context, body.subject_identities, model, tenant)
        ids: Sequence[int | str] = people or [":".join(one) for one in sent]
        wish = _wish(who, body, ids, model, tenant, key)
        wishes.append(wish._replace(part_of=digest, ids_derived=True))
    if not wishes:
        raise UnknownIdError("this tenant has no model")
    return wishes


def _erased_since(context: Context, body: OpenDsrIn, found: Request) -> Request:
    """Return a request whose person the model no longer knows by the identities that were sent.

    That is so after an erasure, where all identities are hashes. Else the first call was about
    somebody else.
    """
    is_hashed = all(one.identity_format != "raw" for one in body.subject_identities)
    if is_hashed and _status(context, found) in ("in_progress", "completed"):
        return found
    raise IdempotencyError("this subject_request_id was used for another person; take a new one")


def status(context: Context, who: Principal, subject_request_id: str, domain: str) -> Status:
    """Return how far the requests are that one erasure became."""
    tenant = who.tenant_for(None)
    found = _found(context, who, tenant, subject_request_id)
    shown = answers(context, who, found)
    knows = who.sees_all_requests
    parts = [_status(context, one) for one in found]
    if not knows:
        parts = [_coarse_status(context, who, one) for one in shown]
    return Status(
        controller_id=tenant,
        expected_completion_time=_completion(context, shown),
        subject_request_id=subject_request_id,
        request_status=_status_of(parts),
        api_version=VERSION,
        results_count=sum(one.n_rows for one in found) if knows else None,
        extensions={
            domain: [
                Part(
                    request=one.id,
                    model=one.model,
                    state=one.state,
                    certificate=one.certificate,
                    version=one.version,
                )
                for one in shown
            ]
        },
    )


def cancel(context: Context, who: Principal, subject_request_id: str) -> Cancelled:
    """Withdraw all requests of one erasure, while no model has begun with it."""
    tenant = who.tenant_for(None)
    found = _found(context, who, tenant, subject_request_id)
    if not who.may("requests:handle") and any(one.filed_by != who.token_id for one in found):
        raise Problem(
            403, "not-allowed", "another token sent it", "Use that one, or requests:handle."
        )
    if not who.sees_all_requests:
        found = _require_unverified(context, who, found)
    waiting = [one for one in found if one.state not in _WITHDRAWN]
    if any(_status(context, one) != "pending" for one in waiting):
        raise RequestStateError("it is no longer pending; what is being erased stays erased")
    with refusals(), context.ledger.acting(who.token_id):
        for one in waiting:
            context.ledger.cancel(one.id, tenant=tenant)
    return Cancelled(
        controller_id=tenant,
        received_time=datetime.fromtimestamp(context.clock(), UTC),
        subject_request_id=subject_request_id,
        api_version=VERSION,
    )


def _require_unverified(
    context: Context, who: Principal, found: Sequence[Request]
) -> list[Request]:
    """Return what a filer can still withdraw; what became of the rest is not theirs to know."""
    left = [one for one in found if not _has_withdrawn(context, who, one.id)]
    if any(one.state != "received" for one in left):
        raise RequestStateError("the desk has taken it up; ask its operator to withdraw it")
    return left


def _has_withdrawn(context: Context, who: Principal, request_id: str) -> bool:
    return any(one.code == "cancelled" for one in timeline(context, who, request_id))


def _coarse_status(context: Context, who: Principal, shown: RequestOut) -> RequestStatus:
    """Return how far a request is for a filer who may not know whom a model holds."""
    if _has_withdrawn(context, who, shown.id):
        return "cancelled"
    return "completed" if shown.state == "closed" else "pending"


def _found(context: Context, who: Principal, tenant: str, subject_request_id: str) -> list[Request]:
    names = model_names(context.ledger, tenant)
    keys = [derived_key("opendsr", subject_request_id, name) for name in names]
    stored = requests_by_key(context.ledger, keys, tenant=tenant)
    found = _visible(who, [stored[key] for key in keys if key in stored])
    if not found:
        raise UnknownRequestError("no erasure of that subject_request_id was received")
    return found


def _visible(who: Principal, found: Iterable[Request]) -> list[Request]:
    return [one for one in found if who.sees_all_requests or one.filed_by == who.token_id]


def _people(
    context: Context, identities: Sequence[Identity], model: str, tenant: str
) -> list[int] | list[str]:
    """Return the ids by which a model knows the person."""
    wanted = _named_people(context, identities, model, tenant)
    return known_ids(context.ledger, wanted, model=model, tenant=tenant) if wanted else []


def _named_people(
    context: Context, identities: Sequence[Identity], model: str, tenant: str
) -> Sequence[int | str]:
    """Return the ids that were sent, and those that the model holds of hashes that were sent."""
    texts = [one.identity_value for one in identities if one.identity_format == "raw"]
    texts += _unhashed(context, identities, model, tenant)
    if context.ledger.holds_numbers(model, tenant=tenant):
        return [number for text in texts if (number := as_number(text)) is not None]
    return texts


def _unhashed(
    context: Context, identities: Sequence[Identity], model: str, tenant: str
) -> list[str]:
    """Return whose id has one of the hashes, by hashing the id of everybody who is held."""
    wanted: dict[str, set[str]] = {}
    for one in identities:
        if one.identity_format != "raw":
            wanted.setdefault(one.identity_format, set()).add(one.identity_value.lower())
    if not wanted:
        return []
    held = [str(one) for one in held_ids(context.ledger, model, tenant=tenant)]
    return [
        text
        for text in held
        if any(_hash(name, text) in digests for name, digests in wanted.items())
    ]


def _hash(name: str, text: str) -> str:
    return hashlib.new(name, text.encode(), usedforsecurity=False).hexdigest()


def _status(context: Context, found: Request) -> RequestStatus:
    """Return how far one request is, in the words of the specification."""
    if found.state == "duplicate" and found.duplicate_of is not None:
        return _status(context, context.ledger.request_of(found.duplicate_of))
    if found.state in _DONE:
        return "completed"
    if found.state in _WITHDRAWN:
        return "cancelled"
    is_waiting = found.state in _PENDING or (found.state == "stuck" and found.batch is None)
    return "pending" if is_waiting else "in_progress"


def _status_of(parts: Sequence[RequestStatus]) -> RequestStatus:
    """Return how far all are together: as far as the last of those that were not withdrawn."""
    left = [one for one in parts if one != "cancelled"]
    if not left:
        return "cancelled"
    return left[0] if len(set(left)) == 1 else "in_progress"


def _completion(context: Context, found: Sequence[Any]) -> datetime:
    last = max(one.due_on for one in found)
    return context.ledger.settings.calendar.end_of(last).astimezone(UTC)


def _require_callbacks(context: Context, tenant: str, urls: Sequence[str]) -> None:
    """Refuse addresses that no webhook of this desk goes to: a caller must not choose them."""
    if not urls:
        return
    mine = or_(webhooks.c.tenant.is_(None), webhooks.c.tenant == tenant)
    query = select(webhooks.c.url).where(mine, webhooks.c.disabled_at.is_(None))
    with context.ledger._core.database.reading() as conn:
        known = set(conn.scalars(query.where(webhooks.c.url.in_(urls))))
    if not set(urls) <= known:
        raise Problem(
            400,
            "callback",
            "this desk calls only addresses that its operator allows",
            "Have a webhook made for the address, or leave status_callback_urls out and ask for "
            "the status.",
        )
