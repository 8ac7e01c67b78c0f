"""Filing requests: one, one for every model that knows the person, or many at once.

Each request is a transaction of its own, and is on the disk when the answer goes out. The same
sent again, with the same idempotency key, gives the same requests and no new ones.
"""

import hashlib
import json
import secrets
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Header, Response
from pydantic import Field, StrictBool, StrictInt, StrictStr

from letheon.exceptions import IdempotencyError, LetheonError, UnknownIdError
from letheon.ledger import Request
from letheon.ledger.requests.deadlines import Regime
from letheon.ledger.requests.intake import LONGEST_ID, MOST_IDS
from letheon.service.auth import Principal, allows
from letheon.service.errors import Problem
from letheon.service.request_views import (
    MOST_ITEMS,
    NAME,
    BulkOut,
    Code,
    ModelName,
    RequestOut,
    TenantName,
    bulk_out,
    refusals,
    show_requests,
)
from letheon.service.schemas import In, Out

router = APIRouter(tags=["requests"])

EVERY_MODEL = "*"
DEFAULT_GROUNDS = {"gdpr": "gdpr.art17.1.b", "ccpa": "ccpa.1798.105"}
_OTHER_LIST = "this idempotency key was used for another list; take another key, or repeat that one"
# Threads that wait for the disk together share its commits; more of them gain nothing.
_pool = ThreadPoolExecutor(max_workers=32, thread_name_prefix="letheon-filing")

IdempotencyKey = Annotated[StrictStr, Field(pattern="^[!-~]([ -~]{0,253}[!-~])?$", max_length=255)]
Key = Annotated[
    IdempotencyKey | None,
    Header(
        alias="Idempotency-Key",
        description="The same key with the same content gives the same requests again.",
    ),
]
PersonId = (
    Annotated[StrictInt, Field(ge=-(2**63), le=2**63 - 1)]
    | Annotated[StrictStr, Field(max_length=LONGEST_ID)]
)


class _Erasure(In):
    """Who is to be erased, and why."""

    model: ModelName
    ids: list[PersonId] = Field(
        min_length=1, max_length=MOST_IDS, description="All numbers, or all texts."
    )
    regime: Regime = "gdpr"
    ground: Code | None = Field(
        default=None, description="See /api/v1/grounds; default: consent withdrawn, or CCPA."
    )
    verified: StrictBool = Field(
        default=False, description="You vouch for the identity; needs requests:vouch."
    )


class BulkItem(_Erasure):
    """One request of many."""

    key: IdempotencyKey | None = Field(default=None, description="Idempotency key of this one.")


class RequestIn(_Erasure):
    """A wish that people be erased from a model, or from every model that knows them."""

    model: Annotated[StrictStr, Field(pattern=rf"^(\*|{NAME})$")] = Field(
        description="Name of the model; * for every model of the tenant that knows them."
    )
    tenant: TenantName | None = None
    receipt: StrictBool = Field(
        default=False, description="Make a receipt code, shown once; for one person."
    )
    receipt_key: Annotated[StrictStr, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        default=None, description="X25519 public key of the person, instead of a code."
    )


class BulkIn(In):
    """Many requests; each stands for itself."""

    items: list[BulkItem] = Field(min_length=1, max_length=MOST_ITEMS)
    tenant: TenantName | None = None


class RequestFiled(RequestOut):
    """A request that was filed just now, or is repeated."""

    receipt_code: str | None = Field(
        default=None, description="For the person. It is shown this once and kept nowhere."
    )


class FiledEverywhere(Out):
    """One request for each model that knows these people."""

    requests: list[RequestFiled]


class Filed(NamedTuple):
    """What came of filing: one request, or one for each model; and whether any is new."""

    requests: list[RequestFiled]
    is_new: bool


class RequestInput(NamedTuple):
    """One request as the ledger takes it."""

    ids: Sequence[int | str]
    model: str
    tenant: str
    regime: str
    ground: str
    verified: bool
    key: str | None
    part_of: str | None = None
    needs_approval: bool = False
    ids_derived: bool = False

    @classmethod
    def of(cls, body: RequestIn | BulkItem, tenant: str, key: str | None) -> "RequestInput":
        """Return what was sent, with the default ground of its law."""
        ground = body.ground or DEFAULT_GROUNDS[body.regime]
        return cls(body.ids, body.model, tenant, body.regime, ground, body.verified, key)

    @property
    def terms(self) -> dict[str, Any]:
        """All but the ids."""
        return {name: value for name, value in self._asdict().items() if name != "ids"}


@router.post(
    "/api/v1/requests",
    summary="File a request",
    status_code=201,
    responses={
        200: {"description": "It was filed before.", "model": RequestFiled | FiledEverywhere}
    },
)
def file_request(
    response: Response,
    who: Annotated[Principal, Depends(allows("requests:file"))],
    body: RequestIn,
    key: Key = None,
) -> RequestFiled | FiledEverywhere:
    """Record that people are to be erased; it is on the disk when the answer comes.

    For the model `*` there is one request for each model of the tenant that knows somebody of
    them, and the answer lists them.
    """
    filed = file_one(who, body, key=key)
    if not filed.is_new:
        response.status_code = 200
    if body.model == EVERY_MODEL:
        return FiledEverywhere(requests=filed.requests)
    return filed.requests[0]


@router.post("/api/v1/requests/bulk", summary="File many requests")
def file_requests(
    who: Annotated[Principal, Depends(allows("requests:file", is_long=True))],
    body: BulkIn,
    key: Key = None,
) -> BulkOut:
    """File many requests, each for itself; the answer says what became of each, in their order.

    Repeated with the same Idempotency-Key, the whole gives the same requests again.
    """
    return file_many(who, body.items, tenant=body.tenant, key=key)


def file_one(who: Principal, body: RequestIn, *, key: str | None = None) -> Filed:
    """File one request; or, for the model ``*``, one for every model that knows the people."""
    _require_vouching(who, body.verified)
    wants_receipt = body.receipt or body.receipt_key is not None
    if wants_receipt and not who.sees_all_requests:  # only people who were held get one in the end
        raise Problem(
            403,
            "not-allowed",
            "this token may not ask for a receipt",
            "An operator makes the code and hands it to the person; file the request without one.",
        )
    if body.receipt and body.receipt_key is not None:
        raise Problem(
            422, "two-receipts", "both receipt and receipt_key", "Ask for a code, or send a key."
        )
    one = RequestInput.of(body, who.tenant_for(body.tenant), key)
    with refusals():
        inputs = _split_by_model(who, one) if body.model == EVERY_MODEL else [one]
        return _show_filed(who, [_file(who, each, body) for each in inputs])


def file_everywhere(
    who: Principal, inputs: Sequence[RequestInput], *, stored: Sequence[Request] = ()
) -> Filed:
    """File what one person asks of several models; `stored` are what a repeat finds done."""
    with refusals():
        made = [(submit(who, each), None) for each in _with_approval(who, inputs)]
        return _show_filed(who, [*((one, None) for one in stored), *made])


def _file(who: Principal, one: RequestInput, body: RequestIn) -> tuple[Request, str | None]:
    """File a request, and return it with its receipt code."""
    if body.receipt:
        with who.ledger.acting(who.token_id):
            return who.ledger.requests.submit_with_code(one.ids, **one.terms)
    extra = {} if body.receipt_key is None else {"receipt_key": body.receipt_key}
    return submit(who, one, **extra), None


def submit(who: Principal, one: RequestInput, **extra: Any) -> Request:
    """Give a request to the ledger, in the name of a token."""
    requests, terms = who.ledger.requests, one.terms
    with who.ledger.acting(who.token_id):
        if who.sees_all_requests:
            return requests.submit(one.ids, **terms, **extra)
        # An unknown id is noticed by `verify`, of which the filer sees nothing.
        terms |= {"verified": False, "needs_approval": False}
        request = requests.submit(one.ids, **terms, accept_unknown=True)
        if request.filed_by != who.token_id:
            raise IdempotencyError(
                "this idempotency key was used by somebody else; take another one"
            )
        if one.verified and request.state == "received":
            verified = requests.verify(
                request.id, tenant=one.tenant, needs_approval=one.needs_approval
            )
            return replace(verified, is_new=request.is_new)
    return request


def _show_filed(who: Principal, made: Sequence[tuple[Request, str | None]]) -> Filed:
    shown = show_requests(who, [request for request, _ in made])
    codes = [code for _, code in made]
    filed = [
        RequestFiled.of(one, receipt_code=code) for one, code in zip(shown, codes, strict=True)
    ]
    return Filed(filed, is_new=any(request.is_new for request, _ in made))


def _split_by_model(who: Principal, one: RequestInput) -> list[RequestInput]:
    """Return one request for each model that knows some of the people.

    The first has the caller's key, so that the key cannot stand for anything else; the others have
    keys derived from it. A repeat finds those that were made before a crash, and makes the others.
    """
    key = one.key if one.key is not None else secrets.token_hex(16)
    digest = _digest(sorted({json.dumps(each) for each in one.ids}))
    names = [model.name for model in who.ledger.models.list(tenant=one.tenant)]
    used = who.ledger.requests.by_key([key], tenant=one.tenant).get(key)
    if used is not None:  # the model of the request that has the key comes first
        names.sort(key=lambda name: name != used.model)
    inputs: list[RequestInput] = []
    for model in names:
        ids = _ids_for(who, one, model)
        if ids:
            own = derive_key("every-model", key, model) if inputs else key
            inputs.append(one._replace(ids=ids, model=model, key=own, part_of=digest))
    if not inputs:
        raise UnknownIdError("no model of this tenant knows these people")
    return _with_approval(who, inputs)


def _ids_for(who: Principal, one: RequestInput, model: str) -> Sequence[int | str]:
    """Return the ids that a request to one of all models names.

    For a token that may not know whom a model holds: all of them, wherever ids are of their kind.
    """
    if who.sees_all_requests:
        return who.ledger.requests.known_ids(one.ids, model=model, tenant=one.tenant)
    kind = int if who.ledger.models.has_integer_ids(model, tenant=one.tenant) else str
    return one.ids if all(isinstance(each, kind) for each in one.ids) else []


def derive_key(purpose: str, *parts: str) -> str:
    """Return an idempotency key that no caller can send: it begins with a control character."""
    return f"\x1f{purpose}:{_digest([purpose, *parts])}"


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()


def _with_approval(who: Principal, inputs: Sequence[RequestInput]) -> list[RequestInput]:
    """Let all that one call vouches for wait if it is, together, more rows than go without.

    A person whom two of them name counts once for each model.
    """
    policy, people = who.ledger.settings.policy, dict[tuple[str, str], list[int | str]]()
    if policy.approve_above is None:
        return list(inputs)
    for one in inputs:
        if one.verified:
            people.setdefault((one.model, one.tenant), []).extend(one.ids)
    n_rows = sum(_count_rows(who, ids, *whose) for whose, ids in people.items())
    return [one._replace(needs_approval=policy.needs_approval(n_rows)) for one in inputs]


def _count_rows(who: Principal, ids: Sequence[int | str], model: str, tenant: str) -> int:
    """Return how many rows people own in a model; ids of the wrong kind own none."""
    kinds = [[one for one in ids if isinstance(one, kind)] for kind in (str, int)]
    models = who.ledger.models
    try:
        return sum(models.count_rows(some, model, tenant=tenant) for some in kinds if some)
    except (LetheonError, TypeError, ValueError, OverflowError):
        return 0  # the ledger refuses these, each with its own reason


def file_many(
    who: Principal,
    items: Sequence[BulkItem],
    *,
    tenant: str | None = None,
    key: str | None = None,
    most: int = MOST_ITEMS,
) -> BulkOut:
    """File many requests, each in a transaction of its own; say for each what became of it.

    With `key` an item without a key of its own gets one, derived from `key` and its place, and is
    recorded as a part of the whole. So a repeat of the whole gives the same requests, also after
    a crash half-way; anything else that is sent with `key` is refused, and nothing is filed.
    An item with a key of its own stands for itself: `key` says nothing about it. `most` is how many
    items such a list can have. Rows that are vouched for count together: above
    `Policy.approve_above` all of them wait.

    Raises
    ------
    Problem
        422 if `key` was used for another list.
    """
    _require_vouching(who, any(item.verified for item in items))
    whose = who.tenant_for(tenant)
    inputs = [RequestInput.of(item, whose, item.key) for item in items]
    if key is not None:
        digest = _digest(item.model_dump_json() for item in items)
        inputs = [
            one._replace(key=_place_key(key, place), part_of=digest) if one.key is None else one
            for place, one in enumerate(inputs)
        ]
    inputs = _with_approval(who, inputs)

    def work(one: RequestInput) -> Request | Exception:
        try:
            return submit(who, one)
        except Exception as error:  # noqa: BLE001  (`bulk_out` raises what is no refusal)
            return error

    with refusals():
        ahead = {} if key is None else _take_key(who, inputs, key, most)
    others = iter(_pool.map(work, [one for n, one in enumerate(inputs) if n not in ahead]))
    results = [ahead[n] if n in ahead else next(others) for n in range(len(inputs))]
    return bulk_out(who, results)


def _place_key(key: str, place: int) -> str:
    return derive_key("bulk", key, str(place))


def _take_key(
    who: Principal, inputs: Sequence[RequestInput], key: str, most: int
) -> dict[int, Request]:
    """File one request of a list ahead of the others: it decides what the key stands for.

    Returned is that request, by its place in the list.

    Raises
    ------
    IdempotencyError
        The key stands for another list.
    """
    places = {_place_key(key, place): place for place in range(max(len(inputs), most))}
    for name in who.ledger.requests.by_key(places, tenant=inputs[0].tenant):
        place = places[name]
        if place >= len(inputs) or inputs[place].key != name:
            raise IdempotencyError(_OTHER_LIST)
        return {place: submit(who, inputs[place])}
    for place, one in enumerate(inputs):
        if one.part_of is not None:
            try:
                return {place: submit(who, one)}
            except IdempotencyError:
                raise
            except (LetheonError, ValueError):
                continue  # it is refused again, with its reason, among the others
    return {}


def _require_vouching(who: Principal, verified: bool) -> None:
    if verified and not who.may("requests:vouch"):
        raise Problem(
            403,
            "not-allowed",
            "this token may not vouch for an identity",
            "It needs the scope requests:vouch; or leave `verified` out, and somebody verifies.",
        )


def parse_number(text: str) -> int | None:
    """Return the number that a text is, or None; of 64 bits, in plain digits."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None
